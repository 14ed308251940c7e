"""The stages whose interruption is counted, as small commands, and what they make when nothing disturbs them.

whole = laboratory(bert).undisturbed("graph", replacing=True)
whole.begin(folder)
whole.run(folder, trouble)
whole.complete(folder)
"""

import atexit
import json
import random
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from .commands import CommandServer, Run

STAGES = ("import", "graph", "node vectors", "mining", "training", "embedding", "indexing", "evaluation")


@dataclass
class Undisturbed:
    """What a stage makes when nothing happens, and what that takes."""

    server: CommandServer
    words: str
    older: Path | None  # a folder that holds, under `out`, an older artifact that is replaced
    old: dict[str, Any] = field(default_factory=dict)
    new: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0

    def begin(self, folder: Path) -> None:
        """Make a folder as the stage found it."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.older, folder) if self.older else folder.mkdir(parents=True)

    def run(self, folder: Path, trouble: Mapping[str, Any] | None = None, **how: Any) -> Run:
        words = [*self.words.split(), "-o", str(folder / "out"), "--overwrite", "--quiet"]
        return self.server.run(words, trouble, **how)

    def complete(self, folder: Path, told: str = "") -> None:
        """Nothing was lost, and the same command completes it: the bytes of a run that nothing disturbed, and nothing else."""
        found = content(folder)  # what lies beside an artifact does not count yet
        is_whole = (all(found.get(name, 0) == value for name, value in one.items()) for one in (self.old, self.new))
        assert not self.older or any(is_whole), f"neither the older artifact nor the new one is whole: {told}"
        self.run(folder).expect_success()
        assert not (differing := differences(content(folder), self.new)), f"differ: {differing} after {told}"


class Laboratory:
    """Stages, and what they make when nothing disturbs them, measured when first asked for."""

    def __init__(self, folder: Path, bert: Path) -> None:
        self.server, self._folder = CommandServer(folder), folder
        self._stages = make_stages(folder, self.server, bert)

    @cache  # noqa: B019  one laboratory, as long as the process
    def undisturbed(self, name: str, *, replacing: bool) -> Undisturbed:
        """A stage that replaces an older artifact, or that finds none."""
        (new, old), place = self._stages[name], self._folder / name.replace(" ", "-")
        older = place / "older"
        if replacing:
            older.mkdir(parents=True, exist_ok=True)
            self.server.run([*old.split(), "-o", str(older / "out"), "--quiet"]).expect_success()
        whole = Undisturbed(self.server, new, older if replacing else None, content(older))
        whole.begin(place / "made")
        ran = whole.run(place / "made").expect_success()
        whole.new, whole.steps, whole.seconds = content(place / "made"), ran.steps, ran.seconds
        assert whole.new != whole.old, f"{name}: it replaced what was there by the same"
        return whole


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
            found[name] = json.loads(found[name])
            del found[name]["made"], found[name]["seal"]
            found[name]["facts"].pop("seconds", None)
    return found


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of files that differ, or that only one of both has."""
    return sorted(name for name in {*one, *other} if (name in one, one.get(name)) != (name in other, other.get(name)))


def make_stages(folder: Path, server: CommandServer, bert: Path) -> dict[str, tuple[str, str]]:
    """Small inputs, made once; of each stage the command that is tried, and one that makes what it replaces."""
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
    commands = (
        (f"import {folder}/shards", f"import {folder}/shards --outside keep"),
        (f"graph {folder}/corpus --method none", f"graph {folder}/other --method none"),
        (f"graph {folder}/corpus --dim 16 --held-out 0.1", f"graph {folder}/other --dim 8"),
        (f"{mine} 0", f"{mine} 1"),
        (f"{train}0", f"{train}1"),
        (f"{embed} title", f"{embed} abstract"),
        (f"index {folder}/corpus {index}", f"index {folder}/other {index}"),
        (evaluate, f"{evaluate} --distance dot"),
    )
    return dict(zip(STAGES, commands, strict=True))


def write_lines(path: Path, rows: Iterable[object]) -> Path:
    """Records as JSON, one per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_shards(folder: Path) -> None:
    """Papers and their citations in several files, as Semantic Scholar gives them."""
    draw = random.Random(0)
    folder.mkdir()
    for shard in range(3):
        titles = {shard * 100 + i: f"A made-up title of number {shard} {i}" for i in range(100)}
        papers = [{"corpusid": number, "title": title, "year": 2001} for number, title in titles.items()]
        citations = [
            {"citingcorpusid": draw.randrange(300), "citedcorpusid": draw.randrange(330), "isinfluential": False, "contexts": [f"See {i}."], "intents": None}
            for i in range(1000)
        ]  # fmt: skip
        write_lines(folder / f"papers{shard}.jsonl", papers)
        write_lines(folder / f"citations{shard}.jsonl", citations)


def write_benchmark(folder: Path, fields: int = 6) -> None:
    """MDCR with a task for each of some fields, and vectors of its papers."""
    draw, papers = random.Random(0), [f"p{number}" for number in range(120)]
    tasks = {
        f"field {number}": {
            query: {"bm25": draw.sample(papers, 20), "true": draw.sample(papers, 5)} for query in draw.sample(papers, 6)
        }
        for number in range(fields)
    }
    folder.mkdir()
    (folder / "mdcr_test.json").write_text(json.dumps(tasks))
    rows = ({"paper_id": paper, "embedding": [draw.gauss(0, 1) for _ in range(16)]} for paper in papers)
    write_lines(folder / "vectors.jsonl", rows)
