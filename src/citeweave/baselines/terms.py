"""Texts as counts of terms, with the settings that SPECTER's appendix A uses for all its sums of word vectors.

    >>> words_of("Naïve Bayes[SEP]A model of p53.")
    ['naive', 'bayes', 'model', 'of', 'p53']

scikit-learn's TfidfVectorizer does the work: min_df=3, max_df=0.75, strip_accents="ascii", stop_words="english",
lowercase=True (Cohan et al. 2020, appendix A). Words that are not in the vocabulary count nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer, strip_accents_ascii

from citeweave.corpus.text import SEPARATOR
from citeweave.errors import EmptyResultError, UserError

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
