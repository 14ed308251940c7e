"""Streaming XML: bounded, without namespaces, without network, and one error for any damage."""

from __future__ import annotations

import pytest

from citeweave.corpus.parsing import xml_records
from citeweave.corpus.parsing.xml_records import outermost, plain_text, root_name
from citeweave.errors import InputError
from citeweave.opening import Head, Source


def titles(tmp_path, content: bytes) -> list[str]:
    path = tmp_path / "set.xml"
    path.write_bytes(content)
    found = xml_records.xml_records(Source(path), roots={"set", "paper"}, records={"paper"}, what="a set")
    return [plain_text(paper.find("title"), {"fn"}) for paper in found]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"<set><paper><title>A <i>b</i></title></paper><x/><paper/></set>", ["A b", ""]),
        (b"\n\n<?xml version='1.0'?><set><paper><title>after blank lines</title></paper></set>", ["after blank lines"]),
        (b"\xef\xbb\xbf<paper><title>root</title></paper>", ["root"]),
        (b"<s:set xmlns:s='urn:x'><s:paper><s:title>spaced</s:title></s:paper></s:set>", ["spaced"]),
        (b"<set><paper><paper><title>inner</title></paper></paper></set>", [""]),
        (
            b"<!DOCTYPE set SYSTEM 'http://nowhere.invalid/x.dtd'><set><paper><title>a&nbsp;&alpha;</title></paper></set>",
            ["a α"],
        ),
        (b"<paper><title>kept<fn>gone</fn> tail</title></paper>", ["kept tail"]),
        ("<?xml version='1.0' encoding='iso-8859-1'?><paper><title>é</title></paper>".encode("latin-1"), ["é"]),
    ],
)
def test_records_and_their_text(tmp_path, content, expected):
    assert titles(tmp_path, content) == expected


def test_more_records_than_the_parser_reads_ahead(tmp_path):
    content = b"<set>" + b"".join(b"<y/><paper><title>%d</title></paper>" % n for n in range(30_000)) + b"</set>"
    assert titles(tmp_path, content) == [str(n) for n in range(30_000)]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<set>",
        b"<set><paper></set>",
        b"<other/>",
        b"no xml",
        b"\xff\xfe\x00",
        b"<?xml version='1.0' encoding='klingon'?><set/>",
        b"<!DOCTYPE set [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><set><paper><title>&a;</title></paper></set>",
        b'<!DOCTYPE set [<!ENTITY a "' + b"a" * 100_000 + b'">]><set><paper>' + b"&a;" * 100_000 + b"</paper></set>",
    ],
)
def test_damage_is_one_line_that_names_the_file(tmp_path, content):
    with pytest.raises(InputError, match="set.xml") as error:
        titles(tmp_path, content)
    assert "\n" not in str(error.value)


def test_a_record_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(xml_records, "MAX_RECORD", 100_000)
    small = b"<paper>" + b"x" * 60_000 + b"</paper>"
    assert titles(tmp_path, b"<set>" + small * 5 + b"</set>") == [""] * 5
    with pytest.raises(InputError, match="larger than"):
        titles(tmp_path, b"<set><paper>" + b"x" * 300_000 + b"</paper></set>")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"<?xml version='1.0'?>\n<!-- a note -->\n<!DOCTYPE set PUBLIC 'x' 'y'><a:set>", "set"),
        (b"  <TEI xmlns='x'>", "TEI"),
        (b"{}", ""),
        (b"<!--" * 20_000, ""),
        (b"", ""),
    ],
)
def test_root_name(data, name):
    assert root_name(Head("x", data)) == name


def test_depth_and_nesting(tmp_path):
    path = tmp_path / "deep.xml"
    path.write_bytes(b"<set><paper>" + b"<a>x" * 100_000 + b"</a>" * 100_000 + b"</paper></set>")
    for paper in xml_records.xml_records(Source(path), roots={"set"}, records={"paper"}, what="a set"):
        assert plain_text(paper) == "x" * 100_000
        assert len(list(outermost(paper, "a"))) == 1
