"""The commands `mine`, `align` and `convert`: training samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import citeweave as cw
from citeweave.cli.options import (
    CorpusFolder,
    Device,
    On,
    OutputArguments,
    RecipeOption,
    Set,
    account_rows,
    rejected_rows,
    table,
)
from citeweave.core.errors import UserError
from citeweave.core.options import Named, OneOf, Positional, changed, parse_table
from citeweave.corpus.options import PAPERS, DerivedTexts
from citeweave.mining.options import AlignmentOptions, ExportOptions, MiningOptions

if TYPE_CHECKING:
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
    from citeweave.graph.intent_overlay import IntentSource
    from citeweave.mining import inputs as mining_inputs
    from citeweave.mining.tables import read_tables
    from citeweave.remote.ray_executor import open_executor

    reporter = args.reporter
    opened, loaded = cw.Corpus.open(args.corpus), cw.load_recipe(args.recipe, args.set_)
    _check_texts(opened, loaded)
    rules = cw.parse_rules(loaded.table("mining"))
    if args.graph is not None and not args.graph.exists():
        raise UserError(f"--graph {args.graph} does not exist; build it with `citeweave graph`, or leave --graph out")
    source = IntentSource(args.intents)
    if args.pictures is not None and args.bands != "auto":
        raise UserError(
            "--pictures plots how bands were chosen; give --bands auto too, or plot an audit with `citeweave audit --pictures`"
        )
    # everything that options name is opened first: a wrong name must not leave a graph behind
    if args.output.exists():
        refuse_existing(args.output, "samples", overwrite=True)
    vectors = {name: cw.Vectors.open(path) for name, path in args.vectors.items()}
    tables = read_tables(args.table, opened, symmetric=args.symmetric, reporter=reporter)
    anchor_rows, pool_rows = (
        None if path is None else mining_inputs.read_rows(path, opened, option, reporter)
        for path, option in ((args.anchors, "--anchors"), (args.pool, "--pool"))
    )
    inputs = mining_inputs.annotate_inputs(_inputs(args, opened, loaded, rules, source), opened, source)
    mining_inputs.check_intents(inputs, rules, opened)
    inputs = dataclasses.replace(
        inputs, vectors={**inputs.vectors, **vectors}, tables=tables, anchors=anchor_rows, pool=pool_rows
    )
    chosen: dict[str, Any] = {}
    if args.bands == "auto":
        rules, chosen = _with_bands(args, opened, rules, inputs)
    with open_executor(args.on, reporter) as executor:
        samples = cw.mine_samples(opened, rules, args.output, inputs, args.options, executor=executor, **args.writing)
    args.print({**_mine_summary(samples), "bands": chosen}, _mine_text(args.output, samples, chosen))


def _check_texts(corpus: Corpus, recipe: Recipe) -> None:
    """Refuse a recipe for derived texts on a corpus of papers."""
    wanted = parse_table(DerivedTexts, recipe.table("texts"), "texts").of
    present = corpus.manifest.facts.get("derived", {}).get("texts", PAPERS)
    if wanted not in (PAPERS, present):
        raise UserError(
            f"recipe {recipe.name} is for {wanted}, but {corpus.folder} holds {present}; derive them first: `citeweave derive "
            f"{corpus.folder} --texts {wanted} -o texts/`"
        )


def _inputs(
    args: MineArguments, corpus: Corpus, recipe: Recipe, rules: MiningRules, source: IntentSource
) -> MiningInputs:
    """Collect the graph and vectors that the mining rules need; a missing graph is built."""
    from citeweave.mining import inputs as mining_inputs
    from citeweave.mining.rules import NODES

    if not mining_inputs.needs_graph(rules):
        return cw.MiningInputs()
    folder = args.graph or args.output.with_name(f"{args.output.name}-graph")
    values, aspects = recipe.table("graph"), rules.aspect_graphs
    with_vectors = rules.needs_vectors(NODES) or bool(aspects)
    if not folder.exists():
        args.reporter.say(f"{folder}: building the graph{' and its node vectors' if with_vectors else ''}")
        mining_inputs.build_mining_graph(
            corpus,
            folder,
            values,
            {name: getattr(args.options, name) for name in ("seed", "workers", "device")},
            with_vectors=with_vectors,
            intents=mining_inputs.graph_intents(source, corpus, aspects),
            reporter=args.reporter,
        )
    return mining_inputs.graph_inputs(folder, values, with_vectors=with_vectors, aspects=aspects)


def _with_bands(
    args: MineArguments, corpus: Corpus, rules: MiningRules, inputs: MiningInputs
) -> tuple[MiningRules, dict[str, Any]]:
    from citeweave.mining import bands

    def draw(chosen: bands.Bands, aspect: str = "") -> None:
        for path in bands.draw_bands(chosen, args.pictures / aspect) if args.pictures is not None else []:
            args.reporter.say(f"plotted: {path}")

    common: dict[str, Any] = {"seed": args.options.seed, "reporter": args.reporter}
    if rules.aspect_graphs:
        by_aspect = bands.choose_aspect_bands(corpus, rules, inputs, **common)
        for aspect, chosen in by_aspect.items():
            draw(chosen, aspect)
        summaries = {aspect: chosen.as_json() for aspect, chosen in by_aspect.items()}
        return bands.apply_aspect_bands(rules, by_aspect), {"aspects": summaries}
    chosen = bands.choose_bands_for_rules(corpus, rules, inputs, **common)
    draw(chosen)
    return bands.apply_bands(rules, chosen), chosen.as_json()


def _mine_summary(samples: Samples) -> dict[str, Any]:
    from citeweave.pipeline.stages import sample_counts

    metadata = samples.manifest.facts
    keep = ("skipped", "rules_asked", "rules_got", "aspects_skipped", "contexts", "mixture")
    return {**sample_counts(samples), **{name: metadata[name] for name in keep if name in metadata}}


def _mine_text(folder: Path, samples: Samples, bands: dict[str, Any]) -> str:
    summary = _mine_summary(samples)
    names = ("samples", "anchors", "positives", "negatives")
    requested, selected = summary["rules_asked"], summary["rules_got"]
    rules = [(f"  {name}", f"{selected.get(name, 0):,} of {number:,}") for name, number in requested.items()]
    lines = [f"{folder}: samples", table((name, summary[name]) for name in names)]
    lines.append(f"selected by each rule, of those requested:\n{table(rules)}")
    if summary["skipped"]:
        reasons = table((f"  {reason}", number) for reason, number in summary["skipped"].items())
        lines.append(f"papers that are not anchors:\n{reasons}")
    if any(summary.get("aspects_skipped", {}).values()):
        skipped = summary["aspects_skipped"].items()
        rows = [(f"  {aspect}: {reason}", number) for aspect, each in skipped for reason, number in each.items()]
        lines.append(f"anchors without a sample in one aspect:\n{table(rows)}")
    for name, mixed in summary.get("mixture", {}).items():
        lines.append(f"task {name}: {mixed['kept']:,} of {mixed['mined']:,} samples are in the mixture")
    for name, contexts in summary.get("contexts", {}).items():
        rejected = table((f"  {reason}", number) for reason, number in contexts["contexts rejected"].items())
        lines.append(f"{name}: {contexts['contexts kept']:,} citing sentences used, not used:\n{rejected}")
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
    from citeweave.mining.align import align_samples

    opened, mined = cw.Corpus.open(args.corpus), cw.Samples.open(args.samples)
    mined.check_corpus(opened.hash, opened.folder)  # before a model is loaded
    encoder = cw.load_encoder(args.options.encoder, device=args.device, batch_tokens=args.batch_tokens)
    aligned = align_samples(opened, mined, encoder, args.output, args.options, **args.writing)
    metadata = aligned.manifest.facts["alignment"]
    pairs = metadata["pairs"]
    rows = [("pairs", pairs["read"]), ("aligned", pairs["kept"]), *rejected_rows(pairs, "not")]
    args.print(
        {"samples": len(aligned), **{name: metadata[name] for name in ("by", "model", "revision", "pairs")}},
        f"{args.output}: samples, aligned by {metadata['by']} with {metadata['model']}\n{table(rows)}",
    )


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

    exports = len(args.inputs) == 1 and (args.inputs[0] / MANIFEST).is_file()
    _check_direction(args.inputs[0], exports=exports, to=args.to, from_=args.from_)
    if not exports and changed(args.options):
        raise UserError(f"there are export options, but {args.inputs[0]} is not a folder of samples; leave them out")
    papers = cw.Corpus.open(args.corpus)
    result: dict[str, Any]
    if exports and args.to is not None:
        source = cw.Samples.open(args.inputs[0])
        result = cw.export_samples(source, papers, args.output, to=args.to, options=args.options, **args.writing)
        written = ", ".join(result["files"])
    else:
        samples = cw.import_samples(args.inputs, papers, args.output, format=args.from_, **args.writing)
        result = {"samples": len(samples), **samples.manifest.facts}
        written = f"{len(samples):,} samples"
    notes = [(f"note: {what}", number) for what, number in result["notes"].items()]
    args.print(result, f"{table([*account_rows(result['records']), *notes])}\n{args.output}: {written}")


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
