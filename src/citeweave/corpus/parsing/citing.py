"""Cutting a passage with citation marks into its citing sentences.

    "It works. [1] Others, as in [2], failed. No mark here."
    -> "It works. [1]" cites 1; "Others, as in [2], failed." cites 2

Does not find the marks: the readers know where they stand and which papers they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from citeweave.corpus.cleaning import clean_text
from citeweave.corpus.text import sentences

_LOOK_AROUND = 50
_LONGEST_MARK = 1000


@dataclass(frozen=True, slots=True)
class Mark:
    """One citation mark in a text: where it stands, and the id it means (None where that is not known)."""

    start: int
    end: int
    cited: str | None


@dataclass(frozen=True, slots=True)
class CitingSentence:
    """A sentence with marks; `cited` is empty where none of them is known."""

    text: str
    cited: tuple[str, ...]


def citing_sentences(text: str, marks: Iterable[Mark]) -> Iterator[CitingSentence]:
    """The sentences that hold marks. Marks outside the text, or longer than any mark is, are left out.

    >>> text = "It works. [1] Others, as in [2], failed. No mark here."
    >>> marks = [Mark(10, 13, "s2:1"), Mark(28, 31, "s2:2")]
    >>> [(s.text, s.cited) for s in citing_sentences(text, marks)]
    [('It works. [1]', ('s2:1',)), ('Others, as in [2], failed.', ('s2:2',))]
    """
    inside = [m for m in marks if 0 <= m.start < m.end <= len(text) and m.end - m.start <= _LONGEST_MARK]
    inside.sort(key=lambda mark: mark.start)
    if not inside:
        return
    position = 0
    for start, end in sentences(_without_marks(text, inside)):
        first = position
        while position < len(inside) and inside[position].start < end:
            position += 1
        if position > first:
            cited = dict.fromkeys(mark.cited for mark in inside[first:position] if mark.cited)
            # a mark such as "Smith. 2004" may reach over the cut
            yield CitingSentence(clean_text(text[start : max(end, inside[position - 1].end)]), tuple(cited))


def _without_marks(text: str, marks: list[Mark]) -> str:
    """The text in the same length with marks blanked, so that "diseases. 1 Successful ..." is cut before the S.

    A mark that is the subject of its sentence ("It works. [1] showed more.") becomes a capitalised word, as the
    splitter expects no sentence to begin with a small letter.
    """
    signs = list(text)
    for mark in marks:
        signs[mark.start : mark.end] = " " * (mark.end - mark.start)
    blanked = "".join(signs)
    for mark in marks:
        before = blanked[max(0, mark.start - _LOOK_AROUND) : mark.start].rstrip()[-1:]
        after = blanked[mark.end : mark.end + _LOOK_AROUND].lstrip()[:1]
        if before in (".", "?", "!") and after.islower() and mark.end - mark.start > 1:
            signs[mark.start : mark.end] = "X" + "x" * (mark.end - mark.start - 1)
    return "".join(signs)
