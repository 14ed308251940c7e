"""Inputs of mining: intents, graphs and ids as a command reads them; a given pool, and which vectors are read."""

import gzip
from itertools import combinations

import numpy as np
import pytest

from citeweave import Vectors
from citeweave.core.artifact import new_artifact
from citeweave.core.errors import UserError
from citeweave.corpus.ingest import exclude_papers, import_papers
from citeweave.graph.citations import build_graph
from citeweave.graph.intent_overlay import KIND, VERSION, IntentSource, OverlayWriter, confidence_from_mask
from citeweave.mining import inputs as module
from citeweave.mining import mine as mining
from citeweave.mining import vector_sources
from citeweave.mining.audit import audit_samples
from citeweave.mining.inputs import MiningData, MiningInputs, check_intents, graph_inputs, match_vectors, read_rows
from citeweave.mining.rules import parse_rules
from citeweave.pipeline.recipe import load_recipe
from citeweave.vectors.topk import far_band, nearest
from citeweave.vectors.vectors import new_vectors

from .conftest import refused, table_of, write_jsonl


def test_a_graph_without_vectors_of_intents_is_refused(corpus, tmp_path):
    table = {**load_recipe("sciaspect_bands").table("graph"), "dimension": 8}
    module.build_mining_graph(corpus, tmp_path / "plain", table, with_vectors=True)
    with pytest.raises(UserError, match="no node vectors of the citations of aspect 'method'.*--per-intent"):
        graph_inputs(tmp_path / "plain", table, with_vectors=True, aspects=["method"])


def write_overlay(corpus, mask, folder):
    with new_artifact(folder, KIND, VERSION, {"corpus": corpus.hash}) as artifact:
        writer, contexts, ones = OverlayWriter(artifact), len(corpus.contexts), np.ones(len(mask), np.int64)
        writer.append_contexts(np.zeros(contexts, np.uint8), np.zeros((contexts, 3), np.float16))
        writer.close()
        writer.write_citations(mask, confidence_from_mask(mask), ones, np.zeros(len(mask), bool))
        counts = {"citations": {"all": len(mask)}, "contexts": {"all": contexts}}
        artifact.facts |= {"corpus": corpus.hash, "least": 0.5, **counts}
        artifact.finish()


def test_intents_of_an_overlay_are_matched_by_ids(corpus, graph, tmp_path):
    mask = np.random.default_rng(5).choice([1, 2, 4], len(corpus.citing)).astype(np.uint8)
    overlay = str(tmp_path / "intents")
    write_overlay(corpus, mask, tmp_path / "intents")
    fewer = exclude_papers(corpus, np.arange(0, 600, 9), tmp_path / "fewer", why="a test")
    smaller = build_graph(fewer, tmp_path / "graph")
    edges = zip(corpus.citing.tolist(), corpus.cited.tolist(), mask.tolist(), strict=True)
    wanted = {(corpus.ids[a], corpus.ids[b]): bits for a, b, bits in edges}
    for found, own in (
        (IntentSource(overlay).annotate(graph, corpus), corpus),
        (IntentSource(overlay, of=corpus).annotate(smaller, fewer), fewer),
    ):
        pairs = zip(found.sources().tolist(), found.cited.targets.tolist(), strict=True)
        assert [wanted[own.ids[a], own.ids[b]] for a, b in pairs] == found.intents.tolist()
    refused("an overlay fits only the corpus it was made from", IntentSource(overlay).annotate, smaller, fewer)
    refused("--intents nowhere: there is no such folder.*citeweave annotate", IntentSource, "nowhere")


MISSING_INTENTS = [
    ("sciaspect", [], False, "have none; it has no citing sentences .* still run: specter_cl, scincl, sciaspect_r"),
    ("sciaspect", [], True, "have none; find them with `citeweave annotate .*--intents sections"),
    ("sciaspect", ["method"], True, "background 0, method 15, result 0, none has background; .*needs two"),
    ("sciaspect", ["method", "result"], True, r"none has background; leave it out with --set .*\[\"method\", \"r"),
    ("sciaspect_bands", ["method"], True, "none has background; a recipe that sets one intent against another"),
]


