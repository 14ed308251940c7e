"""SciRepEval: classification, regression, proximity, search, and its averages (Singh et al., 2023).

    scirepeval_tasks.jsonl            the tasks, one per line:
        {"name": "DRSM", "type": "classification", "metrics": ["f1_macro"],
         "few_shot": [{"sample_size": 64, "iterations": 50}], "data": {"meta": "drsm/meta.jsonl", "test": "drsm"}}
    drsm/train.csv, drsm/test.csv     paper_id,label                              a linear probe
    fos/train.jsonl, fos/test.jsonl   {"paper_id": "p1", "label": [0, 1, 0]}      one probe per label
    relish/test_qrel.jsonl            {"query_id", "cand_id", "score"}            pools ranked by -L2

A dataset is a path inside the folder, or a name and a config on Hugging Face, `{"name": "allenai/scirepeval_test",
"config": "drsm"}`, of which a copy is in `drsm`, `scirepeval_test/drsm` or `allenai/scirepeval_test/drsm`. Without the task
file every subfolder that looks like a task is one. Missing data is left out, with what to download. All papers are encoded
the same way: no control codes. S2AND is not here: it has a program of its own. The published averages:

    SciRepEval In-Train, Out-of-Train, SciDocs, Average     the table of SciRepEval's BENCHMARKING.md
    SPECTER2 In-Train, Out-of-Train, Avg                    the table of SPECTER2's README: SciDocs is out-of-train
    Formats classification, ..., mean                       one number per task, by format, and the mean of the formats

In the first two every number counts once: a SciDocs ranking has two (map and ndcg), reviewer matching one (the mean of its
four). These weights, 7 numbers in-train, 11 or 10 out-of-train, 10 of SciDocs, give the published columns:

    (7 x 54.7 + 11 x 57.4 + 10 x 89.1) / 28 = 68.0     SPECTER in BENCHMARKING.md
    (7 x 54.7 + 20 x 72.0) / 27 = 67.5                 SPECTER in SPECTER2's README

One of the published numbers is S2AND, which is never in ours. For tasks with few-shot samples the value learned from all
papers counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from citeweave.core.errors import InputError, choose
from citeweave.evaluation.metrics import CLASSIFICATION_METRICS, REGRESSION_METRICS
from citeweave.evaluation.suites.benchmark_files import (
    FIELDS,
    DataFolder,
    as_classes,
    as_id,
    as_labels,
    as_numbers,
    find_file,
    find_papers_files,
    guess_kind,
    read_json_lines,
    read_records,
    read_texts,
    recognize_suite,
    split_files,
    unique,
    wrong_folder,
)
from citeweave.evaluation.suites.reviewers import (
    HARD,
    METADATA,
    Judgments,
    ReviewerMatching,
    make_matching_tasks,
    matching_notes,
    read_judgments,
    read_people,
)
from citeweave.evaluation.tasks import (
    SCIREPEVAL_CLASSES,
    SCIREPEVAL_LABELS,
    SCIREPEVAL_NUMBERS,
    Average,
    Pools,
    ProbeTask,
    RankingRule,
    RankingTask,
    Suite,
    Task,
    TaskTexts,
)

NAME = "scirepeval"
TASKS_FILE = "scirepeval_tasks.jsonl"
FORMATS = ("classification", "regression", "proximity", "adhoc_search")
GUESSED = "guessed"
"""Format of a subfolder with labels: the labels show whether they are classes or numbers."""

RULES = {"classes": SCIREPEVAL_CLASSES, "labels": SCIREPEVAL_LABELS, "numbers": SCIREPEVAL_NUMBERS}

IN_TRAIN = (
    "Fields of study",
    "MeSH",
    "Citation Count",
    "Publication Year",
    "Same Author Detection",
    "Highly Influential Citations",
    "Search",
)
"""Tasks with training data in SciRepEval; citation prediction has no test."""

OUT_OF_TRAIN = (
    "Biomimicry",
    "DRSM",
    "TREC-CoVID",
    "Paper-Reviewer Matching",
    "Peer Review Score",
    "Max hIndex",
    "Tweet Mentions",
)
FIRST_VERSION = ("Feeds-1", "Feeds-M", "Feeds Title")
"""Out-of-train tasks of the first version of 25 tasks, which BENCHMARKING.md's table is about."""

