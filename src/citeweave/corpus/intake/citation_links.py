"""Writes the citations of a corpus: ids become rows, repeats become one, in bounded memory.

They end sorted by citing and cited row. A citation given several times is one: its intents are united,
it is influential if one record says so, and its strength is the largest given, so that importing the
same file twice changes nothing.

References of a paper of the corpus to a paper outside it are no citations, but they are remembered by
the cited id's key (`references_outside/`): an update that brings the cited paper makes them citations,
and papers that share them are coupled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import NumberWriter, release
from citeweave.corpus.index import IdIndex
from citeweave.corpus.intake.citation_codes import CitationCodes
from citeweave.corpus.intake.numbered import ATTRIBUTES, NumberedTable, NumberRows, default_of
from citeweave.corpus.intake.spill import Spill
from citeweave.corpus.intake.staging import StagedPart
from citeweave.corpus.layout import CITATION_COLUMNS, REFERENCE_COLUMNS
from citeweave.hashing import Keys, mix
from citeweave.tally import Tally

STEP = 1 << 20
"""Citations handled at a time."""

_AGAIN = "same citation given again (merged)"
_Facts = Callable[[str], NDArray[Any]]
# padded to multiples of eight bytes, which move several times as fast
_EDGE = np.dtype([("code", "<u8"), ("strength", "<f4"), ("intents", "u1"), ("influential", "?"), ("pad", "<u2")])
_REFERENCE = np.dtype([*_EDGE.descr, ("key", "<u8"), ("citing", "<i4"), ("pad2", "<u4")])


def write_citations(
    folder: Path, parts: Sequence[StagedPart], index: IdIndex, papers: int, work: Path, tally: Tally, *, memory: int
) -> int:
    """All columns of `citations/` and `references_outside/` below `folder`; returns the number of citations."""
    expected = sum(part.citation_count for part in parts)
    if all(_is_bare(part) for part in parts):
        codes = CitationCodes(work / "codes", papers=papers, expected=expected, memory=memory)
        links = _Links(codes, codes.bits, work, expected, tally, memory)
    else:
        bits = max(papers - 1, 1).bit_length()  # a citation's code is citing row, then cited row in so many bits
        spill = Spill(work / "inside", _EDGE, key="code", top=papers << bits, expected=expected, memory=memory)
        links = _Links(spill, bits, work, expected, tally, memory)
    for part in parts:
        _resolve_keyed(part, index, links)
    for prefix in sorted({table.prefix for part in parts for table in part.numbered()}):
        tables = [table for part in parts for table in part.numbered() if table.prefix == prefix]
        top, count = max(table.top for table in tables), sum(len(table) for table in tables)
        _resolve_numbered(tables, NumberRows(index, prefix, top, expected=2 * count, memory=memory), links)
    _write_references_outside(folder / "references_outside", links.outside)
    return _write_citations(folder / "citations", links)


def _is_bare(part: StagedPart) -> bool:
    """Whether all that a part says of its citations is who cites whom."""
    tables = part.numbered()
    return part.citation_count == sum(len(table) for table in tables) and not any(table.attributes for table in tables)


class _Links:
    """Takes citations as rows, block by block: accounts for them, and sorts those inside and those that lead out."""

    def __init__(
        self, inside: Spill | CitationCodes, bits: int, work: Path, expected: int, tally: Tally, memory: int
    ) -> None:
        self.inside, self.bits, self.tally = inside, bits, tally
        self.outside = Spill(work / "outside", _REFERENCE, key="code", top=2**64, expected=expected, memory=memory)

    def add(self, citing: NDArray[np.int32], cited: NDArray[np.int32], keys: Callable[[], Keys], facts: _Facts) -> None:
        """Rows of the papers, -1 outside; `keys` gives those of the cited ids, `facts` an attribute of the block."""
        good = _account_for_citations(citing, cited, self.tally)
        codes = citing[good].astype(np.uint64) << np.uint64(self.bits) | cited[good].astype(np.uint64)
        if isinstance(self.inside, CitationCodes):
            self.inside.add(codes)
        else:
            edges = np.empty(len(codes), _EDGE)
            edges["code"] = codes
            for name in ATTRIBUTES:
                edges[name] = facts(name)[good]
            self.inside.add(edges)
        leaving = (citing >= 0) & (cited < 0)
        if leaving.any():
            references = np.empty(int(leaving.sum()), _REFERENCE)
            references["citing"], references["key"] = citing[leaving], keys()[leaving]
            references["code"] = mix(references["citing"].astype(np.uint64), references["key"])
            for name in ATTRIBUTES:
                references[name] = facts(name)[leaving]
            self.outside.add(references)

    def blocks(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.void] | None]]:
        """Every citation once, ascending: its code, and what else is known of it, None for nothing."""
        if isinstance(self.inside, CitationCodes):
            for codes in self.inside.blocks():
                for start in range(0, len(codes), STEP):
                    yield codes[start : start + STEP], None
            self.tally.unkeep("citations", _AGAIN, self.inside.repeats)
            return
        for block in self.inside.blocks():
            merged = _merge(block)
            self.tally.unkeep("citations", _AGAIN, len(block) - len(merged))
            yield merged["code"], merged


def _write_citations(folder: Path, links: _Links) -> int:
    writers = {name: NumberWriter(folder / f"{name}.npy", kind) for name, kind in CITATION_COLUMNS.items()}
    for codes, known in links.blocks():
        writers["citing"].append(codes >> np.uint64(links.bits))
        writers["cited"].append(codes & np.uint64(2**links.bits - 1))
        for name in ATTRIBUTES:
            writers[name].append(default_of(name, len(codes)) if known is None else known[name])
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


def _resolve_keyed(part: StagedPart, index: IdIndex, links: _Links) -> None:
    columns = {name: part.citations(name) for name in CITATION_COLUMNS}
    for start in range(0, len(columns["citing"]), STEP):
        block = {name: column[start : start + STEP] for name, column in columns.items()}
        citing, cited = index.rows_of(block["citing"]), index.rows_of(block["cited"])
        links.add(citing, cited, partial(block.__getitem__, "cited"), block.__getitem__)
        release(*columns.values())


def _resolve_numbered(tables: Sequence[NumberedTable], rows: NumberRows, links: _Links) -> None:
    for block in (block for table in tables for block in table.blocks()):
        links.add(rows.of(block.citing), rows.of(block.cited), block.cited_keys, block.attribute)


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
