"""What to cite in a pasted passage of a draft: for the whole of it, or sentence by sentence.

    >>> needing(["Rain is rare [CIT].", "We count drops.", "Others did (Chen, 2014)."])
    [0, 2]
    >>> needing(["Rain is rare.", "We count drops."])
    [0, 1]

A sentence seems to need a citation where the author left a mark for one; in a passage without any mark each does. Does
not guess from the words whether a claim needs support.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.cleaning import clean_text
from citeweave.corpus.text import sentence_texts
from citeweave.errors import UserError
from citeweave.search.asking.answers import Found
from citeweave.search.asking.query import Passage, Query
from citeweave.search.citing import Draft, Recommendation, recommend
from citeweave.search.index import Index
from citeweave.search.marks import without_marks
from citeweave.search.searching import Reader

MOST_ASKED = 30
"""Sentences of a passage that are answered."""


def recommend_all(
    index: Index, reader: Reader, query: Query, allowed: NDArray[np.bool_]
) -> tuple[list[Found], list[str]]:
    """The papers to cite, of every sentence the best first, and the sentences of the passage; none for the whole."""
    passage = query.cite
    assert passage is not None
    if not passage.each:
        return [_found(one, None) for one in _page(index, reader, passage.text, query, allowed)], []
    sentences = sentence_texts(passage.text)
    asked = [at for at in needing(sentences) if without_marks(sentences[at])]
    if not asked:
        raise UserError(f"cite is {passage.text[:60]!r}: without its citation marks nothing is left; give a passage")
    if len(asked) > MOST_ASKED:
        raise UserError(f"{len(asked)} sentences of the passage need a citation; ask for at most {MOST_ASKED} at once")
    hits = [_found(one, number) for number in asked for one in _page(index, reader, sentences[number], query, allowed)]
    return hits, sentences


def needing(sentences: Sequence[str]) -> list[int]:
    """Which sentences seem to need a citation."""
    marked = [at for at, sentence in enumerate(sentences) if without_marks(sentence) != clean_text(sentence)]
    return marked or list(range(len(sentences)))


def _page(
    index: Index, reader: Reader, sentence: str, query: Query, allowed: NDArray[np.bool_]
) -> list[Recommendation]:
    passage = query.cite or Passage(sentence)
    draft = Draft(sentence, passage.intent, passage.draft, passage.least_share)
    return recommend(index, reader, draft, count=query.offset + query.count, allowed=allowed)[query.offset :]


def _found(one: Recommendation, passage: int | None) -> Found:
    hit = one.hit
    return Found(hit.id, hit.title, hit.year, hit.score, hit.row, cited=one, passage=passage)
