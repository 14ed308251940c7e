"""What is particular to a service: its address, where its key goes, how often it may be asked.

    OPENALEX   https://api.openalex.org                      key in $OPENALEX_API_KEY, sent as a parameter
    S2         https://api.semanticscholar.org/graph/v1      key in $S2_API_KEY, sent as a header

A mirror or a test server stands in for one through the address: `service_of("openalex", base="https://mirror.org/oa")`, or
the variable $CITEWEAVE_OPENALEX_URL or $CITEWEAVE_S2_URL. Only https, except for this very machine. Asks nothing: see
`http.py`.

What a service means when it refuses: wait a little, or come back tomorrow.

    429, Retry-After: 2                                burst: wait 2 seconds and go on
    429, X-RateLimit-Remaining: 0, ...-Reset: 11987    the day's budget is gone: stop, renewed in 11,987 seconds
    503                                                trouble on their side: wait, longer each time

OpenAlex tells both kinds of 429 apart by its headers (X-RateLimit-Reset is in seconds from now); Semantic Scholar has only
the first kind. Does not wait or ask: see `http.py`.

Answers kept on disk, so that an interrupted fetch goes on where it stopped and nothing is asked for twice.

    cache/openalex/3f/3f9a...c1.json     line 1: {"at": 1789000000, "status": 200, "request": {...}}, then the answer

A file is named by a hash of the request without the key, and appears whole or not at all. A damaged one counts as absent.
Does not ask anybody: see `http.py`.

Lists that a service gives page by page: every record once, and no page taken for another.

    all_records(ask, read_page, "*")     asks for "*", then for the cursor that the page names, and so on

A service may repeat a page, move records from one page to the next while it is asked, or name a cursor again. A page that
brings nothing new or leads back, though more was promised, is damaged and asked for again; where nothing was promised it ends
the list. Does not know what pages look like: see `openalex.py` and `semantic_scholar.py`.
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

from citeweave.core.artifact import sealed, unsealed
from citeweave.core.errors import UserError, choose
from citeweave.core.files import hash_json, read_input, write_whole

_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
_SHORTEST_KEY, _LONGEST_KEY = 8, 500
_LONGEST_ADDRESS = 1000
_ADDRESS = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?:/[a-z0-9._~!$&'()*+,;=:@%/-]*)?",
    re.IGNORECASE,
)
"""Nothing that two readers of an address could read differently: no user, no escapes in the host, no blanks, no query."""


@dataclass(frozen=True, slots=True)
class Service:
    """Where and how to ask."""

    name: str
    base: str
    """Address that every path is put behind."""

    base_variable: str
    key_variable: str
    key_page: str
    """Where people get a key."""

    per_second: float
    """Requests a second, at most."""

    key_parameter: str = ""
    key_header: str = ""
    slow_down: tuple[int, ...] = (429,)
    """Statuses that mean: too fast, or too much."""

    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not _is_usable(self.base):
            raise UserError(
                f"the address of {self.name} must be https://HOST/PATH, http only for this machine, in plain letters, with no "
                f"user and no question mark; look at ${self.base_variable}"
            )
        # a line break in a header or a shell's quotes around a key would only show up as a refusal, or worse
        if self.key and not (_SHORTEST_KEY <= len(self.key) <= _LONGEST_KEY and _is_plain(self.key)):
            raise UserError(
                f"${self.key_variable} is no key: it must be 8 or more plain letters and digits; set it again"
            )

    def hide(self, text: str) -> str:
        """The text without the key, whoever wrote it there.

        >>> replace(OPENALEX, key="abcd1234").hide("GET /works?api_key=abcd1234")
        'GET /works?api_key=***'
        """
        return re.sub(_spellings(self.key), "***", text) if self.key else text

    def hide_bytes(self, data: bytes) -> bytes:
        """The same for an answer: a service may repeat the request in it."""
        return re.sub(_spellings(self.key).encode(), b"***", data) if self.key else data


@cache
def _spellings(key: str) -> str:
    """A pattern of the key as addresses and JSON may spell it: every sign as it is, as %2F or %252f, as \\u002f, `/` as `\\/`.

    >>> bool(re.fullmatch(_spellings("ab/c"), "a%62%252F\\\\u0063"))
    True
    """
    return "".join(rf"(?:\\?{re.escape(sign)}|(?i:%(?:25)*{ord(sign):02x}|\\u{ord(sign):04x}))" for sign in key)


def _is_usable(address: str) -> bool:
    """Whether requests may go to an address.

    >>> _is_usable("https://mirror.org/oa"), _is_usable("http://[::1]:8080"), _is_usable("https://me@mirror.org")
    (True, True, False)
    """
    read = _ADDRESS.fullmatch(address) if len(address) <= _LONGEST_ADDRESS else None
    if read is None or not 0 < int(read["port"] or 443) < 2**16:
        return False
    return read["scheme"].lower() == "https" or read["host"].lower().strip("[]") in _THIS_MACHINE


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and not any(sign in text for sign in " '\"\\<>")


OPENALEX = Service(
    name="OpenAlex",
    base="https://api.openalex.org",
    base_variable="CITEWEAVE_OPENALEX_URL",
    key_variable="OPENALEX_API_KEY",
    key_page="https://openalex.org/settings/api",
    per_second=10,
    key_parameter="api_key",
    slow_down=(429, 403),  # its pages of help say 403 for too fast and 429 for too much
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
    """A service with its key and address out of the environment; the address given counts most."""
    service = SERVICES[choose(name, SERVICES, "the service")]
    address = base or os.environ.get(service.base_variable, "") or service.base
    return replace(service, base=address.rstrip("/"), key=os.environ.get(service.key_variable, "").strip())


# What a service means when it refuses: wait a little, or come back tomorrow.

_DAY = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """What to do about a refused request."""

    wait: float | None
    """Seconds the service asks to wait, None where it does not say."""

    budget_gone: bool = False
    """True where waiting is in vain before the allowance is renewed, in `wait` seconds."""


def read_refusal(headers: Mapping[str, str], now: datetime, longest_wait: float) -> Refusal:
    """Tell what the headers of a refusal mean. A wait longer than `longest_wait` is as good as a budget that is gone."""
    told = {name.lower(): value for name, value in headers.items()}
    wait = retry_after(told.get("retry-after", ""), now)
    if _is_budget_gone(told):
        reset = _number(told.get("x-ratelimit-reset"))
        usable = reset is not None and 0 < reset <= 2 * _DAY
        renewed = reset if usable and reset is not None else seconds_to_midnight(now)
        return Refusal(renewed, budget_gone=True)
    return Refusal(wait, budget_gone=wait is not None and wait > longest_wait)


def _is_budget_gone(told: dict[str, str]) -> bool:
    for left, needed in (
        ("x-ratelimit-remaining", "x-ratelimit-credits-required"),
        ("x-ratelimit-remaining-usd", "x-ratelimit-cost-required-usd"),
    ):
        remaining, required = _number(told.get(left)), _number(told.get(needed)) or 0.0
        if remaining is not None and (remaining <= 0 or remaining < required):
            return (_number(told.get("x-ratelimit-onetime-remaining")) or 0.0) <= required
    return False


def retry_after(value: str, now: datetime) -> float | None:
    """Seconds in a Retry-After header, which is a number of seconds or an HTTP date (RFC 9110, 10.2.3).

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


