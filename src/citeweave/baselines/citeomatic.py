"""Citeomatic's paper vectors (NNSelect, Bhagavatula et al. 2018): word weights trained on citations.

    word     m(w) d(w) / |d(w)|                     a learned length and a learned direction
    field    sum over its words, of length 1        title and abstract
    paper    t title + b abstract, of length 1      two learned numbers

For a paper q, one p that it cites and one n that it does not:  max(0, margin + cos(q, n) + B(n) - cos(q, p) - B(p)),
with B = 0.02 / (1 + exp(-citations / 100)) and a margin by the kind of the negative n:

    random      any paper                                     must score 0.3 below a cited paper
    near        among the nearest by the current vectors      must score 0.2 below
    second_hop  cited by a cited paper                        must score 0.1 below

A fixed number of tries is drawn per kind; a paper whose references cite nothing has no second_hop negative.

"Citeomatic representations are an L2 normalized weighted sum of title and abstract embeddings, which are trained on
the citation graph with dynamic negative sampling. Citeomatic embeddings are 75-dimensional" (Cohan et al. 2020,
appendix A); margins, B and 2 negatives of each kind are its published code's. What differs: words are those of
`fit_terms`, lengths start at 1, nearest papers are not filtered by shared words, there is neither dropout nor weight
decay, 1 negative of each kind is drawn afresh whenever a citation is seen, and the rate is higher for small corpora.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.baselines.data import BaselineData, Floats, read_training_texts, seeded_torch, split_fields
from citeweave.baselines.word_vectors import TermOptions, count_terms, fit_terms
from citeweave.core.arguments import as_texts
from citeweave.core.columns import KeyLookup
from citeweave.core.options import Range, check
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.vectors.topk import nearest
from citeweave.vectors.vectors import unit_rows

if TYPE_CHECKING:
    from torch import Tensor


Ints = NDArray[np.int64]

MARGINS = {"random": 0.3, "near": 0.2, "second_hop": 0.1}
"""Margin of the loss by kind of negative."""

_TRIES = 8
"""Draws per kind of negative."""


# Negatives: papers that a paper does not cite


class CitationPairs:
    """Citations that Citeomatic is trained on, between papers 0 .. papers - 1, sorted by citing paper."""

    def __init__(self, citing: Ints, cited: Ints, papers: int) -> None:
        self.citing, self.cited, self.papers = citing, cited, papers  # (citations,) each
        self._offsets = np.searchsorted(citing, np.arange(papers + 1))  # (papers + 1,)
        self._lookup = KeyLookup(citing * papers + cited)  # (citations,)

    def contains(self, citing: Ints, cited: Ints) -> NDArray[np.bool_]:
        """Return whether each pair of papers is a citation; arrays of any shape."""
        return self._lookup.find(citing * self.papers + cited) >= 0

    def draw_cited(self, citing: Ints, rng: np.random.Generator) -> Ints:
        """Draw one random reference of each paper, -1 where it has none (or is -1); arrays of any shape."""
        starts, counts = self._offsets[citing], self._offsets[citing + 1] - self._offsets[citing]
        counts = np.where(citing < 0, 0, counts)
        at = starts + (rng.random(citing.shape) * counts).astype(np.int64)
        return np.where(counts > 0, self.cited[np.minimum(at, len(self.cited) - 1)], -1)


def draw_negatives(citations: CitationPairs, near: Ints, queries: Ints, rng: np.random.Generator) -> Ints:
    """Draw one negative of each kind for every query, (queries, 3) in the order of MARGINS; -1 where there is none.

    `near` holds the nearest papers of every paper, (papers, k), -1 where there are fewer.
    """
    repeated = np.repeat(queries[:, None], _TRIES, axis=1)  # (queries, tries)
    drawn = [
        rng.integers(citations.papers, size=repeated.shape),
        near[repeated, rng.integers(near.shape[1], size=repeated.shape)],
        citations.draw_cited(citations.draw_cited(repeated, rng), rng),
    ]
    return np.stack([_pick_uncited(citations, repeated, tries) for tries in drawn], axis=1)


def _pick_uncited(citations: CitationPairs, queries: Ints, tries: Ints) -> Ints:
    """Pick the first drawn negative that the query does not cite and that is not itself, (queries,); -1 if none."""
    good = (tries >= 0) & (tries != queries) & ~citations.contains(queries, tries)
    first = good.argmax(axis=1)
    rows = np.arange(len(tries))
    return np.where(good[rows, first], tries[rows, first], -1)


def find_near_papers(vectors: NDArray[np.float32], queries: Ints, k: int) -> Ints:
    """Find the k nearest papers of every query by cosine, (papers, k); rows of papers that are no query are -1."""
    out = np.full((len(vectors), k), -1, np.int64)
    out[queries] = nearest(vectors, vectors[queries], k, itself=queries).rows
    return out


# The model


@dataclass(frozen=True, slots=True)
class CiteomaticOptions:
    """Options of the Citeomatic baseline."""

    dimension: Annotated[int, Range(above=0)] = 75
    epochs: Annotated[int, Range(above=0)] = 8
    """Passes over the citations."""

    batch: Annotated[int, Range(above=0)] = 256
    """Citations per step."""

    rate: Annotated[float, Range(above=0)] = 0.003
    """Learning rate of Adam."""

    near: Annotated[int, Range(above=0)] = 50
    """Near negatives are drawn from this many nearest papers, searched again before every epoch."""

    terms: TermOptions = field(default_factory=TermOptions)

    def __post_init__(self) -> None:
        check(self, "citeomatic")


class Citeomatic:
    """Trained Citeomatic encoder: word vectors, and the weights of title and abstract."""

    name = "citeomatic"

    def __init__(self, revision: str, vectorizer: Any, vectors: Floats, weights: NDArray[np.float32]) -> None:
        self.revision, self.dimension = revision, vectors.shape[1]
        self._vectorizer, self._vectors, self._weights = vectorizer, vectors, weights  # (terms, dimension), (2,)

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        titles, abstracts = _field_counts(self._vectorizer, texts)  # (texts, terms) each
        return _combine_fields(titles @ self._vectors, abstracts @ self._vectors, self._weights)


def _combine_fields(titles: NDArray[Any], abstracts: NDArray[Any], weights: NDArray[Any]) -> Floats:
    """Return the normalized weighted sum of normalized titles and abstracts, (papers, dimension); empty ones are 0.

    >>> _combine_fields(np.array([[2.0, 0.0]]), np.array([[0.0, 5.0]]), np.array([3.0, 4.0])).round(3).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    return np.asarray(unit_rows(weights[0] * unit_rows(titles) + weights[1] * unit_rows(abstracts)), np.float32)


