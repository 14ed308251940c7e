"""Citation intents added to a corpus after its import: an overlay folder, and intents read from headings.

    intents/
      citations/mask.npy              bits of `Intent`, 0 = unknown; (citations,), as corpus.citing and corpus.cited
      citations/confidence.npy        of background, method and result; (citations, 3)
      citations/contexts.npy          number of citing sentences behind each mask; (citations,)
      citations/given.npy             whether the source itself states the intents; (citations,)
      contexts/mask.npy               the mask of every citing sentence; (contexts,)
      contexts/confidence.npy         (contexts, 3)
      manifest.json                   the hash of the corpus; coverage, distribution, agreement

A confidence of three zeros means that nothing is known: where a classifier predicted, one of the three is 1/3 or more.
Where the source states the intents, those it names have confidence 1, the others 0.

    overlay = IntentOverlay.open("intents/")
    graph = overlay.on(graph, corpus)              # the graph with these intents on its edges
    overlay.masks_at(0.8)                          # only intents above another threshold

An overlay belongs to one corpus. For a corpus made from that one (by removing papers or references) its citations are
found again by the ids of the two papers. Intents may also come from the corpus itself, or from headings:

    source = IntentSource("intents/")              # or "corpus", or "sections"
    graph = source.annotate(graph, corpus)         # the graph with these intents on its edges

Without a classifier, the headings above citing sentences are a coarse stand-in:

    "1 Introduction", "2. Related Work"      background
    "3 Methods", "4.1 Datasets"              method
    "Results and Discussion"                 result

Does not classify citing sentences: `intents/annotate.py` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, Manifest, check_files, read_manifest
from citeweave.core.columns import BLOCK, MatrixWriter, NumberWriter, open_matrix, open_numbers, write_numbers
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.ragged import owners_of
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.paper import Intent
from citeweave.graph.citations import CitationGraph

KIND, VERSION = "intents", 1
LABELS = ("background", "method", "result")
"""The columns of a confidence matrix, in this order."""

BITS = np.array([Intent.BACKGROUND, Intent.METHOD, Intent.RESULT], np.uint8)  # (3,)
_NUMBERS = {
    "citations/mask": np.uint8,
    "citations/contexts": np.uint16,
    "citations/given": np.bool_,
    "contexts/mask": np.uint8,
}


class IntentOverlay:
    """Overlay of intents: masks and confidences of a corpus's citations and citing sentences, memory-mapped."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        try:
            self.corpus = str(manifest.facts["corpus"])
            """Hash of the corpus whose citations these are."""
            self.threshold = float(manifest.facts["least"])
            """Lowest confidence at which an intent is in the mask."""
            citations, contexts = (int(manifest.facts[kind]["all"]) for kind in ("citations", "contexts"))
        except (KeyError, TypeError, ValueError):
            raise ArtifactError(
                f"{folder}/manifest.json does not describe intents: it is damaged; annotate the corpus again"
            ) from None
        columns = {name: open_numbers(folder / f"{name}.npy", dtype) for name, dtype in _NUMBERS.items()}
        if any(len(columns[name]) != (citations if name.startswith("cit") else contexts) for name in _NUMBERS):
            raise ArtifactError(f"{folder} is damaged: its columns do not fit together; annotate the corpus again")
        self.mask: NDArray[np.uint8] = columns["citations/mask"]
        self.contexts: NDArray[np.uint16] = columns["citations/contexts"]
        self.given: NDArray[np.bool_] = columns["citations/given"]
        self.context_mask: NDArray[np.uint8] = columns["contexts/mask"]
        width = len(LABELS)
        self.confidence: NDArray[np.float16] = open_matrix(
            folder / "citations" / "confidence.npy", np.float16, (citations, width)
        )
        self.context_confidence: NDArray[np.float16] = open_matrix(
            folder / "contexts" / "confidence.npy", np.float16, (contexts, width)
        )

    @classmethod
    def open(cls, folder: str | Path) -> IntentOverlay:
        folder = Path(folder)
        manifest = read_manifest(folder, KIND, VERSION)
        check_files(folder, manifest)
        return cls(folder, manifest)

    @property
    def hash(self) -> str:
        return self.manifest.hash

    def __len__(self) -> int:
        return len(self.mask)

    def __repr__(self) -> str:
        return f"IntentOverlay({str(self.folder)!r}: {int((self.mask > 0).sum()):,} of {len(self):,} citations)"

    def check(self, corpus: Corpus) -> None:
        """Refuse a corpus other than the one whose citation intents this overlay holds."""
        if corpus.hash != self.corpus:
            raise UserError(
                f"{self.folder} holds intents of corpus {self.corpus[:12]}, and {corpus.folder} is {corpus.hash[:12]}: "
                f"an overlay fits only the corpus it was made from; run `citeweave annotate {corpus.folder}` for this one"
            )

    def masks_at(self, threshold: float) -> NDArray[np.uint8]:
        """Return the intent masks at another confidence threshold; what the source states stays; (citations,)."""
        return np.where(self.given, self.mask, mask_from_confidence(self.confidence, threshold))

    def on(self, graph: CitationGraph, corpus: Corpus, *, threshold: float | None = None) -> CitationGraph:
        """Return the graph with the overlay's intents on its edges, whichever of the corpus's citations it still has.

        Edges that are not citations of the corpus keep the intents they had.
        """
        self.check(corpus)
        if graph.corpus not in ("", corpus.hash) or graph.nodes != len(corpus):
            raise UserError(
                f"the graph ({graph.nodes:,} nodes) is of another corpus than {corpus.folder} ({len(corpus):,} papers); "
                "build it again with `citeweave graph`"
            )
        masks = self.mask if threshold is None else self.masks_at(threshold)  # (citations,)
        places = CitationPlaces(corpus).find(graph.sources(), graph.cited.targets)  # (edges,)
        return _replace_known(graph, masks, places)


