"""Synthetic literature of any size: papers, concepts and citations drawn from a seed, with ground truth.

    options = SyntheticOptions(papers=2000, seed=0)
    part = make_block(options, 1000, 1003)
    part.papers.ids         ["syn:001000", "syn:001001", "syn:001002"]
    part.papers.titles[1]   "Does it hold that little amount of interference means unpredictable cost, and what ..."
    part.citations.citing   [1000, 1000, 1000, ..., 1002]   rows, as `cited`, which are always earlier ones
    part.truth.method       [22, 14, 14]                    papers with equal numbers share the method

For the demo and for tests. Every paper has a problem, a method and a finding, drawn nearly independently inside its field,
and says each in one of many wordings. It cites earlier papers: for the method those that share its method, as background
those that share its problem, for the result those that share its finding, and a few for no reason at all. So it is known
what an aspect space should bring together, and words alone do not tell it.

A paper depends only on the options and its row: not on the block, the order or the number of workers. About ten small
integers per paper are held for the complete literature; text is made block by block. Earlier papers with the same concept
are one slice of `ConceptAssignment.order`, so a citation costs the same in any corpus. Does not write files, and does not
imitate any real paper.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from citeweave.core.ragged import number_within
from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.synthetic import narration
from citeweave.corpus.synthetic.narration import Facet


@dataclass(frozen=True)
class SyntheticPapers:
    """The metadata and texts of n synthetic papers, one entry each."""

    ids: list[str]
    titles: list[str]
    abstracts: list[str]
    """Every sentence ends with its only period; empty for a paper that has only a title."""

    years: Ints  # (n,), never falls from one row to the next
    venues: list[str]
    authors: list[tuple[str, ...]]
    fields: list[tuple[str, str]]
    """The field and, inside it, the area: labels for classification."""


@dataclass(frozen=True)
class SyntheticCitations:
    """The citations of a block of synthetic papers, ordered by (citing, cited), each pair once."""

    citing: Ints  # (m,) rows
    cited: Ints  # (m,) rows, each smaller than its citing one
    intents: NDArray[np.uint8]  # (m,) bits of Intent
    strength: NDArray[np.float32]  # (m,) number of mentions
    noise: NDArray[np.bool_]  # (m,) ground truth: cited for no reason


@dataclass(frozen=True)
class SyntheticContexts:
    """Which citations of a block of the synthetic literature have a citing sentence, one entry each."""

    citing: Ints  # (c,) rows, never falling
    texts: list[str]
    """Each with the mark [CIT] once for every cited paper."""

    cited: list[tuple[int, ...]]
    """One to three rows that are cited for the same reason."""

    sections: list[str]
    intents: NDArray[np.uint8]  # (c,) bits of Intent


@dataclass(frozen=True)
class BlockTruth:
    """The ground truth of n synthetic papers: field, problem, method, finding and the facet of every sentence."""

    field: NDArray[np.int32]  # (n,) numbers of narration.FIELDS
    problem: NDArray[np.int32]  # (n,) equal numbers share the problem
    method: NDArray[np.int32]  # (n,)
    finding: NDArray[np.int32]  # (n,)
    facets: list[tuple[int, ...]]
    """The Facet of every sentence of every abstract."""


@dataclass(frozen=True)
class LiteratureBlock:
    """The synthetic papers of rows `start` to `stop` (not included), their citations and their ground truth."""

    start: int
    stop: int
    papers: SyntheticPapers
    citations: SyntheticCitations
    contexts: SyntheticContexts
    truth: BlockTruth


def describe_literature(options: SyntheticOptions) -> dict[str, object]:
    """Return what the manifest of a synthetic corpus records: that it is synthetic, its options, its concepts."""
    return {
        "made_up": True,
        "note": "A synthetic literature: no paper, author, venue, citation or finding in it is real.",
        "options": asdict(options),
        "fields": options.fields,
        "concepts": {facet.name.lower(): options.fields * options.concepts for facet in ASPECTS},
    }


def wordings(options: SyntheticOptions, facet: Facet, code: int) -> list[str]:
    """Return every wording of one concept of the synthetic literature, the plainest first."""
    parts = concept_parts(options, facet, np.array([code]))[0].tolist()
    return list(dict.fromkeys(narration.word_concept(facet, parts, voice) for voice in narration.VOICES))


def paper_id(options: SyntheticOptions, row: int) -> str:
    """Return the id of a synthetic paper, of the same length for all papers of a literature."""
    return f"syn:{row:0{max(6, len(str(options.papers - 1)))}d}"


def make_block(options: SyntheticOptions, start: int, stop: int) -> LiteratureBlock:
    """Make the synthetic papers of rows `start` to `stop`, with citations, contexts and ground truth.

    >>> part = make_block(SyntheticOptions(papers=100), 98, 100)
    >>> part.papers.ids, bool((part.citations.cited < part.citations.citing).all())
    (['syn:000098', 'syn:000099'], True)
    """
    if not 0 <= start <= stop <= options.papers:
        raise ValueError(f"rows {start} to {stop} are not within a literature of {options.papers} papers")
    rows = np.arange(start, stop)
    assignment = assign_concepts(options)
    field, codes = assignment.field[start:stop], {facet: assignment.code[facet][start:stop] for facet in ASPECTS}
    titles, abstracts, facets = _texts(options, rows, field, codes)
    span = options.last_year - options.first_year + 1
    venues = _draw_integers(options, "venue", rows, len(narration.VENUES[0])).tolist()
    areas = concept_parts(options, Facet.PROBLEM, codes[Facet.PROBLEM])[:, 0].tolist()
    papers = SyntheticPapers(
        ids=[paper_id(options, row) for row in range(start, stop)],
        titles=titles,
        abstracts=abstracts,
        years=(options.first_year + np.sqrt(rows / options.papers) * span).astype(np.int64),
        venues=[narration.VENUES[number][venue] for number, venue in zip(field.tolist(), venues, strict=True)],
        authors=_authors(options, rows, codes[Facet.PROBLEM]),
        fields=[(narration.FIELDS[number], narration.AREAS[area]) for number, area in zip(field, areas, strict=True)],
    )
    mentions = draw_mentions(options, start, stop)
    ways = _draw_integers(options, "way", mentions.citing, narration.WAYS, mentions.column)
    truth = BlockTruth(field, codes[Facet.PROBLEM], codes[Facet.METHOD], codes[Facet.FINDING], facets)
    return LiteratureBlock(start, stop, papers, _citations(mentions, ways), _contexts(options, mentions, ways), truth)


def _texts(
    options: SyntheticOptions, rows: Ints, field: NDArray[np.int32], codes: dict[Facet, NDArray[np.int32]]
) -> tuple[list[str], list[str], list[tuple[int, ...]]]:
    """Return titles, abstracts and the facets of their sentences."""
    own_concepts = [_word_concepts(options, facet, codes[facet], rows, "voice") for facet in ASPECTS]
    other_concepts = [
        _word_concepts(options, facet, _draw_other_concepts(options, facet, rows, field, codes[facet]), rows, "aside")
        for facet in ASPECTS
    ]
    field_names = [narration.FIELDS[number] for number in field.tolist()]
    openings = _draw_integers(options, "title", rows, narration.TITLES).tolist()
    patterns = _draw_integers(options, "pattern", rows, len(narration.PATTERNS)).tolist()
    picks = _draw_integers(options, "sentence", rows[:, None], 12, np.arange(narration.LONGEST)).tolist()
    bare = (_draw_uniform(options, "bare", rows) < options.bare).tolist()
    titles, abstracts, facets = [], [], []
    for at, (problem, method, finding, x, y, z) in enumerate(zip(*own_concepts, *other_concepts, strict=True)):
        named = (problem, method, finding, finding, x, y, z, field_names[at], field_names[at])
        phrases = dict(zip("PMRSxyzFC", named, strict=True))
        titles.append(narration.word_title(openings[at], phrases))
        abstracts.append("" if bare[at] else narration.word_abstract(patterns[at], picks[at], phrases))
        facets.append(() if bare[at] else narration.PATTERN_FACETS[patterns[at]])
    return titles, abstracts, facets


def _draw_other_concepts(
    options: SyntheticOptions, facet: Facet, rows: Ints, field: NDArray[np.int32], codes: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Draw a concept of the same field that is not the paper's own."""
    step = 1 + _draw_integers(options, f"{facet.name} aside", rows, options.concepts - 1)
    return field * options.concepts + ((codes % options.concepts + step) % options.concepts).astype(np.int32)


