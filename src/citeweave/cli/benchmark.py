"""citeweave benchmark"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from citeweave.cli.options import Debug, Json, Output, Overwrite, Quiet, Seed, print_json
from citeweave.errors import choose

_Name = Annotated[
    str,
    typer.Argument(
        help="treccovid_rf: from TREC-COVID's files; scitldr: a BEIR folder from papers with summaries.",
        show_default=False,
    ),
]
_Source = Annotated[Path, typer.Argument(help="Folder that holds the files it is made from.", show_default=False)]


def benchmark(
    name: _Name,
    source: _Source,
    output: Output,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make a benchmark's files from published ones, for evaluate to read."""
    choose(name, ("treccovid_rf", "scitldr"), "benchmark")
    if name == "scitldr":
        from citeweave.artefacts.manifest import read_manifest
        from citeweave.evaluation.suites.building.summaries import KIND, VERSION, scitldr_to_beir

        folder = scitldr_to_beir(source, output, overwrite=overwrite)
        facts: dict[str, object] = {"suite": "beir", **read_manifest(folder, KIND, VERSION).facts}
    else:
        from citeweave.evaluation.suites.building.treccovid import RfOptions, build_treccovid_rf

        made = build_treccovid_rf(source, output, RfOptions(seed=seed), overwrite=overwrite)
        facts = {"suite": "treccovid_rf", **asdict(made), "folder": str(made.folder)}
    if json:
        print_json({**facts, "output": str(output)})
    elif not quiet:
        print(f"{output}: judge with `citeweave evaluate MODEL --suite {facts['suite']} --data {output} -o report/`")
