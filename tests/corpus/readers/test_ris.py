"""RIS and Web of Science records: the dialects of the databases, damage, any bytes at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import Citation, Paper
from citeweave.corpus.readers import ris

ReadAll = Callable[[ModuleType, Path], Any]


@pytest.fixture
def read(tmp_path: Path, read_all: ReadAll) -> Callable[[str | bytes], Any]:
    def run(content: str | bytes) -> Any:
        path = tmp_path / "made.ris"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_all(ris, path)

    return run


def test_a_whole_record(read: Callable[[str], Any]) -> None:
    found = read(
        "\ufeffTY  - JOUR\r\nID  - rec 1\r\nTI  - On ice &amp; <i>water</i>\r\nAU  - Berg, Jörn\r\nAU  - Berg, Jörn\r\n"
        "AU  - King, Martin L., Jr.\r\nAB  - Ice melts.\r\nWe show why.\r\nPY  - 2019/05/01/\r\nJF  - Made Letters\r\n"
        "T2  - Made Lett.\r\nDO  - http://dx.doi.org/10.1000/ICE\r\nDO  - 10.1000/ice\r\nKW  - ice\r\nKW  - *water\r\n"
        "N1  - Cited By :12\r\nN1  - Export Date: 1 May 2020\r\nLA  - English\r\nER  - \r\n"
    )
    assert found.papers == [
        Paper(
            id="rec 1",
            title="On ice & water",
            abstract="Ice melts. We show why.",
            year=2019,
            venue="Made Letters",
            authors=("Jörn Berg", "Martin L. King Jr."),
            ids=("doi:10.1000/ice",),
            citation_count=12,
            extra={
                "type": "JOUR",
                "keywords": ["ice", "*water"],
                "language": "English",
                "notes": ["Cited By :12", "Export Date: 1 May 2020"],
            },
            local_id=True,
        )
    ]
    assert found.tally.notes == {}


def test_dialects(read: Callable[[str], Any]) -> None:
    found = read(
        "1.\nTY  - JOUR\nT1  - Old tags\nA1  - Liu R.\nY1  - 2014//\nN2  - Abstract.\nAN  - 99; 5\nER  -\n"
        "NL  - stray tag\nLink to the full text\n\n\rTY  - CONF\rTI  - Stray returns\rUR  - https://doi.org/10.1000/b\r"
        "DA  - 2001/02\rER  -\r"
        "TY - BOOK\nBT  - A book\nM3  - 10.1000/c\nDB  - PubMed\nAN  - 123\nC2  - PMC9\n"
        "TY  - UNPB\nTI  - No end before\nUR  - http://arxiv.org/abs/1702.04615v2\nN1  - PMID: 77"
    )
    assert [(p.id, p.title, p.year, p.ids) for p in found.papers] == [
        ("99; 5", "Old tags", 2014, ()),
        ("doi:10.1000/b", "Stray returns", 2001, ()),
        ("123", "A book", None, ("doi:10.1000/c", "pmid:123", "pmcid:9")),
        ("arxiv:1702.04615", "No end before", None, ("pmid:77",)),
    ]
    assert (found.papers[0].authors, found.papers[0].abstract) == (("Liu R.",), "Abstract.")
    assert found.tally.notes == {
        "tag outside a record left out": 1,
        "record without ER": 2,
    }


def test_a_record_without_title_and_abstract_is_rejected(read: Callable[[str], Any]) -> None:
    found = read("TY  - JOUR\nAU  - A\nER  -\nTY  - JOUR\nAB  - Only this.\nER  -\nTY  - JOUR\nTI  - \nER  -\n")
    assert [(p.title, p.abstract) for p in found.papers] == [("", "Only this.")]
    assert found.tally.counts["papers"].rejected == {"no title and no abstract": 2}


def test_web_of_science(read: Callable[[str], Any]) -> None:
    found = read(
        "FN Clarivate Analytics Web of Science\nVR 1.0\nPT J\nAU Berg, J\n   Hall, A\nAF Berg, Jorn\n   Hall, Ada\n"
        "TI On ice\n   and water\nSO MADE LETT\nDE ice; sea\n   level\nID WATER\nAB Ice melts.\nPY 2004\nTC 23\n"
        "DI 10.1000/ICE\nPM 15170338\nUT WOS:000221807500019\nWC Physics; Chemistry\nDT Article\n"
        "CR ROE A, 1986, P MADE, V83, P1, DOI 10.1000/a\n   POE B, 1990, MADE SYMP, V53\n"
        "   DOE C, 2014, ARXIV, DOI arXiv:1412.6980\n   ZOE D, 2001, X, DOI [10.1000/d, 10.1000/e]\nER\n\n"
        "PT J\nPY 2001\nCR ROE A, 1986, P MADE, V83, P1, DOI 10.1000/a\nER\n\nEF\n"
    )
    assert found.papers == [
        Paper(
            id="WOS:000221807500019",
            title="On ice and water",
            abstract="Ice melts.",
            year=2004,
            venue="MADE LETT",
            authors=("Jorn Berg", "Ada Hall"),
            fields=("Physics", "Chemistry"),
            ids=("doi:10.1000/ice", "pmid:15170338", "wos:000221807500019"),
            citation_count=23,
            extra={"type": "Article", "keywords": ["ice", "sea level", "WATER"]},
            local_id=True,
        )
    ]
    assert found.citations == [
        Citation("doi:10.1000/ice", "doi:10.1000/a"),
        Citation("doi:10.1000/ice", "arxiv:1412.6980"),
        Citation("doi:10.1000/ice", "doi:10.1000/d"),
    ]
    assert found.tally.counts["papers"].rejected == {"no title and no abstract": 1}
    assert found.tally.counts["citations"].rejected == {
        "reference without usable id": 1,
        "citing paper rejected": 1,
    }


def test_another_format_is_refused_as_a_whole(read: Callable[[str], Any]) -> None:
    with pytest.raises(InputError, match=r"made\.ris holds no RIS record"):
        read("PMID- 123\nTI  - A MEDLINE record\n")


def test_recognizes() -> None:
    assert ris.recognizes(FileHead("x", b"\r\n1.\r\nTY  - JOUR\r\nTI  - T\r\nER  - \r\n"))
    assert ris.recognizes(FileHead("x", b"FN Clarivate\nVR 1.0\nPT J\n"))
    assert ris.recognizes(FileHead("x", b"PT J\nAU A\n"))
    assert not ris.recognizes(FileHead("x", b"\nPMID- 123\nOWN - NLM\nPT  - Journal Article\nTI  - T\n"))
    assert not ris.recognizes(FileHead("x", b'{"ris": "\\nTY  - JOUR"}'))
    assert not ris.recognizes(FileHead("x", b""))


# --- hostile input -----------------------------------------------------------------------------------

_PIECES = [
    "TY  - ",
    "ER  - ",
    "TI  - ",
    "AU  - ",
    "CR ",
    "PT J",
    "TI x",
    "ER",
    "EF",
    "   ",
    "\n",
    "\r",
    ",",
    "DOI ",
    "\0",
    "10.1000/x",
    "a",
]
_HOSTILE = st.binary() | st.lists(st.sampled_from(_PIECES)).map(lambda pieces: "".join(pieces).encode())


@given(st.sampled_from([b"TY  - JOUR\nTI  - T\n", b"PT J\nTI T\n", b""]), _HOSTILE)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_input_errors_come_out(tmp_path: Path, start: bytes, content: bytes) -> None:
    path = tmp_path / "hostile.ris"
    path.write_bytes(start + content)
    try:
        for record in ris.read(Source(path), Tally()):
            assert isinstance(record, Paper | Citation)
    except InputError:
        pass


@pytest.mark.parametrize(
    "unit", ["\n", "\r", "TY  - J\n", "AU  - A, B\n", "x\n", " ", ",", "TI  - T\n", "ER  -\n", "TY  - J"]
)
def test_time_grows_with_the_length_only(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "hostile.ris"
    path.write_text("TY  - JOUR\nTI  - T\n" + unit * (500_000 // len(unit)))
    begin = time.process_time()
    list(ris.read(Source(path), Tally()))
    assert time.process_time() - begin < 10


# --- real files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "papers", "abstracts", "dois"),
    [
        ("embase.ris", 6, 6, 6),
        ("example_wos.ris", 2, 2, 2),
        ("litstudy_example.ris", 25, 25, 24),
        ("ovid_psycinfo.ris", 6, 6, 6),
        ("proquest.ris", 6, 6, 6),
        ("pubmed_zotero.ris", 6, 6, 6),
        ("scopus.first30.ris", 30, 29, 29),
        ("zotero.first30.ris", 30, 30, 30),
    ],
)
def test_real_files(shared: Path, read_all: ReadAll, name: str, papers: int, abstracts: int, dois: int) -> None:
    path = shared / "samples" / "ris" / name
    found = read_all(ris, path)
    assert ris.recognizes(Source(path).head())
    assert len(found.papers) == papers and found.tally.counts["papers"].rejected == {}
    assert sum(bool(paper.abstract) for paper in found.papers) == abstracts
    assert sum(any(one.startswith("doi:") for one in (paper.id, *paper.ids)) for paper in found.papers) == dois
    assert all(paper.title and paper.year and paper.authors and paper.venue for paper in found.papers)


def test_real_values(shared: Path, read_all: ReadAll) -> None:
    folder = shared / "samples" / "ris"
    ovid = read_all(ris, folder / "ovid_psycinfo.ris").papers[0]
    assert (ovid.id, ovid.ids) == ("2019-65183-001", ("doi:10.1002/cpp.2398",))
    assert ovid.authors[0] == "Ines A Trindade"
    twice = read_all(ris, folder / "litstudy_example.ris").papers[:2]
    assert twice[0].authors == ("G. Kalbe",) and twice[1].authors[0] == "M. Bobák"
    wos = read_all(ris, folder / "example_wos.ris")
    # the records say NR 59 and NR 86
    assert len(wos.citations) + wos.tally.counts["citations"].rejected["reference without usable id"] == 59 + 86
    assert wos.citations[0] == Citation("doi:10.1021/bi049798f", "doi:10.1073/pnas.83.22.8589")
