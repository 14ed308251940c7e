"""Nothing that citeweave did not write is replaced or removed, whatever it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citeweave.core.artifact import artifact_matches, new_artifact
from citeweave.core.errors import UserError
from citeweave.core.files import new_file, write_json
from citeweave.core.publish import (
    check_replaceable,
    create_work_folder,
    lock_file,
    remove_artifact,
    remove_leftovers,
    work_folder,
)


def make(folder: Path, text: str = "one", *, overwrite: bool = False) -> None:
    with new_artifact(folder, "demo", 1, {"text": text}, overwrite=overwrite) as writer:
        (writer.folder / "inner").mkdir()
        (writer.folder / "inner" / "data.txt").write_text(text)
        writer.finish()


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_decoys(folder: Path, name: str) -> dict[str, bytes]:
    """What a user may keep beside an output called `name`."""
    for decoy in (f"{name}.old", f"{name}.partial", f"{name}.new", f".{name}.citeweave-12345678", f"{name}.part"):
        (folder / decoy).mkdir()
        (folder / decoy / "thesis.txt").write_text("precious")
    for decoy in (f"{name}.partial.lock", f"{name}.lock", f".{name}.citeweave-12345679", f".{name}.partial"):
        (folder / decoy).write_text("precious")
    return content(folder)


def test_folders_beside_an_output_stay(tmp_path: Path) -> None:
    kept = write_decoys(tmp_path, "corpus")
    make(tmp_path / "corpus", "one")
    make(tmp_path / "corpus", "two", overwrite=True)
    assert artifact_matches(tmp_path / "corpus", "demo", 1, {"text": "two"})
    found = content(tmp_path)
    assert {name: found.get(name) for name in kept} == kept
    assert {name.partition("/")[0] for name in found.keys() - kept.keys()} == {"corpus"}


def test_files_beside_an_output_stay(tmp_path: Path) -> None:
    kept = write_decoys(tmp_path, "results.json")
    write_json(tmp_path / "results.json", {"a": 1})
    with pytest.raises(ValueError, match="no"), new_file(tmp_path / "results.json") as file:
        file.write(b"half")
        raise ValueError("no")
    found = content(tmp_path)
    assert json.loads(found.pop("results.json")) == {"a": 1} and found == kept


def test_an_artifact_is_not_replaced_where_somebody_put_a_file_into_it(tmp_path: Path) -> None:
    make(tmp_path / "corpus")
    (tmp_path / "corpus" / "inner" / "notes.txt").write_text("precious")
    with pytest.raises(UserError, match=r"corpus cannot be replaced: .*notes.txt was not written by citeweave"):
        make(tmp_path / "corpus", "two", overwrite=True)
    assert (tmp_path / "corpus" / "inner" / "notes.txt").read_text() == "precious"
    assert (tmp_path / "corpus" / "inner" / "data.txt").read_text() == "one"


def test_a_folder_with_the_manifest_of_another_program_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "extension"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"name": "a page", "files": ["manifest.json"]}))
    with pytest.raises(UserError, match=r"manifest.json was not written by citeweave"):
        make(folder, overwrite=True)
    assert (folder / "manifest.json").is_file()


def test_removing_an_artifact_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    make(tmp_path / "corpus")
    (tmp_path / "corpus" / "notes.txt").write_text("precious")
    remove_artifact(tmp_path / "corpus")
    assert content(tmp_path) == {"corpus/notes.txt": b"precious"}
    make(tmp_path / "other")
    remove_artifact(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_work_folder_belongs_to_one_output(tmp_path: Path) -> None:
    mine = create_work_folder(tmp_path / "corpus")
    (mine / "kept" / "part").write_text("begun")
    mine.rename(mine.with_name(".graph.citeweave-12345678"))  # the owner inside still names the corpus
    remove_leftovers(tmp_path / "graph")
    assert not work_folder(tmp_path / "graph").exists()
    assert (tmp_path / ".graph.citeweave-12345678" / "kept" / "part").read_text() == "begun"


def test_a_work_folder_that_was_begun_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / ".corpus.citeweave-12345678").mkdir()  # killed before it could say whose it is
    assert create_work_folder(tmp_path / "corpus").name == ".corpus.citeweave-12345678"
    assert create_work_folder(tmp_path / "corpus") == work_folder(tmp_path / "corpus")
    make(tmp_path / "corpus")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_a_lock_that_somebody_wrote_into_stays(tmp_path: Path) -> None:
    lock_file(tmp_path / "corpus").write_text("precious")
    make(tmp_path / "corpus")
    assert lock_file(tmp_path / "corpus").read_text() == "precious"


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    make(tmp_path / "large" / "corpus")
    (tmp_path / "corpus").symlink_to(tmp_path / "large" / "corpus")
    make(tmp_path / "corpus", "two", overwrite=True)
    assert (tmp_path / "corpus").is_symlink()
    assert (tmp_path / "large" / "corpus" / "inner" / "data.txt").read_text() == "two"


def test_a_link_to_nothing_is_made_there_or_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "corpus").symlink_to(tmp_path / "corpus-of-today")
    make(tmp_path / "corpus")
    assert (tmp_path / "corpus").is_symlink() and (tmp_path / "corpus-of-today" / "manifest.json").is_file()
    (tmp_path / "graph").symlink_to(tmp_path / "not-mounted" / "graph")
    with pytest.raises(UserError, match=r"graph is a link to .*not-mounted/graph, which cannot be created"):
        make(tmp_path / "graph")
    assert not (tmp_path / "not-mounted").exists()


def test_a_file_is_no_folder_to_replace(tmp_path: Path) -> None:
    (tmp_path / "corpus").write_text("precious")
    with pytest.raises(UserError, match="is a file"):
        check_replaceable(tmp_path / "corpus")
