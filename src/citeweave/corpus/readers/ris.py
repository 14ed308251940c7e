"""RIS files in the dialects of the databases that write them, and the tagged format of Web of Science.

    TY  - JOUR                          PT J
    T1  - Computing Machinery           AU Turing, AM
    AU  - Turing, Alan M.               TI Computing Machinery
    PY  - 1950//                        CR FREGE G, 1879, BEGRIFFSSCHRIFT, DOI 10.1000/182
    ER  -                               ER

The name of a record (`ID`, `AN` or `UT`) counts only inside its file (`local_id`); a record without one is named by its DOI
or other id, else by its title and year. A record that lacks its `ER` ends where the next one begins. The cited references
of Web of Science (`CR`) become citations where they give a DOI or an arXiv id; they have no titles.

Does not read PubMed's tagged format (`PMID- 1`); see `pubmed.py`. Does not read attached files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.identity import arxiv_id, distinct, doi_id, number_id, pmc_id, spell_ids, with_id
from citeweave.corpus.paper import Paper, Record
from citeweave.corpus.plain_text import clean_text, count_of, filled, names_of, strip_markup, year_of
from citeweave.corpus.readers.paper_records import accepted, cite_ids

_LINE_END = re.compile(r"\r\n|\r|\n")
_RIS_LINE = re.compile(r"\s{0,3}([A-Z][A-Z0-9])(?:\s{2}|(?<=TY)\s|(?<=ER)\s)-\s?(.*)")
_WOS_LINE = re.compile(r"([A-Z][A-Z0-9])(?: (.*)|$)")
_RIS_START = re.compile(r"^\s{0,3}TY\s{1,2}-", re.MULTILINE)
_WOS_START = re.compile(r"^(?:FN [^\n]{1,200}\n+VR |PT [A-Z]\s*$)", re.MULTILINE)
_CITED_BY = re.compile(r"Cited By\s*:\s*(\d{1,9})", re.IGNORECASE)
_PMID = re.compile(r"PMID:?\s*(\d{1,9})")

# in Web of Science these have one value per line; the lines of all others are one text
_WOS_LISTS = ("AU", "AF", "CR", "BA", "BE", "C1")

_TagValues = dict[str, list[str]]
_TagLines = dict[str, list[list[str]]]
"""The lines of every value of every tag."""

_TaggedLine = tuple[int, str, str]
"""Number of a line, its tag and its text."""


def recognizes(head: FileHead) -> bool:
    """Return whether a file is RIS or tagged Web of Science text."""
    text = _LINE_END.sub("\n", head.text)
    if text.lstrip()[:1] in ("{", "[", "<", "@"):
        return False
    return bool(_RIS_START.search(text) or _WOS_START.search(text[:4000]))


def read(source: Source, tally: Tally) -> Iterator[Record]:
    """Yield the papers and citations of an RIS or Web of Science file."""
    text = _LINE_END.sub("\n", source.text(tally))
    lines = text.split("\n")
    if _RIS_START.search(text):
        for line, record in _read_records(_ris_lines(lines), "TY", ("ER",), ("ER",), tally):
            yield from _ris_paper(record, line, tally)
    elif _WOS_START.search(text):
        for line, record in _read_records(_wos_lines(lines), "PT", ("ER", "EF"), ("FN", "VR", "ER", "EF"), tally):
            yield from _wos_paper(record, line, tally)
    elif text.strip():
        raise InputError(f"{source.path} holds no RIS record (no line 'TY  - JOUR', 'PT J'); is it another format?")


# From lines to records.


def _ris_lines(lines: list[str]) -> Iterator[_TaggedLine]:
    """Yield number, tag and text of every line of RIS; a line that continues a value has no tag."""
    for number, line in enumerate(lines, 1):
        if match := _RIS_LINE.match(line):
            yield number, match[1], match[2]
        elif line.strip():
            yield number, "", line


def _wos_lines(lines: list[str]) -> Iterator[_TaggedLine]:
    """Yield number, tag and text of every line of Web of Science; a line that continues a value has no tag."""
    for number, line in enumerate(lines, 1):
        if line.startswith("  "):
            yield number, "", line.strip()
        elif match := _WOS_LINE.match(line.lstrip("\ufeff")):
            yield number, match[1], (match[2] or "").strip()


def _read_records(
    lines: Iterator[_TaggedLine], start: str, ends: tuple[str, ...], outside: tuple[str, ...], tally: Tally
) -> Iterator[tuple[int, _TagLines]]:
    """Yield the records of tagged lines with the number of their first line, from the tag `start` to one of `ends`.

    The tags `outside` may stand between records.
    """
    tags: _TagLines = {}
    value: list[str] | None = None
    first = 0
    for number, tag, text in lines:
        if not tag:
            if value is not None:
                value.append(text)
            continue
        if tag == start or tag in ends:
            if tags:
                yield first, tags
                tally.note("record without ER", int(tag != "ER"))
            tags, value, first = {}, None, number
        if tag == start or tags:
            value = [text]
            tags.setdefault(tag, []).append(value)
        elif tag not in outside:
            tally.note("tag outside a record left out")
    if tags:
        tally.note("record without ER")
        yield first, tags


# From records to papers.


def _ris_paper(record: _TagLines, line: int, tally: Tally) -> Iterator[Paper]:
    values = {tag: (" ".join(lines).replace("\0", "").strip() for lines in values) for tag, values in record.items()}
    tags = {tag: list(filter(None, texts)) for tag, texts in values.items()}
    notes = " ".join(tags.get("N1", []))
    cited_by = _CITED_BY.search(notes)
    name = clean_text(" ".join(tags.get("ID") or tags.get("AN") or []))[:200]
    years = [year_of(value) for tag in ("PY", "Y1", "DA") for value in tags.get(tag, [])]
    paper = Paper(
        id=name,
        title=_first(tags, "TI", "T1", "CT", "BT"),
        abstract=_first(tags, "AB", "N2"),
        year=next(filter(None, years), None),
        venue=_first(tags, "JF", "T2", "JO", "BT", "JA", "J2"),
        authors=_people(tags.get("AU") or tags.get("A1") or []),
        ids=_ris_ids(tags, notes),
        citation_count=count_of(cited_by[1]) if cited_by else None,
        extra=_extra(tags, "TY", tags.get("KW", [])) | _details(tags),
        local_id=True,
    )
    if accepted(paper, tally, line=line):
        yield _named(paper, tally)


def _named(paper: Paper, tally: Tally) -> Paper:
    if not (paper.id or paper.ids):
        tally.note("record without any id, named by what it says")
    return with_id(paper, "ris")


def _wos_paper(record: _TagLines, line: int, tally: Tally) -> Iterator[Record]:
    lines = {tag: list(chain.from_iterable(values)) for tag, values in record.items()}
    joined = {tag: texts if tag in _WOS_LISTS else [" ".join(texts)] for tag, texts in lines.items()}
    references = joined.get("CR", [])
    keywords = ";".join([_first(joined, "DE"), _first(joined, "ID")]).split(";")
    number = _first(joined, "UT").rpartition(":")[2]
    paper = Paper(
        id=_first(joined, "UT"),
        title=_first(joined, "TI"),
        abstract=_first(joined, "AB"),
        year=year_of(_first(joined, "PY")),
        venue=_first(joined, "SO"),
        authors=_people(joined.get("AF") or joined.get("AU") or []),
        fields=names_of(_first(joined, "WC", "SC").split(";")),
        ids=spell_ids(doi=_first(joined, "DI"), pmid=_first(joined, "PM"), wos=number),
        citation_count=count_of(_first(joined, "TC")),
        extra=_extra(joined, "DT", keywords),
        local_id=True,
    )
    if not accepted(paper, tally, len(references), line=line):
        return
    paper = _named(paper, tally)
    yield paper
    citing = paper.id if not paper.local_id else next(iter(paper.ids), paper.id)
    yield from cite_ids(citing, map(_cited, references), tally)


def _cited(reference: str) -> str | None:
    """Return the id in a cited reference of Web of Science.

    >>> _cited("Law CJ, 2003, PHOTOSYNTH RES, V75, P193, DOI 10.1023/A:1023982327748")
    'doi:10.1023/a:1023982327748'
    >>> _cited("Kingma D P, 2014, ARXIV, DOI arXiv:1412.6980"), _cited("LOACH PA, 1990, FEMS SYMP, V53, P235")
    ('arxiv:1412.6980', None)
    """
    identifier = reference.rpartition("DOI ")[2] if "DOI " in reference else ""
    return doi_id(reference) or arxiv_id(identifier.strip("[] "))


def _ris_ids(tags: _TagValues, notes: str) -> tuple[str, ...]:
    links = [link for tag in ("UR", "L2", "L1", "LK", "M3") for link in tags.get(tag, [])]
    dois = [doi_id(value) for value in tags.get("DO", [])]
    if not any(dois):
        linked = (doi_id(link) for link in links if "doi.org/" in link or link.startswith("10."))
        dois = [next(filter(None, linked), None)]
    pmid = _PMID.search(notes)
    in_pubmed = "pubmed" in " ".join(tags.get("DB", []) + tags.get("DP", [])).lower()
    return distinct(
        [
            *dois,
            next(filter(None, map(arxiv_id, [*links, *tags.get("AN", [])])), None),
            number_id("pmid", pmid[1]) if pmid else None,
            number_id("pmid", _first(tags, "AN")) if in_pubmed else None,
            pmc_id(_first(tags, "C2")) if _first(tags, "C2").startswith("PMC") else None,
        ]
    )


def _extra(tags: _TagValues, type_tag: str, keywords: list[str]) -> dict[str, object]:
    return filled(
        {
            "type": _first(tags, type_tag),
            "keywords": list(names_of([strip_markup(keyword) for keyword in keywords])),
            "language": _first(tags, "LA"),
            "notes": list(names_of([strip_markup(note)[:500] for note in tags.get("N1", [])[:20]])),
        }
    )


def _details(tags: _TagValues) -> dict[str, object]:
    """Return the citation key of a RIS record, its link and the path of its file, where it has them."""
    links = [link for tag in ("UR", "L2", "LK") for link in tags.get(tag, [])]
    url = next((link for link in links if link.lower().startswith("http")), "")
    return filled({"key": clean_text(" ".join(tags.get("ID", [])))[:200], "url": url, "file": _first(tags, "L1")})


def _first(tags: _TagValues, *names: str) -> str:
    """Return the text of the first of these RIS tags that is not empty."""
    return next((text for name in names if (text := strip_markup(" ".join(tags.get(name, []))))), "")


def _people(values: list[str]) -> tuple[str, ...]:
    """Return RIS author names as "First Last Suffix", each once.

    >>> _people(["Turing, Alan M.", "King, Martin L., Jr.", "WHO", "Turing,  Alan M."])
    ('Alan M. Turing', 'Martin L. King Jr.', 'WHO')
    """
    people = []
    for value in values:
        family, _, rest = strip_markup(value).partition(",")
        given, _, suffix = rest.partition(",")
        people.append(" ".join(filter(None, (given.strip(), family.strip(), suffix.strip()))))
    return names_of(people)
