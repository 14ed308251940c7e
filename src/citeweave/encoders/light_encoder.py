"""Light encoders: one short text to its vector in milliseconds, by NumPy and a kept copy of a model, without torch.

A command that answers one question would spend seconds on importing torch and transformers, on hashing a model and on
applying its delta. The first question to a model does all this and keeps a copy, which later questions map into memory:

    cache/queries/<revision>-<place>/    cache: $CITEWEAVE_CACHE, else ~/.cache/citeweave
        words.npy         embeddings of the vocabulary, float32                     (words, dimension)
        places.npy        embeddings of the positions, with that of the first type  (positions, dimension)
        layers.npy        all weights of each layer, in the order of `Shape.parts`  (layers, numbers)
        norm.npy          gain and shift of the embeddings                          (2, dimension)
        distances.npy     MPNet only: bias of attention by the distance of two tokens, (2 * positions - 1, heads)
        tokenizer.json    the rules by which transformers read texts
        manifest.json     settings of the encoder, and size and time of every file that it was made from

    encoder = keep_light_encoder(load_encoder("weave"), "weave")     None for a network that this file does not compute
    encoder = open_light_encoder("weave", encoder.revision)          None where no copy of exactly this model is kept
    encoder.encode("maps of citations")                              cosine with torch's vector: 1 within 1e-5

BERT, RoBERTa, XLM-RoBERTa, CamemBERT and MPNet with exact GELU are computed, pooled by `cls` or `mean`; a copy is kept only
if it gives the vectors of torch. When a file of the model has changed, the copy is not used. The newest `KEPT` copies stay.
Corpora are embedded by `encoder.py`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from citeweave.core.arguments import as_texts
from citeweave.core.artifact import MANIFEST, check_files, kind_of, new_artifact, read_manifest
from citeweave.core.columns import MatrixWriter, open_matrix
from citeweave.core.errors import CiteweaveError, require
from citeweave.core.files import cache_folder, file_state, hash_json, read_input
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import remove_artifact
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.model_names import locate, stored_name
from citeweave.encoders.sentence_encoder import lay_out_sentences
from citeweave.encoders.tokens import TextReader, Tokens
from citeweave.vectors.vectors import unit_rows

if TYPE_CHECKING:
    from citeweave.encoders.encoder import TorchEncoder

KIND, VERSION = "light_encoder", 1
TOKENIZER = "tokenizer.json"

POOLINGS = ("cls", "mean")
KEPT = 4
"""Copies of models that the cache keeps, the newest."""

BATCH_TOKENS = 256
"""Tokens of short texts that are computed together, so that the weights are read once for all of them."""

MIN_COSINE = 0.9999
"""Lowest cosine with the vector of torch, of a few texts, with which a copy is kept."""

MIN_WEIGHTS = 2_000_000
"""No copy is kept of a smaller network: torch takes as long to load as the copy saves."""

_PLAIN = ("BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel", "MPNetModel")
_TEXTS = ("a", "Maps of citations", "We show that na\u00efve readers of \u2603 prefer short papers; 42% do. " * 40)
"""Texts by which a copy is compared with torch; the last one is longer than most models read."""

Floats = NDArray[np.float32]

# erf by Abramowitz and Stegun (1964), formula 7.1.26, within 1.5e-7
_ERF_P, _ERF = 0.3275911, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes and constants of a network, besides its weights."""

    layers: int
    dimension: int
    middle: int
    heads: int
    eps: float
    pad: int | None = None
    """Id of the token that RoBERTa and MPNet do not count as a position; None in BERT, which counts all."""

    def parts(self) -> dict[str, tuple[int, ...]]:
        """Return the weights of one layer in the order in which they are stored, and their shapes."""
        d, m = self.dimension, self.middle
        attention = {"qkv": (3 * d, d), "qkv_bias": (3 * d,), "out": (d, d), "out_bias": (d,)}
        norms = {"gain": (d,), "shift": (d,), "last_gain": (d,), "last_shift": (d,)}
        return attention | {"up": (m, d), "up_bias": (m,), "down": (d, m), "down_bias": (d,)} | norms

    @property
    def numbers(self) -> int:
        """The weights of one layer."""
        return sum(int(np.prod(shape)) for shape in self.parts().values())


