"""Every back end gives the answers of numpy and of the index that it follows, after any changes, under any filter."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from citeweave import Corpus, Filter, Index, IndexOptions
from citeweave.core.errors import ArtifactError, UserError
from citeweave.search import store as store_module
from citeweave.search.build import ChangeOptions, build_index, delete_papers, update_index
from citeweave.search.databases import LanceStore, open_store
from citeweave.search.filters import filter_rows, fold_name
from citeweave.search.generation import ChangeCounts
from citeweave.search.nearest import nearest_papers
from citeweave.search.store import SyncMark, VectorStore, nearest_in_store, store_keys
from citeweave.search.store import sync_store as sync
from citeweave.vectors.vectors import Provenance

from ..conftest import refused
from .conftest import CPU, WORDS, corpus_of

DIMENSION = 6
MODEL = Provenance("demo", "r1", "t1", DIMENSION, "float32", "made up")
HOSTILE = [
    *("x' OR '1'='1", 'x" or key >= 0 or "', "a\\", "a\\' or 1=1 --", "100%_", "new\nline\r\n\t", "nul\x00inside"),
    *("🦜 naïve 東京", "); DROP TABLE papers; --", "] or key in [1", "{key}", "$meta", " "),
    *("é", "e\u0301"),  # composed, and decomposed: another id
    "l" * 3000,
]
needs_lance = pytest.mark.usefixtures("lance")


@pytest.fixture
def lance() -> Any:
    return pytest.importorskip("lancedb", reason="pip install 'citeweave[stores]'")


SERVER = os.environ.get("CITEWEAVE_MILVUS", "")
"""Address of a Milvus server to test with, such as http://127.0.0.1:19530."""


