"""kill -9: the next run completes with the same bytes; what was finished is not made again.

`counted/test_kills.py` kills every stage at random moments; here each run dies at a step of its own (`killing.py`).
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import citeweave as cw
from citeweave.core.publish import create_work_folder, work_folder
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.evaluation import precomputed, tasks

from .counted.stages import write_benchmark, write_shards
from .killing import killed_before

ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
"""Every run in a process of its own with one thread: what other tests left behind in this one would round differently."""


def run(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "citeweave", *map(str, words), "--quiet"], env=ALONE, check=True)


def killed(pattern: str, count: int, *words: object) -> None:
    assert killed_before(pattern, count, *words, "--quiet", env=ALONE), "not killed: the test proves nothing"


COMMANDS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "import outside": lambda folder: ("import", folder / "shards", "--outside", "keep"),
    "synthesize": lambda _: ("synthesize", "--papers", 45_000, "--references", 3, "--contexts", 0.1, "--workers", 1),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_runs_are_completed_by_the_next(tmp_path, name):
    write_shards(tmp_path / "shards")
    command, out = COMMANDS[name](tmp_path), tmp_path / "broken"
    run(*command, "-o", tmp_path / "whole")
    later = 2 if name == "synthesize" else 5  # it moves few files
    for pattern, count in (("*", 2), ("*", later), (str(out), 1)):  # begun, resumed, and just before it appears
        killed(pattern, count, *command, "-o", out)
    run(*command, "-o", out)
    whole, resumed = cw.Corpus.open(tmp_path / "whole"), cw.Corpus.open(out)
    assert (whole.hash, whole.manifest.facts) == (resumed.hash, resumed.manifest.facts)
    assert not work_folder(out).exists()


SHARD, SHARDS = 25, 12


def test_killed_embeddings_read_no_finished_shard_again(tmp_path, bert):
    cw.synthesize(tmp_path / "corpus", SyntheticOptions(papers=SHARD * SHARDS))
    out = tmp_path / "broken"
    how = ("--model", bert, "--shard", SHARD, "--text", "title", "--device", "cpu")

    def words(out: Path) -> tuple[object, ...]:
        return "embed", tmp_path / "corpus", *how, "-o", out, "--tokens", f"{out}-tokens"

    run(*words(tmp_path / "whole"))
    seen = dict[str, int]()
    for count, finished in ((4, 3), (SHARDS // 2, SHARDS // 2 + 2)):  # the one that it died of is made again
        killed("*/shards*/*.npz", count, *words(out))
        kept = {path.name: path.stat().st_mtime_ns for path in work_folder(out).glob("kept/*/shards*/*.npz")}
        assert seen.items() <= kept.items(), "a finished shard was read again"
        assert len(kept) == finished
        seen = kept
    run(*words(out))
    whole, resumed = cw.Vectors.open(tmp_path / "whole"), cw.Vectors.open(out)
    assert len(whole) == len(cw.Corpus.open(tmp_path / "corpus"))
    assert (whole.manifest.hash, whole.manifest.facts) == (resumed.manifest.hash, resumed.manifest.facts)
    assert not work_folder(out).exists()


FIELDS = 30


class Counted:
    """Vectors that count how many tasks they are asked to score."""

    def __init__(self, vectors: precomputed.VectorSystem) -> None:
        self.tasks, self._vectors = 0, vectors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vectors, name)

    def scores(self, texts: tasks.TaskTexts, pools: tasks.Pools, distance: str) -> Any:
        self.tasks += 1
        return self._vectors.scores(texts, pools, distance)


def test_killed_evaluations_score_no_finished_task_again(tmp_path):
    data, out, copied = tmp_path / "data", tmp_path / "broken", tmp_path / "copied"
    write_benchmark(data, fields=FIELDS)
    command = ("evaluate", data / "vectors.jsonl", "--suite", "mdcr", "--data", data)
    suite = cw.read_suite("mdcr", data)
    expected = cw.evaluate(cw.open_system(str(data / "vectors.jsonl")), suite, tmp_path / "whole").value
    half, task = FIELDS // 2, "*/kept/tasks/*/*.json"
    seen: dict[str, tuple[int, bytes]] = {}
    # the second task, the next one after half of them, the whole report
    for pattern, count, expected_tasks in ((task, 2, 1), (task, half, half), (str(out), 1, FIELDS)):
        killed(pattern, count, *command, "-o", out)
        files = work_folder(out).glob("kept/tasks/*/*.json")
        kept = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
        assert seen.items() <= kept.items(), "a finished task was scored again"
        assert len(kept) == expected_tasks
        seen = kept
        if expected_tasks == half:
            shutil.copytree(work_folder(out) / "kept", create_work_folder(copied) / "kept", dirs_exist_ok=True)
    for folder, unfinished in ((copied, FIELDS - half), (out, 0)):
        vectors = cw.open_system(str(data / "vectors.jsonl"))
        assert isinstance(vectors, precomputed.VectorSystem)
        counted = Counted(vectors)
        assert cw.evaluate(counted, suite, folder).metrics == expected["metrics"]
        assert counted.tasks == unfinished
        assert json.loads((folder / "report.json").read_text()) == expected
        for path in (tmp_path / "whole/runs").iterdir():
            assert (folder / "runs" / path.name).read_bytes() == path.read_bytes()
        assert not work_folder(folder).exists()
