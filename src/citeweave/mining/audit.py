"""Audit samples before training: collisions, false negatives, repeats, coverage, leakage; plots of an audit.

    audit = audit_samples(samples, corpus, graph=graph, vectors={"graph": vectors}, benchmarks={"csfcube": papers})
    print(audit)
    draw_audit(audit, "audit/")         similarity-graph.png, relations.png

Works on samples of any origin, mined here or converted. Samples are read block by block; the result does not depend on
memory or workers. Repairs nothing: `SampleAudit.warnings` say how to mine better.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core import plots
from citeweave.core.errors import UserError
from citeweave.core.options import Range, check
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.leakage import LeakageReport, PaperTable, audit_leakage
from citeweave.corpus.options import LeakageOptions
from citeweave.graph.citations import CitationGraph
from citeweave.mining.audit_report import (
    SCORES,
    Coverage,
    Leaked,
    RuleAudit,
    SampleAudit,
    list_warnings,
    measure_similarities,
)
from citeweave.mining.collisions import find_collisions, find_repeats, iter_picks
from citeweave.mining.false_negatives import LONGEST, Copies, RelatedCounts, count_relations, find_copies
from citeweave.mining.inputs import MiningData
from citeweave.mining.rules import VECTOR_SOURCES
from citeweave.mining.samples import Samples
from citeweave.vectors.vectors import Vectors

SIDES = ("positives", "negatives")


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Limits and resources of an audit of samples; only the first three can change what is reported."""

    examples: Annotated[int, Range(0)] = 10
    """Collisions and copies that are listed as examples."""

    values: Annotated[int, Range(1)] = 200_000
    """Approximate number of papers per rule whose similarity is measured."""

    longest: Annotated[int, Range(1)] = LONGEST
    """Relations over two hops: papers in the middle with longer lists do not count."""

    memory: int = 512 << 20
    """Bytes for pairs and texts at a time."""

    workers: int = 0
    """Threads; 0 = one per core."""

    def __post_init__(self) -> None:
        check(self, "audit")


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
    """Audit samples in every respect for which there is data: graph, vectors and benchmarks are optional.

    Without `near_duplicates` no texts are compared, neither for copies among negatives nor for leakage.
    """
    options = options or AuditOptions()
    _check_inputs(samples, corpus, graph)
    rules, text = _read_origin(samples)
    data = _mining_data(samples, corpus, text, vectors)
    occurring = _occurring(samples, len(corpus))
    related = count_relations(samples, graph, longest=options.longest, workers=options.workers, reporter=reporter)
    shared = {"examples": options.examples, "memory": options.memory}
    copies: dict[str, Copies] = {}
    named: tuple[Any, ...] = ()
    if near_duplicates and len(samples.negatives.rows):
        copies, named = find_copies(samples, corpus, workers=options.workers, reporter=reporter, **shared)
    leakage = _find_leakage(corpus, occurring, benchmarks, near_duplicates=near_duplicates)
    audit = SampleAudit(
        folder=str(samples.folder),
        coverage=_measure_coverage(samples, data, occurring),
        rules=tuple(_audit_rules(samples, rules, related, copies)),
        collisions=find_collisions(samples, corpus, **shared),
        repeats=find_repeats(samples, corpus, memory=options.memory),
        similarities=measure_similarities(samples, data, max_values=options.values),
        copies=named,
        leaked=_count_leaked(samples, occurring, leakage),
        leakage=leakage,
    )
    return replace(audit, warnings=tuple(list_warnings(audit)))


def _mining_data(samples: Samples, corpus: Corpus, text: str, vectors: Mapping[str, Vectors]) -> MiningData:
    """Return the data that samples were mined from: if the pool was restricted, that pool and their anchors."""
    if samples.pool is None:
        return MiningData(corpus, text, vectors=vectors)
    anchors = np.unique(samples.anchors).astype(np.int64)
    return MiningData(corpus, text, vectors=vectors, pool_rows=samples.pool.astype(np.int64), anchors=anchors)


def _check_inputs(samples: Samples, corpus: Corpus, graph: CitationGraph | None) -> None:
    """Refuse to audit samples or a graph of another corpus."""
    samples.check_corpus(corpus.hash, corpus.folder)
    if graph is not None and (graph.corpus not in ("", corpus.hash) or graph.nodes != len(corpus)):
        raise UserError(f"the graph is of another corpus than {corpus.folder}; build it again with `citeweave graph`")
    if not len(samples):
        raise UserError(f"{samples.folder} holds no sample; there is nothing to audit")
    for rows in (samples.anchors, samples.positives.rows, samples.negatives.rows):
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(corpus):
            raise UserError(f"{samples.folder} names rows that {corpus.folder} does not have; mine the samples again")


def _read_origin(samples: Samples) -> tuple[dict[str, dict[str, Any]], str]:
    """Read from the manifest the tables of the rules that samples were mined with, by name, and the text they required.

    There are no tables for samples that were converted. The text is any, title or abstract.
    """
    table = samples.manifest.recipe.get("rules")
    if not isinstance(table, Mapping):
        return {}, "any"
    tasks = table.get("tasks") or [("", 1.0, table)]
    rules = {
        f"{name}.{rule['name']}" if name else str(rule["name"]): dict(rule)
        for name, _, inner in tasks
        for side in SIDES
        for rule in inner.get(side, ())
    }
    texts = {str(inner.get("text")) for _, _, inner in tasks}
    return rules, next((text for text in ("any", "title") if text in texts), "abstract")


