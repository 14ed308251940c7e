"""Mining rules: how positives and negatives of every anchor are selected; the `[mining]` table of a recipe.

    [mining.positives]                        # SciNCL: five neighbors around rank 25 ...
    source = "neighbors"
    count = 5
    band = 25

    [mining.negatives.hard]                   # ... two around rank 4000 ...
    source = "neighbors"
    count = 2
    band = 4000

    [mining.negatives.easy]                   # ... and three at random that are not among the neighbors
    source = "random"
    count = 3
    exclude = ["neighbors"]

`[mining.positives]` is one rule, or a table of named ones. A rule is checked when it is made:

>>> rules = parse_rules({"positives": {"source": "cited", "count": 5}})
>>> rules.positives[0].name, rules.positives[0].source
('positives', 'cited')
>>> parse_rules({"positives": {"source": "cited", "coutn": 5}})  # doctest: +ELLIPSIS
Traceback (most recent call last):
citeweave.core.errors.UserError: mining.positives: key is 'coutn'; it must be one of above, ... Did you mean 'count'?
>>> Rule("easy", "random", 3, band=25)
Traceback (most recent call last):
citeweave.core.errors.UserError: rule 'easy': band is 25 with source random; neighbors needs a band such as 25 or [1000, 2000], other sources have none

Samples may be mined per aspect, which is a citation intent, the rest of citations, or shared metadata:

    background, method, result, ...    connected by a citation of this intent
    miscellaneous                      connected by a citation of unknown intent
    venue, author, field               sharing one of these

>>> intent_bits("method", "mining.aspects"), is_relation("venue"), aspect_vectors("method")
(2, True, 'graph-method')

`apply_rules.py` applies rules. Does not look at papers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from citeweave.core.errors import UserError, choose
from citeweave.core.options import INTERNAL, Expected, Old, OneOf, Range, check, convert, parse_table
from citeweave.corpus.paper import Intent, parse_intents
from citeweave.graph.signals import SIGNALS, TWO_HOPS
from citeweave.mining.options import ContextFilter

MISCELLANEOUS = "miscellaneous"
RELATIONS = ("venue", "author", "field")
SAME, OTHER = "same", "other"
OF_ASPECT = "aspect"
"""Value of `vectors` that stands for the node vectors of the graph of the sample's aspect."""

NODES = "graph"
"""The name of the node vectors in rules."""


def is_relation(aspect: str) -> bool:
    """Whether an aspect is shared metadata (venue, author, field) rather than a citation intent."""
    return aspect in RELATIONS


def aspect_vectors(aspect: str) -> str:
    """Return the name of the node vectors of the graph that has only the citations of this aspect."""
    return f"{NODES}-{aspect}"


def intent_bits(word: str, where: str) -> int:
    """Return the bits of `Intent` for the name of an intent in a mining rule; 0 = unknown."""
    if word in ("unknown", MISCELLANEOUS):
        return 0
    return _known_intents(word, where, ("unknown",))


def _known_intents(word: str, where: str, others: tuple[str, ...]) -> int:
    """Return the bits of the intents that a word names; refuse any other word and list what else there could be."""
    bits = int(parse_intents(word))
    if not bits:
        names = [str(intent.name).lower() for intent in Intent if intent]
        raise UserError(f"{where} is {word!r}; it must be one of {', '.join([*names, *others])}")
    return bits


# One rule.

VECTOR_SOURCES = ("neighbors", "similar", "cells", "sorted_random")
SHARES = "shares"
SOURCES = (*SIGNALS, *VECTOR_SOURCES, "random", "table", SHARES)
ORDERS = ("random", "strongest", "weakest")
IF_TOO_FEW = ("keep", "skip", "repeat", "random")
FIELDS = ("", "same", "overlapping", "disjoint")
GRADES = ("", "upper", "lower")
METRICS = ("cosine", "dot", "l2")

