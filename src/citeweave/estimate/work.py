"""One stage's work, told by sizes alone, and what it comes to on a machine.

    >>> from citeweave.estimate.machines import machine_of
    >>> work = Work("graph", "10 citations", cpu=8.0, parallel=0.5)
    >>> work.seconds(machine_of("cpu:1")), work.seconds(machine_of("cpu:4"))
    (8.0, 5.0)

Knows no recipe. The part that only one core can do does not become faster by more cores (Amdahl, 1967).
"""

from __future__ import annotations

from dataclasses import dataclass

from citeweave.estimate.machines import GPUS, Machine


@dataclass(frozen=True, slots=True)
class Work:
    """What a stage does."""

    name: str
    size: str
    """What it is made of, in words."""

    cpu: float = 0.0
    """Seconds of one core."""

    parallel: float = 1.0
    """Share of these that several cores can do at once."""

    moved: float = 0.0
    """Bytes gathered here and there from memory, which no number of cores makes faster than the memory is."""

    on_gpu: float | None = None
    """Seconds of one H200 in place of the cores; None = it runs on cores only."""

    gpus: int = 0
    """At most so many cards at once; 0 = any number."""

    memory: float = 0.0
    """Bytes resident at the peak, with the pages of mapped files that are read again and again."""

    gpu_memory: float = 0.0
    disk: float = 0.0
    """Bytes that stay when it is done."""

    constants: tuple[str, ...] = ()
    """Names of the constants that the figures come from."""

    fits_by: str = ""
    """What makes it fit where memory is short."""

    def seconds(self, machine: Machine) -> float:
        """By the clock."""
        if self.on_gpu is not None and machine.gpus:
            used = min(machine.gpus, self.gpus or machine.gpus)
            return self.on_gpu / (machine.gpu_speed * used / machine.gpus)
        cores = self.cpu * (1 - self.parallel + self.parallel / machine.cores)
        return max(cores, self.moved / machine.bandwidth)

    def lacks(self, machine: Machine) -> str:
        """What does not fit, in words; empty where all does."""
        found = []
        if self.memory > machine.memory:
            found.append(f"{as_bytes(self.memory)} of memory, and the machine has {as_bytes(machine.memory)}")
        if machine.gpus and self.on_gpu is not None and self.gpu_memory > GPUS[machine.gpu].memory:
            found.append(
                f"{as_bytes(self.gpu_memory)} of GPU memory, and a {machine.gpu} has "
                f"{as_bytes(GPUS[machine.gpu].memory)}"
            )
        return "; ".join(found)


def as_bytes(number: float) -> str:
    """
    >>> as_bytes(3e6), as_bytes(24 * 2**30), as_bytes(3.3e12)
    ('3 MB', '24 GB', '3 TB')
    """
    for unit, size in (("TB", 2**40), ("GB", 2**30)):
        if number >= size:
            return f"{number / size:.2g} {unit}" if number < 9.95 * size else f"{number / size:,.0f} {unit}"
    return f"{max(1, number / 2**20):,.0f} MB" if number else "0"


def as_time(seconds: float) -> str:
    """
    >>> as_time(0.4), as_time(42), as_time(400), as_time(9000), as_time(400_000)
    ('under 1 s', '42 s', '6.67 min', '2.5 h', '4.6 days')
    """
    if seconds < 1:
        return "under 1 s"
    for unit, size, until in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{seconds / size:.0f} {unit}" if unit == "s" else f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:,.1f} days"
