"""Aspect heads: one small projection per aspect over the encoder's vector (SciAspect thesis, TUM 2023, section 5.3).

    heads = open_heads("model/")
    heads.names                              ("background", "method", "result")
    heads.project(vectors, "method")         vectors in the space of methods
    heads.project(vectors, "all")            the three spaces side by side, each at length 1
    heads.project(vectors, "method+result")  these two at their own lengths; "encoder+all" has the encoder's vector too

    model/aspects/config.json                {"format": "citeweave-aspects", "version": 1, "names": [...], "sizes": [384, 384]}
    model/aspects/model.safetensors          `method.0.weight` (out, in), `method.0.bias` (out,), ... in float32

The encoder itself is saved without the heads, so that sentence-transformers can load it. Heads are plain arrays: projecting
needs no torch. Does not train heads: `training/objective.py` does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError, UserError, choose, require
from citeweave.core.files import hash_json, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.batches import NOT_SAVED, SavedBatches
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.model_folder import WEIGHTS, check_format, check_unchanged, read_json
from citeweave.encoders.model_names import locate, parse_random
from citeweave.encoders.runtimes import Runtime
from citeweave.encoders.tokens import TextReader, Tokens
from citeweave.encoders.untrusted_model import read_float_arrays
from citeweave.vectors.vectors import unit_rows

FOLDER = "aspects"
ALL, OWN = "all", "encoder"
"""The name of all aspect spaces side by side, and that of the encoder's own vector in a sum of spaces."""

FORMAT, VERSION = "citeweave-aspects", 1
_MAX_ASPECTS, _MAX_SIZE = 64, 65_536
"""Most aspects, and largest size of a vector, that are accepted from a folder."""

Layer = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Weights (out, in) and bias (out,)."""


@dataclass(frozen=True)
class AspectHeads:
    """The aspect heads of a model, one projection per aspect: one layer, or two with a ReLU between them.

    >>> heads = AspectHeads(("method",), {"method": ((np.eye(2, dtype=np.float32)[:1], np.ones(1, np.float32)),)})
    >>> heads.project(np.array([[2.0, 5.0]], np.float32), "method").tolist()
    [[3.0]]
    """

    names: tuple[str, ...]
    layers: Mapping[str, Sequence[Layer]]

    @property
    def spaces(self) -> tuple[str, ...]:
        """The aspect spaces that are compared: each, all at length 1, all at their own lengths, all with the encoder's."""
        joined = ("+".join(self.names),) if len(self.names) > 1 else ()
        return (*self.names, ALL, *joined, f"{OWN}+{ALL}")

    @property
    def inputs(self) -> int:
        """The length of the encoder's vectors that the heads project."""
        return int(self.layers[self.names[0]][0][0].shape[1])

    def dimension(self, aspect: str) -> int:
        """Return the length of a vector in the space of an aspect, or of all aspects."""
        self.check(aspect)
        return sum(self.inputs if name == OWN else len(self.layers[name][-1][1]) for name in self._parts(aspect))

    @cached_property
    def hash(self) -> str:
        """Hash of the aspect heads' names and weights: equal hashes project equally."""
        digest = hashlib.sha256(repr(self.names).encode())
        for name in self.names:
            for weight, bias in self.layers[name]:
                digest.update(repr(weight.shape).encode())
                digest.update(np.ascontiguousarray(weight).data)
                digest.update(np.ascontiguousarray(bias).data)
        return digest.hexdigest()[:16]

    def check(self, aspect: str) -> None:
        """Refuse a name that is not an aspect of this model, `all`, or a sum such as encoder+method."""
        is_sum = "+" in aspect and aspect not in self.names
        for name in aspect.split("+") if is_sum else (aspect,):
            choose(name, (*self.names, ALL, *((OWN,) if is_sum else ())), "--aspect")

    def _parts(self, aspect: str) -> list[str]:
        """Return the vectors that are put side by side: aspects of this model, and the encoder's own.

        >>> heads = AspectHeads(("method", "result"), {})
        >>> heads._parts("all"), heads._parts("encoder+method"), heads._parts("encoder+all")
        (['method', 'result'], ['encoder', 'method'], ['encoder', 'method', 'result'])
        """
        names = [aspect] if aspect in self.names else aspect.split("+")
        return [part for name in names for part in (self.names if name == ALL else (name,))]

    def project(self, vectors: NDArray[np.floating[Any]], aspect: str) -> NDArray[np.float32]:
        """Project vectors (papers, dimension) into the space of an aspect; rows of zeros stay zero.

        With `all` spaces side by side each has length 1, so that none outweighs the others. In a sum, such as
        method+result or encoder+all, each vector keeps its own length, as in equation 5.3 of the thesis.
        """
        self.check(aspect)
        inputs = np.asarray(vectors, np.float32)  # (papers, dimension)
        if inputs.shape[1] != self.inputs:
            raise UserError(
                f"the vectors have {inputs.shape[1]} numbers and the aspect heads read {self.inputs}; "
                "project the vectors of the model that the heads belong to"
            )
        if aspect not in self.names:
            parts = [inputs if name == OWN else self.project(inputs, name) for name in self._parts(aspect)]
            return np.concatenate([unit_rows(part) if aspect == ALL else part for part in parts], axis=1)
        states = inputs
        for number, (weight, bias) in enumerate(self.layers[aspect]):
            states = (np.maximum(states, 0) if number else states) @ weight.T + bias  # (papers, out)
        states[~inputs.any(axis=1)] = 0
        return states


