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


_Index = Annotated[Path, typer.Argument(help="Index folder.", show_default=False)]
_Text = Annotated[
    str,
    typer.Argument(
        help="Text to search for: a question, or a title and an abstract separated by a line break.", show_default=False
    ),
]
_Paper = Annotated[
    str, typer.Option("--paper", help="Find papers similar to the one with this id.", show_default=False)
]
_Like = Annotated[list[str], typer.Option("--like", help="Find papers like the one with this id; may be repeated.")]
_Unlike = Annotated[
    list[str], typer.Option("--unlike", help="With --like: avoid papers like the one with this id; may be repeated.")
]
_Sentences = Annotated[
    str,
    typer.Option(
        "--sentences",
        help="Search by sentences of an indexed paper's abstract, as ID:2,3 (numbered from 0).",
        show_default=False,
    ),
]
_Sentence = Annotated[
    list[str], typer.Option("--sentence", help="Search by this sentence of your own; may be repeated.")
]
_Cite = Annotated[
    str,
    typer.Option("--cite", help="Find papers to cite in this sentence or paragraph of a draft.", show_default=False),
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
        help="With --intent: only papers cited with this intent in at least this fraction (0 to 1) of their citations.",
    ),
]
_Each = Annotated[
    bool,
    typer.Option(
        "--each-sentence",
        help="With --cite: find papers separately for each sentence with a citation marker such as [CIT], or for every sentence if there are none.",
    ),
]
_By = Annotated[
    str,
    typer.Option(
        "--by",
        help="Ranking: hybrid (words and vectors), vectors or words; default: hybrid for text queries, otherwise vectors.",
        show_default=False,
    ),
]
_Aspect = Annotated[
    str,
    typer.Option(
        "--aspect",
        help="Search in the vector space of one aspect of the model, such as method, or of all (all).",
        show_default=False,
    ),
]
_Year = Annotated[
    str,
    typer.Option(
        "--year",
        help="Only papers published in these years, such as 2015-2020, 2015-, -2020 or 2015.",
        show_default=False,
    ),
]
_Venue = Annotated[list[str], typer.Option("--venue", help="Only papers published in this venue; may be repeated.")]
_Field = Annotated[list[str], typer.Option("--field", help="Only papers of this field; may be repeated.")]
_Diversity = Annotated[
    float, typer.Option("--diversity", help="How strongly to favor diverse results, from 0 (not at all) to 1.")
]
_Approximate = Annotated[
    bool, typer.Option("--approximate", help="Use approximate search, which is faster but may miss papers.")
]
_Store = Annotated[
    str,
    typer.Option(
        "--store",
        help="Search in an external vector store: lance:FOLDER or milvus:ADDRESS[#COLLECTION].",
        show_default=False,
    ),
]
_Outside = Annotated[
    bool, typer.Option("--outside", help="Also return papers outside the corpus, known only from reference lists.")
]
_Count = Annotated[int, typer.Option("--count", help="Number of papers to return.")]
_Offset = Annotated[int, typer.Option("--offset", help="Number of papers to skip.")]
_Explain = Annotated[bool, typer.Option("--explain", help="Show below each result why it matches.")]
_Export = Annotated[
    Path | None,
    typer.Option("--export", help="Also write the results to a .bib, .csv or .json file.", show_default=False),
]
_Model = Annotated[
    str,
    typer.Option("--model", help="Folder of the model that the index was built with, if moved.", show_default=False),
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
    min_share: _Share = 0.0,
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
    """Search an index by text, by paper or by sentence, or find papers to cite in a draft."""
    from citeweave.search.index import Index
    from citeweave.search.query import Passage, Query

    kinds = sum(map(bool, (text, paper, like or unlike, sentences, sentence, cite)))
    _check(kinds=kinds, cite=cite, aspect=aspect, about_cite=bool(intent or draft or min_share or each))
    _check_export(export)
    query = Query(
        text=text,
        paper=paper,
        liked=tuple(like),
        disliked=tuple(unlike),
        sentences=_sentence_query(sentences, sentence),
        cite=Passage(cite, intent, draft, min_share, each) if cite else None,
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
    result = _search(opened, query, model, device, store)
    if export is not None:
        _export_hits(opened, result, export)
    _print(opened, result, _result_json(opened, result, explain=explain), json=json, export=export)


def _print(index: Index, result: SearchResult, output: dict[str, Any], *, json: bool, export: Path | None) -> None:
    if json:
        by_model = index.provenance.label if index.provenance else ""
        print_json({"index": str(index.folder), "model": by_model, **output, "export": str(export) if export else None})
    else:
        print(_hits_text(index, result, output))


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
        raise UserError(f"--export is {str(path)!r}, which already exists; choose another name")


def _sentence_query(sentences: str, texts: list[str]) -> SentenceQuery | None:
    from citeweave.search.query import SentenceQuery

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


def _where(year: str, venues: list[str], fields: list[str]) -> Filter:
    from citeweave.search.filters import Filter

    return Filter(years=_parse_years(year), venues=tuple(venues), fields=tuple(fields))


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
    from citeweave.search.index_model import open_query_encoder

    index.check_aspect(query.aspect)
    # without vectors to compare with, the model need not be loaded
    needs_model = needs_query_encoder(query) and bool(index.with_vector.any())
    encoder = open_query_encoder(index, model, device=device) if needs_model else None
    if not store:
        return answer(index, encoder, query)
    from citeweave.search.store import nearest_by_store, open_store, refuse_aspect

    refuse_aspect(query.aspect)
    if query.kind not in ("text", "paper", "liked") or query.by == "words":
        raise UserError("--store holds vectors of papers: it goes with a text, --paper or --like, not by words")
    with open_store(store) as opened:
        return answer(index, encoder, query, near=nearest_by_store(opened, query.where))


def _result_json(index: Index, result: SearchResult, *, explain: bool) -> dict[str, Any]:
    """Return what `search --json` prints, with the query as the options gave it."""
    from citeweave.search.build import count_citing_sentences

    query = result.query
    output = result.as_json() | {"aspect": query.aspect}
    if query.cite:
        output["query"] = {"cite": query.cite.text, "intent": query.cite.intent, "draft": query.cite.draft}
        output["aspect"] = query.cite.intent if query.cite.intent in index.aspects else ""
        output["sentences"], _ = count_citing_sentences(index)
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
