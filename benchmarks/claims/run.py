"""Runs of the study on a machine with a GPU: by priority, several side by side, until the time is over; all reports are kept.

    run_study(Machine(Path("study/"), seconds=560, workers=14), CORPORA, STARTS)

A run is one system, trained with one seed from one start on one corpus, and evaluated there. Order: the headline orders
from each start in turn, then tier by tier; within a tier by seed, so that what is done when the time is over can be
compared. A worker begins a run only if its estimate fits the time left; one that does not end in time is ended and lost.
Recipes that begin with another recipe's model get the one of their own seed, which is trained first if it does not exist.

    reports/CORPUS.START/SYSTEM-SEED.json     as they are made
    CORPUS.START.reports                      all of them in one file, which travels
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import queue
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims.systems import START, SYSTEMS, System
from benchmarks.table.bundle import Bundle, read_bundle
from benchmarks.table.packing import unpack
from benchmarks.table.reports import RunReport, is_done, pack_runs, unpack_runs
from citeweave.core.errors import ArtifactError, CiteweaveError, choose
from citeweave.training.options import SENTENCE_LOSSES

STEP, PAPER, EVALUATION, TRANSPORT = 3.5e-3, 1.2e-5, 4.0, 6e-3
"""Seconds of an H200 that 14 runs share: a step, a paper of MiniLM's size, an evaluation, a step of optimal transport.
Solved from docs/history/results.md: specter 1,531 steps 6.6 s, cocite 369 steps 2.5 s, 100,000 papers each."""

SLOWER = {"smollm2": 10.0}
"""Start -> factor on the training of MiniLM's size: 134M parameters in 30 layers against 22M in 6."""

HURRY = 1.3
"""A run is begun if so many times its estimate fits the time left."""


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
    bundles = _bundles(folder, corpora)
    lines, total = [], 0.0
    for each in planned_runs(bundles, _starts(folder, starts), systems):
        if not is_done(folder, each.report(bundles[each.corpus].version)):
            total += each.estimate
            lines.append(f"{total:8.0f} s  {each.setting}: {each.system} seed {each.seed}, {each.estimate:.0f} s")
    return "\n".join([*lines, f"{len(lines)} runs, {total / 60:.0f} minutes of one card"])


def _bundles(folder: Path, corpora: Sequence[str]) -> dict[str, Bundle]:
    found = {name: read_bundle(path) for name in corpora if (path := folder / f"{name}.bundle").is_file()}
    if not found:
        raise CiteweaveError(
            f"{folder} has no bundle of {', '.join(corpora)}; make it with `prepare`, or `join` its pieces"
        )
    return found


def _starts(folder: Path, starts: Sequence[str]) -> list[str]:
    found = [name for name in starts if (folder / f"{name}.start").is_file()]
    if not found:
        raise CiteweaveError(f"{folder} has no start model of {', '.join(starts)}; `prepare` writes them with --start")
    return found


def run_study(
    machine: Machine, corpora: Sequence[str], starts: Sequence[str], systems: Sequence[str] = (), *, max_tier: int = 4
) -> None:
    """Run what is missing until the time is over; ends with all reports packed, also when runs failed."""
    begun, folder = time.time(), machine.folder
    bundles, present = _bundles(folder, corpora), _starts(folder, starts)
    for system in systems:
        choose(system, [START, *(name for bundle in bundles.values() for name in bundle.systems)], "--systems")
    settings = [f"{corpus}.{start}" for corpus in bundles for start in present]
    for setting in settings:
        unpack_runs(folder, setting, version=bundles[setting.partition(".")[0]].version)
    runs = planned_runs(bundles, present, systems, max_tier=max_tier)
    runs = [each for each in runs if not machine.seeds or each.seed < machine.seeds]
    missing = [each for each in runs if not is_done(folder, each.report(bundles[each.corpus].version))]
    print(f"{len(missing)} of {len(runs)} runs are missing", flush=True)
    until = begun + machine.seconds if machine.seconds else 0.0
    try:
        failed = _run_all(machine, missing, list(bundles), present, until) if missing else 0
    finally:
        for setting in settings:
            if (folder / "reports" / setting).is_dir():
                print(f"packed: {pack_runs(folder, setting)}", flush=True)
    if failed:
        raise CiteweaveError(f"{failed} runs failed; the others are kept, and the same command tries them again")


