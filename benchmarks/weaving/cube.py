"""CSFCube's pairs by one encoder, read in several ways.

    w    cosine of the papers' vectors
    b    mean over the facet's sentences of the best of the candidate's
    t    mean over the facet's tokens of the best of the candidate's
    wb   sums, each part standardised within the query first

A value is the protocol's: the mean of two folds' means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citeweave.evaluation.judging.given_scores import GivenScores
from citeweave.evaluation.running.run import run_task
from weaving.bundle import WHOLE, Bundle, Ints, begins
from weaving.network import Read, StartedNetwork

READINGS = ("w", "b", "t", "wb", "bt")
FACETS = ("background", "method", "result")

Scores = NDArray[np.float64]


class Answer(NamedTuple):
    """One query's facet, fold and values."""

    facet: str
    fold: int
    map: float
    ndcg: float


@dataclass(frozen=True)
class Cube:
    """CSFCube's task and the rows of its texts in the bundle."""

    bundle: Bundle

    @property
    def task(self) -> Any:
        return self.bundle.tasks["csfcube"][0][0]

    def judge(self, network: StartedNetwork) -> dict[str, Any]:
        """Reading -> MAP, NDCG%20, then MAP of every facet; `other_fold` is what each fold's other half would choose."""
        rows = self.bundle.tasks["csfcube"][0][1].tolist()
        places = [self.bundle.sentences(row) for row in rows]
        read = network.read(
            [self.bundle.view(row, WHOLE) for row in rows], [(starts, ends) for starts, ends, _ in places]
        )
        parts = score_parts(self.task.pools, read, places)
        answers = {name: answers_of(self.task, sum_of(parts, name, self.task.pools.offsets)) for name in READINGS}
        chosen, by_other_fold = choose_by_other_fold(answers)
        found: dict[str, Any] = {name: summary(each) for name, each in answers.items()}
        return {**found, "other_fold": [*summary(by_other_fold), *chosen]}


def score_parts(pools: Any, read: Read, places: Sequence[tuple[Ints, Ints, Ints]]) -> dict[str, Scores]:
    """Scores of all pairs by w, b and t."""
    sentence_begins = begins(np.array([len(starts) for starts, _, _ in places]))
    found: dict[str, list[Tensor]] = {"w": [], "b": [], "t": []}
    for at, query in enumerate(pools.queries.tolist()):
        candidates = pools.candidates[pools.offsets[at] : pools.offsets[at + 1]]
        starts, ends, numbers = places[query]
        asked = np.flatnonzero(facet_of(numbers, pools.sentences[at]))
        tokens = spans_of(read.token_begins[query] + starts[asked], read.token_begins[query] + ends[asked])
        found["w"].append(read.texts[torch.from_numpy(candidates)] @ read.texts[query])
        found["b"].append(
            mean_best(
                read.sentences,
                sentence_begins[query] + asked,
                sentence_begins[candidates],
                sentence_begins[candidates + 1],
            )
        )
        low, high = read.token_begins[candidates] + 1, read.token_begins[candidates + 1] - 1  # without [CLS] and [SEP]
        found["t"].append(mean_best(read.tokens, tokens, low, high))
    return {name: torch.cat(values).double().cpu().numpy() for name, values in found.items()}


def facet_of(numbers: Ints, wanted: Ints | None) -> NDArray[np.bool_]:
    """Which of a query's sentences are asked about; all of them where none is named or none was read.

    >>> facet_of(np.array([0, 1, 2]), np.array([1])).tolist(), facet_of(np.array([0]), np.array([5])).tolist()
    ([False, True, False], [True])
    """
    found = np.isin(numbers, wanted) if wanted is not None else np.ones(len(numbers), bool)
    return found if found.any() else np.ones(len(numbers), bool)


def spans_of(starts: Ints, ends: Ints) -> Ints:
    """All places of some spans.

    >>> spans_of(np.array([1, 7]), np.array([3, 9])).tolist()
    [1, 2, 7, 8]
    """
    return np.concatenate([np.arange(low, high) for low, high in zip(starts.tolist(), ends.tolist(), strict=True)])


