"""Which tasks a folder of SciRepEval asks: the lines of its task file, or what its sub-folders look like.

    {"name": "DRSM", "type": "classification", "metrics": ["f1_macro"],
     "few_shot": [{"sample_size": 64, "iterations": 50}], "data": {"meta": "drsm/meta.jsonl", "test": "drsm"}}

A dataset is a path inside the folder, or a name and a config on Hugging Face, `{"name": "allenai/scirepeval_test",
"config": "drsm"}`, of which a copy lies in `drsm`, `scirepeval_test/drsm` or `allenai/scirepeval_test/drsm`. Does not
read the data.

SciRepEval: classification, regression, proximity and search over many datasets (Singh et al., 2023).

    scirepeval_tasks.jsonl            the tasks; see `scirepeval_tasks`
    drsm/train.csv, drsm/test.csv     paper_id,label                              a linear probe
    fos/train.jsonl, fos/test.jsonl   {"paper_id": "p1", "label": [0, 1, 0]}      a probe a label
    relish/test_qrel.jsonl            {"query_id", "cand_id", "score"}            pools ranked by -L2

Without the task file every sub-folder that looks like a task is one. Data that is not there is left out, with what to
download. All papers are encoded the same way: no control codes. S2AND is not here: it has a program of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from citeweave.core.errors import InputError, choose
from citeweave.evaluation.class_metrics import CLASSIFICATION_METRICS
from citeweave.evaluation.metrics import REGRESSION_METRICS
from citeweave.evaluation.probes import SCIREPEVAL_CLASSES, SCIREPEVAL_LABELS, SCIREPEVAL_NUMBERS
from citeweave.evaluation.suites.benchmark_files import (
    FIELDS,
    DataFolder,
    as_id,
    find,
    read_json_lines,
    recognize,
    refuse,
    unique,
)
from citeweave.evaluation.suites.benchmark_records import (
    as_answers,
    find_papers_files,
    guess_kind,
    read_records,
    read_texts,
    split_files,
)
from citeweave.evaluation.suites.reviewers import (
    HARD,
    METADATA,
    Judgments,
    Matching,
    matching_tasks,
    notes_of,
    read_judgments,
    read_people,
)
from citeweave.evaluation.suites.scirepeval_averages import averages
from citeweave.evaluation.tasks import Pools, ProbeTask, RankingRule, RankingTask, Suite, Task, TaskTexts

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


# SciRepEval: classification, regression, proximity and search over many datasets (Singh et al., 2023).

NAME = "scirepeval"
RULES = {"classes": SCIREPEVAL_CLASSES, "labels": SCIREPEVAL_LABELS, "numbers": SCIREPEVAL_NUMBERS}


class _MissingError(Exception):
    """Data that is not in the folder; the text says which and what to do."""


@dataclass(frozen=True)
class _Labeled:
    """Papers with answers: those to learn from, then those to tell."""

    kind: str
    papers: list[str]
    answers: NDArray[Any]
    train: int
    """How many are to learn from."""

    def paper_ids(self) -> list[str]:
        return self.papers


@dataclass(frozen=True)
class _Judged:
    judgments: Judgments

    def paper_ids(self) -> list[str]:
        return [paper for query, pool in self.judgments.pools.items() for paper in (query, *pool)]


_Content: TypeAlias = _Labeled | _Judged | Matching


@dataclass
class _ScirepevalTasks:
    """What was found so far, in the order of the tasks."""

    data: DataFolder
    contents: list[tuple[TaskRow, _Content]] = field(default_factory=list)
    not_evaluated: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_suite(folder: Path, *, split: str = "test") -> Suite:
    """The suite in a folder: those tasks whose data is there."""
    choose(split, ("test",), "--split")
    reading = _ScirepevalTasks(DataFolder(folder))
    rows = _rows(reading.data)
    for row in rows:
        try:
            reading.contents.append((row, _read_content(row, reading)))
        except _MissingError as error:
            reading.not_evaluated[row.name] = str(error)
    texts = _read_texts(reading)
    tasks: list[Task] = []
    numbers: dict[str, Sequence[str]] = {row.name: _expected_numbers(row) for row in rows}
    for (row, content), found in zip(reading.contents, texts, strict=True):
        made = list(_tasks(row, content, found, reading))
        tasks += made
        numbers[row.name] = [name for task in made for name in _numbers(task)] or numbers[row.name]
    together = frozenset(row.name for row in rows if row.reviewers)
    formats = {row.name: row.format for row in rows}
    return Suite(
        NAME,
        tuple(tasks),
        averages=averages(numbers, formats, together) if reading.data.has(TASKS) else {},
        headline=tuple(name for task in tasks for name in _numbers(task)),
        not_evaluated=reading.not_evaluated,
        notes=tuple(reading.notes),
        data={
            "folder": str(reading.data.folder),
            "split": split,
            "files": reading.data.hashes(),
            "tasks in the folder": len(rows),
            "tasks with data": len(reading.contents),
        },
    )


def _rows(data: DataFolder) -> list[TaskRow]:
    if data.has(TASKS):
        return read_task_rows(data)
    rows = [] if recognize(data.folder)[0] not in ("", NAME, "reviewers") else list(guess_task_rows(data))
    if not rows:
        raise refuse(
            data.folder,
            NAME,
            f"{TASKS}, or folders with train.csv and test.csv, test_qrel.jsonl, or reviewer_metadata.jsonl",
        )
    return rows


def _read_content(row: TaskRow, reading: _ScirepevalTasks) -> _Content:
    if row.reviewers:
        return _read_matching(row, row.reviewers, reading)
    if row.format in ("proximity", "adhoc_search"):
        files = _need(row, row.test, ["test_qrel", "test"], reading)
        judgments = read_judgments(read_records(files), files[0])
        if judgments.repeated:
            reading.notes.append(f"{row.name}: {judgments.repeated} pairs are given again; the first counts")
        return _Judged(judgments)
    return _read_labeled(row, reading)


def _read_labeled(row: TaskRow, reading: _ScirepevalTasks) -> _Labeled:
    papers: list[str] = []
    cells: list[Any] = []
    sizes = []
    for split in ("train", "test"):
        files = _need(row, row.test, [split], reading)
        for record in read_records(files, ["paper_id", "label"]):
            papers.append(as_id(record["paper_id"], f"{files[0]}: paper_id"))
            cells.append(record["label"])
        sizes.append(len(papers))
        if sizes[-1] == (sizes[0] if len(sizes) > 1 else 0):
            raise InputError(f"{files[0]} holds no papers; the file is half downloaded: get it again")
    kind = {"classification": "classes", "regression": "numbers"}.get(row.format, "")
    kind = "labels" if row.multi_label else kind or guess_kind(cells)
    if row.format == GUESSED:
        reading.notes.append(f"{row.name}: {TASKS} is not there; its labels look like {kind}")
    return _Labeled(kind, papers, as_answers(kind, cells, f"{row.name}: train and test"), sizes[0])


def _read_matching(row: TaskRow, reviewers: Dataset, reading: _ScirepevalTasks) -> Matching:
    hard = _need(row, row.test, ["test_hard_qrel", "test_hard"], reading)
    soft = row.test.split("test_soft_qrel", "test_soft")
    people = _need(row, reviewers, ["reviewer_metadata", "metadata"], reading)
    if not soft:
        reading.not_evaluated[f"{row.name} soft"] = f"the split test_soft of {row.test.called} is not there"
    matching = Matching(
        hard=read_judgments(read_records(hard), hard[0]),
        soft=read_judgments(read_records([reading.data.use(path) for path in soft]), soft[0]) if soft else None,
        papers=read_people(read_records(people, ["r_id", "papers"]), people[0]),
    )
    reading.notes += [f"{row.name}: {note}" for note in notes_of(matching)]
    return matching


def _need(row: TaskRow, dataset: Dataset, splits: list[str], reading: _ScirepevalTasks) -> list[Path]:
    """The files of the first of these splits that is found; they count as read."""
    files = dataset.split(*splits)
    if not files:
        folder = dataset.folders[-1]
        raise _MissingError(
            f"{row.name} needs {splits[0]} of {dataset.called}, which is not in {folder}; download it there as "
            f"{splits[0]}.jsonl, .csv or .parquet"
        )
    return [reading.data.use(path) for path in files]


def _read_texts(reading: _ScirepevalTasks) -> list[TaskTexts]:
    """The texts of every task; tasks with the same file of papers share theirs, so that all is encoded once."""
    wanted: dict[Any, list[str]] = {}
    keys = []
    for place, (row, content) in enumerate(reading.contents):
        files = tuple(row.meta.papers())
        key = (files, row.fields, row.meta.called if files else place)
        keys.append(key)
        wanted.setdefault(key, []).extend(content.paper_ids())
        extra = [name for name in row.fields if name not in FIELDS]
        if files and extra:
            reading.notes.append(f"{row.name}: {' and '.join(extra)} stand at the end of the abstract")
    texts = {
        key: read_texts(reading.data, key[0], unique(ids), lacking=_lacking(reading, keys.index(key)), fields=key[1])
        for key, ids in wanted.items()
    }
    return [texts[key] for key in keys]


def _lacking(reading: _ScirepevalTasks, place: int) -> str:
    row, _ = reading.contents[place]
    return f"{row.meta.called} (doc_id, title, abstract)"


def _tasks(row: TaskRow, content: _Content, texts: TaskTexts, reading: _ScirepevalTasks) -> Iterator[Task]:
    if isinstance(content, Matching):
        yield from matching_tasks(content, texts, metrics=row.metrics, prefix=f"{row.name} ")
    elif isinstance(content, _Judged):
        rule = RankingRule(metrics=row.metrics, distance="l2", peers="drop")
        yield RankingTask(row.name, texts, Pools.of(texts, content.judgments.pools), rule)
    elif metrics := _probe_metrics(row, content, reading):
        rows = texts.rows(content.papers)
        yield ProbeTask(
            row.name,
            texts,
            kind=content.kind,
            train=rows[: content.train],
            train_answers=content.answers[: content.train],
            test=rows[content.train :],
            test_answers=content.answers[content.train :],
            rule=RULES[content.kind],
            metrics=metrics,
            few_shot=row.few_shot,
            missing_as="left out",
        )


def _probe_metrics(row: TaskRow, content: _Labeled, reading: _ScirepevalTasks) -> dict[str, str]:
    """The task's metrics that are known; without a task file the usual one."""
    known: Iterable[str] = REGRESSION_METRICS if content.kind == "numbers" else CLASSIFICATION_METRICS
    if row.format == GUESSED:
        binary = content.kind == "classes" and set(content.answers.tolist()) <= {0, 1}
        usual = "kendalltau" if content.kind == "numbers" else "f1" if binary else "f1_macro"
        return {usual: usual}
    if strange := [name for name in row.metrics if name not in known]:
        why = f"{row.name}: metrics {', '.join(strange)} are not known; they must be of {', '.join(known)}"
        reading.notes.append(why)
        if len(strange) == len(row.metrics):
            reading.not_evaluated[row.name] = why
    return {name: name for name in row.metrics if name in known}


def _numbers(task: Task) -> list[str]:
    """The numbers of a task without its few-shot ones."""
    metrics: Iterable[str] = (
        task.rule.metrics if isinstance(task, RankingTask) else task.metrics if isinstance(task, ProbeTask) else ()
    )
    return [f"{task.name}.{metric}" for metric in metrics]


def _expected_numbers(row: TaskRow) -> list[str]:
    """Those of a task whose data is not there, so that no average is made without them."""
    tasks = [f"{row.name} hard", f"{row.name} soft"] if row.reviewers else [row.name]
    return [f"{task}.{metric}" for task in tasks for metric in row.metrics]
