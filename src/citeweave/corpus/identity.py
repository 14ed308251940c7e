"""Identity of papers: ids in one canonical spelling, and the rule for when two records are the same paper.

The rule:

1. Two records are the same paper if they share an id: a DOI, an arXiv, PubMed, PMC, ACL, DBLP or MAG
   id, a Semantic Scholar corpus id or paper hash, an OpenAlex id, or the source's own id. The key of
   a BibTeX, RIS or CSL entry identifies nothing outside its file and does not count; only an update
   takes it for the same paper in the newer version of the file, unless ids of one kind differ.
2. Two records are also the same paper if they share `title_key` (normalized title and year), unless
   their ids differ: two different ids of one kind (two DOIs, two arXiv ids, ...), or two ids of their
   own in the same source. One such conflict keeps all records of that title separate.
3. Of the records of one paper the one with an abstract wins, then the one its source changed last,
   then the one read last. Its fields are used; what it leaves empty is filled from the others in
   that order. Every id of every record still leads to the paper.

Does not merge records: `merge.py` applies the rule and writes the merged columns.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from citeweave.corpus.paper import Paper
from citeweave.corpus.plain_text import dict_of, fold

_DOI = re.compile(r"10\.\d{4,9}(?:\.\d+)*/\S+")
_ARXIV_NEW = re.compile(r"\d{4}\.\d{4,5}")
_ARXIV_OLD = re.compile(r"[a-z][a-z-]*(?:\.[a-z]{2})?/\d{7}")
_DOI_IN_TEXT = re.compile(r"10\.\d{4,9}(?:\.\d+)*/[^\s<>\"]+")
_ARXIV_IN_TEXT = re.compile(
    r"arxiv(?:\.org/(?:abs|pdf)/|[:.\s]\s*)(\d{4}\.\d{4,5}|[a-z-]+(?:\.[a-z]{2})?/\d{7})", re.IGNORECASE
)
_SHA = re.compile(r"[0-9a-f]{40}")
_VERSION = re.compile(r"v\d+$")

MINIMUM_TITLE_WORDS = 4
MINIMUM_TITLE_LETTERS = 20
MAXIMUM_TITLE_LETTERS = 10_000
"""Longer texts are not titles, and folding them may take thirty times their memory."""


def doi_id(value: object) -> str | None:
    """Return a DOI in its canonical spelling; DataCite's DOIs of arXiv papers become arXiv ids.

    >>> doi_id("https://doi.org/10.7717/PeerJ.4375"), doi_id("10.48550/arXiv.1706.03762")
    ('doi:10.7717/peerj.4375', 'arxiv:1706.03762')
    >>> doi_id("n/a") is None
    True
    """
    match = _DOI.search(value[:2000]) if isinstance(value, str) else None
    if not match or not match.group().isprintable():
        return None
    doi = match.group().rstrip(".,;)}]>\"'").lower()
    if doi.startswith("10.48550/arxiv."):
        return arxiv_id(doi.removeprefix("10.48550/arxiv."))
    return f"doi:{doi}"


def arxiv_id(value: object) -> str | None:
    """Return an arXiv id in its canonical spelling, without its version; old ids keep their archive.

    >>> arxiv_id("http://arxiv.org/abs/1706.03762v5"), arxiv_id("astro-ph/0601001")
    ('arxiv:1706.03762', 'arxiv:astro-ph/0601001')
    >>> arxiv_id("1706") is None
    True
    """
    if not isinstance(value, str):
        return None
    text = value[:2000].strip().lower()
    for lead in ("https://", "http://", "www.", "arxiv.org/abs/", "arxiv.org/pdf/", "arxiv:", "abs/"):
        text = text.removeprefix(lead)
    text = _VERSION.sub("", text.removesuffix(".pdf").strip())
    if _ARXIV_NEW.fullmatch(text) or _ARXIV_OLD.fullmatch(text):
        return f"arxiv:{text}"
    return None


def number_id(prefix: str, value: object) -> str | None:
    """Return a numeric id with its prefix, from a number or a text such as a PubMed or corpus id.

    >>> number_id("pmid", " 0012345 "), number_id("s2", 77), number_id("s2", -1), number_id("mag", None)
    ('pmid:12345', 's2:77', None, None)
    """
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, float) and value == value and abs(value) < 2**53:
        value = int(value)
    text = str(value).strip() if isinstance(value, int | str) else ""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    return f"{prefix}:{int(text)}"


def pmc_id(value: object) -> str | None:
    """Return a PubMed Central id in its canonical spelling.

    >>> pmc_id("PMC1234"), pmc_id("1234")
    ('pmcid:1234', 'pmcid:1234')
    """
    return number_id("pmcid", value.strip().upper().removeprefix("PMC") if isinstance(value, str) else value)


def openalex_id(value: object) -> str | None:
    """Return the id of an OpenAlex work in its canonical spelling, from the id or its address.

    >>> openalex_id("https://openalex.org/W2741809807"), openalex_id("W1"), openalex_id("A1")
    ('openalex:W2741809807', 'openalex:W1', None)
    """
    name = value.strip().rsplit("/", 1)[-1].upper() if isinstance(value, str) else ""
    return f"openalex:{name}" if name[:1] == "W" and name[1:].isascii() and name[1:].isdigit() else None


def sha_id(value: object) -> str | None:
    """Return Semantic Scholar's 40-digit paper hash as a prefixed id.

    >>> sha_id("894BE9B4ea46a5c422e81ef3c241072d4c73fdc0")
    's2sha:894be9b4ea46a5c422e81ef3c241072d4c73fdc0'
    """
    text = value.strip().lower() if isinstance(value, str) else ""
    return f"s2sha:{text}" if _SHA.fullmatch(text) else None


def text_id(prefix: str, value: object) -> str | None:
    """Return any other id that is a short text without blanks, such as those of ACL or DBLP, with its prefix.

    >>> text_id("acl", "2020.acl-main.447"), text_id("acl", ""), text_id("acl", "two words")
    ('acl:2020.acl-main.447', None, None)
    """
    text = value.strip() if isinstance(value, str) else ""
    # control characters and lone surrogates are not printable and cannot be written to a file
    return f"{prefix}:{text}" if 0 < len(text) < 500 and text.isprintable() and " " not in text else None


def title_key(title: str, year: int | None) -> str | None:
    """Return a key of title and year by which records without a common id match; None where the title is not distinctive.

    >>> title_key("Attention Is All You Need!", 2017)
    'title:attention is all you need|2017'
    >>> title_key("Editorial", 2017) is None, title_key("word " * 10_000, 2017) is None
    (True, True)
    """
    if year is None or len(title) > MAXIMUM_TITLE_LETTERS:
        return None
    folded = fold(title)
    if len(folded) < MINIMUM_TITLE_LETTERS or folded.count(" ") + 1 < MINIMUM_TITLE_WORDS:
        return None
    return f"title:{folded}|{year}"


SPELLINGS: dict[str, Callable[[object], str | None]] = {
    "doi": doi_id,
    "arxiv": arxiv_id,
    "pmcid": pmc_id,
    "openalex": openalex_id,
    "s2sha": sha_id,
    **{kind: partial(number_id, kind) for kind in ("pmid", "mag", "s2")},
    **{kind: partial(text_id, kind) for kind in ("acl", "dblp", "md5", "wos", "url", "isbn", "wikidata")},
}
"""Kind of an id -> how to spell it with its prefix; None for a value that is no such id."""


def spell_ids(**values: object) -> tuple[str, ...]:
    """Return the ids of a paper in their canonical spelling, from raw values by kind, in this order and without repeats.

    >>> spell_ids(doi="https://doi.org/10.1000/X", pmid="12", arxiv=None)
    ('doi:10.1000/x', 'pmid:12')
    """
    return distinct([SPELLINGS[kind](value) for kind, value in values.items()])


SEMANTIC_SCHOLAR_KINDS = {
    **{"DOI": "doi", "ArXiv": "arxiv", "CorpusId": "s2", "PubMed": "pmid", "PubMedCentral": "pmcid"},
    **{"ACL": "acl", "DBLP": "dblp", "MAG": "mag"},
}
"""Name of an id in Semantic Scholar's `externalIds` -> its kind, best first."""


