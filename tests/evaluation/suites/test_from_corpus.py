"""Suites made from a corpus: pools against plain sets of citations, held-out intents, and what a corpus cannot give."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave import Corpus, Intent, synthesize
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.plain_text import fold
from citeweave.corpus.split import split_by_share, split_by_year
from citeweave.evaluation.options import CorpusSuiteOptions
from citeweave.evaluation.ranking_metrics import chance_of_average_precision
from citeweave.evaluation.run_tasks import run_ranking, run_search
from citeweave.evaluation.suites import from_corpus
from citeweave.evaluation.suites.corpus_pools import held_out_rows, training_graph
from citeweave.evaluation.suites.from_corpus import INTENTS, RANDOM, make_intent_suite, make_suite
from citeweave.evaluation.systems import Bm25System, VectorSystem
from citeweave.evaluation.tasks import ProbeTask, RankingTask, SearchTask, Suite

from ...graph.conftest import write_overlay
from ..conftest import corpus_of, grades_of, refused, task_of

Graph = dict[int, set[int]]
OPTIONS = CorpusSuiteOptions(held_out="share:0.2", queries=80, sample=300)
THIRD = CorpusSuiteOptions(held_out="share:0.3")
RANKINGS = ["cite", "cocite", "hard_cite", "couple", "mdcr"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return synthesize(tmp_path_factory.mktemp("made") / "corpus", SyntheticOptions(papers=700, references=6.0))


@pytest.fixture(scope="module")
def suite(corpus) -> Suite:
    return make_suite(corpus, OPTIONS)


def papers(number: int) -> list[dict[str, Any]]:
    """Paper i cites the three before it."""
    return [
        {
            "id": f"x:{i}",
            "title": f"A study of subject {i} and its parts",
            "abstract": f"Here thing {i} is looked at.",
            "references": [f"x:{i - step}" for step in (1, 2, 3) if i >= step],
        }
        for i in range(number)
    ]


def pools_of(suite: Suite, corpus: Corpus, name: str) -> Iterator[tuple[int, list[int], list[int]]]:
    """Query, relevant papers and others, by rows of the corpus."""
    task = task_of(suite, name)
    assert isinstance(task, RankingTask)
    assert list(task.pools.names) == [task.texts.ids[query] for query in task.pools.queries]
    for query, grades in grades_of(task).items():
        split = [[paper for paper, grade in grades.items() if grade == wanted] for wanted in (1, 0)]
        yield corpus.row(query), *(corpus.rows(part).tolist() for part in split)


def citations(corpus: Corpus, *, of: np.ndarray | None = None) -> Graph:
    graph: Graph = defaultdict(set)
    for citing, cited in zip(corpus.citing.tolist(), corpus.cited.tolist(), strict=True):
        if of is None or of[citing]:
            graph[citing].add(cited)
    return graph


def connected(graph: Graph, query: int) -> set[int]:
    return graph.get(query, set()) | {citing for citing, cited in graph.items() if query in cited}


def cocited(graph: Graph, query: int) -> Counter[int]:
    return Counter(other for cited in graph.values() if query in cited for other in cited - {query})


@pytest.mark.parametrize("rule", ["share:0.2", "year:2020"])
def test_held_out_papers_are_those_of_the_corpus_split(corpus, rule):
    options = CorpusSuiteOptions(held_out=rule, seed=3)
    held = held_out_rows(corpus, options)
    if rule == "share:0.2":
        split = split_by_share(corpus.ids, validation=0, test=0.2, seed=3)
    else:
        split = split_by_year(corpus.years, validation_from=2020, test_from=2020)
    assert np.flatnonzero(held).tolist() == split.test.tolist()
    graph = training_graph(corpus, options)
    edges = zip(graph.sources().tolist(), graph.cited.targets.tolist(), strict=True)
    expected = {(a, b) for a, cited in citations(corpus, of=~held).items() for b in cited}
    assert sorted(edges) == sorted(expected) and 0 < len(expected) < len(corpus.citing)
    assert training_graph(corpus, None).edges == len(corpus.citing)


@pytest.mark.parametrize("name", RANKINGS)
def test_pools_hold_no_paper_twice_and_never_the_query(corpus, suite, name):
    graph, held, seen = citations(corpus), held_out_rows(corpus, OPTIONS), 0
    for query, relevant, others in pools_of(suite, corpus, name):
        assert 1 <= len(relevant) <= 5 and 1 <= len(others) <= (55 if name == "mdcr" else 25)
        titles = [fold(corpus.titles[row]) for row in (query, *relevant, *others)]
        assert len(set(titles)) == len(titles) and all(titles)
        if name in ("cite", "hard_cite", "mdcr"):  # what is cited is relevant, and nothing connected is a negative
            assert held[query] and set(relevant) <= graph[query]
            assert len(relevant) == min(5, len(graph[query]))
            assert not set(others) & connected(graph, query)
        seen += 1
    assert seen == suite.data["tasks"][name]["queries"] > 40


def test_hard_papers_are_cited_by_the_cited(corpus, suite):
    graph, held = citations(corpus), held_out_rows(corpus, OPTIONS)
    hard, random = 0, 0
    for query, _, others in pools_of(suite, corpus, "hard_cite"):
        hop = {far for near in graph[query] if not held[near] for far in graph[near]}
        hop -= connected(graph, query) | {query}
        assert len(hop & set(others)) >= min(25, len(hop)) > 0
        hard, random = hard + min(25, len(hop)), random + 25 - min(25, len(hop))
    counts = suite.data["tasks"]["hard_cite"]
    assert (counts["second-hop papers"], counts["random papers"]) == (hard, random)
    pools = (pools_of(suite, corpus, name) for name in ("cite", "hard_cite"))
    cite, hard_cite = ({query: relevant for query, relevant, _ in each} for each in pools)
    both = cite.keys() & hard_cite.keys()  # of which both ask for the same papers
    assert len(both) > 40 and all(cite[query] == hard_cite[query] for query in both)


def test_cocited_pairs_are_unknown_to_training_and_the_strongest(corpus, suite):
    held = held_out_rows(corpus, OPTIONS)
    everywhere, training, unseen = (citations(corpus, of=of) for of in (None, ~held, held))
    for query, relevant, others in pools_of(suite, corpus, "cocite"):
        known = cocited(training, query)
        counts = Counter({row: count for row, count in cocited(unseen, query).items() if row not in known})
        assert sorted((counts[row] for row in relevant), reverse=True) == [n for _, n in counts.most_common(5)]
        assert all(counts[row] for row in relevant)
        assert not set(others) & (cocited(everywhere, query).keys() | connected(everywhere, query))


def test_coupled_papers_share_the_most_references(corpus, suite):
    graph = citations(corpus)
    for query, relevant, others in pools_of(suite, corpus, "couple"):
        shared = Counter({row: n for row in graph if row != query and (n := len(graph[row] & graph[query]))})
        assert [shared[row] for row in relevant] == [n for _, n in shared.most_common(5)]
        assert not set(others) & (shared.keys() | connected(graph, query))


def test_references_outside_the_corpus_couple(tmp_path):
    """Of every four papers three cite the first, and two by two share a reference outside."""
    made = papers(80)
    for i, paper in enumerate(made):
        paper["references"] = [f"outside:{i // 2}", *([f"x:{i - i % 4}"] if i % 4 else [])]
    corpus = corpus_of(tmp_path, made)
    assert len(corpus.references_outside("citing")) == 80
    half = CorpusSuiteOptions(held_out="share:0.5")
    expected = {0: [{1}], 1: [{0, 2, 3}], 2: [{3}, {1}], 3: [{2}, {1}]}
    seen = Counter[int]()
    for query, relevant, _ in pools_of(make_suite(corpus, half), corpus, "couple"):
        number = int(corpus.ids[query][2:])
        found = [int(corpus.ids[row][2:]) - number + number % 4 for row in relevant]
        seen[number % 4] += 1
        for tier in expected[number % 4]:
            assert set(found[: len(tier)]) == tier
            found = found[len(tier) :]
        assert not found
    assert sum(seen.values()) == held_out_rows(corpus, half).sum() and len(seen) == 4
    alone = [{**paper, "references": [f"outside:{i // 2}"]} for i, paper in enumerate(papers(40))]
    corpus = corpus_of(tmp_path / "alone", alone)
    suite = make_suite(corpus, half)
    for query, relevant, _ in pools_of(suite, corpus, "couple"):
        assert [corpus.ids[row] for row in relevant] == [f"x:{int(corpus.ids[query][2:]) ^ 1}"]
    assert suite.not_evaluated["cite"] == suite.not_evaluated["cocite"] == "the corpus has no citations"


def test_mdcr_asks_every_field_in_turn(corpus, suite):
    groups = [corpus.fields[query].partition("\n")[0] for query, _, _ in pools_of(suite, corpus, "mdcr")]
    assert list(task_of(suite, "mdcr").pools.groups) == groups
    fields = set(groups)
    assert len(fields) > 1 and set(groups[: len(fields)]) == fields


def test_draws_depend_on_the_seed_and_the_query_alone(corpus, suite):
    again = make_suite(corpus, replace(OPTIONS, queries=20, field_papers=100, search_papers=50))
    other = make_suite(corpus, replace(OPTIONS, seed=1))
    for name in RANKINGS:
        all_of_it = list(pools_of(suite, corpus, name))
        assert list(pools_of(again, corpus, name)) == all_of_it[:20]
        assert list(pools_of(other, corpus, name)) != all_of_it
    sampled = make_suite(corpus, replace(OPTIONS, sample=40))  # random papers come from the sample
    assert len({row for _, _, found in pools_of(sampled, corpus, "cite") for row in found}) <= 40


def test_copies_of_a_paper_are_never_candidates(tmp_path):
    """Every paper has a copy of its own under another id, which nobody cites."""
    originals = papers(60)
    copies = [{**paper, "id": f"y:{i}", "references": [], "year": 1999} for i, paper in enumerate(originals)]
    corpus = corpus_of(tmp_path, [*({**paper, "year": 2001} for paper in originals), *copies])
    assert len(corpus) == 120
    graph, suite = citations(corpus), make_suite(corpus, THIRD)
    for name in ("cite", "hard_cite", "mdcr"):
        for query, _, others in pools_of(suite, corpus, name):
            taken = {corpus.titles[row] for row in graph[query] | {query}}
            assert not taken & {corpus.titles[row] for row in others}


def test_pairs_that_training_knows_the_other_way_round_are_not_asked_for(tmp_path):
    made = papers(60)
    for i in range(0, 60, 2):  # x:i and x:i+1 cite each other
        made[i]["references"].append(f"x:{i + 1}")
    corpus = corpus_of(tmp_path, made)
    training, asked = training_graph(corpus, THIRD), 0
    for query, relevant, _ in pools_of(make_suite(corpus, THIRD), corpus, "cite"):
        assert not set(relevant) & set(training.citing.row(query).tolist())
        asked += 1
    assert asked


def test_probes_ask_for_the_papers_own_fields_and_numbers(corpus, suite, tmp_path):
    def rows_of(task: ProbeTask, part: Any) -> Any:
        return corpus.rows([task.texts.ids[row] for row in part.tolist()])

    field = task_of(suite, "field")
    assert isinstance(field, ProbeTask) and field.metrics == {"f1": "f1_macro"}
    assert not set(field.train.tolist()) & set(field.test.tolist())
    train, test = Counter(field.train_labels.tolist()), Counter(field.test_labels.tolist())
    assert all(abs(train[name] - 0.7 * (train[name] + test[name])) <= 1 for name in train | test)  # class by class
    assert min((train + test).values()) >= 30
    for part, labels in ((field.train, field.train_labels), (field.test, field.test_labels)):
        assert [corpus.fields[int(row)].partition("\n")[0] for row in rows_of(field, part)] == labels.tolist()
    cited = Counter(corpus.cited.tolist())
    for name in ("year", "citations"):
        task = task_of(suite, name)
        assert task.kind == "numbers" and len(task.train) == 420 and len(task.test) == 280
        rows = rows_of(task, task.test)
        expected = corpus.years[rows] if name == "year" else np.log1p([cited[row] for row in rows.tolist()])
        assert np.allclose(task.test_labels, expected)
    # citations are counted as the source counts them
    counted = corpus_of(tmp_path, [{**paper, "citation_count": i} for i, paper in enumerate(papers(80))])
    assert (counted.citation_counts >= 0).any(), "the reader of plain files gives no counts"
    task = task_of(make_suite(counted), "citations")
    numbers = [int(task.texts.ids[row][2:]) for row in task.test.tolist()]
    assert np.allclose(task.test_labels, np.log1p(numbers))


def test_titles_ask_for_abstracts_that_do_not_hold_them(corpus, suite, tmp_path):
    task = task_of(suite, "title")
    assert isinstance(task, SearchTask) and len(task.queries) == 80
    assert all(task.texts.titles[row] == "" and task.texts.abstracts[row] for row in task.candidates.tolist())
    for query, answer in zip(task.queries.tolist(), task.judgments.candidates.tolist(), strict=True):
        paper = task.texts.ids[query].removesuffix("#title")
        assert task.texts.ids[answer] == f"{paper}#abstract"
        assert task.texts.titles[query] == corpus.titles[corpus.row(paper)] and task.texts.abstracts[query] == ""
        assert fold(task.texts.titles[query]) not in fold(task.texts.abstracts[answer])
    made = papers(20)
    for paper in made[:8]:
        paper["abstract"] = f"{paper['title'].upper()}! is this paper, of which more."
    told = make_suite(corpus_of(tmp_path, made), CorpusSuiteOptions(held_out="share:0.4"))
    counts = told.data["tasks"]["title"]
    assert counts["titles left out: told in the abstract"] == 8 and counts["queries"] == 12
    assert counts["candidates"] == 20


def test_summaries_ask_for_their_papers(tmp_path):
    made = papers(20)
    made[3]["tldr"], made[4]["tldr"] = ["Shows three.", "Three, shown."], "Shows four."
    made[5]["tldr"] = "Here thing 5 is looked at."  # word for word
    made[6]["note"] = 'says "tldr" only'
    task = task_of(make_suite(corpus_of(tmp_path, made), CorpusSuiteOptions(held_out="share:0.4")), "summary")
    asked = {task.texts.ids[row]: task.texts.titles[row] for row in task.queries.tolist()}
    assert asked == {"x:3#summary": "Shows three.", "x:4#summary": "Shows four."}
    found = [task.texts.ids[row] for row in task.judgments.candidates]
    assert found == [name.removesuffix("#summary") for name in asked] and len(task.candidates) == 20


def test_the_suite_names_its_data_and_words_find_what_is_asked_for(corpus, suite):
    assert suite.name == "corpus" and not suite.not_evaluated
    probes = ("field.f1", "year.kendalltau", "citations.kendalltau")
    assert suite.headline == (*(f"{name}.map" for name in RANKINGS), *probes, "title.ndcg_cut_10")
    assert suite.averages["average"].parts == suite.headline
    assert suite.data["corpus"] == corpus.hash and suite.data["options"]["held_out"] == "share:0.2"
    held = held_out_rows(corpus, OPTIONS)[corpus.citing]
    assert suite.data["held-out citations"] == held.sum() and suite.data["citations to train on"] == (~held).sum()
    assert f"the {held.sum():,} citations" in suite.notes[0]
    shared = {id(task.texts) for task in suite.tasks if not isinstance(task, SearchTask)}
    assert len(shared) == 1 and json.dumps(suite.data)
    # BM25 is better than chance by far: about 0.2 for five relevant papers of thirty
    assert run_ranking(task_of(suite, "cite"), Bm25System(), "", "wrong").metrics["map"] > 35
    assert run_search(task_of(suite, "title"), Bm25System(), "", "wrong").metrics["recip_rank"] > 20


def test_what_a_corpus_cannot_give_is_named(tmp_path):
    suite = make_suite(corpus_of(tmp_path / "bare", [{**paper, "references": []} for paper in papers(30)]))
    assert [task.name for task in suite.tasks] == ["title"]
    assert suite.not_evaluated == {
        **dict.fromkeys(RANKINGS, "the corpus has no citations"),
        **{"field": "no field labels", "year": "no years"},
        "citations": "no citation counts and no citations to count",
    }
    refused("corpus cannot evaluate field: no field labels", suite.choose, ["field"])
    small = corpus_of(tmp_path / "small", papers(30))
    suite = make_suite(small, THIRD)
    task = task_of(suite, "mdcr")
    assert set(task.pools.groups) == {"all"}  # without fields all papers are one group
    assert suite.data["tasks"]["mdcr"]["pools with fewer other papers than asked"] == len(task.pools)
    assert suite.not_evaluated["citations"].startswith("30 papers have citation counts")
    refused("no paper has a year; hold out a share", make_suite, small, CorpusSuiteOptions(held_out="year:2016"))
    with pytest.raises(UserError, match="leaves nothing on one side of 30 papers; choose a larger share"):
        make_suite(small, CorpusSuiteOptions(held_out="share:0.000001"))
    mute = [{**paper, "year": 2000 + i // 20} for i, paper in enumerate(papers(40))]
    for paper in mute[20:]:  # held-out papers without references ask nothing
        paper["references"] = []
    suite = make_suite(corpus_of(tmp_path / "mute", mute), CorpusSuiteOptions(held_out="year:2001"))
    reason = "no paper held out by year:2001 cites a paper of the corpus; hold out other papers"
    assert suite.not_evaluated["cite"] == suite.not_evaluated["mdcr"] == reason
    assert suite.not_evaluated["cocite"] == "no two papers are cited together by held-out papers alone"
    untitled = papers(60)
    for paper in untitled[::3]:
        paper["title"] = ""
    suite = make_suite(corpus_of(tmp_path / "untitled", untitled), THIRD)
    titles = [title for task in suite.tasks if isinstance(task, RankingTask) for title in task.texts.titles]
    assert titles and all(titles)
    assert "20 papers of the corpus have no title and are left out" in suite.notes
    nothing = corpus_of(tmp_path / "nothing", [{**paper, "title": ""} for paper in papers(30)])
    refused("gives no task .*import papers with titles", make_suite, nothing, THIRD, error=EmptyResultError)


def test_options_are_checked(corpus):
    for rule in ("2016", "year:soon", "share:0", "share:1", "share:nan", "years:2016", "share:", ""):
        refused("must be a year such as year:2016, or a share", CorpusSuiteOptions, held_out=rule)
    refused("queries is 0; it must be at least 1", CorpusSuiteOptions, queries=0)
    for rule in ("year:1900", "year:2090"):
        with pytest.raises(UserError, match=f"--held-out {rule} leaves nothing.*go from 1990 to 2024"):
            held_out_rows(corpus, CorpusSuiteOptions(held_out=rule))


MANY = CorpusSuiteOptions(held_out="share:0.3", queries=1000)


@pytest.fixture(scope="module")
def literature(tmp_path_factory) -> Corpus:
    return synthesize(tmp_path_factory.mktemp("made") / "corpus", SyntheticOptions(papers=150, sharers=12), workers=1)


@pytest.fixture(scope="module")
def intent_suite(literature) -> Suite:
    return make_intent_suite(literature, MANY)


def intent_pools(suite: Suite, name: str) -> dict[str, tuple[set[str], set[str]]]:
    """Query -> ids of what is relevant, and of the others."""
    task = task_of(suite, name)
    ids, found = task.texts.ids, {}
    for query, grades in zip(task.pools.queries.tolist(), grades_of(task).values(), strict=True):
        assert ids[query] not in grades
        right = {paper for paper, grade in grades.items() if grade}
        found[ids[query]] = right, set(grades) - right
    return found


def test_pools_of_intents_are_those_of_brute_force(literature, intent_suite):
    corpus, suite, several = literature, intent_suite, 0
    held = held_out_rows(corpus, MANY)
    # papers cite earlier ones alone, so that no pair is known the other way
    cited: dict[str, dict[str, int]] = defaultdict(dict)
    for citing, other, bits in zip(corpus.citing, corpus.cited, corpus.intents, strict=True):
        if held[citing]:
            cited[corpus.ids[citing]][corpus.ids[other]] = int(bits)
    assert [task.name for task in suite.tasks] == [*INTENTS, *(f"{name}_mixed" for name in INTENTS)]
    for name, bit in INTENTS.items():
        expected = {}
        for query, own in cited.items():
            right = {paper for paper, bits in own.items() if bits & bit}
            others = {paper for paper, bits in own.items() if bits & 7 and not bits & bit}
            several += sum(bits & bit > 0 and bits & 7 != bit for bits in own.values())
            if right and others:
                expected[query] = right, others
        plain, mixed = intent_pools(suite, name), intent_pools(suite, f"{name}_mixed")
        assert plain == expected and len(plain) > 10
        for query, (right, others) in mixed.items():
            citing = {corpus.ids[other] for other in corpus.citing[corpus.cited == corpus.row(query)].tolist()}
            random = others - plain[query][1]
            assert right == plain[query][0] and len(random) == RANDOM
            assert not random & (set(cited[query]) | citing | {query})
    assert several > 0  # some citations have more than one intent
    # what is asked is held out for the suite of the corpus too: one corpus to train on serves both
    asked = {paper for name in INTENTS for paper in intent_pools(suite, name)}
    assert asked <= set(intent_pools(make_suite(corpus, MANY), "cite"))


def test_random_vectors_reach_the_chance_that_is_noted(literature, intent_suite):
    task = task_of(intent_suite, "method")
    assert isinstance(task, RankingTask) and set(task.pools.groups or ()) == {"method"}
    rng = np.random.default_rng(0)
    systems = [VectorSystem(task.texts.ids, rng.normal(size=(len(task.texts), 8)), name="chance") for _ in range(30)]
    found = np.mean([run_ranking(task, system, "", "wrong").metrics["map"] for system in systems])
    told = intent_suite.data["map of a random order"]["method"]
    assert found == pytest.approx(told, abs=1.5)
    assert f"method: a random order has map {told:.2f}" in intent_suite.notes
    assert intent_suite.choose(["method"]).notes[-1].startswith("method:")
    assert intent_suite.averages["all.map"].parts == ("background.map", "method.map", "result.map")
    few = make_intent_suite(literature, replace(MANY, queries=7))
    assert intent_pools(few, "result") == dict(list(intent_pools(intent_suite, "result").items())[:7])


@given(st.integers(1, 6).flatmap(lambda size: st.tuples(st.integers(1, size), st.just(size))))
def test_chance_is_the_mean_over_all_orders(sizes):
    relevant, size = sizes
    grades = [1] * relevant + [0] * (size - relevant)
    precisions = [
        sum(sum(order[: at + 1]) / (at + 1) for at in range(size) if order[at]) / relevant
        for order in permutations(grades)
    ]
    assert chance_of_average_precision(np.array([relevant]), np.array([size]))[0] == pytest.approx(np.mean(precisions))


def test_intents_of_an_overlay_and_what_cannot_be_asked(literature, tmp_path, cli):
    corpus, intent_graph = literature, from_corpus.intent_graph
    mask = np.where(np.arange(len(corpus.citing)) % 2, Intent.METHOD, Intent.RESULT).astype(np.uint8)
    write_overlay(corpus, tmp_path / "intents", mask)
    made = make_intent_suite(corpus, MANY, graph=intent_graph(corpus, tmp_path / "intents"))
    query, (right, others) = next(iter(intent_pools(made, "method").items()))
    own = corpus.citing == corpus.row(query)
    assert right == {corpus.ids[row] for row in corpus.cited[own & (mask == Intent.METHOD)].tolist()}
    assert others == {corpus.ids[row] for row in corpus.cited[own & (mask == Intent.RESULT)].tolist()}
    assert "background" in made.not_evaluated and made.averages["all.map"].parts == ("method.map", "result.map")
    write_overlay(corpus, tmp_path / "one", np.full(len(mask), Intent.METHOD, np.uint8))
    with pytest.raises(EmptyResultError, match="no held-out paper cites some papers for method and others"):
        make_intent_suite(corpus, MANY, graph=intent_graph(corpus, tmp_path / "one"))
    with pytest.raises(EmptyResultError, match=r"none of its .* citations has the intent .*citeweave annotate"):
        make_intent_suite(corpus, MANY, graph=intent_graph(corpus).with_intents(np.full(len(mask), 16, np.uint8)))
    real = corpus_of(tmp_path, [{"id": "a", "title": "A title", "abstract": "One."}])
    refused("none of its 0 citations", make_intent_suite, real, error=EmptyResultError)
    refused("fits only the corpus it was made from", intent_graph, real, tmp_path / "intents")
    asked = "evaluate bm25 --data", corpus.folder, "--intents", tmp_path / "intents", "-o", tmp_path / "report"
    metrics = cli.json(*asked, "--suite intents --held-out share:0.3")["metrics"]
    assert metrics["all.map"] == pytest.approx((metrics["method.map"] + metrics["result.map"]) / 2)
    cli.fails("is only for --suite intents, and --suite is corpus", *asked, "--suite corpus")
