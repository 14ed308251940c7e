"""Cost estimates of a recipe: the size of a literature, the work of a stage, and time, memory and disk on a machine.

    print(Estimate("scincl", machine, "52,000,000 papers", works))
    Estimate(...).as_json()["total"]["seconds"]

    >>> parse_count("52e6", "--papers"), parse_count("52_000_000", "--papers"), parse_count("52M", "--papers")
    (52000000, 52000000, 52000000)
    >>> parse_count("-3", "--papers")
    Traceback (most recent call last):
    citeweave.core.errors.UserError: --papers is '-3'; it must be a whole number of 1 or more, such as 52e6, 52M or 52_000_000
    >>> from citeweave.pipeline.cost_constants import parse_machine
    >>> work = StageWork("graph", "10 citations", cpu=8.0, parallel=0.5)
    >>> work.seconds(parse_machine("cpu:1")), work.seconds(parse_machine("cpu:4"))
    (8.0, 5.0)

The part of a stage that only one core can do does not get faster with more cores (Amdahl, 1967). How many papers and
triplets the rules of a recipe ask for is counted as if every rule found all that it asks for.

Of a corpus only the columns are read, no text. `stage_costs.py` estimates the work of each stage, `plan.py` puts the
stages of a recipe together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np

from citeweave.core.errors import UserError
from citeweave.core.progress import format_duration
from citeweave.graph.fastrp import MIN_PANEL_WIDTH
from citeweave.graph.kernels import LINE
from citeweave.graph.signals import TWO_HOPS
from citeweave.pipeline.cost_constants import CONSTANTS, GPUS, Machine, estimate_tokens, get_constant

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.options import GraphOptions
    from citeweave.mining.rules import MiningRules


# --- the size of a literature ---

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}
LARGEST = 10**13
"""The largest count that is accepted."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of a literature: counts of papers, citations, texts and contexts that cost estimates start from."""

    papers: int
    citations: int
    texts: int
    """Papers with a title and an abstract: those that are read and mined."""

    tokens: float = 230.0
    """Mean number of tokens of such a text."""

    contexts: int = 0
    """Number of citing sentences."""

    only_edges: bool = False
    """Whether citations come as a table of edges, not as records in JSON."""

    paths: dict[str, float] = field(default_factory=dict)
    """Two-hop signal -> mean number of paths from one paper; estimated from the references where it is missing."""

    @property
    def references(self) -> float:
        """Return the mean number of references per paper."""
        return self.citations / self.papers

    def paths_of(self, signal: str) -> float:
        """Return the mean number of two-hop paths from a paper: references squared, times a factor for uneven lists."""
        known = self.paths.get(signal)
        if known is not None:
            return known
        return self.references**2 * get_constant(f"unevenness.{_PATH_KINDS.get(signal, 'coupled')}")


_PATH_KINDS = {"cocited": "cocited", "cocited_nearby": "cocited", "second_hop": "second_hop"}
"""Two-hop signal -> which lists it crosses: two of references, one of each, or (all others) two of citing papers."""


def parse_count(text: str, option: str, *, minimum: int = 1) -> int:
    """Parse a count written as a whole number, with K, M or B, or with an exponent."""
    rule = f"it must be a whole number of {minimum} or more, such as 52e6, 52M or 52_000_000"
    match = re.fullmatch(r"([0-9_.,]+(?:e\+?\d{1,2})?)([KMBG]?)", text.strip(), re.IGNORECASE)
    try:
        number = Decimal(match[1].replace("_", "").replace(",", "")) * _UNITS[match[2].upper()] if match else None
    except InvalidOperation:
        number = None
    if number is None or number != number.to_integral_value() or number < minimum:
        raise UserError(f"{option} is {text!r}; {rule}")
    if number > LARGEST:
        raise UserError(f"{option} is {text!r}; no literature is that large: give at most 1e13")
    return int(number)


