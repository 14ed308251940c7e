"""Annotating: a classifier reads the citing sentences of a corpus, and every citation gets the intents they tell.

    overlay = annotate_intents(corpus, "intents/", default_classifier())
    overlay.mask, overlay.confidence, overlay.manifest.facts["citations"]

    sentence 1 cites paper 7:  background 0.9  method 0.1  result 0.0
    sentence 2 cites paper 7:  background 0.2  method 0.7  result 0.1
    the citation of 7:         background 0.9  method 0.7  result 0.1   ->  background, method

The confidence of an intent is the largest over the sentences of one citation, not their mean: a citation can have
several intents, each told by another sentence, and the sentences that tell of one are no evidence against the other.
Which intents are sure enough is `least`; a citation none of whose intents is, is unknown. What the source itself says,
on the citation or on one of its sentences, is kept as it is and nothing is added to it.

Sentences are read block by block (`block_reading.py`), here or by a crew. A block that is done is kept in the partial
folder, and of one that is not its batches are saved by time, so an interrupted run resumes where it stopped. Beside one block, memory holds some 40 bytes a citation and ten a
context.

Blocks of citing sentences that a crew reads: what its workers are told, and what they do with it.

    for number, part in crew.make(reading_work(corpus, classifier, wanted, folder, block=2048, sections=True), missing): ...

Which contexts are read the driver decides and writes beside the blocks; workers open the corpus and the classifier where
the driver did, so every machine must see them, and the output, under the same names. Only a classifier that has a folder
can be sent. Does not decide what is missing: `annotating.py` does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, matches, new_artifact
from citeweave.core.columns import open_numbers, write_numbers
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.executor import Executor, Make, ShardTask
from citeweave.core.files import move, write_whole
from citeweave.core.progress import QUIET, SAVE_EVERY, Advance, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.batches import SavedBatches
from citeweave.graph.intent_overlay import (
    KIND,
    VERSION,
    CitationPlaces,
    IntentOverlay,
    OverlayWriter,
    confidence_of,
    mask_of,
)
from citeweave.intents.blocks import (
    AnnotationCounts,
    BlockIntents,
    BlockMentions,
    Votes,
    describe_citations,
    describe_contexts,
    label_columns,
    mention_blocks,
    read_block,
    read_part,
    remarks,
)
from citeweave.intents.blocks import Classifier as Classifier
from citeweave.intents.classifier import IntentClassifier

_SCAN = 1 << 16
"""Contexts whose citations are looked up at a time, before any is read."""


@dataclass(frozen=True, slots=True)
class AnnotateOptions:
    """How to annotate."""

    least: float = 0.5
    """Confidence from which on an intent counts."""

    keep_given: bool = True
    """Intents that the source gave stay as they are; else the classifier reads those sentences too."""

    sections: bool = True
    """The classifier sees the section's heading where there is one."""

    most_contexts: int = 0
    """Sentences read of one citation, the first of them; 0 = all."""

    block: int = 2048
    """Sentences that are sorted by length together; changes nothing but how a network rounds in other batches."""

    save_every: float = SAVE_EVERY
    """Seconds of work that an interruption may cost, at most; with a crew it is a block of each worker."""

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise UserError(f"--least is {self.least}; it must be a confidence over 0 and up to 1, such as 0.5")
        if self.most_contexts < 0:
            raise UserError(f"--most-contexts is {self.most_contexts}; it must be 0 (all) or more")
        if self.block < 1:
            raise UserError(f"--block is {self.block}; it must be 1 or more sentences, such as 2048")


def annotate_intents(
    corpus: Corpus,
    folder: str | Path,
    classifier: Classifier | None,
    options: AnnotateOptions | None = None,
    *,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
    crew: Executor | None = None,
) -> IntentOverlay:
    """Find the intents of a corpus's citations and write them as an overlay; the same run again opens it.

    Without a classifier (None) the overlay holds what the source gave.
    """
    folder, options = Path(folder), options or AnnotateOptions()
    recipe = {
        "corpus": corpus.hash,
        "classifier": None if classifier is None else classifier.hash,
        "least": options.least,
        "keep_given": options.keep_given,
        "sections": options.sections,
        "most_contexts": options.most_contexts,
    }
    if not matches(folder, KIND, VERSION, recipe):
        run = _Annotation(corpus, classifier, options)
        run.check()
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as artifact:
            run.write(artifact, reporter, crew)
            artifact.finish()
    return IntentOverlay.open(folder)


