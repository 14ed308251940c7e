"""Tasks that a crew judges: what its workers are told, and what they do with it.

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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from citeweave.crew import Crew, Make, Work
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import UserError
from citeweave.evaluation.fingerprint import fingerprint
from citeweave.evaluation.finished import Marks
from citeweave.evaluation.judged import Judged, NoAnswerError
from citeweave.evaluation.judging.aspect_spaces import AspectSpace, MatchingSpace
from citeweave.evaluation.judging.encoded import Encoded
from citeweave.evaluation.outcomes import Outcome
from citeweave.evaluation.running.run import run_task
from citeweave.evaluation.tasks import Task
from citeweave.evaluation.texts import NoTextsError

if TYPE_CHECKING:
    from citeweave.evaluation.judging.opening import OpeningOptions
    from citeweave.evaluation.suites.asked import AskedSuite


@runtime_checkable
class Counting(Protocol):
    """What counts what it read, for its facts."""

    counts: dict[str, dict[str, int]]
    """By the hash of texts."""


@dataclass(frozen=True)
class Shared:
    """What is judged, with a crew that judges it, and how a worker opens the same."""

    judged: Judged
    crew: Crew
    suite: AskedSuite
    name: str
    """What the user named: a model, a folder, a file, bm25."""

    opening: OpeningOptions

    def embed(self, tasks: Sequence[Task]) -> None:
        """Read the papers of these tasks into the cache, where an encoder has one."""
        whole = whole_of(self.judged)
        if not isinstance(whole, Encoded):
            return
        maker, gpu = "citeweave.evaluation.remote:texts_maker", self.opening.device != "cpu"
        for texts in {task.texts.hash: task.texts for task in tasks if not task.texts.lacking}.values():
            given = {
                "suite": self.suite.as_json(),
                "judged": self.told(),
                "texts": texts.hash,
                "batch_tokens": getattr(whole.encoder, "batch_tokens", 0),
            }
            whole.keep(texts, self.crew, Work(maker, given, "embedding", gpu=gpu))

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
        maker = "citeweave.evaluation.remote:judging_maker"
        for number, made in self.crew.make(Work(maker, given, "judging", "tasks", gpu), range(len(tasks))):
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
        from citeweave.evaluation.judging.opening import KNOWN

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
    from citeweave.evaluation.suites.asked import AskedSuite

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
    from citeweave.evaluation.suites.asked import AskedSuite

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
    from citeweave.evaluation.judging.opening import OpeningOptions, open_judged

    cache = opening["cache"]
    judged = open_judged(name, OpeningOptions(**{**opening, "cache": None if cache is None else Path(cache)}))
    if judged.revision != revision:
        raise UserError(
            f"{name} is another one here ({judged.revision}) than where judging began ({revision}); copy it"
        )
    judged.name = called  # a relative path has another name here
    return judged
