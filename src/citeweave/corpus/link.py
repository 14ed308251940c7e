"""Link citations and contexts to rows of papers, merge repeats, and write their columns, in bounded memory.

Citations are sorted by citing and cited row. A repeated citation is written once: with the union of its intents, as
influential if one record says so, and with its largest strength, so that importing a file twice changes nothing.

References of a paper to a paper outside the corpus are not citations, but are stored by the cited id's key
(`references_outside/`): they become citations once an update brings the cited paper, and papers that share them are
coupled.

Contexts of one citing paper with equal text become one context that cites the union: Semantic Scholar repeats a sentence
for every paper that it cites, and this restores the co-citations of the sentence. Contexts without a known citing paper,
or with different extra metadata (a label, a span), stay separate. What must be known about every context (which one it
repeats, whether it is kept) goes through an external sort.
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
from citeweave.core.hash_keys import Keys, hash_spans, mix_keys
from citeweave.core.progress import Tally
from citeweave.corpus.corpus import CITATION_COLUMNS, REFERENCE_COLUMNS, IdIndex
from citeweave.corpus.external_sort import CitationCodes, ExternalSort
from citeweave.corpus.numbered_citations import ATTRIBUTES, NumberedTable, NumberRows, default_of
from citeweave.corpus.staged_parts import StagedPart

CITATION_STEP = 1 << 20
"""Citations per block."""

CONTEXT_STEP = 1 << 18
"""Contexts per block."""

_AGAIN = "same citation given again (merged)"
# records are padded to multiples of eight bytes, which are several times as fast to move
_EDGE = np.dtype([("code", "<u8"), ("strength", "<f4"), ("intents", "u1"), ("influential", "?"), ("pad", "<u2")])
_REFERENCE = np.dtype([*_EDGE.descr, ("key", "<u8"), ("citing", "<i4"), ("pad2", "<u4")])
_OCCURRENCE = np.dtype([("key", "<u8"), ("context", "<i8"), ("intents", "u1"), ("wanted", "?"), ("pad", "V6")])
_DECISION = np.dtype([("context", "<u8"), ("leader", "<i8"), ("intents", "u1"), ("wanted", "?"), ("pad", "V6")])
_LINK = np.dtype([("context", "<u8"), ("key", "<u8"), ("cited", "<i4"), ("pad", "<u4")])


def write_citations(
    folder: Path, parts: Sequence[StagedPart], index: IdIndex, papers: int, work: Path, tally: Tally, *, memory: int
) -> int:
    """Link the staged citations to rows and write `citations/` and `references_outside/`; return the number of citations."""
    expected = sum(part.citation_count for part in parts)
    if all(_is_bare(part) for part in parts):
        codes = CitationCodes(work / "codes", papers=papers, expected=expected, memory=memory)
        links = _Links(codes, codes.bits, work, expected, tally, memory)
    else:
        bits = max(
            papers - 1, 1
        ).bit_length()  # a citation's code is its citing row, then its cited row in this many bits
        sort = ExternalSort(work / "inside", _EDGE, key="code", top=papers << bits, expected=expected, memory=memory)
        links = _Links(sort, bits, work, expected, tally, memory)
    for part in parts:
        _link_keyed(part, index, links)
    for prefix in sorted({table.prefix for part in parts for table in part.numbered()}):
        tables = [table for part in parts for table in part.numbered() if table.prefix == prefix]
        top, count = max(table.top for table in tables), sum(len(table) for table in tables)
        _link_numbered(tables, NumberRows(index, prefix, top, expected=2 * count, memory=memory), links)
    _write_references_outside(folder / "references_outside", links.outside)
    return _write_citations(folder / "citations", links)


def _is_bare(part: StagedPart) -> bool:
    """Return whether the citations of a staged part are all numbered and without attributes."""
    tables = part.numbered()
    return part.citation_count == sum(len(table) for table in tables) and not any(table.attributes for table in tables)


class _Links:
    """Collects linked citations block by block, counts them, and sorts those inside and those that lead outside the corpus."""

    def __init__(
        self, inside: ExternalSort | CitationCodes, bits: int, work: Path, expected: int, tally: Tally, memory: int
    ) -> None:
        self.inside, self.bits, self.tally = inside, bits, tally
        self.outside = ExternalSort(
            work / "outside", _REFERENCE, key="code", top=2**64, expected=expected, memory=memory
        )

    def add(
        self,
        citing: NDArray[np.int32],
        cited: NDArray[np.int32],
        keys: Callable[[], Keys],
        attribute: Callable[[str], NDArray[Any]],
    ) -> None:
        """Link a block of citations by row, -1 outside; `keys` returns the keys of cited ids, `attribute` a column of the block."""
        good = _count_citations(citing, cited, self.tally)
        codes = citing[good].astype(np.uint64) << np.uint64(self.bits) | cited[good].astype(np.uint64)
        if isinstance(self.inside, CitationCodes):
            self.inside.add(codes)
        else:
            edges = np.empty(len(codes), _EDGE)
            edges["code"] = codes
            for name in ATTRIBUTES:
                edges[name] = attribute(name)[good]
            self.inside.add(edges)
        leaving = (citing >= 0) & (cited < 0)
        if leaving.any():
            references = np.empty(int(leaving.sum()), _REFERENCE)
            references["citing"], references["key"] = citing[leaving], keys()[leaving]
            references["code"] = mix_keys(references["citing"].astype(np.uint64), references["key"])
            for name in ATTRIBUTES:
                references[name] = attribute(name)[leaving]
            self.outside.add(references)

    def blocks(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.void] | None]]:
        """Yield every linked citation once, ascending: its code, and its attributes (None where no citation has any)."""
        if isinstance(self.inside, CitationCodes):
            for codes in self.inside.blocks():
                for start in range(0, len(codes), CITATION_STEP):
                    yield codes[start : start + CITATION_STEP], None
            self.tally.unkeep("citations", _AGAIN, self.inside.repeats)
            return
        for block in self.inside.blocks():
            merged = _merge_citations(block)
            self.tally.unkeep("citations", _AGAIN, len(block) - len(merged))
            yield merged["code"], merged


def _write_citations(folder: Path, links: _Links) -> int:
    """Write the columns of `citations/` and return their number."""
    writers = {name: NumberWriter(folder / f"{name}.npy", kind) for name, kind in CITATION_COLUMNS.items()}
    for codes, attributes in links.blocks():
        writers["citing"].append(codes >> np.uint64(links.bits))
        writers["cited"].append(codes & np.uint64(2**links.bits - 1))
        for name in ATTRIBUTES:
            writers[name].append(default_of(name, len(codes)) if attributes is None else attributes[name])
    for writer in writers.values():
        writer.close()
    return writers["citing"].count


def _write_references_outside(folder: Path, sort: ExternalSort) -> None:
    """Write the columns of `references_outside/`, sorted by a key of citing row and cited id."""
    writers = {name: NumberWriter(folder / f"{name}.npy", kind) for name, kind in REFERENCE_COLUMNS.items()}
    for block in sort.blocks():
        merged = _merge_citations(block)
        for name, writer in writers.items():
            writer.append(merged[name])
    for writer in writers.values():
        writer.close()


def _link_keyed(part: StagedPart, index: IdIndex, links: _Links) -> None:
    """Link the citations of a staged part that are stored by the keys of ids."""
    columns = {name: part.citations(name) for name in CITATION_COLUMNS}
    for start in range(0, len(columns["citing"]), CITATION_STEP):
        block = {name: column[start : start + CITATION_STEP] for name, column in columns.items()}
        citing, cited = index.rows_of(block["citing"]), index.rows_of(block["cited"])
        links.add(citing, cited, partial(block.__getitem__, "cited"), block.__getitem__)
        release(*columns.values())


def _link_numbered(tables: Sequence[NumberedTable], rows: NumberRows, links: _Links) -> None:
    """Link the citations of staged parts that are stored by the numbers of ids."""
    for block in (block for table in tables for block in table.blocks()):
        links.add(rows.of(block.citing), rows.of(block.cited), block.cited_keys, block.attribute)


def _count_citations(citing: NDArray[np.int32], cited: NDArray[np.int32], tally: Tally) -> NDArray[np.bool_]:
    """Return which citations link two different papers of the corpus, and count the others by reason."""
    unknown_citing, unknown_cited = citing < 0, cited < 0
    itself = ~unknown_citing & (citing == cited)
    tally.unkeep("citations", "citing and cited paper not in the corpus", int((unknown_citing & unknown_cited).sum()))
    tally.unkeep("citations", "citing paper not in the corpus", int((unknown_citing & ~unknown_cited).sum()))
    tally.unkeep("citations", "cited paper not in the corpus", int((unknown_cited & ~unknown_citing).sum()))
    tally.unkeep("citations", "paper cites itself", int(itself.sum()))
    good: NDArray[np.bool_] = ~unknown_citing & ~unknown_cited & ~itself
    return good


def _merge_citations(block: NDArray[np.void]) -> NDArray[np.void]:
    """Merge repeated citations of a block that is sorted by code."""
    starts = np.flatnonzero(np.concatenate([[True], block["code"][1:] != block["code"][:-1]]))
    merged = block[starts]
    if len(starts) < len(block):
        merged["intents"] = np.bitwise_or.reduceat(block["intents"], starts)
        merged["strength"] = np.maximum.reduceat(block["strength"], starts)
        merged["influential"] = np.logical_or.reduceat(block["influential"], starts)
    return merged


# --- contexts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LinkedContexts:
    """The number that every staged context gets in the corpus, and the rows it links to; columns in staged order."""

    leader: NDArray[np.int64]
    """The first staged context with the same citing paper and text."""
    number: NDArray[np.int64]
    """Position in the corpus, -1 for contexts that are not written."""
    intents: NDArray[np.uint8]
    """Intents of the leader and of all its repeats."""
    citing: NDArray[np.int32]
    """Row of the citing paper, -1 outside the corpus."""
    cited: NDArray[np.int32]
    """Rows of all cited papers, one list after the other, -1 outside the corpus."""
    count: int
    """Contexts that are written to the corpus."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A run of staged contexts of one part; `first` is the position of its first one among all."""

    part: StagedPart
    first: int
    start: int
    stop: int
    cited: slice
    """Positions of this block in the part's flat list of cited keys."""
    first_cited: int
    """Position of the first of them among the cited keys of all parts."""

    @property
    def places(self) -> slice:
        return slice(self.first, self.first + self.stop - self.start)

    @property
    def cited_places(self) -> slice:
        return slice(self.first_cited, self.first_cited + self.cited.stop - self.cited.start)


