"""citeweave graph"""

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
    Recipe,
    Seed,
    Set,
    Workers,
    parse_size,
    print_json,
    reporter_of,
    table,
)
from citeweave.errors import UserError

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.citations import CitationGraph
    from citeweave.graph.making import GraphIntents


_Corpus = Annotated[Path, typer.Argument(help="Folder of a corpus.", show_default=False)]
_Method = Annotated[
    str | None,
    typer.Option("--method", help="fastrp (default), prone, edges, or none: no vectors.", show_default=False),
]
_Dim = Annotated[int | None, typer.Option("--dim", help="Dimension of the node vectors.", show_default=False)]
_Signal = Annotated[
    str | None,
    typer.Option(
        "--signal",
        help="What is embedded: citations, or signals with weights such as connected:1,cocited:0.5.",
        show_default=False,
    ),
]
_Direction = Annotated[
    str | None, typer.Option("--direction", help="both (default), cited or citing.", show_default=False)
]
_Weighted = Annotated[bool, typer.Option("--weighted", help="Citations count by their strength.")]
_HeldOut = Annotated[
    float, typer.Option("--held-out", help="Share of citations to hold out and find again, such as 0.01.")
]
_Intents = Annotated[
    str,
    typer.Option(
        "--intents", help="corpus: those it has; sections: also read off headings; or a folder that annotate made."
    ),
]
_PerIntent = Annotated[
    bool,
    typer.Option("--per-intent", help="Also node vectors of background, method and result citations each alone."),
]
_Memory = Annotated[
    str, typer.Option("--memory", help="Working memory for sorting citations and for node vectors, such as 1GB.")
]
_Dtype = Annotated[
    str | None,
    typer.Option("--dtype", help="Numbers of the vectors: float32 (default), or float16.", show_default=False),
]


def graph(
    corpus: _Corpus,
    output: Output,
    method: _Method = None,
    dim: _Dim = None,
    dtype: _Dtype = None,
    signal: _Signal = None,
    direction: _Direction = None,
    weighted: _Weighted = False,
    held_out: _HeldOut = 0.0,
    intents: _Intents = "corpus",
    per_intent: _PerIntent = False,
    recipe: Recipe = None,
    set_: Set = [],  # noqa: B006
    seed: Seed = 0,
    memory: _Memory = "1GB",
    workers: Workers = 0,
    device: Device = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Build the citation graph of a corpus and vectors of its nodes; with --held-out also judge them."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.evaluation.held_out import held_out_judge
    from citeweave.graph.citations import build_graph
    from citeweave.graph.making import graph_options, make_graph
    from citeweave.graph.node_vectors import METHODS
    from citeweave.recipe import load_recipe

    opened = Corpus.open(corpus)
    if not 0 <= held_out < 1:
        raise UserError(
            f"--held-out is {held_out}; it must be a share of the citations from 0 to under 1, such as 0.01"
        )
    if method == "none" and held_out:
        raise UserError("--held-out judges node vectors, and --method none makes none; leave out one of them")
    if method == "none" and (per_intent or intents != "corpus"):
        raise UserError(
            "--method none makes no node vectors; give --intents to `citeweave mine`, or leave out one of them"
        )
    if method == "none":
        built = build_graph(opened, output, memory=parse_size(memory, "--memory"), overwrite=overwrite)
    else:
        given = {
            "method": method,
            "dimension": dim,
            "dtype": dtype,
            "signal": signal,
            "direction": direction,
            "weighted": weighted or None,
        }
        values = load_recipe(recipe, set_).table("graph") if recipe else load_recipe("scincl", set_).table("graph")
        values |= {key: value for key, value in given.items() if value is not None}
        values |= {"seed": seed, "memory": parse_size(memory, "--memory"), "workers": workers, "device": device}
        options = graph_options(values)
        judge = held_out_judge(held_out, seed=seed, score=METHODS[options.vectors.method].score) if held_out else None
        judged = f"{held_out:g} held out" if held_out else ""
        reporter = reporter_of(quiet or json)
        built = make_graph(
            opened,
            output,
            options,
            judge=judge,
            judged=judged,
            intents=_given(intents, opened, per_intent=per_intent),
            overwrite=overwrite,
            reporter=reporter,
        )
    facts = _facts(output, built)
    if json:
        print_json({**facts, "output": str(output)})
    elif not quiet:
        print(_text(output, facts))


def _given(intents: str, corpus: Corpus, *, per_intent: bool) -> GraphIntents | None:
    """Intents for the graph's edges; None where it keeps those of the corpus and needs no more."""
    from citeweave.graph.intent_overlay import LABELS
    from citeweave.graph.making import GraphIntents
    from citeweave.mining.aspect_names import intent_bits
    from citeweave.mining.given_intents import GivenIntents

    given = GivenIntents(intents)
    if not per_intent and given.where == "corpus":
        return None
    apart = {name: intent_bits(name, "--per-intent") for name in LABELS} if per_intent else {}
    return GraphIntents(given.source, lambda graph: given.put(graph, corpus), apart)


def _facts(folder: Path, graph: CitationGraph) -> dict[str, Any]:
    from citeweave.artefacts.manifest import read_manifest
    from citeweave.graph.citations import KIND, VERSION

    facts = read_manifest(folder, KIND, VERSION).facts
    vectors = folder / "vectors"
    if vectors.is_dir():
        from citeweave.similarity.vectors import Vectors

        made = Vectors.open(vectors)
        facts = {**facts, "vectors": {"model": made.provenance.model, "dimension": made.provenance.dimension}}
    return facts


def _text(folder: Path, facts: dict[str, Any]) -> str:
    rows: list[tuple[str, object]] = [
        ("papers", facts["nodes"]),
        ("citations", facts["edges"]),
        ("  given twice", facts["duplicates"]),
        ("  of a paper to itself", facts["to_itself"]),
        ("  to papers outside", facts["dangling"]),
    ]
    if "isolated" in facts:
        rows += [("papers without a vector", facts["isolated"]), ("vectors", facts["vectors"]["model"])]
    for name, part in facts.get("apart", {}).items():
        rows.append((f"  {name}", f"{part['citations']:,} citations of {part['papers']:,} papers"))
    lines = [f"{folder}: the citation graph", table(rows)]
    links = facts.get("links")
    if links:
        lines.append(f"{links['edges']:,} citations were held out, and found again among random papers:")
        for kind in ("uniform", "degree"):
            s = links[kind]
            numbers = f"MRR {s['mrr']:.3f}  Hits@1 {s['hits_1']:.3f}  @10 {s['hits_10']:.3f}  @50 {s['hits_50']:.3f}"
            lines.append(f"  {kind:8} {numbers}  AUC {s['auc']:.3f}  mean rank {s['mean_rank']:.1f}")
    return "\n".join(lines)
