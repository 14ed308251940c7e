"""The published mining set-ups on real corpora: samples, audit, and whether one worker and two agree.

python benchmarks/mining_setups.py peerread_plus=FOLDER elife=FOLDER synthetic=1000000

A corpus is NAME=FOLDER of an imported corpus, or NAME=NUMBER of papers to make up. Prints Markdown tables, the ones of
docs/history/mining-audits.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from citeweave import Corpus, Vectors, synthesize
from citeweave.corpus.options import SyntheticOptions
from citeweave.graph.build import make_graph
from citeweave.graph.intent_overlay import intents_from_contexts
from citeweave.graph.options import graph_options
from citeweave.mining.audit import audit_samples
from citeweave.mining.bands import apply_bands, choose_bands_for_rules
from citeweave.mining.inputs import MiningInputs
from citeweave.mining.mine import mine_samples
from citeweave.mining.options import MiningOptions
from citeweave.mining.rules import parse_rules
from citeweave.pipeline.recipe import load_recipe

SETUPS = ["specter", "specter_cl", "scincl", "cocite", "sciaspect", "aspire"]
BANDED = ["scincl", "cocite"]
HEAD = (
    "| set-up | samples | positives | negatives | no anchor | collisions | negatives connected | co-cited | near copies "
    "| seconds | one worker = two |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="+", help="NAME=FOLDER, or NAME=PAPERS to make up")
    parser.add_argument("--setups", nargs="+", default=SETUPS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for entry in options.corpora:
            name, _, place = entry.partition("=")
            corpus = open_corpus(place, Path(folder) / f"{name}-corpus")
            print(f"\n{name}: {len(corpus):,} papers, {len(corpus.citing):,} citations\n\n{HEAD}", flush=True)
            for setup in options.setups:
                print(line_of(setup, corpus, Path(folder) / name), flush=True)


def open_corpus(place: str, folder: Path) -> Corpus:
    return synthesize(folder, SyntheticOptions(papers=int(place))) if place.isdigit() else Corpus.open(place)


def line_of(setup: str, corpus: Corpus, folder: Path) -> str:
    """One recipe on one corpus, mined with one worker and with two, and audited."""
    recipe = load_recipe(setup)
    rules = parse_rules(recipe.table("mining"))
    kind = "cocited" if setup == "cocite" else "citations"
    graph = make_graph(corpus, folder / f"graph-{kind}", graph_options(recipe.table("graph")))
    vectors = {"graph": Vectors.open(folder / f"graph-{kind}" / "vectors")}
    if not corpus.intents.any():
        graph = graph.with_intents(intents_from_contexts(corpus, graph, headings=True))
    inputs = MiningInputs(graph=graph, vectors=vectors if setup in BANDED else {})
    label = f"`{setup}`"
    if setup in BANDED:
        bands = choose_bands_for_rules(corpus, rules, inputs)
        rules = apply_bands(rules, bands)
        label += f", ranks {bands.positive_rank} and {bands.negative_rank}"
    start = time.perf_counter()
    samples = mine_samples(corpus, rules, folder / f"{setup}-2", inputs, MiningOptions(workers=2))
    seconds = time.perf_counter() - start
    other = mine_samples(corpus, rules, folder / f"{setup}-1", inputs, MiningOptions(workers=1))
    audit = audit_samples(samples, corpus, graph=graph, vectors=vectors).as_json()
    same = "yes" if samples.hash == other.hash else "NO"
    counts = [len(samples), len(samples.positives.rows), len(samples.negatives.rows)]
    skipped = sum(samples.manifest.facts["skipped"].values())
    numbers = " | ".join(f"{count:,}" for count in [*counts, skipped])
    return f"| {label} | {numbers} | {shares(audit, counts[2])} | {seconds:.1f} | {same} |"


def shares(audit: dict[str, Any], negatives: int) -> str:
    """Collisions as a share of all pairs; what negatives are to their anchors, over all negative rules."""
    rules = [rule for rule in audit["rules"].values() if rule["side"] == "negatives"]

    def share(name: str) -> str:
        found = sum(rule["relations"][name]["picks"] for rule in rules)
        return f"{100 * found / max(negatives, 1):.2f} %"

    copies = sum(rule["copies"]["either"] for rule in rules)
    # in another aspect a paper may well be a negative: SciAspect means it so
    pairs = 100 * audit["collisions"]["pairs_same_aspect"] / audit["collisions"]["all_pairs"]
    return f"{pairs:.3f} % | {share('connected')} | {share('cocited')} | {100 * copies / max(negatives, 1):.3f} %"


if __name__ == "__main__":
    main()
