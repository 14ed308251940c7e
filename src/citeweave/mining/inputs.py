"""Inputs of mining: graph, vectors, tables and the pool that rules draw from, opened, checked and matched to the corpus.

    corpus of 52,000,000 papers, vectors of all of them on disk (52,000,000 x 128)
    pool of 680,967 papers and 136,820 anchors   ->   a matrix of their 700,000 vectors in memory (180 MB as float16)

The pool is all papers with text, or those of a list of papers that have it. Vectors may come in any order and for any
subset of the papers: those whose ids are the corpus's in the same order are matched by row, others are looked up by id.
A paper whose vector is zero (an isolated node) has no neighbors and is no neighbor.

Venues, authors and fields that papers share are indexed both ways, some 20 bytes per entry. They are compared without
regard to case and spaces, and by name alone: two authors of one name are one.

`citeweave mine` and `citeweave run` prepare their inputs here:

    intents = graph_intents(source, corpus, rules.aspect_graphs)
    build_mining_graph(corpus, folder, recipe.table("graph"), with_vectors=True, intents=intents)
    inputs = graph_inputs(folder, recipe.table("graph"), with_vectors=True, aspects=rules.aspect_graphs)
    inputs = annotate_inputs(inputs, corpus, source)
    check_intents(inputs, rules, corpus)
    inputs = dataclasses.replace(inputs, tables=read_tables({"coviews": Path("pairs.tsv")}, corpus))

Does not mine: `mine.py` does.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import read_manifest
from citeweave.core.columns import BLOCK, TextColumn, release
from citeweave.core.errors import UserError
from citeweave.core.hash_keys import hash_texts
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Count, Reporter, Tally
from citeweave.core.ragged import count_owners
from citeweave.corpus.corpus import Corpus, lines
from citeweave.corpus.readers import SOURCES_OF
from citeweave.graph.build import GraphIntents, check_graph_options, make_graph, node_vectors_folder
from citeweave.graph.citations import KIND, VERSION, CitationGraph, build_graph
from citeweave.graph.intent_overlay import IntentSource
from citeweave.graph.options import graph_options
from citeweave.graph.signals import SIGNALS, Relations
from citeweave.mining.draw import SharedMetadata
from citeweave.mining.options import MiningOptions
from citeweave.mining.rules import MISCELLANEOUS, NODES, MiningRules, aspect_vectors, intent_bits, is_relation
from citeweave.mining.tables import Table
from citeweave.vectors.vectors import Vectors, unit_rows

_IDS = ("id.utf8", "id.offsets.npy")
_MAX_FIELDS = 63


@dataclass(frozen=True, slots=True)
class MiningInputs:
    """What `mine_samples` mines with besides the corpus: graph, vectors, tables, anchors, pool."""

    graph: CitationGraph | None = None
    vectors: Mapping[str, Vectors] = field(default_factory=dict)
    """By the name that rules use; "graph" are the node vectors."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    anchors: NDArray[np.int64] | None = None
    """Rows that may be anchors, in the pool or not; None = all of the pool."""

    pool: NDArray[np.int64] | None = None
    """Rows that may be selected, if they have the text that the rules require; None = all rows."""

    before: Corpus | None = None
    """The corpus before papers were removed, such as those of a benchmark: their sentences are not used as contexts."""


