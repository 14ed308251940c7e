"""The indexes that are served: opened, looked after, and read with the encoder that made them.

An index changes on disk while it is served. Every request asks for the index of now; one of them opens the new state,
the others go on with the one they have. Encoders are loaded by a thread of their own, so that words can be searched at
once; indexes made by the same model share one encoder and one line of waiting texts.

Does not build or change an index.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from citeweave.encoders.encoder import Encoder
from citeweave.errors import CiteweaveError
from citeweave.search.asking.answering import answer
from citeweave.search.asking.query import Chosen, Query
from citeweave.search.asking.sentences import encode_alone
from citeweave.search.index import Index
from citeweave.search.searching import Reader, load_reader_encoder
from citeweave.serve.batching import BatchedEncoder, Batcher
from citeweave.serve.failures import RefusedError, clip, printable, without_paths
from citeweave.serve.metrics import Metrics
from citeweave.serve.options import ServeOptions

MAIN = "main"
"""Name of the first index."""

LOG = logging.getLogger("citeweave.serve")


class Library(Protocol):
    """An index that is still being made, and who can tell how far it is."""

    @property
    def index_folder(self) -> Path: ...

    def working(self) -> Mapping[str, Any] | None:
        """What is being done: what, done, total, seconds_left; None where nothing is."""

    def lacks(self) -> Sequence[str]:
        """What the library cannot do for want of data, a sentence each."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An index as it is now."""

    name: str
    index: Index
    reader: Reader | None
    """None while the encoder is loaded, or where it cannot be."""

    why: str
    """Why there is no reader; empty where it only needs time."""

    coming: str = ""
    """What a search by meaning waits for, where that will come by itself; else empty."""

    def need_reader(self) -> Reader:
        if self.reader is not None:
            return self.reader
        if self.why:
            raise RefusedError(503, f"texts cannot be encoded: {self.why}", after=60)
        raise RefusedError(
            503, "the model is still being loaded; try again in a few seconds, or search by words", after=2, coming=True
        )


class Shelf:
    """All indexes of a server by their names, the first is the one that is meant where none is named."""

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
        self.troubles: dict[str, str] = {}
        """Why the newest state of an index cannot be opened, by its name; the one before is served then."""

    @property
    def names(self) -> list[str]:
        return list(self.folders)

    def start(self) -> None:
        """Open every index; one that is there but cannot be read is an error now rather than at every request."""
        for name in self.folders:
            try:
                self.get(name)
            except RefusedError as error:
                if error.status != 503:
                    raise

    def get(self, name: str = "") -> Opened:
        """The index of that name as it is now."""
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
        """The encoder of an index, or why there is none; the first to ask has it loaded."""
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
            encoder = load_reader_encoder(index, key[0], device=self._options.device, runtime=key[1])
            made = Batcher(
                encoder,
                wait=self._options.batch_wait,
                most=self._options.batch_texts,
                waiting=self._options.batch_waiting,
                tell=self._metrics.encoded,
                read_sentences=partial(encode_alone, encoder),
            )
            _warm(index, self._reader(index, encoder))
        except Exception as error:  # told at every question that needs the encoder; words go on
            LOG.error("the model cannot be loaded (%s)", printable(str(error)))
            known = isinstance(error, CiteweaveError)
            made = without_paths(str(error)) if known else f"{type(error).__name__} while loading the model"
        with self._lock:
            self._batchers[key] = made

    def _reader(self, index: Index, encoder: Encoder) -> Reader:
        return Reader(index, encoder, any_runtime=bool(self._options.runtime) or index.any_runtime)

    def _model(self, name: str, index: Index) -> str:
        moved = self._options.model if name == next(iter(self.folders)) else ""
        return moved or str(index.model)


def _warm(index: Index, reader: Reader | None) -> None:
    """Ask first questions, as compiled code is loaded by them and the next are faster; they may fail, nobody asked them."""
    with contextlib.suppress(Exception):
        answer(index, reader, Query(text="a first question", by="words" if reader is None else "hybrid"))
        if reader is not None and index.with_sentences.any():
            some = index.id(int(index.with_sentences.argmax()))
            answer(index, None, Query(sentences=Chosen(paper=some, numbers=(0,))))
