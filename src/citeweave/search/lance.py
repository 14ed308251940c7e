"""LanceDB as the back end of a vector store: a folder on this machine or on object storage, no server.

    papers.lance/about.json          what the store records about itself
    papers.lance/papers.lance/       the table

Vectors are float32, compared by the inner product, as they have length 1. Up to APPROXIMATE_FROM papers every search
compares all; beyond, `compact` builds an index, whose candidates are compared again by their full vectors.

Limits and traps: `merge_insert` of existing rows writes them anew, so the folder grows until `compact`, and old versions
stay an hour for readers that still use them. A list of ids in a filter costs some 30 microseconds per id. Two processes
that write at once are ordered by LanceDB's commits, but `compact` may then fail and must be run again.

On object storage (`s3://bucket/papers.lance`) LanceDB reads and writes there itself, nothing is downloaded completely.
Its commits need a storage that can refuse to overwrite an object, as Amazon's does.
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

from citeweave.core.errors import ArtifactError, UserError, require
from citeweave.core.files import write_json
from citeweave.remote.object_storage import (
    Address,
    endpoint,
    is_address,
    is_anonymous,
    list_objects,
    read_small_object,
    region,
    write_small_object,
)
from citeweave.search.store_protocol import COLUMNS, Dialect, StoredPapers, StoreInfo, StoreKeys, VectorStore


class LocalFolder:
    """A LanceDB folder on this machine."""

    def __init__(self, folder: str | Path) -> None:
        if "://" in str(folder):
            raise UserError(f"--lance is {str(folder)[:200]!r}; give a folder, s3://bucket/name or gs://bucket/name")
        self._folder = Path(folder)

    def __str__(self) -> str:
        return str(self._folder)

    @property
    def address(self) -> str:
        """The absolute path: a relative name that begins with `~` or `data:` would mean something else to LanceDB."""
        return str(self._folder.absolute())

    def is_empty(self) -> bool:
        return not self._folder.exists() or (self._folder.is_dir() and not any(self._folder.iterdir()))

    def has(self, name: str) -> bool:
        return (self._folder / name).is_dir()

    def make(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"lance:{self} cannot be written ({error.strerror}); name another folder") from None

    def read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ArtifactError(f"lance:{self} cannot be read ({error.strerror}); check its permissions") from None

    def write(self, name: str, payload: dict[str, Any]) -> None:
        write_json(self._folder / name, payload)

    def options(self) -> dict[str, str] | None:
        return None


class BucketFolder:
    """A LanceDB folder on object storage; LanceDB reads credentials from the environment itself."""

    def __init__(self, address: str | Path) -> None:
        self._address = Address.parse(address)

    def __str__(self) -> str:
        return str(self._address)

    @property
    def address(self) -> str:
        return str(self._address)

    def is_empty(self) -> bool:
        return not list_objects(self._address)

    def has(self, name: str) -> bool:
        return bool(list_objects(self._address / name))

    def make(self) -> None:
        pass  # object storage has no folders

    def read(self, name: str) -> bytes | None:
        return read_small_object(self._address / name)

    def write(self, name: str, payload: dict[str, Any]) -> None:
        write_small_object(self._address / name, json.dumps(payload, indent=1, ensure_ascii=False).encode())

    def options(self) -> dict[str, str] | None:
        if self._address.scheme != "s3":
            return None
        options = {"connect_timeout": "5s"}
        if endpoint():
            # without these, LanceDB takes any storage for Amazon's
            options |= {"aws_endpoint": endpoint(), "aws_region": region() or "us-east-1"}
            options |= {"allow_http": "true"} if endpoint().startswith("http://") else {}
        elif region():
            options["aws_region"] = region()
        return options | ({"aws_skip_signature": "true"} if is_anonymous() else {})


APPROXIMATE_FROM = 20_000
"""Papers from which on a vector index pays off: below, comparing all takes some 20 ms."""

_TABLE, _INFO = "papers", "about.json"
_PARTITION = 400
"""Approximate number of papers per partition of the vector index."""

_MIN_PROBES, _PROBED_PART, _REFINE = 32, 8, 4
"""Partitions probed, at least so many and at least one in 8; candidates per wanted paper that are compared by their full
vectors. With 100,000 papers of MiniLM, 16 of 256 partitions found 0.974 of the true ten, 32 of them 0.989; more
candidates found no more."""

_LIST_BLOCK, _DELETE_BATCH = 65_536, 5000
_OLD_VERSIONS_KEPT_FOR = timedelta(hours=1)


class LanceStore(VectorStore):
    """A vector store in a LanceDB folder, here or on object storage."""

    dialect = Dialect("({})", "array_has_any")

    def __init__(self, folder: str | Path) -> None:
        self._where: LocalFolder | BucketFolder = BucketFolder(folder) if is_address(folder) else LocalFolder(folder)
        self.place = f"lance:{self._where}"
        self._opened: Any = None

    def read_info(self) -> StoreInfo | None:
        """Read what the LanceDB store records about itself; None where the folder is empty or missing."""
        data = self._where.read(_INFO)
        if data is None and self._where.is_empty():
            return None
        try:
            payload = json.loads(data or b"")
        except (ValueError, RecursionError):
            raise ArtifactError(
                f"{self.place} is not a store of citeweave; name another folder, or an empty one"
            ) from None
        info = StoreInfo.from_json(payload, self.place)
        if not self._where.has(f"{_TABLE}.lance"):
            self._create_table(info)  # a crash came between the two
        return info

    def create(self, info: StoreInfo) -> None:
        require("lancedb", extra="stores")
        self._where.make()
        self.write_info(info)
        self._create_table(info)

    def write_info(self, info: StoreInfo) -> None:
        self._where.write(_INFO, info.as_json())

    def upsert(self, papers: StoredPapers) -> None:
        table = self._table()
        rows = _as_arrow(papers, table.schema)
        if table.count_rows() == 0:
            table.add(rows)
        else:
            table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def remove(self, keys: StoreKeys) -> None:
        for start in range(0, len(keys), _DELETE_BATCH):
            part = keys[start : start + _DELETE_BATCH].tolist()
            self._table().delete(f"key in ({','.join(map(str, part))})")

    def count(self) -> int:
        return int(self._table().count_rows())

    def read_keys(self) -> Iterator[tuple[StoreKeys, StoreKeys]]:
        for batch in self._table().search().select(["key", "print"]).limit(None).to_batches(_LIST_BLOCK):
            keys, prints = (batch.column(name).to_numpy(zero_copy_only=False) for name in ("key", "print"))
            yield keys, prints

    def nearest(
        self, queries: NDArray[np.float32], count: int, expression: str, *, exact: bool
    ) -> list[list[tuple[float, str]]]:
        table = self._table()
        probes = max(_MIN_PROBES, table.count_rows() // (_PARTITION * _PROBED_PART))
        matches = []
        for query in queries:
            search = table.search(query, vector_column_name="vector").distance_type("dot").limit(count)
            search = search.bypass_vector_index() if exact else search.nprobes(probes).refine_factor(_REFINE)
            lines = (search.where(expression) if expression else search).select(["id", "_distance"]).to_arrow()
            scores = 1.0 - lines["_distance"].to_numpy()  # (matches,); LanceDB's distance is 1 - inner product
            matches.append(list(zip(scores.tolist(), lines["id"].to_pylist(), strict=True)))
        return matches

    def compact(self) -> None:
        table = self._table()
        table.optimize(cleanup_older_than=_OLD_VERSIONS_KEPT_FOR)
        papers = table.count_rows()
        if papers >= APPROXIMATE_FROM and not any("vector" in index.columns for index in table.list_indices()):
            kinds = require("lancedb.index", extra="stores")
            partitions = max(1, papers // _PARTITION)
            # after `optimize`: an index whose rows were moved afterwards took 20 ms instead of 12
            table.create_index("vector", config=kinds.IvfSq(distance_type="dot", num_partitions=partitions))

    def close(self) -> None:
        self._opened = None

    def _create_table(self, info: StoreInfo) -> None:
        with self._naming_failures("name another folder"):
            self._connect().create_table(_TABLE, schema=_schema(info.provenance.dimension))

    def _connect(self) -> Any:
        # another process may write: every search sees the newest version
        return require("lancedb", extra="stores").connect(
            self._where.address, read_consistency_interval=timedelta(0), storage_options=self._where.options()
        )

    def _table(self) -> Any:
        if self._opened is None:
            with self._naming_failures("create the store again"):
                self._opened = self._connect().open_table(_TABLE)
        return self._opened

    @contextmanager
    def _naming_failures(self, next_step: str) -> Iterator[None]:
        """Turn an error of LanceDB into one that names the store and the next step."""
        try:
            yield
        except (ValueError, OSError, RuntimeError) as error:
            what = str(error).splitlines()[0][:200]
            raise ArtifactError(f"{self.place!r} cannot be opened ({what}); {next_step}") from None


def _schema(dimension: int) -> Any:
    """Return the Arrow schema of the table of papers."""
    arrow = require("pyarrow", extra="stores")
    numbers, vector = arrow.list_(arrow.int64()), arrow.list_(arrow.float32(), dimension)
    kinds = (
        arrow.int64(),
        arrow.int64(),
        arrow.string(),
        arrow.int16(),
        arrow.int8(),
        arrow.int8(),
        numbers,
        numbers,
        vector,
    )
    return arrow.schema(list(zip(COLUMNS, kinds, strict=True)))


def _as_arrow(papers: StoredPapers, schema: Any) -> Any:
    """Return papers as an Arrow table."""
    arrow = require("pyarrow", extra="stores")
    vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(papers.vectors.reshape(-1)), papers.vectors.shape[1])
    columns = [arrow.array(column, field.type) for column, field in zip(papers[:-1], schema, strict=False)]
    return arrow.Table.from_arrays([*columns, vectors], schema=schema)
