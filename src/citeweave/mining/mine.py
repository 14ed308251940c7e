"""Mine samples: apply the rules to all anchors, block after block, here or on the workers of an executor.

    samples = mine_samples(corpus, parse_rules(table), "samples/", graph=graph, vectors={"graph": vectors})

    000000000000-000000000064-<hash of these units>.npz      a block, named by its units: another memory makes other blocks

A block is a file in the work folder as soon as it is mined, so an interrupted run resumes where it stopped. Its size is
set by the clock, within the spans that fit the memory, so that an interruption costs less than half a minute. A sample
depends on its anchor and the seed alone, so the same seed gives the same samples under any number of workers, any memory
and any clock.

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
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, artifact_matches, read_manifest
from citeweave.core.columns import open_numbers, read_arrays, write_numbers
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.executor import Executor, Make, ShardTask
from citeweave.core.files import hash_json, move, write_atomically
from citeweave.core.hash_keys import mix_keys
from citeweave.core.progress import QUIET, Advance, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.readers import SOURCES_OF
from citeweave.graph import citations
from citeweave.graph.citations import CitationGraph, hash_columns
from citeweave.graph.edge_sort import row_ranges
from citeweave.graph.signals import TWO_HOPS, Relations, Signal, largest_sizes
from citeweave.mining.apply_rules import TaskRun, mine_block, rule_names
from citeweave.mining.draw import derive_salt
from citeweave.mining.inputs import MiningData, MiningInputs, check_relations, collect_mining_data
from citeweave.mining.options import MiningOptions
from citeweave.mining.rules import MiningRules, rules_from_json
from citeweave.mining.samples import (
    KIND,
    VERSION,
    MiningCounts,
    SampleBlock,
    SampleNames,
    Samples,
    SamplesWriter,
    new_samples,
    read_part,
    take_samples,
)
from citeweave.mining.sources import CocitedPairs
from citeweave.mining.tables import Table
from citeweave.mining.vector_sources import check_bands
from citeweave.vectors.vectors import Vectors

BLOCK_ANCHORS = 16_384
"""Maximum number of anchors in a block."""


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
    """Mine training samples: select positives and negatives for every anchor paper, and write them to a folder.

        rules = parse_rules(load_recipe("specter").table("mining"))
        samples = mine_samples("corpus/", rules, "samples/", MiningInputs(graph=graph))

    `inputs` has what the rules need besides the corpus. Samples that exist already for the same inputs are opened.
    """
    inputs, options = inputs or MiningInputs(), options or MiningOptions()
    if inputs.graph is not None and inputs.graph.corpus not in ("", corpus.hash):
        raise UserError(f"the graph is of another corpus than {corpus.folder}; build it again with `citeweave graph`")
    if not len(corpus.contexts):
        rules = rules.without_sentences()
        if rules.from_contexts:
            raise EmptyResultError(
                f"the rules draw pairs of papers cited in one sentence (mining.anchors_per = 'contexts'), and {corpus.folder} "
                f"has no citing sentences; import a source that has them: {SOURCES_OF['context']}"
            )
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
        runs = []
        for number, (name, _, inner) in enumerate(tasks):
            data = collect_mining_data(corpus, inner, inputs, options)
            runs.append(TaskRun(inner, data, number, name, inputs.anchors, inputs.before))
        for run in runs:
            _mine_parts(run, writer.artifact, options.save_every, reporter, executor)
        _write_samples(runs, [weight for _, weight, _ in tasks], writer)
        return writer.finish()


def _write_samples(runs: list[TaskRun], weights: list[float], writer: SamplesWriter) -> None:
    """Write the samples of all tasks, mixed by their weights, from the saved blocks."""
    shares = mixture_counts([run.samples for run in runs], weights)
    base = 0
    for run, share in zip(runs, shares, strict=True):
        limit = _key_limit(run, share)
        places = np.array([writer.names.aspects.index(aspect) for aspect in run.rules.aspects or ("",)], np.uint8)
        for part in run.parts:
            block = read_part(part)[0]
            if limit is not None:
                block = take_samples(block, _sample_keys(block, run.data.seed) <= limit)
            positives, negatives = (
                dataclasses.replace(picks, rules=(picks.rules + base).astype(np.uint8))
                for picks in (block.positives, block.negatives)
            )
            aspects = places[block.aspects]
            writer.append(dataclasses.replace(block, positives=positives, negatives=negatives, aspects=aspects))
        base += len(rule_names(run.rules))
    writer.facts |= _summarize_counts(runs, shares)


def _mine_parts(
    run: TaskRun, artifact: ArtifactWriter, save_every: float, reporter: Reporter, executor: Executor | None
) -> None:
    """Mine the blocks of one task, here or on an executor; blocks saved by an earlier run are reused."""
    check_relations(run.data.corpus, run.rules)
    check_bands(run.rules, run.data)
    units, pairs = run.units()
    files = BlockFiles(artifact.scratch_folder(f"blocks-{run.number}"), units)
    spans = list(_spans(run, units if pairs is None else pairs.anchors[units].astype(np.int64)))
    with reporter.task(run.label, len(units), "anchors" if pairs is None else "pairs") as advance:
        if executor is not None:
            spans = files.split(spans)
            run.parts = [files.path(*span) for span in spans]
            missing = [number for number, path in enumerate(run.parts) if not path.exists()]
            sizes = [last - first for first, last in spans]
            advance(len(units) - sum(sizes[number] for number in missing))
            for number, part in executor.make(_block_task(run, units, pairs, spans), missing) if missing else ():
                write_atomically(run.parts[number], part)
                advance(sizes[number])
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
    longest = max((rule.max_references for rule in run.rules.rules), default=1)
    for name in sorted(run.rules.sources & set(TWO_HOPS)):
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
        "graph": None if inputs.graph is None else _hash_graph(inputs.graph),
        "vectors": {name: vectors.manifest.hash for name, vectors in sorted(inputs.vectors.items())},
        "tables": {
            name: hash_columns(table.offsets, table.targets, table.counts)
            for name, table in sorted(inputs.tables.items())
        },
        "anchors": anchors,
        "seed": options.seed,
        **({} if pool is None else {"pool": pool}),
        **({} if inputs.before is None else {"before": inputs.before.hash}),
    }


def _hash_graph(graph: CitationGraph) -> str:
    """Hash the columns that identify a graph; a graph without a corpus also needs its offsets."""
    return hash_columns(graph.cited.targets, graph.intents, *([] if graph.corpus else [graph.cited.offsets]))


# Mixtures of several tasks.


def mixture_counts(available: list[int], weights: list[float]) -> list[int]:
    """Return how many samples of each task's blocks make the requested mixture, as many as the scarcest allows.

    >>> mixture_counts([100, 40], [0.5, 0.5]), mixture_counts([100, 40], [0.8, 0.2]), mixture_counts([7], [1.0])
    ([40, 40], [100, 25], [7])
    """
    if len(available) == 1:
        return list(available)
    scale = min(count / weight for count, weight in zip(available, weights, strict=True))
    return [min(count, round(weight * scale)) for count, weight in zip(available, weights, strict=True)]


def _key_limit(run: TaskRun, count: int) -> np.uint64 | None:
    """Return the largest key of the `count` samples of a task that stay in a mixture, None if all do."""
    if count >= run.samples:
        return None
    keys = np.concatenate([_sample_keys(read_part(part)[0], run.data.seed) for part in run.parts])
    return np.uint64(np.sort(keys)[count - 1] if count else 0)


def _sample_keys(block: SampleBlock, seed: int) -> NDArray[np.uint64]:
    """Return a random key per sample of a block, by which the samples of a mixture are drawn."""
    salt = np.full(len(block), derive_salt(seed, "mining", "mixture"), np.uint64)
    first = block.positives.rows[np.minimum(block.positives.offsets[:-1], max(len(block.positives.rows) - 1, 0))]
    return mix_keys(
        mix_keys(salt, block.anchors.astype(np.uint64)),
        mix_keys(block.aspects.astype(np.uint64), first.astype(np.uint64)),
    )


# The files of all blocks.

FIRST_SIZE, MIN_SIZE = 64, 16
"""Units of the first block, and of the smallest: below that a block is mostly overhead."""


class BlockPace:
    """Chooses the size of the next block to mine so that it takes about a third of the time after which work is saved.

    >>> seconds = iter([0.0, 5.0, 5.0, 25.0])
    >>> pace = BlockPace(30.0, lambda: next(seconds))
    >>> sizes = [pace.size]
    >>> for _ in range(2):
    ...     pace.begin()
    ...     pace.end()
    ...     sizes.append(pace.size)
    >>> sizes
    [64, 128, 64]
    """

    def __init__(self, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.size, self._every, self._clock, self._begun = FIRST_SIZE, every, clock, 0.0

    def begin(self) -> None:
        self._begun = self._clock()

    def end(self) -> None:
        """Make the next block to mine larger or smaller, by the time this one took."""
        seconds = self._clock() - self._begun
        if seconds < self._every / 4:
            self.size *= 2
        elif seconds > self._every / 2:
            self.size = max(MIN_SIZE, self.size // 2)


class BlockFiles:
    """The block files of a mining run over some units (anchors or pairs), (units,)."""

    def __init__(self, folder: Path, units: NDArray[np.int64]) -> None:
        self._folder, self._units = folder, units

    def path(self, first: int, last: int) -> Path:
        """Return the block file of the units from `first` up to `last`."""
        name = hashlib.sha256(self._units[first:last].tobytes()).hexdigest()[:32]
        return self._folder / f"{first:012d}-{last:012d}-{name}.npz"

    def split(self, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Split spans of units so that each is a block of samples that an earlier run saved, or is missing completely."""
        names = sorted(path.name.split("-") for path in self._folder.glob("*-*-*.npz"))
        numbers = [(int(first), int(last)) for first, last, _ in names if first.isdecimal() and last.isdecimal()]
        # of several with the same start, the longest
        saved = {first: last for first, last in numbers if self.path(first, last).exists()}
        starts, parts = sorted(saved), list[tuple[int, int]]()
        for start, end in spans:
            while start < end:
                following = bisect_right(starts, start)
                last = saved.get(start, 0)
                if not start < last <= end:
                    last = min([end, *starts[following : following + 1]])
                parts.append((start, last))
                start = last
        return parts

    def fill(
        self,
        spans: list[tuple[int, int]],
        mine: Callable[[NDArray[np.int64]], bytes],
        pace: BlockPace,
        advance: Advance,
    ) -> Iterator[Path]:
        """Yield the block files of all units in order; blocks that no earlier run has saved are mined now."""
        for start, end in self.split(spans):
            while start < end:
                last = end
                if not self.path(start, end).exists():
                    last = min(end, start + pace.size)
                    pace.begin()
                    write_atomically(self.path(start, last), mine(self._units[start:last]))
                    pace.end()
                yield self.path(start, last)
                advance(last - start)
                start = last


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
    opened, parsed = Corpus.open(corpus[0]), rules_from_json(rules)
    _check_hash(corpus[0], opened.hash, corpus[1])
    named = {name: Vectors.open(folder) for name, (folder, _) in vectors.items()}
    for name, (folder, expected) in vectors.items():
        _check_hash(folder, named[name].manifest.hash, expected)
    relations = None if graph is None else Relations(_open_graph(**graph), opened)
    columns = {name: open_numbers(Path(str(path)), np.int64) for name, path in blocks.items() if name != "pairs"}
    units, starts = columns.pop("units"), columns.pop("starts")
    data = MiningData(
        opened,
        parsed.text,
        relations,
        named,
        {name: _read_table(path) for name, path in tables.items()},
        **{**options, "workers": options["workers"] or _worker_threads(), **columns},
    )
    run = TaskRun(parsed, data, task[0], task[1], None)
    pairs = None
    if blocks["pairs"] is not None:  # the driver has counted the sentences
        pairs = CocitedPairs(**_read_worker_arrays(blocks["pairs"]), rejected={}, kept=0)
    return lambda number: mine_block(run, np.array(units[starts[number] : starts[number + 1]]), pairs)


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


def _open_graph(folder: str, expected: str, intents: str) -> CitationGraph:
    opened = CitationGraph.open(folder)
    _check_hash(folder, _graph_hash(Path(folder)), expected)
    return opened.with_intents(open_numbers(Path(intents), np.uint8)) if intents else opened


def _graph_hash(graph: Path) -> str:
    return read_manifest(graph, citations.KIND, citations.VERSION).hash


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
