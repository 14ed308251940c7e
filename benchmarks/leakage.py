"""Leakage audit: peerread_plus against CSFCube, speed, and MinHash LSH (datasketch) beside our exact index.
Times are CPU seconds of one core, after warm-up.

    python benchmarks/leakage.py --data FOLDER [--peer-papers 3000] [--repeat 1]

`--repeat` streams the corpus that many times as one, to see the speed on more papers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import time
from pathlib import Path

import numpy as np

from citeweave.corpus.leakage import (
    TEXT_MINIMUM,
    TEXT_WORDS,
    BenchmarkLeakage,
    LeakageEvidence,
    PaperTable,
    audit_leakage,
)
from citeweave.corpus.near_duplicates import DuplicateThreshold, ShingleIndex, shingle_texts
from citeweave.corpus.options import LeakageOptions


def read_papers(folder: Path, repeat: int = 1) -> tuple[PaperTable, list[bool]]:
    with gzip.open(folder / "papers.jsonl.gz", "rt", encoding="utf-8") as lines:
        papers = [json.loads(line) for line in lines] * repeat
    columns = PaperTable(
        ids=[paper["id"] for paper in papers],
        titles=[paper["title"] or "" for paper in papers],
        abstracts=[paper["abstract"] or "" for paper in papers],
        years=np.array([paper["year"] or 0 for paper in papers], np.int32),
        other_ids=[tuple(paper.get("other_ids", ())) for paper in papers],
    )
    return columns, [bool(paper.get("in_csfcube")) for paper in papers]


def show_added(corpus: PaperTable, benchmark: PaperTable, found: BenchmarkLeakage) -> None:
    """The pairs that neither ids nor titles give, most similar first."""
    added = [match for match in found if match.strongest <= LeakageEvidence.TEXT]
    print(f"\nadded by near-duplicate text: {len(added)} pairs")
    for match in sorted(added, key=lambda match: -match.similarity):
        names = corpus.titles[match.corpus_row], benchmark.titles[match.benchmark_row]
        print(f"  {match.strongest.name:10} {match.similarity:.2f}  {names[0][:75]} | {names[1][:75]}")


def compare_with_minhash(corpus: PaperTable, benchmark: PaperTable, papers: int) -> None:
    """The same rule by MinHash LSH: sets of the same word triples, 128 permutations, Jaccard 0.5."""
    from datasketch import MinHash, MinHashLSH  # type: ignore[import-untyped]

    texts = [f"{t}\n{a}" for t, a in zip(corpus.titles[:papers], corpus.abstracts[:papers], strict=True)]
    known = shingle_texts([f"{t}\n{a}" for t, a in zip(benchmark.titles, benchmark.abstracts, strict=True)], TEXT_WORDS)
    index = ShingleIndex.build(known)
    index.find(shingle_texts(texts[:10], TEXT_WORDS), DuplicateThreshold())
    start = time.process_time()
    exact = index.find(shingle_texts(texts, TEXT_WORDS), DuplicateThreshold(jaccard=0.5, minimum=TEXT_MINIMUM))
    ours = time.process_time() - start

    asked = shingle_texts(texts, TEXT_WORDS)
    lsh = MinHashLSH(threshold=0.5, num_perm=128)
    for row in range(len(known)):
        lsh.insert(row, _minhash(MinHash, known.hashes[known.bounds[row] : known.bounds[row + 1]]))
    start = time.process_time()
    guessed = set()
    for row in range(len(texts)):
        for other in lsh.query(_minhash(MinHash, asked.hashes[asked.bounds[row] : asked.bounds[row + 1]])):
            guessed.add((row, other))
    theirs = time.process_time() - start
    pairs = set(zip(exact.queries.tolist(), exact.rows.tolist(), strict=True))
    print(f"\n{len(texts):,} papers, pairs with Jaccard >= 0.5    papers/CPU s   pairs   of them LSH proposes")
    print(f"  exact shingle index (shingling included) {len(texts) / ours:10,.0f} {len(pairs):7}")
    print(f"  datasketch, shingles given               {len(texts) / theirs:10,.0f} {len(guessed):7}", end="")
    print(f"   {len(pairs & guessed)} of {len(pairs)}")


def _minhash(kind: type, hashes: np.ndarray) -> object:
    sketch = kind(num_perm=128, hashfunc=lambda value: int(value) & 0xFFFFFFFF)
    sketch.update_batch(hashes.tolist())
    return sketch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="holds peerread_plus and csfcube")
    parser.add_argument("--peer-papers", type=int, default=3000)
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    corpus, flags = read_papers(options.data / "peerread_plus", options.repeat)
    benchmark, _ = read_papers(options.data / "csfcube")
    audit_leakage(PaperTable(["x"], ["warm up"]), {"warm": PaperTable(["x"], ["warm up"])})
    for near in (False, True):
        start = time.process_time()
        report = audit_leakage(corpus, {"csfcube": benchmark}, LeakageOptions(near_duplicates=near))
        seconds = time.process_time() - start
        speed = f"{len(corpus.ids) / seconds:,.0f}/s"
        print(f"near_duplicates={near}: {len(corpus.ids):,} papers in {seconds:.2f} CPU s, {speed}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    flagged = set(np.flatnonzero(flags).tolist())
    print(f"peak memory {peak:,.0f} MiB (the papers included)\n\n{report}")
    print(f"flagged in the data: {len(flagged)}; found: {len(flagged & set(report.rows_to_exclude().tolist()))}")
    if options.repeat == 1:
        show_added(corpus, benchmark, report.benchmarks["csfcube"])
        compare_with_minhash(corpus, benchmark, options.peer_papers)


if __name__ == "__main__":
    main()
