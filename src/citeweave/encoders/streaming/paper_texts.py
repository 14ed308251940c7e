"""The texts of a corpus as a sequence that is read slice by slice, so that a corpus of any size can be embedded.

texts = PaperTexts(corpus, TextRecipe())
len(texts) == len(corpus), texts[:2] == ["A title[SEP]An abstract.", ...]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import release
from citeweave.corpus.corpus import Corpus, lines
from citeweave.corpus.text import TextRecipe, paper_text


class PaperTexts(Sequence[str]):
    """One text a paper, in the order of the corpus; empty where a paper has none of the recipe's parts."""

    def __init__(self, corpus: Corpus, recipe: TextRecipe) -> None:
        self.corpus, self.recipe = corpus, recipe
        self._columns = {
            "title": corpus.titles,
            "abstract": corpus.abstracts,
            "venue": corpus.venues,
            "authors": corpus.authors,
        }

    def __len__(self) -> int:
        return len(self.corpus)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if not isinstance(row, slice):
            return self[row : row + 1 or None][0]
        return self.take(np.arange(len(self))[row])

    def take(self, rows: NDArray[np.int64]) -> list[str]:
        """The texts of these rows, in their order."""
        empty = [""] * len(rows)
        parts = [column.take(rows) if name in self.recipe.parts else empty for name, column in self._columns.items()]
        release(*self._columns.values())  # a corpus that is walked through would else stay in memory
        return [
            paper_text(title, abstract, self.recipe, venue=venue, authors=lines(authors))
            for title, abstract, venue, authors in zip(*parts, strict=True)
        ]
