"""The server, as a process of its own, against strangers: what they send is never run, shown as markup or waited for."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .serving import Heard, Served, get, post, served, within

PAYLOADS: dict[str, list[str]] = {
    "scripts": [
        "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "javascript:alert(1)",
        "<iframe srcdoc='<script>alert(1)</script>'>", "</title><script>alert(1)</script>", "<ScRiPt>alert(1)</sCrIpT>",
        "<a href=\"data:text/html,<script>alert(1)</script>\">x</a>", "'-alert(1)-'", "\\u003cscript\\u003ealert(1)",
        "&lt;script&gt;alert(1)&lt;/script&gt;", "<math><mtext></p><img src=x onerror=alert(1)>", "]]><script>alert(1)</script>",
        "<!--<img src=\"--><img src=x onerror=alert(1)//\">", "<style>@import'//evil.example'</style>", "<base href=//evil.example/>",
        "<meta http-equiv=refresh content='0;url=//evil.example'>", "\u2028alert(1)\u2029", "＜script＞alert(1)＜/script＞",
    ],
    "databases": [
        "'; DROP TABLE papers; --", "\" OR \"1\"=\"1", "1 UNION SELECT NULL, version()", "admin'/*", "{\"$ne\": null}",
        "*)(uid=*))(|(uid=*", "' AND SLEEP(5) --", "1; ATTACH DATABASE '/tmp/x' AS x",
    ],
    "templates and shells": [
        "{{7*7}}", "${7*7}", "<%= 7*7 %>", "#{7*7}", "{{config.__class__.__init__.__globals__}}", "$(touch /tmp/x)", "`id`",
        "; cat /etc/passwd", "| id", "${jndi:ldap://evil.example/a}", "=cmd|' /C calc'!A0", "%s%n%x",
        "__import__('os').system('id')", "!!python/object/apply:os.system ['id']", "\\input{/etc/passwd}",
    ],
    "headers": ["a\r\nSet-Cookie: x=y", "a\nLocation: //evil.example", "a%0d%0aSet-Cookie: x=y", "a\r\n\r\n<script>alert(1)</script>"],
    "signs": [
        "a\x00b", "\u202egnp.exe", "\ufeffbom", "\x1b[31mred\x1b[0m", "İıſK\u0130", "e\u0301" * 50, "\U0010ffff", "😀" * 60,
        "\u200b\u200d\u2060", "ａｄｍｉｎ", "..\u2215..\u2215etc", "Z\u0338\u0321\u0353\u0324" * 20, "%c0%ae%c0%ae/", "\\x3cscript\\x3e",
    ],
}  # fmt: skip

ALL = [(kind, text) for kind, texts in PAYLOADS.items() for text in texts]

PLACES = [
    "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "....//....//etc/passwd", "/etc/passwd",
    "..\\..\\etc\\passwd", "%252e%252e%252fetc%252fpasswd", "page/../../../pyproject.toml", "page/%2e%2e/%2e%2e/app.py",
    "page/..%5c..%5capp.py", "file:///etc/passwd", ".git/config", "index/state.json", "..;/etc/passwd", "%c0%ae%c0%ae/etc/passwd",
    "etc/passwd%00.html", "page/index.html%00.py", "proc/self/environ", "~root/.bashrc", "page//etc/passwd",
]  # fmt: skip
"""Paths that lead to files which are nobody's business."""

JSON_ROUTES = (
    "/papers/{}", "/papers?id={}", "/search?by=words&q={}", "/suggest?q={}", "/similar?paper={}", "/search?by=words&q=models&aspect={}",
    "/explain?left={}&right=p:1", "/neighborhood?paper={}", "/search?by=words&q=a&index={}", "/search?{}=1", "/nowhere/{}", "/facets?index={}",
    "/map/titles?rows={}", "/search?by=words&q=models&venue={}",
)  # fmt: skip
PAGES = ("/?q={}", "/?view=paper&id={}", "/docs?x={}")


