"""The folder of an encoder: where its weights are, and the settings by which a text becomes one vector.

    modules.json                 sentence-transformers. Transformer, WeightedLayerPooling (the learned mix of layers),
                                 Pooling and Normalize are supported
    1_Pooling/config.json        {"pooling_mode_mean_tokens": true, ...}, or since 6.0 {"pooling_mode": "mean"}
    sentence_bert_config.json    {"max_seq_length": 256, "do_lower_case": false}
    aspect_words/                beside a Pooling at the first token: the pooling of that name, which is citeweave's own
    title_abstract/              the same, without weights
    config.json, *.safetensors   alone: a plain Hugging Face model, pooled at its first token (cls)

Reads JSON only and loads no weights. What would need code from the folder or a pickle is refused. A folder that holds only
the changes of a base model is opened by `delta.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from citeweave.core.artifact import check_named_files, explain_version_mismatch, kind_of, read_manifest
from citeweave.core.errors import InputError, UserError
from citeweave.core.files import check_regular, hash_json, hash_once, read_input
from citeweave.encoders.untrusted_model import check_config, check_shards, check_sizes, check_tokenizer

KIND, VERSION = "encoder", 1
"""Kind and version of the manifest of an encoder trained by citeweave."""

WEIGHTS = "model.safetensors"
SETTINGS_FILE, TENSORS_FILE = "delta.json", "delta.safetensors"

ASPECT_WORDS = "aspect_words"
"""Name of a pooling, and of the folder with its weights; see `pooling.py`."""

TITLE_ABSTRACT = "title_abstract"
"""Name of a pooling without weights, and of the folder that says so."""

TITLE_ABSTRACT_FORMAT, TITLE_ABSTRACT_VERSION = "citeweave-title-abstract", 1

_SHARDS = f"{WEIGHTS}.index.json"
_MAX_JSON = 1 << 20
"""Largest settings file in bytes."""

_MAX_PROMPT, _MAX_POOLING = 10_000, 100
"""Most characters of a prompt, and of the name of a pooling."""

_MAX_SHARDS = 16 << 20
"""Largest list of shards in bytes; it names every tensor."""

_KNOWN = ("Transformer", "WeightedLayerPooling", "Pooling", "Normalize")
_NEEDED = ("Transformer", "Pooling")
_OLD_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_HASHED = (
    "model*.safetensors",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)
_OLD_RELEASE = "0.1.0"
"""The release that wrote the oldest formats, which do not name it."""

_REVISION_VERSION = 1
_MAY_CHANGE = ("README.md", "delta.json")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in an encoder's folder, by which a text becomes one vector."""

    pooling: str
    """`cls`, `mean`, `layers`, `mix`, `aspect_words` or `title_abstract`; a folder may also name others, which `load_encoder` refuses."""

    max_tokens: int | None
    """Length in tokens at which texts are truncated, special ones included; None = what tokenizer and model allow."""

    normalize: bool = False
    """Whether vectors get length 1."""

    lower: bool = False
    """Whether texts are lowercased before the tokenizer."""

    prompt: str = ""
    """Text put before every text."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The folder of an encoder: its weights, its settings and its deltas."""

    weights: Path
    """Where config.json, tokenizer and weights are: the folder itself or one inside it."""

    settings: Settings
    is_sentence_transformer: bool

    mix: Path | None = None
    """Where the weights of a learned mix of layers are."""

    words: Path | None = None
    """Where the weights of the words for aspects are."""

    deltas: tuple[tuple[Path, str], ...] = ()
    """Folders with changes of the weights, applied in this order, each with a hash of its changes."""

    def revision(self, settings: Settings) -> str:
        """Return twelve hex digits of everything that decides the vectors; the names of folders do not count."""
        place = {"mix": self.mix, ASPECT_WORDS: self.words}.get(settings.pooling)
        own = () if place is None else (place / WEIGHTS, place / "config.json")
        beside = [hash_once(path) for path in own if path.is_file()] + [changes for _, changes in self.deltas]
        return revision_of(self.weights, settings, beside)


def read_model_folder(folder: Path) -> ModelFolder:
    """Read the settings of an encoder's folder, or refuse it with the reason."""
    _refuse_unsafe(folder)
    if (folder / "modules.json").is_file():
        model = _read_sentence_transformer(folder)
    elif (folder / "config.json").is_file():
        model = ModelFolder(folder, Settings("cls", None), is_sentence_transformer=False)
    else:
        raise UserError(
            f"{folder} holds no encoder (neither modules.json nor config.json); give the folder of a "
            "sentence-transformers or Hugging Face model"
        )
    _refuse_unsafe(model.weights)
    _check_weights(model.weights)
    check_tokenizer(model.weights)
    return model


