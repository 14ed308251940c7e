"""Links and names that lead out of a folder: an artefact may come from a stranger.

    check_links(folder)          a symbolic link to something outside is refused, and what is no file
    check_names(files, path)     the same for the names in a manifest
    open_lock(path)              a file to be locked, left as it is
    output_place(path)           where an output goes: a symbolic link is followed, never replaced

Hard links cannot be told from files; so nothing that lies in a folder is opened for writing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from citeweave.errors import ArtefactError, UserError

_NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


def check_links(folder: Path) -> None:
    """Refuse a folder in which a symbolic link leads out of it, or something is no file."""
    root = os.path.realpath(folder)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue  # a writer has just removed it
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                raise ArtefactError(f"{path} is a pipe or a device; an artifact holds files only: do not use it")
            if stat.S_ISLNK(mode) and not _is_within(os.path.realpath(path), root):
                raise ArtefactError(
                    f"{path} is a link to something outside of {folder}; an artefact holds its files itself: copy it there"
                )


def _is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def check_names(names: Iterable[str], path: Path) -> None:
    """Refuse names of files, as the manifest at `path` has them, that lead out of its folder.

    >>> check_names(["papers/year.npy"], Path("corpus/manifest.json"))
    >>> check_names(["../year.npy"], Path("corpus/manifest.json"))
    Traceback (most recent call last):
    citeweave.errors.ArtefactError: corpus/manifest.json names the file '../year.npy', which leads out of its folder; ...
    >>> check_names([r"C:\\year.npy"], Path("corpus/manifest.json"))
    Traceback (most recent call last):
    citeweave.errors.ArtefactError: corpus/manifest.json names the file 'C:\\\\year.npy', which leads out of its folder; ...
    """
    for name in names:
        if "\0" in name or any(_leads_out(place) for place in (PurePosixPath(name), PureWindowsPath(name))):
            raise ArtefactError(
                f"{path} names the file {name[:200]!r}, which leads out of its folder; do not use this artefact"
            )


def _leads_out(place: PurePath) -> bool:
    return bool(place.anchor) or ".." in place.parts or not place.parts


def open_lock(path: Path) -> BinaryIO:
    """A file to be locked; OSError where a symbolic link is in its place."""
    if not _NO_LINKS and path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o666), "rb")


def output_place(path: Path) -> Path:
    """Where an output goes: the target of a symbolic link, whose folder must exist, else the path itself."""
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink() or not target.parent.is_dir():
        raise UserError(
            f"{path} is a link to {target}, which cannot be made; make {target.parent}, or choose another -o"
        )
    return target
