"""RIS and Web of Science records: the dialects of the databases, and damage."""

import pytest

from citeweave.core.errors import InputError
from citeweave.corpus.paper import Citation, Paper


def test_every_tag_of_a_record_is_read(read_all):
    found = read_all(
        "ris",
        "\ufeffTY  - JOUR\r\nID  - rec 1\r\nTI  - On ice &amp; <i>water</i>\r\nAU  - Berg, Jörn\r\nAU  - Berg, Jörn\r\n"
        "AU  - King, Martin L., Jr.\r\nAB  - Ice melts.\r\nWe show why.\r\nPY  - 2019/05/01/\r\nJF  - Made Letters\r\n"
        "T2  - Made Lett.\r\nDO  - http://dx.doi.org/10.1000/ICE\r\nDO  - 10.1000/ice\r\nKW  - ice\r\nKW  - *water\r\n"
        "N1  - Cited By :12\r\nN1  - Export Date: 1 May 2020\r\nLA  - English\r\nER  - \r\n",
    )
    authors, ids, abstract = ("Jörn Berg", "Martin L. King Jr."), ("doi:10.1000/ice",), "Ice melts. We show why."
    extra = {"type": "JOUR", "keywords": ["ice", "*water"], "language": "English"}
    extra |= {"notes": ["Cited By :12", "Export Date: 1 May 2020"], "key": "rec 1"}
    front = ("On ice & water", abstract, 2019, "Made Letters", authors, ())
    assert found.papers == [Paper("rec 1", *front, ids, 12, 0, extra, local_id=True)]
    assert found.notes == {}


def test_dialects_are_read(read_all):
    found = read_all(
        "ris",
        "1.\nTY  - JOUR\nT1  - Old tags\nA1  - Liu R.\nY1  - 2014//\nN2  - Abstract.\nAN  - 99; 5\nER  -\n"
        "NL  - stray tag\nLink to the full text\n\n\rTY  - CONF\rTI  - Stray returns\rUR  - https://doi.org/10.1000/b\r"
        "DA  - 2001/02\rER  -\r"
        "TY - BOOK\nBT  - A book\nM3  - 10.1000/c\nDB  - PubMed\nAN  - 123\nC2  - PMC9\n"
        "TY  - UNPB\nTI  - No end before\nUR  - http://arxiv.org/abs/1702.04615v2\nN1  - PMID: 77",
    )
    assert [(p.id, p.title, p.year, p.ids) for p in found.papers] == [
        ("99; 5", "Old tags", 2014, ()),
        ("doi:10.1000/b", "Stray returns", 2001, ()),
        ("123", "A book", None, ("doi:10.1000/c", "pmid:123", "pmcid:9")),
        ("arxiv:1702.04615", "No end before", None, ("pmid:77",)),
    ]
    assert (found.papers[0].authors, found.papers[0].abstract) == (("Liu R.",), "Abstract.")
    assert found.notes == {"tag outside a record left out": 1, "record without ER": 2}


def test_a_record_without_title_and_abstract_is_rejected(read_all):
    found = read_all("ris", "TY  - J\nAU  - A\nER  -\nTY  - J\nAB  - Only this.\nER  -\nTY  - J\nTI  - \nER  -\n")
    assert [(p.title, p.abstract) for p in found.papers] == [("", "Only this.")]
    assert found.rejected("papers") == {"no title and no abstract": 2}


def test_web_of_science_is_read_with_its_references(read_all):
    found = read_all(
        "ris",
        "FN Clarivate Analytics Web of Science\nVR 1.0\nPT J\nAU Berg, J\n   Hall, A\nAF Berg, Jorn\n   Hall, Ada\n"
        "TI On ice\n   and water\nSO MADE LETT\nDE ice; sea\n   level\nID WATER\nAB Ice melts.\nPY 2004\nTC 23\n"
        "DI 10.1000/ICE\nPM 15170338\nUT WOS:000221807500019\nWC Physics; Chemistry\nDT Article\n"
        "CR ROE A, 1986, P MADE, V83, P1, DOI 10.1000/a\n   POE B, 1990, MADE SYMP, V53\n"
        "   DOE C, 2014, ARXIV, DOI arXiv:1412.6980\n   ZOE D, 2001, X, DOI [10.1000/d, 10.1000/e]\nER\n\n"
        "PT J\nPY 2001\nCR ROE A, 1986, P MADE, V83, P1, DOI 10.1000/a\nER\n\nEF\n",
    )
    own, title, authors = "WOS:000221807500019", "On ice and water", ("Jorn Berg", "Ada Hall")
    fields, ids = ("Physics", "Chemistry"), ("doi:10.1000/ice", "pmid:15170338", "wos:000221807500019")
    extra = {"type": "Article", "keywords": ["ice", "sea level", "WATER"]}
    front = (title, "Ice melts.", 2004, "MADE LETT", authors, fields)
    assert found.papers == [Paper(own, *front, ids, 23, extra=extra, local_id=True)]
    cited = ("doi:10.1000/a", "arxiv:1412.6980", "doi:10.1000/d")
    assert found.citations == [Citation("doi:10.1000/ice", other) for other in cited]
    assert found.rejected("papers") == {"no title and no abstract": 1}
    assert found.rejected("citations") == {"reference without a usable id": 1, "citing paper rejected": 1}


def test_another_format_is_refused(read_all):
    with pytest.raises(InputError, match=r"made\.ris holds no RIS record"):
        read_all("ris", "PMID- 123\nTI  - A MEDLINE record\n", "made.ris")
