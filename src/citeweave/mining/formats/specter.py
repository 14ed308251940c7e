"""SPECTER's training files, read and written: data.json with counts, metadata.json and lists of queries.

    data.json       {"<query>": {"<other>": {"count": 5}, ...}}     5 = positive, 1 = hard negative; any scale is read
    metadata.json   {"<id>": {"paper_id": "<id>", "title": "T", "abstract": "A", "year": 2020, ...}}
    train.txt       one query per line; val.txt and test.txt likewise

Reading: the papers of a query above the middle between its smallest and its largest count are positives, those below are
negatives (SPECTER's margin of 0.5), and the counts become scores. If there are lists, only their queries are read, all
lists as one set. Does not read the pickled training instances.

Writing: a query is written once, with the papers of all its samples. Easy negatives are left out, as SPECTER's sampler
draws its own. The sampler makes triplets only of queries with three papers or more and both grades; other queries are
counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from citeweave.core.errors import choose
from citeweave.core.hash_keys import hash_texts
from citeweave.core.inputs import FileHead, Source
from citeweave.core.json_files import read_members
from citeweave.core.progress import Count, Tally
from citeweave.core.ragged import to_offsets
from citeweave.corpus.corpus import lines
from citeweave.corpus.readers import specter as reader
from citeweave.mining.formats.triplets import NEGATIVE, NO_POSITIVE, OUTSIDE, POSITIVE, ExportedSamples, blocks
from citeweave.mining.options import ExportOptions
from citeweave.mining.samples import Picks, SampleBlock, new_block
from citeweave.mining.tables import ITSELF, NO_COUNT, OTHER_OUTSIDE, PaperLookup, count_in

LISTS = ("train.txt", "val.txt", "dev.txt", "test.txt")

NOT_LISTED = "query in none of the lists"
NOT_AN_OBJECT = "not a JSON object"
NO_POSITIVE_IN_CORPUS = "no positive in the corpus"
IN_BETWEEN = "count in the middle between positives and negatives"
BEFORE = "pair given before"
QUERY_REJECTED = "pair of a query that was not kept"

_TEXT = rb'"(?:[^"\\]|\\.){1,500}"'
_DATA = re.compile(rb"\{\s*" + _TEXT + rb"\s*:\s*\{\s*(?:" + _TEXT + rb'\s*:\s*\{\s*"count"\s*:|\}\s*,)')
_QUERIES_PER_BLOCK = 512
"""Queries looked up at once."""


def recognize(head: FileHead) -> str | None:
    """Return the role of a file in SPECTER's format by its name and beginning, None if it is not one."""
    if head.name in LISTS:
        return "queries"
    if _DATA.match(head.data.lstrip()):
        return "samples"
    return "papers" if reader.recognizes(head) else None


@dataclass(frozen=True, slots=True)
class _Query:
    """A query of data.json: its id and the counts of its papers."""

    id: str
    others: dict[str, float]
    """Count of every paper of the query."""

    @property
    def middle(self) -> float:
        """The count in SPECTER's data.json that separates positives from negatives; if all counts are equal, all are positives.

        SPECTER's rule for hard negatives: count < max - 0.5 (max - min) (`triplet_sampling_parallel.py`).
        """
        smallest, largest = min(self.others.values()), max(self.others.values())
        return largest - 0.5 * (largest - smallest) if largest > smallest else -np.inf


def read(
    sources: Sequence[Source], queries: Sequence[Source], lookup: PaperLookup, tally: Tally
) -> Iterator[SampleBlock]:
    """Read SPECTER's data.json as blocks of samples, restricted to the listed queries."""
    listed = _read_lists(queries)
    if len(queries) > 1:
        tally.note("lists of queries, read as one set", len(queries))
    for source in sources:
        for block in blocks(_read_queries(source, listed, tally), _QUERIES_PER_BLOCK):
            yield from _samples(block, lookup, tally)
    if listed is not None:
        tally.note("listed queries that data.json does not have", len(listed))


def _read_lists(sources: Sequence[Source]) -> set[str] | None:
    """Read the ids of all lists of queries; None if there is no list."""
    unread = Tally()
    ids = {line.decode("utf-8", "replace") for source in sources for line in source.lines(unread, "papers")}
    return ids if sources else None


def _read_queries(source: Source, listed: set[str] | None, tally: Tally) -> Iterator[_Query]:
    """Yield the listed queries of data.json with their counts; count the others by reason."""
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