@pytest.fixture(scope="module", params=["lance", "milvus", *["server"] * bool(SERVER)])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The address of the store of a name; one database per module, as milvus-lite takes its time to start."""
    kind, place = request.param, tmp_path_factory.mktemp(request.param)
    for module in {"lance": ["lancedb"], "milvus": ["pymilvus", "milvus_lite"], "server": ["pymilvus"]}[kind]:
        pytest.importorskip(module, reason="pip install 'citeweave[stores]'")
    if kind == "server":
        return lambda name: f"milvus:{SERVER}#t{os.getpid()}_{name}"
    return lambda name: f"lance:{place / name}" if kind == "lance" else f"milvus:{place / 'all.db'}#{name}"


@pytest.fixture(scope="module")
def opened(address: Callable[[str], str]) -> Iterator[Callable[..., VectorStore]]:
    stores: list[VectorStore] = []

    def open_one(name: str, provenance: Provenance | None = MODEL) -> VectorStore:
        stores.append(open_store(address(name), provenance))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


def cosine(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    length = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / length if length else 0.0


@dataclass
class Truth:
    """What a store should hold."""

    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    years: dict[str, int] = field(default_factory=dict)
    venues: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    abstract: dict[str, bool] = field(default_factory=dict)

    def add(self, store: VectorStore, ids: list[str], rng: np.random.Generator) -> None:
        matrix = rng.standard_normal((len(ids), DIMENSION)).astype(np.float32) * 3
        matrix[rng.random(len(ids)) < 0.05] = 0
        known: dict[str, Any] = {
            "years": rng.choice([0, 1999, 2015, 2020], len(ids)).astype(np.int16),
            "venues": [("NeurIPS",) if at % 3 else ("x' OR 1=1",) for at in range(len(ids))],
            "fields": [tuple(rng.choice(["cs", "bio", 'a"b'], rng.integers(0, 3), replace=False)) for _ in ids],
            "has_abstract": rng.random(len(ids)) < 0.5,
            "stub": np.zeros(len(ids), bool),
            "prints": rng.integers(0, 1 << 62, len(ids)).astype(np.uint64),
        }
        store.add(ids, matrix, **known)
        for at, id in enumerate(ids):
            self.vectors[id], self.years[id] = matrix[at], int(known["years"][at])
            self.venues[id], self.fields[id] = tuple(known["venues"][at]), tuple(known["fields"][at])
            self.abstract[id] = bool(known["has_abstract"][at])

    def delete(self, store: VectorStore, ids: list[str]) -> None:
        store.delete(ids)
        for id in ids:
            self.vectors.pop(id, None)

    def allows(self, id: str, where: Filter) -> bool:
        first, last = where.years
        of_years = where.years == (None, None) or (max(first or 1, 1) <= self.years[id] <= (last or 9999))
        named = [
            not wanted or {fold_name(name) for name in wanted} & {fold_name(name) for name in has[id]}
            for wanted, has in ((where.venues, self.venues), (where.fields, self.fields))
        ]
        of_ids = (not where.ids or id in where.ids) and id not in where.not_ids
        return bool(of_years and all(named) and of_ids and where.has_abstract in (None, self.abstract[id]))

    def check(self, store: VectorStore, queries: NDArray[np.float32], where: Filter, count: int = 7) -> None:
        """Scores are those of numpy, ids have the scores that they should have."""
        ids = [id for id in self.vectors if self.allows(id, where)]
        found = store.search(queries, count, where)
        for query, near, scores in zip(queries, found.ids, found.scores, strict=True):
            known = {id: cosine(self.vectors[id], query) for id in ids}
            wanted = sorted(known.values(), reverse=True)[:count]
            assert len(set(near)) == len(near) == len(wanted) and set(near) <= set(ids)
            np.testing.assert_allclose(scores, wanted, atol=1e-5)
            np.testing.assert_allclose(scores, [known[id] for id in near], atol=1e-5)
            assert near == [id for _, id in sorted(zip(-scores, near, strict=True))]


def test_any_series_of_changes_gives_the_answers_of_numpy(opened, monkeypatch):
    rng, truth, store = np.random.default_rng(0), Truth(), opened("series")
    monkeypatch.setattr("citeweave.search.store.BATCH_BYTES", 40 * 4 * DIMENSION)
    every = [f"p:{number}" for number in range(120)] + HOSTILE
    for step in range(8):
        chosen = [str(id) for id in rng.choice(every, 50, replace=False)]
        truth.delete(store, chosen) if step % 3 == 2 else truth.add(store, chosen, rng)
        if step in (3, 6):
            store.compact()
        if step == 5:
            store.close()
            store = opened("series", None)
        assert store.count() == len(truth.vectors)
        queries = rng.standard_normal((2, DIMENSION)).astype(np.float32)
        truth.check(store, queries, Filter())
        truth.check(store, queries, Filter(years=(2000, None), fields=("CS", 'A"B')))
    assert sorted(store.listing()[0].tolist()) == sorted(store_keys(list(truth.vectors)).tolist())
    store.delete(list(truth.vectors))
    assert store.count() == 0 and store.search(queries, 3).ids == [[], []]


def test_filters_keep_what_they_keep_in_an_index(opened, monkeypatch):
    rng, truth, store, ids = np.random.default_rng(1), Truth(), opened("filters"), [f"p:{at}" for at in range(60)]
    truth.add(store, ids, rng)
    queries = rng.standard_normal((2, DIMENSION)).astype(np.float32)
    queries[1] = 0
    for where in (
        *(Filter(years=years) for years in ((1999, 2015), (None, 2019), (0, None))),
        *(Filter(venues=names) for names in ((" neurIPS ",), ("X' or 1=1", "unknown"), ("unknown' OR key >= 0 --",))),
        Filter(fields=("cs", "bio"), has_abstract=True),
        Filter(has_abstract=False),
        Filter(ids=tuple(ids[:20]), not_ids=tuple(ids[10:30])),
        Filter(ids=("p:1",), not_ids=("p:1",)),
        Filter(ids=("nobody",)),
        Filter(not_ids=tuple(ids[5:])),
    ):
        truth.check(store, queries, where)
    monkeypatch.setattr(store_module.filter_expressions, "__kwdefaults__", {"block": 7})
    truth.check(store, queries, Filter(ids=tuple(ids[::2])))
    truth.check(store, queries, Filter(not_ids=tuple(ids[::2]), years=(2000, None)))


def test_hostile_ids_are_data(opened):
    """Each finds and deletes exactly the paper that has it."""
    rng, truth, store = np.random.default_rng(2), Truth(), opened("hostile")
    truth.add(store, [*HOSTILE, "innocent"], rng)
    queries = rng.standard_normal((1, DIMENSION)).astype(np.float32)
    for id in HOSTILE:
        truth.check(store, queries, Filter(ids=(id[:1000],)))
        truth.check(store, queries, Filter(not_ids=(id[:1000],), venues=(id[:1000], "NeurIPS")), count=50)
    for number, id in enumerate(HOSTILE):
        store.delete([id, "' OR '1'='1", "never there"])
        assert store.count() == len(HOSTILE) - number
    assert store.search(queries, 5).ids == [["innocent"]]


def test_a_store_keeps_its_model_and_its_mark(opened):
    store, mark = opened("models"), SyncMark("index", 7, "abc")
    for other in ({"model": "other"}, {"revision": "r2"}, {"dimension": 7}, {"text_recipe": "t2"}):
        refused("cannot be compared", opened, "models", replace(MODEL, **other))
    assert opened("models", None).info.provenance == MODEL
    refused("holds no store", opened, "not_there", None)
    assert store.info.mark == SyncMark()
    store.set_mark(mark)
    assert opened("models").info.mark == mark


def test_bad_vectors_are_refused(opened):
    store, one = opened("bad"), np.ones((1, DIMENSION), np.float32)
    for action, said in (
        (lambda: store.add(["a"], one[:, 1:]), "vectors of 6 numbers"),
        (lambda: store.add(["a"], one * np.nan), "not finite"),
        (lambda: store.add(["a" * 70_000], one), "longer than"),
        (lambda: store.search(one[:, 1:], 3), "vectors of 6 numbers"),
        (lambda: store.search(one, 0), "--count"),
    ):
        refused(said, action)
    two = np.eye(2, DIMENSION, dtype=np.float32)
    store.add(["twice", "twice"], two)
    assert store.count() == 1 and store.search(two[1:], 3).scores[0].tolist() == [1.0]


def test_approximate_searches_keep_their_recall(opened, monkeypatch):
    """Also after papers came and went behind the index's back."""
    monkeypatch.setattr("citeweave.search.databases.APPROXIMATE_FROM", 1000)
    rng, wide, papers = np.random.default_rng(3), 32, 2200
    topics = rng.standard_normal((100, wide))
    matrix = (topics[rng.integers(0, 100, papers)] + 0.7 * rng.standard_normal((papers, wide))).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    ids, store = [f"p:{row}" for row in range(papers)], opened("approximate", replace(MODEL, dimension=wide))

    def recall(found, scores):
        lines = zip(found.ids, np.argsort(-scores, axis=1)[:, :10].tolist(), strict=True)
        return float(np.mean([len(set(near) & {ids[row] for row in rows}) for near, rows in lines])) / 10

    store.add(ids[:2000], matrix[:2000])
    store.compact()
    queries = matrix[rng.choice(papers, 20, replace=False)]
    assert recall(store.search(queries, 10, exact=False), queries @ matrix[:2000].T) >= 0.98
    store.add(ids[2000:], matrix[2000:])
    store.delete(ids[:500])
    near, scores = store.search(queries, 10, exact=False), queries @ matrix.T
    scores[:, :500] = -2
    assert recall(near, scores) >= 0.98 and not {id for line in near.ids for id in line} & set(ids[:500])
    few, of_few = Filter(ids=tuple(ids[:600])), np.where(np.arange(papers) < 600, scores, -2)
    assert recall(store.search(queries, 10, few, exact=False), of_few) == 1


