"""Link prediction: do node vectors rank the true end of a held-out citation above random papers?

Every held-out edge is ranked twice, as in PyTorch-BigGraph: its source against `count` random sources, and its target
against `count` random targets. A negative that is itself a true edge is left out.

    edge 0 -> 1, score dot          negatives for the target: 2, 3, 4
    vectors [2] [3] [1] [3] [4]     scores 2 * 3 = 6 against 2, 6, 8: one above, one equal: rank 1 + 1 + 1/2 = 2.5

A tie counts half, so that vectors that are all equal get the rank of a random guess. PyTorch-BigGraph counts a tie as lost,
(negatives >= true) + 1; the two agree where no scores are equal.

    evaluate = held_out_evaluator(share=0.01, seed=0)
    evaluate(graph, embed)    ->   {"share": 0.01, "uniform": {"mrr": ..., ...}, "degree": {...}}

Does not embed; `evaluate_links` needs vectors made without the held-out edges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.errors import UserError, choose
from citeweave.core.hash_keys import mix_keys
from citeweave.core.randomness import stream
from citeweave.graph.adjacency import Csr
from citeweave.graph.citations import CitationGraph
from citeweave.graph.signals import SignalLinks
from citeweave.vectors.vectors import unit_rows

NEGATIVES = ("uniform", "degree")
SCORES = ("dot", "cosine")

_SHARING = 64
"""Held-out edges that share one draw of negatives. It decides what a seed means, so it is not an option."""

Nodes = NDArray[np.integer[Any]]
Links = CitationGraph | SignalLinks
"""What may be held out: citations, or the links that signals make, such as co-citations."""

Embed = Callable[[Any], NDArray[np.float32]]
"""Embeds the nodes of a graph of the same kind, (nodes, dimension)."""


@dataclass(frozen=True, slots=True)
class LinkScores:
    """Link prediction metrics, means over all held-out edges and both of their ends."""

    mrr: float
    """Mean of 1 / rank."""

    hits_1: float
    """Share of ranks up to 1; `hits_10` and `hits_50` up to 10 and 50."""

    hits_10: float
    hits_50: float

    auc: float
    """Probability that the true node scores above a negative of the same edge, a tie counting half."""

    mean_rank: float

    edges: int
    """Number of held-out edges; each is ranked twice."""

    negatives: float
    """Mean number of negatives per rank, true edges left out."""


class _Ranks(NamedTuple):
    """Counts behind the rank of each end of an edge: negatives above it, equal to it, compared with it."""

    above: NDArray[np.int64]
    equal: NDArray[np.int64]
    compared: NDArray[np.int64]


def hold_out(citing: Nodes, cited: Nodes, share: float, seed: int) -> NDArray[np.bool_]:
    """Choose a random `share` of the edges to hold out for link prediction, (edges,).

    Two papers that cite each other, and a repeated edge, are held out together or not at all: in an undirected graph the
    one would give the other away. The order of the edges does not matter.

    >>> hold_out(np.array([0, 0, 2, 1]), np.array([1, 2, 1, 0]), share=0.5, seed=1).tolist()
    [True, False, False, True]
    """
    wanted = round(share * len(citing)) if 0 < share < 1 else 0
    held = np.zeros(len(citing), bool)
    if wanted:
        low, high = np.minimum(citing, cited).astype(np.uint64), np.maximum(citing, cited).astype(np.uint64)
        salt = stream(seed, "hold out").integers(1 << 63, dtype=np.uint64)
        keys = mix_keys(mix_keys(low, high), np.full(len(low), salt))  # (edges,)
        held = keys <= np.partition(keys, wanted - 1)[wanted - 1]
    if held.all() or not held.any():
        raise UserError(
            f"a share of {share:g} of {len(citing):,} edges cannot be held out: at least one edge must be held out "
            "and one must remain; give another share"
        )
    return held


def held_out_evaluator(
    share: float, *, seed: int = 0, score: str = "cosine", count: int = 1000
) -> Callable[[Links, Embed], dict[str, Any]]:
    """Return an evaluator of link prediction: hold out citations or other links, embed the rest, rank the held-out ones.

    SciNCL holds out 1 % of the citations, the thesis on co-citations 5 % of the co-citations. Negatives are drawn uniformly, and once more by
    degree: those are harder and fairer, as highly cited papers are easy to tell from others.
    """

    def evaluate_graph(graph: Links, embed: Embed) -> dict[str, Any]:
        sources, targets = graph.sources(), graph.cited.targets
        held = hold_out(sources, targets, share, seed)
        vectors = embed(graph.keep_edges(~held))
        if isinstance(graph, SignalLinks):
            held &= sources < targets  # both directions are the same link
        results: dict[str, Any] = {"share": share, "score": score, "edges": int(held.sum())}
        for negatives in NEGATIVES:
            results[negatives] = asdict(
                evaluate_links(
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
        return results

    return evaluate_graph


def evaluate_links(
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
    """Evaluate link prediction: rank the ends of held-out edges `sources[i] -> targets[i]` by vectors of the nodes.

    `known` holds every true edge, the held-out ones too: a negative that makes one of them is left out, so a rank may
    be among fewer than `count`. A node is never a negative for itself. Negatives are drawn with replacement, uniformly
    or in proportion to `degrees`. `vectors` may be a memory map: only the rows that are needed are read.

    >>> vectors = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    >>> scores = evaluate_links(vectors, np.array([0]), np.array([1]), count=10, score="cosine")
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
    cumulative = None if negatives == "uniform" or degrees is None else np.cumsum(degrees, dtype=np.float64)
    ranks = []
    for number, start in enumerate(range(0, len(sources), _SHARING)):
        rng = stream(seed, "negatives", number)
        group = slice(start, start + _SHARING)
        ends = np.asarray(sources[group], np.int64), np.asarray(targets[group], np.int64)  # (group,) each
        for side in (0, 1):
            drawn = _draw_negatives(rng, count, len(vectors), cumulative)  # (count,)
            ranks.append(_rank_ends(vectors, ends, side, drawn, known, score))
    return _summarize(ranks, len(sources))


