"""Citing sentences with their labels, read from JSON lines.

    {"text": "... [17, 18] ...", "cite_span": [4, 12], "section": "Methods", "intent": "method", "split": "train"}
    {"string": "...", "citeStart": 4, "citeEnd": 12, "sectionName": "Methods", "label": "method"}       SciCite's own
    {"text": "...", "intent": "Uses", "section_name": "experiments", "citation_id": "..."}               ACL-ARC's own

    found = read_labeled([Path("contexts.jsonl.gz")], SCICITE, split="train")
    found.examples[0].citance, found.labels[found.examples[0].label], found.counts()

Needs nothing but the standard library and numpy's kin: it also runs where a GPU is and the rest of the package is not.
A record without a text or with another split is counted and left out; a label that is not known is an error.
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

from citeweave.core.columns import is_finite
from citeweave.core.errors import EmptyResultError, InputError, UserError
from citeweave.core.files import open_input
from citeweave.intents.citances import Citance, normalize_section

_LONGEST_LINE = 1 << 24
"""Bytes; a few of a compressed file may be gigabytes."""

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
"""Task -> its labels."""

THREE_OF_SIX = {
    "compareorcontrast": "result",
    "uses": "method",
    "extends": "method",
    "background": "background",
    "motivation": "background",
    "future": "background",
}
"""ACL-ARC's labels read as SciCite's, for the cross-check."""

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
_TELLING = 20
"""Letters with which a sentence is taken for one of a kind."""

NO_TEXT, OTHER_SPLIT, NO_SECTION = "no text", "another split", "no telling section"
IN_DEV = "also a dev sentence"


@dataclass(frozen=True, slots=True)
class Example:
    """A citance with its label, a row of `LabeledSet.labels`."""

    citance: Citance
    label: int
    confidence: float = 1.0
    """How sure the annotators were, 0 to 1; 1 where nobody says."""


@dataclass(frozen=True, slots=True)
class LabeledSet:
    """Examples of one task."""

    task: str
    labels: tuple[str, ...]
    examples: tuple[Example, ...]
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Reason -> records that are no examples."""

    def counts(self) -> dict[str, Any]:
        """Records read, kept and rejected by reason, and the examples of every label."""
        found = Counter(example.label for example in self.examples)
        return {
            "read": len(self.examples) + sum(self.rejected.values()),
            "kept": len(self.examples),
            "rejected": dict(sorted(self.rejected.items())),
            "labels": {name: found[row] for row, name in enumerate(self.labels)},
        }


def read_labeled(
    paths: Sequence[Path],
    labels: Sequence[str] = SCICITE,
    *,
    split: str = "",
    label_map: Mapping[str, str] | None = None,
    task: str = "scicite",
) -> LabeledSet:
    """Examples of some files; with `split` those of this split only, where a record names one."""
    rows = {label: row for row, label in enumerate(labels)}
    examples, rejected = [], Counter[str]()
    splits = set()
    for path in paths:
        for number, record in read_records(path):
            citance = citance_of(record)
            own = str(record.get("split") or "")
            splits.add(own)
            if split and own and own != split:
                rejected[OTHER_SPLIT] += 1
            elif not citance.text.strip():
                rejected[NO_TEXT] += 1
            else:
                label = _label(record, rows, label_map or {}, f"{path}, line {number}")
                examples.append(Example(citance, rows[label], _confidence(record)))
    if not examples:
        where = ", ".join(map(str, paths))
        known = ", ".join(sorted(splits - {""})) or "no splits"
        raise EmptyResultError(
            f"{where}: no labeled sentence" + (f" of split {split!r} (it has {known})" if split else "")
        )
    return LabeledSet(task, tuple(labels), tuple(examples), dict(rejected))


def without(train: LabeledSet, dev: LabeledSet) -> LabeledSet:
    """The training sentences that are not among the dev ones: SciCite has 42 twice, often with other spellings of a sign."""
    judged = {_letters(example.citance.text) for example in dev.examples} - {""}
    kept = tuple(example for example in train.examples if _letters(example.citance.text) not in judged)
    shared = len(train.examples) - len(kept)
    return replace(train, examples=kept, rejected={**train.rejected, IN_DEV: shared}) if shared else train


