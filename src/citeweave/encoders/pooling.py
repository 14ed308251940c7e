"""Pooling: from the states of a text's tokens to its one vector, with the weights that some poolings learn.

    cls      the state of the first token
    mean     the mean over the tokens, special ones included, padding not (as in sentence-transformers)
    layers   the mean over tokens and over all layers, including the token embeddings (Peters et al. 2018, ELMo, with
             equal weights; the ELMo baseline of Cohan et al. 2020, SPECTER, appendix A)
    mix      the same with a learned weight per layer: sum of w[layer] * states[layer] / sum of w, then the mean over tokens
    aspect_words   sentences weighted by attention from the words for aspects
    title_abstract the mean of two vectors, the states of the first token of the title and of the abstract, each read
             without the other (Cohan et al. 2020, SPECTER, footnote 4: encoded individually, then combined); authors or
             venues in the text are further vectors of that mean

`mix` is sentence-transformers' WeightedLayerPooling, saved and read as that module; it begins with equal weights.

    1_WeightedLayerPooling/config.json         {"word_embedding_dimension": 384, "layer_start": 0, "num_hidden_layers": 6}
    1_WeightedLayerPooling/model.safetensors   layer_weights (num_hidden_layers + 1 - layer_start,)

`aspect_words` is SciAspect(Weighted): SciAspect thesis (TUM 2023), experiment 3.5; marks before sentences as in Liu and
Lapata 2019, attention as in Vaswani et al. 2017, equation 1.

    [CLS] title [SEP] [CLS] sentence 1 [SEP] [CLS] sentence 2 [SEP]      the state of every [CLS]: a sentence's vector
    background, method, result, miscellaneous  ->  linear layer          one query per word
    per query: softmax over the sentences of (query . sentence) / sqrt(dimension), then their weighted mean
    the mean of the four is the paper's vector

The words are embedded once with the start model, as the state of [CLS] in `[CLS] word [SEP]`, so that queries and sentences
begin in one space; they stay fixed, weight and bias are trained. sentence-transformers has no such module, so that a saved
folder says `cls` to it and has this one beside it:

    aspect_words/config.json         {"format": "citeweave-aspect-words", "version": 1, "words": ["background", ...]}
    aspect_words/model.safetensors   queries (words, dimension), weight (dimension, dimension), bias (dimension,)

The learned weights are part of the model itself, `layer_mix` and `aspect_words`, and are trained, copied and moved with it.

    vectors = text_vectors(network, [tokens, ...], Settings("mean", 256))       (texts, dimension), differentiable
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError, require
from citeweave.core.files import write_json
from citeweave.core.ragged import owners_of, to_offsets
from citeweave.encoders.model_folder import (
    ASPECT_WORDS,
    TITLE_ABSTRACT,
    WEIGHTS,
    ModelFolder,
    Settings,
    check_format,
    read_json,
)
from citeweave.encoders.tokens import TextReader, Tokens
from citeweave.encoders.untrusted_model import check_finite, read_tensors

if TYPE_CHECKING:
    from torch import Tensor

POOLINGS = ("cls", "mean", "layers", "mix", ASPECT_WORDS, TITLE_ABSTRACT)

WORDS = ("background", "method", "result", "miscellaneous")
"""The words for aspects of the SciAspect thesis (TUM 2023)."""

PREFIX = f"{ASPECT_WORDS}."
"""Prefix of the aspect words' weights among the model's."""

ASPECT_WORDS_FORMAT, ASPECT_WORDS_VERSION = "citeweave-aspect-words", 1

PARAMETER = "layer_mix"
"""Name of the layer mix among the model's parameters."""

TENSOR = "layer_weights"
"""Name of the layer mix in sentence-transformers' module."""

_SMALLEST_SUM = 1e-6


def add_mix(model: Any, weights: Tensor | None = None) -> None:
    """Add the pooling of several layers, a learned mix, to a model, with these weights (layers + 1,) or equal ones."""
    torch = require("torch", extra="minilm")
    if weights is None:
        weights = torch.ones(count_states(model))
    place = next(model.parameters()).device
    model.register_parameter(PARAMETER, torch.nn.Parameter(weights.detach().to(place, torch.float32).clone()))


def count_states(model: Any) -> int:
    """Return how many layers of states a model has, including the token embeddings."""
    return int(model.config.num_hidden_layers) + 1


def _mix_layers(layers: tuple[Tensor, ...], weights: Tensor) -> Tensor:
    """Mix layers (texts, tokens, dimension) by weights (layers,), (texts, tokens, dimension) in float32."""
    assert len(layers) == len(weights)
    total = layers[0].float() * weights[0]  # (texts, tokens, dimension)
    for layer, weight in zip(layers[1:], weights[1:], strict=True):
        total = total + layer.float() * weight
    return total / weights.sum()


