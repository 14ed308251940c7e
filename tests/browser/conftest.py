"""A server of the explorer that tests can stop and start again."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Site:
    """A server that can be stopped and started again at the same address."""

    app: Any
    port: int = 0
    _server: Any = field(default=None, repr=False)
    _thread: Any = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> Site:
        from citeweave.serve.options import ServeOptions
        from citeweave.serve.running import server_of

        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        self._server = server_of(self.app(), "127.0.0.1", self.port, ServeOptions())
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)


@pytest.fixture(scope="session")
def site_of() -> type[Site]:
    """Makes a site of a function that makes its application."""
    return Site
