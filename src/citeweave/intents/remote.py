"""Blocks of citing sentences that a crew reads: what its workers are told, and what they do with it.

    for number, part in crew.make(reading_work(corpus, classifier, wanted, folder, block=2048, sections=True), missing): ...

Which contexts are read the driver decides and writes beside the blocks; workers open the corpus and the classifier where
the driver did, so every machine must see them, and the output, under the same names. Only a classifier that has a folder
can be sent. Does not decide what is missing: `annotating.py` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import open_numbers, write_numbers
from citeweave.corpus.corpus import Corpus
from citeweave.crew import Make, Work
from citeweave.errors import UserError
from citeweave.files import move
from citeweave.intents.block_reading import Classifier, read_block
from citeweave.intents.classifier import IntentClassifier


def reading_work(
    corpus: Corpus, classifier: Classifier, wanted: NDArray[np.bool_], folder: Path, *, block: int, sections: bool
) -> Work:
    """The blocks of an annotation as work for a crew; `wanted` says of every context whether it is read."""
    if not isinstance(classifier, IntentClassifier):
        raise UserError(
            f"classifier {classifier.name} is only in this process, where the workers of --on cannot read it; give the "
            "folder of a classifier that `citeweave intents train` made"
        )
    path = folder / "wanted.npy"
    temporary = path.with_name("wanted.npy.new")
    write_numbers(temporary, wanted.astype(np.uint8))
    move(temporary, path)
    given = {
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
    maker = "citeweave.intents.remote:reading_maker"
    return Work(maker, given, "annotating", "contexts", gpu=classifier.device != "cpu")


def reading_maker(
    corpus: list[str], classifier: dict[str, Any], expected: str, wanted: str, block: int, sections: bool
) -> Make:
    """A worker's side: number of a block -> the part that a run without a crew would write."""
    folder, content = corpus
    opened, reader = Corpus.open(folder), IntentClassifier.open(**classifier)
    for place, found, known in ((folder, opened.hash, content), (classifier["folder"], reader.hash, expected)):
        if found != known:
            raise UserError(
                f"{place} is another one here ({found[:12]}) than where annotating began ({known[:12]}); copy it"
            )
    is_read = open_numbers(Path(wanted), np.uint8)  # (contexts,)

    def make(number: int) -> bytes:
        first = number * block
        numbers = first + np.flatnonzero(is_read[first : first + block])
        return read_block(opened, reader, numbers, sections=sections)

    return make