def test_foreign_places_are_refused(lance, tmp_path):
    lance.connect(str(tmp_path / "theirs")).create_table("papers", [{"vector": [1.0, 2.0]}])
    refused("not a store of citeweave", open_store, f"lance:{tmp_path / 'theirs'}", MODEL, error=ArtifactError)
    open_store(f"lance:{tmp_path / 'ours'}", MODEL)
    about = tmp_path / "ours" / "about.json"
    written = about.read_text()
    for other in (1, 9):  # the first version had no columns to read
        about.write_text(written.replace('"version": 2', f'"version": {other}'))
        refused(f"version {other}", open_store, f"lance:{tmp_path / 'ours'}", error=ArtifactError)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError):
        open_store(f"lance:{tmp_path / 'file'}", MODEL)


BAD_NAMES = [
    ("papers", "lance:FOLDER"),
    ("lance:", "lance:FOLDER"),
    ("lanse:x", "Did you mean 'lance'"),
    ("milvus:papers", "ends in .db"),
    ("milvus:https://me:secret@host:1", "must not hold a password"),
    ("milvus:papers.db#a b", "--collection"),
    ("milvus:http://host:1/papers.db", "ends in .db"),
    ("milvus:tcp://host/papers.db", "ends in .db"),
    ("milvus:" + "x" * 300 + ".db", "holds no store"),
    ("lance:file:///data/papers", "give a folder"),
]


