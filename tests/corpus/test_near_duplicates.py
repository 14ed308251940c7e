"""Near-duplicate texts by their shingles: equal to plain Python sets."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.corpus.near_duplicates import DuplicateThreshold, ShingleIndex, shingle_texts


def test_words_of_other_scripts_are_counted():
    texts = {"深度学习 方法": 6, "état\u2013nation «über» naïve": 4, "a\u00a0b \u2014 c_d": 4, "": 0}
    texts["\ud800"] = 0  # a lone surrogate becomes a question mark
    assert {text: int(shingle_texts([text], words=1).bounds[-1]) for text in texts} == texts


WORDS = st.lists(st.sampled_from(list("abcdefg")), max_size=14).map(" ".join)


@settings(max_examples=200)
@given(st.lists(WORDS, max_size=8), st.lists(WORDS, max_size=8), st.integers(1, 3), st.integers(1, 4))
def test_shared_shingles_equal_those_of_plain_sets(known, queries, words, boilerplate):
    def shingles(text):
        parts = re.findall("[a-z]", text)
        return {tuple(parts[i : i + words]) for i in range(len(parts) - words + 1)}

    sets = [shingles(text) for text in known]
    common = {s for s in set().union(*sets) if sum(s in other for other in sets) > boilerplate}
    expected = {}
    for query, text in enumerate(queries):
        for row, other in enumerate(sets):
            left, right = shingles(text) - common, other - common
            both = len(left & right)
            if min(len(left), len(right)) >= 2 and both and both >= 0.4 * min(len(left), len(right)):
                expected[query, row] = (both, both / min(len(left), len(right)), both / len(left | right))
    index = ShingleIndex.build(shingle_texts(known, words), boilerplate)
    found = index.find(shingle_texts(queries, words), DuplicateThreshold(containment=0.4, minimum=2))
    keys = list(zip(found.queries.tolist(), found.rows.tolist(), strict=True))
    assert set(keys) == set(expected) and len(keys) == len(expected)
    for place, key in enumerate(keys):
        result = found.shared[place], found.containment[place], found.jaccard[place]
        assert result == pytest.approx(expected[key], rel=1e-6)


def test_there_may_be_more_pairs_than_room():
    texts = ["we learn vectors of papers"] * 90
    index = ShingleIndex.build(shingle_texts(texts, 2))
    assert len(index.find(shingle_texts(texts, 2), DuplicateThreshold(containment=0.5)).queries) == 90 * 90
