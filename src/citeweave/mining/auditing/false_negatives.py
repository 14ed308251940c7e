"""What negatives really are to their anchors: cited, co-cited, ..., or the same work under another id.

    judge_relations(samples, graph)["negatives"]["hard"].relations["cited"]      how many the anchors cite themselves

The same is counted for positives, where being related is what is hoped for. Texts are only compared for negatives,
with the anchor and with each positive of the sample: a copy of a positive is a false negative too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus
from citeweave.graph.citations import CitationGraph
from citeweave.mining.auditing.pair_relations import LONGEST, RELATIONS, bit_of, relate_pairs
from citeweave.mining.auditing.pair_texts import same_works
from citeweave.mining.auditing.pick_blocks import spans, take_span, walk
from citeweave.mining.samples import Samples
from citeweave.progress import QUIET, Reporter

MOST_PAIRS = 8_000_000
"""Pairs whose texts are compared, about; of more, a part of the negatives is drawn."""


@dataclass(frozen=True, slots=True)
class Related:
    """What the picks of one rule are to their anchors, in counts of picks."""

    picks: int
    relations: dict[str, int]
    """connected (either way), cited, citing, cocited, coupled, second_hop; empty where no graph is given."""


@dataclass(frozen=True, slots=True)
class Copies:
    """How many negatives of one rule are a second copy of a paper they should differ from."""

    judged: int
    """Negatives whose text was compared."""

    of_anchor: int
    of_positive: int
    either: int


@dataclass(frozen=True, slots=True)
class Copy:
    """An example: a negative that is another record of the anchor, or of a positive."""

    rule: str
    paper: str
    negative: str


def judge_relations(
    samples: Samples,
    graph: CitationGraph | None,
    *,
    longest: int = LONGEST,
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> dict[str, dict[str, Related]]:
    """Counts by side and rule. Relations over two hops are those of rules with the same `longest`."""
    found: dict[str, dict[str, Related]] = {}
    total = len(samples.positives.rows) + len(samples.negatives.rows)
    rules, masks = len(samples.names.rules), 1 << len(RELATIONS)
    with reporter.task("relating", total, "picks") as advance:
        for side in ("positives", "negatives"):
            counts = np.zeros((rules, masks), np.int64)  # by rule and relations
            for block in walk(samples, side):
                bits = np.zeros(len(block), np.uint8)
                if graph is not None:
                    bits = relate_pairs(graph, block.anchors, block.rows, longest=longest, workers=workers)
                together = block.rules.astype(np.int64) * masks + bits
                counts += np.bincount(together, minlength=rules * masks).reshape(rules, masks)
                advance(len(block))
            used = np.flatnonzero(counts.sum(axis=1)).tolist()
            found[side] = {samples.names.rules[rule]: _related(counts[rule], graph is not None) for rule in used}
    return found


def _related(counts: NDArray[np.int64], known: bool) -> Related:
    """Counts of every relation from the counts of every mask, shape (masks,)."""
    masks = np.arange(len(counts))
    wanted = {"connected": bit_of("cited") | bit_of("citing"), **{name: bit_of(name) for name in RELATIONS}}
    found = {name: int(counts[(masks & bits) > 0].sum()) for name, bits in wanted.items()}
    return Related(int(counts.sum()), found if known else {})


def find_copies(
    samples: Samples,
    corpus: Corpus,
    *,
    examples: int = 10,
    memory: int = 512 << 20,
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> tuple[dict[str, Copies], tuple[Copy, ...]]:
    """Compare the texts of negatives: counts by rule, and some examples."""
    pairs, rules = _join(_text_pairs(samples))
    same = np.flatnonzero(
        same_works(corpus, pairs.others, pairs.negatives, memory=memory, workers=workers, reporter=reporter)
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
    """Negatives beside the papers whose copies they must not be; every column of shape (pairs,)."""

    others: NDArray[np.int32]
    """The anchor, or a positive of the sample."""

    negatives: NDArray[np.int32]
    numbers: NDArray[np.int64]
    """Which of the judged negatives it is, from 0."""

    with_anchor: NDArray[np.bool_]


def _join(blocks: Iterable[tuple[_TextPairs, NDArray[np.uint8]]]) -> tuple[_TextPairs, NDArray[np.uint8]]:
    parts, rules, judged = [], [], 0
    for part, own in blocks:
        parts.append(part._replace(numbers=part.numbers + judged))
        rules.append(own)
        judged += len(own)
    return _TextPairs(*(np.concatenate(columns) for columns in zip(*parts, strict=True))), np.concatenate(rules)


def _text_pairs(samples: Samples) -> Iterator[tuple[_TextPairs, NDArray[np.uint8]]]:
    """Block by block: the pairs to compare, and the rules of the negatives judged."""
    ups, downs = (np.diff(picks.offsets) for picks in (samples.positives, samples.negatives))
    share = min(1.0, MOST_PAIRS / max(1, int(((1 + ups) * downs).sum())))
    shares = np.full(len(samples.names.rules), share)
    for first, last in spans(samples):
        up, down = (take_span(samples, side, first, last) for side in ("positives", "negatives"))
        chosen = down.draw(shares)
        owners = down.samples[chosen]
        counts = ups[owners]
        number = np.repeat(np.arange(len(chosen)), counts)  # (pairs with positives,)
        place = np.arange(len(number)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = samples.positives.offsets[owners][number] - up.first + place
        yield (
            _TextPairs(
                others=np.concatenate([down.anchors[chosen], up.rows[at]]).astype(np.int32),
                negatives=np.concatenate([down.rows[chosen], down.rows[chosen][number]]).astype(np.int32),
                numbers=np.concatenate([np.arange(len(chosen)), number]),
                with_anchor=np.repeat([True, False], [len(chosen), len(number)]),
            ),
            down.rules[chosen],
        )
