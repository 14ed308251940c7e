"""The models a recipe begins with: those it names, others in their place, or models of recipes that run first.

    with_start(load_recipe("specter"), "minilm").table("encoder")["init"]     "minilm", pooled as MiniLM is
    with_aligner(recipe, "minilm").table("alignment")["encoder"]              "minilm"

A start model that says how its tokens become a vector (a sentence-transformers folder) is pooled as it says; a plain
one as the recipe says. `--set encoder.pooling=cls` decides for both; aspect words, which no start model has, stay. In a
chain the first recipe gets the start model; so does a recipe whose model aligns sentences.

An encoder that reads only the papers that some tasks ask about, where a suite shares one list of papers among all.

    Narrowed(encoder, suite.choose(["cite"]), cache=cache)       reads a quarter of a corpus suite's papers

Answers are those of `EncoderSystem`; tasks that were not named must not be judged with it, as their papers have no vector.

Judging the start model and the trained ones by every suite, and saying whether training helped.

A model reads papers as it did in training: with the recipe's parts of the text, pooling and length. Parts that a suite
does not have, such as venues and authors, are left out there. A recipe whose losses read sentences is judged by the
distance between sentences that it trains, and so is its start model. A model with aspect heads is judged by its own
vector, as any other, and beside that in every space.

The stage of training: one encoder a seed, in model/, model-1/, model-2/ and so on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.aspects import ALL, AspectHeads, find_heads
from citeweave.encoders.delta import open_model
from citeweave.encoders.encoder import Encoder
from citeweave.encoders.model_folder import ASPECT_WORDS
from citeweave.encoders.model_names import MINILM, hub_name, locate
from citeweave.evaluation.compare import Comparison, compare
from citeweave.evaluation.encoder_systems import ENCODER, MATCHING, EncoderSystem, aspect_spaces
from citeweave.evaluation.evaluate import EvaluationOptions, evaluate
from citeweave.evaluation.report import Report, comparison_as_markdown
from citeweave.evaluation.sentence_systems import SentenceSystem
from citeweave.evaluation.systems import ABSENT, PaperVectors, System
from citeweave.evaluation.tasks import ProbeTask, RankingTask, SearchTask, Suite, Task, TaskTexts
from citeweave.mining.align import AlignmentOptions
from citeweave.mining.rules import NODES
from citeweave.pipeline.recipe import ReadRecipe, Recipe, load_recipe
from citeweave.pipeline.run_folder import CHAIN, INTENTS, RunFolder, RunOptions
from citeweave.pipeline.stages import TrainingMaterial
from citeweave.pipeline.suites import Suites
from citeweave.training.options import EncoderOptions, TrainingOptions
from citeweave.training.sentence_objective import TrainedDistance


def init_of(recipe: Recipe) -> str:
    """Return the start model that a recipe names."""
    return str(recipe.table("encoder").get("init", EncoderOptions().init))


def with_start(recipe: Recipe, init: str, *, download: bool = True, chains: bool = True) -> Recipe:
    """Return a recipe with another start model; without `download`, a model that is not local is not checked.

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
    """Return whether the recipe's pooling overrides the start model's: it was set, or the recipe is about it."""
    return recipe.is_set("encoder.pooling") or recipe.table("encoder").get("pooling") == ASPECT_WORDS


def aligner_of(recipe: Recipe) -> str:
    """Return the model that aligns sentences in a recipe; empty if it aligns none."""
    table = recipe.table("alignment")
    return str(table.get("encoder", AlignmentOptions().encoder)) if table else ""


def with_aligner(recipe: Recipe, aligner: str) -> Recipe:
    """Return a recipe with another encoder for aligning sentences."""
    if not aligner:
        return recipe
    if recipe.table("alignment"):
        table = {**recipe.table("alignment"), "encoder": aligner}
        return dataclasses.replace(recipe, tables={**recipe.tables, "alignment": table})
    if not _aligns(recipe):
        raise UserError(f"--aligner is {aligner!r}, and recipe {recipe.name} aligns no sentences; leave it out")
    return recipe


def chained(recipe: Recipe) -> dict[str, Recipe]:
    """Return the recipes whose models this recipe starts from, by stage name.

    >>> {stage: recipe.name for stage, recipe in chained(load_recipe("specter_cocite")).items()}
    {'init-specter': 'specter'}
    """
    named = {"init": init_of(recipe), "aligner": aligner_of(recipe)}
    inner = {role: load_recipe(name.removeprefix(CHAIN)) for role, name in named.items() if name.startswith(CHAIN)}
    return {f"{role}-{each.label}": each for role, each in inner.items()}


def options_of(inner: Recipe, options: RunOptions) -> RunOptions:
    """Return the run options of a recipe that runs first."""
    return dataclasses.replace(options, seeds=1, aligner=options.aligner if _aligns(inner) else "")


def _aligns(recipe: Recipe) -> bool:
    """Return whether a recipe, or one that runs before it, aligns sentences."""
    return bool(recipe.table("alignment")) or any(map(_aligns, chained(recipe).values()))


