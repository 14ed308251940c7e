"""arXiv: Atom feeds with their disguised errors, and the snapshot's JSON lines."""

import json

import pytest

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

RECORD = json.loads(
    r"""{"id": "0704.0001", "title": "Calculation of\n  everything", "abstract": "  We compute $x$\nand
    more.\n", "authors": "J. D\\'oe (1), A. Lee ((1) Nowhere)", "authors_parsed": [["Dóe", "J.", ""], ["Lee", "A.", "Jr",
    "Nowhere,\n Land"]], "categories": "hep-ph cs.LG", "doi": "10.1103/PhysRevD.76.013009", "journal-ref": null,
    "comments": "37 pages;\n  published", "license": null, "versions": [{"version": "v2", "created":
    "Tue, 1 Jan 2008 1:1:1 GMT"}, {"version": "v1", "created": "Mon, 31 Dec 2007 1:1:1 GMT"}],
    "update_date": "2008-11-26"}""",
    strict=False,
)


def test_errors_disguised_as_entries_of_a_feed_are_no_papers(read_all):
    found = read_all(arxiv, FEED)
    fields, ids = ("hep-th", "math.AG"), ("doi:10.1000/s",)
    extra = {"comments": "Withdrawn by the author", "journal_ref": "J.Str.1:2", "withdrawn": True}
    own, text = "arxiv:hep-th/9901001", "We look at strings."
    assert found.papers == [
        Paper(own, "On strings", text, 1999, "", ("A. Lee",), fields, ids, updated=20010304, extra=extra),
        Paper("arxiv:2001.00001", "Error"),  # the id is a paper's, so it is a paper
    ]
    assert found.rejected("papers") == {"error message of the arXiv API": 1, "no id": 1, "no title and no abstract": 1}


def test_every_line_of_a_snapshot_is_read_or_counted(read_all):
    bad = [RECORD | {"id": 704.0001}, RECORD | {"title": None, "abstract": ["x"]}, [1]]
    found = read_all(arxiv, "\n".join(map(json.dumps, [RECORD, *bad])) + '\n{"id": "0704.0002", \n')
    title, abstract, authors = "Calculation of everything", "We compute $x$ and more.", ("J. Dóe", "A. Lee Jr")
    fields, ids, extra = ("hep-ph", "cs.LG"), ("doi:10.1103/physrevd.76.013009",), {"comments": "37 pages; published"}
    rest = {"updated": 20081126, "extra": extra}
    assert found.papers == [Paper("arxiv:0704.0001", title, abstract, 2007, "", authors, fields, ids, **rest)]
    reasons = ("no id", "no title and no abstract", "not a JSON object", "not valid JSON")
    assert found.rejected("papers") == dict.fromkeys(reasons, 1)


@pytest.mark.parametrize(
    "wrong", [None, 7, -1.5, True, "", "x", [], [None], [[]], [[None, 3]], {}, {"a": [1]}, [{"version": 1}]]
)
def test_a_wrong_value_in_any_field_is_read_or_counted(read_all, wrong):
    found = read_all(arxiv, [RECORD | {name: wrong} for name in RECORD])
    assert len(found.papers) + sum(found.rejected("papers").values()) == len(RECORD)


@pytest.mark.parametrize(
    ("changes", "authors", "year", "withdrawn"),
    [
        ({"authors_parsed": []}, ("J. D\\'oe", "A. Lee"), 2007, False),
        ({"versions": None}, ("J. Dóe", "A. Lee Jr"), 2008, False),
        ({"versions": [{"created": "Fri, 5 Jan 2001"}]}, ("J. Dóe", "A. Lee Jr"), 2001, False),
        ({"abstract": "This paper has been withdrawn by the authors."}, ("J. Dóe", "A. Lee Jr"), 2007, True),
        ({"abstract": "Withdrawn."}, ("J. Dóe", "A. Lee Jr"), 2007, True),
        ({"abstract": "Drugs that were withdrawn from the market are studied."}, ("J. Dóe", "A. Lee Jr"), 2007, False),
    ],
)
def test_authors_year_and_withdrawal_have_fallbacks(read_all, changes, authors, year, withdrawn):
    (paper,) = read_all(arxiv, [RECORD | changes]).papers
    assert (paper.authors, paper.year, paper.extra.get("withdrawn", False)) == (authors, year, withdrawn)
