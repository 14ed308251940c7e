"""The map of a suite's papers: those of its first task that tells classes, coloured by class.

    map_data = TopicMap(judged, suite).make(seed=0)

Does not place papers (`reporting.paper_map`) and does not draw (`reporting.map_page`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from citeweave.errors import UserError
from citeweave.evaluation.judged import Judged, NoAnswerError
from citeweave.evaluation.reporting.paper_map import MapData, make_map
from citeweave.evaluation.tasks import ProbeTask, Suite
from citeweave.progress import QUIET, Reporter


class TopicMap:
    """What a map needs; what cannot be mapped is told at once, not after hours of judging."""

    def __init__(self, judged: Judged, suite: Suite) -> None:
        self.task = _first_classes(suite)
        try:
            self._vectors = judged.vectors(self.task.texts)
        except NoAnswerError as error:
            raise UserError(f"no map can be drawn: {error}; leave --map out") from None
        if not self._vectors.present[self._rows()].any():
            raise UserError(
                f"no map can be drawn: no paper of {self.task.name} has a vector; check that the ids are the suite's ids"
            )

    def make(self, *, seed: int = 0, reporter: Reporter = QUIET) -> MapData:
        """Place the papers that have vectors."""
        task, texts = self.task, self.task.texts
        answers = np.concatenate([task.train_answers, task.test_answers])  # (training and test papers,)
        rows, first = np.unique(self._rows(), return_index=True)
        has_vector = self._vectors.present[rows]  # (papers,)
        rows, first = rows[has_vector], first[has_vector]
        return make_map(
            self._vectors.matrix[rows],
            [str(answer) for answer in answers[first].tolist()],
            [texts.titles[row] or texts.ids[row] for row in rows.tolist()],
            seed=seed,
            reporter=reporter,
        )

    def _rows(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.concatenate([self.task.train, self.task.test])


def map_facts(map_data: MapData, task: str) -> dict[str, Any]:
    """What the report's JSON says of a map; homogeneity and completeness from 0 to 1, None where they cannot be told."""
    return {
        "task": task,
        "papers": len(map_data.xy),
        "homogeneity": map_data.homogeneity if math.isfinite(map_data.homogeneity) else None,
        "completeness": map_data.completeness if math.isfinite(map_data.completeness) else None,
        "note": map_data.note,
    }


def _first_classes(suite: Suite) -> ProbeTask:
    for task in suite.tasks:
        if isinstance(task, ProbeTask) and task.kind == "classes":
            return task
    raise UserError(
        f"{suite.name} tells no classes of papers to colour a map by; leave --map out, or judge by scidocs, scirepeval, "
        "or a corpus with fields"
    )
