"""Staged parts of an import: the records of one input file as columns, before papers are merged and ids linked.

Each input file becomes one part folder, written by streaming in any process and in any order. A part is complete once
its `part.json` exists, so a resumed import reads only the remaining files.

Ids are staged as 64-bit keys (`core/hash_keys.py`); their texts are stored only where `--outside keep` will turn ids
without a record into papers. Citations between numbered ids such as `s2:42` are staged as numbers: 8 bytes where both
fit in 32 bits, 16 bytes otherwise, and nothing for attributes (intents, strength, influential) that no citation has. Keys
and texts of such ids are computed when needed:

    >>> lengths, data = texts_of_numbers("s2:", np.array([7, 42]))
    >>> lengths.tolist(), data.tobytes()
    ([4, 5], b's2:7s2:42')
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from citeweave.core.artifact import seal_payload, unseal_payload
from citeweave.core.columns import TableWriter, TextColumn, open_numbers, release
from citeweave.core.compiled import compiled
from citeweave.core.files import read_input, write_json
from citeweave.core.hash_keys import hash_numbers, hash_texts, write_digits
from citeweave.core.progress import Tally
from citeweave.corpus.corpus import LOCAL, PAPER_NUMBERS, PAPER_TEXTS, STUB, UNKNOWN_COUNT
from citeweave.corpus.id_index import IdIndex
from citeweave.corpus.identity import title_key
from citeweave.corpus.paper import (
    ATTRIBUTES,
    Citation,
    CitationBlock,
    Context,
    ContextBlock,
    NameCollector,
    NumberedCitations,
    NumberedPapers,
    OutsideName,
    Paper,
    StagedRecord,
)
from citeweave.corpus.plain_text import clean_text, number_of

STEP = 1 << 20
"""Citations per block."""

_Link = TypeVar("_Link", Citation, Context)

_FLUSH_EVERY = 8192
_FLUSH_BYTES = 1 << 26
"""Approximate size of buffered texts; a single line of a file may be as large."""

_MAX_NAMED = 1 << 20
"""Citations of a part whose cited ids are staged as texts, to name papers outside the corpus."""

_DONE = "part.json"
_COLUMNS: dict[str, dict[str, Any]] = {
    "papers": {
        **dict.fromkeys(PAPER_TEXTS, str),
        **PAPER_NUMBERS,
        **{"flags": np.uint8, "title_key": np.uint64, "key": np.uint64, "key_row": np.int64},
    },
    "citations": {"citing": np.uint64, "cited": np.uint64, **ATTRIBUTES},
    "contexts": {
        **dict.fromkeys(("text", "section", "extra"), str),
        **{"citing": np.uint64, "intents": np.uint8, "cited_count": np.int64, "cited": np.uint64},
    },
    "cited": {"key": np.uint64, "id": str},
}
"""Folder of a table -> its columns; `key` and `key_row` have one entry per id, `cited` one per cited paper."""

_IDS = {"citing_id": str, "cited_id": str}
"""Further columns of citations whose ids may become papers."""


class PartWriter:
    """Writes the records of one input file into the folder of a staged part."""

    def __init__(self, folder: Path, *, keep_ids: bool) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.folder, self.tally = folder, Tally()
        self._keep_ids = keep_ids
        columns = {**_COLUMNS, "citations": _COLUMNS["citations"] | (_IDS if keep_ids else {})}
        self._tables = {name: TableWriter(folder / name, kinds) for name, kinds in columns.items()}
        self._numbered = _NumberedWriter(folder / "citations")
        self._buffers: dict[type, list[Any]] = {Paper: [], Citation: [], Context: []}
        self._buffered = 0  # characters of texts since the last write
        self._paper_count = 0
        self._unnamed = _MAX_NAMED
        self._local_uses: Counter[str] = Counter()
        self._local_names: dict[str, str] = {}

    def discard(self) -> None:
        """Delete the staged part of an input file that is refused."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, records: Iterable[StagedRecord]) -> None:
        """Stage all records that a reader yields."""
        for record in records:
            match record:
                case Paper():
                    self._buffer(self._with_local_name(record) if record.local_id else record, _text_size(record))
                case Citation():
                    self._buffer(self._from_local_paper(record))
                case Context():
                    self._buffer(self._from_local_paper(record), len(record.text))
                case CitationBlock():
                    self._append_citations(record)
                case ContextBlock():
                    self._append_contexts(record)
                case NumberedCitations():
                    self._numbered.append(record)
                    self.tally.keep("citations", len(record.citing))
                case NumberedPapers():
                    self._append_numbered(record)

    def finish(self, metadata: dict[str, Any]) -> None:
        """Close the columns and write `part.json`, which marks the staged part as complete."""
        self._flush(Paper, Citation, Context)
        for table in self._tables.values():
            table.close()
        self._numbered.close()
        sizes = {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in self.folder.rglob("*.*")}
        payload = {
            **metadata,
            "sizes": sizes,
            "tally": self.tally.as_json(),
            "paper_count": self._paper_count,
            "keyed_count": self._tables["citations"]["citing"].count,
            "context_count": self._tables["contexts"]["citing"].count,
            "numbered": self._numbered.tables,
        }
        write_json(self.folder / _DONE, seal_payload(payload))

    def _buffer(self, record: Paper | Citation | Context, size: int = 0) -> None:
        """Hold a record until there are enough of its kind to be written at once."""
        records = self._buffers[type(record)]
        records.append(record)
        self._buffered += size
        if len(records) >= _FLUSH_EVERY:
            self._flush(type(record))
        if self._buffered > _FLUSH_BYTES:
            self._flush(Paper, Context)
            self._buffered = 0

    def _flush(self, *kinds: type) -> None:
        """Write the buffered records of these kinds to the columns of the staged part."""
        write: dict[type, Callable[[Any], None]] = {
            Paper: self._write_papers,
            Citation: self._write_citations,
            Context: self._write_contexts,
        }
        for kind in kinds:
            records, self._buffers[kind] = self._buffers[kind], []
            if records:
                write[kind](records)

    def _append_numbered(self, block: NumberedPapers) -> None:
        """Stage papers that are known only by numbered ids."""
        self._flush(Paper)
        size, table = len(block.numbers), self._tables["papers"]
        table["id"].append_bytes(*texts_of_numbers(block.prefix, block.numbers))
        for name in PAPER_TEXTS[1:]:
            table[name].append_empty(size)
        table.append(
            year=np.zeros(size) if block.years is None else block.years,
            citation_count=np.full(size, UNKNOWN_COUNT),
            updated=np.zeros(size),
            flags=np.full(size, STUB * block.stub),
            title_key=np.zeros(size),
            key_row=np.arange(self._paper_count, self._paper_count + size),
            key=hash_numbers(block.prefix, block.numbers),
        )
        self._count_papers(size)

    def _write_papers(self, papers: list[Paper]) -> None:
        table = self._tables["papers"]
        for name in ("id", "title", "abstract", "venue", "updated"):
            table[name].append([getattr(paper, name) for paper in papers])
        for name in ("authors", "fields", "ids"):
            table[name].append(["\n".join(getattr(paper, name)) for paper in papers])
        titles = [title_key(paper.title, paper.year) or "" for paper in papers]
        keyed = [(row, id) for row, paper in enumerate(papers, self._paper_count) for id in self._all_ids(paper)]
        table.append(
            extra=[_json_text(paper.extra) for paper in papers],
            year=[paper.year or 0 for paper in papers],
            citation_count=[UNKNOWN_COUNT if p.citation_count is None else p.citation_count for p in papers],
            flags=[LOCAL * paper.local_id + STUB * paper.stub for paper in papers],
            title_key=_keys_or_zero(titles),
            key_row=[row for row, _ in keyed],
            key=hash_texts([id for _, id in keyed]),
        )
        self._count_papers(len(papers))

    def _count_papers(self, size: int) -> None:
        self._paper_count += size
        self.tally.keep("papers", size)

    def _all_ids(self, paper: Paper) -> Iterable[str]:
        """Return the ids by which records of this paper find each other."""
        return dict.fromkeys((self._hidden_id(paper.id) if paper.local_id else paper.id, *paper.ids))

    def _with_local_name(self, paper: Paper) -> Paper:
        """Return a paper under its name in this file; a name that the file uses again is numbered: `smith2020~2`."""
        self._local_uses[paper.id] += 1
        uses = self._local_uses[paper.id]
        name = paper.id if uses == 1 else f"{paper.id}~{uses}"
        self._local_names[paper.id] = self._hidden_id(name)
        if uses > 1:
            self.tally.note("entry key used again in the same file, numbered")
        return replace(paper, id=name)

    def _hidden_id(self, name: str) -> str:
        """Return an id that no other staged part has, by which citations of this file find the paper of a local name."""
        return f"local:{self.folder.name}:{name}"

    def _from_local_paper(self, link: _Link) -> _Link:
        """Return a citation or context with a local citing name replaced by the id of the last paper of that name."""
        hidden = self._local_names.get(link.citing)
        return link if hidden is None else replace(link, citing=hidden)

    def _write_citations(self, citations: list[Citation]) -> None:
        citing, cited = [c.citing for c in citations], [c.cited for c in citations]
        attributes: dict[str, Any] = {
            name: np.array([getattr(citation, name) for citation in citations], kind)
            for name, kind in ATTRIBUTES.items()
        }
        keys = hash_texts(citing), hash_texts(cited)
        self._append_citations(CitationBlock(keys[0], keys[1], **attributes, ids=lambda: (citing, cited)))

    def _append_citations(self, block: CitationBlock) -> None:
        """Stage a block of citations by keys, and the texts of ids where they are needed."""
        table = self._tables["citations"]
        for name in _COLUMNS["citations"]:
            table[name].append(getattr(block, name))
        if self._keep_ids:
            for name, ids in zip(_IDS, block.ids(), strict=True):
                table[name].append(ids)
        elif self._unnamed > 0:  # with `keep_ids`, papers outside become rows and need no names
            self._unnamed -= len(block.cited)
            _, cited = block.ids()
            if cited:  # synthetic and derived citations have keys alone
                keys, first = np.unique(block.cited, return_index=True)
                self._tables["cited"].append(key=keys, id=[cited[at] for at in first.tolist()])
        self.tally.keep("citations", len(block.citing))

    def _write_contexts(self, contexts: list[Context]) -> None:
        parts = [c.text.encode("utf-8", "replace") for c in contexts]
        block = ContextBlock(
            _keys_or_zero([c.citing for c in contexts]),
            (np.array([len(p) for p in parts], np.int64), np.frombuffer(b"".join(parts), np.uint8)),
            np.array([len(c.cited) for c in contexts], np.int64),
            hash_texts([cited for c in contexts for cited in c.cited]),
            np.array([c.intents for c in contexts], np.uint8),
        )
        self._append_contexts(
            block, section=[c.section for c in contexts], extra=[_json_text(c.extra) for c in contexts]
        )

    def _append_contexts(self, block: ContextBlock, **texts: list[str]) -> None:
        """Stage a block of contexts; `section` and `extra` are empty where they are not given."""
        table, size = self._tables["contexts"], len(block.citing)
        table["text"].append_bytes(*block.texts)
        table.append(citing=block.citing, intents=block.intents, cited_count=block.cited_counts, cited=block.cited)
        table.append(**texts)
        for name in ("section", "extra"):
            if name not in texts:
                table[name].append_empty(size)
        self.tally.keep("contexts", size)


