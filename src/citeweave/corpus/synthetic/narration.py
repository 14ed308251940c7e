"""Text of the synthetic literature: concept wordings, author names, titles, abstracts, citing sentences.

    word_concept(Facet.METHOD, (0, 0, 0, 0), 0)   -> "sparse graph neural encoders trained on simulated cases"
    word_concept(Facet.METHOD, (0, 0, 0, 0), 7)   -> "sparse networks that pass messages along edges trained ..."

`phrases.toml` has the words, `literature.py` draws the integers. Nothing here is random: same integers, same text.
"""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from citeweave.core.files import read_input
from citeweave.corpus.paper import Intent


class Facet(enum.IntEnum):
    """What a sentence of a synthetic abstract says about its own paper."""

    OTHER = 0
    """Nothing: a sentence about the field, or about the problem, method or finding of another paper."""

    PROBLEM = 1
    METHOD = 2
    FINDING = 3


PHRASES: dict[str, dict[str, str]] = tomllib.loads(read_input(Path(__file__).with_name("phrases.toml")).decode())


def _parts(lines: str) -> tuple[tuple[str, ...], ...]:
    """Return the wordings of every part of a concept, one part per line."""
    return tuple(tuple(line.split("|")) for line in lines.splitlines())


_PARTS = {name: _parts(lines) for name, lines in PHRASES["parts"].items()}
FIELDS = tuple(PHRASES["fields"])
HEADS = {
    Facet.PROBLEM: tuple(head for heads in PHRASES["fields"].values() for head in _parts(heads)),
    Facet.METHOD: _PARTS["families"],
    Facet.FINDING: _PARTS["factors"],
}
WRAPS = {Facet.PROBLEM: _PARTS["tasks"], Facet.METHOD: _PARTS["modifiers"], Facet.FINDING: _PARTS["measures"]}
FRAMES = {Facet.PROBLEM: _PARTS["conditions"], Facet.METHOD: _PARTS["regimes"], Facet.FINDING: _PARTS["shapes"]}
AREAS = tuple(wordings[0] for wordings in HEADS[Facet.PROBLEM])
"""Names of the heads of problems where they serve as labels."""

ALIASES = 3
"""Number of coined names of a variant."""

VOICE = 12**4
"""Voices are integers below this: four digits in base 12, one for each part of a concept."""

_WORDING_OF_DIGIT = (0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3)
"""Wording that a digit chooses; the first is the plain one, and replaces a fourth where there are three."""

VOICES = tuple(
    a + 12 * b + 144 * c + 1728 * alias for alias in range(ALIASES) for c, b, a in product((0, 7, 9, 11), repeat=3)
)
"""One voice for each wording that `_WORDING_OF_DIGIT` can choose."""


