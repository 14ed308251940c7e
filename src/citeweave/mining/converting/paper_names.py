"""Which row of a corpus a file means: by an id in any spelling, or by the whole text of the paper.

    names.rows(["s2:42", "894be9b4ea46a5c422e81ef3c241072d4c73fdc0"])     [7, 12], -1 where the corpus has no such paper
    names.rows_of_texts(["A title[SEP]An abstract."])                    the paper with exactly this title and abstract

An id counts as it is written; failing that without needless blanks, as Semantic Scholar's hash where it has 40 hex
digits, and as a number of `numbers` ("s2") where it is one. Does not search for titles that are only alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from citeweave.columns import BLOCK
from citeweave.corpus.cleaning import clean_text
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.identity import distinct, number_id, sha_id
from citeweave.corpus.index import NOT_FOUND, IdIndex, Rows
from citeweave.corpus.text import paper_text
from citeweave.hashing import Keys, hash_texts
from citeweave.tally import Tally

SAME_TEXT = "text that several papers have, taken for the first of them"


class PaperNames:
    """Finds papers of one corpus; what has to be guessed is noted in the tally."""

    def __init__(self, corpus: Corpus, tally: Tally, *, numbers: str = "") -> None:
        self.corpus, self._tally, self._numbers = corpus, tally, numbers

    def rows(self, ids: Sequence[str]) -> Rows:
        """The row of every id, -1 where the corpus has no such paper."""
        rows = self._look_up(ids)
        missing = np.flatnonzero(rows == NOT_FOUND).tolist()
        spellings = {id: self._other_spellings(id) for id in {ids[place] for place in missing}}
        if any(spellings.values()):
            rows[missing] = self.rows_of_any([spellings[ids[place]] for place in missing])
        return rows

    def rows_of_any(self, spellings: Sequence[Sequence[str]]) -> Rows:
        """The row of the first id of each list that the corpus knows, -1 where it knows none."""
        found = np.full(len(spellings), NOT_FOUND, np.int32)
        owners = np.repeat(np.arange(len(spellings)), [len(ids) for ids in spellings])
        rows = self._look_up([id for ids in spellings for id in ids])
        known = np.flatnonzero(rows != NOT_FOUND)[::-1]  # backwards: the first of a list is written last
        found[owners[known]] = rows[known]
        return found

    def rows_of_texts(self, texts: Sequence[str]) -> Rows:
        """The row of the paper whose title and abstract are exactly this text, -1 where there is none."""
        keys = _keys(texts)
        rows = self._texts.index.rows_of(keys)
        rows[[not text for text in texts]] = NOT_FOUND
        self._tally.note(SAME_TEXT, int(np.isin(keys, self._texts.repeated).sum()))
        return rows

    def _look_up(self, ids: Sequence[str]) -> Rows:
        return self.corpus.index.rows_of(_keys(ids))

    def _other_spellings(self, id: str) -> tuple[str, ...]:
        number = number_id(self._numbers, id) if self._numbers else None
        return tuple(other for other in distinct([clean_text(id), sha_id(id), number]) if other != id)

    @cached_property
    def _texts(self) -> _TextKeys:
        corpus, blocks = self.corpus, []
        for start in range(0, len(corpus), BLOCK):
            papers = zip(corpus.titles[start : start + BLOCK], corpus.abstracts[start : start + BLOCK], strict=True)
            blocks.append(_keys([paper_text(title, abstract) for title, abstract in papers]))
        keys, first, counts = np.unique(np.concatenate(blocks), return_index=True, return_counts=True)
        return _TextKeys(IdIndex.of(keys, first.astype(np.int32)), keys[(counts > 1) & (keys != hash_texts([""]))])


@dataclass(frozen=True, slots=True)
class _TextKeys:
    index: IdIndex
    repeated: Keys


def _keys(texts: Sequence[str]) -> Keys:
    # lone surrogates cannot be encoded; no id or text of a corpus has them
    return hash_texts([text if text.isascii() else text.encode("utf-8", "replace").decode() for text in texts])
