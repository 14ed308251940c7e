"""Aspect heads while they are trained: one projection an aspect over the encoder's vector.

    heads = make_heads(("background", "method"), 384, EncoderOptions(heads="linear"), seed=0)
    heads.project(1, vectors)                (papers, dimension) -> (papers, size), in the space of methods
    as_arrays(heads)                         what `encoders/aspects.py` saves

    linear       W v + b (SciAspect thesis, TUM 2023, section 5.3)
    two_layers   W2 relu(W1 v + b1) + b2, which the thesis leaves to future work

Starts at random as any linear layer, or, one layer of the encoder's own size, at the identity: every space is then the
encoder's own at first.

The objective: what a recipe's losses make of a batch's vectors.

    objective = Objective(options.losses, relatives)
    loss = objective(vectors, batch, batch)

`losses/` has the formulas; here is which vectors each of them gets: the encoder's, or with the prefix `aspect_` those in
the space of a group's aspect. A loss that is a mean over groups or triplets can be had in parts (`splits`): a part's
share of the mean is what it adds. The others need the whole batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from citeweave.core.errors import UserError, choose
from citeweave.core.randomness import stream
from citeweave.encoders.aspects import AspectHeads
from citeweave.training import losses
from citeweave.training import sentence_objective as sentence_losses
from citeweave.training.batches import (
    Batch,
    Mask,
    allowed_pairs,
    candidates_of,
    named_by,
    opposed,
)
from citeweave.training.data import AlignedPairs, Numbers, PaperLists, SentenceSpans, paper_rows
from citeweave.training.options import ASPECT, EncoderOptions, rules_of

PREFIX = "aspects."
"""Before the names of the heads' weights among those that are trained."""


class TrainedHeads(nn.Module):
    """Heads by the number of their aspect."""

    def __init__(self, names: tuple[str, ...], sizes: list[int]) -> None:
        super().__init__()
        self.names = names
        pairs = list(itertools.pairwise(sizes))
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(*pair) for pair in pairs) for _ in names)

    def project(self, aspect: int, vectors: Tensor) -> Tensor:
        """Vectors (papers, dimension) in the space of an aspect, (papers, size)."""
        found = vectors
        for number, layer in enumerate(self.layers[aspect].children()):
            found = layer(found.relu() if number else found)  # (papers, size)
        return found

    def weights(self) -> dict[str, nn.Parameter]:
        """Everything that is trained, by name."""
        found = {}
        for name, weight in self.layers.named_parameters():  # "1.0.weight": aspect, layer, part
            number, _, part = name.partition(".")
            found[f"{PREFIX}{self.names[int(number)]}.{part}"] = weight
        return found


def make_heads(
    names: tuple[str, ...], dimension: int, options: EncoderOptions, *, seed: int, start: AspectHeads | None = None
) -> TrainedHeads:
    """Heads for these aspects, drawn by the seed, or those of the start model where it has them."""
    size = options.head_size or dimension
    sizes = [dimension, size] if options.heads == "linear" else [dimension, size, size]
    if start is None and options.head_start == "identity" and sizes != [dimension, dimension]:
        raise UserError(
            f"encoder.head_start is 'identity' with heads={options.heads!r} and head_size={options.head_size}: only linear "
            f"heads of the encoder's own {dimension} numbers can begin as its own space; take head_start='random'"
        )
    heads = TrainedHeads(names, sizes)
    with torch.no_grad():
        for name, weight in heads.weights().items():
            weight.copy_(_start(name, tuple(weight.shape), options, seed))
        if start is not None:
            _copy(heads, start)
    return heads


def as_arrays(heads: TrainedHeads) -> AspectHeads:
    """The heads as plain arrays, to be saved."""
    found = {name: weight.detach().float().cpu().numpy() for name, weight in heads.weights().items()}
    depth = len(found) // (2 * len(heads.names))
    layers = {
        name: tuple((found[f"{PREFIX}{name}.{at}.weight"], found[f"{PREFIX}{name}.{at}.bias"]) for at in range(depth))
        for name in heads.names
    }
    return AspectHeads(heads.names, layers)


