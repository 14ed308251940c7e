"""Reading rules: a `[mining]` table becomes `MiningRules`; a key or a type that does not fit is refused.

>>> rules = parse_rules({"positives": {"source": "cited", "count": 5}})
>>> rules.positives[0].name, rules.positives[0].source
('positives', 'cited')
>>> parse_rules({"positives": {"source": "cited", "coutn": 5}})
Traceback (most recent call last):
citeweave.core.errors.UserError: mining.positives has an unknown key 'coutn'; did you mean 'count'?

Where citation intents come from: the corpus itself, headings of citing sentences, or the folder of an overlay.

    given = GivenIntents("intents/")            made by `citeweave annotate corpus/ -o intents/`
    graph = given.put(graph, corpus)            the graph with these intents on its edges
    GivenIntents("corpus"), GivenIntents("sections")

An overlay is of one corpus. For a corpus made from that one (papers or references left it) its citations are found again
by the ids of the two papers. Does not find intents: `intents/annotate.py` does.

Gathering what rules need: the graph with its node vectors, intents, tables of pairs, named vectors, anchors.

    given = GivenIntents("intents/")
    make_graph_for(corpus, folder, recipe.table("graph"), with_vectors=True, intents=intents_apart(given, corpus, rules))
    inputs = graph_inputs(folder, recipe.table("graph"), with_vectors=True, apart=rules.aspect_graphs)
    inputs = with_intents(inputs, corpus, given)
    check_intents(inputs, rules, corpus)
    inputs = dataclasses.replace(inputs, tables=read_tables({"coviews": Path("pairs.tsv")}, corpus))

`citeweave mine` and `citeweave run` both gather here. Does not mine: `mine.py` does.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import read_manifest
from citeweave.core.columns import BLOCK, is_finite
from citeweave.core.errors import UserError
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Count, Reporter, Tally
from citeweave.corpus.corpus import Corpus
from citeweave.graph.build import (
    GraphIntents,
    check_made_for,
    graph_options,
    make_graph,
    vectors_folder,
)
from citeweave.graph.citations import KIND, VERSION, CitationGraph, build_graph
from citeweave.graph.intent_overlay import CitationPlaces, IntentOverlay, intents_from_contexts
from citeweave.graph.signals import SIGNALS
from citeweave.mining.mine import MiningInputs
from citeweave.mining.rules import (
    MISCELLANEOUS,
    NODES,
    ContextFilter,
    MiningRules,
    Rule,
    aspect_vectors,
    intent_bits,
    is_relation,
)
from citeweave.mining.tables import Table, read_table
from citeweave.vectors.vectors import Vectors


def parse_rules(table: Mapping[str, Any]) -> MiningRules:
    """Read a `[mining]` table; an unknown key is refused with the nearest known one."""
    table = dict(table)
    values: dict[str, Any] = {}
    for side in ("positives", "negatives"):
        values[side] = tuple(_rules_of(side, table.pop(side, {})))
    if "contexts" in table:
        contexts = _table(table.pop("contexts"), "mining.contexts")
        values["contexts"] = ContextFilter(**_known(contexts, ContextFilter, "mining.contexts"))
    tasks = _table(table.pop("tasks", {}), "mining.tasks")
    if tasks and (values["positives"] or values["negatives"]):
        raise UserError("mining has both tasks and rules of its own; give every rule to a task")
    if tasks and (table or "contexts" in values):
        keys = ", ".join([*table, *(["contexts"] if "contexts" in values else [])])
        raise UserError(f"mining has {keys} beside tasks; give them to every task, as mining.tasks.NAME.KEY")
    values["tasks"] = tuple(_task(name, _table(task, f"mining.tasks.{name}")) for name, task in tasks.items())
    return MiningRules(**values, **_tuples(_known(table, MiningRules, "mining")))


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where} is {value!r}; it must be a table [{where}]")
    return dict(value)


def _task(name: str, table: dict[str, Any]) -> tuple[str, float, MiningRules]:
    weight = table.pop("weight", 1.0)
    if not is_finite(weight) or weight <= 0:
        raise UserError(f"mining.tasks.{name}.weight is {weight!r}; it must be a number over 0")
    try:
        return name, float(weight), parse_rules(table)
    except UserError as error:
        raise UserError(f"mining.tasks.{name}: {error}") from None


def _rules_of(side: str, table: Any) -> list[Rule]:
    if not isinstance(table, Mapping):
        raise UserError(f"mining.{side} is {table!r}; it must be a table with source and count, or one of named rules")
    if "source" in table:
        return [_rule(side, side, table)]
    return [_rule(name, f"{side}.{name}", rule) for name, rule in table.items()]


def _rule(name: str, path: str, table: Any) -> Rule:
    if not isinstance(table, Mapping):
        raise UserError(f"mining.{path} is {table!r}; a rule is a table with source and count")
    values = _tuples(_known(dict(table), Rule, f"mining.{path}"))
    missing = [key for key in ("source", "count") if key not in values]
    if missing:
        raise UserError(f"mining.{path} has no {' and no '.join(missing)}; a rule needs source and count")
    return Rule(name=name, **values)


def _known(table: dict[str, Any], kind: Any, where: str) -> dict[str, Any]:
    """Check keys and the types of values against a dataclass's fields."""
    fields = {entry.name: entry for entry in dataclasses.fields(kind)}
    for key, value in table.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(fields))}"
            raise UserError(f"{where} has an unknown key {key!r}{hint}")
        if not _fits(value, str(fields[key].type)):
            kind = str(fields[key].type)
            told = 'a list of texts such as ["method", "result"]' if kind == "tuple[str, ...]" else kind
            raise UserError(f"{where}.{key} is {value!r}; it must be {told}")
    return table


