"""Crossref's envelopes, tagged abstracts and references; CSL JSON's string dates, literal authors and two kinds of ids."""

import json

import pytest

from citeweave.corpus.paper import Citation, Paper


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
    found = read_all("crossref", [{"status": "ok", "message-type": "work", "message": work}])
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
    assert found.rejected("citations") == {"reference without a usable id": 3}
    assert found.notes == {"reference identified by the DOI in its text": 1}


ABSTRACTS = [
    ("<p>Plain html.</p>", "Plain html."),
    ("<jats:sec><jats:title>Abstract</jats:title><jats:p>Body.</jats:p></jats:sec>", "Body."),
    ("<jats:title>Background</jats:title><jats:p>Body.</jats:p>", "Background Body."),
    ("<jats:p>Abstract art is old.</jats:p>", "Abstract art is old."),
    ("&lt;jats:p&gt;Escaped &amp;amp; twice.&lt;/jats:p&gt;", "Escaped & twice."),
    ("where p &lt; 0.05 and q &gt; 1", "where p < 0.05 and q > 1"),
    (["not a text"], ""),
]


@pytest.mark.parametrize(("raw", "text"), ABSTRACTS)
def test_abstracts_lose_their_tags_and_headings(read_all, raw, text):
    assert read_all("crossref", [{"DOI": "10.1000/a", "title": "T", "abstract": raw}]).papers[0].abstract == text


def test_lists_dumps_and_lines_are_read(read_all):
    api = {"status": "ok", "message": {"items": [{"DOI": "10.1000/a", "title": ["A"]}, 3]}}
    dump = {"items": [{"DOI": "10.1000/b", "title": ["B"]}, {"DOI": "10.1000/c", "title": []}]}
    found = read_all("crossref", [api, dump, {"DOI": "10.1000/d", "title": "D"}])
    assert found.papers == [Paper(f"doi:10.1000/{name}", name.upper()) for name in "abd"]
    assert found.rejected("papers") == {"no DOI": 1, "no title and no abstract": 1}


def test_entries_are_read_or_counted(read_all):
    entries = json.loads(r"""[{"id": "lovelace1843", "type": "article-journal", "title": "Notes on an <i>engine</i>",
        "author": [{"family": "Lovelace", "given": "Ada"}, {"family": "Neumann", "given": "John",
        "non-dropping-particle": "von"}, {"literal": "The Society"}], "issued": {"date-parts": [["1843", 9]]},
        "container-title": "Memoirs", "DOI": "10/abc123", "URL": "https://doi.org/10.1000/Notes", "PMID": "77",
        "keyword": "engines, notes", "note": "PMCID: PMC9\nsome words"},
        {"id": "doi:10.1000/182", "title": "The handbook", "DOI": "10.1000/182", "issued": {"literal": "2001?"}},
        {"id": "url:https://example.org/a", "type": "webpage", "title": "A page"},
        {"id": 17, "title": "Numbered", "note": "standard_id: arxiv:1407.3561v1"},
        {"title": "No id but a DOI", "DOI": "10.1000/x"}, {"id": "https://doi.org/10.1000/y", "title": "An address"},
        {"id": "s", "title": "Short", "DOI": "10/fqd6hj"},
        {"title": "Nothing"}, {"id": "empty"}, "text"]""")
    found = read_all("csl_json", json.dumps(entries, indent=1))
    authors, ids = ("Ada Lovelace", "John von Neumann", "The Society"), ("doi:10.1000/notes", "pmid:77", "pmcid:9")
    extra = {
        "type": "article-journal",
        "url": "https://doi.org/10.1000/Notes",
        "keywords": ["engines", "notes"],
        "key": "lovelace1843",
    }
    front = ("Notes on an engine", "", 1843, "Memoirs", authors, (), ids)
    assert found.papers == [
        Paper("lovelace1843", *front, extra=extra, local_id=True),
        Paper("doi:10.1000/182", "The handbook", year=2001),
        Paper("url:https://example.org/a", "A page", extra={"type": "webpage"}),
        Paper("17", "Numbered", ids=("arxiv:1407.3561",), extra={"key": "17"}, local_id=True),
        Paper("doi:10.1000/x", "No id but a DOI"),
        Paper("doi:10.1000/y", "An address"),
        Paper("s", "Short", extra={"key": "s"}, local_id=True),
    ]
    assert found.notes == {"short DOI that only doi.org could resolve": 1}  # of Short; the first one has another DOI
    assert found.rejected("papers") == {"no id": 1, "no title and no abstract": 1, "not a JSON object": 1}


def test_entries_may_be_wrapped_or_single(read_all):
    entry = {"id": "a", "type": "book", "title": "T"}
    for content in ({"items": [entry]}, entry, [entry]):
        assert [p.id for p in read_all("csl_json", json.dumps(content, indent=1)).papers] == ["a"]
