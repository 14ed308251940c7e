"""Services on this machine as their clients see them: literature, a server that goes wrong, one whose bytes a test writes.

    answer = openalex_answer(papers)                             answer("/works", {"search": "moths", "cursor": "*"}, None)
    service = FaultService(answer, key, seed, MadeUpTime())      goes wrong by a schedule
    service = RedirectingService()                               service.reply = lambda target: b"HTTP/1.1 302 Found..."
    with contacts(service.port) as contacted:                    any other contact is recorded and prevented

Seconds are made up: they pass where the client waits and where the service is slow, so that a day's patience takes no time
and the pace of arrivals is measured exactly. Only connections that hang cost real time.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit


class SilentHandler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Tests are silent."""


class LocalServer:
    """A server on a port of its own, in a thread."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.base = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


# --- literature ------------------------------------------------------------------------------------------

PAGE = 17

Answer = Callable[[str, dict[str, str], Any], tuple[int, Any]]


@dataclass(frozen=True)
class MadeUpPaper:
    """One paper; those with a number divisible by three cite the first."""

    number: int

    @property
    def doi(self) -> str:
        return f"10.1000/paper.{self.number}"

    @property
    def title(self) -> str:
        return f"On the {self.number}th way of counting what is lost"

    @property
    def openalex(self) -> str:
        return f"https://openalex.org/W{self.number}"

    @property
    def sha(self) -> str:
        return f"{self.number:040x}"

    @property
    def is_citing(self) -> bool:
        return self.number % 3 == 0

    def as_work(self) -> dict[str, Any]:
        told = {"id": self.openalex, "doi": f"https://doi.org/{self.doi}", "title": self.title, "locations": []}
        told |= {"publication_year": 2000 + self.number % 20, "ids": {"openalex": self.openalex}}
        told["abstract_inverted_index"] = {"Counted": [0], "twice.": [1]}
        return {**told, "referenced_works": ["https://openalex.org/W1"] if self.is_citing else []}

    def as_paper(self) -> dict[str, Any]:
        told = {"paperId": self.sha, "corpusId": self.number, "externalIds": {"DOI": self.doi}, "title": self.title}
        told |= {"year": 2000 + self.number % 20, "abstract": "Counted twice."}
        return {**told, "references": [{"paperId": f"{1:040x}", "title": "On the 1th way"}] if self.is_citing else []}


def openalex_answer(papers: list[MadeUpPaper]) -> Answer:
    def chosen(query: dict[str, str]) -> list[MadeUpPaper]:
        kind, _, value = query.get("filter", "").partition(":")
        wanted = set(value.split("|"))
        if kind == "doi":
            return [one for one in papers if one.doi in wanted]
        if kind == "title.search":
            return [one for one in papers if one.title.lower() == value]
        if kind == "cites":
            return [one for one in papers if one.is_citing and "W1" in wanted]
        return papers

    def answer(path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        found, start = chosen(query), 0 if query["cursor"] == "*" else int(query["cursor"])
        following = str(start + PAGE) if start < len(found) else None  # one comes even after the last page
        meta = {"count": len(found), "next_cursor": following}
        return 200, {"meta": meta, "results": [one.as_work() for one in found[start : start + PAGE]]}

    return answer


def semantic_scholar_answer(papers: list[MadeUpPaper]) -> Answer:
    by_name = {one.sha: one for one in papers} | {f"DOI:{one.doi}": one for one in papers}

    def answer(path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if path == "/paper/batch":
            return 200, [by_name[name].as_paper() if name in by_name else None for name in body["ids"]]
        if path == "/paper/search/match":
            found = [one.as_paper() for one in papers if one.title == query["query"]]
            return (200, {"data": found}) if found else (404, {"error": "Title match not found"})
        if path.endswith("/citations"):
            citing = [one.as_paper() for one in papers if one.is_citing and path == f"/paper/{1:040x}/citations"]
            entries = [{"contexts": [], "intents": [], "citingPaper": one} for one in citing]
            return 200, {"offset": 0, "data": entries[: int(query["limit"])]}
        start = int(query.get("token", "0"))
        token = str(start + PAGE) if start + PAGE < len(papers) else None
        page = [{**one.as_paper(), "references": None} for one in papers[start : start + PAGE]]
        return 200, {"total": len(papers), "token": token, "data": page}

    return answer


# --- a service that goes wrong ---------------------------------------------------------------------------

HANGS = 0.6
"""Real seconds of a connection that hangs; clients under test give up sooner."""

SLOW_DOWN = ("429", "429 with seconds", "429 with a date", "429 without end")
TROUBLE = ("500", "502", "503 with seconds", "504", "408")
BODIES = ("cut JSON", "HTML", "HTML 404", "empty", "null", "an error with 200", "cut gzip", "bad gzip")
LENGTHS = ("length too long", "length too short", "length negative", "length of letters", "bad chunks", "cut chunks")
LINES = ("closed at once", "reset", "half a status line", "half of the headers", "no HTTP", "hangs", "hangs in the body", "dribbles")  # fmt: skip
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


class FaultService(LocalServer):
    """Answers as `answer` does, except where a fault is due: with the share `often` of all requests, by the seed."""

    often = 0.35

    def __init__(self, answer: Answer, key: str, seed: int, time: MadeUpTime) -> None:
        self.answer, self.key, self.time = answer, key, time
        self.arrivals: list[float] = []
        self.met: list[str] = []  # faults in their order; empty texts where all went well
        self.waits_asked: dict[int, float] = {}  # number of a request -> seconds that its answer asked to wait
        self.random = random.Random(f"faults {seed}")
        self.pages: list[Any] = []
        self._failed_in_a_row, self.lock = 0, threading.Lock()
        self.elsewhere = socket.create_server(("127.0.0.1", 0))
        self.elsewhere.setblocking(False)
        super().__init__(type("Handler", (_FaultyHandler,), {"service": self}))

    def close(self) -> None:
        super().close()
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
        if self._failed_in_a_row >= 4 or self.random.random() > self.often:
            self._failed_in_a_row = 0
            return ""
        self._failed_in_a_row += 1
        return self.random.choice(FAULTS)


class _FaultyHandler(SilentHandler):
    service: FaultService

    def do_GET(self) -> None:
        self._reply(None)

    def do_POST(self) -> None:
        self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _reply(self, body: Any) -> None:
        service = self.service
        with service.lock:
            service.time.now += service.random.choice([0.0, 0.01, 0.4, 3.0])  # on its way
            service.arrivals.append(service.time())
            address = urlsplit(self.path)
            query = dict(parse_qsl(address.query))
            fault = "" if address.path.startswith("/moved") else service.next_fault()
            service.met.append(fault)
            status, value = service.answer(address.path.removeprefix("/moved"), query, body)
            service.time.now += service.random.choice([0.0, 0.02, 1.5])  # working
        self.close_connection = True
        with contextlib.suppress(OSError):  # the client went away
            self._go_wrong(fault, status, value)

    def _go_wrong(self, fault: str, status: int, value: Any) -> None:
        whole = json.dumps(value).encode()
        if fault in (*SLOW_DOWN, *TROUBLE, "budget gone"):
            self._refuse(fault)
        elif fault in BODIES:
            self._send_body(fault, whole)
        elif fault in LENGTHS:
            self._send_length(fault, whole)
        elif fault in LINES:
            self._break_line(fault, whole)
        elif fault in REDIRECTED:
            self._redirect(fault)
        elif fault == "echoes the key":
            self._echo()
        else:
            self._send_page(fault, status, value)

    def _send(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        for name, text in {"Content-Length": str(len(data)), **named}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, fault: str) -> None:
        service, wait = self.service, self.service.random.randint(1, 200)
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

    def _send_body(self, fault: str, whole: bytes) -> None:
        cut = self.service.random.randrange(len(whole))
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
            self.wfile.write(head[: self.service.random.randrange(20, len(head))])
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
        self._send(self.service.random.choice([301, 302, 307, 308]), b"{}", Location=location)

    def _send_page(self, fault: str, status: int, value: Any) -> None:
        """Pages that repeat or shift; what is no page of a list is sent as it is."""
        pages, key = self.service.pages, "results" if "results" in value else "data"
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
        self._send(self.service.random.choice([500, 429]), told, X_Echo=key)


def _list_of(path: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The list that a path asks for a page of."""
    address = urlsplit(path)
    query = dict(parse_qsl(address.query))
    return address.path, tuple(sorted(item for item in query.items() if item[0] not in ("cursor", "token")))


