"""A service that sends its client elsewhere, in any spelling: nobody but the service is contacted or sees the key.

Every lookup and connection of the process is recorded. A listener on another port of the same machine stands for whoever
is not to be contacted; what would leave the machine is recorded and prevented.
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from citeweave.core.errors import UserError
from citeweave.corpus.services.client import Client, HttpOptions
from citeweave.corpus.services.openalex import OpenAlex
from citeweave.corpus.services.semantic_scholar import SemanticScholar
from citeweave.corpus.services.service import OPENALEX, S2, Service, ServiceRequest, service_of

from .counting import one_line
from .services import MadeUpTime, Received, RedirectingService, answer_of, contacts, redirection

KEY = "k3y/With+signs=0123456789"
KEY_SPELLINGS = (KEY, quote(KEY), quote(KEY, safe=""))
SERVICES = {"openalex": OPENALEX, "s2": S2}
CLIENTS: dict[str, Any] = {"openalex": OpenAlex, "s2": SemanticScholar}
STATUSES = (301, 302, 303, 307, 308)
LIMITS = HttpOptions(timeout=20, deadline=20, tries=2)
REQUESTS = {
    "GET": ServiceRequest("/works", {"filter": "doi:10.1/a"}),
    "POST": ServiceRequest("/paper/batch", {}, {"ids": ["a"]}),
}

ELSEWHERE = (
    "http://127.0.0.1:{other}/", "http://localhost:{other}/", "http://localhost:{own}/", "http://[::1]:{other}/", "http://[::1]:{own}/",
    "http://127.0.0.1/", "http://127.0.0.1:80/", "http://2130706433:{other}/", "http://0177.0.0.1:{other}/", "http://0x7f000001:{other}/",
    "http://127.1:{other}/", "http://0:{other}/", "http://0.0.0.0:{own}/", "http://127.0.0.2:{own}/", "http://[::ffff:127.0.0.1]:{own}/",
    "http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://metadata.google.internal/", "http://example.org/",
    "https://127.0.0.1:{own}/", "https://example.org/", "//127.0.0.1:{other}/x", "//example.org/", "///example.org/", "////example.org/",
    "http:///127.0.0.1:{other}/", "http:////127.0.0.1:{other}/", "file:///etc/passwd", "file://127.0.0.1:{own}/etc/passwd", "file:/etc/passwd",
    "FILE:///etc/passwd", "ftp://127.0.0.1:{other}/", "ftp://127.0.0.1:{own}/", "data:application/json,{{}}", "data:,x", "gopher://127.0.0.1:{other}/_GET",
    "jar:http://127.0.0.1:{other}!/", "javascript:alert(1)", "unix:/run/docker.sock", "dict://127.0.0.1:{other}/", "ws://127.0.0.1:{own}/",
    "http://127.0.0.1:{own}@127.0.0.1:{other}/", "http://127.0.0.1:{own}@example.org/", "http://user:pw@127.0.0.1:{own}/", "http://@127.0.0.1:{own}/",
    "http://127.0.0.1:{own}#@example.org:{other}/../..@127.0.0.1:{other}", "http://127.0.0.1:{own}\\@example.org/", "http://example.org\\@127.0.0.1:{own}/",
    "http://127.0.0.1:{own}%40example.org/", "http://127.0.0.1:{own}%2f@example.org/", "http://127.0.0.1:{own}.example.org/", "http://127.0.0.1.example.org:{own}/",
    "\\\\example.org\\x", "/\\example.org/", "\\/example.org/", "http:\\\\example.org/", "http:/\\example.org/", "HTTP://EXAMPLE.ORG/", "HtTp://127.0.0.1:{other}/",
    "\thttp://127.0.0.1:{other}/", " http://127.0.0.1:{other}/", "ht\ttp://127.0.0.1:{other}/", "http://127.0.0.1:{own}\t@example.org/",
    "http://127.0.0.1:{own}0/", "http://127.0.0.1:99999/", "http://127.0.0.1:-1/", "http://127.0.0.1:x/", "http://127.0.0.1:/", "http://[::1/", "http://[/",
    "http://", "http:", "//", ":", "", " ", "http://127.0.0.1:{own}\x00.example.org/", "http://127.0.0.1\xff:{own}/", "http://\xb9\xb2\xb7.0.0.1:{other}/",
    "http://example.org/{long}", "http://{long}.example.org/", "//127.0.0.1:{other}/{key}", "http://{key}.example.org/",
)  # fmt: skip
"""Addresses, most of them of others; the few that the rules of addresses take for the service's own are followed to it."""

