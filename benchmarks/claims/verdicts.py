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
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.claims.claims import Claim
from benchmarks.claims.systems import CORPORA, STARTS, planned_seeds
from benchmarks.table.packing import unpack
from benchmarks.table.reports import RunReport, packed_path, read_run, read_runs
from citeweave.core.errors import CiteweaveError
from citeweave.evaluation.compare import OVERALL, Comparison, Difference, compare, holm

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
    tests = []
    for setting, systems in results.items():
        compared = _Compared(systems, claims, resamples)
        found = ((claim, compared.lead(claim)) for claim in claims)
        tests += [
            Test(claim, setting, *lead, (len(systems[claim.better]), len(systems[claim.worse])), compared.beside(claim))
            for claim, lead in found
            if lead is not None
        ]
    for text in {test.claim.text for test in tests}:
        places = [at for at, test in enumerate(tests) if test.claim.text == text]
        corrected = holm([tests[at].lead.p for at in places])
        for at, p in zip(places, corrected, strict=True):
            tests[at] = replace(tests[at], lead=replace(tests[at].lead, corrected=p))
    return tests


@dataclass(frozen=True)
class _Compared:
    """All systems of one setting that claims name, compared once per view: queries are drawn once for all of them."""

    systems: Mapping[str, Sequence[RunReport]]
    claims: Sequence[Claim]
    resamples: int
    _known: dict[tuple[str, str], Comparison | None] = field(default_factory=dict)

    def lead(self, claim: Claim) -> tuple[Difference, tuple[float, float]] | None:
        """Return by how much the system that is said to be better leads, and the values of both."""
        found = self._compare(claim.view, claim.view, "" if claim.metric == OVERALL else claim.metric, self.resamples)
        return None if found is None else _lead_in(found, claim)

    def beside(self, claim: Claim) -> float | None:
        """Return the lead by cosine for both; a system that was trained by cosine stands for itself."""
        metric = "" if claim.metric == OVERALL else claim.metric
        found = self._compare(f"{claim.view}, cosine", claim.view, metric, 2)
        lead = None if found is None else _lead_in(found, claim)
        return None if lead is None else lead[0].points

    def _compare(self, view: str, otherwise: str, metric: str, resamples: int) -> Comparison | None:
        named = {name for claim in self.claims if claim.view == otherwise for name in (claim.better, claim.worse)}
        reports = {}
        for system in sorted(named & self.systems.keys()):
            views = [run.views.get(view) or run.views.get(otherwise) for run in self.systems[system]]
            if all(each is not None and (not metric or metric in each.metrics) for each in views):
                reports[system] = [each.as_report(system) for each in views if each is not None]
        seen = (run.views.get(otherwise) for own in self.systems.values() for run in own)
        headline = next((each.headline for each in seen if each is not None), ())
        chosen = [metric] if metric and metric not in headline else []
        key = view, ",".join(chosen)
        if key not in self._known:
            try:
                self._known[key] = compare(reports, metrics=chosen, resamples=resamples)
            except CiteweaveError:
                self._known[key] = None
        return self._known[key]


def _lead_in(found: Comparison, claim: Claim) -> tuple[Difference, tuple[float, float]] | None:
    for each in found.differences:
        if each.metric == claim.metric and {each.first, each.second} == {claim.better, claim.worse}:
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


def is_provisional(tests: Sequence[Test], main: str) -> bool:
    """Return whether a test of the main start had fewer seeds than its systems are to have.

    >>> is_provisional([], "mlm")
    False
    """
    return any(
        seeds < planned_seeds(name)
        for test in tests
        if test.setting.partition(".")[2] == main
        for seeds, name in zip(test.seeds, (test.claim.better, test.claim.worse), strict=True)
    )


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
