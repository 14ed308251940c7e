"""Tables of paper pairs with counts (co-views, SPECTER's data.json), and lookup of papers by id or text.

    co_views.tsv     anchor<TAB>other<TAB>count[<TAB>label]        without a count every line counts 1
    data.json        {"anchor": {"other": {"count": 5}}}           both compressed or not

    >>> table = build_table([0, 0, 2], [2, 1, 0], [1.0, 4.0, 2.5], papers=3)
    >>> table.offsets.tolist(), table.targets.tolist(), table.counts.tolist()
    ([0, 2, 2, 3], [1, 2, 0], [4.0, 1.0, 2.5])

Ids become rows of one corpus. Lines of one pair are summed. Holds the complete table in memory, some 12 bytes per pair
and three times as much while it is read. Does not say what a count means: the rules that draw from a table do.

A file may name papers by an id in any spelling, or by the complete text of the paper:

    lookup.rows(["s2:42", "894be9b4ea46a5c422e81ef3c241072d4c73fdc0"])    [7, 12], -1 if the corpus has no such paper
    lookup.rows_of_texts(["A title[SEP]An abstract."])                    the paper with exactly this title and abstract

An id counts as it is written; failing that without extra blanks, as Semantic Scholar's hash if it has 40 hex digits, and
as a number of `numbers` ("s2") if it is one. Does not search for titles that are only similar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from citeweave.core.columns import BLOCK, is_finite
from citeweave.core.errors import EmptyResultError, InputError
from citeweave.core.hash_keys import Keys, hash_texts
from citeweave.core.inputs import Source
from citeweave.core.json_files import read_members
from citeweave.core.progress import QUIET, Count, Reporter, Tally
from citeweave.core.ragged import Ragged, owners_of, to_offsets
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.id_index import NOT_FOUND, IdIndex, Rows
from citeweave.corpus.identity import distinct, number_id, sha_id
from citeweave.corpus.plain_text import clean_text, dict_of, number_of
from citeweave.corpus.text import paper_text

LARGEST = float(np.finfo(np.float32).max)

ANCHOR_OUTSIDE = "first paper not in the corpus"
OTHER_OUTSIDE = "second paper not in the corpus"
ITSELF = "paper paired with itself"
NO_COUNT = "count that is not a finite number"
NO_PAIR = "not two ids with a tab between them"
OTHER_LABEL = "another label"

_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Table(Ragged):
    """A table of pairs: for every paper the papers it is paired with, and their counts."""

    targets: NDArray[np.int32]
    """Shape (pairs,), ascending within a row."""

    counts: NDArray[np.float32]
    """Shape (pairs,)."""

    tally: Tally = field(default_factory=lambda: Tally({"pairs": Count()}))
    """Counts of the lines: read = kept + rejected, by reason."""

    @property
    def facts(self) -> dict[str, Any]:
        """Numbers of pairs and anchors and the counts of the table's lines, for a manifest."""
        anchors = int((self.lengths() > 0).sum())
        return {"pairs": len(self.targets), "anchors": anchors, **self.tally.as_json()}


_Pair = tuple[str, str, float]
"""Two ids and a count."""

_Columns = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]


def read_table(
    path: str | Path, corpus: Corpus, *, symmetric: bool = False, label: str | None = None, numbers: str = ""
) -> Table:
    """Read a table of pairs, as TSV or data.json by its first character.

    `symmetric` adds every pair in the other direction, `label` keeps only lines with this text in the fourth column,
    `numbers="s2"` takes bare numbers for Semantic Scholar's corpus ids.
    """
    source, tally = Source(Path(path)), Tally({"pairs": Count()})
    head = source.start(2**16).lstrip()
    if not head:
        raise InputError(f"{path} is empty; give a table of pairs")
    pairs = _json_pairs(source, tally) if head.startswith(b"{") else _tsv_pairs(source, tally, label)
    lookup = PaperLookup(corpus, tally, numbers=numbers)
    blocks = []
    while block := list(islice(pairs, _BLOCK)):
        blocks.append(_look_up_pairs(block, lookup, tally))
    anchors, others, counts = _concatenate(blocks)
    if not len(anchors):
        reasons = "; ".join(f"{number:,}: {reason}" for reason, number in tally.counts["pairs"].rejected.items())
        raise EmptyResultError(f"{path} has no pair of papers of {corpus.folder} ({reasons or 'it has no pairs'})")
    if symmetric:
        anchors, others = np.concatenate([anchors, others]), np.concatenate([others, anchors])
        counts = np.concatenate([counts, counts])
    return build_table(anchors, others, counts, papers=len(corpus), tally=tally)


