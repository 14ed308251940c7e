"""Ingest files of any known format into one corpus (`import_papers`), every record kept or counted by reason.

read      every input file becomes a staged part, several at a time; complete parts survive an interruption
merge     records of the same paper are merged; papers get rows
link      ids in citations and contexts become rows
write     columns of papers, citations, contexts, index; one rename publishes the corpus

`build_corpus` does all but the first step. `exclude_papers` writes a corpus without some of its papers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, artifact_matches, check_files, new_artifact
from citeweave.core.columns import open_numbers
from citeweave.core.errors import EmptyResultError, InputError, UserError
from citeweave.core.executor import process_count
from citeweave.core.files import hash_json
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Reporter, Tally
from citeweave.corpus.corpus import KIND, VERSION, Corpus, IdIndex
from citeweave.corpus.input_files import InputFile, InputFiles, find_inputs
from citeweave.corpus.link import write_citations, write_contexts
from citeweave.corpus.merge import MergeOptions, RowAssignment, StagedPapers, merge_papers
from citeweave.corpus.options import ImportOptions
from citeweave.corpus.paper import MAX_REFERENCES, NameCollector, OutsideName
from citeweave.corpus.paper_columns import build_index, stage_outside, write_merges, write_papers
from citeweave.corpus.readers import reader_of
from citeweave.corpus.staged_parts import PartWriter, StagedFile, StagedPart, is_complete
from citeweave.corpus.update import BasePart, Deletions, find_deletions, share_unchanged, write_changes

READERS_VERSION = 6
"""Increased when a reader yields other records for the same file than before, so that old parts are not reused."""

_ONE_PROCESS_BELOW = 64 * 2**20
"""Inputs smaller than this in total are read without starting processes."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The corpus that an import wrote, and its input files."""

    corpus: Corpus
    inputs: InputFiles
    skipped: bool
    """True where the folder already held this corpus and nothing was done."""


