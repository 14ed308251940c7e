"""The model stages of a run: start model or chained recipes, one trained encoder per seed, evaluation and comparison.

    with_start_model(load_recipe("specter"), "minilm").table("encoder")["init"]     "minilm", pooled as MiniLM is
    with_aligner(recipe, "minilm").table("alignment")["encoder"]                    "minilm"

Start models. A start model that defines its pooling (a sentence-transformers folder) is pooled that way, a plain one as
the recipe says. `--set encoder.pooling=cls` decides for both; aspect words, which no start model has, stay. In a chain
the first recipe gets the start model; so does a recipe whose model aligns sentences.

Evaluation. A model reads papers as it did in training: the parts of the text, pooling and length are the recipe's. Parts
that a suite lacks, such as venues and authors, are left out there. A recipe whose losses read sentences is evaluated with
the distance between sentences that it trains, and so is its start model. A model with aspect heads is evaluated with its
own vector, like any other, and in every aspect space too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import artifact_matches, early_scratch_folder
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.executor import Executor, ShardTask
from citeweave.core.files import read_input, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.aspects import AspectHeads, find_heads
from citeweave.encoders.delta import model_to_download, open_model
from citeweave.encoders.embed import SHARD, EmbeddingOptions, embed_papers, plan_texts, text_maker
from citeweave.encoders.encoder import Encoder, load_encoder
from citeweave.encoders.model_folder import ASPECT_WORDS, TITLE_ABSTRACT, ModelFolder
from citeweave.encoders.model_names import MINILM, hub_name, locate, parse_random
from citeweave.encoders.shards import EncodingWorker, RemoteMaker, ShardPlan, write_vectors
from citeweave.evaluation.compare import Comparison, compare, comparison_as_markdown
from citeweave.evaluation.encoder_systems import ENCODER, MATCHING, EncoderSystem, aspect_spaces
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.options import EvaluationOptions
from citeweave.evaluation.report import Report
from citeweave.evaluation.sentence_systems import SentenceSystem
from citeweave.evaluation.systems import ABSENT, PaperVectors
from citeweave.evaluation.tasks import ProbeTask, RankingTask, SearchTask, Suite, Task, TaskTexts
from citeweave.mining.options import AlignmentOptions
from citeweave.mining.rules import NODES
from citeweave.pipeline.fit_bands import bands_as_facts
from citeweave.pipeline.recipe import Recipe, load_recipe, teacher_stages
from citeweave.pipeline.run_folder import CHAIN, INTENTS, RunFolder, RunOptions
from citeweave.pipeline.stages import TrainingInputs
from citeweave.pipeline.suites import Suites
from citeweave.training.options import EncoderOptions, TrainingOptions
from citeweave.vectors.vectors import KIND, VERSION, Vectors

if TYPE_CHECKING:
    from citeweave.training.sentence_objective import TrainedDistance

Rows = NDArray[np.int64]
START = "start"
FACETED = ("csfcube", INTENTS)
"""Suites whose queries ask about one facet."""

FACETS = ("background", "method", "result")
"""Aspects that queries of these suites ask about."""

SpaceReports = Mapping[str, Mapping[str, Sequence[Report]]]
"""Suite -> aspect space -> reports on the trained models."""


# --- start models and chains ---


def _start_model_name(recipe: Recipe) -> str:
    """Return the start model that a recipe names."""
    return str(recipe.table("encoder").get("init", EncoderOptions().init))


def with_start_model(recipe: Recipe, init: str, *, download: bool = True, chains: bool = True) -> Recipe:
    """Return a recipe with another start model; without `download`, a model that is not local is not checked.

    A recipe that begins with the model of another recipe keeps it if that one runs first (`chains`).
    """
    if not init or (chains and _start_model_name(recipe).startswith(CHAIN)):
        return recipe
    encoder = {**recipe.table("encoder"), "init": init}
    may_open = download or init == MINILM or not (hub_name(parse_random(init)[0]) or model_to_download(init))
    may_drop = "pooling" in encoder and not keeps_pooling(recipe)
    if may_drop and may_open and open_model(locate(parse_random(init)[0]).folder).is_sentence_transformer:
        del encoder["pooling"]
    return dataclasses.replace(recipe, tables={**recipe.tables, "encoder": encoder})


def keeps_pooling(recipe: Recipe) -> bool:
    """Return whether the recipe's pooling overrides the start model's: it was set, or the recipe is about it."""
    return recipe.is_set("encoder.pooling") or recipe.table("encoder").get("pooling") in (ASPECT_WORDS, TITLE_ABSTRACT)


def _aligner_name(recipe: Recipe) -> str:
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
        raise UserError(f"--aligner is {aligner!r}, but recipe {recipe.name} aligns no sentences; leave it out")
    return recipe


def chained_recipes(recipe: Recipe) -> dict[str, Recipe]:
    """Return the recipes to train first in a run, whose models this recipe starts from, by stage name.

    >>> {stage: recipe.name for stage, recipe in chained_recipes(load_recipe("specter_cocite")).items()}
    {'init-specter': 'specter'}
    """
    named = {"init": _start_model_name(recipe), "aligner": _aligner_name(recipe)}
    inner = {role: load_recipe(name.removeprefix(CHAIN)) for role, name in named.items() if name.startswith(CHAIN)}
    return {f"{role}-{each.label}": each for role, each in inner.items()}


def chained_options(inner: Recipe, options: RunOptions) -> RunOptions:
    """Return the run options of a recipe that runs first."""
    return dataclasses.replace(options, seeds=1, aligner=options.aligner if _aligns(inner) else "")


def _aligns(recipe: Recipe) -> bool:
    """Return whether a recipe, or one that runs before it, aligns sentences."""
    return bool(recipe.table("alignment")) or any(map(_aligns, chained_recipes(recipe).values()))


def check_chain(recipe: Recipe, seen: tuple[str, ...] = ()) -> None:
    """Refuse recipes that start from each other's models in a circle."""
    if recipe.name in seen:
        circle = " -> ".join([*seen, recipe.name])
        raise UserError(
            f"encoder.init or alignment.encoder leads in a circle: {circle}; give one of these recipes another model"
        )
    for inner in chained_recipes(recipe).values():
        check_chain(inner, (*seen, recipe.name))


