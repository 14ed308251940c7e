"""A suite made from a corpus: pools against plain sets of citations, and what a corpus cannot give."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave import Corpus, synthesize
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.plain_text import fold
from citeweave.corpus.split import split_by_share, split_by_year
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.evaluation.encoder_systems import Bm25System
from citeweave.evaluation.ranking_tasks import run_ranking, run_search
from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions, held_out_rows, make_suite, training_graph
from citeweave.evaluation.tasks import ProbeTask, RankingTask, SearchTask, Suite

Graph = dict[int, set[int]]
OPTIONS = CorpusSuiteOptions(held_out="share:0.2", queries=80, sample=300)
RANKINGS = ["cite", "cocite", "hard_cite", "couple", "mdcr"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return synthesize(tmp_path_factory.mktemp("made") / "corpus", SyntheticOptions(papers=700, references=6.0))


@pytest.fixture(scope="module")
def suite(corpus: Corpus) -> Suite:
    return make_suite(corpus, OPTIONS)


def imported(folder: Path, papers: Iterable[dict[str, Any]]) -> Corpus:
    (folder / "in").mkdir()
    (folder / "in/papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
    return import_papers(folder / "in", folder / "corpus").corpus


def papers(number: int, **extra: Any) -> list[dict[str, Any]]:
    """Paper i cites the three before it."""
    return [
        {
            "id": f"x:{i}",
            "title": f"A study of subject {i} and its parts",
            "abstract": f"Here thing {i} is looked at.",
            "references": [f"x:{i - step}" for step in (1, 2, 3) if i >= step],
            **extra,
        }
        for i in range(number)
    ]


def task_of(suite: Suite, name: str) -> Any:
    return next(task for task in suite.tasks if task.name == name)


def pools_of(suite: Suite, corpus: Corpus, name: str) -> Iterator[tuple[int, list[int], list[int]]]:
    """Query, relevant papers and others, by rows of the corpus."""
    task = task_of(suite, name)
    assert isinstance(task, RankingTask)
    rows = corpus.rows(list(task.texts.ids))
    for number, query in enumerate(task.pools.queries.tolist()):
        span = slice(task.pools.offsets[number], task.pools.offsets[number + 1])
        found, grades = rows[task.pools.candidates[span]], task.pools.grades[span]
        assert task.pools.names[number] == task.texts.ids[query]
        yield int(rows[query]), found[grades == 1].tolist(), found[grades == 0].tolist()


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
def test_held_out_papers_are_those_of_the_corpus_split(corpus: Corpus, rule: str) -> None:
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
def test_pools_hold_no_paper_twice_and_never_the_query(corpus: Corpus, suite: Suite, name: str) -> None:
    size = 60 if name == "mdcr" else 30
    seen = 0
    for query, relevant, others in pools_of(suite, corpus, name):
        assert 1 <= len(relevant) <= 5 and 1 <= len(others) <= size - 5
        titles = [fold(corpus.titles[row]) for row in (query, *relevant, *others)]
        assert len(set(titles)) == len(titles) and all(titles)
        seen += 1
    assert seen == suite.data["tasks"][name]["queries"] > 40


@pytest.mark.parametrize("name", ["cite", "hard_cite", "mdcr"])
def test_what_is_cited_is_relevant_and_nothing_connected_is_a_negative(corpus: Corpus, suite: Suite, name: str) -> None:
    graph, held = citations(corpus), held_out_rows(corpus, OPTIONS)
    for query, relevant, others in pools_of(suite, corpus, name):
        assert held[query] and set(relevant) <= graph[query]
        assert len(relevant) == min(5, len(graph[query]))
        assert not set(others) & connected(graph, query)


def test_hard_papers_are_cited_by_the_cited(corpus: Corpus, suite: Suite) -> None:
    graph, held = citations(corpus), held_out_rows(corpus, OPTIONS)
    hard, random = 0, 0
    for query, _, others in pools_of(suite, corpus, "hard_cite"):
        hop = {far for near in graph[query] if not held[near] for far in graph[near]}
        hop -= connected(graph, query) | {query}
        found = len(hop & set(others))
        assert found >= min(25, len(hop)) > 0
        hard, random = hard + min(25, len(hop)), random + 25 - min(25, len(hop))
    counts = suite.data["tasks"]["hard_cite"]
    assert (counts["second-hop papers"], counts["random papers"]) == (hard, random)


def test_cite_and_hard_cite_ask_for_the_same_papers(corpus: Corpus, suite: Suite) -> None:
    easy, hard = ({q: r for q, r, _ in pools_of(suite, corpus, name)} for name in ("cite", "hard_cite"))
    both = easy.keys() & hard.keys()
    assert len(both) > 40 and all(easy[query] == hard[query] for query in both)


def test_cocited_pairs_are_unknown_to_training_and_the_strongest(corpus: Corpus, suite: Suite) -> None:
    held = held_out_rows(corpus, OPTIONS)
    everywhere, training = citations(corpus), citations(corpus, of=~held)
    unseen = citations(corpus, of=held)
    for query, relevant, others in pools_of(suite, corpus, "cocite"):
        known = cocited(training, query)
        counts = Counter({row: count for row, count in cocited(unseen, query).items() if row not in known})
        assert sorted((counts[row] for row in relevant), reverse=True) == [n for _, n in counts.most_common(5)]
        assert all(counts[row] for row in relevant)
        assert not set(others) & (cocited(everywhere, query).keys() | connected(everywhere, query))


def test_coupled_papers_share_the_most_references(corpus: Corpus, suite: Suite) -> None:
    graph = citations(corpus)
    for query, relevant, others in pools_of(suite, corpus, "couple"):
        shared = Counter({row: n for row in graph if row != query and (n := len(graph[row] & graph[query]))})
        assert [shared[row] for row in relevant] == [n for _, n in shared.most_common(5)]
        assert not set(others) & (shared.keys() | connected(graph, query))


def test_references_outside_the_corpus_couple(tmp_path: Path) -> None:
    """Of every four papers three cite the first, and two by two share a reference outside."""
    made = papers(80)
    for i, paper in enumerate(made):
        paper["references"] = [f"outside:{i // 2}", *([f"x:{i - i % 4}"] if i % 4 else [])]
    corpus = imported(tmp_path, made)
    assert len(corpus.references_outside("citing")) == 80
    suite = make_suite(corpus, CorpusSuiteOptions(held_out="share:0.5"))
    expected = {0: [{1}], 1: [{0, 2, 3}], 2: [{3}, {1}], 3: [{2}, {1}]}
    seen = Counter[int]()
    for query, relevant, _ in pools_of(suite, corpus, "couple"):
        number = int(corpus.ids[query][2:])
        found = [int(corpus.ids[row][2:]) - number + number % 4 for row in relevant]
        seen[number % 4] += 1
        for tier in expected[number % 4]:
            assert set(found[: len(tier)]) == tier
            found = found[len(tier) :]
        assert not found
    assert sum(seen.values()) == held_out_rows(corpus, CorpusSuiteOptions(held_out="share:0.5")).sum()
    assert len(seen) == 4


def test_references_outside_alone_still_couple(tmp_path: Path) -> None:
    made = [{**paper, "references": [f"outside:{i // 2}"]} for i, paper in enumerate(papers(40))]
    corpus = imported(tmp_path, made)
    suite = make_suite(corpus, CorpusSuiteOptions(held_out="share:0.5"))
    for query, relevant, _ in pools_of(suite, corpus, "couple"):
        assert [corpus.ids[row] for row in relevant] == [f"x:{int(corpus.ids[query][2:]) ^ 1}"]
    assert suite.not_evaluated["cite"] == suite.not_evaluated["cocite"] == "the corpus has no citations"


def test_mdcr_asks_every_field_in_turn(corpus: Corpus, suite: Suite) -> None:
    task = task_of(suite, "mdcr")
    first = {row: corpus.fields[row].partition("\n")[0] for row in range(len(corpus))}
    groups = [first[query] for query, _, _ in pools_of(suite, corpus, "mdcr")]
    assert list(task.pools.groups) == groups
    counts = Counter(groups)
    assert len(counts) > 1
    assert len(set(groups[: len(counts)])) == len(counts)


def test_draws_depend_on_the_seed_and_the_query_alone(corpus: Corpus, suite: Suite) -> None:
    again = make_suite(corpus, replace(OPTIONS, queries=20, field_papers=100, search_papers=50))
    other = make_suite(corpus, replace(OPTIONS, seed=1))
    for name in RANKINGS:
        all_of_it = list(pools_of(suite, corpus, name))
        assert list(pools_of(again, corpus, name)) == all_of_it[:20]
        assert list(pools_of(other, corpus, name)) != all_of_it


def test_random_papers_come_from_the_sample(corpus: Corpus) -> None:
    suite = make_suite(corpus, replace(OPTIONS, sample=40))
    others = {row for _, _, found in pools_of(suite, corpus, "cite") for row in found}
    assert len(others) <= 40


def test_copies_of_a_paper_are_never_candidates(tmp_path: Path) -> None:
    """Every paper has a copy of its own under another id, which nobody cites."""
    originals = papers(60)
    copies = [{**paper, "id": f"y:{i}", "references": [], "year": 1999} for i, paper in enumerate(originals)]
    corpus = imported(tmp_path, [*({**paper, "year": 2001} for paper in originals), *copies])
    assert len(corpus) == 120
    graph = citations(corpus)
    suite = make_suite(corpus, CorpusSuiteOptions(held_out="share:0.3"))
    for name in ("cite", "hard_cite", "mdcr"):
        for query, _, others in pools_of(suite, corpus, name):
            taken = {corpus.titles[row] for row in graph[query] | {query}}
            assert not taken & {corpus.titles[row] for row in others}


def test_pairs_that_training_knows_the_other_way_round_are_not_asked_for(tmp_path: Path) -> None:
    made = papers(60)
    for i in range(0, 60, 2):  # x:i and x:i+1 cite each other
        made[i]["references"].append(f"x:{i + 1}")
    corpus = imported(tmp_path, made)
    options = CorpusSuiteOptions(held_out="share:0.3")
    training, asked = training_graph(corpus, options), 0
    for query, relevant, _ in pools_of(make_suite(corpus, options), corpus, "cite"):
        assert not set(relevant) & set(training.citing.row(query).tolist())
        asked += 1
    assert asked


def test_fields_are_split_class_by_class(corpus: Corpus, suite: Suite) -> None:
    task = task_of(suite, "field")
    assert isinstance(task, ProbeTask) and task.metrics == {"f1": "f1_macro"}
    assert not set(task.train.tolist()) & set(task.test.tolist())
    train, test = Counter(task.train_labels.tolist()), Counter(task.test_labels.tolist())
    assert all(abs(train[name] - 0.7 * (train[name] + test[name])) <= 1 for name in train | test)
    assert min((train + test).values()) >= 30
    for part, answers in ((task.train, task.train_labels), (task.test, task.test_labels)):
        rows = corpus.rows([task.texts.ids[row] for row in part.tolist()])
        assert [corpus.fields[int(row)].partition("\n")[0] for row in rows] == answers.tolist()


@pytest.mark.parametrize("name", ["year", "citations"])
def test_numbers_are_the_papers_own(corpus: Corpus, suite: Suite, name: str) -> None:
    task = task_of(suite, name)
    assert task.kind == "numbers" and len(task.train) == 420 and len(task.test) == 280
    rows = corpus.rows([task.texts.ids[row] for row in task.test.tolist()])
    cited = Counter(corpus.cited.tolist())
    expected = corpus.years[rows] if name == "year" else np.log1p([cited[row] for row in rows.tolist()])
    assert np.allclose(task.test_labels, expected)


def test_citations_are_counted_as_the_source_counts_them(tmp_path: Path) -> None:
    corpus = imported(tmp_path, [{**paper, "citation_count": i} for i, paper in enumerate(papers(80))])
    if (corpus.citation_counts < 0).all():
        pytest.fail("the reader of plain files gives no counts")
    task = task_of(make_suite(corpus), "citations")
    numbers = [int(task.texts.ids[row][2:]) for row in task.test.tolist()]
    assert np.allclose(task.test_labels, np.log1p(numbers))


def test_titles_ask_for_abstracts_that_do_not_hold_them(corpus: Corpus, suite: Suite) -> None:
    task = task_of(suite, "title")
    assert isinstance(task, SearchTask) and len(task.queries) == 80
    assert all(task.texts.titles[row] == "" and task.texts.abstracts[row] for row in task.candidates.tolist())
    for query, answer in zip(task.queries.tolist(), task.judgments.candidates.tolist(), strict=True):
        paper = task.texts.ids[query].removesuffix("#title")
        assert task.texts.ids[answer] == f"{paper}#abstract"
        assert task.texts.titles[query] == corpus.titles[corpus.row(paper)] and task.texts.abstracts[query] == ""
        assert fold(task.texts.titles[query]) not in fold(task.texts.abstracts[answer])


def test_a_title_that_its_abstract_tells_does_not_ask(tmp_path: Path) -> None:
    made = papers(20)
    for paper in made[:8]:
        paper["abstract"] = f"{paper['title'].upper()}! is this paper, of which more."
    suite = make_suite(imported(tmp_path, made), CorpusSuiteOptions(held_out="share:0.4"))
    counts = suite.data["tasks"]["title"]
    assert counts["titles left out: told in the abstract"] == 8 and counts["queries"] == 12
    assert counts["candidates"] == 20


def test_summaries_ask_for_their_papers(tmp_path: Path) -> None:
    made = papers(20)
    made[3]["tldr"], made[4]["tldr"] = ["Shows three.", "Three, shown."], "Shows four."
    made[5]["tldr"] = "Here thing 5 is looked at."  # word for word
    made[6]["note"] = 'says "tldr" only'
    task = task_of(make_suite(imported(tmp_path, made), CorpusSuiteOptions(held_out="share:0.4")), "summary")
    asked = {task.texts.ids[row]: task.texts.titles[row] for row in task.queries.tolist()}
    assert asked == {"x:3#summary": "Shows three.", "x:4#summary": "Shows four."}
    assert [task.texts.ids[row] for row in task.judgments.candidates] == [
        task.texts.ids[row].removesuffix("#summary") for row in task.queries
    ]
    assert len(task.candidates) == 20


def test_the_suite_names_its_data_and_its_main_metrics(corpus: Corpus, suite: Suite) -> None:
    assert suite.name == "corpus" and not suite.not_evaluated
    assert suite.headline == (
        "cite.map",
        "cocite.map",
        "hard_cite.map",
        "couple.map",
        "mdcr.map",
        "field.f1",
        "year.kendalltau",
        "citations.kendalltau",
        "title.ndcg_cut_10",
    )
    assert suite.averages["average"].parts == suite.headline
    assert suite.data["corpus"] == corpus.hash and suite.data["options"]["held_out"] == "share:0.2"
    held = held_out_rows(corpus, OPTIONS)[corpus.citing]
    assert suite.data["held-out citations"] == held.sum() and suite.data["citations to train on"] == (~held).sum()
    assert f"the {held.sum():,} citations" in suite.notes[0]
    shared = {id(task.texts) for task in suite.tasks if not isinstance(task, SearchTask)}
    assert len(shared) == 1 and json.dumps(suite.data)


def test_words_find_what_is_asked_for(suite: Suite) -> None:
    """BM25 is better than chance by far: about 0.2 for five relevant papers of thirty."""
    assert run_ranking(task_of(suite, "cite"), Bm25System(), "", "wrong").metrics["map"] > 35
    assert run_search(task_of(suite, "title"), Bm25System(), "", "wrong").metrics["recip_rank"] > 20


def test_a_corpus_without_citations_fields_and_years(tmp_path: Path) -> None:
    suite = make_suite(imported(tmp_path, [{**paper, "references": []} for paper in papers(30)]))
    assert [task.name for task in suite.tasks] == ["title"]
    assert suite.not_evaluated == {
        **dict.fromkeys(RANKINGS, "the corpus has no citations"),
        "field": "no field labels",
        "year": "no years",
        "citations": "no citation counts and no citations to count",
    }
    with pytest.raises(UserError, match="corpus cannot evaluate field: no field labels"):
        suite.choose(["field"])


def test_a_small_corpus_without_fields_is_one_group(tmp_path: Path) -> None:
    suite = make_suite(imported(tmp_path, papers(30)), CorpusSuiteOptions(held_out="share:0.3"))
    task = task_of(suite, "mdcr")
    assert set(task.pools.groups) == {"all"}
    assert suite.data["tasks"]["mdcr"]["pools with fewer other papers than asked"] == len(task.pools)
    assert suite.not_evaluated["citations"].startswith("30 papers have citation counts")


def test_what_is_held_out_must_be_there(tmp_path: Path) -> None:
    corpus = imported(tmp_path, papers(30))
    with pytest.raises(UserError, match="no paper has a year; hold out a share"):
        make_suite(corpus, CorpusSuiteOptions(held_out="year:2016"))
    with pytest.raises(UserError, match="leaves nothing on one side of 30 papers; choose a larger share"):
        make_suite(corpus, CorpusSuiteOptions(held_out="share:0.000001"))


def test_years_outside_leave_nothing(corpus: Corpus) -> None:
    for rule in ("year:1900", "year:2090"):
        with pytest.raises(UserError, match=f"--held-out {rule} leaves nothing.*go from 1990 to 2024"):
            held_out_rows(corpus, CorpusSuiteOptions(held_out=rule))


def test_held_out_papers_without_references_ask_nothing(tmp_path: Path) -> None:
    made = [{**paper, "year": 2000 + i // 20} for i, paper in enumerate(papers(40))]
    for paper in made[20:]:
        paper["references"] = []
    suite = make_suite(imported(tmp_path, made), CorpusSuiteOptions(held_out="year:2001"))
    reason = "no paper held out by year:2001 cites a paper of the corpus; hold out other papers"
    assert suite.not_evaluated["cite"] == suite.not_evaluated["mdcr"] == reason
    assert suite.not_evaluated["cocite"] == "no two papers are cited together by held-out papers alone"


def test_papers_without_title_are_never_asked_about(tmp_path: Path) -> None:
    made = papers(60)
    for paper in made[::3]:
        paper["title"] = ""
    corpus = imported(tmp_path, made)
    suite = make_suite(corpus, CorpusSuiteOptions(held_out="share:0.3"))
    titles = [title for task in suite.tasks if isinstance(task, RankingTask) for title in task.texts.titles]
    assert titles and all(titles)
    assert "20 papers of the corpus have no title and are left out" in suite.notes


def test_a_corpus_without_any_title_gives_nothing(tmp_path: Path) -> None:
    corpus = imported(tmp_path, [{**paper, "title": ""} for paper in papers(30)])
    with pytest.raises(EmptyResultError, match="gives no task .*import papers with titles"):
        make_suite(corpus, CorpusSuiteOptions(held_out="share:0.3"))


@pytest.mark.parametrize("rule", ["2016", "year:soon", "share:0", "share:1", "share:nan", "years:2016", "share:", ""])
def test_a_rule_is_a_year_or_a_share(rule: str) -> None:
    with pytest.raises(UserError, match="must be a year such as year:2016, or a share"):
        CorpusSuiteOptions(held_out=rule)


def test_options_are_checked() -> None:
    with pytest.raises(UserError, match="queries is 0; it must be 1 or more"):
        CorpusSuiteOptions(queries=0)
