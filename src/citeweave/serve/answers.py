"""What the server answers, for /openapi.json: keys, types and a word on each.

Answers are written by the routes as plain JSON; these models describe them, and the tests hold the two together.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

_Score = Annotated[float | None, Field(description="Better when higher; only comparable within one answer.")]


class Words(BaseModel):
    what: Annotated[str, Field(description="What is wrong.")]
    next: Annotated[str, Field(description="What to do about it; may be empty.")]
    id: Annotated[str, Field(description="Of a fault of the server: also in its log.")] = ""
    coming: Annotated[bool, Field(description="Whether the same request will be answered in a few seconds.")] = False


class Failure(BaseModel):
    """Every error."""

    error: Words


class ShortPaper(BaseModel):
    id: str
    title: str
    year: int | None


class Paper(ShortPaper):
    abstract: str
    venue: str
    authors: list[str]
    fields: list[str]
    ids: Annotated[list[str], Field(description="Other ids of the same paper.")]


class Sentence(BaseModel):
    number: Annotated[int, Field(description="From 0, as queries by sentences count them.")]
    text: str


class WholePaper(Paper):
    row: Annotated[int, Field(description="As /map names it.")]
    outside: Annotated[bool, Field(description="Known as a reference or citation only, not a paper of the library.")]
    sentences: list[Sentence]
    references: Annotated[list[ShortPaper], Field(description="Papers of the index that it cites, at most 500.")]
    references_unknown: Annotated[int, Field(description="Cited papers that are not in the index.")]
    cited_by: Annotated[list[ShortPaper], Field(description="Papers of the index that cite it, at most 500.")]
    cited_by_count: int


class Papers(BaseModel):
    papers: list[Paper]
    unknown: Annotated[list[str], Field(description="Ids that no paper has.")]


class Match(BaseModel):
    """A sentence of the query and a sentence of the paper that belong together."""

    query: Annotated[int, Field(description="Place among the query's sentences; a whole text is one.")]
    sentence: Annotated[int, Field(description="Place among the paper's sentences, from 0.")]
    mass: Annotated[float, Field(description="Share of the pair in all pairs.")]
    score: _Score


class Hit(ShortPaper):
    outside: Annotated[bool, Field(description="Known as a reference or citation only, not a paper of the library.")]
    abstract: str
    venue: str
    authors: list[str]
    fields: list[str]
    score: _Score
    row: int
    matches: list[Match]
    sentences: Annotated[list[str], Field(description="Of the paper; where there are matches.")] = []
    why: Annotated[dict[str, Any] | None, Field(description="Of /similar with explain=true.")] = None


class Counted(BaseModel):
    name: str
    count: int


class Facets(BaseModel):
    years: dict[str, int]
    venues: list[Counted]
    fields: list[Counted]


class Answer(BaseModel):
    query: dict[str, Any]
    by: Annotated[str, Field(description="What was compared: hybrid, vectors, words or sentences.")]
    hits: list[Hit]
    facets: Facets | None
    exact: Annotated[bool, Field(description="Whether no better paper can have been missed.")]
    note: Annotated[str, Field(description="What the answer lacks, in words.")]
    coming: Annotated[
        str, Field(description="What the answer waits for, where asking again will bring more; or empty.")
    ]
    took_ms: float


class Answers(BaseModel):
    answers: Annotated[list[Answer | Failure], Field(description="In the order of the queries.")]


class Embedded(BaseModel):
    model: str
    dimension: int
    vectors: list[list[float]]


class Working(BaseModel):
    what: str
    done: int
    total: int | None
    seconds_left: float | None


class Health(BaseModel):
    status: Annotated[
        str,
        Field(description="ok; starting while the first index is made; failing where it cannot be read (any more)."),
    ]
    papers: int
    around: Annotated[int, Field(description="Papers that are known as references or citations only; not in papers.")]
    with_vectors: int
    with_sentences: int
    with_abstract: int
    model: Annotated[str, Field(description="Of the first index, with its revision; empty = words only so far.")]
    reads_texts: Annotated[bool, Field(description="Whether the model is loaded.")]
    aspects: list[str]
    indexes: list[str]
    working: Working | None
    lacks: Annotated[list[str], Field(description="What cannot be done for want of data, a sentence each.")]
    samples: bool
    version: str


class Pair(BaseModel):
    left: int
    right: int
    mass: float
    distance: float


class ExplainedPaper(ShortPaper):
    sentences: list[str]


class Shared(BaseModel):
    known: list[ShortPaper]
    unknown: int


class Explanation(BaseModel):
    left: ExplainedPaper
    right: ExplainedPaper
    pairs: Annotated[list[Pair], Field(description="Sentences that belong together, the most mass first.")]
    distance: float | None
    cites: Annotated[str, Field(description="left = the left paper cites the right one; right, both, or empty.")]
    shared_references: Shared
    co_cited_by: list[ShortPaper]
    counts: dict[str, int]
    words: list[str]
    note: str


class Edge(BaseModel):
    citing: str
    cited: str


class Node(ShortPaper):
    row: int


class Neighbourhood(BaseModel):
    nodes: Annotated[list[Node], Field(description="The paper that was asked for comes first.")]
    edges: list[Edge]
    left_out: int
    outside: Annotated[int, Field(description="References of the paper that the index does not have.")]


class LackedPaper(ShortPaper):
    key: str
    count: int
    in_index: bool


class Lacking(BaseModel):
    papers: list[LackedPaper]


class Suggestion(BaseModel):
    text: str
    papers: int
    id: str | None
    title: str | None
    year: int | None


class Suggestions(BaseModel):
    suggestions: list[Suggestion]


class Titles(BaseModel):
    titles: Annotated[dict[str, ShortPaper], Field(description="By row.")]


class Pick(BaseModel):
    id: str
    title: str
    rule: Annotated[str, Field(description="The mining rule that chose it.")]
    score: float | None


class Sample(BaseModel):
    anchor: dict[str, str]
    aspect: str
    positives: list[Pick]
    negatives: list[Pick]


class SamplePage(BaseModel):
    total: int
    start: int
    samples: list[Sample]


class MapWorking(BaseModel):
    working: dict[str, Any]


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for its description; those that any route may have are always among them."""
    return {status: {"model": Failure} for status in sorted({400, 404, 405, 413, 414, 422, 429, 431, 503, *statuses})}
