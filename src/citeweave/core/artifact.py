"""What an artifact is and how it was made, in a file beside its data.

manifest.json = {
  "kind": "corpus", "version": 1,
  "hash": "...",              of kind, version and files: same content, same hash
  "recipe": {...},            inputs' hashes, options and seed: a stage whose recipe matches is skipped
  "files": {"papers/year.npy": {"bytes": 128, "sha256": "..."}, ...},
  "facts": {...},             counts and whatever else the stage reports
  "seal": "...",              of all above
  "made": {"at": "...", "citeweave": "...", "python": "..."}
}

Whether an artifact is still what was written.

    check_files(folder, manifest)                  at every opening: sizes, and of a small artifact every byte
    check_files(folder, manifest, content=True)    every byte of any artifact: `citeweave info FOLDER --verify`
    sealed(told), unsealed(found)                  a small JSON file that carries a hash of itself

What is opened through a memory map may be far larger than what can be read at every opening. So a changed byte in an
artifact of at most `SMALL` bytes is noticed when it is opened, and one in a larger artifact when it is verified; until
then reading it gives an error or other numbers, never a crash. A file is read once a process, as long as it stays as
it is.

Disks that are full or fail, told with the path that was written.

with naming_failures(folder):
    file.write(much)            OSError: [Errno 28] No space left on device: 'folder'

Artifacts in the making: folders that appear whole or not at all.

A stage writes into a hidden folder beside it (see `publishing.py`), which gets the name by one rename, after every file
has reached the disk. What is interrupted leaves that work folder, from which the next run goes on; what is done is never
rewritten in place.

    with new_artifact(folder, kind, version, recipe) as artifact:
        write(artifact.folder / "data.txt")
        manifest = artifact.finish()
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from citeweave.core.errors import ArtifactError, EmptyResultError, UserError
from citeweave.core.files import (
    LockedError,
    check_links,
    check_names,
    hash_file,
    hash_json,
    output_place,
    read_input,
    seal_of,
    sync,
    take_lock,
    write_json,
)
from citeweave.core.publish import MANIFEST as MANIFEST
from citeweave.core.publish import (
    begin_work,
    check_replaceable,
    discard_unkept,
    discard_work,
    lock_file,
    publish,
    remove_leftovers,
    work_folder,
)
from citeweave.version import __version__

_MADE_BY = {
    "corpus": "import",
    "graph": "graph",
    "samples": "mine",
    "bundle": "bundle",
    "encoder": "train",
    "vectors": "embed",
    "compressed_vectors": "embed",
    "sentence_vectors": "embed",
    "index_segment": "index",
    "paper_map": "index",
    "report": "evaluate",
    "intents": "annotate",
    "intent_classifier": "intents train",
    "search-benchmark": "benchmark",
    "treccovid-rf": "benchmark",
}
"""Kind of an artifact -> the command that makes it, where one does."""

_OTHER_FORMATS = {"state.json": ("citeweave-index", "index"), "library.json": ("citeweave-library", "library")}
"""Folders of ours that change and have no manifest: the file that is in each, its format, what the folder is."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an artifact is and how it was made."""

    kind: str
    version: int
    recipe: dict[str, Any]
    facts: dict[str, Any]
    files: dict[str, dict[str, Any]]
    made: dict[str, str] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """Hash of the artifact's content: kind, version and files. Facts, times and places do not count."""
        return hash_json({"kind": self.kind, "version": self.version, "files": self.files})

    @property
    def seal(self) -> str:
        """Hash of all that the manifest says but for when and where: a changed byte of it is noticed by this."""
        return seal_of([self.hash, self.recipe, self.facts])

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "version": self.version,
            "hash": self.hash,
            "recipe": self.recipe,
            "files": self.files,
            "facts": self.facts,
            "seal": self.seal,
            "made": self.made,
        }


def read_manifest(folder: Path, kind: str, version: int) -> Manifest:
    """The manifest of an artifact that must be of this kind and version."""
    manifest, is_sound = _read_manifest(folder, kind)
    if manifest.kind != kind:
        raise ArtifactError(f"{folder} holds {manifest.kind}, not {kind}; give a folder that holds {_called(kind)}")
    if manifest.version != version:
        by = f" with `citeweave {_MADE_BY[kind]}`" if kind in _MADE_BY else ""
        told = another_version(manifest.version, version, f"make it again{by}", manifest.made)
        raise ArtifactError(f"{folder} holds {_called(kind)} {told}")
    if not is_sound:
        raise _changed(folder)
    return manifest


