"""From staged parts to the files of a corpus: merge papers, write columns, link citations and contexts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.writing import ArtefactWriter
from citeweave.columns import open_numbers
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.index import IdIndex
from citeweave.corpus.intake.assembling import build_index, write_merges, write_papers
from citeweave.corpus.intake.citation_links import write_citations
from citeweave.corpus.intake.context_links import write_contexts
from citeweave.corpus.intake.merging import Assignment, MergeOptions, Staged, merge_papers
from citeweave.corpus.intake.staging import StagedPart
from citeweave.corpus.intake.updating import BasePart, Deletions, share_unchanged, write_changes
from citeweave.corpus.outside_names import MAX_REFERENCES, NameCollector, OutsideName
from citeweave.errors import EmptyResultError
from citeweave.progress import QUIET, Reporter
from citeweave.tally import Tally


def build_corpus(
    writer: ArtefactWriter,
    parts: Sequence[StagedPart],
    options: MergeOptions,
    *,
    base: Corpus | None = None,
    gone: Deletions | None = None,
    reporter: Reporter = QUIET,
) -> None:
    """Write all columns of a corpus and its facts.

    With `base`, of a new generation of that corpus; `gone` is what to leave out of it.
    """
    if base is not None:
        parts = [BasePart(base, gone.citations if gone is not None else None), *parts]
    tally = Tally()
    for part in parts:
        tally.add(part.tally)
    staged, work = Staged(parts), writer.work("sort")
    dropped = np.zeros(len(staged), np.bool_)
    if gone is not None:
        dropped[gone.rows] = True  # the base's papers are the first staged ones
    reporter.say(f"merging {len(staged):,} records of papers")
    assignment = merge_papers(staged, work, options, base_papers=0 if base is None else len(base), dropped=dropped)
    if base is not None and len(base) and not assignment.papers:
        raise EmptyResultError(
            "nothing to write: no paper of the corpus would be left; keep some, or check the benchmark"
        )
    _account_for_papers(staged, assignment, dropped, tally)
    write_papers(writer.folder / "papers", staged, assignment, tally)
    write_merges(writer.folder / "merges", staged, assignment)
    index = build_index(writer.folder / "papers", staged, assignment, work, memory=options.memory)
    citations, contexts = _link(writer, parts, index, assignment.papers, tally, options.memory, reporter)
    _name_outside(writer, staged, assignment)
    if not (assignment.papers or citations or contexts):
        raise EmptyResultError(_nothing_kept(tally))
    writer.facts |= {
        "papers": assignment.papers,
        "citations": citations,
        "contexts": contexts,
        **tally.as_json(),
        "titles_left_apart": assignment.conflicts,
        "parts": [part.name for part in parts],
        "generation": 1,
    }
    if base is not None:
        _describe_update(writer, base, assignment)


def _link(
    writer: ArtefactWriter,
    parts: Sequence[StagedPart],
    index: IdIndex,
    papers: int,
    tally: Tally,
    memory: int,
    reporter: Reporter,
) -> tuple[int, int]:
    """Write citations and contexts, side by side: most of the work is compiled and leaves Python to the other."""
    counts = [sum(getattr(part, name) for part in parts) for name in ("citation_count", "context_count")]
    reporter.say(f"linking {counts[0]:,} citations and {counts[1]:,} contexts")
    with ThreadPoolExecutor(2) as pool:
        citations = pool.submit(
            write_citations, writer.folder, parts, index, papers, writer.work("citations"), tally, memory=memory
        )
        contexts = pool.submit(
            write_contexts, writer.folder / "contexts", parts, index, writer.work("contexts"), tally, memory=memory
        )
        return citations.result(), contexts.result()


def _name_outside(writer: ArtefactWriter, staged: Staged, assignment: Assignment) -> None:
    """What the papers outside are called: by records that became no row, which may have a title, else by the cited ids."""
    keys = open_numbers(writer.folder / "references_outside" / "key.npy", np.uint64)
    if len(keys) > MAX_REFERENCES:
        return
    names = NameCollector(keys)
    years = staged.numbers("year")
    for block in staged.id_keys():
        without_row = block[assignment.row[block["row"]] < 0]

        def take(rows: list[int], staged_rows: NDArray[np.int64] = without_row["row"]) -> list[OutsideName]:
            own = [int(staged_rows[row]) for row in rows]
            return [OutsideName(staged.text("id", row), staged.text("title", row), int(years[row])) for row in own]

        names.offer(without_row["key"], take)
    for part in staged.parts:
        part.offer_names(names)
    names.write(writer.folder)


def _describe_update(writer: ArtefactWriter, base: Corpus, assignment: Assignment) -> None:
    old = base.manifest.facts
    writer.facts |= {name: value for name, value in old.items() if name in ("made_up", "note")}
    writer.facts["generation"] = int(old.get("generation", 1)) + 1
    writer.facts["changes"] = write_changes(writer.folder, base, assignment)
    writer.facts["update_of"] = base.hash
    writer.facts["shared_files"] = share_unchanged(writer.folder, base)


def _account_for_papers(staged: Staged, assignment: Assignment, dropped: NDArray[np.bool_], tally: Tally) -> None:
    unused = int(((assignment.row < 0) & ~dropped).sum())
    merged = len(staged) - int(dropped.sum()) - unused - assignment.papers
    tally.unkeep("papers", "deleted on request", int(dropped.sum()))
    tally.unkeep("papers", "known only as a reference", unused)
    tally.unkeep("papers", "same paper as another record (merged)", merged)


def _nothing_kept(tally: Tally) -> str:
    reasons = [f"{n:,} {kind}: {why}" for kind, c in tally.counts.items() for why, n in c.rejected.items()]
    if tally.counts["citations"].rejected.get("citing and cited paper not in the corpus"):
        return (
            "nothing to write: the citations name papers that no record describes; "
            "add the papers' file, or make rows of the ids with --outside keep"
        )
    return f"nothing to write: no record was kept ({'; '.join(reasons) or 'the inputs hold none'}); check the --format"
