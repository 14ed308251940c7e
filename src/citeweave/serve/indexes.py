"""Threads in which requests are worked on, so that the event loop only carries messages.

A few threads are kept aside for those who watch the server: /health answers while all others search. Does not stop a
thread: who gives up a request leaves it working, and where all threads work for nobody, `stuck` says so.

Texts of concurrent requests, encoded together: one thread, one call of the encoder for all that wait.

    batcher = Batcher(encoder, wait=0.003)
    batcher.submit(["a text"]).result()             (1, dimension), from any thread
    BatchedEncoder(batcher).encode(["a text"])      the same as an encoder, for whoever asks for one

A text waits at most `wait` seconds for others; while the encoder works, those that come are collected anyway. A
request that was given up before its texts were encoded is left out. Does not cut or check texts.

The indexes that are served: opened, looked after, and read with the encoder that made them.

An index changes on disk while it is served. Every request asks for the index of now; one of them opens the new state,
the others go on with the one they have. Encoders are loaded by a thread of their own, so that words can be searched at
once; indexes made by the same model share one encoder and one line of waiting texts.

Does not build or change an index.

What all routes share: the indexes, the threads, the counters; and the step from a request into a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ParamSpec, Protocol, TypeVar

import numpy as np
from fastapi import Depends, Request
from numpy.typing import NDArray

from citeweave.core.errors import CiteweaveError
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.encoder import Encoder
from citeweave.search.answer import answer
from citeweave.search.index import Index
from citeweave.search.index_model import QueryEncoder, load_query_encoder
from citeweave.search.query import Query, SentenceQuery
from citeweave.search.sentences import encode_sentences_alone
from citeweave.serve.metrics import Metrics
from citeweave.serve.options import ServeOptions
from citeweave.serve.responses import RefusedError, clip, printable, unknown_paper, without_paths

P = ParamSpec("P")
T = TypeVar("T")

_ASIDE = 2


class Workers:
    """Thread pools for requests: one for searches, and a few threads for requests that must always be answered."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "citeweave-work")
        self._aside = ThreadPoolExecutor(_ASIDE, "citeweave-watch")
        self._lock = threading.Lock()
        self._abandoned = 0

    def stuck(self) -> bool:
        """Return whether every thread works on a request that was given up."""
        return self._abandoned >= self._threads

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a request's work in a thread; work that has not begun is dropped if the request is given up."""
        future = self._pool.submit(work, *args, **kwargs)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel():
                with self._lock:
                    self._abandoned += 1
                future.add_done_callback(self._came_back)  # at once, where it is done by now
            raise

    async def run_aside(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self._aside.submit(work, *args, **kwargs))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._aside.shutdown(wait=False, cancel_futures=True)

    def _came_back(self, future: Future[Any]) -> None:
        with self._lock:
            self._abandoned -= 1


# Texts of concurrent requests, encoded together: one thread, one call of the encoder for all that wait.

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Job:
    texts: list[str]
    future: Future[Rows]
    sentences: bool


class Batcher:
    """One encoder with a queue of texts from concurrent requests, encoded in batches."""

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
        """Queue the texts of a request for encoding, (texts, dimension); refused if too many texts wait."""
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
        """Encode the queued texts, then stop the batching thread."""
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
        """Collect the queued jobs for one encoder call, and whether more may follow."""
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
    """An encoder that batches its texts with those of other request threads."""

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


# The indexes that are served: opened, looked after, and read with the encoder that made them.

MAIN = "main"
"""Name of the first index."""

LOG = logging.getLogger("citeweave.serve")


class LibraryStatus(Protocol):
    """The progress of a library whose index is still being built."""

    @property
    def index_folder(self) -> Path: ...

    def working(self) -> Mapping[str, Any] | None:
        """Return the current background task: what, done, total, seconds_left; None if there is none."""

    def lacks(self) -> Sequence[str]:
        """List what the library cannot do because data is missing, one sentence each."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open index with its encoder, at one state."""

    name: str
    index: Index
    reader: QueryEncoder | None
    """None while the encoder is loaded, or where it cannot be."""

    why: str
    """Why there is no reader; empty where it only needs time."""

    coming: str = ""
    """What a search by meaning waits for, where that will come by itself; else empty."""

    def need_reader(self) -> QueryEncoder:
        if self.reader is not None:
            return self.reader
        if self.why:
            raise RefusedError(503, f"texts cannot be encoded: {self.why}", after=60)
        raise RefusedError(
            503, "the model is still being loaded; try again in a few seconds, or search by words", after=2, coming=True
        )


