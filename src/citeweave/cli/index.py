"""citeweave index"""

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
from citeweave.errors import UserError

if TYPE_CHECKING:
    from citeweave.search.writing.given import Given

_Corpus = Annotated[Path, typer.Argument(help="Folder of a corpus.", show_default=False)]
_Contexts = Annotated[
    bool, typer.Option("--contexts/--no-contexts", help="Also the citing sentences, for `search --cite`.")
]
_Most = Annotated[
    int, typer.Option("--most-contexts", help="With --contexts: sentences of a paper with the same intents.")
]
_Intents = Annotated[
    Path | None,
    typer.Option("--intents", help="Intents that `citeweave annotate` found; else the corpus's.", show_default=False),
]
_Dtype = Annotated[str, typer.Option("--dtype", help="Numbers of the vectors: float16 or float32.")]
_Runtime = Annotated[
    str,
    typer.Option(
        "--runtime",
        help="What computes the network: auto (the fastest here), torch, openvino or int8. Searches use the same.",
    ),
]
_Sentences = Annotated[
    bool, typer.Option("--sentences/--no-sentences", help="Also a vector a sentence of the abstracts.")
]
_Words = Annotated[bool, typer.Option("--words-only", help="No vectors yet; `citeweave change --fill` adds them.")]
_Vectors = Annotated[
    Path | None,
    typer.Option("--vectors", help="Vectors that `citeweave embed` made of this model.", show_default=False),
]
_SentenceVectors = Annotated[
    Path | None,
    typer.Option("--sentence-vectors", help="The same of sentences; implies --sentences.", show_default=False),
]
TrustIds = Annotated[
    bool, typer.Option("--trust-ids", help="With --vectors: take those of another corpus too, by the papers' ids.")
]


def index(
    corpus: _Corpus,
    output: Output,
    model: OwnModel = "",
    contexts: _Contexts = False,
    most_contexts: _Most = 10,
    intents: _Intents = None,
    dtype: _Dtype = "float16",
    runtime: _Runtime = "auto",
    sentences: _Sentences = False,
    words_only: _Words = False,
    vectors: _Vectors = None,
    sentence_vectors: _SentenceVectors = None,
    trust_ids: TrustIds = False,
    device: Device = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make an index of a corpus for `citeweave search`, or bring one to a newer corpus; an interrupted run goes on."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.intent_overlay import IntentOverlay
    from citeweave.search.building import IndexOptions
    from citeweave.search.describing import describe
    from citeweave.search.indexing import index_corpus

    if contexts and most_contexts < 1:
        raise UserError(f"--most-contexts is {most_contexts}; it must be at least 1, or leave out --contexts")
    most = most_contexts if contexts else 0
    options = IndexOptions(
        dtype, most, runtime, device, sentences=sentences or sentence_vectors is not None, vectors=not words_only
    )
    opened = Corpus.open(corpus)
    overlay = None if intents is None else IntentOverlay.open(intents)
    made = index_corpus(
        opened,
        model,
        output,
        options,
        overlay=overlay,
        given=given_vectors(vectors, sentence_vectors, trust_ids=trust_ids),
        overwrite=overwrite,
        reporter=reporter_of(quiet or json),
    )
    facts = {**describe(made.index), "output": str(output)}
    if made.changed is not None:
        facts["changed"] = made.changed.as_json()
    if json:
        print_json(facts)
    elif not quiet:
        print(describe_text(output, facts))


def given_vectors(vectors: Path | None, sentence_vectors: Path | None, *, trust_ids: bool) -> Given | None:
    """What --vectors and --sentence-vectors name."""
    from citeweave.search.writing.given import Given
    from citeweave.similarity.sentence_vectors import SentenceVectors
    from citeweave.similarity.vectors import Vectors

    if vectors is None:
        if sentence_vectors is not None:
            raise UserError("--sentence-vectors goes with --vectors; give those of the papers too")
        if trust_ids:
            raise UserError("--trust-ids goes with --vectors; leave it out")
        return None
    sentences = None if sentence_vectors is None else SentenceVectors.open(sentence_vectors)
    return Given(Vectors.open(vectors), sentences, trust_ids)


def describe_text(folder: Path, facts: dict[str, Any]) -> str:
    """What an index holds, on a few lines."""
    rows: list[tuple[str, object]] = [("papers", facts["papers"])]
    for name, told in (
        ("without_vector", "  no vector: no text"),
        ("not_embedded", "  no vector yet"),
        ("with_sentences", "  with vectors of their sentences"),
    ):
        if facts[name]:
            rows.append((told, facts[name]))
    if facts["with_intents"]:
        rows.append(("cited with a known intent", facts["with_intents"]))
    if "sentences" in facts:
        rows += [("citing sentences", facts["sentences"]), ("  mentions of papers in them", facts["mentions"])]
        if facts["sentences_left_out"]:
            rows.append(("  left out: nothing but marks", facts["sentences_left_out"]))
    for name, count in facts.get("changed", {}).items():
        rows.append((f"{name.replace('_', ' ')} now", count))
    spaces = f", aspects {', '.join(facts['aspects'])}" if facts["aspects"] else ""
    by = (
        f"{facts['dimension']} numbers ({facts['dtype']}) of {facts['model']}{spaces}, computed by {facts['runtime']}"
        if facts["model"]
        else "words"
    )
    return f"{folder}: {by}\n{table(rows)}"
