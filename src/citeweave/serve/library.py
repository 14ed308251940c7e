"""Libraries for `citeweave explore`: searchable by words at once, while a background process enriches and embeds them.

    with open_library("my.bib") as library:
        library.index_folder, library.working(), library.missing_data()
        app = create_app(library)

Local sources need no network. An unchanged source is not read again; of a changed one only new papers are embedded.

The background process runs at low priority and reports its progress as JSON lines on standard output:

    python -m citeweave.serve.library FOLDER '{"enrich": "openalex"}'

    {"what": "embedding", "done": 256, "total": 1900}
    {"error": "the encoder 'weave' needs torch; pip install 'citeweave[minilm]'"}

It ends when it is done, when it is stopped, and when its standard input ends, as happens when the process that started it
ends. Finished work is kept, and the next start resumes there. Does not serve: see `app.py`.
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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from citeweave.core.errors import ArtifactError, CiteweaveError, MissingExtraError, UserError
from citeweave.core.files import LockedError, take_lock
from citeweave.core.progress import MERGED, QUIET, Advance, RejectedEntry, Reporter, rejected_entries
from citeweave.corpus.corpus import STUB, Corpus
from citeweave.search.filters import filter_rows
from citeweave.search.index import Index
from citeweave.search.query import Filter
from citeweave.serve.options import LibraryOptions
from citeweave.serve.prepare_library import (
    RECORD,
    LibraryFolder,
    LibrarySource,
    check_model,
    enrich,
    find_source,
    library_folder,
    prepare_words,
)

_REPORT_EVERY = 0.2
"""Seconds between two progress lines."""

_NICE = 10
_FIRST_TASK = "loading the model"
_SHARD = 128
"""Papers between two states of the index; each state makes more papers searchable."""

_GRACE = 5.0
"""Seconds that the background process gets to end before it is killed."""

_OWN_SESSION: dict[str, Any] = {"start_new_session": True}
"""A session or group of its own: Ctrl-C goes to the server, which then stops the background process."""
if sys.platform == "win32":
    _OWN_SESSION = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.BELOW_NORMAL_PRIORITY_CLASS}

_LOCK = ".lock"
_EXPLORE_OPTIONS = LibraryOptions()


@contextmanager
def open_library(
    source: str, folder: Path | None = None, options: LibraryOptions = _EXPLORE_OPTIONS, *, reporter: Reporter = QUIET
) -> Iterator[Library]:
    """Open a library (a file, a corpus or an index), searchable by words at once; `start` or `finish` computes the vectors."""
    library_source = find_source(source)
    if library_source.kind == "index":
        if options.enrich:
            raise UserError(
                f"{source} is an index, which cannot be enriched; give the corpus or the file it was built from"
            )
        yield Library(library_source, None, None)
        return
    check_model(options)
    path = (folder or library_folder(library_source)).expanduser().absolute()
    if folder is not None:
        _refuse_foreign_files(path)
    with _take_lock(path):
        prepared = prepare_words(library_source, path, options, reporter=reporter)
        library = Library(library_source, prepared, BackgroundWork(prepared, options, reporter))
        try:
            yield library
        finally:
            library.stop()


def _refuse_foreign_files(folder: Path) -> None:
    """Refuse a library folder that contains files that citeweave did not write."""
    if not folder.is_dir() or (folder / RECORD).is_file():
        return
    if foreign := sorted({path.name for path in folder.iterdir()} - {_LOCK, f"{_LOCK}.held"}):
        raise UserError(
            f"{folder} holds {foreign[0]!r} and no {RECORD}, so it is not the folder of a library; choose another --folder"
        )


def _take_lock(folder: Path) -> ExitStack:
    """Lock a library's folder against other processes."""
    try:
        return take_lock(folder / _LOCK)
    except LockedError:
        raise UserError(
            f"{folder} is already being explored; find its page in the browser, or stop the other command"
        ) from None
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); choose another --folder") from None