SAME_PLACE = (
    "/moved", "moved", "?page=2", "?", "#", "#part", ".", "..", "../../../..", "/../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/a%00b", "/a%0d%0aX-Injected:%201",
    "/a b", "/a\tb", "/a\x00b", "/a\x7fb", "/a\r\n X-Injected: 1", "/a\r\n\tb", "/a\rX-Injected: 1", "/\xe4", "/{long}", "?{long}", "HTTP://127.0.0.1:{own}/moved",
    "http://127.0.0.1:{own}", "http://127.0.0.1:{own}/?api_key=other", "http://127.0.0.1:{own}/{key}", ";x", "/a\\b", "/http://example.org/", "/?http://example.org/",
)  # fmt: skip
"""Addresses of the service itself, which may be followed."""


def client_of(service: Service, base: str) -> Client:
    time = MadeUpTime()
    return Client(replace(service, base=base, key=KEY), None, LIMITS, pause=time.pause, clock=time)


def ask(client: Client, request: ServiceRequest) -> str:
    """Why a request was refused, empty where an answer came; any error but a user's leaves this function."""
    try:
        client.fetch(request)
    except UserError as error:
        message = one_line(error, 600)
        assert not [spelling for spelling in KEY_SPELLINGS if spelling in message], message
        return message
    return ""


@contextlib.contextmanager
def alone(service: RedirectingService, other: RedirectingService) -> Iterator[set[tuple[str, int]]]:
    """What happens inside contacts the service alone, and sends no header that somebody else wrote."""
    service.received.clear()
    other.received.clear()
    with contacts(service.port, other.port) as contacted:
        yield contacted
    assert not other.received, f"the listener received {other.received[0]}"
    assert contacted <= {("127.0.0.1", service.port)}, f"contacted {contacted}"
    assert not any("x-injected" in one.headers for one in service.received), "a header was injected"


def test_redirections(trial, services):
    """A redirection to another scheme, host or port, in any spelling, is refused by name; the key goes to the service alone."""
    service, other = services
    told = {"own": service.port, "other": other.port, "key": quote(KEY, safe=""), "long": "x" * 50_000}
    places, refused = (*ELSEWHERE, *SAME_PLACE), 0
    tries = [(place, status, name) for place in places for status in STATUSES for name in SERVICES]
    for number, (location, status, name) in enumerate(trial.some(tries, quick=250)):
        with trial.attempt(f"{status} of {name} to {location!r}"):
            replies = iter([redirection(status, location.format(**told).encode("latin-1"))])
            service.reply = lambda target, replies=replies: next(replies, answer_of({}))
            with alone(service, other):
                message = ask(client_of(SERVICES[name], service.base), REQUESTS["POST" if number % 2 else "GET"])
            if location not in SAME_PLACE and message:
                assert "redirects to another address" in message, message
                assert len(service.received) == 1, f"{len(service.received)} requests"
            refused += bool(message)
    trial.facts |= {"refused": refused, "addresses": len(places)}


def test_circles(trial, services):
    """Redirections without end on the service's own host are followed a few times, then refused."""
    service, _ = services
    for status in STATUSES:
        for step in ("/again", "?again", "../again", "/a{0}", "/{0}/../{0}"):
            with trial.attempt(f"{status} to {step}"):
                places = (step.format(number).encode() for number in itertools.count())
                service.reply = lambda target, places=places, status=status: redirection(status, next(places))
                with alone(*services):
                    message = ask(client_of(S2, service.base), REQUESTS["GET"])
                assert "redirects in circles" in message and len(service.received) <= 5, message


