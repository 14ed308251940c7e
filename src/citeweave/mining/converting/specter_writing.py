"""Writes SPECTER's training files; what they look like is told in `specter.py`.

A query is written once, with the papers of all its samples. SPECTER's sampler makes triplets only of queries with
three papers or more and both grades; queries that fall short of it are noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from citeweave.corpus.corpus import lines
from citeweave.errors import choose
from citeweave.hashing import hash_texts
from citeweave.mining.converting.options import ExportOptions
from citeweave.mining.converting.outgoing import NO_POSITIVE, Outgoing
from citeweave.mining.converting.specter import BEFORE, QUERY_REJECTED
from citeweave.mining.tables import ITSELF
from citeweave.tally import Count, Tally

DATA, METADATA = "data.json", "metadata.json"
EVERY_FILE = (DATA, METADATA, "train.txt", "val.txt", "test.txt")
POSITIVE_COUNT, NEGATIVE_COUNT = 5, 1

EASY = "negative of a rule that is left out; SPECTER draws easy negatives itself"
ALSO_POSITIVE = "negative that is also a positive of the query"
TOO_LITTLE = "queries of which SPECTER's sampler makes no triplet (under three papers, or no hard negative)"
NO_TITLE = "papers without a title, whose triplets SPECTER leaves out"


def files(options: ExportOptions) -> tuple[str, ...]:
    lists = ("train.txt", *(["val.txt"] if options.val else []), *(["test.txt"] if options.test else []))
    return DATA, METADATA, *lists


def write(out: Outgoing, paths: dict[str, Path]) -> int:
    """Write the files; how many queries are in them."""
    out.count_samples(needs_negatives=False)
    out.tally.counts |= {"queries": Count(), "pairs": Count()}
    used = np.zeros(len(out.corpus), bool)
    queries: list[str] = []
    with paths[DATA].open("wb") as file:
        for id, entries in _queries(out, used):
            file.write(b",\n" if queries else b"{\n")
            file.write(orjson.dumps(id) + b": " + orjson.dumps(entries))
            queries.append(id)
        file.write(b"\n}\n" if queries else b"{}\n")
    _write_metadata(out, np.flatnonzero(used), paths[METADATA])
    for name, ids in _lists(queries, out.options).items():
        paths[name].write_text("".join(f"{id}\n" for id in ids), encoding="utf-8")
    return len(queries)


def _queries(out: Outgoing, used: NDArray[np.bool_]) -> Iterator[tuple[str, dict[str, dict[str, int]]]]:
    """Every query with its papers, in the order in which queries first appear; marks the papers that are used."""
    samples, easy = out.samples, _rules_left_out(out)
    for anchor, own in _by_anchor(samples.anchors):
        ups = np.concatenate([samples.positives.of(sample) for sample in own])
        downs, rules = (
            np.concatenate([column[_span(samples.negatives.offsets, sample)] for sample in own])
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
    """5 for positives, 1 for negatives; a paper is written once."""
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
    """Anchors in the order of their first sample, each with all its samples."""
    order = np.argsort(anchors, kind="stable")
    starts = np.flatnonzero(np.diff(anchors[order], prepend=-1))
    groups = np.split(order, starts[1:])
    for place in np.argsort(order[starts], kind="stable").tolist():
        own = groups[place].tolist()
        yield int(anchors[own[0]]), own


def _rules_left_out(out: Outgoing) -> list[int]:
    rules, named = out.samples.names.rules, out.options.leave_out
    if named != ExportOptions().leave_out:
        for name in named:
            choose(name, rules, "--leave-out")
    return [number for number, name in enumerate(rules) if name in named]


def _span(offsets: NDArray[np.int64], sample: int) -> slice:
    return slice(int(offsets[sample]), int(offsets[sample + 1]))


def _lists(queries: list[str], options: ExportOptions) -> dict[str, list[str]]:
    """Which query goes to which list: told by its id alone, so that a paper stays in its list when others come."""
    draws = hash_texts(queries) / 2.0**64  # (queries,), even over 0 to 1
    ends = {"val.txt": options.val, "test.txt": options.val + options.test}
    found: dict[str, list[str]] = {name: [] for name in files(options) if name.endswith(".txt")}
    for id, draw in zip(queries, draws.tolist(), strict=True):
        found[next((name for name, end in ends.items() if draw < end), "train.txt")].append(id)
    return found


def _write_metadata(out: Outgoing, rows: NDArray[np.int64], path: Path) -> None:
    with path.open("wb") as file:
        for place, row in enumerate(rows.tolist()):
            record = _record(out, row)
            out.tally.note(NO_TITLE, int(not record["title"]))
            file.write(b",\n" if place else b"{\n")
            file.write(orjson.dumps(record["paper_id"]) + b": " + orjson.dumps(record))
        file.write(b"\n}\n" if len(rows) else b"{}\n")


def _record(out: Outgoing, row: int) -> dict[str, Any]:
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
