"""Made-up literature behind both services' addresses: what OpenAlex and Semantic Scholar would answer if all went well.

answer = openalex_answer(papers)
answer("/works", {"search": "moths", "cursor": "*"}, None)     200, a page of works
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PAGE = 17

Answer = Callable[[str, dict[str, str], Any], tuple[int, Any]]


@dataclass(frozen=True)
class MadeUpPaper:
    """One paper; those with a number divisible by three cite the first."""

    number: int

    @property
    def doi(self) -> str:
        return f"10.1000/paper.{self.number}"

    @property
    def title(self) -> str:
        return f"On the {self.number}th way of counting what is lost"

    @property
    def openalex(self) -> str:
        return f"https://openalex.org/W{self.number}"

    @property
    def sha(self) -> str:
        return f"{self.number:040x}"

    def as_work(self) -> dict[str, Any]:
        return {
            "id": self.openalex,
            "doi": f"https://doi.org/{self.doi}",
            "title": self.title,
            "publication_year": 2000 + self.number % 20,
            "ids": {"openalex": self.openalex},
            "abstract_inverted_index": {"Counted": [0], "twice.": [1]},
            "referenced_works": ["https://openalex.org/W1"] if self.number % 3 == 0 else [],
            "locations": [],
        }

    def as_paper(self) -> dict[str, Any]:
        return {
            "paperId": self.sha,
            "corpusId": self.number,
            "externalIds": {"DOI": self.doi},
            "title": self.title,
            "year": 2000 + self.number % 20,
            "abstract": "Counted twice.",
            "references": [{"paperId": f"{1:040x}", "title": "On the 1th way"}] if self.number % 3 == 0 else [],
        }


def openalex_answer(papers: list[MadeUpPaper]) -> Answer:
    def chosen(query: dict[str, str]) -> list[MadeUpPaper]:
        kind, _, value = query.get("filter", "").partition(":")
        wanted = set(value.split("|"))
        if kind == "doi":
            return [one for one in papers if one.doi in wanted]
        if kind == "title.search":
            return [one for one in papers if one.title.lower() == value]
        if kind == "cites":
            return [one for one in papers if one.number % 3 == 0] if "W1" in wanted else []
        return papers

    def answer(path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        found, start = chosen(query), 0 if query["cursor"] == "*" else int(query["cursor"])
        following = str(start + PAGE) if start < len(found) else None  # one comes even after the last page
        meta = {"count": len(found), "next_cursor": following}
        return 200, {"meta": meta, "results": [one.as_work() for one in found[start : start + PAGE]]}

    return answer


def semantic_scholar_answer(papers: list[MadeUpPaper]) -> Answer:
    by_name = {one.sha: one for one in papers} | {f"DOI:{one.doi}": one for one in papers}

    def answer(path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if path == "/paper/batch":
            return 200, [by_name[name].as_paper() if name in by_name else None for name in body["ids"]]
        if path == "/paper/search/match":
            found = [one.as_paper() for one in papers if one.title == query["query"]]
            return (200, {"data": found}) if found else (404, {"error": "Title match not found"})
        if path.endswith("/citations"):
            citing = (
                [one.as_paper() for one in papers if one.number % 3 == 0]
                if path == f"/paper/{1:040x}/citations"
                else []
            )
            entries = [{"contexts": [], "intents": [], "citingPaper": one} for one in citing]
            return 200, {"offset": 0, "data": entries[: int(query["limit"])]}
        start = int(query.get("token", "0"))
        token = str(start + PAGE) if start + PAGE < len(papers) else None
        page = [{**one.as_paper(), "references": None} for one in papers[start : start + PAGE]]
        return 200, {"total": len(papers), "token": token, "data": page}

    return answer
