"""A corpus: papers, citations and contexts as columns in a folder, opened memory-mapped.

    corpus/
      manifest.json
      papers/     id title abstract venue authors fields ids extra (texts), year citation_count updated flags
      citations/  citing cited intents strength influential        sorted by citing and cited row
      contexts/   citing citing_key text section intents extra, cited and outside (ragged, with offsets)
      references_outside/   citing key intents strength influential: references to papers outside the corpus
      outside_names/        key id title year: names of those papers
      index/      maps the key of an id to a row
      merges/     which records were merged into one paper
      changes/    only in a corpus that updates another: what changed in every row

A row is an integer and an id is a string. Columns are opened on first use:

    corpus = Corpus.open("corpus/")
    corpus.titles[7], corpus.years[7], corpus.row("doi:10.1/x"), corpus[7]

`id_index.py` maps ids to rows; `summarize` counts what a corpus holds. Does not write a corpus: `ingest.py` does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from citeweave.core.arguments import as_texts
from citeweave.core.artifact import Manifest, check_files, read_manifest
from citeweave.core.columns import TextColumn, offsets_fit, open_numbers, release
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import file_state
from citeweave.core.hash_keys import hash_texts
from citeweave.core.progress import rejected_entries
from citeweave.corpus.id_index import NOT_FOUND, IdIndex
from citeweave.corpus.identity import likely_ids
from citeweave.corpus.paper import ATTRIBUTES, Citation, Context, Intent, OutsideNames, Paper
from citeweave.corpus.paper_rows import PaperRows

# The columns on disk and their types; another layout is another VERSION.
KIND = "corpus"
VERSION = 1

PAPER_TEXTS = ("id", "title", "abstract", "venue", "authors", "fields", "ids", "extra")
PAPER_NUMBERS = {"year": np.int16, "citation_count": np.int32, "updated": np.int32}
UNKNOWN_COUNT = -1

LOCAL, STUB = 1, 2
"""Bits of the column `flags`: the id is a name inside one file; the paper is known only as a reference of others."""

CITATION_COLUMNS = {"citing": np.int32, "cited": np.int32, **ATTRIBUTES}
REFERENCE_COLUMNS = {"citing": np.int32, "key": np.uint64, **ATTRIBUTES}
CHANGE_COLUMNS = {"change": np.uint8, "previous": np.int32}

_Opened = TypeVar("_Opened")
_Number = TypeVar("_Number", bound=np.generic)


def _texts(name: str) -> cached_property[TextColumn]:
    """Return a property of a corpus: a text column of its papers, opened on first use."""
    return cached_property(lambda corpus: corpus._same(f"papers/{name}.", TextColumn(corpus.folder / "papers", name)))


def _numbers(name: str, kind: type[_Number]) -> cached_property[NDArray[_Number]]:
    """Return a property of a corpus: a column of numbers, opened on first use."""
    return cached_property(lambda corpus: corpus._open_numbers(name, kind))


class Corpus(PaperRows[Paper]):
    """Papers, citations and citing sentences in a folder: `Corpus.open("corpus/")`, then `corpus[0]`, `corpus["doi:10.1/x"]`.

    Every property is a memory-mapped column, opened on first use; `corpus.to_pandas()` has them as a table."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._states: dict[str, tuple[int, ...]] = {}
        """Size and time stamps of every file when the corpus was opened."""

    @classmethod
    def open(cls, folder: str | Path) -> Corpus:
        """Open a corpus folder and check the sizes of its files without reading their content."""
        folder = Path(folder)
        manifest = read_manifest(folder, KIND, VERSION)
        corpus = cls(folder, manifest)
        names = [name for name, described in manifest.files.items() if "bytes" in described]
        corpus._states = {name: file_state(folder / name) for name in names if (folder / name).is_file()}
        check_files(folder, manifest)
        return corpus

    def __len__(self) -> int:
        return len(self.years)

    def __repr__(self) -> str:
        return f"Corpus({str(self.folder)!r}: {len(self):,} papers, {len(self.citing):,} citations)"

    @property
    def hash(self) -> str:
        """Hash of the corpus content, which later stages record as their input."""
        return self.manifest.hash

    ids = _texts("id")
    titles = _texts("title")
    abstracts = _texts("abstract")
    venues = _texts("venue")
    authors = _texts("authors")
    """Author names of every paper, one per line."""

    fields = _texts("fields")
    """Fields of study of every paper, one per line, most important first."""

    other_ids = _texts("ids")
    """Further ids of every paper, one per line."""

    extras = _texts("extra")
    """Further metadata of every paper from its source, as a JSON object or the empty string."""

    years = _numbers("papers/year", np.int16)
    """Year of publication of every paper, 0 where unknown."""

    citation_counts = _numbers("papers/citation_count", np.int32)
    """Citations of every paper in the entire literature as its source reports them, -1 where unknown."""

    updated = _numbers("papers/updated", np.int32)
    """Day of the last change of every paper at its source, as YYYYMMDD; 0 where unknown."""

    flags = _numbers("papers/flags", np.uint8)
    """Bits of every paper: 1 = its id is a name inside one file, 2 = known only as a reference of other papers."""

    citing = _numbers("citations/citing", np.int32)
    """Row of the citing paper of every citation, ascending."""

    cited = _numbers("citations/cited", np.int32)
    intents = _numbers("citations/intents", np.uint8)
    """Bits of `Intent` of every citation; 0 where unknown."""

    strengths = _numbers("citations/strength", np.float32)
    influential = _numbers("citations/influential", np.bool_)

    @cached_property
    def contexts(self) -> Contexts:
        table = self._same("contexts/", Contexts(self.folder / "contexts"))
        self.check_rows(table.cited)
        self.check_rows(table.citing, minimum=-1)
        release(table.cited, table.citing)
        return table

    @cached_property
    def index(self) -> IdIndex:
        return self._same("index/", IdIndex.open(self.folder / "index"))

    @cached_property
    def changes(self) -> Changes | None:
        """What the update that wrote this corpus changed in every row; None where it updated no other corpus."""
        folder = self.folder / "changes"
        if not folder.is_dir():
            return None
        return Changes(*(self._open_numbers(f"changes/{name}", kind) for name, kind in CHANGE_COLUMNS.items()))

    def references_outside(self, name: str) -> NDArray[Any]:
        """Return a column of the references to papers outside the corpus: citing (row), key (of the cited id), intents, ..."""
        return self._open_numbers(f"references_outside/{name}", REFERENCE_COLUMNS[name])

    @cached_property
    def outside_names(self) -> OutsideNames | None:
        """Names of the cited papers outside the corpus; None where it stores none."""
        return self._same("outside_names/", OutsideNames.open(self.folder))

    def merges(self) -> tuple[NDArray[np.int32], NDArray[np.int32], TextColumn]:
        """Return row, part and id of every imported record that was merged with another record of the same paper."""
        folder = self.folder / "merges"
        rows, parts = (open_numbers(folder / f"{name}.npy", np.int32) for name in ("row", "part"))
        return self._same("merges/", (rows, parts, TextColumn(folder, "id")))

    def rows(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """Return the row of every paper id (any of a paper's ids), -1 where the corpus has no such paper."""
        ids = as_texts(ids, "ids")
        return self.index.rows_of(hash_texts(ids))

    def row(self, id: str) -> int:
        """Return the row of the corpus that has the paper with this id, or raise an error that explains what ids look like."""
        row = next((row for row in self.rows(likely_ids(id)).tolist() if row != NOT_FOUND), NOT_FOUND)
        if row == NOT_FOUND:
            raise UserError(
                f"paper {id!r} is not in {self.folder}; `citeweave info {self.folder}` shows what ids look like"
            )
        return row

    def paper(self, row: int | str) -> Paper:
        """Return one paper as a record, by its row or any of its ids."""
        row = self.row(row) if isinstance(row, str) else row
        if not 0 <= row < len(self):
            raise UserError(f"row {row} is not in {self.folder}; it has rows 0 to {len(self) - 1}, or give an id")
        count, flags = int(self.citation_counts[row]), int(self.flags[row])
        return Paper(
            id=self.ids[row],
            title=self.titles[row],
            abstract=self.abstracts[row],
            year=int(self.years[row]) or None,
            venue=self.venues[row],
            authors=lines(self.authors[row]),
            fields=lines(self.fields[row]),
            ids=lines(self.other_ids[row]),
            citation_count=None if count == UNKNOWN_COUNT else count,
            updated=int(self.updated[row]),
            extra=self._object(self.extras[row]),
            local_id=bool(flags & LOCAL),
            stub=bool(flags & STUB),
        )

    def citation(self, number: int) -> Citation:
        """Return one citation as a record, with the ids of both papers."""
        citing, cited = self._ids_of(np.array([self.citing[number], self.cited[number]]))
        return Citation(
            citing=citing,
            cited=cited,
            intents=Intent(int(self.intents[number])),
            strength=float(self.strengths[number]),
            influential=bool(self.influential[number]),
        )

    def context(self, number: int) -> Context:
        """Return one citing sentence as a record, with the papers' ids; cited papers outside the corpus are left out."""
        table = self.contexts
        citing = int(table.citing[number])
        return Context(
            citing=self._ids_of(np.array([citing]))[0] if citing >= 0 else "",
            text=table.texts[number],
            cited=tuple(self._ids_of(table.cited_rows(number))),
            section=table.sections[number],
            intents=Intent(int(table.intents[number])),
            extra=self._object(table.extras[number]),
        )

    def check_unchanged(self, start: str = "") -> None:
        """Raise an error if a corpus file whose name begins with `start` was replaced or removed since opening."""
        for name, state in self._states.items():
            path = self.folder / name
            if name.startswith(start) and not (path.is_file() and file_state(path) == state):
                raise ArtifactError(f"{path} was replaced while it was read; run the same command again")

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Guard a block that reads files of the corpus folder: raise an error if the corpus was replaced meanwhile."""
        try:
            yield
        except ArtifactError:
            raise
        except Exception:
            self.check_unchanged()  # explains why the columns did not match
            raise
        self.check_unchanged()

    def check_rows(self, rows: NDArray[np.integer[Any]], *, minimum: int = 0) -> None:
        """Raise an error if a row number stored in the corpus is out of range: opening a corpus does not check rows."""
        if len(rows) and not (int(rows.min()) >= minimum and int(rows.max()) < len(self)):
            raise self._damage("a citation names a row that no paper has")

    def _ids_of(self, rows: NDArray[np.integer[Any]]) -> list[str]:
        self.check_rows(rows)
        return self.ids.take(rows)

    def _object(self, text: str) -> dict[str, Any]:
        """Parse the JSON object in an `extra` column; the empty string is an empty object."""
        try:
            value = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self._damage("the extra metadata of a paper is not a JSON object")
        return value

    def _damage(self, what: str) -> ArtifactError:
        return ArtifactError(
            f"{self.folder} is damaged: {what}; `citeweave info {self.folder} --verify` names the file; make the corpus again"
        )

    def _open_numbers(self, name: str, kind: Any) -> NDArray[Any]:
        return self._same(f"{name}.npy", open_numbers(self.folder / f"{name}.npy", kind))

    def _same(self, start: str, opened: _Opened) -> _Opened:
        """Return an opened column after checking that its files were not replaced since the corpus was opened."""
        self.check_unchanged(start)
        return opened


class Contexts:
    """The citing sentences (contexts) of a corpus, as memory-mapped columns."""

    def __init__(self, folder: Path) -> None:
        self.citing: NDArray[np.int32] = open_numbers(folder / "citing.npy", np.int32)
        """Row of the citing paper, -1 where it is outside the corpus."""
        self.texts = TextColumn(folder, "text")
        self.sections = TextColumn(folder, "section")
        self.extras = TextColumn(folder, "extra")
        self.intents: NDArray[np.uint8] = open_numbers(folder / "intents.npy", np.uint8)
        self.cited: NDArray[np.int32] = open_numbers(folder / "cited.npy", np.int32)
        """Rows of the cited papers of all contexts, one list after the other."""
        self.cited_offsets: NDArray[np.int64] = open_numbers(folder / "cited_offsets.npy", np.int64)
        self.outside: NDArray[np.uint64] = open_numbers(folder / "outside.npy", np.uint64)
        """Keys of the cited papers outside the corpus, one list after the other."""
        self.outside_offsets: NDArray[np.int64] = open_numbers(folder / "outside_offsets.npy", np.int64)
        self.citing_keys: NDArray[np.uint64] = open_numbers(folder / "citing_key.npy", np.uint64)
        # offsets are used unchecked everywhere: damaged ones must be refused here
        lists = ((self.cited_offsets, self.cited), (self.outside_offsets, self.outside))
        if not all(offsets_fit(offsets, len(self.citing), len(values)) for offsets, values in lists):
            raise ArtifactError(f"{folder} is damaged: its columns do not fit together; make the corpus again")

    def __len__(self) -> int:
        return len(self.citing)

    def __repr__(self) -> str:
        return f"Contexts({len(self):,} citing sentences)"

    def cited_rows(self, number: int) -> NDArray[np.int32]:
        """Return the rows of the papers in the corpus that one citing sentence cites."""
        return self.cited[self.cited_offsets[number] : self.cited_offsets[number + 1]]


@dataclass(frozen=True, slots=True)
class Changes:
    """What an update changed in every row of the new corpus."""

    change: NDArray[np.uint8]
    """Bits: 1 = title or abstract, 2 = other columns, 4 = references, 8 = the paper is new. Shape (papers,)."""

    previous: NDArray[np.int32]
    """Row in the corpus that was updated, -1 for new papers. Shape (papers,)."""

    TEXT: ClassVar[int] = 1
    OTHER: ClassVar[int] = 2
    REFERENCES: ClassVar[int] = 4
    NEW: ClassVar[int] = 8


def lines(text: str) -> tuple[str, ...]:
    """Split a text of a corpus column that holds one entry per line, such as `authors`.

    >>> lines("Ada Lovelace\\nAlan Turing"), lines("")
    (('Ada Lovelace', 'Alan Turing'), ())
    """
    return tuple(text.split("\n")) if text else ()


# --- summary for `citeweave info` ----------------------------------------------------------------------

_DEGREE_STEP = 1 << 24
_DEGREE_LEVELS = (0, 1, 2, 5, 10, 20, 50, 100, 1000, 10000)


def summarize(corpus: Corpus, *, samples: int = 3) -> dict[str, Any]:
    """Summarize a corpus: counts, coverage, years, degrees, rejected records by reason, and some example papers."""
    facts = corpus.manifest.facts
    records = facts["records"]
    rejected: Counter[str] = Counter()
    for kind in records.values():
        rejected.update(kind["rejected"])
    return {
        "papers": len(corpus),
        "abstracts": int(np.count_nonzero(corpus.abstracts.lengths())),
        "citations": len(corpus.citing),
        "contexts": len(corpus.contexts),
        "rejected": dict(rejected.most_common()),
        "rejected_entries": [entry._asdict() for entry in rejected_entries(facts)],
        "merged_entries": facts.get("merged_entries", []),
        "records": records,
        "notes": facts["notes"],
        "titles": int(np.count_nonzero(corpus.titles.lengths())),
        "with_year": int(np.count_nonzero(corpus.years > 0)),
        "known_only_as_reference": int(np.count_nonzero(corpus.flags & STUB)),
        "years": count_years(corpus.years),
        "references_per_paper": _degrees(corpus, corpus.citing),
        "citations_per_paper": _degrees(corpus, corpus.cited),
        "citations_with_intent": int(np.count_nonzero(corpus.intents)),
        "contexts_with_two_or_more_papers": int((np.diff(corpus.contexts.cited_offsets) >= 2).sum()),
        "references_outside": len(corpus.references_outside("key")),
        "generation": facts.get("generation", 1),
        "changes": facts.get("changes"),
        "deletions_not_found": facts.get("deletions_not_found", 0),
        "formats": facts.get("formats", {}),
        "files": facts.get("files", {}),
        "skipped_files": facts.get("skipped_files", {}),
        "made_up": bool(facts.get("made_up", False)),
        "hash": corpus.hash,
        "samples": [_sample(corpus, row) for row in _spread(len(corpus), samples)],
    }


def list_merges(corpus: Corpus) -> list[dict[str, Any]]:
    """List every paper that was merged from several records, with the ids of those records and their files."""
    rows, parts, ids = corpus.merges()
    names = corpus.manifest.facts["parts"]
    corpus.check_rows(rows)
    merged: dict[int, list[dict[str, str]]] = {}
    for row, part, id in zip(rows.tolist(), parts.tolist(), ids, strict=True):
        merged.setdefault(row, []).append({"id": id, "file": names[part] if 0 <= part < len(names) else ""})
    return [{"paper": corpus.ids[row], "records": records} for row, records in sorted(merged.items())]


def count_years(years: NDArray[np.int16]) -> dict[str, int]:
    """Return the number of papers of each year, as JSON; those without a year are unknown."""
    values, counts = np.unique(years, return_counts=True)
    return {str(year) if year else "unknown": int(n) for year, n in zip(values.tolist(), counts.tolist(), strict=True)}


def _degrees(corpus: Corpus, ends: NDArray[np.int32]) -> dict[str, Any]:
    """Summarize the number of references or citations per paper: mean, median, largest, and papers above some levels."""
    if not len(corpus):
        return {"mean": 0.0, "median": 0, "largest": 0, "papers_with_at_least": {}}
    degrees = np.zeros(len(corpus), np.int64)
    for start in range(0, len(ends), _DEGREE_STEP):
        corpus.check_rows(ends[start : start + _DEGREE_STEP])
        np.add.at(degrees, ends[start : start + _DEGREE_STEP], 1)
    release(ends)
    return {
        "mean": round(float(degrees.mean()), 3),
        "median": int(np.median(degrees)),
        "largest": int(degrees.max()),
        "papers_with_at_least": {str(n): int((degrees >= n).sum()) for n in _DEGREE_LEVELS if n and n <= degrees.max()},
    }


def _spread(papers: int, samples: int) -> list[int]:
    """Return rows of example papers, evenly spread over the corpus from the first to the last."""
    number = max(0, min(samples, papers))
    return sorted({round(i * (papers - 1) / max(number - 1, 1)) for i in range(number)})


def _sample(corpus: Corpus, row: int) -> dict[str, Any]:
    """Return an example paper as a dictionary of its non-empty fields, with a shortened abstract."""
    paper = asdict(corpus.paper(row))
    paper["abstract"] = paper["abstract"][:300]
    return {key: value for key, value in paper.items() if value not in ("", None, (), {}, [], False, 0)}
