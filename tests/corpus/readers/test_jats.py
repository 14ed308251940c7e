"""JATS: hand-made papers for the traps of references, ranges and sub-articles; two real papers."""

import pytest

from citeweave.corpus.paper import Citation, Context, Paper

FRONT = """<article xmlns:xlink="http://www.w3.org/1999/xlink" article-type="research-article"><front><journal-meta>
<journal-title-group><journal-title>Cells Today</journal-title></journal-title-group></journal-meta><article-meta>
<article-id pub-id-type="pmc">PMC7</article-id><article-id pub-id-type="doi">10.1234/Cell.1</article-id>
<article-categories><subj-group subj-group-type="heading"><subject>Research Article</subject><subject>Biology</subject>
</subj-group></article-categories>
<title-group><article-title>On cells<xref ref-type="fn">*</xref></article-title><subtitle>a view</subtitle></title-group>
<contrib-group><contrib contrib-type="author"><name><surname>Doe</surname><given-names>Jane</given-names></name></contrib>
<contrib contrib-type="editor"><name><surname>Roe</surname></name></contrib>
<contrib contrib-type="author"><collab>The Group</collab></contrib></contrib-group>
<pub-date pub-type="pmc-release"><year>2001</year></pub-date><pub-date pub-type="epub"><year>2010</year></pub-date>
<pub-date pub-type="ppub"><month>1</month><year>2011</year></pub-date>
<abstract abstract-type="teaser"><p>Read me!</p></abstract>
<abstract><title>Abstract</title><sec><title>Aim</title><p>To see.</p></sec><sec><title>Results:</title><p>Seen.</p></sec>
<p><bold>DOI:</bold> <ext-link>http://dx.doi.org/10.1234/Cell.1.001</ext-link></p></abstract>
<kwd-group><kwd>cell</kwd></kwd-group></article-meta></front>"""

REFERENCES = """<back><ref-list>
<ref id="B1"><element-citation publication-type="journal"><person-group person-group-type="author"><name><surname>Poe</surname>
<given-names>E</given-names></name></person-group><year>1999a</year><article-title>The first of all the papers.</article-title>
<source>J Firsts</source><pub-id pub-id-type="doi">10.1000/one</pub-id><pub-id pub-id-type="pmid">11</pub-id></element-citation></ref>
<ref id="B2"><mixed-citation>Someone. Untagged (2001). doi: 10.1000/TWO.</mixed-citation></ref>
<ref id="B3"><citation citation-type="journal"><article-title>A paper without any id at all</article-title><year>2003</year>
</citation></ref>
<ref id="B4"><mixed-citation>Private communication.</mixed-citation></ref>
<ref id="B5"><citation-alternatives><element-citation><pub-id pub-id-type="doi">10.1000/five</pub-id></element-citation>
<mixed-citation>doi 10.1000/five-again</mixed-citation></citation-alternatives></ref>
<ref id="B6"><mixed-citation>a) doi:10.1000/six-a</mixed-citation><mixed-citation>b) arXiv:1706.03762v2</mixed-citation></ref>
</ref-list></back>"""

BODY = """<body><p>Cells divide [<xref ref-type="bibr" rid="B1">1</xref>-<xref ref-type="bibr" rid="B3">3</xref>]. Nobody
says so.</p><sec><title>Methods <italic>in vivo</italic></title>
<p>We did as before.<sup><xref ref-type="bibr" rid="B5">5</xref>,<xref ref-type="bibr" rid="B1">1</xref></sup> Then
<inline-formula><alternatives><tex-math>\\begin{document}$$y$$\\end{document}</tex-math><math><mi>y</mi></math></alternatives>
</inline-formula> fell
<fig><caption><p>A caption citing <xref ref-type="bibr" rid="B6">6</xref>.</p></caption></fig>
as <xref ref-type="fig" rid="f1">Fig. 1</xref> shows (<xref ref-type="bibr" rid="B4">private</xref>).</p></sec>
<table-wrap><table><tr><td><xref ref-type="bibr" rid="B1">1</xref></td></tr></table></table-wrap></body>"""

