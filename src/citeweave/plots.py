"""Pictures from plain arrays: curves, histograms, bars and maps of points, as .png or .svg by the file's suffix.

    curve("loss.png", [1, 2, 3], {"train": [0.9, 0.5, 0.4]}, title="Loss", x_label="epoch", y_label="loss")

The same input gives the same bytes. Names and titles are plain text, whoever wrote them: neither markup nor maths.
Does not compute what it shows, knows nothing of papers, and opens no window. Not for several threads at once:
matplotlib keeps its settings in one place, which is changed while a picture is drawn and put back after it.
"""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from citeweave import extras
from citeweave.errors import UserError, choose
from citeweave.randomness import stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS: dict[str, dict[str, None]] = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
"""Suffix -> what is left out of the file's metadata, so that it does not differ from day to day."""

# Okabe and Ito, Color Universal Design (2008), darkest first; without its yellow, which is lost on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9")
MAX_BARS = 200
_LOOKS = [{"color": color, "linestyle": dash} for dash in ("-", "--", ":") for color in PALETTE]
_DIRECT = 4  # up to so many names stand beside what they name; more go to a legend
_INK, _GREY, _PALE = "#333333", "#666666", "#C8C8C8"
_STYLE: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), _INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), _PALE),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.formatter.useoffset", "legend.frameon"), False),
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#E6E6E6", "grid.linewidth": 0.6, "figure.dpi": 200},
    "text.parse_math": False,
    "svg.fonttype": "none",  # text stays text: it can be searched, and a reader's fonts show every script
    "svg.hashsalt": "citeweave",
}

Numbers = NDArray[np.float64]


def curve(
    path: str | Path,
    x: ArrayLike,
    series: Mapping[str, ArrayLike],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    marks: Mapping[str, float | tuple[float, float]] = {},
) -> None:
    """Draw lines over one x.

    x: shape (n,). series: name -> shape (n,), or (n, 3) with the columns value, low, high for a range of error.
    log_x: a logarithmic x axis. marks: name -> a number for a vertical line, or (low, high) for a shaded range of x.

        curve("rank.svg", [1, 10, 100], {"cited": [0.9, 0.4, 0.1], "random": [[0.2, 0.1, 0.3]] * 3}, title="Positives",
              x_label="rank", y_label="share", log_x=True, marks={"k": 25, "hard negatives": (40, 60)})
    """
    across = _numbers(x, "x", log=log_x)  # (n,)
    lines = {name: _numbers(values, f"series {name!r}", (0, 3)) for name, values in series.items()}
    places = {name: _numbers(np.atleast_1d(place), f"mark {name!r}", log=log_x) for name, place in marks.items()}
    for name, line in lines.items():
        if len(line) != len(across):
            raise UserError(f"series {name!r} holds {len(line):,} values for {len(across):,} of x; give one for each")
    for name, place in places.items():
        if len(place) > 2 or place[0] > place[-1]:
            raise UserError(f"mark {name!r} is {marks[name]!r}; it must be one number or a pair (low, high)")
    with _picture(path, title, series, "series") as axes:
        axes.set_xscale("log" if log_x else "linear")
        axes.set(xlabel=_text(x_label, 100), ylabel=_text(y_label, 60))
        drawn = []
        for line, look in zip(lines.values(), _LOOKS, strict=False):
            value, *errors = line.reshape(len(across), -1).T  # (n,), and two or none of the same
            marker = "o" if len(across) <= 30 else ""
            drawn += axes.plot(across, value, linewidth=1.8, marker=marker, markersize=3.5, **look)
            if errors:
                axes.fill_between(across, *errors, color=look["color"], alpha=0.15, linewidth=0)
        _mark(axes, places)
        if len(lines) > _DIRECT:
            _legend(axes, drawn, lines)
        else:
            _name_ends(axes, {name: line[across.argmax()].flat[0] for name, line in lines.items()})


