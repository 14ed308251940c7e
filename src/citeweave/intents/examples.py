"""Labeled citing sentences for intent training, read from JSON lines: SciCite, ACL-ARC, auxiliary tasks.

    {"text": "... [17, 18] ...", "cite_span": [4, 12], "section": "Methods", "intent": "method", "split": "train"}
    {"string": "...", "citeStart": 4, "citeEnd": 12, "sectionName": "Methods", "label": "method"}       SciCite's own
    {"text": "...", "intent": "Uses", "section_name": "experiments", "citation_id": "..."}               ACL-ARC's own

    labeled = read_labeled([Path("contexts.jsonl.gz")], SCICITE, split="train")
    labeled.examples[0].citance, labeled.labels[labeled.examples[0].label], labeled.counts()

Needs only the standard library and numpy, so that it runs on GPU machines without the rest of the package's
dependencies. A record without a text or of another split is counted and left out; an unknown label is an error.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import is_finite
from citeweave.core.errors import EmptyResultError, InputError, UserError, choose
from citeweave.core.files import open_input
from citeweave.intents.citances import Citance, normalize_section

_MAX_LINE_BYTES = 1 << 24
"""A few bytes of a compressed file may decompress to gigabytes."""

SCICITE = ("background", "method", "result")
ACL_ARC = ("background", "motivation", "uses", "extends", "compareorcontrast", "future")
WORTHINESS = ("none", "cited")
SECTIONS = ("introduction", "related work", "method", "experiments", "results", "discussion", "conclusion")
LABEL_SETS: dict[str, tuple[str, ...]] = {
    "scicite": SCICITE,
    "acl_arc": ACL_ARC,
    "worthiness": WORTHINESS,
    "section": SECTIONS,
}
"""Labels by task."""

THREE_OF_SIX = {
    "compareorcontrast": "result",
    "uses": "method",
    "extends": "method",
    "background": "background",
    "motivation": "background",
    "future": "background",
}
"""ACL-ARC's six labels mapped to SciCite's three, to evaluate across datasets."""

_ALIASES = {
    "results": "result",
    "resultcomparison": "result",
    "methodology": "method",
    "comparison": "compareorcontrast",
}
_ALIASES |= {"extension": "extends", "use": "uses", "futurework": "future", "true": "cited", "false": "none"}
_SECTION_WORDS = {
    "related work": ("related", "previous work", "prior work", "literature", "state of the art"),
    "introduction": ("introduction", "background", "motivation"),
    "experiments": ("experiment", "evaluation", "empirical", "setup", "benchmark"),
    "method": ("method", "material", "procedure", "model", "approach", "algorithm", "implementation", "data", "design"),
    "discussion": ("discussion", "comment"),
    "results": ("result", "finding", "analysis"),
    "conclusion": ("conclusion", "concluding", "future work", "summary"),
}
_MIN_LETTERS = 20
"""Letters from which on sentences with equal letters count as the same sentence."""

NO_TEXT, OTHER_SPLIT, NO_SECTION = "no text", "another split", "no telling section"
IN_DEV = "also a dev sentence"


@dataclass(frozen=True, slots=True)
class Example:
    """A training example: a citance with its label, an index into `LabeledSet.labels`."""

    citance: Citance
    label: int
    confidence: float = 1.0
    """The annotators' confidence, 0 to 1; 1 where it is not given."""


@dataclass(frozen=True, slots=True)
class LabeledSet:
    """Labeled citing sentences of one task."""

    task: str
    labels: tuple[str, ...]
    examples: tuple[Example, ...]
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Records left out, by reason."""

    @property
    def citances(self) -> list[Citance]:
        return [example.citance for example in self.examples]

    @property
    def targets(self) -> NDArray[np.int64]:
        """Index of each example's label, (sentences,)."""
        return np.array([example.label for example in self.examples], np.int64)

    def counts(self) -> dict[str, Any]:
        """Count records of examples read, kept and rejected by reason, and examples by label."""
        labels = Counter(example.label for example in self.examples)
        return {
            "read": len(self.examples) + sum(self.rejected.values()),
            "kept": len(self.examples),
            "rejected": dict(sorted(self.rejected.items())),
            "labels": {name: labels[row] for row, name in enumerate(self.labels)},
        }


