"""citeweave copy, citeweave cache"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from citeweave.cli.options import Debug, Json, Quiet, print_json, reporter_of

_Source = Annotated[
    str,
    typer.Argument(help="Folder or file, or an address such as s3://bucket/corpus.", show_default=False),
]
_Target = Annotated[str, typer.Argument(help="Where it goes: an address, or a place here.", show_default=False)]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there, once the new one is whole.")]
_Clear = Annotated[bool, typer.Option("--clear", help="Remove all of it, except what is in use.")]


def copy(
    source: _Source,
    target: _Target,
    overwrite: _Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Copy an artefact to or from object storage; only what is missing there travels, and a broken copy goes on."""
    from citeweave import cloud

    done = cloud.copy(source, target, overwrite=overwrite, reporter=reporter_of(quiet or json))
    if json:
        print_json({"target": done.target, "files": done.files, "bytes": done.bytes, "sent": done.sent})
    elif not quiet:
        print(f"{done.target}: {done.files:,} files, {done.bytes:,} bytes; {done.sent:,} travelled")


def cache(clear: _Clear = False, json: Json = False, quiet: Quiet = False, debug: Debug = False) -> None:
    """Show what was fetched from object storage and how much room it takes, or remove it."""
    from citeweave.cloud import slots
    from citeweave.files import cache_folder

    kept = slots.kept_in()
    removed = [slot for slot in kept if clear and slots.clear(slot)]
    if json:
        told = [{**slot._asdict(), "folder": str(slot.folder), "removed": slot in removed} for slot in kept]
        print_json({"cache": str(cache_folder() / "cloud"), "kept": told})
    elif not quiet:
        for slot in kept:
            day = time.strftime("%Y-%m-%d", time.gmtime(slot.used))
            what = "removed" if slot in removed else "in use, kept" if clear else f"used {day}"
            print(f"{slot.address}: {slot.bytes:,} bytes, {slot.versions} versions, {what}")
        left = sum(slot.bytes for slot in kept if slot not in removed)
        print(f"{cache_folder() / 'cloud'}: {left:,} bytes")