class Shelf:
    """All indexes of a server by name; the first one is the default."""

    def __init__(
        self, folders: Mapping[str, Path], options: ServeOptions, metrics: Metrics, library: LibraryStatus | None = None
    ) -> None:
        self.folders, self.library = dict(folders), library
        self._options, self._metrics = options, metrics
        self._indexes: dict[str, Index] = {}
        self._batchers: dict[tuple[str, str], Batcher | str] = {}
        self._loading: set[tuple[str, str]] = set()
        self._opening = {name: threading.Lock() for name in self.folders}
        self._lock = threading.Lock()
        self.troubles: dict[str, str] = {}
        """Why the newest state of an index cannot be opened, by its name; the one before is served then."""

    @property
    def names(self) -> list[str]:
        return list(self.folders)

    def start(self) -> None:
        """Open every served index at startup, so that an unreadable one fails at once."""
        for name in self.folders:
            try:
                self.get(name)
            except RefusedError as error:
                if error.status != 503:
                    raise

    def get(self, name: str = "") -> Opened:
        """Return the current state of the served index with this name."""
        name = name or next(iter(self.folders))
        if name not in self.folders:
            known = ", ".join(self.folders)
            raise RefusedError(404, f"there is no index {clip(name, 60)!r}; this server has {known}")
        index = self._current(name)
        batcher = self._batcher(name, index)
        coming = self._coming(index, is_loading=batcher == "")
        if not isinstance(batcher, Batcher):
            return Opened(name, index, None, batcher, coming)
        try:
            return Opened(name, index, self._reader(index, BatchedEncoder(batcher)), "", coming)
        except CiteweaveError as error:  # another model than the index was made by: words go on
            return Opened(name, index, None, without_paths(str(error)), coming)

    def close(self) -> None:
        for batcher in self._batchers.values():
            if isinstance(batcher, Batcher):
                batcher.close()

    def _coming(self, index: Index, *, is_loading: bool) -> str:
        if index.with_vector.any():
            return "the model is being loaded" if is_loading else ""
        library = self.library
        is_made = library is not None and index.folder == library.index_folder and library.working() is not None
        return "the model has not read the papers yet" if is_made else ""

    def _current(self, name: str) -> Index:
        known = self._indexes.get(name)
        if known is not None and known.is_current():
            self.troubles.pop(name, None)
            return known
        lock = self._opening[name]
        if not lock.acquire(blocking=known is None):
            assert known is not None
            return known  # another request is opening the new state
        try:
            known = self._indexes.get(name)
            fresh = self._open(name) if known is None else self._fresh(name, known)
            self._indexes[name] = fresh
            return fresh
        finally:
            lock.release()

    def _open(self, name: str) -> Index:
        folder = self.folders[name]
        making = self.library is not None and folder == self.library.index_folder
        if making and not (folder / "state.json").exists():
            raise RefusedError(503, "the index is still being made; try again in a few seconds", after=2, coming=True)
        return Index.open(folder)

    def _fresh(self, name: str, known: Index) -> Index:
        try:
            fresh = known.fresh()
        except (CiteweaveError, OSError) as error:  # serve what there is rather than nothing
            if self.troubles.get(name) != str(error):  # told once, not at every request
                self.troubles[name] = str(error)
                LOG.error("the new state of %s cannot be opened (%s)", name, printable(str(error)))
            return known
        self.troubles.pop(name, None)
        return fresh

    def _batcher(self, name: str, index: Index) -> Batcher | str:
        """Return the encoder of an index, or why there is none; the first request loads it."""
        if not index.model:
            return "the index has words only; search by words"
        key = (self._model(name, index), self._options.runtime or index.runtime)
        with self._lock:
            if key in self._batchers:
                return self._batchers[key]
            if key not in self._loading:
                self._loading.add(key)
                threading.Thread(target=self._load, args=(key, index), name="citeweave-load", daemon=True).start()
        return ""

    def _load(self, key: tuple[str, str], index: Index) -> None:
        made: Batcher | str
        _warm(index, None)
        try:
            encoder = load_query_encoder(index, key[0], device=self._options.device, runtime=key[1])
            made = Batcher(
                encoder,
                wait=self._options.batch_wait,
                most=self._options.batch_texts,
                waiting=self._options.batch_waiting,
                tell=self._metrics.encoded,
                read_sentences=partial(encode_sentences_alone, encoder),
            )
            _warm(index, self._reader(index, encoder))
        except Exception as error:  # told at every question that needs the encoder; words go on
            LOG.error("the model cannot be loaded (%s)", printable(str(error)))
            known = isinstance(error, CiteweaveError)
            made = without_paths(str(error)) if known else f"{type(error).__name__} while loading the model"
        with self._lock:
            self._batchers[key] = made

    def _reader(self, index: Index, encoder: Encoder) -> QueryEncoder:
        return QueryEncoder(index, encoder, any_runtime=bool(self._options.runtime) or index.any_runtime)

    def _model(self, name: str, index: Index) -> str:
        moved = self._options.model if name == next(iter(self.folders)) else ""
        return moved or str(index.model)


def _warm(index: Index, reader: QueryEncoder | None) -> None:
    """Run first queries so that compiled code is loaded; their errors are ignored."""
    with contextlib.suppress(Exception):
        answer(index, reader, Query(text="a first question", by="words" if reader is None else "hybrid"))
        if reader is not None and index.with_sentences.any():
            some = index.id(int(index.with_sentences.argmax()))
            answer(index, None, Query(sentences=SentenceQuery(paper=some, numbers=(0,))))


# What all routes share: the indexes, the threads, the counters; and the step from a request into a thread.


@dataclass(frozen=True, slots=True)
class Server:
    """What the routes of one application share: indexes, threads, counters, options."""

    shelf: Shelf
    workers: Workers
    metrics: Metrics
    options: ServeOptions
    kept: dict[Any, Any]
    """What is computed once a state of an index, by the routes that do."""

    async def ask(self, name: str, work: Callable[[Opened], T]) -> T:
        """Run a request's work on the current state of an index, in a thread."""
        return await self.workers.run(lambda: work(self.shelf.get(name)))


def _held(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


Held = Annotated[Server, Depends(_held)]


def row_of(index: Index, id: str) -> int:
    """Return the row of a paper by any of its ids; 404 if there is none."""
    row = int(index.rows([id])[0])
    if row < 0:
        raise unknown_paper(id)
    return row


def short(index: Index, row: int) -> dict[str, Any]:
    """Return the fields of a paper that lists show."""
    return {"id": index.id(row), "title": index.title(row), "year": index.year(row) or None}