def read_tables(
    paths: Mapping[str, Path], corpus: Corpus, *, symmetric: bool = False, reporter: Reporter = QUIET
) -> dict[str, Table]:
    """Read tables of pairs by the names that mining rules use, and report a line on each."""
    tables = {name: read_table(path, corpus, symmetric=symmetric) for name, path in paths.items()}
    for name, table in tables.items():
        count = table.tally.counts["pairs"]
        reasons = "".join(f"; {number:,} not: {reason}" for reason, number in count.rejected.items())
        reporter.say(f"table {name}: {count.kept:,} of {count.read:,} pairs{reasons}")
    return tables


def build_table(
    anchors: ArrayLike, others: ArrayLike, counts: ArrayLike, *, papers: int, tally: Tally | None = None
) -> Table:
    """Build a table of paper pairs from pairs of rows; counts of the same pair are summed."""
    keys = np.asarray(anchors, np.int64) * papers + np.asarray(others, np.int64)  # (lines,)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(np.asarray(counts, np.float64)[order], starts) if len(starts) else np.zeros(0)
    pairs = keys[starts]  # (pairs,)
    offsets = np.searchsorted(pairs, np.arange(papers + 1, dtype=np.int64) * papers).astype(np.int64)
    tally = tally or Tally({"pairs": Count(kept=len(keys))})
    tally.note("lines added to an earlier one of the same pair", len(keys) - len(pairs))
    summed = np.clip(sums, -LARGEST, LARGEST).astype(np.float32)
    return Table(offsets, (pairs % max(papers, 1)).astype(np.int32), summed, tally)


def _concatenate(blocks: Sequence[_Columns]) -> _Columns:
    empty = np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0)
    anchors, others, counts = (np.concatenate(column) for column in zip(empty, *blocks, strict=True))
    return anchors, others, counts


def _look_up_pairs(pairs: Sequence[_Pair], lookup: PaperLookup, tally: Tally) -> _Columns:
    """Return rows and counts of the pairs whose papers are in the corpus; count the others by reason."""
    anchors = lookup.rows([anchor for anchor, _, _ in pairs])
    others = lookup.rows([other for _, other, _ in pairs])
    outside = [anchors < 0, (anchors >= 0) & (others < 0), (anchors >= 0) & (anchors == others)]
    for reason, mask in zip((ANCHOR_OUTSIDE, OTHER_OUTSIDE, ITSELF), outside, strict=True):
        tally.reject("pairs", reason, int(mask.sum()))
    keep = ~np.any(outside, axis=0)
    tally.keep("pairs", int(keep.sum()))
    return anchors[keep], others[keep], np.array([count for _, _, count in pairs])[keep]


def _tsv_pairs(source: Source, tally: Tally, label: str | None) -> Iterator[_Pair]:
    """Yield the pairs of a TSV table; count lines that are no pair by reason."""
    first = True
    for line in source.raw_lines(tally, "pairs"):
        if not line.strip():
            continue
        text = line.decode("utf-8", "replace").removeprefix("\ufeff")
        parts = [part.strip() for part in text.split("\t")]
        is_first, first = first, False
        if len(parts) < 2 or not parts[0] or not parts[1]:
            tally.reject("pairs", NO_PAIR)
        elif label is not None and parts[3:4] != [label]:
            _reject_or_header(tally, OTHER_LABEL, parts, is_first)
        elif len(parts) == 2:
            tally.note("lines without a count, which count 1")
            yield parts[0], parts[1], 1.0
        elif (count := _number(parts[2])) is None:
            _reject_or_header(tally, NO_COUNT, parts, is_first)
        else:
            yield parts[0], parts[1], count


def _reject_or_header(tally: Tally, reason: str, parts: list[str], is_first: bool) -> None:
    """Reject a line of a TSV table, unless it is a header: a first line with words in the count column."""
    if is_first and len(parts) > 2 and _number(parts[2]) is None and parts[2]:
        tally.note("line with the names of the columns")
    else:
        tally.reject("pairs", reason)


