"""The data stages of a run, before training: corpus without held-out data, texts, intents, graph, samples, alignment.

    audited    the corpus without the papers of published suites, if it holds some
    corpus     without the references that the corpus suite asks for; papers and rows stay
    texts      a corpus of derived texts, if the recipe trains on those; from here on they are the papers
    intents    of citations, found by a classifier, if rules need them and the corpus has none
    graph      citations, with node vectors if rules or a teacher need them
    samples    drawn by the rules; held-out papers are no anchors
    aligned    samples with the sentences in which the papers of a pair are alike, if the recipe has [alignment]

Where intents come from (`--intents`):

    auto         those of the corpus; if it has none but has citing sentences, a classifier reads these
    corpus       those of the corpus
    sections     also those that the section headings of citing sentences imply
    FOLDER       an overlay of the corpus

The corpus that is trained on is annotated, so sentences of held-out papers are not read. The oracle learns from the labels
of the suites, so nothing is held out from it. A recipe with `training.watch` holds a twentieth of the other papers out too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.files import hash_file
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derive import derive_corpus
from citeweave.corpus.ingest import exclude_papers
from citeweave.corpus.options import TITLES
from citeweave.encoders.delta import open_model
from citeweave.encoders.model_names import hub_name, locate
from citeweave.evaluation.options import CorpusSuiteOptions
from citeweave.evaluation.suites.corpus_pools import held_out_rows
from citeweave.evaluation.suites.from_corpus import make_suite
from citeweave.evaluation.tasks import Suite
from citeweave.graph.intent_overlay import IntentSource
from citeweave.mining.inputs import (
    MiningInputs,
    annotate_inputs,
    build_mining_graph,
    check_intents,
    graph_inputs,
    graph_intents,
    needs_graph,
    read_rows,
)
from citeweave.mining.mine import mine_samples
from citeweave.mining.options import AlignmentOptions, MiningOptions
from citeweave.mining.rules import NODES, MiningRules
from citeweave.mining.samples import Samples
from citeweave.mining.tables import read_tables
from citeweave.pipeline.fit_bands import fit_bands
from citeweave.pipeline.recipe import Recipe, RecipeOptions
from citeweave.pipeline.run_folder import AUTO, RunFolder, RunOptions
from citeweave.pipeline.suites import LABELS, Suites, find_leaks, label_table, without_references
from citeweave.training.options import ACCURACY, LOSS, TrainingOptions

if TYPE_CHECKING:
    from citeweave.intents.annotate import Classifier
    from citeweave.intents.classifier import IntentClassifier


INTENTS_STAGE, ALIGN_STAGE = "intents", "aligned"

WATCHED = CorpusSuiteOptions(held_out="share:0.05", queries=200, seed=1)
"""Options of the suite that is watched during training."""


@dataclass(frozen=True, slots=True)
class TrainingInputs:
    """The corpus, samples and graph that the models of a run are trained on."""

    corpus: Corpus
    samples: Samples
    inputs: MiningInputs
    """The graph and its vectors, if they are needed."""

    watched: Suite | None = None
    """Suite whose rankings are watched during training."""


@dataclass
class DataStages:
    """The data stages of a run: from the user's corpus to graph and samples."""

    run: RunFolder
    recipe: Recipe
    read: RecipeOptions
    unaudited: Corpus | None = None
    """The corpus before papers of suites were removed; what these wrote is not trained on."""

    original: Corpus | None = None
    """The user's corpus; an overlay of intents belongs to this one."""

    @property
    def options(self) -> RunOptions:
        return self.run.options

    @property
    def is_oracle(self) -> bool:
        """Return whether the recipe learns from the labels of the evaluation suites."""
        return _draws_from_labels(self.read.rules) and LABELS not in self.options.tables

    @property
    def _training(self) -> TrainingOptions:
        assert self.read.training is not None, "prepare_recipe requires it"
        return self.read.training

    def audit(self, corpus: Corpus) -> Corpus:
        """Run the audit stage: remove the papers of the published suites from the corpus of a run."""
        self.original = corpus
        if not self.options.suites or self.is_oracle:
            return corpus
        self.unaudited = corpus
        suites = Suites(corpus, self.options, self.run.reporter)

        def make(folder: Path) -> Mapping[str, Any]:
            report = find_leaks(corpus, {name: suites.read(name) for name in self.options.suites}, self.run.reporter)
            rows = report.rows_to_exclude()
            names = ", ".join(self.options.suites)
            self.run.reporter.say(f"audit: {len(rows):,} papers of {names} are in the corpus and are removed")
            if len(rows):
                exclude_papers(corpus, rows, folder, why=f"papers of {names}", overwrite=self.options.overwrite)
            return report.as_json()

        folder = self.run.run("audited", [corpus.hash, {name: suites.key(name) for name in self.options.suites}], make)
        return Corpus.open(folder) if folder.is_dir() and self.run.stage_metadata("audited").get("exclude") else corpus

    def make(self, audited: Corpus, suites: Suites) -> TrainingInputs:
        """Make the corpus, graph and samples that a run trains on."""
        held = np.zeros(len(audited), bool)  # (papers,)
        corpus, watched = audited, None
        if self.options.suite_options is not None and not self.is_oracle:
            held = held_out_rows(audited, self.options.suite_options)
            corpus = self._hold_out(audited, held, "corpus", self.options.held_out)
        if self._training.watch not in (ACCURACY, LOSS):
            watched = make_suite(corpus, WATCHED, reporter=self.run.reporter)
            held_for_watching = held_out_rows(corpus, WATCHED)
            corpus = self._hold_out(corpus, held_for_watching, "corpus-watched", WATCHED.held_out)
            held = held | held_for_watching
        if self.read.texts is not None:
            corpus = self._derive_texts(corpus, suites.queried_titles() if self.read.texts.of == TITLES else [])
            held = np.zeros(len(corpus), bool)  # references and sentences of held-out papers are already removed
        intents = find_intents(self.run, self.read.rules, corpus, self.original or audited)
        inputs, graph_hash = self._build_graph(corpus, intents)
        samples = self._mine(corpus, intents, inputs, graph_hash, held, suites)
        return TrainingInputs(corpus, samples, inputs, watched)

    def _hold_out(self, corpus: Corpus, held: NDArray[np.bool_], stage: str, why: str) -> Corpus:
        def make(folder: Path) -> Mapping[str, Any]:
            result = without_references(corpus, held, folder, why=why, overwrite=self.options.overwrite)
            return dict(result.manifest.facts["held out"])

        return Corpus.open(self.run.run(stage, [corpus.hash, why], make))

    def _derive_texts(self, corpus: Corpus, excluded_titles: Sequence[str]) -> Corpus:
        """Derive the texts to train on as a corpus with its own rows, without the titles that are queries."""
        options, unaudited = self.read.texts, self.unaudited
        assert options is not None

        def make(folder: Path) -> Mapping[str, Any]:
            texts: dict[str, Any] = {"before": unaudited, "excluded_titles": excluded_titles, **self.run.writing}
            derived = derive_corpus(corpus, folder, options, **texts)
            return dict(derived.manifest.facts["derived"])

        key: list[Any] = [corpus.hash, options.as_recipe(), None if unaudited is None else unaudited.hash]
        key += [list(excluded_titles)] if excluded_titles else []
        return Corpus.open(self.run.run("texts", key, make))

    def _build_graph(self, corpus: Corpus, intents: IntentSource) -> tuple[MiningInputs, str]:
        """Build the graph if rules or losses need it; return the mining inputs and the hash of its folder."""
        losses, rules = self._training.losses, self.read.rules
        aspects = rules.aspect_graphs
        with_vectors = rules.needs_vectors(NODES) or bool(aspects) or "student_teacher" in losses
        for_losses = any(settings.get("relatives") for settings in losses.values())
        if not (with_vectors or for_losses or needs_graph(rules)):
            return MiningInputs(), ""
        table = self.recipe.table("graph")
        settings = {"seed": self._training.seed, "device": self.options.device}

        def make(folder: Path) -> Mapping[str, Any]:
            graph = build_mining_graph(
                corpus,
                folder,
                table,
                settings,
                with_vectors=with_vectors,
                intents=graph_intents(intents, corpus, aspects),
                **self.run.writing,
            )
            return asdict(graph.counts)

        key: list[Any] = [corpus.hash, asdict(self.read.graph) if with_vectors else None, self._training.seed]
        key += [[intents.source, aspects]] if aspects else []
        folder = self.run.run("graph", key, make)
        inputs = graph_inputs(folder, table, with_vectors=with_vectors, aspects=aspects)
        return inputs, str(self.run.record["stages"]["graph"]["mark"])

    def _mine(
        self,
        corpus: Corpus,
        intents: IntentSource,
        inputs: MiningInputs,
        graph_hash: str,
        held: NDArray[np.bool_],
        suites: Suites,
    ) -> Samples:
        options, reporter = self.options, self.run.reporter
        pool = None if options.pool is None else read_rows(options.pool, corpus, "--pool", reporter)
        candidates = np.arange(len(corpus)) if pool is None else pool
        anchors = candidates[~held[candidates]] if held.any() else None

        def make(folder: Path) -> Mapping[str, Any]:
            annotated = annotate_inputs(inputs, corpus, intents)
            check_intents(annotated, self.read.rules, corpus)
            tables = read_tables(options.tables, corpus, reporter=reporter)
            if self.is_oracle:
                read = {name: suites.read(name) for name in suites.names}
                tables[LABELS] = label_table(corpus, read, seed=self._training.seed)
            before = None if self.read.texts is not None else self.unaudited
            complete = dataclasses.replace(annotated, tables=tables, anchors=anchors, pool=pool, before=before)
            fitted = fit_bands(self.recipe, self.read.rules, corpus, complete, mode=options.bands, reporter=reporter)
            device = options.device if options.device in ("cpu", "cuda") else "auto"
            settings = MiningOptions(seed=self._training.seed, device=device)
            common: dict[str, Any] = {"executor": self.run.executor, **self.run.writing}
            samples = mine_samples(corpus, fitted.rules, folder, complete, settings, **common)
            return {**sample_counts(samples), "bands": fitted.summary}

        key = [
            corpus.hash,
            graph_hash,
            asdict(self.read.rules),
            [options.bands, [entry for entry in self.recipe.overrides if "band" in entry]],
            {name: hash_file(path) for name, path in sorted(options.tables.items())},
            {name: suites.key(name) for name in suites.names} if self.is_oracle else None,
            [options.held_out, self._training.seed],
            *([] if options.pool is None else [{"pool": hash_file(options.pool)}]),
            *([intents.source] if self.read.rules.needs_intents else []),
        ]
        return Samples.open(self.run.run("samples", key, make))


