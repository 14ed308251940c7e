"""Held-out citations: how well vectors of nodes, made without some citations, find them again.

judge = held_out_judge(share=0.01, seed=0)
judge(graph, embed)    ->   {"share": 0.01, "uniform": {"mrr": ..., ...}, "degree": {...}}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.links import NEGATIVES, hold_out, judge_links
from citeweave.graph.citations import CitationGraph

Embed = Callable[[CitationGraph], NDArray[np.float32]]


def held_out_judge(
    share: float, *, seed: int = 0, score: str = "cosine", count: int = 1000
) -> Callable[[CitationGraph, Embed], dict[str, Any]]:
    """Holds out a share of the citations, embeds the rest, ranks each held-out one against random papers.

    SciNCL judged by 1 % of the edges, the thesis on co-citations by 5 %. Negatives are drawn evenly, and once more by
    degree: those are the harder and the fairer ones, as much-cited papers are easily told from others.
    """

    def judge(graph: CitationGraph, embed: Embed) -> dict[str, Any]:
        sources, targets = graph.sources(), graph.cited.targets
        held = hold_out(sources, targets, share, seed)
        vectors = embed(graph.keep(~held))
        found: dict[str, Any] = {"share": share, "score": score, "edges": int(held.sum())}
        for negatives in NEGATIVES:
            found[negatives] = asdict(
                judge_links(
                    vectors,
                    sources[held],
                    targets[held],
                    known=graph.cited,
                    degrees=graph.degrees(),
                    negatives=negatives,
                    count=count,
                    score=score,
                    seed=seed,
                )
            )
        return found

    return judge
