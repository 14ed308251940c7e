"""Mining: rules are followed for all anchors, block after block, and the samples written as they come.

    samples = mine_samples(corpus, parse_rules(table), "samples/", graph=graph, vectors={"graph": vectors})

A block that is done is kept in the work folder, so an interrupted run resumes where it stopped. Blocks are made so
small that each takes less than half a minute (`pieces.py`): a sample depends on its anchor and the seed alone, so the same
seed gives the same samples under any number of workers, any memory and any clock. With a crew its workers make the blocks.

Blocks of anchors that a crew mines: what its workers are told, and what they do with it.

    for number, part in crew.make(block_work(run, units, pairs, spans), missing): ...

The driver says which anchors there are and where blocks begin. What only its memory holds (intents that were put on the
graph, tables, anchors, pairs of contexts) it writes beside the blocks; all else workers open where the driver did. So
every machine must see the corpus, the graph, the vectors and the output under the same names. A graph that was made in
memory is refused. Does not decide what is missing: `mine.py` does.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, matches, read_manifest
from citeweave.core.columns import open_numbers, read_arrays, write_numbers
from citeweave.core.errors import UserError, choose
from citeweave.core.executor import Executor, Make, ShardTask
from citeweave.core.files import hash_json, move, write_whole
from citeweave.core.progress import QUIET, SAVE_EVERY, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.graph import citations
from citeweave.graph.citations import CitationGraph
from citeweave.graph.edge_sort import row_ranges
from citeweave.graph.signals import TWO_HOPS, Relations, Signal, largest_sizes
from citeweave.mining.apply_rules import TaskRun, mine_block, rule_names
from citeweave.mining.blocks import (
    BlockPace,
    Pieces,
    Shortfall,
    key_limit,
    mixture_counts,
    read_part,
    renumber,
    sample_keys,
)
from citeweave.mining.mining_data import MiningData
from citeweave.mining.rules import ContextFilter, MiningRules, Rule
from citeweave.mining.samples import (
    KIND,
    VERSION,
    SampleNames,
    Samples,
    SamplesWriter,
    new_samples,
    take_samples,
)
from citeweave.mining.shared_metadata import check_relations
from citeweave.mining.sources import CocitedPairs
from citeweave.mining.tables import Table
from citeweave.mining.vector_sources import check_bands
from citeweave.vectors.topk import DEVICES
from citeweave.vectors.vectors import Vectors

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
    """Where neighbors are searched: cpu, cuda, or auto."""

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
class MiningInputs:
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
    inputs: MiningInputs | None = None,
    options: MiningOptions | None = None,
    *,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
    crew: Executor | None = None,
) -> Samples:
    """Choose positives and negatives for every anchor and write them to a folder; the same run again opens it."""
    inputs, options = inputs or MiningInputs(), options or MiningOptions()
    if inputs.graph is not None and inputs.graph.corpus not in ("", corpus.hash):
        raise UserError(f"the graph is of another corpus than {corpus.folder}; make it again with `citeweave graph`")
    if not len(corpus.contexts):
        rules = rules.without_sentences()
    recipe = _recipe(corpus, rules, inputs, options)
    if matches(Path(folder), KIND, VERSION, recipe):
        return Samples.open(folder)
    tasks = rules.tasks or (("", 1.0, rules),)
    names = SampleNames(
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
            _mine_parts(run, writer.artifact, options.save_every, reporter, crew)
        _write_all(runs, [weight for _, weight, _ in tasks], writer)
        return writer.finish()


def material_of(corpus: Corpus, rules: MiningRules, inputs: MiningInputs, options: MiningOptions) -> MiningData:
    """What the rules of one task draw from; a pool without a paper that they can use is refused."""
    material = MiningData(
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
    run: TaskRun, artifact: ArtifactWriter, save_every: float, reporter: Reporter, crew: Executor | None
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
    pieces = Pieces(artifact.work(f"blocks-{run.number}"), units)
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
            mined = pieces.fill(spans, lambda rows: mine_block(run, rows, pairs), BlockPace(save_every), advance)
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


def _recipe(corpus: Corpus, rules: MiningRules, inputs: MiningInputs, options: MiningOptions) -> dict[str, Any]:
    """What the samples depend on; plain JSON."""
    anchors, pool = (
        None if rows is None else hash_json(np.sort(rows).tolist()) for rows in (inputs.anchors, inputs.pool)
    )
    return {
        "corpus": corpus.hash,
        "rules": dataclasses.asdict(rules),
        "graph": None if inputs.graph is None else _inputs_hash(*_told_apart_by(inputs.graph)),
        "vectors": {name: vectors.manifest.hash for name, vectors in sorted(inputs.vectors.items())},
        "tables": {
            name: _inputs_hash(table.offsets, table.targets, table.counts)
            for name, table in sorted(inputs.tables.items())
        },
        "anchors": anchors,
        "seed": options.seed,
        **({} if pool is None else {"pool": pool}),
        **({} if inputs.before is None else {"before": inputs.before.hash}),
    }


def _told_apart_by(graph: CitationGraph) -> list[NDArray[Any]]:
    """Columns that tell graphs apart; where a graph is of no corpus, also which of its edges are whose."""
    return [graph.cited.targets, graph.intents, *([] if graph.corpus else [graph.cited.offsets])]


def _inputs_hash(*columns: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for column in columns:
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


# Blocks of anchors that a crew mines: what its workers are told, and what they do with it.

_INTENTS = "edges/intents.npy"
_PAIRS = ("anchors", "positives", "offsets", "contexts")
_ROWS = ("given", "anchors")
"""Rows that material may be restricted to."""

_TABLE = ("offsets", "targets", "counts")


def block_work(
    run: TaskRun, units: NDArray[np.int64], pairs: CocitedPairs | None, spans: list[tuple[int, int]]
) -> ShardTask:
    """The blocks of one task as work for a crew."""
    material, rules = run.material, json.loads(json.dumps(asdict(run.rules)))
    assert hash_json(asdict(rules_of(rules))) == hash_json(rules), "rules are the same after a journey as JSON"
    folder = run.parts[0].parent / "given"
    folder.mkdir(exist_ok=True)
    starts = np.array([first for first, _ in spans] + [spans[-1][1]], np.int64)  # (blocks + 1,)
    given = {
        "corpus": [str(material.corpus.folder.absolute()), material.corpus.hash],
        "rules": rules,
        "task": [run.number, run.name],
        "graph": None if material.relations is None else _told_graph(material.relations.graph, folder),
        "vectors": {
            name: [str(each.folder.absolute()), each.manifest.hash] for name, each in sorted(material.vectors.items())
        },
        "tables": {
            name: _keep(folder / f"table-{number}.npz", table, _TABLE)
            for number, (name, table) in enumerate(sorted(material.tables.items()))
        },
        "blocks": {
            "units": _keep_numbers(folder / "units.npy", units),
            "starts": _keep_numbers(folder / "starts.npy", starts),
            "pairs": None if pairs is None else _keep(folder / "pairs.npz", pairs, _PAIRS),
            **{
                name: _keep_numbers(folder / f"{name}.npy", rows)
                for name in _ROWS
                if (rows := getattr(material, name)) is not None
            },
        },
        "options": {name: getattr(material, name) for name in ("seed", "workers", "memory", "device")},
    }
    unit = "anchors" if pairs is None else "pairs"
    return ShardTask("citeweave.mining.mine:block_maker", given, run.label, unit, gpu=material.device != "cpu")


def block_maker(
    corpus: list[str],
    rules: Mapping[str, Any],
    task: list[Any],
    graph: Mapping[str, str] | None,
    vectors: Mapping[str, list[str]],
    tables: Mapping[str, str],
    blocks: Mapping[str, str | None],
    options: Mapping[str, Any],
) -> Make:
    """A worker's side: number of a block -> the part that a run without a crew would write."""
    opened, read = _corpus(*corpus), rules_of(rules)
    rows = {name: open_numbers(Path(str(blocks[name])), np.int64) for name in _ROWS if name in blocks}
    material = MiningData(
        opened,
        read.text,
        None if graph is None else Relations(_graph(**graph), opened),
        {name: _vectors(*told) for name, told in vectors.items()},
        {name: _table(path) for name, path in tables.items()},
        **{**options, "workers": options["workers"] or _threads(), **rows},
    )
    run = TaskRun(read, material, task[0], task[1], None)
    units, starts = (open_numbers(Path(str(blocks[name])), np.int64) for name in ("units", "starts"))
    pairs = _pairs(blocks["pairs"])
    return lambda number: mine_block(run, np.array(units[starts[number] : starts[number + 1]]), pairs)


