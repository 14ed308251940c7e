"""Requests to services: repeated, paced, cached and refused as the services say; keys are never shown."""

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
from citeweave.corpus.services.service import OPENALEX, Service, ServiceRequest

from ..conftest import refused

KEY = "s3cret-KEY-0123456789"
WORKS = ServiceRequest("/works", {"filter": "doi:10.1/a|10.1/b"})


def client_of(service: Service, cache: Path | None = None, waits: list[float] | None = None, **options: Any) -> Client:
    return Client(service, cache, HttpOptions(**options), pause=([] if waits is None else waits).append)


def test_a_cached_response_is_not_requested_again(server, tmp_path):
    server.answer = lambda request: server.reply({"results": [1]})
    assert client_of(server.openalex(), tmp_path).fetch(WORKS).value == {"results": [1]}
    assert client_of(server.openalex(), tmp_path).fetch(WORKS).value == {"results": [1]}
    assert len(server.requests) == 1 and server.requests[0].query == {"filter": "doi:10.1/a|10.1/b"}
    client_of(server.openalex(KEY), tmp_path).fetch(WORKS)  # with and without a key a request is the same
    client_of(server.openalex(), tmp_path, keep_days=0).fetch(WORKS)
    client_of(server.openalex(), tmp_path).fetch(ServiceRequest("/works", {"filter": "doi:10.1/c"}))
    assert len(server.requests) == 3
    for path in tmp_path.rglob("*.json"):
        path.write_bytes(path.read_bytes()[:-3])  # a damaged one is
    client_of(server.openalex(), tmp_path).fetch(WORKS)
    assert len(server.requests) == 4
    server.answer = lambda request: server.reply({"error": "not found"}, 404)
    client = client_of(server.s2(), tmp_path / "s2")  # what the service lacks is cached too
    assert [client.fetch(WORKS).status for _ in range(2)] == [404, 404] and client.requests == 1


def test_a_burst_is_waited_out_as_the_service_says(server):
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=55), usegmt=True)
    refusals = [server.reply({}, 429, {"Retry-After": after}) for after in ("7", later)]
    server.script, waits = [*refusals, server.reply({"ok": 1})], list[float]()
    assert client_of(server.openalex(), None, waits).fetch(WORKS).value == {"ok": 1}
    first, second = (wait for wait in waits if wait > 0.01)
    assert 7 <= first <= 7.2 and 25 <= second <= 56  # less what the first responses took


def test_without_retry_after_waits_grow_and_repeat_with_the_seed(server):
    def waited(seed):
        failures = [server.reply({}, 429), server.reply({}, 503), server.reply(raw=b'{"half": ')]
        server.script, waits = [*failures, server.reply({"ok": 1})], list[float]()
        client_of(server.s2(), None, waits, seed=seed).fetch(WORKS)
        return [wait for wait in waits if wait > 0.01]

    first = waited(1)
    assert len(first) == 3 and all(2**n * 0.5 <= wait <= 2**n * 1.5 for n, wait in enumerate(first))
    assert waited(1) == first and waited(2) != first


def test_a_budget_that_is_used_up_stops_and_says_when_it_is_renewed(server):
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "7200", "Retry-After": "1"}
    server.script, waits = [server.reply({}, 429, headers)], list[float]()
    with pytest.raises(ServiceStoppedError, match=r"renewed at 20\d\d-.* UTC.*kept.*OPENALEX_API_KEY"):
        client_of(server.openalex(), None, waits).fetch(WORKS)
    assert len(server.requests) == 1 and not [wait for wait in waits if wait > 0.01]


