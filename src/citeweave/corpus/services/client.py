"""When a service may be asked again: one pace for all clients of this process that ask the same address.

    with pace_of("https://api.openalex.org", time.monotonic) as pace:      nobody else asks meanwhile
        time.sleep(pace.wait())
        ...                                                                one request
        pace.rest(0.1)                                                     the next one in a tenth of a second

Does not know of other processes.

One exchange with an address, cut off when its time is up.

    with open_address(urllib.request.Request("https://api.openalex.org/works"), timeout=30, deadline=180) as answer:
        answer.status, answer.read()

`timeout` bounds every wait for a byte, `deadline` the whole exchange: a service that sends a byte now and then, of its headers
or of its answer, holds us no longer than that. Opens http and https alone, through a proxy of the environment; redirections
and statuses are the caller's. Does not wait, repeat or read: see `http.py`.

A polite client for a JSON service: few requests, patient retries, answers kept, keys never shown.

    client = Client(service_of("openalex"), Path("cache"))
    client.ask(Request("/works", {"filter": "doi:10.7717/peerj.4375"})).value["results"]

One request at a time, whichever client of this process asks, each as long after the answer to the last as the service's rate
wants: however slow the lines are, no second sees more. Too fast (429): wait as told and go on. Budget of the day gone: a `ServiceStoppedError` that says when it is
renewed; every answer so far is in the cache, and the same command goes on from there. Trouble on their side (5xx, broken
connections, damaged JSON, answers of another form): tried again, waiting twice as long each time.

Talks to the one host of the service, by https; a redirection elsewhere is refused. An answer larger or slower than the
limits is refused. Does not know what the answers mean: see `openalex.py` and `semantic_scholar.py`.

Raw records on their way into JSONL files that `import_papers` reads, one record a line.

    written = write_records(OpenAlex(client).search("citation intent", most=500), Path("fetched/search.jsonl"))
    written.count, written.stopped      500, ""

A file appears whole. A fetch that the service stops keeps what came before; `stopped` then says why and when to go on.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import socket
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urljoin, urlsplit

from citeweave.core.errors import UserError
from citeweave.core.files import hash_json, new_file
from citeweave.core.progress import QUIET, Advance, Reporter
from citeweave.core.randomness import stream
from citeweave.corpus.services.service import (
    AnswerCache,
    Service,
    ServiceRequest,
    ServiceResponse,
    at_clock,
    read_refusal,
    retry_after,
)
from citeweave.version import __version__

Clock = Callable[[], float]

_PACES: dict[tuple[str, Clock], RequestPace] = {}
_LOCK = threading.Lock()


class RequestPace:
    """The turn of one asker at a time, and how long it must still wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._turn, self._next = clock, threading.Lock(), clock()

    def wait(self) -> float:
        """Seconds before the next request may go."""
        return max(0.0, self._next - self._clock())

    def rest(self, seconds: float) -> None:
        """No request for so long from now on."""
        self._next = self._clock() + seconds

    def __enter__(self) -> RequestPace:
        self._turn.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turn.release()


def pace_of(address: str, clock: Clock) -> RequestPace:
    """The pace of whoever asks an address by a clock."""
    with _LOCK:
        return _PACES.setdefault((address, clock), RequestPace(clock))


# One exchange with an address, cut off when its time is up.


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


# A polite client for a JSON service: few requests, patient retries, answers kept, keys never shown.

_BLOCK = 1 << 16
_REDIRECTED = (301, 302, 303, 307, 308)
_MOST_REDIRECTIONS = 3
_PASSING = (408, 425)
"""Statuses below 500 that mean: try again."""

_TELL_FROM = 5.0
"""Waits of so many seconds are told to the user."""


