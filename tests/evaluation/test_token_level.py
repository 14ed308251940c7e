"""Papers compared token by token, and sums of distances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.sentence_encoder import BYTES, encode_tokens
from citeweave.evaluation.evaluate import EvaluationOptions, evaluate
from citeweave.evaluation.open_system import OpeningOptions, open_system
from citeweave.evaluation.precomputed import VectorSystem
from citeweave.evaluation.ranking_tasks import run_ranking, standardize_scores
from citeweave.evaluation.sentence_systems import CombinedSystem, SentenceSystem, TokenCache
from citeweave.evaluation.suites.registry import read_suite
from citeweave.evaluation.tasks import Pools, RankingRule, RankingTask, TaskTexts
from citeweave.vectors import sentence_distances
from citeweave.vectors.sentence_vectors import new_sentence_vectors

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
def encoder(bert: Path) -> Any:
    return load_encoder(bert, max_tokens=16, device="cpu")


def by_hand(encoder: Any, query: int, candidate: int, sentences: Any = None) -> float:
    papers = encode_tokens(encoder, TEXTS.titles, [TEXTS.sentences_of(row) for row in range(len(TEXTS))])
    best = [
        max(float(own.float() @ other.float()) for other in papers[candidate].units)
        for own in papers[query].of(sentences)
    ]
    return float(np.mean(best)) - 1


@pytest.mark.parametrize("room", [1, 3, 1000])
def test_scores_are_the_mean_best_cosines_however_little_is_held(encoder: Any, room: int) -> None:
    facet = np.array([1])
    held = TokenCache(encoder, TEXTS, memory=room * 16 * encoder.dimension * BYTES)
    found = held.scores(pools([facet, None]))
    expected = [by_hand(encoder, 0, row, facet) for row in (1, 2, 4)]
    np.testing.assert_allclose(found[[0, 1, 3, 4]], [*expected, by_hand(encoder, 1, 0)], atol=1e-5)
    assert np.isnan(found[2])  # no text, no answer
    assert held.lost == 2  # of `long`, whose second and third sentence lie behind 16 tokens
    assert held.scores(pools()) == pytest.approx(held.scores(pools([None, None])), nan_ok=True)


def test_a_facet_that_was_cut_away_has_no_answer(encoder: Any) -> None:
    made = Pools.of(TEXTS, {"long": {"a": 1}})
    cut = Pools(made.queries, made.offsets, made.candidates, made.grades, made.names, [np.array([2])])
    system = SentenceSystem(encoder)
    for distance in ("mean_best", "token_best"):
        assert np.isnan(system.scores(TEXTS, cut, distance)).all()
    assert system.metadata()["sentences cut away"] == 2  # though both distances have read them


def test_many_candidates_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    query, *papers = (torch.from_numpy(rng.normal(size=(size, 4))) for size in (3, 5, 1, 9, 2))
    whole = sentence_distances.token_distances(query, papers)
    monkeypatch.setattr(sentence_distances, "MAX_TOKEN_NUMBERS", 4 * 6)  # six tokens of four numbers
    np.testing.assert_allclose(sentence_distances.token_distances(query, papers), whole, rtol=1e-5)
    expected = [float((1 - (query @ paper.T).amax(1)).mean()) for paper in papers]
    np.testing.assert_allclose(whole, expected, rtol=1e-5)


# --- sums ----------------------------------------------------------------------------------------------


def ranking(system: Any, distance: str) -> dict[str, Any]:
    """The order of q's candidates with their scores."""
    task = RankingTask("t", TEXTS, pools(), RankingRule(("map",)))
    return dict(run_ranking(task, system, distance, "wrong").ranked["q"])


def test_a_sum_adds_standardized_scores() -> None:
    vectors = {"q": [3.0, 4.0], "a": [3.0, 4.0], "b": [6.0, 8.0], "long": [4.0, -3.0]}
    system = VectorSystem(list(vectors), np.array(list(vectors.values())), name="mine")
    found = ranking(system, "cosine+l2")
    # cosines 1, 1, 0: mean 2/3, deviation sqrt(2)/3; distances 0, 5, sqrt(50)
    cosines, apart = np.array([1, 1, 0.0]), np.array([0, 5, np.sqrt(50)])
    expected = (cosines - 2 / 3) / (np.sqrt(2) / 3) - (apart - apart.mean()) / apart.std()
    assert list(found) == ["a", "b", "long"] and "none" not in found
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-5)
    assert ranking(system, "cosine+cosine")["a"] == pytest.approx(2 * 0.5**0.5)


def test_a_sum_may_mix_papers_sentences_and_tokens(bert: Path) -> None:
    name = "cosine+mean_best+token_best"
    system = open_system(
        str(bert), OpeningOptions(distance=name, sentence_metric="cosine", max_tokens=16, device="cpu")
    )
    assert isinstance(system, CombinedSystem)
    parts = [standardize_scores(system.scores(TEXTS, pools(), part), pools().offsets) for part in name.split("+")]
    expected = dict(zip(["a", "b", "none", "long"], np.sum(parts, axis=0)[:4], strict=True))
    found = ranking(system, name)
    assert len(found) == 3 and found == pytest.approx({paper: expected[paper] for paper in found})
    facts = system.metadata()
    assert facts["sentences cut away"] == 2 and facts["dimension"] == system.vectors(TEXTS).matrix.shape[1]


def test_csfcube_by_sentences_and_tokens(tmp_path: Path, folders: dict[str, Path], bert: Path) -> None:
    name = "mean_best+token_best"
    system = open_system(
        str(bert), OpeningOptions(distance=name, sentence_metric="cosine", max_tokens=48, device="cpu")
    )
    read = read_suite("csfcube", folders["csfcube"])
    report = evaluate(system, read, tmp_path / "r", options=EvaluationOptions(distance=name))
    assert report.value["tasks"]["all"]["chosen"] == {"distance": name}
    assert 0 <= report.metrics["all.map"] <= 100 and not report.value["not_evaluated"]


def test_a_search_is_told_not_made(tmp_path: Path, folders: dict[str, Path], bert: Path) -> None:
    read = read_suite("beir", folders["beir"])
    for name in ("token_best", "mean_best+single"):
        system = open_system(str(bert), OpeningOptions(distance=name, max_tokens=48, device="cpu"))
        with pytest.raises(UserError, match="does not search among all papers"):
            evaluate(system, read, tmp_path / "r", options=EvaluationOptions(distance=name))


def test_what_cannot_be_added_is_refused(tmp_path: Path) -> None:
    for distance in ("cosine+", "+cosine", "cosine+nothing", "token"):
        with pytest.raises(UserError, match="--distance"):
            OpeningOptions(distance=distance)
    with pytest.raises(UserError, match="--document-vector is for distances between sentences"):
        OpeningOptions(distance="token_best", with_paper=True)
    with pytest.raises(UserError, match="a space of whole papers"):
        OpeningOptions(distance="cosine+token_best", aspect="method")
    with new_sentence_vectors(tmp_path / "s") as writer:
        writer.append(["q"], [np.ones((1, 2))])
        writer.finish()
    with pytest.raises(UserError, match="compares tokens, but .* has vectors of sentences; give the model"):
        open_system(str(tmp_path / "s"), OpeningOptions(distance="mean_best+token_best"))
    with pytest.raises(UserError, match="s takes single"):
        ranking(open_system(str(tmp_path / "s")), "cosine+single")
