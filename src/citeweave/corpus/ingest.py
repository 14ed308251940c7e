"""Ingest files of any known format into one corpus (`import_papers`), every record kept or counted by reason.

read      every input file becomes a staged part, several at a time; complete parts survive an interruption
merge     records of the same paper are merged; papers get rows
link      ids in citations and contexts become rows
write     columns of papers, citations, contexts, index; one rename publishes the corpus

`build_corpus` does all but the first step. `exclude_papers` writes a corpus without some of its papers. `stage_outside`
(`--outside keep`) adds a paper for every id that occurs only in citations: numbered ids first, by number, then all
others, by their key.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, artifact_matches, check_files, new_artifact
from citeweave.core.columns import open_numbers, release
from citeweave.core.compiled import compiled
from citeweave.core.errors import EmptyResultError, InputError, UserError
from citeweave.core.executor import run_in_processes
from citeweave.core.files import hash_json
from citeweave.core.hash_keys import Keys, hash_numbers
from citeweave.core.inputs import Source
from citeweave.core.progress import MAX_ENTRIES, MERGED, QUIET, MergedEntry, Reporter, Tally
from citeweave.core.ragged import run_offsets
from citeweave.corpus.corpus import KIND, VERSION, Corpus
from citeweave.corpus.external_sort import ExternalSort
from citeweave.corpus.id_index import IdIndex
from citeweave.corpus.input_files import InputFile, InputFiles, find_inputs
from citeweave.corpus.link import write_citations, write_contexts
from citeweave.corpus.merge import RowAssignment, StagedPapers, build_index, merge_papers, write_merges, write_papers
from citeweave.corpus.options import ImportOptions
from citeweave.corpus.paper import MAX_REFERENCES, NameCollector, NumberedPapers, OutsideName, Paper
from citeweave.corpus.readers import reader_of
from citeweave.corpus.records import PaperSources, split_sources, written
from citeweave.corpus.staged_parts import (
    STEP,
    NumberedTable,
    PartWriter,
    StagedFile,
    StagedPart,
    is_complete,
    numbered_tables,
)
from citeweave.corpus.update import BasePart, Deletions, find_deletions, share_unchanged, write_changes

READERS_VERSION = 7
"""Increased when a reader yields other records for the same file than before, so that old parts are not reused."""

_BIBLIOGRAPHIES = frozenset(("bibtex", "ris", "csl_json"))
"""Formats whose entries have keys that people know; of others, merged records are only counted."""

_ONE_PROCESS_BELOW = 64 * 2**20
"""Inputs smaller than this in total are read without starting processes."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The corpus that an import wrote, and its input files."""

    corpus: Corpus
    inputs: InputFiles
    skipped: bool
    """True where the folder already held this corpus and nothing was done."""

    def __repr__(self) -> str:
        return f"ImportResult({self.corpus!r}, {len(self.inputs.files):,} files{', skipped' if self.skipped else ''})"


