"""Writes the citations of a corpus: ids become rows, repeats become one, in bounded memory.

They end sorted by citing and cited row. A citation given several times is one: its intents are united,
it is influential if one record says so, and its strength is the largest given, so that importing the
same file twice changes nothing.

References of a paper of the corpus to a paper outside it are no citations, but they are remembered by
the cited id's key (`references_outside/`): an update that brings the cited paper makes them citations,
and papers that share them are coupled.

Writes the contexts of a corpus: ids become rows, one sentence given several times becomes one.

Contexts of one citing paper with equal text are one context that cites the union: Semantic Scholar
repeats a sentence for every paper it cites, and this is how co-citations in one sentence come back.
Contexts of no known citing paper, or with facts of their own (a label, a span), stay apart.

Memory stays bounded however many there are: what has to be known of every context (which one it
repeats, whether it stays) is sorted through files and read back in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import NumberWriter, TextWriter, open_numbers, release
from citeweave.core.progress import Tally
from citeweave.core.randomness import Keys, hash_spans, mix
from citeweave.corpus.corpus import CITATION_COLUMNS, REFERENCE_COLUMNS, IdIndex
from citeweave.corpus.external_sort import ATTRIBUTES, CitationCodes, NumberedTable, NumberRows, Spill, default_of
from citeweave.corpus.staged_parts import StagedPart

LINK_STEP = 1 << 20
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
                for start in range(0, len(codes), LINK_STEP):
                    yield codes[start : start + LINK_STEP], None
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
    for start in range(0, len(columns["citing"]), LINK_STEP):
        block = {name: column[start : start + LINK_STEP] for name, column in columns.items()}
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


# Writes the contexts of a corpus: ids become rows, one sentence given several times becomes one.

STEP = 1 << 18
"""Contexts handled at a time."""

# padded to multiples of eight bytes, which move several times as fast
_SIGHTING = np.dtype([("key", "<u8"), ("context", "<i8"), ("intents", "u1"), ("wanted", "?"), ("pad", "V6")])
_VERDICT = np.dtype([("context", "<u8"), ("leader", "<i8"), ("intents", "u1"), ("wanted", "?"), ("pad", "V6")])
_LINK = np.dtype([("context", "<u8"), ("key", "<u8"), ("cited", "<i4"), ("pad", "<u4")])


@dataclass(frozen=True, slots=True)
class _ContextPlan:
    """What becomes of every staged context; columns on disk, in staged order."""

    leader: NDArray[np.int64]
    """The first staged context with the same citing paper and text."""
    number: NDArray[np.int64]
    """Position in the corpus, -1 for contexts that are not written."""
    intents: NDArray[np.uint8]
    """Intents of the leader and of all its repeats."""
    citing: NDArray[np.int32]
    """Row of the citing paper, -1 outside."""
    cited: NDArray[np.int32]
    """Rows of all cited papers, one list after the other, -1 outside."""
    kept: int


@dataclass(frozen=True, slots=True)
class _Block:
    """A run of staged contexts of one part; `first` is the place of its first one among all."""

    part: StagedPart
    first: int
    start: int
    stop: int
    cited: slice
    """Where the part's flat list of cited keys holds those of this block."""
    first_cited: int
    """Place of the first of them among the cited keys of all parts."""

    @property
    def places(self) -> slice:
        return slice(self.first, self.first + self.stop - self.start)

    @property
    def cited_places(self) -> slice:
        return slice(self.first_cited, self.first_cited + self.cited.stop - self.cited.start)


def write_contexts(
    folder: Path, parts: Sequence[StagedPart], index: IdIndex, work: Path, tally: Tally, *, memory: int
) -> int:
    """All columns of `contexts/`; returns how many there are."""
    plan = _plan(parts, index, work, tally, memory)
    _write_columns(folder, parts, plan)
    _write_links(folder, parts, plan, work, memory)
    return plan.kept


def _blocks(parts: Sequence[StagedPart]) -> Iterator[_Block]:
    first, first_cited = 0, 0
    for part in parts:
        counts = part.context_numbers("cited_count")
        cited = 0
        for start in range(0, len(counts), STEP):
            stop = min(start + STEP, len(counts))
            next_cited = cited + int(counts[start:stop].sum())
            yield _Block(part, first + start, start, stop, slice(cited, next_cited), first_cited + cited)
            cited = next_cited
        first += len(counts)
        first_cited += cited


