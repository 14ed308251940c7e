"""Making up a literature: papers a second and peak memory of the whole command, generation and writing.

python benchmarks/synthesize.py --papers 1000000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from measuring import PeakMemory, write_figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=0, help="0 = one a core")
    options = parser.parse_args()
    from citeweave import Corpus, synthesize
    from citeweave.corpus.options import SyntheticOptions

    with tempfile.TemporaryDirectory() as folder:
        synthesize(Path(folder) / "warm-up", SyntheticOptions(papers=100))
        with PeakMemory() as memory:
            start = time.perf_counter()
            corpus = synthesize(
                Path(folder) / "corpus", SyntheticOptions(papers=options.papers), workers=options.workers
            )
            seconds = time.perf_counter() - start
        start = time.perf_counter()
        Corpus.open(corpus.folder).row("syn:000007")
        opening = time.perf_counter() - start
        print(f"{len(corpus):,} papers, {len(corpus.citing):,} citations, {len(corpus.contexts):,} contexts")
        print(f"{seconds:.1f} s, {len(corpus) / seconds:,.0f} papers/s")
        print(
            f"peak memory {memory.peak / 2**20:,.0f} MiB, of it not backed by files {memory.anonymous / 2**20:,.0f} MiB"
        )
        print(f"opening and one look-up: {opening:.3f} s")
        write_figures(
            "a synthetic literature", [{"label": f"{len(corpus):,} papers", "wall": seconds, "peak": memory.peak}]
        )


if __name__ == "__main__":
    main()
