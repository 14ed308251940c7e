"""The stage of intents: a run whose rules need them finds them in the citing sentences where nobody gave any.

    auto         those that the corpus has; where it has none but has citing sentences, a classifier reads these
    corpus       those that the corpus has
    sections     also those that headings of citing sentences tell
    FOLDER       an overlay of the corpus that the run is given

What is annotated is the corpus that is trained on: the sentences of held-out papers are gone from it.

The stages before training: the corpus without what must not be learned, its graph, and the samples.

    audited    the corpus without the papers of published suites, where it holds some
    corpus     without the references that the suite of the corpus asks for; papers and rows stay
    texts      a corpus of other texts of it, where the recipe trains on those; from here on they are the papers
    intents    of citations, found by a classifier, where rules need them and the corpus has none
    graph      citations, with node vectors where rules or a teacher need them
    samples    what the rules chose; held-out papers are no anchors

The oracle learns from the very answers, so nothing is kept from it. A recipe that watches a ranking while it trains
(`training.watch`) gets one of its own: the references of a twentieth of the remaining papers, kept from training too.

The stage of alignment: samples whose pairs know the sentences in which they are alike, in aligned/.

Only where the recipe has an `[alignment]` table; see `mining/align.py`. The encoder is frozen: one that a recipe
trains is ready before this stage.
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
from citeweave.core.progress import Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derive import TITLES, derive_corpus
from citeweave.corpus.ingest import exclude_papers
from citeweave.encoders.delta import open_model
from citeweave.encoders.model_names import hub_name, locate
from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions, held_out_rows, make_suite
from citeweave.evaluation.tasks import Suite
from citeweave.mining.align import AlignmentOptions
from citeweave.mining.inputs import (
    IntentSource,
    annotate_inputs,
    build_mining_graph,
    check_intents,
    graph_inputs,
    graph_intents,
    needs_graph,
    read_rows,
    read_tables,
)
from citeweave.mining.mine import MiningInputs, MiningOptions, mine_samples
from citeweave.mining.rules import NODES, MiningRules
from citeweave.mining.samples import Samples
from citeweave.pipeline.fit_bands import fit_bands, without_references
from citeweave.pipeline.recipe import ReadRecipe, Recipe
from citeweave.pipeline.run_folder import AUTO, RunFolder, RunOptions
from citeweave.pipeline.suites import LABELS, Suites, find_leaks, label_table
from citeweave.training.options import ACCURACY

if TYPE_CHECKING:
    from citeweave.intents.annotate import Classifier
    from citeweave.intents.classifier import IntentClassifier


INTENTS_STAGE = "intents"


def intents_of(
    run: RunFolder, rules: MiningRules, corpus: Corpus, given: Corpus, options: RunOptions, reporter: Reporter
) -> IntentSource:
    """Return where a run's citation intents come from; they are classified if needed. `given` is the user's corpus."""
    if not rules.needs_intents:
        return IntentSource()
    if options.intents != AUTO:
        return IntentSource(options.intents, given)
    if not must_be_found(rules, corpus):
        return IntentSource()
    return IntentSource(str(annotate_stage(run, corpus, _classifier(options), options, reporter)))


def must_be_found(rules: MiningRules, corpus: Corpus) -> bool:
    """Return whether the rules need intents that the corpus lacks but its contexts can provide."""
    known = corpus.intents.any() or corpus.contexts.intents.any()
    return rules.needs_intents and not known and len(corpus.contexts) > 0


def key_of_intents(options: RunOptions) -> dict[str, Any]:
    """Return what a run's intents depend on besides its corpus; empty by default."""
    found: dict[str, Any] = {}
    if options.intents != AUTO:
        found["intents"] = IntentSource(options.intents).source
    if options.classifier is not None:
        found["classifier"] = _classifier(options).hash
    return found


def annotate_stage(
    run: RunFolder, corpus: Corpus, classifier: Classifier, options: RunOptions, reporter: Reporter
) -> Path:
    """Run the annotation stage: classify the intents of a corpus into an overlay folder."""
    from citeweave.intents.annotate import annotate_intents

    def make(folder: Path) -> Mapping[str, Any]:
        number = f"{len(corpus.contexts):,} citing sentences"
        reporter.say(f"no citation has an intent: the classifier {classifier.name} reads {number}")
        made = annotate_intents(corpus, folder, classifier, overwrite=options.overwrite, reporter=reporter)
        return dict(made.manifest.facts)

    return run.run(INTENTS_STAGE, [corpus.hash, classifier.hash], make)


def _classifier(options: RunOptions) -> IntentClassifier:
    from citeweave.intents.classifier import IntentClassifier, default_classifier

    if options.classifier is None:
        return default_classifier()
    return IntentClassifier.open(options.classifier, device=options.device)