@dataclass(frozen=True, slots=True)
class LightNetwork:
    """A transformer encoder in NumPy: the weights of a BERT-like network, and its states of one text."""

    shape: Shape
    words: Floats
    places: Floats
    norm: Floats
    layers: Floats
    distances: Floats | None = None
    """MPNet's bias of attention by distance, (2 * positions - 1, heads)."""

    def states(self, texts: Sequence[Tokens]) -> list[Floats]:
        """Return the last states of the tokens of some texts, (tokens, dimension) each, their products computed together."""
        shape, ends = self.shape, np.cumsum([len(tokens) for tokens in texts])[:-1]
        places = np.concatenate([self._places(tokens) for tokens in texts])  # (tokens of all texts,)
        states = self.words[np.concatenate(texts)] + self.places[places]
        states = _normalized(states, self.norm[0], self.norm[1], shape.eps)
        biases = [self._bias(len(tokens)) for tokens in texts]
        for numbers in self.layers:
            weights = _split(numbers, shape.parts())
            wide = np.split(states @ weights["qkv"].T + weights["qkv_bias"], ends)
            seen = np.concatenate([_attend(own, shape.heads, bias) for own, bias in zip(wide, biases, strict=True)])
            states = states + (seen @ weights["out"].T + weights["out_bias"])
            states = _normalized(states, weights["gain"], weights["shift"], shape.eps)
            deep = _gelu(states @ weights["up"].T + weights["up_bias"]) @ weights["down"].T + weights["down_bias"]
            states = _normalized(states + deep, weights["last_gain"], weights["last_shift"], shape.eps)
        return np.split(states, ends)

    def _places(self, tokens: Tokens) -> NDArray[np.int64]:
        """Return the positions of the tokens of one text."""
        if self.shape.pad is None:
            return np.arange(len(tokens))
        return np.where(tokens == self.shape.pad, 0, np.cumsum(tokens != self.shape.pad))

    def _bias(self, count: int) -> Floats | None:
        """Return what is added to the scores of attention, (heads, tokens, tokens); None where nothing is."""
        if self.distances is None:
            return None
        zero = len(self.distances) // 2  # the row of distance 0
        distance = np.arange(count)[None, :] - np.arange(count)[:, None] + zero  # (tokens, tokens)
        return np.ascontiguousarray(np.moveaxis(self.distances[distance], 2, 0))


def _split(numbers: Floats, parts: dict[str, tuple[int, ...]]) -> dict[str, Floats]:
    """Return the weights of one layer by name, as views of its stored numbers."""
    weights, start = {}, 0
    for name, shape in parts.items():
        size = int(np.prod(shape))
        weights[name] = numbers[start : start + size].reshape(shape)
        start += size
    return weights


