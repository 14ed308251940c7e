"""Train an intent classifier on labeled citing sentences, calibrate it, and save its folder.

    sets = TrainingSets(read_labeled([path], split="train"), read_labeled([path], split="dev"))
    trained = train_classifier(sets, "classifier/", ClassifierOptions(teachers=5), reporter=Reporter())
    trained.report["dev"]["macro_f1"]

Where citeweave's command line cannot be installed, numpy, torch, transformers and safetensors are enough. This prints
one JSON object with the figures on the dev sentences:

    python -m citeweave.intents.train contexts.jsonl.gz -o classifier/ --teachers 5 --unlabeled more.jsonl.gz
    python -m citeweave.intents.train contexts.jsonl.gz -o classifier/ --rank 16 --auxiliary section=FILE

The figures of the card are those of the saved weights. Does not read a test split.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from citeweave.core.artifact import artifact_matches, new_artifact
from citeweave.core.errors import CiteweaveError, UserError, choose
from citeweave.core.files import hash_json, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.encoders.model_card import escape
from citeweave.intents.classifier import (
    CONFIG,
    DELTA,
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
from citeweave.intents.examples import (
    IN_DEV,
    LabeledSet,
    SetFiles,
    TrainingSets,
    drop_dev_sentences,
    parse_auxiliary,
    read_sets,
    read_unlabeled,
)
from citeweave.intents.fit import (
    TeacherPredictions,
    fit_network,
    tokenize_auxiliary_sets,
    tokenize_labeled,
    tokenize_unlabeled,
    train_teachers,
)
from citeweave.intents.network import (
    PRECISIONS,
    IntentNetwork,
    build_network,
    load_base,
    load_delta,
    predict_logits,
    save_delta,
)
from citeweave.intents.options import ClassifierOptions

_HELD_OUT = 0.1
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
    choose(about.precision, PRECISIONS, "--precision")
    _check_sets(sets, options.teachers)
    base = load_base(options.base, options.max_tokens, device)
    recipe = {
        "base": base.revision,
        "options": _portable_options(options, base.name),
        "precision": about.precision,
        "sets": _hash_sets(sets),
    }
    if artifact_matches(folder, KIND, VERSION, recipe):
        reporter.say(f"{folder} already exists: same sentences, encoder and options")
        return TrainedClassifier(folder, IntentClassifier.open(folder).metadata)
    sets = _exclude_dev(hold_out_dev(sets, options.seed) if sets.dev is None else sets, reporter)
    with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        predictions = train_teachers(sets, options, device, reporter=reporter) if options.teachers else None
        network = build_network(base, options, sets.tasks())
        history = _fit(network, sets, predictions, options, reporter)
        saved = _save_and_reload(network, sets.train.task, writer.folder / DELTA, about.precision)
        network.apply_delta({**network.delta(), **saved})
        config, figures = _calibrate(network, sets, options, about.precision)
        write_json(writer.folder / CONFIG, config.as_json())
        report = {
            **figures,
            "epochs": history,
            **(predictions.metadata if predictions else {}),
            "data": {labeled.task: labeled.counts() for labeled in (sets.train, *sets.auxiliary)},
            "unlabeled": len(sets.unlabeled) if predictions else 0,
            "bytes": (writer.folder / DELTA).stat().st_size,
            "options": _portable_options(options, base.name),
            "about": dataclasses.asdict(about),
        }
        (writer.folder / "README.md").write_text(_write_card(config, report), encoding="utf-8")
        writer.facts = report
        writer.finish()
    return TrainedClassifier(folder, report)


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
    if train is not sets.train:
        reporter.say(f"{train.rejected[IN_DEV]:,} training sentences are also dev sentences and are left out")
    return replace(sets, train=train)


def _fit(
    network: IntentNetwork,
    sets: TrainingSets,
    predictions: TeacherPredictions | None,
    options: ClassifierOptions,
    reporter: Reporter,
) -> list[dict[str, float]]:
    """Train the network, keep its last or best weights, and return loss and dev figures of every epoch."""
    assert sets.dev is not None
    tokenizer, dev = network.base.reader, sets.dev
    tokenized = [tokenize_labeled(sets.train, tokenizer, options, predictions.labeled if predictions else None)]
    if predictions is not None and sets.unlabeled:
        per_epoch = max(1, round(options.unlabeled_share * len(sets.train.examples)))
        tokenized.append(
            tokenize_unlabeled(sets.train.task, sets.unlabeled, tokenizer, predictions.unlabeled, per_epoch)
        )
    tokenized += tokenize_auxiliary_sets(sets, tokenizer, options)
    history: list[dict[str, float]] = []
    best: dict[str, torch.Tensor] = {}

    def after_epoch(epoch: int, loss: float) -> None:
        logits = predict_logits(network, dev.citances, dev.task)  # (sentences, labels)
        figures = measure_predictions(logits.argmax(axis=1), dev.targets, dev.labels)
        reporter.say(f"epoch {epoch}: loss {loss:.4f}, macro-F1 {figures['macro_f1']} on dev")
        if options.keep == "best" and figures["macro_f1"] > max((row["macro_f1"] for row in history), default=-1.0):
            best.update(network.delta())
        history.append({"loss": round(loss, 4), "macro_f1": figures["macro_f1"], "accuracy": figures["accuracy"]})

    fit_network(network, tokenized, options, after_epoch=after_epoch, reporter=reporter)
    if best:
        network.apply_delta(best)
    return history


def _save_and_reload(network: IntentNetwork, main: str, path: Path, precision: str) -> dict[str, torch.Tensor]:
    """Save the network's changes without the heads of scaffold tasks, and read them back in the saved precision."""
    scaffolds = tuple(f"head.{task}." for task in network.shape.tasks if task in _SCAFFOLDS and task != main)
    delta = {name: value for name, value in network.delta().items() if not name.startswith(scaffolds)}
    save_delta(path, delta, precision)
    return load_delta(path)


