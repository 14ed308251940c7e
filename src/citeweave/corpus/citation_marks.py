"""Citation marks such as "(Smith et al., 2019)" or "[3, 4]" in a text, and the citing sentences that hold them.

    >>> text = "It grows (Smith et al., 2019; Li, 2020), as Otto (1999) and others [3, 4] saw."
    >>> [text[start:end] for start, end in find_marks(text)]
    ['(Smith et al., 2019; Li, 2020)', 'Otto (1999)', '[3, 4]']

`find_marks` recognizes author and year in brackets of any kind and spacing, an author before a year in brackets,
numbers in square brackets, numbers in round brackets (only where a sentence has no other mark: such numbers are often
equations), superscript numbers after a word, and the placeholders of LaTeX and of text extraction. It does not resolve
which paper a mark points to, and does not find a mark that looks like prose, such as a tool's bare name.

`citing_sentences` cuts a passage whose marks are known already, because a reader found them, into citing sentences:

    "It works. [1] Others, as in [2], failed. No mark here."
    -> "It works. [1]" cites 1; "Others, as in [2], failed." cites 2
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from citeweave.corpus.plain_text import clean_text
from citeweave.corpus.text import sentences

Span = tuple[int, int]
"""Start and end of a citation mark, in characters; the end is exclusive."""

_YEAR = r"(?:1[6-9]|20)\d\d[a-z]?(?!\d|\.\d|%)"
_NAME = r"[^\W\d_][\w'’.\-\u0300-\u036f]*"
_LAST = r"\s*(?:et\s+al\s*\.?|and\s+others|u\.\s?a\.|и\s+др\s*\.?|等)"
_PLACEHOLDERS = re.compile(
    r"\\cite\w*\*?\s*(?:\[[^\[\]]{0,99}\]\s*){0,2}\{[^{}]{0,999}\}"
    r"|@xcite|#?(?:TARGET|OTHER)[_ ]?(?:CIT|REFR?)\b|\bCITSEG\b|#(?:AUTHOR_TAG|REFR?)\b|__(?:cite|ref)__"
    r"|<(cite|ref|xref)\b[^<>]{0,199}>[^<>]{0,199}</\1\s*>|<(?:cite|ref|xref)\b[^<>]{0,199}/?>"
    r"|\[\s*(?:CIT\w{0,9}|REF\w{0,9}|BIBREF\d*|citation needed)\s*\]|\bBIBREF\d+\b",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"[(\[（【［]([^()\[\]（）【】［］]{3,600})(?:[)\]）】］]|$)")
_BEHIND = rf"(?:\s*[,;:]\s*(?:{_YEAR}|[a-z]\b|(?:pages?|pp?\.?)\s*[\d\-–]+|\d+[\d\-–]*|also [^()]{{1,60}})){{0,6}}"
_COMMA = r"(?:\s*,)?\s*"
_YEAR_ALONE = re.compile(  # starts where blanks start, so that a long run of blanks is scanned once
    rf"(?<!\s)(?:{_COMMA}[(\[（［]\s*{_YEAR}{_BEHIND}\s*[)\]）］]|{_LAST}{_COMMA}{_YEAR})"
)
_NAMES_BEFORE = re.compile(
    rf"(?<![\w'’])({_NAME}(?:(?:\s*,\s*|\s*&\s*|\s+(?:and|und|et|y|e|и|与|和)\s+){_NAME}){{0,3}}(?:{_LAST})?)$"
)
_CUT_BEGINNING = re.compile(
    rf"^[\s,;]*(?:{_NAME}(?:\s+(?:and|&)\s+{_NAME})?(?:{_LAST})?{_COMMA})?{_YEAR}[^()\[\]]{{0,300}}[)\]]"
)
_CUT_END = re.compile(rf"[(\[][^()\[\]]{{0,300}}{_LAST}{_COMMA}$")
_REACH = 90
"""Characters before a mark that are searched for author names, and for words that rule the mark out."""

_NUMBER = r"[1-9]\d{0,2}[a-z]?"
_NUMBERS = rf"{_NUMBER}(?:\s*[,;–—\-]\s*{_NUMBER}){{0,40}}"
_SQUARE = re.compile(
    rf"[\[［【]\s*{_NUMBERS}\s*[\]］】]|\[[A-Z][A-Za-z+]{{1,12}}['’]?\d\d[a-z]?(?:\s*[,;]\s*[A-Za-z+]+\d\d[a-z]?)*\]"
)
_ROUND = re.compile(rf"[(（]\s*{_NUMBERS}\s*[)）]")
_RAISED = re.compile(r"(?<=[^\W\d_]{3})[.,;:)”\"]?([⁰¹²³⁴-⁹][⁰¹²³⁴-⁹,–-]*)|(?<=[^\W\d_]{3}[.,;:)])([⁰¹²³⁴-⁹]+)")
_COUNTED = re.compile(
    r"(?:\b(?:eqs?|equations?|figs?|figures?|tables?|sections?|sec|steps?|cases?|types?|rules?|eqn|lemma|theorem)\.?"
    r"|[=<>≤≥±])\s*$",
    re.IGNORECASE,
)
_MONTHS = re.compile(
    r"\b(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?|spring|summer|autumn|fall|winter)\s+(?:\d{1,2}\s*,\s*)?(?=\d{4})",
    re.IGNORECASE,
)
_LOWER_WORD, _BETWEEN = r"[a-z][\w.\-]*", r"(?:\s+|\s*,\s*|\s*(?:,\s*)?&\s*)"
_LOWER_WORDS = re.compile(  # only one way to match: ambiguous patterns take time that doubles with every letter
    rf"^{_LOWER_WORD}(?:{_BETWEEN}{_LOWER_WORD})*{_BETWEEN}?(?=[^\Wa-z\d_])"
)
_DATED = re.compile(rf"(?<!\d){_YEAR}|\bin press\b|\bforthcoming\b|\bsubmitted\b|\bunpublished\b")
_NOT_NAMES = re.compile(
    r"in|since|until|by|from|the|of|on|around|before|after|between|during|years?|early|late|mid|version|an?|and|or|et|for"
    r"|at|to|as|is|was|were|are|this|that|see|also|release|study",
    re.IGNORECASE,
)


def find_marks(text: str) -> list[Span]:
    """Return the spans of the citation marks in a sentence, in order and without overlaps."""
    spans = [match.span() for match in _PLACEHOLDERS.finditer(text)]
    spans += [match.span() for match in _SQUARE.finditer(text)]
    if _DATED.search(text):
        spans += [match.span() for match in _BRACKETS.finditer(text) if _is_author_year(match[1])]
        spans += _author_year_spans(text)
    spans += [match.span() for pattern in (_CUT_BEGINNING, _CUT_END) if (match := pattern.search(text))]
    if not spans:
        spans = [match.span(match.lastindex or 0) for match in _RAISED.finditer(text)]
    return _merge_spans(spans or list(_round_number_spans(text)))


def _author_year_spans(text: str) -> list[Span]:
    """Return citation marks made of author names and a year in brackets, or a year after "et al."."""
    spans = []
    for match in _YEAR_ALONE.finditer(text):
        begin = max(0, match.start() - _REACH)
        names = _NAMES_BEFORE.search(text[begin : match.start()])
        # prose before the names is no part of the mark: "others and Otto" becomes "Otto"
        someone = _LOWER_WORDS.sub("", names[0]) if names else ""
        name = re.match(_NAME, someone)
        if names and name and _is_name(name[0]) and not _MONTHS.match(names[0]):
            spans.append((match.start() - len(someone), match.end()))
    return spans


def _merge_spans(spans: list[Span]) -> list[Span]:
    """Sort the spans of citation marks and merge those that overlap.

    >>> _merge_spans([(5, 9), (0, 3), (2, 4)])
    [(0, 4), (5, 9)]
    """
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _is_author_year(inside: str) -> bool:
    """Return whether the text inside a bracket cites an author and a year.

    >>> [_is_author_year(text) for text in ("Och , 2003", "王等, 2019", "in 2003", "May 2003", "n = 2010", "P < 0.01")]
    [True, True, False, False, False, False]
    """
    plain = _MONTHS.sub("", inside)
    dated = _DATED.search(plain)
    if not dated:
        return False
    before = plain[: dated.start()].rstrip(" ,;:(")
    return any(_is_name(word) for word in re.findall(_NAME, before)) and not re.search(r"[=<>≤≥%]", before)


def _is_name(word: str) -> bool:
    """Return whether a word before a year may be an author name: capitalized, or of a script without capitals."""
    first = word[0]
    return not _NOT_NAMES.fullmatch(word) and (first.isupper() or first.lower() == first.upper() or "’" in word)


def _round_number_spans(text: str) -> Iterator[Span]:
    """Yield the spans of citation numbers in round brackets, leaving out equation numbers and enumerations."""
    matches = [
        match
        for match in _ROUND.finditer(text)
        if not _COUNTED.search(text, max(0, match.start() - _REACH), match.start())
    ]
    numbers = [int(re.sub(r"\D.*", "", match[0].strip("(（ ") or "0", flags=re.DOTALL) or 0) for match in matches]
    if len(numbers) > 1 and numbers == list(range(1, len(numbers) + 1)):
        return  # "(1) ... (2) ..." is a list
    for match in matches:
        yield match.span()


# --- citing sentences --------------------------------------------------------------------------------

_LOOK_AROUND = 50
_LONGEST_MARK = 1000


@dataclass(frozen=True, slots=True)
class CitationMark:
    """A citation mark in a text: its start and end in characters, and the id it cites (None where unknown)."""

    start: int
    end: int
    cited: str | None


@dataclass(frozen=True, slots=True)
class CitingSentence:
    """A sentence with citation marks and the ids it cites; `cited` is empty where none is known."""

    text: str
    cited: tuple[str, ...]


def citing_sentences(text: str, marks: Iterable[CitationMark]) -> Iterator[CitingSentence]:
    """Yield the sentences of a passage that hold citation marks; marks outside the text or too long are ignored.

    >>> text = "It works. [1] Others, as in [2], failed. No mark here."
    >>> marks = [CitationMark(10, 13, "s2:1"), CitationMark(28, 31, "s2:2")]
    >>> [(s.text, s.cited) for s in citing_sentences(text, marks)]
    [('It works. [1]', ('s2:1',)), ('Others, as in [2], failed.', ('s2:2',))]
    """
    inside = [m for m in marks if 0 <= m.start < m.end <= len(text) and m.end - m.start <= _LONGEST_MARK]
    inside.sort(key=lambda mark: mark.start)
    if not inside:
        return
    position = 0
    for start, end in sentences(_blank_marks(text, inside)):
        first = position
        while position < len(inside) and inside[position].start < end:
            position += 1
        if position > first:
            cited = dict.fromkeys(mark.cited for mark in inside[first:position] if mark.cited)
            # a mark such as "Smith. 2004" may extend past the sentence boundary
            yield CitingSentence(clean_text(text[start : max(end, inside[position - 1].end)]), tuple(cited))


def _blank_marks(text: str, marks: list[CitationMark]) -> str:
    """Blank the citation marks of a text, keeping its length, so that "diseases. 1 Successful ..." is cut before the S.

    A mark that is the subject of its sentence ("It works. [1] showed more.") becomes a capitalized word, because the
    splitter expects no sentence to start with a lower-case letter.
    """
    characters = list(text)
    for mark in marks:
        characters[mark.start : mark.end] = " " * (mark.end - mark.start)
    blanked = "".join(characters)
    for mark in marks:
        before = blanked[max(0, mark.start - _LOOK_AROUND) : mark.start].rstrip()[-1:]
        after = blanked[mark.end : mark.end + _LOOK_AROUND].lstrip()[:1]
        if before in (".", "?", "!") and after.islower() and mark.end - mark.start > 1:
            characters[mark.start : mark.end] = "X" + "x" * (mark.end - mark.start - 1)
    return "".join(characters)
