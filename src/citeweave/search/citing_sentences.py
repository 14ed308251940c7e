r"""Citing sentences of an index: what other papers wrote where they cite a paper, without citation marks.

    >>> without_marks("We use the parser of [CIT] to split texts (?).")
    'We use the parser of to split texts.'
    >>> without_marks("As shown before (Chen et al., 2014; Dyer, 2015a), Smith et al. (2010) and [12, 14-16] agree.")
    'As shown before, and agree.'
    >>> without_marks(r"Trees~\cite{chen2014} grow (in spring).")
    'Trees grow (in spring).'

An index keeps those that cite its papers:

    sentences/matrix.npy     one vector per sentence, encoded without its marks          (sentences, dimension)
    sentences/codes/         quantized codes of a large matrix: `vectors/topk`
    sentences/text           the sentences as the corpus has them
    sentences/citing         id of the citing paper, empty where it is unknown
    sentences/paper.npy      cited paper: a row of the index ...                         (mentions,), ascending
    sentences/sentence.npy   ... in which sentence ...                                   (mentions,)
    sentences/intents.npy    ... with which intents, bits of `Intent`; 0 = unknown       (mentions,)

A sentence that cites three papers is stored once and mentioned three times. Which sentences are kept is drawn from
the corpus in which a paper came last. Does not rank (`cite.py`) and
does not resolve which paper a mark refers to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter
from citeweave.core.columns import (
    MatrixWriter,
    TextColumn,
    TextWriter,
    find_keys,
    open_matrix,
    open_numbers,
    write_numbers,
)
from citeweave.core.errors import ArtifactError, EmptyResultError
from citeweave.core.hash_keys import hash_texts
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import owners_of
from citeweave.core.randomness import stream
from citeweave.corpus.citation_marks import find_marks
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.plain_text import clean_text
from citeweave.encoders.embed import embed_texts
from citeweave.encoders.encoder import Encoder
from citeweave.vectors.topk import Codes, write_codes
from citeweave.vectors.vectors import Provenance

if TYPE_CHECKING:
    from citeweave.graph.intent_overlay import IntentOverlay

READ_AS = "citing sentence without marks, 2"
"""What the encoder reads; a change here or in `corpus/citation_marks.py` that matters changes the number."""

FOLDER, CODES = "sentences", "codes"
CODED = 2048
"""Rows from which on a matrix gets quantized codes; fewer are compared as fast without."""

MAX_SENTENCE = 20_000
"""Characters of a sentence that are read; no encoder reads so many."""

_OF_DRAFTS = re.compile(
    r"~?[\[(<{]\s?(?:CIT|CITE|CITATION|REF|cit|cite|citation|ref|TODO)?\s?[?]{0,3}\s?[\])>}]"  # [CIT] (?) []
    r"|[@#]?\b(?:CITATION|CITREF|TARGETCIT)\b"
)
_NAMES_ALONE = re.compile(r"\b[A-Z][\w'’-]{1,40} et al\b\.?,?(?:’s|'s)?")
_BLANK_BEFORE = re.compile(r"\s+(?=[.,;:!?](?:\s|$))")


def without_marks(sentence: str) -> str:
    """Clean a citing sentence for the index: one line, without citation marks, printed ones or those of drafts."""
    text = clean_text(sentence[:MAX_SENTENCE])
    parts, at = [], 0
    for start, end in find_marks(text):
        parts.append(text[at:start].removesuffix("~"))  # LaTeX ties a mark to its word
        at = end
    text = " ".join([*parts, text[at:]])
    for pattern in (_OF_DRAFTS, _NAMES_ALONE):
        text = pattern.sub(" ", text)
    return _BLANK_BEFORE.sub("", clean_text(text))


@dataclass(frozen=True, slots=True)
class Mentions:
    """Mentions in the citing sentences (contexts) of a corpus to index: which sentence cites which paper, as columns."""

    paper: NDArray[np.int64]
    """Row of the cited paper in the corpus."""

    context: NDArray[np.int64]
    intents: NDArray[np.uint8]

    def take(self, places: NDArray[Any]) -> Mentions:
        """Return the mentions at these places."""
        return Mentions(self.paper[places], self.context[places], self.intents[places])


def corpus_mentions(corpus: Corpus, overlay: IntentOverlay | None = None) -> Mentions:
    """Return all mentions in a corpus's citing sentences, to be indexed, with intents of the overlay or the corpus.

    A sentence's own intents count; those of the citation as a whole where the sentence's are not known.
    """
    table = corpus.contexts
    context = owners_of(table.cited_offsets)  # (mentions,)
    paper = np.asarray(table.cited, np.int64)
    sentence_intents, citation_intents = (
        (table.intents, corpus.intents) if overlay is None else (overlay.context_mask, overlay.mask)
    )
    intents = np.asarray(sentence_intents)[context]  # (mentions,)
    if len(citation_intents):
        from citeweave.graph.intent_overlay import CitationPlaces  # loads the graph, which a search does not need

        places = CitationPlaces(corpus).find(np.asarray(table.citing)[context], paper)
        intents = np.where((intents == 0) & (places >= 0), np.asarray(citation_intents)[places], intents)
    return Mentions(paper, context, intents.astype(np.uint8))


def _sample_mentions(mentions: Mentions, max_per_intents: int) -> Mentions:
    """Draw at most so many mentions per paper and set of intents; sorted by paper and context."""
    order = stream(0, "citing sentences").permutation(len(mentions.paper))
    groups = mentions.paper * 256 + mentions.intents  # (mentions,)
    order = order[np.argsort(groups[order], kind="stable")]
    ranks = np.arange(len(order)) - np.searchsorted(groups[order], groups[order])  # place in its group
    drawn = order[ranks < max_per_intents]
    return mentions.take(drawn[np.lexsort((mentions.context[drawn], mentions.paper[drawn]))])


class CitingSentenceTexts(Sequence[str]):
    """Texts of citing sentences as they are embedded for an index: without marks, sliced lazily."""

    def __init__(self, corpus: Corpus, contexts: NDArray[np.int64]) -> None:
        self._texts, self._contexts = corpus.contexts.texts, contexts

    def __len__(self) -> int:
        return len(self._contexts)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if not isinstance(at, slice):
            return without_marks(self._texts[int(self._contexts[at])])
        return [without_marks(text) for text in self._texts.take(self._contexts[at])]


class CitingSentences:
    """Citing sentences of an open index: texts, vectors, and which paper each mentions with which intents."""

    def __init__(self, folder: Path, papers: int, provenance: Provenance) -> None:
        self.texts, self.citing = TextColumn(folder, "text"), TextColumn(folder, "citing")
        self.paper: NDArray[np.int32] = open_numbers(folder / "paper.npy", np.int32)
        self.sentence: NDArray[np.int32] = open_numbers(folder / "sentence.npy", np.int32)
        self.intents: NDArray[np.uint8] = open_numbers(folder / "intents.npy", np.uint8)
        sentences = len(self.texts)
        sound = (
            len(self.citing) == sentences
            and len(self.paper) == len(self.sentence) == len(self.intents)
            and _within(self.paper, 0, papers)
            and _within(self.sentence, 0, sentences)
            and bool((np.diff(self.paper) >= 0).all())
        )
        if not sound:
            raise ArtifactError(f"{folder} is damaged: its columns do not fit together; build the index again")
        self.matrix: NDArray[Any] = open_matrix(
            folder / "matrix.npy", provenance.dtype, (sentences, provenance.dimension)
        )
        self.codes = open_codes(folder / CODES, self.matrix)
        """Quantized codes for a fast scan of the matrix; None where it is small."""

    def __len__(self) -> int:
        return len(self.texts)


def open_codes(folder: Path, matrix: NDArray[Any]) -> Codes | None:
    """Open the quantized codes of a matrix of an index; None where it is small and has none."""
    if not (folder / "codes.npy").is_file():
        return None
    codes = Codes.open(folder)
    codes.check(matrix)
    return codes


def _within(values: NDArray[Any], low: int, high: int) -> bool:
    return not len(values) or (int(values.min()) >= low and int(values.max()) < high)


@dataclass(frozen=True, slots=True)
class SentenceSources:
    """Where the citing sentences of an index's next generation come from."""

    corpus: Corpus | None
    """Sentences that cite its papers are drawn from it; None: no paper is taken from a corpus."""

    places: NDArray[np.int64]
    """Row in the next generation of every paper of the corpus, -1 where it is not taken from there."""

    last: CitingSentences | None
    kept: NDArray[np.int64]
    """Row in the next generation of every paper of the last one, -1 where it is not taken from there."""

    max_per_intents: int
    overlay: IntentOverlay | None = None


