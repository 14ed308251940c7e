"""Baselines as things that `evaluate` judges: fitted when their vectors are first asked for, not before.

A baseline's revision is known before it is trained, so that vectors in the cache spare the training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from citeweave.baselines.fitting import BASELINES, fit_baseline, revision_of
from citeweave.baselines.sentence_sum import SentenceSum
from citeweave.baselines.tfidf import Tfidf
from citeweave.baselines.word_vectors import WordVectors
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.encoder import Encoder, load_encoder
from citeweave.errors import choose
from citeweave.evaluation.judged import Judged
from citeweave.evaluation.judging.encoded import Encoded
from citeweave.evaluation.judging.opening import OpeningOptions
from citeweave.evaluation.tasks import Pools
from citeweave.evaluation.texts import Texts
from citeweave.graph.citations import CitationGraph
from citeweave.progress import QUIET, Reporter

SENTENCE_SUM = "sentence_sum"


def judged_baseline(
    name: str,
    corpus: Corpus,
    graph: CitationGraph,
    options: OpeningOptions,
    *,
    words: WordVectors | None = None,
    seed: int = 0,
    reporter: Reporter = QUIET,
) -> Judged:
    """A baseline over the texts of a corpus and the citations of a graph, which must not hold what is asked for.

    `words` (of `fit_words`) spares fasttext, sif and sgc their own training of word vectors.
    """
    choose(name, [*BASELINES, SENTENCE_SUM], "baseline")
    if name == SENTENCE_SUM:
        return Encoded(SentenceSum(load_encoder("minilm")), cache=options.cache, reporter=reporter)
    encoder = FittedLater(
        name,
        revision_of(name, corpus, graph=graph, words=words, seed=seed),
        lambda: fit_baseline(name, corpus, graph=graph, words=words, seed=seed, reporter=reporter),
    )
    kind = SparseWords if name == "tfidf" else Encoded
    return kind(encoder, cache=options.cache, reporter=reporter)


class FittedLater:
    """An encoder that is trained at its first text."""

    def __init__(self, name: str, revision: str, fit: Callable[[], Encoder]) -> None:
        self.name, self.revision, self._fit = name, revision, fit

    @cached_property
    def fitted(self) -> Encoder:
        return self._fit()

    @property
    def dimension(self) -> int:
        return self.fitted.dimension

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        return self.fitted.encode(texts, reporter=reporter)


class SparseWords(Encoded):
    """TF-IDF: pairs and searches go by the cosine of whole sparse vectors; probes see them reduced."""

    def scores(self, texts: Texts, pools: Pools, distance: str) -> NDArray[np.float64]:
        if distance != "cosine":
            return super().scores(texts, pools, distance)
        written = texts.paper_texts()
        scores = self._words.pair_scores(written, pools.offsets, pools.queries, pools.candidates)
        has_text = np.array([bool(text) for text in written])  # (rows,)
        owners = np.repeat(pools.queries, np.diff(pools.offsets))  # (pairs,)
        return np.where(has_text[owners] & has_text[pools.candidates], scores, np.nan)

    def top(
        self, texts: Texts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        if distance != "cosine":
            return super().top(texts, queries, candidates, depth, distance)
        rows = self._words.encode_sparse(texts.paper_texts())  # (rows, terms)
        pool, depth = rows[candidates].T.tocsc(), min(depth, len(candidates))
        found, scores = np.empty((len(queries), depth), np.int64), np.empty((len(queries), depth))
        for at, query in enumerate(queries.tolist()):
            cosines = np.asarray((rows[query] @ pool).todense()).ravel()  # (candidates,)
            best = np.argsort(-cosines, kind="stable")[:depth]
            found[at], scores[at] = candidates[best], cosines[best]
        return found, scores

    @property
    def _words(self) -> Tfidf:
        words = self.encoder.fitted if isinstance(self.encoder, FittedLater) else self.encoder
        assert isinstance(words, Tfidf)
        return words
