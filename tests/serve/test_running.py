"""The server as it is started: over a socket, from the command line, by several processes."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="pip install 'citeweave[serve]'")

from citeweave.cli import main
from citeweave.serve.app import app_from_environment, create_app
from citeweave.serve.middleware import PromptProtocol
from citeweave.serve.options import ServeOptions

from ..browser.conftest import Site
from ..faults.counted.serving import talk
from ..faults.counted.test_server_load import spoiled

PATIENCE = 300.0
"""Seconds after which a server is taken for hung."""

HOST = b"Host: localhost\r\n"
LAST = HOST + b"Connection: close\r\n"
JSON = b"Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def port(place: Any) -> Iterator[int]:
    site = Site(lambda: create_app({"main": place.index}, ServeOptions(device="cpu", time_limit=600))).start()
    yield site.port
    site.stop()


def get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
        return json.load(answer)


def test_an_id_with_a_percent_sign_is_decoded_once_and_no_answer_names_the_server(port):
    assert get(port, "/papers/a%252Fb")["id"] == "a%2Fb"
    assert get(port, "/papers/..%2F..%2Fetc%2Fpasswd")["id"] == "../../etc/passwd"
    head = talk(port, b"GET /health HTTP/1.1\r\n" + LAST + b"\r\n", timeout=PATIENCE).head.lower()
    assert head.startswith(b"http/1.1 200") and b"\r\nserver:" not in head and b"uvicorn" not in head
    assert b"content-security-policy" in head


HOSTILE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /papers/a\r\nSet-Cookie: x=y HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /papers/%0d%0aSet-Cookie:%20x=y HTTP/1.1\r\n" + LAST + b"\r\n",
    b"GET /../../../../etc/passwd HTTP/1.1\r\n" + LAST + b"\r\n",
    b"GET http://169.254.169.254/latest HTTP/1.1\r\n" + LAST + b"\r\n",
    b"CONNECT evil.example:443 HTTP/1.1\r\n" + LAST + b"\r\n",
    b"GET / HTTP/9.9\r\n" + HOST + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,
    b"\x00" * 1000,
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
    b"POST /search HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: -5\r\n\r\n",
    b"POST /search HTTP/1.1\r\n" + LAST + JSON + b"Content-Length: 99999999999\r\n\r\n{}",
    b"POST /search HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    b"POST /search HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\nzz\r\n",
    b"POST /search HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}",
    b"GET /health HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    b"GET /health HTTP/1.1\nHost: localhost\nConnection: close\n\n",
]


def test_what_is_not_quite_http_is_refused(port):
    with ThreadPoolExecutor(8) as pool:  # some wait for more that never comes
        answers = list(pool.map(lambda data: talk(port, data, timeout=2.0), HOSTILE))
    for data, found in zip(HOSTILE, answers, strict=True):
        assert found.status == 0 or 200 <= found.status < 500, data[:80]
        assert b"set-cookie" not in found.head.lower() and b"root:x:" not in found.data, data[:80]
    assert get(port, "/health")["status"] == "ok"


def test_a_thousand_malformed_requests_leave_it_serving(port):
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: talk(port, spoiled(number), end=True), range(1000)))
    statuses = [found.status for found in answers]
    assert max(statuses) < 500 and statuses.count(200) < 500 < len(statuses) - statuses.count(200)
    assert not any(b"Traceback" in found.data or b"set-cookie" in found.data.lower() for found in answers)
    assert get(port, "/search?q=models&by=words")["hits"]


def test_connections_that_say_nothing_are_closed(port, monkeypatch):
    """Else a few hundred of them would be all that the server can have."""
    whole = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as first:
        first.sendall(whole)
        assert first.recv(65_536).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(PromptProtocol, "head_seconds", 0.3)
        many = [first] + [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(299)]
        for number, one in enumerate(many[:200]):  # the first begins a second request that never ends
            with contextlib.suppress(ConnectionError):  # closed already
                one.sendall(whole[: 1 + number % 40])
        for one in many:
            with contextlib.suppress(ConnectionError):
                while one.recv(65_536):
                    pass
            one.close()
    assert get(port, "/health")["status"] == "ok"


def test_clients_that_do_not_read_are_cut(port, monkeypatch):
    monkeypatch.setattr(PromptProtocol, "read_seconds", 0.3)
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", port))
        one.sendall((b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n") * 400)
        one.settimeout(PATIENCE)
        cut = select.poll()
        cut.register(one, 0)  # whatever there is to read, it waits for the end of the connection
        assert cut.poll(1000 * PATIENCE), "it still waits for the client"
        with pytest.raises(ConnectionResetError):
            while one.recv(65_536):
                pass
    assert get(port, "/health")["status"] == "ok"


def test_a_body_that_was_refused_is_not_waited_for(port, monkeypatch):
    monkeypatch.setattr(PromptProtocol, "head_seconds", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as one:
        one.sendall(b"POST /search HTTP/1.1\r\n" + HOST + b"Content-Type: text/plain\r\nContent-Length: 9999\r\n\r\n")
        assert one.recv(65_536).startswith(b"HTTP/1.1 415")
        end = time.monotonic() + PATIENCE
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                one.sendall(b" ")
                time.sleep(0.05)
        assert time.monotonic() < end, "it still listens"


def start(place: Any, *more: str) -> tuple[subprocess.Popen[str], int]:
    """A server that answers; started again where another process took the port that was free."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        command = [sys.executable, "-m", "citeweave", "serve", str(place.index), "--port", str(port), "--device", "cpu"]
        environment, end = {**os.environ, "OMP_NUM_THREADS": "1"}, time.monotonic() + PATIENCE
        process = subprocess.Popen([*command, *more], stderr=subprocess.PIPE, text=True, env=environment)
        while process.poll() is None:
            with contextlib.suppress(OSError):
                if get(port, "/health")["status"] == "ok":
                    return process, port
            assert time.monotonic() < end, "it neither answers nor ends"
            time.sleep(0.1)
        said = process.stderr.read()
        assert "in use" in said, said


