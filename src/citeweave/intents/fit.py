"""How good predicted labels are: accuracy, precision, recall and F1 of every label, macro-F1, confusion.

>>> judge(np.array([0, 0, 1]), np.array([0, 1, 1]), ("a", "b"))["macro_f1"]
66.67

The training loop of a classifier's network: batches of several tasks, one step each.

    fit(network, [labeled, unlabeled, section], options, after_epoch=judge)

The loss of a labeled sentence is (1 - a) * cross-entropy + a * divergence from the teachers where there are any (Hinton
et al. 2015), of an unlabeled one the divergence alone, of an auxiliary one its cross-entropy times its weight. Batches
are of one task and of sentences alike in length; which sentence shows its section or its span is drawn anew each epoch.

Teachers: fully trained networks whose mean probabilities a small classifier imitates.

    lessons = teach(sets, options, "cuda")
    lessons.labeled       (labeled sentences, labels)      by default from teachers that did not see the sentence
    lessons.unlabeled     (unlabeled sentences, labels)    the mean of all teachers

A teacher that has seen a sentence repeats its label; one that has not shows where the label is doubtful. Teachers live
in memory one at a time and are not saved.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.intents.citances import Citance, MarkedPieces, MarkedTokens, MarkReader
from citeweave.intents.classifier import softmax
from citeweave.intents.examples import LabeledSet
from citeweave.intents.network import IntentNetwork, load_base, make_network, predict_logits
from citeweave.intents.options import ClassifierOptions
from citeweave.training.trainer import factor, warmup_steps


def judge(predicted: NDArray[np.int64], labels: NDArray[np.int64], names: Sequence[str]) -> dict[str, Any]:
    """Measures in percent; `confusion` has a row for every true label and a column for every predicted one."""
    count = len(names)
    confusion = np.bincount(labels * count + predicted, minlength=count * count).reshape(count, count)
    hits = np.diag(confusion)  # (labels,)
    precision = hits / np.maximum(confusion.sum(axis=0), 1)  # (labels,)
    recall = hits / np.maximum(confusion.sum(axis=1), 1)  # (labels,)
    f1 = 2 * hits / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1), 1)  # (labels,)
    return {
        "sentences": len(labels),
        "macro_f1": _measure_percent(f1.mean()),
        "accuracy": _measure_percent(hits.sum() / max(1, len(labels))),
        "labels": {
            name: {
                "precision": _measure_percent(precision[row]),
                "recall": _measure_percent(recall[row]),
                "f1": _measure_percent(f1[row]),
                "sentences": int(confusion[row].sum()),
            }
            for row, name in enumerate(names)
        },
        "confusion": confusion.tolist(),
    }


def _measure_percent(value: float) -> float:
    return round(100 * float(value), 2)


# The training loop of a classifier's network: batches of several tasks, one step each.

_CLIP = 1.0
_CHUNK = 50
"""Batches among which sentences are sorted by length."""


@dataclass(frozen=True, slots=True)
class TokenizedSentences:
    """Sentences of one task, read by a tokenizer."""

    task: str
    shown: list[MarkedPieces]
    spanless: list[MarkedPieces]
    """The same without their spans; the same list where they have none."""

    labels: NDArray[np.int64] | None = None
    soft: NDArray[np.float32] | None = None
    """Probabilities that the teachers gave, (sentences, labels)."""

    weights: NDArray[np.float32] | None = None
    class_weights: NDArray[np.float32] | None = None
    weight: float = 1.0
    hides_section: bool = False
    an_epoch: int = 0
    """Sentences of an epoch; 0 = all."""


@dataclass(frozen=True, slots=True)
class _Batch:
    material: TokenizedSentences
    rows: NDArray[np.int64]
    tokens: list[MarkedTokens]


def labeled_material(
    found: LabeledSet, reader: MarkReader, options: ClassifierOptions, soft: NDArray[np.float32] | None = None
) -> TokenizedSentences:
    """The main task's sentences."""
    citances = [example.citance for example in found.examples]
    labels = np.array([example.label for example in found.examples], np.int64)  # (sentences,)
    weights = class_weights = None
    if options.confidence_weights:
        weights = np.array([example.confidence for example in found.examples], np.float32)  # (sentences,)
    if options.balanced:
        counts = np.bincount(labels, minlength=len(found.labels))  # (labels,)
        class_weights = (len(labels) / np.maximum(counts, 1) / len(found.labels)).astype(np.float32)
    shown, spanless = _read_both(citances, reader)
    return TokenizedSentences(found.task, shown, spanless, labels, soft, weights, class_weights)