def _refuse_unsafe(folder: Path) -> None:
    """Refuse what transformers would wait for forever or load from elsewhere: named pipes, and an adapter without its base."""
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if path.exists():
            check_regular(path)
    if (folder / "adapter_config.json").exists():
        raise UserError(f"{folder} holds an adapter, not a complete model; merge it into its base model and save that")


def check_unchanged(folder: Path) -> None:
    """Refuse an encoder folder of citeweave whose files differ from its manifest; other folders have no manifest.

    The card may be edited, and so may the path of a delta's base; the rest of delta.json has its own seal.
    """
    if kind_of(folder) != KIND:
        return
    manifest = read_manifest(folder, KIND, VERSION)
    names = [name for name in manifest.files if name not in _MAY_CHANGE and not name.startswith("training/")]
    check_named_files(folder, manifest, [name for name in names if (folder / name).is_file()])


def revision_of(weights: Path, settings: Settings, beside: Sequence[str] = ()) -> str:
    """Return twelve hex digits of the model files that decide the vectors, of other hashes, and of the settings."""
    files = sorted({path for pattern in _HASHED for path in weights.glob(pattern) if path.is_file()})
    hashes = {path.name: hash_once(path) for path in files}
    hashes |= {f"beside/{number}": value for number, value in enumerate(beside)}
    return hash_json({"version": _REVISION_VERSION, "files": hashes, "settings": asdict(settings)})[:12]


def _check_weights(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}/config.json is missing; copy the complete folder of the model")
    config = read_json(folder / "config.json")
    check_config(folder / "config.json", config)
    check_sizes(folder / "config.json", config, sum(path.stat().st_size for path in folder.glob("*.safetensors")))
    if (folder / WEIGHTS).is_file():
        return
    if (folder / _SHARDS).is_file():
        check_shards(folder / _SHARDS, read_json(folder / _SHARDS, max_bytes=_MAX_SHARDS))
    elif any(folder.glob("*.bin")):
        raise UserError(
            f"{folder} has its weights only as a pickle (.bin), which is never loaded here; where you trust it, convert "
            "it once with transformers: AutoModel.from_pretrained(old).save_pretrained(new), and its tokenizer alike"
        )
    else:
        raise InputError(f"{folder} has no weights (model.safetensors); copy or download the complete model")


def reads_title_apart(folder: Path) -> bool:
    """Return whether a model folder encodes titles and abstracts apart."""
    path = folder / TITLE_ABSTRACT / "config.json"
    if path.is_file():
        check_format(path, read_json(path), TITLE_ABSTRACT_FORMAT, TITLE_ABSTRACT_VERSION)
    return path.is_file()


def _read_sentence_transformer(folder: Path) -> ModelFolder:
    kinds, paths = _modules(folder)
    if unknown := [
        kind for kind in kinds if kind.rpartition(".")[2] not in _KNOWN or not kind.startswith("sentence_transformers.")
    ]:
        raise UserError(
            f"{folder}/modules.json names modules that citeweave does not support: {', '.join(unknown)}; it supports "
            f"{', '.join(_KNOWN)} of sentence-transformers. Embed with another tool and evaluate the vectors"
        )
    names = [kind.rpartition(".")[2] for kind in kinds]
    if names != [kind for kind in _KNOWN if kind in names or kind in _NEEDED]:
        raise UserError(
            f"{folder}/modules.json lists {', '.join(names)}; it must be "
            "Transformer, [WeightedLayerPooling, ]Pooling[, Normalize]"
        )
    place = dict(zip(names, paths, strict=True))
    transformer = read_json(paths[0] / "sentence_bert_config.json", missing_is_empty=True)
    pooling = read_json(place["Pooling"] / "config.json")
    prompt = _default_prompt(folder)
    words = folder / ASPECT_WORDS if (folder / ASPECT_WORDS).is_dir() else None
    beside = ASPECT_WORDS if words else ""
    if reads_title_apart(folder):
        beside = f"{ASPECT_WORDS}+{TITLE_ABSTRACT}" if words else TITLE_ABSTRACT
    task = transformer.get("transformer_task", "feature-extraction")
    if task != "feature-extraction":
        raise UserError(f"{folder} is made for the task {task!r}; citeweave reads encoders for 'feature-extraction'")
    if prompt and pooling.get("include_prompt") is False:
        raise UserError(
            f"{folder} leaves its prompt out of the pooling, which citeweave does not support; choose another model"
        )
    max_tokens = transformer.get("max_seq_length")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        path = paths[0] / "sentence_bert_config.json"
        raise InputError(f"{path}: max_seq_length is {max_tokens!r}; it must be a whole number from 1 up")
    mix = place.get("WeightedLayerPooling")
    settings = Settings(
        pooling=_pooling_name(_pooling_mode(pooling), is_mix=mix is not None, beside=beside),
        max_tokens=max_tokens,
        normalize="Normalize" in place,
        lower=transformer.get("do_lower_case") is True,
        prompt=prompt,
    )
    return ModelFolder(paths[0], settings, is_sentence_transformer=True, mix=mix, words=words)


