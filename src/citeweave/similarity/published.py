"""Vectors that others have published, read from files into a folder of vectors.

    import_vectors(["embeddings-specter_v2/"], "vectors/")     Semantic Scholar's shards, model and revision as they say
    import_vectors(["specter.npy"], "vectors/", model="specter")     with specter.ids beside it

One import holds the vectors of one model. Every record is kept or counted with a reason. Which files can be
read is told in `vector_files.py`; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.artefacts.writing import matches
from citeweave.errors import InputError, UserError
from citeweave.files import hash_file
from citeweave.opening import Source
from citeweave.progress import QUIET, Reporter
from citeweave.similarity.provenance import MAX_DIMENSION
from citeweave.similarity.vector_files import Record, list_of_ids, reader_for
from citeweave.similarity.vectors import KIND, VERSION, Vectors, VectorsWriter, new_vectors

OTHER_LENGTH = "another length than the first vector"
TOO_LONG = f"vector of more than {MAX_DIMENSION:,} numbers"

_BLOCK = 1024
_READERS_VERSION = 1
"""Counted up when the same files would give other vectors, so that none of an older version is taken for them."""


def import_vectors(
    paths: Sequence[str | Path],
    output: str | Path,
    *,
    model: str = "",
    revision: str = "",
    dtype: str = "float16",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Vectors:
    """Read files, or all files of folders, into a new folder of vectors.

    `model` and `revision` name the model where the files do not, or rename it. Of several vectors of one id the
    first is kept. A folder that already holds this very import is opened as it is.
    """
    files = _find([Path(path) for path in paths])
    readers = {path: reader_for(path) for path in files}
    options = {"model": model, "revision": revision, "dtype": dtype}
    recipe = {"inputs": _hashes(files), "options": options, "readers": _READERS_VERSION}
    if matches(Path(output), KIND, VERSION, recipe):
        return Vectors.open(output)
    source = ", ".join(path.name for path in files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    with new_vectors(
        output, model=model, revision=revision, source=source, dtype=dtype, recipe=recipe, overwrite=overwrite
    ) as writer:
        intake = _Intake(writer, model)
        with reporter.task("reading vectors", total=len(files), unit="files") as advance:
            for path, read in readers.items():
                intake.take(path, read(Source(path), writer.tally))
                advance(1)
        intake.finish(revision)
        return writer.finish()


class _Intake:
    """Gathers records into blocks, and sees to it that they are of one model and one length."""

    def __init__(self, writer: VectorsWriter, model: str) -> None:
        self._writer, self._given = writer, model
        self._model: str | None = None
        self._length = 0
        self._block: list[Record] = []

    def take(self, path: Path, records: Iterator[Record]) -> None:
        for record in records:
            self._check_model(path, record.model or self._given)
            length = len(record.vector)
            if length > MAX_DIMENSION:
                self._writer.tally.reject("vectors", TOO_LONG)
                continue
            self._length = self._length or length
            if length != self._length:
                self._writer.tally.reject("vectors", OTHER_LENGTH)
                continue
            self._block.append(record)
            if len(self._block) == _BLOCK:
                self._flush()

    def finish(self, revision: str) -> None:
        """Hand over the last block and the name of the model that the files gave."""
        self._flush()
        count = self._writer.tally.counts["vectors"]
        others = count.rejected.get(OTHER_LENGTH, 0)
        if others > count.kept:
            raise UserError(
                f"{others:,} vectors have another length than the first one, {self._length}, and only "
                f"{count.kept:,} have the same; import the files of one model, without the damaged one"
            )
        if not self._given:
            # Semantic Scholar writes "specter_v2@v0.1.1"
            name, _, recorded = (self._model or "").partition("@")
            self._writer.facts |= {"model": name, "revision": revision or recorded}

    def _check_model(self, path: Path, model: str) -> None:
        if self._model is None:
            self._model = model
        elif model != self._model:
            raise UserError(
                f"{path} holds vectors of {_called(model)}, but others of this import are of {_called(self._model)}; "
                "import each model into a folder of its own"
            )

    def _flush(self) -> None:
        if self._block:
            with np.errstate(over="ignore"):
                # float32 holds what a model computes; what it does not hold becomes infinite and is counted as such
                rows = np.stack([record.vector.astype(np.float32) for record in self._block])  # (block, dimension)
            self._writer.append([record.id for record in self._block], rows)
            self._block.clear()


def _called(model: str) -> str:
    return f"{model[:100]!r}" if model else "an unnamed model (name it with --model)"


def _find(paths: list[Path]) -> list[Path]:
    """The files to read: folders are walked through, lists of ids belong to their arrays."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file())
            found += [p for p in inside if not any(part.startswith(".") for part in p.relative_to(path).parts)]
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"{path} does not exist; name files or folders of vectors")
    lists = {list_of_ids(path) for path in found if path.name.endswith(".npy")}
    files = list(dict.fromkeys(path for path in found if path not in lists))
    if not files:
        raise InputError(f"{', '.join(map(str, paths)) or 'the import'}: no file of vectors found; check the path")
    return files


def _hashes(files: list[Path]) -> list[dict[str, Any]]:
    described = []
    for path in files:
        both = [path, list_of_ids(path)] if path.name.endswith(".npy") else [path]
        try:
            described += [{"name": p.name, "sha256": hash_file(p)} for p in both if p is not None]
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; check its permissions") from None
    return described
