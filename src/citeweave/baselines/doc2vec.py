"""Doc2Vec: paragraph vectors that predict the words of a text (PV-DBOW, Le and Mikolov 2014), by gensim.

"vector_size=300, min_count=3, alpha=0.025, min_alpha=0.0001, negative=5, dm=0, dbow=1, dbow_words=0", and a grid over
window (5, 10, 15; without effect in PV-DBOW), sample (0, 1e-6, 1e-5) and epochs (50, 100, 200) whose winner is not
given (Cohan et al. 2020, appendix A). Here sample is 1e-5 and epochs 50, the shortest of the grid.

Every text is encoded by fitting a new vector to it, training texts too, as gensim does; but the random start depends
on the text alone, so that neither other texts nor Python's changing hashes make a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np

from citeweave.baselines.data import BaselineData, Floats
from citeweave.baselines.word_vectors import gensim_seed, silence_dot_messages, split_words, stable_hash, train_gensim
from citeweave.core.arguments import as_texts
from citeweave.core.errors import require
from citeweave.core.options import Range, check
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream


@dataclass(frozen=True, slots=True)
class Doc2VecOptions:
    """Options of Doc2Vec, under gensim's names."""

    vector_size: Annotated[int, Range(above=0)] = 300
    min_count: Annotated[int, Range(above=0)] = 3
    """Rarer words are ignored."""

    epochs: Annotated[int, Range(above=0)] = 50
    """Passes over the texts in training, and over a text when it is encoded."""

    sample: Annotated[float, Range(0)] = 1e-5
    """Words above this share of all words are subsampled; 0 = no subsampling."""

    alpha: Annotated[float, Range(above=0)] = 0.025
    min_alpha: Annotated[float, Range(above=0)] = 0.0001
    negative: Annotated[int, Range(above=0)] = 5

    def __post_init__(self) -> None:
        check(self, "doc2vec")


class Doc2Vec:
    """Trained Doc2Vec model that infers a paragraph vector for each text."""

    name = "doc2vec"

    def __init__(self, revision: str, model: Any, options: Doc2VecOptions, seed: int) -> None:
        self.revision, self.dimension = revision, options.vector_size
        self._model, self._options, self._seed = model, options, seed

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        out = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        with silence_dot_messages(), reporter.task("doc2vec", len(texts), "texts") as advance:
            for row, text in enumerate(texts):
                words = [word for word in split_words(text) if word in self._model.wv.key_to_index]
                if words:
                    out[row] = self._infer(words)
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


def fit_doc2vec(data: BaselineData, options: Doc2VecOptions, revision: str) -> Doc2Vec:
    """Train Doc2Vec on the texts, on one thread, so that the seed fixes the result."""
    texts = data.texts()
    gensim = require("gensim.models.doc2vec", extra="baselines")
    data.reporter.say(f"doc2vec: {len(texts):,} texts, {options.epochs} epochs")
    documents = [gensim.TaggedDocument(split_words(text), [row]) for row, text in enumerate(texts)]
    fixed = {"dm": 0, "dbow_words": 0, "seed": gensim_seed(data.seed, "doc2vec")}
    model = train_gensim(gensim.Doc2Vec, documents, "doc2vec model", **fixed, **asdict(options))
    return Doc2Vec(revision, model, options, data.seed)
