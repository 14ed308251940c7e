"""citeweave estimate"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from citeweave.cli.options import Debug, Json, Quiet, Set, parse_size, print_json
from citeweave.errors import UserError

if TYPE_CHECKING:
    from citeweave.estimate.sizes import Sizes

_Recipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="Name of a shipped recipe, such as scincl, or a TOML file.", show_default=False
    ),
]
_Papers = Annotated[
    str | None, typer.Option("--papers", help="Papers, such as 52e6, 52M or 52_000_000.", show_default=False)
]
_Citations = Annotated[
    str | None, typer.Option("--citations", help="Citations among them; else ten a paper.", show_default=False)
]
_Texts = Annotated[
    str | None,
    typer.Option("--texts", help="Papers with title and abstract; else all.", show_default=False),
]
_Edges = Annotated[
    bool, typer.Option("--edges", help="Citations come as a table of edges (import --format edges), not as JSON.")
]
_Corpus = Annotated[
    Path | None, typer.Option("--corpus", help="Count a corpus in place of the four numbers.", show_default=False)
]
_Tokens = Annotated[float | None, typer.Option("--tokens", help="Of a text; else 230.", show_default=False)]
_Machine = Annotated[
    str, typer.Option("--machine", help="here, laptop, server, cpu:N (cores), h200, or NxGPU such as 8xh200.")
]
_Cores = Annotated[str | None, typer.Option("--cores", help="Cores in place of the machine's.", show_default=False)]
_Memory = Annotated[
    str | None, typer.Option("--memory", help="Memory in place of the machine's, such as 24GB.", show_default=False)
]
_Gpu = Annotated[
    str, typer.Option("--gpu", help="Kind of GPU: h200, h100, a100, l40s, rtx4090, l4.", show_default=False)
]
_Gpus = Annotated[str | None, typer.Option("--gpus", help="How many of them; 0 = none.", show_default=False)]
_Init = Annotated[
    str,
    typer.Option(
        "--init",
        help="Start model in place of the recipe's: minilm, bert-base, a folder, a hub name.",
        show_default=False,
    ),
]


def estimate(
    recipe: _Recipe,
    papers: _Papers = None,
    citations: _Citations = None,
    texts: _Texts = None,
    edges: _Edges = False,
    corpus: _Corpus = None,
    tokens: _Tokens = None,
    machine: _Machine = "here",
    cores: _Cores = None,
    memory: _Memory = None,
    gpu: _Gpu = "",
    gpus: _Gpus = None,
    init: _Init = "",
    set_: Set = [],  # noqa: B006
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Foretell time, memory and disk of a recipe's stages for a literature and a machine; runs nothing."""
    from citeweave.estimate.machines import machine_of
    from citeweave.estimate.sizes import parse_count
    from citeweave.pipeline.estimating import estimate_recipe
    from citeweave.recipe import load_recipe

    chosen = machine_of(
        machine,
        cores=None if cores is None else parse_count(cores, "--cores"),
        memory=None if memory is None else parse_size(memory, "--memory"),
        gpu=gpu,
        gpus=None if gpus is None else parse_count(gpus, "--gpus", least=0),
    )
    sizes = replace(_sizes(papers, citations, texts, corpus, tokens), only_edges=edges)
    found = estimate_recipe(load_recipe(recipe, set_), sizes, chosen, init=init)
    if json:
        print_json(found.as_json())
    else:
        print(found.text(constants=not quiet))


def _sizes(
    papers: str | None, citations: str | None, texts: str | None, corpus: Path | None, tokens: float | None
) -> Sizes:
    from citeweave.corpus.corpus import Corpus
    from citeweave.estimate.sizes import corpus_sizes, given_sizes, parse_count

    if corpus is not None:
        given = {"--papers": papers, "--citations": citations, "--texts": texts, "--tokens": tokens}
        for option, value in given.items():
            if value is not None:
                raise UserError(
                    f"{option} is {value!r} and --corpus {corpus}; a corpus is counted: leave out one of both"
                )
        return corpus_sizes(Corpus.open(corpus))
    if papers is None:
        raise UserError("nothing says how large the literature is; give --papers and --citations, or --corpus")
    number = parse_count(papers, "--papers")
    cited = parse_count(citations, "--citations", least=0) if citations is not None else 10 * number
    with_text = None if texts is None else parse_count(texts, "--texts", least=0)
    return given_sizes(
        number,
        min(cited, number * (number - 1)) if citations is None else cited,
        texts=with_text,
        tokens=230.0 if tokens is None else tokens,
    )
