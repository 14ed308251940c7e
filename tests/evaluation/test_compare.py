"""Comparing reports: what is significant, what is not, and what must not be compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from citeweave.core.artifact import Manifest
from citeweave.core.errors import UserError
from citeweave.evaluation.compare import OVERALL, compare, holm, two_sided
from citeweave.evaluation.report import Report, comparison_as_markdown


def report(name: str, values: dict[str, np.ndarray], *, mark: str = "same", suite: str = "toy") -> Report:
    """A report whose tasks have one metric, `map`, with these values by query."""
    value = {
        "suite": suite,
        "model": {"name": name},
        "headline": [],
        "tasks": {task: {"kind": "ranking", "how": {"map": "mean"}, "notes": [], "chosen": {}} for task in values},
        "per_query": {
            task: {f"q{at}": {"map": float(number)} for at, number in enumerate(numbers)}
            for task, numbers in values.items()
        },
        "coverage": {task: {} for task in values},
    }
    return Report(Path(name), Manifest("report", 1, {"tasks": dict.fromkeys(values, mark)}, {}, {}), value)


def test_a_steady_gain_is_significant_and_noise_is_not() -> None:
    rng = np.random.default_rng(0)
    base = rng.random(200)
    steady = np.clip(base + 0.02 + rng.normal(0, 0.02, 200), 0, 1)
    noisy = rng.permutation(base)
    found = compare(
        {
            "base": [report("base", {"t": base})],
            "steady": [report("s", {"t": steady})],
            "noisy": [report("n", {"t": noisy})],
        },
        resamples=2000,
    )
    by_pair = {(each.first, each.second): each for each in found.differences}
    gain = by_pair["base", "steady"]
    assert gain.is_significant and gain.low < gain.points < gain.high < 0
    assert not by_pair["base", "noisy"].is_significant
    assert any("steady is better than base by" in sentence for sentence in found.sentences)
    assert any("no difference between" in sentence or "No difference" in sentence for sentence in found.sentences)
    assert "| base |" in comparison_as_markdown(found)


def test_pairing_sees_what_separate_intervals_do_not() -> None:
    rng = np.random.default_rng(1)
    base = rng.random(60)
    better = np.clip(base + 0.03, 0, 1)
    found = compare({"base": [report("a", {"t": base})], "better": [report("b", {"t": better})]}, resamples=2000)
    low, high = found.intervals["base"]["t.map"]
    assert low < found.values["better"]["t.map"] < high  # the intervals overlap
    assert found.differences[0].is_significant


def test_false_alarms_are_as_rare_as_promised() -> None:
    rng = np.random.default_rng(2)
    alarms = 0
    for trial in range(150):
        pair = {name: [report(name, {"t": rng.random(60)})] for name in ("a", "b")}
        alarms += compare(pair, resamples=500, seed=trial).differences[0].is_significant
    assert alarms / 150 <= 0.11


def test_tasks_weigh_alike_whatever_their_number_of_queries() -> None:
    one = report("one", {"small": np.full(12, 0.2), "large": np.full(1000, 0.8)})
    two = report("two", {"small": np.full(12, 0.4), "large": np.full(1000, 0.8)})
    found = compare({"one": [one], "two": [two]}, resamples=200)
    assert found.values["one"][OVERALL] == pytest.approx(50)
    assert found.values["two"][OVERALL] == pytest.approx(60)
    assert any("Fewer than 30 queries in small" in note for note in found.notes)


def test_seeds_widen_the_interval() -> None:
    rng = np.random.default_rng(3)
    base = rng.random(100)
    shifts = (-0.1, 0.0, 0.1)
    seeds = [report("mine", {"t": np.clip(base * 0.5 + 0.25 + shift, 0, 1)}) for shift in shifts]
    alone = compare({"base": [report("b", {"t": base})], "mine": [seeds[1]]}, resamples=2000)
    several = compare({"base": [report("b", {"t": base})], "mine": seeds}, resamples=2000)
    width = [each.differences[0].high - each.differences[0].low for each in (alone, several)]
    assert width[1] > 1.2 * width[0]
    assert any("training seed" in note for note in alone.notes)


def test_other_data_and_other_suites_are_refused() -> None:
    values = {"t": np.ones(40)}
    with pytest.raises(UserError, match="have t.map on different data"):
        compare({"a": [report("a", values)], "b": [report("b", values, mark="other")]})
    with pytest.raises(UserError, match="compare reports on one suite"):
        compare({"a": [report("a", values)], "b": [report("b", values, suite="another")]})
    with pytest.raises(UserError, match="at least two reports"):
        compare({"a": [report("a", values)]})
    with pytest.raises(UserError, match="--metric is 't.mrr'"):
        compare({"a": [report("a", values)], "b": [report("b", values)]}, metrics=["t.mrr"])


def test_rows_that_one_report_lacks_are_left_out_and_told() -> None:
    long, short = report("a", {"t": np.ones(40)}), report("b", {"t": np.ones(35)})
    found = compare({"a": [long], "b": [short]}, resamples=200)
    assert found.queries["t.map"] == 35
    assert any("5 of 40 rows" in note for note in found.notes)


def test_other_rules_of_judging_are_told() -> None:
    reports = {name: report(name, {"t": np.ones(40)}) for name in ("a", "b")}
    reports["a"].value |= {"options": {"missing": "wrong", "distance": "", "seed": 0}}  # type: ignore[operator]
    reports["b"].value |= {"options": {"missing": "peers", "distance": "", "seed": 1}}  # type: ignore[operator]
    found = compare({name: [each] for name, each in reports.items()}, resamples=200)
    (note,) = [note for note in found.notes if "different options" in note]
    assert note == "The reports have different options: missing is peers or wrong."


def test_a_handful_of_queries_is_shown_and_not_tested() -> None:
    few = {"small": np.full(9, 0.2), "large": np.full(100, 0.5)}
    better = {"small": np.full(9, 0.9), "large": np.full(100, 0.5)}
    found = compare({"a": [report("a", few)], "b": [report("b", better)]}, resamples=200)
    assert {each.metric for each in found.differences} == {OVERALL, "large.map"}
    assert any("Fewer than 10 queries in small: not tested" in note for note in found.notes)
    alone = compare({"a": [report("a", {"t": np.ones(5)})], "b": [report("b", {"t": np.zeros(5)})]}, resamples=200)
    assert alone.differences == () and "Too few queries to test a difference." in alone.sentences


def test_holm_and_two_sided() -> None:
    assert holm([0.5]) == [0.5]
    assert holm([0.04, 0.01, 0.03, 0.005]) == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert two_sided(np.ones(999)) == pytest.approx(2 / 1000)