def rules_of(value: Mapping[str, Any]) -> MiningRules:
    """Rules that were told as JSON.

    >>> told = {"positives": [{"name": "hard", "source": "neighbors", "count": 2, "band": [10, 20]}]}
    >>> rules_of(told).positives[0].band
    (10, 20)
    """
    fields = {name: _tuples(entry) for name, entry in value.items()}
    for side in ("positives", "negatives"):
        fields[side] = tuple(
            Rule(**{name: _tuples(entry) for name, entry in rule.items()}) for rule in value.get(side, ())
        )
    if "contexts" in value:
        fields["contexts"] = ContextFilter(**value["contexts"])
    fields["tasks"] = tuple((name, weight, rules_of(inner)) for name, weight, inner in value.get("tasks", ()))
    return MiningRules(**fields)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list | tuple) else value


def _told_graph(graph: CitationGraph, folder: Path) -> dict[str, str]:
    """Where the graph lies, and the intents that were put on it."""
    if graph.folder is None:
        raise UserError(
            "the graph was made in memory, where the workers of --on cannot read it; write it to a folder with "
            "`citeweave graph` and open that"
        )
    own = open_numbers(graph.folder / _INTENTS, np.uint8)
    same = np.array_equal(graph.intents, own)
    intents = "" if same else _keep_numbers(folder / "intents.npy", np.asarray(graph.intents))
    return {"folder": str(graph.folder.absolute()), "expected": _work_hash(graph.folder), "intents": intents}


