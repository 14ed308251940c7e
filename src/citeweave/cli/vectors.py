"""The commands `graph` and `embed`: node vectors of a citation graph, and vectors of papers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import (
    Debug,
    Device,
    Json,
    Model,
    On,
    Output,
    Overwrite,
    Quiet,
    Recipe,
    Seed,
    Set,
    Workers,
    parse_size,
    print_json,
    reporter_of,
    table,
)
from citeweave.core.errors import UserError
from citeweave.encoders.model_names import DEFAULT_MODEL

if TYPE_CHECKING:
    from citeweave.core.progress import Reporter
    from citeweave.corpus.corpus import Corpus
    from citeweave.encoders.embed import EmbeddingOptions
    from citeweave.encoders.runtimes import Runtime
    from citeweave.encoders.shards import EncoderSpec, RemoteShards
    from citeweave.graph.build import GraphIntents
    from citeweave.remote.ray_executor import RayExecutor


_GraphCorpus = Annotated[Path, typer.Argument(help="Corpus folder.", show_default=False)]
_Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="How to compute node vectors: fastrp (fast random projection; default), prone (matrix factorization), edges (trained, as in PyTorch-BigGraph), or none.",
        show_default=False,
    ),
]
_Dim = Annotated[
    int | None,
    typer.Option(
        "--dim", help="Dimension of the node vectors; default: the recipe's, otherwise 256.", show_default=False
    ),
]
_Signal = Annotated[
    str | None,
    typer.Option(
        "--signal",
        help="Relations to embed: citations, or a weighted sum such as connected:1,cocited:0.5 (one paper cites the other; both are cited together).",
        show_default=False,
    ),
]
_Direction = Annotated[
    str | None,
    typer.Option(
        "--direction",
        help="Direction in which to follow citations: both (default), cited (to the cited paper) or citing (to the citing paper).",
        show_default=False,
    ),
]
_Weighted = Annotated[
    bool,
    typer.Option(
        "--weighted", help="Weight each citation by its strength, such as its number of mentions in the text."
    ),
]
_HeldOut = Annotated[
    float,
    typer.Option(
        "--held-out", help="Fraction of citations (a plain number here) to hold out for link prediction, such as 0.01."
    ),
]
_Intents = Annotated[
    str,
    typer.Option(
        "--intents",
        help="Citation intents: corpus (those in the corpus), sections (also those inferred from section headings), or a folder from `citeweave annotate`.",
    ),
]
_PerIntent = Annotated[
    bool,
    typer.Option("--per-intent", help="Also compute separate vectors from background, method and result citations."),
]
_Memory = Annotated[
    str, typer.Option("--memory", help="Memory limit for sorting citations and for node vectors, such as 1GB.")
]
_GraphDtype = Annotated[
    str | None,
    typer.Option("--dtype", help="Data type of the vectors: float32 (default) or float16.", show_default=False),
]


def graph(
    corpus: _GraphCorpus,
    output: Output,
    method: _Method = None,
    dim: _Dim = None,
    dtype: _GraphDtype = None,
    signal: _Signal = None,
    direction: _Direction = None,
    weighted: _Weighted = False,
    held_out: _HeldOut = 0.0,
    intents: _Intents = "corpus",
    per_intent: _PerIntent = False,
    recipe: Recipe = None,
    set_: Set = [],  # noqa: B006
    seed: Seed = 0,
    memory: _Memory = "1GB",
    workers: Workers = 0,
    device: Device = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Build the citation graph of a corpus and compute node vectors; --held-out also evaluates them by link prediction."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.evaluation.links import held_out_evaluator
    from citeweave.graph.build import graph_options, make_graph
    from citeweave.graph.citations import build_graph
    from citeweave.graph.node_vectors import METHODS
    from citeweave.pipeline.recipe import load_recipe

    opened = Corpus.open(corpus)
    if not 0 <= held_out < 1:
        raise UserError(
            f"--held-out is {held_out}; it must be a share of the citations from 0 to under 1, such as 0.01"
        )
    if method == "none" and held_out:
        raise UserError("--held-out evaluates node vectors, but --method none makes none; leave out one of them")
    if method == "none" and (per_intent or intents != "corpus"):
        raise UserError(
            "--method none makes no node vectors; give --intents to `citeweave mine`, or leave out one of them"
        )
    if method == "none":
        build_graph(opened, output, memory=parse_size(memory, "--memory"), overwrite=overwrite)
    else:
        flags = {
            "method": method,
            "dimension": dim,
            "dtype": dtype,
            "signal": signal,
            "direction": direction,
            "weighted": weighted or None,
        }
        values = load_recipe(recipe, set_).table("graph") if recipe else load_recipe("scincl", set_).table("graph")
        values |= {key: value for key, value in flags.items() if value is not None}
        values |= {"seed": seed, "memory": parse_size(memory, "--memory"), "workers": workers, "device": device}
        options = graph_options(values)
        evaluator = (
            held_out_evaluator(held_out, seed=seed, score=METHODS[options.vectors.method].score) if held_out else None
        )
        evaluation = f"{held_out:g} held out" if held_out else ""
        reporter = reporter_of(quiet or json)
        make_graph(
            opened,
            output,
            options,
            evaluate_links=evaluator,
            evaluation=evaluation,
            intents=_graph_intents(intents, opened, per_intent=per_intent),
            overwrite=overwrite,
            reporter=reporter,
        )
    metadata = _graph_metadata(output)
    if json:
        print_json({**metadata, "output": str(output)})
    elif not quiet:
        print(_graph_text(output, metadata))


def _graph_intents(intents: str, corpus: Corpus, *, per_intent: bool) -> GraphIntents | None:
    """Return the intents for the graph's edges; None if it keeps those of the corpus."""
    from citeweave.graph.build import GraphIntents
    from citeweave.graph.intent_overlay import LABELS
    from citeweave.mining.inputs import IntentSource
    from citeweave.mining.rules import intent_bits

    source = IntentSource(intents)
    if not per_intent and source.where == "corpus":
        return None
    per_label = {name: intent_bits(name, "--per-intent") for name in LABELS} if per_intent else {}
    return GraphIntents(source.source, lambda graph: source.annotate(graph, corpus), per_label)


