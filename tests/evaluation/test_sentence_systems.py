"""Papers compared sentence by sentence, token by token, and by sums of distances; and the pictures in their reports."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave import load_encoder, read_suite
from citeweave.core.errors import UserError
from citeweave.core.randomness import stream
from citeweave.encoders.sentence_encoder import BYTES, encode_tokens
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.match_page import MAX_EXAMPLES, PairTexts, example_matches, ribbons
from citeweave.evaluation.open_system import open_system
from citeweave.evaluation.options import EvaluationOptions, OpeningOptions
from citeweave.evaluation.run_tasks import run_ranking, standardize_scores
from citeweave.evaluation.sentence_systems import CombinedSystem, SentenceSystem, TokenCache
from citeweave.evaluation.systems import VectorSystem
from citeweave.evaluation.tasks import Pools, RankingRule, RankingTask, Suite, TaskTexts
from citeweave.vectors import sentence_distances
from citeweave.vectors.document_distance import DISTANCES, DocumentDistance, SentenceAlignment, document_scores
from citeweave.vectors.sentence_vectors import SentenceVectors, new_sentence_vectors

from .conftest import PAPERS, refused

RNG = stream(0, "sentence-level judging")
VECTORS = SentenceVectors.of(PAPERS, [RNG.normal(size=(1 + at % 4, 4)) for at in range(len(PAPERS))])


def opened(bert: Path, distance: str, max_tokens: int, **more: Any) -> Any:
    return open_system(str(bert), OpeningOptions(distance=distance, max_tokens=max_tokens, device="cpu", **more))


@pytest.mark.parametrize("suite", ["relish", "treccovid_rf"])
def test_whole_abstracts_by_transport_at_5000(folders, tmp_path, suite):
    read, options = read_suite(suite, folders[suite]), EvaluationOptions(distance="transport")
    report = evaluate(SentenceSystem(VECTORS, name="mine"), read, tmp_path / "r", options=options)
    run = [line.split() for line in (tmp_path / "r" / "runs" / f"{suite}.run").read_text().splitlines()]
    rows = VECTORS.rows([line[2] for line in run if line[0] == "p01"])
    expected = document_scores(VECTORS, np.array([1]), np.array([0, 6]), rows, DocumentDistance("transport", 5000.0))
    np.testing.assert_allclose([float(line[4]) for line in run if line[0] == "p01"], expected, rtol=1e-7)
    assert report.metrics[f"{suite}.map"] > 0
    page = (tmp_path / "r" / "report.html").read_text()
    assert page.count('class="ribbon') > 4 and "On p01 &lt;/title&gt;&lt;script&gt;" in page and "<script" not in page


def test_a_model_reads_sentences_in_their_context_and_searches(tmp_path, bert, folders):
    read, options = read_suite("relish", folders["relish"]), EvaluationOptions(distance="transport")
    report = evaluate(opened(bert, "transport", 32), read, tmp_path / "r", options=options)
    assert 0 <= report.metrics["relish.map"] <= 100
    assert "Matching sentences" in (tmp_path / "r" / "report.html").read_text()
    beir, options = read_suite("beir", folders["beir"]), EvaluationOptions(distance="single")
    report = evaluate(opened(bert, "single", 32), beir, tmp_path / "beir", options=options)
    assert not report.value["not_evaluated"] and len(list((tmp_path / "beir" / "runs").iterdir())) == 1
    for name in ("token_best", "mean_best+single"):  # which do not search
        with pytest.raises(UserError, match="does not search among all papers"):
            evaluate(opened(bert, name, 48), beir, tmp_path / "none", options=EvaluationOptions(distance=name))


@pytest.mark.parametrize("distance", DISTANCES)
def test_top_is_the_order_of_the_scores(distance):
    texts = TaskTexts.of_ids([*PAPERS, "unknown"], lacking="papers.jsonl")
    system = SentenceSystem(VECTORS)
    candidates = np.array([5, 20, 2, 3, 4])
    rows, scores = system.top(texts, np.array([0, 20, 1]), candidates, 5, distance)
    pools = Pools.of(texts, {name: {texts.ids[row]: 0 for row in candidates} for name in PAPERS[:2]})
    expected = system.scores(texts, pools, distance).reshape(2, 5)
    for own, at in ((0, 0), (2, 1)):
        order = np.argsort(-np.nan_to_num(expected[at], nan=-np.inf), kind="stable")[:4]
        assert rows[own].tolist() == [*candidates[order].tolist(), -1]
        np.testing.assert_allclose(scores[own], [*expected[at][order], np.nan], rtol=1e-7)
    assert (rows[1] == -1).all() and np.isnan(scores[1]).all()


def test_ribbons_are_as_wide_as_their_mass():
    plan = np.array([[0.3, 0.0], [0.001, 0.699]])
    matched = SentenceAlignment(np.array([0, 4]), np.array([1, 2]), plan, np.array([[1.0, 2], [3, 4]]), 1.0)
    _, picture = ribbons(matched, PairTexts("A", "B", ["One."], ["Two.", "Three.", "Four."]))
    # a thousandth is not drawn
    wide = ["0 and 1: 30.0 %, distance 1.000", "4 and 2: 69.9 %, distance 4.000"]
    assert [flow["about"] for flow in picture["flows"]] == wide
    rows = [row for side in picture["sides"] for row in side["rows"]]
    assert (4, "(no text)") in [sentence for sentence, *_ in rows]
    sizes = [size for *_, size in rows]
    np.testing.assert_allclose(np.array(sizes) / sum(sizes[:2]), [0.3, 0.7, 0.301, 0.699], atol=0.01)


def test_examples_reach_from_the_best_to_the_worst_query(tmp_path):
    ids = [f"p{at}" for at in range(30)]
    vectors = SentenceVectors.of(ids, [RNG.normal(size=(3, 4)) for _ in ids])
    texts = TaskTexts(ids, ids, ["One. Two. Three."] * 30, [["One.", "Two.", "Three."]] * 30)
    graded = {name: {other: at % 3 for at, other in enumerate(ids) if other != name} for name in ids[:9]}
    task = RankingTask("t", texts, Pools.of(texts, graded), RankingRule(("av_precision",), family="csfcube"))
    suite, system = Suite("s", (task,), headline=("t.av_precision",)), SentenceSystem(vectors, name="mine")
    report = evaluate(system, suite, tmp_path / "r", options=EvaluationOptions(distance="single"))
    values = [100 * row["av_precision"] for row in report.value["per_query"]["t"].values()]
    found = example_matches(system, suite, report.value, report.runs())
    assert [match.value for match in found] == sorted((match.value for match in found), reverse=True)
    assert len(found) == MAX_EXAMPLES and found[0].value == max(values) and found[-1].value == min(values)
    query, span = vectors.rows([found[0].query]), np.array([0, 30])
    first = document_scores(vectors, query, span, np.arange(30), DocumentDistance("single"))
    first[query] = -np.inf
    assert found[0].texts.right_title == ids[int(first.argmax())]
    assert found[0].explanation.total == pytest.approx(-first.max())
    assert example_matches(open_system("bm25"), suite, report.value, report.runs()) == []


torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

SENTENCES = [
    ["we learn data .", "models find graphs ."],
    ["the graphs of citations .", "data ."],
    ["the cell grows ."],
    [],
    ["a paper shows " * 4, "that data", "is here"],
]
TEXTS = TaskTexts(
    ["q", "a", "b", "none", "long"],
    ["the cell", "graphs", "", "", "how models learn"],
    [" ".join(own) for own in SENTENCES],
    SENTENCES,
)


def pools(sentences: list[Any] | None = None) -> Pools:
    """Two queries, of four candidates and of one."""
    owners = {"q": dict.fromkeys(["a", "b", "none", "long"], 0), "a": {"q": 1}}
    made = Pools.of(TEXTS, owners)
    return Pools(made.queries, made.offsets, made.candidates, made.grades, made.names, sentences)


@pytest.fixture(scope="module")
def encoder(bert) -> Any:
    return load_encoder(bert, max_tokens=16, device="cpu")


def by_hand(encoder: Any, query: int, candidate: int, sentences: Any = None) -> float:
    papers = encode_tokens(encoder, TEXTS.titles, [TEXTS.sentences_of(row) for row in range(len(TEXTS))])
    best = [
        max(float(own.float() @ other.float()) for other in papers[candidate].units)
        for own in papers[query].of(sentences)
    ]
    return float(np.mean(best)) - 1


@pytest.mark.parametrize("room", [1, 3, 1000])
def test_scores_are_the_mean_best_cosines_however_little_is_held(encoder, room):
    facet = np.array([1])
    held = TokenCache(encoder, TEXTS, memory=room * 16 * encoder.dimension * BYTES)
    found = held.scores(pools([facet, None]))
    expected = [by_hand(encoder, 0, row, facet) for row in (1, 2, 4)]
    np.testing.assert_allclose(found[[0, 1, 3, 4]], [*expected, by_hand(encoder, 1, 0)], atol=1e-5)
    assert np.isnan(found[2])  # no text, no answer
    assert held.lost == 2  # of `long`, whose second and third sentence lie behind 16 tokens
    assert held.scores(pools()) == pytest.approx(held.scores(pools([None, None])), nan_ok=True)


def test_a_facet_that_was_cut_away_has_no_answer(encoder):
    made = Pools.of(TEXTS, {"long": {"a": 1}})
    cut = Pools(made.queries, made.offsets, made.candidates, made.grades, made.names, [np.array([2])])
    system = SentenceSystem(encoder)
    for distance in ("mean_best", "token_best"):
        assert np.isnan(system.scores(TEXTS, cut, distance)).all()
    assert system.metadata()["sentences cut away"] == 2  # though both distances have read them


def test_many_candidates_are_compared_in_parts(monkeypatch):
    rng = np.random.default_rng(3)
    query, *papers = (torch.from_numpy(rng.normal(size=(size, 4))) for size in (3, 5, 1, 9, 2))
    whole = sentence_distances.token_distances(query, papers)
    monkeypatch.setattr(sentence_distances, "MAX_TOKEN_NUMBERS", 4 * 6)  # six tokens of four numbers
    np.testing.assert_allclose(sentence_distances.token_distances(query, papers), whole, rtol=1e-5)
    expected = [float((1 - (query @ paper.T).amax(1)).mean()) for paper in papers]
    np.testing.assert_allclose(whole, expected, rtol=1e-5)


def ranking(system: Any, distance: str) -> dict[str, Any]:
    """The order of q's candidates with their scores."""
    task = RankingTask("t", TEXTS, pools(), RankingRule(("map",)))
    return dict(run_ranking(task, system, distance, "wrong").ranked["q"])


