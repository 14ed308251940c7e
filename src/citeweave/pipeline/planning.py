"""What a run would do: its stages with sizes, time and memory, and which of them are there already. Makes nothing.

    print(plan_run(load_recipe("specter"), "corpus/", "run/", RunOptions(init="minilm")))

Before samples are mined their number is guessed from the rules: as if every paper were an anchor and every rule found
what it asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derived.deriving import expected_texts
from citeweave.encoders.locating import MINILM, hub_name, locate
from citeweave.encoders.saved.deltas import open_model
from citeweave.estimate import networks
from citeweave.estimate.model_stages import MICRO_TOKENS, SENTENCE_TOKENS, SENTENCES, SUITE_PAPERS
from citeweave.estimate.samples import picks_of, triplets_of
from citeweave.extras import require
from citeweave.machine import cores
from citeweave.mining.aligning.options import AlignmentOptions
from citeweave.pipeline.aligning import STAGE
from citeweave.pipeline.intents import STAGE as INTENTS
from citeweave.pipeline.intents import must_be_found
from citeweave.pipeline.model_stages import seeds_of
from citeweave.pipeline.options import AUTO, CHAIN, CORPUS, RunOptions
from citeweave.pipeline.options import INTENTS as INTENT_SUITE
from citeweave.pipeline.run import identity_of, prepare
from citeweave.pipeline.run_folder import check_identity, read_record
from citeweave.pipeline.starting import chained, options_of
from citeweave.pipeline.suites import check_suites, suite_names
from citeweave.recipe import ReadRecipe, Recipe
from citeweave.training.options import TrainingOptions

SENTENCES_A_SECOND = 150
"""Citing sentences that the classifier of intents reads on two cores, more or less."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One stage and what it costs."""

    name: str
    size: str
    seconds: float = 0.0
    memory: float = 0.0
    is_there: bool = False


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The stages of a run, in order."""

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
    """The stages that `run_recipe` with the same arguments would make."""
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
        seconds = networks.train_seconds(shape, texts, tokens, self.device, cores())
        micro = training.micro_tokens or MICRO_TOKENS["cuda" if self.device.startswith("cuda") else "cpu"]
        memory = networks.train_bytes(
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
        seconds = networks.embed_seconds(shape, texts, SENTENCE_TOKENS, self.device, cores())
        return PlannedStage(STAGE, f"up to {texts:,} sentences, {by}", seconds, 0.0, STAGE in self.known)

    def _intents(self) -> PlannedStage:
        number = len(self.corpus.contexts)
        size = f"{number:,} citing sentences read by the classifier of intents"
        return PlannedStage(INTENTS, size, number / SENTENCES_A_SECOND, 0.0, INTENTS in self.known)

    def _report(self, place: str, suite: str) -> PlannedStage:
        papers = min(len(self.corpus), SUITE_PAPERS) if suite in (CORPUS, INTENT_SUITE) else SUITE_PAPERS
        seconds = networks.embed_seconds(self._shape(), papers, self._tokens(), self.device, cores())
        name = f"{place}/{suite}"
        return PlannedStage(name, f"up to {papers:,} papers read", seconds, 0.0, name in self.known)

    def _stage(self, name: str, size: str) -> PlannedStage:
        return PlannedStage(name, size, is_there=name in self.known)

    def _read_texts(self) -> tuple[int, float]:
        """How many texts may be anchors, and their tokens in the mean."""
        if self.read.texts is None:
            return self._anchors(), self._tokens()
        expected = expected_texts(self.corpus, self.read.texts)
        return expected.anchors, networks.tokens_of(expected.characters, self.read.encoder.max_tokens)

    def _anchors(self) -> int:
        has_text = (self.corpus.titles.lengths() > 0) & (self.corpus.abstracts.lengths() > 0)
        return int(has_text.sum())

    def _tokens(self) -> float:
        """Of a text of this corpus, in the mean."""
        columns = {
            "title": self.corpus.titles,
            "abstract": self.corpus.abstracts,
            "venue": self.corpus.venues,
            "authors": self.corpus.authors,
        }
        lengths = np.sum([columns[part].lengths() for part in self.read.encoder.text], axis=0)  # (papers,)
        mean = float(lengths[lengths > 0].mean()) if (lengths > 0).any() else 0.0
        return networks.tokens_of(mean, self.read.encoder.max_tokens)

    def _shape(self, name: str = "") -> networks.Shape:
        """Of a model, or of the start model, where it lies here; else BERT-base's."""
        name = self.options.init if self.options.init and name.startswith(CHAIN) else name
        name = name or self.options.init or self.read.encoder.init
        if name.startswith(CHAIN) or (hub_name(name) and name != MINILM):
            return networks.BERT_BASE
        return networks.read_shape(open_model(locate(name).folder).weights)


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
