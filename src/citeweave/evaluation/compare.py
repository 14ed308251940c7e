"""Compare systems by their reports: paired hierarchical bootstrap over queries and seeds, intervals, verdicts in words.

    comparison = compare({"minilm": [report], "mine": [seed 0, seed 1, seed 2]})
    comparison.sentences
    comparison_as_markdown(comparison)      for the terminal and for comparison.md
    comparison_as_page(comparison)          one self-contained HTML page

Queries are drawn with replacement within each task, the same for all systems; the reports of a system that was trained or
evaluated with several seeds are drawn too. Every metric of a task has the same weight, and so has every task. p-values
are two-sided and corrected for the number of comparisons (Holm, Scandinavian Journal of Statistics 1979).

Rows of the same paper (CSFCube asks about one paper by several facets) are drawn together: they are not independent.

    >>> weights = draw_resamples(["a", "a", "b"], 2, seed=1, purpose="x")
    >>> bool((weights[:, 0] == weights[:, 1]).all()), weights.shape
    (True, (2, 3))

Intervals are percentile intervals: Efron and Tibshirani, An Introduction to the Bootstrap, 1993.

Does not evaluate: it reads reports, which must be on the same data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.core.notebook import Tabular, html_table
from citeweave.core.randomness import stream
from citeweave.evaluation.html import BarRow, Block, bar_table, render_report, table
from citeweave.evaluation.metrics import Outcome, columns_of, derive_metric, derive_resamples_of_systems
from citeweave.evaluation.report import Report, markdown_table

SIGNIFICANT = 0.05
OVERALL = "overall"
RESAMPLES = 10_000

LEVEL = 95
"""Percent of resamples inside an interval."""

_BLOCK = 2**22
"""Weights that are drawn at once."""

TOO_FEW = 10
"""Tasks with fewer queries are shown but not tested: a bootstrap of them finds differences where there are none."""

FEW = 30
"""Tasks with fewer queries get a warning."""

_ABOUT_DIFFERENCES = (
    "Paired bootstrap over the same queries; p-values are two-sided. The corrected one holds for all comparisons of this "
    "table together (Holm); ✓ marks those below 0.05. Intervals are not corrected."
)


# --- bootstrap -------------------------------------------------------------------------------------------


def draw_resamples(clusters: Sequence[str], resamples: int, *, seed: int, purpose: str) -> NDArray[np.int64]:
    """Draw bootstrap resamples: how often each row is drawn, (resamples, rows); rows of a cluster go together."""
    names, place = np.unique(np.asarray(clusters), return_inverse=True)
    rng = stream(seed, "bootstrap", purpose)
    counts = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)  # (resamples, clusters)
    return np.asarray(counts[:, place])


def resample_blocks(rows: int, resamples: int) -> Iterator[int]:
    """Yield the sizes of blocks of bootstrap resamples that fit into memory.

    >>> list(resample_blocks(2**21, 5))
    [2, 2, 1]
    """
    size = max(1, _BLOCK // max(1, rows))
    while resamples > 0:
        yield min(size, resamples)
        resamples -= size


def clusters_of(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the cluster of every row, drawn as one: the paper of a row where it has one, else the row itself."""
    return [str(row.get("paper", name)) for name, row in rows.items()]


def resample_together(
    outcomes: Sequence[Outcome], metric: str, resamples: int, *, seed: int, rows: Sequence[str] | None = None
) -> NDArray[np.float64]:
    """Bootstrap a metric of several outcomes of one task, (outcomes, resamples), with rows drawn once for all."""
    names = list(outcomes[0].rows if rows is None else rows)
    each = [{name: outcome.rows[name] for name in names} for outcome in outcomes]
    derivation, clusters, task = outcomes[0].how[metric], clusters_of(each[0]), outcomes[0].task
    columns = [columns_of(derivation, own, metric) for own in each]
    parts = []
    for number, size in enumerate(resample_blocks(len(names), resamples)):
        drawn = draw_resamples(clusters, size, seed=seed, purpose=f"{task} {number}")  # (block, rows)
        parts.append(derive_resamples_of_systems(derivation, columns, drawn.astype(np.float64)))
    return np.concatenate(parts, axis=1)


