"""A few queries of a report with the paper that was ranked first, and the sentences by which it matched.

    matches = example_matches(judged, suite, value, runs)      # the best and the worst query, and two between them

Of sentence-level models alone, and where the suite has texts. What was ranked first is read from the TREC run, so that
only the shown papers are encoded again. Does not draw: see `reporting.matches`.

The verb: judge something by a suite, task by task, and write the report.

    report = evaluate(judged, suite, "report/")
    report.metrics["all.map"]

Finished tasks are kept as they are made, and vectors are saved by time: a killed evaluation goes on with the tasks that are
missing, and a report that
is asked for more tasks, or for a map, judges only the new ones. A report on another model, other data or by other
options is not replaced unless `overwrite` says so. Tasks of a `SharedSystem` thing are judged by its crew.

The verb: judge a model in all its aspect spaces, a report each, with every paper read once.

    reports = evaluate_spaces(open_spaces("model/"), suite, "reports/")
    reports["method"].metrics["cite.map"]

    reports/encoder/  reports/background/  reports/method/  reports/result/  reports/all/  reports/matching/

`matching` is left out where the suite asks about no aspect. Does not judge tasks: see `evaluate.py`.
"""

from __future__ import annotations

import io
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import kind_of, matches, new_artifact
from citeweave.core.errors import EmptyResultError, UserError, choose
from citeweave.core.files import hash_json, open_input
from citeweave.core.progress import QUIET, Reporter
from citeweave.evaluation.bootstrap import Outcome, intervals_of
from citeweave.evaluation.encoder_systems import judgeable
from citeweave.evaluation.match_page import ExampleMatch, PairTexts
from citeweave.evaluation.paper_map import TopicMap, map_facts
from citeweave.evaluation.report import KIND, VERSION, Report, write_report
from citeweave.evaluation.report_charts import spreads_of
from citeweave.evaluation.run_tasks import EvaluationFolder, Finished, Marks, SharedSystem, find_earlier, run_task
from citeweave.evaluation.systems import ByFacet, Judged, NoAnswerError, Resumable, choose_distance, fingerprint
from citeweave.evaluation.tasks import MISSING, NoTextsError, RankingTask, Suite, Task, TaskTexts, averages_of
from citeweave.vectors.explain import Explanation
from citeweave.version import __version__

MOST = 4


@runtime_checkable
class Explains(Judged, Protocol):
    """What can say by which sentences two papers match."""

    def explain(
        self, texts: TaskTexts, query: int, candidate: int, distance: str, sentences: NDArray[np.int64] | None = None
    ) -> Explanation | None:
        """Rows of the texts; None where a paper has no sentence."""


def example_matches(
    judged: Judged, suite: Suite, value: Mapping[str, Any], runs: Mapping[str, Path]
) -> list[ExampleMatch]:
    """Of the first task of the headline that ranks pools."""
    tasks = {task.name: task for task in suite.tasks if isinstance(task, RankingTask) and task.reviewers is None}
    shown = [each for each in spreads_of(value) if each.task in tasks and each.task in runs]
    if not isinstance(judged, Explains) or not shown or tasks[shown[0].task].texts.lacking:
        return []
    spread, task = shown[0], tasks[shown[0].task]
    order = sorted(spread.values, key=lambda query: (-spread.values[query], query))
    queries = [order[at] for at in np.unique(np.linspace(0, len(order) - 1, MOST).round().astype(int)).tolist()]
    first, distance = _first_papers(runs[spread.task], queries), value["tasks"][spread.task]["chosen"]["distance"]
    found = []
    for query in queries:
        pair = _rows(task, query, first.get(query, ""))
        if pair and (explained := _explain(judged, task, *pair, distance)):
            grade, texts = _grade(task, *pair), _texts(task.texts, int(task.pools.queries[pair[0]]), pair[1])
            found.append(ExampleMatch(task.name, query, spread.metric, spread.values[query], grade, explained, texts))
    return found


