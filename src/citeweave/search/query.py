"""A query to an index, in Python or as JSON; strict, so that a misspelled key is an error and not ignored.

    {"text": "rain measured by telephones", "count": 5, "where": {"years": [2015, null]}}
    {"paper": "doi:10.1/x", "aspect": "method"}
    {"liked": ["a", "b"], "disliked": ["c"], "diversity": 0.3}
    {"sentences": {"paper": "a", "numbers": [1, 2]}}            chosen sentences of an abstract, counted from 0
    {"sentences": {"texts": ["Rain gauges are rare."]}}         or pasted ones
    {"cite": {"text": "We use the parser of [CIT].", "intent": "method", "draft": "Title. Abstract."}}

    >>> Query.from_json({"text": "rain", "cuont": 3})
    Traceback (most recent call last):
    citeweave.core.errors.UserError: the query has a key 'cuont'; it may have approximate, aspect, by, cite, count, ...

A query has exactly one of text, paper, liked, sentences and cite. Whether the index has such a paper, aspect or sentence
is checked by `answer.py`, which also searches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from citeweave.core.columns import is_finite
from citeweave.core.errors import UserError, choose
from citeweave.search.filters import Filter

BYS = ("hybrid", "vectors", "words")
MAX_HITS, MAX_OFFSET = 1000, 9000
"""Hits of one page, and hits before it."""

MAX_TEXT = 100_000
"""Characters of a query text; more is a mistake, as no model reads so many."""

MAX_LIKED, MAX_SENTENCES = 100, 50
"""Liked or disliked papers, and sentences, of one query."""

KINDS = ("text", "paper", "liked", "sentences", "cite")


@dataclass(frozen=True, slots=True)
class SentenceQuery:
    """The sentences of a query by sentence: some of a paper's abstract, or pasted texts."""

    paper: str = ""
    numbers: tuple[int, ...] = ()
    """Of the paper's sentences, from 0; none = all of them."""

    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.paper) == bool(self.texts):
            raise UserError("sentences are those of a paper, with their numbers, or texts; give one of the two")
        if self.texts and self.numbers:
            raise UserError("numbers are those of a paper's sentences; leave them out where texts are given")
        if len(self.numbers) > MAX_SENTENCES or len(self.texts) > MAX_SENTENCES:
            raise UserError(
                f"{max(len(self.numbers), len(self.texts))} sentences are chosen; give at most {MAX_SENTENCES}"
            )
        if any(number < 0 for number in self.numbers):
            raise UserError(f"sentence {min(self.numbers)} is chosen; sentences are counted from 0")


@dataclass(frozen=True, slots=True)
class Passage:
    """The passage of a query for papers to cite: a sentence or paragraph of a draft."""

    text: str = ""
    intent: str = ""
    """A word of `Intent` or an aspect of the model; empty = any."""

    draft: str = ""
    """Title and abstract of the draft."""

    least_share: float = 0.0
    each: bool = False
    """Answer for every sentence that seems to need a citation, not for the passage as one text."""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise UserError("cite is without text; give a sentence or a paragraph of the draft")
        if not 0 <= self.least_share <= 1:
            raise UserError(f"least_share is {self.least_share}; it must be from 0 to 1")


