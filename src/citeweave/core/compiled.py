"""Functions that numba compiles when they are first called: importing them loads neither numba nor machine code.

    @compiled()                          as numba.njit(cache=True, nogil=True); further options of njit may be given
    def total(numbers): ...

    total(numbers)                       compiled, or loaded from numba's cache
    total.small(numbers)                 run by Python itself where numba is not loaded yet

Loading numba takes half a second, longer than Python takes for some words or ids. `small` is for calls with so little
work, and gives the same result: floats in compiled code are summed in the order of the source, and integers wrap around
in both. Compiled functions may call each other. What numba must know before it compiles any of them, such as an overload,
is registered by a function under `@before_compiling`.

>>> @compiled(cache=False)
... def total(numbers):
...     result = 0
...     for number in numbers:
...         result += number
...     return result
>>> total.small((1, 2, 3))
6
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
T = TypeVar("T")

_lock = threading.RLock()
_preparations: list[Callable[[], object]] = []
_by_python = threading.local()


class CompiledFunction(Generic[P, T]):
    """A function of arrays and numbers that numba compiles at its first call."""

    def __init__(self, function: Callable[P, T], options: dict[str, Any]) -> None:
        self._function, self._options = function, options
        self._dispatcher: Any = None
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        if getattr(_by_python, "is_on", False):
            return self._function(*args, **kwargs)
        result: T = (self._dispatcher or self.dispatcher)(*args, **kwargs)
        return result

    def small(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function on little data: by Python itself as long as numba is not loaded."""
        if numba_is_loaded():
            return self(*args, **kwargs)
        _by_python.is_on = True
        try:
            with np.errstate(over="ignore"):  # integers wrap around, as they do in compiled code
                return self._function(*args, **kwargs)
        finally:
            _by_python.is_on = False

    @property
    def dispatcher(self) -> Any:
        """The function as numba knows it."""
        with _lock:
            if self._dispatcher is None:
                import numba

                while _preparations:
                    _preparations.pop(0)()
                self._dispatcher = numba.njit(**self._options)(self._function)
            return self._dispatcher

    @property
    def _numba_type_(self) -> Any:
        """The type by which numba compiles a call of this function in another one."""
        return self.dispatcher._numba_type_


def compiled(**options: Any) -> Callable[[Callable[P, T]], CompiledFunction[P, T]]:
    """Return a decorator that has numba compile a function at its first call, with these options of `numba.njit`."""
    return lambda function: CompiledFunction(function, {"cache": True, "nogil": True, **options})


def before_compiling(prepare: Callable[[], object]) -> Callable[[], object]:
    """Register a function that is called once, before the first function is compiled."""
    _preparations.append(prepare)
    return prepare


def numba_is_loaded() -> bool:
    """Return whether numba has been imported, so that compiled functions are fast to call."""
    return "numba" in sys.modules
