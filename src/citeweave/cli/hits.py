"""Hits as lines of text, with the reasons for them; titles and sentences are strangers' text and may hold anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from citeweave.evaluation.reporting.document import one_line

if TYPE_CHECKING:
    from citeweave.search.asking.answers import Answer
    from citeweave.search.asking.explaining import Why
    from citeweave.search.index import Index

MOST_PAIRS = 2
"""Pairs of sentences that are printed as a reason."""


def reasons(index: Index, found: Answer) -> list[Why | None]:
    """Why each hit is like the paper that was asked with, of several liked ones the nearest; None for a text."""
    import numpy as np

    from citeweave.search.asking.explaining import explain

    query = found.query
    asked = [query.paper] if query.paper else list(query.liked)
    if query.sentences is not None and query.sentences.paper:
        asked = [query.sentences.paper]
    if not asked:
        return [None] * len(found.hits)
    rows = np.array([index.row(id) for id in asked], np.int64)
    nearest = [0] * len(found.hits)
    if len(rows) > 1 and found.hits:
        hits = index.take(np.array([hit.row for hit in found.hits]), query.aspect)  # (hits, dimension)
        liked = index.take(rows, query.aspect)  # (liked, dimension)
        liked /= np.maximum(np.linalg.norm(liked, axis=1, keepdims=True), 1e-12)
        nearest = np.argmax(hits @ liked.T, axis=1).tolist()
    return [explain(index, int(rows[at]), hit.row) for at, hit in zip(nearest, found.hits, strict=True)]


def hits_text(index: Index, found: Answer, told: dict[str, Any]) -> str:
    """Rank, score, year, title and id on a line, what is known beyond that under it."""
    lines, passage, place = list[str](), -1, 0
    for hit in told["hits"]:
        if hit.get("passage", -1) != passage:
            passage, place = hit["passage"], 0
            lines.append(one_line(found.passage[passage]))
        place += 1
        # + 0.0, as -0.0 is a strange thing to read
        title, name = one_line(hit["title"], 120) or "(no title)", one_line(hit["id"], 100)
        rank = place if passage >= 0 else found.query.offset + place
        lines.append(f"{rank:>3}. {hit['score'] + 0.0:.4f}  {hit['year'] or '----'}  {title}  {name}")
        lines += _evidence(hit)
        if found.query.sentences is not None or "why" in hit:
            lines += _matches(index, found, hit)
        if hit.get("why"):
            lines += _why(index, hit)
    if not told["hits"]:
        lines.append("no paper was found" + ("; fewer conditions may find some" if found.query.where else ""))
    if found.note:
        lines.append(found.note)
    if told.get("sentences") == 0:
        lines.append("by the papers alone: `citeweave index --contexts` adds the sentences that cite them")
    return "\n".join(lines)


def _evidence(hit: dict[str, Any]) -> Iterator[str]:
    if told := hit.get("evidence"):
        how = f" ({', '.join(told['intents'])})" if told["intents"] else ""
        yield f"     {told['score'] + 0.0:.4f}  {one_line(told['citing'], 100)}{how}: {one_line(told['text'])}"


def _matches(index: Index, found: Answer, hit: dict[str, Any]) -> Iterator[str]:
    """The sentence of the hit that answers each sentence of the query, by its number."""
    chosen = found.query.sentences
    numbers = list(dict.fromkeys(chosen.numbers)) if chosen else []
    texts = index.sentence_texts(hit["row"]) if hit["matches"] else []
    for match in hit["matches"]:
        asked = f"{numbers[match['query']] if numbers else match['query']} ~ " if chosen else ""
        said = one_line(texts[match["sentence"]]) if match["sentence"] < len(texts) else ""
        yield f"     {match['score'] + 0.0:.4f}  {asked}{match['sentence']}  {said}".rstrip()


def _why(index: Index, hit: dict[str, Any]) -> Iterator[str]:
    why = hit["why"]
    of = one_line(why["of"], 100)
    said = {"left": f"{of} cites it", "right": f"it cites {of}", "both": f"it and {of} cite each other"}
    facts = [said[why["cites"]]] if why["cites"] else []
    if why["shared_references"]:
        facts.append(f"{why['shared_references']:,} shared reference{'s' * (why['shared_references'] > 1)}")
    if why["co_cited_by"]:
        facts.append(f"cited together by {why['co_cited_by']:,}")
    if why["words"]:
        facts.append(f"words {one_line(', '.join(why['words'][:5]))}")
    if facts:
        yield f"     {'; '.join(facts)}"
    if hit["matches"]:
        return
    left, right = index.sentence_texts(index.row(why["of"])), index.sentence_texts(hit["row"])
    for pair in why["pairs"][:MOST_PAIRS]:
        for at, texts in ((pair["left"], left), (pair["right"], right)):
            yield f"     {at:>3}  {one_line(texts[at]) if at < len(texts) else ''}".rstrip()
