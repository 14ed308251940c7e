"""Plain tables: JSON lines, CSV and TSV, as people write them by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from citeweave.core.errors import InputError
from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import Citation, Context, Intent, Paper
from citeweave.corpus.readers import edge_tables, guess_format, plain

ReadAll = Callable[[ModuleType, Path], Any]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_json_lines_of_papers(tmp_path: Path, read_all: ReadAll) -> None:
    path = write(
        tmp_path / "papers.jsonl",
        '{"id": 7, "title": " A  title ", "abstract": null, "year": "2018-02-01", "authors": [{"name": "Ada One"}, "Ben Two"],'
        ' "field": "cs.CL", "subjects": ["cs.CL", "stat"], "doi": "https://doi.org/10.1000/X", "references": ["b", 8, null], "accepted": true}\n'
        '{"title": "no id"}\n{"id": "x"}\n\n{"id": "nan", "title": "T", "year": NaN}\n',
    )
    found = read_all(plain, path)
    assert found.papers == [
        Paper(
            "7",
            "A title",
            year=2018,
            authors=("Ada One", "Ben Two"),
            fields=("cs.CL", "stat"),
            ids=("doi:10.1000/x",),
            extra={
                "field": "cs.CL",
                "subjects": ["cs.CL", "stat"],
                "doi": "https://doi.org/10.1000/X",
                "accepted": True,
            },
        ),
        Paper("nan", "T"),
    ]
    assert found.citations == [Citation("7", "b"), Citation("7", "8")]
    assert found.rejected("papers") == {"no id": 1, "no title and no abstract": 1}
    assert found.rejected("citations") == {"no cited paper": 1}


def test_citations_that_are_not_kept_are_counted(tmp_path: Path, read_all: ReadAll) -> None:
    path = write(
        tmp_path / "papers.jsonl",
        '{"id": "a", "title": "A", "references": "b, c"}\n{"title": "no id", "references": ["a", "b"]}\n'
        '{"id": "x", "title": "", "references": ["a"]}\n',
    )
    found = read_all(plain, path)
    assert found.citations == []
    assert found.rejected("citations") == {"references are no list": 1, "citing paper rejected": 3}


def test_a_reference_list_of_one_needs_no_list(tmp_path: Path, read_all: ReadAll) -> None:
    path = write(
        tmp_path / "references.jsonl",
        '{"citing": "a", "cited": "b"}\n{"citing": "a", "cited": 7}\n{"citing": "a", "cited": null}\n'
        '{"citing": null, "cited": ["b", "c"]}\n',
    )
    found = read_all(plain, path)
    assert found.citations == [Citation("a", "b"), Citation("a", "7")]
    assert found.rejected("citations") == {"no cited paper": 1, "no citing paper": 2}


def test_csv_with_quotes_and_line_breaks_in_cells(tmp_path: Path, read_all: ReadAll) -> None:
    path = write(
        tmp_path / "papers.csv",
        'ID,Title,Abstract,Year\r\n1,"Cats, dogs","Two\nlines",2001.0\r\n2,"Say ""hi""",,\r\n,,,\r\n3,,,\r\n',
    )
    found = read_all(plain, path)
    assert [(p.id, p.title, p.abstract, p.year) for p in found.papers] == [
        ("1", "Cats, dogs", "Two lines", 2001),
        ("2", 'Say "hi"', "", None),
    ]
    assert found.rejected("papers") == {"no title and no abstract": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\nc\td\n", [("a", "b", 1.0), ("c", "d", 1.0)]),
        ("a\tb\t3\nc\td\t0\n", [("a", "b", 3.0), ("c", "d", 0.0)]),
        ("citing\tcited\tstrength\na\tb\t2.5\n", [("a", "b", 2.5)]),
        ("source,target\na,b\n", [("a", "b", 1.0)]),
        ('quote"\tb\n', [('quote"', "b", 1.0)]),
        ("a\tb\tarxiv-id\n", [("a", "b", 1.0)]),
    ],
)
def test_citations(tmp_path: Path, read_all: ReadAll, text: str, expected: list[tuple[str, str, float]]) -> None:
    path = write(tmp_path / "citations.tsv", text)
    assert guess_format(Source(path)) == "plain"
    assert [(c.citing, c.cited, c.strength) for c in read_all(plain, path).citations] == expected


