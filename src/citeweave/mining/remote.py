"""Blocks of anchors that a crew mines: what its workers are told, and what they do with it.

    for number, part in crew.make(block_work(run, units, pairs, spans), missing): ...

The driver says which anchors there are and where blocks begin. What only its memory holds (intents that were put on the
graph, tables, anchors, pairs of contexts) it writes beside the blocks; all else workers open where the driver did. So
every machine must see the corpus, the graph, the vectors and the output under the same names. A graph that was made in
memory is refused. Does not decide what is missing: `mine.py` does.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.arrays import read_arrays
from citeweave.artefacts.manifest import read_manifest
from citeweave.columns import open_numbers, write_numbers
from citeweave.corpus.corpus import Corpus
from citeweave.crew import Make, Work
from citeweave.errors import UserError
from citeweave.files import hash_json, move, write_whole
from citeweave.graph import citations
from citeweave.graph.citations import CitationGraph
from citeweave.graph.signals import Relations
from citeweave.mining.contexts import CocitedPairs
from citeweave.mining.material import Material
from citeweave.mining.rule import Rule
from citeweave.mining.rules import ContextFilter, MiningRules
from citeweave.mining.tables import Table
from citeweave.mining.task_run import TaskRun, mine_block
from citeweave.similarity.vectors import Vectors

_INTENTS = "edges/intents.npy"
_PAIRS = ("anchors", "positives", "offsets", "contexts")
_ROWS = ("given", "anchors")
"""Rows that material may be restricted to."""

_TABLE = ("offsets", "targets", "counts")


def block_work(
    run: TaskRun, units: NDArray[np.int64], pairs: CocitedPairs | None, spans: list[tuple[int, int]]
) -> Work:
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
    return Work("citeweave.mining.remote:block_maker", given, run.label, unit, gpu=material.device != "cpu")


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
    material = Material(
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

    >>> told = {"positives": [{"name": "hard", "source": "neighbours", "count": 2, "band": [10, 20]}]}
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
    return {"folder": str(graph.folder.absolute()), "expected": _hash_of(graph.folder), "intents": intents}


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
    _same(folder, _hash_of(Path(folder)), expected)
    return opened.with_intents(open_numbers(Path(intents), np.uint8)) if intents else opened


def _hash_of(graph: Path) -> str:
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