def sizes_from_counts(papers: int, citations: int, *, texts: int | None = None, tokens: float = 230.0) -> Sizes:
    """Return the sizes of a literature from a few counts; three in ten citations have a context, as in Semantic Scholar."""
    texts = papers if texts is None else texts
    if texts > papers:
        raise UserError(f"--texts is {texts:,} and --papers {papers:,}; no more papers can have texts than there are")
    if citations > papers * (papers - 1):
        raise UserError(f"--citations is {citations:,}; {papers:,} papers have at most {papers * (papers - 1):,}")
    if not 3 <= tokens <= 100_000:
        raise UserError(f"--tokens is {tokens:g}; a text has from 3 to 100,000 of them")
    return Sizes(papers, citations, texts, tokens, round(0.3 * citations))


def sizes_from_corpus(corpus: Corpus) -> Sizes:
    """Count the sizes of an existing corpus for a cost estimate."""
    lengths = corpus.titles.lengths() + corpus.abstracts.lengths()  # (papers,)
    has_text = (corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0)
    texts = int(has_text.sum())
    tokens = estimate_tokens(float(lengths[has_text].mean()), 100_000) if texts else 3.0
    papers, citations = max(1, len(corpus)), len(corpus.citing)
    citing = np.bincount(np.asarray(corpus.citing), minlength=papers).astype(float)  # (papers,)
    cited = np.bincount(np.asarray(corpus.cited), minlength=papers).astype(float)  # (papers,)
    kinds = {
        "cocited": float((citing**2).sum()) / papers,
        "coupled": float((cited**2).sum()) / papers,
        "second_hop": float((citing * cited).sum()) / papers,
    }
    names = ("cocited", "cocited_nearby", "coupled", "second_hop", "connected_of_connected")
    paths = {name: kinds[_PATH_KINDS.get(name, "coupled")] for name in names}
    return Sizes(papers, citations, texts, tokens, len(corpus.contexts), paths=paths)


# --- what the rules of a recipe ask for ---


def count_picks(rules: MiningRules) -> int:
    """Return the maximum number of papers that mining rules select per anchor, for a cost estimate."""
    if rules.tasks:
        return max(count_picks(inner) for _, _, inner in rules.tasks)
    return sum(rule.count for rule in rules.rules) + (rules.anchors_per == "contexts")


def count_triplets(rules: MiningRules) -> int:
    """Return the estimated number of triplets per anchor; the shorter list of samples is repeated."""
    if rules.tasks:
        return max(count_triplets(inner) for _, _, inner in rules.tasks)
    sides = [sum(rule.count for rule in side) for side in (rules.positives, rules.negatives)]
    return max(1, *sides)


def count_sample_groups(rules: MiningRules) -> int:
    """Return the number of samples per anchor: one per aspect."""
    return max(1, len(rules.aspects))


def two_hop_signals(rules: MiningRules) -> list[str]:
    """List the two-hop signals that mining has to count, each once, for a cost estimate."""
    return sorted({name for rule in _all_rules(rules) for name in (rule.source, *rule.exclude) if name in TWO_HOPS})


def vector_searches(rules: MiningRules) -> list[str]:
    """List the vector searches of a recipe's rules whose cost is estimated, each once per aspect."""
    searches = set()
    for rule in _all_rules(rules):
        if rule.source in ("neighbors", "similar"):
            aspects = rules.aspects if rule.vectors == "aspect" else ("",)
            searches |= {f"{rule.vectors} {rule.metric} {aspect}".strip() for aspect in aspects}
    return sorted(searches)


def deepest_rank(rules: MiningRules, pool: int) -> int:
    """Return the deepest neighbor rank that any mining rule asks for."""
    ends = [rule.ranks(pool)[1] for rule in _all_rules(rules) if rule.source == "neighbors"]
    return min(max(ends, default=1), pool)


def uses_graph_vectors(rules: MiningRules) -> bool:
    """Return whether any mining rule ranks papers by node vectors of the graph."""
    sources = ("neighbors", "similar", "cells", "sorted_random")
    return any(rule.source in sources and rule.vectors in ("graph", "aspect") for rule in _all_rules(rules))


def _all_rules(rules: MiningRules) -> Iterator[Any]:
    yield from rules.rules
    for _, _, inner in rules.tasks:
        yield from _all_rules(inner)


