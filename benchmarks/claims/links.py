"""Link prediction on the study's graphs: SciNCL's table 5 and table 6.6 of the co-citation thesis; the numbers are kept as JSON.

    predict_links(Path("study/"), ["elife"], ["fastrp-256"])      study/elife.links.json

Five percent of the citations are held out, five seeds; ways to embed nodes are those of `benchmarks/links.py`. Needs the
corpora that `prepare` left in `study/stages`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.links import NUMBERS, QUICK, WAYS, embedder
from citeweave import Corpus
from citeweave.core.errors import UserError, choose
from citeweave.evaluation.links import held_out_evaluator
from citeweave.graph.citations import graph_from_edges
from citeweave.graph.node_vectors import METHODS

SHARE, SEEDS = 0.05, 3
NEGATIVES = "uniform"


def links_path(folder: Path, corpus: str) -> Path:
    return folder / f"{corpus}.links.json"


def predict_links(folder: Path, corpora: Sequence[str], methods: Sequence[str] = ()) -> None:
    """Evaluate ways to embed nodes; those that are in the file are not evaluated again."""
    for method in methods:
        choose(method, WAYS, "--methods")
    for name in corpora:
        place = folder / "stages" / name / "learned"
        if not place.is_dir():
            raise UserError(f"{place} does not exist; `prepare` makes it")
        corpus = Corpus.open(place)
        graph = graph_from_edges(corpus.citing, corpus.cited, len(corpus))
        path = links_path(folder, name)
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for method in methods or QUICK:
            if method in found:
                continue
            score = METHODS[WAYS[method][1].method].score
            runs = [
                held_out_evaluator(SHARE, seed=seed, score=score)(graph, embedder(method, seed, []))[NEGATIVES]
                for seed in range(SEEDS)
            ]
            found[method] = {number: [float(run[number]) for run in runs] for number in NUMBERS}
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(f"{name}: {method}: {found[method]}", flush=True)
