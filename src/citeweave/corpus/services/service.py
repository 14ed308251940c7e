"""What is specific to a service: address, key, rate limits and refusals; its response cache, and lists in pages.

    OPENALEX   https://api.openalex.org                      key in $OPENALEX_API_KEY, sent as a parameter
    S2         https://api.semanticscholar.org/graph/v1      key in $S2_API_KEY, sent as a header

A mirror or a test server replaces a service by its address: `service_of("openalex", base="https://mirror.org/oa")`, or the
variable $CITEWEAVE_OPENALEX_URL or $CITEWEAVE_S2_URL. Only https, except for this machine itself.

    429, Retry-After: 2                                burst: wait 2 seconds and continue
    429, X-RateLimit-Remaining: 0, ...-Reset: 11987    the daily budget is used up: stop, renewed in 11,987 seconds
    503                                                an error on their side: wait, longer each time

OpenAlex distinguishes both kinds of 429 by its headers (X-RateLimit-Reset is in seconds from now); Semantic Scholar has
only the first kind.

    cache/openalex/3f/3f9a...c1.json     line 1: {"at": 1789000000, "status": 200, "request": {...}}, then the response

A cached response is named by a hash of the request without the key, and appears complete or not at all. A damaged one
counts as absent. So an interrupted fetch resumes where it stopped and no request is sent twice.

    read_all_pages(fetch, read_page, "*")     fetches "*", then the cursor that the page names, and so on

A service may repeat a page, move records from one page to the next meanwhile, or name a cursor again. A page that brings
nothing new or leads back, though more records were promised, is damaged and fetched again; where nothing was promised it
ends the list. Nothing here sends requests: see `client.py`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any

from citeweave.core.artifact import seal_payload, unseal_payload
from citeweave.core.errors import UserError, choose
from citeweave.core.files import hash_json, read_input, write_atomically

_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
_MIN_KEY, _MAX_KEY = 8, 500
_MAX_ADDRESS = 1000
_ADDRESS = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?:/[a-z0-9._~!$&'()*+,;=:@%/-]*)?",
    re.IGNORECASE,
)
"""Nothing that two parsers could read differently: no user, no escapes in the host, no blanks, no query."""


@dataclass(frozen=True, slots=True)
class Service:
    """Address, key and rate limit of a service."""

    name: str
    base: str
    """Address that every path is appended to."""

    base_variable: str
    key_variable: str
    key_page: str
    """Where people get a key."""

    per_second: float
    """Most requests per second."""

    key_parameter: str = ""
    key_header: str = ""
    slow_down: tuple[int, ...] = (429,)
    """Statuses that mean: too fast, or too much."""

    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not _is_usable(self.base):
            raise UserError(
                f"the address of {self.name} must be https://HOST/PATH, http only for this machine, in plain letters, with no "
                f"user and no question mark; check ${self.base_variable}"
            )
        # else a line break or a shell's quotes in the key would only show up as a refusal, or worse
        if self.key and not (_MIN_KEY <= len(self.key) <= _MAX_KEY and _is_plain(self.key)):
            raise UserError(
                f"${self.key_variable} is not a key: it must be 8 or more plain letters and digits; set it again"
            )

    def hide(self, text: str) -> str:
        """Return the text without the API key, whoever wrote it there.

        >>> replace(OPENALEX, key="abcd1234").hide("GET /works?api_key=abcd1234")
        'GET /works?api_key=***'
        """
        return re.sub(_spellings(self.key), "***", text) if self.key else text

    def hide_bytes(self, data: bytes) -> bytes:
        """Return a response without the API key: a service may repeat the request in it."""
        return re.sub(_spellings(self.key).encode(), b"***", data) if self.key else data


@cache
def _spellings(key: str) -> str:
    """Return a pattern of the API key as addresses and JSON may spell it: as is, as %2F or %252f, as \\u002f, `/` as `\\/`.

    >>> bool(re.fullmatch(_spellings("ab/c"), "a%62%252F\\\\u0063"))
    True
    """
    return "".join(rf"(?:\\?{re.escape(char)}|(?i:%(?:25)*{ord(char):02x}|\\u{ord(char):04x}))" for char in key)


def _is_usable(address: str) -> bool:
    """Return whether requests may be sent to an address.

    >>> _is_usable("https://mirror.org/oa"), _is_usable("http://[::1]:8080"), _is_usable("https://me@mirror.org")
    (True, True, False)
    """
    match = _ADDRESS.fullmatch(address) if len(address) <= _MAX_ADDRESS else None
    if match is None or not 0 < int(match["port"] or 443) < 2**16:
        return False
    return match["scheme"].lower() == "https" or match["host"].lower().strip("[]") in _THIS_MACHINE


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and not any(character in text for character in " '\"\\<>")


OPENALEX = Service(
    name="OpenAlex",
    base="https://api.openalex.org",
    base_variable="CITEWEAVE_OPENALEX_URL",
    key_variable="OPENALEX_API_KEY",
    key_page="https://openalex.org/settings/api",
    per_second=10,
    key_parameter="api_key",
    slow_down=(429, 403),  # its documentation says 403 for too fast and 429 for too much
)
S2 = Service(
    name="Semantic Scholar",
    base="https://api.semanticscholar.org/graph/v1",
    base_variable="CITEWEAVE_S2_URL",
    key_variable="S2_API_KEY",
    key_page="https://www.semanticscholar.org/product/api#api-key-form",
    per_second=1,
    key_header="x-api-key",
)
SERVICES = {"openalex": OPENALEX, "s2": S2}


def service_of(name: str, *, base: str = "") -> Service:
    """Return a service with its key and address from the environment; an explicit address takes precedence."""
    service = SERVICES[choose(name, SERVICES, "the service")]
    address = base or os.environ.get(service.base_variable, "") or service.base
    return replace(service, base=address.rstrip("/"), key=os.environ.get(service.key_variable, "").strip())


# Refusals: wait a little, or retry tomorrow.

_DAY = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """How long to wait after a service refused a request, and whether its budget is used up."""

    wait: float | None
    """Seconds the service asks to wait, None where it does not say."""

    budget_used_up: bool = False
    """True where no request will succeed before the allowance is renewed, in `wait` seconds."""


def read_refusal(headers: Mapping[str, str], now: datetime, max_wait: float) -> Refusal:
    """Read from the headers of a refusal how long to wait; more than `max_wait` counts as a used up budget."""
    lowered = {name.lower(): value for name, value in headers.items()}
    wait = retry_after(lowered.get("retry-after", ""), now)
    if _is_budget_used_up(lowered):
        reset = _number(lowered.get("x-ratelimit-reset")) or 0.0
        return Refusal(reset if 0 < reset <= 2 * _DAY else _seconds_to_midnight(now), budget_used_up=True)
    return Refusal(wait, budget_used_up=wait is not None and wait > max_wait)


def _is_budget_used_up(headers: dict[str, str]) -> bool:
    for left, needed in (
        ("x-ratelimit-remaining", "x-ratelimit-credits-required"),
        ("x-ratelimit-remaining-usd", "x-ratelimit-cost-required-usd"),
    ):
        remaining, required = _number(headers.get(left)), _number(headers.get(needed)) or 0.0
        if remaining is not None and (remaining <= 0 or remaining < required):
            return (_number(headers.get("x-ratelimit-onetime-remaining")) or 0.0) <= required
    return False


def retry_after(value: str, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header, a number of seconds or an HTTP date (RFC 9110, 10.2.3).

    >>> now = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
    >>> retry_after("120", now), retry_after("Sun, 01 Mar 2026 12:00:30 GMT", now), retry_after("soon", now)
    (120.0, 30.0, None)
    >>> retry_after("Sun, 01 Mar 2026 11:00:00 GMT", now)
    0.0
    """
    seconds = _number(value.strip())
    if seconds is not None:
        return max(0.0, seconds)
    try:
        then = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, (then - now).total_seconds())


