"""Whether `citeweave estimate` is right: real stages at a few sizes beside what was estimated for them.

    python benchmarks/estimates.py                      all stages, some minutes on two cores
    python benchmarks/estimates.py --only import,mine   some of them
    python benchmarks/estimates.py --times 4            literatures four times as large

Prints estimated and measured CPU seconds, memory and disk, and their ratios; one beyond 2 is marked `*`. CPU seconds, not
those by the clock, for these do not depend on what else the machine does. Constants that are off are replaced by hand in
`citeweave/estimate/constants.py`: the table's last column says by what factor.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stage_runs
from made_edges import Made, make_literature
from measuring import Cost, run_step, write_figures
from stage_runs import Place

from citeweave.graph.options import graph_options
from citeweave.pipeline import stage_costs
from citeweave.pipeline.cost_constants import MINILM, Sizes, sizes_from_counts
from citeweave.pipeline.recipe import load_recipe, read_recipe
from citeweave.pipeline.stage_costs import StageWork
from citeweave.training.options import TrainingOptions

WITHIN = 2.0
EVEN = {"cocited": 1.31, "cocited_nearby": 1.31, "second_hop": 0.73, "coupled": 2.6, "connected_of_connected": 2.6}
"""How uneven lists of the synthetic literature are: it is known, so the guess for real ones is not used."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A stage that was run, and what was estimated of it."""

    name: str
    cost: Cost
    works: list[StageWork]

    def rows(self) -> Iterator[tuple[str, float, float]]:
        """What, estimated, measured."""
        yield "CPU s", sum(work.cpu for work in self.works), self.cost.cpu
        yield "MiB", max(work.memory for work in self.works) / 2**20, self.cost.peak / 2**20
        if self.cost.found.get("disk"):
            yield "MiB on disk", sum(work.disk for work in self.works) / 2**20, self.cost.found["disk"] / 2**20


def made_sizes(papers: int, citations: int, tokens: float = 100.0) -> Sizes:
    """Of a synthetic literature."""
    found = sizes_from_counts(papers, citations, tokens=tokens)
    paths = {name: found.references**2 * times for name, times in EVEN.items()}
    return Sizes(papers, citations, papers, tokens, round(0.58 * citations), paths=paths)


def imported(folder: Path, times: float) -> Iterator[Compared]:
    for citations, papers in ((500_000, 50_000), (2_000_000, 200_000)):
        place = Place(folder / f"import-{citations}", round(papers * times))
        place.folder.mkdir(parents=True)
        cost = run_step(stage_runs.read_records, place, round(citations * times), children=True)
        sizes = sizes_from_counts(place.papers, round(citations * times), texts=0)
        yield Compared(f"import, {citations * times:,.0f} citations", cost, [stage_costs.import_work(sizes, _cores())])
    place = Place(folder / "texts", round(50_000 * times))
    cost = run_step(stage_runs.read_texts, place, children=True)
    sizes = sizes_from_counts(place.papers, 0, tokens=cost.found["bytes"] / place.papers / 5)
    yield Compared(f"import, {place.papers:,} texts", cost, [stage_costs.import_work(sizes, _cores())])


