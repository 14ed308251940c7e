"""What annotating found, in numbers: coverage, distribution, agreement of several sentences, and what was odd.

    contexts     all 100, of_a_citation 85, annotated 80, given 5, empty 1, another_language 2, without_mark 3, ...
    citations    all 60, with_contexts 50, with_intent 45, share 0.75, share_of_those_with_contexts 0.9, unknown 5, ...
    agreement    citations 20, share 0.8, chance_corrected 0.61

`unknown` are citations of which sentences spoke, none surely enough. Agreement is about the classifier's likeliest
label, in citations of which it read two sentences or more.

Which citations a corpus's citing sentences belong to, and what these have told of each of them so far.

    context 0 of paper 5: cites 7, 9        mentions: (0, citation 5-7), (0, citation 5-9)
    context 1 of paper 5: cites 7                     (1, citation 5-7)
    votes for citation 5-7: those of contexts 0 and 1

Does not read sentences, and does not say which intents are sure: `annotating.py` does both.

One block of citing sentences, read by a classifier: what a part of an annotation holds.

    part = read_block(corpus, classifier, numbers, sections=True)      bytes, as its file holds them
    spoken, reading = read_part(path)                                  (contexts, 3) confidences, and counts

A sentence that stands several times in a block is read once. Does not say which contexts are read, nor what their
confidences mean for a citation: `annotating.py` does.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import read_kept
from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Contexts, Corpus
from citeweave.corpus.paper import Intent
from citeweave.encoders.batches import NOT_SAVED, SavedBatches
from citeweave.graph.intent_overlay import LABELS, CitationPlaces
from citeweave.intents.citances import Citance, read_citances
from citeweave.intents.classifier import IntentClassifier


@dataclass(slots=True)
class AnnotationCounts:
    """What became of contexts that were to be read."""

    annotated: int = 0
    blank: int = 0
    foreign: int = 0
    unmarked: int = 0

    def add(self, other: AnnotationCounts) -> None:
        self.annotated += other.annotated
        self.blank += other.blank
        self.foreign += other.foreign
        self.unmarked += other.unmarked

    def numbers(self) -> tuple[int, ...]:
        return astuple(self)


def describe_contexts(
    table: Contexts, given: NDArray[np.uint8], linked: int, reading: AnnotationCounts
) -> dict[str, int]:
    """Contexts by what became of them."""
    return {
        "all": len(table),
        "of_a_citation": linked,
        "cite_no_paper_of_the_corpus": int((np.diff(table.cited_offsets) == 0).sum()),
        "annotated": reading.annotated,
        "given": int((given > 0).sum()),
        "empty": int((table.texts.lengths() == 0).sum()) + reading.blank,
        "another_language": reading.foreign,
        "without_mark": reading.unmarked,
    }


def describe_citations(
    mask: NDArray[np.uint8],
    confidence: NDArray[np.float16],
    given: NDArray[np.bool_],
    contexts: NDArray[np.int64],
    tops: NDArray[np.uint32],
) -> dict[str, Any]:
    """Coverage, distribution, agreement and mean confidence; shares are None where there is nothing to share."""
    intended, spoken = mask > 0, contexts > 0
    heard = tops.any(axis=1) & ~given  # the classifier decides
    sizes = np.bincount(sum(((mask >> bit) & 1 for bit in range(8)), np.zeros(len(mask), np.int64)), minlength=4)
    return {
        "citations": {
            "all": len(mask),
            "with_contexts": int(spoken.sum()),
            "with_intent": int(intended.sum()),
            "share": _share(intended.sum(), len(mask)),
            "share_of_those_with_contexts": _share((intended & spoken).sum(), spoken.sum()),
            "given": int(given.sum()),
            "unknown": int((heard & ~intended).sum()),
            "unknown_share": _share((heard & ~intended).sum(), heard.sum()),
        },
        "intents": {
            name: count
            for name, count in ((str(bit.name).lower(), int(((mask & bit) > 0).sum())) for bit in Intent if bit)
            if count or name in LABELS
        },
        "intents_per_citation": {str(size): int(count) for size, count in enumerate(sizes)},
        "agreement": describe_agreement(tops),
        "mean_confidence": _mean(confidence[heard].max(axis=1, initial=0)),
    }


def describe_agreement(tops: NDArray[np.integer[Any]]) -> dict[str, Any]:
    """How often all contexts of one citation have the same likeliest label, and the same beyond chance.

    The second is Fleiss' kappa with as many raters as a citation has contexts (Fleiss 1971; for numbers that differ,
    Fleiss, Levin and Paik 2003, 18.3): the share of agreeing pairs, of each citation, then their mean.

    >>> describe_agreement(np.array([[2, 0, 0], [0, 2, 0], [1, 1, 0], [1, 0, 0]]))
    {'citations': 3, 'share': 0.6667, 'chance_corrected': 0.3333}
    """
    counts = tops[tops.sum(axis=1) > 1].astype(np.float64)  # (citations, 3)
    if not len(counts):
        return {"citations": 0, "share": None, "chance_corrected": None}
    sizes = counts.sum(axis=1)
    agreeing = ((counts**2).sum(axis=1) - sizes) / (sizes * (sizes - 1))
    chance = float(((counts.sum(axis=0) / sizes.sum()) ** 2).sum())
    corrected = None if chance >= 1 else round((float(agreeing.mean()) - chance) / (1 - chance), 4)
    return {
        "citations": len(counts),
        "share": _share((counts.max(axis=1) == sizes).sum(), len(counts)),
        "chance_corrected": corrected,
    }


def remarks(facts: dict[str, Any]) -> list[str]:
    """Lines a person should read before training on these intents."""
    found, citations, contexts = [], facts["citations"], facts["contexts"]
    absent = [label for label in LABELS if not facts["intents"][label]]
    if len(absent) == len(LABELS):
        found.append(
            "no citation has the intent background, method or result: recipes with aspects cannot run on this; "
            "lower --least, or take a recipe without intents such as specter_cl"
        )
    elif absent:
        there = [label for label in LABELS if label not in absent]
        only = f"; {there[0]} is the only intent, so nothing can be told apart by intent" if len(there) == 1 else ""
        found.append(
            f"no citation has the intent {' or '.join(absent)}: recipes that learn the aspect {' or '.join(absent)} "
            f"(sciaspect and its relatives) cannot run{only}; recipes without intents such as specter_cl can"
        )
    if not contexts["of_a_citation"]:
        found.append(
            "no citing sentence belongs to a citation between papers of the corpus: "
            "only the intents that the source gave are here; import contexts for the rest"
        )
    if contexts["another_language"]:
        found.append(
            f"{contexts['another_language']:,} of {contexts['annotated']:,} sentences look like another language than "
            "English; they are annotated all the same, and less surely right"
        )
    if contexts["without_mark"]:
        found.append(
            f"{contexts['without_mark']:,} of {contexts['annotated']:,} sentences have no recognizable citation mark; "
            "they are read as a whole"
        )
    if citations["all"] and citations["with_contexts"] < 0.5 * citations["all"]:
        found.append(
            f"only {citations['with_contexts']:,} of {citations['all']:,} citations have a citing sentence that spoke"
        )
    return found


def _share(part: Any, whole: Any) -> float | None:
    return round(float(part) / float(whole), 4) if whole else None


def _mean(values: NDArray[np.float16]) -> float | None:
    return round(float(values.mean(dtype=np.float64)), 4) if len(values) else None


# Which citations a corpus's citing sentences belong to, and what these have told of each of them so far.


@dataclass(frozen=True, slots=True)
class BlockMentions:
    """Which citations the contexts of one block belong to; each pair once."""

    first: int
    last: int
    contexts: NDArray[np.int64]
    """Numbers of contexts, ascending; (mentions,)."""

    citations: NDArray[np.int64]
    """Numbers of citations, -1 where the pair is no citation of the corpus; (mentions,)."""


def mention_blocks(corpus: Corpus, places: CitationPlaces, size: int, *, limit: int = 0) -> Iterator[BlockMentions]:
    """The contexts in blocks, each with the citations that it counts for: at most so many of one citation, 0 = all."""
    table = corpus.contexts
    seen = np.zeros(len(corpus.citing) if limit else 0, np.int64)
    for first in range(0, len(table), size):
        last = min(first + size, len(table))
        ends = table.cited_offsets[first : last + 1]
        numbers = np.repeat(np.arange(last - first), np.diff(ends))  # (mentions,)
        pairs = np.unique(numbers * len(corpus) + table.cited[ends[0] : ends[-1]])  # a sentence may cite a paper twice
        numbers, cited = first + pairs // max(len(corpus), 1), pairs % max(len(corpus), 1)
        citations = places.find(table.citing[numbers], cited)
        if limit:
            known = citations >= 0
            keep = ~known
            keep[known] = _count_before(citations[known]) + seen[citations[known]] < limit
            np.add.at(seen, citations[known], 1)
            numbers, citations = numbers[keep], citations[keep]
        yield BlockMentions(first, last, numbers, citations)


@dataclass(frozen=True, slots=True)
class BlockIntents:
    """What is known of a block's contexts."""

    first: int
    mask: NDArray[np.uint8]
    confidence: NDArray[np.float16]
    given: NDArray[np.uint8]
    reading: AnnotationCounts


