"""Aspects by citation intents, against brute force: who is a positive, who a negative, and bands in the intents' graphs."""

import dataclasses
from itertools import product

import numpy as np
import pytest

from citeweave.core.artifact import new_artifact
from citeweave.core.errors import UserError
from citeweave.corpus.ingest import exclude_papers, import_papers
from citeweave.graph.citations import build_graph, graph_from_edges
from citeweave.graph.intent_overlay import KIND, VERSION, IntentOverlay, OverlayWriter, confidence_from_mask
from citeweave.mining.bands import apply_aspect_bands, choose_aspect_bands
from citeweave.mining.inputs import (
    IntentSource,
    annotate_inputs,
    build_mining_graph,
    check_intents,
    graph_inputs,
    graph_intents,
    parse_rules,
)
from citeweave.mining.mine import MiningInputs, MiningOptions, mine_samples
from citeweave.pipeline.recipe import load_recipe

BITS = {"background": 1, "method": 2, "result": 4}
Pairs = set[tuple[int, int]]


@pytest.fixture(scope="module")
def told(graph):
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


def picks(samples, rule, aspect):
    found: Pairs = set()
    for side in (samples.positives, samples.negatives):
        owner = side.owners()
        chosen = (side.rules == samples.names.rules.index(rule)) & (
            samples.aspects[owner] == samples.names.aspects.index(aspect)
        )
        found |= set(zip(samples.anchors[owner[chosen]].tolist(), side.rows[chosen].tolist(), strict=True))
    return found


def mined(corpus, recipe, folder, inputs, *overrides):
    rules = parse_rules(load_recipe(recipe, overrides).table("mining"))
    return mine_samples(corpus, rules, folder, inputs, MiningOptions(workers=1))


@pytest.fixture(scope="module")
def candidates(told):
    """Aspect -> what may be chosen in it, those two citations away too."""
    found = {aspect: allowed(told, aspect) for aspect in BITS}
    away = two_hops(edges_of(told))
    for aspect, may in found.items():
        others = sum(bits for name, bits in BITS.items() if name != aspect)
        may["second_hop"], may["global"] = away, away - may["connected"]
        may["second"] = two_hops(edges_of(told, others)) - two_hops(edges_of(told, BITS[aspect])) - may["connected"]
    return found


def allowed(graph, aspect):
    """Candidates of the SciAspect rules by plain sets."""
    others = sum(bits for name, bits in BITS.items() if name != aspect)
    own, unknown = either(edges_of(graph, BITS[aspect])), either(edges_of(graph, 0))
    connected = either(edges_of(graph))
    return {"positives": own, "local": either(edges_of(graph, others)) - own - unknown, "connected": connected}


@pytest.mark.parametrize("recipe", ["sciaspect", "sciaspect_mpnn", "sciaspect_misc"])
def test_local_negatives(recipe, corpus, told, candidates, tmp_path):
    samples = mined(corpus, recipe, tmp_path / "s", MiningInputs(graph=told))
    for aspect in BITS:
        may = candidates[aspect]
        positives, hard = picks(samples, "positives", aspect), picks(samples, "hard", aspect)
        assert positives and positives <= may["positives"]
        assert hard and hard <= may["local"]
        assert not picks(samples, "easy", aspect) & may["connected"]
        counts = np.bincount([anchor for anchor, _ in hard], minlength=len(corpus))
        pool = (corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0)
        full = np.bincount([a for a, b in may["local"] if pool[b]], minlength=len(corpus))
        anchors = np.unique(samples.anchors)
        assert (counts[anchors] == np.minimum(full[anchors], 10)).all()
    most = int(np.diff(samples.positives.offsets).max())
    assert most == (5 if recipe == "sciaspect_mpnn" else 1)
    used = {aspect: set(samples.anchors[samples.aspects == place].tolist()) for place, aspect in enumerate(BITS)}
    assert used["background"] == used["method"] == used["result"]
    if "miscellaneous" in samples.names.aspects:
        rest = picks(samples, "positives", "miscellaneous")
        assert rest and rest <= either(edges_of(told, 0))
        assert not picks(samples, "hard", "miscellaneous")
        assert not picks(samples, "easy", "miscellaneous") & either(edges_of(told))


@pytest.mark.parametrize(
    ("recipe", "rules"),
    [
        ("sciaspect_hybrid", {"local": ("local", 5), "global": ("global", 5)}),
        ("sciaspect_l2", {"hard": ("second", 3)}),
        ("sciaspect_l2_hard", {"hard": ("second", 5)}),
        ("sciaspect_l2_easy", {}),
    ],
)
def test_negatives_farther_away(recipe, rules, corpus, told, candidates, tmp_path):
    samples = mined(corpus, recipe, tmp_path / "s", MiningInputs(graph=told))
    assert set(samples.names.rules) == {"positives", *rules, *(["easy"] if recipe in ("sciaspect_l2", "sciaspect_l2_easy") else [])}  # fmt: skip
    for aspect in BITS:
        may = candidates[aspect]
        assert picks(samples, "positives", aspect) <= may["positives"]
        for rule, (where, count) in rules.items():
            found = picks(samples, rule, aspect)
            assert found and found <= may[where]
            assert np.bincount([anchor for anchor, _ in found]).max() == count
        if "easy" in samples.names.rules:
            assert not picks(samples, "easy", aspect) & (may["connected"] | may["second_hop"])