def _modules(folder: Path) -> tuple[list[str], list[Path]]:
    """Return the type and folder of every module of modules.json, in order; folders outside the model's are refused."""
    path = folder / "modules.json"
    listed = _load(path)
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise InputError(f"{path} is not a list of modules; copy the complete folder of the model again")
    kinds = [str(entry.get("type", "")) for entry in listed]
    inner = [Path(str(entry.get("path", ""))) for entry in listed]
    if any(place.is_absolute() or ".." in place.parts for place in inner):
        raise InputError(f"{path} names a folder outside the model's own; a model keeps its modules inside it")
    return kinds, [folder / place for place in inner]


def _pooling_mode(config: dict[str, Any]) -> str:
    """Return the pooling mode of a Pooling config, such as `mean` or, of joined modes, `cls+max`; the default is mean."""
    modes = config.get("pooling_mode")
    if isinstance(modes, str):
        return modes[:_MAX_POOLING]
    if not isinstance(modes, list):
        modes = [mode for key, mode in _OLD_POOLING.items() if config.get(key) is True]
    return "+".join(map(str, modes))[:_MAX_POOLING] or "mean"


def _pooling_name(mode: str, *, is_mix: bool, beside: str) -> str:
    """Return citeweave's name of a pooling: `mix` is a mix of layers with mean; its own ones, `beside`, are saved as cls."""
    if is_mix:
        mode = "mix" if mode == "mean" else f"mix+{mode}"
    if beside:
        return beside if mode == "cls" else f"{beside}+{mode}"
    return mode


def _default_prompt(folder: Path) -> str:
    config = read_json(folder / "config_sentence_transformers.json", missing_is_empty=True)
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    prompt = prompts.get(name, "") if isinstance(prompts, dict) and isinstance(name, str) else ""
    if isinstance(prompt, str) and len(prompt) > _MAX_PROMPT:
        raise InputError(
            f"{folder}/config_sentence_transformers.json: the default prompt has {len(prompt):,} characters; it is put "
            f"before every text, and may have {_MAX_PROMPT:,}"
        )
    return prompt if isinstance(prompt, str) else ""


def read_json(path: Path, *, missing_is_empty: bool = False, max_bytes: int = _MAX_JSON) -> dict[str, Any]:
    """Read a settings file of a model folder, which holds one JSON object."""
    if missing_is_empty and not path.is_file():
        return {}
    value = _load(path, max_bytes)
    if not isinstance(value, dict):
        raise InputError(f"{path} is not a JSON object; copy the complete folder of the model again")
    return value


def _load(path: Path, max_bytes: int = _MAX_JSON) -> object:
    try:
        if path.stat().st_size > max_bytes:
            raise InputError(
                f"{path} is larger than a settings file can be; copy the complete folder of the model again"
            )
        return json.loads(read_input(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); copy the complete folder of the model") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; copy the complete folder of the model again") from None


def check_format(path: Path, data: dict[str, Any], name: str, version: int) -> None:
    """Refuse a settings file of a model folder of another format or version."""
    if data.get("format") != name:
        raise InputError(
            f"{path} is of format {str(data.get('format'))[:40]!r}, not {name!r}; give the folder of a model that citeweave "
            "trained or compressed"
        )
    if data.get("version") != version:
        mismatch = explain_version_mismatch(data.get("version"), version, "train it again", {"citeweave": _OLD_RELEASE})
        raise InputError(f"{path} is {name} {mismatch}")
