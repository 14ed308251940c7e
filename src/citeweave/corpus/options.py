"""Options of importing, synthetic literature, derived texts and leakage audits.

    [texts]
    of = "contexts"          # citing sentences; those that cite the same set of papers are paraphrases
    max_words = 60

    >>> from citeweave.core.options import parse_table
    >>> parse_table(DerivedTexts, {"of": "cloze", "per_paper": 1}, "texts").per_paper
    1

Declares and checks values; imports nothing heavy, so that `--help` is fast.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

from citeweave.core.errors import UserError
from citeweave.core.options import SIZE, Flag, Old, OneOf, Range, check

Share = Annotated[float, Range(0, 1)]
SAME_TITLE = ("across", "always", "never")
OUTSIDE = ("drop", "keep")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Options of `citeweave import`. Workers, memory and strict never change the resulting corpus."""

    format: str | None = None
    """Format of the input files, such as bibtex (see docs/corpus.md); detected by default."""

    outside: Annotated[str, OneOf(*OUTSIDE)] = "drop"
    """What to do with cited papers that are not among the inputs: drop, or keep (as papers, mostly without text)."""

    same_title: Annotated[str, OneOf(*SAME_TITLE)] = "across"
    """When to merge records with the same title and year: across (only records from different files), always, or never."""

    memory: Annotated[int, SIZE, Range(2**20)] = 256 * 2**20
    """Memory limit for each sorting step, such as 256MB or 2GB."""

    workers: Annotated[int, Range(0)] = 0
    """Number of processes; 0 = one per core."""

    strict: bool = False
    """Fail if an input folder contains files in an unrecognized format; by default they are counted and skipped."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class SyntheticOptions:
    """Size, seed and proportions of the synthetic literature."""

    papers: Annotated[int, Range(1, 100_000_000)] = 2000
    """Number of papers to generate."""

    seed: int = 0
    """Random seed."""

    references: Annotated[float, Range(0, 100)] = 10.0
    """Mean number of references per paper."""

    sharers: Annotated[int, Range(2)] = 40
    """Number of papers that share a problem, method or finding."""

    noise: Share = 0.05
    """Fraction of citations drawn at random."""

    contexts: Share = 0.75
    """Fraction of mentions with a citing sentence."""

    cocited: Share = 0.35
    """Probability that a mention shares its sentence with the previous one."""

    bare: Annotated[float, Range(0, 1), Flag("--without-abstract")] = 0.03
    """Fraction of papers without an abstract."""

    first_year: Annotated[int, Range(1000, 2100)] = 1990
    """Year of the earliest papers."""

    last_year: Annotated[int, Range(1000, 2100)] = 2024
    """Year of the latest papers."""

    def __post_init__(self) -> None:
        check(self)
        if self.first_year > self.last_year:
            raise UserError(f"--first-year {self.first_year} and --last-year {self.last_year} must be in order")

    @property
    def fields(self) -> int:
        """Return the number of fields: one for every 500 papers, between 2 and 12."""
        return min(max(round(self.papers / 500), 2), 12)

    @property
    def concepts(self) -> int:
        """Return the number of problems per field, which is also that of methods and of findings."""
        return max(2, round(self.papers / self.sharers / self.fields))


PAPERS, CONTEXTS, CLOZE, TITLES = "papers", "contexts", "cloze", "titles"
KINDS = (PAPERS, CONTEXTS, CLOZE, TITLES)

MAX_RELATED = 1000
"""The signals of a graph ignore longer reference lists: a hub that cites more papers would relate nothing."""

_ONLY_FOR = {
    **dict.fromkeys(("min_papers", "max_papers", "brackets", "marks", "max_contexts", "shared"), CONTEXTS),
    **dict.fromkeys(("per_paper", "min_sentences", "removed"), CLOZE),
}
"""Keys of the `[texts]` table that apply to one kind of derived texts only."""


@dataclass(frozen=True, slots=True)
class DerivedTexts:
    """Which texts are derived from a corpus, and how they are filtered: the `[texts]` table of a recipe."""

    of: Annotated[str, OneOf(*KINDS)] = PAPERS
    """papers (derive nothing), contexts, cloze or titles."""

    seed: int = 0
    """Random seed."""

    min_words: Annotated[int, Range(1), Old("least_words")] = 5
    """Sentences or titles with fewer words are left out."""

    max_words: Annotated[int, Old("most_words")] = 60
    """Those with more words are left out."""

    min_papers: Annotated[int, Range(2), Old("least_papers")] = 2
    """contexts: minimum number of papers that a sentence cites."""

    max_papers: Annotated[int, Range(0), Old("most_papers")] = 0
    """contexts: maximum number; 0 = no bound."""

    brackets: bool = True
    """contexts: keep only sentences with ( ) or [ ]; the others have lost their citation marks."""

    marks: bool = True
    """contexts: false removes citation marks, which give paraphrases away."""

    max_contexts: Annotated[int, Range(2, MAX_RELATED), Old("most_contexts")] = 200
    """contexts: maximum number per set, drawn at random."""

    shared: Annotated[int, Range(0, MAX_RELATED)] = 200
    """contexts: a cited paper relates its contexts only if at most this many cite it."""

    per_paper: Annotated[int, Range(1)] = 2
    """cloze: maximum number of sentences per abstract."""

    min_sentences: Annotated[int, Range(2), Old("least_sentences")] = 3
    """cloze: abstracts with fewer are left out."""

    removed: Share = 0.9
    """cloze: fraction of rests without their sentence; the others are complete abstracts."""

    def __post_init__(self) -> None:
        check(self, "texts")
        if self.max_words < self.min_words or 0 < self.max_papers < self.min_papers:
            raise UserError(
                f"texts: min_words and max_words are {self.min_words} and {self.max_words}, min_papers and "
                f"max_papers {self.min_papers} and {self.max_papers}; the upper bound must not be below the lower one"
            )
        for name, kind in _ONLY_FOR.items():
            if kind != self.of and getattr(self, name) != DerivedTexts.__dataclass_fields__[name].default:
                raise UserError(f"texts.{name} is for texts of {kind}, and texts.of is {self.of!r}; leave it out")

    def as_recipe(self) -> dict[str, Any]:
        """Return the options that apply to this kind of derived texts, for the recipe of the artifact."""
        return {
            name: value for name, value in dataclasses.asdict(self).items() if _ONLY_FOR.get(name, self.of) == self.of
        }


@dataclass(frozen=True, slots=True)
class LeakageOptions:
    """Options of a leakage audit: when two papers count as the same."""

    same_id_space: Annotated[bool, Flag("--same-ids")] = False
    """Ids without a prefix mean the same paper in both collections."""

    near_duplicates: Annotated[bool, Flag("--near-duplicates/--exact")] = True
    """Compare texts too, or only ids and titles."""

    containment: Annotated[float, Range(above=0, max=1)] = 0.5
    """Fraction of the shorter text's word triples that must be shared (rule 4)."""

    title_similarity: Annotated[float, Range(above=0, max=1)] = 0.6
    """Fraction of both titles' word pairs that must be shared (rule 5)."""

    papers_per_pass: Annotated[int, Range(1, 1_000_000)] = 50_000
    """Benchmark papers in memory at a time, 12 kB each at the peak; the corpus is read once per pass."""

    def __post_init__(self) -> None:
        check(self)