def _start(name: str, shape: tuple[int, ...], options: EncoderOptions, seed: int) -> Tensor:
    """A linear layer's usual start, uniform within 1 / sqrt(in), or the identity and a bias of zeros."""
    if options.head_start == "identity":
        return torch.eye(*shape) if len(shape) == 2 else torch.zeros(shape)
    bound = 1.0 / np.sqrt(shape[-1])
    return torch.from_numpy(stream(seed, "aspect heads", name).uniform(-bound, bound, shape)).float()


def _copy(heads: TrainedHeads, start: AspectHeads) -> None:
    """Go on with the start model's heads."""
    own = as_arrays(heads)
    if start.names != own.names or any(
        [weight.shape for weight, _ in start.layers[name]] != [weight.shape for weight, _ in own.layers[name]]
        for name in own.names
    ):
        raise UserError(
            f"the start model has heads for {', '.join(start.names)}, and these samples and [encoder] ask for "
            f"{', '.join(own.names)} of other sizes or names; start from a model without heads, or with the same"
        )
    weights = heads.weights()
    for name in start.names:
        for at, layer in enumerate(start.layers[name]):
            for part, values in zip(("weight", "bias"), layer, strict=True):
                weights[f"{PREFIX}{name}.{at}.{part}"].copy_(torch.from_numpy(values))


# The objective: what a recipe's losses make of a batch's vectors.

SCOPES = ("own", "batch")


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What losses know beside a batch and its vectors."""

    relatives: PaperLists | None = None
    teacher: Tensor | None = None
    """Vectors of all papers of the data, (papers, dimension of the teacher)."""

    sentences: SentenceSpans | None = None
    """Of all papers of the data; then a batch's vectors are rows of papers and sentences, see `PaperRows`."""

    alignment: AlignedPairs | None = None
    heads: TrainedHeads | None = None
    """Projections into the spaces of aspects."""

    rules: tuple[str, ...] = ()
    """Names of the rules behind negatives."""


Settings = Mapping[str, Any]
Formula = Callable[[Tensor, Batch, Settings, LossInputs], Tensor]
Count = Callable[[Batch], int]


class Objective:
    """The weighted sum of some losses."""

    def __init__(self, settings: Mapping[str, Settings], material: LossInputs | None = None) -> None:
        self.terms = {name: values for name, values in settings.items() if name != "mlm"}
        self.material = material or LossInputs()
        for name, values in self.terms.items():
            if "scope" in values:
                choose(values["scope"], SCOPES, f"training.losses.{name}.scope")
            for rule in rules_of(values):
                choose(rule, self.material.rules, f"training.losses.{name}.negatives_by")

    @property
    def splits(self) -> bool:
        """Whether the groups of a batch may be judged apart."""
        return all(_splits(name, values) for name, values in self.terms.items())

    def __call__(self, vectors: Tensor, part: Batch, whole: Batch) -> Tensor:
        """The share that a part has in the loss of the whole batch; of the batch itself, all of it."""
        total = vectors.sum() * 0
        rows = paper_rows(self.material.sentences, part.papers)
        own = vectors if self.material.sentences is None else _rows(vectors, rows.own)  # (papers, dimension)
        for name, values in self.terms.items():
            if name.startswith(ASPECT):
                total = total + float(values["weight"]) * self._in_aspects(name, own, part, whole, values)
                continue
            mine, every = self._chosen(part, values), self._chosen(whole, values)
            share = COUNTS[name](mine) / max(1, COUNTS[name](every)) if _splits(name, values) else 1.0
            if not share:
                continue
            if name in FORMULAS:
                loss = FORMULAS[name](own, mine, values, self.material)
            else:
                loss = self._on_sentences(name, sentence_losses.BatchVectors(vectors, rows), mine, values)
            total = total + float(values["weight"]) * share * loss
        return total

    def _chosen(self, batch: Batch, settings: Settings) -> Batch:
        """The batch with the negatives that a loss takes."""
        wanted = rules_of(settings)
        return batch.with_negatives_by([self.material.rules.index(rule) for rule in wanted]) if wanted else batch

    def _in_aspects(self, name: str, vectors: Tensor, part: Batch, whole: Batch, settings: Settings) -> Tensor:
        """A loss in the space of every group's aspect: the mean over all groups, whatever their aspects are."""
        heads, inner = self.material.heads, name.removeprefix(ASPECT)
        assert heads is not None, "make_run makes them"
        count = COUNTS[inner] if _splits(inner, settings) else _WITHIN_BATCH[inner]
        part, every = self._chosen(part, settings), count(self._chosen(whole, settings))
        total = vectors.sum() * 0
        for aspect in range(len(heads.names)):
            mine = part.of_aspect(aspect)
            if share := count(mine) / max(1, every):
                projected = heads.project(aspect, vectors)  # (papers, size)
                total = total + share * FORMULAS[inner](projected, mine, settings, self.material)
        return total

    def _on_sentences(
        self, name: str, vectors: sentence_losses.BatchVectors, batch: Batch, settings: Settings
    ) -> Tensor:
        def allowed(left: Numbers, right: Numbers) -> Mask:
            return _allowed(batch, left, right, settings, self.material)

        if name == "aligned_triplet":
            return sentence_losses.aligned_triplet(vectors, batch, settings, allowed, self.material.alignment)
        if name == "sentence_triplet":
            return sentence_losses.sentence_triplet(vectors, batch, settings, allowed)
        return sentence_losses.sentence_in_batch(vectors, batch, settings, allowed)


