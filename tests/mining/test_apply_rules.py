"""Mining, rule by rule, against brute force: who is a positive, who a negative, in every aspect, and how many."""

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.corpus.ingest import exclude_papers
from citeweave.graph.citations import graph_from_edges
from citeweave.graph.signals import Signal, related
from citeweave.mining.inputs import MiningData, MiningInputs, collect_mining_data, field_masks
from citeweave.mining.options import ContextFilter, MiningOptions
from citeweave.mining.rules import parse_rules
from citeweave.mining.sources import collect_cocited_pairs
from citeweave.mining.vector_sources import _cluster_pool

from .conftest import negatives_of, pairs_of, unit_vectors, with_text

BITS = {"background": 1, "method": 2, "result": 4}
CITED = {"source": "cited", "count": 1}


def relation(graph, name):
    found = related(graph, Signal(name), np.arange(graph.nodes))
    rows = np.repeat(np.arange(graph.nodes), np.diff(found.offsets))
    return set(zip(rows.tolist(), found.targets.tolist(), strict=True))


def test_specter_is_as_published(corpus, graph, mine):
    samples = mine("specter")
    cited = relation(graph, "cited")
    assert pairs_of(samples, "positives") <= cited
    hard, easy = pairs_of(samples, "hard"), pairs_of(samples, "easy")
    assert hard and hard <= relation(graph, "second_hop") - cited
    assert not easy & cited
    assert np.diff(samples.positives.offsets).max() == np.diff(samples.negatives.offsets).max() == 5
    facts = samples.manifest.facts
    assert facts["anchors"] + sum(facts["skipped"].values()) == len(corpus)
    # easy negatives come from the whole corpus, not from the anchors
    assert len({row for _, row in easy}) > 0.8 * len(with_text(corpus))


def scores_of(corpus, vectors, anchor, metric="cosine"):
    """Paper -> similarity, of all papers with text and a vector, by plain arithmetic."""
    matrix = vectors.take(corpus.ids.take(np.arange(len(corpus)))).astype(np.float64)
    pool = [row for row in with_text(corpus).tolist() if row != anchor and matrix[row].any()]
    unit = unit_vectors(corpus, vectors)
    scores = -np.linalg.norm(matrix[pool] - matrix[anchor], axis=1) if metric == "l2" else unit[pool] @ unit[anchor]
    return dict(zip(pool, scores.tolist(), strict=True))


def ranks(corpus, vectors, anchor, metric="cosine"):
    scores = scores_of(corpus, vectors, anchor, metric)
    return sorted(scores, key=scores.__getitem__, reverse=True)


def test_bands_are_ranks_of_the_vectors(corpus, vectors, mine):
    samples = mine("scincl", "mining.negatives.hard.band=200", name="scincl")
    for number in (0, 100, len(samples) - 1):
        order = ranks(corpus, vectors, int(samples.anchors[number]))
        assert sorted(samples.positives.of(number)) == sorted(order[20:25])
        assert sorted(negatives_of(samples, number, "hard")) == sorted(order[198:200])
        easy = negatives_of(samples, number, "easy")
        assert len(easy) == 3 and not set(easy) & set(order[:200])
    # paper 5 has a zero vector: no anchor, nobody's neighbor
    assert 5 not in samples.anchors and 5 not in samples.positives.rows
    samples = mine("cocite", "mining.negatives.far.band=200", name="cocite")
    order = ranks(corpus, vectors, int(samples.anchors[7]), "l2")
    assert sorted(samples.positives.of(7)) == sorted(order[18:25])
    assert sorted(samples.negatives.of(7)) == sorted(order[193:200])
    samples = mine({"positives": {"source": "neighbors", "count": 2, "band": [10, 40]}}, name="wide")
    order = ranks(corpus, vectors, int(samples.anchors[3]))
    assert set(samples.positives.of(3).tolist()) <= set(order[10:40])
    assert np.array_equal(np.diff(samples.positives.offsets), np.full(len(samples), 2))


def test_thresholds_are_approached_from_their_side(corpus, vectors, mine):
    rules = {"positives": {"source": "similar", "above": 0.5}, "negatives": {"source": "similar", "below": 0.2}}
    samples = mine({side: {**rule, "count": 3} for side, rule in rules.items()})
    for number in (0, 50):
        scores = scores_of(corpus, vectors, int(samples.anchors[number]))
        above = sorted((score, row) for row, score in scores.items() if score >= 0.5)[:3]
        below = sorted((-score, row) for row, score in scores.items() if score < 0.2)[:3]
        assert sorted(samples.positives.of(number)) == sorted(row for _, row in above)
        assert sorted(samples.negatives.of(number)) == sorted(row for _, row in below)


