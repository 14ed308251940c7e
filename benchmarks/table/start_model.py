"""The start model as one small file: weights in float16, as the table's runs begin with them.

pack_start(Path("table/"))               table/start.bundle, about 41 MB
unpack_start(Path("table/"), folder)     a folder that `load_encoder` opens
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.table.packing import pack, unpack
from benchmarks.table.systems import START
from citeweave.core.errors import ArtifactError

FILE = "start.bundle"


def pack_start(output: Path) -> Path:
    """Write the start model, unless it is there."""
    from citeweave.encoders.model_card import ModelCard
    from citeweave.encoders.save import save_encoder
    from citeweave.training.options import EncoderOptions
    from citeweave.training.train import load_start_model

    path = output / FILE
    if path.is_file():
        return path
    start = load_start_model(EncoderOptions(init=START), "cpu")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save_encoder(
            folder, start.network, start.reader.tokenizer, start.settings, card=ModelCard(name=START), dtype="float16"
        )
        files = {
            each.relative_to(folder).as_posix(): each.read_bytes()
            for each in sorted(folder.rglob("*"))
            if each.is_file()
        }
    pack(path, files)
    return path


def unpack_start(output: Path, folder: Path) -> Path:
    """The start model's folder; files leave their archive under plain names alone."""
    for name, content in unpack(output / FILE).items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ArtifactError(f"{output / FILE} holds a file {name!r} that would leave its folder; pack it again")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
