"""What import, graph, node vectors and mining cost: every figure is a constant times a number that the sizes give.

    import          records of citations, records of papers, bytes of text
    graph           citations, sorted twice
    node vectors    citations x dimension x steps, gathered row by row; papers x dimension (`walking.py`)
    mining          anchors x papers met over two hops; anchors x pool x dimension for ranks; picks

Constants: `constants.py`.

What tokens, training, embedding, the index and reports cost: mostly arithmetic of the network, by a rate a device.

    token store     tokens
    training        texts read in all steps, three times a forward pass
    embedding       tokens x operations a token; tokenizing beside it
    index           papers, their words and sentences
    evaluation      papers of the suites, by the start model and by each trained one

Constants: `constants.py`; the arithmetic: `networks.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from citeweave.graph.adjacency import RELEASE_AFTER
from citeweave.graph.signals import TWO_HOPS
from citeweave.pipeline.cost import (
    StageWork,
    deepest_of,
    groups_of,
    hops_of,
    memory_asked,
    panel_of,
    picks_of,
    searches_of,
    triplets_of,
)
from citeweave.pipeline.cost_constants import (
    BYTES_PER_TOKEN,
    GIB,
    NetworkShape,
    embed_seconds,
    train_bytes,
    train_seconds,
    value,
)

if TYPE_CHECKING:
    from citeweave.graph.build import GraphOptions
    from citeweave.mining.rules import MiningRules
    from citeweave.pipeline.cost import Sizes
    from citeweave.training.options import TrainingOptions


Costs = tuple[float, float, float, tuple[str, ...]]
"""CPU seconds, bytes gathered, bytes held, names of constants."""

GRAPH_MEMORY, MINING_MEMORY = 1 << 30, 512 << 20
"""What `citeweave graph` and `citeweave mine` may hold, by default."""


def import_work(sizes: Sizes, cores: int) -> StageWork:
    """Estimate the work of importing: reading records or a table of edges, merging, writing columns."""
    text_bytes = sizes.texts * sizes.tokens * BYTES_PER_TOKEN
    memory = value("import.memory") + value("import.memory.worker") * cores
    size = f"{sizes.citations:,} citations, {sizes.papers:,} papers"
    fits_by = "import --memory 128MB and fewer --workers hold less at a time"
    if sizes.only_edges:
        return StageWork(
            "import",
            f"{size}, a table of edges",
            cpu=value("import.edge") * sizes.citations,
            parallel=value("import.edge.parallel"),
            memory=memory + value("import.memory.paper") * sizes.papers,
            disk=value("import.disk.edge") * sizes.citations,
            constants=("import.edge", "import.disk.edge"),
            fits_by=fits_by,
        )
    names = ("import.citation", "import.paper", "import.text")
    amounts = (sizes.citations, sizes.papers, text_bytes)
    return StageWork(
        "import",
        f"{size}, {sizes.texts:,} with text",
        cpu=sum(value(name) * amount for name, amount in zip(names, amounts, strict=True)),
        parallel=value("import.parallel"),
        memory=memory + value("import.memory.paper") * sizes.papers,
        disk=value("import.disk.citation") * sizes.citations
        + value("import.disk.paper") * sizes.papers
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
        cpu=value(names[0]) * sizes.citations,
        parallel=value("graph.parallel"),
        memory=value("process.memory") + min(memory, 24 * sizes.citations) + 24 * sizes.papers,
        disk=value("graph.disk.citation") * sizes.citations + 16 * sizes.papers,
        constants=(*names, "graph.disk.citation"),
        fits_by="--memory sorts in narrower ranges",
    )


def vectors_work(sizes: Sizes, options: GraphOptions, parts: Sequence[str] = ()) -> list[StageWork]:
    """Estimate the work of node vectors, of the union graph if there is one, and for each of `parts` intents."""
    if options.signal == "citations":
        first, entries = [], float(sizes.citations * (2 if options.direction == "both" else 1))
    else:
        entries, union = _union(
            sizes, [part.partition(":")[0] for part in options.signal.split(",")], options.strongest
        )
        first = [union]
    apart = [replace(_embedding(sizes, options, entries / len(parts)), name=f"node vectors, {part}") for part in parts]
    return [*first, _embedding(sizes, options, entries), *apart]


def _union(sizes: Sizes, signals: list[str], strongest: int) -> tuple[float, StageWork]:
    """Return the entries of a union graph's matrix, and the work of counting them."""
    entries = 0.0
    cpu = 0.0
    for signal in signals:
        paths = sizes.paths_of(signal) if signal in TWO_HOPS else 2 * sizes.references
        entries += 2 * sizes.papers * min(paths, strongest or paths)
        cpu += value("relatives.path") * sizes.papers * paths
    cpu += value("union.entry") * entries
    work = StageWork(
        "relatives",
        f"{', '.join(signals)} of {sizes.papers:,} papers",
        cpu=cpu,
        parallel=value("relatives.parallel"),
        memory=value("process.memory") + 20 * entries,
        constants=("relatives.path", "union.entry"),
        fits_by="--set graph.strongest=25 keeps fewer relatives of a paper",
    )
    return entries, work


