"""Texts as counts of terms, with the settings that SPECTER's appendix A uses for all its sums of word vectors.

    >>> words_of("Naïve Bayes[SEP]A model of p53.")
    ['naive', 'bayes', 'model', 'of', 'p53']

scikit-learn's TfidfVectorizer does the work: min_df=3, max_df=0.75, strip_accents="ascii", stop_words="english",
lowercase=True (Cohan et al. 2020, appendix A). Words that are not in the vocabulary count nothing.

Word vectors trained on the texts of the corpus by fastText, in gensim.

    words = train_words(["Deep learning ...", ...], WordOptions())
    words.of(["learning", "learnable"])       (2, 300); a rare word is the sum of its letter n-grams

SPECTER "trained our own 300 dimensional fasttext embeddings on a corpus of around 3.1B tokens", with "all default
parameters with the exception of setting dimension to 300 and minCount was set to 25 due to the large corpus" (Cohan
et al. 2020, appendix A). The defaults of fastText (Bojanowski et al. 2017; the text does not say skip-gram or CBOW,
skip-gram is fastText's) are lr 0.05, window 5, 5 epochs, 5 negatives, n-grams of 3 to 6, subsampling 1e-4 and
2,000,000 buckets. What differs here, for corpora of some ten thousand papers: minCount is fastText's own 5, there are
200,000 buckets, and 2 epochs, since one costs more than a minute.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer, strip_accents_ascii

from citeweave.core.errors import EmptyResultError, UserError, require
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import hash_text, stream
from citeweave.corpus.text import SEPARATOR

_WORD = re.compile(r"\b\w\w+\b")


@dataclass(frozen=True, slots=True)
class TermOptions:
    """Which words are terms."""

    min_df: int = 3
    """Fewest papers that a term stands in."""

    max_df: float = 0.75
    """Largest share of papers that a term stands in."""

    most: int = 200_000
    """Only so many of the most frequent terms; SPECTER names no limit."""

    def __post_init__(self) -> None:
        if self.min_df < 1 or self.most < 1:
            raise UserError(f"min_df is {self.min_df} and most is {self.most}; both must be 1 or more")
        if not 0 < self.max_df <= 1:
            raise UserError(f"max_df is {self.max_df}; it is a share of the papers, over 0 and up to 1")


def words_of(text: str) -> list[str]:
    """The words of a text in their order, small and without accents, as the vectorizer splits them."""
    return _WORD.findall(strip_accents_ascii(without_marks(text).lower()))


def without_marks(text: str) -> str:
    """The text with a line break where its parts meet, so that no word is made of the mark."""
    return text.replace(SEPARATOR, "\n")


def fit_terms(texts: Sequence[str], options: TermOptions, *, idf: bool, sublinear: bool, norm: str | None) -> Any:
    """A fitted TfidfVectorizer: `transform(texts)` gives sparse rows, (texts, terms).

    A count is tf, or 1 + ln tf where `sublinear`; with `idf` it is times ln((1 + n) / (1 + df)) + 1.
    """
    vectorizer = TfidfVectorizer(
        min_df=options.min_df,
        max_df=options.max_df,
        max_features=options.most,
        strip_accents="ascii",
        stop_words="english",
        use_idf=idf,
        sublinear_tf=sublinear,
        norm=norm,
        dtype=np.float64,
    )
    try:
        vectorizer.fit([without_marks(text) for text in texts])
    except ValueError as error:
        # sklearn says so of an empty vocabulary, and of limits that cross in a corpus of a few papers
        raise EmptyResultError(
            f"no term is left of {len(texts):,} texts ({error}); give more texts, or lower min_df ({options.min_df})"
        ) from None
    return vectorizer


def count_terms(vectorizer: Any, texts: Sequence[str]) -> Any:
    """Sparse rows of the texts, (texts, terms), by a vectorizer of `fit_terms`; also of no text at all."""
    plain = [without_marks(text) for text in texts]
    # the vectorizer refuses an empty list
    return vectorizer.transform(plain) if plain else vectorizer.transform([""])[:0]


# Word vectors trained on the texts of the corpus by fastText, in gensim.

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WordOptions:
    """Options of fastText; the names in brackets are its own."""

    dimension: int = 300
    """Numbers of a vector (dim)."""

    epochs: int = 2
    """How often every text is read (epoch, 5 by default)."""

    min_count: int = 5
    """Rarer words have no vector of their own, only their n-grams' (minCount; SPECTER: 25)."""

    window: int = 5
    """Words on each side that a word predicts (ws)."""

    buckets: int = 200_000
    """Rows that all n-grams share (bucket, 2,000,000 by default)."""

    rate: float = 0.05
    """Learning rate (lr)."""

    sample: float = 1e-4
    """Words of a larger share of the text are read less often (t)."""

    def __post_init__(self) -> None:
        for name in ("dimension", "epochs", "min_count", "window", "buckets", "rate", "sample"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} of the word vectors is {getattr(self, name)}; it must be over 0")