class CitationPlaces:
    """Lookup of a citation's position, for an intent overlay, in the columns of a corpus by citing and cited row.

    A corpus has every citation once, in ascending order of citing and cited row: the import merges duplicates.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._papers = len(corpus)
        self._codes = self._code(corpus.citing, corpus.cited)  # ascending, (citations,)

    def find(self, citing: NDArray[Any], cited: NDArray[Any]) -> NDArray[np.int64]:
        """Find the number of each citation of an intent overlay in the corpus, -1 where it has no such citation."""
        places = _find_ascending(self._codes, self._code(citing, cited))
        # a negative row would share the code of the paper before it
        return np.where((np.asarray(citing) >= 0) & (np.asarray(cited) >= 0), places, -1)

    def _code(self, citing: NDArray[Any], cited: NDArray[Any]) -> NDArray[np.int64]:
        return np.asarray(citing, np.int64) * self._papers + np.asarray(cited, np.int64)


def _find_ascending(codes: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each wanted citation among ascending ones, -1 where it is not there."""
    if not len(codes):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return np.where(codes[at] == wanted, at, -1)


def _replace_known(graph: CitationGraph, masks: NDArray[np.uint8], places: NDArray[np.int64]) -> CitationGraph:
    """Return the graph with the intent mask at each edge's place; an edge with place -1 keeps its intents."""
    intents = np.array(graph.intents)
    intents[places >= 0] = masks[places[places >= 0]]
    return graph.with_intents(intents)


def mask_from_confidence(confidence: NDArray[np.float16], threshold: float) -> NDArray[np.uint8]:
    """Return the bits that an intent overlay sets: of the intents whose confidence is at or above the threshold.

    >>> mask_from_confidence(np.array([[0.5, 0.5, 0.0], [0.4, 0.3, 0.3]], np.float16), 0.5).tolist()
    [3, 0]
    """
    # compared as float16, so that a threshold of 0.9 equals a stored 0.9
    sure = (confidence >= np.float16(threshold)) & (confidence > 0)  # (rows, 3)
    return np.asarray((sure * BITS).sum(axis=1), np.uint8)


