"""OpenAlex API: works by search words, ids, title or citations, as raw records for the reader.

    works = OpenAlex(Client(service_of("openalex"), Path("cache")))
    works.search("citation recommendation", limit=500)     by words of title, abstract and full text
    works.by_ids(["doi:10.7717/peerj.4375", "pmid:29456894", "arxiv:1706.03762", "openalex:W2741809807"])
    works.by_title("The state of OA")                      those whose titles have these words, best first
    works.citing(["openalex:W2741809807"], limit=100)      papers that cite any of these, most cited first

Costs: a page of a list 0.0001 USD, of a search 0.001 USD, out of 1 USD per day with a free key. Only the fields that the
reader uses are requested. Does not fetch PDFs, authors or other entities.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from citeweave.corpus.identity import arxiv_id, distinct, doi_id, number_id, openalex_id, pmc_id
from citeweave.corpus.plain_text import dict_of, fold, list_of, strip_markup, year_of
from citeweave.corpus.readers.json_records import first_text, value_at
from citeweave.corpus.readers.openalex import last_part
from citeweave.corpus.services.client import Client, fetch_in_halves, split_batches
from citeweave.corpus.services.service import IsValid, Page, ServiceRequest, parse_page, read_all_pages

PAGE = 100
"""Works per page, and ids in one list; the service accepts no more."""

_FIELDS = (
    "id,doi,title,display_name,publication_year,publication_date,ids,language,type,primary_location,locations,authorships,"
    "abstract_inverted_index,referenced_works,cited_by_count,primary_topic,topics,keywords,mesh,is_retracted,is_paratext,"
    "open_access,updated_date"
)
_FILTERS = {"doi": "doi", "pmid": "pmid", "pmcid": "pmcid", "mag": "mag", "openalex": "openalex", "arxiv": "doi"}
"""Kind of an id -> the filter that finds it; arXiv's papers have DOIs of DataCite."""

_SYNTAX = set(',|!+"\\')
"""Characters with a meaning in a filter: an id that has one cannot be in a list."""


class OpenAlex:
    """The works of OpenAlex."""

    name, format = "openalex", "openalex"

    def __init__(self, client: Client) -> None:
        self.client = client

    def search(self, query: str, limit: int) -> Iterator[dict[str, Any]]:
        """Yield works by search words, best first."""
        return itertools.islice(self._pages({"search": " ".join(query.split())}), limit)

    def by_ids(self, ids: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the works with these ids, in any order; ids that OpenAlex does not know are skipped."""
        values_by_filter: dict[str, list[str]] = {}
        for id in ids:
            kind, _, value = id.partition(":")
            if kind in _FILTERS and not _SYNTAX & set(value):
                spelling = f"10.48550/arxiv.{value}" if kind == "arxiv" else value
                values_by_filter.setdefault(_FILTERS[kind], []).append(spelling)
        for kind, values in values_by_filter.items():
            fetch = partial(self._list, kind)
            for part in split_batches(values, PAGE // 2):  # long DOIs must fit into one URL
                yield from fetch_in_halves(fetch, part)

    def by_title(self, title: str) -> list[dict[str, Any]]:
        """Return a few works whose titles have the words of this one."""
        words = fold(title)[:400]
        works = self._pages({"filter": f"title.search:{words}"}, size=10) if words else iter(())
        return list(itertools.islice(works, 10))

    def citing(self, ids: Iterable[str], limit: int) -> Iterator[dict[str, Any]]:
        """Yield at most `limit` works that cite any of these OpenAlex ids, the most cited of every fifty ids first."""
        works = [id.removeprefix("openalex:") for id in ids if openalex_id(id.removeprefix("openalex:")) == id]
        parts = list(split_batches(works, PAGE // 2))
        seen = set[str]()
        for number, part in enumerate(parts):
            share = limit * (number + 1) // len(parts) - limit * number // len(parts)
            query = {"filter": f"cites:{'|'.join(part)}", "sort": "cited_by_count:desc"}
            new = (work for work in self._pages(query) if _name_of(work) not in seen)
            for work in itertools.islice(new, share):
                seen.add(_name_of(work))
                yield work

    def ids_of(self, record: dict[str, Any]) -> tuple[str, ...]:
        """Return every id of a work that the OpenAlex API returned."""
        ids = dict_of(record.get("ids"))
        pages = list_of(value_at(record, "locations[].landing_page_url"))
        of_arxiv = [arxiv_id(page) for page in pages if isinstance(page, str) and "arxiv.org/" in page]
        known = [openalex_id(record.get("id")), doi_id(record.get("doi")), doi_id(ids.get("doi")), *of_arxiv]
        pubmed = [number_id("pmid", last_part(ids.get("pmid"))), pmc_id(last_part(ids.get("pmcid")))]
        return distinct([*known, *pubmed, number_id("mag", ids.get("mag"))])

    def title_of(self, record: dict[str, Any]) -> str:
        return first_text(record, "title", "display_name", clean=strip_markup)

    def year_of(self, record: dict[str, Any]) -> int | None:
        return year_of(record.get("publication_year"))

    def references_of(self, record: dict[str, Any]) -> list[str]:
        """Return the ids of the papers that an OpenAlex work cites."""
        return list(distinct([openalex_id(one) for one in list_of(record.get("referenced_works"))]))

    def adapt_record(self, record: dict[str, Any], id: str, year: int | None) -> dict[str, Any]:
        """Return OpenAlex's record with what the import needs to join it with the paper of this id and year."""
        adapted = dict(record)
        if year is not None:
            adapted["publication_year"] = year
        if id.startswith("arxiv:") and id not in self.ids_of(record):
            # OpenAlex has no field for arXiv ids: the reader takes them from the paper's locations
            page = {"landing_page_url": f"https://arxiv.org/abs/{id.removeprefix('arxiv:')}"}
            adapted["locations"] = [*list_of(record.get("locations")), page]
        return adapted

    def _list(self, kind: str, values: list[str]) -> Iterator[dict[str, Any]]:
        """Yield works by their ids."""
        return self._pages({"filter": f"{kind}:{'|'.join(values)}"})

    def _pages(self, query: dict[str, str], size: int = PAGE) -> Iterator[dict[str, Any]]:
        """Yield all works of a list, each once."""

        def fetch(cursor: str, is_valid: IsValid) -> Any:
            parameters = {**query, "select": _FIELDS, "per_page": str(size), "cursor": cursor}
            return self.client.fetch(ServiceRequest("/works", parameters), is_valid, allow_missing=False).value

        return read_all_pages(fetch, _page, "*")


def _page(value: Any) -> Page | None:
    """Parse a page of OpenAlex works, None where the response is not one."""
    cursor, count = value_at(value, "meta.next_cursor"), value_at(value, "meta.count")
    return parse_page(value_at(value, "results"), cursor, count, _name_of)


def _name_of(work: dict[str, Any]) -> str:
    return openalex_id(work.get("id")) or ""
