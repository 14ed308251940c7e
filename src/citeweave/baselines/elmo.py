"""ELMo-style vectors: the mean over words and layers of a small language model that is trained on the corpus.

"It can provide paragraph or document embeddings by averaging each token's representation for all 3 LSTM layers. We
used the 768-dimensional pretrained ELMo model in AllenNLP" (Cohan et al. 2020, appendix A; Peters et al. 2018). That
model saw a billion words for weeks; this one has its shape (`elmo_network.py`), states of 64 numbers and minutes, and
is to be read as what such a model learns from some hundred thousand words of the corpus: a weak baseline. More `steps`
make it better. Runs on one thread, so that a seed fixes the result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.arguments import as_texts
from citeweave.baselines.elmo_network import Batch, language_loss, new_network, pieces_of, text_means
from citeweave.baselines.material import Floats, Material, seeded_torch
from citeweave.baselines.terms import without_marks
from citeweave.errors import UserError
from citeweave.progress import QUIET, Reporter
from citeweave.randomness import stream

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import ModuleDict

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


def fit_elmo(material: Material, options: ElmoOptions, revision: str) -> Elmo:
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


def _batch(torch: Any, texts: Sequence[Sequence[str]]) -> Batch:
    """Texts side by side, shorter ones filled up."""
    seen: dict[str, int] = {}
    longest = max(len(tokens) for tokens in texts)
    places = np.zeros((len(texts), longest), np.int64)  # (texts, length)
    for row, tokens in enumerate(texts):
        places[row, : len(tokens)] = [seen.setdefault(token, len(seen)) for token in tokens]
    pieces = [pieces_of(word) for word in seen]
    starts = np.cumsum([0, *(len(piece) for piece in pieces[:-1])])
    return Batch(
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
