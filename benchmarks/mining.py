"""Mining at the size of SciNCL beside its peers: a pool of 680,967 papers, 136,820 anchors, five triplets each.

    python benchmarks/mining.py                                            the whole
    python benchmarks/mining.py --pool 20000 --queries 2000 --peer-queries 500

Made-up papers, their citation graph and its node vectors (fastrp) are written first and not measured; with --folder
they stay there for the next run. Then two shipped recipes are mined with `mine_samples`, samples written to disk:
`scincl` (rank bands of node vectors) beside faiss's exact search for the 4,000 nearest, and `specter` (the graph alone)
beside a plain Python sampler of the same rules. Every line is a process of its own. Lines marked `*` are measured on a
part and multiplied; the label says by what.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from measuring import Clock, Cost, Row, missing, print_table, run_step, versions
from numpy.typing import NDArray

if TYPE_CHECKING:
    from citeweave.mining.samples import Samples

POSITIVES, HARD = (20, 25), (3998, 4000)
"""The rank bands of the recipe scincl: low < rank <= high."""

SCINCL_ANCHORS = 136_820
WARM_UP_PAPERS = 5000


@dataclass(frozen=True, slots=True)
class Made:
    """A synthetic corpus on disk, and what is asked of it."""

    folder: Path
    samples: Path
    """Where samples are written."""

    pool: int
    queries: int
    dimension: int
    peer_queries: int

    @property
    def anchors(self) -> NDArray[np.int64]:
        chosen = np.random.default_rng(1).choice(self.pool, min(self.queries, self.pool), replace=False)
        return np.sort(chosen)

    @property
    def few(self) -> NDArray[np.int64]:
        """Some of the anchors, for peers that are too slow for all."""
        return np.sort(
            np.random.default_rng(2).choice(self.anchors, min(self.peer_queries, self.queries), replace=False)
        )


def make_literature(made: Made) -> None:
    """Papers that all have text, their graph and its vectors; what is there already is kept."""
    from citeweave import synthesize
    from citeweave.corpus.options import SyntheticOptions
    from citeweave.graph.build import make_graph
    from citeweave.graph.options import graph_options

    corpus = synthesize(made.folder / "corpus", SyntheticOptions(papers=made.pool, bare=0.0, contexts=0.0))
    make_graph(corpus, made.folder / "graph", graph_options({"method": "fastrp", "dimension": made.dimension}))


def mine(clock: Clock, made: Made, warm_up: Made, recipe: str) -> dict[str, Any]:
    _mine(Clock(), warm_up, recipe)
    samples = _mine(clock, made, recipe)
    skipped = samples.manifest.facts["skipped"]
    return {"samples": len(samples), "triplets": len(samples.triplets()), "skipped": sum(skipped.values())}


def _mine(clock: Clock, made: Made, recipe: str) -> Samples:
    from citeweave import Corpus
    from citeweave.graph.citations import CitationGraph
    from citeweave.mining.inputs import MiningInputs as Inputs
    from citeweave.mining.mine import mine_samples
    from citeweave.mining.rules import parse_rules
    from citeweave.pipeline.recipe import load_recipe
    from citeweave.vectors.vectors import Vectors

    corpus, graph = Corpus.open(made.folder / "corpus"), CitationGraph.open(made.folder / "graph")
    rules = parse_rules(load_recipe(recipe).table("mining"))
    vectors = {"graph": Vectors.open(made.folder / "graph" / "vectors")} if rules.needs_vectors("graph") else {}
    inputs = Inputs(graph, vectors, anchors=made.anchors)
    with clock:
        samples = mine_samples(corpus, rules, made.samples / recipe, inputs, overwrite=True)
    return samples


def search_with_faiss(clock: Clock, made: Made) -> dict[str, Any]:
    """The 4,000 nearest of a few anchors by inner product of unit vectors; filling the index is not measured."""
    import faiss

    from citeweave.vectors.vectors import Vectors

    matrix = np.asarray(Vectors.open(made.folder / "graph" / "vectors").matrix, np.float32)
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    kept = np.flatnonzero(lengths[:, 0] > 0)  # papers without citations have no vector
    unit = matrix[kept] / lengths[kept]  # (kept, dimension)
    del matrix
    index = faiss.IndexFlatIP(unit.shape[1])
    index.add(unit)
    queries = np.flatnonzero(np.isin(kept, made.few))
    asked = unit[queries]
    del unit
    index.search(asked[:1], 10)
    with clock:
        _, found = index.search(asked, HARD[1] + 1)  # (queries, 4001), itself included
    bands = [_bands(kept[row[row != query]]) for query, row in zip(queries, found, strict=True)]
    return {"queries": len(queries), "bands": dict(zip(kept[queries].tolist(), bands, strict=True))}


def _bands(ranked: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """The papers of the two bands; `ranked` has the nearest first, without the query."""
    return ranked[slice(*POSITIVES)].tolist(), ranked[slice(*HARD)].tolist()


def agreement(made: Made, bands: dict[int, tuple[list[int], list[int]]]) -> float:
    """Share of faiss's band members that `mine_samples` chose too: all that are not equally near as others."""
    from citeweave.mining.samples import Samples

    samples = Samples.open(made.samples / "scincl")
    sample_of = {int(anchor): number for number, anchor in enumerate(samples.anchors)}
    same = total = 0
    for anchor, (positives, hard) in bands.items():
        number = sample_of[anchor]  # who has a vector has a sample
        same += len(set(positives) & set(samples.positives.of(number).tolist()))
        same += len(set(hard) & set(samples.negatives.of(number).tolist()))
        total += len(positives) + len(hard)
    return same / max(1, total)


