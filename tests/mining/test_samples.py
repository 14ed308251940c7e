"""The samples artifact: written, opened, checked; triplets."""

import json
from pathlib import Path

import numpy as np

from citeweave.core.errors import ArtifactError
from citeweave.mining.samples import SampleNames, Samples, block_from_lists, take_samples

from .conftest import refused, write_samples

NAMES = SampleNames(rules=("near", "far"), aspects=("", "method"))
LISTS = [7, 8, 9], [[1, 2], [3], [4]], [[4], [5, 6], []]


def test_blocks_are_appended(tmp_path):
    first = block_from_lists([7, 8], [[1, 2], [3]], [[4], [5, 6]], negative_rule=1)
    samples = write_samples(tmp_path / "s", NAMES, "abc", first, ([9], [[1]], [[]]))
    assert samples.anchors.tolist() == [7, 8, 9]
    assert [samples.positives.of(i).tolist() for i in range(3)] == [[1, 2], [3], [1]]
    assert [samples.negatives.of(i).tolist() for i in range(3)] == [[4], [5, 6], []]
    assert samples.negatives.rules.tolist() == [1, 1, 1]
    assert np.isnan(samples.positives.scores).all()
    assert Samples.open(tmp_path / "s").names == NAMES
    samples.check_corpus("abc", Path("corpus"))
    refused("was mined from another corpus", samples.check_corpus, "def", Path("corpus"))


def test_triplets_begin_the_shorter_list_anew(tmp_path):
    triplets = write_samples(tmp_path / "s", NAMES, "abc", LISTS).triplets()
    assert triplets.rows().tolist() == [[7, 1, 4], [7, 2, 4], [8, 3, 5], [8, 3, 6]]
    assert triplets.samples.tolist() == [0, 0, 1, 1]


def test_some_samples_of_a_block():
    kept = take_samples(block_from_lists(*LISTS), np.array([False, True, True]))
    assert kept.anchors.tolist() == [8, 9] and kept.positives.of(0).tolist() == [3]
    assert [kept.negatives.of(i).tolist() for i in range(2)] == [[5, 6], []]


def test_damage_is_noticed(as_large, tmp_path):
    write_samples(tmp_path / "s", NAMES, "abc", ([1, 2], [[2], [3]], [[3], [4]]))
    path = tmp_path / "s" / "positives" / "offsets.npy"
    data = bytearray(path.read_bytes())
    data[136:144] = (7).to_bytes(8, "little")
    path.write_bytes(bytes(data))
    refused("do not fit together", Samples.open, tmp_path / "s", error=ArtifactError)
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    del manifest["facts"]["rules"], manifest["seal"]
    (tmp_path / "s" / "manifest.json").write_text(json.dumps(manifest))
    refused("does not describe samples", Samples.open, tmp_path / "s", error=ArtifactError)
