"""Running a task: the two ways with missing answers, rounding, folds, and what is counted."""

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.evaluation.run_tasks import best_mean, run_ranking, run_search
from citeweave.evaluation.systems import NoAnswerError, PrecomputedScores, VectorSystem
from citeweave.evaluation.tasks import Pools, RankingRule, RankingTask, Reviewers, SearchTask, TaskTexts

from .conftest import refused

IDS = ["q1", "q2", "a", "b", "c", "d"]
TEXTS = TaskTexts.of_ids(IDS, lacking="papers.jsonl")
POOLS = {"q1": {"a": 1, "b": 0, "c": 0}, "q2": {"b": 1, "c": 0, "d": 1}}
VECTORS = {"q1": [1, 0], "q2": [0, 1], "a": [1, 0.1], "b": [0.5, 0.5], "c": [0.1, 1], "d": [0, 0.9]}


def vectors(**changed: list[float] | None) -> VectorSystem:
    given = {**VECTORS, **changed}
    kept = {paper: vector for paper, vector in given.items() if vector}
    empty = [paper for paper, vector in given.items() if vector == []]
    return VectorSystem(list(kept), np.array(list(kept.values()), np.float64), name="toy", revision="1", empty=empty)


def task(rule: RankingRule | None = None, **more: object) -> RankingTask:
    rule = rule or RankingRule(("map", "ndcg"), distance="cosine")
    return RankingTask("toy", TEXTS, Pools.of(TEXTS, POOLS), rule, **more)  # type: ignore[arg-type]


def test_all_answers():
    outcome = run_ranking(task(), vectors(), "", "wrong")
    # q1: a first. q2: d, then c before b: precision 1 and 2/3
    assert outcome.rows["q1"]["map"] == 1
    assert outcome.rows["q2"]["map"] == pytest.approx((1 + 2 / 3) / 2)
    assert outcome.metrics["map"] == pytest.approx(100 * (1 + 5 / 6) / 2)
    assert outcome.coverage["pairs without an answer"] == 0
    assert [paper for paper, _ in outcome.ranked["q2"]] == ["d", "c", "b"]
    assert outcome.chosen == {"distance": "cosine", "protocol": "cosine"}


def test_the_user_may_choose_another_distance():
    far = vectors(b=[0, 100.0])  # by cosine the best for q2, by L2 the worst
    assert run_ranking(task(), far, "cosine", "wrong").rows["q2"]["map"] == 1
    assert run_ranking(task(), far, "l2", "wrong").rows["q2"]["map"] == pytest.approx((1 + 2 / 3) / 2)
    refused("--distance is 'transport'; toy takes cosine, l2, dot", run_ranking, task(), far, "transport", "wrong")


def run(missing: str, rule: RankingRule | None = None, **changed: list[float] | None):
    return run_ranking(task(rule), vectors(**changed), "", missing)


def test_what_has_no_vector_is_wrong_or_left_out():
    wrong, peers = run("wrong", q2=None), run("peers", q2=None)
    assert wrong.rows["q2"] == {"map": 0, "ndcg": 0} and wrong.metrics["map"] == 50
    assert wrong.coverage["queries without an answer"] == 1
    assert list(peers.rows) == ["q1"] and peers.metrics["map"] == 100
    assert peers.coverage["queries left out of the mean"] == 1
    wrong = run("wrong", a=None)  # a candidate is never found
    assert wrong.rows["q1"]["map"] == 0 and wrong.coverage["pairs without an answer"] == 1
    assert run("peers", a=None).rows["q1"]["map"] == 0  # still in the mean, no longer ranked
    # an empty candidate is ranked last by the peers and is no answer by our rule
    assert run("wrong", a=[]).rows["q1"]["map"] == 0
    assert run("peers", a=[]).rows["q1"]["map"] == pytest.approx(1 / 3)
    assert "q1" not in run("peers", q1=[]).rows
    stopping = RankingRule(("map",), distance="cosine", peers="stop")
    refused("no score for 1 pairs, such as query 'q1' with 'a'", run, "peers", stopping, a=None)
    assert run("wrong", stopping, a=None).rows["q1"]["map"] == 0
    with pytest.raises(UserError, match="check that the ids of the vectors are the suite's ids"):
        run_ranking(task(), VectorSystem(["x"], np.eye(1), name="toy"), "", "peers")


def test_scores_are_rounded_before_ties_are_broken_by_id():
    near = PrecomputedScores({"q1": {"a": 0.500001, "b": 0.500002, "c": 0.1}, "q2": {"b": 1.0}}, name="run")
    assert run_ranking(task(), near, "", "wrong").rows["q1"]["map"] == pytest.approx(1 / 2)
    pools = Pools.of(TEXTS, {"q1": {"a": 0, "b": 1, "c": 0}})
    tied = RankingTask("toy", TEXTS, pools, RankingRule(("map",), decimals=5))
    assert run_ranking(tied, near, "", "wrong").rows["q1"]["map"] == 1  # "b" beats "a" at a tie
    refused("can rank but not classify", near.vectors, TEXTS, error=NoAnswerError)


def test_folds_average_means():
    folded = run_ranking(task(folds=[["q1"], ["q2"]]), vectors(), "", "wrong")
    assert {name: row["fold"] for name, row in folded.rows.items()} == {"q1": 0, "q2": 1}
    assert folded.how["map"] == "folds"
    some = run_ranking(task(folds=[["q2"]]), vectors(), "", "wrong")
    assert list(some.rows) == ["q2"]


def test_reviewers_are_scored_by_their_best_papers():
    texts = TaskTexts.of_ids(["s", "p1", "p2", "p3", "ann", "bob"], lacking="x")
    given = VectorSystem(["s", "p1", "p2", "p3"], np.array([[1, 0], [1, 0], [1, 1], [0, 1]], float), name="toy")
    pools, rule = Pools.of(texts, {"s": {"ann": 1, "bob": 0}}), RankingRule(("P_1",), distance="cosine")
    people = Reviewers(np.array([0, 0, 0, 0, 0, 2, 3]), np.array([1, 2, 3]), top=1)
    outcome = run_ranking(RankingTask("hard", texts, pools, rule, reviewers=people), given, "", "wrong")
    assert outcome.ranked["s"] == [("ann", pytest.approx(1)), ("bob", pytest.approx(0))]
    assert best_mean(np.array([np.nan]), 3) != best_mean(np.array([np.nan]), 3)


def test_search_ranks_the_whole_pool_and_knows_what_was_not_found():
    texts = TaskTexts.of_ids(["q", "a", "b", "c"], lacking="x")
    given = VectorSystem(["q", "a", "b"], np.array([[1, 0], [1, 0.1], [0, 1]], float), name="toy")
    judgments, rule = Pools.of(texts, {"q": {"a": 1, "c": 1}}), RankingRule(("map", "recall_2"), distance="cosine")
    search = SearchTask("find", texts, np.array([0]), np.array([1, 2, 3]), judgments, rule, depth=2)
    outcome = run_search(search, given, "", "wrong")
    assert outcome.rows["q"] == {"map": pytest.approx(0.5), "recall_2": pytest.approx(0.5)}
    assert [paper for paper, _ in outcome.ranked["q"]] == ["a", "b"]