def _seconds_to_midnight(now: datetime) -> float:
    """Return the seconds to the next midnight UTC, when services renew their daily budgets.

    >>> _seconds_to_midnight(datetime(2026, 3, 1, 23, 59, 30, tzinfo=UTC))
    30.0
    """
    tomorrow = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return (tomorrow - now).total_seconds()


def format_time_after(now: datetime, seconds: float) -> str:
    """Return the UTC time at which a service can be asked again, some seconds from now.

    >>> format_time_after(datetime(2026, 3, 1, 23, 0, tzinfo=UTC), 3600), format_time_after(datetime(2026, 3, 1, tzinfo=UTC), 1e18)
    ('2026-03-02 00:00 UTC', 'far in the future')
    """
    try:
        return (now + timedelta(seconds=seconds)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except OverflowError:
        return "far in the future"


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


# Requests, responses and their cache.


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """A request to a service, which never holds a key."""

    path: str
    parameters: dict[str, str]
    body: Any = None
    """JSON to POST; None = GET."""

    def as_json(self, base: str) -> dict[str, Any]:
        return {"base": base, "path": self.path, "parameters": self.parameters, "body": self.body}


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """The status and JSON value of a response."""

    status: int
    value: Any


class ResponseCache:
    """The response cache of a service, a folder; `max_age` in seconds, None for any age."""

    def __init__(self, folder: Path, max_age: float | None = None) -> None:
        self._folder, self._max_age = folder, max_age

    def load(self, request: dict[str, Any]) -> ServiceResponse | None:
        """Return the service's cached response to a request, None where it is missing, too old or damaged."""
        try:
            head, _, body = read_input(self._path(request)).partition(b"\n")
            header = unseal_payload(json.loads(head))
            if header.get("sha256") != _hash(body):
                return None
            is_old = self._max_age is not None and time.time() - header["at"] > self._max_age
            if is_old or header["request"] != request:
                return None
            return ServiceResponse(int(header["status"]), json.loads(body))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def save(self, request: dict[str, Any], status: int, body: bytes) -> None:
        """Cache the response to a request."""
        path = self._path(request)
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {"at": int(time.time()), "status": status, "request": request, "sha256": _hash(body)}
        head = json.dumps(seal_payload(header)).encode()
        write_atomically(path, head + b"\n" + body)

    def _path(self, request: dict[str, Any]) -> Path:
        name = hash_json(request)
        return self._folder / name[:2] / f"{name}.json"


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


# Lists in pages.

Record = dict[str, Any]
IsValid = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list of records."""

    records: list[tuple[str, Record]]
    """Each with its name; empty names are never equal."""

    next_cursor: str
    """The cursor of the next page, empty where there is none."""

    total: int | None
    """Records of the complete list, None where the service does not say."""


def read_all_pages(
    fetch: Callable[[str, IsValid], Any], read_page: Callable[[Any], Page | None], cursor: str
) -> Iterator[Record]:
    """Yield all records of a service's list from the page of a cursor on, each once; `fetch` returns a valid page."""
    followed, seen = set[str](), set[str]()
    while cursor not in followed:
        followed.add(cursor)
        response = fetch(cursor, lambda value: _is_valid_page(read_page(value), followed, seen))
        page = read_page(response)
        if page is None:
            return
        brings_new = False
        for name, record in page.records:
            if name not in seen:
                brings_new = True
                seen.update([name] if name else [])
                yield record
        # some services name a cursor even on the last page
        if not brings_new or not page.next_cursor or (page.total is not None and len(seen) >= page.total):
            return
        cursor = page.next_cursor


def parse_page(records: object, cursor: object, total: object, name_of: Callable[[Record], str]) -> Page | None:
    """Return the page of a list from the parts of a response, None where it has no list of records."""
    if not isinstance(records, list):
        return None
    named = [(name_of(record), record) for record in records if isinstance(record, dict)]
    return Page(named, cursor if isinstance(cursor, str) else "", total if isinstance(total, int) else None)


def _is_valid_page(page: Page | None, followed: set[str], seen: set[str]) -> bool:
    """Return whether a page is valid, and not an earlier one again while more are still to come."""
    if page is None:
        return False
    names = {name for name, _ in page.records}
    if not names or page.total is None or len(seen | names) >= page.total:
        return True
    return page.next_cursor not in followed and not names <= seen
