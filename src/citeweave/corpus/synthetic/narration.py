"""Text of the synthetic literature: concept wordings, author names, titles, abstracts, citing sentences.

    word_concept(Facet.METHOD, (0, 0, 0, 0), 0)   -> "sparse graph neural encoders trained on simulated cases"
    word_concept(Facet.METHOD, (0, 0, 0, 0), 7)   -> "sparse networks that pass messages along edges trained ..."

`vocabulary.py` has the words, `literature.py` draws the integers. Nothing here is random: same integers, same text.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from citeweave.corpus.paper import Intent
from citeweave.corpus.synthetic import vocabulary


class Facet(enum.IntEnum):
    """What a sentence of a synthetic abstract says about its own paper."""

    OTHER = 0
    """Nothing: a sentence about the field, or about the problem, method or finding of another paper."""

    PROBLEM = 1
    METHOD = 2
    FINDING = 3


FIELDS = tuple(vocabulary.FIELDS)
HEADS = {
    Facet.PROBLEM: tuple(head for heads in vocabulary.FIELDS.values() for head in heads),
    Facet.METHOD: vocabulary.FAMILIES,
    Facet.FINDING: vocabulary.FACTORS,
}
WRAPS = {
    Facet.PROBLEM: vocabulary.TASKS,
    Facet.METHOD: vocabulary.MODIFIERS,
    Facet.FINDING: vocabulary.MEASURES,
}
AREAS = tuple(wordings[0] for wordings in HEADS[Facet.PROBLEM])
"""Names of the heads of problems where they serve as labels."""

FRAMES = {
    Facet.PROBLEM: vocabulary.CONDITIONS,
    Facet.METHOD: vocabulary.REGIMES,
    Facet.FINDING: vocabulary.SHAPES,
}
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
    text = vocabulary.spell(
        heads[_WORDING_OF_DIGIT[voice % 12] % len(heads)],
        wraps[_WORDING_OF_DIGIT[voice // 12 % 12] % len(wraps)],
        frames[_WORDING_OF_DIGIT[voice // 144 % 12] % len(frames)],
    )
    if variant:
        text += f" ({_coined_name((variant - 1) * ALIASES + voice // 1728 % ALIASES)} type)"
    return text


_ONSETS, _MIDDLES, _ENDS = (vocabulary.NAMES[part].split() for part in ("onset", "middle", "end"))
_NAME_COUNT = len(_ONSETS) * len(_MIDDLES) ** 2 * len(_ENDS)
_GIVEN_NAMES = vocabulary.NAMES["given"].split()


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


_VENUES = ("Journal of {}", "Transactions on {}", "{} Letters", "Symposium on {}", "Annals of {}", "Open {} Reports")
VENUES = tuple(tuple(venue.format(field.title()) for venue in _VENUES) for field in FIELDS)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


# Letter of a pattern -> sentence templates. `P`, `M`, `R` and `S` name the paper's own concept, `x`, `y` and `z` that of
# another paper, `p`, `m` and `r` keep to the facet without naming anything, `F` and `C` are about the field.
_SENTENCES = {
    "F": _lines("""
        Interest in {0} has grown over the past decade
        Progress in {0} is uneven and often hard to compare
        Many groups in {0} now share data and protocols
        The literature of {0} is scattered over several communities
        Practitioners of {0} ask for results they can act on
        Much of {0} still rests on assumptions that were never tested
    """),
    "P": _lines("""
        We address {0}
        This paper is concerned with {0}
        An open question is {0}
        Our subject is {0}
        The work reported here was prompted by {0}
        Little is known about {0}
    """),
    "p": _lines("""
        The question is old but has resisted a satisfactory answer
        A solution would matter well beyond the case at hand
        Existing answers are partial and sometimes contradict each other
        The difficulty lies in the many ways in which the phenomenon shows itself
    """),
    "M": _lines("""
        We rely on {0}
        To this end we employ {0}
        Our approach is built from {0}
        The analysis rests on {0}
        As our instrument we chose {0}
        All results were obtained with {0}
    """),
    "m": _lines("""
        The procedure has few settings and each was fixed in advance
        Every step is documented so that others can repeat it
        We describe the design choices and the reasons behind them
        An ablation shows which ingredients are needed
    """),
    "R": _lines("""
        We find that {0}
        The main outcome is that {0}
        Our evidence indicates that {0}
        It turns out that {0}
        The data show that {0}
        Taken together, the observations say that {0}
    """),
    "S": _lines("""
        In short, {0}
        We conclude that {0}
        The lesson is that {0}
        Our message is therefore that {0}
    """),
    "r": _lines("""
        The effect holds in every subset that we examined
        The outcome is stable under the usual checks
        The size of the effect surprised us
        An independent replication agrees with this outcome
    """),
    "x": _lines("""
        Neighbouring work looks at {0}
        This differs from {0}, which we leave aside
        Others have turned to {0}
        We do not consider {0}
    """),
    "y": _lines("""
        Earlier studies preferred {0}
        We decided against {0}
        A common alternative would be {0}
        Readers may expect {0}, which proved unsuitable here
    """),
    "z": _lines("""
        It is often claimed that {0}
        Conventional wisdom holds that {0}
        We cannot confirm that {0}
        Whether {0} is left open
    """),
    "C": _lines("""
        Implications for {0} are discussed
        We close with recommendations for {0}
        Material for the whole study is available to the {0} community
        The paper ends with open questions for {0}
    """),
}
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


# Findings are in most titles, since they are the hardest to recognize.
_TITLES = _lines("""
    {M} for {P}
    {P}: what {M} can do
    {P}, or how {R}
    {R}: a report on {P}
    on {P} and why {R}
    {R}: lessons from {M}
    {M} at work: evidence that {R}
    does it hold that {R}, and what of {P}
