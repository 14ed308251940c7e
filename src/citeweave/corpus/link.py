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

from citeweave.core.columns import TableWriter, open_numbers, release
from citeweave.core.hash_keys import Keys, hash_spans, mix_keys
from citeweave.core.progress import Tally
from citeweave.core.ragged import owners_of, run_offsets, to_offsets
from citeweave.corpus.corpus import CITATION_COLUMNS, REFERENCE_COLUMNS
from citeweave.corpus.external_sort import CitationCodes, ExternalSort, code_bits
from citeweave.corpus.id_index import IdIndex
from citeweave.corpus.paper import ATTRIBUTES, default_attribute
from citeweave.corpus.staged_parts import NumberRows, StagedPart, numbered_tables

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
    expected, numbered = sum(part.citation_count for part in parts), numbered_tables(parts)
    tables = [table for tables in numbered.values() for table in tables]
    inside: ExternalSort | CitationCodes
    if all(table.is_bare for table in tables) and expected == sum(len(table.citing) for table in tables):
        inside = CitationCodes(work / "codes", papers=papers, expected=expected, memory=memory)
    else:
        top = papers << code_bits(papers)
        inside = ExternalSort(work / "inside", _EDGE, key="code", top=top, expected=expected, memory=memory)
    outside = ExternalSort(work / "outside", _REFERENCE, key="code", top=2**64, expected=expected, memory=memory)
    links = _Links(inside, outside, code_bits(papers), tally)
    for part in parts:
        _link_keyed(part, index, links)
    for prefix, tables in numbered.items():
        top, count = max(table.top for table in tables), sum(len(table.citing) for table in tables)
        rows = NumberRows(index, prefix, top, expected=2 * count, memory=memory)
        for block in (block for table in tables for block in table.blocks()):
            links.add(rows.of(block.citing), rows.of(block.cited), partial(block.keys, "cited"), block.column)
    _write_references_outside(folder / "references_outside", links.outside)
    return _write_citations(folder / "citations", links)


@dataclass(frozen=True, slots=True)
class _Links:
    """Collects linked citations block by block, counts them, and sorts those inside and those that lead outside the corpus."""

    inside: ExternalSort | CitationCodes
    outside: ExternalSort
    bits: int
    tally: Tally

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
    table = TableWriter(folder, CITATION_COLUMNS)
    for codes, attributes in links.blocks():
        table.append(citing=codes >> np.uint64(links.bits), cited=codes & np.uint64(2**links.bits - 1))
        for name in ATTRIBUTES:
            table[name].append(default_attribute(name, len(codes)) if attributes is None else attributes[name])
    table.close()
    return int(table["citing"].count)


def _write_references_outside(folder: Path, sort: ExternalSort) -> None:
    """Write the columns of `references_outside/`, sorted by a key of citing row and cited id."""
    table = TableWriter(folder, REFERENCE_COLUMNS)
    for block in sort.blocks():
        merged = _merge_citations(block)
        table.append(**{name: merged[name] for name in REFERENCE_COLUMNS})
    table.close()


def _link_keyed(part: StagedPart, index: IdIndex, links: _Links) -> None:
    """Link the citations of a staged part that are stored by the keys of ids."""
    columns = {name: part.numbers("citations", name) for name in CITATION_COLUMNS}
    for start in range(0, len(columns["citing"]), CITATION_STEP):
        block = {name: column[start : start + CITATION_STEP] for name, column in columns.items()}
        citing, cited = index.rows_of(block["citing"]), index.rows_of(block["cited"])
        links.add(citing, cited, partial(block.__getitem__, "cited"), block.__getitem__)
        release(*columns.values())


def _count_citations(citing: NDArray[np.int32], cited: NDArray[np.int32], tally: Tally) -> NDArray[np.bool_]:
    """Return which citations link two different papers of the corpus, and count the others by reason."""
    unknown_citing, unknown_cited = citing < 0, cited < 0
    itself = ~unknown_citing & (citing == cited)
    reasons = {
        "citing and cited paper not in the corpus": unknown_citing & unknown_cited,
        "citing paper not in the corpus": unknown_citing & ~unknown_cited,
        "cited paper not in the corpus": unknown_cited & ~unknown_citing,
        "paper cites itself": itself,
    }
    for reason, is_so in reasons.items():
        tally.unkeep("citations", reason, int(is_so.sum()))
    good: NDArray[np.bool_] = ~unknown_citing & ~unknown_cited & ~itself
    return good


