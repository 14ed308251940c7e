"""The next generation of an index: papers selected from a corpus and the last generation, written as one folder.

    generation = Generation(chosen, facts, embedding, last=index, corpus=corpus)
    generation.publish(writer, recipe)       written, resumed where it was interrupted, then the current one

Vectors of papers and sentences whose text the last generation has are carried over; files that would be the same are
shared with it. Who selects the papers: `build.py` and `update.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, artifact_matches, new_artifact
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.files import link_or_copy
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import remove_leftovers
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.aspects import save_heads
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.search.citing_sentences import SentenceSources, write_citing_sentences
from citeweave.search.index import Index
from citeweave.search.index_columns import HEADS
from citeweave.search.index_model import Embedding, model_metadata
from citeweave.search.index_papers import SelectedPapers, index_records, write_papers
from citeweave.search.index_vectors import GenerationVectors, PrecomputedVectors
from citeweave.search.state import KIND, VERSION, IndexWriter

_OF_PAPERS = ("papers", "ids", "references", "outside_names", "words")
"""Files that the papers alone decide."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The next generation of an index: which papers it holds, and where their vectors come from."""

    chosen: SelectedPapers
    """Papers of the last generation, then of the corpus, where both have any."""

    facts: dict[str, Any]
    """What the manifest records besides what is counted while it is written."""

    embedding: Embedding | None
    """None: no vector is made that is not known."""

    last: Index | None = None
    corpus: Corpus | None = None
    overlay: IntentOverlay | None = None
    precomputed: PrecomputedVectors | None = None
    reporter: Reporter = field(default_factory=lambda: QUIET)

    @classmethod
    def of_same_papers(
        cls,
        last: Index,
        facts: dict[str, Any],
        embedding: Embedding | None,
        *,
        precomputed: PrecomputedVectors | None = None,
        reporter: Reporter = QUIET,
    ) -> Generation:
        """Return a generation with all papers of the last one, and perhaps more vectors."""
        chosen = SelectedPapers.of([(index_records(last), np.arange(last.size))])
        return cls(chosen, facts, embedding, last, precomputed=precomputed, reporter=reporter)

    def publish(self, writer: IndexWriter, recipe: dict[str, Any]) -> None:
        """Write the generation, or resume or reuse what an interrupted writer began by the same recipe, and publish it."""
        place = writer.generation(recipe)
        writer.clean([place])
        if not artifact_matches(place, KIND, VERSION, recipe):
            try:
                with new_artifact(place, KIND, VERSION, recipe, overwrite=True) as artifact:
                    artifact.facts |= self._write(artifact)
                    artifact.finish()
            except (EmptyResultError, UserError):
                remove_leftovers(place)  # a second try would fail the same way
                raise
        writer.publish(place)

    def _write(self, artifact: ArtifactWriter) -> dict[str, Any]:
        self._write_papers(artifact.folder)
        vectors = GenerationVectors(
            artifact, self.embedding, self.last, self.precomputed, self._rows_of_corpus(), reporter=self.reporter
        )
        facts = {**self.facts, "papers": len(self.chosen), **vectors.write()}
        if self.embedding is not None:
            facts |= model_metadata(self.embedding)
            if self.last is None and self.precomputed is None and not facts["with_vector"] and self.corpus is not None:
                raise EmptyResultError(
                    f"no paper of {self.corpus.folder} has a text that {self.embedding.encoder.name} can read; check the input"
                )
        self._write_heads(artifact.folder)
        return facts | self._write_citing_sentences(artifact)

    def _write_papers(self, folder: Path) -> None:
        """Write the columns of the papers, or share those of the last generation where all papers are the same."""
        last, chosen = self.last, self.chosen
        is_same = last is not None and self.corpus is None and len(chosen) == last.size
        if not is_same or last is None:
            write_papers(folder, chosen)
            return
        for name in last.manifest.files:
            if name.partition("/")[0] in _OF_PAPERS:
                link_or_copy(last.place / name, folder / name)

    def _rows_of_corpus(self) -> NDArray[np.int64] | None:
        """Return the rows of papers that come from the corpus; None where there is none."""
        if self.corpus is None:
            return None
        return np.flatnonzero(self.chosen.source == len(self.chosen.records) - 1)

    def _write_heads(self, folder: Path) -> None:
        heads = self.embedding.heads if self.embedding else self.last.heads if self.last else None
        if heads is not None:
            (folder / HEADS).mkdir(exist_ok=True)
            save_heads(folder / HEADS, heads)

    def _write_citing_sentences(self, artifact: ArtifactWriter) -> dict[str, Any]:
        """Write the sentences that cite the papers, where the index keeps them."""
        wanted, last = int(self.facts.get("contexts", 0)), self.last
        if not wanted:
            return {}
        none = np.empty(0, np.int64)
        sources = len(self.chosen.records)
        facts = write_citing_sentences(
            artifact,
            SentenceSources(
                self.corpus,
                self.chosen.places(sources - 1) if self.corpus is not None else none,
                last.citing_sentences if last is not None else None,
                self.chosen.places(0) if self.corpus is None or sources > 1 else _nowhere(last),
                wanted,
                self.overlay,
            ),
            self.embedding.encoder if self.embedding else None,
            str(self.facts["dtype"]),
            self.reporter,
        )
        if not facts and last is None and self.precomputed is None and self.corpus is not None:
            raise UserError(f"no citing sentence of {self.corpus.folder} cites a paper of it; leave out --contexts")
        return dict(facts)


def _nowhere(last: Index | None) -> Any:
    return np.full(last.size if last is not None else 0, -1, np.int64)
