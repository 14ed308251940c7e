"""Sources: one small function for each way to find candidates; all take a block of anchors and give lists.

    cited, cocited, ...   papers related in the graph, restricted to an intent where the rule says so
    table                 pairs with counts from anywhere: co-views, co-reads, SPECTER's data.json
    random                papers of the pool
    shares                papers of the same venue, with a shared author or field: see `sharing_draws.py`
    neighbours, similar, cells, sorted_random      by vectors: see `vector_sources.py`

Candidates are papers of the pool and never the anchor. Choosing among them is `drawing.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from citeweave.graph.signals import ONE_HOP, Signal, related
from citeweave.hashing import mix
from citeweave.mining.aspect_names import MISCELLANEOUS, OTHER, SAME, intent_bits, is_relation
from citeweave.mining.drawing import Lists, draw_from_pool, join_lists, keep_entries, no_lists, without
from citeweave.mining.material import Material
from citeweave.mining.rule import Rule
from citeweave.mining.sharing_draws import draw_sharers


@dataclass
class Block:
    """Some anchors at a time, with what several rules share."""

    anchors: NDArray[np.int64]
    material: Material
    aspect: str = ""
    aspects: tuple[str, ...] = ()
    shared: dict[Signal, Lists] = field(default_factory=dict)
    """Related papers that were found, for every aspect of the same anchors."""

    task: str = ""
    """The source of a mixture that is mined; two of them draw apart."""

    given: Lists | None = None
    """Positives that are known before any rule is followed: the papers cited in the same sentence."""

    @property
    def keys(self) -> NDArray[np.uint64]:
        """What draws depend on: the anchor, and the given positive where there is one."""
        keys = self.anchors.astype(np.uint64)
        return keys if self.given is None else mix(keys, self.given.rows.astype(np.uint64))

    def related(self, signal: Signal) -> Lists:
        """Papers of the pool related to each anchor, found once."""
        if signal not in self.shared:
            relations, workers = self.material.graph(f"source {signal.name}"), self.material.workers
            found = related(relations, signal, self.anchors, workers=workers)
            lists = Lists(found.offsets, found.targets, found.strengths)
            self.shared[signal] = keep_entries(lists, self.material.in_pool[lists.rows])
        return self.shared[signal]


def related_papers(rule: Rule, block: Block) -> Lists:
    """Candidates by a signal of the graph."""
    if rule.intent == OTHER:
        return _of_other_aspects(rule, block)
    return block.related(_signal(rule, rule.intent_bits(block.aspect)))


def _of_other_aspects(rule: Rule, block: Block) -> Lists:
    """Related by an intent of another aspect and by none of this one; of two hops, both are of such intents.

    Unknown intents prove nothing: by them alone papers are not of another aspect, and a paper that is connected by one
    beside another (the two cite each other) may be of this aspect, so it is left out too.
    """
    bits = 0
    for aspect in block.aspects:
        if aspect not in (block.aspect, MISCELLANEOUS) and not is_relation(aspect):
            bits |= intent_bits(aspect, "mining.aspects")
    found = block.related(_signal(rule, bits)) if bits else no_lists(len(block.anchors))
    not_these = [block.related(_signal(rule, rule.intent_bits(block.aspect)))]
    if rule.source in ONE_HOP:
        not_these.append(block.related(_signal(rule, 0)))
    return without(found, join_lists(*not_these), len(block.material.corpus))


def _signal(rule: Rule, intent: int | None) -> Signal:
    return Signal(rule.source, intent=intent, longest=rule.longest, least=rule.least)


def table_papers(rule: Rule, block: Block) -> Lists:
    """Candidates of a table with counts; with a grade only the upper or lower ones, anchor by anchor."""
    table, material = block.material.table(rule.table), block.material
    counts = table.offsets[block.anchors + 1] - table.offsets[block.anchors]
    at = np.repeat(table.offsets[block.anchors], counts) + _places(counts)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    lists = Lists(offsets, table.targets[at], table.counts[at])
    if rule.grade:
        lists = keep_entries(lists, graded(lists, rule.grade, rule.margin))
    other = lists.rows != block.anchors[lists.owners()]
    return keep_entries(lists, material.in_pool[lists.rows] & other)


def graded(lists: Lists, grade: str, margin: float) -> NDArray[np.bool_]:
    """SPECTER's rule for graded candidates: a margin of half the way between the anchor's least and largest count.

    Lower are counts under largest - margin, upper those over least + margin. Where all counts are equal there
    is nothing to tell apart: all are upper, none is lower.

    >>> lists = Lists(np.array([0, 3]), np.array([4, 5, 6], np.int32), np.array([5, 5, 1], np.float32))
    >>> graded(lists, "upper", 0.5).tolist(), graded(lists, "lower", 0.5).tolist()
    ([True, True, False], [False, False, True])
    """
    counts, owners = lists.counts(), lists.owners()
    largest, least = np.where(counts > 0, -np.inf, 0.0), np.where(counts > 0, np.inf, 0.0)  # (anchors,)
    np.maximum.at(largest, owners, lists.scores)
    np.minimum.at(least, owners, lists.scores)
    distance = margin * (largest - least)
    equal = (largest == least)[owners]
    if grade == "lower":
        return np.asarray(~equal & (lists.scores < (largest - distance)[owners]))
    return np.asarray(equal | (lists.scores > (least + distance)[owners]))


def random_papers(rule: Rule, block: Block, forbidden: Lists, count: int, salt: np.uint64) -> Lists:
    """The first `count` of an endless random row of different papers for every anchor."""
    material = block.material
    if rule.unshared:
        unwanted = material.sharing(rule.unshared)
        size = len(material.pool)
        return draw_sharers(block.anchors, block.keys, material.pool, unwanted, count, forbidden, salt, pool_size=size)
    return draw_from_pool(
        block.anchors,
        block.keys,
        material.pool,
        count,
        forbidden,
        salt,
        fields=(material.fields, rule.field) if rule.field else None,
    )


def shared_papers(rule: Rule, block: Block, forbidden: Lists, salt: np.uint64) -> Lists:
    """Papers drawn from those that share something with the anchor; never more than the rule asks for."""
    material, unwanted = block.material, rule.unshared
    relations: tuple[str, ...] = (block.aspect,) if rule.relation == SAME else (rule.relation,)
    if rule.relation == OTHER:
        relations = tuple(each for each in block.aspects if is_relation(each) and each != block.aspect)
        unwanted = tuple(dict.fromkeys([block.aspect, *unwanted]))
    if not relations:
        return no_lists(len(block.anchors))
    wanted = material.sharing(relations)
    not_these = material.sharing(unwanted) if unwanted else None
    size = len(material.pool)
    return draw_sharers(block.anchors, block.keys, wanted, not_these, rule.count, forbidden, salt, pool_size=size)


def excluded_papers(rule: Rule, block: Block, positives: Lists) -> Lists:
    """What the rule may never choose, by the names in its `exclude`; `neighbours` are left to `vector_sources.py`,
    what is shared to `sharing_draws.py`.

    `positives` are all candidates of the positive rules.
    """
    parts = [no_lists(len(block.anchors))]
    for name in rule.exclude:
        if name == "positives":
            parts.append(positives)
        elif name != "neighbours" and not is_relation(name):
            parts.append(block.related(Signal(name, longest=rule.longest)))
    return join_lists(*parts)


def _places(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... within each list.

    >>> _places(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