def _samples(queries: list[_Query], lookup: PaperLookup, tally: Tally) -> Iterator[SampleBlock]:
    """Turn queries with a positive in the corpus into samples, with their counts as scores."""
    anchors = lookup.rows([query.id for query in queries]).tolist()
    rows = iter(lookup.rows([other for query in queries for other in query.others]).tolist())
    samples: list[tuple[int, dict[int, float], dict[int, float]]] = []
    for query, anchor in zip(queries, anchors, strict=True):
        pairs = [(next(rows), count) for count in query.others.values()]
        if anchor < 0:
            tally.reject("queries", OUTSIDE[0])
            tally.reject("pairs", QUERY_REJECTED, len(pairs))
            continue
        counts = _known_counts(anchor, pairs, tally)
        middle = query.middle if pairs else 0.0
        positives = {row: count for row, count in counts.items() if count > middle}
        negatives = {row: count for row, count in counts.items() if count < middle}
        tally.reject("pairs", IN_BETWEEN, len(counts) - len(positives) - len(negatives))
        if not positives:
            tally.reject("queries", NO_POSITIVE_IN_CORPUS)
            tally.reject("pairs", QUERY_REJECTED, len(negatives))
            continue
        tally.keep("queries")
        tally.keep("pairs", len(positives) + len(negatives))
        tally.note("queries without a negative", int(not negatives))
        samples.append((anchor, positives, negatives))
    if samples:
        ups = _picks([positives for _, positives, _ in samples], POSITIVE)
        downs = _picks([negatives for _, _, negatives in samples], NEGATIVE)
        yield new_block([anchor for anchor, _, _ in samples], ups, downs)


def _known_counts(anchor: int, pairs: list[tuple[int, float]], tally: Tally) -> dict[int, float]:
    """Return the count of every paper of a query that is in the corpus; of two ids of one paper the larger one."""
    counts: dict[int, float] = {}
    for row, count in pairs:
        if row < 0 or row == anchor:
            tally.reject("pairs", ITSELF if row == anchor else OTHER_OUTSIDE)
            continue
        tally.reject("pairs", BEFORE, int(row in counts))
        counts[row] = max(count, counts.get(row, count))
    return counts


def _picks(lists: Sequence[Mapping[int, float]], rule: int) -> Picks:
    rows = np.array([row for counts in lists for row in counts], np.int32)
    scores = np.array([count for counts in lists for count in counts.values()], np.float32)
    return Picks(to_offsets([len(counts) for counts in lists]), rows, np.full(len(rows), rule, np.uint8), scores)


# Writing.

DATA, METADATA = "data.json", "metadata.json"
EVERY_FILE = (DATA, METADATA, "train.txt", "val.txt", "test.txt")
POSITIVE_COUNT, NEGATIVE_COUNT = 5, 1

EASY = "negative of a rule that is left out; SPECTER draws easy negatives itself"
ALSO_POSITIVE = "negative that is also a positive of the query"
TOO_LITTLE = "queries of which SPECTER's sampler makes no triplet (under three papers, or no hard negative)"
NO_TITLE = "papers without a title, whose triplets SPECTER leaves out"


def file_names(options: ExportOptions) -> tuple[str, ...]:
    """Return the names of the files of an export to SPECTER's format."""
    lists = ("train.txt", *(["val.txt"] if options.val else []), *(["test.txt"] if options.test else []))
    return DATA, METADATA, *lists


def write(out: ExportedSamples, paths: dict[str, Path]) -> int:
    """Write samples as SPECTER's data.json, metadata.json and lists; return the number of queries."""
    out.count_samples(needs_negatives=False)
    out.tally.counts |= {"queries": Count(), "pairs": Count()}
    used = np.zeros(len(out.corpus), bool)
    queries: list[str] = []
    with paths[DATA].open("wb") as file:
        for id, entries in _written_queries(out, used):
            file.write(b",\n" if queries else b"{\n")
            file.write(orjson.dumps(id) + b": " + orjson.dumps(entries))
            queries.append(id)
        file.write(b"\n}\n" if queries else b"{}\n")
    _write_metadata(out, np.flatnonzero(used), paths[METADATA])
    for name, ids in _lists(queries, out.options).items():
        paths[name].write_text("".join(f"{id}\n" for id in ids), encoding="utf-8")
    return len(queries)


