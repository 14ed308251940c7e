"""What annotating found, in numbers: coverage, distribution, agreement of several sentences, and what was odd.

    contexts     all 100, of_a_citation 85, annotated 80, given 5, empty 1, another_language 2, without_mark 3, ...
    citations    all 60, with_contexts 50, with_intent 45, share 0.75, share_of_those_with_contexts 0.9, unknown 5, ...
    agreement    citations 20, share 0.8, chance_corrected 0.61

`unknown` are citations of which sentences spoke, none surely enough. Agreement is about the classifier's likeliest
label, in citations of which it read two sentences or more.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Contexts
from citeweave.corpus.paper import Intent
from citeweave.graph.intent_overlay import LABELS


@dataclass(slots=True)
class Reading:
    """What became of contexts that were to be read."""

    annotated: int = 0
    blank: int = 0
    foreign: int = 0
    unmarked: int = 0

    def add(self, other: Reading) -> None:
        self.annotated += other.annotated
        self.blank += other.blank
        self.foreign += other.foreign
        self.unmarked += other.unmarked

    def numbers(self) -> tuple[int, ...]:
        return astuple(self)


def describe_contexts(table: Contexts, given: NDArray[np.uint8], linked: int, reading: Reading) -> dict[str, int]:
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
            f"{contexts['without_mark']:,} of {contexts['annotated']:,} sentences have no recognisable citation mark; "
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