def write_citing_sentences(
    artifact: ArtifactWriter, sources: SentenceSources, encoder: Encoder | None, dtype: str, reporter: Reporter = QUIET
) -> dict[str, int]:
    """Write the citing sentences of an index's next generation; return counts for its manifest.

    Vectors of sentences that the last generation has are carried over; without an encoder, other sentences are left out.
    """
    drawn, contexts, vectors = _draw_from_corpus(artifact, sources, encoder, dtype, reporter)
    last, folder = sources.last, artifact.folder / FOLDER
    used = np.flatnonzero(sources.kept[last.paper] >= 0) if last is not None else np.empty(0, np.int64)
    if not len(contexts) and not len(used):
        return {}
    texts, citing = TextWriter(folder, "text"), TextWriter(folder, "citing")
    width = vectors.shape[1] if len(contexts) or last is None else last.matrix.shape[1]
    matrix = MatrixWriter(folder / "matrix.npy", dtype, width)
    paper, sentence, intents = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.uint8)]
    if sources.corpus is not None and len(contexts):
        texts.append_bytes(*sources.corpus.contexts.texts.gather(contexts))
        for row in np.asarray(sources.corpus.contexts.citing)[contexts].tolist():
            citing.append([sources.corpus.ids[row] if row >= 0 else ""])
        matrix.append(vectors)
        at = np.minimum(np.searchsorted(contexts, drawn.context), len(contexts) - 1)
        stored = np.flatnonzero(contexts[at] == drawn.context)
        paper.append(sources.places[drawn.paper[stored]])
        sentence.append(at[stored])
        intents.append(drawn.intents[stored])
    if last is not None and len(used):
        rows, inverse = np.unique(np.asarray(last.sentence)[used], return_inverse=True)
        texts.append_bytes(*last.texts.gather(rows))
        citing.append_bytes(*last.citing.gather(rows))
        matrix.append(last.matrix[rows])
        paper.append(sources.kept[last.paper[used]])
        sentence.append(inverse + len(contexts))
        intents.append(np.asarray(last.intents)[used])
    for writer in (texts, citing, matrix):
        writer.close()
    papers = np.concatenate(paper)
    order = np.argsort(papers, kind="stable")
    write_numbers(folder / "paper.npy", papers[order], np.int32)
    write_numbers(folder / "sentence.npy", np.concatenate(sentence)[order], np.int32)
    write_numbers(folder / "intents.npy", np.concatenate(intents)[order], np.uint8)
    count = matrix.count
    if count >= CODED:
        write_codes(folder / CODES, open_matrix(folder / "matrix.npy", dtype, (count, width)))
    left_out = len(np.unique(drawn.context)) - len(contexts)
    return {"sentences": count, "sentences_left_out": left_out, "mentions": len(papers)}


