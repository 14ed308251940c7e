"""Fit an intent network: batches of labeled, unlabeled and auxiliary sentences, and distillation from teachers.

    fit_network(network, [labeled, unlabeled, section], options, after_epoch=report)

The loss of a labeled sentence is (1 - a) * cross-entropy + a * divergence from the teachers where there are any (Hinton
et al. 2015), of an unlabeled one the divergence alone, of an auxiliary one its cross-entropy times its weight. A batch
has sentences of one task and of similar length; each epoch draws again which sentences hide their section or span.

Teachers are fully trained networks whose mean probabilities are distilled into the small classifier:

    predictions = train_teachers(sets, options, "cuda")
    predictions.labeled       (labeled sentences, labels)      by default from teachers not trained on the sentence
    predictions.unlabeled     (unlabeled sentences, labels)    the mean of all teachers

A teacher trained on a sentence repeats its label; one that was not shows where the label is doubtful. Teachers are in
memory one at a time and are not saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.intents.citances import Citance, CitanceTokenizer, MarkedTokens, UncutTokens
from citeweave.intents.classifier import measure_predictions, softmax
from citeweave.intents.examples import LabeledSet, TrainingSets
from citeweave.intents.network import IntentNetwork, build_network, load_base, predict_logits
from citeweave.intents.options import ClassifierOptions
from citeweave.training.trainer import learning_rate_factor, warmup_steps

_CLIP = 1.0
"""Largest norm of the gradient."""

_CHUNK = 50
"""Number of batches whose sentences are sorted by length together."""


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
    per_epoch: int = 0
    """Sentences per epoch; 0 = all."""


@dataclass(frozen=True, slots=True)
class _Batch:
    sentences: TokenizedSentences
    rows: NDArray[np.int64]
    tokens: list[MarkedTokens]


def tokenize_labeled(
    labeled: LabeledSet,
    tokenizer: CitanceTokenizer,
    options: ClassifierOptions,
    soft: NDArray[np.float32] | None = None,
) -> TokenizedSentences:
    """Tokenize the labeled sentences that the main task is fitted to, and compute their loss weights."""
    labels = labeled.targets  # (sentences,)
    weights = class_weights = None
    if options.confidence_weights:
        weights = np.array([example.confidence for example in labeled.examples], np.float32)  # (sentences,)
    if options.balanced:
        counts = np.bincount(labels, minlength=len(labeled.labels))  # (labels,)
        class_weights = (len(labels) / np.maximum(counts, 1) / len(labeled.labels)).astype(np.float32)
    shown, spanless = _tokenize_both(labeled.citances, tokenizer)
    return TokenizedSentences(labeled.task, shown, spanless, labels, soft, weights, class_weights)


def tokenize_unlabeled(
    task: str, citances: Sequence[Citance], tokenizer: CitanceTokenizer, soft: NDArray[np.float32], per_epoch: int
) -> TokenizedSentences:
    """Tokenize unlabeled sentences, whose only targets are the teachers' probabilities."""
    shown, spanless = _tokenize_both(citances, tokenizer)
    return TokenizedSentences(task, shown, spanless, soft=soft, per_epoch=per_epoch)


def tokenize_auxiliary_sets(
    sets: TrainingSets, tokenizer: CitanceTokenizer, options: ClassifierOptions
) -> list[TokenizedSentences]:
    """Tokenize the sentences that auxiliary tasks are fitted to, hiding the section or citations that a task predicts."""
    per_epoch = max(1, round(options.auxiliary_share * len(sets.train.examples)))
    tokenized = []
    for labeled in sets.auxiliary:
        if labeled.examples:
            tokens = tokenizer.tokenize(labeled.citances, remove=labeled.task == "worthiness")
            tokenized.append(
                TokenizedSentences(
                    labeled.task,
                    tokens,
                    tokens,
                    labeled.targets,
                    weight=options.auxiliary_weight,
                    hides_section=labeled.task in ("section", "worthiness"),
                    per_epoch=per_epoch,
                )
            )
    return tokenized


