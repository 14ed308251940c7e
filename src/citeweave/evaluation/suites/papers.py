"""Titles and abstracts of a benchmark's papers, from the files that hold them.

    {"p1": {"title": "T", "abstract": "A", ...}, ...}                    SciDocs, one object
    {"paper_id": "p1", "title": "T", "abstract": "A"}                    MDCR, a line a paper
    {"doc_id": "q1", "query": "deep nets", "candidates": [{...}, ...]}   SciRepEval, a line a query

Only wanted papers are kept. A paper that the file does not know stays, without text: reports count such papers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from citeweave.errors import InputError
from citeweave.evaluation.clicks.entries import read_entries
from citeweave.evaluation.suites.files import as_id
from citeweave.evaluation.texts import Texts
from citeweave.opening import Source

FIELDS = ("title", "abstract")
_IDS = ("doc_id", "paper_id", "corpus_id", "id")


@dataclass
class Papers:
    """What is known of some papers: id -> (title, abstract). Of a paper that comes twice the first counts."""

    known: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, name: str, record: Mapping[str, Any], fields: Sequence[str] = FIELDS) -> None:
        """Fields beside title and abstract, such as venue and year, stand at the abstract's end."""
        if name not in self.known:
            rest = [_text(record.get(name)) for name in fields if name != "title"]
            self.known[name] = (_text(record.get("title")), " ".join(text for text in rest if text))

    def texts(self, ids: Iterable[str]) -> Texts:
        """Texts of these papers, each once, in their order."""
        names = unique(ids)
        pairs = [self.known.get(name, ("", "")) for name in names]
        return Texts(names, [title for title, _ in pairs], [abstract for _, abstract in pairs])


def unique(ids: Iterable[str]) -> list[str]:
    """Every id once, in the order of its first place.

    >>> unique(["b", "a", "b"])
    ['b', 'a']
    """
    return list(dict.fromkeys(ids))


def read_paper_object(path: Path, wanted: Collection[str]) -> Papers:
    """The wanted papers of one large JSON object, `{id: {"title", "abstract", ...}}`."""
    papers = Papers()
    for name, record in read_entries(Source(path)):
        if not isinstance(record, dict):
            raise InputError(f"{path}: the entry of {name!r} is no JSON object; get the file again")
        if name in wanted:
            papers.add(name, record)
    return papers


def add_papers(
    papers: Papers,
    records: Iterable[Mapping[str, Any]],
    wanted: Collection[str],
    *,
    path: Path,
    fields: Sequence[str] = FIELDS,
) -> None:
    """Papers of records, one each, or SciRepEval's records of a query with its candidates; `path` is for errors."""
    candidates: list[tuple[str, Mapping[str, Any]]] = []
    for record in records:
        for name, paper, is_query in _papers_of(record, path):
            if name not in wanted:
                continue
            if is_query:
                papers.add(name, paper, fields)
            else:
                candidates.append((name, paper))
    # the peer reads all queries before the candidates, and of equal ids the first counts
    for name, paper in candidates:
        papers.add(name, paper, fields)


def _papers_of(record: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    query = record.get("query")
    if "candidates" not in record:
        yield _id(record, path), record, False
        return
    if isinstance(query, str):
        yield _id(record, path), {"title": query}, True
    elif isinstance(query, Mapping):
        yield _id(query, path), query, True
    else:
        raise InputError(f"{path}: a record with candidates has no query; get the file again")
    for candidate in record["candidates"] or ():
        yield _id(candidate, path), candidate, False


def _id(record: object, path: Path) -> str:
    if isinstance(record, Mapping):
        for key in _IDS:
            if record.get(key) is not None:
                return as_id(record[key], f"{path}: {key}")
    raise InputError(f"{path} names a paper without an id; each needs one of {', '.join(_IDS)}")


def _text(value: object) -> str:
    """A text as it stands, a number such as a year as text; nothing for anything else."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and value == value else ""
