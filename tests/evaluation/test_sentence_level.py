"""Sentence-level models on RELISH, TRECCOVID-RF, CSFCube's facets and searches, and the pictures in their reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.core.randomness import stream
from citeweave.evaluation.evaluate import MAX_EXAMPLES, EvaluationOptions, evaluate, example_matches
from citeweave.evaluation.match_page import PairTexts, draw_ribbons
from citeweave.evaluation.open_system import OpeningOptions, open_system
from citeweave.evaluation.sentence_systems import SentenceSystem
from citeweave.evaluation.suites.registry import read_suite
from citeweave.evaluation.tasks import Pools, RankingRule, RankingTask, Suite, TaskTexts
from citeweave.vectors.document_distance import DISTANCES, DocumentDistance, document_scores
from citeweave.vectors.explain import SentenceAlignment
from citeweave.vectors.sentence_vectors import SentenceVectors

PAPERS = ["q", "r", "a", "b", "c", "d"]
RNG = stream(0, "sentence-level judging")
VECTORS = SentenceVectors.of(PAPERS, [RNG.normal(size=(size, 4)) for size in (3, 2, 4, 1, 2, 5)])


def write(folder: Path, name: str) -> Path:
    """ASPIRE's form of a benchmark: two queries with four candidates each."""
    folder.mkdir()
    lengths = dict(zip(PAPERS, VECTORS.lengths().tolist(), strict=True))
    records = [
        {"paper_id": paper, "title": f"On {paper} </title><script>", "abstract": ["We see data."] * lengths[paper]}
        for paper in PAPERS
    ]
    (folder / f"abstracts-{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    pools = {query: {"cands": ["a", "b", "c", "d"], "relevance_adju": [2, 0, 1, 0]} for query in ("q", "r")}
    (folder / f"test-pid2anns-{name}.json").write_text(json.dumps(pools))
    (folder / f"{name}-evaluation_splits.json").write_text(json.dumps({"test": ["q", "r"], "dev": []}))
    return folder


@pytest.mark.parametrize(("suite", "name"), [("relish", "relish"), ("treccovid_rf", "treccovid")])
def test_whole_abstracts_by_transport_at_5000(tmp_path: Path, suite: str, name: str) -> None:
    read = read_suite(suite, write(tmp_path / "data", name))
    report = evaluate(
        SentenceSystem(VECTORS, name="mine"), read, tmp_path / "r", options=EvaluationOptions(distance="transport")
    )
    run = [line.split() for line in (tmp_path / "r" / "runs" / f"{suite}.run").read_text().splitlines()]
    rows = VECTORS.rows([line[2] for line in run if line[0] == "q"])
    expected = document_scores(VECTORS, np.array([0]), np.array([0, 4]), rows, DocumentDistance("transport", 5000.0))
    np.testing.assert_allclose([float(line[4]) for line in run if line[0] == "q"], expected, rtol=1e-7)
    assert report.metrics[f"{suite}.map"] > 0
    page = (tmp_path / "r" / "report.html").read_text()
    assert page.count('class="ribbon') > 4 and "On q &lt;/title&gt;&lt;script&gt;" in page and "<script" not in page


def test_a_model_reads_sentences_in_their_context(tmp_path: Path, bert: Path) -> None:
    system = open_system(str(bert), OpeningOptions(distance="transport", device="cpu", max_tokens=32))
    read = read_suite("relish", write(tmp_path / "data", "relish"))
    report = evaluate(system, read, tmp_path / "r", options=EvaluationOptions(distance="transport"))
    assert 0 <= report.metrics["relish.map"] <= 100
    assert "Matching sentences" in (tmp_path / "r" / "report.html").read_text()


@pytest.mark.parametrize("distance", DISTANCES)
def test_top_is_the_order_of_the_scores(distance: str) -> None:
    texts = TaskTexts.of_ids([*PAPERS, "unknown"], lacking="papers.jsonl")
    system = SentenceSystem(VECTORS)
    candidates = np.array([5, 6, 2, 3, 4])
    rows, scores = system.top(texts, np.array([0, 6, 1]), candidates, 5, distance)
    pools = Pools.of(texts, {name: {texts.ids[row]: 0 for row in candidates} for name in ("q", "r")})
    expected = system.scores(texts, pools, distance).reshape(2, 5)
    for own, at in ((0, 0), (2, 1)):
        order = np.argsort(-np.nan_to_num(expected[at], nan=-np.inf), kind="stable")[:4]
        assert rows[own].tolist() == [*candidates[order].tolist(), -1]
        np.testing.assert_allclose(scores[own], [*expected[at][order], np.nan], rtol=1e-7)
    assert (rows[1] == -1).all() and np.isnan(scores[1]).all()


def test_a_search_task_finds_papers(tmp_path: Path, bert: Path) -> None:
    folder = tmp_path / "data"
    (folder / "qrels").mkdir(parents=True)
    corpus = [
        {"_id": f"p{at}", "title": words, "text": f"{words}. we learn."}
        for at, words in enumerate(["the cell", "data"])
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in corpus))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": "the cell"}) + "\n")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tp0\t1\n")
    system = open_system(str(bert), OpeningOptions(distance="single", device="cpu", max_tokens=32))
    report = evaluate(system, read_suite("beir", folder), tmp_path / "r", options=EvaluationOptions(distance="single"))
    assert not report.value["not_evaluated"] and len(list((tmp_path / "r" / "runs").iterdir())) == 1