def sample_plainly(clock: Clock, made: Made) -> dict[str, Any]:
    """The rules of the recipe specter with lists, sets and `random`; nothing is written."""
    from citeweave.graph.citations import CitationGraph

    graph = CitationGraph.open(made.folder / "graph")
    flat, ends = graph.cited.targets.tolist(), graph.cited.offsets.tolist()
    references = [flat[start:end] for start, end in pairwise(ends)]
    anchors, draw = made.anchors.tolist(), random.Random(0)
    with clock:
        samples = [sample for anchor in anchors if (sample := _sample(anchor, references, draw))]
    return {"queries": len(anchors), "triplets": sum(min(len(up), len(down)) for up, down in samples)}


def _sample(anchor: int, references: list[list[int]], draw: random.Random) -> tuple[list[int], list[int]] | None:
    """Five cited papers; two that these cite and the anchor does not; three others."""
    cited = set(references[anchor])
    if not cited:
        return None
    positives = draw.sample(references[anchor], min(5, len(cited)))
    further = {far for near in references[anchor] for far in references[near]} - cited - {anchor}
    negatives = draw.sample(list(further), min(2, len(further)))
    taken = {anchor, *cited, *negatives}
    for _ in range(3):
        while (other := draw.randrange(len(references))) in taken:
            pass
        taken.add(other)
        negatives.append(other)
    return positives, negatives


def rows_of(made: Made, recipe: str, cost: Cost, peers: list[tuple[str, Cost]], skipped: Row | None) -> list[Row]:
    """One recipe: ours, ours at SciNCL's number of anchors where fewer were mined, then the peer."""
    anchors, rate = len(made.anchors), cost.found["triplets"] / cost.wall
    ours = Row(f"  citeweave, {anchors:,} anchors", cost, remark=f"{rate:,.0f} triplets/s")
    rows = [Row(f"recipe {recipe}"), ours]
    if anchors < SCINCL_ANCHORS <= made.pool:
        times = SCINCL_ANCHORS / anchors
        rows.append(Row(f"  * the same x {times:,.1f} ({SCINCL_ANCHORS:,} anchors)", cost, times))
    for label, other in peers:
        times = anchors / other.found["queries"]
        part = "" if times == 1 else f", {other.found['queries']:,} anchors x {times:,.1f}"
        rows.append(Row(f"  {'* ' if part else ''}{label}{part}", other, times, ours))
    return [*rows, *([skipped] if skipped is not None else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=int, default=680_967, help="papers, all with text; more than 4,000")
    parser.add_argument("--queries", type=int, default=SCINCL_ANCHORS, help="anchors")
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--peer-queries", type=int, default=1000, help="anchors of faiss")
    parser.add_argument("--folder", type=Path, default=None, help="where to keep the corpus and its graph")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        place = Path(temporary)
        folder = (options.folder or place) / f"pool-{options.pool}-{options.dimension}"
        asked = (options.pool, options.queries, options.dimension, options.peer_queries)
        warm_up = Made(place / "warm-up", place / "warm-up-samples", WARM_UP_PAPERS, 100, 16, 10)
        run(Made(folder, place / "samples", *asked), warm_up)


def run(made: Made, warm_up: Made) -> None:
    for literature in (made, warm_up):
        make_literature(literature)
    scincl, specter = (run_step(mine, made, warm_up, recipe) for recipe in ("scincl", "specter"))
    skipped, same, faiss = missing("faiss", "faiss-cpu"), "", []
    if skipped is None:
        found = run_step(search_with_faiss, made)
        same = f"{agreement(made, found.found['bands']):.2%} of the papers in faiss's bands are in citeweave's samples"
        faiss.append((f"faiss IndexFlatIP, top {HARD[1]:,}, search alone", found))
    plain = ("Python, lists and sets, nothing written", run_step(sample_plainly, made))
    rows = rows_of(made, "scincl", scincl, faiss, skipped) + rows_of(made, "specter", specter, [plain], None)
    notes = [
        "CPU s: user and system, all threads. ratio: CPU s over those of citeweave's line above.",
        "peak: resident memory with imports and pages of mapped files; at start: what was there before the step.",
        "Compiled code is loaded by a tiny run before the clock. Triplets are positives paired with negatives.",
        f"anchors without a vector or a citation, skipped: scincl {scincl.found['skipped']:,}, specter "
        f"{specter.found['skipped']:,}",
        *([same] if same else []),
        versions("numpy", "faiss-cpu"),
    ]
    title = f"pool of {made.pool:,} papers, {made.dimension} dimensions, {len(made.anchors):,} anchors; {os.cpu_count()} cores"
    print_table(title, rows, notes)


if __name__ == "__main__":
    main()
