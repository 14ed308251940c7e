"""What an artefact is and how it was made, in a file beside its data.

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

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from citeweave.artefacts.ownership import MANIFEST as MANIFEST
from citeweave.artefacts.publishing import work_folder
from citeweave.errors import ArtefactError
from citeweave.files import hash_json, read_input, seal_of
from citeweave.links import check_links, check_names

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

_OTHER_FORMATS = {"state.json": ("citeweave-index", "index"), "library.json": ("citeweave-library", "library")}
"""Folders of ours that change and have no manifest: the file that is in each, its format, what the folder is."""


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
        data = json.loads(read_input(path))
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
    """What kind of artefact a folder holds, empty where it holds none."""
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
