"""unarXive: markers in the text, references with and without resolved ids, the layouts of 2022 and 2024."""

import json

import pytest

from citeweave.corpus.paper import Citation, Context, Paper
from citeweave.corpus.readers import unarxive as reader

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


@pytest.mark.parametrize(
    "layout",
    [
        {"discipline": "Physics", "body_text": [{"section": "Intro", "content_type": "paragraph", "text": TEXT}]},
        {"metadata": {**METADATA, "discipline": "Physics"}, "sections": {"Intro": {"text": TEXT, "cite_spans": []}}},
    ],
    ids=["2022", "2024"],
)
def test_both_layouts_are_read(read_all, layout):
    found = read_all(reader, [{"paper_id": "2105.05862", "metadata": METADATA, "bib_entries": ENTRIES, **layout}])
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
    first, second = (
        "The first paragraph ends with a citation of proteins {}.",
        "We show in the second one that all is well.",
    )
    sections = {"A": {"text": first.format("{{cite:r1}}") + second}}
    record = {"paper_id": "2105.05862", "metadata": METADATA, "bib_entries": ENTRIES, "sections": sections}
    assert [c.text for c in read_all(reader, [record]).contexts] == [first.format("[CIT]")]


def test_old_ids_are_read_and_unusable_records_counted(read_all):
    records = [
        {"paper_id": "hep-th9901001", "metadata": {"title": "Old id"}},
        {"paper_id": "x", "metadata": {"id": "math.AG/0601001", "title": "Id of the metadata"}},
        {"paper_id": "2105.00001", "metadata": {}, "abstract": [{"text": "Only an abstract."}]},
        {"paper_id": "2105.00002", "metadata": None, "bib_entries": {"r": ENTRIES["r1"]}},
        {"paper_id": None},
    ]
    found = read_all(reader, records)
    assert [p.id for p in found.papers] == ["arxiv:hep-th/9901001", "arxiv:math.ag/0601001", "arxiv:2105.00001"]
    assert found.rejected("papers") == {"no title and no abstract": 1, "no arXiv id": 1}
    assert found.citations == [Citation("arxiv:2105.00002", "doi:10.1000/one")]