class Library:
    """A library that is being explored: its source, folder, background work and missing data."""

    def __init__(self, source: LibrarySource, folder: LibraryFolder | None, work: BackgroundWork | None) -> None:
        self.source, self.folder, self._work = source, folder, work
        self._counted: tuple[str, list[str]] = ("", [])
        self.rejected: list[RejectedEntry] = []
        """Entries of the source that did not become papers, as far as they are named; set by `missing_data`."""

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def index_folder(self) -> Path:
        return self.source.files[0] if self.folder is None else self.folder.index

    @property
    def corpus_folder(self) -> Path | None:
        """Return the folder of the library's own papers, without fetched ones; None for an index."""
        return None if self.folder is None else Path(self.folder.record().get("base", self.folder.corpus))

    def working(self) -> dict[str, Any] | None:
        """Return the current background task: what, done, total, seconds_left; None if there is none."""
        return None if self._work is None else self._work.working()

    def missing_data(self) -> list[str]:
        """List what the library cannot do because data is missing, and what helps."""
        if self.folder is None:
            return []
        record = self.folder.record()
        lines = self._count(self.folder)
        if stopped := record.get("asked", {}).get("stopped"):
            lines = [*lines, stopped]
        return [*lines, self._work.error] if self._work is not None and self._work.error else lines

    def finish(self, reporter: Reporter = QUIET) -> str:
        """Do the background work in this process; return why some of it was not done, or an empty text."""
        if self._work is None or self.folder is None:
            return ""
        self._work.error = _work_on_library(self.folder, self._work.options, reporter=reporter)
        return self._work.error or self.folder.record().get("asked", {}).get("stopped", "")

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

    def _count(self, folder: LibraryFolder) -> list[str]:
        """Describe the data that the library's corpus lacks, counted once per corpus."""
        corpus = _open_library_corpus(folder)
        if corpus is None:
            return []
        if self._counted[0] != corpus.hash:
            enriched = folder.record().get("enriched", {}).values()
            missing = _describe_missing(corpus, enriched=any(not each.get("stopped") for each in enriched))
            imported = (
                {} if self.source.kind == "corpus" else _import_metadata(self.corpus_folder)
            )  # `import` reports its own
            self.rejected = rejected_entries(imported)
            self._counted = (corpus.hash, [*_describe_left_out(imported), *missing])
        return self._counted[1]


def _open_library_corpus(library: LibraryFolder) -> Corpus | None:
    """Open the corpus of a library, including the records fetched for it."""
    for folder in (library.enriched_corpus, Path(library.record().get("base", library.corpus))):
        try:
            return Corpus.open(folder)
        except (ArtifactError, OSError):
            continue
    return None


def _import_metadata(folder: Path | None) -> dict[str, Any]:
    """Return the metadata of the import that wrote the corpus of a library's own papers; empty if there is none."""
    try:
        return Corpus.open(folder).manifest.facts if folder else {}
    except (ArtifactError, OSError):
        return {}


def _describe_left_out(imported: dict[str, Any]) -> list[str]:
    """Return what in the library's source did not become a paper, and why, and how many entries were merged."""
    records = imported.get("records", {}).get("papers", {})
    rejected = {reason: int(count) for reason, count in records.get("rejected", {}).items() if count}
    merged, read = rejected.pop(MERGED, 0), f"of {records.get('read', 0):,} entries of the source are"
    reasons = ", ".join(f"{reason} ({count:,})" for reason, count in rejected.items())
    lost = f"{sum(rejected.values()):,} {read} left out: {reasons}" if rejected else ""
    return [*filter(None, [lost]), *([f"{merged:,} {read} merged with another of the same paper"] if merged else [])]


def _describe_missing(corpus: Corpus, *, enriched: bool = False) -> list[str]:
    """Describe the data that the papers of a library lack; fetched papers around it do not count."""
    own = (np.asarray(corpus.flags) & STUB) == 0  # (papers,)
    papers = int(own.sum())
    no_abstract = int((own & (corpus.abstracts.lengths() == 0)).sum())
    cites = np.zeros(len(corpus), np.bool_)  # (papers,)
    cites[np.asarray(corpus.citing)] = True
    cites[np.asarray(corpus.references_outside("citing"))] = True
    no_references = int((own & ~cites).sum())
    lines = []
    if no_abstract:
        lines.append(f"{no_abstract:,} of {papers:,} papers have no abstract")
    if no_references:
        lines.append(f"{no_references:,} of {papers:,} papers have no references, so none are shared with other papers")
    if lines and not enriched:
        lines.append("`citeweave explore --enrich openalex` fetches abstracts, references and citations")
    return lines


