"""Mining as a whole: the same samples under any workers, blocks and executors, after any interruption; what is refused."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from citeweave.core.errors import EmptyResultError, ShardError, UserError
from citeweave.core.executor import LocalExecutor, ShardTask
from citeweave.corpus.ingest import exclude_papers
from citeweave.graph.citations import build_graph, graph_from_edges
from citeweave.mining import mine as mining
from citeweave.mining.inputs import MiningInputs
from citeweave.mining.options import MiningOptions
from citeweave.mining.rules import parse_rules, rules_from_json
from citeweave.mining.tables import build_table
from citeweave.pipeline.recipe import shipped_recipes

from ..conftest import Told, content
from .conftest import pairs_of, papers_corpus, refused, table_of, with_text

SMALL = {
    **{
        name: ["mining.negatives.hard.band=200"]
        for name in ("scincl", "scincl_kmeans", "scincl_random", "scincl_sorted_random")
    },
    **{name: ["mining.negatives.far.band=200"] for name in ("cocite", "sciaspect_bands")},
    **{name: ["mining.text=abstract"] for name in ("oracle", "aspire_context", "ict")},
    "scincl_wide": ["mining.negatives.hard.band=[100, 200]"],
    "sciaspect": ["mining.every_aspect=false"],
    "cite_titles": ["mining.text=abstract", "mining.positives.count=3"],
    "weave": ["mining.text=abstract", "mining.positives.cited.count=3"],
}
CITED = {"source": "cited", "count": 1}
RANDOM = {"source": "random", "count": 1}


def recipes():
    """One recipe of all that have the same rules, bands aside."""
    found: dict[str, str] = {}
    for name in shipped_recipes():
        if not name.startswith("cocite_"):
            found.setdefault(name if name in SMALL else repr(table_of(name)), name)
    shown = {repr(table_of(name)) for name in SMALL}
    return sorted(name for key, name in found.items() if key not in shown)


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_mines_the_same_under_any_workers(name, corpus, mine):
    table = table_of(name, *SMALL.get(name, []))
    samples = mine(table, name="1", workers=1)
    second = mine(table, name="2", workers=2, memory=64 << 20)
    assert samples.hash == second.hash and samples.manifest.facts == second.manifest.facts
    assert mine(table, name="3", seed=1).hash != samples.hash
    usable = set(with_text(corpus).tolist())
    for side in (samples.positives, samples.negatives):
        assert set(side.rows.tolist()) <= usable
        assert (side.rows != samples.anchors[side.owners()]).all()
    for number in range(len(samples)):
        assert not set(samples.positives.of(number)) & set(samples.negatives.of(number))
    facts = samples.manifest.facts
    assert all(facts["rules_got"][rule] <= asked for rule, asked in facts["rules_asked"].items())


@pytest.mark.parametrize("name", shipped_recipes())
def test_the_rules_of_every_shipped_recipe_travel_as_json(name):
    rules = parse_rules(table_of(name))
    assert rules_from_json(json.loads(json.dumps(asdict(rules)))) == rules


@pytest.mark.parametrize(("first", "then"), [(50, 50), (60, 110)])
def test_an_interrupted_run_resumes_with_any_blocks(first, then, corpus, mine, stop_mining, tmp_path, monkeypatch):
    whole = mine("specter", name="whole")
    monkeypatch.setattr(mining, "BLOCK_ANCHORS", first)
    sizes = stop_mining(after=4)
    with pytest.raises(KeyboardInterrupt):
        mine("specter", memory=8 << 20)
    assert not (tmp_path / "samples").exists()
    stop_mining(after=-1)
    monkeypatch.setattr(mining, "BLOCK_ANCHORS", then)
    assert mine("specter", memory=16 << 20).hash == whole.hash
    assert first != then or sum(sizes) == len(with_text(corpus))


def test_a_block_is_saved_by_time(corpus, mine, stop_mining):
    """All anchors fit into one block, and an interruption costs no more than one small piece of it."""
    whole = mine("specter", name="whole", save_every=1e9)
    sizes = stop_mining(after=3, error=RuntimeError)
    with pytest.raises(RuntimeError):
        mine("specter", save_every=0.0)
    assert sizes == [64, 32, 16]  # every piece takes too long
    stop_mining(after=-1)
    assert mine("specter", save_every=1e9).hash == whole.hash
    assert sizes[3:5] == [64, 128] and sum(sizes) == len(with_text(corpus))


def test_an_executor_mines_the_same(corpus, graph, vectors, mine, tmp_path, monkeypatch):
    """With intents that only memory holds, tables, anchors, a pool, the corpus from before, and tasks."""
    monkeypatch.setattr(mining, "BLOCK_ANCHORS", 90)
    executors = []

    def both(rules, *overrides, corpus=corpus, **inputs):
        options = {"corpus": corpus, "inputs": MiningInputs(**inputs), "seed": 3, "workers": 1}
        here, there = (f"{name}{len(executors)}" for name in ("here", "there"))
        executors.append(Told())
        assert len(mine(rules, *overrides, name=here, **options)) > 100
        mine(rules, *overrides, name=there, executor=executors[-1], **options)
        assert len(executors[-1].made) >= 3
        assert content(tmp_path / here) == content(tmp_path / there)

    both("scincl", *SMALL["scincl"], graph=graph, vectors={"graph": vectors})
    turned = graph.with_intents(np.where(graph.intents == 1, 2, graph.intents).astype(np.uint8))
    both("sciaspect", *SMALL["sciaspect"], graph=turned)
    pairs, every = np.random.default_rng(2).integers(0, len(corpus), (6000, 2)), np.arange(len(corpus))
    tables = {"coviews": build_table(pairs[:, 0], pairs[:, 1], np.ones(6000), papers=len(corpus))}
    rules = {
        "positives": {"source": "table", "table": "coviews", "count": 2},
        "negatives": {"source": "random", "count": 2, "exclude": ["connected"]},
    }
    both(rules, graph=graph, tables=tables, anchors=every[::2], pool=every[::3])
    fewer = exclude_papers(corpus, every[::9], tmp_path / "fewer", why="asked for")
    rules = {**table_of("aspire", "mining.text=abstract"), "contexts": {"min_sentences": 1, "min_words": 1}}
    both(rules, corpus=fewer, graph=build_graph(fewer, tmp_path / "graph"), before=corpus)
    near = {"positives": {"source": "cocited", "count": 2, "order": "strongest"}, "weight": 2.0}
    both({"tasks": {"plain": {"positives": CITED, "negatives": RANDOM}, "near": near}}, graph=graph)
    first, *_, last = executors
    assert first.works[0].arguments["graph"]["intents"] == "" and not first.works[0].gpu
    assert [work.label for work in last.works] == ["mining plain", "mining near"]


def test_only_blocks_that_are_missing_are_mined(mine, stop_mining, tmp_path, monkeypatch):
    monkeypatch.setattr(mining, "BLOCK_ANCHORS", 90)
    whole = mine("specter", name="whole")
    refused(r"mining: 2 of .* \(1, 4; .*MemoryError", mine, "specter", executor=Told(failing=(1, 4)), error=ShardError)
    assert not (tmp_path / "samples").exists()
    again = Told()
    assert mine("specter", executor=again).hash == whole.hash
    assert sorted(again.made) == [1, 4]
    stop_mining(after=2)
    with pytest.raises(KeyboardInterrupt):
        mine("specter", name="here first")
    stop_mining(after=-1)
    then = Told()
    mine("specter", name="here first", executor=then)
    assert sorted(then.made)[:2] == [2, 3]
    assert content(tmp_path / "samples") == content(tmp_path / "here first") == content(tmp_path / "whole")


def test_an_executor_refuses_other_inputs(corpus, graph, mine):
    held = graph_from_edges(graph.sources(), graph.cited.targets, graph.nodes)
    executor = Told()
    refused("exists only in memory", mine, "specter", inputs=MiningInputs(graph=held), executor=executor)
    mine("specter", inputs=MiningInputs(graph=graph), executor=executor)
    given = executor.works[0].arguments
    for other in ({"corpus": [str(corpus.folder), "0" * 64]}, {"graph": {**given["graph"], "expected": "0" * 64}}):
        with pytest.raises(UserError, match="differs on this machine"):
            next(LocalExecutor().make(ShardTask(executor.works[0].maker, {**given, **other}), [0]))


def test_a_mixture_has_the_requested_shares(mine):
    one = {"weight": 0.75, "positives": CITED, "negatives": RANDOM}
    two = {"weight": 0.25, "positives": {"source": "cocited", "count": 1}, "negatives": RANDOM}
    samples = mine({"tasks": {"citations": one, "cocitations": two}})
    shares = np.bincount(samples.tasks) / len(samples)
    assert shares == pytest.approx([0.75, 0.25], abs=0.01)
    assert samples.names.rules[2] == "cocitations.positives"
    chosen = samples.positives.rules[samples.tasks[samples.positives.owners()] == 1]
    assert set(chosen.tolist()) == {2}
    assert samples.manifest.facts["mixture"]["citations"]["kept"] == int((samples.tasks == 0).sum())


def test_tasks_of_a_mixture_keep_their_aspects_and_draw_apart(mine):
    same = {"source": "connected", "count": 1, "intent": "same"}
    aspects = {"aspects": ["method", "result"], "positives": same, "negatives": RANDOM}
    samples = mine({"tasks": {"plain": {"positives": CITED, "negatives": RANDOM}, "aspects": aspects}})
    assert samples.names.aspects == ("", "method", "result")
    assert set(samples.aspects[samples.tasks == 0].tolist()) == {0}
    assert set(samples.aspects[samples.tasks == 1].tolist()) == {1, 2}
    rules = {"positives": CITED, "negatives": {"source": "random", "count": 3}}
    samples = mine({"tasks": {"one": rules, "two": rules}}, name="apart")
    one, two = (pairs_of(samples, f"{task}.negatives") for task in ("one", "two"))
    assert len(one & two) < 0.05 * len(one)


def test_named_anchors_and_a_number_of_them(corpus, graph, mine):
    named = mine("specter", inputs=MiningInputs(graph=graph, anchors=np.array([450, 400, 500])), name="1")
    assert set(named.anchors.tolist()) <= {450, 400, 500}
    facts = mine({**table_of("specter"), "anchors": 50}, name="2").manifest.facts
    unasked = ("no text", "not drawn: mining.anchors has a number")
    assert facts["anchors"] + sum(n for reason, n in facts["skipped"].items() if reason not in unasked) == 50
    assert facts["anchors"] + sum(facts["skipped"].values()) == len(corpus)


def test_other_intents_or_edges_are_another_run(corpus, graph, mine):
    turned = graph.with_intents(np.where(graph.intents == 1, 2, graph.intents).astype(np.uint8))
    edges = [[0, 0, 1, 1], [0, 0, 1, 2]]
    in_memory = [graph_from_edges(np.array(citing), np.array([2, 3, 2, 3]), len(corpus)) for citing in edges]
    for rules, first, second in (
        (table_of("sciaspect", *SMALL["sciaspect"]), graph, turned),
        ({"positives": CITED}, *in_memory),
    ):
        mine(rules, inputs=MiningInputs(graph=first), name=str(first.edges))
        refused("made from other inputs", mine, rules, inputs=MiningInputs(graph=second), name=str(first.edges))


def test_inputs_that_do_not_fit_are_refused(corpus, mine, tmp_path):
    other = graph_from_edges(np.array([0]), np.array([1]), len(corpus))
    other.corpus = "something else"
    empty = graph_from_edges(np.zeros(0, int), np.zeros(0, int), len(corpus))
    for rules, given, error, message in (
        ({"positives": CITED}, {}, UserError, "source cited needs the citation graph"),
        ("scincl", {}, UserError, "needs the vectors 'graph'"),
        ("signal_table", {}, UserError, "table 'coviews', which is not given"),
        ("specter", {"graph": other}, UserError, "of another corpus"),
        ("specter", {"graph": empty}, EmptyResultError, "no sample could be made .*no positive"),
    ):
        refused(message, mine, rules, inputs=MiningInputs(**given), error=error)
    refused("band ends at rank 4,000, but the pool has .* --bands auto", mine, "scincl")
    for band in (24, "[10, 40]", 25):
        refused("negatives must lie beyond positives", mine, "scincl", f"mining.negatives.hard.band={band}")
    assert not (tmp_path / "samples").exists()
    for options, message in (({"workers": -2}, "workers is -2"), ({"device": "gpu"}, "device is 'gpu'")):
        refused(message, MiningOptions, **options)


def test_a_rule_may_do_without_citing_sentences(mine, tmp_path):
    papers = [{"id": f"p:{n}", "title": f"Title {n}", "abstract": "Text."} for n in range(4)]
    papers[0]["references"] = ["p:1", "p:2"]
    silent = papers_corpus(tmp_path, papers)
    inputs = MiningInputs(graph=build_graph(silent, tmp_path / "graph"))
    nearby = {"source": "cocited_nearby", "count": 2}
    rules = {"cited": {"source": "cited", "count": 2}, "nearby": {**nearby, "optional": True}}
    assert mine({"positives": rules}, corpus=silent, inputs=inputs).names.rules == ("cited",)
    with pytest.raises(UserError, match="cocited_nearby needs citing sentences, and the corpus has none"):
        mine({"positives": nearby}, corpus=silent, inputs=inputs, name="x")
