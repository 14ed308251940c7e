"""What an audit of samples found, as a table for the eye, as JSON, and as a list of what to do about it.

    audit = audit_samples(samples, corpus, graph=graph)
    print(audit)                     the table
    audit.warnings                   ("0.4 % of the negatives of rule 'hard' are cited by their anchor: add exclude = ...",)

Does not look at samples: see `audit.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from citeweave.corpus.leakage.report import LeakageReport
from citeweave.mining.auditing.collisions import Collisions
from citeweave.mining.auditing.distances import SCORES, Distances
from citeweave.mining.auditing.false_negatives import Copies, Copy
from citeweave.mining.auditing.repeats import Repeats


@dataclass(frozen=True, slots=True)
class RuleAudit:
    """One rule on one side: what it was asked for, what it chose, and what that is to the anchors."""

    name: str
    side: str
    """positives or negatives."""

    picks: int
    asked: int | None = None
    """Papers that it was to choose, None where that is not known."""

    got: int | None = None
    source: str = ""
    """Where it draws from, empty where that is not known."""

    exclude: tuple[str, ...] = ()
    relations: dict[str, int] = field(default_factory=dict)
    """Picks that are connected, cited, citing, cocited, coupled, second_hop; empty without a graph."""

    copies: Copies | None = None
    """Negatives only, where texts were compared."""

    def share(self, relation: str) -> float:
        return self.relations.get(relation, 0) / self.picks if self.picks else 0.0

    @property
    def share_of_copies(self) -> float:
        return self.copies.either / self.copies.judged if self.copies is not None and self.copies.judged else 0.0

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"side": self.side, "picks": self.picks, "asked": self.asked, "got": self.got}
        found |= {"source": self.source, "exclude": list(self.exclude)}
        if self.relations:
            found["relations"] = {
                name: {"picks": number, "share": self.share(name)} for name, number in self.relations.items()
            }
        if self.copies is not None:
            found["copies"] = dataclasses.asdict(self.copies)
        return found


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which papers and anchors the samples are made of."""

    samples: int
    anchors: int
    """Different papers that are anchors."""

    skipped: dict[str, int]
    """Anchors that gave no sample, by reason."""

    papers: int
    """Papers of the corpus ..."""

    pool: int
    """... those that could take part ..."""

    occurring: int
    """... and those that do, as anchor, positive or negative."""

    without_abstract: int
    """Of these, papers without an abstract."""

    def as_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in self.__slots__}
        return {**counts, "share_of_pool": self.occurring / max(1, self.pool)}


@dataclass(frozen=True, slots=True)
class Leaked:
    """Papers of a benchmark that occur in samples."""

    papers: int
    """Papers in the samples that are papers of the benchmark."""

    samples: int
    """Samples with at least one of them, in any place."""


@dataclass(frozen=True, slots=True)
class SampleAudit:
    """Everything that was found. `str()` gives a table, `warnings` what to do."""

    folder: str
    coverage: Coverage
    rules: tuple[RuleAudit, ...]
    collisions: Collisions
    repeats: Repeats
    distances: dict[str, Distances] = field(default_factory=dict)
    """By name: `score`, and each of the vectors given."""

    copies: tuple[Copy, ...] = ()
    """Examples of negatives that are the same work as an anchor or a positive."""

    leaked: dict[str, Leaked] = field(default_factory=dict)
    """By benchmark."""

    leakage: LeakageReport | None = None
    """The evidence; rows count the papers that occur in the samples, ascending."""

    warnings: tuple[str, ...] = ()
    """What is wrong and what to do about it, the gravest first; empty where all is well."""

    def as_json(self) -> dict[str, Any]:
        return {
            "samples": self.folder,
            "coverage": self.coverage.as_json(),
            "rules": {rule.name: rule.as_json() for rule in self.rules},
            "collisions": self.collisions.as_json(),
            "copies": [dataclasses.asdict(copy) for copy in self.copies],
            "repeats": self.repeats.as_json(),
            "distances": {name: distances.as_json() for name, distances in self.distances.items()},
            "leakage": {name: dataclasses.asdict(leak) for name, leak in self.leaked.items()},
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        parts = [_coverage_text(self), _rules_text(self), _collisions_text(self)]
        parts += [_distances_text(distances) for distances in self.distances.values()]
        parts += [_repeats_text(self)]
        if self.leaked:
            parts.append(_leakage_text(self))
        parts.append("\n".join(f"! {line}" for line in self.warnings) or "nothing to warn of")
        return "\n\n".join(parts)


def _table(lines: Sequence[Sequence[str]]) -> str:
    """Columns; names to the left, numbers to the right."""
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
    found = audit.collisions
    first = (
        f"collisions: {found.pairs:,} of {found.all_pairs:,} pairs ({percent(found.share_of_pairs)}) stand as positive "
        f"and as negative, {percent(found.share_of_negatives)} of the negatives"
    )
    second = f"of these {found.same_anchor:,} with the same anchor, {found.same_aspect:,} in the same aspect"
    examples = [
        f"  {' and '.join(one.papers)}: positive by {', '.join(one.positive_by)}, negative by {', '.join(one.negative_by)}"
        for one in found.examples
    ]
    return "\n".join([first, second, *examples]) if found.pairs else first


def _distances_text(distances: Distances) -> str:
    title = "scores of the rules" if distances.name == SCORES else f"cosine with the anchor, vectors {distances.name!r}"
    lines = [[title, "mean", "5 %", "25 %", "median", "75 %", "95 %"]]
    for rule, values in distances.values.items():
        at = distances.quantiles(rule)
        numbers = [float(values.mean()), *(at[name] for name in ("5 %", "25 %", "50 %", "75 %", "95 %"))]
        lines.append([f"  {rule}", *(f"{n:.3g}" if distances.name == SCORES else f"{n:.2f}" for n in numbers)])
    return _table(lines)


def _repeats_text(audit: SampleAudit) -> str:
    found = audit.repeats
    lines = [
        f"repeats: {found.repeated_triplets:,} of {found.triplets:,} triplets, {found.repeated_picks:,} picks in one "
        f"sample, {found.on_both_sides:,} papers on both sides of one, {found.anchor_picked:,} anchors picked"
    ]
    for side, value in found.frequencies.items():
        if value.top:
            most = f"most often {value.top[0][0]} ({value.top[0][1]:,} times)"
            part = f"the 1 % most frequent make up {percent(value.top_share)}"
            lines.append(f"{side}: {value.papers:,} different papers; {part}; {most}")
    return "\n".join(lines)


def _leakage_text(audit: SampleAudit) -> str:
    lines = [["benchmark", "papers found", "samples with one", "share of samples"]]
    for name, leak in audit.leaked.items():
        part = percent(leak.samples / max(1, audit.coverage.samples))
        lines.append([name, f"{leak.papers:,}", f"{leak.samples:,}", part])
    return _table(lines)


def percent(share: float) -> str:
    """A share for the eye: exact where it is small.

    >>> percent(0.5), percent(0.0421), percent(0.00042), percent(0.0000012), percent(0.0)
    ('50 %', '4.2 %', '0.042 %', '0.0001 %', '0 %')
    """
    number = 100 * share
    if number >= 10 or number == 0:
        return f"{number:.0f} %"
    return f"{number:.2g} %" if number >= 0.001 else f"{number:.4f} %"
