"""Mining, rule by rule: what was chosen is what the rule says, accounted for, the same under any workers."""

import itertools
import json

import numpy as np
import pytest

from citeweave import import_papers
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.corpus.ingest import exclude_papers
from citeweave.graph.citations import build_graph, graph_from_edges
from citeweave.graph.signals import Signal, related
from citeweave.mining import mine
from citeweave.mining.blocks import BlockFiles, BlockPace
from citeweave.mining.inputs import parse_rules
from citeweave.mining.mine import MiningInputs, MiningOptions, mine_samples
from citeweave.mining.mining_data import MiningData, field_masks
from citeweave.mining.rules import ContextFilter
from citeweave.mining.sources import collect_cocited_pairs
from citeweave.mining.tables import build_table
from citeweave.pipeline.recipe import load_recipe, shipped_recipes

SMALL = {
    "scincl": ["mining.negatives.hard.band=200"],
    "scincl_wide": ["mining.negatives.hard.band=[100, 200]"],
    "scincl_kmeans": ["mining.negatives.hard.band=200"],
    "scincl_sorted_random": ["mining.negatives.hard.band=200"],
    "cocite": ["mining.negatives.far.band=200"],
    "sciaspect": ["mining.every_aspect=false"],
    "sciaspect_bands": ["mining.negatives.far.band=200"],
    "oracle": ["mining.text=abstract"],
    "aspire_context": ["mining.text=abstract"],
    "ict": ["mining.text=abstract"],
    "cite_titles": ["mining.text=abstract", "mining.positives.count=3"],
    "weave": ["mining.text=abstract", "mining.positives.cited.count=3"],
}


def recipes():
    """One recipe of all that have the same rules, bands aside."""
    found: dict[str, str] = {}
    for name in shipped_recipes():
        table = load_recipe(name, SMALL.get(name, [])).table("mining")
        if not name.startswith("cocite_"):
            found.setdefault(repr(table) if name not in SMALL else name, name)
    shown = {repr(load_recipe(name).table("mining")) for name in SMALL}
    return sorted(name for key, name in found.items() if key not in shown)


@pytest.fixture
def inputs(graph, vectors):
    random = np.random.default_rng(2)
    pairs = random.integers(0, 600, (4000, 2))
    table = build_table(pairs[:, 0], pairs[:, 1], random.integers(1, 6, 4000).astype(float), papers=600)
    return MiningInputs(
        graph=graph,
        vectors=dict.fromkeys(("graph", "graph-background", "graph-method", "graph-result"), vectors),
        tables=dict.fromkeys(("coviews", "coreads", "labels"), table),
    )


def mined(corpus, table, folder, inputs, **options):
    return mine_samples(corpus, parse_rules(table), folder, inputs, MiningOptions(**options))


def pairs_of(samples, picks, rule):
    """(anchor, picked) of one rule."""
    chosen = picks.rules == samples.names.rules.index(rule)
    anchors = samples.anchors[picks.owners()[chosen]]
    return set(zip(anchors.tolist(), picks.rows[chosen].tolist(), strict=True))


def relation(graph, name, intent=None):
    found = related(graph, Signal(name, intent=intent), np.arange(graph.nodes))
    rows = np.repeat(np.arange(graph.nodes), np.diff(found.offsets))
    return set(zip(rows.tolist(), found.targets.tolist(), strict=True))


def with_text(corpus):
    return np.flatnonzero((corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0))


def check_whole(corpus, samples):
    """What holds for every set of samples."""
    usable = set(with_text(corpus).tolist())
    for side in (samples.positives, samples.negatives):
        assert set(side.rows.tolist()) <= usable
        assert (side.rows != samples.anchors[side.owners()]).all()
    for number in range(len(samples)):
        assert not set(samples.positives.of(number)) & set(samples.negatives.of(number))
    facts = samples.manifest.facts
    for name, asked in facts["rules_asked"].items():
        assert facts["rules_got"][name] <= asked


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_mines_the_same_under_any_workers(name, corpus, inputs, tmp_path):
    table = load_recipe(name, SMALL.get(name, [])).table("mining")
    first = mined(corpus, table, tmp_path / "1", inputs, workers=1)
    second = mined(corpus, table, tmp_path / "2", inputs, workers=2, memory=64 << 20)
    assert first.hash == second.hash
    assert first.manifest.facts == second.manifest.facts
    check_whole(corpus, first)
    assert mined(corpus, table, tmp_path / "3", inputs, seed=1).hash != first.hash


