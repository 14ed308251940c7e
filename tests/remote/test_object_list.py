"""Names in object storage that are those of our own files, too long, hostile or somebody else's."""

import json

import pytest

from citeweave.core.errors import ArtifactError, InputError
from citeweave.remote.fetch import LISTING_NAME, fetch
from citeweave.remote.object_storage import Address
from citeweave.remote.push import PendingUpload, copy, push

from ..conftest import refused
from .conftest import content, make_artifact


def listing(*names, at="a"):
    """A list of objects with these files, as another program could upload it."""
    files = {name: {"bytes": 1, "sha256": "0" * 64, "at": at} for name in names}
    return {LISTING_NAME: json.dumps({"format": "citeweave-objects", "version": 1, "files": files}).encode()}


@pytest.mark.parametrize("name", ["objects.json", "listing.json", "content", "parts"])
def test_an_address_named_as_a_file_of_the_cache(bucket, put, folder, tmp_path, name):
    put({name: b"mine"})
    address = f"s3://{bucket.name}/thing/{name}"
    assert fetch(address).read_bytes() == b"mine"
    copy(address, tmp_path / name)
    assert (tmp_path / name).read_bytes() == b"mine"
    push(folder, f"s3://{bucket.name}/{name}")
    assert content(fetch(f"s3://{bucket.name}/{name}")) == content(folder)


def test_an_output_named_as_a_file_of_the_cache(bucket):
    address = Address.parse(f"s3://{bucket.name}/base.json")
    for data in (b"1", b"2"):
        with PendingUpload(address).prepare() as out:
            make_artifact(out.folder, {"a": data})
            out.send()
        assert content(fetch(address))["a"] == data


def test_the_longest_name_and_a_manifest_of_infinite_size(address, put):
    data = b'{"kind": "", "version": 1, "recipe": {}, "files": {"a": {"bytes": Infinity, "sha256": ""}}}'
    put({"x" * 255: b"long", "manifest.json": data})
    assert content(fetch(address)) == {"x" * 255: b"long", "manifest.json": data}


def manifest(name):
    files = {name: {"bytes": 1, "sha256": "0" * 64}}
    return {"manifest.json": json.dumps({"kind": "thing", "version": 1, "recipe": {}, "files": files}).encode()}


HOSTILE = ["../x", "/x", "a\\b", "a\nb", "\x1b[2J", "", "x/" * 3 + ".."]


LEAD_ELSEWHERE = [
    *((listing(name), "cannot be a file") for name in HOSTILE),
    *((listing("a", at=name), "cannot be a file") for name in HOSTILE),
    *((manifest(name), "cannot be a file") for name in ("../x", "\x1b[2J", "a\nb")),
    *(({name: b"x"}, "cannot be a file") for name in ("../x", "a/../../x", "a\\b", "./x", "a//x")),
    *(
        (listing("a", name), "names the hidden file")
        for name in (".a.part", ".x.citeweave-00000000/owner.json", "sub/.lock")
    ),
    ({"a": b"x", "a/b": b"x"}, "as an object and as a folder"),
]


@pytest.mark.parametrize(("objects", "message"), LEAD_ELSEWHERE)
def test_names_that_lead_elsewhere_are_refused(address, put, tmp_path, objects, message):
    put(objects)
    with pytest.raises(InputError, match=message) as caught:
        fetch(address)
    assert str(caught.value).isprintable()
    assert not [path for path in tmp_path.rglob("x") if path.is_file()]


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"format": "citeweave-objects", "version": 1, "files": {"a": {"bytes": -1}}}', b"\xff"],
)
def test_a_damaged_list_of_objects_is_refused(address, put, data):
    put({LISTING_NAME: data})
    refused(rf"thing/{LISTING_NAME} is damaged", fetch, address, error=ArtifactError)


OTHER_PROGRAMS = [
    {"manifest.json": b'{"name": "a web page"}', "index.html": b"a page", "big.bin": b"theirs"},
    {"state.json": b'{"version": 4}', "deleted/x": b"x"},
]


@pytest.mark.parametrize("others", OTHER_PROGRAMS)
def test_another_programs_folder_stays(bucket, address, put, folder, others):
    put(others)
    push(folder, address, overwrite=True)
    assert {name: bucket.Object(f"thing/{name}").get()["Body"].read() for name in others} == others
    assert content(fetch(address)) == content(folder)


def test_of_an_uploaded_artifact_only_its_own_objects_go(address, put, folder, tmp_path, keys):
    put({**content(folder), "notes.txt": b"mine"})
    push(make_artifact(tmp_path / "other", {"new.bin": b"new"}), address, overwrite=True)
    # of an emptied folder pyarrow leaves an empty mark
    left = {key for key in keys() if not key.endswith("/") and "/.generations/" not in key}
    assert left == {"thing/notes.txt", "thing/new.bin", f"thing/{LISTING_NAME}"}


def test_of_an_uploaded_index_its_state_goes(address, put, folder, keys):
    put({"state.json": b'{"format": "citeweave-index", "version": 3}', "generations/000001-0123abcd/a.npy": b"1"})
    push(folder, address, overwrite=True)
    assert not {"thing/state.json", "thing/generations/000001-0123abcd/a.npy"} & keys()


def test_a_list_that_names_itself_does_not_remove_its_successor(address, put, folder, keys):
    put(listing("a", at=LISTING_NAME))
    push(folder, address, overwrite=True)
    assert f"thing/{LISTING_NAME}" in keys()
    assert content(fetch(address)) == content(folder)


def test_an_object_and_a_folder_of_one_name(bucket, put, folder, keys):
    put({"one": b"mine", "two/x": b"mine"}, under="")
    refused("is an object, not a folder", push, folder, f"s3://{bucket.name}/one", overwrite=True)
    refused("is a folder, not an object", push, folder / "manifest.json", f"s3://{bucket.name}/two", overwrite=True)
    assert keys() == {"one", "two/x"}
    put({"two": b"mine"}, under="")
    refused("is an object and a folder", fetch, f"s3://{bucket.name}/two", error=InputError)
