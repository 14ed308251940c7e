"""Folders of vectors: what is written is read, and what does not belong together is refused."""

from functools import partial

import numpy as np
import pytest

from citeweave.core.artifact import check_files
from citeweave.core.columns import TextColumn, TextWriter
from citeweave.core.errors import ArtifactError, EmptyResultError, UserError
from citeweave.vectors.vectors import Provenance, Vectors, new_vectors

from ..conftest import refused
from .conftest import change_facts, write_blocks

write = partial(write_blocks, new_vectors)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_written_is_read(tmp_path, dtype):
    rng = np.random.default_rng(0)
    ids, matrix = [f"s2:{i * 7}" for i in range(1000)] + ["doi:10.1/é"], rng.normal(size=(1001, 5))
    write(tmp_path / "v", ids, matrix, block=64, dtype=dtype, revision="r", text_recipe="t", source="s")
    vectors = Vectors.open(tmp_path / "v")
    assert len(vectors) == 1001 and list(vectors.ids) == ids
    assert np.array_equal(vectors.matrix, matrix.astype(dtype)) and vectors.matrix.dtype == dtype
    assert vectors.matrix.flags.c_contiguous and not vectors.matrix.flags.writeable
    assert vectors.provenance == Provenance("m", "r", "t", 5, dtype, "s")
    assert np.array_equal(np.load(tmp_path / "v/matrix.npy"), vectors.matrix)
    check_files(tmp_path / "v", vectors.manifest, content=True)
    files = sorted(path.name for path in (tmp_path / "v").iterdir())
    assert files == ["id.offsets.npy", "id.utf8", "manifest.json", "matrix.npy"]


def test_ids_lead_to_rows(tmp_path):
    vectors = write(tmp_path / "v", ["b", "a", "c"], np.arange(6.0).reshape(3, 2))
    assert vectors.rows(["a", "nobody", "c", "a", "\ud800"]).tolist() == [1, -1, 2, 1, -1]
    assert vectors.rows([]).tolist() == []
    assert vectors.take(["c", "a"]).tolist() == [[4, 5], [2, 3]]
    assert vectors.take([]).shape == (0, 2)
    refused("no vector of 2 of 3 papers, such as 'x'", vectors.take, ["a", "x", "y"])


def test_ids_are_copied_from_a_column(tmp_path):
    ids, matrix = ["a", "é", "", "longer", "e"], np.arange(10.0).reshape(5, 2)
    column = TextWriter(tmp_path, "id")
    column.append(ids)
    column.close()
    matrix[3, 1] = 1e6  # too large for float16
    with new_vectors(tmp_path / "v", model="m", dtype="float16") as writer:
        for first in (0, 2):
            writer.append_column(TextColumn(tmp_path, "id"), first, matrix[first : first + 2 + first // 2])
        vectors = writer.finish()
    assert list(vectors.ids) == ["a", "é", "", "e"] and vectors.matrix[:, 0].tolist() == [0, 2, 4, 8]
    assert vectors.rows(["é", "longer"]).tolist() == [1, -1]
    assert vectors.manifest.facts["records"]["vectors"]["rejected"] == {"number that is not finite": 1}


def test_of_equal_ids_the_first_is_kept_and_bad_numbers_are_counted(tmp_path):
    ids = ["a", "b", "a", "c", "d", "b", "e"]
    matrix = np.arange(7.0)[:, None] * [1, 1]
    matrix[3, 0], matrix[4, 1] = np.nan, 1e6
    vectors = write(tmp_path / "v", ids, matrix, block=2, dtype="float16")
    assert list(vectors.ids) == ["a", "b", "e"] and vectors.matrix[:, 0].tolist() == [0, 1, 6]
    rejected = {"id given before": 2, "number that is not finite": 2}
    assert vectors.manifest.facts["records"]["vectors"] == {"read": 7, "kept": 3, "rejected": rejected}
    again = write(tmp_path / "again", ["a", "a"], np.array([[np.inf], [2.0]]))
    assert again.take(["a"]).tolist() == [[2.0]]
    numbers = np.random.default_rng(1).integers(0, 4000, 20_000)
    vectors = write(tmp_path / "many", [f"s2:{n}" for n in numbers], np.arange(20_000.0)[:, None], block=300)
    first = np.sort(np.unique(numbers, return_index=True)[1])
    assert vectors.matrix[:, 0].tolist() == first.tolist()


def test_nothing_is_left_of_a_failure(tmp_path):
    with pytest.raises(UserError, match="3 numbers cannot join vectors of 2"), new_vectors(tmp_path / "v") as writer:
        writer.append(["a"], np.zeros((1, 2)))
        writer.append(["b"], np.zeros((1, 3)))
    with pytest.raises(EmptyResultError, match="no vector was kept"), new_vectors(tmp_path / "v") as writer:
        writer.finish()
    refused("1: number that is not finite", write, tmp_path / "v", ["a"], np.array([[np.nan]]), error=EmptyResultError)
    refused("0 numbers", write, tmp_path / "v", ["a"], np.empty((1, 0)))
    assert list(tmp_path.iterdir()) == []


def provenance(**changes):
    texts = dict.fromkeys(("revision", "text_recipe", "source"), "")
    return Provenance(**{"model": "m", "dimension": 2, "dtype": "f", **texts} | changes)


ORIGINS = [
    ({"model": "specter"}, {"model": "scincl"}, "vectors of specter and of scincl cannot be compared: the models"),
    ({}, {"model": ""}, "of m and of an unnamed model cannot"),
    ({}, {"dimension": 3}, r"of m and of m cannot be compared: the dimensions \(2 and 3\) differ"),
    ({"revision": "1"}, {"revision": "2"}, "of m@1 and of m@2 cannot be compared: the revisions of the model"),
    ({"text_recipe": "aa"}, {"text_recipe": "bb"}, r"the text recipes \(aa and bb\) differ"),
]


@pytest.mark.parametrize(("one", "other", "message"), ORIGINS)
def test_only_vectors_of_one_origin_are_comparable(one, other, message):
    provenance(dtype="float16", source="a").check_same(provenance(dtype="float32", source="b"))
    provenance(revision="1", text_recipe="aa").check_same(provenance())
    refused(message, provenance(**one).check_same, provenance(**other))


DAMAGE = {"rows": [3, 0, None], "dimension": [1], "dtype": ["object", "float16"], "model": [3]}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in DAMAGE.items() for value in values])
def test_a_damaged_manifest_is_an_error_not_a_crash(tmp_path, key, value):
    write(tmp_path / "v", ["a", "b"], np.ones((2, 2)))
    change_facts(tmp_path / "v", {key: value})
    with pytest.raises(ArtifactError):
        Vectors.open(tmp_path / "v")


def test_damaged_offsets_are_an_error_not_a_crash(tmp_path):
    write(tmp_path / "v", ["a", "b", "c"], np.ones((3, 2)))
    np.save(tmp_path / "v/id.offsets.npy", np.array([0, 10**12, 2, 3]))
    refused("damaged", lambda: Vectors.open(tmp_path / "v").rows(["a"]), error=ArtifactError)
