"""Odd names in object storage: an object is fetched byte for byte or refused, nothing is written or removed elsewhere."""

import hashlib
import json
import re
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from citeweave.core.errors import UserError
from citeweave.remote.fetch import LISTING_NAME, fetch
from citeweave.remote.object_storage import Address
from citeweave.remote.push import PendingUpload, copy, push

from ...remote.conftest import bucket, content, make_artifact, server
from .counting import Trial

__all__ = ["bucket", "server"]

NAMES = (
    "../x", "../../x", "a/../../x", "..", ".", "./x", "a/.", "a/..", "/etc/passwd", "//x", "a//b", "a/", "a//", "/", "...", "a/.../b", "..x", "x..", "..;/x",
    "C:\\x", "C:x", "C:/x", "\\\\host\\share", "a\\b", "..\\x", "\\", "CON", "con.txt", "NUL", "COM1", "LPT1.x", "aux", "a:b", "ab:c", "a.", "a ", " a", "a. ", "a|b",
    "a<b>", 'a"b', "a*b", "a?b", "a[b]", "[", "~", "~root/x", "$HOME", "`id`", "-rf", "--help", "a;b", "a&b", "a=b", "a+b", "a b", "a#b", "a,b", "a@b", "a!b", "a'b",
    "%2e%2e%2fx", "%2e%2e/x", "..%2fx", "..%5cx", "%", "%%", "%25", "%00", "a%0ab", "%c0%ae%c0%ae/x", "&amp;", "&lt;x&gt;", "<x>", "]]>", "{}", "{0}",
    "a\nb", "a\rb", "a\r\nb", "a\tb", "a\x00b", "\x01", "\x1b[2J", "a\x7fb", "a\x85b", "a\u2028b", "\u202eb", "\ufeffb", "\u200b", "é", "e\u0301", "東京/é", "🦜",
    "\U0010ffff", "\ufffe", "x" * 200, "x" * 250, "x" * 255, "x" * 256, "é" * 127, "é" * 128, "東" * 85, "/".join("x" * 60), "x/" * 300 + "x", "x" * 900,
    "objects.json", "address.txt", "manifest.json", "state.json", "base.json", "pushed.txt", "owner.json", "listing.json", "versions/x", "partial/x", "work/x",
    "new", "content/x", "parts/x", "files/x", ".lock", ".work.lock", ".x.citeweave-00000000/owner.json", ".plain.txt.part", ".generations/x", f"{LISTING_NAME}/x",
    f"sub/{LISTING_NAME}", "plain.txt/x", "PLAIN.TXT", "plain.txt ", "plain.txt.",
)  # fmt: skip
"""Names that lead elsewhere, that another system reads otherwise, or that are those of our own files."""

BREAKS = {chr(code) for code in (*range(32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A))}
"""What breaks a line, or turns the direction of what stands behind it."""

TWINS = (
    ("a", "A"), ("é", "e\u0301"), ("ß", "ss"), ("a", "a/b"), ("a/b", "a/b/c"), ("a", ".a.part"), ("d/a", "d/.a.part"), ("a", "a.part"), ("a", "a "), ("a", "a."),
    ("ﬁ", "fi"), ("manifest.json", "MANIFEST.JSON"), ("objects.json", "address.txt"), ("x", ".x.citeweave-00000000/owner.json"), ("a", "./a"), ("a/b", "a//b"),
    ("İ", "i\u0307"), ("a%2fb", "a/b"), ("a\u2028begun b", "b"), ("CON", "con"),
)  # fmt: skip
"""Two names that could become one file."""


def is_kept(name: str) -> bool:
    """Whether a folder that another program uploaded has this file: marks of folders and hidden files are left out."""
    hidden = any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))
    return not hidden and not name.endswith("/")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(bucket: Any, key: str, data: bytes) -> bool:
    """Whether the storage takes such a key."""
    try:
        bucket.put_object(Key=key, Body=data)
        return bool(bucket.Object(key).get()["Body"].read() == data)
    except (BotoCoreError, ClientError, ValueError, UnicodeError):
        return False


def objects(bucket: Any, prefix: str = "") -> dict[str, str]:
    """Keys of a bucket, and the hashes of their bytes."""
    return {item.key: item.e_tag for item in bucket.objects.filter(Prefix=prefix)}


