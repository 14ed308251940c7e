"""The network of the ELMo-style baseline: pieces of words, two LSTM layers in each direction, a softmax over words.

    pieces  of every word -> their mean -> words (words, H)
    words   (texts, length, H) -> LSTM 1 -> LSTM 2, from the left; and two others from the right
    layers  words twice | LSTM 1 of both directions | LSTM 2 of both directions, each (texts, length, 2 H)

As in Peters et al. (2018): neither direction sees the other, the second layer adds to the first, both directions share
words and softmax. Unlike there, a word is the mean of its n-grams of letters instead of a convolution over letters,
which learns far too slowly for minutes of training, and the softmax is adaptive (Grave et al. 2017) instead of sampled.
Knows no texts.

ELMo-style vectors: the mean over words and layers of a small language model that is trained on the corpus.

"It can provide paragraph or document embeddings by averaging each token's representation for all 3 LSTM layers. We
used the 768-dimensional pretrained ELMo model in AllenNLP" (Cohan et al. 2020, appendix A; Peters et al. 2018). That
model saw a billion words for weeks; this one has its shape (`elmo_network.py`), states of 64 numbers and minutes, and
is to be read as what such a model learns from some hundred thousand words of the corpus: a weak baseline. More `steps`
make it better. Runs on one thread, so that a seed fixes the result.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.baselines.data import BaselineData, Floats, seeded_torch
from citeweave.baselines.word_vectors import without_marks
from citeweave.core.arguments import as_texts
from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import ModuleDict


BUCKETS = 40_000
"""Rows that all pieces share."""

_SIZES = (3, 4, 5)


@dataclass(frozen=True)
class WordBatch:
    """Texts as a rectangle of words."""

    pieces: Tensor
    """The pieces of the different words of these texts, one word after the other."""

    starts: Tensor
    """(words,): where the pieces of each word begin."""

    places: Tensor
    """(texts, length): which of them stands where; anything beyond the end of a text."""

    lengths: Tensor
    """(texts,)"""


@lru_cache(maxsize=200_000)
def pieces_of(word: str) -> tuple[int, ...]:
    """The numbers of a word's pieces: itself and its n-grams of 3 to 5 letters, with marks around the word.

    >>> len(pieces_of("ab")), pieces_of("ab") == pieces_of("ba")
    (3, False)
    """
    marked = f"<{word}>"
    grams = {marked} | {marked[at : at + size] for size in _SIZES for at in range(len(marked) - size + 1)}
    return tuple(sorted(zlib.crc32(gram.encode("utf-8", "replace")) % BUCKETS for gram in grams))


def new_network(torch: Any, hidden: int, classes: int) -> ModuleDict:
    """Modules by name; `classes` words can be predicted, the most frequent first."""
    nn = torch.nn
    cutoffs = [cut for cut in (500, 3000) if cut < classes] or [max(classes // 2, 1)]
    lstm = {
        f"{side}{layer}": nn.LSTM(hidden, hidden, batch_first=True) for side in ("left", "right") for layer in (1, 2)
    }
    network: ModuleDict = nn.ModuleDict(
        {
            "words": nn.EmbeddingBag(BUCKETS, hidden, mode="mean"),
            "softmax": nn.AdaptiveLogSoftmaxWithLoss(hidden, classes, cutoffs, div_value=2.0),
            **lstm,
        }
    )
    return network


def layers(torch: Any, network: ModuleDict, batch: WordBatch) -> list[Tensor]:
    """The three layers, (texts, length, 2 hidden) each: from the left in the first half, from the right in the second."""
    words = network["words"](batch.pieces, batch.starts)[batch.places]  # (texts, length, hidden)
    turn = _turned(torch, batch)[:, :, None].expand_as(words)
    left, right = [words], [words.gather(1, turn)]
    for layer in (1, 2):
        for side, states in (("left", left), ("right", right)):
            new = network[f"{side}{layer}"](states[-1])[0]
            states.append(new + states[-1] if layer == 2 else new)
    return [torch.cat([one, other.gather(1, turn)], dim=2) for one, other in zip(left, right, strict=True)]


def language_loss(torch: Any, network: ModuleDict, batch: WordBatch, targets: Tensor) -> Tensor:
    """Mean surprise at the next word, read from the left, and at the word before, read from the right.

    `targets` (texts, length) are the numbers of the words for the softmax.
    """
    left, right = layers(torch, network, batch)[-1].chunk(2, dim=2)  # (texts, length, hidden) each
    # a word that has one after it in its text
    has_next = torch.arange(targets.shape[1] - 1)[None, :] < batch.lengths[:, None] - 1  # (texts, length - 1)
    states = torch.cat([left[:, :-1][has_next], right[:, 1:][has_next]])
    wanted = torch.cat([targets[:, 1:][has_next], targets[:, :-1][has_next]])
    loss: Tensor = network["softmax"](states, wanted).loss
    return loss


def text_means(torch: Any, network: ModuleDict, batch: WordBatch) -> NDArray[np.float32]:
    """Mean over words and layers, (texts, 2 hidden)."""
    inside = torch.arange(batch.places.shape[1])[None, :] < batch.lengths[:, None]  # (texts, length)
    total = sum(layers(torch, network, batch)) * inside[:, :, None]
    return np.asarray((total.sum(dim=1) / (3 * batch.lengths[:, None].clamp(min=1))).numpy())


def _turned(torch: Any, batch: WordBatch) -> Tensor:
    """(texts, length): the place that each place takes when every text is read backwards; its own inverse."""
    places = torch.arange(batch.places.shape[1])[None, :]
    lengths = batch.lengths[:, None]
    turned: Tensor = torch.where(places < lengths, lengths - 1 - places, places)
    return turned


# ELMo-style vectors: the mean over words and layers of a small language model that is trained on the corpus.

_TOKEN = re.compile(r"\w+|[^\w\s]")
_RECTANGLE = 8192
"""Words of texts encoded at a time."""


@dataclass(frozen=True, slots=True)
class ElmoOptions:
    """Options of the language model."""

    hidden: int = 64
    """Numbers of a state; a vector has two of them, one of each direction."""

    steps: int = 1500
    """Steps of training, each on `batch` pieces of text."""

    batch: int = 16
    length: int = 32
    """Words of a piece."""

    rate: float = 0.01
    """Learning rate of Adam, which falls to 0 in a straight line."""

    vocabulary: int = 10_000
    """The most frequent words can be predicted; all other words are one. Every word can be read."""

    longest: int = 256
    """Words of a text that are encoded."""

    def __post_init__(self) -> None:
        for name in ("hidden", "steps", "batch", "rate", "vocabulary", "longest"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} of elmo is {getattr(self, name)}; it must be over 0")
        if self.length < 2:
            raise UserError(f"length of elmo is {self.length}; it must be 2 or more")


class Elmo:
    """A trained language model."""

    name = "elmo"

    def __init__(self, revision: str, network: ModuleDict, options: ElmoOptions) -> None:
        self.revision, self.dimension = revision, 2 * options.hidden
        self._network, self._options = network, options

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        tokens = [tokens_of(text)[: self._options.longest] for text in texts]
        out = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        with (
            seeded_torch(0) as torch,
            torch.inference_mode(),
            reporter.task("elmo", len(texts), "texts") as advance,
        ):
            for rows in _alike(tokens):
                batch = _batch(torch, [tokens[row] for row in rows])
                out[rows] = text_means(torch, self._network, batch)
                advance(len(rows))
        return out


def tokens_of(text: str) -> list[str]:
    """Words and signs of a text, in small letters.

    >>> tokens_of("Deep nets[SEP]A (new) idea.")
    ['deep', 'nets', 'a', '(', 'new', ')', 'idea', '.']
    """
    return _TOKEN.findall(without_marks(text).lower())


def fit_elmo(material: BaselineData, options: ElmoOptions, revision: str) -> Elmo:
    """Train the language model on pieces of random texts."""
    texts = [tokens for text in material.texts() if len(tokens := tokens_of(text)) > 1]
    if not texts:
        raise UserError(f"{material.corpus.folder} has no text of two words; a language model needs some to learn from")
    rng = stream(material.seed, "elmo")
    numbers = _frequent(texts, options.vocabulary)
    with seeded_torch(int(rng.integers(2**62))) as torch:
        network = new_network(torch, options.hidden, len(numbers) + 1)
        optimizer = torch.optim.Adam(network.parameters(), lr=options.rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, options.steps)
        with material.reporter.task("language model", options.steps, "steps") as advance:
            for step in range(options.steps):
                pieces = _pieces(texts, options, rng)
                loss = language_loss(torch, network, _batch(torch, pieces), _targets(torch, pieces, numbers))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                advance(1)
                if (step + 1) % 250 == 0:
                    material.reporter.say(f"step {step + 1} of {options.steps}: loss {float(loss.detach()):.4g}")
    return Elmo(revision, network.eval().requires_grad_(False), options)


def _frequent(texts: Sequence[Sequence[str]], most: int) -> dict[str, int]:
    """The most frequent words and their ranks; of equally frequent ones those that come first."""
    counts = Counter(token for tokens in texts for token in tokens)
    return {word: rank for rank, (word, _) in enumerate(counts.most_common(most))}


def _pieces(texts: Sequence[list[str]], options: ElmoOptions, rng: np.random.Generator) -> list[list[str]]:
    """Pieces of random texts that begin anywhere."""
    pieces = []
    for row in rng.integers(len(texts), size=options.batch).tolist():
        start = int(rng.integers(max(len(texts[row]) - options.length, 0) + 1))
        pieces.append(texts[row][start : start + options.length])
    return pieces


def _batch(torch: Any, texts: Sequence[Sequence[str]]) -> WordBatch:
    """Texts side by side, shorter ones filled up."""
    seen: dict[str, int] = {}
    longest = max(len(tokens) for tokens in texts)
    places = np.zeros((len(texts), longest), np.int64)  # (texts, length)
    for row, tokens in enumerate(texts):
        places[row, : len(tokens)] = [seen.setdefault(token, len(seen)) for token in tokens]
    pieces = [pieces_of(word) for word in seen]
    starts = np.cumsum([0, *(len(piece) for piece in pieces[:-1])])
    return WordBatch(
        torch.tensor([number for piece in pieces for number in piece]),
        torch.from_numpy(starts),
        torch.from_numpy(places),
        torch.tensor([len(tokens) for tokens in texts]),
    )


def _targets(torch: Any, texts: Sequence[Sequence[str]], numbers: dict[str, int]) -> Tensor:
    """Numbers of the words for the softmax, (texts, length); the last number is every other word."""
    targets = np.zeros((len(texts), max(len(tokens) for tokens in texts)), np.int64)
    for row, tokens in enumerate(texts):
        targets[row, : len(tokens)] = [numbers.get(token, len(numbers)) for token in tokens]
    numbered: Tensor = torch.from_numpy(targets)
    return numbered


def _alike(tokens: Sequence[Sequence[str]]) -> Iterator[NDArray[np.int64]]:
    """Rows of texts of similar lengths, empty ones left out, in rectangles of limited size."""
    lengths = np.array([len(words) for words in tokens], np.int64)
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * lengths[order[end]] <= _RECTANGLE:
            end += 1
        yield order[start:end]
        start = end
