"""citeweave model"""

from __future__ import annotations

from typing import Annotated

import typer

from citeweave.cli.options import Debug, Json, Output, Overwrite, Quiet, print_json, table

_Name = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="weave, minilm, folder of a model, or name of one on the hub.", show_default=False
    ),
]
_Dtype = Annotated[str, typer.Option("--dtype", help="Numbers of the saved weights: float32 or float16.")]


def model(
    name: _Name,
    output: Output,
    dtype: _Dtype = "float32",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a model whole, as a folder that sentence-transformers and other programs load; deltas are added in."""
    from citeweave.encoders.whole import write_whole

    made = write_whole(name, output, dtype=dtype, overwrite=overwrite)
    size = sum(described.get("bytes", 0) for described in made.files.values())
    facts = {"model": made.facts["model"], "revision": made.facts["revision"], "bytes": size, "output": str(output)}
    if json:
        print_json(facts)
    elif not quiet:
        print(f"{output}: {facts['model']}\n{table([('revision', facts['revision']), ('bytes', size)])}")