def any_manifest(folder: Path) -> Manifest:
    """The manifest of an artifact of any kind and version."""
    manifest, is_sound = _read_manifest(folder, "artifact")
    if not is_sound:
        raise _changed(folder)
    return manifest


def _read_manifest(folder: Path, kind: str) -> tuple[Manifest, bool]:
    """A manifest, and whether it is the one that was written."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtifactError(_why_no_manifest(folder, kind))
    try:
        data = json.loads(read_input(path))
        found = data["version"]
        if type(found) is not int:
            raise TypeError("a version is a whole number")
        manifest = Manifest(str(data["kind"]), found, data["recipe"], data["facts"], data["files"], data["made"])
        names = [str(name) for name in dict(manifest.files)]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArtifactError(f"{path} is not a manifest of citeweave: it is damaged; make the artifact again") from None
    check_names(names, path)
    check_links(folder)
    return manifest, _is_sound(manifest, data)


def _changed(folder: Path) -> ArtifactError:
    return ArtifactError(
        f"{folder / MANIFEST} is damaged: it has changed since it was written; make the artifact again"
    )


def _is_sound(manifest: Manifest, data: dict[str, Any]) -> bool:
    """Whether a manifest is the one that was written; the oldest have no seal, and no other key in its place."""
    if not all(isinstance(table, dict) for table in (manifest.recipe, manifest.facts, manifest.files)):
        return False
    if not all(isinstance(described, dict) for described in manifest.files.values()):
        return False
    written = manifest.as_json()
    found = {"seal": written["seal"], **data}
    return found.keys() == written.keys() and all(found[name] == written[name] for name in ("hash", "seal"))


def another_version(found: object, read: int, again: str = "make it again", made: object = None) -> str:
    """What to say of a file of another format version, and what to do; `made` names the release that wrote it.

    >>> another_version(2, 1, "build it again")
    'of format version 2; this citeweave reads version 1. Update citeweave (pip install --upgrade citeweave), or build it again'
    >>> another_version(1, 2, made={"citeweave": "0.1.0"})
    'of format version 1; this citeweave reads version 2. Make it again, or use the release that wrote it, citeweave 0.1.0'
    """
    told = f"of format version {str(found)[:20]}; this citeweave reads version {read}."
    if isinstance(found, int) and found > read:
        return f"{told} Update citeweave (pip install --upgrade citeweave), or {again}"
    release = f", citeweave {str(made['citeweave'])[:20]}" if isinstance(made, dict) and "citeweave" in made else ""
    return f"{told} {again[:1].upper()}{again[1:]}, or use the release that wrote it{release}"


def kind_of(folder: Path) -> str:
    """What kind of artifact a folder holds, empty where it holds none."""
    return _value_in(folder / MANIFEST, "kind")


def kind_without_manifest(folder: Path) -> str:
    """What else of ours a folder is, an `index` or a `library`; empty where it is neither."""
    found = (kind for name, (format, kind) in _OTHER_FORMATS.items() if _value_in(folder / name, "format") == format)
    return next(found, "")


def _value_in(path: Path, key: str) -> str:
    try:
        return str(json.loads(read_input(path))[key])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _why_no_manifest(folder: Path, kind: str) -> str:
    if not folder.exists():
        return f"{folder} does not exist; give a folder that holds {_called(kind)}"
    if work_folder(folder).exists():
        return f"{folder} was interrupted while it was made; run the same command again to finish it"
    if other := kind_without_manifest(folder):
        return f"{folder} holds {_called(other)}, not {_called(kind)}; give a folder that holds {_called(kind)}"
    return f"{folder} is not an artifact of citeweave (no {MANIFEST}); give a folder that holds {_called(kind)}"


def _called(kind: str) -> str:
    """What people call the contents of a folder.

    >>> _called("index"), _called("intents"), _called("intent_classifier"), _called("corpus")
    ('an index', 'intents', 'an intent classifier', 'a corpus')
    """
    words = kind.replace("_", " ")
    if words.endswith("s") and words != "corpus":
        return words
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


# Whether an artifact is still what was written.

SMALL = 64 * 2**20
"""Bytes of an artifact that is read as a whole when it is opened: some 50 milliseconds."""

_found_right: set[tuple[object, ...]] = set()
"""Files that were read and had the hash that they should have: path, what changes when it is written, hash."""


def check_files(folder: Path, manifest: Manifest, *, content: bool = False) -> None:
    """Check that every file is there with its size, and its hash where the artifact is small or with `content=True`."""
    sizes = [described.get("bytes", 0) for described in manifest.files.values()]
    is_small = all(type(size) is int for size in sizes) and sum(sizes) <= SMALL
    for name, described in manifest.files.items():
        if "artifact" in described:
            _check_inner(folder, name, described, content=content)
        else:
            _check(folder, name, described, content=content or is_small, again=content)


def check_some(folder: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Check size and hash of some files: of those that are read as a whole anyway."""
    for name in names:
        _check(folder, name, manifest.files.get(name, {}), content=True)