def fit_citeomatic(data: BaselineData, options: CiteomaticOptions, revision: str) -> Citeomatic:
    """Train Citeomatic on the citations among the training papers."""
    citing, cited = data.citations("citeomatic")
    # renumber papers, so that a held-out paper is never a negative
    citations = CitationPairs(np.searchsorted(data.rows, citing), np.searchsorted(data.rows, cited), len(data.rows))
    texts = read_training_texts(data.corpus, data.rows)
    vectorizer = fit_terms([text for text in texts if text], options.terms, idf=False, sublinear=False, norm=None)
    rng = stream(data.seed, "citeomatic")
    with seeded_torch(int(rng.integers(2**62))) as torch:
        trainer = _CiteomaticTrainer(torch, _field_counts(vectorizer, texts), citations, options)
        trainer.train(rng, data.reporter)
        return Citeomatic(revision, vectorizer, trainer.word_vectors().detach().numpy(), trainer.weights())


class _CiteomaticTrainer:
    """Citeomatic's parameters, their optimizer, and the training papers as bags of words."""

    def __init__(
        self, torch: Any, fields: tuple[Any, Any], citations: CitationPairs, options: CiteomaticOptions
    ) -> None:
        self._torch, self._fields, self._citations, self._options = torch, fields, citations, options
        terms = fields[0].shape[1]
        self._directions = torch.randn(terms, options.dimension).requires_grad_()
        self._lengths = torch.ones(terms, 1).requires_grad_()
        self._weights = torch.ones(2).requires_grad_()
        self._optimizer = torch.optim.Adam([self._directions, self._lengths, self._weights], lr=options.rate)
        counts = np.bincount(citations.cited, minlength=citations.papers)
        self._boosts = torch.from_numpy((0.02 / (1 + np.exp(-counts / 100))).astype(np.float32))  # (papers,)

    def train(self, rng: np.random.Generator, reporter: Reporter) -> None:
        citations, options = self._citations, self._options
        queries = np.unique(citations.citing)
        total = options.epochs * len(citations.citing)
        with reporter.task("citeomatic", total, "citations") as advance:
            for epoch in range(options.epochs):
                near = find_near_papers(self._all_vectors(), queries, min(options.near, citations.papers - 1))
                order, losses = rng.permutation(len(citations.citing)), []
                for start in range(0, len(order), options.batch):
                    part = order[start : start + options.batch]
                    negatives = draw_negatives(citations, near, citations.citing[part], rng)  # (batch, kinds)
                    losses.append(self._step(citations.citing[part], citations.cited[part], negatives))
                    advance(len(part))
                reporter.say(f"epoch {epoch + 1} of {options.epochs}: mean loss {np.mean(losses):.4g}")

    def word_vectors(self) -> Tensor:
        """Return length times direction of every term, (terms, dimension)."""
        words: Tensor = self._lengths * self._torch.nn.functional.normalize(self._directions, dim=1)
        return words

    def weights(self) -> NDArray[np.float32]:
        return np.asarray(self._weights.detach().numpy().copy())

    def _all_vectors(self) -> Floats:
        words = self.word_vectors().detach().numpy()
        return _combine_fields(self._fields[0] @ words, self._fields[1] @ words, self.weights())

    def _step(self, citing: NDArray[np.int64], cited: NDArray[np.int64], negatives: NDArray[np.int64]) -> float:
        """Take one Adam step on a batch of citations and their negatives (batch, kinds); return the loss."""
        torch, kinds = self._torch, len(MARGINS)
        present = torch.from_numpy(negatives >= 0)  # (batch, kinds)
        others = np.maximum(negatives, 0)
        papers, places = np.unique(np.concatenate([citing, cited, others.ravel()]), return_inverse=True)
        vectors = self._vectors_of(papers)[torch.from_numpy(places)]  # (batch * (2 + kinds), dimension)
        query, positive, rest = torch.split(vectors, [len(citing), len(citing), len(citing) * kinds])
        positives = (query * positive).sum(dim=1) + self._boosts[torch.from_numpy(cited)]  # (batch,)
        scores = (query[:, None] * rest.view(len(citing), kinds, -1)).sum(dim=2) + self._boosts[
            torch.from_numpy(others)
        ]
        margins = torch.tensor(list(MARGINS.values()))  # (kinds,)
        loss = (torch.relu(margins + scores - positives[:, None]) * present).sum() / present.sum().clamp(min=1)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def _vectors_of(self, papers: NDArray[np.int64]) -> Tensor:
        """Return Citeomatic vectors of papers with gradients, (papers, dimension)."""
        torch, words = self._torch, self.word_vectors()
        unit = torch.nn.functional.normalize
        sums = [_bag_sum(torch, counts[papers], words) for counts in self._fields]
        vectors: Tensor = unit(sum(weight * unit(field) for weight, field in zip(self._weights, sums, strict=True)))
        return vectors


def _bag_sum(torch: Any, counts: Any, words: Tensor) -> Tensor:
    """Multiply sparse counts (papers, terms) by word vectors (terms, dimension)."""
    sums: Tensor = torch.nn.functional.embedding_bag(
        torch.from_numpy(counts.indices.astype(np.int64)),
        words,
        torch.from_numpy(counts.indptr[:-1].astype(np.int64)),
        mode="sum",
        per_sample_weights=torch.from_numpy(counts.data.astype(np.float32)),
    )
    return sums


def _field_counts(vectorizer: Any, texts: Sequence[str]) -> tuple[Any, Any]:
    """Count the terms of titles and of abstracts as sparse rows, (texts, terms) each."""
    fields = [split_fields(text) for text in texts]
    return (
        count_terms(vectorizer, [title for title, _ in fields]),
        count_terms(vectorizer, [abstract for _, abstract in fields]),
    )