def _audit_rules(
    samples: Samples,
    rules: Mapping[str, Mapping[str, Any]],
    related: dict[str, dict[str, RelatedCounts]],
    copies: dict[str, Copies],
) -> Iterator[RuleAudit]:
    """Yield the audit of every rule: papers selected, relations to the anchors, copies."""
    facts = samples.manifest.facts
    requested, selected = facts.get("rules_asked", {}), facts.get("rules_got", {})
    for side in SIDES:
        for name, counts in related[side].items():
            table = rules.get(name, {})
            yield RuleAudit(
                name=name,
                side=side,
                picks=counts.picks,
                asked=requested.get(name),
                got=selected.get(name),
                source=str(table.get("source", "")),
                exclude=tuple(table.get("exclude", ())),
                relations=counts.relations,
                copies=copies.get(name) if side == "negatives" else None,
            )


def _occurring(samples: Samples, papers: int) -> NDArray[np.bool_]:
    """Return which papers occur anywhere in the samples; shape (papers,)."""
    occurs = np.zeros(papers, bool)
    occurs[samples.anchors] = True
    for side in SIDES:
        for block in iter_picks(samples, side):
            occurs[block.rows] = True
    return occurs


def _measure_coverage(samples: Samples, data: MiningData, occurring: NDArray[np.bool_]) -> Coverage:
    """Measure which part of the pool and of the anchors the samples cover."""
    abstracts = data.corpus.abstracts.lengths() > 0  # (papers,)
    return Coverage(
        samples=len(samples),
        anchors=len(np.unique(samples.anchors)),
        skipped=dict(samples.manifest.facts.get("skipped", {})),
        papers=len(occurring),
        pool=int((data.in_pool | occurring).sum()),
        occurring=int(occurring.sum()),
        without_abstract=int((occurring & ~abstracts).sum()),
    )


def _find_leakage(
    corpus: Corpus, occurring: NDArray[np.bool_], benchmarks: Mapping[str, PaperTable], *, near_duplicates: bool
) -> LeakageReport | None:
    """Find papers of benchmarks among the papers that occur in the samples."""
    if not benchmarks:
        return None
    rows = np.flatnonzero(occurring)
    ids, titles, abstracts, other_ids = (
        _ColumnSubset(column, rows) for column in (corpus.ids, corpus.titles, corpus.abstracts, corpus.other_ids)
    )
    table = PaperTable(ids, titles, abstracts, corpus.years[rows].astype(np.int32), other_ids)
    return audit_leakage(table, benchmarks, LeakageOptions(near_duplicates=near_duplicates))


def _count_leaked(samples: Samples, occurring: NDArray[np.bool_], leakage: LeakageReport | None) -> dict[str, Leaked]:
    """Count the samples that contain a paper of each benchmark."""
    rows, leaked = np.flatnonzero(occurring), {}
    for name, benchmark in leakage.benchmarks.items() if leakage is not None else ():
        papers = np.zeros(len(occurring), bool)
        papers[rows[benchmark.rows()]] = True
        touched = papers[samples.anchors]  # (samples,)
        for side in SIDES:
            for block in iter_picks(samples, side):
                touched[block.samples[papers[block.rows]]] = True
        leaked[name] = Leaked(int(papers.sum()), int(touched.sum()))
    return leaked


class _ColumnSubset(Sequence[Any]):
    """Some rows of one column of a table of papers, read lazily."""

    def __init__(self, column: Sequence[Any], rows: NDArray[np.int64]) -> None:
        self._column, self._rows = column, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return (self._column[row] for row in self._rows.tolist())

    def __getitem__(self, at: Any) -> Any:
        return self._column[int(self._rows[at])]


# Plots of an audit.

_RELATIONS = {
    "cited": "cited",
    "citing": "citing",
    "cocited": "co-cited",
    "coupled": "coupled",
    "second_hop": "two hops away",
}
_MAX_BARS = 40


def draw_audit(audit: SampleAudit, folder: str | Path) -> list[Path]:
    """Plot an audit of samples: how similar each rule's papers are to their anchors, how its negatives are related.

    Names of vectors may hold any characters, so a file is numbered if the name of its vectors cannot be part of it.
    """
    folder, drawn = Path(folder), []
    for number, (name, measured) in enumerate(audit.similarities.items()):
        groups = measured.values
        if name == SCORES:
            ranked = {rule.name for rule in audit.rules if rule.source in VECTOR_SOURCES}
            groups = {rule: values for rule, values in groups.items() if rule in ranked}
        if not groups or (name == SCORES and len(audit.similarities) > 1):
            continue  # cosines say more than scores
        label = "score by which the rule ranked" if name == SCORES else f"cosine with the anchor, vectors {name!r}"
        path = folder / f"similarity-{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else number}.png"
        plots.draw_histograms(path, groups, title="How near the picks of each rule are to their anchors", x_label=label)
        drawn.append(path)
    shares = {
        f"{rule.name}: {word}": 100 * rule.share(relation)
        for rule in audit.rules
        if rule.side == "negatives" and rule.relations
        for relation, word in _RELATIONS.items()
    }
    if 0 < len(shares) <= _MAX_BARS:
        path = folder / "relations.png"
        plots.draw_bars(path, shares, title="What negatives are to their anchors", x_label="% of the rule's negatives")
        drawn.append(path)
    return drawn