SECOND_VERSION = ("RELISH", "NFCorpus")
"""Those that replaced them in the version of 24 tasks."""

SCIDOCS = ("SciDocs MAG", "SciDocs MeSH", "SciDocs Cite", "SciDocs CoView", "SciDocs CoCite", "SciDocs CoRead")

_NO_S2AND = "without S2AND, which the published value contains"


# --- which tasks a folder has ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Dataset:
    """Where a SciRepEval dataset should be."""

    folders: tuple[Path, ...]
    """Places to look, in this order."""

    called: str
    """For messages: the path, or the config with its dataset."""

    def split(self, *names: str) -> list[Path]:
        """Return the files of the dataset's first existing split among these."""
        return next((files for folder in self.folders if (files := split_files(folder, *names))), [])

    def papers(self) -> list[Path]:
        """Return the files with titles and abstracts of a SciRepEval dataset: itself, or those in its folder."""
        if file := next((file for folder in self.folders if (file := find_file(folder))), None):
            return [file]
        if files := self.split("evaluation"):
            return files
        folders = [folder for folder in self.folders if folder.is_dir()]
        return next((files for folder in folders if (files := find_papers_files(folder))), [])


@dataclass(frozen=True)
class TaskRow:
    """One SciRepEval task as the task file describes it."""

    name: str
    format: str
    test: Dataset
    meta: Dataset
    reviewers: Dataset | None = None
    metrics: tuple[str, ...] = ()
    few_shot: tuple[tuple[int, int], ...] = ()
    multi_label: bool = False
    fields: tuple[str, ...] = FIELDS


def _read_task_rows(data: DataFolder) -> list[TaskRow]:
    """Read the tasks of SciRepEval's task file."""
    path = data.file(TASKS_FILE, "the tasks")
    rows: list[TaskRow] = []
    for record in read_json_lines(path, keys=["name", "type", "data", "metrics"]):
        where = f"{path}: task {str(record['name'])[:60]!r}"
        if any(row.name == record["name"] for row in rows):
            raise InputError(f"{where} comes twice; give each task a name of its own")
        rows.append(_parse_task(record, data.folder, where))
    return rows


def _parse_task(record: Mapping[str, Any], folder: Path, where: str) -> TaskRow:
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
        test=_parse_dataset(data["test"], folder, where),
        meta=_parse_dataset(data.get("meta", "metadata.jsonl"), folder, where),
        reviewers=_parse_dataset(data["reviewers"], folder, where) if "reviewers" in data else None,
        metrics=tuple(metrics),
        few_shot=_parse_few_shot(record.get("few_shot") or [], where),
        multi_label=bool(record.get("multi_label")),
        fields=tuple(record.get("fields") or FIELDS),
    )


def _parse_dataset(place: Any, folder: Path, where: str) -> Dataset:
    if isinstance(place, str) and place:
        return Dataset((folder / place,), place)
    if isinstance(place, dict) and all(isinstance(place.get(key), str) for key in ("name", "config")):
        name, config = place["name"], place["config"]
        short = name.rsplit("/", 1)[-1]
        return Dataset((folder / name / config, folder / short / config, folder / config), f"config {config} of {name}")
    raise InputError(f'{where} names data by {place!r}; it must be a path or {{"name": ..., "config": ...}}')


def _parse_few_shot(samples: Any, where: str) -> tuple[tuple[int, int], ...]:
    try:
        pairs = tuple((int(sample["sample_size"]), int(sample["iterations"])) for sample in samples)
    except (TypeError, KeyError, ValueError):
        pairs = ((0, 0),)
    if any(size < 1 or times < 1 for size, times in pairs):
        raise InputError(f'{where}: few_shot must be a list of {{"sample_size": 64, "iterations": 50}}, from 1 on')
    return pairs


def _guess_task_rows(data: DataFolder) -> Iterator[TaskRow]:
    """Yield a task for every subfolder that looks like one, named after it."""
    shared = data.folder if find_papers_files(data.folder) else None
    for folder in sorted(path for path in data.folder.iterdir() if path.is_dir()):
        test = Dataset((folder,), folder.name)
        own = folder if find_papers_files(folder) or shared is None else shared
        meta = Dataset((own,), f"{folder.name}/metadata.jsonl")
        if find_file(folder / METADATA) and find_file(folder / HARD):
            yield TaskRow(folder.name, "proximity", test, meta, reviewers=test, metrics=("P_5", "P_10"))
        elif find_file(folder / "test_qrel.jsonl"):
            yield TaskRow(folder.name, "proximity", test, meta, metrics=("map", "ndcg"))
        elif split_files(folder, "train") and split_files(folder, "test"):
            yield TaskRow(folder.name, GUESSED, test, meta)


