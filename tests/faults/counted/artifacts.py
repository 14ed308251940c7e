"""Small artifacts of every kind, made of one made-up literature and a tiny model, and everything that each holds.

places = make_artifacts(folder, save_bert)      {"corpus": folder / "corpus", ...}
contents("corpus", places["corpus"])            a hash of its contents, read through the doors that commands use
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

import citeweave as cw
from citeweave.core.artifact import new_artifact, read_any_manifest
from citeweave.core.progress import QUIET
from citeweave.corpus.corpus import list_merges, summarize
from citeweave.corpus.services.service import ResponseCache
from citeweave.encoders import aspects, delta, model_card, model_folder, save, tokens
from citeweave.encoders.compress import compress as compress_encoder
from citeweave.encoders.shards import ShardMaker, fill_shards, read_shards
from citeweave.evaluation import evaluate, metrics, report
from citeweave.graph import build, intent_overlay, signals
from citeweave.mining.samples import MiningCounts, SampleNames, block_from_lists, encode_part, new_samples, read_part
from citeweave.pipeline.run_folder import RunFolder, read_record
from citeweave.search.explain import find_missing_papers, find_neighborhood
from citeweave.search.map import PaperMap, make_map
from citeweave.serve.prepare_library import LibraryFolder
from citeweave.training.checkpoints import load_checkpoint, save_checkpoint
from citeweave.vectors import compressed, document_distance, sentence_search, sentence_vectors
from citeweave.vectors.vectors import new_vectors

from .stages import write_lines

_TEXT = "a paper shows that the cell grows and we find how models learn from data in graphs of citations"
WORDS = _TEXT.split()
TEXTS = ["the cell grows", "we find how models learn", "data", "graphs of citations", "a paper", "how the cell grows"]
REQUEST = {"base": "https://api.example.org", "path": "works", "parameters": {"page": 1}, "body": None}


def make_artifacts(place: Path, save_bert: Callable[..., Path]) -> dict[str, Path]:
    """All of them, by their names."""
    place.mkdir(parents=True, exist_ok=True)
    model = save_bert(place / "plain model")
    corpus = _corpus(place)
    made = {"corpus": corpus.folder, "corpus, as a whole": corpus.folder, "plain model": model}
    made |= _graphs(place, corpus) | _samples(place) | _vectors(place, model) | _models(place, model)
    return made | _index(place, corpus) | _reports(place) | _kept(place)


def _papers() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(5)
    for row in range(24):
        text = " ".join(rng.choice(WORDS, 14))
        more = {"ids": [f"doi:10.1/{row}"], "authors": ["Ada Lovelace"], "fields": ["biology"], "extra": {"pages": row}}
        yield {"id": f"p:{row}", "title": " ".join(rng.choice(WORDS, 4)), "abstract": f"{text}. {text} too.", **more}
    yield {"id": "q:1", "ids": ["doi:10.1/3"], "title": "the same paper", "year": 2011}


def _corpus(place: Path) -> cw.Corpus:
    source = place / "source"
    source.mkdir()
    write_lines(source / "papers.jsonl", _papers())
    edges = [(citing, (citing * step + 1) % 30) for citing in range(24) for step in (2, 5, 7)]
    (source / "citations.tsv").write_text("".join(f"p:{citing}\tp:{cited}\n" for citing, cited in edges))
    found = {"text": "we find data [CIT]", "intents": ["method"]}
    contexts = [{"citing": f"p:{row}", "cited": [f"p:{row + 1}", "p:99"], **found} for row in range(12)]
    write_lines(source / "contexts.jsonl", contexts)
    more = write_lines(place / "more.jsonl", [{"id": "p:30", "title": "one more paper", "references": ["p:1"]}])
    first = cw.import_papers([source], place / "first", cw.ImportOptions(workers=1)).corpus
    assert len(first) == 24
    return cw.import_papers([more], place / "corpus", cw.ImportOptions(workers=1), update=first.folder).corpus


def _graphs(place: Path, corpus: cw.Corpus) -> dict[str, Path]:
    graph = cw.make_graph(corpus, place / "graph")
    build.write_related(graph, cw.Signal("cocited"), np.arange(10), place / "related")
    kind, version = intent_overlay.KIND, intent_overlay.VERSION
    with new_artifact(place / "intents", kind, version, {"corpus": corpus.hash}) as artifact:
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
    with new_vectors(place / "vectors", **facts) as writer:
        writer.append(ids, rng.normal(size=(20, 16)))
        vectors = writer.finish()
    compressed.compress(vectors, place / "int8 vectors", "int8")
    with sentence_vectors.new_sentence_vectors(place / "sentence vectors") as sentences:
        sentences.append(ids[:9], [rng.normal(size=(2 + row % 3, 8)) for row in range(9)])
        sentences.finish()
    reader = cw.load_encoder(model, device="cpu", max_tokens=20).reader
    tokens.make_token_store(reader, TEXTS * 5, place / "tokens", recipe={"corpus": "abc"})
    shards = place / "shards"
    shards.mkdir()
    maker = ShardMaker(
        lambda start, stop: list(range(start, stop)), lambda rows, *_: {"row": np.array(rows, np.float32)}, 8
    )
    fill_shards(shards, 20, 8, [maker], reporter=QUIET)
    return {name: place / name for name in ("vectors", "int8 vectors", "sentence vectors", "tokens", "shards")}


def _models(place: Path, base: Path) -> dict[str, Path]:
    rng = np.random.default_rng(2)
    one = [(rng.normal(size=(6, 32)).astype(np.float32), rng.normal(size=6).astype(np.float32)) for _ in range(2)]
    heads = aspects.AspectHeads(("background", "method"), {"background": one[:1], "method": one[1:]})
    encoder = cw.load_encoder(base, pooling="mean", normalize=True, max_tokens=20, device="cpu")
    changed = [name for name, _ in encoder.network.model.named_parameters() if name.endswith("bias")]
    with torch.no_grad():
        for weight in encoder.network.model.parameters():
            weight += 0.05
    settings, network, card = encoder.settings, encoder.network, model_card.ModelCard("tiny")
    with new_artifact(place / "delta model", model_folder.KIND, 1, {}) as writer:
        delta.save_delta(
            writer.folder, network.model, settings, base=str(base), changed=changed, kind="bias", card=card
        )
        aspects.save_heads(writer.folder, heads)
        writer.finish()
    (place / "moved").mkdir()
    cw.save_encoder(place / "moved", network, encoder.reader.tokenizer, settings, card=card)
    aspects.save_heads(place / "moved", heads)
    save.write_merged_model(place / "moved", place / "whole model")
    (place / "compact model").mkdir()
    compress_encoder(place / "moved", str(base), place / "compact model", TEXTS, budget=16_000)
    return {name: place / name for name in ("delta model", "whole model", "compact model")}


def _index(place: Path, corpus: cw.Corpus) -> dict[str, Path]:
    options = cw.IndexOptions(contexts=10, device="cpu", sentences=True)
    cw.build_index(corpus, place / "moved", place / "index", options)
    cw.delete_papers(place / "index", ["p:2", "p:5"])
    make_map(cw.Index.open(place / "index"))
    (drawn,) = (place / "index" / "maps").iterdir()
    return {"index": place / "index", "index, asked": place / "index", "map": drawn}


def _reports(place: Path) -> dict[str, Path]:
    rows = {f"q{number}": {"map": number / 10} for number in range(8)}
    outcome = metrics.Outcome("cite", "ranking", {"map": "mean"}, rows, {"queries": 8}, ("a note",), {})
    (place / "finished").mkdir()
    evaluate.EvaluationFolder(place / "finished", None, "tag").save("mark", outcome)
    about = {"kind": outcome.kind, "how": outcome.how, "notes": list(outcome.notes), "chosen": {}}
    value = {"suite": "made up", "model": {"name": "toy"}, "metrics": {"cite.map": 35.0}, "headline": "cite.map"}
    value |= {"coverage": {"cite": outcome.coverage}, "tasks": {"cite": about}, "per_query": {"cite": rows}}
    with new_artifact(place / "report", report.KIND, report.VERSION, {"tasks": {"cite": "mark"}}) as writer:
        (writer.folder / "report.json").write_text(json.dumps(value))
        (writer.folder / "report.md").write_text("# Report\n")
        writer.finish()
    return {"report": place / "report", "finished": place / "finished"}


def _kept(place: Path) -> dict[str, Path]:
    """What commands keep for themselves: a run's record, checkpoints, a library's record, answers of a service."""
    run = RunFolder(place / "run", {"recipe": {"seed": 1}})
    run.open()
    run.run("numbers", {"seed": 1}, lambda folder: {"count": 7})
    run.record_values(result={"cite.map": 35.0})
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


# --- reading ----------------------------------------------------------------------------------------------

IDS = [f"p:{row}" for row in range(24)]


def contents(name: str, folder: Path) -> str:
    """A hash of all that an artifact holds; paths do not count."""
    digest = hashlib.sha256()
    read = READERS["model" if name.endswith(" model") else name]
    if (folder / "manifest.json").is_file() and name not in UNSEALED:
        digest.update(_plain(_manifest(folder)))
    for value in read(folder):
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


def _manifest(folder: Path) -> tuple[Any, ...]:
    manifest = read_any_manifest(folder)
    return manifest.recipe, manifest.facts, manifest.files


def _parts(kind: Any, names: str) -> Callable[[Path], Iterable[Any]]:
    """An artifact of this kind, opened, and these parts of it."""
    return lambda folder: attrgetter(*names.split())(kind.open(folder))


def _corpus_by_rows(folder: Path) -> Iterator[Any]:
    corpus = cw.Corpus.open(folder)
    yield summarize(corpus, samples=3), list_merges(corpus)
    yield [corpus.paper(row) for row in range(len(corpus))]
    yield [corpus.citation(number) for number in range(len(corpus.citing))]
    yield [corpus.context(number) for number in range(len(corpus.contexts))]
    yield corpus.rows(IDS), corpus.changes, corpus.contexts.outside, corpus.contexts.citing_keys
    yield [corpus.references_outside(name) for name in ("citing", "key", "intents", "strength", "influential")]


def _corpus_as_a_whole(folder: Path) -> Iterator[Any]:
    """By compiled code first, which follows numbers without looking."""
    corpus = cw.Corpus.open(folder)
    yield corpus.rows(IDS), corpus.ids.keys(), corpus.titles.gather(np.arange(len(corpus)))
    graph = cw.graph_from_edges(corpus.citing, corpus.cited, len(corpus))
    yield graph.cited.targets, graph.citing.targets
    yield attrgetter("offsets", "cited", "contexts", "sections")(signals.collect_mentions(corpus))
    with tempfile.TemporaryDirectory() as place:
        more = write_lines(Path(place) / "more.jsonl", [{"id": "p:31", "title": "one more", "references": ["p:3"]}])
        updated = cw.import_papers([more], Path(place) / "updated", cw.ImportOptions(workers=1), update=folder).corpus
        yield list(updated.titles), updated.citing, updated.cited


def _graph(folder: Path) -> Iterator[Any]:
    graph = cw.CitationGraph.open(folder)
    yield graph.cited.targets, graph.citing.targets, graph.citing_edges, graph.intents, graph.strengths
    yield graph.degrees(), graph.sources(), graph.restricted(0).cited.targets
    for name in ("cocited", "coupled", "connected"):
        yield attrgetter("offsets", "targets", "strengths")(cw.related(graph, cw.Signal(name), np.arange(graph.nodes)))
    yield _manifest(folder / "vectors")
    yield from _vectors_of(folder / "vectors")


def _intents(folder: Path) -> Iterator[Any]:
    overlay = cw.IntentOverlay.open(folder)
    yield attrgetter("mask", "contexts", "given", "context_mask", "confidence", "context_confidence")(overlay)
    yield overlay.masks_at(0.3)


def _samples_of(folder: Path) -> Iterator[Any]:
    samples = cw.Samples.open(folder)
    yield attrgetter("anchors", "aspects", "tasks", "pool", "contexts", "positives.rules")(samples)
    yield samples.triplets().rows(), [samples.positives.of(row) for row in range(len(samples))]
    yield samples.positives.scores, samples.negatives.scores


def _vectors_of(folder: Path) -> Iterator[Any]:
    vectors = cw.Vectors.open(folder)
    ids, matrix = list(vectors.ids), np.asarray(vectors.matrix)
    yield ids, vectors.rows(IDS), vectors.take(ids[:5]), matrix
    near = cw.nearest(matrix.astype(np.float32), matrix[:2].astype(np.float32), 3)
    yield near.rows, near.scores


def _int8_vectors(folder: Path) -> Iterator[Any]:
    vectors = compressed.CompressedVectors.open(folder)
    yield list(vectors.ids), vectors.decoded(slice(None)), vectors.scores(np.ones((2, vectors.provenance.dimension)))


def _sentence_vectors(folder: Path) -> Iterator[Any]:
    vectors = sentence_vectors.SentenceVectors.open(folder)
    yield list(vectors.ids), vectors.rows(IDS), vectors.numbers, [vectors.sentences(row) for row in range(len(vectors))]
    found = sentence_search.search_sentences(vectors, [vectors.ids[0]], 3, document_distance.DocumentDistance())
    yield found.rows, found.scores


def _tokens(folder: Path) -> Iterator[Any]:
    store = tokens.TokenStore.open(folder)
    yield store.take(range(len(store))), store.lengths()


def _model(folder: Path) -> Iterator[Any]:
    encoder, heads = cw.load_encoder(folder, device="cpu"), aspects.find_heads(folder)
    yield encoder.revision, encoder.settings, encoder.encode(TEXTS)
    yield heads and (heads.names, heads.hash)


def _index_by_rows(folder: Path) -> Iterator[Any]:
    index = cw.Index.open(folder)
    yield index.facts, index.number, len(index)
    yield _manifest(index.place)
    yield attrgetter("matrix", "aspect_matrices", "flags", "text_keys", "record_keys", "cited_as")(index)
    rows = [index.row(id) for id in IDS if id not in ("p:2", "p:5")]
    yield [index.paper(row) for row in rows], [index.references(row) for row in rows]
    yield [index.citing(index.key_of(row)) for row in rows]
    yield index.heads and index.heads.hash, index.known_intents


def _index_asked(folder: Path) -> Iterator[Any]:
    """By compiled code first, which follows numbers without looking."""
    index = cw.Index.open(folder)
    for said in (
        {"text": "the cell grows in data", "by": "words"},
        {"paper": "p:7", "count": 20},
        {"paper": "p:7", "aspect": "method", "where": {"years": [None, 2030]}},
        {"liked": ["p:1", "p:3"], "disliked": ["p:4"], "diversity": 0.5},
        {"sentences": {"paper": "p:8", "numbers": [0]}},
    ):
        found = cw.answer(index, None, cw.Query.from_json(said))
        yield [(hit.id, hit.score, hit.matches) for hit in found.hits]
    yield cw.explain(index, 0, 1), find_neighborhood(index, 7), find_missing_papers(index, min_citing=1)


def _run_record(folder: Path) -> Iterator[Any]:
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


UNSEALED = ("corpus, as a whole", "index", "index, asked", "plain model", "delta model", "whole model", "compact model")
"""Where the manifest is not looked at, or by the reader itself."""

READERS: dict[str, Callable[[Path], Iterable[Any]]] = {
    "corpus": _corpus_by_rows,
    "corpus, as a whole": _corpus_as_a_whole,
    "graph": _graph,
    "related": _parts(build.RelatedFile, "rows related.offsets related.targets related.strengths"),
    "intents": _intents,
    "samples": _samples_of,
    "parts": lambda folder: (
        (*attrgetter("anchors", "positives.rows", "negatives.rows", "contexts")(block), account)
        for block, account in map(read_part, sorted(folder.iterdir()))
    ),
    "vectors": _vectors_of,
    "int8 vectors": _int8_vectors,
    "sentence vectors": _sentence_vectors,
    "tokens": _tokens,
    "shards": lambda folder: ((start, arrays["halved"], arrays.get("row")) for start, arrays in read_shards(folder, 20, 8)),
    "model": _model,
    "index": _index_by_rows,
    "index, asked": _index_asked,
    "map": lambda folder: (lambda found: (found.as_json(), found.keys, found.landmarks, found.centers))(PaperMap.open(folder)),
    "report": lambda folder: (lambda found: (found.value, found.outcomes()))(cw.Report.open(folder)),
    "finished": lambda folder: [(found := evaluate.EvaluationFolder(folder, None, "tag").find("mark")) and found.outcome],
    "run": _run_record,
    "checkpoints": _checkpoints,
    "library": _library,
    "answers": lambda folder: [ResponseCache(folder).load(REQUEST)],
}  # fmt: skip
"""Whatever can be read of each, through the doors that commands use."""
