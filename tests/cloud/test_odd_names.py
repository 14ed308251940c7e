"""Names that are those of our own files, too long, or somebody else's: fetched as they are, refused, or left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.errors import InputError, UserError
from citeweave.remote.fetch import fetch
from citeweave.remote.object_list import LISTING_NAME
from citeweave.remote.object_storage import Address
from citeweave.remote.push import PendingUpload, copy, push

from .conftest import content, make_artifact

Keys = Callable[[], set[str]]


@pytest.mark.parametrize("name", ["objects.json", "listing.json", "content", "parts"])
def test_an_address_named_as_a_file_of_the_cache(bucket: Any, folder: Path, tmp_path: Path, name: str) -> None:
    bucket.put_object(Key=f"one/{name}", Body=b"mine")
    assert fetch(f"s3://{bucket.name}/one/{name}").read_bytes() == b"mine"
    copy(f"s3://{bucket.name}/one/{name}", tmp_path / name)
    assert (tmp_path / name).read_bytes() == b"mine"
    push(folder, f"s3://{bucket.name}/{name}")
    assert content(fetch(f"s3://{bucket.name}/{name}")) == content(folder)


def test_an_output_named_as_a_file_of_the_cache(bucket: Any) -> None:
    address = Address.parse(f"s3://{bucket.name}/base.json")
    for data in (b"1", b"2"):
        with PendingUpload(address).prepare() as out:
            make_artifact(out.folder, {"a": data})
            out.send()
        assert content(fetch(address))["a"] == data


def test_a_name_as_long_as_a_name_can_be(bucket: Any) -> None:
    bucket.put_object(Key=f"thing/{'x' * 255}", Body=b"long")
    assert content(fetch(f"s3://{bucket.name}/thing")) == {"x" * 255: b"long"}


@pytest.mark.parametrize("name", [".a.part", ".x.citeweave-00000000/owner.json", "sub/.lock"])
def test_a_list_with_hidden_files_is_refused(bucket: Any, name: str) -> None:
    file = {"bytes": 1, "sha256": "0" * 64, "at": "a"}
    told = {"format": "citeweave-objects", "version": 1, "files": {"a": file, name: file}}
    bucket.put_object(Key=f"thing/{LISTING_NAME}", Body=json.dumps(told).encode())
    with pytest.raises(InputError, match="names the hidden file"):
        fetch(f"s3://{bucket.name}/thing")


@pytest.mark.parametrize("name", ["../x", "\x1b[2J", "a\nb"])
def test_a_manifest_with_names_that_lead_elsewhere_is_refused(bucket: Any, name: str) -> None:
    told = {"kind": "thing", "version": 1, "recipe": {}, "files": {name: {"bytes": 1, "sha256": "0" * 64}}}
    bucket.put_object(Key="thing/manifest.json", Body=json.dumps(told).encode())
    with pytest.raises(InputError, match="cannot be a file") as caught:
        fetch(f"s3://{bucket.name}/thing")
    assert str(caught.value).isprintable()


def test_a_manifest_of_infinite_size_is_no_manifest(bucket: Any) -> None:
    data = b'{"kind": "", "version": 1, "recipe": {}, "files": {"a": {"bytes": Infinity, "sha256": ""}}}'
    bucket.put_object(Key="thing/manifest.json", Body=data)
    assert content(fetch(f"s3://{bucket.name}/thing")) == {"manifest.json": data}


@pytest.mark.parametrize(
    "others",
    [
        {"manifest.json": b'{"name": "a web page"}', "index.html": b"a page", "big.bin": b"theirs"},
        {"state.json": b'{"version": 4}', "deleted/x": b"x"},
    ],
)
def test_another_programs_folder_stays(bucket: Any, folder: Path, others: dict[str, bytes]) -> None:
    for name, data in others.items():
        bucket.put_object(Key=f"thing/{name}", Body=data)
    push(folder, f"s3://{bucket.name}/thing", overwrite=True)
    assert {name: bucket.Object(f"thing/{name}").get()["Body"].read() for name in others} == others
    assert content(fetch(f"s3://{bucket.name}/thing")) == content(folder)


def test_of_an_uploaded_artifact_only_its_own_objects_go(bucket: Any, folder: Path, tmp_path: Path, keys: Keys) -> None:
    for name, data in content(folder).items():
        bucket.put_object(Key=f"thing/{name}", Body=data)
    bucket.put_object(Key="thing/notes.txt", Body=b"mine")
    push(make_artifact(tmp_path / "other", {"new.bin": b"new"}), f"s3://{bucket.name}/thing", overwrite=True)
    # of an emptied folder pyarrow leaves an empty mark
    left = {key for key in keys() if not key.endswith("/") and "/.generations/" not in key}
    assert left == {"thing/notes.txt", "thing/new.bin", f"thing/{LISTING_NAME}"}


def test_of_an_uploaded_index_its_state_goes(bucket: Any, folder: Path, keys: Keys) -> None:
    bucket.put_object(Key="thing/state.json", Body=b'{"format": "citeweave-index", "version": 2}')
    bucket.put_object(Key="thing/deleted/1.npy", Body=b"1")
    push(folder, f"s3://{bucket.name}/thing", overwrite=True)
    assert not {"thing/state.json", "thing/deleted/1.npy"} & keys()


def test_a_list_that_names_itself_does_not_remove_its_successor(bucket: Any, folder: Path, keys: Keys) -> None:
    file = {"bytes": 1, "sha256": "0" * 64, "at": LISTING_NAME}
    told = {"format": "citeweave-objects", "version": 1, "files": {"a": file}}
    bucket.put_object(Key=f"thing/{LISTING_NAME}", Body=json.dumps(told).encode())
    push(folder, f"s3://{bucket.name}/thing", overwrite=True)
    assert f"thing/{LISTING_NAME}" in keys()
    assert content(fetch(f"s3://{bucket.name}/thing")) == content(folder)


def test_an_object_and_a_folder_of_one_name(bucket: Any, folder: Path, keys: Keys) -> None:
    for name in ("one", "two/x"):
        bucket.put_object(Key=name, Body=b"mine")
    with pytest.raises(UserError, match="is an object, not a folder"):
        push(folder, f"s3://{bucket.name}/one", overwrite=True)
    with pytest.raises(UserError, match="is a folder, not an object"):
        push(folder / "manifest.json", f"s3://{bucket.name}/two", overwrite=True)
    assert keys() == {"one", "two/x"}
    bucket.put_object(Key="two", Body=b"mine")
    with pytest.raises(InputError, match="is an object and a folder"):
        fetch(f"s3://{bucket.name}/two")
