"""Fewer segments: several become one, without their deleted papers.

    compact_index("index")         all papers in one segment

    sizes of segments, oldest first      1000 600 | + 400      the last two are alike: 1000 1000, and so 2000
                                         1000 600 | + 7        stays

After every change the last segments are joined as long as the one before is not more than twice as large: a million
papers added one by one leave about twenty segments, and each was copied about twenty times. Vectors are copied, never
made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.artefacts.writing import ArtefactWriter
from citeweave.search.index import Index
from citeweave.search.segment import Segment
from citeweave.search.state import Entry, IndexWriter, writing
from citeweave.search.writing.citing import take_citing_sentences
from citeweave.search.writing.records import Chosen, of_segment
from citeweave.search.writing.segments import write_segment
from citeweave.search.writing.vectors import take_vectors

_ALIKE = 2


def compact_index(folder: str | Path) -> Index:
    """All living papers in one segment."""
    with writing(Path(folder)) as writer:
        entries = writer.known().segments
        facts = {name: value for name, value in writer.known().facts.items() if name != "filling"}
        if len(entries) > 1 or any(entry.deleted for entry in entries):
            writer.commit(merge_segments(writer, Index.open(folder).segments), facts)
        elif facts != writer.known().facts:
            writer.commit(entries, facts)
        else:
            writer.clean()
    return Index.open(folder)


def join_last(writer: IndexWriter) -> None:
    """Join the last segments where they are alike in size; called after a change, in a state of its own."""
    entries = writer.known().segments
    sizes = [entry.papers - entry.deleted for entry in entries]
    first, total = len(sizes) - 1, sizes[-1] if sizes else 0
    index = Index.open(writer.folder)
    while first > 0 and sizes[first - 1] <= _ALIKE * total:
        # words alone wait for their vectors, and will be copied then
        if (index.segments[first - 1].matrix is None) != (index.segments[first].matrix is None):
            break
        first -= 1
        total += sizes[first]
    if first < len(sizes) - 1:
        merged = merge_segments(writer, index.segments[first:])
        writer.commit([*entries[:first], *merged], writer.known().facts)


def merge_segments(writer: IndexWriter, segments: Sequence[Segment]) -> list[Entry]:
    """The living papers of some segments as one new segment; none where none lives."""
    living = [segment for segment in segments if segment.alive.any()]
    if not living:
        return []
    recipe = {"merged": [[segment.name, segment.manifest.hash, int(segment.alive.sum())] for segment in living]}
    recipe["state"] = [[str(writer.known().number)]]
    writer.clean([writer.segment(recipe)])
    chosen = Chosen.of([(of_segment(segment), np.flatnonzero(segment.alive)) for segment in living])

    def fill(artefact: ArtefactWriter) -> dict[str, Any]:
        facts = take_vectors(artefact.folder, chosen, living)
        told = take_citing_sentences(artefact.folder, chosen, [segment.citing_sentences for segment in living])
        return {**facts, **told}

    return [write_segment(writer, recipe, chosen, fill)]
