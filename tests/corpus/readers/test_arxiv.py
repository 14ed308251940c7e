"""arXiv: Atom feeds with their disguised errors, and the snapshot's JSON lines."""

from __future__ import annotations

import json

import pytest

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead
from citeweave.corpus.paper import Paper
from citeweave.corpus.readers import arxiv

FEED = """<?xml version='1.0' encoding='UTF-8'?>
<feed xmlns:arxiv="http://arxiv.org/schemas/atom" xmlns="http://www.w3.org/2005/Atom"><id>https://arxiv.org/api/x</id>
<title>arXiv Query</title>
<entry><id>http://arxiv.org/abs/hep-th/9901001v3</id><title>On
  strings</title><updated>2001-03-04T00:00:00Z</updated><published>1999-01-02T00:00:00Z</published>
<summary>  We look at
 strings. </summary><category term="math.AG"/><category term="hep-th"/><arxiv:primary_category term="hep-th"/>
<author><name>A. Lee</name><arxiv:affiliation>Nowhere</arxiv:affiliation></author><arxiv:doi>10.1000/S</arxiv:doi>
<arxiv:comment>Withdrawn by the author</arxiv:comment><arxiv:journal_ref>J.Str.1:2</arxiv:journal_ref></entry>
<entry><id>https://arxiv.org/api/errors#bad</id><title>Error</title><summary>incorrect id format for abc</summary></entry>
<entry><id>http://elsewhere.org/1</id><title>Other</title></entry>
<entry><id>http://arxiv.org/abs/2001.00001v1</id><title>Error</title></entry>
<entry><id>http://arxiv.org/abs/2001.00002v1</id></entry></feed>"""

RECORD = {
    "id": "0704.0001",
    "title": "Calculation of\n  everything",
    "abstract": "  We compute $x$\nand more.\n",
    "authors": "J. D\\'oe (1), A. Lee ((1) Nowhere)",
    "authors_parsed": [["Dóe", "J.", ""], ["Lee", "A.", "Jr", "Nowhere,\n Land"]],
    "categories": "hep-ph cs.LG",
    "doi": "10.1103/PhysRevD.76.013009",
    "journal-ref": None,
    "comments": "37 pages;\n  published",
    "license": None,
    "versions": [
        {"version": "v2", "created": "Tue, 1 Jan 2008 1:1:1 GMT"},
        {"version": "v1", "created": "Mon, 31 Dec 2007 1:1:1 GMT"},
    ],
    "update_date": "2008-11-26",
}


def test_a_feed_with_errors_in_disguise(read_all, tmp_path):
    path = tmp_path / "feed.xml"
    path.write_text(FEED)
    found = read_all(arxiv, path)
    assert found.papers == [
        Paper(
            id="arxiv:hep-th/9901001",
            title="On strings",
            abstract="We look at strings.",
            year=1999,
            authors=("A. Lee",),
            fields=("hep-th", "math.AG"),
            ids=("doi:10.1000/s",),
            updated=20010304,
            extra={"comments": "Withdrawn by the author", "journal_ref": "J.Str.1:2", "withdrawn": True},
        ),
        Paper(id="arxiv:2001.00001", title="Error"),  # the id is a paper's, so it is a paper
    ]
    assert found.rejected("papers") == {"error message of the arXiv API": 1, "no id": 1, "no title and no abstract": 1}


def write_lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_snapshot_record(read_all, tmp_path):
    found = read_all(arxiv, write_lines(tmp_path / "arxiv.jsonl", RECORD))
    assert found.papers == [
        Paper(
            id="arxiv:0704.0001",
            title="Calculation of everything",
            abstract="We compute $x$ and more.",
            year=2007,
            authors=("J. Dóe", "A. Lee Jr"),
            fields=("hep-ph", "cs.LG"),
            ids=("doi:10.1103/physrevd.76.013009",),
            updated=20081126,
            extra={"comments": "37 pages; published"},
        )
    ]


