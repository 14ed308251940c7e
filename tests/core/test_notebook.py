"""What a notebook shows: escaped tables, and progress as bars by default, in a real kernel."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from citeweave.core.notebook import MAX_SHOWN, Tabular, html_table
from citeweave.evaluation.compare import Comparison
from citeweave.evaluation.report import Report

PAPERS = '{"id": "a", "title": "Maps"}\n{"id": "b", "title": "Ice", "references": ["a"]}\n'


def run_cell(source: str, folder: Path) -> list[Any]:
    """Return the outputs of one cell in a kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return list(notebook.cells[0].outputs)


def test_a_notebook_shows_progress_and_tables(tmp_path: Path) -> None:
    """Long tasks leave a line, short ones nothing; plain lines are not printed as errors; `reporter=QUIET` is silent."""
    (tmp_path / "papers.jsonl").write_text(PAPERS)
    outputs = run_cell(
        "import time, citeweave\n"
        "from citeweave.core.progress import QUIET, Reporter\n"
        "citeweave.import_papers('papers.jsonl', 'quiet', reporter=QUIET)\n"
        "citeweave.import_papers('papers.jsonl', 'corpus')\n"
        "with Reporter().task('<reading>', total=4, unit='files') as advance:\n"
        "    for _ in range(4):\n"
        "        time.sleep(0.3)\n"
        "        advance(1)\n"
        "with Reporter().task('short') as advance:\n"
        "    advance(1)\n"
        "citeweave.Corpus.open('corpus')\n",
        tmp_path,
    )
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert printed.count("merging 2 records of papers") == 1
    assert not [output for output in outputs if output.get("name") == "stderr"]
    pages = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    (bar,) = [page for page in pages if "reading" in page]
    assert "&lt;reading&gt;: 4 of 4 files (100 %)" in bar and "<progress" not in bar
    assert not [page for page in pages if "short" in page]
    assert "Corpus(&#x27;corpus&#x27;: 2 papers, 1 citations)" in pages[-1]


class _Rows(Tabular):
    def records(self) -> list[dict[str, Any]]:
        return [{"id": f"<{number}>", "score": number / 3, "none": None} for number in range(40)]


def test_tables_are_short_and_escaped() -> None:
    page = _Rows()._repr_html_()
    assert page.count("<tr>") == MAX_SHOWN + 1 and "30 more rows" in page
    assert "&lt;9&gt;" in page and "<9>" not in page and "none" not in page and "0.333" in page
    assert html_table([], "nothing").count("<table>") == 0
    frame = _Rows().to_pandas()
    assert frame.shape == _Rows().to_polars().shape == (40, 3)


def test_a_report_is_a_table(tmp_path: Path) -> None:
    value = {
        "suite": "s<1>",
        "model": {"name": "m"},
        "metrics": {"cite.map": 40.0, "average": 41.5},
        "intervals": {"cite.map": [30.0, 50.0]},
        "tasks": {"cite": {"how": {"map": "mean"}}},
    }
    report = Report(tmp_path, None, value)  # type: ignore[arg-type]
    assert report.records() == [
        {"task": "", "metric": "average", "percent": 41.5, "low": None, "high": None},
        {"task": "cite", "metric": "map", "percent": 40.0, "low": 30.0, "high": 50.0},
    ]
    assert report.to_pandas().percent.tolist() == report.to_polars()["percent"].to_list() == [41.5, 40.0]
    assert "s&lt;1&gt;" in report._repr_html_()


def test_a_comparison_is_a_table() -> None:
    values = {"a": {"cite.map": 40.0}, "b": {"cite.map": 50.0}}
    comparison = Comparison(("a", "b"), ("cite.map",), values, {}, (), {"cite.map": 30}, ("Few queries.",))
    assert comparison.records() == [{"metric": "cite.map", "queries": 30, "a": 40.0, "b": 50.0}]
    assert comparison.to_polars()["b"].to_list() == [50.0] and "Few queries." in comparison._repr_html_()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_keep_nested_values(library: str) -> None:
    class Nested(Tabular):
        def records(self) -> list[dict[str, Any]]:
            return [{"id": "a", "matches": []}, {"id": "b", "matches": [{"score": 1.0}]}]

    frame = getattr(Nested(), f"to_{library}")()
    assert list(frame["matches"])[1][0] == {"score": 1.0}
