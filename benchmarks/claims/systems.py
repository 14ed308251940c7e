"""What the study trains: every shipped recipe and the variants that the texts' tables and figures name, in an order of priority.

>>> SYSTEMS["specter"].seeds, SYSTEMS["specter"].tier, SYSTEMS["scincl, k+ 100"].overrides
(5, 1, ('training.share=0.1', 'mining.positives.band=100'))

Tiers: 1 the headline orders, 2 systems of the main tables, 3 ablations and variants, 4 curves and all other recipes. Starts:
`mlm`, a masked-language model that never saw a citation; `minilm`, which was trained on citation pairs, the control;
`smollm2`, a causal language model. Does not train: see `run.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.table.systems import System as TableSystem
from citeweave.core.errors import UserError, choose
from citeweave.mining.rules import NODES
from citeweave.pipeline.recipe import load_recipe, read_recipe, shipped_recipes

CORPORA = ("peerread_plus", "elife")
STARTS = {"mlm": "recipe", "minilm": "own", "smollm2": "own"}
"""Start model -> whose pooling it is trained with: the recipe's, as SciBERT was, or its own."""

START = "start"
HEADLINE_SEEDS, SEEDS = 5, 3


@dataclass(frozen=True, slots=True)
class System(TableSystem):
    """Something that is trained and evaluated."""

    tier: int = 4
    seeds: int = SEEDS


def _system(name: str, *overrides: str, recipe: str = "", tier: int = 3, seeds: int = SEEDS) -> System:
    return System(name, recipe or name, overrides, tier=tier, seeds=seeds)


HEADLINE = ("specter", "scincl", "cocite", "specter_cl", "aspire_ot", "loss_study_triplet", "loss_study_infonce")
MAIN = (
    *(
        "specter_undirected",
        "specter_bidirectional",
        "specter_unidirectional",
        "scincl_biggraph",
        "sciaspect",
        "sciaspect_hybrid",
        "sciaspect_l2",
    ),
    *("loss_study_cosent", "loss_study_angle", "specter_cocite", "aspire_ts", "aspire_ts_ot", "specter_easy"),
)
ABLATIONS = (
    *(
        "specter_title",
        "specter_venue",
        "specter_author",
        "specter_author_field",
        "specter_apart",
        "scincl_10percent",
        "scincl_1percent",
        "scincl_bitfit",
    ),
    *("scincl_undirected", "scincl_wide", "scincl_kmeans", "scincl_threshold", "scincl_sorted_random", "scincl_mlm"),
    *("scincl_random",),
    *(
        "scincl_student_teacher",
        "scincl_joint",
        "cocite_25_1000",
        "cocite_25_3000",
        "cocite_200_3000",
        "cocite_500_3000",
    ),
    *("specter_cl_1p1n", "specter_cl_1p3easy", "specter_cl_2p", "specter_cl_4p", "specter_cl_5p"),
    *("sciaspect_misc", "sciaspect_weighted", "sciaspect_l2_easy", "sciaspect_l2_hard", "aspire_max", "aspire_att"),
    *("sciaspect_hybrid_05", "sciaspect_hybrid_06", "sciaspect_hybrid_08", "sciaspect_hybrid_09", "aspire_abs"),
    *("loss_study_triplet_mean", "loss_study_infonce_mean", "loss_study_cosent_mean", "loss_study_angle_mean"),
    *("signal_table_cocite", "specter_cocite_scibert", "oracle"),
)
TENTH = "training.share=0.1"
"""SciNCL, section 6: curves are drawn with a tenth of the training data."""

POSITIVE_RANKS = (5, 10, 25, 50, 100, 250, 500, 1000)
NEGATIVE_RANKS = (50, 100, 250, 500, 1000, 2000, 4000, 8000)
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
TEMPERATURES = (0.01, 0.1, 0.5)


