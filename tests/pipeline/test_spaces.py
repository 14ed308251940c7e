"""A run whose model has aspect heads is judged in every space too, and by held-out intents where that is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from citeweave import Corpus, synthesize
from citeweave.core.errors import UserError
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.encoders.aspects import AspectHeads, save_heads
from citeweave.evaluation.open_system import OpeningOptions, open_system
from citeweave.evaluation.ranking_tasks import run_ranking
from citeweave.evaluation.suites.from_corpus import make_intent_suite
from citeweave.evaluation.tasks import RankingTask
from citeweave.pipeline.recipe import load_recipe
from citeweave.pipeline.run import COMPARISON, run_recipe
from citeweave.pipeline.run_folder import RunOptions
from citeweave.pipeline.suites import Suites, check_suites

NAMES = ("background", "method", "result")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return synthesize(tmp_path_factory.mktemp("made") / "corpus", SyntheticOptions(papers=200, sharers=12), workers=1)


def test_every_space_has_a_report_and_stands_in_the_comparison(bert: Path, corpus: Corpus, tmp_path: Path) -> None:
    small = ["training.steps=1", "training.batch=4", "training.warmup=0", "training.validation=0.02"]
    recipe = load_recipe("specter", [*small, "encoder.max_tokens=24", "mining.anchors=20"])
    tasks = ("cite", "method", "result_mixed")
    options = RunOptions(init=str(bert), tasks=tasks, seeds=1, queries=10, device="cpu", resamples=50)
    options = replace(options, intent_suite=corpus.folder)
    first = run_recipe(recipe, corpus.folder, tmp_path / "run", options)
    assert first.spaces == {"corpus": {}, "intents": {}} and "spaces" not in first.record["metrics"]
    assert set(first.reports["intents"][0].metrics) >= {"method.map", "result_mixed.ndcg"}
    # the same model with heads: nothing but its spaces is judged anew
    rng = np.random.default_rng(0)
    layers = {name: ((rng.normal(size=(4, 32)).astype(np.float32), np.zeros(4, np.float32)),) for name in NAMES}
    save_heads(first.models[0], AspectHeads(NAMES, layers))
    result = run_recipe(recipe, corpus.folder, tmp_path / "run", options)
    assert set(result.executed) == {
        *(f"report/corpus ({space})" for space in (*NAMES, "all")),
        *(f"report/intents ({space})" for space in (*NAMES, "all", "matching")),
    }
    assert result.spaces["corpus"]["method"][0].name == f"{recipe.label} (method)"
    own, matched = (result.spaces["intents"][space][0].metrics for space in ("method", "matching"))
    assert own["method.map"] == pytest.approx(matched["method.map"])
    assert result.record["metrics"]["spaces"]["intents"]["matching"] == [matched]
    page = (tmp_path / "run" / COMPARISON).read_text()
    assert f"| method | {result.spaces['corpus']['method'][0].metrics['cite.map']:.2f} |" in page
    # the same as `evaluate --aspect method` on what the run held out
    suite = make_intent_suite(corpus, options.suite_options)
    task = next(task for task in suite.tasks if task.name == "method")
    assert isinstance(task, RankingTask)
    alone = open_system(str(first.models[0]), OpeningOptions(device="cpu", aspect="method"))
    assert run_ranking(task, alone, "", "wrong").metrics["map"] == pytest.approx(own["method.map"])
    assert run_recipe(recipe, corpus.folder, tmp_path / "run", options).executed == ()


def test_intents_of_another_corpus_are_refused(bert: Path, corpus: Corpus, tmp_path: Path) -> None:
    other = synthesize(tmp_path / "other", SyntheticOptions(papers=30, sharers=3), workers=1)
    with pytest.raises(UserError, match="is another corpus than"):
        Suites(corpus, RunOptions(intent_suite=other.folder)).read("intents")
    # before anything is trained
    options = RunOptions(init=str(bert), intent_suite=other.folder, device="cpu")
    with pytest.raises(UserError, match="is another corpus than"):
        run_recipe(load_recipe("specter"), corpus.folder, tmp_path / "run", options)
    assert not (tmp_path / "run" / "samples").exists()
    with pytest.raises(UserError, match="--suite intents=.*no such folder"):
        check_suites(RunOptions(intent_suite=tmp_path / "none"))
    with pytest.raises(UserError, match="needs held-out references"):
        RunOptions(intent_suite=corpus.folder, held_out="none", suites={"csfcube": tmp_path})