def test_small_blocks_change_nothing(corpus, inputs, tmp_path, monkeypatch):
    table = load_recipe("specter").table("mining")
    whole = mined(corpus, table, tmp_path / "1", inputs)
    monkeypatch.setattr(mine, "BLOCK_ANCHORS", 37)
    assert mined(corpus, table, tmp_path / "2", inputs).hash == whole.hash


def test_specter_is_as_published(corpus, inputs, graph, tmp_path):
    samples = mined(corpus, load_recipe("specter").table("mining"), tmp_path / "s", inputs)
    cited = relation(graph, "cited")
    assert pairs_of(samples, samples.positives, "positives") <= cited
    hard = pairs_of(samples, samples.negatives, "hard")
    assert hard and hard <= relation(graph, "second_hop") - cited
    assert not pairs_of(samples, samples.negatives, "easy") & cited
    assert np.diff(samples.positives.offsets).max() == 5
    assert np.diff(samples.negatives.offsets).max() == 5
    facts = samples.manifest.facts
    assert facts["anchors"] + sum(facts["skipped"].values()) == len(corpus)
    # easy negatives come from the whole corpus, not from the anchors
    easy = {row for _, row in pairs_of(samples, samples.negatives, "easy")}
    assert len(easy) > 0.8 * len(with_text(corpus))


def ranks(corpus, vectors, anchor, metric="cosine"):
    """All papers with text and a vector, nearest first, by plain arithmetic."""
    matrix = vectors.take(corpus.ids.take(np.arange(len(corpus)))).astype(np.float64)
    pool = [row for row in with_text(corpus).tolist() if row != anchor and matrix[row].any()]
    if metric == "l2":
        scores = -np.linalg.norm(matrix[pool] - matrix[anchor], axis=1)
    else:
        scores = matrix[pool] @ matrix[anchor] / np.linalg.norm(matrix[pool], axis=1)
    return [pool[i] for i in np.argsort(-scores, kind="stable")]


def test_scincl_takes_its_bands(corpus, inputs, vectors, tmp_path):
    table = load_recipe("scincl", SMALL["scincl"]).table("mining")
    samples = mined(corpus, table, tmp_path / "s", inputs)
    names = samples.names.rules
    for number in (0, 100, len(samples) - 1):
        order = ranks(corpus, vectors, int(samples.anchors[number]))
        assert sorted(samples.positives.of(number)) == sorted(order[20:25])
        span = slice(samples.negatives.offsets[number], samples.negatives.offsets[number + 1])
        rules = samples.negatives.rules[span]
        assert sorted(samples.negatives.rows[span][rules == names.index("hard")]) == sorted(order[198:200])
        easy = samples.negatives.rows[span][rules == names.index("easy")]
        assert len(easy) == 3
        assert not set(easy.tolist()) & set(order[:200])
    # paper 5 has a zero vector: no anchor, nobody's neighbor
    assert 5 not in samples.anchors
    assert 5 not in samples.positives.rows


def test_cocite_ranks_by_l2(corpus, inputs, vectors, tmp_path):
    samples = mined(corpus, load_recipe("cocite", SMALL["cocite"]).table("mining"), tmp_path / "s", inputs)
    order = ranks(corpus, vectors, int(samples.anchors[7]), "l2")
    assert sorted(samples.positives.of(7)) == sorted(order[18:25])
    assert sorted(samples.negatives.of(7)) == sorted(order[193:200])


def test_wider_bands_are_drawn_from(corpus, inputs, vectors, tmp_path):
    table = {"positives": {"source": "neighbors", "count": 2, "band": [10, 40]}}
    samples = mined(corpus, table, tmp_path / "s", inputs)
    order = ranks(corpus, vectors, int(samples.anchors[3]))
    assert set(samples.positives.of(3).tolist()) <= set(order[10:40])
    assert np.array_equal(np.diff(samples.positives.offsets), np.full(len(samples), 2))


