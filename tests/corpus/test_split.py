"""Splits: nothing moves when the corpus grows, citations follow the citing paper, errors say what to do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.errors import EmptyResultError, UserError
from citeweave.corpus.split import SplitPart, hash_ids, split_by_share, split_by_year

from .conftest import refused

IDS = [f"s2:{number}" for number in range(5000)]


TRAIN, VALIDATION, TEST = SplitPart.TRAIN, SplitPart.VALIDATION, SplitPart.TEST


CUTS = [
    ([2010, 2015, 2016, 2017, 2020], 2016, [TRAIN, TRAIN, VALIDATION, TEST, TEST], 0),
    ([0, 2015, 2016, 2017, 0], 2016, [TRAIN, TRAIN, VALIDATION, TEST, TRAIN], 2),  # unknown years train
    ([2015, 2017], 2017, [TRAIN, TEST], 0),  # equal years leave validation out
]


@pytest.mark.parametrize(("years", "validation_from", "codes", "unknown_years"), CUTS)
def test_years_cut_papers_and_citations_follow_the_citing_paper(years, validation_from, codes, unknown_years):
    split = split_by_year(years, validation_from=validation_from, test_from=2017)
    assert split.codes.tolist() == codes and split.unknown_years == unknown_years
    assert split.train.tolist() == [row for row, code in enumerate(codes) if code == TRAIN]
    counts = {name: codes.count(part) for name, part in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST))}
    assert split.as_json() == {**counts, "unknown_years": unknown_years}
    citing = np.array([1, 1, 0])
    assert split.of_citations(citing).tolist() == [codes[1], codes[1], codes[0]]


def test_wrong_years_are_refused():
    with pytest.raises(UserError, match="validation_from is 2018; it must not be after test_from, which is 2017"):
        split_by_year([2015], validation_from=2018, test_from=2017)
    with pytest.raises(EmptyResultError, match=r"test part .* go from 2015 to 2016"):
        split_by_year([2015, 2016], validation_from=2016, test_from=2030)
    refused("no paper has a year", split_by_year, [0, 0], validation_from=2016, test_from=2017, error=EmptyResultError)


def test_shares_are_about_what_was_requested_and_seeds_draw_apart():
    counts = split_by_share(IDS, validation=0.1, test=0.2, seed=3).as_json()
    assert abs(counts["validation"] - 500) < 85  # four standard deviations
    assert abs(counts["test"] - 1000) < 115
    first, second = (split_by_share(IDS, validation=0.1, test=0.1, seed=seed) for seed in (1, 2))
    assert 20 < len(np.intersect1d(first.test, second.test)) < 85  # about a tenth of a tenth


def test_hashes_are_pinned():
    """The same on every machine and in every version: splits in published results stay what they are."""
    pinned = [14091426604737907990, 9136903942087014420, 561324649295477674]
    assert hash_ids(["s2:1", "doi:10.1000/ü", ""], seed=1).tolist() == pinned


@given(st.permutations(range(40)), st.integers(20, 40))
def test_a_papers_part_depends_on_its_id_alone(order, number):
    whole = dict(zip(IDS, split_by_share(IDS, validation=0.3, test=0.3, seed=5).codes.tolist(), strict=True))
    ids = [IDS[place] for place in order[:number]]
    try:
        part = split_by_share(ids, validation=0.3, test=0.3, seed=5)
    except EmptyResultError:
        return
    assert part.codes.tolist() == [whole[name] for name in ids]


def test_one_share_leaves_the_other_alone():
    small = split_by_share(IDS, validation=0.05, test=0.1, seed=1)
    large = split_by_share(IDS, validation=0.40, test=0.1, seed=1)
    assert small.test.tolist() == large.test.tolist()
    assert set(small.validation) < set(large.validation)


WRONG_SHARES = [
    (-0.1, 0.1, "validation is -0.1; a share must be"),
    (0.1, 1.0, "test is 1.0; a share must be"),
    (float("nan"), 0.1, "validation is nan"),
    (0.6, 0.4, "leave nothing to train on"),
]


@pytest.mark.parametrize(("validation", "test", "message"), WRONG_SHARES)
def test_wrong_shares_are_refused(validation, test, message):
    refused(message, split_by_share, IDS, validation=validation, test=test, seed=1)


def test_an_empty_part_is_an_error_unless_its_share_is_0():
    refused("only 2 papers", split_by_share, IDS[:2], validation=0.01, test=0.01, seed=1, error=EmptyResultError)
    with pytest.raises(EmptyResultError):
        split_by_share([], validation=0.1, test=0.1, seed=1)
    assert split_by_share(IDS[:2], validation=0.0, test=0.0, seed=1).as_json()["train"] == 2