def _calibrate(
    network: IntentNetwork, sets: TrainingSets, options: ClassifierOptions, precision: str
) -> tuple[ClassifierConfig, dict[str, Any]]:
    """Fit temperature and thresholds on the dev sentences; return the classifier's config and dev figures."""
    assert sets.dev is not None
    dev, labels = sets.dev, sets.dev.targets
    logits = predict_logits(network, dev.citances, dev.task)  # (sentences, labels)
    bare = predict_logits(
        network, [replace(citance, section="") for citance in dev.citances], dev.task
    )  # (sentences, labels)
    temperature = fit_temperature(logits, labels)
    thresholds = fit_thresholds(softmax(logits, temperature), labels)
    saved = [sets.train, *(labeled for labeled in sets.auxiliary if labeled.task not in _SCAFFOLDS)]
    shape = network.shape
    config = ClassifierConfig(
        task=sets.train.task,
        labels={labeled.task: labeled.labels for labeled in saved},
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
        "dev": measure_predictions(logits.argmax(axis=1), labels, dev.labels),
        "dev_without_sections": measure_predictions(bare.argmax(axis=1), labels, dev.labels),
        "calibration": {
            "temperature": round(temperature, 4),
            "error_before": round(expected_calibration_error(softmax(logits), labels), 4),
            "error_after": round(expected_calibration_error(cross_fit_probabilities(logits, labels), labels), 4),
        },
    }
    return config, figures


def _portable_options(options: ClassifierOptions, base: str) -> dict[str, Any]:
    """Return the options with encoders by name, without the folders of this machine."""
    teacher = options.teacher_base and Path(options.teacher_base).name
    return {**dataclasses.asdict(options), "base": Path(base).name, "teacher_base": teacher}


def _hash_sets(sets: TrainingSets) -> dict[str, Any]:
    """Hash the training sentences, so that other data make another classifier."""

    def hash_examples(labeled: LabeledSet | None) -> str:
        rows = [] if labeled is None else [(dataclasses.astuple(row.citance), row.label) for row in labeled.examples]
        return hash_json(rows)

    return {
        "train": hash_examples(sets.train),
        "dev": hash_examples(sets.dev),
        "unlabeled": hash_json([dataclasses.astuple(row) for row in sets.unlabeled]),
        **{f"auxiliary {labeled.task}": hash_examples(labeled) for labeled in sets.auxiliary},
    }


# The README.md of a classifier: recorded values only, with text from people escaped

_CARD = """# Citation-intent classifier

Predicts why a sentence cites a paper: {labels}. It is a change of the encoder `{base}` (revision {revision}) and a head, and
works with that encoder only.

    from citeweave.intents.classifier import Citance, IntentClassifier
    IntentClassifier.open("this/folder").predict([Citance("We follow Och (2003).", section="Methods")])
"""


def _write_card(config: ClassifierConfig, report: Mapping[str, Any]) -> str:
    """Write a classifier's README.md: data, dev figures, options, limits."""
    labels = ", ".join(config.labels[config.task])
    parts = [_CARD.format(labels=labels, base=config.base, revision=config.base_revision)]
    about = report["about"]
    parts += ["## Data\n", _data_table(report, str(about["data"]))]
    parts += ["## Figures on the dev sentences\n", _figures_table(report)]
    parts += ["## How it was made\n", _training_text(config, report, str(about["command"]))]
    parts += [
        "## Limits\n",
        "The labels are those of its training sentences: English, mostly biomedicine and computer science where these are "
        "SciCite's. Probabilities are calibrated on the dev sentences, and may not be on other fields or languages.\n",
    ]
    return "\n".join(parts)


