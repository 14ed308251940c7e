"""Filters of other databases: hostile values find, show and delete what the index's own filters would, and nothing more."""

import math
import random
import reprlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import citeweave as cw
from citeweave.core.errors import UserError
from citeweave.search.databases import open_store
from citeweave.search.filters import filter_rows
from citeweave.search.store import VectorStore, nearest_in_store, store_keys, sync_store
from citeweave.vectors.vectors import Provenance

from .counting import Trial, one_line

TEXTS = (
    "' OR 1=1 --", "' or '1'='1", "x' or key >= 0 or 'a'='", '") or true or ("', '" || true || "', "') or (1=1", "]) or array_contains_any(venue_keys, [1",
    "] or key in [1", "1) OR key IN (SELECT key FROM papers", "'; DROP TABLE papers; --", "'; DELETE FROM papers WHERE 1=1; --", "/* */", "-- ", "# ", "//",
    "'", '"', "`", "''", '""', "\\", "\\'", '\\"', "\\\\", "a\\", "\u2018or 1=1\u2019", "\u201cx\u201d", "\uff07 OR 1=1", "\u02bc", "´",
    "a\x00b", "\x00", "a\nb", "a\r\nb", "a\tb", "a\u2028b", "a\x85b", "a\x1cb", "a\x0bb", "\x1b[2J", "\u202eb", "\ufeffb", "\u200b", "",
    " ", "  two  blanks ", "%", "_", "100%_", "%%", "like '%'", "p:%", "p:_", "{key}", "{}", "{0}", "{{key}}", "${key}", "$meta", "$meta['a']", "%(key)s", "%s",
    "((((((((((", "))))))))))", "[" * 300, "(" * 900, "{" * 999, "x" * 1000, "x" * 1001, "東" * 1000, "é", "e\u0301", "É", "ﬁ", "ß", "SS", "İ", "ı", "🦜",
    "\ud800", "?", "a\udc80", "\U0010ffff", "true", "false", "null", "None", "NaN", "0", "-1", "1e999", "9" * 400, "2000", "key", "key in [1]", "key >= 0",
    "year >= 0", "vector", "id like '%'", "not", "and", "or", "TEXT_MATCH(id, 'a')", "json_contains(a, 1)", "random_sample(0.9)", "count(*)",
)  # fmt: skip
"""Texts that end a literal, a list, a call or a line where a text becomes part of an expression; or that look alike."""

SHORT = [text for text in TEXTS if len(text) < 500]

NUMBERS: tuple[Any, ...] = (
    0, 1, 1999, 2000, 2003, 9999, 10_000, -1, 32_767, 32_768, 2**31, 2**63, 2**64, 10**400, -(10**400), True, False, math.nan, math.inf, -math.inf, 2000.0,
    2000.5, np.int64(2000), np.float32(2000), "2000", "2000 or 1=1", "0 or key >= 0", "", None, [2000], {"$gt": 0}, b"2000", 2000j,
)  # fmt: skip
"""As years and as yes or no."""

TEXT_PLACES = ("ids", "not_ids", "venues", "fields")
NUMBER_PLACES = ("first year", "last year", "both years", "has_abstract", "local", "ids", "venues")
UNKNOWN_PLACES = ("authors", "kind", "key", "year", "expr", "where", "__class__")

KINDS = ("lance", "milvus")
SHARE = 6
"""In the quick share one value in so many."""

