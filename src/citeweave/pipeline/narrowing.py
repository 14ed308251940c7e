"""An encoder that reads only the papers that some tasks ask about, where a suite shares one list of papers among all.

    Narrowed(encoder, suite.choose(["cite"]), cache=cache)       reads a quarter of a corpus suite's papers

Answers are those of `Encoded`; tasks that were not named must not be judged with it, as their papers have no vector.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.text import TextRecipe
from citeweave.encoders.encoder import Encoder
from citeweave.evaluation.judged import ABSENT, PaperVectors
from citeweave.evaluation.judging.encoded import Encoded
from citeweave.evaluation.tasks import ProbeTask, RankingTask, SearchTask, Suite, Task
from citeweave.evaluation.texts import Texts
from citeweave.progress import QUIET, Reporter

Rows = NDArray[np.int64]


class Narrowed(Encoded):
    """An encoder of the papers of a suite's tasks."""

    def __init__(
        self, encoder: Encoder, suite: Suite, *, cache: Path | None, text_recipe: TextRecipe, reporter: Reporter = QUIET
    ) -> None:
        super().__init__(encoder, cache=cache, text_recipe=text_recipe, reporter=reporter)
        self._rows = needed_rows(suite)
        self._whole: dict[str, PaperVectors] = {}

    def vectors(self, texts: Texts) -> PaperVectors:
        rows = self._rows.get(texts.hash)
        if rows is None or len(rows) == len(texts) or texts.lacking:
            return super().vectors(texts)
        if texts.hash not in self._whole:
            found = super().vectors(_part(texts, rows))
            matrix = np.zeros((len(texts), found.matrix.shape[1]), np.float32)  # (papers, dimension)
            state = np.full(len(texts), ABSENT, found.state.dtype)  # (papers,)
            matrix[rows], state[rows] = found.matrix, found.state
            self._whole[texts.hash] = PaperVectors(matrix, state)
        return self._whole[texts.hash]


def needed_rows(suite: Suite) -> dict[str, Rows]:
    """Hash of texts -> the rows that the suite's tasks ask about, ascending; texts of which all may be are left out."""
    found: dict[str, Rows] = {}
    whole = set()
    for task in suite.tasks:
        rows = _rows_of(task)
        if rows is None:
            whole.add(task.texts.hash)
        else:
            found[task.texts.hash] = np.union1d(found.get(task.texts.hash, rows), rows)
    return {name: rows for name, rows in found.items() if name not in whole}


def _rows_of(task: Task) -> Rows | None:
    if isinstance(task, RankingTask) and task.reviewers is None:
        return np.unique(np.concatenate([task.pools.queries, task.pools.candidates]))
    if isinstance(task, ProbeTask):
        return np.unique(np.concatenate([task.train, task.test]))
    if isinstance(task, SearchTask):
        return np.unique(np.concatenate([task.queries, task.candidates, task.judged.queries, task.judged.candidates]))
    return None


def _part(texts: Texts, rows: Rows) -> Texts:
    at = rows.tolist()
    return Texts(
        [texts.ids[row] for row in at], [texts.titles[row] for row in at], [texts.abstracts[row] for row in at]
    )
