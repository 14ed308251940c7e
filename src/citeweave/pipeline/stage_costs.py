"""The estimated work of every stage of a recipe: a measured constant times a count that follows from the sizes.

    import          records of citations, records of papers, bytes of text
    graph           citations, sorted twice
    node vectors    citations x dimension x steps, gathered row by row; papers x dimension
    mining          anchors x papers met over two hops; anchors x pool x dimension for ranks; selected papers
    token store     tokens
    training        texts read in all steps, three times a forward pass
    embedding       tokens x operations per token, and tokenizing
    index           papers, their words and sentences
    evaluation      papers of the suites, by the start model and by each trained one

Constants and the arithmetic of networks are in `cost_constants.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from citeweave.graph.adjacency import RELEASE_AFTER
from citeweave.graph.signals import TWO_HOPS
from citeweave.pipeline.cost import (
    StageWork,
    count_picks,
    count_sample_groups,
    count_triplets,
    deepest_rank,
    plan_panel,
    required_memory,
    two_hop_signals,
    vector_searches,
)
from citeweave.pipeline.cost_constants import (
    BYTES_PER_TOKEN,
    GIB,
    NetworkShape,
    embed_seconds,
    get_constant,
    train_bytes,
    train_seconds,
)

if TYPE_CHECKING:
    from citeweave.graph.options import GraphOptions
    from citeweave.mining.rules import MiningRules
    from citeweave.pipeline.cost import Sizes
    from citeweave.training.options import TrainingOptions


Costs = tuple[float, float, float, tuple[str, ...]]
"""CPU seconds, bytes gathered, bytes held in memory, names of the constants used."""

GRAPH_MEMORY, MINING_MEMORY = 1 << 30, 512 << 20
"""Default --memory of `citeweave graph` and `citeweave mine`."""


def import_work(sizes: Sizes, cores: int) -> StageWork:
    """Estimate the work of importing: reading records or a table of edges, merging, writing columns."""
    text_bytes = sizes.texts * sizes.tokens * BYTES_PER_TOKEN
    memory = get_constant("import.memory") + get_constant("import.memory.worker") * cores
    size = f"{sizes.citations:,} citations, {sizes.papers:,} papers"
    fits_by = "import --memory 128MB and fewer --workers hold less at a time"
    if sizes.only_edges:
        return StageWork(
            "import",
            f"{size}, a table of edges",
            cpu=get_constant("import.edge") * sizes.citations,
            parallel=get_constant("import.edge.parallel"),
            memory=memory + get_constant("import.memory.paper") * sizes.papers,
            disk=get_constant("import.disk.edge") * sizes.citations,
            constants=("import.edge", "import.disk.edge"),
            fits_by=fits_by,
        )
    names = ("import.citation", "import.paper", "import.text")
    amounts = (sizes.citations, sizes.papers, text_bytes)
    return StageWork(
        "import",
        f"{size}, {sizes.texts:,} with text",
        cpu=sum(get_constant(name) * amount for name, amount in zip(names, amounts, strict=True)),
        parallel=get_constant("import.parallel"),
        memory=memory + get_constant("import.memory.paper") * sizes.papers,
        disk=get_constant("import.disk.citation") * sizes.citations
        + get_constant("import.disk.paper") * sizes.papers
        + 1.02 * text_bytes,
        constants=names,
        fits_by=fits_by,
    )


def graph_work(sizes: Sizes, memory: int = GRAPH_MEMORY) -> StageWork:
    """Estimate the work of building the graph: citations sorted as sparse rows in both directions within `memory` bytes."""
    names = ("graph.citation",)
    return StageWork(
        "graph",
        f"{sizes.citations:,} citations, both directions",
        cpu=get_constant(names[0]) * sizes.citations,
        parallel=get_constant("graph.parallel"),
        memory=get_constant("process.memory") + min(memory, 24 * sizes.citations) + 24 * sizes.papers,
        disk=get_constant("graph.disk.citation") * sizes.citations + 16 * sizes.papers,
        constants=(*names, "graph.disk.citation"),
        fits_by="--memory sorts in narrower ranges",
    )


def vectors_work(sizes: Sizes, options: GraphOptions, parts: Sequence[str] = ()) -> list[StageWork]:
    """Estimate the work of node vectors, of the union graph if there is one, and for each of `parts` intents."""
    if options.signal == "citations":
        union, entries = [], float(sizes.citations * (2 if options.direction == "both" else 1))
    else:
        signals = [part.partition(":")[0] for part in options.signal.split(",")]
        entries, counting = _union_work(sizes, signals, options.strongest)
        union = [counting]
    per_part = [
        replace(_node_vectors_work(sizes, options, entries / len(parts)), name=f"node vectors, {part}")
        for part in parts
    ]
    return [*union, _node_vectors_work(sizes, options, entries), *per_part]


def _union_work(sizes: Sizes, signals: list[str], strongest: int) -> tuple[float, StageWork]:
    """Return the entries of a union graph's matrix, and the work of counting them."""
    entries = cpu = 0.0
    for signal in signals:
        paths = sizes.paths_of(signal) if signal in TWO_HOPS else 2 * sizes.references
        entries += 2 * sizes.papers * min(paths, strongest or paths)
        cpu += get_constant("relatives.path") * sizes.papers * paths
    cpu += get_constant("union.entry") * entries
    work = StageWork(
        "relatives",
        f"{', '.join(signals)} of {sizes.papers:,} papers",
        cpu=cpu,
        parallel=get_constant("relatives.parallel"),
        memory=get_constant("process.memory") + 20 * entries,
        constants=("relatives.path", "union.entry"),
        fits_by="--set graph.strongest=25 keeps fewer related papers per paper",
    )
    return entries, work


