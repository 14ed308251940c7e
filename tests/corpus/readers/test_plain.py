"""Plain tables: JSON lines, CSV and TSV, as people write them by hand."""

import pytest

from citeweave.core.errors import InputError
from citeweave.core.inputs import Source
from citeweave.corpus.paper import Citation, Context, Intent, Paper
from citeweave.corpus.readers import guess_format


def test_json_lines_of_papers_are_read(read_all):
    found = read_all(
        "plain",
        '{"id": 7, "title": " A  title ", "abstract": null, "year": "2018-02-01", "authors": [{"name": "Ada One"}, '
        '"Ben Two"], "field": "cs.CL", "subjects": ["cs.CL", "stat"], "doi": "https://doi.org/10.1000/X", '
        '"references": ["b", 8.0, null], "accepted": true}\n'
        '{"title": "no id"}\n{"id": "x"}\n\n{"id": "nan", "title": "T", "year": NaN}\n',
    )
    authors, fields, doi = ("Ada One", "Ben Two"), ("cs.CL", "stat"), "https://doi.org/10.1000/X"
    extra = {"field": "cs.CL", "subjects": ["cs.CL", "stat"], "doi": doi, "accepted": True}
    first = Paper("7", "A title", year=2018, authors=authors, fields=fields, ids=("doi:10.1000/x",), extra=extra)
    assert found.papers == [first, Paper("nan", "T")]
    assert found.citations == [Citation("7", "b"), Citation("7", "8")]
    assert found.rejected("papers") == {"no id": 1, "no title and no abstract": 1}
    assert found.rejected("citations") == {"no cited paper": 1}


CITATIONS = [
    ('{"id": "a", "title": "A", "references": "b, c"}\n', [], {"references are not a list of ids": 1}),
    ('{"id": "a", "title": "A", "references": 7}\n', [], {"references are not a list of ids": 1}),
    ('{"id": "a", "title": "A", "references": "10.1000/y"}\n', [("a", "10.1000/y")], {}),
    ('{"title": "no id", "references": ["a", "b"]}\n', [], {"citing paper rejected": 2}),
    ('{"id": "x", "title": "", "references": ["a"]}\n', [], {"citing paper rejected": 1}),
    ('{"citing": "a", "cited": "b"}\n{"citing": "a", "cited": 7}\n', [("a", "b"), ("a", "7")], {}),
    ('{"citing": "a", "cited": null}\n', [], {"no cited paper": 1}),
    ('{"citing": null, "cited": ["b", "c"]}\n', [], {"no citing paper": 2}),
    ('{"citing": "", "cited": ["b"]}\n', [], {"no citing paper": 1}),
    ('{"citing": "a", "cited": ["b", "c"]}\n', [("a", "b"), ("a", "c")], {}),
    ("a\tb\n\tb\na\t\n", [("a", "b")], {"no citing paper": 1, "no cited paper": 1}),
]


@pytest.mark.parametrize(("lines", "pairs", "rejected"), CITATIONS)
def test_citations_that_are_not_kept_are_counted(read_all, lines, pairs, rejected):
    found = read_all("plain", lines, "file.jsonl" if lines.startswith("{") else "file.tsv")
    assert found.citations == [Citation(*pair) for pair in pairs] and found.rejected("citations") == rejected


CELLS = [
    ("b", ["b"]),
    ("b; c|d  e", ["b", "c", "d", "e"]),
    ('"p1, p2,p3"', ["p1", "p2", "p3"]),
    ('"[""b"", 8]"', ["b", "8"]),
    ("10.1002/(sici)1<16::aid>3.0.CO;2-2;b", ["10.1002/(sici)1<16::aid>3.0.CO;2-2", "b"]),
    ("", []),
    (" ;; ", []),
]


@pytest.mark.parametrize(("cell", "cited"), CELLS)
def test_references_in_a_cell_are_ids_between_separators_or_a_json_list(read_all, cell, cited):
    found = read_all("plain", f"id,title,references\na,A,{cell}\n", "p.csv")
    assert found.citations == [Citation("a", one) for one in cited] and found.rejected("citations") == {}


@pytest.mark.parametrize("cell", ['"Turing, Computing machinery"', "[b", '"[""b"""'])
def test_a_cell_of_references_that_is_no_list_of_ids_is_counted(read_all, cell):
    found = read_all("plain", f"id,title,references\na,A,{cell}\n", "p.csv")
    assert found.citations == [] and found.rejected("citations") == {"references are not a list of ids": 1}


PUBLIC_IDS = [
    ("DOI", "https://doi.org/10.1000/X", "doi:10.1000/x", "10.1000/Y arxiv:1706.03762v2", ["doi:10.1000/y", "arxiv:1706.03762"]),
    ("arxiv", "1706.03762v5", "arxiv:1706.03762", "1810.04805;s2:7", ["arxiv:1810.04805", "s2:7"]),
    ("arXiv_ID", "arXiv:1706.03762", "arxiv:1706.03762", "key", ["key"]),
    ("PMID", "12.0", "pmid:12", "13|pmid:14", ["pmid:13", "pmid:14"]),
]  # fmt: skip


@pytest.mark.parametrize(("column", "cell", "id", "references", "cited"), PUBLIC_IDS)
def test_papers_without_an_id_column_have_their_public_id(tmp_path, read_all, column, cell, id, references, cited):
    found = read_all("plain", f"Title,{column},References\nA,{cell},{references}\nB,,{references}\n", "p.csv")
    assert guess_format(Source(tmp_path / "p.csv")) == "plain"
    assert [(paper.id, paper.title, paper.ids) for paper in found.papers] == [(id, "A", ())]
    assert found.citations == [Citation(id, one) for one in cited]
    assert found.rejected("papers") == {"no id": 1}
    assert found.rejected("citations") == {"citing paper rejected": len(cited)}


