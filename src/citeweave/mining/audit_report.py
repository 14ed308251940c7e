"""Report of a sample audit: similarities to the anchors, coverage and collisions as a table, JSON, and warnings.

    audit = audit_samples(samples, corpus, graph=graph)
    print(audit)                     the table
    audit.warnings                   ("0.4 % of the negatives of rule 'hard' are cited by their anchor: add exclude = ...",)

Similarities are the scores that rules gave, and cosines of any vectors:

    measured = measure_similarities(samples, data)
    measured["graph"].quantiles("hard")         {"5 %": 0.02, "25 %": 0.11, "50 %": 0.17, ...}

Large sets are measured on a part of each rule's papers, drawn by a key of their position, so the figures do not depend
on blocks or workers. A warning is one line with the next step:

    0.4 % of the negatives of rule 'hard' are cited by their anchor: add exclude = ["cited"] to it

Shares under the limits below are chance. A rule that draws from a signal on purpose is not blamed for it. Does not read
samples beyond that: `audit.py` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.leakage import LeakageReport
from citeweave.graph.signals import SIGNALS
from citeweave.mining.collisions import Collisions, PickBlock, Repeats, iter_picks
from citeweave.mining.draw import CandidateLists
from citeweave.mining.false_negatives import Copies, Copy
from citeweave.mining.inputs import MiningData
from citeweave.mining.samples import Samples
from citeweave.mining.sources import AnchorBlock
from citeweave.mining.vector_sources import anchor_similarities

SCORES = "score"
"""The name of the scores that rules ranked by; all other names are those of vectors."""

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True, slots=True)
class RuleSimilarities:
    """Similarities in an audit report: each rule's papers to their anchors, by scores or by one kind of vectors."""

    name: str
    values: dict[str, NDArray[np.float32]]
    """By rule, positives first; only rules with a value."""

    missing: dict[str, int]
    """By rule: measured papers without a value, because one of the two has no vector or the rule did not rank."""

    def quantiles(self, rule: str) -> dict[str, float]:
        """Return quantiles of the similarities of one rule's papers to their anchors."""
        values = np.quantile(self.values[rule].astype(np.float64), QUANTILES).tolist()
        return {f"{100 * at:g} %": value for at, value in zip(QUANTILES, values, strict=True)}

    def histogram(self, rule: str, bins: int = 40) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return counts and bin edges of a rule's similarities; cosines of all rules share edges, scores do not."""
        values = [self.values[rule]] if self.name == SCORES else list(self.values.values())
        edges = np.histogram_bin_edges(np.concatenate(values).astype(np.float64), bins)
        return np.histogram(self.values[rule], edges)[0], edges

    def as_json(self) -> dict[str, Any]:
        """Report mean, quantiles and histogram of every rule's similarities in an audit as JSON."""
        rules = {}
        for rule, values in self.values.items():
            counts, edges = self.histogram(rule)
            rules[rule] = {
                "measured": len(values),
                "missing": self.missing.get(rule, 0),
                "mean": float(values.mean(dtype=np.float64)),
                "quantiles": self.quantiles(rule),
                "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
            }
        return rules