""")
TITLES = len(_TITLES)


def word_title(pick: int, named: dict[str, str]) -> str:
    """Return a title that names two of the paper's own concepts.

    >>> word_title(0, {"P": "spotting rust", "M": "sparse forests", "R": "cost falls as age grows"})
    'Sparse forests for spotting rust'
    """
    text = _TITLES[pick].format_map(named)
    return text[0].upper() + text[1:]


class Reason(NamedTuple):
    """One sentence template that says why papers are cited: {0} is a concept, {1} the marks of the cited papers."""

    text: str
    section: str
    intents: Intent


def _parse_reasons(intent: Intent, lines: str) -> tuple[Reason, ...]:
    """Parse the sentence templates of one reason: section, finer intent and text per line."""
    split = (line.split("|") for line in _lines(lines))
    return tuple(Reason(text, section, intent | Intent[finer]) for section, finer, text in split)


REASONS = {
    Facet.PROBLEM: _parse_reasons(
        Intent.BACKGROUND,
        """
        Introduction|UNKNOWN|The problem of {0} has been studied before {1}.
        Introduction|UNKNOWN|Earlier accounts of {0} are given in {1}.
        Related Work|UNKNOWN|A body of work deals with {0} {1}.
        Introduction|MOTIVATION|Our interest in {0} was raised by {1}.
        Introduction|MOTIVATION|That {0} deserves more attention was argued in {1}.
        Discussion|FUTURE|What remains of {0} after {1} is left for later.
        """,
    ),
    Facet.METHOD: _parse_reasons(
        Intent.METHOD,
        """
        Methods|EXTENDS|We build on the {0} of {1}.
        Methods|EXTENDS|Our variant extends {0} as put forward in {1}.
        Methods|USES|Following {1}, we use {0}.
        Methods|USES|The implementation of {0} is taken from {1}.
        Experimental Setup|USES|We ran {0} with the settings of {1}.
        Methods|UNKNOWN|Details of {0} can be found in {1}.
        """,
    ),
    Facet.FINDING: _parse_reasons(
        Intent.RESULT,
        """
        Results|COMPARES|In agreement with {1}, we see that {0}.
        Results|COMPARES|Our numbers match those of {1}, where {0}.
        Discussion|COMPARES|That {0} was also reported by {1}.
        Discussion|UNKNOWN|The same outcome, namely that {0}, appears in {1}.
        Discussion|UNKNOWN|As {1} showed, {0}.
        Results|UNKNOWN|This repeats the observation of {1} that {0}.
        """,
    ),
    Facet.OTHER: _parse_reasons(
        Intent.BACKGROUND,
        """
        Introduction|UNKNOWN|For a general view of {0} see {1}.
        Introduction|UNKNOWN|Much has been written on {0} {1}.
        Related Work|UNKNOWN|Other lines of {0} are pursued in {1}.
        Introduction|UNKNOWN|Recent years have seen activity in {0} {1}.
        Discussion|UNKNOWN|Further topics of {0} are outside our scope {1}.
        Introduction|UNKNOWN|Researchers in {0} hold differing views {1}.
        """,
    ),
}
WAYS = 6
"""Number of sentence templates of each reason."""

MARK = "[CIT]"
MARKS = ("", MARK, f"{MARK}, {MARK}", f"{MARK}, {MARK} and {MARK}")
