"""Corrupted files: no crash, no hang, no error that no page documents, no memory without bounds, no silent wrong result.

Of an input file of somebody else nobody can know what it held: every record is read, or counted as rejected, and what is
read is well made; where it is compressed, its checksum is held to. Of an artifact of ours the manifest knows: opening a
small one, and verifying any, finds every changed byte; until it is verified, reading a large one never does worse than
to give other numbers.
"""

import bz2
import gzip
import lzma
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard

from citeweave.core import artifact
from citeweave.core.artifact import MANIFEST, read_any_manifest
from citeweave.core.errors import ArtifactError, CiteweaveError
from citeweave.core.inputs import Source
from citeweave.core.progress import RECORD_KINDS, Tally
from citeweave.corpus.paper import CitationBlock, ContextBlock, NumberedCitations, NumberedPapers
from citeweave.corpus.readers import FORMATS, guess_format, reader_of
from citeweave.search.describe import describe_folder
from citeweave.search.state import is_index

from .artifacts import contents, make_artifacts
from .trying import MORE_MEMORY, in_child, measured, try_all

# --- ways to spoil a file ---------------------------------------------------------------------------------

Way = Callable[[bytes, bytes, random.Random], bytes]

_NUMBER = re.compile(rb"-?\d+")
_VERSION = re.compile(rb'("version": ?|NUMPY)(.)')
_HEAD = 256
"""Bytes at the beginning of a file, where formats have their sizes."""

_EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def corrupt(data: bytes, other: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The name of a way and what it makes of the data; `other` is a file that could lie in its place by mistake."""
    while True:
        name = rng.choice(list(WAYS))
        spoiled = WAYS[name](data, other, rng)
        if spoiled != data:
            return name, spoiled


def _flip(data: bytes, other: bytes, rng: random.Random, within: int | None = None) -> bytes:
    spoiled = bytearray(data)
    for _ in range(rng.randint(1, 3) if data else 0):
        spoiled[rng.randrange(min(len(data), within or len(data)))] ^= 1 << rng.randrange(8)
    return bytes(spoiled)


def _edit_number(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A number that is written in digits becomes another: a shape, a size, a count."""
    found = list(_NUMBER.finditer(data[: 1 << 16]))
    if not found:
        return _overwrite_word(data, other, rng)
    place = rng.choice(found)
    value = int(place[0])
    new = rng.choice([0, -1, value + 1, value - 1, value * 2, 10 ** rng.randint(3, 25), -value])
    return data[: place.start()] + str(new).encode() + data[place.end() :]


def _overwrite_word(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Four or eight bytes at a round place become an extreme number: an offset, a length, a row."""
    size = rng.choice([4, 8])
    at = rng.randrange(max(1, len(data) // size)) * size
    word = (rng.choice(_EXTREMES) % 2 ** (8 * size)).to_bytes(size, "little")
    return data[:at] + word[: len(data) - at] + data[at + size :]


def _zero(data: bytes, other: bytes, rng: random.Random) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.choice([1, 16, 512, 4096])
    return data[:at] + bytes(len(data[at : at + length])) + data[at + length :]


def _other_version(data: bytes, other: bytes, rng: random.Random) -> bytes:
    found = list(_VERSION.finditer(data[: 1 << 16]))
    if not found:
        return _flip(data, other, rng, within=_HEAD)
    place = rng.choice(found)
    is_numpy = place[1] == b"NUMPY"
    versions = [bytes([one]) for one in b"02399\x00\xff"] if is_numpy else [b"0", b"2", b"99", b"-1", b'"1"']
    return data[: place.start(2)] + rng.choice(versions) + data[place.end(2) :]


WAYS: dict[str, Way] = {
    "cut off": lambda data, other, rng: data[: rng.randrange(len(data) + 1)], "bits flipped": _flip,
    "bits flipped in the head": partial(_flip, within=_HEAD), "number edited": _edit_number, "word overwritten": _overwrite_word,
    "zeroed": _zero, "lengthened": lambda data, other, rng: data + rng.randbytes(rng.choice([1, 8, 100])),
    "swapped": lambda data, other, rng: other, "other version": _other_version,
}  # fmt: skip


# --- inputs -----------------------------------------------------------------------------------------------

SEEDS = Path(__file__).resolve().parents[2] / "corpus" / "readers" / "seeds"
PACKED: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}
PACKED |= {".xz": lzma.compress, ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}
MARKS = {".gz": 2, ".bz2": 3, ".xz": 6, ".zst": 4}
"""Bytes at the beginning by which a compressed file is told; without them it is a file of no known format."""


def test_corrupted_inputs(trial, tmp_path):
    files = [(path.name.partition(".")[0], path.read_bytes()) for path in sorted(SEEDS.iterdir())]
    assert {format for format, _ in files} == set(FORMATS)
    clean = in_child(lambda: [_measure(lambda one=one: _read(*one, tmp_path)) for one in files])

    def attempt(seed: int) -> int:
        rng, number = random.Random(seed), seed % len(files)
        format, data = files[number]
        suffix = rng.choice(["", "", "", *PACKED])
        way, spoiled = corrupt(PACKED[suffix](data), rng.choice(files)[1], rng)
        told = _read(format, spoiled, tmp_path)
        is_packed = suffix and spoiled[: MARKS[suffix]] == PACKED[suffix](data)[: MARKS[suffix]]
        if is_packed and told is not None:
            assert told == clean[number]["told"], f"a {suffix} file, {way}, is read as another one"
        return 2 * int(clean[number]["memory"]) + MORE_MEMORY

    try_all(trial, trial.numbers(quick=100, whole=4000), attempt)


def _measure(read: Callable[[], object]) -> dict[str, Any]:
    with measured() as memory:
        told = read()
    return {"told": told, "memory": memory[0]}


def _read(format: str, data: bytes, place: Path) -> str | None:
    """All records of a file and the account of them; None where it is refused."""
    path = place / "input file"
    path.write_bytes(data)
    tally, source, told = Tally(), Source(path), []
    try:
        guess_format(source)
        told += map(_as_text, reader_of(format).read(source, tally))
        assert all(told)
    except CiteweaveError as error:
        assert str(path) in str(error) and "\n" not in str(error), error
        return None
    rejected = [sorted(tally.counts[kind].rejected.items()) for kind in RECORD_KINDS]
    assert all(number > 0 for reasons in rejected for _, number in reasons)
    return f"{told} {rejected}"


def _as_text(record: object) -> str:
    match record:
        case CitationBlock() | NumberedCitations():
            assert len(record.citing) == len(record.cited)
            return repr((record.citing.tolist(), record.cited.tolist()))
        case ContextBlock():
            lengths, data = record.texts
            assert len(data) == lengths.sum() and len(lengths) == len(record.citing)
            return repr((lengths.tolist(), bytes(data).decode()))
    return repr(record.numbers.tolist() if isinstance(record, NumberedPapers) else record)


# --- artifacts --------------------------------------------------------------------------------------------

MAY_BE_EDITED = ("README.md", "training/")
WITHOUT_PROMISE = ("plain model",)
"""A stranger's model has a revision instead of hashes, by which its vectors are told from others."""

FALL_BACK = ("finished", "checkpoints", "library", "answers")
"""What is damaged is made again, or the one before it is taken."""


def test_corrupted_artifacts(trial, tmp_path, save_bert):
    def make() -> dict[str, str]:
        return {name: str(place) for name, place in make_artifacts(tmp_path / "made", save_bert).items()}

    places = {name: Path(place) for name, place in in_child(make).items()}
    names = sorted(places)
    torch.set_num_threads(1)  # a child has none of its parent's threads
    for name in ("delta model", "checkpoints"):
        contents(name, places[name])  # torch loads late what every child would load again
    clean = in_child(lambda: {name: _measure(lambda name=name: contents(name, places[name])) for name in names})
    _FALLEN_BACK.update(in_child(lambda: {name: _when_lost(name, places[name]) for name in FALL_BACK}))
    numbers = trial.numbers(quick=110, whole=6000)
    by_name = sorted(numbers, key=lambda seed: seed % len(names))  # a child loads what few kinds need

    def attempt(seed: int) -> int:
        name = names[seed % len(names)]
        _one_artifact(name, places[name], clean[name], random.Random(seed))
        return 2 * int(clean[name]["memory"]) + MORE_MEMORY

    try_all(trial, by_name, attempt)


_FALLEN_BACK: dict[str, list[str]] = {}


def _when_lost(name: str, folder: Path) -> list[str]:
    """What is read where there is nothing; of checkpoints also without the last one."""
    with tempfile.TemporaryDirectory() as place:
        found = [contents(name, Path(place))]
        if name == "checkpoints":
            before = shutil.copytree(min(folder.iterdir()), Path(place) / min(folder.iterdir()).name)
            found.append(contents(name, before.parent))
    return found


def _one_artifact(name: str, folder: Path, clean: dict[str, Any], rng: random.Random) -> None:
    """Spoil one file, look at everything, put it back."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    path = rng.choice(files)
    data = path.read_bytes()
    way, spoiled = corrupt(data, rng.choice(files).read_bytes(), rng)
    what = f"{name}/{path.relative_to(folder)}, {way}"
    path.write_bytes(spoiled)
    try:
        told = _contents_or_none(name, folder)
        is_promised = not path.relative_to(folder).as_posix().startswith(MAY_BE_EDITED)
        if is_promised and name not in WITHOUT_PROMISE:
            right = [None, clean["told"], *_FALLEN_BACK.get(name, [])]
            assert told in right, f"{what}: other contents were read, and nothing was said"
        # as an artifact is read that is too large to be looked at whole when it is opened
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(artifact, "SMALL", -1)
            _contents_or_none(name, folder)
        if (folder / MANIFEST).is_file() or is_index(folder):
            _check_verifying(folder, path, data, spoiled, what)
    finally:
        path.write_bytes(data)


def _contents_or_none(name: str, folder: Path) -> str | None:
    try:
        return contents(name, folder)
    except CiteweaveError as error:
        assert str(error) and "\n" not in str(error), error
        return None


def _check_verifying(folder: Path, path: Path, data: bytes, spoiled: bytes, what: str) -> None:
    try:
        describe_folder(folder, verify=True)
    except CiteweaveError:
        return
    if is_index(folder) and path.relative_to(folder).parts[0] not in ("generations", "state.json"):
        return  # a map can be drawn again; it is verified as an artifact of its own
    same = path.name == MANIFEST and read_any_manifest(path.parent).seal == _seal_of(path, data)
    assert same, f"{what}: --verify does not find it"


def _seal_of(path: Path, data: bytes) -> str:
    """The seal of the manifest as it was; what was written when and where does not count."""
    spoiled = path.read_bytes()
    path.write_bytes(data)
    try:
        return read_any_manifest(path.parent).seal
    except ArtifactError:
        return ""
    finally:
        path.write_bytes(spoiled)
