"""Records of SciRepEval's data as they lie in a folder: JSON lines, CSV or Parquet, one file a split or several.

    fos/train.jsonl   fos/test.csv   fos/test-00000-of-00002.parquet   fos/test/0000.parquet   ir/test_qrel.jsonl

The last but two are how Hugging Face stores a dataset. Does not download, and does not know what the records mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from citeweave.errors import InputError
from citeweave.evaluation.suites.files import DataFolder, find, read_csv, read_json_lines
from citeweave.evaluation.suites.papers import FIELDS, Papers, add_papers, unique
from citeweave.evaluation.texts import Texts

_FORMS = (".jsonl", ".csv", ".parquet")
_ROWS = 1 << 13
_PAPERS = re.compile(r"(?!reviewer_)(.*_)?(meta|metadata|papers|evaluation)(-\d+-of-\d+)?\.(jsonl|parquet)(\.\w+)?")


def split_files(folder: Path, *splits: str) -> list[Path]:
    """The files of the first of these splits that is there; none where none is."""
    for split in splits:
        for form in _FORMS:
            if found := find(folder / f"{split}{form}"):
                return [found]
        for pattern in (f"{split}-*", f"{split}/*"):
            if parts := sorted(path for path in folder.glob(pattern) if _form(path)):
                return parts
    return []


def find_papers_files(folder: Path) -> list[Path]:
    """Files of titles and abstracts, told by their names: `metadata.jsonl`, `fos_meta.jsonl`, `papers.jsonl`."""
    return sorted(path for path in folder.iterdir() if path.is_file() and _PAPERS.fullmatch(path.name))


def read_records(paths: Iterable[Path], columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The records of some files, which must have these columns; fields of CSV files are texts."""
    for path in paths:
        form = _form(path)
        if form == ".csv":
            yield from read_csv(path, columns)
        elif form == ".parquet":
            yield from _read_parquet(path, columns)
        else:
            yield from read_json_lines(path, keys=columns)


def read_texts(
    data: DataFolder, files: Sequence[Path], ids: Iterable[str], *, lacking: str, fields: Sequence[str] = FIELDS
) -> Texts:
    """Texts of these papers; without files only their ids, and `lacking` says what would hold the texts."""
    wanted = unique(ids)
    if not files:
        return Texts.of_ids(wanted, lacking=lacking)
    papers = Papers()
    for path in files:
        add_papers(papers, read_records([data.use(path)]), set(wanted), path=path, fields=fields)
    return papers.texts(wanted)


def _form(path: Path) -> str:
    """`.jsonl` of `x.jsonl.gz`; empty where it is none that can be read."""
    return next((form for form in _FORMS if form in path.suffixes), "") if path.is_file() else ""


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    from citeweave.parquet import batches, open_parquet

    try:
        file = open_parquet(path)
        if absent := [name for name in columns if name not in file.schema_arrow.names]:
            raise InputError(
                f"{path} has no column {absent[0]!r}; it has {', '.join(file.schema_arrow.names)}; is it another file?"
            )
        for batch in batches(file, path, rows=_ROWS):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} is no whole Parquet file ({reason}); get it again") from None
