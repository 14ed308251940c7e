"""BibTeX: entries as the format wants them, as people write them, and as nobody should."""

from __future__ import annotations

import contextlib
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
from citeweave.corpus.paper import Paper
from citeweave.corpus.readers import bibtex

ReadAll = Callable[[ModuleType, Path], Any]


@pytest.fixture
def read(tmp_path: Path, read_all: ReadAll) -> Callable[[str | bytes], Any]:
    def run(content: str | bytes) -> Any:
        path = tmp_path / "made.bib"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_all(bibtex, path)

    return run


def test_a_whole_entry(read: Callable[[str], Any]) -> None:
    found = read(
        r"""% Encoding: UTF-8
        @String(jml = "Journal of Made Letters")
        @Article{berg2019,
          Title    = {On {B}ergs and $x_{i}$ --- a {\em short} study},
          AUTHOR   = "Berg, J{\"o}rn and {\'A}lvarez, Ana and {The Ice Group} and others",
          journal  = jml # { (New Series)},
          year     = 2019,
          month    = "1~" # jan,
          abstract = {Ice melts by 50\% & more.
                      We show why.},
          doi      = {https://doi.org/10.1000/ICE\_1},
          eprint   = {1901.00001v2}, archivePrefix = {arXiv},
          pmid     = {123}, pmcid = {PMC77},
          keywords = {ice, {sea level}; ice},
          timestamp = {2020-02-03 10:00:00 +0100},
          file     = {C:\\papers\\berg.pdf:PDF},
        }"""
    )
    written = found.papers[0].extra.pop("bibtex")
    assert (written["type"], written["key"]) == ("article", "berg2019")
    assert written["fields"]["title"] == r"On {B}ergs and $x_{i}$ --- a {\em short} study"
    assert written["fields"]["file"] == r"C:\\papers\\berg.pdf:PDF"
    assert found.papers == [
        Paper(
            id="berg2019",
            title="On Bergs and $x_{i}$ — a short study",
            abstract="Ice melts by 50% & more. We show why.",
            year=2019,
            venue="Journal of Made Letters (New Series)",
            authors=("Jörn Berg", "Ana Álvarez", "The Ice Group"),
            ids=("doi:10.1000/ice_1", "arxiv:1901.00001", "pmid:123", "pmcid:77"),
            updated=20200203,
            extra={"type": "article", "keywords": ["ice", "sea level"]},
            local_id=True,
        )
    ]
    assert found.tally.counts["papers"].rejected == {} and found.tally.notes == {}


def test_ids_found_in_other_fields(read: Callable[[str], Any]) -> None:
    found = read(
        """@misc{a, title={A}, url={http://arxiv.org/abs/1702.04615}}
        @misc{b, title={B}, journal={arXiv preprint arXiv:1803.00002}}
        @misc{c, title={C}, url={https://doi.org/10.1000/c}}
        @misc{d, title={D}, url={https://aclanthology.org/N18-3011}}
        @misc{e, title={E}, eprint={31415}, eprinttype={pubmed}}
        @misc{f, title={F}, eprint={20099996}, eprinttype={jstor}, doi={n/a}}
        @misc{g, title={G}, eprint={2101.00003}, eprintclass={cs.CL}}"""
    )
    assert [paper.ids for paper in found.papers] == [
        ("arxiv:1702.04615",),
        ("arxiv:1803.00002",),
        ("doi:10.1000/c",),
        ("acl:N18-3011",),
        ("pmid:31415",),
        (),
        ("arxiv:2101.00003",),
    ]


def test_delimiters_keys_and_commas_as_people_write_them(read: Callable[[str], Any]) -> None:
    found = read(
        """@article(round, title = "In (round) brackets", year = "1990")@book{same_line, title = {Second}}
        @misc{,
          title = {No key}, }
        @misc{ title = {No key at all} }
        @misc{no_comma
          title = {The comma is missing}
          year = 2001
        }
        @web_page{odd/type:1, title = "Strange {"}quotes{"}", year = {in press, 2003}}
        @misc{umlaut, title = "G\\"odel"}
        @misc{twice, title = {First}, title = {Second}}
        @misc{macro, title = {M}, journal = UNKNOWN-MACRO}
        @misc{field, title = {F}, % year = {1999},
          year = 2005}
        @misc{sub, title = {Main}, subtitle = {Sub}, date = {2011-05}}"""
    )
    assert [(p.id, p.title, p.year) for p in found.papers] == [
        ("round", "In (round) brackets", 1990),
        ("same_line", "Second", None),
        ("bibtex-d532c3cc06", "No key", None),
        ("bibtex-79fd350067", "No key at all", None),
        ("no_comma", "The comma is missing", 2001),
        ("odd/type:1", 'Strange "quotes"', 2003),
        ("umlaut", "Gödel", None),
        ("twice", "First", None),
        ("macro", "M", None),
        ("field", "F", 2005),
        ("sub", "Main: Sub", 2011),
    ]
    assert found.papers[8].venue == "UNKNOWN-MACRO"
    assert found.tally.notes == {"entry without key": 2}


