"""A corpus without the reference lists of some papers: what a model may learn from, where those lists are asked for.

    trained_on = without_references(corpus, held_out_rows(corpus, options), "run/corpus", why="share:0.1, seed 0")

Papers and their rows stay the same, so samples and vectors of one are those of the other; files that do not change are
shared. Citations, references to outside and citing sentences of the given papers are gone, in whatever is made of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.manifest import MANIFEST
from citeweave.artefacts.writing import matches, new_artefact
from citeweave.columns import BLOCK, NumberWriter, TextColumn, TextWriter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.layout import CITATION_COLUMNS, KIND, REFERENCE_COLUMNS, VERSION
from citeweave.files import hash_json, link_or_copy

_CHANGED = ("citations", "contexts", "references_outside", "changes")
_CONTEXT_TEXTS = ("text", "section", "extra")


def without_references(
    corpus: Corpus, held: NDArray[np.bool_], folder: str | Path, *, why: str, overwrite: bool = False
) -> Corpus:
    """Write the corpus without what the papers marked in `held` (papers,) cite; the same call again opens it."""
    folder = Path(folder)
    rows = np.flatnonzero(held)
    recipe = {"of": corpus.hash, "without references of": hash_json(rows.tolist()), "why": why}
    if not matches(folder, KIND, VERSION, recipe):
        with new_artefact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            _share(corpus.folder, writer.folder)
            lost = _write_citations(corpus, held, writer.folder)
            lost["contexts"] = _write_contexts(corpus, held, writer.folder / "contexts")
            writer.facts |= {**corpus.manifest.facts, "held out": {"papers": len(rows), "why": why, **lost}}
            writer.finish()
    return Corpus.open(folder)


def _share(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if path.is_file() and inside.parts[0] not in (*_CHANGED, MANIFEST) and not inside.parts[0].startswith("."):
            link_or_copy(path, target / inside)


def _write_citations(corpus: Corpus, held: NDArray[np.bool_], folder: Path) -> dict[str, int]:
    """Citations and references to outside; says how many of each are gone."""
    lost = {}
    columns: dict[str, tuple[dict[str, Any], dict[str, NDArray[Any]]]] = {
        "citations": (CITATION_COLUMNS, {name: _citations(corpus, name) for name in CITATION_COLUMNS}),
        "references_outside": (
            REFERENCE_COLUMNS,
            {name: corpus.references_outside(name) for name in REFERENCE_COLUMNS},
        ),
    }
    for place, (types, values) in columns.items():
        keep = ~held[values["citing"]]  # (citations,)
        lost[place] = int((~keep).sum())
        for name, dtype in types.items():
            _write(folder / place / f"{name}.npy", dtype, values[name][keep])
    return lost


def _citations(corpus: Corpus, name: str) -> NDArray[Any]:
    found: NDArray[Any] = getattr(corpus, "strengths" if name == "strength" else name)
    return found


def _write_contexts(corpus: Corpus, held: NDArray[np.bool_], folder: Path) -> int:
    """Citing sentences; those of papers outside the corpus stay. Says how many are gone."""
    table = corpus.contexts
    inside = table.citing >= 0
    keep = ~(inside & held[np.where(inside, table.citing, 0)]) if len(held) else ~inside  # (contexts,)
    rows = np.flatnonzero(keep)
    _write(folder / "citing.npy", np.int32, table.citing[rows])
    _write(folder / "citing_key.npy", np.uint64, table.citing_keys[rows])
    _write(folder / "intents.npy", np.uint8, table.intents[rows])
    for name in _CONTEXT_TEXTS:
        column, writer = TextColumn(corpus.folder / "contexts", name), TextWriter(folder, name)
        for start in range(0, len(rows), BLOCK):
            writer.append_bytes(*column.gather(rows[start : start + BLOCK]))
        writer.close()
    for name, values, offsets, dtype in (
        ("cited", table.cited, table.cited_offsets, np.int32),
        ("outside", table.outside, table.outside_offsets, np.uint64),
    ):
        sizes = np.diff(offsets)  # (contexts,)
        _write(folder / f"{name}.npy", dtype, values[np.repeat(keep, sizes)])
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[rows])])
        _write(folder / f"{name}_offsets.npy", np.int64, ends)
    return len(keep) - len(rows)


def _write(path: Path, dtype: Any, values: NDArray[Any]) -> None:
    writer = NumberWriter(path, dtype)
    writer.append(values)
    writer.close()
