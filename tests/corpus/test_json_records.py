"""The outer shapes of JSON files."""

from __future__ import annotations

import pytest

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.readers import json_records
from citeweave.corpus.readers.json_records import read_json_objects, read_json_values, starts_as_json


@pytest.fixture
def values(tmp_path):
    def read(text: str) -> tuple[list[object], dict[str, int]]:
        path = tmp_path / "file.json"
        path.write_text(text, encoding="utf-8")
        tally = Tally()
        return list(read_json_values(Source(path), tally, "papers")), tally.counts["papers"].rejected

    return read


@pytest.mark.parametrize(
    "text",
    [
        '{"id": 1}\n{"id": 2}\n',
        '[{"id": 1}, {"id": 2}]',
        '[\n{"id": 1},\n{"id": 2}\n]',
        '\n\ufeff{"id": 1}\r\n\r\n{"id": 2}',
    ],
)
def test_lines_and_lists_give_the_same(values, text):
    assert values(text) == ([{"id": 1}, {"id": 2}], {})


def test_one_document_over_many_lines(values):
    assert values('{\n "id": 1,\n "b": [\n  2\n ]\n}') == ([{"id": 1, "b": [2]}], {})
    assert values('[\n{"id": 1}\n]') == ([{"id": 1}], {})


def test_a_broken_line_is_counted_wherever_it_stands(values):
    assert values('{"id": \n{"id": 2}\n') == ([{"id": 2}], {"not valid JSON": 1})
    assert values('{"id": 1}\n{"id": \n') == ([{"id": 1}], {"not valid JSON": 1})


def test_an_empty_file_has_no_records(values):
    assert values("") == ([], {}) == values("\n \n")


def test_a_broken_document_is_an_input_error(values):
    with pytest.raises(InputError, match=r"file\.json is not one JSON document"):
        values('{\n "id": 1,\n')


def test_a_document_on_one_line_longer_than_any_record(values, monkeypatch):
    monkeypatch.setattr(json_records, "MAX_LINE", 16)
    assert values('{"id": "longer than sixteen bytes"}') == ([{"id": "longer than sixteen bytes"}], {})


def test_objects_only(tmp_path):
    path = tmp_path / "file.json"
    path.write_text('[{"id": 1}, null, 3]', encoding="utf-8")
    tally = Tally()
    assert list(read_json_objects(Source(path), tally, "papers")) == [{"id": 1}]
    assert tally.counts["papers"].rejected == {"not a JSON object": 2}


def test_starts_as_json():
    assert starts_as_json(FileHead("a", b" \n[1]")) and not starts_as_json(FileHead("a", b"@article{a,"))
