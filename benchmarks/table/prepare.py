"""From the data folder to a bundle: papers of the benchmarks leave, references are held out, every system's samples are mined.

Stages are those of `citeweave run` and are kept in the work folder: what is done is not done again.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table.bundle import (
    Bundle,
    Column,
    PackedCorpus,
    PackedSamples,
    bundle_path,
    packed,
    write_bundle,
)
from benchmarks.table.splitting import record, texts_to_split
from benchmarks.table.systems import MAX_TOKENS, START, System
from citeweave import Corpus, import_papers
from citeweave.core.errors import CiteweaveError, UserError
from citeweave.core.progress import Reporter
from citeweave.core.randomness import stream
from citeweave.evaluation.suites.corpus_pools import held_out_rows
from citeweave.evaluation.tasks import Suite
from citeweave.pipeline.recipe import load_recipe
from citeweave.pipeline.run import prepare_recipe, run_identity
from citeweave.pipeline.run_folder import NOTHING, RunFolder, RunOptions
from citeweave.pipeline.stages import DataStages, align_stage
from citeweave.pipeline.suites import Suites, without_references
from citeweave.training.options import SENTENCE_LOSSES

FLAGS = ("in_csfcube", "in_acm_cr_qrels")
HELD_OUT = "share:0.1"
"""The references of a tenth of the papers are asked for; by another rule our own method was tried out."""

PUBLISHED = {"csfcube": "csfcube", "beir": "scitldr"}
"""Suites of the library -> folders of the data."""

SHOWN = {"corpus": "corpus", "csfcube": "csfcube", "beir": "scitldr"}
"""Suites of the library -> what the table calls them."""


def import_corpus(data: Path, name: str, work: Path) -> Corpus:
    """The corpus without papers that are flagged as a benchmark's."""
    folder = work / "imported"
    if folder.is_dir():
        return Corpus.open(folder)
    source = work / "source"
    source.mkdir(parents=True, exist_ok=True)
    left = 0
    with gzip.open(data / name / "papers.jsonl.gz", "rt") as given, (source / "papers.jsonl").open("w") as kept:
        for line in given:
            flagged = any(json.loads(line).get(flag) for flag in FLAGS)
            left += flagged
            kept.write("" if flagged else line)
    for other in ("citations.tsv", "contexts.jsonl.gz"):
        if not (source / other).exists():
            (source / other).symlink_to((data / name / other).resolve())
    print(f"{name}: {left:,} papers are flagged {' or '.join(FLAGS)} and stay out", flush=True)
    return import_papers([source], folder).corpus


