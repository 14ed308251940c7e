"""S2ORC 20200705v1: metadata lines and parsed PDFs."""

import json

from citeweave.corpus.paper import Citation, Context, Paper
from citeweave.corpus.readers import s2orc_2020 as reader


def test_metadata_is_read(read_all):
    record = json.loads("""{"paper_id": "77", "title": "T", "authors": [{"first": "Ada", "middle": ["K.", "L."],
        "last": "Lovelace", "suffix": ""}, null], "abstract": null, "year": 2016, "arxiv_id": "1501.07418",
        "acl_id": "N18-1", "pmc_id": "12", "pubmed_id": "34", "doi": "10.1000/X", "venue": null, "journal": "Journal",
        "mag_id": "56", "mag_field_of_study": ["Medicine"], "outbound_citations": ["1", 2, null],
        "inbound_citations": ["3"]}""")
    found = read_all(reader, [record, {"paper_id": "78", "title": None}, {"paper_id": "x", "title": "T"}])
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
    found = read_all(reader, [record, {"paper_id": "6", "_pdf_hash": "h", "abstract": [], "bib_entries": {}}])
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
