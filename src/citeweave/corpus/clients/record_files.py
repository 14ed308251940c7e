"""Raw records on their way into JSONL files that `import_papers` reads, one record a line.

    written = write_records(OpenAlex(client).search("citation intent", most=500), Path("fetched/search.jsonl"))
    written.count, written.stopped      500, ""

A file appears whole. A fetch that the service stops keeps what came before; `stopped` then says why and when to go on.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from citeweave.corpus.clients.http import StoppedError
from citeweave.files import new_file
from citeweave.progress import Advance

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Written:
    """What a fetch brought."""

    count: int
    stopped: str
    """Why the service gave no more, empty where it gave all."""


def write_records(records: Iterable[dict[str, Any]], path: Path, advance: Advance = lambda amount: None) -> Written:
    """Write records to a file; no file is left where none came."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count, stopped = 0, ""
    with new_file(path) as file:
        try:
            for record in records:
                # lone surrogates of strangers become question marks: no reader would take the line with them
                file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
                count += 1
                advance(1)
        except StoppedError as error:
            stopped = str(error)
    if not count:
        path.unlink()
    return Written(count, stopped)


def each_once(records: Iterable[_Item], name_of: Callable[[_Item], str]) -> Iterator[_Item]:
    """Records without those whose name came before; an empty name is no other's.

    >>> list(each_once(["ab", "ac", "", "b", ""], lambda text: text[:1]))
    ['ab', '', 'b', '']
    """
    seen = set[str]()
    for record in records:
        name = name_of(record)
        if name not in seen:
            seen.update([name] if name else [])
            yield record


def batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Items in lists of a size, the last one shorter; no more is taken than the next list needs.

    >>> list(batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    source = iter(items)
    while batch := list(itertools.islice(source, size)):
        yield batch
