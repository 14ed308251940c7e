"""Pools that are hard in several ways, field by field, as in MDCR (Medic and Snajder, 2022).

    5 relevant    papers that a held-out paper cites
    15 by words   the nearest by BM25 of title and abstract
    15 by graph   10 cited by papers that it cites, 5 cited together with it; more of one where the other lacks
    10 by fame    of the 50 most cited papers of its field
    15 at random  of its field, as far as there are any

Nothing of them is cited by the query or cites it. Fields take turns, so that small ones have as many queries as large
ones while they last. Unlike MDCR's, no pool holds papers that an encoder chose: it would work against that encoder.

Papers whose field, year or citations a probe learns and tells, by rows of the corpus.

    field       classes: the first field of each paper; 70 of 100 papers of every class to learn from, 30 to tell
    year        numbers: the year of publication; 60 of 100 to learn from
    citations   numbers: log(1 + citations), as the source counts them, else as the corpus does

Papers are the first of `SuiteData.order`, so that they are those of other tasks. Does not know vectors.

Search tasks: a title asks for its abstract, a summary for its paper, each among many.

    title      question "Attention is all you need"   candidates: abstracts, without any title
    summary    question: the paper's `tldr` or `summary` of the source   candidates: titles with abstracts

A question that stands word for word in what it asks for is left out: finding it would tell nothing. Of papers with the
same title or abstract one is kept. Does not rank.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import TextColumn
from citeweave.core.randomness import hash_texts
from citeweave.corpus.corpus import UNKNOWN_COUNT
from citeweave.corpus.plain_text import clean_text, fold
from citeweave.corpus.text import TextRecipe, paper_text
from citeweave.evaluation.suites.corpus_data import CannotAskError, Rows, SuiteData
from citeweave.evaluation.suites.corpus_pools import (
    HardCandidates,
    PoolDrawing,
    RowPools,
    cited_of,
    cocited_with,
    connected_of,
    second_hop_of,
)
from citeweave.evaluation.tasks import Pools, RankingRule, SearchTask, TaskTexts
from citeweave.vectors.bm25 import Bm25

NEGATIVES = 55
BY_WORDS, BY_GRAPH, BY_FAME = 15, 15, 10
BY_HOP = 10
"""Of those by graph: the first of `hard_cite`'s, so that an encoder reads them once."""

FAMOUS = 50
"""Most cited papers of a field that are drawn from."""

INDEXED = 50_000
"""BM25 looks at no more papers than this."""

DEPTH = 60
"""Nearest papers by words that are looked at: some are cited and so no negatives."""

FEWEST, MOST_FIELDS = 30, 20
"""A field has at least so many papers; only the largest count."""

ALL = "all"

_RECIPE = TextRecipe(separator=" ")


class FieldGroups(NamedTuple):
    """The fields that queries are asked by."""

    names: Sequence[str]

    codes: Rows
    """(papers,) place of the paper's field among the names, -1 = none of them."""


def make_mdcr(material: SuiteData) -> RowPools:
    groups = groups_of(material)
    queries = _take_turns(material.citing_queries, groups.codes)
    drawing = PoolDrawing(material, "mdcr", NEGATIVES)
    famous, sample = _most_cited(material, groups), material.sample
    peers = [sample[groups.codes[sample] == code] for code in range(len(groups.names))]
    finder = _WordFinder(material)
    block = min(material.options.queries, 256)
    for start in range(0, len(queries), block):
        asked = queries[start : start + block]
        by_words, cocited = finder.nearest(asked), cocited_with(material, asked, strongest=FAMOUS)
        for number, query in enumerate(asked.tolist()):
            code, rng = int(groups.codes[query]), material.stream("mdcr", "near", query)
            hop, together = second_hop_of(material, query), rng.permutation(cocited.row(number)[0].astype(np.int64))
            by_graph = np.concatenate([hop[:BY_HOP], together, hop[BY_HOP:]])
            near = [
                HardCandidates("word-near", by_words[number], BY_WORDS),
                HardCandidates("graph-near", by_graph, BY_GRAPH),
                HardCandidates("most cited", rng.permutation(famous[code]), BY_FAME),
            ]
            drawing.add(
                query,
                cited_of(material, query),
                connected_of(material, query),
                near,
                field_rows=peers[code],
                group=groups.names[code],
            )
            if drawing.is_full:
                return drawing.finish(grouped=True)
    return drawing.finish(grouped=True, why_none="no held-out paper cites a paper with a title")


