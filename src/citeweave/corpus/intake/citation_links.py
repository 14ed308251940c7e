"""Writes the citations of a corpus: ids become rows, repeats become one, in bounded memory.

They end sorted by citing and cited row. A citation given several times is one: its intents are united,
it is influential if one record says so, and its strength is the largest given, so that importing the
same file twice changes nothing.

References of a paper of the corpus to a paper outside it are no citations, but they are remembered by
the cited id's key (`references_outside/`): an update that brings the cited paper makes them citations,
and papers that share them are coupled.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import NumberWriter, release
from citeweave.corpus.index import IdIndex
from citeweave.corpus.intake.spill import Spill
from citeweave.corpus.intake.staging import StagedPart
from citeweave.corpus.layout import CITATION_COLUMNS, REFERENCE_COLUMNS
from citeweave.hashing import mix
from citeweave.tally import Tally

STEP = 1 << 20
"""Citations handled at a time."""

_ATTRIBUTES = ("strength", "intents", "influential")
# padded to multiples of eight bytes, which move several times as fast
_EDGE = np.dtype([("code", "<u8"), ("strength", "<f4"), ("intents", "u1"), ("influential", "?"), ("pad", "<u2")])
_REFERENCE = np.dtype([*_EDGE.descr, ("key", "<u8"), ("citing", "<i4"), ("pad2", "<u4")])


def write_citations(
    folder: Path, parts: Sequence[StagedPart], index: IdIndex, papers: int, work: Path, tally: Tally, *, memory: int
) -> int:
    """All columns of `citations/` and `references_outside/` below `folder`; returns the number of citations."""
    expected = sum(part.citation_count for part in parts)
    bits = max(papers - 1, 1).bit_length()  # a citation's code is citing row, then cited row in so many bits
    inside = Spill(work / "inside", _EDGE, key="code", top=papers << bits, expected=expected, memory=memory)
    outside = Spill(work / "outside", _REFERENCE, key="code", top=2**64, expected=expected, memory=memory)
    for part in parts:
        _resolve_citations(part, index, bits, inside, outside, tally)
    _write_references_outside(folder / "references_outside", outside)
    return _write_citations(folder / "citations", inside, bits, tally)


def _write_citations(folder: Path, spill: Spill, bits: int, tally: Tally) -> int:
    writers = {name: NumberWriter(folder / f"{name}.npy", kind) for name, kind in CITATION_COLUMNS.items()}
    for block in spill.blocks():
        merged = _merge(block)
        tally.unkeep("citations", "same citation given again (merged)", len(block) - len(merged))
        writers["citing"].append(merged["code"] >> np.uint64(bits))
        writers["cited"].append(merged["code"] & np.uint64(2**bits - 1))
        for name in _ATTRIBUTES:
            writers[name].append(merged[name])
    for writer in writers.values():
        writer.close()
    return writers["citing"].count


def _write_references_outside(folder: Path, spill: Spill) -> None:
    """Sorted by a key of the pair, which is as good as any order."""
    writers = {name: NumberWriter(folder / f"{name}.npy", kind) for name, kind in REFERENCE_COLUMNS.items()}
    for block in spill.blocks():
        merged = _merge(block)
        for name, writer in writers.items():
            writer.append(merged[name])
    for writer in writers.values():
        writer.close()


def _resolve_citations(
    part: StagedPart, index: IdIndex, bits: int, inside: Spill, outside: Spill, tally: Tally
) -> None:
    columns = {name: part.citations(name) for name in CITATION_COLUMNS}
    for start in range(0, part.citation_count, STEP):
        block = {name: column[start : start + STEP] for name, column in columns.items()}
        citing, cited = index.rows_of(block["citing"]), index.rows_of(block["cited"])
        good = _account_for_citations(citing, cited, tally)
        edges = np.empty(int(good.sum()), _EDGE)
        edges["code"] = citing[good].astype(np.uint64) << np.uint64(bits) | cited[good].astype(np.uint64)
        leaving = (citing >= 0) & (cited < 0)
        references = np.empty(int(leaving.sum()), _REFERENCE)
        references["citing"], references["key"] = citing[leaving], block["cited"][leaving]
        references["code"] = mix(citing[leaving].astype(np.uint64), block["cited"][leaving])
        for name in _ATTRIBUTES:
            edges[name], references[name] = block[name][good], block[name][leaving]
        inside.add(edges)
        outside.add(references)
        release(*columns.values())


def _account_for_citations(citing: NDArray[np.int32], cited: NDArray[np.int32], tally: Tally) -> NDArray[np.bool_]:
    """Which citations join two different papers of the corpus; the others are counted by reason."""
    unknown_citing, unknown_cited = citing < 0, cited < 0
    itself = ~unknown_citing & (citing == cited)
    tally.unkeep("citations", "citing and cited paper not in the corpus", int((unknown_citing & unknown_cited).sum()))
    tally.unkeep("citations", "citing paper not in the corpus", int((unknown_citing & ~unknown_cited).sum()))
    tally.unkeep("citations", "cited paper not in the corpus", int((unknown_cited & ~unknown_citing).sum()))
    tally.unkeep("citations", "paper cites itself", int(itself.sum()))
    good: NDArray[np.bool_] = ~unknown_citing & ~unknown_cited & ~itself
    return good


def _merge(block: NDArray[np.void]) -> NDArray[np.void]:
    """One record of every code in a block sorted by code."""
    starts = np.flatnonzero(np.concatenate([[True], block["code"][1:] != block["code"][:-1]]))
    merged = block[starts]
    if len(starts) < len(block):
        merged["intents"] = np.bitwise_or.reduceat(block["intents"], starts)
        merged["strength"] = np.maximum.reduceat(block["strength"], starts)
        merged["influential"] = np.logical_or.reduceat(block["influential"], starts)
    return merged
