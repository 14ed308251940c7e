"""Folders there and back over HTTP: same bytes, only what is missing travels, never half an artifact."""

import os
import shutil
import time
from contextlib import contextmanager

import pytest

from citeweave.core import publish
from citeweave.core.artifact import check_files, read_manifest
from citeweave.core.errors import ArtifactError, InputError, UserError
from citeweave.core.progress import Reporter
from citeweave.core.publish import work_folder
from citeweave.remote.fetch import LISTING_NAME, CacheSlot, clear_cache_entry, fetch, list_cache
from citeweave.remote.object_storage import Address
from citeweave.remote.push import copy, push

from ..conftest import refused
from .conftest import content, make_artifact

PARTS = {f"{number}.bin": bytes([number]) * 1000 for number in range(40)}


class Watching(Reporter):
    """Does something when files begin to travel, or breaks off after so many bytes."""

    def __init__(self, begin=lambda: None, max_bytes=float("inf")):
        super().__init__(quiet=True)
        self.begin, self.max_bytes, self.moved = begin, max_bytes, 0

    @contextmanager
    def task(self, label, total=None, unit=""):
        self.begin()
        self.begin = lambda: None

        def advance(amount):
            if self.moved + amount > self.max_bytes:
                raise ConnectionResetError("the cable was cut")
            self.moved += amount

        yield advance


def left_behind(folder):
    """Work folders and old versions beside a copy."""
    return [path for path in folder.iterdir() if path.name.startswith((".back.", "back."))]


def test_there_and_back(address, tmp_path, keys):
    several_chunks = bytes(range(256)) * (9 << 12)
    folder = make_artifact(tmp_path / "made", {"papers/text.gz": b"not gzip", "big.bin": several_chunks})
    done = push(folder, address)
    assert (done.files, done.sent) == (3, 3)
    assert keys() == {f"thing/{name}" for name in ("manifest.json", "papers/text.gz", "big.bin", LISTING_NAME)}
    found = fetch(address)
    assert found.name == "thing" and content(found) == content(folder)
    check_files(found, read_manifest(found, "thing", 1), content=True)
    again = Watching()
    assert fetch(address, reporter=again) == found and again.moved == 0
    # the same again sends nothing, and another is refused
    assert push(folder, address).sent == 0
    with pytest.raises(UserError, match="holds another artifact; .*--overwrite"):
        push(make_artifact(tmp_path / "other", {"papers/year.npy": b"2001"}), address)
    assert content(fetch(address)) == content(folder)


def test_overwriting_sends_what_is_new_and_removes_what_is_not_used(address, put, folder, keys):
    push(folder, address)
    put({"notes.txt": b"somebody's own"})
    old, was = fetch(address), content(folder)
    make_artifact(folder, {"papers/year.npy": b"2020", "big.bin": bytes(50_000), "new.bin": b"n"})
    done = push(folder, address, overwrite=True)
    assert done.sent == 3, "the big file is there already"
    assert done.sent_bytes < 2000
    watching = Watching()
    new = fetch(address, reporter=watching)
    assert content(new) == content(folder)
    assert watching.moved == done.sent_bytes, "the big file is in the cache already"
    assert content(old) == was, "whoever has the old version open keeps it"
    assert (old / "big.bin").samefile(new / "big.bin")
    assert "thing/notes.txt" in keys() and "thing/papers/year.npy" not in keys()
    push(make_artifact(folder, {"papers/year.npy": b"1999"}), address, overwrite=True)
    assert content(fetch(address)) == content(folder)
    assert not any("big.bin" in key for key in keys())


def test_a_push_that_breaks_off_leaves_the_old_artifact_and_resumes(address, folder, keys):
    with pytest.raises(ConnectionResetError):
        push(folder, address, reporter=Watching(max_bytes=5000))
    assert push(folder, address).sent >= 1
    was = content(folder)
    assert content(fetch(address)) == was
    make_artifact(folder, {"papers/year.npy": b"2020", **PARTS})
    with pytest.raises(ConnectionResetError):
        push(folder, address, overwrite=True, reporter=Watching(max_bytes=25_000))
    assert content(fetch(address)) == was and len(keys()) > 10
    done = push(folder, address, overwrite=True)
    assert 10 < done.sent < 35, "those that had arrived do not travel again"
    assert content(fetch(address)) == content(folder)