def read_labeled(
    paths: Sequence[Path],
    labels: Sequence[str] = SCICITE,
    *,
    split: str = "",
    label_map: Mapping[str, str] | None = None,
    task: str = "scicite",
) -> LabeledSet:
    """Read labeled examples from files; with `split` only those of that split, where a record names one."""
    rows = {label: row for row, label in enumerate(labels)}
    examples, rejected = [], Counter[str]()
    splits = set()
    for path in paths:
        for number, record in read_records(path):
            citance = _parse_citance(record)
            own = str(record.get("split") or "")
            splits.add(own)
            if split and own and own != split:
                rejected[OTHER_SPLIT] += 1
            elif not citance.text.strip():
                rejected[NO_TEXT] += 1
            else:
                label = _parse_label(record, rows, label_map or {}, f"{path}, line {number}")
                examples.append(Example(citance, rows[label], _parse_confidence(record)))
    if not examples:
        where = ", ".join(map(str, paths))
        present = ", ".join(sorted(splits - {""})) or "no splits"
        raise EmptyResultError(
            f"{where}: no labeled sentence" + (f" of split {split!r} (it has {present})" if split else "")
        )
    return LabeledSet(task, tuple(labels), tuple(examples), dict(rejected))


def drop_dev_sentences(train: LabeledSet, dev: LabeledSet) -> LabeledSet:
    """Drop training sentences that are dev sentences too: SciCite has 42, often in another character encoding."""
    held_out = {_sentence_key(example.citance.text) for example in dev.examples} - {""}
    examples = tuple(example for example in train.examples if _sentence_key(example.citance.text) not in held_out)
    shared = len(train.examples) - len(examples)
    return replace(train, examples=examples, rejected={**train.rejected, IN_DEV: shared}) if shared else train


def _sentence_key(text: str) -> str:
    """Return the letters of a sentence, which no encoding changes; the text itself where it has too few.

    >>> _sentence_key("A Cell grows 43–47 % (in vitro), as told.")
    'acellgrowsinvitroastold'
    """
    letters = re.sub(r"[^a-z]", "", text.lower())
    return letters if len(letters) >= _MIN_LETTERS else " ".join(text.split())


def read_unlabeled(path: Path, *, split: str = "") -> list[Citance]:
    """Read examples without labels, {"text", "span" or "cite_span", "section"} per line."""
    citances: list[Citance] = []
    for _, record in read_records(path):
        citance, own = _parse_citance(record), record.get("split")
        if citance.text.strip() and not (split and own and own != split):
            citances.append(citance)
    return citances


def section_examples(citances: Sequence[Citance]) -> LabeledSet:
    """Make examples of the auxiliary task of predicting a sentence's section, where its title names a known one."""
    rows = {name: row for row, name in enumerate(SECTIONS)}
    classes = [_classify_section(citance.section) for citance in citances]
    examples = tuple(
        Example(replace(citance, section=""), rows[name])
        for citance, name in zip(citances, classes, strict=True)
        if name
    )
    return LabeledSet("section", SECTIONS, examples, {NO_SECTION: len(citances) - len(examples)})