def percentile_interval(values: NDArray[np.float64], level: float = LEVEL) -> tuple[float, float]:
    """Compute the percentile interval of bootstrapped values; NaN where none is finite."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan"), float("nan")
    low, high = np.percentile(finite, [(100 - level) / 2, (100 + level) / 2])
    return float(low), float(high)


def intervals_of(outcomes: Sequence[Outcome], *, resamples: int = 1000, seed: int = 0) -> dict[str, list[float]]:
    """Compute bootstrap intervals, metric -> low and high end in percent: how far other queries would move it.

    A metric without a finite resample has no interval, as JSON has no NaN.
    """
    intervals = {}
    for outcome in outcomes:
        for metric in outcome.how:
            low, high = percentile_interval(resample_together([outcome], metric, resamples, seed=seed)[0])
            if np.isfinite(low):
                intervals[f"{outcome.task}.{metric}"] = [100 * low, 100 * high]
    return intervals


# --- comparison ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """Difference of two compared systems by one metric, first minus second in points, with interval and p-value."""

    first: str
    second: str
    metric: str
    points: float
    low: float
    high: float
    p: float
    """p-value as if this were the only comparison."""

    corrected: float
    """p-value after Holm's correction over all comparisons of this table."""

    @property
    def is_significant(self) -> bool:
        return self.corrected < SIGNIFICANT

    @property
    def favors(self) -> str:
        """In whose favor the difference points, in words."""
        if not self.points:
            return "equal"
        ahead = self.first if self.points > 0 else self.second
        return f"{ahead} better" if self.is_significant else f"{ahead} ahead, not certain"


@dataclass(frozen=True)
class Comparison(Tabular):
    """Comparison of systems: their values, intervals and differences."""

    systems: tuple[str, ...]
    metrics: tuple[str, ...]
    values: Mapping[str, Mapping[str, float]]
    """System -> metric -> value in percent, the mean over its reports."""

    intervals: Mapping[str, Mapping[str, tuple[float, float]]]
    differences: tuple[Difference, ...]
    queries: Mapping[str, int]
    """Metric -> number of rows that all systems have and that were compared."""

    notes: tuple[str, ...]

    @property
    def sentences(self) -> list[str]:
        """The verdicts on the differences, and the notes, as sentences."""
        return [*_verdicts(self.differences), *self.notes]

    def records(self) -> list[dict[str, Any]]:
        """Return one row per metric with its value for each system in percent, which are also the rows of `to_pandas`."""
        metrics = {name: {"metric": name, "queries": self.queries.get(name)} for name in self.metrics}
        return [
            {**row, **{system: self.values[system][name] for system in self.systems}} for name, row in metrics.items()
        ]

    def _repr_html_(self) -> str:
        return html_table(self.records(), "Comparison, in percent", notes=self.sentences)