def unlabeled_material(
    task: str, citances: Sequence[Citance], reader: MarkReader, soft: NDArray[np.float32], an_epoch: int
) -> TokenizedSentences:
    """Sentences of which only the teachers have spoken."""
    shown, spanless = _read_both(citances, reader)
    return TokenizedSentences(task, shown, spanless, soft=soft, an_epoch=an_epoch)


def auxiliary_material(found: LabeledSet, reader: MarkReader, weight: float, an_epoch: int) -> TokenizedSentences:
    """Sentences of another task: their section is hidden where it is asked for, their citations where these are."""
    citances = [example.citance for example in found.examples]
    labels = np.array([example.label for example in found.examples], np.int64)  # (sentences,)
    pieces = reader.pieces(citances, remove=found.task == "worthiness")
    hides = found.task in ("section", "worthiness")
    return TokenizedSentences(found.task, pieces, pieces, labels, weight=weight, hides_section=hides, an_epoch=an_epoch)


def _read_both(citances: Sequence[Citance], reader: MarkReader) -> tuple[list[MarkedPieces], list[MarkedPieces]]:
    shown = reader.pieces(citances)
    if all(citance.span is None for citance in citances):
        return shown, shown
    return shown, reader.pieces([Citance(citance.text, None, citance.section) for citance in citances])


def fit(
    network: IntentNetwork,
    materials: Sequence[TokenizedSentences],
    options: ClassifierOptions,
    *,
    after_epoch: Callable[[int, float], None] | None = None,
    reporter: Reporter = QUIET,
) -> None:
    """Train the network; `after_epoch` is called with the epoch, from 1, and its mean loss."""
    per_epoch = sum(math.ceil(_sentences(material) / options.batch) for material in materials)
    steps = max(1, round(options.epochs * per_epoch))
    warmup = warmup_steps(options.warmup, steps)
    optimizer = torch.optim.AdamW(_groups(network, options), lr=options.rate)
    rates = [group["lr"] for group in optimizer.param_groups]
    losses: list[Tensor] = []
    devices = [torch.cuda.current_device()] if network.device_kind == "cuda" else []
    with torch.random.fork_rng(devices=devices), reporter.task("training", steps, "steps") as advance:
        torch.manual_seed(int(stream(options.seed, "dropout").integers(1 << 62)))
        for step, (epoch, is_last, batch) in zip(range(steps), _batches(network, materials, options), strict=False):
            network.train()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor("linear", step, steps, warmup=warmup)
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
    with torch.autocast(network.device_kind, torch.bfloat16, enabled=network.device_kind == "cuda"):
        loss = batch_loss(network, batch.material, batch.rows, batch.tokens, options)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_([value for _, value in network.trained()], _CLIP)
    optimizer.step()
    return loss.detach()


def batch_loss(
    network: IntentNetwork,
    material: TokenizedSentences,
    rows: NDArray[np.int64],
    tokens: list[MarkedTokens],
    options: ClassifierOptions,
) -> Tensor:
    """The loss of some sentences of one task, a single number."""
    logits = network.logits(tokens, material.task)  # (texts, labels)
    loss = _loss(logits, material, rows, options)
    if options.agreement:
        again = network.logits(tokens, material.task)  # (texts, labels), another dropout
        loss = (loss + _loss(again, material, rows, options)) / 2
        first, second = functional.log_softmax(logits, dim=1), functional.log_softmax(again, dim=1)
        both = functional.kl_div(first, second, reduction="batchmean", log_target=True) + functional.kl_div(
            second, first, reduction="batchmean", log_target=True
        )
        loss = loss + options.agreement * both / 2
    return material.weight * loss


