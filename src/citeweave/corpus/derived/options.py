"""Which texts are derived from a corpus, and how they are chosen: the `[texts]` table of a recipe.

    [texts]
    of = "contexts"          # citing sentences; those that cite the same set of papers are paraphrases
    most_words = 60

    >>> texts_options({"of": "cloze", "per_paper": 1}).per_paper
    1
    >>> texts_options({}).of
    'papers'

Reads and checks; derives nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from citeweave.errors import UserError, choose

PAPERS, CONTEXTS, CLOZE, TITLES = "papers", "contexts", "cloze", "titles"
KINDS = (PAPERS, CONTEXTS, CLOZE, TITLES)

_LONGEST = 1000
"""Longer reference lists do not count in the signals of a graph: a hub that cites more would relate nothing."""

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
"""Keys that mean something for one kind of texts only."""


@dataclass(frozen=True, slots=True)
class DerivedTexts:
    """Which texts, and which of them."""

    of: str = PAPERS
    """`papers` (nothing is derived), `contexts` (citing sentences), `cloze` (sentences and rests of abstracts) or
    `titles` (papers, and beside them their titles and abstracts alone)."""

    seed: int = 0
    """Of what is drawn."""

    least_words: int = 5
    most_words: int = 60
    """Sentences, or titles, with fewer or more words are left out, in contexts as ASPIRE's code does."""

    least_papers: int = 2
    most_papers: int = 0
    """contexts: papers that the sentence cites, those outside the corpus counted too; 0 = no upper bound."""

    brackets: bool = True
    """contexts: only sentences with ( ) or [ ]: others have lost their citation marks."""

    marks: bool = True
    """contexts: citation marks such as (Li et al., 2016) or [3] stay; false takes brackets with a digit away."""

    most_contexts: int = 200
    """contexts: so many of one set, drawn by the seed."""

    shared: int = 200
    """contexts: those that share a cited paper are relatives, if at most so many cite it; 0 = only those of one set."""

    per_paper: int = 2
    """cloze: sentences drawn of an abstract."""

    least_sentences: int = 3
    """cloze: abstracts with fewer are left out."""

    removed: float = 0.9
    """cloze: share of the rests that lack their sentence; the others are the whole abstract (Lee et al., 2019)."""

    def __post_init__(self) -> None:
        choose(self.of, KINDS, "texts.of")
        least = {"least_words": 1, "least_papers": 2, "most_contexts": 2, "per_paper": 1, "least_sentences": 2}
        for name, value in {**least, "most_papers": 0, "shared": 0}.items():
            if getattr(self, name) < value:
                raise UserError(f"texts.{name} is {getattr(self, name)}; it must be at least {value}")
        for name in ("most_contexts", "shared"):
            if getattr(self, name) > _LONGEST:
                raise UserError(f"texts.{name} is {getattr(self, name)}; it must be at most {_LONGEST}")
        if self.most_words < self.least_words or 0 < self.most_papers < self.least_papers:
            raise UserError(
                f"texts: least_words and most_words are {self.least_words} and {self.most_words}, least_papers and "
                f"most_papers {self.least_papers} and {self.most_papers}; the upper bound must not be the smaller"
            )
        if not 0 <= self.removed <= 1:
            raise UserError(f"texts.removed is {self.removed}; it must be between 0 and 1")

    def as_recipe(self) -> dict[str, Any]:
        """The values that count for this kind of texts."""
        return {
            name: value for name, value in dataclasses.asdict(self).items() if _ONLY_FOR.get(name, self.of) == self.of
        }


def texts_options(table: Mapping[str, Any]) -> DerivedTexts:
    """Read a `[texts]` table; an unknown key is refused with the nearest known one."""
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
