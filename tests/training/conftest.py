"""A small literature, its samples and a small start model, made once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from citeweave.corpus.corpus import Corpus
from citeweave.graph.citations import CitationGraph
from citeweave.mining.samples import Samples


@dataclass(frozen=True)
class Literature:
    """What training tests read; none of them changes it."""

    corpus: Corpus
    graph: CitationGraph
    graph_folder: Path
    samples: Samples
    model: Path


@pytest.fixture(scope="session")
def literature(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Literature:
    from citeweave.corpus.synthetic.literature import Synthetic
    from citeweave.corpus.synthetic.writing import synthesize
    from citeweave.graph.citations import build_graph
    from citeweave.mining.mine import Inputs, mine_samples
    from citeweave.mining.rule_reading import parse_rules
    from citeweave.recipe import load_recipe

    folder = tmp_path_factory.mktemp("literature")
    corpus = synthesize(folder / "corpus", Synthetic(papers=150), workers=1)
    graph = build_graph(corpus, folder / "graph")
    rules = parse_rules(load_recipe("specter", ["mining.anchors=30"]).table("mining"))
    samples = mine_samples(corpus, rules, folder / "samples", Inputs(graph=graph))
    return Literature(corpus, graph, folder / "graph", samples, bert)
