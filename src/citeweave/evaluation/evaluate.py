"""Evaluate a system on a benchmark suite, task by task, here or on an executor, and write the report.

    report = evaluate(system, suite, "report/")
    report.metrics["all.map"]

Finished tasks are saved one by one and vectors from time to time: a killed evaluation resumes with the missing tasks. A
report that is extended by more tasks, or by a map, evaluates only what is new. A report on another model, other data or
with other options is not replaced unless `overwrite` says so.

    work/<fingerprint>.json    the outcome of the task with this fingerprint
    work/<fingerprint>.run     its TREC run, where it ranks; written first, so an outcome on disk is complete

    reports = evaluate_spaces(open_spaces("model/"), suite, "reports/")
    reports["method"].metrics["cite.map"]

    reports/encoder/  reports/background/  reports/method/  reports/result/  reports/all/  reports/matching/

Papers are encoded once for all spaces; `matching` is left out where the suite asks about no aspect.

    shared = SharedSystem(system, executor, SuiteSpec("scidocs", Path("data/scidocs")), "minilm", opening)
    evaluate(shared, suite, "report/")

A worker of the executor reads the suite, opens the same system and runs one task at a time; the driver saves the outcome
as if it had run the task itself. Paper vectors of an encoder are embedded into the cache before, so that no text is
encoded twice. Every machine must see the data, the model and the cache under the same names. Does not run single tasks
(`run_tasks.py`) and does not run baselines on workers: they are trained by the process that evaluates them.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from citeweave.core.artifact import artifact_matches, kind_of, new_artifact, seal_payload, unseal_payload
from citeweave.core.errors import ArtifactError, EmptyResultError, UserError
from citeweave.core.executor import Executor, Make, ShardTask
from citeweave.core.files import hash_file, hash_json, read_input, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.encoder import TorchEncoder
from citeweave.evaluation.compare import intervals_of
from citeweave.evaluation.encoder_systems import AspectSpace, EncoderSystem, MatchingSpace, spaces_for_suite
from citeweave.evaluation.match_page import example_matches, match_blocks
from citeweave.evaluation.metrics import Outcome
from citeweave.evaluation.open_system import KNOWN_SYSTEMS, open_system
from citeweave.evaluation.options import EvaluationOptions, OpeningOptions
from citeweave.evaluation.paper_map import TopicMap, map_as_json
from citeweave.evaluation.query_tables import titles_of_listed
from citeweave.evaluation.report import KIND, VERSION, Report, write_report, write_run
from citeweave.evaluation.run_tasks import run_task
from citeweave.evaluation.suites import SuiteSpec
from citeweave.evaluation.systems import FacetSystem, NoAnswerError, Resumable, System, choose_distance
from citeweave.evaluation.tasks import NoTextsError, Suite, Task, compute_averages, fingerprint
from citeweave.version import __version__

Fingerprints = Mapping[str, str]
"""Task -> fingerprint of its content."""


def evaluate(
    system: System | SharedSystem,
    suite: Suite,
    output: str | Path,
    *,
    tasks: Sequence[str] = (),
    options: EvaluationOptions | None = None,
    with_map: bool = False,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Report:
    """Evaluate a system on a suite of tasks, or on those that `tasks` names; write a report folder and open it.

        report = evaluate("weave", read_suite("csfcube", "data/csfcube"), "report/")
        report.metrics, report.to_pandas()

    An existing report on the same system with the same options keeps its tasks and its map.
    """
    options, folder = options or EvaluationOptions(), Path(output)
    shared, system = system if isinstance(system, SharedSystem) else None, _system_in(system)
    choose_distance(system, options.distance, "")  # refused before any work is done
    chosen, base_recipe = suite.choose(tasks), _base_recipe(system, suite, options)
    fingerprints = {task.name: fingerprint(task) for task in suite.choose(()).tasks}
    earlier = find_earlier_report(folder, base_recipe, fingerprints)
    if earlier:
        chosen = suite.choose([*(task.name for task in chosen.tasks), *earlier.manifest.recipe["tasks"]])
        with_map = with_map or bool(earlier.manifest.recipe.get("map"))
    recipe = {**base_recipe, "map": with_map, "tasks": {task.name: fingerprints[task.name] for task in chosen.tasks}}
    if earlier and artifact_matches(folder, KIND, VERSION, recipe):
        return earlier
    # a report with this recipe that could not be reused is damaged
    overwrite = overwrite or earlier is not None or artifact_matches(folder, KIND, VERSION, recipe)
    with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        work = EvaluationFolder(
            writer.shared_scratch_folder(f"tasks/{hash_json(base_recipe)[:16]}"), earlier, system.name
        )
        try:
            _resume_in(system, writer.shared_scratch_folder("vectors"))
            if shared is not None:
                shared.embed([task for task in chosen.tasks if work.find(fingerprints[task.name]) is None])
            topics = TopicMap(system, suite) if with_map else None
            finished, failed = _evaluate_tasks(shared or system, chosen, options, work, fingerprints, reporter)
            value = _report_value(system, chosen, options, [each.outcome for each in finished], failed)
            value["data"]["hash"] = hash_json(recipe["tasks"])[:16]
            runs = {each.outcome.task: each.run for each in finished if each.run}
            _write(value, writer.folder, system, chosen, runs, topics, reporter)
        finally:
            _resume_in(system, None)
        writer.facts |= {"metrics": value["metrics"], "suite": suite.name, "model": system.name}
        manifest = writer.finish()
    return Report(folder, manifest, value)


def _resume_in(system: System, folder: Path | None) -> None:
    if isinstance(system, Resumable):
        system.resume_in(folder)


def _write(
    value: dict[str, Any],
    folder: Path,
    system: System,
    suite: Suite,
    runs: Mapping[str, Path],
    topics: TopicMap | None,
    reporter: Reporter,
) -> None:
    """Write the report with its map, where it has one, and with matching sentences, where the system has them."""
    map_data = topics.make(seed=value["options"]["seed"], reporter=reporter) if topics else None
    if topics and map_data:
        value["map"] = map_as_json(map_data, topics.task.name)
    write_report(value, folder, runs, map_data, match_blocks(example_matches(system, suite, value, runs)))


def _base_recipe(system: System, suite: Suite, options: EvaluationOptions) -> dict[str, Any]:
    """Return the part of a report's recipe that must be equal for the report to be extended."""
    return {
        "model": system.revision or system.name,
        "name": system.name,
        "suite": suite.name,
        "options": asdict(options),
        "version": VERSION,
    }


