"""A question to an index, as a program says it or as JSON: strict, so that a misspelt key is no silent surprise.

    {"text": "rain measured by telephones", "count": 5, "where": {"years": [2015, null]}}
    {"paper": "doi:10.1/x", "aspect": "method"}
    {"liked": ["a", "b"], "disliked": ["c"], "diversity": 0.3}
    {"sentences": {"paper": "a", "numbers": [1, 2]}}            chosen sentences of an abstract, counted from 0
    {"sentences": {"texts": ["Rain gauges are rare."]}}         or pasted ones
    {"cite": {"text": "We use the parser of [CIT].", "intent": "method", "draft": "Title. Abstract."}}

    >>> Query.from_json({"text": "rain", "cuont": 3})
    Traceback (most recent call last):
    citeweave.errors.UserError: the query has a key 'cuont'; it may have approximate, aspect, by, cite, count, ...

One of text, paper, liked, sentences and cite, and only one. Whether the index has such a paper, aspect or sentence is
seen by `answering.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from citeweave.errors import UserError, choose
from citeweave.finite import is_finite
from citeweave.search.filters import Filter

BYS = ("hybrid", "vectors", "words")
MOST_COUNT, MOST_OFFSET = 1000, 9000
MOST_TEXT = 100_000
"""Characters of a text; more is a mistake, as no model reads so many."""

MOST_PAPERS, MOST_SENTENCES = 100, 50
"""Liked or disliked papers, and sentences, of one query."""

KINDS = ("text", "paper", "liked", "sentences", "cite")


@dataclass(frozen=True, slots=True)
class Chosen:
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
    sentences: Chosen | None = None
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
            elif isinstance(value, Chosen | Passage):
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
            part = _keys(said["sentences"], {one.name for one in fields(Chosen)}, "sentences")
            given["sentences"] = Chosen(**_read(part, _READ_CHOSEN, "sentences."))
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
