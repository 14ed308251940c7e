"""The served indexes with their encoders, the threads that work on requests, and batches of texts of many requests.

An index changes on disk while it is served. Every request gets the current index; one request opens the new state while
the others continue with the one they have. Encoders are loaded in the background, so that words can be searched at
once; indexes made by the same model share one encoder and one queue of texts:

    batcher = Batcher(encoder, wait=0.003)
    batcher.submit(["a text"]).result()             (1, dimension), from any thread
    BatchedEncoder(batcher).encode(["a text"])      the same, as an encoder

A text waits at most `wait` seconds for others; while the encoder works, new ones are collected anyway. Texts of a request
that was abandoned before they were encoded are left out.

A few threads are reserved for monitoring: /health answers while all others search. A thread is never stopped: an
abandoned request keeps it busy, and `Workers.stuck` says when all threads are. Does not build or change an index.
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
from typing import Annotated, Any, ParamSpec, TypeVar

import numpy as np
from fastapi import Depends, Request, Response
from numpy.typing import NDArray

from citeweave.core.errors import CiteweaveError
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.encoder import Encoder
from citeweave.search.answer import answer
from citeweave.search.index import Index
from citeweave.search.nearest import QueryEncoder, load_query_encoder
from citeweave.search.query import Query, SentenceQuery
from citeweave.search.sentences import encode_sentences_alone
from citeweave.serve.library import Library
from citeweave.serve.middleware import Metrics
from citeweave.serve.options import ServeOptions
from citeweave.serve.responses import Json, RefusedError, clip, printable, without_paths

P = ParamSpec("P")
T = TypeVar("T")

Rows = NDArray[np.float32]

LOG = logging.getLogger("citeweave.serve")

_RESERVED_THREADS = 2

MAIN = "main"
"""Name of the first index if it has no other."""


# --- what the routes share ---


@dataclass(frozen=True, slots=True)
class Server:
    """The served indexes and what the routes of one application share with them: threads, counters, options."""

    indexes: ServedIndexes
    workers: Workers
    metrics: Metrics
    options: ServeOptions
    cache: dict[Any, Any]
    """What routes compute once per state of an index."""

    async def run_on_index(self, name: str, work: Callable[[OpenIndex], T]) -> T:
        """Run a request's work on the current state of an index, in a thread."""
        return await self.workers.run(lambda: work(self.indexes.get(name)))

    def once_per_state(self, what: str, name: str, index: Index, compute: Callable[[Index], T]) -> T:
        """Return what is computed of an index once per state of it, such as its facets."""
        state, value = self.cache.get((what, name), (None, None))
        if state != index.number:
            value = compute(index)
            self.cache[what, name] = index.number, value
        return value  # type: ignore[no-any-return]

    async def respond(self, name: str, work: Callable[[OpenIndex], Any]) -> Response:
        """Respond with the JSON of a request's work on the current state of an index."""
        return Json(await self.run_on_index(name, work))