@pytest.mark.parametrize(("name", "says"), BAD_NAMES)
def test_bad_names_of_stores_are_refused(name, says):
    with pytest.raises(UserError, match=says) as caught:
        open_store(name)
    assert "secret" not in str(caught.value)


@needs_lance
@pytest.mark.parametrize("name", ["~", "data:v1", "file:x", "a\udc80", "a\nb"])
def test_a_folder_that_lance_would_look_for_in_another_place(name, tmp_path, monkeypatch):
    """It lies where it was named, or is refused in one line."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    if not name.isprintable():
        with pytest.raises(ArtifactError, match="name another folder") as caught:
            open_store(f"lance:{name}", MODEL)
        assert str(caught.value).isprintable()
        return
    open_store(f"lance:{name}", MODEL).add(["a"], np.eye(1, DIMENSION, dtype=np.float32))
    assert open_store(f"lance:{name}").count() == 1
    assert (here / name / "papers.lance").is_dir() and not list(home.iterdir())


# --- a store that follows its index -------------------------------------------------------------------------

WHERE = (
    None,
    Filter(years=(2003, None)),
    Filter(venues=("b'ICML",), fields=("cs", "bio")),
    Filter(ids=("alias:3", "p:5", "p:6", "nobody"), not_ids=("p:6",)),
    Filter(not_ids=("alias:3", "p:0")),
    Filter(has_abstract=False),
    Filter(local=True),
    Filter(venues=("nowhere",)),
)


def numbered(place: Path, numbers: list[int], year: int = 2000) -> Corpus:
    made: list[dict[str, Any]] = []
    for number in numbers:
        rng = np.random.default_rng(number)
        texts = {"title": " ".join(rng.choice(WORDS, 4)), "abstract": " ".join(rng.choice(WORDS, 9 * (number % 4 > 0)))}
        made.append({"id": f"p:{number}", **texts, "year": year + number % 7, "ids": [f"alias:{number}"]})
        made[-1] |= {"venue": ["ACL", "B'icml"][number % 2], "fields": [["cs"], ["bio", "Math"], []][number % 3]}
    return corpus_of(place, made)


@pytest.fixture
def index(tmp_path, made) -> Index:
    return build_index(numbered(tmp_path / "first", list(range(24))), made.model, tmp_path / "index", CPU)


def check(index: Index, store: VectorStore) -> None:
    """The store gives the rows and the scores that the index gives."""
    rows = np.flatnonzero(index.with_vector)[:3]
    queries = index.take(rows) + np.float32(0.01)
    for where in WHERE:
        allowed = None if where is None else filter_rows(index, where)
        wanted = nearest_papers(index, queries, 6, allowed=allowed)
        found = nearest_in_store(store, index, queries, 6, where=where)
        for line, query_rows in enumerate(wanted.rows):
            known = int((query_rows >= 0).sum())
            assert int((found.rows[line] >= 0).sum()) == known, where
            np.testing.assert_allclose(found.scores[line, :known], wanted.scores[line, :known], atol=1e-5)
        if where is None or not where.ids:
            direct = nearest_papers(index, queries, 6, allowed=allowed)
            for left, right in zip(direct.scores, store.search(queries, 6, where).scores, strict=True):
                np.testing.assert_allclose(left[: len(right)], right, atol=1e-5)
                assert np.isnan(left[len(right) :]).all()


def is_synced(index: Index, store: VectorStore) -> bool:
    return store.info.mark.stamp == index.manifest.hash


def test_a_store_follows_its_index(index, opened, tmp_path):
    def updated(name: str, year: int) -> Index:
        corpus = numbered(tmp_path / name, [*range(4, 24), 30, 31], year)
        update_index(index.folder, corpus, options=ChangeOptions(device="cpu"))
        return index.fresh()

    store = opened("followed", index.provenance)
    assert sync(index, store) == ChangeCounts(24, 0, 0, 0) and is_synced(index, store)
    assert sync(index, store) == ChangeCounts(0, 0, 0, 24)
    check(index, store)
    index = updated("second", 2000)
    stale = nearest_in_store(store, index, index.take(index.rows(["p:30"])), 22)
    assert not is_synced(index, store)
    assert sorted(index.id(row) for row in stale.rows[0].tolist() if row >= 0) == sorted(f"p:{n}" for n in range(4, 24))
    assert sync(index, store) == ChangeCounts(2, 0, 4, 20)
    check(index, store)
    index = updated("third", 2001)
    assert sync(index, store) == ChangeCounts(0, 22, 0, 0)
    check(index, store)
    delete_papers(index.folder, ["alias:9"])
    index = index.fresh()
    assert sync(index, store) == ChangeCounts(0, 0, 1, 21)
    assert is_synced(index, store) and sync(index, store) == ChangeCounts(0, 0, 0, 21)
    paper = index.paper(index.row("p:5"))
    read = {row["id"]: row for row in read_alone(store, paper.title)}["p:5"]
    assert (read["year"], read["venue"], read["abstract"]) == (2006, "B'icml", paper.abstract)
    assert read["ids"] == ["p:5", "alias:5"] and read["fields"] == [] == read["authors"]


READABLE = ("id", "title", "abstract", "authors", "venue", "year", "fields", "doi", "ids")


def read_alone(store: VectorStore, words: str) -> list[dict[str, Any]]:
    """Papers by the words of their title, read by the database's own client; citeweave has closed the store."""
    store.close()
    kind, _, place = store.place.partition(":")
    if kind == "lance":
        import lancedb

        table = lancedb.connect(place).open_table("papers")
        rows: list[dict[str, Any]] = table.search().where(f"title = '{words}'").select([*READABLE]).to_list()
        return rows
    from pymilvus import MilvusClient

    place, _, name = place.partition(" (")
    client = MilvusClient(place)
    client.load_collection(name.rstrip(")"))
    rows = client.query(name.rstrip(")"), filter=f'title == "{words}"', output_fields=[*READABLE])
    client.close()
    return [
        {column: [*row[column]] if column in ("authors", "fields", "ids") else row[column] for column in READABLE}
        for row in rows
    ]


