"""Options of graphs and node vectors: the `[graph]` table of a recipe.

    [graph]
    method = "prone"
    dimension = 128
    signal = "connected:1,cocited:0.5"

    [graph.prone]
    order = 5

>>> graph_options({"dimension": 128, "fastrp": {"weights": [0, 1, 1]}}).vectors.fastrp.weights
(0.0, 1.0, 1.0)
>>> graph_options({"dimensions": 128})
Traceback (most recent call last):
citeweave.core.errors.UserError: graph: key is 'dimensions'; it must be one of device, dimension, direction, dtype, edges, \
equal, fastrp, memory, method, normalize, prone, seed, signal, strongest, weighted, workers. Did you mean 'dimension'?

Declares and checks values; imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from citeweave.core.errors import UserError
from citeweave.core.options import FLAT, SIZE, Flag, MaxLength, OneOf, Range, check, parse_table

CITATIONS, FULL = "citations", "float32"
METHODS = ("fastrp", "prone", "edges")
LOSSES = ("softmax", "margin", "logistic")
COMPARATORS = ("dot", "cos")


@dataclass(frozen=True, slots=True)
class FastRP:
    """Options of FastRP."""

    weights: Annotated[tuple[float, ...], MaxLength(100)] = (0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
    """Weights of 1, 2, 3 ... steps of the walk."""

    exponent: Annotated[float, Range(-2, 2)] = 0.0
    """Power of the degree by which random vectors are scaled; below 0, hubs count less."""

    evening: Annotated[float, Range(0, 1)] = 0.5
    """Strength of whitening: 0 keeps the strengths of the directions, 1 makes all equal."""

    def __post_init__(self) -> None:
        check(self, "graph.fastrp")
        if not any(self.weights):
            raise UserError(
                f"graph.fastrp.weights is {list(self.weights)}; give one number per step, 1 to 100 of them, not all 0"
            )


@dataclass(frozen=True, slots=True)
class ProNE:
    """Options of ProNE."""

    shift: Annotated[float, Range(above=0, below=1e6)] = 1.0
    """Negatives per positive in the factorized objective."""

    iterations: Annotated[int, Range(1, 100)] = 2
    """Rounds of the randomized factorization."""

    order: Annotated[int, Range(1, 30)] = 5
    """Steps of the propagation."""

    mu: Annotated[float, Range(-2, 2)] = -0.3
    """Center of the part of the spectrum that is kept."""

    theta: Annotated[float, Range(above=0, max=10)] = 8.0
    """Narrowness of that part; the authors' mu 0.2 and theta 0.5 keep nearly all."""

    def __post_init__(self) -> None:
        check(self, "graph.prone")


@dataclass(frozen=True, slots=True)
class EdgeModel:
    """Options of the edge model; the names in brackets are BigGraph's."""

    loss: Annotated[str, OneOf(*LOSSES)] = "softmax"
    """softmax, margin or logistic (loss_fn)."""

    comparator: Annotated[str, OneOf(*COMPARATORS)] = "dot"
    """dot or cos (comparator)."""

    margin: Annotated[float, Range(0)] = 0.15
    """Margin of the margin loss (margin)."""

    rate: Annotated[float, Range(above=0)] = 0.1
    """Learning rate (lr)."""

    epochs: Annotated[int, Range(1)] = 20
    """Passes over all edges (num_epochs)."""

    batch: Annotated[int, Range(1)] = 1000
    """Edges per step (batch_size)."""

    chunk: Annotated[int, Range(1)] = 50
    """Edges that are each other's negatives (num_batch_negs)."""

    uniform: Annotated[int, Range(0)] = 50
    """Random nodes beside them (num_uniform_negs)."""

    max_norm: Annotated[float, Range(0)] = 2.5
    """Maximum length of a vector; 0 = none (max_norm)."""

    def __post_init__(self) -> None:
        check(self, "graph.edges")
        if self.chunk == 1 and not self.uniform:
            raise UserError(
                "graph.edges.chunk is 1 and graph.edges.uniform is 0; an edge needs a negative, raise either"
            )


@dataclass(frozen=True, slots=True)
class NodeVectorOptions:
    """Options of node vectors: their method, dimension and resources."""

    method: Annotated[str, OneOf(*METHODS)] = "fastrp"
    """How to compute node vectors: fastrp, prone or edges."""

    dimension: Annotated[int, Range(1, 65_536), Flag("--dim")] = 256
    """Dimension of the node vectors; fastrp improves up to 512, prone up to 256."""

    seed: int = 0
    """Random seed."""

    memory: Annotated[int, SIZE, Range(0)] = 1 << 30
    """Memory limit for sorting citations and for node vectors."""

    workers: Annotated[int, Range(0)] = 0
    """Number of threads; 0 = one per core."""

    device: Annotated[str, OneOf("auto", "cpu", "cuda")] = "auto"
    """Device: cpu, cuda or auto (fastrp uses a GPU only for cuda, prone never)."""

    fastrp: FastRP = field(default_factory=FastRP)
    """Options of the methods, also as a table of a recipe."""

    prone: ProNE = field(default_factory=ProNE)
    edges: EdgeModel = field(default_factory=EdgeModel)

    def __post_init__(self) -> None:
        check(self, "graph")


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """Options of building a graph folder, the `[graph]` table of a recipe: which edges are embedded, by which method."""

    signal: str = CITATIONS
    """Relations to embed: citations, or weighted signals such as connected:1,cocited:0.5."""

    direction: Annotated[str, OneOf("both", "cited", "citing")] = "both"
    """Citations to follow: both directions, or only along (cited) or against (citing) them."""

    weighted: bool = False
    """Weight citations by strength, such as the number of mentions."""

    normalize: Annotated[bool, Flag("--normalize/--no-normalize")] = True
    """In a union of signals, normalize counts to cosines."""

    equal: bool = False
    """In a union, all pairs of a signal weigh the same, however strongly they are related."""

    strongest: int = 100
    """In a union, related papers kept per paper and signal; 0 = all."""

    dtype: Annotated[str, OneOf("float16", "float32")] = FULL
    """Stored vectors: float32, or float16, half as large."""

    vectors: Annotated[NodeVectorOptions, FLAT] = field(default_factory=NodeVectorOptions)
    """Method, dimension and resources of the node vectors."""

    def __post_init__(self) -> None:
        check(self, "graph")
        if self.signal != CITATIONS:
            from citeweave.graph.signals import parse_union

            parse_union(self.signal, strongest=self.strongest)

    @property
    def label(self) -> str:
        """Method and input of the node vectors, for their provenance."""
        direction = "" if self.signal != CITATIONS or self.direction == "both" else f", {self.direction}"
        weights = ", weighted" if self.signal == CITATIONS and self.weighted else ""
        return f"{self.vectors.method}-{self.vectors.dimension} of {self.signal}{direction}{weights}"


def graph_options(table: Mapping[str, Any], **more: Any) -> GraphOptions:
    """Read the options of building a graph from a `[graph]` table of a recipe."""
    return parse_table(GraphOptions, {**table, **more}, "graph")
