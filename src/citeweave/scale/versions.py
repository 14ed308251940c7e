"""Which code and packages a process has, so that no worker computes with others than the driver.

    versions()                          {"citeweave": "0.1.0 (9f2c04ab)", "python": "3.11.9", "numpy": "2.4.0", ...}
    differences(ours, theirs)           ["numpy is 2.4.0 here and 2.1.0 there"]

The eight digits are a hash of the package's source: two checkouts of one version differ too.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path

import citeweave
from citeweave.version import __version__

PACKAGES = ("numpy", "torch", "tokenizers", "transformers")
"""What decides the bytes of vectors beside our own code."""


def versions() -> dict[str, str]:
    """Of this process; empty where a package is not installed."""
    found = {"citeweave": f"{__version__} ({_source()})", "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What differs, in words; builds of one version for other devices (2.6.0+cpu, 2.6.0+cu126) do not.

    >>> differences({"numpy": "2.4.0", "torch": "2.6.0+cpu"}, {"numpy": "", "torch": "2.6.0+cu126"})
    ['numpy is 2.4.0 here and missing there']
    """
    pairs = [(name, ours[name], theirs.get(name, "")) for name in ours]
    return [
        f"{name} is {here or 'missing'} here and {there or 'missing'} there"
        for name, here, there in pairs
        if here.partition("+")[0] != there.partition("+")[0]
    ]


def _source() -> str:
    folder = Path(citeweave.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]