def _loss(logits: Tensor, material: TokenizedSentences, rows: NDArray[np.int64], options: ClassifierOptions) -> Tensor:
    device = logits.device
    total = logits.new_zeros(())
    share = options.imitation if material.soft is not None else 0.0
    if material.labels is not None and share < 1:
        weight = None if material.class_weights is None else torch.from_numpy(material.class_weights).to(device)
        labels = torch.from_numpy(material.labels[rows]).to(device)  # (texts,)
        each = functional.cross_entropy(
            logits, labels, weight=weight, label_smoothing=options.smoothing, reduction="none"
        )  # (texts,)
        if material.weights is not None:
            each = each * torch.from_numpy(material.weights[rows]).to(device)
        total = total + (1 - share) * each.mean()
    if material.soft is not None:
        soft = torch.from_numpy(material.soft[rows]).to(device)  # (texts, labels)
        total = total + share * divergence(logits, soft, options.temperature)
    return total


def divergence(logits: Tensor, soft: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher || student), both at temperature T (Hinton et al. 2015, section 2)."""
    teacher = functional.log_softmax(soft.clamp_min(1e-6).log() / temperature, dim=1)  # (texts, labels)
    student = functional.log_softmax(logits / temperature, dim=1)  # (texts, labels)
    return temperature**2 * functional.kl_div(student, teacher, reduction="batchmean", log_target=True)


def _groups(network: IntentNetwork, options: ClassifierOptions) -> list[dict[str, object]]:
    """Matrices decay, biases and norms do not; the head has a rate of its own."""
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


def _sentences(material: TokenizedSentences) -> int:
    return min(material.an_epoch or len(material.shown), len(material.shown))


def _batches(
    network: IntentNetwork, materials: Sequence[TokenizedSentences], options: ClassifierOptions
) -> Iterator[tuple[int, bool, _Batch]]:
    """Epoch, whether it is the epoch's last, and the batch; without end."""
    epoch = 0
    while True:
        epoch += 1
        plan = [
            batch
            for number, material in enumerate(materials)
            for batch in _of_material(network, material, number, epoch, options)
        ]
        if not plan:
            return
        order = stream(options.seed, "order", epoch).permutation(len(plan)).tolist()
        for position, at in enumerate(order):
            yield epoch, position + 1 == len(order), plan[at]


def _of_material(
    network: IntentNetwork, material: TokenizedSentences, number: int, epoch: int, options: ClassifierOptions
) -> Iterator[_Batch]:
    random = stream(options.seed, "epoch", epoch, number)
    rows = random.permutation(len(material.shown))[: _sentences(material)]  # (sentences,)
    hides = (random.random(len(rows)) < options.section_dropout) | material.hides_section  # (sentences,)
    spanless = random.random(len(rows)) < options.span_dropout  # (sentences,)
    reader = network.base.reader
    tokens = [
        reader.put_together((material.spanless if alone else material.shown)[row], hide_section=hidden)
        for row, hidden, alone in zip(rows.tolist(), hides.tolist(), spanless.tolist(), strict=True)
    ]
    chunk = options.batch * _CHUNK
    for start in range(0, len(rows), chunk):
        lengths = np.array([len(found.ids) for found in tokens[start : start + chunk]], np.int64)
        order = start + np.argsort(lengths, kind="stable")
        for first in range(0, len(order), options.batch):
            own = order[first : first + options.batch]
            own = own[lengths[own - start] > 0]
            if len(own):
                yield _Batch(material, rows[own], [tokens[at] for at in own.tolist()])


# Teachers: fully trained networks whose mean probabilities a small classifier imitates.

_FOLDS = 5


@dataclass(frozen=True, slots=True)
class TrainingSets:
    """All that a classifier is trained and judged on."""

    train: LabeledSet
    dev: LabeledSet | None = None
    """Sentences for calibration and for the figures of the card; None = a tenth of the labeled ones, not trained on."""

    auxiliary: tuple[LabeledSet, ...] = ()
    unlabeled: tuple[Citance, ...] = ()

    def tasks(self) -> dict[str, int]:
        """Task -> number of labels, the main one first."""
        return {found.task: len(found.labels) for found in (self.train, *self.auxiliary)}


@dataclass(frozen=True, slots=True)
class Lessons:
    """What the teachers said."""

    labeled: NDArray[np.float32]
    unlabeled: NDArray[np.float32]
    facts: dict[str, Any] = field(default_factory=dict)


