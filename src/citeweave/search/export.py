r"""Papers as BibTeX: an entry that came from BibTeX leaves as it came, any other by what is known of it.

    >>> from citeweave.search.export import ExportedPaper
    >>> paper = ExportedPaper("doi:10.1/x", "50% of {DNA}", year=1950, authors=("Alan M. Turing",))
    >>> print(to_bibtex([paper]))
    @misc{turing1950dna-e08c,
      title = {50\% of \textbraceleft{}DNA\textbraceright{}},
      author = {Alan M. Turing},
      year = {1950},
      doi = {10.1/x},
    }
    <BLANKLINE>

An imported entry keeps its type, key and fields as they were written, braces and LaTeX included; macros (`@string`) are
resolved, line ends become blanks, and what was learned since (DOI, arXiv id, abstract) is added. What papers say is untrusted:
no character ends a field, and of LaTeX only accents, letters, symbols and plain formatting are kept: a value with another
command is written as plain text. `citeweave import` reads the titles, authors and years back as they were.

Papers that were found, as files for other programs: BibTeX, CSV, JSON.

    >>> to_csv([ExportedPaper("a", "=1+1")]).splitlines()[1]
    "a,'=1+1,,,,,,"

What papers say is untrusted text: no character of it starts a formula of a spreadsheet. BibTeX is written by `bibtex.py`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from citeweave.core.errors import UserError
from citeweave.core.files import output_place, write_whole
from citeweave.corpus.plain_text import clean_text, fold, is_harmless, latex_to_text


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
    @property
    def extra(self) -> Mapping[str, object]: ...


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
_OWN_KEY = re.compile(r"""[^\s,{}#%="\\~()@]{1,200}""")
_NAME = re.compile(r"[a-z][\w:.+-]{0,60}", re.ASCII)
_SMALL_WORDS = ("a", "an", "the", "on", "of", "in", "for", "to", "and", "from", "with", "by", "at", "is", "are", "how")
_TYPES = {
    "article": "article article-journal journal-article jour journalarticle magazine-article mgzn ejour review",
    "inproceedings": "inproceedings conference paper-conference proceedings-article conf cpaper conferencepaper",
    "incollection": "incollection inbook chapter book-chapter chap booksection book-section",
    "book": "book monograph edited-book reference-book ebook",
    "phdthesis": "phdthesis thesis dissertation thes",
    "mastersthesis": "mastersthesis",
    "techreport": "techreport report rprt",
    "misc": "misc preprint posted-content dataset data software webpage elec online",
}
_TYPE_OF = {name: kind for kind, names in _TYPES.items() for name in names.split()}
"""The type of an entry by what other formats call it: CSL JSON, RIS, Crossref, OpenAlex."""

_VENUE_FIELDS = {
    "inproceedings": "booktitle",
    "incollection": "booktitle",
    "book": "series",
    "phdthesis": "school",
    "mastersthesis": "school",
    "techreport": "institution",
    "misc": "howpublished",
}

_NOT_PRINTED = ("file", "localfile", "pdf", "groups", "owner", "timestamp", "url", "urldate", "doi", "eprint")
"""Fields that no style prints as LaTeX: backslashes in them are those of paths."""


def to_bibtex(papers: Iterable[Exportable]) -> str:
    """The papers as BibTeX entries; a paper without title is called by its id."""
    papers, keys = list(papers), set[str]()
    own = {key.lower() for paper in papers if (key := _own_key(_imported(paper)))}
    return "\n".join(_entry(paper, keys, own) for paper in papers)


def _entry(paper: Exportable, keys: set[str], own: set[str]) -> str:
    imported = _imported(paper)
    kind, values = (_known_kind(paper), _known(paper)) if not imported else _as_imported(paper, imported, own)
    lines = [f"  {name} = {{{value}}}," for name, value in values.items() if value]
    return "\n".join([f"@{kind}{{{_key(paper, keys, imported)},", *lines, "}\n"])


def _known_kind(paper: Exportable) -> str:
    kind = paper.extra.get("type")
    known = _TYPE_OF.get(kind.lower()) if isinstance(kind, str) else None
    return known or ("article" if paper.venue else "misc")


def _known(paper: Exportable) -> dict[str, str]:
    """The fields of a paper by what is known of it."""
    doi, arxiv = id_of(paper, "doi"), id_of(paper, "arxiv")
    keywords = [*_texts(paper.extra.get("keywords")), *paper.fields]
    url = paper.extra.get("url")
    return {
        "title": escape_latex(paper.title) or escape_latex(paper.id),
        "author": " and ".join(filter(None, map(_author, paper.authors))),
        _VENUE_FIELDS.get(_known_kind(paper), "journal"): escape_latex(paper.venue),
        "year": str(paper.year) if paper.year else "",
        "doi": _plain_id(doi),
        "eprint": _plain_id(arxiv),
        "archiveprefix": "arXiv" if _plain_id(arxiv) else "",
        "url": _plain_id(url) if isinstance(url, str) else "",
        "abstract": escape_latex(paper.abstract),
        "keywords": escape_latex(", ".join(dict.fromkeys(keywords))),
    }


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


# --- entries that came from BibTeX ---------------------------------------------------------------------


def _imported(paper: Exportable) -> Mapping[str, object]:
    """The entry as it was read, empty where the paper came from elsewhere."""
    entry = paper.extra.get("bibtex")
    return entry if isinstance(entry, dict) and isinstance(entry.get("fields"), dict) else {}


def _own_key(imported: Mapping[str, object]) -> str:
    key = imported.get("key")
    return key if isinstance(key, str) and _OWN_KEY.fullmatch(key) else ""


def _as_imported(paper: Exportable, imported: Mapping[str, object], own: set[str]) -> tuple[str, dict[str, str]]:
    """Type and fields of an imported entry, and what was learned of the paper since."""
    kind, fields = str(imported.get("type", "misc")), imported["fields"]
    assert isinstance(fields, dict)
    values = {
        name: _as_written(name, value)
        for name, value in fields.items()
        if isinstance(name, str) and isinstance(value, str) and _NAME.fullmatch(name)
    }
    known = _known(paper)
    if not values.get("title"):
        values["title"] = known["title"]
    if (parent := values.get("crossref", "")) and parent.lower() not in own:
        # the volume is not among the papers: BibTeX would find nothing under its key
        del values["crossref"]
        inherited = {"booktitle": escape_latex(paper.venue), "year": known["year"]}
        values = {**inherited, **values}
    said = " ".join(values.values()).lower()
    names = ("doi", "eprint", "archiveprefix") if known["eprint"].lower() not in said else ("doi",)
    learned = {name: known[name] for name in names if known[name].lower() not in said}
    if not values.get("abstract"):
        learned["abstract"] = known["abstract"]
    return kind if _NAME.fullmatch(kind) else "misc", {**values, **learned}


def _as_written(name: str, value: str) -> str:
    """A value of an entry as it was written, where that is harmless; else as plain text."""
    line = clean_text(value)
    if _is_balanced(line) and (name in _NOT_PRINTED or is_harmless(line)):
        return line
    return escape_latex(latex_to_text(line))


def _is_balanced(text: str) -> bool:
    """
    >>> _is_balanced("{a} b"), _is_balanced("} {"), _is_balanced("{"), _is_balanced("a\\\\")
    (True, False, False, False)
    """
    depth = 0
    for brace in re.findall(r"[{}]", text):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return not depth and not text.endswith("\\")


# --- text, names, keys ---------------------------------------------------------------------------------


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


def id_of(paper: Exportable, kind: str) -> str:
    """The paper's id of a kind, without its prefix; empty where it has none."""
    named = (one.removeprefix(f"{kind}:") for one in (paper.id, *paper.ids) if one.startswith(f"{kind}:"))
    return next(named, "")


def _plain_id(id: str) -> str:
    """An id as reference managers want it, without LaTeX; nothing where it holds signs that would end the field."""
    return id if id.isprintable() and not re.search(r"[{}\\\s]", id) else ""


def _key(paper: Exportable, taken: set[str], imported: Mapping[str, object]) -> str:
    """The paper's own name from a .bib, or author, year, word and four signs of its id: the same in every export."""
    named = paper.id if _KEY.fullmatch(paper.id) and not _PREFIX.match(paper.id) else _made_key(paper, 4)
    key = _own_key(imported) or named
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


# Papers that were found, as files for other programs: BibTeX, CSV, JSON.


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