def _node_vectors_work(sizes: Sizes, options: GraphOptions, entries: float) -> StageWork:
    vectors = options.vectors
    numbers, method = float(sizes.papers * vectors.dimension), vectors.method
    result = numbers * (2 if options.dtype == "float16" else 4)
    cpu, moved, held, names = _METHODS[method](sizes.papers, options, entries)
    required = required_memory(sizes.papers, options)
    memory = f", --memory {-(-required // GIB)}GB" if required > vectors.memory else ""
    return StageWork(
        "node vectors",
        f"{method}, {vectors.dimension} dimensions, {entries:,.0f} entries{memory}",
        cpu=cpu,
        parallel=get_constant(f"{method}.parallel"),
        moved=moved,
        memory=get_constant("process.memory") + held + 4 * min(entries, RELEASE_AFTER) + 16 * sizes.papers,
        disk=result + get_constant("vectors.disk.id") * sizes.papers,
        constants=names,
        fits_by=_FITS_BY[method],
    )


_FITS_BY = {
    "fastrp": "a smaller --memory walks in narrower panels, --dim 128 and --dtype float16 need less",
    "prone": "method fastrp never holds its result in memory; --dim 128 needs less",
    "edges": "method fastrp never holds its result in memory; --dim 128 needs less",
}


def _fastrp(papers: int, options: GraphOptions, entries: float) -> Costs:
    """Estimate FastRP: walks in column panels that fit the memory, results on disk."""
    vectors, panel = options.vectors, plan_panel(papers, options)
    walks = len(vectors.fastrp.weights)
    gathered = entries * vectors.dimension * walks
    cpu = (
        get_constant(panel.gather_constant) * gathered
        + get_constant("fastrp.number") * papers * vectors.dimension * walks
    )
    return cpu, 2.0 * gathered, panel.held, (panel.gather_constant, "fastrp.number")


def _prone(papers: int, options: GraphOptions, entries: float) -> Costs:
    """Estimate ProNE: the result and two matrices of the same size, or what the memory allows of them."""
    vectors = options.vectors
    numbers = float(papers * vectors.dimension)
    cpu = get_constant("prone.gather") * entries * vectors.dimension + get_constant("prone.number") * numbers
    held = 4 * numbers + min(8 * numbers, float(vectors.memory))
    return cpu, 0.0, held, ("prone.gather", "prone.number")