def import_papers(
    paths: str | Path | Sequence[str | Path],
    output: str | Path,
    options: ImportOptions | None = None,
    *,
    update: str | Path | None = None,
    delete: Sequence[str | Path] = (),
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> ImportResult:
    """Import files or folders into a new corpus folder.

    `update` names a corpus that the new one continues; `delete` names files whose papers and citations are left out of
    it. The same inputs and options give the same bytes, in any order and with any number of workers.
    """
    options = options or ImportOptions()
    folder = Path(output)
    sources = [paths] if isinstance(paths, str | Path) else paths
    inputs = find_inputs([Path(path) for path in sources], options.format, keep_outside=options.outside == "keep")
    base = Corpus.open(update) if update is not None else None
    if delete and base is None:
        raise UserError("--delete removes papers of a corpus that is updated; name that corpus with --update")
    deletions: list[InputFile] = []
    if delete:
        to_delete = find_inputs([Path(path) for path in delete], None, keep_outside=True)
        deletions, inputs = to_delete.files, replace(inputs, left_aside=inputs.left_aside + to_delete.left_aside)
    if options.strict:
        inputs.refuse_skipped()
    inputs = replace(inputs, files=_in_order(_hash_all(inputs.files, reporter)))
    deletions = _in_order(_hash_all(deletions, reporter))
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
            build_corpus(
                writer,
                parts,
                MergeOptions(options.same_title, options.outside, options.memory),
                base=base,
                deleted=deleted,
                reporter=reporter,
            )
        writer.facts |= {**inputs.account(), "formats": inputs.formats()}
        writer.finish()
    return ImportResult(Corpus.open(folder), inputs, skipped=False)


def _in_order(files: list[InputFile]) -> list[InputFile]:
    """Sort input files by name and content: merging and row numbers must not depend on the order of the arguments."""
    return sorted(files, key=lambda file: (file.inside or file.name, file.sha256, file.format))


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
    """Hash the content of all input files."""
    hashed = []
    total = sum(file.path.stat().st_size for file in files if file.path.exists())
    with reporter.task("checking inputs", total=total, unit="bytes") as advance:
        for file in files:
            hashed.append(file.hashed())
            advance(hashed[-1].bytes)
    return hashed


def _stage_all(
    files: list[InputFile], writer: ArtifactWriter, options: ImportOptions, reporter: Reporter
) -> list[StagedFile]:
    """Stage every input file that is not staged yet, and return the parts in the order of the files."""
    keep_ids = options.outside == "keep"
    folders = [writer.shared_scratch_folder("parts") / _part_name(file, keep_ids) for file in files]
    jobs = {folder: file for folder, file in zip(folders, files, strict=True) if not is_complete(folder)}
    size = sum(file.bytes for file in jobs.values())
    with reporter.task("reading", total=size, unit="bytes") as advance:
        for done in _stage_files(jobs, keep_ids, options.workers or os.cpu_count() or 1, size):
            advance(done.bytes)
    return [StagedFile(folder) for folder in folders]


def _part_name(file: InputFile, keep_ids: bool) -> str:
    return hash_json([file.sha256, file.format, file.name, keep_ids, READERS_VERSION])[:32]


def _stage_files(jobs: dict[Path, InputFile], keep_ids: bool, workers: int, size: int) -> Iterator[InputFile]:
    """Stage the input files, in several processes where they are large, and yield each file once it is done."""
    if workers == 1 or len(jobs) <= 1 or size < _ONE_PROCESS_BELOW:
        for folder, file in jobs.items():
            stage_file(file, folder, keep_ids=keep_ids)
            yield file
        return
    # spawned: forking a process that has started threads can hang
    with ProcessPoolExecutor(process_count(workers, len(jobs)), mp_context=get_context("spawn")) as pool:
        longest_first = sorted(jobs.items(), key=lambda job: -_expected_work(job[1]))
        pending: dict[Future[None], InputFile] = {
            pool.submit(stage_file, file, folder, keep_ids=keep_ids): file for folder, file in longest_first
        }
        try:
            for future in as_completed(pending):
                future.result()
                yield pending[future]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


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
    """Ingest a corpus again without these rows and their citations, such as the papers of a benchmark."""
    folder = Path(output)
    recipe = {"update": corpus.hash, "excluded": hash_json(sorted(corpus.ids.take(rows))), "why": why}
    if not artifact_matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            with corpus.unchanged():
                check_files(corpus.folder, corpus.manifest, content=True)  # damage must not be copied
                options = MergeOptions(same_title="never", outside="keep")
                build_corpus(writer, [], options, base=corpus, deleted=Deletions(rows))
            writer.facts |= {"excluded": len(rows), "why": why}
            writer.finish()
    return Corpus.open(folder)


# --- from staged parts to a corpus -----------------------------------------------------------------


def build_corpus(
    writer: ArtifactWriter,
    parts: Sequence[StagedPart],
    options: MergeOptions,
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
        tally.add(part.tally)
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
    with ThreadPoolExecutor(2) as pool:
        citations = pool.submit(
            write_citations,
            writer.folder,
            parts,
            index,
            papers,
            writer.scratch_folder("citations"),
            tally,
            memory=memory,
        )
        contexts = pool.submit(
            write_contexts,
            writer.folder / "contexts",
            parts,
            index,
            writer.scratch_folder("contexts"),
            tally,
            memory=memory,
        )
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
    tally.unkeep("papers", "same paper as another record (merged)", merged)


def _explain_empty(tally: Tally) -> str:
    """Return the error message of an import that keeps no record, with the reasons."""
    reasons = [f"{n:,} {kind}: {why}" for kind, c in tally.counts.items() for why, n in c.rejected.items()]
    if tally.counts["citations"].rejected.get("citing and cited paper not in the corpus"):
        return (
            "nothing to write: the citations name papers that no record describes; "
            "add the file of the papers, or turn the ids into papers with --outside keep"
        )
    return f"nothing to write: no record was kept ({'; '.join(reasons) or 'the inputs hold none'}); check the --format"
