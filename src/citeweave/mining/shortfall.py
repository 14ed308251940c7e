"""The account of mining: how many anchors were used, why others were not, and how far each rule got.

>>> account = Shortfall()
>>> account.skip("no positive", 3)
>>> account.add(Shortfall(used=2, skipped={"no positive": 1}))
>>> account.used, account.skipped
(2, {'no positive': 4})
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Shortfall:
    """What became of the anchors, and how far each rule got."""

    used: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    """Papers that each rule was to choose, for the samples that were made ..."""

    got: dict[str, int] = field(default_factory=dict)
    """... and that it chose."""

    aspects: dict[str, dict[str, int]] = field(default_factory=dict)
    """Aspect -> reason -> anchors that have no sample in it."""

    def skip(self, reason: str, number: int) -> None:
        if number:
            self.skipped[reason] = self.skipped.get(reason, 0) + number

    def add(self, other: Shortfall) -> None:
        self.used += other.used
        for reason, number in other.skipped.items():
            self.skip(reason, number)
        pairs = [(self.asked, other.asked), (self.got, other.got)]
        pairs += [(self.aspects.setdefault(aspect, {}), reasons) for aspect, reasons in other.aspects.items()]
        for mine, theirs in pairs:
            for name, number in theirs.items():
                mine[name] = mine.get(name, 0) + number