class ServiceStoppedError(UserError):
    """The service gives no more for now; what came so far is kept."""


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Limits and patience of a client."""

    timeout: float = 30.0
    """Seconds without a byte."""

    deadline: float = 180.0
    """Seconds for one whole answer."""

    most_bytes: int = 64 * 2**20
    """Largest answer, unpacked."""

    tries: int = 6
    """Requests for one answer."""

    longest_wait: float = 300.0
    """Seconds of one wait that a service may ask for; more stops the fetch."""

    keep_days: float | None = 30.0
    """Age up to which kept answers are used; 0 = ask again, None = any."""

    seed: int = 0
    """Of the jitter of waits."""


class _TransientError(Exception):
    """Worth another try."""


class Client:
    """Asks one service. `pause` is what waits and `clock` what tells the seconds: the real ones except in tests."""

    def __init__(
        self,
        service: Service,
        cache: Path | None = None,
        options: HttpOptions | None = None,
        *,
        reporter: Reporter = QUIET,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.service, self.options, self.reporter = service, options or HttpOptions(), reporter
        self._pause, self._pace = pause, pace_of(service.base, clock)
        days = self.options.keep_days
        kept = None if days is None else days * 24 * 3600
        self._cache = None if cache is None else AnswerCache(cache, kept)
        self.requests = 0
        """Requests that were sent; answers out of the cache do not count."""

    def ask(
        self, request: ServiceRequest, fits: Callable[[Any], bool] = lambda value: True, *, may_lack: bool = True
    ) -> ServiceResponse:
        """The answer to a request, with status 200 or, for what the service does not have, 404 where it `may_lack` it.

        An answer that does not fit counts as damaged. A request that the service calls wrong (400) raises
        `WrongRequestError`.
        """
        named = request.as_json(self.service.base)
        if self._cache is not None and (kept := self._cache.find(named)) and (kept.status != 200 or fits(kept.value)):
            return kept
        with self._pace:
            status, body = self._send_patiently(request, hash_json(named), fits)
        if status == 404 and not may_lack:
            raise UserError(
                f"{self.service.name} has no {request.path} at its address (status 404); check "
                f"${self.service.base_variable}, or try again later"
            )
        if self._cache is not None:
            self._cache.keep(named, status, body)
        return ServiceResponse(status, json.loads(body))

    def _send_patiently(self, request: ServiceRequest, name: str, fits: Callable[[Any], bool]) -> tuple[int, bytes]:
        reason = ""
        for attempt in range(self.options.tries):
            try:
                status, headers, body = self._send(request)
                if status in (200, 404):
                    return status, _checked(body, fits if status == 200 else lambda value: True)
                told = self._told(body)
                if status in self.service.slow_down:
                    wait, reason = self._wait_or_stop(headers), f"too many requests (status {status}){told}"
                elif status >= 500 or status in _PASSING:
                    wait, reason = retry_after(headers.get("retry-after", ""), _now()), f"status {status}{told}"
                    wait = None if wait is None else min(wait, self.options.longest_wait)
                else:
                    raise self._refused(status, told)
            except _TransientError as error:
                wait, reason = None, self.service.hide(str(error))
            if attempt + 1 < self.options.tries:
                self._rest(wait, name, attempt, reason)
        raise ServiceStoppedError(
            f"{self.service.name} did not answer in {self.options.tries} tries: {reason}; what was fetched is kept, run the "
            f"same command again later to go on{self._advice()}"
        )

    def _wait_or_stop(self, headers: dict[str, str]) -> float | None:
        refusal = read_refusal(headers, _now(), self.options.longest_wait)
        if not refusal.budget_gone:
            return refusal.wait
        when = at_clock(_now(), refusal.wait or 0.0)
        raise ServiceStoppedError(
            f"{self.service.name} gives no more for now: the allowance is used up and renewed at {when}; what was fetched is "
            f"kept, run the same command again then to go on{self._advice()}"
        )

    def _advice(self) -> str:
        lacks = f". A key raises the limit: {self.service.key_page}, then ${self.service.key_variable}"
        return "" if self.service.key else lacks

    def _refused(self, status: int, told: str) -> UserError:
        if status in (401, 403):
            return UserError(
                f"{self.service.name} refuses the request (status {status}){told}; check the key in "
                f"${self.service.key_variable}, or unset it"
            )
        return WrongRequestError(
            f"{self.service.name} cannot take the request (status {status}){told}; change the query"
        )

    def _rest(self, asked: float | None, name: str, attempt: int, reason: str) -> None:
        """Wait as long as asked, else twice as long each time; the jitter keeps many clients from coming at once."""
        jitter = float(stream(self.options.seed, "waiting", name, attempt).uniform(0.5, 1.5))
        wait = asked + 0.1 * jitter if asked is not None else min(2.0**attempt * jitter, self.options.longest_wait)
        if wait >= _TELL_FROM:
            self.reporter.say(f"{self.service.name}: {reason}; going on in {wait:.0f} s")
        self._pause(wait)

    def _told(self, body: bytes) -> str:
        """What an answer says about an error: a stranger's text, made one short line."""
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return ""
        told = (value.get("message") or value.get("error")) if isinstance(value, dict) else ""
        line = (
            " ".join("".join(s if s.isprintable() else " " for s in told[:2000]).split())
            if isinstance(told, str)
            else ""
        )
        return f": {self.service.hide(line)[:200]!r}" if line else ""

    def _send(self, request: ServiceRequest) -> tuple[int, dict[str, str], bytes]:
        """One request, its redirections on the same host included."""
        key = {self.service.key_parameter: self.service.key} if self.service.key_parameter and self.service.key else {}
        address = f"{self.service.base}{request.path}"
        query = urlencode({**request.parameters, **key}, quote_via=quote, errors="replace")  # a cursor may be anything
        address = f"{address}?{query}" if query else address
        data = None if request.body is None else json.dumps(request.body).encode()
        for _ in range(_MOST_REDIRECTIONS + 1):
            status, headers, body = self._exchange(address, data)
            if status not in _REDIRECTED:
                return status, headers, body
            address = self._redirected(address, headers.get("location", ""), key)
        raise UserError(f"{self.service.name} redirects in circles; check ${self.service.base_variable}")

    def _redirected(self, address: str, location: str, key: dict[str, str]) -> str:
        try:
            target = urljoin(address, location if location.isascii() else "")
            host, place = urlsplit(target).hostname or "nowhere", urlsplit(target)[:2]
        except ValueError:
            target, host, place = "", "nowhere", ("", "")
        if not location.isascii() or not location or place != urlsplit(self.service.base)[:2]:
            raise UserError(
                f"{self.service.name} redirects to another place ({self.service.hide(host)[:100]!r}), which is not followed; "
                f"check the address in ${self.service.base_variable}"
            )
        if key and not urlsplit(target).query:
            return f"{target}?{urlencode(key)}"
        return target

    def _exchange(self, address: str, data: bytes | None) -> tuple[int, dict[str, str], bytes]:
        headers = {"User-Agent": f"citeweave/{__version__}", "Accept": "application/json", "Accept-Encoding": "gzip"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        if self.service.key and self.service.key_header:
            headers[self.service.key_header] = self.service.key
        if wait := self._pace.wait():
            self._pause(wait)
        self.requests += 1
        request = urllib.request.Request(address, data, headers)
        try:
            with open_address(request, timeout=self.options.timeout, deadline=self.options.deadline) as answer:
                found = {name.lower(): value for name, value in answer.headers.items()}
                return int(answer.status), found, self._read(answer, found)
        except (OSError, http.client.HTTPException, zlib.error) as error:
            # the text of some of these errors holds the address, and with it the key
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
            raise _TransientError(f"no connection ({self.service.hide(str(reason))[:200]})") from None
        finally:
            # it may have reached the service as late as this
            self._pace.rest(1 / self.service.per_second)

    def _read(self, answer: Any, headers: dict[str, str]) -> bytes:
        unpack = zlib.decompressobj(wbits=31) if headers.get("content-encoding", "").lower() == "gzip" else None
        most, found = self.options.most_bytes, bytearray()
        while block := answer.read1(_BLOCK):
            found += unpack.decompress(block, most + 1 - len(found)) if unpack else block
            if len(found) > most or (unpack and unpack.unconsumed_tail):
                raise UserError(
                    f"an answer of {self.service.name} is larger than {most:,} bytes, which is not read; ask for less"
                )
        return self.service.hide_bytes(bytes(found))


class WrongRequestError(UserError):
    """The service calls the request wrong or too large."""


def _checked(body: bytes, fits: Callable[[Any], bool]) -> bytes:
    """The body, if it is JSON of the form that is wanted: half an answer is worth another try."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise _TransientError("the answer is no JSON") from None
    if not fits(value):
        raise _TransientError("the answer has another form than such answers have")
    return body


def _now() -> datetime:
    return datetime.now(UTC)


# Raw records on their way into JSONL files that `import_papers` reads, one record a line.

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Written:
    """What a fetch brought."""

    count: int
    stopped: str
    """Why the service gave no more, empty where it gave all."""


def write_records(records: Iterable[dict[str, Any]], path: Path, advance: Advance = lambda amount: None) -> Written:
    """Write records to a file; no file is left where none came."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count, stopped = 0, ""
    with new_file(path) as file:
        try:
            for record in records:
                # lone surrogates of strangers become question marks: no reader would take the line with them
                file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
                count += 1
                advance(1)
        except ServiceStoppedError as error:
            stopped = str(error)
    if not count:
        path.unlink()
    return Written(count, stopped)


def each_once(records: Iterable[_Item], name_of: Callable[[_Item], str]) -> Iterator[_Item]:
    """Records without those whose name came before; an empty name is no other's.

    >>> list(each_once(["ab", "ac", "", "b", ""], lambda text: text[:1]))
    ['ab', '', 'b', '']
    """
    seen = set[str]()
    for record in records:
        name = name_of(record)
        if name not in seen:
            seen.update([name] if name else [])
            yield record


def batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Items in lists of a size, the last one shorter; no more is taken than the next list needs.

    >>> list(batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    source = iter(items)
    while batch := list(itertools.islice(source, size)):
        yield batch
