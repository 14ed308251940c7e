"""Derived corpora: sets of contexts and relatives against brute force, cloze pairs by their texts, bad input."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave import Corpus, MiningInputs, build_graph, exclude_papers, synthesize
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.options import parse_table
from citeweave.corpus import derive, derived_texts
from citeweave.corpus.derive import derive_corpus, estimate_texts
from citeweave.corpus.options import DerivedTexts, SyntheticOptions
from citeweave.graph.signals import Signal, related
from citeweave.mining.mine import mine_samples
from citeweave.pipeline.recipe import load_recipe, read_recipe
from citeweave.pipeline.suites import without_references
from citeweave.training.load_data import find_related_papers

from ..conftest import corpus_of
from .conftest import refused

WORDS = [f"{a}{b}" for a, b in itertools.product("bcdfgklmnprst", ("at", "en", "il", "om"))]


def papers(number: int) -> list[dict[str, Any]]:
    return [{"id": f"p:{row}", "title": f"A study of things number {row}", "year": 2000} for row in range(number)]


def context(citing: object, text: str, *cited: object) -> dict[str, Any]:
    return {"citing": f"p:{citing}", "text": text, "cited": [f"p:{each}" for each in cited]}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Many contexts over few papers: p:0 to p:11 are in the corpus, p:12 to p:15 are not."""
    draw, sentences = np.random.default_rng(5), []
    for number in range(250):
        cited = draw.choice([*range(6), 12, 13, 14], draw.integers(1, 4), replace=False).tolist()
        words = " ".join(draw.choice(WORDS, draw.integers(3, 12)))
        text = f"{words} [{number}]." if draw.random() < 0.9 else f"{words}."
        sentences.append(context(draw.integers(0, 12), text, *cited))
    sentences += [context(citing, f"the same words in two papers [{citing + 4}]", 1, 2) for citing in (3, 4)]
    return corpus_of(tmp_path_factory.mktemp("drawn"), papers(12), contexts=sentences)


@pytest.fixture(scope="module")
def literature(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("literature") / "corpus", SyntheticOptions(papers=300))


def cited_sets(corpus: Corpus) -> list[frozenset[int]]:
    table = corpus.contexts
    outside = [table.outside[a:b].tolist() for a, b in itertools.pairwise(table.outside_offsets)]
    return [frozenset(table.cited_rows(n).tolist()) | frozenset(map(int, outside[n])) for n in range(len(table))]


def brute_force(corpus: Corpus) -> dict[int, frozenset[int]]:
    """Contexts with a paraphrase, and what they cite; one filter after the other, as written in the docstrings."""
    table, sets = corpus.contexts, cited_sets(corpus)

    def several(numbers: list[int]) -> list[int]:
        return [n for n in numbers if sum(sets[n] == sets[m] for m in numbers) > 1]

    left = several([n for n in range(len(table)) if len(sets[n]) >= 2])
    left = [n for n in left if 5 <= len(table.texts[n].split()) <= 60 and "[" in table.texts[n]]
    for key in (lambda n: "".join(c for c in table.texts[n] if not c.isdigit()), lambda n: (table.citing[n], sets[n])):
        seen: dict[Any, int] = {}
        for n in left:
            seen.setdefault(key(n), n)
        left = list(seen.values())
    return {n: sets[n] for n in several(left)}


def relations(texts: Corpus, folder: Path, *signals: str) -> set[tuple[str, str]]:
    """Pairs of ids of texts that some signal relates."""
    graph, ids = build_graph(texts, folder), list(texts.ids)
    is_text = texts.abstracts.lengths() > 0
    rows = np.flatnonzero(is_text)
    found = set()
    for name in signals:
        lists = related(graph, Signal(name), rows)
        for place, row in enumerate(rows.tolist()):
            found |= {(ids[row], ids[other]) for other in lists.row(place)[0].tolist() if is_text[other]}
    return found


