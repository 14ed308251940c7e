"""The estimated cost of a recipe at some size on some machine, and the plan of a run: stages, time, memory; runs nothing.

    sizes = sizes_from_counts(52_000_000, 463_000_000, texts=680_967)
    print(estimate_recipe(load_recipe("scincl", ["mining.anchors=136820"]), sizes, parse_machine("h200")))

    print(plan_run(load_recipe("specter"), "corpus/", "run/", RunOptions(init="minilm")))

An estimate needs the recipe, the sizes, and the shape of a start model in a folder; it opens no corpus and loads no
model. A recipe that begins with another recipe's model counts that one's mining and training too. A plan of a run
(`citeweave run --dry-run`) opens the corpus and says which stages are already done. Before samples are mined their
number is estimated from the rules: as if every paper were an anchor and every rule found all that it asks for. The work of
a stage is in `stage_costs.py`, for both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from citeweave.core.errors import UserError, require
from citeweave.core.progress import format_duration
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derive import estimate_texts
from citeweave.encoders.delta import model_to_download, open_model
from citeweave.encoders.model_names import MINILM, WEAVE, WEAVE_SMALL, hub_name, locate, parse_random
from citeweave.pipeline import cost_constants, stage_costs
from citeweave.pipeline.cost_constants import (
    CONSTANTS,
    GPUS,
    Machine,
    Sizes,
    derived_sizes,
    describe_this_machine,
    get_constant,
    required_memory,
)
from citeweave.pipeline.recipe import Recipe, RecipeOptions, read_recipe, teacher_stages
from citeweave.pipeline.required_data import check_required_data
from citeweave.pipeline.rule_counts import count_picks, uses_graph_vectors
from citeweave.pipeline.run import prepare_recipe, run_identity
from citeweave.pipeline.run_folder import AUTO, CHAIN, CORPUS, RunOptions, check_identity, read_record
from citeweave.pipeline.run_folder import INTENTS as INTENT_SUITE
from citeweave.pipeline.stage_costs import SUITE_PAPERS, StageWork
from citeweave.pipeline.stages import ALIGN_STAGE, INTENTS_STAGE, needs_classifier
from citeweave.pipeline.suites import check_suites, suite_names
from citeweave.pipeline.training_stages import (
    chained_options,
    chained_recipes,
    check_chain,
    open_teacher,
    training_seeds,
)

if TYPE_CHECKING:
    from citeweave.mining.rules import MiningRules


def as_bytes(number: float) -> str:
    """Format a number of bytes of an estimate.

    >>> as_bytes(3e6), as_bytes(24 * 2**30), as_bytes(3.3e12)
    ('3 MB', '24 GB', '3 TB')
    """
    for unit, size in (("TB", 2**40), ("GB", 2**30)):
        if number >= size:
            return f"{number / size:.2g} {unit}" if number < 9.95 * size else f"{number / size:,.0f} {unit}"
    return f"{max(1, number / 2**20):,.0f} MB" if number else "0"


def missing_memory(work: StageWork, machine: Machine) -> str:
    """Describe the memory that a machine lacks for a stage; empty if it fits."""
    missing = []
    if work.memory > machine.memory:
        missing.append(f"{as_bytes(work.memory)} of memory, and the machine has {as_bytes(machine.memory)}")
    if machine.gpus and work.on_gpu is not None and work.gpu_memory > (limit := GPUS[machine.gpu].memory):
        missing.append(f"{as_bytes(work.gpu_memory)} of GPU memory, and a {machine.gpu} has {as_bytes(limit)}")
    return "; ".join(missing)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated cost of a recipe or a search service: time, memory and disk of every stage on one machine."""

    recipe: str
    machine: Machine
    size: str
    stages: Sequence[StageWork]
    queries: Sequence[StageWork] = ()
    """Kinds of queries, one of each: not part of the total."""

    notes: Sequence[str] = ()
    """What is extrapolated, and what the figures leave out."""

    @property
    def seconds(self) -> float:
        return sum(stage.seconds(self.machine) for stage in self.stages)

    @property
    def memory(self) -> float:
        return max(stage.memory for stage in self.stages)

    @property
    def disk(self) -> float:
        return sum(stage.disk for stage in self.stages)

    @property
    def warnings(self) -> list[str]:
        """List one line for every stage that does not fit the machine."""
        lines = []
        for stage in self.stages:
            if missing := missing_memory(stage, self.machine):
                advice = f": {stage.fits_by}" if stage.fits_by else ""
                lines.append(f"{stage.name} needs {missing}{advice}")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as JSON: seconds, bytes and the sources of the constants."""
        stages = [
            {
                "name": stage.name,
                "size": stage.size,
                "seconds": stage.seconds(self.machine),
                "cpu_seconds": 0.0 if self._on_gpu(stage) else stage.cpu,
                "memory": stage.memory,
                "gpu_memory": stage.gpu_memory if self._on_gpu(stage) else 0.0,
                "disk": stage.disk,
                "constants": list(stage.constants),
            }
            for stage in self.stages
        ]
        total = {"seconds": self.seconds, "memory": self.memory, "disk": self.disk}
        names = self._constants()
        queries = [
            {"name": query.name, "size": query.size, "seconds": query.seconds(self.machine), "cpu_seconds": query.cpu}
            for query in self.queries
        ]
        return {
            "recipe": self.recipe,
            "machine": asdict(self.machine),
            "stages": stages,
            "total": total,
            **({"queries": queries} if queries else {}),
            "warnings": self.warnings,
            **({"notes": list(self.notes)} if self.notes else {}),
            "constants": {name: asdict(CONSTANTS[name]) for name in names},
        }

    def __str__(self) -> str:
        return self.text()

    def text(self, *, constants: bool = True) -> str:
        """Format the estimate as a table, with what does not fit and where the constants come from."""
        rows = [("stage", "time", "memory", "disk", "of")]
        for stage in self.stages:
            name = f"{stage.name} (GPU)" if self._on_gpu(stage) else stage.name
            seconds, memory = stage.seconds(self.machine), as_bytes(stage.memory)
            rows.append((name, format_duration(seconds) if seconds else "", memory, as_bytes(stage.disk), stage.size))
        rows.append(("total", format_duration(self.seconds), as_bytes(self.memory), as_bytes(self.disk), ""))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [f"{self.recipe} of {self.size}, on {self.machine}"]
        for row in rows:
            cells = [f"{row[0]:<{widths[0]}}", *(f"{row[at]:>{widths[at]}}" for at in (1, 2, 3)), row[4]]
            lines.append("  ".join(cells).rstrip())
        for query in self.queries:
            lines.append(f"one query {query.name}: {1000 * query.seconds(self.machine):,.0f} ms, {query.size}")
        lines += [f"does not fit: {line}" for line in self.warnings]
        lines += [f"note: {line}" for line in self.notes]
        if constants:
            lines += ["from:", *(f"  {name}: {CONSTANTS[name]}" for name in self._constants())]
        return "\n".join(lines)

    def _on_gpu(self, stage: StageWork) -> bool:
        return stage.on_gpu is not None and self.machine.gpus > 0

    def _constants(self) -> list[str]:
        """List the constants behind the shown figures, each once, in the order of the stages."""
        names: dict[str, None] = {}
        for stage in (*self.stages, *self.queries):
            names |= dict.fromkeys(name for name in stage.constants if (".gpu" in name) <= self._on_gpu(stage))
        return list(names)


SHAPES = {
    MINILM: cost_constants.MINILM,
    WEAVE: cost_constants.MINILM,
    WEAVE_SMALL: cost_constants.WEAVE_SMALL,
    "bert-base": cost_constants.BERT_BASE,
}
"""Names for --init with known shapes, besides folders and hub names."""


def estimate_recipe(recipe: Recipe, sizes: Sizes, machine: Machine, *, init: str = "") -> Estimate:
    """Estimate the cost of every stage of a recipe for a literature and a machine; `init` replaces its start model."""
    check_chain(recipe)
    works = [stage_costs.import_work(sizes, machine.cores), *_recipe_works(recipe, sizes, machine, init)]
    words = f"{sizes.papers:,} papers and {sizes.citations:,} citations"
    return Estimate(recipe.label, machine, words, works)


def network_shape(name: str) -> cost_constants.NetworkShape:
    """Return the network shape of a start model; a hub model counts as BERT-base, since nothing is downloaded."""
    name = parse_random(name)[0]
    if name in SHAPES:
        return SHAPES[name]
    hub = hub_name(name)
    if name.startswith(CHAIN) or hub or model_to_download(name):
        return cost_constants.MINILM if hub == hub_name(MINILM) else cost_constants.BERT_BASE
    if not Path(name).is_dir():
        raise UserError(
            f"--init is {name!r}; it must be {', '.join(SHAPES)}, the folder of a model, or owner/name of one on the hub"
        )
    return cost_constants.read_shape(open_model(locate(name).folder).weights)


def _recipe_works(recipe: Recipe, sizes: Sizes, machine: Machine, init: str) -> list[StageWork]:
    """List the work of all stages of a recipe after the import."""
    read = read_recipe(recipe)
    works = [_graph_work(read, sizes), *_chain_works(recipe, sizes, machine, init)]
    if read.training is None:
        return works
    shape, tokens = network_shape(init or read.encoder.init), min(sizes.tokens, float(read.encoder.max_tokens))
    works.append(stage_costs.embedding_work(shape, sizes, tokens))
    if read.training.reads_sentences:
        works.append(stage_costs.sentences_work(shape, sizes, tokens))
    works.append(stage_costs.index_work(shape, sizes, tokens, sentences=read.training.reads_sentences))
    papers = min(sizes.texts, SUITE_PAPERS)
    works.append(stage_costs.evaluation_work(shape, papers, tokens, 1 + read.training.seeds))
    return works


def _graph_work(read: RecipeOptions, sizes: Sizes) -> StageWork:
    """Estimate the work of building the graph, sorted within the memory that its node vectors get."""
    memory = required_memory(sizes.papers, read.graph) if _embeds_nodes(read) else read.graph.vectors.memory
    return stage_costs.graph_work(sizes, memory)


def _embeds_nodes(read: RecipeOptions) -> bool:
    """Return whether a recipe needs node vectors of the graph."""
    teacher = read.training is not None and "student_teacher" in read.training.losses
    return uses_graph_vectors(read.rules) or teacher


def _chain_works(recipe: Recipe, sizes: Sizes, machine: Machine, init: str) -> list[StageWork]:
    """List the mining and training work of the recipes that run first and of this one."""
    earlier = [
        dataclasses.replace(work, name=f"{stage}/{work.name}")
        for stage, inner in chained_recipes(recipe).items()
        for work in _chain_works(inner, sizes, machine, init)
    ]
    return [*earlier, *_training_works(read_recipe(recipe), sizes, machine, init)]


def _training_works(read: RecipeOptions, sizes: Sizes, machine: Machine, init: str) -> list[StageWork]:
    """List the mining and training work of one recipe."""
    rules = read.rules
    works = [stage_costs.intents_work(sizes.contexts)] if rules.needs_intents and sizes.contexts else []
    if read.texts is not None:
        sizes = derived_sizes(sizes, read.texts)
    if _embeds_nodes(read):
        works += stage_costs.vectors_work(sizes, read.graph, parts=rules.aspect_graphs)
    anchors = _estimate_anchors(rules, sizes)
    works += stage_costs.mining_work(sizes, rules, read.graph.vectors.dimension, anchors)
    if read.alignment is not None:
        works.append(stage_costs.aligning_work(network_shape(read.alignment.encoder), anchors))
    if read.training is None:
        return works
    shape, tokens = network_shape(init or read.encoder.init), min(sizes.tokens, float(read.encoder.max_tokens))
    sizes = dataclasses.replace(sizes, tokens=tokens)
    one = stage_costs.training_work(shape, read.training, rules, anchors, sizes, gpu=machine.gpus > 0)
    more_seeds = [dataclasses.replace(one, name=f"training, seed {seed}") for seed in range(1, read.training.seeds)]
    return [*works, stage_costs.tokens_work(sizes.texts, tokens), one, *more_seeds]


def _estimate_anchors(rules: MiningRules, sizes: Sizes) -> int:
    """Estimate the number of anchors: every text, or every pair of papers cited in one sentence."""
    possible = round(get_constant("contexts.pair") * sizes.contexts) if rules.from_contexts else sizes.texts
    return min(possible, rules.anchors) if rules.anchors else possible


# --- the plan of a run ---


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """One stage of a planned run with its size, time and memory, and whether it is already done."""

    name: str
    size: str
    seconds: float = 0.0
    memory: float = 0.0
    is_there: bool = False


@dataclass(frozen=True, slots=True)
class PlannedDownload:
    """A model of the hub that is not on this machine and that a planned run would download."""

    model: str
    use: str
    option: str
    """How to name another model."""

    def __str__(self) -> str:
        name, _, revision = self.model.partition("@")
        fetch = f"hf download {name}{f' --revision {revision}' if revision else ''}"
        return (
            f"not on this machine: {self.model}, the {self.use}; the run downloads it from the Hugging Face Hub. Fetch it "
            f"before with `{fetch}`, or name a model that is here with {self.option}"
        )


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The stages that a run would execute, in order, and what it would download, for `citeweave run --dry-run`."""

    folder: Path
    recipe: Recipe
    stages: tuple[PlannedStage, ...]
    device: str
    downloads: tuple[PlannedDownload, ...] = ()

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages if not stage.is_there)

    @property
    def memory(self) -> float:
        return max(stage.memory for stage in self.stages)

    def as_json(self) -> dict[str, Any]:
        stages = [asdict(stage) for stage in self.stages]
        downloads = [{**asdict(each), "message": str(each)} for each in self.downloads]
        costs = {"seconds": self.seconds, "memory": self.memory, "device": self.device}
        return {"stages": stages, **costs, "downloads": downloads}

    def __str__(self) -> str:
        lines = [f"{self.folder}: {self.recipe.label}, as it would run on {self.device}"]
        width = max(len(stage.name) for stage in self.stages)
        for stage in self.stages:
            cost = "already done" if stage.is_there else ", ".join(_cost(stage))
            lines.append(f"{stage.name:<{width}}  {stage.size}" + (f"  ({cost})" if cost else ""))
        lines.append(
            f"in all {format_duration(self.seconds)} and {as_bytes(self.memory)} of memory, within a factor of three"
        )
        return "\n".join([*lines, *map(str, self.downloads)])


