"""The weights behind the pooling `aspect_words`: vectors of the words for aspects, and one linear layer over them.

    aspect_words/config.json         {"format": "citeweave-aspect-words", "version": 1, "words": ["background", ...]}
    aspect_words/model.safetensors   queries (words, dimension), weight (dimension, dimension), bias (dimension,)

The numbers are a part of the model itself, `aspect_words`: whoever trains, copies or moves the model takes them along.
The queries stay as they are; weight and bias are trained. sentence-transformers knows no such module, so that a saved
folder says `cls` to it and has this one beside. Does not attend: `sentence_attention.py` does.

The pooling `aspect_words`: a paper's vector out of those of its sentences, weighed by what an aspect asks for.

    [CLS] title [SEP] [CLS] sentence 1 [SEP] [CLS] sentence 2 [SEP]      the state of every [CLS]: a sentence's vector
    background, method, result, miscellaneous  ->  linear layer          one query a word
    of every query: softmax over the sentences of (query . sentence) / sqrt(dimension), then their weighted mean
    the mean of the four is the paper's vector

SciAspect(Weighted): SciAspect thesis (TUM 2023), experiment 3.5; marks before sentences as Liu and Lapata 2019 set
them; attention as in Vaswani et al. 2017, equation 1. The words are embedded once with the start model, as the state of
[CLS] in `[CLS] word [SEP]`, so that queries and sentences begin in one space. Texts are read by `reading.py`.

Vectors of texts from a network and its settings, with gradients where they are asked for.

    vectors = text_vectors(network, [tokens, ...], Settings("mean", 256))       (texts, dimension)

Used under `torch.inference_mode` by encoders and with gradients by training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError, require
from citeweave.core.files import write_json
from citeweave.encoders.model_folder import ASPECT_WORDS, WEIGHTS, Settings, check_format, read_json
from citeweave.encoders.network import Network
from citeweave.encoders.pooling import PARAMETER, check_finite, pool, read_tensors
from citeweave.encoders.tokens import TextReader, Tokens

if TYPE_CHECKING:
    from torch import Tensor


WORDS = ("background", "method", "result", "miscellaneous")
"""The aspects of the SciAspect thesis (TUM 2023), in words that a start model knows."""

PREFIX = f"{ASPECT_WORDS}."
"""Before the names of these numbers among the model's."""

ASPECT_WORDS_FORMAT, ASPECT_WORDS_VERSION = "citeweave-aspect-words", 1


def is_of_pooling(name: str) -> bool:
    """Whether a weight of a model belongs to its pooling: a mix of layers, or the words for aspects.

    >>> is_of_pooling("aspect_words.bias"), is_of_pooling("layer_mix"), is_of_pooling("embeddings.word_embeddings.weight")
    (True, True, False)
    """
    return name == PARAMETER or name.startswith(PREFIX)


def add_words(model: Any, numbers: dict[str, Tensor] | None = None) -> None:
    """Give a model words for aspects: those given, else a linear layer at the identity and no words yet (zeros).

    At the identity the words themselves ask first, and nothing depends on a seed.
    """
    torch = require("torch", extra="minilm")
    size = int(model.config.hidden_size)
    if numbers is None:
        numbers = {"queries": torch.zeros(len(WORDS), size), "weight": torch.eye(size), "bias": torch.zeros(size)}
    place, words = next(model.parameters()).device, torch.nn.Module()
    own = {name: tensor.detach().to(place, torch.float32).clone() for name, tensor in numbers.items()}
    words.register_buffer("queries", own["queries"])  # (words, dimension)
    words.register_parameter("weight", torch.nn.Parameter(own["weight"]))  # (dimension, dimension)
    words.register_parameter("bias", torch.nn.Parameter(own["bias"]))  # (dimension,)
    model.add_module(ASPECT_WORDS, words)


def word_numbers(model: Any) -> dict[str, Tensor]:
    """Queries, weight and bias of a model that has them, as it holds them."""
    words = getattr(model, ASPECT_WORDS)
    return {"queries": words.queries, "weight": words.weight, "bias": words.bias}


def word_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """What shapes they have, whether the model has them or not."""
    size = int(model.config.hidden_size)
    return {"queries": (len(WORDS), size), "weight": (size, size), "bias": (size,)}


def save_words(folder: Path, model: Any) -> None:
    """Write them into the folder of a saved model."""
    plain = {name: tensor.detach().float().cpu().contiguous() for name, tensor in word_numbers(model).items()}
    check_finite({f"{PREFIX}{name}": tensor for name, tensor in plain.items()})
    place = folder / ASPECT_WORDS
    place.mkdir(exist_ok=True)
    write_json(
        place / "config.json", {"format": ASPECT_WORDS_FORMAT, "version": ASPECT_WORDS_VERSION, "words": list(WORDS)}
    )
    require("safetensors.torch", extra="minilm").save_file(plain, place / WEIGHTS, metadata={"format": "pt"})


