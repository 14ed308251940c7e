"""A given pool: who may be chosen, who may ask, which vectors are read, and what is refused."""

import gzip

import numpy as np
import pytest

from citeweave import Vectors
from citeweave.core.errors import UserError
from citeweave.graph.citations import graph_from_edges
from citeweave.mining import apply_rules, mine, mining_data, vector_sources
from citeweave.mining.apply_rules import apply_rules as apply_all_rules
from citeweave.mining.audit import audit_samples
from citeweave.mining.inputs import parse_rules, read_rows
from citeweave.mining.mine import MiningInputs, MiningOptions, mine_samples
from citeweave.mining.mining_data import MiningData, match_vectors
from citeweave.pipeline.recipe import load_recipe
from citeweave.vectors.topk import far_band, nearest
from citeweave.vectors.vectors import new_vectors

POOL = np.arange(40, 400, dtype=np.int64)
ASKED = np.arange(350, 450, dtype=np.int64)
"""Half of them are in the pool."""

BANDS = ["mining.negatives.hard.band=100"]


def mined(corpus, folder, inputs, *more, recipe="scincl"):
    rules = parse_rules(load_recipe(recipe, [*(BANDS if recipe == "scincl" else []), *more]).table("mining"))
    return mine_samples(corpus, rules, folder, inputs)


def test_only_the_pool_is_chosen_and_others_may_ask(corpus, graph, vectors, tmp_path):
    inputs = MiningInputs(graph, {"graph": vectors}, anchors=ASKED, pool=POOL)
    for recipe in ("scincl", "specter", "specter_cocite"):
        samples = mined(corpus, tmp_path / recipe, inputs, recipe=recipe)
        chosen = np.concatenate([samples.positives.rows, samples.negatives.rows])
        assert np.isin(chosen, POOL).all() and len(chosen) > 30
        assert np.isin(samples.anchors, ASKED).all()
        assert recipe == "specter_cocite" or (samples.anchors >= 400).any()
    alone = mined(corpus, tmp_path / "alone", MiningInputs(graph, {"graph": vectors}, pool=POOL))
    assert np.isin(alone.anchors, POOL).all()
    assert alone.manifest.facts["skipped"]["no text"] < len(POOL) / 4  # those of the pool, not of the corpus


def test_ranks_are_among_the_pool(corpus, vectors, tmp_path):
    """Positives are the papers at ranks 21 to 25 of a search among the pool's vectors alone."""
    samples = mined(corpus, tmp_path / "s", MiningInputs(None, {"graph": vectors}, anchors=ASKED, pool=POOL))
    material = MiningData(corpus)
    here = POOL[material.in_pool[POOL]]
    matrix = vectors.take(corpus.ids.take(here))
    here = here[matrix.any(axis=1)]
    matrix = matrix[matrix.any(axis=1)]
    for number in range(0, len(samples), 7):
        anchor = int(samples.anchors[number])
        itself = np.array([np.searchsorted(here, anchor) if anchor in here else -1])
        found = nearest(matrix, vectors.take([corpus.ids[anchor]]), 25, itself=itself).rows[0]
        assert set(here[found[20:]]) == set(samples.positives.of(number).tolist())


def test_the_same_by_id_and_by_row(corpus, vectors, tmp_path, monkeypatch):
    inputs = MiningInputs(None, {"graph": vectors}, anchors=ASKED, pool=POOL)
    monkeypatch.setattr(mining_data, "BLOCK", 37)
    expected = mined(corpus, tmp_path / "a", inputs)
    with new_vectors(tmp_path / "v", model="nodes", dtype="float32") as writer:
        order = np.arange(len(corpus))
        writer.append(corpus.ids.take(order), vectors.take(corpus.ids.take(order)))
        ordered = writer.finish()
    assert mining_data._same_ids(ordered, corpus) and not mining_data._same_ids(vectors, corpus)
    monkeypatch.setattr(Vectors, "rows", lambda *_: pytest.fail("ids were looked up"))
    by_row = mined(corpus, tmp_path / "b", MiningInputs(None, {"graph": ordered}, anchors=ASKED, pool=POOL))
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


def test_papers_without_text(corpus, vectors, tmp_path):
    bare = np.flatnonzero(~MiningData(corpus).has_text)
    assert len(bare) > 5
    with pytest.raises(UserError, match=rf"none of the {len(bare)} papers of the pool .*mining.text=any"):
        mined(corpus, tmp_path / "s", MiningInputs(None, {"graph": vectors}, pool=bare))
    pool = np.union1d(bare, POOL)
    inputs = MiningInputs(None, {"graph": vectors}, anchors=pool, pool=pool)
    samples = mined(corpus, tmp_path / "any", inputs, "mining.text=any")
    assert np.isin(samples.negatives.rows, bare).any() and np.isin(samples.anchors, bare).any()


