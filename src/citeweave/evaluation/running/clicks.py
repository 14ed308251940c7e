"""Judge the recommendation task: a small network learns from clicks, with the judged vectors' cosine among its features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.clicks.recommending import recommend
from citeweave.evaluation.judged import Judged, NoAnswerError
from citeweave.evaluation.outcomes import Outcome
from citeweave.evaluation.tasks import ClickTask

PEERS_SEED = 7


def run_clicks(task: ClickTask, judged: Judged, missing: str, *, seed: int = 0) -> Outcome:
    """SciDocs reports adj-NDCG and adj-P@1: means weighted by one over the clicked place's propensity."""
    vectors = judged.vectors(task.texts)
    if not vectors.present.any():
        raise NoAnswerError(
            f"{task.name}: no paper has a vector; check that the ids of the vectors are the suite's ids"
        )

    def look_up(papers: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        rows = task.texts.rows(papers)
        return vectors.matrix[np.maximum(rows, 0)], vectors.present[np.maximum(rows, 0)] & (rows >= 0)

    result = recommend(task.clicks, look_up, seeds=(PEERS_SEED + seed,), missing=missing)
    rows = {
        name: {"adj-NDCG": row["ndcg"], "adj-P@1": row["p@1"], "weight": row["weight"]}
        for name, row in result.judged[0].rows().items()
    }
    how = {"adj-NDCG": "weighted", "adj-P@1": "weighted"}
    notes = ("the network is trained anew: another --seed gives somewhat other values",)
    return Outcome(task.name, "clicks", how, rows, result.coverage, notes, {"seeds": list(result.seeds)})