def read_words(place: Path, model: Any) -> dict[str, Tensor]:
    """The numbers of a folder that may come from a stranger: nothing is believed before it is compared."""
    path = place / "config.json"
    config = read_json(path)
    check_format(path, config, ASPECT_WORDS_FORMAT, ASPECT_WORDS_VERSION)
    if config.get("words") != list(WORDS):
        raise InputError(f"{path}: words is {str(config.get('words'))[:80]}; it must be {', '.join(WORDS)}")
    found = read_tensors(place / WEIGHTS, word_shapes(model))
    if not bool(found["queries"].any(dim=1).all()):
        raise InputError(f"{place / WEIGHTS}: a row of queries is all zero, which is no word; copy the folder again")
    return found


# The pooling `aspect_words`: a paper's vector out of those of its sentences, weighed by what an aspect asks for.


def attended_vectors(network: Network, batch: Sequence[Tokens]) -> Tensor:
    """Vectors (texts, dimension) of texts that were read by sentence, padded or packed; differentiable."""
    torch = require("torch", extra="minilm")
    marks = [np.flatnonzero(tokens == tokens[0]) for tokens in batch]  # the first token of a text is its mark
    counts = np.array([len(own) for own in marks], np.int64)  # (texts,)
    starts = np.concatenate(marks)  # (sentences,)
    texts = np.repeat(np.arange(len(batch)), counts)  # (sentences,)
    sentences = network.token_states(batch).spans(texts, starts, starts + 1)  # (sentences, dimension)
    with torch.autocast(sentences.device.type, enabled=False):
        return attend(sentences, counts, queries_of(network.model))


def queries_of(model: Any) -> Tensor:
    """The words for aspects through the trained layer, (words, dimension)."""
    torch = require("torch", extra="minilm")
    numbers = word_numbers(model)
    found: Tensor = torch.nn.functional.linear(numbers["queries"], numbers["weight"], numbers["bias"])
    return found


def attend(sentences: Tensor, counts: NDArray[np.int64], queries: Tensor) -> Tensor:
    """Sentences (sentences, dimension), text after text, `counts` of each; queries (words, dimension) -> (texts, dimension).

    The mean over words of weighted means is one weighted mean, by the mean of the weights.
    """
    torch = require("torch", extra="minilm")
    most = int(counts.max())
    begins = np.cumsum(counts) - counts  # (texts,)
    places = np.minimum(begins[:, None] + np.arange(most), len(sentences) - 1)  # (texts, most)
    rows, is_there = (
        torch.from_numpy(array).to(sentences.device, non_blocking=True)
        for array in (places, np.arange(most) < counts[:, None])
    )
    padded = sentences[rows]  # (texts, most, dimension)
    scores = padded @ queries.T / sentences.shape[1] ** 0.5  # (texts, most, words)
    weights = scores.masked_fill(~is_there[:, :, None], -torch.inf).softmax(dim=1).mean(dim=2)  # (texts, most)
    found: Tensor = (weights[:, :, None] * padded).sum(dim=1)  # (texts, dimension)
    return found


def embed_words(network: Network, reader: TextReader) -> None:
    """Give the words for aspects of a model their vectors, where they have none yet."""
    torch = require("torch", extra="minilm")
    queries = word_numbers(network.model)["queries"]
    if bool(queries.any()):
        return
    batch = [np.concatenate([reader.opening, ids, reader.closing]) for ids in reader.pieces(WORDS)]
    with torch.no_grad():  # not inference_mode: training goes through these numbers
        queries.copy_(network.token_states(batch).cls())


# Vectors of texts from a network and its settings, with gradients where they are asked for.


def text_vectors(network: Network, batch: Sequence[Tokens], settings: Settings) -> Tensor:
    """Vectors (texts, dimension) of texts, each of one token or more, as the settings pool and normalize them."""
    if settings.pooling in ("layers", "mix"):
        layers, mask = network.padded(batch, every=True)
        vectors = pool(layers, mask, settings.pooling, getattr(network.model, PARAMETER, None))
    elif settings.pooling == ASPECT_WORDS:
        vectors = attended_vectors(network, batch)
    elif settings.pooling == "cls":
        vectors = network.states(batch, first_only=True).cls()
    else:
        vectors = network.states(batch).mean()
    return normalized(vectors, settings)


def normalized(vectors: Tensor, settings: Settings) -> Tensor:
    """Vectors (texts, dimension) at length 1 where the settings say so."""
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12) if settings.normalize else vectors