def histograms(
    path: str | Path, groups: Mapping[str, ArrayLike], *, title: str, x_label: str, bins: int = 40, share: bool = True
) -> None:
    """Draw outlines of how the values of several groups are spread, over the same bins.

    groups: name -> shape (n of the group,). bins: how many. share: each group sums to 1; else counts are shown.

        histograms("years.png", {"cited": [2001, 2004], "citing": [2019, 2020]}, title="Years", x_label="year", bins=20)
    """
    samples = {name: _numbers(values, f"group {name!r}") for name, values in groups.items()}
    if not 1 <= bins <= 10_000:
        raise UserError(f"bins is {bins}; it must be 1 to 10,000")
    with _picture(path, title, groups, "groups") as axes:
        ends = np.array([(sample.min(), sample.max()) for sample in samples.values()])  # (groups, 2)
        edges = np.histogram_bin_edges(ends, bins)  # (bins + 1,)
        peaks, drawn = {}, []
        for (name, sample), look in zip(samples.items(), _LOOKS, strict=False):
            heights = np.histogram(sample, edges)[0] / (len(sample) if share else 1)  # (bins,)
            drawn.append(axes.stairs(heights, edges, linewidth=1.6, **look))
            peaks[name] = (float(edges[heights.argmax() :][:2].mean()), float(heights.max()))
        axes.set(xlabel=_text(x_label, 100), ylabel="share of the group" if share else "count")
        if len(samples) > _DIRECT:
            _legend(axes, drawn, samples)
        else:
            _name_peaks(axes, peaks)


