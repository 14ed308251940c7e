"""What the table compares: recipes, SciNCL with other graphs, and baselines.

>>> SYSTEMS["scincl, prone"].overrides
('graph.method=prone',)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from citeweave.core.errors import choose
from citeweave.corpus.options import PAPERS
from citeweave.pipeline.recipe import load_recipe

CORPORA = ("peerread_plus", "elife")
START = "minilm"
RAW_START = "minilm, raw vectors"
"""The start with vectors of whatever length it gives them, as recipes train them; as it ships, all have length one."""

WEAVE = "weave"
"""Our own recipe; systems named `weave, ...` are variants of it."""

PAPERS_SEEN = 100_000
SEEDS = 3
MAX_TOKENS = 256
"""What MiniLM reads of a text."""

WARMUP = 0.1
"""Warm-ups that are written in steps last at most this share of a run: 2,000 steps are more than a whole one here."""

RECIPES = (
    "specter",
    "specter_undirected",
    "specter_cl",
    "scincl",
    "cocite",
    "loss_study_triplet",
    "loss_study_infonce",
    "loss_study_cosent",
    "loss_study_angle",
    "sciaspect",
    "sciaspect_hybrid",
    "sciaspect_l2",
    "sciaspect_weighted",
    "specter_cocite",
    "aspire_ts",
    "aspire_ot",
    "aspire_ts_ot",
    "aspire_max",
    "aspire_att",
    "aspire_abs",
)
BASELINES = ("random", "tfidf", "bm25", "sentence_sum", "sif", "fasttext", "sgc", "citeomatic", "doc2vec", "elmo")
SLOW_BASELINES = ("doc2vec", "elmo")
"""They read a few papers a second on two cores: run only when they are named."""


@dataclass(frozen=True, slots=True)
class System:
    """Something that is trained and judged."""

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()
    """As `--set` of the command line."""

    graph_share: float = 1.0
    """Share of the citing papers whose references are in the graph."""

    is_graph_study: bool = False
    """Shown beside scincl, in a table of its own."""

    @property
    def texts(self) -> str:
        """Which texts beside papers it trains on, `titles` or nothing: those have a bundle of their own."""
        of = load_recipe(self.recipe, list(self.overrides)).table("texts").get("of", PAPERS)
        return "" if of == PAPERS else str(of)


def _graph(name: str, *overrides: str, recipe: str = "scincl", share: float = 1.0) -> System:
    return System(f"scincl, {name}", recipe, overrides, share, is_graph_study=True)


GRAPHS = (
    _graph("prone", "graph.method=prone"),
    _graph("edges with margin", recipe="scincl_biggraph"),
    _graph("edges with softmax", "graph.edges.loss=softmax", recipe="scincl_biggraph"),
    _graph("10 % of the graph", share=0.1),
    _graph("1 % of the graph", share=0.01),
)


def _variant(name: str, *overrides: str) -> System:
    return System(f"{WEAVE}, {name}", WEAVE, overrides)


VARIANTS = (
    _variant("citations and titles alone", *(f"mining.positives.{rule}=" for rule in ("nearby", "cocited", "coupled"))),
    _variant("no citing sentences", "mining.positives.nearby="),
    _variant("no titles", "texts.of=papers"),
    _variant("relatives are negatives", "training.losses.in_batch.relatives=false"),
    _variant("half the batch", "training.batch=256", "training.learning_rate=1.4e-4"),
    _variant("half the rate", "training.learning_rate=1e-4"),
    _variant("twice the rate", "training.learning_rate=4e-4"),
    _variant("temperature 0.03", "training.losses.in_batch.temperature=0.03"),
    _variant("temperature 0.1", "training.losses.in_batch.temperature=0.1"),
    _variant("nothing of the start", "training.start_share=0"),
    _variant("0.3 of the start", "training.start_share=0.3"),
    _variant("both directions", "training.losses.in_batch=", "training.losses.gte={temperature=0.05}"),
    _variant(
        "hard negatives",
        "texts.of=papers",
        'mining.negatives.hard={source="neighbors", count=1, band=100, exclude=["positives"]}',
    ),
    _variant(
        "neighbors in the graph too",
        "texts.of=papers",
        'mining.positives.neighbors={source="neighbors", count=5, band=10}',
    ),
    _variant("unit vectors", "encoder.normalize=true"),
)
SYSTEMS = {
    system.name: system
    for system in (*(System(name, name) for name in RECIPES), *GRAPHS, System(WEAVE, WEAVE), *VARIANTS)
}


def chosen(names: Sequence[str]) -> list[System]:
    """The systems of these names, all where none is named."""
    for name in names:
        choose(name, SYSTEMS, "--systems")
    return [SYSTEMS[name] for name in names or SYSTEMS]


def is_trained(name: str) -> bool:
    """Whether a system has seeds and a budget: all but the start and the baselines, also names that nobody knows."""
    return name not in (START, RAW_START, *BASELINES)


def seeds_of(name: str) -> int:
    """Runs that a system is ranked by: recipes learn by a seed, the start and the baselines are judged once."""
    return SEEDS if is_trained(name) else 1


def is_graph_study(name: str) -> bool:
    """Whether it stands beside scincl in a table of its own."""
    return name in SYSTEMS and SYSTEMS[name].is_graph_study


def is_variant(name: str) -> bool:
    """
    >>> is_variant("weave, without bands"), is_variant("weave")
    (True, False)
    """
    return name.startswith(f"{WEAVE}, ")
