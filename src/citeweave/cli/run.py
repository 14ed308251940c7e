"""The commands `run`, `recipes`, `sweep` and `estimate`: complete recipes."""

from __future__ import annotations

from dataclasses import replace
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
    parse_size,
    print_json,
    reporter_of,
)
from citeweave.core.errors import UserError
from citeweave.core.files import cache_folder, read_input

if TYPE_CHECKING:
    from citeweave.pipeline.cost import Sizes
    from citeweave.pipeline.plan import RunPlan
    from citeweave.pipeline.run import RunResult
    from citeweave.pipeline.run_folder import RunOptions


RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="Built-in recipe, such as scincl, or a TOML file.", show_default=False),
]
CorpusFolder = Annotated[Path, typer.Option("--corpus", help="Corpus folder.", show_default=False)]
Init = Annotated[
    str,
    typer.Option(
        "--init",
        help="Start model instead of the recipe's: minilm, a folder, or a Hugging Face name.",
        show_default=False,
    ),
]
Aligner = Annotated[
    str,
    typer.Option(
        "--aligner",
        help="Encoder that aligns sentences, instead of the recipe's; takes the same values as --init.",
        show_default=False,
    ),
]
SuiteFolders = Annotated[
    list[str],
    typer.Option(
        "--suite",
        help="NAME=FOLDER: additional suite to evaluate on; for intents=FOLDER, the output of `citeweave annotate`, or a corpus with intents. May be repeated.",
        show_default=False,
    ),
]
TaskNames = Annotated[
    list[str], typer.Option("--task", help="Evaluate on this task only; may be repeated.", show_default=False)
]
Seeds = Annotated[
    int,
    typer.Option("--seeds", help="Number of models to train, with consecutive seeds; 0 = the recipe's number."),
]
HeldOut = Annotated[
    str,
    typer.Option(
        "--held-out",
        help="Papers whose references are held out for evaluation: share:0.1 (a random tenth), year:2016 (from 2016 on), or none.",
    ),
]
Queries = Annotated[
    int, typer.Option("--queries", help="Maximum number of queries for each task built from the corpus.")
]
BandsHow = Annotated[
    str,
    typer.Option(
        "--bands",
        help="Neighbor ranks to select from: recipe (the recipe's), auto (chosen for the corpus), share (the recipe's, scaled to the corpus), or fit (the recipe's if there are enough papers, otherwise auto).",
    ),
]
Tables = Annotated[
    list[str],
    typer.Option(
        "--table",
        help="NAME=FILE: table of paper pairs and their counts that the recipe calls NAME; may be repeated.",
        show_default=False,
    ),
]
Pool = Annotated[
    Path | None,
    typer.Option(
        "--pool",
        help="File with the ids of papers that may be positives or negatives, one per line.",
        show_default=False,
    ),
]
Intents = Annotated[
    str,
    typer.Option(
        "--intents",
        help="Citation intents: auto (those in the corpus, or predicted if it has none), corpus (only those), sections (also those inferred from section headings), or a folder from `citeweave annotate`.",
    ),
]
Classifier = Annotated[
    Path | None,
    typer.Option(
        "--classifier", help="Folder of an intent classifier to use instead of the built-in one.", show_default=False
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="Cache folder for vectors of start models; default: $CITEWEAVE_CACHE or ~/.cache/citeweave.",
        show_default=False,
    ),
]
_DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Only list the stages with their estimated sizes, time and memory."),
]


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
    """Train and evaluate an encoder by a recipe (a settings file): build the graph, mine samples, train, and evaluate before and after training."""
    from citeweave.pipeline.recipe import load_recipe
    from citeweave.pipeline.run_folder import RunOptions

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
        from citeweave.pipeline.plan import plan_run

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
    """List the built-in recipes."""
    from citeweave.pipeline.recipe import load_recipe, shipped_recipes

    shipped = {name: load_recipe(name).table("recipe") for name in shipped_recipes()}
    trains = {name: bool(load_recipe(name).table("training")) for name in shipped}
    if json:
        print_json({name: {**about, "trains": trains[name]} for name, about in shipped.items()})
        return
    width = max(map(len, shipped))
    for name, about in shipped.items():
        print(f"{name:<{width}}  {about['about']}{'' if trains[name] else ' (mining only)'}")
        print(f"{'':<{width}}  {about['source']}")


def _text(result: RunResult, options: RunOptions) -> str:
    from citeweave.pipeline.fit_bands import describe_bands
    from citeweave.pipeline.training_stages import comparison_page

    lines = [f"{result.folder}: {result.recipe.label}"]
    if result.skipped:
        total = len(result.skipped) + len(result.executed)
        done = f"{len(result.skipped)} of {total} stages" if result.executed else "all stages"
        lines.append(f"{done} were already done")
    lines.append(f"samples: {len(result.samples):,}; models: {', '.join(str(model) for model in result.models)}")
    if bands := result.record.get("bands"):
        lines.append(describe_bands(bands))
    return "\n".join([*lines, "", comparison_page(result.comparisons, result.spaces)])


