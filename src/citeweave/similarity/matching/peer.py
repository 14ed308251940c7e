"""Transport as ASPIRE's code computes it: geomloss's schedule of entropies, one round each, stopped at its end.

    diameter 4, blur 0.05  ->  entropies 4, 4, 3.6, 3.24, ..., 0.0528, 0.05       (scaling 0.9)

The rounds end far from convergence: sums of the plan differ from the masses by up to 0.09, and the number for ranking,
<plan, distances>, is not the one for training, <masses, potentials>. Both are kept for comparison with published
numbers; `entropic.py` solves the same problem to the end. Written from Feydy (2020), algorithm 3.5, and checked
against geomloss, which is not needed here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from citeweave.errors import choose
from citeweave.extras import require
from citeweave.similarity.matching.entropic import Masses
from citeweave.similarity.matching.pairs import PaperPairs, Tensor

BLUR, SCALING = 0.05, 0.9
"""ASPIRE's settings of geomloss; the cost is the distance itself (p = 1)."""

STARTS = ("pair", "batch")


class PeerPlan(NamedTuple):
    """What the schedule's end gives."""

    plan: Tensor
    """(pairs, n, m)"""

    value: Tensor
    """(pairs,) <masses, potentials>: the distance that ASPIRE trains with."""


def diameters(pairs: PaperPairs, start: str) -> Tensor:
    """Diagonal of the box around all sentences, (pairs,): of each pair alone, or of the batch with its padding.

    geomloss takes the batch, zeros included, so that a paper's distance depends on its company; one pair at a time is
    how ASPIRE evaluates.
    """
    choose(start, STARTS, "start")
    torch = require("torch", extra="minilm")
    everything = torch.cat([pairs.queries, pairs.candidates], 1).double()  # (pairs, n + m, dimension)
    if start == "batch":
        sides = everything.flatten(0, 1)
        return (sides.amax(0) - sides.amin(0)).norm().expand(len(everything))
    outside = ~torch.cat([pairs.rows, pairs.columns], 1)[:, :, None]
    high, low = everything.masked_fill(outside, -math.inf).amax(1), everything.masked_fill(outside, math.inf).amin(1)
    return (high - low).norm(dim=1)


def peer_plan(to_queries: Tensor, to_candidates: Tensor, masses: Masses, diameter: Tensor) -> PeerPlan:
    """Run the schedule of each pair.

    `to_queries` and `to_candidates` are the same distances (pairs, n, m); only the sentences of the named side get a
    gradient through them, as in geomloss, which differentiates the last round alone.
    """
    torch = require("torch", extra="minilm")
    with torch.no_grad():
        costs, sides = to_queries.detach(), Masses(masses.queries.detach(), masses.candidates.detach())
        entropies, lengths = _schedule(diameter)
        f, g = _softmins(costs, sides, entropies[:, :1])  # (pairs, n), (pairs, m)
        for step in range(entropies.shape[1]):
            entropy = entropies[:, step : step + 1]  # (pairs, 1)
            new_f, new_g = _softmins(costs, _weighted(sides, f, g, entropy), entropy)
            going = (step < lengths)[:, None]
            f, g = torch.where(going, (f + new_f) / 2, f), torch.where(going, (g + new_g) / 2, g)
        weighted = _weighted(sides, f, g, BLUR)
    f = -BLUR * (weighted.candidates[:, None, :] - to_queries / BLUR).logsumexp(2)
    g = -BLUR * (weighted.queries[:, :, None] - to_candidates / BLUR).logsumexp(1)
    value = (masses.queries.exp() * f).sum(1) + (masses.candidates.exp() * g).sum(1)
    exponents = _weighted(masses, f, g, BLUR)
    # no entry comes near e, unless distances above 1e13 have lost the digits that the blur asks for
    plan = (exponents.queries[:, :, None] + exponents.candidates[:, None, :] - to_queries / BLUR).clamp_max(1).exp()
    return PeerPlan(plan, value)


def _schedule(diameter: Tensor) -> tuple[Tensor, Tensor]:
    """Entropies of each pair, (pairs, longest), the last one repeated behind its end, and how many are its own."""
    torch = require("torch", extra="minilm")
    # sentences that are all the same have no diameter; geomloss stops there
    start = torch.where(diameter > 0, diameter, BLUR).double()[:, None]  # (pairs, 1)
    between = ((start.log() - math.log(BLUR)) / -math.log(SCALING)).ceil().clamp_min(0)
    step = torch.arange(int(between.max()) + 1, device=diameter.device)
    cooling = (start.log() + step * math.log(SCALING)).exp().masked_fill(step >= between, BLUR)
    return torch.cat([start, cooling], 1), between[:, 0] + 2


def _weighted(masses: Masses, f: Tensor, g: Tensor, entropy: Tensor | float) -> Masses:
    return Masses(masses.queries + f / entropy, masses.candidates + g / entropy)


def _softmins(costs: Tensor, weighted: Masses, entropy: Tensor) -> tuple[Tensor, Tensor]:
    """One round of Sinkhorn's iteration for both sides: -entropy * log sum exp(weight - cost / entropy)."""
    exponents = -costs / entropy[:, :, None]
    f = -entropy * (weighted.candidates[:, None, :] + exponents).logsumexp(2)
    g = -entropy * (weighted.queries[:, :, None] + exponents).logsumexp(1)
    return f, g
