"""Files that appear whole or not at all: written under another name, renamed together at the end.

    with new_files(Path("out"), ["train.txt"], every=["train.txt", "val.txt"]) as paths:
        paths["train.txt"].write_text("a")         # a hidden file of another name until the block ends

What the same format left there before is refused, or replaced as a whole: an old val.txt does not stay beside a
new train.txt. An artefact of citeweave is a folder with one rename; see `files.py`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from citeweave.artefacts.manifest import MANIFEST
from citeweave.errors import UserError
from citeweave.files import move, sync
from citeweave.links import output_place


@contextmanager
def new_files(
    folder: Path, names: Sequence[str], *, every: Sequence[str], overwrite: bool = False
) -> Iterator[dict[str, Path]]:
    """Where to write each of `names`; `every` are all the names that the format may use."""
    _refuse_existing(folder, every, overwrite=overwrite)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}); name another place with -o") from None
    mark = secrets.token_hex(4)  # no file of the user's has such a name
    paths = {name: folder / f".{name}.citeweave-{mark}" for name in names}
    try:
        yield paths
    except BaseException:
        for path in paths.values():
            path.unlink(missing_ok=True)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
        raise
    for path in paths.values():
        sync(path)
    for name in set(every) - set(names):
        (folder / name).unlink(missing_ok=True)
    for name, path in paths.items():
        move(path, output_place(folder / name))
    sync(folder)


def _refuse_existing(folder: Path, every: Sequence[str], *, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a folder with -o")
    if (folder / MANIFEST).exists():
        raise UserError(f"{folder} holds an artefact of citeweave; name another folder with -o")
    there = [name for name in every if (folder / name).exists()]
    if there and not overwrite:
        raise UserError(f"{folder} already holds {', '.join(there)}; choose another -o or --overwrite")