def auxiliary_materials(
    sets: TrainingSets, network: IntentNetwork, options: ClassifierOptions
) -> list[TokenizedSentences]:
    """The auxiliary tasks as a network reads them."""
    an_epoch = max(1, round(options.auxiliary_share * len(sets.train.examples)))
    return [
        auxiliary_material(found, network.base.reader, options.auxiliary_weight, an_epoch)
        for found in sets.auxiliary
        if found.examples
    ]


def teach(sets: TrainingSets, options: ClassifierOptions, device: str, *, reporter: Reporter = QUIET) -> Lessons:
    """Train the teachers one after the other and let them speak."""
    count, labels = len(sets.train.examples), len(sets.train.labels)
    spoken, times = np.zeros((count, labels)), np.zeros((count, 1))  # (sentences, labels), (sentences, 1)
    unlabeled = np.zeros((len(sets.unlabeled), labels))  # (sentences, labels)
    dev = None if sets.dev is None else np.zeros((len(sets.dev.examples), labels))  # (sentences, labels)
    each = []
    citances = [example.citance for example in sets.train.examples]
    for number in range(options.teachers):
        out = _left_out(count, number, options)  # (sentences spoken of,)
        network = _teacher(sets, out, number, options, device, reporter)
        spoken[out] += _say(network, [citances[row] for row in out.tolist()], sets.train.task)
        times[out] += 1
        if sets.unlabeled:
            unlabeled += _say(network, sets.unlabeled, sets.train.task, reporter)
        if sets.dev is not None and dev is not None:
            own = _say(network, [example.citance for example in sets.dev.examples], sets.train.task)
            dev += own
            each.append(_dev_f1(own, sets.dev))
            reporter.say(f"teacher {number + 1} of {options.teachers}: macro-F1 {each[-1]} on dev")
    facts: dict[str, Any] = {"teachers": options.teachers, "teacher_dev_macro_f1": each}
    if sets.dev is not None and dev is not None:
        facts["teachers_together_dev_macro_f1"] = _dev_f1(dev, sets.dev)
    return Lessons(
        (spoken / np.maximum(times, 1)).astype(np.float32), (unlabeled / options.teachers).astype(np.float32), facts
    )


def _left_out(count: int, number: int, options: ClassifierOptions) -> NDArray[np.int64]:
    """Rows that this teacher speaks of: those it does not see, or all where there are no folds."""
    folds = min(options.teachers, _FOLDS)
    if not options.folds or folds < 2:
        return np.arange(count)
    order = stream(options.seed, "folds", number // folds).permutation(count)  # (sentences,)
    return np.sort(order[number % folds :: folds])


def _teacher(
    sets: TrainingSets,
    out: NDArray[np.int64],
    number: int,
    options: ClassifierOptions,
    device: str,
    reporter: Reporter,
) -> IntentNetwork:
    own = dataclasses.replace(
        options,
        base=options.teacher_base or options.base,
        parts="all",
        epochs=options.teacher_epochs,
        learning_rate=options.teacher_rate,
        teachers=0,
        seed=int(stream(options.seed, "teacher", number).integers(1 << 31)),
    )
    seen = np.ones(len(sets.train.examples), bool)
    if len(out) < len(seen):
        seen[out] = False
    examples = tuple(sets.train.examples[row] for row in np.flatnonzero(seen).tolist())
    train = dataclasses.replace(sets.train, examples=examples)
    network = make_network(load_base(own.base, own.max_tokens, device), own, sets.tasks())
    main = labeled_material(train, network.base.reader, own)
    fit(network, [main, *auxiliary_materials(sets, network, own)], own, reporter=reporter)
    return network


def _say(
    network: IntentNetwork, citances: Sequence[Citance], task: str, reporter: Reporter = QUIET
) -> NDArray[np.float32]:
    return softmax(predict_logits(network, citances, task, reporter=reporter))


def _dev_f1(probabilities: NDArray[Any], dev: LabeledSet) -> float:
    labels = np.array([example.label for example in dev.examples], np.int64)
    return float(judge(probabilities.argmax(axis=1), labels, dev.labels)["macro_f1"])
