"""A service on this machine whose answers a test writes byte by byte, and a record of everybody that is contacted.

service = RedirectingService()
service.reply = lambda path: b"HTTP/1.1 302 Found\\r\\nLocation: http://127.0.0.1:1/\\r\\n\\r\\n"
with contacts() as contacted:          a contact with any other address is recorded and prevented
    client.fetch(...)
contacted == {("127.0.0.1", service.port)}
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_recording: list[tuple[set[tuple[str, int]], set[int]]] = []
"""The record of the block that is running, and the ports of this machine that it may contact."""


def answer_of(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)


def redirection(status: int, location: bytes) -> bytes:
    head = b"HTTP/1.1 %d Moved\r\nLocation: %b\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    return head % (status, location)


@dataclass(frozen=True)
class Received:
    """One request as the service received it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class RedirectingService:
    """Answers with the bytes that `reply` makes of the target of a request."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.reply: Callable[[str], bytes] = lambda target: answer_of({})
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                headers = {name.lower(): value for name, value in self.headers.items()}
                service.received.append(Received(self.command, self.path, headers, body))
                self.close_connection = True
                with contextlib.suppress(OSError):  # the client may have left
                    self.wfile.write(service.reply(self.path))

            do_POST = do_GET

            def log_message(self, format: str, *arguments: Any) -> None:
                """Tests are silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.base = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def contacts(*allowed: int) -> Iterator[set[tuple[str, int]]]:
    """Everybody whom this process looks up or connects to; only these ports of this machine are really contacted."""
    if _watch not in _installed:
        _installed.append(_watch)
        sys.addaudithook(_watch)
    contacted = set[tuple[str, int]]()
    _recording.append((contacted, set(allowed)))
    try:
        yield contacted
    finally:
        _recording.pop()


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _recording or event not in ("socket.connect", "socket.getaddrinfo"):
        return
    host, port = arguments[1][:2] if event == "socket.connect" else arguments[:2]
    contacted, allowed = _recording[-1]
    contacted.add((host.decode("latin-1") if isinstance(host, bytes) else str(host), int(port)))
    if host not in ("127.0.0.1", b"127.0.0.1") or int(port) not in allowed:
        raise ConnectionRefusedError(f"a test prevents contact with {host}")


_installed: list[Callable[..., None]] = []
"""A hook stays for as long as the process does."""
