"""Inputs that change while they are read: an error that names them, or an artifact of one content alone, the one it names.

The change comes at a step of the reading process: before a file is opened, or between two pieces of it. What was refused is
completed by the next run once the input is what it was, with the bytes of a run that nothing disturbed.
"""

import gzip
import hashlib
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .commands import CommandServer, Run
from .counting import Trial
from .stages import content, differences
from .troubles import FILE_CHANGES, FOLDER_CHANGES, change

LONG = 200_000
"""Random bytes of an abstract: a file of some papers is read in several pieces."""


LINE = '{{"id": "{id}", "title": "{title}", "abstract": "{abstract}"}}\n'
ARTICLE = (
    "<PubmedArticle><MedlineCitation><PMID>{number}</PMID><Article><ArticleTitle>{title}</ArticleTitle><Abstract><AbstractText>{abstract}"
    "</AbstractText></Abstract></Article></MedlineCitation></PubmedArticle>"
)  # fmt: skip
WRITTEN: dict[str, tuple[str, str, str, str]] = {
    "JSON lines": ("papers.jsonl", "", LINE, ""),
    "packed JSON lines": ("papers.jsonl.gz", "", LINE, ""),
    "CSV": ("papers.csv", "id,title,abstract\n", "{id},{title},{abstract}\n", ""),
    "BibTeX": ("papers.bib", "", "@article{{{id}, title={{{title}}}, abstract={{{abstract}}}, year={{2000}}}}\n", ""),
    "RIS": ("papers.ris", "", "TY  - JOUR\nID  - {id}\nTI  - {title}\nAB  - {abstract}\nER  - \n", ""),
    "PubMed": ("papers.xml", "<PubmedArticleSet>", ARTICLE, "</PubmedArticleSet>"),
}
"""Format -> a file, what stands before its papers, a paper, what stands behind them."""


def write(name: str, seed: int, folder: Path) -> Path:
    (file, before, paper, after), draw = WRITTEN[name], random.Random(seed)
    papers = [
        {"number": f"{seed}{n}", "id": f"p{seed}{n}", "title": f"Paper number {n} of set {seed}", "abstract": draw.randbytes(LONG).hex()}
        for n in range(4)
    ]  # fmt: skip
    text = before + "".join(paper.format(**one) for one in papers) + after
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(gzip.compress(text.encode(), mtime=0) if file.endswith(".gz") else text.encode())
    return folder / file


@dataclass
class Reading:
    """A command that reads one input, and what it makes of every content that the input may have."""

    server: CommandServer
    words: str  # the command without its output; `{}` stands for the input
    first: Path
    other: Path
    folder: Path

    def __post_init__(self) -> None:
        self._made: dict[str, dict[str, Any]] = {}
        self.input = self.folder / "in" / self.first.name

    def begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.input.parent.mkdir(parents=True)
        self.put_back()

    def put_back(self) -> None:
        """The input as it was at first."""
        if self.input.is_dir():
            shutil.rmtree(self.input)
        shutil.copytree(self.first, self.input) if self.first.is_dir() else shutil.copy(self.first, self.input)

    def run(self, trouble: dict[str, Any] | None = None) -> Run:
        out = self.folder / "out"
        out.mkdir(exist_ok=True)
        return self.server.run(f"{self.words.format(self.input)} -o {out}/made --quiet".split(), trouble)

    def result(self) -> dict[str, Any]:
        return content(self.folder / "out")

    def trouble(self, how: str, at: int) -> dict[str, Any]:
        return {"kind": "change", "how": how, "at": at, "input": str(self.input), "other": str(self.other)}

    def undisturbed(self, how: str) -> dict[str, Any]:
        """What is made of the input after a change that came before the command; nothing where that refuses it."""
        if how not in self._made:
            self.begin()
            if how:
                change(how, self.input, self.other)
            ran = self.run()
            self._made[how] = self.result() if ran.status == 0 else {}
        return self._made[how]

    def steps(self) -> int:
        self.begin()
        return self.run(self.trouble("", -1)).expect_success().steps

    def check(self, how: str, at: int) -> bool:
        """Whether a command that met a change was refused; its artifact is of one content alone in any case."""
        possible = [self.undisturbed(""), self.undisturbed(how)]
        self.begin()
        ran = self.run(self.trouble(how, at))
        assert "Traceback" not in ran.told and "internal error" not in ran.told, ran.told
        if ran.status == 0:
            differing = min((differences(self.result(), one) for one in possible), key=len)
            assert not differing, f"neither content: {differing}"
            return False
        assert ran.status in (1, 2) and str(self.input) in ran.told and ran.told.count("\n") == 1, ran.told
        self.put_back()
        self.run().expect_success()
        assert not (found := differences(self.result(), possible[0])), f"completed, but other than it was: {found}"
        return True


def try_all(trial: Trial, readings: dict[str, Reading], changes: tuple[str, ...], *, quick: int, whole: int) -> None:
    steps = {name: reading.steps() for name, reading in readings.items()}
    names, refused = list(readings), 0
    for seed in trial.numbers(quick=quick, whole=whole):
        draw = random.Random(seed)
        name, how = names[seed % len(names)], draw.choice(changes)
        at = draw.randint(1, steps[name])
        with trial.attempt(f"seed {seed}: {how} at step {at} of {steps[name]} of {name}"):
            refused += readings[name].check(how, at)
    trial.facts |= {"refused": refused, "steps": steps}


def test_files_that_change(trial, server_of_commands, tmp_path):
    """A file that is replaced, cut, continued or removed while it is imported is refused by name, or the corpus is of one content."""
    readings = {}
    for name, (file, *_) in WRITTEN.items():
        places = [write(name, seed, tmp_path / str(seed)) for seed in (1, 2)]
        readings[name] = Reading(server_of_commands, "import {} --workers 1", *places, tmp_path / "tried" / file)
    try_all(trial, readings, FILE_CHANGES, quick=4, whole=600)


def test_recorded_hashes(trial, server_of_commands, tmp_path):
    """The hash of an input in a manifest is that of the bytes which were read."""
    for name in WRITTEN:
        with trial.attempt(name):
            path, out = write(name, 1, tmp_path / name), tmp_path / name / "out"
            server_of_commands.run(["import", str(path), "-o", str(out), "--quiet"]).expect_success()
            manifest = json.loads((out / "manifest.json").read_bytes())
            (described,) = manifest["recipe"]["inputs"]
            assert described["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
            assert manifest["facts"]["files"]["bytes_read"] == path.stat().st_size


def test_corpora_that_change(trial, server_of_commands, bert, tmp_path):
    """A corpus that is replaced or removed while it is read is refused by name, or what is made is of one corpus alone."""
    for seed in (0, 1):
        words = f"synthesize -o {tmp_path}/{seed}/corpus --papers {60 - 10 * seed} --seed {seed} --workers 1 --quiet"
        server_of_commands.run(words.split()).expect_success()
    commands = {
        "graph": "graph {} --dim 8",
        "embedding": f"embed {{}} --model {bert} --device cpu",
        "indexing": f"index {{}} --model {bert} --device cpu",
        "deriving": f"import {tmp_path}/new.jsonl --update {{}}",
    }
    (tmp_path / "new.jsonl").write_text('{"id": "new", "title": "A new paper"}\n')
    both = tmp_path / "0" / "corpus", tmp_path / "1" / "corpus"
    readings = {
        name: Reading(server_of_commands, words, *both, tmp_path / "tried" / name) for name, words in commands.items()
    }
    try_all(trial, readings, FOLDER_CHANGES, quick=3, whole=400)
