"""mteb's own `evaluate` runs a saved encoder on papers, and its own reader loads the results of a report; no download.

mteb is imported by the tests, not with the module: that takes ten seconds, which every process of the tests would spend.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="pip install 'citeweave[minilm]'")

from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_card import ModelCard
from citeweave.encoders.save import save_encoder
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.suites import read_suite
from citeweave.evaluation.systems import Bm25System

pytestmark = pytest.mark.skipif(find_spec("mteb") is None, reason="mteb is not installed; pip install 'citeweave[dev]'")

PAPERS = {
    "a": ("the cell grows", "We find how the cell grows in data."),
    "b": ("graphs of citations", "Models learn from graphs of citations."),
    "c": ("models learn", "A paper shows how models learn from data."),
}


def papers_by_title() -> Any:
    """A task of mteb: find a paper among three by its title."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class PapersByTitle(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = TaskMetadata(
            name="PapersByTitle",
            description="Three papers, found by their titles.",
            type="Retrieval",
            category="t2t",
            modalities=["text"],
            dataset={"path": "nowhere/local", "revision": "1"},
            reference=None,
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, num_proc: int | None = None, **more: Any) -> None:
            corpus = [{"id": id, "title": title, "text": abstract} for id, (title, abstract) in PAPERS.items()]
            queries = [{"id": f"q{id}", "text": title} for id, (title, _) in PAPERS.items()]
            split = {"corpus": Dataset.from_list(corpus), "queries": Dataset.from_list(queries)}
            relevant = {f"q{id}": {id: 1} for id in PAPERS}
            self.dataset = {"default": {"test": {**split, "relevant_docs": relevant, "top_ranked": None}}}
            self.data_loaded = True

    return PapersByTitle()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mteb_evaluates_a_saved_encoder(bert: Path, tmp_path: Path) -> None:
    import mteb
    from sentence_transformers import SentenceTransformer

    encoder = load_encoder(bert, pooling="mean", device="cpu")
    network, tokenizer = encoder.network, encoder.reader.tokenizer
    save_encoder(tmp_path / "tiny", network, tokenizer, encoder.settings, card=ModelCard("tiny"))
    model = SentenceTransformer(str(tmp_path / "tiny"), device="cpu")
    (result,) = mteb.evaluate(model, [papers_by_title()], cache=None, show_progress_bar=False).task_results
    (scores,) = result.scores["test"]
    assert result.task_name == "PapersByTitle" and 0 < scores["main_score"] <= 1 == scores["recall_at_3"]


def test_mteb_reads_the_results_of_a_report(folders: dict[str, Path], tmp_path: Path) -> None:
    from mteb.results import BenchmarkResults, ModelResult, TaskResult

    report = evaluate(Bm25System(), read_suite("beir", folders["beir"]), tmp_path / "report")
    results = [TaskResult.from_disk(path) for path in sorted((tmp_path / "report/mteb").glob("*.json"))]
    wanted = report.metrics["search.ndcg_cut_10"] / 100
    assert [(result.task_name, result.eval_splits) for result in results] == [("beir.search", ["test"])]
    assert results[0].get_score() == pytest.approx(wanted, abs=1e-6) and results[0].languages == ["eng"]
    results[0].to_disk(tmp_path / "again.json")
    assert TaskResult.from_disk(tmp_path / "again.json") == results[0]
    named = ModelResult(model_name=report.name, model_revision="1", task_results=results)
    assert BenchmarkResults(model_results=[named]).to_dataframe()["task_name"].tolist() == ["beir.search"]
