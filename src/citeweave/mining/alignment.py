"""Alignment: for an anchor and its positive, the sentence of either abstract in which the two are alike.

    aligned = align_samples(corpus, samples, load_encoder("minilm"), "aligned/", AlignmentOptions(by="contexts"))
    aligned.alignment.anchor_sentences[0], aligned.alignment.sentences[0]          of the first positive

    contexts     in either abstract the sentence nearest to any sentence that cites both papers (ASPIRE's ts)
    abstracts    the two sentences that are nearest to each other (ASPIRE's abs)

Near is a large dot product of vectors that a frozen encoder makes of single sentences (Mysore et al., NAACL 2022,
section 3.2.2). Writes new samples with everything of the old ones; those are not touched. Trains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.writing import ArtefactWriter, matches, new_artefact
from citeweave.columns import write_numbers
from citeweave.corpus.corpus import Contexts, Corpus
from citeweave.encoders.encoder import Encoder
from citeweave.errors import EmptyResultError
from citeweave.files import link_or_copy
from citeweave.mining.aligning.matching import Match, best_match
from citeweave.mining.aligning.options import CONTEXTS, AlignmentOptions
from citeweave.mining.aligning.text_vectors import TextVectors, encode_texts
from citeweave.mining.aligning.texts import AlignmentTexts, gather_texts
from citeweave.mining.sample_blocks import Alignment
from citeweave.mining.samples import ALIGNMENT_COLUMNS, KIND, VERSION, Samples
from citeweave.progress import QUIET, Reporter

PAIRS = 1024
"""Pairs whose vectors are in memory at a time."""

REASONS = (
    "no citing sentence",
    "citing sentences do not cite both papers",
    "anchor without sentences",
    "positive without sentences",
    "no vector of a sentence",
)
"""Why a pair is not aligned; the first that holds counts."""

_OPTIONS = AlignmentOptions()
_ALIGNED = -1


def align_samples(
    corpus: Corpus,
    samples: Samples,
    encoder: Encoder,
    folder: str | Path,
    options: AlignmentOptions = _OPTIONS,
    *,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Samples:
    """Samples with the aligned sentences of every positive, as a new folder; the same call again opens it."""
    folder = Path(folder)
    samples.check_corpus(corpus.hash, corpus.folder)
    recipe = {"samples": samples.hash, "corpus": corpus.hash, "by": options.by, "revision": encoder.revision}
    if matches(folder, KIND, VERSION, recipe):
        reporter.say(f"{folder} is there already: same samples, method and model")
        return Samples.open(folder)
    with new_artefact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        pairs = pairs_of(corpus, samples, options)
        outcome = _align(corpus, pairs, encoder, writer, reporter)
        counts = _counts(outcome)
        if not counts["kept"]:
            raise EmptyResultError(_nothing(samples, options, counts["rejected"]))
        for name in samples.manifest.files:
            if name not in ALIGNMENT_COLUMNS.values():  # samples that were aligned before are aligned anew
                link_or_copy(samples.folder / name, writer.folder / name)
        for attribute, name in ALIGNMENT_COLUMNS.items():
            write_numbers(writer.folder / name, getattr(outcome.alignment, attribute))
        told = {"by": options.by, "model": encoder.name, "revision": encoder.revision, "samples": samples.hash}
        writer.facts |= {**samples.manifest.facts, "alignment": {**told, "pairs": counts}}
        writer.finish()
    return Samples.open(folder)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Every positive with its anchor, and the citing sentences through which they are aligned."""

    anchors: NDArray[np.int32]
    positives: NDArray[np.int32]
    offsets: NDArray[np.int64]
    """Shape (pairs + 1,): the contexts of each pair."""

    contexts: NDArray[np.int64]
    state: NDArray[np.int8]
    """Shape (pairs,): -1 = can be aligned, else a place in REASONS."""

    through_contexts: bool

    def __len__(self) -> int:
        return len(self.anchors)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What is filled in as pairs are aligned."""

    alignment: Alignment
    state: NDArray[np.int8]
    """As in `Pairs`."""

    @property
    def left(self) -> NDArray[np.int64]:
        """Pairs that can be aligned, as far as is known."""
        return np.flatnonzero(self.state == _ALIGNED)


def pairs_of(corpus: Corpus, samples: Samples, options: AlignmentOptions) -> Pairs:
    """The pairs of samples; only contexts that cite both papers count, as those of a sample are of its first positive."""
    owner = samples.positives.owners()  # (pairs,)
    anchors, positives = samples.anchors[owner], np.asarray(samples.positives.rows)
    state = np.full(len(owner), _ALIGNED, np.int8)
    if options.by != CONTEXTS:
        empty = np.zeros(len(owner) + 1, np.int64)
        return Pairs(anchors, positives, empty, np.zeros(0, np.int64), state, through_contexts=False)
    counts = np.diff(samples.context_offsets)[owner]
    pair = np.repeat(np.arange(len(owner)), counts)  # (contexts of pairs,)
    place = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    context = samples.contexts[np.repeat(samples.context_offsets[owner], counts) + place]
    both = _cites(corpus.contexts, context, anchors[pair]) & _cites(corpus.contexts, context, positives[pair])
    kept = np.bincount(pair[both], minlength=len(owner))
    state[kept == 0] = 1
    state[counts == 0] = 0
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    return Pairs(anchors, positives, offsets, context[both], state, through_contexts=True)


def _cites(table: Contexts, contexts: NDArray[np.int64], rows: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether each context cites the paper beside it."""
    counts = table.cited_offsets[contexts + 1] - table.cited_offsets[contexts]
    entry = np.repeat(np.arange(len(contexts)), counts)  # (citations,)
    place = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
    hit = table.cited[table.cited_offsets[contexts[entry]] + place] == rows[entry]
    found = np.zeros(len(contexts), bool)
    found[entry[hit]] = True
    return found


