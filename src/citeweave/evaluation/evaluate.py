"""The verb: judge something by a suite, task by task, and write the report.

    report = evaluate(judged, suite, "report/")
    report.metrics["all.map"]

Finished tasks are kept as they are made: a killed evaluation goes on with those that are missing, and a report that
is asked for more tasks runs only the new ones.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.errors import EmptyResultError, choose
from citeweave.evaluation.averaging import averages_of
from citeweave.evaluation.fingerprint import fingerprint
from citeweave.evaluation.judged import Judged, NoAnswerError
from citeweave.evaluation.outcomes import Outcome
from citeweave.evaluation.report import KIND, VERSION, Report, write_report
from citeweave.evaluation.resampling import intervals_of
from citeweave.evaluation.running.run import run_task
from citeweave.evaluation.tasks import MISSING, Suite, Task
from citeweave.files import ArtefactWriter, hash_json, matches, new_artefact, read_manifest, write_json
from citeweave.progress import QUIET, Reporter
from citeweave.version import __version__


@dataclass(frozen=True)
class EvaluationOptions:
    """How to judge; the defaults are the protocol's, except that a missing answer is a wrong one."""

    distance: str = ""
    """`cosine`, `l2`, `dot`, or one of the sentence-level distances; empty = the protocol's."""

    missing: str = "wrong"
    """`wrong`: a paper without vector is a wrong answer. `peers`: what the peer's own code does with it."""

    intercept: bool = True
    """Whether linear probes have an intercept; the peers' own solver has none."""

    seed: int = 0
    """Of what is drawn anew at each evaluation: the click model's initial weights."""

    def __post_init__(self) -> None:
        choose(self.missing, MISSING, "--missing")


def evaluate(
    judged: Judged,
    suite: Suite,
    output: str | Path,
    *,
    tasks: Sequence[str] = (),
    options: EvaluationOptions | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Report:
    """Judge by the suite's tasks, or by those named, and write the report's folder."""
    options, suite, folder = options or EvaluationOptions(), suite.choose(tasks), Path(output)
    same = _what_is_asked(judged, suite, options)
    recipe = {**same, "tasks": {task.name: fingerprint(task) for task in suite.tasks}}
    if matches(folder, KIND, VERSION, recipe):
        return Report.open(folder)
    earlier = _earlier(folder, same)
    with new_artefact(folder, KIND, VERSION, recipe, overwrite=overwrite or bool(earlier)) as writer:
        outcomes, failed = _judge_all(judged, suite, options, writer, recipe, earlier, reporter)
        if not outcomes:
            raise EmptyResultError(f"{judged.name} answers no task of {suite.name}: {'; '.join(failed.values())}")
        value = _assemble(judged, suite, options, outcomes, failed)
        write_report(value, writer.folder, outcomes)
        writer.facts |= {"metrics": value["metrics"], "suite": suite.name, "model": judged.name}
        manifest = writer.finish()
    return Report(folder, manifest, value)


def _what_is_asked(judged: Judged, suite: Suite, options: EvaluationOptions) -> dict[str, Any]:
    return {
        "model": judged.revision or judged.name,
        "name": judged.name,
        "suite": suite.name,
        "options": asdict(options),
        "version": VERSION,
    }


def _earlier(folder: Path, same: dict[str, Any]) -> dict[str, Outcome]:
    """Outcomes of a finished report over other tasks, judged the same way; by the fingerprint of their task."""
    if not matches_but_for_tasks(folder, same):
        return {}
    recipe = read_manifest(folder, KIND, VERSION).recipe
    report = Report.open(folder)
    return {recipe["tasks"][outcome.task]: outcome for outcome in report.outcomes() if outcome.task in recipe["tasks"]}


def matches_but_for_tasks(folder: Path, same: dict[str, Any]) -> bool:
    """Whether a folder holds a report on the same model, suite and options."""
    if not (folder / "manifest.json").is_file():
        return False
    recipe = dict(read_manifest(folder, KIND, VERSION).recipe)
    recipe.pop("tasks", None)
    return hash_json(recipe) == hash_json(same)


def _judge_all(
    judged: Judged,
    suite: Suite,
    options: EvaluationOptions,
    writer: ArtefactWriter,
    recipe: dict[str, Any],
    earlier: dict[str, Outcome],
    reporter: Reporter,
) -> tuple[list[Outcome], dict[str, str]]:
    same = {name: value for name, value in recipe.items() if name != "tasks"}
    done = writer.shared_work(f"tasks/{hash_json(same)[:16]}")
    outcomes, failed = [], {}
    with reporter.task("judging", total=len(suite.tasks), unit="tasks") as advance:
        for task in suite.tasks:
            mark = recipe["tasks"][task.name]
            path = done / f"{mark[:24]}.json"
            try:
                outcomes.append(earlier.get(mark) or _judge(judged, task, options, path))
            except NoAnswerError as error:
                failed[task.name] = str(error)
            advance(1)
    return outcomes, failed


def _judge(judged: Judged, task: Task, options: EvaluationOptions, path: Path) -> Outcome:
    """The outcome that an interrupted run left, else a new one, which is written before the next task begins."""
    if path.is_file():
        return Outcome.of_json(json.loads(path.read_bytes()))
    outcome = run_task(task, judged, options.distance, options.missing, intercept=options.intercept, seed=options.seed)
    write_json(path, outcome.as_json())
    return outcome


def _assemble(
    judged: Judged, suite: Suite, options: EvaluationOptions, outcomes: list[Outcome], failed: dict[str, str]
) -> dict[str, Any]:
    metrics = {f"{outcome.task}.{name}": value for outcome in outcomes for name, value in outcome.metrics.items()}
    averages = averages_of(suite.averages, metrics)
    return {
        "suite": suite.name,
        "model": judged.facts(),
        "metrics": {**metrics, **averages},
        "intervals": intervals_of(outcomes),
        "headline": list(suite.headline),
        "averages": {name: suite.averages[name].note for name in averages},
        "coverage": {outcome.task: dict(outcome.coverage) for outcome in outcomes},
        "not_evaluated": {**suite.not_evaluated, **failed},
        "notes": list(suite.notes),
        "options": asdict(options),
        "data": dict(suite.data),
        "tasks": {outcome.task: _about(outcome) for outcome in outcomes},
        "per_query": {outcome.task: outcome.rows for outcome in outcomes},
        "versions": {"citeweave": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }


def _about(outcome: Outcome) -> dict[str, Any]:
    return {
        "kind": outcome.kind,
        "how": dict(outcome.how),
        "notes": list(outcome.notes),
        "chosen": dict(outcome.chosen),
    }