def test_a_sum_adds_standardized_scores():
    vectors = {"q": [3.0, 4.0], "a": [3.0, 4.0], "b": [6.0, 8.0], "long": [4.0, -3.0]}
    system = VectorSystem(list(vectors), np.array(list(vectors.values())), name="mine")
    found = ranking(system, "cosine+l2")
    # cosines 1, 1, 0: mean 2/3, deviation sqrt(2)/3; distances 0, 5, sqrt(50)
    cosines, apart = np.array([1, 1, 0.0]), np.array([0, 5, np.sqrt(50)])
    expected = (cosines - 2 / 3) / (np.sqrt(2) / 3) - (apart - apart.mean()) / apart.std()
    assert list(found) == ["a", "b", "long"] and "none" not in found
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-5)
    assert ranking(system, "cosine+cosine")["a"] == pytest.approx(2 * 0.5**0.5)


def test_a_sum_may_mix_papers_sentences_and_tokens(bert, tmp_path, folders):
    name = "cosine+mean_best+token_best"
    system = opened(bert, name, 16, sentence_metric="cosine")
    assert isinstance(system, CombinedSystem)
    parts = [standardize_scores(system.scores(TEXTS, pools(), part), pools().offsets) for part in name.split("+")]
    expected = dict(zip(["a", "b", "none", "long"], np.sum(parts, axis=0)[:4], strict=True))
    found = ranking(system, name)
    assert len(found) == 3 and found == pytest.approx({paper: expected[paper] for paper in found})
    facts = system.metadata()
    assert facts["sentences cut away"] == 2 and facts["dimension"] == system.vectors(TEXTS).matrix.shape[1]
    name = "mean_best+token_best"
    system, read = opened(bert, name, 48, sentence_metric="cosine"), read_suite("csfcube", folders["csfcube"])
    report = evaluate(system, read, tmp_path / "r", options=EvaluationOptions(distance=name))
    assert report.value["tasks"]["all"]["chosen"] == {"distance": name, "protocol": "l2"}
    assert 0 <= report.metrics["all.map"] <= 100 and not report.value["not_evaluated"]


