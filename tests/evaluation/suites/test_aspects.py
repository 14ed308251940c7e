"""The suite of planted aspects: pools against the truth, vectors that know it and vectors that do not, bad corpora."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave import Corpus, synthesize
from citeweave.core.errors import ArtifactError, EmptyResultError
from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.synthetic.narration import Facet
from citeweave.corpus.synthetic.synthesize import open_truth
from citeweave.evaluation.run_tasks import run_ranking, run_search
from citeweave.evaluation.sentence_systems import SentenceSystem
from citeweave.evaluation.suites.aspects import NEAR, RANDOM, RELEVANT, TASKS, AspectSuiteOptions, make_suite
from citeweave.evaluation.systems import Bm25System, VectorSystem
from citeweave.evaluation.tasks import RankingTask, SearchTask, Suite
from citeweave.vectors.sentence_vectors import SentenceVectors, new_sentence_vectors

from ..conftest import corpus_of, grades_of, refused

OPTIONS = AspectSuiteOptions(papers=60, queries=20)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    options = SyntheticOptions(papers=80, sharers=8, bare=0.1)
    return synthesize(tmp_path_factory.mktemp("made") / "corpus", options, workers=1)


@pytest.fixture(scope="module")
def suite(corpus) -> Suite:
    return make_suite(corpus, OPTIONS)


@pytest.fixture(scope="module")
def knowing(corpus, tmp_path_factory) -> Path:
    """Sentence vectors: of a sentence of an aspect the direction of its planted value, of any other one for all."""
    truth, folder = open_truth(corpus), tmp_path_factory.mktemp("vectors") / "knowing"
    with new_sentence_vectors(folder, dtype="float32") as writer:
        for row, paper in enumerate(corpus.ids):
            vectors = np.zeros((int(np.diff(truth.facet_offsets)[row]), 1 + 3 * 40), np.float32)
            for at, facet in enumerate(truth.facet[slice(*truth.facet_offsets[row : row + 2])].tolist()):
                code = getattr(truth, Facet(facet).name.lower())[row] if facet else 0
                vectors[at, 1 + 40 * (facet - 1) + code if facet else 0] = 1
            writer.append([paper], [vectors])
        writer.finish()
    return folder


def test_pools_hold_who_shares_the_aspect_among_others(corpus, suite):
    truth = open_truth(corpus)
    assert [task.name for task in suite.tasks] == [*TASKS, "all", *(f"{name}_space" for name in TASKS)]
    for task in suite.tasks[:3]:
        assert isinstance(task, RankingTask) and task.texts.labels is not None and task.pools.sentences is not None
        rows, pools = corpus.rows(list(task.texts.ids)), task.pools
        codes, *others = (getattr(truth, name)[rows] for name in sorted(TASKS, key=lambda name: name != task.name))
        for number, query in enumerate(pools.queries.tolist()):
            span = slice(pools.offsets[number], pools.offsets[number + 1])
            pool, grades = pools.candidates[span], pools.grades[span]
            assert query not in pool and len(set(pool.tolist())) == len(pool)
            assert ((codes[pool] == codes[query]) == (grades == 1)).all()
            assert 1 <= grades.sum() <= RELEVANT and (grades == 0).any()
            shares = np.any([part == part[query] for part in others], axis=0)
            near = shares[pool] & (grades == 0)
            assert near.sum() <= 2 * NEAR and ((grades == 0) & ~near).sum() <= RANDOM
            # all papers fit into these pools: none that shares another aspect may be missing
            assert near.sum() == (shares & (codes != codes[query])).sum()
            assert {task.texts.labels[query][at] for at in pools.sentences[number].tolist()} == {task.name}  # type: ignore[union-attr]


def test_sentences_that_know_the_aspect_find_it_and_whole_papers_cannot(corpus, suite, knowing):
    opened = SentenceVectors.open(knowing)
    sums = np.stack([opened.sentences(row).sum(axis=0) for row in range(len(opened))])
    whole = VectorSystem(list(opened.ids), sums, name="their sums")
    chance = VectorSystem(list(corpus.ids), np.random.default_rng(3).normal(size=(len(corpus), 8)), name="random")
    for task in suite.tasks[:4]:
        assert isinstance(task, RankingTask)
        for distance in ("single", "mean_best", "attention", "transport"):
            found = run_ranking(task, SentenceSystem(opened, temperature=0.01), distance, "wrong")
            assert found.metrics["map"] == pytest.approx(100), distance
        mixed, lowest = (run_ranking(task, system, "cosine", "wrong").metrics["map"] for system in (whole, chance))
        assert lowest + 10 < mixed < 95
        assert run_ranking(task, Bm25System(), "", "wrong").metrics["map"] > lowest


def test_the_nearest_papers_of_a_space_are_counted(corpus, suite):
    truth, tasks = open_truth(corpus), {task.name: task for task in suite.tasks}
    told = np.flatnonzero(np.diff(truth.facet_offsets))
    matrix = np.random.default_rng(4).normal(size=(len(corpus), 3))
    matrix[:, 0] = truth.method  # knows a little of it
    judged = VectorSystem(list(corpus.ids), matrix, name="mine")
    unit = matrix[told] / np.linalg.norm(matrix[told], axis=1, keepdims=True)
    for aspect in TASKS:
        task = tasks[f"{aspect}_space"]
        assert isinstance(task, SearchTask) and task.judgments.groups is not None
        # the whole literature is searched, not only the papers that pools are drawn from
        assert sorted(task.texts.ids) == sorted(corpus.ids.take(told)) and len(told) > OPTIONS.papers
        asked, codes, expected = corpus.rows([task.texts.ids[row] for row in task.queries]), getattr(truth, aspect), []
        for query in asked.tolist():
            cosines = unit @ (matrix[query] / np.linalg.norm(matrix[query]))
            cosines[told == query] = -2
            same = (codes[told] == codes[query]) & (told != query)
            most = min(10, int(same.sum()))
            expected.append(same[np.argsort(-cosines)[:most]].mean())
        found = run_search(task, judged, "", "wrong")
        assert found.metrics["P_cap_10"] == pytest.approx(100 * np.mean(expected))
        assert set(task.judgments.groups) == {aspect} and len(expected) == OPTIONS.queries
    truthful = VectorSystem(list(corpus.ids), np.eye(99)[truth.method], name="the truth")
    assert run_search(tasks["method_space"], truthful, "", "wrong").metrics["P_cap_10"] == pytest.approx(100)  # type: ignore[arg-type]


def test_draws_depend_on_the_seed_and_fewer_queries_are_the_first(corpus, suite):
    def plain(made: Suite) -> list[tuple[str, list[str]]]:
        return [(name, list(pool)) for name, pool in grades_of(made.tasks[1]).items()]

    assert plain(make_suite(corpus, OPTIONS)) == plain(suite)
    assert plain(make_suite(corpus, replace(OPTIONS, queries=7))) == plain(suite)[:7]
    assert plain(make_suite(corpus, replace(OPTIONS, seed=1))) != plain(suite)
    bare = int((corpus.abstracts.lengths() == 0).sum())
    assert bare > 0 and suite.data["papers without abstract, never drawn"] == bare


def test_a_query_without_a_sentence_of_the_aspect_is_left_out(corpus, tmp_path):
    copy = Corpus.open(shutil.copytree(corpus.folder, tmp_path / "copy"))
    offsets, facets = open_truth(copy).facet_offsets, np.load(copy.folder / "truth/facet.npy")
    mute = int(np.flatnonzero(np.diff(offsets))[0])
    facets[offsets[mute] : offsets[mute + 1]] = Facet.PROBLEM
    np.save(copy.folder / "truth/facet.npy", facets)
    made = make_suite(copy, replace(OPTIONS, papers=80, queries=80))
    asked = [name for task in made.tasks if isinstance(task, RankingTask) for name in task.pools.names]
    assert {name for name in asked if name.startswith(corpus.ids[mute])} == {f"{corpus.ids[mute]}_problem"}
    for aspect in ("method", "finding"):
        assert f"{aspect}: queries left out, since no sentence of theirs is about it: 1" in made.notes


def test_what_cannot_be_asked_is_said(corpus, tmp_path):
    real = corpus_of(tmp_path, [{"id": "a", "title": "A title", "abstract": "One. Two."}])
    refused("is not a synthetic corpus: .* make one with `citeweave synthesize`", make_suite, real, error=ArtifactError)
    with pytest.raises(EmptyResultError, match=r"no query of problem, method, finding among 1 papers .*--papers"):
        make_suite(corpus, replace(OPTIONS, papers=1))
    refused("papers is 0", AspectSuiteOptions, papers=0)


def test_the_command(corpus, knowing, tmp_path, cli, monkeypatch):
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache"))

    def run(system: str, options: str = "") -> Any:
        asked = "--suite aspects --papers 60 --queries 20", options, "--data", corpus.folder
        return cli.json("evaluate", system, *asked, "-o", tmp_path / Path(system).name)["metrics"]

    assert run(str(knowing), "--distance single")["all.map"] == pytest.approx(100)
    pools = [f"{task}.{metric}" for task in (*TASKS, "all") for metric in ("map", "ndcg%20")]
    assert list(run("bm25")) == [*pools, *(f"{task}_space.P_cap_10" for task in TASKS), "spaces.P_cap_10"]
    assert list(run("baseline:tfidf", "--task method")) == ["method.map", "method.ndcg%20"]