def mean_best(units: Tensor, asked: Ints, starts: Ints, ends: Ints) -> Tensor:
    """Mean over the asked units of the best cosine with a candidate's; Khattab and Zaharia 2020 (ColBERT), equation 3.

    units (units, d) of length 1, asked (n,) places among them; candidate c has the places starts[c] to ends[c].

    >>> units = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> mean_best(units, np.array([0, 1]), np.array([2, 2]), np.array([3, 4])).tolist()
    [0.5, 1.0]
    """
    theirs = torch.from_numpy(spans_of(starts, ends)).to(units.device)
    cosines = (units[theirs] @ units[torch.from_numpy(asked).to(units.device)].T).float()  # (their units, n)
    bounds = torch.from_numpy(begins(ends - starts)).to(units.device)
    best = torch.segment_reduce(cosines, "max", offsets=bounds, axis=0)  # (candidates, n)
    return best.clamp(min=-1).mean(1)  # a candidate without units is as far as can be


def sum_of(parts: Mapping[str, Scores], reading: str, offsets: Ints) -> Scores:
    """The part itself, or the sum of standardised parts where a reading has several letters."""
    if len(reading) == 1:
        return parts[reading]
    total: Scores = np.sum([standardised(parts[part], offsets) for part in reading], axis=0)
    return total


def standardised(scores: Scores, offsets: Ints) -> Scores:
    """Each query's scores with mean 0 and deviation 1: z-scores, which sum well (Montague and Aslam 2001, ZMUV).

    >>> standardised(np.array([1.0, 3.0, 5.0, 5.0]), np.array([0, 2, 4])).tolist()
    [-1.0, 1.0, 0.0, 0.0]
    """
    found = np.zeros(len(scores))
    for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        own = scores[low:high]
        if (deviation := own.std()) > 0:
            found[low:high] = (own - own.mean()) / deviation
    return found


def answers_of(task: Any, scores: Scores) -> list[Answer]:
    pools, ids = task.pools, task.texts.ids
    given = {
        name: {
            ids[paper]: float(score) for paper, score in zip(pools.candidates[low:high], scores[low:high], strict=True)
        }
        for name, low, high in zip(pools.names, pools.offsets[:-1], pools.offsets[1:], strict=True)
    }
    rows = run_task(task, GivenScores(given, name="run")).rows
    return [Answer(row["field"], row["fold"], row["map"], row["ndcg%20"]) for row in rows.values()]


def choose_by_other_fold(answers: Mapping[str, Sequence[Answer]]) -> tuple[list[str], list[Answer]]:
    """Each fold's queries by the reading that is best on the other fold's: no choice is made on what it is judged by.

    >>> good, bad = [Answer("method", 0, 0.9, 0.9), Answer("method", 1, 0.1, 0.1)], [Answer("method", 0, 0, 0), Answer("method", 1, 1, 1)]
    >>> choose_by_other_fold({"x": good, "y": bad})[0]  # y is best on fold 1, x on fold 0
    ['y', 'x']
    """
    chosen, kept = [], []
    for fold in (0, 1):
        other = {name: [each.map + each.ndcg for each in own if each.fold != fold] for name, own in answers.items()}
        best = max(other, key=lambda name: float(np.mean(other[name])))
        chosen.append(best)
        kept += [each for each in answers[best] if each.fold == fold]
    return chosen, kept


def summary(answers: Sequence[Answer]) -> list[float]:
    """MAP and NDCG%20 of all, then MAP of background, method and result, in percent."""
    facets = [_mean_of_folds([each for each in answers if each.facet == facet], "map") for facet in FACETS]
    return [_mean_of_folds(answers, "map"), _mean_of_folds(answers, "ndcg"), *facets]


def _mean_of_folds(answers: Sequence[Answer], metric: str) -> float:
    folds = [np.mean([getattr(each, metric) for each in answers if each.fold == fold]) for fold in (0, 1)]
    return round(100 * float(np.mean(folds)), 2)
