"""Every system with every seed, on a machine that has a GPU and the bundles: trains, judges, writes reports.

A worker takes one run after another: all systems with the first seed, then all with the next, so that what is done when the
time is over can be compared. Several workers share a GPU: a small model's steps wait for the processor that launches them.
What is done is kept, an interrupted run goes on.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.table.bundle import bundles_of, read_bundle
from benchmarks.table.reports import pack_runs, unpack_runs
from benchmarks.table.splitting import provide
from benchmarks.table.start_model import unpack_start
from benchmarks.table.systems import START
from benchmarks.table.worker import Plan, Worker
from citeweave.core.errors import CiteweaveError, choose
from citeweave.training.options import SENTENCE_LOSSES


def run_corpus(plan: Plan) -> None:
    """All systems of a corpus; ends with all reports in one file, also when some of them failed."""
    unpack_runs(plan.folder, plan.corpus)
    found = {path: read_bundle(path).systems for path in bundles_of(plan.folder, plan.corpus)}
    if not found:
        raise CiteweaveError(f"{plan.folder} has no bundle of {plan.corpus}; make it with `prepare`")
    for system in plan.systems:
        choose(system, [START, *(name for known in found.values() for name in known)], "--systems")
    until = time.time() + plan.seconds if plan.seconds else 0.0
    failed = False
    try:
        for number, (path, known) in enumerate(found.items()):
            asked = [START, *known] if number == 0 else list(known)
            names = sorted((name for name in asked if name in (plan.systems or asked)), key=_is_quick(known))
            runs = [(name, seed) for seed in range(plan.seeds) for name in names if seed == 0 or name != START]
            for line in _run_all(dataclasses.replace(plan, bundle=path), runs, until) if runs else ():
                failed = failed or line.startswith("FAILED")
                print(line, flush=True)
    finally:
        print(f"packed: {pack_runs(plan.folder, plan.corpus)}", flush=True)
    if failed:
        raise CiteweaveError(f"some runs on {plan.corpus} failed; the others are kept, the same command goes on")


def _is_quick(known: Mapping[str, Any]) -> Callable[[str], bool]:
    """What reads sentences takes longest and begins first."""
    return lambda name: name in known and not set(SENTENCE_LOSSES) & known[name]["training"]["losses"].keys()


def _run_all(plan: Plan, runs: Sequence[tuple[str, int]], until: float) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="table-") as folder:
        work = Path(folder)
        unpack_start(plan.folder, work / START)
        if plan.workers == 1:
            worker = _worker(plan, work, until)
            yield from (worker.run(system, seed) for system, seed in runs)
            return
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS"):
            os.environ.setdefault(name, "2")  # of every worker; they share the processors
        with ProcessPoolExecutor(
            min(plan.workers, len(runs)), multiprocessing.get_context("spawn"), _begin, (plan, work, until)
        ) as pool:
            for done in as_completed([pool.submit(_run_in_worker, *each) for each in runs]):
                yield done.result()


_HERE: list[Worker] = []


def _begin(plan: Plan, work: Path, until: float) -> None:
    _HERE.append(_worker(plan, work, until))


def _run_in_worker(system: str, seed: int) -> str:
    return _HERE[0].run(system, seed)


def _worker(plan: Plan, work: Path, until: float) -> Worker:
    bundle = read_bundle(plan.bundle)
    if bundle.boundaries is not None:
        provide(bundle.boundaries)
    return Worker(plan, bundle, work / START, Path(tempfile.mkdtemp(dir=work)), until)