def _written_queries(out: ExportedSamples, used: NDArray[np.bool_]) -> Iterator[tuple[str, dict[str, dict[str, int]]]]:
    """Yield every query with the counts of its papers, in order of first appearance; mark the papers used."""
    samples, easy = out.samples, _rules_left_out(out)
    for anchor, own in _by_anchor(samples.anchors):
        ups = np.concatenate([samples.positives.of(sample) for sample in own])
        downs, rules = (
            np.concatenate([column[samples.negatives.span(sample)] for sample in own])
            for column in (samples.negatives.rows, samples.negatives.rules)
        )
        out.advance(len(own))
        is_easy = np.isin(rules, easy)
        out.tally.reject("pairs", EASY, int(is_easy.sum()))
        counts = _counts(out.tally, anchor, ups.tolist(), downs[~is_easy].tolist())
        if POSITIVE_COUNT not in counts.values():
            out.tally.reject("queries", NO_POSITIVE)
            out.tally.reject("pairs", QUERY_REJECTED, len(counts))
            continue
        out.tally.keep("queries")
        out.tally.keep("pairs", len(counts))
        out.tally.note(TOO_LITTLE, int(len(counts) < 3 or NEGATIVE_COUNT not in counts.values()))
        used[[anchor, *counts, *downs[is_easy]]] = True
        ids = out.corpus.ids.take(np.array([anchor, *counts]))
        yield ids[0], {id: {"count": count} for id, count in zip(ids[1:], counts.values(), strict=True)}


def _counts(tally: Tally, anchor: int, ups: list[int], downs: list[int]) -> dict[int, int]:
    """Return SPECTER's counts of a query's papers, 5 for positives and 1 for negatives, each paper once."""
    counts: dict[int, int] = {}
    for row, count in [*((row, POSITIVE_COUNT) for row in ups), *((row, NEGATIVE_COUNT) for row in downs)]:
        if row == anchor:
            tally.reject("pairs", ITSELF)
        elif row in counts:
            tally.reject("pairs", BEFORE if counts[row] == count else ALSO_POSITIVE)
        else:
            counts[row] = count
    return counts


def _by_anchor(anchors: NDArray[np.int32]) -> Iterator[tuple[int, list[int]]]:
    """Yield the anchors in order of their first sample, each with all its samples."""
    order = np.argsort(anchors, kind="stable")
    starts = np.flatnonzero(np.diff(anchors[order], prepend=-1))
    groups = np.split(order, starts[1:])
    for place in np.argsort(order[starts], kind="stable").tolist():
        own = groups[place].tolist()
        yield int(anchors[own[0]]), own


def _rules_left_out(out: ExportedSamples) -> list[int]:
    """Return the numbers of the rules whose negatives stay out of data.json."""
    rules, named = out.samples.names.rules, out.options.leave_out
    if named != ExportOptions().leave_out:
        for name in named:
            choose(name, rules, "--leave-out")
    return [number for number, name in enumerate(rules) if name in named]


def _lists(queries: list[str], options: ExportOptions) -> dict[str, list[str]]:
    """Assign queries to train, val and test lists by their ids alone, so that a query stays in its list."""
    draws = hash_texts(queries) / 2.0**64  # (queries,), uniform over 0 to 1
    ends = {"val.txt": options.val, "test.txt": options.val + options.test}
    lists: dict[str, list[str]] = {name: [] for name in file_names(options) if name.endswith(".txt")}
    for id, draw in zip(queries, draws.tolist(), strict=True):
        lists[next((name for name, end in ends.items() if draw < end), "train.txt")].append(id)
    return lists


def _write_metadata(out: ExportedSamples, rows: NDArray[np.int64], path: Path) -> None:
    """Write SPECTER's metadata.json for some papers."""
    with path.open("wb") as file:
        for place, row in enumerate(rows.tolist()):
            record = _record(out, row)
            out.tally.note(NO_TITLE, int(not record["title"]))
            file.write(b",\n" if place else b"{\n")
            file.write(orjson.dumps(record["paper_id"]) + b": " + orjson.dumps(record))
        file.write(b"\n}\n" if len(rows) else b"{}\n")


def _record(out: ExportedSamples, row: int) -> dict[str, Any]:
    corpus = out.corpus
    authors = lines(corpus.authors[row])
    return {
        "paper_id": corpus.ids[row],
        "title": corpus.titles[row],
        "abstract": corpus.abstracts[row],
        "year": int(corpus.years[row]) or None,
        "venue": corpus.venues[row],
        "authors": authors,
        "author-names": authors,  # the key that SPECTER's code reads names from
    }