def _draw_from_corpus(
    artifact: ArtifactWriter, sources: SentenceSources, encoder: Encoder | None, dtype: str, reporter: Reporter
) -> tuple[Mentions, NDArray[np.int64], NDArray[Any]]:
    """Draw mentions from the corpus; return them, the contexts that have a vector, ascending, and those vectors."""
    corpus, last = sources.corpus, sources.last
    if corpus is None or not len(corpus.contexts):
        none = np.empty(0, np.int64)
        return Mentions(none, none, np.empty(0, np.uint8)), none, np.empty((0, 1), dtype)
    mentions = corpus_mentions(corpus, sources.overlay)
    drawn = _sample_mentions(
        mentions.take(np.flatnonzero(sources.places[mentions.paper] >= 0)), sources.max_per_intents
    )
    contexts = np.unique(drawn.context)
    known = np.full(len(contexts), -1, np.int64)
    if last is not None and len(contexts):
        known = find_keys(hash_texts(corpus.contexts.texts.take(contexts)), last.texts.keys())
    missing = contexts[known < 0]
    parts = [(contexts[known >= 0], np.asarray(last.matrix[known[known >= 0]]))] if last is not None else []
    if encoder is not None and len(missing):
        with suppress(EmptyResultError):
            made = embed_texts(
                encoder,
                [str(number) for number in missing.tolist()],
                CitingSentenceTexts(corpus, missing),
                artifact.scratch_folder("sentences") / "vectors",
                text_recipe=READ_AS,
                dtype=dtype,
                reporter=reporter,
            )
            parts.append((np.array([int(name) for name in made.ids], np.int64), np.asarray(made.matrix)))
    if not parts:
        return drawn, np.empty(0, np.int64), np.empty((0, 1), dtype)
    stored = np.concatenate([numbers for numbers, _ in parts])
    order = np.argsort(stored)
    return drawn, stored[order], np.concatenate([vectors for _, vectors in parts])[order].astype(dtype)
