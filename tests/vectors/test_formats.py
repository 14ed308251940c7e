"""Published vectors: every shape is read, every record is kept or counted, nothing half-written stays."""

import contextlib
import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citeweave.core import inputs
from citeweave.core.errors import EmptyResultError, InputError, UserError
from citeweave.core.publish import work_folder
from citeweave.vectors.formats import import_vectors

from ..conftest import refused

MATRIX = np.array([[0.5, -1.0, 2.0], [0.25, 0.0, 4.0], [1.0, 1.0, 1.0]], np.float32)


def write(path, *records):
    data = "\n".join(record if isinstance(record, str) else json.dumps(record) for record in records).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def shard(corpusid, vector, model="specter_v2@v0.1.1"):
    return {"corpusid": corpusid, "model": model, "vector": vector, "updated": "2024-01-01"}


def counts(vectors):
    found = vectors.manifest.facts["records"]["vectors"]
    assert found["read"] == found["kept"] + sum(found["rejected"].values()) and found["kept"] == len(vectors)
    return dict(found["rejected"])


def test_shards_of_semantic_scholar(tmp_path):
    one = write(tmp_path / "one.jsonl.gz", shard(1, "[0.5, -1.0, 2.0]"), shard("2", [0.25, 0, 4]))
    two = write(tmp_path / "two.jsonl.gz", shard(3, "[1, 1, 1]"), shard(1, "[9, 9, 9]"), shard(None, "[1, 1, 1]"))
    vectors = import_vectors([one, two], tmp_path / "v")
    assert list(vectors.ids) == ["s2:1", "s2:2", "s2:3"] and np.array_equal(vectors.matrix, MATRIX)
    assert vectors.matrix.dtype == np.float16
    assert (vectors.provenance.model, vectors.provenance.revision) == ("specter_v2", "v0.1.1")
    assert vectors.provenance.source == "one.jsonl.gz, two.jsonl.gz"
    assert counts(vectors) == {"id given before": 1, "no usable id": 1}


@pytest.mark.parametrize("name", ["paper_id", "doc_id", "id"])
def test_lines_of_specter_scidocs_and_scirepeval(tmp_path, name):
    records = [("a" * 40, MATRIX[0].tolist()), (77, MATRIX[1].tolist()), ("c", [])]
    path = write(tmp_path / "cls.jsonl", *({name: id, "title": "T", "embedding": vector} for id, vector in records))
    vectors = import_vectors([path], tmp_path / "v", model="specter", revision="1", dtype="float32")
    assert list(vectors.ids) == ["a" * 40, "77"] and np.array_equal(vectors.matrix, MATRIX[:2])
    assert vectors.provenance.label == "specter@1" and counts(vectors) == {"no vector": 1}


def test_bad_records_are_counted(tmp_path):
    path = write(
        tmp_path / "cls.jsonl",
        shard(1, "[1, 2]"),
        *(shard(9, vector) for vector in ("[1, 2", "[1, 2, 3]", '["1", "2"]', [[1, 2]], {"a": 1}, True, [None, 1], "")),
        shard(9, '[1, "x"]'),
        '{"corpusid": 9, "model": "specter_v2@v0.1.1", "vector": [NaN, 1.0]}',
        shard(9, "[1e39, 0]"),
        shard(9, [10**400, 1]),
        shard("x1", "[1, 2]"),
        {"corpusid": True, "vector": [1, 2]},
        "not JSON",
        "[1]",
    )
    of_lines = {"not a JSON object": 1, "not valid JSON": 2, "no usable id": 2, "no vector": 1}
    of_numbers = {"number that is not finite": 2, "vector that is not a list of numbers": 7}
    rejected = {"another length than the first vector": 1, **of_lines, **of_numbers}
    assert counts(import_vectors([path], tmp_path / "v")) == rejected


