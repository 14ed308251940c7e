"""Schemas of the API: pydantic models of request bodies, URL parameters and responses, as /openapi.json shows them.

    SearchRequest(text="rain measured by telephones", count=5)

Of a request every key is named, every type strict and every length bounded; what does not fit is refused with 422. What a
query means, and which parts go together, is checked by `search/query.py`. Responses are written by the routes as plain
JSON; these models describe them, and the tests hold the two together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from citeweave.core.options import options_of
from citeweave.search.query import MAX_CHARACTERS, MAX_TEXT, Query
from citeweave.serve.request_fields import Body, like, request_fields

MAX_QUERIES, MAX_TEXTS, MAX_IDS = 64, 256, 1000


IndexName = Annotated[str, Field(max_length=100, description="Name of the index to search; empty = the first.")]
Id = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
Name = Annotated[str, Field(max_length=MAX_CHARACTERS)]
LongText = Annotated[str, Field(max_length=MAX_TEXT)]
Year = Annotated[int, Field(ge=0, le=9999)]
By = Annotated[Literal["", "hybrid", "vectors", "words"], Field(description=options_of(Query)["by"].help)]
Aspect = Annotated[str, like("aspect")]
Count = Annotated[int, like("count")]
Offset = Annotated[int, like("offset")]
Diversity = Annotated[float, like("diversity")]
Outside = Annotated[bool, like("outside")]
Order = Annotated[Literal["", "newest", "oldest", "cited"], Field(description=options_of(Query)["order"].help)]
Names = Annotated[list[Name], Field(max_length=100, description="May be repeated.")]


class QueryRequest(Body):
    """The JSON of one query: exactly one of text, paper, liked, sentences and cite, and options."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "rain measured by telephones", "count": 5, "where": {"years": [2015, None]}},
                {"sentences": {"paper": "doi:10.1/x", "numbers": [1, 2]}},
                {"liked": ["a", "b"], "disliked": ["c"], "diversity": 0.3},
                {"cite": {"text": "We use the parser of [CIT].", "intent": "method", "draft": "Title. Abstract."}},
            ]
        }
    )
    __annotations__ = request_fields(Query)

    def query(self) -> dict[str, Any]:
        """Return the request as `Query.from_json` reads it, without null values."""
        fields: dict[str, Any] = self.model_dump(exclude_unset=True, exclude_none=True, exclude={"index", "facets"})
        if "years" in fields.get("where", {}):
            fields["where"]["years"] = self.where.years  # type: ignore[attr-defined]  # null means no limit
        return fields


class SearchRequest(QueryRequest):
    """The JSON body of a search request to one of the indexes."""

    index: IndexName = ""
    facets: Annotated[
        bool, Field(description="Also count years, venues, authors and so on of all papers that match the filters.")
    ] = False


class BatchRequest(Body):
    """The JSON body of several queries; each is answered or refused separately."""

    queries: Annotated[list[QueryRequest], Field(min_length=1, max_length=MAX_QUERIES)]
    index: IndexName = ""


class TitleAndAbstract(Body):
    title: LongText
    abstract: LongText = ""


class EmbedRequest(Body):
    """The JSON body of a request to embed texts."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"texts": ["a question", {"title": "A title", "abstract": "An abstract."}]}]}
    )

    texts: Annotated[list[LongText | TitleAndAbstract], Field(min_length=1, max_length=MAX_TEXTS)]
    aspect: Aspect = ""
    index: IndexName = ""


class ExportRequest(Body):
    """The JSON body of a request to export papers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"format": "bibtex", "ids": ["doi:10.1/x"]}]})

    format: Literal["bibtex", "ris", "csv", "json"]
    ids: Annotated[list[Id], Field(min_length=1, max_length=MAX_IDS)]
    index: IndexName = ""


class IndexParameters(BaseModel):
    """URL parameters of a GET request: numbers are text, so types are not strict; unknown names are refused."""

    model_config = ConfigDict(extra="forbid")

    index: IndexName = ""


class _SearchOptions(IndexParameters):
    """URL parameters that all searches share."""

    by: By = ""
    aspect: Aspect = ""
    count: Count = 10
    offset: Offset = 0
    year_from: Year | None = None
    year_to: Year | None = None
    venue: Names = Field(default=[])
    field: Names = Field(default=[])
    author: Names = Field(default=[])
    keyword: Names = Field(default=[])
    collection: Names = Field(default=[])
    has_abstract: bool | None = None
    order: Order = ""
    diversity: Diversity = 0.0
    outside: Outside = False
    facets: bool = False

    def query(self) -> dict[str, Any]:
        """Return the parameters of a search request as `Query.from_json` reads them."""
        where: dict[str, Any] = {}
        if self.year_from is not None or self.year_to is not None:
            where["years"] = [self.year_from, self.year_to]
        names = ("venue", "field", "author", "keyword", "collection")
        where |= {f"{name}s": values for name in names if (values := getattr(self, name))}
        where |= {"has_abstract": self.has_abstract} if self.has_abstract is not None else {}
        fields = self.model_dump(
            include={"by", "aspect", "count", "offset", "order", "diversity", "outside"}, exclude_unset=True
        )
        return fields | ({"where": where} if where else {})


