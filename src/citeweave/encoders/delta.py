"""Deltas of a base model: folders that hold only what training changed, exactly or in few bytes.

    delta.json           {"format": "citeweave-delta", "version": 2, "kind": "lora", "base": "minilm",
                          "base_revision": "d58e...", "settings": {"pooling": "mean", ...}, "sha256": "...",
                          "matrices": {"encoder.layer.0.output.dense.weight": {"kind": "factors", "count": 12, "bits": 4}, ...}}
    delta.safetensors    W.left, W.right, W.rows, ...    the change of a matrix W, see `matrix_codes.py`
                         a weight's own name             in float32 its new value, in float16 its change
    README.md            the model card, of deltas that training saved

    "layers": [1, 3, 5]    in delta.json: the model has only these layers of its base, from 0, and counts them anew

    open_model(folder)   any encoder's folder, complete or delta: where its weights are and what changes them
    complete_model(...)  apply the changes to the loaded model

Training saves LoRA (Hu et al. 2022) as factors and other weights by their values; `compress.py` quantizes all changes of a
model; an intent classifier is a delta with heads beside it. LoRA in memory, as peft trains it, and merged:

    encoder.layer.0.attention.self.query.base_layer.weight  W  (out, in)
    encoder.layer.0.attention.self.query.lora_A.default.weight  A  (rank, in)
    encoder.layer.0.attention.self.query.lora_B.default.weight  B  (out, rank)
    encoder.layer.0.attention.self.query.weight  W + B A alpha / rank

The base is found by its name and must be the one that was trained: same weights, same tokenizer. A folder may be untrusted:
names, shapes, dtypes and the hash are checked against the base before a number is used, no code and no pickle is run, and
peft is not needed. Does not load the base (`network.py`) and does not train (`training/partial.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.core.artifact import seal_payload, unseal_payload
from citeweave.core.errors import InputError, MissingExtraError, UserError, require
from citeweave.core.files import hash_file, hash_json, write_atomically, write_json
from citeweave.encoders.matrix_codes import BITS, KINDS, Coding, code_matrix, read_change, tensor_shapes
from citeweave.encoders.model_card import ModelCard, card_text
from citeweave.encoders.model_folder import (
    SETTINGS_FILE,
    TENSORS_FILE,
    ModelFolder,
    Settings,
    check_format,
    check_unchanged,
    read_json,
    read_model_folder,
    revision_of,
)
from citeweave.encoders.model_names import NAMED, hub_name, is_in_hub_cache, locate, parse_random, stored_name
from citeweave.encoders.pooling import (
    PARAMETER,
    PREFIX,
    add_pooling,
    check_sum,
    is_pooling_weight,
    pooling_shapes,
    pooling_weights,
)
from citeweave.encoders.untrusted_model import check_finite, read_stored

if TYPE_CHECKING:
    from torch import Tensor


FORMAT, VERSION = "citeweave-delta", 2
_OLD_COMPACT = "citeweave-compact-delta"
"""Format of quantized deltas before version 2."""

_MAX_DEPTH = 4
"""Most deltas on top of each other; more means a folder that names itself."""

_ADAPTER = "default"
_SETTINGS: dict[str, tuple[type, ...]] = {
    "pooling": (str,),
    "max_tokens": (int, type(None)),
    "normalize": (bool,),
    "lower": (bool,),
    "prompt": (str,),
}


@dataclass(frozen=True, slots=True)
class Delta:
    """The content of a delta's delta.json: base, settings, and the coding of every matrix."""

    kind: str
    """What was trained: `bias`, `lora`, `all`, or `compact` of a compressed model; for information only."""

    base: str
    base_revision: str
    settings: Settings
    sha256: str
    """SHA-256 of delta.safetensors."""

    matrices: Mapping[str, Coding]
    layers: tuple[int, ...] = ()
    """Layers of the base that the model keeps, from 0; empty = all."""


# --- low-rank changes of a model in memory, as peft holds them ------------------------------------------


def _low_rank_layers(model: Any) -> dict[str, Any]:
    """Return peft's low-rank layers of a model by their names; empty where it has none."""
    layers = {}
    for name, layer in model.named_modules():
        if hasattr(layer, "lora_A") and hasattr(layer, "base_layer") and len(layer.lora_A):
            if list(layer.lora_A) != [_ADAPTER] or len(layer.lora_magnitude_vector) or layer.merged:
                raise UserError(
                    f"{name} has adapters other than one plain LoRA named {_ADAPTER!r}; merge them with peft"
                )
            layers[name] = layer
    return layers