def _classify_section(title: str) -> str:
    """Return the kind of section that a title names, empty where it names none.

    >>> [_classify_section(title) for title in ("2. Related Work", "Materials and Methods", "The cerebellum")]
    ['related work', 'method', '']
    """
    plain = normalize_section(title)
    return next((name for name, words in _SECTION_WORDS.items() if any(word in plain for word in words)), "")


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and JSON object of every non-empty line of a .jsonl or .jsonl.gz file of examples."""
    if not path.is_file():
        raise UserError(f"{path} is not a file; give JSON lines such as contexts.jsonl.gz")
    try:
        with open_input(path) as raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES + 1), b""), 1):
                if len(line) > _MAX_LINE_BYTES:
                    raise InputError(
                        f"{path}, line {number} has more than {_MAX_LINE_BYTES:,} bytes; that is not a sentence"
                    )
                if line.strip():
                    yield number, _parse_line(path, number, line)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path} is not a complete gzip file; download it again") from None


def _parse_citance(record: Mapping[str, Any]) -> Citance:
    """Parse the citing sentence of a record of any known format; an invalid span is ignored."""
    text = _first_text(record, "text", "string", "cleaned_cite_text", "sentence")
    section = _first_text(record, "section", "sectionName", "section_name", "section_title")
    pair = record.get("cite_span", record.get("span"))
    if pair is None:
        pair = (record.get("citeStart"), record.get("citeEnd"))
    span = None
    if isinstance(pair, list | tuple) and len(pair) == 2:
        start, end = (int(value) if is_finite(value) else None for value in pair)
        span = (start, end) if start is not None and end is not None and start < end else None
    return Citance(text, span, section)


def _parse_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise InputError(f"{path}, line {number} is not a JSON object; every line must be one labeled sentence")
    return record


def _parse_label(record: Mapping[str, Any], rows: Mapping[str, int], label_map: Mapping[str, str], where: str) -> str:
    value = next((record[key] for key in ("intent", "label", "is_citation") if record.get(key) is not None), None)
    word = "".join(str(value).replace("_", " ").lower().split()) if value is not None else ""
    word = word if word in rows or word in label_map else _ALIASES.get(word, word)
    label = label_map.get(word, word)
    if label in rows:
        return label
    choices = ", ".join([*rows, *(name for name in label_map if name not in rows)])
    raise InputError(f"{where}: the label is {value!r}; it must be one of {choices}")


def _parse_confidence(record: Mapping[str, Any]) -> float:
    value = record.get("intent_confidence", record.get("label_confidence"))
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    return 1.0


def _first_text(record: Mapping[str, Any], *keys: str) -> str:
    """Return the first of these fields of a record that is text; some files have NaN instead."""
    return next((value for key in keys if isinstance(value := record.get(key), str)), "")


# Training, dev and auxiliary sentences of one run

AUXILIARY = ("acl_arc", "scicite", "section", "worthiness")
"""Tasks that can be trained beside the main one."""


@dataclass(frozen=True, slots=True)
class TrainingSets:
    """Labeled, dev, auxiliary and unlabeled examples that an intent classifier is trained and evaluated on."""

    train: LabeledSet
    dev: LabeledSet | None = None
    """Sentences for calibration and for the figures of the card; None = hold out a tenth of the labeled ones."""

    auxiliary: tuple[LabeledSet, ...] = ()
    unlabeled: tuple[Citance, ...] = ()

    def tasks(self) -> dict[str, int]:
        """Return the number of labels by task, the main one first."""
        return {labeled.task: len(labeled.labels) for labeled in (self.train, *self.auxiliary)}


def read_sets(
    files: Sequence[Path],
    *,
    task: str = "scicite",
    split: str = "train",
    dev: str = "dev",
    auxiliary: Mapping[str, Path] | None = None,
) -> TrainingSets:
    """Read the training, dev and auxiliary examples of a run from files; unlabeled ones may come from a corpus instead.

    `dev` is the split of the dev sentences, or a file of them; empty = a tenth of the training ones is held out.
    """
    labels = LABEL_SETS[choose(task, LABEL_SETS, "--task")]
    train, held = read_labeled(files, labels, split=split, task=task), None
    if dev and Path(dev).is_file():
        held = read_labeled([Path(dev)], labels, task=task)
    elif dev:
        if dev == split:
            raise UserError(f"--dev and --split are both {dev!r}; the dev sentences must not be trained on")
        held = read_labeled(files, labels, split=dev, task=task)
        if not split or not held.rejected.get(OTHER_SPLIT):
            raise UserError(
                f"the records name no splits, so --split {split!r} and --dev {dev!r} are the same "
                "sentences; give the dev sentences as a file, or --dev '' to hold out a tenth"
            )
    beside = tuple(_read_auxiliary(name, path, split) for name, path in (auxiliary or {}).items())
    return TrainingSets(train, held, beside)


def _read_auxiliary(task: str, path: Path, split: str) -> LabeledSet:
    choose(task, AUXILIARY, "the task of --auxiliary")
    if task != "section":
        return read_labeled([path], LABEL_SETS[task], split=split, task=task)
    labeled = section_examples(read_unlabeled(path, split=split))
    if not labeled.examples:
        raise UserError(f"{path}: no sentence has a known section title such as Methods; leave out --auxiliary section")
    return labeled
