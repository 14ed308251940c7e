"""Artifacts: folders with a manifest, written atomically, resumed after an interruption, checked when opened.

    with new_artifact(folder, kind, version, recipe) as artifact:
        write(artifact.folder / "data.txt")
        manifest = artifact.finish()

A stage writes into a hidden work folder beside the output (see `core/publish.py`), which gets the output's name by one
rename, after every file has reached the disk. An interrupted run leaves that work folder, and the next run resumes from
it; a finished artifact is never rewritten in place. The manifest says what the artifact is and how it was made:

    manifest.json = {
      "kind": "corpus", "version": 1,
      "hash": "...",              of kind, version and files: same content, same hash
      "recipe": {...},            inputs' hashes, options and seed: a stage whose recipe matches is skipped
      "files": {"papers/year.npy": {"bytes": 128, "sha256": "..."}, ...},
      "facts": {...},             counts and whatever else the stage reports
      "seal": "...",              of all above
      "made": {"at": "...", "citeweave": "...", "python": "..."}
    }

    check_files(folder, manifest)                  on every opening: sizes, and every byte of a small artifact
    check_files(folder, manifest, content=True)    every byte of any artifact: `citeweave info FOLDER --verify`
    seal_payload(payload), unseal_payload(value)   a small JSON file that carries a hash of itself

A memory-mapped artifact may be far larger than what can be read on every opening. So a changed byte is noticed on opening
where the artifact has at most `SMALL` bytes, and on verification where it is larger; until then reading it gives an error
or different numbers, never a crash. A process hashes a file once, as long as the file stays as it is.
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
    file_state,
    hash_as_written,
    hash_file,
    hash_json,
    read_input,
    resolve_output,
    sync,
    take_lock,
    write_json,
)
from citeweave.core.publish import (
    INDEX_GENERATIONS,
    check_replaceable,
    create_work_folder,
    lock_file,
    publish,
    remove_leftovers,
    remove_unresumable_work,
    remove_work_folder,
    work_folder,
)
from citeweave.core.publish import MANIFEST as MANIFEST
from citeweave.version import __version__

_COMMANDS = {
    **{"corpus": "import", "graph": "graph", "samples": "mine", "bundle": "bundle", "encoder": "train"},
    **dict.fromkeys(("vectors", "compressed_vectors", "sentence_vectors"), "embed"),
    **dict.fromkeys(("index_generation", "paper_map"), "index"),
    **{"report": "evaluate", "intents": "annotate", "intent_classifier": "intents train"},
    **dict.fromkeys(("search-benchmark", "treccovid-rf"), "benchmark"),
}
"""Kind of an artifact -> the command that writes it, where one does."""

_OTHER_FORMATS = {"state.json": ("citeweave-index", "index"), "library.json": ("citeweave-library", "library")}
"""Folders of ours without a manifest: the file that marks each, its format, what the folder is."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an artifact holds and how it was made, as manifest.json stores it."""

    kind: str
    version: int
    recipe: dict[str, Any]
    facts: dict[str, Any]
    files: dict[str, dict[str, Any]]
    made: dict[str, str] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """Return the hash of the artifact's content: kind, version and files, but not facts, times and places."""
        return hash_json({"kind": self.kind, "version": self.version, "files": self.files})

    @property
    def seal(self) -> str:
        """Return a hash of everything in the manifest except when and where it was made, to notice a changed byte."""
        return hash_as_written([self.hash, self.recipe, self.facts])

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
    """Return the manifest of an artifact, which must be of this kind and version."""
    manifest, is_sound = _read_manifest(folder, kind)
    if manifest.kind != kind:
        raise ArtifactError(
            f"{folder} holds {manifest.kind}, not {kind}; give a folder that holds {_kind_with_article(kind)}"
        )
    if manifest.version != version:
        by = f" with `citeweave {_COMMANDS[kind]}`" if kind in _COMMANDS else ""
        mismatch = explain_version_mismatch(manifest.version, version, f"make it again{by}", manifest.made)
        raise ArtifactError(f"{folder} holds {_kind_with_article(kind)} {mismatch}")
    if not is_sound:
        raise _changed_error(folder)
    return manifest


def read_any_manifest(folder: Path) -> Manifest:
    """Return the manifest of an artifact of any kind and version."""
    manifest, is_sound = _read_manifest(folder, "artifact")
    if not is_sound:
        raise _changed_error(folder)
    return manifest