def _embedding(sizes: Sizes, options: GraphOptions, entries: float) -> StageWork:
    chosen = options.vectors
    numbers, method = float(sizes.papers * chosen.dimension), chosen.method
    result = numbers * (2 if options.dtype == "float16" else 4)
    cpu, moved, held, names = _METHODS[method](sizes.papers, options, entries)
    asked = memory_asked(sizes.papers, options)
    given = f", --memory {-(-asked // GIB)}GB" if asked > chosen.memory else ""
    return StageWork(
        "node vectors",
        f"{method}, {chosen.dimension} numbers, {entries:,.0f} entries{given}",
        cpu=cpu,
        parallel=value(f"{method}.parallel"),
        moved=moved,
        memory=value("process.memory") + held + 4 * min(entries, RELEASE_AFTER) + 16 * sizes.papers,
        disk=result + value("vectors.disk.id") * sizes.papers,
        constants=names,
        fits_by=_FITS_BY[method],
    )


_FITS_BY = {
    "fastrp": "less --memory walks in narrower panels, --dim 128 and --dtype float16 are smaller",
    "prone": "method fastrp never holds its result; --dim 128 is smaller",
    "edges": "method fastrp never holds its result; --dim 128 is smaller",
}


def _fastrp(papers: int, options: GraphOptions, entries: float) -> Costs:
    """Estimate FastRP: walks in column panels that fit the memory, results on disk."""
    chosen, panel = options.vectors, panel_of(papers, options)
    walks = len(chosen.fastrp.weights)
    gathered = entries * chosen.dimension * walks
    cpu = value(panel.gathered_at) * gathered + value("fastrp.number") * papers * chosen.dimension * walks
    return cpu, 2.0 * gathered, panel.held, (panel.gathered_at, "fastrp.number")


def _prone(papers: int, options: GraphOptions, entries: float) -> Costs:
    """Estimate ProNE: the result and two matrices of the same size, or what the memory allows of them."""
    chosen = options.vectors
    numbers = float(papers * chosen.dimension)
    cpu = value("prone.gather") * entries * chosen.dimension + value("prone.number") * numbers
    held = 4 * numbers + min(8 * numbers, float(chosen.memory))
    return cpu, 0.0, held, ("prone.gather", "prone.number")


def _edges(papers: int, options: GraphOptions, entries: float) -> Costs:
    """Estimate the edge model: vectors and the optimizer's state."""
    chosen = options.vectors
    cpu = value("edges.number") * entries / 2 * chosen.dimension * chosen.edges.epochs
    return cpu, 0.0, 8.0 * papers * chosen.dimension, ("edges.number",)


_METHODS = {"fastrp": _fastrp, "prone": _prone, "edges": _edges}


def mining_work(sizes: Sizes, rules: MiningRules, dimension: int, anchors: int) -> list[StageWork]:
    """Estimate the work of mining: counting related papers, searching bands, drawing samples."""
    found = []
    if signals := hops_of(rules):
        found.append(_relatives_work(sizes, signals, anchors))
    if rules.from_contexts:
        found.append(_pairs_work(sizes))
    if searches := searches_of(rules):
        asked = anchors * len(searches)
        about = f"{anchors:,} anchors among {sizes.texts:,} papers, {dimension} numbers"
        found.append(_bands_work(sizes.texts, dimension, asked, asked * deepest_of(rules, sizes.texts), about))
    return [*found, _samples_work(sizes, anchors * groups_of(rules), picks_of(rules))]