def _json(result: RunResult) -> dict[str, Any]:
    return {
        "output": str(result.folder),
        "recipe": result.recipe.label,
        "made": list(result.executed),
        "skipped": list(result.skipped),
        "samples": len(result.samples),
        "models": [str(model) for model in result.models],
        "bands": result.record.get("bands", {}),
        "metrics": result.record["metrics"],
        "sentences": {suite: comparison.sentences for suite, comparison in result.comparisons.items()},
    }


def _plan_json(plan: RunPlan) -> dict[str, Any]:
    import dataclasses

    stages = [dataclasses.asdict(stage) for stage in plan.stages]
    return {"stages": stages, "seconds": plan.seconds, "memory": plan.memory, "device": plan.device}


_Over = Annotated[
    str,
    typer.Option("--over", help="TABLE.KEY=VALUE,VALUE,...: the key to sweep and its values.", show_default=False),
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
    """Run a recipe with several values of one setting and plot one curve per task."""
    from citeweave.pipeline.run import RECORD, as_table, parse_swept_key, sweep_recipe
    from citeweave.pipeline.run_folder import RunOptions

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
    result = sweep_recipe(recipe, parse_swept_key(over), corpus, output, options, overrides=set_, reporter=reporter)
    if json:
        import json as reading

        print_json(reading.loads(read_input(output / RECORD)))
    elif not quiet:
        print(as_table(result.over, result.values, result.start))
        print(f"curves: {output / 'curves'}")


_Recipe = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="Built-in recipe, such as scincl, or a TOML file.", show_default=False),
]
_Papers = Annotated[
    str | None, typer.Option("--papers", help="Number of papers, such as 52e6, 52M or 52_000_000.", show_default=False)
]
_Citations = Annotated[
    str | None, typer.Option("--citations", help="Number of citations; default: ten per paper.", show_default=False)
]
_Texts = Annotated[
    str | None,
    typer.Option("--texts", help="Number of papers with title and abstract; default: all.", show_default=False),
]
_Edges = Annotated[
    bool, typer.Option("--edges", help="The citations are a table of edges (import --format edges), not JSON.")
]
_Corpus = Annotated[
    Path | None,
    typer.Option(
        "--corpus", help="Take the sizes from this corpus instead of the four options above.", show_default=False
    ),
]
_Tokens = Annotated[float | None, typer.Option("--tokens", help="Tokens per text; default: 230.", show_default=False)]
_Machine = Annotated[
    str, typer.Option("--machine", help="Machine: here, laptop, server, cpu:N (cores), h200, or NxGPU such as 8xh200.")
]
_Cores = Annotated[
    str | None, typer.Option("--cores", help="Number of cores, if not the machine's.", show_default=False)
]
_Memory = Annotated[
    str | None, typer.Option("--memory", help="Memory, if not the machine's, such as 24GB.", show_default=False)
]
_Gpu = Annotated[str, typer.Option("--gpu", help="GPU model: h200, h100, a100, l40s, rtx4090, l4.", show_default=False)]
_Gpus = Annotated[str | None, typer.Option("--gpus", help="Number of GPUs; 0 = none.", show_default=False)]
_Init = Annotated[
    str,
    typer.Option(
        "--init",
        help="Start model instead of the recipe's: minilm, bert-base, a folder, or a Hugging Face name.",
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
    """Estimate the time, memory and disk space of a recipe for a corpus size and a machine; runs nothing."""
    from citeweave.pipeline.cost import parse_count
    from citeweave.pipeline.cost_constants import parse_machine
    from citeweave.pipeline.plan import estimate_recipe
    from citeweave.pipeline.recipe import load_recipe

    chosen = parse_machine(
        machine,
        cores=None if cores is None else parse_count(cores, "--cores"),
        memory=None if memory is None else parse_size(memory, "--memory"),
        gpu=gpu,
        gpus=None if gpus is None else parse_count(gpus, "--gpus", minimum=0),
    )
    sizes = replace(_sizes(papers, citations, texts, corpus, tokens), only_edges=edges)
    estimated = estimate_recipe(load_recipe(recipe, set_), sizes, chosen, init=init)
    if json:
        print_json(estimated.as_json())
    else:
        print(estimated.text(constants=not quiet))


def _sizes(
    papers: str | None, citations: str | None, texts: str | None, corpus: Path | None, tokens: float | None
) -> Sizes:
    from citeweave.corpus.corpus import Corpus
    from citeweave.pipeline.cost import parse_count, sizes_from_corpus, sizes_from_counts

    if corpus is not None:
        counts = {"--papers": papers, "--citations": citations, "--texts": texts, "--tokens": tokens}
        for option, value in counts.items():
            if value is not None:
                raise UserError(
                    f"{option} is {value!r} and --corpus is {corpus}; a corpus is counted: leave out one of the two"
                )
        return sizes_from_corpus(Corpus.open(corpus))
    if papers is None:
        raise UserError("the size of the literature is unknown; give --papers and --citations, or --corpus")
    number = parse_count(papers, "--papers")
    cited = parse_count(citations, "--citations", minimum=0) if citations is not None else 10 * number
    with_text = None if texts is None else parse_count(texts, "--texts", minimum=0)
    return sizes_from_counts(
        number,
        min(cited, number * (number - 1)) if citations is None else cited,
        texts=with_text,
        tokens=230.0 if tokens is None else tokens,
    )
