"""What every delta says of itself, and what is checked of it: its base, the base's revision, how texts become vectors.

    check_keys(path, data, {"rank", "alpha"})         a JSON object with these keys and no others
    base_of(path, data), settings_of(path, data)      what `base`, `base_revision` and `settings` hold

A delta's folder may come from a stranger: nothing in it is believed. Does not open the base.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from citeweave.artefacts.integrity import sealed, unsealed
from citeweave.artefacts.manifest import another_version
from citeweave.encoders.model_folder import Settings
from citeweave.errors import InputError

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
