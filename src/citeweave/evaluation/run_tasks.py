"""Run the tasks of an evaluation, here or on an executor, and save each outcome as soon as it is finished.

    work/<fingerprint>.json    the outcome of the task with this fingerprint
    work/<fingerprint>.run     its TREC run, where it ranks

The run is written first, so an outcome on disk is complete.

    shared = SharedSystem(system, executor, SuiteSpec("scidocs", Path("data/scidocs")), "minilm", opening)
    evaluate(shared, suite, "report/")

A worker of the executor reads the suite, opens the same system and runs one task at a time; the driver saves the outcome
as if it had run the task itself. Paper vectors of an encoder are embedded into the cache before, so that no text is
encoded twice. Every machine must see the data, the model and the cache under the same names. Does not run baselines on
workers: they are trained by the process that evaluates them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from citeweave.core.artifact import seal_payload, unseal_payload
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.executor import Executor, Make, ShardTask
from citeweave.core.files import hash_file, hash_json, read_input, write_json
from citeweave.encoders.encoder import TorchEncoder
from citeweave.evaluation.encoder_systems import AspectSpace, EncoderSystem, MatchingSpace
from citeweave.evaluation.metrics import Outcome
from citeweave.evaluation.probe_tasks import run_probe
from citeweave.evaluation.ranking_tasks import run_ranking, run_search
from citeweave.evaluation.report import Report, write_run
from citeweave.evaluation.systems import NoAnswerError, System
from citeweave.evaluation.tasks import ClickTask, NoTextsError, ProbeTask, SearchTask, Task, fingerprint

if TYPE_CHECKING:
    from citeweave.evaluation.options import OpeningOptions
    from citeweave.evaluation.suites.registry import SuiteSpec


def run_task(
    task: Task, system: System, distance: str = "", missing: str = "wrong", *, intercept: bool = True, seed: int = 0
) -> Outcome:
    """Run one task of any kind with a system; an empty `distance` is the protocol's."""
    if isinstance(task, ProbeTask):
        return run_probe(task, system, missing, intercept=intercept)
    if isinstance(task, ClickTask):
        from citeweave.evaluation.clicks import run_clicks  # only SciDocs needs it

        return run_clicks(task, system, missing, seed=seed)
    if isinstance(task, SearchTask):
        return run_search(task, system, distance, missing)
    return run_ranking(task, system, distance, missing)


Fingerprints = Mapping[str, str]
"""Task -> fingerprint of its content."""


@dataclass(frozen=True)
class FinishedTask:
    """The saved outcome of a task, and the path of its TREC run where it ranks."""

    outcome: Outcome
    run: Path | None


@dataclass(frozen=True)
class EarlierReport:
    """Tasks that need not run again: a finished report on the same model, suite, options and tasks."""

    report: Report
    tasks: Mapping[str, FinishedTask] = field(default_factory=dict)
    """Fingerprint -> finished task."""

    @property
    def recipe(self) -> dict[str, Any]:
        return self.report.manifest.recipe

    @property
    def has_map(self) -> bool:
        return bool(self.recipe.get("map"))


def find_earlier_report(
    folder: Path, base_recipe: Mapping[str, Any], fingerprints: Fingerprints
) -> EarlierReport | None:
    """Reopen an interrupted or earlier run of tasks if it can be extended: its recipe and the content of its tasks must be equal."""
    try:
        report = Report.open(folder)
    except ArtifactError:
        return None
    recipe = dict(report.manifest.recipe)
    tasks = recipe.pop("tasks", {})
    recipe.pop("map", None)
    if hash_json(recipe) != hash_json(base_recipe) or any(fingerprints.get(task) != tasks[task] for task in tasks):
        return None
    runs = report.runs()
    return EarlierReport(
        report, {tasks[each.task]: FinishedTask(each, runs.get(each.task)) for each in report.outcomes()}
    )


class EvaluationFolder:
    """The folder in which a run saves its finished tasks, and the earlier report that it extends."""

    def __init__(self, folder: Path, earlier: EarlierReport | None, tag: str) -> None:
        self._folder, self._tag = folder, tag
        self._earlier = earlier.tasks if earlier else {}

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
        maker, gpu = "citeweave.evaluation.run_tasks:texts_maker", self.opening.device != "cpu"
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
        maker = "citeweave.evaluation.run_tasks:evaluation_maker"
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
        from citeweave.evaluation.open_system import KNOWN_SYSTEMS

        is_path = self.name not in KNOWN_SYSTEMS and Path(self.name).exists()
        cache = None if self.opening.cache is None else str(self.opening.cache.absolute())
        return {
            "name": str(Path(self.name).absolute()) if is_path else self.name,
            "called": self.system.name,
            "revision": self.system.revision,
            "opening": {**asdict(self.opening), "cache": cache, "device": device or self.opening.device},
        }


def _encoder_behind(system: System) -> System:
    """Return the system that encodes papers: the encoder of an aspect space, else the system itself."""
    return system.encoder_system if isinstance(system, AspectSpace | MatchingSpace) else system


def texts_maker(suite: Mapping[str, Any], system: Mapping[str, Any], texts: str, batch_tokens: int) -> Make:
    """Open suite and encoder on a worker that runs tasks and return: shard of a suite's texts -> its vectors as bytes."""
    from citeweave.evaluation.suites.registry import SuiteSpec

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
    from citeweave.evaluation.suites.registry import SuiteSpec

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
    payload: dict[str, Any] = {"cannot": "", "outcome": None, "ranked": {}}
    try:
        outcome = run_task(task, system, **options)
        payload |= {"outcome": outcome.as_json(), "ranked": outcome.ranked}
    except (NoAnswerError, NoTextsError) as error:
        payload["cannot"] = str(error)
    encoder = _encoder_behind(system)
    return {**payload, "counts": encoder.counts.get(task.texts.hash) if isinstance(encoder, CountingSystem) else None}


def _outcome_from_payload(payload: Mapping[str, Any]) -> Outcome:
    """Read the outcome of a task from a worker's JSON."""
    ranked = {query: [(paper, score) for paper, score in best] for query, best in payload["ranked"].items()}
    return replace(Outcome.of_json(payload["outcome"]), ranked=ranked)


def _reopen_system(name: str, called: str, revision: str, opening: Mapping[str, Any]) -> System:
    """Open on a worker the system whose tasks it runs; a model of another revision than the driver's is refused."""
    from citeweave.evaluation.open_system import open_system
    from citeweave.evaluation.options import OpeningOptions

    cache = opening["cache"]
    system = open_system(name, OpeningOptions(**{**opening, "cache": None if cache is None else Path(cache)}))
    if system.revision != revision:
        raise UserError(
            f"{name} has revision {system.revision} here but {revision} where the evaluation started; copy it"
        )
    system.name = called  # a relative path has another name here
    return system