def check_chain(recipe: Recipe, seen: tuple[str, ...] = ()) -> None:
    """Refuse recipes that start from each other's models in a circle."""
    if recipe.name in seen:
        circle = " -> ".join([*seen, recipe.name])
        raise UserError(
            f"encoder.init or alignment.encoder leads in a circle: {circle}; give one of them another model"
        )
    for inner in chained(recipe).values():
        check_chain(inner, (*seen, recipe.name))


# An encoder that reads only the papers that some tasks ask about, where a suite shares one list of papers among all.

Rows = NDArray[np.int64]


class Narrowed(EncoderSystem):
    """An encoder that embeds only the papers that the selected tasks of a suite need."""

    def __init__(
        self, encoder: Encoder, suite: Suite, *, cache: Path | None, text_recipe: TextRecipe, reporter: Reporter = QUIET
    ) -> None:
        super().__init__(encoder, cache=cache, text_recipe=text_recipe, reporter=reporter)
        self._rows = needed_rows(suite)
        self._whole: dict[str, PaperVectors] = {}

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        rows = self._rows.get(texts.hash)
        if rows is None or len(rows) == len(texts) or texts.lacking:
            return super().vectors(texts)
        if texts.hash not in self._whole:
            found = super().vectors(_part(texts, rows))
            matrix = np.zeros((len(texts), found.matrix.shape[1]), np.float32)  # (papers, dimension)
            state = np.full(len(texts), ABSENT, found.state.dtype)  # (papers,)
            matrix[rows], state[rows] = found.matrix, found.state
            self._whole[texts.hash] = PaperVectors(matrix, state)
        return self._whole[texts.hash]


def needed_rows(suite: Suite) -> dict[str, Rows]:
    """Map the hash of a suite's texts to the rows that its tasks need; texts that are all needed are left out."""
    found: dict[str, Rows] = {}
    whole = set()
    for task in suite.tasks:
        rows = _rows_of(task)
        if rows is None:
            whole.add(task.texts.hash)
        else:
            found[task.texts.hash] = np.union1d(found.get(task.texts.hash, rows), rows)
    return {name: rows for name, rows in found.items() if name not in whole}


def _rows_of(task: Task) -> Rows | None:
    if isinstance(task, RankingTask) and task.reviewers is None:
        return np.unique(np.concatenate([task.pools.queries, task.pools.candidates]))
    if isinstance(task, ProbeTask):
        return np.unique(np.concatenate([task.train, task.test]))
    if isinstance(task, SearchTask):
        return np.unique(np.concatenate([task.queries, task.candidates, task.judgments.queries, task.judgments.candidates]))
    return None


def _part(texts: TaskTexts, rows: Rows) -> TaskTexts:
    at = rows.tolist()
    return TaskTexts(
        [texts.ids[row] for row in at], [texts.titles[row] for row in at], [texts.abstracts[row] for row in at]
    )


# Judging the start model and the trained ones by every suite, and saying whether training helped.

START = "start"
FACETED = ("csfcube", INTENTS)
"""Suites whose queries ask about one of these aspects."""

FACETS = ("background", "method", "result")

SpaceReports = Mapping[str, Mapping[str, Sequence[Report]]]
"""Suite -> aspect space -> reports on the trained models."""


@dataclass(frozen=True, slots=True)
class SystemSettings:
    """What a model of a run reads of a paper, and how two papers are compared in its reports."""

    text: TextRecipe
    distance: TrainedDistance | None = None
    """Between their sentences; None = between their vectors, as the suite says."""

    @property
    def key(self) -> list[str]:
        """Return what a report of the run depends on."""
        return [self.text.hash, *([repr(self.distance)] if self.distance else [])]


@dataclass
class Judge:
    """A trained model's folder, or a start model with the recipe's settings, by one suite.

    The model is loaded when it is first needed, and reads every paper once, in however many spaces it is judged.
    """

    model: Path | EncoderOptions
    name: str
    suites: Suites
    suite: str
    reading: SystemSettings
    reporter: Reporter = field(default_factory=lambda: QUIET)

    def spaces(self) -> tuple[str, ...]:
        """Aspect spaces to judge beside the encoder's own vector; none of a start model."""
        heads = self._heads()
        if heads is None:
            return ()
        return (*heads.names, ALL, *((MATCHING,) if self.suite in FACETED and set(FACETS) <= set(heads.names) else ()))

    def judge(self, folder: Path, space: str = ENCODER) -> Report:
        """Write the report of one space."""
        options, read, tasks = self.suites.options, self.suites.read(self.suite), self.suites.tasks(self.suite)
        how = EvaluationOptions(distance=self.reading.distance.name if self.reading.distance else "")
        return evaluate(
            self._judged[space],
            read,
            folder,
            tasks=tasks,
            options=how,
            overwrite=options.overwrite,
            reporter=self.reporter,
        )

    def _heads(self) -> AspectHeads | None:
        if isinstance(self.model, EncoderOptions) or self.reading.distance is not None:
            return None
        return find_heads(self.model)

    @cached_property
    def _judged(self) -> dict[str, System]:
        options, distance = self.suites.options, self.reading.distance
        encoder = dataclasses.replace(_load(self.model, options.device), name=self.name)
        if distance is not None:
            temperature = distance.temperature if distance.name == "attention" else None
            by_sentence = SentenceSystem(
                encoder, name=self.name, metric=distance.metric, temperature=temperature, reporter=self.reporter
            )
            return {ENCODER: by_sentence}
        whole = Narrowed(
            encoder,
            self.suites.read(self.suite).choose(self.suites.tasks(self.suite)),
            cache=options.cache if isinstance(self.model, EncoderOptions) else None,
            text_recipe=self.reading.text,
            reporter=self.reporter,
        )
        heads = self._heads()
        return {ENCODER: whole} if heads is None else aspect_spaces(whole, heads)