def _evaluate_tasks(
    system: System | SharedSystem,
    suite: Suite,
    options: EvaluationOptions,
    work: EvaluationFolder,
    fingerprints: Fingerprints,
    reporter: Reporter,
) -> tuple[list[FinishedTask], dict[str, str]]:
    """Evaluate the tasks that are not finished; return all finished ones, and why others cannot be evaluated."""
    finished = {task.name: saved for task in suite.tasks if (saved := work.find(fingerprints[task.name]))}
    missing = [task for task in suite.tasks if task.name not in finished]
    failed: dict[str, str] = {}
    with reporter.task("evaluating", total=len(suite.tasks), unit="tasks") as advance:
        advance(len(finished))
        for task, outcome in _outcomes(system, missing, options, fingerprints):
            if isinstance(outcome, str):
                failed[task.name] = outcome
            else:
                finished[task.name] = work.save(fingerprints[task.name], outcome)
            advance(1)
    if not finished:
        raise EmptyResultError(f"{_system_in(system).name} cannot do any task of {suite.name}: {_reasons(failed)}")
    order = [task.name for task in suite.tasks]  # an executor finishes them in any order
    return [finished[name] for name in order if name in finished], {
        name: failed[name] for name in order if name in failed
    }


def _outcomes(
    system: System | SharedSystem, tasks: Sequence[Task], options: EvaluationOptions, fingerprints: Fingerprints
) -> Iterator[tuple[Task, Outcome | str]]:
    """Yield tasks with their outcomes, or with the reason why the system cannot do them."""
    if isinstance(system, SharedSystem):
        yield from system.evaluate(tasks, fingerprints, asdict(options))
        return
    for task in tasks:
        yield task, _try_task(task, system, asdict(options))


def _try_task(task: Task, system: System, options: Mapping[str, Any]) -> Outcome | str:
    """Run a task and return its outcome, or why the system cannot do it."""
    try:
        return run_task(task, system, **options)
    except (NoAnswerError, NoTextsError) as error:
        return str(error)


