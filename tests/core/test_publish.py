"""How finished folders get their names; nothing that citeweave did not write is replaced or removed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from citeweave.core import publish
from citeweave.core.artifact import artifact_matches, new_artifact, read_manifest
from citeweave.core.errors import UserError
from citeweave.core.files import new_file, write_json

from .conftest import THING, make, names, refused


class Death(BaseException):
    """A process that ends at once."""


def die(*_, **__):
    raise Death


@pytest.fixture
def folder(tmp_path):
    """An artifact of seed 0."""
    make(tmp_path / "thing", seed=0)
    return tmp_path / "thing"


def replace(folder, seed=1):
    make(folder, str(seed), seed=seed, overwrite=True)


def assert_replaced(folder):
    assert artifact_matches(folder, *THING, {"seed": 1}) and (folder / "inner" / "a.txt").read_text() == "1"
    assert names(folder.parent) == ["thing"] and names(folder) == ["inner", "manifest.json"]


def test_work_is_kept_until_the_artifact_has_its_name(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Death):
        patch.setattr(shutil, "rmtree", die)
        make(tmp_path / "thing")
    assert (tmp_path / "thing").is_dir() and (publish.work_folder(tmp_path / "thing") / "kept").is_dir()
    assert artifact_matches(tmp_path / "thing", *THING, {})
    assert names(tmp_path) == ["thing"] and names(tmp_path / "thing") == ["inner", "manifest.json"]


def test_a_run_that_ends_before_its_artifact_has_a_name_resumes(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Death):
        patch.setattr(publish, "sync", die)
        make(tmp_path / "thing")
    with new_artifact(tmp_path / "thing", *THING, {}) as writer:
        assert names(writer.scratch_folder("parts")) == ["one.txt"]


@pytest.mark.parametrize("is_atomic", [True, False])
def test_a_killed_replacement_leaves_one_of_both_and_nothing_beside_it(folder, monkeypatch, is_atomic):
    if not is_atomic:
        monkeypatch.setattr(publish, "_exchange_atomically", lambda *_: False)
    with monkeypatch.context() as patch, pytest.raises(Death):
        patch.setattr(publish, "_remove_work", die)
        replace(folder)
    assert read_manifest(folder, *THING).recipe == {"seed": 1} and publish.work_folder(folder).is_dir()
    assert artifact_matches(folder, *THING, {"seed": 1})
    assert_replaced(folder)


def test_a_replacement_that_fails_leaves_the_older_one(folder, monkeypatch):
    rename = os.replace

    def failing(source, target):
        if (Path(source), Path(target)) == (publish.work_folder(folder) / "new", folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output error"):
        patch.setattr(publish, "_exchange_atomically", lambda *_: False)
        patch.setattr(os, "replace", failing)
        replace(folder)
    assert read_manifest(folder, *THING).recipe == {"seed": 0}
    replace(folder)
    assert_replaced(folder)


def test_what_another_process_is_about_to_name_is_left_alone(folder, monkeypatch):
    exchange = publish._exchange_atomically

    def watched(one, other):
        assert artifact_matches(folder, *THING, {"seed": 0}) and one.is_dir()
        return exchange(one, other)

    monkeypatch.setattr(publish, "_exchange_atomically", watched)
    replace(folder)
    assert_replaced(folder)


def test_a_folder_that_is_in_use_is_not_replaced_and_the_work_is_kept(folder, monkeypatch):
    """As on Windows, where a server has the older one open."""
    rename = os.replace

    def refusing(source, target):
        if Path(source) == folder:
            raise PermissionError(errno.EACCES, "Access is denied", str(source))
        rename(source, target)

    message = "thing cannot be replaced .Access is denied.; close"
    with monkeypatch.context() as patch, pytest.raises(UserError, match=message):
        patch.setattr(publish, "_exchange_atomically", lambda *_: False)
        patch.setattr(os, "replace", refusing)
        replace(folder)
    assert read_manifest(folder, *THING).recipe == {"seed": 0} and publish.work_folder(folder).is_dir()
    with new_artifact(folder, *THING, {"seed": 1}, overwrite=True) as writer:
        assert names(writer.scratch_folder("parts")) == ["one.txt"]


# --- what belongs to others --------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [None, "", '{"made_by": "cit'])
def test_a_work_folder_with_half_its_mark_is_ours(tmp_path, mark):
    half = tmp_path / ".thing.citeweave-80f108ec"  # as who is killed while beginning leaves it
    half.mkdir()
    if mark is not None:
        (half / "owner.json").write_text(mark)
    make(tmp_path / "thing")
    assert names(tmp_path) == ["thing"]


FOREIGN = [{"owner.json": "mine"}, {"owner.json": "{", "thesis.txt": "mine"}, {"thesis.txt": ""}]


@pytest.mark.parametrize("other", FOREIGN)
def test_a_folder_of_such_a_name_without_the_mark_is_left_alone(tmp_path, other):
    alike = tmp_path / ".thing.citeweave-80f108ec"
    alike.mkdir()
    for name, text in other.items():
        (alike / name).write_text(text)
    make(tmp_path / "thing")
    assert names(tmp_path) == [alike.name, "thing"]
    assert {path.name: path.read_text() for path in alike.iterdir()} == other


def test_the_mark_of_a_work_folder_is_not_rewritten(tmp_path, monkeypatch):
    """A kill while it is rewritten would leave a folder with work in it and without its mark."""
    work = publish.create_work_folder(tmp_path / "thing")
    (work / "kept" / "part.txt").write_text("hours of work")
    monkeypatch.setattr(Path, "write_bytes", die)
    assert publish.create_work_folder(tmp_path / "thing") == work == publish.work_folder(tmp_path / "thing")


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_decoys(folder, name):
    """What a user may keep beside an output called `name`."""
    for decoy in (f"{name}.old", f"{name}.partial", f"{name}.new", f".{name}.citeweave-12345678", f"{name}.part"):
        (folder / decoy).mkdir()
        (folder / decoy / "thesis.txt").write_text("precious")
    for decoy in (f"{name}.partial.lock", f"{name}.lock", f".{name}.citeweave-12345679", f".{name}.partial"):
        (folder / decoy).write_text("precious")
    return content(folder)


def test_folders_beside_an_output_stay(tmp_path):
    kept = write_decoys(tmp_path, "corpus")
    make(tmp_path / "corpus", seed=0)
    replace(tmp_path / "corpus")
    assert artifact_matches(tmp_path / "corpus", *THING, {"seed": 1})
    found = content(tmp_path)
    assert {name: found.get(name) for name in kept} == kept
    assert {name.partition("/")[0] for name in found.keys() - kept.keys()} == {"corpus"}


def test_files_beside_an_output_stay(tmp_path):
    kept = write_decoys(tmp_path, "results.json")
    write_json(tmp_path / "results.json", {"a": 1})
    with pytest.raises(ValueError, match="no"), new_file(tmp_path / "results.json") as file:
        file.write(b"half")
        raise ValueError("no")
    found = content(tmp_path)
    assert json.loads(found.pop("results.json")) == {"a": 1} and found == kept


def test_what_is_not_citeweaves_is_not_replaced(folder, tmp_path):
    before = content(folder)
    (folder / "inner" / "notes.txt").write_text("precious")
    refused(r"thing cannot be replaced: .*notes.txt was not written by citeweave", replace, folder)
    assert content(folder) == {**before, "inner/notes.txt": b"precious"}
    page = tmp_path / "extension"
    page.mkdir()
    (page / "manifest.json").write_text(json.dumps({"name": "a page", "files": ["manifest.json"]}))
    refused(r"manifest.json was not written by citeweave", replace, page)
    assert (page / "manifest.json").is_file()
    (tmp_path / "corpus").write_text("precious")
    refused("is a file", publish.check_replaceable, tmp_path / "corpus")


def test_removing_an_artifact_leaves_what_is_not_its_own(folder, tmp_path):
    (folder / "notes.txt").write_text("precious")
    publish.remove_artifact(folder)
    assert content(tmp_path) == {"thing/notes.txt": b"precious"}
    make(tmp_path / "other")
    publish.remove_artifact(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_work_folder_belongs_to_one_output(tmp_path):
    mine = publish.create_work_folder(tmp_path / "corpus")
    (mine / "kept" / "part").write_text("begun")
    mine.rename(mine.with_name(".graph.citeweave-12345678"))  # the owner inside still names the corpus
    publish.remove_leftovers(tmp_path / "graph")
    assert not publish.work_folder(tmp_path / "graph").exists()
    assert (tmp_path / ".graph.citeweave-12345678" / "kept" / "part").read_text() == "begun"


def test_a_work_folder_that_was_begun_is_used(tmp_path):
    (tmp_path / ".corpus.citeweave-12345678").mkdir()  # killed before it could say whose it is
    assert publish.create_work_folder(tmp_path / "corpus").name == ".corpus.citeweave-12345678"
    assert publish.create_work_folder(tmp_path / "corpus") == publish.work_folder(tmp_path / "corpus")
    make(tmp_path / "corpus")
    assert names(tmp_path) == ["corpus"]


def test_a_lock_that_somebody_wrote_into_stays(tmp_path):
    publish.lock_file(tmp_path / "corpus").write_text("precious")
    make(tmp_path / "corpus")
    assert publish.lock_file(tmp_path / "corpus").read_text() == "precious"


def test_links_are_followed_or_refused_before_the_work(tmp_path):
    (tmp_path / "large").mkdir()
    make(tmp_path / "large" / "corpus", seed=0)
    (tmp_path / "corpus").symlink_to(tmp_path / "large" / "corpus")
    replace(tmp_path / "corpus")
    assert (tmp_path / "corpus").is_symlink()
    assert (tmp_path / "large" / "corpus" / "inner" / "a.txt").read_text() == "1"
    (tmp_path / "new").symlink_to(tmp_path / "corpus-of-today")
    make(tmp_path / "new")
    assert (tmp_path / "new").is_symlink() and (tmp_path / "corpus-of-today" / "manifest.json").is_file()
    (tmp_path / "graph").symlink_to(tmp_path / "not-mounted" / "graph")
    refused(r"graph is a link to .*not-mounted/graph, which cannot be created", make, tmp_path / "graph")
    assert not (tmp_path / "not-mounted").exists()
