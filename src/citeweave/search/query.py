"""A question to an index, as a program says it or as JSON: strict, so that a misspelled key is no silent surprise.

    {"text": "rain measured by telephones", "count": 5, "where": {"years": [2015, null]}}
    {"paper": "doi:10.1/x", "aspect": "method"}
    {"liked": ["a", "b"], "disliked": ["c"], "diversity": 0.3}
    {"sentences": {"paper": "a", "numbers": [1, 2]}}            chosen sentences of an abstract, counted from 0
    {"sentences": {"texts": ["Rain gauges are rare."]}}         or pasted ones
    {"cite": {"text": "We use the parser of [CIT].", "intent": "method", "draft": "Title. Abstract."}}

    >>> Query.from_json({"text": "rain", "cuont": 3})
    Traceback (most recent call last):
    citeweave.core.errors.UserError: the query has a key 'cuont'; it may have approximate, aspect, by, cite, count, ...

One of text, paper, liked, sentences and cite, and only one. Whether the index has such a paper, aspect or sentence is
seen by `answering.py`.

Ids that look like one that an index does not have: those around its place among the sorted ids of each segment.

    near_ids([(segment.ids, segment.alive)], "doi:10.1/xz")        "; did you mean 'doi:10.1/x'?"

A few hundred are looked at, whatever the number of papers. An id that is wrong in its first signs finds nothing.

Completions for a search box: words that go on as the last one begins, and titles that have all of the words.

    suggest(index, "graph neu")    [Suggestion("graph neural", None, papers=52), Suggestion("Graph neural networks", 7, 1)]

Titles that begin with what was typed come first, then those that have it in one piece, then the shorter ones. Of words
that very many titles have, the shortest titles are looked at. Does not show how the index came to be, and does not
correct spelling.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import TextColumn, is_finite
from citeweave.core.errors import UserError, choose
from citeweave.search.filters import Filter
from citeweave.search.words import ABSENT, Mask, WordIndex, WordSegment, WordTable, statistics_of
from citeweave.vectors.bm25 import STOP_WORDS, words_of

BYS = ("hybrid", "vectors", "words")
MOST_COUNT, MOST_OFFSET = 1000, 9000
MOST_TEXT = 100_000
"""Characters of a text; more is a mistake, as no model reads so many."""

MOST_PAPERS, MOST_SENTENCES = 100, 50
"""Liked or disliked papers, and sentences, of one query."""

KINDS = ("text", "paper", "liked", "sentences", "cite")


@dataclass(frozen=True, slots=True)
class SentenceQuery:
    """Sentences to search by: some of a paper's abstract, or given ones."""

    paper: str = ""
    numbers: tuple[int, ...] = ()
    """Of the paper's sentences, from 0; none = all of them."""

    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.paper) == bool(self.texts):
            raise UserError("sentences are those of a paper, with their numbers, or texts; give one of the two")
        if self.texts and self.numbers:
            raise UserError("numbers are those of a paper's sentences; leave them out where texts are given")
        if len(self.numbers) > MOST_SENTENCES or len(self.texts) > MOST_SENTENCES:
            raise UserError(
                f"{max(len(self.numbers), len(self.texts))} sentences are chosen; give at most {MOST_SENTENCES}"
            )
        if any(number < 0 for number in self.numbers):
            raise UserError(f"sentence {min(self.numbers)} is chosen; sentences are counted from 0")


