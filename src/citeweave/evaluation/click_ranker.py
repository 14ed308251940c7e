"""SciDocs' recommendation network: eleven features of a query and a shown paper, learned from clicks.

    ranker = train_ranker(triplets, val_triplets, seed=7)
    ranker.scores(features)    ->    (pairs,) between 0 and 1; the clicked paper should have the highest score

     0 authors             shared authors, Jaccard                6 cites query      1 if the candidate cites the query
     1 place               always 0                               7 cited by query   1 if the query cites the candidate
     2 title words         shared words of the titles, Jaccard    8 age              (2020 - year) / 20 within [-1, 1]
     3 cosine              of the two vectors                     9 relative age     (year of query - year) / 20, same
     4 cited by the same   shared citing papers, Jaccard         10 citations        ln(1 + citing papers) / 10
     5 cite the same       shared references, Jaccard

The place in the shown list was meant to be a feature; SciDocs' reader overwrites it with 0 in training and test, so the
network never sees it: SPECTER's paper counts ten features, its code eleven. It stays 0 here.

Of authors, references, citing papers and title words only sorted, distinct 64-bit keys are kept: enough to see how much
two lists share. Papers that have several ids are not merged.

Without metadata of either paper its Jaccards and ages are 0, and a citation counts if either paper's lists have it; an
unknown year has age 0; two empty lists share 0. Without a vector, or with one of zeros, the cosine is 0. SciDocs gives
two papers without titles the title overlap 1 (it compares a placeholder word); here it is 0.

The network has 50 hidden units (relu, dropout 0.4) and one score (sigmoid). It learns from triplets: the clicked paper must
score at least 0.1 more than another one of the same list. Settings are those of allenai/scidocs
(`train_similar_papers_model.json`, AllenNLP 0.9): batches of 128 in a new order every epoch, 5 epochs, Adadelta (rho
0.95, rate 1), every partial derivative clipped to [-5, 5], weights initialized uniformly within 1 / sqrt(inputs). The
epoch with the lowest validation loss, the mean over batches, is kept.

SciDocs' numbers cannot be reproduced to the last digit: there the random numbers also initialize an embedding of title
words that is never used. The same seed gives the same ranker here, whatever the number of threads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.errors import UserError, require
from citeweave.core.hash_keys import Keys, hash_texts
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import Ragged, to_offsets
from citeweave.core.randomness import stream
from citeweave.corpus.plain_text import clean_text

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Lookup: TypeAlias = Callable[[Sequence[str]], tuple[NDArray[Any], NDArray[np.bool_]]]
"""Paper ids -> their vectors (n, d) and whether each exists (n,); rows of missing ones may hold anything."""

_RANKER_BLOCK = 1 << 14
"""Pairs scored at a time; does not change any value."""

PER_CLICK = 10
"""Maximum number of triplets per click: with the first ten other papers of its list."""

_FEATURE_BLOCK = 2048
"""Pairs whose vectors are in memory at a time; does not change any value."""

_WORD = re.compile(r"\w+|[^\w\s]")
_NO_KEYS = np.empty(0, np.uint64)


# --- metadata --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyLists(Ragged):
    """Keys of click data, sorted and distinct: the authors, references, citing papers or title words of every paper."""

    keys: Keys

    @classmethod
    def of(cls, lists: Sequence[Keys]) -> KeyLists:
        """Join the keys of all papers to one array with offsets."""
        return cls(to_offsets([len(keys) for keys in lists]), np.concatenate([_NO_KEYS, *lists]))


@dataclass(frozen=True)
class Metadata:
    """Metadata among the click data: titles, years, authors and citations, one row per paper."""

    ids: Sequence[str]
    titles: Sequence[str]
    abstracts: Sequence[str]
    years: NDArray[np.float64]
    """(papers,) year of publication, NaN where unknown."""

    words: KeyLists
    authors: KeyLists
    references: KeyLists
    cited_by: KeyLists
    _rows: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._rows.update({name: row for row, name in enumerate(self.ids)})

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Return the row of every paper id, -1 for a paper without metadata."""
        return np.array([self._rows.get(name, -1) for name in ids], np.int64)

    @classmethod
    def of(cls, entries: Iterable[tuple[str, object]]) -> Metadata:
        """Make the metadata of click data from (paper id, JSON entry); the last of equal ids counts.

        >>> metadata = Metadata.of([("p1", {"title": "A title", "year": "2015", "references": ["p2", "p3"]}), ("p2", None)])
        >>> metadata.rows(["p1", "p2"]).tolist(), metadata.years.tolist(), metadata.references.lengths().tolist()
        ([0, -1], [2015.0], [2])
        """
        by_id = {name: _read_entry(entry) for name, entry in entries if isinstance(entry, dict)}
        titles, abstracts, years, *lists = zip(*by_id.values(), strict=True) if by_id else [()] * 7
        return cls(list(by_id), titles, abstracts, np.array(years, np.float64), *map(KeyLists.of, lists))