def bars(
    path: str | Path,
    values: Mapping[str, float],
    *,
    title: str,
    x_label: str,
    errors: Mapping[str, float] | None = None,
) -> None:
    """Draw horizontal bars, the first on top, each with its number.

    values: name -> length. errors: name -> what is added and taken away at a bar's end; names may be left out.

        bars("ndcg.png", {"BM25": 0.61, "SPECTER": 0.74}, title="SciDocs", x_label="nDCG", errors={"SPECTER": 0.02})
    """
    lengths = {name: _numbers([value], f"bar {name!r}")[0] for name, value in values.items()}
    slack = dict.fromkeys(lengths, 0.0)
    for name, error in (errors or {}).items():
        slack[choose(name, lengths, "a name in errors")] = _numbers([error], f"the error of {name!r}")[0]
        if error < 0:
            raise UserError(f"the error of {name!r} is {error:g}; it must be 0 or more")
    with _picture(path, title, values, "values", most=MAX_BARS, height=1.2 + 0.3 * len(lengths)) as axes:
        spread = {"xerr": list(slack.values()), "error_kw": {"ecolor": _INK, "elinewidth": 1.4}} if errors else {}
        drawn = axes.barh(range(len(lengths)), list(lengths.values()), height=0.62, color=PALETTE[0], **spread)
        numbers = [f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" for value in lengths.values()]
        axes.bar_label(drawn, numbers, padding=4, fontsize=9)
        axes.set_yticks(range(len(lengths)), [_text(name) for name in lengths])
        axes.set(ylim=(len(lengths) - 0.4, -0.6), xlabel=_text(x_label, 100))
        axes.margins(x=0.1)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.axvline(0, color=_GREY, linewidth=0.8)


def points(path: str | Path, xy: ArrayLike, groups: Sequence[object] | None = None, *, title: str) -> None:
    """Draw a map: one dot a row, near ones near; the axes carry no numbers, as only nearness means something.

    xy: shape (n, 2). groups: n labels or None; the largest get a colour each, all others are grey.

        points("map.png", [[0, 0], [1, 1], [1, 0]], ["physics", "biology", "biology"], title="Papers")
    """
    spots = _numbers(xy, "xy", (2,))  # (n, 2)
    labels = [""] * len(spots) if groups is None else [str(label) for label in groups]
    if len(labels) != len(spots):
        raise UserError(f"groups holds {len(labels):,} labels for {len(spots):,} points; give one for each")
    names = [name for name, _ in sorted(Counter(labels).items(), key=lambda item: (-item[1], item[0]))]
    rank = {name: min(at, len(PALETTE)) for at, name in enumerate(names)}
    which = np.array([rank[label] for label in labels])  # (n,)
    if len(names) > len(PALETTE):
        names[len(PALETTE) :] = [f"others ({len(names) - len(PALETTE):,})"]
    # drawn in a random order, else the last group lies over all others
    order = stream(0, "plots", "points").permutation(len(spots))  # (n,)
    with _picture(path, title, height=6.4) as axes:
        colors = np.array([*PALETTE, _PALE])  # (8,)
        # an image inside an .svg, as a million circles would stop a browser
        dots = {"s": np.clip(20_000 / len(spots), 1.5, 24), "linewidths": 0, "alpha": 0.7, "rasterized": True}
        axes.scatter(*spots[order].T, c=colors[which[order]], **dots)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set(xticks=[], yticks=[])
        if len(names) > _DIRECT:
            _legend(
                axes, [axes.plot([], [], "o", markersize=5, color=color)[0] for color in colors[: len(names)]], names
            )
        elif groups is not None:
            middles = np.array([np.median(spots[which == at], axis=0) for at in range(len(names))])  # (groups, 2)
            for name, x, y, color in zip(names, middles[:, 0], _apart(axes, middles[:, 1]), colors, strict=False):
                box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
                axes.text(x, y, _text(name), color=color, weight="bold", ha="center", va="center", bbox=box)


@contextmanager
def _picture(
    path: str | Path,
    title: str,
    named: Mapping[str, object] = {"": 0},
    what: str = "",
    *,
    most: int = len(_LOOKS),
    height: float = 4.8,
) -> Iterator[Axes]:
    """Empty axes in the house style; what is drawn on them is written at the end, or nothing where that fails."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"{path} is not the name of a picture; it must end in {' or '.join(FORMATS)}")
    if not 1 <= len(named) <= most:
        raise UserError(f"{what} holds {len(named):,} names; a picture shows 1 to {most}")
    figures, style = (extras.require(f"matplotlib.{name}", extra="plots") for name in ("figure", "style"))
    buffer = io.BytesIO()
    with style.context(_STYLE, after_reset=True):
        figure = figures.Figure(figsize=(8, height), layout="constrained")
        axes = figure.subplots()
        heading = textwrap.wrap(_text(title, 1000), 70, max_lines=2, placeholder=" …")
        figure.suptitle("\n".join(heading), x=0.01, ha="left", fontsize=13, weight="bold")
        yield axes
        _number_ticks(axes)
        figure.savefig(buffer, format=path.suffix[1:].lower(), metadata=FORMATS[path.suffix.lower()])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); name another place") from None


def _number_ticks(axes: Axes) -> None:
    """Numbers with separators where they are long; below 10,000 they may be years, which have none."""
    ticker = extras.require("matplotlib.ticker", extra="plots")
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if axis.get_scale() == "log":
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
            axis.set_minor_formatter(ticker.NullFormatter())
        if axis.get_scale() == "log" or max(abs(low), abs(high)) >= 10_000:
            axis.set_major_formatter("{x:,.10g}")


def _mark(axes: Axes, places: Mapping[str, Numbers]) -> None:
    """Lines and shaded ranges, named above the axes, in as many rows as keep the names apart."""
    for place in places.values():
        if len(place) == 2:
            axes.axvspan(*place, color=_GREY, alpha=0.12, linewidth=0, zorder=0)
        else:
            axes.axvline(place[0], color=_GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.autoscale_view()
    rows: list[float] = []  # where the last name of each row ends, in widths of the axes
    for name, place in sorted(places.items(), key=lambda item: item[1][0]):
        at = float(np.mean([(axes.transScale + axes.transLimits).transform((x, 0))[0] for x in place]))
        half = _width(name) / 2
        row = next((row for row, end in enumerate(rows) if end < at - half), len(rows))
        rows[row : row + 1] = [at + half]
        axes.text(at, 1.012 + 0.045 * row, _text(name), color=_GREY, fontsize=9, ha="center", transform=axes.transAxes)


def _name_ends(axes: Axes, ends: Mapping[str, float]) -> None:
    """Each line's name right of its last point."""
    places = _apart(axes, np.array(list(ends.values())))
    for name, place, look in zip(ends, places, _LOOKS, strict=False):
        axes.text(1.012, place, _text(name), color=look["color"], va="center", transform=axes.get_yaxis_transform())


def _name_peaks(axes: Axes, peaks: Mapping[str, tuple[float, float]]) -> None:
    """Each outline's name above its highest bin; of names that would meet, the higher one moves up."""
    top = max(y for _, y in peaks.values())
    looks = dict(zip(peaks, _LOOKS, strict=False))
    axes.autoscale_view()
    taken: list[tuple[float, float, float]] = []  # middle, half a width, height
    for name, (x, y) in sorted(peaks.items(), key=lambda item: item[1][1]):
        half = _width(name) / 2
        at = float(np.clip((axes.transScale + axes.transLimits).transform((x, 0))[0], half, 1 - half))
        for other, other_half, height in taken:
            if abs(at - other) < half + other_half and y < height + 0.06 * top:
                y = height + 0.06 * top
        taken.append((at, half, y))
        color = looks[name]["color"]
        axes.text(at, y + 0.01 * top, _text(name), color=color, ha="center", transform=axes.get_yaxis_transform())
    axes.set_ylim(0, max(y for _, _, y in taken) + 0.08 * top)


def _apart(axes: Axes, places: Numbers) -> Numbers:
    """The nearest places on the y axis that are a line of text apart: isotonic regression by its max-min formula."""
    low, high = axes.get_ylim()
    order = np.argsort(places, kind="stable")
    steps = 0.052 * (high - low) * np.arange(len(places))
    loose = places[order] - steps
    ends = range(len(places))
    moved = np.empty(len(places))
    moved[order] = steps + [max(min(loose[a : b + 1].mean() for b in ends[i:]) for a in ends[: i + 1]) for i in ends]
    return moved


def _legend(axes: Axes, drawn: Sequence[Any], names: Sequence[str] | Mapping[str, object]) -> None:
    axes.legend(drawn, [_text(name) for name in names], loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)


def _width(name: str) -> float:
    """Of a name in small type, in widths of the axes: about, and rather too much."""
    return 0.0125 * len(_text(name)) + 0.02


def _text(text: object, most: int = 40) -> str:
    """One line of signs that can be shown; control signs and lone surrogates would make an .svg unreadable."""
    line = "".join(sign for sign in " ".join(str(text).split()) if sign.isprintable())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _numbers(values: ArrayLike, what: str, columns: Sequence[int] = (0,), *, log: bool = False) -> Numbers:
    """The values as an array with one of these numbers of columns, 0 for none, or an error that says `what`."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{what} holds something that is not a number; give numbers only") from None
    if (array.shape[1] if array.ndim == 2 else array.ndim - 1) not in columns:
        shapes = " or ".join(f"(n, {width})" if width else "(n,)" for width in columns)
        raise UserError(f"{what} has the shape {array.shape}; it must be {shapes}")
    if not array.size:
        raise UserError(f"{what} is empty; give at least one value")
    bad = ~(np.abs(array) < 1e100) | (log & (array <= 0))
    if bad.any():
        rule = "finite and above 0, as the axis is logarithmic" if log else "finite"
        raise UserError(f"{what} holds {array[bad][0]:g}; every value must be {rule}: leave out what is not")
    return array