def compare(
    systems: Mapping[str, Sequence[Report]],
    *,
    metrics: Sequence[str] = (),
    against: Sequence[str] = (),
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare systems by their reports on one suite: paired bootstrap, with intervals and corrected p-values.

        comparison = compare({"start": [start], "trained": [seed_0, seed_1]})
        comparison.sentences, comparison.to_pandas()

    A system has one report per training seed. `metrics` are flat names such as `cite.map`, empty = the suite's headline.
    `against` names the systems that all others are compared with, empty = every pair. The fewer pairs, the fewer
    comparisons to correct for: choose them before looking.
    """
    if len(systems) < 2:
        raise UserError(f"there is {len(systems)} system; name at least two reports to compare")
    for name in against:
        choose(name, systems, "against")
    read = {system: [_ReadReport(report) for report in reports] for system, reports in systems.items()}
    every = [each for reports in read.values() for each in reports]
    names, notes = _shared_metrics(every, metrics)
    rows = {name: _shared_rows(every, name, notes) for name in names}
    values = {
        system: {name: float(np.mean([each.value(name, rows[name]) for each in reports])) for name in names}
        for system, reports in read.items()
    }
    by_metric = {name: _resample(read, name, rows[name], resamples, seed) for name in names}
    drawn = {system: {name: by_metric[name][system] for name in names} for system in systems}
    if len(names) > 1:
        for system in systems:
            values[system][OVERALL] = float(np.mean(_by_task(names, values[system])))
            drawn[system][OVERALL] = np.mean(_by_task(names, drawn[system]), axis=0)
    shown = (OVERALL, *names) if len(names) > 1 else tuple(names)
    return Comparison(
        tuple(systems),
        shown,
        values,
        {system: {name: percentile_interval(drawn[system][name]) for name in shown} for system in systems},
        _differences(_pairs(systems, against), _tested(shown, rows), values, drawn),
        {name: len(rows[name]) for name in names},
        tuple(notes + _warnings(rows, systems) + _differing_options(every)),
    )


class _ReadReport:
    """The parts of a report that a comparison needs: options, headline and outcomes by flat metric name."""

    def __init__(self, report: Report) -> None:
        value = report.value
        self.suite, self.options, self.headline = value["suite"], value.get("options", {}), value["headline"]
        self.fingerprints: Mapping[str, str] = report.manifest.recipe["tasks"]
        """Task -> fingerprint of its content."""

        self.outcomes: dict[str, tuple[Outcome, str]] = {
            f"{outcome.task}.{metric}": (outcome, metric) for outcome in report.outcomes() for metric in outcome.how
        }

    def value(self, name: str, rows: Sequence[str]) -> float:
        """Derive a metric from these rows of the report, in percent."""
        outcome, metric = self.outcomes[name]
        return 100 * derive_metric(outcome.how[metric], {row: outcome.rows[row] for row in rows}, metric)


def _shared_metrics(reports: Sequence[_ReadReport], requested: Sequence[str]) -> tuple[list[str], list[str]]:
    """Choose the metrics to compare among those that all reports share; also notes on those that are left out."""
    suites = {report.suite for report in reports}
    if len(suites) > 1:
        raise UserError(f"the reports are on {', '.join(sorted(suites))}; compare reports on one suite")
    shared = [name for name in reports[0].outcomes if all(name in report.outcomes for report in reports)]
    if not shared:
        raise UserError("the reports share no metric; evaluate all systems by the same tasks")
    headline = [name for name in reports[0].headline if name in shared]
    for name in requested:
        if name not in shared:
            raise UserError(f"--metric is {name!r}; the reports share {', '.join(shared)}")
    lost = sorted({name for report in reports for name in report.outcomes} - set(shared))
    notes = [f"Not compared, as some report lacks it: {', '.join(lost)}."] if lost else []
    return list(requested) or headline or shared, notes


def _shared_rows(reports: Sequence[_ReadReport], name: str, notes: list[str]) -> list[str]:
    """Return the names of the rows that every report has for a metric; its task must be the same in all."""
    if len({report.fingerprints.get(report.outcomes[name][0].task) for report in reports}) > 1:
        raise UserError(f"the reports have {name} on different data; evaluate all systems on the same folder")
    each = [report.outcomes[name][0].rows for report in reports]
    equal = all(rows.keys() == each[0].keys() for rows in each)
    shared = list(each[0]) if equal else [row for row in each[0] if all(row in rows for rows in each)]
    max_rows = max(len(rows) for rows in each)
    if len(shared) < max_rows:
        notes.append(
            f"{name}: {max_rows - len(shared):,} of {max_rows:,} rows are not in all reports and were left out."
        )
    if not shared:
        raise UserError(f"no row of {name} is in all reports; check that they are on the same data")
    return shared


def _resample(
    read: Mapping[str, Sequence[_ReadReport]], name: str, rows: Sequence[str], resamples: int, seed: int
) -> dict[str, NDArray[np.float64]]:
    """Resample a metric of every system in percent, (resamples,): the same queries for all, each system's reports drawn."""
    every = [report.outcomes[name][0] for reports in read.values() for report in reports]
    metric = next(report.outcomes[name][1] for reports in read.values() for report in reports)
    values = iter(100 * resample_together(every, metric, resamples, seed=seed, rows=rows))  # (resamples,) per report
    drawn = {}
    for system, reports in read.items():
        own = np.stack([next(values) for _ in reports])  # (reports, resamples)
        # one report per seed: which seeds are drawn depends on the system, not on the metric
        chosen = stream(seed, "bootstrap reports", system).integers(len(reports), size=own.shape)
        drawn[system] = np.asarray(np.take_along_axis(own, chosen, axis=0).mean(axis=0))
    return drawn


def _pairs(systems: Iterable[str], against: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of systems that are compared.

    >>> _pairs(["a", "b", "c"], ["c"])
    [('a', 'c'), ('b', 'c')]
    """
    return [pair for pair in combinations(systems, 2) if not against or set(pair) & set(against)]


def _by_task(names: Sequence[str], values: Mapping[str, Any]) -> list[Any]:
    """Average the metrics of each task, so that a task with many metrics weighs no more than another."""
    tasks: dict[str, list[Any]] = {}
    for name in names:
        tasks.setdefault(name.rpartition(".")[0], []).append(values[name])
    return [np.mean(each, axis=0) for each in tasks.values()]


def _tested(metrics: Sequence[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the metrics with enough queries to test; for the overall value the queries of all tasks count."""
    number = {name: len(each) for name, each in rows.items()}
    number[OVERALL] = sum({name.rpartition(".")[0]: size for name, size in number.items()}.values())
    return [name for name in metrics if number[name] >= TOO_FEW]


def _differences(
    pairs: Sequence[tuple[str, str]],
    metrics: Sequence[str],
    values: Mapping[str, Mapping[str, float]],
    drawn: Mapping[str, Mapping[str, NDArray[np.float64]]],
) -> tuple[Difference, ...]:
    """Compute the difference of each pair by each metric, with intervals and Holm-corrected p-values."""
    rows = []
    for metric in metrics:
        for first, second in pairs:
            differences = drawn[first][metric] - drawn[second][metric]  # (resamples,)
            points = values[first][metric] - values[second][metric]
            rows.append((first, second, metric, points, *percentile_interval(differences), two_sided(differences)))
    corrected = holm([row[-1] for row in rows])
    return tuple(Difference(*row, adjusted) for row, adjusted in zip(rows, corrected, strict=True))


def two_sided(differences: NDArray[np.float64]) -> float:
    """Compute the two-sided p-value of two compared systems: twice the share of resamples on the rarer side of 0.

    It is never below 2 / (resamples + 1).

    >>> two_sided(np.array([1.0, 2.0, 3.0])), two_sided(np.array([-1.0, 1.0, 0.0]))
    (0.5, 1.0)
    """
    rarer = min((differences <= 0).sum(), (differences >= 0).sum())
    return float(min(1.0, 2 * (rarer + 1) / (len(differences) + 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of compared systems for the number of comparisons by Holm's step-down method.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    steps = np.array(p_values)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1, np.maximum.accumulate(steps))
    return [float(value) for value in corrected]


def _warnings(rows: Mapping[str, Sequence[str]], systems: Mapping[str, Sequence[Report]]) -> list[str]:
    """Write the warnings of a comparison: tasks with few queries, systems with one report."""
    notes = []
    sizes = {name.rpartition(".")[0]: len(each) for name, each in rows.items()}
    untested = sorted(task for task, size in sizes.items() if size < TOO_FEW)
    few = sorted(task for task, size in sizes.items() if TOO_FEW <= size < FEW)
    if untested:
        notes.append(f"Fewer than {TOO_FEW} queries in {', '.join(untested)}: not tested one by one.")
    if few:
        notes.append(f"Fewer than {FEW} queries in {', '.join(few)}: intervals of so few are too narrow.")
    alone = [system for system, reports in systems.items() if len(reports) == 1]
    if alone:
        notes.append(
            f"One report of {', '.join(alone)}: what another training seed would change is not in these intervals."
        )
    return notes


def _differing_options(reports: Sequence[_ReadReport]) -> list[str]:
    """Write a note for every option in which the compared reports differ, except the seed."""
    notes = []
    for option in sorted({name for report in reports for name in report.options} - {"seed"}):
        values = sorted({str(report.options.get(option, "")) or "the protocol's" for report in reports})
        if len(values) > 1:
            notes.append(f"The reports have different options: {option} is {' or '.join(values)}.")
    return notes


def _verdicts(differences: Sequence[Difference]) -> list[str]:
    """Write one sentence per difference of the first metric and per significant one, and one for the rest."""
    if not differences:
        return ["Too few queries to test a difference."]
    first = differences[0].metric
    shown = [each for each in differences if each.metric == first or each.is_significant]
    sentences = [_verdict(each, len(differences)) for each in shown]
    rest = [f"{each.metric} ({each.first}, {each.second})" for each in differences if each not in shown]
    if rest:
        sentences.append(f"No difference can be claimed by {', '.join(rest)}.")
    return sentences


def _verdict(difference: Difference, comparisons: int) -> str:
    """Write the sentence on one difference: which system is better, by how much, and how certain that is."""
    better, worse, points = difference.first, difference.second, difference.points
    low, high = difference.low, difference.high
    if points < 0:
        better, worse, points, low, high = worse, better, -points, -high, -low
    span = f"95 % interval {low:+.2f} to {high:+.2f}"
    among = f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    if difference.is_significant:
        return f"{difference.metric}: {better} is better than {worse} by {points:.2f} points ({span}, p = {difference.corrected:.2g}{among})."
    return (
        f"{difference.metric}: no difference between {better} and {worse} can be claimed: {points:+.2f} points "
        f"({span}, p = {difference.corrected:.2g}{among})."
    )


# --- reports ---------------------------------------------------------------------------------------------


def comparison_as_markdown(comparison: Comparison) -> str:
    """Report a comparison as Markdown: tables of systems and of their differences, then the verdicts."""
    rows = [[system] for system in comparison.systems]
    for row, metric in product(rows, comparison.metrics):
        low, high = comparison.intervals[row[0]][metric]
        row.append(f"{comparison.values[row[0]][metric]:.2f} [{low:.2f}, {high:.2f}]")
    lines = [f"- {sentence}" for sentence in comparison.sentences]
    rows.append(
        [
            "queries",
            *(f"{comparison.queries[name]:,}" if name in comparison.queries else "" for name in comparison.metrics),
        ]
    )
    gaps = [
        [f"{each.first}, {each.second}", each.metric, f"{each.points:+.2f}", each.favors, f"{each.corrected:.2g}"]
        for each in comparison.differences
    ]
    head = ["systems", "metric", "first − second", "in favor of", "corrected p"]
    tables = [markdown_table(["system", *comparison.metrics], rows), markdown_table(head, gaps) if gaps else []]
    return "\n".join([*tables[0], "", *tables[1], "", *lines, ""])


def comparison_as_page(comparison: Comparison) -> str:
    """Return a comparison's report page in HTML: verdicts, metrics of systems as bars, differences with p-values."""
    values: dict[str, list[BarRow]] = {metric: [] for metric in comparison.metrics}
    for metric, system in product(values, comparison.systems):
        ends = comparison.intervals[system][metric]
        values[metric].append(BarRow(system, comparison.values[system][metric], *ends))
    gaps: dict[str, list[BarRow]] = {}
    for each in comparison.differences:
        p_values = (f"{each.p:.2g}", f"{each.corrected:.2g}", each.is_significant)
        row = BarRow(f"{each.first} − {each.second}: {each.favors}", each.points, each.low, each.high, *p_values)
        count = comparison.queries.get(each.metric)
        gaps.setdefault(f"{each.metric}, {count:,} queries" if count else each.metric, []).append(row)
    counts = [[metric, f"{count:,}"] for metric, count in comparison.queries.items()]
    sections: dict[str, list[Block]] = {
        "Verdict": [("bullets", comparison.sentences)],
        "Systems": [bar_table(values, "system"), ("note", "Values are in percent, with 95 % bootstrap intervals.")],
        "Differences": [bar_table(gaps, "first − second", is_difference=True), ("note", _ABOUT_DIFFERENCES)],
        "Compared queries": [table(["metric", "queries"], counts, numeric=[1])],
    }
    names = " and ".join([", ".join(comparison.systems[:-1]), comparison.systems[-1]])
    return render_report(("Comparison", f"of {names}", ""), sections)