# --- training ---


def train_models(
    run: RunFolder, recipe: Recipe, training: TrainingOptions, data: TrainingInputs, encoder: EncoderOptions
) -> list[Path]:
    """Run the training stages: one model per seed of a run; return their folders."""
    return [
        _train_stage(run, recipe, dataclasses.replace(training, seed=seed, seeds=1), data, encoder, number)
        for number, seed in enumerate(training_seeds(training, run.options))
    ]


def _train_stage(
    run: RunFolder,
    recipe: Recipe,
    training: TrainingOptions,
    data: TrainingInputs,
    encoder: EncoderOptions,
    number: int,
) -> Path:
    def make(folder: Path) -> Mapping[str, Any]:
        from citeweave.training.load_data import DataSources
        from citeweave.training.options import CardNotes, TrainingPlan
        from citeweave.training.train import train_encoder

        audit = run.stage_metadata("audited") or None
        bands = bands_as_facts(run.bands)
        notes = CardNotes(recipe.label, recipe.tables, run.options.held_out, audit, bands)
        plan = TrainingPlan(encoder, training, notes)
        sources = DataSources(graph=data.inputs.graph, teachers=teachers, suite=data.watched)
        common: dict[str, Any] = {"sources": sources, "device": run.options.device, **run.writing}
        result = train_encoder(data.corpus, data.samples, folder, plan, **common)
        return {"seed": training.seed, "before": result.before, "after": result.after}

    teachers = _teacher_stages(run, training, data)
    graph = str(run.record["stages"].get("graph", {}).get("mark"))
    inputs = [data.samples.hash, start_key(encoder), asdict(training), graph, data.watched is not None]
    return run.run(f"model-{number}" if number else "model", inputs, make)


