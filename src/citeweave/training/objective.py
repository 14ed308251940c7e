"""The training objective: a recipe's losses on a batch's vectors, summed by weight; masked language modeling.

    objective = Objective(options.losses, LossInputs(related))
    loss = objective(vectors, batch, batch)

`contrastive_losses.py` and `pairwise_losses.py` have the formulas; this file chooses the vectors that each of them gets:
the encoder's, or with the prefix `aspect_` those in the space of a group's aspect. A loss that is a mean over groups or triplets can be computed in parts
(`splits`): each part adds its share of the mean. The others need the complete batch.

Masked language modeling is trained beside the main loss, as in SciNCL's joint training, or alone. Its head in BERT's form (dense,
gelu, layer norm, the word embeddings as the last layer) is not saved. Which tokens are masked depends on seed, step and
paper alone, so a batch may be processed in parts.

    >>> tokens, generator = np.arange(10, 30), stream(5, "masking")
    >>> masked = mask_tokens(tokens, special=[10, 29], vocabulary=100, mask_id=4, generator=generator)
    >>> masked.targets.tolist(), masked.tokens[masked.places].tolist()
    ([11, 12, 24, 26, 27, 28], [5, 4, 4, 15, 4, 4])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from citeweave.core.errors import UserError, choose
from citeweave.core.ragged import to_offsets
from citeweave.core.randomness import stream
from citeweave.encoders.encoder import TorchEncoder
from citeweave.training import contrastive_losses as contrastive
from citeweave.training import pairwise_losses as pairwise
from citeweave.training import sentence_objective as sentence_losses
from citeweave.training.batch_negatives import allowed_pairs, batch_candidates, mark_listed, mark_negatives
from citeweave.training.data import (
    AlignedPairs,
    Batch,
    Mask,
    Numbers,
    PaperLists,
    SentenceSpans,
    TrainingData,
    paper_rows,
)
from citeweave.training.options import ASPECT, negative_rules
from citeweave.training.partial import TrainedHeads
from citeweave.training.start_scale import Scales

SCOPES = ("own", "batch")

REPEATING = ("supcon",)
"""Losses for which a positive that the samples repeat counts as often (SciAspect thesis, section 5.1: oversampled)."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Inputs of the objective besides a batch and its vectors: related papers, teacher, sentences, heads, rules."""

    related: PaperLists | None = None
    teacher: Tensor | None = None
    """Teacher's vectors of all papers of the data, (papers, its dimension)."""

    sentences: SentenceSpans | None = None
    """Sentences of all papers of the data; then a batch's vectors are rows of papers and sentences (`BatchRows`)."""

    alignment: AlignedPairs | None = None
    heads: TrainedHeads | None = None
    """Aspect heads, which project into the spaces of aspects."""

    rules: tuple[str, ...] = ()
    """Names of the mining rules of negatives."""

    scales: Scales = field(default_factory=Scales)
    """What L2 distances are divided by."""


Settings = Mapping[str, Any]
Formula = Callable[[Tensor, Batch, Settings, LossInputs], Tensor]
Count = Callable[[Batch], int]


