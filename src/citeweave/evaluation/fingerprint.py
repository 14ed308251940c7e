"""A hash of a task's content: the same question, the same hash, wherever its files lie.

>>> fingerprint({"a": np.arange(3)}) == fingerprint({"a": np.arange(3)}), fingerprint([1]) == fingerprint([1.5])
(True, False)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from citeweave.evaluation.texts import Texts


def fingerprint(value: object) -> str:
    """SHA-256 over the value's parts; dataclasses by their fields, arrays by type, shape and bytes."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: object) -> None:
    if isinstance(value, Texts):
        digest.update(value.hash.encode())
    elif isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype} {value.shape}".encode())
        if value.dtype == object:
            _feed(digest, value.tolist())
        else:
            digest.update(np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value) and not isinstance(value, type):
        digest.update(type(value).__name__.encode())
        for field in fields(value):
            _feed(digest, getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key in value:
            digest.update(f"key {key!r}".encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"list {len(value)}".encode())
        for part in value:
            _feed(digest, part)
    elif isinstance(value, (set, frozenset)):
        _feed(digest, sorted(value, key=repr))
    elif value is None or isinstance(value, (str, int, float, bool, np.generic)):
        digest.update(f"{type(value).__name__} {value!r}".encode())
    else:
        raise TypeError(f"a task holds a {type(value).__name__}, which has no fingerprint")