OPENED = {"lance": "lance:{}/papers.lance", "milvus": "milvus:{}/papers.db"}
PLAIN = 12
"""Papers without anything hostile, of which none may be shown or deleted by mistake."""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, index_of: Callable[..., Path]) -> cw.Index:
    """Papers whose ids, other ids, venues, fields and authors are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    papers = [
        {"id": f"p:{row}", "title": f"plain models {row}", "abstract": f"data {row}" if row % 2 else "", "year": 1998 + row, "venue": "ACL"}
        for row in range(PLAIN)
    ] + [
        {"id": f"h:{text}", "title": f"cell grows {row}", "abstract": "models learn", "year": 1998 + row % 12, "venue": text, "fields": [text, "cs"],
         "authors": [text], "ids": [f"a:{text}"]}
        for row, text in enumerate(TEXTS)
    ]  # fmt: skip
    return cw.Index.open(index_of(folder, papers))


@pytest.fixture(scope="module", params=KINDS)
def store(
    request: pytest.FixtureRequest, index: cw.Index, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VectorStore]:
    name = OPENED[request.param].format(tmp_path_factory.mktemp(request.param))
    with open_store(name, index.provenance) as opened:
        sync_store(index, opened)
        yield opened


def values_for(trial: Trial, values: Sequence[Any]) -> Sequence[Any]:
    return values if trial.is_whole else values[::SHARE]


def mixtures(count: int) -> list[str]:
    """Texts of several hostile ones."""
    rng = random.Random(0)
    return ["".join(rng.choices(TEXTS, k=rng.randint(2, 5)))[: rng.choice((20, 100, 1000))] for _ in range(count)]


def check_same(index: cw.Index, store: VectorStore, make: Callable[[], cw.Filter]) -> int | None:
    """The store shows the papers that the index's own filters allow; how many, or None where the filter is refused."""
    try:
        where = make()
    except UserError as error:
        one_line(error)
        return None
    query, every = index.take(np.array([0])), len(index)
    wanted = [index.id(int(row)) for row in np.flatnonzero(filter_rows(index, where) & index.with_vector)]
    near = nearest_in_store(store, index, query, every, where=where)
    found = [index.id(int(row)) for row in near.rows[0] if row >= 0]
    assert sorted(found) == sorted(wanted), f"the store shows {len(found)}, the index {len(wanted)}"
    if not (where.ids or where.not_ids):  # a store knows papers by their first ids only
        direct = store.search(query, every, where)
        assert sorted(direct.ids[0]) == sorted(wanted), "what the store itself shows is another thing"
    return len(found)


def filter_with(place: str, value: Any) -> cw.Filter:
    """As a client sends it."""
    years = {"first year": [value, None], "last year": [None, value], "both years": [value, value]}
    if place in years:
        return cw.Filter.from_json({"years": years[place]})
    return cw.Filter.from_json({place: [value] if place in TEXT_PLACES else value})


def test_hostile_values_in_filters(trial, index, store):
    """Quotes, comments, brackets and numbers in a filter show the papers that the index's own filters allow."""
    generated = mixtures(len(trial.numbers(quick=0, whole=300)))
    tries = [(place, text) for place in TEXT_PLACES for text in values_for(trial, [*TEXTS, *generated])]
    tries += [("ids", f"{front}:{text}") for front in "ah" for text in values_for(trial, TEXTS)]
    tries += [(place, value) for place in NUMBER_PLACES for value in values_for(trial, NUMBERS)]
    answers: list[int | None] = []
    for place, value in tries:
        with trial.attempt(f"{place} = {reprlib.repr(value)}"):
            answers.append(check_same(index, store, partial(filter_with, place, value)))
    for place in UNKNOWN_PLACES:
        with trial.attempt(f"a condition {place}"):
            assert check_same(index, store, partial(filter_with, place, "' OR 1=1 --")) is None, "it was accepted"
    trial.facts |= {"refused": answers.count(None), "papers": len(index), "papers shown": sum(filter(None, answers))}


