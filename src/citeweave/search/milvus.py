"""Milvus as the back end of a vector store: a file of milvus-lite, or the address of a server.

    MilvusStore("papers.db")                                 milvus-lite, in this process
    MilvusStore("https://host:19530", "papers")              a server; its token in CITEWEAVE_MILVUS_TOKEN

The papers are one collection; what the store records about itself is a row of a second one, `<name>_about`. From
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
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import ArtifactError, UserError, require
from citeweave.search.store_protocol import COLUMNS, Dialect, StoredPapers, StoreInfo, StoreKeys, VectorStore

TOKEN = "CITEWEAVE_MILVUS_TOKEN"
APPROXIMATE_FROM = 20_000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_LISTS, _PROBES = 128, 32
_LIST_BLOCK, _DELETE_BATCH = 16_384, 5000
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
        self._address, self._name = address, collection
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
                self._create_papers(client, info.provenance.dimension)  # a crash came between the two
            client.load_collection(self._name)
        return info

    def create(self, info: StoreInfo) -> None:
        if self.is_file:
            Path(self._address).absolute().parent.mkdir(parents=True, exist_ok=True)
        with self._client() as client:
            if not client.has_collection(self._info_name):
                kinds = require("pymilvus", extra="stores").DataType
                schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
                schema.add_field("key", kinds.INT64, is_primary=True)
                schema.add_field("text", kinds.VARCHAR, max_length=_MAX_TEXT)
                schema.add_field("vector", kinds.FLOAT_VECTOR, dim=2)  # no collection without one
                client.create_collection(self._info_name, schema=schema, index_params=_flat_index(client))
            self.write_info(info)
            self._create_papers(client, info.provenance.dimension)

    def write_info(self, info: StoreInfo) -> None:
        text = json.dumps(info.as_json())
        with self._client() as client:
            client.upsert(self._info_name, [{"key": 0, "text": text, "vector": [0.0, 0.0]}])
            client.flush(self._info_name)

    def upsert(self, papers: StoredPapers) -> None:
        plain = [column.tolist() if isinstance(column, np.ndarray) else column for column in papers[:-1]]
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*plain, papers.vectors, strict=True)]
        with self._client() as client:
            client.upsert(self._name, rows)

    def remove(self, keys: StoreKeys) -> None:
        with self._client() as client:
            for start in range(0, len(keys), _DELETE_BATCH):
                client.delete(self._name, ids=keys[start : start + _DELETE_BATCH].tolist())

    def count(self) -> int:
        with self._client() as client:
            rows = client.query(self._name, filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(rows[0]["count(*)"])

    def read_keys(self) -> Iterator[tuple[StoreKeys, StoreKeys]]:
        """Yield keys and fingerprints by ranges of keys, which are spread evenly: milvus-lite has no paging."""
        edges = np.linspace(0, 2**63 - 1, max(2, 1 + self.count() // (_LIST_BLOCK // 4)), dtype=np.uint64).tolist()
        ranges = list(pairwise([*edges[:-1], 2**63]))
        with self._client() as client:
            while ranges:
                first, end = ranges.pop()
                where, columns = f"key >= {first} and key <= {end - 1}", ["key", "print"]
                rows = client.query(
                    self._name, filter=where, output_fields=columns, limit=_LIST_BLOCK, consistency_level="Strong"
                )
                if len(rows) == _LIST_BLOCK:  # there may be more
                    middle = (first + end) // 2
                    ranges += [(first, middle), (middle, end)]
                else:
                    keys, prints = (np.array([row[name] for row in rows], np.int64) for name in columns)
                    yield keys, prints

    def nearest(
        self, queries: NDArray[np.float32], count: int, expression: str, *, exact: bool
    ) -> list[list[tuple[float, str]]]:
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
                client.create_index(self._name, _partitioned_index(client))
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

    @property
    def _info_name(self) -> str:
        return f"{self._name}_about"

    def _create_papers(self, client: Any, dimension: int) -> None:
        """Create the collection of papers."""
        kinds = require("pymilvus", extra="stores").DataType
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", kinds.INT64, is_primary=True)
        schema.add_field("print", kinds.INT64)
        schema.add_field("id", kinds.VARCHAR, max_length=_MAX_TEXT)
        schema.add_field("year", kinds.INT16)
        for name in ("has_abstract", "stub"):
            schema.add_field(name, kinds.INT8)
        for name in ("venue_keys", "field_keys"):
            schema.add_field(name, kinds.ARRAY, element_type=kinds.INT64, max_capacity=_MAX_NAMES)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dimension)
        client.create_collection(self._name, schema=schema, index_params=_flat_index(client))

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


def _flat_index(client: Any) -> Any:
    """Return the parameters of an index that compares every vector."""
    params = client.prepare_index_params()
    params.add_index(field_name="vector", index_type="FLAT", metric_type="IP")
    return params


def _partitioned_index(client: Any) -> Any:
    """Return the parameters of an IVF_FLAT index, which is exact where all its lists are probed."""
    params = client.prepare_index_params()
    params.add_index(field_name="vector", index_type="IVF_FLAT", metric_type="IP", params={"nlist": _LISTS})
    return params
