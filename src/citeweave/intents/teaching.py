"""Teachers: fully trained networks whose mean probabilities a small classifier imitates.

    lessons = teach(sets, options, "cuda")
    lessons.labelled       (labelled sentences, labels)      by default from teachers that did not see the sentence
    lessons.unlabelled     (unlabelled sentences, labels)    the mean of all teachers

A teacher that has seen a sentence repeats its label; one that has not shows where the label is doubtful. Teachers live
in memory one at a time and are not saved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.intents.calibration import softmax
from citeweave.intents.fitting import Material, auxiliary_material, fit, labelled_material
from citeweave.intents.labelled import LabelledSet
from citeweave.intents.marking import Citance
from citeweave.intents.measures import judge
from citeweave.intents.network import IntentNetwork, load_base, make_network
from citeweave.intents.options import ClassifierOptions
from citeweave.intents.predicting import predict_logits
from citeweave.progress import QUIET, Reporter
from citeweave.randomness import stream

_FOLDS = 5


@dataclass(frozen=True, slots=True)
class TrainingSets:
    """All that a classifier is trained and judged on."""

    train: LabelledSet
    dev: LabelledSet | None = None
    """Sentences for calibration and for the figures of the card; None = a tenth of the labelled ones, not trained on."""

    auxiliary: tuple[LabelledSet, ...] = ()
    unlabelled: tuple[Citance, ...] = ()

    def tasks(self) -> dict[str, int]:
        """Task -> number of labels, the main one first."""
        return {found.task: len(found.labels) for found in (self.train, *self.auxiliary)}


@dataclass(frozen=True, slots=True)
class Lessons:
    """What the teachers said."""

    labelled: NDArray[np.float32]
    unlabelled: NDArray[np.float32]
    facts: dict[str, Any] = field(default_factory=dict)


def auxiliary_materials(sets: TrainingSets, network: IntentNetwork, options: ClassifierOptions) -> list[Material]:
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
    unlabelled = np.zeros((len(sets.unlabelled), labels))  # (sentences, labels)
    dev = None if sets.dev is None else np.zeros((len(sets.dev.examples), labels))  # (sentences, labels)
    each = []
    citances = [example.citance for example in sets.train.examples]
    for number in range(options.teachers):
        out = _left_out(count, number, options)  # (sentences spoken of,)
        network = _teacher(sets, out, number, options, device, reporter)
        spoken[out] += _say(network, [citances[row] for row in out.tolist()], sets.train.task)
        times[out] += 1
        if sets.unlabelled:
            unlabelled += _say(network, sets.unlabelled, sets.train.task, reporter)
        if sets.dev is not None and dev is not None:
            own = _say(network, [example.citance for example in sets.dev.examples], sets.train.task)
            dev += own
            each.append(_dev_f1(own, sets.dev))
            reporter.say(f"teacher {number + 1} of {options.teachers}: macro-F1 {each[-1]} on dev")
    facts: dict[str, Any] = {"teachers": options.teachers, "teacher_dev_macro_f1": each}
    if sets.dev is not None and dev is not None:
        facts["teachers_together_dev_macro_f1"] = _dev_f1(dev, sets.dev)
    return Lessons(
        (spoken / np.maximum(times, 1)).astype(np.float32), (unlabelled / options.teachers).astype(np.float32), facts
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
    main = labelled_material(train, network.base.reader, own)
    fit(network, [main, *auxiliary_materials(sets, network, own)], own, reporter=reporter)
    return network


def _say(
    network: IntentNetwork, citances: Sequence[Citance], task: str, reporter: Reporter = QUIET
) -> NDArray[np.float32]:
    return softmax(predict_logits(network, citances, task, reporter=reporter))


def _dev_f1(probabilities: NDArray[Any], dev: LabelledSet) -> float:
    labels = np.array([example.label for example in dev.examples], np.int64)
    return float(judge(probabilities.argmax(axis=1), labels, dev.labels)["macro_f1"])