def _draw_negatives(
    rng: np.random.Generator, count: int, nodes: int, cumulative: NDArray[np.float64] | None
) -> NDArray[np.int64]:
    """Draw random nodes, uniformly or by cumulative degrees, (count,)."""
    if cumulative is None:
        return rng.integers(nodes, size=count)
    drawn: NDArray[np.int64] = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
    return np.minimum(drawn, nodes - 1)  # rounding may lead past the end


def _rank_ends(
    vectors: NDArray[Any],
    ends: tuple[NDArray[np.int64], NDArray[np.int64]],
    side: int,
    drawn: NDArray[np.int64],
    known: Csr,
    score: str,
) -> _Ranks:
    """Rank one end (`side` 0: the source) of a group of edges against negatives, the other end being the anchor."""
    own, fixed = ends[side], ends[1 - side]
    candidates = np.concatenate([own, drawn])  # (group + count,)
    rows, anchors = _rows(vectors, candidates, score), _rows(vectors, fixed, score)
    ranks = _Ranks(*np.zeros((3, len(own)), np.int64))
    _count_above(anchors, rows, fixed, candidates, side == 0, known.offsets, known.targets, ranks)
    return ranks


def _rows(vectors: NDArray[Any], nodes: NDArray[np.int64], score: str) -> NDArray[np.float32]:
    """Read the vectors of some nodes, with length 1 for cosine."""
    rows = np.asarray(vectors[nodes], np.float32)  # (number, dimension)
    if score == "cosine":
        rows = unit_rows(rows)
    return np.ascontiguousarray(rows)


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _dot(first: NDArray[np.float32], second: NDArray[np.float32]) -> np.float32:
    total = np.float32(0)
    for i in range(len(first)):
        total += first[i] * second[i]
    return total


@compiled()
def _is_edge(offsets: NDArray[np.int64], targets: NDArray[np.int32], source: int, target: int) -> bool:
    """Tell by binary search whether source -> target is an edge of the graph."""
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


@compiled()
def _count_above(
    anchors: NDArray[np.float32],
    rows: NDArray[np.float32],
    fixed: NDArray[np.int64],
    candidates: NDArray[np.int64],
    sources: bool,
    offsets: NDArray[np.int64],
    targets: NDArray[np.int32],
    ranks: _Ranks,
) -> None:
    """Count for each anchor the negatives that score above or equal to its true node.

    The first candidates are the true nodes, one per anchor; the others are every anchor's negatives. One call of `_dot`
    serves both, so that equal vectors have bit-equal scores.
    """
    group = len(anchors)
    for i in range(group):
        true = np.float32(0)
        for step in range(len(rows) - group + 1):
            at = i if step == 0 else group + step - 1
            node = candidates[at]
            if step > 0:
                if node == fixed[i] or node == candidates[i]:
                    continue
                source, target = (node, fixed[i]) if sources else (fixed[i], node)
                if _is_edge(offsets, targets, source, target):
                    continue
            value = _dot(anchors[i], rows[at])
            if step == 0:
                true = value
                continue
            ranks.compared[i] += 1
            ranks.above[i] += value > true
            ranks.equal[i] += value == true


def _summarize(parts: list[_Ranks], edges: int) -> LinkScores:
    """Compute the link prediction metrics from the ranks of all edges."""
    above, equal, compared = (np.concatenate(columns) for columns in zip(*parts, strict=True))  # (2 * edges,) each
    rank = 1 + above + equal / 2
    lost = (above + equal / 2)[compared > 0] / compared[compared > 0]
    return LinkScores(
        mrr=float((1 / rank).mean()),
        hits_1=float((rank <= 1).mean()),
        hits_10=float((rank <= 10).mean()),
        hits_50=float((rank <= 50).mean()),
        auc=float(1 - lost.mean()) if len(lost) else float("nan"),
        mean_rank=float(rank.mean()),
        edges=edges,
        negatives=float(compared.mean()),
    )