# --- the suite -------------------------------------------------------------------------------------------


class _MissingDataError(Exception):
    """A SciRepEval dataset that is not in the folder; the text says which and what to do."""


@dataclass(frozen=True)
class _LabeledPapers:
    """Papers of a SciRepEval task with labels: training papers first, then test papers."""

    kind: str
    papers: list[str]
    labels: NDArray[Any]
    train: int
    """How many are training papers."""

    def paper_ids(self) -> list[str]:
        return self.papers


_Content: TypeAlias = _LabeledPapers | Judgments | ReviewerMatching


@dataclass
class _ScirepevalTasks:
    """The SciRepEval tasks read so far, in their order, and those that cannot be evaluated."""

    data: DataFolder
    contents: list[tuple[TaskRow, _Content]] = field(default_factory=list)
    not_evaluated: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_suite(folder: Path, *, split: str = "test") -> Suite:
    """Read SciRepEval from a folder: the tasks whose data it has."""
    choose(split, ("test",), "--split")
    reading = _ScirepevalTasks(DataFolder(folder))
    rows = _find_task_rows(reading.data)
    for row in rows:
        try:
            reading.contents.append((row, _read_content(row, reading)))
        except _MissingDataError as error:
            reading.not_evaluated[row.name] = str(error)
    texts = _read_texts(reading)
    tasks: list[Task] = []
    numbers: dict[str, Sequence[str]] = {row.name: _expected_numbers(row) for row in rows}
    for (row, content), own_texts in zip(reading.contents, texts, strict=True):
        own_tasks = list(_make_tasks(row, content, own_texts, reading))
        tasks += own_tasks
        numbers[row.name] = [name for task in own_tasks for name in _numbers(task)] or numbers[row.name]
    together = frozenset(row.name for row in rows if row.reviewers)
    formats = {row.name: row.format for row in rows}
    return Suite(
        NAME,
        tuple(tasks),
        averages=published_averages(numbers, formats, together) if reading.data.has(TASKS_FILE) else {},
        headline=tuple(name for task in tasks for name in _numbers(task)),
        not_evaluated=reading.not_evaluated,
        notes=tuple(reading.notes),
        data=reading.data.provenance(
            split, **{"tasks in the folder": len(rows), "tasks with data": len(reading.contents)}
        ),
    )


def _find_task_rows(data: DataFolder) -> list[TaskRow]:
    if data.has(TASKS_FILE):
        return _read_task_rows(data)
    rows = [] if recognize_suite(data.folder)[0] not in ("", NAME, "reviewers") else list(_guess_task_rows(data))
    if not rows:
        raise wrong_folder(
            data.folder,
            NAME,
            f"{TASKS_FILE}, or folders with train.csv and test.csv, test_qrel.jsonl, or reviewer_metadata.jsonl",
        )
    return rows


def _read_content(row: TaskRow, reading: _ScirepevalTasks) -> _Content:
    if row.reviewers:
        return _read_matching(row, row.reviewers, reading)
    if row.format in ("proximity", "adhoc_search"):
        files = _require_split(row, row.test, ["test_qrel", "test"], reading)
        judgments = read_judgments(read_records(files), files[0])
        if judgments.repeated:
            reading.notes.append(f"{row.name}: {judgments.repeated} pairs are repeated; the first counts")
        return judgments
    return _read_labeled(row, reading)


def _read_labeled(row: TaskRow, reading: _ScirepevalTasks) -> _LabeledPapers:
    papers: list[str] = []
    cells: list[Any] = []
    sizes = []
    for split in ("train", "test"):
        files = _require_split(row, row.test, [split], reading)
        for record in read_records(files, ["paper_id", "label"]):
            papers.append(as_id(record["paper_id"], f"{files[0]}: paper_id"))
            cells.append(record["label"])
        sizes.append(len(papers))
        if sizes[-1] == (sizes[0] if len(sizes) > 1 else 0):
            raise InputError(f"{files[0]} holds no papers; the file is half downloaded: download it again")
    kind = {"classification": "classes", "regression": "numbers"}.get(row.format, "")
    kind = "labels" if row.multi_label else kind or guess_kind(cells)
    if row.format == GUESSED:
        reading.notes.append(f"{row.name}: {TASKS_FILE} is missing; its labels look like {kind}")
    as_array = {"classes": as_classes, "labels": as_labels, "numbers": as_numbers}[kind]
    return _LabeledPapers(kind, papers, as_array(cells, f"{row.name}: train and test"), sizes[0])


