"""Semantic Scholar's bulk full texts, both versions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citeweave.core.errors import InputError
from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import Citation, Context, Paper
from citeweave.corpus.readers import FORMATS, guess_format, reader_of
from citeweave.corpus.readers import s2orc as reader

TEXT = """On weaving *
Ada Lovelace 1
# 2
We weave. It holds [1].
Methods
Looms are old [1]. Threads [2,3] and knots [4] are new.
A footnote on knots [9].
Looms. A B, Craft. 1999. doi:10.1000/looms
Threads of every color known. C D, Yarn (2001) 1801-1810.
A book on all known knots. E F (1988).
Notes.
"""


def at(text: str, *words: str, key: str = "", first: int = 0) -> str:
    """Annotations on the words, in the form of the datasets: a JSON text; `key` counts up in an attribute."""
    found = []
    for number, word in enumerate(words):
        start = text.index(word)
        attributes = {key: f"b{first + number}"} if key else {}
        found.append({"attributes": attributes, "start": start, "end": start + len(word)})
    return json.dumps(found)


def first_version(**changes: object) -> dict[str, object]:
    lines = TEXT.split("\n")
    entries = json.loads(at(TEXT, *lines[7:11], key="id"))
    entries[0]["attributes"]["matched_paper_id"] = 77
    marks = json.loads(at(TEXT, "[1]", "[2,3]", "[4]", "[9]", key="ref_id"))
    marks[3]["attributes"] = {"ref_id": "b2"}
    again = TEXT.index("[1]. Threads")
    marks += [{"start": again, "end": again + 3, "attributes": {"ref_id": "b0"}}]
    annotations = {
        "title": at(TEXT, "On weaving *"),
        "abstract": at(TEXT, lines[3]),
        "author": at(TEXT, lines[1], lines[2]),
        "authorfirstname": at(TEXT, "Ada", "#"),
        "authorlastname": at(TEXT, "Lovelace"),
        "sectionheader": at(TEXT, "Methods"),
        "paragraph": at(TEXT, lines[5]),
        "bibref": json.dumps(marks),
        "bibentry": json.dumps(entries),
        "bibtitle": at(TEXT, "Looms.", "Threads of every color known"),
        "bibauthor": at(TEXT, "A B,", "C D,"),
        "bibauthorfirstname": at(TEXT, "A B"),
        "bibauthorlastname": at(TEXT, "C D"),
        "bibvenue": at(TEXT, "Craft", "Yarn", "A book on all known knots"),
        "table": None,
    }
    return {
        "corpusid": 5,
        "externalids": {"arxiv": None, "doi": "10.1000/W", "pubmed": "12"},
        "content": {"source": {"oainfo": {"license": "CCBY"}}, "text": TEXT, "annotations": annotations},
        "updated": "2023-02-16T07:15:19Z",
        **changes,
    }


def second_version() -> dict[str, object]:
    body = "Background\nLooms [1] hold [2]. So do hands [3]."
    listed = "Looms. 10.1000/looms"
    marks = json.loads(at(body, "[1]", "[2]", "[3]", key="ref_id"))
    marks[0]["attributes"]["ref_id"] = 101
    marks[1]["attributes"] = {"ref_id": "b7", "matched_paper_id": 88}
    entries = [
        {"start": 0, "end": len(listed), "attributes": {"id": 101}},
        {"start": 0, "end": 9999, "attributes": {"id": "b9", "matched_paper_id": "99"}},
    ]
    return {
        "corpusid": 6,
        "title": "On looms",
        "openaccessinfo": {"externalids": {"ArXiv": "2302.07618"}, "license": "CC-BY", "status": None},
        "body": {
            "text": body,
            "annotations": {
                "section_header": at(body, "Background"),
                "paragraph": at(body, body[11:]),
                "bib_ref": json.dumps(marks),
            },
        },
        "bibliography": {
            "text": listed,
            "annotations": {"bib_entry": json.dumps(entries), "bib_title": at(listed, "Looms")},
        },
    }


def write(folder: Path, *records: object) -> Path:
    path = folder / "shard.jsonl"
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return path


def test_first_version(tmp_path, read_all):
    found = read_all(reader, write(tmp_path, first_version()))
    threads, knots = "title:threads of every color known|2001", "title:a book on all known knots|1988"
    assert found.papers == [
        Paper(
            "s2:5",
            "On weaving",
            "We weave. It holds [1].",
            authors=("Ada Lovelace",),
            ids=("doi:10.1000/w", "pmid:12"),
            updated=20230216,
            extra={"license": "CCBY"},
        ),
        Paper("s2:77", "Looms.", year=1999, venue="Craft", authors=("A B",), stub=True),
        Paper(threads, "Threads of every color known", year=2001, venue="Yarn", authors=("C D",), stub=True),
        Paper(knots, "A book on all known knots", year=1988, stub=True),
    ]
    assert found.citations == [
        Citation("s2:5", "s2:77", strength=2.0),
        Citation("s2:5", threads),
        Citation("s2:5", knots, strength=2.0),
    ]
    assert found.rejected("citations") == {"reference without usable id": 1}
    assert found.contexts == [
        Context("s2:5", "It holds [1].", ("s2:77",)),
        Context("s2:5", "Looms are old [1].", ("s2:77",), "Methods"),
        Context("s2:5", "Threads [2,3] and knots [4] are new.", (threads, knots), "Methods"),
        Context("s2:5", "A footnote on knots [9].", (knots,)),
    ]


def test_second_version(tmp_path, read_all):
    found = read_all(reader, write(tmp_path, second_version()))
    assert found.papers == [
        Paper("s2:6", "On looms", ids=("arxiv:2302.07618",), extra={"license": "CC-BY"}),
        Paper("doi:10.1000/looms", "Looms", stub=True),
    ]
    assert found.citations == [
        Citation("s2:6", "s2:99"),
        Citation("s2:6", "doi:10.1000/looms"),
        Citation("s2:6", "s2:88"),
    ]
    assert found.contexts == [Context("s2:6", "Looms [1] hold [2].", ("doi:10.1000/looms", "s2:88"), "Background")]
    assert found.rejected("contexts") == {"no cited paper": 1}
    assert found.tally.notes == {"annotation outside its text": 1}


def test_what_is_no_paper_is_counted(tmp_path, read_all):
    empty = {"corpusid": 7, "content": {"text": None, "annotations": {"title": "[{", "bibentry": 3}}}
    found = read_all(reader, write(tmp_path, empty, {"content": {}}, [3], first_version(corpusid="8")))
    assert [paper.id for paper in found.full] == ["s2:8"]
    assert found.rejected("papers") == {"no title and no abstract": 1, "no id": 1, "not a JSON object": 1}
    assert found.tally.notes == {"annotations that are not valid JSON": 1}


def test_overlapping_annotations_take_no_quadratic_time(tmp_path, read_all):
    text = "word " * 4_000
    spans = json.dumps([{"start": i, "end": len(text), "attributes": {"id": f"b{i}"}} for i in range(len(text) - 1)])
    names = ("bibentry", "bibtitle", "bibref", "paragraph", "author", "authorlastname", "sectionheader")
    record = {"corpusid": 1, "content": {"text": text, "annotations": dict.fromkeys(names, spans)}}
    found = read_all(reader, write(tmp_path, record))
    assert found.rejected("citations") == {"reference without usable id": len(text) - 1}


def test_real_records(shared, read_all):
    found = read_all(reader, shared / "samples/s2ag_bulk/s2orc-sample.jsonl")
    erratum, paper = found.full
    assert erratum.id == "s2:256867980" and not erratum.abstract and erratum.venue == "Theranostics"
    assert erratum.ids == ("doi:10.7150/thno.79069", "pmid:36793855", "pmcid:9925312")
    assert erratum.authors[:3] == ("Zhikui Liu", "Yufeng Wang", "Changwei Dou")
    assert paper.title == "Solidarity to achieve stability" and paper.ids == ("arxiv:2302.07618",)
    assert paper.abstract.startswith("Agents may form coalitions. Each coalition shares its endowment")
    assert paper.authors == ("Jorge Alcalde-Unzu", "Oihane Gallo", "Elena Inarra", "Juan D Moreno-Ternero")
    # 47 entries: 40 matched, 6 known by title and year, "Partnerships" too short a title
    assert len(found.citations) == 46 and found.rejected("citations") == {"reference without usable id": 1}
    assert sum(citation.cited.startswith("s2:") for citation in found.citations) == 40
    assert len(found.stubs) == 46 and found.stubs[0].year == 2015
    pycia = next(citation for citation in found.citations if citation.cited == "s2:1554945")
    assert pycia.strength == 8.0  # the marks with b36 in the file
    assert len(found.contexts) == 37 and found.rejected("contexts") == {"no cited paper": 3}
    context = next(c for c in found.contexts if c.text.startswith("These axioms have been crucial"))
    assert context.section == "Introduction"
    assert context.cited == ("s2:154395581", "s2:153646177", "s2:154941881", "s2:14004491", "s2:226079519")


def test_every_sample_has_one_reader_before_the_plain_one(shared, tmp_path):
    readers = {}
    for name in FORMATS:
        try:
            readers[name] = reader_of(name)
        except ModuleNotFoundError:
            continue
    for path in sorted(path for path in (shared / "samples").rglob("*") if path.is_file()):
        head = Source(path).head()
        claimed = [name for name, module in readers.items() if name != "plain" and module.recognizes(head)]
        assert len(claimed) <= 1, path
        assert ("s2orc" in claimed) == (path.name == "s2orc-sample.jsonl"), path


@pytest.mark.parametrize("record", [first_version(), second_version()])
def test_a_short_record_is_not_taken_for_metadata(tmp_path, record):
    assert guess_format(Source(write(tmp_path, record))) == "s2orc"


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["[{}]", "[]"])
)
KEYS = st.sampled_from(
    re.findall(
        r"\w+",
        "corpusid title content body bibliography text annotations externalids openaccessinfo doi start end attributes "
        "id bibref bib_entry bibtitle ref_id matched_paper_id paragraph author",
    )
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=6)))
def test_any_json_is_read_or_counted(tmp_path, value):
    check_any(tmp_path, json.dumps(value).encode())
    as_text = {"corpusid": 1, "content": {"text": "a b c d", "annotations": {"bibref": json.dumps(value)}}}
    check_any(tmp_path, json.dumps(as_text).encode())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 4000), junk=st.binary(max_size=6))
def test_damaged_records_are_read_or_counted(tmp_path, cut, junk):
    data = json.dumps(first_version()).encode()
    check_any(tmp_path, data[:cut] + junk + data[cut + len(junk) :] + b"\n{}")


def check_any(folder: Path, data: bytes) -> None:
    path = folder / "any.jsonl"
    path.write_bytes(data)
    try:
        records = list(reader.read(Source(path), Tally()))
    except InputError as error:
        assert str(path) in str(error)
    else:
        assert all(isinstance(record, Paper | Citation | Context) for record in records)