class WordVectors:
    """Vectors of words, also of words that the training texts did not have."""

    def __init__(self, vectors: Any, identity: dict[str, object]) -> None:
        self._vectors = vectors
        self.identity = identity
        """What the vectors depend on, for the revision of a baseline that uses them."""

    @property
    def dimension(self) -> int:
        return int(self._vectors.vector_size)

    def of(self, words: Sequence[str]) -> Floats:
        """(words, dimension)"""
        out = np.zeros((len(words), self.dimension), np.float32)
        for row, word in enumerate(words):
            # a word without a single n-gram raises; none is that short here, but a vocabulary may be the user's
            if word in self._vectors.key_to_index or self._vectors.min_n <= len(word) + 2:
                out[row] = self._vectors[word]
        return out


def train_words(
    texts: Sequence[str],
    options: WordOptions,
    *,
    seed: int = 0,
    identity: dict[str, object] | None = None,
    reporter: Reporter = QUIET,
) -> WordVectors:
    """Train on whole texts, one after the other on one thread, so that the seed fixes the result."""
    models = require("gensim.models", extra="baselines")
    reporter.say(f"word vectors: {len(texts):,} texts, {options.epochs} epochs")
    with silent_dots():
        try:
            model = models.FastText(
                sentences=[words_of(text) for text in texts],
                vector_size=options.dimension,
                epochs=options.epochs,
                min_count=options.min_count,
                window=options.window,
                bucket=options.buckets,
                alpha=options.rate,
                sample=options.sample,
                sg=1,
                negative=5,
                seed=gensim_seed(seed, "word vectors"),
                workers=1,
                hashfxn=stable_hash,
            )
        except RuntimeError as error:
            raise EmptyResultError(
                f"no word vectors from {len(texts):,} texts ({error}); give more texts, "
                f"or lower min_count ({options.min_count})"
            ) from None
    return WordVectors(model.wv, identity or {})


def gensim_seed(seed: int, purpose: str) -> int:
    """gensim takes 32-bit integers as seeds, no generators."""
    return int(stream(seed, purpose).integers(2**31))


def stable_hash(text: str) -> int:
    """A hash that is the same in every process, unlike Python's own."""
    return int(hash_text(text))


@contextmanager
def silent_dots() -> Iterator[None]:
    """Keep quiet about dot products of exactly -1, which gensim 4.4 takes for an error (piskvorky/gensim#3642).

    Its compiled code then writes "Exception ignored in: '...our_dot_float'" though there is no exception, so that no
    hook is asked, and counts 0 for that one product.
    """
    before = sys.stderr
    sys.stderr = cast(TextIO, _WithoutDots(before))
    try:
        yield
    finally:
        sys.stderr = before


class _WithoutDots:
    """Passes on all that is written but that one message, which comes as three pieces: text, name, line break."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._held, self._dropped = stream, "", False

    def write(self, text: str) -> int:
        if text.startswith("Exception ignored in:"):
            self._held += text
        elif self._held and "our_dot" in text:
            self._held, self._dropped = "", True
        elif not (self._dropped and text == "\n"):
            self._stream.write(self._held + text)
            self._held, self._dropped = "", False
        else:
            self._dropped = False
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
