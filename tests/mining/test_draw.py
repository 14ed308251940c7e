"""Drawing by keys: uniform, without repetition, the same whatever the block; also of papers that share metadata."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.corpus.corpus import lines
from citeweave.mining import draw, inputs
from citeweave.mining import mine as mining
from citeweave.mining.inputs import MiningInputs, index_shared_values, normalize_name

from .conftest import negatives_of, papers_corpus, refused, table_of, with_text

SALT = draw.derive_salt(0, "t")
RAGGED = st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=12), min_size=1, max_size=6)


def lists_of(entries):
    rows = [row for one in entries for row, _ in one]
    scores = [score for one in entries for _, score in one]
    offsets = np.cumsum([0, *map(len, entries)])
    return draw.CandidateLists(offsets, np.array(rows, np.int32), np.array(scores, np.float32))


def as_lists(lists):
    return [lists.rows[a:b].tolist() for a, b in zip(lists.offsets, lists.offsets[1:], strict=False)]


def keys(number):
    return np.arange(number, dtype=np.uint64) + np.uint64(100)


@given(RAGGED, st.integers(1, 8))
@settings(max_examples=80)
def test_strongest_and_weakest_are_by_score(entries, count):
    entries = [list({row: (row, score) for row, score in one}.values()) for one in entries]
    lists = lists_of(entries)
    for order, sign in (("strongest", -1), ("weakest", 1)):
        taken = draw.choose_candidates(lists, keys(len(entries)), count, order, SALT)
        for one, rows in zip(entries, as_lists(taken), strict=True):
            score = dict(one)
            assert len(set(rows)) == len(rows) == min(count, len(one))
            assert sorted(sign * score[row] for row in rows) == sorted(sign * s for _, s in one)[:count]


@given(RAGGED, st.integers(1, 8))
@settings(max_examples=80)
def test_a_draw_repeats_no_paper_and_depends_on_no_neighbor(entries, count):
    together = as_lists(draw.choose_candidates(lists_of(entries), keys(len(entries)), count, "random", SALT))
    for number, (one, rows) in enumerate(zip(entries, together, strict=True)):
        own = {row for row, _ in one}
        assert set(rows) <= own and len(set(rows)) == len(rows) == min(count, len(own))
        alone = draw.choose_candidates(lists_of([one]), keys(len(entries))[number : number + 1], count, "random", SALT)
        assert as_lists(alone)[0] == rows


def same_lists(anchors, rows):
    return draw.CandidateLists(
        np.arange(anchors + 1) * len(rows),
        np.tile(np.array(rows, np.int32), anchors),
        np.zeros(anchors * len(rows), "f4"),
    )


def test_a_draw_is_uniform():
    anchors = 20_000
    lists = same_lists(anchors, range(5))
    taken = draw.choose_candidates(lists, keys(anchors), 2, "random", draw.derive_salt(1, "t"))
    shares = np.bincount(taken.rows, minlength=5) / anchors
    assert np.all(np.abs(shares - 0.4) < 0.02)
    other = draw.choose_candidates(lists, keys(anchors), 2, "random", draw.derive_salt(2, "t"))
    assert not np.array_equal(taken.rows, other.rows)


def test_the_pool_is_drawn_from_uniformly_and_never_the_forbidden():
    anchors = np.arange(4000)
    pool = np.arange(0, 4000, 2, dtype=np.int32)
    drawn = draw.draw_from_pool(anchors, keys(4000), pool, 5, same_lists(4000, [0, 2, 4]), SALT)
    assert np.array_equal(drawn.counts(), np.full(4000, 5))
    assert not np.isin(drawn.rows, [0, 2, 4]).any() and (drawn.rows % 2 == 0).all()
    assert (drawn.rows != np.repeat(anchors, 5)).all()
    assert all(len(set(rows)) == 5 for rows in as_lists(drawn))
    counts = np.bincount(drawn.rows, minlength=4000)[pool[3:]]
    assert abs(counts.mean() - 20_000 / 1997) < 0.1
    assert abs(counts.var() / counts.mean() - 1) < 0.15


def test_one_paper_of_each_group():
    papers, offsets = np.arange(12, dtype=np.int32), np.array([0, 4, 4, 12])
    groups = np.tile([0, 1, 2], (3000, 1))
    rows = draw.draw_from_groups(
        np.full(3000, 3), keys(3000), groups, offsets, papers, same_lists(3000, [0, 7]), SALT
    )  # the anchor is 3, so 1 and 2 of the first group are left
    assert (rows[:, 1] == -1).all() and set(rows[:, 0]) == {1, 2}
    assert set(rows[:, 2]) == set(range(4, 12)) - {7}
    every = same_lists(1, range(4))
    assert draw.draw_from_groups(np.array([20]), keys(1), groups[:1], offsets, papers, every, SALT)[0, 0] == -1


def drawn_lists(anchors, pool, count, **options):
    number = len(anchors)
    pool = np.array(pool, np.int32)
    return draw.draw_from_pool(np.array(anchors), keys(number), pool, count, draw.empty_lists(number), SALT, **options)


def test_a_smaller_draw_is_the_beginning_of_a_larger_one():
    small, large = (drawn_lists(range(50), range(60), count) for count in (4, 59))
    assert as_lists(draw.take_first(large, 4)) == as_lists(small)
    assert all(set(rows) == set(range(60)) - {anchor} for anchor, rows in enumerate(as_lists(large)))


def test_a_pool_with_too_few_gives_all_it_has():
    assert [sorted(rows) for rows in as_lists(drawn_lists([2, 9], [1, 2, 3], 10))] == [[1, 3], [1, 2, 3]]
    assert as_lists(drawn_lists([2], [], 3)) == [[]]


def test_fields_decide():
    masks = np.array([1, 1, 3, 2, 0], np.uint64)
    for kind, expected in (("same", [1]), ("overlapping", [2]), ("disjoint", [3])):
        assert as_lists(drawn_lists([0], range(5), 5, fields=(masks, kind))) == [expected]


def test_lists_are_joined_filtered_repeated_and_mixed():
    first, second = lists_of([[(1, 0), (2, 0)], []]), lists_of([[(3, 0)], [(4, 0)]])
    both = draw.join_lists(first, second)
    assert as_lists(both) == [[1, 2, 3], [4]]
    assert as_lists(draw.drop_forbidden(both, lists_of([[(2, 0)], [(2, 0)]]), 10)) == [[1, 3], [4]]
    assert as_lists(draw.filter_entries(both, np.array([True, False, False, True]))) == [[1], [4]]
    assert as_lists(draw.repeat_to(both, 5)) == [[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]]
    assert as_lists(draw.repeat_to(first, 3)) == [[1, 2, 1], []]
    order = draw.shuffle(both, keys(2), SALT)
    assert sorted(order[:3].tolist()) == [0, 1, 2] and order[3] == 3


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
    forbidden = draw.CandidateLists(np.arange(papers + 1), banned, np.zeros(papers, np.float32))
    first, second = (index_shared_values(each[:, 0], each[:, 1], in_pool) for each in (wanted, unwanted))
    keys, salt = anchors.astype(np.uint64), np.uint64(7)
    found = draw.draw_sharing_papers(anchors, keys, first, second, count, forbidden, salt, pool_size=int(in_pool.sum()))
    for row in range(papers):
        chosen = found.rows[found.offsets[row] : found.offsets[row + 1]].tolist()
        sharing = [other for other in range(papers) if in_pool[other] and values[row] & values[other]]
        allowed = {other for other in sharing if not against[row] & against[other]} - {row, (row + 1) % papers}
        assert set(chosen) <= allowed
        assert len(set(chosen)) == len(chosen) == min(count, len(allowed))
    one, other = np.divmod(np.arange(papers * papers), papers)
    expected = [bool(against[a] & against[b]) for a, b in zip(one.tolist(), other.tolist(), strict=True)]
    assert draw.share_a_value(second, one, other.astype(np.int32)).tolist() == expected


@pytest.mark.parametrize("papers", [11, 5011])
def test_papers_that_share_more_are_not_drawn_more(papers):
    """Paper 0 shares one value with each of 1 to 9, three with 10; where there are more, those are of no use."""
    assert (papers > draw.SCAN_ALL) == (papers == 5011)
    pairs = [(row, 0) for row in range(papers)] + [(row, value) for row in (0, 10) for value in (1, 2)]
    in_pool, number = np.ones(papers, bool), 4000
    found = index_shared_values(*np.array(pairs).T, in_pool)
    unwanted = index_shared_values(np.array([0, *range(11, papers)]), np.zeros(papers - 10, np.int64), in_pool)
    anchors, keys = np.zeros(number, np.int64), np.arange(number).astype(np.uint64)
    drawn = draw.draw_sharing_papers(
        anchors, keys, found, unwanted, 1, draw.empty_lists(number), np.uint64(3), pool_size=papers
    )
    counts = np.bincount(drawn.rows, minlength=11)[1:11]
    assert counts.sum() == number
    assert counts.min() > 320 and counts.max() < 480
    assert (drawn.offsets[1:] == np.arange(1, number + 1)).all()


def test_a_large_venue_is_not_listed():
    size = 100_000
    venue = index_shared_values(np.arange(size), np.zeros(size, np.int64), np.ones(size, bool))
    anchors = np.arange(0, size, 10)
    keys, none = anchors.astype(np.uint64), draw.empty_lists(len(anchors))
    found = draw.draw_sharing_papers(anchors, keys, venue, None, 5, none, np.uint64(1), pool_size=size)
    assert len(found.rows) == 5 * len(anchors)
    assert len(np.unique(found.rows)) > 35_000


def test_names_are_compared_without_case(corpus):
    found = inputs.collect_shared_metadata(corpus, ("venue", "field"), np.ones(len(corpus), bool))
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