def _graph_metadata(folder: Path) -> dict[str, Any]:
    from citeweave.core.artifact import read_manifest
    from citeweave.graph.citations import KIND, VERSION

    metadata = read_manifest(folder, KIND, VERSION).facts
    vectors = folder / "vectors"
    if vectors.is_dir():
        from citeweave.vectors.vectors import Vectors

        provenance = Vectors.open(vectors).provenance
        metadata = {**metadata, "vectors": {"model": provenance.model, "dimension": provenance.dimension}}
    return metadata


def _graph_text(folder: Path, metadata: dict[str, Any]) -> str:
    rows: list[tuple[str, object]] = [
        ("papers", metadata["nodes"]),
        ("citations", metadata["edges"]),
        ("  duplicates", metadata["duplicates"]),
        ("  of a paper to itself", metadata["to_itself"]),
        ("  to papers outside", metadata["dangling"]),
    ]
    if "isolated" in metadata:
        rows += [("papers without a vector", metadata["isolated"]), ("vectors", metadata["vectors"]["model"])]
    for name, part in metadata.get("apart", {}).items():
        rows.append((f"  {name}", f"{part['citations']:,} citations of {part['papers']:,} papers"))
    lines = [f"{folder}: the citation graph", table(rows)]
    links = metadata.get("links")
    if links:
        lines.append(f"{links['edges']:,} citations were held out and ranked among random papers:")
        for kind in ("uniform", "degree"):
            s = links[kind]
            numbers = f"MRR {s['mrr']:.3f}  Hits@1 {s['hits_1']:.3f}  @10 {s['hits_10']:.3f}  @50 {s['hits_50']:.3f}"
            lines.append(f"  {kind:8} {numbers}  AUC {s['auc']:.3f}  mean rank {s['mean_rank']:.1f}")
    return "\n".join(lines)


