"""S2ORC: both versions of Semantic Scholar's bulk full texts, and the metadata and parsed PDFs of 20200705v1."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import Citation, Context, Paper
from citeweave.corpus.readers import guess_format, s2orc

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


def spans(text: str, *words: str, key: str = "") -> list[dict]:
    """Annotations on the words; `key` names an attribute that counts up: b0, b1, ..."""
    places = [(text.index(word), word, {key: f"b{number}"} if key else {}) for number, word in enumerate(words)]
    return [{"attributes": attributes, "start": at, "end": at + len(word)} for at, word, attributes in places]


def first_version(**changes: object) -> dict[str, object]:
    lines = TEXT.split("\n")
    entries = spans(TEXT, *lines[7:11], key="id")
    entries[0]["attributes"]["matched_paper_id"] = 77
    marks = spans(TEXT, "[1]", "[2,3]", "[4]", "[9]", key="ref_id")
    marks[3]["attributes"] = {"ref_id": "b2"}
    again = TEXT.index("[1]. Threads")
    marks += [{"start": again, "end": again + 3, "attributes": {"ref_id": "b0"}}]
    words = {"title": ["On weaving *"], "abstract": [lines[3]], "author": [lines[1], lines[2]], "paragraph": [lines[5]]}
    words |= {"authorfirstname": ["Ada", "#"], "authorlastname": ["Lovelace"], "sectionheader": ["Methods"]}
    words |= {"bibtitle": ["Looms.", "Threads of every color known"], "bibauthor": ["A B,", "C D,"]}
    words |= {"bibauthorfirstname": ["A B"], "bibauthorlastname": ["C D"]}
    words["bibvenue"] = ["Craft", "Yarn", "A book on all known knots"]
    annotations = {name: json.dumps(spans(TEXT, *parts)) for name, parts in words.items()}
    annotations |= {"bibref": json.dumps(marks), "bibentry": json.dumps(entries), "table": None}
    content = {"source": {"oainfo": {"license": "CCBY"}}, "text": TEXT, "annotations": annotations}
    ids = {"arxiv": None, "doi": "10.1000/W", "pubmed": "12"}
    return {"corpusid": 5, "externalids": ids, "content": content, "updated": "2023-02-16T07:15:19Z", **changes}


def second_version() -> dict[str, object]:
    body, listed = "Background\nLooms [1] hold [2]. So do hands [3].", "Looms. 10.1000/looms"
    marks = spans(body, "[1]", "[2]", "[3]", key="ref_id")
    marks[0]["attributes"]["ref_id"] = 101
    marks[1]["attributes"] = {"ref_id": "b7", "matched_paper_id": 88}
    entries = [
        {"start": 0, "end": len(listed), "attributes": {"id": 101}},
        {"start": 0, "end": 9999, "attributes": {"id": "b9", "matched_paper_id": "99"}},
    ]
    inner = {"section_header": spans(body, "Background"), "paragraph": spans(body, body[11:]), "bib_ref": marks}
    outer = {"bib_entry": entries, "bib_title": spans(listed, "Looms")}
    texts = {
        name: {"text": text, "annotations": {key: json.dumps(value) for key, value in annotations.items()}}
        for name, text, annotations in (("body", body, inner), ("bibliography", listed, outer))
    }
    access = {"externalids": {"ArXiv": "2302.07618"}, "license": "CC-BY", "status": None}
    return {"corpusid": 6, "title": "On looms", "openaccessinfo": access, **texts}


def test_the_first_version_is_read(read_all):
    found = read_all("s2orc", [first_version()])
    threads, knots = "title:threads of every color known|2001", "title:a book on all known knots|1988"
    ids, extra = ("doi:10.1000/w", "pmid:12"), {"license": "CCBY"}
    authors, abstract = ("Ada Lovelace",), "We weave. It holds [1]."
    assert found.papers == [
        Paper("s2:5", "On weaving", abstract, authors=authors, ids=ids, updated=20230216, extra=extra),
        Paper("s2:77", "Looms.", year=1999, venue="Craft", authors=("A B",), stub=True),
        Paper(threads, "Threads of every color known", year=2001, venue="Yarn", authors=("C D",), stub=True),
        Paper(knots, "A book on all known knots", year=1988, stub=True),
    ]
    cited = ((threads, 1.0), (knots, 2.0))
    assert found.citations == [Citation("s2:5", id, strength=times) for id, times in (("s2:77", 2.0), *cited)]
    assert found.rejected("citations") == {"reference without a usable id": 1}
    assert found.contexts == [
        Context("s2:5", "It holds [1].", ("s2:77",)),
        Context("s2:5", "Looms are old [1].", ("s2:77",), "Methods"),
        Context("s2:5", "Threads [2,3] and knots [4] are new.", (threads, knots), "Methods"),
        Context("s2:5", "A footnote on knots [9].", (knots,)),
    ]


def test_the_second_version_is_read(read_all):
    found = read_all("s2orc", [second_version()])
    own = Paper("s2:6", "On looms", ids=("arxiv:2302.07618",), extra={"license": "CC-BY"})
    assert found.papers == [own, Paper("doi:10.1000/looms", "Looms", stub=True)]
    assert found.citations == [Citation("s2:6", cited) for cited in ("s2:99", "doi:10.1000/looms", "s2:88")]
    assert found.contexts == [Context("s2:6", "Looms [1] hold [2].", ("doi:10.1000/looms", "s2:88"), "Background")]
    assert found.rejected("contexts") == {"no cited paper": 1} and found.notes == {"annotation outside its text": 1}


@pytest.mark.parametrize("record", [first_version(), second_version()])
def test_a_short_record_is_not_taken_for_metadata(tmp_path, record):
    (tmp_path / "shard.jsonl").write_text(json.dumps(record))
    assert guess_format(Source(tmp_path / "shard.jsonl")) == "s2orc"


def test_what_is_no_paper_is_counted(read_all):
    empty = {"corpusid": 7, "content": {"text": None, "annotations": {"title": "[{", "bibentry": 3}}}
    found = read_all("s2orc", [empty, {"content": {}}, [3], first_version(corpusid="8")])
    assert [paper.id for paper in found.full] == ["s2:8"]
    assert found.rejected("papers") == {"no title and no abstract": 1, "no id": 1, "not a JSON object": 1}
    assert found.notes == {"annotations that are not valid JSON": 1}


def test_overlapping_annotations_take_no_quadratic_time(read_all):
    text = "word " * 4_000
    marks = json.dumps([{"start": i, "end": len(text), "attributes": {"id": f"b{i}"}} for i in range(len(text) - 1)])
    names = ("bibentry", "bibtitle", "bibref", "paragraph", "author", "authorlastname", "sectionheader")
    record = {"corpusid": 1, "content": {"text": text, "annotations": dict.fromkeys(names, marks)}}
    assert read_all("s2orc", [record]).rejected("citations") == {"reference without a usable id": len(text) - 1}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from(["start", "end", "attributes", "id", "ref_id", "matched_paper_id"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=6)))
def test_annotations_of_any_shape_are_read_or_counted(tmp_path, value):
    names = ("bibref", "bibentry", "bibtitle", "paragraph", "author")
    record = {"corpusid": 1, "content": {"text": "a b c d", "annotations": dict.fromkeys(names, json.dumps(value))}}
    (tmp_path / "any.jsonl").write_text(json.dumps(record))
    for one in s2orc.read(Source(tmp_path / "any.jsonl"), Tally()):
        assert isinstance(one, Paper | Citation | Context)


def test_metadata_is_read(read_all):
    record = json.loads("""{"paper_id": "77", "title": "T", "authors": [{"first": "Ada", "middle": ["K.", "L."],
        "last": "Lovelace", "suffix": ""}, null], "abstract": null, "year": 2016, "arxiv_id": "1501.07418",
        "acl_id": "N18-1", "pmc_id": "12", "pubmed_id": "34", "doi": "10.1000/X", "venue": null, "journal": "Journal",
        "mag_id": "56", "mag_field_of_study": ["Medicine"], "outbound_citations": ["1", 2, null],
        "inbound_citations": ["3"]}""")
    found = read_all("s2orc_2020", [record, {"paper_id": "78", "title": None}, {"paper_id": "x", "title": "T"}])
    ids = ("doi:10.1000/x", "arxiv:1501.07418", "pmid:34", "pmcid:12", "acl:N18-1", "mag:56")
    front = ("T", "", 2016, "Journal", ("Ada K. L. Lovelace",), ("Medicine",))
    assert found.papers == [Paper("s2:77", *front, ids, extra={"inbound_citations": 1})]
    assert found.citations == [Citation("s2:77", "s2:1"), Citation("s2:77", "s2:2")]
    assert found.rejected("papers") == {"no title and no abstract": 1, "no id": 1}
    assert found.rejected("citations") == {"reference without a usable id": 1}


def test_a_parse_is_read_with_its_citing_sentences(read_all):
    text = "It heals. 1 Others [2] failed, as 1 did. [3] is lost."
    marks = [(10, 11, "BIBREF0"), (19, 22, "BIBREF1"), (34, 35, "BIBREF0"), (41, 44, "BIBREF2"), (50, 500, "BIBREF0")]
    spans = [{"start": start, "end": end, "text": text[start:end], "ref_id": ref} for start, end, ref in marks]
    linked = {"title": "Linked", "authors": [{"first": "A", "middle": [], "last": "B"}], "year": 2012, "link": "9"}
    entries = {
        "BIBREF0": linked,
        "BIBREF1": {"title": "Known by title and year", "authors": [], "year": 1999, "venue": "V", "link": None},
        "BIBREF2": {"title": "Available", "authors": [], "year": "", "link": None},
    }
    body = [{"section": "Intro", "text": text, "cite_spans": spans}]
    abstract = [{"text": "First part."}, {"text": "Second part."}]
    record = {"paper_id": "5", "_pdf_hash": "h", "abstract": abstract, "body_text": body, "bib_entries": entries}
    found = read_all("s2orc_2020", [record, {"paper_id": "6", "_pdf_hash": "h", "abstract": [], "bib_entries": {}}])
    assert found.rejected("papers") == {"no title and no abstract": 1}
    by_title = "title:known by title and year|1999"
    assert found.papers == [
        Paper("s2:5", abstract="First part. Second part."),
        Paper("s2:9", "Linked", year=2012, authors=("A B",), stub=True),
        Paper(by_title, "Known by title and year", year=1999, venue="V", stub=True),
    ]
    assert found.contexts == [
        Context("s2:5", "It heals. 1", ("s2:9",), "Intro"),
        Context("s2:5", "Others [2] failed, as 1 did.", (by_title, "s2:9"), "Intro"),
    ]
    assert found.rejected("contexts") == {"no cited paper": 1}
    assert found.citations == [Citation("s2:5", "s2:9", strength=2.0), Citation("s2:5", by_title)]
    assert found.rejected("citations") == {"reference without a usable id": 1}
    assert found.notes == {"citation mark outside its paragraph": 1}
