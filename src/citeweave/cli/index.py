"""The commands `index`, `change` and `store`: search indexes and vector stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import (
    Debug,
    Device,
    Json,
    Output,
    Overwrite,
    OwnModel,
    Quiet,
    print_json,
    reporter_of,
    table,
)
from citeweave.core.errors import UserError
from citeweave.core.files import open_input

if TYPE_CHECKING:
    from citeweave.search.index import Index
    from citeweave.search.segment_vectors import PrecomputedVectors


_Corpus = Annotated[Path, typer.Argument(help="Corpus folder.", show_default=False)]
_Contexts = Annotated[
    bool,
    typer.Option(
        "--contexts/--no-contexts",
        help="Also index the sentences in which papers are cited, for `citeweave search --cite`.",
    ),
]
_MaxContexts = Annotated[
    int,
    typer.Option("--max-contexts", help="With --contexts: maximum number of sentences per cited paper and intent."),
]
_IndexIntents = Annotated[
    Path | None,
    typer.Option(
        "--intents",
        help="Output folder of `citeweave annotate`; default: the intents in the corpus.",
        show_default=False,
    ),
]
_Dtype = Annotated[str, typer.Option("--dtype", help="Data type of the vectors: float16 or float32.")]
_Runtime = Annotated[
    str,
    typer.Option(
        "--runtime",
        help="Runtime of the model, now and in later searches: auto (the fastest here), torch, openvino or int8 (8-bit arithmetic).",
    ),
]
_IndexSentences = Annotated[
    bool, typer.Option("--sentences/--no-sentences", help="Also embed every sentence of the abstracts.")
]
_IndexWords = Annotated[
    bool, typer.Option("--words-only", help="Index words only; add vectors later with `citeweave change --fill`.")
]
_IndexVectors = Annotated[
    Path | None,
    typer.Option("--vectors", help="Folder of vectors of the same model from `citeweave embed`.", show_default=False),
]
_IndexSentenceVectors = Annotated[
    Path | None,
    typer.Option(
        "--sentence-vectors",
        help="Folder of precomputed sentence vectors of the same model; implies --sentences.",
        show_default=False,
    ),
]
TrustIds = Annotated[
    bool,
    typer.Option(
        "--trust-ids", help="With --vectors: also accept vectors computed for another corpus, matched by paper id."
    ),
]


def index(
    corpus: _Corpus,
    output: Output,
    model: OwnModel = "",
    contexts: _Contexts = False,
    max_contexts: _MaxContexts = 10,
    intents: _IndexIntents = None,
    dtype: _Dtype = "float16",
    runtime: _Runtime = "auto",
    sentences: _IndexSentences = False,
    words_only: _IndexWords = False,
    vectors: _IndexVectors = None,
    sentence_vectors: _IndexSentenceVectors = None,
    trust_ids: TrustIds = False,
    device: Device = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Build a search index for a corpus, or update an index from a newer corpus; an interrupted run resumes."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.intent_overlay import IntentOverlay
    from citeweave.search.build import IndexOptions, describe_index, index_corpus

    if contexts and max_contexts < 1:
        raise UserError(f"--max-contexts is {max_contexts}; it must be at least 1, or leave out --contexts")
    kept_contexts = max_contexts if contexts else 0
    options = IndexOptions(
        dtype,
        kept_contexts,
        runtime,
        device,
        sentences=sentences or sentence_vectors is not None,
        vectors=not words_only,
    )
    opened = Corpus.open(corpus)
    overlay = None if intents is None else IntentOverlay.open(intents)
    result = index_corpus(
        opened,
        model,
        output,
        options,
        overlay=overlay,
        precomputed=_open_precomputed(vectors, sentence_vectors, trust_ids=trust_ids),
        overwrite=overwrite,
        reporter=reporter_of(quiet or json),
    )
    summary = {**describe_index(result.index), "output": str(output)}
    if result.changed is not None:
        summary["changed"] = result.changed.as_json()
    if json:
        print_json(summary)
    elif not quiet:
        print(_index_text(output, summary))


def _open_precomputed(
    vectors: Path | None, sentence_vectors: Path | None, *, trust_ids: bool
) -> PrecomputedVectors | None:
    """Open the vectors of --vectors and --sentence-vectors for an index."""
    from citeweave.search.segment_vectors import PrecomputedVectors
    from citeweave.vectors.sentence_vectors import SentenceVectors
    from citeweave.vectors.vectors import Vectors

    if vectors is None:
        if sentence_vectors is not None:
            raise UserError("--sentence-vectors goes with --vectors; give those of the papers too")
        if trust_ids:
            raise UserError("--trust-ids goes with --vectors; leave it out")
        return None
    sentences = None if sentence_vectors is None else SentenceVectors.open(sentence_vectors)
    return PrecomputedVectors(Vectors.open(vectors), sentences, trust_ids)


def _index_text(folder: Path, summary: dict[str, Any]) -> str:
    """Describe what an index holds, on a few lines."""
    rows: list[tuple[str, object]] = [("papers", summary["papers"])]
    for name, label in (
        ("without_vector", "  no vector: no text"),
        ("not_embedded", "  no vector yet"),
        ("with_sentences", "  with vectors of their sentences"),
    ):
        if summary[name]:
            rows.append((label, summary[name]))
    if summary["with_intents"]:
        rows.append(("cited with a known intent", summary["with_intents"]))
    if "sentences" in summary:
        rows += [("citing sentences", summary["sentences"]), ("  mentions of papers in them", summary["mentions"])]
        if summary["sentences_left_out"]:
            rows.append(("  left out: only citation marks", summary["sentences_left_out"]))
    for name, count in summary.get("changed", {}).items():
        rows.append((f"{name.replace('_', ' ')} now", count))
    spaces = f", aspects {', '.join(summary['aspects'])}" if summary["aspects"] else ""
    by = (
        f"{summary['dimension']} dimensions ({summary['dtype']}) of {summary['model']}{spaces}, computed by {summary['runtime']}"
        if summary["model"]
        else "words"
    )
    return f"{folder}: {by}\n{table(rows)}"


_ChangeIndex = Annotated[Path, typer.Argument(help="Index folder.", show_default=False)]
_Add = Annotated[
    Path | None, typer.Option("--add", help="Corpus whose papers are added or replaced.", show_default=False)
]
_Delete = Annotated[
    Path | None,
    typer.Option("--delete", help="File with the ids of papers to delete, one per line.", show_default=False),
]
_Fill = Annotated[bool, typer.Option("--fill", help="Embed the papers that have words only.")]
_ChangeSentences = Annotated[
    bool, typer.Option("--sentences", help="With --fill: also embed every sentence of the abstracts.")
]
_Compact = Annotated[bool, typer.Option("--compact", help="Merge all segments into one.")]
_ChangeWords = Annotated[bool, typer.Option("--words-only", help="With --add: index words only.")]
_ChangeIntents = Annotated[
    Path | None,
    typer.Option("--intents", help="With --add: folder of intents of the corpus's citations.", show_default=False),
]
_ChangeVectors = Annotated[
    Path | None,
    typer.Option(
        "--vectors",
        help="With --add or --fill: folder of vectors of the same model from `citeweave embed`.",
        show_default=False,
    ),
]
_ChangeSentenceVectors = Annotated[
    Path | None,
    typer.Option(
        "--sentence-vectors",
        help="With --add or --fill: folder of precomputed sentence vectors of the same model.",
        show_default=False,
    ),
]
_Model = Annotated[
    str,
    typer.Option("--model", help="Folder of the model that the index was built with, if moved.", show_default=False),
]

MAX_BYTES = 256 << 20
"""Of a file of ids."""


def change(
    index: _ChangeIndex,
    add: _Add = None,
    delete: _Delete = None,
    fill: _Fill = False,
    sentences: _ChangeSentences = False,
    compact: _Compact = False,
    words_only: _ChangeWords = False,
    intents: _ChangeIntents = None,
    vectors: _ChangeVectors = None,
    sentence_vectors: _ChangeSentenceVectors = None,
    trust_ids: TrustIds = False,
    model: _Model = "",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Delete papers of an index, add papers, fill in missing vectors, or compact it, in this order; each step completes or changes nothing."""
    _check(
        nothing=add is None and delete is None and not fill and not compact,
        about_add=add is None and (words_only or intents is not None),
        about_fill=sentences and not fill,
        about_both=add is None and not fill and bool(vectors or sentence_vectors),
    )
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.intent_overlay import IntentOverlay
    from citeweave.search.build import describe_index
    from citeweave.search.fill_vectors import fill_vectors
    from citeweave.search.index import Index
    from citeweave.search.update import ChangeOptions, add_papers, compact_index

    opened = Index.open(index)
    precomputed = _open_precomputed(vectors, sentence_vectors, trust_ids=trust_ids)
    reporter, changed = reporter_of(quiet or json), dict[str, Any]()
    if delete is not None:
        changed = _delete(opened, delete)
    if add is not None:
        overlay = None if intents is None else IntentOverlay.open(intents)
        # papers added with words only get their vectors when the index is filled
        later = fill and (words_only or opened.provenance is None)
        options = ChangeOptions(not words_only, model or None, device, precomputed=None if later else precomputed)
        added = add_papers(index, Corpus.open(add), options=options, overlay=overlay, reporter=reporter).as_json()
        changed = {**changed, **added, "deleted": added["deleted"] + changed.get("deleted", 0)}
    if fill:
        changed["embedded"] = fill_vectors(
            index, model=model or None, device=device, precomputed=precomputed, sentences=sentences, reporter=reporter
        )
    if compact:
        compact_index(index)
    summary = {**describe_index(Index.open(index)), "index": str(index), "changed": changed}
    if json:
        print_json(summary)
    elif not quiet:
        print(_index_text(index, summary))


