"""Accounting for every record: in = kept + rejected, by reason.

>>> tally = Tally()
>>> tally.keep("papers", 3)
>>> tally.reject("papers", "no id")
>>> tally.counts["papers"].read, tally.counts["papers"].kept, tally.counts["papers"].rejected
(4, 3, {'no id': 1})
"""

from __future__ import annotations

from dataclasses import dataclass, field

KINDS = ("papers", "citations", "contexts")


@dataclass(slots=True)
class Count:
    """How many records of one kind were kept, and how many rejected for which reason."""

    kept: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    @property
    def read(self) -> int:
        return self.kept + sum(self.rejected.values())


@dataclass(slots=True)
class Tally:
    """What happened to the records of one file, or of a whole import."""

    counts: dict[str, Count] = field(default_factory=lambda: {kind: Count() for kind in KINDS})
    notes: dict[str, int] = field(default_factory=dict)
    """Repairs worth knowing of that cost no record, such as text decoded as Latin-1."""

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