ODD_BASES = (
    "http://127.0.0.1:99999", "http://127.0.0.1:-1", "http://127.0.0.1:0", "http://127.0.0.1:x", "http://127.0.0.1:", "http://[::1", "http://[::1]x", "https://[::g]",
    "http://localhost:{own}@example.org", "https://user@example.org", "https://:pw@example.org", "https://@example.org", "http://example.org", "http://127.0.0.1.example.org",
    "http://2130706433:{other}", "http://0x7f.1:{other}", "http://0:{other}", "http://127.1:{other}", "ftp://127.0.0.1:{other}", "file:///etc", "data:,x", "gopher://127.0.0.1:{other}",
    "127.0.0.1:{own}", "//127.0.0.1:{own}", "https://", "https:", "http:/127.0.0.1:{own}", "https:///x", "x", "https://example.org?x", "https://example.org#x", "https://example.org?",
    "http://127.0.0.1:{own}/a b", "http://127.0.0.1:{own}/a\tb", "http://127.0.0.1:{own}/a\r\nX-Injected: 1", "http://127.0.0.1:{own}\r\nX-Injected: 1", "http://127.0.0.1:{own}/\xe4",
    "http://127.0.0.1:{own}/\u2603", "https://\u2603.example.org", "https://\u2100.example.org", "https://example.org\u2044x", "https://.example.org", "https://exa mple.org",
    "https://a..b", "https://" + "x" * 300 + ".org", "http://127.0.0.1:{own}/\x7f", "http://127.0.0.1:{own}\\@example.org", "https://example.org\\x",
    "https://exa%6Dple.org", "https://127.0.0.1:{own}%2f@x", "http://127.0.0.1:{own}/" + "x" * 70_000, "http://127.0.0.1:{own}/\udcff",
)  # fmt: skip
GOOD_BASES = tuple(f"{start}127.0.0.1:{{own}}{end}" for start, end in (("http://", ""), ("http://", "/"), ("http://", "/a/b/"), ("HTTP://", "/%7Ea")))  # fmt: skip


@pytest.mark.parametrize("name", SERVICES)
def test_odd_addresses(name, trial, services, monkeypatch):
    """An address in the environment that cannot be meant is refused in one line that names the variable, before any request."""
    service, other = services
    service.reply = lambda target: answer_of({})
    variable = SERVICES[name].base_variable
    monkeypatch.setenv(SERVICES[name].key_variable, KEY)
    for base in (*ODD_BASES, *GOOD_BASES):
        with trial.attempt(repr(base[:100])):
            monkeypatch.setenv(variable, base.format(own=service.port, other=other.port))
            with alone(*services) as contacted:
                try:
                    message = ask(client_of(service_of(name), service_of(name).base), REQUESTS["GET"])
                except UserError as error:
                    message = one_line(error, 600)
            is_good = base in GOOD_BASES
            assert len(service.received) == is_good == len(contacted), f"contacted {contacted}"
            assert not message if is_good else variable in message


PAYLOADS = (
    "http://127.0.0.1:{other}/", "//127.0.0.1:{other}/", "../../../x", "/x", "?x=1", "#x", "&api_key=other", "&x=1#", "x&filter=doi:1", "%26x%3D1", "%00", "a b", "a+b", "a/b\\c",
    "\r\nX-Injected: 1", "a\r\n\r\nGET / HTTP/1.1", "\x00", "\x7f\x1b[2J", "\u2603", "\ud800", "\udfff\ud800", "{{}}", "|W2", "W1,title.search:x", "W1|W2", "@127.0.0.1:{other}",
    "s2sha:..", "!x", "x" * 20_000, "..%2f..%2fx", "..;/x", "1;x=2", "\u2028", "\u202e", "\uff0f\uff1f", "'\"<>", "*" * 3, " ",
)  # fmt: skip
QUERY_NAMES = set(re.findall(r"\w+", "filter search sort select per_page cursor query fields token limit api_key"))
PATHS = re.compile(r"/works|/paper/batch|/paper/search/bulk|/paper/search/match|/paper/[0-9a-f]{40}/citations")
FILTERS = re.compile(r"(doi|pmid|pmcid|mag|openalex|cites|title\.search):[^,]*")
SHA = "1" * 40


