"""Search tasks: a title asks for its abstract, a summary for its paper, each among many.

    title      question "Attention is all you need"   candidates: abstracts, without any title
    summary    question: the paper's `tldr` or `summary` of the source   candidates: titles with abstracts

A question that stands word for word in what it asks for is left out: finding it would tell nothing. Of papers with the
same title or abstract one is kept. Does not rank.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from citeweave.columns import TextColumn
from citeweave.corpus.cleaning import clean_text, fold
from citeweave.evaluation.suites.making.material import CannotAskError, Material, Rows
from citeweave.evaluation.tasks import Pools, RankingRule, SearchTask
from citeweave.evaluation.texts import Texts
from citeweave.hashing import hash_texts

RULE = RankingRule(metrics=("ndcg_cut_10", "recip_rank", "recall_100"), distance="cosine")
FEWEST_WORDS = 3
"""Of a title that asks; "Editorial" could be anybody's."""

SUMMARY_KEYS = ("tldr", "summary")


@dataclass(frozen=True)
class Search:
    task: SearchTask
    counts: dict[str, int]


def make_title(material: Material) -> Search:
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
    candidates = Texts([f"{name}#abstract" for name in ids], [""] * len(ids), abstracts)
    questions = [(f"{ids[at]}#title", titles[at]) for at in answers.tolist()]
    counts = {"queries": len(answers), "candidates": len(rows), "titles left out: told in the abstract": sum(told)}
    return Search(_task("title", candidates, questions, answers), counts)


def make_summary(material: Material) -> Search | None:
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
    task = _task("summary", Texts(ids, titles, abstracts), questions, np.arange(len(asked)))
    return Search(task, counts)


def _summaries(material: Material, rows: Rows) -> tuple[Rows, list[str]]:
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


def _distinct(material: Material, rows: Rows) -> Rows:
    return material.first_distinct(rows, len(rows), np.zeros(0, np.uint64))


def _stands_in(question: str, text: str) -> bool:
    return f" {fold(question)} " in f" {fold(text)} "


def _task(name: str, candidates: Texts, questions: Sequence[tuple[str, str]], answers: Rows) -> SearchTask:
    """Questions are rows after the candidates; `answers` are their candidates."""
    size, names = len(candidates), [question for question, _ in questions]
    texts = Texts(
        [*candidates.ids, *names],
        [*candidates.titles, *(text for _, text in questions)],
        [*candidates.abstracts, *([""] * len(questions))],
    )
    queries = np.arange(size, size + len(questions))
    offsets, grades = np.arange(len(questions) + 1), np.ones(len(questions), np.int64)
    judged = Pools(queries, offsets, answers.astype(np.int64), grades, names)
    return SearchTask(name, texts, queries, np.arange(size), judged, RULE)
