"""What papers share, against plain sets: who may be drawn, how evenly, and that no block or seed changes it unasked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.corpus.corpus import lines
from citeweave.corpus.ingest import import_papers
from citeweave.mining import mine
from citeweave.mining.draw import CandidateLists, empty_lists
from citeweave.mining.inputs import parse_rules
from citeweave.mining.mine import MiningInputs, MiningOptions, mine_samples
from citeweave.mining.shared_metadata import (
    SCAN_ALL,
    collect_shared_metadata,
    draw_sharing_papers,
    index_shared_values,
    normalize_name,
    share_a_value,
)
from citeweave.pipeline.recipe import load_recipe

TABLE = load_recipe("sciaspect_relations").table("mining")


def shared(corpus, relation):
    """The values of every paper."""
    column = {"venue": corpus.venues, "author": corpus.authors, "field": corpus.fields}[relation]
    return [{normalize_name(name) for name in lines(text)} - {""} for text in column]


def mined(corpus, folder, graph, seed=0):
    return mine_samples(
        corpus, parse_rules(TABLE), folder, MiningInputs(graph=graph), MiningOptions(seed=seed, workers=1)
    )


def test_relations_are_followed(corpus, graph, tmp_path):
    samples = mined(corpus, tmp_path / "s", graph)
    sets = {relation: shared(corpus, relation) for relation in TABLE["aspects"]}
    connected = set(zip(graph.sources().tolist(), graph.cited.targets.tolist(), strict=True))
    hard = samples.names.rules.index("hard")
    pool = np.flatnonzero((corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0)).tolist()
    for number in range(len(samples)):
        anchor, aspect = int(samples.anchors[number]), samples.names.aspects[samples.aspects[number]]

        def common(row, anchor=anchor):
            return {relation for relation, values in sets.items() if values[anchor] & values[row]}

        assert all(aspect in common(row) for row in samples.positives.of(number).tolist())
        span = slice(samples.negatives.offsets[number], samples.negatives.offsets[number + 1])
        rows, rules = samples.negatives.rows[span], samples.negatives.rules[span]
        for row in rows[rules == hard].tolist():
            assert aspect not in common(row) and common(row)
        for row in rows[rules != hard].tolist():
            assert not common(row)
            assert (anchor, row) not in connected and (row, anchor) not in connected
        if number % 40 == 0:
            candidates = [row for row in pool if row != anchor and common(row) and aspect not in common(row)]
            assert (rules == hard).sum() == min(10, len(candidates))
    # an aspect is left out exactly where nobody shares it
    for place, relation in enumerate(samples.names.aspects):
        used = set(samples.anchors[samples.aspects == place].tolist())
        values = sets[relation]
        assert used == {row for row in pool if any(values[row] & values[other] for other in pool if other != row)}


def test_small_blocks_change_nothing(corpus, graph, tmp_path, monkeypatch):
    whole = mined(corpus, tmp_path / "1", graph)
    monkeypatch.setattr(mine, "BLOCK_ANCHORS", 200)
    assert mined(corpus, tmp_path / "3", graph).hash == whole.hash


@settings(max_examples=60)
@given(st.data())
def test_draws_are_those_of_sets(data):
    papers = data.draw(st.integers(2, 30))
    pair = st.tuples(st.integers(0, papers - 1), st.integers(0, 6))
    wanted, unwanted = (np.array(data.draw(st.lists(pair, max_size=60)), np.int64).reshape(-1, 2) for _ in range(2))
    in_pool = np.array(data.draw(st.lists(st.booleans(), min_size=papers, max_size=papers)))
    count = data.draw(st.integers(1, 8))
    values = [{int(v) for p, v in wanted if p == row} for row in range(papers)]
    against = [{int(v) for p, v in unwanted if p == row} for row in range(papers)]
    anchors = np.arange(papers)
    banned = np.array([(row + 1) % papers for row in range(papers)], np.int32)
    forbidden = CandidateLists(np.arange(papers + 1), banned, np.zeros(papers, np.float32))
    first, second = (index_shared_values(each[:, 0], each[:, 1], in_pool) for each in (wanted, unwanted))
    found = draw_sharing_papers(
        anchors, anchors.astype(np.uint64), first, second, count, forbidden, np.uint64(7), pool_size=int(in_pool.sum())
    )
    for row in range(papers):
        chosen = found.rows[found.offsets[row] : found.offsets[row + 1]].tolist()
        allowed = {
            other
            for other in range(papers)
            if in_pool[other] and values[row] & values[other] and not against[row] & against[other]
        } - {row, (row + 1) % papers}
        assert set(chosen) <= allowed
        assert len(set(chosen)) == len(chosen) == min(count, len(allowed))
    one, other = np.divmod(np.arange(papers * papers), papers)
    assert share_a_value(second, one, other.astype(np.int32)).tolist() == [
        bool(against[a] & against[b]) for a, b in zip(one.tolist(), other.tolist(), strict=True)
    ]


@pytest.mark.parametrize("papers", [11, 5011])
def test_papers_that_share_more_are_not_drawn_more(papers):
    """Paper 0 shares one value with each of 1 to 9, three with 10; where there are more, those are of no use."""
    assert (papers > SCAN_ALL) == (papers == 5011)
    pairs = [(row, 0) for row in range(papers)] + [(row, value) for row in (0, 10) for value in (1, 2)]
    rows, values = np.array(pairs).T
    found = index_shared_values(rows, values, np.ones(papers, bool))
    unwanted = index_shared_values(
        np.array([0, *range(11, papers)]), np.zeros(papers - 10, np.int64), np.ones(papers, bool)
    )
    anchors, number = np.zeros(4000, np.int64), 4000
    keys = np.arange(number).astype(np.uint64)
    drawn = draw_sharing_papers(anchors, keys, found, unwanted, 1, empty_lists(number), np.uint64(3), pool_size=papers)
    counts = np.bincount(drawn.rows, minlength=11)[1:11]
    assert counts.sum() == number
    assert counts.min() > 320 and counts.max() < 480
    assert (drawn.offsets[1:] == np.arange(1, number + 1)).all()


def test_a_large_venue_is_not_listed():
    papers = 100_000
    venue = index_shared_values(np.arange(papers), np.zeros(papers, np.int64), np.ones(papers, bool))
    anchors = np.arange(0, papers, 10)
    found = draw_sharing_papers(
        anchors, anchors.astype(np.uint64), venue, None, 5, empty_lists(len(anchors)), np.uint64(1), pool_size=papers
    )
    assert len(found.rows) == 5 * len(anchors)
    assert len(np.unique(found.rows)) > 35_000


def test_names_are_compared_without_case(corpus):
    found = collect_shared_metadata(corpus, ("venue", "field"), np.ones(len(corpus), bool))
    venues, fields = shared(corpus, "venue"), shared(corpus, "field")
    assert len(found.values) == sum(map(len, venues)) + sum(map(len, fields))
    assert len(found.member_offsets) - 1 == len(set().union(*venues)) + len(set().union(*fields))
    assert normalize_name(" ACL\t2020 ") == normalize_name("acl 2020")


def test_a_relation_that_nobody_has(tmp_path):
    (tmp_path / "papers.jsonl").write_text(
        "".join(f'{{"id": "{i}", "title": "paper {i}", "abstract": "text", "venue": "ACL"}}\n' for i in range(5))
    )
    made = import_papers(tmp_path / "papers.jsonl", tmp_path / "corpus").corpus
    table = {**TABLE, "negatives": {}}
    message = "share by author, field, and no paper of .* has author or field; leave that out of mining.aspects"
    with pytest.raises(UserError, match=message):
        mine_samples(made, parse_rules({**table, "aspects": ["author", "field"]}), tmp_path / "s", MiningInputs())
    some = mine_samples(made, parse_rules(table), tmp_path / "s", MiningInputs())
    assert np.bincount(some.aspects).tolist() == [5]
    assert some.manifest.facts["aspects_skipped"]["author"] == {"no positive": 5}
    for wrong in ({"every_aspect": True}, {"positives": {"source": "shares", "count": 1, "relation": "author"}}):
        with pytest.raises(UserError, match="has author"):
            mine_samples(made, parse_rules({**table, **wrong}), tmp_path / "t", MiningInputs())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"positives": {"source": "shares", "count": 1}}, "relation is ''"),
        ({"positives": {"source": "shares", "count": 1, "relation": "same"}}, "relation 'same' needs mining.aspects"),
        ({"positives": {"source": "cited", "count": 1, "relation": "venue"}}, "relation is for source shares"),
        (
            {"aspects": ["method"], "positives": {"source": "shares", "count": 1, "relation": "same"}},
            "relation 'same' does not fit aspect 'method', which is an intent",
        ),
        (
            {"aspects": ["venue"], "positives": {"source": "connected", "count": 1, "intent": "same"}},
            "intent 'same' does not fit aspect 'venue', which is a relation",
        ),
        ({"aspects": ["venues"], "positives": {"source": "cited", "count": 1}}, "mining.aspects is 'venues'"),
        (
            {
                "positives": {"source": "shares", "count": 1, "relation": "venue"},
                "negatives": {"source": "random", "count": 1, "exclude": ["positives"]},
            },
            "excludes positives, and those of rule 'positives' are drawn, not listed",
        ),
        (
            {"positives": {"source": "random", "count": 1, "field": "same", "exclude": ["venue"]}},
            "field 'same' beside exclude 'venue'",
        ),
    ],
)
def test_what_is_wrong_is_named(table, message):
    with pytest.raises(UserError, match=message):
        parse_rules(table)