# --- pictures ------------------------------------------------------------------------------------------


def test_ribbons_are_as_wide_as_their_mass() -> None:
    plan = np.array([[0.3, 0.0], [0.001, 0.699]])
    picture = draw_ribbons(
        SentenceAlignment(np.array([0, 4]), np.array([1, 2]), plan, np.array([[1.0, 2], [3, 4]]), 1.0),
        PairTexts("A", "B", ["One."], ["Two.", "Three.", "Four."]),
    )
    assert picture.count('class="ribbon') == 2  # a thousandth is not drawn
    assert "<title>0 and 1: 30.0 %, distance 1.000</title>" in picture and "4</b> (no text)" in picture
    sizes = [float(part.split('"')[0]) for part in picture.split('width="10" height="')[1:]]
    np.testing.assert_allclose(np.array(sizes) / sum(sizes[:2]), [0.3, 0.7, 0.301, 0.699], atol=0.01)


def test_examples_reach_from_the_best_to_the_worst_query(tmp_path: Path) -> None:
    ids = [f"p{at}" for at in range(30)]
    vectors = SentenceVectors.of(ids, [RNG.normal(size=(3, 4)) for _ in ids])
    texts = TaskTexts(ids, ids, ["One. Two. Three."] * 30, [["One.", "Two.", "Three."]] * 30)
    pools = Pools.of(
        texts, {name: {other: at % 3 for at, other in enumerate(ids) if other != name} for name in ids[:9]}
    )
    task = RankingTask("t", texts, pools, RankingRule(("av_precision",), family="csfcube"))
    suite, system = Suite("s", (task,), headline=("t.av_precision",)), SentenceSystem(vectors, name="mine")
    report = evaluate(system, suite, tmp_path / "r", options=EvaluationOptions(distance="single"))
    values: dict[str, Any] = {query: row["av_precision"] for query, row in report.value["per_query"]["t"].items()}
    found = example_matches(system, suite, report.value, report.runs())
    assert [match.value for match in found] == sorted((match.value for match in found), reverse=True)
    assert len(found) == MAX_EXAMPLES and found[0].value == 100 * max(values.values())
    assert found[-1].value == 100 * min(values.values())
    first = document_scores(
        vectors, vectors.rows([found[0].query]), np.array([0, 30]), np.arange(30), DocumentDistance("single")
    )
    first[vectors.rows([found[0].query])] = -np.inf
    assert found[0].texts.right_title == ids[int(first.argmax())] and found[0].explanation.total == pytest.approx(
        -first.max()
    )
    assert example_matches(open_system("bm25"), suite, report.value, report.runs()) == []
