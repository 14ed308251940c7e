"""The stages whose interruption is counted, as small commands, and what they make when nothing disturbs them.

made = laboratory(bert)
whole = made.undisturbed("graph", replacing=True)
made.server.run(whole.stage.words(whole.begin(folder)), trouble)
assert whole.is_whole(folder)
"""

from __future__ import annotations

import atexit
import json
import random
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from .commands import CommandServer

STAGES = ("import", "graph", "node vectors", "mining", "training", "embedding", "indexing", "evaluation")


@dataclass(frozen=True, slots=True)
class Stage:
    """A command that makes an artifact, and one that makes another artifact of the same kind."""

    name: str
    new: str
    old: str

    def words(self, out: Path) -> list[str]:
        """The command whose interruption is tried."""
        return [*self.new.split(), "-o", str(out), "--overwrite", "--quiet"]

    def older(self, out: Path) -> list[str]:
        """The command that makes what it replaces."""
        return [*self.old.split(), "-o", str(out), "--quiet"]


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What a stage makes when nothing happens, and what that takes."""

    stage: Stage
    older: Path | None
    """A folder that holds, under `out`, an older artifact that is replaced."""

    old: dict[str, Any]
    new: dict[str, Any]
    steps: int
    seconds: float

    def begin(self, folder: Path) -> Path:
        """Make a folder as the stage found it; the path of the artifact."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.older, folder) if self.older else folder.mkdir(parents=True)
        return folder / "out"

    def is_whole(self, folder: Path) -> bool:
        """Whether an artifact that was there is still what it was, or the new one; what lies beside it does not count."""
        found = content(folder)
        return any(all(found.get(name, 0) == value for name, value in one.items()) for one in (self.old, self.new))


class Laboratory:
    """Stages, and what they make when nothing disturbs them, measured when first asked for."""

    def __init__(self, folder: Path, bert: Path) -> None:
        self.server = CommandServer(folder)
        self._stages = make_stages(folder, self.server, bert)
        self._folder, self._measured = folder, dict[tuple[str, bool], Undisturbed]()

    def undisturbed(self, name: str, *, replacing: bool) -> Undisturbed:
        """A stage that replaces an older artifact, or that finds none."""
        key = (name, replacing)
        if key not in self._measured:
            self._measured[key] = self._measure(*key)
        return self._measured[key]

    def _measure(self, name: str, replacing: bool) -> Undisturbed:
        stage, place = self._stages[name], self._folder / name.replace(" ", "-")
        older = place / "older"
        if replacing:
            older.mkdir(parents=True, exist_ok=True)
            self.server.run(stage.older(older / "out")).expect_success()
        whole = Undisturbed(stage, older if replacing else None, content(older), {}, 0, 0.0)
        ran = self.server.run(stage.words(whole.begin(place / "made"))).expect_success()
        assert content(place / "made") != whole.old, f"{name}: it replaced what was there by the same"
        return replace(whole, new=content(place / "made"), steps=ran.steps, seconds=ran.seconds)


@cache
def laboratory(bert: Path) -> Laboratory:
    """The one of this process."""
    folder = Path(tempfile.mkdtemp(prefix="citeweave-stages-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Laboratory(folder, bert)
    atexit.register(made.server.close)
    return made


def content(folder: Path) -> dict[str, Any]:
    """All files below a folder; of manifests not when they were made, how long that took, and the seal of all that."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        found[name] = None if path.is_dir() else path.read_bytes()
        if path.name == "manifest.json":
            found[name] = _without_times(json.loads(found[name]))
    return found


def _without_times(manifest: dict[str, Any]) -> dict[str, Any]:
    facts = {name: value for name, value in manifest["facts"].items() if name != "seconds"}
    return {**{key: value for key, value in manifest.items() if key not in ("made", "seal")}, "facts": facts}


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of files that differ, or that only one of both has."""
    return sorted(name for name in {*one, *other} if (name in one, one.get(name)) != (name in other, other.get(name)))


def make_stages(folder: Path, server: CommandServer, bert: Path) -> dict[str, Stage]:
    """Small inputs, made once, and the eight commands that read them."""
    write_shards(folder / "shards")
    write_benchmark(folder / "data")
    for words in (
        f"synthesize -o {folder}/corpus --papers 160 --workers 1",
        f"synthesize -o {folder}/other --papers 150 --seed 1 --workers 1",
        f"graph {folder}/corpus -o {folder}/graph --dim 16",
        f"mine {folder}/corpus --recipe specter --graph {folder}/graph -o {folder}/samples",
    ):
        server.prepare([*words.split(), "--quiet"])
    bands = "--set mining.positives.band=10 --set mining.negatives.hard.band=50"
    mine = f"mine {folder}/corpus --recipe scincl {bands} --graph {folder}/graph --seed"
    sets = ("steps=8", "batch=4", "checkpoint_every=2", "validation=0.1", "seed=")
    training = " ".join(f"--set training.{value}" for value in sets)
    train = f"train {folder}/corpus --samples {folder}/samples --init {bert} --device cpu {training}"
    embed = f"embed {folder}/corpus --model {bert} --shard 40 --device cpu --text"
    index = f"--model {bert} --device cpu"
    evaluate = f"evaluate {folder}/data/vectors.jsonl --suite mdcr --data {folder}/data"
    stages = (
        Stage("import", f"import {folder}/shards", f"import {folder}/shards --outside keep"),
        Stage("graph", f"graph {folder}/corpus --method none", f"graph {folder}/other --method none"),
        Stage("node vectors", f"graph {folder}/corpus --dim 16 --held-out 0.1", f"graph {folder}/other --dim 8"),
        Stage("mining", f"{mine} 0", f"{mine} 1"),
        Stage("training", f"{train}0", f"{train}1"),
        Stage("embedding", f"{embed} title", f"{embed} abstract"),
        Stage("indexing", f"index {folder}/corpus {index}", f"index {folder}/other {index}"),
        Stage("evaluation", evaluate, f"{evaluate} --distance dot"),
    )
    return {stage.name: stage for stage in stages}


def write_shards(folder: Path) -> None:
    """Papers and their citations in several files, as Semantic Scholar gives them."""
    draw = random.Random(0)
    folder.mkdir()
    for shard in range(3):
        titles = {shard * 100 + i: f"A made-up title of number {shard} {i}" for i in range(100)}
        papers = [{"corpusid": number, "title": title, "year": 2001} for number, title in titles.items()]
        ends = [(draw.randrange(300), draw.randrange(330)) for _ in range(1000)]
        citations = [
            {"citingcorpusid": citing, "citedcorpusid": cited, "isinfluential": False, "contexts": [f"See {i}."], "intents": None}
            for i, (citing, cited) in enumerate(ends)
        ]  # fmt: skip
        for name, rows in (("papers", papers), ("citations", citations)):
            (folder / f"{name}{shard}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_benchmark(folder: Path, fields: int = 6) -> None:
    """MDCR with a task for each of some fields, and vectors of its papers."""
    draw = random.Random(0)
    papers = [f"p{number}" for number in range(120)]

    def task() -> dict[str, Any]:
        return {
            query: {"bm25": draw.sample(papers, 20), "true": draw.sample(papers, 5)} for query in draw.sample(papers, 6)
        }

    folder.mkdir()
    (folder / "mdcr_test.json").write_text(json.dumps({f"field {number}": task() for number in range(fields)}))
    rows = ({"paper_id": paper, "embedding": [draw.gauss(0, 1) for _ in range(16)]} for paper in papers)
    (folder / "vectors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
