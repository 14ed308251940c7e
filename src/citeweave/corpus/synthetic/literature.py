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

Who shares what and who cites whom in the made-up literature: integers only, no text.

    truth = plan(options)
    truth.code[Facet.METHOD]          [17, 40, 3, ...]   one number a paper; equal numbers share the method
    draw(options, "field", rows)      uniform numbers, fixed by (seed, "field", row): no state, no order
    mentions(options, 0, 1000)        what the papers of these rows cite, why, and in whose company

Earlier papers with the same concept are one stretch of `CitationPlan.order`, so a citation costs the same in any corpus.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.corpus.synthetic import narration
from citeweave.corpus.synthetic.narration import Facet

__all__ = ["ASPECTS", "Facet", "LiteratureBlock", "Synthetic", "block", "blocks", "describe", "wordings"]


@dataclass(frozen=True)
class SyntheticPapers:
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
class SyntheticCitations:
    """m citations in the order of (citing, cited), each pair once."""

    citing: Ints  # (m,) rows
    cited: Ints  # (m,) rows, each smaller than its citing one
    intents: NDArray[np.uint8]  # (m,) bits of Intent
    strength: NDArray[np.float32]  # (m,) number of mentions
    noise: NDArray[np.bool_]  # (m,) truth: cited for no reason


@dataclass(frozen=True)
class SyntheticContexts:
    """c citing sentences, one entry each."""

    citing: Ints  # (c,) rows, never falling
    texts: list[str]
    """Has the mark [CIT] once for every cited paper."""

    cited: list[tuple[int, ...]]
    """One to three rows that are cited for the same reason."""

    sections: list[str]
    intents: NDArray[np.uint8]  # (c,) bits of Intent


@dataclass(frozen=True)
class BlockTruth:
    """What was planted in n papers."""

    field: NDArray[np.int32]  # (n,) numbers of narration.FIELDS
    problem: NDArray[np.int32]  # (n,) equal numbers share the problem
    method: NDArray[np.int32]  # (n,)
    finding: NDArray[np.int32]  # (n,)
    facets: list[tuple[int, ...]]
    """The Facet of every sentence of every abstract."""


@dataclass(frozen=True)
class LiteratureBlock:
    """The papers of the rows `start` to `stop` (not included), what they cite, and the truth about them."""

    start: int
    stop: int
    papers: SyntheticPapers
    citations: SyntheticCitations
    contexts: SyntheticContexts
    truth: BlockTruth


def blocks(options: Synthetic, size: int = 10_000) -> Iterator[LiteratureBlock]:
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


