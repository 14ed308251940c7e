"""Reports of the table: one a run, with the values of every query, so that any two can be compared later.

    reports/CORPUS/SYSTEM-SEED.json       as they are made
    CORPUS.reports                        all of a corpus in one file, which travels

>>> columns = as_columns({"q1": {"map": 0.5}, "q2": {"map": 1.0}})
>>> columns
{'names': ['q1', 'q2'], 'values': {'map': [0.5, 1.0]}}
>>> as_rows(columns)
{'q1': {'map': 0.5}, 'q2': {'map': 1.0}}
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table.packing import pack, unpack
from citeweave.core.artifact import Manifest
from citeweave.core.errors import ArtifactError
from citeweave.evaluation.metrics import Outcome
from citeweave.evaluation.report import KIND, VERSION, Report
from citeweave.evaluation.tasks import Suite

FORMAT = 1
DIGITS = 6


@dataclass(frozen=True)
class View:
    """One suite, judged in one way."""

    suite: str
    headline: Sequence[str]
    marks: Mapping[str, str]
    """Task -> what it asks, as a hash."""

    outcomes: Sequence[Outcome]
    failed: Mapping[str, str] = field(default_factory=dict)
    """Task -> why the system cannot answer it."""

    distance: str = "cosine"

    @classmethod
    def of(cls, suite: Suite, marks: Mapping[str, str], outcomes: Sequence[Outcome], **others: Any) -> View:
        return cls(suite.name, list(suite.headline), dict(marks), list(outcomes), **others)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """In percent, by flat names."""
        return {f"{each.task}.{key}": value for each in self.outcomes for key, value in each.metrics.items()}

    def as_report(self, name: str) -> Report:
        """What `compare` reads."""
        value = {
            "suite": self.suite,
            "model": {"name": name},
            "headline": list(self.headline),
            "tasks": {
                each.task: {"kind": each.kind, "how": each.how, "notes": [], "chosen": {}} for each in self.outcomes
            },
            "per_query": {each.task: each.rows for each in self.outcomes},
            "coverage": {each.task: {} for each in self.outcomes},
            "metrics": self.metrics,
        }
        manifest = Manifest(KIND, VERSION, {"tasks": dict(self.marks)}, {}, {})
        return Report(Path(name), manifest, value)


@dataclass(frozen=True)
class RunReport:
    """One run: a system, trained with one seed on one corpus, judged by every suite."""

    corpus: str
    system: str
    seed: int
    version: str
    """Of the data."""

    views: Mapping[str, View]
    papers: int = 0
    """Papers that training read, each as often as it was read."""

    cost: Mapping[str, Any] = field(default_factory=dict)
    """Seconds, runs beside it, steps, epochs, device."""

    saw: Mapping[str, int] = field(default_factory=dict)
    """Suite -> papers that were trained on and whose titles stand in it."""

    @property
    def file_name(self) -> str:
        """
        >>> [RunReport("elife", name, 0, "v1", {}).file_name for name in ("scincl, k+ 50", "scincl, k- 50")]
        ['scincl--k+_50-0.json', 'scincl--k-_50-0.json']
        """
        name = self.system.lower().replace(", ", "--")
        return f"{re.sub(r'[^a-z0-9_.+-]+', '_', name).strip('_')}-{self.seed}.json"


def as_columns(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Rows by column, numbers rounded; rows that differ in their keys stay as they are."""
    keys = list(next(iter(rows.values()), {}))
    if any(list(row) != keys for row in rows.values()):
        return {"rows": dict(rows)}
    values = {key: [_short(row[key]) for row in rows.values()] for key in keys}
    return {"names": list(rows), "values": values}


def as_rows(columns: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What `as_columns` was given."""
    if "rows" in columns:
        return dict(columns["rows"])
    keys = list(columns["values"])
    items = zip(*columns["values"].values(), strict=True) if keys else ((),) * len(columns["names"])
    return {name: dict(zip(keys, item, strict=True)) for name, item in zip(columns["names"], items, strict=True)}


def _short(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return round(value, DIGITS) if isinstance(value, float) else value


def write_run(folder: Path, report: RunReport) -> Path:
    """Written whole or not at all."""
    value: dict[str, Any] = {each.name: getattr(report, each.name) for each in fields(report) if each.name != "views"}
    value["views"] = {name: _view_json(view) for name, view in report.views.items()}
    value["format"] = FORMAT
    path = folder / "reports" / report.corpus / report.file_name
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(value), encoding="utf-8")
    temporary.replace(path)
    return path


def _view_json(view: View) -> dict[str, Any]:
    found = {each.name: getattr(view, each.name) for each in fields(view) if each.name != "outcomes"}
    outcomes = [
        {**replace(each, rows={}, how={}).as_json(), "how": dict(each.how), "rows": as_columns(each.rows)}
        for each in view.outcomes
    ]
    return {**found, "outcomes": outcomes}


def read_run(content: bytes, where: str) -> RunReport:
    """A report; what is none is refused."""
    try:
        value = json.loads(content)
        if value.pop("format") != FORMAT:
            raise ValueError
        views = {
            name: View(**{**view, "outcomes": [_outcome(each) for each in view["outcomes"]]})
            for name, view in value.pop("views").items()
        }
        return RunReport(**value, views=views)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ArtifactError(f"{where} is no report of the table, or of another format; make it again") from None


def _outcome(value: Mapping[str, Any]) -> Outcome:
    return Outcome.of_json({**value, "rows": as_rows(value["rows"])})


def is_done(folder: Path, report: RunReport) -> bool:
    """Whether a run with this system, seed and data is there."""
    path = folder / "reports" / report.corpus / report.file_name
    return path.is_file() and read_run(path.read_bytes(), str(path)).version == report.version


def read_runs(folder: Path, corpus: str) -> list[RunReport]:
    """Every report of a corpus."""
    paths = sorted((folder / "reports" / corpus).glob("*.json"))
    gc.disable()  # it would walk over millions of rows again and again, none of which goes
    try:
        return [read_run(path.read_bytes(), str(path)) for path in paths]
    finally:
        gc.freeze()
        gc.enable()


def pack_runs(folder: Path, corpus: str) -> Path:
    """All reports of a corpus in one file."""
    paths = sorted((folder / "reports" / corpus).glob("*.json"))
    pack(packed_path(folder, corpus), {path.name: path.read_bytes() for path in paths})
    return packed_path(folder, corpus)


def unpack_runs(folder: Path, corpus: str, *, version: str = "") -> None:
    """Reports that came packed, beside those that are there; of a named data version, in place of those of another."""
    path = packed_path(folder, corpus)
    if not path.is_file():
        return
    for name, content in unpack(path).items():
        report = read_run(content, f"{path}: {name}")
        target = folder / "reports" / corpus / report.file_name
        is_old = target.exists() and version == report.version != read_run(target.read_bytes(), str(target)).version
        if is_old or not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def packed_path(folder: Path, corpus: str) -> Path:
    return folder / f"{corpus}.reports"
