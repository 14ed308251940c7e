"""citeweave sweep"""

from __future__ import annotations

from typing import Annotated

import typer

from citeweave.cli.options import (
    Debug,
    Device,
    Json,
    Output,
    Overwrite,
    Quiet,
    Set,
    named_paths,
    print_json,
    reporter_of,
)
from citeweave.cli.run import (
    Aligner,
    BandsHow,
    Cache,
    CorpusFolder,
    HeldOut,
    Init,
    Pool,
    Queries,
    RecipeName,
    Seeds,
    SuiteFolders,
    Tables,
    TaskNames,
)
from citeweave.files import cache_folder, read_input

_Over = Annotated[
    str,
    typer.Option("--over", help="TABLE.KEY=VALUE,VALUE,...: what is swept, over which values.", show_default=False),
]


def sweep(
    recipe: RecipeName,
    over: _Over,
    corpus: CorpusFolder,
    output: Output,
    init: Init = "",
    aligner: Aligner = "",
    set_: Set = [],  # noqa: B006
    suite: SuiteFolders = [],  # noqa: B006
    task: TaskNames = [],  # noqa: B006
    seeds: Seeds = 0,
    held_out: HeldOut = "share:0.1",
    queries: Queries = 1000,
    bands: BandsHow = "fit",
    table: Tables = [],  # noqa: B006
    pool: Pool = None,
    device: Device = "auto",
    cache: Cache = None,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a recipe for several values of one key and draw a curve a task."""
    from citeweave.pipeline.options import RunOptions
    from citeweave.pipeline.sweep import RECORD, as_table, parse_over, sweep_recipe

    suites = named_paths(suite, "--suite", "csfcube=data/csfcube")
    intent_suite = suites.pop("intents", None)
    options = RunOptions(
        init=init,
        aligner=aligner,
        suites=suites,
        intent_suite=intent_suite,
        tasks=tuple(task),
        seeds=seeds,
        held_out=held_out,
        queries=queries,
        bands=bands,
        tables=named_paths(table, "--table", "coviews=pairs.tsv"),
        pool=pool,
        device=device,
        cache=cache_folder(cache),
        overwrite=overwrite,
    )
    reporter = reporter_of(quiet or json)
    result = sweep_recipe(recipe, parse_over(over), corpus, output, options, overrides=set_, reporter=reporter)
    if json:
        import json as reading

        print_json(reading.loads(read_input(output / RECORD)))
    elif not quiet:
        print(as_table(result.over, result.values, result.start))
        print(f"curves: {output / 'curves'}")
