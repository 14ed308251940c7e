"""Save an encoder as a sentence-transformers folder, which works without citeweave; deltas are merged in.

    modules.json                        Transformer, [WeightedLayerPooling,] Pooling[, Normalize]
    config.json, model.safetensors      the transformer, with low-rank changes merged in
    tokenizer.json, ...                 its tokenizer
    sentence_bert_config.json           where texts are truncated, whether they are lowercased
    1_WeightedLayerPooling/             the learned mix of layers, where there is one
    1_Pooling/, 2_Normalize/            how tokens become one vector
    config_sentence_transformers.json   the prompt
    aspect_words/, title_abstract/      the words for aspects, or only a name, where the pooling is that of their name
    README.md                           the model card

    SentenceTransformer(folder).encode(title + tokenizer.sep_token + abstract) == load_encoder(folder).encode(...)

    write_merged_model("weave", "folder/")        any encoder by name or folder, also a delta, as a complete model
    SentenceTransformer("folder/")                the vectors of load_encoder("weave")

With the poolings `aspect_words` and `title_abstract` the two differ: sentence-transformers has none such and gives the state of the first
token. Of a model with `do_lower_case`, sentence-transformers before 6 lowercases the separator too and so loses it. The
names are those of sentence-transformers 2 to 5, which 6 reads too. The same encoder gives the same bytes. Saves what is
needed for vectors, not for resuming the training: checkpoints do that.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.core.artifact import Manifest, artifact_matches, new_artifact, read_manifest
from citeweave.core.errors import ArtifactError, choose, require
from citeweave.core.files import write_json
from citeweave.encoders.aspects import find_heads, save_heads
from citeweave.encoders.delta import merged_weights
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_card import ModelCard, card_from_metadata, card_text
from citeweave.encoders.model_folder import (
    ASPECT_WORDS,
    TITLE_ABSTRACT,
    TITLE_ABSTRACT_FORMAT,
    TITLE_ABSTRACT_VERSION,
    WEIGHTS,
    Settings,
)
from citeweave.encoders.model_names import locate, parse_random
from citeweave.encoders.network import Network, silence_transformers
from citeweave.encoders.pooling import PARAMETER, TENSOR, count_states, save_aspect_words
from citeweave.encoders.untrusted_model import check_finite
from citeweave.vectors.own_distance import write_reading

if TYPE_CHECKING:
    from torch import Tensor


KIND, VERSION = "encoder", 1
CARD = "card"
"""Key of the manifest under which the metadata of the model card is kept."""

DTYPES = ("float32", "float16")
"""Dtypes in which weights can be saved; loaded models compute in float32 either way."""

SAVED_POOLINGS = ("cls", "mean", "layers", "mix", ASPECT_WORDS, TITLE_ABSTRACT)

_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
_PROMPT = "default"
_OF_LOADING = ("is_local", "local_files_only", "name_or_path")
"""Settings by which transformers records where a tokenizer came from."""


def save_encoder(
    folder: Path,
    network: Network,
    tokenizer: Any,
    settings: Settings,
    *,
    card: ModelCard,
    dtype: str = "float32",
) -> None:
    """Save an encoder into an existing folder, such as the partial one of an artifact.

    A pooling over all layers alike (`layers`) is saved as a mix with equal weights, and read back as `mix`.
    """
    choose(dtype, DTYPES, "the dtype of saved weights")
    choose(settings.pooling, SAVED_POOLINGS, "the pooling of a saved encoder")
    mixes = settings.pooling in ("layers", "mix")
    _save_transformer(folder, network.model, dtype, every_layer=mixes)
    _save_tokenizer(folder, tokenizer, settings.max_tokens)
    modules = ["Transformer"]
    if mixes:
        modules.append("WeightedLayerPooling")
        _save_mix(folder / _place(modules), network, settings.pooling)
    modules.append("Pooling")
    first = settings.pooling in ("cls", ASPECT_WORDS, TITLE_ABSTRACT)
    _save_pooling(folder / _place(modules), network.dimension, "cls" if first else "mean")
    if settings.pooling == ASPECT_WORDS:
        save_aspect_words(folder, network.model)
    if settings.pooling == TITLE_ABSTRACT:
        (folder / TITLE_ABSTRACT).mkdir(exist_ok=True)
        config = {"format": TITLE_ABSTRACT_FORMAT, "version": TITLE_ABSTRACT_VERSION}
        write_json(folder / TITLE_ABSTRACT / "config.json", config)
    if settings.normalize:
        modules.append("Normalize")
        (folder / _place(modules)).mkdir(exist_ok=True)
    _save_settings(folder, modules, settings)
    text = card_text(card, settings, dimension=network.dimension, has_separator=bool(tokenizer.sep_token))
    (folder / "README.md").write_text(text, encoding="utf-8")


def _place(modules: list[str]) -> str:
    """Return the folder name of the last module, such as 1_Pooling."""
    return f"{len(modules) - 1}_{modules[-1]}" if len(modules) > 1 else ""


def _save_transformer(folder: Path, model: Any, dtype: str, *, every_layer: bool) -> None:
    torch, transformers = require("torch", extra="minilm"), require("transformers", extra="minilm")
    numbers = getattr(torch, dtype)
    weights: dict[str, Tensor] = {
        name: tensor.detach().to("cpu", numbers if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in merged_weights(model).items()
    }
    check_finite(weights)
    with silence_transformers(transformers):
        model.save_pretrained(folder, state_dict=weights, max_shard_size="1000GB")
    config = copy.deepcopy(model.config)
    # loaded models compute in float32; half precision is only for the file
    config.dtype = "float32"
    config.output_hidden_states = every_layer  # makes sentence-transformers compute all layers
    config.save_pretrained(folder)


def _save_tokenizer(folder: Path, tokenizer: Any, max_tokens: int | None) -> None:
    own = copy.deepcopy(tokenizer)
    if max_tokens is not None:
        own.model_max_length = max_tokens
    if inner := getattr(own, "backend_tokenizer", None):
        # the last call left its own settings
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
    config = {"word_embedding_dimension": network.dimension, "layer_start": 0, "num_hidden_layers": layers - 1}
    write_json(folder / "config.json", config)
    require("safetensors.torch", extra="minilm").save_file(plain, folder / WEIGHTS, metadata={"format": "pt"})


def _save_pooling(folder: Path, dimension: int, mode: str) -> None:
    folder.mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": name == {"cls": "cls_token", "mean": "mean_tokens"}[mode] for name in _MODES}
    write_json(folder / "config.json", {"word_embedding_dimension": dimension, **modes, "include_prompt": True})


def _save_settings(folder: Path, modules: list[str], settings: Settings) -> None:
    names = {number: f"sentence_transformers.models.{kind}" for number, kind in enumerate(modules)}
    listed = [
        {"idx": number, "name": str(number), "path": _place(modules[: number + 1]), "type": name}
        for number, name in names.items()
    ]
    write_json(folder / "modules.json", listed)
    transformer = {"max_seq_length": settings.max_tokens, "do_lower_case": settings.lower}
    write_json(folder / "sentence_bert_config.json", transformer)
    prompts = {_PROMPT: settings.prompt} if settings.prompt else {}
    own = {"prompts": prompts, "default_prompt_name": _PROMPT if prompts else None, "similarity_fn_name": None}
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SentenceTransformer", **own})


def write_merged_model(
    model: str | Path, folder: str | Path, *, dtype: str = "float32", overwrite: bool = False
) -> Manifest:
    """Save any encoder, by name or folder, as a complete model with its deltas merged; `dtype` of the saved weights.

    A folder that already holds this model stays as it is.
    """
    choose(dtype, DTYPES, "--dtype")
    encoder = load_encoder(model, device="cpu")
    recipe = {"copy of": encoder.revision, "dtype": dtype}
    if not overwrite and artifact_matches(Path(folder), KIND, VERSION, recipe):
        return read_manifest(Path(folder), KIND, VERSION)
    with new_artifact(Path(folder), KIND, VERSION, recipe, overwrite=overwrite) as writer:
        recorded = _metadata_of(model)
        card = ModelCard(encoder.name, about=f"A copy of {encoder.name}, revision {encoder.revision}.")
        if isinstance(recorded.get(CARD), dict):
            card = card_from_metadata(recorded[CARD])
        save_encoder(writer.folder, encoder.network, encoder.reader.tokenizer, encoder.settings, card=card, dtype=dtype)
        write_reading(writer.folder, encoder.reading)
        if (heads := find_heads(model)) is not None:
            save_heads(writer.folder, heads)
        writer.facts = {"model": encoder.name, "revision": encoder.revision, **recorded}
        return writer.finish()


def _metadata_of(model: str | Path) -> dict[str, Any]:
    if parse_random(model)[1] is not None:
        return {}  # what is recorded is about the weights of its shape's model
    try:
        return dict(read_manifest(locate(model).folder, KIND, VERSION).facts)
    except ArtifactError:
        return {}
