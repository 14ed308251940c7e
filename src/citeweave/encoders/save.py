"""Writes an encoder as a sentence-transformers folder, which needs no citeweave to be used.

    modules.json                        Transformer, [WeightedLayerPooling,] Pooling[, Normalize]
    config.json, model.safetensors      the transformer, with low-rank changes merged in
    tokenizer.json, ...                 its tokenizer
    sentence_bert_config.json           where texts are cut, whether they are put into lower case
    1_WeightedLayerPooling/             the learned mix of layers, where there is one
    1_Pooling/, 2_Normalize/            how tokens become one vector
    config_sentence_transformers.json   the prompt
    aspect_words/                       the words for aspects, where the pooling is that of their name
    README.md                           the model card

    SentenceTransformer(folder).encode(title + tokenizer.sep_token + abstract) == load_encoder(folder).encode(...)

With the pooling `aspect_words` the two differ: sentence-transformers knows it not and gives the state of the first token.
Of a model with `do_lower_case`, sentence-transformers before 6 puts the separator into lower case too and so loses it.
The names are those of sentence-transformers 2 to 5, which 6 reads too. The same encoder gives the same bytes. Saves
what is needed for vectors, not for going on with the training: checkpoints do that.

Any encoder as a whole folder: deltas added in, so that programs which know no citeweave can load it.

    write_whole("weave", "folder/")
    SentenceTransformer("folder/")                the vectors of load_encoder("weave")

The folder's card is the model's own, where its manifest holds what the card is made of; else it names what was copied.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.core.artifact import Manifest, new_artifact, read_manifest
from citeweave.core.errors import ArtifactError, choose, require
from citeweave.core.files import write_json
from citeweave.encoders.aspects import find_heads, save_heads
from citeweave.encoders.delta import merged_weights
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_card import ModelCard, card_of_facts, card_text
from citeweave.encoders.model_folder import ASPECT_WORDS, WEIGHTS, Settings
from citeweave.encoders.model_names import locate
from citeweave.encoders.network import Network, quiet
from citeweave.encoders.pooling import PARAMETER, TENSOR, check_finite, count_states
from citeweave.encoders.text_vectors import save_words

if TYPE_CHECKING:
    from torch import Tensor


DTYPES = ("float32", "float16")
"""Numbers in which weights can be saved; they are computed with in float32 whatever this is."""

SAVED_POOLINGS = ("cls", "mean", "layers", "mix", ASPECT_WORDS)

_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
_PROMPT = "default"
_OF_LOADING = ("is_local", "local_files_only", "name_or_path")
"""What transformers remembers of where a tokenizer came from."""


def save_encoder(
    folder: Path,
    network: Network,
    tokenizer: Any,
    settings: Settings,
    *,
    card: ModelCard,
    dtype: str = "float32",
) -> None:
    """Write an encoder into an existing folder, such as the partial one of an artifact.

    A pooling over all layers alike (`layers`) is saved as a mix with equal weights, and read back as `mix`.
    """
    choose(dtype, DTYPES, "the dtype of saved weights")
    choose(settings.pooling, SAVED_POOLINGS, "the pooling of an encoder that is saved")
    mixes = settings.pooling in ("layers", "mix")
    _save_transformer(folder, network.model, dtype, every_layer=mixes)
    _save_tokenizer(folder, tokenizer, settings.max_tokens)
    modules = ["Transformer"]
    if mixes:
        modules.append("WeightedLayerPooling")
        _save_mix(folder / _place(modules), network, settings.pooling)
    modules.append("Pooling")
    first = settings.pooling in ("cls", ASPECT_WORDS)
    _save_pooling(folder / _place(modules), network.dimension, "cls" if first else "mean")
    if settings.pooling == ASPECT_WORDS:
        save_words(folder, network.model)
    if settings.normalize:
        modules.append("Normalize")
        (folder / _place(modules)).mkdir(exist_ok=True)
    _save_settings(folder, modules, settings)
    text = card_text(card, settings, dimension=network.dimension, has_separator=bool(tokenizer.sep_token))
    (folder / "README.md").write_text(text, encoding="utf-8")


def _place(modules: list[str]) -> str:
    """The folder of the last module: 1_Pooling."""
    return f"{len(modules) - 1}_{modules[-1]}" if len(modules) > 1 else ""


def _save_transformer(folder: Path, model: Any, dtype: str, *, every_layer: bool) -> None:
    torch, transformers = require("torch", extra="minilm"), require("transformers", extra="minilm")
    numbers = getattr(torch, dtype)
    weights: dict[str, Tensor] = {
        name: tensor.detach().to("cpu", numbers if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in merged_weights(model).items()
    }
    check_finite(weights)
    with quiet(transformers):
        model.save_pretrained(folder, state_dict=weights, max_shard_size="1000GB")
    config = copy.deepcopy(model.config)
    # whoever loads the folder computes in float32, as this library does; half precision is only for the file
    config.dtype = "float32"
    config.output_hidden_states = every_layer  # sentence-transformers asks for all layers by this
    config.save_pretrained(folder)


def _save_tokenizer(folder: Path, tokenizer: Any, max_tokens: int | None) -> None:
    own = copy.deepcopy(tokenizer)
    if max_tokens is not None:
        own.model_max_length = max_tokens
    if inner := getattr(own, "backend_tokenizer", None):
        # the last call left its own length behind
        inner.no_truncation()
        inner.no_padding()
    for key in _OF_LOADING:
        own.init_kwargs.pop(key, None)
    own.save_pretrained(folder)


def _save_mix(folder: Path, network: Network, pooling: str) -> None:
    torch = require("torch", extra="minilm")
    layers = count_states(network.model)
    weights = getattr(network.model, PARAMETER) if pooling == "mix" else torch.ones(layers)  # (layers,)
    plain = {TENSOR: weights.detach().float().cpu().contiguous()}
    check_finite(plain)
    folder.mkdir(exist_ok=True)
    write_json(
        folder / "config.json",
        {"word_embedding_dimension": network.dimension, "layer_start": 0, "num_hidden_layers": layers - 1},
    )
    require("safetensors.torch", extra="minilm").save_file(plain, folder / WEIGHTS, metadata={"format": "pt"})


def _save_pooling(folder: Path, dimension: int, mode: str) -> None:
    folder.mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": name == {"cls": "cls_token", "mean": "mean_tokens"}[mode] for name in _MODES}
    write_json(folder / "config.json", {"word_embedding_dimension": dimension, **modes, "include_prompt": True})


def _save_settings(folder: Path, modules: list[str], settings: Settings) -> None:
    listed = [
        {
            "idx": number,
            "name": str(number),
            "path": _place(modules[: number + 1]),
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(modules)
    ]
    write_json(folder / "modules.json", listed)
    write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": settings.max_tokens, "do_lower_case": settings.lower},
    )
    prompts = {_PROMPT: settings.prompt} if settings.prompt else {}
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "model_type": "SentenceTransformer",
            "prompts": prompts,
            "default_prompt_name": _PROMPT if prompts else None,
            "similarity_fn_name": None,
        },
    )


# Any encoder as a whole folder: deltas added in, so that programs which know no citeweave can load it.

KIND, VERSION = "encoder", 1
CARD = "card"
"""The fact of a manifest that holds what a model's card is made of."""


