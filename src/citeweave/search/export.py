r"""Export papers as files for other programs: BibTeX, RIS, CSV, JSON.

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
    >>> to_csv([ExportedPaper("a", "=1+1")]).splitlines()[1]
    "a,'=1+1,,,,,,"

A paper that was imported from BibTeX keeps its type, key and fields as they were written, braces and LaTeX included;
macros (`@string`) are resolved, line ends become blanks, and what was added since (DOI, arXiv id, abstract) is appended.
What papers say is untrusted: no character ends a field or starts a formula of a spreadsheet, and of LaTeX only accents,
letters, symbols and plain formatting are kept: a value with another command is written as plain text. `citeweave import`
reads the titles, authors and years back unchanged.
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
from typing import Any

from citeweave.core.errors import UserError
from citeweave.core.files import resolve_output, write_atomically
from citeweave.corpus.plain_text import clean_text, fold, is_harmless, latex_to_text
from citeweave.search.index import IndexedPaper
from citeweave.search.paper_details import details_json, find_id


@dataclass(frozen=True, slots=True)
class ExportedPaper:
    """A paper to export that is not in an index."""

    id: str
    title: str = ""
    abstract: str = ""
    year: int | None = None
    venue: str = ""
    authors: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    extra: Mapping[str, object] = field(default_factory=dict)


Exportable = IndexedPaper | ExportedPaper

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\textbraceleft{}",  # \{ would count as a brace of the field
    "}": r"\textbraceright{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "#$%&_"},
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
"""BibTeX type by the names of other formats: CSL JSON, RIS, Crossref, OpenAlex."""

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
    """Write papers as BibTeX entries; a paper without title gets its id as title."""
    papers, used = list(papers), set[str]()
    imported = {key.lower() for paper in papers if (key := _imported_key(_imported_entry(paper)))}
    return "\n".join(_bibtex_entry(paper, used, imported) for paper in papers)


def _bibtex_entry(paper: Exportable, used_keys: set[str], imported_keys: set[str]) -> str:
    """Write one paper as a BibTeX entry: as it was imported, or from its metadata."""
    entry = _imported_entry(paper)
    kind, values = (
        _imported_fields(paper, entry, imported_keys) if entry else (_metadata_kind(paper), _metadata_fields(paper))
    )
    lines = [f"  {name} = {{{value}}}," for name, value in values.items() if value]
    return "\n".join([f"@{kind}{{{_citation_key(paper, used_keys, entry)},", *lines, "}\n"])


def _metadata_kind(paper: Exportable) -> str:
    """Return the BibTeX type of a paper that was not imported from BibTeX."""
    kind = paper.extra.get("type")
    known = _TYPE_OF.get(kind.lower()) if isinstance(kind, str) else None
    return known or ("article" if paper.venue else "misc")


def _metadata_fields(paper: Exportable) -> dict[str, str]:
    """Return the BibTeX fields of a paper from its metadata."""
    doi, arxiv = find_id(paper, "doi"), find_id(paper, "arxiv")
    keywords = [*_texts(paper.extra.get("keywords")), *paper.fields]
    url = paper.extra.get("url")
    return {
        "title": escape_latex(paper.title) or escape_latex(paper.id),
        "author": " and ".join(filter(None, map(_author, paper.authors))),
        _VENUE_FIELDS.get(_metadata_kind(paper), "journal"): escape_latex(paper.venue),
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


def _imported_entry(paper: Exportable) -> Mapping[str, object]:
    """Return the BibTeX entry that a paper was imported from, empty where it came from elsewhere."""
    entry = paper.extra.get("bibtex")
    return entry if isinstance(entry, dict) and isinstance(entry.get("fields"), dict) else {}


def _imported_key(entry: Mapping[str, object]) -> str:
    """Return the citation key of an imported entry, empty where it is missing or unsafe."""
    key = entry.get("key")
    return key if isinstance(key, str) and _OWN_KEY.fullmatch(key) else ""


def _imported_fields(
    paper: Exportable, entry: Mapping[str, object], imported_keys: set[str]
) -> tuple[str, dict[str, str]]:
    """Return type and fields of an imported BibTeX entry, with metadata that was added to the paper since."""
    kind, fields = str(entry.get("type", "misc")), entry["fields"]
    assert isinstance(fields, dict)
    values = {
        name: _safe_value(name, value)
        for name, value in fields.items()
        if isinstance(name, str) and isinstance(value, str) and _NAME.fullmatch(name)
    }
    known = _metadata_fields(paper)
    if not values.get("title"):
        values["title"] = known["title"]
    if (parent := values.get("crossref", "")) and parent.lower() not in imported_keys:
        # the volume is not exported: BibTeX would not find its key
        del values["crossref"]
        inherited = {"booktitle": escape_latex(paper.venue), "year": known["year"]}
        values = {**inherited, **values}
    written = " ".join(values.values()).lower()
    names = ("doi", "eprint", "archiveprefix") if known["eprint"].lower() not in written else ("doi",)
    added = {name: known[name] for name in names if known[name].lower() not in written}
    if not values.get("abstract"):
        added["abstract"] = known["abstract"]
    return kind if _NAME.fullmatch(kind) else "misc", {**values, **added}


def _safe_value(name: str, value: str) -> str:
    """Return a value of an imported BibTeX entry unchanged where its LaTeX is harmless, else as plain text."""
    line = clean_text(value)
    if _is_balanced(line) and (name in _NOT_PRINTED or is_harmless(line)):
        return line
    return escape_latex(latex_to_text(line))


def _is_balanced(text: str) -> bool:
    """Return whether the braces of a BibTeX value are balanced and no backslash ends it.

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
    r"""Escape a text for the BibTeX export so that LaTeX prints it as it is, on one line; plain formulas in dollars stay.

    >>> escape_latex("50% -- {x} in $O(n^2)$ for $5 or\n$6")
    '50\\% -{}- \\textbraceleft{}x\\textbraceright{} in $O(n^2)$ for \\$5 or \\$6'
    """
    parts = _FORMULA.split(clean_text(text))
    # odd parts are formulas; "$5 or $" is none, as a formula touches its dollar signs
    return "".join(
        part
        if at % 2 and part[1] != " " != part[-2]
        else _LIGATURE.sub("{}", _SPECIALS.sub(lambda match: _SPECIAL[match.group()], part))
        for at, part in enumerate(parts)
    )