def _word_concepts(
    options: SyntheticOptions, facet: Facet, codes: NDArray[np.int32], rows: Ints, purpose: str, columns: Ints | int = 0
) -> list[str]:
    """Word the concepts `codes` in the voices that the papers `rows` draw."""
    voices = _draw_integers(options, f"{facet.name} {purpose}", rows, narration.VOICE, columns).tolist()
    parts = concept_parts(options, facet, codes).tolist()
    return [narration.word_concept(facet, part, voice) for part, voice in zip(parts, voices, strict=True)]


def _authors(options: SyntheticOptions, rows: Ints, problems: NDArray[np.int32]) -> list[tuple[str, ...]]:
    """Draw one to five authors out of the dozen or so who work on the problem of a paper."""
    people = problems[:, None] * 12 + _draw_integers(options, "author", rows[:, None], 12, np.arange(5))
    counts = (1 + _draw_integers(options, "authors", rows, 5)).tolist()
    numbers = zip(people.tolist(), counts, strict=True)
    return [tuple(dict.fromkeys(map(narration.author_name, team[:count]))) for team, count in numbers]


_INTENTS = np.array([[way.intents for way in narration.REASONS[facet]] for facet in Facet], dtype=np.uint8)
_SHARED_INTENTS = np.bitwise_and.reduce(_INTENTS, axis=1)
"""(facets,): intents that all sentences of a reason have in common."""