def _keep(path: Path, held: Any, names: tuple[str, ...]) -> str:
    """Arrays of something that is only in memory, as a file."""
    file = io.BytesIO()
    np.savez(file, **{name: getattr(held, name) for name in names})
    write_whole(path, file.getvalue())
    return str(path.absolute())


def _keep_numbers(path: Path, values: NDArray[Any]) -> str:
    """The same of one column, which workers map."""
    temporary = path.with_name(path.name + ".new")
    write_numbers(temporary, values)
    move(temporary, path)
    return str(path.absolute())


def _arrays(path: str) -> dict[str, NDArray[Any]]:
    try:
        return read_arrays(Path(path))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read here ({error}); the output of --on must be seen by every node"
        ) from None


def _table(path: str) -> Table:
    columns = _arrays(path)
    return Table(columns["offsets"], columns["targets"], columns["counts"])


def _pairs(path: str | None) -> CocitedPairs | None:
    if path is None:
        return None
    columns = _arrays(path)
    # how many sentences were kept is told by the driver, which counted them
    return CocitedPairs(
        columns["anchors"], columns["positives"], columns["offsets"], columns["contexts"], rejected={}, kept=0
    )


def _corpus(folder: str, expected: str) -> Corpus:
    opened = Corpus.open(folder)
    _same(folder, opened.hash, expected)
    return opened


def _graph(folder: str, expected: str, intents: str) -> CitationGraph:
    opened = CitationGraph.open(folder)
    _same(folder, _work_hash(Path(folder)), expected)
    return opened.with_intents(open_numbers(Path(intents), np.uint8)) if intents else opened


def _work_hash(graph: Path) -> str:
    return read_manifest(graph, citations.KIND, citations.VERSION).hash


def _vectors(folder: str, expected: str) -> Vectors:
    opened = Vectors.open(folder)
    _same(folder, opened.manifest.hash, expected)
    return opened


def _same(folder: str, found: str, expected: str) -> None:
    if found != expected:
        raise UserError(
            f"{folder} is another one here ({found[:12]}) than where mining began ({expected[:12]}); copy it"
        )


def _threads() -> int:
    """What the engine leaves a worker, 0 = all cores."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    return int(named) if named.isdecimal() else 0