def sealed(told: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a hash of itself, by which `unsealed` notices a changed byte."""
    return {**told, "seal": seal_of(told)}


def unsealed(found: object) -> dict[str, Any]:
    """The object without its seal; ValueError where it has none or is not what was sealed.

    >>> unsealed(sealed({"step": 3}))
    {'step': 3}
    >>> unsealed({**sealed({"step": 3}), "step": 4})
    Traceback (most recent call last):
    ValueError: it has changed since it was written
    """
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    told = {name: value for name, value in found.items() if name != "seal"}
    if found.get("seal") != seal_of(told):  # one without might be one whose seal is damaged
        raise ValueError("it has changed since it was written")
    return told


def _check(folder: Path, name: str, described: dict[str, Any], *, content: bool, again: bool = False) -> None:
    path = folder / name
    if not path.is_file() or path.stat().st_size != described.get("bytes"):
        raise ArtifactError(f"{path} is missing or has another size than its manifest says; make {folder} again")
    if not content:
        return
    state = path.stat()
    known = (str(path.absolute()), state.st_ino, state.st_mtime_ns, state.st_size, described.get("sha256"))
    if known in _found_right and not again:
        return
    if hash_file(path) != described.get("sha256"):
        raise ArtifactError(f"{path} is damaged: it has changed since it was written; make {folder} again")
    _found_right.add(known)


def _check_inner(folder: Path, name: str, described: dict[str, Any], *, content: bool) -> None:
    path = folder / name
    inner = read_manifest(path.parent, described.get("kind", ""), described.get("version", 0))
    if inner.hash != described["artifact"]:
        raise ArtifactError(f"{path.parent} is another {inner.kind} than {folder} was made with; make it again")
    check_files(path.parent, inner, content=content)


# Disks that are full or fail, told with the path that was written.

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_AS_RUST_TELLS = re.compile(r"\(os error (\d{1,3})\)")


@contextmanager
def naming_failures(folder: Path) -> Iterator[None]:
    """Let a failed write name the folder that was written: the system tells no path, and some libraries no OSError."""
    try:
        yield
    except OSError as error:
        if type(error) is OSError and not error.filename:
            error.filename = str(folder)
        raise
    except Exception as error:
        if found := _AS_RUST_TELLS.search(str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(folder)) from error
        raise


def unwritable(folder: Path, error: OSError, remedy: str) -> Exception:
    """Why a folder cannot be made: the user's mistake, or a disk that is full or fails."""
    if error.errno in _OF_THE_DISK:
        return OSError(error.errno, error.strerror, str(folder))
    return UserError(f"{folder} cannot be written ({error.strerror}); {remedy}")


# Artifacts in the making: folders that appear whole or not at all.


class ArtifactWriter:
    """The work folder of an artifact that is being made, and in it the folder that will have its name."""

    def __init__(self, folder: Path, kind: str, version: int, recipe: dict[str, Any], *, place: Path) -> None:
        self.place, self.folder = place, place / "new"
        self._target, self._kind, self._version, self._recipe = folder, kind, version, recipe
        self.facts: dict[str, Any] = {}
        self.overwrite = False
        """Whether an older artifact of the same kind may be replaced."""

    def work(self, name: str) -> Path:
        """A folder for intermediate files; after an interruption the same recipe finds them again, another does not."""
        return self.shared_work(f"{hash_json(self._recipe)[:16]}/{name}")

    def shared_work(self, name: str) -> Path:
        """The same for files that any recipe may use, because their names say what they were made of."""
        path = self.place / "kept" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def clear(self) -> None:
        """Remove what an interrupted run had begun to write, except its intermediate files."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def finish(self) -> Manifest:
        """Hash the files, write the manifest, give the folder its name; only then are intermediate files removed."""
        inner = [path.parent for path in self.folder.rglob(MANIFEST)]
        names = sorted(
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file() and (path.name == MANIFEST or not any(folder in path.parents for folder in inner))
        )
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            described = list(pool.map(lambda name: _describe(self.folder / name), names))
        files = dict(zip(names, described, strict=True))
        manifest = Manifest(self._kind, self._version, self._recipe, self.facts, files, _made())
        write_json(self.folder / MANIFEST, manifest.as_json())
        if self._target.exists():  # what came there meanwhile is not ours to replace
            refuse_existing(self._target, self._kind, overwrite=self.overwrite)
        publish(self._target)
        return manifest


@contextmanager
def new_artifact(
    folder: Path, kind: str, version: int, recipe: dict[str, Any], *, overwrite: bool = False
) -> Iterator[ArtifactWriter]:
    """Make an artifact; the caller ends with `writer.finish()`. One writer at a time."""
    folder = output_place(folder)
    if folder.exists():
        refuse_existing(folder, kind, overwrite=overwrite)
    with working(folder) as place:
        if folder.exists():  # another process may have made it before we had the lock
            refuse_existing(folder, kind, overwrite=overwrite)
        writer = ArtifactWriter(folder, kind, version, recipe, place=place)
        writer.overwrite = overwrite
        writer.clear()
        yield writer


def early_work(folder: Path, recipe: dict[str, Any], name: str) -> Path:
    """The same as `ArtifactWriter.work`, for what is made before the artifact itself is begun."""
    folder = output_place(folder)
    with working(folder) as place:
        return ArtifactWriter(folder, "", 0, recipe, place=place).work(name)


@contextmanager
def working(folder: Path) -> Iterator[Path]:
    """The work folder of an output, for one process at a time; in it no link leads out of it.

    A run that fails leaves it only where the next one can go on from it: an empty result would be empty again.
    """
    with ExitStack() as held:
        try:
            held.enter_context(take_lock(lock_file(folder), remove=True))
            place = begin_work(folder)
        except LockedError:
            raise UserError(f"{folder} is being written by another process; wait for it or choose another -o") from None
        except OSError as error:
            raise unwritable(folder, error, "name another place with -o") from None
        check_links(place)
        held.enter_context(naming_failures(folder))
        try:
            yield place
        except EmptyResultError:
            discard_work(folder)
            raise
        except BaseException:
            discard_unkept(folder)
            raise


def refuse_existing(folder: Path, kind: str, *, overwrite: bool) -> None:
    """Say why an existing folder is not written over; only our own artifacts of the same kind ever are."""
    if (folder / MANIFEST).is_file():
        if kind_of(folder) not in (kind, ""):
            raise UserError(f"{folder} holds {kind_of(folder)}, which {kind} must not replace; choose another -o")
        if not overwrite:
            raise UserError(
                f"{folder} holds an artifact made from other inputs or options; choose another -o or --overwrite"
            )
        check_replaceable(folder)
    elif other := kind_without_manifest(folder):
        raise UserError(f"{folder} holds {other}, which {kind} must not replace; choose another -o")
    elif not folder.is_dir() or any(folder.iterdir()):
        raise UserError(f"{folder} exists and is not an artifact of citeweave; choose another -o")


def matches(folder: Path, kind: str, version: int, recipe: dict[str, Any]) -> bool:
    """Whether the folder already holds the artifact that this recipe would make; then nothing is left beside it."""
    try:
        is_there = hash_json(read_manifest(folder, kind, version).recipe) == hash_json(recipe)
    except ArtifactError:
        return False
    if is_there:
        remove_leftovers(folder)
    return is_there


def _describe(path: Path) -> dict[str, Any]:
    """Size and hash of a file, after it has reached the disk; of an artifact inside this one kind, version and hash."""
    if path.name == MANIFEST:
        # its own manifest names the time it was made, which must not count
        inner = json.loads(path.read_bytes())
        return {"artifact": inner["hash"], "kind": inner["kind"], "version": inner["version"]}
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def _made() -> dict[str, str]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"at": now, "citeweave": __version__, "python": platform.python_version()}