def _read_entry(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Reduce the JSON entry of one paper to title, abstract, year and the keys of words, authors and citations."""
    title = clean_text(entry.get("title"))
    lists = [title_words(title), *(_ids(entry.get(name)) for name in ("authors", "references", "cited_by"))]
    keys = (np.unique(_hash_ids(texts)) if texts else _NO_KEYS for texts in lists)
    return title, clean_text(entry.get("abstract")), _year_of(entry.get("year")), *keys


def title_words(title: str) -> list[str]:
    """Split a title in the click data into words and punctuation marks, case kept.

    SciDocs' code uses spaCy 2, which does not split 'COVID-19', '3.5' and "'s"; this does.

    >>> title_words("BERT: pre-training")
    ['BERT', ':', 'pre', '-', 'training']
    """
    return _WORD.findall(title)


def _year_of(value: object) -> float:
    """Return a paper's year as a number, also from text; NaN for anything else.

    >>> _year_of("2015"), _year_of(None), _year_of("in press")
    (2015.0, nan, nan)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        year = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return year if math.isfinite(year) else math.nan


def _ids(value: object) -> list[str]:
    """Return the ids in a JSON list; what is neither text nor number is left out."""
    items = value if isinstance(value, list) else []
    return [str(item) for item in items if isinstance(item, str | int)]


# --- features --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Features:
    """Input features of the click ranker for (query, candidate) pairs, and the papers without vectors or metadata."""

    matrix: NDArray[np.float32]
    """(pairs, 11), in the order of the table above."""

    has_vectors: NDArray[np.bool_]
    """(pairs,) whether both papers have a vector."""

    papers: frozenset[str]
    without_vector: frozenset[str]
    """Papers without a vector; a vector with NaN or infinity counts as none."""

    without_metadata: frozenset[str]
    zero_vectors: frozenset[str]


def pair_features(
    queries: Sequence[str], candidates: Sequence[str], metadata: Metadata, vectors: Lookup, reporter: Reporter = QUIET
) -> Features:
    """Compute the eleven input features of the click ranker for every (query, candidate) pair."""
    query, candidate = metadata.rows(queries), metadata.rows(candidates)  # (pairs,) each, -1 = no metadata
    years = _year(metadata.years, candidate)
    cosines, has_vectors, absent, zeros = _cosines(queries, candidates, vectors, reporter)
    columns = [
        _jaccard(metadata.authors, query, candidate),
        np.zeros(len(queries)),
        _jaccard(metadata.words, query, candidate),
        cosines,
        _jaccard(metadata.cited_by, query, candidate),
        _jaccard(metadata.references, query, candidate),
        _cites(metadata, citing=(candidates, candidate), cited=(queries, query)),
        _cites(metadata, citing=(queries, query), cited=(candidates, candidate)),
        _age_feature(2020 - years),
        _age_feature(_year(metadata.years, query) - years),
        np.log1p(np.append(metadata.cited_by.lengths(), 0)[candidate]) / 10,
    ]
    papers = frozenset(queries) | frozenset(candidates)
    names = list(papers)
    return Features(
        np.stack(columns, axis=1).astype(np.float32),
        has_vectors,
        papers,
        frozenset(absent),
        frozenset(name for name, row in zip(names, metadata.rows(names).tolist(), strict=True) if row < 0),
        frozenset(zeros),
    )


def _jaccard(lists: KeyLists, left: Longs, right: Longs) -> Doubles:
    """Compute the Jaccard overlap of two papers' keys, (pairs,): shared / either; 0 for no keys or row -1."""
    shared = np.zeros(len(left), np.int64)
    _count_shared(lists.offsets, lists.keys, left, right, shared)
    known = (left >= 0) & (right >= 0)
    sizes = np.append(lists.lengths(), 0)  # row -1 is the last one: empty
    either = np.where(known, sizes[left] + sizes[right] - shared, 0)
    return np.asarray(shared / np.maximum(either, 1), np.float64)


def _year(years: Doubles, rows: Longs) -> Doubles:
    """Return the year of each row, NaN for row -1."""
    return np.asarray(np.append(years, np.nan)[rows], np.float64)


def _age_feature(difference: Doubles) -> Doubles:
    """Scale a difference of years by 20 to [-1, 1]; 0 for NaN, an unknown year.

    >>> _age_feature(2020 - np.array([2010.0, 1950.0, np.nan])).tolist()
    [0.5, 1.0, 0.0]
    """
    return np.nan_to_num(np.clip(difference / 20, -1, 1), nan=0.0)


def _cites(
    metadata: Metadata, *, citing: tuple[Sequence[str], Longs], cited: tuple[Sequence[str], Longs]
) -> NDArray[np.bool_]:
    """Tell whether one paper cites the other, (pairs,), by its references or the other's citing papers."""
    cites = np.zeros(len(citing[0]), bool)
    references, cited_by = metadata.references, metadata.cited_by
    _mark_contained(references.offsets, references.keys, citing[1], _hash_ids(cited[0]), cites)
    _mark_contained(cited_by.offsets, cited_by.keys, cited[1], _hash_ids(citing[0]), cites)
    return cites


def _hash_ids(ids: Sequence[str]) -> Keys:
    """Hash paper ids to the 64-bit keys that the metadata has."""
    return hash_texts([name.encode(errors="replace").decode() for name in ids])


@compiled()
def _count_shared(offsets: Longs, keys: Keys, left: Longs, right: Longs, out: Longs) -> None:
    """Count the keys that two rows share; both lists are sorted, so one pass is enough."""
    for pair in range(len(left)):
        if left[pair] < 0 or right[pair] < 0:
            continue
        i, j = offsets[left[pair]], offsets[right[pair]]
        while i < offsets[left[pair] + 1] and j < offsets[right[pair] + 1]:
            if keys[i] == keys[j]:
                out[pair] += 1
            step = keys[i] <= keys[j]
            if keys[j] <= keys[i]:
                j += 1
            if step:
                i += 1


@compiled()
def _mark_contained(offsets: Longs, keys: Keys, rows: Longs, wanted: Keys, out: NDArray[np.bool_]) -> None:
    """Mark the pairs whose wanted key is among the keys of their row."""
    for pair in range(len(rows)):
        if rows[pair] >= 0:
            begin, end = offsets[rows[pair]], offsets[rows[pair] + 1]
            place = begin + np.searchsorted(keys[begin:end], wanted[pair])
            out[pair] |= place < end and keys[place] == wanted[pair]


def _cosines(
    queries: Sequence[str], candidates: Sequence[str], vectors: Lookup, reporter: Reporter
) -> tuple[Doubles, NDArray[np.bool_], set[str], set[str]]:
    """Compute the cosine of every pair; also which pairs have both vectors, papers without one, papers with zeros."""
    cosines, has_both = np.zeros(len(queries)), np.zeros(len(queries), bool)
    absent, zeros = set[str](), set[str]()
    with reporter.task("comparing vectors", len(queries), "pairs") as advance:
        for start in range(0, len(queries), _FEATURE_BLOCK):
            block = slice(start, start + _FEATURE_BLOCK)
            names = list(dict.fromkeys([*queries[block], *candidates[block]]))
            units, present, lengths = _units(*vectors(names))
            absent.update(name for name, has_vector in zip(names, present.tolist(), strict=True) if not has_vector)
            zeros.update(names[row] for row in np.flatnonzero(present & (lengths == 0)).tolist())
            rows = {name: row for row, name in enumerate(names)}
            left = np.array([rows[name] for name in queries[block]])
            right = np.array([rows[name] for name in candidates[block]])
            cosines[block] = np.einsum("ij,ij->i", units[left], units[right])
            has_both[block] = present[left] & present[right]
            advance(len(left))
    return cosines, has_both, absent, zeros


def _units(matrix: NDArray[Any], present: NDArray[np.bool_]) -> tuple[Doubles, NDArray[np.bool_], Doubles]:
    """Normalize vectors (n, d) to length 1, zeros where missing; also whether each is usable (n,) and its length (n,)."""
    assert matrix.ndim == 2 and len(matrix) == len(present), (matrix.shape, present.shape)
    present = present & np.isfinite(matrix).all(axis=1)
    rows = np.where(present[:, None], matrix, 0).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    return rows / np.where(lengths > 0, lengths, 1)[:, None], present, lengths


# --- network ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClickTriplets:
    """Features of pairs that the click ranker learns from: a clicked and another paper of the same list."""

    clicked: Floats
    """(triplets, 11)"""

    others: Floats
    """(triplets, 11)"""

    propensities: Floats
    """(triplets,) what each loss is divided by."""

    def __len__(self) -> int:
        return len(self.clicked)


@dataclass(frozen=True)
class RankerRecipe:
    """Settings of the click ranker and of its training; the defaults are SciDocs'."""

    epochs: int = 5
    batch: int = 128
    hidden: int = 50
    dropout: float = 0.4
    margin: float = 0.1
    rho: float = 0.95
    clip: float = 5.0
    patience: int = 10
    """Number of epochs without a lower validation loss after which training stops."""


@dataclass(frozen=True)
class Ranker:
    """A trained click ranker as plain arrays; scoring needs no torch."""

    inner: Doubles
    """(features, hidden)"""

    inner_bias: Doubles
    """(hidden,)"""

    outer: Doubles
    """(hidden,)"""

    outer_bias: float
    epoch: int
    """The epoch whose weights these are, from 1."""

    train_losses: tuple[float, ...]
    val_losses: tuple[float, ...]
    """One loss per epoch; none without validation triplets."""

    def scores(self, features: NDArray[Any]) -> Doubles:
        """Score pairs with the click ranker by features (pairs, features), (pairs,); equal rows have bit-equal scores."""
        assert features.shape[1] == len(self.inner), features.shape
        out = np.empty(len(features), np.float64)
        for start in range(0, len(features), _RANKER_BLOCK):
            block = features[start : start + _RANKER_BLOCK].astype(np.float64)
            hidden = np.tile(self.inner_bias, (len(block), 1))  # (block, hidden)
            for column, weights in zip(block.T, self.inner, strict=True):
                hidden += column[:, None] * weights  # the sum order of a matrix product depends on the block
            total = (np.maximum(hidden, 0) * self.outer).sum(axis=1) + self.outer_bias
            out[start : start + _RANKER_BLOCK] = 1 / (1 + np.exp(-np.clip(total, -700, 700)))
        return out


def train_ranker(
    train: ClickTriplets,
    val: ClickTriplets | None = None,
    *,
    seed: int = 7,
    recipe: RankerRecipe | None = None,
    reporter: Reporter = QUIET,
) -> Ranker:
    """Train the click ranker to score clicked papers above the others of their list."""
    recipe = recipe or RankerRecipe()
    if not len(train):
        raise UserError("the training clicks hold no list of two papers or more, so there is no order to learn")
    with _one_thread() as torch, reporter.task("training the ranker", recipe.epochs, "epochs") as advance:
        training = _Training(torch, train, recipe, seed)
        best, train_losses, val_losses = training.weights(), list[float](), list[float]()
        best_epoch, lowest = 0, math.inf
        for epoch in range(1, recipe.epochs + 1):
            train_losses.append(training.run_epoch(epoch))
            if val is not None and len(val):
                val_losses.append(training.loss_of(val))
            if not val_losses or val_losses[-1] < lowest:
                best, best_epoch, lowest = training.weights(), epoch, val_losses[-1] if val_losses else math.inf
            advance(1)
            if epoch - best_epoch >= recipe.patience:
                break
    inner, inner_bias, outer, outer_bias = best
    return Ranker(
        inner, inner_bias, outer[:, 0], float(outer_bias[0]), best_epoch, tuple(train_losses), tuple(val_losses)
    )


@contextmanager
def _one_thread() -> Iterator[Any]:
    """Run torch on one thread: as fast for so small a network, and the order of sums is the same on every machine."""
    torch = require("torch", extra="minilm")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield torch
    finally:
        torch.set_num_threads(threads)


class _Training:
    """The click ranker during training; its random numbers are its own, torch's global generator is left alone."""

    def __init__(self, torch: Any, data: ClickTriplets, recipe: RankerRecipe, seed: int) -> None:
        self._torch, self._recipe, self._seed = torch, recipe, seed
        self._data = self._tensors(data)
        draw = stream(seed, "click ranker", "start")
        shapes = [(data.clicked.shape[1], recipe.hidden), (recipe.hidden, 1)]
        self._parameters = []
        for inputs, outputs in shapes:
            bound = 1 / math.sqrt(inputs)
            for shape in [(inputs, outputs), (outputs,)]:
                start = draw.uniform(-bound, bound, shape).astype(np.float32)
                self._parameters.append(torch.from_numpy(start).requires_grad_())
        self._optimizer = torch.optim.Adadelta(self._parameters, lr=1.0, rho=recipe.rho, eps=1e-6, foreach=False)

    def weights(self) -> list[Doubles]:
        """Copy the current weights of the click ranker."""
        return [tensor.detach().numpy().astype(np.float64) for tensor in self._parameters]

    def run_epoch(self, epoch: int) -> float:
        """Train the click ranker for one epoch over the triplets and return the mean loss of its batches."""
        draw = stream(self._seed, "click ranker", "epoch", epoch)
        order = self._torch.from_numpy(draw.permutation(len(self._data[0])))
        losses = []
        for rows in order.split(self._recipe.batch):
            loss = self._loss([part[rows] for part in self._data], draw)
            self._optimizer.zero_grad()
            loss.backward()
            self._torch.nn.utils.clip_grad_value_(self._parameters, self._recipe.clip)
            self._optimizer.step()
            losses.append(loss.item())
        return float(np.mean(losses))

    def loss_of(self, data: ClickTriplets) -> float:
        """Return the mean loss of the batches of these triplets, without dropout."""
        batches = zip(*(part.split(self._recipe.batch) for part in self._tensors(data)), strict=True)
        with self._torch.no_grad():
            return float(np.mean([self._loss(list(batch), None).item() for batch in batches]))

    def _tensors(self, data: ClickTriplets) -> list[Any]:
        parts = (data.clicked, data.others, data.propensities)
        return [self._torch.from_numpy(np.ascontiguousarray(part, np.float32)) for part in parts]

    def _loss(self, batch: list[Any], draw: np.random.Generator | None) -> Any:
        """Compute the mean of max(0, margin - (score of clicked - score of other)) / propensity."""
        clicked, others, propensities = batch
        scores = self._scores(self._torch.cat([clicked, others]), draw)  # (2 * batch,)
        gaps = scores[: len(clicked)] - scores[len(clicked) :]
        return ((self._recipe.margin - gaps).clamp(min=0) / propensities).mean()

    def _scores(self, features: Any, draw: np.random.Generator | None) -> Any:
        """Score features with the current weights; dropout only where `draw` is a generator."""
        inner, inner_bias, outer, outer_bias = self._parameters
        hidden = (features @ inner + inner_bias).relu()  # (rows, hidden)
        if draw is not None and self._recipe.dropout > 0:
            mask = draw.random(tuple(hidden.shape), np.float32) >= self._recipe.dropout
            hidden = hidden * self._torch.from_numpy(mask) / (1 - self._recipe.dropout)
        return (hidden @ outer + outer_bias).sigmoid()[:, 0]
