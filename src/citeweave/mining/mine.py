"""Mining: rules are followed for all anchors, block after block, and the samples written as they come.

    samples = mine_samples(corpus, parse_rules(table), "samples/", graph=graph, vectors={"graph": vectors})

A block that is done is kept in the work folder, so an interrupted run resumes where it stopped. Blocks are made so
small that each takes less than half a minute (`pieces.py`): a sample depends on its anchor and the seed alone, so the same
seed gives the same samples under any number of workers, any memory and any clock. With a crew its workers make the blocks.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.writing import ArtefactWriter, matches
from citeweave.corpus.corpus import Corpus
from citeweave.crew import Crew
from citeweave.errors import UserError, choose
from citeweave.files import hash_json, write_whole
from citeweave.graph.citations import CitationGraph
from citeweave.graph.edge_sorting import row_ranges
from citeweave.graph.signals import TWO_HOPS, Relations, Signal, largest_sizes
from citeweave.mining.following import rule_names
from citeweave.mining.material import Material
from citeweave.mining.mixing import key_limit, mixture_counts, renumber, sample_keys
from citeweave.mining.parts import read_part
from citeweave.mining.pieces import Pace, Pieces
from citeweave.mining.remote import block_work
from citeweave.mining.rules import MiningRules
from citeweave.mining.sample_blocks import take_samples
from citeweave.mining.samples import KIND, VERSION, Names, Samples, SamplesWriter, new_samples
from citeweave.mining.sharing import check_relations
from citeweave.mining.shortfall import Shortfall
from citeweave.mining.tables import Table
from citeweave.mining.task_run import TaskRun, mine_block
from citeweave.mining.vector_sources import check_bands
from citeweave.progress import QUIET, SAVE_EVERY, Reporter
from citeweave.similarity.topk import DEVICES
from citeweave.similarity.vectors import Vectors

BLOCK_ANCHORS = 16_384
"""Anchors followed at a time, at most."""


@dataclass(frozen=True, slots=True)
class MiningOptions:
    """How to mine; none of it changes which samples come out, except the seed."""

    seed: int = 0
    workers: int = 0
    """Threads; 0 = one a core."""

    memory: int = 512 << 20
    """Bytes that a search, and the related papers of a block, may take."""

    device: str = "cpu"
    """Where neighbours are searched: cpu, cuda, or auto."""

    save_every: float = SAVE_EVERY
    """Seconds of work that an interruption may cost; with a crew it is a block of each worker."""

    def __post_init__(self) -> None:
        choose(self.device, DEVICES, "--device")
        if self.workers < 0 or self.memory < 1 << 20:
            raise UserError(
                f"--workers is {self.workers} and --memory {self.memory:,} bytes; workers are 0 (one a core) or more, "
                "memory is 1MB or more"
            )


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a mining run reads beside the corpus."""

    graph: CitationGraph | None = None
    vectors: Mapping[str, Vectors] = field(default_factory=dict)
    """By the name that rules use; "graph" are the node vectors."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    anchors: NDArray[np.int64] | None = None
    """Rows that may be anchors, in the pool or not; None = all of the pool."""

    pool: NDArray[np.int64] | None = None
    """Rows that may be chosen, those of them with the text that the rules ask for; None = all with it."""

    before: Corpus | None = None
    """The corpus before papers left it, such as those of a benchmark: sentences that these wrote are no contexts."""


def mine_samples(
    corpus: Corpus,
    rules: MiningRules,
    folder: str | Path,
    inputs: Inputs | None = None,
    options: MiningOptions | None = None,
    *,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
    crew: Crew | None = None,
) -> Samples:
    """Choose positives and negatives for every anchor and write them to a folder; the same run again opens it."""
    inputs, options = inputs or Inputs(), options or MiningOptions()
    if inputs.graph is not None and inputs.graph.corpus not in ("", corpus.hash):
        raise UserError(f"the graph is of another corpus than {corpus.folder}; make it again with `citeweave graph`")
    if not len(corpus.contexts):
        rules = rules.without_sentences()
    recipe = _recipe(corpus, rules, inputs, options)
    if matches(Path(folder), KIND, VERSION, recipe):
        return Samples.open(folder)
    tasks = rules.tasks or (("", 1.0, rules),)
    names = Names(
        rules=tuple(f"{name}.{rule}" if name else rule for name, _, inner in tasks for rule in rule_names(inner)),
        aspects=tuple(dict.fromkeys(aspect for _, _, inner in tasks for aspect in inner.aspects or ("",))),
        tasks=tuple(name for name, _, _ in tasks),
    )
    facts = {"corpus_folder": str(corpus.folder), "seed": options.seed}
    with new_samples(folder, names, corpus=corpus.hash, recipe=recipe, facts=facts, overwrite=overwrite) as writer:
        if inputs.pool is not None:
            writer.keep_pool(inputs.pool)
        runs = [
            TaskRun(inner, material_of(corpus, inner, inputs, options), number, name, inputs.anchors, inputs.before)
            for number, (name, _, inner) in enumerate(tasks)
        ]
        for run in runs:
            _mine_parts(run, writer.artefact, options.save_every, reporter, crew)
        _write_all(runs, [weight for _, weight, _ in tasks], writer)
        return writer.finish()


def material_of(corpus: Corpus, rules: MiningRules, inputs: Inputs, options: MiningOptions) -> Material:
    """What the rules of one task draw from; a pool without a paper that they can use is refused."""
    material = Material(
        corpus,
        rules.text,
        Relations(inputs.graph, corpus) if inputs.graph is not None else None,
        inputs.vectors,
        inputs.tables,
        options.seed,
        options.workers,
        options.memory,
        options.device,
        given=inputs.pool,
        anchors=inputs.anchors,
    )
    material.check_pool()
    return material


def _write_all(runs: list[TaskRun], weights: list[float], writer: SamplesWriter) -> None:
    shares = mixture_counts([run.samples for run in runs], weights)
    base = 0
    for run, share in zip(runs, shares, strict=True):
        limit = key_limit(run.parts, run.material.seed, share)
        for part in run.parts:
            block = read_part(part)[0]
            if limit is not None:
                block = take_samples(block, sample_keys(block, run.material.seed) <= limit)
            places = [writer.names.aspects.index(aspect) for aspect in run.rules.aspects or ("",)]
            writer.append(renumber(block, base, places))
        base += len(rule_names(run.rules))
    writer.facts |= _account(runs, shares)


def _mine_parts(
    run: TaskRun, artefact: ArtefactWriter, save_every: float, reporter: Reporter, crew: Crew | None
) -> None:
    """Follow the rules block by block; blocks found from an earlier run are read."""
    check_relations(run.material.corpus, run.rules)
    for aspect in run.rules.aspects or ("",):
        own = run.rules.for_aspect(aspect)
        positives, negatives = (
            [rule for rule in side if aspect not in rule.not_for] for side in (own.positives, own.negatives)
        )
        check_bands(positives, negatives, run.material)
    units, pairs = run.units()
    pieces = Pieces(artefact.work(f"blocks-{run.number}"), units)
    spans = list(_spans(run, units if pairs is None else pairs.anchors[units].astype(np.int64)))
    with reporter.task(run.label, len(units), "anchors" if pairs is None else "pairs") as advance:
        if crew is not None:
            spans = pieces.divided(spans)
            run.parts = [pieces.path(*span) for span in spans]
            missing = [number for number, path in enumerate(run.parts) if not path.exists()]
            advance(len(units) - sum(spans[number][1] - spans[number][0] for number in missing))
            for number, part in crew.make(block_work(run, units, pairs, spans), missing) if missing else ():
                write_whole(run.parts[number], part)
                advance(spans[number][1] - spans[number][0])
        else:
            mined = pieces.fill(spans, lambda rows: mine_block(run, rows, pairs), Pace(save_every), advance)
            run.parts = list(mined)
    for path in run.parts:
        block, account = read_part(path)
        run.account.add(account)
        run.samples += len(block)


def _spans(run: TaskRun, anchors: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Blocks of anchors whose related papers over two hops stay within the memory."""
    sizes = np.full(len(anchors), max(1, run.material.memory // BLOCK_ANCHORS), np.int64)
    names = {rule.source for rule in run.rules.rules} | {name for rule in run.rules.rules for name in rule.exclude}
    longest = max((rule.longest for rule in run.rules.rules), default=1)
    for name in sorted(names & set(TWO_HOPS)):
        graph = run.material.graph(f"source {name}").graph
        sizes += 24 * np.minimum(largest_sizes(graph, Signal(name, longest=longest), anchors), graph.nodes)
    return row_ranges(sizes, run.material.memory)


def _account(runs: list[TaskRun], shares: list[int]) -> dict[str, Any]:
    """Everything that was asked, got, and left out, and why."""
    total = Shortfall()
    for run in runs:
        named = Shortfall(run.account.used, run.account.skipped)
        prefix = f"{run.name}." if run.name else ""
        named.asked = {prefix + name: number for name, number in run.account.asked.items()}
        named.got = {prefix + name: number for name, number in run.account.got.items()}
        named.aspects = {prefix + name: dict(reasons) for name, reasons in run.account.aspects.items()}
        total.add(named)
    facts: dict[str, Any] = {
        "anchors": total.used,
        "skipped": dict(sorted(total.skipped.items())),
        "rules_asked": total.asked,
        "rules_got": total.got,
    }
    if total.aspects:
        facts["aspects_skipped"] = total.aspects
    contexts = {run.name or "contexts": run.contexts for run in runs if run.contexts}
    if contexts:
        facts["contexts"] = contexts
    if len(runs) > 1:
        facts["mixture"] = {run.name: {"mined": run.samples, "kept": n} for run, n in zip(runs, shares, strict=True)}
    return facts


def _recipe(corpus: Corpus, rules: MiningRules, inputs: Inputs, options: MiningOptions) -> dict[str, Any]:
    """What the samples depend on; plain JSON."""
    anchors, pool = (
        None if rows is None else hash_json(np.sort(rows).tolist()) for rows in (inputs.anchors, inputs.pool)
    )
    return {
        "corpus": corpus.hash,
        "rules": dataclasses.asdict(rules),
        "graph": None if inputs.graph is None else _hash_of(*_told_apart_by(inputs.graph)),
        "vectors": {name: vectors.manifest.hash for name, vectors in sorted(inputs.vectors.items())},
        "tables": {
            name: _hash_of(table.offsets, table.targets, table.counts) for name, table in sorted(inputs.tables.items())
        },
        "anchors": anchors,
        "seed": options.seed,
        **({} if pool is None else {"pool": pool}),
        **({} if inputs.before is None else {"before": inputs.before.hash}),
    }


def _told_apart_by(graph: CitationGraph) -> list[NDArray[Any]]:
    """Columns that tell graphs apart; where a graph is of no corpus, also which of its edges are whose."""
    return [graph.cited.targets, graph.intents, *([] if graph.corpus else [graph.cited.offsets])]


def _hash_of(*columns: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for column in columns:
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
