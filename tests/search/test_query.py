"""Queries as JSON: what is read comes back, and everything else is refused in one line."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.search.query import Filter, Passage, Query, SentenceQuery

from ..conftest import JSON

QUERIES = [
    Query(text="rain", by="words", count=1000, offset=9000),
    Query(text="rain\nfalls", aspect="method", diversity=1.0, approximate=True),
    Query(paper="doi:10.1/x", where=Filter(years=(2015, None), fields=("cs",))),
    Query(liked=("a", "b"), disliked=("c",)),
    Query(sentences=SentenceQuery("a", (0, 2))),
    Query(sentences=SentenceQuery(texts=("Rain is rare.",)), diversity=0.25),
    Query(cite=Passage("We use [CIT].", "method", "Title", 0.5, True)),
]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.kind)
def test_a_query_is_read_back_from_its_json(query):
    said = json.loads(json.dumps(query.as_json()))
    assert Query.from_json(said) == query
    assert len(said) < 7  # defaults are not said
    assert Query.from_json({"text": "rain \ud800"}).text == "rain ?"  # a lone surrogate


BAD_QUERIES = [
    ({}, "a query has one of text, paper, liked, sentences or cite"),
    ({"text": "  "}, "a query has one of"),
    ({"text": "a", "paper": "b"}, "not text and paper"),
    ({"text": "a", "cuont": 3}, "key is 'cuont'; it must be one of approximate, aspect"),
    ({"text": "a", "count": 0}, "query.count is 0; it must be from 1 to 1,000"),
    ({"text": "a", "count": 10**30}, "it must be from 1 to 1,000"),
    ({"text": "a", "offset": -1}, "offset is -1"),
    ({"text": "a", "by": "magic"}, "by is 'magic'; it must be one of hybrid, vectors, words"),
    ({"text": "a", "diversity": 2}, "query.diversity is 2; it must be from 0 to 1"),
    ({"text": "a", "diversity": float("nan")}, "must be a number"),
    ({"text": "a" * 100_001}, "it must have at most 100,000"),
    ({"text": "a", "where": {"year": 3}}, "Did you mean 'years'?"),
    ({"liked": [""]}, "it must not be empty"),
    ({"liked": ["a"] * 101}, "it must have at most 100"),
    ({"disliked": ["a"]}, "at least one that is liked"),
    ({"liked": ["a"], "by": "words"}, "liked needs vectors"),
    ({"sentences": {}}, "give one of the two"),
    ({"sentences": {"paper": "a", "texts": ["b"]}}, "give one of the two"),
    ({"sentences": {"texts": ["b"], "numbers": [1]}}, "leave them out"),
    ({"sentences": {"paper": "a", "numbers": [-1]}}, "numbers is -1; it must be from 0"),
    ({"sentences": {"paper": "a", "numbers": list(range(51))}}, "at most 50"),
    ({"sentences": {"paper": "a"}, "aspect": "method"}, "leave it out"),
    ({"cite": {"text": ""}}, "cite is without text"),
    ({"cite": {"text": "a", "min_share": 2}}, "min_share is 2"),
    ({"cite": {"text": "a"}, "diversity": 0.5}, "diversity is not for cite"),
    ({"text": "a", "aspect": "method", "by": "words"}, "drop one"),
]


@pytest.mark.parametrize(("said", "why"), BAD_QUERIES)
def test_anything_else_is_refused_in_one_line(said, why):
    with pytest.raises(UserError) as caught:
        Query.from_json(said)
    assert why in str(caught.value) and len(str(caught.value)) < 250 and "\n" not in str(caught.value)


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from([*Query.__dataclass_fields__]), JSON, max_size=4) | JSON)
def test_any_json_is_a_query_or_an_error(said):
    try:
        query = Query.from_json(said)
    except UserError:
        return
    assert Query.from_json(query.as_json()) == query
