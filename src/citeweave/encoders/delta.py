"""Deltas of a base model: folders that hold only the weights that training changed, in full or as LoRA.

    delta.json           {"format": "citeweave-delta", "version": 1, "kind": "bias", "base": "minilm",
                          "base_revision": "1f0c...", "settings": {"pooling": "mean", ...}, "lora": null}
    delta.safetensors    the changed parameters by name; of LoRA `<layer>.lora_A` (rank, in), `<layer>.lora_B` (out, rank)
    README.md            the model card

    open_model(folder)   any encoder's folder, complete or delta: where its weights are and what changes them
    complete_model(...)  apply the changes to the loaded model

LoRA (Hu et al. 2022) in memory, as peft trains it, and merged:

    encoder.layer.0.attention.self.query.base_layer.weight  W  (out, in)
    encoder.layer.0.attention.self.query.lora_A.default.weight  A  (rank, in)
    encoder.layer.0.attention.self.query.lora_B.default.weight  B  (out, rank)
    encoder.layer.0.attention.self.query.weight  W + B A alpha / rank

The base is found by its name and must be the one that was trained: same weights, same tokenizer. A folder may be untrusted:
names, shapes and numbers are checked against the base, no code and no pickle is run, and peft is not needed. Does not load
the base (`network.py`) and does not train (`training/partial.py`).
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
from citeweave.encoders.model_names import locate, stored_name
from citeweave.encoders.pooling import (
    PARAMETER,
    PREFIX,
    add_aspect_words,
    add_mix,
    aspect_word_shapes,
    aspect_word_weights,
    check_sum,
    count_states,
    is_pooling_weight,
    read_aspect_words,
    read_mix,
)
from citeweave.encoders.untrusted_model import check_finite, read_tensors

if TYPE_CHECKING:
    from torch import Tensor


FORMAT, VERSION = "citeweave-delta", 1
_MAX_RANK, _MAX_ALPHA = 4096, 1e6
_MAX_DEPTH = 4
"""Most deltas on top of each other; more means a folder that names itself."""

_ADAPTER = "default"


@dataclass(frozen=True, slots=True)
class LowRankChange:
    """The low-rank change (LoRA) of one linear layer in a delta."""

    a: Tensor
    """Shape (rank, in)."""

    b: Tensor
    """Shape (out, rank)."""

    alpha: float

    @property
    def rank(self) -> int:
        return int(self.a.shape[0])

    def change(self) -> Tensor:
        """Return B A alpha / rank, which is added to the weights, (out, in), in float32."""
        return (self.b.float() @ self.a.float()) * (self.alpha / self.rank)


def _low_rank_layers(model: Any) -> dict[str, LowRankChange]:
    """Return the low-rank changes of a model, by the name of the layer they change; empty where it has none."""
    changes = {}
    for name, layer in model.named_modules():
        if not (hasattr(layer, "lora_A") and hasattr(layer, "base_layer") and len(layer.lora_A)):
            continue
        if list(layer.lora_A) != [_ADAPTER] or len(layer.lora_magnitude_vector) or layer.merged:
            raise UserError(f"{name} has adapters other than one plain LoRA named {_ADAPTER!r}; merge them with peft")
        a, b = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
        changes[name] = LowRankChange(a.detach(), b.detach(), float(layer.scaling[_ADAPTER]) * int(a.shape[0]))
    return changes


def merged_weights(model: Any) -> dict[str, Tensor]:
    """Return the weights of a model with the low-rank changes of its delta merged in, without those of its pooling."""
    changes = _low_rank_layers(model)
    weights = {}
    for name, tensor in model.state_dict().items():
        if is_pooling_weight(name) or ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        layer, _, kind = plain.rpartition(".")
        changed = kind == "weight" and layer in changes
        weights[plain] = (tensor.float() + changes[layer].change()).to(tensor.dtype) if changed else tensor
    return weights


@dataclass(frozen=True, slots=True)
class Lora:
    """Which layers of a delta have low-rank changes, and their scale: alpha / rank."""

    rank: int
    alpha: float
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """The content of a delta's delta.json: base, settings, and the layers with low-rank changes."""

    kind: str
    """What was trained: `bias`, `lora`, `all`; for information only."""

    base: str
    base_revision: str
    settings: Settings
    lora: Lora | None = None


