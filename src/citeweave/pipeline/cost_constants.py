"""What estimates are computed from: measured costs per unit of work, machines, networks, the size of a literature.

    >>> get_constant("tokens.token")
    4.2e-06
    >>> print(CONSTANTS["tokens.token"])
    4.2e-06 CPU s per token (benchmarks/estimates.py, two Neoverse-N1 cores, November 2026)
    >>> parse_machine("8xh200").gpus, parse_machine("cpu:16").cores
    (8, 16)
    >>> parse_machine("latop")
    Traceback (most recent call last):
    citeweave.core.errors.UserError: --machine is 'latop'; it must be one of 8xh200, cpu:16, h200, here, laptop, server. Did you mean 'laptop'?
    >>> base = NetworkShape(hidden=768, layers=12, parameters=110_000_000)
    >>> round(forward_flops(base, tokens=230) / 1e6)
    178
    >>> seconds = train_seconds(base, texts=684_000 * 2.2 * 2, tokens=230, device="cuda")
    >>> 10 < seconds / 60 < 30
    True

CPU seconds are those of one Neoverse-N1 core, user and system, summed over all threads; many cores are up to twice as
fast. To update a constant, run the command that its source names and replace the number. A network costs what its
arithmetic costs: one measured rate per device stands for all models, within a factor of two or three.

Knows no recipes, and reads of a corpus only the columns, no text. Only the machine `here` is looked at: its cores, memory
and NVIDIA cards.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from citeweave.core.errors import UserError, choose
from citeweave.core.executor import available_cores, total_memory
from citeweave.core.files import read_input
from citeweave.graph.fastrp import MIN_PANEL_WIDTH
from citeweave.graph.kernels import LINE
from citeweave.graph.signals import TWO_HOPS

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.corpus.options import DerivedTexts
    from citeweave.graph.options import GraphOptions


@dataclass(frozen=True, slots=True)
class Constant:
    """A measured cost constant and where its value comes from."""

    value: float
    unit: str
    source: str

    def __str__(self) -> str:
        return f"{self.value:.3g} {self.unit} ({self.source})"


_TABLE = tomllib.loads(read_input(Path(__file__).with_name("costs.toml")).decode())
CONSTANTS = {
    name: Constant(value, unit, source.format(**_TABLE["sources"]))
    for name, (value, unit, source) in _TABLE["constants"].items()
}
"""Name -> measured constant; those with `.gpu` in their name are used on machines with a GPU."""


def get_constant(name: str) -> float:
    """Return the value of a measured cost constant by its name."""
    return CONSTANTS[name].value


# --- machines ---

GIB = 2**30
HERE = "here"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU model, its memory and its speed relative to an H200."""

    peak: float
    """Operations per second in bfloat16, dense, as its maker says."""

    memory: float
    """Bytes."""


GPUS = {
    "h200": Gpu(989e12, 141e9),
    "h100": Gpu(989e12, 80e9),
    "a100": Gpu(312e12, 80e9),
    "l40s": Gpu(362e12, 48e9),
    "rtx4090": Gpu(165e12, 24e9),
    "l4": Gpu(121e12, 24e9),
}
"""Only the H200 was measured; the speed of the others is scaled by the peaks that their makers name."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with its constants for cost estimates: cores, memory, GPUs."""

    name: str
    cores: int
    memory: float
    """Bytes."""

    gpus: int = 0
    gpu: str = ""

    def __post_init__(self) -> None:
        if self.cores < 1 or self.memory <= 0 or self.gpus < 0:
            raise UserError(
                f"a machine has at least 1 core, some memory and 0 or more GPUs, not {self.cores} cores, "
                f"{self.memory:,.0f} bytes and {self.gpus} GPUs"
            )
        if self.gpus:
            choose(self.gpu, GPUS, "--gpu")

    @property
    def bandwidth(self) -> float:
        """Return the bytes per second for gathering rows: per core, up to the limit of a many-channel socket."""
        return min(10e9 * self.cores, 250e9)

    @property
    def gpu_speed(self) -> float:
        """Return the speed of all GPUs together, in H200s; 0 without a GPU."""
        return self.gpus * GPUS[self.gpu].peak / GPUS["h200"].peak if self.gpus else 0.0

    def __str__(self) -> str:
        cards = f", {self.gpus} x {self.gpu}" if self.gpus else ", no GPU"
        return f"{self.name}: {self.cores} cores, {self.memory / GIB:,.0f} GB{cards}"


