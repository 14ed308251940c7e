"""The table: every recipe and every baseline from one start, on one corpus, with one budget.

    python -m benchmarks.table prepare --data DATA -o table/                  here: bundles, the start model
    python -m benchmarks.table train table/ --corpora peerread_plus elife     there, on a GPU; goes on where it stopped
    python -m benchmarks.table baselines --data DATA -o table/                here, minutes on two cores
    python -m benchmarks.table show table/                                    the section of docs/results.md
    python -m benchmarks.table tiny table/                                    bundles for a try on a processor
    python -m benchmarks.table all --data DATA -o table/                      the four of them on one machine

DATA holds peerread_plus, elife, csfcube and scitldr. Run it from the root of the repository with PYTHONPATH=src.
Training needs numpy, numba, scipy, scikit-learn, torch, transformers and safetensors, and `table/` alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.table.systems import CORPORA
from citeweave.core.errors import CiteweaveError


def prepare(asked: argparse.Namespace) -> None:
    """Mine the samples of every system and pack them with the papers and the suites."""
    from benchmarks.table.prepare import Preparation, prepare_bundles
    from benchmarks.table.start_model import pack_start
    from benchmarks.table.systems import chosen

    pack_start(asked.output)
    for corpus in asked.corpora:
        work = asked.work or asked.output / "work"
        preparation = Preparation(asked.data, corpus, work, held_out=asked.held_out)
        prepare_bundles(preparation, chosen(asked.systems), asked.output)


def train(asked: argparse.Namespace) -> None:
    """Train and judge every system with every seed; what is done is not done again."""
    from benchmarks.table.running import run_corpus
    from benchmarks.table.worker import Plan

    for corpus in asked.corpora:
        plan = Plan(
            asked.output,
            corpus,
            systems=tuple(asked.systems),
            seeds=asked.seeds,
            papers=asked.papers,
            device=asked.device,
            workers=asked.workers,
            seconds=asked.seconds,
        )
        run_corpus(plan)


def baselines(asked: argparse.Namespace) -> None:
    """Evaluate the baselines by the same suites."""
    from benchmarks.table.baselines import judge_baselines
    from benchmarks.table.prepare import Preparation

    for corpus in asked.corpora:
        preparation = Preparation(asked.data, corpus, asked.work or asked.output / "work")
        judge_baselines(preparation, asked.systems, asked.output)


def show(asked: argparse.Namespace) -> None:
    """Write the section of docs/results.md from the reports."""
    from benchmarks.table.page import write_section

    write_section(asked.output, asked.page, asked.corpora, resamples=asked.resamples)


def tiny(asked: argparse.Namespace) -> None:
    """Cut the bundles to a size that a processor runs through, into the folder `tiny` beside them."""
    from benchmarks.table.bundle import bundles_of, read_bundle, write_bundle
    from benchmarks.table.start_model import FILE
    from benchmarks.table.tiny import cut
    from citeweave.core.files import link_or_copy

    for corpus in asked.corpora:
        for path in bundles_of(asked.output, corpus):
            write_bundle(asked.output / "tiny" / path.name, cut(read_bundle(path)))
    if not (asked.output / "tiny" / FILE).exists():
        link_or_copy(asked.output / FILE, asked.output / "tiny" / FILE)


def every(asked: argparse.Namespace) -> None:
    """Prepare, train, judge the baselines and show."""
    for verb in (prepare, train, baselines, show):
        verb(asked)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    named = {"prepare": prepare, "train": train, "baselines": baselines, "show": show, "tiny": tiny, "all": every}
    for name, verb in named.items():
        own = verbs.add_parser(name, help=verb.__doc__)
        own.set_defaults(verb=verb, systems=[])
        own.add_argument("--corpora", nargs="+", default=list(CORPORA), choices=CORPORA)
        if name in ("prepare", "baselines", "all"):
            own.add_argument("--data", type=Path, required=True)
            own.add_argument("-o", "--output", type=Path, required=True)
            own.add_argument("--work", type=Path, help="folder for what is made on the way; else inside the output")
        else:
            own.add_argument("output", type=Path, help="folder of the bundles and reports")
        if name in ("prepare", "train", "baselines"):
            own.add_argument("--systems", nargs="+", default=[], help="only these")
        if name in ("prepare", "all"):
            own.add_argument("--held-out", default="share:0.1", help="whose references are asked for")
        if name in ("train", "all"):
            own.add_argument("--seeds", type=int, default=3)
            own.add_argument("--papers", type=int, default=100_000, help="papers seen by a run")
            own.add_argument("--device", default="auto")
            own.add_argument("--workers", type=int, default=1, help="runs beside each other on one GPU")
            own.add_argument("--seconds", type=float, default=0.0, help="begin no run after so many; 0 = no limit")
        if name in ("show", "all"):
            own.add_argument("--page", type=Path, default=Path("docs/results.md"))
            own.add_argument("--resamples", type=int, default=10_000)
    asked = parser.parse_args()
    try:
        asked.verb(asked)
    except CiteweaveError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