def plan_run(recipe: Recipe, corpus: str | Path, output: str | Path, options: RunOptions | None = None) -> RunPlan:
    """Plan a run without executing it: the stages that `run_recipe` with the same arguments would make."""
    options, output = options or RunOptions(), Path(output)
    check_suites(options)
    recipe, read = prepare_recipe(recipe, options, download=False)
    opened = Corpus.open(corpus)
    check_required_data(recipe, opened, options)
    check_identity(output, run_identity(recipe, opened, options), overwrite=options.overwrite)
    done = set((read_record(output) or {"stages": {}})["stages"])
    device = options.device
    if device == "auto":
        device = "cuda" if require("torch", extra="minilm").cuda.is_available() else "cpu"
    gpus = int(device.startswith("cuda"))  # a run uses one
    machine = dataclasses.replace(describe_this_machine(), gpus=gpus, gpu="h200" if gpus else "")
    planner = _Planner(opened, read, options, machine, done)
    earlier, downloads = [], _plan_downloads(read, done)
    for stage, inner in chained_recipes(recipe).items():
        plan = plan_run(inner, corpus, output / stage, chained_options(inner, options))
        size = f"the recipe {inner.label}, which runs first"
        earlier.append(PlannedStage(stage, size, plan.seconds, plan.memory, stage in done))
        downloads += [each for each in plan.downloads if stage not in done and each not in downloads]
    return RunPlan(output, recipe, (*earlier, *planner.stages()), device, tuple(downloads))