@dataclass(frozen=True, slots=True)
class RuleAudit:
    """Audit report on one rule: papers requested and selected, and how they are related to their anchors."""

    name: str
    side: str
    """positives or negatives."""

    picks: int
    asked: int | None = None
    """Papers that the rule was to select, None if unknown."""

    got: int | None = None
    source: str = ""
    """Where the rule draws from, empty if unknown."""

    exclude: tuple[str, ...] = ()
    relations: dict[str, int] = field(default_factory=dict)
    """Selected papers that are connected, cited, citing, cocited, coupled, second_hop; empty without a graph."""

    copies: Copies | None = None
    """Negatives only, if texts were compared."""

    def share(self, relation: str) -> float:
        """Return the share of the rule's papers that have a relation to their anchor."""
        return self.relations.get(relation, 0) / self.picks if self.picks else 0.0

    @property
    def share_of_copies(self) -> float:
        """Share of the rule's negatives that are copies of the anchor or of a positive."""
        return self.copies.either / self.copies.compared if self.copies is not None and self.copies.compared else 0.0

    def as_json(self) -> dict[str, Any]:
        """Report the audit of one rule as JSON: similarities, coverage, collisions."""
        payload: dict[str, Any] = {"side": self.side, "picks": self.picks, "asked": self.asked, "got": self.got}
        payload |= {"source": self.source, "exclude": list(self.exclude)}
        if self.relations:
            payload["relations"] = {
                name: {"picks": number, "share": self.share(name)} for name, number in self.relations.items()
            }
        if self.copies is not None:
            payload["copies"] = self.copies.as_json()
        return payload


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage in an audit report: how many papers, anchors and abstracts the samples consist of."""

    samples: int
    anchors: int
    """Different papers that are anchors."""

    skipped: dict[str, int]
    """Anchors that gave no sample, by reason."""

    papers: int
    """Papers of the corpus ..."""

    pool: int
    """... those that could be selected ..."""

    occurring: int
    """... and those that occur, as anchor, positive or negative."""

    without_abstract: int
    """Of these, papers without an abstract."""

    def as_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in self.__slots__}
        return {**counts, "share_of_pool": self.occurring / max(1, self.pool)}


@dataclass(frozen=True, slots=True)
class Leaked:
    """Leakage in an audit report: papers of a benchmark that occur in samples."""

    papers: int
    """Papers in the samples that are papers of the benchmark."""

    samples: int
    """Samples with at least one of them, in any position."""


@dataclass(frozen=True, slots=True)
class SampleAudit:
    """The complete audit report on samples: `str()` gives a table, `warnings` what to do."""

    folder: str
    coverage: Coverage
    rules: tuple[RuleAudit, ...]
    collisions: Collisions
    repeats: Repeats
    similarities: dict[str, RuleSimilarities] = field(default_factory=dict)
    """By name: `score`, and each kind of vectors."""

    copies: tuple[Copy, ...] = ()
    """Examples of negatives that are the same work as an anchor or a positive."""

    leaked: dict[str, Leaked] = field(default_factory=dict)
    """By benchmark."""

    leakage: LeakageReport | None = None
    """The evidence; its rows number the papers that occur in the samples, ascending."""

    warnings: tuple[str, ...] = ()
    """What is wrong and what to do about it, the most serious first; empty if nothing is."""

    def as_json(self) -> dict[str, Any]:
        """Return the complete audit as JSON."""
        return {
            "samples": self.folder,
            "coverage": self.coverage.as_json(),
            "rules": {rule.name: rule.as_json() for rule in self.rules},
            "collisions": self.collisions.as_json(),
            "copies": [dataclasses.asdict(copy) for copy in self.copies],
            "repeats": self.repeats.as_json(),
            "distances": {name: measured.as_json() for name, measured in self.similarities.items()},
            "leakage": {name: dataclasses.asdict(leak) for name, leak in self.leaked.items()},
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        parts = [_coverage_text(self), _rules_text(self), _collisions_text(self)]
        parts += [_similarities_text(measured) for measured in self.similarities.values()]
        parts += [_repeats_text(self)]
        if self.leaked:
            parts.append(_leakage_text(self))
        parts.append("\n".join(f"! {line}" for line in self.warnings) or "nothing to warn of")
        return "\n\n".join(parts)


def _table(lines: Sequence[Sequence[str]]) -> str:
    """Format lines of the audit as columns; names aligned left, numbers right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = [column[-1][:1].isalpha() or not at for at, column in enumerate(zip(*lines, strict=True))]
    rows = (zip(line, widths, left, strict=True) for line in lines)
    return "\n".join("  ".join(f"{c:<{w}}" if low else f"{c:>{w}}" for c, w, low in row).rstrip() for row in rows)


