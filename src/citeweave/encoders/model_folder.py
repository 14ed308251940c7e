"""What an encoder's folder says about itself: where its weights are, and how its tokens become one vector.

    modules.json                 there is one: sentence-transformers. Transformer, WeightedLayerPooling (the learned mix
                                 of layers), Pooling and Normalize are known
    1_Pooling/config.json        {"pooling_mode_mean_tokens": true, ...}, or since 6.0 {"pooling_mode": "mean"}
    sentence_bert_config.json    {"max_seq_length": 256, "do_lower_case": false}
    aspect_words/                beside a Pooling at the first token: the pooling of that name, which is citeweave's own
    config.json, *.safetensors   alone: a plain Hugging Face model, read at its first token (cls)

Reads JSON only and loads no weights. A folder that holds only what changed of a model is opened by `deltas.py`. What would need code from the folder or a pickle is refused here.

What every delta says of itself, and what is checked of it: its base, the base's revision, how texts become vectors.

    check_keys(path, data, {"rank", "alpha"})         a JSON object with these keys and no others
    base_of(path, data), settings_of(path, data)      what `base`, `base_revision` and `settings` hold

A delta's folder may come from a stranger: nothing in it is believed. Does not open the base.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from citeweave.core.artifact import another_version, check_some, kind_of, read_manifest, sealed, unsealed
from citeweave.core.errors import InputError, UserError
from citeweave.core.files import check_regular, hash_file, hash_json, read_input
from citeweave.encoders.untrusted_model import check_config, check_shards, check_sizes, check_tokenizer

KIND, VERSION = "encoder", 1
"""Of the manifest in the folder of an encoder that was trained here."""

WEIGHTS = "model.safetensors"

ASPECT_WORDS = "aspect_words"
"""Name of a pooling, and of the folder with its weights; see `saved/aspect_words.py`."""

_SHARDS = f"{WEIGHTS}.index.json"
_MAX_JSON = 1 << 20
"""Bytes of a settings file; a larger one is none."""

_MAX_PROMPT, _MAX_POOLING = 10_000, 100
"""Characters of a prompt, and of what a pooling is called."""

_MAX_SHARDS = 16 << 20
"""Bytes of the list of shards, which names every tensor."""

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
_REVISION_VERSION = 1
_MAY_CHANGE = ("README.md", "delta.json")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a text becomes one vector."""

    pooling: str
    """`cls`, `mean`, `layers`, `mix` or `aspect_words`; a folder may also name others, which `load_encoder` refuses."""

    max_tokens: int | None
    """Longest text in tokens, special ones included; None = what tokenizer and model allow."""

    normalize: bool = False
    """Whether vectors get length 1."""

    lower: bool = False
    """Whether texts are put into lower case before the tokenizer sees them."""

    prompt: str = ""
    """What stands before every text."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder with weights that can be loaded, and its own settings."""

    weights: Path
    """Where config.json, tokenizer and weights are: the folder itself or one inside it."""

    settings: Settings
    is_sentence_transformer: bool

    mix: Path | None = None
    """Where the weights of a learned mix of layers are."""

    words: Path | None = None
    """Where the words for aspects are."""

    deltas: tuple[tuple[Path, str], ...] = ()
    """Folders with changes of the weights, to be made in this order, each with a hash of its changes."""

    def revision(self, settings: Settings) -> str:
        """Twelve hex digits of all that decides the vectors; the names of folders do not count."""
        place = {"mix": self.mix, ASPECT_WORDS: self.words}.get(settings.pooling)
        own = () if place is None else (place / WEIGHTS, place / "config.json")
        beside = [hash_file(path) for path in own if path.is_file()] + [found for _, found in self.deltas]
        return revision_of(self.weights, settings, beside)


def read_model_folder(folder: Path) -> ModelFolder:
    """Read a folder's settings, or say why it cannot be used."""
    _refuse_pipes(folder)
    _refuse_adapter(folder)
    if (folder / "modules.json").is_file():
        found = _read_sentence_transformer(folder)
    elif (folder / "config.json").is_file():
        found = ModelFolder(folder, Settings("cls", None), is_sentence_transformer=False)
    else:
        raise UserError(
            f"{folder} holds no encoder (neither modules.json nor config.json); give the folder of a "
            "sentence-transformers or Hugging Face model"
        )
    _refuse_pipes(found.weights)
    _refuse_adapter(found.weights)
    _check_weights(found.weights)
    check_tokenizer(found.weights)
    return found


def _refuse_pipes(folder: Path) -> None:
    """transformers would wait for ever for what somebody may write into a pipe."""
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if path.exists():
            check_regular(path)