def _attend(wide: Floats, heads: int, bias: Floats | None) -> Floats:
    """Return the attention (tokens, dimension) of queries, keys and values side by side (Vaswani et al. 2017)."""
    count, width = wide.shape
    size = width // 3 // heads
    query, key, value = wide.reshape(count, 3, heads, size).transpose(1, 2, 0, 3)  # (heads, tokens, size) each
    scores = query @ key.transpose(0, 2, 1) * np.float32(size**-0.5)  # (heads, tokens, tokens)
    if bias is not None:
        scores += bias
    scores -= scores.max(axis=2, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=2, keepdims=True)
    attended: NDArray[Any] = scores @ value  # (heads, tokens, size)
    return attended.transpose(1, 0, 2).reshape(count, width // 3)


def _normalized(states: Floats, gain: Floats, shift: Floats, eps: float) -> Floats:
    """Return layer normalization (Ba et al. 2016) of states (tokens, dimension)."""
    centered = states - states.mean(axis=1, keepdims=True)
    variance = (centered * centered).mean(axis=1, keepdims=True)
    normalized: Floats = centered / np.sqrt(variance + np.float32(eps)) * gain + shift
    return normalized


def _gelu(states: Floats) -> Floats:
    """Return the exact GELU (Hendrycks and Gimpel 2016), x times the normal distribution's share below x.

    >>> [f"{x:.2f}" for x in _gelu(np.array([-1.0, 0.0, 2.0], np.float32))]
    ['-0.16', '0.00', '1.95']
    """
    size = np.abs(states) * np.float32(0.5**0.5)
    part = np.float32(1.0) / (np.float32(1.0) + np.float32(_ERF_P) * size)
    tail = np.zeros_like(part)
    for factor in _ERF:
        tail = (tail + np.float32(factor)) * part
    tail *= np.exp(-size * size) * np.float32(0.5)  # the share beyond |x|
    return states * np.where(states < 0, tail, np.float32(1.0) - tail)


# --- the encoder ----------------------------------------------------------------------------------------


class LightTokenizer:
    """The rules of a tokenizer.json as a `TextReader` calls them, without transformers."""

    def __init__(self, path: Path, sep_token: str | None) -> None:
        self.rules: Any = require("tokenizers", extra="minilm").Tokenizer.from_buffer(read_input(path))
        self.rules.no_padding()
        self.sep_token = sep_token

    def __call__(
        self,
        texts: Sequence[str],
        *,
        truncation: bool = False,
        max_length: int = 0,
        add_special_tokens: bool = True,
        **_: Any,
    ) -> dict[str, list[list[int]]]:
        if truncation:
            self.rules.enable_truncation(max_length)
        else:
            self.rules.no_truncation()
        return {"input_ids": [self.rules.encode(text, add_special_tokens=add_special_tokens).ids for text in texts]}


@dataclass(frozen=True, slots=True)
class LightEncoder:
    """The encoder of query texts from a kept copy of a model; see `keep_light_encoder`."""

    name: str
    revision: str
    model: str
    """Name or folder of the model that it is a copy of."""

    reader: TextReader
    network: LightNetwork
    settings: Settings

    def __repr__(self) -> str:
        return f"LightEncoder({self.name!r}, dimension {self.dimension})"

    @property
    def dimension(self) -> int:
        return self.network.shape.dimension

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        """Encode texts to the model's vectors (texts, dimension), zeros for a text without a token."""
        texts = as_texts(texts)
        vectors = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        read = self.reader.read(texts)
        # the products of a short text are too small to share: threads would wait for each other
        with reporter.task("embedding", len(texts), "papers") as advance, threadpool_limits(1, "blas"):
            for rows in _batches([len(tokens) for tokens in read]):
                for row, states in zip(rows, self.network.states([read[row] for row in rows]), strict=True):
                    vectors[row] = states[0] if self.settings.pooling == "cls" else states.mean(axis=0)
                advance(len(rows))
        if self.settings.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def encode_sentences(self, texts: Sequence[str]) -> Floats:
        """Encode sentences, each alone, comparable with those of abstracts: the means over their own tokens."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)  # (sentences, dimension)
        layouts = lay_out_sentences(self.reader, [""] * len(texts), [[text] for text in texts])
        with threadpool_limits(1, "blas"):
            for row, layout in enumerate(layouts):
                if len(layout.numbers):
                    vectors[row] = self.network.states([layout.tokens])[0][layout.starts[0] : layout.ends[0]].mean(
                        axis=0
                    )
        return vectors


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the places of texts that have tokens, in order, in batches of at most BATCH_TOKENS, or of one longer text.

    >>> list(_batches([100, 100, 0, 300, 5]))
    [[0, 1], [3], [4]]
    """
    batch, size = list[int](), 0
    for place, length in enumerate(lengths):
        if batch and size + length > BATCH_TOKENS:
            yield batch
            batch, size = [], 0
        if length:
            batch, size = [*batch, place], size + length
    if batch:
        yield batch


def open_light_encoder(model: str | Path, revision: str, *, cache: Path | None = None) -> LightEncoder | None:
    """Open the kept copy of a model of this revision; None where there is none, or the model's files have changed."""
    folder = _folder(model, revision, cache)
    try:
        manifest = read_manifest(folder, KIND, VERSION)
        check_files(folder, manifest)
        facts: Any = manifest.facts
        if manifest.recipe != _recipe(model, revision) or facts["made_from"] != _file_states(facts["made_from"]):
            return None
        shape, settings = Shape(**facts["shape"]), Settings(**facts["settings"])
        distances = (2 * facts["positions"] - 1, shape.heads) if facts["has_distances"] else None
        network = LightNetwork(
            shape,
            open_matrix(folder / "words.npy", np.float32, (facts["vocabulary"], shape.dimension)),
            open_matrix(folder / "places.npy", np.float32, (facts["positions"], shape.dimension)),
            open_matrix(folder / "norm.npy", np.float32, (2, shape.dimension)),
            open_matrix(folder / "layers.npy", np.float32, (shape.layers, shape.numbers)),
            open_matrix(folder / "distances.npy", np.float32, distances) if distances else None,
        )
        opening, closing, separator = (np.array(ids, np.int64) for ids in facts["around"])
        tokenizer, longest = LightTokenizer(folder / TOKENIZER, facts["sep_token"]), facts["max_tokens"]
        reader = TextReader(
            tokenizer, longest, opening, closing, separator, lower=settings.lower, prompt=settings.prompt
        )
        return LightEncoder(facts["name"], revision, str(model), reader, network, settings)
    except (CiteweaveError, OSError, KeyError, TypeError, ValueError):
        return None  # without a copy the model itself is loaded


def _folder(model: str | Path, revision: str, cache: Path | None) -> Path:
    return cache_folder(cache) / "queries" / f"{revision}-{hash_json(_recipe(model, revision))[:8]}"


def _recipe(model: str | Path, revision: str) -> dict[str, Any]:
    """Return what a copy is of; two installations beside each other have one each."""
    return {"model": stored_name(model), "revision": revision, "package": str(Path(__file__).parent)}


def _file_states(paths: Iterable[str | Path]) -> dict[str, list[int]]:
    """Return size and time of the last change of files, by path."""
    return {str(path): list(file_state(Path(path))[2:]) for path in paths}


# --- keeping a copy -------------------------------------------------------------------------------------


def keep_light_encoder(encoder: TorchEncoder, model: str | Path, *, cache: Path | None = None) -> LightEncoder | None:
    """Keep a copy of a loaded encoder, and open it; None where its network is small or not one that NumPy computes here.

    `model` is the name or folder by which the encoder was loaded. Where the cache cannot be written there is no copy.
    """
    network = encoder.network
    if not (network.is_torch and network.model.dtype.itemsize == 4 and encoder.settings.pooling in POOLINGS):
        return None
    if not _is_plain(network.model) or network.model.num_parameters() < MIN_WEIGHTS:
        return None
    folder = _folder(model, encoder.revision, cache)
    with contextlib.suppress(CiteweaveError, OSError):
        with new_artifact(folder, KIND, VERSION, _recipe(model, encoder.revision), overwrite=True) as writer:
            writer.facts = _write(writer.folder, encoder) | {"made_from": _file_states(_files(model))}
            writer.finish()
        _remove_oldest(folder.parent)
    light = open_light_encoder(model, encoder.revision, cache=cache)
    if light is not None and _agree(light, encoder):
        return light
    remove_artifact(folder)
    return None


def _is_plain(model: Any) -> bool:
    """Return whether a torch model is a network that `LightNetwork` computes."""
    config = model.config
    is_relative = getattr(config, "position_embedding_type", "absolute") not in (None, "absolute")
    if type(model).__name__ not in _PLAIN or config.hidden_act != "gelu" or is_relative:
        return False
    return not (getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False))


