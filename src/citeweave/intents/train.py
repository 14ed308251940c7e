"""Train an intent classifier on labeled citing sentences, calibrate it, and save its folder.

    sets = TrainingSets(read_labeled([path], split="train"), read_labeled([path], split="dev"))
    trained = train_classifier(sets, "classifier/", ClassifierOptions(teachers=5), reporter=Reporter())
    trained.report["dev"]["macro_f1"]

Needs numpy, torch, transformers and safetensors, and peft for LoRA. An interrupted run resumes from its last checkpoint.
The figures of the card are those of the saved weights. Does not read a test split.

Teachers are classifiers of which all parameters are trained; their mean probabilities are distilled into the small one. By
default a labeled sentence is predicted by teachers that were not trained on it: one that was repeats its label, one that
was not shows where the label is doubtful. All teachers predict the unlabeled sentences.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import artifact_matches, new_artifact
from citeweave.core.errors import UserError, choose
from citeweave.core.files import hash_json, read_input, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.encoders.model_card import escape
from citeweave.intents.classifier import (
    CONFIG,
    KIND,
    VERSION,
    ClassifierConfig,
    IntentClassifier,
    cross_fit_probabilities,
    expected_calibration_error,
    fit_temperature,
    fit_thresholds,
    measure_predictions,
    softmax,
)
from citeweave.intents.examples import IN_DEV, LabeledSet, TrainingSets, drop_dev_sentences
from citeweave.intents.fit import TeacherPredictions, fit_network, tokenize_sets
from citeweave.intents.network import (
    BITS,
    IntentNetwork,
    TrainableIntentNetwork,
    load_base,
    load_network,
    predict_logits,
)
from citeweave.intents.options import ClassifierOptions

_HELD_OUT = 0.1
_FOLDS = 5
"""Maximum number of folds of the labeled sentences; teachers beyond it start another split."""

_SCAFFOLDS = ("section", "worthiness")
"""Tasks that only help training; their heads are not saved."""


@dataclass(frozen=True, slots=True)
class ClassifierCardNotes:
    """Notes that training puts on a classifier's card: data source, command, precision of the saved weights."""

    data: str = ""
    """Source and license of the labeled sentences."""

    command: str = ""
    precision: str = "float16"
    """Precision of the saved weights: float16, or int8 at half the size."""


@dataclass(frozen=True, slots=True)
class TrainedClassifier:
    """What training an intent classifier gives: its folder and its report."""

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
    """Train an intent classifier and write its folder; an existing one of the same sentences and options is kept."""
    options, about, folder = options or ClassifierOptions(), about or ClassifierCardNotes(), Path(folder)
    choose(about.precision, BITS, "--precision")
    _check_sets(sets, options.teachers)
    base = load_base(options.base, options.max_tokens, device)
    if options.parts == "lora" and options.rank > base.dimension:
        raise UserError(f"--rank is {options.rank}; the layers of this encoder allow 1 to {base.dimension}")
    recipe = {
        "base": base.revision,
        "options": _portable_options(options),
        "precision": about.precision,
        "sets": _hash_sets(sets),
    }
    if artifact_matches(folder, KIND, VERSION, recipe):
        reporter.say(f"{folder} already exists: same sentences, encoder and options")
        return TrainedClassifier(folder, IntentClassifier.open(folder).metadata)
    sets = _exclude_dev(hold_out_dev(sets, options.seed) if sets.dev is None else sets, reporter)
    assert sets.dev is not None
    with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        work = writer.scratch_folder("training")
        teachers = _train_teachers(sets, options, device, work, reporter) if options.teachers else None
        network = TrainableIntentNetwork(base, options, sets.tasks())
        tokenized = tokenize_sets(sets, network.reader, options, teachers)
        fit_network(network, tokenized, options, work / "classifier", dev=sets.dev, reporter=reporter)
        (writer.folder / "training").mkdir()
        shutil.copyfile(work / "classifier" / "log.jsonl", writer.folder / "training" / "log.jsonl")
        kept = _kept_tasks(sets)
        size = network.save(writer.folder, options.base, about.precision, list(kept))
        counts = {task: len(labels) for task, labels in kept.items()}
        saved = load_network(writer.folder, options.pooling, counts, device=device)
        temperature, thresholds, figures = _calibrate(saved, sets)
        config = ClassifierConfig(sets.train.task, kept, options.pooling, temperature, thresholds)
        write_json(writer.folder / CONFIG, dataclasses.asdict(config))
        report = {
            **figures,
            **(teachers.metadata if teachers else {}),
            "data": {labeled.task: labeled.counts() for labeled in (sets.train, *sets.auxiliary)},
            "unlabeled": len(sets.unlabeled) if teachers else 0,
            "bytes": size,
            "options": _portable_options(options),
            "about": dataclasses.asdict(about),
        }
        card = _write_card(config, report, base.name, base.revision)
        (writer.folder / "README.md").write_text(card, encoding="utf-8")
        writer.facts = report
        writer.finish()
    return TrainedClassifier(folder, report)


