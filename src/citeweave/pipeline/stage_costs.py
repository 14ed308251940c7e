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

    >>> from citeweave.pipeline.cost_constants import parse_machine
    >>> work = StageWork("graph", "10 citations", cpu=8.0, parallel=0.5)
    >>> work.seconds(parse_machine("cpu:1")), work.seconds(parse_machine("cpu:4"))
    (8.0, 5.0)

The part of a stage that only one core can do does not get faster with more cores (Amdahl, 1967). How many papers and
triplets the rules of a recipe ask for is counted as if every rule found all that it asks for. Constants, sizes and the
arithmetic of networks are in `cost_constants.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from citeweave.graph.adjacency import RELEASE_AFTER
from citeweave.graph.signals import TWO_HOPS
from citeweave.pipeline.cost_constants import (
    BYTES_PER_TOKEN,
    GIB,
    Machine,
    NetworkShape,
    Sizes,
    embed_seconds,
    get_constant,
    plan_panel,
    required_memory,
    train_bytes,
    train_seconds,
)
from citeweave.pipeline.rule_counts import (
    count_picks,
    count_sample_groups,
    count_triplets,
    deepest_rank,
    expect_positives,
    two_hop_signals,
    vector_searches,
)
from citeweave.training.options import MICRO_TOKENS

if TYPE_CHECKING:
    from citeweave.graph.options import GraphOptions
    from citeweave.mining.rules import MiningRules
    from citeweave.training.options import TrainingOptions

GRAPH_MEMORY, MINING_MEMORY = 1 << 30, 512 << 20
"""Default --memory of `citeweave graph` and `citeweave mine`."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """The estimated work of one stage: seconds of a core or GPU, memory and disk, before a machine is known."""

    name: str
    size: str
    """What it works on, in words."""

    cpu: float = 0.0
    """Seconds of one core."""

    parallel: float = 1.0
    """Share of them that several cores can do at once."""

    moved: float = 0.0
    """Bytes gathered from scattered places in memory; they take at least as long as the memory bandwidth says."""

    on_gpu: float | None = None
    """Seconds of one H200 in place of the cores; None = it runs on cores only."""

    gpus: int = 0
    """Maximum number of GPUs at once; 0 = any number."""

    memory: float = 0.0
    """Bytes resident at the peak, including pages of mapped files that are read repeatedly."""

    gpu_memory: float = 0.0
    disk: float = 0.0
    """Bytes on disk when it is done."""

    constants: tuple[str, ...] = ()
    """Names of the constants that the estimate uses."""

    fits_by: str = ""
    """How to make it fit where memory is short."""

    def seconds(self, machine: Machine) -> float:
        """Estimate the wall-clock seconds of a stage on a machine."""
        if self.on_gpu is not None and machine.gpus:
            used = min(machine.gpus, self.gpus or machine.gpus)
            return self.on_gpu / (machine.gpu_speed * used / machine.gpus)
        cores = self.cpu * (1 - self.parallel + self.parallel / machine.cores)
        return max(cores, self.moved / machine.bandwidth)


# --- import, graph and node vectors ---


def _work(
    name: str,
    size: str,
    kind: str,
    amounts: Mapping[str, float],
    *,
    torch: bool = False,
    also: tuple[str, ...] = (),
    **more: Any,
) -> StageWork:
    """Return the work of a stage: constants times amounts on cores, of which the constant KIND.parallel is shared by all.

    `memory` is added to that of a process, with torch where it is needed; `also` names further constants.
    """
    process = get_constant("process.memory") + (get_constant("torch.memory") if torch else 0.0)
    return StageWork(
        name,
        size,
        cpu=sum(get_constant(constant) * amount for constant, amount in amounts.items()),
        parallel=get_constant(f"{kind}.parallel"),
        memory=process + more.pop("memory", 0.0),
        constants=(*amounts, *also),
        **more,
    )


def import_work(sizes: Sizes, cores: int) -> StageWork:
    """Estimate the work of importing: reading records or a table of edges, merging, writing columns."""
    text_bytes = sizes.texts * sizes.tokens * BYTES_PER_TOKEN
    held = get_constant("import.memory") + get_constant("import.memory.worker") * cores
    memory = held + get_constant("import.memory.paper") * sizes.papers
    fits_by = "import --memory 128MB and fewer --workers hold less at a time"
    size = f"{sizes.citations:,} citations, {sizes.papers:,} papers"
    if sizes.only_edges:
        kind, size = "import.edge", f"{size}, a table of edges"
        amounts: dict[str, float] = {"import.edge": sizes.citations}
        disk = get_constant("import.disk.edge") * sizes.citations
    else:
        kind, size = "import", f"{size}, {sizes.texts:,} with text"
        amounts = {"import.citation": sizes.citations, "import.paper": sizes.papers, "import.text": text_bytes}
        disk = get_constant("import.disk.citation") * sizes.citations + get_constant("import.disk.paper") * sizes.papers
        disk += 1.02 * text_bytes
    also = ("import.disk.edge",) if sizes.only_edges else ()
    work = _work("import", size, kind, amounts, also=also, disk=disk, fits_by=fits_by)
    return replace(work, memory=memory)  # of all its processes


def graph_work(sizes: Sizes, memory: int = GRAPH_MEMORY) -> StageWork:
    """Estimate the work of building the graph: citations sorted as sparse rows in both directions within `memory` bytes."""
    return _work(
        "graph",
        f"{sizes.citations:,} citations, both directions",
        "graph",
        {"graph.citation": sizes.citations},
        also=("graph.disk.citation",),
        memory=min(memory, 24 * sizes.citations) + 24 * sizes.papers,
        disk=get_constant("graph.disk.citation") * sizes.citations + 16 * sizes.papers,
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
    paths = [sizes.paths_of(signal) if signal in TWO_HOPS else 2 * sizes.references for signal in signals]
    entries = sum(2 * sizes.papers * min(each, strongest or each) for each in paths)
    work = _work(
        "relatives",
        f"{', '.join(signals)} of {sizes.papers:,} papers",
        "relatives",
        {"relatives.path": sizes.papers * sum(paths), "union.entry": entries},
        memory=20 * entries,
        fits_by="--set graph.strongest=25 keeps fewer related papers per paper",
    )
    return entries, work


def _node_vectors_work(sizes: Sizes, options: GraphOptions, entries: float) -> StageWork:
    vectors = options.vectors
    method, numbers = vectors.method, float(sizes.papers * vectors.dimension)
    amounts, held, moved = _method_costs(sizes.papers, options, entries)
    required = required_memory(sizes.papers, options)
    memory = f", --memory {-(-required // GIB)}GB" if required > vectors.memory else ""
    return _work(
        "node vectors",
        f"{method}, {vectors.dimension} dimensions, {entries:,.0f} entries{memory}",
        method,
        amounts,
        moved=moved,
        memory=held + 4 * min(entries, RELEASE_AFTER) + 16 * sizes.papers,
        disk=numbers * (2 if options.dtype == "float16" else 4) + get_constant("vectors.disk.id") * sizes.papers,
        fits_by=(
            "a smaller --memory walks in narrower panels, --dim 128 and --dtype float16 need less"
            if method == "fastrp"
            else "method fastrp never holds its result in memory; --dim 128 needs less"
        ),
    )


def _method_costs(papers: int, options: GraphOptions, entries: float) -> tuple[dict[str, float], float, float]:
    """Return amounts, bytes held in memory and bytes gathered by a method of node vectors."""
    vectors = options.vectors
    numbers, gathered = float(papers * vectors.dimension), entries * vectors.dimension
    if vectors.method == "fastrp":  # walks in column panels that fit the memory, results on disk
        panel, walks = plan_panel(papers, options), len(vectors.fastrp.weights)
        amounts = {panel.gather_constant: gathered * walks, "fastrp.number": numbers * walks}
        return amounts, panel.held, 2.0 * gathered * walks
    if vectors.method == "prone":  # the result and two matrices of the same size, or what the memory allows of them
        held = 4 * numbers + min(8 * numbers, float(vectors.memory))
        return {"prone.gather": gathered, "prone.number": numbers}, held, 0.0
    # the edge model: vectors and the optimizer's state
    return {"edges.number": gathered / 2 * vectors.edges.epochs}, 8 * numbers, 0.0


# --- mining ---


def mining_work(sizes: Sizes, rules: MiningRules, dimension: int, anchors: int) -> list[StageWork]:
    """Estimate the work of mining: counting related papers, searching bands, drawing samples."""
    works, mapped = [], 8 * sizes.papers + 8 * sizes.citations
    if signals := two_hop_signals(rules):
        paths = anchors * sum(sizes.paths_of(signal) for signal in signals)
        work = _work(
            "relatives",
            f"{', '.join(signals)} of {anchors:,} anchors",
            "relatives",
            {"relatives.path": paths},
            memory=min(MINING_MEMORY, 12 * paths) + mapped,
            fits_by="mine --memory 256MB and fewer --workers, or mine --on ray",
        )
        works.append(work)
    if rules.from_contexts:
        amounts, size = {"contexts.sentence": sizes.contexts}, f"{sizes.contexts:,} citing sentences"
        works.append(_work("pairs", size, "contexts", amounts, memory=64.0 * sizes.contexts))
    if searches := vector_searches(rules):
        works.append(_bands_work(sizes.texts, dimension, anchors, len(searches), deepest_rank(rules, sizes.texts)))
    groups, each = anchors * count_sample_groups(rules), count_picks(rules)
    picks = groups * (each + 1)
    samples = _work(
        "samples",
        f"{groups:,} samples of {each} papers",
        "samples",
        {"samples.pick": picks},
        memory=min(MINING_MEMORY, 50 * picks) + mapped,
        disk=get_constant("samples.disk.pick") * picks,
        fits_by="mine --memory 256MB",
    )
    return [*works, samples]


def _bands_work(pool: int, dimension: int, anchors: int, searches: int, rank: int) -> StageWork:
    """Estimate band searches: every anchor is compared with the whole pool, and so many ranks are kept."""
    queries = anchors * searches
    pairs = queries * pool
    return _work(
        "bands",
        f"{anchors:,} anchors among {pool:,} papers, {dimension} dimensions",
        "bands",
        {"bands.pair": pairs, "bands.number": dimension * pairs, "bands.rank": queries * rank},
        also=("bands.number.gpu",),
        on_gpu=get_constant("bands.number.gpu") * dimension * pairs,
        gpus=1,
        memory=min(MINING_MEMORY, 8 * pairs) + 8 * pool * dimension,
        gpu_memory=4 * pool * dimension + (1 << 30),
        fits_by="mine --memory 256MB searches in smaller blocks, mine --on ray across several machines",
    )


# --- stages with a network: tokens, training, embedding, index, evaluation ---

SENTENCES, SENTENCE_TOKENS = 8, 30
"""Approximate sentences per paper, including those that cite it, and tokens per sentence."""

SUITE_PAPERS = 25_000
"""Approximate maximum of papers in the suite of a corpus."""


def _encoding_work(
    name: str, size: str, shape: NetworkShape, texts: float, tokens: float, *, paper: float = 0.0, **more: Any
) -> StageWork:
    """Return the work of a frozen encoder that reads texts; `paper` are further seconds per text on any device."""
    cpu, on_gpu = (embed_seconds(shape, texts, tokens, device) + paper * texts for device in ("cpu", "cuda"))
    held, disk = 8.0 * shape.parameters + more.pop("memory", 0.0), more.pop("disk", 0.0)
    also = ("network.core", "network.gpu.embedding", *more.pop("also", ()))
    gpu_memory = 4.0 * shape.parameters + 2e9
    work = _work(name, size, "network", {}, torch=True, also=also, memory=held, disk=disk, gpu_memory=gpu_memory)
    return replace(work, cpu=cpu + more.pop("cpu", 0.0), on_gpu=on_gpu, **more)


def tokens_work(texts: float, tokens: float) -> StageWork:
    """Estimate the work of tokenizing every text once."""
    size, amounts = f"{texts:,.0f} texts of {tokens:.0f} tokens", {"tokens.token": texts * tokens}
    return _work("token store", size, "tokens", amounts, torch=True, disk=(2 * tokens + 8) * texts)


def training_work(
    shape: NetworkShape, training: TrainingOptions, rules: MiningRules, anchors: int, sizes: Sizes, *, gpu: bool
) -> StageWork:
    """Estimate the work of training one model on mined samples; `sizes` are those of the texts that it reads."""
    tokens, groups = sizes.tokens, anchors * count_sample_groups(rules)
    units, each = float(groups), 1.0 + count_picks(rules)
    if training.unit == "triplets":
        units *= count_triplets(rules)
        each *= groups / max(1.0, units)
    elif training.splits_positives:
        units = max(1.0, groups * expect_positives(rules, sizes) / training.block)
        each = 1.0 + training.block + sum(rule.count for rule in rules.negatives)
    steps = training.steps or max(1, round(units * training.share * training.epochs / training.batch))
    texts = steps * training.batch * each
    trained = 1.0 if training.parts == "all" else 0.001
    micro = training.micro_tokens or MICRO_TOKENS["cuda" if gpu else "cpu"]
    in_step = int(max(1, min(micro, texts / steps * tokens)))
    on_cpu, on_gpu = (train_bytes(shape, in_step, tokens, half=half, trained=trained) for half in (False, True))
    if training.parts == "heads":
        seconds = [embed_seconds(shape, min(texts, anchors), tokens, device) for device in ("cpu", "cuda")]
    else:
        seconds = [train_seconds(shape, texts, tokens, device) for device in ("cpu", "cuda")]
    work = _work(
        "training",
        f"{steps:,} steps of {training.batch} {training.unit}, {texts:,.0f} texts of {tokens:.0f} tokens",
        "network",
        {},
        torch=True,
        also=("network.core", "network.gpu.training"),
        memory=4 * shape.parameters if gpu else on_cpu,
        gpu_memory=on_gpu,
        disk=4.0 * shape.parameters,
        fits_by="--set training.micro_tokens=8192 encodes fewer at a time, training.parts=lora keeps fewer moments; "
        "across several GPUs: torchrun with FSDP",
    )
    return replace(work, cpu=seconds[0], on_gpu=seconds[1])


def embedding_work(shape: NetworkShape, sizes: Sizes, tokens: float) -> StageWork:
    """Estimate the work of embedding a corpus, one float32 vector per paper."""
    return _encoding_work(
        "embedding",
        f"{sizes.texts:,} papers of {tokens:.0f} tokens",
        shape,
        sizes.texts,
        tokens,
        cpu=get_constant("tokens.token") * sizes.texts * tokens,
        also=("tokens.token",),
        memory=2 * 8192 * 4 * shape.hidden,
        disk=(4 * shape.hidden + get_constant("vectors.disk.id")) * sizes.texts,
        fits_by="embed --batch-tokens 4096, --dtype float16 halves the disk; embed --on ray across several machines",
    )


def sentences_work(shape: NetworkShape, sizes: Sizes, tokens: float) -> StageWork:
    """Estimate the work of sentence vectors, which cost as much as one vector per paper."""
    each = get_constant("sentences.paper")
    return _encoding_work(
        "sentence vectors",
        f"{sizes.texts * each:,.0f} sentences of {sizes.texts:,} papers",
        shape,
        sizes.texts,
        tokens,
        cpu=get_constant("tokens.token") * sizes.texts * tokens,
        also=("sentences.paper",),
        memory=2 * 8192 * 4 * shape.hidden * each,
        disk=4 * shape.hidden * sizes.texts * each + get_constant("vectors.disk.id") * sizes.texts,
        fits_by="embed --sentences --shard 1024, --dtype float16; embed --on ray",
    )


def aligning_work(shape: NetworkShape, anchors: int) -> StageWork:
    """Estimate the work of aligning sentences with a frozen encoder."""
    number = anchors * SENTENCES
    return _encoding_work("alignment", f"{number:,} sentences", shape, number, SENTENCE_TOKENS)


def intents_work(contexts: int) -> StageWork:
    """Estimate the work of classifying the intents of all citing sentences."""
    return _work(
        "intents",
        f"{contexts:,} citing sentences",
        "network",
        {"intents.sentence": contexts},
        torch=True,
        also=("intents.sentence.gpu",),
        on_gpu=get_constant("intents.sentence.gpu") * contexts,
        disk=2.0 * contexts,
    )


def index_work(shape: NetworkShape, sizes: Sizes, tokens: float, *, sentences: bool) -> StageWork:
    """Estimate the work of building a search index: words, existing vectors, and sentence vectors if wanted."""
    words, number = sizes.texts * tokens, sizes.texts * get_constant("sentences.paper") * sentences
    vectors = (sizes.texts + number) * shape.hidden
    return _work(
        "index",
        f"{sizes.texts:,} papers with their words, vectors precomputed" + (", with sentences" if sentences else ""),
        "index",
        {"index.token": words, "index.number": vectors},
        torch=True,
        also=("index.disk.token",),
        memory=get_constant("index.memory.paper") * sizes.texts + get_constant("index.memory.number") * vectors,
        disk=get_constant("index.disk.token") * words + 3.0 * vectors,
        fits_by="several indexes, each of a part of the corpus; or vectors in Milvus on other machines (docs/stores.md)",
    )


def evaluation_work(shape: NetworkShape, papers: int, tokens: float, models: int) -> StageWork:
    """Estimate the work of evaluating some models on a suite of so many papers."""
    papers *= models
    numbers = papers * shape.hidden
    return _encoding_work(
        "evaluation",
        f"{papers:,} papers read, by {models} models",
        shape,
        papers,
        tokens,
        paper=get_constant("evaluation.paper"),
        also=("evaluation.paper",),
        memory=8.0 * numbers,
        disk=4.0 * numbers,
    )