def test_papers_are_read_once_for_their_sentences_and_tokens(encoder, monkeypatch):
    read: list[int] = []

    def token_states(network: Any, tokens: Any) -> Any:
        read.append(len(tokens))
        return network_states(network, tokens)

    network_states = type(encoder.network).token_states
    twice, once = SentenceSystem(encoder), SentenceSystem(encoder, with_tokens=True)
    expected = [twice.scores(TEXTS, pools(), name) for name in ("mean_best", "token_best")]
    monkeypatch.setattr(type(encoder.network), "token_states", token_states)
    found = [once.scores(TEXTS, pools(), name) for name in ("mean_best", "token_best")]
    assert sum(read) == 4  # papers with text
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert once.metadata() == twice.metadata()


def test_tokens_beyond_the_memory_are_read_when_needed(encoder):
    everything = encode_tokens(encoder, TEXTS.titles, [TEXTS.sentences_of(row) for row in range(len(TEXTS))])
    cache = TokenCache(encoder, TEXTS, memory=2 * 16 * encoder.dimension * BYTES)
    for row, paper in enumerate(everything):
        cache.keep(row, paper)
    assert cache.lost < 2  # the last paper had no room
    expected = TokenCache(encoder, TEXTS).scores(pools())
    np.testing.assert_allclose(cache.scores(pools()), expected, atol=1e-3)
    assert cache.lost == 2


def test_what_cannot_be_added_is_refused(tmp_path):
    for distance in ("cosine+", "+cosine", "cosine+nothing", "token"):
        refused("--distance", OpeningOptions, distance=distance)
    with pytest.raises(UserError, match="--document-vector is for distances between sentences"):
        OpeningOptions(distance="token_best", with_paper=True)
    refused("a space of whole papers", OpeningOptions, distance="cosine+token_best", aspect="method")
    with new_sentence_vectors(tmp_path / "s") as writer:
        writer.append(["q"], [np.ones((1, 2))])
        writer.finish()
    with pytest.raises(UserError, match="compares tokens, but .* has vectors of sentences; give the model"):
        open_system(str(tmp_path / "s"), OpeningOptions(distance="mean_best+token_best"))
    refused("s takes single", ranking, open_system(str(tmp_path / "s")), "cosine+single")