def _reasons(failed: Mapping[str, str], max_reasons: int = 3) -> str:
    """Join the distinct reasons why tasks failed, at most `max_reasons` of them.

    >>> _reasons({"a": "no vectors", "b": "no vectors", "c": "no texts"})
    'no vectors; no texts'
    """
    each = list(dict.fromkeys(failed.values()))
    more = len(each) - max_reasons
    return "; ".join(each[:max_reasons]) + (f"; and {more} more" if more > 0 else "")


def _report_value(
    system: System, suite: Suite, options: EvaluationOptions, outcomes: list[Outcome], failed: dict[str, str]
) -> dict[str, Any]:
    """Assemble the JSON of a report: metrics, intervals, coverage, rows per query, options and versions."""
    metrics = {f"{outcome.task}.{name}": value for outcome in outcomes for name, value in outcome.metrics.items()}
    averages = compute_averages(suite.averages, metrics)
    value = {
        "suite": suite.name,
        "model": system.metadata(),
        "metrics": {**metrics, **averages},
        "intervals": intervals_of(outcomes),
        "headline": list(suite.headline),
        "averages": {name: suite.averages[name].note for name in averages},
        "coverage": {outcome.task: dict(outcome.coverage) for outcome in outcomes},
        "not_evaluated": {**suite.not_evaluated, **failed},
        "notes": list(suite.notes),
        "options": asdict(options),
        "data": dict(suite.data),
        "tasks": {
            outcome.task: {
                "kind": outcome.kind,
                "how": dict(outcome.how),
                "notes": list(outcome.notes),
                "chosen": dict(outcome.chosen),
            }
            for outcome in outcomes
        },
        "per_query": {outcome.task: outcome.rows for outcome in outcomes},
        "versions": {"citeweave": __version__, "python": platform.python_version(), "numpy": np.__version__},
    }
    return {**value, "titles": titles_of_listed(value, suite.tasks)}