def test_what_an_earlier_push_began_is_not_taken_for_the_next_ones_files(address, tmp_path):
    """Both have files of the same names and sizes, and neither push was complete."""
    first, second = (make_artifact(tmp_path / name, {k: v + name.encode() for k, v in PARTS.items()}) for name in "ab")
    with pytest.raises(ConnectionResetError):
        push(first, address, reporter=Watching(max_bytes=20_000))
    for most in (0, 10_000):
        with pytest.raises(ConnectionResetError):
            push(second, address, reporter=Watching(max_bytes=most))
    push(second, address)
    assert content(fetch(address)) == content(second)
    push(first, address, overwrite=True)
    assert content(fetch(address)) == content(first)


def test_a_fetch_that_breaks_off_shows_nothing_and_resumes(address, tmp_path):
    made = make_artifact(tmp_path / "thing", PARTS)
    push(made, address)
    with pytest.raises(ConnectionResetError):
        fetch(address, reporter=Watching(max_bytes=20_000))
    assert not (CacheSlot(Address.parse(address)).folder / "versions").exists()
    again = Watching()
    assert content(fetch(address, reporter=again)) == content(made)
    assert 15_000 < again.moved < 35_000


def test_an_artifact_replaced_while_it_is_fetched_comes_complete(address, folder, tmp_path):
    push(folder, address)
    other = make_artifact(tmp_path / "other", {"papers/year.npy": b"2020"})
    replace = Watching(begin=lambda: push(other, address, overwrite=True, cache=tmp_path / "two"))
    assert content(fetch(address, reporter=replace)) == content(other)


def test_damaged_objects_are_named(bucket, address, put, folder):
    push(folder, address)
    for data, message in ((b"19", "has 2 bytes, 4 were expected"), (b"2001", "its hash differs")):
        put({"papers/year.npy": data})
        refused(rf"papers/year\.npy .*{message}", fetch, address, error=InputError)
    push(folder, f"{address}2")
    bucket.Object("thing2/big.bin").delete()
    refused(r"thing2/big\.bin does not exist", fetch, f"{address}2", error=InputError)


def test_a_folder_that_another_program_uploaded(address, put, folder):
    put(content(folder))
    assert content(fetch(address)) == content(folder)
    refused("holds another artifact", push, folder, address)
    push(folder, address, overwrite=True)
    assert content(fetch(address)) == content(folder)
    put({"manifest.json": (folder / "manifest.json").read_bytes(), "papers/year.npy": b"19"}, "thing2/")
    with pytest.raises(ArtifactError, match=r"year\.npy has 2 bytes, its manifest says 4|big\.bin does not exist"):
        fetch(f"{address}2")


def test_objects_of_others_are_not_written_over(bucket, address, put, folder):
    put({"big.bin": b"mine"})
    refused("holds objects that are no artifact", push, folder, address)
    push(folder, address, overwrite=True)
    assert bucket.Object("thing/big.bin").get()["Body"].read() == b"mine"
    assert content(fetch(address)) == content(folder)


