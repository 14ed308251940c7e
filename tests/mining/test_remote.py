"""Mining by an executor: the same bytes as without one, resumed block by block, and what only memory holds goes along."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from citeweave.core.errors import ShardError, UserError
from citeweave.core.executor import LocalExecutor, ShardTask
from citeweave.corpus.ingest import exclude_papers
from citeweave.graph.citations import build_graph, graph_from_edges
from citeweave.mining import mine
from citeweave.mining.inputs import parse_rules
from citeweave.mining.mine import MiningInputs, MiningOptions, mine_samples, rules_from_json
from citeweave.mining.tables import build_table
from citeweave.pipeline.recipe import load_recipe, shipped_recipes

from ..conftest import Told, content


def table(name, *changes):
    return load_recipe(name, list(changes)).table("mining")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(mine, "BLOCK_ANCHORS", 90)


def both(corpus, rules, place, inputs):
    """Mine here and by an executor; the folders must be equal."""
    executor, options = Told(), MiningOptions(seed=3, workers=1)
    here = mine_samples(corpus, parse_rules(rules), place / "here", inputs, options)
    mine_samples(corpus, parse_rules(rules), place / "executor", inputs, options, executor=executor)
    assert len(here) > 100
    assert content(place / "executor") == content(place / "here")
    assert len(executor.made) >= 3
    return executor


def test_a_recipe_of_bands(corpus, graph, vectors, tmp_path):
    inputs = MiningInputs(graph=graph, vectors={"graph": vectors})
    executor = both(corpus, table("scincl", "mining.negatives.hard.band=200"), tmp_path, inputs)
    assert executor.works[0].arguments["graph"]["intents"] == ""
    assert not executor.works[0].gpu


def test_intents_that_were_put_on_the_graph(corpus, graph, tmp_path):
    turned = graph.with_intents(np.where(graph.intents == 1, 2, graph.intents).astype(np.uint8))
    both(corpus, table("sciaspect", "mining.every_aspect=false"), tmp_path, MiningInputs(graph=turned))


def test_tables_anchors_and_a_pool(corpus, graph, tmp_path):
    pairs = np.random.default_rng(2).integers(0, len(corpus), (6000, 2))
    inputs = MiningInputs(
        graph=graph,
        tables={"coviews": build_table(pairs[:, 0], pairs[:, 1], np.ones(6000), papers=len(corpus))},
        anchors=np.arange(0, len(corpus), 2),
        pool=np.arange(0, len(corpus), 3),
    )
    rules = {
        "positives": {"source": "table", "table": "coviews", "count": 2},
        "negatives": {"source": "random", "count": 2, "exclude": ["connected"]},
    }
    both(corpus, rules, tmp_path, inputs)


def test_contexts_with_a_corpus_from_before(corpus, tmp_path):
    fewer = exclude_papers(corpus, np.arange(0, 600, 9), tmp_path / "fewer", why="asked for")
    rules = {**table("aspire", "mining.text=abstract"), "contexts": {"least_sentences": 1, "least_words": 1}}
    graph = build_graph(fewer, tmp_path / "graph")
    both(fewer, rules, tmp_path, MiningInputs(graph=graph, before=corpus))


def test_tasks_of_a_mixture(corpus, graph, tmp_path):
    plain = {"positives": {"source": "cited", "count": 1}, "negatives": {"source": "random", "count": 1}}
    near = {"positives": {"source": "cocited", "count": 2, "order": "strongest"}, "weight": 2.0}
    executor = both(corpus, {"tasks": {"plain": plain, "near": near}}, tmp_path, MiningInputs(graph=graph))
    assert [work.label for work in executor.works] == ["mining plain", "mining near"]


def test_failed_blocks_are_made_by_the_next_run(corpus, graph, tmp_path):
    rules, inputs, executor = parse_rules(table("specter")), MiningInputs(graph=graph), Told(failing=(1, 4))
    whole = mine_samples(corpus, rules, tmp_path / "whole", inputs)
    with pytest.raises(ShardError, match=r"mining: 2 of .* \(1, 4; .*MemoryError"):
        mine_samples(corpus, rules, tmp_path / "s", inputs, executor=executor)
    assert not (tmp_path / "s").exists()
    again = Told()
    assert mine_samples(corpus, rules, tmp_path / "s", inputs, executor=again).hash == whole.hash
    assert sorted(again.made) == [1, 4]
    assert content(tmp_path / "s") == content(tmp_path / "whole")


def test_what_was_mined_here_is_not_mined_again(corpus, graph, tmp_path, monkeypatch):
    rules, inputs, real, done = (parse_rules(table("specter")), MiningInputs(graph=graph), mine.mine_block, list[int]())

    def interrupted(*given):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(1)
        return real(*given)

    monkeypatch.setattr(mine, "mine_block", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mine_samples(corpus, rules, tmp_path / "s", inputs)
    monkeypatch.setattr(mine, "mine_block", real)
    executor = Told()
    mine_samples(corpus, rules, tmp_path / "s", inputs, executor=executor)
    assert sorted(executor.made)[:2] == [2, 3]
    mine_samples(corpus, rules, tmp_path / "whole", inputs)
    assert content(tmp_path / "s") == content(tmp_path / "whole")


def test_a_graph_in_memory_is_refused(corpus, graph, tmp_path):
    held = graph_from_edges(graph.sources(), graph.cited.targets, graph.nodes)
    with pytest.raises(UserError, match="exists only in memory"):
        mine_samples(corpus, parse_rules(table("specter")), tmp_path / "s", MiningInputs(graph=held), executor=Told())


def test_another_corpus_or_graph_in_the_same_place_is_refused(corpus, graph, tmp_path):
    executor = Told()
    mine_samples(corpus, parse_rules(table("specter")), tmp_path / "s", MiningInputs(graph=graph), executor=executor)
    given = executor.works[0].arguments
    for other in ({"corpus": [str(corpus.folder), "0" * 64]}, {"graph": {**given["graph"], "expected": "0" * 64}}):
        with pytest.raises(UserError, match="differs on this machine"):
            next(LocalExecutor().make(ShardTask(executor.works[0].maker, {**given, **other}), [0]))


@pytest.mark.parametrize("name", shipped_recipes())
def test_rules_travel_as_json(name):
    rules = parse_rules(table(name))
    assert rules_from_json(json.loads(json.dumps(asdict(rules)))) == rules
