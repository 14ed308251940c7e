"""Link prediction: do vectors of nodes rank the true end of a held-out edge above other nodes?

Every held-out edge is asked for twice, as PyTorch-BigGraph does: its source against `count` random sources, and
its target against `count` random targets. What is itself a true edge is no wrong answer and is left out.

    edge 0 -> 1, score dot          negatives for the target: 2, 3, 4
    vectors [2] [3] [1] [3] [4]     scores 2 * 3 = 6 against 2, 6, 8: one above, one equal: rank 1 + 1 + 1/2 = 2.5

A tie counts half, so that vectors that are all alike get the rank of a blind guess. PyTorch-BigGraph counts a tie as
lost, (negatives >= true) + 1; the two agree where no scores are equal.

Does not embed, and does not choose which graph is embedded: hand in vectors made without the held-out edges.

Held-out citations: how well vectors of nodes, made without some citations, find them again.

judge = held_out_judge(share=0.01, seed=0)
judge(graph, embed)    ->   {"share": 0.01, "uniform": {"mrr": ..., ...}, "degree": {...}}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.core.randomness import mix, stream
from citeweave.graph.adjacency import Csr
from citeweave.graph.citations import CitationGraph

NEGATIVES = ("uniform", "degree")
SCORES = ("dot", "cosine")

_SHARING = 64
"""Held-out edges that share one draw of negatives. Part of what a seed means, so it is no option."""

Nodes = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class LinkScores:
    """How well held-out edges were found, means over all edges and both of their ends."""

    mrr: float
    """Mean of 1 / rank."""

    hits_1: float
    """Share of ranks up to 1; the same for 10 and 50."""

    hits_10: float
    hits_50: float

    auc: float
    """Chance that the true node scores above a negative of the same edge, a tie counting half."""

    mean_rank: float

    edges: int
    """Held-out edges; each is ranked twice."""

    negatives: float
    """Mean number of negatives that a rank was judged against, true edges left out."""


class _Ranks(NamedTuple):
    """One entry a ranking."""

    above: NDArray[np.int64]
    equal: NDArray[np.int64]
    judged: NDArray[np.int64]


def hold_out(citing: Nodes, cited: Nodes, share: float, seed: int) -> NDArray[np.bool_]:
    """Which edges to hold out, (edges,): a random `share` of them.

    Two papers that cite each other, and an edge given twice, are held out together or not at all: in a graph without
    directions the one would give the other away. The order of the edges does not matter.

    >>> hold_out(np.array([0, 0, 2, 1]), np.array([1, 2, 1, 0]), share=0.5, seed=1).tolist()
    [True, False, False, True]
    """
    wanted = round(share * len(citing)) if 0 < share < 1 else 0
    held = np.zeros(len(citing), bool)
    if wanted:
        low, high = np.minimum(citing, cited).astype(np.uint64), np.maximum(citing, cited).astype(np.uint64)
        salt = stream(seed, "hold out").integers(1 << 63, dtype=np.uint64)
        keys = mix(mix(low, high), np.full(len(low), salt))  # (edges,)
        held = keys <= np.partition(keys, wanted - 1)[wanted - 1]
    if held.all() or not held.any():
        raise UserError(
            f"a share of {share:g} of {len(citing):,} edges cannot be held out: at least one edge must be held out "
            "and one must stay; give another share"
        )
    return held


def judge_links(
    vectors: NDArray[Any],
    sources: Nodes,
    targets: Nodes,
    *,
    known: Csr | None = None,
    degrees: NDArray[Any] | None = None,
    negatives: str = "uniform",
    count: int = 1000,
    score: str = "dot",
    seed: int = 0,
) -> LinkScores:
    """Rank the ends of held-out edges `sources[i] -> targets[i]` by vectors of shape (nodes, dimension).

    `known` holds every true edge, the held-out ones too: a negative that makes one of them is left out, so a rank may
    be judged against fewer than `count`. A node is never a negative for itself. Negatives are drawn with
    replacement, evenly or in proportion to `degrees`. `vectors` may be a memory map: only the rows that are needed
    are read.

    >>> vectors = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    >>> scores = judge_links(vectors, np.array([0]), np.array([1]), count=10, score="cosine")
    >>> scores.mrr, scores.auc, scores.mean_rank, scores.edges
    (1.0, 1.0, 1.0, 1)
    """
    choose(score, SCORES, "score")
    if choose(negatives, NEGATIVES, "negatives") == "degree" and degrees is None:
        raise ValueError("negatives by degree need the degrees of the nodes")
    if not len(sources) or count < 1:
        raise UserError(f"{len(sources):,} edges against {count} negatives: link prediction needs at least one of each")
    if known is None:
        known = Csr(np.zeros(1, np.int64), np.zeros(0, np.int32))
    chances = None if negatives == "uniform" or degrees is None else np.cumsum(degrees, dtype=np.float64)
    ranks = []
    for number, start in enumerate(range(0, len(sources), _SHARING)):
        rng = stream(seed, "negatives", number)
        group = slice(start, start + _SHARING)
        ends = np.asarray(sources[group], np.int64), np.asarray(targets[group], np.int64)  # (group,) each
        for side in (0, 1):
            drawn = _draw(rng, count, len(vectors), chances)  # (count,)
            ranks.append(_rank(vectors, ends, side, drawn, known, score))
    return _summarize(ranks, len(sources))


def _draw(rng: np.random.Generator, count: int, nodes: int, chances: NDArray[np.float64] | None) -> NDArray[np.int64]:
    if chances is None:
        return rng.integers(nodes, size=count)
    drawn: NDArray[np.int64] = np.searchsorted(chances, rng.random(count) * chances[-1], side="right")
    return np.minimum(drawn, nodes - 1)  # rounding may lead past the end


def _rank(
    vectors: NDArray[Any],
    ends: tuple[NDArray[np.int64], NDArray[np.int64]],
    side: int,
    drawn: NDArray[np.int64],
    known: Csr,
    score: str,
) -> _Ranks:
    """Rank one end (`side` 0: the source) of a group of edges, the other end given."""
    own, given = ends[side], ends[1 - side]
    candidates = np.concatenate([own, drawn])  # (group + count,)
    rows, anchors = _rows(vectors, candidates, score), _rows(vectors, given, score)
    ranks = _Ranks(*np.zeros((3, len(own)), np.int64))
    _count_above(anchors, rows, given, candidates, side == 0, known.offsets, known.targets, ranks)
    return ranks


def _rows(vectors: NDArray[Any], nodes: NDArray[np.int64], score: str) -> NDArray[np.float32]:
    rows = np.asarray(vectors[nodes], np.float32)  # (number, dimension)
    if score == "cosine":
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return np.ascontiguousarray(rows)


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _dot(first: NDArray[np.float32], second: NDArray[np.float32]) -> np.float32:
    total = np.float32(0)
    for i in range(len(first)):
        total += first[i] * second[i]
    return total


@numba.njit(cache=True, nogil=True)
def _is_edge(offsets: NDArray[np.int64], targets: NDArray[np.int32], source: int, target: int) -> bool:
    if source + 1 >= len(offsets):
        return False
    low, high = offsets[source], offsets[source + 1]
    while low < high:
        middle = (low + high) // 2
        if targets[middle] < target:
            low = middle + 1
        else:
            high = middle
    return bool(low < offsets[source + 1] and targets[low] == target)


@numba.njit(cache=True, nogil=True)
def _count_above(
    anchors: NDArray[np.float32],
    rows: NDArray[np.float32],
    given: NDArray[np.int64],
    candidates: NDArray[np.int64],
    sources: bool,
    offsets: NDArray[np.int64],
    targets: NDArray[np.int32],
    ranks: _Ranks,
) -> None:
    """The first candidates are the true ones, one an anchor; the others are every anchor's negatives.

    One call of `_dot` serves both, so that equal vectors have equal scores to the last bit.
    """
    group = len(anchors)
    for i in range(group):
        true = np.float32(0)
        for step in range(len(rows) - group + 1):
            at = i if step == 0 else group + step - 1
            node = candidates[at]
            if step > 0:
                if node == given[i] or node == candidates[i]:
                    continue
                source, target = (node, given[i]) if sources else (given[i], node)
                if _is_edge(offsets, targets, source, target):
                    continue
            value = _dot(anchors[i], rows[at])
            if step == 0:
                true = value
                continue
            ranks.judged[i] += 1
            ranks.above[i] += value > true
            ranks.equal[i] += value == true


def _summarize(parts: list[_Ranks], edges: int) -> LinkScores:
    above, equal, judged = (np.concatenate(columns) for columns in zip(*parts, strict=True))  # (2 * edges,) each
    rank = 1 + above + equal / 2
    lost = (above + equal / 2)[judged > 0] / judged[judged > 0]
    return LinkScores(
        mrr=float((1 / rank).mean()),
        hits_1=float((rank <= 1).mean()),
        hits_10=float((rank <= 10).mean()),
        hits_50=float((rank <= 50).mean()),
        auc=float(1 - lost.mean()) if len(lost) else float("nan"),
        mean_rank=float(rank.mean()),
        edges=edges,
        negatives=float(judged.mean()),
    )


# Held-out citations: how well vectors of nodes, made without some citations, find them again.

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