@dataclass
class MiningData:
    """The data that mining rules draw from: corpus, relations, vectors, tables, and the pool of papers."""

    corpus: Corpus
    text: str = "abstract"
    """Which papers take part: abstract, title, either, any."""

    relations: Relations | None = None
    vectors: Mapping[str, Vectors] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    seed: int = 0
    workers: int = 0
    memory: int = 512 << 20
    device: str = "cpu"
    pool_rows: NDArray[np.int64] | None = None
    """Rows that may be selected; None = any."""

    anchors: NDArray[np.int64] | None = None
    """Rows that may be anchors, in the pool or not; None = those of the pool."""

    cells: dict[tuple[str, int], object] = field(default_factory=dict)
    """k-means cells that were computed, by vectors and number."""

    _matched: dict[str, PoolVectors] = field(default_factory=dict)
    _shared: dict[tuple[str, ...], SharedMetadata] = field(default_factory=dict)

    @cached_property
    def has_text(self) -> NDArray[np.bool_]:
        """Which papers of the mining data have the text that the rules require; shape (papers,)."""
        if self.text == "any":
            return np.ones(len(self.corpus), bool)
        has_title, has_abstract = (column.lengths() > 0 for column in (self.corpus.titles, self.corpus.abstracts))
        return {"abstract": has_title & has_abstract, "title": has_title, "either": has_title | has_abstract}[self.text]

    @cached_property
    def in_pool(self) -> NDArray[np.bool_]:
        """Which papers of the mining data are in the pool; shape (papers,)."""
        if self.pool_rows is None:
            return self.has_text
        chosen = np.zeros(len(self.corpus), bool)
        chosen[self.pool_rows] = self.has_text[self.pool_rows]
        return chosen

    @cached_property
    def pool(self) -> NDArray[np.int32]:
        """The rows of the pool, ascending."""
        return np.flatnonzero(self.in_pool).astype(np.int32)

    @property
    def max_pool_size(self) -> int:
        """Size that the pool would have if all its papers had text."""
        return len(self.corpus) if self.pool_rows is None else len(np.unique(self.pool_rows))

    @cached_property
    def fields(self) -> NDArray[np.uint64]:
        """A bit for each of the 63 most frequent fields of study, one for all others; shape (papers,)."""
        return field_masks(self.corpus)

    def graph(self, why: str) -> Relations:
        """Return the citation graph for rules; refuse with `why` if there is none."""
        if self.relations is None:
            raise UserError(f"{why} needs the citation graph; give it with --graph")
        return self.relations

    def table(self, name: str) -> Table:
        """Return a table of pairs by its name in the rules."""
        if name not in self.tables:
            known = f" (known: {', '.join(self.tables)})" if self.tables else ""
            raise UserError(f"a rule draws from table {name!r}, which is not given{known}; give --table {name}=FILE")
        return self.tables[name]

    def shared_metadata(self, relations: tuple[str, ...]) -> SharedMetadata:
        """Return the venues, authors or fields that papers share, for some relations together."""
        if relations not in self._shared:
            self._shared[relations] = collect_shared_metadata(self.corpus, relations, self.in_pool)
        return self._shared[relations]

    def pool_vectors(self, name: str) -> PoolVectors:
        """Return the mining data's vectors by a name in the rules, matched to corpus rows and the pool."""
        if name not in self._matched:
            if name not in self.vectors:
                option = "--graph FOLDER" if name == NODES else f"--vectors {name}=FOLDER"
                if name.startswith(f"{NODES}-"):
                    option = "--graph FOLDER of a graph made with --per-intent"
                raise UserError(f"a rule needs the vectors {name!r}, which are not given; give {option}")
            papers = None  # all of the corpus, unless the pool is restricted
            if self.pool_rows is not None:
                anchors = np.zeros(0, np.int64) if self.anchors is None else self.anchors
                papers = np.union1d(self.pool.astype(np.int64), anchors)
            self._matched[name] = match_vectors(
                self.vectors[name], self.corpus, self.in_pool, papers=papers, memory=self.memory
            )
        return self._matched[name]


def collect_mining_data(corpus: Corpus, rules: MiningRules, inputs: MiningInputs, options: MiningOptions) -> MiningData:
    """Collect what to mine one task's samples with; refuse a pool without any usable paper."""
    data = MiningData(
        corpus,
        rules.text,
        Relations(inputs.graph, corpus) if inputs.graph is not None else None,
        inputs.vectors,
        inputs.tables,
        options.seed,
        options.workers,
        options.memory,
        options.device,
        pool_rows=inputs.pool,
        anchors=inputs.anchors,
    )
    if inputs.pool is not None and not len(data.pool):
        raise UserError(
            f"none of the {data.max_pool_size:,} papers of the pool has the text that the rules ask for "
            f"(mining.text = {data.text!r}); a corpus of citations alone is mined with --set mining.text=any"
        )
    return data


def field_masks(corpus: Corpus) -> NDArray[np.uint64]:
    """Return the fields of study of every paper in the mining data as bits, most frequent first."""
    count = Counter(name for text in corpus.fields for name in lines(text))
    bits = {name: np.uint64(1) << np.uint64(place) for place, (name, _) in enumerate(count.most_common(_MAX_FIELDS))}
    rare = np.uint64(1) << np.uint64(_MAX_FIELDS)
    masks = np.zeros(len(corpus), np.uint64)
    for row, text in enumerate(corpus.fields):
        for name in lines(text):
            masks[row] |= bits.get(name, rare)
    return masks


# Vectors matched to corpus rows.