def sample_counts(samples: Samples) -> dict[str, int]:
    """Count the samples, anchors, positives and negatives of a run."""
    return {
        "samples": len(samples),
        "anchors": len(np.unique(samples.anchors)),
        "positives": len(samples.positives.rows),
        "negatives": len(samples.negatives.rows),
    }


def _draws_from_labels(rules: MiningRules) -> bool:
    """Return whether any mining rule draws from the labels of the suites."""
    inner = any(_draws_from_labels(each) for _, _, each in rules.tasks)
    return inner or any(rule.table == LABELS for rule in rules.rules)


# --- intents ---


def find_intents(run: RunFolder, rules: MiningRules, corpus: Corpus, original: Corpus) -> IntentSource:
    """Return where a run's citation intents come from; they are classified if needed. `original` is the user's corpus."""
    if rules.needs_intents and run.options.intents != AUTO:
        return IntentSource(run.options.intents, original)
    if not needs_classifier(rules, corpus):
        return IntentSource()
    return IntentSource(str(annotate_stage(run, corpus, _load_classifier(run.options))))


def needs_classifier(rules: MiningRules, corpus: Corpus) -> bool:
    """Return whether the rules need intents that the corpus lacks but its contexts can provide."""
    known = corpus.intents.any() or corpus.contexts.intents.any()
    return rules.needs_intents and not known and len(corpus.contexts) > 0