def marks_above(key: str) -> dict[str, str]:
    """Empty objects that stand for the folders above a key: pyarrow leaves them where it removes an object."""
    parts = key.split("/")
    return {"/".join(parts[:end]) + "/": f'"{hashlib.md5(b"").hexdigest()}"' for end in range(1, len(parts))}


@contextmanager
def refusing() -> Iterator[None]:
    """A refusal is one line that a terminal can show."""
    try:
        yield
    except UserError as error:
        assert not BREAKS & set(str(error)) and len(str(error)) < 2500, f"more than one line: {str(error)[:300]!r}"


UNFINISHED = r"cache/cloud/[^/]+/partial/[0-9a-f]{16}|out/\.folder\.citeweave-[0-9a-f]{8}/kept/[0-9a-f]{16}"
"""Where what was refused on its way may lie, for the next run to resume."""


def check_places(tmp_path: Path, wanted: dict[str, bytes], *places: Path) -> None:
    """The bytes of odd objects lie at their names in these folders, and nowhere else."""
    allowed = {place / name for place in places for name in wanted}
    odd = set(wanted.values())
    names = "|".join(map(re.escape, wanted))
    resumed = re.compile(rf"(?:{UNFINISHED})/(?:parts/[0-9a-f]{{32}}|content/[^/]+/(?:{names}))")
    for path in tmp_path.rglob("*"):
        assert not path.is_symlink()
        if path.is_file() and path.read_bytes() in odd:
            name = path.relative_to(tmp_path).as_posix()
            assert path in allowed or (len(places) < 2 and resumed.fullmatch(name)), f"{name} was written"


def check_fetched(address: str, wanted: dict[str, bytes], tmp_path: Path) -> int:
    """How often it was fetched, into the cache and to a folder of one's own."""
    found, out = [], tmp_path / "out" / "folder"
    out.parent.mkdir(parents=True)
    with refusing():
        found.append(fetch(address))
        assert content(found[0]) == wanted
    with refusing():
        copy(address, out)
        found.append(out)
        assert content(out) == wanted
    beside = [path.name for path in (tmp_path / "out").iterdir() if path != out]
    # the work folder of a copy that broke off stays: the next one resumes there
    assert not beside or (out not in found and all(name.startswith(".folder.citeweave") for name in beside)), beside
    check_places(tmp_path, wanted, *found)
    return len(found)


def try_all(
    trial: Trial, bucket: Any, tmp_path: Path, tries: list[Any], lay: Callable[..., dict[str, bytes] | None]
) -> None:
    """Lay out the objects of each try, and fetch them; a try that the storage refuses is none."""
    refused = fetched = 0
    for number, one in enumerate(trial.some(tries, quick=20)):
        place = tmp_path / str(number)
        wanted = lay(number, one)
        if wanted is None:
            continue
        with trial.attempt(reprlib.repr(one)), pytest.MonkeyPatch.context() as patched:
            patched.setenv("CITEWEAVE_CACHE", str(place / "cache"))
            times = check_fetched(f"s3://{bucket.name}/{number}", wanted, place)
            fetched, refused = fetched + (times == 2), refused + (times == 0)
            assert times != 1, "refused once, fetched once"
    trial.facts |= {"fetched": fetched, "refused": refused}


def test_odd_keys_in_a_folder(trial, bucket, tmp_path):
    """Objects that another program put there: fetched byte for byte, or the folder is refused."""

    def lay(number: int, names: tuple[str, ...]) -> dict[str, bytes] | None:
        data = {name: f"bytes of {number} {name!r}".encode() for name in ("plain.txt", *names)}
        if not all(put(bucket, f"{number}/{name}", data[name]) for name in data):
            return None
        return {name: data[name] for name in data if is_kept(name)}

    try_all(trial, bucket, tmp_path, [*((name,) for name in NAMES), *TWINS], lay)


