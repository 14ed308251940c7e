"""What papers share, against plain sets: who may be drawn, how evenly, and that no block or seed changes it unasked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.corpus.corpus import lines
from citeweave.mining import mine as mining
from citeweave.mining import shared_metadata
from citeweave.mining.draw import CandidateLists, empty_lists
from citeweave.mining.mine import MiningInputs
from citeweave.mining.shared_metadata import draw_sharing_papers, index_shared_values, normalize_name

from .conftest import negatives_of, papers_corpus, refused, table_of, with_text

TABLE = table_of("sciaspect_relations")


def shared_values(corpus, relation):
    """The values of every paper."""
    column = {"venue": corpus.venues, "author": corpus.authors, "field": corpus.fields}[relation]
    return [{normalize_name(name) for name in lines(text)} - {""} for text in column]


def test_relations_are_followed(corpus, graph, mine, monkeypatch):
    samples = mine(TABLE, inputs=MiningInputs(graph=graph), workers=1)
    sets = {relation: shared_values(corpus, relation) for relation in TABLE["aspects"]}
    connected = set(zip(graph.sources().tolist(), graph.cited.targets.tolist(), strict=True))
    pool = with_text(corpus).tolist()
    for number in range(len(samples)):
        anchor, aspect = int(samples.anchors[number]), samples.names.aspects[samples.aspects[number]]

        def common(row, anchor=anchor):
            return {relation for relation, values in sets.items() if values[anchor] & values[row]}

        assert all(aspect in common(row) for row in samples.positives.of(number).tolist())
        hard = negatives_of(samples, number, "hard")
        assert all(aspect not in common(row) and common(row) for row in hard)
        for row in negatives_of(samples, number, *set(samples.names.rules) - {"hard"}):
            assert not common(row) and not {(anchor, row), (row, anchor)} & connected
        if number % 40 == 0:
            candidates = [row for row in pool if row != anchor and common(row) and aspect not in common(row)]
            assert len(hard) == min(10, len(candidates))
    # an aspect is left out exactly where nobody shares it
    for place, relation in enumerate(samples.names.aspects):
        used = set(samples.anchors[samples.aspects == place].tolist())
        values = sets[relation]
        assert used == {row for row in pool if any(values[row] & values[other] for other in pool if other != row)}
    monkeypatch.setattr(mining, "BLOCK_ANCHORS", 200)
    assert mine(TABLE, inputs=MiningInputs(graph=graph), workers=1, name="blocks").hash == samples.hash


@settings(max_examples=60)
@given(st.data())
def test_draws_are_those_of_sets(data):
    papers = data.draw(st.integers(2, 30))
    pair = st.tuples(st.integers(0, papers - 1), st.integers(0, 6))
    wanted, unwanted = (np.array(data.draw(st.lists(pair, max_size=60)), np.int64).reshape(-1, 2) for _ in range(2))
    in_pool = np.array(data.draw(st.lists(st.booleans(), min_size=papers, max_size=papers)))
    count = data.draw(st.integers(1, 8))
    values, against = (
        [{int(v) for p, v in pairs if p == row} for row in range(papers)] for pairs in (wanted, unwanted)
    )
    anchors = np.arange(papers)
    banned = ((anchors + 1) % papers).astype(np.int32)
    forbidden = CandidateLists(np.arange(papers + 1), banned, np.zeros(papers, np.float32))
    first, second = (index_shared_values(each[:, 0], each[:, 1], in_pool) for each in (wanted, unwanted))
    keys, salt = anchors.astype(np.uint64), np.uint64(7)
    found = draw_sharing_papers(anchors, keys, first, second, count, forbidden, salt, pool_size=int(in_pool.sum()))
    for row in range(papers):
        chosen = found.rows[found.offsets[row] : found.offsets[row + 1]].tolist()
        sharing = [other for other in range(papers) if in_pool[other] and values[row] & values[other]]
        allowed = {other for other in sharing if not against[row] & against[other]} - {row, (row + 1) % papers}
        assert set(chosen) <= allowed
        assert len(set(chosen)) == len(chosen) == min(count, len(allowed))
    one, other = np.divmod(np.arange(papers * papers), papers)
    expected = [bool(against[a] & against[b]) for a, b in zip(one.tolist(), other.tolist(), strict=True)]
    assert shared_metadata.share_a_value(second, one, other.astype(np.int32)).tolist() == expected


@pytest.mark.parametrize("papers", [11, 5011])
def test_papers_that_share_more_are_not_drawn_more(papers):
    """Paper 0 shares one value with each of 1 to 9, three with 10; where there are more, those are of no use."""
    assert (papers > shared_metadata.SCAN_ALL) == (papers == 5011)
    pairs = [(row, 0) for row in range(papers)] + [(row, value) for row in (0, 10) for value in (1, 2)]
    in_pool, number = np.ones(papers, bool), 4000
    found = index_shared_values(*np.array(pairs).T, in_pool)
    unwanted = index_shared_values(np.array([0, *range(11, papers)]), np.zeros(papers - 10, np.int64), in_pool)
    anchors, keys = np.zeros(number, np.int64), np.arange(number).astype(np.uint64)
    drawn = draw_sharing_papers(anchors, keys, found, unwanted, 1, empty_lists(number), np.uint64(3), pool_size=papers)
    counts = np.bincount(drawn.rows, minlength=11)[1:11]
    assert counts.sum() == number
    assert counts.min() > 320 and counts.max() < 480
    assert (drawn.offsets[1:] == np.arange(1, number + 1)).all()


def test_a_large_venue_is_not_listed():
    size = 100_000
    venue = index_shared_values(np.arange(size), np.zeros(size, np.int64), np.ones(size, bool))
    anchors = np.arange(0, size, 10)
    keys, none = anchors.astype(np.uint64), empty_lists(len(anchors))
    found = draw_sharing_papers(anchors, keys, venue, None, 5, none, np.uint64(1), pool_size=size)
    assert len(found.rows) == 5 * len(anchors)
    assert len(np.unique(found.rows)) > 35_000


def test_names_are_compared_without_case(corpus):
    found = shared_metadata.collect_shared_metadata(corpus, ("venue", "field"), np.ones(len(corpus), bool))
    venues, fields = shared_values(corpus, "venue"), shared_values(corpus, "field")
    assert len(found.values) == sum(map(len, venues)) + sum(map(len, fields))
    assert len(found.member_offsets) - 1 == len(set().union(*venues)) + len(set().union(*fields))
    assert normalize_name(" ACL\t2020 ") == normalize_name("acl 2020")


def test_a_relation_that_nobody_has(mine, tmp_path):
    papers = [{"id": f"{i}", "title": f"paper {i}", "abstract": "text", "venue": "ACL"} for i in range(5)]
    given = {"corpus": papers_corpus(tmp_path, papers), "inputs": MiningInputs()}
    table = {**TABLE, "negatives": {}}
    message = "share by author, field, and no paper of .* has author or field; leave that out of mining.aspects"
    refused(message, mine, {**table, "aspects": ["author", "field"]}, **given)
    some = mine(table, **given)
    assert np.bincount(some.aspects).tolist() == [5]
    assert some.manifest.facts["aspects_skipped"]["author"] == {"no positive": 5}
    for wrong in ({"every_aspect": True}, {"positives": {"source": "shares", "count": 1, "relation": "author"}}):
        refused("has author", mine, {**table, **wrong}, **given, name="t")