def base_revision(model: ModelFolder) -> str:
    """Return the hash of the weights and the tokenizer of a base, whatever its pooling and length."""
    return revision_of(model.weights, Settings("", None), [changes for _, changes in model.deltas])


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
    """Save the changed parameters of a model as a delta in an existing folder; `changed` are names of parameters.

    `base` is the name or folder of the model before training; a folder is stored by its absolute path.
    """
    opened = open_model(locate(base).folder)
    low_rank = _low_rank_layers(model)
    parameters = dict(model.named_parameters())
    names = {name for name in changed if ".lora_" not in name} | ({PARAMETER} if settings.pooling == "mix" else set())
    tensors = {name.replace(".base_layer.", "."): parameters[name] for name in names}
    if settings.pooling == ASPECT_WORDS:
        tensors |= {f"{PREFIX}{name}": tensor for name, tensor in aspect_word_weights(model).items()}
    for layer, change in low_rank.items():
        tensors |= {f"{layer}.lora_A": change.a, f"{layer}.lora_B": change.b}
    if not tensors:
        raise UserError("a delta needs at least one parameter; name those that were trained")
    if len({(change.rank, change.alpha) for change in low_rank.values()}) > 1:
        raise UserError(
            "the layers of this LoRA differ in rank or alpha, which a delta cannot express; save the complete model"
        )
    lora = None
    if low_rank:
        first = next(iter(low_rank.values()))
        lora = Lora(first.rank, first.alpha, tuple(sorted(low_rank)))
    delta = Delta(kind, stored_name(base), base_revision(opened), settings, lora)
    plain = {name: tensor.detach().float().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    check_finite(plain)
    require("safetensors.torch", extra="minilm").save_file(plain, folder / TENSORS_FILE, metadata={"format": "pt"})
    write_json(folder / SETTINGS_FILE, sealed_settings({"format": FORMAT, "version": VERSION, **asdict(delta)}))
    text = card_text(card, settings, dimension=int(model.config.hidden_size), is_delta=True)
    (folder / "README.md").write_text(text, encoding="utf-8")


def open_model(folder: Path, *, depth: int = 0) -> ModelFolder:
    """Open a delta on its base, or a complete folder; a delta has its own settings and its base's weights."""
    check_unchanged(folder)
    if not (folder / SETTINGS_FILE).is_file():
        return read_model_folder(folder)
    if depth >= _MAX_DEPTH:
        raise UserError(
            f"{folder} is a delta on top of {depth} others; save the complete model, or check for one that names itself"
        )
    delta = read_compact(folder) if is_compact(folder) else read_delta(folder)
    try:
        base = open_model(locate(delta.base).folder, depth=depth + 1)
    except MissingExtraError:
        raise  # its pip line is enough
    except UserError as error:
        raise UserError(
            f"{folder} is a delta of {delta.base!r}, which cannot be opened: {error}. If the base has moved, "
            f'write its new path into "base" of {folder / SETTINGS_FILE}'
        ) from None
    revision = base_revision(base)
    if revision != delta.base_revision:
        raise UserError(
            f"{folder} is a delta of revision {delta.base_revision} of {delta.base!r}, and revision {revision} is here; "
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
        raise InputError(
            f"{folder / TENSORS_FILE} cannot be read ({error.strerror}); copy the complete folder"
        ) from None
    return hash_json({"lora": asdict(delta)["lora"], "tensors": tensors})


def complete_model(model: Any, folder: ModelFolder, pooling: str) -> None:
    """Add the pooling weights and the deltas of a model folder to the loaded base model."""
    if pooling == ASPECT_WORDS:
        add_aspect_words(model, read_aspect_words(folder.words, model) if folder.words else None)
    if pooling == "mix":
        add_mix(model, read_mix(folder.mix, read_json(folder.mix / "config.json"), model) if folder.mix else None)
    for place, _ in folder.deltas:
        if is_compact(place):
            apply_compact(place, model)
        else:
            _apply_delta(place, read_delta(place), model)


def read_delta(folder: Path) -> Delta:
    """Read and check the delta.json of a delta."""
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
    expected |= {f"{PREFIX}{name}": shape for name, shape in aspect_word_shapes(model).items()}
    tensors = read_tensors(folder / TENSORS_FILE, expected, all_there=False)
    if lacking := sorted(set(low_rank) - set(tensors)):
        raise InputError(
            f"{folder / TENSORS_FILE} lacks {lacking[0]}, which {SETTINGS_FILE} names; copy the delta again"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            if name in parameters:  # pooling weights are skipped where the caller chose another pooling
                parameters[name].copy_(tensor)
        if delta.lora:
            for layer in delta.lora.layers:
                change = LowRankChange(
                    tensors[f"{layer}.lora_A"], tensors[f"{layer}.lora_B"], delta.lora.alpha
                ).change()
                weight = parameters[f"{layer}.weight"]
                weight.copy_(weight.float() + change.to(weight.device))
    if PARAMETER in tensors:
        check_sum(float(tensors[PARAMETER].sum()), folder / TENSORS_FILE)


def _low_rank_shapes(folder: Path, delta: Delta, model: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of A and B of every layer that the LoRA changes; each must be a linear layer of the base."""
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
