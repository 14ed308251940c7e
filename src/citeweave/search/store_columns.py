"""Columns of vector stores: what a database holds of a paper, for citeweave's own searches and to be read without citeweave.

    key                            63 bits of the hash of the id: the primary key
    print                          fingerprint: hash of all that was stored of the paper, which reveals a change
    id                             the text
    year                           0 where unknown
    has_abstract, stub             0 or 1
    venue_keys, field_keys         hashes of the folded names
    title, abstract, venue, doi    texts, empty where unknown
    authors, fields, ids           lists of texts; `ids` are all ids of the paper, its own first
    vector                         float32, length 1 (or zeros)

Filters of citeweave use the integers only (`store.py`). The texts are for other programs; they are cut where Milvus takes
no more, at the boundary of a character: MAX_TEXT_BYTES of a text, MAX_NAME_BYTES of a name in a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.hash_keys import Keys
from citeweave.search.filters import fold_name
from citeweave.vectors.vectors import id_keys, unit_rows

COLUMNS = {
    "key": "int64",
    "print": "int64",
    "id": "string",
    "year": "int16",
    "has_abstract": "int8",
    "stub": "int8",
    "venue_keys": "numbers",
    "field_keys": "numbers",
    "title": "string",
    "abstract": "string",
    "authors": "strings",
    "venue": "string",
    "fields": "strings",
    "doi": "string",
    "ids": "strings",
}
"""Columns of a table of papers besides the vector, and their types; numbers and strings are lists."""

MAX_TEXT_BYTES, MAX_NAME_BYTES = 60_000, 4000
"""Bytes of a text, and of a name in a list, in UTF-8; Milvus takes 65,535 of a text. Longer ones are cut."""

_MAX_ID_BYTES, _MAX_NAMES = 60_000, 4000

StoreKeys = NDArray[np.int64]


def as_store_keys(keys: Keys) -> StoreKeys:
    """Drop the lowest bit of hashes: databases have signed integers only, and not all can read the smallest of them."""
    return (keys >> np.uint64(1)).astype(np.int64)


def store_keys(ids: Sequence[str]) -> StoreKeys:
    """Return the primary keys of ids in a store, (ids,).

    >>> store_keys(["doi:10.1/x"]).tolist() == store_keys(["doi:10.1/x"]).tolist(), int(store_keys(["a"])[0]) >= 0
    (True, True)
    """
    return as_store_keys(id_keys(list(ids)))


def name_keys(names: Sequence[str]) -> list[int]:
    """Return venues or fields as stores keep and filter them: hashes of the folded names.

    >>> name_keys([" neurips", "NeurIPS"]) == name_keys(["NeurIPS"])
    True
    """
    return sorted(set(store_keys([fold_name(name) for name in names]).tolist()))


def stored_columns(ids: Sequence[str], matrix: NDArray[Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of papers as a database writes them, by column; refuse ids and vectors that none takes."""
    texts = [_storable(id) for id in ids]
    keys = store_keys(texts)
    _, last = np.unique(keys[::-1], return_index=True)
    distinct = np.sort(len(keys) - 1 - last)
    vectors = np.ascontiguousarray(unit_rows(np.asarray(matrix[distinct], np.float64)), np.float32)
    stored_ids = [texts[row] for row in distinct.tolist()]
    for id, vector in zip(stored_ids, vectors, strict=True):
        if not np.isfinite(vector).all():
            raise UserError(
                f"the vector of {id[:80]!r} has numbers that are not finite; a store takes none of this batch"
            )
        if len(id.encode()) > _MAX_ID_BYTES:
            raise UserError(f"the id {id[:40]!r}… is longer than the {_MAX_ID_BYTES:,} bytes that a store takes")

    def numbers(name: str, dtype: type) -> NDArray[Any]:
        return np.asarray(known.get(name, np.zeros(len(ids))))[distinct].astype(dtype)

    def lists(name: str) -> list[list[str]]:
        column = known.get(name, [()] * len(ids))
        return [[*column[row]][:_MAX_NAMES] for row in distinct.tolist()]

    def cut_lists(column: list[list[str]]) -> list[list[str]]:
        return [[cut_bytes(_storable(text), MAX_NAME_BYTES) for text in texts] for texts in column]

    def cut_texts(column: Sequence[str]) -> list[str]:
        return [cut_bytes(_storable(text), MAX_TEXT_BYTES) for text in column]

    def read_texts(name: str) -> list[str]:
        column = known.get(name, [""] * len(ids))
        return cut_texts([column[row] for row in distinct.tolist()])

    all_ids = cut_lists([[own, *more] for own, more in zip(stored_ids, lists("other_ids"), strict=True)])

    return {
        "key": keys[distinct],
        "print": as_store_keys(numbers("prints", np.uint64)),
        "id": stored_ids,
        "year": numbers("years", np.int16),
        "has_abstract": numbers("has_abstract", np.int8),
        "stub": numbers("stub", np.int8),
        "venue_keys": [name_keys(names) for names in lists("venues")],
        "field_keys": [name_keys(names) for names in lists("fields")],
        "title": read_texts("titles"),
        "abstract": read_texts("abstracts"),
        "authors": cut_lists(lists("authors")),
        "venue": cut_texts(["; ".join(names) for names in lists("venues")]),
        "fields": cut_lists(lists("fields")),
        "doi": [next((id[4:] for id in ids if id.startswith("doi:")), "") for ids in all_ids],
        "ids": all_ids,
        "vector": vectors,
    }


def _storable(text: str) -> str:
    """Replace lone surrogates, as everywhere else: no database takes them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def cut_bytes(text: str, max_bytes: int) -> str:
    """Cut a text to so many bytes in UTF-8, at the boundary of a character.

    >>> cut_bytes("naïve", 3), cut_bytes("naïve", 4), cut_bytes("naïve", 9)
    ('na', 'naï', 'naïve')
    """
    data = text.encode()
    return text if len(data) <= max_bytes else data[:max_bytes].decode(errors="ignore")
