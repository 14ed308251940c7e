"""citeweave mine"""

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
from citeweave.errors import UserError, choose

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.given_intents import GivenIntents
    from citeweave.mining.mine import Inputs
    from citeweave.mining.rules import MiningRules
    from citeweave.mining.samples import Samples
    from citeweave.progress import Reporter
    from citeweave.recipe import Recipe


_Corpus = Annotated[Path, typer.Argument(help="Folder of a corpus.", show_default=False)]
_Recipe = Annotated[
    str,
    typer.Option("--recipe", help="Name of a shipped recipe, such as scincl, or a TOML file.", show_default=False),
]
_Graph = Annotated[
    Path | None,
    typer.Option(
        "--graph", help="Folder of a graph; one is made beside the output where it is needed.", show_default=False
    ),
]
_Vectors = Annotated[
    list[str], typer.Option("--vectors", help="NAME=FOLDER of vectors that rules name; may be repeated.")
]
_Tables = Annotated[
    list[str], typer.Option("--table", help="NAME=FILE of pairs with counts that rules name; may be repeated.")
]
_Symmetric = Annotated[bool, typer.Option("--symmetric", help="A pair of a table counts for both of its papers.")]
_Anchors = Annotated[
    Path | None, typer.Option("--anchors", help="File with the ids of the anchors, one a line.", show_default=False)
]
_Pool = Annotated[
    Path | None,
    typer.Option("--pool", help="File with the ids of the papers that may be chosen, one a line.", show_default=False),
]
_Intents = Annotated[
    str,
    typer.Option(
        "--intents", help="corpus: those it has; sections: also read off headings; or a folder that annotate made."
    ),
]
_Bands = Annotated[str, typer.Option("--bands", help="recipe: ranks as written; auto: choose them for this corpus.")]
_Pictures = Annotated[
    Path | None, typer.Option("--pictures", help="With --bands auto: folder for its curves.", show_default=False)
]
_Memory = Annotated[str, typer.Option("--memory", help="Memory for searches and related papers.")]


