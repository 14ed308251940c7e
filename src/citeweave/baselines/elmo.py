"""ELMo-style vectors: mean states of a small two-layer LSTM language model, trained on the corpus.

    n-grams of every word -> their mean -> words (words, H)
    words   (texts, length, H) -> LSTM 1 -> LSTM 2, left to right; and two others right to left
    layers  words twice | LSTM 1 of both directions | LSTM 2 of both directions, each (texts, length, 2 H)

As in Peters et al. (2018): neither direction sees the other, the second layer adds to the first, both directions share
words and softmax. Unlike there, a word is the mean of its n-grams of letters instead of a convolution over letters,
which learns far too slowly for minutes of training, and the softmax is adaptive (Grave et al. 2017) instead of sampled.

"It can provide paragraph or document embeddings by averaging each token's representation for all 3 LSTM layers. We
used the 768-dimensional pretrained ELMo model in AllenNLP" (Cohan et al. 2020, appendix A; Peters et al. 2018). That
model was trained for weeks on a billion words; this one has its shape, states of 64 numbers and minutes of training. It
shows what such a model learns from some hundred thousand words of the corpus: a weak baseline. More `steps` make it
better. Runs on one thread, so that a seed fixes the result.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.baselines.data import BaselineData, Floats, seeded_torch
from citeweave.baselines.word_vectors import break_at_separator
from citeweave.core.arguments import as_texts
from citeweave.core.errors import UserError
from citeweave.core.options import Range, check
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import ModuleDict


BUCKETS = 40_000
"""Rows of the embedding shared by all n-grams of words."""

_NGRAMS = (3, 4, 5)


@dataclass(frozen=True)
class WordBatch:
    """Texts of a language-model batch as a padded rectangle of words."""

    ngrams: Tensor
    """N-grams of the distinct words of these texts, one word after the other."""

    starts: Tensor
    """(words,): where the n-grams of each word begin."""

    places: Tensor
    """(texts, length): which word stands where; anything beyond the end of a text."""

    lengths: Tensor
    """(texts,): words of each text."""


@lru_cache(maxsize=200_000)
def _hash_ngrams(word: str) -> tuple[int, ...]:
    """Hash a word and its n-grams of 3 to 5 letters to embedding rows, with marks around the word.

    >>> len(_hash_ngrams("ab")), _hash_ngrams("ab") == _hash_ngrams("ba")
    (3, False)
    """
    marked = f"<{word}>"
    grams = {marked} | {marked[at : at + size] for size in _NGRAMS for at in range(len(marked) - size + 1)}
    return tuple(sorted(zlib.crc32(gram.encode("utf-8", "replace")) % BUCKETS for gram in grams))


def new_network(torch: Any, hidden: int, classes: int) -> ModuleDict:
    """Build the LSTM language model; it predicts `classes` words, the most frequent first."""
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
    """Return the three layers of the LSTM model, (texts, length, 2 hidden) each: left to right, then right to left."""
    words = network["words"](batch.ngrams, batch.starts)[batch.places]  # (texts, length, hidden)
    turn = _reverse_places(torch, batch)[:, :, None].expand_as(words)
    left, right = [words], [words.gather(1, turn)]
    for layer in (1, 2):
        for side, states in (("left", left), ("right", right)):
            new = network[f"{side}{layer}"](states[-1])[0]
            states.append(new + states[-1] if layer == 2 else new)
    return [torch.cat([one, other.gather(1, turn)], dim=2) for one, other in zip(left, right, strict=True)]


def language_loss(torch: Any, network: ModuleDict, batch: WordBatch, targets: Tensor) -> Tensor:
    """Return the language-model loss of predicting the next word from the left and the previous one from the right.

    `targets` (texts, length) are the words' classes in the softmax.
    """
    left, right = layers(torch, network, batch)[-1].chunk(2, dim=2)  # (texts, length, hidden) each
    # a word that has one after it in its text
    has_next = torch.arange(targets.shape[1] - 1)[None, :] < batch.lengths[:, None] - 1  # (texts, length - 1)
    states = torch.cat([left[:, :-1][has_next], right[:, 1:][has_next]])
    wanted = torch.cat([targets[:, 1:][has_next], targets[:, :-1][has_next]])
    loss: Tensor = network["softmax"](states, wanted).loss
    return loss


def text_means(torch: Any, network: ModuleDict, batch: WordBatch) -> NDArray[np.float32]:
    """Return the mean of LSTM states over words and layers, (texts, 2 hidden)."""
    inside = torch.arange(batch.places.shape[1])[None, :] < batch.lengths[:, None]  # (texts, length)
    total = sum(layers(torch, network, batch)) * inside[:, :, None]
    return np.asarray((total.sum(dim=1) / (3 * batch.lengths[:, None].clamp(min=1))).numpy())


def _reverse_places(torch: Any, batch: WordBatch) -> Tensor:
    """Return each word's place when every text is read backwards, (texts, length); its own inverse."""
    places = torch.arange(batch.places.shape[1])[None, :]
    lengths = batch.lengths[:, None]
    backwards: Tensor = torch.where(places < lengths, lengths - 1 - places, places)
    return backwards


# Training on a corpus, and encoding

_TOKEN = re.compile(r"\w+|[^\w\s]")
_RECTANGLE = 8192
"""Largest number of words, padding included, encoded at a time."""


