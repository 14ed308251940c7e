"""The commands `mine`, `align` and `convert`: training samples."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import (
    Debug,
    Device,
    Json,
    On,
    Output,
    Overwrite,
    Quiet,
    Seed,
    Set,
    Workers,
    named_paths,
    parse_size,
    print_json,
    reporter_of,
    table,
)
from citeweave.core.errors import UserError, choose

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from citeweave.core.progress import Reporter
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.inputs import IntentSource
    from citeweave.mining.mine import MiningInputs
    from citeweave.mining.rules import MiningRules
    from citeweave.mining.samples import Samples
    from citeweave.pipeline.recipe import Recipe


_MineCorpus = Annotated[Path, typer.Argument(help="Corpus folder.", show_default=False)]
_Recipe = Annotated[
    str,
    typer.Option("--recipe", help="Built-in recipe, such as scincl, or a TOML file.", show_default=False),
]
_Graph = Annotated[
    Path | None,
    typer.Option(
        "--graph",
        help="Graph folder of the corpus; if needed and not given, one is built next to the output.",
        show_default=False,
    ),
]
_Vectors = Annotated[
    list[str], typer.Option("--vectors", help="NAME=FOLDER: vectors that the recipe calls NAME; may be repeated.")
]
_Tables = Annotated[
    list[str],
    typer.Option(
        "--table", help="NAME=FILE: table of paper pairs and their counts that the recipe calls NAME; may be repeated."
    ),
]
_Symmetric = Annotated[bool, typer.Option("--symmetric", help="With --table: treat pairs as symmetric.")]
_Anchors = Annotated[
    Path | None,
    typer.Option(
        "--anchors",
        help="File with the ids of the papers to mine samples for (the anchors), one per line.",
        show_default=False,
    ),
]
_Pool = Annotated[
    Path | None,
    typer.Option(
        "--pool",
        help="File with the ids of papers that may be positives or negatives, one per line.",
        show_default=False,
    ),
]
_Intents = Annotated[
    str,
    typer.Option(
        "--intents",
        help="Citation intents: corpus (those in the corpus), sections (also those inferred from section headings), or a folder from `citeweave annotate`.",
    ),
]
_Bands = Annotated[
    str,
    typer.Option(
        "--bands",
        help="Neighbor ranks to select from: recipe (the recipe's) or auto (chosen for this corpus).",
    ),
]
_Pictures = Annotated[
    Path | None,
    typer.Option(
        "--pictures",
        help="With --bands auto: folder for plots of the curves used to choose the ranks.",
        show_default=False,
    ),
]
_Memory = Annotated[
    str, typer.Option("--memory", help="Memory limit for neighbor search and for counting related papers.")
]


def mine(
    corpus: _MineCorpus,
    recipe: _Recipe,
    output: Output,
    graph: _Graph = None,
    vectors: _Vectors = [],  # noqa: B006
    tables: _Tables = [],  # noqa: B006
    symmetric: _Symmetric = False,
    anchors: _Anchors = None,
    pool: _Pool = None,
    intents: _Intents = "corpus",
    bands: _Bands = "recipe",
    pictures: _Pictures = None,
    set_: Set = [],  # noqa: B006
    seed: Seed = 0,
    memory: _Memory = "512MB",
    workers: Workers = 0,
    on: On = "",
    device: Device = "cpu",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Mine training samples: select positive and negative papers for each paper, by the rules of a recipe."""
    from citeweave.core.artifact import refuse_existing
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining import inputs as mining_inputs
    from citeweave.mining.inputs import IntentSource, parse_rules
    from citeweave.mining.mine import MiningOptions, mine_samples
    from citeweave.pipeline.recipe import load_recipe
    from citeweave.remote.ray_executor import open_executor

    reporter = reporter_of(quiet or json)
    choose(bands, ("recipe", "auto"), "--bands")
    opened, loaded = Corpus.open(corpus), load_recipe(recipe, set_)
    _check_texts(opened, loaded)
    rules = parse_rules(loaded.table("mining"))
    options = MiningOptions(seed, workers, parse_size(memory, "--memory"), device)
    settings = {"seed": seed, "workers": workers, "device": device}
    if graph is not None and not graph.exists():
        raise UserError(f"--graph {graph} does not exist; build it with `citeweave graph`, or leave --graph out")
    folder = graph or output.with_name(f"{output.name}-graph")
    source = IntentSource(intents)
    if pictures is not None and bands != "auto":
        raise UserError(
            "--pictures plots how bands were chosen; give --bands auto too, or plot an audit with `citeweave audit --pictures`"
        )
    # everything that options name is opened first: a wrong name must not leave a graph behind
    if output.exists():
        refuse_existing(output, "samples", overwrite=True)
    named = _named(opened, vectors, tables, symmetric=symmetric, reporter=reporter)
    anchor_rows, pool_rows = (
        None if path is None else mining_inputs.read_rows(path, opened, option, reporter)
        for path, option in ((anchors, "--anchors"), (pool, "--pool"))
    )
    inputs = _inputs(opened, loaded, rules, folder, settings, source, reporter)
    inputs = mining_inputs.annotate_inputs(inputs, opened, source)
    mining_inputs.check_intents(inputs, rules, opened)
    inputs = dataclasses.replace(
        inputs, vectors={**inputs.vectors, **named.vectors}, tables=named.tables, anchors=anchor_rows, pool=pool_rows
    )
    chosen: dict[str, Any] = {}
    if bands == "auto":
        rules, chosen = _with_bands(opened, rules, inputs, options.seed, pictures, reporter)
    with open_executor(on, reporter) as executor:
        samples = mine_samples(
            opened, rules, output, inputs, options, overwrite=overwrite, reporter=reporter, executor=executor
        )
    if json:
        print_json({**_mine_summary(samples), "bands": chosen, "output": str(output)})
    elif not quiet:
        print(_mine_text(output, samples, chosen))