@pytest.fixture(scope="module")
def server(index_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Papers whose titles, abstracts, authors and venues are payloads, each cites the next."""
    folder = tmp_path_factory.mktemp("hostile")
    papers = [
        {"id": f"p:{row}", "title": f"{text} models", "abstract": f"{text} learn. Data {row}.", "authors": [text], "venue": text, "year": 2000,
         "references": [f"p:{row + 1}"] * (row + 1 < len(ALL))}
        for row, (_, text) in enumerate(ALL)
    ]  # fmt: skip
    with served(index_of(folder, papers, sentences=True), folder / "log", "--time-limit", "5") as one:
        yield one


def check_json(heard: Heard) -> object:
    heard.check_safe()
    assert heard.headers["content-type"] == "application/json", heard.headers
    return heard.json()


def test_payloads_in_titles_ids_and_parameters(trial, server):
    plain = {page: server.ask(get(page.format(""))).body for page in PAGES}
    requests = 0
    for row, (kind, text) in enumerate(ALL):
        with trial.attempt(f"{kind}: {text!r}"):
            paper = check_json(server.ask(get(f"/papers/p:{row}")))
            assert isinstance(paper, dict) and "models" in paper["title"]
            assert not {"\x00", "\r", "\n", "\x1b"} & set(paper["title"]), paper["title"]
            for route in JSON_ROUTES:
                check_json(server.ask(get(route.format(within(text)))))
            for page in PAGES:
                heard = server.ask(get(page.format(within(text))))
                heard.check_safe()
                assert heard.body == plain[page], "a page depends on what was asked"
            check_json(server.ask(post("/search", {"text": text, "by": "words"})))
            check_json(server.ask(post("/search", {"paper": text, "where": {"venues": [text]}})))
            check_exports(server, f"p:{row}")
            requests += len(JSON_ROUTES) + len(PAGES) + 6
    check_log(server)
    trial.facts["requests"] = requests


def check_exports(server: Served, id: str) -> None:
    for name, kind in (("csv", "text/csv"), ("bibtex", "application/x-bibtex"), ("json", "application/json")):
        heard = server.ask(post("/export", {"format": name, "ids": [id]}))
        heard.check_safe()
        assert heard.headers["content-type"].startswith(kind), heard.headers
        assert heard.headers["content-disposition"].startswith('attachment; filename="papers.')
        if name == "csv":
            cells = heard.body.decode().split("\r\n")[1]
            assert not any(sign in cells for sign in (",=", ",+", ",@", ',"=')), cells


def check_log(server: Served) -> None:
    """A log of one plain line a request: nobody writes lines of his own into it, or colors."""
    told = server.log.read_bytes()
    assert b"\x1b" not in told and b"\x00" not in told and b"\nSet-Cookie" not in told and b"Traceback" not in told


def test_paths_that_lead_elsewhere(trial, server):
    for place in PLACES:
        for front in ("/", "/page/", "/papers/"):
            with trial.attempt(front + place):
                raw = place.replace("\\", "%5c") if front == "/papers/" else place
                heard = server.ask(get(front + raw))
                if heard.status != 400 or heard.headers.get("content-type") == "application/json":
                    heard.check_safe()
                assert heard.status in (400, 404, 405), (heard.status, heard.body[:100])
                assert b"[project]" not in heard.body and b"citeweave-index" not in heard.body


def test_requests_that_would_make_it_fetch(trial, server):
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    port, here = listener.getsockname()[1], f"127.0.0.1:{listener.getsockname()[1]}"
    names = [
        f"http://{here}/a", f"https://{here}/a", f"//{here}/a", f"doi:10.1/../http://{here}/a", f"https://doi.org@{here}/10.1/a",
        f"ftp://{here}/a", f"gopher://{here}/_a", f"file://{here}/etc/passwd", f"s3://{here}/a", f"http://localhost:{port}/",
        f"http://0x7f000001:{port}/", f"http://2130706433:{port}/", f"http://[::ffff:127.0.0.1]:{port}/",
        f"ldap://{here}/a", f"{here}/a", f"owner/name@http://{here}",
    ]  # fmt: skip
    for name in names:
        with trial.attempt(name):
            for route in JSON_ROUTES:
                server.ask(get(route.format(within(name)))).check_safe()
            server.ask(post("/search", {"paper": name})).check_safe()
            server.ask(post("/export", {"format": "json", "ids": [name]})).check_safe()
            server.ask(post("/embed", {"texts": [name]})).check_safe()
            assert server.ask(get(name)).status < 500
            forwarded = get("/health", f"X-Forwarded-Host: {here}", f"Referer: {name}", f"Forwarded: host={here}")
            assert server.ask(forwarded).status == 200
            assert 400 <= server.ask(get(here, method="CONNECT")).status < 500
            with pytest.raises(BlockingIOError):  # nobody came
                listener.accept()
    listener.close()


FOREIGN = [
    ("Origin: http://evil.example",), ("Origin: null",), ("Origin: http://localhost.evil.example",), ("Sec-Fetch-Site: cross-site",),
    ("Sec-Fetch-Site: same-site",), ("Origin: http://localhost:1",), ("Origin: http://localhost", "Origin: http://evil.example"),
    ("Origin: http://localhost", "Sec-Fetch-Site: cross-site"),
]  # fmt: skip
FORMS = (
    "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", "text/plain; application/json", "",
)  # fmt: skip
HOSTS = ("evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "localhost@evil.example", "[::1", "a b", "")


def test_requests_of_other_sites(trial, server):
    body = {"text": "models", "by": "words"}
    for route in ("/search", "/search/batch", "/embed", "/export"):
        for lines in FOREIGN:
            with trial.attempt(f"{route}: {', '.join(lines)}"):
                heard = server.ask(post(route, body, *lines))
                heard.check_safe()
                assert heard.status == 403
        for kind in FORMS:
            with trial.attempt(f"{route} as {kind!r}"):
                heard = server.ask(post(route, body, kind=kind))
                heard.check_safe()
                assert heard.status == 415
    for host in HOSTS:
        with trial.attempt(f"Host {host!r}"):
            assert server.ask(get("/health").replace(b"Host: localhost", f"Host: {host}".encode())).status == 400
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"):
        with trial.attempt(method):
            heard = server.ask(get("/search?q=models&by=words", method=method))
            assert heard.status == 405 and b"models" not in heard.body


def test_headers_that_would_become_others(trial, server):
    for text in (f"{sign}X-Evil: 1" for sign in ("%0d%0a", "%0a", "%0d", "%E5%98%8A%E5%98%8D", "%u000d%u000a", "\x85")):
        for route in (*JSON_ROUTES, *PAGES):
            with trial.attempt(f"{route} {text!r}"):
                heard = server.ask(get(route.format(text.replace(" ", "%20").replace("\x85", "%85"))))
                heard.check_safe()
                assert "x-evil" not in heard.headers and len(heard.head.split(b"HTTP/1.1 ")) == 2
    for name in ("X-Request-ID", "Accept", "User-Agent", "If-None-Match", "Accept-Encoding", "Cookie", "Range"):
        with trial.attempt(name):
            heard = server.ask(get("/docs", f"{name}: evil-{name}\tX-Evil: 1"))
            heard.check_safe()
            assert b"evil-" not in heard.head.lower()


def test_limits_of_a_request(trial, server):
    chunks = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    large = b'{"text": "' + b"a" * 2**21 + b'"}'
    tried = {
        "a body of 2 MiB": (post("/search", large), {413}),
        "a body that says it has 99 TB": (post("/search", b"{}").replace(b"Length: 2", b"Length: 99999999999999"), {413}),
        "2 MiB in chunks": (chunks + (b"10000\r\n" + b"a" * 65_536 + b"\r\n") * 33, {413}),
        "an address of 9,000 bytes": (get(f"/search?q={'a' * 9000}"), {414}),
        "headers of 20,000 bytes": (get("/health", *(f"X-{n}: {'a' * 400}" for n in range(45))), {431}),
        "one header of 100,000 bytes": (get("/health", f"X: {'a' * 100_000}"), {0, 400, 431}),
        "an address of 100,000 bytes": (get(f"/{'a' * 100_000}"), {0, 400, 414}),
        "JSON nested 60,000 deep": (post("/search", b"[" * 60_000), {400}),
        "a thousand queries": (post("/search/batch", {"queries": [{"text": "a"}] * 1000}), {422}),
        "ten thousand texts": (post("/embed", {"texts": ["a"] * 10_000}), {422}),
        "two lengths": (post("/search", b"{}", "Content-Length: 3"), {400}),
        "length and chunks": (post("/search", b"{}", "Transfer-Encoding: chunked"), {400}),
    }  # fmt: skip
    for what, (data, statuses) in tried.items():
        with trial.attempt(what):
            heard = server.ask(data)
            assert heard.status in statuses, (heard.status, heard.data[:200])
            server.check_serves()
