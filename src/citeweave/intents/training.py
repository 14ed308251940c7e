"""Train an intent classifier, calibrate it and save it.

    sets = TrainingSets(read_labelled([path], split="train"), read_labelled([path], split="dev"))
    trained = train_classifier(sets, "classifier/", ClassifierOptions(teachers=5), reporter=Reporter())
    trained.report["dev"]["macro_f1"]

Where the command line of citeweave cannot be installed, numpy, torch, transformers and safetensors are enough:

    python -m citeweave.intents.command contexts.jsonl.gz -o classifier/ --teachers 5 --unlabelled more.jsonl.gz

The figures of the card are of the weights as they are saved. Does not look at a test split.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from citeweave.artefacts.writing import matches, new_artefact
from citeweave.errors import UserError, choose
from citeweave.files import hash_json, write_json
from citeweave.intents.calibration import (
    cross_fitted,
    expected_calibration_error,
    fit_temperature,
    fit_thresholds,
    softmax,
)
from citeweave.intents.card import card_text
from citeweave.intents.classifier import CONFIG, DELTA, KIND, VERSION, ClassifierConfig, IntentClassifier
from citeweave.intents.delta_file import PRECISIONS, load_delta, save_delta
from citeweave.intents.fitting import fit, labelled_material, unlabelled_material
from citeweave.intents.labelled import IN_DEV, LabelledSet, without
from citeweave.intents.measures import judge
from citeweave.intents.network import IntentNetwork, load_base, make_network
from citeweave.intents.options import ClassifierOptions
from citeweave.intents.predicting import predict_logits
from citeweave.intents.teaching import Lessons, TrainingSets, auxiliary_materials, teach
from citeweave.progress import QUIET, Reporter
from citeweave.randomness import stream

_HELD_BACK = 0.1
_SCAFFOLDS = ("section", "worthiness")
"""Tasks that only help training; their heads are not saved."""


@dataclass(frozen=True, slots=True)
class About:
    """What the card says beyond what the run knows."""

    data: str = ""
    """Where the labelled sentences come from, and their licence."""

    command: str = ""
    precision: str = "float16"
    """How the changes are saved: float16, or int8 at half the size."""


@dataclass(frozen=True, slots=True)
class TrainedClassifier:
    """A finished classifier and its figures."""

    folder: Path
    report: dict[str, Any]

    def open(self) -> IntentClassifier:
        return IntentClassifier.open(self.folder)


def train_classifier(
    sets: TrainingSets,
    folder: str | Path,
    options: ClassifierOptions | None = None,
    *,
    about: About | None = None,
    device: str = "auto",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> TrainedClassifier:
    """Train on the sets and write the folder; one that was made of the same is left as it is."""
    options, about, folder = options or ClassifierOptions(), about or About(), Path(folder)
    choose(about.precision, PRECISIONS, "--precision")
    check_sets(sets, options.teachers)
    base = load_base(options.base, options.max_tokens, device)
    recipe = {
        "base": base.revision,
        "options": _shown(options, base.name),
        "precision": about.precision,
        "sets": _content(sets),
    }
    if matches(folder, KIND, VERSION, recipe):
        reporter.say(f"{folder} is there already: same sentences, encoder and options")
        return TrainedClassifier(folder, IntentClassifier.open(folder).facts)
    sets = hold_back(sets, options.seed) if sets.dev is None else sets
    sets = _apart(sets, reporter)
    with new_artefact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        lessons = teach(sets, options, device, reporter=reporter) if options.teachers else None
        network = make_network(base, options, sets.tasks())
        history = _fit(network, sets, lessons, options, reporter)
        saved = _saved_delta(network, sets.train.task, writer.folder / DELTA, about.precision)
        network.apply_delta({**network.delta(), **saved})
        config, figures = _calibrated(network, sets, options, about.precision)
        write_json(writer.folder / CONFIG, config.as_json())
        report = {
            **figures,
            "epochs": history,
            **(lessons.facts if lessons else {}),
            "data": {found.task: found.counts() for found in (sets.train, *sets.auxiliary)},
            "unlabelled": len(sets.unlabelled) if lessons else 0,
            "bytes": (writer.folder / DELTA).stat().st_size,
            "options": _shown(options, base.name),
            "about": dataclasses.asdict(about),
        }
        (writer.folder / "README.md").write_text(card_text(config, report), encoding="utf-8")
        writer.facts = report
        writer.finish()
    return TrainedClassifier(folder, report)


def check_sets(sets: TrainingSets, teachers: int) -> None:
    """Refuse sets from which nothing can be learned."""
    counts = sets.train.counts()["labels"]
    if sum(count > 0 for count in counts.values()) < 2:
        only = next((name for name, count in counts.items() if count), "none")
        raise UserError(
            f"all {len(sets.train.examples):,} labelled sentences are {only!r}; training needs two labels at least"
        )
    if sets.dev is not None and sets.dev.labels != sets.train.labels:
        raise UserError(
            f"the dev sentences have the labels {', '.join(sets.dev.labels)}, the training ones "
            f"{', '.join(sets.train.labels)}; they must be the same"
        )
    if sets.unlabelled and not teachers:
        raise UserError(
            f"{len(sets.unlabelled):,} unlabelled sentences are given and no teachers to label them; add --teachers 5"
        )
    names = [found.task for found in (sets.train, *sets.auxiliary)]
    if len(set(names)) < len(names):
        raise UserError(f"two of the tasks {', '.join(names)} have one name; give each auxiliary task once")


def hold_back(sets: TrainingSets, seed: int) -> TrainingSets:
    """A tenth of the labelled sentences, of each label as much, become the dev sentences."""
    labels = np.array([example.label for example in sets.train.examples], np.int64)  # (sentences,)
    order = stream(seed, "held back").permutation(len(labels))  # (sentences,)
    back = np.zeros(len(labels), bool)
    for label in range(len(sets.train.labels)):
        own = order[labels[order] == label]
        back[own[: round(_HELD_BACK * len(own))]] = True
    if not back.any():
        raise UserError(
            f"{len(labels)} labelled sentences are too few to hold a tenth back; give dev sentences with --dev"
        )
    kept, held = (tuple(sets.train.examples[row] for row in np.flatnonzero(which).tolist()) for which in (~back, back))
    return replace(
        sets, train=replace(sets.train, examples=kept), dev=LabelledSet(sets.train.task, sets.train.labels, held)
    )


def _apart(sets: TrainingSets, reporter: Reporter) -> TrainingSets:
    """The sets without training sentences that are dev sentences too: their figures would be too good."""
    assert sets.dev is not None
    train = without(sets.train, sets.dev)
    if train is not sets.train:
        reporter.say(f"{train.rejected[IN_DEV]:,} training sentences are dev sentences too, and are left out")
    return replace(sets, train=train)


def _fit(
    network: IntentNetwork, sets: TrainingSets, lessons: Lessons | None, options: ClassifierOptions, reporter: Reporter
) -> list[dict[str, float]]:
    """Train the network, take the weights that are kept; loss and dev figures of every epoch."""
    assert sets.dev is not None
    reader, dev = network.base.reader, sets.dev
    materials = [labelled_material(sets.train, reader, options, None if lessons is None else lessons.labelled)]
    if lessons is not None and sets.unlabelled:
        an_epoch = max(1, round(options.unlabelled_share * len(sets.train.examples)))
        materials.append(unlabelled_material(sets.train.task, sets.unlabelled, reader, lessons.unlabelled, an_epoch))
    materials += auxiliary_materials(sets, network, options)
    history: list[dict[str, float]] = []
    best: dict[str, torch.Tensor] = {}

    def after_epoch(epoch: int, loss: float) -> None:
        found = judge(_dev_logits(network, dev).argmax(axis=1), labels_of(dev), dev.labels)
        reporter.say(f"epoch {epoch}: loss {loss:.4f}, macro-F1 {found['macro_f1']} on dev")
        if options.keep == "best" and found["macro_f1"] > max((row["macro_f1"] for row in history), default=-1.0):
            best.update(network.delta())
        history.append({"loss": round(loss, 4), "macro_f1": found["macro_f1"], "accuracy": found["accuracy"]})

    fit(network, materials, options, after_epoch=after_epoch, reporter=reporter)
    if best:
        network.apply_delta(best)
    return history


def _saved_delta(network: IntentNetwork, main: str, path: Path, precision: str) -> dict[str, torch.Tensor]:
    """Write the changes without the heads of scaffolds, and read them again as they will be read."""
    scaffolds = tuple(f"head.{task}." for task in network.shape.tasks if task in _SCAFFOLDS and task != main)
    kept = {name: value for name, value in network.delta().items() if not name.startswith(scaffolds)}
    save_delta(path, kept, precision)
    return load_delta(path)


def _calibrated(
    network: IntentNetwork, sets: TrainingSets, options: ClassifierOptions, precision: str
) -> tuple[ClassifierConfig, dict[str, Any]]:
    assert sets.dev is not None
    dev, labels = sets.dev, labels_of(sets.dev)
    logits = _dev_logits(network, dev)  # (sentences, labels)
    bare = predict_logits(
        network, [replace(example.citance, section="") for example in dev.examples], dev.task
    )  # (sentences, labels)
    temperature = fit_temperature(logits, labels)
    thresholds = fit_thresholds(softmax(logits, temperature), labels)
    kept = [found for found in (sets.train, *sets.auxiliary) if found is sets.train or found.task not in _SCAFFOLDS]
    shape = network.shape
    config = ClassifierConfig(
        task=sets.train.task,
        labels={found.task: found.labels for found in kept},
        base=network.base.name,
        base_revision=network.base.revision,
        parts=shape.parts,
        pooling=shape.pooling,
        rank=shape.rank,
        scale=shape.scale,
        biases=shape.biases,
        max_tokens=network.base.reader.max_tokens,
        precision=precision,
        temperature=round(temperature, 4),
        thresholds=thresholds,
    )
    figures = {
        "dev": judge(logits.argmax(axis=1), labels, dev.labels),
        "dev_without_sections": judge(bare.argmax(axis=1), labels, dev.labels),
        "calibration": {
            "temperature": round(temperature, 4),
            "error_before": round(expected_calibration_error(softmax(logits), labels), 4),
            "error_after": round(expected_calibration_error(cross_fitted(logits, labels), labels), 4),
        },
    }
    return config, figures


def labels_of(found: LabelledSet) -> NDArray[np.int64]:
    """The rows of the labels, (sentences,)."""
    return np.array([example.label for example in found.examples], np.int64)


def _dev_logits(network: IntentNetwork, dev: LabelledSet) -> NDArray[np.float32]:
    return predict_logits(network, [example.citance for example in dev.examples], dev.task)


def _shown(options: ClassifierOptions, base: str) -> dict[str, Any]:
    """The options, encoders by their names: where they lie on this machine is nobody's business."""
    teacher = options.teacher_base and Path(options.teacher_base).name
    return {**dataclasses.asdict(options), "base": Path(base).name, "teacher_base": teacher}


def _content(sets: TrainingSets) -> dict[str, Any]:
    """Hashes of the sentences, so that other data make another classifier."""

    def examples(found: LabelledSet | None) -> str:
        rows = [] if found is None else [(dataclasses.astuple(row.citance), row.label) for row in found.examples]
        return hash_json(rows)

    return {
        "train": examples(sets.train),
        "dev": examples(sets.dev),
        "unlabelled": hash_json([dataclasses.astuple(row) for row in sets.unlabelled]),
        **{f"auxiliary {found.task}": examples(found) for found in sets.auxiliary},
    }