_FITS: dict[str, tuple[str, ...]] = {
    "band": ("neighbors",),
    "subsample": ("neighbors",),
    "below_positive": ("neighbors",),
    "vectors": VECTOR_SOURCES,
    "metric": ("neighbors", "sorted_random"),
    "above": ("similar",),
    "below": ("similar",),
    "cells": ("cells",),
    "cell": ("cells",),
    "candidates": ("sorted_random",),
    "order": (*SIGNALS, "table", "neighbors", "sorted_random"),
    "intent": SIGNALS,
    "min_strength": TWO_HOPS,
    "table": ("table",),
    "grade": ("table",),
    "margin": ("table",),
    "field": ("random", "sorted_random"),
    "relation": (SHARES,),
    "aspect_bands": ("neighbors",),
    "optional": ("cocited_nearby",),
}
"""The sources to which a key applies; keys that are not listed apply to all."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One mining rule: select a number of papers from one source for every anchor."""

    name: Annotated[str, INTERNAL]
    source: Annotated[str, OneOf(*SOURCES)]
    """A signal of the graph (cited, citing, connected, second_hop, connected_of_connected, cocited, cocited_nearby,
    coupled), a way to use vectors (neighbors, similar, cells, sorted_random), `random`, `table`, or `shares`: papers
    of the same venue, with a shared author or a shared field."""

    count: Annotated[int, Range(1, 10_000)]
    """How many papers to select per anchor."""

    band: Annotated[
        int | str | tuple[int | str, int | str] | None,
        Expected("a rank such as 25, two such as [1000, 2000], or a share such as '0.6%'"),
    ] = None
    """neighbors: 25 = ranks 25 - count < rank <= 25; [1000, 2000] = draw from 1000 < rank <= 2000; a share of
    the pool such as "0.6%" in place of a rank."""

    vectors: str = "graph"
    """neighbors, similar, cells, sorted_random: the name of the vectors; "graph" are the node vectors, "aspect" those
    of the graph that has only the citations of the sample's aspect."""

    metric: Annotated[str, OneOf(*METRICS)] = "cosine"
    """How these vectors are compared: cosine, dot or l2."""

    subsample: int = 0
    """neighbors: search the band in a random subsample of so many papers, fast and approximate; 0 = exact."""

    above: float | None = None
    """similar: the `count` papers of lowest similarity that is at least this."""

    below: float | None = None
    """similar: the `count` papers of highest similarity that is under this."""

    cells: int = 100
    """cells: number of k-means cells."""

    cell: int = 50
    """cells: draw one paper from each of the `count` cells up to the n-th nearest to the anchor's own."""

    candidates: int = 100
    """sorted_random: how many random papers are ordered by similarity."""

    order: Annotated[str, OneOf(*ORDERS)] = "random"
    """Which candidates of a signal, a table, a band or a random draw: drawn at random, the strongest (nearest), or the
    weakest (farthest)."""

    intent: str = ""
    """Only citations of this intent: background, method, result, ..., unknown; `same` = the aspect of the sample,
    `other` = another aspect and not this one."""

    relation: str = ""
    """shares: venue, author or field; `same` = the aspect of the sample, `other` = another of the aspects and not this
    one."""

    aspect_bands: Annotated[tuple[tuple[str, Any], ...], Expected('pairs such as [["method", 12]]')] = ()
    """neighbors with vectors "aspect": aspects with a band of their own, such as [["method", 12]]."""

    min_strength: Annotated[float, Old("least")] = 0.0
    """Signals over two hops: minimum strength; 0 = any."""

    max_references: Annotated[int, Old("longest")] = 1000
    """Signals over two hops: longer reference lists do not count."""

    table: str = ""
    """table: the name of the table."""

    grade: Annotated[str, OneOf(*GRADES)] = ""
    """table: only candidates of the upper or the lower grade, SPECTER's rule for counts in data.json."""

    margin: float = 0.5
    """table: how far apart the grades are, as a share of the distance between the largest and the smallest count."""

    field: Annotated[str, OneOf(*FIELDS)] = ""
    """random: papers of the same fields as the anchor, of overlapping, or of disjoint ones."""

    exclude: Annotated[tuple[str, ...], OneOf(*SIGNALS, "positives", "neighbors", *RELATIONS)] = ()
    """Never select these: names of signals, `positives` (every candidate of the positive rules), `neighbors` (all within
    the farthest rank that a rule uses), and what shares a venue, author or field with the anchor."""

    below_positive: float = 0.0
    """neighbors as negatives: leave out papers whose similarity is over this share of the least similar positive's,
    as they may be uncited positives; 0 = off. 0.95 is usual (Moreira et al., 2024)."""

    if_too_few: Annotated[str, OneOf(*IF_TOO_FEW), Old("few")] = "keep"
    """What to do with fewer candidates than `count`: keep them, skip the anchor, repeat some, or fill up at random."""

    not_for: tuple[str, ...] = ()
    """Aspects for which this rule is left out."""

    optional: bool = False
    """cocited_nearby: the rule is left out where the corpus has no citing sentences."""

    def __post_init__(self) -> None:
        where = f"rule {self.name!r}"
        check(self, f"{where}: ")
        if (self.source == "neighbors") != (self.band is not None):
            raise UserError(f"{where}: band is {self.band!r} with source {self.source}; neighbors needs a band such as "
                            "25 or [1000, 2000], other sources have none")  # fmt: skip
        if self.source == "similar" and (self.above is None) == (self.below is None):
            raise UserError(f"{where}: source similar needs either above or below, such as below = 0.5")
        if self.source == "cells" and not self.count <= min(self.cell, self.cells - 1):
            raise UserError(f"{where}: count is {self.count}, one paper from each of as many cells, with cell {self.cell} of "
                            f"{self.cells}; there must be that many cells before it beside the anchor's own")  # fmt: skip
        if self.source == "table" and not self.table:
            raise UserError(f"{where}: source table needs the name of a table; give it with --table NAME=FILE")
        self._check_keys(where)

    def _check_keys(self, where: str) -> None:
        """Refuse keys that do not fit the source or each other."""
        for key, sources in _FITS.items():
            if self.source not in sources and getattr(self, key) != _DEFAULTS[key]:
                signals = ["a signal"] if set(sources) & set(SIGNALS) else []
                named = " or ".join([*signals, *(source for source in sources if source not in SIGNALS)])
                raise UserError(f"{where}: {key} is for source {named}, not for {self.source}; leave it out")
        if self.source == SHARES:
            choose(self.relation, (*RELATIONS, SAME, OTHER), f"{where}: relation")
        if self.field and self.excluded_relations:
            raise UserError(
                f"{where}: field {self.field!r} beside exclude {self.excluded_relations[0]!r}; give one of them"
            )
        if self.aspect_bands and self.vectors != OF_ASPECT:
            raise UserError(f"{where}: aspect_bands is for vectors = {OF_ASPECT!r}, not {self.vectors!r}; leave it out")

    @property
    def excluded_relations(self) -> tuple[str, ...]:
        """Metadata that a selected paper must not share with the anchor."""
        return tuple(name for name in self.exclude if is_relation(name))

    def for_aspect(self, aspect: str) -> Rule:
        """Return the mining rule with the vectors and the band of one aspect in place of "aspect"."""
        if self.vectors != OF_ASPECT:
            return self
        band = {name: tuple(band) if isinstance(band, list) else band for name, band in self.aspect_bands}
        return dataclasses.replace(
            self, vectors=aspect_vectors(aspect), band=band.get(aspect, self.band), aspect_bands=()
        )

    def intent_bits(self, aspect: str = "") -> int | None:
        """Return the bits of `Intent` that a citation must carry; None = any. `other` is resolved by the miner."""
        word = aspect if self.intent in (SAME, OTHER) else self.intent
        return intent_bits(word, f"rule {self.name!r}: intent") if word else None

    def ranks_by(self, vectors: str) -> bool:
        """Whether the rule ranks papers by the vectors of this name."""
        return self.source in VECTOR_SOURCES and self.vectors == vectors

    def ranks(self, pool: int) -> tuple[int, int]:
        """Return the mining rule's band as ranks in a pool of this size: low < rank <= high.

        >>> Rule("p", "neighbors", 5, band=25).ranks(30_000), Rule("n", "neighbors", 2, band="1%").ranks(30_000)
        ((20, 25), (298, 300))
        """
        where = f"rule {self.name!r}: band"
        ends = [_rank(end, pool, where) for end in (self.band if isinstance(self.band, tuple) else (self.band,))]
        low, high = ends if len(ends) == 2 else (ends[0] - self.count, ends[0])
        if not 0 <= low < high or high - low < self.count:
            raise UserError(
                f"{where} is ranks {low} to {high} for {self.count} papers; it must hold at least that many"
            )
        return low, high