def _merge_citations(block: NDArray[np.void]) -> NDArray[np.void]:
    """Merge repeated citations of a block that is sorted by code."""
    starts = run_offsets(block["code"])[:-1]
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

    def numbers(self, name: str) -> NDArray[Any]:
        """Return a column of the contexts of this block."""
        return self.part.numbers("contexts", name)[self.start : self.stop]

    def cited_keys(self) -> Keys:
        """Return the keys of the papers that they cite, one list after the other."""
        return self.part.numbers("contexts", "cited")[self.cited]

    def text_keys(self, name: str) -> Keys:
        """Return the keys of their texts in a column."""
        texts = self.part.texts("contexts", name)
        bounds = texts.offsets[self.start : self.stop + 1]
        keys = hash_spans(texts.data, bounds[:-1], bounds[1:])
        release(texts)
        return keys


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
        counts = part.numbers("contexts", "cited_count")
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
    kinds = {"citing": np.int32, "cited": np.int32, "leader": np.int64, "number": np.int64, "intents": np.uint8}
    table, count = TableWriter(work, kinds), 0
    for block in _blocks(parts):
        citing, cited = index.rows_of(block.numbers("citing")), index.rows_of(block.cited_keys())
        table.append(citing=citing, cited=cited)
        occurrences.add(_occurrences(block, citing, cited, has_papers=len(index.keys) > 0))
    decisions = ExternalSort(work / "plan", _DECISION, key="context", top=total, expected=total, memory=memory)
    for group in occurrences.blocks():
        decisions.add(_decide(group))
    for decided in decisions.blocks():
        first, wanted = decided["leader"] == decided["context"].astype(np.int64), decided["wanted"]
        keep = first & wanted
        tally.unkeep("contexts", "same citing paper and text given again (merged)", int((~first & wanted).sum()))
        tally.unkeep("contexts", "names no paper in the corpus", int((~wanted).sum()))
        numbers = np.where(keep, count + np.cumsum(keep) - 1, -1)
        table.append(leader=decided["leader"], number=numbers, intents=decided["intents"])
        count += int(keep.sum())
    table.close()
    columns = {name: open_numbers(work / f"{name}.npy", kind) for name, kind in kinds.items()}
    return _LinkedContexts(**columns, count=count)


def _occurrences(
    block: _Block, citing_rows: NDArray[np.int32], cited_rows: NDArray[np.int32], *, has_papers: bool
) -> NDArray[np.void]:
    """Return the occurrences of citing sentences in a block, with a key that is equal for repeats.

    Contexts are equal by citing paper, text and extra metadata; one whose citing paper is unknown has a key of its own.
    """
    citing, counts = block.numbers("citing"), block.numbers("cited_count")
    places = np.arange(block.places.start, block.places.stop)
    own = mix_keys(places.astype(np.uint64), places.astype(np.uint64))
    by_text = mix_keys(np.where(citing == 0, own, citing), block.text_keys("text"))
    records = np.empty(len(citing), _OCCURRENCE)
    records["key"] = mix_keys(by_text, block.text_keys("extra"))
    records["context"], records["intents"] = places, block.numbers("intents")
    # wanted are contexts that name a paper of the corpus, or no paper at all
    owner = owners_of(to_offsets(counts))
    cites_known = np.bincount(owner[cited_rows >= 0], minlength=len(counts)) > 0
    names_none = (citing == 0) & (counts == 0)
    records["wanted"] = (citing_rows >= 0) | cites_known | names_none if has_papers else True
    return records


def _decide(group: NDArray[np.void]) -> NDArray[np.void]:
    """Give repeats of a context what they share: the first of them, the union of intents, whether one is wanted."""
    offsets = run_offsets(group["key"])
    starts, sizes = offsets[:-1], np.diff(offsets)
    decisions = np.empty(len(group), _DECISION)
    decisions["context"] = group["context"]
    decisions["leader"] = np.repeat(group["context"][starts], sizes)
    decisions["intents"] = np.repeat(np.bitwise_or.reduceat(group["intents"], starts), sizes)
    decisions["wanted"] = np.repeat(np.logical_or.reduceat(group["wanted"], starts), sizes)
    return decisions


