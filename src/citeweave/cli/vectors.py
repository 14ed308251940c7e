"""The commands `graph` and `embed`: node vectors of a citation graph, and vectors of papers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import citeweave as cw
from citeweave.cli.options import (
    CorpusFolder,
    Given,
    Model,
    On,
    OutputArguments,
    RecipeOption,
    Set,
    rejected_rows,
    table,
)
from citeweave.core.errors import UserError
from citeweave.core.options import Flag, OneOf, Range
from citeweave.encoders.model_names import DEFAULT_MODEL
from citeweave.graph.options import METHODS, GraphOptions, NodeVectorOptions, graph_options

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.encoders.embed import EmbeddingOptions
    from citeweave.encoders.runtimes import Runtime
    from citeweave.encoders.shards import EncoderSpec, RemoteShards
    from citeweave.graph.build import GraphIntents, LinkEvaluation
    from citeweave.remote.ray_executor import RayExecutor


TOKENS_PER_PAPER = 230
"""Tokens of a title with its abstract, on average."""


@dataclass(frozen=True, kw_only=True)
class GraphArguments(OutputArguments):
    corpus: CorpusFolder
    method: Annotated[str | None, OneOf("none", *METHODS)] = None
    """How to compute node vectors: fastrp (fast random projection; default), prone (matrix factorization), edges (trained, as in PyTorch-BigGraph), or none."""

    changes: Annotated[Mapping[str, Any], Given(GraphOptions, without=("method",))] = field(default_factory=dict)

    held_out: Annotated[float, Range(0, below=1)] = 0.0
    """Fraction of citations (a plain number here) to hold out for link prediction, such as 0.01."""

    links: Annotated[str, OneOf("citations", "signal")] = "citations"
    """What --held-out holds out: citations, or the links of --signal, such as co-citations (cocited)."""

    intents: str = "corpus"
    """Citation intents: corpus (those in the corpus), sections (also those inferred from section headings), or a folder from `citeweave annotate`."""

    per_intent: bool = False
    """Also compute separate vectors from background, method and result citations."""

    recipe: RecipeOption = ""
    set_: Set = ()


def graph(args: GraphArguments) -> None:
    """Build the citation graph of a corpus and compute node vectors; --held-out also evaluates them by link prediction."""
    from citeweave.graph.node_vectors import METHODS as EMBEDDING_METHODS

    opened = cw.Corpus.open(args.corpus)
    if args.method == "none" and args.held_out:
        raise UserError("--held-out evaluates node vectors, but --method none makes none; leave out one of them")
    if args.method == "none" and (args.per_intent or args.intents != "corpus"):
        raise UserError(
            "--method none makes no node vectors; give --intents to `citeweave mine`, or leave out one of them"
        )
    if args.method == "none":
        memory = args.changes.get("memory", NodeVectorOptions().memory)
        cw.build_graph(opened, args.output, memory=memory, overwrite=args.overwrite)
    else:
        method = {"method": args.method} if args.method else {}
        values = cw.load_recipe(args.recipe or "scincl", args.set_).table("graph")
        options = graph_options({**values, **args.changes, **method})
        score, seed = EMBEDDING_METHODS[options.vectors.method].score, options.vectors.seed
        cw.make_graph(
            opened,
            args.output,
            options,
            evaluation=_link_evaluation(args, seed, score) if args.held_out else None,
            intents=_graph_intents(args.intents, opened, per_intent=args.per_intent),
            **args.writing,
        )
    metadata = _graph_metadata(args.output)
    args.print(metadata, _graph_text(args.output, metadata))


def _link_evaluation(args: GraphArguments, seed: int, score: str) -> LinkEvaluation:
    """Return the evaluation of node vectors that --held-out and --links ask for."""
    from citeweave.evaluation.links import held_out_evaluator
    from citeweave.graph.build import LinkEvaluation

    name = f"{args.held_out:g} held out" + (" of the signal's links" if args.links == "signal" else "")
    return LinkEvaluation(held_out_evaluator(args.held_out, seed=seed, score=score), name, args.links)


def _graph_intents(intents: str, corpus: Corpus, *, per_intent: bool) -> GraphIntents | None:
    """Return the intents for the graph's edges; None if it keeps those of the corpus."""
    from citeweave.graph.build import GraphIntents
    from citeweave.graph.intent_overlay import LABELS, IntentSource
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
        provenance = cw.Vectors.open(vectors).provenance
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
    if links := metadata.get("links"):
        of = f"links ({links['of']})" if "of" in links else "citations"
        lines.append(f"{links['edges']:,} {of} were held out and ranked among random papers:")
        for kind in ("uniform", "degree"):
            s = links[kind]
            numbers = f"MRR {s['mrr']:.3f}  Hits@1 {s['hits_1']:.3f}  @10 {s['hits_10']:.3f}  @50 {s['hits_50']:.3f}"
            lines.append(f"  {kind:8} {numbers}  AUC {s['auc']:.3f}  mean rank {s['mean_rank']:.1f}")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class EmbedArguments(OutputArguments):
    corpus: CorpusFolder
    model: Model = DEFAULT_MODEL

    aspect: str = ""
    """For a model with aspects: compute the vectors of one aspect, such as method, of all (concatenated, each of
    length 1), or of a sum such as encoder+method or encoder+all (at their own lengths; encoder is the own vector)."""

    sentences: bool = False
    """Embed every sentence of the abstracts: one vector per sentence."""

    full_text: Path | None = None
    """Embed the full texts in this JSON Lines file with the keys id and sections."""

    keep_chunks: bool = False
    """With --full-text: keep one vector per chunk of text, not their mean."""

    text: str = "title,abstract"
    """Comma-separated parts of each paper to embed: title, abstract, venue, authors."""

    as_: str | None = None
    """Compress the stored vectors: int8, binary or truncate:N (keep the first N dimensions)."""

    dtype: str = "float32"
    """Data type of the vectors: float32 or float16."""

    precision: str = "float32"
    """Numerical precision of the computation: float32, bfloat16, float16 or, on GPUs such as the H100, float8."""

    pooling: str | None = None
    """Pooling: cls (first token), mean (of tokens), layers (of tokens and layers) or mix (with learned layer weights); default: the model's own."""

    max_tokens: int | None = None
    """Maximum number of tokens per text; default: the model's own, which may be another one with --sentences."""

    runtime: str = "auto"
    """Runtime of the model: auto (the fastest here), torch, openvino or int8 (8-bit arithmetic)."""

    compiled: Annotated[bool | None, Flag("--compiled/--no-compiled")] = None
    """With --runtime torch on a GPU: compile the layers first, for ten seconds; default: only where a run is long enough."""

    device: str = "auto"
    """Device: cpu, cuda, auto, cuda:all, or a list such as "cuda:0,cuda:1"."""

    batch_tokens: int | None = None
    """Tokens per batch; default: depends on the device."""

    shard: int | None = None
    """Number of papers per shard; default: 16384."""

    tokens: Path | None = None
    """Folder in which to cache the tokenized texts for later runs."""

    on: On = ""


