"""Which systems of a table may be ranked, and what can be claimed of them.

A system is shown but not ranked where its runs were made with another version of the data or on another corpus, where
seeds are missing or there twice, where they saw another number of papers, or where titles of the benchmark were trained
on. Claims come from the paired hierarchical bootstrap of `citeweave.evaluation.compare`: over the queries of all tasks at
once, and over the seeds of each system.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from benchmarks.table.reports import RunReport
from benchmarks.table.systems import PAPERS_SEEN, START, is_trained, seeds_of
from citeweave.core.errors import UserError
from citeweave.evaluation.compare import OVERALL, Comparison, Difference, compare, holm

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


def sort_out(runs: Sequence[RunReport], corpus: str, *, version: str = "", papers: int = PAPERS_SEEN) -> Entries:
    """Runs of one corpus by system; the version of the data is the bundle's, or the start model's where none is given."""
    start = [run for run in runs if run.system == START and run.version == (version or run.version)]
    if not start:
        raise UserError(
            f"there is no report of {START} on {corpus}{f' of the data version {version}' if version else ''}, "
            "and all others are compared with it; judge it first"
        )
    version = start[0].version
    found: dict[str, list[RunReport]] = {}
    refused: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda run: (run.system, run.seed)):
        own, reasons = found.setdefault(run.system, []), refused.setdefault(run.system, [])
        if reason := _not_of_the_table(run, corpus, version):
            reasons.append(reason)
        else:
            own.append(run)
    for system, own in found.items():
        refused[system] += _wrong_runs(system, own, papers)
    return Entries(corpus, version, found, {name: reasons for name, reasons in refused.items() if reasons})


def _not_of_the_table(run: RunReport, corpus: str, version: str) -> str:
    if run.corpus != corpus:
        return f"seed {run.seed} was made on {run.corpus}, the table is about {corpus}"
    if run.version != version:
        return f"seed {run.seed} was made with the data version {run.version}, the table is about {version}"
    return ""


def _wrong_runs(system: str, own: Sequence[RunReport], papers: int) -> list[str]:
    """Seeds that are missing or there twice, and budgets that are others."""
    seeds = [run.seed for run in own]
    reasons = []
    if missing := sorted(set(range(seeds_of(system))) - set(seeds)):
        reasons.append(f"seed {', '.join(map(str, missing))} is missing")
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        reasons.append(f"seed {', '.join(map(str, twice))} is there twice")
    if is_trained(system):
        other = sorted({run.papers for run in own if abs(run.papers - papers) > OFF_BUDGET * papers})
        reasons += [f"a run saw {number:,} papers, the table's see {papers:,}" for number in other]
    return reasons


@dataclass(frozen=True)
class Standing:
    """All systems by one view: their values, and the comparison of those that are ranked, every pair of them."""

    view: str
    metrics: Sequence[str]
    values: Mapping[str, Mapping[str, float]]
    """System -> metric -> mean over its seeds; `overall` where it answers all tasks. Ranked systems by the same queries."""

    refused: Mapping[str, Sequence[str]]
    found: Comparison | None
    """None where fewer than two systems are ranked, or the start is not."""

    @property
    def order(self) -> list[str]:
        """Ranked systems, best first by the first metric."""
        ranked = (name for name in self.values if name not in self.refused)
        return sorted(ranked, key=lambda name: -self.values[name][self.metrics[0]])

    @property
    def left_out(self) -> list[str]:
        """Queries that some ranked system does not answer, which count for none."""
        return [note for note in (self.found.notes if self.found else ()) if "not answered by all" in note]

    @cached_property
    def leads(self) -> dict[tuple[str, str, str], Difference]:
        """(system, other, metric) -> the first minus the second, both ways round; those that were tested."""
        tested = self.found.differences if self.found is not None else ()
        both = (turn for each in tested for turn in (each, _turned(each)))
        return {(each.first, each.second, each.metric): each for each in both}


def stand(
    entries: Entries, view: str, metrics: Sequence[str] = (), *, overall: bool = True, resamples: int = 10_000
) -> Standing:
    """Compare all systems by a view; the metrics are the suite's headline where none are named."""
    shown = {name: [run for run in own if view in run.views] for name, own in entries.runs.items()}
    shown = {name: own for name, own in shown.items() if own}
    headline = list(metrics) or list(shown[START][0].views[view].headline)
    names = [OVERALL, *headline] if len(headline) > 1 and overall else headline
    values = {name: means(own, view, headline, with_overall=OVERALL in names) for name, own in shown.items()}
    refused = {name: [*entries.refused.get(name, ()), *_unfit(entries, name, view)] for name in shown}
    for name in shown:
        if lacking := [metric for metric in headline if metric not in values[name]]:
            refused[name].append(f"it does not answer {', '.join(lacking)}")
    ranked = [name for name in shown if not refused[name]]
    found = None
    if len(ranked) > 1 and START in ranked:
        reports = {name: [run.views[view].as_report(name) for run in shown[name]] for name in ranked}
        found = compare(reports, metrics=headline, resamples=resamples)
        values |= {name: {metric: found.values[name][metric] for metric in names} for name in ranked}
    return Standing(view, names, values, {name: why for name, why in refused.items() if why}, found)


