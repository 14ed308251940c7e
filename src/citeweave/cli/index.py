"""The commands `index`, `change` and `store`: search indexes and vector stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from citeweave.cli.options import (
    CommonArguments,
    CorpusFolder,
    Device,
    Given,
    IndexFolder,
    OutputArguments,
    OwnModel,
    print_json,
    table,
)
from citeweave.core.errors import UserError
from citeweave.core.files import open_input
from citeweave.core.options import Flag
from citeweave.search.options import IndexOptions

if TYPE_CHECKING:
    from citeweave.search.index import Index
    from citeweave.search.index_vectors import PrecomputedVectors


@dataclass(frozen=True, kw_only=True)
class IndexArguments(OutputArguments):
    corpus: CorpusFolder
    model: OwnModel = ""

    contexts: Annotated[bool, Flag("--contexts/--no-contexts")] = False
    """Also index the sentences in which papers are cited, for `citeweave search --cite`."""

    max_contexts: int = 10
    """With --contexts: maximum number of sentences per cited paper and intent."""

    intents: Path | None = None
    """Output folder of `citeweave annotate`; default: the intents in the corpus."""

    options: Annotated[Mapping[str, Any], Given(IndexOptions, only=("dtype", "runtime", "device"))]
    sentences: Annotated[bool, Flag("--sentences/--no-sentences")] = False
    """Also embed every sentence of the abstracts."""

    words_only: bool = False
    """Index words only; add vectors later with `citeweave change --fill`."""

    vectors: Path | None = None
    """Folder of vectors of the same model from `citeweave embed`."""

    sentence_vectors: Path | None = None
    """Folder of precomputed sentence vectors of the same model; implies --sentences."""

    trust_ids: bool = False
    """With --vectors: also accept vectors computed for another corpus, matched by paper id."""


def index(args: IndexArguments) -> None:
    """Build a search index for a corpus, or update an index from a newer corpus; an interrupted run resumes."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.intent_overlay import IntentOverlay
    from citeweave.search.build import describe_index, index_corpus

    if args.contexts and args.max_contexts < 1:
        raise UserError(f"--max-contexts is {args.max_contexts}; it must be at least 1, or leave out --contexts")
    with_sentences = args.sentences or args.sentence_vectors is not None
    contexts = args.max_contexts if args.contexts else 0
    options = IndexOptions(contexts=contexts, sentences=with_sentences, vectors=not args.words_only, **args.options)
    opened = Corpus.open(args.corpus)
    overlay = None if args.intents is None else IntentOverlay.open(args.intents)
    known = _open_precomputed(args.vectors, args.sentence_vectors, trust_ids=args.trust_ids)
    result = index_corpus(opened, args.model, args.output, options, overlay=overlay, precomputed=known, **args.writing)
    summary = {**describe_index(result.index), "output": str(args.output)}
    if result.changed is not None:
        summary["changed"] = result.changed.as_json()
    args.print(summary, _index_text(args.output, summary))


def _open_precomputed(
    vectors: Path | None, sentence_vectors: Path | None, *, trust_ids: bool
) -> PrecomputedVectors | None:
    """Open the vectors of --vectors and --sentence-vectors for an index."""
    from citeweave.search.index_vectors import PrecomputedVectors
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


MAX_BYTES = 256 << 20
"""Of a file of ids."""


@dataclass(frozen=True, kw_only=True)
class ChangeArguments(CommonArguments):
    index: IndexFolder
    add: Path | None = None
    """Corpus whose papers are added or replaced."""

    delete: Path | None = None
    """File with the ids of papers to delete, one per line."""

    fill: bool = False
    """Embed the papers that have words only."""

    sentences: bool = False
    """With --fill: also embed every sentence of the abstracts."""

    words_only: bool = False
    """With --add: index words only."""

    intents: Path | None = None
    """With --add: folder of intents of the corpus's citations."""

    vectors: Path | None = None
    """With --add or --fill: folder of vectors of the same model from `citeweave embed`."""

    sentence_vectors: Path | None = None
    """With --add or --fill: folder of precomputed sentence vectors of the same model."""

    trust_ids: bool = False
    """With --vectors: also accept vectors computed for another corpus, matched by paper id."""

    model: str = ""
    """Folder of the model that the index was built with, if moved."""

    device: Device = "auto"


