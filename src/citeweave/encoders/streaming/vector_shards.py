"""From shards to a folder of vectors: one row a paper, or several.

    plan = Plan(ids, facts, recipe, "float32", shard=16384)
    write_vectors(Path("vectors"), plan, makers, reporter=reporter)
    write_vectors(Path("vectors"), plan, FinishedShards(work, "papers"))

Shards stay in the partial folder until all are there; then the folder is put together, paper after paper. For that
time the vectors are on the disk twice. Does not encode: a `Maker` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.writing import ArtefactWriter, new_artefact
from citeweave.encoders.streaming.shards import Arrays, Hired, Maker, fill_shards, read_shards
from citeweave.progress import QUIET, SAVE_EVERY, Reporter
from citeweave.similarity import sentence_vectors, vectors
from citeweave.similarity.sentence_vectors import SentenceVectors, SentenceVectorsWriter
from citeweave.similarity.vectors import Vectors, VectorsWriter

NO_TEXT = "no text, or a vector of zeros"


@dataclass(frozen=True, slots=True)
class Plan:
    """Which papers become which folder."""

    ids: Sequence[str]
    """Asked for slices only."""

    facts: dict[str, str]
    """Model, revision, text recipe and source of the vectors."""

    recipe: dict[str, Any]
    """All that decides the result."""

    dtype: str
    shard: int
    """Papers of a shard."""

    batches: str = ""
    """What else decides the batches: shards of another plan are not taken over."""

    overwrite: bool = False
    save_every: float = SAVE_EVERY
    """Seconds of work after which the batches of a shard are saved."""


@dataclass(frozen=True, slots=True)
class FinishedShards:
    """Shards that already exist and hold the arrays of several folders: `papers.matrix`, `sentences.matrix`, ..."""

    work: Path
    name: str
    """The part of the arrays' names before the dot."""

    def read(self, total: int, size: int) -> Iterator[tuple[int, Arrays]]:
        """First row and arrays of every shard, in order; the arrays of the other folders are left out."""
        before = f"{self.name}."
        for start, arrays in read_shards(self.work, total, size):
            own = {name.removeprefix(before): array for name, array in arrays.items() if name.startswith(before)}
            yield start, {**own, "halved": arrays["halved"]}


Shards = Sequence[Maker] | Hired | FinishedShards
"""Who makes the shards of a folder, or where they are."""


def kept_rows(found: NDArray[np.float32], dtype: str) -> Arrays:
    """Shard of one vector a paper, (papers, dimension): rows of zeros are left out."""
    filled = np.flatnonzero(found.any(axis=1))  # (papers with a vector,)
    with np.errstate(over="ignore"):  # what is not finite is counted when it is written
        return {"rows": filled, "matrix": found[filled].astype(dtype)}


def write_vectors(folder: Path, plan: Plan, makers: Shards, *, reporter: Reporter = QUIET) -> Vectors:
    """One vector a paper; `makers` give `rows` and `matrix`."""
    with new_artefact(folder, vectors.KIND, vectors.VERSION, plan.recipe, overwrite=plan.overwrite) as artefact:
        shards = _filled(artefact, plan, makers, reporter)
        writer = VectorsWriter(folder, artefact, plan.dtype, plan.facts)
        try:
            for start, arrays in shards:
                names = plan.ids[start : start + plan.shard]
                rows = arrays["rows"].tolist()
                writer.tally.reject("vectors", NO_TEXT, len(names) - len(rows))
                writer.append([names[row] for row in rows], arrays["matrix"])
                _count(artefact, arrays)
            return writer.finish()
        finally:
            writer.close()


def write_ragged(folder: Path, plan: Plan, makers: Shards, *, reporter: Reporter = QUIET) -> SentenceVectors:
    """Several vectors a paper; `makers` give `offsets`, `numbers`, `matrix` and `lost`."""
    kind, version = sentence_vectors.KIND, sentence_vectors.VERSION
    with new_artefact(folder, kind, version, plan.recipe, overwrite=plan.overwrite) as artefact:
        shards = _filled(artefact, plan, makers, reporter)
        writer = SentenceVectorsWriter(folder, artefact, plan.dtype, plan.facts)
        try:
            for start, arrays in shards:
                names, cuts = plan.ids[start : start + plan.shard], arrays["offsets"]
                rows = np.flatnonzero(np.diff(cuts)).tolist()
                writer.tally.reject("papers", NO_TEXT, len(names) - len(rows))
                writer.append(
                    [names[row] for row in rows],
                    [arrays["matrix"][cuts[row] : cuts[row + 1]] for row in rows],
                    [arrays["numbers"][cuts[row] : cuts[row + 1]] for row in rows],
                )
                writer.tally.note("parts without a vector", int(arrays["lost"][0]))
                _count(artefact, arrays)
            return writer.finish()
        finally:
            writer.close()


def _filled(artefact: ArtefactWriter, plan: Plan, makers: Shards, reporter: Reporter) -> Iterator[tuple[int, Arrays]]:
    if isinstance(makers, FinishedShards):
        return makers.read(len(plan.ids), plan.shard)
    work = artefact.work(f"shards-{plan.shard}{plan.batches}")
    fill_shards(work, len(plan.ids), plan.shard, makers, save_every=plan.save_every, reporter=reporter)
    return read_shards(work, len(plan.ids), plan.shard)


def _count(artefact: ArtefactWriter, arrays: Arrays) -> None:
    if halved := int(arrays["halved"][0]):
        artefact.facts["out_of_memory"] = artefact.facts.get("out_of_memory", 0) + halved
