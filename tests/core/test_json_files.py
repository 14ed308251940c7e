"""The outer shapes of JSON files."""

import pytest

from citeweave.core import json_files
from citeweave.core.errors import InputError
from citeweave.core.inputs import Source
from citeweave.core.progress import Tally

from ..conftest import refused


def values(tmp_path, text, read=json_files.read_json_values):
    (tmp_path / "file.json").write_text(text, encoding="utf-8")
    tally = Tally()
    return list(read(Source(tmp_path / "file.json"), tally, "papers")), tally.counts["papers"].rejected


TWO = [{"id": 1}, {"id": 2}]


DOCUMENTS = [
    ('{"id": 1}\n{"id": 2}\n', TWO, 0),
    ('[{"id": 1}, {"id": 2}]', TWO, 0),
    ('[\n{"id": 1},\n{"id": 2}\n]', TWO, 0),
    ('\n\ufeff{"id": 1}\r\n\r\n{"id": 2}', TWO, 0),
    ('{\n "id": 1,\n "b": [\n  2\n ]\n}', [{"id": 1, "b": [2]}], 0),
    ('[\n{"id": 1}\n]', TWO[:1], 0),
    ('{"id": \n{"id": 2}\n', TWO[1:], 1),
    ('{"id": 1}\n{"id": \n', TWO[:1], 1),
    ("", [], 0),
    ("\n \n", [], 0),
]


@pytest.mark.parametrize(("text", "expected", "rejected"), DOCUMENTS)
def test_lines_lists_and_documents_are_read_and_broken_lines_counted(tmp_path, text, expected, rejected):
    assert values(tmp_path, text) == (expected, {"not valid JSON": 1} if rejected else {})


def test_a_broken_document_is_an_input_error(tmp_path):
    refused(r"file\.json is not one JSON document", values, tmp_path, '{\n "id": 1,\n', error=InputError)


def test_a_document_on_one_line_may_be_longer_than_any_record(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "MAX_LINE", 16)
    text = '{"id": "longer than sixteen bytes"}'
    assert values(tmp_path, text) == ([{"id": "longer than sixteen bytes"}], {})


def test_only_objects_are_yielded(tmp_path):
    found = values(tmp_path, '[{"id": 1}, null, 3]', json_files.read_json_objects)
    assert found == (TWO[:1], {"not a JSON object": 2})