def mine(
    corpus: _Corpus,
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
    """Choose positives and negatives for every paper by the rules of a recipe."""
    from citeweave.artefacts.writing import refuse_existing
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining import gathering
    from citeweave.mining.given_intents import GivenIntents
    from citeweave.mining.mine import MiningOptions, mine_samples
    from citeweave.mining.rule_reading import parse_rules
    from citeweave.recipe import load_recipe
    from citeweave.scale.opening import open_crew

    reporter = reporter_of(quiet or json)
    choose(bands, ("recipe", "auto"), "--bands")
    opened, loaded = Corpus.open(corpus), load_recipe(recipe, set_)
    _check_texts(opened, loaded)
    rules = parse_rules(loaded.table("mining"))
    options = MiningOptions(seed, workers, parse_size(memory, "--memory"), device)
    making = {"seed": seed, "workers": workers, "device": device}
    if graph is not None and not graph.exists():
        raise UserError(f"--graph {graph} does not exist; make it with `citeweave graph`, or leave --graph out")
    folder = graph or output.with_name(f"{output.name}-graph")
    given = GivenIntents(intents)
    if pictures is not None and bands != "auto":
        raise UserError("--pictures draws how bands were chosen; give --bands auto too, or draw an audit's pictures")
    # everything that is named is looked at first: a wrong name must not leave a graph behind
    if output.exists():
        refuse_existing(output, "samples", overwrite=True)
    named = _named(opened, vectors, tables, symmetric=symmetric, reporter=reporter)
    asked, allowed = (
        None if path is None else gathering.read_rows(path, opened, option, reporter)
        for path, option in ((anchors, "--anchors"), (pool, "--pool"))
    )
    inputs = _inputs(opened, loaded, rules, folder, making, given, reporter)
    inputs = gathering.with_intents(inputs, opened, given)
    gathering.check_intents(inputs, rules, opened)
    inputs = dataclasses.replace(
        inputs, vectors={**inputs.vectors, **named.vectors}, tables=named.tables, anchors=asked, pool=allowed
    )
    chosen: dict[str, Any] = {}
    if bands == "auto":
        rules, chosen = _with_bands(opened, rules, inputs, options.seed, pictures, reporter)
    with open_crew(on, reporter) as crew:
        samples = mine_samples(
            opened, rules, output, inputs, options, overwrite=overwrite, reporter=reporter, crew=crew
        )
    if json:
        print_json({**_summary(samples), "bands": chosen, "output": str(output)})
    elif not quiet:
        print(_text(output, samples, chosen))


def _check_texts(corpus: Corpus, recipe: Recipe) -> None:
    """A recipe for texts that are not papers needs a corpus of these."""
    from citeweave.corpus.derived.options import PAPERS, texts_options

    wanted, found = (
        texts_options(recipe.table("texts")).of,
        corpus.manifest.facts.get("derived", {}).get("texts", PAPERS),
    )
    if wanted not in (PAPERS, found):
        raise UserError(
            f"recipe {recipe.name} is for {wanted}, and {corpus.folder} holds {found}; make them first: `citeweave derive "
            f"{corpus.folder} --texts {wanted} -o texts/`"
        )


def _inputs(
    corpus: Corpus,
    recipe: Recipe,
    rules: MiningRules,
    folder: Path,
    making: dict[str, Any],
    given: GivenIntents,
    reporter: Reporter,
) -> Inputs:
    """The graph and its vectors, as far as the rules need them; what is not there is made."""
    from citeweave.mining import gathering
    from citeweave.mining.aspect_names import NODES
    from citeweave.mining.mine import Inputs

    if not gathering.needs_graph(rules):
        return Inputs()
    table, apart = recipe.table("graph"), rules.aspect_graphs
    with_vectors = rules.needs_vectors(NODES) or bool(apart)
    if not folder.exists():
        reporter.say(f"{folder}: making the graph{' and its node vectors' if with_vectors else ''}")
        gathering.make_graph_for(
            corpus,
            folder,
            table,
            making,
            with_vectors=with_vectors,
            intents=gathering.intents_apart(given, corpus, apart),
            reporter=reporter,
        )
    return gathering.graph_inputs(folder, table, with_vectors=with_vectors, apart=apart)


def _named(corpus: Corpus, vectors: list[str], tables: list[str], *, symmetric: bool, reporter: Reporter) -> Inputs:
    """What --vectors and --table name."""
    from citeweave.mining.gathering import read_tables
    from citeweave.mining.mine import Inputs
    from citeweave.similarity.vectors import Vectors

    opened = {name: Vectors.open(path) for name, path in named_paths(vectors, "--vectors", "text=vectors/").items()}
    paths = named_paths(tables, "--table", "coviews=pairs.tsv")
    return Inputs(vectors=opened, tables=read_tables(paths, corpus, symmetric=symmetric, reporter=reporter))


def _with_bands(
    corpus: Corpus, rules: MiningRules, inputs: Inputs, seed: int, pictures: Path | None, reporter: Reporter
) -> tuple[MiningRules, dict[str, Any]]:
    from citeweave.mining.auditing.pictures import band_pictures
    from citeweave.mining.banding.aspect_bands import apply_aspect_bands, bands_by_aspect
    from citeweave.mining.banding.bands import apply_bands, bands_for

    if rules.aspect_graphs:
        found = bands_by_aspect(corpus, rules, inputs, seed=seed, reporter=reporter)
        for aspect, bands in found.items():
            for path in band_pictures(bands, pictures / aspect) if pictures is not None else []:
                reporter.say(f"drawn: {path}")
        told = {aspect: bands.as_json() for aspect, bands in found.items()}
        return apply_aspect_bands(rules, found), {"aspects": told}
    chosen = bands_for(corpus, rules, inputs, seed=seed, reporter=reporter)
    if pictures is not None:
        for path in band_pictures(chosen, pictures):
            reporter.say(f"drawn: {path}")
    return apply_bands(rules, chosen), chosen.as_json()


def _summary(samples: Samples) -> dict[str, Any]:
    facts = samples.manifest.facts
    keep = ("skipped", "rules_asked", "rules_got", "aspects_skipped", "contexts", "mixture")
    return {
        "samples": len(samples),
        "anchors": _different(samples.anchors),
        "positives": len(samples.positives.rows),
        "negatives": len(samples.negatives.rows),
        **{name: facts[name] for name in keep if name in facts},
    }


def _different(rows: NDArray[np.int32]) -> int:
    import numpy as np

    return len(np.unique(rows))


def _text(folder: Path, samples: Samples, bands: dict[str, Any]) -> str:
    summary = _summary(samples)
    lines = [
        f"{folder}: samples",
        table([(name, summary[name]) for name in ("samples", "anchors", "positives", "negatives")]),
    ]
    asked, got = summary["rules_asked"], summary["rules_got"]
    rules: list[tuple[str, object]] = [(f"  {name}", f"{got.get(name, 0):,} of {n:,}") for name, n in asked.items()]
    lines.append(f"chosen by each rule, of what was asked:\n{table(rules)}")
    if summary["skipped"]:
        reasons: list[tuple[str, object]] = [(f"  {reason}", n) for reason, n in summary["skipped"].items()]
        lines.append(f"papers that are no anchor:\n{table(reasons)}")
    if any(summary.get("aspects_skipped", {}).values()):
        told = [
            (f"  {aspect}: {reason}", n)
            for aspect, skipped in summary["aspects_skipped"].items()
            for reason, n in skipped.items()
        ]
        lines.append(f"anchors without a sample in one aspect:\n{table(told)}")
    for name, mixed in summary.get("mixture", {}).items():
        lines.append(f"task {name}: {mixed['kept']:,} of {mixed['mined']:,} samples are in the mixture")
    for name, contexts in summary.get("contexts", {}).items():
        rejected: list[tuple[str, object]] = [(f"  {reason}", n) for reason, n in contexts["contexts rejected"].items()]
        lines.append(f"{name}: {contexts['contexts kept']:,} citing sentences used, not used:\n{table(rejected)}")
    for aspect, chosen in bands.get("aspects", {"": bands} if bands else {}).items():
        lines.append(f"bands chosen{f' in {aspect}' if aspect else ''}: {chosen['why']}")
    return "\n".join(lines)
