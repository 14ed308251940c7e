"""arXiv: Atom feeds with their disguised errors, the snapshot's JSON lines, and the layouts of unarXive's full texts."""

import json

import pytest

from citeweave.corpus.paper import Citation, Context, Paper

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
    found = read_all("arxiv", FEED)
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
    found = read_all("arxiv", "\n".join(map(json.dumps, [RECORD, *bad])) + '\n{"id": "0704.0002", \n')
    title, abstract, authors = "Calculation of everything", "We compute $x$ and more.", ("J. Dóe", "A. Lee Jr")
    fields, ids, extra = ("hep-ph", "cs.LG"), ("doi:10.1103/physrevd.76.013009",), {"comments": "37 pages; published"}
    rest = {"updated": 20081126, "extra": extra}
    assert found.papers == [Paper("arxiv:0704.0001", title, abstract, 2007, "", authors, fields, ids, **rest)]
    reasons = ("no id", "no title and no abstract", "not a JSON object", "not valid JSON")
    assert found.rejected("papers") == dict.fromkeys(reasons, 1)


WRONG = [None, 7, -1.5, True, "", "x", [], [None], [[]], [[None, 3]], {}, {"a": [1]}, [{"version": 1}]]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_in_any_field_is_read_or_counted(read_all, wrong):
    found = read_all("arxiv", [RECORD | {name: wrong} for name in RECORD])
    assert len(found.papers) + sum(found.rejected("papers").values()) == len(RECORD)


FALLBACKS = [
    ({"authors_parsed": []}, ("J. D\\'oe", "A. Lee"), 2007, False),
    ({"versions": None}, ("J. Dóe", "A. Lee Jr"), 2008, False),
    ({"versions": [{"created": "Fri, 5 Jan 2001"}]}, ("J. Dóe", "A. Lee Jr"), 2001, False),
    ({"abstract": "This paper has been withdrawn by the authors."}, ("J. Dóe", "A. Lee Jr"), 2007, True),
    ({"abstract": "Withdrawn."}, ("J. Dóe", "A. Lee Jr"), 2007, True),
    ({"abstract": "Drugs that were withdrawn from the market are studied."}, ("J. Dóe", "A. Lee Jr"), 2007, False),
]


@pytest.mark.parametrize(("changes", "authors", "year", "withdrawn"), FALLBACKS)
def test_authors_year_and_withdrawal_have_fallbacks(read_all, changes, authors, year, withdrawn):
    (paper,) = read_all("arxiv", [RECORD | changes]).papers
    assert (paper.authors, paper.year, paper.extra.get("withdrawn", False)) == (authors, year, withdrawn)


TEXT = (
    "It is known {{cite:r1}} that {{formula:f1}} holds, e.g. in {{cite:r2}}, {{cite:r1}}. Nothing here. "
    "{{cite:r4}} is lost. See {{figure:g1}}Figure REF  and {{cite:r3}}."
)
ENTRIES = {
    "r1": {"ids": {"doi": "10.1000/one", "arxiv_id": "", "open_alex_id": "https://openalex.org/W1"}},
    "r2": {"bib_entry_raw": "x", "ids": {"doi": "10.1000/two", "arxiv_id": "2001.00001"}},
    "r3": {"bib_entry_raw": "B. Author, Phys. 1 (1999) [arXiv:hep-ph/9204236 [hep-ph]]."},
    "r4": {"bib_entry_raw": "C. Author, private communication", "ids": {"doi": "", "open_alex_id": ""}},
    "r5": {"bib_entry_raw": "x", "contained_links": [{"url": "https://doi.org/10.1000/five"}], "ids": None},
    "r6": {"bib_entry_raw": "x", "contained_arXiv_ids": [{"id": "2002.00002", "text": "2002.00002"}]},
}
METADATA = json.loads(r"""{"id": "2105.05862", "title": "A title\n  in two lines", "abstract": "  We show\nit.\n",
    "authors_parsed": [["Lovelace", "Ada", ""], ["Team", "", ""]], "categories": "cs.LG cs.CL", "doi": "10.1000/Own",
    "journal-ref": null, "versions": [{"version": "v1", "created": "Thu, 22 Dec 2021 15:22:36 GMT"}],
    "update_date": "2022-12-23"}""")
CITED = ["doi:10.1000/one", "arxiv:2001.00001", "arxiv:hep-ph/9204236", "doi:10.1000/five", "arxiv:2002.00002"]


LAYOUTS = [
    {"discipline": "Physics", "body_text": [{"section": "Intro", "content_type": "paragraph", "text": TEXT}]},
    {"metadata": {**METADATA, "discipline": "Physics"}, "sections": {"Intro": {"text": TEXT, "cite_spans": []}}},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["2022", "2024"])
def test_both_layouts_are_read(read_all, layout):
    found = read_all("unarxive", [{"paper_id": "2105.05862", "metadata": METADATA, "bib_entries": ENTRIES, **layout}])
    own, extra = "arxiv:2105.05862", {"categories": ["cs.LG", "cs.CL"]}
    front = ("A title in two lines", "We show it.", 2021, "", ("Ada Lovelace", "Team"), ("Physics", "cs.LG", "cs.CL"))
    assert found.papers == [Paper(own, *front, ("doi:10.1000/own",), updated=20221223, extra=extra)]
    assert found.contexts == [
        Context(own, "It is known [CIT] that [MATH] holds, e.g. in [CIT], [CIT].", tuple(CITED[:2]), "Intro"),
        Context(own, "See Figure REF and [CIT].", (CITED[2],), "Intro"),
    ]
    assert found.rejected("contexts") == {"no cited paper": 1}
    assert found.citations == [Citation(own, cited, strength=2.0 if cited == CITED[0] else 1.0) for cited in CITED]
    assert found.rejected("citations") == {"reference without a usable id": 1}
    assert found.notes == {"reference identified by the id in its text": 3}


def test_glued_paragraphs_of_2024_are_cut(read_all):
    first, second = "The first paragraph ends with a citation of proteins {}.", "We show that all is well."
    sections = {"A": {"text": first.format("{{cite:r1}}") + second}}
    record = {"paper_id": "2105.05862", "metadata": METADATA, "bib_entries": ENTRIES, "sections": sections}
    assert [c.text for c in read_all("unarxive", [record]).contexts] == [first.format("[CIT]")]


def test_old_ids_are_read_and_unusable_records_counted(read_all):
    records = [
        {"paper_id": "hep-th9901001", "metadata": {"title": "Old id"}},
        {"paper_id": "x", "metadata": {"id": "math.AG/0601001", "title": "Id of the metadata"}},
        {"paper_id": "2105.00001", "metadata": {}, "abstract": [{"text": "Only an abstract."}]},
        {"paper_id": "2105.00002", "metadata": None, "bib_entries": {"r": ENTRIES["r1"]}},
        {"paper_id": None},
    ]
    found = read_all("unarxive", records)
    assert [p.id for p in found.papers] == ["arxiv:hep-th/9901001", "arxiv:math.ag/0601001", "arxiv:2105.00001"]
    assert found.rejected("papers") == {"no title and no abstract": 1, "no arXiv id": 1}
    assert found.citations == [Citation("arxiv:2105.00002", "doi:10.1000/one")]
