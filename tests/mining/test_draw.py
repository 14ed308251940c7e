"""Drawing by keys: uniform, without repetition, the same whatever the block."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.mining import draw
from citeweave.mining.draw import CandidateLists, choose_candidates, derive_salt, draw_from_pool, empty_lists

SALT = derive_salt(0, "t")
RAGGED = st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=12), min_size=1, max_size=6)


def lists_of(entries):
    rows = [row for one in entries for row, _ in one]
    scores = [score for one in entries for _, score in one]
    offsets = np.cumsum([0, *map(len, entries)])
    return CandidateLists(offsets, np.array(rows, np.int32), np.array(scores, np.float32))


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
        taken = choose_candidates(lists, keys(len(entries)), count, order, SALT)
        for one, rows in zip(entries, as_lists(taken), strict=True):
            score = dict(one)
            assert len(set(rows)) == len(rows) == min(count, len(one))
            assert sorted(sign * score[row] for row in rows) == sorted(sign * s for _, s in one)[:count]


@given(RAGGED, st.integers(1, 8))
@settings(max_examples=80)
def test_a_draw_repeats_no_paper_and_depends_on_no_neighbor(entries, count):
    together = as_lists(choose_candidates(lists_of(entries), keys(len(entries)), count, "random", SALT))
    for number, (one, rows) in enumerate(zip(entries, together, strict=True)):
        own = {row for row, _ in one}
        assert set(rows) <= own and len(set(rows)) == len(rows) == min(count, len(own))
        alone = choose_candidates(lists_of([one]), keys(len(entries))[number : number + 1], count, "random", SALT)
        assert as_lists(alone)[0] == rows


def same_lists(anchors, rows):
    return CandidateLists(
        np.arange(anchors + 1) * len(rows),
        np.tile(np.array(rows, np.int32), anchors),
        np.zeros(anchors * len(rows), "f4"),
    )


def test_a_draw_is_uniform():
    anchors = 20_000
    lists = same_lists(anchors, range(5))
    taken = choose_candidates(lists, keys(anchors), 2, "random", derive_salt(1, "t"))
    shares = np.bincount(taken.rows, minlength=5) / anchors
    assert np.all(np.abs(shares - 0.4) < 0.02)
    other = choose_candidates(lists, keys(anchors), 2, "random", derive_salt(2, "t"))
    assert not np.array_equal(taken.rows, other.rows)


def test_the_pool_is_drawn_from_uniformly_and_never_the_forbidden():
    anchors = np.arange(4000)
    pool = np.arange(0, 4000, 2, dtype=np.int32)
    drawn = draw_from_pool(anchors, keys(4000), pool, 5, same_lists(4000, [0, 2, 4]), SALT)
    assert np.array_equal(drawn.counts(), np.full(4000, 5))
    assert not np.isin(drawn.rows, [0, 2, 4]).any() and (drawn.rows % 2 == 0).all()
    assert (drawn.rows != np.repeat(anchors, 5)).all()
    assert all(len(set(rows)) == 5 for rows in as_lists(drawn))
    counts = np.bincount(drawn.rows, minlength=4000)[pool[3:]]
    assert abs(counts.mean() - 20_000 / 1997) < 0.1
    assert abs(counts.var() / counts.mean() - 1) < 0.15


def drawn_lists(anchors, pool, count, **options):
    number = len(anchors)
    pool = np.array(pool, np.int32)
    return draw_from_pool(np.array(anchors), keys(number), pool, count, empty_lists(number), SALT, **options)


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