def _read_matching(row: TaskRow, reviewers: Dataset, reading: _ScirepevalTasks) -> ReviewerMatching:
    hard = _require_split(row, row.test, ["test_hard_qrel", "test_hard"], reading)
    soft = row.test.split("test_soft_qrel", "test_soft")
    people = _require_split(row, reviewers, ["reviewer_metadata", "metadata"], reading)
    if not soft:
        reading.not_evaluated[f"{row.name} soft"] = f"the split test_soft of {row.test.called} is missing"
    matching = ReviewerMatching(
        hard=read_judgments(read_records(hard), hard[0]),
        soft=read_judgments(read_records([reading.data.use(path) for path in soft]), soft[0]) if soft else None,
        papers=read_people(read_records(people, ["r_id", "papers"]), people[0]),
    )
    reading.notes += [f"{row.name}: {note}" for note in matching_notes(matching)]
    return matching


def _require_split(row: TaskRow, dataset: Dataset, splits: list[str], reading: _ScirepevalTasks) -> list[Path]:
    """Return the files of a dataset's first existing split among these and record them as read; raises where there is none."""
    files = dataset.split(*splits)
    if not files:
        folder = dataset.folders[-1]
        raise _MissingDataError(
            f"{row.name} needs {splits[0]} of {dataset.called}, which is not in {folder}; download it there as "
            f"{splits[0]}.jsonl, .csv or .parquet"
        )
    return [reading.data.use(path) for path in files]


def _read_texts(reading: _ScirepevalTasks) -> list[TaskTexts]:
    """Read the texts of every task; tasks with the same file of papers share them, so that each paper is encoded once."""
    wanted: dict[Any, list[str]] = {}
    lacking: dict[Any, str] = {}
    keys = []
    for place, (row, content) in enumerate(reading.contents):
        files = tuple(row.meta.papers())
        key = (files, row.fields, row.meta.called if files else place)
        keys.append(key)
        lacking.setdefault(key, f"{row.meta.called} (doc_id, title, abstract)")
        wanted.setdefault(key, []).extend(content.paper_ids())
        extra = [name for name in row.fields if name not in FIELDS]
        if files and extra:
            reading.notes.append(f"{row.name}: {' and '.join(extra)} are appended to the abstract")
    texts = {
        key: read_texts(reading.data, key[0], unique(ids), lacking=lacking[key], fields=key[1])
        for key, ids in wanted.items()
    }
    return [texts[key] for key in keys]


def _make_tasks(row: TaskRow, content: _Content, texts: TaskTexts, reading: _ScirepevalTasks) -> Iterator[Task]:
    if isinstance(content, ReviewerMatching):
        yield from make_matching_tasks(content, texts, metrics=row.metrics, prefix=f"{row.name} ")
    elif isinstance(content, Judgments):
        rule = RankingRule(metrics=row.metrics, distance="l2", peers="drop")
        yield RankingTask(row.name, texts, Pools.of(texts, content.pools), rule)
    elif metrics := _probe_metrics(row, content, reading):
        rows = texts.rows(content.papers)
        yield ProbeTask(
            row.name,
            texts,
            kind=content.kind,
            train=rows[: content.train],
            train_labels=content.labels[: content.train],
            test=rows[content.train :],
            test_labels=content.labels[content.train :],
            rule=RULES[content.kind],
            metrics=metrics,
            few_shot=row.few_shot,
            missing_as="left out",
        )


