"""Intents of real citations: how many get one, which, whether several sentences of a citation agree, and how fast.

    python benchmarks/intents.py peerread_plus=FOLDER elife=FOLDER                     the shipped classifier: minutes
    python benchmarks/intents.py elife=FOLDER --classifier classifier/ --out FOLDER    another one; overlays are kept
    python benchmarks/intents.py --labeled scicite:dev=contexts.jsonl.gz acl_arc=contexts.jsonl.gz

FOLDER is an imported corpus. A labeled file is JSON lines of sentences with their intents, NAME:SPLIT=FILE for one split
of it; the six labels of ACL-ARC are read as the three. Prints Markdown tables, those of docs/intents.md. Rates are of
sentences that the classifier read, over the wall time of the whole command, and of one processor second.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from citeweave import Corpus
from citeweave.core.progress import Reporter
from citeweave.intents.annotate import annotate_intents
from citeweave.intents.citances import Citance
from citeweave.intents.classifier import IntentClassifier, expected_calibration_error, measure_predictions
from citeweave.intents.examples import SCICITE, THREE_OF_SIX, read_labeled
from citeweave.intents.options import AnnotateOptions

WARM_UP = [Citance("We follow Och (2003).", section="Methods")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="*", help="NAME=FOLDER")
    parser.add_argument("--classifier", default="default", help="folder of a classifier, or default")
    parser.add_argument("--labeled", nargs="+", default=[], help="NAME=FILE, or NAME:SPLIT=FILE")
    parser.add_argument("--min-confidence", type=float, default=0.5)
    parser.add_argument("--no-sections", dest="sections", action="store_false")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder to keep the overlays in")
    options = parser.parse_args()
    if not options.corpora and not options.labeled:
        parser.error("give corpora, --labeled, or both")
    classifier = IntentClassifier.open(options.classifier, device=options.device)
    classifier.predict(WARM_UP)  # loads the encoder
    for number, entry in enumerate(options.labeled):
        if number == 0:
            print("| sentences of | number | macro-F1 | accuracy | background | method | result | ECE | sentences/s |")
            print("|---|---|---|---|---|---|---|---|---|")
        name, _, place = entry.partition("=")
        print(labeled_line(name, Path(place), classifier, sections=options.sections), flush=True)
    wanted = AnnotateOptions(min_confidence=options.min_confidence, sections=options.sections, keep_given=False)
    with TemporaryDirectory() as place:
        for entry in options.corpora:
            name, _, folder = entry.partition("=")
            out = (options.out or Path(place)) / f"{name}-intents"
            print(corpus_table(name, Corpus.open(folder), out, classifier, wanted), flush=True)


def labeled_line(name: str, path: Path, classifier: IntentClassifier, *, sections: bool) -> str:
    """How well the classifier does on sentences with known intents."""
    found = read_labeled([path], SCICITE, split=name.partition(":")[2], label_map=THREE_OF_SIX)
    citances = [example.citance for example in found.examples]
    if not sections:
        citances = [Citance(citance.text, citance.span) for citance in citances]
    truth = np.array([example.label for example in found.examples])  # (sentences,)
    columns = [classifier.labels.index(label) for label in SCICITE]
    start = time.perf_counter()
    confidence = classifier.predict(citances)[:, columns]  # (sentences, 3)
    rate = len(citances) / (time.perf_counter() - start)
    result = measure_predictions(confidence.argmax(axis=1), truth, SCICITE)
    each = " | ".join(f"{result['labels'][label]['f1']:.1f}" for label in SCICITE)
    error = expected_calibration_error(confidence, truth)
    return (
        f"| {name} | {len(truth):,} | {result['macro_f1']:.2f} | {result['accuracy']:.2f} | {each} | {error:.3f} | "
        f"{rate:,.0f} |"
    )


def corpus_table(name: str, corpus: Corpus, out: Path, classifier: IntentClassifier, options: AnnotateOptions) -> str:
    """What annotating a corpus finds, and its cost; an overlay that is there already is read and its cost is not known."""
    done = out.exists()
    wall, cpu = time.perf_counter(), time.process_time()
    facts = annotate_intents(corpus, out, classifier, options, reporter=Reporter()).manifest.facts
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    rows = rows_of(facts)
    if not done:
        read = facts["contexts"]["annotated"]
        rows += [
            ("sentences/s", f"{read / wall:,.0f}"),
            ("sentences/s of one processor", f"{read / cpu:,.0f}"),
            ("seconds", f"{wall:,.0f}"),
        ]
    lines = [f"\n| {name} | {classifier.name}, at {options.min_confidence:g} or more |", "|---|---|"]
    return "\n".join(lines + [f"| {what} | {value} |" for what, value in rows])


def rows_of(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts of an overlay as rows of a table."""
    citations, contexts, agreement = facts["citations"], facts["contexts"], facts["agreement"]
    rows = [
        ("citations", f"{citations['all']:,}"),
        ("with citing sentences", share(citations["with_contexts"], citations["all"])),
        ("with an intent", share(citations["with_intent"], citations["all"])),
        ("with an intent, of those with sentences", percent(citations["share_of_those_with_contexts"])),
        ("unknown, of those read", percent(citations["unknown_share"])),
    ]
    rows += [(label, share(facts["intents"][label], citations["with_intent"])) for label in SCICITE]
    rows += [
        (f"{size} intent{'' if size == '1' else 's'}", share(count, citations["all"]))
        for size, count in facts["intents_per_citation"].items()
    ]
    rows += [
        ("citations read in two sentences or more", f"{agreement['citations']:,}"),
        ("all sentences with the same likeliest intent", percent(agreement["share"])),
        ("agreement beyond chance (kappa)", number(agreement["chance_corrected"])),
        ("mean confidence of the likeliest intent", number(facts["mean_confidence"])),
        ("sentences read", f"{contexts['annotated']:,} of {contexts['all']:,}"),
        ("apparently in another language", share(contexts["another_language"], contexts["annotated"])),
        ("without a recognizable mark", share(contexts["without_mark"], contexts["annotated"])),
    ]
    if "agrees_with_source" in facts:
        rows.append(("likeliest intent is one of the source's", percent(facts["agrees_with_source"]["share"])))
    return rows


def share(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / whole:.1f} %)" if whole else f"{part:,}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
