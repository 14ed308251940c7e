"""citeweave run, and citeweave recipes"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from citeweave.files import cache_folder

if TYPE_CHECKING:
    from citeweave.pipeline.options import RunOptions
    from citeweave.pipeline.planning import RunPlan
    from citeweave.pipeline.run import RunResult

RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="Name of a shipped recipe, such as scincl, or a TOML file.", show_default=False
    ),
]
CorpusFolder = Annotated[Path, typer.Option("--corpus", help="Folder of a corpus.", show_default=False)]
Init = Annotated[
    str,
    typer.Option(
        "--init", help="Start model in place of the recipe's: minilm, a folder, a hub name.", show_default=False
    ),
]
Aligner = Annotated[
    str,
    typer.Option(
        "--aligner", help="Encoder for aligning sentences in place of the recipe's; as --init.", show_default=False
    ),
]
SuiteFolders = Annotated[
    list[str],
    typer.Option(
        "--suite",
        help="NAME=FOLDER of a published suite to judge by too, or intents=OVERLAY (or =CORPUS) to judge by held-out "
        "intents; may be repeated.",
        show_default=False,
    ),
]
TaskNames = Annotated[
    list[str], typer.Option("--task", help="Judge by this task only; may be repeated.", show_default=False)
]
Seeds = Annotated[
    int, typer.Option("--seeds", help="Models to train, with seeds one after the other; 0 = the recipe's.")
]
HeldOut = Annotated[
    str,
    typer.Option("--held-out", help="Papers whose references are asked for: share:0.1, year:2016, or none."),
]
Queries = Annotated[int, typer.Option("--queries", help="At most so many queries a task of the corpus's own suite.")]
BandsHow = Annotated[
    str,
    typer.Option(
        "--bands",
        help="Ranks: recipe (as written), auto (chosen for the corpus), share, or fit (written where they fit).",
    ),
]
Tables = Annotated[
    list[str], typer.Option("--table", help="NAME=FILE of pairs that rules name; may be repeated.", show_default=False)
]
Pool = Annotated[
    Path | None,
    typer.Option("--pool", help="File with the ids of the papers that samples are chosen from.", show_default=False),
]
Intents = Annotated[
    str,
    typer.Option(
        "--intents",
        help="Of citations: auto (the corpus's, else found by a classifier), corpus, sections, or a folder of annotate.",
    ),
]
Classifier = Annotated[
    Path | None,
    typer.Option(
        "--classifier", help="Folder of an intent classifier in place of the shipped one.", show_default=False
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="Folder for vectors of start models; else $CITEWEAVE_CACHE, else ~/.cache/citeweave.",
        show_default=False,
    ),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show stages, sizes, time and memory; make nothing.")]


def run(
    recipe: RecipeName,
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
    intents: Intents = "auto",
    classifier: Classifier = None,
    device: Device = "auto",
    cache: Cache = None,
    dry_run: _DryRun = False,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a whole recipe: graph, samples, training, and reports before and after."""
    from citeweave.pipeline.options import RunOptions
    from citeweave.recipe import load_recipe

    loaded = load_recipe(recipe, set_)
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
        intents=intents,
        classifier=classifier,
        device=device,
        cache=cache_folder(cache),
        overwrite=overwrite,
    )
    if dry_run:
        from citeweave.pipeline.planning import plan_run

        plan = plan_run(loaded, corpus, output, options)
        print_json(_plan_json(plan)) if json else print(plan)
        return
    from citeweave.pipeline.run import run_recipe

    result = run_recipe(loaded, corpus, output, options, reporter=reporter_of(quiet or json))
    if json:
        print_json(_json(result))
    elif not quiet:
        print(_text(result, options))


def recipes(json: Json = False, debug: Debug = False) -> None:
    """List the recipes that come with citeweave."""
    from citeweave.recipe import load_recipe, shipped_recipes

    found = {name: load_recipe(name).table("recipe") for name in shipped_recipes()}
    trains = {name: bool(load_recipe(name).table("training")) for name in found}
    if json:
        print_json({name: {**about, "trains": trains[name]} for name, about in found.items()})
        return
    width = max(map(len, found))
    for name, about in found.items():
        print(f"{name:<{width}}  {about['about']}{'' if trains[name] else ' (mining only)'}")
        print(f"{'':<{width}}  {about['source']}")


def _text(result: RunResult, options: RunOptions) -> str:
    from citeweave.pipeline.fitting_bands import describe
    from citeweave.pipeline.judging import comparison_page

    lines = [f"{result.folder}: {result.recipe.label}"]
    if result.skipped:
        done = (
            "all of it was"
            if not result.made
            else f"{len(result.skipped)} of {len(result.skipped) + len(result.made)} stages were"
        )
        lines.append(f"{done} there already")
    lines.append(f"samples: {len(result.samples):,}; models: {', '.join(str(model) for model in result.models)}")
    if bands := result.record.get("bands"):
        lines.append(describe(bands))
    return "\n".join([*lines, "", comparison_page(result.comparisons, result.spaces)])


def _json(result: RunResult) -> dict[str, Any]:
    return {
        "output": str(result.folder),
        "recipe": result.recipe.label,
        "made": list(result.made),
        "skipped": list(result.skipped),
        "samples": len(result.samples),
        "models": [str(model) for model in result.models],
        "bands": result.record.get("bands", {}),
        "metrics": result.record["metrics"],
        "sentences": {suite: found.sentences for suite, found in result.comparisons.items()},
    }


def _plan_json(plan: RunPlan) -> dict[str, Any]:
    import dataclasses

    stages = [dataclasses.asdict(stage) for stage in plan.stages]
    return {"stages": stages, "seconds": plan.seconds, "memory": plan.memory, "device": plan.device}
