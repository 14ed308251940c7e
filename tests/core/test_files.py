"""Files that users name are opened in one place; files are written complete; locks have one owner."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import filelock
import pytest

from citeweave import Corpus, import_papers, load_recipe
from citeweave.cli import index
from citeweave.cli.similar import PaperSentences
from citeweave.core import files
from citeweave.core.artifact import read_manifest
from citeweave.core.files import LockedError, hash_file, open_input, read_input, take_lock, write_json
from citeweave.core.inputs import Source, open_parquet
from citeweave.core.progress import QUIET
from citeweave.corpus.readers import guess_format
from citeweave.encoders.model_folder import read_model_folder
from citeweave.encoders.paper_texts import FullText
from citeweave.evaluation.open_system import looks_like_scores, read_scores
from citeweave.evaluation.suites import benchmark_files as suite_files
from citeweave.intents.examples import read_records
from citeweave.mining import formats as sample_files
from citeweave.mining.inputs import read_rows
from citeweave.mining.tables import read_table
from citeweave.search.reviewers import read_conflicts, read_people
from citeweave.vectors.formats import import_vectors

from .conftest import names, refused

SECONDS = 120
"""A guard against waiting forever, not a limit."""

READERS = {
    "import": lambda path, _: import_papers([path], path.with_name("out")),
    "import --format": lambda path, _: guess_format(Source(path)),
    "import --vectors": lambda path, _: import_vectors([path], path.with_name("out"), model="m"),
    "change --delete": lambda path, _: index._read_ids(path),
    "match --reviewers": lambda path, _: read_people(path),
    "match --conflicts": lambda path, _: read_conflicts(path),
    "mine --anchors": lambda path, corpus: read_rows(path, corpus, "--anchors", QUIET),
    "mine --tables": lambda path, corpus: read_table(path, corpus),
    "mine --recipe": lambda path, _: load_recipe(str(path), []),
    "convert": lambda path, _: sample_files._head(path),
    "evaluate --scores": lambda path, _: read_scores([path], name="scores"),
    "evaluate --vectors": lambda path, _: looks_like_scores(path.rename(path.with_suffix(".json"))),
    "evaluate --suite": lambda path, _: suite_files.read_json(path),
    "embed --full-text": lambda path, corpus: FullText.index(path, corpus),
    "similar --texts": lambda path, _: PaperSentences(path).find(["a"]),
    "annotate": lambda path, _: list(read_records(path)),
    "parquet": lambda path, _: open_parquet(path),
    "hash": lambda path, _: hash_file(path),
    "bytes": lambda path, _: read_input(path),
}


@pytest.fixture
def no_waiting():
    def fail(*_):
        raise TimeoutError("still waiting for a pipe")

    if not hasattr(signal, "SIGALRM"):
        pytest.skip("no pipes with names on this system")
    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def imported(place):
    (place / "papers.jsonl").write_text('{"id": "a", "title": "One"}\n')
    return import_papers(place / "papers.jsonl", place / "corpus").corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return imported(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_that_nobody_writes_to_is_refused(name, corpus, tmp_path, no_waiting):
    pipe = tmp_path / "input.jsonl"
    os.mkfifo(pipe)
    refused("pipe|is no file|does not exist", READERS[name], pipe, corpus)


def test_devices_are_refused_and_folders_are_named_as_such(tmp_path, no_waiting):
    refused("/dev/zero is a pipe or a device", open_input, Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        open_input(tmp_path)
    (tmp_path / "file").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_input(tmp_path / "link") == b"bytes"


@pytest.mark.parametrize("name", ["manifest.json", "papers/title.utf8", "papers/year.npy"])
def test_a_pipe_inside_an_artifact_is_refused(name, tmp_path, no_waiting):
    folder = imported(tmp_path).folder
    (folder / name).unlink()
    os.mkfifo(folder / name)
    for read in (
        lambda: read_manifest(folder, "corpus", 1),
        lambda: Corpus.open(folder),
        lambda: read_input(folder / name),
    ):
        refused("pipe", read)


def test_a_pipe_inside_a_model_is_refused(tmp_path, no_waiting):
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "tokenizer.json")
    refused("tokenizer.json is a pipe", read_model_folder, tmp_path)


# --- writing -----------------------------------------------------------------------------------------


def test_json_is_written_complete(tmp_path):
    write_json(tmp_path / "a.json", {"a": "é"})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": "é"}


def test_a_name_that_is_taken_for_a_moment_is_waited_for(tmp_path, monkeypatch):
    """As on Windows, where somebody reads the file just now."""
    replace, refusals = os.replace, 3

    def busy(source, target):
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            error = PermissionError(errno.EACCES, "Access is denied", str(source))
            error.winerror = 5
            raise error
        replace(source, target)

    monkeypatch.setattr(os, "replace", busy)
    write_json(tmp_path / "state.json", {"number": 1})
    assert refusals == -1 and names(tmp_path) == ["state.json"]


# --- locks -------------------------------------------------------------------------------------------

OWNER = """
import sys, time
from pathlib import Path
from citeweave.core.files import take_lock
with take_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def assert_one_owner(path, wait=0.0):
    with take_lock(path), pytest.raises(LockedError):
        take_lock(path, wait=wait)
    with take_lock(path):
        pass


