"""What goes on while a library is served already: enrichment and vectors, in a process of its own at low priority.

    python -m citeweave.serve.library FOLDER '{"enrich": "openalex"}'

The process tells its progress as JSON lines on standard output, which `BackgroundWork` reads in a thread. It ends when it
is done, when it is told to, and when its standard input ends, as it does with the process that started it. Whatever it
had finished stays: the next start goes on from there.

    {"what": "embedding", "done": 256, "total": 1900}
    {"error": "the encoder 'weave' needs torch; pip install 'citeweave[minilm]'"}

A library that can be searched at once by its words, while the rest is made behind it.

    with open_library("my.bib") as library:
        library.index_folder, library.working(), library.lacks()
        app = create_app(library)

Local sources need no network. A source that did not change is not read again; one that did is, and only what is new in it
is embedded. Does not serve: see `app.py`.
"""

from __future__ import annotations

import _thread
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from citeweave.core.errors import ArtifactError, CiteweaveError, MissingExtraError, UserError
from citeweave.core.files import LockedError, take_lock
from citeweave.core.progress import QUIET, Advance, Reporter
from citeweave.corpus.corpus import STUB, Corpus
from citeweave.serve.prepare_library import (
    RECORD,
    LibraryFolder,
    LibraryOptions,
    LibrarySource,
    check_model,
    enrich,
    find_source,
    library_folder,
    prepare_words,
)

_EVERY = 0.2
_NICE = 10
_BEGINNING = "loading the model"
_SHARD = 128
"""Papers between two states of the index: each brings some more papers into the results."""

_GRACE = 5.0
"""Seconds that the process gets to end before it is ended."""

_APART: dict[str, Any] = {"start_new_session": True}
"""In a session or group of its own: Ctrl-C is for the server, which then ends this process."""
if sys.platform == "win32":
    _APART = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.BELOW_NORMAL_PRIORITY_CLASS}


def work_on(
    library: LibraryFolder,
    options: LibraryOptions,
    *,
    stop: Callable[[], bool] = lambda: False,
    reporter: Reporter = QUIET,
) -> str:
    """Do the background work of a library, enrichment and vectors; return why some of it failed, or an empty text."""
    stopped = ""
    if options.enrich and not stop():
        found = enrich(library, options, reporter)
        reporter.say(
            f"{found.found:,} of {found.asked:,} papers found, {found.not_found:,} not, {found.ambiguous:,} ambiguous; "
            f"{found.citing:,} citing papers and {found.lacking:,} that the library cites"
        )
        stopped = f"--enrich {options.enrich}: {found.stopped}" if found.stopped else ""
    if not stop():
        _fill(library.index, options, stop, reporter)
    return stopped


def _fill(folder: Path, options: LibraryOptions, stop: Callable[[], bool], reporter: Reporter) -> None:
    """Embed all papers of a library that have no vectors."""
    from citeweave.encoders.model_names import DEFAULT_MODEL
    from citeweave.search.fill_vectors import fill_vectors, pending_rows, pending_sentence_rows
    from citeweave.search.index import Index
    from citeweave.search.index_model import open_embedding

    index, encoder = Index.open(folder), None
    if len(pending_rows(index)) or len(pending_sentence_rows(index)):
        try:
            encoder = open_embedding(index, device=options.device).encoder
        except MissingExtraError:
            raise  # its pip line is all there is to say
        except UserError as error:
            if options.model:
                raise
            raise UserError(
                f"{error}. The library remembers this model from an earlier start, --model {index.model} --runtime "
                f"{index.runtime}; name another, such as `--model {DEFAULT_MODEL} --runtime auto`"
            ) from None
    fill_vectors(folder, model=encoder, shard=_SHARD, stop=stop, device=options.device, reporter=reporter)


@dataclass(slots=True)
class LineReporter(Reporter):
    """Reports progress as JSON lines, a few per second, to the process that serves the library."""

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        done, told = 0, 0.0

        def advance(amount: int) -> None:
            nonlocal done, told
            done += amount
            if time.monotonic() - told >= _EVERY:
                told = time.monotonic()
                self._tell(what=label, done=done, total=total or 0, unit=unit)

        advance(0)
        try:
            yield advance
        finally:
            self._tell(what=label, done=done, total=total or 0, unit=unit)

    def say(self, message: str) -> None:
        self._tell(say=message)

    def fail(self, message: str) -> None:
        self._tell(error=message)

    def _tell(self, **facts: Any) -> None:
        print(json.dumps(facts), file=self.stream, flush=True)


