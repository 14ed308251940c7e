"""Which distance between two papers, and how their sentences match under it.

    match(PaperPairs.of(queries, candidates), DocumentDistance("single")).distances       (pairs,), differentiable

`transport.py` says what the distances are, and scores many pairs at a time with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from citeweave.errors import UserError, choose
from citeweave.extras import require
from citeweave.similarity.matching.entropic import entropic_plan, sentence_masses
from citeweave.similarity.matching.pairs import METRICS, PaperPairs, Tensor, sentence_distances
from citeweave.similarity.matching.peer import STARTS, diameters, peer_plan
from citeweave.similarity.matching.plans import attention, mean_best, single, top2

DISTANCES: tuple[str, ...] = ("single", "top2", "mean_best", "attention", "transport")
MODES = ("exact", "peer")

LEAST_TEMPERATURE = 1e-30
"""Below it all mass lies on one sentence, and gradients are no floats."""


@dataclass(frozen=True, slots=True)
class DocumentDistance:
    """A distance between two papers and its settings."""

    name: str = "transport"
    """One of DISTANCES."""

    temperature: float = 5000.0
    """Of the masses of `transport`, of the weights of `attention`. ASPIRE: 0.5 for facets, 5000 (alike) for abstracts."""

    metric: str = "l2"
    """Between sentences: l2, or cosine for 1 - cosine."""

    mode: str = "exact"
    """Of `transport`: exact, solved to the end; or peer, ASPIRE's code, which stops early."""

    start: str = "pair"
    """Of the peer's schedule: from the diameter of each pair, or of the whole batch, as in ASPIRE's training."""

    def __post_init__(self) -> None:
        choose(self.name, DISTANCES, "distance")
        choose(self.metric, METRICS, "metric")
        choose(self.mode, MODES, "mode")
        choose(self.start, STARTS, "start")
        if not LEAST_TEMPERATURE <= self.temperature < float("inf"):
            raise UserError(
                f"temperature is {self.temperature}; it must be at least {LEAST_TEMPERATURE} and finite, such as 0.5"
            )
        if (self.mode, self.metric) == ("peer", "cosine"):
            raise UserError("mode is 'peer' and metric is 'cosine'; ASPIRE's transport knows l2 only, use mode 'exact'")


class Match(NamedTuple):
    """How pairs of papers match."""

    distances: Tensor
    """(pairs,) float64: the sum of plans x sentence distances; infinite, with gradient 0, where a side has no sentence."""

    plans: Tensor
    """(pairs, n, m) how much each pair of sentences counts; 0 on padding."""

    sentences: Tensor
    """(pairs, n, m) the distances between the sentences."""

    training: Tensor
    """(pairs,) what the peer trains with instead of `distances`; the same numbers except in mode peer."""


def match(pairs: PaperPairs, distance: DocumentDistance) -> Match:
    """The distance of each pair, with the plan that explains it; differentiable in the pairs' vectors."""
    torch = require("torch", extra="minilm")
    sentences = sentence_distances(pairs, distance.metric)  # (pairs, n, m)
    bad = int((~torch.isfinite(sentences)).flatten(1).any(1).sum())
    if bad:
        raise UserError(
            f"{bad:,} of {len(sentences):,} pairs of papers have sentence vectors that are not finite or too large; "
            "look for what made them so, such as a learning rate that is too high"
        )
    empty, training = pairs.empty, None
    if (distance.name, distance.mode) == ("transport", "peer"):
        plans, training = _as_the_peer(pairs, sentences, distance)
    else:
        plans = plans_of(sentences, pairs.rows, pairs.columns, distance)
    found = (plans * sentences).sum((1, 2)).masked_fill(empty, torch.inf)
    training = found if training is None else training.masked_fill(empty, torch.inf)
    return Match(found, plans.masked_fill(empty[:, None, None], 0), sentences, training)


def plans_of(sentences: Tensor, rows: Tensor, columns: Tensor, distance: DocumentDistance) -> Tensor:
    """(pairs, n, m), of everything but the peer's transport."""
    if distance.name == "transport":
        return entropic_plan(sentences, sentence_masses(sentences, rows, columns, temperature=distance.temperature))
    if distance.name == "attention":
        return attention(sentences, rows, columns, temperature=distance.temperature)
    return {"single": single, "top2": top2, "mean_best": mean_best}[distance.name](sentences, rows, columns)


def _as_the_peer(pairs: PaperPairs, sentences: Tensor, distance: DocumentDistance) -> tuple[Tensor, Tensor]:
    masses = sentence_masses(sentences, pairs.rows, pairs.columns, temperature=distance.temperature)
    to_queries = to_candidates = sentences
    if sentences.requires_grad:
        # the peer's last round sees the gradient of each side through its own copy of the distances
        still = replace(pairs, queries=pairs.queries.detach()), replace(pairs, candidates=pairs.candidates.detach())
        to_candidates, to_queries = (sentence_distances(part, distance.metric) for part in still)
    return peer_plan(to_queries, to_candidates, masses, diameters(pairs, distance.start))