# --- a service whose bytes a test writes -----------------------------------------------------------------

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


class RedirectingService(LocalServer):
    """Answers with the bytes that `reply` makes of the target of a request."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.reply: Callable[[str], bytes] = lambda target: answer_of({})
        service = self

        class Handler(SilentHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                headers = {name.lower(): value for name, value in self.headers.items()}
                service.received.append(Received(self.command, self.path, headers, body))
                self.close_connection = True
                with contextlib.suppress(OSError):  # the client may have left
                    self.wfile.write(service.reply(self.path))

            do_POST = do_GET

        super().__init__(Handler)


@contextlib.contextmanager
def contacts(*allowed: int) -> Iterator[set[tuple[str, int]]]:
    """Everybody whom this process looks up or connects to; only these ports of this machine are really contacted."""
    _install()
    contacted = set[tuple[str, int]]()
    _recording.append((contacted, set(allowed)))
    try:
        yield contacted
    finally:
        _recording.pop()


@cache
def _install() -> None:
    sys.addaudithook(_watch)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _recording or event not in ("socket.connect", "socket.getaddrinfo"):
        return
    host, port = arguments[1][:2] if event == "socket.connect" else arguments[:2]
    contacted, allowed = _recording[-1]
    contacted.add((host.decode("latin-1") if isinstance(host, bytes) else str(host), int(port)))
    if host not in ("127.0.0.1", b"127.0.0.1") or int(port) not in allowed:
        raise ConnectionRefusedError(f"a test prevents contact with {host}")