def _fits(value: Any, kind: str) -> bool:
    kinds = {"int": int, "float": int | float, "str": str, "bool": bool, "tuple": list | tuple}
    allowed = [kinds[part.strip().split("[")[0]] for part in kind.split("|") if part.strip().split("[")[0] in kinds]
    if isinstance(value, bool):
        return bool in allowed
    if kind == "tuple[str, ...]":
        return isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value)
    return any(isinstance(value, entry) for entry in allowed)


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


# Where citation intents come from: the corpus itself, headings of citing sentences, or the folder of an overlay.

CORPUS, SECTIONS = "corpus", "sections"


@dataclass(frozen=True, slots=True)
class GivenIntents:
    """The value of `--intents`."""

    where: str = CORPUS
    """`corpus`: those it has; `sections`: also read off headings; else the folder of an overlay."""

    of: Corpus | None = None
    """The corpus that an overlay is of, where intents are put on the graph of another that was made from it."""

    def __post_init__(self) -> None:
        if self.is_overlay and not Path(self.where).is_dir():
            raise UserError(
                f"--intents {self.where}: there is no such folder; give {CORPUS}, {SECTIONS}, or a folder that `citeweave "
                "annotate CORPUS -o FOLDER` made"
            )

    @property
    def is_overlay(self) -> bool:
        return self.where not in (CORPUS, SECTIONS)

    @property
    def source(self) -> str:
        """What is kept of it in recipes: the hash of an overlay, else its name."""
        return IntentOverlay.open(self.where).hash if self.is_overlay else self.where

    def put(self, graph: CitationGraph, corpus: Corpus) -> CitationGraph:
        """The graph with these intents on its edges; it is of this corpus."""
        if not self.is_overlay:
            headings = self.where == SECTIONS
            return graph.with_intents(intents_from_contexts(corpus, graph, headings=headings))
        overlay = IntentOverlay.open(self.where)
        if self.of is None or overlay.corpus == corpus.hash:
            return overlay.on(graph, corpus)
        overlay.check(self.of)
        return graph.with_intents(_found_again(overlay, self.of, graph, corpus))


