"""Mine samples: apply the rules to all anchors, block after block, here or on the workers of an executor.

    samples = mine_samples(corpus, parse_rules(table), "samples/", graph=graph, vectors={"graph": vectors})

Finished blocks are saved in the work folder, so an interrupted run resumes where it stopped. Blocks are small enough
that each takes less than half a minute (`blocks.py`). A sample depends on its anchor and the seed alone, so the same
seed gives the same samples under any number of workers, any memory and any clock.

With an executor its workers mine the blocks. The driver decides which anchors there are and where blocks begin. What
only its memory holds (intents added to the graph, tables, anchors, pairs of contexts) it writes beside the blocks; all
else workers open by the driver's paths. So every machine must see the corpus, the graph, the vectors and the output
under the same names, and a graph that exists only in memory is refused.
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

from citeweave.core.artifact import ArtifactWriter, artifact_matches, read_manifest
from citeweave.core.columns import open_numbers, read_arrays, write_numbers
from citeweave.core.errors import UserError
from citeweave.core.executor import Executor, Make, ShardTask
from citeweave.core.files import hash_json, move, write_atomically
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.graph import citations
from citeweave.graph.citations import CitationGraph
from citeweave.graph.edge_sort import row_ranges
from citeweave.graph.signals import TWO_HOPS, Relations, Signal, largest_sizes
from citeweave.mining.apply_rules import TaskRun, mine_block, rule_names
from citeweave.mining.blocks import (
    BlockFiles,
    BlockPace,
    MiningCounts,
    key_limit,
    mixture_counts,
    read_part,
    renumber,
    sample_keys,
)
from citeweave.mining.mining_data import MiningData
from citeweave.mining.options import MiningOptions
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
from citeweave.vectors.vectors import Vectors

BLOCK_ANCHORS = 16_384
"""Maximum number of anchors in a block."""


@dataclass(frozen=True, slots=True)
class MiningInputs:
    """What `mine_samples` mines with besides the corpus: graph, vectors, tables, anchors, pool."""

    graph: CitationGraph | None = None
    vectors: Mapping[str, Vectors] = field(default_factory=dict)
    """By the name that rules use; "graph" are the node vectors."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    anchors: NDArray[np.int64] | None = None
    """Rows that may be anchors, in the pool or not; None = all of the pool."""

    pool: NDArray[np.int64] | None = None
    """Rows that may be selected, if they have the text that the rules require; None = all rows."""

    before: Corpus | None = None
    """The corpus before papers were removed, such as those of a benchmark: their sentences are not used as contexts."""


def mine_samples(
    corpus: Corpus,
    rules: MiningRules,
    folder: str | Path,
    inputs: MiningInputs | None = None,
    options: MiningOptions | None = None,
    *,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
    executor: Executor | None = None,
) -> Samples:
    """Mine samples: select positives and negatives of every anchor and write them to a folder, or open existing ones."""
    inputs, options = inputs or MiningInputs(), options or MiningOptions()
    if inputs.graph is not None and inputs.graph.corpus not in ("", corpus.hash):
        raise UserError(f"the graph is of another corpus than {corpus.folder}; build it again with `citeweave graph`")
    if not len(corpus.contexts):
        rules = rules.without_sentences()
    recipe = _recipe(corpus, rules, inputs, options)
    if artifact_matches(Path(folder), KIND, VERSION, recipe):
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
            writer.write_pool(inputs.pool)
        runs = [
            TaskRun(
                inner, collect_mining_data(corpus, inner, inputs, options), number, name, inputs.anchors, inputs.before
            )
            for number, (name, _, inner) in enumerate(tasks)
        ]
        for run in runs:
            _mine_parts(run, writer.artifact, options.save_every, reporter, executor)
        _write_samples(runs, [weight for _, weight, _ in tasks], writer)
        return writer.finish()