def _edges(papers: int, options: GraphOptions, entries: float) -> Costs:
    """Estimate the edge model: vectors and the optimizer's state."""
    vectors = options.vectors
    cpu = get_constant("edges.number") * entries / 2 * vectors.dimension * vectors.edges.epochs
    return cpu, 0.0, 8.0 * papers * vectors.dimension, ("edges.number",)


_METHODS = {"fastrp": _fastrp, "prone": _prone, "edges": _edges}


def mining_work(sizes: Sizes, rules: MiningRules, dimension: int, anchors: int) -> list[StageWork]:
    """Estimate the work of mining: counting related papers, searching bands, drawing samples."""
    works = []
    if signals := two_hop_signals(rules):
        works.append(_relatives_work(sizes, signals, anchors))
    if rules.from_contexts:
        works.append(_pairs_work(sizes))
    if searches := vector_searches(rules):
        queries = anchors * len(searches)
        size = f"{anchors:,} anchors among {sizes.texts:,} papers, {dimension} dimensions"
        works.append(_bands_work(sizes.texts, dimension, queries, queries * deepest_rank(rules, sizes.texts), size))
    return [*works, _samples_work(sizes, anchors * count_sample_groups(rules), count_picks(rules))]


def _relatives_work(sizes: Sizes, signals: list[str], anchors: int) -> StageWork:
    paths = anchors * sum(sizes.paths_of(signal) for signal in signals)
    held = min(MINING_MEMORY, 12 * paths) + 8 * sizes.papers + 8 * sizes.citations
    return StageWork(
        "relatives",
        f"{', '.join(signals)} of {anchors:,} anchors",
        cpu=get_constant("relatives.path") * paths,
        parallel=get_constant("relatives.parallel"),
        memory=get_constant("process.memory") + held,
        constants=("relatives.path",),
        fits_by="mine --memory 256MB and fewer --workers, or mine --on ray",
    )


def _pairs_work(sizes: Sizes) -> StageWork:
    return StageWork(
        "pairs",
        f"{sizes.contexts:,} citing sentences",
        cpu=get_constant("contexts.sentence") * sizes.contexts,
        parallel=0.0,
        memory=get_constant("process.memory") + 64.0 * sizes.contexts,
        constants=("contexts.sentence",),
    )


def _bands_work(pool: int, dimension: int, queries: int, ranks: int, size: str) -> StageWork:
    """Estimate band searches: every query is compared with the whole pool; `ranks` are kept in all."""
    pairs = queries * pool
    return StageWork(
        "bands",
        size,
        cpu=(get_constant("bands.pair") + get_constant("bands.number") * dimension) * pairs
        + get_constant("bands.rank") * ranks,
        parallel=get_constant("bands.parallel"),
        on_gpu=get_constant("bands.number.gpu") * dimension * pairs,
        gpus=1,
        memory=get_constant("process.memory") + min(MINING_MEMORY, 8 * pairs) + 8 * pool * dimension,
        gpu_memory=4 * pool * dimension + (1 << 30),
        constants=("bands.pair", "bands.number", "bands.rank", "bands.number.gpu"),
        fits_by="mine --memory 256MB searches in smaller blocks, mine --on ray across several machines",
    )


def _samples_work(sizes: Sizes, groups: int, each: int) -> StageWork:
    picks = groups * (each + 1)
    return StageWork(
        "samples",
        f"{groups:,} samples of {each} papers",
        cpu=get_constant("samples.pick") * picks,
        parallel=get_constant("samples.parallel"),
        memory=get_constant("process.memory") + min(MINING_MEMORY, 50 * picks) + 8 * sizes.papers + 8 * sizes.citations,
        disk=get_constant("samples.disk.pick") * picks,
        constants=("samples.pick",),
        fits_by="mine --memory 256MB",
    )


# --- stages with a network: tokens, training, embedding, index, evaluation ---

SENTENCES, SENTENCE_TOKENS = 8, 30
"""Approximate sentences per paper, including those that cite it, and tokens per sentence."""

SUITE_PAPERS = 25_000
"""Approximate maximum of papers in the suite of a corpus."""

