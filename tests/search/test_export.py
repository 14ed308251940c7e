"""Exports: our own importer reads the BibTeX back, no cell is a formula, no text breaks out of its field."""

import csv
import io
import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave import IndexOptions, Paper, import_papers
from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.plain_text import names_of, strip_markup
from citeweave.corpus.readers import bibtex
from citeweave.corpus.readers.bibtex import BibtexEntry, read_entries
from citeweave.search.build import build_index
from citeweave.search.export import ExportedPaper, escape_latex, export_papers, to_bibtex, to_csv, to_json

from ..conftest import refused

NASTY = [
    "50% of {DNA} & $5 or $6 #1 a_b x^2 ~tilde \\input{/etc/passwd}",
    "}} @article{evil, title={x}",
    "un{balanced",
    "dashes -- and --- and ``quotes'' 'one'",
    "$O(n^2)$ sorting, $\\input{x}$",
    "\\",
    "a\n\n@misc{b,\n title = {x}\n}",
    "Größe, naïve Šikáček, 王, émile",
    'say "so", \\"a',
]


def read_back(text: str, folder: Path) -> list[Paper]:
    file = folder / "out.bib"
    file.write_text(text, encoding="utf-8", errors="replace")
    tally = Tally()
    found = [record for record in bibtex.read(Source(file), tally) if isinstance(record, Paper)]
    assert not any(count.rejected for count in tally.counts.values())
    return found


def expected(text: str) -> str:
    return unicodedata.normalize("NFC", strip_markup(text))


def test_nasty_titles_come_back(tmp_path):
    others = ("Ada and Bo", "Zuse, Konrad", "others")
    papers = [ExportedPaper(f"s2:{n}", one, one, 1990 + n, one, (one, *others)) for n, one in enumerate(NASTY)]
    back = read_back(to_bibtex(papers), tmp_path)
    assert [paper.title for paper in back] == [expected(title) for title in NASTY]
    assert [paper.abstract for paper in back] == [paper.title for paper in back] == [paper.venue for paper in back]
    assert [paper.year for paper in back] == [paper.year for paper in papers]
    assert [paper.authors[1:] for paper in back] == [("Ada and Bo", "Zuse, Konrad", "others")] * len(NASTY)
    whole = [at for at, title in enumerate(NASTY) if "," not in title]
    assert [back[at].authors[0] for at in whole] == [expected(NASTY[at]) for at in whole]


# a name with a comma and with characters that need braces is taken apart by the importer
_ONE_PART = st.text(st.characters(exclude_characters=","), max_size=40)
_NAMES = _ONE_PART | st.text("ab, &%#_$.", max_size=20) | st.just("a and b")


@settings(max_examples=200)
@given(st.lists(_NAMES, min_size=1, max_size=4), st.text("{}\\$%&#_^~-'`\"@,= and<>\n x2", max_size=60))
def test_any_text_comes_back(tmp_path_factory, authors, title):
    title = f"x {title} x"
    (back,) = read_back(to_bibtex([ExportedPaper("a", title, authors=tuple(authors))]), tmp_path_factory.mktemp("bib"))
    assert back.title == expected(title)
    wanted = names_of([unicodedata.normalize("NFC", strip_markup(name)) for name in authors])
    assert tuple(unicodedata.normalize("NFC", name) for name in back.authors) == wanted


def test_ids_and_keys(tmp_path):
    papers = [
        ExportedPaper("turing1950", "Computing machinery", ids=("doi:10.1093/mind_a%b", "arxiv:1706.03762")),
        ExportedPaper("doi:10.1000/x", "Maps of the moon", year=2020, authors=("Šikáček, J.",)),
        ExportedPaper("doi:10.1000/y", "Maps of the moon", year=2020, authors=("Šikáček, J.",)),
        ExportedPaper("TURING1950", "Another"),
        ExportedPaper("doi:10.1/a}b", ""),
        ExportedPaper("a b,c={}", "Key with signs"),
    ]
    text = to_bibtex(papers)
    keys = re.findall(r"^@\w+\{(.*),$", text, re.MULTILINE)
    assert keys[0] == "turing1950" and len({key.lower() for key in keys}) == len(papers)
    assert keys[1].startswith("sikacek2020maps-") and keys[1] != keys[2]
    # the same key in other company, so that a manuscript that cites it stays right
    assert re.findall(r"\{(.*),$", to_bibtex([papers[2]]), re.MULTILINE)[0] == keys[2]
    back = read_back(text, tmp_path)
    assert back[0].ids == ("doi:10.1093/mind_a%b", "arxiv:1706.03762") and back[1].ids == ("doi:10.1000/x",)
    assert back[4].title == "doi:10.1/a}b" and back[4].ids == ()


def test_latex_cannot_break_out():
    for text in NASTY:
        written = escape_latex(text)
        assert re.sub(r"\\textbraceleft\{\}|\\textbraceright\{\}|\{\}", "", written).count("{") == 0
        allowed = {"backslash", "braceleft", "braceright", "asciitilde", "asciicircum"}
        assert set(re.findall(r"\\([a-zA-Z]+)", written)) <= {f"text{name}" for name in allowed}


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r\n=1", " =cmd|' /C calc'!A0", "＝1"])
def test_no_cell_is_a_formula(cell):
    text = to_csv([ExportedPaper(cell, cell, cell, 2000, cell, (cell, "b"), (cell,))])
    names, row = csv.reader(io.StringIO(text, newline=""))
    assert names == ["id", "title", "authors", "year", "venue", "fields", "doi", "abstract"]
    assert all(one[:1] in ("'", "") or one == "2000" for one in row) and row[1] == f"'{cell.strip()}"


