"""Metrics of rankings against brute force and trec_eval."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.evaluation import ranking_metrics

from .conftest import refused

TREC = ["map", "map_cut_3", "ndcg", "ndcg_cut_1", "ndcg_cut_3", "Rprec", "recip_rank", "P_5", "recall_2", "success_2"]


CSFCUBE = [
    *("csfcube:ndcg", "csfcube:ndcg@3", "csfcube:ndcg%25", "csfcube:av_precision", "csfcube:reciprocal_rank"),
    *("csfcube:precision@2", "csfcube:recall@2", "csfcube:f1@2", "csfcube:r_precision"),
    "csfcube:precision_at_last_relevant",
]
Query = list[tuple[str, int, float]]
"""(id, grade, score) of every candidate."""


@st.composite
def pools(draw) -> list[Query]:
    """A few queries whose scores are often alike, alike in single precision only, endless, or not there."""
    score = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 1e-9, -2.5, 3.25, 1e300, -1e300, math.inf, -math.inf, math.nan])
    ids = st.lists(st.sampled_from(["1", "10", "2", "a", "b", "é", "zz", "Z", "p9"]), unique=True, max_size=9)
    queries = range(draw(st.integers(1, 4)))
    return [[(name, draw(st.integers(-1, 3)), draw(score)) for name in draw(ids)] for _ in queries]


def flat(queries: list[Query]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    ids, grades, scores = ([pair[part] for query in queries for pair in query] for part in range(3))
    offsets = np.cumsum([0, *map(len, queries)])
    return np.array(scores, float), np.array(grades, int), offsets, ranking_metrics.id_order(ids)


def plain_trec(query: Query, name: str) -> float:
    """One query by the words of trec_eval's help, without arrays."""
    with np.errstate(over="ignore"):
        run = [(float(np.float32(score)), name, grade) for name, grade, score in query if not math.isnan(score)]
    ranked = [grade for _, _, grade in sorted(run, reverse=True)]
    relevant = sum(grade >= 1 for _, grade, _ in query)
    family, _, cut = name.rpartition("_")
    if not cut.isdigit():
        family, cut = name, str(10**6)
    top = ranked[: int(cut)]
    if family in ("ndcg", "ndcg_cut"):
        ideal = sorted((max(grade, 0) for _, grade, _ in query), reverse=True)[: int(cut)]
        gains = [sum(max(g, 0) / math.log2(rank + 2) for rank, g in enumerate(grades)) for grades in (top, ideal)]
        return gains[0] / gains[1] if gains[1] else 0.0
    hits = [rank for rank, grade in enumerate(top, 1) if grade >= 1]
    if not relevant or not hits:
        return 0.0
    return {
        "map": sum(number / rank for number, rank in enumerate(hits, 1)) / relevant,
        "map_cut": sum(number / rank for number, rank in enumerate(hits, 1)) / relevant,
        "Rprec": sum(rank <= relevant for rank in hits) / relevant,
        "recip_rank": 1 / hits[0],
        "P": len(hits) / int(cut),
        "recall": len(hits) / relevant,
        "success": 1.0,
    }[family]


@settings(max_examples=150)
@given(queries=pools())
def test_trec_metrics_are_those_of_plain_python(queries):
    ranked = ranking_metrics.rank_as_trec(*flat(queries))
    for name, values in ranking_metrics.ranking_metrics(ranked, TREC).items():
        assert values.shape == (len(queries),) and values.dtype == np.float64
        assert values == pytest.approx([plain_trec(query, name) for query in queries], abs=1e-12), name


def plain_csfcube(ranked: list[int], length: int, best: list[int], relevant: int) -> dict[str, float]:
    """One list by the words of FORMATS; `best` and `relevant` are what there was to reach."""

    def dcg(grades: list[int]) -> float:
        return sum(grade / (1 if rank < 3 else math.log2(rank)) for rank, grade in enumerate(grades, 1))

    def share(part: float, whole: float) -> float:
        return part / whole if whole else 0.0

    hits = [rank for rank, grade in enumerate(ranked, 1) if grade >= 2]
    two, percent = sum(rank <= 2 for rank in hits), int(0.25 * length)
    precision, recall = two / 2, share(two, relevant)
    return {
        "csfcube:ndcg": share(dcg(ranked), dcg(best)),
        "csfcube:ndcg@3": share(dcg(ranked[:3]), dcg(best[:3])),
        "csfcube:ndcg%25": share(dcg(ranked[:percent]), dcg(best[:percent])),
        "csfcube:av_precision": share(sum(n / rank for n, rank in enumerate(hits, 1)), relevant),
        "csfcube:reciprocal_rank": 1 / hits[0] if hits else 0.0,
        "csfcube:precision@2": precision,
        "csfcube:recall@2": recall,
        "csfcube:f1@2": share(2 * precision * recall, precision + recall),
        "csfcube:r_precision": share(sum(rank <= relevant for rank in hits), relevant),
        "csfcube:precision_at_last_relevant": len(hits) / hits[-1] if hits else 0.0,
    }


