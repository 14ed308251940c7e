"""kill -9 at any moment: the next run completes with the same bytes, nothing is lost or doubled."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from citeweave import Corpus
from citeweave.files import partial_folder

KILLS = 6


def run(*words: object, kill_after: float | None = None) -> int:
    process = subprocess.Popen([sys.executable, "-m", "citeweave", *map(str, words), "--quiet"], start_new_session=True)
    try:
        return process.wait(kill_after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        return process.wait()


def write_shards(folder: Path) -> None:
    draw = random.Random(0)
    folder.mkdir()
    for shard in range(4):
        rows = [
            {"corpusid": shard * 1000 + i, "title": f"A made-up title of number {shard} {i}", "year": 2001}
            for i in range(1000)
        ]
        (folder / f"papers{shard}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        edges = [
            {
                "citingcorpusid": draw.randrange(4000),
                "citedcorpusid": draw.randrange(4000),
                "isinfluential": False,
                "contexts": [f"See {i}."],
                "intents": None,
            }
            for i in range(20_000)
        ]
        (folder / f"citations{shard}.jsonl").write_text("".join(json.dumps(edge) + "\n" for edge in edges))


COMMANDS = {
    "import": lambda folder: ("import", folder / "shards"),
    "import outside": lambda folder: ("import", folder / "shards", "--outside", "keep"),
    "synthesize": lambda _: ("synthesize", "--papers", 45_000, "--references", 3, "--contexts", 0.1, "--workers", 1),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_runs_are_completed_by_the_next(tmp_path: Path, name: str) -> None:
    write_shards(tmp_path / "shards")
    command = COMMANDS[name](tmp_path)
    start = time.monotonic()
    assert run(*command, "-o", tmp_path / "whole") == 0
    seconds = time.monotonic() - start
    draw, killed = random.Random(name), 0
    for _ in range(KILLS):
        killed += (
            run(*command, "-o", tmp_path / "broken", kill_after=draw.uniform(0.3, 0.95) * seconds) == -signal.SIGKILL
        )
    assert run(*command, "-o", tmp_path / "broken") == 0
    assert killed > 0, "no run was killed: the test proved nothing"
    whole, resumed = Corpus.open(tmp_path / "whole"), Corpus.open(tmp_path / "broken")
    assert whole.hash == resumed.hash
    assert whole.manifest.facts == resumed.manifest.facts
    assert not partial_folder(tmp_path / "broken").exists()


STAGES = {
    "graph": lambda folder: ("graph", folder / "corpus", "--dim", 32, "--held-out", 0.05),
    "mine": lambda folder: (
        "mine",
        folder / "corpus",
        "--recipe",
        "specter",
        "--graph",
        folder / "g",
        "--memory",
        "2MB",
    ),
}


@pytest.mark.parametrize("name", STAGES)
def test_killed_stages_are_completed_by_the_next(tmp_path: Path, name: str) -> None:
    """Blocks of samples that were done are kept; a graph is begun anew."""
    assert run("synthesize", "-o", tmp_path / "corpus", "--papers", 4000) == 0
    assert run("graph", tmp_path / "corpus", "-o", tmp_path / "g", "--method", "none") == 0
    command = STAGES[name](tmp_path)
    start = time.monotonic()
    assert run(*command, "-o", tmp_path / "whole") == 0
    seconds = time.monotonic() - start
    draw, killed = random.Random(name), 0
    for _ in range(KILLS):
        after = draw.uniform(0.5, 0.97) * seconds
        killed += run(*command, "-o", tmp_path / "broken", kill_after=after) == -signal.SIGKILL
    assert run(*command, "-o", tmp_path / "broken") == 0
    assert killed > 0, "no run was killed: the test proved nothing"
    whole, resumed = (json.loads((tmp_path / kind / "manifest.json").read_text()) for kind in ("whole", "broken"))
    assert (whole["hash"], whole["facts"]) == (resumed["hash"], resumed["facts"])
    assert not partial_folder(tmp_path / "broken").exists()