def test_thresholds_are_approached_from_their_side(corpus, inputs, vectors, tmp_path):
    table = {
        "positives": {"source": "similar", "count": 3, "above": 0.5},
        "negatives": {"source": "similar", "count": 3, "below": 0.2},
    }
    samples = mined(corpus, table, tmp_path / "s", inputs)
    matrix = vectors.take(corpus.ids.take(np.arange(len(corpus)))).astype(np.float64)
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-30)
    for number in (0, 50):
        anchor = int(samples.anchors[number])
        pool = [row for row in with_text(corpus).tolist() if row != anchor and matrix[row].any()]
        scores = dict(zip(pool, (matrix[pool] @ matrix[anchor]).tolist(), strict=True))
        above = sorted((score, row) for row, score in scores.items() if score >= 0.5)[:3]
        below = sorted(((-score, row) for row, score in scores.items() if score < 0.2))[:3]
        assert sorted(samples.positives.of(number)) == sorted(row for _, row in above)
        assert sorted(samples.negatives.of(number)) == sorted(row for _, row in below)


def test_cells_and_sorted_random(corpus, inputs, vectors, tmp_path):
    table = {
        "positives": {"source": "cited", "count": 1},
        "negatives": {
            "next": {"source": "cells", "count": 3, "cells": 8, "cell": 1},
            "last": {"source": "cells", "count": 3, "cells": 8, "cell": 7},
            "far": {"source": "sorted_random", "count": 3, "candidates": 50, "order": "weakest"},
            "near": {"source": "sorted_random", "count": 3, "candidates": 50, "order": "strongest"},
        },
    }
    samples = mined(corpus, table, tmp_path / "s", inputs)
    matrix = vectors.take(corpus.ids.take(np.arange(len(corpus)))).astype(np.float64)
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-30)

    def mean(rule):
        pairs = np.array(sorted(pairs_of(samples, samples.negatives, rule)))
        return float(np.einsum("ij,ij->i", matrix[pairs[:, 0]], matrix[pairs[:, 1]]).mean())

    assert mean("far") < mean("near") - 0.3
    assert mean("last") < mean("next") - 0.1


def test_aspects_follow_intents(corpus, inputs, graph, tmp_path):
    table = load_recipe("sciaspect").table("mining")
    samples = mined(corpus, table, tmp_path / "s", inputs)
    bits = {"background": 1, "method": 2, "result": 4}
    by_intent = {name: relation(graph, "connected", bit) for name, bit in bits.items()}
    for aspect, name in enumerate(samples.names.aspects):
        for number in np.flatnonzero(samples.aspects == aspect).tolist():
            anchor = int(samples.anchors[number])
            assert all((anchor, int(row)) in by_intent[name] for row in samples.positives.of(number))
            span = slice(samples.negatives.offsets[number], samples.negatives.offsets[number + 1])
            for row, rule in zip(samples.negatives.rows[span], samples.negatives.rules[span], strict=True):
                others = [other for other in bits if other != name and (anchor, int(row)) in by_intent[other]]
                is_hard = samples.names.rules[rule] == "hard"
                assert bool(others) == is_hard
                assert (anchor, int(row)) not in by_intent[name]
    # every anchor that is used has all three aspects
    counts = np.unique(samples.anchors, return_counts=True)[1]
    assert (counts == 3).all()


def test_the_miscellaneous_aspect_has_only_easy_negatives(corpus, graph, tmp_path):
    unknown = graph.with_intents(np.where(np.arange(graph.edges) % 3 == 0, 0, graph.intents).astype(np.uint8))
    table = load_recipe("sciaspect_misc", ["mining.every_aspect=false"]).table("mining")
    samples = mined(corpus, table, tmp_path / "s", MiningInputs(graph=unknown))
    rest = np.flatnonzero(samples.aspects == 3)
    assert len(rest)
    hard = samples.names.rules.index("hard")
    assert not (samples.negatives.rules[np.isin(samples.negatives.owners(), rest)] == hard).any()


