"""Sentence alignment: the sentences of two abstracts in which an anchor and its positive are alike.

    aligned = align_samples(corpus, samples, load_encoder("minilm"), "aligned/", AlignmentOptions(by="contexts"))
    aligned.alignment.anchor_sentences[0], aligned.alignment.sentences[0]          of the first positive

    contexts     in either abstract the sentence nearest to any sentence that cites both papers (ASPIRE's ts)
    abstracts    the two sentences that are nearest to each other (ASPIRE's abs)

Near is a large dot product of vectors that a frozen encoder makes of single sentences (Mysore et al., NAACL 2022,
section 3.2.2):

>>> best_match(np.array([[1.0, 0], [0, 1]]), np.array([[0, 0.5], [0, 2]]))
SentenceMatch(sentence=1, other=1, similarity=2.0)

Sentences are those of `corpus.text.sentence_texts`, numbered as sentence vectors are. A title is no sentence. Citing
sentences are used as they are, citation marks included, as in ASPIRE's code. Texts and vectors are on disk, and finished
blocks of vectors are reused by a later run. Writes new samples with everything of the old ones, which stay unchanged.
Trains nothing. `options.py` has the options, the `[alignment]` table of a recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, artifact_matches, new_artifact
from citeweave.core.columns import TextColumn, TextWriter, open_matrix, write_numbers
from citeweave.core.errors import EmptyResultError
from citeweave.core.files import link_or_copy, new_file
from citeweave.core.hash_keys import Keys, hash_texts
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import Ragged, spans, to_offsets
from citeweave.corpus.corpus import Contexts, Corpus
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.encoder import Encoder
from citeweave.mining.options import CONTEXTS, AlignmentOptions
from citeweave.mining.samples import ALIGNMENT_COLUMNS, KIND, VERSION, Alignment, Samples

Floats = NDArray[np.floating[Any]]


PAIRS_PER_BLOCK = 1024
"""Pairs whose vectors are in memory at a time."""

REASONS = (
    "no citing sentence",
    "citing sentences do not cite both papers",
    "anchor without sentences",
    "positive without sentences",
    "no vector of a sentence",
)
"""Why a pair is not aligned; the first reason that holds counts."""

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
    """Write samples with the aligned sentences of every positive to a new folder; the same call again opens it."""
    folder = Path(folder)
    samples.check_corpus(corpus.hash, corpus.folder)
    recipe = {"samples": samples.hash, "corpus": corpus.hash, "by": options.by, "revision": encoder.revision}
    if artifact_matches(folder, KIND, VERSION, recipe):
        reporter.say(f"{folder} already exists with the same samples, method and model")
        return Samples.open(folder)
    with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
        pairs = _positive_pairs(corpus, samples, options)
        outcome = _align(corpus, pairs, encoder, writer, reporter)
        counts = _counts(outcome)
        if not counts["kept"]:
            raise EmptyResultError(_no_alignment_message(samples, options, counts["rejected"]))
        for name in samples.manifest.files:
            if name not in [old for old, _ in ALIGNMENT_COLUMNS.values()]:  # aligned before: aligned again
                link_or_copy(samples.folder / name, writer.folder / name)
        for attribute, (name, _) in ALIGNMENT_COLUMNS.items():
            write_numbers(writer.folder / name, getattr(outcome.alignment, attribute))
        provenance = {"by": options.by, "model": encoder.name, "revision": encoder.revision, "samples": samples.hash}
        writer.facts |= {**samples.manifest.facts, "alignment": {**provenance, "pairs": counts}}
        writer.finish()
    return Samples.open(folder)


@dataclass(frozen=True, slots=True)
class PositivePairs(Ragged):
    """Pairs to align: every positive with its anchor, and the citing sentences through which they are aligned."""

    contexts: NDArray[np.int64]
    """Those of each pair, by its offsets."""

    anchors: NDArray[np.int32]
    positives: NDArray[np.int32]
    state: NDArray[np.int8]
    """Shape (pairs,): -1 = can be aligned, else an index into REASONS."""

    through_contexts: bool


@dataclass(frozen=True, slots=True)
class _AlignmentResult:
    """Aligned sentences of all pairs, filled in as they are matched, and why pairs are not aligned."""

    alignment: Alignment
    state: NDArray[np.int8]
    """As in `PositivePairs`."""

    @property
    def left(self) -> NDArray[np.int64]:
        """Pairs that can be aligned, as far as is known yet."""
        return np.flatnonzero(self.state == _ALIGNED)


def _positive_pairs(corpus: Corpus, samples: Samples, options: AlignmentOptions) -> PositivePairs:
    """List the pairs of anchor and positive of all samples, with the contexts that cite both papers."""
    owner = samples.positives.owners()  # (pairs,)
    anchors, positives = samples.anchors[owner], np.asarray(samples.positives.rows)
    state = np.full(len(owner), _ALIGNED, np.int8)
    if options.by != CONTEXTS:
        empty = np.zeros(len(owner) + 1, np.int64)
        return PositivePairs(empty, np.zeros(0, np.int64), anchors, positives, state, through_contexts=False)
    own = Ragged(samples.context_offsets)
    counts = own.lengths()[owner]
    pair = np.repeat(np.arange(len(owner)), counts)  # (contexts of pairs,)
    context = samples.contexts[own.places(owner)]
    both = _cites(corpus.contexts, context, anchors[pair]) & _cites(corpus.contexts, context, positives[pair])
    usable = np.bincount(pair[both], minlength=len(owner))
    state[usable == 0] = 1
    state[counts == 0] = 0
    return PositivePairs(to_offsets(usable), context[both], anchors, positives, state, through_contexts=True)


def _cites(table: Contexts, contexts: NDArray[np.int64], rows: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return whether each citing sentence cites the paper of the same position."""
    starts = table.cited_offsets[contexts]
    counts = table.cited_offsets[contexts + 1] - starts
    entry = np.repeat(np.arange(len(contexts)), counts)  # (citations,)
    hit = table.cited[spans(starts, counts)] == rows[entry]
    cites = np.zeros(len(contexts), bool)
    cites[entry[hit]] = True
    return cites


