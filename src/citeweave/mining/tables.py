r"""Tables of pairs with counts, of any origin: co-views, co-reads, co-citations, SPECTER's data.json.

    co_views.tsv     anchor<TAB>other<TAB>count[<TAB>label]        without a count every line counts 1
    data.json        {"anchor": {"other": {"count": 5}}}           both compressed or not

    >>> table = table_of([0, 0, 2], [2, 1, 0], [1.0, 4.0, 2.5], papers=3)
    >>> table.offsets.tolist(), table.targets.tolist(), table.counts.tolist()
    ([0, 2, 2, 3], [1, 2, 0], [4.0, 1.0, 2.5])

Ids become rows of one corpus. Lines of one pair are summed. Holds the whole table in memory, some 12 bytes a pair
and three times as much while it is read. Does not say what a count means: the rules that draw from a table do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from citeweave.corpus.cleaning import dict_of, number_of
from citeweave.corpus.corpus import Corpus
from citeweave.errors import EmptyResultError, InputError
from citeweave.finite import is_finite
from citeweave.mining.converting.json_members import read_members
from citeweave.mining.converting.paper_names import PaperNames
from citeweave.opening import Source
from citeweave.tally import Count, Tally

LARGEST = float(np.finfo(np.float32).max)

ANCHOR_OUTSIDE = "first paper not in the corpus"
OTHER_OUTSIDE = "second paper not in the corpus"
ITSELF = "paper paired with itself"
NO_COUNT = "count that is not a finite number"
NO_PAIR = "not two ids with a tab between them"
OTHER_LABEL = "another label"

_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Table:
    """For every paper the papers it is paired with, and how strongly."""

    offsets: NDArray[np.int64]
    """Shape (papers + 1,): the pairs of row i are targets[offsets[i]:offsets[i + 1]]."""

    targets: NDArray[np.int32]
    """Shape (pairs,), ascending within a row."""

    counts: NDArray[np.float32]
    """Shape (pairs,)."""

    tally: Tally = field(default_factory=lambda: Tally({"pairs": Count()}))
    """What became of the lines: read = kept + rejected, by reason."""

    @property
    def facts(self) -> dict[str, Any]:
        """Sizes and the account of the lines, for a manifest."""
        anchors = int((np.diff(self.offsets) > 0).sum())
        return {"pairs": len(self.targets), "anchors": anchors, **self.tally.as_json()}

    def __len__(self) -> int:
        return len(self.targets)


_Pair = tuple[str, str, float]
"""Two ids and a count."""

_Columns = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]


def read_table(
    path: str | Path, corpus: Corpus, *, symmetric: bool = False, label: str | None = None, numbers: str = ""
) -> Table:
    """Read a table of pairs, told by its first sign whether TSV or data.json.

    `symmetric` adds every pair in the other direction, `label` keeps only lines with this text in the fourth column,
    `numbers="s2"` takes bare numbers for Semantic Scholar's corpus ids.
    """
    source, tally = Source(Path(path)), Tally({"pairs": Count()})
    head = source.start(2**16).lstrip()
    if not head:
        raise InputError(f"{path} is empty; give a table of pairs")
    pairs = _json_pairs(source, tally) if head.startswith(b"{") else _lines(source, tally, label)
    names = PaperNames(corpus, tally, numbers=numbers)
    anchors, others, counts = _joined([_rows(block, names, tally) for block in _blocks(pairs)])
    if not len(anchors):
        reasons = "; ".join(f"{number:,}: {reason}" for reason, number in tally.counts["pairs"].rejected.items())
        raise EmptyResultError(f"{path} has no pair of papers of {corpus.folder} ({reasons or 'none is given'})")
    if symmetric:
        anchors, others = np.concatenate([anchors, others]), np.concatenate([others, anchors])
        counts = np.concatenate([counts, counts])
    return table_of(anchors, others, counts, papers=len(corpus), tally=tally)


def table_of(
    anchors: ArrayLike, others: ArrayLike, counts: ArrayLike, *, papers: int, tally: Tally | None = None
) -> Table:
    """A table of pairs of rows; counts of one pair are summed."""
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


def _joined(blocks: Sequence[_Columns]) -> _Columns:
    empty = np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0)
    anchors, others, counts = (np.concatenate(column) for column in zip(empty, *blocks, strict=True))
    return anchors, others, counts


def _rows(pairs: Sequence[_Pair], names: PaperNames, tally: Tally) -> _Columns:
    """Rows and counts of the pairs whose papers are known."""
    anchors = names.rows([anchor for anchor, _, _ in pairs])
    others = names.rows([other for _, other, _ in pairs])
    outside = [anchors < 0, (anchors >= 0) & (others < 0), (anchors >= 0) & (anchors == others)]
    for reason, found in zip((ANCHOR_OUTSIDE, OTHER_OUTSIDE, ITSELF), outside, strict=True):
        tally.reject("pairs", reason, int(found.sum()))
    keep = ~np.any(outside, axis=0)
    tally.keep("pairs", int(keep.sum()))
    return anchors[keep], others[keep], np.array([count for _, _, count in pairs])[keep]


def _lines(source: Source, tally: Tally, label: str | None) -> Iterator[_Pair]:
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
    """A first line with words where the count stands names the columns and is no record."""
    if is_first and len(parts) > 2 and _number(parts[2]) is None and parts[2]:
        tally.note("line with the names of the columns")
    else:
        tally.reject("pairs", reason)


def _json_pairs(source: Source, tally: Tally) -> Iterator[_Pair]:
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
    """The count of an entry of data.json, None where it has none that is a finite number.

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


def _blocks(pairs: Iterator[_Pair]) -> Iterator[list[_Pair]]:
    block: list[_Pair] = []
    for pair in pairs:
        block.append(pair)
        if len(block) == _BLOCK:
            yield block
            block = []
    if block:
        yield block