@dataclass(frozen=True, slots=True)
class Query:
    """One query of any kind with its options; some options go with some kinds only."""

    text: str = ""
    """A question, or a pasted title and abstract: where it has a line break, the first line is the title."""

    paper: str = ""
    """Any id of a paper of the index."""

    liked: tuple[str, ...] = ()
    disliked: tuple[str, ...] = ()
    sentences: SentenceQuery | None = None
    cite: Passage | None = None
    by: str = ""
    """One of BYS; empty = hybrid for a text, vectors for all else, and words while there are no vectors."""

    aspect: str = ""
    count: int = 10
    offset: int = 0
    """Hits to skip: those of the pages before."""

    where: Filter = field(default_factory=Filter)
    diversity: float = 0.0
    """0 = by score alone; up to 1, papers unlike each other before the score."""

    approximate: bool = False
    outside: bool = False
    """Also papers known only because others cite them; `cite` always finds them, as does a filter that asks for them."""

    def __post_init__(self) -> None:
        if len(self.kinds) != 1:
            instead = f", not {' and '.join(self.kinds)}" if self.kinds else ""
            raise UserError(f"a query has one of {', '.join(KINDS[:-1])} or {KINDS[-1]}{instead}")
        if self.by:
            choose(self.by, BYS, "by")
        self._check_numbers()
        for text in (self.text, self.paper, *self._texts()):
            if len(text) > MAX_TEXT:
                raise UserError(f"the text has {len(text):,} characters; give at most {MAX_TEXT:,}")
        if self.disliked and not self.liked:
            raise UserError("disliked papers alone do not say what to search for; give at least one that is liked")
        if max(len(self.liked), len(self.disliked)) > MAX_LIKED:
            raise UserError(f"more than {MAX_LIKED} liked or disliked papers; give fewer")
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
        if not 1 <= self.count <= MAX_HITS:
            raise UserError(f"--count is {self.count}; it must be from 1 to {MAX_HITS:,} papers")
        if not 0 <= self.offset <= MAX_OFFSET:
            raise UserError(f"offset is {self.offset}; it must be from 0 to {MAX_OFFSET:,}")
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
        """Those of KINDS that the query has; a valid one has one."""
        values = (self.text.strip(), self.paper, self.liked or self.disliked, self.sentences, self.cite)
        return [kind for kind, value in zip(KINDS, values, strict=True) if value]

    @property
    def kind(self) -> str:
        """The kind of the query, one of KINDS."""
        return self.kinds[0]

    def as_json(self) -> dict[str, Any]:
        """Return the options of a query that differ from their defaults; `from_json` reads them back."""
        payload: dict[str, Any] = {}
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name == "where":
                payload |= {"where": where} if (where := value.as_json()) else {}
            elif isinstance(value, SentenceQuery | Passage):
                payload[option.name] = {
                    part.name: _plain(getattr(value, part.name))
                    for part in fields(value)
                    if getattr(value, part.name) != part.default
                }
            elif value != option.default:
                payload[option.name] = _plain(value)
        return payload

    @classmethod
    def from_json(cls, value: object) -> Query:
        """Parse a query from untrusted JSON: every key and type is checked."""
        payload = _check_keys(value, {option.name for option in fields(cls)}, "the query")
        options = _parse(payload, _PARSERS, "")
        if "sentences" in payload:
            part = _check_keys(payload["sentences"], {option.name for option in fields(SentenceQuery)}, "sentences")
            options["sentences"] = SentenceQuery(**_parse(part, _SENTENCE_PARSERS, "sentences."))
        if "cite" in payload:
            part = _check_keys(payload["cite"], {option.name for option in fields(Passage)}, "cite")
            options["cite"] = Passage(**_parse(part, _PASSAGE_PARSERS, "cite."))
        if "where" in payload:
            options["where"] = Filter.from_json(payload["where"])
        return cls(**options)


Parser = Callable[[object, str], Any]
"""Checks a JSON value of a query under its name and returns it as Python has it."""


def _parse(payload: Mapping[str, Any], parsers: Mapping[str, Parser], prefix: str) -> dict[str, Any]:
    return {name: parse(payload[name], f"{prefix}{name}") for name, parse in parsers.items() if name in payload}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _check_keys(value: object, known: set[str], what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{what} is {_shown(value)}; it must be an object such as {{...}}")
    for key in value:
        if key not in known:
            raise UserError(f"{what} has a key {str(key)[:60]!r}; it may have {', '.join(sorted(known))}")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{name} is {_shown(value)}; it must be a text")
    # lone surrogates, which no file and no JSON can hold
    return value.encode("utf-8", "replace").decode()


def _texts(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) and text.strip() for text in value):
        raise UserError(f"{name} is {_shown(value)}; it must be a list of texts, none of them empty")
    return tuple(_text(text, name) for text in value)


def _integer(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{name} is {_shown(value)}; it must be a whole number")
    return value


def _numbers(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise UserError(f"{name} is {_shown(value)}; it must be a list of sentence numbers, such as [1, 2]")
    return tuple(_integer(number, name) for number in value)


def _number(value: object, name: str) -> float:
    if not is_finite(value):
        raise UserError(f"{name} is {_shown(value)}; it must be a number")
    return float(value)


def _boolean(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{name} is {_shown(value)}; it must be true or false")
    return value


def _shown(value: object) -> str:
    return repr(value)[:60]


_PARSERS: dict[str, Parser] = {
    "text": _text,
    "paper": _text,
    "liked": _texts,
    "disliked": _texts,
    "by": _text,
    "aspect": _text,
    "count": _integer,
    "offset": _integer,
    "diversity": _number,
    "approximate": _boolean,
    "outside": _boolean,
}
_SENTENCE_PARSERS: dict[str, Parser] = {"paper": _text, "numbers": _numbers, "texts": _texts}
_PASSAGE_PARSERS: dict[str, Parser] = {
    "text": _text,
    "intent": _text,
    "draft": _text,
    "least_share": _number,
    "each": _boolean,
}