def embed(args: EmbedArguments) -> None:
    """Compute the vectors of a corpus's papers; an interrupted run resumes."""
    from citeweave.encoders.embed import SHARD, EmbeddingOptions
    from citeweave.encoders.encoder import own_reading
    from citeweave.encoders.paper_texts import FULL_TEXT_SHARD
    from citeweave.encoders.runtimes import Runtime
    from citeweave.encoders.shards import EncoderSpec
    from citeweave.remote.ray_executor import open_executor

    _check_kind(args)
    opened = cw.Corpus.open(args.corpus)
    usual = FULL_TEXT_SHARD if args.full_text else SHARD
    recipe = cw.TextRecipe(parts=tuple(part.strip() for part in args.text.split(",")))
    options = EmbeddingOptions(recipe, args.dtype, usual if args.shard is None else args.shard, args.tokens)
    settings = {name: getattr(args, name) for name in ("pooling", "max_tokens", "batch_tokens")}
    settings["dtype"] = args.precision
    if args.sentences and args.max_tokens is None:
        settings["max_tokens"] = own_reading(args.model).max_tokens or None
    with open_executor(args.on, args.reporter) as executor:
        if executor is None:
            runtime = replace(Runtime.parse(args.runtime), compiled=_compiles(args, len(opened)))
            encoders = _load_encoders(args.model, args.aspect, args.device, runtime, settings)
        else:
            spec = EncoderSpec(args.model, args.aspect, args.device, args.runtime, bool(args.compiled), settings)
            encoders, remote = _load_encoders_for(executor, spec)
            options = replace(options, remote=remote)
        computed = encoders[0].runtime.label
        options = replace(options, precision=args.precision if computed == "torch" else computed)
        vectors = _embed(args, opened, encoders, options)
    metadata = dict(vectors.manifest.facts if vectors.manifest else {})
    metadata |= {"papers": len(opened), "output": str(args.output), "runtime": computed}
    args.print(metadata, _embed_text(args.output, metadata))


