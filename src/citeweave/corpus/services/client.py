"""HTTP client of a JSON service: rate limit, retries, deadline, response cache, hidden API keys.

    client = Client(service_of("openalex"), Path("cache"))
    client.fetch(ServiceRequest("/works", {"filter": "doi:10.7717/peerj.4375"})).value["results"]

One request at a time, whichever client of this process sends it, each as long after the last response as the service's
rate requires: however slow the connection, no second sees more. Too many requests (429): wait as long as the service says
and continue. The daily budget is used up: a `ServiceStoppedError` that says when it is renewed; every response so far is
in the cache, and the same command resumes from there. Errors on their side (5xx, broken connections, damaged JSON,
responses of another form): retried, waiting twice as long each time. Other processes are not known.

Talks only to the host of the service, by https; a redirect elsewhere is refused. A response larger or slower than the
limits is refused: `timeout` bounds every wait for a byte, `deadline` the complete exchange, so that a service that sends a
byte now and then, of its headers or of its body, holds us no longer than that. Does not know what responses mean: see
`openalex.py` and `semantic_scholar.py`.

    result = write_records(OpenAlex(client).search("citation intent", limit=500), Path("fetched/search.jsonl"))
    result.count, result.stopped      500, ""

`write_records` writes raw records to a JSONL file that `import_papers` reads, one record per line. The file appears
complete; if the service stops, it holds what came before, and `stopped` says why and when to try again.
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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urljoin, urlsplit

from citeweave.core.errors import UserError
from citeweave.core.files import hash_json, new_file
from citeweave.core.progress import QUIET, Advance, Reporter
from citeweave.core.randomness import stream
from citeweave.corpus.plain_text import dict_of
from citeweave.corpus.services.service import (
    ResponseCache,
    Service,
    ServiceRequest,
    ServiceResponse,
    format_time_after,
    read_refusal,
    retry_after,
)
from citeweave.version import __version__

Clock = Callable[[], float]

_PACES: dict[tuple[str, Clock], RequestPace] = {}
_LOCK = threading.Lock()


class RequestPace:
    """The turn of one request at a time to a service, and how long the next must wait."""

    def __init__(self, clock: Clock) -> None:
        self.turn, self._clock, self._next = threading.Lock(), clock, clock()

    def wait(self) -> float:
        """Return the seconds before the next request may be sent."""
        return max(0.0, self._next - self._clock())

    def rest(self, seconds: float) -> None:
        """Allow no request to the service for this many seconds."""
        self._next = self._clock() + seconds


def _shared_pace(address: str, clock: Clock) -> RequestPace:
    """Return the pace that all clients of this process share for an address and a clock."""
    with _LOCK:
        return _PACES.setdefault((address, clock), RequestPace(clock))


# One exchange with a deadline.


@contextlib.contextmanager
def _open_with_deadline(request: urllib.request.Request, *, timeout: float, deadline: float) -> Iterator[Any]:
    """Open the response to a request, headers read; `TimeoutError` if the exchange exceeds the deadline."""
    cutter = _ConnectionCutter()
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


class _ConnectionCutter:
    """Closes the connections of one exchange when its deadline has passed."""

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


def _opener(cutter: _ConnectionCutter) -> urllib.request.OpenerDirector:
    """Return an opener for http and https, through a proxy of the environment, whose connections can be cut."""

    def watched(kind: type[http.client.HTTPConnection], host: str, **named: Any) -> http.client.HTTPConnection:
        connection = kind(host, **named)
        connect = connection.connect

        def connect_and_watch() -> None:
            connect()
            cutter.watch(connection.sock)

        connection.connect = connect_and_watch  # type: ignore[method-assign]
        return connection

    plain, secure, opener = urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(), urllib.request.OpenerDirector()
    plain.http_open = partial(plain.do_open, partial(watched, http.client.HTTPConnection))  # type: ignore[method-assign]
    secure.https_open = partial(secure.do_open, partial(watched, http.client.HTTPSConnection))  # type: ignore[method-assign]
    for handler in (urllib.request.ProxyHandler(), plain, secure):
        opener.add_handler(handler)
    return opener


# The client.

_BLOCK = 1 << 16
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 3
_RETRY_STATUSES = (408, 425)
"""Statuses below 500 that mean: retry."""

_REPORT_WAITS_FROM = 5.0
"""Seconds of a wait from which it is reported to the user."""


class ServiceStoppedError(UserError):
    """The service sends no more for now; what came so far is kept."""


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Limits and retries of an HTTP client."""

    timeout: float = 30.0
    """Longest wait for a byte, in seconds."""

    deadline: float = 180.0
    """Seconds for one complete response."""

    max_bytes: int = 64 * 2**20
    """Largest response, decompressed."""

    tries: int = 6
    """Attempts per request."""

    max_wait: float = 300.0
    """Longest wait, in seconds, that a service may ask for; more stops the fetch."""

    keep_days: float | None = 30.0
    """Age in days up to which cached responses are used; 0 = request again, None = any."""

    seed: int = 0
    """Seed of the jitter of waits."""