def _citations(mentions: SyntheticMentions, ways: Ints) -> SyntheticCitations:
    """Merge mentions of the same pair into one citation with the intents of all."""
    intents = np.where(mentions.has_context, _INTENTS[mentions.reason, ways], _SHARED_INTENTS[mentions.reason])
    by_pair = np.lexsort((mentions.cited, mentions.citing))
    citing, cited = mentions.citing[by_pair], mentions.cited[by_pair]
    new = np.ones(len(citing), dtype=np.bool_)
    new[1:] = (citing[1:] != citing[:-1]) | (cited[1:] != cited[:-1])
    first = np.flatnonzero(new)
    if not len(first):  # reduceat does not accept empty arrays
        return SyntheticCitations(citing, cited, intents, np.zeros(0, dtype=np.float32), new)
    return SyntheticCitations(
        citing=citing[first],
        cited=cited[first],
        intents=np.bitwise_or.reduceat(intents[by_pair], first),
        strength=np.add.reduceat(mentions.times[by_pair], first).astype(np.float32),
        noise=np.logical_and.reduceat(mentions.reason[by_pair] == Facet.OTHER, first),
    )


def _contexts(options: SyntheticOptions, mentions: SyntheticMentions, ways: Ints) -> SyntheticContexts:
    """Write one citing sentence for every group of mentions that has a context."""
    firsts = np.flatnonzero(mentions.starts)
    ends = np.append(firsts[1:], len(mentions.starts))
    chosen = mentions.has_context[firsts]
    firsts, ends = firsts[chosen], ends[chosen]
    citing, reason, way = mentions.citing[firsts], mentions.reason[firsts], ways[firsts]
    words = _reason_words(options, citing, reason, mentions.column[firsts])
    cited = mentions.cited.tolist()
    groups = [tuple(cited[begin:end]) for begin, end in zip(firsts.tolist(), ends.tolist(), strict=True)]
    chosen_ways = zip(reason.tolist(), way.tolist(), strict=True)
    templates = [narration.REASONS[Facet(facet)][number] for facet, number in chosen_ways]
    filled = zip(templates, words, groups, strict=True)
    texts = [template.text.format(word, narration.MARKS[len(group)]) for template, word, group in filled]
    return SyntheticContexts(citing, texts, groups, [template.section for template in templates], _INTENTS[reason, way])


def _reason_words(options: SyntheticOptions, citing: Ints, reason: Ints, column: Ints) -> list[str]:
    """Return the wording of the concept that citing and cited papers share; the field where they share none."""
    assignment = assign_concepts(options)
    words = [narration.FIELDS[number] for number in assignment.field[citing].tolist()]
    for facet in ASPECTS:
        at = np.flatnonzero(reason == facet)
        spoken = _word_concepts(options, facet, assignment.code[facet][citing[at]], citing[at], "context", column[at])
        for place, word in zip(at.tolist(), spoken, strict=True):
            words[place] = word
    return words


