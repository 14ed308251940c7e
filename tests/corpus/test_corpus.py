"""Opening a corpus: its index of ids, and refusing what is damaged or was replaced."""

import json
import shutil

import numpy as np
import pytest

from citeweave import Corpus, ImportOptions, import_papers
from citeweave.core.columns import write_numbers
from citeweave.core.errors import ArtifactError
from citeweave.corpus.id_index import IdIndex

from .conftest import refused


@pytest.mark.parametrize("column", ["titles", "years", "citing", "contexts", "index", "flags"])
def test_a_corpus_that_was_replaced_since_it_was_opened_is_not_mixed(library, tmp_path, column):
    import_papers(library, tmp_path / "corpus")
    opened = Corpus.open(tmp_path / "corpus")
    assert opened.abstracts
    import_papers(library, tmp_path / "corpus", ImportOptions(outside="keep"), overwrite=True)
    refused("was replaced while it was read", getattr, opened, column, error=ArtifactError)
    assert getattr(Corpus.open(tmp_path / "corpus"), column) is not None


def test_damaged_corpora_are_refused(library, tmp_path):
    import_papers([library], tmp_path / "corpus")
    for name in ("papers/title.utf8", "papers/year.npy", "index/key.npy"):
        broken = shutil.copytree(tmp_path / "corpus", tmp_path / name.replace("/", "-"))
        (broken / name).write_bytes((broken / name).read_bytes()[:-1])
        refused("make .* again", Corpus.open, broken, error=ArtifactError)
    manifest = json.loads((tmp_path / "corpus/manifest.json").read_text()) | {"version": 99}
    (tmp_path / "corpus/manifest.json").write_text(json.dumps(manifest))
    refused("version 99", Corpus.open, tmp_path / "corpus", error=ArtifactError)


@pytest.mark.parametrize(("name", "value"), [("cited_offsets", 9), ("outside_offsets", -1), ("cited", 1000)])
def test_damaged_contexts_of_a_large_corpus_are_refused(library, tmp_path, as_large, name, value):
    import_papers([library], tmp_path / "corpus", ImportOptions(outside="keep"))
    path = tmp_path / f"corpus/contexts/{name}.npy"
    numbers = np.load(path)
    numbers[0] = value
    np.save(path, numbers)
    with pytest.raises(ArtifactError, match="is damaged"):
        _ = Corpus.open(tmp_path / "corpus").contexts


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 100, 5000])
def test_the_index_finds_every_key_and_no_other(tmp_path, size):
    rng = np.random.default_rng(size)
    keys = np.unique(rng.integers(1, 2**64, size, dtype=np.uint64))
    rows = rng.permutation(len(keys)).astype(np.int32)
    IdIndex.of(keys, rows).save(tmp_path)
    index = IdIndex.open(tmp_path)
    assert index.rows_of(keys).tolist() == rows.tolist()
    others = np.setdiff1d(rng.integers(1, 2**64, 1000, dtype=np.uint64), keys)
    assert (index.rows_of(others) == -1).all()
    edges = np.array([1, 2**64 - 1], np.uint64)
    assert index.rows_of(edges).tolist() == [int(rows[keys.tolist().index(e)]) if e in keys else -1 for e in edges]


def test_an_index_whose_table_does_not_fit_is_refused(tmp_path):
    keys = np.arange(1, 100, dtype=np.uint64) << np.uint64(50)
    IdIndex.of(keys, np.arange(99, dtype=np.int32)).save(tmp_path)
    starts = np.load(tmp_path / "starts.npy").copy()
    starts[1] = 10**9
    write_numbers(tmp_path / "starts.npy", starts)
    refused("damaged", IdIndex.open, tmp_path, error=ArtifactError)
