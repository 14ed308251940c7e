"""Folders there and back over HTTP: same bytes, only what is missing travels, never half an artifact."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from citeweave.core import publish
from citeweave.core.artifact import check_files, read_manifest
from citeweave.core.errors import ArtifactError, InputError, UserError
from citeweave.core.progress import Advance, Reporter
from citeweave.core.publish import work_folder
from citeweave.remote.fetch import CacheSlot, clear_cache_entry, fetch, list_cache
from citeweave.remote.object_list import LISTING_NAME
from citeweave.remote.object_storage import Address
from citeweave.remote.push import _receive, copy, push

from .conftest import content, make_artifact

Keys = Callable[[], set[str]]


class Watching(Reporter):
    """Does something when files begin to travel, or breaks off after so many bytes."""

    def __init__(self, begin: Callable[[], object] = lambda: None, most: float = float("inf")) -> None:
        super().__init__(quiet=True)
        self.begin, self.most, self.moved = begin, most, 0

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        self.begin()
        self.begin = lambda: None

        def advance(amount: int) -> None:
            if self.moved + amount > self.most:
                raise ConnectionResetError("the cable was cut")
            self.moved += amount

        yield advance


def test_there_and_back(bucket: Any, tmp_path: Path, keys: Keys) -> None:
    several_chunks = bytes(range(256)) * (9 << 12)
    folder = make_artifact(tmp_path / "made", {"papers/text.gz": b"not gzip", "big.bin": several_chunks})
    address = f"s3://{bucket.name}/a/thing"
    done = push(folder, address)
    assert (done.files, done.sent) == (3, 3)
    assert keys() == {f"a/thing/{name}" for name in ("manifest.json", "papers/text.gz", "big.bin", LISTING_NAME)}
    found = fetch(address)
    assert found.name == "thing"
    assert content(found) == content(folder)
    check_files(found, read_manifest(found, "thing", 1), content=True)
    again = Watching()
    assert fetch(address, reporter=again) == found
    assert again.moved == 0


def test_the_same_again_sends_nothing_and_another_is_refused(bucket: Any, folder: Path, tmp_path: Path) -> None:
    address = f"s3://{bucket.name}/thing"
    push(folder, address)
    assert push(folder, address).sent == 0
    other = make_artifact(tmp_path / "other", {"papers/year.npy": b"2001"})
    with pytest.raises(UserError, match="holds another artifact; .*--overwrite"):
        push(other, address)
    assert content(fetch(address)) == content(folder)


def test_overwriting_sends_what_is_new_and_removes_what_is_not_used(bucket: Any, folder: Path, keys: Keys) -> None:
    address = f"s3://{bucket.name}/thing"
    push(folder, address)
    bucket.put_object(Key="thing/notes.txt", Body=b"somebody's own")
    old = fetch(address)
    was = content(folder)
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
    assert "thing/notes.txt" in keys()
    assert "thing/papers/year.npy" not in keys()
    push(make_artifact(folder, {"papers/year.npy": b"1999"}), address, overwrite=True)
    assert content(fetch(address)) == content(folder)
    assert not any("big.bin" in key for key in keys())


def test_a_push_that_breaks_off_leaves_the_old_one_and_goes_on(bucket: Any, folder: Path, keys: Keys) -> None:
    address = f"s3://{bucket.name}/thing"
    push(folder, address)
    was = content(folder)
    parts = {f"{number}.bin": bytes([number]) * 1000 for number in range(40)}
    make_artifact(folder, {"papers/year.npy": b"2020", **parts})
    with pytest.raises(ConnectionResetError):
        push(folder, address, overwrite=True, reporter=Watching(most=25_000))
    assert content(fetch(address)) == was
    before = len(keys())
    assert before > 10
    done = push(folder, address, overwrite=True)
    assert 10 < done.sent < 35, "those that had arrived do not travel again"
    assert content(fetch(address)) == content(folder)


def test_a_first_push_that_breaks_off_is_nothing_yet_and_goes_on(bucket: Any, folder: Path) -> None:
    address = f"s3://{bucket.name}/thing"
    with pytest.raises(ConnectionResetError):
        push(folder, address, reporter=Watching(most=5000))
    assert push(folder, address).sent >= 1
    assert content(fetch(address)) == content(folder)


def test_a_fetch_that_breaks_off_shows_nothing_and_goes_on(bucket: Any, tmp_path: Path) -> None:
    address = f"s3://{bucket.name}/thing"
    made = make_artifact(tmp_path / "thing", {f"{number}.bin": bytes([number]) * 1000 for number in range(40)})
    push(made, address)
    with pytest.raises(ConnectionResetError):
        fetch(address, reporter=Watching(most=20_000))
    slot = CacheSlot(Address.parse(address))
    assert not (slot.folder / "versions").exists()
    again = Watching()
    assert content(fetch(address, reporter=again)) == content(made)
    assert 15_000 < again.moved < 35_000


def test_replaced_while_it_is_fetched_the_new_one_comes_whole(bucket: Any, folder: Path, tmp_path: Path) -> None:
    address = f"s3://{bucket.name}/thing"
    push(folder, address)
    other = make_artifact(tmp_path / "other", {"papers/year.npy": b"2020"})
    found = fetch(
        address, reporter=Watching(begin=lambda: push(other, address, overwrite=True, cache=tmp_path / "two"))
    )
    assert content(found) == content(other)


def test_an_object_that_vanishes_is_named(bucket: Any, folder: Path) -> None:
    push(folder, f"s3://{bucket.name}/thing")
    bucket.Object("thing/big.bin").delete()
    with pytest.raises(InputError, match=r"thing/big\.bin does not exist"):
        fetch(f"s3://{bucket.name}/thing")


@pytest.mark.parametrize(("data", "said"), [(b"19", "has 2 bytes, 4 were expected"), (b"2001", "its hash differs")])
def test_a_damaged_object_is_named(bucket: Any, folder: Path, data: bytes, said: str) -> None:
    push(folder, f"s3://{bucket.name}/thing")
    bucket.put_object(Key="thing/papers/year.npy", Body=data)
    with pytest.raises(InputError, match=rf"papers/year\.npy .*{said}"):
        fetch(f"s3://{bucket.name}/thing")


def test_a_folder_that_another_program_uploaded(bucket: Any, folder: Path, keys: Keys) -> None:
    for name, data in content(folder).items():
        bucket.put_object(Key=f"thing/{name}", Body=data)
    address = f"s3://{bucket.name}/thing"
    assert content(fetch(address)) == content(folder)
    with pytest.raises(UserError, match="holds another artifact"):
        push(folder, address)
    push(folder, address, overwrite=True)
    assert content(fetch(address)) == content(folder)
    bucket.put_object(Key="other/manifest.json", Body=(folder / "manifest.json").read_bytes())
    bucket.put_object(Key="other/papers/year.npy", Body=b"19")
    with pytest.raises(ArtifactError, match=r"year\.npy has 2 bytes, its manifest says 4|big\.bin does not exist"):
        fetch(f"s3://{bucket.name}/other")


def test_objects_of_others_are_not_written_over(bucket: Any, folder: Path) -> None:
    bucket.put_object(Key="thing/big.bin", Body=b"mine")
    with pytest.raises(UserError, match="holds objects that are no artifact"):
        push(folder, f"s3://{bucket.name}/thing")
    push(folder, f"s3://{bucket.name}/thing", overwrite=True)
    assert bucket.Object("thing/big.bin").get()["Body"].read() == b"mine"
    assert content(fetch(f"s3://{bucket.name}/thing")) == content(folder)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "a\\b", "./x", "a//x"])
def test_names_that_leave_the_folder_are_refused(bucket: Any, tmp_path: Path, name: str) -> None:
    bucket.put_object(Key=f"thing/{name}", Body=b"x")
    with pytest.raises(InputError, match="cannot be a file"):
        fetch(f"s3://{bucket.name}/thing")
    assert not [path for path in tmp_path.rglob("x") if path.is_file()]


@pytest.mark.parametrize("name", ["../x", "/x", "a\\b", "a\nb", "\x1b[2J", "", "x/" * 3 + ".."])
@pytest.mark.parametrize("which", ["file", "object"])
def test_a_hostile_list_of_objects_is_refused(bucket: Any, tmp_path: Path, name: str, which: str) -> None:
    file = {"bytes": 1, "sha256": "0" * 64, "at": name if which == "object" else "a"}
    told = {"format": "citeweave-objects", "version": 1, "files": {name if which == "file" else "a": file}}
    bucket.put_object(Key=f"thing/{LISTING_NAME}", Body=json.dumps(told).encode())
    with pytest.raises(InputError, match="cannot be a file"):
        fetch(f"s3://{bucket.name}/thing")


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"format": "citeweave-objects", "version": 1, "files": {"a": {"bytes": -1}}}', b"\xff"],
)
def test_a_damaged_list_of_objects_is_refused(bucket: Any, data: bytes) -> None:
    bucket.put_object(Key=f"thing/{LISTING_NAME}", Body=data)
    with pytest.raises(ArtifactError, match=rf"thing/{LISTING_NAME} is damaged"):
        fetch(f"s3://{bucket.name}/thing")


def test_a_file_and_a_folder_of_one_name_are_refused(bucket: Any) -> None:
    bucket.put_object(Key="thing/a", Body=b"x")
    bucket.put_object(Key="thing/a/b", Body=b"x")
    with pytest.raises(InputError, match="as an object and as a folder"):
        fetch(f"s3://{bucket.name}/thing")


def test_copy_both_ways_and_from_bucket_to_bucket(bucket: Any, folder: Path, tmp_path: Path) -> None:
    address = f"s3://{bucket.name}/thing"
    assert copy(folder, address).sent == 3
    assert copy(address, tmp_path / "back").files == 3
    assert content(tmp_path / "back") == content(folder)
    assert not work_folder(tmp_path / "back").exists()
    with pytest.raises(UserError, match="exists; choose another place"):
        copy(address, tmp_path / "back")
    copy(address, tmp_path / "back", overwrite=True)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".back.", "back."))]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    with pytest.raises(UserError, match="is not an artifact"):
        copy(address, tmp_path / "mine", overwrite=True)
    copy(address, f"s3://{bucket.name}/two/thing")
    assert content(fetch(f"s3://{bucket.name}/two/thing")) == content(folder)
    with pytest.raises(UserError, match="both local"):
        copy(folder, tmp_path / "c")


def test_a_copy_does_not_replace_what_came_meanwhile(
    bucket: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, real = f"s3://{bucket.name}/thing", _receive
    copy(folder, address)

    def receive(*given: Any) -> int:
        make_artifact(tmp_path / "other", {"papers/year.npy": b"1999"}).rename(tmp_path / "back")
        return real(*given)

    monkeypatch.setattr("citeweave.remote.push._receive", receive)
    with pytest.raises(UserError, match="exists; choose another place"):
        copy(address, tmp_path / "back")
    assert (tmp_path / "back" / "papers" / "year.npy").read_bytes() == b"1999"


@pytest.mark.parametrize("at", ["_exchange_atomically", "_remove_work"])
def test_a_copy_that_is_killed_while_it_replaces_leaves_one_of_both(
    bucket: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    address, older, target = f"s3://{bucket.name}/thing", content(folder), tmp_path / "back"
    copy(folder, address)
    copy(address, target)
    copy(make_artifact(folder, {"papers/year.npy": b"2020"}), address, overwrite=True)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(publish, at, die)
        copy(address, target, overwrite=True)
    assert content(target) == (older if at == "_exchange_atomically" else content(folder))
    copy(address, target, overwrite=True)
    assert content(target) == content(folder)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".back.", "back."))]


def test_a_copy_does_not_share_files_with_the_cache(bucket: Any, folder: Path, tmp_path: Path) -> None:
    address = f"s3://{bucket.name}/thing"
    copy(folder, address)
    kept = fetch(address)
    assert copy(address, tmp_path / "back").sent == 0
    (tmp_path / "back" / "papers" / "year.npy").write_bytes(b"2001")
    assert (kept / "papers" / "year.npy").read_bytes() == b"1999"


def test_a_copy_out_of_the_cache_that_breaks_off_is_not_trusted(
    bucket: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"s3://{bucket.name}/thing"
    push(folder, address)
    fetch(address)

    def full_disk(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full_disk)
        with pytest.raises(OSError, match="No space"):
            copy(address, tmp_path / "back")
    copy(address, tmp_path / "back")
    assert content(tmp_path / "back") == content(folder)


def test_a_file_that_breaks_off_leaves_the_old_one(
    bucket: Any, tmp_path: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("citeweave.remote.push.CHUNK", 1000)
    path, address = tmp_path / "page.html", f"s3://{bucket.name}/page.html"
    path.write_bytes(b"old" * 1000)
    push(path, address)
    path.write_bytes(b"new" * 2000)
    with pytest.raises(ConnectionResetError):
        push(path, address, overwrite=True, reporter=Watching(most=2000))
    assert fetch(address).read_bytes() == b"old" * 1000
    assert keys() == {"page.html"}
    with pytest.raises(ConnectionResetError):
        push(path, f"s3://{bucket.name}/new.html", reporter=Watching(most=2000))
    assert keys() == {"page.html"}
    push(path, address, overwrite=True)
    assert bucket.Object("page.html").get()["Body"].read() == b"new" * 2000


def test_single_files(bucket: Any, tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text("one\n")
    address = f"s3://{bucket.name}/lists/ids.txt"
    copy(path, address)
    assert fetch(address).read_text() == "one\n"
    with pytest.raises(UserError, match="already exists"):
        copy(path, address)
    copy(address, tmp_path / "cache")
    assert (tmp_path / "cache" / "ids.txt").read_text() == "one\n"
    time.sleep(1.1)  # the server knows whole seconds
    path.write_text("two\n")
    copy(path, address, overwrite=True)
    assert fetch(address).read_text() == "two\n"


def test_patterns(bucket: Any) -> None:
    for name in ("d/a.gz", "d/b.gz", "d/c.txt", "d/e/f.gz", "d/.hidden.gz"):
        bucket.put_object(Key=name, Body=name.encode())
    found = fetch(f"s3://{bucket.name}/d/*.gz")
    assert content(found) == {"a.gz": b"d/a.gz", "b.gz": b"d/b.gz"}
    assert content(fetch(f"s3://{bucket.name}/*/*/[f]*")) == {"d/e/f.gz": b"d/e/f.gz"}
    with pytest.raises(InputError, match="matches no object"):
        fetch(f"s3://{bucket.name}/d/*.zip")


def test_damaged_and_linked_files_are_not_sent(bucket: Any, folder: Path, tmp_path: Path) -> None:
    (folder / "papers" / "year.npy").write_bytes(b"2001")
    with pytest.raises(UserError, match=r"year\.npy has changed since"):
        push(folder, f"s3://{bucket.name}/thing")
    with pytest.raises(InputError, match="does not exist"):
        fetch(f"s3://{bucket.name}/nothing")
    (folder / "papers" / "year.npy").write_bytes(b"1")
    with pytest.raises(UserError, match="another size than its manifest says"):
        push(folder, f"s3://{bucket.name}/thing")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match="is a link"):
        push(tmp_path / "links", f"s3://{bucket.name}/links")


def test_old_versions_go_by_age_and_all_by_command(bucket: Any, folder: Path) -> None:
    address = f"s3://{bucket.name}/thing"
    push(folder, address)
    old = fetch(address)
    os.utime(old.parent.parent, (0, 0))
    push(make_artifact(folder, {"a": b"1"}), address, overwrite=True)
    new = fetch(address)
    assert not old.exists()
    assert new.exists()
    (slot,) = list_cache()
    assert slot.address == address
    assert slot.versions == 1
    with CacheSlot(Address.parse(address)).locked():
        assert not clear_cache_entry(slot)
    assert clear_cache_entry(slot)
    assert not new.exists()