def _align(
    corpus: Corpus, pairs: PositivePairs, encoder: Encoder, writer: ArtifactWriter, reporter: Reporter
) -> _AlignmentResult:
    """Align the sentences of every pair: collect texts, encode them, and match them block by block."""
    outcome = _AlignmentResult(_unaligned(len(pairs)), pairs.state.copy())
    left = outcome.left
    if not len(left):
        return outcome
    papers = np.union1d(pairs.anchors[left], pairs.positives[left]).astype(np.int64)
    texts = _collect_texts(corpus, papers, np.unique(pairs.contexts), writer.scratch_folder("texts"), reporter)
    outcome.state[left[texts.counts(pairs.positives[left]) == 0]] = 3
    outcome.state[left[texts.counts(pairs.anchors[left]) == 0]] = 2
    left = outcome.left
    if not len(left):
        return outcome
    vectors = _encode_texts(texts, encoder, writer.scratch_folder("vectors"), reporter)
    with reporter.task("aligning", len(left), "pairs") as advance:
        for start in range(0, len(left), PAIRS_PER_BLOCK):
            block = left[start : start + PAIRS_PER_BLOCK]
            _match_block(pairs, block, texts, vectors, outcome)
            advance(len(block))
    return outcome


def _match_block(
    pairs: PositivePairs,
    block: NDArray[np.int64],
    texts: AlignmentTexts,
    vectors: Sequence[NDArray[np.float32]],
    outcome: _AlignmentResult,
) -> None:
    """Find the aligned sentences of some pairs and fill them into the result."""
    of_anchor = [texts.of_paper(row) for row in pairs.anchors[block].tolist()]
    of_positive = [texts.of_paper(row) for row in pairs.positives[block].tolist()]
    own = [pairs.contexts[pairs.span(at)] for at in block.tolist()]
    of_contexts = [texts.of_contexts(contexts) for contexts in own]
    used = np.unique(np.concatenate([*of_anchor, *of_positive, *of_contexts]))
    matrix = _take_vectors(vectors, used)  # (texts of the block, dimension)
    alignment = outcome.alignment
    for at, contexts, *numbers in zip(block.tolist(), own, of_anchor, of_positive, of_contexts, strict=True):
        anchor, positive, cited = (matrix[np.searchsorted(used, each)] for each in numbers)  # each (texts, dimension)
        if pairs.through_contexts:
            left, right = best_match(anchor, cited), best_match(positive, cited)
        else:
            left = best_match(anchor, positive)
            right = None if left is None else SentenceMatch(left.other, left.sentence, left.similarity)
        if left is None or right is None:
            outcome.state[at] = 4
            continue
        alignment.anchor_sentences[at], alignment.sentences[at] = left.sentence, right.sentence
        alignment.anchor_similarities[at], alignment.similarities[at] = left.similarity, right.similarity
        if pairs.through_contexts:
            alignment.anchor_contexts[at], alignment.contexts[at] = contexts[left.other], contexts[right.other]


