"""Databases of vector stores: LanceDB, a folder here or on object storage, and Milvus, a file or a server.

    open_store("lance:papers.lance", provenance)         created if missing; another model is refused
    open_store("lance:s3://bucket/papers.lance")         on object storage
    open_store("milvus:papers.db", provenance)           a file of milvus-lite, in this process
    open_store("milvus:https://host:19530#mine")         the collection `mine` of a server; its token in CITEWEAVE_MILVUS_TOKEN

LanceDB: `about.json` holds what the store records about itself, `papers.lance/` is the table. Vectors are float32, compared
by the inner product, as they have length 1. Up to APPROXIMATE_FROM papers every search compares all; beyond, `compact`
builds an index, whose candidates are compared again by their full vectors. `merge_insert` of existing rows writes them
anew, so the folder grows until `compact`, and old versions stay an hour for readers that still use them. Two processes
that write at once are ordered by LanceDB's commits, but `compact` may then fail and must be run again. On object storage
LanceDB reads and writes itself, nothing is downloaded completely; its commits need a storage that can refuse to overwrite
an object, as Amazon's does.

Milvus: the papers are one collection, what the store records about itself is a row of a second one, `<name>_about`. From
APPROXIMATE_FROM papers on `compact` makes an IVF_FLAT index: probing all its lists is exact, probing some is approximate,
so that one index serves both; HNSW, which is faster, cannot be made exact. How many lists are enough was measured with
milvus-lite, not with a server.

Limits and traps of milvus-lite 3: one process per file, which it holds until `close`, and two stores on one file in one
process are closed together; every search walks over all keys in Python, so that it takes some 2 microseconds per paper
whatever the index; `nlist` is always 128; compaction happens by itself when it flushes; no float16 vectors; a collection
must be loaded again whenever it is opened. Of a server: at most 16,384 papers per search. The token is never printed.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import ArtifactError, UserError, choose, require
from citeweave.core.files import write_json
from citeweave.remote import object_storage as storage
from citeweave.search.store import Dialect, ScoredIds, StoreInfo, VectorStore
from citeweave.search.store_columns import COLUMNS, MAX_NAME_BYTES, StoreKeys
from citeweave.vectors.vectors import Provenance

APPROXIMATE_FROM = 20_000
"""Papers from which on a vector index pays off: below, comparing all takes LanceDB some 20 ms."""

_DELETE_BATCH = 5000


def open_store(name: str, provenance: Provenance | None = None) -> VectorStore:
    """Open the store of this name; created if it is missing and `provenance` says whose vectors it will hold."""
    kind, colon, where = name.partition(":")
    if not (colon and where):
        raise UserError(f"--store is {name!r}; it must be lance:FOLDER or milvus:ADDRESS, such as lance:papers.lance")
    choose(kind, ("lance", "milvus"), "the kind of --store")
    if kind == "lance":
        return LanceStore(where).open(provenance)
    address, _, collection = where.partition("#")
    return MilvusStore(address, collection or "papers").open(provenance)


# --- LanceDB ---------------------------------------------------------------------------------------------

_TABLE, _INFO = "papers", "about.json"
_PARTITION = 400
"""Approximate number of papers per partition of the vector index."""

_MIN_PROBES, _PROBED_PART, _REFINE = 32, 8, 4
"""Partitions probed, at least so many and at least one in 8; candidates per wanted paper that are compared by their full
vectors. With 100,000 papers of MiniLM, 16 of 256 partitions found 0.974 of the true ten, 32 of them 0.989; more
candidates found no more."""

_OLD_VERSIONS_KEPT_FOR = timedelta(hours=1)


class LanceStore(VectorStore):
    """A vector store in a LanceDB folder, here or on object storage, for which LanceDB reads credentials itself."""

    dialect = Dialect("({})", "array_has_any")

    def __init__(self, folder: str | Path) -> None:
        self._bucket = storage.Address.parse(folder) if storage.is_address(folder) else None
        if self._bucket is None and "://" in str(folder):
            raise UserError(f"--lance is {str(folder)[:200]!r}; give a folder, s3://bucket/name or gs://bucket/name")
        self._folder = Path(folder)
        self.place = f"lance:{self._bucket or self._folder}"
        self._opened: Any = None

    def read_info(self) -> StoreInfo | None:
        """Read what the LanceDB store records about itself; None where the folder is empty or missing."""
        data = self._read_file()
        if data is None and self._is_empty():
            return None
        try:
            payload = json.loads(data or b"")
        except (ValueError, RecursionError):
            raise ArtifactError(
                f"{self.place} is not a store of citeweave; name another folder, or an empty one"
            ) from None
        return StoreInfo.from_json(payload, self.place)

    def _read_file(self) -> bytes | None:
        try:
            return (
                storage.read_small_object(self._bucket / _INFO) if self._bucket else (self._folder / _INFO).read_bytes()
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ArtifactError(f"{self.place} cannot be read ({error.strerror}); check its permissions") from None

    def _is_empty(self) -> bool:
        if self._bucket:
            return not storage.list_objects(self._bucket)
        return not self._folder.exists() or (self._folder.is_dir() and not any(self._folder.iterdir()))

    def create(self) -> None:
        require("lancedb", extra="stores")
        try:
            if not self._bucket:
                self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.place} cannot be written ({error.strerror}); name another folder") from None
        self.write_info(self.info)
        self._table("name another folder")

    def write_info(self, info: StoreInfo) -> None:
        if self._bucket:
            text = json.dumps(info.as_json(), indent=1, ensure_ascii=False)
            storage.write_small_object(self._bucket / _INFO, text.encode())
        else:
            write_json(self._folder / _INFO, info.as_json())

    def upsert(self, papers: dict[str, Any]) -> None:
        arrow, table = require("pyarrow", extra="stores"), self._table()
        vectors = papers["vector"]
        fixed = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.reshape(-1)), vectors.shape[1])
        rows = arrow.table({**papers, "vector": fixed}, schema=table.schema)
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

    def listing(self) -> tuple[StoreKeys, StoreKeys]:
        rows = self._table().search().select(["key", "print"]).limit(None).to_arrow()
        return rows["key"].to_numpy(), rows["print"].to_numpy()

    def nearest(self, queries: NDArray[np.float32], count: int, expression: str, *, exact: bool) -> ScoredIds:
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

    def _table(self, next_step: str = "create the store again") -> Any:
        """Open the table of papers, or create it; an error of LanceDB names the store and the next step."""
        if self._opened is None:
            lancedb, schema = require("lancedb", extra="stores"), _schema(self.info.provenance.dimension)
            address = str(self._bucket or self._folder.absolute())  # ~ and data: would mean something else to LanceDB
            # another process may write: every search sees the newest version
            fresh: dict[str, Any] = {"read_consistency_interval": timedelta(0), "storage_options": self._options()}
            try:
                self._opened = lancedb.connect(address, **fresh).create_table(_TABLE, schema=schema, exist_ok=True)
            except (ValueError, OSError, RuntimeError) as error:
                what = str(error).splitlines()[0][:200]
                raise ArtifactError(f"{self.place!r} cannot be opened ({what}); {next_step}") from None
        return self._opened

    def _options(self) -> dict[str, str] | None:
        """Return the options of object storage that LanceDB does not read from the environment."""
        if self._bucket is None or self._bucket.scheme != "s3":
            return None
        options = {"connect_timeout": "5s"}
        if storage.endpoint():
            # without these, LanceDB takes any storage for Amazon's
            options |= {"aws_endpoint": storage.endpoint(), "aws_region": storage.region() or "us-east-1"}
            options |= {"allow_http": "true"} if storage.endpoint().startswith("http://") else {}
        elif storage.region():
            options["aws_region"] = storage.region()
        return options | ({"aws_skip_signature": "true"} if storage.is_anonymous() else {})


def _schema(dimension: int) -> Any:
    """Return the Arrow schema of LanceDB's table of papers."""
    arrow = require("pyarrow", extra="stores")
    lists = {"numbers": arrow.list_(arrow.int64()), "strings": arrow.list_(arrow.string())}
    kinds = {"string": arrow.string(), **lists}
    fields = [(name, kinds.get(kind) or arrow.type_for_alias(kind)) for name, kind in COLUMNS.items()]
    return arrow.schema([*fields, ("vector", arrow.list_(arrow.float32(), dimension))])


