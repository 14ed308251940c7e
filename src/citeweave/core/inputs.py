"""Input files, compressed, huge, damaged or hostile: streams, lines, documents, JSON lines, Parquet tables.

A `Source` is one input file. Readers ask it for a stream, for lines or for one document; it decompresses (gzip, zstd,
bzip2, xz, recognized by their first bytes), bounds every size before memory is taken, and turns damage into one clear
error that names the file.

    with open_parquet(path) as file:
        for batch in read_parquet_batches(file, path, rows=8192, columns=["id", "title"]):
            batch.to_pylist()
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import orjson
from isal import igzip, igzip_lib

from citeweave.core.errors import InputError
from citeweave.core.files import check_regular, open_input
from citeweave.core.progress import Tally

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MAX_LINE = 64 * 2**20
"""Longest line of a line-based file, in bytes; a longer one is one rejected record."""

MAX_DOCUMENT = 512 * 2**20
"""Largest file that has to be read as one document (JSON, BibTeX, RIS), in bytes."""

_CHUNK = 2**20
_ZSTD_CHUNK = 2**11
"""Compressed bytes read at a time; in the worst case zstd expands them to some 64 MiB."""

_HEAD = 2**16
"""Bytes by which a format is recognized, unless the first record is longer."""

_UTF_8_MARK, _UTF_16_MARKS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")
_JSON_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\]]', re.DOTALL)
_MAX_DEPTH = 1024
"""JSON nested deeper is not read."""

_TOO_LONG = f"line longer than {MAX_LINE >> 20} MiB"


class BadRecordError(ValueError):
    """A record that cannot be read; the message is the reason to count, fixed and without the record's own text."""


@dataclass(frozen=True)
class FileHead:
    """The beginning of an input file, by which a reader recognizes its format; its first record is complete."""

    name: str
    data: bytes

    @property
    def text(self) -> str:
        """Return the first 64 KiB of the file as text: UTF-16 where its mark says so, else UTF-8."""
        return self.data[:_HEAD].decode("utf-16" if self.data[:2] in _UTF_16_MARKS else "utf-8", errors="replace")

    @cached_property
    def record(self) -> dict[str, object] | None:
        """Return the first line as a JSON object, None where the file does not start with one on one line."""
        line = self.data.lstrip().split(b"\n", 1)[0]
        if len(line) > MAX_LINE:
            return None
        try:
            return parse_json_object(line)
        except BadRecordError:
            return None


@dataclass(frozen=True, slots=True)
class Source:
    """One input file, opened afresh by every call."""

    path: Path

    @property
    def name(self) -> str:
        """Return the file name without folder and compression suffix: `papers.jsonl`."""
        name = self.path.name
        for suffix in (".gz", ".zst", ".bz2", ".xz"):
            name = name.removesuffix(suffix)
        return name

    def open(self) -> BinaryIO:
        """Open a stream of the decompressed bytes; damage raises `InputError` while reading."""
        return cast(BinaryIO, io.BufferedReader(_InputStream(self.path), buffer_size=_CHUNK))

    def start(self, size: int) -> bytes:
        """Return the first decompressed bytes, without the UTF-8 mark."""
        with self.open() as stream:
            return stream.read(size).removeprefix(_UTF_8_MARK)

    def head(self) -> FileHead:
        """Return name and beginning for guessing the format: 64 KiB, or more where the first record is longer."""
        with self.open() as stream:
            return FileHead(self.name, _with_first_record(_with_first_line(stream), stream).removeprefix(_UTF_8_MARK))

    def raw_lines(self, tally: Tally, kind: str) -> Iterator[bytes]:
        """Yield lines with their ends; one longer than `MAX_LINE` is skipped and counted under `kind`."""
        with self.open() as stream:
            while line := stream.readline(MAX_LINE + 1):
                if len(line) > MAX_LINE and not line.endswith(b"\n"):
                    tally.reject(kind, _TOO_LONG)
                    _skip_line(stream)
                else:
                    yield line

    def lines(self, tally: Tally, kind: str) -> Iterator[bytes]:
        """Yield non-empty lines, stripped; a too long one is skipped and counted under `kind`."""
        for line in self.raw_lines(tally, kind):
            if line := line.strip().removeprefix(_UTF_8_MARK):
                yield line

    def line_blocks(self, tally: Tally, kind: str, size: int = 8 * 2**20) -> Iterator[bytes]:
        """Yield the lines in blocks of about `size` bytes that end at a line end."""
        with self.open() as stream:
            while block := stream.read(size):
                if not block.endswith(b"\n"):
                    tail = stream.readline(MAX_LINE + 1)
                    block += tail
                    if len(tail) > MAX_LINE and not tail.endswith(b"\n"):
                        tally.reject(kind, _TOO_LONG)
                        _skip_line(stream)
                        block = block[: block.rfind(b"\n", 0, size) + 1]
                if block:
                    yield block

    def read_document(self) -> bytes:
        """Read an input file as one decompressed document, refused if it is larger than `MAX_DOCUMENT`."""
        with self.open() as stream:
            data = stream.read(MAX_DOCUMENT + 1)
        if len(data) > MAX_DOCUMENT:
            raise InputError(
                f"{self.path} is larger than {MAX_DOCUMENT >> 20} MiB once decompressed and must be read as one "
                "document; split it into several files"
            )
        return data

    def text(self, tally: Tally) -> str:
        """Read an input file as one document of text: UTF-8 (or UTF-16 with its mark), else Latin-1, which is noted."""
        data = self.read_document()
        if data[:2] in _UTF_16_MARKS:
            return data.decode("utf-16", errors="replace")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            tally.note("file is not UTF-8, read as Latin-1")
            return data.decode("cp1252", errors="replace")

    def json(self) -> object:
        """Return the file as one JSON document."""
        try:
            return parse_json(self.read_document().removeprefix(_UTF_8_MARK))
        except BadRecordError as error:
            raise InputError(f"{self.path} is not one JSON document ({error}); is it another format?") from None


