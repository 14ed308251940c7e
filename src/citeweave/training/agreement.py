"""Whether several processes are about to train the same thing: versions, data, options, and one folder for all.

    check_agreement(processes, {"corpus": corpus.hash, "training": {"batch": 32}})
    check_shared(processes, Path(".model.citeweave-1f0c2a9b/kept/..."))

Processes on several machines read their own copies of inputs and packages. One that differs would not fail: it would
train something between, or wait for ever. Here it is named, on every process, before anything is made.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from citeweave.errors import UserError
from citeweave.training.processes import Processes
from citeweave.version import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")
"""Packages that decide about tokens, random numbers and gradients."""

SEEN_WITHIN = 30.0
"""Seconds in which a file must appear on all machines; network file systems are a little late."""


def check_agreement(processes: Processes, made_of: Mapping[str, Any]) -> None:
    """Compare what every process was given and runs with; the first difference is told on all of them."""
    if processes.count == 1:
        return
    own = {"host": socket.gethostname(), "versions": _versions(), "given": _flat(made_of)}
    told = processes.tell(own)
    first = told[0]
    for rank, other in enumerate(told):
        for kind in ("versions", "given"):
            left, right = first[kind], other[kind]
            for name in [name for name in {**left, **right} if left.get(name) != right.get(name)]:
                who = f"process {rank} ({other['host']}) has {name} {right.get(name, 'absent')}"
                raise UserError(
                    f"{who}, and process 0 ({first['host']}) {left.get(name, 'absent')}; "
                    + (
                        "install the same on all machines"
                        if kind == "versions"
                        else "give all processes the same command and the same files"
                    )
                )


def check_shared(processes: Processes, folder: Path) -> None:
    """Refuse an output that only some of the processes see: checkpoints must be one for all."""
    if processes.count == 1:
        return
    mark = folder / "met"
    word = secrets.token_hex(8) if processes.is_first else ""
    if processes.is_first:
        mark.write_text(word, encoding="utf-8")
    word = processes.tell(word)[0]
    seen = [[sees, host] for sees, host in processes.tell([_appears(mark, word), socket.gethostname()])]
    for rank, (sees, host) in enumerate(seen):
        if not sees:
            raise UserError(
                f"process {rank} ({host}) does not see {folder}, which process 0 ({seen[0][1]}) has made; -o must lie on a "
                "file system that all machines share"
            )


def _appears(mark: Path, word: str) -> bool:
    end = time.monotonic() + SEEN_WITHIN
    while True:
        try:
            if mark.read_text(encoding="utf-8") == word:
                return True
        except OSError:
            pass
        if time.monotonic() > end:
            return False
        time.sleep(0.2)


def _versions() -> dict[str, str]:
    return {"citeweave": __version__, **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """
    >>> _flat({"corpus": "3fa", "training": {"batch": 8, "losses": {"triplet": {}}}})
    {'corpus': '3fa', 'training.batch': 8, 'training.losses.triplet': '{}'}
    """
    if not isinstance(value, Mapping) or not value:
        return {path: value if isinstance(value, int | float | str | bool) else str(value)}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _flat(inner, f"{path}.{key}" if path else str(key))
    return found
