"""One block of citing sentences, read by a classifier: what a part of an annotation holds.

    part = read_block(corpus, classifier, numbers, sections=True)      bytes, as its file holds them
    spoken, reading = read_part(path)                                  (contexts, 3) confidences, and counts

A sentence that stands several times in a block is read once. Does not say which contexts are read, nor what their
confidences mean for a citation: `annotating.py` does.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.arrays import read_kept
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.saved_batches import NOT_SAVED, SavedBatches
from citeweave.errors import UserError
from citeweave.graph.intent_overlay import LABELS
from citeweave.intents.annotation_facts import Reading
from citeweave.intents.citance_reading import read_citances
from citeweave.intents.classifier import IntentClassifier
from citeweave.intents.marking import Citance
from citeweave.progress import QUIET, Reporter


class Classifier(Protocol):
    """What tells intents of citing sentences."""

    @property
    def name(self) -> str: ...
    @property
    def hash(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    def predict(self, citances: Sequence[Citance], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        """Confidence of every label, (citances, labels)."""


def read_block(
    corpus: Corpus,
    classifier: Classifier | None,
    numbers: NDArray[np.int64],
    *,
    sections: bool,
    saved: SavedBatches = NOT_SAVED,
) -> bytes:
    """What the classifier makes of some contexts, (contexts, 3), zeros where a text is blank; with the counts of it."""
    spoken = np.zeros((len(numbers), len(LABELS)), np.float16)
    if not len(numbers):
        return _part_bytes(spoken, Reading())
    read = read_citances(corpus, numbers, sections=sections)
    filled = np.array([bool(citance.text.strip()) for citance in read.citances])
    # sources that give a sentence once for every paper it cites repeat it
    places: dict[Citance, int] = {}
    at = [places.setdefault(citance, len(places)) for citance in read.citances if citance.text.strip()]
    if places:
        assert classifier is not None
        spoken[filled] = _predicted(classifier, list(places), saved)[:, label_columns(classifier)][at]
    done = int(filled.sum())
    return _part_bytes(spoken, Reading(done, len(numbers) - done, read.foreign, read.unmarked))


def label_columns(classifier: Classifier) -> list[int]:
    """Where the classifier has each of the three labels."""
    missing = [label for label in LABELS if label not in classifier.labels]
    if missing:
        raise UserError(
            f"classifier {classifier.name} knows {', '.join(classifier.labels)}; intents of citations are "
            f"{', '.join(LABELS)}, so one that knows {missing[0]} too is needed: leave out --classifier, or train one"
        )
    return [classifier.labels.index(label) for label in LABELS]


def _predicted(classifier: Classifier, citances: list[Citance], saved: SavedBatches) -> NDArray[np.float32]:
    if isinstance(classifier, IntentClassifier):
        spoken = classifier.predict(citances, saved=saved)
    else:
        spoken = classifier.predict(citances)
    found = np.asarray(spoken, np.float32)
    if found.shape != (len(citances), len(classifier.labels)) or not np.isfinite(found).all():
        raise UserError(
            f"classifier {classifier.name} gave numbers of shape {found.shape} for {len(citances):,} sentences and "
            f"{len(classifier.labels)} labels, or some that are not finite; train it again"
        )
    return found


def _part_bytes(spoken: NDArray[np.float16], reading: Reading) -> bytes:
    file = io.BytesIO()
    np.savez(file, spoken=spoken, reading=np.array(reading.numbers(), np.int64))
    return file.getvalue()


def read_part(path: Path) -> tuple[NDArray[np.float16], Reading]:
    """What the file of a block holds."""
    columns = read_kept(path, ["spoken", "reading"])
    return columns["spoken"], Reading(*columns["reading"].tolist())
