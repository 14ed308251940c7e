"""Artefacts: folders that appear whole or not at all, each with a manifest that says how it was made.

A stage writes into `<folder>.partial` and the folder gets its name by one rename, after every file has
reached the disk. What is interrupted leaves the partial folder, from which the next run goes on; what
is done is never rewritten in place.

    manifest.json = {
      "kind": "corpus", "version": 1,
      "hash": "...",              of kind, version and files: same content, same hash
      "recipe": {...},            inputs' hashes, options and seed: a stage whose recipe matches is skipped
      "files": {"papers/year.npy": {"bytes": 128, "sha256": "..."}, ...},
      "facts": {...},             counts and whatever else the stage reports
      "seal": "...",              of all above
      "made": {"at": "...", "citeweave": "...", "python": "..."}
    }
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from citeweave.disk_failures import naming_failures, unwritable
from citeweave.errors import ArtefactError, UserError
from citeweave.links import check_links, check_names, open_lock, open_new
from citeweave.publishing import DONE, LOCK, publish, remove_leftovers, sync_folder
from citeweave.version import __version__

MANIFEST = "manifest.json"
_WORK = ".work"
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
"""Kind of an artefact -> the command that makes it, where one does."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an artefact is and how it was made."""

    kind: str
    version: int
    recipe: dict[str, Any]
    facts: dict[str, Any]
    files: dict[str, dict[str, Any]]
    made: dict[str, str] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """Hash of the artefact's content: kind, version and files. Facts, times and places do not count."""
        return hash_json({"kind": self.kind, "version": self.version, "files": self.files})

    @property
    def seal(self) -> str:
        """Hash of all that the manifest says but for when and where: a changed byte of it is noticed by this."""
        told = json.loads(json.dumps([self.hash, self.recipe, self.facts]))  # as it will be read
        return hash_json(told)

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


class ArtefactWriter:
    """The partial folder of an artefact that is being made."""

    def __init__(self, folder: Path, kind: str, version: int, recipe: dict[str, Any]) -> None:
        self.folder = partial_folder(folder)
        self._target, self._kind, self._version, self._recipe = folder, kind, version, recipe
        self.facts: dict[str, Any] = {}

    def work(self, name: str) -> Path:
        """A folder for intermediate files; after an interruption the same recipe finds them again, another does not."""
        return self.shared_work(f"{hash_json(self._recipe)[:16]}/{name}")

    def shared_work(self, name: str) -> Path:
        """The same for files that any recipe may use, because their names say what they were made of."""
        path = self.folder / _WORK / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def clear(self) -> None:
        """Remove what an interrupted run had begun to write, except its intermediate files."""
        for path in self.folder.iterdir():
            if path.name not in (_WORK, LOCK):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def finish(self) -> Manifest:
        """Hash the files, write the manifest, give the folder its name."""
        inner = [path.parent for path in self.folder.rglob(MANIFEST)]
        names = sorted(
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file()
            and not path.relative_to(self.folder).parts[0].startswith(".")
            and (path.name == MANIFEST or not any(folder in path.parents for folder in inner))
        )
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            described = list(pool.map(lambda name: _describe(self.folder / name), names))
        files = dict(zip(names, described, strict=True))
        manifest = Manifest(self._kind, self._version, self._recipe, self.facts, files, _made())
        write_json(self.folder / MANIFEST, manifest.as_json())
        self._end_work()
        publish(self.folder, self._target)
        return manifest

    def _end_work(self) -> None:
        """Remove intermediate files; all at once from their name, for what is removed in part must not be gone on with."""
        if (self.folder / _WORK).exists():
            (self.folder / _WORK).rename(self.folder / DONE)
            shutil.rmtree(self.folder / DONE, ignore_errors=True)


@contextmanager
def new_artefact(
    folder: Path, kind: str, version: int, recipe: dict[str, Any], *, overwrite: bool = False
) -> Iterator[ArtefactWriter]:
    """Make an artefact; the caller ends with `writer.finish()`. One writer at a time."""
    if folder.exists():
        _refuse_existing(folder, kind, overwrite=overwrite)
    writer = ArtefactWriter(folder, kind, version, recipe)
    try:
        writer.folder.mkdir(parents=True, exist_ok=True)
        check_links(writer.folder)
        lock = open_lock(writer.folder / LOCK)
    except OSError as error:
        raise unwritable(writer.folder, error, "name another place with -o") from None
    with lock, naming_failures(writer.folder):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{folder} is being written by another process; wait for it or choose another -o") from None
        writer.clear()
        yield writer


def _refuse_existing(folder: Path, kind: str, *, overwrite: bool) -> None:
    """Say why an existing folder is not written over; only our own artefacts of the same kind ever are."""
    if (folder / MANIFEST).is_file():
        if kind_of(folder) not in (kind, ""):
            raise UserError(f"{folder} holds {kind_of(folder)}, which {kind} must not replace; choose another -o")
        if not overwrite:
            raise UserError(
                f"{folder} holds an artefact made from other inputs or options; choose another -o or --overwrite"
            )
    elif not folder.is_dir() or any(folder.iterdir()):
        raise UserError(f"{folder} exists and is not an artefact of citeweave; choose another -o")


