"""What a classifier is worth on labeled sentences: with their sections, without them, and how far it can be trusted.

    report = evaluate_classifier(default_classifier(), read_labeled([path], split="dev"))
    report["macro_f1"], report["without_sections"]["macro_f1"], report["calibration"]["error"], report["decided"]["share"]

Measures are in percent, calibration errors are shares. Does not choose anything on the sentences it is given.

Train an intent classifier, calibrate it and save it.

    sets = TrainingSets(read_labeled([path], split="train"), read_labeled([path], split="dev"))
    trained = train_classifier(sets, "classifier/", ClassifierOptions(teachers=5), reporter=Reporter())
    trained.report["dev"]["macro_f1"]

Where the command line of citeweave cannot be installed, numpy, torch, transformers and safetensors are enough:

    python -m citeweave.intents.train contexts.jsonl.gz -o classifier/ --teachers 5 --unlabeled more.jsonl.gz

The figures of the card are of the weights as they are saved. Does not look at a test split.

Training from files, for `citeweave intents train` and for machines that have no command line of citeweave.

    python -m citeweave.intents.train contexts.jsonl.gz -o classifier/ --rank 16 --teachers 5 --auxiliary section=FILE

Prints one JSON object with the figures on the dev sentences.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from citeweave.core.artifact import matches, new_artifact
from citeweave.core.errors import CiteweaveError, UserError, choose
from citeweave.core.files import hash_json, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.intents.classifier import (
    CONFIG,
    DELTA,
    KIND,
    VERSION,
    ClassifierConfig,
    IntentClassifier,
    card_text,
    cross_fitted,
    expected_calibration_error,
    fit_temperature,
    fit_thresholds,
    intent_bits,
    negative_log_likelihood,
    softmax,
)
from citeweave.intents.examples import (
    IN_DEV,
    LABEL_SETS,
    LabeledSet,
    read_citances,
    read_labeled,
    section_examples,
    without,
)
from citeweave.intents.fit import (
    Lessons,
    TrainingSets,
    auxiliary_materials,
    fit,
    judge,
    labeled_material,
    teach,
    unlabeled_material,
)
from citeweave.intents.network import (
    PRECISIONS,
    IntentNetwork,
    load_base,
    load_delta,
    make_network,
    predict_logits,
    save_delta,
)
from citeweave.intents.options import ClassifierOptions

if TYPE_CHECKING:
    from citeweave.intents.classifier import IntentClassifier


def evaluate_classifier(
    classifier: IntentClassifier, found: LabeledSet, *, reporter: Reporter = QUIET
) -> dict[str, Any]:
    """A report that can be written as JSON."""
    known = classifier.config.labels.get(found.task) or classifier.labels
    if known != found.labels:
        raise UserError(
            f"classifier {classifier.name} knows {', '.join(known)}, and the sentences are labeled with "
            f"{', '.join(found.labels)}; give the label set that it was trained on, or --as-three for ACL-ARC's six"
        )
    task = found.task if found.task in classifier.tasks else classifier.config.task
    labels = np.array([example.label for example in found.examples], np.int64)  # (sentences,)
    citances = [example.citance for example in found.examples]
    logits = classifier.logits(citances, task=task, reporter=reporter)  # (sentences, labels)
    temperature = classifier.config.temperature if task == classifier.config.task else 1.0
    probabilities = softmax(logits, temperature)  # (sentences, labels)
    report = {
        "classifier": classifier.name,
        "hash": classifier.hash,
        "task": task,
        **judge(logits.argmax(axis=1), labels, found.labels),
        "records": found.counts(),
        "calibration": {
            "error": round(expected_calibration_error(probabilities, labels), 4),
            "error_before": round(expected_calibration_error(softmax(logits), labels), 4),
            "log_loss": round(negative_log_likelihood(logits, labels, temperature), 4),
            "temperature": temperature,
        },
    }
    if any(citance.section for citance in citances):
        bare = [replace(citance, section="") for citance in citances]
        hidden = classifier.logits(bare, task=task, reporter=reporter)  # (sentences, labels)
        report["without_sections"] = judge(hidden.argmax(axis=1), labels, found.labels)
    if task == classifier.config.task:
        report["decided"] = _decided(classifier, probabilities, labels)
    return report


def _decided(classifier: IntentClassifier, probabilities: Any, labels: Any) -> dict[str, float]:
    """What `decide` makes of the probabilities at the classifier's own thresholds, in percent."""
    bits = classifier.decide(probabilities)  # (sentences,)
    true = intent_bits(classifier.labels)[labels]  # (sentences,)
    some = bits > 0
    several = some & ((bits & (bits - 1)) > 0)  # more than one bit
    return {
        "share": _percent(some.mean()),
        "with_the_true_intent": _percent(((bits & true) > 0)[some].mean() if some.any() else 0.0),
        "with_several_intents": _percent(several.mean()),
    }