def _align(corpus: Corpus, pairs: Pairs, encoder: Encoder, writer: ArtefactWriter, reporter: Reporter) -> _Outcome:
    """The sentences of every pair, and why some have none."""
    outcome = _Outcome(_unaligned(len(pairs)), pairs.state.copy())
    left = outcome.left
    if not len(left):
        return outcome
    papers = np.union1d(pairs.anchors[left], pairs.positives[left]).astype(np.int64)
    texts = gather_texts(corpus, papers, np.unique(pairs.contexts), writer.work("texts"), reporter=reporter)
    outcome.state[left[texts.counts(pairs.positives[left]) == 0]] = 3
    outcome.state[left[texts.counts(pairs.anchors[left]) == 0]] = 2
    left = outcome.left
    if not len(left):
        return outcome
    vectors = encode_texts(texts, encoder, writer.work("vectors"), reporter=reporter)
    with reporter.task("aligning", len(left), "pairs") as advance:
        for start in range(0, len(left), PAIRS):
            block = left[start : start + PAIRS]
            _match_block(pairs, block, texts, vectors, outcome)
            advance(len(block))
    return outcome


def _match_block(
    pairs: Pairs, block: NDArray[np.int64], texts: AlignmentTexts, vectors: TextVectors, outcome: _Outcome
) -> None:
    """Fill in the sentences of some pairs."""
    of_anchor = [texts.of_paper(row) for row in pairs.anchors[block].tolist()]
    of_positive = [texts.of_paper(row) for row in pairs.positives[block].tolist()]
    own = [pairs.contexts[pairs.offsets[at] : pairs.offsets[at + 1]] for at in block.tolist()]
    of_contexts = [texts.of_contexts(contexts) for contexts in own]
    used = np.unique(np.concatenate([*of_anchor, *of_positive, *of_contexts]))
    matrix = vectors.take(used)  # (texts of the block, dimension)
    found = outcome.alignment
    for at, contexts, *numbers in zip(block.tolist(), own, of_anchor, of_positive, of_contexts, strict=True):
        anchor, positive, cited = (matrix[np.searchsorted(used, each)] for each in numbers)  # each (texts, dimension)
        if pairs.through_contexts:
            left, right = best_match(anchor, cited), best_match(positive, cited)
        else:
            left = best_match(anchor, positive)
            right = None if left is None else Match(left.other, left.sentence, left.similarity)
        if left is None or right is None:
            outcome.state[at] = 4
            continue
        found.anchor_sentences[at], found.sentences[at] = left.sentence, right.sentence
        found.anchor_similarities[at], found.similarities[at] = left.similarity, right.similarity
        if pairs.through_contexts:
            found.anchor_contexts[at], found.contexts[at] = contexts[left.other], contexts[right.other]


def _unaligned(pairs: int) -> Alignment:
    return Alignment(
        anchor_sentences=np.full(pairs, -1, np.int16),
        sentences=np.full(pairs, -1, np.int16),
        anchor_contexts=np.full(pairs, -1, np.int64),
        contexts=np.full(pairs, -1, np.int64),
        anchor_similarities=np.full(pairs, np.nan, np.float32),
        similarities=np.full(pairs, np.nan, np.float32),
    )


def _counts(outcome: _Outcome) -> dict[str, Any]:
    """Pairs read, kept and rejected by reason."""
    numbers = {reason: int((outcome.state == place).sum()) for place, reason in enumerate(REASONS)}
    rejected = {reason: number for reason, number in numbers.items() if number}
    return {"read": len(outcome.state), "kept": len(outcome.left), "rejected": rejected}


def _nothing(samples: Samples, options: AlignmentOptions, rejected: dict[str, int]) -> str:
    reasons = "; ".join(f"{number:,} pairs: {reason}" for reason, number in rejected.items())
    where = f"{samples.folder}: no pair could be aligned by {options.by} ({reasons})"
    if options.by == CONTEXTS and REASONS[0] in rejected:
        return (
            f"{where}; mine with a recipe whose samples come from citing sentences, such as aspire, or --by abstracts"
        )
    return f"{where}; give papers with abstracts, or another model"