class StagedPart(Protocol):
    """What merging and linking read from a staged part: a staged file, or a corpus that is being updated."""

    name: str
    format: str
    tally: Tally
    paper_count: int
    citation_count: int
    """All citations: those stored by keys, in the table `citations`, and those of `numbered`."""

    context_count: int
    distinct: bool
    """Whether its papers share no id with each other or with papers of other parts."""

    def numbered(self) -> list[NumberedTable]: ...
    def offer_names(self, names: NameCollector) -> None: ...
    def texts(self, table: str, name: str) -> TextColumn: ...
    def numbers(self, table: str, name: str) -> NDArray[Any]: ...


class StagedFile:
    """The complete staged part of one input file, opened memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        metadata: dict[str, Any] = json.loads(read_input(folder / _DONE))
        self.tally = Tally.from_json(metadata["tally"])
        self.name, self.format = str(metadata["name"]), str(metadata.get("format", ""))
        self.distinct = bool(metadata.get("distinct", False))
        self._tables: dict[str, dict[str, Any]] = metadata["numbered"]
        self.paper_count, self.context_count = int(metadata["paper_count"]), int(metadata["context_count"])
        self.keyed_count = int(metadata["keyed_count"])
        self.citation_count = self.keyed_count + sum(int(table["count"]) for table in self._tables.values())

    def texts(self, table: str, name: str) -> TextColumn:
        """Open a text column of `papers`, `citations` or `contexts`."""
        return TextColumn(self.folder / table, name)

    def numbers(self, table: str, name: str) -> NDArray[Any]:
        """Open a numeric column of `papers`, `citations` or `contexts`."""
        return open_numbers(self.folder / table / f"{name}.npy", _COLUMNS[table][name])

    def numbered(self) -> list[NumberedTable]:
        """Open the citations between numbered ids."""
        folder = self.folder / "citations"
        return [_open_numbered(folder / name, table["prefix"], table["top"]) for name, table in self._tables.items()]

    def offer_names(self, names: NameCollector) -> None:
        """Offer the cited ids of the staged part as names of papers outside the corpus, where they are texts or numbers."""
        ids = self.texts("cited", "id")
        names.offer(self.numbers("cited", "key"), lambda rows: [OutsideName(id) for id in ids.take(np.array(rows))])
        for block in (block for table in self.numbered() for block in table.blocks()):
            names.offer(block.keys("cited"), block.cited_names)


def is_complete(folder: Path) -> bool:
    """Return whether a staged part was finished and all its files still have their recorded sizes."""
    try:
        sizes = unseal_payload(json.loads(read_input(folder / _DONE)))["sizes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _text_size(paper: Paper) -> int:
    """Return the number of characters in a paper's texts, ignoring lists."""
    others = sum(len(value) for value in paper.extra.values() if isinstance(value, str))
    return len(paper.title) + len(paper.abstract) + others


