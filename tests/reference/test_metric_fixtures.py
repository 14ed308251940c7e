"""Metrics against the values that the peers' own code gave: SciDocs, MDCR, CSFCube, ASPIRE, SciRepEval."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.evaluation.clicks import click_metrics, rank_clicks
from citeweave.evaluation.metrics import RelevanceRule, ranking_metrics
from citeweave.evaluation.ranking_metrics import RankedCandidates, id_order, rank_as_given, rank_as_trec

Vectors = dict[str, np.ndarray]
Judgments = dict[str, dict[str, int]]


@pytest.fixture(scope="session")
def fixtures(shared: Path) -> Path:
    if not (shared / "fixtures").is_dir():
        pytest.skip(f"no recorded values at {shared / 'fixtures'}")
    return shared / "fixtures"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def trec_ranked(judgments: Judgments, scores: dict[tuple[str, str], float]) -> RankedCandidates:
    """All queries of the judgments; pairs without a score are not in the run."""
    pairs = [(query, paper, grade) for query, papers in judgments.items() for paper, grade in papers.items()]
    offsets = np.cumsum([0, *(len(papers) for papers in judgments.values())])
    values = np.array([scores.get((query, paper), np.nan) for query, paper, _ in pairs])
    grades = np.array([grade for _, _, grade in pairs])
    return rank_as_trec(values, grades, offsets, id_order([paper for _, paper, _ in pairs]))


def test_scidocs_ranking(fixtures):
    folder = fixtures / "scidocs_ranking"
    expected = read(folder / "expected.json")
    vectors = {row["paper_id"]: np.array(row["embedding"]) for row in read_lines(folder / "user-citation.jsonl")}
    for task, key in {"coview": "co-view", "coread": "co-read", "cite": "cite", "cocite": "co-cite"}.items():
        for split in ("test", "val"):
            judgments: Judgments = defaultdict(dict)
            for line in (folder / task / f"{split}.qrel").read_text().splitlines():
                query, _, paper, grade = line.split()
                judgments[query][paper] = int(grade)
            scores = {
                (query, paper): score(vectors[query], vectors[paper])
                for query, papers in judgments.items()
                for paper in papers
                if len(vectors.get(query, [])) and paper in vectors
            }
            scored = {query: papers for query, papers in judgments.items() if any((query, p) in scores for p in papers)}
            found = ranking_metrics(trec_ranked(scored, scores), ["map", "ndcg"])
            for name, values in found.items():
                assert 100 * values.mean() == pytest.approx(expected[f"{split}_unrounded"][key][name], abs=1e-9)
                assert round(100 * values.mean(), 2) == expected[split][key][name]
            if split == "test":
                detail = expected["test_detail"][task]
                assert (len(judgments), len(scored)) == (detail["queries_in_qrel"], detail["queries_scored"])
                for number, query in enumerate(scored):
                    mine = {name: values[number] for name, values in found.items()}
                    assert mine == pytest.approx(detail["per_query"][query], abs=1e-9)


def score(query: np.ndarray, paper: np.ndarray) -> float:
    return round(-float(np.linalg.norm(query - paper)), 5) if len(paper) else float("-inf")


def mdcr_judgments(folder: Path) -> dict[str, Judgments]:
    return {
        field: {
            query: {paper: int(paper in lists["true"]) for name in lists for paper in lists[name]}
            for query, lists in queries.items()
        }
        for field, queries in read(folder / "mdcr_test.json").items()
    }


def test_mdcr(fixtures):
    folder = fixtures / "mdcr"
    expected = read(folder / "expected.json")
    scores = {tuple(key.split("_")): value for key, value in read(folder / "scores.json").items()}
    rounded = defaultdict(list)
    for field, judgments in mdcr_judgments(folder).items():
        found = ranking_metrics(trec_ranked(judgments, scores), ["map", "ndcg", "recall_5"])
        means = {name: 100 * values.mean() for name, values in found.items()}
        assert means == pytest.approx(expected["fields_unrounded"][field], abs=1e-9)
        for name, mean in means.items():
            assert round(mean, 4) == expected["fields"][field][name]
            rounded[name].append(round(mean, 4))
    assert {name: round(np.mean(values), 4) for name, values in rounded.items()} == expected["AVG"]


@pytest.mark.parametrize(("kind", "dtype"), [("float32_dict", np.float32), ("float16_path", np.float16)])
def test_mdcr_from_vectors(fixtures, kind, dtype):
    folder = fixtures / "mdcr"
    expected = read(folder / "expected.json")["from_embeddings_with_scirepeval_scorer"][kind]
    vectors = scirepeval_vectors(folder / "embeddings.jsonl", dtype)
    for field, judgments in mdcr_judgments(folder).items():
        found = ranking_metrics(trec_ranked(judgments, minus_l2(judgments, vectors)), ["map", "ndcg", "recall_5"])
        assert {n: round(100 * values.mean(), 4) for n, values in found.items()} == expected["fields"][field]


CSFCUBE = {
    "recall": "csfcube:recall@20",
    "precision": "csfcube:precision@20",
    "f1": "csfcube:f1@20",
    "r_precision": "csfcube:precision_at_last_relevant",
    "av_precision": "csfcube:av_precision",
    "reciprocal_rank": "csfcube:reciprocal_rank",
}
PEERS = RelevanceRule(threshold=2, ideal="submitted")


def csfcube_ranked(folder: Path) -> tuple[list[str], RankedCandidates]:
    """The candidates of every query in the order of the gold file; scores are minus the submitted distances."""
    names: list[str] = []
    scores: list[float] = []
    grades: list[int] = []
    offsets = [0]
    for facet in ("background", "method", "result"):
        gold = read(folder / f"test-pid2anns-csfcube-{facet}.json")
        for query, run in read(folder / f"ranked/test-pid2pool-csfcube-toy-{facet}-ranked.json").items():
            distances = dict(run)
            names.append(f"{query}_{facet}")
            scores += [-distances.get(paper, np.nan) for paper in gold[query]["cands"]]
            grades += gold[query]["relevance_adju"]
            offsets.append(len(scores))
    return names, rank_as_given(np.array(scores), np.array(grades), np.array(offsets))


def test_csfcube(fixtures):
    folder = fixtures / "csfcube"
    expected, splits = read(folder / "expected.json"), read(folder / "evaluation_splits.json")
    queries, ranked = csfcube_ranked(folder)
    names = {key: CSFCUBE.get(key, f"csfcube:{key}") for key in next(iter(expected["per_query"].values()))}
    found = ranking_metrics(ranked, names.values(), PEERS)
    for number, query in enumerate(queries):
        mine = {key: found[name][number] for key, name in names.items()}
        assert mine == pytest.approx(expected["per_query"][query], abs=1e-9)
    for facet, folds in splits.items():
        means = {
            fold: {key: found[name][[queries.index(query) for query in members]].mean() for key, name in names.items()}
            for fold, members in folds.items()
        }
        parts = {"dev": ["fold1_dev"], "test": ["fold1_test", "fold2_test"]}
        for split, members in parts.items():
            for key, value in expected["aggregated"][facet][split].items():
                mean = np.mean([means[fold][key.removeprefix("mean_")] for fold in members])
                assert mean == pytest.approx(value, abs=1e-9)


def test_aspire(fixtures):
    expected = read(fixtures / "csfcube/expected.json")
    queries, ranked = csfcube_ranked(fixtures / "csfcube")
    names = {key: CSFCUBE.get(key, f"csfcube:{key}") for key in next(iter(expected["aspire_per_query"].values()))}
    found = ranking_metrics(ranked, names.values(), PEERS)
    for number, query in enumerate(queries):
        mine = {key: found[name][number] for key, name in names.items()}
        assert mine == pytest.approx(expected["aspire_per_query"][query], abs=1e-9)
    overall = {key: found[name].mean() for key, name in names.items()}
    assert overall == pytest.approx(expected["aspire_aggregated_all_queries"]["all"], abs=1e-9)


def test_leaving_candidates_out_costs_something_by_default(fixtures):
    queries, ranked = csfcube_ranked(fixtures / "csfcube")
    short = ranked.submitted < ranked.judged
    assert short.any()
    names = ["csfcube:ndcg", "csfcube:av_precision", "csfcube:recall@20"]
    ours, peers = ranking_metrics(ranked, names), ranking_metrics(ranked, names, PEERS)
    for name in names:
        assert (ours[name][~short] == peers[name][~short]).all() and (ours[name][short] <= peers[name][short]).all()
    assert any((ours[name][short] < peers[name][short]).any() for name in names), queries


@pytest.mark.parametrize("split", ["test", "val"])
def test_scidocs_recommendation(fixtures, split):
    folder = fixtures / "scidocs_recomm"
    expected = read(folder / "expected.json")[split]
    with (folder / f"recomm/{split}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    shown = [row["similar_papers_avail_at_time"].split(",") for row in rows]
    clicked = np.array([papers.index(row["clicked_pid"]) for papers, row in zip(shown, rows, strict=True)])
    scores = [row["scores"] for row in read_lines(folder / f"scores_{split}.jsonl")]
    flat = np.array([by_id[paper] for papers, by_id in zip(shown, scores, strict=True) for paper in papers])
    propensities = np.array(read(folder / "recomm/propensity_scores.json")["scores"])
    clicks = rank_clicks(flat, np.cumsum([0, *map(len, shown)]), clicked, propensities)
    found = click_metrics(clicks)
    for name, value in expected["all_metrics"].items():
        mine = found[name.replace("Rprec/P@1", "P@1").replace("Adj-", "adj-")]
        assert mine == pytest.approx(value, abs=1e-5 if name.startswith("Adj-") else 1e-12)
    for name, value in expected["float64_recomputation"].items():
        assert found[name.replace("Rprec/P@1", "P@1").replace("Adj-", "adj-")] == pytest.approx(value, abs=1e-9)
    rounded = {name: round(100 * found[name.replace("NDCG", "ndcg")], 2) for name in expected["recomm"]}
    assert rounded == expected["recomm"]


def scirepeval_vectors(path: Path, dtype: type) -> Vectors:
    return {row["doc_id"]: np.array(row["embedding"], dtype) for row in read_lines(path)}


def minus_l2(judgments: Judgments, vectors: Vectors) -> dict[tuple[str, str], float]:
    """As scikit-learn computes it, in the precision of the vectors, half precision made double."""
    from sklearn.metrics.pairwise import euclidean_distances

    scores = {}
    for query, papers in judgments.items():
        there = [paper for paper in papers if paper in vectors]
        if query in vectors and there:
            distances = euclidean_distances(vectors[query][None], np.stack([vectors[paper] for paper in there]))[0]
            scores |= {(query, paper): -float(value) for paper, value in zip(there, distances, strict=True)}
    return scores


def read_qrels(path: Path) -> Judgments:
    judgments: Judgments = defaultdict(dict)
    for row in read_lines(path):
        judgments[row["query_id"]].setdefault(row["cand_id"], row["score"])
    return judgments


@pytest.mark.parametrize(("kind", "dtype"), [("float32_dict", np.float32), ("float16_path", np.float16)])
@pytest.mark.parametrize("task", ["ir_binary", "ir_graded"])
def test_scirepeval_ranking(fixtures, task, kind, dtype):
    folder = fixtures / "scirepeval"
    expected = read(folder / "expected.json")[task][kind]
    judgments = read_qrels(folder / task / "test_qrel.jsonl")
    scores = minus_l2(judgments, scirepeval_vectors(folder / "embeddings.jsonl", dtype))
    scored = {query: papers for query, papers in judgments.items() if any((query, paper) in scores for paper in papers)}
    found = ranking_metrics(trec_ranked(scored, scores), ["map", "ndcg"])
    means = {name: 100 * values.mean() for name, values in found.items()}
    assert means == pytest.approx(expected["unrounded"], abs=1e-6)


@pytest.mark.parametrize(("kind", "dtype"), [("float32_dict", np.float32), ("float16_path", np.float16)])
def test_scirepeval_reviewers(fixtures, kind, dtype):
    folder = fixtures / "scirepeval"
    expected = read(folder / "expected.json")["reviewers"][kind]["unrounded"]
    vectors = scirepeval_vectors(folder / "embeddings.jsonl", dtype)
    units = {name: vector.astype(float) / np.linalg.norm(vector.astype(float)) for name, vector in vectors.items()}
    written = {row["r_id"]: row["papers"] for row in read_lines(folder / "reviewers/reviewer_metadata.jsonl")}
    hard = read_qrels(folder / "reviewers/test_hard_qrel.jsonl")
    scores = {
        (query, reviewer): float(np.mean(sorted(units[paper] @ units[query] for paper in written[reviewer])[-3:]))
        for query, reviewers in hard.items()
        for reviewer in reviewers
        if reviewer in written
    }
    for kind_of, judgments in (("hard", hard), ("soft", read_qrels(folder / "reviewers/test_soft_qrel.jsonl"))):
        found = ranking_metrics(trec_ranked(judgments, scores), ["P_5", "P_10"])
        for name, values in found.items():
            assert 100 * values.mean() == pytest.approx(expected[f"{kind_of}_{name}"], abs=1e-6)
