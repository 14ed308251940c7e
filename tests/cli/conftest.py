"""Commands run in this process, with what they print."""

import json
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from citeweave import synthesize
from citeweave.cli import main
from citeweave.corpus.options import SyntheticOptions


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    code = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def prepare(*lines: str) -> None:
    """Run commands whose output nobody needs, for fixtures of a module."""
    for line in lines:
        with pytest.raises(SystemExit) as end:
            main([*shlex.split(line), "--quiet"])
        assert not end.value.code, line


def write_jsonl(path: Path, records: Iterable[object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def mistakes(*rows: tuple[str, str]) -> pytest.MarkDecorator:
    """A test for each of these: the words that are typed, and a part of the one line that answers them."""
    return pytest.mark.parametrize(("words", "message"), rows)


class Cli:
    """Types commands: strings are split as in a shell, paths and numbers are one word each."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: object) -> tuple[int, str, str]:
        split = [shlex.split(word) if isinstance(word, str) else [word] for word in words]
        return run(self.capsys, *(word for part in split for word in part))

    def text(self, *words: object) -> str:
        """Standard output of a command that works."""
        code, out, self.err = self(*words)
        assert code == 0 and "Traceback" not in self.err, self.err
        return out

    def json(self, *words: object) -> dict[str, Any]:
        """What a command that works prints with --json: one object, in which no number is nan or infinite."""

        def refuse(word: str) -> None:
            raise AssertionError(word)

        found = json.loads(self.text(*words, "--json"), parse_constant=refuse)
        assert isinstance(found, dict)
        return found

    def silent_json(self, *words: object) -> dict[str, Any]:
        """The same of a command that says nothing beside it."""
        found = self.json(*words)
        assert self.err == ""
        return found

    def fails(self, message: str, *words: object) -> None:
        """The command ends with exit code 2, and with this message in one line."""
        code, out, err = self(*words)
        assert (code, out) == (2, ""), (code, out, err)
        assert err.startswith("error: ") and err.count("\n") == 1 and message in err, err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture(scope="session")
def literature(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Synthetic corpora by their number of papers; nobody changes them."""
    place = tmp_path_factory.mktemp("literature")

    def make(papers: int) -> Path:
        if not (place / str(papers)).exists():
            synthesize(place / str(papers), SyntheticOptions(papers=papers))
        return place / str(papers)

    return make