def _tokenize_both(
    citances: Sequence[Citance], tokenizer: CitanceTokenizer
) -> tuple[list[UncutTokens], list[UncutTokens]]:
    """Tokenize citances with their spans and without."""
    shown = tokenizer.tokenize(citances)
    if all(citance.span is None for citance in citances):
        return shown, shown
    return shown, tokenizer.tokenize([replace(citance, span=None) for citance in citances])


def fit_network(
    network: IntentNetwork,
    sets: Sequence[TokenizedSentences],
    options: ClassifierOptions,
    *,
    after_epoch: Callable[[int, float], None] | None = None,
    reporter: Reporter = QUIET,
) -> None:
    """Fit an intent network to several tasks; `after_epoch` is called with the epoch, from 1, and its mean loss."""
    steps_per_epoch = sum(math.ceil(_epoch_size(sentences) / options.batch) for sentences in sets)
    steps = max(1, round(options.epochs * steps_per_epoch))
    warmup = warmup_steps(options.warmup, steps)
    optimizer = torch.optim.AdamW(_parameter_groups(network, options), lr=options.rate)
    rates = [group["lr"] for group in optimizer.param_groups]
    losses: list[Tensor] = []
    devices = [torch.cuda.current_device()] if network.device_kind == "cuda" else []
    with torch.random.fork_rng(devices=devices), reporter.task("training", steps, "steps") as advance:
        torch.manual_seed(int(stream(options.seed, "dropout").integers(1 << 62)))
        for step, (epoch, is_last, batch) in zip(range(steps), _batches(network, sets, options), strict=False):
            network.train()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * learning_rate_factor("linear", step, steps, warmup=warmup)
            losses.append(_step(network, batch, optimizer, options))
            advance(1)
            if is_last or step + 1 == steps:
                if after_epoch is not None:
                    after_epoch(epoch, float(torch.stack(losses).mean()))
                losses = []
    network.eval()


def _step(
    network: IntentNetwork, batch: _Batch, optimizer: torch.optim.Optimizer, options: ClassifierOptions
) -> Tensor:
    """Take one optimizer step on a batch of sentences and return its loss."""
    with torch.autocast(network.device_kind, torch.bfloat16, enabled=network.device_kind == "cuda"):
        loss = _batch_loss(network, batch.sentences, batch.rows, batch.tokens, options)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_([value for _, value in network.trained()], _CLIP)
    optimizer.step()
    return loss.detach()


def _batch_loss(
    network: IntentNetwork,
    sentences: TokenizedSentences,
    rows: NDArray[np.int64],
    tokens: list[MarkedTokens],
    options: ClassifierOptions,
) -> Tensor:
    """Return the loss of a batch of one task, with R-Drop's agreement term where it has a weight, as a scalar."""
    logits = network.logits(tokens, sentences.task)  # (texts, labels)
    loss = _loss(logits, sentences, rows, options)
    if options.agreement:
        again = network.logits(tokens, sentences.task)  # (texts, labels), another dropout
        loss = (loss + _loss(again, sentences, rows, options)) / 2
        first, second = functional.log_softmax(logits, dim=1), functional.log_softmax(again, dim=1)
        both = functional.kl_div(first, second, reduction="batchmean", log_target=True) + functional.kl_div(
            second, first, reduction="batchmean", log_target=True
        )
        loss = loss + options.agreement * both / 2
    return sentences.weight * loss


def _loss(logits: Tensor, sentences: TokenizedSentences, rows: NDArray[np.int64], options: ClassifierOptions) -> Tensor:
    """Return cross-entropy with the labels plus divergence from the teachers, each where the sentences have them."""
    device = logits.device
    total = logits.new_zeros(())
    share = options.imitation if sentences.soft is not None else 0.0
    if sentences.labels is not None and share < 1:
        weight = None if sentences.class_weights is None else torch.from_numpy(sentences.class_weights).to(device)
        labels = torch.from_numpy(sentences.labels[rows]).to(device)  # (texts,)
        each = functional.cross_entropy(
            logits, labels, weight=weight, label_smoothing=options.smoothing, reduction="none"
        )  # (texts,)
        if sentences.weights is not None:
            each = each * torch.from_numpy(sentences.weights[rows]).to(device)
        total = total + (1 - share) * each.mean()
    if sentences.soft is not None:
        soft = torch.from_numpy(sentences.soft[rows]).to(device)  # (texts, labels)
        total = total + share * _distillation_loss(logits, soft, options.temperature)
    return total


