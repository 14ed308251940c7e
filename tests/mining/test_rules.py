"""Rules and recipes: what is read, what is refused and how."""

import pytest

from citeweave.mining.rules import Rule, parse_rules
from citeweave.pipeline.recipe import load_recipe

from .conftest import refused

GOOD = {"source": "cited", "count": 5}
SOURCES = ("neighbors", "similar", "shares", "random", "connected")
NEIGHBORS, SIMILAR, SHARES, RANDOM, INTENT = ({"source": source, "count": 5} for source in SOURCES)
INTENT["intent"] = "same"
SAME, VENUE = ({**SHARES, "relation": relation} for relation in ("same", "venue"))
NOT_LISTED = "excludes positives, and those of rule 'positives' are drawn, not listed"
TASK = {"tasks": {"x": {"positives": GOOD}}}


WRONG_RULES = [
    ({}, "no rule for positives"),
    ({"positives": 5}, "mining.positives is 5; it must be a table"),
    ({"positives": {"source": "cited"}}, "mining.positives has no count"),
    ({"positives": {**GOOD, "source": "sited"}}, "source is 'sited'.*Did you mean 'cited'"),
    ({"positives": {**GOOD, "coutn": 1}}, "mining.positives: key is 'coutn'.*Did you mean 'count'"),
    ({"positives": {**GOOD, "count": 0}}, "count is 0; it must be from 1 to 10,000"),
    ({"positives": {**GOOD, "count": "5"}}, "mining.positives.count is '5'; it must be a whole number"),
    ({"positives": {**GOOD, "count": True}}, "mining.positives.count is True"),
    ({"positives": {**GOOD, "band": 25}}, "band is 25 with source cited"),
    ({"positives": NEIGHBORS}, "neighbors needs a band"),
    ({"positives": SIMILAR}, "needs either above or below"),
    ({"positives": {**SIMILAR, "above": 0.5, "below": 0.4}}, "needs either above or below"),
    ({"positives": {"source": "table", "count": 5}}, "needs the name of a table"),
    ({"positives": {**GOOD, "exclude": ["sited"]}}, "exclude is 'sited'"),
    ({"positives": {**GOOD, "if_too_few": "drop"}}, "if_too_few is 'drop'"),
    ({"positives": {**GOOD, "intent": "same"}}, "needs mining.aspects"),
    ({"aspects": ["color"], "positives": GOOD}, "mining.aspects is 'color'"),
    ({"text": "full", "positives": GOOD}, "mining.text is 'full'"),
    ({"anchors": -1, "positives": GOOD}, "mining.anchors is -1"),
    ({"positives": {"a": GOOD}, "negatives": {"a": GOOD}}, "two rules of one name"),
    ({**TASK, "positives": GOOD}, "both tasks and rules"),
    ({**TASK, "text": "title"}, "mining has text beside tasks"),
    ({**TASK, "contexts": {"brackets": False}}, "mining has contexts beside tasks"),
    ({"positives": {**GOOD, "field": "same"}}, "field is for source random or sorted_random, not for cited"),
    ({"positives": {**GOOD, "above": 0.5}}, "above is for source similar, not for cited"),
    ({"positives": {"source": "cells", "count": 3, "cell": 2}}, "count is 3, one paper from each of as many cells"),
    ({"positives": {**GOOD, "exclude": ["neighbors"]}}, "no rule has source neighbors"),
    ({"tasks": {"x": {"weight": 0, "positives": GOOD}}}, "mining.tasks.x.weight is 0"),
    (
        {"contexts": {"brakets": True}, "positives": GOOD},
        "mining.contexts: key is 'brakets'.*Did you mean 'brackets'",
    ),
    ({"positives": {**RANDOM, "optional": True}}, "optional is for source a signal, not for random"),
    ({"positives": SHARES}, "relation is ''"),
    ({"positives": SAME}, "relation 'same' needs mining.aspects"),
    ({"positives": {**GOOD, "relation": "venue"}}, "relation is for source shares"),
    (
        {"aspects": ["method"], "positives": SAME},
        "relation 'same' does not fit aspect 'method', which is an intent",
    ),
    ({"aspects": ["venue"], "positives": INTENT}, "intent 'same' does not fit aspect 'venue', which is a relation"),
    ({"aspects": ["venues"], "positives": GOOD}, "mining.aspects is 'venues'"),
    ({"positives": VENUE, "negatives": {**RANDOM, "exclude": ["positives"]}}, NOT_LISTED),
    ({"positives": {**RANDOM, "field": "same", "exclude": ["venue"]}}, "field 'same' beside exclude 'venue'"),
]


@pytest.mark.parametrize(("table", "message"), WRONG_RULES)
def test_wrong_rules_are_named(table, message):
    refused(message, parse_rules, table)


BANDS = [
    (25, 5, 1000, (20, 25)),
    ("0.6%", 2, 680_967, (4084, 4086)),
    ((1000, 2000), 2, 5000, (1000, 2000)),
    (("1%", "2%"), 2, 5000, (50, 100)),
    (5, 5, 10, (0, 5)),
    *((band, 5, 1000, None) for band in (4, (20, 10), (10, 12), "120%", "abc", ("1%", "1%"), 2.5)),
]


@pytest.mark.parametrize(("band", "count", "pool", "expected"), BANDS)
def test_bands_are_ranks_or_shares_that_hold_enough(band, count, pool, expected):
    if expected is not None:
        assert Rule("r", "neighbors", count, band=band).ranks(pool) == expected
    else:
        refused("rule 'r': band", lambda: Rule("r", "neighbors", count, band=band).ranks(pool))


def test_overrides_and_their_errors():
    changed = load_recipe("scincl", ["mining.negatives.hard.band=1%", "graph.dimension=64", "mining.text=title"])
    rules = parse_rules(changed.table("mining"))
    assert rules.negatives[0].band == "1%" and rules.text == "title"
    assert changed.table("graph")["dimension"] == 64
    removed = load_recipe("scincl", ["mining.negatives.hard="]).table("mining")
    assert list(removed["negatives"]) == ["easy"]
    wrong = [["mining"], ["mining.text"], ["=3"], ["mining..x=1"], ["mining.text=title", "mining.text.deep=1"]]
    for name, overrides, message in (
        *(("scincl", entries, "--set is") for entries in wrong),
        ("scinkl", [], "the recipe is 'scinkl'.*Did you mean 'scincl'"),
        ("nowhere/my.toml", [], "does not exist"),
    ):
        refused(message, load_recipe, name, overrides)