@dataclass
class Votes:
    """What the contexts told of every citation so far."""

    citations: int
    confidence: NDArray[np.float16] = field(init=False)
    """Largest confidence of the classifier, (citations, 3)."""

    given: NDArray[np.uint8] = field(init=False)
    """Intents that the source gave to contexts, (citations,)."""

    contexts: NDArray[np.int64] = field(init=False)
    """Contexts that spoke, (citations,)."""

    tops: NDArray[np.uint32] = field(init=False)
    """How many contexts the classifier gave each label as the likeliest, (citations, 3)."""

    def __post_init__(self) -> None:
        self.confidence = np.zeros((self.citations, len(LABELS)), np.float16)
        self.given = np.zeros(self.citations, np.uint8)
        self.contexts = np.zeros(self.citations, np.int64)
        self.tops = np.zeros((self.citations, len(LABELS)), np.uint32)

    def add(self, block: BlockMentions, told: BlockIntents) -> None:
        known = block.citations >= 0
        citations, at = block.citations[known], block.contexts[known] - told.first
        spoke = told.confidence[at].any(axis=1) | (told.given[at] > 0)
        citations, at = citations[spoke], at[spoke]
        np.add.at(self.contexts, citations, 1)
        np.bitwise_or.at(self.given, citations, told.given[at])
        heard = told.given[at] == 0
        citations, confidence = citations[heard], told.confidence[at[heard]]  # (mentions, 3)
        np.maximum.at(self.confidence, citations, confidence)
        np.add.at(self.tops, (citations, confidence.argmax(axis=1)), 1)


