from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.errors import UserError
from citeweave.core.progress import Reporter
from citeweave.corpus.services.client import Client, HttpOptions, ServiceStoppedError, WrongRequestError
from citeweave.corpus.services.service import (
    OPENALEX,
    S2,
    ResponseCache,
    Service,
    ServiceRequest,
    read_refusal,
    service_of,
)

KEY = "s3cret-KEY-0123456789"
WORKS = ServiceRequest("/works", {"filter": "doi:10.1/a|10.1/b"})


def client_of(
    service: Service, cache: Path | None = None, waits: list[float] | None = None, **options: object
) -> Client:
    waited = [] if waits is None else waits
    return Client(service, cache, HttpOptions(**options), pause=waited.append)  # type: ignore[arg-type]


def test_a_kept_answer_is_not_asked_for_again(server: Any, tmp_path: Path) -> None:
    server.answer = lambda asked: server.reply({"results": [1]})
    assert client_of(server.openalex(), tmp_path).fetch(WORKS).value == {"results": [1]}
    assert client_of(server.openalex(), tmp_path).fetch(WORKS).value == {"results": [1]}
    assert len(server.asked) == 1 and server.asked[0].query == {"filter": "doi:10.1/a|10.1/b"}
    client_of(server.openalex(KEY), tmp_path).fetch(WORKS)  # with and without a key a request is the same
    client_of(server.openalex(), tmp_path, keep_days=0).fetch(WORKS)
    client_of(server.openalex(), tmp_path).fetch(ServiceRequest("/works", {"filter": "doi:10.1/c"}))
    assert len(server.asked) == 3


def test_a_damaged_kept_answer_is_asked_for_again(server: Any, tmp_path: Path) -> None:
    client = client_of(server.openalex(), tmp_path)
    client.fetch(WORKS)
    for path in tmp_path.rglob("*.json"):
        path.write_bytes(path.read_bytes()[:-3])
    client.fetch(WORKS)
    assert client.requests == 2


def test_what_the_service_lacks_is_kept_too(server: Any, tmp_path: Path) -> None:
    server.answer = lambda asked: server.reply({"error": "not found"}, 404)
    client = client_of(server.s2(), tmp_path)
    assert [client.fetch(WORKS).status for _ in range(2)] == [404, 404]
    assert client.requests == 1


def test_a_burst_is_waited_out_as_told(server: Any) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=55), usegmt=True)
    server.script = [
        server.reply({}, 429, {"Retry-After": "7"}),
        server.reply({}, 429, {"Retry-After": later}),
        server.reply({"ok": 1}),
    ]
    waits: list[float] = []
    assert client_of(server.openalex(), None, waits).fetch(WORKS).value == {"ok": 1}
    told = [wait for wait in waits if wait > 0.01]
    assert 7 <= told[0] <= 7.2 and 25 <= told[1] <= 56  # less what the first answers took


def test_without_retry_after_waits_grow_and_repeat_with_the_seed(server: Any) -> None:
    def waited(seed: int) -> list[float]:
        server.script = [
            server.reply({}, 429),
            server.reply({}, 503),
            server.reply(raw=b'{"half": '),
            server.reply({"ok": 1}),
        ]
        waits: list[float] = []
        client_of(server.s2(), None, waits, seed=seed).fetch(WORKS)
        return [wait for wait in waits if wait > 0.01]

    first = waited(1)
    assert len(first) == 3 and all(2**n * 0.5 <= wait <= 2**n * 1.5 for n, wait in enumerate(first))
    assert waited(1) == first and waited(2) != first


def test_a_budget_that_is_gone_stops_and_says_when_it_is_renewed(server: Any) -> None:
    server.script = [
        server.reply({}, 429, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "7200", "Retry-After": "1"})
    ]
    waits: list[float] = []
    with pytest.raises(ServiceStoppedError, match=r"renewed at 20\d\d-.* UTC.*kept.*OPENALEX_API_KEY"):
        client_of(server.openalex(), None, waits).fetch(WORKS)
    assert len(server.asked) == 1 and not [wait for wait in waits if wait > 0.01]


def test_kinds_of_429() -> None:
    now = datetime(2026, 3, 1, 22, 0, tzinfo=UTC)
    assert read_refusal({"Retry-After": "3"}, now, 60).wait == 3
    assert not read_refusal(
        {"X-RateLimit-Remaining": "900", "X-RateLimit-Credits-Required": "10"}, now, 60
    ).budget_used_up
    dear = read_refusal({"X-RateLimit-Remaining": "9", "X-RateLimit-Credits-Required": "10"}, now, 60)
    assert dear.budget_used_up and dear.wait == 2 * 3600  # no reset told: midnight
    assert read_refusal({"X-RateLimit-Remaining-USD": "0", "X-RateLimit-Reset": "50"}, now, 60).wait == 50
    assert read_refusal({"Retry-After": "61"}, now, 60).budget_used_up
    assert not read_refusal({"X-RateLimit-Remaining": "soon", "Retry-After": "nan"}, now, 60).budget_used_up


