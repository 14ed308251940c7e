"""The models a recipe begins with: those it names, others in their place, or models of recipes that run first.

    with_start(load_recipe("specter"), "minilm").table("encoder")["init"]     "minilm", pooled as MiniLM is
    with_aligner(recipe, "minilm").table("alignment")["encoder"]              "minilm"

A start model that says how its tokens become a vector (a sentence-transformers folder) is pooled as it says; a plain
one as the recipe says. `--set encoder.pooling=cls` decides for both; aspect words, which no start model has, stay. In a
chain the first recipe gets the start model; so does a recipe whose model aligns sentences.
"""

from __future__ import annotations

import dataclasses

from citeweave.encoders.locating import MINILM, hub_name, locate
from citeweave.encoders.model_folder import ASPECT_WORDS
from citeweave.encoders.saved.deltas import open_model
from citeweave.errors import UserError
from citeweave.mining.aligning.options import AlignmentOptions
from citeweave.pipeline.options import CHAIN, RunOptions
from citeweave.recipe import Recipe, load_recipe
from citeweave.training.options import EncoderOptions


def init_of(recipe: Recipe) -> str:
    """The start model that the recipe names."""
    return str(recipe.table("encoder").get("init", EncoderOptions().init))


def with_start(recipe: Recipe, init: str, *, download: bool = True, chains: bool = True) -> Recipe:
    """The recipe with another start model; without `download` nothing is asked of a model that is not here.

    A recipe that begins with another one's model keeps it, where that one runs first (`chains`).
    """
    if not init or (chains and init_of(recipe).startswith(CHAIN)):
        return recipe
    encoder = {**recipe.table("encoder"), "init": init}
    may_look = download or init == MINILM or not hub_name(init)
    is_open = "pooling" in encoder and not keeps_pooling(recipe)
    if is_open and may_look and open_model(locate(init).folder).is_sentence_transformer:
        del encoder["pooling"]
    return dataclasses.replace(recipe, tables={**recipe.tables, "encoder": encoder})


def keeps_pooling(recipe: Recipe) -> bool:
    """Whether the recipe's pooling counts whatever the start model says: it was set, or is what the recipe is about."""
    return recipe.is_set("encoder.pooling") or recipe.table("encoder").get("pooling") == ASPECT_WORDS


def aligner_of(recipe: Recipe) -> str:
    """The model that aligns sentences, empty where the recipe aligns none."""
    table = recipe.table("alignment")
    return str(table.get("encoder", AlignmentOptions().encoder)) if table else ""


def with_aligner(recipe: Recipe, aligner: str) -> Recipe:
    """The recipe with another encoder for aligning sentences."""
    if not aligner:
        return recipe
    if recipe.table("alignment"):
        table = {**recipe.table("alignment"), "encoder": aligner}
        return dataclasses.replace(recipe, tables={**recipe.tables, "alignment": table})
    if not _aligns(recipe):
        raise UserError(f"--aligner is {aligner!r}, and recipe {recipe.name} aligns no sentences; leave it out")
    return recipe


def chained(recipe: Recipe) -> dict[str, Recipe]:
    """Recipes that run first, by the name of their stage.

    >>> {stage: recipe.name for stage, recipe in chained(load_recipe("specter_cocite")).items()}
    {'init-specter': 'specter'}
    """
    named = {"init": init_of(recipe), "aligner": aligner_of(recipe)}
    inner = {role: load_recipe(name.removeprefix(CHAIN)) for role, name in named.items() if name.startswith(CHAIN)}
    return {f"{role}-{each.label}": each for role, each in inner.items()}


def options_of(inner: Recipe, options: RunOptions) -> RunOptions:
    """How a recipe that runs first is run."""
    return dataclasses.replace(options, seeds=1, aligner=options.aligner if _aligns(inner) else "")


def _aligns(recipe: Recipe) -> bool:
    """Whether the recipe, or one that runs before it, aligns sentences."""
    return bool(recipe.table("alignment")) or any(map(_aligns, chained(recipe).values()))


def check_chain(recipe: Recipe, seen: tuple[str, ...] = ()) -> None:
    """Refuse recipes that begin with each other's models in a circle."""
    if recipe.name in seen:
        circle = " -> ".join([*seen, recipe.name])
        raise UserError(
            f"encoder.init or alignment.encoder leads in a circle: {circle}; give one of them another model"
        )
    for inner in chained(recipe).values():
        check_chain(inner, (*seen, recipe.name))