def test_a_store_is_read_without_citeweave(opened):
    store = opened("readable")
    known = {
        "titles": ["Rain", "Snow", "Rain"],
        "abstracts": ["It rains: ünï.", "雪" * 30_000, ""],
        "authors": [("Ada Lovelace", "Alan Turing"), (), ("é" * 3000,)],
        "venues": [("ACL",), (), ("A", "B")],
        "years": np.array([1950, 0, 2020]),
        "fields": [("cs", "bio"), (), ()],
        "other_ids": [("doi:10.1/x", "arxiv:1"), (), ()],
    }
    store.add(["p:1", "p:2", "doi:10.1/z"], np.eye(3, DIMENSION, dtype=np.float32), **known)
    one, other = sorted(read_alone(store, "Rain"), key=lambda row: row["year"])
    assert {name: one[name] for name in READABLE} == {
        **{"id": "p:1", "title": "Rain", "abstract": "It rains: ünï.", "authors": ["Ada Lovelace", "Alan Turing"]},
        **{
            "venue": "ACL",
            "year": 1950,
            "fields": ["cs", "bio"],
            "doi": "10.1/x",
            "ids": ["p:1", "doi:10.1/x", "arxiv:1"],
        },
    }
    assert (other["doi"], other["venue"], other["ids"], other["authors"]) == (
        "10.1/z",
        "A; B",
        ["doi:10.1/z"],
        ["é" * 2000],
    )
    (long,) = read_alone(store, "Snow")
    assert long["abstract"] == "雪" * 20_000 and not long["authors"] and not long["doi"]