class _TransientError(Exception):
    """A failed request that is worth a retry."""


class Client:
    """An HTTP client of one service; `pause` and `clock` are replaced in tests."""

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
        self._pause, self._pace = pause, _shared_pace(service.base, clock)
        days = self.options.keep_days
        self._cache = None if cache is None else ResponseCache(cache, None if days is None else days * 24 * 3600)
        self.requests = 0
        """Number of requests sent; cached responses do not count."""

    def fetch(
        self,
        request: ServiceRequest,
        is_valid: Callable[[Any], bool] = lambda value: True,
        *,
        allow_missing: bool = True,
    ) -> ServiceResponse:
        """Return the response to a request: status 200 or, for a missing record, 404 where `allow_missing`.

        A response that is not valid counts as damaged. A request that the service rejects (400) raises
        `WrongRequestError`.
        """
        key = request.as_json(self.service.base)
        cached = self._cache.load(key) if self._cache is not None else None
        if cached and (cached.status != 200 or is_valid(cached.value)):
            return cached
        with self._pace.turn:
            status, body = self._send_with_retries(request, hash_json(key), is_valid)
        if status == 404 and not allow_missing:
            raise UserError(
                f"{self.service.name} has no {request.path} at its address (status 404); check "
                f"${self.service.base_variable}, or try again later"
            )
        if self._cache is not None:
            self._cache.save(key, status, body)
        return ServiceResponse(status, json.loads(body))

    def _send_with_retries(
        self, request: ServiceRequest, name: str, is_valid: Callable[[Any], bool]
    ) -> tuple[int, bytes]:
        reason = ""
        for attempt in range(self.options.tries):
            try:
                status, headers, body = self._send(request)
                if status in (200, 404):
                    return status, _check_body(body, is_valid if status == 200 else lambda value: True)
                detail = self._error_text(body)
                if status in self.service.slow_down:
                    wait, reason = self._wait_or_stop(headers), f"too many requests (status {status}){detail}"
                elif status >= 500 or status in _RETRY_STATUSES:
                    wait, reason = retry_after(headers.get("retry-after", ""), _now()), f"status {status}{detail}"
                    wait = None if wait is None else min(wait, self.options.max_wait)
                else:
                    raise self._refusal_error(status, detail)
            except _TransientError as error:
                wait, reason = None, self.service.hide(str(error))
            if attempt + 1 < self.options.tries:
                self._rest(wait, name, attempt, reason)
        raise ServiceStoppedError(
            f"{self.service.name} did not answer in {self.options.tries} attempts: {reason}; what was fetched is kept, run "
            f"the same command again later to continue{self._advice()}"
        )

    def _wait_or_stop(self, headers: dict[str, str]) -> float | None:
        refusal = read_refusal(headers, _now(), self.options.max_wait)
        if not refusal.budget_used_up:
            return refusal.wait
        when = format_time_after(_now(), refusal.wait or 0.0)
        raise ServiceStoppedError(
            f"{self.service.name} sends no more for now: the allowance is used up and renewed at {when}; what was fetched is "
            f"kept, run the same command again then to continue{self._advice()}"
        )

    def _advice(self) -> str:
        advice = f". A key raises the limit: {self.service.key_page}, then ${self.service.key_variable}"
        return "" if self.service.key else advice

    def _refusal_error(self, status: int, detail: str) -> UserError:
        if status in (401, 403):
            return UserError(
                f"{self.service.name} refuses the request (status {status}){detail}; check the key in "
                f"${self.service.key_variable}, or unset it"
            )
        return WrongRequestError(f"{self.service.name} rejects the request (status {status}){detail}; change the query")

    def _rest(self, requested: float | None, name: str, attempt: int, reason: str) -> None:
        """Wait as long as the service says, else twice as long each time; the jitter keeps clients from retrying at once."""
        jitter = float(stream(self.options.seed, "waiting", name, attempt).uniform(0.5, 1.5))
        wait = requested + 0.1 * jitter if requested is not None else min(2.0**attempt * jitter, self.options.max_wait)
        if wait >= _REPORT_WAITS_FROM:
            self.reporter.say(f"{self.service.name}: {reason}; retrying in {wait:.0f} s")
        self._pause(wait)

    def _error_text(self, body: bytes) -> str:
        """Return the error text of a response, untrusted text shortened to one line."""
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return ""
        text = dict_of(value).get("message") or dict_of(value).get("error")
        text = text[:2000] if isinstance(text, str) else ""
        line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
        return f": {self.service.hide(line)[:200]!r}" if line else ""

    def _send(self, request: ServiceRequest) -> tuple[int, dict[str, str], bytes]:
        """Send one request and follow its redirects on the same host."""
        key = {self.service.key_parameter: self.service.key} if self.service.key_parameter and self.service.key else {}
        address = f"{self.service.base}{request.path}"
        # a cursor may hold anything
        query = urlencode({**request.parameters, **key}, quote_via=quote, errors="replace")
        address = f"{address}?{query}" if query else address
        data = None if request.body is None else json.dumps(request.body).encode()
        for _ in range(_MAX_REDIRECTS + 1):
            status, headers, body = self._exchange(address, data)
            if status not in _REDIRECT_STATUSES:
                return status, headers, body
            address = self._redirect_target(address, headers.get("location", ""), key)
        raise UserError(f"{self.service.name} redirects in circles; check ${self.service.base_variable}")

    def _redirect_target(self, address: str, location: str, key: dict[str, str]) -> str:
        try:
            target = urljoin(address, location if location.isascii() else "")
            host, place = urlsplit(target).hostname or "nowhere", urlsplit(target)[:2]
        except ValueError:
            target, host, place = "", "nowhere", ("", "")
        if not location.isascii() or not location or place != urlsplit(self.service.base)[:2]:
            raise UserError(
                f"{self.service.name} redirects to another address ({self.service.hide(host)[:100]!r}), which is not followed; "
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
            with _open_with_deadline(request, timeout=self.options.timeout, deadline=self.options.deadline) as answer:
                response_headers = {name.lower(): value for name, value in answer.headers.items()}
                return int(answer.status), response_headers, self._read(answer, response_headers)
        except (OSError, http.client.HTTPException, zlib.error) as error:
            # the text of some of these errors holds the address, and with it the key
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
            raise _TransientError(f"no connection ({self.service.hide(str(reason))[:200]})") from None
        finally:
            # the request may have reached the service only now
            self._pace.rest(1 / self.service.per_second)

    def _read(self, answer: Any, headers: dict[str, str]) -> bytes:
        unpack = zlib.decompressobj(wbits=31) if headers.get("content-encoding", "").lower() == "gzip" else None
        max_bytes, content = self.options.max_bytes, bytearray()
        while block := answer.read1(_BLOCK):
            content += unpack.decompress(block, max_bytes + 1 - len(content)) if unpack else block
            if len(content) > max_bytes or (unpack and unpack.unconsumed_tail):
                raise UserError(
                    f"a response of {self.service.name} is larger than {max_bytes:,} bytes and is not read; ask for less"
                )
        return self.service.hide_bytes(bytes(content))


class WrongRequestError(UserError):
    """The service rejects the request as wrong or too large."""


def _check_body(body: bytes, is_valid: Callable[[Any], bool]) -> bytes:
    """Return the body if it is JSON of the expected form: half a response is worth a retry."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise _TransientError("the response is not JSON") from None
    if not is_valid(value):
        raise _TransientError("the response does not have the expected form")
    return body


def _now() -> datetime:
    return datetime.now(UTC)


# Writing records to JSONL files.

_Item = TypeVar("_Item")
Records = Iterator[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class WriteResult:
    """How many fetched records were written, and why the service stopped."""

    count: int
    stopped: str
    """Why the service sent no more, empty where it sent everything."""


def write_records(records: Iterable[dict[str, Any]], path: Path, advance: Advance = lambda amount: None) -> WriteResult:
    """Write the records that a client fetched to a JSONL file; no file is left if there are none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count, stopped = 0, ""
    with new_file(path) as file:
        try:
            for record in records:
                # lone surrogates in untrusted text become question marks: no reader would accept the line with them
                file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
                count += 1
                advance(1)
        except ServiceStoppedError as error:
            stopped = str(error)
    if not count:
        path.unlink()
    return WriteResult(count, stopped)


def drop_repeats(records: Iterable[_Item], name_of: Callable[[_Item], str]) -> Iterator[_Item]:
    """Yield the records of several responses without those whose name came before; those with an empty name are all kept.

    >>> list(drop_repeats(["ab", "ac", "", "b", ""], lambda text: text[:1]))
    ['ab', '', 'b', '']
    """
    seen = set[str]()
    for record in records:
        name = name_of(record)
        if name not in seen:
            seen.update([name] if name else [])
            yield record


def fetch_in_halves(fetch: Callable[[list[str]], Records], names: list[str]) -> Records:
    """Yield the records of a list of names; a list that the service rejects is fetched in halves, as one bad name spoils it."""
    try:
        yield from fetch(names)
    except WrongRequestError:
        if len(names) > 1:
            for half in (names[: len(names) // 2], names[len(names) // 2 :]):
                yield from fetch_in_halves(fetch, half)


def split_batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Split items into batches for one request each, the last one shorter; no more is taken than the next batch needs.

    >>> list(split_batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    source = iter(items)
    while batch := list(itertools.islice(source, size)):
        yield batch