@pytest.mark.parametrize("told", ["86400", "1e300", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_server_in_trouble_cannot_make_us_wait_for_ever(server: Any, told: str) -> None:
    server.script = [server.reply({}, 503, {"Retry-After": told}), server.reply({"ok": 1})]
    waits: list[float] = []
    assert client_of(server.openalex(), None, waits, max_wait=20).fetch(WORKS).value == {"ok": 1}
    assert max(waits) <= 20.2


def test_a_key_is_hidden_however_it_is_written() -> None:
    service = replace(OPENALEX, key="ab/cd+ef=12345")
    for form in (
        "ab/cd+ef=12345",
        "ab/cd%2Bef%3D12345",
        "ab%2Fcd%2Bef%3D12345",
        "ab%2fcd%2bef%3d12345",
        "ab%252Fcd%252Bef%253D12345",
        "ab\\/cd+ef=12345",
        "ab\\u002fcd\\u002Bef\\u003d12345",
    ):
        assert service.hide(f"GET /?api_key={form}") == "GET /?api_key=***"
        assert service.hide_bytes(f'{{"url": "?api_key={form}"}}'.encode()) == b'{"url": "?api_key=***"}'


def test_tries_end(server: Any) -> None:
    server.answer = lambda asked: server.reply({"message": "we are\nsorry"}, 502)
    with pytest.raises(ServiceStoppedError, match="3 attempts: status 502: 'we are sorry'"):
        client_of(server.s2(), tries=3).fetch(WORKS)
    assert len(server.asked) == 3


def test_a_server_that_is_gone_is_tried_again_and_named() -> None:
    service = replace(OPENALEX, base="http://127.0.0.1:9", key=KEY)
    with pytest.raises(ServiceStoppedError, match="no connection") as caught:
        client_of(service, tries=2).fetch(WORKS)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest",
        "//example.org/x",
        "file:///etc/passwd",
        "https://127.0.0.1/",
        "http://[127.0.0.1/",
        "/w\xf6rks",
        "",
    ],
)
def test_a_redirection_elsewhere_is_refused(server: Any, location: str) -> None:
    server.script = [server.reply({}, 302, {"Location": location})]
    with pytest.raises(UserError, match="redirects to another address"):
        client_of(server.openalex(KEY)).fetch(WORKS)
    assert len(server.asked) == 1


def test_a_redirection_on_the_same_host_is_followed_but_not_for_ever(server: Any) -> None:
    server.script = [server.reply({}, 301, {"Location": "/works/W2"}), server.reply({"id": "W2"})]
    assert client_of(server.openalex(KEY)).fetch(ServiceRequest("/works/W1", {})).value == {"id": "W2"}
    assert [asked.query for asked in server.asked] == [{"api_key": KEY}] * 2
    server.answer = lambda asked: server.reply({}, 302, {"Location": "/again"})
    with pytest.raises(UserError, match="in circles"):
        client_of(server.openalex()).fetch(WORKS)


def test_an_oversized_answer_is_refused(server: Any) -> None:
    large = json.dumps({"results": "x" * 5000}).encode()
    for reply in (
        server.reply(raw=large),
        server.reply(raw=gzip.compress(large), headers={"Content-Encoding": "gzip"}),
    ):
        server.script = [reply]
        with pytest.raises(UserError, match="larger than 4,000 bytes"):
            client_of(server.openalex(), max_bytes=4000).fetch(WORKS)
        server.script = [reply]
        assert len(client_of(server.openalex(), max_bytes=len(large)).fetch(WORKS).value["results"]) == 5000


def test_the_key_is_sent_and_shown_nowhere(server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def echo(asked: Any) -> Any:
        return server.reply({"error": f"bad api_key={KEY}", "next": f"https://x/?api_key={KEY}"}, 200)

    server.answer = echo
    for service, sent in ((server.openalex(KEY), "api_key"), (server.s2(KEY), "x-api-key")):
        client = Client(
            service, tmp_path / service.name, HttpOptions(tries=2), reporter=Reporter(), pause=lambda seconds: None
        )
        assert KEY not in str(client.fetch(WORKS).value) and KEY not in repr(service)
        asked = server.asked[-1]
        headers = {name.lower(): value for name, value in asked.headers.items()}
        assert {**asked.query, **headers}[sent] == KEY
        for status in (400, 401, 429, 500):
            server.script = [server.reply({"message": f"{KEY} is wrong"}, status, {"Retry-After": "6"})] * 2
            with pytest.raises(UserError) as caught:
                client.fetch(ServiceRequest("/other", {"status": str(status)}))
            assert KEY not in str(caught.value) and KEY not in repr(caught.value.__context__)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) == 2
    assert all(KEY not in path.name and KEY.encode() not in path.read_bytes() for path in kept)
    shown = capsys.readouterr()
    assert "retrying in" in shown.err and KEY not in shown.err + shown.out


