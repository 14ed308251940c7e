"""Tasks of a corpus suite beyond citations: MDCR-like pools, probes for field, year, citations; searches.

`mdcr`: pools that are hard in several ways, field by field, as in MDCR (Medic and Snajder, 2022):

    5 relevant    papers that a held-out paper cites
    15 by words   the nearest by BM25 of title and abstract
    15 by graph   10 cited by papers that it cites, 5 cited together with it; more of one where the other lacks
    10 by fame    of the 50 most cited papers of its field
    15 at random  of its field, as far as there are any

None of them is cited by the query or cites it. Fields take turns, so that small ones have as many queries as large ones
while they last. Unlike MDCR's, no pool holds papers that an encoder chose: that would work against the encoder.

Probes, whose papers are the first of `SuiteData.order`, so that tasks share papers:

    field       classes: the first field of each paper; 70 % of the papers of every class for training, 30 % for test
    year        numbers: the year of publication; 60 % for training
    citations   numbers: log(1 + citations), as the source counts them, else as the corpus does

Searches, each among many papers:

    title      question "Attention is all you need"   candidates: abstracts, without any title
    summary    question: the paper's `tldr` or `summary` of the source   candidates: titles with abstracts

A question that its paper contains word for word is left out: finding it would show nothing. Of papers with the same title or
abstract only one stays. Does not rank and does not read vectors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import TextColumn
from citeweave.core.hash_keys import hash_texts
from citeweave.corpus.corpus import UNKNOWN_COUNT
from citeweave.corpus.plain_text import clean_text, fold
from citeweave.corpus.text import TextRecipe, paper_text
from citeweave.evaluation.suites.corpus_pools import (
    HardCandidates,
    PaperFields,
    PoolBuilder,
    RowPools,
    Rows,
    SuiteData,
    TaskUnavailableError,
    find_cited,
    find_cocited,
    find_connected,
    find_second_hop,
)
from citeweave.evaluation.tasks import Pools, RankingRule, SearchTask, TaskTexts
from citeweave.vectors.bm25 import Bm25

NEGATIVES = 55
BY_WORDS, BY_GRAPH, BY_FAME = 15, 15, 10
BY_HOP = 10
"""Of those by graph: the first of `hard_cite`'s, so that an encoder reads them once."""

FAMOUS = 50
"""How many of a field's most cited papers are drawn from."""

MAX_INDEXED = 50_000
"""At most so many papers are in the BM25 index."""

DEPTH = 60
"""How many nearest papers by words are looked at: some are cited, so they are no negatives."""

MIN_FIELD_PAPERS, MAX_FIELDS = 30, 20
"""A field of `mdcr` or class of `field` has at least so many papers; only the largest count."""

CLASS_SHARE, NUMBER_SHARE = 0.7, 0.6
"""Share of a probe's papers that are for training."""

MIN_NUMBER_PAPERS = 50
MIN_TITLE_WORDS = 3
"""Of a title that is a question; "Editorial" could be anybody's."""

SUMMARY_KEYS = ("tldr", "summary")
SEARCH_RULE = RankingRule(metrics=("ndcg_cut_10", "recip_rank", "recall_100"), distance="cosine")

ALL = "all"

_RECIPE = TextRecipe(separator=" ")


# --- mdcr ------------------------------------------------------------------------------------------------