def test_cells_and_sorted_random(corpus, vectors, mine):
    rules = {
        "next": {"source": "cells", "cells": 8, "cell": 3},
        "last": {"source": "cells", "cells": 8, "cell": 7},
        "far": {"source": "sorted_random", "candidates": 50, "order": "weakest"},
        "near": {"source": "sorted_random", "candidates": 50, "order": "strongest"},
    }
    samples = mine({"positives": CITED, "negatives": {name: {**rule, "count": 3} for name, rule in rules.items()}})
    unit = unit_vectors(corpus, vectors)

    def mean(rule):
        pairs = np.array(sorted(pairs_of(samples, rule)))
        return float(np.einsum("ij,ij->i", unit[pairs[:, 0]], unit[pairs[:, 1]]).mean())

    assert mean("far") < mean("near") - 0.3
    assert mean("last") < mean("next") - 0.05


def test_cells_give_one_paper_each(corpus, inputs, mine):
    """The nearest three cells beside the anchor's own, whose order is found here by plain arithmetic."""
    easy = {"source": "cells", "cells": 8, "cell": 3, "count": 3}
    rules = parse_rules({"positives": CITED, "negatives": {"easy": easy}})
    samples = mine({"positives": CITED, "negatives": {"easy": easy}})
    cells = _cluster_pool(collect_mining_data(corpus, rules, inputs, MiningOptions()), rules.negatives[0])
    home = {int(paper): cell for cell in range(8) for paper in cells.papers[cells.span(cell)]}
    assert {len(samples.negatives.of(number)) for number in range(len(samples))} == {3}
    for number, anchor in enumerate(samples.anchors.tolist()):
        order = np.argsort(-(cells.centers @ cells.centers[home[anchor]]), kind="stable").tolist()
        assert sorted(home[int(row)] for row in samples.negatives.of(number)) == sorted(order[1:4])


def test_tables_are_graded(inputs, mine):
    samples = mine("signal_table")
    table = inputs.tables["coviews"]
    for number in range(0, len(samples), 5):
        anchor = int(samples.anchors[number])
        span = slice(table.offsets[anchor], table.offsets[anchor + 1])
        count = dict(zip(table.targets[span].tolist(), table.counts[span].tolist(), strict=True))
        middle, alike = (max(count.values()) + min(count.values())) / 2, len(set(count.values())) == 1
        assert all(alike or count[row] > middle for row in samples.positives.of(number).tolist())
        assert all(count[row] < middle for row in negatives_of(samples, number, samples.names.rules[1]))


def test_fields_of_easy_negatives(corpus, mine):
    easy = {field: {"source": "random", "count": 2, "field": field} for field in ("same", "disjoint")}
    samples = mine({"positives": CITED, "negatives": easy})
    masks = field_masks(corpus)
    assert all(masks[a] == masks[b] for a, b in pairs_of(samples, "same"))
    assert all(not masks[a] & masks[b] for a, b in pairs_of(samples, "disjoint"))


def test_text_neighbors_with_the_false_negative_filter(corpus, vectors, graph, mine):
    hard = {"source": "neighbors", "vectors": "text", "count": 3, "band": [0, 100]}
    hard |= {"exclude": ["connected", "cocited"], "below_positive": 0.95}
    rules = {"positives": {"source": "cited", "count": 2}, "negatives": {"hard": hard}}
    samples = mine(rules, inputs=MiningInputs(graph=graph, vectors={"text": vectors}))
    picked = pairs_of(samples, "hard")
    assert picked and not picked & (relation(graph, "connected") | relation(graph, "cocited"))
    unit = unit_vectors(corpus, vectors)
    for number in range(0, len(samples), 11):
        anchor = unit[samples.anchors[number]]
        known = [row for row in samples.positives.of(number).tolist() if unit[row].any()]
        least = min((unit[known] @ anchor).tolist(), default=np.inf)
        assert all(unit[row] @ anchor <= 0.95 * least + 1e-6 for row in samples.negatives.of(number).tolist())


@pytest.mark.parametrize(("few", "count"), [("keep", 30), ("skip", 8), ("repeat", 30), ("random", 30)])
def test_too_few_candidates(few, count, mine):
    samples = mine({"positives": {"source": "cited", "count": count, "if_too_few": few}})
    counts, facts = np.diff(samples.positives.offsets), samples.manifest.facts
    assert facts["rules_got"]["positives"] == counts.sum()
    assert counts.min() < 30 if few == "keep" else (counts == count).all()
    if few == "keep":
        assert facts["rules_asked"]["positives"] == 30 * len(samples)
    if few == "skip":
        assert facts["skipped"]["fewer than 8 by rule 'positives'"] > 0
    if few == "repeat":
        assert len(set(samples.positives.of(0).tolist())) < 30


