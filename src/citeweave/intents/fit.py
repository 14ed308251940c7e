"""Fit an intent network with the common trainer: batches of labeled, unlabeled and auxiliary sentences.

    fit_network(network, [labeled, unlabeled, section], options, work, dev=dev)

Checkpoints, schedule, exact resume and the best epoch come from `training/trainer.py`; this is its task. The loss of a
labeled sentence is (1 - a) * cross-entropy + a * divergence from the teachers where there are any (Hinton et al. 2015),
of an unlabeled one the divergence alone, of an auxiliary one its cross-entropy times its weight. A batch has sentences
of one task and of similar length; each epoch draws again which sentences hide their section or span.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.intents.citances import Citance, CitanceTokenizer, MarkedTokens, UncutTokens
from citeweave.intents.classifier import measure_predictions
from citeweave.intents.examples import LabeledSet, TrainingSets
from citeweave.intents.network import IntentNetwork, TrainableIntentNetwork, predict_logits
from citeweave.intents.options import ClassifierOptions
from citeweave.training.distributed import ProcessGroup
from citeweave.training.options import TrainingOptions
from citeweave.training.trainer import TrainingRun, train_network

_CLIP = 1.0
"""Largest norm of the gradient."""

_CHUNK = 50
"""Number of batches whose sentences are sorted by length together."""

_NEVER = 1 << 30
"""Patience with which the best weights are kept and training never stops early."""


@dataclass(frozen=True, slots=True)
class TeacherPredictions:
    """Teachers' mean probabilities of labeled and unlabeled sentences, (sentences, labels), and their dev figures."""

    labeled: NDArray[np.float32]
    unlabeled: NDArray[np.float32]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TokenizedSentences:
    """Tokenized sentences that a task is fitted to, with labels, teachers' probabilities and loss weights."""

    task: str
    shown: list[UncutTokens]
    spanless: list[UncutTokens]
    """The same sentences without their spans; the same list where none has a span."""

    labels: NDArray[np.int64] | None = None
    soft: NDArray[np.float32] | None = None
    """Probabilities of the teachers, (sentences, labels)."""

    weights: NDArray[np.float32] | None = None
    class_weights: NDArray[np.float32] | None = None
    weight: float = 1.0
    hides_section: bool = False
    limit: int = 0
    """Most sentences per epoch; 0 = all."""

    @property
    def per_epoch(self) -> int:
        """Sentences per epoch; those without a token are left out."""
        return min(self.limit or len(self.shown), len(self.rows))

    @property
    def rows(self) -> NDArray[np.int64]:
        return np.flatnonzero([len(uncut.body) > 0 for uncut in self.shown])


def tokenize_sets(
    sets: TrainingSets, tokenizer: CitanceTokenizer, options: ClassifierOptions, teachers: TeacherPredictions | None = None
) -> list[TokenizedSentences]:  # fmt: skip
    """Tokenize the sentences that a network is fitted to: labeled, unlabeled where teachers labeled them, auxiliary."""
    train, count = sets.train, len(sets.train.examples)
    labels = train.targets  # (sentences,)
    weights = class_weights = None
    if options.confidence_weights:
        weights = np.array([example.confidence for example in train.examples], np.float32)  # (sentences,)
    if options.balanced:
        counts = np.bincount(labels, minlength=len(train.labels))  # (labels,)
        class_weights = (len(labels) / np.maximum(counts, 1) / len(train.labels)).astype(np.float32)
    soft = teachers.labeled if teachers else None
    tokens = _tokenize_both(train.citances, tokenizer)
    tokenized = [TokenizedSentences(train.task, *tokens, labels, soft, weights, class_weights)]
    if teachers is not None and sets.unlabeled:
        tokens, limit = _tokenize_both(sets.unlabeled, tokenizer), max(1, round(options.unlabeled_share * count))
        tokenized.append(TokenizedSentences(train.task, *tokens, soft=teachers.unlabeled, limit=limit))
    limit = max(1, round(options.auxiliary_share * count))
    for labeled in sets.auxiliary:  # the section or the citations that a task predicts are hidden
        shown = tokenizer.tokenize(labeled.citances, remove=labeled.task == "worthiness")
        hides = labeled.task in ("section", "worthiness")
        tokenized.append(
            TokenizedSentences(
                labeled.task, shown, shown, labeled.targets, weight=options.auxiliary_weight, hides_section=hides, limit=limit
            )
        )  # fmt: skip
    return [sentences for sentences in tokenized if sentences.per_epoch]


def _tokenize_both(
    citances: Sequence[Citance], tokenizer: CitanceTokenizer
) -> tuple[list[UncutTokens], list[UncutTokens]]:
    """Tokenize citances with their spans and without."""
    shown = tokenizer.tokenize(citances)
    if all(citance.span is None for citance in citances):
        return shown, shown
    return shown, tokenizer.tokenize([replace(citance, span=None) for citance in citances])


# The task of the common trainer


@dataclass(frozen=True, slots=True)
class _SentenceBatch:
    sentences: TokenizedSentences
    rows: NDArray[np.int64]
    tokens: list[MarkedTokens]


