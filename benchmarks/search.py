"""A whole index: building, opening, every kind of query, changes, and a server under load.

    python benchmarks/search.py --corpus corpus/ --vectors vectors/ --sentences sentences/       of `citeweave embed`
    python benchmarks/search.py --papers 20000                          a synthetic literature with synthetic vectors
    python benchmarks/search.py --index index/ --load 50 --seconds 60   an index that is there; requests a second

Queries are asked one after the other and begin at random papers of the index; texts are their titles, as typed by
somebody who looks for them. Made-up vectors are noise around 2,000 directions: they cost as much as real ones and find
nothing sensible. The load is even, over as many connections as are needed: a third each of queries by text, by paper and
by sentences. Prints Markdown tables. The scan alone beside its peers is `search_scan.py`, stores are `search_stores.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Clock, run_step, write_figures

from citeweave.core.randomness import stream
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.synthetic.synthesize import synthesize
from citeweave.corpus.text import TextRecipe, sentence_texts
from citeweave.encoders.encoder import load_encoder
from citeweave.search.answer import answer
from citeweave.search.build import build_index, delete_papers, update_index
from citeweave.search.index import Index
from citeweave.search.index_vectors import PrecomputedVectors
from citeweave.search.nearest import nearest_papers, open_query_encoder
from citeweave.search.options import IndexOptions
from citeweave.search.query import Filter, Query, SentenceQuery
from citeweave.vectors.sentence_vectors import SentenceVectors, new_sentence_vectors
from citeweave.vectors.vectors import Vectors, new_vectors

TOPICS = 2000
GONE = 1000
"""Papers that are deleted and come again."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--sentences", type=Path)
    parser.add_argument("--papers", type=int, default=20_000, help="of the synthetic literature")
    parser.add_argument("--index", type=Path, help="an index that is there")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--load", type=float, default=50, help="requests a second; 0 = no server")
    parser.add_argument("--runtime", default="auto", help="by which the server reads texts; auto = the index's")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        index = options.index
        if index is None:
            sources = options.corpus, options.vectors, options.sentences
            if options.corpus is None:
                sources = make_up(Path(place), options.papers)
            index = Path(place) / "index"
            print_building(run_step(build, *sources, index), index)
        print_queries(run_step(ask, index, options.queries))
        if options.index is None:
            print_changes(run_step(change, sources[0], index))
        if options.load:
            print_load(index, options.load, options.seconds, options.runtime)


# --- a synthetic literature -------------------------------------------------------------------------------


def make_up(folder: Path, papers: int) -> tuple[Path, Path, Path]:
    """A corpus, its vectors and its sentence vectors."""
    synthesize(folder / "corpus", SyntheticOptions(papers=papers))
    corpus, encoder = Corpus.open(folder / "corpus"), load_encoder("minilm", device="cpu", runtime="auto")
    facts = {"model": encoder.name, "revision": encoder.revision, "text_recipe": TextRecipe().hash}
    draw = stream(0, "benchmark vectors")
    topics = draw.standard_normal((TOPICS, encoder.dimension)).astype(np.float32)
    with (
        new_vectors(folder / "vectors", **facts) as vectors,
        new_sentence_vectors(folder / "sentences", **facts) as sentences,
    ):
        for start in range(0, len(corpus), 4096):
            ids = corpus.ids[start : start + 4096]
            about = topics[draw.integers(TOPICS, size=len(ids))]  # (papers, dimension)
            vectors.append(ids, about + draw.standard_normal(about.shape))
            counts = [max(1, len(sentence_texts(text))) for text in corpus.abstracts[start : start + 4096]]
            sentences.append(
                ids, [row + draw.standard_normal((count, len(row))) for row, count in zip(about, counts, strict=True)]
            )
        vectors.finish()
        sentences.finish()
    return folder / "corpus", folder / "vectors", folder / "sentences"


# --- building and changing ------------------------------------------------------------------------------


def build(clock: Clock, corpus: Path, vectors: Path, sentences: Path | None, folder: Path) -> dict[str, Any]:
    given = PrecomputedVectors(Vectors.open(vectors), SentenceVectors.open(sentences) if sentences else None)
    with clock:
        made = build_index(
            Corpus.open(corpus), "minilm", folder, IndexOptions(sentences=sentences is not None), precomputed=given
        )
    return {"papers": len(made)}


