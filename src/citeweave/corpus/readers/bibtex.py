"""Reads BibTeX and BibLaTeX files, also those that BibTeX itself would refuse.

    @article{turing1950,
      title = {Computing Machinery and {I}ntelligence},
      author = "Turing, Alan M.",
      journal = mind, year = 1950, doi = {10.1093/mind/LIX.236.433}
    }

The key of an entry is a name inside its file (`local_id`); an entry without key is called by
its DOI or other id, else by a name made of its title and year. `@string` macros, `#` and the venue and year of a `crossref` parent are resolved; LaTeX becomes plain text
(see `latex.py`). An entry that does not end before the next line that begins with `@` is rejected; the others stay.

The entry as it was written stays in `extra`, so that an export writes it back.

Does not read citations, which the format does not have, nor files that are attached to entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from citeweave.corpus.cleaning import day_of, filled, names_of, strip_markup, year_of
from citeweave.corpus.identity import arxiv_id, distinct, doi_id, named, number_id, only_arxiv_in, pmc_id, text_id
from citeweave.corpus.paper import Paper, Record
from citeweave.corpus.parsing.bibtex_records import HEADER, BibtexEntry, read_entries
from citeweave.corpus.parsing.latex import latex_to_text
from citeweave.errors import InputError
from citeweave.opening import Head, Source
from citeweave.tally import Tally

_KNOWN_TYPE = re.compile(
    "article|book|booklet|collection|conference|dataset|electronic|inbook|incollection|inproceedings|manual|mastersthesis|"
    "misc|online|patent|phdthesis|proceedings|report|software|techreport|thesis|unpublished|comment|preamble|string",
    re.IGNORECASE,
)
_VOLUMES = ("proceedings", "book", "collection", "mvproceedings", "mvbook", "mvcollection", "periodical")
_BRACE_OR_AND = re.compile(r"[{}]|(?<=\s)and(?=\s)", re.IGNORECASE)
_ACL_URL = re.compile(r"(?:aclanthology\.org|aclweb\.org/anthology)/(?:papers/)?([A-Z]\d\d-\d{4}|\d{4}\.[\w-]+\.\d+)")


def recognises(head: Head) -> bool:
    if head.name.lower().endswith((".bib", ".bibtex", ".biblatex")):
        return True
    start = head.text.lstrip("\ufeff \t\r\n")
    lines = [line for line in start.splitlines() if line.strip() and not line.lstrip().startswith("%")]
    found = HEADER.match("\n".join(lines[:3]).lstrip())
    return found is not None and _KNOWN_TYPE.fullmatch(found[1]) is not None


def read(source: Source, tally: Tally) -> Iterator[Record]:
    text = source.text(tally)
    if text.strip() and not HEADER.search(text) and not text.lstrip().startswith("%"):
        raise InputError(f"{source.path} holds no BibTeX entry such as @article{{key, ...}}; is it another format?")
    parents = _parents(text) if "crossref" in text.lower() else {}
    for entry in read_entries(text, tally):
        title = _title(entry.fields)
        if not title:
            tally.reject("papers", "no title")
            continue
        if not entry.key:
            tally.note("entry without key")
        yield named(_paper(entry, title, entry.key, parents), "bibtex")


def _parents(text: str) -> dict[str, dict[str, str]]:
    """What the children of a volume inherit, by its key in small letters."""
    unseen = Tally()  # the same entries are counted when they are read as papers
    return {
        entry.key.lower(): {
            "booktitle": entry.fields.get("booktitle") or entry.fields.get("title", ""),
            "year": entry.fields.get("year") or entry.fields.get("date", ""),
        }
        for entry in read_entries(text, unseen)
        if entry.key and entry.kind in _VOLUMES
    }


def _paper(entry: BibtexEntry, title: str, name: str, parents: dict[str, dict[str, str]]) -> Paper:
    values = entry.fields
    parent = parents.get(values.get("crossref", "").strip().lower(), {})
    year = year_of(values.get("year")) or year_of(values.get("date")) or year_of(parent.get("year"))
    venue = _first(values, "journal", "journaltitle", "booktitle") or _first(parent, "booktitle")
    keywords = re.split(r"[,;]", _plain(values.get("keywords", "")))
    extra = {
        "type": entry.kind,
        "keywords": list(names_of(keywords)),
        "language": _first(values, "language", "langid"),
        "bibtex": {"type": entry.kind, "key": entry.key, "fields": values},  # as written, for exports
    }
    return Paper(
        id=name,
        title=title,
        abstract=_plain(values.get("abstract", "")),
        year=year,
        venue=venue,
        authors=_people(values.get("author") or values.get("editor", "")),
        ids=_ids(values),
        updated=day_of(values.get("date-modified")) or day_of(values.get("timestamp")),
        extra=filled(dict(extra)),
        local_id=True,
    )


def _title(values: dict[str, str]) -> str:
    return ": ".join(filter(None, (_plain(values.get("title", "")), _plain(values.get("subtitle", "")))))


def _plain(value: str) -> str:
    return strip_markup(latex_to_text(value))


def _first(values: dict[str, str], *names: str) -> str:
    return next((text for name in names if (text := _plain(values.get(name, "")))), "")


def _people(value: str) -> tuple[str, ...]:
    """Names as "First von Last Jr"; braces keep a name whole, "others" is nobody.

    >>> _people("Beethoven, Ludwig van and {Barnes and Noble} and K. Jr, Martin and others")
    ('Ludwig van Beethoven', 'Barnes and Noble', 'Martin K. Jr')
    """
    depth, start, names = 0, 0, []
    for sign in _BRACE_OR_AND.finditer(value):
        if sign.group() in "{}":
            depth += 1 if sign.group() == "{" else -1
        elif depth <= 0:
            names.append(value[start : sign.start()])
            start = sign.end()
    names.append(value[start:])
    return names_of([_person(name) for name in names if name.strip().lower() not in ("others", "et al.")])


def _person(name: str) -> str:
    name = name.strip()
    if name.startswith("{") and name.endswith("}") and "," in name and name.count("{") == 1:
        return _plain(name)  # {Agency, Department of}: an institution
    parts = [part.strip() for part in _plain(name).split(",")]
    if len(parts) == 2:
        parts = [parts[1], parts[0]]
    elif len(parts) > 2:
        parts = [parts[2], parts[0], parts[1]]
    return " ".join(filter(None, parts))


def _ids(values: dict[str, str]) -> tuple[str, ...]:
    # identifiers keep their signs: 10.1000/a\_b is 10.1000/a_b, and % or ~ are no LaTeX in them
    plain = {name: re.sub(r"\\([_%&#~$])|[{}]", r"\1", value[:2000]).strip() for name, value in values.items()}
    kind = (plain.get("eprinttype") or plain.get("archiveprefix", "")).lower()
    eprint, url = plain.get("eprint", ""), plain.get("url", "")
    links = [url, plain.get("ee", ""), *(plain[name] for name in plain if name.startswith("bdsk-url"))]
    acl = _ACL_URL.search(url)
    said_in = (
        f"{plain.get('journal', '')} {plain.get('note', '')} {plain.get('howpublished', '')} {plain.get('volume', '')}"
    )
    arxiv = [eprint if kind in ("arxiv", "") else "", plain.get("arxiv", ""), plain.get("arxivid", ""), *links]
    return distinct(
        [
            doi_id(plain.get("doi"))
            or next(filter(None, (doi_id(link) for link in links if "doi.org/" in link)), None),
            next(filter(None, map(arxiv_id, arxiv)), None)
            or (only_arxiv_in(said_in) if "arxiv" in said_in.lower() else None),
            number_id("pmid", plain.get("pmid")) or (number_id("pmid", eprint) if kind == "pubmed" else None),
            pmc_id(plain.get("pmcid") or plain.get("pmc")),
            text_id("acl", acl.group(1)) if acl else None,
        ]
    )