def count_papers(index: Index) -> dict[str, int]:
    """Count the live papers of a library's index, or any other, and how many have vectors, sentences or abstracts.

    Papers around a library, known only because it cites them or they cite it, are counted separately.
    """
    own = filter_rows(index, Filter(local=True))  # (size,)
    return {
        "papers": int(own.sum()),
        "around": int((~own).sum()),
        "with_vectors": int((index.with_vector & own).sum()),
        "with_sentences": int((index.with_sentences & own).sum()),
        "with_abstract": int(filter_rows(index, Filter(local=True, has_abstract=True)).sum()),
    }


# --- the background process ---


def _work_on_library(
    library: LibraryFolder,
    options: LibraryOptions,
    *,
    stop: Callable[[], bool] = lambda: False,
    reporter: Reporter = QUIET,
) -> str:
    """Do the background work of a library, enrichment and vectors; return why some of it failed, or an empty text."""
    stopped = ""
    if options.enrich and not stop():
        result = enrich(library, options, reporter)
        reporter.say(
            f"{result.found:,} of {result.asked:,} papers found, {result.not_found:,} not, {result.ambiguous:,} ambiguous; "
            f"{result.citing:,} citing papers and {result.lacking:,} that the library cites"
        )
        stopped = f"--enrich {options.enrich}: {result.stopped}" if result.stopped else ""
    if not stop():
        _fill_vectors(library.index, options, stop, reporter)
    return stopped


def _fill_vectors(folder: Path, options: LibraryOptions, stop: Callable[[], bool], reporter: Reporter) -> None:
    """Embed all papers of a library that have no vectors."""
    from citeweave.encoders.model_names import DEFAULT_MODEL
    from citeweave.search.build import fill_vectors
    from citeweave.search.index_vectors import open_embedding

    index, encoder = Index.open(folder), None
    if (index.not_embedded | (index.with_vector & ~index.with_sentences)).any():
        try:
            encoder = open_embedding(index, device=options.device).encoder
        except MissingExtraError:
            raise  # its pip line says it all
        except UserError as error:
            if options.model:
                raise
            raise UserError(
                f"{error}. The library was embedded with this model before, --model {index.model} --runtime "
                f"{index.runtime}; choose another, such as `--model {DEFAULT_MODEL} --runtime auto`"
            ) from None
    fill_vectors(folder, model=encoder, shard=_SHARD, stop=stop, device=options.device, reporter=reporter)


@dataclass(slots=True)
class LineReporter(Reporter):
    """Reports progress as JSON lines, a few per second, to the process that serves the library."""

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        done, reported = 0, 0.0

        def advance(amount: int) -> None:
            nonlocal done, reported
            done += amount
            if time.monotonic() - reported >= _REPORT_EVERY:
                reported = time.monotonic()
                self._write(what=label, done=done, total=total or 0, unit=unit)

        advance(0)
        try:
            yield advance
        finally:
            self._write(what=label, done=done, total=total or 0, unit=unit)

    def say(self, message: str) -> None:
        self._write(say=message)

    def fail(self, message: str) -> None:
        self._write(error=message)

    def _write(self, **fields: Any) -> None:
        print(json.dumps(fields), file=self.stream, flush=True)