def evaluate_spaces(
    spaces: Mapping[str, System | SharedSystem],
    suite: Suite,
    output: str | Path,
    *,
    tasks: Sequence[str] = (),
    options: EvaluationOptions | None = None,
    with_map: bool = False,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> dict[str, Report]:
    """Evaluate a model in each of its aspect spaces and return space -> report; each has a folder of that name."""
    folder = Path(output)
    if folder.is_dir() and (kind := kind_of(folder)):
        raise UserError(
            f"{folder} holds a {kind}, but the reports of all spaces need a folder of their own; choose another -o"
        )
    return {
        name: evaluate(
            system,
            suite,
            folder / name,
            tasks=tasks,
            options=options,
            with_map=with_map and not isinstance(_system_in(system), FacetSystem),
            overwrite=overwrite,
            reporter=reporter,
        )
        for name, system in ((name, spaces[name]) for name in spaces_for_suite(suite.choose(tasks), spaces))
    }


def spaces_as_text(reports: Mapping[str, Report]) -> str:
    """Format a model evaluated in all aspect spaces as a table: a line per metric, a column per space, "-" for none.

    problem.map      38.50   61.20
    """
    metrics = list(dict.fromkeys(name for report in reports.values() for name in report.metrics))
    width = max(map(len, metrics), default=0)
    columns = {space: max(len(space), 6) for space in reports}
    lines = [" " * width + "".join(f"  {space:>{size}}" for space, size in columns.items())]
    for name in metrics:
        cells = (f"{report.metrics[name]:.2f}" if name in report.metrics else "-" for report in reports.values())
        padded = (f"  {cell:>{size}}" for cell, size in zip(cells, columns.values(), strict=True))
        lines.append(f"{name:<{width}}" + "".join(padded))
    notes = dict.fromkeys(note for report in reports.values() for note in report.value["notes"])
    return "\n".join([*lines, *notes])


# --- finished tasks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FinishedTask:
    """The saved outcome of a task, and the path of its TREC run where it ranks."""

    outcome: Outcome
    run: Path | None


def find_earlier_report(folder: Path, base_recipe: Mapping[str, Any], fingerprints: Fingerprints) -> Report | None:
    """Reopen the report of an earlier evaluation if it can be extended: its recipe and its tasks' content must be equal."""
    try:
        report = Report.open(folder)
    except ArtifactError:
        return None
    recipe = dict(report.manifest.recipe)
    tasks = recipe.pop("tasks", {})
    recipe.pop("map", None)
    is_same = hash_json(recipe) == hash_json(base_recipe) and tasks.items() <= fingerprints.items()
    return report if is_same else None


class EvaluationFolder:
    """The folder in which an evaluation saves its finished tasks, and the earlier report that it extends."""

    def __init__(self, folder: Path, earlier: Report | None, tag: str) -> None:
        self._folder, self._tag = folder, tag
        self._earlier: dict[str, FinishedTask] = {}
        """Fingerprint -> finished task."""

        if earlier is not None:
            tasks, runs = earlier.manifest.recipe["tasks"], earlier.runs()
            for outcome in earlier.outcomes():
                self._earlier[tasks[outcome.task]] = FinishedTask(outcome, runs.get(outcome.task))

    def find(self, fingerprint: str) -> FinishedTask | None:
        """Return a task that was already run, from the earlier report or this folder; None if it is missing or damaged."""
        path = self._folder / f"{fingerprint}.json"
        if fingerprint in self._earlier or not path.is_file():
            return self._earlier.get(fingerprint)
        run = path.with_suffix(".run")
        try:
            payload = unseal_payload(json.loads(read_input(path)))
            run_hash = payload.pop("run", None)
            outcome = Outcome.of_json(payload)
            is_complete = run_hash is None or hash_file(run) == run_hash
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            is_complete = False
        return FinishedTask(outcome, run if run.is_file() else None) if is_complete else None

    def save(self, fingerprint: str, outcome: Outcome) -> FinishedTask:
        """Save the outcome of a task that was run, and its TREC run where it ranks, before the next task begins."""
        path, run = self._folder / f"{fingerprint}.json", None
        if outcome.ranked:
            run = path.with_suffix(".run")
            write_run(run, outcome, self._tag)
        run_hash = {} if run is None else {"run": hash_file(run)}
        write_json(path, seal_payload({**outcome.as_json(), **run_hash}))
        return FinishedTask(outcome, run)


# --- tasks on an executor --------------------------------------------------------------------------------


@runtime_checkable
class CountingSystem(Protocol):
    """A system that counts what it encoded, for its metadata."""

    counts: dict[str, dict[str, int]]
    """Hash of texts -> counts."""


@dataclass(frozen=True)
class SharedSystem:
    """A system whose tasks an executor runs, and how a worker of the executor opens the same system."""

    system: System
    executor: Executor
    suite: SuiteSpec
    name: str
    """Name of the system as the user gave it: a model, a folder, a file, bm25."""

    opening: OpeningOptions

    def embed(self, tasks: Sequence[Task]) -> None:
        """Embed the papers of tasks before they run, into the cache, where the system is an encoder with a cache."""
        encoder = _encoder_behind(self.system)
        if not isinstance(encoder, EncoderSystem):
            return
        maker, gpu = "citeweave.evaluation.evaluate:texts_maker", self.opening.device != "cpu"
        for texts in {task.texts.hash: task.texts for task in tasks if not task.texts.lacking}.values():
            arguments = {
                "suite": self.suite.as_json(),
                "system": self.as_json(),
                "texts": texts.hash,
                "batch_tokens": getattr(encoder.encoder, "batch_tokens", 0),
            }
            encoder.fill_cache(texts, self.executor, ShardTask(maker, arguments, "embedding", gpu=gpu))

    def evaluate(
        self, tasks: Sequence[Task], fingerprints: Fingerprints, options: Mapping[str, Any]
    ) -> Iterator[tuple[Task, Outcome | str]]:
        """Run tasks on the executor and yield each as it finishes, with its outcome or why there is none."""
        if not tasks:
            return
        gpu = self._encodes_in_tasks and self.opening.device != "cpu"
        arguments = {
            "suite": self.suite.as_json(),
            "system": self.as_json("" if gpu else "cpu"),
            "tasks": {task.name: fingerprints[task.name] for task in tasks},
            "options": dict(options),
        }
        maker = "citeweave.evaluation.evaluate:evaluation_maker"
        for number, shard in self.executor.make(
            ShardTask(maker, arguments, "evaluating", "tasks", gpu), range(len(tasks))
        ):
            task, payload = tasks[number], json.loads(shard)
            encoder = _encoder_behind(self.system)
            if payload["counts"] is not None and isinstance(encoder, CountingSystem):
                encoder.counts[task.texts.hash] = payload["counts"]
            yield task, payload["cannot"] or _outcome_from_payload(payload)

    @property
    def _encodes_in_tasks(self) -> bool:
        """Whether running a task needs the encoder's device: cached vectors need none."""
        uncached = self.opening.cache is None and isinstance(_encoder_behind(self.system), EncoderSystem)
        return uncached or self.opening.needs_sentences

    def as_json(self, device: str = "") -> dict[str, Any]:
        """Return what a worker needs to run tasks with the system, for another device than the driver's if one is named."""
        is_path = self.name not in KNOWN_SYSTEMS and Path(self.name).exists()
        cache = None if self.opening.cache is None else str(self.opening.cache.absolute())
        return {
            "name": str(Path(self.name).absolute()) if is_path else self.name,
            "called": self.system.name,
            "revision": self.system.revision,
            "opening": {**asdict(self.opening), "cache": cache, "device": device or self.opening.device},
        }


def _system_in(system: System | SharedSystem) -> System:
    """Return the system itself, also where an executor runs its tasks."""
    return system.system if isinstance(system, SharedSystem) else system


def _encoder_behind(system: System) -> System:
    """Return the system that encodes papers: the encoder of an aspect space, else the system itself."""
    return system.encoder_system if isinstance(system, AspectSpace | MatchingSpace) else system


def texts_maker(suite: Mapping[str, Any], system: Mapping[str, Any], texts: str, batch_tokens: int) -> Make:
    """Open suite and encoder on a worker that runs tasks and return: shard of a suite's texts -> its vectors as bytes."""
    read = {task.texts.hash: task.texts for task in SuiteSpec.of_json(suite).read().tasks}
    if texts not in read:
        raise UserError(f"{suite['data']} holds other texts here than where the evaluation started; copy it")
    encoder = _encoder_behind(_reopen_system(**system))
    assert isinstance(encoder, EncoderSystem)
    if isinstance(encoder.encoder, TorchEncoder):
        encoder.encoder = replace(encoder.encoder, batch_tokens=batch_tokens)  # the driver's batches
    return encoder.shards(read[texts])


def evaluation_maker(
    suite: Mapping[str, Any], system: Mapping[str, Any], tasks: Mapping[str, str], options: Mapping[str, Any]
) -> Make:
    """Open suite and system on a worker that runs tasks and return: number of a task -> its outcome as JSON."""
    opened, names = _reopen_system(**system), list(tasks)
    task_of = {task.name: task for task in SuiteSpec.of_json(suite).read().choose(names).tasks}

    def make(number: int) -> bytes:
        task = task_of[names[number]]
        if fingerprint(task) != tasks[task.name]:
            raise UserError(
                f"{suite['data']}: task {task.name} differs here from where the evaluation started; copy it"
            )
        return json.dumps(_task_payload(opened, task, options)).encode()

    return make


def _task_payload(system: System, task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run a task on a worker and return its outcome as JSON, or why there is none."""
    outcome, encoder = _try_task(task, system, options), _encoder_behind(system)
    counts = encoder.counts.get(task.texts.hash) if isinstance(encoder, CountingSystem) else None
    if isinstance(outcome, str):
        return {"cannot": outcome, "counts": counts}
    return {"cannot": "", "counts": counts, "outcome": outcome.as_json(), "ranked": outcome.ranked}


def _outcome_from_payload(payload: Mapping[str, Any]) -> Outcome:
    """Read the outcome of a task from a worker's JSON."""
    ranked = {query: [(paper, score) for paper, score in best] for query, best in payload["ranked"].items()}
    return replace(Outcome.of_json(payload["outcome"]), ranked=ranked)


def _reopen_system(name: str, called: str, revision: str, opening: Mapping[str, Any]) -> System:
    """Open on a worker the system whose tasks it runs; a model of another revision than the driver's is refused."""
    cache = opening["cache"]
    system = open_system(name, OpeningOptions(**{**opening, "cache": None if cache is None else Path(cache)}))
    if system.revision != revision:
        raise UserError(
            f"{name} has revision {system.revision} here but {revision} where the evaluation started; copy it"
        )
    system.name = called  # a relative path has another name here
    return system