@pytest.mark.parametrize("after", ["86400", "1e300", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_server_in_trouble_cannot_make_us_wait_for_ever(server, after):
    server.script = [server.reply({}, 503, {"Retry-After": after}), server.reply({"ok": 1})]
    waits: list[float] = []
    assert client_of(server.openalex(), None, waits, max_wait=20).fetch(WORKS).value == {"ok": 1}
    assert max(waits) <= 20.2


def test_what_may_pass_is_tried_again_but_not_for_ever(server):
    server.script = [server.reply({}, 408), server.reply({}, 425), server.reply({"ok": 1})]
    assert client_of(server.s2()).fetch(WORKS).value == {"ok": 1}
    server.answer = lambda request: server.reply({"message": "we are\nsorry"}, 502)
    with pytest.raises(ServiceStoppedError, match="3 attempts: status 502: 'we are sorry'"):
        client_of(server.s2(), tries=3).fetch(WORKS)
    assert len(server.requests) == 3 + 3
    nobody = replace(OPENALEX, base="http://127.0.0.1:9", key=KEY)
    with pytest.raises(ServiceStoppedError, match="no connection") as caught:
        client_of(nobody, tries=2).fetch(WORKS)
    assert KEY not in str(caught.value)


ELSEWHERE = "http://169.254.169.254/latest https://127.0.0.1/ http://[127.0.0.1/ //a.org/x file:///etc/passwd /w\xf6rks"


@pytest.mark.parametrize("location", [*ELSEWHERE.split(), ""])
def test_a_redirection_elsewhere_is_refused(server, location):
    server.script = [server.reply({}, 302, {"Location": location})]
    refused("redirects to another address", client_of(server.openalex(KEY)).fetch, WORKS)
    assert len(server.requests) == 1


def test_a_redirection_on_the_same_host_is_followed_but_not_for_ever(server):
    server.script = [server.reply({}, 301, {"Location": "/works/W2"}), server.reply({"id": "W2"})]
    assert client_of(server.openalex(KEY)).fetch(ServiceRequest("/works/W1", {})).value == {"id": "W2"}
    assert [request.query for request in server.requests] == [{"api_key": KEY}] * 2
    server.answer = lambda request: server.reply({}, 302, {"Location": "/again"})
    refused("in circles", client_of(server.openalex()).fetch, WORKS)


def test_an_oversized_response_is_refused(server):
    large = json.dumps({"results": "x" * 5000}).encode()
    packed = server.reply(raw=gzip.compress(large), headers={"Content-Encoding": "gzip"})
    for reply in (server.reply(raw=large), packed):
        server.script = [reply]
        refused("larger than 4,000 bytes", client_of(server.openalex(), max_bytes=4000).fetch, WORKS)
        server.script = [reply]
        assert len(client_of(server.openalex(), max_bytes=len(large)).fetch(WORKS).value["results"]) == 5000


def test_the_key_is_sent_and_shown_nowhere(server, tmp_path, capsys):
    echo = server.reply({"error": f"bad api_key={KEY}", "next": f"https://x/?api_key={KEY}"}, 200)
    server.answer = lambda request: echo
    for service, sent in ((server.openalex(KEY), "api_key"), (server.s2(KEY), "x-api-key")):
        options = {"reporter": Reporter(), "pause": lambda seconds: None}
        client = Client(service, tmp_path / service.name, HttpOptions(tries=2), **options)
        assert KEY not in str(client.fetch(WORKS).value) and KEY not in repr(service)
        request = server.requests[-1]
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert {**request.query, **headers}[sent] == KEY
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


def test_wrong_requests_and_wrong_keys_are_not_repeated(server):
    server.answer = lambda request: server.reply({"error": "Invalid filter"}, 400)
    refused("'Invalid filter'", client_of(server.openalex()).fetch, WORKS, error=WrongRequestError)
    server.answer = lambda request: server.reply({"message": "Forbidden"}, 403)
    refused(r"check the key in \$S2_API_KEY", client_of(server.s2(KEY)).fetch, WORKS)
    assert len(server.requests) == 2


def test_requests_are_spaced_however_late_they_arrive(server):
    waits, seen = [0.0], list[float]()  # seconds pass only where somebody waits

    def clock():
        return sum(waits)

    def late(request):
        waits.append(0.4)  # on its way
        seen.append(clock())
        return server.reply({})

    server.answer = late
    for number in range(3):  # all clients of a service keep one pace
        client = Client(replace(server.openalex(), per_second=2.0), pause=waits.append, clock=clock)
        client.fetch(ServiceRequest("/works", {"n": str(number)}))
    assert seen == pytest.approx([0.4, 1.3, 2.2])


def test_a_service_that_dribbles_is_cut_off():
    """A byte of the headers now and then never times out by itself."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def dribble():
            for _ in range(2):
                with contextlib.suppress(OSError), listening.accept()[0] as connection:
                    for _ in range(60_000):  # twenty minutes
                        connection.sendall(b"H")
                        time.sleep(0.02)

        threading.Thread(target=dribble, daemon=True).start()
        service = replace(OPENALEX, base=f"http://127.0.0.1:{listening.getsockname()[1]}", per_second=1e6)
        begun = time.monotonic()
        refused("took longer than", client_of(service, tries=2, deadline=0.2).fetch, WORKS, error=ServiceStoppedError)
        assert time.monotonic() - begun < 300
