"""A model's weights as its own classes name them, with low-rank changes added in (Hu et al. 2022, LoRA).

    encoder.layer.0.attention.self.query.base_layer.weight  W  (out, in)
    encoder.layer.0.attention.self.query.lora_A.default.weight  A  (rank, in)        in memory, as peft trains them
    encoder.layer.0.attention.self.query.lora_B.default.weight  B  (out, rank)
    encoder.layer.0.attention.self.query.weight  W + B A alpha / rank                merged

Reads layers that peft has made without importing peft. Does not train: `training/partial.py` makes such layers.

Deltas: folders that hold only what training changed of a base model, and load on top of it.

    delta.json           {"format": "citeweave-delta", "version": 1, "kind": "bias", "base": "minilm",
                          "base_revision": "1f0c...", "settings": {"pooling": "mean", ...}, "lora": null}
    delta.safetensors    the changed parameters by name; of LoRA `<layer>.lora_A` (rank, in), `<layer>.lora_B` (out, rank)
    README.md            the model card

    open_model(folder)   any encoder's folder, whole or delta: where its weights are and what changes them
    complete_model(...)  make the changes in the loaded model

The base is found by its name and must be the very one that was trained: same weights, same tokenizer. A folder may come
from a stranger, so that nothing in it is believed: names, shapes and numbers are compared with the base, no code and no
pickle is run, and peft is not needed. Does not load the base: `network.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.core.errors import InputError, MissingExtraError, UserError, require
from citeweave.core.files import hash_file, hash_json, write_json
from citeweave.encoders.compact_delta import CompactDelta, apply_compact, is_compact, read_compact
from citeweave.encoders.model_card import ModelCard, card_text
from citeweave.encoders.model_folder import (
    ASPECT_WORDS,
    SETTINGS_FILE,
    TENSORS_FILE,
    ModelFolder,
    Settings,
    base_of,
    check_format,
    check_keys,
    check_unchanged,
    read_json,
    read_model_folder,
    revision_of,
    sealed_settings,
    settings_of,
    unsealed_settings,
)
from citeweave.encoders.model_names import locate, remembered
from citeweave.encoders.pooling import (
    PARAMETER,
    add_mix,
    check_finite,
    check_sum,
    count_states,
    read_mix,
    read_tensors,
)
from citeweave.encoders.text_vectors import (
    PREFIX,
    add_words,
    is_of_pooling,
    read_words,
    word_numbers,
    word_shapes,
)

if TYPE_CHECKING:
    from torch import Tensor


_ADAPTER = "default"


@dataclass(frozen=True, slots=True)
class LowRankChange:
    """The change of one linear layer."""

    a: Tensor
    """Shape (rank, in)."""

    b: Tensor
    """Shape (out, rank)."""

    alpha: float

    @property
    def rank(self) -> int:
        return int(self.a.shape[0])

    def change(self) -> Tensor:
        """What is added to the weights, (out, in), in float32."""
        return (self.b.float() @ self.a.float()) * (self.alpha / self.rank)


def low_rank_layers(model: Any) -> dict[str, LowRankChange]:
    """The low-rank changes of a model, by the name of the layer they change; empty where it has none."""
    found = {}
    for name, layer in model.named_modules():
        if not (hasattr(layer, "lora_A") and hasattr(layer, "base_layer") and len(layer.lora_A)):
            continue
        if list(layer.lora_A) != [_ADAPTER] or len(layer.lora_magnitude_vector) or layer.merged:
            raise UserError(f"{name} has adapters other than one plain LoRA named {_ADAPTER!r}; merge them with peft")
        a, b = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
        found[name] = LowRankChange(a.detach(), b.detach(), float(layer.scaling[_ADAPTER]) * int(a.shape[0]))
    return found


def merged_weights(model: Any) -> dict[str, Tensor]:
    """Every weight of the plain model by its own name, on the device where it is; without those of its pooling."""
    changes = low_rank_layers(model)
    weights = {}
    for name, tensor in model.state_dict().items():
        if is_of_pooling(name) or ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        layer, _, kind = plain.rpartition(".")
        changed = kind == "weight" and layer in changes
        weights[plain] = (tensor.float() + changes[layer].change()).to(tensor.dtype) if changed else tensor
    return weights


# Deltas: folders that hold only what training changed of a base model, and load on top of it.

FORMAT, VERSION = "citeweave-delta", 1
_MAX_RANK, _MAX_ALPHA = 4096, 1e6
_MAX_DEPTH = 4
"""Deltas on top of each other; more is a folder that names itself."""


@dataclass(frozen=True, slots=True)
class Lora:
    """Which layers have low-rank changes, and how these are scaled: alpha / rank."""

    rank: int
    alpha: float
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """What delta.json says."""

    kind: str
    """What was trained: `bias`, `lora`, `all`; for the reader only."""

    base: str
    base_revision: str
    settings: Settings
    lora: Lora | None = None


def base_revision(model: ModelFolder) -> str:
    """Hash of the weights and the tokenizer of a base, whatever its pooling and length."""
    return revision_of(model.weights, Settings("", None), [found for _, found in model.deltas])


def save_delta(
    folder: Path,
    model: Any,
    settings: Settings,
    *,
    base: str,
    changed: Iterable[str],
    kind: str,
    card: ModelCard,
) -> None:
    """Write the changed parameters of a model into an existing folder; `changed` are names that `choose_parts` gave.

    `base` is what `load_encoder` was given for the model before training. A folder is remembered by its whole path.
    """
    opened = open_model(locate(base).folder)
    low_rank = low_rank_layers(model)
    parameters = dict(model.named_parameters())
    names = {name for name in changed if ".lora_" not in name} | ({PARAMETER} if settings.pooling == "mix" else set())
    tensors = {name.replace(".base_layer.", "."): parameters[name] for name in names}
    if settings.pooling == ASPECT_WORDS:
        tensors |= {f"{PREFIX}{name}": tensor for name, tensor in word_numbers(model).items()}
    for layer, change in low_rank.items():
        tensors |= {f"{layer}.lora_A": change.a, f"{layer}.lora_B": change.b}
    if not tensors:
        raise UserError("a delta of no parameter says nothing; name those that were trained")
    if len({(change.rank, change.alpha) for change in low_rank.values()}) > 1:
        raise UserError("the layers of this LoRA differ in rank or alpha, which a delta cannot say; save it whole")
    lora = None
    if low_rank:
        first = next(iter(low_rank.values()))
        lora = Lora(first.rank, first.alpha, tuple(sorted(low_rank)))
    delta = Delta(kind, remembered(base), base_revision(opened), settings, lora)
    plain = {name: tensor.detach().float().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    check_finite(plain)
    require("safetensors.torch", extra="minilm").save_file(plain, folder / TENSORS_FILE, metadata={"format": "pt"})
    write_json(folder / SETTINGS_FILE, sealed_settings({"format": FORMAT, "version": VERSION, **asdict(delta)}))
    text = card_text(card, settings, dimension=int(model.config.hidden_size), is_delta=True)
    (folder / "README.md").write_text(text, encoding="utf-8")


def open_model(folder: Path, *, depth: int = 0) -> ModelFolder:
    """Read the settings of an encoder's folder; of a delta those it was trained with, and its base's weights."""
    check_unchanged(folder)
    if not (folder / SETTINGS_FILE).is_file():
        return read_model_folder(folder)
    if depth >= _MAX_DEPTH:
        raise UserError(
            f"{folder} is a delta on top of {depth} others; save it whole, or check for one that names itself"
        )
    delta = read_compact(folder) if is_compact(folder) else read_delta(folder)
    try:
        base = open_model(locate(delta.base).folder, depth=depth + 1)
    except MissingExtraError:
        raise  # its pip line is all there is to say
    except UserError as error:
        raise UserError(
            f"{folder} is a delta of {delta.base!r}, which cannot be opened: {error}. Where the base is at another place "
            f'now, write that into "base" of {folder / SETTINGS_FILE}'
        ) from None
    found = base_revision(base)
    if found != delta.base_revision:
        raise UserError(
            f"{folder} is a delta of revision {delta.base_revision} of {delta.base!r}, and revision {found} is here; "
            "get the base that it was trained from"
        )
    deltas = (*base.deltas, (folder, _hash_changes(folder, delta)))
    return replace(base, settings=delta.settings, is_sentence_transformer=True, deltas=deltas)


def _hash_changes(folder: Path, delta: Delta | CompactDelta) -> str:
    if isinstance(delta, CompactDelta):
        return hash_json({"matrices": asdict(delta)["matrices"], "tensors": delta.sha256})
    try:
        tensors = hash_file(folder / TENSORS_FILE)
    except OSError as error:
        raise InputError(f"{folder / TENSORS_FILE} cannot be read ({error.strerror}); copy the whole folder") from None
    return hash_json({"lora": asdict(delta)["lora"], "tensors": tensors})


def complete_model(model: Any, folder: ModelFolder, pooling: str) -> None:
    """Give a loaded model what its weights do not hold: what its pooling needs, and its deltas."""
    if pooling == ASPECT_WORDS:
        add_words(model, read_words(folder.words, model) if folder.words else None)
    if pooling == "mix":
        add_mix(model, read_mix(folder.mix, read_json(folder.mix / "config.json"), model) if folder.mix else None)
    for place, _ in folder.deltas:
        if is_compact(place):
            apply_compact(place, model)
        else:
            _apply_delta(place, read_delta(place), model)


def read_delta(folder: Path) -> Delta:
    """Read and check delta.json."""
    path = folder / SETTINGS_FILE
    data = read_json(path)
    check_format(path, data, FORMAT, VERSION)
    data = unsealed_settings(path, data)
    check_keys(path, data, {"format", "version", *(field.name for field in fields(Delta))})
    settings = settings_of(path, data["settings"])
    return Delta(str(data["kind"])[:40], *base_of(path, data), settings, _lora(path, data["lora"]))


def _lora(path: Path, data: object) -> Lora | None:
    if data is None:
        return None
    table = check_keys(path, data, {field.name for field in fields(Lora)})
    rank, alpha, layers = table["rank"], table["alpha"], table["layers"]
    if type(rank) is not int or not 1 <= rank <= _MAX_RANK:
        raise InputError(f"{path}: the rank is {str(rank)[:40]!r}; it must be a whole number from 1 to {_MAX_RANK}")
    if type(alpha) not in (int, float) or not 0 < alpha <= _MAX_ALPHA:
        raise InputError(f"{path}: alpha is {str(alpha)[:40]!r}; it must be a number above 0, at most {_MAX_ALPHA:g}")
    if not (isinstance(layers, list) and layers and all(isinstance(layer, str) for layer in layers)):
        raise InputError(f"{path}: the layers of the LoRA must be a list of names; copy the delta again")
    return Lora(rank, float(alpha), tuple(layers))


def _apply_delta(folder: Path, delta: Delta, model: Any) -> None:
    torch = require("torch", extra="minilm")
    parameters = dict(model.named_parameters())
    parameters |= {name: tensor for name, tensor in model.named_buffers() if name.startswith(PREFIX)}
    low_rank = _low_rank_shapes(folder, delta, model)
    expected = {name: tuple(parameter.shape) for name, parameter in parameters.items()} | low_rank
    expected |= {PARAMETER: (count_states(model),)}
    expected |= {f"{PREFIX}{name}": shape for name, shape in word_shapes(model).items()}
    found = read_tensors(folder / TENSORS_FILE, expected, all_there=False)
    if lacking := sorted(set(low_rank) - set(found)):
        raise InputError(
            f"{folder / TENSORS_FILE} lacks {lacking[0]}, which {SETTINGS_FILE} names; copy the delta again"
        )
    with torch.no_grad():
        for name, tensor in found.items():
            if name in parameters:  # a pooling's are left out where the caller wants another pooling
                parameters[name].copy_(tensor)
        if delta.lora:
            for layer in delta.lora.layers:
                change = LowRankChange(found[f"{layer}.lora_A"], found[f"{layer}.lora_B"], delta.lora.alpha).change()
                weight = parameters[f"{layer}.weight"]
                weight.copy_(weight.float() + change.to(weight.device))
    if PARAMETER in found:
        check_sum(float(found[PARAMETER].sum()), folder / TENSORS_FILE)


def _low_rank_shapes(folder: Path, delta: Delta, model: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of A and B of every layer that a LoRA changes, each of which must be a linear layer of the base."""
    torch = require("torch", extra="minilm")
    if delta.lora is None:
        return {}
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    shapes: dict[str, tuple[int, ...]] = {}
    for name in delta.lora.layers:
        if name not in linear:
            raise InputError(f"{folder / SETTINGS_FILE}: {name[:100]!r} is no linear layer of the base {delta.base!r}")
        shapes[f"{name}.lora_A"] = (delta.lora.rank, linear[name].in_features)
        shapes[f"{name}.lora_B"] = (linear[name].out_features, delta.lora.rank)
    return shapes
