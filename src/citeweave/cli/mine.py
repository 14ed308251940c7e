"""The commands `mine`, `align` and `convert`: training samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from citeweave.cli.options import CorpusFolder, Device, On, OutputArguments, RecipeOption, Set, table
from citeweave.core.errors import UserError
from citeweave.core.options import Named, OneOf, Positional, changed, parse_table
from citeweave.corpus.options import PAPERS, DerivedTexts
from citeweave.mining.options import AlignmentOptions, ExportOptions, MiningOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from citeweave.core.progress import Reporter
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.intent_overlay import IntentSource
    from citeweave.mining.inputs import MiningInputs
    from citeweave.mining.rules import MiningRules
    from citeweave.mining.samples import Samples
    from citeweave.pipeline.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class MineArguments(OutputArguments):
    corpus: CorpusFolder
    recipe: RecipeOption

    graph: Path | None = None
    """Graph folder of the corpus; if needed and not given, one is built next to the output."""

    vectors: Annotated[Mapping[str, Path], Named("text=vectors/")] = field(default_factory=dict)
    """NAME=FOLDER: vectors that the recipe calls NAME; may be repeated."""

    table: Annotated[Mapping[str, Path], Named("coviews=pairs.tsv")] = field(default_factory=dict)
    """NAME=FILE: table of paper pairs and their counts that the recipe calls NAME; may be repeated."""

    symmetric: bool = False
    """With --table: treat pairs as symmetric."""

    anchors: Path | None = None
    """File with the ids of the papers to mine samples for (the anchors), one per line."""

    pool: Path | None = None
    """File with the ids of papers that may be positives or negatives, one per line."""

    intents: str = "corpus"
    """Citation intents: corpus (those in the corpus), sections (also those inferred from section headings), or a folder from `citeweave annotate`."""

    bands: Annotated[str, OneOf("recipe", "auto")] = "recipe"
    """Neighbor ranks to select from: recipe (the recipe's) or auto (chosen for this corpus)."""

    pictures: Path | None = None
    """With --bands auto: folder for plots of the curves used to choose the ranks."""

    set_: Set = ()
    options: MiningOptions

    on: On = ""


def mine(args: MineArguments) -> None:
    """Mine training samples: select positive and negative papers for each paper, by the rules of a recipe."""
    from citeweave.core.artifact import refuse_existing
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.intent_overlay import IntentSource
    from citeweave.mining import inputs as mining_inputs
    from citeweave.mining.mine import mine_samples
    from citeweave.mining.rules import parse_rules
    from citeweave.mining.tables import read_tables
    from citeweave.pipeline.recipe import load_recipe
    from citeweave.remote.ray_executor import open_executor
    from citeweave.vectors.vectors import Vectors

    reporter = args.reporter
    opened, loaded = Corpus.open(args.corpus), load_recipe(args.recipe, args.set_)
    _check_texts(opened, loaded)
    rules = parse_rules(loaded.table("mining"))
    settings = {name: getattr(args.options, name) for name in ("seed", "workers", "device")}
    if args.graph is not None and not args.graph.exists():
        raise UserError(f"--graph {args.graph} does not exist; build it with `citeweave graph`, or leave --graph out")
    folder = args.graph or args.output.with_name(f"{args.output.name}-graph")
    source = IntentSource(args.intents)
    if args.pictures is not None and args.bands != "auto":
        raise UserError(
            "--pictures plots how bands were chosen; give --bands auto too, or plot an audit with `citeweave audit --pictures`"
        )
    # everything that options name is opened first: a wrong name must not leave a graph behind
    if args.output.exists():
        refuse_existing(args.output, "samples", overwrite=True)
    vectors = {name: Vectors.open(path) for name, path in args.vectors.items()}
    tables = read_tables(args.table, opened, symmetric=args.symmetric, reporter=reporter)
    anchor_rows, pool_rows = (
        None if path is None else mining_inputs.read_rows(path, opened, option, reporter)
        for path, option in ((args.anchors, "--anchors"), (args.pool, "--pool"))
    )
    inputs = _inputs(opened, loaded, rules, folder, settings, source, reporter)
    inputs = mining_inputs.annotate_inputs(inputs, opened, source)
    mining_inputs.check_intents(inputs, rules, opened)
    inputs = dataclasses.replace(
        inputs, vectors={**inputs.vectors, **vectors}, tables=tables, anchors=anchor_rows, pool=pool_rows
    )
    chosen: dict[str, Any] = {}
    if args.bands == "auto":
        rules, chosen = _with_bands(opened, rules, inputs, args.options.seed, args.pictures, reporter)
    with open_executor(args.on, reporter) as executor:
        samples = mine_samples(opened, rules, args.output, inputs, args.options, executor=executor, **args.writing)
    args.print(
        {**_mine_summary(samples), "bands": chosen, "output": str(args.output)},
        _mine_text(args.output, samples, chosen),
    )


def _check_texts(corpus: Corpus, recipe: Recipe) -> None:
    """Refuse a recipe for derived texts on a corpus of papers."""

    wanted, present = (
        parse_table(DerivedTexts, recipe.table("texts"), "texts").of,
        corpus.manifest.facts.get("derived", {}).get("texts", PAPERS),
    )
    if wanted not in (PAPERS, present):
        raise UserError(
            f"recipe {recipe.name} is for {wanted}, but {corpus.folder} holds {present}; derive them first: `citeweave derive "
            f"{corpus.folder} --texts {wanted} -o texts/`"
        )


def _inputs(
    corpus: Corpus,
    recipe: Recipe,
    rules: MiningRules,
    folder: Path,
    settings: dict[str, Any],
    source: IntentSource,
    reporter: Reporter,
) -> MiningInputs:
    """Collect the graph and vectors that the mining rules need; a missing graph is built."""
    from citeweave.mining import inputs as mining_inputs
    from citeweave.mining.inputs import MiningInputs
    from citeweave.mining.rules import NODES

    if not mining_inputs.needs_graph(rules):
        return MiningInputs()
    table, aspects = recipe.table("graph"), rules.aspect_graphs
    with_vectors = rules.needs_vectors(NODES) or bool(aspects)
    if not folder.exists():
        reporter.say(f"{folder}: building the graph{' and its node vectors' if with_vectors else ''}")
        mining_inputs.build_mining_graph(
            corpus,
            folder,
            table,
            settings,
            with_vectors=with_vectors,
            intents=mining_inputs.graph_intents(source, corpus, aspects),
            reporter=reporter,
        )
    return mining_inputs.graph_inputs(folder, table, with_vectors=with_vectors, aspects=aspects)


def _with_bands(
    corpus: Corpus, rules: MiningRules, inputs: MiningInputs, seed: int, pictures: Path | None, reporter: Reporter
) -> tuple[MiningRules, dict[str, Any]]:
    from citeweave.mining.bands import (
        apply_aspect_bands,
        apply_bands,
        choose_aspect_bands,
        choose_bands_for_rules,
        draw_bands,
    )

    if rules.aspect_graphs:
        chosen_bands = choose_aspect_bands(corpus, rules, inputs, seed=seed, reporter=reporter)
        for aspect, bands in chosen_bands.items():
            for path in draw_bands(bands, pictures / aspect) if pictures is not None else []:
                reporter.say(f"plotted: {path}")
        summaries = {aspect: bands.as_json() for aspect, bands in chosen_bands.items()}
        return apply_aspect_bands(rules, chosen_bands), {"aspects": summaries}
    chosen = choose_bands_for_rules(corpus, rules, inputs, seed=seed, reporter=reporter)
    if pictures is not None:
        for path in draw_bands(chosen, pictures):
            reporter.say(f"plotted: {path}")
    return apply_bands(rules, chosen), chosen.as_json()


def _mine_summary(samples: Samples) -> dict[str, Any]:
    metadata = samples.manifest.facts
    keep = ("skipped", "rules_asked", "rules_got", "aspects_skipped", "contexts", "mixture")
    return {
        "samples": len(samples),
        "anchors": _count_distinct(samples.anchors),
        "positives": len(samples.positives.rows),
        "negatives": len(samples.negatives.rows),
        **{name: metadata[name] for name in keep if name in metadata},
    }


def _count_distinct(rows: NDArray[np.int32]) -> int:
    import numpy as np

    return len(np.unique(rows))


def _mine_text(folder: Path, samples: Samples, bands: dict[str, Any]) -> str:
    summary = _mine_summary(samples)
    lines = [
        f"{folder}: samples",
        table([(name, summary[name]) for name in ("samples", "anchors", "positives", "negatives")]),
    ]
    requested, selected = summary["rules_asked"], summary["rules_got"]
    rules: list[tuple[str, object]] = [
        (f"  {name}", f"{selected.get(name, 0):,} of {n:,}") for name, n in requested.items()
    ]
    lines.append(f"selected by each rule, of those requested:\n{table(rules)}")
    if summary["skipped"]:
        reasons: list[tuple[str, object]] = [(f"  {reason}", n) for reason, n in summary["skipped"].items()]
        lines.append(f"papers that are not anchors:\n{table(reasons)}")
    if any(summary.get("aspects_skipped", {}).values()):
        rows = [
            (f"  {aspect}: {reason}", n)
            for aspect, skipped in summary["aspects_skipped"].items()
            for reason, n in skipped.items()
        ]
        lines.append(f"anchors without a sample in one aspect:\n{table(rows)}")
    for name, mixed in summary.get("mixture", {}).items():
        lines.append(f"task {name}: {mixed['kept']:,} of {mixed['mined']:,} samples are in the mixture")
    for name, contexts in summary.get("contexts", {}).items():
        rejected: list[tuple[str, object]] = [(f"  {reason}", n) for reason, n in contexts["contexts rejected"].items()]
        lines.append(f"{name}: {contexts['contexts kept']:,} citing sentences used, not used:\n{table(rejected)}")
    for aspect, chosen in bands.get("aspects", {"": bands} if bands else {}).items():
        lines.append(f"bands chosen{f' in {aspect}' if aspect else ''}: {chosen['why']}")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class AlignArguments(OutputArguments):
    corpus: CorpusFolder
    samples: Path
    """Folder of samples mined from this corpus."""

    options: AlignmentOptions
    device: Device = "auto"

    batch_tokens: int | None = None
    """Tokens per batch; default: depends on the device."""


def align(args: AlignArguments) -> None:
    """Align the sentences of paired papers in training samples; an interrupted run resumes."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.encoders.encoder import load_encoder
    from citeweave.mining.align import align_samples
    from citeweave.mining.samples import Samples

    opened, mined = Corpus.open(args.corpus), Samples.open(args.samples)
    mined.check_corpus(opened.hash, opened.folder)  # before a model is loaded
    encoder = load_encoder(args.options.encoder, device=args.device, batch_tokens=args.batch_tokens)
    aligned = align_samples(opened, mined, encoder, args.output, args.options, **args.writing)
    args.print({**_align_summary(aligned), "output": str(args.output)}, _align_text(args.output, aligned))


def _align_summary(samples: Samples) -> dict[str, Any]:
    metadata = samples.manifest.facts["alignment"]
    keep = ("by", "model", "revision", "pairs")
    return {"samples": len(samples), **{name: metadata[name] for name in keep}}


def _align_text(folder: Path, samples: Samples) -> str:
    summary = _align_summary(samples)
    pairs = summary["pairs"]
    rows: list[tuple[str, object]] = [("pairs", pairs["read"]), ("aligned", pairs["kept"])]
    rows += [(f"  not: {reason}", number) for reason, number in pairs["rejected"].items()]
    return f"{folder}: samples, aligned by {summary['by']} with {summary['model']}\n{table(rows)}"


@dataclass(frozen=True, kw_only=True)
class ConvertArguments(OutputArguments):
    inputs: Annotated[tuple[Path, ...], Positional()]
    """Folder of samples to export, or files to import."""

    corpus: Path
    """Folder of the corpus that the samples refer to."""

    to: str | None = None
    """Format to export: scincl, specter, scirepeval or sentence_transformers."""

    from_: str | None = None
    """Format of the files to import; detected by default."""

    options: ExportOptions


def convert(args: ConvertArguments) -> None:
    """Convert training samples to or from another project's format; every record is accounted for."""
    from citeweave.core.artifact import MANIFEST
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.formats import export_samples, import_samples
    from citeweave.mining.samples import Samples

    exports = len(args.inputs) == 1 and (args.inputs[0] / MANIFEST).is_file()
    _check_direction(args.inputs[0], exports=exports, to=args.to, from_=args.from_)
    if not exports and changed(args.options):
        raise UserError(f"there are export options, but {args.inputs[0]} is not a folder of samples; leave them out")
    papers = Corpus.open(args.corpus)
    result: dict[str, Any]
    if exports and args.to is not None:
        source = Samples.open(args.inputs[0])
        result = export_samples(source, papers, args.output, to=args.to, options=args.options, **args.writing)
    else:
        samples = import_samples(args.inputs, papers, args.output, format=args.from_, **args.writing)
        result = {"samples": len(samples), **samples.manifest.facts}
    args.print(
        {**result, "output": str(args.output)},
        f"{_account(result)}\n{args.output}: {', '.join(result['files']) if exports else f'{len(samples):,} samples'}",
    )


def _check_direction(first: Path, *, exports: bool, to: str | None, from_: str | None) -> None:
    """Refuse --to without samples, and --from without files."""
    if exports and to is None:
        raise UserError(f"{first} is an artifact of citeweave: say with --to in which format to write its samples")
    if exports and from_ is not None:
        raise UserError(f"--from is for files of another format; {first} is an artifact of citeweave: leave it out")
    if not exports and to is not None:
        raise UserError(
            f"--to exports one folder of samples, and {first} is not one; leave it out to import files as samples"
        )


def _account(result: dict[str, Any]) -> str:
    """Format the account of all converted records as a table."""
    rows: list[tuple[str, object]] = []
    for kind, count in result["records"].items():
        rows += [(f"{kind} read", count["read"]), (f"{kind} kept", count["kept"])]
        rows += [(f"  not kept: {reason}", number) for reason, number in count["rejected"].items()]
    rows += [(f"note: {what}", number) for what, number in result["notes"].items()]
    return table(rows)
