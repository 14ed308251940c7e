"""SciDocs: seven tasks about single papers and pairs of papers, twelve numbers (Cohan et al., 2020).

    mag/{train,val,test}.csv, mesh/...                 pid,class_label       classes by a linear probe: macro F1
    {coview,coread,cite,cocite}/{val,test}.qrel        query 0 paper 1       pools ranked by -L2: map, ndcg
    recomm/{train,val,test}.csv                        q1,p2,"p1,p2,p3"      next to q1 three papers were shown, p2 clicked
    recomm/propensity_scores.json                      {"scores": [0.3, 0.1, 0.1, 0.1]}
    paper_metadata_{mag_mesh,view_cite_read}.json      {"p1": {"title": "T", "abstract": "A"}, ...}
    paper_metadata_recomm.json                         also with authors, year, references, cited_by

A task whose files are missing is left out, with the reason. Propensities become numbers with mean 1: [2, 2/3, 2/3, 2/3].
Does not read vectors and does not evaluate: see `clicks.py`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from citeweave.core.errors import InputError, choose
from citeweave.core.inputs import Source
from citeweave.core.json_files import read_members
from citeweave.evaluation.click_ranker import Doubles, Metadata
from citeweave.evaluation.clicks import ClickData, ClickLog, normalize_propensities
from citeweave.evaluation.suites.benchmark_files import (
    BenchmarkPapers,
    DataFolder,
    as_classes,
    read_csv,
    read_qrel,
    unique,
    wrong_folder,
)
from citeweave.evaluation.tasks import (
    SCIDOCS_CLASSES,
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
CLICK_COLUMNS = ("pid", "clicked_pid", "similar_papers_avail_at_time")
PROPENSITIES, METADATA = "recomm/propensity_scores.json", "paper_metadata_recomm.json"
RULE = RankingRule(metrics=("map", "ndcg"), distance="l2", decimals=5, peers="drop")
NUMBERS = (
    *(f"{name}.f1" for name in CLASSES),
    *(f"{name}.{metric}" for name in RANKINGS for metric in RULE.metrics),
    "recomm.adj-NDCG",
    "recomm.adj-P@1",
)
"""The twelve numbers that SciDocs reports."""

_MAX_CELL_CHARACTERS = 2**24
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
        absent = [name for name in names if not self.data.has(name)]
        if absent:
            which = "which is" if len(absent) == 1 else "which are"
            self.not_evaluated[task] = f"{task} needs {', '.join(absent)}, {which} not in {self.data.folder}"
        return not absent

    def texts(self, name: str, ids: Iterable[str]) -> TaskTexts:
        """Read the texts of these papers from one of SciDocs' metadata files."""
        wanted = unique(ids)
        if not self.data.has(name):
            return TaskTexts.of_ids(wanted, lacking=name)
        return _read_papers(self.data.file(name, "titles and abstracts"), set(wanted)).texts(wanted)


def read_suite(folder: Path, *, split: str = "test") -> Suite:
    """Read SciDocs from a folder: the tasks whose files it has."""
    choose(split, SPLITS, "--split")
    reading = _ScidocsTasks(DataFolder(folder), split)
    _read_classes(reading)
    _read_rankings(reading)
    _read_clicks(reading)
    if not reading.tasks and not any(reading.data.has(f"{name}/{split}.csv") for name in (*CLASSES, CLICKS)):
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
        data=reading.data.provenance(split, tasks=[task.name for task in reading.tasks]),
    )


