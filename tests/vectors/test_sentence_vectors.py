"""Folders of sentence vectors: what is written is read, and what does not belong together is refused."""

from functools import partial

import numpy as np
import pytest

from citeweave.core.artifact import check_files
from citeweave.core.errors import ArtifactError, EmptyResultError, UserError
from citeweave.vectors.sentence_vectors import SentenceVectors, new_sentence_vectors
from citeweave.vectors.vectors import Provenance

from ..conftest import refused
from .conftest import change_facts, write_blocks


def made_up(count, dimension=3):
    rng = np.random.default_rng(0)
    return [f"s2:{at}é" for at in range(count)], [rng.normal(size=(at % 5, dimension)) for at in range(count)]


write = partial(write_blocks, new_sentence_vectors)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_written_is_read(tmp_path, dtype):
    ids, papers = made_up(50)
    write(tmp_path / "v", ids, papers, block=7, dtype=dtype, revision="r", text_recipe="t", source="s")
    vectors = SentenceVectors.open(tmp_path / "v")
    assert len(vectors) == 50 and list(vectors.ids) == ids and vectors.lengths().tolist() == [len(p) for p in papers]
    for row, paper in enumerate(papers):
        assert np.array_equal(vectors.sentences(row), paper.astype(dtype))
    assert vectors.matrix.dtype == dtype and not vectors.matrix.flags.writeable
    assert vectors.numbers.tolist() == [number for paper in papers for number in range(len(paper))]
    assert vectors.provenance == Provenance("m", "r", "t", 3, dtype, "s")
    assert vectors.manifest is not None
    check_files(tmp_path / "v", vectors.manifest, content=True)


def test_memory_and_folder_hold_the_same(tmp_path):
    ids, papers = made_up(20)
    numbers = [np.arange(len(paper)) * 2 for paper in papers]
    with new_sentence_vectors(tmp_path / "v", dtype="float32") as writer:
        writer.append(ids[:9], papers[:9], numbers[:9])
        writer.append(ids[9:], papers[9:], numbers[9:])
        one = writer.finish()
    other = SentenceVectors.of(ids, papers, numbers=numbers)
    for name in ("offsets", "matrix", "numbers"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert getattr(one, name).dtype == getattr(other, name).dtype, name
    wanted = [ids[7], "nobody", ids[0], "\ud800"]
    assert one.rows(wanted).tolist() == other.rows(wanted).tolist() == [7, -1, 0, -1]
    assert one.rows([]).tolist() == []


def test_of_equal_ids_the_first_is_kept_and_bad_numbers_are_counted(tmp_path):
    papers = [np.full((2, 2), float(at)) for at in range(6)]
    papers[1][1, 0], papers[2][0, 0] = np.nan, 1e6
    vectors = write(tmp_path / "v", ["a", "b", "c", "a", "b", "d"], papers, block=2, dtype="float16")
    assert list(vectors.ids) == ["a", "b", "d"] and vectors.matrix[::2, 0].tolist() == [0, 4, 5]
    rejected = {"number that is not finite": 2, "id given before": 1}
    assert vectors.manifest.facts["records"]["papers"] == {"read": 6, "kept": 3, "rejected": rejected}


def test_memory_refuses_what_a_folder_counts():
    one = np.ones((1, 2))
    for ids, papers, numbers, error, message in (
        ("ab", [one, one * np.inf], None, UserError, "1 of 2 papers, such as 'b', have a number that is not finite"),
        ("abaa", [one] * 4, None, UserError, "2 of 4 papers have an id given before"),
        ("ab", [one, np.ones((1, 3))], None, UserError, "3 numbers cannot join vectors of 2"),
        ("a", [np.ones((2, 2))], [np.array([0])], ValueError, "must be as many as its sentences"),
        ("a", [np.ones(2)], None, ValueError, r"the shape \(2,\)"),
        ("ab", [one], None, ValueError, "1 papers for 2 ids"),
    ):
        refused(message, SentenceVectors.of, list(ids), papers, numbers=numbers, error=error)


def test_nothing_is_left_of_a_failure(tmp_path):
    for papers, error, message in (
        ([np.zeros((1, 2)), np.zeros((1, 3))], UserError, "3 numbers cannot join vectors of 2"),
        ([], EmptyResultError, "there was none"),
        ([np.array([[np.nan]])], EmptyResultError, "1: number that is not finite"),
        ([np.empty((0, 3))], EmptyResultError, "no sentence vector"),
        ([np.empty((1, 0))], UserError, "0 numbers"),
    ):
        refused(message, write, tmp_path / "v", ["a", "b"][: len(papers)], papers, block=1, error=error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [{"rows": 2}, {"dimension": 1}, {"dtype": "float16"}, {"model": 3}])
def test_a_damaged_manifest_is_an_error_not_a_crash(tmp_path, damage):
    write(tmp_path / "v", ["a", "b"], [np.ones((2, 2)), np.ones((1, 2))])
    change_facts(tmp_path / "v", damage)
    with pytest.raises(ArtifactError):
        SentenceVectors.open(tmp_path / "v")


@pytest.mark.parametrize("offsets", [[0, 3], [0, 2, 4], [1, 2, 3], [0, 5, 3], [0, -1, 3]])
def test_damaged_offsets_are_an_error_not_a_crash(as_large, tmp_path, offsets):
    write(tmp_path / "v", ["a", "b"], [np.ones((2, 2)), np.ones((1, 2))])
    np.save(tmp_path / "v/offsets.npy", np.array(offsets))
    refused("do not fit together|another size", SentenceVectors.open, tmp_path / "v", error=ArtifactError)
