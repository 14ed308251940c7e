"""The start model of a recipe: the one it names, another in its place, or the model of a recipe that runs first.

    with_start(load_recipe("specter"), "minilm").table("encoder")["init"]     "minilm", pooled as MiniLM is

A model that says how its tokens become a vector (a sentence-transformers folder) is pooled as it says; a plain one as
the recipe says. `--set encoder.pooling=cls` decides for both. In a chain the first recipe gets the start model.
"""

from __future__ import annotations

import dataclasses

from citeweave.encoders.locating import MINILM, hub_name, locate
from citeweave.encoders.saved.deltas import open_model
from citeweave.errors import UserError
from citeweave.pipeline.options import CHAIN
from citeweave.recipe import Recipe, load_recipe
from citeweave.training.options import EncoderOptions


def init_of(recipe: Recipe) -> str:
    """The start model that the recipe names."""
    return str(recipe.table("encoder").get("init", EncoderOptions().init))


def with_start(recipe: Recipe, init: str, *, download: bool = True) -> Recipe:
    """The recipe with another start model; without `download` nothing is asked of a model that is not here."""
    if not init or init_of(recipe).startswith(CHAIN):
        return recipe
    encoder = {**recipe.table("encoder"), "init": init}
    may_look = download or init == MINILM or not hub_name(init)
    is_open = "pooling" in encoder and not recipe.is_set("encoder.pooling")
    if is_open and may_look and open_model(locate(init).folder).is_sentence_transformer:
        del encoder["pooling"]
    return dataclasses.replace(recipe, tables={**recipe.tables, "encoder": encoder})


def check_chain(recipe: Recipe) -> None:
    """Refuse recipes that start from each other's models in a circle."""
    seen = [recipe.name]
    while (init := init_of(recipe)).startswith(CHAIN):
        recipe = load_recipe(init.removeprefix(CHAIN))
        if recipe.name in seen:
            circle = " -> ".join([*seen, recipe.name])
            raise UserError(f"encoder.init leads in a circle: {circle}; give one of them another start model")
        seen.append(recipe.name)
