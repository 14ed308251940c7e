"""What the source of a paper says of it besides its columns: citation key, DOI, links, keywords and tags, collections.

    >>> from citeweave.search.export import ExportedPaper
    >>> entry = {"key": "turing1950", "fields": {"url": "https://example.org/a.pdf", "file": ":turing.pdf:PDF"}}
    >>> paper = ExportedPaper("doi:10.1/X", extra={"bibtex": entry, "keywords": ["minds"], "tags": ["Minds", "to read"]})
    >>> details = details_json(paper)
    >>> details["key"], details["doi"], details["url"], details["pdf"]
    ('turing1950', '10.1/X', 'https://example.org/a.pdf', 'turing.pdf')
    >>> details["keywords"], details["collections"]
    (['minds', 'to read'], [])

All of it stands in `extra`, as JSON, and is untrusted: a link is shown only if it begins with http. Of an open index,
keywords and collections of all papers (`source_lists`), the citation keys (`rows_of_key`) and how often each paper is cited
by others (`cited_counts`) are read once, when they are first needed. Does not filter (`filters.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import TextColumn
from citeweave.core.ragged import owners_of
from citeweave.corpus.corpus import LOCAL
from citeweave.corpus.plain_text import clean_text, dict_of, names_of
from citeweave.search.index import Index

SOURCE_LISTS = {"keywords": ("keywords", "tags"), "collections": ("collections",)}
"""Lists of names that a source may give a paper, and the keys of `extra` in which they stand."""

_ID_OF_ENTRY = "bibtex"
"""The key of `extra` that holds a BibTeX entry as it was written."""

_PDF = re.compile(r"\.pdf(?:[?#]|$)", re.IGNORECASE)
_MAX_FILE = 1000


class DetailedPaper(Protocol):
    """A paper of an index, or one to export."""

    @property
    def id(self) -> str: ...
    @property
    def ids(self) -> tuple[str, ...]: ...
    @property
    def extra(self) -> Mapping[str, Any]: ...


def details_json(paper: DetailedPaper) -> dict[str, Any]:
    """Return what the source of a paper says besides, as JSON; what it does not say is empty."""
    extra = paper.extra
    return {
        "doi": find_id(paper, "doi"),
        "url": _url(paper),
        "pdf": _pdf(paper),
        "key": key_in(extra) or (paper.id if getattr(paper, "local_id", False) else ""),
        **{name: _listed(extra, name) for name in SOURCE_LISTS},
    }


def find_id(paper: DetailedPaper, kind: str) -> str:
    """Return a paper's id of a kind such as doi, without its prefix; empty where it has none."""
    ids = (id.removeprefix(f"{kind}:") for id in (paper.id, *paper.ids) if id.startswith(f"{kind}:"))
    return next(ids, "")


def key_in(extra: Mapping[str, Any]) -> str:
    """Return the citation key in the metadata of a source, empty where it has none.

    >>> key_in({"bibtex": {"key": "turing1950"}}), key_in({"key": "a b"}), key_in({})
    ('turing1950', 'a b', '')
    """
    return clean_text(dict_of(extra.get(_ID_OF_ENTRY)).get("key")) or clean_text(extra.get("key"))


def _listed(extra: Mapping[str, Any], name: str) -> list[str]:
    """Return the names of one of the SOURCE_LISTS, each once, regardless of case."""
    listed = [text for key in SOURCE_LISTS[name] for text in names_of(extra.get(key))]
    return list({text.casefold(): text for text in reversed(listed)}.values())[::-1]


def _fields(paper: DetailedPaper) -> Mapping[str, object]:
    return dict_of(dict_of(paper.extra.get(_ID_OF_ENTRY)).get("fields"))


def _url(paper: DetailedPaper) -> str:
    """Return the link of a paper that its source gives, empty where there is none that begins with http."""
    links = (paper.extra.get("url"), _fields(paper).get("url"))
    return next((link for link in map(clean_text, links) if _is_link(link)), "")


def _is_link(text: str) -> bool:
    return text.lower().startswith(("http://", "https://")) and " " not in text


