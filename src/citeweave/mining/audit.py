"""Auditing samples before anything is trained on them: collisions, false negatives, repeats, coverage, leakage.

    audit = audit_samples(samples, corpus, graph=graph, vectors={"graph": vectors}, benchmarks={"csfcube": papers})
    print(audit)

Works on samples of any origin, mined here or converted. Samples are read block by block; what the audit finds does
not depend on memory or workers. Mends nothing: `SampleAudit.warnings` say how to mine better.

Pictures of an audit and of chosen bands, as files in a folder.

    pictures(audit, "audit/")           similarity-graph.png, relations.png
    band_pictures(bands, "bands/")      collisions.png, related.png

Names of vectors and rules may hold any signs, so files are numbered where a name cannot be one. Draws with
`citeweave.core.plots`; computes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core import plots
from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.leakage import CorpusPapers, LeakageOptions, LeakageReport, PaperTable, audit_leakage
from citeweave.graph.citations import CitationGraph
from citeweave.mining.audit_report import (
    SCORES,
    Coverage,
    Leaked,
    RuleAudit,
    SampleAudit,
    measure_distances,
    warnings_of,
)
from citeweave.mining.bands import Bands
from citeweave.mining.collisions import find_collisions, find_repeats, walk
from citeweave.mining.false_negatives import LONGEST, Copies, RelatedCounts, find_copies, judge_relations
from citeweave.mining.mining_data import MiningData
from citeweave.mining.rules import VECTOR_SOURCES
from citeweave.mining.samples import Samples
from citeweave.vectors.vectors import Vectors

SIDES = ("positives", "negatives")


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """How to look; only the first three can change what is reported."""

    examples: int = 10
    """Collisions and copies that are named."""

    values: int = 200_000
    """Picks of every rule whose similarity is measured, about."""

    longest: int = LONGEST
    """Relations over two hops: papers in the middle with longer lists do not count."""

    memory: int = 512 << 20
    """Bytes for pairs and texts at a time."""

    workers: int = 0
    """Threads; 0 = one a core."""

    def __post_init__(self) -> None:
        if self.examples < 0 or self.values < 1 or self.longest < 1:
            raise UserError(
                f"audit: examples is {self.examples}, values {self.values} and longest {self.longest}; "
                "the first must be 0 or more, the others 1 or more"
            )


def audit_samples(
    samples: Samples,
    corpus: Corpus,
    *,
    graph: CitationGraph | None = None,
    vectors: Mapping[str, Vectors] = {},
    benchmarks: Mapping[str, PaperTable] = {},
    near_duplicates: bool = True,
    options: AuditOptions | None = None,
    reporter: Reporter = QUIET,
) -> SampleAudit:
    """Look at everything there is to look at; what is not given (graph, vectors, benchmarks) is left out.

    Without `near_duplicates` no texts are compared, neither for copies among negatives nor for leakage.
    """
    options = options or AuditOptions()
    _check(samples, corpus, graph)
    made = _Making.of(samples)
    material = _material(samples, corpus, made.text, vectors)
    occurring = _occurring(samples, len(corpus))
    related = judge_relations(samples, graph, longest=options.longest, workers=options.workers, reporter=reporter)
    shared = {"examples": options.examples, "memory": options.memory}
    copies: dict[str, Copies] = {}
    named: tuple[Any, ...] = ()
    if near_duplicates and len(samples.negatives.rows):
        copies, named = find_copies(samples, corpus, workers=options.workers, reporter=reporter, **shared)
    leakage = _leakage(corpus, occurring, benchmarks, near_duplicates=near_duplicates)
    found = SampleAudit(
        folder=str(samples.folder),
        coverage=_measure_coverage(samples, material, occurring),
        rules=tuple(_rules(samples, made, related, copies)),
        collisions=find_collisions(samples, corpus, **shared),
        repeats=find_repeats(samples, corpus, memory=options.memory),
        distances=measure_distances(samples, material, most=options.values),
        copies=named,
        leaked=_leaked(samples, occurring, leakage),
        leakage=leakage,
    )
    return replace(found, warnings=tuple(warnings_of(found)))


def _material(samples: Samples, corpus: Corpus, text: str, vectors: Mapping[str, Vectors]) -> MiningData:
    """What could take part: of samples that were mined within a pool, that pool and their anchors."""
    if samples.pool is None:
        return MiningData(corpus, text, vectors=vectors)
    anchors = np.unique(samples.anchors).astype(np.int64)
    return MiningData(corpus, text, vectors=vectors, given=samples.pool.astype(np.int64), anchors=anchors)


def _check(samples: Samples, corpus: Corpus, graph: CitationGraph | None) -> None:
    samples.check_corpus(corpus.hash, corpus.folder)
    if graph is not None and (graph.corpus not in ("", corpus.hash) or graph.nodes != len(corpus)):
        raise UserError(f"the graph is of another corpus than {corpus.folder}; make it again with `citeweave graph`")
    if not len(samples):
        raise UserError(f"{samples.folder} holds no sample; there is nothing to audit")
    for rows in (samples.anchors, samples.positives.rows, samples.negatives.rows):
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(corpus):
            raise UserError(f"{samples.folder} names rows that {corpus.folder} does not have; mine the samples again")


@dataclass(frozen=True, slots=True)
class _Making:
    """How samples were made, as far as their manifest says."""

    rules: dict[str, dict[str, Any]]
    """The tables of the rules by the names that picks refer to; empty for samples that were converted."""

    text: str
    """Which papers could take part."""

    @classmethod
    def of(cls, samples: Samples) -> _Making:
        table = samples.manifest.recipe.get("rules")
        if not isinstance(table, Mapping):
            return cls({}, "any")
        tasks = table.get("tasks") or [("", 1.0, table)]
        rules = {
            f"{name}.{rule['name']}" if name else str(rule["name"]): dict(rule)
            for name, _, inner in tasks
            for side in SIDES
            for rule in inner.get(side, ())
        }
        texts = {str(inner.get("text")) for _, _, inner in tasks}
        return cls(rules, next((text for text in ("any", "title") if text in texts), "abstract"))


def _rules(
    samples: Samples, made: _Making, related: dict[str, dict[str, RelatedCounts]], copies: dict[str, Copies]
) -> Iterator[RuleAudit]:
    facts = samples.manifest.facts
    asked, got = facts.get("rules_asked", {}), facts.get("rules_got", {})
    for side in SIDES:
        for name, found in related[side].items():
            table = made.rules.get(name, {})
            yield RuleAudit(
                name=name,
                side=side,
                picks=found.picks,
                asked=asked.get(name),
                got=got.get(name),
                source=str(table.get("source", "")),
                exclude=tuple(table.get("exclude", ())),
                relations=found.relations,
                copies=copies.get(name) if side == "negatives" else None,
            )


def _occurring(samples: Samples, papers: int) -> NDArray[np.bool_]:
    """Which papers occur in any place; shape (papers,)."""
    seen = np.zeros(papers, bool)
    seen[samples.anchors] = True
    for side in SIDES:
        for block in walk(samples, side):
            seen[block.rows] = True
    return seen


def _measure_coverage(samples: Samples, material: MiningData, occurring: NDArray[np.bool_]) -> Coverage:
    abstracts = material.corpus.abstracts.lengths() > 0  # (papers,)
    return Coverage(
        samples=len(samples),
        anchors=len(np.unique(samples.anchors)),
        skipped=dict(samples.manifest.facts.get("skipped", {})),
        papers=len(occurring),
        pool=int((material.in_pool | occurring).sum()),
        occurring=int(occurring.sum()),
        without_abstract=int((occurring & ~abstracts).sum()),
    )


def _leakage(
    corpus: Corpus, occurring: NDArray[np.bool_], benchmarks: Mapping[str, PaperTable], *, near_duplicates: bool
) -> LeakageReport | None:
    if not benchmarks:
        return None
    table = _SomePapers(CorpusPapers(corpus), np.flatnonzero(occurring))
    return audit_leakage(table, benchmarks, LeakageOptions(near_duplicates=near_duplicates))


def _leaked(samples: Samples, occurring: NDArray[np.bool_], leakage: LeakageReport | None) -> dict[str, Leaked]:
    """The samples that hold a paper of each benchmark."""
    rows, found = np.flatnonzero(occurring), {}
    for name, benchmark in leakage.benchmarks.items() if leakage is not None else ():
        papers = np.zeros(len(occurring), bool)
        papers[rows[benchmark.rows()]] = True
        touched = papers[samples.anchors]  # (samples,)
        for side in SIDES:
            for block in walk(samples, side):
                touched[block.samples[papers[block.rows]]] = True
        found[name] = Leaked(int(papers.sum()), int(touched.sum()))
    return found


class _SomePapers:
    """Some rows of a table of papers, as a table of their own; read when asked for."""

    def __init__(self, table: PaperTable, rows: NDArray[np.int64]) -> None:
        self.ids: Sequence[str] = _Rows(table.ids, rows)
        self.titles: Sequence[str] = _Rows(table.titles, rows)
        self.abstracts: Sequence[str] = _Rows(table.abstracts, rows)
        self.years: NDArray[np.int32] = table.years[rows]
        self.other_ids: Sequence[tuple[str, ...]] = _Rows(table.other_ids, rows)


class _Rows(Sequence[Any]):
    """Some rows of a column."""

    def __init__(self, column: Sequence[Any], rows: NDArray[np.int64]) -> None:
        self._column, self._rows = column, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return (self._column[row] for row in self._rows.tolist())

    def __getitem__(self, at: Any) -> Any:
        return self._column[int(self._rows[at])]


# Pictures of an audit and of chosen bands, as files in a folder.

_RELATIONS = {
    "cited": "cited",
    "citing": "citing",
    "cocited": "co-cited",
    "coupled": "coupled",
    "second_hop": "two hops away",
}
_MOST_BARS = 40
_SHOWN = 10
"""How far beyond the negatives curves are drawn, as a factor: nothing happens there any more."""


def pictures(audit: SampleAudit, folder: str | Path) -> list[Path]:
    """Draw how near each rule's picks are, for all vectors, and what its negatives are to their anchors."""
    folder, drawn = Path(folder), []
    for number, (name, distances) in enumerate(audit.distances.items()):
        groups = distances.values
        if name == SCORES:
            ranked = {rule.name for rule in audit.rules if rule.source in VECTOR_SOURCES}
            groups = {rule: values for rule, values in groups.items() if rule in ranked}
        if not groups or (name == SCORES and len(audit.distances) > 1):
            continue  # with vectors at hand, cosines say more than scores
        label = "score by which the rule ranked" if name == SCORES else f"cosine with the anchor, vectors {name!r}"
        path = folder / f"similarity-{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else number}.png"
        plots.histograms(path, groups, title="How near the picks of each rule are to their anchors", x_label=label)
        drawn.append(path)
    shares = {
        f"{rule.name}: {word}": 100 * rule.share(relation)
        for rule in audit.rules
        if rule.side == "negatives" and rule.relations
        for relation, word in _RELATIONS.items()
    }
    if 0 < len(shares) <= _MOST_BARS:
        path = folder / "relations.png"
        plots.bars(path, shares, title="What negatives are to their anchors", x_label="% of the rule's negatives")
        drawn.append(path)
    return drawn