def test_copy_both_ways_and_from_bucket_to_bucket(address, folder, tmp_path):
    back = tmp_path / "back"
    assert copy(folder, address).sent == 3 and copy(address, back).files == 3
    assert content(back) == content(folder) and not work_folder(back).exists()
    refused("exists; choose another place", copy, address, back)
    copy(address, back, overwrite=True)
    assert not left_behind(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    refused("is not an artifact", copy, address, tmp_path / "mine", overwrite=True)
    copy(address, f"{address}/two")
    assert content(fetch(f"{address}/two")) == content(folder)
    refused("both local", copy, folder, tmp_path / "c")
    # a copy does not share files with the cache
    kept = fetch(address)
    assert copy(address, tmp_path / "again").sent == 0
    (tmp_path / "again" / "papers" / "year.npy").write_bytes(b"2001")
    assert (kept / "papers" / "year.npy").read_bytes() == b"1999"


def test_a_copy_does_not_replace_what_came_meanwhile(address, folder, tmp_path):
    copy(folder, address)

    other = make_artifact(tmp_path / "other", {"papers/year.npy": b"1999"})
    with pytest.raises(UserError, match="exists; choose another place"):
        copy(address, tmp_path / "back", reporter=Watching(begin=lambda: other.rename(tmp_path / "back")))
    assert (tmp_path / "back" / "papers" / "year.npy").read_bytes() == b"1999"


@pytest.mark.parametrize("at", ["_exchange_atomically", "_remove_work"])
def test_a_copy_that_is_killed_while_it_replaces_leaves_one_of_both(address, folder, tmp_path, monkeypatch, at):
    older, target = content(folder), tmp_path / "back"
    copy(folder, address)
    copy(address, target)
    copy(make_artifact(folder, {"papers/year.npy": b"2020"}), address, overwrite=True)

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(publish, at, die)
        copy(address, target, overwrite=True)
    assert content(target) == (older if at == "_exchange_atomically" else content(folder))
    copy(address, target, overwrite=True)
    assert content(target) == content(folder) and not left_behind(tmp_path)


def test_a_copy_out_of_the_cache_that_breaks_off_is_not_trusted(address, folder, tmp_path, monkeypatch):
    push(folder, address)
    fetch(address)

    def full_disk(source, target):
        target.write_bytes(source.read_bytes()[:2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(shutil, "copyfile", full_disk)
        copy(address, tmp_path / "back")
    copy(address, tmp_path / "back")
    assert content(tmp_path / "back") == content(folder)


def test_a_file_that_breaks_off_leaves_the_old_one(bucket, tmp_path, keys, monkeypatch):
    monkeypatch.setattr("citeweave.remote.push.CHUNK", 1000)
    path, address = tmp_path / "page.html", f"s3://{bucket.name}/page.html"
    path.write_bytes(b"old" * 1000)
    push(path, address)
    path.write_bytes(b"new" * 2000)
    for place in (address, f"s3://{bucket.name}/new.html"):
        with pytest.raises(ConnectionResetError):
            push(path, place, overwrite=place == address, reporter=Watching(max_bytes=2000))
        assert fetch(address).read_bytes() == b"old" * 1000 and keys() == {"page.html"}
    push(path, address, overwrite=True)
    assert bucket.Object("page.html").get()["Body"].read() == b"new" * 2000


def test_single_files(bucket, tmp_path):
    path, address = tmp_path / "ids.txt", f"s3://{bucket.name}/lists/ids.txt"
    path.write_text("one\n")
    copy(path, address)
    assert fetch(address).read_text() == "one\n"
    refused("already exists", copy, path, address)
    copy(address, tmp_path / "cache")
    assert (tmp_path / "cache" / "ids.txt").read_text() == "one\n"
    time.sleep(1.1)  # the server knows whole seconds
    path.write_text("two\n")
    copy(path, address, overwrite=True)
    assert fetch(address).read_text() == "two\n"


def test_patterns(bucket, put):
    put({name: name.encode() for name in ("d/a.gz", "d/b.gz", "d/c.txt", "d/e/f.gz", "d/.hidden.gz")}, under="")
    assert content(fetch(f"s3://{bucket.name}/d/*.gz")) == {"a.gz": b"d/a.gz", "b.gz": b"d/b.gz"}
    assert content(fetch(f"s3://{bucket.name}/*/*/[f]*")) == {"d/e/f.gz": b"d/e/f.gz"}
    refused("matches no object", fetch, f"s3://{bucket.name}/d/*.zip", error=InputError)


def test_damaged_and_linked_files_are_not_sent(address, folder, tmp_path):
    for data, message in ((b"2001", r"year\.npy has changed since"), (b"1", "another size than its manifest says")):
        (folder / "papers" / "year.npy").write_bytes(data)
        refused(message, push, folder, address)
        refused("does not exist", fetch, f"{address}/nothing", error=InputError)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "passwd").symlink_to("/etc/passwd")
    refused("is a link", push, tmp_path / "links", f"{address}/links")


def test_old_versions_go_by_age_and_all_by_command(address, folder):
    push(folder, address)
    old = fetch(address)
    os.utime(old.parent.parent, (0, 0))
    push(make_artifact(folder, {"a": b"1"}), address, overwrite=True)
    new = fetch(address)
    assert not old.exists() and new.exists()
    (slot,) = list_cache()
    assert slot.address == address and slot.versions == 1
    with CacheSlot(Address.parse(address)).locked():
        assert not clear_cache_entry(slot)
    assert clear_cache_entry(slot) and not new.exists()