_EmbedCorpus = Annotated[Path, typer.Argument(help="Corpus folder.", show_default=False)]
_Aspect = Annotated[
    str,
    typer.Option(
        "--aspect",
        help="For a model with aspects: compute the vectors of one aspect, such as method, or of all, concatenated (all).",
        show_default=False,
    ),
]
_Sentences = Annotated[
    bool, typer.Option("--sentences", help="Embed every sentence of the abstracts: one vector per sentence.")
]
_FullText = Annotated[
    Path | None,
    typer.Option(
        "--full-text",
        help="Embed the full texts in this JSON Lines file with the keys id and sections.",
        show_default=False,
    ),
]
_Chunks = Annotated[
    bool, typer.Option("--keep-chunks", help="With --full-text: keep one vector per chunk of text, not their mean.")
]
_Text = Annotated[
    str, typer.Option("--text", help="Comma-separated parts of each paper to embed: title, abstract, venue, authors.")
]
_As = Annotated[
    str | None,
    typer.Option(
        "--as",
        help="Compress the stored vectors: int8, binary or truncate:N (keep the first N dimensions).",
        show_default=False,
    ),
]
_EmbedDtype = Annotated[str, typer.Option("--dtype", help="Data type of the vectors: float32 or float16.")]
_Precision = Annotated[
    str, typer.Option("--precision", help="Numerical precision of the computation: float32, bfloat16 or float16.")
]
_Pooling = Annotated[
    str | None,
    typer.Option(
        "--pooling",
        help="Pooling: cls (first token), mean (of tokens), layers (of tokens and layers) or mix (with learned layer weights); default: the model's own.",
        show_default=False,
    ),
]
_MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", help="Maximum number of tokens per text; default: the model's own.", show_default=False
    ),
]
_Runtime = Annotated[
    str,
    typer.Option(
        "--runtime", help="Runtime of the model: auto (the fastest here), torch, openvino or int8 (8-bit arithmetic)."
    ),
]
_Compiled = Annotated[
    bool,
    typer.Option(
        "--compiled", help="With --runtime torch on a GPU: compile the layers first, which pays off in long runs."
    ),
]
_Device = Annotated[
    str, typer.Option("--device", help='Device: cpu, cuda, auto, cuda:all, or a list such as "cuda:0,cuda:1".')
]
_BatchTokens = Annotated[
    int | None,
    typer.Option("--batch-tokens", help="Tokens per batch; default: depends on the device.", show_default=False),
]
_Shard = Annotated[
    int | None, typer.Option("--shard", help="Number of papers per shard; default: 16384.", show_default=False)
]
_Tokens = Annotated[
    Path | None,
    typer.Option("--tokens", help="Folder in which to cache the tokenized texts for later runs.", show_default=False),
]


