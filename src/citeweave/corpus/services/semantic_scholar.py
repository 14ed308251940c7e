"""Semantic Scholar API: papers by search words, ids, title or citations, as raw records for the reader.

    papers = SemanticScholar(Client(service_of("s2"), Path("cache")))
    papers.search("citation recommendation", limit=500)    by words of title and abstract
    papers.by_ids(["doi:10.18653/v1/n18-3011", "arxiv:1706.03762", "s2:19170988"])
    papers.by_title("Attention is all you need")           the paper with that title, if there is one
    papers.citing(["s2sha:<40 digits>"], limit=100)        citations, with their sentences

A key allows one request per second; without one all users share a pool, which is often exhausted. Papers come with their
references (ids, titles and years). Does not fetch authors, PDFs or vectors. The reader is `readers/s2_graph_api.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from citeweave.corpus.identity import SEMANTIC_SCHOLAR_KINDS, distinct, number_id, semantic_scholar_ids, sha_id
from citeweave.corpus.plain_text import dict_of, list_of, strip_markup, year_of
from citeweave.corpus.readers.json_records import value_at
from citeweave.corpus.services.client import Client, drop_repeats, fetch_in_halves, split_batches
from citeweave.corpus.services.service import IsValid, Page, ServiceRequest, parse_page, read_all_pages

BATCH = 100
"""Papers per request with their references: 500 are allowed, but at most 10 MB."""

PAGE = 1000
"""Most citations per page."""

_PAPER = (
    "paperId,corpusId,externalIds,title,abstract,year,publicationDate,venue,journal,authors,publicationTypes,"
    "fieldsOfStudy,s2FieldsOfStudy,citationCount,referenceCount,influentialCitationCount,isOpenAccess"
)
_REFERENCES = ",references.paperId,references.corpusId,references.externalIds,references.title,references.year"
_CITING = "contexts,intents,isInfluential,paperId,corpusId,externalIds,title,abstract,year,venue,authors,citationCount"
_KINDS = {kind: name for name, kind in SEMANTIC_SCHOLAR_KINDS.items() if kind not in ("s2", "dblp")}
"""Kind of an id -> its name in `externalIds`."""

_PREFIXES = {kind: f"{kind.upper()}:" for kind in _KINDS} | {"s2": "CorpusId:", "s2sha": ""}
"""Kind of an id -> what the service puts before it."""


class SemanticScholar:
    """The papers of Semantic Scholar."""

    name, format = "s2", "s2_graph_api"

    def __init__(self, client: Client) -> None:
        self.client = client

    def search(self, query: str, limit: int) -> Iterator[dict[str, Any]]:
        """Yield papers that Semantic Scholar's API finds by search words, with their references, the most cited first."""
        matches = itertools.islice(self._search_pages(" ".join(query.split())), limit)
        for part in split_batches(matches, BATCH):
            names = [record["paperId"] for record in part if sha_id(record.get("paperId"))]
            full = {record.get("paperId"): record for record in self._batch(names)}
            yield from (full.get(record.get("paperId"), record) for record in part)

    def by_ids(self, ids: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the papers with these ids; ids that Semantic Scholar does not know are skipped."""
        parts = (id.partition(":") for id in ids)
        names = [f"{_PREFIXES[kind]}{value}" for kind, _, value in parts if kind in _PREFIXES]
        for part in split_batches(names, BATCH):
            yield from self._batch(part)

    def by_title(self, title: str) -> list[dict[str, Any]]:
        """Return the paper that Semantic Scholar matches to this title, with its references."""
        parameters = {"query": " ".join(title.split())[:300], "fields": _PAPER}
        response = self.client.fetch(ServiceRequest("/paper/search/match", parameters), _has_data)
        matched = list_of(value_at(response.value, "data[].paperId")) if response.status == 200 else []
        names = [str(name) for name in matched if sha_id(name)]
        return list(self._batch(names[:1]))

    def citing(self, ids: Iterable[str], limit: int) -> Iterator[dict[str, Any]]:
        """Yield at most `limit` citations of these papers, each with the id of the cited paper as the reader wants it."""
        owners = [id.removeprefix("s2sha:") for id in ids if sha_id(id.removeprefix("s2sha:")) == id]
        share = max(1, limit // max(1, len(owners)))
        for owner in owners:
            if limit <= 0:
                return
            size = min(share, limit, PAGE)
            parameters = {"fields": _CITING, "limit": str(size)}
            response = self.client.fetch(ServiceRequest(f"/paper/{owner}/citations", parameters), _has_data)
            listed = (entry for entry in list_of(value_at(response.value, "data")) if isinstance(entry, dict))
            entries = list(drop_repeats(listed, lambda entry: _name_of(dict_of(entry.get("citingPaper")))))[:size]
            limit -= len(entries)
            yield from ({"paperId": owner, "data": [entry]} for entry in entries)

    def ids_of(self, record: dict[str, Any]) -> tuple[str, ...]:
        """Return every id of a Semantic Scholar paper."""
        own = [sha_id(record.get("paperId")), number_id("s2", record.get("corpusId"))]
        return distinct([*own, *semantic_scholar_ids(record.get("externalIds"))])

    def title_of(self, record: dict[str, Any]) -> str:
        return strip_markup(record.get("title"))

    def year_of(self, record: dict[str, Any]) -> int | None:
        return year_of(record.get("year")) or year_of(record.get("publicationDate"))

    def references_of(self, record: dict[str, Any]) -> list[str]:
        """Return the ids of the papers that a Semantic Scholar paper cites."""
        return list(distinct(list(map(sha_id, list_of(value_at(record, "references[].paperId"))))))

    def adapt_record(self, record: dict[str, Any], id: str, year: int | None) -> dict[str, Any]:
        """Return Semantic Scholar's record with what the import needs to join it with the paper of this id and year."""
        adapted = dict(record)
        if year is not None:
            adapted["year"] = year
        kind, _, value = id.partition(":")
        name = _KINDS.get(kind)
        if name and id not in self.ids_of(record):
            adapted["externalIds"] = {**dict_of(record.get("externalIds")), name: value}
        return adapted

    def _search_pages(self, query: str) -> Iterator[dict[str, Any]]:
        def fetch(token: str, is_valid: IsValid) -> Any:
            parameters = {"query": query, "fields": _PAPER, "sort": "citationCount:desc"}
            request = ServiceRequest("/paper/search/bulk", parameters | ({"token": token} if token else {}))
            return self.client.fetch(request, is_valid, allow_missing=False).value

        return read_all_pages(fetch, _page, "")

    def _batch(self, names: list[str]) -> Iterator[dict[str, Any]]:
        """Yield papers with references; a list whose response would be too large is fetched in halves."""
        return fetch_in_halves(self._fetch_batch, names) if names else iter(())

    def _fetch_batch(self, names: list[str]) -> Iterator[dict[str, Any]]:
        request = ServiceRequest("/paper/batch", {"fields": _PAPER + _REFERENCES}, {"ids": names})
        response = self.client.fetch(request, lambda value: isinstance(value, list), allow_missing=False)
        yield from (paper for paper in list_of(response.value) if isinstance(paper, dict) and paper.get("paperId"))


def _has_data(value: Any) -> bool:
    return isinstance(value_at(value, "data"), list)


def _page(value: Any) -> Page | None:
    """Parse a page of a Semantic Scholar search, None where the response is not one."""
    return parse_page(value_at(value, "data"), value_at(value, "token"), value_at(value, "total"), _name_of)


def _name_of(paper: dict[str, Any]) -> str:
    return sha_id(paper.get("paperId")) or ""
