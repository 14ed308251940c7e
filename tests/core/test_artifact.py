"""Artifacts appear complete or not at all."""

from __future__ import annotations

import errno
import json
import multiprocessing
from pathlib import Path

import pytest

from citeweave.core import artifact
from citeweave.core.artifact import (
    artifact_matches,
    check_files,
    explain_write_error,
    name_folder_in_errors,
    new_artifact,
    read_manifest,
)
from citeweave.core.errors import ArtifactError, EmptyResultError, UserError
from citeweave.core.publish import work_folder

from .conftest import THING, make, names, refused


def test_an_artifact_has_a_manifest(tmp_path):
    make(tmp_path / "x", seed=1)
    manifest = read_manifest(tmp_path / "x", *THING)
    sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert manifest.files == {"inner/a.txt": {"bytes": 5, "sha256": sha256}}
    assert manifest.facts == {"words": 1} and manifest.recipe == {"seed": 1}
    assert names(tmp_path / "x") == ["inner", "manifest.json"]
    assert artifact_matches(tmp_path / "x", *THING, {"seed": 1})
    assert not artifact_matches(tmp_path / "x", *THING, {"seed": 2})
    # another kind or version is named
    for kind, version, message in [
        ("corpus", 1, "holds thing, not corpus"),
        ("thing", 2, "version 1; this citeweave reads version 2"),
    ]:
        refused(message, read_manifest, tmp_path / "x", kind, version, error=ArtifactError)
    refused("does not exist", read_manifest, tmp_path / "nothing", *THING, error=ArtifactError)


def test_the_hash_is_of_the_content_alone(tmp_path):
    first, other_recipe = make(tmp_path / "x").hash, make(tmp_path / "y", seed=2).hash
    assert first == other_recipe != make(tmp_path / "z", "other").hash


def test_what_fails_leaves_the_old_artifact(tmp_path):
    make(tmp_path / "x")
    with pytest.raises(RuntimeError), new_artifact(tmp_path / "x", *THING, {"seed": 2}, overwrite=True) as writer:
        (writer.folder / "a.txt").write_text("half of it")
        raise RuntimeError("stop")
    assert (tmp_path / "x" / "inner" / "a.txt").read_text() == "hello"
    make(tmp_path / "x", "new", seed=2, overwrite=True)
    assert (tmp_path / "x" / "inner" / "a.txt").read_text() == "new"
    assert not work_folder(tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["thing", "other"])
@pytest.mark.parametrize("overwrite", [True, False])
def test_what_came_meanwhile_is_not_replaced(tmp_path, kind, overwrite):
    with new_artifact(tmp_path / "x", *THING, {}, overwrite=overwrite) as writer:
        (writer.folder / "a.txt").write_text("hello")
        write_other(tmp_path / "y", kind)
        (tmp_path / "y").rename(tmp_path / "x")
        if overwrite and kind == "thing":
            writer.finish()
        else:
            refused("x holds", writer.finish)
    assert (tmp_path / "x" / "b.txt").exists() != (overwrite and kind == "thing")


def write_other(folder, kind):
    with new_artifact(folder, kind, 1, {"seed": 2}) as writer:
        (writer.folder / "b.txt").write_text("of another process")
        writer.finish()


@pytest.mark.parametrize("kind", ["thing", "other"])
def test_what_came_before_the_lock_is_not_replaced(tmp_path, monkeypatch, kind):
    take_lock = artifact.take_lock

    def late(path, **options):
        monkeypatch.setattr(artifact, "take_lock", take_lock)
        write_other(tmp_path / "x", kind)
        return take_lock(path, **options)

    monkeypatch.setattr(artifact, "take_lock", late)
    refused("x holds", make, tmp_path / "x")
    assert (tmp_path / "x" / "b.txt").exists()


@pytest.mark.parametrize("error", [UserError, EmptyResultError, KeyboardInterrupt])
@pytest.mark.parametrize("keeps", [True, False])
def test_what_fails_leaves_only_what_helps_the_next_run(tmp_path, error, keeps):
    with pytest.raises(error), new_artifact(tmp_path / "a", "corpus", 1, {}) as writer:
        (writer.folder / "data.txt").write_text("begun")
        if keeps:
            (writer.scratch_folder("parts") / "done.txt").write_text("done")
        raise error("stop")
    helps = keeps and error is not EmptyResultError
    assert len(list(tmp_path.iterdir())) == (1 if helps else 0)


def test_what_another_recipe_left_behind_is_not_taken_over(tmp_path):
    with pytest.raises(RuntimeError), new_artifact(tmp_path / "x", *THING, {"seed": 1}) as writer:
        (writer.folder / "old.txt").write_text("of the first recipe")
        (writer.scratch_folder("scratch") / "old.txt").write_text("of the first recipe")
        (writer.shared_scratch_folder("by-content") / "abc").write_text("of any recipe")
        raise RuntimeError("stop")
    with new_artifact(tmp_path / "x", *THING, {"seed": 2}) as writer:
        assert not list(writer.scratch_folder("scratch").iterdir())
        assert (writer.shared_scratch_folder("by-content") / "abc").read_text() == "of any recipe"
        (writer.folder / "new.txt").write_text("of the second")
        assert list(writer.finish().files) == ["new.txt"]


def test_existing_folders_are_not_written_over(tmp_path, monkeypatch):
    make(tmp_path / "x")
    refused("other inputs or options", make, tmp_path / "x", seed=2)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        refused("not an artifact", make, tmp_path / "mine", overwrite=overwrite)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "here").mkdir()
    for folder, overwrite in ((tmp_path / "here", False), (tmp_path / "x", True)):
        monkeypatch.chdir(folder)
        refused(r"\. is the working folder", make, Path(), seed=3, overwrite=overwrite)


