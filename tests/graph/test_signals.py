"""Signals against their definitions written out as sets and counters."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.graph import signals
from citeweave.graph.citations import graph_from_edges
from citeweave.graph.intent_overlay import intents_from_contexts
from citeweave.graph.signals import Relations, Signal, UnionPart, parse_union, related, unite_signals

from ..conftest import corpus_of, refused

NODES = 9
EDGES = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=45)


def graph_of(edges, intents=None):
    table = np.array(edges, np.int64).reshape(-1, 2)
    bits = None if intents is None else np.array(intents, np.uint8)
    return graph_from_edges(table[:, 0], table[:, 1], NODES, intents=bits)


def by_definition(edges, name, row, longest=1000):
    """What the name says, with strengths."""
    cites = {a: sorted(b for x, b in edges if x == a) for a in range(NODES)}
    cited_by = {b: sorted(a for a, x in edges if x == b) for b in range(NODES)}
    if name in ("cited", "citing", "connected"):
        found = set(cites[row] if name != "citing" else []) | set(cited_by[row] if name != "cited" else [])
        return dict.fromkeys(found, 1.0)
    steps = {
        "second_hop": [(cites, cites)],
        "cocited": [(cited_by, cites)],
        "coupled": [(cites, cited_by)],
        "connected_of_connected": [(x, y) for x in (cites, cited_by) for y in (cites, cited_by)],
    }
    count: Counter[int] = Counter()
    for first, second in steps[name]:
        for middle in first[row]:
            if len(second[middle]) <= longest:
                count.update(second[middle])
    return {target: float(number) for target, number in count.items() if target != row}


def as_dict(found, number):
    targets, strengths = found.row(number)
    assert np.all(np.diff(targets) > 0)
    return dict(zip(targets.tolist(), strengths.tolist(), strict=True))


@given(EDGES, st.sampled_from(sorted({*signals.SIGNALS} - {"cocited_nearby"})), st.sampled_from([2, 1000]))
@settings(max_examples=150)
def test_every_signal_is_its_definition(edges, name, longest):
    graph = graph_of(edges)
    clean = {(a, b) for a, b in edges if a != b}
    found = related(graph, Signal(name, longest=longest), np.arange(NODES))
    for row in range(NODES):
        assert as_dict(found, row) == by_definition(clean, name, row, longest), (name, row)


@given(EDGES, st.integers(1, 4))
@settings(max_examples=60)
def test_the_strongest_with_ties_by_row_and_restricted_to_an_intent(edges, most):
    clean = {(a, b) for a, b in edges if a != b}
    kept = {(a, b) for a, b in clean if (1 + (a + b) % 3) & 2}
    found = related(graph_of(edges), Signal("cocited", strongest=most), np.arange(NODES))
    intents = [1 + (a + b) % 3 for a, b in edges]
    restricted = related(graph_of(edges, intents), Signal("cocited", intent=2), np.arange(NODES))
    for row in range(NODES):
        every = by_definition(clean, "cocited", row)
        best = sorted(every.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
        assert as_dict(found, row) == dict(best)
        assert as_dict(restricted, row) == by_definition(kept, "cocited", row)


def test_blocks_and_workers_change_nothing():
    random = np.random.default_rng(0)
    graph = graph_from_edges(random.integers(0, 500, 4000), random.integers(0, 500, 4000), 500)
    rows = random.permutation(500)
    for name in ("cocited", "connected_of_connected", "connected"):
        whole = related(graph, Signal(name), rows)
        for workers, memory in ((1, 1000), (2, 20_000), (3, 1 << 30)):
            blocks = list(signals.stream_related(graph, Signal(name), rows, workers=workers, memory=memory))
            assert [span.start for span, _ in blocks] == sorted(span.start for span, _ in blocks)
            assert np.array_equal(np.concatenate([block.targets for _, block in blocks]), whole.targets)
            assert np.array_equal(np.concatenate([block.strengths for _, block in blocks]), whole.strengths)
            assert len(blocks) > 1 or memory > 100_000


def test_a_giant_reference_list_is_capped_and_wrong_requests_are_refused():
    citing, cited = np.zeros(100_000, np.int64), np.arange(1, 100_001)
    graph = graph_from_edges(np.append(citing, [1, 1]), np.append(cited, [2, 3]), 100_001)
    found = related(graph, Signal("cocited"), np.array([2]))
    assert found.row(0)[0].tolist() == [3]
    assert signals.count_capped_papers(graph, Signal("cocited")) == 1
    assert len(related(graph, Signal("cocited", longest=200_000), np.array([2])).targets) == 99_999
    for name, row, message in (
        ("cited", 9, "row 9 is not in a graph of 9 nodes"),
        ("cocite", 0, "signal is 'cocite'.*Did you mean 'cocited'"),
        ("cocited_nearby", 0, "needs citing sentences"),
    ):
        with pytest.raises(UserError, match=message):
            related(graph_of([(0, 1)]), Signal(name), np.array([row]))


@pytest.fixture
def cited_nearby(tmp_path):
    """Paper p cites a and b in one sentence, c in the same section, d elsewhere; q cites a and d without a word."""
    papers = [{"id": name, "title": f"paper {name}", "abstract": "text"} for name in "pqabcd"]
    sentences = [("ab", "Method"), ("c", "Method"), ("d", "Results")]
    contexts = [{"citing": "p", "text": f"As {c}.", "cited": list(c), "section": section} for c, section in sentences]
    return corpus_of(tmp_path, papers, [tuple(pair) for pair in ("pa", "pb", "pc", "pd", "qa", "qd")], contexts)


def test_nearness_of_citations_and_intents_of_headings(cited_nearby):
    graph = graph_from_edges(cited_nearby.citing, cited_nearby.cited, len(cited_nearby))
    row = {name: cited_nearby.row(name) for name in "abcd"}
    found = related(Relations(graph, cited_nearby), Signal("cocited_nearby"), np.array([row["a"], row["d"]]))
    assert as_dict(found, 0) == {row["b"]: 1.0, row["c"]: 0.25, row["d"]: 0.125 + 0.125}
    assert as_dict(found, 1) == {row["a"]: 0.25, row["b"]: 0.125, row["c"]: 0.125}
    strong = related(Relations(graph, cited_nearby), Signal("cocited_nearby", least=0.3), np.array([row["a"]]))
    assert as_dict(strong, 0) == {row["b"]: 1.0}
    assert not intents_from_contexts(cited_nearby, graph).any()
    found = intents_from_contexts(cited_nearby, graph, headings=True).tolist()
    edges, ids = zip(graph.sources(), graph.cited.targets, strict=True), cited_nearby.ids
    pairs = [ids[citing] + ids[cited] for citing, cited in edges]
    assert dict(zip(pairs, found, strict=True)) == {"pa": 2, "pb": 2, "pc": 2, "pd": 4, "qa": 0, "qd": 0}


def test_union_adds_weighted_cosines():
    graph = graph_of([(0, 2), (0, 3), (1, 2), (1, 3), (1, 4)])
    union = unite_signals(Relations(graph), [UnionPart(Signal("connected"), 2.0), UnionPart(Signal("cocited"), 0.5)])
    row = dict(zip(union.row(2).tolist(), union.weights[union.offsets[2] : union.offsets[3]].tolist(), strict=True))
    assert row == pytest.approx({0: 2.0, 1: 2.0, 3: 0.5 * 2 / np.sqrt(2 * 2), 4: 0.5 * 1 / np.sqrt(2 * 1)})
    plain = unite_signals(Relations(graph), [UnionPart(Signal("cocited"))], normalize=False)
    assert plain.weights[plain.offsets[2] : plain.offsets[3]].tolist() == [2.0, 1.0]
    equal = unite_signals(Relations(graph), parse_union("connected:2,cocited:0.5"), equal=True)
    row = dict(zip(equal.row(2).tolist(), equal.weights[equal.offsets[2] : equal.offsets[3]].tolist(), strict=True))
    assert row == {0: 2.0, 1: 2.0, 3: 0.5, 4: 0.5}, "the weights of signals stay, their strengths do not count"
    with pytest.raises(UserError, match="no two papers are related by cocited"):
        unite_signals(Relations(graph_of([(0, 1)])), parse_union("cocited"))
    refused("a weight is a number over 0", parse_union, "cocited:none")


def test_union_in_blocks_is_the_same(corpus):
    graph = graph_from_edges(corpus.citing, corpus.cited, len(corpus))
    parts = parse_union("connected:1,cocited_nearby:0.5,coupled:0.3", strongest=5)
    whole = unite_signals(Relations(graph, corpus), parts)
    small = unite_signals(Relations(graph, corpus), parts, memory=2000, workers=2)
    for column in ("offsets", "targets", "weights"):
        assert np.array_equal(getattr(whole, column), getattr(small, column))
    both = signals.symmetrize(whole)
    dense = np.zeros((2, len(corpus), len(corpus)), np.float32)
    for number, part in enumerate(both.parts):
        dense[number][np.repeat(np.arange(len(corpus)), np.diff(part.offsets)), part.targets] = part.weights
    assert np.array_equal(dense[0].T, dense[1])
    every = unite_signals(Relations(graph), parse_union("cocited", strongest=0))
    assert [part.edges for part in signals.symmetrize(every).parts] == [every.edges], (
        "each pair counts once a direction"
    )