def _count_before(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each value stands before its own place.

    >>> _count_before(np.array([7, 3, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=values[order[:1]] - 1))
    counts = np.diff(np.append(starts, len(values)))
    before = np.empty(len(values), np.int64)
    before[order] = np.arange(len(values)) - np.repeat(starts, counts)
    return before


# One block of citing sentences, read by a classifier: what a part of an annotation holds.


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
        return _part_bytes(spoken, AnnotationCounts())
    read = read_citances(corpus, numbers, sections=sections)
    filled = np.array([bool(citance.text.strip()) for citance in read.citances])
    # sources that give a sentence once for every paper it cites repeat it
    places: dict[Citance, int] = {}
    at = [places.setdefault(citance, len(places)) for citance in read.citances if citance.text.strip()]
    if places:
        assert classifier is not None
        spoken[filled] = _predicted(classifier, list(places), saved)[:, label_columns(classifier)][at]
    done = int(filled.sum())
    return _part_bytes(spoken, AnnotationCounts(done, len(numbers) - done, read.foreign, read.unmarked))


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


def _part_bytes(spoken: NDArray[np.float16], reading: AnnotationCounts) -> bytes:
    file = io.BytesIO()
    np.savez(file, spoken=spoken, reading=np.array(reading.numbers(), np.int64))
    return file.getvalue()


def read_part(path: Path) -> tuple[NDArray[np.float16], AnnotationCounts]:
    """What the file of a block holds."""
    columns = read_kept(path, ["spoken", "reading"])
    return columns["spoken"], AnnotationCounts(*columns["reading"].tolist())
