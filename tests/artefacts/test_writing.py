"""Artifacts appear whole or not at all."""

from __future__ import annotations

import json
import multiprocessing
from contextlib import ExitStack
from pathlib import Path

import pytest

from citeweave.core.artifact import artifact_matches, check_files, new_artifact, read_manifest
from citeweave.core.errors import ArtifactError, EmptyResultError, UserError
from citeweave.core.files import write_json
from citeweave.core.publish import work_folder

RECIPE = {"seed": 1}


def make(folder: Path, text: str = "hello", recipe: dict[str, int] = RECIPE, *, overwrite: bool = False) -> None:
    with new_artifact(folder, "thing", 1, recipe, overwrite=overwrite) as writer:
        (writer.folder / "a.txt").write_text(text)
        (writer.scratch_folder("scratch") / "b.txt").write_text("not part of it")
        writer.facts["words"] = 1
        writer.finish()


def test_an_artifact_has_a_manifest(tmp_path: Path) -> None:
    make(tmp_path / "x")
    manifest = read_manifest(tmp_path / "x", "thing", 1)
    assert manifest.files == {
        "a.txt": {"bytes": 5, "sha256": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}
    }
    assert manifest.facts == {"words": 1} and manifest.recipe == RECIPE
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["a.txt", "manifest.json"]
    assert artifact_matches(tmp_path / "x", "thing", 1, RECIPE) and not artifact_matches(
        tmp_path / "x", "thing", 1, {"seed": 2}
    )


def test_the_hash_is_of_the_content_alone(tmp_path: Path) -> None:
    make(tmp_path / "x")
    make(tmp_path / "y", recipe={"seed": 2})
    make(tmp_path / "z", text="other")
    hashes = [read_manifest(tmp_path / name, "thing", 1).hash for name in "xyz"]
    assert hashes[0] == hashes[1] != hashes[2]


def test_what_fails_leaves_the_old_artifact(tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(RuntimeError), new_artifact(tmp_path / "x", "thing", 1, {"seed": 2}, overwrite=True) as writer:
        (writer.folder / "a.txt").write_text("half of it")
        raise RuntimeError("stop")
    assert (tmp_path / "x" / "a.txt").read_text() == "hello"
    make(tmp_path / "x", text="new", recipe={"seed": 2}, overwrite=True)
    assert (tmp_path / "x" / "a.txt").read_text() == "new"
    assert not work_folder(tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["thing", "other"])
@pytest.mark.parametrize("overwrite", [True, False])
def test_what_came_meanwhile_is_not_replaced(tmp_path: Path, kind: str, overwrite: bool) -> None:
    def put() -> None:
        with new_artifact(tmp_path / "y", kind, 1, {"seed": 2}) as writer:
            (writer.folder / "b.txt").write_text("of another process")
            writer.finish()
        (tmp_path / "y").rename(tmp_path / "x")

    with new_artifact(tmp_path / "x", "thing", 1, RECIPE, overwrite=overwrite) as writer:
        (writer.folder / "a.txt").write_text("hello")
        put()
        if overwrite and kind == "thing":
            writer.finish()
        else:
            with pytest.raises(UserError, match="x holds"):
                writer.finish()
    assert (tmp_path / "x" / "b.txt").exists() != (overwrite and kind == "thing")


@pytest.mark.parametrize("kind", ["thing", "other"])
def test_what_came_before_the_lock_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    import citeweave.core.artifact as writing

    real = writing.take_lock

    def late(path: Path, **options: bool) -> ExitStack:
        monkeypatch.setattr(writing, "take_lock", real)
        with new_artifact(tmp_path / "x", kind, 1, {"seed": 2}) as writer:
            (writer.folder / "b.txt").write_text("of another process")
            writer.finish()
        return real(path, **options)

    monkeypatch.setattr(writing, "take_lock", late)
    with (
        pytest.raises(UserError, match="x holds"),
        new_artifact(tmp_path / "x", "thing", 1, RECIPE) as writer,
    ):
        (writer.folder / "a.txt").write_text("never written")
    assert (tmp_path / "x" / "b.txt").exists()


@pytest.mark.parametrize("error", [UserError, EmptyResultError, KeyboardInterrupt])
@pytest.mark.parametrize("keeps", [True, False])
def test_what_fails_leaves_only_what_helps_the_next_run(
    tmp_path: Path, error: type[BaseException], keeps: bool
) -> None:
    with pytest.raises(error), new_artifact(tmp_path / "a", "corpus", 1, {}) as writer:
        (writer.folder / "data.txt").write_text("begun")
        if keeps:
            (writer.scratch_folder("parts") / "done.txt").write_text("done")
        raise error("stop")
    helps = keeps and error is not EmptyResultError
    assert len(list(tmp_path.iterdir())) == (1 if helps else 0)


def test_what_another_recipe_left_behind_is_not_taken_over(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_artifact(tmp_path / "x", "thing", 1, {"seed": 1}) as writer:
        (writer.folder / "old.txt").write_text("of the first recipe")
        (writer.scratch_folder("scratch") / "old.txt").write_text("of the first recipe")
        (writer.shared_scratch_folder("by-content") / "abc").write_text("of any recipe")
        raise RuntimeError("stop")
    with new_artifact(tmp_path / "x", "thing", 1, {"seed": 2}) as writer:
        assert not list(writer.scratch_folder("scratch").iterdir())
        assert (writer.shared_scratch_folder("by-content") / "abc").read_text() == "of any recipe"
        (writer.folder / "new.txt").write_text("of the second")
        assert list(writer.finish().files) == ["new.txt"]


def test_existing_folders_are_not_written_over(tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(UserError, match="other inputs or options"):
        make(tmp_path / "x", recipe={"seed": 2})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not an artifact"):
        make(tmp_path / "mine")
    with pytest.raises(UserError, match="not an artifact"):
        make(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_changed_files_are_noticed(tmp_path: Path, as_large: None) -> None:
    make(tmp_path / "x")
    manifest = read_manifest(tmp_path / "x", "thing", 1)
    (tmp_path / "x" / "a.txt").write_text("jello")
    check_files(tmp_path / "x", manifest)
    with pytest.raises(ArtifactError, match="has changed"):
        check_files(tmp_path / "x", manifest, content=True)
    (tmp_path / "x" / "a.txt").write_text("longer than before")
    with pytest.raises(ArtifactError, match="another size"):
        check_files(tmp_path / "x", manifest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"kind": "thing"}',
        json.dumps({"kind": [], "version": "x", "recipe": 0, "facts": 0, "files": 0, "made": 0}),
    ],
)
def test_broken_manifests_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError, match="damaged"):
        read_manifest(tmp_path, "thing", 1)


def test_another_kind_or_version_is_named(tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(ArtifactError, match="holds thing, not corpus"):
        read_manifest(tmp_path / "x", "corpus", 1)
    with pytest.raises(ArtifactError, match="version 1; this citeweave reads version 2"):
        read_manifest(tmp_path / "x", "thing", 2)
    with pytest.raises(ArtifactError, match="does not exist"):
        read_manifest(tmp_path / "nothing", "thing", 1)


def _hold(folder: Path, holding: object, done: object) -> None:
    with new_artifact(folder, "thing", 1, RECIPE):
        holding.set()  # type: ignore[attr-defined]
        done.wait(600)  # type: ignore[attr-defined]


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    holding, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "x", holding, done))
    other.start()
    try:
        assert holding.wait(600)
        with pytest.raises(UserError, match="another process"):
            make(tmp_path / "x")
    finally:
        done.set()
        other.join()