def _first_papers(run: Path, queries: Sequence[str]) -> dict[str, str]:
    """Query -> the id of rank 1, as a run writes them."""
    wanted = {"_".join(query.split()): query for query in queries}
    found: dict[str, str] = {}
    with io.TextIOWrapper(open_input(run), encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if len(words) == 6 and words[3] == "1" and words[0] in wanted:
                found[wanted[words[0]]] = words[2]
                if len(found) == len(wanted):
                    break
    return found


def _rows(task: RankingTask, query: str, paper: str) -> tuple[int, int] | None:
    """The number of the query in its pools, and the row of the paper."""
    row = int(task.texts.rows([paper])[0])
    return (list(task.pools.names).index(query), row) if row >= 0 and query in task.pools.names else None


def _explain(judged: Explains, task: RankingTask, number: int, row: int, distance: str) -> Explanation | None:
    texts, rows = task.texts, [int(task.pools.queries[number]), row]
    pair = TaskTexts(
        [texts.ids[at] for at in rows],
        [texts.titles[at] for at in rows],
        [texts.abstracts[at] for at in rows],
        None if texts.sentences is None else [texts.sentences[at] for at in rows],
    )
    if task.pools.sentences is None:
        return judged.explain(pair, 0, 1, distance)
    # a query without a sentence of its facet takes part whole, yet is judged as the others of its task
    chosen = task.pools.sentences[number]
    every = np.arange(len(texts.sentences_of(rows[0])))
    return judged.explain(pair, 0, 1, distance, every if chosen is None else chosen)


def _grade(task: RankingTask, number: int, row: int) -> int:
    span = slice(int(task.pools.offsets[number]), int(task.pools.offsets[number + 1]))
    return int(task.pools.grades[span][task.pools.candidates[span] == row][0])


def _texts(texts: TaskTexts, query: int, candidate: int) -> PairTexts:
    return PairTexts(
        texts.titles[query] or texts.ids[query],
        texts.titles[candidate] or texts.ids[candidate],
        texts.sentences_of(query),
        texts.sentences_of(candidate),
    )


# The verb: judge something by a suite, task by task, and write the report.


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
    judged: Judged | SharedSystem,
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
    judged, shared = (judged.judged, judged) if isinstance(judged, SharedSystem) else (judged, None)
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
    with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        work = EvaluationFolder(writer.shared_work(f"tasks/{hash_json(same)[:16]}"), earlier, judged.name)
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
    judged: Judged | SharedSystem,
    suite: Suite,
    options: EvaluationOptions,
    work: EvaluationFolder,
    marks: Marks,
    reporter: Reporter,
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
    judged: Judged | SharedSystem, tasks: Sequence[Task], options: EvaluationOptions, marks: Marks
) -> Iterator[tuple[Task, Outcome | str]]:
    """Tasks with their outcomes, or why there is none."""
    if isinstance(judged, SharedSystem):
        yield from judged.judge(tasks, marks, asdict(options))
        return
    for task in tasks:
        try:
            yield task, run_task(task, judged, **asdict(options))
        except (NoAnswerError, NoTextsError) as error:
            yield task, str(error)


def _name(judged: Judged | SharedSystem) -> str:
    return judged.judged.name if isinstance(judged, SharedSystem) else judged.name


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


# The verb: judge a model in all its aspect spaces, a report each, with every paper read once.


def evaluate_spaces(
    spaces: Mapping[str, Judged | SharedSystem],
    suite: Suite,
    output: str | Path,
    *,
    tasks: Sequence[str] = (),
    options: EvaluationOptions | None = None,
    with_map: bool = False,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> dict[str, Report]:
    """Space -> its report, in a folder of that name."""
    folder = Path(output)
    if folder.is_dir() and (kind := kind_of(folder)):
        raise UserError(
            f"{folder} holds a {kind}, and a report of every space goes into a folder of its own; choose another -o"
        )
    return {
        name: evaluate(
            judged,
            suite,
            folder / name,
            tasks=tasks,
            options=options,
            with_map=with_map
            and not isinstance(judged.judged if isinstance(judged, SharedSystem) else judged, ByFacet),
            overwrite=overwrite,
            reporter=reporter,
        )
        for name, judged in ((name, spaces[name]) for name in judgeable(suite.choose(tasks), spaces))
    }


def spaces_as_text(reports: Mapping[str, Report]) -> str:
    """One line a metric, one column a space; a task that a space cannot answer has a dash.

    problem.map      38.50   61.20
    """
    metrics = list(dict.fromkeys(name for report in reports.values() for name in report.metrics))
    width = max(map(len, metrics), default=0)
    columns = {space: max(len(space), 6) for space in reports}
    lines = [" " * width + "".join(f"  {space:>{size}}" for space, size in columns.items())]
    for name in metrics:
        cells = (f"{report.metrics[name]:.2f}" if name in report.metrics else "-" for report in reports.values())
        lines.append(
            f"{name:<{width}}"
            + "".join(f"  {cell:>{size}}" for cell, size in zip(cells, columns.values(), strict=True))
        )
    notes = dict.fromkeys(note for report in reports.values() for note in report.value["notes"])
    return "\n".join([*lines, *notes])