# --- panels of FastRP: as many columns at a time as --memory allows ---
#
# Gathering a number costs more when the panel is large: rows are fetched in the order of citations, and caches and pages
# hold most rows of a small panel but almost none of 52 million papers. Two constants, with one border between them:
#
#     papers x columns     panel       CPU s per number
#     560,000 x 128        143 MB      0.7e-9
#     5,600,000 x 32       358 MB      1.0e-9
#     --- LARGE_PANEL: 1 GiB ---
#     52,000,000 x 32      3.3 GB      2.2e-9

LARGE_PANEL = 1 << 30
"""Bytes of a panel beyond which gathering a number costs more."""

_NUMBER_BYTES = 2
"""Bytes per number while walking."""


@dataclass(frozen=True, slots=True)
class WalkPanel:
    """Estimate the number of FastRP columns that fit into memory at once, on which a graph's cost depends."""

    papers: int
    columns: int
    held: int
    """Bytes of the panels and of the scales beside them: what --memory must allow."""

    @property
    def gather_constant(self) -> str:
        """Return the name of the constant for gathering one number of this panel.

        >>> WalkPanel(560_000, 128, 0).gather_constant, WalkPanel(52_000_000, 32, 0).gather_constant
        ('fastrp.gather', 'fastrp.gather.far')
        """
        return "fastrp.gather.far" if self.papers * self.columns * _NUMBER_BYTES > LARGE_PANEL else "fastrp.gather"