class Breaking(LanceStore):
    """A table whose process is killed at the third writing."""

    left = 3

    def upsert(self, papers: dict[str, Any]) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        super().upsert(papers)


@needs_lance
def test_a_sync_resumes_after_a_crash_and_spares_the_store_of_another_index(index, tmp_path, made):
    with pytest.raises(KeyboardInterrupt):
        sync(index, Breaking(tmp_path / "store").open(index.provenance), block=5)
    store = open_store(f"lance:{tmp_path / 'store'}", index.provenance)
    assert store.info.mark.number == -1 and store.count() == 10
    assert sync(index, store, block=5) == ChangeCounts(14, 0, 0, 10)
    check(index, store)
    other = build_index(numbered(tmp_path / "o", [1, 50]), made.model, tmp_path / "other", CPU)
    refused("was filled from .*index, not from .*other", sync, other, store)
    assert sync(other, store, overwrite=True) == ChangeCounts(1, 0, 23, 1)
    words = build_index(numbered(tmp_path / "w", [1]), made.model, tmp_path / "words", IndexOptions(vectors=False))
    refused("no vectors yet", sync, words, store)


# --- `citeweave store` and `citeweave search --store` ---------------------------------------------------------


@needs_lance
def test_a_store_is_made_brought_up_to_date_and_searched_as_the_index(made, tmp_path, cli):
    index, store = made.index, ["store", made.index.folder, "--lance", tmp_path / "papers.lance"]
    for added in (19, 0):
        counts = cli.json(*store)
        assert (counts["papers"], counts["added"], counts["unchanged"]) == (19, added, 19 - added)
    assert "unchanged  19" in cli.text(*store)
    query = ["search", index.folder, "--paper", index.id(0), "--count 5 --year 1990-"]
    places = ([], ["--store", f"lance:{tmp_path / 'papers.lance'}"])
    own, through = (cli.json(*query, *place)["hits"] for place in places)
    assert own and [hit["id"] for hit in through] == [hit["id"] for hit in own]
    assert [hit["score"] for hit in through] == pytest.approx([hit["score"] for hit in own], abs=1e-5)


MISTAKES = [
    ("store", "", "either --lance FOLDER or --milvus ADDRESS"),
    ("store", "--lance a --milvus b.db", "either --lance FOLDER or --milvus ADDRESS"),
    ("store", "--milvus b.db --collection 'x; drop'", "--collection is 'x; drop'"),
    ("search", "rain --by words --store lance:x", "--store holds vectors of papers"),
]


@needs_lance
@pytest.mark.parametrize(("command", "options", "says"), MISTAKES)
def test_mistakes_are_named_in_one_line(made, command, options, says, cli):
    cli.fails(says, command, made.index.folder, options)


def test_the_token_is_not_told(made, monkeypatch, cli):
    pytest.importorskip("pymilvus", reason="pip install 'citeweave[stores]'")
    monkeypatch.setenv("CITEWEAVE_MILVUS_TOKEN", "root:verysecret")
    code, *said = cli("store", made.index.folder, "--milvus http://127.0.0.1:9")
    said = "".join(said)
    assert code == 2 and "does not respond" in said and "verysecret" not in said and "Traceback" not in said
