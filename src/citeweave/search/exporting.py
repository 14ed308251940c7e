r"""Papers that were found, as files for other programs: BibTeX, CSV, JSON.

    >>> paper = ExportedPaper("doi:10.1/x", "50% of {DNA}", year=1950, authors=("Alan M. Turing",))
    >>> print(to_bibtex([paper]))
    @misc{turing1950dna-e08c,
      title = {50\% of \textbraceleft{}DNA\textbraceright{}},
      author = {Alan M. Turing},
      year = {1950},
      doi = {10.1/x},
    }
    <BLANKLINE>
    >>> to_csv([ExportedPaper("a", "=1+1")]).splitlines()[1]
    "a,'=1+1,,,,,,"

What papers say is strangers' text: no sign of it ends a field, starts a command of LaTeX or a formula of a spreadsheet.
`citeweave import` reads the BibTeX back to the same titles, authors and years. Does not know what kind of publication a
paper is: @article where it has a venue, @misc where not.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from citeweave.corpus.cleaning import clean_text, fold
from citeweave.errors import UserError
from citeweave.files import write_whole
from citeweave.links import output_place


class Exportable(Protocol):
    """What is exported of a paper; papers of an index and of a corpus have all of it."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def abstract(self) -> str: ...
    @property
    def year(self) -> int | None: ...
    @property
    def venue(self) -> str: ...
    @property
    def authors(self) -> tuple[str, ...]: ...
    @property
    def fields(self) -> tuple[str, ...]: ...
    @property
    def ids(self) -> tuple[str, ...]: ...


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


# --- BibTeX --------------------------------------------------------------------------------------------

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\textbraceleft{}",  # \{ would count as a brace of the field
    "}": r"\textbraceright{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "#$%&_"},
}
_SPECIALS = re.compile("[" + re.escape("".join(_SPECIAL)) + "]")
_LIGATURE = re.compile(r"(?<=-)(?=-)|(?<=`)(?=`)|(?<=')(?=')")
_FORMULA = re.compile(r"(\$[\w ^+*/=().,|-]{1,200}\$)", re.ASCII)
_PREFIX = re.compile(r"[a-z0-9_]{2,20}:\S")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9:._/+-]{0,80}")
_SMALL_WORDS = ("a", "an", "the", "on", "of", "in", "for", "to", "and", "from", "with", "by", "at", "is", "are", "how")


def to_bibtex(papers: Iterable[Exportable]) -> str:
    """The papers as BibTeX entries; a paper without title is called by its id."""
    keys = set[str]()
    return "\n".join(_entry(paper, keys) for paper in papers)


def _entry(paper: Exportable, keys: set[str]) -> str:
    doi, arxiv = _id_of(paper, "doi"), _id_of(paper, "arxiv")
    values = {
        "title": escape_latex(paper.title) or escape_latex(paper.id),
        "author": " and ".join(filter(None, map(_author, paper.authors))),
        "journal": escape_latex(paper.venue),
        "year": str(paper.year) if paper.year else "",
        "doi": _plain_id(doi),
        "eprint": _plain_id(arxiv),
        "archiveprefix": "arXiv" if _plain_id(arxiv) else "",
        "abstract": escape_latex(paper.abstract),
        "keywords": escape_latex(", ".join(paper.fields)),
    }
    lines = [f"  {name} = {{{value}}}," for name, value in values.items() if value]
    return "\n".join([f"@{'article' if paper.venue else 'misc'}{{{_key(paper, keys)},", *lines, "}\n"])


def escape_latex(text: str) -> str:
    r"""Text on one line that LaTeX prints as it is; plain formulas between dollar signs stay formulas.

    >>> escape_latex("50% -- {x} in $O(n^2)$ for $5 or\n$6")
    '50\\% -{}- \\textbraceleft{}x\\textbraceright{} in $O(n^2)$ for \\$5 or \\$6'
    """
    parts = _FORMULA.split(clean_text(text))
    # odd parts are formulas; "$5 or $" is none, as a formula touches its dollar signs
    return "".join(
        part if at % 2 and part[1] != " " != part[-2] else _LIGATURE.sub("{}", _SPECIALS.sub(_escaped, part))
        for at, part in enumerate(parts)
    )


def _escaped(found: re.Match[str]) -> str:
    return _SPECIAL[found.group()]


def _author(name: str) -> str:
    """Braces keep a name whole that BibTeX would take apart."""
    written = escape_latex(name)
    plain = not ("," in written or re.search(r"\band\b", written, re.IGNORECASE) or written.lower() in _NOBODY)
    return written if plain or not written else f"{{{written}}}"


_NOBODY = ("others", "et al.")


def _id_of(paper: Exportable, kind: str) -> str:
    named = (one.removeprefix(f"{kind}:") for one in (paper.id, *paper.ids) if one.startswith(f"{kind}:"))
    return next(named, "")


def _plain_id(id: str) -> str:
    """An id as reference managers want it, without LaTeX; nothing where it holds signs that would end the field."""
    return id if id.isprintable() and not re.search(r"[{}\\\s]", id) else ""


def _key(paper: Exportable, taken: set[str]) -> str:
    """The paper's own name from a .bib, or author, year, word and four signs of its id: the same in every export."""
    key = paper.id if _KEY.fullmatch(paper.id) and not _PREFIX.match(paper.id) else _made_key(paper, 4)
    # BibTeX takes keys for equal that differ in capitals only
    for signs in (8, 16, 64):
        if key.lower() not in taken:
            break
        key = _made_key(paper, signs)
    taken.add(key.lower())
    return key


def _made_key(paper: Exportable, signs: int) -> str:
    family = _ascii(paper.authors[0].split(",")[0].split()[-1]) if paper.authors and paper.authors[0].split() else ""
    words = [word for word in _ascii(paper.title, " ").split() if word not in _SMALL_WORDS and not word.isdigit()]
    name = f"{family}{paper.year or ''}{words[0] if words else ''}"[:40]
    own = hashlib.sha256(paper.id.encode("utf-8", "replace")).hexdigest()[:signs]
    return f"{name if name[:1].isalpha() else f'paper{name}'}-{own}"


def _ascii(text: str, between: str = "") -> str:
    """
    >>> _ascii("Šikáček"), _ascii("DNA-binding of 王", " ")
    ('sikacek', 'dna binding of ')
    """
    plain = unicodedata.normalize("NFKD", fold(text)).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", between, plain.lower())


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
            _id_of(paper, "doi"),
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
