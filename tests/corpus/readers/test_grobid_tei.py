"""GROBID TEI: a hand-made paper, a header, and three real files of two versions."""

from __future__ import annotations

import pytest

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead
from citeweave.corpus.paper import Citation, Context, Paper
from citeweave.corpus.readers import grobid_tei

HEADER = """<?xml version="1.0" encoding="UTF-8"?>
<TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader><fileDesc>
<titleStmt><title level="a" type="main">On
   graphs</title></titleStmt><publicationStmt><date type="published" when="2019-05-02"/></publicationStmt>
<sourceDesc><biblStruct><analytic><author><persName><forename type="first">Ada</forename><forename type="middle">B</forename>
<surname>Lee</surname></persName></author><author><affiliation><orgName>Nowhere</orgName></affiliation></author></analytic>
<monogr><imprint><date/></imprint></monogr>{ids}</biblStruct></sourceDesc></fileDesc>
<encodingDesc><appInfo><application version="0.8.0" ident="GROBID"/></appInfo></encodingDesc>
<profileDesc><textClass><keywords><term>graphs</term></keywords></textClass>
<abstract><div><head>Summary</head><p>We study graphs.</p></div></abstract></profileDesc></teiHeader>"""

TEXT = """<text xml:lang="en"><body><div><head n="1">Introduction</head>
<p>Graphs <ref type="bibr" target="#b0">[1]</ref> matter <ref type="bibr">[9]</ref>. See <ref type="figure">Fig. 1</ref>.
Lost <ref type="bibr">[8]</ref>. Trees differ.<ref type="bibr" target="#b1">2</ref> <ref type="bibr" target="#b0">[1]</ref>
again.</p></div><figure><figDesc>From <ref type="bibr" target="#b0">[1]</ref>.</figDesc></figure></body>
<back><div type="references"><listBibl>
<biblStruct xml:id="b0"><analytic><title level="a" type="main">A theory of all graphs</title><author><persName>
<forename>P</forename><surname>Erd</surname></persName></author></analytic><monogr><title level="j">J Graphs</title>
<imprint><date type="published" when="1960-01"/></imprint></monogr></biblStruct>
<biblStruct xml:id="b1"><monogr><title level="m">Trees</title><imprint><date>1977</date></imprint></monogr>
<idno type="DOI">10.1000/Trees</idno><idno type="arXiv">arXiv:1706.03762v1[cs]</idno></biblStruct>
<biblStruct xml:id="b2"><monogr><title level="j">Only a journal of many things</title><imprint><date when="2000"/></imprint>
</monogr></biblStruct></listBibl></div></back></text></TEI>"""

FIRST = "title:a theory of all graphs|1960"


def test_a_full_text(read_all, tmp_path):
    path = tmp_path / "a paper.grobid.tei.xml"
    path.write_text(HEADER.replace("{ids}", "") + TEXT)
    found = read_all(grobid_tei, path)
    assert found.full == [
        Paper(
            id="grobid:a_paper",
            title="On graphs",
            abstract="We study graphs.",
            year=2019,
            authors=("Ada B Lee",),
            extra={"keywords": ["graphs"], "language": "en", "grobid_version": "0.8.0"},
            local_id=True,
        )
    ]
    assert found.stubs == [
        Paper(id=FIRST, title="A theory of all graphs", year=1960, venue="J Graphs", authors=("P Erd",), stub=True),
        Paper(id="doi:10.1000/trees", title="Trees", year=1977, ids=("arxiv:1706.03762",), stub=True),
    ]
    assert found.citations == [
        Citation("grobid:a_paper", FIRST, strength=2.0),
        Citation("grobid:a_paper", "doi:10.1000/trees"),
    ]
    assert found.rejected("citations") == {"reference without usable id": 1}
    assert found.contexts[0] == Context("grobid:a_paper", "Graphs [1] matter [9].", (FIRST,), "Introduction")
    assert {c for context in found.contexts[1:] for c in context.cited} == {FIRST, "doi:10.1000/trees"}
    assert found.rejected("contexts") == {"no cited paper": 1}
    assert found.tally.notes == {"in-text citation without a reference": 2, "in-text citation outside a paragraph": 1}


