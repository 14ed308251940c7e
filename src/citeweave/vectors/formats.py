"""Published vectors imported from files: JSON lines, NumPy arrays with a list of ids, Parquet.

    {"corpusid": 1, "model": "specter_v2@v0.1.1", "vector": "[0.1, ...]", "updated": "..."}   Semantic Scholar: `s2:1`
    {"paper_id": "a1b2...", "embedding": [0.1, ...]}       SPECTER; SciDocs and SciRepEval say `doc_id` or `id`
    specter.npy beside specter.ids (or .ids.txt, .txt)     one id per line, as many as the array has rows
    vectors.parquet                                        a column of ids and a column of lists of numbers

    import_vectors(["embeddings-specter_v2/"], "vectors/")           Semantic Scholar's shards, which name their model
    import_vectors(["specter.npy"], "vectors/", model="specter")     with specter.ids beside it

One import holds the vectors of one model. Every record is kept or counted with a reason. Never loads pickled objects and
downloads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from citeweave.core.artifact import artifact_matches
from citeweave.core.columns import map_array
from citeweave.core.errors import InputError, UserError
from citeweave.core.files import hash_file
from citeweave.core.inputs import (
    BadRecordError,
    Source,
    open_parquet,
    parse_json,
    read_json_lines,
    read_parquet_batches,
)
from citeweave.core.progress import QUIET, Reporter, Tally
from citeweave.vectors.vectors import (
    KIND,
    MAX_DIMENSION,
    VERSION,
    Vectors,
    VectorsWriter,
    new_vectors,
)

NO_ID = "no usable id"
NO_VECTOR = "no vector"
NOT_NUMBERS = "vector that is not a list of numbers"
OTHER_LENGTH = "another length than the first vector"
TOO_LONG = f"vector of more than {MAX_DIMENSION:,} numbers"

_CORPUS_ID = "corpusid"
_ID_NAMES = (_CORPUS_ID, "paper_id", "doc_id", "id", "corpus_id")
_VECTOR_NAMES = ("vector", "embedding", "embeddings", "emb")
_IDS_ENDINGS = (".ids", ".ids.txt", ".txt")
_MAX_ID_LENGTH = 500
_BLOCK = 1024
_READERS_VERSION = 1
"""Incremented when the same files would give other vectors, so that an older import is not reused."""


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
    """Import vectors in published formats from files, or all files of folders, into a new vectors folder.

    `model` and `revision` name the model where the files do not, or rename it. Of several vectors of one id the
    first is kept. A folder that already holds the same import is opened.
    """
    files = _list_files([Path(path) for path in paths])
    readers = {path: reader_for(path) for path in files}
    options = {"model": model, "revision": revision, "dtype": dtype}
    recipe = {"inputs": _hashes(files), "options": options, "readers": _READERS_VERSION}
    if artifact_matches(Path(output), KIND, VERSION, recipe):
        return Vectors.open(output)
    source = ", ".join(path.name for path in files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    with new_vectors(
        output, model=model, revision=revision, source=source, dtype=dtype, recipe=recipe, overwrite=overwrite
    ) as writer:
        intake = _ImportBlocks(writer, model)
        with reporter.task("reading vectors", total=len(files), unit="files") as advance:
            for path, read in readers.items():
                intake.take(path, read(Source(path), writer.tally))
                advance(1)
        intake.finish(revision)
        return writer.finish()


class _ImportBlocks:
    """Collects imported vectors into blocks and checks that all have one model and one length."""

    def __init__(self, writer: VectorsWriter, model: str) -> None:
        self._writer, self._named = writer, model
        self._model: str | None = None
        self._length = 0
        self._block: list[Record] = []

    def take(self, path: Path, records: Iterator[Record]) -> None:
        for record in records:
            self._check_model(path, record.model or self._named)
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
        """Write the last block of imported vectors and the model's name as the files give it."""
        self._flush()
        count = self._writer.tally.counts["vectors"]
        others = count.rejected.get(OTHER_LENGTH, 0)
        if others > count.kept:
            raise UserError(
                f"{others:,} vectors have another length than the first one, {self._length}, and only "
                f"{count.kept:,} have the same; import the files of one model, without the damaged one"
            )
        if not self._named:
            # Semantic Scholar writes "specter_v2@v0.1.1"
            name, _, recorded = (self._model or "").partition("@")
            self._writer.metadata |= {"model": name, "revision": revision or recorded}

    def _check_model(self, path: Path, model: str) -> None:
        if self._model is None:
            self._model = model
        elif model != self._model:
            one, other = (
                repr(name[:100]) if name else "an unnamed model (name it with --model)" for name in (model, self._model)
            )
            raise UserError(
                f"{path} holds vectors of {one}, but others of this import are of {other}; "
                "import each model into a folder of its own"
            )

    def _flush(self) -> None:
        if self._block:
            with np.errstate(over="ignore"):
                # numbers beyond float32 become infinite and are rejected as such
                rows = np.stack([record.vector.astype(np.float32) for record in self._block])  # (block, dimension)
            self._writer.append([record.id for record in self._block], rows)
            self._block.clear()


