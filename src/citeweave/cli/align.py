"""citeweave align"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Device, Json, Output, Overwrite, Quiet, print_json, reporter_of, table

if TYPE_CHECKING:
    from citeweave.mining.samples import Samples

_Corpus = Annotated[Path, typer.Argument(help="Folder of a corpus.", show_default=False)]
_Samples = Annotated[
    Path, typer.Option("--samples", help="Folder of samples mined from this corpus.", show_default=False)
]
_Model = Annotated[
    str, typer.Option("--model", help="minilm, folder of a model, or name of one on the hub.", show_default=False)
]
_By = Annotated[
    str, typer.Option("--by", help="contexts: through sentences that cite both papers; abstracts: directly.")
]
_BatchTokens = Annotated[
    int | None, typer.Option("--batch-tokens", help="Tokens of a batch; else by device.", show_default=False)
]


def align(
    corpus: _Corpus,
    samples: _Samples,
    model: _Model,
    output: Output,
    by: _By = "contexts",
    device: Device = "auto",
    batch_tokens: _BatchTokens = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find the sentences in which anchors and positives are alike; an interrupted run goes on where it stopped."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.encoders.encoder import load_encoder
    from citeweave.mining.aligning.options import AlignmentOptions
    from citeweave.mining.alignment import align_samples
    from citeweave.mining.samples import Samples

    options = AlignmentOptions(by, model)
    opened, mined = Corpus.open(corpus), Samples.open(samples)
    mined.check_corpus(opened.hash, opened.folder)  # before a model is loaded
    encoder = load_encoder(model, device=device, batch_tokens=batch_tokens)
    reporter = reporter_of(quiet or json)
    aligned = align_samples(opened, mined, encoder, output, options, overwrite=overwrite, reporter=reporter)
    if json:
        print_json({**_summary(aligned), "output": str(output)})
    elif not quiet:
        print(_text(output, aligned))


def _summary(samples: Samples) -> dict[str, Any]:
    facts = samples.manifest.facts["alignment"]
    keep = ("by", "model", "revision", "pairs")
    return {"samples": len(samples), **{name: facts[name] for name in keep}}


def _text(folder: Path, samples: Samples) -> str:
    summary = _summary(samples)
    pairs = summary["pairs"]
    rows: list[tuple[str, object]] = [("pairs", pairs["read"]), ("aligned", pairs["kept"])]
    rows += [(f"  not: {reason}", number) for reason, number in pairs["rejected"].items()]
    return f"{folder}: samples, aligned by {summary['by']} with {summary['model']}\n{table(rows)}"