def _check(*, nothing: bool, about_add: bool, about_fill: bool, about_both: bool) -> None:
    """Refuse options of `change` that do not go together, before anything is opened."""
    if nothing:
        raise UserError("say what to change: --add CORPUS, --delete FILE, --fill or --compact")
    if about_add:
        raise UserError("--words-only and --intents go with --add; leave them out")
    if about_fill:
        raise UserError("--sentences goes with --fill; leave it out, or add --fill")
    if about_both:
        raise UserError("--vectors and --sentence-vectors go with --add or --fill; leave them out")


def _delete(index: Index, path: Path) -> dict[str, Any]:
    """Delete the papers listed in a file; return how many, and how many ids the index does not have."""
    from citeweave.search.update import delete_papers

    ids = _read_ids(path)
    unknown = int((index.rows(ids) < 0).sum())
    deleted = delete_papers(index.folder, ids)
    return {"deleted": deleted, "not_found": unknown} if unknown else {"deleted": deleted}


def _read_ids(path: Path) -> list[str]:
    """Read the ids of a file, one per line."""
    try:
        with open_input(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a file with one id per line") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path} is larger than {MAX_BYTES >> 20} MiB; give a file with one id per line")
    ids = [line for raw in data.decode("utf-8", "replace").splitlines() if (line := raw.strip())]
    if not ids:
        raise UserError(f"{path} names no paper; give a file with one id per line")
    return ids