def test_citations_with_empty_ends_are_counted(tmp_path: Path, read_all: ReadAll) -> None:
    found = read_all(plain, write(tmp_path / "c.tsv", "a\tb\n\tb\na\t\n"))
    assert len(found.citations) == 1
    assert found.rejected("citations") == {"no citing paper": 1, "no cited paper": 1}


def test_contexts(tmp_path: Path, read_all: ReadAll) -> None:
    path = write(
        tmp_path / "contexts.jsonl",
        '{"citing": "a", "text": "As in [1].", "cited": ["b", "b", "c"], "in_set": ["b"], "section": "Intro", "intent": "method", "split": "dev"}\n'
        '{"citing": null, "text": "Alone.", "cited": []}\n{"citing": "a", "text": "", "cited": ["b"]}\n',
    )
    found = read_all(plain, path)
    assert found.contexts == [
        Context("a", "As in [1].", ("b", "c"), "Intro", Intent.METHOD, {"intent": "method", "split": "dev"}),
        Context("", "Alone.", ()),
    ]
    assert found.rejected("contexts") == {"no text": 1}


def test_reference_lists(tmp_path: Path, read_all: ReadAll) -> None:
    found = read_all(
        plain,
        write(tmp_path / "references.jsonl", '{"citing": "a", "cited": ["b", "c"]}\n{"citing": "", "cited": ["b"]}\n'),
    )
    assert [(c.citing, c.cited) for c in found.citations] == [("a", "b"), ("a", "c")]
    assert found.rejected("citations") == {"no citing paper": 1}


def test_latin_1_is_read_and_noted(tmp_path: Path, read_all: ReadAll) -> None:
    found = read_all(plain, write(tmp_path / "p.csv", "id,title\n1,Über Sätze\n".encode("latin-1")))
    assert found.papers[0].title == "Über Sätze"
    assert found.tally.notes == {"line is not UTF-8, read as Latin-1": 1}


def test_other_tables_are_refused(tmp_path: Path, read_all: ReadAll) -> None:
    path = write(tmp_path / "weather.csv", "day,rain\nMonday the first,3\n")
    assert guess_format(Source(path)) is None
    with pytest.raises(InputError, match=r"weather\.csv is not a table of papers or citations"):
        read_all(plain, path)


@pytest.mark.parametrize(
    ("rows", "kept", "rejected"),
    [
        ('a,"never closed\nb,two\nc,three\n', ["b", "c"], 1),
        ('a,one\nb,"never closed', ["a"], 1),
        ('a,"open\nb,"open\nc,three\nd,"open\n', ["c"], 3),
        ('a,"open\nb,two\nc,"three\nlines"\nd,four\n', ["b", "c", "d"], 1),
        ('a,"two\nlines"\nb,"a ""quote""\n"\nc,5" disks\n', ["a", "b", "c"], 0),
        ('a,"one" more\nb,two\n', ["a", "b"], 0),
    ],
)
def test_a_quote_that_is_never_closed_costs_its_own_row_only(
    rows: str, kept: list[str], rejected: int, tmp_path: Path, read_all: ReadAll
) -> None:
    (tmp_path / "papers.csv").write_text("id,title\n" + rows)
    found = read_all(plain, tmp_path / "papers.csv")
    assert [paper.id for paper in found.papers] == kept
    assert sum(found.rejected("papers").values()) == rejected
    (tmp_path / "citations.csv").write_text("citing,cited\n" + rows)
    found = read_all(plain, tmp_path / "citations.csv")
    assert [citation.citing for citation in found.citations] == kept
    assert sum(found.rejected("citations").values()) == rejected


def test_lines_with_broken_quotes_are_read_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading again what follows a broken row must not make reading quadratic: lines handed to the reader are counted."""
    count = 3000
    shapes = {
        "open": ['a,"open\n'] * count,
        "one open, then pairs": ['a,"open\n', *['b,""\n'] * count],
        "open and pairs": ['a,"open\n', 'b,""\n'] * (count // 2),
        "three": ['""",\n'] * count,
    }
    for name, lines in shapes.items():
        asked = 0
        take = edge_tables._CsvLines.__next__

        def counted(self: edge_tables._CsvLines, take: Any = take) -> str:
            nonlocal asked
            asked += 1
            return str(take(self))

        with monkeypatch.context() as patched:
            patched.setattr(edge_tables._CsvLines, "__next__", counted)
            list(edge_tables.read_csv_rows(lines, ",", Tally(), "papers"))
        assert asked <= 4 * count + 10, name
