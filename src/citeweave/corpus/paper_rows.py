"""What a corpus and an index have in common for Python: papers by row or id, iteration, data frames, notebook tables.

    corpus[0], corpus[-1], corpus["doi:10.1/x"], corpus[:5]         papers by row, by any of their ids, by slice
    for paper in corpus: ...                                        one paper at a time
    "doi:10.1/x" in corpus, len(corpus)
    corpus.to_pandas(["id", "title", "year"])                       also to_polars and to_arrow

Arrow tables share the memory-mapped bytes of the columns, so that a frame of a million titles costs no copy of their text
where the library keeps Arrow's strings, as pandas 3 and polars do. Does not search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index as as_integer
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from citeweave.core.arguments import as_texts
from citeweave.core.errors import choose
from citeweave.core.notebook import MAX_SHOWN, frame_of, html_table
from citeweave.corpus.identity import likely_ids

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

COLUMNS = {
    "id": "ids",
    "title": "titles",
    "abstract": "abstracts",
    "year": "years",
    "venue": "venues",
    "authors": "authors",
    "fields": "fields",
    "ids": "other_ids",
    "citation_count": "citation_counts",
    "extra": "extras",
}
"""Column of a frame -> the attribute of a corpus or an index that has it."""

_LISTS = ("authors", "fields", "ids")
_ON_REQUEST = ("extra",)
_UNKNOWN = {"year": 0, "citation_count": -1}
_MAX_NAMES = 3

PaperT = TypeVar("PaperT")


class PaperRows(Generic[PaperT]):
    """Papers in rows: what a corpus and an index share. Subclasses have the columns, and `paper` returns a row's record."""

    def paper(self, row: int) -> PaperT:
        """Return the record of the paper in a row."""
        raise NotImplementedError

    def row(self, id: str) -> int:
        """Return the row of the paper that has this id."""
        raise NotImplementedError

    def rows(self, ids: Sequence[str]) -> NDArray[Any]:
        """Return the row of every paper id, -1 where there is no such paper."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    @overload
    def __getitem__(self, key: int | str) -> PaperT: ...
    @overload
    def __getitem__(self, key: slice) -> list[PaperT]: ...
    def __getitem__(self, key: int | str | slice) -> PaperT | list[PaperT]:
        if isinstance(key, slice):
            return [self.paper(row) for row in range(len(self))[key]]
        if isinstance(key, str):
            return self.paper(self.row(key))
        row = as_integer(key)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is out of range: there are {len(self):,} papers, in rows 0 to {len(self) - 1}")
        return self.paper(row % len(self))

    def __iter__(self) -> Iterator[PaperT]:
        return (self.paper(row) for row in range(len(self)))

    def __contains__(self, paper: object) -> bool:
        """Return whether a paper is here, given by any of its ids or as a record."""
        id = paper if isinstance(paper, str) else getattr(paper, "id", None)
        return isinstance(id, str) and bool((self.rows(likely_ids(id)) >= 0).any())

    def to_arrow(self, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """Return the papers as an Arrow table, one row per paper; texts share the memory-mapped files.

        `columns` names those wanted, by default all but `extra`, the source's further metadata as JSON: id, title, abstract,
        year, venue, authors, fields, ids and, for a corpus, citation_count. Authors, fields and ids are lists; an unknown
        year or count is null.
        """
        import pyarrow

        known = [name for name, attribute in COLUMNS.items() if hasattr(self, attribute)]
        names = [name for name in known if name not in _ON_REQUEST] if columns is None else as_texts(columns, "columns")
        return pyarrow.table({name: self._arrow_column(choose(name, known, "columns")) for name in names})

    def to_pandas(self, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """Return the papers as a pandas data frame; columns as in `to_arrow`. Needs `pip install 'citeweave[frames]'`.

        corpus.to_pandas(["id", "year"]) leaves abstracts, most of the bytes of a corpus, where they are.
        """
        frame: pandas.DataFrame = frame_of(self.to_arrow(columns), "pandas")
        return frame

    def to_polars(self, columns: Sequence[str] | None = None) -> polars.DataFrame:
        """Return the papers as a polars data frame; columns as in `to_arrow`. Needs `pip install 'citeweave[frames]'`."""
        frame: polars.DataFrame = frame_of(self.to_arrow(columns), "polars")
        return frame

    def _repr_html_(self) -> str:
        first = [summary_of(self.paper(row)) for row in range(min(len(self), MAX_SHOWN // 2))]
        left_out = f"... and {len(self) - len(first):,} more" if len(self) > len(first) else ""
        return html_table(first, repr(self), notes=[left_out])

    def _arrow_column(self, name: str) -> pyarrow.Array:
        """Return one column of the papers as an Arrow array: texts, lists of texts, or numbers with nulls."""
        import pyarrow
        from pyarrow import compute

        column = getattr(self, COLUMNS[name])
        if name in _UNKNOWN:
            return pyarrow.array(column, mask=np.asarray(column) == _UNKNOWN[name])
        texts = column.as_arrow()
        if name not in _LISTS:
            return texts
        # splitting an empty text would give a list of one empty text
        empty = pyarrow.scalar([], pyarrow.list_(texts.type))
        return compute.if_else(compute.equal(texts, ""), empty, compute.split_pattern(texts, "\n"))


def summary_of(paper: Any) -> dict[str, Any]:
    """Return what identifies a paper for people, for a row of a notebook's table: title, first authors, year, venue, id.

    >>> from citeweave.corpus.paper import Paper
    >>> summary_of(Paper("s2:1", "Maps", year=2020, authors=("Ada", "Bo", "Cy", "Di")))
    {'title': 'Maps', 'authors': 'Ada, Bo, Cy et al.', 'year': '2020', 'venue': '', 'id': 's2:1'}
    """
    authors = ", ".join(paper.authors[:_MAX_NAMES]) + (" et al." if len(paper.authors) > _MAX_NAMES else "")
    year = "" if paper.year is None else str(paper.year)
    return {"title": paper.title, "authors": authors, "year": year, "venue": paper.venue, "id": paper.id}