def _read_manifest(folder: Path, kind: str) -> tuple[Manifest, bool]:
    """Return a manifest, and whether it is still the one that was written."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtifactError(_explain_missing_manifest(folder, kind))
    try:
        data = json.loads(read_input(path))
        manifest = Manifest(**{name: data[name] for name in ("kind", "version", "recipe", "facts", "files", "made")})
        if type(manifest.version) is not int or type(manifest.kind) is not str:
            raise TypeError("a version is an integer, a kind is a text")
        names = [str(name) for name in dict(manifest.files)]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArtifactError(f"{path} is not a manifest of citeweave: it is damaged; make the artifact again") from None
    check_names(names, path)
    check_links(folder)
    return manifest, _is_intact(manifest, data)


def _changed_error(folder: Path) -> ArtifactError:
    return ArtifactError(
        f"{folder / MANIFEST} is damaged: it has changed since it was written; make the artifact again"
    )


def _is_intact(manifest: Manifest, data: dict[str, Any]) -> bool:
    """Return whether a manifest is the one that was written; the oldest have no seal, and no other key in its place."""
    tables = manifest.recipe, manifest.facts, manifest.files
    if not all(isinstance(table, dict) for table in (*tables, *dict(manifest.files).values())):
        return False
    written = manifest.as_json()
    stored = {"seal": written["seal"], **data}
    return stored.keys() == written.keys() and all(stored[name] == written[name] for name in ("hash", "seal"))


def explain_version_mismatch(stored: object, read: int, again: str = "make it again", provenance: object = None) -> str:
    """Say that a file has another format version, and what to do; `provenance` names the release that wrote it.

    >>> explain_version_mismatch(2, 1, "build it again")
    'of format version 2; this citeweave reads version 1. Update citeweave (pip install --upgrade citeweave), or build it again'
    >>> explain_version_mismatch(1, 2, provenance={"citeweave": "0.1.0"})
    'of format version 1; this citeweave reads version 2. Make it again, or use the release that wrote it, citeweave 0.1.0'
    """
    mismatch = f"of format version {str(stored)[:20]}; this citeweave reads version {read}."
    if isinstance(stored, int) and stored > read:
        return f"{mismatch} Update citeweave (pip install --upgrade citeweave), or {again}"
    wrote = provenance.get("citeweave") if isinstance(provenance, dict) else None
    release = "" if wrote is None else f", citeweave {str(wrote)[:20]}"
    return f"{mismatch} {again[:1].upper()}{again[1:]}, or use the release that wrote it{release}"


def kind_of(folder: Path) -> str:
    """Return the kind of artifact a folder holds, or "" where it holds none."""
    return _read_json_key(folder / MANIFEST, "kind")


def _kind_without_manifest(folder: Path) -> str:
    """Return "index" or "library" for a folder of ours that has no manifest, or ""."""
    for name, (format, kind) in _OTHER_FORMATS.items():
        if _read_json_key(folder / name, "format") == format:
            return kind
    return ""


def _read_json_key(path: Path, key: str) -> str:
    try:
        return str(json.loads(read_input(path))[key])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _explain_missing_manifest(folder: Path, kind: str) -> str:
    wanted = _kind_with_article(kind)
    if not folder.exists():
        return f"{folder} does not exist; give a folder that holds {wanted}"
    if work_folder(folder).exists():
        return f"{folder} is unfinished because a run was interrupted; run the same command again to finish it"
    if other := _kind_without_manifest(folder):
        return f"{folder} holds {_kind_with_article(other)}, not {wanted}; give a folder that holds {wanted}"
    if (folder / INDEX_GENERATIONS).is_dir():
        return f"{folder} is an index whose building was interrupted; run the same command again to finish it"
    maker = f" (`citeweave {_MADE_BY[kind]}` makes one)" if kind in _MADE_BY else ""
    return f"{folder} is not an artifact of citeweave (no {MANIFEST}); give a folder that holds {wanted}{maker}"


_MADE_BY = {"corpus": "import", "graph": "graph", "samples": "mine", "vectors": "embed", "report": "evaluate"}
"""Kind -> the command that makes it."""


def _kind_with_article(kind: str) -> str:
    """Return the kind of an artifact in words, with its article.

    >>> _kind_with_article("index"), _kind_with_article("intents"), _kind_with_article("intent_classifier"), _kind_with_article("corpus")
    ('an index', 'intents', 'an intent classifier', 'a corpus')
    """
    words = kind.replace("_", " ")
    if words.endswith("s") and words != "corpus":
        return words
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


# Checking that an artifact is still what was written.

SMALL = 64 * 2**20
"""Largest artifact, in bytes, that is read in full when it is opened: some 50 milliseconds."""

_verified_files: set[tuple[object, ...]] = set()
"""Files whose hash was right when they were read: path, what changes when it is written, hash."""


def check_files(folder: Path, manifest: Manifest, *, content: bool = False) -> None:
    """Check that every file exists with its size, and with its hash if the artifact is small or `content` is True."""
    sizes = [entry.get("bytes", 0) for entry in manifest.files.values()]
    is_small = all(type(size) is int for size in sizes) and sum(sizes) <= SMALL
    for name, entry in manifest.files.items():
        if "artifact" in entry:
            _check_inner_artifact(folder, name, entry, content=content)
        else:
            _check_file(folder, name, entry, content=content or is_small, again=content)


def check_named_files(folder: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Check size and hash of some files of an artifact: those that are read in full anyway."""
    for name in names:
        _check_file(folder, name, manifest.files.get(name, {}), content=True)