def print_building(cost: Any, folder: Path) -> None:
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    rate = cost.found["papers"] / cost.wall
    print("| papers | build s, vectors given | papers/s | peak MiB | MiB on disk |\n|---|---|---|---|---|")
    print(
        f"| {cost.found['papers']:,} | {cost.wall:.1f} | {rate:,.0f} | {cost.peak >> 20:,} | {disk >> 20:,} |\n",
        flush=True,
    )
    row = {"label": f"{cost.found['papers']:,} papers", "cpu": cost.cpu, "wall": cost.wall, "peak": cost.peak}
    write_figures("building an index from precomputed vectors", [{**row, "MiB on disk": disk >> 20}])


def change(clock: Clock, corpus: Path, folder: Path) -> dict[str, Any]:
    """Seconds of deleting some papers and of bringing them back."""
    index, literature, took = Index.open(folder), Corpus.open(corpus), {}
    rows = stream(0, "benchmark deletions").choice(index.size, min(GONE, index.size // 2), replace=False)
    gone = [index.id(row) for row in rows.tolist()]
    with clock:
        for name, work in {
            "deleted": lambda: delete_papers(folder, gone),
            "brought back, embedded": lambda: update_index(folder, literature),
        }.items():
            began = time.perf_counter()
            work()
            took[name] = time.perf_counter() - began
    return {"took": took, "gone": len(gone)}


def print_changes(cost: Any) -> None:
    print(f"| change of {cost.found['gone']:,} papers | s |\n|---|---|")
    for name, seconds in cost.found["took"].items():
        print(f"| {name} | {seconds:.1f} |")
    print(flush=True)


# --- queries --------------------------------------------------------------------------------------------


def ask(clock: Clock, folder: Path, queries: int) -> dict[str, Any]:
    """Milliseconds of every kind of query."""
    began = time.perf_counter()
    index = Index.open(folder)
    opened = time.perf_counter() - began
    reader = open_query_encoder(index, device="cpu")
    rows = stream(0, "benchmark queries").choice(np.flatnonzero(index.with_vector), queries).tolist()
    vectors = index.take(np.array(rows))  # (queries, dimension)
    kinds: dict[str, Callable[[int], Any]] = {
        "vector, exact": lambda at: nearest_papers(index, vectors[at], 10),
        "vector, approximate": lambda at: nearest_papers(index, vectors[at], 10, exact=False),
        "vector, years from 2015": lambda at: answer(
            index, None, Query(paper=index.id(rows[at]), where=Filter(years=(2015, None)))
        ),
        "paper": lambda at: answer(index, None, Query(paper=index.id(rows[at]))),
        "paper, diverse": lambda at: answer(index, None, Query(paper=index.id(rows[at]), diversity=0.3)),
        "words": lambda at: answer(index, None, Query(text=index.title(rows[at]), by="words")),
        "text, by vectors": lambda at: answer(index, reader, Query(text=index.title(rows[at]), by="vectors")),
        "text, hybrid": lambda at: answer(index, reader, Query(text=index.title(rows[at]))),
    }
    if index.with_sentences.any():
        kinds["two sentences, transport of 100"] = lambda at: answer(index, None, _by_sentences(index, rows[at], 2))
        kinds["one abstract, transport of 100"] = lambda at: answer(index, None, _by_sentences(index, rows[at], 50))
    with clock:
        found = {name: _milliseconds(kind, queries) for name, kind in kinds.items()}
    return {"opened": opened, "papers": len(index), "times": found, "recall": _recall(index, vectors)}


def _by_sentences(index: Index, row: int, most: int) -> Query:
    return Query(
        sentences=SentenceQuery(paper=index.id(row), numbers=tuple(index.sentence_numbers(row)[:most].tolist()))
    )


def _milliseconds(ask_one: Callable[[int], Any], queries: int) -> list[float]:
    for at in range(min(5, queries)):
        ask_one(at)
    took = []
    for at in range(queries):
        began = time.perf_counter()
        ask_one(at)
        took.append(1000 * (time.perf_counter() - began))
    return took


def _recall(index: Index, vectors: np.ndarray[Any, np.dtype[np.float32]]) -> float:
    """Share of the exact ten that the approximate search finds."""
    exact, near = (nearest_papers(index, vectors, 10, exact=way).rows for way in (True, False))
    return float(np.mean([len(set(a.tolist()) & set(b.tolist())) / 10 for a, b in zip(exact, near, strict=True)]))


def print_queries(cost: Any) -> None:
    found = cost.found
    print(f"{found['papers']:,} papers; opened in {1000 * found['opened']:.0f} ms; at most {cost.peak >> 20:,} MiB")
    print(
        f"recall@10 of the approximate search {found['recall']:.4f}\n\n| query | p50 ms | p95 ms | p99 ms |\n|---|---|---|---|"
    )
    rows = []
    for name, took in found["times"].items():
        print(f"| {name} | {' | '.join(f'{np.percentile(took, share):.1f}' for share in (50, 95, 99))} |")
        rows.append({"label": name, "wall": float(np.median(took)) / 1000, "p95 ms": float(np.percentile(took, 95))})
    print(flush=True)
    write_figures("one query, p50", rows)


# --- a server under load --------------------------------------------------------------------------------


def print_load(folder: Path, rate: float, seconds: float, runtime: str) -> None:
    """Even load on `citeweave serve` in a process of its own."""
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "citeweave",
        "serve",
        str(folder),
        "--port",
        str(port),
        "--quiet",
        "--runtime",
        runtime,
    ]
    server = subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        _wait_for(port, with_model=True)
        took, errors = asyncio.run(_load(port, _bodies(folder), rate, seconds))
        memory = int(
            next(
                line for line in Path(f"/proc/{server.pid}/status").read_text().splitlines() if line.startswith("VmHWM")
            ).split()[1]
        )
    finally:
        server.terminate()
        server.wait()
    print(
        f"| {rate:g} requests a second for {seconds:g} s | |\n|---|---|\n| answered | {len(took):,} |\n| errors | {errors} |"
    )
    print(f"| p50, p95, p99 ms | {', '.join(f'{1000 * np.percentile(took, share):.0f}' for share in (50, 95, 99))} |")
    print(f"| MiB of the server at most | {memory >> 10:,} |\n", flush=True)
    row = {"label": f"{len(took):,} answered, {errors} errors", "wall": float(np.median(took)), "peak": memory << 10}
    write_figures(f"{rate:g} requests per second for {seconds:g} s", [{**row, "p95 ms": 1e3 * np.percentile(took, 95)}])


def _bodies(folder: Path) -> list[bytes]:
    index = Index.open(folder)
    rows = stream(0, "benchmark load").choice(np.flatnonzero(index.with_vector), 300).tolist()
    queries: list[dict[str, Any]] = []
    for at, row in enumerate(rows):
        kinds = (
            {"text": index.title(row)},
            {"paper": index.id(row)},
            {"sentences": {"paper": index.id(row), "numbers": [0]}},
        )
        queries.append(kinds[at % 3 if index.with_sentences[row] else at % 2])
    return [json.dumps(query).encode() for query in queries]


async def _load(port: int, bodies: Sequence[bytes], rate: float, seconds: float) -> tuple[list[float], int]:
    import httpx

    took: list[float] = []
    errors = 0

    async def one(client: Any, body: bytes) -> None:
        nonlocal errors
        began = time.perf_counter()
        try:
            found = await client.post("/search", content=body, headers={"content-type": "application/json"})
            errors += found.status_code != 200
        except httpx.HTTPError:
            errors += 1
        took.append(time.perf_counter() - began)

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        for body in bodies[:6]:
            await one(client, body)
        took.clear()
        began, waiting = time.perf_counter(), []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            waiting.append(asyncio.create_task(one(client, bodies[number % len(bodies)])))
        await asyncio.gather(*waiting)
    return took, errors


def _wait_for(port: int, *, with_model: bool = False) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as found:
                if json.load(found)["reads_texts"] or not with_model:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server did not start within a minute")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    main()
