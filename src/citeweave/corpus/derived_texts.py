"""Which texts are derived from a corpus, and how they are chosen: the `[texts]` table of a recipe.

    [texts]
    of = "contexts"          # citing sentences; those that cite the same set of papers are paraphrases
    most_words = 60

    >>> texts_options({"of": "cloze", "per_paper": 1}).per_paper
    1
    >>> texts_options({}).of
    'papers'

Reads and checks; derives nothing.

Records of a derived corpus: texts come as papers, what relates them as textless hubs and citations.

>>> [paper.id for paper in hubs("set", 2)]
['set:0', 'set:1']

Which sentences are texts: by their number of words, with a citation's brackets, and each only once.

>>> word_reason("We agree.", 5, 80)
'under 5 words'
>>> first, second = repeat_keys(["As in [3] we walk.", "As in [14] we walk."])
>>> bool(first == second)
True

Papers together with their titles and abstracts as texts of their own: a title finds its abstract.

    paper 7: "Walks on graphs" / "We walk on graphs. It is fast."       stays, with its citations
    title:7 = "Walks on graphs"        cites        abstract:7 = "We walk on graphs. It is fast."

So papers that cite nothing can be learned from too, and a short text learns to find the long one that it sums up. A
paper, its title and its abstract are cited by a textless hub, `paper:7`, and so are `cocited`: none is a negative of
another one. A title that an earlier paper has too, or of fewer words than asked, finds no abstract; nor does one that is
to be left out, such as a question of a benchmark. Citing sentences stay, so that papers cited close to each other are known.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK
from citeweave.core.errors import EmptyResultError, UserError, choose
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import Keys, hash_texts
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.paper import CitationBlock, Context, Intent, Paper, StagedRecord

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


# Records of a derived corpus: texts come as papers, what relates them as textless hubs and citations.

STEP = 1 << 20
"""Citations handed on at a time."""


@dataclass(frozen=True, slots=True)
class DerivedRecords:
    """What a corpus is built of, streaming, and what there is of it in numbers."""

    records: Iterable[StagedRecord]
    facts: dict[str, Any]


def hubs(kind: str, number: int) -> Iterator[Paper]:
    """Papers without text, known only by their citations: no text of a sample, in any pool that asks for text."""
    for each in range(number):
        yield Paper(f"{kind}:{each}", stub=True)


def cites(citing: Keys, cited: Keys) -> Iterator[CitationBlock]:
    """Citations by the keys of ids, both of shape (citations,)."""
    for start in range(0, len(citing), STEP):
        left, right = citing[start : start + STEP], cited[start : start + STEP]
        none = np.zeros(len(left), np.uint8)
        yield CitationBlock(left, right, none, np.ones(len(left), np.float32), none.astype(bool), lambda: ([], []))


# Which sentences are texts: by their number of words, with a citation's brackets, and each only once.

_BRACKETS = re.compile(r"\(.*?\)|\[.*?\]", re.DOTALL)
_DIGITS = re.compile(r"\d+")


def word_reason(text: str, least: int, most: int) -> str:
    """Why a sentence is no text, empty where it is one."""
    words = len(text.split())
    if words < least:
        return f"under {least} words"
    return f"over {most} words" if words > most else ""


def bracket_reason(text: str) -> str:
    """Why a sentence cites nobody: it has no brackets; empty where it has."""
    return "" if _BRACKETS.search(text) else "no brackets"


def repeat_keys(texts: list[str]) -> Keys:
    """Equal for sentences that differ in nothing but numbers and blanks: copies that cite with other numbers."""
    return hash_texts([" ".join(_DIGITS.sub("0", text).split()) for text in texts])


# Papers together with their titles and abstracts as texts of their own: a title finds its abstract.


def title_records(
    corpus: Corpus, options: DerivedTexts, *, untold: Sequence[str] = (), reporter: Reporter = QUIET
) -> DerivedRecords:
    """The derived corpus as records: papers, titles, abstracts, hubs, citations; `untold` are ids of papers without a title."""
    rejected: dict[str, int] = {}
    split = titled_rows(corpus, options, rejected, reporter=reporter)
    asked = np.isin(split, corpus.rows(list(untold)))  # (titles,)
    if asked.any():
        split, rejected["title: a question of a suite"] = split[~asked], int(asked.sum())
    facts = {"papers": len(corpus), "titles": len(split), "citations": len(corpus.citing), "rejected": rejected}
    return DerivedRecords(_title_records(corpus, split), facts)


def titled_rows(
    corpus: Corpus, options: DerivedTexts, rejected: dict[str, int], *, reporter: Reporter = QUIET
) -> NDArray[np.int64]:
    """Rows of the papers whose title finds their abstract, ascending."""
    both = np.flatnonzero((corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0))
    found, keys = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    with reporter.task("reading", len(both), "titles") as advance:
        for start in range(0, len(both), BLOCK):
            block = both[start : start + BLOCK]
            titles = corpus.titles.take(block)
            reasons = [word_reason(title, options.least_words, options.most_words) for title in titles]
            fits = np.array([not reason for reason in reasons], bool)
            for reason in filter(None, reasons):
                rejected[f"title: {reason}"] = rejected.get(f"title: {reason}", 0) + 1
            found.append(block[fits])
            keys.append(repeat_keys([title.lower() for title, fit in zip(titles, fits, strict=True) if fit]))
            advance(len(block))
    rows, key = np.concatenate(found), np.concatenate(keys)
    first = np.sort(np.unique(key, return_index=True)[1])
    if len(first) < len(rows):
        rejected["title: repeats another one"] = len(rows) - len(first)
    if len(both) < len(corpus):
        rejected["paper: no title or no abstract"] = len(corpus) - len(both)
    if not len(both):
        raise EmptyResultError(f"{corpus.folder} has no paper with a title and an abstract; import a source with both")
    if not len(first):
        told = "; ".join(f"{number:,} {reason}" for reason, number in rejected.items())
        raise EmptyResultError(f"no title of {corpus.folder} can be used ({told}); lower texts.least_words")
    return rows[first]


def _title_records(corpus: Corpus, split: NDArray[np.int64]) -> Iterator[StagedRecord]:
    for start in range(0, len(corpus), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(corpus)))
        columns = (column.take(rows) for column in (corpus.ids, corpus.titles, corpus.abstracts))
        for id, title, abstract in zip(*columns, strict=True):
            yield Paper(id, title=title, abstract=abstract)
    for start in range(0, len(corpus.citing), BLOCK):
        yield from cites(*(_keys(corpus, side[start : start + BLOCK]) for side in (corpus.citing, corpus.cited)))
    for start in range(0, len(split), BLOCK):
        yield from _split(corpus, split[start : start + BLOCK])
    yield from _citing_sentences(corpus)


def _split(corpus: Corpus, rows: NDArray[np.int64]) -> Iterator[StagedRecord]:
    """Titles and abstracts of some papers, and what relates them."""
    names = [str(row) for row in rows.tolist()]
    texts = (column.take(rows) for column in (corpus.ids, corpus.titles, corpus.abstracts))
    for name, id, title, abstract in zip(names, *texts, strict=True):
        yield Paper(f"title:{name}", abstract=title, extra={"paper": id})
        yield Paper(f"abstract:{name}", abstract=abstract, extra={"paper": id})
        yield Paper(f"paper:{name}", stub=True)
    title, abstract, hub = (hash_texts([f"{kind}:{name}" for name in names]) for kind in ("title", "abstract", "paper"))
    yield from cites(title, abstract)
    for side in (title, abstract, _keys(corpus, rows)):
        yield from cites(hub, side)


def _citing_sentences(corpus: Corpus) -> Iterator[Context]:
    """Those that papers of the corpus wrote about papers of the corpus."""
    table = corpus.contexts
    inside = np.flatnonzero((table.citing >= 0) & (np.diff(table.cited_offsets) > 0))  # (contexts,)
    for start in range(0, len(inside), BLOCK):
        numbers = inside[start : start + BLOCK]
        columns = (corpus.ids.take(table.citing[numbers]), table.texts.take(numbers), table.sections.take(numbers))
        for number, citing, text, section in zip(numbers.tolist(), *columns, strict=True):
            cited = tuple(corpus.ids.take(table.cited_rows(number)))
            yield Context(citing, text, cited, section, Intent(int(table.intents[number])))


def _keys(corpus: Corpus, rows: NDArray[np.integer]) -> NDArray[np.uint64]:
    return hash_texts(corpus.ids.take(rows))
