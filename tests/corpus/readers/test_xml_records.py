"""Streaming XML: bounded, without namespaces, without network, and one error for any damage."""

import tracemalloc

import pytest

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead, Source
from citeweave.corpus.readers import xml_records
from citeweave.corpus.readers.xml_records import element_text, outermost_elements, root_name

from ..conftest import refused


def records(tmp_path, content: bytes):
    (tmp_path / "set.xml").write_bytes(content)
    source = Source(tmp_path / "set.xml")
    return xml_records.xml_records(source, roots={"set", "paper"}, records={"paper"}, what="a set")


def titles(tmp_path, content: bytes) -> list[str]:
    return [element_text(paper.find("title"), {"fn"}) for paper in records(tmp_path, content)]


RECORDS = [
    (b"<set><paper><title>A <i>b</i></title></paper><x/><paper/></set>", ["A b", ""]),
    (b"\n\n<?xml version='1.0'?><set><paper><title>after blank lines</title></paper></set>", ["after blank lines"]),
    (b"\xef\xbb\xbf<paper><title>root</title></paper>", ["root"]),
    (b"<s:set xmlns:s='urn:x'><s:paper><s:title>spaced</s:title></s:paper></s:set>", ["spaced"]),
    (b"<set><paper><paper><title>inner</title></paper></paper></set>", [""]),
    (b"<!DOCTYPE paper SYSTEM 'http://nowhere.invalid/x.dtd'><paper><title>a&nbsp;&alpha;</title></paper>", ["a α"]),
    (
        b'<!DOCTYPE set [<!ENTITY a "Al&b;"><!ENTITY b "pha"><!ATTLIST title lang CDATA "en">]>'
        b"<set><paper><title>&a; &amp; &b;</title></paper></set>",
        ["Alpha & pha"],
    ),
    (b"<paper><title>kept<fn>gone</fn> tail</title></paper>", ["kept tail"]),
    ("<?xml version='1.0' encoding='iso-8859-1'?><paper><title>é</title></paper>".encode("latin-1"), ["é"]),
]


@pytest.mark.parametrize(("content", "expected"), RECORDS)
def test_records_are_yielded_with_their_text(tmp_path, content, expected):
    assert titles(tmp_path, content) == expected


def test_there_may_be_more_records_than_the_parser_reads_ahead(tmp_path):
    content = b"<set>" + b"".join(b"<y/><paper><title>%d</title></paper>" % n for n in range(30_000)) + b"</set>"
    assert titles(tmp_path, content) == [str(n) for n in range(30_000)]


DAMAGED = [
    b"",
    b"<set>",
    b"<set><paper></set>",
    b"<other/>",
    b"no xml",
    b"\xff\xfe\x00",
    b"<?xml version='1.0' encoding='klingon'?><set/>",
    b"<!DOCTYPE set [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><set><paper><title>&a;</title></paper></set>",
    b'<!DOCTYPE set [<!ENTITY a "' + b"a" * 100_000 + b'">]><set><paper>' + b"&a;" * 100_000 + b"</paper></set>",
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damage_is_one_line_that_names_the_file(tmp_path, content):
    with pytest.raises(InputError, match="set.xml") as error:
        titles(tmp_path, content)
    assert "\n" not in str(error.value)


def test_a_record_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(xml_records, "MAX_RECORD", 100_000)
    small = b"<paper>" + b"x" * 60_000 + b"</paper>"
    assert titles(tmp_path, b"<set>" + small * 5 + b"</set>") == [""] * 5
    refused("larger than", titles, tmp_path, b"<set><paper>" + b"x" * 300_000 + b"</paper></set>", error=InputError)


GROWING = [
    (b'<!ENTITY a "' + b"x" * 250 + b'">', b"&a;" * 400_000, "a record larger than 64 MiB"),
    (b'<!ENTITY a "' + b"x" * 70_000 + b'">', b"", "an entity of more than 65,536 characters"),
    (b'<!ENTITY a "x&b;"><!ENTITY b "&a;">', b"", "an entity of more than 65,536 characters"),
    (b'<!ATTLIST a b CDATA "' + b"x" * 20_000 + b'">', b"<a/>", "attributes of more than 10,000 characters"),
    (b'<!ATTLIST a b CDATA "' + b"x" * 9_000 + b'">', b"<a/>" * 10_000, "a record larger than 64 MiB"),
    (b"<!--" + b"x" * 2_000_000 + b"-->", b"", "a tag or a comment larger than 1 MiB"),
    (b"<!-- x -->" * 200_000, b"", "more than 1 MiB before its outermost element"),
    (b"", b"<a b='" + b">" * 2_000_000 + b"'/>", "a tag or a comment larger than 1 MiB"),
    (b"", b"<?a " + b"x>" * 1_000_000 + b"?>", "a tag or a comment larger than 1 MiB"),
    (b"", b"".join(b"<a%d/>" % n for n in range(110_000)), "more than 100,000 different names"),
    (b"", (b"<a " + b" ".join(b"b%d=''" % n for n in range(1000)) + b"/>") * 2100, "more than 2,000,000 elements"),
]


@pytest.mark.parametrize(("declared", "inside", "problem"), GROWING)
def test_what_grows_inside_the_parser_is_refused(tmp_path, declared, inside, problem):
    head = b"<!DOCTYPE set [" + declared + b"]>" if declared else b""
    refused(problem, titles, tmp_path, head + b"<set><paper>" + inside + b"</paper></set>", error=InputError)


def test_a_long_namespace_takes_no_memory(tmp_path):
    names = b"".join(b"<p:a%d p:b%d=''/>" % (n, n) for n in range(2000))
    content = b"<set><paper xmlns:p='" + b"u" * 300_000 + b"'>" + names + b"</paper></set>"
    tracemalloc.start()
    (paper,) = records(tmp_path, content)
    assert len(paper) == 2000 and paper[7].attrib == {"b7": ""} and paper.attrib == {}
    assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    tracemalloc.stop()


HEADS = [
    (b"<?xml version='1.0'?>\n<!-- a note -->\n<!DOCTYPE set PUBLIC 'x' 'y'><a:set>", "set"),
    (b"  <TEI xmlns='x'>", "TEI"),
    (b"{}", ""),
    (b"<!--" * 20_000, ""),
    (b"<!-- -->" * 200_000 + b"<a/>", ""),
    (b"", ""),
]


@pytest.mark.parametrize(("data", "name"), HEADS)
def test_the_root_is_found_in_the_head(data, name):
    assert root_name(FileHead("x", data)) == name


def test_deep_elements_are_read(tmp_path):
    for paper in records(tmp_path, b"<set><paper>" + b"<a>x" * 100_000 + b"</a>" * 100_000 + b"</paper></set>"):
        assert element_text(paper) == "x" * 100_000
        assert len(list(outermost_elements(paper, "a"))) == 1
