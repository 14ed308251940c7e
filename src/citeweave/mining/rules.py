"""Rules: a short list of them says how positives and negatives are chosen. It is the `[mining]` table of a recipe.

    [mining.positives]                        # SciNCL: five neighbours around rank 25 ...
    source = "neighbours"
    count = 5
    band = 25

    [mining.negatives.hard]                   # ... two around rank 4000 ...
    source = "neighbours"
    count = 2
    band = 4000

    [mining.negatives.easy]                   # ... and three at random that are not among the neighbours
    source = "random"
    count = 3
    exclude = ["neighbours"]

`[mining.positives]` is one rule, or a table of named ones. `rule_reading.py` reads them, `following.py` follows them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from citeweave.errors import UserError, choose
from citeweave.mining.aspect_names import OF_ASPECT, OTHER, RELATIONS, SAME, check_aspect, is_relation
from citeweave.mining.rule import SHARES, VECTOR_SOURCES, Rule

TEXTS = ("abstract", "title", "either", "any")


@dataclass(frozen=True, slots=True)
class MiningRules:
    """The whole `[mining]` table."""

    positives: tuple[Rule, ...] = ()
    negatives: tuple[Rule, ...] = ()
    text: str = "abstract"
    """Which papers take part: with title and abstract, with a title, with either of the two, or any."""

    anchors: int = 0
    """How many anchors to draw from those that are possible; 0 = all."""

    anchors_per: str = "papers"
    """`papers`: one group an anchor; `contexts`: one sample for every pair of papers cited in one sentence."""

    contexts: ContextFilter = field(default_factory=lambda: ContextFilter())
    """Which citing sentences count, where anchors come from contexts."""

    aspects: tuple[str, ...] = ()
    """One group for every anchor and aspect: background, method, result, ..., miscellaneous (intent unknown), venue,
    author, field."""

    every_aspect: bool = False
    """Leave out anchors that have no positive in some aspect (miscellaneous aside)."""

    tasks: tuple[tuple[str, float, MiningRules], ...] = ()
    """A mixture: name, weight and rules of each source; then there are no rules at this level."""

    def __post_init__(self) -> None:
        choose(self.text, TEXTS, "mining.text")
        choose(self.anchors_per, ("papers", "contexts"), "mining.anchors_per")
        if self.anchors < 0:
            raise UserError(f"mining.anchors is {self.anchors}; it must be 0 (all) or more")
        for aspect in self.aspects:
            check_aspect(aspect)
        if self.tasks:
            return
        if not self.positives and self.anchors_per == "papers":
            raise UserError("mining has no rule for positives; give [mining.positives] with source and count")
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names) or len(names) > 255:
            raise UserError(f"mining has two rules of one name, or more than 255 ({', '.join(names)}); name each anew")
        ranked = any(rule.source == "neighbours" for rule in self.rules)
        for rule in self.rules:
            if "neighbours" in rule.exclude and not ranked:
                raise UserError(
                    f"rule {rule.name!r} excludes neighbours, and no rule has source neighbours; leave it out"
                )
            self._check_aspects_of(rule)

    def without_sentences(self) -> MiningRules:
        """The rules for a corpus without citing sentences: those that can do without them are left out."""
        tasks = tuple((name, weight, inner.without_sentences()) for name, weight, inner in self.tasks)
        positives, negatives = (
            tuple(rule for rule in rules if not rule.optional) for rules in (self.positives, self.negatives)
        )
        return dataclasses.replace(self, positives=positives, negatives=negatives, tasks=tasks)

    def _check_aspects_of(self, rule: Rule) -> None:
        """A rule that goes by the aspect must fit every aspect for which it holds."""
        by_intent, by_relation = rule.intent in (SAME, OTHER), rule.relation in (SAME, OTHER)
        by_graph = rule.source in VECTOR_SOURCES and rule.vectors == OF_ASPECT
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
            raise UserError(f"rule {rule.name!r} excludes positives, and those of rule {shared!r} are drawn and not "
                            f"listed; exclude relations instead, such as {RELATIONS[0]!r}")  # fmt: skip

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (*self.positives, *self.negatives)

    def for_aspect(self, aspect: str) -> MiningRules:
        """The same rules with the vectors and bands of one aspect in place of "aspect"."""
        if not self.aspect_graphs:
            return self
        positives, negatives = (
            tuple(rule.for_aspect(aspect) for rule in side) for side in (self.positives, self.negatives)
        )
        return dataclasses.replace(self, positives=positives, negatives=negatives)

    @property
    def aspect_graphs(self) -> tuple[str, ...]:
        """Aspects whose citations are embedded on their own, as some rule draws by such vectors."""
        inner = [aspect for _, _, rules in self.tasks for aspect in rules.aspect_graphs]
        by_graph = [rule for rule in self.rules if rule.source in VECTOR_SOURCES and rule.vectors == OF_ASPECT]
        own = [aspect for aspect in self.aspects if any(aspect not in rule.not_for for rule in by_graph)]
        return tuple(dict.fromkeys([*inner, *own]))

    def needs_vectors(self, name: str) -> bool:
        """Whether some rule draws by the vectors of this name."""
        inner = any(rules.needs_vectors(name) for _, _, rules in self.tasks)
        return inner or any(rule.source in VECTOR_SOURCES and rule.vectors == name for rule in self.rules)

    @property
    def from_contexts(self) -> bool:
        """Whether some samples come from citing sentences, and so have some."""
        return self.anchors_per == "contexts" or any(rules.from_contexts for _, _, rules in self.tasks)

    @property
    def needs_intents(self) -> bool:
        """Whether some rule asks for citations of a known intent."""
        inner = any(rules.needs_intents for _, _, rules in self.tasks)
        return inner or bool(self.aspect_graphs) or any(rule.intent not in ("", "unknown") for rule in self.rules)

    @property
    def sources(self) -> set[str]:
        """Everything that some rule draws from or excludes."""
        inner = {source for _, _, rules in self.tasks for source in rules.sources}
        return inner | {rule.source for rule in self.rules} | {name for rule in self.rules for name in rule.exclude}


@dataclass(frozen=True, slots=True)
class ContextFilter:
    """ASPIRE's filters for co-citation contexts (Mysore et al., NAACL 2022, and its code)."""

    least_papers: int = 2
    most_papers: int = 3
    """Co-cited papers in the sentence, those outside the corpus counted too."""

    least_words: int = 5
    most_words: int = 60
    brackets: bool = True
    """Only sentences with ( ) or [ ]: others have lost their citation marks."""

    most_contexts: int = 10
    """Contexts kept for one pair; one of each citing paper."""

    least_sentences: int = 3
    most_sentences: int = 20
    longest_sentence: int = 80
    """Abstracts with fewer or more sentences, with a longer one (in words), or of tiny ones only are left out."""
