"""Word vectors trained on the texts of the corpus by fastText, in gensim.

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

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from citeweave.baselines.terms import words_of
from citeweave.errors import EmptyResultError, UserError
from citeweave.extras import require
from citeweave.hashing import hash_text
from citeweave.progress import QUIET, Reporter
from citeweave.randomness import stream

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