def test_pairs_of_one_sentence_keep_their_sentences(corpus, mine):
    samples = mine("aspire")
    table = corpus.contexts
    assert len(samples.contexts) >= len(samples)
    for number in range(0, len(samples), 7):
        pair = {int(samples.anchors[number]), *samples.positives.of(number).tolist()}
        own = samples.contexts[samples.context_offsets[number] : samples.context_offsets[number + 1]].tolist()
        assert 1 <= len(own) <= 10 and len({int(table.citing[context]) for context in own}) == len(own)
        for context in own:
            cited = table.cited_rows(context).tolist()
            assert pair <= set(cited) and 2 <= len(cited) <= 3
    keys = np.stack([samples.anchors, samples.positives.rows], axis=1)
    assert len({tuple(sorted(key)) for key in keys.tolist()}) == len(samples)
    assert samples.manifest.facts["contexts"]["contexts"]["contexts kept"] > 0


def test_every_context_is_accounted_for_and_none_is_of_excluded_papers(corpus, tmp_path):
    in_pool, options = MiningData(corpus).in_pool, ContextFilter(brackets=False)
    pairs = collect_cocited_pairs(corpus, in_pool, options, seed=0)
    reasons = {reason: n for reason, n in pairs.rejected.items() if not reason.startswith("paper:")}
    assert sum(reasons.values()) + pairs.kept <= len(corpus.contexts)
    everything = collect_cocited_pairs(corpus, in_pool, ContextFilter(max_contexts=10**6, brackets=False), seed=0)
    assert everything.kept >= pairs.kept
    wrote = np.unique(corpus.contexts.citing[corpus.contexts.citing >= 0])[::2]
    left = exclude_papers(corpus, wrote, tmp_path / "left", why="papers of a benchmark")
    in_pool = MiningData(left).in_pool
    kept, excluded = (collect_cocited_pairs(left, in_pool, options, seed=0, before=before) for before in (None, corpus))
    assert (left.contexts.citing[kept.contexts] < 0).any()
    assert (left.contexts.citing[excluded.contexts] >= 0).all() and len(excluded.contexts)
    assert excluded.rejected["citing paper left the corpus"] > 0


@pytest.fixture(scope="module")
def mixed(graph):
    """Some citations of two intents, some of none, some returned by the cited paper."""
    draw = np.random.default_rng(3)
    citing, cited = graph.sources(), graph.cited.targets
    back = draw.random(graph.edges) < 0.1
    both = graph_from_edges(np.concatenate([citing, cited[back]]), np.concatenate([cited, citing[back]]), graph.nodes)
    return both.with_intents(draw.choice([0, 1, 2, 3, 4, 4, 6, 7], both.edges).astype(np.uint8))


def edges_of(graph, bits=None):
    """(citing, cited) of the citations with one of these bits; 0 = of none, None = all."""
    pairs = zip(graph.sources().tolist(), graph.cited.targets.tolist(), graph.intents.tolist(), strict=True)
    return {(a, b) for a, b, mask in pairs if bits is None or (mask & bits if bits else not mask)}


def either(pairs):
    return pairs | {(b, a) for a, b in pairs}


def two_hops(pairs):
    cited: dict[int, list[int]] = {}
    for a, b in pairs:
        cited.setdefault(a, []).append(b)
    return {(a, c) for a, b in pairs for c in cited.get(b, []) if c != a}


def allowed(graph, aspect):
    """Candidates of the SciAspect rules by plain sets."""
    own, others = edges_of(graph, BITS[aspect]), edges_of(graph, 7 - BITS[aspect])
    connected, away = either(edges_of(graph)), two_hops(edges_of(graph))
    return {
        "positives": either(own),
        "local": either(others) - either(own) - either(edges_of(graph, 0)),
        "connected": connected,
        "second_hop": away,
        "global": away - connected,
        "second": two_hops(others) - two_hops(own) - connected,
    }


@pytest.fixture(scope="module")
def candidates(mixed):
    return {aspect: allowed(mixed, aspect) for aspect in BITS}


@pytest.mark.parametrize("recipe", ["sciaspect", "sciaspect_mpnn", "sciaspect_misc"])
def test_local_negatives(recipe, corpus, mixed, candidates, mine):
    samples = mine(recipe, inputs=MiningInputs(graph=mixed))
    pool, anchors = set(with_text(corpus).tolist()), np.unique(samples.anchors)
    for aspect, may in candidates.items():
        positives, hard = pairs_of(samples, "positives", aspect), pairs_of(samples, "hard", aspect)
        assert positives and positives <= may["positives"]
        assert hard and hard <= may["local"]
        assert not pairs_of(samples, "easy", aspect) & may["connected"]
        counts = np.bincount([anchor for anchor, _ in hard], minlength=len(corpus))
        full = np.bincount([a for a, b in may["local"] if b in pool], minlength=len(corpus))
        assert (counts[anchors] == np.minimum(full[anchors], 10)).all()
    assert np.diff(samples.positives.offsets).max() == (5 if recipe == "sciaspect_mpnn" else 1)
    used = [set(samples.anchors[samples.aspects == place].tolist()) for place in range(3)]
    assert used[0] == used[1] == used[2]
    if "miscellaneous" in samples.names.aspects:
        rest = pairs_of(samples, "positives", "miscellaneous")
        assert rest and rest <= either(edges_of(mixed, 0))
        assert not pairs_of(samples, "hard", "miscellaneous")
        assert not pairs_of(samples, "easy", "miscellaneous") & either(edges_of(mixed))


