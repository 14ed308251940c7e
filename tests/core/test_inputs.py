"""Input files, compressed in any way: complete, in several parts, damaged, truncated."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import tracemalloc

import pytest
import zstandard

from citeweave.core.errors import InputError
from citeweave.core.inputs import Source
from citeweave.core.progress import Tally

from .conftest import refused

COMPRESSORS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
}
RANDOM = random.Random(0)
DATA = b"".join(b"%d\n" % RANDOM.getrandbits(60) for _ in range(20_000))


def read_all(path):
    with Source(path).open() as stream:
        return stream.read()


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_every_compression_is_read_and_damage_is_an_error(tmp_path, suffix):
    path, data = tmp_path / f"numbers.txt.{suffix}", COMPRESSORS[suffix](DATA)
    path.write_bytes(data)
    assert read_all(path) == DATA and Source(path).name == "numbers.txt"
    assert b"".join(Source(path).raw_lines(Tally(), "papers")) == DATA
    path.write_bytes(data + data)  # parts one after the other are one file
    assert read_all(path) == DATA + DATA
    middle = len(data) // 2
    changed = data[:middle] + bytes(255 - byte for byte in data[middle : middle + 100]) + data[middle + 100 :]
    for damaged in (changed, *(data[: int(len(data) * share)] for share in (0.1, 0.5, 0.999))):
        path.write_bytes(damaged)
        refused("damaged or truncated", read_all, path, error=InputError)


def test_a_bomb_takes_little_memory(tmp_path):
    path = tmp_path / "bomb.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(bytes(300 * 2**20)))
    tracemalloc.start()
    with Source(path).open() as stream:
        assert len(stream.read(10)) == 10
    assert tracemalloc.get_traced_memory()[1] < 150 * 2**20
    tracemalloc.stop()


def test_a_broken_block_inside_gzip_is_named(tmp_path):
    path = tmp_path / "broken.jsonl.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00 cut off")
    refused("damaged or truncated", Source(path).read_document, error=InputError)
