"""The table of all recipes: its bundles come back as they were, and what must not be ranked is not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.errors import ArtefactError, UserError
from citeweave.evaluation.outcomes import Outcome
from citeweave.evaluation.probes import SCIDOCS_CLASSES
from citeweave.evaluation.tasks import Pools, ProbeTask, RankingRule, RankingTask, SearchTask, Suite
from citeweave.evaluation.texts import Texts
from citeweave.mining.sample_blocks import Picks
from citeweave.mining.samples import Names

ROOT = Path(__file__).parents[1]
QUERIES = 40


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def a_suite() -> Suite:
    texts = Texts(
        [f"p{n}" for n in range(6)], [f"A title {n}" for n in range(6)], ["One. Two."] * 6, [["One.", "Two."]] * 6
    )
    pools = Pools.of(texts, {"p0": {"p1": 1, "p2": 0}, "p3": {"p4": 1, "p5": 0}})
    pools = dataclasses.replace(pools, sentences=[np.array([0]), None], groups=["method", "result"])
    rows = np.arange(6)
    rule = RankingRule(metrics=("map",), distance="cosine")
    answers = np.array(["a", "b", "a"], object)
    return Suite(
        "corpus",
        (
            RankingTask("cite", texts, pools, rule, folds=(("p0",), ("p3",))),
            SearchTask("title", texts, rows[:1], rows[1:], Pools.of(texts, {"p0": {"p1": 1}}), rule),
            ProbeTask(
                "field", texts, "classes", rows[:3], answers, rows[3:], answers, SCIDOCS_CLASSES, {"f1": "f1_macro"}
            ),
        ),
        headline=("cite.map",),
    )


def a_bundle() -> Any:
    from benchmarks.table.bundle import Bundle, Column, PackedCorpus, PackedSamples

    picks = Picks(np.array([0, 1, 3]), np.array([1, 2, 3], np.int32), np.zeros(3, np.uint8), np.zeros(0, np.float32))
    samples = PackedSamples(
        Names(("cited", "easy")), np.array([0, 4], np.int32), np.zeros(2, np.uint8), picks, picks, None, "key"
    )
    papers = PackedCorpus("corpus hash", Column([f"A title {n}" for n in range(6)]), Column(["One. Two."] * 6))
    edges = (np.array([0, 3], np.int32), np.array([1, 4], np.int32))
    return Bundle("elife", papers, edges, {"corpus": a_suite()}, {"key": samples}, {"specter": {"samples": "key"}})


def test_a_bundle_comes_back(tmp_path: Path) -> None:
    from benchmarks.table.bundle import read_bundle, write_bundle

    given = a_bundle()
    write_bundle(tmp_path / "elife.bundle", given)
    found = read_bundle(tmp_path / "elife.bundle")
    assert found.version == given.version and found.marks == given.marks
    assert found.samples["key"].negatives.rows.tolist() == [1, 2, 3]
    assert found.samples["key"].positives.offsets.tolist() == [0, 1, 3]
    assert found.edges[1].tolist() == [1, 4]
    tasks = found.suites["corpus"].tasks
    assert tasks[0].texts is tasks[1].texts, "texts that tasks share are read once"


def test_a_bundle_that_is_cut_off_or_changed(tmp_path: Path) -> None:
    from benchmarks.table.bundle import read_bundle, write_bundle
    from benchmarks.table.packing import pack, unpack

    path = tmp_path / "elife.bundle"
    write_bundle(path, a_bundle())
    parts = unpack(path)
    pack(path, {**parts, "suites.json": parts["suites.json"].replace(b"A title 1", b"A title X")})
    with pytest.raises(ArtefactError, match="its suites are not those"):
        read_bundle(path)
    write_bundle(path, a_bundle())
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ArtefactError, match="cut off"):
        read_bundle(path)


def test_samples_can_be_left_out() -> None:
    from benchmarks.table.bundle import packed

    given = a_bundle().samples["key"]
    found = packed(given, np.array([False, True]))
    assert found.anchors.tolist() == [4] and found.positives.rows.tolist() == [2, 3] and found.hash != given.hash


def a_run(system: str, seed: int, level: float, **changes: Any) -> Any:
    """A run whose values lie around a level: the same queries are hard for all."""
    from benchmarks.table.reports import RunReport, View

    drawn = np.random.default_rng([len(system), seed]).normal(0, 0.02, QUERIES)
    hard = np.linspace(-0.2, 0.2, QUERIES)
    values = {
        task: {f"q{n}": {"map": float(level + hard[n] + drawn[n])} for n in range(QUERIES)}
        for task in ("cite", "cocite")
    }
    outcomes = [Outcome(task, "ranking", {"map": "mean"}, rows) for task, rows in values.items()]
    view = View("corpus", ["cite.map", "cocite.map"], {"cite": "mark", "cocite": "mark"}, outcomes)
    others: dict[str, Any] = {"version": "v1", "papers": 100_000, "cost": {"seconds": 9.0, "steps": 5, "epochs": 0.1}}
    return RunReport("elife", system, seed, views={"corpus": view}, **{**others, **changes})


def seeds(system: str, level: float, **changes: Any) -> list[Any]:
    return [a_run(system, seed, level, **changes) for seed in range(3)]


def ranked(runs: Sequence[Any]) -> Any:
    from benchmarks.table.ranking import rank, sort_out

    return rank(sort_out(runs, "elife"), "corpus", resamples=500)


def test_what_is_better_is_said() -> None:
    found = ranked([a_run("minilm", 0, 0.5), *seeds("specter", 0.6), *seeds("scincl", 0.4), *seeds("cocite", 0.599)])
    assert found.order[2:] == ["minilm", "scincl"] and not found.refused
    assert found.better["specter"] == {"overall": 1, "cite.map": 1, "cocite.map": 1}
    assert found.better["scincl"]["overall"] == -1 and found.better["minilm"]["overall"] == 0
    assert (
        found.level["cocite"]["overall"] and found.level["specter"]["overall"] and not found.level["minilm"]["overall"]
    )
    low, high = found.intervals["specter"]["overall"]
    assert low < found.values["specter"]["overall"] < high


@pytest.mark.parametrize(
    ("third", "reason"),
    [
        (None, "seed 2 is missing"),
        ({"version": "v0"}, "made with the data version v0"),
        ({"papers": 60_000}, "a run saw 60,000 papers"),
        ({"saw": {"corpus": 7}}, "7 of the papers it was trained on"),
    ],
)
def test_what_must_not_be_ranked(third: Mapping[str, Any] | None, reason: str) -> None:
    own = seeds("specter", 0.9)[:2] + ([] if third is None else [a_run("specter", 2, 0.9, **third)])
    found = ranked([a_run("minilm", 0, 0.5), *own, *seeds("scincl", 0.4)])
    assert found.order == ["minilm", "scincl"]
    assert any(reason in each for each in found.refused["specter"]), found.refused
    assert found.values["specter"]["overall"] > 80, "it is shown all the same"
    assert "specter" not in found.better


def test_too_few_queries_claim_nothing() -> None:
    def few(run: Any) -> Any:
        view = run.views["corpus"]
        outcomes = [dataclasses.replace(each, rows=dict(list(each.rows.items())[:4])) for each in view.outcomes]
        return dataclasses.replace(run, views={"corpus": dataclasses.replace(view, outcomes=outcomes)})

    found = ranked([few(run) for run in [a_run("minilm", 0, 0.2), *seeds("specter", 0.9)]])
    assert found.order == ["specter", "minilm"]
    assert found.level["minilm"]["cite.map"] and found.better["specter"]["cite.map"] == 0


def test_a_table_without_its_start() -> None:
    with pytest.raises(UserError, match="no report of minilm"):
        ranked(seeds("specter", 0.5))


def test_the_section_is_written(tmp_path: Path) -> None:
    from benchmarks.table import page, reports

    runs = [a_run("minilm", 0, 0.5), *seeds("specter", 0.6), *seeds("scincl", 0.4)[:2]]
    runs = [
        dataclasses.replace(run, views={**run.views, "csfcube": run.views["corpus"], "scitldr": run.views["corpus"]})
        for run in runs
    ]
    for run in runs:
        reports.write_run(tmp_path, run)
    again = reports.read_runs(tmp_path, "elife")
    assert again[0].views["corpus"].outcomes[0].rows.keys() == runs[0].views["corpus"].outcomes[0].rows.keys()
    text = page.corpus_section(page.sort_out(again, "elife"), resamples=200)
    assert "| 1 | specter | 3 | **" in text
    assert "not ranked: scincl: seed 2 is missing" in text
    written = page.replace_section("before\n", text)
    assert written.startswith("before\n") and page.replace_section(written, text) == written


def test_reports_travel_packed(tmp_path: Path) -> None:
    from benchmarks.table import reports

    run = a_run("specter", 0, 0.5)
    reports.write_run(tmp_path / "there", run)
    packed = reports.pack_runs(tmp_path / "there", "elife")
    (tmp_path / "here").mkdir()
    packed.rename(tmp_path / "here" / packed.name)
    reports.unpack_runs(tmp_path / "here", "elife")
    assert reports.is_done(tmp_path / "here", run)
    assert not reports.is_done(tmp_path / "here", dataclasses.replace(run, version="v2"))
    with pytest.raises(ArtefactError, match="no report of the table"):
        reports.read_run(json.dumps({"format": 99}).encode(), "a file")


def test_steps_follow_from_the_budget() -> None:
    from benchmarks.table.worker import budgeted
    from citeweave.training.data import groups_of
    from citeweave.training.options import TrainingOptions

    groups = groups_of(range(8), [[8 + n] for n in range(8)], [[16 + n] for n in range(8)])
    options, length = budgeted(TrainingOptions(batch=4, warmup=2000), groups, 1200)
    assert (options.steps, options.warmup) == (100, 10) and length == {"steps": 100, "papers": 1200, "epochs": 50.0}


def test_sentences_end_there_as_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from benchmarks.table.splitting import record, texts_to_split
    from citeweave.corpus.text import sentence_texts

    text = "Smith et al. (2010) used Fig. 2. We found p = 0.05. It is so."
    here = sentence_texts(text)
    boundaries = record(texts_to_split(["A title"], [text], [a_suite()]))
    monkeypatch.setitem(sys.modules, "sentencex", boundaries)
    assert sentence_texts(text) == here and sentence_texts("One. Two.") == ["One.", "Two."]
    with pytest.raises(UserError, match="sentencex is not installed"):
        sentence_texts("This was never seen. Nobody knows.")