class _Annotation:
    """One run over the contexts of a corpus."""

    def __init__(self, corpus: Corpus, classifier: Classifier | None, options: AnnotateOptions) -> None:
        self._corpus, self._classifier, self._options = corpus, classifier, options
        self._table = corpus.contexts
        self._places = CitationPlaces(corpus)
        if classifier is not None:
            label_columns(classifier)  # told before anything is read
        own = self._table.intents if options.keep_given else np.zeros(len(self._table), np.uint8)
        self._given: NDArray[np.uint8] = own  # (contexts,)
        self._wanted, self._linked = self._plan()

    def _plan(self) -> tuple[NDArray[np.bool_], int]:
        """Which contexts the classifier is to read, and how many belong to a citation of the corpus."""
        wanted, linked = np.zeros(len(self._table), bool), 0
        for block in self._blocks(_SCAN):
            wanted[block.contexts] = True
            linked += len(np.unique(block.contexts[block.citations >= 0]))
        wanted &= (self._given == 0) & (self._table.texts.lengths() > 0)
        return wanted & (self._classifier is not None), linked

    def check(self) -> None:
        """Refuse a corpus of which nothing can be told."""
        corpus, given = self._corpus, self._options.keep_given and bool(self._corpus.intents.any())
        instead = "recipes such as specter_cl and scincl need no intents"
        if not len(corpus.citing):
            raise EmptyResultError(
                f"{corpus.folder} has no citations between its papers, so there is nothing to annotate; import the "
                "citing and the cited papers together, or cited ones too with --outside keep"
            )
        if given or (self._linked and (self._classifier is not None or self._given.any())):
            return
        if self._linked:
            raise EmptyResultError(
                f"the source of {corpus.folder} gave no intents, and no classifier is to read its citing sentences; "
                "leave out --classifier none"
            )
        if not len(self._table):
            raise EmptyResultError(
                f"{corpus.folder} has no citing sentences and no intents of its source; import contexts (S2ORC, "
                f"unarXive, JATS, GROBID, Semantic Scholar citations, or lines of contexts). Without them: {instead}"
            )
        raise EmptyResultError(
            f"none of the {len(self._table):,} citing sentences of {corpus.folder} belongs to a citation between its "
            f"papers; import the papers that cite and are cited. Without them: {instead}"
        )

    def write(self, artifact: ArtifactWriter, reporter: Reporter, crew: Executor | None = None) -> None:
        """All columns and facts."""
        votes, reading = Votes(len(self._corpus.citing)), AnnotationCounts()
        out, work = OverlayWriter(artifact), artifact.work("blocks")
        try:
            with reporter.task("annotating", int(self._wanted.sum()), "contexts") as advance:
                self._fill(work, advance, crew)
            for block in self._blocks(self._options.block):
                told = self._tell(block, work)
                out.append_contexts(told.mask, told.confidence)
                votes.add(block, told)
                reading.add(told.reading)
        finally:
            out.close()
        mask, confidence, given = self._settle(votes)
        out.write_citations(mask, confidence, votes.contexts, given)
        facts = {
            "corpus": self._corpus.hash,
            "corpus_folder": str(self._corpus.folder),
            "classifier": "" if self._classifier is None else self._classifier.name,
            "classifier_hash": "" if self._classifier is None else self._classifier.hash,
            "least": self._options.least,
            "contexts": describe_contexts(self._table, self._given, self._linked, reading),
            **describe_citations(mask, confidence, given, votes.contexts, votes.tops),
        }
        if not self._options.keep_given and self._corpus.intents.any():
            facts["agrees_with_source"] = _agreement_with_source(self._corpus.intents, confidence)
        artifact.facts |= {**facts, "remarks": remarks(facts)}

    def _blocks(self, size: int) -> Iterator[BlockMentions]:
        return mention_blocks(self._corpus, self._places, size, limit=self._options.most_contexts)

    def _fill(self, work: Path, advance: Advance, crew: Executor | None) -> None:
        """Read every block that no earlier run had read."""
        firsts = range(0, len(self._table), self._options.block)
        parts = [self._part(work, first) for first in firsts]
        missing = [number for number, (path, _) in enumerate(parts) if not path.exists()]
        advance(int(self._wanted.sum()) - sum(len(parts[number][1]) for number in missing))
        for number, part in self._read(missing, parts, work, crew):
            path, numbers = parts[number]
            write_whole(path, part)
            self._saved(path).remove()
            advance(len(numbers))

    def _read(
        self, missing: list[int], parts: list[tuple[Path, NDArray[np.int64]]], work: Path, crew: Executor | None
    ) -> Iterator[tuple[int, bytes]]:
        """Number and content of every missing block; one in which nothing is to be read needs nobody else."""
        if crew is not None and self._classifier is not None and self._wanted.any():
            told = reading_work(
                self._corpus,
                self._classifier,
                self._wanted,
                work,
                block=self._options.block,
                sections=self._options.sections,
            )
            yield from crew.make(told, [number for number in missing if len(parts[number][1])])
            missing = [number for number in missing if not len(parts[number][1])]
        for number in missing:
            path, numbers = parts[number]
            saved, sections = self._saved(path), self._options.sections
            yield number, read_block(self._corpus, self._classifier, numbers, sections=sections, saved=saved)

    def _saved(self, path: Path) -> SavedBatches:
        """The batches of a block that is not done."""
        return SavedBatches(path.with_suffix(""), every=self._options.save_every)

    def _part(self, work: Path, first: int) -> tuple[Path, NDArray[np.int64]]:
        """The file of a block, and the contexts of it that are read."""
        numbers = first + np.flatnonzero(self._wanted[first : first + self._options.block])
        # named by what it holds: another block size makes other blocks
        return work / f"{first:012d}-{hashlib.sha256(numbers.tobytes()).hexdigest()[:32]}.npz", numbers

    def _tell(self, block: BlockMentions, work: Path) -> BlockIntents:
        """Masks and confidences of a block's contexts."""
        path, numbers = self._part(work, block.first)
        spoken, reading = read_part(path)
        given = np.array(self._given[block.first : block.last])
        confidence = confidence_of(given)  # (contexts of the block, 3)
        confidence[numbers - block.first] = spoken
        mask = np.where(given > 0, given, mask_of(confidence, self._options.least))
        return BlockIntents(block.first, mask, confidence, given, reading)

    def _settle(self, votes: Votes) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.bool_]]:
        """Mask, confidence and origin of every citation."""
        own = votes.given | (self._corpus.intents if self._options.keep_given else np.uint8(0))  # (citations,)
        given = own > 0
        confidence = np.where(given[:, None], confidence_of(own), votes.confidence)
        return np.where(given, own, mask_of(votes.confidence, self._options.least)), confidence, given


def _agreement_with_source(given: NDArray[np.uint8], confidence: NDArray[np.float16]) -> dict[str, Any]:
    """How often the likeliest intent of a citation is one that the source names, where both speak."""
    named = confidence_of(np.asarray(given)) > 0  # (citations, 3)
    both = np.flatnonzero(named.any(axis=1) & confidence.any(axis=1))
    agree = named[both, confidence[both].argmax(axis=1)]
    return {"citations": len(both), "share": round(float(agree.mean()), 4) if len(both) else None}


# Blocks of citing sentences that a crew reads: what its workers are told, and what they do with it.


def reading_work(
    corpus: Corpus, classifier: Classifier, wanted: NDArray[np.bool_], folder: Path, *, block: int, sections: bool
) -> ShardTask:
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
    maker = "citeweave.intents.annotate:reading_maker"
    return ShardTask(maker, given, "annotating", "contexts", gpu=classifier.device != "cpu")


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