@dataclass(frozen=True, slots=True)
class ElmoOptions:
    """Options of the ELMo-style language model."""

    hidden: Annotated[int, Range(above=0)] = 64
    """Size of a state; a vector consists of two, one per direction."""

    steps: Annotated[int, Range(above=0)] = 1500
    """Training steps, each on `batch` windows of text."""

    batch: Annotated[int, Range(above=0)] = 16
    length: Annotated[int, Range(2)] = 32
    """Words of a window."""

    rate: Annotated[float, Range(above=0)] = 0.01
    """Learning rate of Adam, decaying linearly to 0."""

    vocabulary: Annotated[int, Range(above=0)] = 10_000
    """Number of words that can be predicted, the most frequent ones; all others are one class. Every word can be read."""

    max_words: Annotated[int, Range(above=0)] = 256
    """Maximum number of words encoded of a text."""

    def __post_init__(self) -> None:
        check(self, "elmo")


class Elmo:
    """Encoder of texts by a trained ELMo-style language model."""

    name = "elmo"

    def __init__(self, revision: str, network: ModuleDict, options: ElmoOptions) -> None:
        self.revision, self.dimension = revision, 2 * options.hidden
        self._network, self._options = network, options

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        tokens = [split_tokens(text)[: self._options.max_words] for text in texts]
        out = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        with (
            seeded_torch(0) as torch,
            torch.inference_mode(),
            reporter.task("elmo", len(texts), "texts") as advance,
        ):
            for rows in _group_by_length(tokens):
                batch = build_batch(torch, [tokens[row] for row in rows])
                out[rows] = text_means(torch, self._network, batch)
                advance(len(rows))
        return out


def split_tokens(text: str) -> list[str]:
    """Split a text into lower-case words and punctuation characters for the language model.

    >>> split_tokens("Deep nets[SEP]A (new) idea.")
    ['deep', 'nets', 'a', '(', 'new', ')', 'idea', '.']
    """
    return _TOKEN.findall(break_at_separator(text).lower())


def fit_elmo(data: BaselineData, options: ElmoOptions, revision: str) -> Elmo:
    """Train the LSTM language model on windows of random texts of the corpus."""
    texts = [tokens for text in data.texts() if len(tokens := split_tokens(text)) > 1]
    if not texts:
        raise UserError(f"{data.corpus.folder} has no text of two words; a language model needs some to learn from")
    rng = stream(data.seed, "elmo")
    classes = _rank_words(texts, options.vocabulary)
    with seeded_torch(int(rng.integers(2**62))) as torch:
        network = new_network(torch, options.hidden, len(classes) + 1)
        optimizer = torch.optim.Adam(network.parameters(), lr=options.rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, options.steps)
        with data.reporter.task("language model", options.steps, "steps") as advance:
            for step in range(options.steps):
                windows = _draw_windows(texts, options, rng)
                loss = language_loss(
                    torch, network, build_batch(torch, windows), build_targets(torch, windows, classes)
                )
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                advance(1)
                if (step + 1) % 250 == 0:
                    data.reporter.say(f"step {step + 1} of {options.steps}: loss {float(loss.detach()):.4g}")
    return Elmo(revision, network.eval().requires_grad_(False), options)


def _rank_words(texts: Sequence[Sequence[str]], size: int) -> dict[str, int]:
    """Return the `size` most frequent words and their ranks; ties go to the word that occurs first."""
    counts = Counter(token for tokens in texts for token in tokens)
    return {word: rank for rank, (word, _) in enumerate(counts.most_common(size))}


def _draw_windows(texts: Sequence[list[str]], options: ElmoOptions, rng: np.random.Generator) -> list[list[str]]:
    """Draw windows of words at random places of random texts."""
    windows = []
    for row in rng.integers(len(texts), size=options.batch).tolist():
        start = int(rng.integers(max(len(texts[row]) - options.length, 0) + 1))
        windows.append(texts[row][start : start + options.length])
    return windows


def build_batch(torch: Any, texts: Sequence[Sequence[str]]) -> WordBatch:
    """Texts side by side, shorter ones filled up."""
    seen: dict[str, int] = {}
    longest = max(len(tokens) for tokens in texts)
    places = np.zeros((len(texts), longest), np.int64)  # (texts, length)
    for row, tokens in enumerate(texts):
        places[row, : len(tokens)] = [seen.setdefault(token, len(seen)) for token in tokens]
    ngrams = [_hash_ngrams(word) for word in seen]
    starts = np.cumsum([0, *(len(rows) for rows in ngrams[:-1])])
    return WordBatch(
        torch.tensor([row for rows in ngrams for row in rows]),
        torch.from_numpy(starts),
        torch.from_numpy(places),
        torch.tensor([len(tokens) for tokens in texts]),
    )


def build_targets(torch: Any, texts: Sequence[Sequence[str]], classes: dict[str, int]) -> Tensor:
    """Return the softmax class of each word, (texts, length); the last class stands for all rare words."""
    targets = np.zeros((len(texts), max(len(tokens) for tokens in texts)), np.int64)
    for row, tokens in enumerate(texts):
        targets[row, : len(tokens)] = [classes.get(token, len(classes)) for token in tokens]
    tensor: Tensor = torch.from_numpy(targets)
    return tensor


def _group_by_length(tokens: Sequence[Sequence[str]]) -> Iterator[NDArray[np.int64]]:
    """Yield rows of non-empty texts of similar lengths, in rectangles of at most _RECTANGLE words."""
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
