"""A store follows its index through any change and any crash, and answers as the index does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.core.errors import UserError
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.search.build import IndexOptions, build_index
from citeweave.search.filters import Filter, filter_rows
from citeweave.search.index import Index
from citeweave.search.lance import LanceTable
from citeweave.search.nearest import nearest_papers
from citeweave.search.store import (
    IndexStore,
    SyncCounts,
    VectorStore,
    is_synced,
    nearest_in_store,
    open_store,
    sync_store,
)
from citeweave.search.store_protocol import StoredPapers
from citeweave.search.update import ChangeOptions, compact_index, delete_papers, update_index

from ..conftest import KNOWN

CPU = ChangeOptions(device="cpu")
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


def corpus_of(place: Path, numbers: list[int], year: int = 2000) -> Corpus:
    made: list[dict[str, Any]] = []
    for number in numbers:
        rng = np.random.default_rng(number)
        made.append(
            {
                "id": f"p:{number}",
                "title": " ".join(rng.choice(KNOWN.split(), 4)),
                "abstract": " ".join(rng.choice(KNOWN.split(), 9)) if number % 4 else "",
                "year": year + number % 7,
                "venue": ["ACL", "B'icml"][number % 2],
                "fields": [["cs"], ["bio", "Math"], []][number % 3],
                "ids": [f"alias:{number}"],
            }
        )
    place.mkdir()
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in made))
    import_papers([place / "papers.jsonl"], place / "corpus")
    return Corpus.open(place / "corpus")


@dataclass
class Library:
    place: Path
    folder: Path

    def bring_to(self, name: str, numbers: list[int], year: int = 2000) -> Index:
        update_index(self.folder, corpus_of(self.place / name, numbers, year), options=CPU)
        return Index.open(self.folder)


@pytest.fixture
def library(tmp_path: Path, made: Any) -> Library:
    folder = tmp_path / "index"
    build_index(corpus_of(tmp_path / "first", list(range(24))), made.model, folder, IndexOptions(device="cpu"))
    return Library(tmp_path, folder)


@pytest.fixture(params=["lance", "milvus"])
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    for module in {"lance": ["lancedb"], "milvus": ["pymilvus", "milvus_lite"]}[request.param]:
        pytest.importorskip(module, reason="pip install 'citeweave[stores]'")
    return {"lance": f"lance:{tmp_path / 'store'}", "milvus": f"milvus:{tmp_path / 'store.db'}"}[request.param]


@pytest.fixture
def store(name: str, library: Library) -> Iterator[VectorStore]:
    with open_store(name, Index.open(library.folder).provenance) as opened:
        yield opened


def check(index: Index, store: VectorStore) -> None:
    """The store gives the rows and the scores that the index gives."""
    rows = np.flatnonzero(index.with_vector)[:3]
    queries = index.take(rows) + np.float32(0.01)
    for where in WHERE:
        allowed = None if where is None else filter_rows(index, where)
        wanted = nearest_papers(index, queries, 6, allowed=allowed, itself=rows)
        found = nearest_in_store(store, index, queries, 6, where, itself=rows)
        for line, query_rows in enumerate(wanted.rows):
            known = int((query_rows >= 0).sum())
            assert int((found.rows[line] >= 0).sum()) == known, where
            np.testing.assert_allclose(found.scores[line, :known], wanted.scores[line, :known], atol=1e-5)
        direct = IndexStore(index).search(queries, 6, where)
        if where is None or not where.ids:
            for left, right in zip(direct.scores, store.search(queries, 6, where).scores, strict=True):
                np.testing.assert_allclose(left, right, atol=1e-5)


def test_a_store_follows_its_index(library: Library, store: VectorStore) -> None:
    index = Index.open(library.folder)
    assert sync_store(index, store) == SyncCounts(24, 0, 0, 0) and is_synced(index, store)
    assert sync_store(index, store) == SyncCounts(0, 0, 0, 24)
    check(index, store)
    index = library.bring_to("second", [*range(4, 24), 30, 31])
    stale = nearest_in_store(store, index, index.take(index.rows(["p:30"])), 22)
    assert not is_synced(index, store)
    assert sorted(index.id(row) for row in stale.rows[0].tolist() if row >= 0) == sorted(f"p:{n}" for n in range(4, 24))
    assert sync_store(index, store) == SyncCounts(2, 0, 4, 20)
    check(index, store)
    index = library.bring_to("third", [*range(4, 24), 30, 31], year=2001)
    assert sync_store(index, store) == SyncCounts(0, 22, 0, 0)
    check(index, store)
    delete_papers(library.folder, ["alias:9"])
    index = index.fresh()
    assert sync_store(index, store) == SyncCounts(0, 0, 1, 21)
    compact_index(library.folder)
    index = index.fresh()
    assert not is_synced(index, store)
    assert sync_store(index, store) == SyncCounts(0, 0, 0, 21)
    check(index, store)


class Breaking(LanceTable):
    """A table whose process is killed at the third writing."""

    left = 3

    def upsert(self, papers: StoredPapers) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        super().upsert(papers)


def test_a_crash_is_gone_on_from(library: Library, tmp_path: Path) -> None:
    pytest.importorskip("lancedb", reason="pip install 'citeweave[stores]'")
    index, folder = Index.open(library.folder), tmp_path / "store"
    broken = VectorStore.open(Breaking(folder), index.provenance)
    with pytest.raises(KeyboardInterrupt):
        sync_store(index, broken, block=5)
    store = open_store(f"lance:{folder}", index.provenance)
    assert store.mark.number == -1 and store.count() == 10
    assert sync_store(index, store, block=5) == SyncCounts(14, 0, 0, 10)
    check(index, store)


def test_another_index_is_not_written_over(library: Library, tmp_path: Path, made: Any) -> None:
    pytest.importorskip("lancedb", reason="pip install 'citeweave[stores]'")
    index = Index.open(library.folder)
    store = open_store(f"lance:{tmp_path / 'store'}", index.provenance)
    sync_store(index, store)
    other = build_index(corpus_of(tmp_path / "o", [1, 50]), made.model, tmp_path / "other", IndexOptions(device="cpu"))
    with pytest.raises(UserError, match="was filled from .*index, not from .*other"):
        sync_store(other, store)
    assert sync_store(other, store, overwrite=True) == SyncCounts(1, 0, 23, 1)
    words = build_index(
        corpus_of(tmp_path / "w", [1]), made.model, tmp_path / "words", IndexOptions(device="cpu", vectors=False)
    )
    with pytest.raises(UserError, match="no vectors yet"):
        sync_store(words, store)