def plan_panel(papers: int, options: GraphOptions) -> WalkPanel:
    """Return the FastRP columns that a memory limit allows, at least one cache line of them."""
    vectors = options.vectors
    scales = 4 * papers * (2 + sum(map(bool, vectors.fastrp.weights)))  # two scales, and gains of every power
    column = papers * (2 * _NUMBER_BYTES + (2 if options.dtype == "float16" else 4))  # two panels and the result
    fitting = max(0, vectors.memory - scales) // column // MIN_PANEL_WIDTH * MIN_PANEL_WIDTH
    columns = min(vectors.dimension, max(fitting, LINE // _NUMBER_BYTES))
    return WalkPanel(papers, columns, scales + columns * column)


def required_memory(papers: int, options: GraphOptions) -> int:
    """Return the --memory that `citeweave graph` needs: the configured one, or the minimum for full cache lines."""
    memory = options.vectors.memory
    return max(memory, plan_panel(papers, options).held) if options.vectors.method == "fastrp" else memory


# --- the work of a stage, and a whole estimate ---


@dataclass(frozen=True, slots=True)
class StageWork:
    """The estimated work of one stage: seconds of a core or GPU, memory and disk, before a machine is known."""

    name: str
    size: str
    """What it works on, in words."""

    cpu: float = 0.0
    """Seconds of one core."""

    parallel: float = 1.0
    """Share of them that several cores can do at once."""

    moved: float = 0.0
    """Bytes gathered from scattered places in memory; they take at least as long as the memory bandwidth says."""

    on_gpu: float | None = None
    """Seconds of one H200 in place of the cores; None = it runs on cores only."""

    gpus: int = 0
    """Maximum number of GPUs at once; 0 = any number."""

    memory: float = 0.0
    """Bytes resident at the peak, including pages of mapped files that are read repeatedly."""

    gpu_memory: float = 0.0
    disk: float = 0.0
    """Bytes on disk when it is done."""

    constants: tuple[str, ...] = ()
    """Names of the constants that the estimate uses."""

    fits_by: str = ""
    """How to make it fit where memory is short."""

    def seconds(self, machine: Machine) -> float:
        """Estimate the wall-clock seconds of a stage on a machine."""
        if self.on_gpu is not None and machine.gpus:
            used = min(machine.gpus, self.gpus or machine.gpus)
            return self.on_gpu / (machine.gpu_speed * used / machine.gpus)
        cores = self.cpu * (1 - self.parallel + self.parallel / machine.cores)
        return max(cores, self.moved / machine.bandwidth)

    def missing_memory(self, machine: Machine) -> str:
        """Describe the memory that a machine lacks for a stage; empty if it fits."""
        missing = []
        if self.memory > machine.memory:
            missing.append(f"{as_bytes(self.memory)} of memory, and the machine has {as_bytes(machine.memory)}")
        if machine.gpus and self.on_gpu is not None and self.gpu_memory > GPUS[machine.gpu].memory:
            missing.append(
                f"{as_bytes(self.gpu_memory)} of GPU memory, and a {machine.gpu} has "
                f"{as_bytes(GPUS[machine.gpu].memory)}"
            )
        return "; ".join(missing)


def as_bytes(number: float) -> str:
    """Format a number of bytes of an estimate.

    >>> as_bytes(3e6), as_bytes(24 * 2**30), as_bytes(3.3e12)
    ('3 MB', '24 GB', '3 TB')
    """
    for unit, size in (("TB", 2**40), ("GB", 2**30)):
        if number >= size:
            return f"{number / size:.2g} {unit}" if number < 9.95 * size else f"{number / size:,.0f} {unit}"
    return f"{max(1, number / 2**20):,.0f} MB" if number else "0"


WITHIN = 2
"""Factor within which stages run at small sizes were estimated; see docs/estimate.md."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated cost of a recipe: time, memory and disk of every stage on one machine."""

    recipe: str
    machine: Machine
    size: str
    stages: Sequence[StageWork]

    @property
    def seconds(self) -> float:
        return sum(stage.seconds(self.machine) for stage in self.stages)

    @property
    def memory(self) -> float:
        return max(stage.memory for stage in self.stages)

    @property
    def disk(self) -> float:
        return sum(stage.disk for stage in self.stages)

    @property
    def warnings(self) -> list[str]:
        """List one line for every stage that does not fit the machine."""
        lines = []
        for stage in self.stages:
            if missing := stage.missing_memory(self.machine):
                advice = f": {stage.fits_by}" if stage.fits_by else ""
                lines.append(f"{stage.name} needs {missing}{advice}")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as JSON: seconds, bytes and the sources of the constants."""
        stages = [
            {
                "name": stage.name,
                "size": stage.size,
                "seconds": stage.seconds(self.machine),
                "cpu_seconds": 0.0 if self._on_gpu(stage) else stage.cpu,
                "memory": stage.memory,
                "gpu_memory": stage.gpu_memory if self._on_gpu(stage) else 0.0,
                "disk": stage.disk,
                "constants": list(stage.constants),
            }
            for stage in self.stages
        ]
        total = {"seconds": self.seconds, "memory": self.memory, "disk": self.disk}
        names = self._constants()
        return {
            "recipe": self.recipe,
            "machine": asdict(self.machine),
            "stages": stages,
            "total": total,
            "warnings": self.warnings,
            "constants": {name: asdict(CONSTANTS[name]) for name in names},
        }

    def __str__(self) -> str:
        return self.text()

    def text(self, *, constants: bool = True) -> str:
        """Format the estimate as a table, with what does not fit and where the constants come from."""
        rows = [("stage", "time", "memory", "disk", "of")]
        for stage in self.stages:
            where = " (GPU)" if self._on_gpu(stage) else ""
            rows.append(
                (
                    stage.name + where,
                    format_duration(stage.seconds(self.machine)),
                    as_bytes(stage.memory),
                    as_bytes(stage.disk),
                    stage.size,
                )
            )
        rows.append(("total", format_duration(self.seconds), as_bytes(self.memory), as_bytes(self.disk), ""))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [f"{self.recipe} of {self.size}, on {self.machine}"]
        for row in rows:
            cells = [f"{row[0]:<{widths[0]}}", *(f"{row[at]:>{widths[at]}}" for at in (1, 2, 3)), row[4]]
            lines.append("  ".join(cells).rstrip())
        lines += [f"does not fit: {line}" for line in self.warnings]
        if constants:
            lines += ["from:", *(f"  {name}: {CONSTANTS[name]}" for name in self._constants())]
        return "\n".join(lines)

    def _on_gpu(self, stage: StageWork) -> bool:
        return stage.on_gpu is not None and self.machine.gpus > 0

    def _constants(self) -> list[str]:
        """List the constants behind the shown figures, each once, in the order of the stages."""
        names: dict[str, None] = {}
        for stage in self.stages:
            names |= dict.fromkeys(name for name in stage.constants if (".gpu" in name) <= self._on_gpu(stage))
        return list(names)