def collect_mining_data(corpus: Corpus, rules: MiningRules, inputs: MiningInputs, options: MiningOptions) -> MiningData:
    """Collect what to mine one task's samples with; refuse a pool without any usable paper."""
    data = MiningData(
        corpus,
        rules.text,
        Relations(inputs.graph, corpus) if inputs.graph is not None else None,
        inputs.vectors,
        inputs.tables,
        options.seed,
        options.workers,
        options.memory,
        options.device,
        pool_rows=inputs.pool,
        anchors=inputs.anchors,
    )
    data.check_pool()
    return data


def _write_samples(runs: list[TaskRun], weights: list[float], writer: SamplesWriter) -> None:
    """Write the samples of all tasks, mixed by their weights, from the saved blocks."""
    shares = mixture_counts([run.samples for run in runs], weights)
    base = 0
    for run, share in zip(runs, shares, strict=True):
        limit = key_limit(run.parts, run.data.seed, share)
        for part in run.parts:
            block = read_part(part)[0]
            if limit is not None:
                block = take_samples(block, sample_keys(block, run.data.seed) <= limit)
            places = [writer.names.aspects.index(aspect) for aspect in run.rules.aspects or ("",)]
            writer.append(renumber(block, base, places))
        base += len(rule_names(run.rules))
    writer.facts |= _summarize_counts(runs, shares)


def _mine_parts(
    run: TaskRun, artifact: ArtifactWriter, save_every: float, reporter: Reporter, executor: Executor | None
) -> None:
    """Mine the blocks of one task, here or on an executor; blocks saved by an earlier run are reused."""
    check_relations(run.data.corpus, run.rules)
    for aspect in run.rules.aspects or ("",):
        own = run.rules.for_aspect(aspect)
        positives, negatives = (
            [rule for rule in side if aspect not in rule.not_for] for side in (own.positives, own.negatives)
        )
        check_bands(positives, negatives, run.data)
    units, pairs = run.units()
    files = BlockFiles(artifact.scratch_folder(f"blocks-{run.number}"), units)
    spans = list(_spans(run, units if pairs is None else pairs.anchors[units].astype(np.int64)))
    with reporter.task(run.label, len(units), "anchors" if pairs is None else "pairs") as advance:
        if executor is not None:
            spans = files.split(spans)
            run.parts = [files.path(*span) for span in spans]
            missing = [number for number, path in enumerate(run.parts) if not path.exists()]
            advance(len(units) - sum(spans[number][1] - spans[number][0] for number in missing))
            for number, part in executor.make(_block_task(run, units, pairs, spans), missing) if missing else ():
                write_atomically(run.parts[number], part)
                advance(spans[number][1] - spans[number][0])
        else:
            mined = files.fill(spans, lambda rows: mine_block(run, rows, pairs), BlockPace(save_every), advance)
            run.parts = list(mined)
    for path in run.parts:
        block, counts = read_part(path)
        run.counts.add(counts)
        run.samples += len(block)


