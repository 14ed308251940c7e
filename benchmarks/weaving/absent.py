"""Import the library on a machine that has numpy, scipy and torch, but not the packages that read files.

`citeweave.opening` imports orjson and isal at its head, `citeweave.similarity.vector_files` pyarrow, and judging vectors
imports both modules. Runs from a bundle read no such file, so that a name without contents is enough.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import MutableSequence
from typing import Any

READERS = ("orjson", "isal", "pyarrow")


class _Nothing(type):
    """A class whose every attribute is such a class again, so that annotations and bases can be written."""

    def __getattr__(cls, name: str) -> Any:
        return _nothing(name)


class _Absent(types.ModuleType):
    __path__: MutableSequence[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        return _nothing(name)


class _Finder:
    """The last of all finders: asked only for what is not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in READERS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _nothing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Nothing(name, (Exception,), {})


def do_without_readers() -> None:
    """From now on the packages of `READERS` can be imported; those that are installed are the real ones."""
    sys.meta_path.append(_Finder())
