"""The command `search`, with hits printed as lines of text and the reasons for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Device, Json, Quiet, print_json
from citeweave.core.errors import UserError
from citeweave.evaluation.html import one_line

if TYPE_CHECKING:
    from citeweave.search.answer import SearchResult
    from citeweave.search.explain import Explanation
    from citeweave.search.filters import Filter
    from citeweave.search.index import Index
    from citeweave.search.query import Query, SentenceQuery


MOST_PAIRS = 2
"""Pairs of sentences that are printed as a reason."""


def reasons(index: Index, found: SearchResult) -> list[Explanation | None]:
    """Explain why each hit is similar to the query paper, or to the nearest liked one; None for a text."""
    import numpy as np

    from citeweave.search.explain import explain

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


def hits_text(index: Index, found: SearchResult, told: dict[str, Any]) -> str:
    """Format hits as lines: rank, score, year, title and id, with details below."""
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


def _matches(index: Index, found: SearchResult, hit: dict[str, Any]) -> Iterator[str]:
    """Return the sentence of a hit that matches each query sentence."""
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


_Index = Annotated[Path, typer.Argument(help="Folder of an index.", show_default=False)]
_Text = Annotated[
    str,
    typer.Argument(
        help="Text to search for: a question, or a title, a line break and an abstract.", show_default=False
    ),
]
_Paper = Annotated[str, typer.Option("--paper", help="Id of a paper to search by.", show_default=False)]
_Like = Annotated[list[str], typer.Option("--like", help="Id of a relevant paper; may be repeated.")]
_Unlike = Annotated[
    list[str], typer.Option("--unlike", help="With --like: id of a paper that is not relevant; may be repeated.")
]
_Sentences = Annotated[
    str,
    typer.Option(
        "--sentences",
        help="Search by sentences of a paper's abstract, counted from 0, such as ID:2,3.",
        show_default=False,
    ),
]
_Sentence = Annotated[list[str], typer.Option("--sentence", help="Sentence to search by; may be repeated.")]
_Cite = Annotated[
    str, typer.Option("--cite", help="Sentence or paragraph of a draft to find citations for.", show_default=False)
]
_Intent = Annotated[
    str,
    typer.Option(
        "--intent",
        help="With --cite: intent of the citation, such as background, method or result.",
        show_default=False,
    ),
]
_Draft = Annotated[
    str, typer.Option("--draft", help="With --cite: title and abstract of the draft.", show_default=False)
]
_Share = Annotated[
    float,
    typer.Option(
        "--min-share",
        help="With --intent: only papers of whose citations at least this fraction has the intent, 0 to 1.",
    ),
]
_Each = Annotated[
    bool,
    typer.Option("--each-sentence", help="With --cite: find papers for every sentence that seems to need a citation."),
]
_By = Annotated[
    str,
    typer.Option(
        "--by",
        help="Rank by hybrid, vectors or words; default: hybrid for a text, vectors otherwise.",
        show_default=False,
    ),
]
_Aspect = Annotated[
    str,
    typer.Option(
        "--aspect", help="Search in the space of one of the model's aspects, or all of them.", show_default=False
    ),
]
_Year = Annotated[
    str,
    typer.Option(
        "--year", help="Only papers of these years, such as 2015-2020, 2015-, -2020 or 2015.", show_default=False
    ),
]
_Venue = Annotated[list[str], typer.Option("--venue", help="Only papers of this venue; may be repeated.")]
_Field = Annotated[list[str], typer.Option("--field", help="Only papers of this field; may be repeated.")]
_Diversity = Annotated[float, typer.Option("--diversity", help="Diversity of the results, 0 to 1.")]
_Approximate = Annotated[bool, typer.Option("--approximate", help="Faster approximate search that may miss papers.")]
_Store = Annotated[
    str,
    typer.Option(
        "--store", help="Search vectors in a store: lance:FOLDER or milvus:ADDRESS[#COLLECTION].", show_default=False
    ),
]
_Outside = Annotated[
    bool, typer.Option("--outside", help="Also return papers that are only known as references of others.")
]
_Count = Annotated[int, typer.Option("--count", help="Number of papers.")]
_Offset = Annotated[int, typer.Option("--offset", help="Number of papers to skip.")]
_Explain = Annotated[bool, typer.Option("--explain", help="Explain under each paper why it matches.")]
_Export = Annotated[
    Path | None,
    typer.Option("--export", help="Also write the papers to FILE.bib, .csv or .json.", show_default=False),
]
_Model = Annotated[
    str, typer.Option("--model", help="Folder of the index's model, if it has moved.", show_default=False)
]


def search(
    index: _Index,
    text: _Text = "",
    paper: _Paper = "",
    like: _Like = [],  # noqa: B006
    unlike: _Unlike = [],  # noqa: B006
    sentences: _Sentences = "",
    sentence: _Sentence = [],  # noqa: B006
    cite: _Cite = "",
    intent: _Intent = "",
    draft: _Draft = "",
    least_share: _Share = 0.0,
    each: _Each = False,
    by: _By = "",
    aspect: _Aspect = "",
    year: _Year = "",
    venue: _Venue = [],  # noqa: B006
    field: _Field = [],  # noqa: B006
    diversity: _Diversity = 0.0,
    approximate: _Approximate = False,
    store: _Store = "",
    outside: _Outside = False,
    count: _Count = 10,
    offset: _Offset = 0,
    explain: _Explain = False,
    export: _Export = None,
    model: _Model = "",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Search an index by a text, by papers or by sentences, or find papers to cite in a draft."""
    from citeweave.search.index import Index
    from citeweave.search.query import Passage, Query

    kinds = sum(map(bool, (text, paper, like or unlike, sentences, sentence, cite)))
    _check(kinds=kinds, cite=cite, aspect=aspect, about_cite=bool(intent or draft or least_share or each))
    _check_export(export)
    query = Query(
        text=text,
        paper=paper,
        liked=tuple(like),
        disliked=tuple(unlike),
        sentences=_chosen(sentences, sentence),
        cite=Passage(cite, intent, draft, least_share, each) if cite else None,
        by=by,
        aspect=aspect,
        count=count,
        offset=offset,
        where=_where(year, venue, field),
        diversity=diversity,
        approximate=approximate,
        outside=outside,
    )
    opened = Index.open(index)
    found = _answer(opened, query, model, device, store)
    if export is not None:
        _write(opened, found, export)
    _print(opened, found, _told(opened, found, explain=explain), json=json, export=export)