def test_sets_and_relatives_are_those_of_brute_force(drawn, tmp_path):
    wanted = brute_force(drawn)
    texts = derive_corpus(drawn, tmp_path / "texts", DerivedTexts("contexts"))
    ids = [id for id in texts.ids if id.startswith("context:")]
    assert ids == [f"context:{number}" for number in sorted(wanted)]
    assert [texts.abstracts[texts.row(id)] for id in ids] == [drawn.contexts.texts[number] for number in sorted(wanted)]
    assert not any(texts.titles) and not any(texts.abstracts[len(ids) :])
    pairs = {(f"context:{a}", f"context:{b}"): (wanted[a], wanted[b]) for a, b in itertools.permutations(wanted, 2)}
    paraphrases = {pair for pair, (a, b) in pairs.items() if a == b}
    relatives = {pair for pair, (a, b) in pairs.items() if a & b}
    assert relations(texts, tmp_path / "graph", "coupled") == paraphrases
    assert relations(texts, tmp_path / "graph", "connected", "cocited") == relatives
    facts = texts.manifest.facts["derived"]
    assert facts["contexts"] == len(ids) and facts["sets"] == len(set(wanted.values()))
    assert facts["pairs"] * 2 == len(paraphrases)
    assert len(ids) + sum(facts["rejected"].values()) == len(drawn.contexts)
    assert 50 < len(ids) <= estimate_texts(drawn, DerivedTexts("contexts")).anchors < len(drawn.contexts)
    # widely cited papers relate contexts only within a set
    narrow = derive_corpus(drawn, tmp_path / "narrow", DerivedTexts("contexts", shared=0))
    assert relations(narrow, tmp_path / "narrow graph", "connected", "cocited") == paraphrases
    assert narrow.manifest.facts["derived"]["shared papers"] == 0
    bare = derive_corpus(drawn, tmp_path / "bare", DerivedTexts("contexts", marks=False))
    left = [text for text in bare.abstracts if text]
    assert left and not any("[" in text for text in left) and min(len(text.split()) for text in left) >= 5


def test_large_sets_are_drawn_by_the_seed(tmp_path, monkeypatch):
    sentences = [context(row, f"{WORDS[row]} and {WORDS[row + 1]} were seen by [1], [2]", 0, 1) for row in range(2, 42)]
    corpus = corpus_of(tmp_path, papers(42), contexts=sentences)

    def chosen(name, **options):
        made = derive_corpus(corpus, tmp_path / name, DerivedTexts("contexts", max_contexts=7, **options))
        return [id for id in made.ids if id.startswith("context:")], made

    first, made = chosen("a")
    assert len(first) == 7 and len(made.citing) == 14  # to the hub and back
    assert chosen("b", seed=1)[0] != first
    monkeypatch.setattr(derived_texts, "BLOCK", 5)
    assert chosen("c")[1].hash == made.hash


def writers(texts: Corpus) -> set[str]:
    """The papers that wrote the contexts."""
    return {json.loads(extra)["citing"] for extra in texts.extras if extra}


def test_what_held_out_and_excluded_papers_wrote_is_left_out(literature, tmp_path):
    options = DerivedTexts("contexts")
    held = np.arange(len(literature)) % 4 == 0
    texts = derive_corpus(without_references(literature, held, tmp_path / "held", why="test"), tmp_path / "t1", options)
    assert writers(texts) and not writers(texts) & set(literature.ids.take(np.flatnonzero(held)))
    # excluded papers that cite papers that stay leave their sentences in the corpus: `before` tells whose they were
    excluded = exclude_papers(literature, np.flatnonzero(held), tmp_path / "excluded", why="test")
    assert (excluded.contexts.citing < 0).any()
    texts = derive_corpus(excluded, tmp_path / "t2", options, before=literature)
    numbers = [int(id.removeprefix("context:")) for id in texts.ids if id.startswith("context:")]
    assert numbers and (excluded.contexts.citing[numbers] >= 0).all()
    assert texts.manifest.facts["derived"]["rejected"]["citing paper left the corpus"] > 0


def mined(name, literature, folder):
    """The texts that a recipe derives, their graph, and samples of them."""
    read = read_recipe(load_recipe(name))
    assert read.texts is not None
    texts = derive_corpus(literature, folder / "texts", read.texts)
    graph = build_graph(texts, folder / "graph")
    return texts, graph, mine_samples(texts, read.rules, folder / "samples", MiningInputs(graph=graph))