def _json_pairs(source: Source, tally: Tally) -> Iterator[_Pair]:
    """Yield the pairs of a data.json table."""
    for anchor, others in read_members(source):
        if not isinstance(others, dict):
            tally.reject("pairs", "anchor whose pairs are not a JSON object")
            continue
        for other, entry in others.items():
            if (count := count_in(entry)) is None:
                tally.reject("pairs", NO_COUNT)
            else:
                yield anchor, other, count


def count_in(entry: object) -> float | None:
    """Return the count of a pair in a table like data.json, None if it is not a finite number.

    >>> count_in({"count": 5}), count_in({"frac": 1}), count_in(5)
    (5.0, None, None)
    """
    return _finite(number_of(dict_of(entry).get("count")))


def _number(text: str) -> float | None:
    try:
        return _finite(float(text))
    except ValueError:
        return None


def _finite(number: float | None) -> float | None:
    return float(number) if is_finite(number) and abs(number) <= LARGEST else None


# Lookup of papers.

SAME_TEXT = "text that several papers have, taken for the first of them"


class PaperLookup:
    """Looks up the papers that a table names in a corpus, by id in any spelling or by text; the tally notes guesses."""

    def __init__(self, corpus: Corpus, tally: Tally, *, numbers: str = "") -> None:
        self.corpus, self._tally, self._numbers = corpus, tally, numbers

    def rows(self, ids: Sequence[str]) -> Rows:
        """Look up the papers that a table names: the row of every paper id, -1 if the corpus has no such paper."""
        rows = self._look_up(ids)
        missing = np.flatnonzero(rows == NOT_FOUND).tolist()
        spellings = {id: self._other_spellings(id) for id in {ids[place] for place in missing}}
        if any(spellings.values()):
            rows[missing] = self.rows_of_any([spellings[ids[place]] for place in missing])
        return rows

    def rows_of_any(self, spellings: Sequence[Sequence[str]]) -> Rows:
        """Look up papers that a table names by several ids each: the row of the first known one, -1 if there is none."""
        result = np.full(len(spellings), NOT_FOUND, np.int32)
        owners = owners_of(to_offsets([len(ids) for ids in spellings]))
        rows = self._look_up([id for ids in spellings for id in ids])
        known = np.flatnonzero(rows != NOT_FOUND)[::-1]  # in reverse, so that the first of a list is written last
        result[owners[known]] = rows[known]
        return result

    def rows_of_texts(self, texts: Sequence[str]) -> Rows:
        """Look up papers that a table names by text: the row with exactly this title and abstract, -1 if there is none."""
        keys = _keys(texts)
        rows = self._texts.index.rows_of(keys)
        rows[[not text for text in texts]] = NOT_FOUND
        self._tally.note(SAME_TEXT, int(np.isin(keys, self._texts.repeated).sum()))
        return rows

    def _look_up(self, ids: Sequence[str]) -> Rows:
        return self.corpus.index.rows_of(_keys(ids))

    def _other_spellings(self, id: str) -> tuple[str, ...]:
        number = number_id(self._numbers, id) if self._numbers else None
        return tuple(other for other in distinct([clean_text(id), sha_id(id), number]) if other != id)

    @cached_property
    def _texts(self) -> _TextKeys:
        corpus, blocks = self.corpus, []
        for start in range(0, len(corpus), BLOCK):
            papers = zip(corpus.titles[start : start + BLOCK], corpus.abstracts[start : start + BLOCK], strict=True)
            blocks.append(_keys([paper_text(title, abstract) for title, abstract in papers]))
        keys, first, counts = np.unique(np.concatenate(blocks), return_index=True, return_counts=True)
        return _TextKeys(IdIndex.of(keys, first.astype(np.int32)), keys[(counts > 1) & (keys != hash_texts([""]))])


@dataclass(frozen=True, slots=True)
class _TextKeys:
    index: IdIndex
    repeated: Keys


def _keys(texts: Sequence[str]) -> Keys:
    # lone surrogates cannot be encoded; no id or text of a corpus has them
    return hash_texts([text if text.isascii() else text.encode("utf-8", "replace").decode() for text in texts])