def _list_files(paths: list[Path]) -> list[Path]:
    """List the vector files of paths and folders; lists of ids belong to their arrays."""
    candidates: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file())
            candidates += [p for p in inside if not any(part.startswith(".") for part in p.relative_to(path).parts)]
        elif path.is_file():
            candidates.append(path)
        else:
            raise UserError(f"{path} does not exist; name files or folders of vectors")
    lists = {_list_of_ids(path) for path in candidates if path.name.endswith(".npy")}
    files = list(dict.fromkeys(path for path in candidates if path not in lists))
    if not files:
        raise InputError(f"{', '.join(map(str, paths)) or 'the import'}: no file of vectors was found; check the path")
    return files


def _hashes(files: list[Path]) -> list[dict[str, Any]]:
    described = []
    for path in files:
        both = [path, _list_of_ids(path)] if path.name.endswith(".npy") else [path]
        try:
            described += [{"name": p.name, "sha256": hash_file(p)} for p in both if p is not None]
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; check its permissions") from None
    return described


@dataclass(frozen=True, slots=True)
class Record:
    """One vector of a published format, the id of its paper and, where the file names it, its model."""

    id: str
    vector: NDArray[Any]
    """One-dimensional, of any type of number; it may hold numbers that are not finite."""

    model: str = ""


Reader = Callable[[Source, Tally], Iterator[Record]]


def reader_for(path: Path) -> Reader:
    """Choose the reader for the format of a file of published vectors, by its first bytes."""
    source = Source(path)
    head = source.head()
    if head.data.startswith(b"\x93NUMPY"):
        return read_array
    if head.data.startswith(b"PAR1"):
        return _read_parquet
    record = head.record
    if head.data.lstrip().startswith(b"{") and (record is None or _has_vector(record)):
        return read_json
    raise InputError(
        f"{path} holds no vectors that citeweave can read; supported are JSON lines with an id and a vector or embedding, "
        ".npy with a list of ids beside it, and .parquet"
    )


def _list_of_ids(path: Path) -> Path | None:
    """Return the file with the ids of a NumPy array: `X.ids`, `X.ids.txt` or `X.txt` beside `X.npy`."""
    candidates = (path.with_name(path.name.removesuffix(".npy") + ending) for ending in _IDS_ENDINGS)
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def read_json(source: Source, tally: Tally, *, on_empty: Callable[[str], None] | None = None) -> Iterator[Record]:
    """Yield the published vectors of a file in the format JSON lines.

    `on_empty` is called with each id whose vector is an empty list, as published files mark a paper without text.
    """
    for record in read_json_lines(source, tally, "vectors"):
        id = _id_of(record)
        value = next((record[name] for name in _VECTOR_NAMES if name in record), None)
        if not id:
            tally.reject("vectors", NO_ID)
        elif value is None or value in ([], "", "[]"):
            tally.reject("vectors", NO_VECTOR)
            if on_empty is not None:
                on_empty(id)
        elif (vector := _numbers(value)) is None:
            tally.reject("vectors", NOT_NUMBERS)
        else:
            model = record.get("model")
            yield Record(id, vector, model if isinstance(model, str) else "")


