"""Options of a corpus of derived texts (the `[texts]` table of a recipe), and their records and filters.

    [texts]
    of = "contexts"          # citing sentences; those that cite the same set of papers are paraphrases
    most_words = 60

    >>> parse_texts_options({"of": "cloze", "per_paper": 1}).per_paper
    1
    >>> parse_texts_options({}).of
    'papers'

A derived text is written as a paper without a title. Texts are related by citations and by textless hubs:

    >>> [paper.id for paper in hub_papers("set", 2)]
    ['set:0', 'set:1']

Does not derive anything: `derive.py` does.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import numpy as np

from citeweave.core.errors import UserError, choose
from citeweave.core.hash_keys import Keys, hash_texts
from citeweave.corpus.paper import CitationBlock, Paper, StagedRecord

PAPERS, CONTEXTS, CLOZE, TITLES = "papers", "contexts", "cloze", "titles"
KINDS = (PAPERS, CONTEXTS, CLOZE, TITLES)

_LONGEST = 1000
"""The signals of a graph ignore longer reference lists: a hub that cites more papers would relate nothing."""

_ONLY_FOR = {
    "least_papers": CONTEXTS,
    "most_papers": CONTEXTS,
    "brackets": CONTEXTS,
    "marks": CONTEXTS,
    "most_contexts": CONTEXTS,
    "shared": CONTEXTS,
    "per_paper": CLOZE,
    "least_sentences": CLOZE,
    "removed": CLOZE,
}
"""Keys of the `[texts]` table that apply to one kind of derived texts only."""


@dataclass(frozen=True, slots=True)
class DerivedTexts:
    """Which texts are derived from a corpus, and how they are filtered: the `[texts]` table of a recipe."""

    of: str = PAPERS
    """`papers` (nothing is derived), `contexts` (citing sentences), `cloze` (sentences and rests of abstracts) or
    `titles` (papers, and beside them their titles and abstracts alone)."""

    seed: int = 0
    """Seed of the random draws."""

    least_words: int = 5
    most_words: int = 60
    """Sentences, or titles, with fewer or more words are left out, in contexts as ASPIRE's code does."""

    least_papers: int = 2
    most_papers: int = 0
    """contexts: number of papers that the sentence cites, including those outside the corpus; 0 = no upper bound."""

    brackets: bool = True
    """contexts: only sentences with ( ) or [ ]; sentences without have lost their citation marks."""

    marks: bool = True
    """contexts: keep citation marks such as (Li et al., 2016) or [3]; false removes brackets that contain a digit."""

    most_contexts: int = 200
    """contexts: maximum number of one set, drawn by the seed."""

    shared: int = 200
    """contexts: those that share a cited paper are relatives if at most this many cite it; 0 = only those of one set."""

    per_paper: int = 2
    """cloze: maximum number of sentences drawn from an abstract."""

    least_sentences: int = 3
    """cloze: abstracts with fewer sentences are left out."""

    removed: float = 0.9
    """cloze: share of the rests that lack their sentence; the others are the full abstract (Lee et al., 2019)."""

    def __post_init__(self) -> None:
        choose(self.of, KINDS, "texts.of")
        minimums = {"least_words": 1, "least_papers": 2, "most_contexts": 2, "per_paper": 1, "least_sentences": 2}
        for name, value in {**minimums, "most_papers": 0, "shared": 0}.items():
            if getattr(self, name) < value:
                raise UserError(f"texts.{name} is {getattr(self, name)}; it must be at least {value}")
        for name in ("most_contexts", "shared"):
            if getattr(self, name) > _LONGEST:
                raise UserError(f"texts.{name} is {getattr(self, name)}; it must be at most {_LONGEST}")
        if self.most_words < self.least_words or 0 < self.most_papers < self.least_papers:
            raise UserError(
                f"texts: least_words and most_words are {self.least_words} and {self.most_words}, least_papers and "
                f"most_papers {self.least_papers} and {self.most_papers}; the upper bound must not be below the lower one"
            )
        if not 0 <= self.removed <= 1:
            raise UserError(f"texts.removed is {self.removed}; it must be between 0 and 1")

    def as_recipe(self) -> dict[str, Any]:
        """Return the options that apply to this kind of derived texts, for the recipe of the artifact."""
        return {
            name: value for name, value in dataclasses.asdict(self).items() if _ONLY_FOR.get(name, self.of) == self.of
        }


