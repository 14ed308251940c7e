"""citeweave search"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Device, Json, Quiet, print_json
from citeweave.errors import UserError

if TYPE_CHECKING:
    from citeweave.search.citing import Draft
    from citeweave.search.index import Index

_Index = Annotated[Path, typer.Argument(help="Folder of an index.", show_default=False)]
_Text = Annotated[str, typer.Argument(help="What to search for: a question, a title, an abstract.", show_default=False)]
_Paper = Annotated[str, typer.Option("--paper", help="Id of a paper to search with.", show_default=False)]
_Aspect = Annotated[
    str, typer.Option("--aspect", help="Space of one of the model's aspects, or all of them.", show_default=False)
]
_Cite = Annotated[str, typer.Option("--cite", help="A sentence of a draft: what to cite in it.", show_default=False)]
_Intent = Annotated[
    str, typer.Option("--intent", help="With --cite: background, method, result, ...", show_default=False)
]
_Draft = Annotated[
    str, typer.Option("--draft", help="With --cite: title and abstract of the draft.", show_default=False)
]
_Share = Annotated[
    float, typer.Option("--least-share", help="With --intent: only papers cited so at least that often, 0 to 1.")
]
_Count = Annotated[int, typer.Option("--count", help="How many papers.")]
_Model = Annotated[
    str, typer.Option("--model", help="Where the index's model is now, if it moved.", show_default=False)
]


def search(
    index: _Index,
    text: _Text = "",
    paper: _Paper = "",
    aspect: _Aspect = "",
    cite: _Cite = "",
    intent: _Intent = "",
    draft: _Draft = "",
    least_share: _Share = 0.0,
    count: _Count = 10,
    model: _Model = "",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Papers of an index that are near to a text or a paper, or that a sentence of a draft should cite."""
    from citeweave.search.citing import Draft
    from citeweave.search.index import Index

    _check(text=text, paper=paper, cite=cite, aspect=aspect, about_cite=bool(intent or draft or least_share))
    opened = Index.open(index)
    opened.check_aspect(aspect)
    if cite:
        found = _by_draft(opened, Draft(cite, intent, draft, least_share), count, model, device)
    else:
        found = _by_vector(opened, text, paper, aspect, count, model, device)
    if json:
        print_json({"index": str(index), "model": opened.vectors.provenance.label, **found})
    else:
        print(_text(found))


def _check(*, text: str, paper: str, cite: str, aspect: str, about_cite: bool) -> None:
    """Refuse what does not go together, before anything is opened."""
    if sum(map(bool, (text, paper, cite))) != 1:
        raise UserError('say what to search for, and only one thing: "a text", --paper ID or --cite "a sentence"')
    if cite and aspect:
        raise UserError("--aspect is for a text or a paper; with --cite the space is that of --intent")
    if about_cite and not cite:
        raise UserError("--intent, --draft and --least-share go with --cite; did you mean --aspect?")


def _by_vector(index: Index, text: str, paper: str, aspect: str, count: int, model: str, device: str) -> dict[str, Any]:
    from citeweave.search.searching import open_reader, search_paper, search_text

    if paper:
        hits = search_paper(index, paper, count=count, aspect=aspect)
    else:
        hits = search_text(index, open_reader(index, model, device=device), text, count=count, aspect=aspect)
    query = {"paper": paper} if paper else {"text": text}
    return {"query": query, "aspect": aspect, "hits": [hit.as_json() for hit in hits]}


def _by_draft(index: Index, draft: Draft, count: int, model: str, device: str) -> dict[str, Any]:
    from citeweave.search.citing import recommend
    from citeweave.search.searching import open_reader

    found = recommend(index, open_reader(index, model, device=device), draft, count=count)
    query = {"cite": draft.sentence, "intent": draft.intent, "draft": draft.context}
    return {
        "query": query,
        "aspect": draft.intent if draft.intent in index.aspects else "",
        "sentences": len(index.sentences) if index.sentences else 0,
        "hits": [one.as_json() for one in found],
    }


def _text(found: dict[str, Any]) -> str:
    """Rank, score, year, title and id on a line; titles are strangers' text and may hold anything."""
    from citeweave.evaluation.reporting.document import one_line

    lines = []
    for place, hit in enumerate(found["hits"], 1):
        # + 0.0, as -0.0 is a strange thing to read
        title, name = one_line(hit["title"], 120) or "(no title)", one_line(hit["id"], 100)
        lines.append(f"{place:>3}. {hit['score'] + 0.0:.4f}  {hit['year'] or '----'}  {title}  {name}")
        if told := hit.get("evidence"):
            how = f" ({', '.join(told['intents'])})" if told["intents"] else ""
            lines.append(
                f"     {told['score'] + 0.0:.4f}  {one_line(told['citing'], 100)}{how}: {one_line(told['text'])}"
            )
    if not found["hits"]:
        lines.append("no paper was found")
    if found.get("sentences") == 0:
        lines.append("by the papers alone: `citeweave index --contexts` adds the sentences that cite them")
    return "\n".join(lines)