class SearchParameters(_SearchOptions):
    q: Annotated[str, Field(min_length=1, max_length=4000, description="A question, a title, an abstract.")]

    def query(self) -> dict[str, Any]:
        return {"text": self.q, **super().query()}


class SimilarParameters(_SearchOptions):
    paper: Annotated[Id, Field(description="Any id of a paper.")]
    explain: Annotated[bool, Field(description="Also explain why each of the first 20 papers is similar.")] = False

    def query(self) -> dict[str, Any]:
        return {"paper": self.paper, **super().query()}


class PapersParameters(IndexParameters):
    id: Annotated[list[Id], Field(min_length=1, max_length=100, description="May be repeated.")]


class ExplainParameters(IndexParameters):
    left: Id
    right: Id


class MissingParameters(IndexParameters):
    most: Annotated[int, Field(ge=1, le=500)] = 50


class NeighborhoodParameters(MissingParameters):
    paper: Id


class SuggestParameters(IndexParameters):
    q: Annotated[str, Field(min_length=1, max_length=200)]
    count: Annotated[int, Field(ge=1, le=50)] = 8


class TitlesParameters(IndexParameters):
    rows: Annotated[
        str,
        Field(
            pattern=r"^[0-9]{1,9}(,[0-9]{1,9}){0,499}$",
            max_length=6000,
            description="Rows of the index, such as 1,2,3.",
        ),
    ]


class SamplesParameters(BaseModel):
    model_config = ConfigDict(extra="forbid")

    anchor: Annotated[str, Field(max_length=500, description="Only samples of this paper.")] = ""
    start: Annotated[int, Field(ge=0, le=2**40)] = 0
    count: Annotated[int, Field(ge=1, le=100)] = 20


# --- responses ---

_Score = Annotated[float | None, Field(description="Better when higher; only comparable within one response.")]


class ErrorText(BaseModel):
    what: str = Field(description="What is wrong.")
    next: str = Field(description="What to do next; may be empty.")
    id: str = Field("", description="Id of a server error, also in its log.")
    coming: bool = Field(False, description="Whether the same request will succeed in a few seconds.")


class Failure(BaseModel):
    """The JSON body of every error response."""

    error: ErrorText


class ShortPaper(BaseModel):
    id: str
    title: str
    year: int | None


class ListedPaper(ShortPaper):
    abstract: str
    venue: str
    authors: list[str]
    fields: list[str]
    doi: str = Field(description="Empty where there is none, as in the next four.")
    url: str = Field(description="Link that the source gives.")
    pdf: str = Field(description="Path of the file that the source names, or a link to a PDF.")
    key: str = Field(description="Citation key of the bibliography.")
    keywords: list[str] = Field(description="Keywords and tags of the source.")
    collections: list[str] = Field(description="Collections or groups of the source.")


class PaperResponse(ListedPaper):
    ids: list[str] = Field(description="Other ids of the same paper.")


class SentenceResponse(BaseModel):
    number: int = Field(description="From 0, as in queries by sentences.")
    text: str
    vector: bool = Field(description="Whether a query by sentences may have it.")


class PaperDetails(PaperResponse):
    row: int = Field(description="Row of the paper in /map.")
    outside: bool = Field(description="Known as a reference or citation only, not a paper of the library.")
    sentences: list[SentenceResponse]
    references: list[ShortPaper] = Field(description="Papers of the index that it cites, at most 500.")
    references_unknown: int = Field(description="Cited papers that are not in the index.")
    cited_by: list[ShortPaper] = Field(description="Papers of the index that cite it, at most 500.")
    cited_by_count: int


class PapersResponse(BaseModel):
    papers: list[PaperResponse]
    unknown: list[str] = Field(description="Ids that no paper has.")


class MatchResponse(BaseModel):
    """A matching pair in a response: a sentence of the query and a sentence of the paper."""

    query: int = Field(
        description="Number of the query's sentence, from 0; a text without selected sentences counts as one."
    )
    sentence: int = Field(description="Number of the paper's sentence, from 0.")
    mass: float = Field(description="Share of the pair in all pairs.")
    score: _Score