def _write(folder: Path, encoder: TorchEncoder) -> dict[str, Any]:
    """Write the weights and the tokenizer of an encoder, and return what else a copy needs."""
    model, reader = encoder.network.model, encoder.reader
    config, table = model.config, model.embeddings.position_embeddings
    shape = Shape(
        int(config.num_hidden_layers),
        int(config.hidden_size),
        int(config.intermediate_size),
        int(config.num_attention_heads),
        float(config.layer_norm_eps),
        table.padding_idx,
    )
    places = _numbers(table.weight)[table.padding_idx or 0 :]  # (positions, dimension)
    if hasattr(model.embeddings, "token_type_embeddings"):
        places = places + _numbers(model.embeddings.token_type_embeddings.weight)[0]
    norm = model.embeddings.LayerNorm
    _write_matrix(folder / "words.npy", _numbers(model.embeddings.word_embeddings.weight))
    _write_matrix(folder / "places.npy", places)
    _write_matrix(folder / "norm.npy", np.stack([_numbers(norm.weight), _numbers(norm.bias)]))
    _write_matrix(folder / "layers.npy", np.stack([_layer_numbers(layer, shape) for layer in model.encoder.layer]))
    has_distances = hasattr(model.encoder, "relative_attention_bias")
    if has_distances:
        _write_matrix(folder / "distances.npy", _distance_bias(model, len(places)))
    rules = json.loads(reader.tokenizer.backend_tokenizer.to_str())
    rules |= {"truncation": None, "padding": None}  # leftovers of the last call
    (folder / TOKENIZER).write_text(json.dumps(rules, ensure_ascii=False), encoding="utf-8")
    around = [ids.tolist() for ids in (reader.opening, reader.closing, reader.separator)]
    return {
        "name": encoder.name,
        "shape": asdict(shape),
        "vocabulary": int(model.embeddings.word_embeddings.weight.shape[0]),
        "positions": len(places),
        "has_distances": has_distances,
        "settings": asdict(encoder.settings),
        "around": around,
        "sep_token": reader.tokenizer.sep_token,
        "max_tokens": reader.max_tokens,
    }