_DEFAULTS = {entry.name: entry.default for entry in dataclasses.fields(Rule)}


def _rank(end: Any, pool: int, where: str) -> int:
    """Return one end of a band as a rank, from a rank or a share of the pool."""
    if isinstance(end, str):
        number = end.strip().removesuffix("%")
        try:
            share = float(number) / 100
        except ValueError:
            share = -1.0
        if not end.strip().endswith("%") or not 0 <= share <= 1:
            raise UserError(f"{where} is {end!r}; a share of the pool is a percentage such as '0.6%'")
        return round(share * pool)
    if not isinstance(end, int) or isinstance(end, bool):
        raise UserError(f"{where} is {end!r}; it must be a rank such as 25 or a share such as '0.6%'")
    return end


# All rules of a recipe.

TEXTS = ("abstract", "title", "either", "any")


@dataclass(frozen=True, slots=True)
class MiningRules:
    """All mining rules of a recipe: the `[mining]` table."""

    positives: tuple[Rule, ...] = ()
    negatives: tuple[Rule, ...] = ()
    text: Annotated[str, OneOf(*TEXTS)] = "abstract"
    """Which papers take part: with title and abstract, with a title, with either of the two, or any."""

    anchors: Annotated[int, Range(0)] = 0
    """How many of the possible anchors to draw; 0 = all."""

    anchors_per: Annotated[str, OneOf("papers", "contexts")] = "papers"
    """`papers`: one sample per anchor; `contexts`: one sample for every pair of papers cited in one sentence."""

    contexts: ContextFilter = field(default_factory=ContextFilter)
    """Which citing sentences count, where anchors come from contexts."""

    aspects: tuple[str, ...] = ()
    """One sample for every anchor and aspect: background, method, result, ..., miscellaneous (intent unknown), venue,
    author, field."""

    every_aspect: bool = False
    """Leave out anchors that have no positive in some aspect (miscellaneous aside)."""

    tasks: tuple[tuple[str, float, MiningRules], ...] = ()
    """A mixture: name, weight and rules of each task; then there are no rules at this level."""

    def __post_init__(self) -> None:
        check(self, "mining")
        for aspect in self.aspects:
            if aspect not in (MISCELLANEOUS, *RELATIONS):
                _known_intents(aspect, "mining.aspects", (MISCELLANEOUS, *RELATIONS))
        if self.tasks:
            return
        if not self.positives and self.anchors_per == "papers":
            raise UserError("mining has no rule for positives; give [mining.positives] with source and count")
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names) or len(names) > 255:
            raise UserError(
                f"mining has two rules of one name, or more than 255 ({', '.join(names)}); give every rule a name of its own"
            )
        ranked = any(rule.source == "neighbors" for rule in self.rules)
        for rule in self.rules:
            if "neighbors" in rule.exclude and not ranked:
                raise UserError(
                    f"rule {rule.name!r} excludes neighbors, and no rule has source neighbors; leave it out"
                )
            self._check_aspects_of(rule)

    def without_sentences(self) -> MiningRules:
        """Return the mining rules for a corpus without citing sentences: optional rules are left out."""
        tasks = tuple((name, weight, inner.without_sentences()) for name, weight, inner in self.tasks)
        kept = self.change_sides(lambda rules: tuple(rule for rule in rules if not rule.optional))
        return dataclasses.replace(kept, tasks=tasks)

    def change_sides(self, change: Callable[[tuple[Rule, ...]], tuple[Rule, ...]]) -> MiningRules:
        """Return the mining rules with those of either side, positives and negatives, changed by a function."""
        return dataclasses.replace(self, positives=change(self.positives), negatives=change(self.negatives))

    def _check_aspects_of(self, rule: Rule) -> None:
        """Refuse a rule that depends on the aspect but does not fit every aspect it applies to."""
        by_intent, by_relation = rule.intent in (SAME, OTHER), rule.relation in (SAME, OTHER)
        by_graph = rule.ranks_by(OF_ASPECT)
        key, value = ("relation", rule.relation) if by_relation else ("intent", rule.intent)
        key, value = ("vectors", rule.vectors) if by_graph else (key, value)
        if (by_intent or by_relation or by_graph) and not self.aspects:
            raise UserError(f'rule {rule.name!r}: {key} {value!r} needs mining.aspects; name some, such as ["method"]')
        for aspect in (each for each in self.aspects if each not in rule.not_for):
            if ((by_intent or by_graph) and is_relation(aspect)) or (by_relation and not is_relation(aspect)):
                kind = "a relation" if is_relation(aspect) else "an intent"
                raise UserError(f"rule {rule.name!r}: {key} {value!r} does not fit aspect {aspect!r}, which is {kind}; "
                                f'leave it out for this aspect: not_for = ["{aspect}"]')  # fmt: skip
        shared = next((each.name for each in self.positives if each.source == SHARES), "")
        if shared and "positives" in rule.exclude:
            raise UserError(f"rule {rule.name!r} excludes positives, and those of rule {shared!r} are drawn, not "
                            f"listed; exclude relations instead, such as {RELATIONS[0]!r}")  # fmt: skip

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules for positives and those for negatives."""
        return (*self.positives, *self.negatives)

    def for_aspect(self, aspect: str) -> MiningRules:
        """Return the mining rules with the vectors and bands of one aspect in place of "aspect"."""
        if not self.aspect_graphs:
            return self
        return self.change_sides(lambda rules: tuple(rule.for_aspect(aspect) for rule in rules))

    @property
    def parts(self) -> list[MiningRules]:
        """The rules of every task of a mixture, or these rules if there are no tasks."""
        return [part for _, _, inner in self.tasks for part in inner.parts] or [self]

    @property
    def all_rules(self) -> list[Rule]:
        """The rules of all tasks."""
        return [rule for part in self.parts for rule in part.rules]

    @property
    def aspect_graphs(self) -> tuple[str, ...]:
        """Aspects whose citations need node vectors of their own, because some rule ranks by them."""
        graphs: dict[str, None] = {}
        for part in self.parts:
            by_graph = [rule for rule in part.rules if rule.ranks_by(OF_ASPECT)]
            graphs |= {aspect: None for aspect in part.aspects if any(aspect not in rule.not_for for rule in by_graph)}
        return tuple(graphs)

    def needs_vectors(self, name: str) -> bool:
        """Whether some rule ranks papers by the vectors of this name."""
        return any(rule.ranks_by(name) for rule in self.all_rules)

    @property
    def from_contexts(self) -> bool:
        """Whether some samples come from pairs cited in one sentence."""
        return any(part.anchors_per == "contexts" for part in self.parts)

    @property
    def needs_intents(self) -> bool:
        """Whether some rule needs citations of a known intent."""
        return bool(self.aspect_graphs) or any(rule.intent not in ("", "unknown") for rule in self.all_rules)

    @property
    def sources(self) -> set[str]:
        """All sources that rules draw from or exclude."""
        return {source for rule in self.all_rules for source in (rule.source, *rule.exclude)}


def parse_rules(table: Mapping[str, Any]) -> MiningRules:
    """Read mining rules from a `[mining]` table; refuse an unknown key with the nearest known one."""
    own = {key: value for key, value in table.items() if key not in ("positives", "negatives", "tasks")}
    sides = {side: tuple(_parse_side(side, table.get(side, {}))) for side in ("positives", "negatives")}
    tasks = convert(table.get("tasks", {}), Mapping[str, Mapping[str, Any]], "mining.tasks")
    if tasks and any(sides.values()):
        raise UserError("mining has both tasks and rules of its own; give every rule to a task")
    if tasks and own:
        raise UserError(f"mining has {', '.join(own)} beside tasks; give them to every task, as mining.tasks.NAME.KEY")
    parsed = tuple(_parse_task(name, task) for name, task in tasks.items())
    return parse_table(MiningRules, own, "mining", **sides, tasks=parsed)


def _parse_task(name: str, table: Mapping[str, Any]) -> tuple[str, float, MiningRules]:
    """Read one task of a mixture: name, weight and rules."""
    weight = convert(table.get("weight", 1.0), Annotated[float, Range(above=0)], f"mining.tasks.{name}.weight")
    try:
        return name, weight, parse_rules({key: value for key, value in table.items() if key != "weight"})
    except UserError as error:
        raise UserError(f"mining.tasks.{name}: {error}") from None


def _parse_side(side: str, table: Any) -> list[Rule]:
    """Read the rules for positives or negatives: one rule, or a table of named rules."""
    if not isinstance(table, Mapping):
        raise UserError(f"mining.{side} is {table!r}; it must be a table with source and count, or one of named rules")
    if "source" in table:
        return [parse_table(Rule, table, f"mining.{side}", name=side)]
    return [parse_table(Rule, rule, f"mining.{side}.{name}", name=name) for name, rule in table.items()]


def rules_from_json(value: Mapping[str, Any]) -> MiningRules:
    """Rebuild the rules that a worker mines by from the JSON that its driver sends.

    >>> payload = {"positives": [{"name": "hard", "source": "neighbors", "count": 2, "band": [10, 20]}]}
    >>> rules_from_json(payload).positives[0].band
    (10, 20)
    """
    fields = {name: _tuples(entry) for name, entry in value.items()}
    for side in ("positives", "negatives"):
        fields[side] = tuple(
            Rule(**{name: _tuples(entry) for name, entry in rule.items()}) for rule in value.get(side, ())
        )
    if "contexts" in value:
        fields["contexts"] = ContextFilter(**value["contexts"])
    fields["tasks"] = tuple((name, weight, rules_from_json(inner)) for name, weight, inner in value.get("tasks", ()))
    return MiningRules(**fields)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list | tuple) else value