def _coverage_text(audit: SampleAudit) -> str:
    cover, repeats = audit.coverage, audit.repeats
    sides = ", ".join(f"{value.picks:,} {side}" for side, value in repeats.frequencies.items())
    lines = [f"{audit.folder}: {cover.samples:,} samples of {cover.anchors:,} anchors, {sides}"]
    part = percent(cover.occurring / max(1, cover.pool))
    papers = f"{cover.occurring:,} of {cover.pool:,} papers in play occur ({part})"
    lines.append(f"{papers}, {cover.without_abstract:,} of them without an abstract")
    lines += [f"left out: {number:,} anchors ({reason})" for reason, number in cover.skipped.items()]
    return "\n".join(lines)


def _rules_text(audit: SampleAudit) -> str:
    names = {"cited": "cited", "citing": "citing", "cocited": "co-cited", "coupled": "coupled", "second_hop": "2nd hop"}
    related = any(rule.relations for rule in audit.rules)
    copied = any(rule.copies is not None for rule in audit.rules)
    heads = ["rule", "side", "picks", "of asked", *(names.values() if related else ()), *(["copies"] if copied else ())]
    lines = [heads]
    for rule in audit.rules:
        asked = percent(rule.got / rule.asked) if rule.asked and rule.got is not None else "-"
        line = [rule.name, rule.side, f"{rule.picks:,}", asked]
        if related:
            line += [percent(rule.share(name)) for name in names]
        if copied:
            line.append("-" if rule.copies is None else percent(rule.share_of_copies))
        lines.append(line)
    return _table(lines)


def _collisions_text(audit: SampleAudit) -> str:
    collisions = audit.collisions
    first = (
        f"collisions: {collisions.pairs:,} of {collisions.all_pairs:,} pairs ({percent(collisions.share_of_pairs)}) are positive "
        f"and negative, {percent(collisions.share_of_negatives)} of the negatives"
    )
    second = f"of these {collisions.same_anchor:,} with the same anchor, {collisions.same_aspect:,} in the same aspect"
    examples = [
        f"  {' and '.join(one.papers)}: positive by {', '.join(one.positive_by)}, negative by {', '.join(one.negative_by)}"
        for one in collisions.examples
    ]
    return "\n".join([first, second, *examples]) if collisions.pairs else first


def _similarities_text(measured: RuleSimilarities) -> str:
    title = "scores of the rules" if measured.name == SCORES else f"cosine with the anchor, vectors {measured.name!r}"
    lines = [[title, "mean", "5 %", "25 %", "median", "75 %", "95 %"]]
    for rule, values in measured.values.items():
        at = measured.quantiles(rule)
        numbers = [float(values.mean()), *(at[name] for name in ("5 %", "25 %", "50 %", "75 %", "95 %"))]
        lines.append([f"  {rule}", *(f"{n:.3g}" if measured.name == SCORES else f"{n:.2f}" for n in numbers)])
    return _table(lines)


def _repeats_text(audit: SampleAudit) -> str:
    repeats = audit.repeats
    lines = [
        f"repeats: {repeats.repeated_triplets:,} of {repeats.triplets:,} triplets, {repeats.repeated_picks:,} picks in one "
        f"sample, {repeats.on_both_sides:,} papers on both sides of one, {repeats.anchor_picked:,} anchors picked"
    ]
    for side, value in repeats.frequencies.items():
        if value.top:
            example = f"most often {value.top[0][0]} ({value.top[0][1]:,} times)"
            part = f"the 1 % most frequent make up {percent(value.top_share)}"
            lines.append(f"{side}: {value.papers:,} different papers; {part}; {example}")
    return "\n".join(lines)


def _leakage_text(audit: SampleAudit) -> str:
    lines = [["benchmark", "papers found", "samples with one", "share of samples"]]
    for name, leak in audit.leaked.items():
        part = percent(leak.samples / max(1, audit.coverage.samples))
        lines.append([name, f"{leak.papers:,}", f"{leak.samples:,}", part])
    return _table(lines)


def percent(share: float) -> str:
    """Format a share for an audit report as a percentage, exact if it is small.

    >>> percent(0.5), percent(0.0421), percent(0.00042), percent(0.0000012), percent(0.0)
    ('50 %', '4.2 %', '0.042 %', '0.0001 %', '0 %')
    """
    number = 100 * share
    if number >= 10 or number == 0:
        return f"{number:.0f} %"
    return f"{number:.2g} %" if number >= 0.001 else f"{number:.4f} %"