def parse_texts_options(table: Mapping[str, Any]) -> DerivedTexts:
    """Parse and check the `[texts]` table of a recipe; the error for an unknown key suggests the nearest known one."""
    hints = get_type_hints(DerivedTexts)
    of = table.get("of", PAPERS)
    for key, value in table.items():
        choose(key, hints, "texts: key")
        kinds: tuple[type, ...] = (int, float) if hints[key] is float else (hints[key],)
        if not isinstance(value, kinds) or (isinstance(value, bool) and hints[key] is not bool):
            raise UserError(f"texts.{key} is {value!r}; it must be a {hints[key].__name__}")
        if _ONLY_FOR.get(key, of) != of:
            raise UserError(f"texts.{key} is for texts of {_ONLY_FOR[key]}, and texts.of is {of!r}; leave it out")
    return DerivedTexts(**table)


# --- records of a derived corpus -------------------------------------------------------------------

STEP = 1 << 20
"""Citations per block."""


@dataclass(frozen=True, slots=True)
class DerivedRecords:
    """The records of a derived corpus, streamed, and their counts for its manifest."""

    records: Iterable[StagedRecord]
    counts: dict[str, Any]


def hub_papers(kind: str, count: int) -> Iterator[Paper]:
    """Yield textless hubs of a derived corpus: papers known only by their citations, never drawn where text is needed."""
    for number in range(count):
        yield Paper(f"{kind}:{number}", stub=True)


def citation_blocks(citing: Keys, cited: Keys) -> Iterator[CitationBlock]:
    """Yield the citations between derived texts in blocks, from the keys of their ids, both (citations,)."""
    for start in range(0, len(citing), STEP):
        left, right = citing[start : start + STEP], cited[start : start + STEP]
        none = np.zeros(len(left), np.uint8)
        yield CitationBlock(left, right, none, np.ones(len(left), np.float32), none.astype(bool), lambda: ([], []))


# --- filters of texts ------------------------------------------------------------------------------

_BRACKETS = re.compile(r"\(.*?\)|\[.*?\]", re.DOTALL)
_DIGITS = re.compile(r"\d+")


def word_reason(text: str, min_words: int, max_words: int) -> str:
    """Filter of derived texts: why a sentence is rejected for its number of words, empty where it is accepted.

    >>> word_reason("We agree.", 5, 80)
    'under 5 words'
    """
    words = len(text.split())
    if words < min_words:
        return f"under {min_words} words"
    return f"over {max_words} words" if words > max_words else ""


def bracket_reason(text: str) -> str:
    """Return why a citing sentence is rejected for lacking citation brackets, empty where it has some."""
    return "" if _BRACKETS.search(text) else "no brackets"


def repeat_keys(texts: list[str]) -> Keys:
    """Filter of derived texts: keys that are equal for repeated sentences, which differ only in numbers and white space.

    >>> first, second = repeat_keys(["As in [3] we walk.", "As in [14] we walk."])
    >>> bool(first == second)
    True
    """
    return hash_texts([" ".join(_DIGITS.sub("0", text).split()) for text in texts])


def count_rejected(rejected: dict[str, int], reason: str, number: int) -> None:
    """Add to the number of texts that were rejected for this reason."""
    if number:
        rejected[reason] = rejected.get(reason, 0) + number


def list_rejected(rejected: dict[str, int]) -> str:
    """Return the reasons why derived texts were rejected as one line for an error message.

    >>> list_rejected({"under 5 words": 1200, "no brackets": 3})
    '1,200 under 5 words; 3 no brackets'
    """
    return "; ".join(f"{number:,} {reason}" for reason, number in rejected.items())