def import_papers(
    sources: PaperSources,
    output: str | Path,
    options: ImportOptions | None = None,
    *,
    update: str | Path | None = None,
    delete: Sequence[str | Path] = (),
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> ImportResult:
    """Import papers from files, folders, dictionaries or data frames into a new corpus folder.

        result = import_papers(["library.bib", "citations.csv"], "corpus/")
        result.corpus                            the opened Corpus
        result.corpus.manifest.facts["records"]  how many records were kept, and why others were not
        import_papers([{"id": "a", "title": "Maps of science", "references": ["b"]}], "corpus/")
        import_papers(frame, "corpus/")          a data frame of pandas, polars or pyarrow with the same names as columns
        import_papers(["library.bib", frame, (record(row) for row in rows)], "corpus/")

    The format of each file is recognized by its content. Dictionaries and the rows of data frames are records of plain JSON
    lines (docs/corpus.md); each list, generator or frame counts as one file, `records.jsonl`.

    A folder that already holds the same import is opened; another one is replaced only with `overwrite`.
    `update` names a corpus that the new one continues; `delete` names files whose papers and citations are left out of
    it. The same inputs and options give the same bytes, in any order and with any number of workers.
    """
    options = options or ImportOptions()
    base = Corpus.open(update) if update is not None else None
    if delete and base is None:
        raise UserError("--delete removes papers of a corpus that is updated; name that corpus with --update")
    paths, tables = split_sources(sources)
    with written(tables) as records:
        inputs = (
            find_inputs(paths, options.format, keep_outside=options.outside == "keep") if paths else InputFiles([], [])
        )
        inputs = replace(inputs, files=inputs.files + records)
        deletions: list[InputFile] = []
        if delete:
            to_delete = find_inputs([Path(path) for path in delete], None, keep_outside=True)
            deletions, inputs = to_delete.files, replace(inputs, left_aside=inputs.left_aside + to_delete.left_aside)
        if options.strict:
            inputs.refuse_skipped()
        return _import_files(inputs, deletions, Path(output), options, base, overwrite=overwrite, reporter=reporter)


def _import_files(
    inputs: InputFiles,
    deletions: list[InputFile],
    folder: Path,
    options: ImportOptions,
    base: Corpus | None,
    *,
    overwrite: bool,
    reporter: Reporter,
) -> ImportResult:
    """Write the corpus of these input files, or open the one that the folder already holds."""
    inputs = replace(inputs, files=_hash_all(inputs.files, reporter))
    deletions = _hash_all(deletions, reporter)
    recipe = _recipe(inputs.files, deletions, options, base)
    if artifact_matches(folder, KIND, VERSION, recipe):
        return ImportResult(Corpus.open(folder), inputs, skipped=True)
    with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        parts = _stage_all(inputs.files, writer, options, reporter)
        deletion_parts = _stage_all(deletions, writer, options, reporter)
        if options.outside == "keep":
            parts.append(stage_outside(parts, writer.scratch_folder("outside"), memory=options.memory))
        deleted = None
        with nullcontext() if base is None else base.unchanged():
            if base is not None:
                check_files(base.folder, base.manifest, content=True)  # damage must not be copied
            if base is not None and deletions:
                deleted = find_deletions(base, deletion_parts)
                writer.facts["deletions_not_found"] = deleted.not_found
            build_corpus(writer, parts, options, base=base, deleted=deleted, reporter=reporter)
        writer.facts |= {**inputs.account(), "formats": inputs.formats()}
        writer.finish()
    return ImportResult(Corpus.open(folder), inputs, skipped=False)


def _recipe(
    files: list[InputFile],
    deletions: list[InputFile],
    options: ImportOptions,
    base: Corpus | None,
) -> dict[str, Any]:
    """Return the recipe of an import: the hashes of its input files and the options that change the corpus."""

    def described(file: InputFile) -> dict[str, str]:
        return {"name": file.name, "format": file.format, "sha256": file.sha256}

    recipe: dict[str, Any] = {
        "inputs": [described(file) for file in files],
        "options": {"outside": options.outside, "same_title": options.same_title},
        "readers": READERS_VERSION,
    }
    if base is not None:
        recipe |= {"update": base.hash, "delete": [described(file) for file in deletions]}
    return recipe


def _hash_all(files: list[InputFile], reporter: Reporter) -> list[InputFile]:
    """Hash and sort input files: merging and row numbers must not depend on the order of the arguments."""
    hashed = []
    total = sum(file.path.stat().st_size for file in files if file.path.exists())
    with reporter.task("checking inputs", total=total, unit="bytes") as advance:
        for file in files:
            hashed.append(file.hashed())
            advance(hashed[-1].bytes)
    return sorted(hashed, key=lambda file: (file.inside or file.name, file.sha256, file.format))


def _stage_all(
    files: list[InputFile], writer: ArtifactWriter, options: ImportOptions, reporter: Reporter
) -> list[StagedFile]:
    """Stage every input file that is not staged yet, and return the parts in the order of the files."""
    keep_ids = options.outside == "keep"
    names = [hash_json([file.sha256, file.format, file.name, keep_ids, READERS_VERSION])[:32] for file in files]
    folders = [writer.shared_scratch_folder("parts") / name for name in names]
    jobs = {folder: file for folder, file in zip(folders, files, strict=True) if not is_complete(folder)}
    size = sum(file.bytes for file in jobs.values())
    workers = 1 if len(jobs) <= 1 or size < _ONE_PROCESS_BELOW else options.workers or os.cpu_count() or 1
    if workers > 1:
        jobs = dict(sorted(jobs.items(), key=lambda job: -_expected_work(job[1])))  # longest first
    stage = [partial(stage_file, file, folder, keep_ids=keep_ids) for folder, file in jobs.items()]
    with reporter.task("reading", total=size, unit="bytes") as advance:
        for number in run_in_processes(stage, workers):
            advance(stage[number].args[0].bytes)
    return [StagedFile(folder) for folder in folders]


def _expected_work(file: InputFile) -> float:
    """Return the relative cost of reading an input file, to order the jobs: bulk citations are read by compiled code."""
    return file.bytes * (0.1 if file.format == "s2ag" and "citations" in file.path.name else 1.0)


def stage_file(file: InputFile, folder: Path, *, keep_ids: bool) -> None:
    """Read one input file into the folder of a staged part."""
    part = PartWriter(folder, keep_ids=keep_ids)
    try:
        part.add(reader_of(file.format).read(Source(file.path), part.tally))
        file.check_unchanged()
    except InputError:
        part.discard()
        raise
    part.finish({"name": file.name, "format": file.format})


def exclude_papers(
    corpus: Corpus, rows: NDArray[np.integer[Any]], output: str | Path, *, why: str, overwrite: bool = False
) -> Corpus:
    """Write a copy of a corpus without the papers in these rows and their citations, such as the papers of a benchmark.

    `why` is recorded in the manifest of the new corpus.
    """
    folder = Path(output)
    recipe = {"update": corpus.hash, "excluded": hash_json(sorted(corpus.ids.take(rows))), "why": why}
    if not artifact_matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            with corpus.unchanged():
                check_files(corpus.folder, corpus.manifest, content=True)  # damage must not be copied
                options = ImportOptions(same_title="never", outside="keep")
                build_corpus(writer, [], options, base=corpus, deleted=Deletions(rows))
            writer.facts |= {"excluded": len(rows), "why": why}
            writer.finish()
    return Corpus.open(folder)


# --- papers known only as cited ids (`--outside keep`) -----------------------------------------------

_SEEN = np.dtype([("key", "<u8"), ("at", "<i8"), ("part", "<i4"), ("cited", "?")])
_NUMBER = np.dtype([("number", "<u8")])


def stage_outside(parts: Sequence[StagedFile], folder: Path, *, memory: int) -> StagedFile:
    """Stage papers that are known only as cited ids: one stub for every id in citations that no record has."""
    target = folder / "part"
    if not is_complete(target):
        writer = PartWriter(target, keep_ids=True)
        known = _KnownIds(parts)
        by_key = any(part.keyed_count for part in parts)
        for prefix, tables in numbered_tables(parts).items():
            writer.add(_unknown_numbers(prefix, tables, known, folder, memory, by_key=by_key))
        for ids in _unknown_ids(parts, known, folder, memory):
            writer.add(Paper(id, stub=True) for id in ids)
        writer.finish({"name": "papers outside", "format": "outside", "distinct": True})
    return StagedFile(target)


class _KnownIds:
    """Keys of the ids and titles that records have, and of the cited numbers that were staged as papers."""

    def __init__(self, parts: Sequence[StagedFile]) -> None:
        self._keys: Keys = np.empty(0, np.uint64)
        columns = [part.numbers("papers", name) for part in parts for name in ("key", "title_key")]
        self.add([column[column != 0] for column in columns])

    def misses(self, keys: Keys) -> NDArray[np.bool_]:
        """Return which of these id keys no record has."""
        return self._index.rows_of(keys) < 0

    def add(self, keys: list[Keys]) -> None:
        """Add keys of ids that were staged as papers."""
        self._keys = np.unique(np.concatenate([self._keys, *keys]))
        self._index = IdIndex.of(self._keys, np.zeros(len(self._keys), np.int32))


def _unknown_numbers(
    prefix: str, tables: Sequence[NumberedTable], known: _KnownIds, folder: Path, memory: int, *, by_key: bool
) -> Iterator[NumberedPapers]:
    """Yield a stub paper for every cited number without a record, ascending; they become known where ids have keys too."""
    staged = []
    for numbers in _distinct_numbers(tables, folder, memory):
        keys = hash_numbers(prefix, numbers)
        missed = known.misses(keys)
        yield NumberedPapers(prefix, numbers[missed], stub=True)
        if by_key:
            staged.append(keys[missed])
    if staged:
        known.add(staged)


def _distinct_numbers(tables: Sequence[NumberedTable], folder: Path, memory: int) -> Iterator[NDArray[np.int64]]:
    """Yield the distinct numbers of citing and cited ids, ascending: by a bitmap where it fits in memory, else sorted."""
    top = max(table.top for table in tables)
    if top // 8 <= memory:
        seen = np.zeros(top // 8 + 1, np.uint8)
        for block in (block for table in tables for block in table.blocks()):
            _mark(block.citing, seen)
            _mark(block.cited, seen)
        for start in range(0, len(seen), STEP):
            bits = np.unpackbits(seen[start : start + STEP], bitorder="little")
            yield np.flatnonzero(bits) + 8 * start
        return
    expected = 2 * sum(len(table.citing) for table in tables)
    sort = ExternalSort(folder / "numbers", _NUMBER, key="number", top=top + 1, expected=expected, memory=memory)
    for block in (block for table in tables for block in table.blocks()):
        for column in (block.citing, block.cited):
            sort.add(np.unique(column).astype(np.uint64).view(_NUMBER))
    for sorted_block in sort.blocks():
        yield np.unique(sorted_block["number"]).astype(np.int64)


@compiled()
def _mark(numbers: NDArray[Any], seen: NDArray[np.uint8]) -> None:
    """Set the bits of these id numbers in a bitmap."""
    for i in range(len(numbers)):
        number = np.uint64(numbers[i])
        seen[number >> np.uint64(3)] |= np.uint8(1) << np.uint8(number & np.uint64(7))


def _unknown_ids(parts: Sequence[StagedFile], known: _KnownIds, folder: Path, memory: int) -> Iterator[list[str]]:
    """Yield the ids without a number that occur in citations and that no record has, sorted by key."""
    expected = 2 * sum(part.keyed_count for part in parts)
    if not expected:
        return
    sort = ExternalSort(folder / "sort", _SEEN, key="key", top=2**64, expected=expected, memory=memory)
    for number, part in enumerate(parts):
        for cited, name in enumerate(("citing", "cited")):
            column = part.numbers("citations", name)
            for start in range(0, len(column), STEP):
                keys, at = np.unique(column[start : start + STEP], return_index=True)
                missed = known.misses(keys)
                records = np.empty(int(missed.sum()), _SEEN)
                records["key"], records["at"] = keys[missed], at[missed] + start
                records["part"], records["cited"] = number, cited
                sort.add(records)
                release(column)
    columns = [[part.texts("citations", name) for name in ("citing_id", "cited_id")] for part in parts]
    for block in sort.blocks():
        first = block[run_offsets(block["key"])[:-1]]
        rows = zip(first["part"].tolist(), first["cited"].tolist(), first["at"].tolist(), strict=True)
        yield [columns[part][int(cited)][at] for part, cited, at in rows]
        release(*itertools.chain(*columns))


# --- from staged parts to a corpus -----------------------------------------------------------------


def build_corpus(
    writer: ArtifactWriter,
    parts: Sequence[StagedPart],
    options: ImportOptions,
    *,
    base: Corpus | None = None,
    deleted: Deletions | None = None,
    reporter: Reporter = QUIET,
) -> None:
    """The steps of an import after reading: merge papers, write columns, link citations and contexts.

    With `base`, the result is a new generation of that corpus; `deleted` is left out of it.
    """
    if base is not None:
        parts = [BasePart(base, None if deleted is None else deleted.citations), *parts]
    tally = Tally()
    for part in parts:
        tally.add(part.tally, part.name)
    staged, work = StagedPapers(parts), writer.scratch_folder("sort")
    dropped = np.zeros(len(staged), np.bool_)
    if deleted is not None:
        dropped[deleted.rows] = True  # the base's papers are the first staged ones
    reporter.say(f"merging {len(staged):,} records of papers")
    assignment = merge_papers(staged, work, options, base_papers=0 if base is None else len(base), dropped=dropped)
    if base is not None and len(base) and not assignment.papers:
        raise EmptyResultError(
            "nothing to write: no paper of the corpus would be left; keep some, or check the benchmark"
        )
    _count_papers(staged, assignment, dropped, tally)
    # records of an update are meant to be merged
    merged = [] if base is not None else _name_merged(staged, assignment)
    write_papers(writer.folder / "papers", staged, assignment, tally)
    write_merges(writer.folder / "merges", staged, assignment)
    index = build_index(writer.folder / "papers", staged, assignment, work, memory=options.memory)
    citations, contexts = _link(writer, parts, index, assignment.papers, tally, options.memory, reporter)
    _name_outside(writer, staged, assignment)
    if not (assignment.papers or citations or contexts):
        raise EmptyResultError(_explain_empty(tally))
    writer.facts |= {
        "papers": assignment.papers,
        "citations": citations,
        "contexts": contexts,
        **tally.as_json(),
        **({"merged_entries": [entry._asdict() for entry in merged]} if merged else {}),
        "titles_left_apart": assignment.conflicts,
        "parts": [part.name for part in parts],
        "generation": 1,
    }
    if base is not None:
        _describe_update(writer, base, assignment)


def _link(
    writer: ArtifactWriter,
    parts: Sequence[StagedPart],
    index: IdIndex,
    papers: int,
    tally: Tally,
    memory: int,
    reporter: Reporter,
) -> tuple[int, int]:
    """Link and write citations and contexts in two threads, since most of the work is compiled; return their numbers."""
    counts = [sum(getattr(part, name) for part in parts) for name in ("citation_count", "context_count")]
    reporter.say(f"linking {counts[0]:,} citations and {counts[1]:,} contexts")
    folder, works = writer.folder, [writer.scratch_folder(name) for name in ("citations", "contexts")]
    with ThreadPoolExecutor(2) as pool:
        citations = pool.submit(write_citations, folder, parts, index, papers, works[0], tally, memory=memory)
        contexts = pool.submit(write_contexts, folder / "contexts", parts, index, works[1], tally, memory=memory)
        return citations.result(), contexts.result()


def _name_outside(writer: ArtifactWriter, staged: StagedPapers, assignment: RowAssignment) -> None:
    """Write names of the cited papers outside the corpus: from records without a row, else the cited ids."""
    keys = open_numbers(writer.folder / "references_outside" / "key.npy", np.uint64)
    if len(keys) > MAX_REFERENCES:
        return
    names = NameCollector(keys)
    years = staged.numbers("year")
    for block in staged.id_keys():
        without_row = block[assignment.row[block["row"]] < 0]

        def take(rows: list[int], staged_rows: NDArray[np.int64] = without_row["row"]) -> list[OutsideName]:
            chosen = [int(staged_rows[row]) for row in rows]
            return [OutsideName(staged.text("id", row), staged.text("title", row), int(years[row])) for row in chosen]

        names.offer(without_row["key"], take)
    for part in staged.parts:
        part.offer_names(names)
    names.write(writer.folder)


def _describe_update(writer: ArtifactWriter, base: Corpus, assignment: RowAssignment) -> None:
    """Add to the manifest what the update changed, and share unchanged files with the old generation."""
    old = base.manifest.facts
    writer.facts |= {name: value for name, value in old.items() if name in ("made_up", "note")}
    writer.facts["generation"] = int(old.get("generation", 1)) + 1
    writer.facts["changes"] = write_changes(writer.folder, base, assignment)
    writer.facts["update_of"] = base.hash
    writer.facts["shared_files"] = share_unchanged(writer.folder, base)


def _count_papers(staged: StagedPapers, assignment: RowAssignment, dropped: NDArray[np.bool_], tally: Tally) -> None:
    """Count the records of papers that were deleted, merged, or known only as a reference."""
    unused = int(((assignment.row < 0) & ~dropped).sum())
    merged = len(staged) - int(dropped.sum()) - unused - assignment.papers
    tally.unkeep("papers", "deleted on request", int(dropped.sum()))
    tally.unkeep("papers", "known only as a reference", unused)
    tally.unkeep("papers", MERGED, merged)


def _name_merged(staged: StagedPapers, assignment: RowAssignment) -> list[MergedEntry]:
    """Name the first entries of bibliographies that were merged, and the entries after which their papers are named."""
    known = np.array([part.format in _BIBLIOGRAPHIES for part in staged.parts], np.bool_)
    several = assignment.several[known[staged.parts_of(assignment.several)]]
    later = np.sort(several[assignment.first[assignment.row[several]] != several])[:MAX_ENTRIES]
    pairs = zip(later.tolist(), assignment.first[assignment.row[later]].tolist(), strict=True)
    return [
        MergedEntry(
            staged.text("id", row),
            staged.parts[staged.part_of(row)].name,
            staged.text("id", first),
            staged.parts[staged.part_of(first)].name,
        )
        for row, first in pairs
    ]


def _explain_empty(tally: Tally) -> str:
    """Return the error message of an import that keeps no record, with the reasons."""
    reasons = [f"{n:,} {kind}: {why}" for kind, c in tally.counts.items() for why, n in c.rejected.items()]
    if tally.counts["citations"].rejected.get("citing and cited paper not in the corpus"):
        return (
            "nothing to write: the citations name papers that no record describes; "
            "add the file of the papers, or turn the ids into papers with --outside keep"
        )
    return f"nothing to write: no record was kept ({'; '.join(reasons) or 'the inputs hold none'}); check the --format"