def confidence_from_mask(mask: NDArray[np.uint8]) -> NDArray[np.float16]:
    """Return an overlay's confidence 1 for intents that a source states; those finer than the three have no column.

    >>> confidence_from_mask(np.array([3, 0], np.uint8)).tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    return ((mask[:, None] & BITS) > 0).astype(np.float16)  # (rows, 3)


class OverlayWriter:
    """Writes the columns of an intent overlay into an artifact: contexts block by block, then all citations."""

    def __init__(self, artifact: ArtifactWriter) -> None:
        self._artifact = artifact
        self._mask = NumberWriter(artifact.folder / "contexts" / "mask.npy", np.uint8)
        self._confidence = MatrixWriter(artifact.folder / "contexts" / "confidence.npy", np.float16, len(LABELS))

    def append_contexts(self, mask: NDArray[np.uint8], confidence: NDArray[np.float16]) -> None:
        """Append intent masks and confidences of the next citing sentences; (number,) and (number, 3)."""
        self._mask.append(mask)
        self._confidence.append(confidence)

    def close(self) -> None:
        self._mask.close()
        self._confidence.close()

    def write_citations(
        self,
        mask: NDArray[np.uint8],
        confidence: NDArray[np.float16],
        contexts: NDArray[np.integer[Any]],
        given: NDArray[np.bool_],
    ) -> None:
        """Write all intent columns of the citations; counts of contexts are capped at the largest 16-bit number."""
        folder = self._artifact.folder / "citations"
        cap = np.iinfo(np.uint16).max
        write_numbers(folder / "mask.npy", mask, np.uint8)
        write_numbers(folder / "contexts.npy", np.minimum(contexts, cap), np.uint16)
        write_numbers(folder / "given.npy", given, np.bool_)
        matrix = MatrixWriter(folder / "confidence.npy", np.float16, len(LABELS))
        matrix.append(confidence)
        matrix.close()


# Intents read from the citing sentences and their section headings.

_WORDS = {
    Intent.BACKGROUND: r"introduc|related|background|previous|prior|literature|state of the art|motivation|overview|preliminar",
    Intent.METHOD: r"method|material|model|approach|architectur|algorithm|dataset|data set|setup|set-up|implement|training|procedure",
    Intent.RESULT: r"result|discussion|experiment|evaluation|comparison|analys|finding|ablation|performance",
}
_PATTERNS = {intent: re.compile(words, re.IGNORECASE) for intent, words in _WORDS.items()}


def heading_intents(heading: str) -> Intent:
    """Return the citation intents, to overlay on a graph, that a section heading suggests.

    >>> heading_intents("2. Related Work"), heading_intents("Results and Discussion"), heading_intents("The cerebellum")
    (<Intent.BACKGROUND: 1>, <Intent.RESULT: 4>, <Intent.UNKNOWN: 0>)
    """
    intents = Intent.UNKNOWN
    for intent, pattern in _PATTERNS.items():
        if pattern.search(heading):
            intents |= intent
    return intents


def intents_from_contexts(corpus: Corpus, graph: CitationGraph, *, headings: bool = False) -> NDArray[np.uint8]:
    """Overlay the intents of citing sentences and, optionally, headings on those of every edge; (edges,)."""
    table = corpus.contexts
    intents_of_context = np.array(table.intents)  # (contexts,)
    if headings:
        cache: dict[str, int] = {}
        intents_of_context |= np.array(
            [cache.setdefault(text, int(heading_intents(text))) for text in table.sections], np.uint8
        )
    if not intents_of_context.any():
        return np.array(graph.intents)
    context = owners_of(table.cited_offsets)  # (mentions,)
    use = np.flatnonzero((table.citing[context] >= 0) & (intents_of_context[context] > 0))
    context, cited = context[use], table.cited[use]
    codes = graph.sources().astype(np.int64) * graph.nodes + graph.cited.targets  # ascending, (edges,)
    places = _find_ascending(codes, table.citing[context].astype(np.int64) * graph.nodes + cited)
    intents = np.array(graph.intents)
    np.bitwise_or.at(intents, places[places >= 0], intents_of_context[context[places >= 0]])
    return intents


# Where the intents of a graph come from.

CORPUS, SECTIONS = "corpus", "sections"


@dataclass(frozen=True, slots=True)
class IntentSource:
    """Where the citation intents of a graph come from: the corpus, headings or an overlay; the value of `--intents`."""

    where: str = CORPUS
    """`corpus`: its own intents; `sections`: also those read from headings; else the folder of an overlay."""

    of: Corpus | None = None
    """The corpus of the overlay, if intents are added to the graph of another corpus that was made from it."""

    def __post_init__(self) -> None:
        if self.is_overlay and not Path(self.where).is_dir():
            raise UserError(
                f"--intents {self.where}: there is no such folder; give {CORPUS}, {SECTIONS}, or a folder written by `citeweave "
                "annotate CORPUS -o FOLDER`"
            )

    @property
    def is_overlay(self) -> bool:
        """Whether the intents come from the folder of an overlay."""
        return self.where not in (CORPUS, SECTIONS)

    @property
    def source(self) -> str:
        """Identity of the intents for manifests: the hash of an overlay, else its name."""
        return IntentOverlay.open(self.where).hash if self.is_overlay else self.where

    def annotate(self, graph: CitationGraph, corpus: Corpus) -> CitationGraph:
        """Return the graph with the intents of this source on its citations."""
        if not self.is_overlay:
            headings = self.where == SECTIONS
            return graph.with_intents(intents_from_contexts(corpus, graph, headings=headings))
        overlay = IntentOverlay.open(self.where)
        if self.of is None or overlay.corpus == corpus.hash:
            return overlay.on(graph, corpus)
        overlay.check(self.of)
        return _transfer_intents(overlay, self.of, graph, corpus)


def _transfer_intents(overlay: IntentOverlay, of: Corpus, graph: CitationGraph, corpus: Corpus) -> CitationGraph:
    """Return the graph with the intents of every edge that has its papers, found by id, in the corpus of the overlay."""
    row = np.empty(len(corpus), np.int64)  # of each paper in `of`, -1 where it is not there
    for start in range(0, len(corpus), BLOCK):
        papers = np.arange(start, min(start + BLOCK, len(corpus)))
        row[papers] = of.rows(corpus.ids.take(papers))
    places = CitationPlaces(of).find(row[graph.sources()], row[graph.cited.targets])  # (edges,)
    if graph.edges and not (places >= 0).any():
        raise UserError(
            f"--intents {overlay.folder}: none of the {graph.edges:,} citations that are trained on is among those of "
            f"{of.folder}; annotate the corpus of this run, or give --intents auto"
        )
    return _replace_known(graph, overlay.mask, places)