def _teacher_stages(run: RunFolder, training: TrainingOptions, data: TrainingInputs) -> tuple[Vectors, ...]:
    """Return the vectors that a loss follows: the graph's node vectors, or the teacher models' of all texts."""
    if "similarity" not in training.losses:
        nodes = data.inputs.vectors.get(NODES) if "student_teacher" in training.losses else None
        return () if nodes is None else (nodes,)
    return tuple(_teacher_stage(run, data, name, stage) for stage, name in teacher_stages(training).items())


def open_teacher(name: str) -> ModelFolder:
    """Open the folder of a teacher model; an error names its key."""
    try:
        return open_model(locate(name).folder)
    except UserError as error:
        raise UserError(f"the teacher of training.losses.similarity: {error}") from None


def _teacher_stage(run: RunFolder, data: TrainingInputs, name: str, stage: str) -> Vectors:
    model = open_teacher(name)

    def make(folder: Path) -> Mapping[str, Any]:
        options = EmbeddingOptions(dtype="float16")
        vectors = embed_papers(
            data.corpus, load_encoder(name, device=run.options.device), folder, options, **run.writing
        )
        return {"model": name, "vectors": len(vectors)}

    return Vectors.open(run.run(stage, [data.corpus.hash, model.revision(model.settings)], make))


def start_key(encoder: EncoderOptions) -> Any:
    """Return what identifies the start model: the content of its folder, or its hub name."""
    if hub_name(encoder.init):
        return [asdict(encoder)]
    shape, seed = parse_random(encoder.init)
    model = open_model(locate(shape).folder)
    drawn = [] if seed is None else [{"random": seed}]
    return [{**asdict(encoder), "init": ""}, model.revision(model.settings), *drawn]


def training_seeds(training: TrainingOptions, options: RunOptions) -> range:
    """Return the seeds that a run trains with."""
    return range(training.seed, training.seed + (options.seeds or training.seeds))


# --- evaluation ---


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """What a model of a run reads of a paper, and how two papers are compared in its reports."""

    text: TextRecipe
    distance: TrainedDistance | None = None
    """Distance between their sentences; None = between their vectors, as the suite says."""

    is_frozen: bool = False
    """Whether training leaves the encoder as it was, so that start and trained models share its vectors."""

    @property
    def key(self) -> list[str]:
        """Return what a report depends on besides model and suite."""
        return [self.text.hash, *([repr(self.distance)] if self.distance else [])]


