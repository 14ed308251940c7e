"""Names of authors that stand in a plain text, and how sure it is that they are meant as names.

    >>> known = AuthorNames(["Jacob Devlin", "Steve Young", "Yoshua Bengio"])
    >>> papers = {"bengio": 4, "young": 9, "bert": 80}
    >>> def named(text):
    ...     found = find_authors(text, known, lambda word: papers.get(word, 0), lambda numbers: 5 * len(numbers))
    ...     return found and (found.names, found.rest, found.year, found.is_sure)
    >>> named("devlin bert"), named("papers by Bengio, Y. (2015)"), named("bert")
    ((('devlin',), 'bert', None, True), (('Bengio, Y.',), '', 2015, True), None)
    >>> named("young children"), named("Steve Young")
    ((('young',), 'children', None, False), (('Steve Young',), '', None, True))

A word is surely a name where it is somebody's last name, no ordinary English word, and in fewer titles and abstracts than
papers are by people of that name. Full names are surely names unless all of their words are ordinary. Words such as "he",
"can" and "an", last names of many, are never names by themselves; nor are short words in capitals, such as LU. Knows no
index: `look_up.py` gives the names and how many papers have a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from citeweave.search.author_names import PARTICLES, AuthorNames, name_words

MAX_WORDS = 20
"""Longest text in which names are looked for, in words."""

_MAX_NAME = 5
"""Words of a name."""

_MAX_ACRONYM = 4

_NEVER = frozenset(
    re.findall(
        r"\w+",
        "a about after all also am an and any are as at be been between both but by can could did do does each for from had "
        "has have he her here his how i if in into is it its let like many may me might more most much must my need no not of "
        "on one only or other our out over same she should since so some such than that the their them then there these they "
        "this to too two under up us use used using very via was way we were what when where which while who why will with "
        "would yet you your",
    )
)
_ORDINARY = frozenset(
    re.findall(
        r"\w+",
        "baker ball banks bell berry best bird bishop black bond bright brown bush carpenter case chance chase church cook cross "
        "day drive field fish fisher flowers ford forest fox frost gates glass gold good grant gray green grey hall hill holder "
        "hope house hunt hunter joy key king knight lamb land lane law light little long love marsh major miller mills moon "
        "moss noble north page park parks penny pepper pool pope post power price rain ray read reed rich rivers rose root "
        "salt self sharp short silver singer small snow south star stark steel stern stone street strong summer sun swift "
        "wall ward waters wells west white wild winter wise wolf wood woods worth young",
    )
)
_AROUND_NAMES = frozenset(
    re.findall(
        r"\w+",
        "all and article articles author authors by from newest of paper papers publications recent the with work works",
    )
)
"""Words beside a name that say nothing more than that it is one."""

_TOKEN = re.compile(r"[^\W\d_][\w'’.\-]*")
_YEAR = re.compile(r"\(?\b(1[89]\d\d|20\d\d)[a-z]?\b\)?")
_ET_AL = re.compile(r"\bet\s+al\b\.?", re.IGNORECASE)
_BY = re.compile(r"(?:\b(?:papers?|work|works|articles?|publications)\s+)?\bby\s*$", re.IGNORECASE)
_BETWEEN = re.compile(r",?\s*")


class AuthorsInText(NamedTuple):
    """Authors whom a text names, and what else it says."""

    names: tuple[str, ...]
    """As the text has them."""

    numbers: list[list[int]]
    """For each name the numbers of the known names that it may mean."""

    rest: str
    year: int | None
    """A year beside the names, where there is nothing else."""

    is_sure: bool


class _Name(NamedTuple):
    start: int
    end: int
    numbers: list[int]
    is_sure: bool


def find_authors(
    text: str, known: AuthorNames, papers_with: Callable[[str], int], papers_by: Callable[[Sequence[int]], int]
) -> AuthorsInText | None:
    """Find names of authors in a plain text; None where there are none.

    `papers_with(word)` is the number of papers with a word in title or abstract, `papers_by(numbers)` the number of those
    by people with one of the known names.
    """
    tokens = [match for match in _TOKEN.finditer(text) if match[0].lower() not in ("et", "al", "al.")]
    if not tokens or len(tokens) > MAX_WORDS:
        return None
    names, at = list[_Name](), 0
    while at < len(tokens):
        name = _name_at(text, tokens[at:], known, papers_with, papers_by)
        if name is not None:
            names.append(name)
        at += sum(1 for token in tokens[at:] if token.start() < name.end) if name is not None else 1
    if not names:
        return None
    sure = [name for name in names if name.is_sure] or names
    rest, end = "", 0
    for name in sure:
        rest, end = f"{rest} {_BY.sub('', text[end : name.start])}", name.end
    rest = _ET_AL.sub(" ", f"{rest} {text[end:]}")
    without_year = _YEAR.sub(" ", rest)
    year = _YEAR.search(rest)
    if all(word.lower() in _AROUND_NAMES for word in re.findall(r"\w+", without_year)):
        rest = ""
    return AuthorsInText(
        tuple(text[name.start : name.end].strip(" ,") for name in sure),
        [name.numbers for name in sure],
        " ".join(rest.split()).strip(" ,;"),
        int(year[1]) if year and not rest else None,
        sure[0].is_sure,
    )


def _name_at(
    text: str,
    tokens: Sequence[re.Match[str]],
    known: AuthorNames,
    papers_with: Callable[[str], int],
    papers_by: Callable[[Sequence[int]], int],
) -> _Name | None:
    """Return the longest name that begins with the first of some words of a text; None where none does."""
    for length in range(min(_MAX_NAME, len(tokens)), 0, -1):
        window = tokens[:length]
        gaps = pairwise(window)
        if not all(_BETWEEN.fullmatch(text, one.end(), other.start()) for one, other in gaps):
            continue
        start, end = window[0].start(), window[-1].end()
        written = text[start:end]
        numbers = _meant(written, window, known, is_all=written == text.strip())
        if not numbers:
            continue
        words = [word for word in name_words(written) if len(word) > 1 and word not in PARTICLES]
        by = papers_by(numbers)
        rare = [word for word in words if word not in _ORDINARY and papers_with(word) <= by]
        return _Name(start, end, numbers, bool(rare))
    return None


def _meant(written: str, window: Sequence[re.Match[str]], known: AuthorNames, *, is_all: bool) -> list[int]:
    """Return the numbers of the known names that some words of a text may mean, none where they do not look like a name."""
    words = name_words(written)
    doubtful = [
        token[0] for token in window if token[0].lower() in _NEVER - PARTICLES and len(token[0].rstrip(".")) > 1
    ]
    if not words or any(len(window) == 1 or not (each[0].isupper() or is_all) for each in doubtful):
        return []
    short = [token[0] for token in window if len(token[0].rstrip(".")) == 1]
    if any(not (each[0].isupper() or each.endswith(".") or is_all) for each in short):
        return []
    if len(words) == 1:
        acronym = written.isupper() and 1 < len(written) <= _MAX_ACRONYM
        return [] if len(words[0]) < 2 or acronym or words[0] in _NEVER else known.with_family(words)
    return known.with_family(words)
