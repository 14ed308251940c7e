"""The audit of samples against counting by hand: collisions, false negatives, copies, repeats, leakage, warnings."""

import json
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citeweave.corpus.leakage import PaperTable
from citeweave.graph.citations import graph_from_edges
from citeweave.graph.signals import Signal, related
from citeweave.mining import collisions
from citeweave.mining.audit import AuditOptions, audit_samples, draw_audit
from citeweave.mining.false_negatives import RELATIONS, find_same_works, relate_pairs, relation_bit
from citeweave.mining.samples import SampleNames, block_from_lists

from .conftest import pairs_of, papers_corpus, refused, write_samples

NAMES = SampleNames(rules=("near", "hard", "easy"), aspects=("background", "method"))


def written(folder, corpus, groups, **facts):
    """Samples from (anchor, positives, negatives, aspect); the first negative is hard, the others easy."""
    anchors, ups, downs, aspects = zip(*groups, strict=True)
    block = block_from_lists(anchors, ups, downs)
    rules = np.array([1 if place == 0 else 2 for down in downs for place in range(len(down))], np.uint8)
    block = replace(block, aspects=np.array(aspects, np.uint8), negatives=replace(block.negatives, rules=rules))
    return write_samples(folder, NAMES, corpus.hash, block, facts=facts)