def _plan_downloads(read: RecipeOptions, done: set[str]) -> list[PlannedDownload]:
    """List the models that the stages left to do need and that are only on the hub."""
    assert read.training is not None
    option = "--set training.losses.similarity.teacher=FOLDER"
    teachers = [(stage, name, "teacher", option) for stage, name in teacher_stages(read.training).items()]
    wanted = [
        ("model", read.encoder.init, "start model", "--init"),
        (ALIGN_STAGE, read.alignment.encoder if read.alignment else "", "encoder that aligns sentences", "--aligner"),
        *teachers,
    ]
    return [
        PlannedDownload(missing, use, option)
        for stage, name, use, option in wanted
        if stage not in done and not name.startswith(CHAIN) and (missing := model_to_download(name))
    ]


@dataclass(frozen=True, slots=True)
class _Planner:
    """The inputs of a run from which its stages are planned."""

    corpus: Corpus
    read: RecipeOptions
    options: RunOptions
    machine: Machine
    done: set[str]

    def stages(self) -> list[PlannedStage]:
        training = self.read.training
        assert training is not None
        papers, citations = len(self.corpus), len(self.corpus.citing)
        anchors, tokens = self._read_texts()
        picks = count_picks(self.read.rules)
        stages = [
            self._stage("corpus", f"{papers:,} papers without the references held out by {self.options.held_out}"),
            self._stage("graph", f"{papers:,} papers, {citations:,} citations"),
            self._stage("samples", f"up to {anchors:,} anchors with up to {picks} papers each"),
        ]
        if self.read.texts is not None:
            size = f"{self.read.texts.of} of the papers, up to {anchors:,} that can be anchors"
            stages[1:2] = [self._stage("texts", size), self._stage("graph", "the texts and their relations")]
        if self.options.intents == AUTO and needs_classifier(self.read.rules, self.corpus):
            size = f"{len(self.corpus.contexts):,} citing sentences read by the intent classifier"
            work = stage_costs.intents_work(len(self.corpus.contexts))
            stages.insert(1, self._stage(INTENTS_STAGE, size, work))
        if alignment := self.read.alignment:
            work = stage_costs.aligning_work(self._shape(alignment.encoder), anchors)
            size = f"up to {work.size}, by {alignment.by} with {alignment.encoder}"
            stages.append(self._stage(ALIGN_STAGE, size, work))
        if self.options.suites:
            benchmarks = ", ".join(self.options.suites)
            stages.insert(0, self._stage("audited", f"papers of {benchmarks} searched for among {papers:,}"))
        sizes = dataclasses.replace(self._sizes(), tokens=tokens)
        for stage, name in teacher_stages(training).items():
            if not model_to_download(name):
                open_teacher(name)
            work = stage_costs.embedding_work(network_shape(name), sizes, tokens)
            stages.append(self._stage(stage, f"{work.size}, read by {name}", work))
        work = stage_costs.training_work(
            self._shape(), training, self.read.rules, anchors, sizes, gpu=self.machine.gpus > 0
        )
        for number, seed in enumerate(training_seeds(training, self.options)):
            stages.append(self._stage(f"model-{number}" if number else "model", f"seed {seed}: {work.size}", work))
        names, models = suite_names(self.options), range(len(training_seeds(training, self.options)))
        for folder in ("report-start", *(f"report-{number}" if number else "report" for number in models)):
            stages += [self._report(folder, name, tokens) for name in names]
        return stages

    def _report(self, folder: str, suite: str, tokens: float) -> PlannedStage:
        papers = min(len(self.corpus), SUITE_PAPERS) if suite in (CORPUS, INTENT_SUITE) else SUITE_PAPERS
        work = stage_costs.evaluation_work(self._shape(), papers, tokens, 1)
        return self._stage(f"{folder}/{suite}", f"up to {papers:,} papers read", work)

    def _stage(self, name: str, size: str, work: StageWork | None = None) -> PlannedStage:
        """Return a stage with the cost of its work, where that is worth a word."""
        if work is None:
            return PlannedStage(name, size, is_there=name in self.done)
        on_gpu = self.machine.gpus > 0 and work.on_gpu is not None
        memory = work.gpu_memory if on_gpu else work.memory
        return PlannedStage(name, size, work.seconds(self.machine), memory, name in self.done)

    def _read_texts(self) -> tuple[int, float]:
        """Return how many texts can be anchors, and their mean number of tokens."""
        longest = self.read.encoder.max_tokens
        if self.read.texts is not None:
            expected = estimate_texts(self.corpus, self.read.texts)
            held = 2 * self._held_titles() if self.read.texts.of == "titles" else 0
            return expected.anchors - held, cost_constants.estimate_tokens(expected.characters, longest)
        corpus = self.corpus
        columns = {
            "title": corpus.titles,
            "abstract": corpus.abstracts,
            "venue": corpus.venues,
            "authors": corpus.authors,
        }
        lengths = np.sum([columns[part].lengths() for part in self.read.encoder.text], axis=0)  # (papers,)
        mean = float(lengths[lengths > 0].mean()) if (lengths > 0).any() else 0.0
        anchors = int(((corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0)).sum())
        return anchors, cost_constants.estimate_tokens(mean, longest)

    def _sizes(self) -> Sizes:
        """Return the sizes of the texts that the run trains on."""
        sizes = cost_constants.sizes_from_corpus(self.corpus)
        return sizes if self.read.texts is None else derived_sizes(sizes, self.read.texts, self._held_titles())

    def _held_titles(self) -> int:
        """Return how many titles are questions of the run's corpus suite, so that nothing learns from them."""
        suite = self.options.suite_options
        return 0 if suite is None else min(suite.queries, int((self.corpus.abstracts.lengths() > 0).sum()))

    def _shape(self, name: str = "") -> cost_constants.NetworkShape:
        """Return the network shape of a model of the run, or of its start model."""
        name = self.options.init if self.options.init and name.startswith(CHAIN) else name
        return network_shape(name or self.options.init or self.read.encoder.init)


def _cost(stage: PlannedStage) -> list[str]:
    time = [format_duration(stage.seconds)] if stage.seconds else []
    return time + ([f"{as_bytes(stage.memory)} of memory"] if stage.memory else [])