def _found_again(overlay: IntentOverlay, of: Corpus, graph: CitationGraph, corpus: Corpus) -> NDArray[np.uint8]:
    """Intents of every edge, by the ids of its papers in the corpus that the overlay is of; (edges,)."""
    row = np.empty(len(corpus), np.int64)  # of each paper in `of`, -1 where it is not there
    for start in range(0, len(corpus), BLOCK):
        papers = np.arange(start, min(start + BLOCK, len(corpus)))
        row[papers] = of.rows(corpus.ids.take(papers))
    places = CitationPlaces(of).find(row[graph.sources()], row[graph.cited.targets])  # (edges,)
    known = places >= 0
    if graph.edges and not known.any():
        raise UserError(
            f"--intents {overlay.folder}: none of the {graph.edges:,} citations that are trained on is among those of "
            f"{of.folder}; annotate the corpus of which this run is, or give --intents auto"
        )
    intents = np.array(graph.intents)
    intents[known] = overlay.mask[places[known]]
    return intents


# Gathering what rules need: the graph with its node vectors, intents, tables of pairs, named vectors, anchors.

_CORPUS = GivenIntents()
_WITHOUT = "recipes that need none still run: specter_cl, scincl, sciaspect_relations"


def needs_graph(rules: MiningRules) -> bool:
    """Whether some rule draws by citations, or by vectors that are made of them."""
    return rules.needs_vectors(NODES) or bool(rules.sources & set(SIGNALS))