def _plan(parts: Sequence[StagedPart], index: IdIndex, work: Path, tally: Tally, memory: int) -> _ContextPlan:
    total = sum(part.context_count for part in parts)
    sightings = Spill(work / "text", _SIGHTING, key="key", top=2**64, expected=total, memory=memory)
    rows = {name: NumberWriter(work / f"{name}.npy", np.int32) for name in ("citing", "cited")}
    for block in _blocks(parts):
        citing = index.rows_of(block.part.context_numbers("citing")[block.start : block.stop])
        cited = index.rows_of(block.part.context_numbers("cited")[block.cited])
        rows["citing"].append(citing)
        rows["cited"].append(cited)
        sightings.add(_sightings(block, citing, cited, has_papers=len(index.keys) > 0))
    verdicts = Spill(work / "plan", _VERDICT, key="context", top=total, expected=total, memory=memory)
    for group in sightings.blocks():
        verdicts.add(_verdicts(group))
    kinds = {"leader": np.int64, "number": np.int64, "intents": np.uint8}
    writers = {name: NumberWriter(work / f"{name}.npy", kind) for name, kind in kinds.items()}
    kept = 0
    for verdict in verdicts.blocks():
        first = verdict["leader"] == verdict["context"].astype(np.int64)
        keep = first & verdict["wanted"]
        tally.unkeep(
            "contexts", "same citing paper and text given again (merged)", int((~first & verdict["wanted"]).sum())
        )
        tally.unkeep("contexts", "names no paper of the corpus", int((~verdict["wanted"]).sum()))
        writers["leader"].append(verdict["leader"])
        writers["number"].append(np.where(keep, kept + np.cumsum(keep) - 1, -1))
        writers["intents"].append(verdict["intents"])
        kept += int(keep.sum())
    for writer in (*writers.values(), *rows.values()):
        writer.close()
    leader, number, intents = (open_numbers(work / f"{name}.npy", kind) for name, kind in kinds.items())
    citing, cited = (open_numbers(work / f"{name}.npy", np.int32) for name in rows)
    return _ContextPlan(leader, number, intents, citing, cited, kept)


def _sightings(
    block: _Block, citing_rows: NDArray[np.int32], cited_rows: NDArray[np.int32], *, has_papers: bool
) -> NDArray[np.void]:
    part, here = block.part, slice(block.start, block.stop)
    texts, citing = part.context_texts("text"), part.context_numbers("citing")[here]
    bounds = texts.offsets[block.start : block.stop + 1]
    records = np.empty(len(citing), _SIGHTING)
    records["key"] = _identity(block, citing, hash_spans(texts.data, bounds[:-1], bounds[1:]))
    records["context"] = np.arange(block.first, block.first + len(citing))
    records["intents"] = part.context_numbers("intents")[here]
    records["wanted"] = _wanted(block, citing, citing_rows, cited_rows) if has_papers else True
    release(texts)
    return records


