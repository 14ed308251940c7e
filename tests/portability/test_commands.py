"""The main commands where nothing is there that only POSIX has; see `like_windows.py`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src"
Command = Callable[..., str]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables for processes that are as on Windows; the plain encoding of texts knows no letter beyond ASCII."""
    place = tmp_path_factory.mktemp("like_windows")
    (place / "sitecustomize.py").write_text("import like_windows\nlike_windows.narrow()\n")
    own = {"PYTHONPATH": os.pathsep.join(map(str, (place, HERE, SOURCE))), "CITEWEAVE_CACHE": str(place / "cache")}
    return {**os.environ, **own, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.fixture
def python(environment: dict[str, str], tmp_path: Path) -> Command:
    """Run Python in the test's folder; what it printed."""

    def run(*arguments: object) -> str:
        asked = [sys.executable, *map(str, arguments)]
        done = subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


SEVERAL = """
import json, sys
from citeweave.cli import main

for words in json.loads(sys.argv[1]):
    try:
        main([*words, "--debug"])
    except SystemExit as end:
        assert not end.code, words
"""


@pytest.fixture
def commands(python: Command) -> Command:
    """Several commands of citeweave in one process, which is sooner than one in each."""
    return lambda *lines: python("-c", SEVERAL, json.dumps([[str(word) for word in line] for line in lines]))


@pytest.fixture
def command(python: Command) -> Command:
    """The same for a command of citeweave."""
    return lambda *arguments: python("-m", "citeweave", *arguments, "--debug")


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    """Two files, so that two processes read them."""

    def line(row: int) -> str:
        told = {
            "id": f"p:{row}",
            "title": f"How α-cells {'grow' if row % 2 else 'learn'} from data → {row}",
            "year": 2000 + row,
        }
        told["abstract"] = f"We find that the cell grows {row}. Models learn from data. Graphs of a paper."
        told["references"] = [f"p:{other}" for other in (row - 1, row - 2, row - 5) if other >= 0]
        return json.dumps(told, ensure_ascii=False) + "\n"

    folder = tmp_path / "papers"
    folder.mkdir()
    for number, rows in enumerate((range(20), range(20, 40))):
        (folder / f"{number}.jsonl").write_text("".join(map(line, rows)), encoding="utf-8")
    return folder


NARROW = """
import os, pathlib, pytest
for action in (lambda: __import__("fcntl"), lambda: os.fork, lambda: os.link("a", "b"), lambda: os.open(".", os.O_RDONLY)):
    with pytest.raises((ImportError, AttributeError, PermissionError)):
        action()
pathlib.Path("folder").mkdir()
file = open("folder/file", "wb")
for action in (lambda: os.rename("folder", "other"), lambda: os.unlink("folder/file")):
    with pytest.raises(PermissionError):
        action()
file.close()
os.rename("folder", "other")
"""


def test_the_system_is_as_narrow_as_windows(python: Command) -> None:
    """Else the tests below would show nothing."""
    python("-c", NARROW)


POOL = """
from pathlib import Path
from citeweave.corpus import ingest

ingest._ONE_PROCESS_BELOW = 0
print(len(ingest.import_papers([Path("papers")], "pooled", ingest.ImportOptions(workers=2)).corpus))
"""

BIBTEX = """
@article{k1, title={How α-cells grow}, year={2019}, doi={10.1000/1}, abstract={We find that the cell grows.}}
@article{k2, title={Models learn from data}, year={2019}}
"""


def test_corpora(command: Command, python: Command, papers: Path, tmp_path: Path) -> None:
    """Made by two processes, replaced, continued with files of the older one, of entries whose keys are numbered."""
    assert python("-c", POOL) == "40\n"
    command("import", papers, "-o", "corpus")
    command("import", papers / "0.jsonl", "-o", "corpus", "--overwrite")
    command("import", papers / "1.jsonl", "--update", "corpus", "-o", "more")
    assert re.match(r"papers +40\n", command("info", "more", "--verify"))
    command("graph", "more", "-o", "graph")
    (tmp_path / "bib").mkdir()
    for name in ("a", "b"):
        (tmp_path / "bib" / f"{name}.bib").write_text(BIBTEX.replace("α", name).replace("/1", name), encoding="utf-8")
    assert "numbered" in command("import", "bib", "-o", "numbered")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"bib", "corpus", "graph", "more", "numbered", "papers", "pooled"}


def test_vectors_index_and_report(
    commands: Command, command: Command, papers: Path, bert: Path, tmp_path: Path
) -> None:
    (tmp_path / "gone.txt").write_text("p:3\n")
    commands(
        ("import", papers, "-o", "corpus"),
        ("embed", "corpus", "--model", bert, "-o", "vectors"),
        ("embed", "corpus", "--model", bert, "--as", "int8", "-o", "codes"),
        ("index", "corpus", "--model", bert, "--sentences", "-o", "index"),
    )
    command("change", "index", "--delete", "gone.txt")
    found = commands(
        ("search", "index", "cells learn from data"),
        ("evaluate", "vectors", "--suite", "corpus", "--data", "corpus", "-o", "report"),
    )
    assert "How α-cells learn from data → 2 " in found
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"codes", "corpus", "gone.txt", "index", "papers", "report", "vectors"}


def test_a_library_is_served_while_its_vectors_are_made_and_follows_its_source(
    command: Command, environment: dict[str, str], bert: Path, tmp_path: Path
) -> None:
    pytest.importorskip("fastapi", reason="pip install 'citeweave[serve]'")
    (tmp_path / "my.bib").write_text(BIBTEX, encoding="utf-8")
    explore = ["explore", "my.bib", "--folder", "library", "--model", str(bert), "--runtime", "torch"]
    started = [sys.executable, "-m", "citeweave", *explore, "--no-browser"]
    with subprocess.Popen(started, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, encoding="utf-8") as server:
        assert server.stderr is not None
        told = iter(server.stderr.readline, "")
        line = next((line for line in told if " is at http://" in line), "")
        assert line, server.wait()
        address = re.findall(r"http://\S+/", line)[0]
        assert {hit["id"] for hit in ask(f"{address}search?q=cell&by=words")["hits"]} == {"k1"}
        end = time.monotonic() + 300
        while (health := ask(f"{address}health"))["working"] or not health["with_vectors"]:
            assert time.monotonic() < end, health
            time.sleep(0.1)
        server.send_signal(signal.SIGINT)
        assert "stopped; the same command resumes" in server.communicate(timeout=120)[1]
    assert server.returncode == 0
    (tmp_path / "my.bib").write_text(BIBTEX + "@article{k3, title={Graphs of the cell}}\n", encoding="utf-8")
    assert "3 papers, 3 with vectors" in command(*explore, "--once")


def ask(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return dict(json.load(answer))