# Warnings.

COLLIDING = 0.001
"""Maximum share of negatives whose pair is a positive elsewhere."""

CONNECTED = 0.001
"""Maximum share of a rule's negatives that cite their anchor or are cited by it."""

COCITED = 0.01
COPIED = 0.0005
REPEATED = 0.01
FULFILLED = 0.8
HUBS = 0.25
"""Maximum share of all negatives that the 1 % most frequent papers may be."""

SKIPPED = 0.5
_WAYS = {"cited": "are cited by", "citing": "cite"}


def list_warnings(audit: SampleAudit) -> list[str]:
    """List all warnings of an audit, the most serious kind first."""
    kinds = (_leaks, _impossible, _collisions, _relations, _copies, _similarities, _coverage, _repeats)
    return [line for kind in kinds for line in kind(audit)]


def _leaks(audit: SampleAudit) -> Iterator[str]:
    for name, leak in audit.leaked.items():
        if leak.papers:
            yield (
                f"{leak.papers:,} papers of benchmark {name!r} are in {leak.samples:,} samples: make a corpus without them "
                f"(citeweave audit CORPUS --against {name}=PATH -o CLEAN) and mine again"
            )


def _impossible(audit: SampleAudit) -> Iterator[str]:
    repeats = audit.repeats
    if repeats.on_both_sides:
        yield f"{repeats.on_both_sides:,} papers are positive and negative in one sample: check the file they come from"
    if repeats.anchor_picked:
        yield f"{repeats.anchor_picked:,} picks are their own anchor: check the file they come from"


def _collisions(audit: SampleAudit) -> Iterator[str]:
    collisions = audit.collisions
    several = collisions.same_aspect < collisions.pairs
    if collisions.share_of_negatives <= COLLIDING or (several and not collisions.same_aspect):
        return
    rule = max(collisions.touched_by_rule, key=lambda name: collisions.touched_by_rule[name])
    source = {rule.name: rule.source for rule in audit.rules}.get(rule, "")
    if source == "neighbors":
        step = "let the bands be chosen (--bands auto)"
    else:
        step = (
            'add exclude = ["connected"] to it' if source in (*SIGNALS, "random", "sorted_random") else "leave them out"
        )
    yield (
        f"{percent(collisions.share_of_negatives)} of the negatives are positives elsewhere ({collisions.pairs:,} pairs), most "
        f"by rule {rule!r}: {step}"
    )


def _relations(audit: SampleAudit) -> Iterator[str]:
    for rule in audit.rules:
        if rule.side != "negatives":
            continue
        what = f"of the negatives of rule {rule.name!r}"
        # a rule may draw from such papers on purpose
        ways = [name for name in _WAYS if rule.share(name) > CONNECTED and rule.source not in (name, "connected")]
        if ways:
            shares = [f"{percent(rule.share(name))} {what} {_WAYS[name]} their anchor" for name in ways]
            exclude = "connected" if len(ways) == 2 else ways[0]
            yield f'{" and ".join(shares)}: add exclude = ["{exclude}"] to it'
        if rule.share("cocited") > COCITED and rule.source not in SIGNALS and "cocited" not in rule.exclude:
            share = percent(rule.share("cocited"))
            yield f'{share} {what} are cited together with their anchor: add exclude = ["cocited"] to it'


def _copies(audit: SampleAudit) -> Iterator[str]:
    for rule in audit.rules:
        if rule.copies is not None and rule.share_of_copies > COPIED:
            example = next((copy for copy in audit.copies if copy.rule == rule.name), None)
            such = f" (such as {example.paper} and {example.negative})" if example is not None else ""
            yield (
                f"{percent(rule.share_of_copies)} of the negatives of rule {rule.name!r} are copies of their anchor or of "
                f"a positive{such}: the corpus holds works twice; give both records a common id, or leave one out"
            )