def _read_papers(path: Path, wanted: Collection[str]) -> BenchmarkPapers:
    """Read the wanted papers of one of SciDocs' metadata files, one large JSON object, `{id: {"title", "abstract", ...}}`."""
    papers = BenchmarkPapers()
    for name, record in read_members(Source(path)):
        if not isinstance(record, dict):
            raise InputError(f"{path}: the entry of {name!r} is not a JSON object; download the file again")
        if name in wanted:
            papers.add(name, record)
    return papers


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
    """Read the clicks of `recomm`, with the metadata that the click model's features need.

    `split="val"` evaluates the validation clicks and chooses no epoch by them, as SciDocs' code does.
    """
    splits = unique(["train", "val", reading.split])
    names = [*(f"{CLICKS}/{name}.csv" for name in splits), PROPENSITIES, METADATA]
    if not reading.has(CLICKS, *names):
        return
    files = [reading.data.file(name, "clicks and the papers' metadata") for name in names]
    logs = dict(zip(splits, map(read_clicks, files), strict=False))
    metadata = read_metadata(files[-1], set[str]().union(*(log.papers() for log in logs.values())))
    val = logs["val"] if reading.split == "test" else None
    clicks = ClickData(logs["train"], val, logs[reading.split], read_propensities(files[-2]), metadata)
    columns = zip(metadata.ids, metadata.titles, metadata.abstracts, strict=True)
    papers = BenchmarkPapers({name: (title, abstract) for name, title, abstract in columns})
    used = [log for log in (clicks.train, clicks.val, clicks.test) if log is not None]
    texts = papers.texts(paper for log in used for paper in [*log.queries, *log.shown])
    reading.tasks.append(ClickTask(CLICKS, texts, clicks))


def read_clicks(path: Path) -> ClickLog:
    """Read one log of SciDocs' click data; a line that is no click is an error, as in SciDocs' code."""
    clicks = ClickLog.of(_read_click_rows(path))
    if not len(clicks):
        raise InputError(
            f"{path} holds no clicks; it must have the columns {', '.join(CLICK_COLUMNS)} and one line per click"
        )
    return clicks


def _read_click_rows(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (query, clicked paper, shown papers) from the CSV file of a click log."""
    csv.field_size_limit(_MAX_CELL_CHARACTERS)  # a global setting, which another reader may have changed
    with Source(path).open() as stream:
        lines = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""))
        try:
            header = next(lines, [])
            if missing := [name for name in CLICK_COLUMNS if name not in header]:
                raise InputError(f"{path} has no column {', '.join(missing)}; it has {', '.join(header) or 'none'}")
            query, clicked, shown = (header.index(name) for name in CLICK_COLUMNS)
            for line in lines:
                if not line:
                    continue
                if len(line) != len(header):
                    raise InputError(
                        f"{path} line {lines.line_num} has {len(line)} columns instead of {len(header)}; "
                        "is the file cut off? get it again"
                    )
                papers = line[shown].strip().split(",")
                if line[clicked] not in papers:
                    raise InputError(
                        f"{path} line {lines.line_num}: the clicked paper {line[clicked]!r} is not among the "
                        f"{len(papers)} papers shown; is the file cut off? get it again"
                    )
                yield line[query], line[clicked], papers
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path} line {lines.line_num} cannot be read ({error}); is it a CSV file?") from None


def read_propensities(path: Path) -> Doubles:
    """Read the propensities of click data, one per shown place, scaled to mean 1."""
    value = Source(path).json()
    scores = value.get("scores") if isinstance(value, dict) else None
    if not isinstance(scores, list) or not scores or not all(isinstance(score, int | float) for score in scores):
        raise InputError(f'{path} must be {{"scores": [one number per place]}}; get the file again')
    return normalize_propensities(np.array(scores, np.float64), str(path))


def read_metadata(path: Path, wanted: Collection[str]) -> Metadata:
    """Read the metadata of the wanted papers from SciDocs' JSON file, gigabytes that are read entry by entry."""
    return Metadata.of((name, entry) for name, entry in read_members(Source(path)) if name in wanted)


def _read_labels(path: Path) -> list[tuple[str, str]]:
    rows = [(row["pid"], row["class_label"]) for row in read_csv(path, ["pid", "class_label"])]
    if not rows:
        raise InputError(f"{path} holds no papers; the file is half downloaded: download it again")
    return rows
