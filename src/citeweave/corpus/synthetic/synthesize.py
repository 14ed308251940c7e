"""`synthesize`: writes a synthetic literature as a corpus, with its ground truth beside the columns.

truth/
  field problem method finding     one number per paper: equal numbers share it
  facet, facet_offsets             the facet of every sentence of every abstract
  noise                            one flag per citation: made for no reason
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, artifact_matches, new_artifact
from citeweave.core.columns import NumberWriter, TableWriter, open_numbers
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.executor import run_in_processes
from citeweave.core.hash_keys import Keys, hash_texts
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import KIND, VERSION, Corpus
from citeweave.corpus.ingest import build_corpus
from citeweave.corpus.options import ImportOptions, SyntheticOptions
from citeweave.corpus.paper import CitationBlock, Context, Intent, Paper
from citeweave.corpus.staged_parts import PartWriter, StagedFile, is_complete
from citeweave.corpus.synthetic.literature import LiteratureBlock, describe_literature, make_block, paper_id

PAPERS_PER_PART = 20_000
_CONCEPTS = ("field", "problem", "method", "finding")
_TRUTH: dict[str, Any] = {
    **dict.fromkeys(_CONCEPTS, np.int32),
    **{"facet": np.uint8, "facet_count": np.int64, "noise": np.bool_},
}


@dataclass(frozen=True, slots=True)
class PlantedTruth:
    """The ground truth of a synthetic corpus, memory-mapped, in the order of its rows and citations."""

    field: NDArray[np.int32]
    problem: NDArray[np.int32]
    method: NDArray[np.int32]
    finding: NDArray[np.int32]
    facet: NDArray[np.uint8]
    facet_offsets: NDArray[np.int64]
    noise: NDArray[np.bool_]


def synthesize(
    output: str | Path,
    options: SyntheticOptions,
    *,
    workers: int = 0,
    memory: int = 256 * 2**20,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Corpus:
    """Write a synthetic corpus; the same options give the same bytes with any number of workers."""
    if workers < 0:
        raise UserError(f"--workers is {workers}; it must be 0 (one per core) or more")
    folder = Path(output)
    recipe = {"synthetic": asdict(options)}
    if not artifact_matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            parts = _stage(options, writer, workers or os.cpu_count() or 1, reporter)
            build_corpus(writer, parts, ImportOptions(same_title="never", memory=memory), reporter=reporter)
            _write_truth(writer.folder / "truth", parts)
            writer.facts |= describe_literature(options)
            writer.finish()
    return Corpus.open(folder)


def open_truth(corpus: Corpus) -> PlantedTruth:
    """Open the ground truth of a synthetic corpus."""
    folder = corpus.folder / "truth"
    if not folder.is_dir():
        raise ArtifactError(
            f"{corpus.folder} is not a synthetic corpus: it has no truth/; make one with `citeweave synthesize`"
        )
    columns: dict[str, Any] = {n: open_numbers(folder / f"{n}.npy", k) for n, k in _TRUTH.items() if n != "facet_count"}
    return PlantedTruth(**columns, facet_offsets=open_numbers(folder / "facet_offsets.npy", np.int64))


def _stage(options: SyntheticOptions, writer: ArtifactWriter, workers: int, reporter: Reporter) -> list[StagedFile]:
    starts = range(0, options.papers, PAPERS_PER_PART)
    folders = [writer.scratch_folder("parts") / f"{start:09d}" for start in starts]
    todo = [(start, folder) for start, folder in zip(starts, folders, strict=True) if not is_complete(folder)]
    total = min(len(todo) * PAPERS_PER_PART, options.papers)
    jobs = [partial(_stage_part, options, start, folder) for start, folder in todo]
    with reporter.task("writing papers", total=total, unit="papers") as advance:
        for _ in run_in_processes(jobs, 1 if len(todo) <= 2 else workers):
            advance(min(PAPERS_PER_PART, total))
    return [StagedFile(folder) for folder in folders]


def _stage_part(options: SyntheticOptions, start: int, folder: Path) -> None:
    literature = make_block(options, start, min(start + PAPERS_PER_PART, options.papers))
    part = PartWriter(folder, keep_ids=False)
    part.add(_papers(literature))
    part.add(_citations(literature, options))
    part.add(_contexts(literature, options))
    _stage_truth(folder / "truth", literature)
    part.finish({"name": f"papers {literature.start} to {literature.stop - 1}", "format": "synthetic"})


def _papers(part: LiteratureBlock) -> Iterator[Paper]:
    one = part.papers
    return map(Paper, one.ids, one.titles, one.abstracts, one.years.tolist(), one.venues, one.authors, one.fields)


def _citations(part: LiteratureBlock, options: SyntheticOptions) -> Iterator[CitationBlock]:
    citations = part.citations
    influential = np.zeros(len(citations.citing), np.bool_)
    citing, cited = _keys(citations.citing, options), _keys(citations.cited, options)
    yield CitationBlock(citing, cited, citations.intents, citations.strength, influential, lambda: ([], []))


def _keys(rows: NDArray[Any], options: SyntheticOptions) -> Keys:
    distinct, place = np.unique(rows, return_inverse=True)
    return hash_texts([paper_id(options, row) for row in distinct.tolist()])[place]


def _contexts(part: LiteratureBlock, options: SyntheticOptions) -> Iterator[Context]:
    one = part.contexts
    columns = (one.citing.tolist(), one.texts, one.cited, one.sections, one.intents.tolist())
    for citing, text, cited, section, intents in zip(*columns, strict=True):
        cited_ids = tuple(paper_id(options, row) for row in cited)
        yield Context(paper_id(options, citing), text, cited_ids, section, Intent(intents))


def _stage_truth(folder: Path, part: LiteratureBlock) -> None:
    truth = part.truth
    columns: dict[str, Any] = {name: getattr(truth, name) for name in _CONCEPTS}
    columns["facet"] = [facet for facets in truth.facets for facet in facets]
    columns["facet_count"] = [len(facets) for facets in truth.facets]
    columns["noise"] = part.citations.noise
    table = TableWriter(folder, _TRUTH)
    table.append(**columns)
    table.close()


def _write_truth(folder: Path, parts: list[StagedFile]) -> None:
    for name, kind in _TRUTH.items():
        counted = name == "facet_count"
        writer = NumberWriter(folder / ("facet_offsets.npy" if counted else f"{name}.npy"), kind)
        end = 0
        if counted:
            writer.append([0])
        for part in parts:
            column = open_numbers(part.folder / "truth" / f"{name}.npy", kind)
            writer.append(end + np.cumsum(column) if counted else column)
            end += int(column.sum()) if counted else 0
        writer.close()
