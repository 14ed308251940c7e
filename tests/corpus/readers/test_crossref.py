"""Crossref: envelopes, tagged abstracts, null dates, and references with and without a DOI."""

from __future__ import annotations

import json

import pytest

from citeweave.corpus.paper import Citation, Paper
from citeweave.corpus.readers import crossref as reader


def test_a_work_is_read_with_every_kind_of_reference(read_all):
    work = json.loads(r"""{"DOI": "10.1000/Own", "title": ["The <i>E. coli</i>\n   work"], "subtitle": ["A tale"],
        "abstract": "<jats:title>Abstract</jats:title><jats:p>H<jats:sub>2</jats:sub>O.</jats:p><jats:p>End.</jats:p>",
        "issued": {"date-parts": [[null]]}, "published": {"date-parts": [[2020, 5]]}, "created": {"date-parts":
        [[2023]]}, "author": [{"given": "Ada", "family": "Lovelace"}, {"name": "The Consortium"}],
        "container-title": ["Journal"], "is-referenced-by-count": 4, "deposited": {"date-time":
        "2023-01-02T00:00:00Z"}, "type": "journal-article"}""")
    work["reference"] = [
        {"key": "1", "DOI": "10.1000/ONE", "unstructured": "ignored 10.1000/two"},
        {"key": "2", "unstructured": "A. Author (1999). Some title. https://doi.org/10.1000/three."},
        {"key": "3", "article-title": "A title that is long enough", "year": "1998a", "author": "Byron"},
        {"key": "4", "unstructured": "A. Author, no identifier at all"},
        {"key": "5", "journal-title": "Journal", "year": "1990"},
        {"key": "6", "DOI": "10.1000/six", "volume-title": "Book", "year": "1950"},
        None,
    ]
    found = read_all(reader, [{"status": "ok", "message-type": "work", "message": work}])
    front = ("The E. coli work", "H2O. End.", 2020, "Journal", ("Ada Lovelace", "The Consortium"))
    own, extra = "doi:10.1000/own", {"type": "journal-article", "subtitle": "A tale"}
    by_title = "title:a title that is long enough|1998"
    assert found.papers == [
        Paper(own, *front, citation_count=4, updated=20230102, extra=extra),
        Paper(by_title, "A title that is long enough", year=1998, authors=("Byron",), stub=True),
        Paper("doi:10.1000/six", "Book", year=1950, stub=True),
    ]
    cited = ["doi:10.1000/one", "doi:10.1000/three", by_title, "doi:10.1000/six"]
    assert found.citations == [Citation(own, other) for other in cited]
    assert found.rejected("citations") == {"reference without usable id": 3}
    assert found.notes == {"reference identified by the DOI in its text": 1}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("<p>Plain html.</p>", "Plain html."),
        ("<jats:sec><jats:title>Abstract</jats:title><jats:p>Body.</jats:p></jats:sec>", "Body."),
        ("<jats:title>Background</jats:title><jats:p>Body.</jats:p>", "Background Body."),
        ("<jats:p>Abstract art is old.</jats:p>", "Abstract art is old."),
        ("&lt;jats:p&gt;Escaped &amp;amp; twice.&lt;/jats:p&gt;", "Escaped & twice."),
        ("where p &lt; 0.05 and q &gt; 1", "where p < 0.05 and q > 1"),
        (["not a text"], ""),
    ],
)
def test_abstracts_lose_their_tags_and_headings(read_all, raw, text):
    assert read_all(reader, [{"DOI": "10.1000/a", "title": "T", "abstract": raw}]).papers[0].abstract == text


def test_lists_dumps_and_lines_are_read(read_all):
    api = {"status": "ok", "message": {"items": [{"DOI": "10.1000/a", "title": ["A"]}, 3]}}
    dump = {"items": [{"DOI": "10.1000/b", "title": ["B"]}, {"DOI": "10.1000/c", "title": []}]}
    found = read_all(reader, [api, dump, {"DOI": "10.1000/d", "title": "D"}])
    assert found.papers == [Paper(f"doi:10.1000/{name}", name.upper()) for name in "abd"]
    assert found.rejected("papers") == {"no DOI": 1, "no title and no abstract": 1}


@pytest.mark.parametrize(
    ("name", "works", "references", "unusable"),
    [
        ("work_10.1136_jclinpath-2020-206745.json", 1, 36, 1),
        ("work_10.1038_srep16696.json", 1, 62, 0),
        ("work_10.1016_j.softx.2022.101207.json", 1, 38, 13),
        ("work_10.2139_ssrn.4079400.json", 1, 0, 0),
        ("works_query_ecology_2.json", 2, 0, 0),
        ("works_cursor_widget_20.json", 20, 64, 25),
        ("works_sample_10.json", 10, 189, 49),
        ("works_publisher_santa_maria_20.json", 20, 193, 117),
        ("works_types_report_20.json", 20, 0, 0),
    ],
)
def test_real_files_are_counted(shared, read_all, name, works, references, unusable):
    found = read_all(reader, shared / "samples/crossref" / name)
    assert len(found.full) == works and found.rejected("papers") == {}
    assert len(found.citations) + unusable == references
    assert sum(found.rejected("citations").values()) == unusable
    assert not any("<jats" in p.abstract or "</" in p.title + p.abstract for p in found.full)


def test_real_values_are_read(shared, read_all):
    folder = shared / "samples/crossref"
    clinical = read_all(reader, folder / "work_10.1136_jclinpath-2020-206745.json").papers[0]
    start = "Construction of a reference material panel for detecting KRAS / NRAS / EGFR / BRAF / MET mutations"
    assert clinical.title == start + " in plasma ctDNA"
    assert clinical.abstract.startswith("Background The absence of high-quality next-generation sequencing (NGS)")
    assert (clinical.year, clinical.updated) == (2020, 20251121)
    assert (len(clinical.authors), clinical.authors[0]) == (15, "Jun Xu")
    widget = read_all(reader, folder / "works_cursor_widget_20.json").full
    assert sum(p.year is None for p in widget) == 2 and sum(not p.authors for p in widget) == 4
    litstudy = read_all(reader, folder / "work_10.1016_j.softx.2022.101207.json")
    assert litstudy.papers[0].fields == ("Computer Science Applications", "Software")
    jupyter = "title:jupyter notebooks a publishing format for reproducible computational workflows|2016"
    assert Citation("doi:10.1016/j.softx.2022.101207", jupyter) in litstudy.citations