def test_wrong_requests_and_wrong_keys_are_not_repeated(server: Any) -> None:
    server.answer = lambda asked: server.reply({"error": "Invalid filter"}, 400)
    with pytest.raises(WrongRequestError, match="'Invalid filter'"):
        client_of(server.openalex()).fetch(WORKS)
    server.answer = lambda asked: server.reply({"message": "Forbidden"}, 403)
    with pytest.raises(UserError, match=r"check the key in \$S2_API_KEY"):
        client_of(server.s2(KEY)).fetch(WORKS)
    assert len(server.asked) == 2


class MadeUpTime:
    """Seconds that pass only where somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_requests_are_spaced_however_late_they_arrive(server: Any) -> None:
    time, seen = MadeUpTime(), list[float]()

    def late(asked: Any) -> Any:
        time.wait(0.4)  # on its way
        seen.append(time())
        return server.reply({})

    server.answer = late
    for number in range(3):  # all clients of a service keep one pace
        client = Client(replace(server.openalex(), per_second=2.0), pause=time.wait, clock=time)
        client.fetch(ServiceRequest("/works", {"n": str(number)}))
    assert seen == pytest.approx([0.4, 1.3, 2.2])


def test_a_service_that_dribbles_is_cut_off() -> None:
    """A byte of the headers now and then never times out by itself."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def dribble() -> None:
            for _ in range(2):
                with contextlib.suppress(OSError), listening.accept()[0] as connection:
                    for _ in range(60_000):  # twenty minutes
                        connection.sendall(b"H")
                        time.sleep(0.02)

        threading.Thread(target=dribble, daemon=True).start()
        service = replace(OPENALEX, base=f"http://127.0.0.1:{listening.getsockname()[1]}", per_second=1e6)
        begun = time.monotonic()
        with pytest.raises(ServiceStoppedError, match="took longer than"):
            client_of(service, tries=2, deadline=0.2).fetch(WORKS)
        assert time.monotonic() - begun < 300


def test_what_passes_is_tried_again(server: Any) -> None:
    server.script = [server.reply({}, 408), server.reply({}, 425), server.reply({"ok": 1})]
    assert client_of(server.s2()).fetch(WORKS).value == {"ok": 1}


@pytest.mark.parametrize(
    "base",
    [
        "http://api.openalex.org",
        "file:///etc",
        "https://",
        "https://user@host",
        "https://host/?a=1",
        "ftp://127.0.0.1",
        "x",
        "https://@host",
        "https://host?",
        "https://host\\@other",
        "https://ho%73t",
        "https://[::g]",
        "https://[::1",
        "https://a..b",
        "https://\u2603.org",
        "https://host/\u2603",
        "https://host/a b",
        "https://host\r\nX-Evil: 1",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "https://host:x",
        "https://host/" + "x" * 2000,
    ],
)
def test_addresses_must_be_safe(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"CITEWEAVE_OPENALEX_URL"):
        service_of("openalex", base=base)
    monkeypatch.setenv("CITEWEAVE_OPENALEX_URL", base)
    with pytest.raises(UserError, match="https"):
        service_of("openalex")


@pytest.mark.parametrize("key", ["short", "line\r\nX-Evil: 1", "'quoted-key'", "with blank inside", "ключ-ключ-ключ"])
def test_a_key_that_is_none_is_refused_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2_API_KEY", key)
    with pytest.raises(UserError, match=r"\$S2_API_KEY is not a key") as caught:
        service_of("s2")
    assert key not in str(caught.value)


def test_services_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert service_of("s2").base == S2.base
    monkeypatch.setenv("CITEWEAVE_S2_URL", "https://mirror.example.org/s2/")
    monkeypatch.setenv("S2_API_KEY", KEY)
    assert service_of("s2").base == "https://mirror.example.org/s2" and service_of("s2").key == KEY
    with pytest.raises(UserError, match="openalex, s2"):
        service_of("scopus")


def test_two_requests_never_share_a_file(tmp_path: Path) -> None:
    cache = ResponseCache(tmp_path)
    cache.save({"path": "/a"}, 200, b"1")
    cache.save({"path": "/b"}, 200, b"2")
    found = [cache.load({"path": path}) for path in ("/a", "/b", "/c")]
    assert [one.value if one else None for one in found] == [1, 2, None]
