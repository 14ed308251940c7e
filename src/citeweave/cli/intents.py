"""The commands `intents train`, `intents evaluate` and `annotate`: citation intents."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import (
    Debug,
    Device,
    Json,
    On,
    Output,
    Overwrite,
    Quiet,
    Seed,
    format_share,
    named_paths,
    print_json,
    reporter_of,
    table,
)
from citeweave.core.errors import UserError

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.intents.annotate import Classifier
    from citeweave.intents.classifier import Citance
    from citeweave.intents.options import ClassifierOptions


app = typer.Typer(
    help="Train and evaluate the citation-intent classifier.", no_args_is_help=True, rich_markup_mode=None
)

_Files = Annotated[
    list[Path], typer.Argument(help="Files of labeled citing sentences, JSON lines such as contexts.jsonl.gz.")
]
_Task = Annotated[str, typer.Option("--task", help="Label set: scicite (three intents) or acl_arc (six).")]
_Split = Annotated[str, typer.Option("--split", help="Split to train on, if the records name one.")]
_Dev = Annotated[
    str,
    typer.Option("--dev", help="Split or file to calibrate and evaluate on; '' holds out a tenth."),
]
_Base = Annotated[str, typer.Option("--base", help="Base encoder: minilm, a folder, or a Hugging Face name.")]
_Parts = Annotated[str, typer.Option("--parts", help="Parameters to train: lora (low-rank adapters), all, or head.")]
_Rank = Annotated[int, typer.Option("--rank", help="Rank of the low-rank adapters.")]
_Pooling = Annotated[
    str, typer.Option("--pooling", help="Pooling for the classifier head: mean, cls, mark, or mean+mark.")
]
_Epochs = Annotated[float, typer.Option("--epochs", help="Number of epochs.")]
_Batch = Annotated[int, typer.Option("--batch", help="Sentences per step.")]
_Rate = Annotated[float, typer.Option("--learning-rate", help="Peak learning rate; 0 = a default for --parts.")]
_Tokens = Annotated[
    int,
    typer.Option(
        "--max-tokens", help="Maximum number of tokens per sentence; longer ones are cut around the citation mark."
    ),
]
_Dropped = Annotated[
    float, typer.Option("--section-dropout", help="Fraction of training sentences whose section is hidden.")
]
_Balanced = Annotated[bool, typer.Option("--balanced", help="Weight rare labels more.")]
_Teachers = Annotated[int, typer.Option("--teachers", help="Number of fully trained teachers to distill from.")]
_Unlabeled = Annotated[
    Path | None,
    typer.Option(
        "--unlabeled",
        help="Corpus or JSON lines of citing sentences for the teachers to label.",
        show_default=False,
    ),
]
_MaxUnlabeled = Annotated[
    int, typer.Option("--max-unlabeled", help="Maximum number of unlabeled sentences, drawn at random; 0 = all.")
]
_Auxiliary = Annotated[
    list[str],
    typer.Option(
        "--auxiliary", help="TASK=FILE of an auxiliary task: section, worthiness or acl_arc; may be repeated."
    ),
]
_AuxiliaryWeight = Annotated[float, typer.Option("--auxiliary-weight", help="Weight of an auxiliary sentence.")]
_Precision = Annotated[str, typer.Option("--precision", help="Data type of the saved adapters: float16 or int8.")]
_About = Annotated[str, typer.Option("--data", help="Source and license of the sentences, for the model card.")]
_Set = Annotated[
    list[str], typer.Option("--set", help="KEY=VALUE of any other training option, such as smoothing=0.1.")
]
_IntentsClassifier = Annotated[str, typer.Argument(help="Folder of a classifier, or default for the built-in one.")]
_Data = Annotated[list[Path], typer.Option("--data", help="File of labeled sentences, JSON lines; may be repeated.")]
_EvaluatedPapers = Annotated[
    str, typer.Option("--split", help="Split to evaluate on, if the records name one; '' = all.")
]
_AsThree = Annotated[bool, typer.Option("--as-three", help="Map ACL-ARC's six labels to SciCite's three.")]
_Runtime = Annotated[
    str, typer.Option("--runtime", help="Software that runs the model: auto (int8 where available), torch or int8.")
]


@app.command("train")
def train(
    files: _Files,
    output: Output,
    task: _Task = "scicite",
    split: _Split = "train",
    dev: _Dev = "dev",
    base: _Base = "minilm",
    parts: _Parts = "lora",
    rank: _Rank = 16,
    pooling: _Pooling = "mean+mark",
    epochs: _Epochs = 4.0,
    batch: _Batch = 32,
    learning_rate: _Rate = 0.0,
    max_tokens: _Tokens = 160,
    section_dropout: _Dropped = 0.2,
    balanced: _Balanced = False,
    teachers: _Teachers = 0,
    unlabeled: _Unlabeled = None,
    max_unlabeled: _MaxUnlabeled = 50_000,
    auxiliary: _Auxiliary = [],  # noqa: B006
    auxiliary_weight: _AuxiliaryWeight = 0.1,
    precision: _Precision = "float16",
    data: _About = "",
    set_: _Set = [],  # noqa: B006
    seed: Seed = 0,
    device: Device = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a classifier of citation intents on labeled citing sentences."""
    from citeweave.core.errors import require
    from citeweave.intents.examples import SetFiles, TrainingSets, read_sets
    from citeweave.intents.options import ClassifierOptions

    require("torch", extra="minilm")
    from citeweave.intents.train import ClassifierCardNotes, train_classifier

    options = ClassifierOptions(
        base=base,
        parts=parts,
        rank=rank,
        pooling=pooling,
        epochs=epochs,
        batch=batch,
        learning_rate=learning_rate,
        max_tokens=max_tokens,
        section_dropout=section_dropout,
        balanced=balanced,
        teachers=teachers,
        auxiliary_weight=auxiliary_weight,
        seed=seed,
    )
    options = _with_changes(options, set_)
    if unlabeled is not None and not options.teachers:
        raise UserError("--unlabeled is given without teachers to label the sentences; add --teachers 5")
    paths = named_paths(auxiliary, "--auxiliary", "section=contexts.jsonl.gz")
    labeled, held, beside = read_sets(SetFiles(files, task, split, dev, paths))
    trained = train_classifier(
        TrainingSets(labeled, held, beside, _unlabeled(unlabeled, max_unlabeled, seed)),
        output,
        options,
        about=ClassifierCardNotes(data, _command(), precision),
        device=device,
        overwrite=overwrite,
        reporter=reporter_of(quiet or json),
    )
    if json:
        print_json({**trained.report, "output": str(output)})
    elif not quiet:
        print(f"{output}: intent classifier\n{_trained_text(trained.report)}")


