"""Blocks of a corpus's citing sentences: which citations they belong to, and the intents predicted for them.

    context 0 of paper 5: cites 7, 9        mentions: (0, citation 5-7), (0, citation 5-9)
    context 1 of paper 5: cites 7                     (1, citation 5-7)
    intents of citation 5-7: aggregated over contexts 0 and 1 (`CitationIntents`)

    part = classify_block(corpus, classifier, numbers, sections=True)      bytes of the block's file
    confidence, counts = read_block_file(path)                             (contexts, 3) confidences, and counts

A sentence that occurs several times in a block is classified once. Workers of an executor (`block_task`) open the corpus
and the classifier under the same paths as the driver, so every machine must see them there. Which contexts are
classified, and from which confidence an intent counts, is decided in `annotate.py`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import open_numbers, read_saved_arrays, write_numbers
from citeweave.core.errors import UserError
from citeweave.core.executor import Make, ShardTask
from citeweave.core.files import move
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import number_within, owners_of
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.batches import NOT_SAVED, SavedBatches
from citeweave.graph.intent_overlay import LABELS, CitationPlaces
from citeweave.intents.citances import Citance, read_corpus_citances
from citeweave.intents.classifier import IntentClassifier

COUNTS = ("annotated", "blank", "foreign", "unmarked")
"""What is counted of a block's citing sentences: classified, blank, in another language, without a citation mark."""

# Contexts and the citations they belong to


@dataclass(frozen=True, slots=True)
class BlockMentions:
    """Mentions in a block of citing sentences: pairs of contexts and the citations they belong to, each pair once."""

    first: int
    last: int
    contexts: NDArray[np.int64]
    """Numbers of contexts, ascending; (mentions,)."""

    citations: NDArray[np.int64]
    """Numbers of citations, -1 where the pair is no citation of the corpus; (mentions,)."""


def mention_blocks(corpus: Corpus, places: CitationPlaces, size: int, *, limit: int = 0) -> Iterator[BlockMentions]:
    """Yield the citing sentences of a corpus in blocks with their citations; at most `limit` per citation, 0 = all."""
    table = corpus.contexts
    seen = np.zeros(len(corpus.citing) if limit else 0, np.int64)
    for first in range(0, len(table), size):
        last = min(first + size, len(table))
        ends = table.cited_offsets[first : last + 1]
        numbers = owners_of(ends)  # (mentions,)
        pairs = np.unique(numbers * len(corpus) + table.cited[ends[0] : ends[-1]])  # a sentence may cite a paper twice
        numbers, cited = first + pairs // max(len(corpus), 1), pairs % max(len(corpus), 1)
        citations = places.find(table.citing[numbers], cited)
        if limit:
            linked = citations >= 0
            keep = ~linked
            keep[linked] = _count_before(citations[linked]) + seen[citations[linked]] < limit
            np.add.at(seen, citations[linked], 1)
            numbers, citations = numbers[keep], citations[keep]
        yield BlockMentions(first, last, numbers, citations)


class CitationIntents:
    """Intents of every citation, aggregated over the blocks of citing sentences added so far."""

    def __init__(self, citations: int) -> None:
        self.confidence = np.zeros((citations, len(LABELS)), np.float16)
        """Largest confidence of the classifier, (citations, 3)."""

        self.from_source = np.zeros(citations, np.uint8)
        """Intents that the source gives for contexts, (citations,)."""

        self.contexts = np.zeros(citations, np.int64)
        """Contexts with an intent, (citations,)."""

        self.top_counts = np.zeros((citations, len(LABELS)), np.uint32)
        """Number of contexts for which the classifier predicts each label, (citations, 3)."""

    def add(self, block: BlockMentions, confidence: NDArray[np.float16], from_source: NDArray[np.uint8]) -> None:
        """Add the intents of a block's contexts, (contexts, 3) and (contexts,), to the citations they belong to."""
        linked = block.citations >= 0
        citations, at = block.citations[linked], block.contexts[linked] - block.first
        has_intent = confidence[at].any(axis=1) | (from_source[at] > 0)
        citations, at = citations[has_intent], at[has_intent]
        np.add.at(self.contexts, citations, 1)
        np.bitwise_or.at(self.from_source, citations, from_source[at])
        predicted = from_source[at] == 0
        citations, own = citations[predicted], confidence[at[predicted]]  # (mentions,), (mentions, 3)
        np.maximum.at(self.confidence, citations, own)
        np.add.at(self.top_counts, (citations, own.argmax(axis=1)), 1)


