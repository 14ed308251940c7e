"""Gathering what rules need: the graph with its node vectors, intents, tables of pairs, named vectors, anchors.

    given = GivenIntents("intents/")
    make_graph_for(corpus, folder, recipe.table("graph"), with_vectors=True, intents=intents_apart(given, corpus, rules))
    inputs = graph_inputs(folder, recipe.table("graph"), with_vectors=True, apart=rules.aspect_graphs)
    inputs = with_intents(inputs, corpus, given)
    check_intents(inputs, rules, corpus)
    inputs = dataclasses.replace(inputs, tables=read_tables({"coviews": Path("pairs.tsv")}, corpus))

`citeweave mine` and `citeweave run` both gather here. Does not mine: `mine.py` does.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.manifest import read_manifest
from citeweave.columns import BLOCK
from citeweave.corpus.corpus import Corpus
from citeweave.errors import UserError
from citeweave.graph.citations import KIND, VERSION, CitationGraph, build_graph
from citeweave.graph.making import GraphIntents, check_made_for, graph_options, make_graph, vectors_folder
from citeweave.graph.signals import SIGNALS
from citeweave.mining.aspect_names import MISCELLANEOUS, NODES, aspect_vectors, intent_bits, is_relation
from citeweave.mining.given_intents import GivenIntents
from citeweave.mining.mine import Inputs
from citeweave.mining.rules import MiningRules
from citeweave.mining.tables import Table, read_table
from citeweave.opening import Source
from citeweave.progress import QUIET, Reporter
from citeweave.similarity.vectors import Vectors
from citeweave.tally import Count, Tally

_CORPUS = GivenIntents()
_WITHOUT = "recipes that need none still run: specter_cl, scincl, sciaspect_relations"


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
    intents: GraphIntents | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> CitationGraph:
    """The graph, with node vectors where they are asked for; `table` is the recipe's [graph], `making` seed and device.

    Vectors of single intents' citations are made with the others: `intents` says of which.
    """
    if not with_vectors:
        return build_graph(corpus, folder, overwrite=overwrite)
    options = graph_options(table, **(making or {}))
    return make_graph(corpus, folder, options, intents=intents, overwrite=overwrite, reporter=reporter)


def intents_apart(given: GivenIntents, corpus: Corpus, aspects: Sequence[str]) -> GraphIntents | None:
    """What a graph needs for vectors of these aspects' citations; None where there are none of them.

    `MiningRules.aspect_graphs` says which aspects the rules need.
    """
    if not aspects:
        return None
    bits = {aspect: intent_bits(aspect, "mining.aspects") for aspect in aspects}
    return GraphIntents(given.source, lambda graph: given.put(graph, corpus), bits)


def graph_inputs(folder: Path, table: Mapping[str, Any], *, with_vectors: bool, apart: Sequence[str] = ()) -> Inputs:
    """A graph's folder as inputs, with the vectors of single aspects' citations; one that does not fit is refused."""
    opened = CitationGraph.open(folder)
    if not with_vectors:
        return Inputs(graph=opened)
    if not vectors_folder(folder).is_dir():
        raise UserError(f"{folder} has no node vectors, which the recipe needs; make it again with --method fastrp")
    check_made_for(folder, graph_options(table))
    vectors = {NODES: Vectors.open(vectors_folder(folder))}
    for aspect in apart:
        _check_apart(folder, aspect)
        vectors[aspect_vectors(aspect)] = Vectors.open(vectors_folder(folder, aspect))
    return Inputs(graph=opened, vectors=vectors)


def _check_apart(folder: Path, aspect: str) -> None:
    if vectors_folder(folder, aspect).is_dir():
        return
    known = read_manifest(folder, KIND, VERSION).facts.get("apart", {})
    if aspect in known:
        raise UserError(
            f"{folder}: no citation is of aspect {aspect!r}, so its graph has no node vectors; leave it out with --set "
            f"'mining.aspects=[...]', or take other intents with --intents"
        )
    raise UserError(
        f"{folder} has no node vectors of the citations of aspect {aspect!r}, which the recipe needs; make it again with "
        "--per-intent"
    )


def with_intents(inputs: Inputs, corpus: Corpus, given: GivenIntents = _CORPUS) -> Inputs:
    """The graph with the given intents on its citations."""
    if inputs.graph is None:
        return inputs
    return dataclasses.replace(inputs, graph=given.put(inputs.graph, corpus))


def check_intents(inputs: Inputs, rules: MiningRules, corpus: Corpus) -> None:
    """Refuse rules that ask for intents that no citation has, and say what can be done."""
    if not rules.needs_intents or inputs.graph is None:
        return
    if not inputs.graph.intents.any():
        raise UserError(
            f"the recipe asks for citation intents, and the citations of {corpus.folder} have none; {_what_to_do(corpus)}"
        )
    for each in [inner for _, _, inner in rules.tasks] or [rules]:
        _check_aspects(each, inputs.graph, corpus)


def _what_to_do(corpus: Corpus) -> str:
    if not len(corpus.contexts):
        return f"it has no citing sentences to find them in: import a source that gives some, or intents; {_WITHOUT}"
    return (
        f"find them with `citeweave annotate {corpus.folder} -o intents/` and give --intents intents/, or read them off the "
        "headings of citing sentences with --intents sections"
    )


def _check_aspects(rules: MiningRules, graph: CitationGraph, corpus: Corpus) -> None:
    """Aspects need citations: each where anchors must have all of them, two at least where one is set against others."""
    aspects = [aspect for aspect in rules.aspects if aspect != MISCELLANEOUS and not is_relation(aspect)]
    counts = {name: int((graph.intents & intent_bits(name, "mining.aspects") > 0).sum()) for name in aspects}
    lacking = [name for name, number in counts.items() if not number]
    compared = any(rule.intent == "other" for rule in rules.rules)
    if not lacking or not (rules.every_aspect or (compared and len(lacking) + 1 >= len(aspects))):
        return
    found = ", ".join(f"{name} {number:,}" for name, number in counts.items())
    left = [name for name in aspects if name not in lacking]
    step = f"leave it out with --set 'mining.aspects={json.dumps(left)}'"
    if len(left) < 2:
        step = f"a recipe that sets one intent against another needs two; {_WITHOUT}"
    raise UserError(f"the citations of {corpus.folder} are of intents {found}, none is of {lacking[0]}; {step}")


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


def read_rows(path: Path, corpus: Corpus, option: str, reporter: Reporter = QUIET) -> NDArray[np.int64]:
    """Rows of the ids in a file, one a line, plain or compressed, ascending; `option` is how it was given."""
    if not path.is_file():
        raise UserError(f"{option} {path} does not exist; give a file with one id a line")
    found, number = [np.zeros(0, np.int64)], 0
    lines = Source(path).lines(Tally({"ids": Count()}), "ids")
    while ids := [line.decode("utf-8", "replace").strip() for line in islice(lines, BLOCK)]:
        number += len(ids)
        found.append(corpus.rows(ids).astype(np.int64))
    rows = np.concatenate(found)
    if not (rows >= 0).any():
        raise UserError(f"{option} {path}: none of its {number:,} ids is in {corpus.folder}; one id a line")
    if (rows < 0).any():
        reporter.say(f"{path}: {int((rows < 0).sum()):,} of {number:,} ids are not in the corpus")
    return np.unique(rows[rows >= 0])