def _load(model: Path | EncoderOptions, device: str) -> Any:
    if isinstance(model, EncoderOptions):
        from citeweave.training.train import load_start_model

        return load_start_model(model, device)
    from citeweave.encoders.encoder import load_encoder

    return load_encoder(model, device=device)


def compare_runs(
    start: Mapping[str, Report], trained: Mapping[str, Sequence[Report]], name: str, *, resamples: int
) -> dict[str, Comparison]:
    """Compare the trained models of a run with its start model, suite by suite."""
    name = name if name != START else f"{name} (trained)"
    return {
        suite: compare({START: [report], name: list(trained[suite])}, resamples=resamples)
        for suite, report in start.items()
    }


def comparison_page(comparisons: Mapping[str, Comparison], spaces: SpaceReports | None = None) -> str:
    """Format all comparisons of a run as Markdown, one heading per suite, with aspect spaces below."""
    parts = []
    for suite, found in comparisons.items():
        parts.append(f"## {suite}\n\n{comparison_as_markdown(found)}")
        if spaces and spaces.get(suite):
            parts.append(_space_table(found, spaces[suite]))
    return "\n".join(parts)


def _space_table(comparison: Comparison, spaces: Mapping[str, Sequence[Report]]) -> str:
    """Format mean metrics over seeds per aspect space; a dash for tasks that a space cannot answer."""
    names = [name for name in comparison.metrics if name in comparison.queries]
    own = comparison.values[comparison.systems[-1]]
    lines = [["space", *names], ["---"] * (len(names) + 1)]
    lines.append(["the encoder's vector", *(f"{own[name]:.2f}" for name in names)])
    for space, reports in spaces.items():
        known = [[report.metrics[name] for report in reports if name in report.metrics] for name in names]
        lines.append([space, *(f"{sum(values) / len(values):.2f}" if values else "-" for values in known)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# The stage of training: one encoder a seed, in model/, model-1/, model-2/ and so on.


@dataclass
class ModelStages:
    """The training stages of a run: from samples to one encoder per seed."""

    run: RunFolder
    recipe: Recipe
    read: ReadRecipe
    options: RunOptions
    reporter: Reporter

    def train(self, material: TrainingMaterial, encoder: EncoderOptions) -> list[Path]:
        """Train one model per seed of a run; return their folders."""
        training = self.read.training
        assert training is not None
        return [
            self._train(material, encoder, dataclasses.replace(training, seed=seed, seeds=1), number)
            for number, seed in enumerate(seeds_of(training, self.options))
        ]

    def _train(
        self, material: TrainingMaterial, encoder: EncoderOptions, training: TrainingOptions, number: int
    ) -> Path:
        def make(folder: Path) -> Mapping[str, Any]:
            from citeweave.training.load_data import DataSources
            from citeweave.training.options import CardNotes, TrainingPlan
            from citeweave.training.train import train_encoder

            teacher = material.inputs.vectors.get(NODES) if "student_teacher" in training.losses else None
            about = CardNotes(
                recipe=self.recipe.label,
                tables=self.recipe.tables,
                held_out=self.options.held_out,
                audit=self.run.facts("audited") or None,
            )
            found = train_encoder(
                material.corpus,
                material.samples,
                folder,
                TrainingPlan(encoder, training, about),
                sources=DataSources(graph=material.inputs.graph, teacher=teacher, suite=material.watched),
                device=self.options.device,
                overwrite=self.options.overwrite,
                reporter=self.reporter,
            )
            return {"seed": training.seed, "before": found.before, "after": found.after}

        stages = self.run.record["stages"]
        inputs = [
            material.samples.hash,
            self.start_key(encoder),
            asdict(training),
            str(stages.get("graph", {}).get("mark")),
            material.watched is not None,
        ]
        return self.run.run(f"model-{number}" if number else "model", inputs, make)

    @staticmethod
    def start_key(encoder: EncoderOptions) -> Any:
        """Return what identifies the start model: the content of its folder, or its hub name."""
        if hub_name(encoder.init):
            return [asdict(encoder)]
        model = open_model(locate(encoder.init).folder)
        return [{**asdict(encoder), "init": ""}, model.revision(model.settings)]


def seeds_of(training: TrainingOptions, options: RunOptions) -> range:
    """Return the seeds that a run trains with."""
    return range(training.seed, training.seed + (options.seeds or training.seeds))