def _unaligned(pairs: int) -> Alignment:
    """Return an alignment in which no pair has sentences yet."""
    types = [dtype for _, dtype in ALIGNMENT_COLUMNS.values()]
    return Alignment(*(np.full(pairs, np.nan if dtype == np.float32 else -1, dtype) for dtype in types))


def _counts(outcome: _AlignmentResult) -> dict[str, Any]:
    """Count the pairs that were aligned and those that were not, by reason."""
    numbers = {reason: int((outcome.state == place).sum()) for place, reason in enumerate(REASONS)}
    rejected = {reason: number for reason, number in numbers.items() if number}
    return {"read": len(outcome.state), "kept": len(outcome.left), "rejected": rejected}


def _no_alignment_message(samples: Samples, options: AlignmentOptions, rejected: dict[str, int]) -> str:
    reasons = "; ".join(f"{number:,} pairs: {reason}" for reason, number in rejected.items())
    where = f"{samples.folder}: no pair could be aligned by {options.by} ({reasons})"
    if options.by == CONTEXTS and REASONS[0] in rejected:
        return (
            f"{where}; mine with a recipe whose samples come from citing sentences, such as aspire, or --by abstracts"
        )
    return f"{where}; give papers with abstracts, or another model"


# The best match between sentences.


class SentenceMatch(NamedTuple):
    """The best matching sentences of two texts, and their similarity."""

    sentence: int
    other: int
    similarity: float


def best_match(sentences: Floats, others: Floats) -> SentenceMatch | None:
    """Align two papers: find the best matching pair of sentences by dot product; (n, dimension), (m, dimension).

    The argmax over i, k of R_p R_E^T (Mysore et al., NAACL 2022, equation 3). Of equal products the lowest sentence
    counts, then the lowest of the others. A vector of zeros, or one that is not finite, stands for a text that could not
    be encoded and matches nothing; None if nothing is left.
    """
    usable = _is_vector(sentences)[:, None] & _is_vector(others)[None, :]  # (n, m)
    if not usable.any():
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        products = np.where(usable, sentences @ others.T, -np.inf)  # (n, m)
    row, column = divmod(int(np.argmax(products)), products.shape[1])
    # equal vectors are equal matches, even if their products were rounded in another order
    first, second = _first_equal(sentences, row), _first_equal(others, column)
    return SentenceMatch(first, second, float(products[row, column]))


def _is_vector(matrix: Floats) -> NDArray[np.bool_]:
    """Return which rows are finite and not zero, and so can match."""
    return np.asarray(np.isfinite(matrix).all(axis=1) & (matrix != 0).any(axis=1))


def _first_equal(matrix: Floats, row: int) -> int:
    return int(np.argmax((matrix == matrix[row]).all(axis=1)))


# Texts of sentences, each different text once.

MAX_SENTENCES = 1 << 15
"""Maximum number of sentences of an abstract: their numbers are stored in 16 bits."""

