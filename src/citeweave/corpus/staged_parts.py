"""Staged parts of an import: the records of one input file as columns, before papers are merged and ids linked.

Each input file becomes one part folder, written by streaming in any process and in any order. A part is complete once
its `part.json` exists, so a resumed import reads only the remaining files.

Ids are staged as 64-bit keys (`core/randomness.py`); their texts are stored only where `--outside keep` will turn ids
without a record into papers. Ids that are numbers are staged as numbers (`numbered_citations.py`).
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from citeweave.core.artifact import seal_payload, unseal_payload
from citeweave.core.columns import NumberWriter, TextColumn, TextWriter, open_numbers
from citeweave.core.files import read_input, write_json
from citeweave.core.hash_keys import hash_numbers, hash_texts
from citeweave.core.progress import Tally
from citeweave.corpus.corpus import LOCAL, PAPER_NUMBERS, PAPER_TEXTS, STUB, UNKNOWN_COUNT
from citeweave.corpus.identity import title_key
from citeweave.corpus.numbered_citations import NumberedTable, NumberedWriter, open_tables, texts_of_numbers
from citeweave.corpus.paper import (
    Citation,
    CitationBlock,
    CitedIds,
    Context,
    ContextBlock,
    NameCollector,
    NumberedCitations,
    NumberedPapers,
    Paper,
    StagedRecord,
    offer_cited_ids,
)
from citeweave.corpus.plain_text import clean_text, number_of

_Link = TypeVar("_Link", Citation, Context)

_FLUSH_EVERY = 8192
_FLUSH_BYTES = 1 << 26
"""Approximate size of buffered texts; a single line of a file may be as large."""

_DONE = "part.json"


class PartWriter:
    """Writes the records of one input file into the folder of a staged part."""

    def __init__(self, folder: Path, *, keep_ids: bool) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.folder = folder
        self._keep_ids = keep_ids
        self.tally = Tally()
        self._papers: list[Paper] = []
        self._citations: list[Citation] = []
        self._contexts: list[Context] = []
        papers, citations, contexts = folder / "papers", folder / "citations", folder / "contexts"
        self._paper_texts = {name: TextWriter(papers, name) for name in PAPER_TEXTS}
        self._paper_numbers = {name: NumberWriter(papers / f"{name}.npy", kind) for name, kind in PAPER_NUMBERS.items()}
        self._flags = NumberWriter(papers / "flags.npy", np.uint8)
        self._title_keys = NumberWriter(papers / "title_key.npy", np.uint64)
        self._key_rows = NumberWriter(papers / "key_row.npy", np.int64)
        self._keys = NumberWriter(papers / "key.npy", np.uint64)
        self._edges = {name: NumberWriter(citations / f"{name}.npy", kind) for name, kind in _EDGE_COLUMNS.items()}
        self._edge_ids = {n: TextWriter(citations, n) for n in ("citing_id", "cited_id")} if keep_ids else {}
        self._numbered = NumberedWriter(citations)
        self._context_texts = {name: TextWriter(contexts, name) for name in ("text", "section", "extra")}
        self._context_numbers = {
            name: NumberWriter(contexts / f"{name}.npy", kind) for name, kind in _CONTEXT_COLUMNS.items()
        }
        self._context_cited = NumberWriter(contexts / "cited.npy", np.uint64)
        self._cited_ids = CitedIds(folder / "cited")
        self._paper_count = 0
        self._buffered = 0  # characters of texts since the last write
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
                    self._papers.append(self._with_local_name(record) if record.local_id else record)
                    self._buffered += _text_size(record)
                    if len(self._papers) >= _FLUSH_EVERY:
                        self._flush_papers()
                case Citation():
                    self._citations.append(self._from_local_paper(record))
                    if len(self._citations) >= _FLUSH_EVERY:
                        self._flush_citations()
                case Context():
                    self._contexts.append(self._from_local_paper(record))
                    self._buffered += len(record.text)
                    if len(self._contexts) >= _FLUSH_EVERY:
                        self._flush_contexts()
                case CitationBlock():
                    self._append_citations(record)
                case ContextBlock():
                    self._append_contexts(record)
                case NumberedCitations():
                    self._numbered.append(record)
                    self.tally.keep("citations", len(record.citing))
                case NumberedPapers():
                    self._append_numbered(record)
            self._flush_large()

    def finish(self, metadata: dict[str, Any]) -> None:
        """Close the columns and write `part.json`, which marks the staged part as complete."""
        self._flush_papers()
        self._flush_citations()
        self._flush_contexts()
        tables = (self._paper_texts, self._paper_numbers, self._edges, self._edge_ids)
        writers: list[NumberWriter | TextWriter] = [w for table in tables for w in table.values()]
        writers += [*self._context_texts.values(), *self._context_numbers.values(), self._context_cited]
        for writer in [*writers, self._flags, self._title_keys, self._key_rows, self._keys]:
            writer.close()
        self._numbered.close()
        self._cited_ids.close()
        sizes = {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in self.folder.rglob("*.*")}
        payload = {
            **metadata,
            "sizes": sizes,
            "tally": self.tally.as_json(),
            "paper_count": self._paper_count,
            "keyed_count": self._edges["citing"].count,
            "context_count": self._context_numbers["citing"].count,
            "numbered": self._numbered.tables,
        }
        write_json(self.folder / _DONE, seal_payload(payload))

    def _append_numbered(self, block: NumberedPapers) -> None:
        """Stage papers that are known only by numbered ids."""
        self._flush_papers()
        size = len(block.numbers)
        self._paper_texts["id"].append_bytes(*texts_of_numbers(block.prefix, block.numbers))
        for name in PAPER_TEXTS[1:]:
            self._paper_texts[name].append_empty(size)
        self._paper_numbers["year"].append(np.zeros(size, np.int16) if block.years is None else block.years)
        self._paper_numbers["citation_count"].append(np.full(size, UNKNOWN_COUNT))
        self._paper_numbers["updated"].append(np.zeros(size, np.int32))
        self._flags.append(np.full(size, STUB * block.stub))
        self._title_keys.append(np.zeros(size, np.uint64))
        self._key_rows.append(np.arange(self._paper_count, self._paper_count + size))
        self._keys.append(hash_numbers(block.prefix, block.numbers))
        self._paper_count += size
        self.tally.keep("papers", size)

    def _flush_large(self) -> None:
        if self._buffered > _FLUSH_BYTES:
            self._flush_papers()
            self._flush_contexts()
            self._buffered = 0

    def _flush_papers(self) -> None:
        """Write the buffered papers to the columns of the staged part."""
        papers, self._papers = self._papers, []
        if not papers:
            return
        for name in ("id", "title", "abstract", "venue"):
            self._paper_texts[name].append([getattr(p, name) for p in papers])
        for name in ("authors", "fields", "ids"):
            self._paper_texts[name].append(["\n".join(getattr(p, name)) for p in papers])
        self._paper_texts["extra"].append([_json_text(p.extra) for p in papers])
        self._paper_numbers["year"].append([p.year or 0 for p in papers])
        counts = [UNKNOWN_COUNT if p.citation_count is None else p.citation_count for p in papers]
        self._paper_numbers["citation_count"].append(counts)
        self._paper_numbers["updated"].append([p.updated for p in papers])
        self._flags.append([LOCAL * p.local_id + STUB * p.stub for p in papers])
        titles = [title_key(p.title, p.year) or "" for p in papers]
        self._title_keys.append(np.where([bool(t) for t in titles], hash_texts(titles), 0).astype(np.uint64))
        self._append_keys(papers)
        self._paper_count += len(papers)
        self.tally.keep("papers", len(papers))

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

    def _append_keys(self, papers: list[Paper]) -> None:
        """Stage the keys of all ids of these papers."""
        rows, texts = [], []
        for row, paper in enumerate(papers, self._paper_count):
            own = self._hidden_id(paper.id) if paper.local_id else paper.id
            for text in dict.fromkeys((own, *paper.ids)):
                rows.append(row)
                texts.append(text)
        self._key_rows.append(rows)
        self._keys.append(hash_texts(texts))

    def _flush_citations(self) -> None:
        citations, self._citations = self._citations, []
        if not citations:
            return
        citing, cited = [c.citing for c in citations], [c.cited for c in citations]
        self._append_citations(
            CitationBlock(
                hash_texts(citing),
                hash_texts(cited),
                np.array([c.intents for c in citations], np.uint8),
                np.array([c.strength for c in citations], np.float32),
                np.array([c.influential for c in citations], np.bool_),
                lambda: (citing, cited),
            )
        )

    def _append_citations(self, block: CitationBlock) -> None:
        """Stage a block of citations by keys, and the texts of cited ids where they are needed."""
        for name, writer in self._edges.items():
            writer.append(getattr(block, name))
        if self._keep_ids:
            for column, ids in zip(self._edge_ids.values(), block.ids(), strict=True):
                column.append(ids)
        else:  # needed only for names: with `keep_ids`, papers outside become rows
            self._cited_ids.append(block)
        self.tally.keep("citations", len(block.citing))

    def _flush_contexts(self) -> None:
        contexts, self._contexts = self._contexts, []
        if not contexts:
            return
        parts = [c.text.encode("utf-8", "replace") for c in contexts]
        block = ContextBlock(
            np.where([bool(c.citing) for c in contexts], hash_texts([c.citing for c in contexts]), 0).astype(np.uint64),
            (np.array([len(p) for p in parts], np.int64), np.frombuffer(b"".join(parts), np.uint8)),
            np.array([len(c.cited) for c in contexts], np.int64),
            hash_texts([cited for c in contexts for cited in c.cited]),
            np.array([c.intents for c in contexts], np.uint8),
        )
        self._append_contexts(block, [c.section for c in contexts], [_json_text(c.extra) for c in contexts])

    def _append_contexts(
        self, block: ContextBlock, sections: list[str] | None = None, extras: list[str] | None = None
    ) -> None:
        self._context_texts["text"].append_bytes(*block.texts)
        for name, texts in (("section", sections), ("extra", extras)):
            if texts is None:
                self._context_texts[name].append_empty(len(block.citing))
            else:
                self._context_texts[name].append(texts)
        self._context_numbers["citing"].append(block.citing)
        self._context_numbers["intents"].append(block.intents)
        self._context_numbers["cited_count"].append(block.cited_counts)
        self._context_cited.append(block.cited)
        self.tally.keep("contexts", len(block.citing))


_EDGE_COLUMNS = {
    "citing": np.uint64,
    "cited": np.uint64,
    "intents": np.uint8,
    "strength": np.float32,
    "influential": np.bool_,
}
_CONTEXT_COLUMNS = {"citing": np.uint64, "intents": np.uint8, "cited_count": np.int64}


class StagedPart(Protocol):
    """What merging and linking read from a staged part: a staged file, or a corpus that is being updated.

    `citation_count` counts all citations: those of `citations`, stored by keys, and those of `numbered`. The papers of a
    `distinct` part share no id with each other or with papers of other parts.
    """

    tally: Tally

    @property
    def name(self) -> str: ...
    @property
    def paper_count(self) -> int: ...
    @property
    def citation_count(self) -> int: ...
    @property
    def context_count(self) -> int: ...
    @property
    def distinct(self) -> bool: ...
    def numbered(self) -> list[NumberedTable]: ...
    def offer_names(self, names: NameCollector) -> None: ...
    def paper_texts(self, name: str) -> TextColumn: ...
    def paper_numbers(self, name: str) -> NDArray[Any]: ...
    def citations(self, name: str) -> NDArray[Any]: ...
    def context_texts(self, name: str) -> TextColumn: ...
    def context_numbers(self, name: str) -> NDArray[Any]: ...


class StagedFile:
    """The complete staged part of one input file, opened memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata: dict[str, Any] = json.loads(read_input(folder / _DONE))
        self.tally = Tally.from_json(self.metadata["tally"])

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    def paper_texts(self, name: str) -> TextColumn:
        return TextColumn(self.folder / "papers", name)

    def paper_numbers(self, name: str) -> NDArray[Any]:
        kinds = {**PAPER_NUMBERS, "flags": np.uint8, "title_key": np.uint64, "key": np.uint64, "key_row": np.int64}
        return open_numbers(self.folder / "papers" / f"{name}.npy", kinds[name])

    def citations(self, name: str) -> NDArray[Any]:
        return open_numbers(self.folder / "citations" / f"{name}.npy", _EDGE_COLUMNS[name])

    def numbered(self) -> list[NumberedTable]:
        return open_tables(self.folder / "citations", self.metadata["numbered"])

    def offer_names(self, names: NameCollector) -> None:
        """Offer the cited ids of the staged part as names of papers outside the corpus, where they are texts or numbers."""
        offer_cited_ids(self.folder / "cited", names)
        for block in (block for table in self.numbered() for block in table.blocks()):
            names.offer(block.cited_keys(), block.cited_names)

    @property
    def distinct(self) -> bool:
        return bool(self.metadata.get("distinct", False))

    def citation_ids(self, name: str) -> TextColumn:
        return TextColumn(self.folder / "citations", name)

    def context_texts(self, name: str) -> TextColumn:
        return TextColumn(self.folder / "contexts", name)

    def context_numbers(self, name: str) -> NDArray[Any]:
        return open_numbers(self.folder / "contexts" / f"{name}.npy", {**_CONTEXT_COLUMNS, "cited": np.uint64}[name])

    @property
    def paper_count(self) -> int:
        return int(self.metadata["paper_count"])

    @property
    def keyed_count(self) -> int:
        return int(self.metadata["keyed_count"])

    @property
    def citation_count(self) -> int:
        return self.keyed_count + sum(int(table["count"]) for table in self.metadata["numbered"].values())

    @property
    def context_count(self) -> int:
        return int(self.metadata["context_count"])


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