def _refuse_adapter(folder: Path) -> None:
    """transformers would load it, and a base of its choice, where peft is installed."""
    if (folder / "adapter_config.json").exists():
        raise UserError(f"{folder} holds an adapter, not a whole model; merge it into its base model and save that")


def check_unchanged(folder: Path) -> None:
    """Refuse a trained folder of citeweave whose files are not what was trained; others say nothing of their files.

    The card may be edited, and so may the place of a delta's base, which has a seal of its own.
    """
    if kind_of(folder) != KIND:
        return
    manifest = read_manifest(folder, KIND, VERSION)
    names = [name for name in manifest.files if name not in _MAY_CHANGE and not name.startswith("training/")]
    check_some(folder, manifest, [name for name in names if (folder / name).is_file()])


def revision_of(weights: Path, settings: Settings, beside: Sequence[str] = ()) -> str:
    """Twelve hex digits of the files that decide the vectors, of hashes of others beside them, and of the settings."""
    files = sorted({path for pattern in _HASHED for path in weights.glob(pattern) if path.is_file()})
    hashes = {path.name: hash_file(path) for path in files}
    hashes |= {f"beside/{number}": found for number, found in enumerate(beside)}
    return hash_json({"version": _REVISION_VERSION, "files": hashes, "settings": asdict(settings)})[:12]


def _check_weights(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}/config.json is missing; copy the whole folder of the model")
    config = read_json(folder / "config.json")
    check_config(folder / "config.json", config)
    check_sizes(folder / "config.json", config, sum(path.stat().st_size for path in folder.glob("*.safetensors")))
    if (folder / WEIGHTS).is_file():
        return
    if (folder / _SHARDS).is_file():
        check_shards(folder / _SHARDS, read_json(folder / _SHARDS, most=_MAX_SHARDS))
        return
    if any(folder.glob("*.bin")):
        raise UserError(
            f"{folder} has its weights only as a pickle (.bin), which is never loaded here; where you trust it, convert "
            "it once with transformers: AutoModel.from_pretrained(old).save_pretrained(new), and its tokenizer alike"
        )
    raise InputError(f"{folder} has no weights (model.safetensors); copy or download the whole model")