_READ = 2048
_NAME = "text"


@dataclass(frozen=True, slots=True)
class AlignmentTexts(Ragged):
    """Distinct sentences to align, numbered by first occurrence, and which paper or context has which.

    The offsets are those of the sentences of each paper in `numbers`.
    """

    papers: NDArray[np.int64]
    """Rows of the corpus, ascending."""

    contexts: NDArray[np.int64]
    """Numbers of citing sentences, ascending; their texts follow those of the papers in `numbers`."""

    numbers: NDArray[np.int64]
    """Shape (sentences + contexts,): the text of each."""

    first: NDArray[np.int64]
    """Shape (texts,): where each occurs first."""

    column: TextColumn

    def of_paper(self, row: int) -> NDArray[np.int64]:
        """Return the text numbers of a paper's sentences, in their order."""
        return self.numbers[self.span(int(np.searchsorted(self.papers, row)))]

    def of_contexts(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the text numbers of these citing sentences."""
        return self.numbers[int(self.offsets[-1]) + np.searchsorted(self.contexts, contexts)]

    def counts(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the number of sentences of each of these papers."""
        return self.lengths()[np.searchsorted(self.papers, rows)]

    def take(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return the sentences with these text numbers."""
        return self.column.take(self.first[numbers])


def _collect_texts(
    corpus: Corpus, papers: NDArray[np.int64], contexts: NDArray[np.int64], work: Path, reporter: Reporter
) -> AlignmentTexts:
    """Collect the distinct sentences of some papers' abstracts and some citing sentences; both ascending."""
    writer, keys, counts = TextWriter(work, _NAME), [np.zeros(0, np.uint64)], list[int]()
    with reporter.task("splitting abstracts", len(papers), "papers") as advance:
        for start in range(0, len(papers), _READ):
            split = [
                sentence_texts(text)[:MAX_SENTENCES] for text in corpus.abstracts.take(papers[start : start + _READ])
            ]
            keys.append(_write(writer, [text for texts in split for text in texts]))
            counts += [len(texts) for texts in split]
            advance(len(split))
    for start in range(0, len(contexts), _READ):
        keys.append(_write(writer, corpus.contexts.texts.take(contexts[start : start + _READ])))
    writer.close()
    _, first, inverse = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
    order = np.argsort(first)  # texts stay in the order of the corpus
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return AlignmentTexts(to_offsets(counts), papers, contexts, place[inverse], first[order], TextColumn(work, _NAME))


def _write(writer: TextWriter, texts: list[str]) -> Keys:
    writer.append(texts)
    return hash_texts(texts)


# Vectors of these texts.

BLOCK = 2048
"""Texts per block of vectors that is saved."""


def _take_vectors(blocks: Sequence[NDArray[np.float32]], numbers: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the vectors of texts, whose numbers ascend, from blocks of BLOCK vectors; shape (numbers, dimension)."""
    cuts = np.flatnonzero(np.diff(numbers // BLOCK)) + 1
    return np.concatenate(
        [blocks[int(part[0]) // BLOCK][part % BLOCK] for part in np.split(numbers, cuts) if len(part)]
    )


def _encode_texts(texts: AlignmentTexts, encoder: Encoder, work: Path, reporter: Reporter) -> list[NDArray[np.float32]]:
    """Encode every distinct sentence once, in memory-mapped blocks; those already saved in `work` are reused."""
    blocks = []
    number = len(texts.first)
    with reporter.task("encoding sentences", number, "sentences") as advance:
        for start in range(0, number, BLOCK):
            path = work / f"{start // BLOCK:08d}.npy"
            count = min(BLOCK, number - start)
            if not path.exists():
                vectors = encoder.encode(texts.take(np.arange(start, start + count)))  # (count, dimension)
                with new_file(path) as file:
                    np.save(file, np.ascontiguousarray(vectors, np.float32))
            blocks.append(open_matrix(path, np.float32, (count, encoder.dimension)))
            advance(count)
    return blocks
