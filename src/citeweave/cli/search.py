"""The command `search`, with hits printed as lines of text and the reasons for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from citeweave.cli.options import CommonArguments, Device, Given, IndexFolder, print_json
from citeweave.core.errors import UserError
from citeweave.core.options import Positional
from citeweave.evaluation.html import one_line
from citeweave.search.query import Filter, Passage, Query, SentenceQuery

if TYPE_CHECKING:
    from citeweave.search.answer import SearchResult
    from citeweave.search.explain import Explanation
    from citeweave.search.index import Index


MAX_PAIRS = 2
"""Maximum pairs of sentences that are printed as a reason."""


def reasons(index: Index, result: SearchResult) -> list[Explanation | None]:
    """Explain each hit that `citeweave search` prints: why it is similar to the query or nearest liked paper; None for a text."""
    import numpy as np

    from citeweave.search.explain import explain

    query = result.query
    papers = [query.paper] if query.paper else list(query.liked)
    if query.sentences is not None and query.sentences.paper:
        papers = [query.sentences.paper]
    if not papers:
        return [None] * len(result.hits)
    rows = np.array([index.row(id) for id in papers], np.int64)
    nearest = [0] * len(result.hits)
    if len(rows) > 1 and result.hits:
        hits = index.take(np.array([hit.row for hit in result.hits]), query.aspect)  # (hits, dimension)
        liked = index.take(rows, query.aspect)  # (liked, dimension)
        liked /= np.maximum(np.linalg.norm(liked, axis=1, keepdims=True), 1e-12)
        nearest = np.argmax(hits @ liked.T, axis=1).tolist()
    return [explain(index, int(rows[at]), hit.row) for at, hit in zip(nearest, result.hits, strict=True)]


def _hits_text(index: Index, result: SearchResult, output: dict[str, Any]) -> str:
    """Format hits as lines: rank, score, year, title and id, with details below."""
    lines, passage, place = list[str](), -1, 0
    for hit in output["hits"]:
        if hit.get("passage", -1) != passage:
            passage, place = hit["passage"], 0
            lines.append(one_line(result.passage[passage]))
        place += 1
        # + 0.0 turns -0.0 into 0.0
        title, name = one_line(hit["title"], 120) or "(no title)", one_line(hit["id"], 100)
        rank = place if passage >= 0 else result.query.offset + place
        lines.append(f"{rank:>3}. {hit['score'] + 0.0:.4f}  {hit['year'] or '----'}  {title}  {name}")
        lines += _evidence(hit)
        if result.query.sentences is not None or "why" in hit:
            lines += _matches(index, result, hit)
        if hit.get("why"):
            lines += _why(index, hit)
    if not output["hits"]:
        lines.append("no paper was found" + ("; try fewer conditions" if result.query.where else ""))
    if result.note:
        lines.append(result.note)
    if output.get("sentences") == 0:
        lines.append("by papers only; `citeweave index --contexts` adds the sentences that cite them")
    return "\n".join(lines)


def _evidence(hit: dict[str, Any]) -> Iterator[str]:
    if evidence := hit.get("evidence"):
        intents = f" ({', '.join(evidence['intents'])})" if evidence["intents"] else ""
        citing, text = one_line(evidence["citing"], 100), one_line(evidence["text"])
        yield f"     {evidence['score'] + 0.0:.4f}  {citing}{intents}: {text}"


def _matches(index: Index, result: SearchResult, hit: dict[str, Any]) -> Iterator[str]:
    """Return the sentence of a hit that matches each query sentence."""
    chosen = result.query.sentences
    numbers = list(dict.fromkeys(chosen.numbers)) if chosen else []
    texts = index.sentence_texts(hit["row"]) if hit["matches"] else []
    for match in hit["matches"]:
        query = f"{numbers[match['query']] if numbers else match['query']} ~ " if chosen else ""
        text = one_line(texts[match["sentence"]]) if match["sentence"] < len(texts) else ""
        yield f"     {match['score'] + 0.0:.4f}  {query}{match['sentence']}  {text}".rstrip()


def _why(index: Index, hit: dict[str, Any]) -> Iterator[str]:
    why = hit["why"]
    of = one_line(why["of"], 100)
    cites = {"left": f"{of} cites it", "right": f"it cites {of}", "both": f"it and {of} cite each other"}
    lines = [cites[why["cites"]]] if why["cites"] else []
    if why["shared_references"]:
        lines.append(f"{why['shared_references']:,} shared reference{'s' * (why['shared_references'] > 1)}")
    if why["co_cited_by"]:
        lines.append(f"cited together by {why['co_cited_by']:,}")
    if why["words"]:
        lines.append(f"words {one_line(', '.join(why['words'][:5]))}")
    if lines:
        yield f"     {'; '.join(lines)}"
    if hit["matches"]:
        return
    left, right = index.sentence_texts(index.row(why["of"])), index.sentence_texts(hit["row"])
    for pair in why["pairs"][:MAX_PAIRS]:
        for at, texts in ((pair["left"], left), (pair["right"], right)):
            yield f"     {at:>3}  {one_line(texts[at]) if at < len(texts) else ''}".rstrip()


@dataclass(frozen=True, kw_only=True)
class SearchArguments(CommonArguments):
    index: IndexFolder
    text: Annotated[str, Positional()] = ""
    """Text to search for: a question, or a title and an abstract separated by a line break."""

    query: Annotated[Mapping[str, Any], Given(Query, without=("text", "sentences", "cite"))]

    sentences: str = ""
    """Search by sentences of an indexed paper's abstract, as ID:2,3 (numbered from 0)."""

    sentence: tuple[str, ...] = ()
    """Search by this sentence of your own; may be repeated."""

    cite: str = ""
    """Find papers to cite in this sentence or paragraph of a draft."""

    passage: Annotated[Mapping[str, Any], Given(Passage, without=("text",))]

    year: str = ""
    """Only papers published in these years, such as 2015-2020, 2015-, -2020 or 2015."""

    venue: tuple[str, ...] = ()
    """Only papers published in this venue; may be repeated."""

    field: tuple[str, ...] = ()
    """Only papers of this field; may be repeated."""

    store: str = ""
    """Search in an external vector store: lance:FOLDER or milvus:ADDRESS[#COLLECTION]."""

    explain: bool = False
    """Show below each result why it matches."""

    export: Path | None = None
    """Also write the results to a .bib, .csv or .json file."""

    model: str = ""
    """Folder of the model that the index was built with, if moved."""

    device: Device = "auto"