def low_rank_factors(model: Any, bits: int = 32) -> tuple[dict[str, Coding], dict[str, Tensor]]:
    """Return the low-rank changes of a model for `write_delta`: codings, and tensors of this many bits per number."""
    codings: dict[str, Coding] = {}
    tensors: dict[str, Tensor] = {}
    for name, layer in _low_rank_layers(model).items():
        right, left = (part[_ADAPTER].weight.detach().float().cpu() for part in (layer.lora_A, layer.lora_B))
        coded = code_matrix("left", left.T, bits) | code_matrix("right", right * layer.scaling[_ADAPTER], bits)
        codings[f"{name}.weight"] = Coding("factors", len(right), bits)
        tensors |= {f"{name}.weight.{part}": tensor for part, tensor in coded.items()}
    return codings, tensors


def plain_name(name: str) -> str:
    """Return the name of a parameter without the layer that peft puts around it."""
    return name.replace(".base_layer.", ".")


def merged_weights(model: Any) -> dict[str, Tensor]:
    """Return the weights of a model with the low-rank changes of its delta merged in, without those of its pooling."""
    changed = {f"{name}.weight": layer for name, layer in _low_rank_layers(model).items()}
    weights = {}
    for name, tensor in model.state_dict().items():
        if not is_pooling_weight(name) and ".lora_" not in name:
            layer, weight = changed.get(plain_name(name)), tensor
            if layer is not None:
                weight = (tensor.float() + layer.get_delta_weight(_ADAPTER).detach().float()).to(tensor.dtype)
            weights[plain_name(name)] = weight
    return weights


# --- writing --------------------------------------------------------------------------------------------


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
    """Save the changed parameters of a model as an exact delta in an existing folder; `changed` are names of parameters.

    `base` is the name or folder of the model before training; a folder is stored by its absolute path.
    """
    codings, tensors = low_rank_factors(model)
    parameters = dict(model.named_parameters())
    tensors |= {plain_name(name): parameters[name].detach().float() for name in changed if ".lora_" not in name}
    tensors |= {name: tensor.detach().float() for name, tensor in pooling_weights(model, settings.pooling).items()}
    if not tensors:
        raise UserError("a delta needs at least one parameter; name those that were trained")
    write_delta(folder, kind, base, settings, codings, tensors)
    text = card_text(card, settings, dimension=int(model.config.hidden_size), is_delta=True)
    (folder / "README.md").write_text(text, encoding="utf-8")


def write_delta(
    folder: Path,
    kind: str,
    base: str,
    settings: Settings,
    codings: Mapping[str, Coding],
    tensors: Mapping[str, Tensor],
    layers: Sequence[int] = (),
) -> None:
    """Write delta.json and delta.safetensors into an existing folder; `layers` of the base are kept, all where empty."""
    plain = {name: tensor.cpu().contiguous() for name, tensor in sorted(tensors.items())}
    check_finite(plain)
    content = require("safetensors.torch", extra="minilm").save(plain, metadata={"format": "pt"})
    write_atomically(folder / TENSORS_FILE, content)
    revision = base_revision(open_model(locate(base).folder))
    sha256, matrices = hash_file(folder / TENSORS_FILE), dict(sorted(codings.items()))
    delta = Delta(kind, stored_name(base), revision, settings, sha256, matrices)
    table = asdict(delta) | {"layers": list(layers)}
    if not layers:
        del table["layers"]
    # users may edit the path of the base
    sealed = seal_payload({"format": FORMAT, "version": VERSION, **table, "base": ""})
    write_json(folder / SETTINGS_FILE, {**sealed, "base": delta.base})


# --- reading --------------------------------------------------------------------------------------------