def test_an_unbalanced_entry_costs_only_itself(read: Callable[[str], Any]) -> None:
    found = read(
        r"""@article{one, title = {Fine}}
@article{two, title = {Thi\{'ebaux is broken}, year = 1993}
@article{three, title = "Never closed, year = 1994}
@article{four, title = {Fine again}}
@article{five, title = {Cut off"""
    )
    assert [paper.id for paper in found.papers] == ["one", "four"]
    assert found.tally.counts["papers"].rejected == {"unbalanced braces": 3}


def test_what_is_no_paper_is_neither_kept_nor_counted(read: Callable[[str], Any]) -> None:
    found = read(
        """This is free text by me@example.org (hello).
        @preamble{ "\\newcommand{\\noop}[1]{} \\@ifundefined{x}{}" }
        @comment{jabref-meta: grouping:{a}{b};}
        @comment This is one too.
        %@article{off, title = {Commented out}}
        @string{x = {y}}
        @article{on, title = {Kept}}
        @article{bare, year = 1999}
        @article{empty}"""
    )
    assert [paper.id for paper in found.papers] == ["on"]
    assert found.tally.counts["papers"].rejected == {"no title": 2}
    assert found.tally.notes == {"entry behind a percent sign left out": 1}


def test_children_inherit_venue_and_year_of_their_volume(read: Callable[[str], Any]) -> None:
    found = read(
        """@inproceedings{child, title = {C}, crossref = {VOL}}
        @inproceedings{own, title = {O}, crossref = "vol", year = 1984, booktitle = {Own}}
        @proceedings{Vol, title = {Proceedings of Things}, year = 1985}"""
    )
    assert [(p.venue, p.year) for p in found.papers] == [
        ("Proceedings of Things", 1985),
        ("Own", 1984),
        ("", 1985),
    ]


def test_names_are_turned_round(read: Callable[[str], Any]) -> None:
    names = r"van der Berg, Jan and King, Jr., Martin L. AND {Agency, Space} and \'Etienne  Roux and {{A and B}}"
    found = read("@misc{a, title={T}, author={" + names + "}}")
    assert found.papers[0].authors == (
        "Jan van der Berg",
        "Martin L. King Jr.",
        "Agency, Space",
        "Étienne Roux",
        "A and B",
    )


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_encodings(read: Callable[[bytes], Any], encoding: str) -> None:
    found = read("@misc{ü, title = {Über Bäume}}\r\n".encode(encoding))
    assert [(p.id, p.title) for p in found.papers] == [("ü", "Über Bäume")]


def test_another_format_is_refused_as_a_whole(read: Callable[[str], Any]) -> None:
    with pytest.raises(InputError, match=r"made\.bib holds no BibTeX entry"):
        read('{"title": "JSON"}')


def test_recognizes() -> None:
    assert bibtex.recognizes(FileHead("x.txt", b"% note\n\n  @Article{key,\n title={T}}"))
    assert bibtex.recognizes(FileHead("x.BIB", b""))
    assert not bibtex.recognizes(FileHead("x.java", b'@SuppressWarnings("x") class A {}'))
    assert not bibtex.recognizes(FileHead("x.json", b'{"bibtex": "@article{a, title={T}}"}'))
    assert not bibtex.recognizes(FileHead("x.txt", b""))


# --- hostile input -----------------------------------------------------------------------------------

_PIECES = [
    "@",
    "{",
    "}",
    "(",
    ")",
    '"',
    ",",
    "=",
    "#",
    "%",
    "\n",
    "\\",
    "article",
    "title",
    "string",
    "comment",
    " and ",
    "a",
]
_HOSTILE = st.binary() | st.lists(st.sampled_from(_PIECES)).map(lambda pieces: "".join(pieces).encode())


