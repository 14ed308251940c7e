"""What evaluation keeps out of training: papers of published suites, and references of held-out papers of the corpus.

    report = find_leaks(corpus, {"csfcube": suite})
    report.rows_to_exclude()
    trained_on = without_references(corpus, held_out_rows(corpus, options), "run/corpus", why="share:0.1, seed 0")

Papers of suites are found by the leakage audit of `corpus/leakage.py`: ids, titles and near-duplicate texts. A suite
without texts cannot be searched for, which is reported.

A corpus without references has the same papers and rows, so samples and vectors of one fit the other; unchanged files are
shared. Citations, references to papers outside and citing sentences of the held-out papers are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import MANIFEST, artifact_matches, new_artifact
from citeweave.core.columns import BLOCK, NumberWriter, TextColumn, TextWriter
from citeweave.core.files import hash_json, link_or_copy
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import CITATION_COLUMNS, KIND, REFERENCE_COLUMNS, VERSION, Corpus
from citeweave.corpus.leakage import CorpusPapers, LeakageReport, ListedPapers, audit_leakage
from citeweave.evaluation.tasks import Suite

_CHANGED_PARTS = ("citations", "contexts", "references_outside", "changes")
_CONTEXT_TEXTS = ("text", "section", "extra")


def find_leaks(corpus: Corpus, suites: Mapping[str, Suite], reporter: Reporter = QUIET) -> LeakageReport:
    """Find the papers of the corpus that are papers of the evaluation suites."""
    tables = {name: suite_papers(suite) for name, suite in suites.items()}
    for name, table in tables.items():
        if not len(table.ids):
            reporter.say(f"{name} has no texts here, so its papers cannot be searched for in the corpus")
    return audit_leakage(CorpusPapers(corpus), {name: table for name, table in tables.items() if len(table.ids)})


def suite_papers(suite: Suite) -> ListedPapers:
    """Collect the papers of all tasks of a suite, each id once."""
    papers: dict[str, tuple[str, str]] = {}
    for task in suite.tasks:
        if not task.texts.lacking:
            rows = zip(task.texts.ids, task.texts.titles, task.texts.abstracts, strict=True)
            papers |= {name: (title, abstract) for name, title, abstract in rows}
    return ListedPapers(
        ids=list(papers),
        titles=[title for title, _ in papers.values()],
        abstracts=[abstract for _, abstract in papers.values()],
    )


def without_references(
    corpus: Corpus, held: NDArray[np.bool_], folder: str | Path, *, why: str, overwrite: bool = False
) -> Corpus:
    """Write a corpus without the references of the held-out papers `held` (papers,); the same call again opens it."""
    folder = Path(folder)
    rows = np.flatnonzero(held)
    recipe = {"of": corpus.hash, "without references of": hash_json(rows.tolist()), "why": why}
    if not artifact_matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            _share_files(corpus.folder, writer.folder)
            removed = _write_citations(corpus, held, writer.folder)
            removed["contexts"] = _write_contexts(corpus, held, writer.folder / "contexts")
            writer.facts |= {**corpus.manifest.facts, "held out": {"papers": len(rows), "why": why, **removed}}
            writer.finish()
    return Corpus.open(folder)


def _share_files(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if (
            path.is_file()
            and inside.parts[0] not in (*_CHANGED_PARTS, MANIFEST)
            and not inside.parts[0].startswith(".")
        ):
            link_or_copy(path, target / inside)


def _write_citations(corpus: Corpus, held: NDArray[np.bool_], folder: Path) -> dict[str, int]:
    """Write the remaining citations and outside references; return how many of each were removed."""
    removed = {}
    columns: dict[str, tuple[dict[str, Any], dict[str, NDArray[Any]]]] = {
        "citations": (CITATION_COLUMNS, {name: _citation_column(corpus, name) for name in CITATION_COLUMNS}),
        "references_outside": (
            REFERENCE_COLUMNS,
            {name: corpus.references_outside(name) for name in REFERENCE_COLUMNS},
        ),
    }
    for part, (types, values) in columns.items():
        keep = ~held[values["citing"]]  # (citations,)
        removed[part] = int((~keep).sum())
        for name, dtype in types.items():
            _write(folder / part / f"{name}.npy", dtype, values[name][keep])
    return removed


def _citation_column(corpus: Corpus, name: str) -> NDArray[Any]:
    column: NDArray[Any] = getattr(corpus, "strengths" if name == "strength" else name)
    return column


def _write_contexts(corpus: Corpus, held: NDArray[np.bool_], folder: Path) -> int:
    """Write the remaining contexts, including those of papers outside the corpus; return how many were removed."""
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
