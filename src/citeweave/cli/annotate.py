"""citeweave annotate"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Device, Json, On, Output, Overwrite, Quiet, print_json, reporter_of, table

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.intents.annotating import Classifier

NONE = "none"

_Corpus = Annotated[Path, typer.Argument(help="Folder of a corpus.", show_default=False)]
_Classifier = Annotated[
    str,
    typer.Option("--classifier", help="Folder of a classifier; default = the shipped one, none = only what is given."),
]
_Least = Annotated[float, typer.Option("--least", help="Confidence from which on an intent counts.")]
_KeepGiven = Annotated[bool, typer.Option(help="Keep the intents that the source gave as they are.")]
_Sections = Annotated[bool, typer.Option(help="Show the classifier the headings of sections.")]
_MostContexts = Annotated[int, typer.Option("--most-contexts", help="Sentences read of one citation; 0 = all.")]
_Block = Annotated[int, typer.Option("--block", help="Sentences sorted by length together.")]


def annotate(
    corpus: _Corpus,
    output: Output,
    classifier: _Classifier = "default",
    least: _Least = 0.5,
    keep_given: _KeepGiven = True,
    sections: _Sections = True,
    most_contexts: _MostContexts = 0,
    block: _Block = 2048,
    on: On = "",
    device: Device = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find out why papers are cited: intents of every citation, told by its citing sentences."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.intents.annotating import AnnotateOptions, annotate_intents
    from citeweave.scale.opening import open_crew

    opened = Corpus.open(corpus)
    options = AnnotateOptions(least, keep_given, sections, most_contexts, block)
    reader = _classifier(opened, classifier, device, keep_given=keep_given)
    reporter = reporter_of(quiet or json)
    with open_crew(on, reporter) as crew:
        made = annotate_intents(opened, output, reader, options, overwrite=overwrite, reporter=reporter, crew=crew)
    facts = {**made.manifest.facts, "hash": made.hash, "output": str(output)}
    if json:
        print_json(facts)
    elif not quiet:
        print(overlay_text(output, facts))


def _classifier(corpus: Corpus, name: str, device: str, *, keep_given: bool) -> Classifier | None:
    """The classifier, where there is a sentence for it to read."""
    from citeweave.intents.classifier import IntentClassifier

    if name == NONE or not len(corpus.contexts) or (keep_given and corpus.contexts.intents.all()):
        return None
    return IntentClassifier.open(name, device=device)


def overlay_text(folder: Path, facts: dict[str, Any]) -> str:
    """What an overlay holds, for a person."""
    citations, contexts, agreement = facts["citations"], facts["contexts"], facts["agreement"]
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
            ("in another language, it seems", "another_language"),
            ("without a recognisable mark", "without_mark"),
        )
        if contexts[name]
    ]
    rows += [
        ("citations", citations["all"]),
        ("  with citing sentences that spoke", _part(citations["with_contexts"], citations["all"])),
        ("  with an intent", _part(citations["with_intent"], citations["all"])),
        ("  with an intent, of those with sentences", _percent(citations["share_of_those_with_contexts"])),
        ("  with the source's own intents", citations["given"]),
        (f"  unknown: no intent at {facts['least']:g} or more", citations["unknown"]),
    ]
    rows += [
        (f"  {name}, of those with an intent", _part(count, citations["with_intent"]))
        for name, count in facts["intents"].items()
    ]
    sizes = facts["intents_per_citation"].items()
    rows += [(f"{size} {'intent' if size == '1' else 'intents'}", count) for size, count in sizes if size != "0"]
    rows += [
        ("citations read in two sentences or more", agreement["citations"]),
        ("  all with the same likeliest intent", _percent(agreement["share"])),
        ("  agreement beyond chance (kappa)", _number(agreement["chance_corrected"])),
        ("mean confidence of the likeliest intent", _number(facts["mean_confidence"])),
    ]
    if "agrees_with_source" in facts:
        rows.append(("likeliest intent is one of the source's", _percent(facts["agrees_with_source"]["share"])))
    reader = f"read by classifier {facts['classifier']!r}" if facts["classifier"] else "as the source gave them"
    return "\n".join(
        [f"{folder}: intents of citations, {reader}", table(rows), *(f"note: {line}" for line in facts["remarks"])]
    )


def _part(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / whole:.1f} %)" if whole else f"{part:,}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
