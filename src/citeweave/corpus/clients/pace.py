"""When a service may be asked again: one pace for all clients of this process that ask the same address.

    with pace_of("https://api.openalex.org", time.monotonic) as pace:      nobody else asks meanwhile
        time.sleep(pace.wait())
        ...                                                                one request
        pace.rest(0.1)                                                     the next one in a tenth of a second

Does not know of other processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

Clock = Callable[[], float]

_PACES: dict[tuple[str, Clock], Pace] = {}
_LOCK = threading.Lock()


class Pace:
    """The turn of one asker at a time, and how long it must still wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._turn, self._next = clock, threading.Lock(), clock()

    def wait(self) -> float:
        """Seconds before the next request may go."""
        return max(0.0, self._next - self._clock())

    def rest(self, seconds: float) -> None:
        """No request for so long from now on."""
        self._next = self._clock() + seconds

    def __enter__(self) -> Pace:
        self._turn.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turn.release()


def pace_of(address: str, clock: Clock) -> Pace:
    """The pace of whoever asks an address by a clock."""
    with _LOCK:
        return _PACES.setdefault((address, clock), Pace(clock))