def _keys_or_zero(texts: list[str]) -> NDArray[np.uint64]:
    """Return the key of every text, 0 for empty ones."""
    return np.where([bool(text) for text in texts], hash_texts(texts), 0).astype(np.uint64)


def _json_text(value: dict[str, object]) -> str:
    """Return an extra object as compact JSON, empty for an empty object; values that JSON cannot hold are left out."""
    if not value:
        return ""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):
        # too deep, a number beyond 64 bits, or half of a surrogate pair
        texts = {clean_text(k): clean_text(v) for k, v in value.items() if isinstance(v, str)}
        numbers = {clean_text(k): v for k, v in value.items() if isinstance(v, bool) or number_of(v) is not None}
        return orjson.dumps({**texts, **numbers}, option=orjson.OPT_SORT_KEYS).decode()


# --- citations between numbered ids ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NumberedTable(NumberedCitations):
    """Numbered citations of a staged part: memory-mapped columns of one length."""

    top: int = 0
    """The largest id number in the table."""

    def blocks(self) -> Iterator[NumberedCitations]:
        """Yield the numbered citations in blocks, releasing the memory of a block before the next one."""
        columns = {name: getattr(self, name) for name in ("citing", "cited", *ATTRIBUTES)}
        columns = {name: column for name, column in columns.items() if column is not None}
        for start in range(0, len(self.citing), STEP):
            block = {name: column[start : start + STEP] for name, column in columns.items()}
            yield NumberedCitations(self.prefix, **block)
            release(*columns.values())