class HitResponse(ListedPaper):
    outside: bool = Field(description="Known as a reference or citation only, not a paper of the library.")
    cited_by_count: int = Field(description="Papers of the index that cite it.")
    score: _Score
    row: int
    matches: list[MatchResponse]
    sentences: list[str] = Field([], description="Sentences of the paper, if there are matches.")
    confidence: str = Field("", description="With cite: whether it is close to the sentence: high, low or none.")
    passage: int | None = Field(
        None, description="With cite and each: number of the passage's sentence that it is for."
    )
    why: dict[str, Any] | None = Field(None, description="Reasons, in /similar with explain=true.")


class FacetCountResponse(BaseModel):
    name: str
    count: int


class FacetsResponse(BaseModel):
    years: dict[str, int]
    venues: list[FacetCountResponse]
    fields: list[FacetCountResponse]
    authors: list[FacetCountResponse]
    keywords: list[FacetCountResponse]
    collections: list[FacetCountResponse]


class SearchResponse(BaseModel):
    query: dict[str, Any]
    by: str = Field(
        description="What was compared: hybrid, vectors, words or sentences; names where the text has no words besides."
    )
    hits: list[HitResponse]
    total: int = Field(description="Papers found, listed or not.")
    read: dict[str, Any] = Field(
        description="How the text was read: any of ids, authors, phrases, years, venues and text (the rest); {} = plain text."
    )
    facets: FacetsResponse | None
    passage: list[str] = Field([], description="With cite and each: the sentences of the passage.")
    exact: bool = Field(description="Whether no better paper was missed.")
    note: str = Field(description="What is missing from the response, in words.")
    confidence: str = Field(description="Whether a text's answer is likely among the hits: high, low or none.")
    coming: str = Field(
        description="What is still being prepared, if the same request will return more later; otherwise empty."
    )
    took_ms: float


class BatchResponse(BaseModel):
    answers: list[SearchResponse | Failure] = Field(description="In the order of the queries.")


class EmbedResponse(BaseModel):
    model: str
    dimension: int
    vectors: list[list[float]]


class SentencePairResponse(BaseModel):
    left: int
    right: int
    mass: float
    distance: float


class CloseSentencesResponse(BaseModel):
    left: int
    right: int
    cosine: float
    strength: str = Field(description="strong or close.")


class ExplainedPaper(ShortPaper):
    sentences: list[str]


class SharedResponse(BaseModel):
    known: list[ShortPaper]
    unknown: int


class ExplainResponse(BaseModel):
    left: ExplainedPaper
    right: ExplainedPaper
    pairs: list[SentencePairResponse] = Field(description="How the papers are aligned, the largest mass first.")
    matches: list[CloseSentencesResponse] = Field(
        description="Sentences of the abstracts that match, each in one pair, the closest first."
    )
    distance: float | None
    cites: str = Field(description="left = the left paper cites the right one; right, both, or empty.")
    shared_references: SharedResponse
    co_cited_by: list[ShortPaper]
    counts: dict[str, int]
    words: list[str]
    note: str


class Edge(BaseModel):
    citing: str
    cited: str


class Node(ShortPaper):
    row: int


class NeighborhoodResponse(BaseModel):
    nodes: list[Node] = Field(description="The requested paper comes first.")
    edges: list[Edge]
    left_out: int
    outside: int = Field(description="References of the paper that the index does not have.")


class MissingPaperEntry(ShortPaper):
    key: str
    count: int
    authors: list[str]
    venue: str
    in_index: bool


class MissingPaperResponse(BaseModel):
    papers: list[MissingPaperEntry] = Field(description="Cited by the library, most cited first.")
    citing: list[MissingPaperEntry] = Field(description="Citing the library, newest first; `count` of its papers.")


class SuggestionResponse(BaseModel):
    text: str
    papers: int
    id: str | None
    title: str | None
    year: int | None


class SuggestResponse(BaseModel):
    suggestions: list[SuggestionResponse]


class TitlesResponse(BaseModel):
    titles: dict[str, ShortPaper] = Field(description="By row.")


class SamplePick(BaseModel):
    id: str
    title: str
    rule: str = Field(description="The mining rule that selected it.")
    score: float | None


class SampleResponse(BaseModel):
    anchor: dict[str, str]
    aspect: str
    positives: list[SamplePick]
    negatives: list[SamplePick]


class SamplePage(BaseModel):
    total: int
    start: int
    samples: list[SampleResponse]


class MapPending(BaseModel):
    working: dict[str, Any]


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """List the error responses of a route for its OpenAPI description."""
    return {status: {"model": Failure} for status in sorted({400, 404, 405, 413, 414, 422, 429, 431, 503, *statuses})}