def find_heads(model: str | Path) -> AspectHeads | None:
    """Read the aspect heads of a model by its name or folder; None where it has none, or random weights."""
    if parse_random(model)[1] is not None:
        return None
    place = locate(model).folder
    if not (place / FOLDER).is_dir():
        return None
    check_unchanged(place)
    return _read(place / FOLDER)


def open_heads(model: str | Path) -> AspectHeads:
    """Read the aspect heads of a model; a model without heads is an error that says how to get one."""
    heads = find_heads(model)
    if heads is None:
        raise UserError(
            f"the model {model} has no aspect heads; compare papers by sentences instead, with `citeweave embed CORPUS "
            "--sentences -o FOLDER` and `citeweave similar FOLDER --paper ID --sentences 0,1`. Or leave --aspect out, or "
            "train a model with heads by `citeweave run sciaspect_hybrid`"
        )
    return heads


def save_heads(folder: Path, heads: AspectHeads) -> None:
    """Write aspect heads into a model's folder."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    sizes = [heads.inputs, *(len(bias) for _, bias in heads.layers[heads.names[0]])]
    config = {"format": FORMAT, "version": VERSION, "names": list(heads.names), "sizes": sizes}
    write_json(place / "config.json", config)
    tensors = {
        f"{name}.{number}.{part}": np.ascontiguousarray(values, np.float32)
        for name in heads.names
        for number, layer in enumerate(heads.layers[name])
        for part, values in zip(("weight", "bias"), layer, strict=True)
    }
    require("safetensors.numpy", extra="minilm").save_file(tensors, place / WEIGHTS)


def _read(folder: Path) -> AspectHeads:
    """Read the aspect heads of an untrusted folder; names and shapes are checked before any weight is read."""
    path = folder / "config.json"
    config = read_json(path)
    check_format(path, config, FORMAT, VERSION)
    names: Any = config.get("names")
    sizes: Any = config.get("sizes")
    if not (_is_list_of(names, str, _MAX_ASPECTS) and len({*names, ALL, OWN}) == len(names) + 2):
        raise InputError(f"{path}: names is {str(names)[:80]}; it must be a list of distinct aspects")
    if not (_is_list_of(sizes, int, 3) and len(sizes) > 1 and all(0 < size <= _MAX_SIZE for size in sizes)):
        raise InputError(f"{path}: sizes is {str(sizes)[:80]}; it must be two or three whole numbers from 1 up")
    expected: dict[str, tuple[int, ...]] = {}
    numbers = range(len(sizes) - 1)
    for name in names:
        for number in numbers:
            weight, bias = f"{name}.{number}.weight", f"{name}.{number}.bias"
            expected |= {weight: (sizes[number + 1], sizes[number]), bias: (sizes[number + 1],)}
    stored = read_float_arrays(folder / WEIGHTS, expected)
    layers = {
        name: tuple((stored[f"{name}.{number}.weight"], stored[f"{name}.{number}.bias"]) for number in numbers)
        for name in names
    }
    return AspectHeads(tuple(names), layers)


def _is_list_of(values: Any, kind: type, max_length: int) -> bool:
    return isinstance(values, list) and 0 < len(values) <= max_length and all(type(value) is kind for value in values)


@dataclass(frozen=True, slots=True)
class AspectEncoder:
    """An encoder whose vectors are projected into the space of one aspect."""

    inner: TorchEncoder
    heads: AspectHeads
    aspect: str

    @property
    def name(self) -> str:
        return f"{self.inner.name} ({self.aspect})"

    @property
    def runtime(self) -> Runtime:
        return self.inner.runtime

    @property
    def revision(self) -> str:
        return hash_json([self.inner.revision, self.heads.hash, self.aspect])[:12]

    @property
    def dimension(self) -> int:
        return self.heads.dimension(self.aspect)

    @property
    def reader(self) -> TextReader:
        return self.inner.reader

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        return self.heads.project(self.inner.encode(texts, reporter=reporter), self.aspect)

    def encode_tokens(
        self, tokens: Sequence[Tokens], *, reporter: Reporter = QUIET, saved: SavedBatches = NOT_SAVED
    ) -> NDArray[np.float32]:
        return self.heads.project(self.inner.encode_tokens(tokens, reporter=reporter, saved=saved), self.aspect)


def load_aspect_encoder(name: str | Path, aspect: str, **options: Any) -> TorchEncoder | AspectEncoder:
    """Load the encoder of one aspect, of `all`, of a sum, or the plain one (empty); options as in `load_encoder`."""
    if not aspect:
        return load_encoder(name, **options)
    heads = open_heads(name)
    heads.check(aspect)
    return AspectEncoder(load_encoder(name, **options), heads, aspect)
