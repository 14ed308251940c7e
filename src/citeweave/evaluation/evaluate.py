"""Evaluate a system on a benchmark suite, task by task, and write the report; also in all aspect spaces.

    report = evaluate(system, suite, "report/")
    report.metrics["all.map"]

Finished tasks are saved one by one and vectors from time to time: a killed evaluation resumes with the missing tasks. A
report that is extended by more tasks, or by a map, evaluates only what is new. A report on another model, other data or
with other options is not replaced unless `overwrite` says so. Tasks of a `SharedSystem` are evaluated by its executor.

    reports = evaluate_spaces(open_spaces("model/"), suite, "reports/")
    reports["method"].metrics["cite.map"]

    reports/encoder/  reports/background/  reports/method/  reports/result/  reports/all/  reports/matching/

Papers are encoded once for all spaces; `matching` is left out where the suite asks about no aspect.
Reports of sentence-level models show a few queries with the sentences by which the first paper matched
(`example_matches`). Does not evaluate single tasks (`run_tasks.py`) or draw pages (`report_page.py`, `match_page.py`).
"""

from __future__ import annotations

import io
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.core.artifact import artifact_matches, kind_of, new_artifact
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.files import hash_json, open_input
from citeweave.core.progress import QUIET, Reporter
from citeweave.evaluation.bootstrap import Outcome, intervals_of
from citeweave.evaluation.encoder_systems import spaces_for_suite
from citeweave.evaluation.match_page import ExampleMatch, PairTexts
from citeweave.evaluation.options import EvaluationOptions
from citeweave.evaluation.paper_map import TopicMap, map_as_json
from citeweave.evaluation.report import KIND, VERSION, Report, write_report
from citeweave.evaluation.report_page import collect_spreads
from citeweave.evaluation.run_tasks import (
    EvaluationFolder,
    Fingerprints,
    FinishedTask,
    SharedSystem,
    find_earlier_report,
    run_task,
)
from citeweave.evaluation.systems import (
    ExplainingSystem,
    FacetSystem,
    NoAnswerError,
    Resumable,
    System,
    choose_distance,
)
from citeweave.evaluation.tasks import NoTextsError, RankingTask, Suite, Task, TaskTexts, compute_averages, fingerprint
from citeweave.vectors.document_distance import SentenceAlignment
from citeweave.version import __version__

