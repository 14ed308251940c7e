"""Every back end gives the same answers: those of numpy, after any series of changes, under any filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from citeweave.core.errors import ArtifactError, UserError
from citeweave.search import store_protocol
from citeweave.search.filters import Filter, fold_name
from citeweave.search.store import VectorStore, open_store
from citeweave.search.store_protocol import Attributes, SyncMark, store_keys
from citeweave.vectors.vectors import Provenance

DIMENSION = 6
MODEL = Provenance("demo", "r1", "t1", DIMENSION, "float32", "made up")
HOSTILE = [
    "x' OR '1'='1",
    'x" or key >= 0 or "',
    "a\\",
    "a\\' or 1=1 --",
    "100%_",
    "new\nline\r\n\t",
    "nul\x00inside",
    "🦜 naïve 東京",
    "); DROP TABLE papers; --",
    "] or key in [1",
    "{key}",
    "$meta",
    " ",
    "é",  # composed
    "e\u0301",  # decomposed: another id
    "l" * 3000,
]

OpenStore = Callable[..., VectorStore]


@pytest.fixture(scope="module", params=["lance", "milvus"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStore]:
    """Opens the store of a name; one database a module, as milvus-lite takes its time to start."""
    kind, place = request.param, tmp_path_factory.mktemp(request.param)
    for module in {"lance": ["lancedb"], "milvus": ["pymilvus", "milvus_lite"]}[kind]:
        pytest.importorskip(module, reason="pip install 'citeweave[stores]'")
    stores: list[VectorStore] = []

    def open_one(name: str, provenance: Provenance | None = MODEL) -> VectorStore:
        address = f"lance:{place / name}" if kind == "lance" else f"milvus:{place / 'all.db'}#{name}"
        stores.append(open_store(address, provenance))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


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
        known = Attributes(
            years=rng.choice([0, 1999, 2015, 2020], len(ids)).astype(np.int16),
            venues=[("NeurIPS",) if at % 3 else ("x' OR 1=1",) for at in range(len(ids))],
            fields=[tuple(rng.choice(["cs", "bio", 'a"b'], rng.integers(0, 3), replace=False)) for _ in ids],
            has_abstract=rng.random(len(ids)) < 0.5,
            stub=np.zeros(len(ids), bool),
            prints=rng.integers(0, 1 << 62, len(ids)).astype(np.uint64),
        )
        store.add(ids, matrix, known)
        for at, id in enumerate(ids):
            self.vectors[id], self.years[id] = matrix[at], int(known.years[at])
            self.venues[id], self.fields[id] = tuple(known.venues[at]), tuple(known.fields[at])
            self.abstract[id] = bool(known.has_abstract[at])

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
            cosine = {id: _cosine(self.vectors[id], query) for id in ids}
            wanted = sorted(cosine.values(), reverse=True)[:count]
            assert len(set(near)) == len(near) == len(wanted)
            assert set(near) <= set(ids)
            np.testing.assert_allclose(scores, wanted, atol=1e-5)
            np.testing.assert_allclose(scores, [cosine[id] for id in near], atol=1e-5)
            assert near == [id for _, id in sorted(zip(-scores, near, strict=True))]


def _cosine(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    length = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / length if length else 0.0


def test_a_series_of_changes(opened: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
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
    listed = store.listing()
    assert sorted(listed.keys.tolist()) == sorted(store_keys(list(truth.vectors)).tolist())
    store.delete(list(truth.vectors))
    assert store.count() == 0 and store.search(queries, 3).ids == [[], []]


def test_filters(opened: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, truth, store = np.random.default_rng(1), Truth(), opened("filters")
    ids = [f"p:{number}" for number in range(60)]
    truth.add(store, ids, rng)
    queries = rng.standard_normal((2, DIMENSION)).astype(np.float32)
    queries[1] = 0
    for where in (
        Filter(years=(1999, 2015)),
        Filter(years=(None, 2019)),
        Filter(years=(0, None)),
        Filter(venues=(" neurIPS ",)),
        Filter(venues=("X' or 1=1", "unknown")),
        Filter(venues=("unknown' OR key >= 0 --",)),
        Filter(fields=("cs", "bio"), has_abstract=True),
        Filter(has_abstract=False),
        Filter(ids=tuple(ids[:20]), not_ids=tuple(ids[10:30])),
        Filter(ids=("p:1",), not_ids=("p:1",)),
        Filter(ids=("nobody",)),
        Filter(not_ids=tuple(ids[5:])),
    ):
        truth.check(store, queries, where)
    monkeypatch.setattr(store_protocol.split_conditions, "__kwdefaults__", {"block": 7})
    truth.check(store, queries, Filter(ids=tuple(ids[::2])))
    truth.check(store, queries, Filter(not_ids=tuple(ids[::2]), years=(2000, None)))


def test_hostile_ids(opened: OpenStore) -> None:
    """Ids are data: each finds and deletes exactly the paper that has it."""
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


def test_another_model_is_refused(opened: OpenStore) -> None:
    opened("models")
    for other in (
        replace(MODEL, model="other"),
        replace(MODEL, revision="r2"),
        replace(MODEL, dimension=7),
        replace(MODEL, text_recipe="t2"),
    ):
        with pytest.raises(UserError, match="cannot be compared"):
            opened("models", other)
    assert opened("models", None).provenance == MODEL
    with pytest.raises(UserError, match="holds no store"):
        opened("not_there", None)


def test_a_mark_stays(opened: OpenStore) -> None:
    store, mark = opened("marks"), SyncMark("index", 7, "abc")
    assert store.mark == SyncMark()
    store.set_mark(mark)
    assert opened("marks").mark == mark


def test_bad_vectors_are_refused(opened: OpenStore) -> None:
    store, known = opened("bad"), Attributes.unknown(1)
    with pytest.raises(UserError, match="vectors of 6 numbers"):
        store.add(["a"], np.zeros((1, 5), np.float32), known)
    with pytest.raises(UserError, match="not finite"):
        store.add(["a"], np.full((1, DIMENSION), np.nan, np.float32), known)
    with pytest.raises(UserError, match="longer than"):
        store.add(["a" * 70_000], np.ones((1, DIMENSION), np.float32), known)
    with pytest.raises(UserError, match="vectors of 6 numbers"):
        store.search(np.zeros((1, 5), np.float32), 3)
    with pytest.raises(UserError, match="--count"):
        store.search(np.zeros((1, DIMENSION), np.float32), 0)
    store.add(["twice", "twice"], np.eye(2, DIMENSION, dtype=np.float32), Attributes.unknown(2))
    assert store.count() == 1
    assert store.search(np.eye(2, DIMENSION, dtype=np.float32)[1:], 3).scores[0].tolist() == [1.0]


def test_approximate_searches_keep_their_recall(opened: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after papers came and went behind the index's back."""
    for module in ("lance", "milvus"):
        monkeypatch.setattr(f"citeweave.search.{module}.APPROXIMATE_FROM", 1000)
    rng, wide, papers = np.random.default_rng(3), 32, 2200
    topics = rng.standard_normal((100, wide))
    matrix = (topics[rng.integers(0, 100, papers)] + 0.7 * rng.standard_normal((papers, wide))).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    ids = [f"p:{row}" for row in range(papers)]
    store = opened("approximate", replace(MODEL, dimension=wide))
    store.add(ids[:2000], matrix[:2000], Attributes.unknown(2000))
    store.compact()
    queries = matrix[rng.choice(papers, 20, replace=False)]
    found = store.search(queries, 10, exact=False)
    assert _recall(found.ids, queries @ matrix[:2000].T, ids) >= 0.98
    store.add(ids[2000:], matrix[2000:], Attributes.unknown(200))
    store.delete(ids[:500])
    near = store.search(queries, 10, exact=False)
    scores = queries @ matrix.T
    scores[:, :500] = -2
    assert _recall(near.ids, scores, ids) >= 0.98
    assert not {id for line in near.ids for id in line} & set(ids[:500])
    few, of_few = Filter(ids=tuple(ids[:600])), np.where(np.arange(papers) < 600, scores, -2)
    assert _recall(store.search(queries, 10, few, exact=False).ids, of_few, ids) == 1


