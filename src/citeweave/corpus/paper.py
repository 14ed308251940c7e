"""What a literature is made of: papers, citations, citing sentences.

These are the records that readers yield and that a person looks at. A corpus of millions does not
hold them as objects: `corpus.py` keeps columns and makes a `Paper` only for the row that is asked for.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray


class Intent(enum.IntFlag):
    """Why a paper is cited. A citation can carry several intents; 0 means unknown."""

    UNKNOWN = 0
    BACKGROUND = 1
    METHOD = 2
    RESULT = 4
    MOTIVATION = 8
    USES = 16
    EXTENDS = 32
    COMPARES = 64
    FUTURE = 128


_INTENT_WORDS = {
    "background": Intent.BACKGROUND,
    "method": Intent.METHOD,
    "methodology": Intent.METHOD,
    "result": Intent.RESULT,
    "results": Intent.RESULT,
    "resultcomparison": Intent.RESULT,
    "motivation": Intent.MOTIVATION,
    "uses": Intent.USES,
    "extends": Intent.EXTENDS,
    "extension": Intent.EXTENDS,
    "compareorcontrast": Intent.COMPARES,
    "comparison": Intent.COMPARES,
    "future": Intent.FUTURE,
    "futurework": Intent.FUTURE,
}


def parse_intents(value: object) -> Intent:
    """Read intents in any of the field's spellings; what is not known is left out.

    >>> parse_intents(["methodology", "background"])
    <Intent.BACKGROUND|METHOD: 3>
    >>> parse_intents([["result"], None])
    <Intent.RESULT: 4>
    >>> parse_intents(None)
    <Intent.UNKNOWN: 0>
    """
    if isinstance(value, str):
        return _INTENT_WORDS.get(value.replace("_", "").replace(" ", "").lower(), Intent.UNKNOWN)
    intents = Intent.UNKNOWN
    if isinstance(value, list | tuple):
        for item in value:
            # one level of nesting: recent releases give a list of intents for every context
            words = item if isinstance(item, list | tuple) else [item]
            for word in words:
                if isinstance(word, str):
                    intents |= parse_intents(word)
    return intents


@dataclass(slots=True)
class Paper:
    """One record about one paper, as a source gives it.

    Several records may describe the same paper; `identity.py` says when, and which one wins.
    """

    id: str
    """The id by which the paper is known: `s2:1234`, `doi:10.1/x`, or whatever the source uses."""

    title: str = ""
    abstract: str = ""
    year: int | None = None
    venue: str = ""
    authors: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    """Fields of study, topics or subjects, most important first."""

    ids: tuple[str, ...] = ()
    """Other ids of the same paper, prefixed: `doi:`, `arxiv:`, `pmid:`, `s2:`, `openalex:`, ..."""

    citation_count: int | None = None
    """How often the whole literature cites it, where the source says so."""

    updated: int = 0
    """Day of the record's last change at its source, as YYYYMMDD; 0 where the source does not say."""

    extra: dict[str, object] = field(default_factory=dict)
    """Whatever else the source knows, as plain JSON values: labels, flags, keywords."""

    local_id: bool = False
    """True where `id` is only a name inside one file (a BibTeX key): it identifies nothing elsewhere."""

    stub: bool = False
    """True where the paper is known only because another one lists it as a reference."""


@dataclass(slots=True)
class Citation:
    """One paper cites another. The ids are any that the papers are known by."""

    citing: str
    cited: str
    intents: Intent = Intent.UNKNOWN
    strength: float = 1.0
    """How strong the link is, such as the number of mentions in the text."""

    influential: bool = False


@dataclass(slots=True)
class Context:
    """One citing sentence (or passage), with every paper it cites."""

    citing: str
    text: str
    cited: tuple[str, ...]
    section: str = ""
    intents: Intent = Intent.UNKNOWN
    extra: dict[str, object] = field(default_factory=dict)


Record: TypeAlias = Paper | Citation | Context


@dataclass(frozen=True, slots=True)
class CitationBlock:
    """Many citations at once, for readers that never make objects of them. Arrays of one length."""

    citing: NDArray[np.uint64]
    cited: NDArray[np.uint64]
    intents: NDArray[np.uint8]
    strength: NDArray[np.float32]
    influential: NDArray[np.bool_]
    ids: Callable[[], tuple[list[str], list[str]]]
    """Makes the citing and cited ids as text; only called where papers outside are kept."""


@dataclass(frozen=True, slots=True)
class ContextBlock:
    """Many contexts at once. `texts` is (lengths, bytes); `cited` is ragged by `cited_counts`."""

    citing: NDArray[np.uint64]
    texts: tuple[NDArray[np.int64], NDArray[np.uint8]]
    cited_counts: NDArray[np.int64]
    cited: NDArray[np.uint64]
    intents: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class NumberedCitations:
    """Many citations between ids that are a prefix and a number, such as `s2:42`. Arrays of one length."""

    prefix: str
    citing: NDArray[np.integer[Any]]
    """Numbers from 0 to 2**63 - 1."""

    cited: NDArray[np.integer[Any]]
    intents: NDArray[np.uint8] | None = None
    """None: unknown for all; in the next two, 1 and False for all."""

    strength: NDArray[np.float32] | None = None
    influential: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class NumberedPapers:
    """Many papers of which nothing but a number, and perhaps a year, is known."""

    prefix: str
    numbers: NDArray[np.int64]
    years: NDArray[np.int16] | None = None
    """0 where it is not known."""

    stub: bool = False


StagedRecord: TypeAlias = Record | CitationBlock | ContextBlock | NumberedCitations | NumberedPapers
