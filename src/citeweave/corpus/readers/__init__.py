"""Readers: one file a source, each with `recognizes(head)` and `read(source, tally)`."""

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
"""Every format, in the order in which they are tried: the more particular first."""


class Reader(Protocol):
    """What a module of this room offers."""

    def recognizes(self, head: FileHead) -> bool: ...

    def read(self, source: Source, tally: Tally) -> Iterator[StagedRecord]: ...


def reader_of(name: str) -> Reader:
    """The reader of a format."""
    return cast(Reader, importlib.import_module(f"{__name__}.{choose(name, FORMATS, '--format')}"))


def guess_format(source: Source) -> str | None:
    """The first format whose reader recognizes the beginning of the file."""
    head = source.head()
    if not head.data.strip():
        raise InputError(f"{source.path} is empty; leave it out or get it again")
    return next((name for name in FORMATS if reader_of(name).recognizes(head)), None)