def _probe_metrics(row: TaskRow, content: _LabeledPapers, reading: _ScirepevalTasks) -> dict[str, str]:
    """Return the known metrics of a SciRepEval probe; without a task file the usual one."""
    known: Iterable[str] = REGRESSION_METRICS if content.kind == "numbers" else CLASSIFICATION_METRICS
    if row.format == GUESSED:
        binary = content.kind == "classes" and set(content.labels.tolist()) <= {0, 1}
        usual = "kendalltau" if content.kind == "numbers" else "f1" if binary else "f1_macro"
        return {usual: usual}
    if unknown := [name for name in row.metrics if name not in known]:
        why = f"{row.name}: metrics {', '.join(unknown)} are unknown; known are {', '.join(known)}"
        reading.notes.append(why)
        if len(unknown) == len(row.metrics):
            reading.not_evaluated[row.name] = why
    return {name: name for name in row.metrics if name in known}


def _numbers(task: Task) -> list[str]:
    """Return the names of a task's numbers, without its few-shot ones."""
    metrics: Iterable[str] = (
        task.rule.metrics if isinstance(task, RankingTask) else task.metrics if isinstance(task, ProbeTask) else ()
    )
    return [f"{task.name}.{metric}" for metric in metrics]


def _expected_numbers(row: TaskRow) -> list[str]:
    """Return the names of the numbers of a task without data, so that no average omits them."""
    tasks = [f"{row.name} hard", f"{row.name} soft"] if row.reviewers else [row.name]
    return [f"{task}.{metric}" for task in tasks for metric in row.metrics]


# --- the published averages ------------------------------------------------------------------------------

Parts = tuple[str | tuple[str, ...], ...]
Numbers = Mapping[str, Sequence[str]]
"""Task -> names of its numbers, such as `["SciDocs Cite.map", "SciDocs Cite.ndcg"]`."""


def published_averages(numbers: Numbers, formats: Mapping[str, str], together: frozenset[str]) -> dict[str, Average]:
    """Return SciRepEval's averages, each under its own name; tasks of `together` count as one number."""
    return {**_average_tables(numbers, together), **_average_formats(numbers, formats, together)}


def _average_tables(numbers: Numbers, together: frozenset[str]) -> dict[str, Average]:
    """Return the averages of SciRepEval's and SPECTER2's tables; none where a task is missing."""
    others = FIRST_VERSION if any(name in numbers for name in FIRST_VERSION) else SECOND_VERSION
    groups = {"in": IN_TRAIN, "out": (*OUT_OF_TRAIN, *others), "scidocs": SCIDOCS}
    if not all(name in numbers for group in groups.values() for name in group):
        return {}
    parts: dict[str, Parts] = {
        key: tuple(part for name in tasks for part in _parts(numbers, name, together)) for key, tasks in groups.items()
    }
    count = {key: len(names) for key, names in parts.items()}
    every = f"each of {sum(count.values())} numbers counts once; {_NO_S2AND}"
    return {
        "SciRepEval In-Train": Average(parts["in"], note=f"mean of {count['in']} numbers"),
        "SciRepEval Out-of-Train": Average(parts["out"], note=f"mean of {count['out']} numbers, {_NO_S2AND}"),
        "SciRepEval SciDocs": Average(parts["scidocs"], note=f"mean of {count['scidocs']} numbers"),
        "SciRepEval Average": Average((*parts["in"], *parts["out"], *parts["scidocs"]), note=every),
        "SPECTER2 In-Train": Average(parts["in"], note=f"mean of {count['in']} numbers"),
        "SPECTER2 Out-of-Train": Average(
            (*parts["out"], *parts["scidocs"]),
            note=f"mean of {count['out'] + count['scidocs']} numbers, SciDocs among them; {_NO_S2AND}",
        ),
        "SPECTER2 Avg": Average((*parts["in"], *parts["out"], *parts["scidocs"]), note=every),
    }


def _parts(numbers: Numbers, name: str, together: frozenset[str]) -> Parts:
    return (tuple(numbers[name]),) if name in together else tuple(numbers[name])


def _average_formats(numbers: Numbers, formats: Mapping[str, str], together: frozenset[str]) -> dict[str, Average]:
    """Return the mean of each format over the first number of its tasks; reviewer matching, which has none, is left out."""
    groups: dict[str, list[str]] = {}
    for name, own in numbers.items():
        if name not in together:
            groups.setdefault(formats[name], []).append(own[0])
    means = {f"Formats {name}": Average(tuple(parts)) for name, parts in groups.items()}
    note = "mean of the formats' means; the first metric of each task, without reviewer matching"
    return {**means, "Formats mean": Average(tuple(tuple(parts) for parts in groups.values()), note=note)}