class Objective:
    """The training objective: the weighted sum of a recipe's losses as a function of a batch's vectors."""

    def __init__(self, settings: Mapping[str, Settings], inputs: LossInputs | None = None) -> None:
        self.terms = {name: values for name, values in settings.items() if name != "mlm"}
        self.inputs = inputs or LossInputs()
        for name, values in self.terms.items():
            if "scope" in values:
                choose(values["scope"], SCOPES, f"training.losses.{name}.scope")
            for rule in negative_rules(values):
                choose(rule, self.inputs.rules, f"training.losses.{name}.negatives_by")

    @property
    def splits(self) -> bool:
        """Whether the loss of a batch is a sum over its groups, so that they may be processed in parts."""
        return all(_splits(name, values) for name, values in self.terms.items())

    def __call__(self, vectors: Tensor, part: Batch, complete: Batch) -> Tensor:
        """Return a part's share of the loss of the complete batch, as a scalar."""
        terms = []
        rows = paper_rows(self.inputs.sentences, part.papers)
        on_sentences = [not name.startswith(ASPECT) and name not in FORMULAS for name in self.terms]
        own = vectors  # (papers, dimension)
        if self.inputs.sentences is not None and not all(on_sentences):
            own = _take(vectors, rows.own)
        for name, values in self.terms.items():
            if name.startswith(ASPECT):
                terms.append(float(values["weight"]) * self._loss_in_aspects(name, own, part, complete, values))
                continue
            mine, every = self._read_batch(name, part, values), self._read_batch(name, complete, values)
            share = COUNTS[name](mine) / max(1, COUNTS[name](every)) if _splits(name, values) else 1.0
            if not share:
                continue
            if name in FORMULAS:
                loss = FORMULAS[name](own, mine, values, self.inputs)
            else:
                scale = self.inputs.scales.sentences
                scaled = sentence_losses.BatchVectors(vectors if scale == 1 else vectors / scale, rows)
                loss = self._loss_on_sentences(name, scaled, mine, values)
            terms.append(float(values["weight"]) * share * loss)
        return sum(terms[1:], terms[0]) if terms else vectors.sum() * 0

    def _read_batch(self, name: str, batch: Batch, settings: Settings) -> Batch:
        """Return the batch as a loss reads it: with the negatives of its mining rules, and repeats if it counts them."""
        rules = negative_rules(settings)
        chosen = batch.with_negatives_by([self.inputs.rules.index(rule) for rule in rules]) if rules else batch
        return chosen if name in REPEATING else chosen.with_positives_once()

    def _loss_in_aspects(self, name: str, vectors: Tensor, part: Batch, complete: Batch, settings: Settings) -> Tensor:
        """Compute a loss in the space of every group's aspect, as the mean over the groups of all aspects."""
        heads, inner = self.inputs.heads, name.removeprefix(ASPECT)
        assert heads is not None, "prepare_run requires them"
        count = COUNTS[inner] if _splits(inner, settings) else _WITHIN_BATCH[inner]
        part = self._read_batch(inner, part, settings)
        every = count(self._read_batch(inner, complete, settings))
        total = vectors.sum() * 0
        for aspect in range(len(heads.names)):
            mine = part.of_aspect(aspect)
            if share := count(mine) / max(1, every):
                projected = heads.project(aspect, vectors)  # (papers, size)
                total = total + share * FORMULAS[inner](projected, mine, settings, self.inputs)
        return total

    def _loss_on_sentences(
        self, name: str, vectors: sentence_losses.BatchVectors, batch: Batch, settings: Settings
    ) -> Tensor:
        """Compute a loss on sentences of the batch."""

        def allowed(left: Numbers, right: Numbers) -> Mask:
            return _allowed(batch, left, right, settings, self.inputs)

        if name == "aligned_triplet":
            return sentence_losses.aligned_triplet(vectors, batch, settings, allowed, self.inputs.alignment)
        if name == "sentence_triplet":
            return sentence_losses.sentence_triplet(vectors, batch, settings, allowed)
        return sentence_losses.sentence_in_batch(vectors, batch, settings, allowed)


def _triplet(vectors: Tensor, batch: Batch, settings: Settings, inputs: LossInputs) -> Tensor:
    vectors = vectors / inputs.scales.papers
    return pairwise.triplet(*_triplet_vectors(vectors, batch), margin=settings["margin"], distance=settings["distance"])


def _info_nce(vectors: Tensor, batch: Batch, settings: Settings, _: LossInputs) -> Tensor:
    return contrastive.info_nce(**_group_vectors(vectors, batch), temperature=settings["temperature"])


def _n_pairs(vectors: Tensor, batch: Batch, settings: Settings, _: LossInputs) -> Tensor:
    """Compute the n_pairs loss with one row for every positive of a group."""
    owner, place = np.nonzero(batch.positives >= 0)  # (pairs,)
    negatives = _padded(vectors, batch.negatives[owner])
    return contrastive.n_pairs(
        _take(vectors, batch.anchors[owner]),
        _take(vectors, batch.positives[owner, place]),
        negatives[0],
        negative_mask=negatives[1],
        temperature=settings["temperature"],
        similarity=settings["similarity"],
    )


