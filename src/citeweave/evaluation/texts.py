"""The papers and questions that a suite asks about: ids, and what an encoder may read of them.

    >>> texts = Texts(ids=["p1", "p2"], titles=["A title", "Another"], abstracts=["One. Two.", ""])
    >>> texts.rows(["p2", "p3"]).tolist(), texts.paper_texts()
    ([1, -1], ['A title[SEP]One. Two.', 'Another'])

A question of a search task is a row of its own: its text stands as the title.
Does not hold vectors, and does not know tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.text import TextRecipe, paper_text, sentence_texts
from citeweave.errors import InputError
from citeweave.files import hash_json

_RECIPE = TextRecipe()


class NoTextsError(InputError):
    """The file with a suite's texts is not there."""


@dataclass(frozen=True)
class Texts:
    """One row a paper or question. Rows are what tasks point to; ids are what reports and vector files say."""

    ids: Sequence[str]
    titles: Sequence[str]
    abstracts: Sequence[str]

    sentences: Sequence[Sequence[str]] | None = None
    """The abstract as the suite splits it; without it `sentences_of` splits."""

    labels: Sequence[Sequence[str]] | None = None
    """What each of those sentences is about (CSFCube's facets)."""

    lacking: str = ""
    """The file that would hold the texts, where it is absent: then only given vectors can be judged."""

    _rows: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._rows.update({name: row for row, name in reversed(list(enumerate(self.ids)))})

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of_ids(cls, ids: Sequence[str], *, lacking: str) -> Texts:
        """Papers of which only the ids are known."""
        return cls(ids, [""] * len(ids), [""] * len(ids), lacking=lacking)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of every id, -1 where it has none; of equal ids the first row."""
        return np.array([self._rows.get(name, -1) for name in ids], np.int64)

    def paper_texts(self, recipe: TextRecipe = _RECIPE) -> list[str]:
        """What an encoder reads of each row."""
        self.require()
        return [paper_text(title, text, recipe) for title, text in zip(self.titles, self.abstracts, strict=True)]

    def sentences_of(self, row: int) -> Sequence[str]:
        """The sentences of one abstract; the title where there is no abstract."""
        if self.sentences is not None and len(self.sentences[row]):
            return self.sentences[row]
        return sentence_texts(self.abstracts[row]) or [text for text in [self.titles[row]] if text]

    def require(self) -> None:
        """Stop where there are no texts to read."""
        if self.lacking:
            raise NoTextsError(
                f"the texts of this suite are missing: {self.lacking} is not there; add it, or judge vectors from a file"
            )

    @property
    def without_text(self) -> int:
        """Rows with neither title nor abstract; 0 where no texts are there at all."""
        return self.count_without_text(range(len(self)))

    def count_without_text(self, rows: Iterable[int]) -> int:
        """The same among some rows."""
        return 0 if self.lacking else sum(not self.titles[row] and not self.abstracts[row] for row in rows)

    @cached_property
    def hash(self) -> str:
        """Hash of the content: the same papers in the same order, the same hash."""
        return hash_json(
            {
                "ids": list(self.ids),
                "titles": list(self.titles),
                "abstracts": list(self.abstracts),
                "sentences": None if self.sentences is None else [list(texts) for texts in self.sentences],
            }
        )

    @cached_property
    def tie_order(self) -> NDArray[np.int64]:
        """Place of every row's id among all ids in the order of strings: how trec_eval breaks ties."""
        order = np.argsort(np.array(self.ids, dtype=object), kind="stable")
        places = np.empty(len(self.ids), np.int64)
        places[order] = np.arange(len(self.ids))
        return places
