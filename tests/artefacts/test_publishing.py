"""How finished folders get their names, and what disks that fail are told as."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from citeweave.core import publish
from citeweave.core.artifact import (
    artifact_matches,
    explain_write_error,
    name_folder_in_errors,
    new_artifact,
    read_manifest,
)
from citeweave.core.errors import UserError
from citeweave.core.files import write_json
from citeweave.core.publish import work_folder


class Death(BaseException):
    """A process that ends at once."""


def make(folder: Path, seed: int) -> None:
    with new_artifact(folder, "demo", 1, {"seed": seed}, overwrite=True) as writer:
        (writer.folder / "data.txt").write_text(str(seed))
        (writer.scratch_folder("parts") / "one.txt").write_text("intermediate")
        writer.finish()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def die(*_: object, **__: object) -> None:
    raise Death


def test_work_is_kept_until_the_artifact_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Death):
        patch.setattr(shutil, "rmtree", die)
        make(tmp_path / "thing", 0)
    assert (tmp_path / "thing").is_dir() and (work_folder(tmp_path / "thing") / "kept").is_dir()
    assert artifact_matches(tmp_path / "thing", "demo", 1, {"seed": 0})
    assert names(tmp_path) == ["thing"] and names(tmp_path / "thing") == ["data.txt", "manifest.json"]


def test_a_run_that_ends_before_its_artifact_has_a_name_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Death):
        patch.setattr(publish, "sync", die)
        make(tmp_path / "thing", 0)
    with new_artifact(tmp_path / "thing", "demo", 1, {"seed": 0}) as writer:
        assert names(writer.scratch_folder("parts")) == ["one.txt"]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_killed_replacement_leaves_one_of_both_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    if not at_once:
        monkeypatch.setattr(publish, "_exchange_atomically", lambda *_: False)
    folder = tmp_path / "thing"
    make(folder, 0)
    with monkeypatch.context() as patch, pytest.raises(Death):
        patch.setattr(publish, "_remove_work", die)
        make(folder, 1)
    assert read_manifest(folder, "demo", 1).recipe == {"seed": 1} and work_folder(folder).is_dir()
    assert artifact_matches(folder, "demo", 1, {"seed": 1})
    assert names(tmp_path) == ["thing"] and names(folder) == ["data.txt", "manifest.json"]


def test_a_replacement_that_fails_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, rename = tmp_path / "thing", os.replace
    make(folder, 0)

    def failing(source: Path, target: Path) -> None:
        if (Path(source), Path(target)) == (work_folder(folder) / "new", folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output error"):
        patch.setattr(publish, "_exchange_atomically", lambda *_: False)
        patch.setattr(os, "replace", failing)
        make(folder, 1)
    assert read_manifest(folder, "demo", 1).recipe == {"seed": 0}
    make(folder, 1)
    assert (folder / "data.txt").read_text() == "1" and names(tmp_path) == ["thing"]


def test_what_another_process_is_about_to_name_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, exchange = tmp_path / "thing", publish._exchange_atomically
    make(folder, 0)

    def watched(one: Path, other: Path) -> bool:
        assert artifact_matches(folder, "demo", 1, {"seed": 0}) and one.is_dir()
        return exchange(one, other)

    monkeypatch.setattr(publish, "_exchange_atomically", watched)
    make(folder, 1)
    assert (folder / "data.txt").read_text() == "1" and names(tmp_path) == ["thing"]


def test_a_folder_that_is_in_use_is_not_replaced_and_the_work_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where a server has the older one open."""
    folder, replace = tmp_path / "thing", os.replace
    make(folder, 0)

    def refusing(source: Path, target: Path) -> None:
        if Path(source) == folder:
            raise PermissionError(errno.EACCES, "Access is denied", str(source))
        replace(source, target)

    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match="thing cannot be replaced .Access is denied.; close"),
    ):
        patch.setattr(publish, "_exchange_atomically", lambda *_: False)
        patch.setattr(os, "replace", refusing)
        make(folder, 1)
    assert read_manifest(folder, "demo", 1).recipe == {"seed": 0} and work_folder(folder).is_dir()
    with new_artifact(folder, "demo", 1, {"seed": 1}, overwrite=True) as writer:
        assert names(writer.scratch_folder("parts")) == ["one.txt"]


def test_a_name_that_is_taken_for_a_moment_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where somebody reads the file just now."""
    replace, refusals = os.replace, 3

    def busy(source: Path, target: Path) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            error = PermissionError(errno.EACCES, "Access is denied", str(source))
            error.winerror = 5  # type: ignore[attr-defined,unused-ignore]
            raise error
        replace(source, target)

    monkeypatch.setattr(os, "replace", busy)
    write_json(tmp_path / "state.json", {"number": 1})
    assert refusals == -1 and names(tmp_path) == ["state.json"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("I/O error: no space (os error 28)")]
)
def test_a_failed_write_names_the_folder(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(OSError) as caught, new_artifact(tmp_path / "thing", "demo", 1, {}):
        raise error
    assert caught.value.filename == str(tmp_path / "thing") and caught.value.errno == errno.ENOSPC


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    for error in (ConnectionResetError("gone"), ValueError("no number"), FileNotFoundError(2, "none", "input.txt")):
        with pytest.raises(type(error)) as caught, name_folder_in_errors(tmp_path):
            raise error
        assert caught.value is error and getattr(error, "filename", None) in (None, "input.txt")


def test_a_full_disk_is_not_the_users_mistake(tmp_path: Path) -> None:
    assert isinstance(
        explain_write_error(tmp_path, PermissionError(errno.EACCES, "Permission denied"), "do x"), UserError
    )
    full = explain_write_error(tmp_path, OSError(errno.ENOSPC, "No space left on device"), "do x")
    assert isinstance(full, OSError) and full.filename == str(tmp_path)


@pytest.mark.parametrize("mark", [None, "", '{"made_by": "cit'])
def test_a_work_folder_with_half_its_mark_is_ours(tmp_path: Path, mark: str | None) -> None:
    half = tmp_path / ".thing.citeweave-80f108ec"  # as who is killed while beginning leaves it
    half.mkdir()
    if mark is not None:
        (half / "owner.json").write_text(mark)
    make(tmp_path / "thing", 1)
    assert names(tmp_path) == ["thing"]


@pytest.mark.parametrize(
    "other", [{"owner.json": "mine"}, {"owner.json": "{", "thesis.txt": "mine"}, {"thesis.txt": ""}]
)
def test_a_folder_of_such_a_name_without_the_mark_is_left_alone(tmp_path: Path, other: dict[str, str]) -> None:
    alike = tmp_path / ".thing.citeweave-80f108ec"
    alike.mkdir()
    for name, text in other.items():
        (alike / name).write_text(text)
    make(tmp_path / "thing", 1)
    assert names(tmp_path) == [alike.name, "thing"]
    assert {path.name: path.read_text() for path in alike.iterdir()} == other


def test_the_mark_of_a_work_folder_is_not_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill while it is rewritten would leave a folder with work in it and without its mark."""
    work = publish.create_work_folder(tmp_path / "thing")
    (work / "kept" / "part.txt").write_text("hours of work")
    monkeypatch.setattr(Path, "write_bytes", die)
    assert publish.create_work_folder(tmp_path / "thing") == work == work_folder(tmp_path / "thing")