def search(args: SearchArguments) -> None:
    """Search an index by text, by paper or by sentence, or find papers to cite in a draft."""
    from citeweave.search.index import Index

    _check(args)
    _check_export(args.export)
    query = Query(
        text=args.text,
        sentences=_sentence_query(args.sentences, args.sentence),
        cite=Passage(args.cite, **args.passage) if args.cite else None,
        where=Filter(years=_parse_years(args.year), venues=args.venue, fields=args.field),
        **args.query,
    )
    opened = Index.open(args.index)
    result = _search(opened, query, args.model, args.device, args.store)
    if args.export is not None:
        _export_hits(opened, result, args.export)
    _print(opened, result, _result_json(opened, result, explain=args.explain), json=args.json, export=args.export)


def _print(index: Index, result: SearchResult, output: dict[str, Any], *, json: bool, export: Path | None) -> None:
    if json:
        by_model = index.provenance.label if index.provenance else ""
        print_json({"index": str(index.folder), "model": by_model, **output, "export": str(export) if export else None})
    else:
        print(_hits_text(index, result, output))


def _check(args: SearchArguments) -> None:
    """Refuse options of `search` that do not go together, before anything is opened."""
    liked = any(name in args.query for name in ("liked", "disliked"))
    kinds = (args.text, args.query.get("paper"), liked, args.sentences, args.sentence, args.cite)
    if sum(map(bool, kinds)) != 1:
        raise UserError(
            'say what to search for, and only one thing: "a text", --paper ID, --like ID, --sentences ID:2,3, '
            '--sentence "a sentence" or --cite "a sentence"'
        )
    if args.cite and args.query.get("aspect"):
        raise UserError("--aspect is for a text or a paper; with --cite the space is that of --intent")
    if args.passage and not args.cite:
        raise UserError("--intent, --draft, --min-share and --each-sentence go with --cite; did you mean --aspect?")


