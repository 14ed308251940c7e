"""What walks over a graph hold and gather: `citeweave graph` with `fastrp`.

    panel = panel_of(52_000_000, options)      as many columns at a time as --memory allows
    panel.gathered_at                          the constant of what a gathered number costs

A number costs by where its row lies. Rows of a panel are fetched in the order of citations, here and there. While a panel is
small, pages and caches have most of them; of 52 million papers they have almost none. Two constants, one border:

    papers x columns     panel       CPU s a number
    560,000 x 128        143 MB      0.7e-9
    5,600,000 x 32       358 MB      1.0e-9
    --- FAR: 1 GiB, in the middle of what was measured ---
    52,000,000 x 32      3.3 GB      2.2e-9
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from citeweave.graph.memory_access import LINE
from citeweave.graph.walks import NARROWEST

if TYPE_CHECKING:
    from citeweave.graph.making import GraphOptions

FAR = 1 << 30
"""Bytes of a panel beyond which its rows lie far apart."""

_NUMBER = 2
"""Bytes of a number that is walked with."""


@dataclass(frozen=True, slots=True)
class WalkPanel:
    """The columns that are walked with at once."""

    papers: int
    columns: int
    held: int
    """Bytes of the panels and of what is kept beside them: what --memory must allow."""

    @property
    def gathered_at(self) -> str:
        """The constant of a number that is gathered.

        >>> WalkPanel(560_000, 128, 0).gathered_at, WalkPanel(52_000_000, 32, 0).gathered_at
        ('fastrp.gather', 'fastrp.gather.far')
        """
        return "fastrp.gather.far" if self.papers * self.columns * _NUMBER > FAR else "fastrp.gather"


def panel_of(papers: int, options: GraphOptions) -> WalkPanel:
    """Columns that the memory allows; where these do not fill a line of the cache, more memory is taken for so many."""
    chosen = options.vectors
    kept = 4 * papers * (2 + sum(map(bool, chosen.fastrp.weights)))  # two scales, and gains of every power
    column = papers * (2 * _NUMBER + (2 if options.dtype == "float16" else 4))  # two panels, and what goes to files
    fitting = max(0, chosen.memory - kept) // column // NARROWEST * NARROWEST
    columns = min(chosen.dimension, max(fitting, LINE // _NUMBER))
    return WalkPanel(papers, columns, kept + columns * column)


def memory_asked(papers: int, options: GraphOptions) -> int:
    """The --memory that `citeweave graph` is run with: the one given, or the least for walks by whole lines."""
    given = options.vectors.memory
    return max(given, panel_of(papers, options).held) if options.vectors.method == "fastrp" else given