def seal_payload(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with a hash of itself, by which `unseal_payload` notices a changed byte."""
    return {**payload, "seal": hash_as_written(payload)}


def unseal_payload(value: object) -> dict[str, Any]:
    """Return the object without its seal; raise ValueError where the seal is missing or wrong.

    >>> unseal_payload(seal_payload({"step": 3}))
    {'step': 3}
    >>> unseal_payload({**seal_payload({"step": 3}), "step": 4})
    Traceback (most recent call last):
    ValueError: it has changed since it was written
    """
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    payload = {key: item for key, item in value.items() if key != "seal"}
    if value.get("seal") != hash_as_written(payload):  # a missing seal may be a damaged one
        raise ValueError("it has changed since it was written")
    return payload


def _check_file(folder: Path, name: str, entry: dict[str, Any], *, content: bool, again: bool = False) -> None:
    path = folder / name
    if not path.is_file() or path.stat().st_size != entry.get("bytes"):
        raise ArtifactError(f"{path} is missing or has another size than its manifest says; make {folder} again")
    if not content:
        return
    state_key = (str(path.absolute()), *file_state(path), entry.get("sha256"))
    if state_key in _verified_files and not again:
        return
    if hash_file(path) != entry.get("sha256"):
        raise ArtifactError(f"{path} is damaged: it has changed since it was written; make {folder} again")
    _verified_files.add(state_key)


def _check_inner_artifact(folder: Path, name: str, entry: dict[str, Any], *, content: bool) -> None:
    path = folder / name
    inner = read_manifest(path.parent, entry.get("kind", ""), entry.get("version", 0))
    if inner.hash != entry["artifact"]:
        raise ArtifactError(f"{path.parent} is not the {inner.kind} that {folder} was made with; make it again")
    check_files(path.parent, inner, content=content)


# Disks that are full or fail.

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_RUST_OS_ERROR = re.compile(r"\(os error (\d{1,3})\)")


@contextmanager
def name_folder_in_errors(folder: Path) -> Iterator[None]:
    """Add the artifact being written to errors of a full or failing disk, which often name no path."""
    try:
        yield
    except OSError as error:
        if type(error) is OSError and not error.filename:
            error.filename = str(folder)
        raise
    except Exception as error:
        if match := _RUST_OS_ERROR.search(str(error)):
            raise OSError(int(match[1]), os.strerror(int(match[1])), str(folder)) from error
        raise


def explain_write_error(folder: Path, error: OSError, remedy: str) -> Exception:
    """Return the error for a folder that cannot be written: a user error, or a full or failing disk."""
    if error.errno in _DISK_ERRORS:
        return OSError(error.errno, error.strerror, str(folder))
    return UserError(f"{folder} cannot be written ({error.strerror}); {remedy}")


# Writing an artifact.


class ArtifactWriter:
    """The work folder of an artifact that is being written, and inside it the folder that will get its name."""

    def __init__(
        self, folder: Path, kind: str, version: int, recipe: dict[str, Any], *, place: Path, overwrite: bool = False
    ) -> None:
        self.place, self.folder = place, place / "new"
        self._target, self._kind, self._version, self._recipe = folder, kind, version, recipe
        self.facts: dict[str, Any] = {}
        self.overwrite = overwrite
        """Whether an older artifact of the same kind may be replaced."""

    def scratch_folder(self, name: str) -> Path:
        """Return a folder for intermediate files; a later run finds them again only with the same recipe."""
        return self.shared_scratch_folder(f"{hash_json(self._recipe)[:16]}/{name}")

    def shared_scratch_folder(self, name: str) -> Path:
        """Return a folder for intermediate files of any recipe: their names say what they were made from."""
        path = self.place / "kept" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def clear(self) -> None:
        """Remove what an interrupted run had begun to write, except its intermediate files."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def finish(self) -> Manifest:
        """Hash the files, write the manifest, publish the folder and only then remove the intermediate files."""
        inner = [path.parent for path in self.folder.rglob(MANIFEST)]
        names = sorted(
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file() and (path.name == MANIFEST or not any(folder in path.parents for folder in inner))
        )
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            described = list(pool.map(lambda name: _describe(self.folder / name), names))
        files = dict(zip(names, described, strict=True))
        manifest = Manifest(self._kind, self._version, self._recipe, self.facts, files, _provenance())
        write_json(self.folder / MANIFEST, manifest.as_json())
        if self._target.exists():  # what appeared there meanwhile is not ours to replace
            refuse_existing(self._target, self._kind, overwrite=self.overwrite)
        publish(self._target)
        return manifest


@contextmanager
def new_artifact(
    folder: Path, kind: str, version: int, recipe: dict[str, Any], *, overwrite: bool = False
) -> Iterator[ArtifactWriter]:
    """Open a writer for an artifact, one at a time; the caller ends with `writer.finish()`."""
    folder = resolve_output(folder)
    if folder.exists():
        refuse_existing(folder, kind, overwrite=overwrite)
    with locked_work_folder(folder) as place:
        if folder.exists():  # another process may have written it before we had the lock
            refuse_existing(folder, kind, overwrite=overwrite)
        writer = ArtifactWriter(folder, kind, version, recipe, place=place, overwrite=overwrite)
        writer.clear()
        yield writer


def early_scratch_folder(folder: Path, recipe: dict[str, Any], name: str) -> Path:
    """Return `ArtifactWriter.scratch_folder` for files that are made before the artifact itself is begun."""
    folder = resolve_output(folder)
    with locked_work_folder(folder) as place:
        return ArtifactWriter(folder, "", 0, recipe, place=place).scratch_folder(name)


@contextmanager
def locked_work_folder(folder: Path) -> Iterator[Path]:
    """Lock and return the work folder of an output; no link in it leads out of it.

    A run that fails leaves it only where the next run can resume from it; an empty result would be empty again.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(take_lock(lock_file(folder), remove=True))
            place = create_work_folder(folder)
        except LockedError:
            raise UserError(f"{folder} is being written by another process; wait for it or choose another -o") from None
        except OSError as error:
            raise explain_write_error(folder, error, "name another place with -o") from None
        check_links(place)
        stack.enter_context(name_folder_in_errors(folder))
        try:
            yield place
        except EmptyResultError:
            remove_work_folder(folder)
            raise
        except BaseException:
            remove_unresumable_work(folder)
            raise


def refuse_existing(folder: Path, kind: str, *, overwrite: bool) -> None:
    """Refuse to write over an existing folder, unless it is our own artifact of the same kind and `overwrite`."""
    if (folder / MANIFEST).is_file():
        if kind_of(folder) not in (kind, ""):
            raise UserError(f"{folder} holds {kind_of(folder)}, which {kind} must not replace; choose another -o")
        if not overwrite:
            raise UserError(
                f"{folder} holds an artifact made from other inputs or options; choose another -o or --overwrite"
            )
        check_replaceable(folder)
    elif other := _kind_without_manifest(folder):
        raise UserError(f"{folder} holds {other}, which {kind} must not replace; choose another -o")
    elif not folder.is_dir() or any(folder.iterdir()):
        raise UserError(f"{folder} exists and is not an artifact of citeweave; choose another -o")
    if folder.samefile("."):
        raise UserError(f"{folder} is the working folder, which cannot be replaced; choose another -o")


def artifact_matches(folder: Path, kind: str, version: int, recipe: dict[str, Any]) -> bool:
    """Return whether a folder already holds the artifact of this recipe; then also remove leftovers beside it."""
    try:
        is_current = hash_json(read_manifest(folder, kind, version).recipe) == hash_json(recipe)
    except ArtifactError:
        return False
    if is_current:
        remove_leftovers(folder)
    return is_current


def _describe(path: Path) -> dict[str, Any]:
    """Return size and hash of a file once it is on the disk, or kind, version and hash of an artifact inside this one."""
    if path.name == MANIFEST:
        # the manifest itself names the time it was made, which must not count
        inner = json.loads(path.read_bytes())
        return {"artifact": inner["hash"], "kind": inner["kind"], "version": inner["version"]}
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def _provenance() -> dict[str, str]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"at": now, "citeweave": __version__, "python": platform.python_version()}