MAX_EXAMPLES = 4
"""Queries of a report that are shown with their matching sentences."""


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
    """Evaluate a system on the tasks of a suite, or on the named ones, and write the folder of the report.

    An existing report on the same system with the same options keeps its tasks and its map.
    """
    options, folder = options or EvaluationOptions(), Path(output)
    system, shared = (system.system, system) if isinstance(system, SharedSystem) else (system, None)
    choose_distance(system, options.distance, "")  # refused before any work is done
    chosen, base_recipe = suite.choose(tasks), _base_recipe(system, suite, options)
    fingerprints = {task.name: fingerprint(task) for task in suite.choose(()).tasks}
    earlier = find_earlier_report(folder, base_recipe, fingerprints)
    if earlier:
        chosen = suite.choose([*(task.name for task in chosen.tasks), *earlier.recipe["tasks"]])
    with_map = with_map or (earlier is not None and earlier.has_map)
    recipe = {**base_recipe, "map": with_map, "tasks": {task.name: fingerprints[task.name] for task in chosen.tasks}}
    if earlier and artifact_matches(folder, KIND, VERSION, recipe):
        return earlier.report
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
            _write(value, writer.folder, system, chosen, finished, topics, reporter)
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
    finished: Sequence[FinishedTask],
    topics: TopicMap | None,
    reporter: Reporter,
) -> None:
    """Write the report with its map, where it has one, and with matching sentences, where the system has them."""
    map_data = topics.make(seed=value["options"]["seed"], reporter=reporter) if topics else None
    if topics and map_data:
        value["map"] = map_as_json(map_data, topics.task.name)
    runs = {each.outcome.task: each.run for each in finished if each.run}
    write_report(value, folder, runs, map_data, example_matches(system, suite, value, runs))


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
        name = (system.system if isinstance(system, SharedSystem) else system).name
        raise EmptyResultError(f"{name} can do no task of {suite.name}: {_reasons(failed)}")
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
        try:
            yield task, run_task(task, system, **asdict(options))
        except (NoAnswerError, NoTextsError) as error:
            yield task, str(error)


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
    return {
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
            with_map=with_map
            and not isinstance(system.system if isinstance(system, SharedSystem) else system, FacetSystem),
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
        lines.append(
            f"{name:<{width}}"
            + "".join(f"  {cell:>{size}}" for cell, size in zip(cells, columns.values(), strict=True))
        )
    notes = dict.fromkeys(note for report in reports.values() for note in report.value["notes"])
    return "\n".join([*lines, *notes])


def example_matches(
    system: System, suite: Suite, value: Mapping[str, Any], runs: Mapping[str, Path]
) -> list[ExampleMatch]:
    """Choose a few queries of an evaluation, best to worst, with the sentences by which the first paper matched.

    They are of the first headline task that ranks pools. What was ranked first is read from the TREC run, so only the
    papers shown are encoded again. A system without sentences and a suite without texts have none.
    """
    tasks = {task.name: task for task in suite.tasks if isinstance(task, RankingTask) and task.reviewers is None}
    shown = [each for each in collect_spreads(value) if each.task in tasks and each.task in runs]
    if not isinstance(system, ExplainingSystem) or not shown or tasks[shown[0].task].texts.lacking:
        return []
    spread, task = shown[0], tasks[shown[0].task]
    order = sorted(spread.values, key=lambda query: (-spread.values[query], query))
    queries = [order[at] for at in np.unique(np.linspace(0, len(order) - 1, MAX_EXAMPLES).round().astype(int)).tolist()]
    first, distance = _first_papers(runs[spread.task], queries), value["tasks"][spread.task]["chosen"]["distance"]
    examples = []
    for query in queries:
        pair = _rows(task, query, first.get(query, ""))
        if pair and (explained := _explain(system, task, *pair, distance)):
            grade, texts = _grade(task, *pair), _texts(task.texts, int(task.pools.queries[pair[0]]), pair[1])
            examples.append(
                ExampleMatch(task.name, query, spread.metric, spread.values[query], grade, explained, texts)
            )
    return examples


def _first_papers(run: Path, queries: Sequence[str]) -> dict[str, str]:
    """Read from a TREC run which paper is ranked first for each of these queries: query -> id."""
    names = {"_".join(query.split()): query for query in queries}
    first: dict[str, str] = {}
    with io.TextIOWrapper(open_input(run), encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if len(words) == 6 and words[3] == "1" and words[0] in names:
                first[names[words[0]]] = words[2]
                if len(first) == len(names):
                    break
    return first


def _rows(task: RankingTask, query: str, paper: str) -> tuple[int, int] | None:
    """Return the number of a query in its pools and the row of a paper, or None where one is unknown."""
    row = int(task.texts.rows([paper])[0])
    return (list(task.pools.names).index(query), row) if row >= 0 and query in task.pools.names else None


def _explain(
    system: ExplainingSystem, task: RankingTask, number: int, row: int, distance: str
) -> SentenceAlignment | None:
    """Explain the match of a query and a paper from their two texts alone."""
    texts, rows = task.texts, [int(task.pools.queries[number]), row]
    pair = TaskTexts(
        [texts.ids[at] for at in rows],
        [texts.titles[at] for at in rows],
        [texts.abstracts[at] for at in rows],
        None if texts.sentences is None else [texts.sentences[at] for at in rows],
    )
    if task.pools.sentences is None:
        return system.explain(pair, 0, 1, distance)
    # a query without a sentence of its facet takes part with all sentences, at the temperature of its task
    chosen = task.pools.sentences[number]
    all_sentences = np.arange(len(texts.sentences_of(rows[0])))
    return system.explain(pair, 0, 1, distance, all_sentences if chosen is None else chosen)


def _grade(task: RankingTask, number: int, row: int) -> int:
    """Return the relevance grade of a paper in a query's pool."""
    span = slice(int(task.pools.offsets[number]), int(task.pools.offsets[number + 1]))
    return int(task.pools.grades[span][task.pools.candidates[span] == row][0])


def _texts(texts: TaskTexts, query: int, candidate: int) -> PairTexts:
    """Return titles and sentences of a query and a candidate for the page."""
    return PairTexts(
        texts.titles[query] or texts.ids[query],
        texts.titles[candidate] or texts.ids[candidate],
        texts.sentences_of(query),
        texts.sentences_of(candidate),
    )
