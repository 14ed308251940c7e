"""LanceDB as the back end of a store: a folder here or on object storage, no server.

    papers.lance/about.json          what the store tells of itself
    papers.lance/papers.lance/       the table

Vectors are float32, compared by the inner product, as they have length 1. Up to APPROXIMATE_FROM papers every search
compares all; from there on `compact` builds an index, whose candidates are compared again with the whole vectors.

Limits and traps: `merge_insert` of rows that are there writes them anew, so the folder grows until `compact`, and old
versions stay an hour for readers that are still at them. A list of ids in a filter costs some 30 microseconds an id. Two
processes that write at once are sorted out by LanceDB's commits, but `compact` may then fail and must be run again.

On object storage (`s3://bucket/papers.lance`) LanceDB reads and writes there itself, nothing is fetched as a whole. Its
commits need a storage that can refuse to put an object that is there, as Amazon's does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.cloud.address import is_address
from citeweave.errors import ArtefactError
from citeweave.extras import require
from citeweave.search.stores.conditions import Spelling, expression
from citeweave.search.stores.lance_places import Bucket, Folder
from citeweave.search.stores.protocol import About, Columns, Conditions, Listing, StoreKeys

APPROXIMATE_FROM = 20_000
"""Papers from which an index is worth its building: below, comparing all takes some 20 ms."""

_TABLE, _ABOUT = "papers", "about.json"
_SPELLING = Spelling("({})", "array_has_any")
_PARTITION = 400
"""Papers in a list of the index, about."""

_PROBES, _SHARE, _REFINE = 32, 8, 4
"""Lists that are looked into, at least so many and at least this part of all (one in 8); candidates for each paper wanted
that are compared by their whole vectors. With 100,000 papers of MiniLM 16 of 256 lists found 0.974 of the true ten, 32 of
them 0.989; more candidates found no more."""

_LIST_BLOCK = 65_536
_KEPT_VERSIONS = timedelta(hours=1)


class LanceTable:
    """A folder of LanceDB."""

    def __init__(self, folder: str | Path) -> None:
        self._where: Folder | Bucket = Bucket(folder) if is_address(folder) else Folder(folder)
        self.place = f"lance:{self._where}"
        self._opened: Any = None

    def about(self) -> About | None:
        data = self._where.read(_ABOUT)
        if data is None and self._where.is_empty():
            return None
        try:
            told = json.loads(data or b"")
        except (ValueError, RecursionError):
            raise ArtefactError(
                f"{self.place} is no store of citeweave; name another folder, or an empty one"
            ) from None
        about = About.from_json(told, self.place)
        if not self._where.has(f"{_TABLE}.lance"):
            self._create_table(about)  # a crash came between the two
        return about

    def create(self, about: About) -> None:
        require("lancedb", extra="stores")
        self._where.make()
        self.tell(about)
        self._create_table(about)

    def tell(self, about: About) -> None:
        self._where.write(_ABOUT, about.as_json())

    def upsert(self, papers: Columns) -> None:
        table = self._table()
        rows = _as_arrow(papers, table.schema)
        if table.count_rows() == 0:
            table.add(rows)
        else:
            table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def remove(self, keys: StoreKeys) -> None:
        if len(keys):
            self._table().delete(expression(Conditions(keys=tuple(keys.tolist())), _SPELLING))

    def count(self) -> int:
        return int(self._table().count_rows())

    def listing(self) -> Iterator[Listing]:
        for batch in self._table().search().select(["key", "print"]).limit(None).to_batches(_LIST_BLOCK):
            yield Listing(*(batch.column(name).to_numpy(zero_copy_only=False) for name in ("key", "print")))

    def nearest(
        self, queries: NDArray[np.float32], count: int, numbers: Conditions | None, *, exact: bool
    ) -> list[list[tuple[float, str]]]:
        table, where = self._table(), expression(numbers or Conditions(), _SPELLING)
        probes = max(_PROBES, table.count_rows() // (_PARTITION * _SHARE))
        found = []
        for query in queries:
            asked = table.search(query, vector_column_name="vector").distance_type("dot").limit(count)
            asked = asked.bypass_vector_index() if exact else asked.nprobes(probes).refine_factor(_REFINE)
            lines = (asked.where(where) if where else asked).select(["id", "_distance"]).to_arrow()
            scores = 1.0 - lines["_distance"].to_numpy()  # (found,); LanceDB's distance is 1 - inner product
            found.append(list(zip(scores.tolist(), lines["id"].to_pylist(), strict=True)))
        return found

    def compact(self) -> None:
        table = self._table()
        table.optimize(cleanup_older_than=_KEPT_VERSIONS)
        papers = table.count_rows()
        if papers >= APPROXIMATE_FROM and not any("vector" in index.columns for index in table.list_indices()):
            kinds = require("lancedb.index", extra="stores")
            lists = max(1, papers // _PARTITION)
            # after `optimize`: an index whose rows were moved afterwards answered in 20 ms instead of 12
            table.create_index("vector", config=kinds.IvfSq(distance_type="dot", num_partitions=lists))

    def close(self) -> None:
        self._opened = None

    def _create_table(self, about: About) -> None:
        with self._naming_failures("name another folder"):
            self._connect().create_table(_TABLE, schema=_schema(about.provenance.dimension))

    def _connect(self) -> Any:
        # another process may write: every search sees the newest version
        return require("lancedb", extra="stores").connect(
            self._where.address, read_consistency_interval=timedelta(0), storage_options=self._where.options()
        )

    def _table(self) -> Any:
        if self._opened is None:
            with self._naming_failures("make the store again"):
                self._opened = self._connect().open_table(_TABLE)
        return self._opened

    @contextmanager
    def _naming_failures(self, next_step: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError, RuntimeError) as error:
            what = str(error).splitlines()[0][:200]
            raise ArtefactError(f"{self.place!r} cannot be opened ({what}); {next_step}") from None


def _schema(dimension: int) -> Any:
    arrow = require("pyarrow", extra="stores")
    numbers = arrow.list_(arrow.int64())
    return arrow.schema(
        [
            arrow.field("key", arrow.int64()),
            arrow.field("print", arrow.int64()),
            arrow.field("id", arrow.string()),
            arrow.field("year", arrow.int16()),
            arrow.field("has_abstract", arrow.int8()),
            arrow.field("stub", arrow.int8()),
            arrow.field("venue_keys", numbers),
            arrow.field("field_keys", numbers),
            arrow.field("vector", arrow.list_(arrow.float32(), dimension)),
        ]
    )


def _as_arrow(papers: Columns, schema: Any) -> Any:
    arrow = require("pyarrow", extra="stores")
    vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(papers.vectors.reshape(-1)), papers.vectors.shape[1])
    plain = (papers.keys, papers.prints, papers.ids, papers.years, papers.has_abstract, papers.stub)
    lists = (papers.venue_keys, papers.field_keys)
    columns = [arrow.array(column, field.type) for column, field in zip((*plain, *lists), schema, strict=False)]
    return arrow.Table.from_arrays([*columns, vectors], schema=schema)