def _distillation_loss(logits: Tensor, soft: Tensor, temperature: float) -> Tensor:
    """Return T^2 KL(teacher || student), both at temperature T (Hinton et al. 2015, section 2)."""
    teacher = functional.log_softmax(soft.clamp_min(1e-6).log() / temperature, dim=1)  # (texts, labels)
    student = functional.log_softmax(logits / temperature, dim=1)  # (texts, labels)
    return temperature**2 * functional.kl_div(student, teacher, reduction="batchmean", log_target=True)


def _parameter_groups(network: IntentNetwork, options: ClassifierOptions) -> list[dict[str, object]]:
    """Group parameters for AdamW: only matrices have weight decay, heads have a learning rate of their own."""
    groups: dict[tuple[bool, bool], list[Tensor]] = {}
    for name, value in network.trained():
        groups.setdefault((name.startswith("heads."), value.ndim > 1 and name != "rows.change"), []).append(value)
    return [
        {
            "params": values,
            "lr": options.rate * (options.head_rate if is_head else 1.0),
            "weight_decay": options.weight_decay if decays else 0.0,
        }
        for (is_head, decays), values in groups.items()
    ]


def _epoch_size(sentences: TokenizedSentences) -> int:
    """Return the number of sentences of a task in one epoch."""
    return min(sentences.per_epoch or len(sentences.shown), len(sentences.shown))


def _batches(
    network: IntentNetwork, sets: Sequence[TokenizedSentences], options: ClassifierOptions
) -> Iterator[tuple[int, bool, _Batch]]:
    """Yield epoch, whether it is the epoch's last batch, and the batch, of all tasks in random order, endlessly."""
    epoch = 0
    while True:
        epoch += 1
        batches = [
            batch
            for number, sentences in enumerate(sets)
            for batch in _task_batches(network, sentences, number, epoch, options)
        ]
        if not batches:
            return
        order = stream(options.seed, "order", epoch).permutation(len(batches)).tolist()
        for position, at in enumerate(order):
            yield epoch, position + 1 == len(order), batches[at]


def _task_batches(
    network: IntentNetwork, sentences: TokenizedSentences, number: int, epoch: int, options: ClassifierOptions
) -> Iterator[_Batch]:
    """Yield one epoch's batches of a task, with sections and spans hidden at random, sorted by length in chunks."""
    random = stream(options.seed, "epoch", epoch, number)
    rows = random.permutation(len(sentences.shown))[: _epoch_size(sentences)]  # (sentences,)
    hides = (random.random(len(rows)) < options.section_dropout) | sentences.hides_section  # (sentences,)
    spanless = random.random(len(rows)) < options.span_dropout  # (sentences,)
    tokens = [
        network.base.reader.assemble((sentences.spanless if no_span else sentences.shown)[row], hide_section=hidden)
        for row, hidden, no_span in zip(rows.tolist(), hides.tolist(), spanless.tolist(), strict=True)
    ]
    chunk = options.batch * _CHUNK
    for start in range(0, len(rows), chunk):
        lengths = np.array([len(marked.ids) for marked in tokens[start : start + chunk]], np.int64)
        order = start + np.argsort(lengths, kind="stable")
        for first in range(0, len(order), options.batch):
            own = order[first : first + options.batch]
            own = own[lengths[own - start] > 0]
            if len(own):
                yield _Batch(sentences, rows[own], [tokens[at] for at in own.tolist()])


# Distillation from teachers

_FOLDS = 5
"""Maximum number of folds of the labeled sentences; teachers beyond it start another split."""