MACHINES = {
    "laptop": Machine("laptop", 8, 16 * GIB),
    "server": Machine("server", 32, 256 * GIB),
    "cpu:16": Machine("cpu:16", 16, 64 * GIB),
    "h200": Machine("h200", 16, 128 * GIB, 1, "h200"),
    "8xh200": Machine("8xh200", 128, 1024 * GIB, 8, "h200"),
}
"""Named machines; besides these, `cpu:N` has N cores and `NxGPU` has N cards of a known GPU."""


def parse_machine(
    name: str, *, cores: int | None = None, memory: float | None = None, gpu: str = "", gpus: int | None = None
) -> Machine:
    """Return the machine of a name such as laptop or 8xh200, with single parts replaced.

    >>> parse_machine("laptop", gpu="rtx4090").gpus, parse_machine("8xh200", gpus=2).cores
    (1, 128)
    """
    machine = _find_by_name(name)
    if gpu:
        choose(gpu, GPUS, "--gpu")
    if gpu and gpus is None:
        gpus = machine.gpus or 1
    parts = {"cores": cores, "memory": memory, "gpus": gpus}
    changed: dict[str, Any] = {part: value for part, value in parts.items() if value is not None}
    if gpus is not None:
        changed["gpu"] = gpu or machine.gpu or "h200"
    if changed and name != HERE:
        changed["name"] = f"{machine.name}, changed"
    return replace(machine, **changed)


def _find_by_name(name: str) -> Machine:
    if name == HERE:
        return describe_this_machine()
    if name in MACHINES:
        return MACHINES[name]
    if match := re.fullmatch(r"cpu:([1-9]\d{0,4})", name):
        return Machine(name, int(match[1]), int(match[1]) * 4 * GIB)
    match = re.fullmatch(r"(?:([1-9]\d{0,3})x)?(\w+)", name)
    if match and match[2] in GPUS:
        gpus = int(match[1] or 1)
        return Machine(name, 16 * gpus, 128 * GIB * gpus, gpus, match[2])
    choose(name, [HERE, *MACHINES], "--machine")
    raise AssertionError(name)


def describe_this_machine() -> Machine:
    """Describe this machine for a cost estimate; its GPUs count as H200s, since their model is not looked up."""
    cards = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return Machine(HERE, available_cores(), float(total_memory() or 16 * GIB), cards, "h200" if cards else "")


# --- networks ---


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """The sizes of a transformer that determine its cost: width, layers, parameters."""

    hidden: int
    layers: int
    parameters: int


BERT_BASE = NetworkShape(768, 12, 110_000_000)
"""The shape of BERT-base, SciBERT and GTE-base."""

MINILM = NetworkShape(384, 6, 22_700_000)
"""The shape of all-MiniLM-L6-v2 and of weave."""

WEAVE_SMALL = NetworkShape(384, 3, 17_400_000)


BYTES_PER_TOKEN = 5.0
"""Bytes per token of English abstracts with the vocabulary of BERT."""

SPECIAL_TOKENS = 3
"""Special tokens per text: first, between title and abstract, last."""


def forward_flops(shape: NetworkShape, tokens: float) -> float:
    """Return the operations per token: 24 h^2 L for the matrices, 4 h L s for attention (Kaplan et al., 2020)."""
    return 24 * shape.hidden**2 * shape.layers + 4 * shape.hidden * shape.layers * tokens


def estimate_tokens(mean_bytes: float, max_tokens: int) -> float:
    """Estimate the tokens of a text from its bytes, up to a maximum length.

    >>> estimate_tokens(1000, 512), estimate_tokens(9000, 512)
    (203.0, 512.0)
    """
    return min(mean_bytes / BYTES_PER_TOKEN + SPECIAL_TOKENS, float(max_tokens))