def test_json_lines_without_an_id_have_their_public_id(tmp_path, read_all):
    found = read_all("plain", '{"title": "A", "doi": "10.1000/X", "references": "10.1000/Y"}\n', "p.jsonl")
    assert guess_format(Source(tmp_path / "p.jsonl")) == "plain"
    assert found.citations == [Citation("doi:10.1000/x", "doi:10.1000/y")]


def test_an_id_column_wins_over_a_doi(read_all):
    found = read_all("plain", "doi,id,title,references\n10.1000/X,a,A,10.1000/Y\n10.1000/Z,,B,\n", "p.csv")
    assert [(paper.id, paper.ids) for paper in found.papers] == [("a", ("doi:10.1000/x",))]
    assert found.citations == [Citation("a", "10.1000/Y")] and found.rejected("papers") == {"no id": 1}


def test_citations_with_titles_and_dois_stay_citations(read_all):
    found = read_all("plain", "citing,cited,title,doi\na,b,A,10.1000/x\n", "p.csv")
    assert found.papers == [] and found.citations == [Citation("a", "b")]


def test_years_that_are_no_years_are_noted(read_all):
    found = read_all("plain", "id,title,year\na,A,20O3\nb,B,3020\nc,C,2003.0\nd,D, \ne,,x\n", "p.csv")
    assert [paper.year for paper in found.papers] == [None, None, 2003, None]
    assert found.notes == {"year is not a year, left out": 2}
    found = read_all("plain", '{"id": "a", "title": "A", "year": NaN, "published": true}\n')
    assert found.papers[0].year is None and found.notes == {}


TABLES = [
    ("a\tb\nc\td\n", [("a", "b", 1.0), ("c", "d", 1.0)]),
    ("a\tb\t3\nc\td\t0\n", [("a", "b", 3.0), ("c", "d", 0.0)]),
    ("citing\tcited\tstrength\na\tb\t2.5\n", [("a", "b", 2.5)]),
    ("source,target\na,b\n", [("a", "b", 1.0)]),
    ('quote"\tb\n', [('quote"', "b", 1.0)]),
    ("a\tb\tarxiv-id\n", [("a", "b", 1.0)]),
]


@pytest.mark.parametrize(("text", "expected"), TABLES)
def test_tables_of_citations_are_recognized_and_read(tmp_path, read_all, text, expected):
    found = read_all("plain", text, "citations.tsv")
    assert guess_format(Source(tmp_path / "citations.tsv")) == "plain"
    assert [(c.citing, c.cited, c.strength) for c in found.citations] == expected


def test_contexts_are_read(read_all):
    found = read_all(
        "plain",
        '{"citing": "a", "text": "As in [1].", "cited": ["b", "b", "c"], "in_set": ["b"], "section": "Intro", '
        '"intent": "method", "split": "dev"}\n'
        '{"citing": null, "text": "Alone.", "cited": []}\n{"citing": "a", "text": "", "cited": ["b"]}\n',
    )
    extra = {"intent": "method", "split": "dev"}
    first = Context("a", "As in [1].", ("b", "c"), "Intro", Intent.METHOD, extra)
    assert found.contexts == [first, Context("", "Alone.", ())]
    assert found.rejected("contexts") == {"no text": 1}


def test_csv_cells_may_hold_quotes_line_breaks_and_latin_1(read_all):
    text = 'ID,Title,Abstract,Year\r\n1,"Cats, dogs","Two\nlines",2001.0\r\n2,"Say ""hi""",,\r\n,,,\r\n3,,,\r\n'
    found = read_all("plain", text, "papers.csv")
    assert found.papers == [Paper("1", "Cats, dogs", "Two lines", 2001), Paper("2", 'Say "hi"')]
    assert found.rejected("papers") == {"no title and no abstract": 1}
    found = read_all("plain", "id,title\n1,Über Sätze\n".encode("latin-1"), "p.csv")
    assert found.papers[0].title == "Über Sätze" and found.notes == {"line is not UTF-8, read as Latin-1": 1}


def test_other_tables_are_refused(tmp_path, read_all):
    with pytest.raises(InputError, match=r"weather\.csv is not a table of papers or citations"):
        read_all("plain", "day,rain\nMonday the first,3\n", "weather.csv")
    assert guess_format(Source(tmp_path / "weather.csv")) is None


QUOTES = [
    ('a,"never closed\nb,two\nc,three\n', ["b", "c"], 1),
    ('a,one\nb,"never closed', ["a"], 1),
    ('a,"open\nb,"open\nc,three\nd,"open\n', ["c"], 3),
    ('a,"open\nb,two\nc,"three\nlines"\nd,four\n', ["b", "c", "d"], 1),
    ('a,"two\nlines"\nb,"a ""quote""\n"\nc,5" disks\n', ["a", "b", "c"], 0),
    ('a,"one" more\nb,two\n', ["a", "b"], 0),
]


@pytest.mark.parametrize(("rows", "ids", "rejected"), QUOTES)
def test_a_quote_that_is_never_closed_costs_its_own_row_only(rows, ids, rejected, read_all):
    found = read_all("plain", "id,title\n" + rows, "papers.csv")
    assert [paper.id for paper in found.papers] == ids and sum(found.rejected("papers").values()) == rejected
    found = read_all("plain", "citing,cited\n" + rows, "citations.csv")
    assert [one.citing for one in found.citations] == ids and sum(found.rejected("citations").values()) == rejected
