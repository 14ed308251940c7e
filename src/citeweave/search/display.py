"""Search results and explanations as they look in notebooks: HTML tables whose texts are escaped.

    answer(index, "maps of citations")                     as the last line of a cell: a table of the hits
    explain(index, "doi:10.1/x", "doi:10.1/y")             the sentences that match, side by side, and other connections

Takes the JSON of results and explanations, so that it shows what their other readers see. Does not search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from citeweave.core.notebook import html_block, html_table

_MAX_NAMES = 3
_MAX_TITLES = 5
_SHOWN = ("title", "authors", "venue")
_CITES = {
    "left": "The first paper cites the second.",
    "right": "The second paper cites the first.",
    "both": "The papers cite each other.",
}


def hits_as_html(payload: Mapping[str, Any]) -> str:
    """Return the JSON of a search result as an HTML table: rank, title, year, score and id of each hit.

    >>> hit = {"id": "s2:1", "title": "<Maps>", "year": 2020, "score": 0.5}
    >>> page = hits_as_html({"query": {"text": "maps"}, "by": "words", "hits": [hit], "note": ""})
    >>> "&lt;Maps&gt;" in page, "1 paper for maps, by words" in page
    (True, True)
    """
    hits = payload["hits"]
    count = "1 paper" if len(hits) == 1 else f"{len(hits):,} papers"
    by = f", by {payload['by']}" if payload.get("by") else ""
    caption = f"{count} for {_query_words(payload['query'])}{by}"
    rows = [_hit_row(rank, hit) for rank, hit in enumerate(hits, payload["query"].get("offset", 0) + 1)]
    return html_table(rows, caption, notes=[payload.get("note", "")])


def explanation_as_html(payload: Mapping[str, Any]) -> str:
    """Return the JSON of an explanation as HTML: pairs of sentences that match, then citations and words in common."""
    left, right = payload["left"], payload["right"]
    sentences = [(left["sentences"][pair["left"]], right["sentences"][pair["right"]]) for pair in payload["pairs"]]
    pairs = [{left["title"]: ours, right["title"]: theirs} for ours, theirs in sentences]
    lists = {
        "Both cite": [paper["title"] for paper in payload["shared_references"]["known"]],
        "Cited together by": [paper["title"] for paper in payload["co_cited_by"]],
    }
    notes = [_CITES.get(payload["cites"], "")]
    notes += [f"{what}: {_some(titles)}" for what, titles in lists.items() if titles]
    notes += [f"Words in common: {', '.join(payload['words'])}" if payload["words"] else "", payload["note"]]
    caption = f"Why {left['title']} and {right['title']} are alike"
    return html_table(pairs, caption, notes=notes) if pairs else html_block(caption, "", notes)


def _query_words(query: Mapping[str, Any]) -> str:
    """Return what a query asks for in a few words."""
    sentences = query.get("sentences") or {}
    if numbers := sentences.get("numbers"):
        return f"sentence {', '.join(map(str, numbers))} of {sentences['paper']}"
    chosen = [query.get("text"), query.get("paper"), sentences.get("paper"), *sentences.get("texts", ())]
    chosen += [(query.get("cite") or {}).get("text"), ", ".join(query.get("liked", ()))]
    return next(filter(None, chosen), "the query")


def _hit_row(rank: int, hit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a hit: only what identifies the paper, of all that a hit may hold."""
    authors = list(hit.get("authors") or [])
    shown = {**hit, "authors": [*authors[:_MAX_NAMES], *(["et al."] if len(authors) > _MAX_NAMES else [])]}
    year = "" if hit.get("year") is None else str(hit["year"])
    return {
        "": str(rank),
        **{name: shown.get(name) for name in _SHOWN},
        "year": year,
        "score": hit["score"],
        "id": hit["id"],
    }


def _some(titles: Sequence[str]) -> str:
    """Join the first titles of a list, with the number of the others."""
    more = f"; and {len(titles) - _MAX_TITLES:,} more" if len(titles) > _MAX_TITLES else ""
    return "; ".join(titles[:_MAX_TITLES]) + more
