"""The corpus that the shipped model learns from, and its bundle.

    peerread_plus    papers of PeerRead (arXiv abstracts), ACL and PMLR; not those whose abstracts came from elsewhere
    elife            all
    acl_anthology    from 2016 on, CC BY; titles and abstracts alone, it has no citations

What the table asks about is not learned: references of held-out papers, titles that a suite asks with, papers of CSFCube
and SciTLDR, flagged ones and those that the audit finds.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shipping import NAME, SYSTEM
from benchmarks.table.bundle import Bundle, Column, PackedCorpus, packed, write_bundle
from benchmarks.table.judging import plain_title
from benchmarks.table.prepare import FLAGS, SHOWN, Preparation
from benchmarks.table.splitting import record, texts_to_split
from benchmarks.table.systems import CORPORA, MAX_TOKENS, START
from citeweave import Corpus, import_papers
from citeweave.core.progress import Reporter
from citeweave.pipeline.recipe import load_recipe
from citeweave.pipeline.run import prepare_recipe, run_identity
from citeweave.pipeline.run_folder import NOTHING, RunFolder
from citeweave.pipeline.stages import DataStages, TrainingInputs
from citeweave.pipeline.suites import Suites

CLEAN = ("peerread", "acl", "pmlr")
"""Sources in peerread_plus whose abstracts may be passed on; ACM's and the paper lists' stay out."""

FIRST_YEAR = 2016
"""The ACL Anthology is CC BY from this year on."""

Paper = Mapping[str, Any]


@dataclass
class JointSuites(Suites):
    """The published suites, and the titles that the suites of the single corpora ask with."""

    titles: list[str] = field(default_factory=list)

    def queried_titles(self) -> list[str]:
        return self.titles


def prepare_joint(data: Path, work: Path, output: Path, overrides: list[str]) -> Bundle:
    """Filter, import, audit, mine by the recipe and pack."""
    parts = {name: Preparation(data, name, work) for name in CORPORA}
    asked = sorted(id for part in parts.values() for id in part.suites.queried_titles())
    banned = benchmark_titles(parts["elife"])
    sources = [write_learned(data, part, work / NAME / "sources" / name) for name, part in parts.items()]
    sources.append(write_anthology(data, work / NAME / "sources" / "acl_anthology", banned))
    joint = import_papers(sources, work / NAME / "imported", overwrite=True).corpus
    material, tables = mine_joint(joint, parts["elife"], asked, work / NAME, overrides)
    bundle = pack_joint(material, tables, parts["elife"], joint)
    write_bundle(output / f"{NAME}.bundle", bundle)
    print(f"{NAME}: {bundle.facts}, {(output / f'{NAME}.bundle').stat().st_size / 1e6:.1f} MB", flush=True)
    return bundle


def write_learned(data: Path, part: Preparation, folder: Path) -> Path:
    """Papers of a corpus, and what those of them that are not held out cite."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.arange(len(part.learned))
    known = set(part.learned.ids.take(rows))
    citing = set(part.learned.ids.take(rows[~part.held]))

    def is_wanted(paper: Paper) -> bool:
        return paper["id"] in known and (part.name != "peerread_plus" or paper["source"] in CLEAN)

    copy_lines(data / part.name / "papers.jsonl.gz", folder / "papers.jsonl", is_wanted)
    copy_lines(data / part.name / "contexts.jsonl.gz", folder / "contexts.jsonl", lambda line: line["citing"] in citing)
    lines = (data / part.name / "citations.tsv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.partition("\t")[0] in citing]
    (folder / "citations.tsv").write_text("".join(kept))
    return folder


def benchmark_titles(part: Preparation) -> set[str]:
    """Titles of CSFCube and SciTLDR: a paper of such a title stays out, also where the audit knows it for another one."""
    suites = (suite for name, suite in part.read_suites().items() if name != SHOWN["corpus"])
    return {plain_title(title) for suite in suites for task in suite.tasks for title in task.texts.titles}


def write_anthology(data: Path, folder: Path, banned: set[str]) -> Path:
    """Papers of the ACL Anthology under a free license, without those of a benchmark's titles."""
    folder.mkdir(parents=True, exist_ok=True)

    def is_free(paper: Paper) -> bool:
        is_new = int(paper.get("year") or 0) >= FIRST_YEAR and not any(paper.get(flag) for flag in FLAGS)
        return is_new and plain_title(paper["title"]) not in banned

    copy_lines(data / "acl_anthology" / "papers.jsonl.gz", folder / "papers.jsonl", is_free)
    return folder


def copy_lines(source: Path, target: Path, is_wanted: Callable[[Paper], bool]) -> None:
    """The lines of a file of JSON whose record is wanted."""
    with gzip.open(source, "rt") as given, target.open("w") as kept:
        kept.writelines(line for line in given if is_wanted(json.loads(line)))


def mine_joint(
    joint: Corpus, part: Preparation, asked: list[str], work: Path, overrides: list[str]
) -> tuple[TrainingInputs, dict[str, Any]]:
    """Samples of the recipe, and its tables; nothing is held out, since nothing that is asked for is there."""
    reporter = Reporter()
    options = dataclasses.replace(part.options, held_out=NOTHING)
    recipe, read = prepare_recipe(load_recipe("weave", [*overrides, f"encoder.init={START}"]), options)
    assert read.training is not None
    options = dataclasses.replace(options, shared=work / "shared", overwrite=True)
    run = RunFolder(work / "run", run_identity(recipe, joint, options), options, reporter)
    run.open()
    stages = DataStages(run, recipe, read)
    audited = stages.audit(joint)
    material = stages.make(audited, JointSuites(audited, options, reporter, titles=asked))
    encoder = {**dataclasses.asdict(read.encoder), "init": "", "max_tokens": MAX_TOKENS}
    return material, {"encoder": encoder, "training": dataclasses.asdict(read.training), "recipe": "weave"}


def pack_joint(material: TrainingInputs, tables: dict[str, Any], part: Preparation, joint: Corpus) -> Bundle:
    """A bundle with the published suites; those of the single corpora are in their own bundles."""
    corpus, samples = material.corpus, packed(material.samples)
    rows = np.arange(len(corpus))
    papers = PackedCorpus(corpus.hash, Column(corpus.titles.take(rows)), Column(corpus.abstracts.take(rows)))
    suites = {name: suite for name, suite in part.read_suites().items() if name != SHOWN["corpus"]}
    return Bundle(
        NAME,
        papers,
        (np.asarray(corpus.citing, np.int32), np.asarray(corpus.cited, np.int32)),
        suites,
        {samples.hash: samples},
        {SYSTEM: {**tables, "samples": samples.hash, "count": len(samples), "bands": {}}},
        {"papers": len(joint), "texts": len(corpus), "samples": len(samples), "pairs": len(samples.positives.rows)},
        record(texts_to_split((), (), suites.values())),
    )
