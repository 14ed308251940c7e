"""Papers that a paper does not cite, of the three kinds that Citeomatic learns from.

    random      any paper                                         must score 0.3 below a cited paper
    near        among the nearest by the vectors of the moment    must score 0.2 below
    second_hop  cited by a cited paper                            must score 0.1 below

Bhagavatula et al. (2018); the distances are those of its code. Draws a fixed number of tries for each and says where
none was found: a paper whose references cite nothing has no second_hop.

Citeomatic's paper vectors (NNSelect, Bhagavatula et al. 2018): weighted words, trained so that cited papers are near.

    word     m(w) d(w) / |d(w)|                     a learned length and a learned direction
    field    sum over its words, of length 1        title and abstract
    paper    t title + b abstract, of length 1      two learned numbers

For a paper q, one p that it cites and one n that it does not:  max(0, margin + cos(q, n) + B(n) - cos(q, p) - B(p)),
with a margin by the kind of n (see `citeomatic_negatives.py`) and B = 0.02 / (1 + exp(-citations / 100)).

"Citeomatic representations are an L2 normalized weighted sum of title and abstract embeddings, which are trained on
the citation graph with dynamic negative sampling. Citeomatic embeddings are 75-dimensional" (Cohan et al. 2020,
appendix A); margins, B and 2 negatives of each kind are its published code's. What differs: words are those of
`terms.py`, lengths start at 1, nearest papers are not filtered by shared words, there is neither dropout nor weight
decay, 1 negative of each kind is drawn anew whenever a citation is seen, and the rate is higher for small corpora.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.baselines.data import (
    BaselineData,
    Floats,
    seeded_torch,
    split_fields,
    texts_of,
)
from citeweave.baselines.word_vectors import TermOptions, count_terms, fit_terms
from citeweave.core.arguments import as_texts
from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.vectors.topk import nearest

if TYPE_CHECKING:
    from torch import Tensor


Ints = NDArray[np.int64]

MARGINS = {"random": 0.3, "near": 0.2, "second_hop": 0.1}
_TRIES = 8


class CitationPairs:
    """Citations between papers numbered 0 .. papers - 1, sorted by citing paper."""

    def __init__(self, citing: Ints, cited: Ints, papers: int) -> None:
        self.citing, self.cited, self.papers = citing, cited, papers  # (citations,) each
        self._offsets = np.searchsorted(citing, np.arange(papers + 1))  # (papers + 1,)
        self._keys = np.sort(citing * papers + cited)  # (citations,)

    def has(self, citing: Ints, cited: Ints) -> NDArray[np.bool_]:
        """Whether the pairs are citations; any shape."""
        wanted = citing * self.papers + cited
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return np.asarray(self._keys[at] == wanted)

    def any_cited(self, citing: Ints, rng: np.random.Generator) -> Ints:
        """One random reference of each paper, -1 where it (or the paper, -1) has none; any shape."""
        starts, counts = self._offsets[citing], self._offsets[citing + 1] - self._offsets[citing]
        counts = np.where(citing < 0, 0, counts)
        at = starts + (rng.random(citing.shape) * counts).astype(np.int64)
        return np.where(counts > 0, self.cited[np.minimum(at, len(self.cited) - 1)], -1)


def draw_negatives(citations: CitationPairs, near: Ints, queries: Ints, rng: np.random.Generator) -> Ints:
    """One paper of each kind for every query, (queries, 3) in the order of MARGINS; -1 where none was found.

    `near` holds the nearest papers of every paper, (papers, k), -1 where there are fewer.
    """
    many = np.repeat(queries[:, None], _TRIES, axis=1)  # (queries, tries)
    drawn = [
        rng.integers(citations.papers, size=many.shape),
        near[many, rng.integers(near.shape[1], size=many.shape)],
        citations.any_cited(citations.any_cited(many, rng), rng),
    ]
    return np.stack([_first_allowed(citations, many, tries) for tries in drawn], axis=1)


def _first_allowed(citations: CitationPairs, queries: Ints, tries: Ints) -> Ints:
    """The first try that is a paper, not the query, and not cited by it; shapes (queries, tries) -> (queries,)."""
    good = (tries >= 0) & (tries != queries) & ~citations.has(queries, tries)
    first = good.argmax(axis=1)
    rows = np.arange(len(tries))
    return np.where(good[rows, first], tries[rows, first], -1)


def near_papers(vectors: NDArray[np.float32], queries: Ints, k: int) -> Ints:
    """The k nearest papers of every query by cosine, (papers, k); rows of papers that are no query are -1."""
    out = np.full((len(vectors), k), -1, np.int64)
    out[queries] = nearest(vectors, vectors[queries], k, itself=queries).rows
    return out


# Citeomatic's paper vectors (NNSelect, Bhagavatula et al. 2018): weighted words, trained so that cited papers are near.


@dataclass(frozen=True, slots=True)
class CiteomaticOptions:
    """Options of Citeomatic."""

    dimension: int = 75
    epochs: int = 8
    """How often every citation is seen."""

    batch: int = 256
    """Citations a step."""

    rate: float = 0.003
    """Learning rate of Adam."""

    near: int = 50
    """From so many nearest papers a near negative is drawn; they are searched anew before every epoch."""

    terms: TermOptions = field(default_factory=TermOptions)

    def __post_init__(self) -> None:
        for name in ("dimension", "epochs", "batch", "rate", "near"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} of citeomatic is {getattr(self, name)}; it must be over 0")


class Citeomatic:
    """Learned words and the weights of the two fields."""

    name = "citeomatic"

    def __init__(self, revision: str, vectorizer: Any, vectors: Floats, weights: NDArray[np.float32]) -> None:
        self.revision, self.dimension = revision, vectors.shape[1]
        self._vectorizer, self._vectors, self._weights = vectorizer, vectors, weights  # (terms, dimension), (2,)

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        titles, abstracts = _field_counts(self._vectorizer, texts)  # (texts, terms) each
        return combine(titles @ self._vectors, abstracts @ self._vectors, self._weights)


def combine(titles: NDArray[Any], abstracts: NDArray[Any], weights: NDArray[Any]) -> Floats:
    """The weighted sum of two fields of length 1, again of length 1, (papers, dimension); empty fields are 0.

    >>> combine(np.array([[2.0, 0.0]]), np.array([[0.0, 5.0]]), np.array([3.0, 4.0])).round(3).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    return _unit(weights[0] * _unit(titles) + weights[1] * _unit(abstracts))