class _NumberedWriter:
    """Writes the numbered citations of a staged part, in tables by size of number, with and without attributes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, TableWriter] = {}
        self.tables: dict[str, dict[str, Any]] = {}
        """Prefix, largest number and count of every table, by its name."""

    def append(self, block: NumberedCitations) -> None:
        """Append a block of numbered citations to the table that fits it."""
        if not len(block.citing):
            return
        top = int(max(block.citing.max(), block.cited.max()))
        name = f"numbers{32 if top < 2**32 else 64}{'' if block.is_bare else '-rich'}"
        kinds = _numbered_columns(name)
        if name not in self._writers:
            self._writers[name] = TableWriter(self._folder / name, kinds)
            self.tables[name] = {"prefix": block.prefix, "top": 0, "count": 0}
        table = self.tables[name]
        assert table["prefix"] == block.prefix, "one file has ids of one kind"
        table["top"] = max(table["top"], top)
        table["count"] += len(block.citing)
        self._writers[name].append(**{column: block.column(column) for column in kinds})

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def _numbered_columns(name: str) -> dict[str, Any]:
    """Return the columns of a table of numbered citations by its name, such as `numbers32-rich`."""
    number = np.uint32 if name.startswith("numbers32") else np.int64
    return {"citing": number, "cited": number, **(ATTRIBUTES if name.endswith("-rich") else {})}


def _open_numbered(folder: Path, prefix: str, top: int) -> NumberedTable:
    """Open a table of numbered citations that `_NumberedWriter` wrote."""
    columns = {
        name: open_numbers(folder / f"{name}.npy", kind) for name, kind in _numbered_columns(folder.name).items()
    }
    return NumberedTable(prefix, top=top, **columns)


def numbered_tables(parts: Sequence[StagedPart]) -> dict[str, list[NumberedTable]]:
    """Return the numbered citations of all parts by the prefix of their ids, sorted."""
    tables: dict[str, list[NumberedTable]] = {}
    for table in (table for part in parts for table in part.numbered()):
        tables.setdefault(table.prefix, []).append(table)
    return dict(sorted(tables.items()))


class NumberRows:
    """Maps numbered ids to rows of papers, by a table of all numbers where it fits in memory, else by the id index."""

    def __init__(self, index: IdIndex, prefix: str, top: int, *, expected: int, memory: int) -> None:
        self._index, self._prefix = index, prefix
        # 4 bytes per number; not worth building where few of the numbers are ever looked up
        self._rows = self._table(top) if 4 * (top + 1) <= memory and top < 4 * expected else None

    def of(self, numbers: NDArray[Any]) -> NDArray[np.int32]:
        """Return the row of the paper with each id number, -1 where there is none."""
        if self._rows is None:
            return self._index.rows_of(hash_numbers(self._prefix, numbers))
        rows: NDArray[np.int32] = self._rows[numbers]
        return rows

    def _table(self, top: int) -> NDArray[np.int32]:
        rows = np.empty(top + 1, np.int32)
        for start in range(0, top + 1, STEP):
            numbers = np.arange(start, min(start + STEP, top + 1))
            rows[start : start + STEP] = self._index.rows_of(hash_numbers(self._prefix, numbers))
        return rows


def texts_of_numbers(prefix: str, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return lengths and bytes of the ids `prefix + str(number)`, ready for `TextWriter.append_bytes`."""
    front = np.frombuffer(prefix.encode(), np.uint8)
    out, lengths = np.empty(len(numbers) * (len(front) + 19), np.uint8), np.empty(len(numbers), np.int64)
    end = _write_numbers(front, np.ascontiguousarray(numbers, np.int64), out, lengths)
    return lengths, out[:end]


@compiled()
def _write_numbers(
    front: NDArray[np.uint8], numbers: NDArray[np.int64], out: NDArray[np.uint8], lengths: NDArray[np.int64]
) -> int:
    """Write the ids of all numbers to `out` one after the other and return the number of bytes."""
    end = 0
    for i in range(len(numbers)):
        start = end
        for at in range(len(front)):
            out[start + at] = front[at]
        end = write_digits(numbers[i], out, start + len(front))
        lengths[i] = end - start
    return end
