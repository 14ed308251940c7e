"""A small literature, its samples and a small start model, made once."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from citeweave.corpus.corpus import Corpus
from citeweave.graph.citations import CitationGraph
from citeweave.mining.samples import Samples

from ..conftest import VOCABULARY


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
    from citeweave.corpus.synthetic.literature import SyntheticOptions
    from citeweave.corpus.synthetic.synthesize import synthesize
    from citeweave.graph.citations import build_graph
    from citeweave.mining.inputs import parse_rules
    from citeweave.mining.mine import MiningInputs, mine_samples
    from citeweave.pipeline.recipe import load_recipe

    folder = tmp_path_factory.mktemp("literature")
    corpus = synthesize(folder / "corpus", SyntheticOptions(papers=150), workers=1)
    graph = build_graph(corpus, folder / "graph")
    rules = parse_rules(load_recipe("specter", ["mining.anchors=30"]).table("mining"))
    samples = mine_samples(corpus, rules, folder / "samples", MiningInputs(graph=graph))
    return Literature(corpus, graph, folder / "graph", samples, bert)


@pytest.fixture(scope="session")
def aspects(literature: Literature, tmp_path_factory: pytest.TempPathFactory) -> Literature:
    """The small literature with samples of three aspects, local and global negatives."""
    from citeweave.mining.inputs import parse_rules
    from citeweave.mining.mine import MiningInputs, mine_samples
    from citeweave.pipeline.recipe import load_recipe

    rules = parse_rules(load_recipe("sciaspect_hybrid", ["mining.every_aspect=false"]).table("mining"))
    folder = tmp_path_factory.mktemp("aspects") / "samples"
    samples = mine_samples(literature.corpus, rules, folder, MiningInputs(graph=literature.graph))
    return dataclasses.replace(literature, samples=samples)


TOPICS = ("cell grows a paper", "models learn from data", "graphs of citations and", "we find how that")


def _write_papers(folder: Path, number: int) -> list[Path]:
    """Papers of few words that the small model knows, each of a topic, and sentences that cite two of one topic."""
    draw = np.random.default_rng(0)

    def words(topic: int, count: int) -> str:
        return " ".join(draw.choice(TOPICS[topic].split() * 2 + VOCABULARY.split()[:-2], count))

    papers = [
        {
            "id": f"p:{row}",
            "title": words(row % 4, 3).capitalize(),
            "abstract": " ".join(f"{words(row % 4, 5).capitalize()}." for _ in range(draw.integers(1, 10))),
        }
        for row in range(number)
    ]
    contexts = []
    for _ in range(2 * number):
        topic = int(draw.integers(4))
        cited = draw.choice(np.arange(topic, number, 4), 2, replace=False).tolist()
        text = f"{words(topic, 6).capitalize()} [1, 2]."
        contexts.append({"citing": f"p:{draw.integers(number)}", "text": text, "cited": [f"p:{row}" for row in cited]})
    paths = [folder / "papers.jsonl", folder / "contexts.jsonl"]
    for path, lines in zip(paths, (papers, contexts), strict=True):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return paths


@pytest.fixture(scope="session")
def paired(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Literature:
    """Papers whose sentences a small model can read, with co-cited pairs for samples: no negatives, aligned sentences."""
    from citeweave.corpus.ingest import import_papers
    from citeweave.encoders.encoder import load_encoder
    from citeweave.graph.citations import build_graph
    from citeweave.mining.align import align_samples
    from citeweave.mining.inputs import parse_rules
    from citeweave.mining.mine import MiningInputs, mine_samples
    from citeweave.pipeline.recipe import load_recipe

    folder = tmp_path_factory.mktemp("pairs")
    corpus = import_papers(_write_papers(folder, 80), folder / "corpus").corpus
    graph = build_graph(corpus, folder / "graph")
    rules = parse_rules(load_recipe("aspire_ot").table("mining"))
    mined = mine_samples(corpus, rules, folder / "samples", MiningInputs(graph=graph))
    samples = align_samples(corpus, mined, load_encoder(bert, device="cpu"), folder / "aligned")
    return Literature(corpus, graph, folder / "graph", samples, bert)
