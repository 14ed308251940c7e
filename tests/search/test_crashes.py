"""Writers that fail at any step leave an index whole; readers see some whole state meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import ArtifactError, UserError
from citeweave.search import state
from citeweave.search.build import IndexOptions, build_index
from citeweave.search.fill_vectors import fill_vectors
from citeweave.search.index import Index
from citeweave.search.state import open_writer, read_state
from citeweave.search.update import ChangeOptions, add_papers, compact_index, delete_papers, update_index

from .conftest import write_corpus
from .test_changing import answers, ids_of

pytestmark = pytest.mark.usefixtures("one_text_per_batch")


class Death(BaseException):
    """A process that ends at once."""


class Faults:
    """Counts what reaches the disk and dies at a given step; a dead process does nothing more, not even cleaning up."""

    STEPS = (
        (os, "fsync"),
        (os, "link"),
        (Path, "replace"),
        (Path, "rename"),
        (Path, "unlink"),
        (Path, "mkdir"),
        (shutil, "rmtree"),
    )

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.count, self.at = 0, at
        for owner, name in self.STEPS:
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count >= self.at:
                raise Death
            return real(*arguments, **options)

        return step


def steps_of(change: Any, folder: Path, patch: pytest.MonkeyPatch, at: int = 10**9) -> int:
    """Run a change that dies at a step; how many steps there were."""
    with patch.context() as inner:
        faults = Faults(inner, at)
        try:
            change(folder)
        except Death:
            assert at < 10**9
    return faults.count


@pytest.mark.parametrize("what", ["add", "update", "delete", "compact", "fill"])
def test_a_writer_that_dies_at_any_step_leaves_the_old_or_the_new(versions, bert, encoder, tmp_path, monkeypatch, what):
    how, first, second = ChangeOptions(encoder=encoder), versions[0].corpus, versions[1].corpus
    changes = {
        "add": lambda folder: add_papers(folder, second, np.arange(4), options=how),
        "update": lambda folder: update_index(folder, second, options=how),
        "delete": lambda folder: delete_papers(folder, first.ids.take(np.arange(3))),
        "compact": compact_index,
        "fill": lambda folder: fill_vectors(folder, shard=6, model=encoder),
    }
    change, start = changes[what], tmp_path / "start"
    build_index(first, bert, start, IndexOptions(device="cpu", vectors=what != "fill"))
    if what == "compact":
        delete_papers(start, first.ids.take(np.arange(2)))
        add_papers(start, second, np.arange(2), vectors=False)
    old = answers(Index.open(start))
    whole = Path(shutil.copytree(start, tmp_path / "whole"))
    steps = steps_of(change, whole, monkeypatch)
    new = answers(Index.open(whole))
    assert steps > 3 and (old != new) == (what != "compact")
    for at in np.unique(np.linspace(1, steps, 6).astype(int)).tolist():
        folder = Path(shutil.copytree(start, tmp_path / "broken"))
        steps_of(change, folder, monkeypatch, at)
        left = answers(Index.open(folder))
        # filling has a state a shard
        assert left in (old, new) or what == "fill", f"a third state after step {at} of {steps}"
        assert _papers(left) in (_papers(old), _papers(new))
        change(folder)
        index = Index.open(folder)
        assert answers(index) == new, f"the same change after step {at} of {steps} ends elsewhere"
        assert sorted(path.name for path in (folder / "segments").iterdir()) == sorted(s.name for s in index.segments)
        lists = sum(1 for entry in index.state.segments if entry.deleted)
        assert not (folder / "deleted").is_dir() or len(list((folder / "deleted").iterdir())) == lists
        shutil.rmtree(folder)


def test_a_build_that_dies_goes_on(versions, bert, tmp_path, monkeypatch):
    build = lambda folder: build_index(versions[0].corpus, bert, folder, IndexOptions(device="cpu"))  # noqa: E731
    steps = steps_of(build, tmp_path / "whole", monkeypatch)
    for at in (1, steps // 3, steps - 3):
        folder = tmp_path / f"broken{at}"
        steps_of(build, folder, monkeypatch, at)
        if not (folder / "state.json").exists():
            with pytest.raises(ArtifactError, match="interrupted|does not exist|is not an index"):
                Index.open(folder)
        assert ids_of(build(folder)) == ids_of(Index.open(tmp_path / "whole"))


def test_reading_while_a_writer_works(versions, bert, encoder, tmp_path):
    """What was opened stays as it was; what is opened meanwhile is some whole state."""
    folder, how = tmp_path / "index", ChangeOptions(encoder=encoder)
    opened = build_index(versions[0].corpus, bert, folder, IndexOptions(device="cpu"))
    before, seen, stop = answers(opened), list[tuple[int, tuple[str, ...]]](), threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        index = Index.open(folder)
        try:
            while not stop.is_set():
                index = index.fresh() if len(seen) % 2 else Index.open(folder)
                seen.append((index.number, tuple(ids_of(index))))
        except BaseException as error:
            problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    known = {tuple(ids_of(opened))}
    try:
        for number in (1, 2, 3):
            corpus = versions[number].corpus
            for change in (
                lambda: update_index(folder, corpus, options=how),  # noqa: B023
                lambda: delete_papers(folder, corpus.ids.take(np.arange(2))),  # noqa: B023
                lambda: compact_index(folder),
            ):
                change()
                known.add(tuple(sorted(ids_of(Index.open(folder)))))
    finally:
        stop.set()
        reader.join()
    assert not problems, problems
    assert {tuple(sorted(ids)) for _, ids in seen} <= {tuple(sorted(ids)) for ids in known}
    assert [number for number, _ in seen] == sorted(number for number, _ in seen)
    assert answers(opened) == before and not opened.is_current() and opened.fresh().number > opened.number
    fresh = opened.fresh()
    assert fresh.fresh() is fresh
    delete_papers(folder, [fresh.id(0)])
    assert fresh.fresh().segments[0].ids is fresh.segments[0].ids, "a segment that did not change was opened again"


def test_one_writer_at_a_time(made, tmp_path):
    folder = Path(shutil.copytree(made.index.folder, tmp_path / "index"))
    with (
        open_writer(folder),
        pytest.raises(UserError, match="is being written by another process"),
        open_writer(folder, patience=0.1),
    ):
        pass
    with pytest.raises(ArtifactError, match="does not exist"):
        delete_papers(tmp_path / "nowhere", ["a"])


def test_no_index_is_begun_in_what_came_before_the_lock(made, tmp_path, monkeypatch):
    real = state.take_lock

    def late(path, **options):
        shutil.copytree(made.corpus.folder, path.parent, dirs_exist_ok=True)
        return real(path, **options)

    monkeypatch.setattr(state, "take_lock", late)
    with pytest.raises(UserError, match="which index must not replace"), open_writer(tmp_path / "x", create=True):
        pass
    names = [sorted(path.name for path in folder.iterdir()) for folder in (tmp_path / "x", made.corpus.folder)]
    assert names[0] == names[1], "something was left in another's folder"


def test_a_full_disk_leaves_the_old_state(made, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(made.index.folder, tmp_path / "index"))
    number = read_state(folder).number
    fewer = write_corpus(tmp_path / "fewer", {"n": {"id": "n", "title": "a new cell"}}, {"n": ["x"]})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for change in (lambda: delete_papers(folder, ["p:0"]), lambda: update_index(folder, fewer, vectors=False)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space left"):
                change()
        assert read_state(folder).number == number and ids_of(Index.open(folder)) == ids_of(made.index)
    assert delete_papers(folder, ["p:0"]) == 1 and len(list((folder / "segments").iterdir())) == 1


def _papers(told: dict[str, Any]) -> set[str]:
    return {name for name in told if name.startswith("p:")}