def _percent(value: float) -> float:
    return round(100 * float(value), 2)


# Train an intent classifier, calibrate it and save it.

_HELD_BACK = 0.1
_SCAFFOLDS = ("section", "worthiness")
"""Tasks that only help training; their heads are not saved."""


@dataclass(frozen=True, slots=True)
class ClassifierCardNotes:
    """What the card says beyond what the run knows."""

    data: str = ""
    """Where the labeled sentences come from, and their license."""

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
    about: ClassifierCardNotes | None = None,
    device: str = "auto",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> TrainedClassifier:
    """Train on the sets and write the folder; one that was made of the same is left as it is."""
    options, about, folder = options or ClassifierOptions(), about or ClassifierCardNotes(), Path(folder)
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
    with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
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
            "unlabeled": len(sets.unlabeled) if lessons else 0,
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
            f"all {len(sets.train.examples):,} labeled sentences are {only!r}; training needs two labels at least"
        )
    if sets.dev is not None and sets.dev.labels != sets.train.labels:
        raise UserError(
            f"the dev sentences have the labels {', '.join(sets.dev.labels)}, the training ones "
            f"{', '.join(sets.train.labels)}; they must be the same"
        )
    if sets.unlabeled and not teachers:
        raise UserError(
            f"{len(sets.unlabeled):,} unlabeled sentences are given and no teachers to label them; add --teachers 5"
        )
    names = [found.task for found in (sets.train, *sets.auxiliary)]
    if len(set(names)) < len(names):
        raise UserError(f"two of the tasks {', '.join(names)} have one name; give each auxiliary task once")


