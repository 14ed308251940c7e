"""How good predicted labels are: accuracy, precision, recall and F1 of every label, macro-F1, confusion.

>>> judge(np.array([0, 0, 1]), np.array([0, 1, 1]), ("a", "b"))["macro_f1"]
66.67
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def judge(predicted: NDArray[np.int64], labels: NDArray[np.int64], names: Sequence[str]) -> dict[str, Any]:
    """Measures in percent; `confusion` has a row for every true label and a column for every predicted one."""
    count = len(names)
    confusion = np.bincount(labels * count + predicted, minlength=count * count).reshape(count, count)
    hits = np.diag(confusion)  # (labels,)
    precision = hits / np.maximum(confusion.sum(axis=0), 1)  # (labels,)
    recall = hits / np.maximum(confusion.sum(axis=1), 1)  # (labels,)
    f1 = 2 * hits / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1), 1)  # (labels,)
    return {
        "sentences": len(labels),
        "macro_f1": _percent(f1.mean()),
        "accuracy": _percent(hits.sum() / max(1, len(labels))),
        "labels": {
            name: {
                "precision": _percent(precision[row]),
                "recall": _percent(recall[row]),
                "f1": _percent(f1[row]),
                "sentences": int(confusion[row].sum()),
            }
            for row, name in enumerate(names)
        },
        "confusion": confusion.tolist(),
    }


def _percent(value: float) -> float:
    return round(100 * float(value), 2)