# --- Milvus ----------------------------------------------------------------------------------------------

TOKEN = "CITEWEAVE_MILVUS_TOKEN"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_LISTS, _PROBES = 128, 32
_LIST_BLOCK = 16_384
_MAX_NAMES, _MAX_TEXT = 4096, 65_535


class MilvusStore(VectorStore):
    """A vector store in a Milvus collection, in a file or on a server."""

    dialect = Dialect("[{}]", "array_contains_any")

    def __init__(self, address: str, collection: str = "papers") -> None:
        if not _NAME.fullmatch(collection):
            raise UserError(f"--collection is {collection[:80]!r}; give letters, digits and _, a letter first")
        self.is_file = not address.startswith(("http://", "https://"))
        # pymilvus takes whatever ends in .db for a file
        if address.endswith(".db") != self.is_file or (self.is_file and "://" in address):
            raise UserError(
                f"--milvus is {address!r}; give a file that ends in .db, or http(s)://host:port of a server"
            )
        if "@" in address:
            raise UserError(f"--milvus must not hold a password; set the environment variable {TOKEN} instead")
        self._address, self._name, self._info_name = address, collection, f"{collection}_about"
        self.place = f"milvus:{address}" + ("" if collection == "papers" else f" ({collection})")
        self._opened: Any = None

    def read_info(self) -> StoreInfo | None:
        """Read what the Milvus store records about itself; None where there is no collection yet."""
        if self.is_file and not os.path.exists(self._address):  # noqa: PTH110 - Path raises for long names
            return None
        with self._client() as client:
            if not client.has_collection(self._info_name):
                if client.has_collection(self._name):
                    raise ArtifactError(f"{self.place} is not a store of citeweave; name another with --collection")
                return None
            client.load_collection(self._info_name)
            rows = client.query(self._info_name, filter="key == 0", output_fields=["text"], consistency_level="Strong")
            if not rows:
                return None
            try:
                info = StoreInfo.from_json(json.loads(rows[0]["text"]), self.place)
            except (ValueError, RecursionError):
                raise ArtifactError(f"{self.place} does not say what made its vectors; create it again") from None
            if not client.has_collection(self._name):
                # a crash came between the two
                self._create_collection(client, self._name, COLUMNS, info.provenance.dimension)
            client.load_collection(self._name)
        return info

    def create(self) -> None:
        if self.is_file:
            Path(self._address).absolute().parent.mkdir(parents=True, exist_ok=True)
        with self._client() as client:
            if not client.has_collection(self._info_name):
                # no collection without a vector
                self._create_collection(client, self._info_name, {"key": "int64", "text": "string"}, 2)
            self.write_info(self.info)
            self._create_collection(client, self._name, COLUMNS, self.info.provenance.dimension)

    def write_info(self, info: StoreInfo) -> None:
        text = json.dumps(info.as_json())
        with self._client() as client:
            client.upsert(self._info_name, [{"key": 0, "text": text, "vector": [0.0, 0.0]}])
            client.flush(self._info_name)

    def upsert(self, papers: dict[str, Any]) -> None:
        columns = {**papers, "vector": list(papers["vector"])}
        plain = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns.values()]
        with self._client() as client:
            client.upsert(self._name, [dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True)])

    def remove(self, keys: StoreKeys) -> None:
        with self._client() as client:
            for start in range(0, len(keys), _DELETE_BATCH):
                client.delete(self._name, ids=keys[start : start + _DELETE_BATCH].tolist())

    def count(self) -> int:
        with self._client() as client:
            rows = client.query(self._name, filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(rows[0]["count(*)"])

    def listing(self) -> tuple[StoreKeys, StoreKeys]:
        """Return keys and fingerprints, read by ranges of keys, which are spread evenly: milvus-lite has no paging."""
        edges = np.linspace(0, 2**63 - 1, max(2, 1 + self.count() // (_LIST_BLOCK // 4)), dtype=np.uint64).tolist()
        ranges, listed = list(pairwise([*edges[:-1], 2**63])), list[tuple[int, int]]()
        with self._client() as client:
            while ranges:
                first, end = ranges.pop()
                where = f"key >= {first} and key <= {end - 1}"
                rows = client.query(self._name, where, ["key", "print"], limit=_LIST_BLOCK, consistency_level="Strong")
                if len(rows) == _LIST_BLOCK:  # there may be more
                    middle = (first + end) // 2
                    ranges += [(first, middle), (middle, end)]
                else:
                    listed += [(row["key"], row["print"]) for row in rows]
        both = np.array(listed, np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def nearest(self, queries: NDArray[np.float32], count: int, expression: str, *, exact: bool) -> ScoredIds:
        with self._client() as client:
            results = client.search(
                self._name,
                data=list(queries),
                anns_field="vector",
                limit=count,
                filter=expression,
                output_fields=["id"],
                search_params={"metric_type": "IP", "params": {"nprobe": _LISTS if exact else _PROBES}},
                consistency_level="Strong",
            )
        return [[(float(hit["distance"]), str(hit["entity"]["id"])) for hit in hits] for hits in results]

    def compact(self) -> None:
        papers = self.count()
        with self._client() as client:
            client.flush(self._name)
            if papers >= APPROXIMATE_FROM and client.describe_index(self._name, "vector")["index_type"] == "FLAT":
                client.release_collection(self._name)
                client.drop_index(self._name, "vector")
                # exact where all its lists are probed
                client.create_index(self._name, _vector_index(client, "IVF_FLAT", params={"nlist": _LISTS}))
                client.load_collection(self._name)
            client.compact(self._name)

    def close(self) -> None:
        if self._opened is None:
            return
        self._opened.close()
        self._opened = None
        if self.is_file:
            manager = require("milvus_lite.server_manager", extra="stores").server_manager_instance
            manager.release_server(self._address)  # else this process holds the file until it ends

    def _create_collection(self, client: Any, name: str, columns: dict[str, str], dimension: int) -> None:
        """Create a collection with these columns, of which `key` is the primary key, and a vector."""
        kinds = require("pymilvus", extra="stores").DataType
        bounds = {
            "string": {"datatype": kinds.VARCHAR, "max_length": _MAX_TEXT},
            "numbers": {"datatype": kinds.ARRAY, "element_type": kinds.INT64, "max_capacity": _MAX_NAMES},
        }
        bounds["strings"] = {**bounds["numbers"], "element_type": kinds.VARCHAR, "max_length": MAX_NAME_BYTES}
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        for column, kind in columns.items():
            bounded = bounds.get(kind) or {"datatype": kinds[kind.upper()]}
            schema.add_field(column, is_primary=column == "key", **bounded)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dimension)
        client.create_collection(name, schema=schema, index_params=_vector_index(client, "FLAT"))

    @contextmanager
    def _client(self) -> Iterator[Any]:
        """Connect to Milvus and yield the client; its errors become one line that names the store."""
        milvus = require("pymilvus", extra="stores")
        if self.is_file:
            require("milvus_lite", extra="stores")
        for name in ("pymilvus", "grpc._server"):
            # they log tracebacks of errors that they also raise, and of calls that milvus-lite does not have
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            if self._opened is None:
                token = "" if self.is_file else os.environ.get(TOKEN, "")
                self._opened = milvus.MilvusClient(self._address, token=token)
            yield self._opened
        except milvus.MilvusException as error:
            what = " ".join(str(error.message).split())[:200]
            if secret := os.environ.get(TOKEN):
                what = what.replace(secret, "***")
            hint = "is it open in another process?" if self.is_file else f"check the address and {TOKEN}"
            raise UserError(f"{self.place} does not respond ({what}); {hint}") from None


def _vector_index(client: Any, kind: str, **more: Any) -> Any:
    """Return the parameters of Milvus's index of the vectors: FLAT compares every one."""
    params = client.prepare_index_params()
    params.add_index(field_name="vector", index_type=kind, metric_type="IP", **more)
    return params