def test_what_was_left_out_is_counted_by_aspect(corpus, told, tmp_path):
    none = told.with_intents(np.where(told.intents & 4, told.intents & 3, told.intents).astype(np.uint8))
    few = none.with_intents(np.where(np.arange(none.edges) < 40, none.intents | 4, none.intents).astype(np.uint8))
    samples = mined(corpus, "sciaspect", tmp_path / "s", MiningInputs(graph=few), "mining.every_aspect=false")
    facts = samples.manifest.facts
    pool = len(corpus) - facts["skipped"]["no text"]
    for place, aspect in enumerate(samples.names.aspects):
        left = pool - int((samples.aspects == place).sum())
        assert sum(facts["aspects_skipped"][aspect].values()) == left
    assert facts["aspects_skipped"]["result"]["no positive"] > 0.8 * pool


def in_graph(corpus, folder, graph, *overrides):
    """The graph with vectors of every intent's citations, as the command makes it."""
    recipe = load_recipe("sciaspect_bands", ["graph.dimension=32", *overrides])
    given = graph_intents(IntentSource(), corpus, parse_rules(recipe.table("mining")).aspect_graphs)
    assert given is not None
    given = dataclasses.replace(given, annotate=lambda _: graph)
    table = recipe.table("graph")
    build_mining_graph(corpus, folder, table, with_vectors=True, intents=given)
    return graph_inputs(folder, table, with_vectors=True, aspects=tuple(given.embedded))


def test_bands_are_those_of_the_intents_graph(corpus, graph, tmp_path):
    sparse = graph.with_intents(np.where(np.arange(graph.edges) % 7 == 0, 2, graph.intents & 5).astype(np.uint8))
    inputs = in_graph(corpus, tmp_path / "graph", sparse)
    assert inputs.graph is not None
    assert np.array_equal(inputs.graph.intents, sparse.intents)
    samples = mined(corpus, "sciaspect_bands", tmp_path / "s", inputs, "mining.negatives.far.band=200")
    pool = np.flatnonzero((corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0))
    rules = samples.names.rules
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
            order = others[np.argsort(-scores, kind="stable")]
            near = np.sort(scores)[::-1]
            [positive] = samples.positives.of(number)
            rank = matrix[positive] @ matrix[anchor]
            assert near[25] - 1e-5 <= rank <= near[20] + 1e-5  # ranks 21 to 25
            span = slice(samples.negatives.offsets[number], samples.negatives.offsets[number + 1])
            picked, by = samples.negatives.rows[span], samples.negatives.rules[span]
            far = picked[by == rules.index("far")]
            assert set(far.tolist()) <= set(order[195:203].tolist())
            assert not set(picked[by == rules.index("easy")].tolist()) & set(order[:198].tolist())
        may = allowed(sparse, aspect)
        assert picks(samples, "other", aspect) <= may["local"]
        assert not (picks(samples, "far", aspect) | picks(samples, "easy", aspect)) & may["connected"]
    skipped = samples.manifest.facts["aspects_skipped"]["method"]
    assert skipped == {"no vector, such as a paper without citations": len(pool) - int((samples.aspects == 1).sum())}


def test_bands_are_chosen_for_each_aspect(corpus, graph, tmp_path):
    inputs = in_graph(corpus, tmp_path / "graph", graph)
    rules = parse_rules(load_recipe("sciaspect_bands").table("mining"))
    chosen = choose_aspect_bands(corpus, rules, inputs)
    assert list(chosen) == list(BITS)
    banded = apply_aspect_bands(rules, chosen)
    for aspect, bands in chosen.items():
        own = banded.for_aspect(aspect)
        assert (own.positives[0].band, own.negatives[0].band) == (bands.positive_rank, bands.negative_rank)
        assert own.positives[0].vectors == f"graph-{aspect}"
    assert parse_rules(load_recipe("sciaspect_bands").table("mining")).positives[0].for_aspect("method").band == (
        20,
        25,
    )
    samples = mine_samples(corpus, banded, tmp_path / "s", inputs)
    assert len(samples) > len(corpus)
    tiny = graph.with_intents(np.where(np.arange(graph.edges) < 9, 4, graph.intents & 3).astype(np.uint8))
    with pytest.raises(UserError, match="aspect result: the pool has .* bands need 50 or more.*leave the aspect out"):
        choose_aspect_bands(corpus, rules, in_graph(corpus, tmp_path / "small", tiny))