class IntentTask:
    """Training task of an intent network: sentences of several tasks, validated on dev sentences."""

    memory_advice = "Use a smaller --batch"

    def __init__(
        self,
        network: IntentNetwork,
        sets: Sequence[TokenizedSentences],
        options: ClassifierOptions,
        dev: LabeledSet,
    ) -> None:
        self.processes = ProcessGroup()
        self._network, self._sets, self._options, self._dev = network, sets, options, dev
        self.steps_per_epoch = sum(math.ceil(sentences.per_epoch / options.batch) for sentences in sets)
        self._epoch = lru_cache(maxsize=1)(self._epoch_batches)

    def backward(self, step: int) -> Tensor:
        """Return the loss of a step's sentences, all of one task, and add its gradient to the weights."""
        epoch, position = divmod(step, self.steps_per_epoch)
        batch, device = self._epoch(epoch)[position], self._network.device.partition(":")[0]
        self._network.train()
        torch.manual_seed(int(stream(self._options.seed, "dropout", step).integers(1 << 62)))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = self._loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def validate(self) -> dict[str, float]:
        """Return macro-F1 and accuracy on the dev sentences."""
        logits = predict_logits(self._network, self._dev.citances, self._dev.task)  # (sentences, labels)
        figures = measure_predictions(logits.argmax(axis=1), self._dev.targets, self._dev.labels)
        return {name: figures[name] / 100 for name in ("macro_f1", "accuracy")}

    def _epoch_batches(self, epoch: int) -> list[_SentenceBatch]:
        """Return the batches of all tasks in an epoch, in random order."""
        batches = [
            batch
            for number, sentences in enumerate(self._sets)
            for batch in self._task_batches(sentences, stream(self._options.seed, "epoch", epoch, number))
        ]
        order = stream(self._options.seed, "order", epoch).permutation(len(batches))
        return [batches[at] for at in order.tolist()]

    def _task_batches(self, sentences: TokenizedSentences, random: np.random.Generator) -> list[_SentenceBatch]:
        """Return one epoch's batches of a task, with sections and spans hidden at random, sorted by length in chunks."""
        options = self._options
        rows = random.permutation(sentences.rows)[: sentences.per_epoch]  # (sentences,)
        hides = (random.random(len(rows)) < options.section_dropout) | sentences.hides_section  # (sentences,)
        spanless = random.random(len(rows)) < options.span_dropout  # (sentences,)
        tokens = [
            self._network.reader.assemble(
                (sentences.spanless if no_span else sentences.shown)[row], hide_section=hidden
            )
            for row, hidden, no_span in zip(rows.tolist(), hides.tolist(), spanless.tolist(), strict=True)
        ]
        lengths, chunk = np.array([len(marked.ids) for marked in tokens]), options.batch * _CHUNK
        order = np.lexsort((lengths, np.arange(len(rows)) // chunk))  # (sentences,)
        parts = [order[first : first + options.batch] for first in range(0, len(order), options.batch)]
        return [_SentenceBatch(sentences, rows[part], [tokens[at] for at in part.tolist()]) for part in parts]

    def _loss(self, batch: _SentenceBatch) -> Tensor:
        """Return the loss of a batch, with R-Drop's agreement term where it has a weight, as a scalar."""
        logits = self._network.logits(batch.tokens, batch.sentences.task)  # (texts, labels)
        loss = self._label_loss(logits, batch)
        if self._options.agreement:
            again = self._network.logits(batch.tokens, batch.sentences.task)  # (texts, labels), another dropout
            loss = (loss + self._label_loss(again, batch)) / 2
            one, other = functional.log_softmax(logits, dim=1), functional.log_softmax(again, dim=1)
            loss = loss + self._options.agreement * (_divergence(one, other) + _divergence(other, one)) / 2
        return batch.sentences.weight * loss

    def _label_loss(self, logits: Tensor, batch: _SentenceBatch) -> Tensor:
        """Return cross-entropy with the labels plus divergence from the teachers, each where the sentences have them."""
        sentences, options, total = batch.sentences, self._options, logits.new_zeros(())

        def pick(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values[batch.rows]).to(logits.device)

        share = options.imitation if sentences.soft is not None else 0.0
        if sentences.labels is not None and share < 1:
            by_class = None if sentences.class_weights is None else logits.new_tensor(sentences.class_weights)
            each = functional.cross_entropy(
                logits, pick(sentences.labels), by_class, label_smoothing=options.smoothing, reduction="none"
            )  # (texts,)
            each = each if sentences.weights is None else each * pick(sentences.weights)
            total = total + (1 - share) * each.mean()
        if (
            sentences.soft is not None
        ):  # T^2 KL(teacher || student), both at temperature T (Hinton et al. 2015, section 2)
            heat = options.temperature
            teacher = functional.log_softmax(
                pick(sentences.soft).clamp_min(1e-6).log() / heat, dim=1
            )  # (texts, labels)
            total = total + share * heat**2 * _divergence(functional.log_softmax(logits / heat, dim=1), teacher)
        return total


def _divergence(one: Tensor, other: Tensor) -> Tensor:
    """Return the mean of KL(other || one) over the texts, of log-probabilities (texts, labels)."""
    return functional.kl_div(one, other, reduction="batchmean", log_target=True)


def fit_network(
    network: TrainableIntentNetwork,
    sets: Sequence[TokenizedSentences],
    options: ClassifierOptions,
    work: Path,
    *,
    dev: LabeledSet,
    reporter: Reporter = QUIET,
) -> None:
    """Fit an intent network to several tasks, resuming what is in `work`; log.jsonl there has losses and dev figures."""
    training = TrainingOptions(
        epochs=options.epochs,
        learning_rate=options.rate,
        head_rate=options.head_rate,
        weight_decay=options.weight_decay,
        clip=_CLIP,
        warmup=options.warmup,
        patience=_NEVER if options.keep == "best" else 0,
        watch="macro_f1",
        seed=options.seed,
    )
    run = TrainingRun(IntentTask(network, sets, options, dev), training, network.weights, reporter)
    with torch.random.fork_rng():
        train_network(run, work)
    network.eval()