def test_another_pool_is_another_run(corpus, vectors, tmp_path):
    inputs = MiningInputs(None, {"graph": vectors}, anchors=ASKED, pool=POOL)
    mined(corpus, tmp_path / "s", inputs)
    assert mined(corpus, tmp_path / "s", inputs).manifest.recipe["pool"]
    with pytest.raises(UserError, match="made from other inputs"):
        mined(corpus, tmp_path / "s", MiningInputs(None, {"graph": vectors}, anchors=ASKED, pool=POOL[1:]))


def test_bands_that_were_found_are_kept(corpus, vectors, tmp_path, monkeypatch):
    inputs = MiningInputs(None, {"graph": vectors}, anchors=ASKED, pool=POOL)
    whole = mined(corpus, tmp_path / "whole", inputs)
    monkeypatch.setattr(mine, "BLOCK_ANCHORS", 16)
    done: list[int] = []

    def stopping(rules, block, **options):  # type: ignore[no-untyped-def]
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(len(block.anchors))
        return apply_all_rules(rules, block, **options)

    monkeypatch.setattr(apply_rules, "apply_rules", stopping)
    with pytest.raises(KeyboardInterrupt):
        mined(corpus, tmp_path / "s", inputs)
    first = sum(done)
    done[:] = [0, 0]
    with pytest.raises(KeyboardInterrupt):
        mined(corpus, tmp_path / "s", inputs)
    monkeypatch.setattr(apply_rules, "apply_rules", apply_all_rules)
    samples = mined(corpus, tmp_path / "s", inputs)
    assert first == 48 and done[2] == 16
    np.testing.assert_array_equal(samples.triplets().rows(), whole.triplets().rows())


def test_ids_are_read_from_a_file(corpus, tmp_path):
    text = "\n".join([*corpus.ids.take(np.array([7, 3, 7])), "", " nobody ", corpus.ids[5]])
    (tmp_path / "pool.txt").write_text(text)
    (tmp_path / "pool.txt.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("pool.txt", "pool.txt.gz"):
        assert read_rows(tmp_path / name, corpus, "--pool").tolist() == [3, 5, 7]
    (tmp_path / "other.txt").write_text("nobody\n")
    with pytest.raises(UserError, match=r"--pool .*other.txt: none of its 1 ids is in"):
        read_rows(tmp_path / "other.txt", corpus, "--pool")
    with pytest.raises(UserError, match=r"--pool .*missing.txt does not exist"):
        read_rows(tmp_path / "missing.txt", corpus, "--pool")


def test_an_audit_looks_at_the_pool(corpus, graph, vectors, tmp_path, monkeypatch):
    samples = mined(corpus, tmp_path / "s", MiningInputs(graph, {"graph": vectors}, anchors=ASKED, pool=POOL))
    assert samples.pool is not None and samples.pool.tolist() == POOL.tolist()
    in_play = np.union1d(POOL[MiningData(corpus).in_pool[POOL]], samples.anchors)
    found = audit_samples(samples, corpus, graph=graph, vectors={"graph": vectors}, near_duplicates=False)
    assert found.coverage.pool == len(in_play) < MiningData(corpus).in_pool.sum()
    monkeypatch.setattr(samples, "pool", None)
    whole = audit_samples(samples, corpus, graph=graph, vectors={"graph": vectors}, near_duplicates=False)
    assert whole.coverage.pool > found.coverage.pool and len(found.similarities) == 2
    assert str(whole.similarities) == str(found.similarities)


def test_graphs_of_no_corpus_are_told_apart(corpus, vectors, tmp_path):
    one, other = (
        graph_from_edges(np.array(citing), np.array([2, 3, 2, 3]), len(corpus))
        for citing in ([0, 0, 1, 1], [0, 0, 1, 2])
    )
    mined(corpus, tmp_path / "s", MiningInputs(one, {"graph": vectors}, anchors=ASKED))
    with pytest.raises(UserError, match="made from other inputs"):
        mined(corpus, tmp_path / "s", MiningInputs(other, {"graph": vectors}, anchors=ASKED))


def test_a_subsample_is_searched_with_the_memory_that_was_given(corpus, vectors, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(vector_sources, "far_band", lambda *rows, **how: asked.append(how) or far_band(*rows, **how))
    rules = parse_rules(load_recipe("scincl", [*BANDS, "mining.negatives.hard.subsample=300"]).table("mining"))
    mine_samples(
        corpus, rules, tmp_path / "s", MiningInputs(None, {"graph": vectors}), MiningOptions(memory=99 << 20, workers=1)
    )
    assert {(how["memory"], how["workers"], how["device"]) for how in asked} == {(99 << 20, 1, "cpu")}