rows = st.integers(0, 14)
groups = st.lists(
    st.tuples(rows, st.lists(rows, max_size=4), st.lists(rows, max_size=4), st.integers(0, 1)), min_size=1, max_size=12
)
no_folder_checks = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@no_folder_checks
@given(groups=groups, blocks=st.sampled_from([1, 3, 1 << 20]), memory=st.sampled_from([500, 1 << 20]))
def test_collisions_and_repeats_are_those_counted_by_hand(groups, blocks, memory, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(collisions, "MAX_PICKS", blocks)
    samples = written(tmp_path / "s", corpus, groups)
    audit = audit_samples(samples, corpus, near_duplicates=False, options=AuditOptions(memory=memory, examples=100))
    sides: list[dict[tuple[int, ...], list[tuple[int, int]]]] = [defaultdict(list), defaultdict(list)]
    for anchor, up, down, aspect in groups:
        for side, picks in zip(sides, (up, down), strict=True):
            for row in picks:
                if row != anchor:
                    side[tuple(sorted((anchor, row)))].append((anchor, aspect))
    both = sides[0].keys() & sides[1].keys()
    found = audit.collisions
    assert found.pairs == len(both) and found.all_pairs == len(sides[0].keys() | sides[1].keys())
    assert found.negatives_touched == sum(len(sides[1][pair]) for pair in both)
    for at, count in ((0, found.same_anchor), (1, found.same_aspect)):
        assert count == sum(bool({e[at] for e in sides[0][p]} & {e[at] for e in sides[1][p]}) for p in both)
    assert {example.papers for example in found.examples} == {tuple(corpus.ids[row] for row in pair) for pair in both}
    check_repeats(audit.repeats, groups)


def check_repeats(found, groups):
    triplets = Counter()
    for anchor, up, down, aspect in groups:
        if up and down:
            for place in range(max(len(up), len(down))):
                triplets[anchor, aspect, up[place % len(up)], down[place % len(down)]] += 1
    assert found.triplets == sum(triplets.values()) and found.repeated_triplets == found.triplets - len(triplets)
    assert found.repeated_picks == sum(len(side) - len(set(side)) for _, *sides, _ in groups for side in sides)
    assert found.on_both_sides == sum(len(set(up) & set(down)) for _, up, down, _ in groups)
    assert found.anchor_picked == sum([*up, *down].count(anchor) for anchor, up, down, _ in groups)
    counts = Counter(row for _, _, down, _ in groups for row in down)
    frequency = found.frequencies["negatives"]
    assert (frequency.picks, frequency.papers) == (counts.total(), len(counts))
    assert [count for _, count in frequency.top] == sorted(counts.values(), reverse=True)[:10]


@pytest.mark.parametrize("longest", [1000, 3])
def test_relations_of_pairs_are_those_of_signals(longest):
    random = np.random.default_rng(0)
    citing, cited = (random.integers(0, 60, 260) ** 2 // 60 for _ in range(2))
    graph = graph_from_edges(citing, cited, 60)
    first, second = (side.ravel() for side in np.meshgrid(np.arange(60), np.arange(60), indexing="ij"))
    bits = relate_pairs(graph, first, second, longest=longest, workers=2).reshape(60, 60)
    for name in RELATIONS:
        found = related(graph, Signal(name, longest=longest), np.arange(60))
        expected = np.zeros((60, 60), bool)
        expected[np.repeat(np.arange(60), np.diff(found.offsets)), found.targets] = True
        assert np.array_equal((bits & relation_bit(name)) > 0, expected), name
        assert expected.any()


def test_negatives_are_audited_rule_by_rule(corpus, graph, mine):
    easy = {"source": "random", "count": 2, "exclude": ["connected", "cocited"]}
    rules = {"hard": {"source": "second_hop", "count": 2}, "easy": easy}
    samples = mine({"positives": {"source": "cited", "count": 3}, "negatives": rules})
    audit = audit_samples(samples, corpus, graph=graph)
    found = {rule.name: rule for rule in audit.rules}
    assert found["positives"].share("cited") == found["hard"].share("second_hop") == 1
    assert found["easy"].relations["connected"] == found["easy"].relations["cocited"] == 0
    assert found["hard"].relations["cited"] == sum(b in graph.cited.row(a) for a, b in pairs_of(samples, "hard")) > 0
    facts = samples.manifest.facts
    assert found["hard"].asked == facts["rules_asked"]["hard"] and found["hard"].source == "second_hop"
    assert any(line.endswith('add exclude = ["cited"] to it') and "'hard'" in line for line in audit.warnings)
    assert audit.coverage.skipped == facts["skipped"]
    assert audit.coverage.anchors == len(samples) and audit.coverage.without_abstract == 0


def copies_in(corpus, folder):
    """The first papers of a corpus, one with a cut abstract under another title, one with its title in capitals."""
    papers = [{"id": f"t:{row}", "title": corpus.titles[row], "abstract": corpus.abstracts[row]} for row in range(40)]
    words = papers[7]["abstract"].split()
    papers.append({"id": "t:cut", "title": "Another name", "abstract": " ".join(words[: 2 * len(words) // 3])})
    papers.append({"id": "t:same", "title": papers[9]["title"].upper() + "!", "abstract": "Nothing alike in here."})
    return papers_corpus(folder, papers)


@pytest.mark.parametrize("memory", [1 << 20, 2000])
def test_copies_of_the_anchor_or_of_a_positive_are_found(corpus, tmp_path, memory):
    copied = copies_in(corpus, tmp_path)
    row = {name: copied.row(f"t:{name}") for name in ("7", "9", "1", "2", "3", "cut", "same")}
    first, second = (side.ravel() for side in np.meshgrid(np.arange(len(copied)), np.arange(len(copied))))
    alike = find_same_works(copied, first, second, memory=memory)
    pairs = {tuple(sorted(pair)) for pair in zip(first[alike].tolist(), second[alike].tolist(), strict=True)}
    assert pairs == {tuple(sorted((row["7"], row["cut"]))), tuple(sorted((row["9"], row["same"])))}
    groups = [
        (row["7"], [row["1"]], [row["cut"], row["2"]], 0),
        (row["1"], [row["2"], row["9"]], [row["3"], row["same"]], 0),
    ]
    audit = audit_samples(written(tmp_path / "s", copied, groups), copied, options=AuditOptions(memory=memory))
    copies = {rule.name: rule.copies for rule in audit.rules if rule.copies is not None}
    assert (copies["hard"].of_anchor, copies["hard"].of_positive, copies["hard"].compared) == (1, 0, 2)
    assert (copies["easy"].of_anchor, copies["easy"].of_positive, copies["easy"].compared) == (0, 1, 2)
    assert {(copy.paper, copy.negative) for copy in audit.copies} == {("t:7", "t:cut"), ("t:9", "t:same")}
    assert "t:7 and t:cut" in str(audit)


def test_distances_are_cosines_of_anchor_and_pick(corpus, vectors, mine):
    near, hard = ({"source": "neighbors", "count": count, "band": band} for count, band in ((3, 5), (2, 100)))
    samples = mine({"positives": near, "negatives": {"hard": hard, "easy": {"source": "random", "count": 2}}})
    audit = audit_samples(samples, corpus, vectors={"graph": vectors}, near_duplicates=False)
    scores, cosines = audit.similarities["score"], audit.similarities["graph"]
    assert set(scores.values) == {"positives", "hard"} and set(cosines.values) == {"positives", "hard", "easy"}
    assert np.allclose(np.sort(scores.values["hard"]), np.sort(cosines.values["hard"]), atol=1e-5)
    assert cosines.quantiles("hard")["50 %"] == pytest.approx(np.median(cosines.values["hard"]))
    counts, edges = cosines.histogram("hard")
    assert counts.sum() == len(cosines.values["hard"]) == 2 * len(samples) and len(edges) == 41
    assert cosines.missing["easy"] == 2 * len(samples) - len(cosines.values["easy"]) >= 0
    few = audit_samples(samples, corpus, near_duplicates=False, options=AuditOptions(values=100))
    assert 40 < len(few.similarities["score"].values["hard"]) < 200
    assert set(few.similarities["score"].values["hard"]) <= set(scores.values["hard"])


def test_the_audit_does_not_depend_on_memory_blocks_or_workers(corpus, graph, vectors, mine, monkeypatch):
    samples = mine({"positives": {"source": "cited", "count": 5}, "negatives": {"source": "cocited", "count": 3}})
    found = []
    for blocks, memory, workers in ((1 << 20, 1 << 29, 1), (50, 30_000, 2)):
        monkeypatch.setattr(collisions, "MAX_PICKS", blocks)
        options = AuditOptions(memory=memory, workers=workers, values=500)
        audit = audit_samples(samples, corpus, graph=graph, vectors={"graph": vectors}, options=options)
        found.append((json.dumps(audit.as_json()), str(audit)))
    assert found[0] == found[1]
    assert "collisions: " in found[0][1] and json.loads(found[0][0])["collisions"]["pairs"] > 0


def test_aspects_may_disagree_and_benchmarks_are_found(corpus, tmp_path):
    samples = written(tmp_path / "s", corpus, [(10, [11], [12], 0), (13, [14], [15], 0), (16, [17], [11], 0)])
    table = PaperTable.of_corpus(corpus)
    benchmark = PaperTable(*([getattr(table, name)[row] for row in (11, 13, 99)] for name in ("ids", "titles")))
    audit = audit_samples(samples, corpus, benchmarks={"toy": benchmark}, near_duplicates=False)
    assert (audit.leaked["toy"].papers, audit.leaked["toy"].samples) == (2, 3)
    assert "2 papers of benchmark 'toy' are in 3 samples" in audit.warnings[0]
    assert audit_samples(samples, corpus, benchmarks={}).leaked == {}
    groups = [(1, [2], [3, 4], 0), (1, [3], [2, 4], 1)]
    audit = audit_samples(written(tmp_path / "s", corpus, groups), corpus, near_duplicates=False)
    assert (audit.collisions.pairs, audit.collisions.same_aspect, audit.collisions.same_anchor) == (2, 0, 2)
    assert not any("elsewhere" in line for line in audit.warnings)
    twice = [(1, [2], [3], 0), (1, [2], [3], 1), (1, [2], [3], 1)]
    repeats = audit_samples(written(tmp_path / "s", corpus, twice), corpus, near_duplicates=False).repeats
    assert (repeats.triplets, repeats.repeated_triplets) == (3, 1)


def test_warnings_name_the_next_step(corpus, graph, tmp_path):
    groups = [(1, [2, 1], [3, 2], 0), (2, [4], [1, 5], 0)]
    facts = {"rules_asked": {"hard": 9}, "rules_got": {"hard": 2}, "skipped": {"no positive": 7}}
    worst = audit_samples(written(tmp_path / "s", corpus, groups, **facts), corpus).warnings
    expected = [
        "1 papers are positive and negative in one sample",
        "1 picks are their own anchor",
        "50 % of the negatives are positives elsewhere (1 pairs)",
        "rule 'hard' found 22 % of the papers asked for",
        "7 anchors gave no sample, most for: no positive",
    ]
    assert [line[: len(start)] for line, start in zip(worst, expected, strict=True)] == expected
    calm = audit_samples(written(tmp_path / "s", corpus, [(1, [2], [3], 0)]), corpus)
    assert calm.warnings == () and str(calm).endswith("nothing to warn of")
    bare = audit_samples(written(tmp_path / "s", corpus, [(1, [2], [], 0)]), corpus, graph=graph)
    assert bare.collisions.share_of_negatives == 0 and bare.repeats.triplets == 0
    assert json.loads(json.dumps(bare.as_json()))["rules"]["near"]["picks"] == 1


def test_inputs_of_another_corpus_are_refused(corpus, tmp_path):
    samples = written(tmp_path / "s", corpus, [(1, [2], [3], 0)])
    for audited, graph, message in (
        (samples, graph_from_edges(np.array([0]), np.array([1]), 2), "the graph is of another corpus"),
        (write_samples(tmp_path / "o", NAMES, "another", ([1], [[2]], [[3]])), None, "mined from another corpus"),
        (written(tmp_path / "far", corpus, [(1, [2], [99_999], 0)]), None, "names rows that"),
    ):
        refused(message, audit_samples, audited, corpus, graph=graph)
    refused("audit.values is 0; it must be at least 1", AuditOptions, values=0)


def test_pictures_are_drawn(corpus, graph, vectors, tmp_path):
    pytest.importorskip("matplotlib")
    samples = written(tmp_path / "s", corpus, [(row, [row + 1], [row + 50, row + 90], 0) for row in range(200)])
    audit = audit_samples(samples, corpus, graph=graph, vectors={"graph": vectors, "a/b": vectors})
    drawn = draw_audit(audit, tmp_path / "p")
    assert [path.name for path in drawn] == ["similarity-0.png", "similarity-graph.png", "relations.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    assert draw_audit(audit_samples(samples, corpus, near_duplicates=False), tmp_path / "q") == []