def write_contexts(
    folder: Path, parts: Sequence[StagedPart], index: IdIndex, work: Path, tally: Tally, *, memory: int
) -> int:
    """Link the staged contexts to rows, merge repeated sentences, and write `contexts/`; return their number."""
    linked = _link_contexts(parts, index, work, tally, memory)
    _write_columns(folder, parts, linked)
    _write_cited(folder, parts, linked, work, memory)
    return linked.count


def _blocks(parts: Sequence[StagedPart]) -> Iterator[_Block]:
    """Yield the staged contexts of all parts in blocks."""
    first, first_cited = 0, 0
    for part in parts:
        counts = part.context_numbers("cited_count")
        cited = 0
        for start in range(0, len(counts), CONTEXT_STEP):
            stop = min(start + CONTEXT_STEP, len(counts))
            next_cited = cited + int(counts[start:stop].sum())
            yield _Block(part, first + start, start, stop, slice(cited, next_cited), first_cited + cited)
            cited = next_cited
        first += len(counts)
        first_cited += cited


def _link_contexts(
    parts: Sequence[StagedPart], index: IdIndex, work: Path, tally: Tally, memory: int
) -> _LinkedContexts:
    """Link every staged context to rows, find its repeats, and number the contexts that are kept."""
    total = sum(part.context_count for part in parts)
    occurrences = ExternalSort(work / "text", _OCCURRENCE, key="key", top=2**64, expected=total, memory=memory)
    rows = {name: NumberWriter(work / f"{name}.npy", np.int32) for name in ("citing", "cited")}
    for block in _blocks(parts):
        citing = index.rows_of(block.part.context_numbers("citing")[block.start : block.stop])
        cited = index.rows_of(block.part.context_numbers("cited")[block.cited])
        rows["citing"].append(citing)
        rows["cited"].append(cited)
        occurrences.add(_occurrences(block, citing, cited, has_papers=len(index.keys) > 0))
    decisions = ExternalSort(work / "plan", _DECISION, key="context", top=total, expected=total, memory=memory)
    for group in occurrences.blocks():
        decisions.add(_decide(group))
    kinds = {"leader": np.int64, "number": np.int64, "intents": np.uint8}
    writers = {name: NumberWriter(work / f"{name}.npy", kind) for name, kind in kinds.items()}
    count = 0
    for decided in decisions.blocks():
        first, wanted = decided["leader"] == decided["context"].astype(np.int64), decided["wanted"]
        keep = first & wanted
        tally.unkeep("contexts", "same citing paper and text given again (merged)", int((~first & wanted).sum()))
        tally.unkeep("contexts", "names no paper in the corpus", int((~wanted).sum()))
        writers["leader"].append(decided["leader"])
        writers["number"].append(np.where(keep, count + np.cumsum(keep) - 1, -1))
        writers["intents"].append(decided["intents"])
        count += int(keep.sum())
    for writer in (*writers.values(), *rows.values()):
        writer.close()
    leader, number, intents = (open_numbers(work / f"{name}.npy", kind) for name, kind in kinds.items())
    citing, cited = (open_numbers(work / f"{name}.npy", np.int32) for name in rows)
    return _LinkedContexts(leader, number, intents, citing, cited, count)