def _supcon(vectors: Tensor, batch: Batch, settings: Settings, inputs: LossInputs) -> Tensor:
    if settings["scope"] == "own":
        return contrastive.supcon(**_group_vectors(vectors, batch), temperature=settings["temperature"])
    candidates = batch_candidates(batch)
    targets = mark_listed(batch.positives, candidates, len(batch.papers))  # (groups, candidates)
    return contrastive.supcon_in_batch(
        _take(vectors, batch.anchors),
        _take(vectors, candidates),
        _to_tensor(targets, vectors),
        allowed=_to_tensor(
            mark_negatives(batch, np.arange(len(batch.anchors)), candidates, _related_papers(settings, inputs)), vectors
        ),
        temperature=settings["temperature"],
    )


def _in_batch(vectors: Tensor, batch: Batch, settings: Settings, inputs: LossInputs) -> Tensor:
    owner, place = np.nonzero(batch.positives >= 0)  # (pairs,)
    candidates = batch_candidates(batch)
    return contrastive.in_batch(
        _take(vectors, batch.anchors[owner]),
        _take(vectors, candidates),
        _to_tensor(np.searchsorted(candidates, batch.positives[owner, place]), vectors),
        allowed=_to_tensor(mark_negatives(batch, owner, candidates, _related_papers(settings, inputs)), vectors),
        temperature=settings["temperature"],
    )


def _gte(vectors: Tensor, batch: Batch, settings: Settings, inputs: LossInputs) -> Tensor:
    owner, place = np.nonzero(batch.positives >= 0)  # (pairs,)
    anchors, positives = batch.anchors[owner], batch.positives[owner, place]
    negatives, mask = _padded(vectors, batch.negatives[owner])
    left = np.concatenate([anchors, positives])
    right = np.concatenate([left, np.maximum(batch.negatives[owner], 0).ravel()])
    return contrastive.gte(
        _take(vectors, anchors),
        _take(vectors, positives),
        negatives=negatives,
        negative_mask=mask,
        allowed=_to_tensor(_allowed(batch, left, right, settings, inputs), vectors),
        temperature=settings["temperature"],
    )


def _cosent(vectors: Tensor, batch: Batch, settings: Settings, _: LossInputs) -> Tensor:
    return pairwise.cosent(*_labeled_pairs(vectors, batch), scale=settings["scale"])


def _angle(vectors: Tensor, batch: Batch, settings: Settings, _: LossInputs) -> Tensor:
    return pairwise.angle(*_labeled_pairs(vectors, batch), scale=settings["scale"])


def _angle_sum(vectors: Tensor, batch: Batch, settings: Settings, inputs: LossInputs) -> Tensor:
    anchors, positives, negatives = batch.triplets.T
    texts = np.concatenate([anchors, anchors, positives, negatives])  # left sides of the pairs, then right sides
    return pairwise.angle_sum(
        *_labeled_pairs(vectors, batch),
        weights=(settings["cosine"], settings["in_batch"], settings["angle"]),
        scales=(settings["scale"],) * 3,
        allowed=_to_tensor(_allowed(batch, texts, texts, settings, inputs), vectors),
    )


def _student_teacher(vectors: Tensor, batch: Batch, _: Settings, inputs: LossInputs) -> Tensor:
    teacher = _taught(vectors, batch, inputs)
    return pairwise.student_teacher(vectors, teacher, known=teacher.any(dim=1))


def _similarity(vectors: Tensor, batch: Batch, settings: Settings, inputs: LossInputs) -> Tensor:
    teacher = _taught(vectors, batch, inputs)
    temperatures = {name: settings[name] for name in ("temperature", "teacher_temperature")}
    return pairwise.similarity(vectors, teacher, known=teacher.any(dim=1), **temperatures)


def _taught(vectors: Tensor, batch: Batch, inputs: LossInputs) -> Tensor:
    """Return the teacher's vectors of a batch's papers, (papers, its dimension), zeros where it has none."""
    assert inputs.teacher is not None, "load_training_data requires the teacher's vectors"
    return inputs.teacher[_to_tensor(batch.papers, inputs.teacher)].to(vectors.device)


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
    "similarity": _similarity,
}