def _run_all(machine: Machine, runs: Sequence[Run], corpora: Sequence[str], starts: Sequence[str], until: float) -> int:
    """Run in this process, or in several that share the card; return how many runs failed."""
    with tempfile.TemporaryDirectory(prefix="claims-") as made:
        for start in starts:
            for name, content in unpack(machine.folder / f"{start}.start").items():
                target = Path(made) / start / name
                if not target.resolve().is_relative_to(Path(made).resolve()):
                    raise ArtifactError(
                        f"{start}.start holds a file {name!r} that would leave its folder; pack it again"
                    )
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        if machine.workers == 1:
            worker = Worker(machine, Path(made), until)
            lines = [_told(worker.run(each)) for each in runs]
            return sum(line.startswith("FAILED") for line in lines)
        return _share(machine, runs, Path(made), until)


def _told(line: str) -> str:
    print(line, flush=True)
    return line


def _share(machine: Machine, runs: Sequence[Run], made: Path, until: float) -> int:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(name, "2")  # of every worker; they share the processors
    context = multiprocessing.get_context("spawn")
    lines, place = context.Queue(), context.Value("i", 0)
    workers = [
        context.Process(target=_work, args=(machine, made, until, runs, place, lines))
        for _ in range(min(machine.workers, len(runs)))
    ]
    for worker in workers:
        worker.start()
    failed = 0
    while any(worker.is_alive() for worker in workers) and not (until and time.time() > until):
        try:
            failed += _told(lines.get(timeout=0.5)).startswith("FAILED")
        except queue.Empty:
            continue
    for worker in workers:
        worker.terminate()  # those that did not end in time; what they had finished is on disk
        worker.join()
    while not lines.empty():
        failed += _told(lines.get()).startswith("FAILED")
    return failed


def _work(machine: Machine, made: Path, until: float, runs: Sequence[Run], place: Any, lines: Any) -> None:
    worker = Worker(machine, made, until)
    while True:
        with place.get_lock():
            at, place.value = place.value, place.value + 1
        if at >= len(runs):
            return
        lines.put(worker.run(runs[at]))


@dataclass
class Worker:
    """A process that trains and evaluates one run after another."""

    machine: Machine
    starts: Path
    """Folder of the unpacked start models."""

    until: float
    bundles: dict[str, Bundle] = field(default_factory=dict)
    tokens: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """Start -> tokens of the suites' texts, which are the same for every system that reads alike."""

    def run(self, run: Run) -> str:
        """Train and evaluate one run; return what was done in a line."""
        needed = HURRY * run.estimate * self.machine.workers
        if self.until and time.time() + needed > self.until:
            return f"not begun: {run.setting}: {run.system} seed {run.seed}, {needed:.0f} s do not fit the time left"
        from benchmarks.claims.evaluate import free_memory, report_run

        try:
            return report_run(self, run)
        except Exception as error:  # other runs continue, whatever it was
            return f"FAILED: {run.setting}: {run.system} seed {run.seed}: {error}\n{traceback.format_exc()}"
        finally:
            free_memory()  # the card is shared: what one run needed at most is for the next one of any process

    def bundle(self, corpus: str) -> Bundle:
        if corpus not in self.bundles:
            from benchmarks.table.splitting import provide

            self.bundles[corpus] = read_bundle(self.machine.folder / f"{corpus}.bundle")
            if (boundaries := self.bundles[corpus].boundaries) is not None:
                self._boundaries.append(boundaries)
                provide(_EveryBoundary(self._boundaries))  # type: ignore[arg-type]
        return self.bundles[corpus]

    _boundaries: list[Any] = field(default_factory=list)

    def locked(self, name: str) -> Any:
        """Return an open file whose lock this process has: what is made under it is made once."""
        path = self.starts / f"{name}.lock"
        file = path.open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        return file


@dataclass(frozen=True)
class _EveryBoundary:
    """The recorded sentence ends of all bundles that a process has read."""

    known: list[Any]

    def get_sentence_boundaries(self, language: str, text: str) -> list[dict[str, int]]:
        for number, each in enumerate(self.known, 1):
            try:
                return list(each.get_sentence_boundaries(language, text))
            except CiteweaveError:
                if number == len(self.known):
                    raise
        return []