@given(_HOSTILE)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_input_errors_come_out(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "hostile.bib"
    path.write_bytes(b"@article{k, author = {A and B}, title = {T}," + content)
    try:
        records = list(bibtex.read(Source(path), Tally()))
    except InputError:
        return
    assert all(isinstance(record, Paper) and record.title and record.id for record in records)


@pytest.mark.parametrize(
    "unit",
    [
        "{",
        "@",
        "@a{",
        "\n@a{",
        "@a{x,",
        ",",
        "%",
        '"',
        "}",
        "@string{a=a#a}\n",
        "a=",
        "#",
        " ",
        "\\",
        "and ",
        "@comment(",
    ],
)
def test_time_grows_with_the_length_only(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "hostile.bib"
    for opening in ("@article{k, author = ", "@article{k, title = {T}, author = {", ""):
        path.write_text(opening + unit * (500_000 // len(unit)))
        begin = time.process_time()
        with contextlib.suppress(InputError):
            list(bibtex.read(Source(path), Tally()))
        assert time.process_time() - begin < 10  # takes about a second; quadratic behavior takes minutes


def test_macros_of_macros_do_not_fill_the_memory(read: Callable[[str], Any]) -> None:
    doubling = "".join(f"@string{{m{i + 1} = m{i} # m{i}}}\n" for i in range(60))
    found = read(f"@string{{m0 = {{ab}}}}\n{doubling}@misc{{k, title = {' # '.join(['m60'] * 1000)}}}")
    assert 0 < len(found.papers[0].title) <= 10_000


# --- real files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "papers", "rejected", "abstracts"),
    [
        ("acl_style_clean_mteb.bib", 7, {}, 0),
        ("better_bibtex_export_901.bib", 36, {}, 9),
        ("clean_joss_paper.bib", 11, {}, 0),
        ("endnote_export_no_key.bib", 1, {}, 1),
        ("jabref_encoding_header.bib", 1, {"no title": 1}, 0),
        ("mendeley_export.first15.bib", 15, {}, 8),
        ("messy_duplicate_keys_unbalanced_873.bib", 986, {"unbalanced braces": 1, "no title": 1}, 14),
        ("percent_and_preamble_95_96.bib", 1, {}, 1),
        ("string_macros_664.bib", 1, {}, 1),
        ("string_macros_scisumm.bib", 7, {}, 0),
    ],
)
def test_real_files(
    shared: Path, read_all: ReadAll, name: str, papers: int, rejected: dict[str, int], abstracts: int
) -> None:
    path = shared / "samples" / "bibtex" / name
    found = read_all(bibtex, path)
    assert bibtex.recognizes(Source(path).head())
    assert len(found.papers) == papers
    assert found.tally.counts["papers"].rejected == rejected
    assert sum(bool(paper.abstract) for paper in found.papers) == abstracts
    assert all(paper.local_id and paper.title for paper in found.papers)


def test_real_values(shared: Path, read_all: ReadAll) -> None:
    folder = shared / "samples" / "bibtex"
    joss = {p.id: p for p in read_all(bibtex, folder / "clean_joss_paper.bib").papers}
    assert joss["vseva2019vist"].authors[:3] == ("Jurica Ševa", "David Luis Wiegandt", "Julian Götze")
    assert joss["vseva2019vist"].ids == ("doi:10.1186/s12859-019-2958-3",)
    jabref = read_all(bibtex, folder / "jabref_encoding_header.bib").papers[0]
    assert jabref.title == (
        "Pi Calculus Versus Petri Nets: Let Us Eat Humble Pie Rather Than Further Inflate the Pi Hype"
    )
    percent = read_all(bibtex, folder / "percent_and_preamble_95_96.bib").papers[0]
    assert "about 50% in a narrow" in percent.abstract and percent.ids == ("doi:10.1016/j.tsf.2009.05.016",)
    messy = read_all(bibtex, folder / "messy_duplicate_keys_unbalanced_873.bib").papers
    keys = [paper.id for paper in messy]
    assert len(keys) - len(set(keys)) >= 13
    assert "Thiebaux:93" not in keys and "Wellman:WALRAS" in keys