def open_model(folder: Path, *, depth: int = 0) -> ModelFolder:
    """Open a delta on its base, or a complete folder; a delta has its own settings and its base's weights."""
    check_unchanged(folder)
    if not (folder / SETTINGS_FILE).is_file():
        return read_model_folder(folder)
    if depth >= _MAX_DEPTH:
        raise UserError(
            f"{folder} is a delta on top of {depth} others; save the complete model, or check for one that names itself"
        )
    delta = read_delta(folder)
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
    kept = {"layers": delta.layers} if delta.layers else {}
    changes = hash_json({"matrices": asdict(delta)["matrices"], "tensors": delta.sha256, **kept})
    deltas = (*base.deltas, (folder, changes))
    return replace(base, settings=delta.settings, is_sentence_transformer=True, deltas=deltas)


def model_to_download(name: str) -> str:
    """Return the name on the hub of a model, or of a delta's base, that is not on this machine; empty where all is here."""
    name = parse_random(name)[0]
    for _ in range(_MAX_DEPTH):
        if not (Path(name) / SETTINGS_FILE).is_file():
            break
        name = read_delta(Path(name)).base
    return name if name not in NAMED and hub_name(name) and not is_in_hub_cache(name) else ""


def complete_model(model: Any, folder: ModelFolder, pooling: str) -> None:
    """Add the pooling weights and the deltas of a model folder to the loaded base model."""
    add_pooling(model, folder, pooling)
    for place, _ in folder.deltas:
        delta = read_delta(place)
        keep_layers(model, delta.layers, str(place / SETTINGS_FILE))
        _apply_delta(place, delta, model)


def keep_layers(model: Any, layers: Sequence[int], named_by: str) -> None:
    """Keep these layers of a loaded BERT or MPNet, all where none is named; `named_by` is the file or option of errors."""
    if not layers:
        return
    own = getattr(getattr(model, "encoder", None), "layer", ())
    if not 0 <= min(layers) <= max(layers) < len(own):
        raise UserError(
            f"{named_by}: layers {', '.join(map(str, layers))} of a base with {len(own)}; name some from 0 to {len(own) - 1}"
        )
    model.encoder.layer = require("torch", extra="minilm").nn.ModuleList(own[number] for number in layers)
    model.config.num_hidden_layers = len(layers)


def read_delta(folder: Path) -> Delta:
    """Read and check the delta.json of a delta, and the hash of delta.safetensors."""
    path = folder / SETTINGS_FILE
    data = read_json(path)
    if data.get("format") == _OLD_COMPACT:
        data = data | {"format": FORMAT}
    check_format(path, data, FORMAT, VERSION)
    if "seal" in data:  # the oldest have none; a damaged key "seal" is refused as an unknown key
        try:
            data = {**unseal_payload({**data, "base": ""}), "base": data.get("base")}
        except ValueError as error:
            raise InputError(f"{path} is damaged: {error}; copy the complete folder again") from None
    names_layers = "layers" in data
    data = {"layers": [], **data}
    _check_keys(path, data, {"format", "version", *(field.name for field in fields(Delta))})
    layers = data["layers"]
    if not isinstance(layers, list) or len(layers) > 100 or any(type(number) is not int for number in layers):
        raise InputError(f"{path}: layers is {str(layers)[:40]!r}; it must be a list of whole numbers")
    if layers != sorted(set(layers)) or names_layers > bool(layers):
        raise InputError(f"{path}: layers is {str(layers)[:40]}; it must name layers of the base, ascending, each once")
    if not isinstance(data["matrices"], dict):
        raise InputError(f"{path}: matrices is not a table of names and codings; copy the delta again")
    codings = {name: _coding(path, name, table) for name, table in data["matrices"].items()}
    delta = Delta(
        str(data["kind"])[:40], *_base(path, data), _settings(path, data["settings"]), str(data["sha256"]), codings,
        tuple(layers),
    )  # fmt: skip
    _check_hash(folder / TENSORS_FILE, delta.sha256)
    return delta


def _check_keys(path: Path, data: object, known: set[str]) -> dict[str, Any]:
    """Return a JSON object of a model file that has these keys and no others, or refuse it."""
    if not isinstance(data, dict) or set(data) != known:
        wrong = sorted(set(data) ^ known) if isinstance(data, dict) else [type(data).__name__]
        raise InputError(f"{path}: {', '.join(wrong)[:100]} does not belong here or is missing; copy the delta again")
    return data


