"""Folders of related papers for many queries, such as co-citation counts, counted block by block.

    cocited/
      row.npy            the query papers, ascending, each once
      offsets.npy        where the related papers of each begin
      target.npy         the related papers, ascending within a row
      strength.npy       how strongly: of co-citations the number of papers that cite both
      manifest.json

    >>> from tempfile import mkdtemp
    >>> from citeweave.graph.citations import graph_from_edges
    >>> graph = graph_from_edges(np.array([0, 0, 1, 1]), np.array([2, 3, 2, 3]), nodes=4)
    >>> cocited = write_related(graph, Signal("cocited"), np.array([3, 2]), Path(mkdtemp()) / "cocited")
    >>> cocited.rows.tolist(), cocited.related.row(0)[0].tolist(), cocited.pairs
    ([2, 3], [3], 2)

Results in flight take at most `memory`, beside 8 bytes per node for each worker. Finished blocks are saved, so that a
killed run resumes with the next one. Holds one block at a time; `signals.related` returns everything in memory.
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

from citeweave.core.artifact import ArtifactWriter, artifact_matches, check_files, new_artifact, read_manifest
from citeweave.core.columns import NumberWriter, open_numbers, read_saved_arrays
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import write_atomically
from citeweave.core.progress import QUIET, Reporter
from citeweave.graph.citations import CitationGraph
from citeweave.graph.edge_sort import row_ranges
from citeweave.graph.signals import Related, Relations, Signal, join_related, largest_sizes, stream_related

KIND, VERSION = "related papers", 1
BLOCK_ROWS = 8192
"""Most queries whose related papers are one file while the folder is made."""

_BYTES_PER_PAIR = 8
_COLUMNS = {"target": np.int32, "strength": np.float32}


@dataclass(frozen=True, slots=True)
class RelatedFile:
    """A folder of related papers: the queries and the papers related to each, memory-mapped."""

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
            raise ArtifactError(f"{folder} is damaged: its columns do not fit together; count them again")
        return cls(rows, Related(offsets, targets, strengths))

    @property
    def pairs(self) -> int:
        """Number of pairs of related papers."""
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
    """Write the papers related to these rows to a folder; the same call again opens the folder, or resumes it."""
    relations = graph if isinstance(graph, Relations) else Relations(graph)
    queries = np.unique(np.asarray(rows, np.int64))
    if len(queries) and not 0 <= queries[0] <= queries[-1] < relations.graph.nodes:
        outside = int(queries[0] if queries[0] < 0 else queries[-1])
        raise UserError(f"row {outside} is not in a graph of {relations.graph.nodes:,} nodes; give rows of this graph")
    if not len(queries):
        raise UserError(f"{folder}: there is no query paper; give at least one row")
    recipe = _recipe(relations, signal, queries)
    if artifact_matches(Path(folder), KIND, VERSION, recipe):
        return RelatedFile.open(folder)
    with new_artifact(Path(folder), KIND, VERSION, recipe, overwrite=overwrite) as writer:
        parts = []
        with reporter.task(f"counting {signal.name}", len(queries), "papers") as advance:
            for first, last in _spans(relations, signal, queries, memory):
                # named by its rows, as another memory makes other blocks
                path = writer.scratch_folder("blocks") / f"{first:09d}-{last:09d}.npz"
                if not path.exists():
                    spans = stream_related(relations, signal, queries[first:last], memory=memory // 2, workers=workers)
                    write_atomically(path, _as_bytes(join_related([block for _, block in spans])))
                parts.append(path)
                advance(last - first)
        _join(writer, queries, parts)
        writer.finish()
    return RelatedFile.open(folder)


def _spans(relations: Relations, signal: Signal, rows: NDArray[np.int64], memory: int) -> Iterator[tuple[int, int]]:
    """Yield blocks of queries whose related papers, held three times while written, fit into half of the memory."""
    max_pairs = max(1, memory // (2 * 3 * _BYTES_PER_PAIR))
    graph = relations.restricted(signal.intent)
    sizes = np.minimum(largest_sizes(graph, signal, rows), graph.nodes) + -(-max_pairs // BLOCK_ROWS)
    return row_ranges(sizes, max_pairs)


def _recipe(relations: Relations, signal: Signal, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return what the related papers depend on; a graph without a corpus is identified by its edges."""
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


def _as_bytes(block: Related) -> bytes:
    file = io.BytesIO()
    np.savez(file, offsets=block.offsets, target=block.targets, strength=block.strengths)
    return file.getvalue()


def _join(writer: ArtifactWriter, rows: NDArray[np.int64], parts: Sequence[Path]) -> None:
    """Concatenate the saved blocks of related papers into the columns of the folder."""
    types = {"row": np.int64, "offsets": np.int64, **_COLUMNS}
    out = {name: NumberWriter(writer.folder / f"{name}.npy", dtype) for name, dtype in types.items()}
    out["row"].append(rows)
    out["offsets"].append([0])
    for path in parts:
        part = read_saved_arrays(path, ["offsets", *_COLUMNS])
        out["offsets"].append(part["offsets"][1:] + out["target"].count)
        for name in _COLUMNS:
            out[name].append(part[name])
    pairs = out["target"].count
    for column in out.values():
        column.close()
    writer.facts |= {"papers": len(rows), "pairs": pairs}
