"""Tasks that are finished: kept one by one while an evaluation runs, and found again in an earlier report.

    work/<mark>.json    the outcome of the task with this fingerprint
    work/<mark>.run     its TREC run, where it ranks

The run is written first: an outcome that is there has all that belongs to it. Does not judge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from citeweave.artefacts.integrity import sealed, unsealed
from citeweave.errors import ArtefactError
from citeweave.evaluation.outcomes import Outcome
from citeweave.evaluation.report import Report, write_run
from citeweave.files import hash_file, hash_json, read_input, write_json

Marks = Mapping[str, str]
"""Task -> fingerprint of what it asks."""


@dataclass(frozen=True)
class Finished:
    """One task, judged and written down."""

    outcome: Outcome
    run: Path | None


@dataclass(frozen=True)
class Earlier:
    """A finished report on the same model, suite and options, whose tasks still ask the same."""

    report: Report
    tasks: Mapping[str, Finished] = field(default_factory=dict)
    """By the fingerprint of the task."""

    @property
    def recipe(self) -> dict[str, Any]:
        return self.report.manifest.recipe

    @property
    def has_map(self) -> bool:
        return bool(self.recipe.get("map"))


def find_earlier(folder: Path, same: Mapping[str, Any], marks: Marks) -> Earlier | None:
    """The report of a folder, if it may be extended; `same` is what must not differ."""
    try:
        report = Report.open(folder)
    except ArtefactError:
        return None
    recipe = dict(report.manifest.recipe)
    asked = recipe.pop("tasks", {})
    recipe.pop("map", None)
    if hash_json(recipe) != hash_json(same) or any(marks.get(task) != mark for task, mark in asked.items()):
        return None
    runs = report.runs()
    return Earlier(report, {asked[each.task]: Finished(each, runs.get(each.task)) for each in report.outcomes()})


class Work:
    """The folder in which an evaluation keeps its finished tasks, and the earlier report it goes on from."""

    def __init__(self, folder: Path, earlier: Earlier | None, tag: str) -> None:
        self._folder, self._tag = folder, tag
        self._earlier = earlier.tasks if earlier else {}

    def find(self, mark: str) -> Finished | None:
        """What is known of a task already."""
        path = self._folder / f"{mark}.json"
        if mark in self._earlier or not path.is_file():
            return self._earlier.get(mark)
        run = path.with_suffix(".run")
        try:
            told = unsealed(json.loads(read_input(path)))
            ranked = told.pop("run", None)
            outcome = Outcome.of_json(told)
            is_whole = ranked is None or hash_file(run) == ranked
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            is_whole = False
        return Finished(outcome, run if run.is_file() else None) if is_whole else None  # damaged: it is judged again

    def keep(self, mark: str, outcome: Outcome) -> Finished:
        """Write a task down before the next one begins."""
        path, run = self._folder / f"{mark}.json", None
        if outcome.ranked:
            run = path.with_suffix(".run")
            write_run(run, outcome, self._tag)
        ranked = {} if run is None else {"run": hash_file(run)}
        write_json(path, sealed({**outcome.as_json(), **ranked}))
        return Finished(outcome, run)
