"""A polite client for a JSON service: few requests, patient retries, answers kept, keys never shown.

    client = Client(service_of("openalex"), Path("cache"))
    client.ask(Request("/works", {"filter": "doi:10.7717/peerj.4375"})).value["results"]

One request at a time, spaced by the service's rate. Too fast (429): wait as told and go on. Budget of the day gone: a
`StoppedError` that says when it is renewed; every answer so far is in the cache, and the same command goes on from there.
Trouble on their side (5xx, broken connections, damaged JSON): tried again, waiting twice as long each time.

Talks to the one host of the service, by https; a redirection elsewhere is refused. An answer larger or slower than the
limits is refused. Does not know what the answers mean: see `openalex.py` and `semantic_scholar.py`.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from citeweave.corpus.clients.answers import Answer, AnswerCache, Request
from citeweave.corpus.clients.refusals import at_clock, read_refusal, retry_after
from citeweave.corpus.clients.services import Service
from citeweave.errors import UserError
from citeweave.files import hash_json
from citeweave.progress import QUIET, Reporter
from citeweave.randomness import stream
from citeweave.version import __version__

_BLOCK = 1 << 16
_REDIRECTED = (301, 302, 303, 307, 308)
_MOST_REDIRECTIONS = 3
_TELL_FROM = 5.0
"""Waits of so many seconds are told to the user."""


class StoppedError(UserError):
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
    """Asks one service. `pause` is what waits, `time.sleep` except in tests."""

    def __init__(
        self,
        service: Service,
        cache: Path | None = None,
        options: HttpOptions | None = None,
        *,
        reporter: Reporter = QUIET,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.service, self.options, self.reporter, self._pause = service, options or HttpOptions(), reporter, pause
        days = self.options.keep_days
        kept = None if days is None else days * 24 * 3600
        self._cache = None if cache is None else AnswerCache(cache, kept)
        self._lock, self._next = threading.Lock(), 0.0
        self.requests = 0
        """Requests that were sent; answers out of the cache do not count."""

    def ask(self, request: Request) -> Answer:
        """The answer to a request, with status 200 or, for what the service does not have, 404.

        A request that the service calls wrong (400) raises `WrongRequestError`.
        """
        named = request.as_json(self.service.base)
        if self._cache is not None and (kept := self._cache.find(named)):
            return kept
        with self._lock:
            status, body = self._send_patiently(request, hash_json(named))
        if self._cache is not None:
            self._cache.keep(named, status, body)
        return Answer(status, json.loads(body))

    def _send_patiently(self, request: Request, name: str) -> tuple[int, bytes]:
        reason = ""
        for attempt in range(self.options.tries):
            try:
                status, headers, body = self._send(request)
                if status in (200, 404):
                    return status, _checked(body)
                told = self._told(body)
                if status in self.service.slow_down:
                    wait, reason = self._wait_or_stop(headers), f"too many requests (status {status}){told}"
                elif status >= 500:
                    wait, reason = retry_after(headers.get("retry-after", ""), _now()), f"status {status}{told}"
                    wait = None if wait is None else min(wait, self.options.longest_wait)
                else:
                    raise self._refused(status, told)
            except _TransientError as error:
                wait, reason = None, self.service.hide(str(error))
            if attempt + 1 < self.options.tries:
                self._rest(wait, name, attempt, reason)
        raise StoppedError(
            f"{self.service.name} did not answer in {self.options.tries} tries: {reason}; what was fetched is kept, run the "
            f"same command again later to go on{self._advice()}"
        )

    def _wait_or_stop(self, headers: dict[str, str]) -> float | None:
        refusal = read_refusal(headers, _now(), self.options.longest_wait)
        if not refusal.budget_gone:
            return refusal.wait
        when = at_clock(_now(), refusal.wait or 0.0)
        raise StoppedError(
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

    def _send(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        """One request, its redirections on the same host included."""
        key = {self.service.key_parameter: self.service.key} if self.service.key_parameter and self.service.key else {}
        address = f"{self.service.base}{request.path}"
        query = urlencode({**request.parameters, **key}, quote_via=quote)
        address = f"{address}?{query}" if query else address
        data = None if request.body is None else json.dumps(request.body).encode()
        for _ in range(_MOST_REDIRECTIONS + 1):
            status, headers, body = self._exchange(address, data)
            if status not in _REDIRECTED:
                return status, headers, body
            address = self._redirected(address, headers.get("location", ""), key)
        raise UserError(f"{self.service.name} redirects in circles; check ${self.service.base_variable}")

    def _redirected(self, address: str, location: str, key: dict[str, str]) -> str:
        target = urljoin(address, location)
        if not location or urlsplit(target)[:2] != urlsplit(self.service.base)[:2]:
            host = (urlsplit(target).hostname or "nowhere")[:100]
            raise UserError(
                f"{self.service.name} redirects to another place ({self.service.hide(host)!r}), which is not followed; check "
                f"the address in ${self.service.base_variable}"
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
        self._keep_pace()
        self.requests += 1
        deadline = time.monotonic() + self.options.deadline
        try:
            with _opener().open(urllib.request.Request(address, data, headers), timeout=self.options.timeout) as answer:
                found = {name.lower(): value for name, value in answer.headers.items()}
                return int(answer.status), found, self._read(answer, found, deadline)
        except (OSError, http.client.HTTPException, zlib.error) as error:
            # the text of some of these errors holds the address, and with it the key
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
            raise _TransientError(f"no connection ({str(reason)[:200]})") from None

    def _read(self, answer: Any, headers: dict[str, str], deadline: float) -> bytes:
        unpack = zlib.decompressobj(wbits=31) if headers.get("content-encoding", "").lower() == "gzip" else None
        most, found = self.options.most_bytes, bytearray()
        while block := answer.read1(_BLOCK):
            found += unpack.decompress(block, most + 1 - len(found)) if unpack else block
            if len(found) > most or (unpack and unpack.unconsumed_tail):
                raise UserError(
                    f"an answer of {self.service.name} is larger than {most:,} bytes, which is not read; ask for less"
                )
            if time.monotonic() > deadline:
                raise _TransientError(f"an answer took longer than {self.options.deadline:.0f} s")
        return self.service.hide_bytes(bytes(found))

    def _keep_pace(self) -> None:
        """Wait until the service's rate allows the next request."""
        now = time.monotonic()
        if now < self._next:
            self._pause(self._next - now)
        self._next = max(now, self._next) + 1 / self.service.per_second


class WrongRequestError(UserError):
    """The service calls the request wrong or too large."""


def _opener() -> urllib.request.OpenerDirector:
    """Opens http and https alone, through a proxy of the environment; leaves redirections and errors to us."""
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()):
        opener.add_handler(handler)
    return opener


def _checked(body: bytes) -> bytes:
    """The body, if it is JSON: half an answer is worth another try."""
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        raise _TransientError("the answer is no JSON") from None
    return body


def _now() -> datetime:
    return datetime.now(UTC)