def read_mix(folder: Path, config: dict[str, Any], model: Any) -> Tensor:
    """Read the layer mix of a WeightedLayerPooling folder, (layers + 1,); 0 where the module leaves a layer out."""
    torch = require("torch", extra="minilm")
    layers, start, dimension = count_states(model), config.get("layer_start"), int(model.config.hidden_size)
    width = config.get("embedding_dimension", config.get("word_embedding_dimension"))
    if (width, config.get("num_hidden_layers")) != (dimension, layers - 1):
        raise InputError(
            f"{folder}/config.json is for {config.get('num_hidden_layers')!r} layers of {width!r} numbers; the model "
            f"has {layers - 1} of {dimension}. Copy the whole folder of the model again"
        )
    if type(start) is not int or not 0 <= start < layers:
        raise InputError(f"{folder}/config.json: layer_start is {start!r}; it must be from 0 to {layers - 1}")
    path = folder / "model.safetensors"
    stored = read_tensors(path, {TENSOR: (layers - start,)})[TENSOR]  # (layers - start,)
    check_sum(float(stored.sum()), path)
    weights: Tensor = torch.cat([torch.zeros(start), stored])  # (layers,)
    return weights


def check_sum(total: float, what: object) -> None:
    """Refuse a layer mix whose weights sum to 0, because it is divided by their sum."""
    if abs(total) < _SMALLEST_SUM:
        raise InputError(f"{what}: the weights of the layers add up to {total:.1g}; a mix needs a sum other than 0")


class StatesNetwork(Protocol):
    """What pooling needs of a transformer network: the states of a batch's tokens (`network.py`)."""

    @property
    def model(self) -> Any:
        """The model of transformers."""

    def states(self, batch: Sequence[Tokens], *, first_only: bool = False) -> States:
        """Return the last states of a batch, with `first_only` for `cls()` alone."""

    def token_states(self, batch: Sequence[Tokens]) -> TokenStates:
        """Return the last states of every token of a batch."""

    def padded(self, batch: Sequence[Tokens], *, every: bool = False) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return padded states, of every layer or the last, and the mask of the tokens."""


def text_vectors(network: StatesNetwork, batch: Sequence[Tokens], settings: Settings) -> Tensor:
    """Encode and pool tokenized texts, each of one token or more, as the settings say, (texts, dimension)."""
    if settings.pooling in ("layers", "mix"):
        layers, mask = network.padded(batch, every=True)
        is_mix = settings.pooling == "mix"
        mixed = _mix_layers(layers, getattr(network.model, PARAMETER)) if is_mix else _mean_layers(layers)
        vectors = mean_tokens(mixed, mask)
    elif settings.pooling == ASPECT_WORDS:
        vectors = _aspect_word_vectors(network, batch)
    elif settings.pooling == TITLE_ABSTRACT:
        vectors = _mean_of_parts(network, batch)
    elif settings.pooling == "cls":
        vectors = network.states(batch, first_only=True).cls()
    else:
        vectors = network.states(batch).mean()
    return normalize(vectors, settings)


def normalize(vectors: Tensor, settings: Settings) -> Tensor:
    """Normalize pooled vectors (texts, dimension) to length 1 where the settings say so."""
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12) if settings.normalize else vectors


class States(Protocol):
    """Last states of the tokens of a batch, padded or packed, ready for pooling."""

    def cls(self) -> Tensor:
        """Return the states of the first tokens, (texts, dimension) float32."""

    def mean(self) -> Tensor:
        """Return the means over the tokens, (texts, dimension) float32."""


class TokenStates(States, Protocol):
    """States of every token of a batch, from which pooling can take spans as well."""

    def spans(self, texts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
        """Return the means over spans of tokens, each of one token or more, (spans, dimension) float32.

        Span i is from token starts[i] up to ends[i] of text texts[i]; spans come in order and do not overlap.
        """

    def tokens(self) -> Tensor:
        """Return the states of all tokens, text after text without padding, (tokens, dimension)."""


@dataclass(frozen=True, slots=True)
class PaddedStates:
    """Padded states (texts, tokens, dimension) ready for pooling, and their mask (texts, tokens)."""

    states: Tensor
    mask: Tensor

    def cls(self) -> Tensor:
        return first_token(self.states)

    def mean(self) -> Tensor:
        return mean_tokens(self.states, self.mask)

    def spans(self, texts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
        before = texts * self.states.shape[1]  # (spans,)
        return mean_spans(self.states.flatten(0, 1), before + starts, before + ends)

    def tokens(self) -> Tensor:
        return self.states[self.mask.bool()]


def first_token(states: Tensor) -> Tensor:
    """Return the state of each text's first token, (texts, dimension); texts are padded at their end."""
    return states[:, 0].float()


