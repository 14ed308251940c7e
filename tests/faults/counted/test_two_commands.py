"""Two commands at one output: one waits or is refused by name, and what is there in the end is what one order of both gives.

The first command pauses before a step to the file system, the second one runs, the first one goes on. Whatever a command
reported done is there, whole and verified.
"""

import random
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .commands import CommandServer, Run
from .stages import content, differences

LET_GO = 1.0
"""Seconds after which the first command goes on although the second one has not ended: it may be waiting for the first."""


@dataclass
class Pair:
    """Two commands; `{out}` stands for the output. `older` makes what both find there."""

    name: str
    first: str
    second: str
    older: str = ""
    compares: bool = True  # whether the same command always gives the same bytes
    steps: int = 0
    orders: list[tuple[tuple[bool, bool], dict[str, Any]]] = field(default_factory=list)
    """Which of both commands succeeded, and what is there in the end."""


def make_pairs(servers: list[CommandServer], bert: Path, folder: Path) -> list[Pair]:
    """Commands of all kinds that meet at one output."""
    folder.mkdir()
    for seed, papers in ((0, 40), (1, 30)):
        words = f"synthesize -o {folder}/c{seed} --papers {papers} --seed {seed} --workers 1 --quiet"
        for server in servers:
            server.prepare(words.split())
        (folder / f"{seed}.jsonl").write_text(f'{{"id": "p{seed}", "title": "A paper of file {seed}"}}\n')
        bib = f"@article{{a, title={{Counting what is lost {seed}}}, year={{2000}}, abstract={{We count.}}}}\n"
        (folder / f"{seed}.bib").write_text(bib)
    (folder / "ids.txt").write_text("synthetic:0\n")
    model = f"--model {bert} --device cpu"
    imports = [f"import {folder}/{seed}.jsonl -o {{out}}" for seed in (0, 1)]
    embed, index = f"embed {folder}/c0 {model} -o {{out}}", f"index {folder}/c0 {model} -o {{out}}"
    other_index = f"index {folder}/c1 {model} -o {{out}}"
    graph = f"graph {folder}/c0 --dim 4 -o {{out}}"
    explore = [f"explore {folder}/{seed}.bib --folder {{out}} {model} --once --no-browser" for seed in (0, 1)]
    return [
        Pair("graph and import", graph, imports[0]),
        Pair("embedding and indexing", f"{embed} --overwrite", f"{index} --overwrite"),
        Pair("indexing and import", index, imports[0]),
        Pair("an index that is replaced and changed", f"{other_index} --overwrite", f"change {{out}} --add {folder}/c1", index, compares=False),
        Pair("exploring two files", *explore, compares=False),
        Pair("import and graph", imports[0], graph),
        Pair("two imports", *imports),
        Pair("the same import twice", imports[0], imports[0]),
        Pair("two imports that replace", *(f"{one} --overwrite" for one in imports), older=f"{imports[0]} --outside keep"),
        Pair("an import and one that replaces", imports[0], f"{imports[1]} --overwrite"),
        Pair("indexing and embedding", f"{index} --overwrite", f"{embed} --overwrite"),
        Pair("an index that is changed and replaced", f"change {{out}} --add {folder}/c1", f"{other_index} --overwrite", index, compares=False),
        Pair("two changes", f"change {{out}} --add {folder}/c1", "change {out} --delete p:1", index, compares=False),
        Pair("exploring twice", explore[0], explore[0], compares=False),
    ]  # fmt: skip


class Meeting:
    """Runs two commands at one output in a folder of its own."""

    def __init__(self, servers: list[CommandServer], folder: Path) -> None:
        self._servers, self._folder, self.out = servers, folder, folder / "out"

    def begin(self, pair: Pair) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        if pair.older:
            self.run(pair.older).expect_success()

    def run(self, command: str, server: int = 0, trouble: dict[str, Any] | None = None) -> Run:
        quiet = [] if command.startswith("info") else ["--quiet"]
        return self._servers[server].run([*command.format(out=self.out).split(), *quiet], trouble)

    def measure(self, pair: Pair) -> None:
        """What both orders give, one after the other, and each command alone; how many steps the first takes."""
        for chosen in ([0], [1], [0, 1], [1, 0]):
            self.begin(pair)
            runs = {number: self.run((pair.first, pair.second)[number]) for number in chosen}
            if chosen == [0]:
                pair.steps = runs[0].steps
            first, second = (number in runs and runs[number].status == 0 for number in (0, 1))
            pair.orders.append(((first, second), content(self.out)))

    def meet(self, pair: Pair, at: int) -> tuple[Run, Run]:
        """The first command pauses before a step, the second one runs, the first one ends."""
        self.begin(pair)
        flag = self._folder / "flag"
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(self.run, pair.first, 0, {"kind": "pause", "at": at, "flag": str(flag)})
            while not flag.exists() and not first.done():
                time.sleep(0.005)
            let_go = threading.Timer(LET_GO, lambda: flag.unlink(missing_ok=True))
            let_go.start()
            second = self.run(pair.second, 1)
            let_go.cancel()
            flag.unlink(missing_ok=True)
            return first.result(), second

    def check(self, pair: Pair, at: int) -> bool:
        """Whether one of both was refused; what the other one did is there, whole."""
        runs = self.meet(pair, at)
        for run in runs:
            assert "Traceback" not in run.told and "internal error" not in run.told, run.told
            named = str(self.out) in run.told and run.told.count("\n") == 1
            assert run.status == 0 or (run.status in (1, 2) and named), f"exit code {run.status}: {run.told}"
        done = (runs[0].status == 0, runs[1].status == 0)
        assert any(done), f"both were refused: {[run.told for run in runs]}"
        found = content(self.out)
        possible = [end for succeeded, end in pair.orders if succeeded == done]
        assert possible, f"no order of both ends like this: {done}"
        if pair.compares:
            assert found in possible, f"other than any order: {min((differences(found, o) for o in possible), key=len)}"
        else:
            names = [{name for name in one if "/" not in name and name[0] != "."} for one in (found, *possible)]
            assert names[0] in names[1:], f"other files than any order: {names}"
        if not pair.name.startswith("exploring"):
            self.run("info {out} --verify").expect_success()
        return not all(done)


def test_two_commands(trial, servers, bert, tmp_path):
    both = [servers(), servers()]
    pairs, meeting, refused = make_pairs(both, bert, tmp_path / "in"), Meeting(both, tmp_path / "tried"), 0
    for seed in trial.numbers(quick=3, whole=20 * len(pairs)):
        pair, draw = pairs[seed % len(pairs)], random.Random(seed)
        if not pair.orders:
            meeting.measure(pair)
        # half of the times before the first steps, where a command has looked at its output and has no lock yet
        at = draw.randint(1, 3) if draw.random() < 0.5 else draw.randint(1, max(1, pair.steps))
        with trial.attempt(f"seed {seed}: {pair.name}, step {at} of {pair.steps}"):
            refused += meeting.check(pair, at)
    trial.facts |= {"pairs": sum(bool(pair.orders) for pair in pairs), "one was refused": refused}
