"""The whole way at the size of SciNCL's literature: 52 million papers and 463 million citations, structure only.

    python benchmarks/literature.py --work /data/run --memory 14GB --remove-shards
    python benchmarks/literature.py --work /data/run --papers 56000 560000 5600000 --citations 500000 5000000 50000000 \\
        --queries 1500 15000 137000 --pool 20000 100000 681000 --triplets 7500 75000 684100

Steps: shards of a synthetic citation graph (`made_shards.py` says what it is), import, graph (both directions), fastrp
(128 dimensions, float16), cocited (counts for the queries), triplets (rank bands within the pool and SciNCL's triplets).
`bands` searches the bands alone and is run only where --only names it. Each step is a process of its own. Its figures go
to figures.json in the folder of its size at once: a run that was broken goes on with the step that is missing, and that
step with what it has on disk. With --warm a step's process takes the same steps on a tiny literature first, so that loading
compiled code (0.3 to 2 s a step) is not in its figures. Nothing here judges vectors or triplets, only what they cost.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from made_shards import Shards, write_shards
from measuring import Clock, Cost, Row, Step, exponent, print_table, run_step, versions
from numpy.typing import NDArray

Ints = NDArray[np.int64]

PER_ANCHOR = 5
"""Triplets that SciNCL's recipe makes of one anchor."""

POSITIVES, HARD = (20, 25), (3998, 4000)
"""Its rank bands: low < rank <= high."""


@dataclass(frozen=True, slots=True)
class Size:
    """One literature, what is asked of it, and where it is made."""

    work: Path
    papers: int
    citations: int
    queries: int
    pool: int
    triplets: int
    memory: int
    workers: int
    dimension: int

    @property
    def folder(self) -> Path:
        return self.work / f"{self.papers}-{self.citations}"

    @property
    def shards(self) -> Shards:
        return Shards(self.folder / "edges", self.papers, self.citations)

    def rows(self, papers: int) -> tuple[Ints, Ints]:
        """The pool and, in it, the papers that are asked about; all drawn from a corpus of so many papers."""
        draw = np.random.default_rng(1)
        pool = np.sort(draw.choice(papers, min(self.pool, papers), replace=False, shuffle=False))
        queries = np.sort(draw.choice(pool, min(self.queries, len(pool)), replace=False))
        return pool, queries


def shards(clock: Clock, size: Size) -> dict[str, Any]:
    with clock:
        made = write_shards(size.shards, size.workers)
    files = list(size.shards.folder.iterdir())
    return {"made": made, "files": len(files), "bytes": sum(file.stat().st_size for file in files)}


