"""A made-up literature of any size, with everything known about it: for the demo and for tests.

    options = Synthetic(papers=2000, seed=0)
    part = block(options, 1000, 1003)
    part.papers.ids         ["syn:001000", "syn:001001", "syn:001002"]
    part.papers.titles[1]   "Does it hold that little amount of interference means unpredictable cost, and what ..."
    part.citations.citing   [1000, 1000, 1000, ..., 1002]   rows, as `cited`, which are always earlier ones
    part.truth.method       [22, 14, 14]                    papers with equal numbers share the method

Every paper has a problem, a method and a finding, drawn nearly independently inside its field, and says each in
one of many wordings. It cites earlier papers: for the method those that share its method, as background those
that share its problem, for the result those that share its finding, and a few for no reason at all. So what
an aspect space should bring together is known, and words alone do not tell it.

A paper depends on the options and its row alone: not on the block, the order or the number of workers.
What is held for the whole literature is about ten small integers a paper; text is made block by block.
Does not write anything, and does not imitate any real paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.synthetic import narration
from citeweave.corpus.synthetic.narration import Facet
from citeweave.corpus.synthetic.planting import (
    ASPECTS,
    Ints,
    Mentions,
    Synthetic,
    concept_parts,
    draw,
    mentions,
    pick,
    plan,
)

__all__ = ["ASPECTS", "Block", "Facet", "Synthetic", "block", "blocks", "describe", "wordings"]


@dataclass(frozen=True)
class Papers:
    """n papers, one entry each."""

    ids: list[str]
    titles: list[str]
    abstracts: list[str]
    """Every sentence ends in a full stop and holds no other; empty for a paper that has only a title."""

    years: Ints  # (n,), never falls from one row to the next
    venues: list[str]
    authors: list[tuple[str, ...]]
    fields: list[tuple[str, str]]
    """The field and, inside it, the area: labels for classification."""


@dataclass(frozen=True)
class Citations:
    """m citations in the order of (citing, cited), each pair once."""

    citing: Ints  # (m,) rows
    cited: Ints  # (m,) rows, each smaller than its citing one
    intents: NDArray[np.uint8]  # (m,) bits of Intent
    strength: NDArray[np.float32]  # (m,) number of mentions
    noise: NDArray[np.bool_]  # (m,) truth: cited for no reason


@dataclass(frozen=True)
class Contexts:
    """c citing sentences, one entry each."""

    citing: Ints  # (c,) rows, never falling
    texts: list[str]
    """Has the mark [CIT] once for every cited paper."""

    cited: list[tuple[int, ...]]
    """One to three rows that are cited for the same reason."""

    sections: list[str]
    intents: NDArray[np.uint8]  # (c,) bits of Intent


@dataclass(frozen=True)
class Truth:
    """What was planted in n papers."""

    field: NDArray[np.int32]  # (n,) numbers of narration.FIELDS
    problem: NDArray[np.int32]  # (n,) equal numbers share the problem
    method: NDArray[np.int32]  # (n,)
    finding: NDArray[np.int32]  # (n,)
    facets: list[tuple[int, ...]]
    """The Facet of every sentence of every abstract."""


@dataclass(frozen=True)
class Block:
    """The papers of the rows `start` to `stop` (not included), what they cite, and the truth about them."""

    start: int
    stop: int
    papers: Papers
    citations: Citations
    contexts: Contexts
    truth: Truth


def blocks(options: Synthetic, size: int = 10_000) -> Iterator[Block]:
    """The whole literature, `size` papers at a time."""
    for start in range(0, options.papers, size):
        yield block(options, start, min(start + size, options.papers))


def describe(options: Synthetic) -> dict[str, object]:
    """What a manifest should say: that it is made up, how, and how many concepts there are."""
    return {
        "made_up": True,
        "note": "A synthetic literature: no paper, author, venue, citation or finding in it is real.",
        "options": asdict(options),
        "fields": options.fields,
        "concepts": {facet.name.lower(): options.fields * options.concepts for facet in ASPECTS},
    }


def wordings(options: Synthetic, facet: Facet, code: int) -> list[str]:
    """Every way in which the literature words one of its concepts, the plainest first."""
    parts = concept_parts(options, facet, np.array([code]))[0].tolist()
    return list(dict.fromkeys(narration.concept(facet, parts, voice) for voice in narration.VOICES))


def block(options: Synthetic, start: int, stop: int) -> Block:
    """The papers of rows `start` to `stop`; see `Block`.

    >>> part = block(Synthetic(papers=100), 98, 100)
    >>> part.papers.ids, bool((part.citations.cited < part.citations.citing).all())
    (['syn:000098', 'syn:000099'], True)
    """
    if not 0 <= start <= stop <= options.papers:
        raise ValueError(f"rows {start} to {stop} are not within a literature of {options.papers} papers")
    rows = np.arange(start, stop)
    whole = plan(options)
    field, codes = whole.field[start:stop], {facet: whole.code[facet][start:stop] for facet in ASPECTS}
    titles, abstracts, facets = _texts(options, rows, field, codes)
    width = max(6, len(str(options.papers - 1)))
    span = options.last_year - options.first_year + 1
    venues = pick(options, "venue", rows, len(narration.VENUES[0])).tolist()
    areas = concept_parts(options, Facet.PROBLEM, codes[Facet.PROBLEM])[:, 0].tolist()
    papers = Papers(
        ids=[f"syn:{row:0{width}d}" for row in range(start, stop)],
        titles=titles,
        abstracts=abstracts,
        years=(options.first_year + np.sqrt(rows / options.papers) * span).astype(np.int64),
        venues=[narration.VENUES[number][venue] for number, venue in zip(field.tolist(), venues, strict=True)],
        authors=_authors(options, rows, codes[Facet.PROBLEM]),
        fields=[(narration.FIELDS[number], narration.AREAS[area]) for number, area in zip(field, areas, strict=True)],
    )
    found = mentions(options, start, stop)
    ways = pick(options, "way", found.citing, narration.WAYS, found.column)
    truth = Truth(field, codes[Facet.PROBLEM], codes[Facet.METHOD], codes[Facet.FINDING], facets)
    return Block(start, stop, papers, _citations(found, ways), _contexts(options, found, ways), truth)


def _texts(
    options: Synthetic, rows: Ints, field: NDArray[np.int32], codes: dict[Facet, NDArray[np.int32]]
) -> tuple[list[str], list[str], list[tuple[int, ...]]]:
    """Titles, abstracts and the facets of their sentences."""
    own = [_spoken(options, facet, codes[facet], rows, "voice") for facet in ASPECTS]
    others = [
        _spoken(options, facet, _other(options, facet, rows, field, codes[facet]), rows, "aside") for facet in ASPECTS
    ]
    talk = [narration.FIELDS[number] for number in field.tolist()]
    openings = pick(options, "title", rows, narration.TITLES).tolist()
    patterns = pick(options, "pattern", rows, len(narration.PATTERNS)).tolist()
    picks = pick(options, "sentence", rows[:, None], 12, np.arange(narration.LONGEST)).tolist()
    bare = (draw(options, "bare", rows) < options.bare).tolist()
    titles, abstracts, facets = [], [], []
    for at, (problem, method, finding, x, y, z) in enumerate(zip(*own, *others, strict=True)):
        named = {
            "P": problem,
            "M": method,
            "R": finding,
            "S": finding,
            "x": x,
            "y": y,
            "z": z,
            "F": talk[at],
            "C": talk[at],
        }
        titles.append(narration.title(openings[at], named))
        abstracts.append("" if bare[at] else narration.abstract(patterns[at], picks[at], named))
        facets.append(() if bare[at] else narration.PATTERN_FACETS[patterns[at]])
    return titles, abstracts, facets


def _other(
    options: Synthetic, facet: Facet, rows: Ints, field: NDArray[np.int32], codes: NDArray[np.int32]
) -> NDArray[np.int32]:
    """A concept of the field that is not the paper's own."""
    step = 1 + pick(options, f"{facet.name} aside", rows, options.concepts - 1)
    return field * options.concepts + ((codes % options.concepts + step) % options.concepts).astype(np.int32)


