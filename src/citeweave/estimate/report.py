"""The estimate of a recipe: its stages on one machine, in all, and what does not fit; as text and as plain data.

    print(Estimate("scincl", machine, "52,000,000 papers", works))
    Estimate(...).as_json()["total"]["seconds"]

Computes sums alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from citeweave.estimate.constants import CONSTANTS
from citeweave.estimate.machines import Machine
from citeweave.estimate.work import Work, as_bytes, as_time

WITHIN = 2
"""Stages that were run at small sizes were foretold within this factor; see docs/estimate.md."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a recipe would take."""

    recipe: str
    machine: Machine
    size: str
    stages: Sequence[Work]

    @property
    def seconds(self) -> float:
        return sum(stage.seconds(self.machine) for stage in self.stages)

    @property
    def memory(self) -> float:
        return max(stage.memory for stage in self.stages)

    @property
    def disk(self) -> float:
        return sum(stage.disk for stage in self.stages)

    @property
    def warnings(self) -> list[str]:
        """A line for every stage that does not fit."""
        lines = []
        for stage in self.stages:
            if lacking := stage.lacks(self.machine):
                way = f": {stage.fits_by}" if stage.fits_by else ""
                lines.append(f"{stage.name} needs {lacking}{way}")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Seconds, bytes and sources."""
        stages = [
            {
                "name": stage.name,
                "size": stage.size,
                "seconds": stage.seconds(self.machine),
                "cpu_seconds": 0.0 if self._on_gpu(stage) else stage.cpu,
                "memory": stage.memory,
                "gpu_memory": stage.gpu_memory if self._on_gpu(stage) else 0.0,
                "disk": stage.disk,
                "constants": list(stage.constants),
            }
            for stage in self.stages
        ]
        total = {"seconds": self.seconds, "memory": self.memory, "disk": self.disk}
        names = self._constants()
        return {
            "recipe": self.recipe,
            "machine": asdict(self.machine),
            "stages": stages,
            "total": total,
            "warnings": self.warnings,
            "constants": {name: asdict(CONSTANTS[name]) for name in names},
        }

    def __str__(self) -> str:
        return self.text()

    def text(self, *, constants: bool = True) -> str:
        """A table, what does not fit, and where the figures come from."""
        rows = [("stage", "time", "memory", "disk", "of")]
        for stage in self.stages:
            where = " (GPU)" if self._on_gpu(stage) else ""
            rows.append(
                (
                    stage.name + where,
                    as_time(stage.seconds(self.machine)),
                    as_bytes(stage.memory),
                    as_bytes(stage.disk),
                    stage.size,
                )
            )
        rows.append(("in all", as_time(self.seconds), as_bytes(self.memory), as_bytes(self.disk), ""))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [f"{self.recipe} of {self.size}, on {self.machine}"]
        for row in rows:
            cells = [f"{row[0]:<{widths[0]}}", *(f"{row[at]:>{widths[at]}}" for at in (1, 2, 3)), row[4]]
            lines.append("  ".join(cells).rstrip())
        lines += [f"does not fit: {line}" for line in self.warnings]
        if constants:
            lines += ["from:", *(f"  {name}: {CONSTANTS[name]}" for name in self._constants())]
        return "\n".join(lines)

    def _on_gpu(self, stage: Work) -> bool:
        return stage.on_gpu is not None and self.machine.gpus > 0

    def _constants(self) -> list[str]:
        """Those that the figures shown come from, each once, in the order of the stages."""
        names: dict[str, None] = {}
        for stage in self.stages:
            names |= dict.fromkeys(name for name in stage.constants if (".gpu" in name) <= self._on_gpu(stage))
        return list(names)
