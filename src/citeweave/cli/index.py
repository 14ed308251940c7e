"""citeweave index"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from citeweave.cli.options import Debug, Device, Json, Output, Overwrite, Quiet, print_json, reporter_of, table
from citeweave.errors import UserError

_Corpus = Annotated[Path, typer.Argument(help="Folder of a corpus.", show_default=False)]
_Model = Annotated[
    str, typer.Option("--model", help="minilm, folder of a model, or name of one on the hub.", show_default=False)
]
_Contexts = Annotated[
    bool, typer.Option("--contexts/--no-contexts", help="Also the citing sentences, for `search --cite`.")
]
_Most = Annotated[
    int, typer.Option("--most-contexts", help="With --contexts: sentences of a paper with the same intents.")
]
_Intents = Annotated[
    Path | None,
    typer.Option("--intents", help="Intents that `citeweave annotate` found; else the corpus's.", show_default=False),
]
_Dtype = Annotated[str, typer.Option("--dtype", help="Numbers of the vectors: float16 or float32.")]
_Runtime = Annotated[str, typer.Option("--runtime", help="torch, onnx, openvino or int8; searches use the same.")]


def index(
    corpus: _Corpus,
    model: _Model,
    output: Output,
    contexts: _Contexts = False,
    most_contexts: _Most = 10,
    intents: _Intents = None,
    dtype: _Dtype = "float16",
    runtime: _Runtime = "torch",
    device: Device = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make an index of a corpus for `citeweave search`; an interrupted run goes on where it stopped."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.intent_overlay import IntentOverlay
    from citeweave.search.building import IndexOptions, build_index

    if contexts and most_contexts < 1:
        raise UserError(f"--most-contexts is {most_contexts}; it must be at least 1, or leave out --contexts")
    options = IndexOptions(dtype, most_contexts if contexts else 0, runtime, device)
    opened = Corpus.open(corpus)
    overlay = None if intents is None else IntentOverlay.open(intents)
    made = build_index(
        opened, model, output, options, overlay=overlay, overwrite=overwrite, reporter=reporter_of(quiet or json)
    )
    facts = {**made.manifest.facts, "output": str(output)}
    if json:
        print_json(facts)
    elif not quiet:
        print(_text(output, facts))


def _text(folder: Path, facts: dict[str, Any]) -> str:
    rows: list[tuple[str, object]] = [("papers", facts["papers"])]
    if facts["without_vector"]:
        rows.append(("  not kept: no text", facts["without_vector"]))
    if facts["with_intents"]:
        rows.append(("cited with a known intent", facts["with_intents"]))
    if "sentences" in facts:
        rows += [("citing sentences", facts["sentences"]), ("  mentions of papers in them", facts["mentions"])]
        if facts["sentences_left_out"]:
            rows.append(("  left out: nothing but marks", facts["sentences_left_out"]))
    spaces = f", aspects {', '.join(facts['aspects'])}" if facts["aspects"] else ""
    return f"{folder}: {facts['dimension']} numbers ({facts['dtype']}) of {facts['model']}{spaces}\n{table(rows)}"
