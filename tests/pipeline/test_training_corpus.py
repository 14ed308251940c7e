"""What is trained on: nothing held out, no paper of a suite; the oracle alone sees the answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from citeweave import Corpus
from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions, held_out_rows, training_graph
from citeweave.graph.citations import build_graph
from citeweave.pipeline.held_out import without_references
from citeweave.pipeline.run import run_recipe
from citeweave.pipeline.suites import Suites

from .conftest import Place, mined, tiny


@pytest.mark.parametrize("name", ["scincl", "specter", "specter_cocite_scibert"])
def test_nothing_held_out_is_trained_on(name: str, place: Place, tmp_path: Path) -> None:
    held = held_out_rows(place.corpus, CorpusSuiteOptions())
    samples, run = mined(place, tiny(name), tmp_path / "run", place.options)
    assert not held[samples.anchors].any()
    trained = Corpus.open(run.record["stages"]["corpus"]["folder"])
    graph, wanted = build_graph(trained, tmp_path / "graph"), training_graph(place.corpus, CorpusSuiteOptions())
    assert np.array_equal(graph.cited.targets, wanted.cited.targets)
    assert np.array_equal(graph.cited.offsets, wanted.cited.offsets)
    assert not held[trained.contexts.citing[trained.contexts.citing >= 0]].any()


def test_the_corpus_without_references_keeps_all_else(place: Place, tmp_path: Path) -> None:
    held = np.arange(len(place.corpus)) % 3 == 0
    made = without_references(place.corpus, held, tmp_path / "c", why="every third")
    assert list(made.ids) == list(place.corpus.ids) and list(made.titles) == list(place.corpus.titles)
    kept = np.flatnonzero(~held[place.corpus.citing])
    assert [made.citation(n) for n in range(len(made.citing))] == [place.corpus.citation(int(n)) for n in kept]
    table = place.corpus.contexts
    kept = np.flatnonzero(~held[table.citing])
    assert [made.context(n) for n in range(len(made.contexts))] == [place.corpus.context(int(n)) for n in kept]
    assert without_references(place.corpus, held, tmp_path / "c", why="every third").hash == made.hash
    assert made.hash != place.corpus.hash
    nothing = without_references(place.corpus, np.zeros_like(held), tmp_path / "d", why="nothing")
    assert nothing.hash == place.corpus.hash


def test_the_oracle_learns_from_the_answers(place: Place, tmp_path: Path) -> None:
    samples, run = mined(place, tiny("oracle", "mining.anchors=0"), tmp_path / "run", place.options)
    assert "corpus" not in run.record["stages"]
    task = next(task for task in Suites(place.corpus, place.options).read("corpus").tasks if task.name == "cite")
    queries = set(place.corpus.rows([task.texts.ids[row] for row in task.pools.queries.tolist()]).tolist())
    assert queries <= set(samples.anchors.tolist())


def test_papers_of_a_suite_leave_the_corpus(place: Place, tmp_path: Path) -> None:
    (tmp_path / "beir").mkdir()
    papers = [place.corpus.paper(row) for row in range(5)]
    lines = [json.dumps({"_id": f"d{n}", "title": each.title, "text": each.abstract}) for n, each in enumerate(papers)]
    (tmp_path / "beir" / "corpus.jsonl").write_text("\n".join(lines))
    (tmp_path / "beir" / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "error variance"}))
    (tmp_path / "beir" / "qrels").mkdir()
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td0\t1\n")
    options = replace(place.options, suites={"beir": tmp_path / "beir"}, tasks=("cite",))
    result = run_recipe(tiny("specter"), place.corpus.folder, tmp_path / "run", options)
    assert result.record["stages"]["audited"]["facts"]["exclude"] == 5
    assert set(result.reports) == {"corpus", "beir"}
    trained = Corpus.open(result.record["stages"]["corpus"]["folder"])
    assert len(trained) == 295
    assert not set(trained.ids) & {each.id for each in papers}
    result = run_recipe(
        tiny("specter"), place.corpus.folder, tmp_path / "all", replace(options, held_out="none", tasks=())
    )
    assert set(result.reports) == {"beir"} and "corpus" not in result.record["stages"]
