"""Work as it travels to an executor, and what a reporter prints while it is done."""

from __future__ import annotations

import io

import pytest

from citeweave.core import progress
from citeweave.core.executor import LocalExecutor, ShardTask, resolve_maker
from citeweave.core.progress import Reporter

WORKERS = "citeweave.remote.ray_workers"


def test_local_executor():
    task = ShardTask(f"{WORKERS}:squares")
    assert list(LocalExecutor().make(task, [2, 0])) == [(2, b"4"), (0, b"0")]
    with pytest.raises(AssertionError, match="JSON"):
        ShardTask(f"{WORKERS}:squares", {"numbers": (1, 2)})


@pytest.mark.parametrize("maker", ["os:system", WORKERS, f"{WORKERS}:os", f"{WORKERS}:x"])
def test_only_functions_of_this_package_are_called(maker):
    with pytest.raises(ValueError, match="is not a function of citeweave"):
        resolve_maker(maker)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def printed(stream, **options):
    reporter = Reporter(stream=stream, **options)
    with reporter.task("reading", total=4, unit="files") as advance:
        for _ in range(4):
            advance(1)
    reporter.say("hello")
    return stream.getvalue()


def test_progress_on_a_terminal_in_a_file_and_with_quiet(monkeypatch):
    on_terminal = printed(Terminal())
    assert on_terminal.endswith("\nhello\n") and "4 of 4 files (100 %)" in on_terminal
    monkeypatch.setattr(progress, "_PLAIN_EVERY", 0.0)
    plain = printed(io.StringIO())
    lines = plain.splitlines()
    assert len(lines) == 5 and lines[0].startswith("reading: 1 of 4 files (25 %)")
    assert "\r" not in plain and "\033" not in plain
    assert printed(Terminal(), quiet=True) == ""