def _write_columns(folder: Path, parts: Sequence[StagedPart], linked: _LinkedContexts) -> None:
    """Write the texts, intents and citing papers of the contexts that are kept."""
    texts = ("text", "section", "extra")
    kinds = {**dict.fromkeys(texts, str), "citing": np.int32, "citing_key": np.uint64, "intents": np.uint8}
    table = TableWriter(folder, kinds)
    for block in _blocks(parts):
        written = np.flatnonzero(linked.number[block.places] >= 0)
        table.append(
            intents=linked.intents[block.places][written],
            citing=linked.citing[block.places][written],
            citing_key=block.numbers("citing")[written],
        )
        for name in texts:
            column = block.part.texts("contexts", name)
            table[name].append_bytes(*column.gather(block.start + written))
            release(column)
    table.close()


def _write_cited(folder: Path, parts: Sequence[StagedPart], linked: _LinkedContexts, work: Path, memory: int) -> None:
    """Write the papers that every context cites: `cited` rows and keys of papers `outside`, each with offsets."""
    expected = sum(len(part.numbers("contexts", "cited")) for part in parts)
    sort = ExternalSort(work / "link", _LINK, key="context", top=linked.count, expected=expected, memory=memory)
    for block in _blocks(parts):
        sort.add(_cited_links(block, linked))
    writer = _LinkWriter(folder)
    for links in sort.blocks():
        writer.append(_distinct_links(links))
    writer.close(linked.count)


def _cited_links(block: _Block, linked: _LinkedContexts) -> NDArray[np.void]:
    """Return the links from the contexts of a block, or those that they repeat, to the papers they cite."""
    context = np.repeat(linked.number[linked.leader[block.places]], block.numbers("cited_count"))
    good = context >= 0
    links = np.empty(int(good.sum()), _LINK)
    links["context"], links["key"] = context[good], block.cited_keys()[good]
    links["cited"] = linked.cited[block.cited_places][good]
    # two ids of one paper in the corpus are one link; papers outside are distinguished by their keys alone
    links["key"][links["cited"] >= 0] = 0
    release(linked.leader, linked.number, linked.cited)
    return links


def _distinct_links(links: NDArray[np.void]) -> NDArray[np.void]:
    """Drop repeated links of a context to a cited paper; links are sorted by context, and most contexts have one."""
    sizes = np.diff(run_offsets(links["context"]))
    several = np.repeat(sizes > 1, sizes)
    if not several.any():
        return links
    some = links[several]
    some = some[np.lexsort((some["key"], some["cited"], some["context"]))]
    differs = np.any([some[name][1:] != some[name][:-1] for name in ("context", "cited", "key")], axis=0)
    keep = np.ones(len(links), np.bool_)
    keep[several] = np.append(True, differs)
    links = links.copy()
    links[several] = some  # still sorted by context: only links of the same context were reordered
    return np.asarray(links[keep])


class _LinkWriter:
    """Writes the cited papers of contexts, sorted by context; contexts without links get empty lists."""

    def __init__(self, folder: Path) -> None:
        kinds = {"cited": np.int32, "outside": np.uint64, "cited_offsets": np.int64, "outside_offsets": np.int64}
        self._table = TableWriter(folder, kinds)
        self._table.append(cited_offsets=[0], outside_offsets=[0])
        self._next = 0

    def append(self, links: NDArray[np.void]) -> None:
        inside = links["cited"] >= 0
        stop = int(links["context"][-1]) + 1
        self._write("cited", stop, links["cited"][inside], links["context"][inside])
        self._write("outside", stop, links["key"][~inside], links["context"][~inside])
        self._next = stop

    def close(self, contexts: int) -> None:
        nothing = np.empty(0, np.int64)
        for name in ("cited", "outside"):
            self._write(name, contexts, nothing, nothing)
        self._table.close()

    def _write(self, name: str, stop: int, values: NDArray[Any], contexts: NDArray[Any]) -> None:
        """Write the cited papers of the contexts up to `stop`, and the ends of their lists."""
        counts = np.bincount(contexts.astype(np.int64) - self._next, minlength=stop - self._next)
        self._table[f"{name}_offsets"].append(self._table[name].count + np.cumsum(counts))
        self._table[name].append(values)