def _spoken(
    options: Synthetic, facet: Facet, codes: NDArray[np.int32], rows: Ints, what: str, columns: Ints | int = 0
) -> list[str]:
    """The concepts `codes` in the wordings that the papers `rows` choose."""
    voices = pick(options, f"{facet.name} {what}", rows, narration.VOICE, columns).tolist()
    parts = concept_parts(options, facet, codes).tolist()
    return [narration.concept(facet, part, voice) for part, voice in zip(parts, voices, strict=True)]


def _authors(options: Synthetic, rows: Ints, problems: NDArray[np.int32]) -> list[tuple[str, ...]]:
    """One to five people out of the dozen or so who work on the problem."""
    people = problems[:, None] * 12 + pick(options, "author", rows[:, None], 12, np.arange(5))
    counts = (1 + pick(options, "authors", rows, 5)).tolist()
    numbers = zip(people.tolist(), counts, strict=True)
    return [tuple(dict.fromkeys(map(narration.person, team[:count]))) for team, count in numbers]


_INTENTS = np.array([[way.intents for way in narration.REASONS[facet]] for facet in Facet], dtype=np.uint8)
_PLAIN = np.bitwise_and.reduce(_INTENTS, axis=1)  # (facets,) what all ways to tell a reason have in common


def _citations(found: Mentions, ways: Ints) -> Citations:
    """Mentions of the same pair become one citation that has the intents of all."""
    intents = np.where(found.told, _INTENTS[found.reason, ways], _PLAIN[found.reason])
    by_pair = np.lexsort((found.cited, found.citing))
    citing, cited = found.citing[by_pair], found.cited[by_pair]
    new = np.ones(len(citing), dtype=np.bool_)
    new[1:] = (citing[1:] != citing[:-1]) | (cited[1:] != cited[:-1])
    first = np.flatnonzero(new)
    if not len(first):  # reduceat cannot take nothing
        return Citations(citing, cited, intents, np.zeros(0, dtype=np.float32), new)
    return Citations(
        citing=citing[first],
        cited=cited[first],
        intents=np.bitwise_or.reduceat(intents[by_pair], first),
        strength=np.add.reduceat(found.times[by_pair], first).astype(np.float32),
        noise=np.logical_and.reduceat(found.reason[by_pair] == Facet.OTHER, first),
    )


