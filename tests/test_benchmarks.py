"""The suite of benchmarks: every script is on its list, and what it keeps becomes a table."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    import suite

    return suite


def test_every_script_is_listed(suite: Any) -> None:
    scripts = {path.name for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    listed = {benchmark.script for benchmark in suite.BENCHMARKS.values()}
    assert scripts - listed <= {"run_all.py"}
    for benchmark in suite.BENCHMARKS.values():
        assert benchmark.about
        assert all(isinstance(benchmark.arguments(size), list) for size in suite.SIZES)


def test_figures_become_a_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import measuring
    import results_page

    monkeypatch.setenv(measuring.FIGURES, str(tmp_path / "figures.jsonl"))
    ours = measuring.Row("ours", measuring.Cost(2.0, 1.0, 2**20, 0, {}), growth=1.07)
    peer = measuring.Row("peer", measuring.Cost(3.0, 3.0, 2**21, 0, {}), beside=ours)
    measuring.print_table("speed", [measuring.Row("a heading"), ours, peer])
    tables = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    record = {"command": "python benchmarks/a.py", "date": "today", "machine": "here", "tables": tables}
    page = tmp_path / "page.md"
    page.write_text(f"before\n{results_page.BEGIN}\nold\n{results_page.END}\nafter\n")
    for _ in range(2):
        results_page.write_page(page, [record])
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| ours | 2.00 | 1.00 | 1 | | growth 1.07 |" in text
    assert "| peer | 3.00 | 3.00 | 2 | 1.50 | |" in text
    assert text.count("| peer |") == 1


def test_a_name_that_is_not_on_the_list() -> None:
    command = [sys.executable, str(FOLDER / "run_all.py"), "--only", "graf"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    assert ended.returncode == 1
    assert "--only names 'graf'; it must be of import" in ended.stderr
