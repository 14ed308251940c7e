"""The corpus suites and SciTLDR by an encoder's vectors, in processes beside the training.

The processes are forked before the first call of CUDA, which would not survive it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.arrays import map_array
from citeweave.evaluation.judging.given_vectors import GivenVectors
from citeweave.evaluation.running.run import run_task
from weaving.bundle import CORPORA, Bundle, Ints
from weaving.network import StartedNetwork

SUITES = (*CORPORA.values(), "scitldr")
TASKS = ("cite", "cocite", "hard_cite", "couple", "mdcr", "title")
PROBES = ("field", "year", "citations")
"""Tasks that take minutes."""

MAIN_METRIC = {
    "field": "f1",
    "year": "kendalltau",
    "citations": "kendalltau",
    "title": "ndcg_cut_10",
    "search": "ndcg_cut_10",
}
"""Task -> its metric; map where it is not named."""

VIEWS = 4
"""A text is known by row * 4 + view."""

_bundle: list[Bundle] = []
"""The one of a process."""

Judgement = Future[tuple[str, float]]


class Judge:
    """Knows which texts the suites need, and has their vectors judged."""

    def __init__(self, bundle: Bundle, processes: int, scratch: Path) -> None:
        self.bundle, self.scratch = bundle, scratch
        self._pool = ProcessPoolExecutor(
            processes, mp_context=get_context("fork"), initializer=_bundle.append, initargs=(bundle,)
        )
        list(self._pool.map(abs, range(4 * processes)))  # all of them are there now
        self._texts = np.unique(
            np.concatenate([keys_of(rows, views) for suite in SUITES for _, rows, views in bundle.tasks[suite]])
        )  # (texts,)

    def submit(self, name: str, network: StartedNetwork, *, probes: bool) -> list[Judgement]:
        """Read all texts and let the suites' tasks judge them."""
        sequences = [self.bundle.view(int(key) // VIEWS, int(key) % VIEWS) for key in self._texts]
        path = self.scratch / f"{name}.npy"
        np.save(path, network.vectors(sequences).half().cpu().numpy())
        found = []
        for suite in SUITES:
            for number, (task, rows, views) in enumerate(self.bundle.tasks[suite]):
                if probes or task.name not in PROBES:
                    places = np.searchsorted(self._texts, keys_of(rows, views))
                    found.append(self._pool.submit(_judge, path, suite, number, places))
        return found

    def close(self) -> None:
        self._pool.shutdown()


def keys_of(rows: Ints, views: Ints) -> Ints:
    """
    >>> keys_of(np.array([3, 3], np.uint32), np.array([0, 2], np.uint8)).tolist()
    [12, 14]
    """
    return rows.astype(np.int64) * VIEWS + views


def _judge(path: Path, suite: str, number: int, places: Ints) -> tuple[str, float]:
    task = _bundle[-1].tasks[suite][number][0]
    matrix = map_array(path)[places].astype(np.float32)  # (texts of the task, d)
    judged = GivenVectors(task.texts.ids, matrix, name=path.stem)
    outcome = run_task(task, judged, "cosine" if suite == "scitldr" else "")
    return f"{suite}.{task.name}", float(outcome.metrics[MAIN_METRIC.get(task.name, "map")])


def suite_means(values: Mapping[str, float], tasks: Sequence[str] = TASKS) -> dict[str, Any]:
    """Corpus -> the mean over its tasks, None where one is missing.

    >>> suite_means({"elife.cite": 80.0, "elife.title": 90.0}, ["cite", "title"])
    {'peerread_plus': None, 'elife': 85.0}
    """
    found: dict[str, Any] = {}
    for suite in CORPORA.values():
        own = [values.get(f"{suite}.{task}") for task in tasks]
        found[suite] = None if None in own else round(float(np.mean([each for each in own if each is not None])), 3)
    return found