class Preparation:
    """One corpus on its way into a bundle."""

    def __init__(
        self,
        data: Path,
        name: str,
        work: Path,
        corpus: Corpus | None = None,
        *,
        held_out: str = HELD_OUT,
        pool: Path | None = None,
        device: str = "cpu",
        start: str = START,
    ) -> None:
        self.name, self.work, self.reporter, self.start = name, work / name, Reporter(), start
        self.options = RunOptions(
            init=start,
            suites={suite: data / folder for suite, folder in PUBLISHED.items() if (data / folder).is_dir()},
            device=device,
            held_out=held_out,
            pool=pool,
        )
        self.imported = corpus or import_corpus(data, name, self.work)
        self.audited = self._stages(System("specter", "specter"), self.imported, self.options)[0].audit(self.imported)
        self.suites = Suites(self.audited, self.options, self.reporter)
        assert self.options.suite_options is not None
        self.held = held_out_rows(self.audited, self.options.suite_options)  # (papers,)
        self.learned = without_references(
            self.audited, self.held, self.work / "learned", why=self.options.held_out, overwrite=True
        )

    def _stages(self, system: System, corpus: Corpus, options: RunOptions) -> tuple[DataStages, Any, RunFolder]:
        recipe = load_recipe(system.recipe, [*system.overrides, f"encoder.init={self.start}"])
        if recipe.table("alignment"):
            options = dataclasses.replace(options, aligner=self.start)
        recipe, read = prepare_recipe(recipe, options)
        folder = self.work / "runs" / system.name.replace(" ", "_").replace("%", "percent").replace(",", "")
        options = dataclasses.replace(options, shared=self.work / "shared", overwrite=True)
        run = RunFolder(folder, run_identity(recipe, corpus, options), options, self.reporter)
        run.open()
        return DataStages(run, recipe, read), read, run

    def samples_of(self, system: System) -> tuple[PackedSamples, dict[str, Any], Corpus]:
        """What a system trains on, its tables, and the corpus whose rows the samples name."""
        given, options = self.imported, self.options
        if system.graph_share < 1:
            given, options = self._smaller(system.graph_share), dataclasses.replace(options, held_out=NOTHING)
        stages, read, run = self._stages(system, given, options)
        audited = stages.audit(given)
        same = audited.hash == self.audited.hash
        material = stages.make(audited, self.suites if same else Suites(audited, options, self.reporter))
        if read.alignment is not None:
            material = align_stage(run, material, dataclasses.replace(read.alignment, encoder=self.start))
        keep = ~self.held[np.asarray(material.samples.anchors)] if system.graph_share < 1 else None
        found = packed(material.samples, keep)
        encoder = {
            **dataclasses.asdict(read.encoder),
            "init": "",
            "max_tokens": min(MAX_TOKENS, read.encoder.max_tokens),
        }
        table = {
            "recipe": system.recipe,
            "overrides": list(system.overrides),
            "encoder": encoder,
            "training": dataclasses.asdict(read.training),
            "samples": found.hash,
            "count": len(found),
            "bands": run.stage_metadata("samples").get("bands", {}),
        }
        return found, table, material.corpus

    def _smaller(self, share: float) -> Corpus:
        """The corpus with the references of a share of the papers that cite; held-out ones are gone in any case."""
        citing = np.unique(self.learned.citing)
        kept = stream(0, "share of the graph", str(share)).choice(citing, round(share * len(citing)), replace=False)
        dropped = np.isin(np.arange(len(self.learned)), np.setdiff1d(citing, kept))  # (papers,)
        return without_references(
            self.learned,
            dropped,
            self.work / f"learned-{share:g}",
            why=f"{share:g} of the citing papers",
            overwrite=True,
        )

    def read_suites(self) -> dict[str, Suite]:
        found = {shown: self.suites.read(name) for name, shown in SHOWN.items()}
        return {
            name: dataclasses.replace(suite.choose(()), data={**suite.data, "folder": ""})
            for name, suite in found.items()
        }

    def papers(self, corpus: Corpus) -> PackedCorpus:
        """The texts of a corpus, which is the one to learn from or was derived from it: the data are the same."""
        rows = np.arange(len(corpus))
        return PackedCorpus(self.learned.hash, Column(corpus.titles.take(rows)), Column(corpus.abstracts.take(rows)))


def prepare_bundles(preparation: Preparation, systems: list[System], folder: Path) -> None:
    """A corpus's bundles: systems that train on the same texts share one."""
    for texts in sorted({system.texts for system in systems}):
        path = bundle_path(folder, preparation.name, texts)
        prepare_bundle(preparation, [system for system in systems if system.texts == texts], path)


def prepare_bundle(preparation: Preparation, systems: list[System], path: Path) -> Bundle:
    """Make a bundle; a system whose samples cannot be mined there is left out, with the reason."""
    name = preparation.name
    samples: dict[str, PackedSamples] = {}
    tables: dict[str, dict[str, Any]] = {}
    impossible: dict[str, str] = {}
    trained_on = preparation.learned
    for system in systems:
        begun = time.monotonic()
        try:
            found, tables[system.name], corpus = preparation.samples_of(system)
        except UserError as error:
            impossible[system.name] = str(error)
            print(f"{system.name}: {error}", flush=True)
            continue
        trained_on = corpus if system.texts else trained_on
        samples[found.hash] = found
        print(f"{system.name}: {len(found):,} samples, {time.monotonic() - begun:.0f} s", flush=True)
    if not samples:
        raise CiteweaveError(f"{name}: no system has samples ({'; '.join(impossible.values())})")
    learned, papers, suites = preparation.learned, preparation.papers(trained_on), preparation.read_suites()
    reads_sentences = any(set(SENTENCE_LOSSES) & table["training"]["losses"].keys() for table in tables.values())
    titles, abstracts = (papers.titles.texts, papers.abstracts.texts) if reads_sentences else ((), ())
    bundle = Bundle(
        name,
        papers,
        (np.asarray(trained_on.citing, np.int32), np.asarray(trained_on.cited, np.int32)),
        suites,
        samples,
        tables,
        {
            "papers": len(learned),
            "citations to train on": len(learned.citing),
            "held out": preparation.options.held_out,
            "papers that left, since they are a benchmark's": len(preparation.imported) - len(learned),
            "not possible here": impossible,
        },
        record(texts_to_split(titles, abstracts, suites.values())),
    )
    write_bundle(path, bundle)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, data version {bundle.version}", flush=True)
    return bundle