def _identity(block: _Block, citing: NDArray[np.uint64], text: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Equal for contexts that are one: by citing paper, text and extra facts; alone where the citing paper is unknown."""
    extras = block.part.context_texts("extra")
    bounds = extras.offsets[block.start : block.stop + 1]
    place = np.arange(block.first, block.first + len(citing)).astype(np.uint64)
    citing = np.where(citing == 0, mix(place, place), citing)
    return mix(mix(citing, text), hash_spans(extras.data, bounds[:-1], bounds[1:]))


def _wanted(
    block: _Block, citing: NDArray[np.uint64], citing_rows: NDArray[np.int32], cited_rows: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Contexts that name a paper of the corpus, or name none at all."""
    counts = block.part.context_numbers("cited_count")[block.start : block.stop]
    owner = np.repeat(np.arange(len(counts)), counts)
    cites_known = np.bincount(owner[cited_rows >= 0], minlength=len(counts)) > 0
    names_none = (citing == 0) & (counts == 0)
    wanted: NDArray[np.bool_] = (citing_rows >= 0) | cites_known | names_none
    return wanted


def _verdicts(group: NDArray[np.void]) -> NDArray[np.void]:
    """What equal keys share: the first context, the union of intents, whether one of them is wanted."""
    starts = np.flatnonzero(np.concatenate([[True], group["key"][1:] != group["key"][:-1]]))
    sizes = np.diff(np.append(starts, len(group)))
    verdicts = np.empty(len(group), _VERDICT)
    verdicts["context"] = group["context"]
    verdicts["leader"] = np.repeat(group["context"][starts], sizes)
    verdicts["intents"] = np.repeat(np.bitwise_or.reduceat(group["intents"], starts), sizes)
    verdicts["wanted"] = np.repeat(np.logical_or.reduceat(group["wanted"], starts), sizes)
    return verdicts


def _write_columns(folder: Path, parts: Sequence[StagedPart], plan: _ContextPlan) -> None:
    texts = {name: TextWriter(folder, name) for name in ("text", "section", "extra")}
    citing = NumberWriter(folder / "citing.npy", np.int32)
    citing_keys = NumberWriter(folder / "citing_key.npy", np.uint64)
    intents = NumberWriter(folder / "intents.npy", np.uint8)
    for block in _blocks(parts):
        kept = np.flatnonzero(plan.number[block.places] >= 0)
        intents.append(plan.intents[block.places][kept])
        citing.append(plan.citing[block.places][kept])
        citing_keys.append(block.part.context_numbers("citing")[block.start + kept])
        for name, writer in texts.items():
            column = block.part.context_texts(name)
            writer.append_bytes(*column.gather(block.start + kept))
            release(column)
    for numbers in (citing, citing_keys, intents):
        numbers.close()
    for writer in texts.values():
        writer.close()


def _write_links(folder: Path, parts: Sequence[StagedPart], plan: _ContextPlan, work: Path, memory: int) -> None:
    """`cited` rows and keys of cited papers `outside`, each with offsets."""
    expected = sum(len(part.context_numbers("cited")) for part in parts)
    spill = Spill(work / "link", _LINK, key="context", top=plan.kept, expected=expected, memory=memory)
    for block in _blocks(parts):
        spill.add(_links(block, plan))
    writer = _LinkWriter(folder)
    for links in spill.blocks():
        writer.append(_distinct(links))
    writer.close(plan.kept)


def _links(block: _Block, plan: _ContextPlan) -> NDArray[np.void]:
    counts = block.part.context_numbers("cited_count")[block.start : block.stop]
    keys = block.part.context_numbers("cited")[block.cited]
    number = plan.number[plan.leader[block.places]]
    context = np.repeat(number, counts)
    good = context >= 0
    links = np.empty(int(good.sum()), _LINK)
    links["context"], links["key"] = context[good], keys[good]
    links["cited"] = plan.cited[block.cited_places][good]
    # two ids of one known paper are one link; papers outside are told apart by their keys alone
    links["key"][links["cited"] >= 0] = 0
    release(plan.leader, plan.number, plan.cited)
    return links


def _distinct(links: NDArray[np.void]) -> NDArray[np.void]:
    """Every link once; links come sorted by context, and most contexts have one."""
    follows = np.concatenate([[False], links["context"][1:] == links["context"][:-1]])
    several = follows | np.append(follows[1:], False)
    if not several.any():
        return links
    some = links[several]
    some = some[np.lexsort((some["key"], some["cited"], some["context"]))]
    again = np.ones(len(some), np.bool_)
    again[0] = False
    for name in ("context", "cited", "key"):
        again[1:] &= some[name][1:] == some[name][:-1]
    keep = np.ones(len(links), np.bool_)
    keep[several] = ~again
    links = links.copy()
    links[several] = some  # stays sorted by context: only links of one context changed places
    return np.asarray(links[keep])


class _LinkWriter:
    """Writes links that come in order of their context; contexts without links get empty lists."""

    def __init__(self, folder: Path) -> None:
        self._cited = NumberWriter(folder / "cited.npy", np.int32)
        self._outside = NumberWriter(folder / "outside.npy", np.uint64)
        self._offsets = [NumberWriter(folder / f"{name}_offsets.npy", np.int64) for name in ("cited", "outside")]
        self._ends = [0, 0]
        self._next = 0
        for offsets in self._offsets:
            offsets.append([0])

    def append(self, links: NDArray[np.void]) -> None:
        inside = links["cited"] >= 0
        self._cited.append(links["cited"][inside])
        self._outside.append(links["key"][~inside])
        self._write_offsets(int(links["context"][-1]) + 1, links["context"][inside], links["context"][~inside])

    def close(self, contexts: int) -> None:
        nothing = np.empty(0, np.uint64)
        self._write_offsets(contexts, nothing, nothing)
        for writer in (self._cited, self._outside, *self._offsets):
            writer.close()

    def _write_offsets(self, stop: int, *contexts: NDArray[np.uint64]) -> None:
        """Ends of the lists of the contexts from the last one written up to `stop`."""
        size = stop - self._next
        for side, owner in enumerate(contexts):
            counts = np.bincount(owner.astype(np.int64) - self._next, minlength=size)
            ends = self._ends[side] + np.cumsum(counts)
            self._offsets[side].append(ends)
            self._ends[side] = int(ends[-1]) if size else self._ends[side]
        self._next = stop