def import_(clock: Clock, size: Size) -> dict[str, Any]:
    from citeweave.corpus.ingest import import_papers
    from citeweave.corpus.options import ImportOptions

    options = ImportOptions(outside="keep", memory=size.memory // 4, workers=size.workers)
    with clock:
        corpus = import_papers([size.shards.folder], size.folder / "corpus", options).corpus
    return {"papers": len(corpus), "citations": len(corpus.citing), "formats": corpus.manifest.facts["formats"]}


def graph(clock: Clock, size: Size) -> dict[str, Any]:
    from citeweave import Corpus
    from citeweave.graph.citations import build_graph

    corpus = Corpus.open(size.folder / "corpus")
    with clock:
        built = build_graph(corpus, size.folder / "graph", memory=size.memory * 6 // 7)
    return {"edges": built.edges, "most_cited": int(np.diff(built.citing.offsets).max())}


def fastrp(clock: Clock, size: Size) -> dict[str, Any]:
    from citeweave import Corpus
    from citeweave.core.artifact import read_manifest
    from citeweave.graph.build import make_graph
    from citeweave.graph.citations import KIND, VERSION
    from citeweave.graph.options import graph_options

    options = {"method": "fastrp", "dimension": size.dimension, "dtype": "float16"}
    asked = graph_options({**options, "memory": size.memory, "workers": size.workers})
    corpus = Corpus.open(size.folder / "corpus")
    with clock:
        make_graph(corpus, size.folder / "graph", asked, overwrite=True)
    return {"isolated": read_manifest(size.folder / "graph", KIND, VERSION).facts["isolated"]}


def cocited(clock: Clock, size: Size) -> dict[str, Any]:
    from citeweave.graph.build import write_related
    from citeweave.graph.citations import CitationGraph
    from citeweave.graph.signals import Signal

    built = CitationGraph.open(size.folder / "graph")
    _, queries = size.rows(built.nodes)
    with clock:
        found = write_related(
            built, Signal("cocited"), queries, size.folder / "cocited", memory=size.memory // 8, workers=size.workers
        )
    return {"queries": len(queries), "pairs": found.pairs}


def bands(clock: Clock, size: Size) -> dict[str, Any]:
    from citeweave.vectors.topk import Band, search_blocks
    from citeweave.vectors.vectors import Vectors

    matrix = Vectors.open(size.folder / "graph" / "vectors").matrix
    pool, queries = size.rows(len(matrix))
    asked = [Band(*POSITIVES), Band(*HARD)]
    found = 0
    with clock:
        chosen = np.asarray(matrix[pool], np.float32)  # (pool, dimension)
        itself = np.searchsorted(pool, queries)
        for _, blocks in search_blocks(
            chosen, chosen[itself], asked, itself=itself, workers=size.workers, memory=size.memory // 8
        ):
            found += sum(block.rows.size for block in blocks)
    return {"queries": len(queries), "neighbors": found}


def triplets(clock: Clock, size: Size) -> dict[str, Any]:
    from citeweave import Corpus
    from citeweave.mining.inputs import MiningInputs as Inputs
    from citeweave.mining.mine import mine_samples
    from citeweave.mining.options import MiningOptions
    from citeweave.mining.rules import parse_rules
    from citeweave.pipeline.recipe import load_recipe
    from citeweave.vectors.vectors import Vectors

    corpus = Corpus.open(size.folder / "corpus")
    rules = parse_rules(load_recipe("scincl", ["mining.text=any"]).table("mining"))
    pool, queries = size.rows(len(corpus))
    anchors = queries[: -(-size.triplets // PER_ANCHOR)]
    vectors = {"graph": Vectors.open(size.folder / "graph" / "vectors")}
    inputs = Inputs(vectors=vectors, anchors=anchors, pool=pool)
    options = MiningOptions(workers=size.workers, memory=size.memory // 8)
    with clock:
        samples = mine_samples(corpus, rules, size.folder / "samples", inputs, options)
    return {"anchors": len(anchors), "samples": len(samples), "triplets": len(samples.triplets())}


STEPS: dict[str, Step] = {
    "shards": shards,
    "import": import_,
    "graph": graph,
    "fastrp": fastrp,
    "cocited": cocited,
    "bands": bands,
    "triplets": triplets,
}
ORDINARY = [name for name in STEPS if name != "bands"]


TINY = {"papers": 6000, "citations": 50_000, "queries": 100, "pool": 6000, "triplets": 500}
"""The least that all steps can be taken with."""


def warmed(clock: Clock, size: Size, name: str) -> dict[str, Any]:
    """A step, after it and those before it on a tiny literature, which are not measured."""
    before = list(STEPS)[: list(STEPS).index(name)]
    with tempfile.TemporaryDirectory() as folder:
        tiny = replace(size, work=Path(folder), **TINY)
        for each in [*(step for step in before if step in ORDINARY), name]:
            STEPS[each](Clock(), tiny)
    return STEPS[name](clock, size)


class DiskPeak:
    """The most that a folder takes on the disk while a step runs, holes in files not counted."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.peak = folder, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> DiskPeak:
        self.peak = _disk(self._folder)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, _disk(self._folder))

    def _watch(self) -> None:
        while not self._stop.wait(2.0):
            self.peak = max(self.peak, _disk(self._folder))


def _disk(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                status = Path(parent, name).lstat()
            except FileNotFoundError:
                continue
            total += status.st_blocks * 512 // status.st_nlink
    return total


class Figures:
    """What every step took, in a file that is written after each."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "figures.json"
        self.steps: dict[str, dict[str, Any]] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def begin(self, name: str) -> None:
        self.steps[name] = {"begun": self.steps.get(name, {}).get("begun", 0) + 1}
        self._write()

    def end(self, name: str, cost: Cost, disk: int) -> None:
        figures = {"cpu": cost.cpu, "wall": cost.wall, "peak": cost.peak, "start": cost.start, "found": cost.found}
        self.steps[name] |= {**figures, "disk_peak": disk, "at": time.strftime("%Y-%m-%dT%H:%M:%S")}
        self._write()

    def has(self, name: str) -> bool:
        return "cpu" in self.steps.get(name, {})

    def cost(self, name: str) -> Cost:
        step = self.steps[name]
        return Cost(step["cpu"], step["wall"], step["peak"], step["start"], step["found"])

    def _write(self) -> None:
        new = self._path.with_name(self._path.name + ".new")
        new.write_text(json.dumps(self.steps, indent=1) + "\n")
        new.replace(self._path)


def run(size: Size, names: Sequence[str], *, remove_shards: bool, warm: bool = False) -> Figures:
    """The steps of one size that have no figures yet."""
    size.folder.mkdir(parents=True, exist_ok=True)
    figures = Figures(size.folder)
    for name in names:
        if not figures.has(name):
            figures.begin(name)
            with DiskPeak(size.folder) as disk:
                step, given = (warmed, (size, name)) if warm and name != "shards" else (STEPS[name], (size,))
                cost = run_step(step, *given, children=name in ("shards", "import"))
            figures.end(name, cost, disk.peak)
        if name == "import" and remove_shards:
            shutil.rmtree(size.shards.folder, ignore_errors=True)
    return figures


def report(size: Size, figures: Figures, smaller: tuple[Size, Figures] | None) -> None:
    rows = []
    for name in (name for name in STEPS if figures.has(name)):
        growth = None
        if smaller is not None and smaller[1].has(name) and min(figures.cost(name).cpu, smaller[1].cost(name).cpu) > 0:
            ratio = size.citations / smaller[0].citations
            growth = exponent(figures.cost(name).cpu, smaller[1].cost(name).cpu, ratio)
        step = figures.steps[name]
        found = ", ".join(f"{what} {value:,}" for what, value in step["found"].items() if isinstance(value, int))
        again = f", in {step['begun']} goes, the last measured" if step["begun"] > 1 else ""
        remark = f"disk {step['disk_peak'] / 2**30:.1f} GiB; {found}{again}"
        rows.append(Row(name, figures.cost(name), growth=growth, remark=remark))
    title = f"{size.papers:,} papers, {size.citations:,} citations; {size.workers} cores, memory {size.memory / 2**30:.1f} GiB"
    notes = [
        "CPU s: user and system, all threads and children. peak: resident memory, pages of mapped files included.",
        "disk: the most that the folder of this size took during the step.",
        *(["growth: exponent of CPU s by citations, beside the size before"] if smaller else []),
        versions("numpy", "numba", "pyarrow"),
    ]
    print_table(title, rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, required=True, help="where to work; a folder of a size that is there goes on"
    )
    several = {"type": int, "nargs": "+"}
    parser.add_argument("--papers", default=[52_000_000], **several, help="one number a size")
    parser.add_argument("--citations", default=[463_000_000], **several)
    parser.add_argument("--queries", default=[137_000], **several, help="papers whose co-citations are counted")
    parser.add_argument("--pool", default=[681_000], **several, help="papers among which bands are searched")
    parser.add_argument("--triplets", default=[684_100], **several, help="five of each anchor, which are queries")
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--memory", default="14GB", help="what a step may hold in all, such as 14GB")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--only", default=",".join(ORDINARY), help=f"steps, of {','.join(STEPS)}")
    parser.add_argument("--remove-shards", action="store_true", help="after they are imported")
    parser.add_argument("--warm", action="store_true", help="load compiled code before a step is measured")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - STEPS.keys():
        parser.error(f"--only names {', '.join(sorted(unknown))}; steps are {', '.join(STEPS)}")
    if len(options.papers) != len(options.citations):
        parser.error("--papers and --citations need one number a size")
    smaller = None
    for size in sizes_of(options):
        chosen = [name for name in STEPS if name in names]
        figures = run(size, chosen, remove_shards=options.remove_shards, warm=options.warm)
        report(size, figures, smaller)
        smaller = size, figures


def sizes_of(options: argparse.Namespace) -> list[Size]:
    from citeweave.core.options import parse_size

    number = len(options.papers)
    asked = [
        values if len(values) == number else [values[0]] * number
        for values in (options.queries, options.pool, options.triplets)
    ]
    memory = parse_size(options.memory, "--memory")
    return [
        Size(options.work, *one, memory, options.workers, options.dimension)
        for one in zip(options.papers, options.citations, *asked, strict=True)
    ]


if __name__ == "__main__":
    main()
