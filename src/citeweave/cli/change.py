"""citeweave change"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.index import TrustIds, describe_text, given_vectors
from citeweave.cli.options import Debug, Device, Json, Quiet, print_json, reporter_of
from citeweave.errors import UserError
from citeweave.files import open_input

if TYPE_CHECKING:
    from citeweave.search.index import Index

_Index = Annotated[Path, typer.Argument(help="Folder of an index.", show_default=False)]
_Add = Annotated[
    Path | None, typer.Option("--add", help="Corpus whose papers come or are replaced.", show_default=False)
]
_Delete = Annotated[
    Path | None, typer.Option("--delete", help="File with ids of papers to take out, one a line.", show_default=False)
]
_Fill = Annotated[bool, typer.Option("--fill", help="Embed the papers that have words only.")]
_Sentences = Annotated[
    bool, typer.Option("--sentences", help="With --fill: also a vector a sentence of the abstracts.")
]
_Compact = Annotated[bool, typer.Option("--compact", help="Make one segment of all.")]
_Words = Annotated[bool, typer.Option("--words-only", help="With --add: no vectors yet.")]
_Intents = Annotated[
    Path | None, typer.Option("--intents", help="With --add: intents of its citations.", show_default=False)
]
_Vectors = Annotated[
    Path | None,
    typer.Option(
        "--vectors", help="With --add or --fill: vectors that `citeweave embed` made of this model.", show_default=False
    ),
]
_SentenceVectors = Annotated[
    Path | None, typer.Option("--sentence-vectors", help="The same of sentences.", show_default=False)
]
_Model = Annotated[
    str, typer.Option("--model", help="Where the index's model is now, if it moved.", show_default=False)
]

MOST_BYTES = 256 << 20
"""Of a file of ids."""


def change(
    index: _Index,
    add: _Add = None,
    delete: _Delete = None,
    fill: _Fill = False,
    sentences: _Sentences = False,
    compact: _Compact = False,
    words_only: _Words = False,
    intents: _Intents = None,
    vectors: _Vectors = None,
    sentence_vectors: _SentenceVectors = None,
    trust_ids: TrustIds = False,
    model: _Model = "",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Change an index: first --delete, then --add, --fill and --compact, each whole or not at all."""
    _check(
        nothing=add is None and delete is None and not fill and not compact,
        about_add=add is None and (words_only or intents is not None),
        about_fill=sentences and not fill,
        about_both=add is None and not fill and bool(vectors or sentence_vectors),
    )
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.intent_overlay import IntentOverlay
    from citeweave.search.changing import ChangeOptions, add_papers
    from citeweave.search.compacting import compact_index
    from citeweave.search.describing import describe
    from citeweave.search.filling import fill_vectors
    from citeweave.search.index import Index

    opened = Index.open(index)
    given = given_vectors(vectors, sentence_vectors, trust_ids=trust_ids)
    reporter, changed = reporter_of(quiet or json), dict[str, Any]()
    if delete is not None:
        changed = _delete(opened, delete)
    if add is not None:
        overlay = None if intents is None else IntentOverlay.open(intents)
        # papers that come with words only get theirs when they are filled
        later = fill and (words_only or opened.provenance is None)
        options = ChangeOptions(not words_only, model or None, device, given=None if later else given)
        told = add_papers(index, Corpus.open(add), options=options, overlay=overlay, reporter=reporter).as_json()
        changed = {**changed, **told, "deleted": told["deleted"] + changed.get("deleted", 0)}
    if fill:
        changed["embedded"] = fill_vectors(
            index, model=model or None, device=device, given=given, sentences=sentences, reporter=reporter
        )
    if compact:
        compact_index(index)
    facts = {**describe(Index.open(index)), "index": str(index), "changed": changed}
    if json:
        print_json(facts)
    elif not quiet:
        print(describe_text(index, facts))


def _check(*, nothing: bool, about_add: bool, about_fill: bool, about_both: bool) -> None:
    """Refuse what does not go together, before anything is opened."""
    if nothing:
        raise UserError("say what to change: --add CORPUS, --delete FILE, --fill or --compact")
    if about_add:
        raise UserError("--words-only and --intents go with --add; leave them out")
    if about_fill:
        raise UserError("--sentences goes with --fill; leave it out, or add --fill")
    if about_both:
        raise UserError("--vectors and --sentence-vectors go with --add or --fill; leave them out")


def _delete(index: Index, path: Path) -> dict[str, Any]:
    """How many papers of a file were taken out, and how many of its ids the index does not have, where there are any."""
    from citeweave.search.changing import delete_papers

    ids = _ids(path)
    unknown = int((index.rows(ids) < 0).sum())
    deleted = delete_papers(index.folder, ids)
    return {"deleted": deleted, "not_found": unknown} if unknown else {"deleted": deleted}


def _ids(path: Path) -> list[str]:
    """The ids of a file, one a line."""
    try:
        with open_input(path) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a file with an id a line") from None
    if len(data) > MOST_BYTES:
        raise UserError(f"{path} is larger than {MOST_BYTES >> 20} MiB; give a file with an id a line")
    found = [line for raw in data.decode("utf-8", "replace").splitlines() if (line := raw.strip())]
    if not found:
        raise UserError(f"{path} names no paper; give a file with an id a line")
    return found
