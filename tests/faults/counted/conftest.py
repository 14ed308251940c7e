"""How much is tried, where counts are kept, and the counts at the end of pytest's output.

make trust                                    everything: hours on two cores
make trust SECONDS=60                         everything, but what is to run for long (soak, each fuzzed parser) a minute
make trust SHARE=quick                        the share that CI tries
CITEWEAVE_TRUST=whole pytest tests/faults/counted/test_kills.py       one experiment
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .counting import Trial, read_records

ROOT = Path(__file__).resolve().parents[3]
SHARE = os.environ.get("CITEWEAVE_TRUST", "quick")
SECONDS = float(os.environ.get("CITEWEAVE_TRUST_SECONDS") or "inf")
RECORDS = ROOT / "build" / "trust" / SHARE

_BEGUN = time.time()


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    """The experiment of a test, called as its function is: `test_killed_imports[ris]` is `killed imports, ris`."""
    name = request.node.name.removeprefix("test_").replace("_", " ").replace("[", ", ").removesuffix("]")
    chapter = request.module.__name__.rpartition(".")[2].removeprefix("test_")
    own = Trial(name, SHARE == "whole", chapter, _promise(request), most_seconds=SECONDS)
    yield own
    own.finish(RECORDS)


def _promise(request: pytest.FixtureRequest) -> str:
    """The first paragraph of what the test says of itself, or its module."""
    told = inspect.getdoc(request.function) or inspect.getdoc(request.module) or ""
    return " ".join(told.partition("\n\n")[0].split())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Every count of this run, one line each."""
    if hasattr(terminalreporter.config, "workerinput") or not RECORDS.is_dir():
        return
    terminalreporter.section(f"tried and held ({SHARE})")
    for record in read_records(RECORDS):
        if record["ended"] >= _BEGUN:
            told = "".join(f"; {word}: {value}" for word, value in record["facts"].items())
            terminalreporter.write_line(f"{record['name']}: {record['tried']:,} tried / {record['held']:,} held{told}")