@pytest.mark.parametrize("ending", [".ids", ".ids.txt", ".txt"])
def test_an_array_with_a_list_of_ids(tmp_path, ending):
    np.save(tmp_path / "x.npy", MATRIX.astype(">f8"))
    (tmp_path / f"x{ending}").write_text("a\r\n\nc c\n\n")
    vectors = import_vectors([tmp_path], tmp_path / "v", model="m")
    assert list(vectors.ids) == ["a", "c c"] and np.array_equal(vectors.matrix, MATRIX[[0, 2]])
    assert counts(vectors) == {"no usable id": 1} and vectors.provenance.source == "x.npy"


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float16(), 3)])
def test_parquet(tmp_path, kind):
    rows = [*MATRIX.tolist(), None, [1.0, None, 1.0]]
    if not pa.types.is_fixed_size_list(kind):
        rows.append([])
    lists = pa.array([None if r is None else [None if x is None else np.float16(x) for x in r] for r in rows], kind)
    ids = pa.array(range(1, len(rows) + 1))
    try:
        pq.write_table(pa.table({"corpusid": ids, "year": ids, "embedding": lists}), tmp_path / "x.parquet")
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow writes no lists of a fixed size that may be absent")
    vectors = import_vectors([tmp_path / "x.parquet"], tmp_path / "v")
    assert list(vectors.ids) == ["s2:1", "s2:2", "s2:3"] and np.array_equal(vectors.matrix, MATRIX)
    assert counts(vectors) == {"no vector": len(rows) - 4, "number that is not finite": 1}


def test_many_rows_of_parquet_keep_their_order_and_damage_is_named(tmp_path):
    matrix = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)
    table = pa.table({"id": [f"p{i}" for i in range(3000)], "emb": pa.array(list(matrix), pa.list_(pa.float32()))})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=700)
    vectors = import_vectors([tmp_path / "x.parquet"], tmp_path / "v", dtype="float32")
    assert vectors.ids[2999] == "p2999" and np.array_equal(vectors.matrix, matrix)
    for indices in ([0, 1], [-1, 0], [7]):
        damaged = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(["a"]), safe=False)
        for column in (damaged, pa.ListArray.from_arrays(pa.array([0, len(indices)], pa.int32()), damaged)):
            message = "x.parquet is damaged: a column refers to texts that it does not hold"
            refused(message, inputs._expanded_size, column, Path("x.parquet"), error=InputError)


def test_models_and_lengths_are_not_mixed(tmp_path):
    one = write(tmp_path / "one.jsonl", shard(1, "[1, 2]"))
    other = write(tmp_path / "other.jsonl", shard(2, "[1, 2]", model="specter_v1@3"))
    unnamed = write(tmp_path / "unnamed.jsonl", {"id": "a", "embedding": [1, 2]})
    first = write(tmp_path / "first.jsonl", *(shard(i, [1.0] * (2 if i else 3)) for i in range(5)))
    for paths, message in (
        ([one, other], r"other.jsonl holds vectors of 'specter_v1@3'.*are of 'specter_v2@v0.1.1'"),
        ([one, unnamed], "unnamed.jsonl holds vectors of an unnamed model"),
        ([first], "4 vectors have another length than the first one, 3, and only 1"),
    ):
        refused(message, import_vectors, paths, tmp_path / "v")
    assert len(list(tmp_path.iterdir())) == 4
    assert import_vectors([one], tmp_path / "v", model="mine").provenance.label == "mine"


def test_the_same_import_is_not_done_twice(tmp_path):
    path = write(tmp_path / "x.jsonl", shard(1, "[1, 2]"))
    first = import_vectors([path], tmp_path / "v")
    assert import_vectors([path], tmp_path / "v").manifest.made == first.manifest.made
    write(path, shard(2, "[1, 2]"))
    refused("overwrite", import_vectors, [path], tmp_path / "v")
    assert list(import_vectors([path], tmp_path / "v", overwrite=True).ids) == ["s2:2"]


def header(shape, descr="'<f4'"):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