def test_pairs_of_one_sentence_keep_their_sentences(corpus, inputs, tmp_path):
    samples = mined(corpus, load_recipe("aspire").table("mining"), tmp_path / "s", inputs)
    table = corpus.contexts
    assert len(samples.contexts) >= len(samples)
    for number in range(0, len(samples), 7):
        pair = {int(samples.anchors[number]), *samples.positives.of(number).tolist()}
        own = samples.contexts[samples.context_offsets[number] : samples.context_offsets[number + 1]]
        assert 1 <= len(own) <= 10
        citing = [int(table.citing[context]) for context in own]
        assert len(set(citing)) == len(citing)
        for context in own.tolist():
            assert pair <= set(table.cited_rows(context).tolist())
            assert 2 <= len(table.cited_rows(context)) <= 3
    keys = np.stack([samples.anchors, samples.positives.rows], axis=1)
    unordered = {tuple(sorted(key)) for key in keys.tolist()}
    assert len(unordered) == len(samples)
    kept = samples.manifest.facts["contexts"]["contexts"]
    assert kept["contexts kept"] > 0


def test_every_context_is_accounted_for(corpus):
    data = MiningData(corpus)
    pairs = collect_cocited_pairs(corpus, data.in_pool, ContextFilter(brackets=False), seed=0)
    reasons = {reason: n for reason, n in pairs.rejected.items() if not reason.startswith("paper:")}
    assert sum(reasons.values()) + pairs.kept <= len(corpus.contexts)
    everything = collect_cocited_pairs(corpus, data.in_pool, ContextFilter(most_contexts=10**6, brackets=False), seed=0)
    assert everything.kept >= pairs.kept


def test_what_excluded_papers_wrote_is_no_context(corpus, tmp_path):
    options = ContextFilter(brackets=False)
    wrote = np.unique(corpus.contexts.citing[corpus.contexts.citing >= 0])[::2]
    left = exclude_papers(corpus, wrote, tmp_path / "left", why="papers of a benchmark")
    in_pool = MiningData(left).in_pool
    kept, excluded = (collect_cocited_pairs(left, in_pool, options, seed=0, before=before) for before in (None, corpus))
    assert (left.contexts.citing[kept.contexts] < 0).any()
    assert (left.contexts.citing[excluded.contexts] >= 0).all() and len(excluded.contexts)
    assert excluded.rejected["citing paper left the corpus"] > 0


def test_tables_are_graded(corpus, inputs, tmp_path):
    samples = mined(corpus, load_recipe("signal_table").table("mining"), tmp_path / "s", inputs)
    table = inputs.tables["coviews"]
    for number in range(0, len(samples), 5):
        anchor = int(samples.anchors[number])
        span = slice(table.offsets[anchor], table.offsets[anchor + 1])
        count = dict(zip(table.targets[span].tolist(), table.counts[span].tolist(), strict=True))
        middle = (max(count.values()) + min(count.values())) / 2
        assert all(
            count[row] > middle or len(set(count.values())) == 1 for row in samples.positives.of(number).tolist()
        )
        hard = samples.negatives.rules[samples.negatives.offsets[number] : samples.negatives.offsets[number + 1]] == 1
        assert all(count[row] < middle for row in samples.negatives.of(number)[hard].tolist())


def test_a_mixture_has_the_asked_shares(corpus, inputs, tmp_path):
    one = {"positives": {"source": "cited", "count": 1}, "negatives": {"source": "random", "count": 1}}
    two = {"positives": {"source": "cocited", "count": 1}, "negatives": {"source": "random", "count": 1}}
    table = {"tasks": {"citations": {"weight": 0.75, **one}, "cocitations": {"weight": 0.25, **two}}}
    samples = mined(corpus, table, tmp_path / "s", inputs)
    shares = np.bincount(samples.tasks) / len(samples)
    assert shares == pytest.approx([0.75, 0.25], abs=0.01)
    assert samples.names.rules[2] == "cocitations.positives"
    chosen = samples.positives.rules[samples.tasks[samples.positives.owners()] == 1]
    assert set(chosen.tolist()) == {2}
    assert samples.manifest.facts["mixture"]["citations"]["kept"] == int((samples.tasks == 0).sum())


