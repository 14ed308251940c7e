"""Services on this machine as their clients see them: literature, a server that goes wrong, one whose bytes a test writes.

    answer = openalex_answer(papers)                             answer("/works", {"search": "moths", "cursor": "*"}, None)
    service = FaultService(answer, key, seed, MadeUpTime())      goes wrong by a schedule
    service = RedirectingService()                               service.reply = lambda target: b"HTTP/1.1 302 Found..."
    with contacts(service.port) as contacted:                    any other contact is recorded and prevented

Seconds are made up: they pass where the client waits and where the service is slow, so that a day's patience takes no time
and the pace of arrivals is measured exactly. Only connections that hang cost real time.
"""

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


class LocalServer:
    """A server on a port of its own, in a thread."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        silent = {"service": self, "log_message": lambda *_: None}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), silent))
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


class MadeUpPaper:
    """One paper; those with a number divisible by three cite the first."""

    def __init__(self, number: int) -> None:
        self.number, self.sha, self.doi = number, f"{number:040x}", f"10.1000/paper.{number}"
        self.title, self.is_citing = f"On the {number}th way of counting what is lost", number % 3 == 0
        year, id = 2000 + number % 20, f"https://openalex.org/W{number}"
        self.work = {"id": id, "doi": f"https://doi.org/{self.doi}", "title": self.title, "locations": []}
        self.work |= {"publication_year": year, "ids": {"openalex": id}}
        self.work["abstract_inverted_index"] = {"Counted": [0], "twice.": [1]}
        self.work["referenced_works"] = ["https://openalex.org/W1"] * self.is_citing
        self.paper = {"paperId": self.sha, "corpusId": number, "externalIds": {"DOI": self.doi}, "title": self.title}
        self.paper |= {"year": year, "abstract": "Counted twice."}
        self.paper["references"] = [{"paperId": f"{1:040x}", "title": "On the 1th way"}] * self.is_citing


def openalex_answer(papers: list[MadeUpPaper]) -> Answer:
    def answer(path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        kind, _, value = query.get("filter", "").partition(":")
        wanted = set(value.split("|"))
        passes: dict[str, Callable[[MadeUpPaper], bool]] = {
            "doi": lambda one: one.doi in wanted,
            "title.search": lambda one: one.title.lower() == value,
            "cites": lambda one: one.is_citing and "W1" in wanted,
        }
        found = list(filter(passes.get(kind), papers))
        start = 0 if query["cursor"] == "*" else int(query["cursor"])
        following = str(start + PAGE) if start < len(found) else None  # one comes even after the last page
        meta = {"count": len(found), "next_cursor": following}
        return 200, {"meta": meta, "results": [one.work for one in found[start : start + PAGE]]}

    return answer


def semantic_scholar_answer(papers: list[MadeUpPaper]) -> Answer:
    by_name = {one.sha: one for one in papers} | {f"DOI:{one.doi}": one for one in papers}

    def answer(path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if path == "/paper/batch":
            return 200, [by_name[name].paper if name in by_name else None for name in body["ids"]]
        if path == "/paper/search/match":
            found = [one.paper for one in papers if one.title == query["query"]]
            return (200, {"data": found}) if found else (404, {"error": "Title match not found"})
        if path.endswith("/citations"):
            citing = [one.paper for one in papers if one.is_citing and path == f"/paper/{1:040x}/citations"]
            entries = [{"contexts": [], "intents": [], "citingPaper": one} for one in citing]
            return 200, {"offset": 0, "data": entries[: int(query["limit"])]}
        start = int(query.get("token", "0"))
        token = str(start + PAGE) if start + PAGE < len(papers) else None
        page = [{**one.paper, "references": None} for one in papers[start : start + PAGE]]
        return 200, {"total": len(papers), "token": token, "data": page}

    return answer


# --- a service that goes wrong ---------------------------------------------------------------------------

HANGS = 0.6
"""Real seconds of a connection that hangs; clients under test give up sooner."""


class MadeUpTime:
    """Seconds that pass only where somebody waits."""

    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
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
        super().__init__(_FaultyHandler)

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
        return self.random.choice(list(FAULTS))


class _FaultyHandler(BaseHTTPRequestHandler):
    service: FaultService

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        body = json.loads(self.rfile.read(length)) if length else None
        service, self.draw, self.key = self.service, self.service.random, self.service.key
        with service.lock:
            service.time.now += self.draw.choice([0.0, 0.01, 0.4, 3.0])  # on its way
            service.arrivals.append(service.time())
            address = urlsplit(self.path)
            query = dict(parse_qsl(address.query))
            fault = "" if address.path.startswith("/moved") else service.next_fault()
            service.met.append(fault)
            self.status, self.value = service.answer(address.path.removeprefix("/moved"), query, body)
            service.time.now += self.draw.choice([0.0, 0.02, 1.5])  # working
        # the list of which a page is asked for, what is answered where all goes well, and the beginning of that
        self.list = address.path, {name: text for name, text in query.items() if name not in ("cursor", "token")}
        self.whole = json.dumps(self.value).encode()
        self.head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(self.whole)}\r\nX-Request: {self.path}\r\n".encode()
        self.close_connection = True
        with contextlib.suppress(OSError):  # the client went away
            FAULTS[fault](self) if fault else self.send_page()

    do_POST = do_GET

    def send(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, text in {"Content_Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, **headers: str) -> None:
        told = {"message": f"key {self.key} is too fast", "error": self.path}
        self.send(status, json.dumps(told).encode(), **headers)

    def wait(self, *, early: float = 0.0) -> int:
        """Seconds to wait for, which the client must keep; but for so many."""
        seconds = self.draw.randint(1, 200)
        self.service.waits_asked[len(self.service.arrivals) - 1] = seconds - early
        return seconds

    def send_html(self, status: int) -> None:
        page = f"<html><title>Sign in</title><body>{self.path}</body></html>".encode()
        self.send(status, page, Content_Type="text/html")

    def cut(self, data: bytes) -> bytes:
        return data[: self.draw.randrange(len(data))]

    def write(self, *parts: bytes, pause: float = 0.0) -> None:
        for part in parts:
            self.wfile.write(part)
            time.sleep(pause)

    def redirect(self, location: str) -> None:
        self.send(self.draw.choice([301, 302, 307, 308]), b"{}", Location=location)

    def elsewhere(self) -> str:
        return f"http://127.0.0.1:{self.service.elsewhere.getsockname()[1]}/{quote(self.key)}"

    def echo(self) -> None:
        escaped = "".join(f"\\u{ord(sign):04x}" for sign in self.key)
        told = f'{{"message": "{escaped}", "error": "{self.key} {quote(self.key, safe="")} {self.path}"}}'.encode()
        self.send(self.draw.choice([500, 429]), told, X_Echo=self.key)

    def send_page(self, spoil: Callable[[Any, list[Any], list[Any]], Any] | None = None) -> None:
        """Spoil a page by an older page of its list; what is no page of a list is sent as it is."""
        value, pages, key = self.value, self.service.pages, "results" if "results" in self.value else "data"
        if isinstance(value, dict) and isinstance(value.get(key), list) and self.status == 200:
            if spoil and pages and pages[-1][0] == self.list:
                before = pages[-1][1]
                found = spoil(before, before[key], value[key])
                value = found if isinstance(found, dict) else {**value, key: found}
            else:
                pages.append((self.list, value))
        self.send(self.status, json.dumps(value).encode())


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FAULTS: dict[str, Callable[[_FaultyHandler], object]] = {
    **{str(code): lambda it, code=code: it.refuse(code) for code in (429, 500, 502, 504, 408)},
    "429 with seconds": lambda it: it.refuse(429, Retry_After=str(it.wait())),
    "503 with seconds": lambda it: it.refuse(503, Retry_After=str(it.wait())),
    # whole seconds, and those that pass meanwhile
    "429 with a date": lambda it: it.refuse(429, Retry_After=formatdate(time.time() + it.wait(early=2.0), usegmt=True)),
    "429 without end": lambda it: it.refuse(429, Retry_After="1000000"),
    "budget gone": lambda it: it.refuse(429, X_RateLimit_Remaining="0", X_RateLimit_Reset="100", Retry_After="1"),
    "cut JSON": lambda it: it.send(200, it.cut(it.whole)),
    "HTML": lambda it: it.send_html(200),
    "HTML 404": lambda it: it.send_html(404),
    "empty": lambda it: it.send(200, b""),
    "null": lambda it: it.send(200, b"null"),
    "an error with 200": lambda it: it.send(200, json.dumps({"message": f"wrong key {it.key}"}).encode()),
    "cut gzip": lambda it: it.send(200, it.cut(gzip.compress(it.whole)), Content_Encoding="gzip"),
    "bad gzip": lambda it: it.send(200, it.whole, Content_Encoding="gzip"),
    "length too long": lambda it: it.send(200, it.whole[:-1], Content_Length=str(len(it.whole) + 50)),
    "length too short": lambda it: it.send(200, it.whole[:-1], Content_Length=str(len(it.whole) // 2)),
    "length negative": lambda it: it.send(200, it.whole, Content_Length="-5"),
    "length of letters": lambda it: it.send(200, it.whole, Content_Length="many"),
    "bad chunks": lambda it: it.write(CHUNKED + b"zz\r\n" + it.whole[:-1]),
    "cut chunks": lambda it: it.write(CHUNKED + b"%x\r\n" % (len(it.whole) + 9) + it.whole[:-1]),
    "closed at once": lambda it: None,
    "reset": lambda it: it.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"),
    "half a status line": lambda it: it.write(b"HTTP/1.1 20"),
    "half of the headers": lambda it: it.write(it.head[: it.draw.randrange(20, len(it.head))]),
    "no HTTP": lambda it: it.write(b"SSH-2.0-OpenSSH_9.9\r\n" + it.path.encode()),
    "hangs": lambda it: time.sleep(HANGS),
    "hangs in the body": lambda it: it.write(it.head + b"\r\n" + it.whole[: len(it.whole) // 2], pause=HANGS),
    "dribbles": lambda it: it.write(*(bytes([sign]) for sign in it.head[:30]), pause=HANGS / 20),
    "elsewhere": lambda it: it.redirect(it.elsewhere()),
    "elsewhere without a scheme": lambda it: it.redirect(f"//{it.key.replace('/', '')}.example/"),
    "to a broken address": lambda it: it.redirect("http://[::1"),
    "to no address": lambda it: it.redirect(""),
    "on the same host": lambda it: it.redirect(f"/moved{it.path}"),
    "an older page again": lambda it: it.send_page(lambda before, old, new: before),
    "an older page with the next cursor": lambda it: it.send_page(lambda before, old, new: old),
    "shifted pages": lambda it: it.send_page(lambda before, old, new: old[-3:] + new),
    "echoes the key": _FaultyHandler.echo,
}


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

    target: str
    headers: dict[str, str]


class _RecordingHandler(BaseHTTPRequestHandler):
    service: "RedirectingService"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.service.received.append(Received(self.path, headers))
        self.close_connection = True
        with contextlib.suppress(OSError):  # the client may have left
            self.wfile.write(self.service.reply(self.path))

    do_POST = do_GET


class RedirectingService(LocalServer):
    """Answers with the bytes that `reply` makes of the target of a request."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.reply: Callable[[str], bytes] = lambda target: answer_of({})
        super().__init__(_RecordingHandler)


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
