"""Which systems of a table may be ranked, and what can be claimed of them.

A system is shown but not ranked where its runs were made with another version of the data, where seeds are missing, where
they saw another number of papers, or where titles of the benchmark were trained on. Claims come from the paired
hierarchical bootstrap of `citeweave.evaluation.compare`: over queries, and over the seeds of each system.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.table.reports import RunReport
from benchmarks.table.systems import PAPERS_SEEN, START, SYSTEMS, seeds_of
from citeweave.errors import UserError
from citeweave.evaluation.compare import OVERALL, compare, holm
from citeweave.evaluation.comparison import SIGNIFICANT, Comparison, Difference

OFF_BUDGET = 0.05
"""A run may read so much more or less than the budget: steps are whole."""


@dataclass(frozen=True)
class Entries:
    """The runs of a table by system, and why some are not ranked."""

    corpus: str
    version: str
    runs: Mapping[str, Sequence[RunReport]]
    """Those of the table's data version, by seed."""

    refused: Mapping[str, Sequence[str]]
    """System -> reasons."""


def sort_out(runs: Sequence[RunReport], corpus: str, *, papers: int = PAPERS_SEEN) -> Entries:
    """Runs of one corpus by system; the start model's report says which version of the data the table is about."""
    start = [run for run in runs if run.system == START]
    if not start:
        raise UserError(
            f"there is no report of {START} on {corpus}, and all others are compared with it; judge it first"
        )
    version = start[0].version
    found: dict[str, list[RunReport]] = {}
    refused: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda run: (run.system, run.seed)):
        own, reasons = found.setdefault(run.system, []), refused.setdefault(run.system, [])
        if run.version != version:
            reasons.append(
                f"seed {run.seed} was made with the data version {run.version}, the table is about {version}"
            )
        else:
            own.append(run)
    for system, own in found.items():
        missing = sorted(set(range(seeds_of(system))) - {run.seed for run in own})
        if missing:
            refused[system].append(f"seed {', '.join(map(str, missing))} is missing")
        if system in SYSTEMS:
            seen = sorted({run.papers for run in own if abs(run.papers - papers) > OFF_BUDGET * papers})
            refused[system] += [f"a run saw {number:,} papers, the table's see {papers:,}" for number in seen]
    return Entries(corpus, version, found, {name: reasons for name, reasons in refused.items() if reasons})


@dataclass(frozen=True)
class Ranked:
    """A view of the entries: values of all, claims about those that are ranked."""

    metrics: Sequence[str]
    values: Mapping[str, Mapping[str, float]]
    """System -> metric -> mean over its seeds; `overall` where it answers all tasks."""

    order: Sequence[str]
    """Ranked systems, best first by the first metric."""

    refused: Mapping[str, Sequence[str]]
    intervals: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    better: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """System -> metric -> 1 where it is better than the start, -1 where it is worse, 0 where neither can be claimed."""

    level: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    """System -> metric -> whether no difference to the best can be claimed."""

    queries: Mapping[str, int] = field(default_factory=dict)


def rank(entries: Entries, view: str, metrics: Sequence[str] = (), *, resamples: int = 10_000) -> Ranked:
    """Rank the systems by a view; the metrics are the suite's headline where none are named."""
    shown = {name: [run for run in own if view in run.views] for name, own in entries.runs.items()}
    shown = {name: own for name, own in shown.items() if own}
    headline = list(metrics) or list(shown[START][0].views[view].headline)
    names = [OVERALL, *headline] if len(headline) > 1 and not metrics else headline
    values = {name: means(own, view, headline, with_overall=OVERALL in names) for name, own in shown.items()}
    refused = {name: list(entries.refused.get(name, ())) for name in shown}
    for name, own in shown.items():
        suite = view.partition(",")[0]
        if seen := max((run.saw.get(suite, 0) for run in own), default=0):
            refused[name].append(f"{seen:,} of the papers it was trained on have titles of {suite}")
        if lacking := [metric for metric in headline if metric not in values[name]]:
            refused[name].append(f"it does not answer {', '.join(lacking)}")
    ranked = sorted((name for name in shown if not refused[name]), key=lambda name: -values[name][names[0]])
    told = {name: reasons for name, reasons in refused.items() if reasons}
    if len(ranked) < 2 or START not in ranked:
        return Ranked(names, values, ranked, told)
    best = {metric: max(ranked, key=lambda name: values[name][metric]) for metric in names}
    reports = {name: [run.views[view].as_report(name) for run in shown[name]] for name in ranked}
    against = list(dict.fromkeys([START, *best.values()]))
    found = compare(reports, metrics=headline, against=against, resamples=resamples)
    claims = {metric: _claims(found, metric, best[metric]) for metric in names}
    return Ranked(
        names,
        values,
        ranked,
        told,
        found.intervals,
        {name: {metric: claims[metric][0].get(name, 0) for metric in names} for name in ranked},
        {name: {metric: name not in claims[metric][1] for metric in names} for name in ranked},
        found.queries,
    )


def means(
    runs: Sequence[RunReport], view: str, metrics: Sequence[str], *, with_overall: bool = False
) -> dict[str, float]:
    """Mean over the seeds of every metric that all of them have."""
    each = [run.views[view].as_report(run.system).metrics for run in runs]
    found = {
        metric: float(np.mean([own[metric] for own in each]))
        for metric in metrics
        if all(metric in own for own in each)
    }
    if with_overall and len(found) == len(metrics):
        tasks: dict[str, list[float]] = {}
        for metric, value in found.items():
            tasks.setdefault(metric.rpartition(".")[0], []).append(value)
        found[OVERALL] = float(np.mean([np.mean(own) for own in tasks.values()]))
    return found


def _claims(found: Comparison, metric: str, best: str) -> tuple[dict[str, int], set[str]]:
    """Against the start: system -> 1 or -1; and the systems that differ from the best. Corrected by column."""
    own = [each for each in found.differences if each.metric == metric and {each.first, each.second} & {START, best}]
    corrected = dict(zip(((each.first, each.second) for each in own), holm([each.p for each in own]), strict=True))
    signs: dict[str, int] = {}
    apart: set[str] = set()
    for each in own:
        if corrected[each.first, each.second] >= SIGNIFICANT:
            continue
        if START in (each.first, each.second):
            signs[_other(each, START)] = 1 if (each.points > 0) == (each.second == START) else -1
        if best in (each.first, each.second):
            apart.add(_other(each, best))
    return signs, apart


def _other(difference: Difference, name: str) -> str:
    return difference.second if difference.first == name else difference.first