def decode_line(line: bytes, tally: Tally) -> str:
    """Decode a line of an input file: UTF-8, with or without its mark, else Latin-1, which is noted."""
    try:
        return line.removeprefix(_UTF_8_MARK).decode()
    except UnicodeDecodeError:
        tally.note("line is not UTF-8, read as Latin-1")
        return line.removeprefix(_UTF_8_MARK).decode("cp1252", errors="replace")


def parse_json(data: bytes) -> object:
    """Parse one JSON value of an input file, or raise `BadRecordError`. Accepts the NaN and Infinity that Python writes."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if b"NaN" in data or b"Infinity" in data:
            return _parse_python_json(data)
        reason = "nested too deeply" if "depth limit" in str(error) else "not valid JSON"
        raise BadRecordError(reason) from None


def parse_json_object(data: bytes) -> dict[str, object]:
    """Parse one JSON object, or raise `BadRecordError`."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise BadRecordError("not a JSON object")
    return value


def read_json_lines(source: Source, tally: Tally, kind: str) -> Iterator[dict[str, object]]:
    """Yield the objects of a JSON-lines file; other lines are counted under `kind`."""
    for line in source.lines(tally, kind):
        try:
            yield parse_json_object(line)
        except BadRecordError as error:
            tally.reject(kind, str(error))


def _with_first_line(stream: BinaryIO) -> bytes:
    """Return the beginning of a file up to the end of its first line; a line too long for readers is passed over."""
    start = b""
    while data := stream.read(_HEAD):
        if not data.strip():
            continue
        if b"\n" not in data.lstrip():
            data += stream.readline(MAX_LINE + 1 - len(data))
        if len(data) <= MAX_LINE or b"\n" in data.lstrip():
            return data
        start = start or data
        _skip_line(stream)
    return start


def _with_first_record(data: bytes, stream: BinaryIO) -> bytes:
    """Extend the beginning of a file to the end of its first JSON object, where that spans several lines."""
    while len(data) < MAX_LINE and _first_object_end(data) < 0 and (more := stream.read(len(data))):
        data += more
    return data


def _first_object_end(data: bytes) -> int:
    """Return where the first object of a JSON document ends; 0 where there is none, -1 where it ends beyond the data.

    >>> _first_object_end(b' {"a": {}} {}'), _first_object_end(b'[{"a": "}"}, {'), _first_object_end(b'[{"a": "}')
    (10, 11, -1)
    """
    start = data.removeprefix(_UTF_8_MARK).lstrip()[:1]
    if start not in (b"{", b"["):
        return 0
    depth, outer = 0, int(start == b"[")
    for token in _JSON_TOKEN.finditer(data):
        text = token[0]
        if text in (b"{", b"["):
            depth += 1
            if depth > _MAX_DEPTH:
                return 0
        elif text in (b"}", b"]"):
            depth -= 1
            if depth <= outer:
                return token.end()
        elif text == b'"':
            break
    return -1


def _parse_python_json(data: bytes) -> object:
    try:
        return json.loads(data)
    except RecursionError:
        raise BadRecordError("nested too deeply") from None
    except ValueError:
        raise BadRecordError("not valid JSON") from None


def _skip_line(stream: BinaryIO) -> None:
    while chunk := stream.readline(_CHUNK):
        if chunk.endswith(b"\n"):
            return


# IsalError derives from nothing but Exception; its stub takes it for an instance
_ISAL_ERROR = cast(type[Exception], igzip_lib.IsalError)
_DAMAGE = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, _ISAL_ERROR)


