"""Who shares what and who cites whom in the made-up literature: integers only, no text.

    truth = plan(options)
    truth.code[Facet.METHOD]          [17, 40, 3, ...]   one number a paper; equal numbers share the method
    draw(options, "field", rows)      uniform numbers, fixed by (seed, "field", row): no state, no order
    mentions(options, 0, 1000)        what the papers of these rows cite, why, and in whose company

Earlier papers with the same concept are one stretch of `Plan.order`, so a citation costs the same in any corpus.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.synthetic import narration
from citeweave.corpus.synthetic.narration import Facet
from citeweave.errors import UserError

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
class Plan:
    """Who shares what with whom, for all rows. `order` lists the rows concept by concept, oldest first."""

    field: NDArray[np.int32]  # (papers,)
    code: dict[Facet, NDArray[np.int32]]  # (papers,) each
    order: dict[Facet, NDArray[np.int32]]  # (papers,) each
    place: dict[Facet, NDArray[np.int32]]  # (papers,) where a row stands in `order`
    first: dict[Facet, Ints]  # (concepts,) where a concept begins in `order`


@lru_cache(maxsize=2)
def plan(options: Synthetic) -> Plan:
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
    return Plan(field.astype(np.int32), code, order, place, first)


def concept_parts(options: Synthetic, facet: Facet, codes: NDArray[np.integer]) -> Ints:
    """(concepts, 4): head, wrap, frame and variant of each code; few of each, so that concepts are neighbours."""
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
class Mentions:
    """One entry for each (citing row, reason, cited row), in that order."""

    citing: Ints
    reason: Ints  # Facet: what the two share; Facet.OTHER for noise
    cited: Ints
    times: Ints  # how often it was drawn
    opens: NDArray[np.bool_]  # starts a sentence; the entries up to the next opening share it
    told: NDArray[np.bool_]  # that sentence is in the corpus as a context
    column: Ints  # place of the sentence's first entry in its row: what to draw by


def mentions(options: Synthetic, start: int, stop: int) -> Mentions:
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
    return Mentions(row + start, reason, cited, times, opens, told, column)


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