def test_a_number_is_no_id_and_every_line_is_counted(read_all, tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl", RECORD | {"id": 704.0001}, RECORD | {"title": None, "abstract": ["x"]}, [1], RECORD
    )
    path.write_text(path.read_text() + '{"id": "0704.0002", \n')
    found = read_all(arxiv, path)
    assert len(found.papers) == 1
    assert found.rejected("papers") == {
        "no id": 1,
        "no title and no abstract": 1,
        "not a JSON object": 1,
        "not valid JSON": 1,
    }


@pytest.mark.parametrize(
    "wrong", [None, 7, -1.5, True, "", "x", [], [None], [[]], [[None, 3]], {}, {"a": [1]}, [{"version": 1}]]
)
def test_any_value_anywhere_is_survived(read_all, tmp_path, wrong):
    records = [RECORD | {name: wrong} for name in RECORD]
    found = read_all(arxiv, write_lines(tmp_path / "a.jsonl", *records))
    assert len(found.papers) + sum(found.rejected("papers").values()) == len(records)


@pytest.mark.parametrize(
    ("changes", "authors", "year"),
    [
        ({"authors_parsed": []}, ("J. D\\'oe", "A. Lee"), 2007),
        ({"versions": None}, ("J. Dóe", "A. Lee Jr"), 2008),
        ({"versions": [{"created": "Fri, 5 Jan 2001"}]}, ("J. Dóe", "A. Lee Jr"), 2001),
    ],
)
def test_fallbacks(read_all, tmp_path, changes, authors, year):
    (paper,) = read_all(arxiv, write_lines(tmp_path / "a.jsonl", RECORD | changes)).papers
    assert (paper.authors, paper.year) == (authors, year)


@pytest.mark.parametrize(
    ("abstract", "withdrawn"),
    [
        ("This paper has been withdrawn by the authors.", True),
        ("Withdrawn.", True),
        ("Drugs that were withdrawn from the market are studied.", False),
    ],
)
def test_withdrawn(read_all, tmp_path, abstract, withdrawn):
    (paper,) = read_all(arxiv, write_lines(tmp_path / "a.jsonl", RECORD | {"abstract": abstract})).papers
    assert paper.extra.get("withdrawn", False) is withdrawn


def test_a_cut_feed_is_one_error(read_all, tmp_path):
    path = tmp_path / "feed.xml"
    path.write_text(FEED[:900])
    with pytest.raises(InputError, match="feed.xml"):
        read_all(arxiv, path)


def test_recognizes():
    assert arxiv.recognizes(FileHead("x", FEED.encode()))
    assert arxiv.recognizes(FileHead("x", json.dumps(RECORD).encode()))
    assert not arxiv.recognizes(FileHead("x", b'<feed xmlns="http://www.w3.org/2005/Atom"><title>blog</title></feed>'))
    assert not arxiv.recognizes(FileHead("x", b'{"id": 1, "abstract": "x"}'))


@pytest.mark.parametrize(
    ("name", "papers", "errors"),
    [
        ("atom_search_10.xml", 10, {}),
        ("atom_old_id.xml", 1, {}),
        ("atom_two_ids.xml", 1, {}),
        ("atom_empty.xml", 0, {}),
        ("atom_error_400.xml", 0, {"error message of the arXiv API": 1}),
        ("arxiv-metadata-oai-snapshot.200.jsonl", 200, {}),
    ],
)
def test_real_files(read_all, shared, name, papers, errors):
    found = read_all(arxiv, shared / "samples" / "arxiv" / name)
    assert (len(found.papers), found.rejected("papers")) == (papers, errors)


def test_real_values(read_all, shared):
    folder = shared / "samples" / "arxiv"
    papers = read_all(arxiv, folder / "arxiv-metadata-oai-snapshot.200.jsonl").papers
    assert papers[0].title == "Calculation of prompt diphoton production cross sections at Tevatron and LHC energies"
    assert (papers[0].authors[0], papers[1].fields) == ("C. Balázs", ("math.CO", "cs.CG"))
    assert sum(not p.ids for p in papers) == 83
    assert sum("journal_ref" not in p.extra for p in papers) == 91
    assert [p.id for p in papers if p.extra.get("withdrawn")] == ["arxiv:0704.0156"]
    (old,) = read_all(arxiv, folder / "atom_old_id.xml").papers
    assert (old.id, old.year, old.fields) == ("arxiv:astro-ph/0601001", 2006, ("astro-ph",))