def intents_key(options: RunOptions) -> dict[str, Any]:
    """Return what a run's intents depend on besides its corpus; empty by default."""
    key: dict[str, Any] = {}
    if options.intents != AUTO:
        key["intents"] = IntentSource(options.intents).source
    if options.classifier is not None:
        key["classifier"] = _load_classifier(options).hash
    return key


def annotate_stage(run: RunFolder, corpus: Corpus, classifier: Classifier) -> Path:
    """Run the annotation stage: classify the intents of a corpus into an overlay folder."""
    from citeweave.intents.annotate import annotate_intents

    def make(folder: Path) -> Mapping[str, Any]:
        number = f"{len(corpus.contexts):,} citing sentences"
        run.reporter.say(f"no citation has an intent, so the classifier {classifier.name} reads {number}")
        overlay = annotate_intents(corpus, folder, classifier, executor=run.executor, **run.writing)
        return dict(overlay.manifest.facts)

    return run.run(INTENTS_STAGE, [corpus.hash, classifier.hash], make)


def _load_classifier(options: RunOptions) -> IntentClassifier:
    from citeweave.intents.classifier import IntentClassifier, default_classifier

    if options.classifier is None:
        return default_classifier()
    return IntentClassifier.open(options.classifier, device=options.device)


# --- alignment ---


def align_stage(run: RunFolder, data: TrainingInputs, alignment: AlignmentOptions) -> TrainingInputs:
    """Run the alignment stage: replace samples by samples with aligned sentences."""

    def make(folder: Path) -> Mapping[str, Any]:
        from citeweave.encoders.encoder import load_encoder
        from citeweave.mining.align import align_samples

        encoder = load_encoder(alignment.encoder, device=run.options.device)
        aligned = align_samples(data.corpus, data.samples, encoder, folder, alignment, **run.writing)
        return dict(aligned.manifest.facts["alignment"])

    key = [data.samples.hash, alignment.by, _model_key(alignment.encoder)]
    return dataclasses.replace(data, samples=Samples.open(run.run(ALIGN_STAGE, key, make)))


def _model_key(name: str) -> str:
    """Return what identifies an encoder: the content of its folder, or its hub name."""
    if hub_name(name):
        return name
    model = open_model(locate(name).folder)
    return model.revision(model.settings)
