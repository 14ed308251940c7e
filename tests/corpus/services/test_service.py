"""Services: their addresses and keys, what their refusals mean, and the cache of their responses."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from citeweave.core.errors import UserError
from citeweave.corpus.services.service import OPENALEX, S2, ResponseCache, read_refusal, service_of

from ..conftest import refused

KEY = "s3cret-KEY-0123456789"
ADDRESSES = [
    "http://api.openalex.org",
    "file:///etc",
    "https://",
    "https://user@host",
    "https://host/?a=1",
    "ftp://127.0.0.1",
    "x",
]
ADDRESSES += ["https://@host", "https://host?", "https://host\\@other", "https://ho%73t", "https://a..b"]
ADDRESSES += ["https://[::g]", "https://[::1", "https://\u2603.org", "https://host/\u2603", "https://host/a b"]
ADDRESSES += ["https://host\r\nX-Evil: 1", "http://127.0.0.1:99999", "http://127.0.0.1:0", "https://host:x"]


@pytest.mark.parametrize("base", [*ADDRESSES, "https://host/" + "x" * 2000])
def test_addresses_must_be_safe(base, monkeypatch):
    refused(r"CITEWEAVE_OPENALEX_URL", service_of, "openalex", base=base)
    monkeypatch.setenv("CITEWEAVE_OPENALEX_URL", base)
    refused("https", service_of, "openalex")


@pytest.mark.parametrize("key", ["short", "line\r\nX-Evil: 1", "'quoted-key'", "with blank inside", "ключ-ключ-ключ"])
def test_a_key_that_is_none_is_refused_and_not_shown(key, monkeypatch):
    monkeypatch.setenv("S2_API_KEY", key)
    with pytest.raises(UserError, match=r"\$S2_API_KEY is not a key") as caught:
        service_of("s2")
    assert key not in str(caught.value)


def test_services_come_from_the_environment(monkeypatch):
    assert service_of("s2").base == S2.base
    monkeypatch.setenv("CITEWEAVE_S2_URL", "https://mirror.example.org/s2/")
    monkeypatch.setenv("S2_API_KEY", KEY)
    assert service_of("s2").base == "https://mirror.example.org/s2" and service_of("s2").key == KEY
    refused("openalex, s2", service_of, "scopus")


FORMS = ["ab/cd+ef=12345", "ab/cd%2Bef%3D12345", "ab%2Fcd%2Bef%3D12345", "ab%2fcd%2bef%3d12345", "ab\\/cd+ef=12345"]
FORMS += ["ab%252Fcd%252Bef%253D12345", "ab\\u002fcd\\u002Bef\\u003d12345"]


@pytest.mark.parametrize("form", FORMS)
def test_a_key_is_hidden_however_it_is_written(form):
    service = replace(OPENALEX, key="ab/cd+ef=12345")
    assert service.hide(f"GET /?api_key={form}") == "GET /?api_key=***"
    assert service.hide_bytes(f'{{"url": "?api_key={form}"}}'.encode()) == b'{"url": "?api_key=***"}'


REFUSALS = [
    ({"Retry-After": "3"}, False, 3),
    ({"X-RateLimit-Remaining": "900", "X-RateLimit-Credits-Required": "10"}, False, None),
    ({"X-RateLimit-Remaining": "9", "X-RateLimit-Credits-Required": "10"}, True, 2 * 3600),  # no reset: midnight
    ({"X-RateLimit-Remaining-USD": "0", "X-RateLimit-Reset": "50"}, True, 50),
    ({"Retry-After": "61"}, True, None),
    ({"X-RateLimit-Remaining": "soon", "Retry-After": "nan"}, False, None),
]


@pytest.mark.parametrize(("headers", "is_used_up", "wait"), REFUSALS)
def test_a_refusal_is_a_burst_or_a_used_up_budget(headers, is_used_up, wait):
    refusal = read_refusal(headers, datetime(2026, 3, 1, 22, 0, tzinfo=UTC), 60)
    assert refusal.budget_used_up == is_used_up and wait in (None, refusal.wait)


def test_two_requests_never_share_a_file(tmp_path):
    cache = ResponseCache(tmp_path)
    cache.save({"path": "/a"}, 200, b"1")
    cache.save({"path": "/b"}, 200, b"2")
    found = [cache.load({"path": path}) for path in ("/a", "/b", "/c")]
    assert [one.value if one else None for one in found] == [1, 2, None]