def _pdf(paper: DetailedPaper) -> str:
    """Return where the PDF of a paper is: the path of its file, else a link; empty where the source names none."""
    files = (paper.extra.get("file"), _fields(paper).get("file"), _fields(paper).get("pdf"))
    named = next((path for path in map(_path, files) if path), "")
    if named:
        return named
    url, arxiv = _url(paper), find_id(paper, "arxiv")
    if _PDF.search(url):
        return url
    return f"https://arxiv.org/pdf/{arxiv}" if arxiv else ""


def _path(value: object) -> str:
    r"""Return the path of the first PDF in a field `file`, as JabRef, Zotero and Mendeley write it.

    >>> _path(":papers/turing.pdf:PDF"), _path("Full Text:/home/ada/a.pdf:application/pdf;Snapshot:b.html:text/html")
    ('papers/turing.pdf', '/home/ada/a.pdf')
    >>> _path(r":C\:/papers/a.pdf:PDF"), _path("a.pdf"), _path("notes.txt"), _path(None)
    ('C:/papers/a.pdf', 'a.pdf', '', '')
    """
    for file in clean_text(value)[:_MAX_FILE].replace("\\;", ",").split(";"):
        parts = [part.replace("\0", ":").replace("\\\\", "\\") for part in file.replace("\\:", "\0").split(":")]
        path = next((part for part in reversed(parts) if _PDF.search(part)), "")
        drive = parts[parts.index(path) - 1] if path and path[:1] in "/\\" and parts.index(path) else ""
        if path:
            return f"{drive}:{path}" if len(drive) == 1 and drive.isalpha() else path
    return ""


# --- of all papers of an index ---------------------------------------------------------------------------


def source_lists(extras: TextColumn) -> dict[str, tuple[NDArray[np.int32], list[str]]]:
    """Return which text each paper has of every one of the SOURCE_LISTS, (papers,), and these texts, one name per line."""
    codes = {name: np.zeros(len(extras), np.int32) for name in SOURCE_LISTS}
    texts: dict[str, dict[str, int]] = {name: {"": 0} for name in SOURCE_LISTS}
    for row, extra in _parsed(extras, [key for keys in SOURCE_LISTS.values() for key in keys]):
        for name, known in texts.items():
            codes[name][row] = known.setdefault("\n".join(_listed(extra, name)), len(known))
    return {name: (codes[name], list(texts[name])) for name in SOURCE_LISTS}


def _parsed(extras: TextColumn, keys: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield row and metadata of the papers whose metadata has one of these keys; others are not even parsed."""
    data = extras.data.tobytes()
    wanted = np.zeros(len(extras), np.bool_)
    for key in keys:
        starts = [match.start() for match in re.finditer(f'"{key}"'.encode(), data)]
        wanted[np.searchsorted(extras.offsets, starts, side="right") - 1] = True
    for row in np.flatnonzero(wanted).tolist():
        try:
            extra = json.loads(extras[row])
        except (ValueError, RecursionError):
            continue
        if isinstance(extra, dict):
            yield row, extra


_keys: WeakKeyDictionary[TextColumn, dict[str, list[int]]] = WeakKeyDictionary()
_cited: WeakKeyDictionary[TextColumn, NDArray[np.int64]] = WeakKeyDictionary()
"""Citation keys and citations of the papers of open indexes, by a column of theirs."""


def rows_of_key(index: Index, key: str) -> list[int]:
    """Return the rows of the papers with a citation key, regardless of case; ascending."""
    known = _keys.get(index.extras)
    if known is None:
        known = _keys[index.extras] = {}
        local = np.flatnonzero(index.flags & LOCAL)
        named = list(zip(local.tolist(), index.ids.take(local), strict=True))
        named += [(row, key_in(extra)) for row, extra in _parsed(index.extras, [_ID_OF_ENTRY, "key"])]
        for row, name in sorted(named):
            rows = known.setdefault(name.casefold(), [])
            if row not in rows[-1:]:
                rows.append(row)
    return known.get(key.strip().casefold(), []) if key.strip() else []


def cited_counts(index: Index) -> NDArray[np.int64]:
    """Return how many papers of an index cite each of its papers, (papers,)."""
    counts = _cited.get(index.ids)
    if counts is None:
        cited = index.rows_of_keys(index.reference_keys)
        citing = owners_of(index.reference_offsets)
        pairs = np.unique((citing * np.int64(index.size) + cited)[cited >= 0])
        counts = _cited[index.ids] = np.bincount(pairs % max(index.size, 1), minlength=index.size)
    return counts
