"""What to do about what an audit found: one line for each thing that is wrong, with the next step.

    0.4 % of the negatives of rule 'hard' are cited by their anchor: add exclude = ["cited"] to it

Shares under the limits below are chance. A rule that draws from a signal on purpose is not blamed for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from citeweave.graph.signals import SIGNALS
from citeweave.mining.auditing.report import RuleAudit, SampleAudit, percent

COLLIDING = 0.001
"""Share of negatives whose pair is a positive elsewhere."""

CONNECTED = 0.001
"""Share of a rule's negatives that cite their anchor or are cited by it."""

COCITED = 0.01
COPIED = 0.0005
REPEATED = 0.01
FULFILLED = 0.8
HUBS = 0.25
"""Share of all negatives that the 1 % most frequent papers may be."""

SKIPPED = 0.5
_WAYS = {"cited": "are cited by", "citing": "cite"}


def warnings_of(audit: SampleAudit) -> list[str]:
    """All warnings, the gravest kind first."""
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
    found = audit.repeats
    if found.on_both_sides:
        yield f"{found.on_both_sides:,} papers are positive and negative in one sample: check the file they come from"
    if found.anchor_picked:
        yield f"{found.anchor_picked:,} picks are their own anchor: check the file they come from"


def _collisions(audit: SampleAudit) -> Iterator[str]:
    found = audit.collisions
    several = found.same_aspect < found.pairs
    if found.share_of_negatives <= COLLIDING or (several and not found.same_aspect):
        return
    rule = max(found.touched_by_rule, key=lambda name: found.touched_by_rule[name])
    source = {rule.name: rule.source for rule in audit.rules}.get(rule, "")
    if source == "neighbours":
        step = "let the bands be chosen (--bands auto)"
    else:
        step = (
            'add exclude = ["connected"] to it' if source in (*SIGNALS, "random", "sorted_random") else "leave them out"
        )
    yield (
        f"{percent(found.share_of_negatives)} of the negatives are positives elsewhere ({found.pairs:,} pairs), most "
        f"by rule {rule!r}: {step}"
    )


def _relations(audit: SampleAudit) -> Iterator[str]:
    for rule in audit.rules:
        if rule.side != "negatives":
            continue
        what = f"of the negatives of rule {rule.name!r}"
        ways = [name for name in ("cited", "citing") if rule.share(name) > CONNECTED and not _on_purpose(rule, name)]
        if ways:
            shares = [f"{percent(rule.share(name))} {what} {_WAYS[name]} their anchor" for name in ways]
            exclude = "connected" if len(ways) == 2 else ways[0]
            yield f'{" and ".join(shares)}: add exclude = ["{exclude}"] to it'
        if rule.share("cocited") > COCITED and rule.source not in SIGNALS and "cocited" not in rule.exclude:
            share = percent(rule.share("cocited"))
            yield f'{share} {what} are cited together with their anchor: add exclude = ["cocited"] to it'


def _on_purpose(rule: RuleAudit, relation: str) -> bool:
    return rule.source in (relation, "connected")


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
    for name, distances in audit.distances.items():
        middles = {rule: distances.quantiles(rule)["50 %"] for rule in distances.values}
        least = min((value for rule, value in middles.items() if rule in positives), default=None)
        if name == "score" or least is None:
            continue
        for rule, value in middles.items():
            if rule not in positives and value >= least:
                yield (
                    f"negatives of rule {rule!r} are as near to their anchors as positives are (median cosine {value:.2f}, "
                    f"positives {least:.2f}, vectors {name!r}): take them from farther away"
                )


def _coverage(audit: SampleAudit) -> Iterator[str]:
    for rule in audit.rules:
        if rule.asked and rule.got is not None and rule.got < FULFILLED * rule.asked:
            share = percent(rule.got / rule.asked)
            yield f"rule {rule.name!r} found {share} of the papers asked for: loosen it, or set few to skip or random"
    skipped, used = audit.coverage.skipped, audit.coverage.anchors
    if sum(skipped.values()) > SKIPPED * (sum(skipped.values()) + used):
        reason = max(skipped, key=lambda name: skipped[name])
        yield f"{sum(skipped.values()):,} anchors gave no sample, most for: {reason}; loosen the rules or give more papers"


def _repeats(audit: SampleAudit) -> Iterator[str]:
    found = audit.repeats
    if found.repeated_triplets > REPEATED * found.triplets:
        share = percent(found.repeated_triplets / found.triplets)
        yield f'{share} of the triplets are repeated: rules with few = "repeat" can keep what there is (few = "keep")'
    negatives = found.frequencies.get("negatives")
    if negatives is not None and negatives.papers >= 100 and negatives.top_share > HUBS:
        share = percent(negatives.top_share)
        yield f"the 1 % most frequent negatives make up {share} of all: add random negatives, or vectors with fewer hubs"