def mean_tokens(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens of states (texts, tokens, dimension) where the mask is 1, (texts, dimension)."""
    weights = mask.unsqueeze(-1).float()  # (texts, tokens, 1)
    return (states.float() * weights).sum(dim=1) / weights.sum(dim=1)  # every text has a token


def mean_spans(stream: Tensor, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
    """Pool spans of states (tokens, dimension) to their means; spans are in order and disjoint, (spans, dimension)."""
    torch = require("torch", extra="minilm")
    if not len(starts):
        return stream[:0].float()
    # every second segment is a span, the others are the gaps
    bounds = np.concatenate([[0], np.stack([starts, ends], axis=1).ravel(), [len(stream)]])  # (2 spans + 2,)
    offsets = torch.from_numpy(bounds).to(stream.device, non_blocking=True)
    sums = torch.segment_reduce(stream.float(), "sum", offsets=offsets, axis=0)[1::2]  # (spans, dimension)
    means: Tensor = sums / offsets.diff()[1::2, None]
    return means


def _mean_layers(layers: tuple[Tensor, ...]) -> Tensor:
    """Return the mean of layers (texts, tokens, dimension), without a copy of all of them."""
    total = layers[0].float().clone()  # (texts, tokens, dimension)
    for layer in layers[1:]:
        total += layer
    return total / len(layers)


# --- title and abstract apart --------------------------------------------------------------------------


def split_fields(tokens: Tokens) -> list[Tokens]:
    """Split a text's tokens for pooling at every separator, the token it ends with: title, abstract, further fields.

    >>> [field.tolist() for field in split_fields(np.array([2, 7, 8, 3, 9, 3]))]  # [CLS] 7 8 [SEP] 9 [SEP]
    [[2, 7, 8, 3], [2, 9, 3]]
    >>> [field.tolist() for field in split_fields(np.array([2, 7, 3]))]
    [[2, 7, 3]]
    """
    ends = np.flatnonzero(tokens[1:] == tokens[-1]) + 1  # (fields,)
    fields = [np.concatenate([tokens[:1], field]) for field in np.split(tokens[1:], ends[:-1])]
    return [field for field in fields if len(field) > 2] or [tokens]  # a field without words has no vector


def _mean_of_parts(network: StatesNetwork, batch: Sequence[Tokens]) -> Tensor:
    """Encode title, abstract and further fields of each text apart, and return the mean of their first tokens' states."""
    torch = require("torch", extra="minilm")
    parts = [split_fields(tokens) for tokens in batch]
    states = network.states([part for text in parts for part in text], first_only=True).cls()  # (parts, dimension)
    counts = torch.tensor([len(text) for text in parts], device=states.device)  # (texts,)
    means: Tensor = torch.segment_reduce(states, "mean", lengths=counts, axis=0)  # (texts, dimension)
    return means


# --- aspect words: sentences weighted by attention -------------------------------------------------------


def is_pooling_weight(name: str) -> bool:
    """Return whether a weight of a model belongs to its pooling: a mix of layers, or the words for aspects.

    >>> is_pooling_weight("aspect_words.bias"), is_pooling_weight("layer_mix"), is_pooling_weight("embeddings.word_embeddings.weight")
    (True, True, False)
    """
    return name == PARAMETER or name.startswith(PREFIX)


def add_aspect_words(model: Any, numbers: dict[str, Tensor] | None = None) -> None:
    """Add pooling by words for aspects to a model: these weights, or the identity as linear layer and zeros as words.

    With the identity nothing depends on a seed.
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


def add_pooling(model: Any, folder: ModelFolder, pooling: str) -> None:
    """Add the weights that a pooling learns to a loaded model: those of its folder, or the first ones."""
    if pooling == ASPECT_WORDS:
        add_aspect_words(model, read_aspect_words(folder.words, model) if folder.words else None)
    if pooling == "mix":
        add_mix(model, read_mix(folder.mix, read_json(folder.mix / "config.json"), model) if folder.mix else None)


def pooling_weights(model: Any, pooling: str) -> dict[str, Tensor]:
    """Return the weights that a pooling has learned, by their names in the model."""
    if pooling == "mix":
        return {PARAMETER: getattr(model, PARAMETER)}
    return (
        {f"{PREFIX}{name}": tensor for name, tensor in aspect_word_weights(model).items()}
        if pooling == ASPECT_WORDS
        else {}
    )


def pooling_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of every pooling, by their names, whether the model has them or not."""
    words = {f"{PREFIX}{name}": shape for name, shape in aspect_word_shapes(model).items()}
    return {PARAMETER: (count_states(model),), **words}


def aspect_word_weights(model: Any) -> dict[str, Tensor]:
    """Return the queries, weight and bias of a model's words for aspects."""
    words = getattr(model, ASPECT_WORDS)
    return {"queries": words.queries, "weight": words.weight, "bias": words.bias}


def aspect_word_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the words for aspects, whether the model has them or not."""
    size = int(model.config.hidden_size)
    return {"queries": (len(WORDS), size), "weight": (size, size), "bias": (size,)}


def save_aspect_words(folder: Path, model: Any) -> None:
    """Write the words for aspects of a model's pooling into its folder."""
    plain = {name: tensor.detach().float().cpu().contiguous() for name, tensor in aspect_word_weights(model).items()}
    check_finite({f"{PREFIX}{name}": tensor for name, tensor in plain.items()})
    place = folder / ASPECT_WORDS
    place.mkdir(exist_ok=True)
    config = {"format": ASPECT_WORDS_FORMAT, "version": ASPECT_WORDS_VERSION, "words": list(WORDS)}
    write_json(place / "config.json", config)
    require("safetensors.torch", extra="minilm").save_file(plain, place / WEIGHTS, metadata={"format": "pt"})


def read_aspect_words(place: Path, model: Any) -> dict[str, Tensor]:
    """Read the weights of pooling by words for aspects; shapes are checked before any weight is read."""
    path = place / "config.json"
    config = read_json(path)
    check_format(path, config, ASPECT_WORDS_FORMAT, ASPECT_WORDS_VERSION)
    if config.get("words") != list(WORDS):
        raise InputError(f"{path}: words is {str(config.get('words'))[:80]}; it must be {', '.join(WORDS)}")
    weights = read_tensors(place / WEIGHTS, aspect_word_shapes(model))
    if not bool(weights["queries"].any(dim=1).all()):
        raise InputError(f"{place / WEIGHTS}: a row of queries is all zero, which is not a word; copy the folder again")
    return weights


def _aspect_word_vectors(network: StatesNetwork, batch: Sequence[Tokens]) -> Tensor:
    """Pool texts that were tokenized by sentence with attention from the aspect words, (texts, dimension)."""
    torch = require("torch", extra="minilm")
    marks = [np.flatnonzero(tokens == tokens[0]) for tokens in batch]  # a text begins with its mark
    counts = np.array([len(own) for own in marks], np.int64)  # (texts,)
    starts = np.concatenate(marks)  # (sentences,)
    texts = owners_of(to_offsets(counts))  # (sentences,)
    sentences = network.token_states(batch).spans(texts, starts, starts + 1)  # (sentences, dimension)
    words = getattr(network.model, ASPECT_WORDS)
    with torch.autocast(sentences.device.type, enabled=False):
        queries = torch.nn.functional.linear(words.queries, words.weight, words.bias)  # (words, dimension)
        return attend(sentences, counts, queries)


def attend(sentences: Tensor, counts: NDArray[np.int64], queries: Tensor) -> Tensor:
    """Pool sentences (sentences, dimension), `counts` per text, by attention from queries (words, dimension).

    The mean over words of weighted means is one weighted mean, by the mean of the weights.
    """
    torch = require("torch", extra="minilm")
    longest = int(counts.max())
    begins = to_offsets(counts)[:-1]  # (texts,)
    places = np.minimum(begins[:, None] + np.arange(longest), len(sentences) - 1)  # (texts, longest)
    rows, is_there = (
        torch.from_numpy(array).to(sentences.device, non_blocking=True)
        for array in (places, np.arange(longest) < counts[:, None])
    )
    padded = sentences[rows]  # (texts, longest, dimension)
    scores = padded @ queries.T / sentences.shape[1] ** 0.5  # (texts, longest, words)
    weights = scores.masked_fill(~is_there[:, :, None], -torch.inf).softmax(dim=1).mean(dim=2)  # (texts, longest)
    vectors: Tensor = (weights[:, :, None] * padded).sum(dim=1)  # (texts, dimension)
    return vectors


def embed_aspect_words(network: StatesNetwork, reader: TextReader) -> None:
    """Embed the words for aspects of a pooling with the model itself, where they have no vectors yet."""
    torch = require("torch", extra="minilm")
    queries = aspect_word_weights(network.model)["queries"]
    if bool(queries.any()):
        return
    batch = [np.concatenate([reader.opening, ids, reader.closing]) for ids in reader.pieces(WORDS)]
    with torch.no_grad():  # not inference_mode: training uses these numbers
        queries.copy_(network.token_states(batch).cls())