SCORED = st.tuples(st.integers(0, 3), st.sampled_from([1.0, 1.0 + 1e-9, 2.0, math.nan]))


@settings(max_examples=100)
@given(lists=st.lists(st.lists(SCORED, max_size=14), min_size=1, max_size=4))
def test_csfcube_metrics_are_those_of_plain_python(lists):
    grades = np.array([grade for pairs in lists for grade, _ in pairs], int)
    distances = np.array([distance for pairs in lists for _, distance in pairs], float)
    ranked = ranking_metrics.rank_as_given(-distances, grades, np.cumsum([0, *map(len, lists)]))
    for ideal in ("judged", "submitted"):
        found = ranking_metrics.ranking_metrics(ranked, CSFCUBE, ranking_metrics.RelevanceRule(ideal=ideal))
        for number, pairs in enumerate(lists):
            run = [grade for grade, _ in sorted((p for p in pairs if not math.isnan(p[1])), key=lambda pair: pair[1])]
            base = run if ideal == "submitted" else [grade for grade, _ in pairs]
            plain = plain_csfcube(run, len(base), sorted(base, reverse=True), sum(grade >= 2 for grade in base))
            assert {name: values[number] for name, values in found.items()} == pytest.approx(plain, abs=1e-12)


def test_trec_eval_itself():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(0)
    queries = [
        [(f"p{n}", int(rng.integers(0, 4)), float(rng.integers(0, 6)) / 3) for n in rng.permutation(40)]
        for _ in range(100)
    ]
    run = {f"q{i}": {name: score for name, _, score in query[5:]} for i, query in enumerate(queries)}
    qrel = {f"q{i}": {name: grade for name, grade, _ in query} for i, query in enumerate(queries)}
    queries = [[(n, g, s if at >= 5 else math.nan) for at, (n, g, s) in enumerate(query)] for query in queries]
    measures = {"map", "ndcg", "ndcg_cut.5,10", "recip_rank", "Rprec", "P.5", "recall.5", "success.5", "map_cut.5"}
    expected = pytrec_eval.RelevanceEvaluator(qrel, measures).evaluate(run)
    names = list(expected["q0"])
    found = ranking_metrics.ranking_metrics(ranking_metrics.rank_as_trec(*flat(queries)), names)
    for name in names:
        assert found[name] == pytest.approx([expected[f"q{i}"][name] for i in range(100)], abs=1e-9)


ONE, TWO, PAIR = np.zeros(1), np.zeros(2), np.array([0, 2])
NOTHING = ranking_metrics.rank_as_given(np.zeros(0), np.zeros(0, int), np.array([0]))
WRONG_NAMES = {
    **{"recal_5": "'recall_5'", "ndcg_10": "'ndcg_cut_10'", "recall": "'recall_10'", "recall_k": "'recall_10'"},
    **{"ndcg%20": "write 'csfcube:ndcg%20'", "av_precision": "write 'csfcube:av_precision'", "MAP": "must be one of"},
    **{"csfcube:av_precison": "'csfcube:av_precision'", "": "must be one of", "csfcube:ndcg%101": "from 1 to 100"},
    "P_0": "from 1 to",
}


CANNOT_BE_MEASURED = [
    (ranking_metrics.rank_as_given, (ONE, TWO, np.array([0, 1])), ValueError, "2 grades for 1 scores"),
    (ranking_metrics.rank_as_given, (TWO, TWO, np.array([0, 1])), ValueError, "grow from 0 to the number of pairs, 2"),
    (ranking_metrics.rank_as_given, (ONE, np.array([0.5]), np.array([0, 1])), ValueError, "whole numbers"),
    (ranking_metrics.rank_as_trec, (TWO, TWO, PAIR, np.zeros(1, int)), ValueError, "1 places of ids for 2 pairs"),
    (lambda ideal: ranking_metrics.RelevanceRule(ideal=ideal), ("submited",), UserError, "Did you mean 'submitted'"),
    *((ranking_metrics.ranking_metrics, (NOTHING, [wrong]), UserError, hint) for wrong, hint in WRONG_NAMES.items()),
]


@pytest.mark.parametrize(("measure", "arguments", "error", "message"), CANNOT_BE_MEASURED)
def test_what_cannot_be_measured_is_refused(measure, arguments, error, message):
    refused(message, measure, *arguments, error=error)


def test_names_and_no_queries():
    values = ranking_metrics.ranking_metrics(NOTHING, [*TREC, *CSFCUBE, "csfcube:ndcg%100", "P_1000"])
    assert all(":" in name or "csfcube" not in name for name in ranking_metrics.RANKING_METRICS)
    assert {value.shape for value in values.values()} == {(0,)}
