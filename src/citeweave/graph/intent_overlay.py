"""Mentions: in which sentences and sections of a citing paper another paper is cited, as sparse rows.

    contexts  paper 7, section "Method": cites 3, 5        mentions of 7:  3 (sentence 0, Method)
              paper 7, section "Method": cites 4                           5 (sentence 0, Method)
                                                                           4 (sentence 1, Method)

What proximity of two mentions is worth is said in `signals.py`.

Citation intents that the citing sentences tell: those given with them, and those read off their headings.

Headings are a stand-in where no classifier has looked:

    "1 Introduction", "2. Related Work"      background
    "3 Methods", "4.1 Datasets"              method
    "Results and Discussion"                 result

What a heading says is coarse: a method may well be praised in an introduction. Citations whose contexts have no
telling heading keep the intents they had.

Intents of a corpus's citations that were found after it was made: an overlay, since a corpus is never changed.

    intents/
      citations/mask.npy              bits of `Intent`, 0 = unknown; (citations,), as corpus.citing and corpus.cited
      citations/confidence.npy        of background, method and result; (citations, 3)
      citations/contexts.npy          how many citing sentences spoke; (citations,)
      citations/given.npy             the mask is what the source itself says; (citations,)
      contexts/mask.npy               the same of every citing sentence; (contexts,)
      contexts/confidence.npy         (contexts, 3)
      manifest.json                   the hash of the corpus; coverage, distribution, agreement

A confidence of three zeros means that nobody spoke: where a classifier did, one of the three is 1/3 or more. Where the
source gave the intents, those it names have confidence 1, the others 0.

    overlay = IntentOverlay.open("intents/")
    graph = overlay.on(graph, corpus)              # the graph with these intents on its edges
    overlay.masks_at(0.8)                          # only what is surer than the threshold it was made with

Does not find intents (`intents/annotate.py` does), and knows no sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, Manifest, check_files, read_manifest
from citeweave.core.columns import (
    MatrixWriter,
    NumberWriter,
    open_matrix,
    open_numbers,
    write_numbers,
)
from citeweave.core.errors import ArtifactError, UserError
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.paper import Intent
from citeweave.graph.citations import CitationGraph


@dataclass(frozen=True, slots=True)
class CitationMentions:
    """All mentions of papers inside papers of the corpus, grouped by the citing paper."""

    offsets: NDArray[np.int64]
    """Shape (papers + 1,)."""

    cited: NDArray[np.int32]
    contexts: NDArray[np.int64]
    """Number of the citing sentence of every mention."""

    sections: NDArray[np.uint64]
    """Key of the section's name, 0 where it has none."""


def mentions_of(corpus: Corpus) -> CitationMentions:
    """The mentions of a corpus's contexts; contexts of citing papers outside the corpus are left out."""
    table = corpus.contexts
    lengths = np.diff(table.cited_offsets)
    citing = np.repeat(table.citing, lengths)  # (mentions,)
    numbers = np.repeat(np.arange(len(table), dtype=np.int64), lengths)
    keys = table.sections.keys()
    keys[table.sections.lengths() == 0] = 0
    order = np.argsort(citing, kind="stable")
    order = order[int(np.searchsorted(citing[order], 0)) :]
    counts = np.bincount(citing[order], minlength=len(corpus))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return CitationMentions(offsets, table.cited[order], numbers[order], keys[numbers[order]])


# Citation intents that the citing sentences tell: those given with them, and those read off their headings.

_WORDS = {
    Intent.BACKGROUND: r"introduc|related|background|previous|prior|literature|state of the art|motivation|overview|preliminar",
    Intent.METHOD: r"method|material|model|approach|architectur|algorithm|dataset|data set|setup|set-up|implement|training|procedure",
    Intent.RESULT: r"result|discussion|experiment|evaluation|comparison|analys|finding|ablation|performance",
}
_PATTERNS = {intent: re.compile(words, re.IGNORECASE) for intent, words in _WORDS.items()}


def heading_intents(heading: str) -> Intent:
    """
    >>> heading_intents("2. Related Work"), heading_intents("Results and Discussion"), heading_intents("The cerebellum")
    (<Intent.BACKGROUND: 1>, <Intent.RESULT: 4>, <Intent.UNKNOWN: 0>)
    """
    intents = Intent.UNKNOWN
    for intent, pattern in _PATTERNS.items():
        if pattern.search(heading):
            intents |= intent
    return intents


def intents_from_contexts(corpus: Corpus, graph: CitationGraph, *, headings: bool = False) -> NDArray[np.uint8]:
    """Intents of every edge: those it has, those of its contexts, and with `headings` what these tell; (edges,)."""
    table = corpus.contexts
    told = np.array(table.intents)  # (contexts,)
    if headings:
        known: dict[str, int] = {}
        told |= np.array([known.setdefault(text, int(heading_intents(text))) for text in table.sections], np.uint8)
    if not told.any():
        return np.array(graph.intents)
    counts = np.diff(table.cited_offsets)
    citing, cited = np.repeat(table.citing, counts).astype(np.int64), table.cited.astype(np.int64)  # (mentions,)
    bits = np.repeat(told, counts)
    use = (citing >= 0) & (bits > 0)
    codes = graph.sources().astype(np.int64) * graph.nodes + graph.cited.targets  # ascending, (edges,)
    wanted = citing[use] * graph.nodes + cited[use]
    at = np.minimum(np.searchsorted(codes, wanted), max(len(codes) - 1, 0))
    found = codes[at] == wanted if len(codes) else np.zeros(len(wanted), bool)
    intents = np.array(graph.intents)
    np.bitwise_or.at(intents, at[found], bits[use][found])
    return intents


