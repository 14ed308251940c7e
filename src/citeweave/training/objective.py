"""The objective: what a recipe's losses make of a batch's vectors.

    objective = Objective(options.losses, relatives)
    loss = objective(vectors, batch, batch)

`losses/` has the formulas; here is which vectors each of them gets: the encoder's, or with the prefix `aspect_` those in
the space of a group's aspect. A loss that is a mean over groups or triplets can be had in parts (`splits`): a part's
share of the mean is what it adds. The others need the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from citeweave.errors import choose
from citeweave.training import losses
from citeweave.training.aspect_heads import TrainedHeads
from citeweave.training.batch_negatives import Mask, allowed_pairs, candidates_of, named_by, opposed
from citeweave.training.batches import Batch
from citeweave.training.data import Lists, Numbers
from citeweave.training.loss_settings import ASPECT, rules_of
from citeweave.training.sentence_level import objective as sentence_losses
from citeweave.training.sentence_level.spans import Alignment, SentenceSpans, paper_rows

SCOPES = ("own", "batch")


@dataclass(frozen=True, slots=True)
class Material:
    """What losses know beside a batch and its vectors."""

    relatives: Lists | None = None
    teacher: Tensor | None = None
    """Vectors of all papers of the data, (papers, dimension of the teacher)."""

    sentences: SentenceSpans | None = None
    """Of all papers of the data; then a batch's vectors are rows of papers and sentences, see `PaperRows`."""

    alignment: Alignment | None = None
    heads: TrainedHeads | None = None
    """Projections into the spaces of aspects."""

    rules: tuple[str, ...] = ()
    """Names of the rules behind negatives."""


Settings = Mapping[str, Any]
Formula = Callable[[Tensor, Batch, Settings, Material], Tensor]
Count = Callable[[Batch], int]


class Objective:
    """The weighted sum of some losses."""

    def __init__(self, settings: Mapping[str, Settings], material: Material | None = None) -> None:
        self.terms = {name: values for name, values in settings.items() if name != "mlm"}
        self.material = material or Material()
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
                loss = self._on_sentences(name, sentence_losses.Vectors(vectors, rows), mine, values)
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

    def _on_sentences(self, name: str, vectors: sentence_losses.Vectors, batch: Batch, settings: Settings) -> Tensor:
        def allowed(left: Numbers, right: Numbers) -> Mask:
            return _allowed(batch, left, right, settings, self.material)

        if name == "aligned_triplet":
            return sentence_losses.aligned_triplet(vectors, batch, settings, allowed, self.material.alignment)
        if name == "sentence_triplet":
            return sentence_losses.sentence_triplet(vectors, batch, settings, allowed)
        return sentence_losses.sentence_in_batch(vectors, batch, settings, allowed)


def _triplet(vectors: Tensor, batch: Batch, settings: Settings, _: Material) -> Tensor:
    return losses.triplet(*_of_triplets(vectors, batch), margin=settings["margin"], distance=settings["distance"])


def _info_nce(vectors: Tensor, batch: Batch, settings: Settings, _: Material) -> Tensor:
    return losses.info_nce(**_of_groups(vectors, batch), temperature=settings["temperature"])


def _n_pairs(vectors: Tensor, batch: Batch, settings: Settings, _: Material) -> Tensor:
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


def _supcon(vectors: Tensor, batch: Batch, settings: Settings, material: Material) -> Tensor:
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


def _in_batch(vectors: Tensor, batch: Batch, settings: Settings, material: Material) -> Tensor:
    owner, place = np.nonzero(batch.positives >= 0)  # (pairs,)
    candidates = candidates_of(batch)
    return losses.in_batch(
        _rows(vectors, batch.anchors[owner]),
        _rows(vectors, candidates),
        _on(np.searchsorted(candidates, batch.positives[owner, place]), vectors),
        allowed=_on(opposed(batch, owner, candidates, _relatives(settings, material)), vectors),
        temperature=settings["temperature"],
    )


def _gte(vectors: Tensor, batch: Batch, settings: Settings, material: Material) -> Tensor:
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


def _cosent(vectors: Tensor, batch: Batch, settings: Settings, _: Material) -> Tensor:
    return losses.cosent(*losses.triplets_as_pairs(*_of_triplets(vectors, batch)), scale=settings["scale"])


def _angle(vectors: Tensor, batch: Batch, settings: Settings, _: Material) -> Tensor:
    return losses.angle(*losses.triplets_as_pairs(*_of_triplets(vectors, batch)), scale=settings["scale"])


def _angle_sum(vectors: Tensor, batch: Batch, settings: Settings, material: Material) -> Tensor:
    anchors, positives, negatives = batch.triplets.T
    texts = np.concatenate([anchors, anchors, positives, negatives])  # the left sides of the pairs, then the right
    return losses.angle_sum(
        *losses.triplets_as_pairs(*_of_triplets(vectors, batch)),
        weights=(settings["cosine"], settings["in_batch"], settings["angle"]),
        scales=(settings["scale"],) * 3,
        allowed=_on(_allowed(batch, texts, texts, settings, material), vectors),
    )


def _student_teacher(vectors: Tensor, batch: Batch, _: Settings, material: Material) -> Tensor:
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


def _allowed(batch: Batch, left: Numbers, right: Numbers, settings: Settings, material: Material) -> Mask:
    return allowed_pairs(batch.papers[left], batch.papers[right], _relatives(settings, material))


def _relatives(settings: Settings, material: Material) -> Lists | None:
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