def write_whole(model: str | Path, folder: str | Path, *, dtype: str = "float32", overwrite: bool = False) -> Manifest:
    """Write an encoder, by name or folder, as a sentence-transformers folder; `dtype` is that of the saved weights."""
    choose(dtype, DTYPES, "--dtype")
    encoder = load_encoder(model, device="cpu")
    recipe = {"copy of": encoder.revision, "dtype": dtype}
    with new_artifact(Path(folder), KIND, VERSION, recipe, overwrite=overwrite) as writer:
        card = _card(model, encoder.name, encoder.revision)
        save_encoder(writer.folder, encoder.network, encoder.reader.tokenizer, encoder.settings, card=card, dtype=dtype)
        if (heads := find_heads(model)) is not None:
            save_heads(writer.folder, heads)
        writer.facts = {"model": encoder.name, "revision": encoder.revision, **_facts_of(model)}
        return writer.finish()


def _card(model: str | Path, name: str, revision: str) -> ModelCard:
    known = _facts_of(model).get(CARD)
    if isinstance(known, dict):
        return card_of_facts(known)
    return ModelCard(name, about=f"A copy of {name}, revision {revision}.")


def _facts_of(model: str | Path) -> dict[str, Any]:
    try:
        return dict(read_manifest(locate(model).folder, KIND, VERSION).facts)
    except ArtifactError:
        return {}
