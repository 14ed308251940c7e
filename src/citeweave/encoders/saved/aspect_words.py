"""The weights behind the pooling `aspect_words`: vectors of the words for aspects, and one linear layer over them.

    aspect_words/config.json         {"format": "citeweave-aspect-words", "version": 1, "words": ["background", ...]}
    aspect_words/model.safetensors   queries (words, dimension), weight (dimension, dimension), bias (dimension,)

The numbers are a part of the model itself, `aspect_words`: whoever trains, copies or moves the model takes them along.
The queries stay as they are; weight and bias are trained. sentence-transformers knows no such module, so that a saved
folder says `cls` to it and has this one beside. Does not attend: `sentence_attention.py` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.encoders.model_folder import ASPECT_WORDS, WEIGHTS, read_json
from citeweave.encoders.saved.delta_settings import check_format
from citeweave.encoders.saved.layer_mix import PARAMETER
from citeweave.encoders.saved.tensors_file import check_finite, read_tensors
from citeweave.errors import InputError
from citeweave.extras import require
from citeweave.files import write_json

if TYPE_CHECKING:
    from torch import Tensor

WORDS = ("background", "method", "result", "miscellaneous")
"""The aspects of the SciAspect thesis (TUM 2023), in words that a start model knows."""

PREFIX = f"{ASPECT_WORDS}."
"""Before the names of these numbers among the model's."""

FORMAT, VERSION = "citeweave-aspect-words", 1


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
    write_json(place / "config.json", {"format": FORMAT, "version": VERSION, "words": list(WORDS)})
    require("safetensors.torch", extra="minilm").save_file(plain, place / WEIGHTS, metadata={"format": "pt"})


def read_words(place: Path, model: Any) -> dict[str, Tensor]:
    """The numbers of a folder that may come from a stranger: nothing is believed before it is compared."""
    path = place / "config.json"
    config = read_json(path)
    check_format(path, config, FORMAT, VERSION)
    if config.get("words") != list(WORDS):
        raise InputError(f"{path}: words is {str(config.get('words'))[:80]}; it must be {', '.join(WORDS)}")
    found = read_tensors(place / WEIGHTS, word_shapes(model))
    if not bool(found["queries"].any(dim=1).all()):
        raise InputError(f"{place / WEIGHTS}: a row of queries is all zero, which is no word; copy the folder again")
    return found
