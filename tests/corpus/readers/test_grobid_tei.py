"""GROBID TEI: a hand-made paper, a header, and three real files of two versions."""

import pytest

from citeweave.corpus.paper import Citation, Context, Paper

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


def test_a_full_text_is_read(read_all):
    found = read_all("grobid_tei", HEADER.replace("{ids}", "") + TEXT, "a paper.grobid.tei.xml")
    own, trees = "grobid:a_paper", "doi:10.1000/trees"
    extra = {"keywords": ["graphs"], "language": "en", "grobid_version": "0.8.0"}
    front = ("On graphs", "We study graphs.", 2019, "", ("Ada B Lee",))
    assert found.full == [Paper(own, *front, extra=extra, local_id=True)]
    assert found.stubs == [
        Paper(FIRST, "A theory of all graphs", year=1960, venue="J Graphs", authors=("P Erd",), stub=True),
        Paper(trees, "Trees", year=1977, ids=("arxiv:1706.03762",), stub=True),
    ]
    assert found.citations == [Citation(own, FIRST, strength=2.0), Citation(own, trees)]
    assert found.rejected("citations") == {"reference without a usable id": 1}
    assert found.contexts[0] == Context(own, "Graphs [1] matter [9].", (FIRST,), "Introduction")
    assert {c for context in found.contexts[1:] for c in context.cited} == {FIRST, trees}
    assert found.rejected("contexts") == {"no cited paper": 1}
    assert found.notes == {"in-text citation without a reference": 2, "in-text citation outside a paragraph": 1}


IDS = [
    ('<idno type="MD5">ABC</idno><idno type="DOI">10.5000/X</idno>', "doi:10.5000/x", ("md5:ABC",)),
    ('<idno type="MD5">ABC</idno>', "md5:ABC", ()),
    ('<idno type="arXiv">arXiv:1706.03762v5[cs.CL]</idno>', "arxiv:1706.03762", ()),
]


@pytest.mark.parametrize(("ids", "paper_id", "others"), IDS)
def test_ids_of_the_header_name_the_paper(read_all, ids, paper_id, others):
    (paper,) = read_all("grobid_tei", HEADER.replace("{ids}", ids) + "<text/></TEI>").papers
    assert (paper.id, paper.ids, paper.local_id) == (paper_id, others, False)


def test_an_empty_header_takes_its_references_with_it(read_all):
    found = read_all("grobid_tei", '<TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader/>' + TEXT)
    assert found.papers == found.citations == found.contexts == []
    assert found.rejected("papers") == {"no title and no abstract": 1}
    assert found.rejected("citations") == {"citing paper rejected": 3}
