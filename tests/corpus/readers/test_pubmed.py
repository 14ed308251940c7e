"""PubMed XML and MEDLINE text: hand-made records for the traps, real ones for the truth."""

from citeweave.corpus.paper import Citation, Paper

ARTICLE = """<?xml version="1.0"?>
<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle//EN" "https://dtd.nlm.nih.gov/none.dtd">
<PubmedArticleSet><PubmedArticle><MedlineCitation><PMID Version="1">0077</PMID>
<DateRevised><Year>2019</Year><Month>6</Month><Day>09</Day></DateRevised>
<Article><Journal><JournalIssue><PubDate><MedlineDate>1998 Dec-1999 Jan</MedlineDate></PubDate></JournalIssue>
<Title>Annals of Examples</Title></Journal>
<ArticleTitle>Growth of <i>E. coli</i> at 10<sup>3</sup> m.</ArticleTitle>
<ELocationID EIdType="doi" ValidYN="Y">10.1234/ABC</ELocationID>
<Abstract><AbstractText Label="AIM">To find <math>
  <mi>x</mi>
  <mo>=</mo>
  <mn>2</mn>
</math>.</AbstractText><AbstractText Label="UNLABELED">Found &lt; 3.</AbstractText>
<CopyrightInformation>Owned.</CopyrightInformation></Abstract>
<AuthorList><Author><LastName>Doe</LastName><ForeName>Jane A</ForeName></Author>
<Author><CollectiveName>The Study Group</CollectiveName></Author></AuthorList>
<Language>eng</Language><PublicationTypeList><PublicationType>Retracted Publication</PublicationType></PublicationTypeList>
</Article>
<CommentsCorrectionsList><CommentsCorrections RefType="Cites"><PMID>5</PMID></CommentsCorrections>
<CommentsCorrections RefType="Cites"><PMID>6</PMID></CommentsCorrections>
<CommentsCorrections RefType="RetractionIn"><PMID>9</PMID></CommentsCorrections></CommentsCorrectionsList>
<MeshHeadingList><MeshHeading><DescriptorName MajorTopicYN="N">Humans</DescriptorName></MeshHeading>
<MeshHeading><DescriptorName MajorTopicYN="N">Iron</DescriptorName><QualifierName MajorTopicYN="Y">analysis</QualifierName>
</MeshHeading></MeshHeadingList></MedlineCitation>
<PubmedData><ArticleIdList><ArticleId IdType="pubmed">77</ArticleId><ArticleId IdType="pmc">PMC42</ArticleId>
</ArticleIdList><ReferenceList><Reference><Citation>A.</Citation><ArticleIdList>
<ArticleId IdType="doi">10.1000/a</ArticleId><ArticleId IdType="pubmed">5</ArticleId></ArticleIdList></Reference>
<Reference><Citation>Only text.</Citation></Reference></ReferenceList></PubmedData></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID>78</PMID><Article><ArticleTitle>[Not Available].</ArticleTitle></Article>
</MedlineCitation><PubmedData><ReferenceList><Reference/></ReferenceList></PubmedData></PubmedArticle>
<PubmedArticle><MedlineCitation><Article><ArticleTitle>Nameless</ArticleTitle></Article></MedlineCitation></PubmedArticle>
<DeleteCitation><PMID>1</PMID><PMID>2</PMID></DeleteCitation></PubmedArticleSet>
"""


def test_a_paper_with_every_trap_is_read(read_all):
    found = read_all("pubmed", ARTICLE)
    front = ("Growth of E. coli at 103 m.", "AIM: To find x=2. Found < 3.", 1998, "Annals of Examples")
    authors, fields, ids = ("Jane A Doe", "The Study Group"), ("Iron", "Humans"), ("pmcid:42", "doi:10.1234/abc")
    extra = {"publication_types": ["Retracted Publication"], "languages": ["eng"], "retracted": True}
    assert found.papers == [Paper("pmid:77", *front, authors, fields, ids, updated=20190609, extra=extra)]
    assert found.citations == [Citation("pmid:77", "pmid:5"), Citation("pmid:77", "pmid:6")]
    assert found.rejected("papers") == {"no title and no abstract": 1, "no id": 1}
    reasons = ("reference without a usable id", "reference listed twice", "citing paper rejected")
    assert found.rejected("citations") == dict.fromkeys(reasons, 1)
    notes = {"link that is not a citation (comment, erratum, retraction)": 1, "deletion notice left out": 2}
    assert found.notes == notes


def test_medline_text_joins_lines_and_ends_records_at_the_next_pmid(read_all):
    found = read_all(
        "pubmed",
        b"\r\nPMID- 12\r\nDP  - 2002 Sep\r\nTI  - A brief\r\n      overview: PT  - is no tag.\r\nAB  - One - two.\r\n"
        b"      Three.\r\nFAU - Doe, Jane\r\nAU  - Doe J\r\nCN  - Group\r\nLR  - 20041117\r\nMH  - Humans\r\n"
        b"MH  - Iron/*analysis\r\nAID - x1 [pii]\r\nAID - 10.1000/Z [doi]\r\nPMC - PMC3\r\nJT  - Caf\xe9 journal\r\n"
        b"PMID- 13\r\nstray\r\n\r\nPMID- none\r\nTI  - Third\r\n",
    )
    front = ("A brief overview: PT - is no tag.", "One - two. Three.", 2002, "Café journal", ("Jane Doe", "Group"))
    ids = ("doi:10.1000/z", "pmcid:3")
    assert found.papers == [Paper("pmid:12", *front, ("Iron", "Humans"), ids, updated=20041117)]
    assert found.rejected("papers") == {"no title and no abstract": 1, "no id": 1}
    assert found.notes == {"line is not UTF-8, read as Latin-1": 1, "line without a tag": 1}