def stop(process: subprocess.Popen[str], number: int = signal.SIGINT) -> str:
    process.send_signal(number)
    try:
        told = process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
    assert process.returncode == 0, told
    return told


def test_serve_ends_well_while_it_loads_a_model(place):
    process, port = start(place, "--compare", f"other={place.index}")
    try:
        assert get(port, "/health")["indexes"] == ["main", "other"]
        assert get(port, "/search?q=models&by=words&index=other")["hits"]
    finally:
        told = stop(process, signal.SIGTERM)
    assert told.splitlines()[-1] == "stopped" and "Traceback" not in told and "terminate called" not in told


def test_serve_by_several_processes(place):
    # words need no model, and loading it in each process costs seconds
    process, port = start(place, "--workers", "2", "--log", "json", "--model", "nowhere")
    try:
        assert get(port, "/search?q=secret+models&by=words")["hits"]
    finally:
        told = stop(process)
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert {"time", "method", "path", "status", "ms", "id"} == set(lines[0]) and "/search" in {
        line["path"] for line in lines
    }
    assert "secret" not in told, "what somebody searched for is not logged"
    assert "Traceback" not in told and "serving" in told


def test_a_worker_without_settings_says_so(monkeypatch):
    monkeypatch.delenv("CITEWEAVE_SERVE", raising=False)
    with pytest.raises(Exception, match="citeweave serve"):
        app_from_environment()


MISTAKES = [
    (["--port", "0"], "--port is 0"),
    (["--workers", "0"], "--workers is 0"),
    (["--log", "xml"], "--log is 'xml'"),
    (["--compare", "x"], "--compare is 'x'"),
    (["--time-limit", "0"], "--time-limit is 0"),
    (["--samples", "nowhere"], "--corpus"),
    (["--host", "127.0.0.1", "--port", "TAKEN"], "in use"),
    (["--host", "no.such.host.example", "--port", "TAKEN"], "no.such.host"),
    (["--host", "0.0.0.0", "--port", "TAKEN", "--device", "cpu"], "can be reached from other machines"),
    ([], "INDEX"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_what_cannot_be_served_ends_in_one_line(place, tmp_path, capsys, arguments, words):
    index = str(place.index if arguments else tmp_path)  # the other is none
    with socket.socket() as taken, pytest.raises(SystemExit) as caught:
        taken.bind(("0.0.0.0" if "0.0.0.0" in arguments else "127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        main(["serve", index, *(port if one == "TAKEN" else one for one in arguments)])
    said = capsys.readouterr().err
    last = said.splitlines()[-1]
    assert caught.value.code == 2 and last.startswith("error: ")
    assert words.replace("INDEX", index) in (said if "other machines" in words else last)
