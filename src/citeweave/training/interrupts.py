"""Ctrl-C that waits for a good moment: a step of training is finished and saved before the run ends.

    with held_interrupts() as interrupt:
        while ...:
            step()
            if interrupt.is_waiting:
                save()
                interrupt.end()         as Ctrl-C would have ended it at once

The second Ctrl-C does not wait. Other threads than the main one, and processes that ignore Ctrl-C, are left as they are.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass
class Interrupt:
    """Whether the user has asked for the end."""

    before: Any
    """What Ctrl-C does without us."""

    is_waiting: bool = False

    def end(self) -> None:
        """Do what was put off."""
        self.before(signal.SIGINT, None)

    def hold(self, number: int, frame: FrameType | None) -> None:
        if self.is_waiting:
            self.before(number, frame)
        self.is_waiting = True


@contextmanager
def held_interrupts() -> Iterator[Interrupt]:
    """Put off the first Ctrl-C inside."""
    held = Interrupt(signal.getsignal(signal.SIGINT))
    if threading.current_thread() is not threading.main_thread() or not callable(held.before):
        yield held
        return
    signal.signal(signal.SIGINT, held.hold)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, held.before)