class _WordFinder:
    """BM25 over the papers with a title, or over so many of them that it stays fast."""

    def __init__(self, material: SuiteData) -> None:
        self._material = material
        self._rows = material.order[:INDEXED]
        self._index = Bm25(self._texts(self._rows))

    def nearest(self, queries: Rows) -> Rows:
        """(queries, DEPTH) rows, best first."""
        return self._rows[self._index.top(self._texts(queries), DEPTH).rows]

    def _texts(self, rows: Rows) -> list[str]:
        corpus = self._material.corpus
        pairs = zip(corpus.titles.take(rows), corpus.abstracts.take(rows), strict=True)
        return [paper_text(title, abstract, _RECIPE) for title, abstract in pairs]


def groups_of(material: SuiteData) -> FieldGroups:
    """The largest fields; one group of all papers where no held-out paper has one of them."""
    names, codes = material.fields
    sizes = np.bincount(codes[material.readable & (codes >= 0)], minlength=len(names))
    largest = np.argsort(-sizes, kind="stable")[:MOST_FIELDS]
    kept = largest[sizes[largest] >= FEWEST]
    places = np.full(len(names) + 1, -1, np.int64)  # the last is that of papers without field
    places[kept] = np.arange(len(kept))
    if (places[codes[material.citing_queries]] < 0).all():
        return FieldGroups([ALL], np.zeros(len(codes), np.int64))
    return FieldGroups([names[code] for code in kept], places[codes])


def _take_turns(queries: Rows, groups: Rows) -> Rows:
    """The queries that have a field, the first of every field before the second of any.

    >>> _take_turns(np.array([4, 0, 3, 1]), np.array([7, 7, -1, 8, 7])).tolist()
    [4, 3, 0, 1]
    """
    queries = queries[groups[queries] >= 0]
    codes = groups[queries]
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], codes[order])
    turns = np.empty(len(queries), np.int64)
    turns[order] = np.arange(len(queries)) - starts
    return queries[np.argsort(turns, kind="stable")]


def _most_cited(material: SuiteData, groups: FieldGroups) -> list[Rows]:
    """Of every field, by citations that training may see."""
    corpus = material.corpus
    counts = np.bincount(corpus.cited[~material.held[corpus.citing]], minlength=len(corpus))  # (papers,)
    ranked = np.argsort(-counts, kind="stable")
    ranked = ranked[material.readable[ranked] & (counts[ranked] > 0)]
    return [ranked[groups.codes[ranked] == code][:FAMOUS] for code in range(len(groups.names))]


# Papers whose field, year or citations a probe learns and tells, by rows of the corpus.

MIN_PROBE_PAPERS, MOST_CLASSES = 30, 20
"""A class has at least so many papers; only the largest count."""

CLASS_SHARE, NUMBER_SHARE = 0.7, 0.6
"""Papers to learn from."""

FEWEST_NUMBERS = 50


@dataclass(frozen=True)
class RowProbe:
    """Papers by rows of the corpus, with their answers."""

    kind: str
    train: Rows
    train_answers: NDArray[Any]
    test: Rows
    test_answers: NDArray[Any]
    counts: Mapping[str, int]

    def papers(self) -> Rows:
        """Every paper that occurs."""
        return np.union1d(self.train, self.test)


