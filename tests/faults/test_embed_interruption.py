"""embed, killed at any moment: the next run goes on with the next shard and ends with the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from citeweave import Corpus
from citeweave.core.publish import work_folder
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.corpus.synthetic.synthesize import synthesize
from citeweave.vectors.vectors import Vectors

from .killing import killed_before

SHARD, SHARDS = 25, 12

ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
"""Every run in a process of its own with one thread: what other tests left behind in this one would round differently."""


def command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "citeweave", *words]


def arguments(folder: Path, bert: Path, out: str) -> list[str]:
    words = [
        folder / "corpus",
        "--model",
        bert,
        "-o",
        folder / out,
        "--shard",
        SHARD,
        "--tokens",
        folder / f"{out}-tokens",
    ]
    return ["embed", *map(str, words), "--text", "title", "--device", "cpu", "--quiet"]


def run(words: list[str]) -> None:
    subprocess.run(command(words), env=ALONE, check=True)


def test_killed_embeddings_read_no_finished_shard_again(tmp_path: Path, bert: Path) -> None:
    synthesize(tmp_path / "corpus", SyntheticOptions(papers=SHARD * SHARDS))
    run(arguments(tmp_path, bert, "whole"))
    out = tmp_path / "broken"

    def shards() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in work_folder(out).glob("kept/*/shards*/*.npz")}

    words, seen = arguments(tmp_path, bert, "broken"), dict[str, int]()
    for count, finished in ((4, 3), (SHARDS // 2, SHARDS // 2 + 2)):  # the one that it died of is made again
        assert killed_before("*/shards*/*.npz", count, *words, env=ALONE), "the run was not killed"
        kept = shards()
        assert seen.items() <= kept.items(), "a finished shard was read again"
        assert len(kept) == finished
        seen = kept
    run(words)
    whole, resumed = Vectors.open(tmp_path / "whole"), Vectors.open(out)
    assert len(whole) == len(Corpus.open(tmp_path / "corpus"))
    assert (whole.manifest.hash, whole.manifest.facts) == (resumed.manifest.hash, resumed.manifest.facts)
    assert not work_folder(out).exists()