def _recall(found: list[list[str]], scores: NDArray[np.float32], ids: list[str]) -> float:
    wanted = np.argsort(-scores, axis=1)[:, :10]
    shared = [len(set(near) & {ids[row] for row in rows}) for near, rows in zip(found, wanted.tolist(), strict=True)]
    return float(np.mean(shared)) / 10


def test_foreign_places_are_refused(tmp_path: Path) -> None:
    lancedb = pytest.importorskip("lancedb", reason="pip install 'citeweave[stores]'")
    lancedb.connect(str(tmp_path / "theirs")).create_table("papers", [{"vector": [1.0, 2.0]}])
    with pytest.raises(ArtifactError, match="not a store of citeweave"):
        open_store(f"lance:{tmp_path / 'theirs'}", MODEL)
    open_store(f"lance:{tmp_path / 'ours'}", MODEL)
    about = tmp_path / "ours" / "about.json"
    about.write_text(about.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(ArtifactError, match="version 9"):
        open_store(f"lance:{tmp_path / 'ours'}")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError):
        open_store(f"lance:{tmp_path / 'file'}", MODEL)


@pytest.mark.parametrize(
    ("name", "says"),
    [
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
    ],
)
def test_names_of_stores(name: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        open_store(name)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["~", "data:v1", "file:x", "a\udc80", "a\nb"])
def test_a_folder_that_lance_would_look_for_elsewhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies where it was named, or is refused in one line."""
    pytest.importorskip("lancedb", reason="pip install 'citeweave[stores]'")
    for folder in ("home", "here"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    if not name.isprintable():
        with pytest.raises(ArtifactError, match="name another folder") as caught:
            open_store(f"lance:{name}", MODEL)
        assert str(caught.value).isprintable()
        return
    open_store(f"lance:{name}", MODEL).add(["a"], np.eye(1, DIMENSION, dtype=np.float32), Attributes.unknown(1))
    assert open_store(f"lance:{name}").count() == 1
    assert (tmp_path / "here" / name / "papers.lance").is_dir()
    assert not list((tmp_path / "home").iterdir())
