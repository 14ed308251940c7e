"""Inputs of mining: rules read from a `[mining]` table, citation intents, graph and vectors, tables of pairs.

>>> rules = parse_rules({"positives": {"source": "cited", "count": 5}})
>>> rules.positives[0].name, rules.positives[0].source
('positives', 'cited')
>>> parse_rules({"positives": {"source": "cited", "coutn": 5}})  # doctest: +ELLIPSIS
Traceback (most recent call last):
citeweave.core.errors.UserError: mining.positives: key is 'coutn'; it must be one of above, ... Did you mean 'count'?

Citation intents come from the corpus itself, from headings of citing sentences, or from the folder of an overlay:

    source = IntentSource("intents/")             made by `citeweave annotate corpus/ -o intents/`
    graph = source.annotate(graph, corpus)        the graph with these intents on its edges
    IntentSource("corpus"), IntentSource("sections")

An overlay belongs to one corpus. For a corpus made from that one (by removing papers or references) its citations are
found again by the ids of the two papers. `citeweave mine` and `citeweave run` prepare their inputs here:

    intents = graph_intents(source, corpus, rules.aspect_graphs)
    build_mining_graph(corpus, folder, recipe.table("graph"), with_vectors=True, intents=intents)
    inputs = graph_inputs(folder, recipe.table("graph"), with_vectors=True, aspects=rules.aspect_graphs)
    inputs = annotate_inputs(inputs, corpus, source)
    check_intents(inputs, rules, corpus)
    inputs = dataclasses.replace(inputs, tables=read_tables({"coviews": Path("pairs.tsv")}, corpus))

Does not mine: `mine.py` does.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import read_manifest
from citeweave.core.columns import BLOCK
from citeweave.core.errors import UserError
from citeweave.core.inputs import Source
from citeweave.core.options import Range, convert, parse_table
from citeweave.core.progress import QUIET, Count, Reporter, Tally
from citeweave.corpus.corpus import Corpus
from citeweave.graph.build import GraphIntents, check_graph_options, make_graph, node_vectors_folder
from citeweave.graph.citations import KIND, VERSION, CitationGraph, build_graph
from citeweave.graph.intent_overlay import IntentSource
from citeweave.graph.options import graph_options
from citeweave.graph.signals import SIGNALS
from citeweave.mining.mine import MiningInputs
from citeweave.mining.rules import (
    MISCELLANEOUS,
    NODES,
    MiningRules,
    Rule,
    aspect_vectors,
    intent_bits,
    is_relation,
)
from citeweave.mining.tables import Table, read_table
from citeweave.vectors.vectors import Vectors


def parse_rules(table: Mapping[str, Any]) -> MiningRules:
    """Read the rules among mining's inputs from a `[mining]` table; refuse an unknown key with the nearest known one."""
    own = {key: value for key, value in table.items() if key not in ("positives", "negatives", "tasks")}
    sides = {side: tuple(_parse_side(side, table.get(side, {}))) for side in ("positives", "negatives")}
    tasks = convert(table.get("tasks", {}), Mapping[str, Mapping[str, Any]], "mining.tasks")
    if tasks and any(sides.values()):
        raise UserError("mining has both tasks and rules of its own; give every rule to a task")
    if tasks and own:
        raise UserError(f"mining has {', '.join(own)} beside tasks; give them to every task, as mining.tasks.NAME.KEY")
    parsed = tuple(_parse_task(name, task) for name, task in tasks.items())
    return parse_table(MiningRules, own, "mining", **sides, tasks=parsed)


def _parse_task(name: str, table: Mapping[str, Any]) -> tuple[str, float, MiningRules]:
    """Read one task of a mixture: name, weight and rules."""
    weight = convert(table.get("weight", 1.0), Annotated[float, Range(above=0)], f"mining.tasks.{name}.weight")
    try:
        return name, weight, parse_rules({key: value for key, value in table.items() if key != "weight"})
    except UserError as error:
        raise UserError(f"mining.tasks.{name}: {error}") from None


