"""The commands `intents train`, `intents evaluate` and `annotate`: citation intents."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import citeweave as cw
from citeweave.cli.options import (
    CommonArguments,
    CorpusFolder,
    Device,
    Given,
    On,
    OutputArguments,
    format_share,
    read_keys,
    table,
)
from citeweave.core.errors import UserError, choose, require
from citeweave.core.options import Named, Positional, parse_table
from citeweave.intents.options import AnnotateOptions, ClassifierOptions

if TYPE_CHECKING:
    from citeweave.intents.classifier import Citance


_MAIN_OPTIONS = (
    *("base", "parts", "rank", "pooling", "epochs", "batch", "learning_rate", "max_tokens", "section_dropout"),
    *("balanced", "teachers", "auxiliary_weight", "seed"),
)
"""Training options that have a command-line option; all others are set by --set."""


@dataclass(frozen=True, kw_only=True)
class IntentsTrainArguments(OutputArguments):
    files: Annotated[tuple[Path, ...], Positional()]
    """Files of labeled citing sentences, JSON lines such as contexts.jsonl.gz."""

    task: str = "scicite"
    """Label set: scicite (three intents) or acl_arc (six)."""

    split: str = "train"
    """Split to train on, if the records name one."""

    dev: str = "dev"
    """Split or file to calibrate and evaluate on; '' holds out a tenth."""

    options: Annotated[Mapping[str, Any], Given(ClassifierOptions, only=_MAIN_OPTIONS)]

    unlabeled: Path | None = None
    """Corpus or JSON lines of citing sentences for the teachers to label."""

    max_unlabeled: int = 50_000
    """Maximum number of unlabeled sentences, drawn at random; 0 = all."""

    auxiliary: Annotated[Mapping[str, Path], Named("section=contexts.jsonl.gz")] = field(default_factory=dict)
    """TASK=FILE of an auxiliary task: section, worthiness or acl_arc; may be repeated."""

    precision: str = "float16"
    """Data type of the saved adapters: float16 or int8."""

    data: str = ""
    """Source and license of the sentences, for the model card."""

    set_: tuple[str, ...] = ()
    """KEY=VALUE of any other training option, such as smoothing=0.1; may be repeated."""

    device: Device = "auto"


def train(args: IntentsTrainArguments) -> None:
    """Train a classifier of citation intents on labeled citing sentences."""
    from citeweave.intents.examples import read_sets

    require("torch", extra="minilm")
    from citeweave.intents.train import ClassifierCardNotes, train_classifier

    options = parse_table(ClassifierOptions, {**args.options, **read_keys(args.set_, "training")}, "--set: ")
    if args.unlabeled is not None and not options.teachers:
        raise UserError("--unlabeled is given without teachers to label the sentences; add --teachers 5")
    sets = read_sets(args.files, task=args.task, split=args.split, dev=args.dev, auxiliary=args.auxiliary)
    trained = train_classifier(
        replace(sets, unlabeled=_unlabeled(args.unlabeled, args.max_unlabeled, options.seed)),
        args.output,
        options,
        about=ClassifierCardNotes(args.data, _command(), args.precision),
        device=args.device,
        **args.writing,
    )
    args.print(trained.report, f"{args.output}: intent classifier\n{_trained_text(trained.report)}")


@dataclass(frozen=True, kw_only=True)
class IntentsEvaluateArguments(CommonArguments):
    classifier: Annotated[str, Positional()]
    """Folder of a classifier, or default for the built-in one."""

    data: tuple[Path, ...]
    """File of labeled sentences, JSON lines; may be repeated."""

    split: str = "dev"
    """Split to evaluate on, if the records name one; '' = all."""

    task: str = "scicite"
    """Label set: scicite (three intents) or acl_arc (six)."""

    as_three: bool = False
    """Map ACL-ARC's six labels to SciCite's three."""

    runtime: str = "auto"
    """Software that runs the model: auto (int8 where available), torch or int8."""

    device: Device = "auto"


def evaluate(args: IntentsEvaluateArguments) -> None:
    """Evaluate a classifier on labeled citing sentences: macro-F1, per-label scores, calibration."""
    from citeweave.intents.classifier import IntentClassifier, evaluate_classifier
    from citeweave.intents.examples import LABEL_SETS, THREE_OF_SIX, read_labeled

    labels = LABEL_SETS[choose(args.task, LABEL_SETS, "--task")]
    opened = IntentClassifier.open(args.classifier, device=args.device, runtime=args.runtime)
    examples = read_labeled(
        args.data, labels, split=args.split, task=args.task, label_map=THREE_OF_SIX if args.as_three else None
    )
    report = evaluate_classifier(opened, examples, reporter=args.reporter)
    args.print_result(report, _evaluation_text(report))


def _unlabeled(path: Path | None, max_sentences: int, seed: int) -> tuple[Citance, ...]:
    if path is None:
        return ()
    from citeweave.intents.examples import read_unlabeled

    if path.is_file():
        citances = read_unlabeled(path)
        return tuple(citances[row] for row in _draw_rows(len(citances), max_sentences, seed))
    from citeweave.intents.citances import read_corpus_citances

    corpus = cw.Corpus.open(path)
    rows = _draw_rows(len(corpus.contexts.texts), max_sentences, seed)
    if not len(rows):
        raise UserError(f"{path} has no citing sentences; give a corpus with contexts, or JSON lines of them")
    return tuple(read_corpus_citances(corpus, rows, sections=True).citances)


def _draw_rows(count: int, max_rows: int, seed: int) -> Any:
    import numpy as np

    from citeweave.core.randomness import stream

    drawn = stream(seed, "unlabelled").permutation(count)  # (sentences,)
    return np.sort(drawn[:max_rows] if max_rows else drawn).astype(np.int64)


def _command() -> str:
    """Return the command line for a model card, with file names but without folders."""
    words = [Path(word).name if "/" in word and "=" not in word else word for word in sys.argv[1:]]
    return "citeweave " + " ".join(map(shlex.quote, words))


def _trained_text(report: dict[str, Any]) -> str:
    dev, calibration = report["dev"], report["calibration"]
    rows = [
        ("labeled sentences", sum(report["data"][next(iter(report["data"]))]["labels"].values())),
        ("unlabeled sentences", report["unlabeled"]),
        ("dev sentences", dev["sentences"]),
        ("macro-F1", dev["macro_f1"]),
        ("  with sections hidden", report["dev_without_sections"]["macro_f1"]),
        ("accuracy", dev["accuracy"]),
        ("calibration error", calibration["error_after"]),
        ("  before scaling", calibration["error_before"]),
        ("bytes of the delta", report["bytes"]),
    ]
    return table(rows)


def _evaluation_text(report: dict[str, Any]) -> str:
    rows: list[tuple[str, object]] = [("sentences", report["sentences"]), ("macro-F1", report["macro_f1"])]
    if "without_sections" in report:
        rows.append(("  with sections hidden", report["without_sections"]["macro_f1"]))
    rows.append(("accuracy", report["accuracy"]))
    for name, scores in report["labels"].items():
        rows.append((f"  {name}", f"P {scores['precision']:.2f}  R {scores['recall']:.2f}  F1 {scores['f1']:.2f}"))
    rows.append(("calibration error", report["calibration"]["error"]))
    if "decided" in report:
        rows += [(f"{name.replace('_', ' ')}, %", value) for name, value in report["decided"].items()]
    return f"{report['classifier']} on {report['task']}\n{table(rows)}"


@dataclass(frozen=True, kw_only=True)
class AnnotateArguments(OutputArguments):
    corpus: CorpusFolder
    classifier: str = "default"
    """Intent classifier: a folder, default (the built-in one), or none (only intents that the source provides)."""

    options: AnnotateOptions
    on: On = ""
    device: Device = "auto"


def annotate(args: AnnotateArguments) -> None:
    """Classify the intent of every citation from its citing sentences."""
    from citeweave.intents.classifier import IntentClassifier
    from citeweave.remote.ray_executor import open_executor

    opened, classifier = cw.Corpus.open(args.corpus), None
    is_read = len(opened.contexts) and not (args.options.keep_given and opened.contexts.intents.all())
    if args.classifier != "none" and is_read:
        classifier = IntentClassifier.open(args.classifier, device=args.device)
    with open_executor(args.on, args.reporter) as executor:
        overlay = cw.annotate_intents(opened, args.output, classifier, args.options, executor=executor, **args.writing)
    metadata = {**overlay.manifest.facts, "hash": overlay.hash}
    args.print(metadata, overlay_text(args.output, metadata))


def overlay_text(folder: Path, metadata: dict[str, Any]) -> str:
    """Format what `citeweave annotate` prints: an intent overlay on a few lines."""
    citations, contexts, agreement = metadata["citations"], metadata["contexts"], metadata["agreement"]
    rows: list[tuple[str, object]] = [
        ("citing sentences", contexts["all"]),
        ("  of a citation between papers of the corpus", contexts["of_a_citation"]),
        ("  read by the classifier", contexts["annotated"]),
        ("  with intents of the source", contexts["given"]),
    ]
    notes = {
        "empty": "empty",
        "another_language": "apparently in another language",
        "without_mark": "without a recognizable mark",
    }
    rows += [(f"  {what}", contexts[name]) for name, what in notes.items() if contexts[name]]
    rows += [
        ("citations", citations["all"]),
        ("  with citing sentences that were read", format_share(citations["with_contexts"], citations["all"])),
        ("  with an intent", format_share(citations["with_intent"], citations["all"])),
        ("  with an intent, of those with sentences", _percent(citations["share_of_those_with_contexts"])),
        ("  with the source's own intents", citations["given"]),
        (f"  unknown: no intent at {metadata['least']:g} or more", citations["unknown"]),
    ]
    rows += [
        (f"  {name}, of those with an intent", format_share(count, citations["with_intent"]))
        for name, count in metadata["intents"].items()
    ]
    sizes = metadata["intents_per_citation"].items()
    rows += [(f"{size} {'intent' if size == '1' else 'intents'}", count) for size, count in sizes if size != "0"]
    rows += [
        ("citations read in two sentences or more", agreement["citations"]),
        ("  all with the same likeliest intent", _percent(agreement["share"])),
        ("  agreement beyond chance (kappa)", _number(agreement["chance_corrected"])),
        ("mean confidence of the likeliest intent", _number(metadata["mean_confidence"])),
    ]
    if "agrees_with_source" in metadata:
        rows.append(("likeliest intent is one of the source's", _percent(metadata["agrees_with_source"]["share"])))
    source = f"read by classifier {metadata['classifier']!r}" if metadata["classifier"] else "as in the source"
    return "\n".join(
        [f"{folder}: intents of citations, {source}", table(rows), *(f"note: {line}" for line in metadata["remarks"])]
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