def check_request(one: Received, name: str) -> dict[str, str]:
    """Whether a request is of the known form, with the key where it belongs; what it asks for."""
    address = urlsplit(one.target)
    assert PATHS.fullmatch(address.path), f"the path {one.target[:200]!r}"
    query = parse_qsl(address.query, keep_blank_values=True, strict_parsing=True)
    assert len(dict(query)) == len(query) and dict(query).keys() <= QUERY_NAMES, f"the query {query}"
    sent = dict(query).get("api_key") if name == "openalex" else one.headers.get("x-api-key")
    assert sent == KEY, f"the key {sent!r}"
    assert FILTERS.fullmatch(dict(query).get("filter", "doi:")), dict(query)["filter"][:200]
    return dict(query)


def page_with(payload: str, name: str, target: str) -> Any:
    """A page whose cursor, ids and titles are a payload; the second one is the last."""
    is_later = "cursor=%2A&" not in f"{target}&" if name == "openalex" else "token=" in target
    if name == "openalex":
        works = [{"id": f"https://openalex.org/W{int(is_later) + 1}", "title": payload}, {"id": payload}]
        return {"meta": {"count": 9, "next_cursor": None if is_later else payload}, "results": works}
    paper = {"paperId": f"{int(is_later):040x}", "title": payload}
    if "/paper/batch" in target:
        return [paper, {"paperId": payload}]
    papers = [paper, {"paperId": payload, "title": "T"}, {"paperId": f"{SHA}/{payload}"}]
    return {"total": 9, "token": None if is_later else payload, "data": papers}


ASKED: dict[str, Callable[[Any, str], Any]] = {
    "search": lambda it, payload: list(it.search("moths", 50)),
    "search for it": lambda it, payload: list(it.search(payload, 50)),
    "ids": lambda it, payload: list(it.by_ids(f"{kind}:{payload}" for kind in ("doi", "arxiv", "s2", "openalex"))),
    "title": lambda it, payload: it.by_title(payload),
    "citing": lambda it, payload: list(it.citing([f"openalex:{payload}", f"s2sha:{payload}", f"s2sha:{SHA}"], 50)),
}


@pytest.mark.parametrize("name", SERVICES)
def test_payloads_in_answers_and_ids(name, trial, services):
    """Cursors and ids of strangers stay in their parameter: no other path, no other parameter, no header, no other host."""
    (service, other), requests = services, 0
    for template in PAYLOADS:
        payload = template.format(other=other.port)
        for asked, fetch in ASKED.items():
            with trial.attempt(f"{asked}: {payload[:60]!r}"):
                service.reply = lambda target, payload=payload: answer_of(page_with(payload, name, target))
                with alone(*services), contextlib.suppress(UserError):
                    fetch(CLIENTS[name](client_of(SERVICES[name], service.base)), payload)
                queries = [check_request(one, name) for one in service.received]
                cursors = {query.get("cursor") or query.get("token") for query in queries} - {None, "*"}
                assert cursors <= {payload.encode("utf-8", "replace").decode()}, f"the cursor {cursors}"
                requests += len(queries)
    trial.facts["requests"] = requests


@pytest.mark.parametrize("name", SERVICES)
def test_cursors_without_end(name, trial, services):
    """A list that repeats its records behind ever new cursors ends, with every record once."""
    service, _ = services
    for count in (None, 0, 3, 10**9, -1, "many", True):
        with trial.attempt(f"count {count}"):

            def reply(target: str, count: Any = count) -> bytes:
                assert len(service.received) < 20, "it never ends"
                works = [{"id": "W1", "title": "T"}, {"id": "W2", "title": "T"}]
                papers = [{"paperId": "1" * 40, "title": "T"}, {"paperId": "2" * 40, "title": "T"}]
                if "/paper/batch" in target:
                    return answer_of(papers)
                cursor = f"c{len(service.received)}"
                meta = {"next_cursor": cursor, "count": count}
                return answer_of({"meta": meta, "results": works, "data": papers, "token": cursor, "total": count})

            service.reply, records = reply, []
            with alone(*services), contextlib.suppress(UserError):
                for record in CLIENTS[name](client_of(SERVICES[name], service.base)).search("moths", 1000):
                    records.append(record)
            assert len(records) == len({str(record) for record in records}) <= 2
            assert len(service.received) < 10, f"{len(service.received)} requests"