def _numbers(tensor: Any) -> Floats:
    numbers: Floats = tensor.detach().float().cpu().numpy()
    return numbers


def _write_matrix(path: Path, matrix: Floats) -> None:
    writer = MatrixWriter(path, np.float32, matrix.shape[1])
    writer.append(matrix)
    writer.close()


def _layer_numbers(layer: Any, shape: Shape) -> Floats:
    """Return all weights of a layer of BERT or MPNet, in the order of `Shape.parts`."""
    attention = layer.attention
    if hasattr(attention, "attn"):  # MPNet
        own, out, norm = attention.attn, attention.attn.o, attention.LayerNorm
        read = (own.q, own.k, own.v)
    else:
        own, out, norm = attention.self, attention.output.dense, attention.output.LayerNorm
        read = (own.query, own.key, own.value)
    up, down, last = layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm
    weights = [*(part.weight for part in read), *(part.bias for part in read), out.weight, out.bias]
    weights += [up.weight, up.bias, down.weight, down.bias, norm.weight, norm.bias, last.weight, last.bias]
    flat = np.concatenate([_numbers(weight).ravel() for weight in weights])
    assert len(flat) == shape.numbers, (len(flat), shape)
    return flat


def _distance_bias(model: Any, positions: int) -> Floats:
    """Return MPNet's bias of attention by the distance from the querying token, (2 * positions - 1, heads)."""
    torch = require("torch", extra="minilm")
    with torch.no_grad():
        bias = _numbers(model.encoder.compute_position_bias(torch.zeros(1, positions, 1)))[0]  # (heads, from, to)
    return np.concatenate([bias[:, :0:-1, 0], bias[:, 0, :]], axis=1).T


def _files(model: str | Path) -> list[Path]:
    """Return the files that decide a model's vectors: those of its folder, of its deltas and of its base."""
    from citeweave.encoders.delta import open_model

    folder = locate(model).folder
    opened = open_model(folder)
    folders = dict.fromkeys([folder, opened.weights, *(place for place, _ in opened.deltas)])
    files = [path for place in folders for pattern in ("*", "*/*") for path in place.resolve().glob(pattern)]
    return sorted({path for path in files if path.is_file() and path.suffix in (".json", ".safetensors", ".txt")})


def _agree(light: LightEncoder, encoder: TorchEncoder) -> bool:
    """Return whether a copy gives the vectors of torch, of a few texts."""
    one, other = (unit_rows(each.encode(_TEXTS)) for each in (light, encoder))
    return bool((one * other).sum(axis=1).min() >= MIN_COSINE)


def _remove_oldest(folder: Path) -> None:
    """Remove all but the newest copies."""
    copies = [path for path in folder.iterdir() if kind_of(path) == KIND]
    for path in sorted(copies, key=lambda copy: (copy / MANIFEST).stat().st_mtime)[:-KEPT]:
        remove_artifact(path)