def make_graph_for(
    corpus: Corpus,
    folder: Path,
    table: Mapping[str, Any],
    making: Mapping[str, Any] | None = None,
    *,
    with_vectors: bool,
    intents: GraphIntents | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> CitationGraph:
    """The graph, with node vectors where they are asked for; `table` is the recipe's [graph], `making` seed and device.

    Vectors of single intents' citations are made with the others: `intents` says of which.
    """
    if not with_vectors:
        return build_graph(corpus, folder, overwrite=overwrite)
    options = graph_options(table, **(making or {}))
    return make_graph(corpus, folder, options, intents=intents, overwrite=overwrite, reporter=reporter)


def intents_apart(given: GivenIntents, corpus: Corpus, aspects: Sequence[str]) -> GraphIntents | None:
    """What a graph needs for vectors of these aspects' citations; None where there are none of them.

    `MiningRules.aspect_graphs` says which aspects the rules need.
    """
    if not aspects:
        return None
    bits = {aspect: intent_bits(aspect, "mining.aspects") for aspect in aspects}
    return GraphIntents(given.source, lambda graph: given.put(graph, corpus), bits)


def graph_inputs(
    folder: Path, table: Mapping[str, Any], *, with_vectors: bool, apart: Sequence[str] = ()
) -> MiningInputs:
    """A graph's folder as inputs, with the vectors of single aspects' citations; one that does not fit is refused."""
    opened = CitationGraph.open(folder)
    if not with_vectors:
        return MiningInputs(graph=opened)
    if not vectors_folder(folder).is_dir():
        raise UserError(f"{folder} has no node vectors, which the recipe needs; make it again with --method fastrp")
    check_made_for(folder, graph_options(table))
    vectors = {NODES: Vectors.open(vectors_folder(folder))}
    for aspect in apart:
        _check_apart(folder, aspect)
        vectors[aspect_vectors(aspect)] = Vectors.open(vectors_folder(folder, aspect))
    return MiningInputs(graph=opened, vectors=vectors)


def _check_apart(folder: Path, aspect: str) -> None:
    if vectors_folder(folder, aspect).is_dir():
        return
    known = read_manifest(folder, KIND, VERSION).facts.get("apart", {})
    if aspect in known:
        raise UserError(
            f"{folder}: no citation is of aspect {aspect!r}, so its graph has no node vectors; leave it out with --set "
            f"'mining.aspects=[...]', or take other intents with --intents"
        )
    raise UserError(
        f"{folder} has no node vectors of the citations of aspect {aspect!r}, which the recipe needs; make it again with "
        "--per-intent"
    )


def with_intents(inputs: MiningInputs, corpus: Corpus, given: GivenIntents = _CORPUS) -> MiningInputs:
    """The graph with the given intents on its citations."""
    if inputs.graph is None:
        return inputs
    return dataclasses.replace(inputs, graph=given.put(inputs.graph, corpus))


def check_intents(inputs: MiningInputs, rules: MiningRules, corpus: Corpus) -> None:
    """Refuse rules that ask for intents that no citation has, and say what can be done."""
    if not rules.needs_intents or inputs.graph is None:
        return
    if not inputs.graph.intents.any():
        raise UserError(
            f"the recipe asks for citation intents, and the citations of {corpus.folder} have none; {_what_to_do(corpus)}"
        )
    for each in [inner for _, _, inner in rules.tasks] or [rules]:
        _check_aspects(each, inputs.graph, corpus)


def _what_to_do(corpus: Corpus) -> str:
    if not len(corpus.contexts):
        return f"it has no citing sentences to find them in: import a source that gives some, or intents; {_WITHOUT}"
    return (
        f"find them with `citeweave annotate {corpus.folder} -o intents/` and give --intents intents/, or read them off the "
        "headings of citing sentences with --intents sections"
    )


def _check_aspects(rules: MiningRules, graph: CitationGraph, corpus: Corpus) -> None:
    """Aspects need citations: each where anchors must have all of them, two at least where one is set against others."""
    aspects = [aspect for aspect in rules.aspects if aspect != MISCELLANEOUS and not is_relation(aspect)]
    counts = {name: int((graph.intents & intent_bits(name, "mining.aspects") > 0).sum()) for name in aspects}
    lacking = [name for name, number in counts.items() if not number]
    compared = any(rule.intent == "other" for rule in rules.rules)
    if not lacking or not (rules.every_aspect or (compared and len(lacking) + 1 >= len(aspects))):
        return
    found = ", ".join(f"{name} {number:,}" for name, number in counts.items())
    left = [name for name in aspects if name not in lacking]
    step = f"leave it out with --set 'mining.aspects={json.dumps(left)}'"
    if len(left) < 2:
        step = f"a recipe that sets one intent against another needs two; {_WITHOUT}"
    raise UserError(f"the citations of {corpus.folder} are of intents {found}, none is of {lacking[0]}; {step}")


def read_tables(
    paths: Mapping[str, Path], corpus: Corpus, *, symmetric: bool = False, reporter: Reporter = QUIET
) -> dict[str, Table]:
    """Tables of pairs by the names that rules use, with a line on each."""
    found = {name: read_table(path, corpus, symmetric=symmetric) for name, path in paths.items()}
    for name, table in found.items():
        count = table.tally.counts["pairs"]
        reasons = "".join(f"; {number:,} not: {reason}" for reason, number in count.rejected.items())
        reporter.say(f"table {name}: {count.kept:,} of {count.read:,} pairs{reasons}")
    return found


def read_rows(path: Path, corpus: Corpus, option: str, reporter: Reporter = QUIET) -> NDArray[np.int64]:
    """Rows of the ids in a file, one a line, plain or compressed, ascending; `option` is how it was given."""
    if not path.is_file():
        raise UserError(f"{option} {path} does not exist; give a file with one id a line")
    found, number = [np.zeros(0, np.int64)], 0
    lines = Source(path).lines(Tally({"ids": Count()}), "ids")
    while ids := [line.decode("utf-8", "replace").strip() for line in islice(lines, BLOCK)]:
        number += len(ids)
        found.append(corpus.rows(ids).astype(np.int64))
    rows = np.concatenate(found)
    if not (rows >= 0).any():
        raise UserError(f"{option} {path}: none of its {number:,} ids is in {corpus.folder}; one id a line")
    if (rows < 0).any():
        reporter.say(f"{path}: {int((rows < 0).sum()):,} of {number:,} ids are not in the corpus")
    return np.unique(rows[rows >= 0])
