"""A real server process over a small index, spoken to through plain sockets.

with served(index, log, "--time-limit", "3") as server:
    server.ask(b"GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n").status
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from citeweave.serve.middleware import CONTENT_POLICY

PATIENCE = 600.0
"""Seconds that a server may take to begin; importing torch on a busy machine takes long."""


@dataclass
class Heard:
    """What came back over a connection: nothing, or an answer."""

    data: bytes

    def __post_init__(self) -> None:
        found = re.match(rb"HTTP/1\.1 (\d{3}) ", self.data)
        self.status = int(found[1]) if found else 0  # 0 where there is no answer
        self.head, _, self.body = self.data.partition(b"\r\n\r\n")
        lines = [line.partition(":") for line in self.head.decode("latin-1").split("\r\n")[1:]]
        self.headers = {name.lower(): value.strip() for name, _, value in lines}

    def json(self) -> Any:
        return json.loads(self.body)

    def check_safe(self) -> None:
        """An answer that is no fault of ours and that no browser takes for a page with scripts of strangers."""
        assert 200 <= self.status < 500, self.data[:300]
        headers = self.headers
        assert headers["content-security-policy"] == CONTENT_POLICY and headers["x-content-type-options"] == "nosniff"
        assert not {"set-cookie", "access-control-allow-origin", "location"} & headers.keys()
        assert b"Traceback" not in self.data and b"root:x:" not in self.data


def get(path: str, *lines: str, method: str = "GET") -> bytes:
    head = (f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *lines)
    return "".join(f"{line}\r\n" for line in (*head, "")).encode("latin-1")


def post(path: str, value: object, *lines: str, kind: str = "application/json") -> bytes:
    body = json.dumps(value).encode() if not isinstance(value, bytes) else value
    return get(path, f"Content-Type: {kind}", *lines, f"Content-Length: {len(body)}", method="POST") + body


def within(text: str) -> str:
    """A text as a part of an address."""
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def ask(self, data: bytes, timeout: float = 60.0) -> Heard:
        return talk(self.port, data, timeout=timeout)

    def check_serves(self) -> None:
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-2000:]
        assert self.ask(get("/health")).json()["status"] == "ok"
        assert self.ask(get("/search?by=words&q=models")).json()["hits"]

    @property
    def resident(self) -> int:
        """Bytes of memory that the server has."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found
        return int(found[1]) << 10


def talk(port: int, data: bytes, *, end: bool = False, timeout: float = 60.0) -> Heard:
    """Send bytes and take what comes until the connection is closed."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as one, contextlib.suppress(OSError):
        with contextlib.suppress(ConnectionError):  # it may hang up before it has heard all
            one.sendall(data)
            if end:
                one.shutdown(socket.SHUT_WR)
        while part := one.recv(65_536):
            found += part
    return Heard(found)


@contextmanager
def served(index: Path, log: Path, *options: str) -> Iterator[Served]:
    """`citeweave serve` in a process of its own, once it reads texts."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "citeweave", "serve", str(index), "--port", str(port), *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
    server = Served(process, port, log)
    try:
        end, begun = time.monotonic() + PATIENCE, False
        while not begun:
            assert process.poll() is None and time.monotonic() < end, log.read_text(errors="replace")[-2000:]
            time.sleep(1)
            with contextlib.suppress(OSError, ValueError):
                begun = server.ask(get("/health"), timeout=5).json()["reads_texts"]
        yield server
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text(errors="replace")[-2000:]
    finally:
        process.kill()
        process.wait()
