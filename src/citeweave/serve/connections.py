"""Connections that must say what they want: one whose request does not come is closed.

uvicorn waits for the first request of a connection, and for the rest of any head, as long as the client likes. A few
hundred silent connections would then be all that it can have, and nobody else would be answered.

    uvicorn.Config(app, http=PromptProtocol)

Bodies and answers are timed by `limits.py`. Needs uvicorn, so it is imported where a server is made.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 10.0
"""Seconds from the connection, or from the first byte of a further request, to the end of the request's head."""


class PromptProtocol(H11Protocol):
    """HTTP/1.1 with a limit to the time that a request's head may take."""

    patience = PATIENCE
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Begin to wait for a head, or stop where it is there; a byte now and then does not prolong the wait."""
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._waiting is None and self.timeout_keep_alive_task is None:
            self._waiting = self.loop.call_later(self.patience, self.transport.close)

    def _forget(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
