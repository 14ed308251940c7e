"""A query to an index, in Python, as JSON or on the command line, and a hit; strict, so that a misspelled key is an error.

    {"text": "rain measured by telephones", "count": 5, "where": {"years": [2015, null]}}
    {"paper": "doi:10.1/x", "aspect": "method"}
    {"liked": ["a", "b"], "disliked": ["c"], "diversity": 0.3}
    {"sentences": {"paper": "a", "numbers": [1, 2]}}            chosen sentences of an abstract, counted from 0
    {"sentences": {"texts": ["Rain gauges are rare."]}}         or pasted ones
    {"cite": {"text": "We use the parser of [CIT].", "intent": "method", "draft": "Title. Abstract."}}

    >>> Query.from_json({"text": "rain", "cuont": 3})
    Traceback (most recent call last):
    citeweave.core.errors.UserError: query: key is 'cuont'; it must be one of approximate, aspect, by, cite, count, ...
    >>> Filter.from_json({"years": [2015, None], "fields": ["cs.CL"]}).as_json()
    {'years': [2015, None], 'fields': ['cs.CL']}

A query has exactly one of text, paper, liked, sentences and cite. Whether the index has such a paper, aspect or sentence
is checked by `answer.py`, which also searches; `filters.py` applies filters.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Annotated, Any

from citeweave.core.errors import UserError
from citeweave.core.notebook import one_line
from citeweave.core.options import Expected, Flag, MaxLength, NotBlank, Old, OneOf, Range, changed, check, parse_table

BYS = ("hybrid", "vectors", "words")
ORDERS = ("newest", "oldest", "cited")
MAX_HITS, MAX_OFFSET = 1000, 9000
"""Hits of one page, and hits before it."""

MAX_TEXT = 100_000
"""Characters of a query text; more is a mistake, as no model reads so many."""

MAX_LIKED, MAX_SENTENCES = 100, 50
"""Liked or disliked papers, and sentences, of one query."""

MAX_NAMES, MAX_IDS, MAX_CHARACTERS = 1000, 100_000, 1000
"""Venues or fields, and ids, of one filter; characters of each."""

KINDS = ("text", "paper", "liked", "sentences", "cite")

LongText = Annotated[str, MaxLength(MAX_TEXT)]
Id = Annotated[str, MaxLength(MAX_CHARACTERS), NotBlank()]
Name = Annotated[str, MaxLength(MAX_CHARACTERS)]
Word = Annotated[str, MaxLength(100)]
Year = Annotated[int, Range(0, 9999)]


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter by year, venue, author, field, keyword, collection and id: which papers a search may return; all by default."""

    years: Annotated[
        tuple[Year | None, Year | None],
        Expected("the first and the last year, whole numbers from 0 to 9999, either of which may be null"),
    ] = (None, None)
    """First and last year; null = no limit."""

    venues: Annotated[tuple[Name, ...], MaxLength(MAX_NAMES), Flag("--venue")] = ()
    """Only papers published in one of these venues."""

    fields: Annotated[tuple[Name, ...], MaxLength(MAX_NAMES), Flag("--field")] = ()
    """Only papers of at least one of these fields."""

    authors: Annotated[tuple[Name, ...], MaxLength(MAX_NAMES), Flag("--author")] = ()
    """Only papers by one of these authors: a last name, or a full name in any order, given names perhaps as initials."""

    keywords: Annotated[tuple[Name, ...], MaxLength(MAX_NAMES), Flag("--keyword")] = ()
    """Only papers with at least one of these keywords or tags of their source."""

    collections: Annotated[tuple[Name, ...], MaxLength(MAX_NAMES), Flag("--collection")] = ()
    """Only papers in at least one of these collections or groups of their source."""

    ids: Annotated[tuple[Name, ...], MaxLength(MAX_IDS)] = ()
    """Only these papers, where any are named; unknown ids are ignored."""

    not_ids: Annotated[tuple[Name, ...], MaxLength(MAX_IDS)] = ()
    """None of these papers."""

    has_abstract: bool | None = None
    """With an abstract, or without one."""

    local: bool | None = None
    """Papers of the library itself, or only those it cites."""

    def __post_init__(self) -> None:
        check(self, "where")
        first, last = self.years
        if first is not None and last is not None and first > last:
            raise UserError(f"years are from {first} to {last}; the first must not be later than the last")

    def __repr__(self) -> str:
        return _changed_fields(self)

    def __bool__(self) -> bool:
        """Return whether the filter has any condition."""
        return self != Filter()

    @classmethod
    def from_json(cls, value: object) -> Filter:
        """Parse a filter from untrusted JSON: any of the conditions by name."""
        return parse_table(cls, value, "where")

    def as_json(self) -> dict[str, Any]:
        """Return the conditions of the filter as JSON, which `from_json` reads."""
        return changed(self)