def _check_export(path: Path | None) -> None:
    if path is None:
        return
    from citeweave.search.export import export_format

    export_format(path)
    if path.exists():
        raise UserError(f"--export is {str(path)!r}, which already exists; choose another name")


def _sentence_query(sentences: str, texts: tuple[str, ...]) -> SentenceQuery | None:
    if texts:
        return SentenceQuery(texts=tuple(texts))
    return SentenceQuery(*_parse_sentence_numbers(sentences)) if sentences else None


def _parse_sentence_numbers(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse --sentences of `search`: the id of a paper and numbers of its sentences.

    >>> _parse_sentence_numbers("doi:10.1/x:2,3")
    ('doi:10.1/x', (2, 3))
    """
    match = re.fullmatch(r"(.+):(\d{1,6}(?:\s?,\s?\d{1,6})*)", text, re.ASCII | re.DOTALL)
    if not match:
        raise UserError(f"--sentences is {text!r}; it must be a paper's id and numbers from 0, such as ID:2,3")
    return match[1], tuple(int(number) for number in match[2].split(","))


def _parse_years(text: str) -> tuple[int | None, int | None]:
    """Parse --year of `search`: one year, or a first and last year.

    >>> _parse_years("2015-2020"), _parse_years("2015-"), _parse_years("-2020"), _parse_years("2015"), _parse_years("")
    ((2015, 2020), (2015, None), (None, 2020), (2015, 2015), (None, None))
    """
    if not text:
        return None, None
    match = re.fullmatch(r"\s*(\d{1,4})?\s*(-)?\s*(\d{1,4})?\s*", text, re.ASCII)
    if not match or not (match[1] or match[3]) or (match[3] and not match[2]):
        raise UserError(f"--year is {text!r}; it must look like 2015-2020, 2015-, -2020 or 2015")
    first, last = (int(match[at]) if match[at] else None for at in (1, 3))
    return (first, last) if match[2] else (first, first)


def _search(index: Index, query: Query, model: str, device: str, store: str) -> SearchResult:
    from citeweave.search.answer import answer, needs_query_encoder
    from citeweave.search.nearest import open_query_encoder

    index.check_aspect(query.aspect)
    # without vectors to compare with, the model need not be loaded
    needs_model = needs_query_encoder(query) and bool(index.with_vector.any())
    encoder = open_query_encoder(index, model, device=device) if needs_model else None
    if not store:
        return answer(index, encoder, query)
    from citeweave.search.databases import open_store
    from citeweave.search.store import nearest_in_store, refuse_aspect

    refuse_aspect(query.aspect)
    if query.kind not in ("text", "paper", "liked") or query.by == "words":
        raise UserError("--store holds vectors of papers: it goes with a text, --paper or --like, not by words")
    with open_store(store) as opened:
        return answer(index, encoder, query, near=partial(nearest_in_store, opened, where=query.where))


def _result_json(index: Index, result: SearchResult, *, explain: bool) -> dict[str, Any]:
    """Return what `search --json` prints, with the query as the options gave it."""
    query = result.query
    output = result.as_json() | {"aspect": query.aspect}
    if query.cite:
        output["query"] = {"cite": query.cite.text, "intent": query.cite.intent, "draft": query.cite.draft}
        output["aspect"] = query.cite.intent if query.cite.intent in index.aspects else ""
        output["sentences"] = len(index.citing_sentences) if index.citing_sentences is not None else 0
    else:
        kinds = ("text", "paper", "liked", "disliked", "sentences")
        output["query"] = {kind: output["query"][kind] for kind in kinds if kind in output["query"]}
    if explain:
        for hit, why in zip(output["hits"], reasons(index, result), strict=True):
            hit["why"] = why.brief() | {"of": why.left.id} if why else None
    return output


def _export_hits(index: Index, result: SearchResult, path: Path) -> None:
    from citeweave.search.export import export_papers

    rows = dict.fromkeys(hit.row for hit in result.hits)  # a paper may be a hit of two sentences of a draft
    export_papers([index.paper(row) for row in rows], path)
