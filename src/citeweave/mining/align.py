"""How sentences are aligned: the `[alignment]` table of a recipe.

    [alignment]
    by = "contexts"                      # through the sentences that cite both papers; or "abstracts"
    encoder = "recipe:aspire_context"    # a model, or a recipe whose model is trained first

Does not align: `mining/align.py` does.

The best match between the sentences of one text and those of another.

>>> best_match(np.array([[1.0, 0], [0, 1]]), np.array([[0, 0.5], [0, 2]]))
Match(sentence=1, other=1, similarity=2.0)

The texts that alignment reads: the sentences of some papers and some citing sentences, each different text once.

    texts = gather_texts(corpus, papers, contexts, work)
    texts.of_paper(7)          numbers of the texts of its sentences, in their order
    texts.take(numbers)        the texts themselves

Sentences are those of `corpus.text.sentence_texts`, numbered as sentence vectors are. A title is no sentence. Citing
sentences are taken as they stand, citation marks included, as in ASPIRE's code. Texts lie on disk, only their keys in
memory.

Vectors of single texts, each read alone; made in blocks that are kept on disk, so that a later run goes on.

    vectors = encode_texts(texts, encoder, work)
    vectors.take(np.array([3, 0]))         (2, dimension)

Vectors are the encoder's own, of length 1 or not as it makes them. A text without a token has a vector of zeros.

Alignment: for an anchor and its positive, the sentence of either abstract in which the two are alike.

    aligned = align_samples(corpus, samples, load_encoder("minilm"), "aligned/", AlignmentOptions(by="contexts"))
    aligned.alignment.anchor_sentences[0], aligned.alignment.sentences[0]          of the first positive

    contexts     in either abstract the sentence nearest to any sentence that cites both papers (ASPIRE's ts)
    abstracts    the two sentences that are nearest to each other (ASPIRE's abs)

Near is a large dot product of vectors that a frozen encoder makes of single sentences (Mysore et al., NAACL 2022,
section 3.2.2). Writes new samples with everything of the old ones; those are not touched. Trains nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, matches, new_artifact
from citeweave.core.columns import TextColumn, TextWriter, open_matrix, write_numbers
from citeweave.core.errors import EmptyResultError, UserError, choose
from citeweave.core.files import link_or_copy, new_file
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import Keys, hash_texts
from citeweave.corpus.corpus import Contexts, Corpus
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.encoder import Encoder
from citeweave.mining.samples import ALIGNMENT_COLUMNS, KIND, VERSION, Alignment, Samples

CONTEXTS, ABSTRACTS = "contexts", "abstracts"
METHODS = (CONTEXTS, ABSTRACTS)


@dataclass(frozen=True, slots=True)
class AlignmentOptions:
    """How to align."""

    by: str = CONTEXTS
    """`contexts`: in either abstract the sentence that is nearest to any sentence that cites both papers (ASPIRE's ts);
    `abstracts`: the two sentences that are nearest to each other (its abs)."""

    encoder: str = "minilm"
    """The frozen encoder's name, for whoever loads it: minilm, a folder, a hub name; in a recipe also recipe:NAME."""

    def __post_init__(self) -> None:
        choose(self.by, METHODS, "--by")


def alignment_options(table: Mapping[str, Any]) -> AlignmentOptions:
    """Read an `[alignment]` table; an unknown key is refused with the nearest known one.

    >>> alignment_options({"by": "abstracts"})
    AlignmentOptions(by='abstracts', encoder='minilm')
    >>> alignment_options({"encodr": "minilm"})
    Traceback (most recent call last):
    citeweave.core.errors.UserError: alignment: key is 'encodr'; it must be one of by, encoder. Did you mean 'encoder'?
    """
    for key, value in table.items():
        choose(key, [field.name for field in dataclasses.fields(AlignmentOptions)], "alignment: key")
        if not isinstance(value, str) or not value:
            raise UserError(f"alignment.{key} is {value!r}; it must be a text, such as {AlignmentOptions()!r}")
    if "by" in table:
        choose(table["by"], METHODS, "alignment.by")
    return AlignmentOptions(**table)


# The best match between the sentences of one text and those of another.

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class SentenceMatch:
    """Two sentences and how similar they are."""

    sentence: int
    other: int
    similarity: float


def best_match(sentences: Floats, others: Floats) -> SentenceMatch | None:
    """argmax over i, k of R_p R_E^T (Mysore et al., NAACL 2022, equation 3); shapes (n, dimension), (m, dimension).

    Of equals the lowest sentence counts, then the lowest of the others. A vector of zeros, or one that is not finite,
    stands for a text that could not be read and matches nothing; None where nothing is left.
    """
    usable = _is_vector(sentences)[:, None] & _is_vector(others)[None, :]  # (n, m)
    if not usable.any():
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        products = np.where(usable, sentences @ others.T, -np.inf)  # (n, m)
    row, column = divmod(int(np.argmax(products)), products.shape[1])
    # equal vectors are equal matches, also where their products were rounded in another order
    first, second = _first_equal(sentences, row), _first_equal(others, column)
    return SentenceMatch(first, second, float(products[row, column]))


def _is_vector(matrix: Floats) -> NDArray[np.bool_]:
    return np.asarray(np.isfinite(matrix).all(axis=1) & (matrix != 0).any(axis=1))


def _first_equal(matrix: Floats, row: int) -> int:
    return int(np.argmax((matrix == matrix[row]).all(axis=1)))


# The texts that alignment reads: the sentences of some papers and some citing sentences, each different text once.

MOST_SENTENCES = 1 << 15
"""Sentences of an abstract that are looked at: their numbers are stored in 16 bits."""

_READ = 2048
_NAME = "text"


@dataclass(frozen=True, slots=True)
class AlignmentTexts:
    """Different texts, numbered in the order in which they first occur, and who has which."""

    papers: NDArray[np.int64]
    """Rows of the corpus, ascending."""

    offsets: NDArray[np.int64]
    """Shape (papers + 1,): the sentences of each in `numbers`."""

    contexts: NDArray[np.int64]
    """Numbers of citing sentences, ascending; their texts follow those of the papers in `numbers`."""

    numbers: NDArray[np.int64]
    """Shape (sentences + contexts,): which text each is."""

    first: NDArray[np.int64]
    """Shape (texts,): where each occurs first."""

    column: TextColumn

    def __len__(self) -> int:
        return len(self.first)

    def of_paper(self, row: int) -> NDArray[np.int64]:
        """Texts of the paper's sentences."""
        at = int(np.searchsorted(self.papers, row))
        return self.numbers[self.offsets[at] : self.offsets[at + 1]]

    def of_contexts(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Texts of these citing sentences."""
        return self.numbers[int(self.offsets[-1]) + np.searchsorted(self.contexts, contexts)]

    def counts(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Sentences of each of these papers."""
        return np.diff(self.offsets)[np.searchsorted(self.papers, rows)]

    def take(self, numbers: NDArray[np.int64]) -> list[str]:
        return self.column.take(self.first[numbers])


def gather_texts(
    corpus: Corpus,
    papers: NDArray[np.int64],
    contexts: NDArray[np.int64],
    work: Path,
    *,
    reporter: Reporter = QUIET,
) -> AlignmentTexts:
    """Split the abstracts of the papers, and add the citing sentences; both are given ascending."""
    writer, keys, counts = TextWriter(work, _NAME), [np.zeros(0, np.uint64)], [0]
    with reporter.task("splitting abstracts", len(papers), "papers") as advance:
        for start in range(0, len(papers), _READ):
            split = [
                sentence_texts(text)[:MOST_SENTENCES] for text in corpus.abstracts.take(papers[start : start + _READ])
            ]
            keys.append(_write(writer, [text for texts in split for text in texts]))
            counts += [len(texts) for texts in split]
            advance(len(split))
    for start in range(0, len(contexts), _READ):
        keys.append(_write(writer, corpus.contexts.texts.take(contexts[start : start + _READ])))
    writer.close()
    _, first, inverse = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
    order = np.argsort(first)  # neighbors in the corpus stay neighbors
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    offsets = np.cumsum(counts, dtype=np.int64)
    return AlignmentTexts(papers, offsets, contexts, place[inverse], first[order], TextColumn(work, _NAME))


def _write(writer: TextWriter, texts: list[str]) -> Keys:
    writer.append(texts)
    return hash_texts(texts)


# Vectors of single texts, each read alone; made in blocks that are kept on disk, so that a later run goes on.

BLOCK = 2048
"""Texts encoded between two savings."""


@dataclass(frozen=True, slots=True)
class TextVectors:
    """A vector a text, in memory-mapped blocks."""

    blocks: list[NDArray[np.float32]]
    """Each (BLOCK, dimension), the last one shorter."""

    def take(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of these texts, which are given ascending; shape (numbers, dimension)."""
        cuts = np.flatnonzero(np.diff(numbers // BLOCK)) + 1
        parts = [self.blocks[int(part[0]) // BLOCK][part % BLOCK] for part in np.split(numbers, cuts) if len(part)]
        return np.concatenate(parts)


def encode_texts(texts: AlignmentTexts, encoder: Encoder, work: Path, *, reporter: Reporter = QUIET) -> TextVectors:
    """Encode every different text once; blocks that are in `work` already are taken as they are."""
    blocks = []
    with reporter.task("encoding sentences", len(texts), "sentences") as advance:
        for start in range(0, len(texts), BLOCK):
            path = work / f"{start // BLOCK:08d}.npy"
            count = min(BLOCK, len(texts) - start)
            if not path.exists():
                found = encoder.encode(texts.take(np.arange(start, start + count)))  # (count, dimension)
                _save(path, np.ascontiguousarray(found, np.float32))
            blocks.append(open_matrix(path, np.float32, (count, encoder.dimension)))
            advance(count)
    return TextVectors(blocks)


def _save(path: Path, matrix: NDArray[np.float32]) -> None:
    """There whole or not at all."""
    with new_file(path) as file:
        np.save(file, matrix)


# Alignment: for an anchor and its positive, the sentence of either abstract in which the two are alike.

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
    with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
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
class PositivePairs:
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
    """As in `PositivePairs`."""

    @property
    def left(self) -> NDArray[np.int64]:
        """Pairs that can be aligned, as far as is known."""
        return np.flatnonzero(self.state == _ALIGNED)


def pairs_of(corpus: Corpus, samples: Samples, options: AlignmentOptions) -> PositivePairs:
    """The pairs of samples; only contexts that cite both papers count, as those of a sample are of its first positive."""
    owner = samples.positives.owners()  # (pairs,)
    anchors, positives = samples.anchors[owner], np.asarray(samples.positives.rows)
    state = np.full(len(owner), _ALIGNED, np.int8)
    if options.by != CONTEXTS:
        empty = np.zeros(len(owner) + 1, np.int64)
        return PositivePairs(anchors, positives, empty, np.zeros(0, np.int64), state, through_contexts=False)
    counts = np.diff(samples.context_offsets)[owner]
    pair = np.repeat(np.arange(len(owner)), counts)  # (contexts of pairs,)
    place = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    context = samples.contexts[np.repeat(samples.context_offsets[owner], counts) + place]
    both = _cites(corpus.contexts, context, anchors[pair]) & _cites(corpus.contexts, context, positives[pair])
    kept = np.bincount(pair[both], minlength=len(owner))
    state[kept == 0] = 1
    state[counts == 0] = 0
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    return PositivePairs(anchors, positives, offsets, context[both], state, through_contexts=True)


def _cites(table: Contexts, contexts: NDArray[np.int64], rows: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether each context cites the paper beside it."""
    counts = table.cited_offsets[contexts + 1] - table.cited_offsets[contexts]
    entry = np.repeat(np.arange(len(contexts)), counts)  # (citations,)
    place = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
    hit = table.cited[table.cited_offsets[contexts[entry]] + place] == rows[entry]
    found = np.zeros(len(contexts), bool)
    found[entry[hit]] = True
    return found


def _align(
    corpus: Corpus, pairs: PositivePairs, encoder: Encoder, writer: ArtifactWriter, reporter: Reporter
) -> _Outcome:
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
    pairs: PositivePairs, block: NDArray[np.int64], texts: AlignmentTexts, vectors: TextVectors, outcome: _Outcome
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
            right = None if left is None else SentenceMatch(left.other, left.sentence, left.similarity)
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