def _curves() -> list[System]:
    names = [(f"scincl, k+ {rank}", "scincl", f"mining.positives.band={rank}") for rank in POSITIVE_RANKS]
    names += [(f"scincl, k- {rank}", "scincl", f"mining.negatives.hard.band={rank}") for rank in NEGATIVE_RANKS]
    above = "mining.negatives.hard.above"
    names += [(f"scincl, t- {value}", "scincl_threshold", f"{above}={value}") for value in THRESHOLDS]
    return [_system(name, TENTH, own, recipe=recipe, tier=4) for name, recipe, own in names]


def _variants() -> list[System]:
    key = "training.losses.supcon.temperature"
    found = [
        _system(f"specter_cl, temperature {value}", f"{key}={value}", recipe="specter_cl") for value in TEMPERATURES
    ]
    found.append(_system("specter, cosine", "training.losses.triplet.distance=cosine", recipe="specter"))
    found.append(_system("scincl, k- 3000 of all data", "mining.negatives.hard.band=3000", recipe="scincl"))
    fastrp = ("graph.method=fastrp", "graph.dimension=256")
    return [*found, _system("cocite, fastrp", *fastrp, recipe="cocite", tier=1, seeds=HEADLINE_SEEDS)]


def _every() -> dict[str, System]:
    shipped = shipped_recipes()
    named = [
        *(_system(name, tier=1, seeds=HEADLINE_SEEDS) for name in HEADLINE),
        *(_system(name, tier=2) for name in MAIN),
        *(_system(name, tier=3) for name in ABLATIONS),
        *_variants(),
        *_curves(),
    ]
    found = {each.name: each for each in named if each.recipe in shipped}
    return found | {name: _system(name, tier=4, seeds=1) for name in shipped if name not in found}


SYSTEMS = _every()


def planned_seeds(name: str) -> int:
    """Return the number of seeds that a system is to have; a start is not trained.

    >>> planned_seeds("specter"), planned_seeds("start")
    (5, 1)
    """
    return SYSTEMS[name].seeds if name in SYSTEMS else 1


def chosen(names: Sequence[str] = (), skipped: Sequence[str] = ()) -> list[System]:
    """Return the systems of these names, all where none is named, by priority."""
    for name in (*names, *skipped):
        choose(name, SYSTEMS, "--systems")
    return sorted((SYSTEMS[name] for name in names or SYSTEMS if name not in skipped), key=lambda system: system.tier)


def not_trained_here(system: System) -> str:
    """Say why a recipe trains no encoder; empty where it does.

    >>> not_trained_here(SYSTEMS["aspire"])
    'it mines samples and trains nothing'
    """
    recipe = load_recipe(system.recipe, list(system.overrides))
    if not recipe.table("training"):
        return "it mines samples and trains nothing"
    return ""


COSTLY = {
    "intents": "intents of all citing sentences are classified",
    "edges": "node vectors are trained edge by edge",
}
"""What takes hours on two cores: `prepare --without` leaves it out."""


def costs_of(system: System) -> set[str]:
    """Return what is costly about mining a system.

    >>> costs_of(SYSTEMS["sciaspect"]), costs_of(SYSTEMS["scincl_biggraph"]), costs_of(SYSTEMS["specter"])
    ({'intents'}, {'edges'}, set())
    """
    recipe = load_recipe(system.recipe, list(system.overrides))
    rules = read_recipe(recipe).rules
    by_edges = rules.needs_vectors(NODES) and recipe.table("graph").get("method") == "edges"
    return {name for name, is_needed in (("intents", rules.needs_intents), ("edges", by_edges)) if is_needed}


def parse_starts(entries: Sequence[str]) -> dict[str, str]:
    """Parse NAME=FOLDER entries.

    >>> parse_starts(["mlm=models/mlm"])
    {'mlm': 'models/mlm'}
    """
    found = dict(entry.split("=", 1) if "=" in entry else (entry, "") for entry in entries)
    for name, folder in found.items():
        choose(name, STARTS, "--start")
        if not folder and name != "minilm":
            raise UserError(f"--start {name} needs the folder of a model: {name}=FOLDER")
    return found