def seconds_to_midnight(now: datetime) -> float:
    """Seconds to the next midnight of UTC, when daily budgets are renewed.

    >>> seconds_to_midnight(datetime(2026, 3, 1, 23, 59, 30, tzinfo=UTC))
    30.0
    """
    tomorrow = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return (tomorrow - now).total_seconds()


def at_clock(now: datetime, seconds: float) -> str:
    """When something comes that is so many seconds away.

    >>> at_clock(datetime(2026, 3, 1, 23, 0, tzinfo=UTC), 3600), at_clock(datetime(2026, 3, 1, tzinfo=UTC), 1e18)
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


# Answers kept on disk, so that an interrupted fetch goes on where it stopped and nothing is asked for twice.


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """What is asked for; never holds a key."""

    path: str
    parameters: dict[str, str]
    body: Any = None
    """JSON to POST; None = GET."""

    def as_json(self, base: str) -> dict[str, Any]:
        return {"base": base, "path": self.path, "parameters": self.parameters, "body": self.body}


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """A status and its JSON."""

    status: int
    value: Any


class AnswerCache:
    """The answers of one service under a folder; `keep` is the age in seconds up to which they count, None = any."""

    def __init__(self, folder: Path, keep: float | None = None) -> None:
        self._folder, self._keep = folder, keep

    def find(self, request: dict[str, Any]) -> ServiceResponse | None:
        """The answer to a request, None where it is not there, too old or damaged."""
        try:
            head, _, body = read_input(self._path(request)).partition(b"\n")
            told = unsealed(json.loads(head))
            if told.get("sha256") != _hash(body):
                return None
            if told["request"] != request or (self._keep is not None and time.time() - told["at"] > self._keep):
                return None
            return ServiceResponse(int(told["status"]), json.loads(body))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def keep(self, request: dict[str, Any], status: int, body: bytes) -> None:
        path = self._path(request)
        path.parent.mkdir(parents=True, exist_ok=True)
        told = {"at": int(time.time()), "status": status, "request": request, "sha256": _hash(body)}
        head = json.dumps(sealed(told)).encode()
        write_whole(path, head + b"\n" + body)

    def _path(self, request: dict[str, Any]) -> Path:
        name = hash_json(request)
        return self._folder / name[:2] / f"{name}.json"


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


# Lists that a service gives page by page: every record once, and no page taken for another.

Record = dict[str, Any]
Fits = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    records: list[tuple[str, Record]]
    """Each with its name; an empty name is no other's."""

    following: str
    """The cursor of the next page, empty where there is none."""

    promised: int | None
    """Records of the whole list, None where the service does not say."""


def all_records(
    ask: Callable[[str, Fits], Any], read_page: Callable[[Any], Page | None], cursor: str
) -> Iterator[Record]:
    """All records of a list, from the page of a cursor on; `ask` gives an answer that fits."""
    followed, met = set[str](), set[str]()
    while cursor not in followed:
        followed.add(cursor)
        answer = ask(cursor, lambda value: _is_sound(read_page(value), followed, met))
        page = read_page(answer)
        if page is None:
            return
        brings_new = False
        for name, record in page.records:
            if name not in met:
                brings_new = True
                met.update([name] if name else [])
                yield record
        # a cursor may come even after the last page
        if not brings_new or not page.following or (page.promised is not None and len(met) >= page.promised):
            return
        cursor = page.following


def _is_sound(page: Page | None, followed: set[str], met: set[str]) -> bool:
    """Whether a page is one, and not an older one once more while others are still to come."""
    if page is None:
        return False
    names = {name for name, _ in page.records}
    if not names or page.promised is None or len(met | names) >= page.promised:
        return True
    return page.following not in followed and not names <= met
