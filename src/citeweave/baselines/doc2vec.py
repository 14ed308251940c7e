"""Doc2Vec: a vector of each text from which its words can be told (PV-DBOW, Le and Mikolov 2014), in gensim.

"vector_size=300, min_count=3, alpha=0.025, min_alpha=0.0001, negative=5, dm=0, dbow=1, dbow_words=0", and a grid over
window (5, 10, 15; without effect in PV-DBOW), sample (0, 1e-6, 1e-5) and epochs (50, 100, 200) of which the winner is
not said (Cohan et al. 2020, appendix A). Here sample is 1e-5 and epochs 50, the shortest of the grid.

Every text is encoded by fitting a new vector to it, also those that were trained on: gensim's own way, but started
from the text alone, so that neither other texts nor Python's changing hashes make a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from citeweave.baselines.data import BaselineData, Floats
from citeweave.baselines.word_vectors import gensim_seed, silent_dots, stable_hash, words_of
from citeweave.core.arguments import as_texts
from citeweave.core.errors import EmptyResultError, UserError, require
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream


@dataclass(frozen=True, slots=True)
class Doc2VecOptions:
    """Options of Doc2Vec, by gensim's names."""

    vector_size: int = 300
    min_count: int = 3
    """Rarer words are not read."""

    epochs: int = 50
    """How often every text is read; as often a new text is read when it is encoded."""

    sample: float = 1e-5
    """Words of a larger share of the text are read less often; 0 = all are read always."""

    alpha: float = 0.025
    min_alpha: float = 0.0001
    negative: int = 5

    def __post_init__(self) -> None:
        for name in ("vector_size", "min_count", "epochs", "alpha", "min_alpha", "negative"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} of doc2vec is {getattr(self, name)}; it must be over 0")
        if not self.sample >= 0:
            raise UserError(f"sample of doc2vec is {self.sample}; it must be 0 or more")


class Doc2Vec:
    """A trained model that fits vectors to texts."""

    name = "doc2vec"

    def __init__(self, revision: str, model: Any, options: Doc2VecOptions, seed: int) -> None:
        self.revision, self.dimension = revision, options.vector_size
        self._model, self._options, self._seed = model, options, seed

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        out = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        with silent_dots(), reporter.task("doc2vec", len(texts), "texts") as advance:
            for row, text in enumerate(texts):
                known = [word for word in words_of(text) if word in self._model.wv.key_to_index]
                if known:
                    out[row] = self._infer(known)
                advance(1)
        return out

    def _infer(self, words: list[str]) -> Floats:
        train = require("gensim.models.doc2vec", extra="baselines").train_document_dbow
        rng = stream(self._seed, "doc2vec text", stable_hash(" ".join(words)))
        # the compiled code draws its negatives and its subsample from here
        self._model.random = np.random.RandomState(int(rng.integers(2**32)))
        vector = ((rng.random((1, self.dimension)) - 0.5) / self.dimension).astype(np.float32)
        free, work = np.ones(1, np.float32), np.zeros(self.dimension, np.float32)
        for alpha in np.linspace(self._options.alpha, self._options.min_alpha, self._options.epochs):
            train(
                self._model,
                words,
                [0],
                float(alpha),
                work,
                learn_words=False,
                learn_hidden=False,
                doctag_vectors=vector,
                doctags_lockf=free,
            )
        return np.asarray(vector[0])


def fit_doc2vec(material: BaselineData, options: Doc2VecOptions, revision: str) -> Doc2Vec:
    """Train on the texts, one after the other on one thread, so that the seed fixes the result."""
    texts = material.texts()
    gensim = require("gensim.models.doc2vec", extra="baselines")
    material.reporter.say(f"doc2vec: {len(texts):,} texts, {options.epochs} epochs")
    with silent_dots():
        try:
            model = gensim.Doc2Vec(
                [gensim.TaggedDocument(words_of(text), [row]) for row, text in enumerate(texts)],
                vector_size=options.vector_size,
                min_count=options.min_count,
                epochs=options.epochs,
                sample=options.sample,
                alpha=options.alpha,
                min_alpha=options.min_alpha,
                negative=options.negative,
                dm=0,
                dbow_words=0,
                seed=gensim_seed(material.seed, "doc2vec"),
                workers=1,
                hashfxn=stable_hash,
            )
        except RuntimeError as error:
            raise EmptyResultError(
                f"no doc2vec model from {len(texts):,} texts ({error}); give more texts, "
                f"or lower min_count ({options.min_count})"
            ) from None
    return Doc2Vec(revision, model, options, material.seed)