def _letters(text: str) -> str:
    """What of a text no encoding changes; empty where that is too little to tell texts apart.

    >>> _letters("A Cell grows 43–47 % (in vitro), as told.")
    'acellgrowsinvitroastold'
    """
    letters = re.sub(r"[^a-z]", "", text.lower())
    return letters if len(letters) >= _TELLING else " ".join(text.split())


def read_citances(path: Path, *, split: str = "", most: int = 0) -> list[Citance]:
    """Sentences without labels: {"text", "span" or "cite_span", "section"} a line; at most `most` of them, 0 = all."""
    found: list[Citance] = []
    for _, record in read_records(path):
        citance, own = citance_of(record), record.get("split")
        if citance.text.strip() and not (split and own and own != split):
            found.append(citance)
        if most and len(found) == most:
            break
    return found


def section_examples(citances: Sequence[Citance]) -> LabeledSet:
    """The task of telling the section from the sentence: those whose title is a telling one."""
    rows = {name: row for row, name in enumerate(SECTIONS)}
    classes = [section_class(citance.section) for citance in citances]
    examples = tuple(
        Example(replace(citance, section=""), rows[found])
        for citance, found in zip(citances, classes, strict=True)
        if found
    )
    return LabeledSet("section", SECTIONS, examples, {NO_SECTION: len(citances) - len(examples)})


def section_class(title: str) -> str:
    """
    >>> section_class("2. Related Work"), section_class("Materials and Methods"), section_class("The cerebellum")
    ('related work', 'method', '')
    """
    plain = normalize_section(title)
    return next((name for name, words in _SECTION_WORDS.items() if any(word in plain for word in words)), "")


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of every line of a .jsonl or .jsonl.gz file; empty lines are passed over."""
    if not path.is_file():
        raise UserError(f"{path} is no file; give JSON lines such as contexts.jsonl.gz")
    try:
        with open_input(path) as raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), 1):
                if len(line) > _LONGEST_LINE:
                    raise InputError(f"{path}, line {number} has more than {_LONGEST_LINE:,} bytes; it is no sentence")
                if line.strip():
                    yield number, _record(path, number, line)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path} is no whole gzip file; download it again") from None


def citance_of(record: Mapping[str, Any]) -> Citance:
    """The sentence of a record in any of the known spellings; a span that is none is left out."""
    text = _text(record, "text", "string", "cleaned_cite_text", "sentence")
    section = _text(record, "section", "sectionName", "section_name", "section_title")
    given = record.get("cite_span", record.get("span"))
    if given is None:
        given = (record.get("citeStart"), record.get("citeEnd"))
    span = None
    if isinstance(given, list | tuple) and len(given) == 2:
        start, end = (_whole(value) for value in given)
        span = (start, end) if start is not None and end is not None and start < end else None
    return Citance(text, span, section)


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise InputError(f"{path}, line {number} is not a JSON object; every line must be one labeled sentence")
    return record


def _label(record: Mapping[str, Any], rows: Mapping[str, int], label_map: Mapping[str, str], where: str) -> str:
    given = next((record[key] for key in ("intent", "label", "is_citation") if record.get(key) is not None), None)
    word = "".join(str(given).replace("_", " ").lower().split()) if given is not None else ""
    word = word if word in rows or word in label_map else _ALIASES.get(word, word)
    found = label_map.get(word, word)
    if found in rows:
        return found
    known = ", ".join([*rows, *(name for name in label_map if name not in rows)])
    raise InputError(f"{where}: the label is {given!r}; it must be one of {known}")


def _confidence(record: Mapping[str, Any]) -> float:
    value = record.get("intent_confidence", record.get("label_confidence"))
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    return 1.0


def _text(record: Mapping[str, Any], *keys: str) -> str:
    """The first of these fields that is a text; some files have NaN where there is none."""
    return next((value for key in keys if isinstance(value := record.get(key), str)), "")


def _whole(value: object) -> int | None:
    return int(value) if is_finite(value) else None
