"""SciDocs: seven tasks about single papers and pairs of papers, twelve numbers (Cohan et al., 2020).

    mag/{train,val,test}.csv, mesh/...                 pid,class_label       classes by a linear probe: macro F1
    {coview,coread,cite,cocite}/{val,test}.qrel        query 0 paper 1       pools ranked by -L2: map, ndcg
    recomm/{train,val,test}.csv, ...                   clicks                see `clicks.py`
    paper_metadata_{mag_mesh,view_cite_read,recomm}.json                     titles and abstracts

A task whose files are missing is left out, with the reason. Does not read vectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from citeweave.core.errors import InputError, choose
from citeweave.evaluation.click_data import METADATA, PROPENSITIES, read_click_data
from citeweave.evaluation.probes import SCIDOCS_CLASSES
from citeweave.evaluation.suites.benchmark_files import (
    BenchmarkPapers,
    DataFolder,
    read_csv,
    read_paper_object,
    read_qrel,
    unique,
    wrong_folder,
)
from citeweave.evaluation.suites.benchmark_labels import as_classes
from citeweave.evaluation.tasks import (
    Average,
    ClickTask,
    Pools,
    ProbeTask,
    RankingRule,
    RankingTask,
    Suite,
    Task,
    TaskTexts,
)

NAME = "scidocs"
SPLITS = ("test", "val")
CLASSES = ("mag", "mesh")
RANKINGS = {"co-view": "coview", "co-read": "coread", "cite": "cite", "co-cite": "cocite"}
"""Task, in the order of SciDocs' own report -> folder."""

CLICKS = "recomm"
RULE = RankingRule(metrics=("map", "ndcg"), distance="l2", decimals=5, peers="drop")
NUMBERS = (
    *(f"{name}.f1" for name in CLASSES),
    *(f"{name}.{metric}" for name in RANKINGS for metric in RULE.metrics),
    "recomm.adj-NDCG",
    "recomm.adj-P@1",
)
"""The twelve numbers that SciDocs reports."""

_CLASS_TEXTS, _RANKING_TEXTS = "paper_metadata_mag_mesh.json", "paper_metadata_view_cite_read.json"


@dataclass
class _ScidocsTasks:
    """The SciDocs tasks read so far, and those that cannot be evaluated."""

    data: DataFolder
    split: str
    tasks: list[Task] = field(default_factory=list)
    not_evaluated: dict[str, str] = field(default_factory=dict)

    def has(self, task: str, *names: str) -> bool:
        """Return whether SciDocs' folder has a task's files; if not, record the reason."""
        absent = self.data.absent(*names)
        if absent:
            which = "which is" if len(absent) == 1 else "which are"
            self.not_evaluated[task] = f"{task} needs {', '.join(absent)}, {which} not in {self.data.folder}"
        return not absent

    def texts(self, name: str, ids: Iterable[str]) -> TaskTexts:
        """Read the texts of these papers from one of SciDocs' metadata files."""
        wanted = unique(ids)
        if not self.data.has(name):
            return TaskTexts.of_ids(wanted, lacking=name)
        return read_paper_object(self.data.file(name, "titles and abstracts"), set(wanted)).texts(wanted)


def read_suite(folder: Path, *, split: str = "test") -> Suite:
    """Read SciDocs from a folder: the tasks whose files it has."""
    choose(split, SPLITS, "--split")
    reading = _ScidocsTasks(DataFolder(folder), split)
    _read_classes(reading)
    _read_rankings(reading)
    _read_clicks(reading)
    if not reading.tasks and not _has_any(reading.data, split):
        files = [
            *(f"{name}/{split}.csv" for name in (*CLASSES, CLICKS)),
            *(f"{name}/{split}.qrel" for name in RANKINGS.values()),
        ]
        raise wrong_folder(reading.data.folder, NAME, f"some of {', '.join(files)}")
    return Suite(
        NAME,
        tuple(reading.tasks),
        averages={"average": Average(NUMBERS, note="mean of SciDocs' twelve numbers")},
        headline=tuple(name for name in NUMBERS if name.split(".")[0] not in reading.not_evaluated),
        not_evaluated=reading.not_evaluated,
        data={
            "folder": str(reading.data.folder),
            "split": split,
            "files": reading.data.hashes(),
            "tasks": [task.name for task in reading.tasks],
        },
    )


def _has_any(data: DataFolder, split: str) -> bool:
    return any(data.has(f"{name}/{split}.csv") for name in (*CLASSES, CLICKS))


def _read_classes(reading: _ScidocsTasks) -> None:
    """Read the probes `mag` and `mesh`: trained on train.csv; val.csv is only for `split="val"`, as in SciDocs' code."""
    labeled = {}
    for name in CLASSES:
        files = [f"{name}/train.csv", f"{name}/{reading.split}.csv"]
        if reading.has(name, *files):
            train, test = (_read_labels(reading.data.file(file, "papers with their class")) for file in files)
            labeled[name] = train, test
    texts = reading.texts(_CLASS_TEXTS, [paper for parts in labeled.values() for part in parts for paper, _ in part])
    for name, (train, test) in labeled.items():
        labels = as_classes([label for _, label in train + test], f"{name}/train.csv and {name}/{reading.split}.csv")
        reading.tasks.append(
            ProbeTask(
                name,
                texts,
                kind="classes",
                train=texts.rows([paper for paper, _ in train]),
                train_labels=labels[: len(train)],
                test=texts.rows([paper for paper, _ in test]),
                test_labels=labels[len(train) :],
                rule=SCIDOCS_CLASSES,
                metrics={"f1": "f1_macro"},
                missing_as="zeros",
            )
        )


def _read_rankings(reading: _ScidocsTasks) -> None:
    """Read the pools of co-view, co-read, cite and co-cite."""
    pools = {}
    for name, folder in RANKINGS.items():
        file = f"{folder}/{reading.split}.qrel"
        if reading.has(name, file):
            pools[name] = read_qrel(reading.data.file(file, "the candidates of every query with their grades"))
    texts = reading.texts(
        _RANKING_TEXTS, [paper for part in pools.values() for query, pool in part.items() for paper in (query, *pool)]
    )
    for name, part in pools.items():
        reading.tasks.append(RankingTask(name, texts, Pools.of(texts, part), RULE))


def _read_clicks(reading: _ScidocsTasks) -> None:
    """Read the clicks of `recomm`; the click model also needs the metadata, for its features."""
    splits = unique(["train", "val", reading.split])
    files = [*(f"{CLICKS}/{name}.csv" for name in splits), PROPENSITIES, METADATA]
    if not reading.has(CLICKS, *files):
        return
    for file in files:
        reading.data.file(file, "clicks and the papers' metadata")
    clicks = read_click_data(reading.data.folder, reading.split)
    papers = BenchmarkPapers(
        {
            name: (title, abstract)
            for name, title, abstract in zip(
                clicks.metadata.ids, clicks.metadata.titles, clicks.metadata.abstracts, strict=True
            )
        }
    )
    logs = [log for log in (clicks.train, clicks.val, clicks.test) if log is not None]
    texts = papers.texts(paper for log in logs for paper in [*log.queries, *log.shown])
    reading.tasks.append(ClickTask(CLICKS, texts, clicks))


def _read_labels(path: Path) -> list[tuple[str, str]]:
    rows = [(row["pid"], row["class_label"]) for row in read_csv(path, ["pid", "class_label"])]
    if not rows:
        raise InputError(f"{path} holds no papers; the file is half downloaded: download it again")
    return rows