@dataclass(frozen=True, slots=True)
class TeacherPredictions:
    """Teachers' mean probabilities of labeled and unlabeled sentences, and their dev figures."""

    labeled: NDArray[np.float32]
    unlabeled: NDArray[np.float32]
    metadata: dict[str, Any] = field(default_factory=dict)


def train_teachers(
    sets: TrainingSets, options: ClassifierOptions, device: str, *, reporter: Reporter = QUIET
) -> TeacherPredictions:
    """Fit teacher networks for distillation one after the other and average their probabilities of the sentences."""
    count, labels = len(sets.train.examples), len(sets.train.labels)
    sums, teachers = np.zeros((count, labels)), np.zeros((count, 1))  # (sentences, labels), (sentences, 1)
    unlabeled = np.zeros((len(sets.unlabeled), labels))  # (sentences, labels)
    dev = None if sets.dev is None else np.zeros((len(sets.dev.examples), labels))  # (sentences, labels)
    each = []
    citances = sets.train.citances
    for number in range(options.teachers):
        fold = _held_out_rows(count, number, options)  # (sentences predicted,)
        network = _train_teacher(sets, fold, number, options, device, reporter)
        sums[fold] += _predict(network, [citances[row] for row in fold.tolist()], sets.train.task)
        teachers[fold] += 1
        if sets.unlabeled:
            unlabeled += _predict(network, sets.unlabeled, sets.train.task, reporter)
        if sets.dev is not None and dev is not None:
            own = _predict(network, sets.dev.citances, sets.train.task)
            dev += own
            each.append(_dev_f1(own, sets.dev))
            reporter.say(f"teacher {number + 1} of {options.teachers}: macro-F1 {each[-1]} on dev")
    metadata: dict[str, Any] = {"teachers": options.teachers, "teacher_dev_macro_f1": each}
    if sets.dev is not None and dev is not None:
        metadata["teachers_together_dev_macro_f1"] = _dev_f1(dev, sets.dev)
    return TeacherPredictions(
        (sums / np.maximum(teachers, 1)).astype(np.float32), (unlabeled / options.teachers).astype(np.float32), metadata
    )


def _held_out_rows(count: int, number: int, options: ClassifierOptions) -> NDArray[np.int64]:
    """Return the labeled sentences that a teacher predicts: its held-out fold, or all where there are no folds."""
    folds = min(options.teachers, _FOLDS)
    if not options.folds or folds < 2:
        return np.arange(count)
    order = stream(options.seed, "folds", number // folds).permutation(count)  # (sentences,)
    return np.sort(order[number % folds :: folds])


def _train_teacher(
    sets: TrainingSets,
    fold: NDArray[np.int64],
    number: int,
    options: ClassifierOptions,
    device: str,
    reporter: Reporter,
) -> IntentNetwork:
    """Train all parameters of one teacher network on the labeled sentences outside its fold."""
    own = replace(
        options,
        base=options.teacher_base or options.base,
        parts="all",
        epochs=options.teacher_epochs,
        learning_rate=options.teacher_rate,
        teachers=0,
        seed=int(stream(options.seed, "teacher", number).integers(1 << 31)),
    )
    seen = np.ones(len(sets.train.examples), bool)
    if len(fold) < len(seen):
        seen[fold] = False
    examples = tuple(sets.train.examples[row] for row in np.flatnonzero(seen).tolist())
    train = replace(sets.train, examples=examples)
    network = build_network(load_base(own.base, own.max_tokens, device), own, sets.tasks())
    main = tokenize_labeled(train, network.base.reader, own)
    fit_network(network, [main, *tokenize_auxiliary_sets(sets, network.base.reader, own)], own, reporter=reporter)
    return network


def _predict(
    network: IntentNetwork, citances: Sequence[Citance], task: str, reporter: Reporter = QUIET
) -> NDArray[np.float32]:
    return softmax(predict_logits(network, citances, task, reporter=reporter))


def _dev_f1(probabilities: NDArray[Any], dev: LabeledSet) -> float:
    return float(measure_predictions(probabilities.argmax(axis=1), dev.targets, dev.labels)["macro_f1"])