# Intents of a corpus's citations that were found after it was made: an overlay, since a corpus is never changed.

KIND, VERSION = "intents", 1
LABELS = ("background", "method", "result")
"""The columns of a confidence, in this order."""

BITS = np.array([Intent.BACKGROUND, Intent.METHOD, Intent.RESULT], np.uint8)  # (3,)
_NUMBERS = {
    "citations/mask": np.uint8,
    "citations/contexts": np.uint16,
    "citations/given": np.bool_,
    "contexts/mask": np.uint8,
}


class IntentOverlay:
    """Masks and confidences of citations and of citing sentences, memory-mapped."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        try:
            self.corpus = str(manifest.facts["corpus"])
            """Hash of the corpus whose citations these are."""
            self.least = float(manifest.facts["least"])
            """From which confidence on an intent is in the mask."""
            citations, contexts = (int(manifest.facts[kind]["all"]) for kind in ("citations", "contexts"))
        except (KeyError, TypeError, ValueError):
            raise ArtifactError(
                f"{folder}/manifest.json does not describe intents: it is damaged; make it again"
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
        """Refuse a corpus whose citations these are not."""
        if corpus.hash != self.corpus:
            raise UserError(
                f"{self.folder} holds intents of corpus {self.corpus[:12]}, and {corpus.folder} is {corpus.hash[:12]}: "
                f"an overlay fits the corpus it was made of; run `citeweave annotate {corpus.folder}` for this one"
            )

    def masks_at(self, least: float) -> NDArray[np.uint8]:
        """The masks by another threshold; what the source gave stays; (citations,)."""
        return np.where(self.given, self.mask, mask_of(self.confidence, least))

    def on(self, graph: CitationGraph, corpus: Corpus, *, least: float | None = None) -> CitationGraph:
        """The graph with these intents on its edges, whichever of the corpus's citations it still has.

        Edges that are no citation of the corpus keep the intents they had.
        """
        self.check(corpus)
        if graph.corpus not in ("", corpus.hash) or graph.nodes != len(corpus):
            raise UserError(
                f"the graph ({graph.nodes:,} nodes) is of another corpus than {corpus.folder} ({len(corpus):,} papers); "
                "make it again with `citeweave graph`"
            )
        masks = self.mask if least is None else self.masks_at(least)  # (citations,)
        places = CitationPlaces(corpus).find(graph.sources(), graph.cited.targets)  # (edges,)
        known = places >= 0
        intents = np.array(graph.intents)
        intents[known] = masks[places[known]]
        return graph.with_intents(intents)


class CitationPlaces:
    """Where a citation stands in the columns of a corpus, by its two rows.

    A corpus has every citation once, in ascending order of citing and cited row: importing merges those given twice.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._papers = len(corpus)
        self._codes = self._code(corpus.citing, corpus.cited)  # ascending, (citations,)

    def find(self, citing: NDArray[Any], cited: NDArray[Any]) -> NDArray[np.int64]:
        """Number of each citation, -1 where the corpus has no such one; any shape of one axis."""
        if not len(self._codes):
            return np.full(len(citing), -1, np.int64)
        wanted = self._code(citing, cited)
        at = np.minimum(np.searchsorted(self._codes, wanted), len(self._codes) - 1)
        # a negative row would borrow the code of a paper before it
        return np.where((self._codes[at] == wanted) & (np.asarray(citing) >= 0) & (np.asarray(cited) >= 0), at, -1)

    def _code(self, citing: NDArray[Any], cited: NDArray[Any]) -> NDArray[np.int64]:
        return np.asarray(citing, np.int64) * self._papers + np.asarray(cited, np.int64)


def mask_of(confidence: NDArray[np.float16], least: float) -> NDArray[np.uint8]:
    """Bits of the intents whose confidence is at least so large.

    >>> mask_of(np.array([[0.5, 0.5, 0.0], [0.4, 0.3, 0.3]], np.float16), 0.5).tolist()
    [3, 0]
    """
    # compared as float16, so that a threshold of 0.9 meets a stored 0.9
    sure = (confidence >= np.float16(least)) & (confidence > 0)  # (rows, 3)
    return np.asarray((sure * BITS).sum(axis=1), np.uint8)


def confidence_of(mask: NDArray[np.uint8]) -> NDArray[np.float16]:
    """Confidence of intents that a source gave: 1 for those it names; finer intents than the three have no column.

    >>> confidence_of(np.array([3, 0], np.uint8)).tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    return ((mask[:, None] & BITS) > 0).astype(np.float16)  # (rows, 3)


class OverlayWriter:
    """The columns of an overlay inside an artifact: contexts block by block, then the citations at once."""

    def __init__(self, artifact: ArtifactWriter) -> None:
        self._artifact = artifact
        self._mask = NumberWriter(artifact.folder / "contexts" / "mask.npy", np.uint8)
        self._confidence = MatrixWriter(artifact.folder / "contexts" / "confidence.npy", np.float16, len(LABELS))

    def append_contexts(self, mask: NDArray[np.uint8], confidence: NDArray[np.float16]) -> None:
        """Masks and confidences of the next contexts; (number,) and (number, 3)."""
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
        """All columns of the citations; more contexts than a column can count are its largest number."""
        folder = self._artifact.folder / "citations"
        most = np.iinfo(np.uint16).max
        write_numbers(folder / "mask.npy", mask, np.uint8)
        write_numbers(folder / "contexts.npy", np.minimum(contexts, most), np.uint16)
        write_numbers(folder / "given.npy", given, np.bool_)
        matrix = MatrixWriter(folder / "confidence.npy", np.float16, len(LABELS))
        matrix.append(confidence)
        matrix.close()
