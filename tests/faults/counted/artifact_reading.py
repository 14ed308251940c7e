"""Everything that an artifact holds, read through the doors that commands use, as one hash.

    contents("corpus", folder)     the same hash for the same contents

`READERS` has a way for every name that `make_artifacts` gives. Paths do not count.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.core.artifact import read_any_manifest
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import ImportOptions, import_papers
from citeweave.corpus.services.service import ResponseCache
from citeweave.corpus.summary import list_merges, summarize
from citeweave.encoders.aspects import find_heads
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.shards import read_shards
from citeweave.encoders.tokens import TokenStore
from citeweave.evaluation.report import Report
from citeweave.evaluation.run_tasks import EvaluationFolder
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.graph.related_files import RelatedFile
from citeweave.graph.signals import Signal, collect_mentions, related
from citeweave.mining.blocks import read_part
from citeweave.mining.samples import Samples
from citeweave.pipeline.run_folder import read_record
from citeweave.search.answer import answer
from citeweave.search.explain import explain
from citeweave.search.index import Index
from citeweave.search.map import PaperMap
from citeweave.search.neighborhood import find_missing_papers, find_neighborhood
from citeweave.search.query import Query
from citeweave.serve.prepare_library import LibraryFolder
from citeweave.training.checkpoints import load_checkpoint
from citeweave.vectors.compressed import CompressedVectors
from citeweave.vectors.document_distance import DocumentDistance
from citeweave.vectors.sentence_search import search_sentences
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.topk import nearest
from citeweave.vectors.vectors import Vectors

from .artifact_making import REQUEST, TEXTS, new_weights

IDS = [f"p:{row}" for row in range(24)]


def contents(name: str, folder: Path) -> str:
    """A hash of all that an artifact holds."""
    digest = hashlib.sha256()
    for value in READERS[name](folder):
        digest.update(_plain(value))
    return digest.hexdigest()


def _plain(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return repr((value.dtype, value.shape)).encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join(map(_plain, value)) + b"]"
    if isinstance(value, dict):
        return b"{" + b",".join(_plain(pair) for pair in value.items()) + b"}"
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    return repr(value).encode()


def _manifest(folder: Path) -> dict[str, Any]:
    manifest = read_any_manifest(folder)
    return {"recipe": manifest.recipe, "facts": manifest.facts, "files": manifest.files}


def _corpus(folder: Path) -> Iterator[Any]:
    corpus = Corpus.open(folder)
    yield _manifest(folder)
    yield summarize(corpus, samples=3), list_merges(corpus)
    yield [corpus.paper(row) for row in range(len(corpus))]
    yield [corpus.citation(number) for number in range(len(corpus.citing))]
    yield [corpus.context(number) for number in range(len(corpus.contexts))]
    yield corpus.rows(IDS), corpus.changes, corpus.contexts.outside, corpus.contexts.citing_keys
    yield [corpus.references_outside(name) for name in ("citing", "key", "intents", "strength", "influential")]


def _corpus_as_a_whole(folder: Path) -> Iterator[Any]:
    """By compiled code first, which follows numbers without looking."""
    corpus = Corpus.open(folder)
    yield corpus.rows(IDS), corpus.ids.keys(), corpus.titles.gather(np.arange(len(corpus)))
    graph = graph_from_edges(corpus.citing, corpus.cited, len(corpus))
    yield graph.cited.targets, graph.citing.targets
    found = collect_mentions(corpus)
    yield found.offsets, found.cited, found.contexts, found.sections
    with tempfile.TemporaryDirectory() as place:
        more = Path(place) / "more.jsonl"
        more.write_text('{"id": "p:31", "title": "another paper", "references": ["p:3"]}\n')
        options = ImportOptions(workers=1)
        updated = import_papers([more], Path(place) / "updated", options, update=folder).corpus
        yield list(updated.titles), updated.citing, updated.cited


def _graph(folder: Path) -> Iterator[Any]:
    graph = CitationGraph.open(folder)
    yield _manifest(folder)
    yield graph.cited.targets, graph.citing.targets, graph.citing_edges, graph.intents, graph.strengths
    yield graph.degrees(), graph.sources()
    for name in ("cocited", "coupled", "connected"):
        found = related(graph, Signal(name), np.arange(graph.nodes))
        yield found.offsets, found.targets, found.strengths
    yield graph.restricted(0).cited.targets
    yield from _vectors(folder / "vectors")


def _related(folder: Path) -> Iterator[Any]:
    found = RelatedFile.open(folder)
    yield _manifest(folder)
    yield found.rows, found.related.targets, found.related.strengths
    yield [
        found.related.targets[found.related.offsets[n] : found.related.offsets[n + 1]] for n in range(len(found.rows))
    ]


def _intents(folder: Path) -> Iterator[Any]:
    overlay = IntentOverlay.open(folder)
    yield _manifest(folder)
    yield overlay.mask, overlay.contexts, overlay.given, overlay.context_mask, overlay.confidence
    yield overlay.context_confidence, overlay.masks_at(0.3)


def _samples(folder: Path) -> Iterator[Any]:
    samples = Samples.open(folder)
    yield _manifest(folder)
    yield samples.anchors, samples.aspects, samples.tasks, samples.pool, samples.contexts
    yield samples.triplets().rows(), [samples.positives.of(row) for row in range(len(samples))]
    yield samples.positives.scores, samples.negatives.scores, samples.positives.rules


def _parts(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.iterdir()):
        block, account = read_part(path)
        yield block.anchors, block.positives.rows, block.negatives.rows, block.contexts, account


def _vectors(folder: Path) -> Iterator[Any]:
    vectors = Vectors.open(folder)
    yield _manifest(folder)
    ids = list(vectors.ids)
    yield ids, vectors.rows(IDS), vectors.take(ids[:5]), np.asarray(vectors.matrix)
    near = nearest(np.asarray(vectors.matrix, np.float32), np.asarray(vectors.matrix[:2], np.float32), 3)
    yield near.rows, near.scores


def _int8(folder: Path) -> Iterator[Any]:
    vectors = CompressedVectors.open(folder)
    yield _manifest(folder)
    yield list(vectors.ids), vectors.decoded(slice(None)), vectors.scores(np.ones((2, vectors.provenance.dimension)))


def _sentence_vectors(folder: Path) -> Iterator[Any]:
    vectors = SentenceVectors.open(folder)
    yield _manifest(folder)
    yield list(vectors.ids), vectors.rows(IDS), vectors.numbers, [vectors.sentences(row) for row in range(len(vectors))]
    found = search_sentences(vectors, [vectors.ids[0]], 3, DocumentDistance())
    yield found.rows, found.scores


def _tokens(folder: Path) -> Iterator[Any]:
    store = TokenStore.open(folder)
    yield _manifest(folder)
    yield store.take(range(len(store))), store.lengths()


def _shards(folder: Path) -> Iterator[Any]:
    for start, arrays in read_shards(folder, 20, 8):
        yield start, {name: arrays[name] for name in ("halved",)}, arrays.get("row")


def _model(folder: Path) -> Iterator[Any]:
    encoder = load_encoder(folder, device="cpu")
    yield encoder.revision, encoder.settings
    yield encoder.encode(TEXTS)
    heads = find_heads(folder)
    if heads is not None:
        yield heads.names, heads.hash


def _index(folder: Path) -> Iterator[Any]:
    index = Index.open(folder)
    yield index.state.facts, index.number, len(index)
    for segment in index.segments:
        yield _manifest(segment.folder)
        yield segment.matrix, segment.spaces, segment.flags, segment.text_keys, segment.record_keys, segment.cited_as
    rows = [index.row(id) for id in IDS if id not in ("p:2", "p:5")]
    yield [index.paper(row) for row in rows], [index.references(row) for row in rows]
    yield [index.citing(index.key_of(row)) for row in rows]
    yield index.heads and index.heads.hash, index.known_intents


def _index_asked(folder: Path) -> Iterator[Any]:
    """By compiled code first, which follows numbers without looking."""
    index = Index.open(folder)
    for said in (
        {"text": "the cell grows in data", "by": "words"},
        {"paper": "p:7", "count": 20},
        {"paper": "p:7", "aspect": "method", "where": {"years": [None, 2030]}},
        {"liked": ["p:1", "p:3"], "disliked": ["p:4"], "diversity": 0.5},
        {"sentences": {"paper": "p:8", "numbers": [0]}},
    ):
        found = answer(index, None, Query.from_json(said))
        yield [(hit.id, hit.score, hit.matches) for hit in found.hits]
    yield explain(index, 0, 1), find_neighborhood(index, 7), find_missing_papers(index, min_citing=1)


def _map(folder: Path) -> Iterator[Any]:
    found = PaperMap.open(folder)
    yield _manifest(folder), found.as_json(), found.keys, found.landmarks, found.centers


def _report(folder: Path) -> Iterator[Any]:
    report = Report.open(folder)
    yield _manifest(folder), report.value, report.outcomes()


def _finished(folder: Path) -> Iterator[Any]:
    found = EvaluationFolder(folder, None, "tag").find("mark")
    yield found and found.outcome


def _run(folder: Path) -> Iterator[Any]:
    found = read_record(folder)
    yield found and [found.get(name) for name in ("version", "identity", "citeweave", "stages", "result")]


def _checkpoints(folder: Path) -> Iterator[Any]:
    weights, optimizer = new_weights(9)
    yield load_checkpoint(folder, weights, optimizer)
    yield [weight.detach().numpy() for weight in weights.values()]
    yield [optimizer.state[weight]["exp_avg"].numpy() for weight in weights.values()]


def _library(folder: Path) -> Iterator[Any]:
    found = LibraryFolder(folder).record()
    yield [found.get(name) for name in ("format", "version", "place", "name", "kind")]


def _answers(folder: Path) -> Iterator[Any]:
    yield ResponseCache(folder).load(REQUEST)


READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    "corpus": _corpus,
    "corpus, as a whole": _corpus_as_a_whole,
    "graph": _graph,
    "related": _related,
    "intents": _intents,
    "samples": _samples,
    "parts": _parts,
    "vectors": _vectors,
    "int8 vectors": _int8,
    "sentence vectors": _sentence_vectors,
    "tokens": _tokens,
    "shards": _shards,
    "plain model": _model,
    "delta model": _model,
    "whole model": _model,
    "compact model": _model,
    "index": _index,
    "index, asked": _index_asked,
    "map": _map,
    "report": _report,
    "finished": _finished,
    "run": _run,
    "checkpoints": _checkpoints,
    "library": _library,
    "answers": _answers,
}
