"""Annotate the citations of a corpus with intents: classify citing sentences, aggregate, write an overlay.

    overlay = annotate_intents(corpus, "intents/", default_classifier())
    overlay.mask, overlay.confidence, overlay.manifest.facts["citations"]

    sentence 1 cites paper 7:  background 0.9  method 0.1  result 0.0
    sentence 2 cites paper 7:  background 0.2  method 0.7  result 0.1
    the citation of 7:         background 0.9  method 0.7  result 0.1   ->  background, method

The confidence of an intent is the maximum over the sentences of one citation, not their mean: a citation can have
several intents, each expressed by another sentence, and a sentence with one intent is no evidence against another.
An intent counts from `min_confidence` on; a citation without one is unknown. Intents that the source gives for a
citation or for one of its sentences stay as they are.

Sentences are classified block by block (`blocks.py`), in this process or by an executor. Finished blocks are kept in
the partial folder, and batches of an unfinished one are saved from time to time, so an interrupted run resumes where it
stopped. Besides one block, memory holds some 40 bytes per citation and ten per context.

The manifest counts what was annotated:

    contexts     all 100, of_a_citation 85, annotated 80, given 5, empty 1, another_language 2, without_mark 3, ...
    citations    all 60, with_contexts 50, with_intent 45, share 0.75, share_of_those_with_contexts 0.9, unknown 5, ...
    agreement    citations 20, share 0.8, chance_corrected 0.61

`unknown` citations have classified sentences, none with enough confidence. Agreement compares the likeliest labels of
the sentences of one citation, where two or more were classified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, artifact_matches, new_artifact
from citeweave.core.errors import EmptyResultError
from citeweave.core.executor import Executor
from citeweave.core.files import write_atomically
from citeweave.core.progress import QUIET, Advance, Reporter
from citeweave.corpus.corpus import Contexts, Corpus
from citeweave.corpus.paper import Intent
from citeweave.encoders.batches import SavedBatches
from citeweave.graph.intent_overlay import (
    KIND,
    LABELS,
    VERSION,
    CitationPlaces,
    IntentOverlay,
    OverlayWriter,
    confidence_from_mask,
    mask_from_confidence,
)
from citeweave.intents.blocks import (
    COUNTS,
    BlockMentions,
    CitationIntents,
    block_task,
    classify_block,
    label_columns,
    mention_blocks,
    read_block_file,
)
from citeweave.intents.blocks import Classifier as Classifier
from citeweave.intents.options import AnnotateOptions

_SCAN = 1 << 16
"""Contexts whose citations are looked up at a time, before any is classified."""


def annotate_intents(
    corpus: Corpus,
    folder: str | Path,
    classifier: Classifier | None,
    options: AnnotateOptions | None = None,
    *,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
    executor: Executor | None = None,
) -> IntentOverlay:
    """Annotate the citations of a corpus with intents (background, method, result), read from its citing sentences.

    Writes an overlay beside the corpus, which stays as it is; an existing equal one is opened. `default_classifier()` of
    `citeweave.intents.classifier` is the one that comes with the package.

    Without a classifier (None) the overlay holds only the intents given by the source.
    """
    folder, options = Path(folder), options or AnnotateOptions()
    recipe = {
        "corpus": corpus.hash,
        "classifier": None if classifier is None else classifier.hash,
        "least": options.min_confidence,
        "keep_given": options.keep_given,
        "sections": options.sections,
        "most_contexts": options.max_contexts,
    }
    if not artifact_matches(folder, KIND, VERSION, recipe):
        run = _Annotation(corpus, classifier, options)
        run.check()
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as artifact:
            run.write(artifact, reporter, executor)
            artifact.finish()
    return IntentOverlay.open(folder)


class _Annotation:
    """Run of annotating: selects contexts, classifies missing blocks, and writes the overlay."""

    def __init__(self, corpus: Corpus, classifier: Classifier | None, options: AnnotateOptions) -> None:
        self._corpus, self._classifier, self._options = corpus, classifier, options
        self._table = corpus.contexts
        self._places = CitationPlaces(corpus)
        if classifier is not None:
            label_columns(classifier)  # fails before anything is read
        own = self._table.intents if options.keep_given else np.zeros(len(self._table), np.uint8)
        self._from_source: NDArray[np.uint8] = own  # (contexts,)
        self._selected, self._linked = self._select()

    def _select(self) -> tuple[NDArray[np.bool_], int]:
        """Select the contexts to classify, (contexts,), and count those that belong to a citation of the corpus."""
        selected, linked = np.zeros(len(self._table), bool), 0
        for block in self._blocks(_SCAN):
            selected[block.contexts] = True
            linked += len(np.unique(block.contexts[block.citations >= 0]))
        selected &= (self._from_source == 0) & (self._table.texts.lengths() > 0)
        return selected & (self._classifier is not None), linked

    def check(self) -> None:
        """Refuse a corpus without citations, citing sentences or intents to annotate."""
        corpus, from_source = self._corpus, self._options.keep_given and bool(self._corpus.intents.any())
        instead = "recipes such as specter_cl and scincl need no intents"
        if not len(corpus.citing):
            raise EmptyResultError(
                f"{corpus.folder} has no citations between its papers, so there is nothing to annotate; import the "
                "citing and the cited papers together, or add cited ones with --outside keep"
            )
        if from_source or (self._linked and (self._classifier is not None or self._from_source.any())):
            return
        if self._linked:
            raise EmptyResultError(
                f"the source of {corpus.folder} gave no intents, and no classifier is to annotate its citing sentences; "
                "leave out --classifier none"
            )
        if not len(self._table):
            raise EmptyResultError(
                f"{corpus.folder} has no citing sentences and no intents from its source; import contexts (S2ORC, "
                f"unarXive, JATS, GROBID, Semantic Scholar citations, or lines of contexts). Without them: {instead}"
            )
        raise EmptyResultError(
            f"none of the {len(self._table):,} citing sentences of {corpus.folder} belongs to a citation between its "
            f"papers; import the papers that cite and are cited. Without them: {instead}"
        )

    def write(self, artifact: ArtifactWriter, reporter: Reporter, executor: Executor | None = None) -> None:
        """Annotate the citations: classify missing blocks, aggregate them, write the overlay's columns and statistics."""
        intents, counts = CitationIntents(len(self._corpus.citing)), np.zeros(len(COUNTS), np.int64)
        out, work = OverlayWriter(artifact), artifact.scratch_folder("blocks")
        try:
            with reporter.task("annotating", int(self._selected.sum()), "contexts") as advance:
                self._classify_missing(work, advance, executor)
            for block in self._blocks(self._options.block):
                path, numbers = self._block_file(work, block.first)
                predicted, counted = read_block_file(path)
                own = np.array(self._from_source[block.first : block.last])  # (contexts,)
                confidence = confidence_from_mask(own)  # (contexts, 3)
                confidence[numbers - block.first] = predicted
                out.append_contexts(self._decide(own, confidence), confidence)
                intents.add(block, confidence, own)
                counts += counted
        finally:
            out.close()
        own = intents.from_source | (self._corpus.intents if self._options.keep_given else np.uint8(0))  # (citations,)
        from_source = own > 0
        confidence = np.where(from_source[:, None], confidence_from_mask(own), intents.confidence)  # (citations, 3)
        mask = self._decide(own, confidence)
        out.write_citations(mask, confidence, intents.contexts, from_source)
        statistics = {
            "corpus": self._corpus.hash,
            "corpus_folder": str(self._corpus.folder),
            "classifier": "" if self._classifier is None else self._classifier.name,
            "classifier_hash": "" if self._classifier is None else self._classifier.hash,
            "least": self._options.min_confidence,
            "contexts": _describe_contexts(self._table, self._from_source, self._linked, *counts.tolist()),
            **_describe_citations(mask, confidence, from_source, intents.contexts, intents.top_counts),
        }
        if not self._options.keep_given and self._corpus.intents.any():
            statistics["agrees_with_source"] = _agreement_with_source(self._corpus.intents, confidence)
        artifact.facts |= {**statistics, "remarks": _warnings(statistics)}

    def _blocks(self, size: int) -> Iterator[BlockMentions]:
        return mention_blocks(self._corpus, self._places, size, limit=self._options.max_contexts)

    def _classify_missing(self, work: Path, advance: Advance, executor: Executor | None) -> None:
        """Classify every block that no earlier run has finished."""
        firsts = range(0, len(self._table), self._options.block)
        parts = [self._block_file(work, first) for first in firsts]
        missing = [number for number, (path, _) in enumerate(parts) if not path.exists()]
        advance(int(self._selected.sum()) - sum(len(parts[number][1]) for number in missing))
        for number, part in self._classify(missing, parts, work, executor):
            path, numbers = parts[number]
            write_atomically(path, part)
            self._saved(path).remove()
            advance(len(numbers))

    def _classify(
        self, missing: list[int], parts: list[tuple[Path, NDArray[np.int64]]], work: Path, executor: Executor | None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield number and bytes of every missing block; only blocks with something to classify go to the executor."""
        if executor is not None and self._classifier is not None and self._selected.any():
            block, sections = self._options.block, self._options.sections
            task = block_task(self._corpus, self._classifier, self._selected, work, block=block, sections=sections)
            yield from executor.make(task, [number for number in missing if len(parts[number][1])])
            missing = [number for number in missing if not len(parts[number][1])]
        for number in missing:
            path, numbers = parts[number]
            saved, sections = self._saved(path), self._options.sections
            yield number, classify_block(self._corpus, self._classifier, numbers, sections=sections, saved=saved)

    def _saved(self, path: Path) -> SavedBatches:
        """Return the saved batches of an unfinished block."""
        return SavedBatches(path.with_suffix(""), every=self._options.save_every)

    def _block_file(self, work: Path, first: int) -> tuple[Path, NDArray[np.int64]]:
        """Return the file of a block, and the numbers of its contexts to classify."""
        numbers = first + np.flatnonzero(self._selected[first : first + self._options.block])
        # named by its contexts, since another block size makes other blocks
        return work / f"{first:012d}-{hashlib.sha256(numbers.tobytes()).hexdigest()[:32]}.npz", numbers

    def _decide(self, own: NDArray[np.uint8], confidence: NDArray[np.float16]) -> NDArray[np.uint8]:
        """Return the intents as bits: those of the source where it gives some, else those with enough confidence."""
        return np.where(own > 0, own, mask_from_confidence(confidence, self._options.min_confidence))


def _agreement_with_source(from_source: NDArray[np.uint8], confidence: NDArray[np.float16]) -> dict[str, Any]:
    """Measure how often a citation's likeliest predicted intent is one that the source names."""
    named = confidence_from_mask(np.asarray(from_source)) > 0  # (citations, 3)
    both = np.flatnonzero(named.any(axis=1) & confidence.any(axis=1))
    agree = named[both, confidence[both].argmax(axis=1)]
    return {"citations": len(both), "share": round(float(agree.mean()), 4) if len(both) else None}


# Statistics of an annotation


def _describe_contexts(
    table: Contexts,
    from_source: NDArray[np.uint8],
    linked: int,
    annotated: int,
    blank: int,
    foreign: int,
    unmarked: int,
) -> dict[str, int]:
    """Count the contexts of a corpus: annotated, with the source's intents, empty, in another language, unmarked."""
    return {
        "all": len(table),
        "of_a_citation": linked,
        "cite_no_paper_of_the_corpus": int((np.diff(table.cited_offsets) == 0).sum()),
        "annotated": annotated,
        "given": int((from_source > 0).sum()),
        "empty": int((table.texts.lengths() == 0).sum()) + blank,
        "another_language": foreign,
        "without_mark": unmarked,
    }


def _describe_citations(
    mask: NDArray[np.uint8],
    confidence: NDArray[np.float16],
    from_source: NDArray[np.bool_],
    contexts: NDArray[np.int64],
    top_counts: NDArray[np.uint32],
) -> dict[str, Any]:
    """Return coverage, distribution, agreement and mean confidence of citations' intents; shares of nothing are None."""
    has_intent, has_context = mask > 0, contexts > 0
    classified = top_counts.any(axis=1) & ~from_source
    sizes = np.bincount(sum(((mask >> bit) & 1 for bit in range(8)), np.zeros(len(mask), np.int64)), minlength=4)
    return {
        "citations": {
            "all": len(mask),
            "with_contexts": int(has_context.sum()),
            "with_intent": int(has_intent.sum()),
            "share": _share(has_intent.sum(), len(mask)),
            "share_of_those_with_contexts": _share((has_intent & has_context).sum(), has_context.sum()),
            "given": int(from_source.sum()),
            "unknown": int((classified & ~has_intent).sum()),
            "unknown_share": _share((classified & ~has_intent).sum(), classified.sum()),
        },
        "intents": {
            name: count
            for name, count in ((str(bit.name).lower(), int(((mask & bit) > 0).sum())) for bit in Intent if bit)
            if count or name in LABELS
        },
        "intents_per_citation": {str(size): int(count) for size, count in enumerate(sizes)},
        "agreement": describe_agreement(top_counts),
        "mean_confidence": _mean(confidence[classified].max(axis=1, initial=0)),
    }


def describe_agreement(top_counts: NDArray[np.integer[Any]]) -> dict[str, Any]:
    """Measure how often all contexts of an annotated citation agree in predicted intent, also corrected for chance.

    The second is Fleiss' kappa with as many raters as a citation has contexts (Fleiss 1971; for numbers that differ,
    Fleiss, Levin and Paik 2003, 18.3): the mean over citations of the share of agreeing pairs.

    >>> describe_agreement(np.array([[2, 0, 0], [0, 2, 0], [1, 1, 0], [1, 0, 0]]))
    {'citations': 3, 'share': 0.6667, 'chance_corrected': 0.3333}
    """
    counts = top_counts[top_counts.sum(axis=1) > 1].astype(np.float64)  # (citations, 3)
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


def _warnings(statistics: dict[str, Any]) -> list[str]:
    """Return warnings to read before training on these intents."""
    warnings, citations, contexts = [], statistics["citations"], statistics["contexts"]
    absent = [label for label in LABELS if not statistics["intents"][label]]
    if len(absent) == len(LABELS):
        warnings.append(
            "no citation has the intent background, method or result: recipes with aspects cannot run on this; "
            "lower --min-confidence, or use a recipe without intents such as specter_cl"
        )
    elif absent:
        present = [label for label in LABELS if label not in absent]
        only = f"; {present[0]} is the only intent, so intents distinguish nothing" if len(present) == 1 else ""
        warnings.append(
            f"no citation has the intent {' or '.join(absent)}: recipes that learn the aspect {' or '.join(absent)} "
            f"(sciaspect and its variants) cannot run{only}; recipes without intents such as specter_cl can"
        )
    if not contexts["of_a_citation"]:
        warnings.append(
            "no citing sentence belongs to a citation between papers of the corpus: "
            "the overlay has only the intents that the source gave; import contexts for the rest"
        )
    if contexts["another_language"]:
        warnings.append(
            f"{contexts['another_language']:,} of {contexts['annotated']:,} sentences look like another language than "
            "English; they are annotated, but less reliably"
        )
    if contexts["without_mark"]:
        warnings.append(
            f"{contexts['without_mark']:,} of {contexts['annotated']:,} sentences have no recognizable citation mark; "
            "they are classified without one"
        )
    if citations["all"] and citations["with_contexts"] < 0.5 * citations["all"]:
        warnings.append(
            f"only {citations['with_contexts']:,} of {citations['all']:,} citations have an annotated citing sentence"
        )
    return warnings


def _share(part: Any, total: Any) -> float | None:
    return round(float(part) / float(total), 4) if total else None


def _mean(values: NDArray[np.float16]) -> float | None:
    return round(float(values.mean(dtype=np.float64)), 4) if len(values) else None
