"""What judging a task gave: a row for every query, click or paper; every mean is derived from the rows.

    >>> outcome = Outcome("cite", "ranking", {"map": "mean"}, {"q1": {"map": 0.5}, "q2": {"map": 1.0}})
    >>> outcome.metrics
    {'map': 75.0}

Rows hold fractions; metrics are in percent, as the field prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from citeweave.evaluation.deriving import derive

Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """One task, judged."""

    task: str
    kind: str
    """`ranking`, `search`, `classes`, `labels`, `numbers`, `few-shot` or `clicks`."""

    how: Mapping[str, str]
    """Metric -> how it is derived from the rows: a name of `deriving.WAYS`."""

    rows: Rows
    """Query, click or test paper -> its values; for probes `answer` and `told`; `fold` and `field` where they are known."""

    coverage: Mapping[str, int] = field(default_factory=dict)
    """Counts: queries, candidates, missing vectors, dropped queries, and so on."""

    notes: tuple[str, ...] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """What the protocol chose by itself, such as the probe's C."""

    ranked: Mapping[str, list[tuple[str, float]]] = field(default_factory=dict, repr=False)
    """Query -> candidates with their scores, best first; for TREC runs, not part of any JSON."""

    @property
    def metrics(self) -> dict[str, float]:
        return {name: 100 * derive(way, self.rows, name) for name, way in self.how.items()}

    def as_json(self) -> dict[str, Any]:
        fields = asdict(replace(self, ranked={}))
        fields.pop("ranked")
        return {**fields, "metrics": self.metrics}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Outcome:
        return cls(
            value["task"],
            value["kind"],
            value["how"],
            value["rows"],
            value["coverage"],
            tuple(value["notes"]),
            value["chosen"],
        )
