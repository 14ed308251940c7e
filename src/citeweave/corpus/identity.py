"""When two records are the same paper: ids in one spelling, and a key made of title and year.

The rule, in full:

1. Two records are the same paper if they share an id: a DOI, an arXiv, PubMed, PMC, ACL, DBLP or MAG
   id, a Semantic Scholar corpus id or paper hash, an OpenAlex id, or the source's own id. The key of
   a BibTeX, RIS or CSL entry identifies nothing outside its file and does not count; only an update
   takes it for the same paper in the newer version of the file, unless ids of one kind differ.
2. Two records are also the same paper if they share `title_key` (normalized title and year), unless
   something says they differ: two different ids of one kind (two DOIs, two arXiv ids, ...), or two
   ids of their own in the same source. One such conflict leaves the whole group of that title apart.
3. Of the records of one paper the one with an abstract wins, then the one its source changed last,
   then the one read last. The winner's fields hold; what it leaves empty is filled from the others in
   that order. Every id of every record goes on leading to the paper.

Does not read files or merge columns; see `merging.py`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from citeweave.corpus.paper import Paper
from citeweave.corpus.plain_text import fold

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
"""What is longer is no title, and folding it may take thirty times its memory."""


def doi_id(value: object) -> str | None:
    """A DOI in one spelling. DataCite's DOIs of arXiv papers are arXiv ids in disguise.

    >>> doi_id("https://doi.org/10.7717/PeerJ.4375"), doi_id("10.48550/arXiv.1706.03762")
    ('doi:10.7717/peerj.4375', 'arxiv:1706.03762')
    >>> doi_id("n/a") is None
    True
    """
    found = _DOI.search(value[:2000]) if isinstance(value, str) else None
    if not found or not found.group().isprintable():
        return None
    doi = found.group().rstrip(".,;)}]>\"'").lower()
    if doi.startswith("10.48550/arxiv."):
        return arxiv_id(doi.removeprefix("10.48550/arxiv."))
    return f"doi:{doi}"


def arxiv_id(value: object) -> str | None:
    """An arXiv id without its version: old ids keep their archive.

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
    """An id that is a number at its source, given as a number or as text.

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
    """
    >>> pmc_id("PMC1234"), pmc_id("1234")
    ('pmcid:1234', 'pmcid:1234')
    """
    return number_id("pmcid", value.strip().upper().removeprefix("PMC") if isinstance(value, str) else value)


def openalex_id(value: object) -> str | None:
    """
    >>> openalex_id("https://openalex.org/W2741809807"), openalex_id("W1"), openalex_id("A1")
    ('openalex:W2741809807', 'openalex:W1', None)
    """
    name = value.strip().rsplit("/", 1)[-1].upper() if isinstance(value, str) else ""
    return f"openalex:{name}" if name[:1] == "W" and name[1:].isascii() and name[1:].isdigit() else None


def sha_id(value: object) -> str | None:
    """Semantic Scholar's 40-digit paper hash.

    >>> sha_id("894BE9B4ea46a5c422e81ef3c241072d4c73fdc0")
    's2sha:894be9b4ea46a5c422e81ef3c241072d4c73fdc0'
    """
    text = value.strip().lower() if isinstance(value, str) else ""
    return f"s2sha:{text}" if _SHA.fullmatch(text) else None


def text_id(prefix: str, value: object) -> str | None:
    """Any other id that is a short text without blanks, such as ACL's or DBLP's.

    >>> text_id("acl", "2020.acl-main.447"), text_id("acl", ""), text_id("acl", "two words")
    ('acl:2020.acl-main.447', None, None)
    """
    text = value.strip() if isinstance(value, str) else ""
    # control signs and lone surrogates are not printable and could not be written to a file
    return f"{prefix}:{text}" if 0 < len(text) < 500 and text.isprintable() and " " not in text else None


def title_key(title: str, year: int | None) -> str | None:
    """What two records of one paper share when they share no id; None for titles too short or too long to trust.

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


def semantic_scholar_ids(external: object) -> tuple[str, ...]:
    """The prefixed ids in an `externalids` / `externalIds` object of Semantic Scholar.

    >>> semantic_scholar_ids({"DOI": "10.18653/V1/N18-3011", "CorpusId": 19170988, "ACL": "N18-3011", "MAG": None})
    ('doi:10.18653/v1/n18-3011', 's2:19170988', 'acl:N18-3011')
    """
    if not isinstance(external, dict):
        return ()
    return distinct([spell(external[key]) for key, spell in _SEMANTIC_SCHOLAR.items() if external.get(key) is not None])


def made_id(source: str, title: str, year: int | None) -> str:
    """A name for an entry that has none, made of what it says: the same entry has it in the next version of its file.

    >>> made_id("ris", "Maps of the moon", 2020), made_id("ris", "Maps of the Moon!", 2020) == made_id("ris", "Maps", 2020)
    ('ris-c7933e5fb3', False)
    """
    return f"{source}-{hashlib.blake2b(f'{fold(title)}|{year}'.encode(), digest_size=5).hexdigest()}"


def named(paper: Paper, source: str) -> Paper:
    """The paper itself where its entry names it; else called by an id it has, or by what it says.

    >>> named(Paper("", "Maps of the moon", ids=("doi:10.1000/x", "pmid:7"), local_id=True), "ris").id
    'doi:10.1000/x'
    """
    if paper.id:
        return paper
    if paper.ids:
        return replace(paper, id=paper.ids[0], ids=paper.ids[1:], local_id=False)
    return replace(paper, id=made_id(source, paper.title, paper.year))


_SEMANTIC_SCHOLAR: dict[str, Callable[[object], str | None]] = {
    "DOI": doi_id,
    "ArXiv": arxiv_id,
    "CorpusId": partial(number_id, "s2"),
    "PubMed": partial(number_id, "pmid"),
    "PubMedCentral": pmc_id,
    "ACL": partial(text_id, "acl"),
    "DBLP": partial(text_id, "dblp"),
    "MAG": partial(number_id, "mag"),
}


def distinct(ids: list[str | None]) -> tuple[str, ...]:
    """The ids that are there, first occurrence kept.

    >>> distinct(["a", None, "b", "a"])
    ('a', 'b')
    """
    return tuple(dict.fromkeys(i for i in ids if i))


def only_doi_in(text: object) -> str | None:
    """The DOI in a reference's text, None where there is none or where two of them leave it open which is meant.

    >>> only_doi_in("A. Turing, Mind 59 (1950). doi:10.1093/mind/LIX.236.433.")
    'doi:10.1093/mind/lix.236.433'
    >>> only_doi_in("(a) 10.1000/one; (b) 10.1000/two") is None
    True
    """
    found = {doi_id(part) for part in _DOI_IN_TEXT.findall(text[:20_000])} if isinstance(text, str) else set()
    return found.pop() if len(found) == 1 else None


def only_arxiv_in(text: object) -> str | None:
    """The arXiv id in a reference's text, None where there is none or more than one.

    >>> only_arxiv_in("Phys. Rev. D 46 (1992) [arXiv:hep-ph/9204236 [hep-ph]]"), only_arxiv_in("arXiv e-print 2020")
    ('arxiv:hep-ph/9204236', None)
    """
    found = {arxiv_id(part) for part in _ARXIV_IN_TEXT.findall(text[:20_000])} if isinstance(text, str) else set()
    return found.pop() if len(found) == 1 else None
