"""Which tasks a folder of SciRepEval asks: the lines of its task file, or what its sub-folders look like.

    {"name": "DRSM", "type": "classification", "metrics": ["f1_macro"],
     "few_shot": [{"sample_size": 64, "iterations": 50}], "data": {"meta": "drsm/meta.jsonl", "test": "drsm"}}

A dataset is a path inside the folder, or a name and a config on Hugging Face, `{"name": "allenai/scirepeval_test",
"config": "drsm"}`, of which a copy lies in `drsm`, `scirepeval_test/drsm` or `allenai/scirepeval_test/drsm`. Does not
read the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citeweave.errors import InputError
from citeweave.evaluation.suites.files import DataFolder, find, read_json_lines
from citeweave.evaluation.suites.papers import FIELDS
from citeweave.evaluation.suites.records import find_papers_files, split_files
from citeweave.evaluation.suites.reviewers import HARD, METADATA

TASKS = "scirepeval_tasks.jsonl"
FORMATS = ("classification", "regression", "proximity", "adhoc_search")
GUESSED = "guessed"
"""Format of a sub-folder with labels: whether they are classes or numbers is told by the labels."""


@dataclass(frozen=True)
class Dataset:
    """Where data should lie."""

    folders: tuple[Path, ...]
    """Places to look, in this order."""

    called: str
    """For messages: the path, or the config with its dataset."""

    def split(self, *names: str) -> list[Path]:
        """The files of the first of these splits that is found."""
        return next((files for folder in self.folders if (files := split_files(folder, *names))), [])

    def papers(self) -> list[Path]:
        """Files of titles and abstracts: the dataset is one, or a folder with them."""
        if file := next((file for folder in self.folders if (file := find(folder))), None):
            return [file]
        if files := self.split("evaluation"):
            return files
        folders = [folder for folder in self.folders if folder.is_dir()]
        return next((files for folder in folders if (files := find_papers_files(folder))), [])


@dataclass(frozen=True)
class TaskRow:
    """One task as the file says it."""

    name: str
    format: str
    test: Dataset
    meta: Dataset
    reviewers: Dataset | None = None
    metrics: tuple[str, ...] = ()
    few_shot: tuple[tuple[int, int], ...] = ()
    multi_label: bool = False
    fields: tuple[str, ...] = FIELDS


def read_task_rows(data: DataFolder) -> list[TaskRow]:
    """The lines of the task file."""
    path = data.file(TASKS, "the tasks")
    rows: list[TaskRow] = []
    for record in read_json_lines(path, keys=["name", "type", "data", "metrics"]):
        where = f"{path}: task {str(record['name'])[:60]!r}"
        if any(row.name == record["name"] for row in rows):
            raise InputError(f"{where} comes twice; give each task a name of its own")
        rows.append(_row(record, data.folder, where))
    return rows


def _row(record: Mapping[str, Any], folder: Path, where: str) -> TaskRow:
    data, metrics = record["data"], record["metrics"]
    if record["type"] not in FORMATS:
        raise InputError(f"{where} has the type {record['type']!r}; it must be one of {', '.join(FORMATS)}")
    if not isinstance(data, dict) or "test" not in data:
        raise InputError(f'{where} has no data: {{"meta": ..., "test": ...}}')
    if not isinstance(metrics, list) or not metrics or not all(isinstance(name, str) for name in metrics):
        raise InputError(f"{where} has no list of metrics")
    return TaskRow(
        name=str(record["name"]),
        format=record["type"],
        test=_dataset(data["test"], folder, where),
        meta=_dataset(data.get("meta", "metadata.jsonl"), folder, where),
        reviewers=_dataset(data["reviewers"], folder, where) if "reviewers" in data else None,
        metrics=tuple(metrics),
        few_shot=_few_shot(record.get("few_shot") or [], where),
        multi_label=bool(record.get("multi_label")),
        fields=tuple(record.get("fields") or FIELDS),
    )


def _dataset(place: Any, folder: Path, where: str) -> Dataset:
    if isinstance(place, str) and place:
        return Dataset((folder / place,), place)
    if isinstance(place, dict) and all(isinstance(place.get(key), str) for key in ("name", "config")):
        name, config = place["name"], place["config"]
        short = name.rsplit("/", 1)[-1]
        return Dataset((folder / name / config, folder / short / config, folder / config), f"config {config} of {name}")
    raise InputError(f'{where} names data by {place!r}; it must be a path or {{"name": ..., "config": ...}}')


def _few_shot(samples: Any, where: str) -> tuple[tuple[int, int], ...]:
    try:
        pairs = tuple((int(sample["sample_size"]), int(sample["iterations"])) for sample in samples)
    except (TypeError, KeyError, ValueError):
        pairs = ((0, 0),)
    if any(size < 1 or times < 1 for size, times in pairs):
        raise InputError(f'{where}: few_shot must be a list of {{"sample_size": 64, "iterations": 50}}, from 1 on')
    return pairs


def guess_task_rows(data: DataFolder) -> Iterator[TaskRow]:
    """A task for every sub-folder with files of one, named after it."""
    shared = data.folder if find_papers_files(data.folder) else None
    for folder in sorted(path for path in data.folder.iterdir() if path.is_dir()):
        test = Dataset((folder,), folder.name)
        own = folder if find_papers_files(folder) or shared is None else shared
        meta = Dataset((own,), f"{folder.name}/metadata.jsonl")
        if find(folder / METADATA) and find(folder / HARD):
            yield TaskRow(folder.name, "proximity", test, meta, reviewers=test, metrics=("P_5", "P_10"))
        elif find(folder / "test_qrel.jsonl"):
            yield TaskRow(folder.name, "proximity", test, meta, metrics=("map", "ndcg"))
        elif split_files(folder, "train") and split_files(folder, "test"):
            yield TaskRow(folder.name, GUESSED, test, meta)
