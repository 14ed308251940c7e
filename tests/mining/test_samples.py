"""The samples artifact: written, opened, checked; triplets."""

import json
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import ArtifactError, EmptyResultError, UserError
from citeweave.mining.samples import SampleNames, Samples, block_from_lists, new_samples, take_samples

NAMES = SampleNames(rules=("near", "far"), aspects=("", "method"))


def written(folder, *blocks):
    with new_samples(folder, NAMES, corpus="abc") as writer:
        for block in blocks:
            writer.append(block)  # type: ignore[arg-type]
        return writer.finish()


def test_blocks_are_appended(tmp_path):
    first = block_from_lists([7, 8], [[1, 2], [3]], [[4], [5, 6]], negative_rule=1)
    second = block_from_lists([9], [[1]], [[]])
    samples = written(tmp_path / "s", first, second)
    assert samples.anchors.tolist() == [7, 8, 9]
    assert [samples.positives.of(i).tolist() for i in range(3)] == [[1, 2], [3], [1]]
    assert [samples.negatives.of(i).tolist() for i in range(3)] == [[4], [5, 6], []]
    assert samples.negatives.rules.tolist() == [1, 1, 1]
    assert np.isnan(samples.positives.scores).all()
    assert Samples.open(tmp_path / "s").names == NAMES


def test_triplets_begin_the_shorter_list_anew(tmp_path):
    block = block_from_lists([7, 8, 9], [[1, 2], [3], [4]], [[4], [5, 6], []])
    triplets = written(tmp_path / "s", block).triplets()
    assert triplets.rows().tolist() == [[7, 1, 4], [7, 2, 4], [8, 3, 5], [8, 3, 6]]
    assert triplets.samples.tolist() == [0, 0, 1, 1]


def test_some_samples_of_a_block():
    block = block_from_lists([7, 8, 9], [[1, 2], [3], [4]], [[4], [5, 6], []])
    kept = take_samples(block, np.array([False, True, True]))
    assert kept.anchors.tolist() == [8, 9]
    assert kept.positives.of(0).tolist() == [3]
    assert kept.negatives.of(0).tolist() == [5, 6]
    assert kept.negatives.of(1).tolist() == []


def test_nothing_is_an_error_and_leaves_no_folder(tmp_path):
    with (
        pytest.raises(EmptyResultError, match="no sample could be made"),
        new_samples(tmp_path / "s", NAMES, corpus="x") as writer,
    ):
        writer.finish()
    assert not (tmp_path / "s").exists()


def test_another_corpus_is_refused(tmp_path):
    samples = written(tmp_path / "s", block_from_lists([1], [[2]], [[3]]))
    samples.check_corpus("abc", Path("corpus"))
    with pytest.raises(UserError, match="was mined from another corpus"):
        samples.check_corpus("def", Path("corpus"))


def test_damage_is_noticed(as_large, tmp_path):
    written(tmp_path / "s", block_from_lists([1, 2], [[2], [3]], [[3], [4]]))
    path = tmp_path / "s" / "positives" / "offsets.npy"
    data = bytearray(path.read_bytes())
    data[136:144] = (7).to_bytes(8, "little")
    path.write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match="do not fit together"):
        Samples.open(tmp_path / "s")
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    del manifest["facts"]["rules"], manifest["seal"]
    (tmp_path / "s" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="does not describe samples"):
        Samples.open(tmp_path / "s")