# The stages before training: the corpus without what must not be learned, its graph, and the samples.

WATCHED = CorpusSuiteOptions(held_out="share:0.05", queries=200, seed=1)
"""What is held out for watching a ranking during training."""


@dataclass(frozen=True, slots=True)
class TrainingMaterial:
    """What training reads."""

    corpus: Corpus
    samples: Samples
    inputs: MiningInputs
    """The graph and its vectors, where they were needed."""

    watched: Suite | None = None
    """Rankings for validation."""


@dataclass
class DataStages:
    """The data stages of a run: from the user's corpus to graph and samples."""

    run: RunFolder
    recipe: Recipe
    read: ReadRecipe
    options: RunOptions
    reporter: Reporter
    before: Corpus | None = None
    """The corpus before papers of suites left it; what these wrote is not learned from."""

    given: Corpus | None = None
    """The corpus as the user gave it; an overlay of intents is of this one."""

    @property
    def is_oracle(self) -> bool:
        """Return whether the recipe learns from the labels of the evaluation suites."""
        return uses_labels(self.read.rules) and LABELS not in self.options.tables

    @property
    def _seed(self) -> int:
        assert self.read.training is not None
        return self.read.training.seed

    def audit(self, corpus: Corpus) -> Corpus:
        """Remove the papers of the published suites from the corpus of a run."""
        self.given = corpus
        if not self.options.suites or self.is_oracle:
            return corpus
        self.before = corpus
        suites = Suites(corpus, self.options, self.reporter)

        def make(folder: Path) -> Mapping[str, Any]:
            report = find_leaks(corpus, {name: suites.read(name) for name in self.options.suites}, self.reporter)
            rows = report.rows_to_exclude()
            names = ", ".join(self.options.suites)
            self.reporter.say(f"audit: {len(rows):,} papers of {names} are in the corpus and leave it")
            if len(rows):
                exclude_papers(corpus, rows, folder, why=f"papers of {names}", overwrite=self.options.overwrite)
            return report.as_json()

        folder = self.run.run("audited", [corpus.hash, {name: suites.key(name) for name in self.options.suites}], make)
        return Corpus.open(folder) if folder.is_dir() and self.run.facts("audited").get("exclude") else corpus

    def make(self, audited: Corpus, suites: Suites) -> TrainingMaterial:
        """Make the corpus, graph and samples that a run trains on."""
        held = np.zeros(len(audited), bool)  # (papers,)
        corpus, watched = audited, None
        if self.options.suite_options is not None and not self.is_oracle:
            held = held_out_rows(audited, self.options.suite_options)
            corpus = self._without(audited, held, "corpus", self.options.held_out)
        assert self.read.training is not None
        if self.read.training.watch != ACCURACY:
            watched = make_suite(corpus, WATCHED, reporter=self.reporter)
            also = held_out_rows(corpus, WATCHED)
            corpus, held = self._without(corpus, also, "corpus-watched", WATCHED.held_out), held | also
        if self.read.texts is not None:
            corpus = self._texts(corpus, suites.asked_titles() if self.read.texts.of == TITLES else [])
            held = np.zeros(len(corpus), bool)  # what held-out papers cite, and the sentences, are gone already
        intents = intents_of(self.run, self.read.rules, corpus, self.given or audited, self.options, self.reporter)
        inputs, graph_hash = self._graph(corpus, intents)
        samples = self._samples(corpus, intents, inputs, graph_hash, held, suites)
        return TrainingMaterial(corpus, samples, inputs, watched)

    def _without(self, corpus: Corpus, held: NDArray[np.bool_], stage: str, why: str) -> Corpus:
        def make(folder: Path) -> Mapping[str, Any]:
            made = without_references(corpus, held, folder, why=why, overwrite=self.options.overwrite)
            return dict(made.manifest.facts["held out"])

        return Corpus.open(self.run.run(stage, [corpus.hash, why], make))

    def _texts(self, corpus: Corpus, asked: Sequence[str]) -> Corpus:
        """Derive the texts to train on as a corpus with its own rows, without the titles that the suites ask for."""
        options, before = self.read.texts, self.before
        assert options is not None

        def make(folder: Path) -> Mapping[str, Any]:
            made = derive_corpus(
                corpus,
                folder,
                options,
                before=before,
                excluded_titles=asked,
                overwrite=self.options.overwrite,
                reporter=self.reporter,
            )
            return dict(made.manifest.facts["derived"])

        key: list[Any] = [corpus.hash, options.as_recipe(), None if before is None else before.hash]
        key += [list(asked)] if asked else []
        return Corpus.open(self.run.run("texts", key, make))

    def _graph(self, corpus: Corpus, given: IntentSource) -> tuple[MiningInputs, str]:
        """Make the graph if rules or losses need it; return the mining inputs and the hash of its folder."""
        assert self.read.training is not None
        losses, rules = self.read.training.losses, self.read.rules
        apart = rules.aspect_graphs
        with_vectors = rules.needs_vectors(NODES) or bool(apart) or "student_teacher" in losses
        asked = any(settings.get("relatives") for settings in losses.values())
        if not (with_vectors or asked or needs_graph(rules)):
            return MiningInputs(), ""
        table = self.recipe.table("graph")
        making = {"seed": self._seed, "device": self.options.device}

        def make(folder: Path) -> Mapping[str, Any]:
            graph = build_mining_graph(
                corpus,
                folder,
                table,
                making,
                with_vectors=with_vectors,
                intents=graph_intents(given, corpus, apart),
                overwrite=self.options.overwrite,
                reporter=self.reporter,
            )
            return asdict(graph.counts)

        key: list[Any] = [corpus.hash, asdict(self.read.graph) if with_vectors else None, self._seed]
        key += [[given.source, apart]] if apart else []
        folder = self.run.run("graph", key, make)
        inputs = graph_inputs(folder, table, with_vectors=with_vectors, aspects=apart)
        return inputs, str(self.run.record["stages"]["graph"]["mark"])

    def _samples(
        self,
        corpus: Corpus,
        given: IntentSource,
        inputs: MiningInputs,
        graph_hash: str,
        held: NDArray[np.bool_],
        suites: Suites,
    ) -> Samples:
        options = self.options
        pool = None if options.pool is None else read_rows(options.pool, corpus, "--pool", self.reporter)
        learned = np.arange(len(corpus)) if pool is None else pool
        anchors = learned[~held[learned]] if held.any() else None

        def make(folder: Path) -> Mapping[str, Any]:
            gathered = annotate_inputs(inputs, corpus, given)
            check_intents(gathered, self.read.rules, corpus)
            tables = read_tables(options.tables, corpus, reporter=self.reporter)
            if self.is_oracle:
                tables[LABELS] = label_table(
                    corpus, {name: suites.read(name) for name in suites.names}, seed=self._seed
                )
            before = None if self.read.texts is not None else self.before
            gathered = dataclasses.replace(gathered, tables=tables, anchors=anchors, pool=pool, before=before)
            fitted = fit_bands(
                self.recipe, self.read.rules, corpus, gathered, how=options.bands, reporter=self.reporter
            )
            device = options.device if options.device in ("cpu", "cuda") else "auto"
            samples = mine_samples(
                corpus,
                fitted.rules,
                folder,
                gathered,
                MiningOptions(seed=self._seed, device=device),
                overwrite=options.overwrite,
                reporter=self.reporter,
            )
            return {**sample_counts(samples), "bands": fitted.facts}

        key = [
            corpus.hash,
            graph_hash,
            asdict(self.read.rules),
            [options.bands, [entry for entry in self.recipe.overrides if "band" in entry]],
            {name: hash_file(path) for name, path in sorted(options.tables.items())},
            {name: suites.key(name) for name in suites.names} if self.is_oracle else None,
            [options.held_out, self._seed],
            *([] if options.pool is None else [{"pool": hash_file(options.pool)}]),
            *([given.source] if self.read.rules.needs_intents else []),
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


def uses_labels(rules: MiningRules) -> bool:
    """Return whether any rule draws from the labels of the suites."""
    inner = any(uses_labels(each) for _, _, each in rules.tasks)
    return inner or any(rule.table == LABELS for rule in rules.rules)


# The stage of alignment: samples whose pairs know the sentences in which they are alike, in aligned/.

ALIGN_STAGE = "aligned"


def align_stage(
    run: RunFolder, material: TrainingMaterial, alignment: AlignmentOptions, options: RunOptions, reporter: Reporter
) -> TrainingMaterial:
    """Run the alignment stage: replace samples by samples with aligned sentences."""

    def make(folder: Path) -> Mapping[str, Any]:
        from citeweave.encoders.encoder import load_encoder
        from citeweave.mining.align import align_samples

        encoder = load_encoder(alignment.encoder, device=options.device)
        aligned = align_samples(
            material.corpus,
            material.samples,
            encoder,
            folder,
            alignment,
            overwrite=options.overwrite,
            reporter=reporter,
        )
        return dict(aligned.manifest.facts["alignment"])

    key = [material.samples.hash, alignment.by, _model_key(alignment.encoder)]
    return dataclasses.replace(material, samples=Samples.open(run.run(ALIGN_STAGE, key, make)))


def _model_key(name: str) -> str:
    """Return what identifies an encoder: the content of its folder, or its hub name."""
    if hub_name(name):
        return name
    model = open_model(locate(name).folder)
    return model.revision(model.settings)
