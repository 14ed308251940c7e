"""Random streams fixed by a seed and a purpose.

A stream depends on what it is for, never on who draws from it or when:

    >>> float(stream(7, "mining", 12).random()) == float(stream(7, "mining", 12).random())
    True
    >>> float(stream(7, "mining", 12).random()) == float(stream(7, "mining", 13).random())
    False
"""

from __future__ import annotations

import hashlib
import json

import numpy as np


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a random generator for this seed and purpose, the same under any number of workers."""
    text = json.dumps([seed, *purpose], ensure_ascii=True)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
