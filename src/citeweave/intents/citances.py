"""How a citing sentence is shown to the network: the citation as one token, the section's title before it.

    Citance("We follow Och (2003) and [4].", span=(10, 20), section="3.1 Methods")
    [CLS] methods [SEP] we follow [unused0] and [unused1] . [SEP]

The citation that is asked about becomes a token that the tokenizer otherwise does not use, other citations another such
token; a tokenizer without them gets the word "citation". Without a span every citation that `corpus/citation_marks.py`
finds is asked about. A mark without a digit is a word of the sentence ("Ruffus", "LSTM") more often than a citation: it
stays, and the token stands behind it. Long sentences are cut to the tokens around the mark. Computes no vectors.

The citing sentences of a corpus as a classifier reads them: text, where the mark of the citation stands, heading.

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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import is_finite
from citeweave.corpus.citation_marks import Span, find_marks
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.tokens import TextReader, Tokens

VERSION = 1
"""Of what the network is shown; a classifier reads only what it was trained on."""

ASKED, OTHER = "[unused0]", "[unused1]"
SECTION_TOKENS = 16
"""Most tokens of a section's title."""

_LONGEST = 20_000
"""Characters of a sentence that are looked at, around its mark."""

_MARKED_WORD = "citation"
_NUMBERING = re.compile(
    r"^\s*(?:(?:section|chapter|appendix|part)\s+)?(?:(?:\d+|[ivx]+|[a-h])(?:[.)]\d*)+|\d+(?:\.\d+)*|[ivx]+(?=\s+[A-Z]))"
    r"[\s.:)\-–—|]*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Citance:
    """A citing sentence."""

    text: str
    span: Span | None = None
    """Characters of the citation's mark in the text; None = to be found, or none there."""

    section: str = ""
    """Title of the section that it stands in, as it is printed."""


@dataclass(frozen=True, slots=True)
class MarkedTokens:
    """What the network reads, and where the citation stands in it."""

    ids: Tokens
    """(tokens,), special ones included; none for a sentence without a token."""

    marks: NDArray[np.int64]
    """Positions of the citation that is asked about, (marks,); none where there is no citation."""


@dataclass(frozen=True, slots=True)
class MarkedPieces:
    """A citance as tokens before it is cut and put together; see `MarkReader.put_together`."""

    section: Tokens
    body: Tokens
    marks: NDArray[np.int64]
    """Positions in the body, (marks,)."""


def normalize_section(title: str) -> str:
    """
    >>> normalize_section("3.1 Statistical  Analysis"), normalize_section("IV. METHODS"), normalize_section("A. Data")
    ('statistical analysis', 'methods', 'data')
    >>> normalize_section("In vitro assays"), normalize_section("2")
    ('in vitro assays', '')
    """
    return " ".join(_NUMBERING.sub("", title[:400], count=1).lower().split())


def check_span(text: str, span: Span | None) -> Span | None:
    """The span inside the text, without the blanks at its ends; None where nothing of it is left."""
    if span is None:
        return None
    start, end = max(0, span[0]), min(len(text), span[1])
    inner = text[start:end]
    start += len(inner) - len(inner.lstrip())
    end -= len(inner) - len(inner.rstrip())
    return (start, end) if start < end else None


def mark_parts(text: str, span: Span | None, *, remove: bool = False) -> list[str]:
    """The sentence cut at its citations: texts and, between them, ASKED or OTHER. With `remove` the texts alone.

    >>> mark_parts("As Och (2003) and [4] saw.", (3, 13))
    ['As ', '[unused0]', ' and ', '[unused1]', ' saw.']
    >>> mark_parts("Growth (Li, 2001; Wu, 2002).", (18, 26))
    ['Growth ', '[unused1]', '[unused0]', '.']
    >>> mark_parts("Growth (Li, 2001).", None), mark_parts("Growth (Li, 2001).", None, remove=True)
    (['Growth ', '[unused0]', '.'], ['Growth ', '.'])
    """
    span = check_span(text, span)
    found = find_marks(text)
    places = [(start, end, ASKED) for start, end in found] if span is None or remove else _around(text, span, found)
    parts: list[str] = []
    at = 0
    for start, end, kind in places:
        parts += [text[at:start], *([] if remove else [kind])]
        at = end
    return [part for part in [*parts, text[at:]] if part]


def _around(text: str, span: Span, found: Sequence[Span]) -> list[tuple[int, int, str]]:
    """The citation asked about among the others; what is left of a bracket around it is another citation, or nothing."""
    start, end = span
    if not any(character.isdigit() for character in text[start:end]):
        start = end  # a word of the sentence: it stays, and the mark stands behind it
    places = [(first, last, OTHER) for first, last in found if last <= start or first >= end]
    before = min((first for first, last in found if first < start < last), default=start)
    after = max((last for first, last in found if first < end < last), default=end)
    if before < start:
        places.append((before, start, OTHER if _cites(text[before:start]) else ""))
    places.append((start, end, ASKED))
    if end < after:
        places.append((end, after, OTHER if _cites(text[end:after]) else ""))
    return sorted(places, key=lambda place: place[:2])


def _cites(rest: str) -> bool:
    return any(character.isdigit() for character in rest)


@dataclass(frozen=True, slots=True)
class MarkReader:
    """Turns citances into tokens. See `make_mark_reader`."""

    reader: TextReader
    max_tokens: int
    asked: Tokens
    other: Tokens

    def read(self, citances: Sequence[Citance]) -> list[MarkedTokens]:
        """What the network reads of every citance."""
        return [self.put_together(pieces) for pieces in self.pieces(citances)]

    def pieces(self, citances: Sequence[Citance], *, remove: bool = False) -> list[MarkedPieces]:
        """Tokens of sections and sentences apart; with `remove` the sentences are without their citations."""
        parts = [mark_parts(*_nearby(citance), remove=remove) for citance in citances]
        sections = [normalize_section(citance.section) for citance in citances]
        texts = [part for row in parts for part in row if part not in (ASKED, OTHER)]
        ids = iter(self.reader.pieces([*texts, *sections]))
        bodies = [
            self._join([self._mark(part) if part in (ASKED, OTHER) else next(ids) for part in row], row)
            for row in parts
        ]
        return [
            MarkedPieces(section[:SECTION_TOKENS], body, marks)
            for section, (body, marks) in zip(ids, bodies, strict=True)
        ]

    def put_together(self, pieces: MarkedPieces, *, hide_section: bool = False) -> MarkedTokens:
        """Section, sentence and special tokens, at most `max_tokens`: of a long sentence the part around the mark."""
        none = np.zeros(0, np.int64)
        if not len(pieces.body):
            return MarkedTokens(none, none)
        hidden = hide_section or not len(pieces.section)
        opening, closing = self.reader.opening, self.reader.closing
        before = opening if hidden else np.concatenate([opening, pieces.section, self.reader.separator])
        room = self.max_tokens - len(before) - len(closing)
        if room < 1:  # a title that leaves no room goes first
            before, room = opening, self.max_tokens - len(opening) - len(closing)
        center = int(pieces.marks[0]) if len(pieces.marks) else 0
        first = max(0, min(center - room // 2, len(pieces.body) - room))
        marks = pieces.marks[(pieces.marks >= first) & (pieces.marks < first + room)] - first + len(before)
        return MarkedTokens(np.concatenate([before, pieces.body[first : first + room], closing]), marks)

    def _mark(self, part: str) -> Tokens:
        return self.asked if part == ASKED else self.other

    def _join(self, tokens: list[Tokens], row: list[str]) -> tuple[Tokens, NDArray[np.int64]]:
        if not tokens:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        starts = [0, *accumulate(map(len, tokens))]
        marks = [
            position
            for start, ids, part in zip(starts, tokens, row, strict=False)
            if part == ASKED
            for position in range(start, start + len(ids))
        ]
        return np.concatenate(tokens), np.array(marks, np.int64)  # (tokens,), (marks,)


def make_mark_reader(reader: TextReader, max_tokens: int) -> MarkReader:
    """Find out which tokens of the tokenizer can stand for a citation."""
    vocabulary = reader.tokenizer.get_vocab()
    if ASKED in vocabulary and OTHER in vocabulary:
        asked, other = (np.array([vocabulary[token]], np.int64) for token in (ASKED, OTHER))
    else:
        asked = other = reader.pieces([_MARKED_WORD])[0]
    return MarkReader(reader, max_tokens, asked, other)


def _nearby(citance: Citance) -> tuple[str, Span | None]:
    """A text of a bounded length with the mark in it; whole pages are sometimes taken for a sentence."""
    text, span = citance.text, check_span(citance.text, citance.span)
    if len(text) <= _LONGEST:
        return text, span
    first = 0 if span is None else max(0, min(span[0] - _LONGEST // 2, len(text) - _LONGEST))
    shifted = None if span is None else (span[0] - first, span[1] - first)
    return text[first : first + _LONGEST], shifted


# The citing sentences of a corpus as a classifier reads them: text, where the mark of the citation stands, heading.

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
_CITANCE_WORD = re.compile(r"[^\W\d_]+")
_LEAST_WORDS = 6
_YEARS = re.compile(r"(?<!\d)(?:1[6-9]|20)\d\d")


@dataclass(frozen=True, slots=True)
class ReadCitances:
    """Some contexts, ready for a classifier."""

    citances: list[Citance]
    foreign: int
    """Sentences that look like another language than English."""

    unmarked: int
    """Sentences without a recognizable mark."""


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
    words = _CITANCE_WORD.findall(text.lower())
    other = sum(word in _OTHER_WORDS for word in words)
    # names such as "de la Cruz" have such words too, so they must be many, and more than the English ones
    return (
        len(words) >= _LEAST_WORDS and 6 * other >= len(words) and other > sum(word in _ENGLISH_WORDS for word in words)
    )