LETTER = """<sub-article article-type="reply"><front-stub><title-group><article-title>Decision letter</article-title></title-group>
</front-stub><body><p>We disagree with <xref ref-type="bibr" rid="B1">Poe</xref>.</p></body>
<back><ref-list><ref id="X"><mixed-citation>doi:10.1000/leak</mixed-citation></ref></ref-list></back></sub-article>"""

CITING = "doi:10.1234/cell.1"
ONE, TWO, FIVE = (f"doi:10.1000/{name}" for name in ("one", "two", "five"))
THIRD, SIX = "title:a paper without any id at all|2003", ("doi:10.1000/six-a", "arxiv:1706.03762")


def test_the_paper_its_references_and_its_citing_sentences_are_read(read_all):
    found = read_all("jats", FRONT + BODY + REFERENCES + LETTER + "</article>")
    authors, extra = ("Jane Doe", "The Group"), {"keywords": ["cell"], "article_type": "research-article"}
    front = ("On cells: a view", "Aim: To see. Results: Seen.", 2010, "Cells Today", authors, ("Biology",))
    assert found.full == [Paper(CITING, *front, ("pmcid:7",), updated=20110100, extra=extra)]
    first, author = "The first of all the papers", ("E Poe",)
    assert found.stubs == [
        Paper(ONE, first, year=1999, venue="J Firsts", authors=author, ids=("pmid:11",), stub=True),
        Paper(THIRD, "A paper without any id at all", year=2003, stub=True),
    ]
    others = (TWO, THIRD, FIVE, *SIX)  # references of all three elements
    assert found.citations == [Citation(CITING, ONE, strength=2.0), *(Citation(CITING, other) for other in others)]
    assert found.rejected("citations") == {"reference without a usable id": 1}
    assert found.contexts == [  # with ranges, raised numbers and captions
        Context(CITING, "Cells divide [1-3].", (ONE, TWO, THIRD)),
        Context(CITING, "A caption citing 6.", SIX, "Methods in vivo"),
        Context(CITING, "We did as before5,1.", (FIVE, ONE), "Methods in vivo"),
    ]
    assert found.rejected("contexts") == {"no cited paper": 1}
    reasons = ("sub-article left out", "in-text citation without a reference", "in-text citation outside a paragraph")
    assert found.notes == dict.fromkeys(reasons, 1)


MARKERS = [
    ('<xref ref-type="bibr" rid="B1 B2">1, 2</xref>', (ONE, TWO)),
    ('<xref ref-type="bibr" rid="B1">1–3</xref>', (ONE, TWO, THIRD)),
    ('<xref ref-type="bibr" rid="B3">3</xref>-<xref ref-type="bibr" rid="B1">1</xref>', (THIRD, ONE)),
    ('<xref ref-type="bibr" rid="B1">Poe</xref>-<xref ref-type="bibr" rid="B3">Ann</xref>', (ONE, THIRD)),
    ('<xref ref-type="bibr" rid="B1"/>', (ONE,)),
]


@pytest.mark.parametrize(("marker", "cited"), MARKERS)
def test_markers_of_every_form_name_their_references(read_all, marker, cited):
    text = f"{FRONT}<body><p>It is known {marker} today.</p></body>{REFERENCES}</article>"
    assert [context.cited for context in read_all("jats", text).contexts] == [cited]


def test_a_set_of_papers_without_ids_takes_the_file_name(read_all):
    title = "<title-group><article-title>T</article-title></title-group>"
    article = f"<article><front><article-meta>{title}</article-meta></front></article>"
    found = read_all("jats", f"<pmc-articleset>{article}{article}<article/></pmc-articleset>", "my set.xml")
    assert [(p.id, p.local_id) for p in found.papers] == [("jats:my_set", True), ("jats:my_set#2", True)]
    assert found.rejected("papers") == {"no title and no abstract": 1}
