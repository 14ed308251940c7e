"""One task of any kind.

Tasks that are finished: kept one by one while an evaluation runs, and found again in an earlier report.

    work/<mark>.json    the outcome of the task with this fingerprint
    work/<mark>.run     its TREC run, where it ranks

The run is written first: an outcome that is there has all that belongs to it. Does not judge.

Tasks that a crew judges: what its workers are told, and what they do with it.

    shared = Shared(judged, crew, AskedSuite("scidocs", Path("data/scidocs")), "minilm", opening)
    evaluate(shared, suite, "report/")

A worker reads the suite and opens what is judged as the driver did, and judges one task at a time; the driver keeps the
outcome as if it had judged the task itself. The vectors that an encoder makes of whole papers are embedded before, into
the cache, so that no text is read twice. Every machine must see the data, the model and the cache under the same names.
Does not know baselines, which are trained by the process that judges them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from citeweave.core.artifact import sealed, unsealed
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.executor import Executor, Make, ShardTask
from citeweave.core.files import hash_file, hash_json, read_input, write_json
from citeweave.encoders.encoder import TorchEncoder
from citeweave.evaluation.bootstrap import Outcome
from citeweave.evaluation.encoder_systems import AspectSpace, Encoded, MatchingSpace
from citeweave.evaluation.probes import run_probe
from citeweave.evaluation.ranking_tasks import run_ranking, run_search
from citeweave.evaluation.report import Report, write_run
from citeweave.evaluation.systems import Judged, NoAnswerError, fingerprint
from citeweave.evaluation.tasks import ClickTask, NoTextsError, ProbeTask, SearchTask, Task

if TYPE_CHECKING:
    from citeweave.evaluation.open_system import OpeningOptions
    from citeweave.evaluation.suites.registry import AskedSuite


def run_task(
    task: Task, judged: Judged, distance: str = "", missing: str = "wrong", *, intercept: bool = True, seed: int = 0
) -> Outcome:
    """Judge one task; `distance` empty = the protocol's."""
    if isinstance(task, ProbeTask):
        return run_probe(task, judged, missing, intercept=intercept)
    if isinstance(task, ClickTask):
        from citeweave.evaluation.clicks import run_clicks  # reads files of its own kind, for one suite alone

        return run_clicks(task, judged, missing, seed=seed)
    if isinstance(task, SearchTask):
        return run_search(task, judged, distance, missing)
    return run_ranking(task, judged, distance, missing)


# Tasks that are finished: kept one by one while an evaluation runs, and found again in an earlier report.

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
    except ArtifactError:
        return None
    recipe = dict(report.manifest.recipe)
    asked = recipe.pop("tasks", {})
    recipe.pop("map", None)
    if hash_json(recipe) != hash_json(same) or any(marks.get(task) != mark for task, mark in asked.items()):
        return None
    runs = report.runs()
    return Earlier(report, {asked[each.task]: Finished(each, runs.get(each.task)) for each in report.outcomes()})


class EvaluationFolder:
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


# Tasks that a crew judges: what its workers are told, and what they do with it.


@runtime_checkable
class Counting(Protocol):
    """What counts what it read, for its facts."""

    counts: dict[str, dict[str, int]]
    """By the hash of texts."""