def _base(path: Path, data: dict[str, Any]) -> tuple[str, str]:
    """Read from delta.json the name or folder of its base, and the base's revision."""
    base, revision = data["base"], data["base_revision"]
    if not (isinstance(base, str) and 0 < len(base) <= 1000 and base.isprintable()) or ".." in Path(base).parts:
        raise InputError(f"{path}: the base is {str(base)[:100]!r}; it must be a name or a folder's path without '..'")
    if not (isinstance(revision, str) and re.fullmatch(r"[0-9a-f]{12}", revision)):
        raise InputError(f"{path}: base_revision is {str(revision)[:40]!r}; it must be twelve hex digits")
    return base, revision


def _settings(path: Path, data: object) -> Settings:
    """Read the settings in a delta.json."""
    table = _check_keys(path, data, set(_SETTINGS))
    for name, value in table.items():
        if type(value) not in _SETTINGS[name] or (name == "max_tokens" and value is not None and value < 1):
            raise InputError(
                f"{path}: {name} is {str(value)[:40]!r}, which is not a valid setting; copy the delta again"
            )
    return Settings(**table)


def _coding(path: Path, name: str, data: object) -> Coding:
    table = _check_keys(path, data, {"kind", "count", "bits"})
    kind, count, bits = table["kind"], table["count"], table["bits"]
    if kind not in KINDS or type(bits) is not int or bits not in BITS or type(count) is not int or count < 1:
        raise InputError(
            f"{path}: the coding of {name[:100]} is {str(table)[:100]}; kind must be {' or '.join(KINDS)}, bits one of "
            f"{', '.join(map(str, BITS))}, count a whole number from 1 up"
        )
    return Coding(kind, count, bits)


def _check_hash(path: Path, expected: str) -> None:
    try:
        actual = hash_file(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); copy the complete folder") from None
    if actual != expected:
        raise InputError(
            f"{path} is damaged (sha256 {actual[:12]}, and {SETTINGS_FILE} says {expected[:12]!r}); copy the complete folder "
            "again, or pip install --force-reinstall citeweave where it is part of the package"
        )


def _apply_delta(folder: Path, delta: Delta, model: Any) -> None:
    """Change the weights of a loaded base in place; pooling weights are skipped where the caller chose another pooling."""
    torch, path = require("torch", extra="minilm"), folder / TENSORS_FILE
    weights = dict(model.named_parameters())
    weights |= {name: tensor for name, tensor in model.named_buffers() if name.startswith(PREFIX)}
    coded = _coded_shapes(folder, delta, weights)
    plain: dict[str, Any] = {name: (("F32", "F16"), tuple(weight.shape)) for name, weight in weights.items()}
    plain |= {name: (("F32",), shape) for name, shape in pooling_shapes(model).items()}
    stored = read_stored(path, coded | plain, needed=set(coded))
    with torch.no_grad():
        for name, weight in weights.items():
            if name in delta.matrices:
                shape = tuple(weight.shape)
                parts = {part: stored[f"{name}.{part}"] for part in tensor_shapes(delta.matrices[name], shape)}
                _check_places(path, name, parts, len(weight))
                weight.copy_(weight.float() + read_change(delta.matrices[name], parts, shape).to(weight.device))
            elif name in stored and stored[name].dtype == torch.float16:
                weight.copy_(weight.float() + stored[name].float().to(weight.device))
            elif name in stored:
                weight.copy_(stored[name])
    if PARAMETER in stored:
        check_sum(float(stored[PARAMETER].sum()), path)


def _coded_shapes(folder: Path, delta: Delta, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the dtype and shape of every tensor of the coded matrices, which must be matrices of the base."""
    path = folder / SETTINGS_FILE
    shapes: dict[str, Any] = {}
    for name, coding in delta.matrices.items():
        if name not in weights or weights[name].dim() != 2:
            raise InputError(f"{path}: {name[:100]!r} is not a matrix of the base {delta.base!r}")
        shape = tuple(weights[name].shape)
        if coding.count > (limit := coding.limit(shape)):
            raise InputError(f"{path}: {name} has a count of {coding.count}; at most {limit} is possible")
        shapes |= {f"{name}.{part}": kind for part, kind in tensor_shapes(coding, shape).items()}
    return shapes


def _check_places(path: Path, name: str, parts: Mapping[str, Tensor], rows: int) -> None:
    places = parts.get("places")
    if places is not None and not (int(places.min()) >= 0 and int(places.max()) < rows):
        raise InputError(f"{path}: {name}.places names rows that a matrix of {rows} rows does not have; copy it again")
