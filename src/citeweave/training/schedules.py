"""Learning rates over the steps, as shares of the highest one.

    >>> [round(factor("linear", step, 10, warmup=2), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]

Every schedule warms up in a straight line; they differ in what follows.
"""

from __future__ import annotations

import math

_RATIO = 32
"""How much smaller the slanted triangle's lowest rate is than its highest (Howard and Ruder 2018)."""


def warmup_steps(warmup: float, steps: int) -> int:
    """A share of the steps, or a number of them.

    >>> warmup_steps(0.1, 500), warmup_steps(100, 500), warmup_steps(1, 500)
    (50, 100, 1)
    """
    return min(steps, round(warmup * steps) if warmup < 1 else round(warmup))


def factor(schedule: str, step: int, steps: int, *, warmup: int) -> float:
    """The share of the highest rate that a step uses; steps count from 0."""
    if schedule == "slanted":
        return slanted_triangle(step, steps, warmup)
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 1 - done if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def slanted_triangle(step: int, steps: int, cut: int) -> float:
    """Straight up to the cut, straight down behind it, never below 1/32 (Howard and Ruder 2018, ULMFiT, equation 3).

    >>> [round(slanted_triangle(step, 11, 1), 4) for step in (0, 1, 6, 11)]
    [0.0312, 1.0, 0.5156, 0.0312]
    """
    part = step / cut if step < cut else 1 - (step - cut) / max(1, steps - cut)
    return (1 + part * (_RATIO - 1)) / _RATIO
