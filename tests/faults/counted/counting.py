"""Experiments that count: N tried, N held.

    def test_something(trial):
        for seed in trial.numbers(quick=10, whole=200):
            with trial.attempt(f"seed {seed}"):
                assert what_was_promised(seed)

An attempt that fails is counted and told, and the next one goes on; the test fails at its end. `make trust` tries the whole
number and keeps the counts for docs/trust.md, CI a quick share of it.
"""

import json
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

MOST_TOLD = 20
"""Failures that a record has in words."""

Try = TypeVar("Try")


@dataclass
class Trial:
    """One experiment: what was tried, what held, and what was measured on the way."""

    name: str
    is_whole: bool
    chapter: str = ""  # the name of the test's module, without `test_`
    promise: str = ""  # what is to hold, in words: the docstring of the test
    tried: int = 0
    held: int = 0
    failures: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # whatever else the page shall tell, by its words
    begun: float = field(default_factory=time.monotonic)
    most_seconds: float = math.inf  # of an experiment that is measured in seconds: `make trust SECONDS=60`
    is_part: bool = False  # whether the whole experiment would have taken longer than it might

    def numbers(self, *, quick: int, whole: int) -> range:
        """As many numbers as are to be tried: `quick` in CI, `whole` in `make trust`."""
        return range(whole if self.is_whole else quick)

    def some(self, tries: Iterable[Try], *, quick: int, whole: int | None = None, seed: int = 0) -> Sequence[Try]:
        """Tries in an order by chance: all of them, or `whole`, in `make trust`; `quick` in CI."""
        shuffled = list(tries)
        random.Random(seed).shuffle(shuffled)
        return shuffled[: whole if self.is_whole else quick]

    def seconds(self, *, quick: float, whole: float) -> float:
        """As long as is to be tried; less, and told so, where less is allowed."""
        self.is_part = self.is_whole and whole > self.most_seconds
        return min(whole if self.is_whole else quick, self.most_seconds)

    @property
    def share(self) -> str:
        return "part" if self.is_part else "whole" if self.is_whole else "quick"

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Count what happens inside: it held unless an exception leaves it."""
        self.tried += 1
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            self.failures.append(f"{what}: {type(error).__name__}: {error}")
        else:
            self.held += 1

    def finish(self, folder: Path) -> None:
        """Write the count; fail where something did not hold, or nothing was tried."""
        folder.mkdir(parents=True, exist_ok=True)
        names = ("name", "chapter", "promise", "share", "tried", "held", "facts")
        record = {name: getattr(self, name) for name in names} | {"failures": self.failures[:MOST_TOLD]}
        record |= {"seconds": round(time.monotonic() - self.begun, 1), "ended": time.time()}
        path = folder / f"{self.name.replace(' ', '-').replace('/', '-')}.json"
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        assert self.tried, f"{self.name}: nothing was tried"
        told = "\n".join([f"{self.name}: {self.tried:,} tried / {self.held:,} held", *self.failures[:MOST_TOLD]])
        assert self.held == self.tried, told


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The counts of a folder, by name."""
    return sorted((json.loads(path.read_bytes()) for path in folder.glob("*.json")), key=lambda each: each["name"])


def one_line(error: Exception, most: int = 1500) -> str:
    """The words of an error, which are one line that a terminal can show."""
    said = str(error)
    assert said.isprintable() and 0 < len(said) < most, f"not one short line: {said[:300]!r}"
    return said