def test_odd_names_in_a_list_of_objects(trial, bucket, tmp_path):
    """A list that somebody else wrote, with odd names of files or of objects: the same."""
    tries = [("files", (name,)) for name in NAMES] + [("files", pair) for pair in TWINS]
    tries += [("objects", (name,)) for name in NAMES]

    def lay(number: int, one: tuple[str, tuple[str, ...]]) -> dict[str, bytes] | None:
        which, names = one
        data = {name: f"bytes of {number} {name!r}".encode() * 50 for name in ("plain.txt", *names)}
        at = {name: name if which == "objects" else f"object{row}" for row, name in enumerate(data)}
        if not all(put(bucket, f"{number}/{at[name]}", data[name]) for name in data):
            return None
        files = {name if which == "files" else f"f{row}": name for row, name in enumerate(data)}
        listed = {
            file: {"bytes": len(data[name]), "sha256": sha256(data[name]), "at": at[name]}
            for file, name in files.items()
        }
        put(bucket, f"{number}/{LISTING_NAME}", json.dumps(LIST | {"files": listed}).encode())
        return {file: data[name] for file, name in files.items()}

    try_all(trial, bucket, tmp_path, tries, lay)


HOSTILE_NUMBERS = ("-1", "1e400", "Infinity", "NaN", "true", "null", '"1"', "1" + "0" * 30, "9" * 5000, "[]")


def test_odd_manifests(trial, bucket, tmp_path):
    """Manifests of untrusted people name files that lead elsewhere, or sizes that are none."""
    kind = {"kind": "thing", "version": 1, "recipe": {}}
    tries = [json.dumps(kind | {"files": {name: {"bytes": 1, "sha256": "0" * 64}}}) for name in NAMES]
    one = f'{json.dumps(kind)[:-1]}, "files": {{"plain.txt": {{"bytes": VALUE, "sha256": "0"}}}}}}'
    tries += [one.replace("VALUE", value) for value in HOSTILE_NUMBERS]
    tries += [
        '{"files": {"plain.txt": {}}, "files": {"../x": {"bytes": 1, "sha256": ""}}}',
        "[" * 100_000,
        '{"files": []}',
    ]
    for number, manifest in enumerate(trial.some(tries, quick=20)):
        with trial.attempt(reprlib.repr(manifest)):
            data = {"plain.txt": b"plain bytes", "manifest.json": manifest.encode()}
            for name in data:
                bucket.put_object(Key=f"{number}/{name}", Body=data[name])
            check_fetched(f"s3://{bucket.name}/{number}", data, tmp_path / str(number))


ADDRESSES = (
    "../x", "a/../x", "a?versionId=1", "a?x", "a#b", "a b", " ", "a%20b", "%2e%2e%2fx", "a%", "a+b", "a&b", "a/", "a//", "//a", "/a", "a//b", ".", "..", "...", "a/.", "*",
    "[a]", "C:\\x", "a\\b", "C:x", "CON", "a.", "a ", "~", "$HOME", "-o", "é", "e\u0301", "a\nb", "a\x00b", "\x1b[2J", "\ud800", "a\u2028b", "x" * 255, "x" * 256, "é" * 120,
    "x/" * 300 + "x", "objects.json", "address.txt", "manifest.json", "state.json", "base.json", "pushed.txt", "listing.json", "content", "parts", "files", "versions",
    "partial", "work", "new", ".lock", ".work.lock", ".hidden", ".x.citeweave-00000000", ".generations", LISTING_NAME, f"{LISTING_NAME}/x", "s3://b/x", "x" * 1100, "a@b:c",
)  # fmt: skip
"""What a user may write behind the bucket."""


def test_odd_addresses(trial, bucket, tmp_path, monkeypatch):
    """A file, a folder and the output of a command go to the address and come back, or the address is refused."""
    made = make_artifact(tmp_path / "made", {"sub/a.bin": b"bytes of a"})
    (tmp_path / "one.txt").write_bytes(b"bytes of one file")
    arrived = 0
    tries = [(kind, key) for key in ADDRESSES for kind in ("file", "folder", "output")]
    for number, (kind, key) in enumerate(trial.some(tries, quick=20, seed=2)):
        with trial.attempt(f"{kind} at {reprlib.repr(key)}"):
            place = tmp_path / str(number)
            (place / "back").mkdir(parents=True)
            monkeypatch.setenv("CITEWEAVE_CACHE", str(place / "cache"))
            before = objects(bucket)
            with refusing():
                address = f"s3://{bucket.name}/{number}/{key}"
                arrived += check_round_trip(kind, address, made, tmp_path / "one.txt", place)
            after = objects(bucket)
            assert before.keys() <= after.keys(), "something was removed"
            own = f"{number}/{key}".rstrip("/")
            marks = marks_above(own)
            new = {name for name, data in after.items() if data not in (before.get(name), marks.get(name))}
            assert all(name == own or name.startswith(f"{own}/") for name in new), new
            assert {path.name for path in place.iterdir()} <= {"cache", "back"}, "it was written elsewhere"
    trial.facts["arrived"] = arrived


