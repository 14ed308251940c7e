"""Short training runs on the way to `weave`: a bundle of data, runs from it, their table. See docs/weave.md.

    PYTHONPATH=src python benchmarks/weave.py prepare --data FOLDER --corpora CORPORA -o bundle/
    PYTHONPATH=src python benchmarks/weave.py explore bundle/ runs.json -o log.jsonl [--part 0/2] [--processes 4]
    PYTHONPATH=src python benchmarks/weave.py table log.jsonl ...

FOLDER holds peerread_plus, elife, acl_anthology, csfcube and scitldr; CORPORA holds peerread_plus and elife as
`citeweave import` writes them. `runs.json` is a list of objects with the fields of `weaving/plan.py`:

    [{"name": "base"}, {"name": "distill10", "distill": 10, "seeds": [0, 1, 2]}]

`explore` needs a GPU for runs of any size, numpy, scipy, numba, torch and transformers, and reads nothing but the
bundle. Runs that the log has already are not done again.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from weaving.absent import do_without_readers


def main() -> None:
    options = _parser().parse_args()
    do_without_readers()
    {"prepare": _prepare, "explore": _explore, "table": _table}[options.command](options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare")
    prepare.add_argument("--data", type=Path, required=True)
    prepare.add_argument("--corpora", type=Path, required=True)
    prepare.add_argument("--acl-papers", type=int, default=100_000)
    prepare.add_argument("-o", "--output", type=Path, required=True)
    explore = commands.add_parser("explore")
    explore.add_argument("bundle", type=Path)
    explore.add_argument("runs", type=Path)
    explore.add_argument("-o", "--output", type=Path, required=True)
    explore.add_argument("--part", default="0/1")
    explore.add_argument("--processes", type=int, default=4)
    explore.add_argument("--device", default="cuda")
    table = commands.add_parser("table")
    table.add_argument("logs", type=Path, nargs="+")
    return parser


def _prepare(options: argparse.Namespace) -> None:
    from weaving.preparing import prepare

    prepare(options.data, options.corpora, options.output, options.acl_papers)


def _explore(options: argparse.Namespace) -> None:
    from weaving.exploring import Exploring, explore

    with tempfile.TemporaryDirectory() as scratch:
        explore(
            Exploring(
                options.bundle,
                options.runs,
                options.output,
                Path(scratch),
                options.part,
                options.processes,
                options.device,
            )
        )


def _table(options: argparse.Namespace) -> None:
    from weaving.table import table

    print(table(options.logs))


if __name__ == "__main__":
    main()
