"""citeweave search"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Device, Json, Quiet, print_json
from citeweave.errors import UserError

if TYPE_CHECKING:
    from citeweave.search.asking.answers import Answer
    from citeweave.search.asking.query import Chosen, Query
    from citeweave.search.filters import Filter
    from citeweave.search.index import Index

_Index = Annotated[Path, typer.Argument(help="Folder of an index.", show_default=False)]
_Text = Annotated[
    str,
    typer.Argument(help="What to search for: a question, or a title, a line break, an abstract.", show_default=False),
]
_Paper = Annotated[str, typer.Option("--paper", help="Id of a paper to search with.", show_default=False)]
_Like = Annotated[list[str], typer.Option("--like", help="Id of a paper that is liked; may be repeated.")]
_Unlike = Annotated[list[str], typer.Option("--unlike", help="With --like: id of a paper that is not.")]
_Sentences = Annotated[
    str,
    typer.Option("--sentences", help="Sentences of a paper's abstract, from 0, as ID:2,3.", show_default=False),
]
_Sentence = Annotated[list[str], typer.Option("--sentence", help="A sentence to search by; may be repeated.")]
_Cite = Annotated[
    str, typer.Option("--cite", help="A sentence or paragraph of a draft: what to cite in it.", show_default=False)
]
_Intent = Annotated[
    str, typer.Option("--intent", help="With --cite: background, method, result, ...", show_default=False)
]
_Draft = Annotated[
    str, typer.Option("--draft", help="With --cite: title and abstract of the draft.", show_default=False)
]
_Share = Annotated[
    float, typer.Option("--least-share", help="With --intent: only papers cited so at least that often, 0 to 1.")
]
_Each = Annotated[bool, typer.Option("--each", help="With --cite: for every sentence that seems to need a citation.")]
_By = Annotated[
    str,
    typer.Option(
        "--by", help="hybrid, vectors or words; else hybrid for a text, vectors otherwise.", show_default=False
    ),
]
_Aspect = Annotated[
    str, typer.Option("--aspect", help="Space of one of the model's aspects, or all of them.", show_default=False)
]
_Year = Annotated[str, typer.Option("--year", help="As 2015-2020, 2015-, -2020 or 2015.", show_default=False)]
_Venue = Annotated[list[str], typer.Option("--venue", help="Only of this venue; may be repeated.")]
_Field = Annotated[list[str], typer.Option("--field", help="Only of this field; may be repeated.")]
_Diversity = Annotated[float, typer.Option("--diversity", help="0 to 1: papers unlike each other.")]
_Approximate = Annotated[bool, typer.Option("--approximate", help="Without the proof that nothing is missing.")]
_Store = Annotated[
    str,
    typer.Option("--store", help="Compare vectors in lance:FOLDER or milvus:ADDRESS[#COLLECTION].", show_default=False),
]
_Outside = Annotated[bool, typer.Option("--outside", help="Also papers that are known only as references of others.")]
_Count = Annotated[int, typer.Option("--count", help="How many papers.")]
_Offset = Annotated[int, typer.Option("--offset", help="How many to pass over: those of the pages before.")]
_Explain = Annotated[bool, typer.Option("--explain", help="Say under each paper why it is there.")]
_Export = Annotated[
    Path | None,
    typer.Option("--export", help="Also write the papers to FILE.bib, .csv or .json.", show_default=False),
]
_Model = Annotated[
    str, typer.Option("--model", help="Where the index's model is now, if it moved.", show_default=False)
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
    """Papers of an index that are near to a text, to papers or to sentences, or that a draft should cite."""
    from citeweave.search.asking.query import Passage, Query
    from citeweave.search.index import Index

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


def _print(index: Index, found: Answer, told: dict[str, Any], *, json: bool, export: Path | None) -> None:
    if json:
        by_model = index.provenance.label if index.provenance else ""
        print_json({"index": str(index.folder), "model": by_model, **told, "export": str(export) if export else None})
    else:
        from citeweave.cli.hits import hits_text

        print(hits_text(index, found, told))


def _check(*, kinds: int, cite: str, aspect: str, about_cite: bool) -> None:
    """Refuse what does not go together, before anything is opened."""
    if kinds != 1:
        raise UserError(
            'say what to search for, and only one thing: "a text", --paper ID, --like ID, --sentences ID:2,3, '
            '--sentence "a sentence" or --cite "a sentence"'
        )
    if cite and aspect:
        raise UserError("--aspect is for a text or a paper; with --cite the space is that of --intent")
    if about_cite and not cite:
        raise UserError("--intent, --draft, --least-share and --each go with --cite; did you mean --aspect?")


def _check_export(path: Path | None) -> None:
    if path is None:
        return
    from citeweave.search.exporting import check_export

    check_export(path)
    if path.exists():
        raise UserError(f"--export is {str(path)!r}, which exists already; choose another name")


def _chosen(sentences: str, texts: list[str]) -> Chosen | None:
    from citeweave.search.asking.query import Chosen

    if texts:
        return Chosen(texts=tuple(texts))
    return Chosen(*parse_chosen(sentences)) if sentences else None


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


def _answer(index: Index, query: Query, model: str, device: str, store: str) -> Answer:
    from citeweave.search.asking.answering import answer, needs_reader
    from citeweave.search.searching import open_reader

    index.check_aspect(query.aspect)
    # a model that nothing could be compared with is not worth its loading
    reads = needs_reader(query) and bool(index.with_vector.any())
    reader = open_reader(index, model, device=device) if reads else None
    if not store:
        return answer(index, reader, query)
    from citeweave.search.stores.asking import near_in, refuse_aspect
    from citeweave.search.stores.opening import open_store

    refuse_aspect(query.aspect)
    if query.kind not in ("text", "paper", "liked") or query.by == "words":
        raise UserError("--store holds the vectors of papers: it goes with a text, --paper or --like, not by words")
    with open_store(store) as opened:
        return answer(index, reader, query, near=near_in(opened, query.where))


def _told(index: Index, found: Answer, *, explain: bool) -> dict[str, Any]:
    """What is printed as JSON; the query as the options say it."""
    from citeweave.search.describing import count_citing_sentences

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
        from citeweave.cli.hits import reasons

        for hit, why in zip(told["hits"], reasons(index, found), strict=True):
            hit["why"] = why.brief() | {"of": why.left.id} if why else None
    return told


def _write(index: Index, found: Answer, path: Path) -> None:
    from citeweave.search.exporting import export

    rows = dict.fromkeys(hit.row for hit in found.hits)  # a paper may answer two sentences of a draft
    export([index.paper(row) for row in rows], path)