@dataclass(frozen=True, slots=True)
class Passage:
    """A sentence or paragraph of a draft that needs citations."""

    text: str = ""
    intent: str = ""
    """A word of `Intent` or an aspect of the model; empty = any."""

    draft: str = ""
    """Title and abstract of the draft."""

    least_share: float = 0.0
    each: bool = False
    """Answer for every sentence that seems to need a citation, not for the passage as a whole."""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise UserError("cite is without text; give a sentence or a paragraph of the draft")
        if not 0 <= self.least_share <= 1:
            raise UserError(f"least_share is {self.least_share}; it must be from 0 to 1")


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked; `by` and the rest have a meaning for some kinds only, see `answering.py`."""

    text: str = ""
    """A question, or a pasted title and abstract: where it has a line break, the first line is the title."""

    paper: str = ""
    """Any id of a paper of the index."""

    liked: tuple[str, ...] = ()
    disliked: tuple[str, ...] = ()
    sentences: SentenceQuery | None = None
    cite: Passage | None = None
    by: str = ""
    """One of BYS; empty = hybrid for a text, vectors for all else, and words as long as there are no vectors."""

    aspect: str = ""
    count: int = 10
    offset: int = 0
    """Hits that are passed over: those of the pages before."""

    where: Filter = field(default_factory=Filter)
    diversity: float = 0.0
    """0 = by score alone; up to 1, papers unlike each other before the score."""

    approximate: bool = False
    outside: bool = False
    """Also papers that are known only because others cite them; `cite` always finds them, as does a filter that says."""

    def __post_init__(self) -> None:
        if len(self.kinds) != 1:
            said = f", not {' and '.join(self.kinds)}" if self.kinds else ""
            raise UserError(f"a query has one of {', '.join(KINDS[:-1])} or {KINDS[-1]}{said}")
        if self.by:
            choose(self.by, BYS, "by")
        self._check_numbers()
        for text in (self.text, self.paper, *self._texts()):
            if len(text) > MOST_TEXT:
                raise UserError(f"the text has {len(text):,} characters; give at most {MOST_TEXT:,}")
        if self.disliked and not self.liked:
            raise UserError("disliked papers alone do not say what to search for; give at least one that is liked")
        if max(len(self.liked), len(self.disliked)) > MOST_PAPERS:
            raise UserError(f"more than {MOST_PAPERS} liked or disliked papers; give fewer")
        if self.by in ("words", "hybrid") and not (self.text or self.paper):
            raise UserError(
                f"by is {self.by!r}; that is for a text or a paper, {self.kind} needs vectors: leave it out"
            )
        if self.aspect and (self.sentences or self.cite):
            raise UserError(
                f"aspect is {self.aspect!r}; {self.kind} does not search in a space of papers: leave it out"
            )
        if self.aspect and self.by == "words":
            raise UserError(f"aspect is {self.aspect!r} and by is 'words'; aspects are spaces of vectors: drop one")
        if self.cite and self.diversity:
            raise UserError("diversity is not for cite; leave it out")

    def _check_numbers(self) -> None:
        if not 1 <= self.count <= MOST_COUNT:
            raise UserError(f"--count is {self.count}; it must be from 1 to {MOST_COUNT:,} papers")
        if not 0 <= self.offset <= MOST_OFFSET:
            raise UserError(f"offset is {self.offset}; it must be from 0 to {MOST_OFFSET:,}")
        if not 0 <= self.diversity <= 1:
            raise UserError(f"--diversity is {self.diversity}; it must be from 0 to 1")

    def _texts(self) -> Iterable[str]:
        yield from (*self.liked, *self.disliked)
        if self.sentences:
            yield from (self.sentences.paper, *self.sentences.texts)
        if self.cite:
            yield from (self.cite.text, self.cite.intent, self.cite.draft)

    @property
    def kinds(self) -> list[str]:
        given = (self.text.strip(), self.paper, self.liked or self.disliked, self.sentences, self.cite)
        return [kind for kind, is_given in zip(KINDS, given, strict=True) if is_given]

    @property
    def kind(self) -> str:
        """One of KINDS."""
        return self.kinds[0]

    def as_json(self) -> dict[str, Any]:
        """Only what differs from the defaults; `from_json` reads it back."""
        found: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "where":
                found |= {"where": said} if (said := value.as_json()) else {}
            elif isinstance(value, SentenceQuery | Passage):
                found[one.name] = {
                    part.name: _plain(getattr(value, part.name))
                    for part in fields(value)
                    if getattr(value, part.name) != part.default
                }
            elif value != one.default:
                found[one.name] = _plain(value)
        return found

    @classmethod
    def from_json(cls, value: object) -> Query:
        """A query of strangers: every key and type is looked at."""
        said = _keys(value, {one.name for one in fields(cls)}, "the query")
        given = _read(said, _READ, "")
        if "sentences" in said:
            part = _keys(said["sentences"], {one.name for one in fields(SentenceQuery)}, "sentences")
            given["sentences"] = SentenceQuery(**_read(part, _READ_CHOSEN, "sentences."))
        if "cite" in said:
            part = _keys(said["cite"], {one.name for one in fields(Passage)}, "cite")
            given["cite"] = Passage(**_read(part, _READ_PASSAGE, "cite."))
        if "where" in said:
            given["where"] = Filter.from_json(said["where"])
        return cls(**given)


def _read(said: Mapping[str, Any], readers: Mapping[str, Callable[[object, str], Any]], where: str) -> dict[str, Any]:
    return {name: read(said[name], f"{where}{name}") for name, read in readers.items() if name in said}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _keys(value: object, known: set[str], what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{what} is {_shown(value)}; it must be an object such as {{...}}")
    for key in value:
        if key not in known:
            raise UserError(f"{what} has a key {str(key)[:60]!r}; it may have {', '.join(sorted(known))}")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{name} is {_shown(value)}; it must be a text")
    # what no file and no answer could hold
    return value.encode("utf-8", "replace").decode()


def _texts(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
        raise UserError(f"{name} is {_shown(value)}; it must be a list of texts, none of them empty")
    return tuple(_text(one, name) for one in value)


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{name} is {_shown(value)}; it must be a whole number")
    return value


def _numbers(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise UserError(f"{name} is {_shown(value)}; it must be a list of numbers of sentences, such as [1, 2]")
    return tuple(_whole(one, name) for one in value)


def _number(value: object, name: str) -> float:
    if not is_finite(value):
        raise UserError(f"{name} is {_shown(value)}; it must be a number")
    return float(value)


def _truth(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{name} is {_shown(value)}; it must be true or false")
    return value


def _shown(value: object) -> str:
    return repr(value)[:60]


_READ: dict[str, Callable[[object, str], Any]] = {
    "text": _text,
    "paper": _text,
    "liked": _texts,
    "disliked": _texts,
    "by": _text,
    "aspect": _text,
    "count": _whole,
    "offset": _whole,
    "diversity": _number,
    "approximate": _truth,
    "outside": _truth,
}
_READ_CHOSEN: dict[str, Callable[[object, str], Any]] = {"paper": _text, "numbers": _numbers, "texts": _texts}
_READ_PASSAGE: dict[str, Callable[[object, str], Any]] = {
    "text": _text,
    "intent": _text,
    "draft": _text,
    "least_share": _number,
    "each": _truth,
}


# Ids that look like one that an index does not have: those around its place among the sorted ids of each segment.

_NEAR, _AROUND = 3, 200
"""Ids that are told, and how many are looked at before and behind the place."""


def near_ids(segments: Iterable[tuple[Sequence[str], NDArray[np.bool_]]], id: str) -> str:
    """The end of a message about an id that is not there; of every segment its sorted ids, and which of them are alive."""
    around: list[str] = []
    for ids, alive in segments:
        place = bisect_left(ids, id)
        low, high = max(0, place - _AROUND), min(len(ids), place + _AROUND)
        around += [known for known, is_there in zip(ids[low:high], alive[low:high].tolist(), strict=True) if is_there]
    near = difflib.get_close_matches(id[:200], around, _NEAR)
    if near:
        return f"; did you mean {', '.join(map(repr, near))}?"
    return f" with ids such as {min(around)!r}" if around else ""


# Completions for a search box: words that go on as the last one begins, and titles that have all of the words.

MOST_WORDS = 3
"""Completed words among the suggestions."""

_LONGEST = 200
"""Letters of a query that are looked at."""

_LOOKED_AT = 400
"""Titles that are compared closely."""

_WORDS_LOOKED_AT = 32
"""Words of each segment that are looked at first; more where that does not settle which are the most frequent."""

_ALL_WORDS: frozenset[str] = frozenset()
_LAST_WORD = re.compile(r"\w+$")


class TitleSegment(WordSegment, Protocol):
    """What is asked of a segment."""

    @property
    def titles(self) -> TextColumn: ...


class TitleIndex(WordIndex, Protocol):
    """An index that gives the title of a row."""

    @property
    def segments(self) -> Sequence[TitleSegment]: ...
    def title(self, row: int, /) -> str: ...


class Suggestion(NamedTuple):
    """What a person may have meant to type."""

    text: str
    row: int | None
    """Of the paper with this title; None where the text is words to search for."""

    papers: int
    """Live papers that have the completed word; 1 for a title."""

    def as_json(self) -> dict[str, Any]:
        return {"text": self.text, "row": self.row, "papers": self.papers}


def suggest(index: TitleIndex, prefix: str, most: int = 8) -> list[Suggestion]:
    """At most so many completions, words before titles; none where nothing was typed."""
    typed = prefix.lstrip()[:_LONGEST]
    words = words_of(typed, stop_words=_ALL_WORDS)
    if not words or most < 1:
        return []
    begun = _LAST_WORD.search(typed)  # a blank behind the last word says that it is whole
    completed = _complete(index, typed[: begun.start()], words[-1], min(MOST_WORDS, most)) if begun else []
    return completed + _titles(index, words, most - len(completed), whole=begun is None)


def _complete(index: WordIndex, before: str, begun: str, most: int) -> list[Suggestion]:
    """Words that begin so, those of the most papers first, of equal ones by the alphabet."""
    parts = [_Begun.of(part.words, begun) for part in index.segments if part.words is not None]
    numbers, own, looked = statistics_of(index), begun.encode(), _WORDS_LOOKED_AT
    while True:
        found = {word for part in parts for word in part.most(looked)} - {own}
        ranked = sorted((-numbers.frequency(word), word) for word in found)[:most]
        # a word that no segment has among those may still have as many papers as the next of all segments together
        next_ones = sum(part.after(looked) for part in parts)
        if not next_ones or (len(ranked) == most and -ranked[-1][0] > next_ones):
            return [Suggestion(before + word.decode(), None, -papers) for papers, word in ranked if papers]
        looked *= 4


@dataclass(frozen=True, slots=True)
class _Begun:
    """The words of a segment that begin as one was typed."""

    words: WordTable
    order: NDArray[np.int64]
    """Their places, those of the most papers first."""

    papers: NDArray[np.int64]
    """Papers of each, deleted ones included, in that order: no more live ones has it."""

    @classmethod
    def of(cls, words: WordTable, begun: str) -> _Begun:
        low, high = words.beginning(begun.encode())
        papers = np.diff(words.starts[low : high + 1])
        order = np.argsort(-papers, kind="stable")
        return cls(words, order + low, papers[order])

    def most(self, count: int) -> list[bytes]:
        return [word.encode() for word in self.words.words.take(self.order[:count])]

    def after(self, count: int) -> int:
        """Papers of the next word."""
        return int(self.papers[count]) if count < len(self.papers) else 0


def _titles(index: TitleIndex, words: Sequence[str], most: int, *, whole: bool) -> list[Suggestion]:
    ranked: list[tuple[tuple[bool, bool, int, str], str, int]] = []
    for row in _shortest(index, words, whole=whole):
        title = index.title(row)
        rank = _rank(title, words, whole=whole)
        if rank is not None:
            ranked.append(((*rank, index.id(row)), title, row))
    titles: dict[str, Suggestion] = {}
    for _, title, row in sorted(ranked):
        titles.setdefault(title, Suggestion(title, row, 1))
    return list(titles.values())[:most]


def _shortest(index: TitleIndex, words: Sequence[str], *, whole: bool) -> list[int]:
    """Live papers whose titles have all of the words: those with the shortest titles, of equal ones by id."""
    found: list[tuple[int, str, int]] = []
    for segment, start in zip(index.segments, np.asarray(index.starts).tolist(), strict=False):
        if segment.words is None:
            continue
        rows = np.flatnonzero(_with_all(segment, segment.words, words, whole=whole))
        lengths = segment.titles.lengths()[rows]
        # rows of a segment stand by id
        some = np.argsort(lengths, kind="stable")[:_LOOKED_AT]
        found += [(int(lengths[at]), index.id(start + int(rows[at])), start + int(rows[at])) for at in some]
    return [row for _, _, row in sorted(found)[:_LOOKED_AT]]


def _with_all(segment: WordSegment, words: WordTable, typed: Sequence[str], *, whole: bool) -> Mask:
    """The live papers of a segment whose titles have every typed word, the last one perhaps only begun; (papers,)."""
    mask = segment.alive.copy()
    for number, word in enumerate(typed):
        if not whole and number == len(typed) - 1:
            low, high = words.beginning(word.encode())
        elif word in STOP_WORDS:
            continue
        else:
            place = int(words.find([word.encode()])[0])
            low, high = (place, place + 1) if place != ABSENT else (0, 0)
        part = slice(int(words.starts[low]), int(words.starts[high]))
        having = np.zeros(words.size, np.bool_)
        if not _mark_titles(words.rows[part], words.marks[part], having):
            raise words.damage()
        mask &= having
    return mask


def _rank(title: str, typed: Sequence[str], *, whole: bool) -> tuple[bool, bool, int] | None:
    """How well a title goes on from the typed words, less is better; None where it does not have them.

    >>> _rank("Deep neural nets", ["deep", "neu"], whole=False), _rank("Neural nets", ["deep"], whole=True)
    ((False, False, 16), None)
    """
    words = words_of(title, stop_words=_ALL_WORDS)
    last = typed[-1]
    if not all(word in words for word in (typed if whole else typed[:-1])):
        return None
    if not any(word.startswith(last) for word in words):
        return None
    line, asked = f" {' '.join(words)} ", f" {' '.join(typed)}{' ' if whole else ''}"
    return not line.startswith(asked), asked not in line, len(title)


@numba.njit(cache=True, nogil=True)
def _mark_titles(rows: NDArray[np.int32], marks: NDArray[Any], having: Mask) -> bool:
    """Set the papers that have a word in the title; False where a row is none of the segment."""
    for i in range(len(rows)):
        if rows[i] < 0 or rows[i] >= len(having):
            return False
        if marks[i] & 1:
            having[rows[i]] = True
    return True