def test_fields_of_easy_negatives(corpus, inputs, tmp_path):
    table = {
        "positives": {"source": "cited", "count": 1},
        "negatives": {
            "same": {"source": "random", "count": 2, "field": "same"},
            "disjoint": {"source": "random", "count": 2, "field": "disjoint"},
        },
    }
    samples = mined(corpus, table, tmp_path / "s", inputs)
    masks = field_masks(corpus)
    assert all(masks[a] == masks[b] for a, b in pairs_of(samples, samples.negatives, "same"))
    assert all(not masks[a] & masks[b] for a, b in pairs_of(samples, samples.negatives, "disjoint"))


def test_text_neighbors_with_the_false_negative_filter(corpus, inputs, vectors, graph, tmp_path):
    table = {
        "positives": {"source": "cited", "count": 2},
        "negatives": {
            "hard": {
                "source": "neighbors",
                "vectors": "text",
                "count": 3,
                "band": [0, 100],
                "exclude": ["connected", "cocited"],
                "below_positive": 0.95,
            }
        },
    }
    given = MiningInputs(graph=graph, vectors={"text": vectors})
    samples = mined(corpus, table, tmp_path / "s", given)
    hard = pairs_of(samples, samples.negatives, "hard")
    assert hard and not hard & (relation(graph, "connected") | relation(graph, "cocited"))
    matrix = vectors.take(corpus.ids.take(np.arange(len(corpus)))).astype(np.float64)
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-30)
    for number in range(0, len(samples), 11):
        anchor = matrix[samples.anchors[number]]
        known = [row for row in samples.positives.of(number).tolist() if matrix[row].any()]
        least = min((matrix[known] @ anchor).tolist(), default=np.inf)
        assert all(matrix[row] @ anchor <= 0.95 * least + 1e-6 for row in samples.negatives.of(number).tolist())


@pytest.mark.parametrize(("few", "expected"), [("keep", None), ("skip", 30), ("repeat", 30), ("random", 30)])
def test_too_few_candidates(few, expected, corpus, inputs, tmp_path):
    table = {"positives": {"source": "cited", "count": 30, "few": few}}
    if few == "skip":
        table["positives"]["count"] = expected = 8
    samples = mined(corpus, table, tmp_path / "s", inputs)
    counts = np.diff(samples.positives.offsets)
    facts = samples.manifest.facts
    assert facts["rules_got"]["positives"] == counts.sum()
    if expected:
        assert (counts == expected).all()
    if few == "keep":
        assert counts.min() < 30
        assert facts["rules_asked"]["positives"] == 30 * len(samples)
    if few == "skip":
        assert facts["skipped"]["fewer than 8 by rule 'positives'"] > 0
    if few == "repeat":
        assert len(set(samples.positives.of(0).tolist())) < 30


def test_named_anchors_and_a_number_of_them(corpus, inputs, graph, tmp_path):
    table = load_recipe("specter").table("mining")
    rows = np.array([450, 400, 500])
    named = mined(corpus, table, tmp_path / "1", MiningInputs(graph=graph, anchors=rows))
    assert set(named.anchors.tolist()) <= set(rows.tolist())
    few = mined(corpus, {**table, "anchors": 50}, tmp_path / "2", inputs)
    facts = few.manifest.facts
    unasked = ("no text", "not drawn: mining.anchors has a number")
    assert facts["anchors"] + sum(n for reason, n in facts["skipped"].items() if reason not in unasked) == 50
    assert facts["anchors"] + sum(facts["skipped"].values()) == len(corpus)