def make_field(material: SuiteData) -> RowProbe:
    names, codes = material.fields
    rows = material.order[codes[material.order] >= 0][: material.options.field_papers]
    if not len(rows):
        raise CannotAskError("no field labels")
    sizes = np.bincount(codes[rows], minlength=len(names))
    largest = np.argsort(-sizes, kind="stable")[:MOST_CLASSES]
    kept = largest[sizes[largest] >= MIN_PROBE_PAPERS]
    if len(kept) < 2:
        raise CannotAskError(
            f"{len(kept)} fields have {MIN_PROBE_PAPERS} papers or more with a title; a probe needs two"
        )
    rows = rows[np.isin(codes[rows], kept)]
    place = _place_in_class(codes[rows])
    learned = place < CLASS_SHARE * sizes[codes[rows]]
    answers = np.array(names)[codes[rows]]
    counts = {"classes": len(kept), "training papers": int(learned.sum()), "test papers": int((~learned).sum())}
    return RowProbe("classes", rows[learned], answers[learned], rows[~learned], answers[~learned], counts)


def make_year(material: SuiteData) -> RowProbe:
    years = material.corpus.years
    return _numbers(material, years > 0, years.astype(np.float64), "years")


def make_citations(material: SuiteData) -> RowProbe:
    """Counts of the source where most papers with a title have one: a mixture would not be one scale."""
    corpus = material.corpus
    counts: NDArray[np.integer[Any]] = corpus.citation_counts
    is_known = counts != UNKNOWN_COUNT
    if 2 * int((is_known & material.readable).sum()) < len(material.order) or not len(material.order):
        if not len(corpus.citing):
            raise CannotAskError("no citation counts and no citations to count")
        counts, is_known = np.bincount(corpus.cited, minlength=len(corpus)), np.ones(len(corpus), bool)
    return _numbers(material, is_known, np.log1p(np.maximum(counts, 0).astype(np.float64)), "citation counts")


def _numbers(material: SuiteData, is_known: NDArray[np.bool_], values: NDArray[np.float64], what: str) -> RowProbe:
    rows = material.order[is_known[material.order]][: material.options.number_papers]
    if not len(rows):
        raise CannotAskError(f"no {what}")
    if len(rows) < FEWEST_NUMBERS or len(np.unique(values[rows])) < 2:
        raise CannotAskError(
            f"{len(rows)} papers have {what}, {len(np.unique(values[rows]))} of them different; "
            f"a probe needs {FEWEST_NUMBERS} and two"
        )
    cut = int(NUMBER_SHARE * len(rows))
    train, test = rows[:cut], rows[cut:]
    counts = {"training papers": len(train), "test papers": len(test)}
    return RowProbe("numbers", train, values[train], test, values[test], counts)