def make_mdcr(data: SuiteData) -> RowPools:
    """Draw the corpus suite's task `mdcr`: cited papers among papers near by words, graph or fame, and random ones."""
    groups = _group_by_field(data)
    queries = _take_turns(data.citing_queries, groups.codes)
    builder = PoolBuilder(data, "mdcr", NEGATIVES)
    famous, sample = _most_cited(data, groups), data.sample
    peers = [sample[groups.codes[sample] == code] for code in range(len(groups.names))]
    index = _WordIndex(data)
    block = min(data.options.queries, 256)
    for start in range(0, len(queries), block):
        block_queries = queries[start : start + block]
        by_words, cocited = index.nearest(block_queries), find_cocited(data, block_queries, strongest=FAMOUS)
        for number, query in enumerate(block_queries.tolist()):
            code, rng = int(groups.codes[query]), data.stream("mdcr", "near", query)
            hop, together = find_second_hop(data, query), rng.permutation(cocited.row(number)[0].astype(np.int64))
            by_graph = np.concatenate([hop[:BY_HOP], together, hop[BY_HOP:]])
            near = [
                HardCandidates("word-near", by_words[number], BY_WORDS),
                HardCandidates("graph-near", by_graph, BY_GRAPH),
                HardCandidates("most cited", rng.permutation(famous[code]), BY_FAME),
            ]
            builder.add(
                query,
                find_cited(data, query),
                find_connected(data, query),
                near,
                field_rows=peers[code],
                group=groups.names[code],
            )
            if builder.is_full:
                return builder.finish(grouped=True)
    return builder.finish(grouped=True, why_none="no held-out paper cites a paper with a title")


class _WordIndex:
    """A BM25 index of papers with a title, of so many that it stays fast."""

    def __init__(self, data: SuiteData) -> None:
        self._data = data
        self._rows = data.order[:MAX_INDEXED]
        self._index = Bm25(self._texts(self._rows))

    def nearest(self, queries: Rows) -> Rows:
        """Return the nearest papers by words, (queries, DEPTH) rows, best first."""
        return self._rows[self._index.top(self._texts(queries), DEPTH).rows]

    def _texts(self, rows: Rows) -> list[str]:
        corpus = self._data.corpus
        pairs = zip(corpus.titles.take(rows), corpus.abstracts.take(rows), strict=True)
        return [paper_text(title, abstract, _RECIPE) for title, abstract in pairs]


def _group_by_field(data: SuiteData) -> PaperFields:
    """Return the largest fields as groups; one group of all papers where no held-out paper has one of them."""
    names, codes = data.fields
    chosen, _ = _largest_fields(codes[data.has_title & (codes >= 0)], len(names))
    places = np.full(len(names) + 1, -1, np.int32)  # the last one is for papers without a field
    places[chosen] = np.arange(len(chosen))
    if (places[codes[data.citing_queries]] < 0).all():
        return PaperFields([ALL], np.zeros(len(codes), np.int32))
    return PaperFields([names[code] for code in chosen], places[codes])


def _largest_fields(codes: NDArray[np.int32], fields: int) -> tuple[Rows, Rows]:
    """Return the largest fields that have enough papers, and the number of papers of each of all fields."""
    sizes = np.bincount(codes, minlength=fields)
    largest = np.argsort(-sizes, kind="stable")[:MAX_FIELDS]
    return largest[sizes[largest] >= MIN_FIELD_PAPERS], sizes


def _take_turns(queries: Rows, groups: NDArray[np.integer[Any]]) -> Rows:
    """Return the queries that have a field, the first of every field before the second of any.

    >>> _take_turns(np.array([4, 0, 3, 1]), np.array([7, 7, -1, 8, 7])).tolist()
    [4, 3, 0, 1]
    """
    queries = queries[groups[queries] >= 0]
    return queries[np.argsort(_place_in_class(groups[queries]), kind="stable")]


def _most_cited(data: SuiteData, groups: PaperFields) -> list[Rows]:
    """Return the most cited papers of every field, counting only citations that training may see."""
    corpus = data.corpus
    counts = np.bincount(corpus.cited[~data.held_out[corpus.citing]], minlength=len(corpus))  # (papers,)
    ranked = np.argsort(-counts, kind="stable")
    ranked = ranked[data.has_title[ranked] & (counts[ranked] > 0)]
    return [ranked[groups.codes[ranked] == code][:FAMOUS] for code in range(len(groups.names))]


# --- probes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowProbe:
    """A probe task of the corpus suite: its training and test papers, by rows of the corpus, with their labels."""

    kind: str
    train: Rows
    train_labels: NDArray[Any]
    test: Rows
    test_labels: NDArray[Any]
    counts: Mapping[str, int]

    def papers(self) -> Rows:
        """Return every paper of the probe."""
        return np.union1d(self.train, self.test)


