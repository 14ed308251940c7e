"""Words of the corpus for baselines: term counts by scikit-learn, and fastText word vectors by gensim.

    >>> split_words("Naïve Bayes[SEP]A model of p53.")
    ['naive', 'bayes', 'model', 'of', 'p53']

Terms are counted by scikit-learn's TfidfVectorizer with SPECTER's settings: min_df=3, max_df=0.75,
strip_accents="ascii", stop_words="english", lowercase=True (Cohan et al. 2020, appendix A).

    words = train_words(["Deep learning ...", ...], WordOptions())
    words.of(["learning", "learnable"])       (2, 300); a rare word is the sum of its letter n-grams

SPECTER "trained our own 300 dimensional fasttext embeddings on a corpus of around 3.1B tokens", with "all default
parameters with the exception of setting dimension to 300 and minCount was set to 25 due to the large corpus" (Cohan
et al. 2020, appendix A). The defaults of fastText (Bojanowski et al. 2017; the text does not say skip-gram or CBOW,
skip-gram is fastText's) are lr 0.05, window 5, 5 epochs, 5 negatives, n-grams of 3 to 6, subsampling 1e-4 and
2,000,000 buckets. What differs here, for corpora of some ten thousand papers: minCount is fastText's own 5, with
200,000 buckets and 2 epochs, since one epoch takes more than a minute.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer, strip_accents_ascii

from citeweave.core.errors import EmptyResultError, require
from citeweave.core.hash_keys import hash_text
from citeweave.core.options import Range, check
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.corpus.text import SEPARATOR

_WORD = re.compile(r"\b\w\w+\b")


@dataclass(frozen=True, slots=True)
class TermOptions:
    """Which words of a corpus count as terms for word vectors and counts."""

    min_df: Annotated[int, Range(1)] = 3
    """Fewest papers that a term occurs in."""

    max_df: Annotated[float, Range(above=0, max=1)] = 0.75
    """Largest share of papers that a term occurs in."""

    max_terms: Annotated[int, Range(1)] = 200_000
    """Maximum number of terms, the most frequent ones; SPECTER names no limit."""

    def __post_init__(self) -> None:
        check(self, "terms")


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words without accents, as the term vectorizer does."""
    return _WORD.findall(strip_accents_ascii(break_at_separator(text).lower()))


def break_at_separator(text: str) -> str:
    """Replace [SEP] between title and abstract by a line break, so that it never becomes a word."""
    return text.replace(SEPARATOR, "\n")


def fit_terms(texts: Sequence[str], options: TermOptions, *, idf: bool, sublinear: bool, norm: str | None) -> Any:
    """Count the words of texts as terms for any baseline, by scikit-learn's TfidfVectorizer: sparse rows, (texts, terms).

    A count is tf, or 1 + ln tf where `sublinear`; with `idf` it is multiplied by ln((1 + n) / (1 + df)) + 1.
    """
    vectorizer = TfidfVectorizer(
        min_df=options.min_df,
        max_df=options.max_df,
        max_features=options.max_terms,
        strip_accents="ascii",
        stop_words="english",
        use_idf=idf,
        sublinear_tf=sublinear,
        norm=norm,
        dtype=np.float64,
    )
    try:
        vectorizer.fit([break_at_separator(text) for text in texts])
    except ValueError as error:
        # raised for an empty vocabulary, and when min_df exceeds max_df in a corpus of a few papers
        raise EmptyResultError(
            f"no term is left of {len(texts):,} texts ({error}); give more texts, or lower min_df ({options.min_df})"
        ) from None
    return vectorizer


def count_terms(vectorizer: Any, texts: Sequence[str]) -> Any:
    """Count the terms of texts as sparse rows, (texts, terms), by a vectorizer of `fit_terms`."""
    plain = [break_at_separator(text) for text in texts]
    # the vectorizer refuses an empty list
    return vectorizer.transform(plain) if plain else vectorizer.transform([""])[:0]


# Word vectors by fastText

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WordOptions:
    """Options of fastText word vectors; fastText's own names in parentheses."""

    dimension: Annotated[int, Range(above=0)] = 300
    """Length of a vector (dim)."""

    epochs: Annotated[int, Range(above=0)] = 2
    """Passes over the texts (epoch, 5 by default)."""

    min_count: Annotated[int, Range(above=0)] = 5
    """Rarer words have no vector of their own, only their n-grams' (minCount; SPECTER: 25)."""

    window: Annotated[int, Range(above=0)] = 5
    """Words on each side that a word predicts (ws)."""

    buckets: Annotated[int, Range(above=0)] = 200_000
    """Rows shared by all n-grams (bucket, 2,000,000 by default)."""

    rate: Annotated[float, Range(above=0)] = 0.05
    """Learning rate (lr)."""

    sample: Annotated[float, Range(above=0)] = 1e-4
    """Words above this share of all words are subsampled (t)."""

    def __post_init__(self) -> None:
        check(self, "words")


class WordVectors:
    """fastText vectors of words, including words that the training texts did not have."""

    def __init__(self, vectors: Any, identity: dict[str, object]) -> None:
        self._vectors = vectors
        self.identity = identity
        """What the vectors depend on, for the revision of a baseline that uses them."""

    @property
    def dimension(self) -> int:
        return int(self._vectors.vector_size)

    def of(self, words: Sequence[str]) -> Floats:
        """Return the vectors of these words, (words, dimension)."""
        out = np.zeros((len(words), self.dimension), np.float32)
        for row, word in enumerate(words):
            # gensim raises for a word too short for a single n-gram
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
    """Train fastText word vectors on texts, on one thread, so that the seed fixes the result."""
    models = require("gensim.models", extra="baselines")
    reporter.say(f"word vectors: {len(texts):,} texts, {options.epochs} epochs")
    model = train_gensim(
        models.FastText,
        [split_words(text) for text in texts],
        "word vectors",
        seed=gensim_seed(seed, "word vectors"),
        vector_size=options.dimension,
        epochs=options.epochs,
        min_count=options.min_count,
        window=options.window,
        bucket=options.buckets,
        alpha=options.rate,
        sample=options.sample,
        sg=1,
        negative=5,
    )
    return WordVectors(model.wv, identity or {})


def train_gensim(model: Any, documents: Sequence[Any], what: str, *, min_count: int, **options: Any) -> Any:
    """Train a gensim model of words on one thread, so that its seed fixes the result; `what` names it in errors."""
    with silence_dot_messages():
        try:
            return model(documents, min_count=min_count, workers=1, hashfxn=stable_hash, **options)
        except RuntimeError as error:
            raise EmptyResultError(
                f"no {what} from {len(documents):,} texts ({error}); give more texts, or lower min_count ({min_count})"
            ) from None


def gensim_seed(seed: int, purpose: str) -> int:
    """Return an integer seed for gensim, which takes no random generators."""
    return int(stream(seed, purpose).integers(2**31))


def stable_hash(text: str) -> int:
    """Return a hash of a word for gensim that is the same in every process, unlike Python's own."""
    return int(hash_text(text))


@contextmanager
def silence_dot_messages() -> Iterator[None]:
    """Silence gensim 4.4's false errors about dot products of exactly -1 (piskvorky/gensim#3642).

    Its compiled code writes "Exception ignored in: '...our_dot_float'" without raising, so no hook is called, and
    counts 0 for that one product.
    """
    before = sys.stderr
    sys.stderr = cast(TextIO, _DotMessageFilter(before))
    try:
        yield
    finally:
        sys.stderr = before


class _DotMessageFilter:
    """Stream without gensim's message about dot products, which arrives as text, name and line break."""

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