def _kept_tasks(sets: TrainingSets) -> dict[str, Any]:
    """Return the labels of the tasks that the saved classifier has heads for: not of those that only help in training."""
    rows = (sets.train, *sets.auxiliary)
    return {row.task: row.labels for row in rows if row.task not in _SCAFFOLDS or row is sets.train}


def _check_sets(sets: TrainingSets, teachers: int) -> None:
    """Refuse training sentences with fewer than two labels, other labels in dev, or unlabeled ones without teachers."""
    counts = sets.train.counts()["labels"]
    if sum(count > 0 for count in counts.values()) < 2:
        only = next((name for name, count in counts.items() if count), "none")
        raise UserError(
            f"all {len(sets.train.examples):,} labeled sentences are {only!r}; training needs at least two labels"
        )
    if sets.dev is not None and sets.dev.labels != sets.train.labels:
        raise UserError(
            f"the dev sentences have the labels {', '.join(sets.dev.labels)}, the training ones "
            f"{', '.join(sets.train.labels)}; they must be the same"
        )
    if sets.unlabeled and not teachers:
        raise UserError(f"{len(sets.unlabeled):,} unlabeled sentences need teachers to label them; add --teachers 5")
    names = [labeled.task for labeled in (sets.train, *sets.auxiliary)]
    if len(set(names)) < len(names):
        raise UserError(f"two of the tasks {', '.join(names)} have the same name; give each auxiliary task once")


def hold_out_dev(sets: TrainingSets, seed: int) -> TrainingSets:
    """Hold out a tenth of the labeled sentences of each label from training as dev sentences."""
    labels = sets.train.targets  # (sentences,)
    order = stream(seed, "held back").permutation(len(labels))  # (sentences,)
    is_dev = np.zeros(len(labels), bool)
    for label in range(len(sets.train.labels)):
        own = order[labels[order] == label]
        is_dev[own[: round(_HELD_OUT * len(own))]] = True
    if not is_dev.any():
        raise UserError(
            f"{len(labels)} labeled sentences are too few to hold out a tenth; give dev sentences with --dev"
        )
    train, dev = (
        tuple(sets.train.examples[row] for row in np.flatnonzero(chosen).tolist()) for chosen in (~is_dev, is_dev)
    )
    return replace(
        sets, train=replace(sets.train, examples=train), dev=LabeledSet(sets.train.task, sets.train.labels, dev)
    )


def _exclude_dev(sets: TrainingSets, reporter: Reporter) -> TrainingSets:
    """Drop training sentences that are dev sentences too, which would inflate the figures."""
    assert sets.dev is not None
    train = drop_dev_sentences(sets.train, sets.dev)
    if not train.examples:
        raise UserError(
            f"all {len(sets.train.examples):,} training sentences are also dev sentences; give other ones with --dev"
        )
    if train is not sets.train:
        reporter.say(f"{train.rejected[IN_DEV]:,} training sentences are also dev sentences and are left out")
    return replace(sets, train=train)


def _train_teachers(
    sets: TrainingSets, options: ClassifierOptions, device: str, work: Path, reporter: Reporter
) -> TeacherPredictions:
    """Train teachers one after the other in folders of their own, and average their probabilities of the sentences."""
    assert sets.dev is not None
    count, labels, dev = len(sets.train.examples), len(sets.train.labels), sets.dev
    sums, teachers = np.zeros((count, labels)), np.zeros((count, 1))  # (sentences, labels), (sentences, 1)
    unlabeled, together = np.zeros((len(sets.unlabeled), labels)), np.zeros((len(dev.examples), labels))
    each = []
    for number in range(options.teachers):
        fold = _held_out_rows(count, number, options)  # (sentences predicted,)
        own = replace(
            options,
            base=options.teacher_base or options.base,
            parts="all",
            epochs=options.teacher_epochs,
            learning_rate=options.teacher_rate,
            teachers=0,
            keep="last",
            seed=int(stream(options.seed, "teacher", number).integers(1 << 31)),
        )
        seen = np.delete(np.arange(count), fold if len(fold) < count else [])
        train = replace(sets.train, examples=tuple(sets.train.examples[row] for row in seen.tolist()))
        folder, known = work / f"teacher-{number}", replace(sets, train=train, unlabeled=())
        trained = train_classifier(known, folder, own, device=device, reporter=reporter)
        teacher = IntentClassifier.open(folder, device=device, runtime="torch")
        sums[fold] += softmax(teacher.logits([sets.train.examples[row].citance for row in fold.tolist()]))
        teachers[fold] += 1
        unlabeled += softmax(teacher.logits(sets.unlabeled, reporter=reporter))
        together += softmax(teacher.logits(dev.citances))
        each.append(trained.report["dev"]["macro_f1"])
        reporter.say(f"teacher {number + 1} of {options.teachers}: macro-F1 {each[-1]} on dev")
    mean = measure_predictions(together.argmax(axis=1), dev.targets, dev.labels)["macro_f1"]
    return TeacherPredictions(
        (sums / np.maximum(teachers, 1)).astype(np.float32),
        (unlabeled / options.teachers).astype(np.float32),
        {"teachers": options.teachers, "teacher_dev_macro_f1": each, "teachers_together_dev_macro_f1": mean},
    )