@dataclass(frozen=True, slots=True)
class PoolVectors:
    """Vectors as mining data: matched to the papers of a corpus, and which of them are in the pool."""

    matrix: NDArray[Any]
    """Shape (vectors, dimension): memory-mapped, or in memory those of pool and anchors."""

    row_of: NDArray[np.int32]
    """Row of the matrix for every paper, -1 if it has no vector, a zero one, or is not needed; shape (papers,)."""

    paper_of: NDArray[np.int32]
    """Paper of every row of the matrix, -1 if it is not used; shape (vectors,)."""

    pool: NDArray[np.int64]
    """Rows of the matrix that are papers of the pool, ascending."""

    hash: str = ""

    def unit(self, papers: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Return the vectors of these papers scaled to length 1, shape (papers, dimension)."""
        return unit_rows(np.asarray(self.matrix[self.row_of[papers]], np.float32))


def match_vectors(
    vectors: Vectors,
    corpus: Corpus,
    in_pool: NDArray[np.bool_],
    *,
    papers: NDArray[np.int64] | None = None,
    memory: int = 0,
) -> PoolVectors:
    """Match vectors to the mining data's corpus rows, all or the ascending `papers`; refuse those of other papers only.

    The vectors of `papers` are copied if they fit into `memory`: few rows of a large file are then read once, and not
    with the pages around them again and again.
    """
    owners = np.arange(len(corpus)) if papers is None else papers
    rows = _rows_of(vectors, corpus, owners)
    matched = rows >= 0
    if not matched.any():
        which = "any paper in" if papers is None else f"any of the {len(papers):,} papers of pool and anchors in"
        raise UserError(f"{vectors.folder} has no vector of {which} {corpus.folder}; are they of another corpus?")
    order = np.argsort(rows[matched], kind="stable")
    owners, rows = owners[matched][order], rows[matched][order]
    matrix = vectors.matrix
    if papers is not None and len(rows) * matrix.shape[1] * matrix.itemsize <= memory:
        copied = np.empty((len(rows), matrix.shape[1]), matrix.dtype)
        for part, block in _read_blocks(matrix, rows):
            copied[part] = block
        matrix, rows = copied, np.arange(len(rows))
    nonzero = np.empty(len(rows), bool)
    for part, block in _read_blocks(matrix, rows):
        nonzero[part] = block.any(axis=1)
    owners, rows = owners[nonzero], rows[nonzero]
    row_of, paper_of = np.full(len(corpus), -1, np.int32), np.full(len(matrix), -1, np.int32)
    row_of[owners], paper_of[rows] = rows, owners
    return PoolVectors(matrix, row_of, paper_of, rows[in_pool[owners]], vectors.manifest.hash)


def _rows_of(vectors: Vectors, corpus: Corpus, papers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of each paper's vector, -1 if it has none."""
    if _same_ids(vectors, corpus):
        return papers.astype(np.int64)
    rows = np.empty(len(papers), np.int64)
    for start in range(0, len(papers), BLOCK):
        part = slice(start, start + BLOCK)
        rows[part] = vectors.rows(corpus.ids.take(papers[part]))
    return rows


def _same_ids(vectors: Vectors, corpus: Corpus) -> bool:
    """Whether vectors and corpus have the same ids in the same order, by the hashes of their id files."""
    own, other = vectors.manifest.files, corpus.manifest.files
    return all(own.get(name, {}).get("sha256", name) == other.get(f"papers/{name}", {}).get("sha256") for name in _IDS)


def _read_blocks(matrix: NDArray[Any], rows: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield some rows of a mapped matrix, block by block, and release its pages."""
    for start in range(0, len(rows), BLOCK):
        part = slice(start, start + BLOCK)
        yield part, matrix[rows[part]]
        release(matrix)


# Metadata that papers share.


def collect_shared_metadata(corpus: Corpus, relations: Sequence[str], in_pool: NDArray[np.bool_]) -> SharedMetadata:
    """Collect the metadata that papers of a corpus share, for some relations together; (papers,) marks the pool."""
    keys, papers = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for relation in relations:
        column = _column(corpus, relation)
        for start in range(0, len(corpus), BLOCK):
            names, rows = [], []
            for row, text in enumerate(column[start : start + BLOCK], start):
                for name in filter(None, map(normalize_name, [text] if relation == "venue" else lines(text))):
                    names.append(f"{relation}:{name}")
                    rows.append(row)
            keys.append(hash_texts(names))
            papers.append(np.array(rows, np.int64))
    _, value = np.unique(np.concatenate(keys), return_inverse=True)  # (entries,)
    return index_shared_values(np.concatenate(papers), value, in_pool)


def check_relations(corpus: Corpus, rules: MiningRules) -> None:
    """Refuse rules about shared metadata that no paper of the corpus has; of several aspects one may be missing."""
    aspects = [aspect for aspect in rules.aspects if is_relation(aspect)]
    named = [rule.relation for rule in rules.rules if is_relation(rule.relation)]
    missing = {each for each in (*aspects, *named) if not _column(corpus, each).lengths().any()}
    if missing & set(named) or missing >= set(aspects) > set() or (missing and rules.every_aspect):
        names = " or ".join(sorted(missing))
        raise UserError(
            f"the rules ask what papers share by {', '.join(dict.fromkeys([*aspects, *named]))}, and no paper of "
            f"{corpus.folder} has {names}; leave that out of mining.aspects and of the rules, or import a source that has it: "
            f"{SOURCES_OF[min(missing)]}"
        )


def _column(corpus: Corpus, relation: str) -> TextColumn:
    return {"venue": corpus.venues, "author": corpus.authors, "field": corpus.fields}[relation]


def index_shared_values(
    papers: NDArray[np.int64], values: NDArray[np.int64], in_pool: NDArray[np.bool_]
) -> SharedMetadata:
    """Index shared metadata, pairs of a paper and one of its values, in any order, both ways; both (entries,).

    >>> shared = index_shared_values(np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([True, True]))
    >>> shared.values.tolist(), shared.members.tolist(), shared.member_offsets.tolist()
    ([0, 0, 1], [0, 1, 1], [0, 2, 3])
    """
    number = int(values.max()) + 1 if len(values) else 0
    codes = np.unique(papers * max(number, 1) + values)  # each entry once, by paper and value
    papers, values = codes // max(number, 1), codes % max(number, 1)
    here = in_pool[papers]
    order = np.argsort(values[here], kind="stable")
    return SharedMetadata(
        count_owners(papers, len(in_pool)),
        values.astype(np.int32),
        count_owners(values[here], number),
        papers[here][order].astype(np.int32),
    )


def normalize_name(name: str) -> str:
    """Normalize case and spaces of a name in shared metadata: a venue, author or field.

    >>> normalize_name("  Proceedings of  ACL ")
    'proceedings of acl'
    """
    return " ".join(name.split()).casefold()


# Graph, tables and row lists of a command.

_CORPUS_INTENTS = IntentSource()
_RECIPES_WITHOUT = "recipes that need none still run: specter_cl, scincl, sciaspect_relations"


def needs_graph(rules: MiningRules) -> bool:
    """Whether some mining rule needs the citation graph, or node vectors made from it."""
    return rules.needs_vectors(NODES) or bool(rules.sources & set(SIGNALS))


def build_mining_graph(
    corpus: Corpus,
    folder: Path,
    table: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    *,
    with_vectors: bool,
    intents: GraphIntents | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> CitationGraph:
    """Build the graph among mining's inputs as a recipe's rules need it, with node vectors if requested.

    `table` is the recipe's [graph], `settings` are seed and device. `intents` says which intents' citations get node
    vectors of their own.
    """
    if not with_vectors:
        return build_graph(corpus, folder, overwrite=overwrite)
    options = graph_options(table, **(settings or {}))
    return make_graph(corpus, folder, options, intents=intents, overwrite=overwrite, reporter=reporter)


def graph_intents(source: IntentSource, corpus: Corpus, aspects: Sequence[str]) -> GraphIntents | None:
    """Return the intents that mining's input graph needs for node vectors of these aspects; None without aspects.

    `MiningRules.aspect_graphs` says which aspects the rules need.
    """
    if not aspects:
        return None
    bits = {aspect: intent_bits(aspect, "mining.aspects") for aspect in aspects}
    return GraphIntents(source.source, lambda graph: source.annotate(graph, corpus), bits)


def graph_inputs(
    folder: Path, table: Mapping[str, Any], *, with_vectors: bool, aspects: Sequence[str] = ()
) -> MiningInputs:
    """Open a graph folder as mining inputs, with node vectors of single aspects; refuse one that does not fit."""
    opened = CitationGraph.open(folder)
    if not with_vectors:
        return MiningInputs(graph=opened)
    if not node_vectors_folder(folder).is_dir():
        raise UserError(f"{folder} has no node vectors, which the recipe needs; build it again with --method fastrp")
    check_graph_options(folder, graph_options(table))
    vectors = {NODES: Vectors.open(node_vectors_folder(folder))}
    for aspect in aspects:
        place = node_vectors_folder(folder, aspect)
        if not place.is_dir():
            raise _missing_aspect_error(folder, aspect)
        vectors[aspect_vectors(aspect)] = Vectors.open(place)
    return MiningInputs(graph=opened, vectors=vectors)


def _missing_aspect_error(folder: Path, aspect: str) -> UserError:
    """Return the error for a graph folder without node vectors of this aspect's citations."""
    if aspect in read_manifest(folder, KIND, VERSION).facts.get("apart", {}):
        return UserError(
            f"{folder}: no citation is of aspect {aspect!r}, so its graph has no node vectors; leave it out with --set "
            f"'mining.aspects=[...]', or use other intents with --intents"
        )
    return UserError(
        f"{folder} has no node vectors of the citations of aspect {aspect!r}, which the recipe needs; build it again with "
        "--per-intent"
    )


def annotate_inputs(inputs: MiningInputs, corpus: Corpus, source: IntentSource = _CORPUS_INTENTS) -> MiningInputs:
    """Return the mining inputs with intents from this source on the graph's citations."""
    if inputs.graph is None:
        return inputs
    return dataclasses.replace(inputs, graph=source.annotate(inputs.graph, corpus))


def check_intents(inputs: MiningInputs, rules: MiningRules, corpus: Corpus) -> None:
    """Refuse mining inputs in which no citation has the intents that rules need, and say what to do."""
    if not rules.needs_intents or inputs.graph is None:
        return
    if not inputs.graph.intents.any():
        step = (
            f"find them with `citeweave annotate {corpus.folder} -o intents/` and give --intents intents/, or read them from "
            "the headings of citing sentences with --intents sections"
        )
        if not len(corpus.contexts):
            step = f"it has no citing sentences to find them in: import {SOURCES_OF['context']}; {_RECIPES_WITHOUT}"
        raise UserError(f"the recipe asks for citation intents, and the citations of {corpus.folder} have none; {step}")
    for part in rules.parts:
        _check_aspects(part, inputs.graph, corpus)


def _check_aspects(rules: MiningRules, graph: CitationGraph, corpus: Corpus) -> None:
    """Refuse aspects without citations: each aspect if anchors must have all, at least two if they are compared."""
    aspects = [aspect for aspect in rules.aspects if aspect != MISCELLANEOUS and not is_relation(aspect)]
    counts = {name: int((graph.intents & intent_bits(name, "mining.aspects") > 0).sum()) for name in aspects}
    missing = [name for name, number in counts.items() if not number]
    compared = any(rule.intent == "other" for rule in rules.rules)
    if not missing or not (rules.every_aspect or (compared and len(missing) + 1 >= len(aspects))):
        return
    present = ", ".join(f"{name} {number:,}" for name, number in counts.items())
    left = [name for name in aspects if name not in missing]
    step = f"leave it out with --set 'mining.aspects={json.dumps(left)}'"
    if len(left) < 2:
        step = f"a recipe that sets one intent against another needs two; {_RECIPES_WITHOUT}"
    raise UserError(f"the citations of {corpus.folder} have the intents {present}, none has {missing[0]}; {step}")


def read_rows(path: Path, corpus: Corpus, option: str, reporter: Reporter = QUIET) -> NDArray[np.int64]:
    """Read a mining input of paper ids, one per line, as ascending corpus rows; `option` names it in messages."""
    if not path.is_file():
        raise UserError(f"{option} {path} does not exist; give a file with one id per line")
    parts, number = [np.zeros(0, np.int64)], 0
    lines = Source(path).lines(Tally({"ids": Count()}), "ids")
    while ids := [line.decode("utf-8", "replace").strip() for line in islice(lines, BLOCK)]:
        number += len(ids)
        parts.append(corpus.rows(ids).astype(np.int64))
    rows = np.concatenate(parts)
    if not (rows >= 0).any():
        raise UserError(f"{option} {path}: none of its {number:,} ids is in {corpus.folder}; give one id per line")
    if (rows < 0).any():
        reporter.say(f"{path}: {int((rows < 0).sum()):,} of {number:,} ids are not in the corpus")
    return np.unique(rows[rows >= 0])
