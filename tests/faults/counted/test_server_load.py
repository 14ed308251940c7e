"""The server while others misuse it: slow clients are cut, and malformed requests do not keep real ones waiting."""

import contextlib
import itertools
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.randomness import stream

from .serving import Served, get, post, served, talk

CUT_AFTER = 60.0
"""Seconds within which a slow client must be gone: the longest limit is 20, and the machine may be busy."""

BETWEEN = 0.02
"""Seconds between two malformed requests: as fast as they go they would measure who gets the processors."""

SEEDS = [
    get("/search?q=models&by=words", "Accept: */*"),
    post("/search", {"text": "models", "by": "words"}),
    post("/export", {"format": "csv", "ids": ["p:1"]}, "Expect: 100-continue"),
    get("/papers/p:1", "If-None-Match: a", "Range: bytes=0-1"),
    get("/export", "Content-Type: application/json", "Transfer-Encoding: chunked", method="POST")
    + b'20\r\n{"format": "csv", "ids": ["p:1"]}\r\n0\r\n\r\n',
]
QUERY = {"text": "cell data", "by": "words", "count": 5}
REAL = [get("/search?q=models&by=words"), get("/health"), post("/search", QUERY)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, index_of: Callable[..., Path]) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("load")
    with served(index_of(folder, 200), folder / "log", "--time-limit", "3", "--log", "none") as one:
        yield one


def seconds_until_cut(one: socket.socket, drip: bytes) -> float:
    """Send a byte now and then until the server hangs up."""
    begun = time.monotonic()
    one.settimeout(0.3)
    for sign in itertools.cycle(drip):
        assert time.monotonic() - begun <= CUT_AFTER, f"still connected after {CUT_AFTER:g} seconds"
        try:
            one.sendall(bytes([sign]))
            while one.recv(65_536):
                pass
        except TimeoutError:
            continue
        except OSError:
            pass
        break
    return time.monotonic() - begun


def drips(beginning: bytes, drip: bytes) -> Callable[[int], float]:
    def act(port: int) -> float:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
            one.sendall(beginning)
            return seconds_until_cut(one, drip)

    return act


def says_nothing(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port), timeout=CUT_AFTER) as one:
        begun = time.monotonic()
        with contextlib.suppress(ConnectionError):
            assert one.recv(1) == b""
        return time.monotonic() - begun


def does_not_read(port: int) -> float:
    """Ask for the same page again and again, and read nothing of it."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", port))
        one.settimeout(1)
        whole = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400
        with contextlib.suppress(OSError):
            one.sendall(whole)
        begun, own = time.monotonic(), one.getsockname()[1]
        while is_held(port, own):
            assert time.monotonic() - begun < CUT_AFTER, f"still held after {CUT_AFTER:g} seconds"
            time.sleep(0.3)
        return time.monotonic() - begun


def is_held(port: int, client: int) -> bool:
    """Whether the server's end of a connection is there still, or waits to send its rest."""
    ends = f":{port:04X}", f":{client:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        here, there, state = line.split()[1:4]
        if here.endswith(ends[0]) and there.endswith(ends[1]):
            return state in ("01", "04", "08", "09")
    return False


