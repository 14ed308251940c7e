"""What a whole recipe would cost for a literature of some size on some machine: its stages, from import to reports.

    sizes = given_sizes(52_000_000, 463_000_000, texts=680_967)
    print(estimate_recipe(load_recipe("scincl", ["mining.anchors=136820"]), sizes, machine_of("h200")))

Reads the recipe and, of a model in a folder, its shape. Looks at no corpus, loads no model and runs nothing. A recipe that
begins with another one's model counts that one's mining and training too.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from citeweave.encoders.locating import MINILM, WEAVE, hub_name, locate
from citeweave.encoders.saved.deltas import open_model
from citeweave.errors import UserError
from citeweave.estimate import data_stages, model_stages, networks
from citeweave.estimate.constants import value
from citeweave.estimate.report import Estimate
from citeweave.estimate.samples import uses_graph_vectors
from citeweave.estimate.walking import memory_asked
from citeweave.pipeline.options import CHAIN
from citeweave.pipeline.starting import chained, check_chain
from citeweave.recipe import ReadRecipe, Recipe, read_recipe

if TYPE_CHECKING:
    from citeweave.corpus.derived.options import DerivedTexts
    from citeweave.estimate.machines import Machine
    from citeweave.estimate.sizes import Sizes
    from citeweave.estimate.work import Work
    from citeweave.mining.rules import MiningRules

SHAPES = {MINILM: networks.MINILM, WEAVE: networks.MINILM, "bert-base": networks.BERT_BASE}
"""Names of shapes for --init, beside folders and hub names."""


def estimate_recipe(recipe: Recipe, sizes: Sizes, machine: Machine, *, init: str = "") -> Estimate:
    """Every stage of a recipe; `init` replaces its start model."""
    check_chain(recipe)
    works = [data_stages.import_work(sizes, machine.cores), *_recipe_works(recipe, sizes, machine, init)]
    words = f"{sizes.papers:,} papers and {sizes.citations:,} citations"
    return Estimate(recipe.label, machine, words, works)


def shape_of(name: str) -> networks.Shape:
    """Of a model; one of the hub counts as BERT-base, for nothing is fetched to look at it."""
    if name in SHAPES:
        return SHAPES[name]
    hub = hub_name(name)
    if name.startswith(CHAIN) or hub:
        return networks.MINILM if hub == hub_name(MINILM) else networks.BERT_BASE
    if not Path(name).is_dir():
        raise UserError(
            f"--init is {name!r}; it must be {', '.join(SHAPES)}, the folder of a model, or owner/name of one on the hub"
        )
    return networks.read_shape(open_model(locate(name).folder).weights)


def _recipe_works(recipe: Recipe, sizes: Sizes, machine: Machine, init: str) -> list[Work]:
    """All after the import."""
    read = read_recipe(recipe)
    works = [_graph_work(read, sizes), *_chain_works(recipe, sizes, machine, init)]
    if read.training is None:
        return works
    shape, tokens = shape_of(init or read.encoder.init), min(sizes.tokens, float(read.encoder.max_tokens))
    works.append(model_stages.embedding_work(shape, sizes, tokens))
    if read.training.reads_sentences:
        works.append(model_stages.sentences_work(shape, sizes, tokens))
    works.append(model_stages.index_work(shape, sizes, tokens, sentences=read.training.reads_sentences))
    works.append(model_stages.evaluation_work(shape, sizes, tokens, 1 + read.training.seeds))
    return works


def _graph_work(read: ReadRecipe, sizes: Sizes) -> Work:
    """Citations are sorted in the memory that the walks over them get."""
    memory = memory_asked(sizes.papers, read.graph) if _walks(read) else read.graph.vectors.memory
    return data_stages.graph_work(sizes, memory)


def _walks(read: ReadRecipe) -> bool:
    """Whether node vectors are made."""
    teacher = read.training is not None and "student_teacher" in read.training.losses
    return uses_graph_vectors(read.rules) or teacher


def _chain_works(recipe: Recipe, sizes: Sizes, machine: Machine, init: str) -> list[Work]:
    """Mining and training of the recipes that run first, then of this one."""
    first = [
        dataclasses.replace(work, name=f"{stage}/{work.name}")
        for stage, each in chained(recipe).items()
        for work in _chain_works(each, sizes, machine, init)
    ]
    return [*first, *_training_works(read_recipe(recipe), sizes, machine, init)]


def _training_works(read: ReadRecipe, sizes: Sizes, machine: Machine, init: str) -> list[Work]:
    """Mining and training of one recipe."""
    rules = read.rules
    works = [model_stages.intents_work(sizes.contexts)] if rules.needs_intents and sizes.contexts else []
    if read.texts is not None:
        sizes = derived_sizes(sizes, read.texts)
    if _walks(read):
        works += data_stages.vectors_work(sizes, read.graph, parts=rules.aspect_graphs)
    anchors = anchors_of(rules, sizes)
    works += data_stages.mining_work(sizes, rules, read.graph.vectors.dimension, anchors)
    if read.alignment is not None:
        works.append(model_stages.aligning_work(shape_of(read.alignment.encoder), anchors))
    if read.training is None:
        return works
    shape, tokens = shape_of(init or read.encoder.init), min(sizes.tokens, float(read.encoder.max_tokens))
    one = model_stages.training_work(shape, read.training, rules, anchors, tokens, gpu=machine.gpus > 0)
    several = [dataclasses.replace(one, name=f"training, seed {seed}") for seed in range(1, read.training.seeds)]
    return [*works, model_stages.tokens_work(sizes.texts, tokens), one, *several]


def anchors_of(rules: MiningRules, sizes: Sizes) -> int:
    """Anchors that samples are mined for: as if every text were one, or every pair of papers in a citing sentence."""
    possible = round(value("contexts.pair") * sizes.contexts) if rules.from_contexts else sizes.texts
    return min(possible, rules.anchors) if rules.anchors else possible


def derived_sizes(sizes: Sizes, texts: DerivedTexts) -> Sizes:
    """Of the texts that are trained on in place of papers."""
    if texts.of == "contexts":
        number, tokens = max(1, round(value("contexts.pair") * sizes.contexts)), 40.0
    elif texts.of == "titles":
        number, tokens = sizes.papers + 2 * sizes.texts, sizes.tokens / 2
    else:
        number, tokens = texts.per_paper * sizes.texts, sizes.tokens / 2
    return dataclasses.replace(sizes, papers=number, citations=2 * number, texts=number, tokens=tokens, paths={})