@dataclass(frozen=True, slots=True)
class SentenceQuery:
    """The sentences of a query by sentence: some of a paper's abstract, or pasted texts."""

    paper: Name = ""
    """Any id of the paper whose sentences are chosen."""

    numbers: Annotated[tuple[Annotated[int, Range(0, 100_000)], ...], MaxLength(MAX_SENTENCES)] = ()
    """Numbers of the paper's sentences, counted from 0; none = all of them."""

    texts: Annotated[tuple[Annotated[str, MaxLength(MAX_TEXT), NotBlank()], ...], MaxLength(MAX_SENTENCES)] = ()
    """Sentences as text, instead of those of a paper."""

    def __post_init__(self) -> None:
        check(self, "sentences")
        if bool(self.paper) == bool(self.texts):
            raise UserError("sentences are those of a paper, with their numbers, or texts; give one of the two")
        if self.texts and self.numbers:
            raise UserError("numbers are those of a paper's sentences; leave them out where texts are given")


@dataclass(frozen=True, slots=True)
class Passage:
    """The passage of a query for papers to cite: a sentence or paragraph of a draft."""

    text: Annotated[str, MaxLength(MAX_TEXT), Flag("--cite")] = ""
    """Find papers to cite in this sentence or paragraph of a draft."""

    intent: Word = ""
    """With cite: intent of the citation, such as background, method or result, or an aspect of the model."""

    draft: LongText = ""
    """With cite: title and abstract of the draft."""

    min_share: Annotated[float, Range(0, 1), Old("least_share")] = 0.0
    """With an intent: only papers cited with this intent in at least this fraction (0 to 1) of their citations."""

    each: Annotated[bool, Flag("--each-sentence")] = False
    """With cite: find papers separately for each sentence with a citation marker such as [CIT], or for every sentence if
    there are none."""

    def __post_init__(self) -> None:
        check(self, "cite")
        if not self.text.strip():
            raise UserError("cite is without text; give a sentence or a paragraph of the draft")


@dataclass(frozen=True, slots=True)
class Query:
    """One query of any kind with its options; some options go with some kinds only."""

    text: LongText = ""
    """Text to search for: a question, or a title and an abstract separated by a line break."""

    paper: Name = ""
    """Find papers similar to the one with this id."""

    liked: Annotated[tuple[Id, ...], MaxLength(MAX_LIKED), Flag("--like")] = ()
    """Find papers like the one with this id; may be repeated."""

    disliked: Annotated[tuple[Id, ...], MaxLength(MAX_LIKED), Flag("--unlike")] = ()
    """With liked papers: avoid papers like the one with this id; may be repeated."""

    sentences: SentenceQuery | None = None
    """Search by sentences of a paper's abstract, or by sentences given as text."""

    cite: Passage | None = None
    """Find papers to cite in a passage of a draft."""

    by: Annotated[str, OneOf("", *BYS)] = ""
    """Ranking: hybrid (words and vectors), vectors or words; default: hybrid for text queries, otherwise vectors."""

    aspect: Word = ""
    """Search in the vector space of one aspect of the model, such as method, or of all (all)."""

    count: Annotated[int, Range(1, MAX_HITS)] = 10
    """Number of papers to return."""

    offset: Annotated[int, Range(0, MAX_OFFSET)] = 0
    """Number of papers to skip: those of earlier pages."""

    where: Filter = field(default_factory=Filter)
    """Which papers may be returned."""

    order: Annotated[str, OneOf("", *ORDERS)] = ""
    """Order of the papers found: newest, oldest or cited (most cited first); default: best first."""

    diversity: Annotated[float, Range(0, 1)] = 0.0
    """How strongly to favor diverse results, from 0 (not at all) to 1."""

    approximate: bool = False
    """Use approximate search, which is faster but may miss papers."""

    outside: bool = False
    """Also return papers outside the corpus, known only from reference lists; `cite` always does."""

    def __post_init__(self) -> None:
        check(self)
        if len(self.kinds) != 1:
            instead = f", not {' and '.join(self.kinds)}" if self.kinds else ""
            raise UserError(f"a query has one of {', '.join(KINDS[:-1])} or {KINDS[-1]}{instead}")
        if self.disliked and not self.liked:
            raise UserError("disliked papers alone do not say what to search for; give at least one that is liked")
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
        if self.order and (self.cite or self.diversity):
            what = "cite" if self.cite else "diversity"
            raise UserError(f"order is {self.order!r}, but {what} has an order of its own; leave out one of the two")

    def __repr__(self) -> str:
        return _changed_fields(self)

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
        return changed(self)

    @classmethod
    def from_json(cls, value: object) -> Query:
        """Parse a query from untrusted JSON: every key and type is checked."""
        return parse_table(cls, value, "query")


