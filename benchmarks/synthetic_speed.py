"""How fast the made-up literature is made, and in how much memory: text, citations and contexts, nothing written.

python benchmarks/synthetic_speed.py --papers 100000 --workers 1 --size 10000
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterable
from multiprocessing import get_context

from citeweave.corpus.synthetic.literature import Synthetic, block

Task = tuple[Synthetic, int, int]


def count(task: Task) -> tuple[int, int, int]:
    """Papers, citations and contexts of one block; the block itself is dropped."""
    part = block(*task)
    return part.stop - part.start, len(part.citations.citing), len(part.contexts.texts)


def peak_mib(who: int) -> float:
    """Largest resident memory so far; of the children, of the largest one."""
    return resource.getrusage(who).ru_maxrss / 1024  # kibibytes on Linux


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--size", type=int, default=10_000, help="papers in a block")
    arguments = parser.parse_args()
    options = Synthetic(papers=arguments.papers)
    starts = range(0, options.papers, arguments.size)
    tasks = [(options, start, min(start + arguments.size, options.papers)) for start in starts]
    began, cpu = time.perf_counter(), time.process_time()
    counts: Iterable[tuple[int, int, int]]
    if arguments.workers > 1:
        with get_context("spawn").Pool(arguments.workers) as pool:
            counts = list(pool.imap_unordered(count, tasks))
        used = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        peak = peak_mib(resource.RUSAGE_CHILDREN)
    else:
        counts = list(map(count, tasks))
        used, peak = time.process_time() - cpu, peak_mib(resource.RUSAGE_SELF)
    wall = time.perf_counter() - began
    papers, citations, contexts = (sum(column) for column in zip(*counts, strict=True))
    print(f"{'papers':>9} {'citations':>10} {'contexts':>9} {'workers':>7} {'wall s':>7} {'papers/s':>9} ", end="")
    print(f"{'CPU us/paper':>12} {'peak MiB a worker':>17}")
    print(
        f"{papers:>9} {citations:>10} {contexts:>9} {arguments.workers:>7} {wall:>7.1f} {papers / wall:>9.0f} ", end=""
    )
    print(f"{used / papers * 1e6:>12.1f} {peak:>17.0f}")


if __name__ == "__main__":
    main()
