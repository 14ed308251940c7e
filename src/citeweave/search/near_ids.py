"""Ids that look like one that an index does not have; few are compared closely, as there may be millions."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from citeweave.search.index import Index

_NEAR, _LOOKED_AT = 3, 5000


def near_ids(index: Index, id: str) -> str:
    """The end of a message about an id that is not there."""
    some = min(4, max(1, len(id) // 2))
    head, tail = id[:some], id[-some:]
    alike: list[str] = []
    first = ""
    for segment in index.segments:
        for known, alive in zip(segment.ids, segment.alive.tolist(), strict=True):
            if not alive:
                continue
            first = first or known
            if known.startswith(head) or known.endswith(tail):
                alike.append(known)
                if len(alike) == _LOOKED_AT:
                    break
    near = difflib.get_close_matches(id[:200], alike, _NEAR)
    if near:
        return f"; did you mean {', '.join(map(repr, near))}?"
    return f" with ids such as {first!r}" if first else ""