class _InputStream(io.RawIOBase):
    """The decompressed bytes of an input file; every failure becomes an `InputError` with the path."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = open_input(path)
            self._stream = _decompress(self._file)
        except OSError as error:
            raise InputError(
                f"{path} cannot be opened: {error.strerror or error}; check the path and its permissions"
            ) from None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        try:
            data = self._stream.read(min(len(view), 8 * _CHUNK))  # else a document would be in memory twice
        except _DAMAGE as error:
            raise InputError(
                f"{self._path} is damaged or truncated ({str(error) or type(error).__name__}); "
                "get the file again and repeat the import, which resumes where it stopped"
            ) from None
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _decompress(file: BinaryIO) -> BinaryIO:
    """Return the stream of a file decompressed, by the magic bytes of its format."""
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, igzip.IGzipFile(fileobj=file, mode="rb"))  # type: ignore[no-untyped-call]
    if magic.startswith(b"BZh"):
        return cast(BinaryIO, bz2.BZ2File(file))
    if magic.startswith(b"\xfd7zXZ\x00"):
        return cast(BinaryIO, lzma.LZMAFile(file))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return cast(BinaryIO, _ZstdFile(file))
    return file


class _ZstdFile:
    """The bytes of a zstd file; the reader of the package takes a truncated file for a complete one."""

    def __init__(self, file: BinaryIO) -> None:
        import zstandard

        self._file, self._error = file, zstandard.ZstdError
        self._new_frame = zstandard.ZstdDecompressor(max_window_size=2**27).decompressobj
        self._frame = self._new_frame()
        self._is_inside, self._unread, self._ready = False, b"", memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self._ready:
            data = self._unread or self._file.read(_ZSTD_CHUNK)
            if not data:
                if self._is_inside:
                    raise EOFError("the file ends inside a frame")
                return b""
            self._ready = memoryview(self._decompress_frame(data))
        taken, self._ready = self._ready[:size], self._ready[size:]
        return bytes(taken)

    def _decompress_frame(self, data: bytes) -> bytes:
        try:
            content = self._frame.decompress(data)
        except self._error as error:
            raise OSError(str(error)) from None
        self._is_inside, self._unread = not self._frame.eof, self._frame.unused_data
        if self._frame.eof:
            self._frame = self._new_frame()
        return content


# Parquet tables. A text that a file stores once may be the value of a million rows, so texts are read as dictionaries, and
# the size of a batch is known before it is expanded. A page of the file is in memory at once, 2 GiB at most. pyarrow, which
# takes 40 MB of memory, is loaded only here.

MAX_BATCH = 1 << 30
"""Bytes of a batch; 8,192 rows of a table with full texts have less."""

_MAX_GROUP, _MAX_ROW = 64 << 20, 1 << 20
"""Bytes of a row group, and of its mean row where the group is larger; no paper needs more."""


def open_parquet(path: Path, **options: Any) -> pq.ParquetFile:
    """Open a Parquet input file with texts as dictionaries; refused if its metadata promise rows that no paper has."""
    import pyarrow.parquet as pq

    check_regular(path)
    metadata = pq.read_metadata(path)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)  # not its columns: pyarrow 26 aborts if the histogram of one is damaged
        if group.total_byte_size > _MAX_GROUP + _MAX_ROW * group.num_rows:
            raise InputError(
                f"{path}: {group.num_rows:,} rows of the table take {group.total_byte_size:,} bytes; a row may have "
                f"{_MAX_ROW:,} bytes on average: leave out the columns that hold more"
            )
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    return pq.ParquetFile(path, metadata=metadata, read_dictionary=texts, **options)


def read_parquet_batches(
    file: pq.ParquetFile, path: Path, *, rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a Parquet table in batches of rows; refused if a batch would be larger than `MAX_BATCH`."""
    import pyarrow as pa

    for batch in file.iter_batches(batch_size=rows, columns=columns):
        if (size := sum(_expanded_size(column, path) for column in batch.columns)) > MAX_BATCH:
            raise InputError(
                f"{path}: {len(batch):,} rows take {size:,} bytes once expanded; "
                f"{MAX_BATCH:,} are allowed: split the table, or leave out columns"
            )
        plain = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
        yield pa.RecordBatch.from_arrays(plain, names=batch.schema.names)


def _expanded_size(column: pa.Array, path: Path) -> int:
    """Return the bytes of a column without dictionaries; refused if it refers to texts its dictionary does not hold."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        lengths = pc.fill_null(pc.binary_length(column.dictionary), 0).to_numpy(zero_copy_only=False)
        used = pc.drop_null(column.indices).to_numpy(zero_copy_only=False)
        if len(used) and not 0 <= int(used.min()) <= int(used.max()) < len(lengths):  # pyarrow reads beyond its end
            raise InputError(f"{path} is damaged: a column refers to texts that it does not hold; get the file again")
        return int(lengths.astype("int64")[used].sum()) if len(used) else 0
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _expanded_size(column.flatten(), path)
    if pa.types.is_struct(column.type):
        return sum(_expanded_size(part, path) for part in column.flatten())
    return int(column.nbytes)
