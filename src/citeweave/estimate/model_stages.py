"""What tokens, training, embedding, the index and reports cost: mostly arithmetic of the network, by a rate a device.

    token store     tokens
    training        texts read in all steps, three times a forward pass
    embedding       tokens x operations a token; tokenizing beside it
    index           papers, their words and sentences
    evaluation      papers of the suites, by the start model and by each trained one

Constants: `constants.py`; the arithmetic: `networks.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from citeweave.estimate.constants import value
from citeweave.estimate.networks import Shape, embed_seconds, train_bytes, train_seconds
from citeweave.estimate.samples import groups_of, picks_of, triplets_of
from citeweave.estimate.work import Work

if TYPE_CHECKING:
    from citeweave.estimate.sizes import Sizes
    from citeweave.mining.rules import MiningRules
    from citeweave.training.options import TrainingOptions

SENTENCES, SENTENCE_TOKENS = 8, 30
"""Sentences of a paper, those that cite it counted, and tokens of one; more or less."""

SUITE_PAPERS = 25_000
"""Papers that the suite of a corpus asks about, at most, more or less."""

MICRO_TOKENS = {"cpu": 16_384, "cuda": 65_536}
"""Tokens encoded at a time where the recipe does not say, as in training."""


def tokens_work(texts: float, tokens: float) -> Work:
    """Texts become ids, once."""
    return Work(
        "token store",
        f"{texts:,.0f} texts of {tokens:.0f} tokens",
        cpu=value("tokens.token") * texts * tokens,
        parallel=value("tokens.parallel"),
        memory=value("process.memory") + value("torch.memory"),
        disk=(2 * tokens + 8) * texts,
        constants=("tokens.token",),
    )


def training_work(
    shape: Shape, training: TrainingOptions, rules: MiningRules, anchors: int, tokens: float, *, gpu: bool
) -> Work:
    """One model."""
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
    return Work(
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


def embedding_work(shape: Shape, sizes: Sizes, tokens: float) -> Work:
    """A vector a paper, in float32."""
    return Work(
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


def sentences_work(shape: Shape, sizes: Sizes, tokens: float) -> Work:
    """A vector a sentence; papers are read as wholes, so that it takes as long as a vector a paper does."""
    number = sizes.texts * value("sentences.paper")
    return Work(
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


def aligning_work(shape: Shape, anchors: int) -> Work:
    """Sentences of pairs are encoded, by a frozen encoder."""
    number = anchors * SENTENCES
    cpu, on_gpu = (embed_seconds(shape, number, SENTENCE_TOKENS, device) for device in ("cpu", "cuda"))
    return Work(
        "alignment",
        f"{number:,} sentences",
        cpu=cpu,
        parallel=value("network.parallel"),
        on_gpu=on_gpu,
        memory=value("process.memory") + value("torch.memory") + 8.0 * shape.parameters,
        gpu_memory=4.0 * shape.parameters + 2e9,
        constants=("network.core", "network.gpu.embedding"),
    )


def intents_work(contexts: int) -> Work:
    """Citing sentences read by the classifier of intents, a change of MiniLM."""
    return Work(
        "intents",
        f"{contexts:,} citing sentences",
        cpu=value("intents.sentence") * contexts,
        parallel=value("network.parallel"),
        on_gpu=value("intents.sentence.gpu") * contexts,
        memory=value("process.memory") + value("torch.memory"),
        disk=2.0 * contexts,
        constants=("intents.sentence", "intents.sentence.gpu"),
    )


def index_work(shape: Shape, sizes: Sizes, tokens: float, *, sentences: bool) -> Work:
    """Words, years, vectors that are there already, and where they are asked for those of sentences."""
    words, number = sizes.texts * tokens, sizes.texts * value("sentences.paper") * sentences
    vectors = (sizes.texts + number) * shape.hidden
    return Work(
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


def evaluation_work(shape: Shape, sizes: Sizes, tokens: float, models: int) -> Work:
    """Papers of the corpus's suite by so many models, the start model among them."""
    papers = min(sizes.texts, SUITE_PAPERS) * models
    cpu, on_gpu = (embed_seconds(shape, papers, tokens, device) for device in ("cpu", "cuda"))
    return Work(
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