def check_round_trip(kind: str, address: str, made: Path, one: Path, place: Path) -> bool:
    if kind == "output":
        with PendingUpload(Address.parse(address)).prepare() as out:
            make_artifact(out.folder, {"sub/a.bin": b"bytes of a"})
            out.send()
        with PendingUpload(Address.parse(address)).prepare() as out:
            assert content(out.folder).get("sub/a.bin") == b"bytes of a", "the next command does not find it"
    else:
        push(one if kind == "file" else made, address)
    for again in (1, 2):
        found = fetch(address)
        if kind == "file":
            assert found.read_bytes() == one.read_bytes(), f"fetched other bytes, time {again}"
        else:
            assert content(found)["sub/a.bin"] == b"bytes of a", f"fetched other bytes, time {again}"
    name = Address.parse(address).name
    copy(address, place / "back" / name)
    back = place / "back" / name
    assert back.read_bytes() == one.read_bytes() if kind == "file" else content(back) == content(found)
    assert [path.name for path in (place / "back").iterdir()] == [name], "something was left"
    return True


LIST = {"format": "citeweave-objects", "version": 1}
LISTED_ITSELF = {"bytes": 1, "sha256": "0" * 64, "at": LISTING_NAME}
BEFORE = {
    "nothing": {},
    "a web page": {"manifest.json": b'{"name": "a page", "icons": []}', "index.html": b"a page"},
    "another program's state": {"state.json": b'{"version": 4}', "deleted/x": b"x", "heads/x": b"x"},
    "a list that names itself": {LISTING_NAME: json.dumps(LIST | {"files": {"a": LISTED_ITSELF}}).encode()},
    "an uploaded artifact": None,
    "an artifact": None,
}
"""What lies at an address before something is pushed there; of artifacts the objects are their own."""


def test_objects_of_others_when_pushing(trial, bucket, tmp_path, monkeypatch):
    """Whatever lies at an address, `push --overwrite` changes and removes only what artifacts of citeweave name."""
    files = [{"sub/a.bin": b"%d" % n, f"{n}.bin": b"x", "b.bin": b"b"} for n in (0, 1)]
    made = [make_artifact(tmp_path / f"made{n}", files[n]) for n in (0, 1)]
    tries = [(before, name) for name in (*NAMES, "notes.txt", "sub/a.bin", "b.bin", "sub") for before in BEFORE]
    pushed = 0
    for number, (before, name) in enumerate(trial.some(tries, quick=8, whole=300, seed=1)):
        base = f"{number:04}"
        monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache" / base))
        address, own = f"s3://{bucket.name}/{base}", BEFORE[before]
        if own is None and name in content(made[0]) | {LISTING_NAME: b""}:
            continue  # that object is the artifact's own
        if before == "an artifact":
            push(made[0], address)
        for inner, data in (content(made[0]) if before == "an uploaded artifact" else own or {}).items():
            put(bucket, f"{base}/{inner}", data)
        inside = {f"{base}/{inner}" for inner in (name, *(own or {}))} - {f"{base}/{LISTING_NAME}"}
        others = {f"{base}x", f"{base}x/y", f"{base}.txt"} | inside
        if not all(put(bucket, key, key.encode()) for key in others if key.removeprefix(f"{base}/") not in (own or {})):
            continue  # the storage refuses it
        with trial.attempt(f"{before}, beside {reprlib.repr(name)}"):
            there = objects(bucket, base)
            for folder in (made[1], made[0]):
                with refusing():
                    push(folder, address, overwrite=True)
                    assert content(fetch(address)) == content(folder)
                    pushed += 1
                after = objects(bucket, base)
                wrong = [key for key in others if after.get(key) != there[key]]
                assert not wrong, f"{wrong} was changed or removed"
                changed = {key for key in {*there, *after} if there.get(key) != after.get(key)}
                strange = {key for key in changed if not key.startswith(f"{base}/")}
                assert not strange, f"{strange} lie elsewhere"
    trial.facts["pushed"] = pushed
