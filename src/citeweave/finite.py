"""Whether a value out of somebody's JSON or TOML is a number to compute with.

Whole numbers there may have hundreds of digits, for which `math.isfinite` and `float` raise OverflowError.
"""

from __future__ import annotations

import sys
from typing import TypeGuard

_LARGEST = sys.float_info.max


def is_finite(value: object) -> TypeGuard[int | float]:
    """A number that a float can hold; True and False are none.

    >>> is_finite(3), is_finite(0.5), is_finite(float("nan")), is_finite(10**400), is_finite(True), is_finite("3")
    (True, True, False, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