def _read_sentence_transformer(folder: Path) -> ModelFolder:
    kinds, paths = _modules(folder)
    if unknown := [kind for kind in kinds if kind.rpartition(".")[2] not in _KNOWN or not _is_standard(kind)]:
        raise UserError(
            f"{folder}/modules.json names modules that citeweave does not know: {', '.join(unknown)}; it knows "
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
    _check_supported(folder, transformer, pooling, prompt)
    settings = Settings(
        pooling=_pooling_name(
            _pooling_mode(pooling), is_mix="WeightedLayerPooling" in place, has_words=words is not None
        ),
        max_tokens=_whole_number(transformer.get("max_seq_length"), paths[0] / "sentence_bert_config.json"),
        normalize="Normalize" in place,
        lower=transformer.get("do_lower_case") is True,
        prompt=prompt,
    )
    mix = place.get("WeightedLayerPooling")
    return ModelFolder(paths[0], settings, is_sentence_transformer=True, mix=mix, words=words)


def _check_supported(folder: Path, transformer: dict[str, Any], pooling: dict[str, Any], prompt: str) -> None:
    task = transformer.get("transformer_task", "feature-extraction")
    if task != "feature-extraction":
        raise UserError(f"{folder} is made for the task {task!r}; citeweave reads encoders for 'feature-extraction'")
    if prompt and pooling.get("include_prompt") is False:
        raise UserError(f"{folder} leaves its prompt out of the pooling, which citeweave cannot; choose another model")


def _modules(folder: Path) -> tuple[list[str], list[Path]]:
    """Type and folder of every module, in order; folders outside the model's own are refused."""
    path = folder / "modules.json"
    listed = _load(path)
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise InputError(f"{path} is not a list of modules; copy the whole folder of the model again")
    kinds = [str(entry.get("type", "")) for entry in listed]
    inner = [Path(str(entry.get("path", ""))) for entry in listed]
    if any(place.is_absolute() or ".." in place.parts for place in inner):
        raise InputError(f"{path} names a folder outside the model's own; a model keeps its modules inside it")
    return kinds, [folder / place for place in inner]


def _is_standard(kind: str) -> bool:
    return kind.startswith("sentence_transformers.")


def _pooling_mode(config: dict[str, Any]) -> str:
    """`mean`; of several modes that are joined `cls+max`; sentence-transformers takes mean where none is named."""
    modes = config.get("pooling_mode")
    if isinstance(modes, str):
        return modes[:_MAX_POOLING]
    if not isinstance(modes, list):
        modes = [mode for key, mode in _OLD_POOLING.items() if config.get(key) is True]
    return "+".join(map(str, modes))[:_MAX_POOLING] or "mean"


def _pooling_name(mode: str, *, is_mix: bool, has_words: bool) -> str:
    """A mix of layers goes on to the mean over tokens, words for aspects say cls to others; else there is no name."""
    if is_mix:
        mode = "mix" if mode == "mean" else f"mix+{mode}"
    if has_words:
        return ASPECT_WORDS if mode == "cls" else f"{ASPECT_WORDS}+{mode}"
    return mode


def _default_prompt(folder: Path) -> str:
    config = read_json(folder / "config_sentence_transformers.json", missing_is_empty=True)
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    prompt = prompts.get(name, "") if isinstance(prompts, dict) and isinstance(name, str) else ""
    if isinstance(prompt, str) and len(prompt) > _MAX_PROMPT:
        raise InputError(
            f"{folder}/config_sentence_transformers.json: the default prompt has {len(prompt):,} characters; it stands "
            f"before every text, and may have {_MAX_PROMPT:,}"
        )
    return prompt if isinstance(prompt, str) else ""


def _whole_number(value: object, path: Path) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise InputError(f"{path}: max_seq_length is {value!r}; it must be a whole number from 1 up")
    return value


def read_json(path: Path, *, missing_is_empty: bool = False, most: int = _MAX_JSON) -> dict[str, Any]:
    """A settings file, which holds one JSON object."""
    if missing_is_empty and not path.is_file():
        return {}
    value = _load(path, most)
    if not isinstance(value, dict):
        raise InputError(f"{path} is not a JSON object; copy the whole folder of the model again")
    return value


def _load(path: Path, most: int = _MAX_JSON) -> object:
    try:
        if path.stat().st_size > most:
            raise InputError(f"{path} is larger than a settings file can be; copy the whole folder of the model again")
        return json.loads(read_input(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); copy the whole folder of the model") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; copy the whole folder of the model again") from None


# What every delta says of itself, and what is checked of it: its base, the base's revision, how texts become vectors.

SETTINGS_FILE, TENSORS_FILE = "delta.json", "delta.safetensors"

_KINDS: dict[str, tuple[type, ...]] = {
    "pooling": (str,),
    "max_tokens": (int, type(None)),
    "normalize": (bool,),
    "lower": (bool,),
    "prompt": (str,),
}


def check_format(path: Path, data: dict[str, Any], name: str, version: int) -> None:
    """Refuse another format or version."""
    if data.get("format") != name:
        raise InputError(
            f"{path} is of format {str(data.get('format'))[:40]!r}, not {name!r}; give the folder of a model that citeweave "
            "trained or compressed"
        )
    if data.get("version") != version:
        raise InputError(f"{path} is {name} {another_version(data.get('version'), version, 'train it again')}")


def sealed_settings(data: dict[str, Any]) -> dict[str, Any]:
    """What is written, with a seal of all but the base: where the base moves, its name is edited."""
    return {**sealed({**data, "base": ""}), "base": data["base"]}


def unsealed_settings(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """The settings without their seal, refused where they are not those that were sealed; the oldest have none."""
    if "seal" not in data:
        return data  # one whose name is damaged is a key that does not belong there
    try:
        return {**unsealed({**data, "base": ""}), "base": data.get("base")}
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; copy the whole folder again") from None


def check_keys(path: Path, data: object, known: set[str]) -> dict[str, Any]:
    """A JSON object that has these keys and no others."""
    if not isinstance(data, dict) or set(data) != known:
        found = sorted(set(data) ^ known) if isinstance(data, dict) else [type(data).__name__]
        raise InputError(f"{path}: {', '.join(found)[:100]} does not belong here or is missing; copy the delta again")
    return data


def base_of(path: Path, data: dict[str, Any]) -> tuple[str, str]:
    """The base's name or folder, and its revision."""
    base, revision = data["base"], data["base_revision"]
    if not (isinstance(base, str) and 0 < len(base) <= 1000 and base.isprintable()) or ".." in Path(base).parts:
        raise InputError(f"{path}: the base is {str(base)[:100]!r}; it must be a name or a folder's path without '..'")
    if not (isinstance(revision, str) and re.fullmatch(r"[0-9a-f]{12}", revision)):
        raise InputError(f"{path}: base_revision is {str(revision)[:40]!r}; it must be twelve hex digits")
    return base, revision


def settings_of(path: Path, data: object) -> Settings:
    """How a text becomes one vector."""
    table = check_keys(path, data, set(_KINDS))
    for name, value in table.items():
        if type(value) not in _KINDS[name] or (name == "max_tokens" and value is not None and value < 1):
            raise InputError(f"{path}: {name} is {str(value)[:40]!r}, which is no such setting; copy the delta again")
    return Settings(**table)