def _author(name: str) -> str:
    """Write an author's name for BibTeX, in braces where BibTeX would split it."""
    written = escape_latex(name)
    is_plain = not ("," in written or re.search(r"\band\b", written, re.IGNORECASE) or written.lower() in _NOBODY)
    return written if is_plain or not written else f"{{{written}}}"


_NOBODY = ("others", "et al.")


def _plain_id(id: str) -> str:
    """Return an id as reference managers want it, unescaped; empty where its characters would end the BibTeX field."""
    return id if id.isprintable() and not re.search(r"[{}\\\s]", id) else ""


def _citation_key(paper: Exportable, used: set[str], entry: Mapping[str, object]) -> str:
    """Return a BibTeX key: the imported one, or author, year, word and part of a hash, the same in every export."""
    default = paper.id if _KEY.fullmatch(paper.id) and not _PREFIX.match(paper.id) else _generate_key(paper, 4)
    key = _imported_key(entry) or default
    # to BibTeX, keys that differ in capitals only are equal
    for digits in (8, 16, 64):
        if key.lower() not in used:
            break
        key = _generate_key(paper, digits)
    used.add(key.lower())
    return key


def _generate_key(paper: Exportable, digits: int) -> str:
    """Return a citation key of author, year and title word, with so many digits of a hash of the paper's id."""
    family = _ascii(paper.authors[0].split(",")[0].split()[-1]) if paper.authors and paper.authors[0].split() else ""
    words = [word for word in _ascii(paper.title, " ").split() if word not in _SMALL_WORDS and not word.isdigit()]
    name = f"{family}{paper.year or ''}{words[0] if words else ''}"[:40]
    digest = hashlib.sha256(paper.id.encode("utf-8", "replace")).hexdigest()[:digits]
    return f"{name if name[:1].isalpha() else f'paper{name}'}-{digest}"


def _ascii(text: str, between: str = "") -> str:
    """Return the lower-case ASCII letters and digits of a text, for citation keys.

    >>> _ascii("Šikáček"), _ascii("DNA-binding of 王", " ")
    ('sikacek', 'dna binding of ')
    """
    plain = unicodedata.normalize("NFKD", fold(text)).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", between, plain.lower())


# --- RIS -------------------------------------------------------------------------------------------------

