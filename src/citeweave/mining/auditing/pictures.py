"""Pictures of an audit and of chosen bands, as files in a folder.

    pictures(audit, "audit/")           similarity-graph.png, relations.png
    band_pictures(bands, "bands/")      collisions.png, related.png

Names of vectors and rules may hold any signs, so files are numbered where a name cannot be one. Draws with
`citeweave.plots`; computes nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from citeweave import plots
from citeweave.mining.auditing.distances import SCORES
from citeweave.mining.auditing.report import SampleAudit
from citeweave.mining.banding.bands import Bands
from citeweave.mining.rule import VECTOR_SOURCES

_RELATIONS = {
    "cited": "cited",
    "citing": "citing",
    "cocited": "co-cited",
    "coupled": "coupled",
    "second_hop": "two hops away",
}
_MOST_BARS = 40
_SHOWN = 10
"""How far beyond the negatives curves are drawn, as a factor: nothing happens there any more."""


def pictures(audit: SampleAudit, folder: str | Path) -> list[Path]:
    """Draw how near each rule's picks are, for all vectors, and what its negatives are to their anchors."""
    folder, drawn = Path(folder), []
    for number, (name, distances) in enumerate(audit.distances.items()):
        groups = distances.values
        if name == SCORES:
            ranked = {rule.name for rule in audit.rules if rule.source in VECTOR_SOURCES}
            groups = {rule: values for rule, values in groups.items() if rule in ranked}
        if not groups or (name == SCORES and len(audit.distances) > 1):
            continue  # with vectors at hand, cosines say more than scores
        label = "score by which the rule ranked" if name == SCORES else f"cosine with the anchor, vectors {name!r}"
        path = folder / f"similarity-{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else number}.png"
        plots.histograms(path, groups, title="How near the picks of each rule are to their anchors", x_label=label)
        drawn.append(path)
    shares = {
        f"{rule.name}: {word}": 100 * rule.share(relation)
        for rule in audit.rules
        if rule.side == "negatives" and rule.relations
        for relation, word in _RELATIONS.items()
    }
    if 0 < len(shares) <= _MOST_BARS:
        path = folder / "relations.png"
        plots.bars(path, shares, title="What negatives are to their anchors", x_label="% of the rule's negatives")
        drawn.append(path)
    return drawn


def band_pictures(bands: Bands, folder: str | Path) -> list[Path]:
    """Draw the collisions and the related papers that each rank would give, with the bands chosen."""
    folder, drawn = Path(folder), [Path(folder) / "collisions.png"]
    marks: dict[str, float | tuple[float, float]] = {
        "positives": (max(bands.positive_rank - bands.positives, 0.8), bands.positive_rank),
        "hard negatives": float(bands.negative_rank),
    }
    last = _SHOWN * bands.negative_rank
    shown = bands.curve.ranks <= last
    plots.curve(
        drawn[0],
        bands.curve.ranks[shown],
        {"expected": 100 * bands.curve.shares[shown]},
        title="Hard negatives that are positives elsewhere, by their rank",
        x_label=f"rank of the hard negatives among {bands.pool:,} papers",
        y_label="% of them that collide",
        log_x=True,
        marks=marks,
    )
    if bands.related is not None:
        drawn.append(folder / "related.png")
        related = bands.related
        shown = related.ranks <= last
        series = {name: 100 * related.shares[name][shown] for name in ("connected", "co-cited", "coupled")}
        random = 100 * related.background["connected or co-cited"]
        plots.curve(
            drawn[1],
            related.ranks[shown],
            {**series, "random papers, either": np.full(int(shown.sum()), random)},
            title="Neighbours that citations relate to the anchor, by their rank",
            x_label=f"rank among {bands.pool:,} papers",
            y_label="% of the neighbours",
            log_x=True,
            marks=marks,
        )
    return drawn
