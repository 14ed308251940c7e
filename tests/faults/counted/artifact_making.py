"""Small artifacts of every kind, made of one made-up literature and a tiny model.

places = make_artifacts(folder, save_bert)      {"corpus": folder / "corpus", ...}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from citeweave.core.artifact import new_artifact
from citeweave.core.progress import QUIET
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import ImportOptions, import_papers
from citeweave.corpus.services.service import ResponseCache
from citeweave.encoders.aspects import AspectHeads, save_heads
from citeweave.encoders.compress import compress as compress_encoder
from citeweave.encoders.delta import save_delta
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_card import ModelCard
from citeweave.encoders.model_folder import KIND as ENCODER
from citeweave.encoders.save import save_encoder, write_merged_model
from citeweave.encoders.shards import ShardMaker, fill_shards
from citeweave.encoders.tokens import make_token_store
from citeweave.evaluation.bootstrap import Outcome
from citeweave.evaluation.report import KIND as REPORT
from citeweave.evaluation.report import write_report
from citeweave.evaluation.run_tasks import EvaluationFolder
from citeweave.graph import intent_overlay
from citeweave.graph.build import make_graph
from citeweave.graph.related_files import write_related
from citeweave.graph.signals import Signal
from citeweave.mining.blocks import MiningCounts, encode_part
from citeweave.mining.samples import SampleNames, block_from_lists, new_samples
from citeweave.pipeline.run_folder import RunFolder
from citeweave.search.build import IndexOptions, build_index
from citeweave.search.map import make_map
from citeweave.search.update import delete_papers
from citeweave.serve.prepare_library import LibraryFolder
from citeweave.training.checkpoints import save_checkpoint
from citeweave.vectors.compressed import compress
from citeweave.vectors.sentence_vectors import new_sentence_vectors
from citeweave.vectors.vectors import new_vectors

WORDS = [
    "a",
    "paper",
    "shows",
    "that",
    "the",
    "cell",
    "grows",
    "and",
    "we",
    "find",
    "how",
    "models",
    "learn",
    "from",
    "data",
    "in",
    "graphs",
    "of",
    "citations",
]
TEXTS = ["the cell grows", "we find how models learn", "data", "graphs of citations", "a paper", "how the cell grows"]
REQUEST = {"base": "https://api.example.org", "path": "works", "parameters": {"page": 1}, "body": None}
SaveBert = Callable[..., Path]


def make_artifacts(place: Path, save_bert: SaveBert) -> dict[str, Path]:
    """All of them, by their names."""
    place.mkdir(parents=True, exist_ok=True)
    model = save_bert(place / "plain model")
    corpus = _corpus(place)
    made = {
        **_graphs(place, corpus),
        **_samples(place),
        **_vectors(place, model),
        **_models(place, model),
        **_index(place, corpus, model),
        **_reports(place),
        **_kept(place),
    }
    return {"corpus": corpus.folder, "corpus, as a whole": corpus.folder, "plain model": model, **made}


def _papers() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(5)
    for row in range(24):
        text = " ".join(rng.choice(WORDS, 14))
        more = {"ids": [f"doi:10.1/{row}"], "authors": ["Ada Lovelace"], "fields": ["biology"], "extra": {"pages": row}}
        yield {"id": f"p:{row}", "title": " ".join(rng.choice(WORDS, 4)), "abstract": f"{text}. {text} too.", **more}
    yield {"id": "q:1", "ids": ["doi:10.1/3"], "title": "the same paper", "year": 2011}


def _corpus(place: Path) -> Corpus:
    source = place / "source"
    source.mkdir()
    (source / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in _papers()))
    edges = [(citing, (citing * step + 1) % 30) for citing in range(24) for step in (2, 5, 7)]
    (source / "citations.tsv").write_text("".join(f"p:{citing}\tp:{cited}\n" for citing, cited in edges))
    contexts = [
        {
            "citing": f"p:{row}",
            "cited": [f"p:{row + 1}", "p:99"],
            "text": f"we find data [CIT] {row}",
            "intents": ["method"],
        }
        for row in range(12)
    ]
    (source / "contexts.jsonl").write_text("".join(json.dumps(context) + "\n" for context in contexts))
    (place / "more.jsonl").write_text('{"id": "p:30", "title": "one more paper", "references": ["p:1"]}\n')
    first = import_papers([source], place / "first", ImportOptions(workers=1)).corpus
    assert len(first) == 24
    return import_papers([place / "more.jsonl"], place / "corpus", ImportOptions(workers=1), update=first.folder).corpus


def _graphs(place: Path, corpus: Corpus) -> dict[str, Path]:
    graph = make_graph(corpus, place / "graph")
    write_related(graph, Signal("cocited"), np.arange(10), place / "related")
    with new_artifact(
        place / "intents", intent_overlay.KIND, intent_overlay.VERSION, {"corpus": corpus.hash}
    ) as artifact:
        out = intent_overlay.OverlayWriter(artifact)
        out.append_contexts(np.ones(3, np.uint8), np.full((3, 3), 0.5, np.float16))
        out.close()
        number = len(corpus.citing)
        confidence = np.random.default_rng(0).dirichlet([0.4] * 3, number).astype(np.float16)
        mask = intent_overlay.mask_from_confidence(confidence, 0.5)
        out.write_citations(mask, confidence, np.full(number, 7), np.zeros(number, bool))
        artifact.facts |= {"corpus": corpus.hash, "least": 0.5, "citations": {"all": number}, "contexts": {"all": 3}}
        artifact.finish()
    return {name: place / name for name in ("graph", "related", "intents")}


def _samples(place: Path) -> dict[str, Path]:
    block = block_from_lists([7, 8, 9], [[1, 2], [3], [4]], [[4], [5, 6], []])
    with new_samples(place / "samples", SampleNames(("up", "down"), ("",), ("task",)), corpus="abc") as writer:
        writer.append(block)
        writer.write_pool(np.arange(20))
        writer.finish()
    (place / "parts").mkdir()
    (place / "parts" / "000000.npz").write_bytes(encode_part(block, MiningCounts()))
    return {"samples": place / "samples", "parts": place / "parts"}


def _vectors(place: Path, model: Path) -> dict[str, Path]:
    rng = np.random.default_rng(1)
    ids = [f"p:{row}" for row in range(20)]
    facts = {"model": "toy", "revision": "1", "dtype": "float32"}
    with new_vectors(place / "vectors", **facts) as writer:  # type: ignore[arg-type]
        writer.append(ids, rng.normal(size=(20, 16)))
        vectors = writer.finish()
    compress(vectors, place / "int8 vectors", "int8")
    with new_sentence_vectors(place / "sentence vectors") as sentences:
        sentences.append(ids[:9], [rng.normal(size=(2 + row % 3, 8)) for row in range(9)])
        sentences.finish()
    reader = load_encoder(model, device="cpu", max_tokens=20).reader
    make_token_store(reader, TEXTS * 5, place / "tokens", recipe={"corpus": "abc"})
    shards = place / "shards"
    shards.mkdir()
    maker = ShardMaker(
        lambda start, stop: iter([list(range(start, stop))]), lambda rows, *_: {"row": np.array(rows, np.float32)}
    )
    fill_shards(shards, 20, 8, [maker], reporter=QUIET)
    return {name: place / name for name in ("vectors", "int8 vectors", "sentence vectors", "tokens", "shards")}


def _models(place: Path, base: Path) -> dict[str, Path]:
    rng = np.random.default_rng(2)
    one = [(rng.normal(size=(6, 32)).astype(np.float32), rng.normal(size=6).astype(np.float32)) for _ in range(2)]
    heads = AspectHeads(("background", "method"), {"background": one[:1], "method": one[1:]})
    encoder = load_encoder(base, pooling="mean", normalize=True, max_tokens=20, device="cpu")
    changed = [name for name, _ in encoder.network.model.named_parameters() if name.endswith("bias")]
    with torch.no_grad():
        for weight in encoder.network.model.parameters():
            weight += 0.05
    settings, network, card = encoder.settings, encoder.network, ModelCard("tiny")
    with new_artifact(place / "delta model", ENCODER, 1, {}) as writer:
        save_delta(writer.folder, network.model, settings, base=str(base), changed=changed, kind="bias", card=card)
        save_heads(writer.folder, heads)
        writer.finish()
    (place / "moved").mkdir()
    save_encoder(place / "moved", network, encoder.reader.tokenizer, settings, card=card)
    save_heads(place / "moved", heads)
    write_merged_model(place / "moved", place / "whole model")
    (place / "compact model").mkdir()
    compress_encoder(place / "moved", str(base), place / "compact model", TEXTS, budget=16_000)
    return {name: place / name for name in ("delta model", "whole model", "compact model")}


def _index(place: Path, corpus: Corpus, model: Path) -> dict[str, Path]:
    options = IndexOptions(contexts=10, device="cpu", sentences=True)
    build_index(corpus, place / "moved", place / "index", options)
    delete_papers(place / "index", ["p:2", "p:5"])
    from citeweave.search.index import Index

    make_map(Index.open(place / "index"))
    (drawn,) = (place / "index" / "maps").iterdir()
    return {"index": place / "index", "index, asked": place / "index", "map": drawn}


def _reports(place: Path) -> dict[str, Path]:
    rows = {f"q{number}": {"map": number / 10} for number in range(8)}
    outcome = Outcome("cite", "ranking", {"map": "mean"}, rows, {"queries": 8}, ("a note",), {})
    (place / "finished").mkdir()
    EvaluationFolder(place / "finished", None, "tag").save("mark", outcome)
    about = {"kind": outcome.kind, "how": outcome.how, "notes": list(outcome.notes), "chosen": {}}
    value = {
        "suite": "made up",
        "model": {"name": "toy"},
        "metrics": {"cite.map": 35.0},
        "headline": "cite.map",
        "coverage": {"cite": outcome.coverage},
        "tasks": {"cite": about},
        "per_query": {"cite": rows},
    }
    with new_artifact(place / "report", REPORT, 1, {"tasks": {"cite": "mark"}}) as writer:
        (writer.folder / "report.json").write_text(json.dumps(value))
        (writer.folder / "report.md").write_text("# Report\n")
        writer.finish()
    _ = write_report
    return {"report": place / "report", "finished": place / "finished"}


def _kept(place: Path) -> dict[str, Path]:
    """What commands keep for themselves: a run's record, checkpoints, a library's record, answers of a service."""
    run = RunFolder(place / "run", {"recipe": {"seed": 1}}, QUIET)
    run.open()
    run.run("numbers", {"seed": 1}, lambda folder: {"count": 7})
    run.keep(result={"cite.map": 35.0})
    for step in (1, 2):
        weights, optimizer = new_weights(step)
        save_checkpoint(place / "checkpoints", step, weights, optimizer, {"note": "x"})
    library = place / "library"
    library.mkdir()
    LibraryFolder(library).update_record(place="library.bib", name="library", kind="bibtex")
    ResponseCache(place / "answers").save(REQUEST, 200, b'{"results": [1, 2, 3]}')
    return {name: place / name for name in ("run", "checkpoints", "library", "answers")}


def new_weights(seed: int) -> tuple[dict[str, torch.Tensor], torch.optim.Optimizer]:
    """Some weights and an optimizer that has made a step."""
    torch.manual_seed(seed)
    weights: dict[str, torch.Tensor] = {name: torch.nn.Parameter(torch.randn(4, 3)) for name in ("a", "b")}
    optimizer = torch.optim.AdamW(weights.values(), lr=0.1)
    for weight in weights.values():
        weight.grad = torch.sin(weight.detach())
    optimizer.step()
    return weights, optimizer
