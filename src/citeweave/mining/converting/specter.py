"""SPECTER's training files: who is related to whom and how strongly, the papers, and lists of queries.

    data.json       {"<query>": {"<other>": {"count": 5}, ...}}     5 = positive, 1 = hard negative; any scale is read
    metadata.json   {"<id>": {"paper_id": "<id>", "title": "T", "abstract": "A", "year": 2020, ...}}
    train.txt       one query a line; val.txt and test.txt likewise

Reading: of the papers of a query those above the middle between its least and its largest count are positives, those
below are negatives (SPECTER's margin of 0.5), and the counts become scores. Where lists are given, only their
queries are read, of all lists as one set. Writing: easy negatives stay out, as SPECTER's sampler draws its own.
Does not read the pickled training instances.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from citeweave.corpus.readers import specter as reader
from citeweave.mining.converting.incoming import NEGATIVE, OUTSIDE, POSITIVE, blocks
from citeweave.mining.converting.json_members import read_members
from citeweave.mining.converting.paper_names import PaperNames
from citeweave.mining.sample_blocks import Picks, SampleBlock
from citeweave.mining.tables import ITSELF, NO_COUNT, OTHER_OUTSIDE, count_in
from citeweave.opening import Head, Source
from citeweave.tally import Tally

LISTS = ("train.txt", "val.txt", "dev.txt", "test.txt")

NOT_LISTED = "query in none of the lists"
NOT_AN_OBJECT = "not a JSON object"
NO_POSITIVE = "no positive in the corpus"
IN_BETWEEN = "count in the middle between positives and negatives"
BEFORE = "pair given before"
QUERY_REJECTED = "pair of a query that was not kept"

_TEXT = rb'"(?:[^"\\]|\\.){1,500}"'
_DATA = re.compile(rb"\{\s*" + _TEXT + rb"\s*:\s*\{\s*(?:" + _TEXT + rb'\s*:\s*\{\s*"count"\s*:|\}\s*,)')
_SOME = 512
"""Queries looked up at once."""


def role(head: Head) -> str | None:
    if head.name in LISTS:
        return "queries"
    if _DATA.match(head.data.lstrip()):
        return "samples"
    return "papers" if reader.recognises(head) else None


@dataclass(frozen=True, slots=True)
class _Query:
    id: str
    others: dict[str, float]
    """Count of every paper of the query."""

    @property
    def middle(self) -> float:
        """What positives are above and hard negatives below; with counts all alike every paper is a positive.

        SPECTER's rule for hard negatives: count < max - 0.5 (max - min) (`triplet_sampling_parallel.py`).
        """
        least, largest = min(self.others.values()), max(self.others.values())
        return largest - 0.5 * (largest - least) if largest > least else -np.inf


def read(
    sources: Sequence[Source], queries: Sequence[Source], names: PaperNames, tally: Tally
) -> Iterator[SampleBlock]:
    listed = _listed(queries)
    if len(queries) > 1:
        tally.note("lists of queries, read as one set", len(queries))
    for source in sources:
        for block in blocks(_queries(source, listed, tally), _SOME):
            yield from _samples(block, names, tally)
    if listed is not None:
        tally.note("listed queries that data.json does not have", len(listed))


def _listed(sources: Sequence[Source]) -> set[str] | None:
    """The ids of all lists; None where there is no list."""
    unread = Tally()
    found = {line.decode("utf-8", "replace") for source in sources for line in source.lines(unread, "papers")}
    return found if sources else None


def _queries(source: Source, listed: set[str] | None, tally: Tally) -> Iterator[_Query]:
    for id, entries in read_members(source):
        is_listed = listed is None or id in listed
        if listed is not None:
            listed.discard(id)
        if not isinstance(entries, dict):
            tally.reject("queries", NOT_AN_OBJECT)
        elif not is_listed:
            tally.reject("queries", NOT_LISTED)
            tally.reject("pairs", QUERY_REJECTED, len(entries))
        else:
            counts = {other: count_in(entry) for other, entry in entries.items()}
            others = {other: count for other, count in counts.items() if count is not None}
            tally.reject("pairs", NO_COUNT, len(counts) - len(others))
            yield _Query(id, others)


def _samples(queries: list[_Query], names: PaperNames, tally: Tally) -> Iterator[SampleBlock]:
    """The queries that have a positive in the corpus, as samples with their counts as scores."""
    anchors = names.rows([query.id for query in queries]).tolist()
    rows = iter(names.rows([other for query in queries for other in query.others]).tolist())
    kept: list[tuple[int, dict[int, float], dict[int, float]]] = []
    for query, anchor in zip(queries, anchors, strict=True):
        pairs = [(next(rows), count) for count in query.others.values()]
        if anchor < 0:
            tally.reject("queries", OUTSIDE[0])
            tally.reject("pairs", QUERY_REJECTED, len(pairs))
            continue
        counts = _known(anchor, pairs, tally)
        middle = query.middle if pairs else 0.0
        positives = {row: count for row, count in counts.items() if count > middle}
        negatives = {row: count for row, count in counts.items() if count < middle}
        tally.reject("pairs", IN_BETWEEN, len(counts) - len(positives) - len(negatives))
        if not positives:
            tally.reject("queries", NO_POSITIVE)
            tally.reject("pairs", QUERY_REJECTED, len(negatives))
            continue
        tally.keep("queries")
        tally.keep("pairs", len(positives) + len(negatives))
        tally.note("queries without a negative", int(not negatives))
        kept.append((anchor, positives, negatives))
    if kept:
        yield _block(kept)


def _known(anchor: int, pairs: list[tuple[int, float]], tally: Tally) -> dict[int, float]:
    """The count of every paper of the corpus; of two ids of one paper the larger one."""
    counts: dict[int, float] = {}
    for row, count in pairs:
        if row < 0 or row == anchor:
            tally.reject("pairs", ITSELF if row == anchor else OTHER_OUTSIDE)
            continue
        tally.reject("pairs", BEFORE, int(row in counts))
        counts[row] = max(count, counts.get(row, count))
    return counts


def _block(samples: list[tuple[int, dict[int, float], dict[int, float]]]) -> SampleBlock:
    number = len(samples)
    return SampleBlock(
        anchors=np.array([anchor for anchor, _, _ in samples], np.int32),
        positives=_picks([positives for _, positives, _ in samples], POSITIVE),
        negatives=_picks([negatives for _, _, negatives in samples], NEGATIVE),
        aspects=np.zeros(number, np.uint8),
        tasks=np.zeros(number, np.uint8),
        context_offsets=np.zeros(number + 1, np.int64),
        contexts=np.zeros(0, np.int64),
    )


def _picks(lists: Sequence[Mapping[int, float]], rule: int) -> Picks:
    offsets = np.array([0, *accumulate(len(counts) for counts in lists)], np.int64)
    rows = np.array([row for counts in lists for row in counts], np.int32)
    scores = np.array([count for counts in lists for count in counts.values()], np.float32)
    return Picks(offsets, rows, np.full(len(rows), rule, np.uint8), scores)