def _spans(run: TaskRun, anchors: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield spans of anchors whose related papers over two hops fit into the memory."""
    sizes = np.full(len(anchors), max(1, run.data.memory // BLOCK_ANCHORS), np.int64)
    names = {rule.source for rule in run.rules.rules} | {name for rule in run.rules.rules for name in rule.exclude}
    longest = max((rule.max_references for rule in run.rules.rules), default=1)
    for name in sorted(names & set(TWO_HOPS)):
        graph = run.data.graph(f"source {name}").graph
        sizes += 24 * np.minimum(largest_sizes(graph, Signal(name, longest=longest), anchors), graph.nodes)
    return row_ranges(sizes, run.data.memory)


def _summarize_counts(runs: list[TaskRun], shares: list[int]) -> dict[str, Any]:
    """Summarize the counts of all tasks for the manifest: papers requested and selected, anchors skipped and why."""
    total = MiningCounts()
    for run in runs:
        named = MiningCounts(run.counts.used, run.counts.skipped)
        prefix = f"{run.name}." if run.name else ""
        named.asked = {prefix + name: number for name, number in run.counts.asked.items()}
        named.got = {prefix + name: number for name, number in run.counts.got.items()}
        named.aspects = {prefix + name: dict(reasons) for name, reasons in run.counts.aspects.items()}
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
    """Return what the samples depend on, as plain JSON."""
    anchors, pool = (
        None if rows is None else hash_json(np.sort(rows).tolist()) for rows in (inputs.anchors, inputs.pool)
    )
    return {
        "corpus": corpus.hash,
        "rules": dataclasses.asdict(rules),
        "graph": None if inputs.graph is None else _hash_columns(*_identifying_columns(inputs.graph)),
        "vectors": {name: vectors.manifest.hash for name, vectors in sorted(inputs.vectors.items())},
        "tables": {
            name: _hash_columns(table.offsets, table.targets, table.counts)
            for name, table in sorted(inputs.tables.items())
        },
        "anchors": anchors,
        "seed": options.seed,
        **({} if pool is None else {"pool": pool}),
        **({} if inputs.before is None else {"before": inputs.before.hash}),
    }


def _identifying_columns(graph: CitationGraph) -> list[NDArray[Any]]:
    """Return the columns that identify a graph; a graph without a corpus also needs its offsets."""
    return [graph.cited.targets, graph.intents, *([] if graph.corpus else [graph.cited.offsets])]


def _hash_columns(*columns: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for column in columns:
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


# Blocks mined by the workers of an executor.

_INTENTS = "edges/intents.npy"
_PAIRS = ("anchors", "positives", "offsets", "contexts")
_ROWS = ("pool_rows", "anchors")
"""Row columns of `MiningData` that are passed to workers as files."""

_TABLE = ("offsets", "targets", "counts")


def _block_task(
    run: TaskRun, units: NDArray[np.int64], pairs: CocitedPairs | None, spans: list[tuple[int, int]]
) -> ShardTask:
    """Describe the blocks of one mining task as work for an executor."""
    data, rules = run.data, json.loads(json.dumps(asdict(run.rules)))
    assert hash_json(asdict(rules_from_json(rules))) == hash_json(rules), "rules survive a round trip through JSON"
    folder = run.parts[0].parent / "worker-inputs"
    folder.mkdir(exist_ok=True)
    starts = np.array([first for first, _ in spans] + [spans[-1][1]], np.int64)  # (blocks + 1,)
    arguments = {
        "corpus": [str(data.corpus.folder.absolute()), data.corpus.hash],
        "rules": rules,
        "task": [run.number, run.name],
        "graph": None if data.relations is None else _describe_graph(data.relations.graph, folder),
        "vectors": {
            name: [str(each.folder.absolute()), each.manifest.hash] for name, each in sorted(data.vectors.items())
        },
        "tables": {
            name: _save_arrays(folder / f"table-{number}.npz", table, _TABLE)
            for number, (name, table) in enumerate(sorted(data.tables.items()))
        },
        "blocks": {
            "units": _save_column(folder / "units.npy", units),
            "starts": _save_column(folder / "starts.npy", starts),
            "pairs": None if pairs is None else _save_arrays(folder / "pairs.npz", pairs, _PAIRS),
            **{
                name: _save_column(folder / f"{name}.npy", rows)
                for name in _ROWS
                if (rows := getattr(data, name)) is not None
            },
        },
        "options": {name: getattr(data, name) for name in ("seed", "workers", "memory", "device")},
    }
    unit = "anchors" if pairs is None else "pairs"
    return ShardTask("citeweave.mining.mine:block_maker", arguments, run.label, unit, gpu=data.device != "cpu")


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
    """Open on a worker what to mine a task with; return a function from the number of a block to its bytes."""
    opened, parsed = _open_corpus(*corpus), rules_from_json(rules)
    rows = {name: open_numbers(Path(str(blocks[name])), np.int64) for name in _ROWS if name in blocks}
    data = MiningData(
        opened,
        parsed.text,
        None if graph is None else Relations(_open_graph(**graph), opened),
        {name: _open_vectors(*place) for name, place in vectors.items()},
        {name: _read_table(path) for name, path in tables.items()},
        **{**options, "workers": options["workers"] or _worker_threads(), **rows},
    )
    run = TaskRun(parsed, data, task[0], task[1], None)
    units, starts = (open_numbers(Path(str(blocks[name])), np.int64) for name in ("units", "starts"))
    pairs = _read_pairs(blocks["pairs"])
    return lambda number: mine_block(run, np.array(units[starts[number] : starts[number + 1]]), pairs)


def rules_from_json(value: Mapping[str, Any]) -> MiningRules:
    """Rebuild the rules that a worker mines by from the JSON that its driver sends.

    >>> payload = {"positives": [{"name": "hard", "source": "neighbors", "count": 2, "band": [10, 20]}]}
    >>> rules_from_json(payload).positives[0].band
    (10, 20)
    """
    fields = {name: _tuples(entry) for name, entry in value.items()}
    for side in ("positives", "negatives"):
        fields[side] = tuple(
            Rule(**{name: _tuples(entry) for name, entry in rule.items()}) for rule in value.get(side, ())
        )
    if "contexts" in value:
        fields["contexts"] = ContextFilter(**value["contexts"])
    fields["tasks"] = tuple((name, weight, rules_from_json(inner)) for name, weight, inner in value.get("tasks", ()))
    return MiningRules(**fields)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list | tuple) else value


def _describe_graph(graph: CitationGraph, folder: Path) -> dict[str, str]:
    """Describe a graph to workers: its folder, its hash, and a file of intents that were added to it."""
    if graph.folder is None:
        raise UserError(
            "the graph exists only in memory, where the workers of --on cannot read it; write it to a folder with "
            "`citeweave graph` and open that"
        )
    own = open_numbers(graph.folder / _INTENTS, np.uint8)
    same = np.array_equal(graph.intents, own)
    intents = "" if same else _save_column(folder / "intents.npy", np.asarray(graph.intents))
    return {"folder": str(graph.folder.absolute()), "expected": _graph_hash(graph.folder), "intents": intents}


def _save_arrays(path: Path, owner: Any, names: tuple[str, ...]) -> str:
    """Save some arrays of an object to a file that workers read; return its path."""
    file = io.BytesIO()
    np.savez(file, **{name: getattr(owner, name) for name in names})
    write_atomically(path, file.getvalue())
    return str(path.absolute())


def _save_column(path: Path, values: NDArray[Any]) -> str:
    """Save one column to a file that workers memory-map; return its path."""
    temporary = path.with_name(path.name + ".new")
    write_numbers(temporary, values)
    move(temporary, path)
    return str(path.absolute())


def _read_worker_arrays(path: str) -> dict[str, NDArray[Any]]:
    try:
        return read_arrays(Path(path))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read here ({error}); the output of --on must be seen by every node"
        ) from None


def _read_table(path: str) -> Table:
    columns = _read_worker_arrays(path)
    return Table(columns["offsets"], columns["targets"], columns["counts"])


def _read_pairs(path: str | None) -> CocitedPairs | None:
    if path is None:
        return None
    columns = _read_worker_arrays(path)
    # the driver has counted the sentences
    return CocitedPairs(
        columns["anchors"], columns["positives"], columns["offsets"], columns["contexts"], rejected={}, kept=0
    )


def _open_corpus(folder: str, expected: str) -> Corpus:
    opened = Corpus.open(folder)
    _check_hash(folder, opened.hash, expected)
    return opened


def _open_graph(folder: str, expected: str, intents: str) -> CitationGraph:
    opened = CitationGraph.open(folder)
    _check_hash(folder, _graph_hash(Path(folder)), expected)
    return opened.with_intents(open_numbers(Path(intents), np.uint8)) if intents else opened


def _graph_hash(graph: Path) -> str:
    return read_manifest(graph, citations.KIND, citations.VERSION).hash


def _open_vectors(folder: str, expected: str) -> Vectors:
    opened = Vectors.open(folder)
    _check_hash(folder, opened.manifest.hash, expected)
    return opened


def _check_hash(folder: str, actual: str, expected: str) -> None:
    """Refuse an input that differs on this worker from the driver's."""
    if actual != expected:
        raise UserError(
            f"{folder} differs on this machine ({actual[:12]}) from where mining began ({expected[:12]}); copy it from there"
        )


def _worker_threads() -> int:
    """Return the threads that the executor allows this worker, 0 = all cores."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    return int(named) if named.isdecimal() else 0