@dataclass
class ModelEvaluation:
    """The evaluation of one model, trained or start, on one suite of a run.

    The model is loaded when it is first needed, and reads every paper once for all aspect spaces.
    """

    model: Path | EncoderOptions
    name: str
    suites: Suites
    suite: str
    settings: EvaluationSettings
    reporter: Reporter = field(default_factory=lambda: QUIET)
    executor: Executor | None = None
    """Embeds the papers; None = this process. Sentences are always embedded here."""

    same_as: ModelEvaluation | None = None
    """Evaluation of a model with the same encoder, whose vectors this one shares."""

    def spaces(self) -> tuple[str, ...]:
        """List the aspect spaces to evaluate besides the encoder's own vector; none for a start model."""
        heads = self._heads()
        if heads is None:
            return ()
        return (*heads.spaces, *((MATCHING,) if self.suite in FACETED and set(FACETS) <= set(heads.names) else ()))

    def write_report(self, folder: Path, space: str = ENCODER) -> None:
        """Evaluate the model in one aspect space and write the report."""
        read, tasks, overwrite = (
            self.suites.read(self.suite),
            self.suites.tasks(self.suite),
            self.suites.options.overwrite,
        )
        options = EvaluationOptions(distance=self.settings.distance.name if self.settings.distance else "")
        common: dict[str, Any] = {"overwrite": overwrite, "reporter": self.reporter}
        evaluate(self._systems[space], read, folder, tasks=tasks, options=options, **common)

    def _heads(self) -> AspectHeads | None:
        if isinstance(self.model, EncoderOptions) or self.settings.distance is not None:
            return None
        return find_heads(self.model)

    @cached_property
    def _systems(self) -> dict[str, Any]:
        options, distance = self.suites.options, self.settings.distance
        encoder = dataclasses.replace(_load_model(self.model, options.device), name=self.name)
        if distance is not None:
            temperature = distance.temperature if distance.name == "attention" else None
            by_sentence = SentenceSystem(
                encoder, name=self.name, metric=distance.metric, temperature=temperature, reporter=self.reporter
            )
            return {ENCODER: by_sentence}
        system = TaskPapersEncoder(
            encoder,
            self.suites.read(self.suite).choose(self.suites.tasks(self.suite)),
            cache=options.cache if isinstance(self.model, EncoderOptions) else None,
            text_recipe=self.settings.text,
            reporter=self.reporter,
            embed=None if self.executor is None else self._embed_remotely,
            same_as=None if self.same_as is None else self.same_as._systems[ENCODER],
        )
        heads = self._heads()
        return {ENCODER: system} if heads is None else aspect_spaces(system, heads)

    def _embed_remotely(self, encoder: Encoder, plan: ShardPlan, texts: Sequence[str], folder: Path) -> None:
        """Embed texts into a folder of vectors on the workers of the executor, which read them from its work folder."""
        assert self.executor is not None
        path, device = early_scratch_folder(folder, plan.recipe, "texts") / "texts.json", self.suites.options.device
        write_json(path, list(texts))
        model: Any = self.model
        if isinstance(model, Path):
            model = str(model.absolute())
        else:
            init = str(Path(model.init).absolute()) if Path(model.init).is_dir() else model.init
            model = {**asdict(model), "init": init, "text": list(model.text)}
        arguments = {
            "texts": str(path.absolute()),
            "model": model,
            "revision": encoder.revision,
            "batch_tokens": getattr(encoder, "batch_tokens", 0),
            "device": device,
        }
        maker = "citeweave.pipeline.training_stages:text_worker"
        task = ShardTask(maker, arguments, "embedding", gpu=device != "cpu")
        with suppress(EmptyResultError):  # reported when the task is evaluated
            write_vectors(folder, plan, RemoteMaker(self.executor, task), reporter=self.reporter)


def text_worker(
    texts: str, model: str | Mapping[str, Any], revision: str, batch_tokens: int, device: str
) -> EncodingWorker:
    """Open texts and a model of a run on a worker of an executor; return the function that makes shards of vectors."""
    options = None if isinstance(model, str) else EncoderOptions(**{**model, "text": tuple(model["text"])})
    encoder = _load_model(Path(str(model)) if options is None else options, device)
    if encoder.revision != revision:
        raise UserError(
            f"{model if options is None else options.init} is another model here than at the driver; copy it"
        )
    encoder = dataclasses.replace(encoder, batch_tokens=batch_tokens)  # the driver's batches
    read = json.loads(read_input(Path(texts)))
    return EncodingWorker(text_maker(encoder, read, "float32"), len(read), SHARD)


def _load_model(model: Path | EncoderOptions, device: str) -> Any:
    if isinstance(model, EncoderOptions):
        from citeweave.training.train import load_start_model

        return load_start_model(model, device)
    from citeweave.encoders.encoder import load_encoder

    return load_encoder(model, device=device)