@app.command("evaluate")
def evaluate(
    classifier: _IntentsClassifier,
    data: _Data,
    split: _EvaluatedPapers = "dev",
    task: _Task = "scicite",
    as_three: _AsThree = False,
    runtime: _Runtime = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Evaluate a classifier on labeled citing sentences: macro-F1, per-label scores, calibration."""
    from citeweave.core.errors import choose
    from citeweave.intents.classifier import IntentClassifier, evaluate_classifier
    from citeweave.intents.examples import LABEL_SETS, THREE_OF_SIX, read_labeled

    labels = LABEL_SETS[choose(task, LABEL_SETS, "--task")]
    opened = IntentClassifier.open(classifier, device=device, runtime=runtime)
    examples = read_labeled(data, labels, split=split, task=task, label_map=THREE_OF_SIX if as_three else None)
    report = evaluate_classifier(opened, examples, reporter=reporter_of(quiet or json))
    if json:
        print_json(report)
    else:
        print(_evaluation_text(report))


def _with_changes(options: ClassifierOptions, changes: list[str]) -> ClassifierOptions:
    """Override options by name that have no flag of their own."""
    kinds: dict[str, type] = {row.name: type(getattr(options, row.name)) for row in dataclasses.fields(options)}
    values: dict[str, Any] = {}
    for entry in changes:
        name, equals, text = entry.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in kinds:
            raise UserError(f"--set is {entry!r}; it must be KEY=VALUE with a KEY of {', '.join(kinds)}")
        try:
            values[name] = _parse_bool(text) if kinds[name] is bool else kinds[name](text)
        except ValueError:
            raise UserError(f"--set {name} is {text!r}; it must be of type {kinds[name].__name__}") from None
    return dataclasses.replace(options, **values)


def _parse_bool(text: str) -> bool:
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


def _unlabeled(path: Path | None, max_sentences: int, seed: int) -> tuple[Citance, ...]:
    if path is None:
        return ()
    from citeweave.intents.examples import read_unlabeled

    if path.is_file():
        citances = read_unlabeled(path)
        return tuple(citances[row] for row in _draw_rows(len(citances), max_sentences, seed))
    from citeweave.corpus.corpus import Corpus
    from citeweave.intents.citances import read_corpus_citances

    corpus = Corpus.open(path)
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
    rows: list[tuple[str, object]] = [
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


NONE = "none"

_Corpus = Annotated[Path, typer.Argument(help="Corpus folder.", show_default=False)]
_AnnotateClassifier = Annotated[
    str,
    typer.Option(
        "--classifier",
        help="Intent classifier: a folder, default (the built-in one), or none (only intents that the source provides).",
    ),
]
_MinConfidence = Annotated[float, typer.Option("--min-confidence", help="Minimum confidence for an intent to count.")]
_KeepGiven = Annotated[bool, typer.Option(help="Keep the intents that the source provides.")]
_Sections = Annotated[bool, typer.Option(help="Let the classifier read section headings.")]
_MaxContexts = Annotated[
    int, typer.Option("--max-contexts", help="Maximum number of sentences to read per citation; 0 = all.")
]
_Block = Annotated[int, typer.Option("--block", help="Number of sentences to sort by length at a time.")]


def annotate(
    corpus: _Corpus,
    output: Output,
    classifier: _AnnotateClassifier = "default",
    min_confidence: _MinConfidence = 0.5,
    keep_given: _KeepGiven = True,
    sections: _Sections = True,
    max_contexts: _MaxContexts = 0,
    block: _Block = 2048,
    on: On = "",
    device: Device = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Classify the intent of every citation from its citing sentences."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.intents.annotate import AnnotateOptions, annotate_intents
    from citeweave.remote.ray_executor import open_executor

    opened = Corpus.open(corpus)
    options = AnnotateOptions(min_confidence, keep_given, sections, max_contexts, block)
    loaded = _load_classifier(opened, classifier, device, keep_given=keep_given)
    reporter = reporter_of(quiet or json)
    with open_executor(on, reporter) as executor:
        overlay = annotate_intents(
            opened, output, loaded, options, overwrite=overwrite, reporter=reporter, executor=executor
        )
    metadata = {**overlay.manifest.facts, "hash": overlay.hash, "output": str(output)}
    if json:
        print_json(metadata)
    elif not quiet:
        print(overlay_text(output, metadata))


def _load_classifier(corpus: Corpus, name: str, device: str, *, keep_given: bool) -> Classifier | None:
    """Load the classifier if there is a sentence for it to read."""
    from citeweave.intents.classifier import IntentClassifier

    if name == NONE or not len(corpus.contexts) or (keep_given and corpus.contexts.intents.all()):
        return None
    return IntentClassifier.open(name, device=device)


def overlay_text(folder: Path, metadata: dict[str, Any]) -> str:
    """Format what `citeweave annotate` prints: an intent overlay on a few lines."""
    citations, contexts, agreement = metadata["citations"], metadata["contexts"], metadata["agreement"]
    rows: list[tuple[str, object]] = [
        ("citing sentences", contexts["all"]),
        ("  of a citation between papers of the corpus", contexts["of_a_citation"]),
        ("  read by the classifier", contexts["annotated"]),
        ("  with intents of the source", contexts["given"]),
    ]
    rows += [
        (f"  {what}", contexts[name])
        for what, name in (
            ("empty", "empty"),
            ("apparently in another language", "another_language"),
            ("without a recognizable mark", "without_mark"),
        )
        if contexts[name]
    ]
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
