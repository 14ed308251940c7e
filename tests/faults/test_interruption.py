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


def command_line(*words: object) -> list[str]:
    return [sys.executable, "-m", "citeweave", *map(str, words), "--quiet"]


def run(*words: object) -> int:
    return subprocess.run(command_line(*words)).returncode


def time_of_writing(*words: object, out: Path) -> float:
    """Run to the end; the seconds for which its unfinished folder was there."""
    process = subprocess.Popen(command_line(*words, "-o", out))
    await_writing(process, out)
    start = time.monotonic()
    assert process.wait() == 0
    return time.monotonic() - start


def await_writing(process: subprocess.Popen[bytes], out: Path) -> None:
    while process.poll() is None and not partial_folder(out).exists():
        time.sleep(0.001)


def killed_while_writing(*words: object, out: Path, after: float) -> bool:
    """Start it, and kill it `after` seconds from the moment it began to write (or, resuming, found what was begun)."""
    process = subprocess.Popen(command_line(*words, "-o", out), start_new_session=True)
    await_writing(process, out)
    try:
        return process.wait(after) == -signal.SIGKILL
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        return process.wait() == -signal.SIGKILL


def killings(*words: object, out: Path, seconds: float, draw: random.Random) -> int:
    """How many of KILLS runs were killed: the first at once, the others anywhere in the time that writing takes.

    A resuming run finds its unfinished folder at the start, so its delays count from the start of Python, too.
    """
    start = time.monotonic()
    run("--help")
    starting = time.monotonic() - start
    delays = [0.0, *(draw.uniform(0, starting + seconds) for _ in range(KILLS - 1))]
    return sum(killed_while_writing(*words, out=out, after=after) for after in delays)


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
    seconds = time_of_writing(*command, out=tmp_path / "whole")
    killed = killings(*command, out=tmp_path / "broken", seconds=seconds, draw=random.Random(name))
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
    seconds = time_of_writing(*command, out=tmp_path / "whole")
    killed = killings(*command, out=tmp_path / "broken", seconds=seconds, draw=random.Random(name))
    assert run(*command, "-o", tmp_path / "broken") == 0
    assert killed > 0, "no run was killed: the test proved nothing"
    whole, resumed = (json.loads((tmp_path / kind / "manifest.json").read_text()) for kind in ("whole", "broken"))
    assert (whole["hash"], whole["facts"]) == (resumed["hash"], resumed["facts"])
    assert not partial_folder(tmp_path / "broken").exists()
