"""How much is tried, where counts are kept, and the counts at the end of pytest's output.

make trust                                    everything: hours on two cores
make trust SECONDS=60                         everything, but what is to run for long (soak, each fuzzed parser) a minute
make trust SHARE=quick                        the share that CI tries
CITEWEAVE_TRUST=whole pytest tests/faults/counted/test_kills.py       one experiment
"""

import inspect
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .commands import CommandServer
from .counting import Trial, read_records
from .services import RedirectingService

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
    promise = inspect.getdoc(request.function) or inspect.getdoc(request.module) or ""
    promise = " ".join(promise.partition("\n\n")[0].split())
    own = Trial(name, SHARE == "whole", chapter, promise, most_seconds=SECONDS)
    yield own
    own.finish(RECORDS)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def services() -> Iterator[tuple[RedirectingService, RedirectingService]]:
    """Two on ports of their own: one to contact, and a listener whom nobody has a reason to contact."""
    made = RedirectingService(), RedirectingService()
    yield made
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], CommandServer]]:
    """Makes servers of commands; they end with the tests of the file."""
    made: list[CommandServer] = []

    def make() -> CommandServer:
        made.append(CommandServer(tmp_path_factory.mktemp("commands")))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def server_of_commands(servers: Callable[[], CommandServer]) -> CommandServer:
    """One for all tests of the file."""
    return servers()


@pytest.fixture(scope="module")
def index_of(save_bert: Callable[..., Path]) -> Callable[..., Path]:
    """An index of these papers, or of a synthetic literature, in a folder; corpus and model lie beside it."""

    def make(folder: Path, papers: list[dict[str, Any]] | int, model: str = "", **options: Any) -> Path:
        from citeweave import Corpus, IndexOptions, build_index, import_papers, synthesize
        from citeweave.corpus.options import SyntheticOptions

        if isinstance(papers, int):
            synthesize(folder / "corpus", SyntheticOptions(papers=papers), workers=1)
        else:
            (folder / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
            import_papers([folder / "papers.jsonl"], folder / "corpus")
        model = model or str(save_bert(folder / "model"))
        build_index(Corpus.open(folder / "corpus"), model, folder / "index", IndexOptions(device="cpu", **options))
        return folder / "index"

    return make


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Every count of this run, one line each."""
    if hasattr(terminalreporter.config, "workerinput") or not RECORDS.is_dir():
        return
    terminalreporter.section(f"tried and held ({SHARE})")
    for record in read_records(RECORDS):
        if record["ended"] >= _BEGUN:
            told = "".join(f"; {word}: {value}" for word, value in record["facts"].items())
            terminalreporter.write_line(f"{record['name']}: {record['tried']:,} tried / {record['held']:,} held{told}")