def embed_seconds(shape: NetworkShape, texts: float, tokens: float, device: str) -> float:
    """Estimate the seconds of one core or one H200 (`cpu` or `cuda`) to embed a number of texts with a network."""
    rate = get_constant("network.core" if device == "cpu" else "network.gpu.embedding")
    return texts * tokens * forward_flops(shape, tokens) / rate


def train_seconds(shape: NetworkShape, texts: float, tokens: float, device: str) -> float:
    """Estimate the seconds to train on a number of texts; the backward pass costs twice the forward pass."""
    rate = get_constant("network.core" if device == "cpu" else "network.gpu.training")
    return 3 * texts * tokens * forward_flops(shape, tokens) / rate


def train_bytes(shape: NetworkShape, micro_tokens: int, tokens: float, *, half: bool, trained: float = 1.0) -> float:
    """Estimate the memory of training a network: weights, gradients, optimizer state and activations.

    Gradients and Adam's two moments are float32 and exist for the `trained` share of the weights. Activations take 34 h
    bytes per token and layer besides attention in half precision (Korthikanti et al., 2022).
    """
    states = shape.parameters * (4 + 12 * trained)
    per_token = shape.layers * (34 * shape.hidden + 5 * shape.hidden / 64 * tokens)
    return states + micro_tokens * per_token * (1 if half else 2)


