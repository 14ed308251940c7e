"""kill -9: the next run completes with the same bytes; what was finished is not made again.

`counted/test_kills.py` kills every stage at random moments; here each run dies at a step of its own (`killing.py`).
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from citeweave import synthesize
from citeweave.core.publish import work_folder
from citeweave.corpus.options import SyntheticOptions

from .counted.stages import content, differences, write_benchmark, write_shards
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
    assert not differences(content(tmp_path / "whole"), content(out)) and not work_folder(out).exists()


SHARD, SHARDS, FIELDS = 25, 12, 30
KEPT = {
    # the shard that it died of is made again; both vectors and tokens are saved in shards
    "embed": ("*/shards*/*.npz", "kept/*/shards*/*.npz", [(4, 3), (SHARDS // 2, SHARDS // 2 + 2)]),
    "evaluate": ("*/kept/tasks/*/*.json", "kept/tasks/*/*.json", [(2, 1), (FIELDS // 2, FIELDS // 2)]),
}
"""What is moved when it is finished, where it is kept, and moments of kills: the n-th of them, when so many are kept."""


@pytest.mark.parametrize("name", KEPT)
def test_what_was_finished_before_a_kill_is_not_made_again(tmp_path, bert, name):
    data, out = tmp_path / "data", tmp_path / "broken"
    synthesize(tmp_path / "corpus", SyntheticOptions(papers=SHARD * SHARDS))
    write_benchmark(data, fields=FIELDS)

    def words(out: Path) -> tuple[object, ...]:
        if name == "evaluate":
            return "evaluate", data / "vectors.jsonl", "--suite", "mdcr", "--data", data, "-o", out
        how = ("--model", bert, "--shard", SHARD, "--text", "title", "--device", "cpu")
        return "embed", tmp_path / "corpus", *how, "-o", out, "--tokens", f"{out}-tokens"

    run(*words(tmp_path / "whole"))
    pattern, place, moments = KEPT[name]
    seen = dict[str, tuple[int, bytes]]()
    at_the_end = [(str(out), 1, FIELDS)] if name == "evaluate" else []  # just before the report appears
    for moved, count, finished in [*((pattern, *moment) for moment in moments), *at_the_end]:
        killed(moved, count, *words(out))
        kept = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in work_folder(out).glob(place)}
        assert seen.items() <= kept.items(), "what was finished was made again"
        assert len(kept) == finished
        seen = kept
    run(*words(out))
    assert not differences(content(tmp_path / "whole"), content(out)) and not work_folder(out).exists()