POST = b"POST /search HTTP/1.1\r\nHost: localhost\r\n"
HEAD = POST + b"Content-Length: 100000\r\nContent-Type: "
CHUNKS = POST + b"Transfer-Encoding: chunked\r\nContent-Type: "
CLIENTS: dict[str, Callable[[int], float]] = {
    "a head, byte by byte": drips(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", b"a"),
    "header lines without end": drips(b"GET /health HTTP/1.1\r\n", b"A: b\r\n"),
    "a request line, byte by byte": drips(b"", b"GET /health"),
    "a body, byte by byte": drips(HEAD + b"application/json\r\n\r\n", b" "),
    "a body that was refused already": drips(HEAD + b"text/plain\r\n\r\n", b" "),
    "a body in chunks, byte by byte": drips(CHUNKS + b"application/json\r\n\r\n", b"1\r\n \r\n"),
    "a second head that never ends": drips(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he", b"a"),
    "nothing at all": says_nothing,
    "answers that are not read": does_not_read,
}


def test_slow_clients_cut(trial, server):
    """Several of each kind at once, while real requests are answered."""
    jobs = [(f"{what}, {number}", act) for number in trial.numbers(quick=2, whole=12) for what, act in CLIENTS.items()]
    longest: dict[str, float] = {}
    with ThreadPoolExecutor(len(jobs)) as pool:
        running = [(what, pool.submit(act, server.port)) for what, act in jobs]
        server.check_serves()
        for what, job in running:
            with trial.attempt(what):
                kind = what.rpartition(",")[0]
                longest[kind] = max(longest.get(kind, 0.0), job.result())
                server.check_serves()
    trial.facts["cut after seconds, at most"] = {kind: round(seconds, 1) for kind, seconds in longest.items()}


def spoiled(seed: int) -> bytes:
    """A request with a few bytes changed, lost, doubled or put in, or without its end."""
    rng = stream(0, "spoiled request", seed)
    data = bytearray(SEEDS[seed % len(SEEDS)])
    for _ in range(int(rng.integers(1, 8))):
        at = int(rng.integers(len(data)))
        noise = bytes(rng.integers(0, 256, int(rng.integers(1, 5)), dtype="u1"))
        changed = [noise, b"", data[at : at + 9] * 2, noise + data[at : at + 2], b"\r\n", b"\x00"][int(rng.integers(6))]
        data[at : at + 1 + int(rng.integers(3))] = changed
        if rng.random() < 0.1:
            del data[max(20, at) :]
    return bytes(data) or b"\x00"


def misuse(port: int, seeds: range, told: Any) -> None:
    answers = []
    for seed in seeds:
        answers.append((seed, talk(port, spoiled(seed), end=True).data[:4000]))
        time.sleep(BETWEEN)
    told.send(answers)


def ask_really(port: int, *, count: int, busy: Any = None) -> list[float]:
    """Seconds of each real request, so many and as long as others are busy; every one must be answered."""
    taken: list[float] = []
    while len(taken) < count or (busy is not None and not busy.poll()):
        begun = time.perf_counter()
        heard = talk(port, REAL[len(taken) % len(REAL)])
        taken.append(time.perf_counter() - begun)
        assert heard.status == 200, heard.data[:300]
    return taken


def test_malformed_requests_while_real_ones_are_served(trial, server):
    seeds, rounds = trial.numbers(quick=100, whole=1000), 2 if not trial.is_whole else 10
    quiet, misused = list[float](), list[float]()
    for number in range(rounds):
        share = range(number * len(seeds) // rounds, (number + 1) * len(seeds) // rounds)
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=misuse, args=(server.port, share, theirs))
        process.start()
        misused += ask_really(server.port, count=1, busy=ours)
        answers = ours.recv()
        process.join()
        quiet += ask_really(server.port, count=len(misused) - len(quiet))
        for seed, data in answers:
            with trial.attempt(f"seed {seed}"):
                status = int(data[9:12]) if data.startswith(b"HTTP/1.1 ") else 0
                assert status < 500 and b"Traceback" not in data and b"set-cookie" not in data.lower(), data[:300]
    server.check_serves()
    ratio = float(np.percentile(misused, 95) / np.percentile(quiet, 95))
    trial.facts |= {
        "real requests": len(quiet) + len(misused),
        "malformed requests a second, at most": round(1 / BETWEEN),
        "p95 alone, ms": round(1000 * float(np.percentile(quiet, 95)), 1),
        "p95 with malformed requests, ms": round(1000 * float(np.percentile(misused, 95)), 1),
        "p95, ratio": round(ratio, 2),
    }
    if trial.is_whole:
        with trial.attempt("p95 of real requests"):
            assert ratio <= 2, f"p95 of real requests is {ratio:.2f} times that without malformed ones"