@pytest.mark.parametrize("name", ["aspire_context", "ict"])
def test_samples_hold_partners_and_no_relatives_as_negatives(name, literature, tmp_path):
    texts, _, samples = mined(name, literature, tmp_path)
    ids, known = list(texts.ids), relations(texts, tmp_path / "graph", "connected", "cocited")
    partners = relations(texts, tmp_path / "graph", "coupled") if name == "aspire_context" else set()
    for number, anchor in enumerate(samples.anchors.tolist()):
        sides = (samples.positives, samples.negatives)
        positives, negatives = ([ids[row] for row in side.of(number)] for side in sides)
        assert positives and len(negatives) == 1 and texts.abstracts[texts.row(negatives[0])]
        assert (ids[anchor], negatives[0]) not in known
        for positive in positives:
            assert (ids[anchor], positive) in (partners or {(f"sentence:{ids[anchor].split(':')[1]}", positive)})
            assert name == "aspire_context" or positive == ids[anchor].replace("sentence:", "rest:")
    has_text = int((texts.abstracts.lengths() > 0).sum())
    assert len(np.unique(samples.anchors)) == (has_text if name == "aspire_context" else has_text // 2)


ABSTRACT = "We walk on large graphs today. It is fast on all of them. It also needs no memory at all. It works."


def with_abstracts(folder: Path, *texts: str) -> Corpus:
    rows = [{**paper, "abstract": text} for paper, text in zip(papers(len(texts)), texts, strict=True)]
    return corpus_of(folder, rows)


def test_cloze_takes_sentences_from_their_abstracts(tmp_path, monkeypatch):
    other = "Proteins fold in many shapes. We measure them in cells of mice. They turn out to be stable there."
    again = "It is fast on all of them. Others may differ from that view. Nobody has ever seen such things."
    corpus = with_abstracts(tmp_path, ABSTRACT, other, again, "One sentence only.", other)
    made = derive_corpus(corpus, tmp_path / "all", DerivedTexts("cloze", per_paper=3, removed=1.0))
    ids = list(made.ids)
    # the fourth sentence of the first abstract is too short, the first of the third repeats one, the fifth is the second
    places = ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2", "2.1", "2.2"]
    assert [id.removeprefix("sentence:") for id in ids if id.startswith("sentence:")] == places
    for place in places:
        row = int(place.partition(".")[0])
        sentence, rest = (made.abstracts[made.row(f"{kind}:{place}")] for kind in ("sentence", "rest"))
        abstract = corpus.abstracts[row]
        assert sentence in abstract and sentence not in rest
        assert sorted(f"{sentence} {rest}".split()) == sorted(abstract.split())
        assert json.loads(made.extras[made.row(f"rest:{place}")]) == {"paper": f"p:{row}"}
    names = [f"{kind}:{place}" for kind in ("sentence", "rest") for place in places]
    own = {(a, b) for a, b in itertools.permutations(names, 2) if a.split(":")[1][0] == b.split(":")[1][0]}
    assert relations(made, tmp_path / "graph", "connected", "cocited") == own
    assert relations(made, tmp_path / "graph", "cited") == {(f"sentence:{place}", f"rest:{place}") for place in places}
    reasons = ["abstract: repeats another one", "abstract: under 3 sentences", "sentence: repeats another one"]
    reasons += ["sentence: of an abstract under 3 sentences", "sentence: under 5 words"]
    assert made.manifest.facts["derived"]["rejected"] == dict.fromkeys(reasons, 1)
    monkeypatch.setattr(derive, "BLOCK", 2)
    in_blocks = derive_corpus(corpus, tmp_path / "blocks", DerivedTexts("cloze", per_paper=3, removed=1.0))
    assert in_blocks.hash == made.hash
    complete = derive_corpus(corpus, tmp_path / "complete", DerivedTexts("cloze", removed=0.0))
    rests = {text for id, text in zip(complete.ids, complete.abstracts, strict=True) if id.startswith("rest:0.")}
    assert rests == {ABSTRACT}


def test_cloze_draws_by_the_seed(literature, tmp_path):
    def sentences(name, seed):
        made = derive_corpus(literature, tmp_path / name, DerivedTexts("cloze", per_paper=1, seed=seed))
        return [id for id in made.ids if id.startswith("sentence:")]

    assert sentences("a", 0) == sentences("b", 0) != sentences("c", 1)
    papers_ = [id.partition(".")[0] for id in sentences("a", 0)]
    assert len(set(papers_)) == len(papers_) > 200


def test_corpora_without_usable_texts_are_refused(literature, tmp_path):
    one = with_abstracts(tmp_path / "one", "One sentence only.", "And another one.")
    seen = context(0, "graphs are seen in many places [1, 2]", 1, 2)
    bare = corpus_of(tmp_path / "bare", papers(4), contexts=[seen])
    for corpus, options, message in (
        (one, DerivedTexts("contexts"), "has no citing sentences; import a source that has them: S2ORC"),
        (one, DerivedTexts("cloze"), "2 abstract: under 3 sentences.*lower texts.min_sentences"),
        (one, DerivedTexts("titles", min_words=9), "2 title: under 9 words.*lower texts.min_words"),
        (bare, DerivedTexts("contexts"), "no two contexts.*1 no other context cites the same papers"),
        (bare, DerivedTexts("cloze"), "has no abstracts; import"),
        (bare, DerivedTexts("titles"), "has no paper with a title and an abstract; import a source with both"),
    ):
        refused(message, derive_corpus, corpus, tmp_path / "x", options, error=EmptyResultError)
    refused("'papers', which derives nothing", derive_corpus, bare, tmp_path / "x", DerivedTexts())
    derive_corpus(literature, tmp_path / "made", DerivedTexts("cloze"))
    refused("made from other inputs or options", derive_corpus, literature, tmp_path / "made", DerivedTexts("contexts"))


WRONG_TABLES = [
    ({"of": "context"}, "texts.of is 'context'.*Did you mean 'contexts'"),
    ({"of": "contexts", "per_paper": 1}, "texts.per_paper is for texts of cloze"),
    ({"per_paper": 1}, "texts.per_paper is for texts of cloze, and texts.of is 'papers'"),
    ({"of": "cloze", "per_paper": 0}, "texts.per_paper is 0; it must be at least 1"),
    ({"of": "cloze", "removed": 2}, "texts.removed is 2; it must be from 0 to 1"),
    ({"of": "contexts", "shared": 2000}, "texts.shared is 2000; it must be from 0 to 1,000"),
    ({"of": "contexts", "max_words": 2}, "max_words are 5 and 2"),
    ({"of": "titles", "removed": 0.5}, "texts.removed is for texts of cloze"),
]


@pytest.mark.parametrize(("table", "message"), WRONG_TABLES)
def test_wrong_tables_are_refused(table, message):
    refused(message, parse_table, DerivedTexts, table, "texts")


def test_a_ranking_of_papers_cannot_be_watched():
    with pytest.raises(UserError, match="training.watch is 'cite.map', a ranking of papers.*watch accuracy"):
        read_recipe(load_recipe("ict", ["training.watch=cite.map"]))


def test_titles_find_their_abstracts(tmp_path, monkeypatch):
    texts = [
        ("Walks on graph 7 are fast", "We walk on graphs."),
        ("Proteins fold in many shapes", "They fold."),
        ("walks on graph 12 are FAST", "Others walk on them too."),  # the first one with another number
        ("Too short", "A short title."),
        ("A title without any abstract", ""),
        ("", "An abstract without any title."),
    ]
    rows: list[dict[str, Any]] = [{"id": f"p:{n}", "title": a, "abstract": b} for n, (a, b) in enumerate(texts)]
    rows[1]["references"], rows[4]["references"] = ["p:0", "p:3"], ["p:1"]
    corpus = corpus_of(tmp_path, rows)
    made = derive_corpus(corpus, tmp_path / "texts", DerivedTexts("titles"))
    ids, split = list(made.ids), [corpus.row("p:0"), corpus.row("p:1")]
    assert {id for id in ids if id.startswith("title:")} == {f"title:{row}" for row in split}
    for row in split:
        title, abstract = (made.row(f"{kind}:{row}") for kind in ("title", "abstract"))
        assert (made.abstracts[title], made.abstracts[abstract]) == (corpus.titles[row], corpus.abstracts[row])
        assert not made.titles[title] and json.loads(made.extras[title]) == {"paper": corpus.ids[row]}
    for row, id in enumerate(corpus.ids):
        assert (made.titles[made.row(id)], made.abstracts[made.row(id)]) == (corpus.titles[row], corpus.abstracts[row])
    kept = {(corpus.ids[a], corpus.ids[b]) for a, b in zip(corpus.citing, corpus.cited, strict=True)}
    assert kept == {("p:1", "p:0"), ("p:1", "p:3"), ("p:4", "p:1")}
    cited = {(ids[a], ids[b]) for a, b in zip(made.citing, made.cited, strict=True)}
    names = {row: (corpus.ids[row], f"title:{row}", f"abstract:{row}") for row in split}
    pairs = {(f"title:{row}", f"abstract:{row}") for row in split}
    assert cited == kept | pairs | {(f"paper:{row}", name) for row, three in names.items() for name in three}
    own = {pair for three in names.values() for pair in itertools.permutations(three, 2)}
    cocited = {("p:0", "p:3"), ("p:3", "p:0")}  # by p:1
    assert relations(made, tmp_path / "graph", "cocited") == own | cocited
    facts = made.manifest.facts["derived"]
    assert (facts["papers"], facts["titles"], facts["citations"]) == (6, 2, 3)
    rejected = {"title: under 5 words": 1, "title: repeats another one": 1, "paper: no title or no abstract": 2}
    assert facts["rejected"] == rejected
    expected = estimate_texts(corpus, DerivedTexts("titles"))
    assert len(corpus) + 2 * len(split) <= expected.anchors and expected.characters > 0
    monkeypatch.setattr(derive, "BLOCK", 2)
    assert derive_corpus(corpus, tmp_path / "blocks", DerivedTexts("titles")).hash == made.hash
    wider = derive_corpus(corpus, tmp_path / "wider", DerivedTexts("titles", min_words=1))
    assert f"title:{corpus.row('p:3')}" in list(wider.ids)


def test_titles_that_are_queries_of_a_suite_are_left_out_and_citing_sentences_stay(tmp_path):
    titles = {f"p:{n}": f"A title of {word} words here" for n, word in enumerate(("walks", "graphs", "trees"))}
    rows = [{"id": id, "title": title, "abstract": f"About {title}."} for id, title in titles.items()]
    sentences = [
        {"citing": "p:0", "text": "Both are known [1, 2].", "cited": ["p:1", "p:2"], "section": "Introduction"},
        {"citing": "p:9", "text": "Written by nobody of the corpus [1].", "cited": ["p:1"]},
    ]
    corpus = corpus_of(tmp_path, rows, contexts=sentences)
    made = derive_corpus(corpus, tmp_path / "texts", DerivedTexts("titles"), excluded_titles=["p:1", "p:7"])
    query = corpus.row("p:1")
    assert f"title:{query}" not in list(made.ids) and f"title:{corpus.row('p:2')}" in list(made.ids)
    assert made.manifest.facts["derived"]["rejected"] == {"title: a question of a suite": 1}
    assert list(made.contexts.texts) == ["Both are known [1, 2]."] and list(made.contexts.sections) == ["Introduction"]
    assert [made.ids[row] for row in made.contexts.cited_rows(0)] == ["p:1", "p:2"]
    everything = derive_corpus(corpus, tmp_path / "all", DerivedTexts("titles"))
    assert f"title:{query}" in list(everything.ids)


def test_a_paper_its_title_and_its_abstract_are_no_negatives_of_each_other(literature, tmp_path):
    texts, graph, samples = mined("cite_titles", literature, tmp_path)
    ids = list(texts.ids)
    assert not len(samples.negatives.rows)
    anchors = samples.anchors[samples.positives.owners()]
    pairs = {(ids[a], ids[b]) for a, b in zip(anchors, samples.positives.rows, strict=True)}
    has_abstract = {id for id, text in zip(ids, texts.abstracts, strict=True) if text}
    assert {pair for pair in pairs if set(pair) <= has_abstract} == relations(texts, tmp_path / "graph", "connected")
    split = [row for row in range(len(literature)) if f"title:{row}" in ids]
    assert len(split) == texts.manifest.facts["derived"]["titles"] > 200
    relatives = find_related_papers(texts, graph, np.arange(len(texts)))
    for row in split:
        three = [texts.row(id) for id in (literature.ids[row], f"title:{row}", f"abstract:{row}")]
        for one, other in itertools.permutations(three, 2):
            assert other in relatives.take(np.array([one])).papers
