"""One task of any kind."""

from __future__ import annotations

from citeweave.evaluation.judged import Judged
from citeweave.evaluation.outcomes import Outcome
from citeweave.evaluation.running.probes import run_probe
from citeweave.evaluation.running.ranking import run_ranking, run_search
from citeweave.evaluation.tasks import ClickTask, ProbeTask, SearchTask, Task


def run_task(
    task: Task, judged: Judged, distance: str = "", missing: str = "wrong", *, intercept: bool = True, seed: int = 0
) -> Outcome:
    """Judge one task; `distance` empty = the protocol's."""
    if isinstance(task, ProbeTask):
        return run_probe(task, judged, missing, intercept=intercept)
    if isinstance(task, ClickTask):
        from citeweave.evaluation.running.clicks import run_clicks  # reads files of its own kind, for one suite alone

        return run_clicks(task, judged, missing, seed=seed)
    if isinstance(task, SearchTask):
        return run_search(task, judged, distance, missing)
    return run_ranking(task, judged, distance, missing)