def _relatives_work(sizes: Sizes, signals: list[str], anchors: int) -> StageWork:
    paths = anchors * sum(sizes.paths_of(signal) for signal in signals)
    held = min(MINING_MEMORY, 12 * paths) + 8 * sizes.papers + 8 * sizes.citations
    return StageWork(
        "relatives",
        f"{', '.join(signals)} of {anchors:,} anchors",
        cpu=value("relatives.path") * paths,
        parallel=value("relatives.parallel"),
        memory=value("process.memory") + held,
        constants=("relatives.path",),
        fits_by="mine --memory 256MB and fewer --workers, or mine --on ray",
    )


def _pairs_work(sizes: Sizes) -> StageWork:
    return StageWork(
        "pairs",
        f"{sizes.contexts:,} citing sentences",
        cpu=value("contexts.sentence") * sizes.contexts,
        parallel=0.0,
        memory=value("process.memory") + 64.0 * sizes.contexts,
        constants=("contexts.sentence",),
    )


def _bands_work(pool: int, dimension: int, asked: int, kept: int, about: str) -> StageWork:
    """Estimate band searches: every query is compared with the whole pool; `kept` are the ranks to keep."""
    pairs = asked * pool
    return StageWork(
        "bands",
        about,
        cpu=(value("bands.pair") + value("bands.number") * dimension) * pairs + value("bands.rank") * kept,
        parallel=value("bands.parallel"),
        on_gpu=value("bands.number.gpu") * dimension * pairs,
        gpus=1,
        memory=value("process.memory") + min(MINING_MEMORY, 8 * pairs) + 8 * pool * dimension,
        gpu_memory=4 * pool * dimension + (1 << 30),
        constants=("bands.pair", "bands.number", "bands.rank", "bands.number.gpu"),
        fits_by="mine --memory 256MB searches in smaller blocks, mine --on ray over several machines",
    )


def _samples_work(sizes: Sizes, groups: int, each: int) -> StageWork:
    picks = groups * (each + 1)
    return StageWork(
        "samples",
        f"{groups:,} samples of {each} papers",
        cpu=value("samples.pick") * picks,
        parallel=value("samples.parallel"),
        memory=value("process.memory") + min(MINING_MEMORY, 50 * picks) + 8 * sizes.papers + 8 * sizes.citations,
        disk=value("samples.disk.pick") * picks,
        constants=("samples.pick",),
        fits_by="mine --memory 256MB",
    )


# What tokens, training, embedding, the index and reports cost: mostly arithmetic of the network, by a rate a device.

SENTENCES, SENTENCE_TOKENS = 8, 30
"""Sentences of a paper, those that cite it counted, and tokens of one; more or less."""

SUITE_PAPERS = 25_000
"""Papers that the suite of a corpus asks about, at most, more or less."""

MICRO_TOKENS = {"cpu": 16_384, "cuda": 65_536}
"""Tokens encoded at a time where the recipe does not say, as in training."""


def tokens_work(texts: float, tokens: float) -> StageWork:
    """Estimate the work of tokenizing every text once."""
    return StageWork(
        "token store",
        f"{texts:,.0f} texts of {tokens:.0f} tokens",
        cpu=value("tokens.token") * texts * tokens,
        parallel=value("tokens.parallel"),
        memory=value("process.memory") + value("torch.memory"),
        disk=(2 * tokens + 8) * texts,
        constants=("tokens.token",),
    )


def training_work(
    shape: NetworkShape, training: TrainingOptions, rules: MiningRules, anchors: int, tokens: float, *, gpu: bool
) -> StageWork:
    """Estimate the work of training one model on mined samples."""
    picks, groups = picks_of(rules), anchors * groups_of(rules)
    units = groups if training.unit == "groups" else groups * triplets_of(rules)
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
        parallel=value("network.parallel"),
        on_gpu=on_gpu,
        memory=value("process.memory")
        + value("torch.memory")
        + (4 * shape.parameters if gpu else train_bytes(shape, in_step, tokens, half=False, trained=trained)),
        gpu_memory=train_bytes(shape, in_step, tokens, half=True, trained=trained),
        disk=4.0 * shape.parameters,
        constants=("network.core", "network.gpu.training"),
        fits_by="--set training.micro_tokens=8192 encodes fewer at a time, training.parts=lora keeps few moments; "
        "over several cards: torchrun with FSDP",
    )


