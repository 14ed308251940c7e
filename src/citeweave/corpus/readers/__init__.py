"""Readers of paper sources, one file per format, each with `recognizes(head)` and `read(source, tally)`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Protocol, cast

from citeweave.core.errors import InputError, choose
from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import StagedRecord

FORMATS = (
    "s2ag",
    "s2orc",
    "s2orc_2020",
    "unarxive",
    "openalex",
    "s2_graph_api",
    "crossref",
    "arxiv",
    "pubmed",
    "jats",
    "grobid_tei",
    "acl_anthology",
    "bibtex",
    "ris",
    "csl_json",
    "specter",
    "scirepeval",
    "edges",
    "plain",
)
"""Every format, in the order in which they are tried: the more specific first."""


class Reader(Protocol):
    """What every reader module offers: recognizing its format, and reading a file of it."""

    def recognizes(self, head: FileHead) -> bool:
        """Return whether a file has this format, judged by its name and beginning."""
        ...

    def read(self, source: Source, tally: Tally) -> Iterator[StagedRecord]:
        """Yield the records of a file; what is rejected or repaired is counted in `tally`."""
        ...


def reader_of(name: str) -> Reader:
    """Return the reader module of a format."""
    return cast(Reader, importlib.import_module(f"{__name__}.{choose(name, FORMATS, '--format')}"))


def guess_format(source: Source) -> str | None:
    """Return the first format whose reader recognizes the beginning of a file, None where none does."""
    head = source.head()
    if not head.data.strip():
        raise InputError(f"{source.path} is empty; leave it out or get it again")
    return next((name for name in FORMATS if reader_of(name).recognizes(head)), None)
