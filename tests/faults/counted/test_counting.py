"""The counting itself."""

import pytest

from .counting import Trial, read_records


def test_what_does_not_hold_is_counted_told_and_fails(tmp_path):
    trial = Trial("a try", is_whole=False)
    for number in trial.numbers(quick=3, whole=9):
        with trial.attempt(f"number {number}"):
            assert number != 1, "one is bad"
    with pytest.raises(AssertionError, match="3 tried / 2 held\nnumber 1: .*one is bad"):
        trial.finish(tmp_path)
    (record,) = read_records(tmp_path)
    assert (record["tried"], record["held"], len(record["failures"])) == (3, 2, 1)


def test_nothing_tried_is_no_success_and_less_time_than_the_whole_takes_is_a_part(tmp_path):
    trial = Trial("an example", is_whole=True, most_seconds=60)
    assert (trial.seconds(quick=10, whole=600), trial.share) == (60, "part")
    assert sorted(trial.some(range(9), quick=3)) == list(range(9)) and len(trial.some(range(9), quick=3, whole=5)) == 5
    with pytest.raises(AssertionError, match="nothing was tried"):
        trial.finish(tmp_path)
