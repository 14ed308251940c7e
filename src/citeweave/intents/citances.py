"""Citing sentences (citances): taken from a corpus with their citation mark and section, and tokenized.

    Citance("We follow Och (2003) and [4].", span=(10, 20), section="3.1 Methods")
    [CLS] methods [SEP] we follow [unused0] and [unused1] . [SEP]

The target citation becomes a token that the tokenizer otherwise does not use, other citations another such token; a
tokenizer without them gets the word "citation". Without a span every citation that `corpus/citation_marks.py` finds is
a target. A mark without a digit is a word of the sentence ("Ruffus", "LSTM") more often than a citation: it stays, and
the token follows it. Long sentences are cut to the tokens around the mark. Computes no vectors.

The span of a corpus's citing sentence is looked up by `find_own_mark`:

    >>> text = "Unlike Otto (1999), cells were counted by hand (Li et al., 2019; Wu, 2020)."
    >>> start, end = find_own_mark(text, find_marks(text), "wu", 2021)
    >>> text[start:end]
    'Wu, 2020'

The mark is, in this order: the span in the source (`cite_span`, or `citeStart` and `citeEnd`), the sentence's only
mark, or, where the sentence cites one paper of the corpus, the mark that names its first author and its year to
within one. Otherwise it is None, and the classifier treats all marks as targets. A sentence that cites several papers
of the corpus is read once for all of them.
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
"""Version of how citances are tokenized; a classifier must be used with the version it was trained on."""

TARGET, OTHER = "[unused0]", "[unused1]"
"""Tokens for the citation whose intent is predicted, and for all others."""

SECTION_TOKENS = 16
"""Maximum number of tokens of a section's title."""

_MAX_CHARACTERS = 20_000
"""Maximum number of characters of a sentence, around its mark."""

