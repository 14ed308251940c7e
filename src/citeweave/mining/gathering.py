"""Gathering what rules need: the graph with its node vectors, intents, tables of pairs, named vectors, anchors.

    make_graph_for(corpus, rules, recipe.table("graph"), folder)
    inputs = graph_inputs(folder, rules, recipe.table("graph"))
    inputs = with_intents(inputs, corpus, headings=False)
    inputs = dataclasses.replace(inputs, tables=read_tables({"coviews": Path("pairs.tsv")}, corpus))

`citeweave mine` and `citeweave run` both gather here. Does not mine: `mine.py` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus
from citeweave.errors import UserError
from citeweave.graph.citations import CitationGraph, build_graph
from citeweave.graph.context_intents import intents_from_contexts
from citeweave.graph.making import check_made_for, graph_options, make_graph
from citeweave.graph.signals import SIGNALS
from citeweave.mining.mine import Inputs
from citeweave.mining.rules import MiningRules
from citeweave.mining.tables import Table, read_table
from citeweave.progress import QUIET, Reporter
from citeweave.similarity.vectors import Vectors

NODES = "graph"
"""The name of the node vectors in rules."""


def needs_graph(rules: MiningRules) -> bool:
    """Whether some rule draws by citations, or by vectors that are made of them."""
    return rules.needs_vectors(NODES) or bool(rules.sources & set(SIGNALS))


def make_graph_for(
    corpus: Corpus,
    folder: Path,
    table: Mapping[str, Any],
    making: Mapping[str, Any] | None = None,
    *,
    with_vectors: bool,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> CitationGraph:
    """The graph, with node vectors where they are asked for; `table` is the recipe's [graph], `making` seed and device."""
    if not with_vectors:
        return build_graph(corpus, folder, overwrite=overwrite)
    options = graph_options(table, **(making or {}))
    return make_graph(corpus, folder, options, overwrite=overwrite, reporter=reporter)


def graph_inputs(folder: Path, table: Mapping[str, Any], *, with_vectors: bool) -> Inputs:
    """A graph's folder as inputs; one that does not fit the recipe is refused."""
    opened = CitationGraph.open(folder)
    if not with_vectors:
        return Inputs(graph=opened)
    if not (folder / "vectors").is_dir():
        raise UserError(f"{folder} has no node vectors, which the recipe needs; make it again with --method fastrp")
    check_made_for(folder, graph_options(table))
    return Inputs(graph=opened, vectors={NODES: Vectors.open(folder / "vectors")})


def with_intents(inputs: Inputs, corpus: Corpus, *, headings: bool = False) -> Inputs:
    """The graph with what citing sentences tell of intents; `headings` also reads them off section headings."""
    if inputs.graph is None:
        return inputs
    told = intents_from_contexts(corpus, inputs.graph, headings=headings)
    return dataclasses.replace(inputs, graph=inputs.graph.with_intents(told))


def check_intents(inputs: Inputs, rules: MiningRules, corpus: Corpus) -> None:
    """Refuse rules that ask for intents where no citation has one."""
    if rules.needs_intents and inputs.graph is not None and not inputs.graph.intents.any():
        raise UserError(
            f"the recipe asks for citation intents, and the citations of {corpus.folder} have none; read them off the "
            "headings of citing sentences with --intents sections, or import a source that gives them"
        )


def read_tables(
    paths: Mapping[str, Path], corpus: Corpus, *, symmetric: bool = False, reporter: Reporter = QUIET
) -> dict[str, Table]:
    """Tables of pairs by the names that rules use, with a line on each."""
    found = {name: read_table(path, corpus, symmetric=symmetric) for name, path in paths.items()}
    for name, table in found.items():
        count = table.tally.counts["pairs"]
        reasons = "".join(f"; {number:,} not: {reason}" for reason, number in count.rejected.items())
        reporter.say(f"table {name}: {count.kept:,} of {count.read:,} pairs{reasons}")
    return found


def read_anchors(path: Path, corpus: Corpus, reporter: Reporter = QUIET) -> NDArray[np.int64]:
    """Rows of the ids in a file, one a line, ascending."""
    if not path.is_file():
        raise UserError(f"--anchors {path} does not exist; give a file with one id a line")
    ids = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    rows = corpus.rows(ids).astype(np.int64) if ids else np.zeros(0, np.int64)
    if not (rows >= 0).any():
        raise UserError(f"--anchors {path}: none of its {len(ids):,} ids is in {corpus.folder}; one id a line")
    if (rows < 0).any():
        reporter.say(f"{path}: {int((rows < 0).sum()):,} of {len(ids):,} ids are not in the corpus")
    return np.unique(rows[rows >= 0])
