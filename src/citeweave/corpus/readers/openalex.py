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
from citeweave.core.progress import Tally
from citeweave.corpus.identity import arxiv_id, distinct, doi_id, number_id, openalex_id, pmc_id
from citeweave.corpus.paper import Citation, Paper, Record
from citeweave.corpus.plain_text import (
    clean_text,
    count_of,
    day_of,
    dict_of,
    filled,
    list_of,
    names_of,
    number_of,
    strip_markup,
    year_of,
)
from citeweave.corpus.readers.json_records import read_json_objects, starts_as_json

MAX_POSITION = 100_000
"""Highest position of a word in an abstract; the longest real ones have some ten thousand words."""

MAX_ABSTRACT = 1_000_000
"""Longest abstract, in characters: one long word at many positions is as dangerous as a high position."""


def recognizes(head: FileHead) -> bool:
    """Return whether a file holds works of OpenAlex."""
    is_work = b'"publication_year"' in head.data or b'"referenced_works"' in head.data
    return starts_as_json(head) and is_work and b"openalex.org/W" in head.data


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers and citations of OpenAlex works."""
    for record in read_json_objects(source, tally, "papers"):
        results = record.get("results")
        if not isinstance(results, list):
            yield from _read_work(record, tally)
            continue
        for work in results:
            yield from _read_work(dict_of(work), tally)


def _read_work(work: dict[str, object], tally: Tally) -> Iterator[Record]:
    own = openalex_id(work.get("id")) or openalex_id(dict_of(work.get("ids")).get("openalex"))
    if not own:
        tally.reject("papers", "no OpenAlex work id")
        tally.reject("citations", "citing paper rejected", len(list_of(work.get("referenced_works"))))
        return
    paper = _paper(own, work, tally)
    if paper.title or paper.abstract:
        yield paper
    else:
        tally.reject("papers", "no title and no abstract")
    for reference in list_of(work.get("referenced_works")):
        cited = openalex_id(reference)
        if cited:
            yield Citation(own, cited)
        else:
            tally.reject("citations", "reference without a usable id")


def _paper(own: str, work: dict[str, object], tally: Tally) -> Paper:
    source = dict_of(_main_location(work).get("source")) or dict_of(work.get("host_venue"))
    authors = [dict_of(dict_of(item).get("author")).get("display_name") for item in list_of(work.get("authorships"))]
    return Paper(
        own,
        strip_markup(work.get("title")) or strip_markup(work.get("display_name")),
        _abstract(work, tally),
        year_of(work.get("publication_year")) or year_of(work.get("publication_date")),
        clean_text(source.get("display_name")),
        names_of(authors),
        _fields(work),
        tuple(i for i in _other_ids(work) if i != own),
        count_of(work.get("cited_by_count")),
        day_of(work.get("updated_date")),
        _extra(work),
    )


def _main_location(work: dict[str, object]) -> dict[str, object]:
    return dict_of(work.get("primary_location"))


def _other_ids(work: dict[str, object]) -> tuple[str, ...]:
    ids = dict_of(work.get("ids"))
    candidates = [
        doi_id(work.get("doi")) or doi_id(ids.get("doi")),
        _arxiv_of_locations(work),
        number_id("pmid", _last_part(ids.get("pmid"))),
        pmc_id(_last_part(ids.get("pmcid"))),
        number_id("mag", ids.get("mag")),
        openalex_id(ids.get("openalex")),
    ]
    return distinct(candidates)


def _last_part(address: object) -> object:
    """Return the last part of an address, `https://pubmed.ncbi.nlm.nih.gov/29456894` -> `29456894`; other values unchanged."""
    return address.rstrip("/").rsplit("/", 1)[-1] if isinstance(address, str) else address


def _arxiv_of_locations(work: dict[str, object]) -> str | None:
    """Return the arXiv id of a work from its locations; a work with two of them is several papers and gets none."""
    pages = [dict_of(location).get("landing_page_url") for location in list_of(work.get("locations"))]
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
    topics = [dict_of(topic) for topic in (work.get("primary_topic"), *list_of(work.get("topics")))]
    broad = [dict_of(topic.get("field")).get("display_name") for topic in topics]
    names = names_of([*broad, *(topic.get("display_name") for topic in topics)])
    concepts = [dict_of(concept) for concept in list_of(work.get("concepts"))]
    return names or names_of([c.get("display_name") for c in concepts if number_of(c.get("score")) != 0])


def _extra(work: dict[str, object]) -> dict[str, object]:
    topic = dict_of(work.get("primary_topic"))
    flags = {name: work.get(name) for name in ("is_retracted", "is_paratext")}
    named = {level: clean_text(dict_of(topic.get(level)).get("display_name")) for level in ("domain", "subfield")}
    keywords = [dict_of(keyword).get("display_name") for keyword in list_of(work.get("keywords"))]
    mesh = [dict_of(heading).get("descriptor_name") for heading in list_of(work.get("mesh"))]
    return filled(
        {
            "type": clean_text(work.get("type")),
            "language": clean_text(work.get("language")),
            "date": clean_text(work.get("publication_date")),
            **named,
            "keywords": list(names_of(keywords)),
            "mesh": list(names_of(mesh)),
            "open_access": clean_text(dict_of(work.get("open_access")).get("oa_status")),
            **{name: True for name, flag in flags.items() if flag is True},
        }
    )
