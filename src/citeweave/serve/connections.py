"""Connections that must say what they want and hear the answer: one whose client is silent or deaf is closed.

uvicorn waits as long as the client likes: for the first request of a connection, for the rest of any head, for a body that
was refused already, and until an answer has been read. A few hundred such connections would then be all that it can have,
and nobody else would be answered.

    uvicorn.Config(app, http=PromptProtocol)

Bodies, and the work on an answer, are timed by `limits.py`. Needs uvicorn, so it is imported where a server is made.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 10.0
"""Seconds from the connection, or from the first byte of a further request, to the end of the request's head."""


READING = 20.0
"""Seconds that a client may take to read the next 48 KiB or so of an answer."""


class PromptProtocol(H11Protocol):
    """HTTP/1.1 with a limit to the time that a request's head may take, and the reading of an answer."""

    patience = PATIENCE
    reading = READING
    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._was_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.reading, self._drop)

    def resume_writing(self) -> None:
        self._was_read()
        super().resume_writing()

    def _drop(self) -> None:
        """Close at once, and let the system forget what it still wanted to send."""
        own = self.transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _was_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch(self) -> None:
        """Begin to wait for a head, or stop where it is there; a byte now and then does not prolong the wait."""
        if self.conn.their_state is not h11.IDLE and not self._is_answered():
            self._forget()
        elif self._waiting is None and self.timeout_keep_alive_task is None:
            self._waiting = self.loop.call_later(self.patience, self.transport.close)

    def _is_answered(self) -> bool:
        """Whether the rest of the body that still comes is for nobody."""
        return self.conn.their_state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete

    def _forget(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
