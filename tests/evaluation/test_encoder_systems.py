"""Aspect spaces: what heads project, which space answers which query, one reading for all, and what is refused."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.aspects import AspectHeads
from citeweave.evaluation.encoder_systems import AspectSpace, EncoderSystem, MatchingSpace, aspect_spaces
from citeweave.evaluation.evaluate import evaluate, evaluate_spaces
from citeweave.evaluation.open_system import open_spaces, open_system
from citeweave.evaluation.options import OpeningOptions
from citeweave.evaluation.run_tasks import run_ranking, run_search
from citeweave.evaluation.suites import read_suite
from citeweave.evaluation.systems import VectorSystem
from citeweave.evaluation.tasks import Pools, RankingRule, RankingTask, SearchTask, TaskTexts

from .conftest import FACETS, grades_of, refused

RULE = RankingRule(metrics=("map",), distance="cosine")


def picking(size: int, names: Sequence[str] = FACETS) -> AspectHeads:
    """The head of the n-th aspect keeps the n-th pair of coordinates."""
    rows = np.eye(size, dtype=np.float32)
    zeros = np.zeros(2, np.float32)
    return AspectHeads(tuple(names), {name: ((rows[2 * at : 2 * at + 2], zeros),) for at, name in enumerate(names)})


class Counting:
    """An encoder of known vectors that counts what it reads."""

    name, revision, dimension = "counting", "1", 6

    def __init__(self, matrix: NDArray[np.float32]) -> None:
        self.matrix, self.read = matrix, 0

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        self.read += len(texts)
        return self.matrix[[int(text) for text in texts]]


Papers = tuple[TaskTexts, NDArray[np.int64], Counting]


@pytest.fixture
def papers() -> Papers:
    """Twelve papers of two backgrounds, three methods and two results, each told by a direction of its own pair."""
    codes = np.array([(at % 2, at % 3, (at // 2) % 2) for at in range(12)])  # (papers, 3)
    angles = codes * (2 * np.pi / 3)
    matrix = np.stack([np.cos(angles), np.sin(angles)], axis=2).reshape(12, 6).astype(np.float32)
    texts = TaskTexts([f"p{at}" for at in range(12)], [str(at) for at in range(12)], [""] * 12)
    return texts, codes, Counting(matrix)


def faceted(texts: TaskTexts, codes: NDArray[np.int64], facets: Sequence[str]) -> RankingTask:
    """Every paper asks about one facet in turn; relevant is who shares it."""
    graded = {
        f"p{at}": {f"p{row}": int(codes[row, at % 3] == codes[at, at % 3]) for row in range(12)} for at in range(12)
    }
    for paper, others in graded.items():
        del others[paper]
    pools = replace(Pools.of(texts, graded), groups=[facets[at % 3] for at in range(12)])
    return RankingTask("faceted", texts, pools, RULE)


JOINED = ("all", "background+method+result", "encoder+all")


def test_every_query_is_answered_in_its_own_space(papers):
    texts, codes, encoder = papers
    spaces = aspect_spaces(EncoderSystem(encoder), picking(6))
    for facets in (FACETS, ("problem", "method", "finding")):
        task = faceted(texts, codes, facets)
        found = {name: run_ranking(task, system, "", "wrong").metrics["map"] for name, system in spaces.items()}
        assert found["matching"] == pytest.approx(100)
        assert all(found[name] < 99 for name in spaces if name != "matching")
        assert found["all"] == pytest.approx(found["encoder"])  # the pairs have length 1 already
        relevant = {name: {p: grade for p, grade in pool.items() if grade} for name, pool in grades_of(task).items()}
        judgments = replace(Pools.of(texts, relevant), groups=task.pools.groups)
        search = SearchTask("search", texts, task.pools.queries, np.arange(12), judgments, RULE, depth=12)
        assert run_search(search, spaces["matching"], "", "wrong").metrics["map"] == pytest.approx(100)
        assert run_search(search, spaces["method"], "", "wrong").metrics["map"] == pytest.approx(found["method"])
    assert encoder.read == 12
    np.testing.assert_array_equal(spaces["method"].vectors(texts).matrix, encoder.matrix[:, 2:4])
    assert len({system.revision for system in spaces.values()}) == len(spaces)
    assert spaces["method"].name == "counting (method)" and spaces["method"].metadata()["dimension"] == 2


def test_papers_without_vectors_stay_so_in_a_space():
    heads = AspectHeads(("method",), {"method": ((np.eye(2, dtype=np.float32), np.ones(2, np.float32)),)})
    texts = TaskTexts(["a", "b"], ["A", ""], ["", ""])
    space = AspectSpace(VectorSystem(["a"], np.array([[1.0, 0]], np.float32), name="mine"), heads, "method")
    assert space.vectors(texts).matrix.tolist() == [[2, 1], [0, 0]]
    assert space.vectors(texts).present.tolist() == [True, False]
    nobody = AspectSpace(EncoderSystem(Counting(np.zeros((0, 6), np.float32))), heads, "method")
    assert not nobody.vectors(TaskTexts(["b"], [""], [""])).present.any()


def test_matching_says_what_it_lacks(papers):
    texts, codes, encoder = papers
    task = faceted(texts, codes, FACETS)
    system = MatchingSpace(EncoderSystem(encoder), picking(6, ("background", "method")))
    with pytest.raises(UserError, match="ask about 'result', but counting has the spaces background, method"):
        run_ranking(task, system, "", "wrong")
    plain = replace(task, pools=replace(task.pools, groups=None))
    refused("task ask about none; evaluate one space, such as --aspect back", run_ranking, plain, system, "", "wrong")


def test_every_space_of_a_model_in_one_go(aspect_model, folders, tmp_path):
    model, csfcube = aspect_model, folders["csfcube"]
    spaces = open_spaces(str(model), OpeningOptions(device="cpu", cache=tmp_path / "cache"))
    reports = evaluate_spaces(spaces, read_suite("csfcube", csfcube), tmp_path / "csfcube")
    assert list(reports) == ["encoder", *FACETS, *JOINED, "matching"]
    side_by_side = open_system(str(model), OpeningOptions(device="cpu", aspect="encoder+method"))
    assert side_by_side.metadata()["dimension"] == sum(
        spaces[name].metadata()["dimension"] for name in ("encoder", "method")
    )
    refused("'metod'", open_system, str(model), OpeningOptions(device="cpu", aspect="encoder+metod"))
    assert len(list((tmp_path / "cache/vectors").iterdir())) == 1  # papers were read once
    for facet in FACETS:
        # the queries of a facet are answered in its space and in no other
        assert reports["matching"].metrics[f"{facet}.map"] == pytest.approx(reports[facet].metrics[f"{facet}.map"])
    assert len({reports[space].metrics["all.map"] for space in (*FACETS, "matching")}) == 4
    alone = open_system(str(model), OpeningOptions(device="cpu", aspect="method"))
    again = evaluate(alone, read_suite("csfcube", csfcube), tmp_path / "alone")
    assert again.metrics == pytest.approx(reports["method"].metrics)
    assert again.name == "model (method)"
    # a suite of classes and pools without facets: probes work in every space, and nothing is matched
    found = evaluate_spaces(spaces, read_suite("scidocs", folders["scidocs"]), tmp_path / "scidocs")
    assert list(found) == ["encoder", *FACETS, *JOINED] and all("mag.f1" in report.metrics for report in found.values())
    with pytest.raises(EmptyResultError, match="cannot do any task of scidocs: .*asks? about none"):
        evaluate(spaces["matching"], read_suite("scidocs", folders["scidocs"]), tmp_path / "none")
    with pytest.raises(UserError, match="holds a report, but the reports of all spaces need a folder of their own"):
        evaluate_spaces(spaces, read_suite("csfcube", csfcube), tmp_path / "alone")


def test_the_command(aspect_model, bert, folders, tmp_path, cli, monkeypatch):
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache"))
    asked = "evaluate --suite csfcube --device cpu --data", folders["csfcube"], "-o", tmp_path / "report"
    every = *asked, aspect_model, "--aspect every --task method"
    found = cli.json(*every)["spaces"]
    assert found["matching"]["metrics"] == found["method"]["metrics"]
    assert found["all"]["model"]["dimension"] == 24
    table = cli.text(*every).splitlines()
    assert table[1].split() == ["encoder", *FACETS, *JOINED, "matching"]
    assert float(table[2].split()[3]) == pytest.approx(found["method"]["metrics"]["method.map"], abs=0.01)
    cli.fails("--aspect is 'metod'; it must be one of all, background", *asked, aspect_model, "--aspect metod")
    cli.fails("has no aspect heads", *asked, bert, "--aspect method")
    cli.fails("bm25 is not a model", *asked, "bm25 --aspect method")
    cli.fails("baseline:tfidf is not a model", *asked, "baseline:tfidf --aspect every")
    cli.fails("--distance single compares their sentences", *asked, aspect_model, "--aspect all --distance single")


def test_models_with_the_same_encoder_encode_papers_once(papers):
    texts, _, encoder = papers
    first = EncoderSystem(encoder)
    second = EncoderSystem(encoder, same_as=first)
    assert (second.vectors(texts).matrix == first.vectors(texts).matrix).all()
    assert encoder.read == len(texts) and second.metadata()["dimension"] == 6