def _held_out_rows(count: int, number: int, options: ClassifierOptions) -> NDArray[np.int64]:
    """Return the labeled sentences that a teacher predicts: its held-out fold, or all where there are no folds."""
    folds = min(options.teachers, _FOLDS)
    if not options.folds or folds < 2:
        return np.arange(count)
    order = stream(options.seed, "folds", number // folds).permutation(count)  # (sentences,)
    return np.sort(order[number % folds :: folds])


def _calibrate(network: IntentNetwork, sets: TrainingSets) -> tuple[float, tuple[float, ...], dict[str, Any]]:
    """Fit temperature and thresholds on the dev sentences; return them and the dev figures."""
    assert sets.dev is not None
    dev, labels = sets.dev, sets.dev.targets
    bare = [replace(citance, section="") for citance in dev.citances]
    logits, hidden = (predict_logits(network, citances, dev.task) for citances in (dev.citances, bare))
    temperature = round(fit_temperature(logits, labels), 4)
    figures = {
        "dev": measure_predictions(logits.argmax(axis=1), labels, dev.labels),
        "dev_without_sections": measure_predictions(hidden.argmax(axis=1), labels, dev.labels),
        "calibration": {
            "temperature": temperature,
            "error_before": round(expected_calibration_error(softmax(logits), labels), 4),
            "error_after": round(expected_calibration_error(cross_fit_probabilities(logits, labels), labels), 4),
        },
    }
    return temperature, fit_thresholds(softmax(logits, temperature), labels), figures


def _portable_options(options: ClassifierOptions) -> dict[str, Any]:
    """Return the options with encoders by name, without the folders of this machine."""
    names = {name: Path(getattr(options, name)).name for name in ("base", "teacher_base")}
    return {**dataclasses.asdict(options), **names}


def _hash_sets(sets: TrainingSets) -> str:
    """Hash the sentences with their labels, so that other data make another classifier."""
    labeled = {"dev" if row is sets.dev else row.task: row for row in (sets.train, *sets.auxiliary, sets.dev) if row}
    rows = {name: [dataclasses.astuple(example) for example in row.examples] for name, row in labeled.items()}
    return hash_json([rows, [dataclasses.astuple(row) for row in sets.unlabeled]])


# The README.md of a classifier: recorded values only, with text from people escaped


def _write_card(config: ClassifierConfig, report: Mapping[str, Any], base: str, revision: str) -> str:
    """Write a classifier's README.md: data, dev figures, options, limits."""
    options, about, dev = report["options"], report["about"], report["dev"]
    data = [(task, counts["kept"], _list_counts(counts["labels"])) for task, counts in report["data"].items()]
    own = {name: row["sentences"] for name, row in dev["labels"].items()}
    data.append(("dev: not trained on", dev["sentences"], _list_counts(own)))
    if report["unlabeled"]:
        data.append(("unlabeled, labels by teachers", report["unlabeled"], ""))
    shown = (("with sections", dev), ("sections hidden", report["dev_without_sections"]))
    by_label = [(name, row["precision"], row["recall"], row["f1"]) for name, row in dev["labels"].items()]
    defaults = dataclasses.asdict(ClassifierOptions())
    differing = [f"\n- {escape(f'{name} {value}')}" for name, value in options.items() if value != defaults[name]]
    teachers = (
        f" It is distilled from {report.get('teachers')} fully trained networks, whose mean has macro-F1 "
        f"{report.get('teachers_together_dev_macro_f1')} on the dev sentences."
    )
    text = read_input(Path(__file__).parent / "classifier_card.md").decode()
    return text.format(
        labels=", ".join(config.labels[config.task]),
        base=base,
        revision=revision,
        source=escape(about["data"]) or "The source was not recorded.",
        data=_table(("task", "sentences", "of each label"), data),
        figures=_table(("", "macro-F1", "accuracy"), [(name, row["macro_f1"], row["accuracy"]) for name, row in shown]),
        by_label=_table(("label", "precision", "recall", "F1"), by_label),
        **report["calibration"],
        parts=f"Low-rank updates of rank {options['rank']}"
        if options["parts"] == "lora"
        else f"Trained parts: {options['parts']}",
        pooling=options["pooling"],
        precision=about["precision"],
        size=report["bytes"],
        teachers=teachers if report.get("teachers") else "",
        options="".join(differing) or " none",
        command=about["command"] or "The command was not recorded.",
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *([escape(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
