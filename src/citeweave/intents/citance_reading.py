"""The citing sentences of a corpus as a classifier reads them: text, where the mark of the citation stands, heading.

    >>> text = "Unlike Otto (1999), cells were counted by hand (Li et al., 2019; Wu, 2020)."
    >>> start, end = own_mark(text, find_marks(text), "wu", 2021)
    >>> text[start:end]
    'Wu, 2020'

The mark is, in this order: the span that the source gave (`cite_span`, or `citeStart` and `citeEnd`), the sentence's
only mark, or, where the sentence cites one paper of the corpus, the mark that names its first author and its year to
within one. Otherwise it is None, and the classifier looks at all marks. A sentence that cites several papers of the
corpus is read once for all of them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.citation_marks import Span, find_marks
from citeweave.corpus.corpus import Corpus
from citeweave.finite import is_finite
from citeweave.intents.marking import Citance

_ENGLISH = "the of and with that this which are from by been have has were their is it we to for as in"
_OTHERS = (
    "der die das und ist sind nicht mit für auf werden wurde wurden den dem ein eine zu von im "
    "le la les des du dans est une pour par sur qui que sont été au aux ces "
    "el los las en una para por con del se su como es fue "
    "il di che è della dei per gli nel sono stato questo "
    "os da do em com uma foi não mais ao "
    "de het een van voor met zijn wordt worden op "
    "na jest się nie oraz przez do "
    "och att som av för med har inte på"
)
"""Frequent words of German, French, Spanish, Italian, Portuguese, Dutch, Polish and Swedish, in this order."""

_ENGLISH_WORDS, _OTHER_WORDS = frozenset(_ENGLISH.split()), frozenset(_OTHERS.split())
_WORD = re.compile(r"[^\W\d_]+")
_LEAST_WORDS = 6
_YEARS = re.compile(r"(?<!\d)(?:1[6-9]|20)\d\d")


@dataclass(frozen=True, slots=True)
class ReadCitances:
    """Some contexts, ready for a classifier."""

    citances: list[Citance]
    foreign: int
    """Sentences that look like another language than English."""

    unmarked: int
    """Sentences without a recognisable mark."""


def read_citances(corpus: Corpus, numbers: NDArray[np.int64], *, sections: bool) -> ReadCitances:
    """The contexts of these numbers, in their order."""
    table = corpus.contexts
    texts, extras = table.texts.take(numbers), table.extras.take(numbers)
    headings = table.sections.take(numbers) if sections else [""] * len(texts)
    names = _first_authors(corpus, numbers)
    citances, foreign, unmarked = [], 0, 0
    for text, extra, heading, (name, year) in zip(texts, extras, headings, names, strict=True):
        marks = find_marks(text)
        span = given_span(extra, len(text)) or own_mark(text, marks, name, year)
        citances.append(Citance(text, span, heading))
        foreign += looks_foreign(text)
        unmarked += not marks and span is None
    return ReadCitances(citances, foreign, unmarked)


def _first_authors(corpus: Corpus, numbers: NDArray[np.int64]) -> list[tuple[str, int]]:
    """Surname of the first author and year of the cited paper, where a context cites one paper of the corpus."""
    table = corpus.contexts
    starts, ends = table.cited_offsets[numbers], table.cited_offsets[numbers + 1]
    found = [("", 0)] * len(numbers)
    alone = np.flatnonzero(ends - starts == 1)
    rows = table.cited[starts[alone]]
    for place, authors, year in zip(
        alone.tolist(), corpus.authors.take(rows), corpus.years[rows].tolist(), strict=True
    ):
        found[place] = (surname(authors.partition("\n")[0]), year)
    return found


def surname(author: str) -> str:
    """
    >>> surname("Ada Lovelace"), surname("Lovelace, A."), surname("lovelace a"), surname("")
    ('lovelace', 'lovelace', 'lovelace', '')
    """
    words = [word for word in author.partition(",")[0].lower().split() if len(word.strip(".")) > 1]
    return words[-1] if words else ""


def own_mark(text: str, marks: list[Span], name: str, year: int) -> Span | None:
    """The only mark of a sentence, else the one part of its marks that names this author and year."""
    if len(marks) == 1 and ";" not in text[slice(*marks[0])]:
        return marks[0]
    if not name or not year:
        return marks[0] if len(marks) == 1 else None
    named = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
    parts = [part for mark in marks for part in _parts(text, mark)]
    fitting = [part for part in parts if named.search(text, *part) and _is_of(text[slice(*part)], year)]
    if len(fitting) == 1:
        return fitting[0]
    return marks[0] if len(marks) == 1 else None


def _parts(text: str, mark: Span) -> list[Span]:
    """The citations of one mark, which semicolons part; without the brackets around them where they are several."""
    start, end = mark
    if ";" not in text[start:end]:
        return [mark]
    start, end = start + (text[start] in "(["), end - (text[end - 1] in ")]")
    return [(start + found.start(), start + found.end()) for found in re.finditer(r"[^;\s][^;]*", text[start:end])]


def _is_of(mark: str, year: int) -> bool:
    """Whether a mark names this year to within one: a preprint is often cited by the year it appeared in print."""
    return any(abs(int(found) - year) <= 1 for found in _YEARS.findall(mark))


def given_span(extra: str, length: int) -> Span | None:
    """The place of the mark as the source tells it; None where it does not, or outside the text.

    >>> given_span('{"cite_span":[168.0,175.0]}', 200), given_span('{"citeStart":3,"citeEnd":9}', 5), given_span("", 9)
    ((168, 175), None, None)
    """
    if not extra or ("span" not in extra and "citeStart" not in extra):
        return None
    facts = json.loads(extra)
    pair = facts.get("cite_span") or facts.get("span") or [facts.get("citeStart"), facts.get("citeEnd")]
    if not isinstance(pair, list) or len(pair) != 2 or not all(_is_place(value) for value in pair):
        return None
    start, end = int(pair[0]), int(pair[1])
    return (start, end) if 0 <= start < end <= length else None


def _is_place(value: object) -> bool:
    return is_finite(value)


def looks_foreign(text: str) -> bool:
    """Whether a sentence looks like another language than English: by its script, or by its frequent words.

    >>> looks_foreign("この方法は広く使われている [3]。"), looks_foreign("Dies ist die Art und der Ort [3].")
    (True, True)
    >>> looks_foreign("Graphs of the cell [3]."), looks_foreign("[3]")
    (False, False)
    """
    letters = [letter for letter in text if letter.isalpha()]
    if sum(letter > "\u024f" for letter in letters) > 0.3 * len(letters):
        return True
    words = _WORD.findall(text.lower())
    other = sum(word in _OTHER_WORDS for word in words)
    # names such as "de la Cruz" have such words too, so they must be many, and more than the English ones
    return (
        len(words) >= _LEAST_WORDS and 6 * other >= len(words) and other > sum(word in _ENGLISH_WORDS for word in words)
    )
