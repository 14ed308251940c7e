"""What every command shares: inputs stay as they are, byte for byte, and nothing outside its output and the cache changes.

The list of commands is the program's own: a new command fails here until it has a line in `commands_of`. Beside every output
lie decoys of all the names that the code has ever worked in, and each command is run twice: into a new place, and again.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from citeweave import Corpus
from citeweave.cli import command_names

from .commands import CommandServer
from .stages import write_benchmark, write_lines

DECOYS = (
    "{name}.old", "{name}.partial", "{name}.new", "{name}.part", "{name}.laid", "{name}.tmp", ".{name}.partial",
    ".{name}.citeweave-1f0c2a9b", "{name}.work", "{name}.bak",
)  # fmt: skip
FILES = ("{name}.partial.lock", "{name}.lock", ".{name}.citeweave-2f0c2a9b", "{name}.json.new", "state.json.new")
SLOW = (
    "align", "train", "match", "explore", "evaluate", "evaluate once more", "run", "sweep", "intents train", "store",
)  # fmt: skip
"""Tried once in the quick share."""


class Line(NamedTuple):
    """A command as it is typed, and what it may write to, below the folder of the test."""

    words: str
    output: str = ""
    ends: int = 0  # exit code; -9 of a server that is ended by us
    again: int | None = 0  # exit code of the second time; None where there is none


def commands_of(bert: Path) -> dict[str, Line]:
    """All commands, in an order in which each finds what it reads."""
    training = "--device cpu --set training.steps=2 --set training.batch=4"
    recipe = f"--init {bert} {training} --device cpu --set training.validation=0.1"
    suite = "--suite mdcr --data data --device cpu"
    return {
        "synthesize": Line("synthesize -o corpus --papers 160 --workers 1", "corpus"),
        "import": Line("import library.bib papers.jsonl -o imported --workers 1", "imported"),
        "info": Line("info corpus --verify"),
        "derive": Line("derive corpus --texts titles -o derived", "derived"),
        "annotate": Line("annotate corpus --classifier none -o intents", "intents"),
        "graph": Line("graph corpus --dim 16 -o graph", "graph"),
        "mine": Line("mine corpus --recipe specter --graph graph -o samples", "samples"),
        "align": Line(f"align corpus --samples samples --model {bert} --by abstracts -o aligned --device cpu", "aligned"),
        "train": Line(f"train corpus --samples samples --init {bert} {training} -o model", "model"),
        "bundle": Line(f"bundle corpus --samples samples --init {bert} -o bundle", "bundle"),
        "recipes": Line("recipes"),
        "estimate": Line("estimate specter --papers 1000"),
        "audit": Line("audit corpus --against bench=papers.jsonl -o audited", "audited"),
        "convert": Line("convert samples --corpus corpus --to scincl -o converted", "converted", 0, 2),
        "model": Line("model model -o whole", "whole"),
        "embed": Line("embed corpus --model model -o vectors --device cpu", "vectors"),
        "similar": Line("similar vectors --paper {paper} --device cpu"),
        "embed sentences": Line("embed imported --model model --sentences -o sentences --device cpu", "sentences"),
        "explain": Line("explain imported --vectors sentences --papers q:0 q:1 -o page.html", "page.html", 0, 2),
        "index": Line("index corpus --model model -o index --device cpu", "index"),
        "search": Line("search index --paper {paper} --export found.bib --device cpu", "found.bib", 0, 2),
        "store": Line("store index --lance papers.lance", "papers.lance"),
        "change": Line("change index --delete gone.txt", "index"),
        "match": Line("match corpus --papers corpus --model model --device cpu --reviewers people.jsonl -o scores.csv", "scores.csv", 0, 2),
        "mcp": Line("mcp index --device cpu"),  # its standard input is empty: it ends at once
        "serve": Line("serve index --port 18731 --device cpu", "", -9, None),
        "explore": Line(f"explore library.bib --folder library --model {bert} --runtime torch --once", "library"),
        "evaluate": Line(f"evaluate data/vectors.jsonl {suite} -o report", "report"),
        "evaluate once more": Line(f"evaluate data/vectors.jsonl {suite} --distance dot -o report2", "report2"),
        "compare": Line("compare report report2 -o comparison.md", "comparison.md"),
        "benchmark": Line("benchmark scitldr scitldr -o beir", "beir", 0, 2),
        "copy": Line("copy corpus elsewhere", "", 2, 2),
        "cache": Line("cache"),
        "doctor": Line("doctor"),
        "run": Line(f"run specter --corpus corpus -o run {recipe}", "run"),
        "sweep": Line(f"sweep specter --corpus corpus --over training.learning_rate=1e-4,2e-4 -o sweep {recipe}", "sweep"),
        "intents train": Line(f"intents train cited.jsonl -o classifier --base {bert} --rank 4 --epochs 1 --batch 8 --device cpu", "classifier"),
        "intents evaluate": Line("intents evaluate classifier --data cited.jsonl --device cpu"),
    }  # fmt: skip


def write_inputs(place: Path) -> None:
    entries = "@article{a, title={How models learn}, year={2019}}\n@book{b, title={The cell}, year={2001}}\n"
    (place / "library.bib").write_text(entries)
    (place / "gone.txt").write_text("s2:999999\n")
    (place / "scitldr").mkdir()
    papers = [{"id": f"q:{n}", "title": f"A title of its own {n}", "abstract": "We find."} for n in range(6)]
    write_lines(place / "papers.jsonl", papers)
    write_lines(place / "scitldr/papers.jsonl", ({**paper, "tldr": ["short"], "split": "test"} for paper in papers))
    write_benchmark(place / "data")
    cited = [
        {"text": f"paper {n % 7} data {word} [3]", "intent": intent, "split": split, "section": "Data"}
        for split, count in (("train", 12), ("dev", 4))
        for n in range(count)
        for intent, word in (("background", "shows"), ("method", "learn"), ("result", "find"))
    ]
    write_lines(place / "cited.jsonl", cited)


def write_decoys(place: Path, name: str) -> None:
    """What people may have beside an output."""
    for pattern in DECOYS:
        folder = place / pattern.format(name=name)
        folder.mkdir(exist_ok=True)
        (folder / "thesis.txt").write_text("precious")
    for pattern in FILES:
        (place / pattern.format(name=name)).write_text("precious")


def tree(place: Path, without: tuple[Path, ...]) -> dict[str, str]:
    """Every file, folder and link below a place, but not below some, with what it holds."""
    found: dict[str, str] = {}
    for parent, folders, names in os.walk(place):
        folders[:] = [name for name in folders if Path(parent, name) not in without]
        for name in [*folders, *names]:
            path = Path(parent, name)
            if path.is_symlink():
                found[str(path)] = f"link to {path.readlink()}"
            elif path not in without:
                found[str(path)] = "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def test_nothing_else_touched_by_any_command(trial, tmp_path, bert, servers, monkeypatch):
    """A command changes its output and the cache, and nothing else: no input, no file beside its output."""
    lines, quick = commands_of(bert), trial.share == "quick"
    assert {*command_names()} <= lines.keys(), "give the new command a line in commands_of"
    home, place = tmp_path / "home", tmp_path / "place"
    home.mkdir(), place.mkdir()
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(home))
    write_inputs(place)
    server = servers()
    for name, line in lines.items():
        with trial.attempt(name):
            _try(server, place, name, line._replace(again=None) if quick and name in SLOW else line)


def _try(server: CommandServer, place: Path, name: str, line: Line) -> None:
    if line.output:
        write_decoys(place, line.output)
    paper = Corpus.open(place / "corpus").ids[0] if (place / "corpus").is_dir() else ""
    if name == "match":
        write_lines(place / "people.jsonl", [{"person": "ann", "papers": [paper]}])
    without = (place / line.output,) if line.output else ()
    before = tree(place, without)
    words = [*line.words.format(paper=paper).split(), *([] if name == "recipes" else ["--quiet"])]
    for ends in (line.ends,) if line.again is None else (line.ends, line.again):
        ran = server.run(words, kill_after=8.0 if ends < 0 else None, folder=place)
        assert ran.status == ends, f"exit code {ran.status}: {ran.told}"
        after = tree(place, without)
        differing = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        assert not differing, f"{' '.join(words)} touched {differing[:5]}"
