"""citeweave synthesize"""

from __future__ import annotations

from typing import Annotated

import typer

from citeweave.cli.options import (
    Debug,
    Json,
    Memory,
    Output,
    Overwrite,
    Quiet,
    Seed,
    Workers,
    parse_size,
    print_json,
    reporter_of,
    table,
)


def synthesize(
    output: Output,
    papers: Annotated[int, typer.Option("--papers", help="How many papers to make up.")] = 2000,
    references: Annotated[float, typer.Option("--references", help="Mean length of a reference list.")] = 10.0,
    sharers: Annotated[int, typer.Option("--sharers", help="How many papers share a problem, method or finding.")] = 40,
    noise: Annotated[float, typer.Option("--noise", help="Share of citations made for no reason.")] = 0.05,
    contexts: Annotated[
        float, typer.Option("--contexts", help="Share of mentions that have a citing sentence.")
    ] = 0.75,
    cocited: Annotated[
        float, typer.Option("--cocited", help="Chance that a mention stands in the same sentence as the one before.")
    ] = 0.35,
    bare: Annotated[float, typer.Option("--bare", help="Share of papers that have no abstract.")] = 0.03,
    first_year: Annotated[int, typer.Option("--first-year", help="Year of the earliest papers.")] = 1990,
    last_year: Annotated[int, typer.Option("--last-year", help="Year of the latest papers.")] = 2024,
    seed: Seed = 0,
    memory: Memory = "256MB",
    workers: Workers = 0,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make up a literature with known problems, methods, findings and citation intents."""
    from citeweave.corpus.summary import summarize
    from citeweave.corpus.synthetic.literature import Synthetic
    from citeweave.corpus.synthetic.writing import synthesize as write

    options = Synthetic(papers, seed, references, sharers, noise, contexts, cocited, bare, first_year, last_year)
    corpus = write(
        output,
        options,
        workers=workers,
        memory=parse_size(memory, "--memory"),
        overwrite=overwrite,
        reporter=reporter_of(quiet or json),
    )
    if json:
        print_json({**summarize(corpus, samples=0), "output": str(output)})
    elif not quiet:
        counts = {"papers": len(corpus), "citations": len(corpus.citing), "contexts": len(corpus.contexts)}
        print(f"{output}: a made-up literature; no paper in it exists\n{table(list(counts.items()))}")
