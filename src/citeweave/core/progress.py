"""Progress lines of long work, and the tally of every record: read = kept + rejected, by reason.

    reporter = Reporter()
    with reporter.task("reading", total=3, unit="files") as advance:
        for path in paths:
            ...
            advance(1)

A terminal gets one line with rate and ETA that is rewritten, a notebook a bar, anything else plain lines, a quiet reporter
nothing. The functions of `citeweave` are quiet by default, but in a notebook (`core/arguments.py`).

>>> tally = Tally()
>>> tally.keep("papers", 3)
>>> tally.reject("papers", "no id")
>>> tally.counts["papers"].read, tally.counts["papers"].kept, tally.counts["papers"].rejected
(4, 3, {'no id': 1})
>>> tally.reject("papers", "no title", key="turing1950", line=12)
>>> str(tally.entries[0])
'turing1950, line 12: no title'
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TextIO

from citeweave.core.notebook import ProgressBar, in_notebook

Advance = Callable[[int], None]

SAVE_EVERY = 30.0
"""Most seconds of work that an interruption may cost."""

_TERMINAL_EVERY = 0.2
_PLAIN_EVERY = 15.0
_END_AFTER = 1.0
"""Seconds a task must take for its end to be worth a line outside a terminal."""


@dataclass(slots=True)
class Reporter:
    """Where progress lines go: standard error, so that standard output stays free for results.

    In a notebook tasks are bars, and lines go to standard output: notebooks print standard error in red.
    """

    quiet: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stdout if in_notebook() else sys.stderr)

    def say(self, message: str) -> None:
        """Print one plain line, unless quiet."""
        if not self.quiet:
            print(message, file=self.stream, flush=True)

    def fail(self, message: str) -> None:
        """Print an error about something the user asked for, even when quiet."""
        print("error:", message, file=self.stream, flush=True)

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        """Show progress of one task; yields a function to call with the amount done since the last call."""
        if self.quiet:
            yield lambda amount: None
            return
        kind = _NotebookMeter if in_notebook() and self.stream is sys.stdout else _Meter
        meter = kind(label, total, unit, self.stream)
        try:
            yield meter.advance
        finally:
            meter.finish()


QUIET = Reporter(quiet=True)


class _Meter:
    def __init__(self, label: str, total: int | None, unit: str, stream: TextIO) -> None:
        self._label, self._total, self._unit, self._stream = label, total, unit, stream
        self._terminal = stream.isatty()
        self._start = self._shown_at = time.monotonic()
        self._done = self._reported = 0

    def advance(self, amount: int) -> None:
        self._done += amount
        now = time.monotonic()
        if now - self._shown_at >= (_TERMINAL_EVERY if self._terminal else _PLAIN_EVERY):
            self._shown_at = now
            self._show("\r\033[K" if self._terminal else "", "" if self._terminal else "\n")

    def finish(self) -> None:
        if self._terminal:
            self._show("\r\033[K", "\n")
        elif time.monotonic() - self._start >= _END_AFTER and not (self._reported and self._reported == self._done):
            self._show("", "\n")

    def _show(self, before: str, after: str) -> None:
        elapsed = max(time.monotonic() - self._start, 1e-9)
        self._reported = self._done
        line = _progress_line(self._label, self._done, self._total, self._unit, elapsed)
        self._stream.write(before + line + after)
        self._stream.flush()


class _NotebookMeter(_Meter):
    """Progress as a bar in a notebook, which a task of less than a second does not leave behind."""

    def __init__(self, label: str, total: int | None, unit: str, stream: TextIO) -> None:
        super().__init__(label, total, unit, stream)
        self._terminal, self._bar = True, ProgressBar()  # bars are drawn as often as lines of a terminal

    def finish(self) -> None:
        elapsed = time.monotonic() - self._start
        if self._reported or elapsed >= _END_AFTER:
            line = _progress_line(self._label, self._done, self._total, self._unit, elapsed)
            self._bar.end(line if elapsed >= _END_AFTER else "")

    def _show(self, before: str, after: str) -> None:
        self._reported = self._done
        elapsed = max(time.monotonic() - self._start, 1e-9)
        line = _progress_line(self._label, self._done, self._total, self._unit, elapsed)
        self._bar.show(line, self._done, self._total)


def _progress_line(label: str, done: int, total: int | None, unit: str, elapsed: float) -> str:
    """Return one line of progress: amount, share, rate, and time left or elapsed.

    >>> _progress_line("reading", 50, 200, "files", 10.0)
    'reading: 50 of 200 files (25 %), 5/s, 30 s left'
    >>> _progress_line("reading", 1500000, None, "records", 3.0)
    'reading: 1,500,000 records, 500,000/s, 3 s'
    """
    rate = done / elapsed
    pace = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
    noun = f" {unit}" if unit else ""
    if not total:
        return f"{label}: {done:,}{noun}, {pace}, {format_duration(elapsed)}"
    share = f"{label}: {done:,} of {total:,}{noun} ({100 * done / total:.0f} %), {pace}"
    if 0 < done < total:
        return f"{share}, {format_duration((total - done) / rate)} left"
    return f"{share}, {format_duration(elapsed)}"


def format_duration(seconds: float) -> str:
    """Format seconds of work, done or estimated, for people.

    >>> format_duration(0.4), format_duration(42), format_duration(400), format_duration(9000), format_duration(400_000)
    ('under 1 s', '42 s', '6.67 min', '2.5 h', '4.6 days')
    """
    if seconds < 1:
        return "under 1 s"
    for unit, size, until in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{seconds / size:.0f} {unit}" if unit == "s" else f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:,.1f} days"


# Counting every record.

RECORD_KINDS = ("papers", "citations", "contexts")


@dataclass(slots=True)
class Count:
    """How many records of one kind were kept, and how many were rejected for which reason."""

    kept: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    @property
    def read(self) -> int:
        return self.kept + sum(self.rejected.values())


MAX_ENTRIES, _MAX_KEY = 200, 100
"""Rejected entries of papers that are named, and characters of a key."""


class RejectedEntry(NamedTuple):
    """An entry of an input file that did not become a paper: its key, its place and the reason."""

    key: str
    line: int
    """Where it begins, counted from 1; 0 = unknown."""

    reason: str
    file: str = ""

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.file, f"line {self.line:,}" if self.line else "")))
        return f"{', '.join(filter(None, (self.key, place))) or 'an entry'}: {self.reason}"


MERGED = "same paper as another record (merged)"
"""Why a record of a paper is not a paper of its own; nothing of it is lost."""


class MergedEntry(NamedTuple):
    """An entry of a bibliography that is the same paper as another entry, and was merged with it."""

    key: str
    file: str
    same_as: str
    """Key of the entry after which the paper is named."""

    same_file: str

    def __str__(self) -> str:
        other = self.same_as if self.same_file == self.file else f"{self.same_as}, {self.same_file}"
        return f"{self.key}, {self.file} is the same paper as {other}"


@dataclass(slots=True)
class Tally:
    """What happened to the records of one file, or of a complete import."""

    counts: dict[str, Count] = field(default_factory=lambda: {kind: Count() for kind in RECORD_KINDS})
    notes: dict[str, int] = field(default_factory=dict)
    """Repairs worth knowing about that cost no record, such as text decoded as Latin-1."""

    entries: list[RejectedEntry] = field(default_factory=list)
    """The first MAX_ENTRIES rejected entries whose key or line the reader knows."""

    def keep(self, kind: str, number: int = 1) -> None:
        self.counts[kind].kept += number

    def reject(self, kind: str, reason: str, number: int = 1, *, key: str = "", line: int = 0) -> None:
        """Count records that do not become rows. Reasons are few and fixed: no ids, paths or text in them."""
        if number:
            rejected = self.counts[kind].rejected
            rejected[reason] = rejected.get(reason, 0) + number
        if (key or line) and len(self.entries) < MAX_ENTRIES:
            printable = "".join(character for character in key if character.isprintable())
            self.entries.append(RejectedEntry(printable[:_MAX_KEY], line, reason))

    def unkeep(self, kind: str, reason: str, number: int = 1) -> None:
        """Turn kept records into rejected ones, when a later step finds the reason."""
        self.counts[kind].kept -= number
        self.reject(kind, reason, number)

    def note(self, what: str, number: int = 1) -> None:
        if number:
            self.notes[what] = self.notes.get(what, 0) + number

    def add(self, other: Tally, file: str = "") -> None:
        """Add the counts of another tally, and its rejected entries as those of a file."""
        for kind, count in other.counts.items():
            self.keep(kind, count.kept)
            for reason, number in count.rejected.items():
                self.reject(kind, reason, number)
        for what, number in other.notes.items():
            self.note(what, number)
        self.entries += [each._replace(file=each.file or file) for each in other.entries]
        del self.entries[MAX_ENTRIES:]

    def as_json(self) -> dict[str, object]:
        records = {
            kind: {"read": c.read, "kept": c.kept, "rejected": dict(sorted(c.rejected.items()))}
            for kind, c in self.counts.items()
        }
        named = {"rejected_entries": [entry._asdict() for entry in self.entries]} if self.entries else {}
        return {"records": records, "notes": dict(sorted(self.notes.items())), **named}

    @classmethod
    def from_json(cls, data: dict[str, object]) -> Tally:
        tally = cls(notes=dict(data["notes"]))  # type: ignore[call-overload]
        for kind, count in data["records"].items():  # type: ignore[attr-defined]
            tally.counts[kind] = Count(count["kept"], dict(count["rejected"]))
        tally.entries = rejected_entries(data)
        return tally


def rejected_entries(data: Mapping[str, Any]) -> list[RejectedEntry]:
    """Return the entries that a tally's JSON, or the metadata of an import, names as left out; merged ones are not lost."""
    entries = [RejectedEntry(**entry) for entry in data.get("rejected_entries", [])]
    return [entry for entry in entries if entry.reason != MERGED]  # older corpora list them here