class BackgroundWork:
    """The background process that works on a library, and its latest progress."""

    def __init__(self, library: LibraryFolder, options: LibraryOptions, reporter: Reporter = QUIET) -> None:
        self._library, self.options, self._reporter = library, options, reporter
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._now: dict[str, Any] | None = None
        self._began = 0.0
        self._stopped = False
        self.error = ""
        """Why the work could not be finished, empty where it was or still may be."""

    def start(self) -> None:
        """Start the background process, unless it was already told to stop."""
        with self._lock:
            if not self._stopped:
                self._start()

    def _start(self) -> None:
        # -P: a file of the current folder, such as a json.py beside somebody's .bib, must not be taken for a module
        command = [
            sys.executable,
            "-P",
            "-m",
            __spec__.name,
            str(self._library.folder),
            json.dumps(asdict(self.options)),
        ]
        with (self._library.folder / "background.log").open("wb") as log:
            # nothing is sent to it: the pipe ends when this process does
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, encoding="utf-8", **_APART
            )
        self._thread = threading.Thread(target=self._listen, name="citeweave-library", daemon=True)
        self._thread.start()

    def working(self) -> dict[str, Any] | None:
        """Return the current background task: what, done, total, seconds_left; None if there is none."""
        with self._lock:
            if self._now is None:
                is_busy = self._process is not None and self._process.poll() is None
                return {"what": _BEGINNING, "done": 0, "total": 0, "seconds_left": None} if is_busy else None
            done, total = self._now["done"], self._now["total"]
            spent = time.monotonic() - self._began
            left = spent * (total - done) / done if 0 < done <= total else None
            return {"what": self._now["what"], "done": done, "total": total, "seconds_left": left and round(left, 1)}

    def join(self, seconds: float | None = None) -> None:
        """Wait for the background process of a library to end."""
        if self._thread is not None:
            self._thread.join(seconds)

    def stop(self) -> None:
        """Stop the background process; finished work is kept."""
        with self._lock:
            self._stopped = True
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self.join(_GRACE)

    def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        try:
            self._follow(self._process.stdout)
        finally:
            code = self._process.wait()
            self._set(None)
            # ended by a signal is ended by us, or by somebody who meant it; Windows knows no signals, but a code
            if code > 0 and not self.error and not self._stopped:
                self._fail(f"the work on vectors ended with code {code}; see {self._library.folder / 'background.log'}")

    def _follow(self, lines: IO[str]) -> None:
        """Show the progress lines of the background process; other lines are ignored."""
        open_task: Any = None
        shown = 0
        for line in lines:
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if "say" in told:
                self._reporter.say(told["say"])
            elif "error" in told:
                self._fail(told["error"])
            elif "what" in told:
                if self._set(told):
                    if open_task is not None:
                        open_task[0].__exit__(None, None, None)
                    context = self._reporter.task(told["what"], told["total"] or None, told.get("unit", ""))
                    open_task, shown = (context, context.__enter__()), 0
                open_task[1](told["done"] - shown)
                shown = told["done"]
        if open_task is not None:
            open_task[0].__exit__(None, None, None)

    def _fail(self, message: str) -> None:
        self.error = message
        self._reporter.fail(message)

    def _set(self, told: dict[str, Any] | None) -> bool:
        """Store a progress line; return whether another task began."""
        with self._lock:
            old, self._now = self._now, told
            another = told is not None and (
                old is None
                or old["what"] != told["what"]
                or old["total"] != told["total"]
                or told["done"] < old["done"]
            )
            if another:
                self._began = time.monotonic()
            return another


def main(arguments: list[str]) -> int:
    """Run the background process of a library."""
    reporter = LineReporter(stream=sys.stdout)
    if hasattr(os, "nice"):
        with suppress(OSError):  # a matter of manners only
            os.nice(_NICE)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _end)  # in order: what was computed is saved
    alone = threading.Event()
    threading.Thread(target=_wait_for_end, args=(alone,), daemon=True).start()
    try:
        options = LibraryOptions(**json.loads(arguments[1]))
        stopped = work_on(LibraryFolder(Path(arguments[0])), options, stop=alone.is_set, reporter=reporter)
    except CiteweaveError as error:
        reporter.fail(str(error))
        return error.exit_code
    except BrokenPipeError:
        return 0  # nobody listens any more
    if stopped:
        reporter.fail(stopped)
    return 1 if stopped else 0


def _end(number: int, frame: object) -> None:
    raise SystemExit(0)


def _wait_for_end(alone: threading.Event) -> None:
    """Standard input ends with the process that started this one, however that ended: nobody waits for this one any more."""
    with suppress(OSError):
        while os.read(0, 1):
            pass
    alone.set()
    _thread.interrupt_main(signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))


# A library that can be searched at once by its words, while the rest is made behind it.

_LOCK = ".lock"
_EXPLORE_OPTIONS = LibraryOptions()