def test_changed_files_of_a_small_artifact_are_noticed_at_opening(tmp_path: Path) -> None:
    make(tmp_path / "x")
    manifest = read_manifest(tmp_path / "x", "thing", 1)
    check_files(tmp_path / "x", manifest)
    (tmp_path / "x" / "a.txt").write_text("jello")
    with pytest.raises(ArtifactError, match="has changed"):
        check_files(tmp_path / "x", manifest)


def test_a_changed_manifest_is_noticed_and_one_without_seal_is_not_refused(tmp_path: Path) -> None:
    make(tmp_path / "x")
    path = tmp_path / "x" / "manifest.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "recipe": {"seed": 8}}))
    with pytest.raises(ArtifactError, match="manifest.json is damaged: it has changed"):
        read_manifest(tmp_path / "x", "thing", 1)
    seal = told.pop("seal")
    path.write_text(json.dumps(told))
    assert read_manifest(tmp_path / "x", "thing", 1).recipe == told["recipe"]
    path.write_text(json.dumps({**told, "sea,": seal, "recipe": {"seed": 8}}))
    with pytest.raises(ArtifactError, match="manifest.json is damaged: it has changed"):
        read_manifest(tmp_path / "x", "thing", 1)


def test_json_is_written_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": "é"})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": "é"}


def test_an_artifact_inside_another_counts_by_its_hash(tmp_path: Path) -> None:
    def make(name: str, value: str) -> Path:
        with new_artifact(tmp_path / name, "outer", 1, {}) as writer:
            (writer.folder / "own.txt").write_text("own")
            with new_artifact(writer.folder / "inner", "part", 1, {}) as inner:
                (inner.folder / "value.txt").write_text(value)
                inner.finish()
            writer.finish()
        return tmp_path / name

    first, second, third = make("a", "1"), make("b", "1"), make("c", "2")
    made = json.loads((second / "inner" / "manifest.json").read_text())
    made["made"]["at"] = "another time"
    (second / "inner" / "manifest.json").write_text(json.dumps(made))
    manifests = [read_manifest(folder, "outer", 1) for folder in (first, second, third)]
    assert manifests[0].hash == manifests[1].hash != manifests[2].hash
    check_files(second, manifests[1], content=True)
    (first / "inner" / "value.txt").write_text("9")
    with pytest.raises(ArtifactError, match="value.txt is damaged: it has changed"):
        check_files(first, manifests[0], content=True)
    with pytest.raises(ArtifactError, match="is not the part"):
        check_files(third, manifests[0])
