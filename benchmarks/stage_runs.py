"""The stages of a recipe, run for real at a small size, so that `estimates.py` can compare them with what was estimated.

    cost = run_step(mine, Place(folder), "scincl")     cost.cpu, cost.peak, cost.found["disk"], cost.found["papers"] ...

Every stage leaves its folder for the next one; synthetic literature is prepared before the clock. Estimates nothing.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Clock

WARM_PAPERS = 5000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a literature lies and how large it is."""

    folder: Path
    papers: int


def fresh(folder: Path) -> Path:
    """A folder that is not there: an artifact made of the same would be opened, not made."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def disk_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def read_records(clock: Clock, place: Place, citations: int) -> dict[str, Any]:
    """Import of shards as Semantic Scholar has them, 37 in 100 citations with sentences; processes of its own."""
    from import_citations import generate, warm_up

    from citeweave.corpus.ingest import import_papers

    shards = generate(place.folder / "shards", citations, place.papers)
    warm_up(place.folder)
    with clock:
        corpus = import_papers(shards, fresh(place.folder / "imported")).corpus
    return {"citations": citations, "papers": place.papers, "disk": disk_of(corpus.folder)}


def read_texts(clock: Clock, place: Place) -> dict[str, Any]:
    """Import of papers with abstracts from JSON lines, no citation among them."""
    import json

    from citeweave.corpus.ingest import import_papers

    draw, words = np.random.default_rng(0), np.array([f"word{number}" for number in range(20_000)])
    lines, size = [], 0
    for number in range(place.papers):
        title, abstract = (" ".join(words[draw.zipf(1.3, count) % len(words)]) for count in (10, 150))
        size += len(title) + len(abstract)
        lines.append(json.dumps({"id": f"made:{number}", "title": f"{title} {number}", "abstract": abstract}))
    place.folder.mkdir(parents=True, exist_ok=True)
    (place.folder / "papers.jsonl").write_text("\n".join(lines) + "\n")
    with clock:
        corpus = import_papers([place.folder / "papers.jsonl"], fresh(place.folder / "read")).corpus
    return {"papers": place.papers, "bytes": size, "disk": disk_of(corpus.folder)}


def make_corpus(place: Place) -> None:
    """A synthetic literature with texts; one that is there is kept."""
    from citeweave import synthesize
    from citeweave.corpus.options import SyntheticOptions

    synthesize(place.folder / "corpus", SyntheticOptions(papers=place.papers, bare=0.0))


def join(clock: Clock, place: Place, dimension: int) -> dict[str, Any]:
    """Graph and node vectors of a corpus, as `citeweave graph` makes them."""
    from citeweave import Corpus
    from citeweave.graph.build import make_graph
    from citeweave.graph.options import graph_options

    corpus, options = Corpus.open(place.folder / "corpus"), graph_options({"dimension": dimension})
    make_graph(Corpus.open(_warm(place) / "corpus"), _warm(place) / "graph", options, overwrite=True)
    with clock:
        graph = make_graph(corpus, fresh(place.folder / "graph"), options)
    return {"citations": graph.edges, "papers": len(corpus), "disk": disk_of(place.folder / "graph")}


def mine(clock: Clock, place: Place, recipe: str) -> dict[str, Any]:
    """Samples by a shipped recipe, of all papers."""
    _mine(_warm(place), recipe)
    fresh(place.folder / f"samples-{recipe}")
    with clock:
        samples = _mine(place.folder, recipe)
    return {"papers": place.papers, "samples": len(samples), "disk": disk_of(place.folder / f"samples-{recipe}")}


def _mine(folder: Path, recipe: str) -> Any:
    from citeweave import Corpus
    from citeweave.graph.citations import CitationGraph
    from citeweave.mining.inputs import MiningInputs as Inputs
    from citeweave.mining.mine import mine_samples
    from citeweave.mining.rules import parse_rules
    from citeweave.pipeline.recipe import load_recipe
    from citeweave.vectors.vectors import Vectors

    rules = parse_rules(load_recipe(recipe).table("mining"))
    vectors = {"graph": Vectors.open(folder / "graph" / "vectors")} if rules.needs_vectors("graph") else {}
    inputs = Inputs(CitationGraph.open(folder / "graph"), vectors)
    return mine_samples(Corpus.open(folder / "corpus"), rules, folder / f"samples-{recipe}", inputs, overwrite=True)


def tokenize(clock: Clock, place: Place) -> dict[str, Any]:
    """The token store of all papers."""
    from citeweave import Corpus
    from citeweave.corpus.text import TextRecipe
    from citeweave.encoders.encoder import load_encoder
    from citeweave.encoders.paper_texts import PaperTexts
    from citeweave.encoders.tokens import make_token_store

    encoder: Any = load_encoder("minilm", device="cpu")
    texts = PaperTexts(Corpus.open(place.folder / "corpus"), TextRecipe())
    encoder.reader.read(texts[:8])
    with clock:
        store = make_token_store(encoder.reader, texts, fresh(place.folder / "tokens"), recipe={})
    tokens = int(store.lengths().sum())
    return {"papers": place.papers, "tokens": tokens / place.papers, "disk": disk_of(place.folder / "tokens")}


def embed(clock: Clock, place: Place, sentences: bool = False) -> dict[str, Any]:
    """Vectors of all papers, or of all their sentences, by MiniLM."""
    from citeweave import Corpus
    from citeweave.encoders.embed import embed_papers, embed_sentences
    from citeweave.encoders.encoder import load_encoder

    encoder, corpus = load_encoder("minilm", device="cpu"), Corpus.open(place.folder / "corpus")
    encoder.encode([corpus.abstracts[0]] * 4)
    folder = fresh(place.folder / ("sentences" if sentences else "vectors"))
    with clock:
        (embed_sentences if sentences else embed_papers)(corpus, encoder, folder)
    return {"papers": place.papers, "tokens": _tokens(encoder, corpus), "disk": disk_of(folder)}


def _tokens(encoder: Any, corpus: Any) -> float:
    from citeweave.corpus.text import paper_text

    rows = range(min(200, len(corpus)))
    return float(
        np.mean([len(encoder.reader.read([paper_text(corpus.titles[row], corpus.abstracts[row])])[0]) for row in rows])
    )


def train(clock: Clock, place: Place, steps: int, batch: int) -> dict[str, Any]:
    """A few steps from MiniLM on samples that were mined; tokens, start and saving are in it."""
    from citeweave import Corpus, Samples, train_encoder
    from citeweave.encoders.encoder import load_encoder
    from citeweave.training.options import EncoderOptions, TrainingOptions
    from citeweave.training.options import TrainingPlan as Plan

    corpus, samples = Corpus.open(place.folder / "corpus"), Samples.open(place.folder / "samples-specter")
    encoder = load_encoder("minilm", device="cpu")
    tokens = _tokens(encoder, corpus)
    del encoder
    plan = Plan(EncoderOptions(init="minilm"), TrainingOptions(steps=steps, batch=batch, validation=0.0))
    with clock:
        train_encoder(corpus, samples, fresh(place.folder / "model"), plan, device="cpu")
    found = {"steps": steps, "batch": batch, "papers": place.papers, "tokens": tokens}
    return {**found, "disk": disk_of(place.folder / "model")}


def index(clock: Clock, place: Place) -> dict[str, Any]:
    """An index with vectors and sentence vectors that are given: words, marks, maps and copying."""
    from search import make_up

    from citeweave import Corpus
    from citeweave.search.build import build_index
    from citeweave.search.index_vectors import PrecomputedVectors
    from citeweave.search.options import IndexOptions
    from citeweave.vectors.sentence_vectors import SentenceVectors
    from citeweave.vectors.vectors import Vectors

    folder = fresh(place.folder / "index")
    corpus, vectors, sentences = make_up(folder, place.papers)
    given = PrecomputedVectors(Vectors.open(vectors), SentenceVectors.open(sentences))
    with clock:
        build_index(Corpus.open(corpus), "minilm", folder / "index", IndexOptions(sentences=True), precomputed=given)
    return {"papers": place.papers, "disk": disk_of(folder / "index")}


def _warm(place: Place) -> Path:
    """A tiny literature with a graph, by which compiled code is loaded before the clock."""
    folder = place.folder / "warm-up"
    if not (folder / "corpus").is_dir():
        make_corpus(Place(folder, WARM_PAPERS))
    return folder
