"""False negatives in samples: negatives related to their anchor by citations, or copies of the same work.

    count_relations(samples, graph)["negatives"]["hard"].relations["cited"]      how many the anchors themselves cite

Relations are counted for positives too, where they are welcome. They are looked up for pairs of papers:

    >>> from citeweave.graph.citations import graph_from_edges
    >>> graph = graph_from_edges(np.array([0, 0, 1]), np.array([1, 2, 2]), nodes=4)     # 0 cites 1 and 2, 1 cites 2
    >>> [_relation_names(bits) for bits in relate_pairs(graph, np.array([0, 1, 1]), np.array([2, 2, 3]))]
    [['cited', 'second_hop'], ['cited', 'cocited'], []]

The relations are those of `graph/signals.py`, seen from the first paper. A pair costs its two lists, so a million of
them take seconds where all papers two hops away would take hours.

Texts are compared for negatives only, with the anchor and with each positive of the sample: a copy of a positive is a
false negative too. Two papers are the same work by the rules 3 and 4 of the leakage audit (`corpus/leakage.py`): a title
of at least 4 words and 20 letters that is the same after folding; or title and abstract with at least 20 different word
triples each, and half of the shorter one's shared. Years are not compared, short titles prove nothing. Exact: the
triples of all papers are compared, in several passes over parts of them if they do not fit into the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.executor import run_in_threads, run_range_in_threads
from citeweave.core.hash_keys import hash_texts
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import spans, to_offsets
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.identity import MINIMUM_TITLE_LETTERS, MINIMUM_TITLE_WORDS
from citeweave.corpus.leakage import TEXT_MINIMUM, TEXT_WORDS
from citeweave.corpus.near_duplicates import Shingles, shingle_texts
from citeweave.corpus.options import LeakageOptions
from citeweave.corpus.plain_text import fold
from citeweave.graph.citations import CitationGraph
from citeweave.mining.collisions import iter_picks, sample_spans, take_picks
from citeweave.mining.samples import Samples

RELATIONS = ("cited", "citing", "cocited", "coupled", "second_hop")
"""Relations of a pair, by bit: 1 is the first, 2 the second, 4 the third, ..."""

LONGEST = 1000
"""Papers in the middle with longer lists do not count; the default of signals and rules."""

_BLOCK = 1 << 14

MAX_PAIRS = 8_000_000
"""Approximate maximum of pairs whose texts are compared; beyond it a part of the negatives is drawn."""


@dataclass(frozen=True, slots=True)
class RelatedCounts:
    """Counts of one rule's papers by their citation relations to the anchors."""

    picks: int
    relations: dict[str, int]
    """connected (either way), cited, citing, cocited, coupled, second_hop; empty without a graph."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Counts of one rule's false negatives that are copies of the anchor or of a positive."""

    compared: int
    """Negatives whose text was compared."""

    of_anchor: int
    of_positive: int
    either: int

    def as_json(self) -> dict[str, int]:
        """Return the counts of copies as JSON."""
        counts = {"of_anchor": self.of_anchor, "of_positive": self.of_positive, "either": self.either}
        return {"judged": self.compared, **counts}


@dataclass(frozen=True, slots=True)
class Copy:
    """An example of a negative that is another record of the anchor, or of a positive."""

    rule: str
    paper: str
    negative: str


