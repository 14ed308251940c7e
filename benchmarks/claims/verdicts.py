"""Verdicts on claims by the test that was named in advance: a paired bootstrap over queries and seeds, Holm within a text.

    results = read_results(Path("study/"))
    tests = test_claims(results, CLAIMS)

Each claim is tested in every setting, a corpus and a start, by the distance that each system was trained with. All tests of
one text are corrected together. A claim is

    reproduced       if a test of the main start favors the first system and none favors the second, at a corrected p < 0.05
    reversed         if one favors the second and none the first
    contradictory    if both happen
    inconclusive     if no difference can be claimed
    not run          if no setting of the main start has both systems
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.claims.claims import Claim
from benchmarks.claims.systems import CORPORA, STARTS
from benchmarks.table.packing import unpack
from benchmarks.table.reports import RunReport, packed_path, read_run, read_runs
from citeweave.core.errors import CiteweaveError
from citeweave.evaluation.compare import OVERALL, Difference, compare, holm

REPRODUCED, REVERSED, CONTRADICTORY, UNKNOWN, NOT_RUN = (
    *("reproduced", "reversed", "contradictory", "inconclusive", "not run"),
)

Results = Mapping[str, Mapping[str, Sequence[RunReport]]]
"""Setting -> system -> its runs by seed, all of one data version."""


@dataclass(frozen=True)
class Test:
    """A claim in one setting."""

    claim: Claim
    setting: str
    lead: Difference
    """Of the system that is said to be better."""

    values: tuple[float, float]
    seeds: tuple[int, int]
    beside: float | None = None
    """The lead by cosine for both."""

    @property
    def sign(self) -> int:
        return 0 if not self.lead.is_significant else 1 if self.lead.points > 0 else -1


def read_results(folder: Path, settings: Iterable[str] | None = None) -> Results:
    """Read every report that exists, loose or packed; of several data versions of a setting the larger one counts."""
    names = settings or [f"{corpus}.{start}" for start in STARTS for corpus in CORPORA]
    found: dict[str, dict[str, list[RunReport]]] = {}
    for setting in names:
        runs = {
            (run.system, run.seed, run.version): run for run in [*_packed(folder, setting), *read_runs(folder, setting)]
        }
        versions = [version for _, _, version in runs]
        if not runs:
            continue
        version = max(sorted(set(versions)), key=versions.count)
        own = found.setdefault(setting, {})
        for key in sorted(runs):
            if runs[key].version == version:
                own.setdefault(runs[key].system, []).append(runs[key])
    return found


def _packed(folder: Path, setting: str) -> list[RunReport]:
    path = packed_path(folder, setting)
    contents = unpack(path) if path.is_file() else {}
    return [read_run(content, f"{path}: {name}") for name, content in contents.items()]


def test_claims(results: Results, claims: Sequence[Claim], *, resamples: int = 10_000) -> list[Test]:
    """Test every claim in every setting that has its systems, corrected within each text."""
    tests = [
        test
        for claim in claims
        for setting, systems in results.items()
        if (test := _test(claim, setting, systems, resamples)) is not None
    ]
    for text in {test.claim.text for test in tests}:
        places = [at for at, test in enumerate(tests) if test.claim.text == text]
        corrected = holm([tests[at].lead.p for at in places])
        for at, p in zip(places, corrected, strict=True):
            tests[at] = replace(tests[at], lead=replace(tests[at].lead, corrected=p))
    return tests


def _test(claim: Claim, setting: str, systems: Mapping[str, Sequence[RunReport]], resamples: int) -> Test | None:
    if claim.better not in systems or claim.worse not in systems:
        return None
    lead = _lead(claim, claim.view, systems, resamples)
    if lead is None:
        return None
    difference, values = lead
    other = _lead(claim, f"{claim.view}, cosine", systems, 2)
    seeds = len(systems[claim.better]), len(systems[claim.worse])
    return Test(claim, setting, difference, values, seeds, None if other is None else other[0].points)


def _lead(
    claim: Claim, view: str, systems: Mapping[str, Sequence[RunReport]], resamples: int
) -> tuple[Difference, tuple[float, float]] | None:
    """Return by how much the first system leads; by cosine, a view that was trained by cosine stands for itself."""
    reports = {}
    for name in (claim.better, claim.worse):
        views = [run.views.get(view) or (run.views.get(claim.view) if ", " in view else None) for run in systems[name]]
        if not all(each is not None for each in views):
            return None
        reports[name] = [each.as_report(name) for each in views if each is not None]
    try:
        found = compare(reports, metrics=() if claim.metric == OVERALL else [claim.metric], resamples=resamples)
    except CiteweaveError:
        return None
    for each in found.differences:
        if each.metric == claim.metric:
            turned = each.first == claim.worse
            points, low, high = (-each.points, -each.high, -each.low) if turned else (each.points, each.low, each.high)
            values = (found.values[claim.better][claim.metric], found.values[claim.worse][claim.metric])
            return replace(each, first=claim.better, second=claim.worse, points=points, low=low, high=high), values
    return None


def verdict(tests: Sequence[Test], main: str) -> str:
    """Return the verdict on one claim from its tests.

    >>> verdict([], "mlm")
    'not run'
    """
    signs = {test.sign for test in tests if test.setting.partition(".")[2] == main}
    if not signs:
        return NOT_RUN
    if {1, -1} <= signs:
        return CONTRADICTORY
    return REPRODUCED if 1 in signs else REVERSED if -1 in signs else UNKNOWN


def mean_and_range(runs: Sequence[RunReport], metric: str, view: str = "corpus") -> tuple[float, float, float] | None:
    """Return mean, minimum and maximum over seeds of a metric, or of the mean of all headline metrics."""
    values = []
    for run in runs:
        own = run.views[view]
        names = list(own.headline) if metric == OVERALL else [metric]
        if not all(name in own.metrics for name in names):
            return None
        values.append(float(np.mean([own.metrics[name] for name in names])))
    return (float(np.mean(values)), min(values), max(values)) if values else None
