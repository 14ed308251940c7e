"""A small artifact and a refusal, each in one line."""

from __future__ import annotations

from pathlib import Path

from citeweave.core.artifact import Manifest, new_artifact

from ..conftest import refused as refused

THING = ("thing", 1)


def make(folder: Path, text: str = "hello", *, overwrite: bool = False, **recipe: object) -> Manifest:
    """An artifact of kind `thing`, version 1, with one file, and with intermediate work that is not part of it."""
    with new_artifact(folder, *THING, recipe, overwrite=overwrite) as writer:
        (writer.folder / "inner").mkdir()
        (writer.folder / "inner" / "a.txt").write_text(text)
        (writer.scratch_folder("parts") / "one.txt").write_text("intermediate")
        writer.facts["words"] = 1
        return writer.finish()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