def _triplet(vectors: Tensor, batch: Batch, settings: Settings, _: LossInputs) -> Tensor:
    return losses.triplet(*_of_triplets(vectors, batch), margin=settings["margin"], distance=settings["distance"])


def _info_nce(vectors: Tensor, batch: Batch, settings: Settings, _: LossInputs) -> Tensor:
    return losses.info_nce(**_of_groups(vectors, batch), temperature=settings["temperature"])


def _n_pairs(vectors: Tensor, batch: Batch, settings: Settings, _: LossInputs) -> Tensor:
    """Every positive of a group is a row of its own."""
    owner, place = np.nonzero(batch.positives >= 0)  # (pairs,)
    negatives = _padded(vectors, batch.negatives[owner])
    return losses.n_pairs(
        _rows(vectors, batch.anchors[owner]),
        _rows(vectors, batch.positives[owner, place]),
        negatives[0],
        negative_mask=negatives[1],
        temperature=settings["temperature"],
        similarity=settings["similarity"],
    )


def _supcon(vectors: Tensor, batch: Batch, settings: Settings, material: LossInputs) -> Tensor:
    if settings["scope"] == "own":
        return losses.supcon(**_of_groups(vectors, batch), temperature=settings["temperature"])
    candidates = candidates_of(batch)
    targets = named_by(batch.positives, candidates, len(batch.papers))  # (groups, candidates)
    return losses.supcon_in_batch(
        _rows(vectors, batch.anchors),
        _rows(vectors, candidates),
        _on(targets, vectors),
        allowed=_on(opposed(batch, np.arange(len(batch.anchors)), candidates, _relatives(settings, material)), vectors),
        temperature=settings["temperature"],
    )


def _in_batch(vectors: Tensor, batch: Batch, settings: Settings, material: LossInputs) -> Tensor:
    owner, place = np.nonzero(batch.positives >= 0)  # (pairs,)
    candidates = candidates_of(batch)
    return losses.in_batch(
        _rows(vectors, batch.anchors[owner]),
        _rows(vectors, candidates),
        _on(np.searchsorted(candidates, batch.positives[owner, place]), vectors),
        allowed=_on(opposed(batch, owner, candidates, _relatives(settings, material)), vectors),
        temperature=settings["temperature"],
    )


def _gte(vectors: Tensor, batch: Batch, settings: Settings, material: LossInputs) -> Tensor:
    owner, place = np.nonzero(batch.positives >= 0)  # (pairs,)
    anchors, positives = batch.anchors[owner], batch.positives[owner, place]
    negatives, mask = _padded(vectors, batch.negatives[owner])
    left = np.concatenate([anchors, positives])
    right = np.concatenate([left, np.maximum(batch.negatives[owner], 0).ravel()])
    return losses.gte(
        _rows(vectors, anchors),
        _rows(vectors, positives),
        negatives=negatives,
        negative_mask=mask,
        allowed=_on(_allowed(batch, left, right, settings, material), vectors),
        temperature=settings["temperature"],
    )


def _cosent(vectors: Tensor, batch: Batch, settings: Settings, _: LossInputs) -> Tensor:
    return losses.cosent(*losses.triplets_as_pairs(*_of_triplets(vectors, batch)), scale=settings["scale"])