def _place_in_class(codes: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """How many of the same class came before.

    >>> _place_in_class(np.array([5, 2, 5, 5])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(codes, kind="stable")
    places = np.empty(len(codes), np.int64)
    places[order] = np.arange(len(codes)) - np.searchsorted(codes[order], codes[order])
    return places


# Search tasks: a title asks for its abstract, a summary for its paper, each among many.

RULE = RankingRule(metrics=("ndcg_cut_10", "recip_rank", "recall_100"), distance="cosine")
FEWEST_WORDS = 3
"""Of a title that asks; "Editorial" could be anybody's."""

SUMMARY_KEYS = ("tldr", "summary")


@dataclass(frozen=True)
class Search:
    task: SearchTask
    counts: dict[str, int]


def make_title(material: SuiteData) -> Search:
    """Candidates are rows of their own, `ID#abstract`: the vector of a whole paper would know the title."""
    corpus = material.corpus
    has_both = material.readable & (corpus.abstracts.lengths() > 0)
    rows = _distinct(material, material.order[has_both[material.order]])[: material.options.search_papers]
    abstracts = corpus.abstracts.take(rows)
    first = np.sort(np.unique(hash_texts([fold(text) for text in abstracts]), return_index=True)[1])
    rows, abstracts = rows[first], [abstracts[at] for at in first.tolist()]
    titles = corpus.titles.take(rows)
    usable = [len(fold(title).split()) >= FEWEST_WORDS for title in titles]
    told = [_stands_in(title, text) for title, text in zip(titles, abstracts, strict=True)]
    answers = np.flatnonzero(np.array(usable, bool) & ~np.array(told, bool))
    answers = material.stream("title").permutation(answers)[: material.options.queries]
    if not len(answers) or len(rows) < 2:
        raise CannotAskError("no papers have both a title that can ask and an abstract that does not hold it")
    ids = corpus.ids.take(rows)
    candidates = TaskTexts([f"{name}#abstract" for name in ids], [""] * len(ids), abstracts)
    questions = [(f"{ids[at]}#title", titles[at]) for at in answers.tolist()]
    counts = {"queries": len(answers), "candidates": len(rows), "titles left out: told in the abstract": sum(told)}
    return Search(_task("title", candidates, questions, answers), counts)


def make_summary(material: SuiteData) -> Search | None:
    """None where the source has no summaries."""
    corpus = material.corpus
    mentioning = _rows_mentioning(corpus.extras, SUMMARY_KEYS)
    mentioning = mentioning[material.readable[mentioning]]
    if not len(mentioning):
        return None
    asked, summaries = _summaries(material, material.stream("summary").permutation(mentioning))
    if not len(asked):
        return None
    rows = _distinct(material, np.concatenate([asked, material.order]))
    rows = rows[: max(material.options.search_papers, len(asked))]
    ids, titles, abstracts = (column.take(rows) for column in (corpus.ids, corpus.titles, corpus.abstracts))
    questions = [(f"{ids[at]}#summary", text) for at, text in enumerate(summaries)]
    counts = {"queries": len(asked), "candidates": len(rows)}
    task = _task("summary", TaskTexts(ids, titles, abstracts), questions, np.arange(len(asked)))
    return Search(task, counts)


def _summaries(material: SuiteData, rows: Rows) -> tuple[Rows, list[str]]:
    """The first papers that have a summary of their own words, of equal titles one."""
    corpus, asked, summaries = material.corpus, [], []
    for row in _distinct(material, rows).tolist():
        text = _summary(json.loads(corpus.extras[row] or "{}"))
        if text and not _stands_in(text, f"{corpus.titles[row]} {corpus.abstracts[row]}"):
            asked.append(row)
            summaries.append(text)
        if len(asked) == min(material.options.queries, material.options.search_papers):
            break
    return np.array(asked, np.int64), summaries


def _summary(extra: dict[str, Any]) -> str:
    """The first text under one of the keys: a text, a list of texts, or an object with `text`.

    >>> _summary({"tldr": ["Short.", "Shorter."]}), _summary({"summary": {"text": "S"}}), _summary({"tldr": None})
    ('Short.', 'S', '')
    """
    for key in SUMMARY_KEYS:
        value = extra.get(key)
        for part in value if isinstance(value, list) else [value]:
            text = clean_text(part.get("text") if isinstance(part, dict) else part)
            if text:
                return text
    return ""


def _rows_mentioning(column: TextColumn, keys: Sequence[str]) -> Rows:
    """Rows whose JSON may hold one of these keys: bytes are looked at, nothing is parsed."""
    pattern = re.compile(b"|".join(f'"{key}"'.encode() for key in keys))
    places = np.array([found.start() for found in pattern.finditer(column.data.data)], np.int64)
    return np.unique(np.searchsorted(column.offsets, places, side="right") - 1).astype(np.int64)


def _distinct(material: SuiteData, rows: Rows) -> Rows:
    return material.first_distinct(rows, len(rows), np.zeros(0, np.uint64))


def _stands_in(question: str, text: str) -> bool:
    return f" {fold(question)} " in f" {fold(text)} "


def _task(name: str, candidates: TaskTexts, questions: Sequence[tuple[str, str]], answers: Rows) -> SearchTask:
    """Questions are rows after the candidates; `answers` are their candidates."""
    size, names = len(candidates), [question for question, _ in questions]
    texts = TaskTexts(
        [*candidates.ids, *names],
        [*candidates.titles, *(text for _, text in questions)],
        [*candidates.abstracts, *([""] * len(questions))],
    )
    queries = np.arange(size, size + len(questions))
    offsets, grades = np.arange(len(questions) + 1), np.ones(len(questions), np.int64)
    judged = Pools(queries, offsets, answers.astype(np.int64), grades, names)
    return SearchTask(name, texts, queries, np.arange(size), judged, RULE)
