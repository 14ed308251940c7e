"""One exchange with an address, cut off when its time is up.

    with open_address(urllib.request.Request("https://api.openalex.org/works"), timeout=30, deadline=180) as answer:
        answer.status, answer.read()

`timeout` bounds every wait for a byte, `deadline` the whole exchange: a service that sends a byte now and then, of its headers
or of its answer, holds us no longer than that. Opens http and https alone, through a proxy of the environment; redirections
and statuses are the caller's. Does not wait, repeat or read: see `http.py`.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def open_address(request: urllib.request.Request, *, timeout: float, deadline: float) -> Iterator[Any]:
    """The answer to a request, its headers read; a `TimeoutError` where all of it took longer than the deadline."""
    cutter = _Cutter()
    timer = threading.Timer(deadline, cutter.cut)
    timer.daemon = True
    timer.start()
    try:
        with _opener(cutter).open(request, timeout=timeout) as answer:
            yield answer
    except (OSError, http.client.HTTPException):
        if not cutter.is_late:
            raise
    finally:
        timer.cancel()
    if cutter.is_late:
        raise TimeoutError(0, f"it took longer than {deadline:.0f} s")


class _Cutter:
    """Ends the connections of one exchange."""

    def __init__(self) -> None:
        self.is_late = False
        self._sockets: list[socket.socket] = []

    def watch(self, connected: socket.socket) -> None:
        self._sockets.append(connected)
        if self.is_late:
            self.cut()

    def cut(self) -> None:
        self.is_late = True
        for one in self._sockets:
            with contextlib.suppress(OSError):
                # below TLS, whose own shutdown must not happen while another thread reads
                socket.socket.shutdown(one, socket.SHUT_RDWR)


def _opener(cutter: _Cutter) -> urllib.request.OpenerDirector:
    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            cutter.watch(self.sock)

    class Secure(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            cutter.watch(self.sock)

    class PlainHandler(urllib.request.HTTPHandler):
        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, request)

    class SecureHandler(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Secure, request)

    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(), PlainHandler(), SecureHandler()):
        opener.add_handler(handler)
    return opener
