"""Readers of paper sources, one file per format, each with `recognizes(head)` and `read(source, tally)`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from citeweave.core.errors import InputError, choose
from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import StagedRecord

FORMATS = (
    *("s2ag", "s2orc", "s2orc_2020", "unarxive", "openalex", "s2_graph_api", "crossref", "arxiv", "pubmed", "jats"),
    *("grobid_tei", "acl_anthology", "bibtex", "ris", "csl_json", "specter", "scirepeval", "edges", "plain"),
)
"""Every format, in the order in which they are tried: the more specific first."""

SOURCES_OF = {
    "abstract": "Semantic Scholar, OpenAlex, arXiv, PubMed, JATS or the ACL Anthology",
    "author": "Semantic Scholar, OpenAlex, Crossref, PubMed, BibTeX or RIS",
    "citation": "Semantic Scholar, OpenAlex, Crossref, S2ORC, JATS or a table of edges",
    "context": "S2ORC, unarXive, JATS, GROBID, Semantic Scholar citations, or lines of contexts",
    "field": "Semantic Scholar, OpenAlex or arXiv",
    "venue": "Semantic Scholar, OpenAlex, Crossref, PubMed, the ACL Anthology, BibTeX or RIS",
}
"""Kind of data -> sources to import that have it, for messages about a corpus without it."""


class Reader(NamedTuple):
    """The two functions of a format."""

    recognizes: Callable[[FileHead], bool]
    """Returns whether a file has this format, judged by its name and beginning."""

    read: Callable[[Source, Tally], Iterator[StagedRecord]]
    """Yields the records of a file; what is rejected or repaired is counted in the tally."""


def reader_of(name: str) -> Reader:
    """Return the reader of a format."""
    module = importlib.import_module(f"{__name__}.{choose(name, FORMATS, '--format')}")
    return Reader(module.recognizes, module.read)


def guess_format(source: Source) -> str | None:
    """Return the first format whose reader recognizes the beginning of a file, None where none does."""
    head = source.head()
    if not head.data.strip():
        raise InputError(f"{source.path} is empty; leave it out or get it again")
    return next((name for name in FORMATS if reader_of(name).recognizes(head)), None)
