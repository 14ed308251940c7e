"""A small synthetic literature with its graph and vectors of its nodes, and what several tests of mining do with samples."""

import json
from dataclasses import replace

import numpy as np
import pytest

from citeweave import synthesize
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.options import SyntheticOptions
from citeweave.graph.citations import build_graph
from citeweave.graph.intent_overlay import IntentSource
from citeweave.mining import mine as mining
from citeweave.mining.inputs import MiningInputs, build_mining_graph, graph_inputs, graph_intents
from citeweave.mining.mine import mine_samples
from citeweave.mining.options import MiningOptions
from citeweave.mining.rules import parse_rules
from citeweave.mining.samples import block_from_lists, new_samples
from citeweave.mining.tables import build_table
from citeweave.pipeline.recipe import load_recipe
from citeweave.vectors.vectors import new_vectors

from ..conftest import refused as refused


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("mining") / "corpus", SyntheticOptions(papers=600, references=12))


@pytest.fixture(scope="session")
def graph(corpus, tmp_path_factory):
    return build_graph(corpus, tmp_path_factory.mktemp("mining-graph") / "graph")


@pytest.fixture(scope="session")
def vectors(corpus, graph, tmp_path_factory):
    """Two rounds of averaging random vectors over neighbors; papers without citations stay zero."""
    dense = np.zeros((len(corpus), len(corpus)), np.float32)
    dense[graph.sources(), graph.cited.targets] = 1
    dense += dense.T
    walk = dense / np.maximum(dense.sum(axis=1, keepdims=True), 1)
    start = np.random.default_rng(0).standard_normal((len(corpus), 24)).astype(np.float32)
    matrix = (walk @ start + walk @ (walk @ start)).astype(np.float32)
    matrix[5] = 0
    # another order than the corpus's, so that rows of the two cannot be confused unnoticed
    order = np.random.default_rng(1).permutation(len(corpus))
    with new_vectors(tmp_path_factory.mktemp("mining-vectors") / "vectors", model="nodes", dtype="float32") as writer:
        writer.append(corpus.ids.take(order), matrix[order])
        return writer.finish()


@pytest.fixture(scope="session")
def inputs(graph, vectors):
    """All that a shipped recipe may need."""
    random = np.random.default_rng(2)
    pairs = random.integers(0, 600, (4000, 2))
    table = build_table(pairs[:, 0], pairs[:, 1], random.integers(1, 6, 4000).astype(float), papers=600)
    named = dict.fromkeys(("graph", "graph-background", "graph-method", "graph-result"), vectors)
    return MiningInputs(graph=graph, vectors=named, tables=dict.fromkeys(("coviews", "coreads", "labels"), table))


@pytest.fixture
def specter_training(shared, tmp_path):
    """A real folder, its data and its papers; the sample's metadata has the queries only: the others get titles here."""
    folder = shared / "samples" / "specter" / "training"
    data = json.loads((folder / "data.json").read_bytes())
    others = sorted({other for entries in data.values() for other in entries})
    titles = write_jsonl(tmp_path / "titles.jsonl", [{"id": other, "title": f"Paper {other}"} for other in others])
    return folder, data, import_papers([folder / "metadata.json", titles], tmp_path / "real").corpus


@pytest.fixture
def stop_mining(monkeypatch):
    """After so many blocks mining is interrupted; returns the sizes of the blocks that were mined, also of later runs."""
    real, sizes = mining.mine_block, []

    def stop(after, error=KeyboardInterrupt):
        def counting(run, units, pairs):
            if len(sizes) == after:
                raise error
            sizes.append(len(units))
            return real(run, units, pairs)

        monkeypatch.setattr(mining, "mine_block", counting)
        return sizes

    return stop


def table_of(rules, *overrides):
    """The mining table of a recipe, or a table itself."""
    return load_recipe(rules, overrides).table("mining") if isinstance(rules, str) else rules


@pytest.fixture
def mine(corpus, inputs, tmp_path):
    """Samples by a table of rules, or by the rules of a recipe with overrides."""

    def mine(rules, *overrides, corpus=corpus, inputs=inputs, name="samples", executor=None, **options):
        table = parse_rules(table_of(rules, *overrides))
        return mine_samples(corpus, table, tmp_path / name, inputs, MiningOptions(**options), executor=executor)

    return mine


@pytest.fixture
def intent_inputs(corpus, tmp_path):
    """A graph with vectors of every intent's citations, as the command makes it."""

    def make(graph, name="graph"):
        recipe = load_recipe("sciaspect_bands", ["graph.dimension=32"])
        intents = graph_intents(IntentSource(), corpus, parse_rules(recipe.table("mining")).aspect_graphs)
        intents, table = replace(intents, annotate=lambda _: graph), recipe.table("graph")
        build_mining_graph(corpus, tmp_path / name, table, with_vectors=True, intents=intents)
        return graph_inputs(tmp_path / name, table, with_vectors=True, aspects=tuple(intents.embedded))

    return make


def pairs_of(samples, rule, aspect=None):
    """(anchor, picked) of one rule, in one aspect or in all."""
    found = set()
    for side in (samples.positives, samples.negatives):
        owner = side.owners()
        chosen = side.rules == samples.names.rules.index(rule)
        if aspect is not None:
            chosen &= samples.aspects[owner] == samples.names.aspects.index(aspect)
        found |= set(zip(samples.anchors[owner[chosen]].tolist(), side.rows[chosen].tolist(), strict=True))
    return found


def negatives_of(samples, number, *rules):
    """The negatives of one sample that one of these rules picked."""
    named = [samples.names.rules.index(rule) for rule in rules]
    span = slice(samples.negatives.offsets[number], samples.negatives.offsets[number + 1])
    return samples.negatives.rows[span][np.isin(samples.negatives.rules[span], named)].tolist()


def with_text(corpus):
    return np.flatnonzero((corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0))


def unit_vectors(corpus, vectors):
    matrix = vectors.take(corpus.ids.take(np.arange(len(corpus)))).astype(np.float64)
    return matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-30)


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def papers_corpus(folder, papers, **options):
    return import_papers(write_jsonl(folder / "papers.jsonl", papers), folder / "corpus", **options).corpus


def write_samples(folder, names, corpus, *blocks, facts=None):
    """Samples of blocks, or of lists: anchors, positives, negatives."""
    with new_samples(folder, names, corpus=corpus, facts=facts or {}, overwrite=True) as writer:
        for block in blocks:
            writer.append(block_from_lists(*block) if isinstance(block, tuple) else block)
        return writer.finish()