def read_shape(folder: Path) -> NetworkShape:
    """Read the shape of a network from its config.json; BERT-base's if the file does not say."""
    try:
        config = json.loads(read_input(folder / "config.json"))
        hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
        vocabulary = int(config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return BERT_BASE
    return NetworkShape(hidden, layers, 12 * hidden**2 * layers + hidden * vocabulary)


# --- the size of a literature ---


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of a literature: counts of papers, citations, texts and contexts that cost estimates start from."""

    papers: int
    citations: int
    texts: int
    """Papers with a title and an abstract: those that are read and mined."""

    tokens: float = 230.0
    """Mean number of tokens of such a text."""

    contexts: int = 0
    """Number of citing sentences."""

    only_edges: bool = False
    """Whether citations come as a table of edges, not as records in JSON."""

    paths: dict[str, float] = field(default_factory=dict)
    """Two-hop signal -> mean number of paths from one paper; estimated from the references where it is missing."""

    @property
    def references(self) -> float:
        """Return the mean number of references per paper."""
        return self.citations / self.papers

    def paths_of(self, signal: str) -> float:
        """Return the mean number of two-hop paths from a paper: references squared, times a factor for uneven lists."""
        known = self.paths.get(signal)
        if known is not None:
            return known
        return self.references**2 * get_constant(f"unevenness.{_PATH_KINDS.get(signal, 'coupled')}")


_PATH_KINDS = {"cocited": "cocited", "cocited_nearby": "cocited", "second_hop": "second_hop"}
"""Two-hop signal -> which lists it crosses: two of references, one of each, or (all others) two of citing papers."""


def sizes_from_counts(papers: int, citations: int, *, texts: int | None = None, tokens: float = 230.0) -> Sizes:
    """Return the sizes of a literature from a few counts; three in ten citations have a context, as in Semantic Scholar."""
    texts = papers if texts is None else texts
    if texts > papers:
        raise UserError(f"--texts is {texts:,} and --papers {papers:,}; no more papers can have texts than there are")
    if citations > papers * (papers - 1):
        raise UserError(f"--citations is {citations:,}; {papers:,} papers have at most {papers * (papers - 1):,}")
    if not 3 <= tokens <= 100_000:
        raise UserError(f"--tokens is {tokens:g}; a text has from 3 to 100,000 of them")
    return Sizes(papers, citations, texts, tokens, round(0.3 * citations))


def sizes_from_corpus(corpus: Corpus) -> Sizes:
    """Count the sizes of an existing corpus for a cost estimate."""
    lengths = corpus.titles.lengths() + corpus.abstracts.lengths()  # (papers,)
    has_text = (corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0)
    texts = int(has_text.sum())
    tokens = estimate_tokens(float(lengths[has_text].mean()), 100_000) if texts else 3.0
    papers, citations = max(1, len(corpus)), len(corpus.citing)
    citing = np.bincount(np.asarray(corpus.citing), minlength=papers).astype(float)  # (papers,)
    cited = np.bincount(np.asarray(corpus.cited), minlength=papers).astype(float)  # (papers,)
    kinds = {
        "cocited": float((citing**2).sum()) / papers,
        "coupled": float((cited**2).sum()) / papers,
        "second_hop": float((citing * cited).sum()) / papers,
    }
    names = ("cocited", "cocited_nearby", "coupled", "second_hop", "connected_of_connected")
    paths = {name: kinds[_PATH_KINDS.get(name, "coupled")] for name in names}
    return Sizes(papers, citations, texts, tokens, len(corpus.contexts), paths=paths)


def derived_sizes(sizes: Sizes, texts: DerivedTexts, held: int = 0) -> Sizes:
    """Return the sizes of the derived texts that a recipe trains on instead of papers, without `held` titles."""
    if texts.of == "contexts":
        number, tokens = max(1, round(get_constant("contexts.pair") * sizes.contexts)), 40.0
    elif texts.of == "titles":
        # papers keep their citations, and every title is linked with its abstract
        linked = max(0, sizes.texts - held)
        number, links = sizes.papers + 2 * linked, sizes.citations + linked
        paths = {name: sizes.paths_of(name) * sizes.papers / number for name in TWO_HOPS}
        return replace(sizes, papers=number, citations=links, texts=number, tokens=sizes.tokens / 2, paths=paths)
    else:
        number, tokens = texts.per_paper * sizes.texts, sizes.tokens / 2
    return replace(sizes, papers=number, citations=2 * number, texts=number, tokens=tokens, paths={})


# --- panels of FastRP: as many columns at a time as --memory allows ---
#
# Gathering a number costs more when the panel is large: rows are fetched in the order of citations, and caches and pages
# hold most rows of a small panel but almost none of 52 million papers. Two constants, with one border between them:
#
#     papers x columns     panel       CPU s per number
#     560,000 x 128        143 MB      0.7e-9
#     5,600,000 x 32       358 MB      1.0e-9
#     --- LARGE_PANEL: 1 GiB ---
#     52,000,000 x 32      3.3 GB      2.2e-9

LARGE_PANEL = 1 << 30
"""Bytes of a panel beyond which gathering a number costs more."""

_NUMBER_BYTES = 2
"""Bytes per number while walking."""


@dataclass(frozen=True, slots=True)
class WalkPanel:
    """Estimate the number of FastRP columns that fit into memory at once, on which a graph's cost depends."""

    papers: int
    columns: int
    held: int
    """Bytes of the panels and of the scales beside them: what --memory must allow."""

    @property
    def gather_constant(self) -> str:
        """Return the name of the constant for gathering one number of this panel.

        >>> WalkPanel(560_000, 128, 0).gather_constant, WalkPanel(52_000_000, 32, 0).gather_constant
        ('fastrp.gather', 'fastrp.gather.far')
        """
        return "fastrp.gather.far" if self.papers * self.columns * _NUMBER_BYTES > LARGE_PANEL else "fastrp.gather"


def plan_panel(papers: int, options: GraphOptions) -> WalkPanel:
    """Return the FastRP columns that a memory limit allows, at least one cache line of them."""
    vectors = options.vectors
    scales = 4 * papers * (2 + sum(map(bool, vectors.fastrp.weights)))  # two scales, and gains of every power
    column = papers * (2 * _NUMBER_BYTES + (2 if options.dtype == "float16" else 4))  # two panels and the result
    fitting = max(0, vectors.memory - scales) // column // MIN_PANEL_WIDTH * MIN_PANEL_WIDTH
    columns = min(vectors.dimension, max(fitting, LINE // _NUMBER_BYTES))
    return WalkPanel(papers, columns, scales + columns * column)


def required_memory(papers: int, options: GraphOptions) -> int:
    """Return the --memory that `citeweave graph` needs: the configured one, or the minimum for full cache lines."""
    memory = options.vectors.memory
    return max(memory, plan_panel(papers, options).held) if options.vectors.method == "fastrp" else memory
