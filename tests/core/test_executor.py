"""Work as it travels to an executor, and what a reporter prints while it is done."""

from __future__ import annotations

import io
import os

import pytest

from citeweave.core import executor, progress
from citeweave.core.progress import Reporter

from .conftest import refused

WORKERS = "citeweave.core.executor"
SQUARES = f"{WORKERS}:squares"


def test_local_executor():
    task = executor.ShardTask(f"{WORKERS}:squares")
    assert list(executor.LocalExecutor().make(task, [2, 0])) == [(2, b"4"), (0, b"0")]
    refused("JSON", executor.ShardTask, f"{WORKERS}:squares", {"numbers": (1, 2)}, error=AssertionError)


@pytest.mark.parametrize("maker", ["os:system", WORKERS, f"{WORKERS}:os", f"{WORKERS}:x"])
def test_only_functions_of_this_package_are_called(maker):
    refused("is not a function of citeweave", executor.resolve_maker, maker, error=ValueError)


def test_a_worker_says_who_it_is_and_makes_shards(tmp_path, monkeypatch):
    worker = executor.ShardWorker()
    assert executor.version_differences(executor.package_versions(), worker.hello()) == []
    assert worker.prepare(SQUARES, {"failing": [2], "full": [4]}) == 1
    assert worker.make(3) == b"9"
    assert worker.make(2) == executor.WorkerFailure(False, "ValueError: number 2 fails")
    assert worker.make(4) == executor.WorkerFailure(True, "OSError: [Errno 28] No space left on device")
    # work that cannot be opened is the node's fault
    message = f"{tmp_path / 'x'} does not exist; give a folder that holds a corpus"
    assert executor.ShardWorker().prepare(SQUARES, {"needs": str(tmp_path / "x")}) == executor.WorkerFailure(
        True, message
    )
    message = "ValueError: 'os:system' is not a function of citeweave"
    assert executor.ShardWorker().prepare("os:system", {}) == executor.WorkerFailure(True, message)
    for cards, seen in ((True, "0,1"), (False, "")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        executor.ShardWorker().prepare(SQUARES, {}, cards=cards)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_another_source_is_another_version():
    ours = executor.package_versions()
    assert executor.version_differences(ours, ours) == []
    assert executor.version_differences(ours, ours | {"citeweave": "0.1.0 (00000000)"})[0].startswith("citeweave is ")


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