def embed(
    corpus: _EmbedCorpus,
    output: Output,
    model: Model = DEFAULT_MODEL,
    aspect: _Aspect = "",
    sentences: _Sentences = False,
    full_text: _FullText = None,
    keep_chunks: _Chunks = False,
    text: _Text = "title,abstract",
    as_: _As = None,
    dtype: _EmbedDtype = "float32",
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
    """Compute the vectors of a corpus's papers; an interrupted run resumes."""
    from citeweave.corpus.corpus import Corpus
    from citeweave.corpus.text import TextRecipe
    from citeweave.encoders.embed import SHARD, EmbeddingOptions
    from citeweave.encoders.full_text import FULL_TEXT_SHARD
    from citeweave.encoders.runtimes import Runtime
    from citeweave.encoders.shards import EncoderSpec
    from citeweave.remote.ray_executor import open_executor

    opened = Corpus.open(corpus)
    usual = FULL_TEXT_SHARD if full_text else SHARD
    recipe = TextRecipe(parts=tuple(part.strip() for part in text.split(",")))
    options = EmbeddingOptions(recipe, dtype, usual if shard is None else shard, tokens)
    chosen = _VectorKind(output, as_ or "", sentences, full_text, keep_chunks)
    chosen.check()
    if aspect and (sentences or full_text):
        raise UserError(f"--aspect is {aspect!r}; aspect spaces are for papers: leave out --sentences and --full-text")
    settings = {"pooling": pooling, "max_tokens": max_tokens, "dtype": precision, "batch_tokens": batch_tokens}
    reporter = reporter_of(quiet or json)
    with open_executor(on, reporter) as executor:
        if executor is None:
            encoders = _load_encoders(
                model, aspect, device, replace(Runtime.parse(runtime), compiled=compiled), settings
            )
        else:
            spec = EncoderSpec(model, aspect, device, runtime, compiled, settings)
            encoders, remote = _load_encoders_for(executor, spec)
            options = replace(options, remote=remote)
        computed = encoders[0].runtime
        options = replace(options, precision=precision if computed.label == "torch" else computed.label)
        vectors = chosen.make(opened, encoders, options, overwrite=overwrite, reporter=reporter)
    metadata = {**(vectors.manifest.facts if vectors.manifest else {}), "papers": len(opened), "output": str(output)}
    metadata["runtime"] = computed.label
    if json:
        print_json(metadata)
    elif not quiet:
        print(_embed_text(output, metadata))


def _load_encoders(model: str, aspect: str, device: str, runtime: Runtime, settings: dict[str, Any]) -> list[Any]:
    from citeweave.encoders.aspects import load_aspect_encoder
    from citeweave.encoders.embed import device_names

    return [
        load_aspect_encoder(model, aspect, device=name, runtime=runtime, **settings) for name in device_names(device)
    ]


def _load_encoders_for(executor: RayExecutor, spec: EncoderSpec) -> tuple[list[Any], RemoteShards]:
    """Load the encoder that describes the vectors, and describe how the executor's workers load theirs."""
    from citeweave.encoders.encoder import BATCH_TOKENS
    from citeweave.encoders.runtimes import Runtime
    from citeweave.encoders.shards import RemoteShards

    if spec.device not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device is {spec.device!r}; with --on it must be cpu, cuda or auto: a worker has one device")
    gpu = spec.device == "cuda" or (spec.device == "auto" and spec.runtime in ("auto", "torch") and executor.gpus)
    if gpu and not executor.gpus:
        raise UserError("--device is cuda, but the cluster has no GPUs; use --device cpu")
    settings = dict(spec.settings)
    if gpu and settings["batch_tokens"] is None:
        settings["batch_tokens"] = BATCH_TOKENS["cuda"]
    name = "torch" if gpu else spec.runtime
    # in torch the precision is not part of the model, and this processor may not support it
    local = settings | {"dtype": "float32" if name == "torch" else settings["dtype"]}
    encoders = _load_encoders(spec.model, spec.aspect, "cpu", Runtime.parse(name), local)
    label = encoders[0].runtime.label  # workers do not choose a runtime themselves
    spec = replace(spec, device="cuda" if gpu else "cpu", settings=settings, runtime=label)
    return encoders, RemoteShards(executor, spec)


@dataclass(frozen=True)
class _VectorKind:
    """The kind of vectors that the options of `embed` ask for."""

    output: Path
    compressed: str
    sentences: bool
    full_text: Path | None
    keep_chunks: bool

    def check(self) -> None:
        """Refuse command-line options of `embed` that do not go together, before a model is loaded."""
        from citeweave.vectors.compressed import parse_kind

        if self.sentences + (self.full_text is not None) + bool(self.compressed) > 1:
            raise UserError("--sentences, --full-text and --as exclude each other; leave out all but one")
        if self.keep_chunks and self.full_text is None:
            raise UserError("--keep-chunks is about the chunks of --full-text; give the file, or leave it out")
        if self.compressed:
            parse_kind(self.compressed)

    def make(
        self,
        corpus: Corpus,
        encoders: list[Any],
        options: EmbeddingOptions,
        *,
        overwrite: bool,
        reporter: Reporter,
    ) -> Any:
        from citeweave.encoders.embed import embed_compressed, embed_papers, embed_sentences
        from citeweave.encoders.full_text import FullText, embed_full_text

        common: dict[str, Any] = {"overwrite": overwrite, "reporter": reporter}
        if self.sentences:
            return embed_sentences(corpus, encoders, self.output, options, **common)
        if self.compressed:
            return embed_compressed(corpus, encoders, self.output, self.compressed, options, **common)
        if self.full_text is None:
            return embed_papers(corpus, encoders, self.output, options, **common)
        full = FullText.index(self.full_text, corpus)
        count = full.tally.counts["full texts"]
        reporter.say(f"{self.full_text}: {count.kept:,} of {count.read:,} full texts are of papers of the corpus")
        return embed_full_text(corpus, encoders, self.output, full, options, several=self.keep_chunks, **common)


def _embed_text(folder: Path, metadata: dict[str, Any]) -> str:
    rows: list[tuple[str, object]] = [("papers", metadata["papers"]), ("vectors", metadata["rows"])]
    for count in metadata["records"].values():
        rows += [(f"  not kept: {reason}", number) for reason, number in count["rejected"].items()]
    rows += [(f"  {what}", number) for what, number in metadata["notes"].items()]
    if "out_of_memory" in metadata:
        rows.append(("batches reduced after running out of memory", metadata["out_of_memory"]))
    return f"{folder}: {metadata['dimension']} dimensions ({metadata['dtype']}) of {metadata['model']}, computed by {metadata['runtime']}\n{table(rows)}"