def test_one_owner_at_a_time(tmp_path, monkeypatch):
    assert_one_owner(tmp_path / "new" / ".lock")
    assert names(tmp_path / "new") == [".lock"]

    def missing(descriptor, *, blocking):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(filelock, "lock_descriptor", missing)  # a file system without locks
    (tmp_path / "other").mkdir()
    assert_one_owner(tmp_path / "other" / ".lock", wait=0.1)
    assert names(tmp_path / "other") == [".lock"]


def test_the_lock_of_a_killed_owner_is_free(tmp_path):
    path = tmp_path / ".lock"
    with subprocess.Popen([sys.executable, "-c", OWNER, path], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "held\n"
        with pytest.raises(LockedError):
            take_lock(path, wait=0.1)
        owner.kill()
        with take_lock(path, wait=30):
            pass


def test_who_waits_for_a_lock_that_is_removed_gets_the_one_at_its_place(tmp_path):
    """Two owners at once would be the fault: of the file that was removed, and of the one that has its name now."""
    path, inside, owners = tmp_path / "folder" / ".lock", [], []

    def work():
        for _ in range(20):
            with take_lock(path, wait=60, remove=True):
                inside.append(1)
                owners.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert owners == [1] * 80 and not path.exists()


def test_a_lock_that_is_replaced_is_taken_anew(tmp_path, monkeypatch):
    """Between opening and locking another folder comes in the place of the one with the lock."""
    folder, lock_descriptor = tmp_path / "folder", filelock.lock_descriptor
    folder.mkdir()

    def late(descriptor, *, blocking):
        if not (tmp_path / "old").exists():
            folder.rename(tmp_path / "old")
        return lock_descriptor(descriptor, blocking=blocking)

    monkeypatch.setattr(filelock, "lock_descriptor", late)
    with take_lock(folder / ".lock"):
        monkeypatch.undo()
        with pytest.raises(LockedError):
            take_lock(folder / ".lock")
        with take_lock(tmp_path / "old" / ".lock"):
            pass


def test_files_of_others_are_neither_written_nor_removed(tmp_path):
    (tmp_path / "notes").write_text("years of work")
    os.link(tmp_path / "notes", tmp_path / "x.lock")
    with take_lock(tmp_path / "x.lock", remove=True):
        pass
    assert (tmp_path / "x.lock").read_text() == "years of work"
    (tmp_path / "y.lock").symlink_to(tmp_path / "notes")
    with pytest.raises(OSError) as caught:
        take_lock(tmp_path / "y.lock")
    assert caught.value.errno == errno.ELOOP


def test_a_file_is_hashed_once_until_it_changes(tmp_path, monkeypatch):
    path, read = tmp_path / "weights", []
    path.write_bytes(b"one")
    monkeypatch.setattr(files, "hash_file", lambda path: read.append(path) or path.read_bytes().hex())
    assert [files.hash_once(path) for _ in range(2)] == [b"one".hex()] * 2 and len(read) == 2, "it was just written"
    os.utime(path, (0, 0))
    assert [files.hash_once(path) for _ in range(2)] == [b"one".hex()] * 2 and len(read) == 3
    path.write_bytes(b"two")
    assert files.hash_once(path) == b"two".hex()
