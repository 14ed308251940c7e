"""A service on this machine that goes wrong by a schedule: OpenAlex and Semantic Scholar as their clients see them.

    service = FaultService(answer, key, seed, MadeUpTime())     answer(path, query, body) -> status, value
    service.base, service.arrivals, service.waits_asked, service.met

Seconds are made up: they pass where the client waits and where the service is slow, so that a day's patience takes no time and
the pace of arrivals is measured exactly. Only connections that hang cost real time.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

HANGS = 0.6
"""Real seconds of a connection that hangs; clients under test give up sooner."""

SLOW_DOWN = ("429", "429 with seconds", "429 with a date", "429 without end")
TROUBLE = ("500", "502", "503 with seconds", "504", "408")
BODIES = ("cut JSON", "HTML", "HTML 404", "empty", "null", "an error with 200", "cut gzip", "bad gzip")
LENGTHS = ("length too long", "length too short", "length negative", "length of letters", "bad chunks", "cut chunks")
LINES = (
    "closed at once",
    "reset",
    "half a status line",
    "half of the headers",
    "no HTTP",
    "hangs",
    "hangs in the body",
    "dribbles",
)
REDIRECTED = ("elsewhere", "elsewhere without a scheme", "to a broken address", "to no address", "on the same host")
PAGES = ("an older page again", "an older page with the next cursor", "shifted pages")
FAULTS = (*SLOW_DOWN, *TROUBLE, *BODIES, *LENGTHS, *LINES, *REDIRECTED, *PAGES, "budget gone", "echoes the key")


class MadeUpTime:
    """Seconds that pass only where somebody waits."""

    def __init__(self) -> None:
        self.now = 1e6
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@dataclass
class FaultService:
    """Answers as `answer` does, except where a fault is due: with the share `often` of all requests, by the seed."""

    answer: Callable[[str, dict[str, str], Any], tuple[int, Any]]
    key: str
    seed: int
    time: MadeUpTime
    often: float = 0.35
    arrivals: list[float] = field(default_factory=list)
    met: list[str] = field(default_factory=list)
    """The faults that happened, in their order; empty texts where all went well."""

    waits_asked: dict[int, float] = field(default_factory=dict)
    """Number of a request -> seconds that its answer asked to wait."""

    def __post_init__(self) -> None:
        self._random = random.Random(f"faults {self.seed}")
        self._pages: list[Any] = []
        self._failed_in_a_row = 0
        self._lock = threading.Lock()
        self.elsewhere = socket.create_server(("127.0.0.1", 0))
        self.elsewhere.setblocking(False)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.elsewhere.close()

    def was_followed_elsewhere(self) -> bool:
        """Whether anybody came to the place to which some redirections lead."""
        try:
            self.elsewhere.accept()
        except BlockingIOError:
            return False
        return True

    def next_fault(self) -> str:
        """No more than four in a row, so that a client with six tries gets through what passes."""
        if self._failed_in_a_row >= 4 or self._random.random() > self.often:
            self._failed_in_a_row = 0
            return ""
        self._failed_in_a_row += 1
        return self._random.choice(FAULTS)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(_FaultyHandler):
            pass

        Handler.service = service
        return Handler


class _FaultyHandler(BaseHTTPRequestHandler):
    service: FaultService

    def do_GET(self) -> None:
        self._reply(None)

    def do_POST(self) -> None:
        self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, format: str, *arguments: Any) -> None:
        """Tests are silent."""

    def _reply(self, body: Any) -> None:
        service = self.service
        with service._lock:
            service.time.now += service._random.choice([0.0, 0.01, 0.4, 3.0])  # on its way
            service.arrivals.append(service.time())
            address = urlsplit(self.path)
            query = dict(parse_qsl(address.query))
            fault = "" if address.path.startswith("/moved") else service.next_fault()
            service.met.append(fault)
            status, value = service.answer(address.path.removeprefix("/moved"), query, body)
            service.time.now += service._random.choice([0.0, 0.02, 1.5])  # working
        self.close_connection = True
        with contextlib.suppress(OSError):  # the client went away
            self._go_wrong(fault, status, value)

    def _go_wrong(self, fault: str, status: int, value: Any) -> None:
        if fault in SLOW_DOWN or fault in TROUBLE or fault == "budget gone":
            self._refuse(fault)
        elif fault in BODIES:
            self._send_body(fault, value)
        elif fault in LENGTHS:
            self._send_length(fault, json.dumps(value).encode())
        elif fault in LINES:
            self._break_line(fault, json.dumps(value).encode())
        elif fault in REDIRECTED:
            self._redirect(fault)
        elif fault in PAGES:
            self._send_page(fault, status, value)
        elif fault == "echoes the key":
            self._echo()
        else:
            self._send_page("", status, value)

    def _send(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        for name, text in {"Content-Length": str(len(data)), **named}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, fault: str) -> None:
        service, wait = self.service, self.service._random.randint(1, 200)
        told = json.dumps({"message": f"key {service.key} is too fast", "error": self.path}).encode()
        number = len(service.arrivals) - 1
        if fault == "budget gone":
            self._send(429, told, X_RateLimit_Remaining="0", X_RateLimit_Reset=str(wait), Retry_After="1")
        elif fault == "429 without end":
            self._send(429, told, Retry_After="1000000")
        elif fault.endswith("a date"):
            service.waits_asked[number] = wait - 2.0  # whole seconds, and those that pass meanwhile
            self._send(429, told, Retry_After=formatdate(time.time() + wait, usegmt=True))
        elif fault.endswith("seconds"):
            service.waits_asked[number] = float(wait)
            self._send(int(fault[:3]), told, Retry_After=str(wait))
        else:
            self._send(int(fault[:3]), told)

    def _send_body(self, fault: str, value: Any) -> None:
        whole = json.dumps(value).encode()
        cut = self.service._random.randrange(len(whole))
        page = b"<html><title>Sign in</title><body>" + self.path.encode() + b"</body></html>"
        packed = gzip.compress(whole)
        data, headers = {
            "cut JSON": (whole[:cut], {}),
            "HTML": (page, {"Content_Type": "text/html"}),
            "HTML 404": (page, {"Content_Type": "text/html"}),
            "empty": (b"", {}),
            "null": (b"null", {}),
            "an error with 200": (json.dumps({"message": f"wrong key {self.service.key}"}).encode(), {}),
            "cut gzip": (packed[: cut % len(packed)], {"Content_Encoding": "gzip"}),
            "bad gzip": (whole, {"Content_Encoding": "gzip"}),
        }[fault]
        self._send(404 if fault == "HTML 404" else 200, data, **headers)

    def _send_length(self, fault: str, whole: bytes) -> None:
        if fault.endswith("chunks"):
            size = b"zz" if fault == "bad chunks" else b"%x" % (len(whole) + 9)
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            self.wfile.write(head + size + b"\r\n" + whole[:-1])
            return
        length = {"too long": len(whole) + 50, "too short": len(whole) // 2, "negative": -5, "of letters": "many"}
        told = length[fault.removeprefix("length ")]
        is_harmless = fault in ("length negative", "length of letters")
        self._send(200, whole if is_harmless else whole[:-1], Content_Length=str(told))

    def _break_line(self, fault: str, whole: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(whole)}\r\nX-Request: {self.path}\r\n".encode()
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        elif fault == "half a status line":
            self.wfile.write(b"HTTP/1.1 20")
        elif fault == "half of the headers":
            self.wfile.write(head[: self.service._random.randrange(20, len(head))])
        elif fault == "no HTTP":
            self.wfile.write(b"SSH-2.0-OpenSSH_9.9\r\n" + self.path.encode())
        elif fault == "hangs":
            time.sleep(HANGS)
        elif fault == "hangs in the body":
            self.wfile.write(head + b"\r\n" + whole[: len(whole) // 2])
            time.sleep(HANGS)
        elif fault == "dribbles":
            for sign in head[:30]:
                self.wfile.write(bytes([sign]))
                time.sleep(HANGS / 20)

    def _redirect(self, fault: str) -> None:
        elsewhere = f"127.0.0.1:{self.service.elsewhere.getsockname()[1]}/{quote(self.service.key)}"
        location = {
            "elsewhere": f"http://{elsewhere}",
            "elsewhere without a scheme": f"//{self.service.key.replace('/', '')}.example/",
            "to a broken address": "http://[::1",
            "to no address": "",
            "on the same host": f"/moved{self.path}",
        }[fault]
        self._send(self.service._random.choice([301, 302, 307, 308]), b"{}", Location=location)

    def _send_page(self, fault: str, status: int, value: Any) -> None:
        """Pages that repeat or shift; what is no page of a list is sent as it is."""
        pages, key = self.service._pages, "results" if "results" in value else "data"
        if isinstance(value, dict) and isinstance(value.get(key), list) and status == 200:
            before = pages[-1] if pages else None
            is_same_list = before is not None and before[0] == _list_of(self.path)
            if fault == "an older page again" and is_same_list:
                value = before[1]
            elif fault == "an older page with the next cursor" and is_same_list:
                value = {**value, key: before[1][key]}
            elif fault == "shifted pages" and is_same_list:
                value = {**value, key: before[1][key][-3:] + value[key]}
            else:
                pages.append((_list_of(self.path), value))
        self._send(status, json.dumps(value).encode())

    def _echo(self) -> None:
        key = self.service.key
        escaped = "".join(f"\\u{ord(sign):04x}" for sign in key)
        told = f'{{"message": "{escaped}", "error": "{key} {quote(key, safe="")} {self.path}"}}'.encode()
        self._send(self.service._random.choice([500, 429]), told, X_Echo=key)


def _list_of(path: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The list that a path asks for a page of."""
    address = urlsplit(path)
    query = dict(parse_qsl(address.query))
    return address.path, tuple(
        sorted((name, value) for name, value in query.items() if name not in ("cursor", "token"))
    )
