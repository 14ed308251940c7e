from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from citeweave.core.progress import QUIET, Reporter
from citeweave.serve.indexes import BatchedEncoder, Batcher
from citeweave.serve.responses import RefusedError

PATIENCE = 300
"""Seconds after which a thread is taken for hung."""


class Lengths:
    """An encoder of text lengths that waits to be let go and remembers its calls."""

    name, revision, dimension = "lengths", "1", 2

    def __init__(self, *, held: bool = False) -> None:
        self.calls: list[list[str]] = []
        self.begun, self.go = threading.Event(), threading.Event()
        if not held:
            self.go.set()

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        self.begun.set()
        assert self.go.wait(PATIENCE)
        if "bad" in texts:
            raise ValueError("bad text")
        return np.array([[len(text), 1] for text in texts], np.float32).reshape(-1, 2)


def test_texts_that_come_while_the_encoder_works_go_together() -> None:
    encoder = Lengths(held=True)
    batcher = Batcher(encoder, wait=0)
    first = batcher.submit(["a"])
    assert encoder.begun.wait(PATIENCE)
    others = [batcher.submit(["x" * n, "y"]) for n in range(1, 6)]
    encoder.go.set()
    assert first.result(PATIENCE).tolist() == [[1, 1]]
    assert [other.result(PATIENCE).tolist() for other in others] == [[[n, 1], [1, 1]] for n in range(1, 6)]
    assert len(encoder.calls) == 2 and len(encoder.calls[1]) == 10


def test_texts_wait_a_moment_for_others() -> None:
    encoder = Lengths()
    batcher = Batcher(encoder, wait=PATIENCE, max_texts=4)  # ends at the fourth text
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: BatchedEncoder(batcher).encode(["x" * n])[0, 0], range(1, 5)))
    assert found == [1, 2, 3, 4] and len(encoder.calls) == 1


def test_a_cancelled_request_is_left_out_and_disturbs_nobody() -> None:
    encoder = Lengths(held=True)
    batcher = Batcher(encoder, wait=0)
    batcher.submit(["a"])
    assert encoder.begun.wait(PATIENCE)
    dropped, kept = batcher.submit(["dropped"]), batcher.submit(["kept"])
    assert dropped.cancel()
    encoder.go.set()
    assert kept.result(PATIENCE).tolist() == [[4, 1]]
    assert encoder.calls == [["a"], ["kept"]]
    with pytest.raises(CancelledError):
        dropped.result()


def test_an_error_reaches_all_that_waited_and_the_next_are_served() -> None:
    batcher = Batcher(Lengths(), wait=0)
    with pytest.raises(ValueError, match="bad text"):
        batcher.submit(["bad"]).result(PATIENCE)
    assert batcher.submit(["good"]).result(PATIENCE).tolist() == [[4, 1]]


def test_the_line_is_bounded_and_empties() -> None:
    encoder = Lengths(held=True)
    batcher = Batcher(encoder, wait=0, max_waiting=3)
    running = batcher.submit(["a"])
    assert encoder.begun.wait(PATIENCE)
    waiting = [batcher.submit(["b"]) for _ in range(3)]
    with pytest.raises(RefusedError) as caught:
        batcher.submit(["one too many"])
    assert caught.value.status == 503 and caught.value.retry_after == 1
    encoder.go.set()
    for future in (running, *waiting):
        future.result(PATIENCE)
    assert batcher.submit(["c"] * 20).result(PATIENCE).shape == (20, 2), "an empty line takes any number"


def test_closing_serves_what_waits_and_refuses_the_rest() -> None:
    encoder = Lengths(held=True)
    batcher = Batcher(encoder, wait=0)
    futures = [batcher.submit(["a"]), batcher.submit(["b"])]
    encoder.go.set()
    batcher.close()
    assert [future.result(PATIENCE).shape for future in futures] == [(1, 2), (1, 2)]
    with pytest.raises(RefusedError):
        batcher.submit(["late"])


def test_batches_are_told() -> None:
    told: list[int] = []
    Batcher(Lengths(), wait=0, on_batch=told.append).submit(["a", "b"]).result(PATIENCE)
    assert told == [2]