def band_pictures(bands: Bands, folder: str | Path) -> list[Path]:
    """Draw the collisions and the related papers that each rank would give, with the bands chosen."""
    folder, drawn = Path(folder), [Path(folder) / "collisions.png"]
    marks: dict[str, float | tuple[float, float]] = {
        "positives": (max(bands.positive_rank - bands.positives, 0.8), bands.positive_rank),
        "hard negatives": float(bands.negative_rank),
    }
    last = _SHOWN * bands.negative_rank
    shown = bands.curve.ranks <= last
    plots.curve(
        drawn[0],
        bands.curve.ranks[shown],
        {"expected": 100 * bands.curve.shares[shown]},
        title="Hard negatives that are positives elsewhere, by their rank",
        x_label=f"rank of the hard negatives among {bands.pool:,} papers",
        y_label="% of them that collide",
        log_x=True,
        marks=marks,
    )
    if bands.related is not None:
        drawn.append(folder / "related.png")
        related = bands.related
        shown = related.ranks <= last
        series = {name: 100 * related.shares[name][shown] for name in ("connected", "co-cited", "coupled")}
        random = 100 * related.background["connected or co-cited"]
        plots.curve(
            drawn[1],
            related.ranks[shown],
            {**series, "random papers, either": np.full(int(shown.sum()), random)},
            title="Neighbors that citations relate to the anchor, by their rank",
            x_label=f"rank among {bands.pool:,} papers",
            y_label="% of the neighbors",
            log_x=True,
            marks=marks,
        )
    return drawn