def _check_texts(corpus: Corpus, recipe: Recipe) -> None:
    """Refuse a recipe for derived texts on a corpus of papers."""
    from citeweave.corpus.derived_texts import PAPERS, parse_texts_options

    wanted, present = (
        parse_texts_options(recipe.table("texts")).of,
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
    from citeweave.mining.mine import MiningInputs
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


def _named(
    corpus: Corpus, vectors: list[str], tables: list[str], *, symmetric: bool, reporter: Reporter
) -> MiningInputs:
    """Open the vectors of --vectors and the tables of --table for mining."""
    from citeweave.mining.inputs import read_tables
    from citeweave.mining.mine import MiningInputs
    from citeweave.vectors.vectors import Vectors

    opened = {name: Vectors.open(path) for name, path in named_paths(vectors, "--vectors", "text=vectors/").items()}
    paths = named_paths(tables, "--table", "coviews=pairs.tsv")
    return MiningInputs(vectors=opened, tables=read_tables(paths, corpus, symmetric=symmetric, reporter=reporter))


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


_AlignCorpus = Annotated[Path, typer.Argument(help="Corpus folder.", show_default=False)]
_Samples = Annotated[
    Path, typer.Option("--samples", help="Folder of samples mined from this corpus.", show_default=False)
]
_Model = Annotated[
    str, typer.Option("--model", help="Model: minilm, a folder, or a Hugging Face name.", show_default=False)
]
_By = Annotated[
    str,
    typer.Option(
        "--by", help="How to align: contexts (through sentences that cite both papers) or abstracts (directly)."
    ),
]
_BatchTokens = Annotated[
    int | None,
    typer.Option("--batch-tokens", help="Tokens per batch; default: depends on the device.", show_default=False),
]


def align(
    corpus: _AlignCorpus,
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
    """Align the sentences of paired papers in training samples; an interrupted run resumes."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.encoders.encoder import load_encoder
    from citeweave.mining.align import AlignmentOptions, align_samples
    from citeweave.mining.samples import Samples

    options = AlignmentOptions(by, model)
    opened, mined = Corpus.open(corpus), Samples.open(samples)
    mined.check_corpus(opened.hash, opened.folder)  # before a model is loaded
    encoder = load_encoder(model, device=device, batch_tokens=batch_tokens)
    reporter = reporter_of(quiet or json)
    aligned = align_samples(opened, mined, encoder, output, options, overwrite=overwrite, reporter=reporter)
    if json:
        print_json({**_align_summary(aligned), "output": str(output)})
    elif not quiet:
        print(_align_text(output, aligned))


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


_Inputs = Annotated[
    list[Path],
    typer.Argument(help="Folder of samples to export, or files to import.", show_default=False),
]
_ConvertCorpus = Annotated[
    Path, typer.Option("--corpus", help="Folder of the corpus that the samples refer to.", show_default=False)
]
_Output = Annotated[Path, typer.Option("-o", "--output", help="Output folder.", show_default=False)]
_To = Annotated[
    str | None, typer.Option("--to", help="Format to export: scincl, specter, scirepeval or sentence_transformers.")
]
_From = Annotated[str | None, typer.Option("--from", help="Format of the files to import; detected by default.")]
_Gzip = Annotated[bool, typer.Option("--gzip", help="scincl: compress the triples.")]
_LeaveOut = Annotated[
    list[str] | None, typer.Option("--leave-out", help="specter: rule whose negatives are left out; default: easy.")
]
_Val = Annotated[float, typer.Option("--val", help="specter: fraction of the queries for val.txt.")]
_Test = Annotated[float, typer.Option("--test", help="specter: fraction of the queries for test.txt.")]
_Columns = Annotated[
    str, typer.Option("--columns", help="sentence_transformers: one negative per row (triplet), or all (group).")
]
_Negatives = Annotated[
    int,
    typer.Option("--negatives", help="sentence_transformers, group: negatives per row; 0 = as many as most rows have."),
]
_FileType = Annotated[str, typer.Option("--file-type", help="sentence_transformers: parquet or jsonl.")]
_Ids = Annotated[
    bool,
    typer.Option(
        "--ids", help="sentence_transformers: also write columns of ids, so that the rows can be imported again."
    ),
]


def convert(
    inputs: _Inputs,
    corpus: _ConvertCorpus,
    output: _Output,
    to: _To = None,
    from_: _From = None,
    gzip: _Gzip = False,
    leave_out: _LeaveOut = None,
    val: _Val = 0.0,
    test: _Test = 0.0,
    columns: _Columns = "triplet",
    negatives: _Negatives = 0,
    file_type: _FileType = "parquet",
    ids: _Ids = False,
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Convert training samples to or from another project's format; every record is accounted for."""
    from citeweave.core.artifact import MANIFEST
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.formats.convert import export_samples, import_samples
    from citeweave.mining.formats.triplet_rows import ExportOptions
    from citeweave.mining.samples import Samples

    exports = len(inputs) == 1 and (inputs[0] / MANIFEST).is_file()
    _check_direction(inputs[0], exports=exports, to=to, from_=from_)
    left_out = ExportOptions().leave_out if leave_out is None else tuple(leave_out)
    options = ExportOptions(gzip, left_out, val, test, columns, negatives, file_type, ids)
    if not exports and options != ExportOptions():
        raise UserError(f"there are export options, but {inputs[0]} is not a folder of samples; leave them out")
    papers, reporter = Corpus.open(corpus), reporter_of(quiet or json)
    result: dict[str, Any]
    if exports and to is not None:
        source = Samples.open(inputs[0])
        result = export_samples(source, papers, output, to=to, options=options, overwrite=overwrite, reporter=reporter)
    else:
        samples = import_samples(inputs, papers, output, format=from_, overwrite=overwrite, reporter=reporter)
        result = {"samples": len(samples), **samples.manifest.facts}
    if json:
        print_json({**result, "output": str(output)})
    elif not quiet:
        print(f"{_account(result)}\n{output}: {', '.join(result['files']) if exports else f'{len(samples):,} samples'}")


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
