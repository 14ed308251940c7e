"""The stages before training: the corpus without what must not be learned, its graph, and the samples.

    audited    the corpus without the papers of published suites, where it holds some
    corpus     without the references that the suite of the corpus asks for; papers and rows stay
    texts      a corpus of other texts of it, where the recipe trains on those; from here on they are the papers
    intents    of citations, found by a classifier, where rules need them and the corpus has none
    graph      citations, with node vectors where rules or a teacher need them
    samples    what the rules chose; held-out papers are no anchors

The oracle learns from the very answers, so nothing is kept from it. A recipe that watches a ranking while it trains
(`training.watch`) gets one of its own: the references of a twentieth of the remaining papers, kept from training too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derived.deriving import TITLES, derive_corpus
from citeweave.corpus.importing import exclude_papers
from citeweave.evaluation.suites.corpus import CorpusSuiteOptions, held_out_rows, make_suite
from citeweave.evaluation.tasks import Suite
from citeweave.files import hash_file
from citeweave.mining import gathering
from citeweave.mining.aspect_names import NODES
from citeweave.mining.given_intents import GivenIntents
from citeweave.mining.mine import Inputs, MiningOptions, mine_samples
from citeweave.mining.rules import MiningRules
from citeweave.mining.samples import Samples
from citeweave.pipeline.auditing import find_leaks
from citeweave.pipeline.fitting_bands import fit_bands
from citeweave.pipeline.intents import intents_of
from citeweave.pipeline.labels import LABELS, label_table
from citeweave.pipeline.options import RunOptions
from citeweave.pipeline.run_folder import RunFolder
from citeweave.pipeline.suites import Suites
from citeweave.pipeline.training_corpus import without_references
from citeweave.progress import Reporter
from citeweave.recipe import ReadRecipe, Recipe
from citeweave.training.options import ACCURACY

WATCHED = CorpusSuiteOptions(held_out="share:0.05", queries=200, seed=1)
"""What is held out for watching a ranking during training."""


@dataclass(frozen=True, slots=True)
class TrainingMaterial:
    """What training reads."""

    corpus: Corpus
    samples: Samples
    inputs: Inputs
    """The graph and its vectors, where they were needed."""

    watched: Suite | None = None
    """Rankings for validation."""


@dataclass
class DataStages:
    """From the given corpus to samples."""

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
        """Whether the recipe learns from the labels of the suites."""
        return uses_labels(self.read.rules) and LABELS not in self.options.tables

    @property
    def _seed(self) -> int:
        assert self.read.training is not None
        return self.read.training.seed

    def audit(self, corpus: Corpus) -> Corpus:
        """The corpus without papers of the published suites."""
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
        """Corpus, graph and samples for training."""
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
        """The texts that are trained on, as a corpus; rows are others from here on. Titles that are asked for are none."""
        options, before = self.read.texts, self.before
        assert options is not None

        def make(folder: Path) -> Mapping[str, Any]:
            made = derive_corpus(
                corpus,
                folder,
                options,
                before=before,
                untold=asked,
                overwrite=self.options.overwrite,
                reporter=self.reporter,
            )
            return dict(made.manifest.facts["derived"])

        key: list[Any] = [corpus.hash, options.as_recipe(), None if before is None else before.hash]
        key += [list(asked)] if asked else []
        return Corpus.open(self.run.run("texts", key, make))

    def _graph(self, corpus: Corpus, given: GivenIntents) -> tuple[Inputs, str]:
        """The graph, where rules or losses need it, and the hash of its folder."""
        assert self.read.training is not None
        losses, rules = self.read.training.losses, self.read.rules
        apart = rules.aspect_graphs
        with_vectors = rules.needs_vectors(NODES) or bool(apart) or "student_teacher" in losses
        asked = any(settings.get("relatives") for settings in losses.values())
        if not (with_vectors or asked or gathering.needs_graph(rules)):
            return Inputs(), ""
        table = self.recipe.table("graph")
        making = {"seed": self._seed, "device": self.options.device}

        def make(folder: Path) -> Mapping[str, Any]:
            graph = gathering.make_graph_for(
                corpus,
                folder,
                table,
                making,
                with_vectors=with_vectors,
                intents=gathering.intents_apart(given, corpus, apart),
                overwrite=self.options.overwrite,
                reporter=self.reporter,
            )
            return asdict(graph.counts)

        key: list[Any] = [corpus.hash, asdict(self.read.graph) if with_vectors else None, self._seed]
        key += [[given.source, apart]] if apart else []
        folder = self.run.run("graph", key, make)
        inputs = gathering.graph_inputs(folder, table, with_vectors=with_vectors, apart=apart)
        return inputs, str(self.run.record["stages"]["graph"]["mark"])

    def _samples(
        self,
        corpus: Corpus,
        given: GivenIntents,
        inputs: Inputs,
        graph_hash: str,
        held: NDArray[np.bool_],
        suites: Suites,
    ) -> Samples:
        options = self.options
        pool = None if options.pool is None else gathering.read_rows(options.pool, corpus, "--pool", self.reporter)
        learned = np.arange(len(corpus)) if pool is None else pool
        anchors = learned[~held[learned]] if held.any() else None

        def make(folder: Path) -> Mapping[str, Any]:
            gathered = gathering.with_intents(inputs, corpus, given)
            gathering.check_intents(gathered, self.read.rules, corpus)
            tables = gathering.read_tables(options.tables, corpus, reporter=self.reporter)
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
    """How many there are of what."""
    return {
        "samples": len(samples),
        "anchors": len(np.unique(samples.anchors)),
        "positives": len(samples.positives.rows),
        "negatives": len(samples.negatives.rows),
    }


def uses_labels(rules: MiningRules) -> bool:
    """Whether some rule draws from the labels of suites."""
    inner = any(uses_labels(each) for _, _, each in rules.tasks)
    return inner or any(rule.table == LABELS for rule in rules.rules)