def test_vectors_that_a_graph_does_not_have(corpus, graph, tmp_path):
    two = graph.with_intents(graph.intents & np.uint8(3))
    with pytest.raises(UserError, match="no citation is of aspect 'result', so its graph has no node vectors"):
        in_graph(corpus, tmp_path / "graph", two)
    table = load_recipe("sciaspect_bands").table("graph")
    build_mining_graph(corpus, tmp_path / "plain", {**table, "dimension": 8}, with_vectors=True)
    with pytest.raises(UserError, match="no node vectors of the citations of aspect 'method'.*--per-intent"):
        graph_inputs(tmp_path / "plain", table, with_vectors=True, aspects=["method"])


def overlay_of(corpus, mask, folder):
    with new_artifact(folder, KIND, VERSION, {"corpus": corpus.hash}) as artifact:
        writer = OverlayWriter(artifact)
        writer.append_contexts(
            np.zeros(len(corpus.contexts), np.uint8), np.zeros((len(corpus.contexts), 3), np.float16)
        )
        writer.close()
        writer.write_citations(
            mask, confidence_from_mask(mask), np.ones(len(mask), np.int64), np.zeros(len(mask), bool)
        )
        counts = {"citations": {"all": len(mask)}, "contexts": {"all": len(corpus.contexts)}}
        artifact.facts |= {"corpus": corpus.hash, "least": 0.5, **counts}
        artifact.finish()
    return IntentOverlay.open(folder)


def test_an_overlay_is_found_again_by_ids(corpus, graph, tmp_path):
    mask = np.random.default_rng(5).choice([1, 2, 4], len(corpus.citing)).astype(np.uint8)
    overlay = overlay_of(corpus, mask, tmp_path / "intents")
    on = IntentSource(str(overlay.folder)).annotate(graph, corpus)
    wanted = dict(zip(zip(corpus.citing.tolist(), corpus.cited.tolist(), strict=True), mask.tolist(), strict=True))
    assert [wanted[pair] for pair in zip(on.sources().tolist(), on.cited.targets.tolist(), strict=True)] == on.intents.tolist()  # fmt: skip
    fewer = exclude_papers(corpus, np.arange(0, 600, 9), tmp_path / "fewer", why="a test")
    smaller = build_graph(fewer, tmp_path / "graph")
    with pytest.raises(UserError, match="an overlay fits only the corpus it was made from"):
        IntentSource(str(overlay.folder)).annotate(smaller, fewer)
    moved = IntentSource(str(overlay.folder), of=corpus).annotate(smaller, fewer)
    named = {(corpus.ids[a], corpus.ids[b]): bits for (a, b), bits in wanted.items()}
    for a, b, bits in zip(moved.sources().tolist(), moved.cited.targets.tolist(), moved.intents.tolist(), strict=True):
        assert named[fewer.ids[a], fewer.ids[b]] == bits
    with pytest.raises(UserError, match="--intents nowhere: there is no such folder.*citeweave annotate"):
        IntentSource("nowhere")


def literature(folder, intents, contexts):
    """Six papers that cite each other with these intents in turn."""
    folder.mkdir()
    papers = "".join(f'{{"id": "{n}", "title": "paper {n}", "abstract": "text"}}\n' for n in range(6))
    (folder / "papers.jsonl").write_text(papers)
    pairs = [(a, b) for a, b in product(range(6), range(6)) if a > b]
    rows = [f"{a}\t{b}" for a, b in pairs]
    (folder / "citations.tsv").write_text("".join(f"{row}\n" for row in rows))
    if contexts:
        text = '{{"citing": "{}", "cited": ["{}"], "text": "as {} in [1]", "intents": {}}}\n'
        told = [text.format(a, b, i, f'["{intents[i % len(intents)]}"]' if intents else "[]") for i, (a, b) in enumerate(pairs)]  # fmt: skip
        (folder / "contexts.jsonl").write_text("".join(told))
    return import_papers(folder, folder.with_name("corpus")).corpus


@pytest.mark.parametrize(
    ("recipe", "intents", "contexts", "message"),
    [
        ("sciaspect", [], False, "have none; it has no citing sentences .* still run: specter_cl, scincl, sciaspect_r"),
        ("sciaspect", [], True, "have none; find them with `citeweave annotate .*--intents sections"),
        ("sciaspect", ["method"], True, "background 0, method 15, result 0, none has background; .*needs two"),
        ("sciaspect", ["method", "result"], True, r"none has background; leave it out with --set .*\[\"method\", \"r"),
        ("sciaspect_bands", ["method"], True, "none has background; a recipe that sets one intent against another"),
    ],
)
def test_missing_intents_are_told(recipe, intents, contexts, message, tmp_path):
    corpus = literature(tmp_path / "in", intents, contexts)
    rules = parse_rules(load_recipe(recipe).table("mining"))
    inputs = annotate_inputs(MiningInputs(graph=build_graph(corpus, tmp_path / "graph")), corpus)
    with pytest.raises(UserError, match=message):
        check_intents(inputs, rules, corpus)
    check_intents(inputs, parse_rules(load_recipe("sciaspect_relations").table("mining")), corpus)
