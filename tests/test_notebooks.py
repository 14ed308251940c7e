"""The notebooks in examples/ run in a kernel, and what they show is committed without traces of the machine that ran them."""

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NOTEBOOKS = ("explore_a_library", "aspects_of_a_paper", "train_and_compare")
"""In this order: the second takes the index of the first."""


def read_notebook(name: str) -> Any:
    return nbformat.read(EXAMPLES / f"{name}.ipynb", 4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_every_notebook_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(NOTEBOOKS)


def test_notebooks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell without an error, and with the same kinds of output as it was committed with."""
    (tmp_path / "elife").symlink_to(EXAMPLES / "elife")
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache"))
    for name in NOTEBOOKS:
        notebook = read_notebook(name)
        committed = [kinds_of(cell) for cell in code_cells(notebook)]
        NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
        assert [kinds_of(cell) for cell in code_cells(notebook)] == committed, name


def kinds_of(cell: Any) -> set[str]:
    """What a cell shows: tables, pictures, texts. Progress comes and goes with the speed of the machine."""
    shown = [
        output
        for output in cell.outputs
        if output.output_type == "execute_result" or "image/png" in output.get("data", {})
    ]
    return {kind for output in shown for kind in output.data}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_committed_outputs_are_complete_and_plain(name: str) -> None:
    notebook, text = read_notebook(name), (EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(text) < 400_000
    assert all(cell.execution_count == number for number, cell in enumerate(code_cells(notebook), 1)), (
        "run it from the top"
    )
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert outputs and not [output for output in outputs if output.output_type == "error"]
    shown = json.dumps(
        [
            {kind: value for kind, value in output.get("data", output).items() if kind != "image/png"}
            for output in outputs
        ]
    )
    assert not re.findall(r"(?<![\w.:/<])/(?:home|root|tmp|work|usr|Users|opt|var|mnt)/\w+|[A-Z]:\\\\", shown)
    assert "<script" not in shown and "Warning" not in shown