def test_an_interrupted_run_goes_on(corpus, inputs, tmp_path, monkeypatch):
    table = load_recipe("specter").table("mining")
    whole = mined(corpus, table, tmp_path / "whole", inputs)
    monkeypatch.setattr(mine, "BLOCK_ANCHORS", 50)
    followed: list[int] = []
    real = mine.mine_block

    def interrupted(run, units, pairs):
        if len(followed) == 4:
            raise KeyboardInterrupt
        followed.append(len(units))
        return real(run, units, pairs)

    monkeypatch.setattr(mine, "mine_block", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mined(corpus, table, tmp_path / "s", inputs)
    assert not (tmp_path / "s").exists()
    followed_again: list[int] = []

    def counting(run, units, pairs):
        followed_again.append(len(units))
        return real(run, units, pairs)

    monkeypatch.setattr(mine, "mine_block", counting)
    samples = mined(corpus, table, tmp_path / "s", inputs)
    assert samples.hash == whole.hash
    assert sum(followed) + sum(followed_again) == len(with_text(corpus))


def test_a_run_is_resumed_with_another_memory(corpus, inputs, tmp_path, monkeypatch):
    table = load_recipe("specter").table("mining")
    whole = mined(corpus, table, tmp_path / "whole", inputs)
    real, done = mine.mine_block, []

    def interrupted(run, units, pairs):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(len(units))
        return real(run, units, pairs)

    monkeypatch.setattr(mine, "mine_block", interrupted)
    monkeypatch.setattr(mine, "BLOCK_ANCHORS", 60)
    with pytest.raises(KeyboardInterrupt):
        mined(corpus, table, tmp_path / "s", inputs, memory=8 << 20)
    monkeypatch.setattr(mine, "mine_block", real)
    monkeypatch.setattr(mine, "BLOCK_ANCHORS", 110)
    assert mined(corpus, table, tmp_path / "s", inputs, memory=16 << 20).hash == whole.hash


class Killed(RuntimeError):
    """Nobody gets the chance to save anything."""


def test_a_block_is_saved_by_time(corpus, inputs, tmp_path, monkeypatch):
    """All anchors fit into one block, and an interruption costs no more than one small piece of it."""
    table = load_recipe("specter").table("mining")
    whole = mined(corpus, table, tmp_path / "whole", inputs, save_every=1e9)
    real, done = mine.mine_block, list[int]()

    def counting(run, units, pairs):
        if len(done) == 3:
            raise Killed
        done.append(len(units))
        return real(run, units, pairs)

    monkeypatch.setattr(mine, "mine_block", counting)
    with pytest.raises(Killed):
        mined(corpus, table, tmp_path / "s", inputs, save_every=0.0)
    assert done == [64, 32, 16]  # every piece takes too long
    monkeypatch.setattr(mine, "mine_block", lambda *given: done.append(len(given[1])) or real(*given))
    assert mined(corpus, table, tmp_path / "s", inputs, save_every=1e9).hash == whole.hash
    assert done[3:5] == [64, 128] and sum(done) == len(with_text(corpus))


@pytest.mark.parametrize("step", [1e6, -1e6])
def test_pieces_stay_sound_when_the_clock_jumps(tmp_path, step):
    units, seconds = np.arange(1000), itertools.count(0.0, step)
    files, pace = BlockFiles(tmp_path, units), BlockPace(30.0, lambda: next(seconds))
    for _ in range(2):
        paths = list(files.fill([(0, 600), (600, 1000)], lambda rows: rows.tobytes(), pace, lambda amount: None))
        assert np.concatenate([np.frombuffer(path.read_bytes(), np.int64) for path in paths]).tolist() == units.tolist()
    assert len(list(tmp_path.iterdir())) == len(paths), "the second time nothing was made"


def test_other_intents_are_another_run(corpus, graph, tmp_path):
    table = {**load_recipe("sciaspect").table("mining"), "every_aspect": False}
    mined(corpus, table, tmp_path / "s", MiningInputs(graph=graph))
    turned = graph.with_intents(np.where(graph.intents == 1, 2, graph.intents).astype(np.uint8))
    with pytest.raises(UserError, match="made from other inputs"):
        mined(corpus, table, tmp_path / "s", MiningInputs(graph=turned))


def test_tasks_of_a_mixture_keep_their_aspects(corpus, inputs, tmp_path):
    plain = {"positives": {"source": "cited", "count": 1}, "negatives": {"source": "random", "count": 1}}
    aspects = {
        "aspects": ["method", "result"],
        "positives": {"source": "connected", "count": 1, "intent": "same"},
        "negatives": {"source": "random", "count": 1},
    }
    samples = mined(corpus, {"tasks": {"plain": plain, "aspects": aspects}}, tmp_path / "s", inputs)
    assert samples.names.aspects == ("", "method", "result")
    assert set(samples.aspects[samples.tasks == 0].tolist()) == {0}
    assert set(samples.aspects[samples.tasks == 1].tolist()) == {1, 2}


def test_tasks_of_a_mixture_draw_apart(corpus, inputs, tmp_path):
    rules = {"positives": {"source": "cited", "count": 1}, "negatives": {"source": "random", "count": 3}}
    samples = mined(corpus, {"tasks": {"one": rules, "two": rules}}, tmp_path / "s", inputs)
    one, two = (pairs_of(samples, samples.negatives, f"{task}.negatives") for task in ("one", "two"))
    assert len(one & two) < 0.05 * len(one)


def test_options_that_cannot_be(corpus):
    with pytest.raises(UserError, match="--workers is -2"):
        MiningOptions(workers=-2)
    with pytest.raises(UserError, match="--device is 'gpu'"):
        MiningOptions(device="gpu")


@pytest.mark.parametrize("band", [24, [10, 40], 25])
def test_negatives_must_lie_beyond_positives(band, corpus, inputs, tmp_path):
    table = load_recipe("scincl").table("mining")
    table["negatives"]["hard"]["band"] = band
    with pytest.raises(UserError, match="negatives must lie beyond positives"):
        mined(corpus, table, tmp_path / "s", inputs)


def test_bands_beyond_the_pool(corpus, inputs, tmp_path):
    with pytest.raises(UserError, match="band ends at rank 4,000, but the pool has .* --bands auto"):
        mined(corpus, load_recipe("scincl").table("mining"), tmp_path / "s", inputs)


def test_missing_inputs_are_named(corpus, tmp_path):
    with pytest.raises(UserError, match="source cited needs the citation graph"):
        mined(corpus, {"positives": {"source": "cited", "count": 1}}, tmp_path / "1", MiningInputs())
    with pytest.raises(UserError, match="needs the vectors 'graph'"):
        mined(corpus, load_recipe("scincl").table("mining"), tmp_path / "2", MiningInputs())
    with pytest.raises(UserError, match="table 'coviews', which is not given"):
        mined(corpus, load_recipe("signal_table").table("mining"), tmp_path / "3", MiningInputs())


def test_a_graph_of_another_corpus_is_refused(corpus, graph, tmp_path):
    other = graph_from_edges(np.array([0]), np.array([1]), len(corpus))
    other.corpus = "something else"
    with pytest.raises(UserError, match="of another corpus"):
        mined(corpus, load_recipe("specter").table("mining"), tmp_path / "s", MiningInputs(graph=other))


def test_a_graph_without_edges_gives_a_clear_error(corpus, tmp_path):
    empty = graph_from_edges(np.zeros(0, int), np.zeros(0, int), len(corpus))
    with pytest.raises(EmptyResultError, match="no sample could be made .*no positive"):
        mined(corpus, load_recipe("specter").table("mining"), tmp_path / "s", MiningInputs(graph=empty))
    assert not (tmp_path / "s").exists()


def test_a_rule_may_do_without_citing_sentences(tmp_path):
    papers = [{"id": f"p:{n}", "title": f"Title {n}", "abstract": "Text."} for n in range(4)]
    papers[0]["references"] = ["p:1", "p:2"]  # type: ignore[assignment]
    (tmp_path / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
    silent = import_papers(tmp_path / "papers.jsonl", tmp_path / "silent").corpus
    inputs = MiningInputs(graph=build_graph(silent, tmp_path / "graph"))
    nearby = {"source": "cocited_nearby", "count": 2}
    rules = {"cited": {"source": "cited", "count": 2}, "nearby": {**nearby, "optional": True}}
    assert mined(silent, {"positives": rules}, tmp_path / "samples", inputs).names.rules == ("cited",)
    with pytest.raises(UserError, match="cocited_nearby needs citing sentences, and the corpus has none"):
        mined(silent, {"positives": nearby}, tmp_path / "x", inputs)
    with pytest.raises(UserError, match="optional is for source a signal, not for random"):
        parse_rules({"positives": {"source": "random", "count": 1, "optional": True}})
