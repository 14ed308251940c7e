"""The published ways of averaging a suite's numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from citeweave.evaluation.tasks import Average


def averages_of(averages: Mapping[str, Average], metrics: Mapping[str, float]) -> dict[str, float]:
    """Every average whose parts are all there; an average over less would not be the published one.

    >>> averages_of({"avg": Average(("a.f1", ("b.map", "b.ndcg")))}, {"a.f1": 80.0, "b.map": 60.0, "b.ndcg": 70.0})
    {'avg': 72.5}
    >>> averages_of({"avg": Average(("a.f1", "c.f1"))}, {"a.f1": 80.0})
    {}
    """
    found = {}
    for name, average in averages.items():
        parts = [part if isinstance(part, tuple) else (part,) for part in average.parts]
        if all(metric in metrics for part in parts for metric in part):
            values = [np.mean([metrics[metric] for metric in part]) for part in parts]
            if average.decimals is not None:
                found[name] = round(float(np.mean(np.round(values, average.decimals))), average.decimals)
            else:
                found[name] = float(np.mean(values))
    return found
