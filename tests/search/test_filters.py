"""Filters and facets against one look at every paper."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citeweave.core.columns import TextColumn, TextWriter
from citeweave.core.errors import UserError
from citeweave.corpus.corpus import STUB
from citeweave.search import filters
from citeweave.search.filters import count_facets, filter_rows, unknown_names
from citeweave.search.query import Filter

VENUES = ["NeurIPS", "neurips", " Nature  Methods", "Nature methods", "", "ÉTUDES", "études"]
FIELDS = ["cs.CL", "CS.cl", "Biology", "Straße", "STRASSE"]
AUTHORS = ["Ada Berg", "A. Berg", "Bo Chen"]
EXTRAS = [
    "",
    "{",
    "[]",
    '{"keywords": ["Maps", " maps"], "tags": ["read"]}',
    '{"collections": ["Moon"], "keywords": 7}',
]


@dataclass(frozen=True)
class Paper:
    year: int
    venue: str
    fields: tuple[str, ...]
    abstract: str
    stub: bool
    authors: tuple[str, ...] = ()
    extra: str = ""


class Papers:
    """Real columns on disk, without all else that an index has; row 3 is the paper "p:3"."""

    def __init__(self, folder: Path, papers: Sequence[Paper]) -> None:
        names = ("venue", "fields", "abstract", "authors", "extra")
        for name in names:
            writer = TextWriter(folder, name)
            texts = [getattr(paper, name) for paper in papers]
            writer.append(["\n".join(text) for text in texts] if name in ("fields", "authors") else texts)
            writer.close()
        columns = [TextColumn(folder, name) for name in names]
        self.venues, self.fields, self.abstracts, self.authors, self.extras = columns
        self.years = np.array([paper.year for paper in papers], np.int16)
        self.flags = np.array([STUB * paper.stub for paper in papers], np.uint8)

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        known = {f"p:{row}": row for row in range(len(self.years))}
        return np.array([known.get(id, -1) for id in ids], np.int64)


PAPER = st.builds(
    Paper,
    st.sampled_from([0, 1999, 2015, 2020]),
    st.sampled_from(VENUES),
    st.lists(st.sampled_from(FIELDS), max_size=3, unique=True).map(tuple),
    st.sampled_from(["", "text"]),
    st.booleans(),
    st.lists(st.sampled_from(AUTHORS), max_size=2, unique=True).map(tuple),
    st.sampled_from(EXTRAS),
)
FILTER = st.builds(
    Filter,
    st.tuples(st.sampled_from([None, 0, 1999, 2000]), st.sampled_from([None, 2015, 2019])),
    *[
        st.lists(st.sampled_from(known), max_size=most).map(tuple)
        for known, most in (
            ([*VENUES, "unknown"], 2),
            ([*FIELDS, "unknown"], 2),
            (["berg, ada", "Chen", "unknown"], 2),
            (["MAPS", "read", "unknown"], 2),
            (["moon", "unknown"], 2),
            (["p:0", "p:1", "p:5", "p:77"], 3),
            (["p:1", "p:2", "p:77"], 2),
        )
    ],
    st.sampled_from([None, True, False]),
    st.sampled_from([None, True, False]),
)


def same(name: str) -> str:
    return " ".join(name.split()).casefold()


def wanted(paper: Paper, row: int, where: Filter) -> bool:
    """The conditions in the plainest way."""
    first, last = where.years
    names = {same(name) for name in paper.fields}
    authors = {"berg, ada": {"Ada Berg", "A. Berg"}, "Chen": {"Bo Chen"}}
    tags = {"maps", "read"} if "tags" in paper.extra else set()
    collections = {"moon"} if "Moon" in paper.extra else set()
    return all(
        [
            (first is None and last is None) or (paper.year and (first or 0) <= paper.year <= (last or 9999)),
            not where.venues or (same(paper.venue) and same(paper.venue) in {same(venue) for venue in where.venues}),
            not where.fields or bool(names & {same(name) for name in where.fields}),
            not where.authors or any(authors.get(name, set()) & set(paper.authors) for name in where.authors),
            not where.keywords or bool(tags & {same(name) for name in where.keywords}),
            not where.collections or bool(collections & {same(name) for name in where.collections}),
            not where.ids or f"p:{row}" in where.ids,
            f"p:{row}" not in where.not_ids,
            where.has_abstract in (None, bool(paper.abstract)),
            where.local in (None, not paper.stub),
        ]
    )


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PAPER, max_size=12), FILTER)
def test_a_filter_keeps_what_every_condition_keeps(tmp_path_factory, papers, where):
    index = Papers(tmp_path_factory.mktemp("filters"), papers)
    mask = filter_rows(index, where)
    assert mask.tolist() == [bool(wanted(paper, row, where)) for row, paper in enumerate(papers)]
    kept, facets = [papers[row] for row in np.flatnonzero(mask)], count_facets(index, mask)
    venues, fields = ({same(one["name"]): one["count"] for one in facets[name]} for name in ("venues", "fields"))
    assert facets["years"] == Counter(paper.year for paper in kept if paper.year)
    assert venues == Counter(same(paper.venue) for paper in kept if paper.venue)
    assert fields == Counter(name for paper in kept for name in {same(field) for field in paper.fields})
    assert {one["name"]: one["count"] for one in facets["authors"]} == Counter(a for p in kept for a in p.authors)
    assert sum(one["count"] for one in facets["keywords"]) == 2 * sum("tags" in paper.extra for paper in kept)
    assert facets == count_facets(index, np.flatnonzero(mask))
    assert Filter.from_json(where.as_json()) == where and bool(where) == bool(where.as_json())


def test_facets_name_the_most_frequent_in_their_usual_spelling(tmp_path):
    venues = ["icml", "ICML", "ICML", "b", "a", "a", "c", ""]
    papers = [Paper(2000 + row, venue, (), "", False) for row, venue in enumerate(venues)]
    index = Papers(tmp_path, papers)
    every = np.arange(len(venues))
    two = [{"name": "ICML", "count": 3}, {"name": "a", "count": 2}]
    assert count_facets(index, every, max_names=2)["venues"] == two
    assert [one["name"] for one in count_facets(index, every)["venues"]] == ["ICML", "a", "b", "c"]
    kinds = ("venues", "fields", "authors", "keywords", "collections")
    assert count_facets(index, every[:0]) == {"years": {}, **{kind: [] for kind in kinds}}
    assert count_facets(index, every, max_names=0)["venues"] == []


def test_rows_are_numbered_by_their_most_frequent_field(tmp_path):
    fields = [("a", "b"), ("b",), ("b", "c"), (), ("c",), ("d",)]
    index = Papers(tmp_path, [Paper(0, "", names, "", False) for names in fields])
    numbers, names = filters.fields_of(index).number_rows(np.arange(6), 2)
    assert names == ["b", "c"] and numbers.tolist() == [0, 0, 0, 2, 1, 2]
    numbers, names = filters.fields_of(index).number_rows(np.array([5, 3]), 20)
    assert names == ["d"] and numbers.tolist() == [0, 1]


BAD_FILTERS = [
    ("x" * 5000, "where is 'xxx"),
    ({"year": [1, 2]}, "'year'; it must be one of .* Did you mean 'years'"),
    ({"years": 2015}, "years is 2015; it must be the first and the last year"),
    ({"years": [2015, 2010]}, "from 2015 to 2010"),
    ({"years": ["2015", None]}, "years is \\['2015', None\\]"),
    ({"years": [True, None]}, "years is \\[True, None\\]"),
    ({"years": [10**30, None]}, "years is \\[1000"),
    ({"fields": ["x"] * 1001}, "fields has 1,001 entries; it must have at most 1,000"),
    ({"fields": ["x" * 1001]}, "fields has 1,001 characters"),
    ({"local": "yes"}, "local is 'yes'"),
]


@pytest.mark.parametrize(("value", "match"), BAD_FILTERS)
def test_bad_filters_are_refused_in_one_line(value, match):
    with pytest.raises(UserError, match=match) as error:
        Filter.from_json(value)
    assert len(str(error.value)) < 300 and "\n" not in str(error.value)


def test_venues_and_fields_that_nobody_has_are_named_with_the_nearest(tmp_path):
    names = ["ACL", "Nature Methods", *(f"Venue {n}" for n in range(1000))]
    index = Papers(tmp_path, [Paper(2000, name, ("cs.CL",), "", False) for name in names])
    other = "xNature Methods"
    for where, said in (
        (Filter(venues=("acl", "NATURE  methods"), fields=("CS.cl",)), ""),
        (Filter(venues=("acll",)), "no paper has the venue 'acll', did you mean 'ACL'?"),
        (Filter(venues=("ACL", other)), f"no paper has the venue '{other}', did you mean 'Nature Methods'?"),
        (Filter(fields=("cs.CK",)), "no paper has the field 'cs.CK', did you mean 'cs.CL'?"),
        (Filter(venues=("\x1b[2J",)), "no paper has the venue '\\x1b[2J'"),
    ):
        assert unknown_names(index, where) == said
