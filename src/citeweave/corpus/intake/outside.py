"""Papers that no record describes: ids that occur only in citations become rows (`--outside keep`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from citeweave.columns import release
from citeweave.corpus.intake.spill import Spill
from citeweave.corpus.intake.staging import Part, PartWriter, is_complete
from citeweave.corpus.paper import Paper

_STEP = 1 << 20
_SEEN = np.dtype([("key", "<u8"), ("at", "<i8"), ("part", "<i4"), ("cited", "?")])


def stage_outside(parts: Sequence[Part], folder: Path, *, memory: int) -> Part:
    """A part with one stub for every id that citations name and no record has."""
    target = folder / "part"
    if not is_complete(target):
        writer = PartWriter(target, keep_ids=True)
        for ids in _unknown_ids(parts, folder, memory):
            writer.add(Paper(id, stub=True) for id in ids)
        writer.finish({"name": "papers outside", "format": "outside"})
    return Part(target)


def _unknown_ids(parts: Sequence[Part], folder: Path, memory: int) -> Iterator[list[str]]:
    known = np.unique(np.concatenate([np.empty(0, np.uint64), *(_known_keys(part) for part in parts)]))
    expected = 2 * sum(part.citation_count for part in parts)
    spill = Spill(folder / "sort", _SEEN, key="key", top=2**64, expected=expected, memory=memory)
    for number, part in enumerate(parts):
        for cited, name in enumerate(("citing", "cited")):
            column = part.citations(name)
            for start in range(0, len(column), _STEP):
                keys = column[start : start + _STEP]
                at = np.flatnonzero(~np.isin(keys, known))
                records = np.empty(len(at), _SEEN)
                records["key"], records["at"], records["part"], records["cited"] = keys[at], at + start, number, cited
                spill.add(records)
            release(column)
    columns = [{flag: part.citation_ids(name) for flag, name in enumerate(("citing_id", "cited_id"))} for part in parts]
    for block in spill.blocks():
        first = block[np.concatenate([[True], block["key"][1:] != block["key"][:-1]])]
        rows = zip(first["part"].tolist(), first["cited"].tolist(), first["at"].tolist(), strict=True)
        yield [columns[part][int(cited)][at] for part, cited, at in rows]


def _known_keys(part: Part) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    titles = part.paper_numbers("title_key")
    keys: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.concatenate([part.paper_numbers("key"), titles[titles != 0]])
    return keys
