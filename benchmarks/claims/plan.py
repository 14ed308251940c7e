"""The plan of the study: which runs, in which order, and how many seconds of a card they take.

    for run in planned_runs(bundles, STARTS):
        print(run.setting, run.system, run.seed, run.estimate)

A run is one system, trained with one seed from one start on one corpus, and evaluated there. Order: the headline orders
from each start in turn, then tier by tier; within a tier by seed, so that what is done when the time is over can be
compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.claims.systems import START, SYSTEMS, System
from benchmarks.table.bundle import Bundle, read_bundle
from benchmarks.table.reports import RunReport, is_done
from citeweave.core.errors import CiteweaveError
from citeweave.training.options import SENTENCE_LOSSES

STEP, PAPER, EVALUATION, TRANSPORT = 3.5e-3, 1.2e-5, 4.0, 6e-3
"""Seconds of an H200 that 14 runs share: a step, a paper of MiniLM's size, an evaluation, a step of optimal transport.
Solved from docs/history/results.md: specter 1,531 steps 6.6 s, cocite 369 steps 2.5 s, 100,000 papers each."""

SLOWER = {"smollm2": 10.0}
"""Start -> factor on the training of MiniLM's size: 134M parameters in 30 layers against 22M in 6."""


@dataclass(frozen=True)
class Machine:
    """Where the study runs."""

    folder: Path
    device: str = "auto"
    workers: int = 1
    seconds: float = 0.0
    """End before so many seconds; 0 = no limit."""

    seeds: int = 0
    """At most so many seeds of a system; 0 = its own number."""

    steps: int = 0
    """Train so many steps, for a trial; 0 = whole epochs."""


@dataclass(frozen=True, order=True)
class Run:
    """One run and its place in the order."""

    order: tuple[int, ...]
    corpus: str
    start: str
    system: str
    seed: int
    estimate: float = 0.0
    """Seconds of the card."""

    @property
    def setting(self) -> str:
        return f"{self.corpus}.{self.start}"

    def report(self, version: str) -> RunReport:
        return RunReport(self.setting, self.system, self.seed, version, {})


def planned_runs(
    bundles: Mapping[str, Bundle], starts: Sequence[str], systems: Sequence[str] = (), *, max_tier: int = 4
) -> list[Run]:
    """List the runs of all bundles and starts in their order."""
    found = []
    for place, (corpus, bundle) in enumerate(bundles.items()):
        for at, start in enumerate(starts):
            if not systems or START in systems:
                found.append(Run((0, at, 0, place), corpus, start, START, 0, EVALUATION))
            for number, name in enumerate(bundle.systems):
                system = SYSTEMS[name]
                if (not systems or name in systems) and system.tier <= max_tier:
                    found += _runs_of(system, bundle, (place, number), corpus, (at, start))
    return sorted(found)


def _runs_of(system: System, bundle: Bundle, place: tuple[int, int], corpus: str, start: tuple[int, str]) -> list[Run]:
    estimate = estimated_seconds(bundle, system.name) - EVALUATION
    estimate = estimate * SLOWER.get(start[1], 1.0) + EVALUATION
    return [
        Run((system.tier, start[0], seed, *place), corpus, start[1], system.name, seed, estimate)
        for seed in range(system.seeds)
    ]


def estimated_seconds(bundle: Bundle, name: str) -> float:
    """Estimate the seconds of the card that a run takes, evaluation included."""
    table = bundle.systems[name]
    training, samples = table["training"], bundle.samples[table["samples"]]
    positives, negatives = (np.diff(picks.offsets) for picks in (samples.positives, samples.negatives))
    by_triplets = training["unit"] == "triplets"
    units = float(np.maximum(positives, negatives).sum()) if by_triplets else float(len(samples))
    papers = 3 * units if by_triplets else float((1 + positives + negatives).sum())
    passes = training["epochs"] * training["share"]
    steps = max(1.0, passes * units / training["batch"])
    a_step = STEP + TRANSPORT * any(name in SENTENCE_LOSSES for name in training["losses"])
    return steps * a_step + passes * papers * PAPER + EVALUATION


def describe_plan(folder: Path, corpora: Sequence[str], starts: Sequence[str], systems: Sequence[str] = ()) -> str:
    """List what would run, in order, with the seconds of the card up to there; finished runs are left out."""
    bundles = bundles_in(folder, corpora)
    lines, total = [], 0.0
    for each in planned_runs(bundles, starts_in(folder, starts), systems):
        if not is_done(folder, each.report(bundles[each.corpus].version)):
            total += each.estimate
            lines.append(f"{total:8.0f} s  {each.setting}: {each.system} seed {each.seed}, {each.estimate:.0f} s")
    return "\n".join([*lines, f"{len(lines)} runs, {total / 60:.0f} minutes of one card"])


def bundles_in(folder: Path, corpora: Sequence[str]) -> dict[str, Bundle]:
    found = {name: read_bundle(path) for name in corpora if (path := folder / f"{name}.bundle").is_file()}
    if not found:
        raise CiteweaveError(
            f"{folder} has no bundle of {', '.join(corpora)}; make it with `prepare`, or `join` its pieces"
        )
    return found


def starts_in(folder: Path, starts: Sequence[str]) -> list[str]:
    found = [name for name in starts if (folder / f"{name}.start").is_file()]
    if not found:
        raise CiteweaveError(f"{folder} has no start model of {', '.join(starts)}; `prepare` writes them with --start")
    return found
