"""The commands `run`, `recipes`, `sweep` and `estimate`: complete recipes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from citeweave.cli.options import CommonArguments, On, OutputArguments, RecipeName, Set, print_json
from citeweave.core.errors import UserError
from citeweave.core.files import cache_folder, read_input
from citeweave.core.options import SIZE
from citeweave.pipeline.options import INTENTS, RunOptions

if TYPE_CHECKING:
    from citeweave.pipeline.cost import Sizes
    from citeweave.pipeline.plan import RunPlan
    from citeweave.pipeline.run import RunResult


@dataclass(frozen=True, kw_only=True)
class RecipeArguments(OutputArguments):
    """What `run` and `sweep` have in common."""

    recipe: RecipeName
    corpus: Path
    """Corpus folder."""

    set_: Set = ()
    on: On = ""
    options: RunOptions

    @property
    def run_options(self) -> RunOptions:
        """The options of a run, with the suite of intents apart from the published ones."""
        suites = dict(self.options.suites)
        intents = suites.pop(INTENTS, None)
        return replace(self.options, suites=suites, intent_suite=intents, cache=cache_folder(self.options.cache))


@dataclass(frozen=True, kw_only=True)
class RunArguments(RecipeArguments):
    dry_run: bool = False
    """Only list the stages with their estimated sizes, time and memory."""


def run(args: RunArguments) -> None:
    """Train and evaluate an encoder by a recipe (a settings file): build the graph, mine samples, train, and evaluate before and after training."""
    from citeweave.pipeline.recipe import load_recipe

    loaded, options = load_recipe(args.recipe, args.set_), args.run_options
    if args.dry_run:
        from citeweave.pipeline.plan import plan_run

        plan = plan_run(loaded, args.corpus, args.output, options)
        args.print_result(_plan_json(plan), str(plan))
        return
    from citeweave.pipeline.run import run_recipe
    from citeweave.remote.ray_executor import open_executor

    with open_executor(args.on, args.reporter) as executor:
        result = run_recipe(loaded, args.corpus, args.output, options, reporter=args.reporter, executor=executor)
    args.print(_json(result), _text(result, options))


@dataclass(frozen=True, kw_only=True)
class RecipesArguments(CommonArguments):
    pass


def recipes(args: RecipesArguments) -> None:
    """List the built-in recipes."""
    from citeweave.pipeline.recipe import load_recipe, shipped_recipes

    shipped = {name: load_recipe(name).table("recipe") for name in shipped_recipes()}
    trains = {name: bool(load_recipe(name).table("training")) for name in shipped}
    if args.json:
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
    stages = [dataclasses.asdict(stage) for stage in plan.stages]
    return {"stages": stages, "seconds": plan.seconds, "memory": plan.memory, "device": plan.device}


@dataclass(frozen=True, kw_only=True)
class SweepArguments(RecipeArguments):
    over: str
    """TABLE.KEY=VALUE,VALUE,...: the key to sweep and its values."""


def sweep(args: SweepArguments) -> None:
    """Run a recipe with several values of one setting and plot one curve per task."""
    from citeweave.pipeline.run import RECORD, as_table, parse_swept_key, sweep_recipe
    from citeweave.remote.ray_executor import open_executor

    over, options = parse_swept_key(args.over), args.run_options
    with open_executor(args.on, args.reporter) as executor:
        result = sweep_recipe(
            args.recipe,
            over,
            args.corpus,
            args.output,
            options,
            overrides=args.set_,
            reporter=args.reporter,
            executor=executor,
        )
    text = f"{as_table(result.over, result.values, result.start)}\ncurves: {args.output / 'curves'}"
    args.print(json.loads(read_input(args.output / RECORD)), text)


@dataclass(frozen=True, kw_only=True)
class EstimateArguments(CommonArguments):
    recipe: RecipeName
    papers: str | None = None
    """Number of papers, such as 52e6, 52M or 52_000_000."""

    citations: str | None = None
    """Number of citations; default: ten per paper."""

    texts: str | None = None
    """Number of papers with title and abstract; default: all."""

    edges: bool = False
    """The citations are a table of edges (import --format edges), not JSON."""

    corpus: Path | None = None
    """Take the sizes from this corpus instead of the four options above."""

    tokens: float | None = None
    """Tokens per text; default: 230."""

    machine: str = "here"
    """Machine: here, laptop, server, cpu:N (cores), h200, or NxGPU such as 8xh200."""

    cores: str | None = None
    """Number of cores, if not the machine's."""

    memory: Annotated[int | None, SIZE] = None
    """Memory, if not the machine's, such as 24GB."""

    gpu: str = ""
    """GPU model: h200, h100, a100, l40s, rtx4090, l4."""

    gpus: str | None = None
    """Number of GPUs; 0 = none."""

    init: str = ""
    """Start model instead of the recipe's: minilm, bert-base, a folder, or a Hugging Face name."""

    set_: Set = ()


def estimate(args: EstimateArguments) -> None:
    """Estimate the time, memory and disk space of a recipe for a corpus size and a machine; runs nothing."""
    from citeweave.pipeline.cost import parse_count
    from citeweave.pipeline.cost_constants import parse_machine
    from citeweave.pipeline.plan import estimate_recipe
    from citeweave.pipeline.recipe import load_recipe

    chosen = parse_machine(
        args.machine,
        cores=None if args.cores is None else parse_count(args.cores, "--cores"),
        memory=args.memory,
        gpu=args.gpu,
        gpus=None if args.gpus is None else parse_count(args.gpus, "--gpus", minimum=0),
    )
    sizes = replace(_sizes(args.papers, args.citations, args.texts, args.corpus, args.tokens), only_edges=args.edges)
    estimated = estimate_recipe(load_recipe(args.recipe, args.set_), sizes, chosen, init=args.init)
    if args.json:
        print_json(estimated.as_json())
    else:
        print(estimated.text(constants=not args.quiet))


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