def embedding_work(shape: NetworkShape, sizes: Sizes, tokens: float) -> StageWork:
    """Estimate the work of embedding a corpus, one float32 vector per paper."""
    return StageWork(
        "embedding",
        f"{sizes.texts:,} papers of {tokens:.0f} tokens",
        cpu=embed_seconds(shape, sizes.texts, tokens, "cpu") + value("tokens.token") * sizes.texts * tokens,
        parallel=value("network.parallel"),
        on_gpu=embed_seconds(shape, sizes.texts, tokens, "cuda"),
        memory=value("process.memory") + value("torch.memory") + 8.0 * shape.parameters + 2 * 8192 * 4 * shape.hidden,
        gpu_memory=4.0 * shape.parameters + 2e9,
        disk=(4 * shape.hidden + value("vectors.disk.id")) * sizes.texts,
        constants=("network.core", "network.gpu.embedding", "tokens.token"),
        fits_by="embed --batch-tokens 4096, --dtype float16 halves the disk; embed --on ray over several machines",
    )


def sentences_work(shape: NetworkShape, sizes: Sizes, tokens: float) -> StageWork:
    """Estimate the work of sentence vectors, which cost as much as one vector per paper."""
    number = sizes.texts * value("sentences.paper")
    return StageWork(
        "sentence vectors",
        f"{number:,.0f} sentences of {sizes.texts:,} papers",
        cpu=embed_seconds(shape, sizes.texts, tokens, "cpu") + value("tokens.token") * sizes.texts * tokens,
        parallel=value("network.parallel"),
        on_gpu=embed_seconds(shape, sizes.texts, tokens, "cuda"),
        memory=value("process.memory")
        + value("torch.memory")
        + 8.0 * shape.parameters
        + 2 * 8192 * 4 * shape.hidden * value("sentences.paper"),
        gpu_memory=4.0 * shape.parameters + 2e9,
        disk=4 * shape.hidden * number + value("vectors.disk.id") * sizes.texts,
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
        parallel=value("network.parallel"),
        on_gpu=on_gpu,
        memory=value("process.memory") + value("torch.memory") + 8.0 * shape.parameters,
        gpu_memory=4.0 * shape.parameters + 2e9,
        constants=("network.core", "network.gpu.embedding"),
    )


def intents_work(contexts: int) -> StageWork:
    """Estimate the work of classifying the intents of all citing sentences."""
    return StageWork(
        "intents",
        f"{contexts:,} citing sentences",
        cpu=value("intents.sentence") * contexts,
        parallel=value("network.parallel"),
        on_gpu=value("intents.sentence.gpu") * contexts,
        memory=value("process.memory") + value("torch.memory"),
        disk=2.0 * contexts,
        constants=("intents.sentence", "intents.sentence.gpu"),
    )


def index_work(shape: NetworkShape, sizes: Sizes, tokens: float, *, sentences: bool) -> StageWork:
    """Estimate the work of building a search index: words, existing vectors, and sentence vectors if wanted."""
    words, number = sizes.texts * tokens, sizes.texts * value("sentences.paper") * sentences
    vectors = (sizes.texts + number) * shape.hidden
    return StageWork(
        "index",
        f"{sizes.texts:,} papers with their words, vectors given" + (", with sentences" if sentences else ""),
        cpu=value("index.token") * words + value("index.number") * vectors,
        parallel=value("index.parallel"),
        memory=value("process.memory")
        + value("torch.memory")
        + value("index.memory.paper") * sizes.texts
        + value("index.memory.number") * vectors,
        disk=value("index.disk.token") * words + 3.0 * vectors,
        constants=("index.token", "index.number", "index.disk.token"),
        fits_by="several indexes, each of a part of the corpus; vectors in Milvus on other machines (docs/stores.md)",
    )


def evaluation_work(shape: NetworkShape, sizes: Sizes, tokens: float, models: int) -> StageWork:
    """Estimate the work of evaluating the start model and trained models on the corpus suite."""
    papers = min(sizes.texts, SUITE_PAPERS) * models
    cpu, on_gpu = (embed_seconds(shape, papers, tokens, device) for device in ("cpu", "cuda"))
    return StageWork(
        "evaluation",
        f"{papers:,} papers read, by {models} models",
        cpu=cpu + value("evaluation.paper") * papers,
        parallel=value("network.parallel"),
        on_gpu=on_gpu + value("evaluation.paper") * papers,
        memory=value("process.memory") + value("torch.memory") + 8.0 * shape.parameters + 8.0 * papers * shape.hidden,
        gpu_memory=4.0 * shape.parameters + 2e9,
        disk=4.0 * papers * shape.hidden,
        constants=("network.core", "network.gpu.embedding", "evaluation.paper"),
    )