@pytest.mark.parametrize(
    ("ids", "paper_id", "others"),
    [
        ('<idno type="MD5">ABC</idno><idno type="DOI">10.5000/X</idno>', "doi:10.5000/x", ("md5:ABC",)),
        ('<idno type="MD5">ABC</idno>', "md5:ABC", ()),
        ('<idno type="arXiv">arXiv:1706.03762v5[cs.CL]</idno>', "arxiv:1706.03762", ()),
    ],
)
def test_ids_of_the_header(read_all, tmp_path, ids, paper_id, others):
    path = tmp_path / "x.xml"
    path.write_text(HEADER.replace("{ids}", ids) + "<text/></TEI>")
    (paper,) = read_all(grobid_tei, path).papers
    assert (paper.id, paper.ids, paper.local_id) == (paper_id, others, False)


def test_an_empty_header_takes_its_references_with_it(read_all, tmp_path):
    path = tmp_path / "x.tei.xml"
    path.write_text('<TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader/>' + TEXT)
    found = read_all(grobid_tei, path)
    assert found.papers == found.citations == found.contexts == []
    assert found.rejected("papers") == {"no title and no abstract": 1}
    assert found.rejected("citations") == {"citing paper rejected": 3}


@pytest.mark.parametrize(
    "content", [HEADER, "", "<a/>", "plain", '<?xml version="1.0"?><!DOCTYPE TEI [<!ENTITY a "b">]><TEI>&c;</TEI>']
)
def test_what_is_not_tei_is_one_error(read_all, tmp_path, content):
    path = tmp_path / "broken.tei.xml"
    path.write_text(content)
    with pytest.raises(InputError, match="broken.tei.xml"):
        read_all(grobid_tei, path)


def test_recognizes():
    assert grobid_tei.recognizes(FileHead("x", HEADER.encode()))
    assert not grobid_tei.recognizes(FileHead("x", b"<feed><entry/></feed>"))


def test_header_only(read_all, shared):
    found = read_all(grobid_tei, shared / "samples" / "grobid_tei" / "grobid_0.4.1_sample1.tei.header.xml")
    (paper,) = found.papers
    assert paper.title == "A Virtual Machine Introspection Based Architecture for Intrusion Detection"
    assert paper.authors == ("Tal Garfinkel", "Mendel Rosenblum")
    assert paper.abstract.startswith("Today's architectures for intrusion detection force the IDS designer")
    assert (found.citations, found.contexts) == ([], [])


@pytest.mark.parametrize(
    ("name", "references", "markers"),
    [
        ("N18-3011.tei.xml", 27, 28),
        ("grobid_0.4.1_sample2.tei.fulltext.xml", 47, 87),
    ],  # one more biblStruct is the header's,
)
def test_real_full_texts(read_all, shared, monkeypatch, name, references, markers):
    seen = []
    extract_contexts = grobid_tei.extract_contexts

    def counting(citing, paragraph, cited, tally):
        seen.extend(paragraph.markers)
        return extract_contexts(citing, paragraph, cited, tally)

    monkeypatch.setattr(grobid_tei, "extract_contexts", counting)
    found = read_all(grobid_tei, shared / "samples" / "grobid_tei" / name)
    assert len(found.full) == 1
    assert len(found.citations) + sum(found.rejected("citations").values()) == references
    assert len(seen) == markers
    assert {c for context in found.contexts for c in context.cited} <= {c.cited for c in found.citations}


def test_values_of_the_literature_graph_paper(read_all, shared):
    found = read_all(grobid_tei, shared / "samples" / "grobid_tei" / "N18-3011.tei.xml")
    (paper,) = found.full
    assert (paper.title, len(paper.authors)) == ("Construction of the Literature Graph in Semantic Scholar", 23)
    assert found.contexts[0].section == "Introduction"
    assert "(e.g., Wu et al., 2014), researchers remain unable" in found.contexts[0].text
    assert found.stubs[0].title.startswith("The ai2 system at semeval-2017 task 10")