def count_relations(
    samples: Samples,
    graph: CitationGraph | None,
    *,
    longest: int = LONGEST,
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> dict[str, dict[str, RelatedCounts]]:
    """Count possible false negatives: how selected papers are related to their anchors by citations, by side and rule.

    Relations over two hops are those of rules with the same `longest`.
    """
    relations: dict[str, dict[str, RelatedCounts]] = {}
    total = len(samples.positives.rows) + len(samples.negatives.rows)
    rules, masks = len(samples.names.rules), 1 << len(RELATIONS)
    with reporter.task("relating", total, "picks") as advance:
        for side in ("positives", "negatives"):
            counts = np.zeros((rules, masks), np.int64)  # by rule and relations
            for block in iter_picks(samples, side):
                bits = np.zeros(len(block), np.uint8)
                if graph is not None:
                    bits = relate_pairs(graph, block.anchors, block.rows, longest=longest, workers=workers)
                together = block.rules.astype(np.int64) * masks + bits
                counts += np.bincount(together, minlength=rules * masks).reshape(rules, masks)
                advance(len(block))
            used = np.flatnonzero(counts.sum(axis=1)).tolist()
            relations[side] = {
                samples.names.rules[rule]: _sum_relations(counts[rule], graph is not None) for rule in used
            }
    return relations


def _sum_relations(counts: NDArray[np.int64], has_graph: bool) -> RelatedCounts:
    """Sum the counts of every citation relation from the counts of every mask, shape (masks,)."""
    masks = np.arange(len(counts))
    bits_of = {
        "connected": relation_bit("cited") | relation_bit("citing"),
        **{name: relation_bit(name) for name in RELATIONS},
    }
    relations = {name: int(counts[(masks & bits) > 0].sum()) for name, bits in bits_of.items()}
    return RelatedCounts(int(counts.sum()), relations if has_graph else {})


def find_copies(
    samples: Samples,
    corpus: Corpus,
    *,
    examples: int = 10,
    memory: int = 512 << 20,
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> tuple[dict[str, Copies], tuple[Copy, ...]]:
    """Find false negatives that are copies of their anchor or of a positive: counts by rule, and some examples."""
    pairs, rules = _join_pairs(_text_pairs(samples))
    same = np.flatnonzero(
        find_same_works(corpus, pairs.others, pairs.negatives, memory=memory, workers=workers, reporter=reporter)
    )
    same = same[np.lexsort((pairs.others[same], pairs.numbers[same]))]
    with_anchor = pairs.with_anchor[same]
    copies = [np.unique(pairs.numbers[at]) for at in (same[with_anchor], same[~with_anchor], same)]
    names = samples.names.rules
    counts = {
        names[number]: Copies(int((rules == number).sum()), *(int((rules[at] == number).sum()) for at in copies))
        for number in np.unique(rules).tolist()
    }
    named = [
        Copy(names[rules[pairs.numbers[at]]], corpus.ids[int(pairs.others[at])], corpus.ids[int(pairs.negatives[at])])
        for at in same[:examples].tolist()
    ]
    return counts, tuple(named)


class _TextPairs(NamedTuple):
    """Negatives paired with the papers that they must not be copies of; every column of shape (pairs,)."""

    others: NDArray[np.int32]
    """The anchor, or a positive of the sample."""

    negatives: NDArray[np.int32]
    numbers: NDArray[np.int64]
    """Number of the compared negative, from 0."""

    with_anchor: NDArray[np.bool_]


def _join_pairs(blocks: Iterable[tuple[_TextPairs, NDArray[np.uint8]]]) -> tuple[_TextPairs, NDArray[np.uint8]]:
    """Concatenate blocks of text pairs, numbering the negatives through."""
    parts, rules, compared = [], [], 0
    for part, own in blocks:
        parts.append(part._replace(numbers=part.numbers + compared))
        rules.append(own)
        compared += len(own)
    return _TextPairs(*(np.concatenate(columns) for columns in zip(*parts, strict=True))), np.concatenate(rules)


def _text_pairs(samples: Samples) -> Iterator[tuple[_TextPairs, NDArray[np.uint8]]]:
    """Yield the pairs of texts to compare, block by block, and the rules of their negatives."""
    ups, downs = samples.positives.lengths(), samples.negatives.lengths()
    share = min(1.0, MAX_PAIRS / max(1, int(((1 + ups) * downs).sum())))
    shares = np.full(len(samples.names.rules), share)
    for first, last in sample_spans(samples):
        up, down = (take_picks(samples, side, first, last) for side in ("positives", "negatives"))
        chosen = down.draw(shares)
        owners = down.samples[chosen]
        counts = ups[owners]
        number = np.repeat(np.arange(len(chosen)), counts)  # (pairs with positives,)
        at = spans(samples.positives.offsets[owners] - up.first, counts)
        yield (
            _TextPairs(
                others=np.concatenate([down.anchors[chosen], up.rows[at]]).astype(np.int32),
                negatives=np.concatenate([down.rows[chosen], down.rows[chosen][number]]).astype(np.int32),
                numbers=np.concatenate([np.arange(len(chosen)), number]),
                with_anchor=np.repeat([True, False], [len(chosen), len(number)]),
            ),
            down.rules[chosen],
        )


# Relations of pairs in the citation graph.


def relate_pairs(
    graph: CitationGraph,
    first: NDArray[np.integer[Any]],
    second: NDArray[np.integer[Any]],
    *,
    longest: int = LONGEST,
    workers: int = 0,
) -> NDArray[np.uint8]:
    """Return by which citations a negative may be false: relations of each second paper to the first, as bits, (pairs,)."""
    out = np.zeros(len(first), np.uint8)
    rows = np.asarray(first, np.int64), np.asarray(second, np.int64)
    lists = graph.cited.offsets, graph.cited.targets, graph.citing.offsets, graph.citing.targets

    def work(block: int) -> None:
        part = slice(block * _BLOCK, (block + 1) * _BLOCK)
        _relate(*lists, longest, rows[0][part], rows[1][part], out[part])

    run_in_threads(-(-len(out) // _BLOCK), work, workers)
    return out


def relation_bit(name: str) -> int:
    """Return the bit of a citation relation that may make negatives false.

    >>> relation_bit("cited"), relation_bit("cocited")
    (1, 4)
    """
    return 1 << RELATIONS.index(name)


def _relation_names(bits: int) -> list[str]:
    """Return the names of the citation relations whose bits are set."""
    return [name for place, name in enumerate(RELATIONS) if bits >> place & 1]


@compiled()
def _lower_bound(targets, low, high, target):  # type: ignore[no-untyped-def]
    """Return the first position from low to high whose target is not smaller (binary search)."""
    while low < high:
        middle = (low + high) // 2
        if targets[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low


@compiled()
def _has(offsets, targets, row, target):  # type: ignore[no-untyped-def]
    end = offsets[row + 1]
    at = _lower_bound(targets, offsets[row], end, target)
    return at < end and targets[at] == target


@compiled()
def _share_middle(targets, i, end, others, j, stop, middles, longest):  # type: ignore[no-untyped-def]
    """Whether two ascending lists share a middle paper whose own list (by offsets `middles`) is not too long."""
    while i < end and j < stop:
        one, other = targets[i], others[j]
        if one == other:
            if middles[one + 1] - middles[one] <= longest:
                return True
            i += 1
            j += 1
        elif one < other:
            # jump if the other list is much shorter: a survey's references beside a short list
            i = i + 1 if end - i < 8 * (stop - j) else _lower_bound(targets, i + 1, end, other)
        else:
            j = j + 1 if stop - j < 8 * (end - i) else _lower_bound(others, j + 1, stop, one)
    return False


@compiled()
def _relate(out, cited, into, citing, longest, first, second, bits):  # type: ignore[no-untyped-def]
    # out, into: offsets of the lists of cited and of citing papers
    for at in range(len(bits)):
        a, b = first[at], second[at]
        if a == b:
            continue
        relations = 0
        if _has(out, cited, a, b):
            relations |= 1
        if _has(out, cited, b, a):
            relations |= 2
        if _share_middle(citing, into[a], into[a + 1], citing, into[b], into[b + 1], out, longest):
            relations |= 4
        if _share_middle(cited, out[a], out[a + 1], cited, out[b], out[b + 1], into, longest):
            relations |= 8
        if _share_middle(cited, out[a], out[a + 1], citing, into[b], into[b + 1], out, longest):
            relations |= 16
        bits[at] = relations


# Pairs that are the same work.

_TEXTS_PER_BLOCK = 4096
_BYTES_PER_LETTER = 2
"""Memory for the word triples of a text: 8 bytes for every word."""


def find_same_works(
    corpus: Corpus,
    first: NDArray[np.integer[Any]],
    second: NDArray[np.integer[Any]],
    *,
    memory: int = 512 << 20,
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> NDArray[np.bool_]:
    """Return whether a negative is false since the two papers of a pair are the same work, by title or text; (pairs,)."""
    papers, places = np.unique(np.concatenate([first, second]), return_inverse=True)
    pairs = places[: len(first)].astype(np.int32), places[len(first) :].astype(np.int32)
    letters = int((corpus.titles.lengths() + corpus.abstracts.lengths())[papers].sum())
    passes = max(1, -(-letters * _BYTES_PER_LETTER // memory))
    sizes, titles = np.zeros(len(papers), np.int32), np.zeros(len(papers), np.uint64)
    shared = np.zeros(len(first), np.int32)
    with reporter.task("comparing texts", passes * len(papers), "papers") as advance:
        for number in range(passes):
            parts = []
            for start in range(0, len(papers), _TEXTS_PER_BLOCK):
                keys, texts = _read_texts(corpus, papers[start : start + _TEXTS_PER_BLOCK])
                titles[start : start + _TEXTS_PER_BLOCK] = keys
                parts.append(_shingles_of_pass(texts, number, passes))
                advance(len(keys))
            lengths = np.concatenate([np.zeros(0, np.int64), *(np.diff(part.bounds) for part in parts)])
            triples = Shingles(
                np.concatenate([np.zeros(0, np.uint64), *(part.hashes for part in parts)]), to_offsets(lengths)
            )
            sizes += lengths.astype(np.int32)
            run_range_in_threads(len(triples), partial(_sort, triples.hashes, triples.bounds), workers)
            run_range_in_threads(
                len(shared), partial(_add_shared, triples.hashes, triples.bounds, *pairs, shared), workers
            )
    smaller = np.minimum(*(sizes[side] for side in pairs))
    alike = (smaller >= TEXT_MINIMUM) & (shared >= LeakageOptions().containment * smaller)
    titled = (titles[pairs[0]] == titles[pairs[1]]) & (titles[pairs[0]] > 0)
    return np.asarray((alike | titled) & (pairs[0] != pairs[1]))


def _read_texts(corpus: Corpus, rows: NDArray[np.integer[Any]]) -> tuple[NDArray[np.uint64], Shingles]:
    """Read what possible false negatives are compared by: keys of their titles, 0 if too short, and word triples."""
    titles, abstracts = corpus.titles.take(rows), corpus.abstracts.take(rows)
    folded = [fold(title) for title in titles]
    long = [len(text) >= MINIMUM_TITLE_LETTERS and text.count(" ") + 1 >= MINIMUM_TITLE_WORDS for text in folded]
    keys = np.where(long, hash_texts(folded), np.uint64(0))
    texts = [f"{title}\n{abstract}" for title, abstract in zip(titles, abstracts, strict=True)]
    return keys, shingle_texts(texts, TEXT_WORDS)


def _shingles_of_pass(shingles: Shingles, number: int, passes: int) -> Shingles:
    """Return the word triples that belong to one of several passes."""
    if passes == 1:
        return shingles
    mask = shingles.hashes % np.uint64(passes) == number
    return Shingles(shingles.hashes[mask], to_offsets(mask)[shingles.bounds])


@compiled()
def _sort(hashes, bounds, low, high):  # type: ignore[no-untyped-def]
    for paper in range(low, high):
        hashes[bounds[paper] : bounds[paper + 1]].sort()


@compiled()
def _add_shared(hashes, bounds, first, second, shared, low, high):  # type: ignore[no-untyped-def]
    """Add to every pair the number of word triples that both papers have."""
    for pair in range(low, high):
        i, end = bounds[first[pair]], bounds[first[pair] + 1]
        j, stop = bounds[second[pair]], bounds[second[pair] + 1]
        count = 0
        while i < end and j < stop:
            one, other = hashes[i], hashes[j]
            if one == other:
                count += 1
            # no branches: neither is more likely than the other
            i, j = i + (one <= other), j + (other <= one)
        shared[pair] += count
