"""Importing S2AG-shaped citations beside a plain gzip + json loop, on the same shards in the same run.

    python benchmarks/import_citations.py --records 20000000 [--papers 1000000] [--folder /tmp/x]

Generates shards of synthetic papers and citations (37 % with contexts, 23 % without a cited paper, as in the
published sample), times the plain loop over one shard, times `import_papers` over all of them, and prints
records per second, their ratio and the peak of resident memory of all processes together.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from isal import igzip
from measuring import PeakMemory, write_figures

RECORDS_PER_SHARD = 1_000_000
_WORDS = [
    "the",
    "of",
    "and",
    "in",
    "to",
    "a",
    "is",
    "for",
    "that",
    "we",
    "with",
    "as",
    "by",
    "on",
    "are",
    "this",
    "model",
    "method",
    "results",
    "data",
    "from",
    "which",
    "can",
    "using",
    "based",
    "learning",
    "network",
    "analysis",
    "protein",
    "gene",
    "cells",
    "expression",
    "observed",
    "however",
    "previous",
    "studies",
    "reported",
    "approach",
    "performance",
    "features",
    "training",
    "significantly",
    "increased",
    "compared",
    "response",
    "structure",
    "function",
]


def write_papers(path: Path, first: int, count: int) -> None:
    random.seed(first)
    with igzip.open(path, "wt", compresslevel=1) as file:
        for number in range(first, first + count):
            title = " ".join(random.choices(_WORDS, k=9)) + f" {number}"
            record = {
                "corpusid": number,
                "externalids": {"DOI": None},
                "title": title,
                "year": 2000 + number % 24,
                "venue": "",
            }
            file.write(json.dumps(record) + "\n")


def write_citations(path: Path, seed: int, count: int, papers: int) -> None:
    draw = random.Random(seed)
    sentences = [" ".join(draw.choices(_WORDS, k=25)) for _ in range(5000)]
    with igzip.open(path, "wt", compresslevel=1) as file:
        for number in range(count):
            cited = "null" if draw.random() < 0.23 else str(draw.randrange(papers))
            contexts, intents = "null", "null"
            if draw.random() < 0.37:
                texts = [
                    f"{draw.choice(sentences)} [{draw.randrange(99)}]." for _ in range(draw.choice((1, 1, 1, 2, 3)))
                ]
                contexts = json.dumps(texts)
                intents = draw.choice(('["background"]', '["methodology"]', '["background", "result"]', "null"))
            file.write(
                f'{{"citationid": {seed * count + number}, "citingcorpusid": {draw.randrange(papers)}, "citedcorpusid": {cited}, '
                f'"isinfluential": {"true" if draw.random() < 0.06 else "false"}, "contexts": {contexts}, "intents": {intents}}}\n'
            )


def plain_loop(path: Path) -> tuple[int, float]:
    """What a script does: gzip and json, every record looked at, nothing kept."""
    start, read = time.perf_counter(), 0
    with gzip.open(path, "rb") as file:
        for line in file:
            record = json.loads(line)
            if record.get("citedcorpusid") is not None:
                _ = int(record["citingcorpusid"]), int(record["citedcorpusid"]), record["contexts"]
            read += 1
    return read, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--papers", type=int, default=1_000_000)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to keep the shards; default a temporary folder"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run(options.folder or Path(temporary), options.records, options.papers)


def run(folder: Path, records: int, papers: int) -> None:
    from citeweave.corpus.ingest import import_papers

    shards = generate(folder / f"shards-{records}-{papers}", records, papers)
    plain = records * _seconds_per_record(shards, "citations") + papers * _seconds_per_record(shards, "papers")
    warm_up(folder)
    with PeakMemory() as memory:
        start = time.perf_counter()
        corpus = import_papers(shards, folder / "corpus", overwrite=True).corpus
        ours = time.perf_counter() - start
    start = time.perf_counter()
    type(corpus).open(corpus.folder).row("s2:1")
    opening = time.perf_counter() - start
    print(f"{records:,} citations and {papers:,} papers")
    print(f"{'':24}{'records/s':>12}{'seconds':>10}")
    print(f"{'plain gzip + json loop':24}{(records + papers) / plain:12,.0f}{plain:10.1f}")
    print(f"{'citeweave import':24}{(records + papers) / ours:12,.0f}{ours:10.1f}   ratio {plain / ours:.2f}")
    print(f"{len(corpus):,} papers, {len(corpus.citing):,} citations, {len(corpus.contexts):,} contexts")
    print(f"peak memory {memory.peak / 2**20:,.0f} MiB, of it not backed by files {memory.anonymous / 2**20:,.0f} MiB")
    print(f"opening and one look-up: {opening:.3f} s")
    rows = [
        {"label": "citeweave import", "wall": ours, "peak": memory.peak},
        {
            "label": "plain gzip + json loop, nothing kept",
            "wall": plain,
            "ratio": plain / ours,
            "remark": "by the clock",
        },
    ]
    write_figures(f"{records:,} citations and {papers:,} papers", rows)


def _seconds_per_record(shards: list[Path], kind: str) -> float:
    """The plain loop's time for a record, measured on one shard; it is a loop, so a longer run costs as much."""
    read, seconds = plain_loop(next(path for path in shards if path.name.startswith(kind)))
    return seconds / read


def warm_up(folder: Path) -> None:
    """Compiled code is made before the clock starts: once for all runs, as for a user."""
    from citeweave.corpus.ingest import import_papers

    write_papers(folder / "papers.jsonl.gz", 0, 100)
    write_citations(folder / "citations.jsonl.gz", 0, 100, 100)
    import_papers([folder / "papers.jsonl.gz", folder / "citations.jsonl.gz"], folder / "warm-up", overwrite=True)


def generate(folder: Path, records: int, papers: int) -> list[Path]:
    if not folder.is_dir():
        folder.mkdir(parents=True)
        with ProcessPoolExecutor() as pool:
            jobs = []
            for shard in range(-(-papers // RECORDS_PER_SHARD)):
                count = min(RECORDS_PER_SHARD, papers - shard * RECORDS_PER_SHARD)
                jobs.append(
                    pool.submit(write_papers, folder / f"papers-{shard:03d}.jsonl.gz", shard * RECORDS_PER_SHARD, count)
                )
            for shard in range(-(-records // RECORDS_PER_SHARD)):
                count = min(RECORDS_PER_SHARD, records - shard * RECORDS_PER_SHARD)
                jobs.append(
                    pool.submit(write_citations, folder / f"citations-{shard:03d}.jsonl.gz", shard, count, papers)
                )
            for job in jobs:
                job.result()
    return sorted(folder.iterdir(), reverse=True)


if __name__ == "__main__":
    main()