def likely_ids(text: str) -> tuple[str, ...]:
    """Return the ids that a person may mean by a text: the text itself, and its canonical spellings.

    >>> likely_ids("https://doi.org/10.1000/X"), likely_ids("DOI:10.1000/X")[1:], likely_ids("key")
    (('https://doi.org/10.1000/X', 'doi:10.1000/x'), ('doi:10.1000/x',), ('key',))
    """
    kind, _, value = text.partition(":")
    own = SPELLINGS[kind.lower()](value) if kind.lower() in SPELLINGS else None
    return distinct([text, own, doi_id(text), arxiv_id(text)])


def semantic_scholar_ids(external: object) -> tuple[str, ...]:
    """Return ids in their canonical spelling from an `externalids` / `externalIds` object of Semantic Scholar.

    >>> semantic_scholar_ids({"DOI": "10.18653/V1/N18-3011", "CorpusId": 19170988, "ACL": "N18-3011", "MAG": None})
    ('doi:10.18653/v1/n18-3011', 's2:19170988', 'acl:N18-3011')
    """
    values = {name.lower(): value for name, value in dict_of(external).items()}  # the bulk datasets differ in case
    return distinct([SPELLINGS[kind](values.get(name.lower())) for name, kind in SEMANTIC_SCHOLAR_KINDS.items()])


