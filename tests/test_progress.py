from __future__ import annotations

import io

import pytest

from citeweave.core import progress
from citeweave.core.progress import Reporter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(reporter: Reporter) -> None:
    with reporter.task("reading", total=4, unit="files") as advance:
        for _ in range(4):
            advance(1)


def test_a_terminal_gets_one_line_that_ends_whole() -> None:
    stream = Terminal()
    run(Reporter(stream=stream))
    assert stream.getvalue().endswith("\n") and "4 of 4 files (100 %)" in stream.getvalue()


def test_plain_output_has_no_control_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PLAIN_EVERY", 0.0)
    stream = io.StringIO()
    run(Reporter(stream=stream))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4 and lines[0].startswith("reading: 1 of 4 files (25 %)")
    assert "\r" not in stream.getvalue() and "\033" not in stream.getvalue()


def test_quiet_is_quiet() -> None:
    stream = Terminal()
    reporter = Reporter(quiet=True, stream=stream)
    run(reporter)
    reporter.say("hello")
    assert stream.getvalue() == ""