@dataclass(frozen=True)
class SharedSystem:
    """What is judged, with a crew that judges it, and how a worker opens the same."""

    judged: Judged
    crew: Executor
    suite: AskedSuite
    name: str
    """What the user named: a model, a folder, a file, bm25."""

    opening: OpeningOptions

    def embed(self, tasks: Sequence[Task]) -> None:
        """Read the papers of these tasks into the cache, where an encoder has one."""
        whole = whole_of(self.judged)
        if not isinstance(whole, Encoded):
            return
        maker, gpu = "citeweave.evaluation.run_tasks:texts_maker", self.opening.device != "cpu"
        for texts in {task.texts.hash: task.texts for task in tasks if not task.texts.lacking}.values():
            given = {
                "suite": self.suite.as_json(),
                "judged": self.told(),
                "texts": texts.hash,
                "batch_tokens": getattr(whole.encoder, "batch_tokens", 0),
            }
            whole.keep(texts, self.crew, ShardTask(maker, given, "embedding", gpu=gpu))

    def judge(
        self, tasks: Sequence[Task], marks: Marks, options: Mapping[str, Any]
    ) -> Iterator[tuple[Task, Outcome | str]]:
        """Every task with its outcome, or why there is none; as they finish."""
        if not tasks:
            return
        gpu = self._reads_while_judging and self.opening.device != "cpu"
        given = {
            "suite": self.suite.as_json(),
            "judged": self.told("" if gpu else "cpu"),
            "tasks": {task.name: marks[task.name] for task in tasks},
            "options": dict(options),
        }
        maker = "citeweave.evaluation.run_tasks:judging_maker"
        for number, made in self.crew.make(ShardTask(maker, given, "judging", "tasks", gpu), range(len(tasks))):
            task, found = tasks[number], json.loads(made)
            if found["counts"] is not None and isinstance(whole := whole_of(self.judged), Counting):
                whole.counts[task.texts.hash] = found["counts"]
            yield task, found["cannot"] or _outcome(found)

    @property
    def _reads_while_judging(self) -> bool:
        """Whether a worker that judges needs an encoder's device: what lies in the cache needs none."""
        uncached = self.opening.cache is None and isinstance(whole_of(self.judged), Encoded)
        return uncached or self.opening.reads_inside

    def told(self, device: str = "") -> dict[str, Any]:
        """What is judged, as plain data; on another device than the driver's where one is named."""
        from citeweave.evaluation.open_system import KNOWN

        is_path = self.name not in KNOWN and Path(self.name).exists()
        cache = None if self.opening.cache is None else str(self.opening.cache.absolute())
        return {
            "name": str(Path(self.name).absolute()) if is_path else self.name,
            "called": self.judged.name,
            "revision": self.judged.revision,
            "opening": {**asdict(self.opening), "cache": cache, "device": device or self.opening.device},
        }


def whole_of(judged: Judged) -> Judged:
    """What reads papers: of an aspect space its encoder, else the thing itself."""
    return judged.whole if isinstance(judged, AspectSpace | MatchingSpace) else judged


def texts_maker(suite: Mapping[str, Any], judged: Mapping[str, Any], texts: str, batch_tokens: int) -> Make:
    """A worker's side: number of a shard of a suite's texts -> its bytes; batches are those of the driver."""
    from citeweave.evaluation.suites.registry import AskedSuite

    read = {task.texts.hash: task.texts for task in AskedSuite.of_json(suite).read().tasks}
    if texts not in read:
        raise UserError(f"{suite['data']} holds other texts here than where judging began; copy it")
    whole = whole_of(open_told(**judged))
    assert isinstance(whole, Encoded)
    if isinstance(whole.encoder, TorchEncoder):
        whole.encoder = replace(whole.encoder, batch_tokens=batch_tokens)
    return whole.shards(read[texts])


def judging_maker(
    suite: Mapping[str, Any], judged: Mapping[str, Any], tasks: Mapping[str, str], options: Mapping[str, Any]
) -> Make:
    """A worker's side: number of a task -> its outcome as JSON."""
    from citeweave.evaluation.suites.registry import AskedSuite

    opened, names = open_told(**judged), list(tasks)
    asked = {task.name: task for task in AskedSuite.of_json(suite).read().choose(names).tasks}

    def make(number: int) -> bytes:
        task = asked[names[number]]
        if fingerprint(task) != tasks[task.name]:
            raise UserError(f"{suite['data']}: task {task.name} is another one here than where judging began; copy it")
        return json.dumps(_judged(opened, task, options)).encode()

    return make


def _judged(judged: Judged, task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"cannot": "", "outcome": None, "ranked": {}}
    try:
        outcome = run_task(task, judged, **options)
        found |= {"outcome": outcome.as_json(), "ranked": outcome.ranked}
    except (NoAnswerError, NoTextsError) as error:
        found["cannot"] = str(error)
    whole = whole_of(judged)
    return {**found, "counts": whole.counts.get(task.texts.hash) if isinstance(whole, Counting) else None}


def _outcome(found: Mapping[str, Any]) -> Outcome:
    ranked = {query: [(paper, score) for paper, score in best] for query, best in found["ranked"].items()}
    return replace(Outcome.of_json(found["outcome"]), ranked=ranked)


def open_told(name: str, called: str, revision: str, opening: Mapping[str, Any]) -> Judged:
    """What is judged, opened again; another one than the driver's is refused."""
    from citeweave.evaluation.open_system import OpeningOptions, open_judged

    cache = opening["cache"]
    judged = open_judged(name, OpeningOptions(**{**opening, "cache": None if cache is None else Path(cache)}))
    if judged.revision != revision:
        raise UserError(
            f"{name} is another one here ({judged.revision}) than where judging began ({revision}); copy it"
        )
    judged.name = called  # a relative path has another name here
    return judged
