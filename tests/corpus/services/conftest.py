"""A real HTTP server on this machine whose responses the tests script, and invented records in the services' formats."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from citeweave.corpus.services.service import OPENALEX, S2, Service


@dataclass(frozen=True)
class Request:
    """One request as the server saw it."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Reply:
    value: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None


Numbers = tuple[int, ...]


def _work(number: int, title: str, year: int = 2020, doi: str = "", cites: Numbers = (), abstract: str = "") -> Any:
    """A work of OpenAlex."""
    index = {word: [place] for place, word in enumerate(abstract.split())} if abstract else None
    own = {"id": f"https://openalex.org/W{number}", "doi": f"https://doi.org/{doi}" if doi else None, "title": title}
    own |= {"ids": {"openalex": f"https://openalex.org/W{number}"}, "publication_year": year, "locations": []}
    references = [f"https://openalex.org/W{cited}" for cited in cites]
    return {**own, "abstract_inverted_index": index, "referenced_works": references}


def _paper(number: int, title: str, year: int = 2020, doi: str = "", cites: Numbers = (), abstract: str = "") -> Any:
    """A paper of Semantic Scholar."""
    ids = {"CorpusId": number, **({"DOI": doi} if doi else {})}
    cited = [{"paperId": f"{n:040x}", "title": f"Cited paper number {n}", "year": 2001} for n in cites]
    own = {"paperId": f"{number:040x}", "corpusId": number, "externalIds": ids, "title": title, "year": year}
    return {**own, "abstract": abstract or None, "references": cited}


class ScriptedServer:
    """Sends the replies of its script, then what `answer` returns for the request."""

    reply = Reply
    work = staticmethod(_work)
    paper = staticmethod(_paper)

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.script: list[Reply] = []
        self.answer: Callable[[Request], Reply] = lambda request: Reply({"meta": {}, "results": []})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def openalex(self, key: str = "") -> Service:
        return replace(OPENALEX, base=self.base, key=key, per_second=10_000)

    def s2(self, key: str = "") -> Service:
        return replace(S2, base=self.base, key=key, per_second=10_000)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(None)

            def do_POST(self) -> None:
                self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _reply(self, body: Any) -> None:
                address = urlsplit(self.path)
                request = Request(address.path, dict(parse_qsl(address.query)), dict(self.headers.items()), body)
                server.requests.append(request)
                reply = server.script.pop(0) if server.script else server.answer(request)
                data = json.dumps(reply.value).encode() if reply.raw is None else reply.raw
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(data)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Tests are silent."""

        return Handler


@pytest.fixture
def server():
    running = ScriptedServer()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    """Keys and proxies of whoever runs the tests stay out of them."""
    names = ("OPENALEX_API_KEY", "S2_API_KEY", "CITEWEAVE_OPENALEX_URL", "CITEWEAVE_S2_URL")
    for name in (*names, "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