def make_field(data: SuiteData) -> RowProbe:
    """Draw the corpus suite's task `field`, a probe: the largest fields as classes."""
    names, codes = data.fields
    rows = data.order[codes[data.order] >= 0][: data.options.field_papers]
    if not len(rows):
        raise TaskUnavailableError("no field labels")
    classes, sizes = _largest_fields(codes[rows], len(names))
    if len(classes) < 2:
        raise TaskUnavailableError(
            f"{len(classes)} fields have {MIN_FIELD_PAPERS} papers or more with a title; a probe needs two"
        )
    rows = rows[np.isin(codes[rows], classes)]
    place = _place_in_class(codes[rows])
    is_training = place < CLASS_SHARE * sizes[codes[rows]]
    labels = np.array(names)[codes[rows]]
    train, test = rows[is_training], rows[~is_training]
    counts = {"classes": len(classes), "training papers": len(train), "test papers": len(test)}
    return RowProbe("classes", train, labels[is_training], test, labels[~is_training], counts)


def make_year(data: SuiteData) -> RowProbe:
    """Draw the papers of the probe `year`."""
    years = data.corpus.years
    return _draw_numbers(data, years > 0, years.astype(np.float64), "years")


def make_citations(data: SuiteData) -> RowProbe:
    """Draw the corpus suite's task `citations`, a probe; the source's counts if most papers have one, never a mix."""
    corpus = data.corpus
    counts: NDArray[np.integer[Any]] = corpus.citation_counts
    is_known = counts != UNKNOWN_COUNT
    if 2 * int((is_known & data.has_title).sum()) < len(data.order) or not len(data.order):
        if not len(corpus.citing):
            raise TaskUnavailableError("no citation counts and no citations to count")
        counts, is_known = np.bincount(corpus.cited, minlength=len(corpus)), np.ones(len(corpus), bool)
    return _draw_numbers(data, is_known, np.log1p(np.maximum(counts, 0).astype(np.float64)), "citation counts")


def _draw_numbers(data: SuiteData, is_known: NDArray[np.bool_], values: NDArray[np.float64], what: str) -> RowProbe:
    rows = data.order[is_known[data.order]][: data.options.number_papers]
    if not len(rows):
        raise TaskUnavailableError(f"no {what}")
    if len(rows) < MIN_NUMBER_PAPERS or len(np.unique(values[rows])) < 2:
        raise TaskUnavailableError(
            f"{len(rows)} papers have {what}, {len(np.unique(values[rows]))} of them different; "
            f"a probe needs {MIN_NUMBER_PAPERS} papers and two values"
        )
    cut = int(NUMBER_SHARE * len(rows))
    train, test = rows[:cut], rows[cut:]
    counts = {"training papers": len(train), "test papers": len(test)}
    return RowProbe("numbers", train, values[train], test, values[test], counts)


