"""Comparing reports: what is significant, what is not, and what must not be compared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.artifact import Manifest
from citeweave.evaluation.compare import OVERALL, Comparison, compare, comparison_as_markdown, holm, two_sided
from citeweave.evaluation.report import Report

from .conftest import refused


def report(values: dict[str, np.ndarray], *, mark: str = "same", suite: str = "toy", **more: Any) -> Report:
    """A report whose tasks have one metric, `map`, with these values by query."""
    about = {"kind": "ranking", "how": {"map": "mean"}, "notes": [], "chosen": {}}
    rows = {t: {f"q{at}": {"map": float(number)} for at, number in enumerate(own)} for t, own in values.items()}
    value = {"suite": suite, "model": {"name": "mine"}, "headline": [], "tasks": dict.fromkeys(values, about)}
    value |= {"per_query": rows, "coverage": {task: {} for task in values}, **more}
    return Report(Path("mine"), Manifest("report", 1, {"tasks": dict.fromkeys(values, mark)}, {}, {}), value)


def compared(resamples: int = 2000, **values: np.ndarray | dict[str, np.ndarray]) -> Comparison:
    """One report each, of one task `t` or of several."""
    reports = {name: [report(own if isinstance(own, dict) else {"t": own})] for name, own in values.items()}
    return compare(reports, resamples=resamples)


def test_a_steady_gain_is_significant_and_noise_is_not():
    rng = np.random.default_rng(0)
    base = rng.random(200)
    steady = np.clip(base + 0.02 + rng.normal(0, 0.02, 200), 0, 1)
    found = compared(base=base, steady=steady, noisy=rng.permutation(base))
    by_pair = {(each.first, each.second): each for each in found.differences}
    gain = by_pair["base", "steady"]
    assert gain.is_significant and gain.low < gain.points < gain.high < 0
    assert not by_pair["base", "noisy"].is_significant
    assert any("steady is better than base by" in sentence for sentence in found.sentences)
    assert any("no difference between" in sentence or "No difference" in sentence for sentence in found.sentences)
    told = comparison_as_markdown(found)
    assert (
        "| base |" in told and "| queries | 200 |" in told and "| steady better |" in told and "not certain |" in told
    )
    base = np.random.default_rng(1).random(60)  # pairing sees what separate intervals do not
    found = compared(base=base, better=np.clip(base + 0.03, 0, 1))
    low, high = found.intervals["base"]["t.map"]
    assert low < found.values["better"]["t.map"] < high  # the intervals overlap
    assert found.differences[0].is_significant


def test_false_alarms_are_as_rare_as_promised():
    rng = np.random.default_rng(2)
    alarms = 0
    for trial in range(150):
        pair = {name: [report({"t": rng.random(60)})] for name in ("a", "b")}
        alarms += compare(pair, resamples=500, seed=trial).differences[0].is_significant
    assert alarms / 150 <= 0.11


def test_tasks_weigh_alike_whatever_their_number_of_queries():
    one, two = ({"small": np.full(12, low), "large": np.full(1000, 0.8)} for low in (0.2, 0.4))
    found = compared(200, one=one, two=two)
    assert found.values["one"][OVERALL] == pytest.approx(50)
    assert found.values["two"][OVERALL] == pytest.approx(60)
    assert any("Fewer than 30 queries in small" in note for note in found.notes)


def test_seeds_widen_the_interval():
    base = np.random.default_rng(3).random(100)
    seeds = [report({"t": np.clip(base * 0.5 + 0.25 + shift, 0, 1)}) for shift in (-0.1, 0.0, 0.1)]
    first = [report({"t": base})]
    alone, several = (compare({"base": first, "mine": mine}, resamples=2000) for mine in ([seeds[1]], seeds))
    width = [each.differences[0].high - each.differences[0].low for each in (alone, several)]
    assert width[1] > 1.2 * width[0]
    assert any("training seed" in note for note in alone.notes)


def test_other_data_and_other_suites_are_refused():
    values = {"t": np.ones(40)}
    a, b = [report(values)], [report(values)]
    refused("have t.map on different data", compare, {"a": a, "b": [report(values, mark="other")]})
    refused("compare reports on one suite", compare, {"a": a, "b": [report(values, suite="another")]})
    refused("at least two reports", compare, {"a": a})
    refused("--metric is 't.mrr'", compare, {"a": a, "b": b}, metrics=["t.mrr"])


def test_missing_rows_and_other_options_are_told():
    found = compared(200, a=np.ones(40), b=np.ones(35))
    assert found.queries["t.map"] == 35
    assert any("5 of 40 rows" in note for note in found.notes)
    options = {"a": {"missing": "wrong", "seed": 0}, "b": {"missing": "peers", "seed": 1}}
    reports = {name: [report({"t": np.ones(40)}, options={"distance": "", **own})] for name, own in options.items()}
    (note,) = [note for note in compare(reports, resamples=200).notes if "different options" in note]
    assert note == "The reports have different options: missing is peers or wrong."


def test_a_handful_of_queries_is_shown_and_not_tested():
    large = np.full(100, 0.5)
    found = compared(200, a={"small": np.full(9, 0.2), "large": large}, b={"small": np.full(9, 0.9), "large": large})
    assert {each.metric for each in found.differences} == {OVERALL, "large.map"}
    assert any("Fewer than 10 queries in small: not tested" in note for note in found.notes)
    alone = compared(200, a=np.ones(5), b=np.zeros(5))
    assert alone.differences == () and "Too few queries to test a difference." in alone.sentences


def test_holm_and_two_sided():
    assert holm([0.5]) == [0.5]
    assert holm([0.04, 0.01, 0.03, 0.005]) == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert two_sided(np.ones(999)) == pytest.approx(2 / 1000)
