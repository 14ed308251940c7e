"""The study of the texts' claims, in three commands; each resumes where it stopped.

    python -m benchmarks.claims prepare --data DATA -o study/ --start mlm=MODEL minilm     bundles, audit, start models
    python -m benchmarks.claims run study/ --seconds 560 --workers 14                      there, on a GPU, in pieces
    python -m benchmarks.claims show study/ --keep docs/reports                            docs/claims.md

    python -m benchmarks.claims pieces study/ -o pieces/        folders of at most 41.5 MB, to carry one by one
    python -m benchmarks.claims join pieces/ -o study/          there: the files of all pieces that are at hand
    python -m benchmarks.claims plan study/                     the runs in their order, with estimated seconds
    python -m benchmarks.claims costly study/                   intents and BigGraph-style vectors, on a GPU; then prepare again
    python -m benchmarks.claims links study/                    link prediction

DATA holds peerread_plus, elife and csfcube. Run it from the root of the repository with PYTHONPATH=src. `run` needs numpy,
numba, scipy, scikit-learn, torch, transformers, safetensors and the folder of bundles alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.claims.systems import CORPORA, COSTLY, STARTS, chosen, parse_starts
from citeweave.core.errors import CiteweaveError


def prepare(options: argparse.Namespace) -> None:
    """Import, audit and mine, and write one bundle per corpus and one file per start model."""
    from benchmarks.claims.prepare import StudyPreparation, pack_start_model, prepare_study

    options.output.mkdir(parents=True, exist_ok=True)
    for name, folder in parse_starts(options.start).items():
        pack_start_model(folder or name, options.output / f"{name}.start")
    for corpus in options.corpora:
        work = options.work or options.output / "stages"
        preparation = StudyPreparation(
            options.data,
            corpus,
            work,
            study=options.output,
            papers=options.papers,
            device=options.device,
            aligner=options.aligner,
        )
        systems = chosen(options.systems, options.skip)
        prepare_study(preparation, systems, options.output / f"{corpus}.bundle", without=options.without)


def costly(options: argparse.Namespace) -> None:
    """Make what wants a GPU of the preparation: intents of citing sentences, node vectors trained edge by edge."""
    from benchmarks.claims.costly import make_intents, make_nodes

    if "intents" in options.only:
        make_intents(options.output, options.corpora)
    if "edges" in options.only:
        make_nodes(options.output, options.corpora, options.systems)


def run(options: argparse.Namespace) -> None:
    """Train and evaluate by priority until the time is over; what is done is not done again."""
    from benchmarks.claims.plan import Machine
    from benchmarks.claims.run import run_study

    limits = {"seconds": options.seconds, "seeds": options.seeds, "steps": options.steps}
    machine = Machine(options.output, options.device, options.workers, **limits)
    run_study(machine, options.corpora, options.starts, options.systems, max_tier=options.tier)


def plan(options: argparse.Namespace) -> None:
    """List the runs in their order with estimated seconds of one card."""
    from benchmarks.claims.plan import describe_plan

    print(describe_plan(options.output, options.corpora, options.starts, options.systems))


def pieces(options: argparse.Namespace) -> None:
    """Cut bundles and start models into pieces that can be carried."""
    from benchmarks.claims.pieces import cut

    for path in cut(options.folder, options.output):
        print(f"{path} {path.stat().st_size / 1e6:.1f} MB")


def join(options: argparse.Namespace) -> None:
    """Join pieces to the files they were cut from; what lacks a piece is left out."""
    from benchmarks.claims.pieces import join as join_pieces

    for path, state in join_pieces(options.folder, options.output).items():
        print(f"{path}: {state}")


def links(options: argparse.Namespace) -> None:
    """Predict held-out citations by node vectors and keep the numbers beside the reports."""
    from benchmarks.claims.links import predict_links

    predict_links(options.output, options.corpora, options.methods, seeds=options.seeds)


def show(options: argparse.Namespace) -> None:
    """Write docs/claims.md and its figures from the reports that exist."""
    from benchmarks.claims.page import write_page

    write_page(options.output, options.page, resamples=options.resamples, keep=options.keep)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.claims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    for verb in (prepare, costly, run, plan, pieces, join, links, show):
        own = verbs.add_parser(verb.__name__, help=verb.__doc__)
        own.set_defaults(verb=verb)
        if verb in (pieces, join):
            own.add_argument("folder", type=Path)
        if verb in (prepare, pieces, join):
            own.add_argument("-o", "--output", type=Path, required=True)
        else:
            own.add_argument("output", type=Path, help="folder of bundles and reports")
        if verb in (prepare, costly, run, plan, links):
            own.add_argument("--corpora", nargs="+", default=list(CORPORA))
        if verb in (prepare, costly, run, plan):
            own.add_argument("--systems", nargs="+", default=[], help="only these")
        if verb in (prepare, run):
            own.add_argument("--device", default="cpu" if verb is prepare else "auto")
        if verb in (run, plan):
            own.add_argument("--starts", nargs="+", default=list(STARTS), choices=list(STARTS))
    sub = verbs.choices
    sub["prepare"].add_argument("--data", type=Path, required=True)
    sub["prepare"].add_argument("--start", nargs="+", default=[], help="NAME=FOLDER of a start model, or minilm")
    sub["prepare"].add_argument("--skip", nargs="+", default=[], help="all systems but these")
    sub["prepare"].add_argument(
        "--without", nargs="+", default=[], choices=COSTLY, help="what takes hours on two cores"
    )
    sub["costly"].add_argument("--only", nargs="+", default=list(COSTLY), choices=COSTLY)
    sub["prepare"].add_argument("--work", type=Path, help="folder for stages; default: inside the output")
    sub["prepare"].add_argument("--aligner", default="minilm", help="model that aligns sentences for aspire_ts")
    sub["prepare"].add_argument("--papers", type=int, default=0, help="only the first so many papers")
    sub["run"].add_argument("--workers", type=int, default=1, help="runs side by side on one GPU")
    sub["run"].add_argument("--seconds", type=float, default=0.0, help="end before so many seconds; 0 = no limit")
    sub["run"].add_argument("--seeds", type=int, default=0, help="at most so many seeds of a system")
    sub["run"].add_argument(
        "--steps", type=int, default=0, help="train so many steps, for a trial; default: whole epochs"
    )
    sub["run"].add_argument("--tier", type=int, default=4, help="only systems up to this tier")
    sub["links"].add_argument("--methods", nargs="+", default=[])
    sub["links"].add_argument("--seeds", type=int, default=1)
    sub["show"].add_argument("--page", type=Path, default=Path("docs/claims.md"))
    sub["show"].add_argument("--keep", type=Path, help="folder to keep the packed reports in, such as docs/reports")
    sub["show"].add_argument("--resamples", type=int, default=10_000)
    options = parser.parse_args()
    try:
        options.verb(options)
    except CiteweaveError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
