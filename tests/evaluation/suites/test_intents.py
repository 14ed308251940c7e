"""The suite of held-out intents: pools against brute force, the chance level, overlays, and corpora that give none."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave import Corpus, synthesize
from citeweave.cli import main
from citeweave.core.artifact import new_artifact
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.paper import Intent
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.evaluation.precomputed import VectorSystem
from citeweave.evaluation.ranking_metrics import chance_of_average_precision
from citeweave.evaluation.ranking_tasks import run_ranking
from citeweave.evaluation.suites.corpus_pools import INTENTS, RANDOM
from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions, held_out_rows, intent_graph, make_intent_suite
from citeweave.evaluation.suites.from_corpus import make_suite as make_corpus_suite
from citeweave.evaluation.tasks import RankingTask, Suite
from citeweave.graph.intent_overlay import KIND, VERSION, IntentOverlay, OverlayWriter, confidence_from_mask

OPTIONS = CorpusSuiteOptions(held_out="share:0.3", queries=1000)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return synthesize(tmp_path_factory.mktemp("made") / "corpus", SyntheticOptions(papers=150, sharers=12), workers=1)


@pytest.fixture(scope="module")
def suite(corpus: Corpus) -> Suite:
    return make_intent_suite(corpus, OPTIONS)


def pools_of(suite: Suite, name: str) -> dict[str, tuple[set[str], set[str]]]:
    """Query -> ids of what is relevant, and of the others."""
    task = next(task for task in suite.tasks if task.name == name)
    assert isinstance(task, RankingTask)
    pools, ids, found = task.pools, task.texts.ids, {}
    for number, query in enumerate(pools.queries.tolist()):
        span = slice(pools.offsets[number], pools.offsets[number + 1])
        papers = [ids[row] for row in pools.candidates[span].tolist()]
        assert len(set(papers)) == len(papers) and ids[query] not in papers
        right = {paper for paper, grade in zip(papers, pools.grades[span], strict=True) if grade}
        found[ids[query]] = right, set(papers) - right
    return found


def cited_with(corpus: Corpus, held: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> dict[str, dict[str, int]]:
    """Held-out paper -> what it cites -> bits; papers cite earlier ones alone, so that no pair is known the other way."""
    found: dict[str, dict[str, int]] = {}
    for citing, cited, bits in zip(corpus.citing, corpus.cited, corpus.intents, strict=True):
        if held[citing]:
            found.setdefault(corpus.ids[citing], {})[corpus.ids[cited]] = int(bits)
    return found


def test_pools_are_those_of_brute_force(corpus: Corpus, suite: Suite) -> None:
    held = held_out_rows(corpus, OPTIONS)
    cited = cited_with(corpus, held)
    assert [task.name for task in suite.tasks] == [*INTENTS, *(f"{name}_mixed" for name in INTENTS)]
    several = 0
    for name, bit in INTENTS.items():
        expected = {}
        for query, own in cited.items():
            right = {paper for paper, bits in own.items() if bits & bit}
            others = {paper for paper, bits in own.items() if bits & 7 and not bits & bit}
            several += sum(bits & bit > 0 and bits & 7 != bit for bits in own.values())
            if right and others:
                expected[query] = right, others
        plain, mixed = pools_of(suite, name), pools_of(suite, f"{name}_mixed")
        assert plain == expected and len(plain) > 10
        for query, (right, others) in mixed.items():
            row = corpus.rows([query])[0]
            citing = {corpus.ids[other] for other in corpus.citing[corpus.cited == row].tolist()}
            random = others - plain[query][1]
            assert right == plain[query][0] and len(random) == RANDOM
            assert not random & (set(cited[query]) | citing | {query})
    assert several > 0  # some citations have more than one intent
    # what is asked is held out for the suite of the corpus too: one corpus to train on serves both
    asked = {paper for name in INTENTS for paper in pools_of(suite, name)}
    assert asked <= set(pools_of(make_corpus_suite(corpus, OPTIONS), "cite"))


def test_a_vector_that_knows_the_intent_is_right_and_chance_is_as_told(corpus: Corpus, suite: Suite) -> None:
    task = next(task for task in suite.tasks if task.name == "method")
    assert isinstance(task, RankingTask) and set(task.pools.groups or ()) == {"method"}
    rng = np.random.default_rng(0)
    values = [
        run_ranking(
            task, VectorSystem(task.texts.ids, rng.normal(size=(len(task.texts), 8)), name="chance"), "", "wrong"
        )
        for _ in range(30)
    ]
    told = suite.data["map of a random order"]["method"]
    assert np.mean([value.metrics["map"] for value in values]) == pytest.approx(told, abs=1.5)
    assert f"method: a random order has map {told:.2f}" in suite.notes
    assert suite.choose(["method"]).notes[-1].startswith("method:")
    assert suite.averages["all.map"].parts == ("background.map", "method.map", "result.map")
    few = make_intent_suite(corpus, CorpusSuiteOptions(held_out="share:0.3", queries=7))
    assert pools_of(few, "result") == dict(list(pools_of(suite, "result").items())[:7])


@given(st.integers(1, 6).flatmap(lambda size: st.tuples(st.integers(1, size), st.just(size))))
def test_chance_is_the_mean_over_all_orders(sizes: tuple[int, int]) -> None:
    relevant, size = sizes
    grades = [1] * relevant + [0] * (size - relevant)
    precisions = [
        sum(sum(order[: at + 1]) / (at + 1) for at in range(size) if order[at]) / relevant
        for order in permutations(grades)
    ]
    assert chance_of_average_precision(np.array([relevant]), np.array([size]))[0] == pytest.approx(np.mean(precisions))


def write_overlay(corpus: Corpus, folder: Path, mask: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> IntentOverlay:
    with new_artifact(folder, KIND, VERSION, {"corpus": corpus.hash}) as artifact:
        writer = OverlayWriter(artifact)
        writer.close()
        writer.write_citations(
            mask, confidence_from_mask(mask), np.ones(len(mask), np.int64), np.zeros(len(mask), bool)
        )
        artifact.facts |= {"corpus": corpus.hash, "least": 0.5, "citations": {"all": len(mask)}, "contexts": {"all": 0}}
        artifact.finish()
    return IntentOverlay.open(folder)


def test_intents_of_an_overlay_and_what_cannot_be_asked(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mask = np.where(np.arange(len(corpus.citing)) % 2, Intent.METHOD, Intent.RESULT).astype(np.uint8)
    write_overlay(corpus, tmp_path / "intents", mask)
    made = make_intent_suite(corpus, OPTIONS, graph=intent_graph(corpus, tmp_path / "intents"))
    right, others = next(iter(pools_of(made, "method").values()))
    query = next(iter(pools_of(made, "method")))
    own = corpus.citing == corpus.rows([query])[0]
    assert right == {corpus.ids[row] for row in corpus.cited[own & (mask == Intent.METHOD)].tolist()}
    assert others == {corpus.ids[row] for row in corpus.cited[own & (mask == Intent.RESULT)].tolist()}
    assert "background" in made.not_evaluated and made.averages["all.map"].parts == ("method.map", "result.map")
    write_overlay(corpus, tmp_path / "one", np.full(len(mask), Intent.METHOD, np.uint8))
    with pytest.raises(EmptyResultError, match="no held-out paper cites some papers for method and others"):
        make_intent_suite(corpus, OPTIONS, graph=intent_graph(corpus, tmp_path / "one"))
    with pytest.raises(EmptyResultError, match=r"none of its .* citations has the intent .*citeweave annotate"):
        make_intent_suite(corpus, OPTIONS, graph=intent_graph(corpus).with_intents(np.full(len(mask), 16, np.uint8)))
    (tmp_path / "papers.jsonl").write_text(json.dumps({"id": "a", "title": "A title", "abstract": "One."}) + "\n")
    real = import_papers(tmp_path / "papers.jsonl", tmp_path / "real").corpus
    with pytest.raises(EmptyResultError, match="none of its 0 citations"):
        make_intent_suite(real)
    with pytest.raises(UserError, match="fits only the corpus it was made from"):
        intent_graph(real, tmp_path / "intents")
    asked = ["evaluate", "bm25", "--data", str(corpus.folder), "--intents", str(tmp_path / "intents"), "--json"]
    with pytest.raises(SystemExit):
        main([*asked, "--suite", "intents", "--held-out", "share:0.3", "-o", str(tmp_path / "report")])
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["all.map"] == pytest.approx((metrics["method.map"] + metrics["result.map"]) / 2)
    with pytest.raises(SystemExit):
        main([*asked, "--suite", "corpus", "-o", str(tmp_path / "other")])
    assert "is only for --suite intents, and --suite is corpus" in capsys.readouterr().err