def _similarities(audit: SampleAudit) -> Iterator[str]:
    positives = {rule.name for rule in audit.rules if rule.side == "positives"}
    for name, measured in audit.similarities.items():
        medians = {rule: measured.quantiles(rule)["50 %"] for rule in measured.values}
        lowest = min((value for rule, value in medians.items() if rule in positives), default=None)
        if name == SCORES or lowest is None:
            continue
        for rule, value in medians.items():
            if rule not in positives and value >= lowest:
                yield (
                    f"negatives of rule {rule!r} are as near to their anchors as positives are (median cosine {value:.2f}, "
                    f"positives {lowest:.2f}, vectors {name!r}): take them from farther away"
                )


def _coverage(audit: SampleAudit) -> Iterator[str]:
    for rule in audit.rules:
        if rule.asked and rule.got is not None and rule.got < FULFILLED * rule.asked:
            share = percent(rule.got / rule.asked)
            yield f"rule {rule.name!r} found {share} of the papers asked for: loosen it, or set if_too_few to skip or random"
    skipped, used = audit.coverage.skipped, audit.coverage.anchors
    if sum(skipped.values()) > SKIPPED * (sum(skipped.values()) + used):
        reason = max(skipped, key=lambda name: skipped[name])
        yield f"{sum(skipped.values()):,} anchors gave no sample, most for: {reason}; loosen the rules or give more papers"


def _repeats(audit: SampleAudit) -> Iterator[str]:
    repeats = audit.repeats
    if repeats.repeated_triplets > REPEATED * repeats.triplets:
        share = percent(repeats.repeated_triplets / repeats.triplets)
        yield f'{share} of the triplets are repeated: rules with if_too_few = "repeat" can keep what there is (if_too_few = "keep")'
    negatives = repeats.frequencies.get("negatives")
    if negatives is not None and negatives.papers >= 100 and negatives.top_share > HUBS:
        share = percent(negatives.top_share)
        yield f"the 1 % most frequent negatives make up {share} of all: add random negatives, or vectors with fewer hubs"


# Measuring similarities.


def measure_similarities(
    samples: Samples, data: MiningData, *, max_values: int = 200_000
) -> dict[str, RuleSimilarities]:
    """Measure what an audit reports: scores and cosines of papers to anchors, for about `max_values` papers per rule."""
    collected: dict[str, list[Any]] = {name: [] for name in (SCORES, *sorted(data.vectors))}
    for side in ("positives", "negatives"):
        rules = getattr(samples, side).rules
        counts = np.bincount(rules, minlength=len(samples.names.rules))
        for block in iter_picks(samples, side):
            chosen = block.draw(np.minimum(1.0, max_values / np.maximum(counts, 1)))
            rules_of_papers = block.rules[chosen]
            collected[SCORES].append((rules_of_papers, block.scores[chosen]))
            for name in data.vectors:
                collected[name].append((rules_of_papers, _cosines(block, chosen, name, data)))
    measured = {name: _group_by_rule(name, parts, samples.names.rules) for name, parts in collected.items()}
    return {name: similarities for name, similarities in measured.items() if similarities.values}


def _cosines(block: PickBlock, chosen: NDArray[np.int64], name: str, data: MiningData) -> NDArray[np.float32]:
    """Return the cosines of some selected papers with their anchors."""
    lists = CandidateLists(
        np.arange(len(chosen) + 1), block.rows[chosen].astype(np.int32), np.zeros(len(chosen), np.float32)
    )
    return anchor_similarities(lists, AnchorBlock(block.anchors[chosen], data), data.pool_vectors(name))


def _group_by_rule(
    name: str, parts: Sequence[tuple[NDArray[np.uint8], NDArray[np.float32]]], names: tuple[str, ...]
) -> RuleSimilarities:
    """Group similarities, collected in parts with the rule of each, by rule."""
    rules, values = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    known, missing = {}, {}
    for number in np.unique(rules).tolist():
        own = values[rules == number]
        finite = own[np.isfinite(own)]
        missing[names[number]] = len(own) - len(finite)
        if len(finite):
            known[names[number]] = finite
    return RuleSimilarities(name, known, missing)