# Options, concepts and citations: integers only, no text.

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ASPECTS = (Facet.PROBLEM, Facet.METHOD, Facet.FINDING)
SHARES = {Facet.PROBLEM: 0.40, Facet.METHOD: 0.35, Facet.FINDING: 0.25}
"""Shares of the reasons among citations that are not noise."""

TRAVEL = {Facet.PROBLEM: 0.0, Facet.METHOD: 0.15, Facet.FINDING: 0.15}
"""Chance that a paper takes its concept from any field rather than its own."""

AGE = 1.7
"""Above 1, the oldest of the possible papers are cited most: degrees get a long tail."""

DRAWN_PER_CITATION = 1.27
"""Citations drawn for each one that is kept."""


def _draw_uniform(options: SyntheticOptions, purpose: str, rows: Ints, columns: Ints | int = 0) -> Floats:
    """Draw uniform numbers in [0, 1), each fixed by (seed, purpose, row, column): splitmix64 used as a hash."""
    with np.errstate(over="ignore"):
        key = _mix(np.array([options.seed], dtype=np.int64).view(np.uint64) + np.uint64(zlib.crc32(purpose.encode())))
        bits = _mix(_mix(key + np.asarray(rows).astype(np.uint64)) + np.asarray(columns).astype(np.uint64))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _draw_integers(options: SyntheticOptions, purpose: str, rows: Ints, count: int, columns: Ints | int = 0) -> Ints:
    """Draw integers in [0, count), each fixed by (seed, purpose, row, column)."""
    return (_draw_uniform(options, purpose, rows, columns) * count).astype(np.int64)


@dataclass(frozen=True)
class ConceptAssignment:
    """Field and concepts of all synthetic papers; `order` lists the rows concept by concept, oldest first."""

    field: NDArray[np.int32]  # (papers,)
    code: dict[Facet, NDArray[np.int32]]  # (papers,) each
    order: dict[Facet, NDArray[np.int32]]  # (papers,) each
    place: dict[Facet, NDArray[np.int32]]  # (papers,) where a row stands in `order`
    first: dict[Facet, Ints]  # (concepts,) where a concept begins in `order`


@lru_cache(maxsize=2)
def assign_concepts(options: SyntheticOptions) -> ConceptAssignment:
    """Assign a field, a problem, a method and a finding to every synthetic paper."""
    rows = np.arange(options.papers)
    field = _draw_integers(options, "field", rows, options.fields)
    code, order, place, first = {}, {}, {}, {}
    for facet in ASPECTS:
        travels = _draw_uniform(options, f"{facet.name} travels", rows) < TRAVEL[facet]
        home = np.where(travels, _draw_integers(options, f"{facet.name} home", rows, options.fields), field)
        # the power makes some concepts more popular than others, but none rare
        local = (_draw_uniform(options, facet.name, rows) ** 1.25 * options.concepts).astype(np.int64)
        code[facet] = (home * options.concepts + local).astype(np.int32)
        order[facet] = np.argsort(code[facet], kind="stable").astype(np.int32)
        place[facet] = np.empty_like(order[facet])
        place[facet][order[facet]] = rows
        counts = np.bincount(code[facet], minlength=options.fields * options.concepts)
        first[facet] = np.cumsum(counts) - counts
    return ConceptAssignment(field.astype(np.int32), code, order, place, first)