def word_concept(facet: Facet, parts: Sequence[int], voice: int) -> str:
    """Return one wording of a concept.

    `parts` are the numbers of its head, wrap, frame and variant; `voice` (below `VOICE`) picks the words of each.
    Variant 0 has no name; any other has `ALIASES` coined ones, of which a voice knows one.
    """
    head, wrap, frame, variant = parts
    heads, wraps, frames = HEADS[facet][head], WRAPS[facet][wrap], FRAMES[facet][frame]
    text = _spell(
        heads[_WORDING_OF_DIGIT[voice % 12] % len(heads)],
        wraps[_WORDING_OF_DIGIT[voice // 12 % 12] % len(wraps)],
        frames[_WORDING_OF_DIGIT[voice // 144 % 12] % len(frames)],
    )
    if variant:
        text += f" ({_coined_name((variant - 1) * ALIASES + voice // 1728 % ALIASES)} type)"
    return text


def _spell(head: str, wrap: str, frame: str) -> str:
    """Return one wording of a concept from one wording of each of its parts.

    >>> _spell("graph encoders", "sparse *", "* trained on simulated cases")
    'sparse graph encoders trained on simulated cases'
    >>> _spell("sample size", "accuracy", "* grows with #")
    'accuracy grows with sample size'
    """
    return frame.replace("#", head).replace("*", wrap.replace("*", head))


_GIVEN_NAMES, _ONSETS, _MIDDLES, _ENDS = (
    PHRASES["names"][part].split() for part in ("given", "onset", "middle", "end")
)
_NAME_COUNT = len(_ONSETS) * len(_MIDDLES) ** 2 * len(_ENDS)


def _coined_name(number: int) -> str:
    """Return a pronounceable name for a number; the first 34,560 numbers have different names.

    >>> _coined_name(0), _coined_name(1), _coined_name(300)
    ('Babeck', 'Zunanbrell', 'Borolbtova')
    """
    number, onset = divmod(number * 7919 % _NAME_COUNT, len(_ONSETS))  # consecutive numbers should not look alike
    number, middle = divmod(number, len(_MIDDLES))
    number, end = divmod(number, len(_ENDS))
    inner = _MIDDLES[number % len(_MIDDLES)] + "b" if number else ""
    return _ONSETS[onset] + _MIDDLES[middle] + inner + _ENDS[end]


def author_name(number: int) -> str:
    """Return the name of a synthetic author.

    >>> author_name(0), author_name(12345)
    ('Ada A. Babeck', 'Filip V. Drelebmann')
    """
    given = _GIVEN_NAMES[number % len(_GIVEN_NAMES)]
    return f"{given} {chr(65 + number // 7 % 26)}. {_coined_name(number // len(_GIVEN_NAMES))}"


_TEMPLATES = {name: lines.splitlines() for name, lines in PHRASES["templates"].items()}
VENUES = tuple(tuple(venue.format(field.title()) for venue in _TEMPLATES["venues"]) for field in FIELDS)
TITLES = len(_TEMPLATES["titles"])

_SENTENCES = {letter: lines.splitlines() for letter, lines in PHRASES["sentences"].items()}
_FACETS = {"P": 1, "p": 1, "M": 2, "m": 2, "R": 3, "S": 3, "r": 3}
PATTERNS = ("FPyMRC", "PMmRS", "PpMRr", "xPMRS", "FPMyRS", "RPMmS", "xPMRS", "PpMR", "FMPRrC", "PMzRS")
PATTERN_FACETS = tuple(tuple(_FACETS.get(letter, 0) for letter in pattern) for pattern in PATTERNS)
LONGEST = max(map(len, PATTERNS))


def word_abstract(pattern: int, picks: Sequence[int], named: dict[str, str]) -> str:
    """Return an abstract by a pattern of sentences: `picks` choose the templates, `named` fills their gaps by letter."""
    sentences = []
    for letter, pick in zip(PATTERNS[pattern], picks, strict=False):
        templates = _SENTENCES[letter]
        sentences.append(templates[pick % len(templates)].format(named.get(letter)))
    return ". ".join(sentences) + "."


def word_title(pick: int, named: dict[str, str]) -> str:
    """Return a title that names two of the paper's own concepts.

    >>> word_title(0, {"P": "spotting rust", "M": "sparse forests", "R": "cost falls as age grows"})
    'Sparse forests for spotting rust'
    """
    text = _TEMPLATES["titles"][pick].format_map(named)
    return text[0].upper() + text[1:]


class Reason(NamedTuple):
    """One sentence template that says why papers are cited: {0} is a concept, {1} the marks of the cited papers."""

    text: str
    section: str
    intents: Intent


def _reasons(facet: Facet, intent: Intent) -> tuple[Reason, ...]:
    """Return the sentence templates of a reason with its intent and their finer ones."""
    lines = (line.split("|") for line in PHRASES["reasons"][facet.name].splitlines())
    return tuple(Reason(text, section, intent | Intent[finer]) for section, finer, text in lines)


REASONS = {
    Facet.PROBLEM: _reasons(Facet.PROBLEM, Intent.BACKGROUND),
    Facet.METHOD: _reasons(Facet.METHOD, Intent.METHOD),
    Facet.FINDING: _reasons(Facet.FINDING, Intent.RESULT),
    Facet.OTHER: _reasons(Facet.OTHER, Intent.BACKGROUND),
}
WAYS = 6
"""Number of sentence templates of each reason."""

MARK = "[CIT]"
MARKS = ("", MARK, f"{MARK}, {MARK}", f"{MARK}, {MARK} and {MARK}")