def _data_table(report: Mapping[str, Any], source: str) -> str:
    lines = [escape(source) + "\n"] if source else []
    lines += ["| task | sentences | of each label |", "|---|---|---|"]
    for task, counts in report["data"].items():
        each = ", ".join(f"{escape(name)} {number:,}" for name, number in counts["labels"].items())
        lines.append(f"| {escape(task)} | {counts['kept']:,} | {each} |")
    dev = report["dev"]
    each = ", ".join(f"{escape(name)} {row['sentences']:,}" for name, row in dev["labels"].items())
    lines.append(f"| dev: not trained on | {dev['sentences']:,} | {each} |")
    if report["unlabeled"]:
        lines.append(f"| unlabeled, labels by teachers | {report['unlabeled']:,} | |")
    return "\n".join(lines) + "\n"


def _figures_table(report: Mapping[str, Any]) -> str:
    lines = ["| | macro-F1 | accuracy |", "|---|---|---|"]
    for key, name in (("dev", "with sections"), ("dev_without_sections", "sections hidden")):
        lines.append(f"| {name} | {report[key]['macro_f1']} | {report[key]['accuracy']} |")
    lines += ["", "| label | precision | recall | F1 |", "|---|---|---|---|"]
    for name, row in report["dev"]["labels"].items():
        lines.append(f"| {escape(name)} | {row['precision']} | {row['recall']} | {row['f1']} |")
    calibration = report["calibration"]
    lines += [
        "",
        f"Expected calibration error {calibration['error_before']} before and {calibration['error_after']} after temperature "
        f"scaling (T = {calibration['temperature']}; the second figure with a temperature fitted on the other half).\n",
    ]
    return "\n".join(lines)


def _training_text(config: ClassifierConfig, report: Mapping[str, Any], command: str) -> str:
    defaults = dataclasses.asdict(ClassifierOptions())
    own = [f"{name} {value}" for name, value in report["options"].items() if value != defaults[name]]
    options = "".join(f"\n- {escape(option)}" for option in own) or " none"
    lines = [
        f"Low-rank updates of rank {config.rank}" if config.parts == "lora" else f"Trained parts: {config.parts}",
        f", pooling {config.pooling}, saved as {config.precision}, {report['bytes']:,} bytes.\n",
    ]
    text = "".join(lines) + f"\nOptions that differ from the defaults:{options}\n"
    if report.get("teachers"):
        text += (
            f"\nIt is distilled from {report['teachers']} fully trained networks, whose mean has macro-F1 "
            f"{report.get('teachers_together_dev_macro_f1')} on the dev sentences.\n"
        )
    return text + (f"\n    {command}\n" if command else "")


# The command for machines without citeweave's command line


def main(arguments: Sequence[str] | None = None) -> None:
    """Train an intent classifier from labeled citing sentences."""
    args = _parser().parse_args(arguments)
    try:
        options = ClassifierOptions(
            **{row.name: getattr(args, row.name) for row in dataclasses.fields(ClassifierOptions)}
        )
        files = SetFiles(args.files, args.task, args.split, args.dev, parse_auxiliary(args.auxiliary))
        train, dev, auxiliary = read_sets(files)
        unlabeled = read_unlabeled(args.unlabeled, limit=args.max_unlabeled) if args.unlabeled else []
        trained = train_classifier(
            TrainingSets(train, dev, auxiliary, tuple(unlabeled)),
            args.output,
            options,
            about=ClassifierCardNotes(
                args.data, "python -m citeweave.intents.train " + _command_words(arguments), args.precision
            ),
            device=args.device,
            overwrite=args.overwrite,
            reporter=Reporter(quiet=args.quiet),
        )
    except CiteweaveError as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(json.dumps({"output": str(trained.folder), **trained.report}) + "\n")


def _command_words(arguments: Sequence[str] | None) -> str:
    """Return the command's arguments for the card, with the names of files without their folders."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    return " ".join(Path(word).name if "/" in word and "=" not in word else word for word in words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m citeweave.intents.train", description=main.__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines of labeled sentences")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--task", default="scicite", help="label set: scicite (three) or acl_arc (six)")
    parser.add_argument("--split", default="train", help="split to train on")
    parser.add_argument("--dev", default="dev", help="split or file of the dev sentences; '' holds out a tenth")
    parser.add_argument("--auxiliary", action="append", default=[], metavar="TASK=FILE", help="auxiliary task")
    parser.add_argument("--unlabeled", type=Path, help="JSON lines of {text, span, section} without labels")
    parser.add_argument("--max-unlabeled", type=int, default=0, help="maximum number of unlabeled sentences; 0 = all")
    parser.add_argument("--precision", default="float16", help="float16 or int8")
    parser.add_argument("--data", default="", help="where the sentences come from, for the card")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing classifier")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    for row in dataclasses.fields(ClassifierOptions):
        flag, default = "--" + row.name.replace("_", "-"), row.default
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=f"default {default!r}")
    return parser


if __name__ == "__main__":
    main()
