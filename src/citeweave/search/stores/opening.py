"""Stores by their names, as options give them.

open_store("lance:papers.lance")                     a folder of LanceDB
open_store("milvus:papers.db", provenance)           a file of milvus-lite, made where there is none
open_store("milvus:https://host:19530#mine")         the collection `mine` of a Milvus server
"""

from __future__ import annotations

from citeweave.errors import UserError, choose
from citeweave.search.stores.lance import LanceTable
from citeweave.search.stores.milvus import MilvusCollection
from citeweave.search.stores.protocol import BackEnd
from citeweave.search.stores.store import VectorStore
from citeweave.similarity.provenance import Provenance

KINDS = ("lance", "milvus")


def open_store(name: str, provenance: Provenance | None = None) -> VectorStore:
    """The store of this name; made where there is none and `provenance` says whose vectors it will hold."""
    return VectorStore.open(back_end(name), provenance)


def back_end(name: str) -> BackEnd:
    """
    >>> back_end("lance:papers.lance").place, back_end("milvus:papers.db#mine").place
    ('lance:papers.lance', 'milvus:papers.db (mine)')
    """
    kind, colon, where = name.partition(":")
    if not (colon and where):
        raise UserError(f"--store is {name!r}; it must be lance:FOLDER or milvus:ADDRESS, such as lance:papers.lance")
    choose(kind, KINDS, "the kind of --store")
    if kind == "lance":
        return LanceTable(where)
    address, _, collection = where.partition("#")
    return MilvusCollection(address, collection or "papers")
