"""What is related to many papers, counted block by block into a folder: co-citation counts of 137,000 queries.

    cocited/
      row.npy            the papers asked about, ascending, each once
      offsets.npy        where the related papers of each begin
      target.npy         the related papers, ascending within a row
      strength.npy       how strongly: of co-citations the number of papers that cite both
      manifest.json

    >>> from tempfile import mkdtemp
    >>> from citeweave.graph.citations import graph_from_edges
    >>> graph = graph_from_edges(np.array([0, 0, 1, 1]), np.array([2, 3, 2, 3]), nodes=4)
    >>> found = write_related(graph, Signal("cocited"), np.array([3, 2]), Path(mkdtemp()) / "cocited")
    >>> found.rows.tolist(), found.related.row(0)[0].tolist(), found.pairs
    ([2, 3], [3], 2)

Results in flight take at most `memory`; a counter of 8 bytes a node for each worker lies beside it. A block that is done
is kept, so that a killed run goes on with the next one. Does not hold more than a block: `signals.py` does where all fits.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, check_files, matches, new_artifact, read_manifest
from citeweave.core.columns import NumberWriter, open_numbers, read_kept
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import write_whole
from citeweave.core.progress import QUIET, Reporter
from citeweave.graph.citations import CitationGraph
from citeweave.graph.edge_sort import row_ranges
from citeweave.graph.signals import Related, Relations, Signal, join_related, largest_sizes, stream_related

KIND, VERSION = "related papers", 1
BLOCK_ROWS = 8192
"""Rows whose related papers are one file while the folder is made, at most."""

_BYTES_A_PAIR = 8
_COLUMNS = {"target": np.int32, "strength": np.float32}


@dataclass(frozen=True, slots=True)
class RelatedFile:
    """The columns of a folder, memory-mapped."""

    rows: NDArray[np.int64]
    related: Related
    """One line for each of `rows`."""

    @classmethod
    def open(cls, folder: str | Path) -> RelatedFile:
        folder = Path(folder)
        check_files(folder, read_manifest(folder, KIND, VERSION))
        rows, offsets = (open_numbers(folder / f"{name}.npy", np.int64) for name in ("row", "offsets"))
        targets, strengths = (open_numbers(folder / f"{name}.npy", dtype) for name, dtype in _COLUMNS.items())
        if len(offsets) != len(rows) + 1 or offsets[-1] != len(targets) or len(targets) != len(strengths):
            raise ArtifactError(f"{folder} is damaged: its columns do not fit together; make it again")
        return cls(rows, Related(offsets, targets, strengths))

    @property
    def pairs(self) -> int:
        """How many pairs of papers there are."""
        return len(self.related.targets)


def write_related(
    graph: CitationGraph | Relations,
    signal: Signal,
    rows: NDArray[np.integer[Any]],
    folder: str | Path,
    *,
    memory: int = 256 << 20,
    workers: int = 0,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> RelatedFile:
    """Count what is related to these rows; the same call again opens the folder, or goes on where it was stopped."""
    relations = graph if isinstance(graph, Relations) else Relations(graph)
    asked = np.unique(np.asarray(rows, np.int64))
    if len(asked) and not 0 <= asked[0] <= asked[-1] < relations.graph.nodes:
        outside = int(asked[0] if asked[0] < 0 else asked[-1])
        raise UserError(f"row {outside} is not in a graph of {relations.graph.nodes:,} nodes; ask for its rows")
    if not len(asked):
        raise UserError(f"{folder}: no paper is asked about; give at least one row")
    recipe = _recipe(relations, signal, asked)
    if matches(Path(folder), KIND, VERSION, recipe):
        return RelatedFile.open(folder)
    with new_artifact(Path(folder), KIND, VERSION, recipe, overwrite=overwrite) as writer:
        parts = []
        with reporter.task(f"counting {signal.name}", len(asked), "papers") as advance:
            for first, last in _spans(relations, signal, asked, memory):
                # named by what it holds: another memory makes other blocks
                path = writer.work("blocks") / f"{first:09d}-{last:09d}.npz"
                if not path.exists():
                    spans = stream_related(relations, signal, asked[first:last], memory=memory // 2, workers=workers)
                    write_whole(path, _as_bytes(join_related([found for _, found in spans])))
                parts.append(path)
                advance(last - first)
        _join(writer, asked, parts)
        writer.finish()
    return RelatedFile.open(folder)


def _spans(relations: Relations, signal: Signal, rows: NDArray[np.int64], memory: int) -> Iterator[tuple[int, int]]:
    """Blocks of rows whose related papers, held three times while they are written, stay within half of the memory."""
    most = max(1, memory // (2 * 3 * _BYTES_A_PAIR))
    graph = relations.restricted(signal.intent)
    sizes = np.minimum(largest_sizes(graph, signal, rows), graph.nodes) + -(-most // BLOCK_ROWS)
    return row_ranges(sizes, most)


def _recipe(relations: Relations, signal: Signal, rows: NDArray[np.int64]) -> dict[str, Any]:
    """What the counts depend on; a graph of no corpus is told by its edges."""
    graph, corpus = relations.graph, relations.corpus
    recipe = {
        "graph": [
            graph.nodes,
            graph.edges,
            graph.corpus or _hash_of(graph.cited.offsets, graph.cited.targets),
            None if signal.intent is None else _hash_of(graph.intents),
        ],
        "signal": asdict(signal),
        "rows": _hash_of(rows),
    }
    if signal.name == "cocited_nearby" and corpus is not None and corpus.hash != graph.corpus:
        recipe["contexts"] = corpus.hash
    return recipe


def _hash_of(*columns: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for column in columns:
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def _as_bytes(found: Related) -> bytes:
    file = io.BytesIO()
    np.savez(file, offsets=found.offsets, target=found.targets, strength=found.strengths)
    return file.getvalue()


def _join(writer: ArtifactWriter, rows: NDArray[np.int64], parts: Sequence[Path]) -> None:
    """The blocks one after the other as columns."""
    types = {"row": np.int64, "offsets": np.int64, **_COLUMNS}
    out = {name: NumberWriter(writer.folder / f"{name}.npy", dtype) for name, dtype in types.items()}
    out["row"].append(rows)
    out["offsets"].append([0])
    for path in parts:
        part = read_kept(path, ["offsets", *_COLUMNS])
        out["offsets"].append(part["offsets"][1:] + out["target"].count)
        for name in _COLUMNS:
            out[name].append(part[name])
    pairs = out["target"].count
    for column in out.values():
        column.close()
    writer.facts |= {"papers": len(rows), "pairs": pairs}