_RIS_TYPES = {"article": "JOUR", "inproceedings": "CONF", "incollection": "CHAP", "book": "BOOK", "phdthesis": "THES"}


def to_ris(papers: Iterable[Exportable]) -> str:
    r"""Export papers as RIS, one record per paper, for Zotero, EndNote and Mendeley.

    >>> to_ris([ExportedPaper("doi:10.1/x", "Rain", year=1950, authors=("Ada de la Cruz",))]).splitlines()
    ['TY  - GEN', 'TI  - Rain', 'AU  - de la Cruz, Ada', 'PY  - 1950', 'DO  - 10.1/x', 'ER  - ']
    """
    return "\n".join(_ris_record(paper) for paper in papers)


def _ris_record(paper: Exportable) -> str:
    values = [("TI", paper.title), *(("AU", _family_first(name)) for name in paper.authors)]
    values += [
        ("PY", str(paper.year or "")),
        ("T2", paper.venue),
        ("DO", find_id(paper, "doi")),
        ("AB", paper.abstract),
    ]
    written = ((tag, clean_text(value)) for tag, value in values)
    lines = [f"{tag}  - {value}\n" for tag, value in written if value]
    return f"TY  - {_RIS_TYPES.get(_metadata_kind(paper), 'GEN')}\n{''.join(lines)}ER  - \n"


def _family_first(name: str) -> str:
    """Return a name as RIS writes it, with the family name and its particles first.

    >>> _family_first("Alan M. Turing"), _family_first("Turing, Alan"), _family_first("Plato")
    ('Turing, Alan M.', 'Turing, Alan', 'Plato')
    """
    words = clean_text(name).split()
    if len(words) < 2 or "," in name:
        return " ".join(words)
    first = next((at for at, word in enumerate(words[1:-1], 1) if word.islower()), len(words) - 1)
    return f"{' '.join(words[first:])}, {' '.join(words[:first])}"


# --- CSV and JSON --------------------------------------------------------------------------------------

COLUMNS = ("id", "title", "authors", "year", "venue", "fields", "doi", "abstract")


def to_csv(papers: Iterable[Exportable]) -> str:
    """Export papers as CSV with a header line; authors and fields are separated by semicolons."""
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
            find_id(paper, "doi"),
            paper.abstract,
        )
        writer.writerow([safe_cell(cell) for cell in cells])
    return buffer.getvalue()


def safe_cell(text: str) -> str:
    """Return a cell of the CSV export that no spreadsheet takes for a formula, by OWASP's "CSV injection" characters.

    >>> safe_cell("@SUM(A1)"), safe_cell(" =1"), safe_cell("a=1")
    ("'@SUM(A1)", "'=1", 'a=1')
    """
    line = clean_text(text)
    return f"'{line}" if line.startswith(("=", "+", "-", "@", "＝", "＋", "－", "＠")) else line


def paper_json(paper: Exportable) -> dict[str, Any]:
    """Return the fields of a paper as JSON, as exports and the HTTP API show them."""
    return {
        "id": paper.id,
        "title": paper.title,
        "abstract": paper.abstract,
        "year": paper.year,
        "venue": paper.venue,
        "authors": list(paper.authors),
        "fields": list(paper.fields),
        "ids": list(paper.ids),
        **details_json(paper),
    }


def to_json(papers: Iterable[Exportable]) -> str:
    """Export papers as a JSON list of objects."""
    return json.dumps([paper_json(paper) for paper in papers], ensure_ascii=False, indent=1) + "\n"


FORMATS: dict[str, Callable[[Iterable[Exportable]], str]] = {
    "bibtex": to_bibtex,
    "ris": to_ris,
    "csv": to_csv,
    "json": to_json,
}
SUFFIXES = {".bib": "bibtex", ".ris": "ris", ".csv": "csv", ".json": "json"}


def export_format(path: Path) -> str:
    """Return the export format that the suffix of a file means."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"--export is {str(path)!r}; its name must end in {', '.join(SUFFIXES)}")
    return SUFFIXES[path.suffix.lower()]


def export_papers(papers: Sequence[Exportable], path: Path) -> None:
    """Write papers into a file in the format of its suffix: BibTeX, RIS, CSV or JSON."""
    write_atomically(resolve_output(path), FORMATS[export_format(path)](papers).encode("utf-8", "replace"))
