"""The server, as a process of its own, against strangers: what they send is never run, shown as markup or waited for."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
pytest.importorskip("fastapi", reason="pip install 'citeweave[serve]'")

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.search.build import IndexOptions, build_index

from .counting import Trial
from .payloads import ALL, PLACES
from .serving import Heard, Served, get, post, served, within

JSON_ROUTES = (
    "/papers/{}", "/papers?id={}", "/search?by=words&q={}", "/suggest?q={}", "/similar?paper={}", "/search?by=words&q=models&aspect={}",
    "/explain?left={}&right=p:1", "/neighborhood?paper={}", "/search?by=words&q=a&index={}", "/search?{}=1", "/nowhere/{}", "/facets?index={}",
    "/map/titles?rows={}", "/search?by=words&q=models&venue={}",
)  # fmt: skip
PAGES = ("/?q={}", "/?view=paper&id={}", "/docs?x={}")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> Path:
    """Papers whose titles, abstracts, authors and venues are payloads."""
    folder = tmp_path_factory.mktemp("hostile")
    papers = [
        {"id": f"p:{row}", "title": f"{text} models", "abstract": f"{text} learn. Data {row}.", "authors": [text], "venue": text, "year": 2000}
        for row, (_, text) in enumerate(ALL)
    ]  # fmt: skip
    (folder / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
    (folder / "citations.tsv").write_text("".join(f"p:{row}\tp:{row + 1}\n" for row in range(len(ALL) - 1)))
    import_papers([folder / "papers.jsonl", folder / "citations.tsv"], folder / "corpus")
    options = IndexOptions(device="cpu", sentences=True)
    build_index(Corpus.open(folder / "corpus"), save_bert(folder / "model"), folder / "index", options)
    return folder / "index"


@pytest.fixture(scope="module")
def server(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(index, tmp_path_factory.mktemp("log") / "log", "--time-limit", "5") as one:
        yield one


def check_json(heard: Heard) -> object:
    heard.check_safe()
    assert heard.headers["content-type"] == "application/json", heard.headers
    return heard.json()


def test_payloads_in_titles_ids_and_parameters(trial: Trial, server: Served) -> None:
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


def test_paths_that_lead_elsewhere(trial: Trial, server: Served) -> None:
    for place in PLACES:
        for front in ("/", "/page/", "/papers/"):
            with trial.attempt(front + place):
                raw = place.replace("\\", "%5c") if front == "/papers/" else place
                heard = server.ask(get(front + raw))
                if heard.status != 400 or heard.headers.get("content-type") == "application/json":
                    heard.check_safe()
                assert heard.status in (400, 404, 405), (heard.status, heard.body[:100])
                assert b"[project]" not in heard.body and b"citeweave-index" not in heard.body


class Listener:
    """Somebody on this machine whom the server has no reason to speak to."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port, self.heard = self.socket.getsockname()[1], 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                self.socket.accept()[0].close()
            except OSError:
                return
            self.heard += 1


def test_requests_that_would_make_it_fetch(trial: Trial, server: Served) -> None:
    listener = Listener()
    here = f"127.0.0.1:{listener.port}"
    names = [
        f"http://{here}/a", f"https://{here}/a", f"//{here}/a", f"doi:10.1/../http://{here}/a", f"https://doi.org@{here}/10.1/a",
        f"ftp://{here}/a", f"gopher://{here}/_a", f"file://{here}/etc/passwd", f"s3://{here}/a", f"http://localhost:{listener.port}/",
        f"http://0x7f000001:{listener.port}/", f"http://2130706433:{listener.port}/", f"http://[::ffff:127.0.0.1]:{listener.port}/",
        f"ldap://{here}/a", f"{here}/a", f"owner/name@http://{here}",
    ]  # fmt: skip
    for name in names:
        with trial.attempt(name):
            for route in JSON_ROUTES:
                server.ask(get(route.format(within(name)))).check_safe()
            server.ask(post("/search", {"paper": name})).check_safe()
            server.ask(post("/export", {"format": "json", "ids": [name]})).check_safe()
            server.ask(post("/embed", {"texts": [name]})).check_safe()
            raw = f"GET {name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            assert server.ask(raw).status < 500
            forwarded = get("/health", f"X-Forwarded-Host: {here}", f"Referer: {name}", f"Forwarded: host={here}")
            assert server.ask(forwarded).status == 200
            connect = f"CONNECT {here} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            assert 400 <= server.ask(connect).status < 500
            assert not listener.heard, "the server opened a connection"
    listener.socket.close()
    socket.create_connection(("127.0.0.1", server.port)).close()


FOREIGN = [
    ("Origin: http://evil.example",), ("Origin: null",), ("Origin: http://localhost.evil.example",), ("Sec-Fetch-Site: cross-site",),
    ("Sec-Fetch-Site: same-site",), ("Origin: http://localhost:1",), ("Origin: http://localhost", "Origin: http://evil.example"),
    ("Origin: http://localhost", "Sec-Fetch-Site: cross-site"),
]  # fmt: skip
FORMS = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=a",
    "text/plain; application/json",
    "",
]


def test_requests_of_other_sites(trial: Trial, server: Served) -> None:
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
    for host in (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "localhost@evil.example",
        "[::1",
        "a b",
        "",
    ):
        with trial.attempt(f"Host {host!r}"):
            assert server.ask(get("/health").replace(b"Host: localhost", f"Host: {host}".encode())).status == 400
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"):
        with trial.attempt(method):
            heard = server.ask(get("/search?q=models&by=words").replace(b"GET", method.encode(), 1))
            assert heard.status == 405 and b"models" not in heard.body


def test_headers_that_would_become_others(trial: Trial, server: Served) -> None:
    breaks = [
        "%0d%0aX-Evil: 1",
        "%0aX-Evil: 1",
        "%0dX-Evil: 1",
        "%E5%98%8A%E5%98%8DX-Evil: 1",
        "%u000d%u000aX-Evil: 1",
        "\x85X-Evil: 1",
    ]
    for text in breaks:
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


def test_limits_of_a_request(trial: Trial, server: Served) -> None:
    chunks = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    large = b'{"text": "' + b"a" * 2**21 + b'"}'
    tried = {
        "a body of 2 MiB": (post("/search", large), {413}),
        "a body that says it has 99 TB": (
            post("/search", b"{}").replace(b"Length: 2", b"Length: 99999999999999"),
            {413},
        ),
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
    }
    for what, (data, statuses) in tried.items():
        with trial.attempt(what):
            heard = server.ask(data)
            assert heard.status in statuses, (heard.status, heard.data[:200])
            server.check_serves()