_MARKED_WORD = "citation"
_NUMBERING = re.compile(
    r"^\s*(?:(?:section|chapter|appendix|part)\s+)?(?:(?:\d+|[ivx]+|[a-h])(?:[.)]\d*)+|\d+(?:\.\d+)*|[ivx]+(?=\s+[A-Z]))"
    r"[\s.:)\-–—|]*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Citance:
    """A citing sentence with the span of its citation mark and the title of its section."""

    text: str
    span: Span | None = None
    """Start and end of the citation's mark in the text; None = search for marks."""

    section: str = ""
    """Title of its section, as printed."""


@dataclass(frozen=True, slots=True)
class MarkedTokens:
    """Tokens of a citance as the intent network reads them, and the positions of its citation."""

    ids: Tokens
    """(tokens,), special ones included; empty for a sentence without a token."""

    marks: NDArray[np.int64]
    """Positions of the target citation, (marks,); empty where there is no citation."""


@dataclass(frozen=True, slots=True)
class UncutTokens:
    """Tokens of a citance's section and sentence before `CitanceTokenizer.assemble` joins and cuts them."""

    section: Tokens
    body: Tokens
    marks: NDArray[np.int64]
    """Positions in the body, (marks,)."""


def normalize_section(title: str) -> str:
    """Return the title of a citance's section in lower case without its number.

    >>> normalize_section("3.1 Statistical  Analysis"), normalize_section("IV. METHODS"), normalize_section("A. Data")
    ('statistical analysis', 'methods', 'data')
    >>> normalize_section("In vitro assays"), normalize_section("2")
    ('in vitro assays', '')
    """
    return " ".join(_NUMBERING.sub("", title[:400], count=1).lower().split())


def _check_span(text: str, span: Span | None) -> Span | None:
    """Clip a mark's span to the text and strip whitespace at its ends; None where nothing is left."""
    if span is None:
        return None
    start, end = max(0, span[0]), min(len(text), span[1])
    inner = text[start:end]
    start += len(inner) - len(inner.lstrip())
    end -= len(inner) - len(inner.rstrip())
    return (start, end) if start < end else None


def split_at_marks(text: str, span: Span | None, *, remove: bool = False) -> list[str]:
    """Split a citance at its citations into texts with TARGET or OTHER between; with `remove` the texts alone.

    >>> split_at_marks("As Och (2003) and [4] saw.", (3, 13))
    ['As ', '[unused0]', ' and ', '[unused1]', ' saw.']
    >>> split_at_marks("Growth (Li, 2001; Wu, 2002).", (18, 26))
    ['Growth ', '[unused1]', '[unused0]', '.']
    >>> split_at_marks("Growth (Li, 2001).", None), split_at_marks("Growth (Li, 2001).", None, remove=True)
    (['Growth ', '[unused0]', '.'], ['Growth ', '.'])
    """
    span = _check_span(text, span)
    marks = find_marks(text)
    places = [(*mark, TARGET) for mark in marks] if span is None or remove else _label_marks(text, span, marks)
    parts: list[str] = []
    at = 0
    for start, end, kind in places:
        parts += [text[at:start], *([] if remove else [kind])]
        at = end
    return [part for part in [*parts, text[at:]] if part]


def _label_marks(text: str, span: Span, marks: Sequence[Span]) -> list[tuple[int, int, str]]:
    """Label the target citation and the others; the rest of a bracket around the target is another one, or nothing."""
    start, end = span
    if not _has_digit(text[start:end]):
        start = end  # a word of the sentence: it stays, and the mark follows it
    places = [(first, last, OTHER) for first, last in marks if last <= start or first >= end]
    before = min((first for first, last in marks if first < start < last), default=start)
    after = max((last for first, last in marks if first < end < last), default=end)
    if before < start:
        places.append((before, start, OTHER if _has_digit(text[before:start]) else ""))
    places.append((start, end, TARGET))
    if end < after:
        places.append((end, after, OTHER if _has_digit(text[end:after]) else ""))
    return sorted(places, key=lambda place: place[:2])


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


@dataclass(frozen=True, slots=True)
class CitanceTokenizer:
    """Tokenizer of citances: marks their citations, puts the section first, and cuts long sentences."""

    reader: TextReader
    max_tokens: int
    target: Tokens
    other: Tokens

    def read(self, citances: Sequence[Citance]) -> list[MarkedTokens]:
        """Return the network's input for every citance."""
        return [self.assemble(uncut) for uncut in self.tokenize(citances)]

    def tokenize(self, citances: Sequence[Citance], *, remove: bool = False) -> list[UncutTokens]:
        """Tokenize sections and sentences of citances separately; with `remove` the citations are left out."""
        parts = [split_at_marks(*_clip_text(citance), remove=remove) for citance in citances]
        sections = [normalize_section(citance.section) for citance in citances]
        texts = [part for row in parts for part in row if part not in (TARGET, OTHER)]
        ids = iter(self.reader.pieces([*texts, *sections]))
        bodies = [
            self._join([self._mark(part) if part in (TARGET, OTHER) else next(ids) for part in row], row)
            for row in parts
        ]
        return [
            UncutTokens(section[:SECTION_TOKENS], body, marks)
            for section, (body, marks) in zip(ids, bodies, strict=True)
        ]

    def assemble(self, uncut: UncutTokens, *, hide_section: bool = False) -> MarkedTokens:
        """Join a citance's section, sentence and special tokens, cut to `max_tokens` around the mark if it is long."""
        none = np.zeros(0, np.int64)
        if not len(uncut.body):
            return MarkedTokens(none, none)
        hidden = hide_section or not len(uncut.section)
        opening, closing = self.reader.opening, self.reader.closing
        before = opening if hidden else np.concatenate([opening, uncut.section, self.reader.separator])
        room = self.max_tokens - len(before) - len(closing)
        if room < 1:  # drop a title that leaves no room
            before, room = opening, self.max_tokens - len(opening) - len(closing)
        center = int(uncut.marks[0]) if len(uncut.marks) else 0
        first = max(0, min(center - room // 2, len(uncut.body) - room))
        marks = uncut.marks[(uncut.marks >= first) & (uncut.marks < first + room)] - first + len(before)
        return MarkedTokens(np.concatenate([before, uncut.body[first : first + room], closing]), marks)

    def _mark(self, part: str) -> Tokens:
        return self.target if part == TARGET else self.other

    def _join(self, tokens: list[Tokens], row: list[str]) -> tuple[Tokens, NDArray[np.int64]]:
        if not tokens:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        starts = [0, *accumulate(map(len, tokens))]
        marks = [
            position
            for start, ids, part in zip(starts, tokens, row, strict=False)
            if part == TARGET
            for position in range(start, start + len(ids))
        ]
        return np.concatenate(tokens), np.array(marks, np.int64)  # (tokens,), (marks,)


def make_citance_tokenizer(reader: TextReader, max_tokens: int) -> CitanceTokenizer:
    """Make a citance tokenizer, choosing tokens of the vocabulary that can stand for a citation."""
    vocabulary = reader.tokenizer.get_vocab()
    if TARGET in vocabulary and OTHER in vocabulary:
        target, other = (np.array([vocabulary[token]], np.int64) for token in (TARGET, OTHER))
    else:
        target = other = reader.pieces([_MARKED_WORD])[0]
    return CitanceTokenizer(reader, max_tokens, target, other)


def _clip_text(citance: Citance) -> tuple[str, Span | None]:
    """Clip a citance's text around its mark; sources sometimes give a whole page as one sentence."""
    text, span = citance.text, _check_span(citance.text, citance.span)
    if len(text) <= _MAX_CHARACTERS:
        return text, span
    first = 0 if span is None else max(0, min(span[0] - _MAX_CHARACTERS // 2, len(text) - _MAX_CHARACTERS))
    shifted = None if span is None else (span[0] - first, span[1] - first)
    return text[first : first + _MAX_CHARACTERS], shifted


# The citing sentences of a corpus

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
"""Frequent words of German, French, Spanish, Italian, Portuguese, Dutch, Polish and Swedish, one language per line."""

_ENGLISH_WORDS, _OTHER_WORDS = frozenset(_ENGLISH.split()), frozenset(_OTHERS.split())
_WORD = re.compile(r"[^\W\d_]+")
_MIN_WORDS = 6
_YEARS = re.compile(r"(?<!\d)(?:1[6-9]|20)\d\d")


@dataclass(frozen=True, slots=True)
class CorpusCitances:
    """Citances of a corpus, with counts of foreign-language and unmarked sentences."""

    citances: list[Citance]
    foreign: int
    """Sentences that do not look like English."""

    unmarked: int
    """Sentences without a recognizable mark."""


def read_corpus_citances(corpus: Corpus, numbers: NDArray[np.int64], *, sections: bool) -> CorpusCitances:
    """Read the citances of these context numbers from a corpus, and find the mark of each citation."""
    table = corpus.contexts
    texts, extras = table.texts.take(numbers), table.extras.take(numbers)
    headings = table.sections.take(numbers) if sections else [""] * len(texts)
    names = _first_authors(corpus, numbers)
    citances, foreign, unmarked = [], 0, 0
    for text, extra, heading, (name, year) in zip(texts, extras, headings, names, strict=True):
        marks = find_marks(text)
        span = read_span(extra, len(text)) or find_own_mark(text, marks, name, year)
        citances.append(Citance(text, span, heading))
        foreign += looks_foreign(text)
        unmarked += not marks and span is None
    return CorpusCitances(citances, foreign, unmarked)


def _first_authors(corpus: Corpus, numbers: NDArray[np.int64]) -> list[tuple[str, int]]:
    """Return first author's surname and year of the cited paper, where a context cites just one paper of the corpus."""
    table = corpus.contexts
    starts, ends = table.cited_offsets[numbers], table.cited_offsets[numbers + 1]
    names = [("", 0)] * len(numbers)
    single = np.flatnonzero(ends - starts == 1)
    rows = table.cited[starts[single]]
    for place, authors, year in zip(
        single.tolist(), corpus.authors.take(rows), corpus.years[rows].tolist(), strict=True
    ):
        names[place] = (_surname(authors.partition("\n")[0]), year)
    return names


def _surname(author: str) -> str:
    """Return an author's last name in lower case, to look for it in citation marks.

    >>> _surname("Ada Lovelace"), _surname("Lovelace, A."), _surname("lovelace a"), _surname("")
    ('lovelace', 'lovelace', 'lovelace', '')
    """
    words = [word for word in author.partition(",")[0].lower().split() if len(word.strip(".")) > 1]
    return words[-1] if words else ""


def find_own_mark(text: str, marks: list[Span], name: str, year: int) -> Span | None:
    """Find a citance's only citation mark, else the only part of its marks that names this author and year."""
    if len(marks) == 1 and ";" not in text[slice(*marks[0])]:
        return marks[0]
    if not name or not year:
        return marks[0] if len(marks) == 1 else None
    named = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
    parts = [part for mark in marks for part in _split_mark(text, mark)]
    matches = [part for part in parts if named.search(text, *part) and _names_year(text[slice(*part)], year)]
    if len(matches) == 1:
        return matches[0]
    return marks[0] if len(marks) == 1 else None


def _split_mark(text: str, mark: Span) -> list[Span]:
    """Split a citation mark at its semicolons; several citations lose the brackets around them."""
    start, end = mark
    if ";" not in text[start:end]:
        return [mark]
    start, end = start + (text[start] in "(["), end - (text[end - 1] in ")]")
    return [(start + match.start(), start + match.end()) for match in re.finditer(r"[^;\s][^;]*", text[start:end])]


def _names_year(mark: str, year: int) -> bool:
    """Return whether a mark names this year to within one: preprints are often cited by the year of print."""
    return any(abs(int(named) - year) <= 1 for named in _YEARS.findall(mark))


def read_span(extra: str, length: int) -> Span | None:
    """Read where a citance has its citation mark, from the source's metadata; None where it is missing or outside the text.

    >>> read_span('{"cite_span":[168.0,175.0]}', 200), read_span('{"citeStart":3,"citeEnd":9}', 5), read_span("", 9)
    ((168, 175), None, None)
    """
    if not extra or ("span" not in extra and "citeStart" not in extra):
        return None
    metadata = json.loads(extra)
    pair = metadata.get("cite_span") or metadata.get("span") or [metadata.get("citeStart"), metadata.get("citeEnd")]
    if not isinstance(pair, list) or len(pair) != 2 or not all(is_finite(value) for value in pair):
        return None
    start, end = int(pair[0]), int(pair[1])
    return (start, end) if 0 <= start < end <= length else None


def looks_foreign(text: str) -> bool:
    """Return whether a citance looks like another language than English, by its script or its frequent words.

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
    # names such as "de la Cruz" contain such words, so there must be many, and more than English ones
    return (
        len(words) >= _MIN_WORDS and 6 * other >= len(words) and other > sum(word in _ENGLISH_WORDS for word in words)
    )