def concept_parts(options: SyntheticOptions, facet: Facet, codes: NDArray[np.integer]) -> Ints:
    """Return head, wrap, frame and variant of each concept code, (concepts, 4); few of each, so concepts are neighbors."""
    field, local = np.divmod(codes.astype(np.int64), options.concepts)
    wraps, frames = len(narration.WRAPS[facet]), len(narration.FRAMES[facet])
    heads = len(narration.HEADS[facet]) // len(narration.FIELDS)  # each field has its own
    used_heads = min(heads, round(options.concepts ** (1 / 3)) + 1)
    used_wraps = min(wraps, round((options.concepts / used_heads) ** 0.5) + 1)
    used_frames = min(frames, -(-options.concepts // (used_heads * used_wraps)))
    local, head = np.divmod(local, used_heads)
    local, wrap = np.divmod(local, used_wraps)
    variant, frame = np.divmod(local, used_frames)
    wrap = wrap + _draw_integers(options, f"{facet.name} turn", field, wraps, 0)
    frame = frame + _draw_integers(options, f"{facet.name} turn", field, frames, 1)
    head = (head + _draw_integers(options, f"{facet.name} heads", field, heads)) % heads
    head = field * heads + head if facet is Facet.PROBLEM else field + len(narration.FIELDS) * head
    return np.stack([head, wrap % wraps, frame % frames, variant], axis=1)


@dataclass(frozen=True)
class SyntheticMentions:
    """The mentions of a block of synthetic papers: one entry per (citing row, reason, cited row), in that order."""

    citing: Ints
    reason: Ints  # Facet: what the two share; Facet.OTHER for noise
    cited: Ints
    times: Ints  # how often it was drawn
    starts: NDArray[np.bool_]  # starts a sentence, which the entries up to the next start share
    has_context: NDArray[np.bool_]  # that sentence is in the corpus as a context
    column: Ints  # place of the sentence's first entry in its row: what to draw by


def draw_mentions(options: SyntheticOptions, start: int, stop: int) -> SyntheticMentions:
    """Draw what the synthetic papers of rows `start` to `stop` cite, and why."""
    rows = np.arange(start, stop)
    # a shifted exponential: mean 1, never below 0.4, a long tail; DRAWN_PER_CITATION makes up for repeats and missing papers
    lengths = np.minimum(0.4 - 0.6 * np.log1p(-_draw_uniform(options, "references", rows)), 6)
    lengths = lengths * options.references * DRAWN_PER_CITATION + _draw_uniform(options, "rounding", rows)
    counts = lengths.astype(np.int64)
    citing = np.repeat(rows, counts)
    columns = number_within(counts)
    reason = _draw_reasons(options, citing, columns)
    cited = _draw_cited(options, citing, columns, reason)
    exists = cited >= 0
    key = ((citing[exists] - start) * len(Facet) + reason[exists]) * options.papers + cited[exists]
    key, times = np.unique(key, return_counts=True)
    paired, cited = np.divmod(key, options.papers)
    row, reason = np.divmod(paired, len(Facet))
    starts = _starts_sentence(options, row + start, paired, cited)
    heads = np.flatnonzero(starts)
    column = heads - np.searchsorted(row, row[heads])  # (sentences,) from where the row begins
    column = column[np.cumsum(starts) - 1]  # (entries,)
    has_context = _draw_uniform(options, "told", row + start, column) < options.contexts
    return SyntheticMentions(row + start, reason, cited, times, starts, has_context, column)


def _draw_reasons(options: SyntheticOptions, citing: Ints, columns: Ints) -> Ints:
    """Draw the reason of each citation, as a Facet."""
    shares = np.array([0.0] + [SHARES[facet] for facet in ASPECTS[:-1]])
    bounds = options.noise + (1 - options.noise) * np.cumsum(shares)  # (3,)
    slot = np.searchsorted(bounds, _draw_uniform(options, "reason", citing, columns), side="right")
    return np.array([Facet.OTHER, *ASPECTS], dtype=np.int64)[slot]


def _draw_cited(options: SyntheticOptions, citing: Ints, columns: Ints, reason: Ints) -> Ints:
    """Draw an earlier row that shares what the reason says, or -1 where there is none; old rows gather more."""
    assignment = assign_concepts(options)
    chance = _draw_uniform(options, "cited", citing, columns) ** AGE
    cited = np.where(citing > 0, (chance * citing).astype(np.int64), -1)
    for facet in ASPECTS:
        entries = np.flatnonzero(reason == facet)
        first = assignment.first[facet][assignment.code[facet][citing[entries]]]
        earlier = assignment.place[facet][citing[entries]] - first
        at = first + (chance[entries] * earlier).astype(np.int64)
        cited[entries] = np.where(earlier > 0, assignment.order[facet][at], -1)
    return cited


def _starts_sentence(options: SyntheticOptions, citing: Ints, paired: Ints, cited: Ints) -> NDArray[np.bool_]:
    """Return which mentions start a sentence: the others join the one before, never more than two in a row."""
    joins = _draw_uniform(options, "joins", citing, paired % len(Facet) * options.papers + cited) < options.cocited
    joins[1:] &= paired[1:] == paired[:-1]
    joins[:1] = False
    crowded = np.zeros_like(joins)
    crowded[2:] = joins[1:-1] & joins[:-2]
    return ~(joins & ~crowded)
