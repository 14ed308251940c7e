"""Texts of concurrent requests, encoded together: one thread, one call of the encoder for all that wait.

    batcher = Batcher(encoder, wait=0.003)
    batcher.submit(["a text"]).result()             (1, dimension), from any thread
    BatchedEncoder(batcher).encode(["a text"])      the same as an encoder, for whoever asks for one

A text waits at most `wait` seconds for others; while the encoder works, those that come are collected anyway. A
request that was given up before its texts were encoded is left out. Does not cut or check texts.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.encoder import Encoder
from citeweave.progress import QUIET, Reporter
from citeweave.serve.failures import RefusedError

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Job:
    texts: list[str]
    future: Future[Rows]
    sentences: bool


class Batcher:
    """One encoder behind a line of waiting texts."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        wait: float = 0.003,
        most: int = 64,
        waiting: int = 1024,
        tell: Callable[[int], None] = lambda texts: None,
        read_sentences: Callable[[Sequence[str]], Rows] | None = None,
    ) -> None:
        """`tell` hears how many texts each call had; `read_sentences` encodes sentences where that is another thing."""
        self.encoder = encoder
        self._read_sentences = read_sentences or encoder.encode
        self._wait, self._most, self._limit, self._tell = wait, most, waiting, tell
        self._line: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, texts: Sequence[str], *, sentences: bool = False) -> Future[Rows]:
        """The texts' vectors, (texts, dimension), when they are made; refused where too many texts wait."""
        job = _Job(list(texts), Future(), sentences)
        with self._lock:
            if self._closed:
                raise RefusedError(503, "the server is stopping; ask again when it is back", after=5)
            # an empty line takes any number, else a large request could never be served
            if self._waiting and self._waiting + len(job.texts) > self._limit:
                raise RefusedError(503, "too many texts wait to be encoded; try again in a second", after=1)
            self._waiting += len(job.texts)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="citeweave-batches", daemon=True)
                self._thread.start()
            self._line.put(job)
        return job.future

    def close(self) -> None:
        """Encode what waits, then end."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._line.put(None)
        if thread is not None:
            thread.join(timeout=10)

    def _work(self) -> None:
        go_on = True
        while go_on:
            jobs, go_on = self._collect()
            with self._lock:
                self._waiting -= sum(len(job.texts) for job in jobs)
            wanted = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            self._encode([job for job in wanted if not job.sentences], self.encoder.encode)
            self._encode([job for job in wanted if job.sentences], self._read_sentences)

    def _collect(self) -> tuple[list[_Job], bool]:
        """The jobs of one call, and whether more may come."""
        first = self._line.get()
        if first is None:
            return [], False
        jobs, texts, until = [first], len(first.texts), time.monotonic() + self._wait
        while texts < self._most:
            try:
                job = self._line.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if job is None:
                return jobs, False
            jobs.append(job)
            texts += len(job.texts)
        return jobs, True

    def _encode(self, jobs: list[_Job], encode: Callable[[Sequence[str]], Rows]) -> None:
        if not jobs:
            return
        texts = [text for job in jobs for text in job.texts]
        try:
            made = encode(texts)  # (texts, dimension)
            self._tell(len(texts))
        except Exception as error:  # whoever waits must hear of it, whatever it is
            for job in jobs:
                job.future.set_exception(error)
            return
        start = 0
        for job in jobs:
            job.future.set_result(made[start : start + len(job.texts)])
            start += len(job.texts)


@dataclass(frozen=True, slots=True)
class BatchedEncoder:
    """An encoder whose texts are encoded together with those of other threads."""

    batcher: Batcher

    @property
    def name(self) -> str:
        return self.batcher.encoder.name

    @property
    def revision(self) -> str:
        return self.batcher.encoder.revision

    @property
    def dimension(self) -> int:
        return self.batcher.encoder.dimension

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> Rows:
        return self.batcher.submit(texts).result()

    def encode_sentences(self, texts: Sequence[str]) -> Rows:
        return self.batcher.submit(texts, sentences=True).result()