def _contexts(options: Synthetic, found: Mentions, ways: Ints) -> Contexts:
    """One sentence for every opening that is told."""
    openings = np.flatnonzero(found.opens)
    ends = np.append(openings[1:], len(found.opens))
    kept = found.told[openings]
    openings, ends = openings[kept], ends[kept]
    citing, reason, way = found.citing[openings], found.reason[openings], ways[openings]
    words = _reason_words(options, citing, reason, found.column[openings])
    cited = found.cited.tolist()
    groups = [tuple(cited[begin:end]) for begin, end in zip(openings.tolist(), ends.tolist(), strict=True)]
    told = [
        narration.REASONS[Facet(facet)][number] for facet, number in zip(reason.tolist(), way.tolist(), strict=True)
    ]
    texts = [
        which.text.format(word, narration.MARKS[len(group)])
        for which, word, group in zip(told, words, groups, strict=True)
    ]
    return Contexts(citing, texts, groups, [which.section for which in told], _INTENTS[reason, way])


def _reason_words(options: Synthetic, citing: Ints, reason: Ints, column: Ints) -> list[str]:
    """What the citing paper calls the thing it shares with the cited ones; its field where that is nothing."""
    whole = plan(options)
    words = [narration.FIELDS[number] for number in whole.field[citing].tolist()]
    for facet in ASPECTS:
        at = np.flatnonzero(reason == facet)
        spoken = _spoken(options, facet, whole.code[facet][citing[at]], citing[at], "context", column[at])
        for place, word in zip(at.tolist(), spoken, strict=True):
            words[place] = word
    return words