@pytest.mark.parametrize(("recipe", "intents", "contexts", "message"), MISSING_INTENTS)
def test_missing_intents_are_named(recipe, intents, contexts, message, tmp_path):
    """Six papers that cite each other with these intents in turn."""
    folder, pairs = tmp_path / "in", [(a, b) for b, a in combinations(range(6), 2)]
    folder.mkdir()
    write_jsonl(folder / "papers.jsonl", [{"id": str(n), "title": f"paper {n}", "abstract": "text"} for n in range(6)])
    (folder / "citations.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    if contexts:
        sentences = [{"citing": str(a), "cited": [str(b)], "text": f"as {i} in [1]"} for i, (a, b) in enumerate(pairs)]
        cycle = [intents[i % len(intents) :][:1] if intents else [] for i in range(len(pairs))]
        rows = [{**line, "intents": own} for line, own in zip(sentences, cycle, strict=True)]
        write_jsonl(folder / "contexts.jsonl", rows)
    corpus = import_papers(folder, tmp_path / "corpus").corpus
    inputs = module.annotate_inputs(MiningInputs(graph=build_graph(corpus, tmp_path / "graph")), corpus)
    refused(message, check_intents, inputs, parse_rules(table_of(recipe)), corpus)
    check_intents(inputs, parse_rules(table_of("sciaspect_relations")), corpus)


def test_ids_are_read_from_a_file(corpus, tmp_path):
    text = "\n".join([*corpus.ids.take(np.array([7, 3, 7])), "", " nobody ", corpus.ids[5]])
    (tmp_path / "pool.txt").write_text(text)
    (tmp_path / "pool.txt.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("pool.txt", "pool.txt.gz"):
        assert read_rows(tmp_path / name, corpus, "--pool").tolist() == [3, 5, 7]
    (tmp_path / "other.txt").write_text("nobody\n")
    for name, message in (("other", "other.txt: none of its 1 ids is in"), ("missing", "missing.txt does not exist")):
        refused(f"--pool .*{message}", read_rows, tmp_path / f"{name}.txt", corpus, "--pool")


POOL = np.arange(40, 400, dtype=np.int64)
ANCHORS = np.arange(350, 450, dtype=np.int64)
"""Half of them are in the pool."""

SCINCL = ("scincl", "mining.negatives.hard.band=100")


@pytest.fixture
def given(vectors):
    return MiningInputs(None, {"graph": vectors}, anchors=ANCHORS, pool=POOL)


def test_only_the_pool_is_chosen_and_others_may_be_anchors(graph, vectors, mine):
    inputs = MiningInputs(graph, {"graph": vectors}, anchors=ANCHORS, pool=POOL)
    for recipe in (SCINCL, ("specter",), ("specter_cocite",)):
        samples = mine(*recipe, inputs=inputs, name=recipe[0])
        chosen = np.concatenate([samples.positives.rows, samples.negatives.rows])
        assert np.isin(chosen, POOL).all() and len(chosen) > 30
        assert np.isin(samples.anchors, ANCHORS).all()
        assert recipe == ("specter_cocite",) or (samples.anchors >= 400).any()
    alone = mine(*SCINCL, inputs=MiningInputs(graph, {"graph": vectors}, pool=POOL), name="alone")
    assert np.isin(alone.anchors, POOL).all()
    assert alone.manifest.facts["skipped"]["no text"] < len(POOL) / 4  # those of the pool, not of the corpus


def test_ranks_are_among_the_pool_and_another_pool_is_another_run(corpus, vectors, given, mine):
    """Positives are the papers at ranks 21 to 25 of a search among the pool's vectors alone."""
    samples = mine(*SCINCL, inputs=given)
    here = POOL[MiningData(corpus).in_pool[POOL]]
    matrix = vectors.take(corpus.ids.take(here))
    here, matrix = here[matrix.any(axis=1)], matrix[matrix.any(axis=1)]
    for number in range(0, len(samples), 7):
        anchor = int(samples.anchors[number])
        itself = np.array([np.searchsorted(here, anchor) if anchor in here else -1])
        found = nearest(matrix, vectors.take([corpus.ids[anchor]]), 25, itself=itself).rows[0]
        assert set(here[found[20:]]) == set(samples.positives.of(number).tolist())
    assert mine(*SCINCL, inputs=given).manifest.recipe["pool"]
    with pytest.raises(UserError, match="made from other inputs"):
        mine(*SCINCL, inputs=MiningInputs(None, {"graph": vectors}, anchors=ANCHORS, pool=POOL[1:]))


def test_the_same_by_id_and_by_row(corpus, vectors, given, mine, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 37)
    expected = mine(*SCINCL, inputs=given, name="a")
    ids = corpus.ids.take(np.arange(len(corpus)))
    with new_vectors(tmp_path / "v", model="nodes", dtype="float32") as writer:
        writer.append(ids, vectors.take(ids))
        ordered = writer.finish()
    assert module._same_ids(ordered, corpus) and not module._same_ids(vectors, corpus)
    monkeypatch.setattr(Vectors, "rows", lambda *_: pytest.fail("ids were looked up"))
    by_row = mine(*SCINCL, inputs=MiningInputs(None, {"graph": ordered}, anchors=ANCHORS, pool=POOL), name="b")
    np.testing.assert_array_equal(by_row.triplets().rows(), expected.triplets().rows())


def test_few_vectors_are_copied_where_they_fit(corpus, vectors):
    in_pool, size = np.isin(np.arange(len(corpus)), POOL), 24 * 4 * len(POOL)
    tied, mapped, all_of_them = (
        match_vectors(vectors, corpus, in_pool, papers=papers, memory=memory)
        for papers, memory in ((POOL, size), (POOL, size - 1), (None, size))
    )
    assert tied.matrix.shape == (360, 24) and tied.matrix.flags.owndata
    assert mapped.matrix is vectors.matrix and all_of_them.matrix is vectors.matrix
    for found in (tied, mapped, all_of_them):
        papers = found.paper_of[found.pool]
        assert set(papers) == {paper for paper in POOL if vectors.take([corpus.ids[int(paper)]]).any()}
        np.testing.assert_array_equal(found.matrix[found.row_of[papers]], vectors.take(corpus.ids.take(papers)))
        assert (np.diff(found.pool) > 0).all()
    assert (tied.row_of[400:] == -1).all() and (all_of_them.row_of[400:] >= 0).any()


def test_papers_without_text(corpus, vectors, mine):
    bare = np.flatnonzero(~MiningData(corpus).has_text)
    assert len(bare) > 5
    with pytest.raises(UserError, match=rf"none of the {len(bare)} papers of the pool .*mining.text=any"):
        mine(*SCINCL, inputs=MiningInputs(None, {"graph": vectors}, pool=bare))
    pool = np.union1d(bare, POOL)
    samples = mine(*SCINCL, "mining.text=any", inputs=MiningInputs(None, {"graph": vectors}, anchors=pool, pool=pool))
    assert np.isin(samples.negatives.rows, bare).any() and np.isin(samples.anchors, bare).any()


def test_computed_bands_are_kept(corpus, given, mine, stop_mining, monkeypatch):
    whole = mine(*SCINCL, inputs=given, name="whole")
    monkeypatch.setattr(mining, "BLOCK_ANCHORS", 16)
    for after in (3, 4):
        sizes = stop_mining(after)
        with pytest.raises(KeyboardInterrupt):
            mine(*SCINCL, inputs=given)
    assert sizes == [16] * 4
    stop_mining(-1)
    samples = mine(*SCINCL, inputs=given)
    assert sum(sizes) == MiningData(corpus).in_pool[ANCHORS].sum()
    np.testing.assert_array_equal(samples.triplets().rows(), whole.triplets().rows())


def test_an_audit_looks_at_the_pool(corpus, graph, vectors, mine, monkeypatch):
    samples = mine(*SCINCL, inputs=MiningInputs(graph, {"graph": vectors}, anchors=ANCHORS, pool=POOL))
    assert samples.pool is not None and samples.pool.tolist() == POOL.tolist()
    in_play = np.union1d(POOL[MiningData(corpus).in_pool[POOL]], samples.anchors)
    found = audit_samples(samples, corpus, graph=graph, vectors={"graph": vectors}, near_duplicates=False)
    assert found.coverage.pool == len(in_play) < MiningData(corpus).in_pool.sum()
    monkeypatch.setattr(samples, "pool", None)
    whole = audit_samples(samples, corpus, graph=graph, vectors={"graph": vectors}, near_duplicates=False)
    assert whole.coverage.pool > found.coverage.pool and len(found.similarities) == 2
    assert str(whole.similarities) == str(found.similarities)


def test_a_subsample_is_searched_with_the_given_memory(vectors, mine, monkeypatch):
    calls = []
    monkeypatch.setattr(vector_sources, "far_band", lambda *rows, **how: calls.append(how) or far_band(*rows, **how))
    inputs = MiningInputs(None, {"graph": vectors})
    mine(*SCINCL, "mining.negatives.hard.subsample=300", inputs=inputs, memory=99 << 20, workers=1)
    assert {(how["memory"], how["workers"], how["device"]) for how in calls} == {(99 << 20, 1, "cpu")}