def test_csv_and_json_say_all(tmp_path):
    paper = ExportedPaper("doi:10.1/x", 'A, "b"\nc', "Abs.", None, "V", ("Ada", "Bo"), ("Maps",), ("pmid:7",))
    (_, row) = csv.reader(io.StringIO(to_csv([paper]), newline=""))
    assert row == ["doi:10.1/x", 'A, "b" c', "Ada; Bo", "", "V", "Maps", "10.1/x", "Abs."]
    (found,) = json.loads(to_json([paper]))
    assert found["year"] is None and found["authors"] == ["Ada", "Bo"] and found["ids"] == ["pmid:7"]
    export_papers([paper], tmp_path / "out.BIB")
    assert (tmp_path / "out.BIB").read_text().startswith("@article{")
    export_papers([paper], tmp_path / "out.ris")
    assert (tmp_path / "out.ris").read_text().startswith('TY  - JOUR\nTI  - A, "b" c\nAU  - Ada\n')
    refused("must end in .bib, .ris, .csv, .json", export_papers, [paper], tmp_path / "out.xlsx")


LIBRARY = r"""@string{nips = {Advances in Neural Information Processing Systems}}

@inproceedings{smith:2020,
  title = {{BERT} and the {\'E}cole of {L}anguage},
  author = {Smith, Ada and {\O}deg{\aa}rd, Bo},
  booktitle = nips, year = {2020}, pages = {1--10}, keywords = {language models, transfer},
  url = {https://example.org/paper?a=1&b=2},
  file = {:home/ada/papers/smith2020.pdf:PDF;:C\:\\Users\\ada\\smith.pdf:PDF},
  groups = {thesis},
}

@phdthesis{Müller1999, title = {On {$\alpha$}-helices}, author = {Karl M{\"u}ller}, school = {ETH Z{\"u}rich},
  year = {1999}}

@book{knuth, title = {The {\TeX}book}, author = {Donald E. Knuth}, publisher = {Addison-Wesley}, date = {1984-01-02},
  doi = {10.5555/1102013}}

@inproceedings{child, title = {A child of its volume}, author = {Eve Child}, crossref = {volume}}

@proceedings{volume, title = {Proceedings of Everything}, year = {2001}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library as an index of words, the way that `explore` and `search` see it."""
    place = tmp_path_factory.mktemp("library")
    (place / "mine.bib").write_text(LIBRARY, encoding="utf-8")
    corpus = import_papers(place / "mine.bib", place / "corpus").corpus
    return build_index(corpus, "none", place / "index", IndexOptions(vectors=False))


def entries(text: str) -> dict[str, BibtexEntry]:
    return {entry.key: entry for entry in read_entries(text, Tally())}


def test_an_imported_entry_leaves_as_it_came_also_a_second_time(library, tmp_path):
    once = to_bibtex([library.paper(row) for row in range(library.size)])
    assert entries(once) == entries(LIBRARY)
    (tmp_path / "once.bib").write_text(once, encoding="utf-8")
    corpus = import_papers(tmp_path / "once.bib", tmp_path / "corpus").corpus
    again = {corpus.ids[row]: corpus.paper(row) for row in range(len(corpus))}
    assert to_bibtex([again[library.id(row)] for row in range(library.size)]) == once
    # a child without its volume keeps what it inherited
    child = entries(to_bibtex([library.paper(library.row("child"))]))["child"].fields
    assert "crossref" not in child and (child["booktitle"], child["year"]) == ("Proceedings of Everything", "2001")


def test_what_was_learned_since_is_added_and_nothing_twice(tmp_path):
    written = {"type": "misc", "key": "a", "fields": {"title": "{T}", "url": "https://doi.org/10.1000/X"}}
    paper = ExportedPaper("a", "T", "Learned.", ids=("doi:10.1000/x", "arxiv:1706.03762"), extra={"bibtex": written})
    learned = {"eprint": "1706.03762", "archiveprefix": "arXiv", "abstract": "Learned."}
    assert entries(to_bibtex([paper]))["a"].fields == written["fields"] | learned


ESCAPES = [r"\input{/etc/passwd}", "} @misc{b, title={x}", r"\write18{rm}", "^^5cinput x", "a\\"]


@pytest.mark.parametrize("nasty", ESCAPES)
def test_a_hostile_entry_stays_inside_its_field(nasty):
    entry = {"type": "misc", "key": "a", "fields": {"title": f"T {nasty}", "note": nasty, "x}y": "z"}}
    text = to_bibtex([ExportedPaper("a", "T", extra={"bibtex": entry})])
    (one,) = entries(text).values()
    assert one.key == "a" and one.fields.keys() == {"title", "note"}
    assert not re.search(r"\\(?:input|write)|\^\^", text)


TYPES = [
    ("article-journal", "@article{", "journal"),
    ("proceedings-article", "@inproceedings{", "booktitle"),
    ("CHAP", "@incollection{", "booktitle"),
    ("dissertation", "@phdthesis{", "school"),
    ("unheard of", "@article{", "journal"),
]


@pytest.mark.parametrize(("kind", "start", "venue"), TYPES)
def test_the_type_that_other_formats_name_is_used(kind, start, venue):
    extra = {"type": kind, "keywords": ["one", "two"], "url": "https://example.org/a_b"}
    text = to_bibtex([ExportedPaper("a", "T", venue="V", fields=("two", "three"), extra=extra)])
    (entry,) = entries(text).values()
    assert text.startswith(start) and entry.fields[venue] == "V"
    assert (entry.fields["keywords"], entry.fields["url"]) == ("one, two, three", "https://example.org/a_b")
