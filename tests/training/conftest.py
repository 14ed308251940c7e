"""A small literature, its samples and a small start model, made once; how it is trained, and cut off."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.progress import QUIET
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.synthetic.synthesize import synthesize
from citeweave.encoders.encoder import load_encoder
from citeweave.graph.citations import CitationGraph, build_graph
from citeweave.mining.align import align_samples
from citeweave.mining.inputs import MiningInputs
from citeweave.mining.mine import mine_samples
from citeweave.mining.rules import parse_rules
from citeweave.mining.samples import Samples
from citeweave.pipeline.recipe import load_recipe
from citeweave.training.data import Batches, TrainingData
from citeweave.training.distributed import ProcessGroup
from citeweave.training.load_data import DataSources, load_training_data
from citeweave.training.options import EncoderOptions, TrainingOptions, TrainingPlan
from citeweave.training.train import EncoderRun, load_start_model, prepare_run, train_encoder

from ..conftest import VOCABULARY
from ..conftest import refused as refused

SMALL = {"batch": 8, "steps": 6, "learning_rate": 1e-3, "validation": 0.2, "check_every": 3, "checkpoint_every": 2}
GROUPS = {"unit": "groups"}
HYBRID = {
    "supcon": {"weight": 0.7, "negatives_by": "global"},
    "aspect_supcon": {"weight": 0.3, "negatives_by": "local"},
}


@dataclass(frozen=True)
class Literature:
    """What training tests read; none of them changes it."""

    corpus: Corpus
    graph: CitationGraph
    graph_folder: Path
    samples: Samples
    model: Path
    training: dict[str, Any] = field(default_factory=lambda: SMALL)
    encoder: dict[str, Any] = field(default_factory=dict)
    """Options of its training and of its encoder, unless a test has others."""

    def plan(self, *, encoder: dict[str, Any] | None = None, **training: Any) -> TrainingPlan:
        options = EncoderOptions(**{"init": str(self.model), **self.encoder, **(encoder or {})})
        return TrainingPlan(options, TrainingOptions(**{**self.training, **training}))

    def train(
        self, folder: Path, *, encoder: dict[str, Any] | None = None, device: str = "cpu",
        sources: DataSources | None = None, **training: Any,
    ) -> EncoderRun:  # fmt: skip
        plan, sources = self.plan(encoder=encoder, **training), sources or DataSources(graph=self.graph)
        return train_encoder(self.corpus, self.samples, folder, plan, sources=sources, device=device)

    def load(self, folder: Path, plan: TrainingPlan) -> tuple[Any, TrainingData]:
        """The start model and what the plan trains on; tokens are kept in the folder."""
        start, options = load_start_model(plan.encoder, "cpu"), (plan.encoder, plan.training)
        sources = DataSources(graph=self.graph)
        return start, load_training_data(self.corpus, self.samples, start.reader, *options, folder, sources)

    def first_step(self, folder: Path, plan: TrainingPlan) -> tuple[float, dict[str, np.ndarray]]:
        """Loss and gradients of the first batch."""
        start, data = self.load(folder, plan)
        run = prepare_run(start, data, plan, ProcessGroup(), QUIET)
        start.network.model.train()
        batch = Batches(data.groups, plan.training).at(0)
        assert data.sentences is None or int(data.tokens.lengths()[batch.papers].sum()) > 400
        loss = float(run.task.stepper.backward(batch, 0))
        return loss, {name: w.grad.numpy().copy() for name, w in run.weights.items() if w.grad is not None}


def log_of(folder: Path, name: str) -> list[Any]:
    """The values of this name in the log of a run."""
    lines = [json.loads(line) for line in (folder / "training/log.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def weights_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.safetensors")}


def mine(recipe: str, changes: list[str], corpus: Corpus, graph: CitationGraph, folder: Path) -> Samples:
    rules = parse_rules(load_recipe(recipe, changes).table("mining"))
    return mine_samples(corpus, rules, folder, MiningInputs(graph=graph))


@pytest.fixture(scope="session")
def literature(bert, tmp_path_factory) -> Literature:
    folder = tmp_path_factory.mktemp("literature")
    corpus = synthesize(folder / "corpus", SyntheticOptions(papers=150), workers=1)
    graph = build_graph(corpus, folder / "graph")
    samples = mine("specter", ["mining.anchors=30"], corpus, graph, folder / "samples")
    return Literature(corpus, graph, folder / "graph", samples, bert)


@pytest.fixture(scope="session")
def aspects(literature, tmp_path_factory) -> Literature:
    """The small literature with samples of three aspects, local and global negatives."""
    folder, changes = tmp_path_factory.mktemp("aspects") / "samples", ["mining.every_aspect=false"]
    samples = mine("sciaspect_hybrid", changes, literature.corpus, literature.graph, folder)
    training = {**SMALL, **GROUPS, "losses": HYBRID, "dropout": 0.0}
    return dataclasses.replace(literature, samples=samples, training=training, encoder={"heads": "linear"})


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
def paired(bert, tmp_path_factory) -> Literature:
    """Papers whose sentences a small model can read, with co-cited pairs for samples: no negatives, aligned sentences."""
    folder = tmp_path_factory.mktemp("pairs")
    corpus = import_papers(_write_papers(folder, 80), folder / "corpus").corpus
    graph = build_graph(corpus, folder / "graph")
    mined = mine("aspire_ot", [], corpus, graph, folder / "samples")
    samples = align_samples(corpus, mined, load_encoder(bert, device="cpu"), folder / "aligned")
    training = {**SMALL, **GROUPS, "batch": 6, "steps": 3, "checkpoint_every": 1, "check_every": 0}
    return Literature(corpus, graph, folder / "graph", samples, bert, training)


SENTENCES: dict[str, dict[str, Any]] = {
    **{name: {"sentence_triplet": {"distance": name}} for name in ("single", "attention")},
    "transport": {"sentence_triplet": {}},
    "peer": {"sentence_triplet": {"mode": "geomloss"}},
    "aligned": {"aligned_triplet": {}},
    "both": {"aligned_triplet": {}, "sentence_triplet": {}},
    "matches": {"sentence_in_batch": {"facets": 0.5, "whole": 0.3}},
    "papers": {"in_batch": {}},
}
WORDS = {"encoder": {"pooling": "aspect_words"}, "losses": {"in_batch": {}}}
WORDS |= {"batch": 8, "steps": 4, "checkpoint_every": 2}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "triplets": ("literature", {"patience": 5}),
    "shuffled": ("literature", {"patience": 5, "watch": "loss", "block": 1, "scale_by": "start", "check_every": 0.1}),
    "aspects": ("aspects", {"head_rate": 10.0}),
    "sentences": ("paired", {"losses": SENTENCES["both"]}),
    "aspect_words": ("paired", WORDS),
}
"""What is trained: a fixture, and options beside the usual."""


@pytest.fixture(scope="session")
def uninterrupted(request, tmp_path_factory) -> dict[str, EncoderRun]:
    """Models of all kinds that no test changes."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return {
        kind: request.getfixturevalue(source).train(folder / kind, **options)
        for kind, (source, options) in KINDS.items()
    }
