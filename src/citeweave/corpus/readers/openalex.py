"""OpenAlex works: the JSON lines of the snapshot, one work of the API, or its result lists.

    {"id": "https://openalex.org/W2741809807", "doi": "https://doi.org/10.7717/x", "title": "T",
     "abstract_inverted_index": {"We": [0, 2], "study": [1]}, "referenced_works": ["https://openalex.org/W1"]}

Does not read authors, sources, institutions or any other entity of OpenAlex, nor its Parquet files.

An abstract comes as the positions of each word. A work that claims more than `MAX_POSITION` words, or more than
`MAX_ABSTRACT` characters, keeps its title and loses its abstract, which is noted: no memory is taken before the sizes are
known.
"""

from __future__ import annotations

from collections.abc import Iterator

from citeweave.core.inputs import FileHead, Source
from citeweave.core.json_files import read_json_objects, starts_as_json
from citeweave.core.progress import Tally
from citeweave.corpus.identity import arxiv_id, distinct, doi_id, openalex_id, spell_ids
from citeweave.corpus.paper import Paper, Record
from citeweave.corpus.plain_text import count_of, day_of, dict_of, list_of, names_of, number_of, strip_markup, year_of
from citeweave.corpus.readers.json_records import extra_of, first_text, names_at, value_at
from citeweave.corpus.readers.paper_records import accepted, cite_ids

MAX_POSITION = 100_000
"""Highest position of a word in an abstract; the longest real ones have some ten thousand words."""

MAX_ABSTRACT = 1_000_000
"""Longest abstract, in characters: one long word at many positions is as dangerous as a high position."""

_EXTRA = {
    "type": "type",
    "language": "language",
    "date": "publication_date",
    "domain": "primary_topic.domain.display_name",
    "subfield": "primary_topic.subfield.display_name",
    "keywords": "keywords[].display_name",
    "mesh": "mesh[].descriptor_name",
    "open_access": "open_access.oa_status",
}


def recognizes(head: FileHead) -> bool:
    """Return whether a file holds works of OpenAlex."""
    return starts_as_json(head, "publication_year|referenced_works") and b"openalex.org/W" in head.data


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers and citations of OpenAlex works."""
    for record in read_json_objects(source, tally, "papers"):
        results = record.get("results")
        for work in results if isinstance(results, list) else [record]:
            yield from _read_work(dict_of(work), tally)


def _read_work(work: dict[str, object], tally: Tally) -> Iterator[Record]:
    references = list_of(work.get("referenced_works"))
    own = openalex_id(work.get("id")) or openalex_id(value_at(work, "ids.openalex"))
    if not own:
        tally.reject("papers", "no OpenAlex work id")
        tally.reject("citations", "citing paper rejected", len(references))
        return
    paper = _paper(own, work, tally)
    if accepted(paper, tally):
        yield paper
    yield from cite_ids(own, map(openalex_id, references), tally)


def _paper(own: str, work: dict[str, object], tally: Tally) -> Paper:
    source = dict_of(value_at(work, "primary_location.source")) or dict_of(work.get("host_venue"))
    flags = {name: True for name in ("is_retracted", "is_paratext") if work.get(name) is True}
    return Paper(
        own,
        first_text(work, "title", "display_name", clean=strip_markup),
        _abstract(work, tally),
        year_of(work.get("publication_year")) or year_of(work.get("publication_date")),
        first_text(source, "display_name"),
        names_at(work, "authorships[].author.display_name"),
        _fields(work),
        tuple(i for i in _other_ids(work) if i != own),
        count_of(work.get("cited_by_count")),
        day_of(work.get("updated_date")),
        extra_of(work, _EXTRA) | flags,
    )


def _other_ids(work: dict[str, object]) -> tuple[str, ...]:
    ids = dict_of(work.get("ids"))
    best = [doi_id(work.get("doi")) or doi_id(ids.get("doi")), _arxiv_of_locations(work)]
    pmid, pmcid = last_part(ids.get("pmid")), last_part(ids.get("pmcid"))
    return distinct([*best, *spell_ids(pmid=pmid, pmcid=pmcid, mag=ids.get("mag"), openalex=ids.get("openalex"))])


def last_part(address: object) -> object:
    """Return the last part of an address, `https://pubmed.ncbi.nlm.nih.gov/29456894` -> `29456894`; other values unchanged."""
    return address.rstrip("/").rsplit("/", 1)[-1] if isinstance(address, str) else address


def _arxiv_of_locations(work: dict[str, object]) -> str | None:
    """Return the arXiv id of a work from its locations; a work with two of them is several papers and gets none."""
    pages = list_of(value_at(work, "locations[].landing_page_url"))
    arxiv_ids = {arxiv_id(page) for page in pages if isinstance(page, str) and "arxiv.org/" in page} - {None}
    return arxiv_ids.pop() if len(arxiv_ids) == 1 else None


def _abstract(work: dict[str, object], tally: Tally) -> str:
    index = work.get("abstract_inverted_index")
    if not isinstance(index, dict):
        return strip_markup(work.get("abstract"))
    words = _words_in_order(index)
    if words is None:
        tally.note("abstract left out: impossible word positions")
        return ""
    return strip_markup(" ".join(words))


def _words_in_order(index: dict[str, object]) -> list[str] | None:
    """Return the words of an inverted abstract by position, None where the positions are impossible. Gaps close.

    >>> _words_in_order({"study": [1], "We": [0, 3]})
    ['We', 'study', 'We']
    >>> _words_in_order({"bomb": [10**9]}) is None
    True
    """
    placed: list[tuple[int, str]] = []
    characters = 0
    for word, positions in index.items():
        if not isinstance(positions, list) or len(positions) + len(placed) > MAX_POSITION + 1:
            return None
        characters += (len(word) + 1) * len(positions)
        if characters > MAX_ABSTRACT or not all(type(p) is int and 0 <= p <= MAX_POSITION for p in positions):
            return None
        placed.extend((position, word) for position in positions)
    placed.sort(key=lambda pair: pair[0])
    return [word for _, word in placed]


def _fields(work: dict[str, object]) -> tuple[str, ...]:
    """Return the broad fields of the topics, then the topics; works from before 2024 have concepts instead."""
    topics = {"topics": [work.get("primary_topic"), *list_of(work.get("topics"))]}
    names = names_at(topics, "topics[].field.display_name", "topics[].display_name")
    concepts = [dict_of(concept) for concept in list_of(work.get("concepts"))]
    return names or names_of([c.get("display_name") for c in concepts if number_of(c.get("score")) != 0])