def _print(index: Index, found: SearchResult, told: dict[str, Any], *, json: bool, export: Path | None) -> None:
    if json:
        by_model = index.provenance.label if index.provenance else ""
        print_json({"index": str(index.folder), "model": by_model, **told, "export": str(export) if export else None})
    else:
        print(hits_text(index, found, told))


def _check(*, kinds: int, cite: str, aspect: str, about_cite: bool) -> None:
    """Refuse options of `search` that do not go together, before anything is opened."""
    if kinds != 1:
        raise UserError(
            'say what to search for, and only one thing: "a text", --paper ID, --like ID, --sentences ID:2,3, '
            '--sentence "a sentence" or --cite "a sentence"'
        )
    if cite and aspect:
        raise UserError("--aspect is for a text or a paper; with --cite the space is that of --intent")
    if about_cite and not cite:
        raise UserError("--intent, --draft, --min-share and --each-sentence go with --cite; did you mean --aspect?")


def _check_export(path: Path | None) -> None:
    if path is None:
        return
    from citeweave.search.export import export_format

    export_format(path)
    if path.exists():
        raise UserError(f"--export is {str(path)!r}, which exists already; choose another name")


def _chosen(sentences: str, texts: list[str]) -> SentenceQuery | None:
    from citeweave.search.query import SentenceQuery

    if texts:
        return SentenceQuery(texts=tuple(texts))
    return SentenceQuery(*parse_chosen(sentences)) if sentences else None


def parse_chosen(text: str) -> tuple[str, tuple[int, ...]]:
    """
    >>> parse_chosen("doi:10.1/x:2,3")
    ('doi:10.1/x', (2, 3))
    """
    found = re.fullmatch(r"(.+):(\d{1,6}(?:\s?,\s?\d{1,6})*)", text, re.ASCII | re.DOTALL)
    if not found:
        raise UserError(f"--sentences is {text!r}; it must be a paper's id and numbers from 0, such as ID:2,3")
    return found[1], tuple(int(number) for number in found[2].split(","))


def _where(year: str, venues: list[str], fields: list[str]) -> Filter:
    from citeweave.search.filters import Filter

    return Filter(years=parse_years(year), venues=tuple(venues), fields=tuple(fields))


def parse_years(text: str) -> tuple[int | None, int | None]:
    """
    >>> parse_years("2015-2020"), parse_years("2015-"), parse_years("-2020"), parse_years("2015"), parse_years("")
    ((2015, 2020), (2015, None), (None, 2020), (2015, 2015), (None, None))
    """
    if not text:
        return None, None
    found = re.fullmatch(r"\s*(\d{1,4})?\s*(-)?\s*(\d{1,4})?\s*", text, re.ASCII)
    if not found or not (found[1] or found[3]) or (found[3] and not found[2]):
        raise UserError(f"--year is {text!r}; it must be such as 2015-2020, 2015-, -2020 or 2015")
    first, last = (int(found[at]) if found[at] else None for at in (1, 3))
    return (first, last) if found[2] else (first, first)


def _answer(index: Index, query: Query, model: str, device: str, store: str) -> SearchResult:
    from citeweave.search.answer import answer, needs_query_encoder
    from citeweave.search.index_model import open_query_encoder

    index.check_aspect(query.aspect)
    # a model that nothing could be compared with is not worth its loading
    reads = needs_query_encoder(query) and bool(index.with_vector.any())
    reader = open_query_encoder(index, model, device=device) if reads else None
    if not store:
        return answer(index, reader, query)
    from citeweave.search.store import nearest_by_store, open_store, refuse_aspect

    refuse_aspect(query.aspect)
    if query.kind not in ("text", "paper", "liked") or query.by == "words":
        raise UserError("--store holds the vectors of papers: it goes with a text, --paper or --like, not by words")
    with open_store(store) as opened:
        return answer(index, reader, query, near=nearest_by_store(opened, query.where))


def _told(index: Index, found: SearchResult, *, explain: bool) -> dict[str, Any]:
    """Return what `search --json` prints, with the query as the options gave it."""
    from citeweave.search.build import count_citing_sentences

    query = found.query
    told = found.as_json() | {"aspect": query.aspect}
    if query.cite:
        told["query"] = {"cite": query.cite.text, "intent": query.cite.intent, "draft": query.cite.draft}
        told["aspect"] = query.cite.intent if query.cite.intent in index.aspects else ""
        told["sentences"], _ = count_citing_sentences(index)
    else:
        kinds = ("text", "paper", "liked", "disliked", "sentences")
        told["query"] = {kind: told["query"][kind] for kind in kinds if kind in told["query"]}
    if explain:
        for hit, why in zip(told["hits"], reasons(index, found), strict=True):
            hit["why"] = why.brief() | {"of": why.left.id} if why else None
    return told


def _write(index: Index, found: SearchResult, path: Path) -> None:
    from citeweave.search.export import export_papers

    rows = dict.fromkeys(hit.row for hit in found.hits)  # a paper may answer two sentences of a draft
    export_papers([index.paper(row) for row in rows], path)