def _compiles(args: EmbedArguments, papers: int) -> bool:
    """Return whether the layers are compiled: as the user says, else where the run is long and may be on a GPU."""
    from citeweave.encoders.network import pays_to_compile

    if args.compiled is not None or args.device == "cpu" or args.precision == "float32":
        return bool(args.compiled)
    return pays_to_compile("embedding", papers * TOKENS_PER_PAPER, args.reporter)


def _load_encoders(model: str, aspect: str, device: str, runtime: Runtime, settings: dict[str, Any]) -> list[Any]:
    from citeweave.encoders.aspects import load_aspect_encoder
    from citeweave.encoders.embed import device_names

    return [
        load_aspect_encoder(model, aspect, device=name, runtime=runtime, **settings) for name in device_names(device)
    ]


def _load_encoders_for(executor: RayExecutor, spec: EncoderSpec) -> tuple[list[Any], RemoteShards]:
    """Load the encoder that describes the vectors, and describe how the executor's workers load theirs."""
    from citeweave.encoders.encoder import BATCH_TOKENS
    from citeweave.encoders.network import FLOAT8
    from citeweave.encoders.runtimes import Runtime, revision_in
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
    if gpu and settings["dtype"] == FLOAT8:
        encoders = [replace(one, revision=revision_in(one.revision, Runtime("torch"), FLOAT8)) for one in encoders]
    label = encoders[0].runtime.label  # workers do not choose a runtime themselves
    spec = replace(spec, device="cuda" if gpu else "cpu", settings=settings, runtime=label)
    return encoders, RemoteShards(executor, spec)


def _check_kind(args: EmbedArguments) -> None:
    """Refuse command-line options of `embed` that do not go together, before a model is loaded."""
    from citeweave.vectors.compressed import parse_kind

    if args.sentences + (args.full_text is not None) + bool(args.as_) > 1:
        raise UserError("--sentences, --full-text and --as exclude each other; leave out all but one")
    if args.keep_chunks and args.full_text is None:
        raise UserError("--keep-chunks is about the chunks of --full-text; give the file, or leave it out")
    if args.as_:
        parse_kind(args.as_)
    if args.aspect and (args.sentences or args.full_text):
        raise UserError(
            f"--aspect is {args.aspect!r}; aspect spaces are for papers: leave out --sentences and --full-text"
        )


def _embed(args: EmbedArguments, corpus: Corpus, encoders: list[Any], options: EmbeddingOptions) -> Any:
    """Make the kind of vectors that the options of `embed` ask for."""
    from citeweave.encoders.embed import embed_compressed, embed_full_text, embed_sentences
    from citeweave.encoders.paper_texts import FullText

    if args.sentences:
        return embed_sentences(corpus, encoders, args.output, options, **args.writing)
    if args.as_:
        return embed_compressed(corpus, encoders, args.output, args.as_, options, **args.writing)
    if args.full_text is None:
        return cw.embed_papers(corpus, encoders, args.output, options, **args.writing)
    full = FullText.index(args.full_text, corpus)
    count = full.tally.counts["full texts"]
    args.reporter.say(f"{args.full_text}: {count.kept:,} of {count.read:,} full texts are of papers of the corpus")
    return embed_full_text(corpus, encoders, args.output, full, options, several=args.keep_chunks, **args.writing)


def _embed_text(folder: Path, metadata: dict[str, Any]) -> str:
    rows = [("papers", metadata["papers"]), ("vectors", metadata["rows"])]
    rows += [row for count in metadata["records"].values() for row in rejected_rows(count)]
    rows += [(f"  {what}", number) for what, number in metadata["notes"].items()]
    if "out_of_memory" in metadata:
        rows.append(("batches reduced after running out of memory", metadata["out_of_memory"]))
    return f"{folder}: {metadata['dimension']} dimensions ({metadata['dtype']}) of {metadata['model']}, computed by {metadata['runtime']}\n{table(rows)}"