MICRO_TOKENS = {"cpu": 16_384, "cuda": 65_536}
"""Device -> tokens encoded at a time in training where the recipe does not say."""


def tokens_work(texts: float, tokens: float) -> StageWork:
    """Estimate the work of tokenizing every text once."""
    return StageWork(
        "token store",
        f"{texts:,.0f} texts of {tokens:.0f} tokens",
        cpu=get_constant("tokens.token") * texts * tokens,
        parallel=get_constant("tokens.parallel"),
        memory=get_constant("process.memory") + get_constant("torch.memory"),
        disk=(2 * tokens + 8) * texts,
        constants=("tokens.token",),
    )


def training_work(
    shape: NetworkShape, training: TrainingOptions, rules: MiningRules, anchors: int, tokens: float, *, gpu: bool
) -> StageWork:
    """Estimate the work of training one model on mined samples."""
    picks, groups = count_picks(rules), anchors * count_sample_groups(rules)
    units = groups if training.unit == "groups" else groups * count_triplets(rules)
    steps = training.steps or max(1, round(units * training.share * training.epochs / training.batch))
    texts = steps * training.batch / max(1, units) * groups * (1 + picks)
    trained = 1.0 if training.parts == "all" else 0.001
    micro = training.micro_tokens or MICRO_TOKENS["cuda" if gpu else "cpu"]
    in_step = int(max(1, min(micro, texts / steps * tokens)))
    if training.parts == "heads":
        cpu, on_gpu = (embed_seconds(shape, min(texts, anchors), tokens, device) for device in ("cpu", "cuda"))
    else:
        cpu, on_gpu = (train_seconds(shape, texts, tokens, device) for device in ("cpu", "cuda"))
    return StageWork(
        "training",
        f"{steps:,} steps of {training.batch} {training.unit}, {texts:,.0f} texts of {tokens:.0f} tokens",
        cpu=cpu,
        parallel=get_constant("network.parallel"),
        on_gpu=on_gpu,
        memory=get_constant("process.memory")
        + get_constant("torch.memory")
        + (4 * shape.parameters if gpu else train_bytes(shape, in_step, tokens, half=False, trained=trained)),
        gpu_memory=train_bytes(shape, in_step, tokens, half=True, trained=trained),
        disk=4.0 * shape.parameters,
        constants=("network.core", "network.gpu.training"),
        fits_by="--set training.micro_tokens=8192 encodes fewer at a time, training.parts=lora keeps fewer moments; "
        "across several GPUs: torchrun with FSDP",
    )


def embedding_work(shape: NetworkShape, sizes: Sizes, tokens: float) -> StageWork:
    """Estimate the work of embedding a corpus, one float32 vector per paper."""
    return StageWork(
        "embedding",
        f"{sizes.texts:,} papers of {tokens:.0f} tokens",
        cpu=embed_seconds(shape, sizes.texts, tokens, "cpu") + get_constant("tokens.token") * sizes.texts * tokens,
        parallel=get_constant("network.parallel"),
        on_gpu=embed_seconds(shape, sizes.texts, tokens, "cuda"),
        memory=get_constant("process.memory")
        + get_constant("torch.memory")
        + 8.0 * shape.parameters
        + 2 * 8192 * 4 * shape.hidden,
        gpu_memory=4.0 * shape.parameters + 2e9,
        disk=(4 * shape.hidden + get_constant("vectors.disk.id")) * sizes.texts,
        constants=("network.core", "network.gpu.embedding", "tokens.token"),
        fits_by="embed --batch-tokens 4096, --dtype float16 halves the disk; embed --on ray across several machines",
    )


