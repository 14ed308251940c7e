"""Lists that a service gives page by page: every record once, and no page taken for another.

    all_records(ask, read_page, "*")     asks for "*", then for the cursor that the page names, and so on

A service may repeat a page, move records from one page to the next while it is asked, or name a cursor again. A page that
brings nothing new or leads back, though more was promised, is damaged and asked for again; where nothing was promised it ends
the list. Does not know what pages look like: see `openalex.py` and `semantic_scholar.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
Fits = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    records: list[tuple[str, Record]]
    """Each with its name; an empty name is no other's."""

    following: str
    """The cursor of the next page, empty where there is none."""

    promised: int | None
    """Records of the whole list, None where the service does not say."""


def all_records(
    ask: Callable[[str, Fits], Any], read_page: Callable[[Any], Page | None], cursor: str
) -> Iterator[Record]:
    """All records of a list, from the page of a cursor on; `ask` gives an answer that fits."""
    followed, met = set[str](), set[str]()
    while cursor not in followed:
        followed.add(cursor)
        answer = ask(cursor, lambda value: _is_sound(read_page(value), followed, met))
        page = read_page(answer)
        if page is None:
            return
        brings_new = False
        for name, record in page.records:
            if name not in met:
                brings_new = True
                met.update([name] if name else [])
                yield record
        # a cursor may come even after the last page
        if not brings_new or not page.following or (page.promised is not None and len(met) >= page.promised):
            return
        cursor = page.following


def _is_sound(page: Page | None, followed: set[str], met: set[str]) -> bool:
    """Whether a page is one, and not an older one once more while others are still to come."""
    if page is None:
        return False
    names = {name for name, _ in page.records}
    if not names or page.promised is None or len(met | names) >= page.promised:
        return True
    return page.following not in followed and not names <= met