def _angle(vectors: Tensor, batch: Batch, settings: Settings, _: LossInputs) -> Tensor:
    return losses.angle(*losses.triplets_as_pairs(*_of_triplets(vectors, batch)), scale=settings["scale"])


def _angle_sum(vectors: Tensor, batch: Batch, settings: Settings, material: LossInputs) -> Tensor:
    anchors, positives, negatives = batch.triplets.T
    texts = np.concatenate([anchors, anchors, positives, negatives])  # the left sides of the pairs, then the right
    return losses.angle_sum(
        *losses.triplets_as_pairs(*_of_triplets(vectors, batch)),
        weights=(settings["cosine"], settings["in_batch"], settings["angle"]),
        scales=(settings["scale"],) * 3,
        allowed=_on(_allowed(batch, texts, texts, settings, material), vectors),
    )


def _student_teacher(vectors: Tensor, batch: Batch, _: Settings, material: LossInputs) -> Tensor:
    assert material.teacher is not None, "train_encoder asks for the teacher's vectors"
    teacher = material.teacher[_on(batch.papers, material.teacher)].to(vectors.device)  # (papers, its dimension)
    return losses.student_teacher(vectors, teacher, known=teacher.any(dim=1))


FORMULAS: Mapping[str, Formula] = {
    "triplet": _triplet,
    "n_pairs": _n_pairs,
    "supcon": _supcon,
    "info_nce": _info_nce,
    "in_batch": _in_batch,
    "cosent": _cosent,
    "angle": _angle,
    "angle_sum": _angle_sum,
    "gte": _gte,
    "student_teacher": _student_teacher,
}


def _positives(batch: Batch) -> int:
    return int((batch.positives >= 0).sum())


def _contrasted(batch: Batch) -> int:
    """Groups that have a positive and a negative."""
    return int(((batch.positives >= 0).any(axis=1) & (batch.negatives >= 0).any(axis=1)).sum())


COUNTS: Mapping[str, Count] = {
    "triplet": lambda batch: len(batch.triplets),
    "n_pairs": _positives,
    "info_nce": _positives,
    "supcon": _contrasted,
    "aligned_triplet": lambda batch: len(batch.triplets),
    "sentence_triplet": lambda batch: len(batch.triplets),
}
"""What a loss that splits is a mean over."""

_WITHIN_BATCH: Mapping[str, Count] = {
    "supcon": lambda batch: int((batch.positives >= 0).any(axis=1).sum()),
    "in_batch": _positives,
}
"""The same of losses with the batch's negatives that are had in the spaces of aspects."""


def _splits(name: str, settings: Settings) -> bool:
    """Whether a loss is a mean over parts that need nothing of each other; with the batch's negatives none is."""
    return name.removeprefix(ASPECT) in COUNTS and "batch" not in (settings.get("scope"), settings.get("negatives"))


def _of_triplets(vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors, positives and negatives, (triplets, dimension) each."""
    anchors, positives, negatives = (_rows(vectors, column) for column in batch.triplets.T)
    return anchors, positives, negatives


def _of_groups(vectors: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Anchors (groups, dimension), positives and negatives (groups, most, dimension) with their masks."""
    positives, negatives = _padded(vectors, batch.positives), _padded(vectors, batch.negatives)
    return {
        "anchors": _rows(vectors, batch.anchors),
        "positives": positives[0],
        "positive_mask": positives[1],
        "negatives": negatives[0],
        "negative_mask": negatives[1],
    }


def _allowed(batch: Batch, left: Numbers, right: Numbers, settings: Settings, material: LossInputs) -> Mask:
    return allowed_pairs(batch.papers[left], batch.papers[right], _relatives(settings, material))


def _relatives(settings: Settings, material: LossInputs) -> PaperLists | None:
    """Papers that are known to be related, where the loss leaves them out."""
    return material.relatives if settings["relatives"] else None


def _padded(vectors: Tensor, places: Numbers) -> tuple[Tensor, Tensor]:
    """Vectors of padded lists, (lists, most, dimension), and where there is a paper."""
    inside = _on(places >= 0, vectors)  # (lists, most)
    return _rows(vectors, np.maximum(places, 0)), inside


def _rows(vectors: Tensor, places: Numbers) -> Tensor:
    return vectors[_on(places, vectors)]


def _on(values: Numbers | Mask, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(like.device, non_blocking=True)