def change(args: ChangeArguments) -> None:
    """Delete papers of an index, add papers, or fill in missing vectors, in this order; each step completes or changes nothing."""
    _check(
        nothing=args.add is None and args.delete is None and not args.fill,
        about_add=args.add is None and (args.words_only or args.intents is not None),
        about_fill=args.sentences and not args.fill,
        about_both=args.add is None and not args.fill and bool(args.vectors or args.sentence_vectors),
    )
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.intent_overlay import IntentOverlay
    from citeweave.search.build import ChangeOptions, add_papers, describe_index, fill_vectors
    from citeweave.search.index import Index

    opened = Index.open(args.index)
    precomputed = _open_precomputed(args.vectors, args.sentence_vectors, trust_ids=args.trust_ids)
    reporter, changed = args.reporter, dict[str, Any]()
    if args.delete is not None:
        changed = _delete(opened, args.delete)
    if args.add is not None:
        overlay = None if args.intents is None else IntentOverlay.open(args.intents)
        # papers added with words only get their vectors when the index is filled
        later = args.fill and (args.words_only or opened.provenance is None)
        options = ChangeOptions(
            not args.words_only, args.model or None, args.device, precomputed=None if later else precomputed
        )
        added = add_papers(
            args.index, Corpus.open(args.add), options=options, overlay=overlay, reporter=reporter
        ).as_json()
        changed = {**changed, **added, "deleted": added["deleted"] + changed.get("deleted", 0)}
    if args.fill:
        changed["embedded"] = fill_vectors(
            args.index,
            model=args.model or None,
            device=args.device,
            precomputed=precomputed,
            sentences=args.sentences,
            reporter=reporter,
        )
    summary = {**describe_index(Index.open(args.index)), "index": str(args.index), "changed": changed}
    args.print(summary, _index_text(args.index, summary))


def _check(*, nothing: bool, about_add: bool, about_fill: bool, about_both: bool) -> None:
    """Refuse options of `change` that do not go together, before anything is opened."""
    if nothing:
        raise UserError("say what to change: --add CORPUS, --delete FILE or --fill")
    if about_add:
        raise UserError("--words-only and --intents go with --add; leave them out")
    if about_fill:
        raise UserError("--sentences goes with --fill; leave it out, or add --fill")
    if about_both:
        raise UserError("--vectors and --sentence-vectors go with --add or --fill; leave them out")


def _delete(index: Index, path: Path) -> dict[str, Any]:
    """Delete the papers listed in a file; return how many, and how many ids the index does not have."""
    from citeweave.search.build import delete_papers

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


@dataclass(frozen=True, kw_only=True)
class StoreArguments(CommonArguments):
    index: IndexFolder
    lance: str | None = None
    """Folder of LanceDB, or s3://bucket/name."""

    milvus: str | None = None
    """Milvus Lite file, such as papers.db, or http(s)://host:port of a server; its token is read from the environment variable CITEWEAVE_MILVUS_TOKEN."""

    collection: str = "papers"
    """With --milvus: name of the collection."""

    overwrite: bool = False
    """Replace the contents even if another index filled the store."""


def store(args: StoreArguments) -> None:
    """Copy the vectors of an index to LanceDB or Milvus, or update such a copy, for `citeweave search --store`."""
    from citeweave.search.databases import open_store
    from citeweave.search.index import Index
    from citeweave.search.store import provenance_for_store, sync_store

    if (args.lance is None) == (args.milvus is None):
        raise UserError("give either --lance FOLDER or --milvus ADDRESS")
    name = f"lance:{args.lance}" if args.milvus is None else f"milvus:{args.milvus}#{args.collection}"
    opened, reporter = Index.open(args.index), args.reporter
    with open_store(name, provenance_for_store(opened)) as target:
        done = sync_store(opened, target, overwrite=args.overwrite, reporter=reporter)
        if done.added or done.updated or done.deleted:
            target.compact()
        summary = {"index": str(args.index), "store": target.place, "papers": target.count(), **done.as_json()}
    if args.json:
        print_json(summary)
    elif not args.quiet:
        rows = [(name, summary[name]) for name in ("papers", "added", "updated", "deleted", "unchanged")]
        print(f"{summary['store']}\n{table(rows)}")
