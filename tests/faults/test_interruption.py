"""kill -9 at any moment: the next run completes with the same bytes, nothing is lost or doubled."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave import Corpus
from citeweave.core.publish import create_work_folder, work_folder
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.open_system import open_system
from citeweave.evaluation.precomputed import VectorSystem
from citeweave.evaluation.suites.registry import read_suite
from citeweave.evaluation.tasks import Pools, TaskTexts

from .killing import killed_before

KILLS = 2
"""Of a command; `counted/test_kills.py` has more, of all stages."""


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
    while process.poll() is None and not work_folder(out).exists():
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
    assert not work_folder(tmp_path / "broken").exists()


# --- evaluations -------------------------------------------------------------------------------------

FIELDS = 30


def write_benchmark(folder: Path) -> None:
    """MDCR with a task for each of many fields, and vectors of its papers."""
    draw, rng = random.Random(0), np.random.default_rng(0)
    papers = [f"p{number}" for number in range(600)]
    folder.mkdir()
    fields = {
        f"field {number}": {
            query: {"bm25": draw.sample(papers, 20), "true": draw.sample(papers, 5)}
            for query in draw.sample(papers, 20)
        }
        for number in range(FIELDS)
    }
    (folder / "mdcr_test.json").write_text(json.dumps(fields))
    rows = zip(papers, rng.normal(size=(len(papers), 16)).tolist(), strict=True)
    lines = (json.dumps({"paper_id": paper, "embedding": row}) for paper, row in rows)
    (folder / "vectors.jsonl").write_text("\n".join(lines) + "\n")


def finished_tasks(out: Path) -> dict[str, tuple[int, bytes]]:
    """When each task that an unfinished evaluation keeps was written, and what."""
    files = work_folder(out).glob("kept/tasks/*/*.json")
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


class Counted:
    """Vectors that count how many tasks they are asked to score."""

    def __init__(self, vectors: VectorSystem) -> None:
        self.tasks, self._vectors = 0, vectors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vectors, name)

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> Any:
        self.tasks += 1
        return self._vectors.scores(texts, pools, distance)


def test_killed_evaluations_judge_no_finished_task_again(tmp_path: Path) -> None:
    data, out, copied = tmp_path / "data", tmp_path / "broken", tmp_path / "copied"
    write_benchmark(data)
    command = ("evaluate", data / "vectors.jsonl", "--suite", "mdcr", "--data", data)
    suite = read_suite("mdcr", data)
    expected = evaluate(open_system(str(data / "vectors.jsonl")), suite, tmp_path / "whole").value
    half, task = FIELDS // 2, "*/kept/tasks/*/*.json"
    seen: dict[str, tuple[int, bytes]] = {}
    # the second task, the next one after half of them, the whole report
    for pattern, count, expected_tasks in ((task, 2, 1), (task, half, half), (str(out), 1, FIELDS)):
        assert killed_before(pattern, count, *command, "-o", out, "--quiet"), "the run was not killed"
        kept = finished_tasks(out)
        assert seen.items() <= kept.items(), "a finished task was judged again"
        assert len(kept) == expected_tasks
        seen = kept
        if expected_tasks == half:
            shutil.copytree(work_folder(out) / "kept", create_work_folder(copied) / "kept", dirs_exist_ok=True)
    for folder, unfinished in ((copied, FIELDS - half), (out, 0)):
        vectors = open_system(str(data / "vectors.jsonl"))
        assert isinstance(vectors, VectorSystem)
        counted = Counted(vectors)
        assert evaluate(counted, suite, folder).metrics == expected["metrics"]
        assert counted.tasks == unfinished
        assert json.loads((folder / "report.json").read_text()) == expected
        for path in (tmp_path / "whole/runs").iterdir():
            assert (folder / "runs" / path.name).read_bytes() == path.read_bytes()
        assert not work_folder(folder).exists()
