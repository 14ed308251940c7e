"""What a whole recipe would cost for a literature of some size on some machine: its stages, from import to reports.

    sizes = given_sizes(52_000_000, 463_000_000, texts=680_967)
    print(estimate_recipe(load_recipe("scincl", ["mining.anchors=136820"]), sizes, machine_of("h200")))

Reads the recipe and, of a model in a folder, its shape. Looks at no corpus, loads no model and runs nothing. A recipe that
begins with another one's model counts that one's mining and training too.

What a run would do: its stages with sizes, time and memory, and which of them are there already. Makes nothing.

    print(plan_run(load_recipe("specter"), "corpus/", "run/", RunOptions(init="minilm")))

Before samples are mined their number is guessed from the rules: as if every paper were an anchor and every rule found
what it asks for.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from citeweave.core.errors import UserError, require
from citeweave.core.executor import available_cores
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derive import estimate_texts
from citeweave.encoders.delta import open_model
from citeweave.encoders.model_names import MINILM, WEAVE, hub_name, locate
from citeweave.mining.align import AlignmentOptions
from citeweave.pipeline import cost_constants, stage_costs
from citeweave.pipeline.cost import Estimate, memory_asked, picks_of, triplets_of, uses_graph_vectors
from citeweave.pipeline.cost_constants import value
from citeweave.pipeline.recipe import ReadRecipe, Recipe, read_recipe
from citeweave.pipeline.run import identity_of, prepare
from citeweave.pipeline.run_folder import AUTO, CHAIN, CORPUS, RunOptions, check_identity, read_record
from citeweave.pipeline.run_folder import INTENTS as INTENT_SUITE
from citeweave.pipeline.stage_costs import MICRO_TOKENS, SENTENCE_TOKENS, SENTENCES, SUITE_PAPERS
from citeweave.pipeline.stages import ALIGN_STAGE, INTENTS_STAGE, must_be_found
from citeweave.pipeline.suites import check_suites, suite_names
from citeweave.pipeline.training_stages import chained, check_chain, options_of, seeds_of
from citeweave.training.options import TrainingOptions

if TYPE_CHECKING:
    from citeweave.corpus.derived_texts import DerivedTexts
    from citeweave.mining.rules import MiningRules
    from citeweave.pipeline.cost import Sizes, StageWork
    from citeweave.pipeline.cost_constants import Machine


SHAPES = {MINILM: cost_constants.MINILM, WEAVE: cost_constants.MINILM, "bert-base": cost_constants.BERT_BASE}
"""Names of shapes for --init, beside folders and hub names."""


def estimate_recipe(recipe: Recipe, sizes: Sizes, machine: Machine, *, init: str = "") -> Estimate:
    """Estimate the cost of every stage of a recipe for a literature and a machine; `init` replaces its start model."""
    check_chain(recipe)
    works = [stage_costs.import_work(sizes, machine.cores), *_recipe_works(recipe, sizes, machine, init)]
    words = f"{sizes.papers:,} papers and {sizes.citations:,} citations"
    return Estimate(recipe.label, machine, words, works)


def shape_of(name: str) -> cost_constants.NetworkShape:
    """Return the network shape of a start model; a hub model counts as BERT-base, since nothing is downloaded."""
    if name in SHAPES:
        return SHAPES[name]
    hub = hub_name(name)
    if name.startswith(CHAIN) or hub:
        return cost_constants.MINILM if hub == hub_name(MINILM) else cost_constants.BERT_BASE
    if not Path(name).is_dir():
        raise UserError(
            f"--init is {name!r}; it must be {', '.join(SHAPES)}, the folder of a model, or owner/name of one on the hub"
        )
    return cost_constants.read_shape(open_model(locate(name).folder).weights)


def _recipe_works(recipe: Recipe, sizes: Sizes, machine: Machine, init: str) -> list[StageWork]:
    """List the work of all stages after the import."""
    read = read_recipe(recipe)
    works = [_graph_work(read, sizes), *_chain_works(recipe, sizes, machine, init)]
    if read.training is None:
        return works
    shape, tokens = shape_of(init or read.encoder.init), min(sizes.tokens, float(read.encoder.max_tokens))
    works.append(stage_costs.embedding_work(shape, sizes, tokens))
    if read.training.reads_sentences:
        works.append(stage_costs.sentences_work(shape, sizes, tokens))
    works.append(stage_costs.index_work(shape, sizes, tokens, sentences=read.training.reads_sentences))
    works.append(stage_costs.evaluation_work(shape, sizes, tokens, 1 + read.training.seeds))
    return works


def _graph_work(read: ReadRecipe, sizes: Sizes) -> StageWork:
    """Return the work of building the graph, sorted in the memory that its walks get."""
    memory = memory_asked(sizes.papers, read.graph) if _walks(read) else read.graph.vectors.memory
    return stage_costs.graph_work(sizes, memory)


def _walks(read: ReadRecipe) -> bool:
    """Return whether the recipe makes node vectors."""
    teacher = read.training is not None and "student_teacher" in read.training.losses
    return uses_graph_vectors(read.rules) or teacher


def _chain_works(recipe: Recipe, sizes: Sizes, machine: Machine, init: str) -> list[StageWork]:
    """List the mining and training work of the recipes that run first and of this one."""
    first = [
        dataclasses.replace(work, name=f"{stage}/{work.name}")
        for stage, each in chained(recipe).items()
        for work in _chain_works(each, sizes, machine, init)
    ]
    return [*first, *_training_works(read_recipe(recipe), sizes, machine, init)]


def _training_works(read: ReadRecipe, sizes: Sizes, machine: Machine, init: str) -> list[StageWork]:
    """List the mining and training work of one recipe."""
    rules = read.rules
    works = [stage_costs.intents_work(sizes.contexts)] if rules.needs_intents and sizes.contexts else []
    if read.texts is not None:
        sizes = derived_sizes(sizes, read.texts)
    if _walks(read):
        works += stage_costs.vectors_work(sizes, read.graph, parts=rules.aspect_graphs)
    anchors = anchors_of(rules, sizes)
    works += stage_costs.mining_work(sizes, rules, read.graph.vectors.dimension, anchors)
    if read.alignment is not None:
        works.append(stage_costs.aligning_work(shape_of(read.alignment.encoder), anchors))
    if read.training is None:
        return works
    shape, tokens = shape_of(init or read.encoder.init), min(sizes.tokens, float(read.encoder.max_tokens))
    one = stage_costs.training_work(shape, read.training, rules, anchors, tokens, gpu=machine.gpus > 0)
    several = [dataclasses.replace(one, name=f"training, seed {seed}") for seed in range(1, read.training.seeds)]
    return [*works, stage_costs.tokens_work(sizes.texts, tokens), one, *several]


def anchors_of(rules: MiningRules, sizes: Sizes) -> int:
    """Estimate the number of anchors: every text, or every pair of papers cited in one sentence."""
    possible = round(value("contexts.pair") * sizes.contexts) if rules.from_contexts else sizes.texts
    return min(possible, rules.anchors) if rules.anchors else possible


def derived_sizes(sizes: Sizes, texts: DerivedTexts) -> Sizes:
    """Return the sizes of the derived texts that a recipe trains on instead of papers."""
    if texts.of == "contexts":
        number, tokens = max(1, round(value("contexts.pair") * sizes.contexts)), 40.0
    elif texts.of == "titles":
        number, tokens = sizes.papers + 2 * sizes.texts, sizes.tokens / 2
    else:
        number, tokens = texts.per_paper * sizes.texts, sizes.tokens / 2
    return dataclasses.replace(sizes, papers=number, citations=2 * number, texts=number, tokens=tokens, paths={})


# What a run would do: its stages with sizes, time and memory, and which of them are there already. Makes nothing.

SENTENCES_A_SECOND = 150
"""Citing sentences that the classifier of intents reads on two cores, more or less."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One stage of a planned run with its size, time and memory, and whether it is already done."""

    name: str
    size: str
    seconds: float = 0.0
    memory: float = 0.0
    is_there: bool = False


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The stages that a run would execute, in order, for `citeweave run --dry-run`."""

    folder: Path
    recipe: Recipe
    stages: tuple[PlannedStage, ...]
    device: str

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages if not stage.is_there)

    @property
    def memory(self) -> float:
        return max(stage.memory for stage in self.stages)

    def __str__(self) -> str:
        lines = [f"{self.folder}: {self.recipe.label}, as it would be run on {self.device}"]
        width = max(len(stage.name) for stage in self.stages)
        for stage in self.stages:
            cost = "is there already" if stage.is_there else ", ".join(_cost(stage))
            lines.append(f"{stage.name:<{width}}  {stage.size}" + (f"  ({cost})" if cost else ""))
        lines.append(f"in all about {_time(self.seconds)} and {_size(self.memory)} of memory; within a factor of three")
        return "\n".join(lines)


def plan_run(recipe: Recipe, corpus: str | Path, output: str | Path, options: RunOptions | None = None) -> RunPlan:
    """Plan a run without executing it: the stages that `run_recipe` with the same arguments would make."""
    options, output = options or RunOptions(), Path(output)
    check_suites(options)
    recipe, read = prepare(recipe, options, download=False)
    opened = Corpus.open(corpus)
    check_identity(output, identity_of(recipe, opened, options), overwrite=options.overwrite)
    known = (read_record(output) or {"stages": {}})["stages"]
    device = options.device if options.device != "auto" else _device()
    planner = _Planner(opened, read, options, device, set(known))
    first = []
    for stage, inner in chained(recipe).items():
        plan = plan_run(inner, corpus, output / stage, options_of(inner, options))
        size = f"the recipe {inner.label} first"
        first.append(PlannedStage(stage, size, plan.seconds, plan.memory, stage in known))
    return RunPlan(output, recipe, (*first, *planner.stages()), device)


@dataclass(frozen=True, slots=True)
class _Planner:
    corpus: Corpus
    read: ReadRecipe
    options: RunOptions
    device: str
    known: set[str]

    def stages(self) -> list[PlannedStage]:
        training = self.read.training
        assert training is not None
        papers, citations = len(self.corpus), len(self.corpus.citing)
        anchors, tokens = self._read_texts()
        picks = picks_of(self.read.rules)
        found = [
            self._stage("corpus", f"{papers:,} papers without the references held out by {self.options.held_out}"),
            self._stage("graph", f"{papers:,} papers, {citations:,} citations"),
            self._stage("samples", f"up to {anchors:,} anchors with up to {picks} papers each"),
        ]
        if self.read.texts is not None:
            size = f"{self.read.texts.of} of them, up to {anchors:,} that may have a partner"
            found[1:2] = [self._stage("texts", size), self._stage("graph", "the texts and what relates them")]
        if self.options.intents == AUTO and must_be_found(self.read.rules, self.corpus):
            found.insert(1, self._intents())
        if self.read.alignment is not None:
            found.append(self._aligned(self.read.alignment, anchors))
        if self.options.suites:
            benchmarks = ", ".join(self.options.suites)
            found.insert(0, self._stage("audited", f"papers of {benchmarks} are looked for among {papers:,}"))
        for number, seed in enumerate(seeds_of(training, self.options)):
            found.append(self._training(training, number, seed, anchors, picks, tokens))
        names = suite_names(self.options)
        several = range(len(seeds_of(training, self.options)))
        for place in ("report-start", *(f"report-{number}" if number else "report" for number in several)):
            found += [self._report(place, name) for name in names]
        return found

    def _training(
        self, training: TrainingOptions, number: int, seed: int, anchors: int, picks: int, tokens: float
    ) -> PlannedStage:
        shape = self._shape()
        units = anchors if training.unit == "groups" else anchors * triplets_of(self.read.rules)
        steps = training.steps or max(1, round(units * training.share * training.epochs / training.batch))
        texts = steps * training.batch / max(1, units) * anchors * (1 + picks)
        seconds = cost_constants.train_seconds(shape, texts, tokens, self.device, available_cores())
        micro = training.micro_tokens or MICRO_TOKENS["cuda" if self.device.startswith("cuda") else "cpu"]
        memory = cost_constants.train_bytes(
            shape,
            int(min(micro, training.batch * (1 + picks) * tokens)),
            tokens,
            half=self.device.startswith("cuda"),
            trained=1.0 if training.parts == "all" else 0.001,
        )
        name = f"model-{number}" if number else "model"
        size = f"seed {seed}: {steps:,} steps of {training.batch} {training.unit}, texts of {tokens:.0f} tokens"
        return PlannedStage(name, size, seconds, memory, name in self.known)

    def _aligned(self, alignment: AlignmentOptions, papers: int) -> PlannedStage:
        texts, by = papers * SENTENCES, f"by {alignment.by} with {alignment.encoder}"
        shape = self._shape(alignment.encoder)
        seconds = cost_constants.embed_seconds(shape, texts, SENTENCE_TOKENS, self.device, available_cores())
        return PlannedStage(ALIGN_STAGE, f"up to {texts:,} sentences, {by}", seconds, 0.0, ALIGN_STAGE in self.known)

    def _intents(self) -> PlannedStage:
        number = len(self.corpus.contexts)
        size = f"{number:,} citing sentences read by the classifier of intents"
        return PlannedStage(INTENTS_STAGE, size, number / SENTENCES_A_SECOND, 0.0, INTENTS_STAGE in self.known)

    def _report(self, place: str, suite: str) -> PlannedStage:
        papers = min(len(self.corpus), SUITE_PAPERS) if suite in (CORPUS, INTENT_SUITE) else SUITE_PAPERS
        seconds = cost_constants.embed_seconds(self._shape(), papers, self._tokens(), self.device, available_cores())
        name = f"{place}/{suite}"
        return PlannedStage(name, f"up to {papers:,} papers read", seconds, 0.0, name in self.known)

    def _stage(self, name: str, size: str) -> PlannedStage:
        return PlannedStage(name, size, is_there=name in self.known)

    def _read_texts(self) -> tuple[int, float]:
        """Return how many texts can be anchors, and their mean number of tokens."""
        if self.read.texts is None:
            return self._anchors(), self._tokens()
        expected = estimate_texts(self.corpus, self.read.texts)
        return expected.anchors, cost_constants.tokens_of(expected.characters, self.read.encoder.max_tokens)

    def _anchors(self) -> int:
        has_text = (self.corpus.titles.lengths() > 0) & (self.corpus.abstracts.lengths() > 0)
        return int(has_text.sum())

    def _tokens(self) -> float:
        """Return the mean number of tokens per text of this corpus."""
        columns = {
            "title": self.corpus.titles,
            "abstract": self.corpus.abstracts,
            "venue": self.corpus.venues,
            "authors": self.corpus.authors,
        }
        lengths = np.sum([columns[part].lengths() for part in self.read.encoder.text], axis=0)  # (papers,)
        mean = float(lengths[lengths > 0].mean()) if (lengths > 0).any() else 0.0
        return cost_constants.tokens_of(mean, self.read.encoder.max_tokens)

    def _shape(self, name: str = "") -> cost_constants.NetworkShape:
        """Return the network shape of a local model, or of the start model; otherwise BERT-base's."""
        name = self.options.init if self.options.init and name.startswith(CHAIN) else name
        name = name or self.options.init or self.read.encoder.init
        if name.startswith(CHAIN) or (hub_name(name) and name != MINILM):
            return cost_constants.BERT_BASE
        return cost_constants.read_shape(open_model(locate(name).folder).weights)


def _device() -> str:
    return "cuda" if require("torch", extra="minilm").cuda.is_available() else "cpu"


def _cost(stage: PlannedStage) -> list[str]:
    found = [f"about {_time(stage.seconds)}"] if stage.seconds else []
    return found + ([f"{_size(stage.memory)} of memory"] if stage.memory else [])


def _time(seconds: float) -> str:
    """
    >>> _time(3), _time(400), _time(9000), _time(400_000)
    ('3 seconds', '7 minutes', '2.5 hours', '4.6 days')
    """
    if seconds < 90:
        return f"{round(seconds)} seconds" if seconds >= 1.5 else "a second"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def _size(number: float) -> str:
    return f"{number / 2**30:.1f} GB"
