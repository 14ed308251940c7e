"""What is particular to a service: its address, where its key goes, how often it may be asked.

    OPENALEX   https://api.openalex.org                      key in $OPENALEX_API_KEY, sent as a parameter
    S2         https://api.semanticscholar.org/graph/v1      key in $S2_API_KEY, sent as a header

A mirror or a test server stands in for one through the address: `service_of("openalex", base="https://mirror.org/oa")`, or
the variable $CITEWEAVE_OPENALEX_URL or $CITEWEAVE_S2_URL. Only https, except for this very machine. Asks nothing: see
`http.py`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from functools import cache

from citeweave.errors import UserError, choose

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