def partial_folder(folder: Path) -> Path:
    folder = folder if folder.name else folder.absolute()  # "." has no name of its own
    return folder.with_name(folder.name + ".partial")


def read_manifest(folder: Path, kind: str, version: int) -> Manifest:
    """The manifest of an artefact that must be of this kind and version."""
    manifest, is_sound = _read_manifest(folder, kind)
    if manifest.kind != kind:
        raise ArtefactError(f"{folder} holds {manifest.kind}, not {kind}; give a folder that holds {_called(kind)}")
    if manifest.version != version:
        by = f" with `citeweave {_MADE_BY[kind]}`" if kind in _MADE_BY else ""
        told = another_version(manifest.version, version, f"make it again{by}", manifest.made)
        raise ArtefactError(f"{folder} holds {_called(kind)} {told}")
    if not is_sound:
        raise _changed(folder)
    return manifest


def any_manifest(folder: Path) -> Manifest:
    """The manifest of an artefact of any kind and version."""
    manifest, is_sound = _read_manifest(folder, "artefact")
    if not is_sound:
        raise _changed(folder)
    return manifest


def _read_manifest(folder: Path, kind: str) -> tuple[Manifest, bool]:
    """A manifest, and whether it is the one that was written."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtefactError(_why_no_manifest(folder, kind))
    try:
        data = json.loads(path.read_bytes())
        found = data["version"]
        if type(found) is not int:
            raise TypeError("a version is a whole number")
        manifest = Manifest(str(data["kind"]), found, data["recipe"], data["facts"], data["files"], data["made"])
        names = [str(name) for name in dict(manifest.files)]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArtefactError(f"{path} is not a manifest of citeweave: it is damaged; make the artefact again") from None
    check_names(names, path)
    check_links(folder)
    return manifest, _is_sound(manifest, data)


def _changed(folder: Path) -> ArtefactError:
    return ArtefactError(
        f"{folder / MANIFEST} is damaged: it has changed since it was written; make the artefact again"
    )


def _is_sound(manifest: Manifest, data: dict[str, Any]) -> bool:
    """Whether a manifest is the one that was written; the oldest have no seal."""
    if not all(isinstance(table, dict) for table in (manifest.recipe, manifest.facts, manifest.files)):
        return False
    if not all(isinstance(described, dict) for described in manifest.files.values()):
        return False
    return data.get("hash") == manifest.hash and data.get("seal", manifest.seal) == manifest.seal


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
    """What kind of artefact a folder holds, empty where it holds none."""
    try:
        return str(json.loads((folder / MANIFEST).read_bytes())["kind"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def matches(folder: Path, kind: str, version: int, recipe: dict[str, Any]) -> bool:
    """Whether the folder already holds the artefact that this recipe would make; then nothing is left beside it."""
    try:
        is_there = hash_json(read_manifest(folder, kind, version).recipe) == hash_json(recipe)
    except ArtefactError:
        return False
    if is_there:
        remove_leftovers(folder)
    return is_there


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_json(value: object) -> str:
    """SHA-256 of a JSON value in one spelling."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_json(path: Path, value: object) -> None:
    """Write a JSON file so that it is there whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    with io.TextIOWrapper(open_new(temporary), encoding="utf-8") as file:
        json.dump(value, file, indent=1, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    with open_new(temporary) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def cache_folder(given: Path | None = None) -> Path:
    """Where what can be made again is kept: the folder given, else $CITEWEAVE_CACHE, else ~/.cache/citeweave."""
    named = os.environ.get("CITEWEAVE_CACHE")
    return given or (Path(named) if named else Path.home() / ".cache" / "citeweave")


def link_or_copy(source: Path, target: Path) -> None:
    """Share a file between two artefacts; copied where the file system cannot link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _describe(path: Path) -> dict[str, Any]:
    """Size and hash of a file, after it has reached the disk; of an artefact inside this one kind, version and hash."""
    if path.name == MANIFEST:
        # its own manifest names the time it was made, which must not count
        inner = json.loads(path.read_bytes())
        return {"artefact": inner["hash"], "kind": inner["kind"], "version": inner["version"]}
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _made() -> dict[str, str]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"at": now, "citeweave": __version__, "python": platform.python_version()}


def _why_no_manifest(folder: Path, kind: str) -> str:
    if not folder.exists():
        return f"{folder} does not exist; give a folder that holds {_called(kind)}"
    if partial_folder(folder).exists():
        return f"{folder} was interrupted while it was made; run the same command again to finish it"
    return f"{folder} is not an artefact of citeweave (no {MANIFEST}); give a folder that holds {_called(kind)}"


def _called(kind: str) -> str:
    """What people call the contents of a folder.

    >>> _called("index"), _called("intents"), _called("intent_classifier"), _called("corpus")
    ('an index', 'intents', 'an intent classifier', 'a corpus')
    """
    words = kind.replace("_", " ")
    if words.endswith("s") and words != "corpus":
        return words
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
