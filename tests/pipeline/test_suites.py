"""What is trained on and evaluated: nothing held out, no paper of a suite, every aspect space of a model."""

import json
from dataclasses import replace

import numpy as np
import pytest

from citeweave import Corpus, synthesize
from citeweave.core.errors import UserError
from citeweave.corpus.options import SyntheticOptions
from citeweave.encoders.aspects import AspectHeads, save_heads
from citeweave.evaluation.open_system import open_system
from citeweave.evaluation.options import CorpusSuiteOptions, OpeningOptions
from citeweave.evaluation.run_tasks import run_ranking
from citeweave.evaluation.suites.corpus_pools import held_out_rows, training_graph
from citeweave.evaluation.suites.from_corpus import make_intent_suite
from citeweave.graph.citations import build_graph
from citeweave.pipeline.recipe import load_recipe
from citeweave.pipeline.run import COMPARISON, run_recipe
from citeweave.pipeline.run_folder import RunOptions
from citeweave.pipeline.suites import Suites, check_suites, without_references

from .conftest import mined, tiny, write_beir

NAMES = ("background", "method", "result")
JOINED = ("all", "+".join(NAMES), "encoder+all")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("made") / "corpus", SyntheticOptions(papers=200, sharers=12), workers=1)


def test_every_space_has_a_report_and_stands_in_the_comparison(bert, corpus, tmp_path):
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
        *(f"report/corpus ({space})" for space in (*NAMES, *JOINED)),
        *(f"report/intents ({space})" for space in (*NAMES, *JOINED, "matching")),
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
    alone = open_system(str(first.models[0]), OpeningOptions(device="cpu", aspect="method"))
    assert run_ranking(task, alone, "", "wrong").metrics["map"] == pytest.approx(own["method.map"])
    assert run_recipe(recipe, corpus.folder, tmp_path / "run", options).executed == ()


def test_intents_of_another_corpus_are_refused(bert, corpus, tmp_path):
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


# --- what is trained on ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["scincl", "specter", "specter_cocite_scibert"])
def test_nothing_held_out_is_trained_on(name, place, tmp_path):
    held = held_out_rows(place.corpus, CorpusSuiteOptions())
    samples, run = mined(place, tiny(name), tmp_path / "run", place.options)
    assert not held[samples.anchors].any()
    trained = Corpus.open(run.record["stages"]["corpus"]["folder"])
    graph, wanted = build_graph(trained, tmp_path / "graph"), training_graph(place.corpus, CorpusSuiteOptions())
    assert np.array_equal(graph.cited.targets, wanted.cited.targets)
    assert np.array_equal(graph.cited.offsets, wanted.cited.offsets)
    assert not held[trained.contexts.citing[trained.contexts.citing >= 0]].any()


def test_the_corpus_without_references_keeps_all_else(place, tmp_path):
    held = np.arange(len(place.corpus)) % 3 == 0
    made = without_references(place.corpus, held, tmp_path / "c", why="every third")
    assert list(made.ids) == list(place.corpus.ids) and list(made.titles) == list(place.corpus.titles)
    kept = np.flatnonzero(~held[place.corpus.citing])
    assert [made.citation(n) for n in range(len(made.citing))] == [place.corpus.citation(int(n)) for n in kept]
    table = place.corpus.contexts
    kept = np.flatnonzero(~held[table.citing])
    assert [made.context(n) for n in range(len(made.contexts))] == [place.corpus.context(int(n)) for n in kept]
    assert without_references(place.corpus, held, tmp_path / "c", why="every third").hash == made.hash
    assert made.hash != place.corpus.hash
    nothing = without_references(place.corpus, np.zeros_like(held), tmp_path / "d", why="nothing")
    assert nothing.hash == place.corpus.hash


def test_the_oracle_learns_from_the_answers(place, tmp_path):
    samples, run = mined(place, tiny("oracle", "mining.anchors=0"), tmp_path / "run", place.options)
    assert "corpus" not in run.record["stages"]
    task = next(task for task in Suites(place.corpus, place.options).read("corpus").tasks if task.name == "cite")
    queries = set(place.corpus.rows([task.texts.ids[row] for row in task.pools.queries.tolist()]).tolist())
    assert queries <= set(samples.anchors.tolist())


def test_papers_of_a_suite_leave_the_corpus(place, tmp_path):
    papers = {f"d{row}": place.corpus.paper(row) for row in range(5)}
    options = replace(place.options, suites={"beir": write_beir(tmp_path / "beir", papers)}, tasks=("cite",))
    result = run_recipe(tiny("specter"), place.corpus.folder, tmp_path / "run", options)
    assert result.record["stages"]["audited"]["facts"]["exclude"] == 5
    assert set(result.reports) == {"corpus", "beir"}
    trained = Corpus.open(result.record["stages"]["corpus"]["folder"])
    assert len(trained) == 295 and not set(trained.ids) & {each.id for each in papers.values()}
    options = replace(options, held_out="none", tasks=())
    result = run_recipe(tiny("specter"), place.corpus.folder, tmp_path / "all", options)
    assert set(result.reports) == {"beir"} and "corpus" not in result.record["stages"]


def test_titles_that_are_queries_of_the_suite_are_not_learned_from(place, tmp_path):
    queries = Suites(place.corpus, place.options).queried_titles()
    assert len(queries) == place.options.queries and (place.corpus.rows(queries) >= 0).all()
    _, run = mined(place, tiny("weave"), tmp_path / "run", replace(place.options, shared=None))
    texts = Corpus.open(tmp_path / "run" / "texts")
    papers = {
        json.loads(texts.extras[row])["paper"] for row in range(len(texts)) if texts.ids[row].startswith("title:")
    }
    assert papers and not papers & set(queries)
    assert run.stage_metadata("texts")["rejected"]["title: a question of a suite"] == len(queries)
