"""The verb: judge something by a suite, task by task, and write the report.

    report = evaluate(judged, suite, "report/")
    report.metrics["all.map"]

Finished tasks are kept as they are made, and vectors are saved by time: a killed evaluation goes on with the tasks that are
missing, and a report that
is asked for more tasks, or for a map, judges only the new ones. A report on another model, other data or by other
options is not replaced unless `overwrite` says so. Tasks of a `Shared` thing are judged by its crew.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.artefacts.writing import matches, new_artefact
from citeweave.errors import EmptyResultError, choose
from citeweave.evaluation.averaging import averages_of
from citeweave.evaluation.example_matches import example_matches
from citeweave.evaluation.fingerprint import fingerprint
from citeweave.evaluation.finished import Finished, Marks, Work, find_earlier
from citeweave.evaluation.judged import Judged, NoAnswerError, Resumable, choose_distance
from citeweave.evaluation.outcomes import Outcome
from citeweave.evaluation.remote import Shared
from citeweave.evaluation.report import KIND, VERSION, Report, write_report
from citeweave.evaluation.resampling import intervals_of
from citeweave.evaluation.running.run import run_task
from citeweave.evaluation.tasks import MISSING, Suite, Task
from citeweave.evaluation.texts import NoTextsError
from citeweave.evaluation.topic_map import TopicMap, map_facts
from citeweave.files import hash_json
from citeweave.progress import QUIET, Reporter
from citeweave.version import __version__


@dataclass(frozen=True)
class EvaluationOptions:
    """How to judge; the defaults are the protocol's, except that a missing answer is a wrong one."""

    distance: str = ""
    """`cosine`, `l2`, `dot`, or one of the sentence-level distances, or a sum such as `mean_best+token_best`; empty = the
    protocol's."""

    missing: str = "wrong"
    """`wrong`: a paper without vector is a wrong answer. `peers`: what the peer's own code does with it."""

    intercept: bool = True
    """Whether linear probes have an intercept; the peers' own solver has none."""

    seed: int = 0
    """Of what is drawn anew at each evaluation: the click model's initial weights."""

    def __post_init__(self) -> None:
        choose(self.missing, MISSING, "--missing")


def evaluate(
    judged: Judged | Shared,
    suite: Suite,
    output: str | Path,
    *,
    tasks: Sequence[str] = (),
    options: EvaluationOptions | None = None,
    with_map: bool = False,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Report:
    """Judge by the suite's tasks, or by those named, and write the report's folder.

    A report that is there and was judged the same way keeps its tasks and its map.
    """
    options, folder = options or EvaluationOptions(), Path(output)
    judged, shared = (judged.judged, judged) if isinstance(judged, Shared) else (judged, None)
    choose_distance(judged, options.distance, "")  # told before anything is judged
    chosen, same = suite.choose(tasks), _what_is_asked(judged, suite, options)
    marks = {task.name: fingerprint(task) for task in suite.choose(()).tasks}
    earlier = find_earlier(folder, same, marks)
    if earlier:
        chosen = suite.choose([*(task.name for task in chosen.tasks), *earlier.recipe["tasks"]])
    with_map = with_map or (earlier is not None and earlier.has_map)
    recipe = {**same, "map": with_map, "tasks": {task.name: marks[task.name] for task in chosen.tasks}}
    if earlier and matches(folder, KIND, VERSION, recipe):
        return earlier.report
    # a report with this recipe that is no earlier one is damaged
    overwrite = overwrite or earlier is not None or matches(folder, KIND, VERSION, recipe)
    with new_artefact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        work = Work(writer.shared_work(f"tasks/{hash_json(same)[:16]}"), earlier, judged.name)
        try:
            _resume_in(judged, writer.shared_work("vectors"))
            if shared is not None:
                shared.embed([task for task in chosen.tasks if work.find(marks[task.name]) is None])
            topics = TopicMap(judged, suite) if with_map else None
            finished, failed = _judge_all(shared or judged, chosen, options, work, marks, reporter)
            value = _assemble(judged, chosen, options, [each.outcome for each in finished], failed)
            value["data"]["hash"] = hash_json(recipe["tasks"])[:16]
            _write(value, writer.folder, judged, chosen, finished, topics, reporter)
        finally:
            _resume_in(judged, None)
        writer.facts |= {"metrics": value["metrics"], "suite": suite.name, "model": judged.name}
        manifest = writer.finish()
    return Report(folder, manifest, value)


def _resume_in(judged: Judged, folder: Path | None) -> None:
    if isinstance(judged, Resumable):
        judged.resume_in(folder)


def _write(
    value: dict[str, Any],
    folder: Path,
    judged: Judged,
    suite: Suite,
    finished: Sequence[Finished],
    topics: TopicMap | None,
    reporter: Reporter,
) -> None:
    """Write the report, with its map where there is one, and with matching sentences where the model has them."""
    map_data = topics.make(seed=value["options"]["seed"], reporter=reporter) if topics else None
    if topics and map_data:
        value["map"] = map_facts(map_data, topics.task.name)
    runs = {each.outcome.task: each.run for each in finished if each.run}
    write_report(value, folder, runs, map_data, example_matches(judged, suite, value, runs))


def _what_is_asked(judged: Judged, suite: Suite, options: EvaluationOptions) -> dict[str, Any]:
    return {
        "model": judged.revision or judged.name,
        "name": judged.name,
        "suite": suite.name,
        "options": asdict(options),
        "version": VERSION,
    }


def _judge_all(
    judged: Judged | Shared, suite: Suite, options: EvaluationOptions, work: Work, marks: Marks, reporter: Reporter
) -> tuple[list[Finished], dict[str, str]]:
    """Every task that can be answered, and why the others cannot."""
    found = {task.name: known for task in suite.tasks if (known := work.find(marks[task.name]))}
    missing = [task for task in suite.tasks if task.name not in found]
    failed: dict[str, str] = {}
    with reporter.task("judging", total=len(suite.tasks), unit="tasks") as advance:
        advance(len(found))
        for task, outcome in _judged(judged, missing, options, marks):
            if isinstance(outcome, str):
                failed[task.name] = outcome
            else:
                found[task.name] = work.keep(marks[task.name], outcome)
            advance(1)
    if not found:
        raise EmptyResultError(f"{_name(judged)} answers no task of {suite.name}: {_reasons(failed)}")
    names = [task.name for task in suite.tasks]  # a crew finishes them in any order
    return [found[name] for name in names if name in found], {name: failed[name] for name in names if name in failed}


def _judged(
    judged: Judged | Shared, tasks: Sequence[Task], options: EvaluationOptions, marks: Marks
) -> Iterator[tuple[Task, Outcome | str]]:
    """Tasks with their outcomes, or why there is none."""
    if isinstance(judged, Shared):
        yield from judged.judge(tasks, marks, asdict(options))
        return
    for task in tasks:
        try:
            yield task, run_task(task, judged, **asdict(options))
        except (NoAnswerError, NoTextsError) as error:
            yield task, str(error)


def _name(judged: Judged | Shared) -> str:
    return judged.judged.name if isinstance(judged, Shared) else judged.name


def _reasons(failed: Mapping[str, str], most: int = 3) -> str:
    """The different reasons, but not hundreds of them.

    >>> _reasons({"a": "no vectors", "b": "no vectors", "c": "no texts"})
    'no vectors; no texts'
    """
    each = list(dict.fromkeys(failed.values()))
    return "; ".join(each[:most]) + (f"; and {len(each) - most} more" if len(each) > most else "")


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
