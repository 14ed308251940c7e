"""citeweave embed"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Json, Model, On, Output, Overwrite, Quiet, print_json, reporter_of, table
from citeweave.encoders.locating import DEFAULT_MODEL
from citeweave.errors import UserError

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.encoders.embedding import EmbeddingOptions
    from citeweave.encoders.runtimes import Runtime
    from citeweave.encoders.streaming.elsewhere import Elsewhere, Loading
    from citeweave.progress import Reporter
    from citeweave.scale.ray_crew import RayCrew

_Corpus = Annotated[Path, typer.Argument(help="Folder of a corpus.", show_default=False)]
_Aspect = Annotated[
    str,
    typer.Option(
        "--aspect", help="Of a model with aspect heads: the space of one (method), or all.", show_default=False
    ),
]
_Sentences = Annotated[bool, typer.Option("--sentences", help="A vector a sentence of the abstract.")]
_FullText = Annotated[
    Path | None,
    typer.Option("--full-text", help="JSON lines with id and sections: read the full text.", show_default=False),
]
_Chunks = Annotated[bool, typer.Option("--keep-chunks", help="With --full-text: a vector a chunk.")]
_Text = Annotated[str, typer.Option("--text", help="What is read: of title, abstract, venue, authors.")]
_As = Annotated[
    str | None, typer.Option("--as", help="Smaller vectors: int8, binary or truncate:N.", show_default=False)
]
_Dtype = Annotated[str, typer.Option("--dtype", help="Numbers of the vectors: float32 or float16.")]
_Precision = Annotated[str, typer.Option("--precision", help="Numbers of the network: float32, bfloat16 or float16.")]
_Pooling = Annotated[
    str | None, typer.Option("--pooling", help="cls, mean, layers or mix; else the model's own.", show_default=False)
]
_MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", help="Where texts are cut; else the model's own.", show_default=False)
]
_Runtime = Annotated[
    str, typer.Option("--runtime", help="What computes the network: auto (the fastest here), torch, openvino or int8.")
]
_Compiled = Annotated[
    bool, typer.Option("--compiled", help="With torch on a GPU: compile the layers first; pays in long runs.")
]
_Device = Annotated[str, typer.Option("--device", help="cpu, cuda, several such as cuda:0,cuda:1, cuda:all, or auto.")]
_BatchTokens = Annotated[
    int | None, typer.Option("--batch-tokens", help="Tokens of a batch; else by device.", show_default=False)
]
_Shard = Annotated[
    int | None, typer.Option("--shard", help="Papers sorted by length together; 16384 by default.", show_default=False)
]
_Tokens = Annotated[
    Path | None, typer.Option("--tokens", help="Folder in which to keep the tokens.", show_default=False)
]


def embed(
    corpus: _Corpus,
    output: Output,
    model: Model = DEFAULT_MODEL,
    aspect: _Aspect = "",
    sentences: _Sentences = False,
    full_text: _FullText = None,
    keep_chunks: _Chunks = False,
    text: _Text = "title,abstract",
    as_: _As = None,
    dtype: _Dtype = "float32",
    precision: _Precision = "float32",
    pooling: _Pooling = None,
    max_tokens: _MaxTokens = None,
    runtime: _Runtime = "auto",
    compiled: _Compiled = False,
    device: _Device = "auto",
    batch_tokens: _BatchTokens = None,
    shard: _Shard = None,
    tokens: _Tokens = None,
    on: On = "",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Turn the papers of a corpus into vectors; an interrupted run goes on where it stopped."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.corpus.text import TextRecipe
    from citeweave.encoders.embedding import SHARD, EmbeddingOptions
    from citeweave.encoders.runtimes import Runtime
    from citeweave.encoders.streaming.elsewhere import Loading
    from citeweave.encoders.streaming.full_text import FULL_TEXT_SHARD
    from citeweave.scale.opening import open_crew

    opened = Corpus.open(corpus)
    usual = FULL_TEXT_SHARD if full_text else SHARD
    recipe = TextRecipe(parts=tuple(part.strip() for part in text.split(",")))
    options = EmbeddingOptions(recipe, dtype, usual if shard is None else shard, tokens)
    chosen = _Chosen(output, as_ or "", sentences, full_text, keep_chunks)
    chosen.check()
    if aspect and (sentences or full_text):
        raise UserError(
            f"--aspect is {aspect!r}; aspect spaces are of whole papers: leave --sentences, --full-text out"
        )
    settings = {"pooling": pooling, "max_tokens": max_tokens, "dtype": precision, "batch_tokens": batch_tokens}
    reporter = reporter_of(quiet or json)
    with open_crew(on, reporter) as crew:
        if crew is None:
            encoders = _load(model, aspect, device, replace(Runtime.parse(runtime), compiled=compiled), settings)
        else:
            loading = Loading(model, aspect, device, runtime, compiled, settings)
            encoders, elsewhere = _load_for(crew, loading)
            options = replace(options, elsewhere=elsewhere)
        computed = encoders[0].runtime
        options = replace(options, precision=precision if computed.label == "torch" else computed.label)
        made = chosen.make(opened, encoders, options, overwrite=overwrite, reporter=reporter)
    facts = {**(made.manifest.facts if made.manifest else {}), "papers": len(opened), "output": str(output)}
    facts["runtime"] = computed.label
    if json:
        print_json(facts)
    elif not quiet:
        print(_text(output, facts))


def _load(model: str, aspect: str, device: str, runtime: Runtime, settings: dict[str, Any]) -> list[Any]:
    from citeweave.encoders.aspects import load_aspect_encoder
    from citeweave.encoders.streaming.devices import device_names

    return [
        load_aspect_encoder(model, aspect, device=name, runtime=runtime, **settings) for name in device_names(device)
    ]


def _load_for(crew: RayCrew, loading: Loading) -> tuple[list[Any], Elsewhere]:
    """The encoder on this processor, which says what the vectors are; and how the workers of a crew load theirs."""
    from citeweave.encoders.encoder import BATCH_TOKENS
    from citeweave.encoders.runtimes import Runtime
    from citeweave.encoders.streaming.elsewhere import Elsewhere

    if loading.device not in ("auto", "cpu", "cuda"):
        raise UserError(
            f"--device is {loading.device!r}; with --on it must be cpu, cuda or auto: a worker has one device"
        )
    gpu = loading.device == "cuda" or (loading.device == "auto" and loading.runtime in ("auto", "torch") and crew.gpus)
    if gpu and not crew.gpus:
        raise UserError("--device is cuda, and the cluster has no graphics cards for it; take --device cpu")
    settings = dict(loading.settings)
    if gpu and settings["batch_tokens"] is None:
        settings["batch_tokens"] = BATCH_TOKENS["cuda"]
    name = "torch" if gpu else loading.runtime
    # in torch the precision is no part of the model, and this processor may not compute in it
    here = settings | {"dtype": "float32" if name == "torch" else settings["dtype"]}
    encoders = _load(loading.model, loading.aspect, "cpu", Runtime.parse(name), here)
    label = encoders[0].runtime.label  # workers do not choose for themselves
    loading = replace(loading, device="cuda" if gpu else "cpu", settings=settings, runtime=label)
    return encoders, Elsewhere(crew, loading)


@dataclass(frozen=True)
class _Chosen:
    """Which of the four kinds of vectors is asked for."""

    output: Path
    smaller: str
    sentences: bool
    full_text: Path | None
    keep_chunks: bool

    def check(self) -> None:
        """Refuse what does not go together, before a model is loaded."""
        from citeweave.similarity.compressed import parse_kind

        if self.sentences + (self.full_text is not None) + bool(self.smaller) > 1:
            raise UserError("--sentences, --full-text and --as exclude each other; leave out all but one")
        if self.keep_chunks and self.full_text is None:
            raise UserError("--keep-chunks is about the chunks of --full-text; give the file, or leave it out")
        if self.smaller:
            parse_kind(self.smaller)

    def make(
        self,
        corpus: Corpus,
        encoders: list[Any],
        options: EmbeddingOptions,
        *,
        overwrite: bool,
        reporter: Reporter,
    ) -> Any:
        from citeweave.encoders.embedding import embed_papers, embed_smaller
        from citeweave.encoders.streaming.embedding_sentences import embed_sentences
        from citeweave.encoders.streaming.full_text import FullText, embed_full_text

        how: dict[str, Any] = {"overwrite": overwrite, "reporter": reporter}
        if self.sentences:
            return embed_sentences(corpus, encoders, self.output, options, **how)
        if self.smaller:
            return embed_smaller(corpus, encoders, self.output, self.smaller, options, **how)
        if self.full_text is None:
            return embed_papers(corpus, encoders, self.output, options, **how)
        full = FullText.index(self.full_text, corpus)
        count = full.tally.counts["full texts"]
        reporter.say(f"{self.full_text}: {count.kept:,} of {count.read:,} full texts are of papers of the corpus")
        return embed_full_text(corpus, encoders, self.output, full, options, several=self.keep_chunks, **how)


def _text(folder: Path, facts: dict[str, Any]) -> str:
    rows: list[tuple[str, object]] = [("papers", facts["papers"]), ("vectors", facts["rows"])]
    for count in facts["records"].values():
        rows += [(f"  not kept: {reason}", number) for reason, number in count["rejected"].items()]
    rows += [(f"  {what}", number) for what, number in facts["notes"].items()]
    if "out_of_memory" in facts:
        rows.append(("batches made smaller, out of memory", facts["out_of_memory"]))
    return f"{folder}: {facts['dimension']} numbers ({facts['dtype']}) of {facts['model']}, computed by {facts['runtime']}\n{table(rows)}"