class BackgroundWork:
    """The background process that works on a library, and its latest progress."""

    def __init__(self, library: LibraryFolder, options: LibraryOptions, reporter: Reporter = QUIET) -> None:
        self._library, self.options, self._reporter = library, options, reporter
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._progress: dict[str, Any] | None = None
        self._task_start = 0.0
        self._stopped = False
        self.error = ""
        """Why the work could not be finished; empty if it was, or still may be."""

    def start(self) -> None:
        """Start the background process of a library, unless it was already stopped."""
        with self._lock:
            if not self._stopped:
                self._start()

    def _start(self) -> None:
        # -P: a file in the current folder, such as a json.py beside a .bib file, must not be imported as a module
        command = [
            sys.executable,
            "-P",
            "-m",
            __spec__.name,
            str(self._library.folder),
            json.dumps(asdict(self.options)),
        ]
        with (self._library.folder / "background.log").open("wb") as log:
            # nothing is written to its input: the pipe closes when this process ends
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, encoding="utf-8", **_OWN_SESSION
            )
        self._thread = threading.Thread(target=self._read_output, name="citeweave-library", daemon=True)
        self._thread.start()

    def working(self) -> dict[str, Any] | None:
        """Return the library's current background task: what, done, total, seconds_left; None if there is none."""
        with self._lock:
            if self._progress is None:
                is_busy = self._process is not None and self._process.poll() is None
                return {"what": _FIRST_TASK, "done": 0, "total": 0, "seconds_left": None} if is_busy else None
            done, total = self._progress["done"], self._progress["total"]
            spent = time.monotonic() - self._task_start
            left = spent * (total - done) / done if 0 < done <= total else None
            return {
                "what": self._progress["what"],
                "done": done,
                "total": total,
                "seconds_left": left and round(left, 1),
            }

    def join(self, seconds: float | None = None) -> None:
        """Wait for the background process of a library to end."""
        if self._thread is not None:
            self._thread.join(seconds)

    def stop(self) -> None:
        """Stop the background process of the library; finished work is kept."""
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

    def _read_output(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        try:
            self._show_progress(self._process.stdout)
        finally:
            code = self._process.wait()
            self._store(None)
            # a signal came from us or from somebody on purpose; Windows has no signals, only codes
            if code > 0 and not self.error and not self._stopped:
                self._fail(
                    f"the background process ended with code {code}; see {self._library.folder / 'background.log'}"
                )

    def _show_progress(self, lines: IO[str]) -> None:
        """Show the progress lines of the background process; other lines are ignored."""
        with ExitStack() as task:
            for line in lines:
                try:
                    progress = json.loads(line)
                except ValueError:
                    continue
                if "say" in progress:
                    self._reporter.say(progress["say"])
                elif "error" in progress:
                    self._fail(progress["error"])
                elif "what" in progress:
                    if self._store(progress):
                        task.close()
                        unit = progress.get("unit", "")
                        shown, new = 0, self._reporter.task(progress["what"], progress["total"] or None, unit)
                        advance = task.enter_context(new)
                    advance(progress["done"] - shown)
                    shown = progress["done"]

    def _fail(self, message: str) -> None:
        self.error = message
        self._reporter.fail(message)

    def _store(self, progress: dict[str, Any] | None) -> bool:
        """Store a progress line; return whether another task began."""
        with self._lock:
            old, self._progress = self._progress, progress
            is_new = progress is not None and (
                old is None
                or old["what"] != progress["what"]
                or old["total"] != progress["total"]
                or progress["done"] < old["done"]
            )
            if is_new:
                self._task_start = time.monotonic()
            return is_new


def main(arguments: list[str]) -> int:
    """Run the background process of a library."""
    reporter = LineReporter(stream=sys.stdout)
    if hasattr(os, "nice"):
        with suppress(OSError):  # a low priority is not essential
            os.nice(_NICE)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _end)  # a normal exit saves what was computed
    orphaned = threading.Event()
    threading.Thread(target=_wait_for_end, args=(orphaned,), daemon=True).start()
    try:
        options = LibraryOptions(**json.loads(arguments[1]))
        stopped = _work_on_library(LibraryFolder(Path(arguments[0])), options, stop=orphaned.is_set, reporter=reporter)
    except CiteweaveError as error:
        reporter.fail(str(error))
        return error.exit_code
    except BrokenPipeError:
        return 0  # nobody reads the output any more
    if stopped:
        reporter.fail(stopped)
    return 1 if stopped else 0


def _end(number: int, frame: object) -> None:
    raise SystemExit(0)


def _wait_for_end(orphaned: threading.Event) -> None:
    """Wait until standard input ends with the process that started this one, then interrupt the background work."""
    with suppress(OSError):
        while os.read(0, 1):
            pass
    orphaned.set()
    _thread.interrupt_main(signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
