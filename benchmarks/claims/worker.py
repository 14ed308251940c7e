"""A process of the study: what it has read, and where it works.

worker = Worker(Machine(Path("study/")), starts=Path("unpacked/"), until=0.0)
worker.bundle("elife")
"""

from __future__ import annotations

import fcntl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.claims.plan import Machine
from benchmarks.table.bundle import Bundle, read_bundle
from benchmarks.table.splitting import provide
from citeweave.core.errors import CiteweaveError


@dataclass
class Worker:
    """A process that trains and evaluates one run after another."""

    machine: Machine
    starts: Path
    """Folder of the unpacked start models."""

    until: float
    bundles: dict[str, Bundle] = field(default_factory=dict)
    tokens: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """Start -> tokens of the suites' texts, which are the same for every system that reads alike."""

    _boundaries: list[Any] = field(default_factory=list)

    def bundle(self, corpus: str) -> Bundle:
        if corpus not in self.bundles:
            self.bundles[corpus] = read_bundle(self.machine.folder / f"{corpus}.bundle")
            if (boundaries := self.bundles[corpus].boundaries) is not None:
                self._boundaries.append(boundaries)
                provide(_EveryBoundary(self._boundaries))  # type: ignore[arg-type]
        return self.bundles[corpus]

    def locked(self, name: str) -> Any:
        """Return an open file whose lock this process has: what is made under it is made once."""
        path = self.starts / f"{name}.lock"
        file = path.open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        return file


@dataclass(frozen=True)
class _EveryBoundary:
    """The recorded sentence ends of all bundles that a process has read."""

    known: list[Any]

    def get_sentence_boundaries(self, language: str, text: str) -> list[dict[str, int]]:
        for number, each in enumerate(self.known, 1):
            try:
                return list(each.get_sentence_boundaries(language, text))
            except CiteweaveError:
                if number == len(self.known):
                    raise
        return []