def hold_back(sets: TrainingSets, seed: int) -> TrainingSets:
    """A tenth of the labeled sentences, of each label as much, become the dev sentences."""
    labels = np.array([example.label for example in sets.train.examples], np.int64)  # (sentences,)
    order = stream(seed, "held back").permutation(len(labels))  # (sentences,)
    back = np.zeros(len(labels), bool)
    for label in range(len(sets.train.labels)):
        own = order[labels[order] == label]
        back[own[: round(_HELD_BACK * len(own))]] = True
    if not back.any():
        raise UserError(
            f"{len(labels)} labeled sentences are too few to hold a tenth back; give dev sentences with --dev"
        )
    kept, held = (tuple(sets.train.examples[row] for row in np.flatnonzero(which).tolist()) for which in (~back, back))
    return replace(
        sets, train=replace(sets.train, examples=kept), dev=LabeledSet(sets.train.task, sets.train.labels, held)
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
    materials = [labeled_material(sets.train, reader, options, None if lessons is None else lessons.labeled)]
    if lessons is not None and sets.unlabeled:
        an_epoch = max(1, round(options.unlabeled_share * len(sets.train.examples)))
        materials.append(unlabeled_material(sets.train.task, sets.unlabeled, reader, lessons.unlabeled, an_epoch))
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


def labels_of(found: LabeledSet) -> NDArray[np.int64]:
    """The rows of the labels, (sentences,)."""
    return np.array([example.label for example in found.examples], np.int64)


def _dev_logits(network: IntentNetwork, dev: LabeledSet) -> NDArray[np.float32]:
    return predict_logits(network, [example.citance for example in dev.examples], dev.task)


def _shown(options: ClassifierOptions, base: str) -> dict[str, Any]:
    """The options, encoders by their names: where they lie on this machine is nobody's business."""
    teacher = options.teacher_base and Path(options.teacher_base).name
    return {**dataclasses.asdict(options), "base": Path(base).name, "teacher_base": teacher}


def _content(sets: TrainingSets) -> dict[str, Any]:
    """Hashes of the sentences, so that other data make another classifier."""

    def examples(found: LabeledSet | None) -> str:
        rows = [] if found is None else [(dataclasses.astuple(row.citance), row.label) for row in found.examples]
        return hash_json(rows)

    return {
        "train": examples(sets.train),
        "dev": examples(sets.dev),
        "unlabeled": hash_json([dataclasses.astuple(row) for row in sets.unlabeled]),
        **{f"auxiliary {found.task}": examples(found) for found in sets.auxiliary},
    }


# Training from files, for `citeweave intents train` and for machines that have no command line of citeweave.

AUXILIARY = ("acl_arc", "scicite", "section", "worthiness")


@dataclass(frozen=True, slots=True)
class SetFiles:
    """Which files and splits the sentences come from."""

    files: Sequence[Path]
    task: str = "scicite"
    split: str = "train"
    dev: str = "dev"
    """Split of the dev sentences, or a file of them; empty = a tenth of the training ones is held back."""

    auxiliary: Mapping[str, Path] = field(default_factory=dict)
    """Auxiliary task -> its file."""

    unlabeled: Path | None = None
    most_unlabeled: int = 0


def read_sets(asked: SetFiles) -> tuple[LabeledSet, LabeledSet | None, tuple[LabeledSet, ...]]:
    """Training, dev and auxiliary sentences; the unlabeled ones are read apart, they may come from a corpus."""
    labels = LABEL_SETS[choose(asked.task, LABEL_SETS, "--task")]
    train = read_labeled(asked.files, labels, split=asked.split, task=asked.task)
    dev = None
    if asked.dev and Path(asked.dev).is_file():
        dev = read_labeled([Path(asked.dev)], labels, task=asked.task)
    elif asked.dev:
        if asked.dev == asked.split:
            raise UserError(f"--dev and --split are both {asked.dev!r}; the dev sentences must not be trained on")
        dev = read_labeled(asked.files, labels, split=asked.dev, task=asked.task)
        if not asked.split or not dev.rejected.get("another split"):
            raise UserError(
                f"the records name no splits, so that --split {asked.split!r} and --dev {asked.dev!r} are the same "
                "sentences; give the dev sentences as a file, or --dev '' to hold a tenth back"
            )
    return train, dev, tuple(_auxiliary(task, path, asked.split) for task, path in asked.auxiliary.items())


def _auxiliary(task: str, path: Path, split: str) -> LabeledSet:
    choose(task, AUXILIARY, "the task of --auxiliary")
    if task != "section":
        return read_labeled([path], LABEL_SETS[task], split=split, task=task)
    found = section_examples(read_citances(path, split=split))
    if not found.examples:
        raise UserError(
            f"{path}: no sentence has a telling section title, such as Methods; leave --auxiliary section out"
        )
    return found


def parse_auxiliary(pairs: Sequence[str]) -> dict[str, Path]:
    """
    >>> parse_auxiliary(["section=contexts.jsonl.gz"])
    {'section': PosixPath('contexts.jsonl.gz')}
    """
    found = {}
    for pair in pairs:
        task, equals, path = pair.partition("=")
        if not (task and equals and path):
            raise UserError(f"--auxiliary is {pair!r}; it must be TASK=FILE, such as section=contexts.jsonl.gz")
        found[choose(task, AUXILIARY, "the task of --auxiliary")] = Path(path)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train an intent classifier from labeled citing sentences."""
    from citeweave.intents.fit import TrainingSets

    asked = _parser().parse_args(arguments)
    try:
        options = ClassifierOptions(
            **{row.name: getattr(asked, row.name) for row in dataclasses.fields(ClassifierOptions)}
        )
        files = SetFiles(
            asked.files, asked.task, asked.split, asked.dev, parse_auxiliary(asked.auxiliary), asked.unlabeled
        )
        train, dev, auxiliary = read_sets(files)
        unlabeled = read_citances(asked.unlabeled, most=asked.most_unlabeled) if asked.unlabeled else []
        trained = train_classifier(
            TrainingSets(train, dev, auxiliary, tuple(unlabeled)),
            asked.output,
            options,
            about=ClassifierCardNotes(
                asked.data, "python -m citeweave.intents.train " + _spelled(arguments), asked.precision
            ),
            device=asked.device,
            overwrite=asked.overwrite,
            reporter=Reporter(quiet=asked.quiet),
        )
    except CiteweaveError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(json.dumps({"output": str(trained.folder), **trained.report}) + "\n")


def _spelled(arguments: Sequence[str] | None) -> str:
    given = sys.argv[1:] if arguments is None else list(arguments)
    return " ".join(Path(word).name if "/" in word and "=" not in word else word for word in given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m citeweave.intents.train", description=main.__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines of labeled sentences")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to make")
    parser.add_argument("--task", default="scicite", help="label set: scicite (three) or acl_arc (six)")
    parser.add_argument("--split", default="train", help="split to train on")
    parser.add_argument("--dev", default="dev", help="split or file of the dev sentences; '' holds a tenth back")
    parser.add_argument("--auxiliary", action="append", default=[], metavar="TASK=FILE", help="auxiliary task")
    parser.add_argument("--unlabeled", type=Path, help="JSON lines of {text, span, section} without labels")
    parser.add_argument("--most-unlabeled", type=int, default=0, help="sentences of it to read; 0 = all")
    parser.add_argument("--precision", default="float16", help="float16 or int8")
    parser.add_argument("--data", default="", help="where the sentences come from, for the card")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing classifier")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    for row in dataclasses.fields(ClassifierOptions):
        flag, default = "--" + row.name.replace("_", "-"), row.default
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=f"default {default!r}")
    return parser


if __name__ == "__main__":
    main()