FARTHER_AWAY = [
    ("sciaspect_hybrid", {"local": ("local", 5), "global": ("global", 2), "easy": None}),
    ("sciaspect_hybrid_global", {"local": ("local", 5), "global": ("global", 5)}),
    ("sciaspect_l2", {"hard": ("second", 3), "easy": None}),
    ("sciaspect_l2_hard", {"hard": ("second", 5)}),
    ("sciaspect_l2_easy", {"easy": None}),
]


@pytest.mark.parametrize(("recipe", "rules"), FARTHER_AWAY)
def test_negatives_farther_away(recipe, rules, mixed, candidates, mine):
    samples = mine(recipe, inputs=MiningInputs(graph=mixed))
    assert set(samples.names.rules) == {"positives", *rules}
    for aspect, may in candidates.items():
        assert pairs_of(samples, "positives", aspect) <= may["positives"]
        for rule, limit in rules.items():
            found = pairs_of(samples, rule, aspect)
            if limit is None:
                assert not found & (may["connected"] | may["second_hop"])
            else:
                assert found and found <= may[limit[0]]
                assert np.bincount([anchor for anchor, _ in found]).max() == limit[1]


def test_skipped_anchors_are_counted_by_aspect(corpus, mixed, mine):
    none = mixed.with_intents(np.where(mixed.intents & 4, mixed.intents & 3, mixed.intents).astype(np.uint8))
    few = none.with_intents(np.where(np.arange(none.edges) < 40, none.intents | 4, none.intents).astype(np.uint8))
    samples = mine("sciaspect", "mining.every_aspect=false", inputs=MiningInputs(graph=few))
    facts = samples.manifest.facts
    pool = len(corpus) - facts["skipped"]["no text"]
    for place, aspect in enumerate(samples.names.aspects):
        assert sum(facts["aspects_skipped"][aspect].values()) == pool - int((samples.aspects == place).sum())
    assert facts["aspects_skipped"]["result"]["no positive"] > 0.8 * pool


def test_bands_are_those_of_the_intents_graph(corpus, graph, mine, intent_inputs):
    sparse = graph.with_intents(np.where(np.arange(graph.edges) % 7 == 0, 2, graph.intents & 5).astype(np.uint8))
    inputs = intent_inputs(sparse)
    assert np.array_equal(inputs.graph.intents, sparse.intents)
    samples = mine("sciaspect_bands", "mining.negatives.far.band=200", inputs=inputs)
    pool = with_text(corpus)
    for place, (aspect, bits) in enumerate(BITS.items()):
        matrix = np.asarray(inputs.vectors[f"graph-{aspect}"].matrix, np.float64)
        reached = np.unique([row for pair in edges_of(sparse, bits) for row in pair])
        assert np.array_equal(np.flatnonzero(matrix.any(axis=1)), reached)  # nobody else has a vector
        here = np.intersect1d(pool, reached)
        numbers = np.flatnonzero(samples.aspects == place)
        assert set(samples.anchors[numbers].tolist()) == set(here.tolist())
        for number in numbers[:: max(1, len(numbers) // 25)].tolist():
            anchor = int(samples.anchors[number])
            others = here[here != anchor]
            scores = matrix[others] @ matrix[anchor]
            order = others[np.argsort(-scores, kind="stable")].tolist()
            near = np.sort(scores)[::-1]
            [positive] = samples.positives.of(number)
            assert near[25] - 1e-5 <= matrix[positive] @ matrix[anchor] <= near[20] + 1e-5  # ranks 21 to 25
            assert set(negatives_of(samples, number, "far")) <= set(order[195:203])
            assert not set(negatives_of(samples, number, "easy")) & set(order[:198])
        may = allowed(sparse, aspect)
        assert pairs_of(samples, "other", aspect) <= may["local"]
        assert not (pairs_of(samples, "far", aspect) | pairs_of(samples, "easy", aspect)) & may["connected"]
    skipped = samples.manifest.facts["aspects_skipped"]["method"]
    assert skipped == {"no vector, such as a paper without citations": len(pool) - int((samples.aspects == 1).sum())}
    with pytest.raises(UserError, match="no citation is of aspect 'result', so its graph has no node vectors"):
        intent_inputs(graph.with_intents(graph.intents & np.uint8(3)), "two")