def sentences_work(shape: NetworkShape, sizes: Sizes, tokens: float) -> StageWork:
    """Estimate the work of sentence vectors, which cost as much as one vector per paper."""
    number = sizes.texts * get_constant("sentences.paper")
    return StageWork(
        "sentence vectors",
        f"{number:,.0f} sentences of {sizes.texts:,} papers",
        cpu=embed_seconds(shape, sizes.texts, tokens, "cpu") + get_constant("tokens.token") * sizes.texts * tokens,
        parallel=get_constant("network.parallel"),
        on_gpu=embed_seconds(shape, sizes.texts, tokens, "cuda"),
        memory=get_constant("process.memory")
        + get_constant("torch.memory")
        + 8.0 * shape.parameters
        + 2 * 8192 * 4 * shape.hidden * get_constant("sentences.paper"),
        gpu_memory=4.0 * shape.parameters + 2e9,
        disk=4 * shape.hidden * number + get_constant("vectors.disk.id") * sizes.texts,
        constants=("network.core", "network.gpu.embedding", "sentences.paper"),
        fits_by="embed --sentences --shard 1024, --dtype float16; embed --on ray",
    )


def aligning_work(shape: NetworkShape, anchors: int) -> StageWork:
    """Estimate the work of aligning sentences with a frozen encoder."""
    number = anchors * SENTENCES
    cpu, on_gpu = (embed_seconds(shape, number, SENTENCE_TOKENS, device) for device in ("cpu", "cuda"))
    return StageWork(
        "alignment",
        f"{number:,} sentences",
        cpu=cpu,
        parallel=get_constant("network.parallel"),
        on_gpu=on_gpu,
        memory=get_constant("process.memory") + get_constant("torch.memory") + 8.0 * shape.parameters,
        gpu_memory=4.0 * shape.parameters + 2e9,
        constants=("network.core", "network.gpu.embedding"),
    )


def intents_work(contexts: int) -> StageWork:
    """Estimate the work of classifying the intents of all citing sentences."""
    return StageWork(
        "intents",
        f"{contexts:,} citing sentences",
        cpu=get_constant("intents.sentence") * contexts,
        parallel=get_constant("network.parallel"),
        on_gpu=get_constant("intents.sentence.gpu") * contexts,
        memory=get_constant("process.memory") + get_constant("torch.memory"),
        disk=2.0 * contexts,
        constants=("intents.sentence", "intents.sentence.gpu"),
    )


def index_work(shape: NetworkShape, sizes: Sizes, tokens: float, *, sentences: bool) -> StageWork:
    """Estimate the work of building a search index: words, existing vectors, and sentence vectors if wanted."""
    words, number = sizes.texts * tokens, sizes.texts * get_constant("sentences.paper") * sentences
    vectors = (sizes.texts + number) * shape.hidden
    return StageWork(
        "index",
        f"{sizes.texts:,} papers with their words, vectors precomputed" + (", with sentences" if sentences else ""),
        cpu=get_constant("index.token") * words + get_constant("index.number") * vectors,
        parallel=get_constant("index.parallel"),
        memory=get_constant("process.memory")
        + get_constant("torch.memory")
        + get_constant("index.memory.paper") * sizes.texts
        + get_constant("index.memory.number") * vectors,
        disk=get_constant("index.disk.token") * words + 3.0 * vectors,
        constants=("index.token", "index.number", "index.disk.token"),
        fits_by="several indexes, each of a part of the corpus; or vectors in Milvus on other machines (docs/stores.md)",
    )


def evaluation_work(shape: NetworkShape, papers: int, tokens: float, models: int) -> StageWork:
    """Estimate the work of evaluating some models on a suite of so many papers."""
    papers *= models
    cpu, on_gpu = (embed_seconds(shape, papers, tokens, device) for device in ("cpu", "cuda"))
    return StageWork(
        "evaluation",
        f"{papers:,} papers read, by {models} models",
        cpu=cpu + get_constant("evaluation.paper") * papers,
        parallel=get_constant("network.parallel"),
        on_gpu=on_gpu + get_constant("evaluation.paper") * papers,
        memory=get_constant("process.memory")
        + get_constant("torch.memory")
        + 8.0 * shape.parameters
        + 8.0 * papers * shape.hidden,
        gpu_memory=4.0 * shape.parameters + 2e9,
        disk=4.0 * papers * shape.hidden,
        constants=("network.core", "network.gpu.embedding", "evaluation.paper"),
    )