def joined(folder: Path, times: float) -> Iterator[Compared]:
    import graph

    for papers in (50_000, 500_000):
        made = make_literature(Made(folder / f"edges-{papers}", round(papers * times), papers // 10), 10.0)
        sizes = made_sizes(made.papers, made.citations)
        yield Compared(
            f"graph, {made.citations:,} citations", run_step(graph.build, made), [stage_costs.graph_work(sizes)]
        )
        for method in ("fastrp", "prone"):
            options = graph_options({"method": method, "dimension": made.dimension})
            cost = run_step(graph.embed, made, method)
            yield Compared(f"{method}, {made.citations:,} citations", cost, stage_costs.vectors_work(sizes, options))
        rules = read_recipe(load_recipe("signal_table_cocite")).rules
        work = stage_costs.mining_work(sizes, rules, made.dimension, made.queries)[:1]
        yield Compared(f"co-citations of {made.queries:,} papers", run_step(graph.count, made, "cocited"), work)


def mined(folder: Path, times: float) -> Iterator[Compared]:
    for papers, dimension in ((5000, 256), (20_000, 256)):
        place = Place(folder / f"mine-{papers}", round(papers * times))
        stage_runs.make_corpus(place)
        joined = run_step(stage_runs.join, place, dimension)
        sizes = made_sizes(place.papers, joined.found["citations"])
        options = graph_options({"dimension": dimension})
        works = [stage_costs.graph_work(sizes), *stage_costs.vectors_work(sizes, options)]
        yield Compared(f"graph with vectors, {place.papers:,} papers", joined, works)
        for recipe in ("scincl", "specter", "sciaspect", "signal_table_cocite", "specter_cocite"):
            rules = read_recipe(load_recipe(recipe)).rules
            cost = run_step(stage_runs.mine, place, recipe)
            anchors = cost.found["samples"] if rules.from_contexts else place.papers
            works = stage_costs.mining_work(sizes, rules, dimension, anchors)
            yield Compared(f"mine {recipe}, {place.papers:,} papers", cost, works)


def read(folder: Path, times: float) -> Iterator[Compared]:
    place, many = Place(folder / "read", round(300 * times)), Place(folder / "many", round(10_000 * times))
    for each in (place, many):
        stage_runs.make_corpus(each)
    cost = run_step(stage_runs.tokenize, many)
    tokens = cost.found["tokens"]
    yield Compared(f"tokens of {many.papers:,} papers", cost, [stage_costs.tokens_work(many.papers, tokens)])
    sizes = made_sizes(place.papers, 10 * place.papers, tokens)
    embedding = [stage_costs.embedding_work(MINILM, sizes, tokens)]
    yield Compared(f"embedding of {place.papers:,} papers", run_step(stage_runs.embed, place), embedding)
    sentences = [stage_costs.sentences_work(MINILM, sizes, tokens)]
    yield Compared(f"sentence vectors of {place.papers:,} papers", run_step(stage_runs.embed, place, True), sentences)


def trained(folder: Path, times: float) -> Iterator[Compared]:
    place = Place(folder / "train", 1000)
    stage_runs.make_corpus(place)
    run_step(stage_runs.join, place, 64)
    run_step(stage_runs.mine, place, "specter")
    rules = read_recipe(load_recipe("specter")).rules
    for steps in (round(3 * times), round(9 * times)):
        cost = run_step(stage_runs.train, place, steps, 16)
        options = TrainingOptions(steps=steps, batch=16)
        one = stage_costs.training_work(MINILM, options, rules, place.papers, cost.found["tokens"], gpu=False)
        tokens = stage_costs.tokens_work(place.papers, cost.found["tokens"])
        yield Compared(f"training, {steps} steps of 16 triplets", cost, [one, tokens])


def indexed(folder: Path, times: float) -> Iterator[Compared]:
    for papers in (5000, 20_000):
        place = Place(folder / f"index-{papers}", round(papers * times))
        place.folder.mkdir(parents=True)
        sizes = made_sizes(place.papers, 10 * place.papers)
        work = stage_costs.index_work(MINILM, sizes, 100.0, sentences=True)
        yield Compared(f"index of {place.papers:,} papers", run_step(stage_runs.index, place), [work])


STAGES: dict[str, Callable[[Path, float], Iterator[Compared]]] = {
    "import": imported,
    "graph": joined,
    "mine": mined,
    "read": read,
    "train": trained,
    "index": indexed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(STAGES), help=f"of {', '.join(STAGES)}")
    parser.add_argument("--times", type=float, default=1.0, help="so many times the usual sizes")
    parser.add_argument("--folder", type=Path, default=None, help="where to work; default a temporary folder")
    options = parser.parse_args()
    figures: list[dict[str, Any]] = []
    print(f"{'':44}{'':14}{'estimated':>12}{'measured':>12}{'ratio':>8}")
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            for compared in STAGES[name](Path(folder), options.times):
                figures += list(_printed(compared))
    off = sum(row["ratio"] < 1 / WITHIN or row["ratio"] > WITHIN for row in figures)
    print(f"{len(figures) - off} of {len(figures)} within {WITHIN:g} times; ratio: estimated over measured")
    write_figures("estimated and measured", figures)


def _printed(compared: Compared) -> Iterator[dict[str, Any]]:
    for number, (what, estimated, measured) in enumerate(compared.rows()):
        ratio = estimated / max(measured, 1e-9)
        mark = "" if 1 / WITHIN <= ratio <= WITHIN else " *"
        label = compared.name if not number else ""
        print(f"{label:44}{what:14}{estimated:12,.2f}{measured:12,.2f}{ratio:8.2f}{mark}", flush=True)
        yield {"label": f"{compared.name}: {what}", "estimated": estimated, "measured": measured, "ratio": ratio}


def _cores() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