def _generated_id(source: str, title: str, year: int | None) -> str:
    """Generate an id from title and year for an entry without any, the same in the next version of its file.

    >>> first, second = _generated_id("ris", "Maps of the Moon!", 2020), _generated_id("ris", "Maps", 2020)
    >>> _generated_id("ris", "Maps of the moon", 2020), first == second
    ('ris-c7933e5fb3', False)
    """
    return f"{source}-{hashlib.blake2b(f'{fold(title)}|{year}'.encode(), digest_size=5).hexdigest()}"


def with_id(paper: Paper, source: str) -> Paper:
    """Give the paper of a bibliography entry its identity: its own id, else the first of its other ids, else a generated one.

    >>> with_id(Paper("", "Maps of the moon", ids=("doi:10.1000/x", "pmid:7"), local_id=True), "ris").id
    'doi:10.1000/x'
    """
    if paper.id:
        return paper
    if paper.ids:
        return replace(paper, id=paper.ids[0], ids=paper.ids[1:], local_id=False)
    return replace(paper, id=_generated_id(source, paper.title, paper.year))


def distinct(ids: list[str | None]) -> tuple[str, ...]:
    """Return the ids that are not None, without repeats, in order.

    >>> distinct(["a", None, "b", "a"])
    ('a', 'b')
    """
    return tuple(dict.fromkeys(i for i in ids if i))


def only_doi_in(text: object) -> str | None:
    """Return the only DOI in the text of a reference, None where it has none or several.

    >>> only_doi_in("A. Turing, Mind 59 (1950). doi:10.1093/mind/LIX.236.433.")
    'doi:10.1093/mind/lix.236.433'
    >>> only_doi_in("(a) 10.1000/one; (b) 10.1000/two") is None
    True
    """
    dois = {doi_id(part) for part in _DOI_IN_TEXT.findall(text[:20_000])} if isinstance(text, str) else set()
    return dois.pop() if len(dois) == 1 else None


def only_arxiv_in(text: object) -> str | None:
    """Return the only arXiv id in the text of a reference, None where it has none or several.

    >>> only_arxiv_in("Phys. Rev. D 46 (1992) [arXiv:hep-ph/9204236 [hep-ph]]"), only_arxiv_in("arXiv e-print 2020")
    ('arxiv:hep-ph/9204236', None)
    """
    ids = {arxiv_id(part) for part in _ARXIV_IN_TEXT.findall(text[:20_000])} if isinstance(text, str) else set()
    return ids.pop() if len(ids) == 1 else None