def _parse_side(side: str, table: Any) -> list[Rule]:
    """Read the rules for positives or negatives: one rule, or a table of named rules."""
    if not isinstance(table, Mapping):
        raise UserError(f"mining.{side} is {table!r}; it must be a table with source and count, or one of named rules")
    if "source" in table:
        return [parse_table(Rule, table, f"mining.{side}", name=side)]
    return [parse_table(Rule, rule, f"mining.{side}.{name}", name=name) for name, rule in table.items()]


# Graph, vectors, tables and row lists.

_CORPUS_INTENTS = IntentSource()
_RECIPES_WITHOUT = "recipes that need none still run: specter_cl, scincl, sciaspect_relations"


def needs_graph(rules: MiningRules) -> bool:
    """Whether some mining rule needs the citation graph, or node vectors made from it."""
    return rules.needs_vectors(NODES) or bool(rules.sources & set(SIGNALS))


def build_mining_graph(
    corpus: Corpus,
    folder: Path,
    table: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    *,
    with_vectors: bool,
    intents: GraphIntents | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> CitationGraph:
    """Build the graph among mining's inputs as a recipe's rules need it, with node vectors if requested.

    `table` is the recipe's [graph], `settings` are seed and device. `intents` says which intents' citations get node
    vectors of their own.
    """
    if not with_vectors:
        return build_graph(corpus, folder, overwrite=overwrite)
    options = graph_options(table, **(settings or {}))
    return make_graph(corpus, folder, options, intents=intents, overwrite=overwrite, reporter=reporter)


def graph_intents(source: IntentSource, corpus: Corpus, aspects: Sequence[str]) -> GraphIntents | None:
    """Return the intents that mining's input graph needs for node vectors of these aspects; None without aspects.

    `MiningRules.aspect_graphs` says which aspects the rules need.
    """
    if not aspects:
        return None
    bits = {aspect: intent_bits(aspect, "mining.aspects") for aspect in aspects}
    return GraphIntents(source.source, lambda graph: source.annotate(graph, corpus), bits)


def graph_inputs(
    folder: Path, table: Mapping[str, Any], *, with_vectors: bool, aspects: Sequence[str] = ()
) -> MiningInputs:
    """Open a graph folder as mining inputs, with node vectors of single aspects; refuse one that does not fit."""
    opened = CitationGraph.open(folder)
    if not with_vectors:
        return MiningInputs(graph=opened)
    if not node_vectors_folder(folder).is_dir():
        raise UserError(f"{folder} has no node vectors, which the recipe needs; build it again with --method fastrp")
    check_graph_options(folder, graph_options(table))
    vectors = {NODES: Vectors.open(node_vectors_folder(folder))}
    for aspect in aspects:
        _check_aspect_vectors(folder, aspect)
        vectors[aspect_vectors(aspect)] = Vectors.open(node_vectors_folder(folder, aspect))
    return MiningInputs(graph=opened, vectors=vectors)


def _check_aspect_vectors(folder: Path, aspect: str) -> None:
    """Refuse a graph folder without node vectors of this aspect's citations."""
    if node_vectors_folder(folder, aspect).is_dir():
        return
    known = read_manifest(folder, KIND, VERSION).facts.get("apart", {})
    if aspect in known:
        raise UserError(
            f"{folder}: no citation is of aspect {aspect!r}, so its graph has no node vectors; leave it out with --set "
            f"'mining.aspects=[...]', or use other intents with --intents"
        )
    raise UserError(
        f"{folder} has no node vectors of the citations of aspect {aspect!r}, which the recipe needs; build it again with "
        "--per-intent"
    )


def annotate_inputs(inputs: MiningInputs, corpus: Corpus, source: IntentSource = _CORPUS_INTENTS) -> MiningInputs:
    """Return the mining inputs with intents from this source on the graph's citations."""
    if inputs.graph is None:
        return inputs
    return dataclasses.replace(inputs, graph=source.annotate(inputs.graph, corpus))


def check_intents(inputs: MiningInputs, rules: MiningRules, corpus: Corpus) -> None:
    """Refuse mining inputs in which no citation has the intents that rules need, and say what to do."""
    if not rules.needs_intents or inputs.graph is None:
        return
    if not inputs.graph.intents.any():
        raise UserError(
            f"the recipe asks for citation intents, and the citations of {corpus.folder} have none; {_how_to_get_intents(corpus)}"
        )
    for each in [inner for _, _, inner in rules.tasks] or [rules]:
        _check_aspects(each, inputs.graph, corpus)


def _how_to_get_intents(corpus: Corpus) -> str:
    if not len(corpus.contexts):
        return f"it has no citing sentences to find them in: import a source that gives some, or intents; {_RECIPES_WITHOUT}"
    return (
        f"find them with `citeweave annotate {corpus.folder} -o intents/` and give --intents intents/, or read them from the "
        "headings of citing sentences with --intents sections"
    )


def _check_aspects(rules: MiningRules, graph: CitationGraph, corpus: Corpus) -> None:
    """Refuse aspects without citations: each aspect if anchors must have all, at least two if they are compared."""
    aspects = [aspect for aspect in rules.aspects if aspect != MISCELLANEOUS and not is_relation(aspect)]
    counts = {name: int((graph.intents & intent_bits(name, "mining.aspects") > 0).sum()) for name in aspects}
    missing = [name for name, number in counts.items() if not number]
    compared = any(rule.intent == "other" for rule in rules.rules)
    if not missing or not (rules.every_aspect or (compared and len(missing) + 1 >= len(aspects))):
        return
    present = ", ".join(f"{name} {number:,}" for name, number in counts.items())
    left = [name for name in aspects if name not in missing]
    step = f"leave it out with --set 'mining.aspects={json.dumps(left)}'"
    if len(left) < 2:
        step = f"a recipe that sets one intent against another needs two; {_RECIPES_WITHOUT}"
    raise UserError(f"the citations of {corpus.folder} have the intents {present}, none has {missing[0]}; {step}")


def read_tables(
    paths: Mapping[str, Path], corpus: Corpus, *, symmetric: bool = False, reporter: Reporter = QUIET
) -> dict[str, Table]:
    """Read the tables of pairs among mining's inputs by the names that rules use, and report a line on each."""
    tables = {name: read_table(path, corpus, symmetric=symmetric) for name, path in paths.items()}
    for name, table in tables.items():
        count = table.tally.counts["pairs"]
        reasons = "".join(f"; {number:,} not: {reason}" for reason, number in count.rejected.items())
        reporter.say(f"table {name}: {count.kept:,} of {count.read:,} pairs{reasons}")
    return tables


def read_rows(path: Path, corpus: Corpus, option: str, reporter: Reporter = QUIET) -> NDArray[np.int64]:
    """Read a mining input of paper ids, one per line, as ascending corpus rows; `option` names it in messages."""
    if not path.is_file():
        raise UserError(f"{option} {path} does not exist; give a file with one id per line")
    parts, number = [np.zeros(0, np.int64)], 0
    lines = Source(path).lines(Tally({"ids": Count()}), "ids")
    while ids := [line.decode("utf-8", "replace").strip() for line in islice(lines, BLOCK)]:
        number += len(ids)
        parts.append(corpus.rows(ids).astype(np.int64))
    rows = np.concatenate(parts)
    if not (rows >= 0).any():
        raise UserError(f"{option} {path}: none of its {number:,} ids is in {corpus.folder}; give one id per line")
    if (rows < 0).any():
        reporter.say(f"{path}: {int((rows < 0).sum()):,} of {number:,} ids are not in the corpus")
    return np.unique(rows[rows >= 0])
