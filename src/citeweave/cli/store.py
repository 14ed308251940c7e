"""citeweave store"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from citeweave.cli.options import Debug, Json, Quiet, print_json, reporter_of, table
from citeweave.errors import UserError

_Index = Annotated[Path, typer.Argument(help="Folder of an index.", show_default=False)]
_Lance = Annotated[
    str | None, typer.Option("--lance", help="Folder of LanceDB, or s3://bucket/name.", show_default=False)
]
_Milvus = Annotated[
    str | None,
    typer.Option(
        "--milvus",
        help="File of milvus-lite, such as papers.db, or http(s)://host:port of a server, whose token is read from the "
        "environment variable CITEWEAVE_MILVUS_TOKEN.",
        show_default=False,
    ),
]
_Collection = Annotated[str, typer.Option("--collection", help="With --milvus: name of the collection.")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Also where another index filled the store.")]


def store(
    index: _Index,
    lance: _Lance = None,
    milvus: _Milvus = None,
    collection: _Collection = "papers",
    overwrite: _Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Copy the vectors of an index into LanceDB or Milvus, or bring such a copy up to date; then `search --store`."""
    from citeweave.search.index import Index
    from citeweave.search.stores.opening import open_store
    from citeweave.search.stores.syncing import provenance_for_store, sync_store

    if (lance is None) == (milvus is None):
        raise UserError("give either --lance FOLDER or --milvus ADDRESS")
    name = f"lance:{lance}" if milvus is None else f"milvus:{milvus}#{collection}"
    opened, reporter = Index.open(index), reporter_of(quiet or json)
    with open_store(name, provenance_for_store(opened)) as made:
        done = sync_store(opened, made, overwrite=overwrite, reporter=reporter)
        if done.added or done.updated or done.deleted:
            made.compact()
        facts = {"index": str(index), "store": made.place, "papers": made.count(), **done.as_json()}
    if json:
        print_json(facts)
    elif not quiet:
        rows = [(name, facts[name]) for name in ("papers", "added", "updated", "deleted", "unchanged")]
        print(f"{facts['store']}\n{table(rows)}")
