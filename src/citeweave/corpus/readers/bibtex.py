"""BibTeX and BibLaTeX files, even those that BibTeX itself would refuse: entries, macros, LaTeX in fields.

    @article{turing1950,
      title = {Computing Machinery and {I}ntelligence},
      author = "Turing, Alan M.",
      journal = mind, year = 1950, doi = {10.1093/mind/LIX.236.433}
    }

    >>> entries = read_entries("@string{m = {Mind}} @article(turing1950, journal = m # { 59}, year = 1950)", Tally())
    >>> next(entries)
    BibtexEntry(kind='article', key='turing1950', fields={'journal': 'Mind 59', 'year': '1950'})

The key of an entry is a name inside its file (`local_id`); an entry without a key is named by its DOI or other id, else by
its title and year. `@string` macros, `#` and the venue and year of a `crossref` parent are resolved; LaTeX becomes plain
text. Every text is read in linear time: an entry ends at the latest before the next line that begins with `@type{`. One
that does not end there is rejected and counted; the others stay. The entry as it was written stays in `extra`, so that an
export writes it back.

Does not read citations, which the format does not have, nor files that are attached to entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.identity import arxiv_id, distinct, doi_id, number_id, only_arxiv_in, pmc_id, text_id, with_id
from citeweave.corpus.paper import Paper, Record
from citeweave.corpus.plain_text import clean_text, day_of, filled, latex_to_text, names_of, strip_markup, year_of

MAX_MACRO = 500
"""Longest expansion of a macro, and `20 * MAX_MACRO` of a field: nested macros must not fill the memory."""

HEADER = re.compile(r"(?<![\w.])@\s{0,99}([A-Za-z][\w:+-]{0,60})\s{0,99}([{(])")
"""The start of an entry: `@article{`."""

_LINE_START = re.compile(r"^[ \t]{0,99}@\s{0,99}[A-Za-z][\w:+-]{0,60}\s{0,99}[{(]", re.MULTILINE)
_KEY = re.compile(r"""\s*([^,={}"]{0,500})""")
_BLANK = re.compile(r"(?:[\s,]++|%[^\n]*+)*+")
_FIELD = re.compile(r"""([^\s=,{}"'#()@\\%]{1,100})\s*=\s*""")
_BARE = re.compile(r"""[^\s,#{}"()=]+""")
_JOIN = re.compile(r"\s*#\s*")
_NEXT_FIELD = re.compile(r"[,})]")
_BRACE = re.compile(r"[{}]")
_BRACE_OR_QUOTE = re.compile(r'[{}"]')
_NOT_PAPERS = ("comment", "preamble", "string")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


@dataclass(slots=True)
class BibtexEntry:
    """One BibTeX entry with raw field values; kinds and field names in lower case, the first of two equal fields kept."""

    kind: str
    key: str
    """Empty where the entry has none."""

    fields: dict[str, str] = field(default_factory=dict)
    line: int = field(default=0, repr=False, compare=False)
    """Where the entry begins, counted from 1."""


class _UnbalancedError(ValueError):
    """A BibTeX entry does not end where it should."""


def read_entries(text: str, tally: Tally) -> Iterator[BibtexEntry]:
    """Yield the BibTeX entries that are papers, in order; a broken one is rejected, and reading resumes at the next `@` line."""
    macros = {month[:3].lower(): month for month in _MONTHS}
    line_starts = (match.start() for match in _LINE_START.finditer(text))
    limit = at = counted = 0
    line = 1
    while header := HEADER.search(text, at):
        while limit <= header.start():
            limit = next(line_starts, len(text) + 1)
        line += text.count("\n", counted, header.start())
        at, counted = header.end(), header.start()
        if _commented_out(text, header.start()):
            tally.note("entry behind a percent sign left out")
            continue
        kind = header[1].lower()
        try:
            if kind in ("comment", "preamble"):
                # as in BibTeX, entries inside a comment count where they begin a line
                at = _skip_group(text, header, min(limit, len(text)))
                continue
            entry, at = _parse_entry(text, header, min(limit, len(text)), macros, tally)
        except _UnbalancedError:
            at = max(at, min(limit, len(text)))
            if kind not in _NOT_PAPERS:
                key, _ = _parse_key(text, header.end(), at, "}" if header[2] == "{" else ")")
                tally.reject("papers", "unbalanced braces", key=key, line=line)
            continue
        if kind == "string":
            macros.update({name: value[:MAX_MACRO] for name, value in entry.fields.items()})
        else:
            entry.line = line
            yield entry


def _commented_out(text: str, at: int) -> bool:
    line_start = text.rfind("\n", max(0, at - 200), at) + 1
    return text[line_start or max(0, at - 200) : at].lstrip().startswith("%")


def _skip_group(text: str, header: re.Match[str], limit: int) -> int:
    if header[2] == "(":
        end = text.find(")", header.end(), limit)
        return limit if end < 0 else end + 1
    return _closing_brace(text, header.end(), limit) + 1


def _parse_entry(
    text: str, header: re.Match[str], limit: int, macros: dict[str, str], tally: Tally
) -> tuple[BibtexEntry, int]:
    """Parse a BibTeX entry; return it and the position behind it."""
    entry = BibtexEntry(header[1].lower(), "")
    at = header.end()
    closing = "}" if header[2] == "{" else ")"
    if entry.kind != "string":
        entry.key, at = _parse_key(text, at, limit, closing)
    while at < limit:
        at = _BLANK.match(text, at, limit).end()  # type: ignore[union-attr]
        if match := _FIELD.match(text, at, limit):
            value, at = _parse_value(text, match.end(), limit, macros)
            name = match[1].lower()
            if value and not entry.fields.get(name):
                entry.fields[name] = value
            continue
        stop = _NEXT_FIELD.search(text, at, limit)
        if not stop:
            break
        if text[at : stop.start()].strip():
            tally.note("damaged field left out")
        at = stop.end()
        if stop.group() == closing:
            return entry, at
    raise _UnbalancedError


def _parse_key(text: str, at: int, limit: int, closing: str) -> tuple[str, int]:
    """Return the key of an entry, empty where there is none, and where its fields begin."""
    match = _KEY.match(text, at, limit)
    if not match:
        return "", at
    key, end = match[1], match.end()
    if text[end : end + 1] == "=":
        # "key author = ..." lacks its comma, "author = ..." its key
        key = key.split()[0] if len(key.split()) > 1 else ""
        end = text.index(key, at) + len(key)
    elif closing in key:
        key = key[: key.index(closing)]
        end = match.start(1) + len(key)
    return clean_text(key), end


def _parse_value(text: str, at: int, limit: int, macros: dict[str, str]) -> tuple[str, int]:
    """Parse the value of a field, its parts joined by `#`, and return it and the position behind it."""
    parts: list[str] = []
    room = 20 * MAX_MACRO
    while at < limit:
        if text[at] in '{"':
            end = (_closing_brace if text[at] == "{" else _closing_quote)(text, at + 1, limit)
            parts.append(text[at + 1 : end])
            at = end + 1
        elif bare := _BARE.match(text, at, limit):
            value = macros.get(bare.group().lower(), bare.group())
            room -= len(value)
            if room > 0:
                parts.append(value)
            at = bare.end()
        joined = _JOIN.match(text, at, limit)
        if not joined:
            break
        at = joined.end()
    return "".join(parts).strip(), at


def _closing_brace(text: str, at: int, limit: int) -> int:
    depth = 1
    for brace in _BRACE.finditer(text, at, limit):
        depth += 1 if brace.group() == "{" else -1
        if not depth:
            return brace.start()
    raise _UnbalancedError


def _closing_quote(text: str, at: int, limit: int) -> int:
    depth = 0
    for match in _BRACE_OR_QUOTE.finditer(text, at, limit):
        here = match.start()
        if match.group() != '"':
            depth += 1 if match.group() == "{" else -1
        elif depth <= 0 and not (text[here - 1] == "\\" and text[here + 1 : here + 2].isalpha()):
            return here  # but G\"odel is an umlaut, although BibTeX requires braces around it
    raise _UnbalancedError


# From entries to papers.

_KNOWN_TYPE = re.compile(
    "article|book|booklet|collection|conference|dataset|electronic|inbook|incollection|inproceedings|manual|mastersthesis|"
    "misc|online|patent|phdthesis|proceedings|report|software|techreport|thesis|unpublished|comment|preamble|string",
    re.IGNORECASE,
)
_VOLUMES = ("proceedings", "book", "collection", "mvproceedings", "mvbook", "mvcollection", "periodical")
_BRACE_OR_AND = re.compile(r"[{}]|(?<=\s)and(?=\s)", re.IGNORECASE)
_ACL_URL = re.compile(r"(?:aclanthology\.org|aclweb\.org/anthology)/(?:papers/)?([A-Z]\d\d-\d{4}|\d{4}\.[\w-]+\.\d+)")


def recognizes(head: FileHead) -> bool:
    """Return whether a file is BibTeX, by its name or its first entry."""
    if head.name.lower().endswith((".bib", ".bibtex", ".biblatex")):
        return True
    start = head.text.lstrip("\ufeff \t\r\n")
    lines = [line for line in start.splitlines() if line.strip() and not line.lstrip().startswith("%")]
    match = HEADER.match("\n".join(lines[:3]).lstrip())
    return match is not None and _KNOWN_TYPE.fullmatch(match[1]) is not None


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers of a BibTeX file."""
    text = source.text(tally)
    if text.strip() and not HEADER.search(text) and not text.lstrip().startswith("%"):
        raise InputError(f"{source.path} holds no BibTeX entry such as @article{{key, ...}}; is it another format?")
    parents = _parents(text) if "crossref" in text.lower() else {}
    for entry in read_entries(text, tally):
        title = _title(entry.fields)
        if not title:
            tally.reject("papers", "no title", key=entry.key, line=entry.line)
            continue
        tally.note("entry without key", int(not entry.key))
        yield with_id(_paper(entry, title, parents), "bibtex")


def _parents(text: str) -> dict[str, dict[str, str]]:
    """Return booktitle and year that the children of a volume inherit, by its key in lower case."""
    unseen = Tally()  # the same entries are counted when they are read as papers
    return {
        entry.key.lower(): {
            "booktitle": entry.fields.get("booktitle") or entry.fields.get("title", ""),
            "year": entry.fields.get("year") or entry.fields.get("date", ""),
        }
        for entry in read_entries(text, unseen)
        if entry.key and entry.kind in _VOLUMES
    }


def _paper(entry: BibtexEntry, title: str, parents: dict[str, dict[str, str]]) -> Paper:
    values = entry.fields
    parent = parents.get(values.get("crossref", "").strip().lower(), {})
    year = year_of(values.get("year")) or year_of(values.get("date")) or year_of(parent.get("year"))
    venue = _first(values, "journal", "journaltitle", "booktitle") or _first(parent, "booktitle")
    extra: dict[str, object] = {
        "type": entry.kind,
        "keywords": _listed(values, "keywords", "mendeley-tags"),
        "collections": _listed(values, "groups", "mendeley-groups"),
        "language": _first(values, "language", "langid"),
        "bibtex": {"type": entry.kind, "key": entry.key, "fields": values},  # as written, for exports
    }
    return Paper(
        id=entry.key,
        title=title,
        abstract=_plain(values.get("abstract", "")),
        year=year,
        venue=venue,
        authors=_people(values.get("author") or values.get("editor", "")),
        ids=_ids(values),
        updated=day_of(values.get("date-modified")) or day_of(values.get("timestamp")),
        extra=filled(extra),
        local_id=True,
    )


def _title(values: dict[str, str]) -> str:
    return ": ".join(filter(None, (_plain(values.get("title", "")), _plain(values.get("subtitle", "")))))


def _plain(value: str) -> str:
    return strip_markup(latex_to_text(value))


def _first(values: dict[str, str], *names: str) -> str:
    return next((text for name in names if (text := _plain(values.get(name, "")))), "")


def _listed(values: dict[str, str], *names: str) -> list[str]:
    return list(names_of([one for name in names for one in re.split(r"[,;]", _plain(values.get(name, "")))]))


def _people(value: str) -> tuple[str, ...]:
    """Split a BibTeX name list into names as "First von Last Jr"; braces keep a name together, "others" is nobody.

    >>> _people("Beethoven, Ludwig van and {Barnes and Noble} and K. Jr, Martin and others")
    ('Ludwig van Beethoven', 'Barnes and Noble', 'Martin K. Jr')
    """
    depth, start, names = 0, 0, []
    for match in _BRACE_OR_AND.finditer(value):
        if match.group() in "{}":
            depth += 1 if match.group() == "{" else -1
        elif depth <= 0:
            names.append(value[start : match.start()])
            start = match.end()
    names.append(value[start:])
    return names_of([_person(name) for name in names if name.strip().lower() not in ("others", "et al.")])


def _person(name: str) -> str:
    name = name.strip()
    if name.startswith("{") and name.endswith("}") and "," in name and name.count("{") == 1:
        return _plain(name)  # {Agency, Department of}: an institution
    family, *others = [part.strip() for part in _plain(name).split(",")]
    suffix = others[:1] if len(others) > 1 else []
    return " ".join(filter(None, [*others[len(suffix) :][:1], family, *suffix]))


def _ids(values: dict[str, str]) -> tuple[str, ...]:
    # identifiers keep their characters: 10.1000/a\_b is 10.1000/a_b, and % or ~ are not LaTeX in them
    plain = {name: re.sub(r"\\([_%&#~$])|[{}]", r"\1", value[:2000]).strip() for name, value in values.items()}
    kind = (plain.get("eprinttype") or plain.get("archiveprefix", "")).lower()
    eprint, url = plain.get("eprint", ""), plain.get("url", "")
    links = [url, plain.get("ee", ""), *(plain[name] for name in plain if name.startswith("bdsk-url"))]
    acl = _ACL_URL.search(url)
    other_text = " ".join(plain.get(name, "") for name in ("journal", "note", "howpublished", "volume"))
    arxiv = [eprint if kind in ("arxiv", "") else "", plain.get("arxiv", ""), plain.get("arxivid", ""), *links]
    linked = (doi_id(link) for link in links if "doi.org/" in link)
    in_text = only_arxiv_in(other_text) if "arxiv" in other_text.lower() else None
    return distinct(
        [
            doi_id(plain.get("doi")) or next(filter(None, linked), None),
            next(filter(None, map(arxiv_id, arxiv)), in_text),
            number_id("pmid", plain.get("pmid")) or (number_id("pmid", eprint) if kind == "pubmed" else None),
            pmc_id(plain.get("pmcid") or plain.get("pmc")),
            text_id("acl", acl.group(1)) if acl else None,
        ]
    )
