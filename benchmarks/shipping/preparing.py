"""The corpus that the shipped models learn from, and its bundle.

    peerread_plus    papers, their whole reference lists with the titles of what lies outside, citing sentences
    elife            the same
    acl_anthology    from 2016 on, CC BY; titles and abstracts alone, it has no citations

What the models are judged by is not learned: references of held-out papers, titles that a suite asks with, papers of
CSFCube, SciTLDR and the samples of SciRepEval, flagged ones, those that the audit finds and those with such a title.
"""

from __future__ import annotations

import dataclasses
import gzip
import itertools
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
from citeweave.corpus.options import ImportOptions
from citeweave.pipeline.recipe import load_recipe
from citeweave.pipeline.run import prepare_recipe, run_identity
from citeweave.pipeline.run_folder import NOTHING, RunFolder
from citeweave.pipeline.stages import DataStages, TrainingInputs
from citeweave.pipeline.suites import Suites

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
    banned = benchmark_titles(parts["elife"], data)
    sources = [write_learned(data, part, work / NAME / "sources" / name, banned) for name, part in parts.items()]
    sources.append(write_anthology(data, work / NAME / "sources" / "acl_anthology", banned))
    options = ImportOptions(outside="keep")
    joint = import_papers(sources, work / NAME / "imported", options, overwrite=True).corpus
    audited, material, tables = mine_joint(joint, parts["elife"], asked, work / NAME, overrides)
    bundle = pack_joint(material, tables, parts["elife"], audited, sources, banned)
    write_bundle(output / f"{NAME}.bundle", bundle)
    print(f"{NAME}: {bundle.facts}, {(output / f'{NAME}.bundle').stat().st_size / 1e6:.1f} MB", flush=True)
    return bundle


def write_learned(data: Path, part: Preparation, folder: Path, banned: set[str]) -> Path:
    """Papers of a corpus, titles of what they cite outside it, and the whole reference lists of those not held out."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.arange(len(part.learned))
    known = set(part.learned.ids.take(rows))
    held = {plain_title(title) for title in part.learned.titles.take(rows[part.held])}
    titles = zip(part.learned.ids.take(rows[~part.held]), part.learned.titles.take(rows[~part.held]), strict=True)
    citing = {id for id, title in titles if plain_title(title) not in held}  # a copy repeats what is asked for

    def is_wanted(paper: Paper) -> bool:
        return paper["id"] in known and plain_title(paper["title"]) not in banned

    copy_lines(data / part.name / "papers.jsonl.gz", folder / "papers.jsonl", is_wanted)
    copy_lines(
        data / part.name / "reference_titles.jsonl.gz",
        folder / "references.jsonl",
        lambda paper: plain_title(paper["title"]) not in banned,
    )
    copy_lines(data / part.name / "contexts.jsonl.gz", folder / "contexts.jsonl", lambda line: line["citing"] in citing)
    with (
        gzip.open(data / part.name / "references.jsonl.gz", "rt") as given,
        (folder / "citations.tsv").open("w") as kept,
    ):
        kept.write("citing\tcited\n")  # ids with spaces need a header
        for entry in map(json.loads, given):
            if entry["citing"] in citing:
                kept.writelines(f"{entry['citing']}\t{cited}\n" for cited in entry["cited"])
    return folder


def benchmark_titles(part: Preparation, data: Path) -> set[str]:
    """Titles of CSFCube, SciTLDR and SciRepEval's samples: a paper of such a title stays out, also if it is another one."""
    suites = (suite for name, suite in part.read_suites().items() if name != SHOWN["corpus"])
    found = {plain_title(title) for suite in suites for task in suite.tasks for title in task.texts.titles}
    with gzip.open(data / "scirepeval_samples" / "papers.jsonl.gz", "rt") as samples:
        return (found | {plain_title(json.loads(line)["title"]) for line in samples}) - {""}


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
) -> tuple[Corpus, TrainingInputs, dict[str, Any]]:
    """The audited corpus, samples of the recipe, and its tables; nothing is held out, since nothing that is asked for is there."""
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
    return audited, material, {"encoder": encoder, "training": dataclasses.asdict(read.training), "recipe": "weave"}


def pack_joint(
    material: TrainingInputs,
    tables: dict[str, Any],
    part: Preparation,
    audited: Corpus,
    sources: list[Path],
    banned: set[str],
) -> Bundle:
    """A bundle with the published suites; those of the single corpora are in their own bundles."""
    corpus, rows = material.corpus, np.arange(len(material.corpus))
    titles, abstracts, ids = (column.take(rows) for column in (corpus.titles, corpus.abstracts, corpus.ids))
    samples = packed(material.samples, np.array([bool(abstracts[row]) for row in material.samples.anchors]))
    leaks = sum(plain_title(title or text) in banned for title, text in zip(titles, abstracts, strict=True))
    suites = {name: suite for name, suite in part.read_suites().items() if name != SHOWN["corpus"]}
    learned = np.unique(np.concatenate([samples.anchors, samples.positives.rows]))
    facts = {
        "papers": int((audited.abstracts.lengths() > 0).sum()),
        "texts": len(learned),
        "samples": len(samples),
        "pairs": len(samples.positives.rows),
        "titles of benchmarks": leaks,
        "sources": source_runs(ids, audited, sources),
    }
    return Bundle(
        NAME,
        PackedCorpus(corpus.hash, Column(titles), Column(abstracts)),
        (np.asarray(corpus.citing, np.int32), np.asarray(corpus.cited, np.int32)),
        suites,
        {samples.hash: samples},
        {SYSTEM: {**tables, "samples": samples.hash, "count": len(samples), "bands": {}}},
        facts,
        record(texts_to_split([""] * len(learned), [abstracts[row] for row in learned], suites.values())),
    )


def source_runs(ids: list[str], audited: Corpus, sources: list[Path]) -> list[tuple[str, int]]:
    """The source of every text in the order of the corpus, as runs of equal ones: name and length."""
    known = {json.loads(line)["id"]: folder.name for folder in sources for line in (folder / "papers.jsonl").open()}
    own = [known.get(id, "") for id in audited.ids.take(np.arange(len(audited)))]

    def source(id: str) -> str:
        kind, _, row = id.partition(":")
        return own[int(row)] if kind in ("title", "abstract", "paper") and row.isdigit() else known.get(id, "")

    return [(name, len(list(run))) for name, run in itertools.groupby(map(source, ids))]