def test_changed_files_of_a_small_artifact_are_found_when_it_is_opened(tmp_path, monkeypatch):
    manifest, path = make(tmp_path / "x"), tmp_path / "x" / "inner" / "a.txt"
    check_files(tmp_path / "x", manifest)
    path.write_text("jello")
    refused("has changed", check_files, tmp_path / "x", manifest, error=ArtifactError)
    # of a large one the sizes are compared, and the content on request
    monkeypatch.setattr(artifact, "SMALL", -1)
    check_files(tmp_path / "x", manifest)
    refused("has changed", check_files, tmp_path / "x", manifest, content=True, error=ArtifactError)
    path.write_text("longer than before")
    refused("another size", check_files, tmp_path / "x", manifest, error=ArtifactError)


WRONG_TYPES = {"kind": [], "version": "x", "recipe": 0, "facts": 0, "files": 0, "made": 0}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "thing"}', json.dumps(WRONG_TYPES)])
def test_broken_manifests_are_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    refused("damaged", read_manifest, tmp_path, *THING, error=ArtifactError)


def test_a_changed_manifest_is_refused_and_one_without_seal_is_not(tmp_path):
    make(tmp_path / "x", seed=1)
    path = tmp_path / "x" / "manifest.json"
    sealed = json.loads(path.read_text())
    bare = {key: value for key, value in sealed.items() if key != "seal"}
    path.write_text(json.dumps(bare))
    assert read_manifest(tmp_path / "x", *THING).recipe == {"seed": 1}
    for changed in ({**sealed, "recipe": {"seed": 8}}, {**bare, "sea,": sealed["seal"], "recipe": {"seed": 8}}):
        path.write_text(json.dumps(changed))
        refused("manifest.json is damaged: it has changed", read_manifest, tmp_path / "x", *THING, error=ArtifactError)


def _hold(folder, holding, done):
    with new_artifact(folder, *THING, {}):
        holding.set()
        done.wait(600)


def test_two_processes_cannot_write_one_folder(tmp_path):
    context = multiprocessing.get_context("spawn")
    holding, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "x", holding, done))
    other.start()
    try:
        assert holding.wait(600)
        refused("another process", make, tmp_path / "x")
    finally:
        done.set()
        other.join()


def test_an_artifact_inside_another_counts_by_its_hash(tmp_path):
    folders, manifests = [], []
    for name, value in (("a", "1"), ("b", "1"), ("c", "2")):
        with new_artifact(tmp_path / name, "outer", 1, {}) as writer:
            (writer.folder / "own.txt").write_text("own")
            make(writer.folder / "part", value)
            writer.finish()
        folders.append(tmp_path / name)
    made = json.loads((folders[1] / "part" / "manifest.json").read_text())
    made["made"]["at"] = "another time"
    (folders[1] / "part" / "manifest.json").write_text(json.dumps(made))
    manifests = [read_manifest(folder, "outer", 1) for folder in folders]
    assert manifests[0].hash == manifests[1].hash != manifests[2].hash
    check_files(folders[1], manifests[1], content=True)
    (folders[0] / "part" / "inner" / "a.txt").write_text("9")
    with pytest.raises(ArtifactError, match="a.txt is damaged: it has changed"):
        check_files(folders[0], manifests[0], content=True)
    refused("is not the thing that", check_files, folders[2], manifests[0], error=ArtifactError)


OTHERS = [("state.json", "citeweave-index", "an index"), ("library.json", "citeweave-library", "a library")]


@pytest.mark.parametrize(("file", "format", "name"), OTHERS)
def test_an_index_or_a_library_in_place_of_another_artifact(tmp_path, file, format, name):
    (tmp_path / file).write_text(json.dumps({"format": format}))
    with pytest.raises(ArtifactError, match=f"holds {name}, not samples; give a folder that holds samples"):
        read_manifest(tmp_path, "samples", 1)
    refused(f"holds {name.split()[1]}, which thing must not replace", make, tmp_path, overwrite=True)
    (tmp_path / file).write_text(json.dumps({"format": "of somebody else"}))
    refused("is not an artifact of citeweave", read_manifest, tmp_path, "samples", 1, error=ArtifactError)


# --- disks that fail ---------------------------------------------------------------------------------


FULL_DISKS = [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("I/O error: no space (os error 28)")]


@pytest.mark.parametrize("error", FULL_DISKS)
def test_a_failed_write_names_the_folder(tmp_path, error):
    with pytest.raises(OSError) as caught, new_artifact(tmp_path / "x", *THING, {}):
        raise error
    assert caught.value.filename == str(tmp_path / "x") and caught.value.errno == errno.ENOSPC


def test_other_errors_stay_what_they_are(tmp_path):
    for error in (ConnectionResetError("gone"), ValueError("no number"), FileNotFoundError(2, "none", "input.txt")):
        with pytest.raises(type(error)) as caught, name_folder_in_errors(tmp_path):
            raise error
        assert caught.value is error and getattr(error, "filename", None) in (None, "input.txt")


def test_a_full_disk_is_not_the_users_mistake(tmp_path):
    denied = explain_write_error(tmp_path, PermissionError(errno.EACCES, "Permission denied"), "do x")
    assert isinstance(denied, UserError)
    full = explain_write_error(tmp_path, OSError(errno.ENOSPC, "No space left on device"), "do x")
    assert isinstance(full, OSError) and full.filename == str(tmp_path)