def _occurrences(
    block: _Block, citing_rows: NDArray[np.int32], cited_rows: NDArray[np.int32], *, has_papers: bool
) -> NDArray[np.void]:
    """Return the occurrences of citing sentences in a block, with a key that is equal for repeats."""
    part, here = block.part, slice(block.start, block.stop)
    texts, citing = part.context_texts("text"), part.context_numbers("citing")[here]
    bounds = texts.offsets[block.start : block.stop + 1]
    records = np.empty(len(citing), _OCCURRENCE)
    records["key"] = _context_keys(block, citing, hash_spans(texts.data, bounds[:-1], bounds[1:]))
    records["context"] = np.arange(block.first, block.first + len(citing))
    records["intents"] = part.context_numbers("intents")[here]
    records["wanted"] = _wanted(block, citing, citing_rows, cited_rows) if has_papers else True
    release(texts)
    return records


def _context_keys(block: _Block, citing: NDArray[np.uint64], text: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return keys that are equal for repeats of a context: by citing paper, text and extra metadata.

    A context whose citing paper is unknown has a key of its own.
    """
    extras = block.part.context_texts("extra")
    bounds = extras.offsets[block.start : block.stop + 1]
    place = np.arange(block.first, block.first + len(citing)).astype(np.uint64)
    citing = np.where(citing == 0, mix_keys(place, place), citing)
    return mix_keys(mix_keys(citing, text), hash_spans(extras.data, bounds[:-1], bounds[1:]))


def _wanted(
    block: _Block, citing: NDArray[np.uint64], citing_rows: NDArray[np.int32], cited_rows: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return which contexts name a paper of the corpus, or name no paper at all."""
    counts = block.part.context_numbers("cited_count")[block.start : block.stop]
    owner = np.repeat(np.arange(len(counts)), counts)
    cites_known = np.bincount(owner[cited_rows >= 0], minlength=len(counts)) > 0
    names_none = (citing == 0) & (counts == 0)
    wanted: NDArray[np.bool_] = (citing_rows >= 0) | cites_known | names_none
    return wanted


def _decide(group: NDArray[np.void]) -> NDArray[np.void]:
    """Give repeats of a context what they share: the first of them, the union of intents, whether one is wanted."""
    starts = np.flatnonzero(np.concatenate([[True], group["key"][1:] != group["key"][:-1]]))
    sizes = np.diff(np.append(starts, len(group)))
    decisions = np.empty(len(group), _DECISION)
    decisions["context"] = group["context"]
    decisions["leader"] = np.repeat(group["context"][starts], sizes)
    decisions["intents"] = np.repeat(np.bitwise_or.reduceat(group["intents"], starts), sizes)
    decisions["wanted"] = np.repeat(np.logical_or.reduceat(group["wanted"], starts), sizes)
    return decisions


def _write_columns(folder: Path, parts: Sequence[StagedPart], linked: _LinkedContexts) -> None:
    """Write the texts, intents and citing papers of the contexts that are kept."""
    texts = {name: TextWriter(folder, name) for name in ("text", "section", "extra")}
    citing = NumberWriter(folder / "citing.npy", np.int32)
    citing_keys = NumberWriter(folder / "citing_key.npy", np.uint64)
    intents = NumberWriter(folder / "intents.npy", np.uint8)
    for block in _blocks(parts):
        written = np.flatnonzero(linked.number[block.places] >= 0)
        intents.append(linked.intents[block.places][written])
        citing.append(linked.citing[block.places][written])
        citing_keys.append(block.part.context_numbers("citing")[block.start + written])
        for name, writer in texts.items():
            column = block.part.context_texts(name)
            writer.append_bytes(*column.gather(block.start + written))
            release(column)
    for numbers in (citing, citing_keys, intents):
        numbers.close()
    for writer in texts.values():
        writer.close()


def _write_cited(folder: Path, parts: Sequence[StagedPart], linked: _LinkedContexts, work: Path, memory: int) -> None:
    """Write the papers that every context cites: `cited` rows and keys of papers `outside`, each with offsets."""
    expected = sum(len(part.context_numbers("cited")) for part in parts)
    sort = ExternalSort(work / "link", _LINK, key="context", top=linked.count, expected=expected, memory=memory)
    for block in _blocks(parts):
        sort.add(_cited_links(block, linked))
    writer = _LinkWriter(folder)
    for links in sort.blocks():
        writer.append(_distinct_links(links))
    writer.close(linked.count)


def _cited_links(block: _Block, linked: _LinkedContexts) -> NDArray[np.void]:
    """Return the links from the contexts of a block, or those that they repeat, to the papers they cite."""
    counts = block.part.context_numbers("cited_count")[block.start : block.stop]
    keys = block.part.context_numbers("cited")[block.cited]
    number = linked.number[linked.leader[block.places]]
    context = np.repeat(number, counts)
    good = context >= 0
    links = np.empty(int(good.sum()), _LINK)
    links["context"], links["key"] = context[good], keys[good]
    links["cited"] = linked.cited[block.cited_places][good]
    # two ids of one paper in the corpus are one link; papers outside are distinguished by their keys alone
    links["key"][links["cited"] >= 0] = 0
    release(linked.leader, linked.number, linked.cited)
    return links


def _distinct_links(links: NDArray[np.void]) -> NDArray[np.void]:
    """Drop repeated links of a context to a cited paper; links are sorted by context, and most contexts have one."""
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
    links[several] = some  # still sorted by context: only links of the same context were reordered
    return np.asarray(links[keep])


class _LinkWriter:
    """Writes the cited papers of contexts, sorted by context; contexts without links get empty lists."""

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
        """Write the ends of the lists of cited papers for the contexts up to `stop`."""
        size = stop - self._next
        for side, owner in enumerate(contexts):
            counts = np.bincount(owner.astype(np.int64) - self._next, minlength=size)
            ends = self._ends[side] + np.cumsum(counts)
            self._offsets[side].append(ends)
            self._ends[side] = int(ends[-1]) if size else self._ends[side]
        self._next = stop
