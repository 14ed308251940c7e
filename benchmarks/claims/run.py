"""Runs of the study on a machine with a GPU: by priority, several side by side, until the time is over; all reports are kept.

    run_study(Machine(Path("study/"), seconds=560, workers=14), CORPORA, STARTS)

A worker begins a run only if its estimate fits the time left; one that does not end in time is ended and lost.
Recipes that begin with another recipe's model get the one of their own seed, which is trained first if it does not exist.

    reports/CORPUS.START/SYSTEM-SEED.json     as they are made
    CORPUS.START.reports                      all of them in one file, which travels
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.claims.evaluate import free_memory, report_run
from benchmarks.claims.plan import Machine, Run, bundles_in, planned_runs, starts_in
from benchmarks.claims.systems import START
from benchmarks.claims.worker import Worker
from benchmarks.table.packing import unpack
from benchmarks.table.reports import is_done, pack_runs, unpack_runs
from citeweave.core.errors import ArtifactError, CiteweaveError, choose

HURRY = 1.3
"""A run is begun if so many times its estimate fits the time left."""


def run_study(
    machine: Machine, corpora: Sequence[str], starts: Sequence[str], systems: Sequence[str] = (), *, max_tier: int = 4
) -> None:
    """Run what is missing until the time is over; ends with all reports packed, also when runs failed."""
    begun, folder = time.time(), machine.folder
    bundles, present = bundles_in(folder, corpora), starts_in(folder, starts)
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
            lines = [_told(attempt(worker, each)) for each in runs]
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
        lines.put(attempt(worker, runs[at]))


def attempt(worker: Worker, run: Run) -> str:
    """Train and evaluate one run; return what was done in a line."""
    needed = HURRY * run.estimate * worker.machine.workers
    if worker.until and time.time() + needed > worker.until:
        return f"not begun: {run.setting}: {run.system} seed {run.seed}, {needed:.0f} s do not fit the time left"
    try:
        return report_run(worker, run)
    except Exception as error:  # other runs continue, whatever it was
        return f"FAILED: {run.setting}: {run.system} seed {run.seed}: {error}\n{traceback.format_exc()}"
    finally:
        free_memory()  # the card is shared: what one run needed at most is for the next one of any process