def test_hostile_values_together(trial, index, store):
    """The same with several conditions and many ids at once."""
    rng, shown = random.Random(1), 0
    for number in trial.numbers(quick=20, whole=300):
        with trial.attempt(f"seed {number}"):
            several = [tuple(rng.sample(SHORT, rng.randint(1, 40))) for _ in range(4)]
            chosen = {"venues": several[0], "fields": ("cs", *several[1])}
            chosen["not_ids"] = tuple(f"h:{text}" for text in several[2])
            chosen |= {"ids": tuple(f"a:{text}" for text in (*several[0], *several[3]))} if number % 2 else {}
            years = rng.choice((None, 0, 1999, 2003)), rng.choice((None, 2005, 9999))
            shown += check_same(index, store, partial(cw.Filter, years=years, **chosen)) or 0
    trial.facts["papers shown"] = shown


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_ids_are_deleted(trial, kind, tmp_path):
    """A hostile id deletes the one paper that has it."""
    model = Provenance("demo", "r1", "t1", 4, "float32", "made up")
    plain = [f"plain:{number}" for number in range(PLAIN)]
    texts = values_for(trial, [*TEXTS, *mixtures(len(trial.numbers(quick=0, whole=100)))])
    with open_store(OPENED[kind].format(tmp_path), model) as store:
        # lone surrogates are stored as question marks
        there = {text.encode("utf-8", "replace").decode() for text in [*plain, *texts]}
        store.add(sorted(there), np.ones((len(there), 4), np.float32))
        for text in texts:
            with trial.attempt(reprlib.repr(text)):
                store.delete([text + " ' OR 1=1 --", f"p:{text}", text])
                there -= {id.encode("utf-8", "replace").decode() for id in (text, f"p:{text}")}
                assert sorted(store.listing()[0].tolist()) == sorted(store_keys(sorted(there)).tolist())
        with trial.attempt("the others are there"):
            assert sorted(store.search(np.ones((1, 4)), 500).ids[0]) == sorted(there) == sorted(plain)


NAMES = {
    "lance": (
        "plain", "a b", "a%20b", "%2e%2e%2fup", "a#b", "a?b=c", "a'b", 'q"x', "a\\b", "a*b[1]", "-x", "~", "~root", "~/x", "$HOME", "data:v1", "file:x", "s3:x",
        "az:x", "db:x", "memory:x", "é", "e\u0301", "a\nb", "a\x1b[2J", "x" * 250, "x" * 300, "file://{}/out", "file:///etc", "az://x/y", "db://x", "memory://x",
        "http://127.0.0.1:9/x", "S3://x/y", "a://b", "s3://../x", "\udc80",
    ),
    "milvus": (
        "plain.db", "a b.db", "a%20b.db", "~.db", "a'b.db", "tcp://127.0.0.1:9/x.db", "unix:x.db", "file://{}/out/x.db", "HTTP://127.0.0.1:9/x.db", "x", "x.DB",
        "a.db#b c", "a.db#' or 1=1", "a.db#papers_about", "a.db#../x", "http://a:b@127.0.0.1:9", "http://127.0.0.1:9/x.db", "é.db", "x" * 300 + ".db",
    ),
}  # fmt: skip
"""Names of stores that a database would read as an address, a home or a pattern."""


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_names_of_stores(trial, kind, tmp_path, monkeypatch):
    """A store lies in the folder or file that was named, or is refused; never elsewhere."""
    model = Provenance("demo", "r1", "t1", 4, "float32", "made up")
    for name in ("home", "out"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    names = NAMES[kind] if kind == "lance" else values_for(trial, NAMES[kind])  # a server for each file of Milvus
    for number, name in enumerate(names):
        with trial.attempt(f"{kind}:{reprlib.repr(name)}"):
            place, written = tmp_path / f"at{number}", name.partition("#")[0] if kind == "milvus" else name
            place.mkdir()
            monkeypatch.chdir(place)
            try:
                with open_store(f"{kind}:{name.format(tmp_path)}", model) as store:
                    store.add(["a"], np.ones((1, 4), np.float32))
                    assert store.search(np.ones((1, 4)), 5).ids == [["a"]]
                assert {path.name for path in place.iterdir()} == {written.partition("/")[0]}
            except UserError as error:
                one_line(error)
            assert not [*(tmp_path / "home").iterdir(), *(tmp_path / "out").iterdir()], "it was written elsewhere"
