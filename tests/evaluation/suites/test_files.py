"""Files of benchmarks: read whole, or refused with the file, the line and the next step."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from citeweave.core.errors import InputError
from citeweave.evaluation.suites.benchmark_files import (
    DataFolder,
    as_grade,
    as_id,
    read_csv,
    read_json,
    read_json_lines,
    read_qrel,
    require_file,
)


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_missing_file_is_named_with_what_it_holds(tmp_path):
    with pytest.raises(InputError, match=r"x\.qrel is missing: it holds the grades; download it"):
        require_file(tmp_path / "x.qrel", "the grades")
    (tmp_path / "y").mkdir()
    with pytest.raises(InputError, match="y is a folder, not a file"):
        require_file(tmp_path / "y", "the grades")
    with pytest.raises(InputError, match="nowhere is not a folder"):
        DataFolder(tmp_path / "nowhere")


def test_a_compressed_file_stands_for_the_plain_one(tmp_path):
    written(tmp_path, "x.qrel.gz", gzip.compress(b"q 0 a 1\n"))
    data = DataFolder(tmp_path)
    assert data.has("x.qrel") and data.absent("x.qrel", "y.qrel") == ["y.qrel"]
    assert read_qrel(data.file("x.qrel", "grades")) == {"q": {"a": 1}}
    assert list(data.hashes()) == ["x.qrel"]


def test_qrels_keep_the_order_of_the_file(tmp_path):
    path = written(tmp_path, "q", "q2 0 b 0\nq1 0 c 2\n\nq2\t0 a 1\r\n")
    pools = read_qrel(path)
    assert list(pools) == ["q2", "q1"] and list(pools["q2"].items()) == [("b", 0), ("a", 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q 0 a 1\nq 0 b\n", "line 2 has 3 of the 4 parts"),
        ("q 0 a 1\nq 0 a 0\n", "line 2 judges query q and candidate a a second time; remove one"),
        ("q 0 a one\n", "line 1: the grade is 'one'"),
        ("q 0 a 0.5\n", "a grade is an integer"),
        ("\n", "is empty"),
        (b"q 0 a\xff 1\n", "not UTF-8"),
    ],
)
def test_a_broken_qrel_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_qrel(written(tmp_path, "q", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ('{"a": [1,\n"b', "ends in the middle of its JSON at line 2"),
        ('{"a": 1,\n', "ends in the middle"),
        ('{"a": 1}\n{"b": 2}', "is not valid JSON at line 2"),
    ],
)
def test_broken_json_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_json(written(tmp_path, "x.json", text))
    assert read_json(written(tmp_path, "y.json", '\ufeff{"a": NaN}'))["a"] != 0


def test_ids_of_json_lines_become_text(tmp_path):
    path = written(tmp_path, "x.jsonl", '{"id": 7, "t": 1}\n\n{"id": "b", "t": 2}\n')
    assert [record["id"] for record in read_json_lines(path, keys=["t"], ids=["id"])] == ["7", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": 1}\n{"id"', "line 2 is not valid JSON; the file is damaged or half downloaded"),
        ("[1]\n", "line 1 is not a JSON object"),
        ('{"name": 1}\n', "line 1 has no 'id'; it has 'name'"),
        ('{"id": null}\n', "line 1: id is None; an id is a string or an integer"),
        ("", "is empty"),
    ],
)
def test_broken_json_lines_are_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        list(read_json_lines(written(tmp_path, "x.jsonl", text), ids=["id"]))


def test_csv_gives_the_wanted_columns(tmp_path):
    path = written(tmp_path, "x.csv", 'more,pid,label\n1,a,"x,\ny"\n\n2,b,z\n')
    assert list(read_csv(path, ["pid", "label"])) == [{"pid": "a", "label": "x,\ny"}, {"pid": "b", "label": "z"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "has no column 'pid'; its first line is 'a, b'"),
        ("pid,label\na,1\nb\n", "line 3 has 1 of 2 columns; the file is damaged"),
    ],
)
def test_broken_csv_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        list(read_csv(written(tmp_path, "x.csv", text), ["pid"]))


def test_grades_and_ids():
    assert [as_grade(value, "g") for value in (1, "2", 3.0, "-1", "1.0")] == [1, 2, 3, -1, 1]
    for bad in (0.5, True, None, "x", float("nan"), float("inf")):
        with pytest.raises(InputError, match="g is "):
            as_grade(bad, "g")
    for bad in ("", None, 1.5, True, ["a"]):
        with pytest.raises(InputError, match="an id is"):
            as_id(bad, "x")


@pytest.mark.parametrize("value", [10**19, -(10**19), "9" * 30, 1e300])
def test_grades_without_bounds_are_refused(value: object) -> None:
    with pytest.raises(InputError, match="a grade is an integer"):
        as_grade(value, "the grade")