def _current_server(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


CurrentServer = Annotated[Server, Depends(_current_server)]


# --- indexes ---


@dataclass(frozen=True, slots=True)
class OpenIndex:
    """A served index, open at one state, with its encoder."""

    name: str
    index: Index
    query_encoder: QueryEncoder | None
    """None while the encoder is being loaded, or if it cannot be."""

    no_encoder: str
    """Why there is no encoder; empty while it is being loaded."""

    coming: str = ""
    """What a search by vectors waits for, if background work will provide it; otherwise empty."""

    def require_encoder(self) -> QueryEncoder:
        """Return the encoder of the served index; 503 while it is being loaded or if it cannot be."""
        if self.query_encoder is not None:
            return self.query_encoder
        if self.no_encoder:
            raise RefusedError(503, f"texts cannot be encoded: {self.no_encoder}", retry_after=60)
        message = "the model is still being loaded; try again in a few seconds, or search by words"
        raise RefusedError(503, message, retry_after=2, coming=True)


class ServedIndexes:
    """All indexes of a server by name, opened and kept current; the first one is the default."""

    def __init__(
        self, folders: Mapping[str, Path], options: ServeOptions, metrics: Metrics, library: Library | None = None
    ) -> None:
        self.folders, self.library = dict(folders), library
        self._options, self._metrics = options, metrics
        self._indexes: dict[str, Index] = {}
        self._batchers: dict[tuple[str, str], Batcher | str] = {}
        self._loading: set[tuple[str, str]] = set()
        self._opening = {name: threading.Lock() for name in self.folders}
        self._lock = threading.Lock()
        self.errors: dict[str, str] = {}
        """Name of an index -> why its newest state cannot be opened; the one before is served then."""

    @property
    def names(self) -> list[str]:
        return list(self.folders)

    def open_all(self) -> None:
        """Open every served index at startup, so that an unreadable one fails at once."""
        for name in self.folders:
            try:
                self.get(name)
            except RefusedError as error:
                if error.status != 503:
                    raise

    def get(self, name: str = "") -> OpenIndex:
        """Return the current state of the served index with this name."""
        name = name or next(iter(self.folders))
        if name not in self.folders:
            known = ", ".join(self.folders)
            raise RefusedError(404, f"there is no index {clip(name, 60)!r}; this server has {known}")
        index = self._current_index(name)
        batcher = self._batcher(name, index)
        coming = self._describe_coming(index, is_loading=batcher == "")
        if not isinstance(batcher, Batcher):
            return OpenIndex(name, index, None, batcher, coming)
        try:
            return OpenIndex(name, index, self._query_encoder(index, BatchedEncoder(batcher)), "", coming)
        except CiteweaveError as error:  # not the model that built the index: words still work
            return OpenIndex(name, index, None, without_paths(str(error)), coming)

    def close(self) -> None:
        for batcher in self._batchers.values():
            if isinstance(batcher, Batcher):
                batcher.close()

    def _describe_coming(self, index: Index, *, is_loading: bool) -> str:
        if index.with_vector.any():
            return "the model is being loaded" if is_loading else ""
        library = self.library
        is_growing = library is not None and index.folder == library.index_folder and library.working() is not None
        return "the model has not read the papers yet" if is_growing else ""

    def _current_index(self, name: str) -> Index:
        known = self._indexes.get(name)
        if known is not None and known.is_current():
            self.errors.pop(name, None)
            return known
        lock = self._opening[name]
        if not lock.acquire(blocking=known is None):
            assert known is not None
            return known  # another request is opening the new state
        try:
            known = self._indexes.get(name)
            fresh = self._open(name) if known is None else self._refresh(name, known)
            self._indexes[name] = fresh
            return fresh
        finally:
            lock.release()

    def _open(self, name: str) -> Index:
        folder = self.folders[name]
        is_growing = self.library is not None and folder == self.library.index_folder
        if is_growing and not (folder / "state.json").exists():
            raise RefusedError(
                503, "the index is still being built; try again in a few seconds", retry_after=2, coming=True
            )
        return Index.open(folder)

    def _refresh(self, name: str, known: Index) -> Index:
        try:
            fresh = known.fresh()
        except (CiteweaveError, OSError) as error:  # the state before is better than nothing
            if self.errors.get(name) != str(error):  # logged once, not at every request
                self.errors[name] = str(error)
                LOG.error("the new state of %s cannot be opened (%s)", name, printable(str(error)))
            return known
        self.errors.pop(name, None)
        return fresh

    def _batcher(self, name: str, index: Index) -> Batcher | str:
        """Return the encoder of an index, or why there is none; the first request loads it."""
        if not index.model:
            return "the index has words only; search by words"
        key = (self._model_name(name, index), self._options.runtime or index.runtime)
        with self._lock:
            if key in self._batchers:
                return self._batchers[key]
            if key not in self._loading:
                self._loading.add(key)
                threading.Thread(target=self._load, args=(key, index), name="citeweave-load", daemon=True).start()
        return ""

    def _load(self, key: tuple[str, str], index: Index) -> None:
        loaded: Batcher | str
        _warm_up(index, None)
        try:
            encoder = load_query_encoder(index, key[0], device=self._options.device, runtime=key[1])
            loaded = Batcher(
                encoder,
                wait=self._options.batch_wait,
                max_texts=self._options.batch_texts,
                max_waiting=self._options.batch_waiting,
                on_batch=self._metrics.batches.observe,
                encode_sentences=partial(encode_sentences_alone, encoder),
            )
            _warm_up(index, self._query_encoder(index, encoder))
        except Exception as error:  # reported to every request that needs the encoder; words still work
            LOG.error("the model cannot be loaded (%s)", printable(str(error)))
            is_ours = isinstance(error, CiteweaveError)
            loaded = without_paths(str(error)) if is_ours else f"{type(error).__name__} while loading the model"
        with self._lock:
            self._batchers[key] = loaded

    def _query_encoder(self, index: Index, encoder: Encoder) -> QueryEncoder:
        return QueryEncoder(index, encoder, any_runtime=bool(self._options.runtime) or index.any_runtime)

    def _model_name(self, name: str, index: Index) -> str:
        moved = self._options.model if name == next(iter(self.folders)) else ""
        return moved or str(index.model)


def _warm_up(index: Index, encoder: QueryEncoder | None) -> None:
    """Run first queries so that compiled code is loaded; their errors are ignored."""
    with contextlib.suppress(Exception):
        answer(index, encoder, Query(text="a first question", by="words" if encoder is None else "hybrid"))
        if encoder is not None and index.with_sentences.any():
            paper = index.id(int(index.with_sentences.argmax()))
            answer(index, None, Query(sentences=SentenceQuery(paper=paper, numbers=(0,))))


# --- threads ---


class Workers:
    """Threads for requests to the served indexes: a pool for searches, a few for requests that must always be answered."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "citeweave-work")
        self._reserved = ThreadPoolExecutor(_RESERVED_THREADS, "citeweave-watch")
        self._lock = threading.Lock()
        self._abandoned = 0

    def stuck(self) -> bool:
        """Return whether every thread works on an abandoned request."""
        return self._abandoned >= self._threads

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a request's work in a thread; work that has not begun is dropped if the request is abandoned."""
        future = self._pool.submit(work, *args, **kwargs)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel():
                with self._lock:
                    self._abandoned += 1
                future.add_done_callback(self._end_abandoned)  # called at once if it is done by now
            raise

    async def run_reserved(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the work of a monitoring request in a reserved thread."""
        return await asyncio.wrap_future(self._reserved.submit(work, *args, **kwargs))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._reserved.shutdown(wait=False, cancel_futures=True)

    def _end_abandoned(self, future: Future[Any]) -> None:
        with self._lock:
            self._abandoned -= 1


# --- batches of texts ---


@dataclass(frozen=True, slots=True)
class _Job:
    """Texts of one request in the queue of a batcher."""

    texts: list[str]
    future: Future[Rows]
    sentences: bool


class Batcher:
    """The encoder of a served index with a queue of texts from concurrent requests, encoded in batches."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        wait: float = 0.003,
        max_texts: int = 64,
        max_waiting: int = 1024,
        on_batch: Callable[[int], None] = lambda texts: None,
        encode_sentences: Callable[[Sequence[str]], Rows] | None = None,
    ) -> None:
        """`on_batch` gets the number of texts of each call; `encode_sentences` encodes sentences if that differs."""
        self.encoder = encoder
        self._encode_sentences = encode_sentences or encoder.encode
        self._wait, self._max_texts, self._max_waiting, self._on_batch = wait, max_texts, max_waiting, on_batch
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, texts: Sequence[str], *, sentences: bool = False) -> Future[Rows]:
        """Queue the texts of a request for the served index's encoder, (texts, dimension); refused if too many texts wait."""
        job = _Job(list(texts), Future(), sentences)
        with self._lock:
            if self._closed:
                raise RefusedError(503, "the server is stopping; try again when it is back", retry_after=5)
            # an empty queue takes any number, or a large request could never be served
            if self._waiting and self._waiting + len(job.texts) > self._max_waiting:
                raise RefusedError(
                    503, "too many texts are waiting to be encoded; try again in a second", retry_after=1
                )
            self._waiting += len(job.texts)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="citeweave-batches", daemon=True)
                self._thread.start()
            self._queue.put(job)
        return job.future

    def close(self) -> None:
        """Encode the texts queued for a served index, then stop its batching thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._queue.put(None)
        if thread is not None:
            thread.join(timeout=10)

    def _work(self) -> None:
        more = True
        while more:
            jobs, more = self._collect()
            with self._lock:
                self._waiting -= sum(len(job.texts) for job in jobs)
            jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            self._encode([job for job in jobs if not job.sentences], self.encoder.encode)
            self._encode([job for job in jobs if job.sentences], self._encode_sentences)

    def _collect(self) -> tuple[list[_Job], bool]:
        """Collect the queued jobs for one encoder call, and whether more may follow."""
        first = self._queue.get()
        if first is None:
            return [], False
        jobs, texts, until = [first], len(first.texts), time.monotonic() + self._wait
        while texts < self._max_texts:
            try:
                job = self._queue.get(timeout=max(0.0, until - time.monotonic()))
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
            vectors = encode(texts)  # (texts, dimension)
            self._on_batch(len(texts))
        except Exception as error:  # the waiting requests must get it, whatever it is
            for job in jobs:
                job.future.set_exception(error)
            return
        start = 0
        for job in jobs:
            job.future.set_result(vectors[start : start + len(job.texts)])
            start += len(job.texts)


class BatchedEncoder:
    """An encoder of a served index that batches its texts with those of other request threads."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher, encoder = batcher, batcher.encoder
        self.name, self.revision, self.dimension = encoder.name, encoder.revision, encoder.dimension

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> Rows:
        return self.batcher.submit(texts).result()

    def encode_sentences(self, texts: Sequence[str]) -> Rows:
        return self.batcher.submit(texts, sentences=True).result()
