"""Read a query text: the ids, authors, phrases, years and venues that it names, and the words that are left.

    >>> read_text('author:"Jacob Devlin" year:2018-2020 "masked language" pretraining')
    TextQuery(ids=(), authors=('Jacob Devlin',), phrases=('masked language',), years=(2018, 2020), venues=(), text='pretraining', note='')
    >>> read_text("https://doi.org/10.18653/V1/N19-1423").ids
    (('doi:10.18653/v1/n19-1423', 'acl:N19-1423'),)
    >>> read_text("arXiv 1412.6980v9, PMID: 7").ids
    (('arxiv:1412.6980',), ('pmid:7',))
    >>> read_text('the "open quote').note
    'the quote does not end, so it is read as plain text'

Pure: what an index knows by these ids and names is found by `look_up.py`, also the names of authors that stand in a text
without `author:`, citation keys and titles. A pasted text (several lines, or more than MAX_READ characters) is left as it
is, as quotes and colons in it mean nothing. An id has several spellings where a link holds more than the id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from citeweave.core.errors import UserError
from citeweave.corpus.identity import SPELLINGS, arxiv_id, distinct, doi_id, openalex_id, pmc_id, sha_id, text_id
from citeweave.corpus.plain_text import clean_text

MAX_READ = 300
"""Longest text that is read as more than plain text, in characters."""

Ids = tuple[str, ...]
Years = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class TextQuery:
    """What a query text names, and what is left of it."""

    ids: tuple[Ids, ...] = ()
    """For each id in the text its possible spellings, the likeliest first."""

    authors: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    years: Years = (None, None)
    venues: tuple[str, ...] = ()
    text: str = ""
    note: str = ""
    """What could not be read, in one sentence."""

    @property
    def is_plain(self) -> bool:
        """Whether the text names nothing."""
        return not (self.ids or self.authors or self.phrases or self.venues or self.years != (None, None))

    @property
    def is_only_ids(self) -> bool:
        """Whether the text is nothing but ids."""
        return bool(self.ids) and self == TextQuery(ids=self.ids)


_QUOTES = str.maketrans(dict.fromkeys("“”„‟«»＂", '"'))
_CONDITION = re.compile(r'(?<!\S)(authors?|years?|venues?|journal)\s?:\s?(?:"([^"]*)"|([^\s"]*))', re.IGNORECASE)
_PHRASE = re.compile(r'"([^"]*)"')


def is_pasted(text: str) -> bool:
    """Return whether a text has several lines or is long, so that nothing in it is read as a name or a condition."""
    return len(text) > MAX_READ or "\n" in text.strip()


def read_text(text: str) -> TextQuery:
    """Read a query text: what it names, and what is left of it."""
    if is_pasted(text):
        return TextQuery(text=text)
    line = clean_text(text.translate(_QUOTES))
    if ids := _all_ids(line):
        return TextQuery(ids=ids)
    values, notes, rest = _conditions(line)
    phrases = [clean_text(phrase) for phrase in _PHRASE.findall(rest)]
    rest = _PHRASE.sub(" ", rest)
    if '"' in rest:
        notes.append("the quote does not end, so it is read as plain text")
        rest = rest.replace('"', " ")
    found, rest = _ids_among(rest)
    years: Years = (None, None)
    for value in values["year"]:
        first, last = parse_years(value) or years
        years = (last, first) if first is not None and last is not None and first > last else (first, last)
    return TextQuery(
        found,
        tuple(values["author"]),
        tuple(phrase for phrase in phrases if re.search(r"\w", phrase)),
        years,
        tuple(values["venue"]),
        clean_text(rest),
        "; ".join(notes),
    )


def _conditions(line: str) -> tuple[dict[str, list[str]], list[str], str]:
    """Return the values of `author:`, `year:` and `venue:` in a line, notes on bad ones, and the line without them."""
    values: dict[str, list[str]] = {"author": [], "year": [], "venue": []}
    notes: list[str] = []

    def take(match: re.Match[str]) -> str:
        kind = {"journal": "venue"}.get(match[1].lower(), match[1].lower().removesuffix("s"))
        value = clean_text(match[2] if match[2] is not None else match[3]).strip(",;")
        if not value:
            notes.append(f"{kind}: is without a value; write {_EXAMPLES[kind]}")
        elif kind == "year" and parse_years(value) is None:
            notes.append(f"year:{value[:40]} is not a year; write {_EXAMPLES[kind]}")
        else:
            values[kind].append(value)
            return " "
        return f" {value} "

    return values, notes, _CONDITION.sub(take, line)


_EXAMPLES = {
    "author": 'author:Devlin or author:"Jacob Devlin"',
    "year": "year:2019, year:2015-2020 or year:2015-",
    "venue": 'venue:ACL or venue:"Nature Methods"',
}

# --- years ---------------------------------------------------------------------------------------------

_YEARS = re.compile(r"\s*(\d{1,4})?\s*(-|–|—|\.\.)?\s*(\d{1,4})?\s*", re.ASCII)
_BOUND = re.compile(r"([<>]=?)\s*(\d{1,4})", re.ASCII)


def parse_years(text: str) -> Years | None:
    """Parse one year, or a first and last year, either of which may be missing; None where the text is neither.

    >>> parse_years("2015-2020"), parse_years("2015-"), parse_years("-2020"), parse_years("2015"), parse_years(">=2015")
    ((2015, 2020), (2015, None), (None, 2020), (2015, 2015), (2015, None))
    >>> parse_years("abc"), parse_years("-")
    (None, None)
    """
    if bound := _BOUND.fullmatch(text.strip()):
        year = int(bound[2])
        if bound[1][0] == ">":
            return year + (bound[1] == ">"), None
        return None, max(year - (bound[1] == "<"), 0)
    match = _YEARS.fullmatch(text)
    if not match or not (match[1] or match[3]) or (match[1] and match[3] and not match[2]):
        return None
    first, last = (int(match[at]) if match[at] else None for at in (1, 3))
    return (first, last) if match[2] else (first, first)


def check_years(text: str, option: str) -> Years:
    """Parse the years that an option gives, empty for all; refuse what is no year."""
    years = parse_years(text) if text else (None, None)
    if years is None:
        raise UserError(f"{option} is {text[:60]!r}; it must look like 2015-2020, 2015-, -2020 or 2015")
    return years


# --- ids -----------------------------------------------------------------------------------------------

_KINDS = {**{kind: kind for kind in SPELLINGS}, "pubmed": "pmid", "pmc": "pmcid", "corpusid": "s2", "sha": "s2sha"}
"""What a text may call a kind of ids -> the kind."""

_NAMED = re.compile(
    r"(?<![\w/.])(doi|pmid|pubmed|pmcid|arxiv|acl|corpusid|openalex)(?:\s?[:=]\s*|\s+(?:id:?\s*)?)(?=\S*\d)", re.I
)
_LEAD = re.compile(r"(?:https?://)?(?:www\.|dx\.)?", re.IGNORECASE)
_AROUND = " \t<>()[]{}.,;'\"|"
_SITES = (
    (re.compile(r"arxiv\.org/(?:abs|pdf|html)/([^?#\s]+)", re.I), "arxiv"),
    (re.compile(r"(?:pubmed\.ncbi\.nlm\.nih\.gov|ncbi\.nlm\.nih\.gov/pubmed)/(\d+)", re.I), "pmid"),
    (re.compile(r"(?:pmc\.ncbi\.nlm\.nih\.gov|ncbi\.nlm\.nih\.gov/pmc)/articles/(PMC\d+)", re.I), "pmcid"),
    (re.compile(r"openalex\.org/(?:works/)?(W\d+)", re.I), "openalex"),
    (re.compile(r"semanticscholar\.org/\S*?([0-9a-f]{40})", re.I), "s2sha"),
    (re.compile(r"(?:aclanthology\.org|aclweb\.org/anthology)/(?:papers/)?([^/?#\s]+?)(?:\.pdf|/|$)", re.I), "acl"),
)
_WORK = re.compile(r"W\d{5,12}", re.IGNORECASE)
_ACL = re.compile(r"[A-Z]\d\d-\d{4}|\d{4}\.[a-z0-9_]+-[a-z0-9]+\.\d+", re.IGNORECASE)
_ACL_DOI = re.compile(r"doi:10\.(?:18653/v1|3115/v1)/(\S+)")
_BEHIND_DOI = re.compile(
    r"(?:[?#].*|/(?:full|abstract|pdf|epdf|html|meta|fulltext)(?:\.\w+)?|\.(?:pdf|full|abstract|html))$", re.I
)
_VERSION = re.compile(r"v\d+$")
_IN_TEXT = re.compile(r"\S*10\.\d{4,9}(?:/|%2f)\S+|(?:\S*arxiv\.org/|arxiv:)\S*\d{4}\S*|pmid:\d+", re.IGNORECASE)


def id_spellings(token: str) -> Ids:
    """Return the ids that one word may be, in their canonical spelling, the likeliest first; none where it is no id.

    >>> id_spellings("HTTPS://DOI.ORG/10.1000/X.pdf?a=b"), id_spellings("doi:10.1000%2FX).")
    (('doi:10.1000/x.pdf?a=b', 'doi:10.1000/x.pdf', 'doi:10.1000/x'), ('doi:10.1000/x',))
    >>> id_spellings("https://arxiv.org/pdf/1412.6980v9.pdf"), id_spellings("PMC123"), id_spellings("transformer")
    (('arxiv:1412.6980',), ('pmcid:123',), ())
    """
    token = token.strip(_AROUND)
    kind, colon, value = token.partition(":")
    if colon and kind.lower() in _KINDS and not value.startswith("//"):
        own = SPELLINGS[_KINDS[kind.lower()]](unquote(value))
        return _doi_spellings(own) if own and own.startswith("doi:") else distinct([own])
    if (doi := doi_id(unquote(token))) is not None:
        return _doi_spellings(doi) if doi.startswith("doi:") else (doi,)
    for site, kind in _SITES:
        if match := site.search(token):
            return distinct([SPELLINGS[kind](match[1])])
    plain = _LEAD.sub("", token, count=1)
    acl = text_id("acl", plain) if _ACL.fullmatch(plain) else None
    pmc = pmc_id(plain) if plain[:3].upper() == "PMC" else None
    work = openalex_id(plain) if _WORK.fullmatch(plain) else None
    return distinct([arxiv_id(plain), pmc, work, sha_id(plain), acl])


def _doi_spellings(doi: str) -> Ids:
    """Return a DOI, what is left without the rest of a link behind it, and the id of the ACL Anthology that it holds."""
    spellings: list[str | None] = [doi]
    while (shorter := _BEHIND_DOI.sub("", doi)) != doi:
        spellings.append(doi := shorter)
    spellings.append(_VERSION.sub("", doi) if "/" in _VERSION.sub("", doi) else None)
    if doi.startswith(("doi:10.1145/", "doi:10.5555/")):
        spellings.append(f"acm:{doi.removeprefix('doi:')}")  # as some collections name papers of ACM
    if acl := _ACL_DOI.fullmatch(doi):
        spellings.append(f"acl:{acl[1].upper() if _ACL.fullmatch(acl[1]) and acl[1][0].isalpha() else acl[1]}")
    return distinct(spellings)


def _all_ids(line: str) -> tuple[Ids, ...]:
    """Return the ids of a line that has nothing else, separated by blanks or commas; none where a word is no id."""
    words = [word for word in re.split(r"[,;]?\s+", _NAMED.sub(r"\1:", line)) if word.strip(_AROUND)]
    ids = [id_spellings(word) for word in words]
    return tuple(dict.fromkeys(ids)) if all(ids) else ()


def _ids_among(line: str) -> tuple[tuple[Ids, ...], str]:
    """Return the DOIs, arXiv and PubMed ids that stand among the words of a line, and the line without them."""
    named = _NAMED.sub(r"\1:", line)
    ids = [spelled for match in _IN_TEXT.finditer(named) if (spelled := id_spellings(match[0]))]
    return (tuple(dict.fromkeys(ids)), _IN_TEXT.sub(" ", named)) if ids else ((), line)