def block(options: Synthetic, start: int, stop: int) -> LiteratureBlock:
    """The papers of rows `start` to `stop`; see `LiteratureBlock`.

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
    papers = SyntheticPapers(
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
    truth = BlockTruth(field, codes[Facet.PROBLEM], codes[Facet.METHOD], codes[Facet.FINDING], facets)
    return LiteratureBlock(start, stop, papers, _citations(found, ways), _contexts(options, found, ways), truth)


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


def _citations(found: SyntheticMentions, ways: Ints) -> SyntheticCitations:
    """Mentions of the same pair become one citation that has the intents of all."""
    intents = np.where(found.told, _INTENTS[found.reason, ways], _PLAIN[found.reason])
    by_pair = np.lexsort((found.cited, found.citing))
    citing, cited = found.citing[by_pair], found.cited[by_pair]
    new = np.ones(len(citing), dtype=np.bool_)
    new[1:] = (citing[1:] != citing[:-1]) | (cited[1:] != cited[:-1])
    first = np.flatnonzero(new)
    if not len(first):  # reduceat cannot take nothing
        return SyntheticCitations(citing, cited, intents, np.zeros(0, dtype=np.float32), new)
    return SyntheticCitations(
        citing=citing[first],
        cited=cited[first],
        intents=np.bitwise_or.reduceat(intents[by_pair], first),
        strength=np.add.reduceat(found.times[by_pair], first).astype(np.float32),
        noise=np.logical_and.reduceat(found.reason[by_pair] == Facet.OTHER, first),
    )


def _contexts(options: Synthetic, found: SyntheticMentions, ways: Ints) -> SyntheticContexts:
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
    return SyntheticContexts(citing, texts, groups, [which.section for which in told], _INTENTS[reason, way])


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


# Who shares what and who cites whom in the made-up literature: integers only, no text.

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ASPECTS = (Facet.PROBLEM, Facet.METHOD, Facet.FINDING)
SHARES = {Facet.PROBLEM: 0.40, Facet.METHOD: 0.35, Facet.FINDING: 0.25}
"""How the citations that are not noise divide among the reasons."""

TRAVEL = {Facet.PROBLEM: 0.0, Facet.METHOD: 0.15, Facet.FINDING: 0.15}
"""How often a paper takes its concept from any field rather than from its own."""

AGE = 1.7
"""Above 1, the oldest of the possible papers are cited most: degrees get a long tail."""

LISTED = 1.27
"""Citations drawn for each one that is kept."""


@dataclass(frozen=True)
class Synthetic:
    """What the made-up literature should be like."""

    papers: int = 2000
    """How many papers there are; part of what they say depends on it, since concepts grow with it."""

    seed: int = 0

    references: float = 10.0
    """Mean length of a reference list; the earliest papers have less to cite."""

    sharers: int = 40
    """How many papers share a problem, a method or a finding, on average."""

    noise: float = 0.05
    """Share of citations that go to any earlier paper, with background as their intent."""

    contexts: float = 0.75
    """Share of the mentions that come with a citing sentence; the others are in the reference list only."""

    cocited: float = 0.35
    """Chance that a mention stands in the same sentence as the one before; up to three papers do."""

    bare: float = 0.03
    """Share of papers that have a title and no abstract."""

    first_year: int = 1990
    last_year: int = 2024

    def __post_init__(self) -> None:
        if not 1 <= self.papers <= 100_000_000:
            raise UserError(f"--papers is {self.papers}; it must lie between 1 and 100 million")
        if not 0 <= self.references <= 100:
            raise UserError(f"--references is {self.references}; it must lie between 0 and 100")
        if self.sharers < 2:
            raise UserError(f"--sharers is {self.sharers}; at least 2 papers must be able to share a concept")
        for name in ("noise", "contexts", "cocited", "bare"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"--{name} is {getattr(self, name)}; it must lie between 0 and 1")
        if not 1000 <= self.first_year <= self.last_year <= 2100:
            raise UserError(f"--first-year {self.first_year} and --last-year {self.last_year} must be in order")

    @property
    def fields(self) -> int:
        """How many fields there are: one for every 500 papers, between 2 and 12."""
        return min(max(round(self.papers / 500), 2), len(narration.FIELDS))

    @property
    def concepts(self) -> int:
        """How many problems each field has, and as many methods and findings."""
        return max(2, round(self.papers / self.sharers / self.fields))


def draw(options: Synthetic, what: str, rows: Ints, columns: Ints | int = 0) -> Floats:
    """Uniform numbers in [0, 1), each fixed by (seed, what, row, column): splitmix64 used as a hash."""
    with np.errstate(over="ignore"):
        key = _mix(np.array([options.seed], dtype=np.int64).view(np.uint64) + np.uint64(zlib.crc32(what.encode())))
        bits = _mix(_mix(key + np.asarray(rows).astype(np.uint64)) + np.asarray(columns).astype(np.uint64))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def pick(options: Synthetic, what: str, rows: Ints, count: int, columns: Ints | int = 0) -> Ints:
    """Integers in [0, count), drawn as `draw` does."""
    return (draw(options, what, rows, columns) * count).astype(np.int64)


@dataclass(frozen=True)
class CitationPlan:
    """Who shares what with whom, for all rows. `order` lists the rows concept by concept, oldest first."""

    field: NDArray[np.int32]  # (papers,)
    code: dict[Facet, NDArray[np.int32]]  # (papers,) each
    order: dict[Facet, NDArray[np.int32]]  # (papers,) each
    place: dict[Facet, NDArray[np.int32]]  # (papers,) where a row stands in `order`
    first: dict[Facet, Ints]  # (concepts,) where a concept begins in `order`


@lru_cache(maxsize=2)
def plan(options: Synthetic) -> CitationPlan:
    rows = np.arange(options.papers)
    field = pick(options, "field", rows, options.fields)
    code, order, place, first = {}, {}, {}, {}
    for facet in ASPECTS:
        travels = draw(options, f"{facet.name} travels", rows) < TRAVEL[facet]
        home = np.where(travels, pick(options, f"{facet.name} home", rows, options.fields), field)
        # the power makes some concepts more popular than others, but none rare
        local = (draw(options, facet.name, rows) ** 1.25 * options.concepts).astype(np.int64)
        code[facet] = (home * options.concepts + local).astype(np.int32)
        order[facet] = np.argsort(code[facet], kind="stable").astype(np.int32)
        place[facet] = np.empty_like(order[facet])
        place[facet][order[facet]] = rows
        counts = np.bincount(code[facet], minlength=options.fields * options.concepts)
        first[facet] = np.cumsum(counts) - counts
    return CitationPlan(field.astype(np.int32), code, order, place, first)


def concept_parts(options: Synthetic, facet: Facet, codes: NDArray[np.integer]) -> Ints:
    """(concepts, 4): head, wrap, frame and variant of each code; few of each, so that concepts are neighbors."""
    field, local = np.divmod(codes.astype(np.int64), options.concepts)
    wraps, frames = len(narration.WRAPS[facet]), len(narration.FRAMES[facet])
    heads = len(narration.HEADS[facet]) // len(narration.FIELDS)  # each field has its own
    used_heads = min(heads, round(options.concepts ** (1 / 3)) + 1)
    used_wraps = min(wraps, round((options.concepts / used_heads) ** 0.5) + 1)
    used_frames = min(frames, -(-options.concepts // (used_heads * used_wraps)))
    local, head = np.divmod(local, used_heads)
    local, wrap = np.divmod(local, used_wraps)
    variant, frame = np.divmod(local, used_frames)
    turn = [pick(options, f"{facet.name} turn", field, count, column) for column, count in enumerate((wraps, frames))]
    head = (head + pick(options, f"{facet.name} heads", field, heads)) % heads
    head = field * heads + head if facet is Facet.PROBLEM else field + len(narration.FIELDS) * head
    return np.stack([head, (wrap + turn[0]) % wraps, (frame + turn[1]) % frames, variant], axis=1)


@dataclass(frozen=True)
class SyntheticMentions:
    """One entry for each (citing row, reason, cited row), in that order."""

    citing: Ints
    reason: Ints  # Facet: what the two share; Facet.OTHER for noise
    cited: Ints
    times: Ints  # how often it was drawn
    opens: NDArray[np.bool_]  # starts a sentence; the entries up to the next opening share it
    told: NDArray[np.bool_]  # that sentence is in the corpus as a context
    column: Ints  # place of the sentence's first entry in its row: what to draw by


def mentions(options: Synthetic, start: int, stop: int) -> SyntheticMentions:
    """What the papers of rows `start` to `stop` cite."""
    rows = np.arange(start, stop)
    # a shifted exponential: mean 1, never below 0.4, a long tail; LISTED makes up for repeats and missing sharers
    lengths = 0.4 - 0.6 * np.log1p(-draw(options, "references", rows))
    lengths = np.minimum(lengths, 6) * options.references * LISTED + draw(options, "rounding", rows)
    counts = lengths.astype(np.int64)
    citing = np.repeat(rows, counts)
    columns = np.arange(len(citing)) - np.repeat(np.cumsum(counts) - counts, counts)
    reason = _reasons(options, citing, columns)
    cited = _cited(options, citing, columns, reason)
    found = cited >= 0
    key = ((citing[found] - start) * len(Facet) + reason[found]) * options.papers + cited[found]
    key, times = np.unique(key, return_counts=True)
    paired, cited = np.divmod(key, options.papers)
    row, reason = np.divmod(paired, len(Facet))
    opens = _opens(options, row + start, paired, cited)
    heads = np.flatnonzero(opens)
    column = heads - np.searchsorted(row, row[heads])  # (sentences,) from where the row begins
    column = column[np.cumsum(opens) - 1]  # (entries,)
    told = draw(options, "told", row + start, column) < options.contexts
    return SyntheticMentions(row + start, reason, cited, times, opens, told, column)


def _reasons(options: Synthetic, citing: Ints, columns: Ints) -> Ints:
    """Why each citation is made, as a Facet."""
    shares = np.array([0.0] + [SHARES[facet] for facet in ASPECTS[:-1]])
    bounds = options.noise + (1 - options.noise) * np.cumsum(shares)  # (3,)
    slot = np.searchsorted(bounds, draw(options, "reason", citing, columns), side="right")
    return np.array([Facet.OTHER, *ASPECTS], dtype=np.int64)[slot]


def _cited(options: Synthetic, citing: Ints, columns: Ints, reason: Ints) -> Ints:
    """An earlier row that shares what the reason says, or -1 where there is none; old rows gather more."""
    truth = plan(options)
    chance = draw(options, "cited", citing, columns) ** AGE
    cited = np.where(citing > 0, (chance * citing).astype(np.int64), -1)
    for facet in ASPECTS:
        asked = np.flatnonzero(reason == facet)
        first = truth.first[facet][truth.code[facet][citing[asked]]]
        earlier = truth.place[facet][citing[asked]] - first
        at = first + (chance[asked] * earlier).astype(np.int64)
        cited[asked] = np.where(earlier > 0, truth.order[facet][at], -1)
    return cited


def _opens(options: Synthetic, citing: Ints, paired: Ints, cited: Ints) -> NDArray[np.bool_]:
    """Which entries start a sentence: the others join the one before, never more than two in a row."""
    joins = draw(options, "joins", citing, paired % len(Facet) * options.papers + cited) < options.cocited
    joins[1:] &= paired[1:] == paired[:-1]
    joins[:1] = False
    crowded = np.zeros_like(joins)
    crowded[2:] = joins[1:-1] & joins[:-2]
    return ~(joins & ~crowded)
