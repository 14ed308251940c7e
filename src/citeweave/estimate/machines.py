"""Machines that estimates are for: cores, memory, graphics cards.

    >>> machine_of("8xh200").gpus, machine_of("cpu:16").cores
    (8, 16)
    >>> machine_of("latop")
    Traceback (most recent call last):
    citeweave.errors.UserError: --machine is 'latop'; it must be one of 8xh200, cpu:16, h200, here, laptop, server. Did you mean 'laptop'?

A core counts as one of the machine that the constants were measured on: many are up to twice as fast. Looks at no
network and runs nothing; `here` counts the cores, the memory and the NVIDIA cards of this machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from citeweave.errors import UserError, choose
from citeweave.machine import cores, memory

GIB = 2**30
HERE = "here"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A graphics card."""

    peak: float
    """Operations a second in bfloat16, dense, by its maker."""

    memory: float
    """Bytes."""


GPUS = {
    "h200": Gpu(989e12, 141e9),
    "h100": Gpu(989e12, 80e9),
    "a100": Gpu(312e12, 80e9),
    "l40s": Gpu(362e12, 48e9),
    "rtx4090": Gpu(165e12, 24e9),
    "l4": Gpu(121e12, 24e9),
}
"""Measured is the H200 alone; others are taken to be slower in proportion to the makers' peaks."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a recipe would be run on."""

    name: str
    cores: int
    memory: float
    """Bytes."""

    gpus: int = 0
    gpu: str = ""

    def __post_init__(self) -> None:
        if self.cores < 1 or self.memory <= 0 or self.gpus < 0:
            raise UserError(
                f"a machine has at least 1 core, some memory and 0 or more GPUs; asked for are {self.cores} cores, "
                f"{self.memory:,.0f} bytes and {self.gpus} GPUs"
            )
        if self.gpus:
            choose(self.gpu, GPUS, "--gpu")

    @property
    def bandwidth(self) -> float:
        """Bytes a second that gathers of rows may move: by core, up to what a socket with many channels has."""
        return min(10e9 * self.cores, 250e9)

    @property
    def gpu_speed(self) -> float:
        """All its cards together, in H200s; 0 without any."""
        return self.gpus * GPUS[self.gpu].peak / GPUS["h200"].peak if self.gpus else 0.0

    def __str__(self) -> str:
        cards = f", {self.gpus} x {self.gpu}" if self.gpus else ", no GPU"
        return f"{self.name}: {self.cores} cores, {self.memory / GIB:,.0f} GB{cards}"


MACHINES = {
    "laptop": Machine("laptop", 8, 16 * GIB),
    "server": Machine("server", 32, 256 * GIB),
    "cpu:16": Machine("cpu:16", 16, 64 * GIB),
    "h200": Machine("h200", 16, 128 * GIB, 1, "h200"),
    "8xh200": Machine("8xh200", 128, 1024 * GIB, 8, "h200"),
}
"""Machines with a name; `cpu:N` has any number of cores, `NxGPU` any number of known cards."""


def machine_of(
    name: str, *, cores: int | None = None, memory: float | None = None, gpu: str = "", gpus: int | None = None
) -> Machine:
    """A machine by its name, parts of it replaced.

    >>> machine_of("laptop", gpu="rtx4090").gpus, machine_of("8xh200", gpus=2).cores
    (1, 128)
    """
    found = _named(name)
    if cores is not None:
        found = replace(found, cores=cores)
    if memory is not None:
        found = replace(found, memory=memory)
    if gpu or gpus is not None:
        if gpu:
            choose(gpu, GPUS, "--gpu")
        found = replace(found, gpus=(found.gpus or 1) if gpus is None else gpus, gpu=gpu or found.gpu or "h200")
    changed = cores is not None or memory is not None or gpu or gpus is not None
    return replace(found, name=f"{found.name}, changed") if changed and name != HERE else found


def _named(name: str) -> Machine:
    if name == HERE:
        return here()
    if name in MACHINES:
        return MACHINES[name]
    if found := re.fullmatch(r"cpu:([1-9]\d{0,4})", name):
        return Machine(name, int(found[1]), int(found[1]) * 4 * GIB)
    found = re.fullmatch(r"(?:([1-9]\d{0,3})x)?(\w+)", name)
    if found and found[2] in GPUS:
        gpus = int(found[1] or 1)
        return Machine(name, 16 * gpus, 128 * GIB * gpus, gpus, found[2])
    choose(name, [HERE, *MACHINES], "--machine")
    raise AssertionError(name)


def here() -> Machine:
    """This machine; its cards are taken for H200s, as which kind they are is not looked up."""
    cards = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return Machine(HERE, cores(), float(memory() or 16 * GIB), cards, "h200" if cards else "")