HOSTILE = {
    "rows": ("x.npy", header("(1000000000000, 768)") + bytes(64)),
    "overflow": ("x.npy", header("(99999999999999999999999, 768)") + bytes(64)),
    "negative": ("x.npy", header("(-1, 2)") + bytes(64)),
    "objects": ("x.npy", header("(1, 2)", "'|O'") + bytes(64)),
    "texts": ("x.npy", header("(2, 2)", "'<U1'") + bytes(64)),
    "flat": ("x.npy", header("(4,)") + bytes(64)),
    "no numbers": ("x.npy", header("(2, 0)") + bytes(64)),
    "brackets": ("x.npy", header("(" * 50) + bytes(64)),
    "cut off": ("x.npy", b"\x93NUMPY\x01"),
    "cut off gzip": ("x.jsonl.gz", gzip.compress(json.dumps(shard(1, "[1, 2]")).encode() * 9)[:60]),
    "cut off Parquet": ("x.parquet", b"PAR1" + bytes(100)),
    "no Parquet": ("x.parquet", b"PAR1"),
    "list": ("x.json", b'[{"id": 1, "embedding": [1]}]'),
    "papers": ("x.jsonl", b'{"corpusid": 1, "title": "T"}'),
    "text": ("x.txt", b"0.1 0.2"),
    "nothing": ("x.jsonl", b""),
    "zip": ("x.npz", b"PK\x03\x04"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_cannot_be_read_is_one_clear_error(tmp_path, case):
    name, data = HOSTILE[case]
    (tmp_path / name).write_bytes(data)
    (tmp_path / "x.ids").write_text("a\nb\n")
    with pytest.raises(InputError) as caught:
        import_vectors([tmp_path / name], tmp_path / "v")
    assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({name, "x.ids"})


def test_inputs_that_do_not_fit_together_are_one_clear_error(tmp_path):
    def check(name, error, message, **options):
        refused(message, import_vectors, [tmp_path / name], tmp_path / "v", error=error, **options)

    np.save(tmp_path / "x.npy", MATRIX)
    check("x.npy", InputError, r"no list of ids beside it; write x\.ids")
    (tmp_path / "x.ids").write_text("a\nb\n")
    check("x.npy", InputError, r"x\.ids has 2 ids for the 3 rows")
    pq.write_table(pa.table({"name": ["a"], "embedding": [[1.0]]}), tmp_path / "x.parquet")
    check("x.parquet", InputError, "its columns are name, embedding")
    write(tmp_path / "x.jsonl", shard(1, "[]"))
    check("x.jsonl", UserError, "--dtype is 'int8'", dtype="int8")
    check("x.jsonl", EmptyResultError, "1: no vector")
    check("absent", UserError, "does not exist")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["[1, 2]", "[1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)
LINES = st.dictionaries(st.sampled_from(["corpusid", "id", "vector", "embedding", "model"]), ANYTHING, max_size=5)
SETTINGS = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check_any(folder, path):
    with contextlib.suppress(UserError):
        counts(import_vectors([path], folder / "v", overwrite=True))
    assert not work_folder(folder / "v").exists()


@SETTINGS
@given(records=st.lists(LINES | ANYTHING, max_size=5))
def test_any_json_lines(tmp_path, records):
    check_any(tmp_path, write(tmp_path / "x.jsonl", {"id": 1, "vector": [1.0, 2.0]}, *records))


@SETTINGS
@given(at=st.integers(0, 127), junk=st.binary(min_size=1, max_size=8))
def test_any_damage_to_an_array(tmp_path, at, junk):
    np.save(tmp_path / "x.npy", MATRIX)
    (tmp_path / "x.ids").write_text("a\nb\nc\n")
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data[:at] + junk + data[at + len(junk) :])
    check_any(tmp_path, tmp_path / "x.npy")


@SETTINGS
@given(data=st.data())
def test_any_damage_to_parquet(tmp_path, data):
    pq.write_table(pa.table({"id": ["a", "b"], "embedding": [[1.0, 2.0], [3.0, 4.0]]}), tmp_path / "x.parquet")
    whole = (tmp_path / "x.parquet").read_bytes()
    at, junk = data.draw(st.integers(4, len(whole))), data.draw(st.binary(min_size=1, max_size=4))
    (tmp_path / "x.parquet").write_bytes(whole[:at] + junk + whole[at + len(junk) :])
    check_any(tmp_path, tmp_path / "x.parquet")
