"""Papers from Python: dictionaries and data frames, written as JSON lines, so that they are read, counted and hashed as a file.

    files, records = split_sources(["library.bib", [{"id": "a", "title": "Maps of science"}], frame])
    with written(records) as inputs:
        inputs[0].name                                  "records.jsonl"

Each list or frame is one input file. Its format is detected as that of a file, so that dictionaries of `plain.py` and the
answers of a service, such as works of OpenAlex, are read alike; dictionaries of no known format are read as plain ones, which
counts what they lack. The order of keys does not matter. Does not look into records: the readers do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeAlias

import orjson

from citeweave.core.arguments import show
from citeweave.core.errors import InputError
from citeweave.core.inputs import Source
from citeweave.corpus.input_files import InputFile
from citeweave.corpus.readers import guess_format

RECORDS = "records.jsonl"
"""Name of records in messages and manifests, as if they were a file."""

_ACCEPTED = (
    "files, folders, dictionaries with the keys of plain JSON lines, and data frames of pandas, polars or pyarrow"
)
_JSON = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS


class DataFrame(Protocol):
    """A table of pandas, polars or pyarrow."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Record: TypeAlias = Mapping[str, Any]
PaperSources: TypeAlias = str | Path | DataFrame | Iterable[str | Path | DataFrame | Record | Iterable[Record]]
"""Sources of papers: a file, a folder, a data frame, dictionaries, or several sources; dictionaries among paths are a list."""


def split_sources(sources: PaperSources) -> tuple[list[Path], list[Iterable[Record]]]:
    """Split the sources of an import into paths, and records by list or frame.

    >>> paths, records = split_sources(["a.bib", [{"id": "a"}], ({"id": id} for id in "bc")])
    >>> [str(path) for path in paths], [list(each) for each in records]
    (['a.bib'], [[{'id': 'a'}], [{'id': 'b'}, {'id': 'c'}]])
    """
    if isinstance(sources, str | Path):
        return [Path(sources)], []
    items = iter(_records_of(sources))
    first = next(items, None)
    if first is None:
        raise InputError(f"import_papers: sources are empty; give at least one of {_ACCEPTED}")
    if isinstance(first, Mapping):
        return [], [chain([first], items)]
    paths, records = [], []
    for item in chain([first], items):
        if isinstance(item, str | Path):
            paths.append(Path(item))
        else:
            records.append(_records_of(item))
    return paths, records


def _records_of(source: Any) -> Iterable[Any]:
    """Return the records of a data frame; a list of anything as it is, to be checked when it is written."""
    if hasattr(source, "to_pylist"):
        return source.to_pylist()  # type: ignore[no-any-return]  # pyarrow
    if hasattr(source, "to_dicts"):
        return source.to_dicts()  # type: ignore[no-any-return]  # polars
    if hasattr(source, "to_dict") and hasattr(source, "columns"):
        return source.to_dict(orient="records")  # type: ignore[no-any-return]  # pandas
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping):
        return source
    hint = "; put dictionaries into a list of their own" if isinstance(source, Mapping) else ""
    raise InputError(f"import_papers: sources hold {show(source)}; they must be {_ACCEPTED}{hint}")


@contextmanager
def written(tables: Iterable[Iterable[Record]]) -> Iterator[list[InputFile]]:
    """Write records as input files, which exist within the context."""
    with TemporaryDirectory(prefix="citeweave-", ignore_cleanup_errors=True) as folder:
        files = []
        for number, records in enumerate(tables):
            path = Path(folder, str(number), RECORDS)
            path.parent.mkdir()
            _write_records(records, path)
            files.append(InputFile(path, guess_format(Source(path)) or "plain", guessed=True))
        yield files


def _write_records(records: Iterable[Any], path: Path) -> None:
    """Write records as JSON lines; refused if there are none, or if one is no dictionary or holds what JSON cannot."""
    number = 0
    with path.open("wb") as file:
        for number, record in enumerate(records, 1):
            if not isinstance(record, Mapping):
                raise InputError(f"import_papers: record {number} is {show(record)}; sources must be {_ACCEPTED}")
            try:
                file.write(orjson.dumps(dict(record), _json_value, _JSON))
            except TypeError as error:
                reason = error.__cause__ or error
                raise InputError(
                    f"import_papers: record {number} is {show(record)}, which JSON cannot hold ({reason}); use texts as "
                    "keys, and texts, numbers, dates, lists and dictionaries as values"
                ) from None
    if not number:
        raise InputError("import_papers: a list or data frame of records is empty; leave it out")


def _json_value(value: object) -> object:
    """Return a cell of a data frame as JSON holds it: dates as text, arrays as lists, missing values as null."""
    if isinstance(value, date):
        return None if value != value else value.isoformat()  # pandas' NaT is a date
    if hasattr(value, "tolist"):
        return value.tolist()
    if type(value).__name__ == "NAType":
        return None
    raise TypeError(f"a value is {show(value)}")
