"""From papers to a segment of an index that is being written.

    write_segment(writer, recipe, chosen, lambda artefact: embed_segment(artefact, how))

A segment that an interrupted writer had finished or begun, by the same recipe, is taken over. No state names the
segment until the caller commits one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from citeweave.artefacts.manifest import read_manifest
from citeweave.artefacts.writing import ArtefactWriter, matches, new_artefact
from citeweave.search.segment import KIND, VERSION
from citeweave.search.state import Entry, IndexWriter
from citeweave.search.writing.papers import write_papers
from citeweave.search.writing.records import Chosen
from citeweave.search.writing.vectors import write_all_codes

Fill = Callable[[ArtefactWriter], dict[str, Any]]
"""Writes vectors and citing sentences into the folder where the papers are; what the manifest should tell."""


def write_segment(writer: IndexWriter, recipe: dict[str, Any], chosen: Chosen, fill: Fill) -> Entry:
    """Write the chosen papers as a new segment."""
    folder = writer.segment(recipe)
    if matches(folder, KIND, VERSION, recipe):
        return Entry(folder.name, read_manifest(folder, KIND, VERSION).hash, len(chosen))
    with new_artefact(folder, KIND, VERSION, recipe, overwrite=True) as artefact:
        write_papers(artefact.folder, chosen)
        facts = fill(artefact)
        write_all_codes(artefact.folder, facts, len(chosen))
        artefact.facts |= {"papers": len(chosen), **facts}
        return Entry(folder.name, artefact.finish().hash, len(chosen))
