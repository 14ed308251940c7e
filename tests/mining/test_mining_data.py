"""A given pool: who may be chosen, who may be an anchor, which vectors are read, and what is refused."""

import numpy as np
import pytest

from citeweave import Vectors
from citeweave.core.errors import UserError
from citeweave.mining import mine as mining
from citeweave.mining import mining_data, vector_sources
from citeweave.mining.audit import audit_samples
from citeweave.mining.mine import MiningInputs
from citeweave.mining.mining_data import MiningData, match_vectors
from citeweave.vectors.topk import far_band, nearest
from citeweave.vectors.vectors import new_vectors

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
    monkeypatch.setattr(mining_data, "BLOCK", 37)
    expected = mine(*SCINCL, inputs=given, name="a")
    ids = corpus.ids.take(np.arange(len(corpus)))
    with new_vectors(tmp_path / "v", model="nodes", dtype="float32") as writer:
        writer.append(ids, vectors.take(ids))
        ordered = writer.finish()
    assert mining_data._same_ids(ordered, corpus) and not mining_data._same_ids(vectors, corpus)
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