class TaskPapersEncoder(EncoderSystem):
    """An encoder system that embeds only the papers that the selected tasks of a suite need.

        TaskPapersEncoder(encoder, suite.choose(["cite"]), cache=cache)     reads a quarter of a corpus suite's papers

    Results equal those of `EncoderSystem`; tasks that were not selected must not be evaluated with it.
    """

    def __init__(
        self,
        encoder: Encoder,
        suite: Suite,
        *,
        cache: Path | None,
        text_recipe: TextRecipe,
        reporter: Reporter = QUIET,
        embed: Callable[[Encoder, ShardPlan, Sequence[str], Path], None] | None = None,
        same_as: EncoderSystem | None = None,
    ) -> None:
        super().__init__(encoder, cache=cache, text_recipe=text_recipe, reporter=reporter, same_as=same_as)
        self._rows, self._embed = needed_rows(suite), embed
        self._full: dict[str, PaperVectors] = {}

    def _matrix(self, texts: TaskTexts, paper_texts: Sequence[str]) -> NDArray[np.float32]:
        if self._embed is not None and self._saved_in is not None:
            plan = plan_texts(self.encoder, texts.ids, paper_texts, text_recipe=self._recipe.hash)
            if not artifact_matches(self._folder(texts), KIND, VERSION, plan.recipe):
                self._embed(self.encoder, plan, paper_texts, self._folder(texts))
        return super()._matrix(texts, paper_texts)

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        rows = self._rows.get(texts.hash)
        if rows is None or len(rows) == len(texts) or texts.lacking:
            return super().vectors(texts)
        if texts.hash not in self._full:
            needed = super().vectors(_select(texts, rows))
            matrix = np.zeros((len(texts), needed.matrix.shape[1]), np.float32)  # (papers, dimension)
            state = np.full(len(texts), ABSENT, needed.state.dtype)  # (papers,)
            matrix[rows], state[rows] = needed.matrix, needed.state
            self._full[texts.hash] = PaperVectors(matrix, state)
        return self._full[texts.hash]


def needed_rows(suite: Suite) -> dict[str, Rows]:
    """Map the hash of a suite's texts to the rows that its tasks need; texts that are all needed are left out."""
    needed: dict[str, Rows] = {}
    complete = set()
    for task in suite.tasks:
        rows = _task_rows(task)
        if rows is None:
            complete.add(task.texts.hash)
        else:
            needed[task.texts.hash] = np.union1d(needed.get(task.texts.hash, rows), rows)
    return {name: rows for name, rows in needed.items() if name not in complete}


def _task_rows(task: Task) -> Rows | None:
    if isinstance(task, RankingTask) and task.reviewers is None:
        return np.unique(np.concatenate([task.pools.queries, task.pools.candidates]))
    if isinstance(task, ProbeTask):
        return np.unique(np.concatenate([task.train, task.test]))
    if isinstance(task, SearchTask):
        return np.unique(
            np.concatenate([task.queries, task.candidates, task.judgments.queries, task.judgments.candidates])
        )
    return None


def _select(texts: TaskTexts, rows: Rows) -> TaskTexts:
    at = rows.tolist()
    return TaskTexts(
        [texts.ids[row] for row in at], [texts.titles[row] for row in at], [texts.abstracts[row] for row in at]
    )


# --- comparison ---


def compare_runs(
    start: Mapping[str, Report], trained: Mapping[str, Sequence[Report]], name: str, *, resamples: int
) -> dict[str, Comparison]:
    """Run the comparison stage: the trained models of a run against its start model, suite by suite."""
    name = name if name != START else f"{name} (trained)"
    return {
        suite: compare({START: [report], name: list(trained[suite])}, resamples=resamples)
        for suite, report in start.items()
    }


def comparison_page(
    comparisons: Mapping[str, Comparison], trained: Mapping[str, Sequence[Report]], spaces: SpaceReports | None = None
) -> str:
    """Format all comparisons of a run as Markdown, one heading per suite, with seeds and aspect spaces below."""
    parts = []
    for suite, comparison in comparisons.items():
        parts.append(f"## {suite}\n\n{comparison_as_markdown(comparison)}")
        if len(trained[suite]) > 1:
            parts.append(_seed_table(comparison, trained[suite]))
        if spaces and spaces.get(suite):
            parts.append(_space_table(comparison, spaces[suite]))
    return "\n".join(parts)


def _seed_table(comparison: Comparison, reports: Sequence[Report]) -> str:
    """Format the mean and the range of every metric over the trained models of a run, one per seed."""
    names = [name for name in comparison.metrics if name in comparison.queries]
    lines = [[f"{len(reports)} seeds", *names], ["---"] * (len(names) + 1)]
    for title, summarize in (("mean", fmean), ("lowest", min), ("highest", max)):
        lines.append([title, *(f"{summarize([report.metrics[name] for report in reports]):.2f}" for name in names)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


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