_StoreIndex = Annotated[Path, typer.Argument(help="Index folder.", show_default=False)]
_Lance = Annotated[
    str | None, typer.Option("--lance", help="Folder of LanceDB, or s3://bucket/name.", show_default=False)
]
_Milvus = Annotated[
    str | None,
    typer.Option(
        "--milvus",
        help="Milvus Lite file, such as papers.db, or http(s)://host:port of a server; its token is read from the environment variable CITEWEAVE_MILVUS_TOKEN.",
        show_default=False,
    ),
]
_Collection = Annotated[str, typer.Option("--collection", help="With --milvus: name of the collection.")]
_Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the contents even if another index filled the store.")
]


def store(
    index: _StoreIndex,
    lance: _Lance = None,
    milvus: _Milvus = None,
    collection: _Collection = "papers",
    overwrite: _Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Copy the vectors of an index to LanceDB or Milvus, or update such a copy, for `citeweave search --store`."""
    from citeweave.search.index import Index
    from citeweave.search.store import open_store, provenance_for_store, sync_store

    if (lance is None) == (milvus is None):
        raise UserError("give either --lance FOLDER or --milvus ADDRESS")
    name = f"lance:{lance}" if milvus is None else f"milvus:{milvus}#{collection}"
    opened, reporter = Index.open(index), reporter_of(quiet or json)
    with open_store(name, provenance_for_store(opened)) as target:
        done = sync_store(opened, target, overwrite=overwrite, reporter=reporter)
        if done.added or done.updated or done.deleted:
            target.compact()
        summary = {"index": str(index), "store": target.place, "papers": target.count(), **done.as_json()}
    if json:
        print_json(summary)
    elif not quiet:
        rows = [(name, summary[name]) for name in ("papers", "added", "updated", "deleted", "unchanged")]
        print(f"{summary['store']}\n{table(rows)}")