def _count_positives(batch: Batch) -> int:
    return int((batch.positives >= 0).sum())


def _count_contrasted(batch: Batch) -> int:
    """Count the groups of a batch that have a positive and a negative."""
    return int(((batch.positives >= 0).any(axis=1) & (batch.negatives >= 0).any(axis=1)).sum())


COUNTS: Mapping[str, Count] = {
    "triplet": lambda batch: len(batch.triplets),
    "n_pairs": _count_positives,
    "info_nce": _count_positives,
    "supcon": _count_contrasted,
    "aligned_triplet": lambda batch: len(batch.triplets),
    "sentence_triplet": lambda batch: len(batch.triplets),
}
"""Count of what each loss is a mean over, for losses that can be computed in parts."""

_WITHIN_BATCH: Mapping[str, Count] = {
    "supcon": lambda batch: int((batch.positives >= 0).any(axis=1).sum()),
    "in_batch": _count_positives,
}
"""The same for losses with in-batch negatives in the spaces of aspects."""


def _splits(name: str, settings: Settings) -> bool:
    """Return whether a loss is a mean over independent parts of a batch; with in-batch negatives none is."""
    return name.removeprefix(ASPECT) in COUNTS and "batch" not in (settings.get("scope"), settings.get("negatives"))


def _triplet_vectors(vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the vectors of anchors, positives and negatives of a batch's triplets, (triplets, dimension) each."""
    anchors, positives, negatives = (_take(vectors, column) for column in batch.triplets.T)
    return anchors, positives, negatives


def _labeled_pairs(vectors: Tensor, batch: Batch) -> pairwise.LabeledPairs:
    return pairwise.triplets_as_pairs(*_triplet_vectors(vectors, batch))


def _group_vectors(vectors: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Return vectors of anchors (groups, dimension), positives and negatives (groups, longest, dimension), and masks."""
    positives, negatives = _padded(vectors, batch.positives), _padded(vectors, batch.negatives)
    return {
        "anchors": _take(vectors, batch.anchors),
        "positives": positives[0],
        "positive_mask": positives[1],
        "negatives": negatives[0],
        "negative_mask": negatives[1],
    }


def _allowed(batch: Batch, left: Numbers, right: Numbers, settings: Settings, inputs: LossInputs) -> Mask:
    return allowed_pairs(batch.papers[left], batch.papers[right], _related_papers(settings, inputs))


def _related_papers(settings: Settings, inputs: LossInputs) -> PaperLists | None:
    """Return the related papers, where a loss leaves them out of its negatives."""
    return inputs.related if settings["relatives"] else None


def _padded(vectors: Tensor, places: Numbers) -> tuple[Tensor, Tensor]:
    """Return the vectors of padded lists, (lists, longest, dimension), and the mask of papers."""
    inside = _to_tensor(places >= 0, vectors)  # (lists, longest)
    return _take(vectors, np.maximum(places, 0)), inside


def _take(vectors: Tensor, places: Numbers) -> Tensor:
    return vectors[_to_tensor(places, vectors)]


def _to_tensor(values: Numbers | Mask, like: Tensor) -> Tensor:
    return sentence_losses.to_tensor(values, like)


# Masked language modeling beside the main loss

MASKED, RANDOM = 0.8, 0.1
"""Shares of chosen tokens that are replaced by the mask and by a random token; the rest stays."""


class MaskedTokens(NamedTuple):
    """Tokens masked for the masked-language objective, the masked positions, and the original tokens there."""

    tokens: NDArray[Any]
    """(n,) input of the model."""

    places: NDArray[np.int64]
    """(T,) positions to predict, ascending."""

    targets: NDArray[np.int64]
    """(T,) tokens to predict."""


def mask_tokens(
    tokens: NDArray[Any],
    special: Sequence[int] | NDArray[Any],
    vocabulary: int,
    mask_id: int,
    generator: np.random.Generator,
    *,
    share: float = 0.15,
) -> MaskedTokens:
    """Mask tokens for the objective as BERT does: of the `share` chosen, 80% are masked, 10% random, 10% stay.

    Devlin et al. 2019. `tokens` (n,) are those of one text or of many in a row, and are not changed. `special` are the
    ids that are never chosen ([CLS], [SEP], padding). `vocabulary` is the number of tokens to draw a random one from.
    """
    if not 0 <= share <= 1:
        raise UserError(f"share of masked tokens is {share}; it must be from 0 to 1, such as 0.15")
    # drawn for every token, so that special tokens do not shift the draws of others
    chance, fate = generator.random((2, len(tokens)))  # (n,) each
    places = np.flatnonzero((chance < share) & ~np.isin(tokens, special))  # (T,)
    other = generator.integers(vocabulary, size=len(tokens))[places]  # (T,)
    targets = tokens[places].astype(np.int64)  # (T,)
    fate = fate[places]  # (T,)
    hidden = tokens.copy()  # (n,)
    hidden[places] = np.select(
        [fate < MASKED, fate < MASKED + RANDOM], [np.full_like(targets, mask_id), other], targets
    )
    return MaskedTokens(hidden, places, targets)


class MaskedLanguageHead(nn.Module):
    """The masked-language objective's head, as BERT's: token states to word scores (tokens, vocabulary)."""

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        dimension = words.embedding_dim
        self.dense = nn.Linear(dimension, dimension)
        self.norm = nn.LayerNorm(dimension)
        self.bias = nn.Parameter(torch.zeros(words.num_embeddings))
        self._words = [words]  # in a list, since its weights belong to the encoder and not to this head

    def forward(self, states: Tensor) -> Tensor:
        hidden = self.norm(nn.functional.gelu(self.dense(states)))  # (tokens, dimension)
        return nn.functional.linear(hidden, self._words[0].weight, self.bias)


class MaskedLanguage:
    """The masked-language objective of papers: its weight times the mean over all masked tokens of a batch."""

    def __init__(self, data: TrainingData, start: TorchEncoder, settings: Settings, seed: int) -> None:
        tokenizer, network = start.reader.tokenizer, start.network
        mask = getattr(tokenizer, "mask_token_id", None)
        if mask is None:
            raise UserError(
                f"the tokenizer of {start.name} has no mask token, which the mlm loss needs; use another start model"
            )
        self.data, self.network, self._settings, self._seed = data, network, settings, seed
        self._last: tuple[object, Mapping[int, MaskedTokens]] = (None, {})
        self._special, self._mask = list(tokenizer.all_special_ids), int(mask)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.head = MaskedLanguageHead(network.model.get_input_embeddings()).to(network.device)

    def loss(self, papers: Numbers, complete: Numbers, step: int) -> Tensor:
        """Return some papers' share of the masked-language objective of the complete batch."""
        masked = self._mask_papers(complete, step)
        hidden = [masked[paper] for paper in papers.tolist()]
        total = sum(len(entry.places) for entry in masked.values())
        states = self.network.token_states([entry.tokens for entry in hidden]).tokens()  # (tokens, dimension)
        starts = to_offsets([len(entry.tokens) for entry in hidden])[:-1]  # (papers,)
        places = np.concatenate([start + entry.places for start, entry in zip(starts, hidden, strict=True)])
        targets = torch.from_numpy(np.concatenate([entry.targets for entry in hidden])).to(states.device)
        logits = self.head(states[torch.from_numpy(places).to(states.device)])  # (hidden, vocabulary)
        return (
            float(self._settings["weight"]) * pairwise.masked_language(logits, targets) * (len(places) / max(1, total))
        )

    def _mask_papers(self, papers: Numbers, step: int) -> Mapping[int, MaskedTokens]:
        """Mask the papers of a batch, once for all of its parts."""
        key = (step, papers.tobytes())
        if self._last[0] != key:
            self._last = (key, {paper: self._mask_paper(paper, step) for paper in papers.tolist()})
        return self._last[1]

    def _mask_paper(self, paper: int, step: int) -> MaskedTokens:
        (tokens,) = self.data.tokens.take(np.array([paper]))
        drawn = stream(self._seed, "training", "masking", step, paper)
        vocabulary = self.network.model.config.vocab_size
        share = self._settings["share"]
        return mask_tokens(tokens, self._special, vocabulary, self._mask, drawn, share=share)
