"""`import_papers`: files of any known format become one corpus, every record accounted for.

read      every input file becomes a staged part, several at a time; done parts survive an interruption
merge     records of one paper find each other; papers get rows
write     columns of papers, citations, contexts, index; one rename makes them the corpus

From staged parts to the files of a corpus: merge papers, write columns, link citations and contexts.
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

from citeweave.core.artifact import ArtifactWriter, check_files, matches, new_artifact
from citeweave.core.columns import open_numbers
from citeweave.core.errors import EmptyResultError, InputError, UserError, choose
from citeweave.core.executor import processes
from citeweave.core.files import hash_json
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Reporter, Tally
from citeweave.corpus.corpus import KIND, VERSION, Corpus, IdIndex
from citeweave.corpus.input_files import InputFile, InputFiles, find_inputs
from citeweave.corpus.link import write_citations, write_contexts
from citeweave.corpus.merge import OUTSIDE, SAME_TITLE, Assignment, MergeOptions, Staged, merge_papers
from citeweave.corpus.paper import MAX_REFERENCES, NameCollector, OutsideName
from citeweave.corpus.paper_columns import build_index, stage_outside, write_merges, write_papers
from citeweave.corpus.readers import reader_of
from citeweave.corpus.staged_parts import PartWriter, StagedFile, StagedPart, is_complete
from citeweave.corpus.update import BasePart, Deletions, find_deletions, share_unchanged, write_changes

READERS_VERSION = 5
"""Raised when a reader starts to give other records for the same file, so that old parts are not used."""

_ONE_PROCESS_BELOW = 64 * 2**20
"""Inputs smaller than this in all are read without starting processes."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What `citeweave import` can be told. Workers, memory and strict change how, never what."""

    format: str | None = None
    """Format of all files; guessed for each file where not given."""

    outside: str = "drop"
    """Papers known only as references of others: `drop` them, or `keep` them as rows with what is known."""

    same_title: str = "across"
    """Merge records of equal title and year: `across` files, `always` (also within one file), `never`."""

    memory: int = 256 * 2**20
    """Bytes that each sorting step may hold; more is sorted through files."""

    workers: int = 0
    """Processes that read; 0 = one a core."""

    strict: bool = False
    """Refuse folders with files that would be left aside, instead of counting those."""

    def __post_init__(self) -> None:
        choose(self.outside, OUTSIDE, "--outside")
        choose(self.same_title, SAME_TITLE, "--same-title")
        if self.memory < 2**20:
            raise UserError(f"--memory is {self.memory} bytes; it must be at least 1 MB, such as --memory 256MB")
        if self.workers < 0:
            raise UserError(f"--workers is {self.workers}; it must be 0 (one a core) or more")

    def merge(self) -> MergeOptions:
        return MergeOptions(self.same_title, self.outside, self.memory)


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import gave."""

    corpus: Corpus
    inputs: InputFiles
    skipped: bool
    """True where the folder already held this very corpus and nothing was done."""


def import_papers(
    paths: str | Path | Sequence[str | Path],
    output: str | Path,
    options: ImportOptions | None = None,
    *,
    update: str | Path | None = None,
    delete: Sequence[str | Path] = (),
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Imported:
    """Import files or folders into a new corpus folder.

    `update` names a corpus that the new one continues; `delete` names files whose papers and citations
    are to be left out of it. The same inputs and options give the same bytes, in any order and with any number of workers.
    """
    options = options or ImportOptions()
    folder = Path(output)
    given = [paths] if isinstance(paths, str | Path) else paths
    inputs = find_inputs([Path(path) for path in given], options.format, keep_outside=options.outside == "keep")
    base = Corpus.open(update) if update is not None else None
    if delete and base is None:
        raise UserError("--delete removes papers of a corpus that is updated; name that corpus with --update")
    deletions: list[InputFile] = []
    if delete:
        named = find_inputs([Path(path) for path in delete], None, keep_outside=True)
        deletions, inputs = named.files, replace(inputs, left_aside=inputs.left_aside + named.left_aside)
    if options.strict:
        inputs.refuse_left_aside()
    inputs = replace(inputs, files=_in_order(_hash_all(inputs.files, reporter)))
    deletions = _in_order(_hash_all(deletions, reporter))
    recipe = _recipe(inputs.files, deletions, options, base)
    if matches(folder, KIND, VERSION, recipe):
        return Imported(Corpus.open(folder), inputs, skipped=True)
    with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        parts = _stage_all(inputs.files, writer, options, reporter)
        deleted = _stage_all(deletions, writer, options, reporter)
        if options.outside == "keep":
            parts.append(stage_outside(parts, writer.work("outside"), memory=options.memory))
        gone = None
        with nullcontext() if base is None else base.unchanged():
            if base is not None:
                check_files(base.folder, base.manifest, content=True)  # damage must not be handed on
            if base is not None and deletions:
                gone = find_deletions(base, deleted)
                writer.facts["deletions_not_found"] = gone.not_found
            build_corpus(writer, parts, options.merge(), base=base, gone=gone, reporter=reporter)
        writer.facts |= {**inputs.account(), "formats": inputs.formats()}
        writer.finish()
    return Imported(Corpus.open(folder), inputs, skipped=False)


def _in_order(files: list[InputFile]) -> list[InputFile]:
    """By name and content: which record wins, and which row a paper gets, must not depend on the order given."""
    return sorted(files, key=lambda file: (file.inside or file.name, file.sha256, file.format))


def _recipe(
    files: list[InputFile],
    deletions: list[InputFile],
    options: ImportOptions,
    base: Corpus | None,
) -> dict[str, Any]:
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
    """Stage every file that is not staged yet; parts come back in the order of the files."""
    keep_ids = options.outside == "keep"
    folders = [writer.shared_work("parts") / _part_name(file, keep_ids) for file in files]
    jobs = {folder: file for folder, file in zip(folders, files, strict=True) if not is_complete(folder)}
    size = sum(file.bytes for file in jobs.values())
    with reporter.task("reading", total=size, unit="bytes") as advance:
        for done in _run(jobs, keep_ids, options.workers or os.cpu_count() or 1, size):
            advance(done.bytes)
    return [StagedFile(folder) for folder in folders]


def _part_name(file: InputFile, keep_ids: bool) -> str:
    return hash_json([file.sha256, file.format, file.name, keep_ids, READERS_VERSION])[:32]


def _run(jobs: dict[Path, InputFile], keep_ids: bool, workers: int, size: int) -> Iterator[InputFile]:
    if workers == 1 or len(jobs) <= 1 or size < _ONE_PROCESS_BELOW:
        for folder, file in jobs.items():
            stage_file(file, folder, keep_ids=keep_ids)
            yield file
        return
    # fresh processes: forking one that has started threads can hang
    with ProcessPoolExecutor(processes(workers, len(jobs)), mp_context=get_context("spawn")) as pool:
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
    """What reading a file costs, for the order of jobs only: bulk citations are read by compiled code."""
    return file.bytes * (0.1 if file.format == "s2ag" and "citations" in file.path.name else 1.0)


def stage_file(file: InputFile, folder: Path, *, keep_ids: bool) -> None:
    """Read one file into a part folder."""
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
    """A new generation without these rows and their citations, such as the papers of a benchmark."""
    folder = Path(output)
    recipe = {"update": corpus.hash, "excluded": hash_json(sorted(corpus.ids.take(rows))), "why": why}
    if not matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            with corpus.unchanged():
                check_files(corpus.folder, corpus.manifest, content=True)  # damage must not be handed on
                options = MergeOptions(same_title="never", outside="keep")
                build_corpus(writer, [], options, base=corpus, gone=Deletions(rows))
            writer.facts |= {"excluded": len(rows), "why": why}
            writer.finish()
    return Corpus.open(folder)


# From staged parts to the files of a corpus: merge papers, write columns, link citations and contexts.


def build_corpus(
    writer: ArtifactWriter,
    parts: Sequence[StagedPart],
    options: MergeOptions,
    *,
    base: Corpus | None = None,
    gone: Deletions | None = None,
    reporter: Reporter = QUIET,
) -> None:
    """Write all columns of a corpus and its facts.

    With `base`, of a new generation of that corpus; `gone` is what to leave out of it.
    """
    if base is not None:
        parts = [BasePart(base, gone.citations if gone is not None else None), *parts]
    tally = Tally()
    for part in parts:
        tally.add(part.tally)
    staged, work = Staged(parts), writer.work("sort")
    dropped = np.zeros(len(staged), np.bool_)
    if gone is not None:
        dropped[gone.rows] = True  # the base's papers are the first staged ones
    reporter.say(f"merging {len(staged):,} records of papers")
    assignment = merge_papers(staged, work, options, base_papers=0 if base is None else len(base), dropped=dropped)
    if base is not None and len(base) and not assignment.papers:
        raise EmptyResultError(
            "nothing to write: no paper of the corpus would be left; keep some, or check the benchmark"
        )
    _account_for_papers(staged, assignment, dropped, tally)
    write_papers(writer.folder / "papers", staged, assignment, tally)
    write_merges(writer.folder / "merges", staged, assignment)
    index = build_index(writer.folder / "papers", staged, assignment, work, memory=options.memory)
    citations, contexts = _link(writer, parts, index, assignment.papers, tally, options.memory, reporter)
    _name_outside(writer, staged, assignment)
    if not (assignment.papers or citations or contexts):
        raise EmptyResultError(_nothing_kept(tally))
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
    """Write citations and contexts, side by side: most of the work is compiled and leaves Python to the other."""
    counts = [sum(getattr(part, name) for part in parts) for name in ("citation_count", "context_count")]
    reporter.say(f"linking {counts[0]:,} citations and {counts[1]:,} contexts")
    with ThreadPoolExecutor(2) as pool:
        citations = pool.submit(
            write_citations, writer.folder, parts, index, papers, writer.work("citations"), tally, memory=memory
        )
        contexts = pool.submit(
            write_contexts, writer.folder / "contexts", parts, index, writer.work("contexts"), tally, memory=memory
        )
        return citations.result(), contexts.result()


def _name_outside(writer: ArtifactWriter, staged: Staged, assignment: Assignment) -> None:
    """What the papers outside are called: by records that became no row, which may have a title, else by the cited ids."""
    keys = open_numbers(writer.folder / "references_outside" / "key.npy", np.uint64)
    if len(keys) > MAX_REFERENCES:
        return
    names = NameCollector(keys)
    years = staged.numbers("year")
    for block in staged.id_keys():
        without_row = block[assignment.row[block["row"]] < 0]

        def take(rows: list[int], staged_rows: NDArray[np.int64] = without_row["row"]) -> list[OutsideName]:
            own = [int(staged_rows[row]) for row in rows]
            return [OutsideName(staged.text("id", row), staged.text("title", row), int(years[row])) for row in own]

        names.offer(without_row["key"], take)
    for part in staged.parts:
        part.offer_names(names)
    names.write(writer.folder)


def _describe_update(writer: ArtifactWriter, base: Corpus, assignment: Assignment) -> None:
    old = base.manifest.facts
    writer.facts |= {name: value for name, value in old.items() if name in ("made_up", "note")}
    writer.facts["generation"] = int(old.get("generation", 1)) + 1
    writer.facts["changes"] = write_changes(writer.folder, base, assignment)
    writer.facts["update_of"] = base.hash
    writer.facts["shared_files"] = share_unchanged(writer.folder, base)


def _account_for_papers(staged: Staged, assignment: Assignment, dropped: NDArray[np.bool_], tally: Tally) -> None:
    unused = int(((assignment.row < 0) & ~dropped).sum())
    merged = len(staged) - int(dropped.sum()) - unused - assignment.papers
    tally.unkeep("papers", "deleted on request", int(dropped.sum()))
    tally.unkeep("papers", "known only as a reference", unused)
    tally.unkeep("papers", "same paper as another record (merged)", merged)


def _nothing_kept(tally: Tally) -> str:
    reasons = [f"{n:,} {kind}: {why}" for kind, c in tally.counts.items() for why, n in c.rejected.items()]
    if tally.counts["citations"].rejected.get("citing and cited paper not in the corpus"):
        return (
            "nothing to write: the citations name papers that no record describes; "
            "add the papers' file, or make rows of the ids with --outside keep"
        )
    return f"nothing to write: no record was kept ({'; '.join(reasons) or 'the inputs hold none'}); check the --format"