def read_array(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the published vectors of a file in NumPy's array format, with the ids of the list beside it."""
    ids_path = _list_of_ids(source.path)
    if ids_path is None:
        raise InputError(
            f"{source.path} has no list of ids beside it; write {source.path.stem}.ids with one id per line, "
            "in the order of the rows"
        )
    matrix = _open_array(source.path)
    lines = _count_lines(ids_path)
    if lines != len(matrix):
        raise InputError(f"{ids_path} has {lines:,} ids for the {len(matrix):,} rows of {source.path}; they must agree")
    with Source(ids_path).open() as stream:
        for row in range(len(matrix)):
            line = stream.readline(2**16).removeprefix(b"\xef\xbb\xbf")
            if id := _usable_id(line.decode("utf-8", "replace")):
                yield Record(id, np.array(matrix[row]))
            else:
                tally.reject("vectors", NO_ID)


def _read_parquet(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the vectors of a Parquet file with a column of ids and a column of lists of numbers."""
    try:
        with open_parquet(source.path) as file:
            id_name, vector_name = _columns(source.path, pq.read_schema(source.path))
            for batch in read_parquet_batches(file, source.path, rows=_BLOCK, columns=[id_name, vector_name]):
                ids = batch.column(id_name).to_pylist()
                for value, vector in zip(ids, batch.column(vector_name), strict=True):
                    if not (id := _id_of({id_name: value})):
                        tally.reject("vectors", NO_ID)
                    elif not vector.values:
                        tally.reject("vectors", NO_VECTOR)
                    else:  # a null inside a list becomes NaN
                        yield Record(id, vector.values.to_numpy(zero_copy_only=False))
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise InputError(f"{source.path} cannot be read as Parquet ({_reason(error)}); get the file again") from None


def _has_vector(record: dict[str, object]) -> bool:
    return any(name in record for name in _VECTOR_NAMES) and any(name in record for name in _ID_NAMES)


def _id_of(record: dict[str, Any]) -> str:
    """Return the paper id of a published record, with the prefix `s2:` for Semantic Scholar's corpus ids."""
    name = next((name for name in _ID_NAMES if record.get(name) is not None), "")
    value = record.get(name)
    text = _usable_id(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if name == _CORPUS_ID:
        return f"s2:{int(text)}" if text.isascii() and text.isdigit() and len(text) < 20 else ""
    return text


def _usable_id(text: str) -> str:
    text = text.strip()
    # no control characters, lone surrogates or replacement characters
    return text if 0 < len(text) <= _MAX_ID_LENGTH and text.isprintable() and "\ufffd" not in text else ""


def _numbers(value: object) -> NDArray[Any] | None:
    """Convert a list of numbers, or its JSON text, to a vector; None for anything else."""
    if isinstance(value, str):
        try:
            value = parse_json(value.encode("utf-8", "replace"))
        except BadRecordError:
            return None
    if not isinstance(value, list):
        return None
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        return None
    return array if array.ndim == 1 and array.dtype.kind in "fiu" else None


def _open_array(path: Path) -> NDArray[Any]:
    try:
        array = map_array(path)
    except (ValueError, OSError) as error:
        again = "get the file again, or decompress it if it is compressed"
        raise InputError(f"{path} cannot be read as a NumPy array ({_reason(error)}); {again}") from None
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.shape[1]:
        raise InputError(f"{path} does not hold one matrix of numbers, one row per paper; write it with numpy.save")
    return array


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _count_lines(path: Path) -> int:
    """Count the lines of an id list up to the last one that is not blank."""
    number = filled = 0
    with Source(path).open() as stream:
        while line := stream.readline(2**16):
            number += 1
            filled = number if line.strip() else filled
    return filled


def _columns(path: Path, schema: pa.Schema) -> tuple[str, str]:
    """Return the names of the Parquet columns of ids and of vectors."""
    lists = [field.name for field in schema if _is_list_of_numbers(field.type)]
    vector = next((name for name in _VECTOR_NAMES if name in lists), lists[0] if len(lists) == 1 else None)
    id = next((name for name in _ID_NAMES if name in schema.names and _is_id(schema.field(name).type)), None)
    if vector is None or id is None:
        raise InputError(
            f"{path} has no column of ids ({', '.join(_ID_NAMES)}) or no column of lists of numbers; its columns are "
            f"{', '.join(schema.names)[:200]}: rename them"
        )
    return id, vector


def _is_list_of_numbers(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)))


def _is_id(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))