def fit_citeomatic(material: BaselineData, options: CiteomaticOptions, revision: str) -> Citeomatic:
    """Train on the citations between the papers to learn from."""
    citing, cited = material.citations("citeomatic")
    # papers are renumbered, so that no other paper is ever a negative
    citations = CitationPairs(
        np.searchsorted(material.rows, citing), np.searchsorted(material.rows, cited), len(material.rows)
    )
    texts = texts_of(material.corpus, material.rows)
    vectorizer = fit_terms([text for text in texts if text], options.terms, idf=False, sublinear=False, norm=None)
    rng = stream(material.seed, "citeomatic")
    with seeded_torch(int(rng.integers(2**62))) as torch:
        trainer = _CiteomaticTrainer(torch, _field_counts(vectorizer, texts), citations, options)
        trainer.train(rng, material.reporter)
        return Citeomatic(revision, vectorizer, trainer.word_vectors().detach().numpy(), trainer.weights())


class _CiteomaticTrainer:
    """Parameters, their optimizer, and the papers as bags of words."""

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
                near = near_papers(self._all_vectors(), queries, min(options.near, citations.papers - 1))
                order, losses = rng.permutation(len(citations.citing)), []
                for start in range(0, len(order), options.batch):
                    part = order[start : start + options.batch]
                    negatives = draw_negatives(citations, near, citations.citing[part], rng)  # (batch, kinds)
                    losses.append(self._step(citations.citing[part], citations.cited[part], negatives))
                    advance(len(part))
                reporter.say(f"epoch {epoch + 1} of {options.epochs}: mean loss {np.mean(losses):.4g}")

    def word_vectors(self) -> Tensor:
        """Length times direction of every term, (terms, dimension)."""
        words: Tensor = self._lengths * self._torch.nn.functional.normalize(self._directions, dim=1)
        return words

    def weights(self) -> NDArray[np.float32]:
        return np.asarray(self._weights.detach().numpy().copy())

    def _all_vectors(self) -> Floats:
        words = self.word_vectors().detach().numpy()
        return combine(self._fields[0] @ words, self._fields[1] @ words, self.weights())

    def _step(self, citing: NDArray[np.int64], cited: NDArray[np.int64], negatives: NDArray[np.int64]) -> float:
        """One step of Adam on a batch, (batch,), (batch,), (batch, kinds); the loss."""
        torch, kinds = self._torch, len(MARGINS)
        present = torch.from_numpy(negatives >= 0)  # (batch, kinds)
        others = np.maximum(negatives, 0)
        papers, places = np.unique(np.concatenate([citing, cited, others.ravel()]), return_inverse=True)
        vectors = self._vectors_of(papers)[torch.from_numpy(places)]  # (batch * (2 + kinds), dimension)
        query, positive, rest = torch.split(vectors, [len(citing), len(citing), len(citing) * kinds])
        near = (query * positive).sum(dim=1) + self._boosts[torch.from_numpy(cited)]  # (batch,)
        far = (query[:, None] * rest.view(len(citing), kinds, -1)).sum(dim=2) + self._boosts[torch.from_numpy(others)]
        margins = torch.tensor(list(MARGINS.values()))  # (kinds,)
        loss = (torch.relu(margins + far - near[:, None]) * present).sum() / present.sum().clamp(min=1)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def _vectors_of(self, papers: NDArray[np.int64]) -> Tensor:
        """(papers, dimension), with gradients."""
        torch, words = self._torch, self.word_vectors()
        unit = torch.nn.functional.normalize
        sums = [_bag_sum(torch, counts[papers], words) for counts in self._fields]
        vectors: Tensor = unit(sum(weight * unit(field) for weight, field in zip(self._weights, sums, strict=True)))
        return vectors


def _bag_sum(torch: Any, counts: Any, words: Tensor) -> Tensor:
    """Sparse rows of counts (papers, terms) times word vectors (terms, dimension)."""
    sums: Tensor = torch.nn.functional.embedding_bag(
        torch.from_numpy(counts.indices.astype(np.int64)),
        words,
        torch.from_numpy(counts.indptr[:-1].astype(np.int64)),
        mode="sum",
        per_sample_weights=torch.from_numpy(counts.data.astype(np.float32)),
    )
    return sums


def _field_counts(vectorizer: Any, texts: Sequence[str]) -> tuple[Any, Any]:
    """Sparse counts of titles and abstracts, (texts, terms) each."""
    fields = [split_fields(text) for text in texts]
    return (
        count_terms(vectorizer, [title for title, _ in fields]),
        count_terms(vectorizer, [abstract for _, abstract in fields]),
    )


def _unit(rows: NDArray[Any]) -> Floats:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), np.float32)