def _place_in_class(codes: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return for each paper how many of the same class came before it.

    >>> _place_in_class(np.array([5, 2, 5, 5])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(codes, kind="stable")
    places = np.empty(len(codes), np.int64)
    places[order] = np.arange(len(codes)) - np.searchsorted(codes[order], codes[order])
    return places


# --- searches --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CorpusSearch:
    """A search task over papers of the corpus, with the counts of what was drawn."""

    task: SearchTask
    counts: dict[str, int]


def make_title(data: SuiteData) -> CorpusSearch:
    """Draw the corpus suite's task `title`, a search; candidates are rows `ID#abstract`, since vectors know titles."""
    corpus = data.corpus
    has_both = data.has_title & (corpus.abstracts.lengths() > 0)
    rows = _drop_copies(data, data.order[has_both[data.order]])[: data.options.search_papers]
    abstracts = corpus.abstracts.take(rows)
    first = np.sort(np.unique(hash_texts([fold(text) for text in abstracts]), return_index=True)[1])
    rows, abstracts = rows[first], [abstracts[at] for at in first.tolist()]
    titles = corpus.titles.take(rows)
    usable = [len(fold(title).split()) >= MIN_TITLE_WORDS for title in titles]
    quoted = [_is_quoted(title, text) for title, text in zip(titles, abstracts, strict=True)]
    answers = np.flatnonzero(np.array(usable, bool) & ~np.array(quoted, bool))
    answers = data.stream("title").permutation(answers)[: data.options.queries]
    if not len(answers) or len(rows) < 2:
        raise TaskUnavailableError(
            "no papers have both a title that can be a question and an abstract that does not contain it"
        )
    ids = corpus.ids.take(rows)
    candidates = TaskTexts([f"{name}#abstract" for name in ids], [""] * len(ids), abstracts)
    questions = [(f"{ids[at]}#title", titles[at]) for at in answers.tolist()]
    counts = {"queries": len(answers), "candidates": len(rows), "titles left out: told in the abstract": sum(quoted)}
    return CorpusSearch(_make_search("title", candidates, questions, answers), counts)


def make_summary(data: SuiteData) -> CorpusSearch | None:
    """Draw the corpus suite's task `summary`, a search; None where the source has no summaries."""
    corpus = data.corpus
    mentioning = _rows_mentioning(corpus.extras, SUMMARY_KEYS)
    mentioning = mentioning[data.has_title[mentioning]]
    if not len(mentioning):
        return None
    answers, summaries = _choose_summaries(data, data.stream("summary").permutation(mentioning))
    if not len(answers):
        return None
    rows = _drop_copies(data, np.concatenate([answers, data.order]))
    rows = rows[: max(data.options.search_papers, len(answers))]
    ids, titles, abstracts = (column.take(rows) for column in (corpus.ids, corpus.titles, corpus.abstracts))
    questions = [(f"{ids[at]}#summary", text) for at, text in enumerate(summaries)]
    counts = {"queries": len(answers), "candidates": len(rows)}
    task = _make_search("summary", TaskTexts(ids, titles, abstracts), questions, np.arange(len(answers)))
    return CorpusSearch(task, counts)


def _choose_summaries(data: SuiteData, rows: Rows) -> tuple[Rows, list[str]]:
    """Return the first papers whose summary is not a quotation, one of equal titles, with their summaries."""
    corpus, answers, summaries = data.corpus, [], []
    for row in _drop_copies(data, rows).tolist():
        text = _summary_text(json.loads(corpus.extras[row] or "{}"))
        if text and not _is_quoted(text, f"{corpus.titles[row]} {corpus.abstracts[row]}"):
            answers.append(row)
            summaries.append(text)
        if len(answers) == min(data.options.queries, data.options.search_papers):
            break
    return np.array(answers, np.int64), summaries


def _summary_text(extra: dict[str, Any]) -> str:
    """Return a paper's summary from its source's JSON: a string, a list of strings, or an object with `text`.

    >>> _summary_text({"tldr": ["Short.", "Shorter."]}), _summary_text({"summary": {"text": "S"}}), _summary_text({"tldr": None})
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
    """Return the papers whose JSON may have one of these keys, by searching bytes without parsing."""
    pattern = re.compile(b"|".join(f'"{key}"'.encode() for key in keys))
    places = np.array([match.start() for match in pattern.finditer(column.data.data)], np.int64)
    return np.unique(np.searchsorted(column.offsets, places, side="right") - 1).astype(np.int64)


def _drop_copies(data: SuiteData, rows: Rows) -> Rows:
    return data.first_distinct(rows, len(rows), np.zeros(0, np.uint64))


def _is_quoted(question: str, text: str) -> bool:
    return f" {fold(question)} " in f" {fold(text)} "


def _make_search(name: str, candidates: TaskTexts, questions: Sequence[tuple[str, str]], answers: Rows) -> SearchTask:
    """Return a search task over candidates; questions are rows after them, `answers` the candidate of each question."""
    size, names = len(candidates), [question for question, _ in questions]
    texts = candidates.append(names, [text for _, text in questions])
    queries = np.arange(size, size + len(questions))
    offsets, grades = np.arange(len(questions) + 1), np.ones(len(questions), np.int64)
    judged = Pools(queries, offsets, answers.astype(np.int64), grades, names)
    return SearchTask(name, texts, queries, np.arange(size), judged, SEARCH_RULE)