def _count_before(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count how often each value occurs before its own position.

    >>> _count_before(np.array([7, 3, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(values, kind="stable")
    before = np.empty(len(values), np.int64)
    before[order] = number_within(np.unique(values, return_counts=True)[1])
    return before


# Classifying one block


class Classifier(Protocol):
    """Anything that predicts intents of blocks of citing sentences: a trained classifier, or a user's own."""

    @property
    def name(self) -> str: ...
    @property
    def hash(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    def predict(self, citances: Sequence[Citance], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        """Return the confidence of every label, (citances, labels)."""


def classify_block(
    corpus: Corpus,
    classifier: Classifier | None,
    numbers: NDArray[np.int64],
    *,
    sections: bool,
    saved: SavedBatches = NOT_SAVED,
) -> bytes:
    """Predict intents of a block of citing sentences and return the bytes of its file; blank texts get zeros."""
    confidence = np.zeros((len(numbers), len(LABELS)), np.float16)
    read = read_corpus_citances(corpus, numbers, sections=sections)
    filled = [row for row, citance in enumerate(read.citances) if citance.text.strip()]
    # some sources repeat a sentence for every paper it cites
    places: dict[Citance, int] = {}
    at = [places.setdefault(read.citances[row], len(places)) for row in filled]
    if places:
        assert classifier is not None
        confidence[filled] = _predict(classifier, list(places), saved)[:, label_columns(classifier)][at]
    file, counts = io.BytesIO(), (len(filled), len(numbers) - len(filled), read.foreign, read.unmarked)
    np.savez(file, confidence=confidence, counts=np.array(counts, np.int64))
    return file.getvalue()


def label_columns(classifier: Classifier) -> list[int]:
    """Return the column of a block's intent predictions for each of three intents; refuse a classifier that lacks one."""
    missing = [label for label in LABELS if label not in classifier.labels]
    if missing:
        raise UserError(
            f"classifier {classifier.name} knows {', '.join(classifier.labels)}; intents of citations are "
            f"{', '.join(LABELS)}, so it must know {missing[0]} too: leave out --classifier, or train one that does"
        )
    return [classifier.labels.index(label) for label in LABELS]


def _predict(classifier: Classifier, citances: list[Citance], saved: SavedBatches) -> NDArray[np.float32]:
    """Predict confidences with a classifier, and check their shape and that they are finite."""
    if isinstance(classifier, IntentClassifier):
        confidence = classifier.predict(citances, saved=saved)
    else:
        confidence = np.asarray(classifier.predict(citances), np.float32)
    if confidence.shape != (len(citances), len(classifier.labels)) or not np.isfinite(confidence).all():
        raise UserError(
            f"classifier {classifier.name} returned an array of shape {confidence.shape} for {len(citances):,} sentences "
            f"and {len(classifier.labels)} labels, or values that are not finite; train it again"
        )
    return confidence


def read_block_file(path: Path) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
    """Read from a block's file the confidences (contexts, 3), and the numbers of `COUNTS`, (4,)."""
    columns = read_saved_arrays(path, ["confidence", "counts"])
    return columns["confidence"], columns["counts"]


# Blocks classified by the workers of an executor


def block_task(
    corpus: Corpus, classifier: Classifier, selected: NDArray[np.bool_], folder: Path, *, block: int, sections: bool
) -> ShardTask:
    """Describe the blocks of citing sentences as an executor's task; `selected` (contexts,) are those to classify."""
    if not isinstance(classifier, IntentClassifier):
        raise UserError(
            f"classifier {classifier.name} exists only in this process, where the workers of --on cannot read it; give the "
            "folder of a classifier trained by `citeweave intents train`"
        )
    path, temporary = folder / "wanted.npy", folder / "wanted.npy.new"
    write_numbers(temporary, selected.astype(np.uint8))
    move(temporary, path)
    settings = {
        "corpus": [str(corpus.folder.absolute()), corpus.hash],
        "classifier": {
            "folder": str(classifier.folder.absolute()),
            "device": classifier.device,
            "runtime": classifier.runtime,
            "threads": classifier.threads,
        },
        "expected": classifier.hash,
        "wanted": str(path.absolute()),
        "block": block,
        "sections": sections,
    }
    maker = "citeweave.intents.blocks:make_block_reader"
    return ShardTask(maker, settings, "annotating", "contexts", gpu=classifier.device != "cpu")


def make_block_reader(
    corpus: list[str], classifier: dict[str, Any], expected: str, wanted: str, block: int, sections: bool
) -> Make:
    """Return a worker's function: number of a block of citing sentences -> the bytes that a local run would write."""
    folder, content = corpus
    opened, reader = Corpus.open(folder), IntentClassifier.open(**classifier)
    for place, actual, required in ((folder, opened.hash, content), (classifier["folder"], reader.hash, expected)):
        if actual != required:
            raise UserError(
                f"{place} on this worker ({actual[:12]}) differs from the one where annotating began ({required[:12]}); "
                "copy it here"
            )
    selected = open_numbers(Path(wanted), np.uint8)  # (contexts,)

    def make(number: int) -> bytes:
        first = number * block
        numbers = first + np.flatnonzero(selected[first : first + block])
        return classify_block(opened, reader, numbers, sections=sections)

    return make