class Library:
    """A library that is being served: its folder, index, background work and what it lacks."""

    def __init__(self, source: LibrarySource, places: LibraryFolder | None, work: BackgroundWork | None) -> None:
        self.source, self.places, self._work = source, places, work
        self._counted: tuple[str, list[str]] = ("", [])

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def index_folder(self) -> Path:
        return self.source.files[0] if self.places is None else self.places.index

    @property
    def corpus_folder(self) -> Path | None:
        """Return the folder of the library's own papers, without fetched ones; None for an index."""
        return None if self.places is None else Path(self.places.record().get("base", self.places.corpus))

    def working(self) -> dict[str, Any] | None:
        """Return the current background task: what, done, total, seconds_left; None if there is none."""
        return None if self._work is None else self._work.working()

    def lacks(self) -> list[str]:
        """List what the library cannot do because data is missing, and what helps."""
        if self.places is None:
            return []
        record = self.places.record()
        lacks = self._counts(self.places)
        if stopped := record.get("asked", {}).get("stopped"):
            lacks = [*lacks, stopped]
        return [*lacks, self._work.error] if self._work is not None and self._work.error else lacks

    def finish(self, reporter: Reporter = QUIET) -> str:
        """Do the background work in this process; return why some of it was not done, or an empty text."""
        if self._work is None or self.places is None:
            return ""
        self._work.error = work_on(self.places, self._work.options, reporter=reporter)
        return self._work.error or self.places.record().get("asked", {}).get("stopped", "")

    def start(self) -> None:
        """Start the background work of the library."""
        if self._work is not None:
            self._work.start()

    def stop(self) -> None:
        if self._work is not None:
            self._work.stop()

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the background work of the library."""
        if self._work is not None:
            self._work.join(seconds)

    def _counts(self, places: LibraryFolder) -> list[str]:
        """Return lines about the library's corpus, counted once per corpus."""
        corpus = corpus_of(places)
        if corpus is None:
            return []
        if self._counted[0] != corpus.hash:
            enriched = places.record().get("enriched", {}).values()
            told = lacks_of(corpus, enriched=any(not each.get("stopped") for each in enriched))
            own = self.source.kind != "corpus"  # what an import left out of a corpus was told then
            self._counted = (corpus.hash, [*left_out_of(self.corpus_folder if own else None), *told])
        return self._counted[1]


def corpus_of(places: LibraryFolder) -> Corpus | None:
    """Open the corpus of a library, including the records fetched for it."""
    for folder in (places.richer, Path(places.record().get("base", places.corpus))):
        try:
            return Corpus.open(folder)
        except (ArtifactError, OSError):
            continue
    return None


def left_out_of(folder: Path | None) -> list[str]:
    """Return what in the library's source did not become a paper, and why."""
    try:
        records = Corpus.open(folder).manifest.facts["records"]["papers"] if folder else {}
    except (ArtifactError, OSError, KeyError, TypeError):
        return []
    why = {reason: int(count) for reason, count in records.get("rejected", {}).items() if count}
    reasons = ", ".join(f"{reason} ({count:,})" for reason, count in why.items())
    return (
        [f"{sum(why.values()):,} of {records['read']:,} entries of the source are left out: {reasons}"] if why else []
    )


def lacks_of(corpus: Corpus, *, enriched: bool = False) -> list[str]:
    """Say which data the papers of a library's corpus lack; fetched papers around it do not count."""
    own = (np.asarray(corpus.flags) & STUB) == 0  # (papers,)
    papers = int(own.sum())
    no_abstract = int((own & (corpus.abstracts.lengths() == 0)).sum())
    cites = np.zeros(len(corpus), np.bool_)  # (papers,)
    cites[np.asarray(corpus.citing)] = True
    cites[np.asarray(corpus.references_outside("citing"))] = True
    no_references = int((own & ~cites).sum())
    lacks = []
    if no_abstract:
        lacks.append(f"{no_abstract:,} of {papers:,} papers have no abstract")
    if no_references:
        lacks.append(f"{no_references:,} of {papers:,} papers have no references, so none in common with others")
    if lacks and not enriched:
        lacks.append("`citeweave explore --enrich openalex` fetches abstracts, references and citations")
    return lacks


@contextmanager
def open_library(
    source: str,
    folder: Path | None = None,
    options: LibraryOptions = _EXPLORE_OPTIONS,
    *,
    reporter: Reporter = QUIET,
) -> Iterator[Library]:
    """Open a library for exploring, searchable by words at once; `start` or `finish` does the rest."""
    found = find_source(source)
    if found.kind == "index":
        if options.enrich:
            raise UserError(
                f"{source} is an index, which cannot be enriched; give the corpus or the file it was made of"
            )
        yield Library(found, None, None)
        return
    check_model(options)
    place = (folder or library_folder(found)).expanduser().absolute()
    if folder is not None:
        _refuse_strangers(place)
    with _alone(place):
        places = prepare_words(found, place, options, reporter=reporter)
        library = Library(found, places, BackgroundWork(places, options, reporter))
        try:
            yield library
        finally:
            library.stop()


def _refuse_strangers(folder: Path) -> None:
    """Refuse a library folder that contains files that citeweave did not write."""
    if not folder.is_dir() or (folder / RECORD).is_file():
        return
    if strangers := sorted({path.name for path in folder.iterdir()} - {_LOCK, f"{_LOCK}.held"}):
        raise UserError(
            f"{folder} holds {strangers[0]!r} and no {RECORD}, so it is no library's folder; choose another --folder"
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a library's folder against other processes."""
    try:
        lock = take_lock(folder / _LOCK)
    except LockedError:
        raise UserError(
            f"{folder} is being explored already; look for its page in the browser, or end the other command"
        ) from None
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); name another place with --folder") from None
    with lock:
        yield