def _unfit(entries: Entries, name: str, view: str) -> list[str]:
    """Why a system's runs must not be ranked by this view, though they are of the table."""
    runs, suite = entries.runs[name], view.partition(",")[0]
    reasons = []
    if seen := max((run.saw.get(suite, 0) for run in runs), default=0):
        reasons.append(f"{seen:,} of the papers it was trained on have titles of {suite}")
    if without := [str(run.seed) for run in runs if view not in run.views]:
        reasons.append(f"seed {', '.join(without)} was not judged by {view}")
    return reasons


@dataclass(frozen=True)
class Ranked:
    """Some systems of a standing, best first, and what can be claimed of them."""

    metrics: Sequence[str]
    values: Mapping[str, Mapping[str, float]]
    order: Sequence[str]
    refused: Mapping[str, Sequence[str]]
    references: Mapping[str, str] = field(default_factory=dict)
    """Metric -> the system that all are compared with besides the start."""

    intervals: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    against: Mapping[tuple[str, str, str], Difference] = field(default_factory=dict)
    """(system, the start or the reference, metric) -> the system's lead, corrected within the metric's column."""

    def sign(self, name: str, other: str, metric: str) -> int:
        """1 where a system is better than the other, -1 where it is worse, 0 where neither can be claimed."""
        lead = self.against.get((name, other, metric))
        return 0 if lead is None or not lead.is_significant else 1 if lead.points > 0 else -1

    def best(self, metric: str) -> str:
        return max(self.order, key=lambda name: self.values[name][metric])


def rank(standing: Standing, names: Sequence[str] | None = None, *, reference: str = "") -> Ranked:
    """Rank some systems; the reference is each column's best where none is named or it is not ranked itself."""
    kept = set(standing.values if names is None else names)
    values = {name: own for name, own in standing.values.items() if name in kept}
    order = [name for name in standing.order if name in kept]
    refused = {name: why for name, why in standing.refused.items() if name in kept}
    if standing.found is None or not order:
        return Ranked(standing.metrics, values, order, refused)
    plain = Ranked(standing.metrics, values, order, refused)
    named = {metric: reference if reference in order else plain.best(metric) for metric in standing.metrics}
    against: dict[tuple[str, str, str], Difference] = {}
    for metric in standing.metrics:
        against |= _column(standing, order, metric, (START, named[metric]))
    return replace(plain, references=named, intervals=standing.found.intervals, against=against)


def _column(
    standing: Standing, names: Sequence[str], metric: str, others: Sequence[str]
) -> dict[tuple[str, str, str], Difference]:
    """Leads over the others by one metric, corrected together; no pair counts twice."""
    keys = [
        (name, other, metric)
        for at, other in enumerate(dict.fromkeys(others))
        for name in names
        if name not in others[: at + 1]
    ]
    leads = {key: standing.leads[key] for key in keys if key in standing.leads}
    corrected = holm([lead.p for lead in leads.values()])
    told = {key: replace(lead, corrected=p) for (key, lead), p in zip(leads.items(), corrected, strict=True)}
    turned = {(other, name, metric): _turned(lead) for (name, other, metric), lead in told.items() if name in others}
    return told | turned


def _turned(each: Difference) -> Difference:
    return replace(each, first=each.second, second=each.first, points=-each.points, low=-each.high, high=-each.low)


def means(
    runs: Sequence[RunReport], view: str, metrics: Sequence[str], *, with_overall: bool = False
) -> dict[str, float]:
    """Mean over the seeds of every metric that all of them have."""
    each = [run.views[view].metrics for run in runs]
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