def _changed_fields(value: Filter | Query) -> str:
    """Return the `repr` of a query or filter, without the options that have their defaults.

    >>> Query(text="rain", where=Filter(years=(2015, None)))
    Query(text='rain', where=Filter(years=(2015, None)))
    """
    named = []
    for option in fields(value):
        default = option.default_factory() if option.default_factory is not MISSING else option.default
        if getattr(value, option.name) != default:
            named.append(f"{option.name}={getattr(value, option.name)!r}")
    return f"{type(value).__name__}({', '.join(named)})"


# Hits.


@dataclass(frozen=True, slots=True)
class MatchedSentence:
    """A sentence of a hit, found in a search by sentences, and the query sentence that it matches."""

    query: int
    """Place among the query's sentences; a text counts as one sentence."""

    sentence: int
    """Number in the hit's abstract, from 0."""

    mass: float
    """Share of this pair among all pairs of query and hit."""

    score: float
    """Cosine of the two sentences."""


@dataclass(frozen=True, slots=True)
class CitingEvidence:
    """Evidence for a paper to cite: a sentence in which another paper cites it."""

    text: str
    citing: str
    """Id of the citing paper, empty where the index does not have it."""

    score: float
    """Cosine to the draft's sentence."""

    intents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A paper that a search found, by its row in the open index, with its score and what speaks for it."""

    id: str
    title: str
    year: int | None
    score: float
    """Higher is better: a cosine by vectors and by sentences (the mean over matched pairs), BM25 by words, 0.7
    of the cosine plus 0.3 of the share of the query's words by both (`fuse_scores`)."""

    row: int
    matches: tuple[MatchedSentence, ...] = ()
    """The sentences that matched."""

    paper_score: float | None = None
    """With `cite`: cosine of the draft's sentence to the paper itself."""

    share: float | None = None
    """With `cite`: share of the wanted intent among the known intents with which the paper is cited; None where none is
    known."""

    evidence: CitingEvidence | None = None
    """With `cite`: the nearest sentence that cites the paper, by the same rule; None where none is known."""

    confidence: str = ""
    """With `cite`: whether the paper, or a sentence that cites it, is close to the draft's: high, low, or none."""

    passage: int | None = None
    """With `cite` and `each`: which sentence of the passage it is for."""

    authors: tuple[str, ...] = ()
    venue: str = ""
    doi: str = ""

    def __repr__(self) -> str:
        year = "" if self.year is None else f", {self.year}"
        return f"Hit({self.id!r}{year}, {one_line(self.title, 80)!r}, score {self.score:.3f})"

    def as_json(self) -> dict[str, Any]:
        payload: dict[str, Any] = {"id": self.id, "title": self.title, "year": self.year}
        payload |= {"score": self.score, "row": self.row, "matches": [asdict(match) for match in self.matches]}
        if self.paper_score is not None:
            evidence = self.evidence and {**asdict(self.evidence), "intents": list(self.evidence.intents)}
            payload |= {"paper_score": self.paper_score, "share": self.share, "evidence": evidence}
            payload["confidence"] = self.confidence
        return payload if self.passage is None else {**payload, "passage": self.passage}
