"""Progress lines of long work, and the tally of every record: read = kept + rejected, by reason.

    reporter = Reporter()
    with reporter.task("reading", total=3, unit="files") as advance:
        for path in paths:
            ...
            advance(1)

A terminal gets one line with rate and ETA that is rewritten, anything else plain lines, a quiet reporter nothing.

>>> tally = Tally()
>>> tally.keep("papers", 3)
>>> tally.reject("papers", "no id")
>>> tally.counts["papers"].read, tally.counts["papers"].kept, tally.counts["papers"].rejected
(4, 3, {'no id': 1})
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

Advance = Callable[[int], None]

SAVE_EVERY = 30.0
"""Most seconds of work that an interruption may cost."""

_TERMINAL_EVERY = 0.2
_PLAIN_EVERY = 15.0
_END_AFTER = 1.0
"""Seconds a task must take for its end to be worth a line outside a terminal."""


@dataclass(slots=True)
class Reporter:
    """Where progress lines go: standard error, so that standard output stays free for results."""

    quiet: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stderr)

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
        meter = _Meter(label, total, unit, self.stream)
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


@dataclass(slots=True)
class Tally:
    """What happened to the records of one file, or of a complete import."""

    counts: dict[str, Count] = field(default_factory=lambda: {kind: Count() for kind in RECORD_KINDS})
    notes: dict[str, int] = field(default_factory=dict)
    """Repairs worth knowing about that cost no record, such as text decoded as Latin-1."""

    def keep(self, kind: str, number: int = 1) -> None:
        self.counts[kind].kept += number

    def reject(self, kind: str, reason: str, number: int = 1) -> None:
        """Count records that do not become rows. Reasons are few and fixed: no ids, paths or text in them."""
        if number:
            rejected = self.counts[kind].rejected
            rejected[reason] = rejected.get(reason, 0) + number

    def unkeep(self, kind: str, reason: str, number: int = 1) -> None:
        """Turn kept records into rejected ones, when a later step finds the reason."""
        self.counts[kind].kept -= number
        self.reject(kind, reason, number)

    def note(self, what: str, number: int = 1) -> None:
        if number:
            self.notes[what] = self.notes.get(what, 0) + number

    def add(self, other: Tally) -> None:
        for kind, count in other.counts.items():
            self.keep(kind, count.kept)
            for reason, number in count.rejected.items():
                self.reject(kind, reason, number)
        for what, number in other.notes.items():
            self.note(what, number)

    def as_json(self) -> dict[str, object]:
        records = {
            kind: {"read": c.read, "kept": c.kept, "rejected": dict(sorted(c.rejected.items()))}
            for kind, c in self.counts.items()
        }
        return {"records": records, "notes": dict(sorted(self.notes.items()))}

    @classmethod
    def from_json(cls, data: dict[str, object]) -> Tally:
        tally = cls(notes=dict(data["notes"]))  # type: ignore[call-overload]
        for kind, count in data["records"].items():  # type: ignore[attr-defined]
            tally.counts[kind] = Count(count["kept"], dict(count["rejected"]))
        return tally
