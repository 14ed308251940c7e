r"""Papers that were found, as files for other programs: BibTeX, CSV, JSON.

    >>> to_csv([ExportedPaper("a", "=1+1")]).splitlines()[1]
    "a,'=1+1,,,,,,"

What papers say is untrusted text: no character of it starts a formula of a spreadsheet. BibTeX is written by `bibtex.py`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from citeweave.corpus.cleaning import clean_text
from citeweave.errors import UserError
from citeweave.files import write_whole
from citeweave.links import output_place
from citeweave.search.bibtex import Exportable, id_of, to_bibtex


@dataclass(frozen=True, slots=True)
class ExportedPaper:
    """A paper that comes from elsewhere than an index."""

    id: str
    title: str = ""
    abstract: str = ""
    year: int | None = None
    venue: str = ""
    authors: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    extra: Mapping[str, object] = field(default_factory=dict)


# --- CSV and JSON --------------------------------------------------------------------------------------

COLUMNS = ("id", "title", "authors", "year", "venue", "fields", "doi", "abstract")


def to_csv(papers: Iterable[Exportable]) -> str:
    """The papers as a table with a line of names; authors and fields with semicolons between them."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for paper in papers:
        cells = (
            paper.id,
            paper.title,
            "; ".join(paper.authors),
            str(paper.year or ""),
            paper.venue,
            "; ".join(paper.fields),
            id_of(paper, "doi"),
            paper.abstract,
        )
        writer.writerow([safe_cell(cell) for cell in cells])
    return buffer.getvalue()


def safe_cell(text: str) -> str:
    """A cell that no spreadsheet takes for a formula: OWASP's "CSV injection" names the signs.

    >>> safe_cell("@SUM(A1)"), safe_cell(" =1"), safe_cell("a=1")
    ("'@SUM(A1)", "'=1", 'a=1')
    """
    line = clean_text(text)
    return f"'{line}" if line.startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠")) else line


def to_json(papers: Iterable[Exportable]) -> str:
    """The papers as a list of objects."""
    rows = [
        {
            "id": paper.id,
            "title": paper.title,
            "abstract": paper.abstract,
            "year": paper.year,
            "venue": paper.venue,
            "authors": list(paper.authors),
            "fields": list(paper.fields),
            "ids": list(paper.ids),
        }
        for paper in papers
    ]
    return json.dumps(rows, ensure_ascii=False, indent=1) + "\n"


FORMATS: dict[str, Callable[[Iterable[Exportable]], str]] = {"bibtex": to_bibtex, "csv": to_csv, "json": to_json}
SUFFIXES = {".bib": "bibtex", ".csv": "csv", ".json": "json"}


def check_export(path: Path) -> str:
    """The format that a file's name asks for."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"--export is {str(path)!r}; its name must end in {', '.join(SUFFIXES)}")
    return SUFFIXES[path.suffix.lower()]


def export(papers: Sequence[Exportable], path: Path) -> None:
    """Write the papers in the format of the file's name."""
    write_whole(output_place(path), FORMATS[check_export(path)](papers).encode("utf-8", "replace"))
