"""Charts from plain arrays as .png or .svg files: curves, growth by size, histograms, bars and maps of points.

    draw_curves("loss.png", [1, 2, 3], {"train": [0.9, 0.5, 0.4]}, title="Loss", x_label="epoch", y_label="loss")

The suffix of the file chooses the format. The same input gives the same bytes. Names and titles are untrusted plain text:
neither markup nor math. Computes nothing, knows nothing of papers, opens no window; not for several threads, as
matplotlib's settings are global.
"""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from citeweave.core import errors
from citeweave.core.errors import UserError, choose
from citeweave.core.files import resolve_output, write_atomically
from citeweave.core.randomness import stream

# suffix -> metadata left out of the file, so that it does not differ from day to day
FORMATS: dict[str, dict[str, None]] = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
# Okabe and Ito, Color Universal Design (2008), darkest first; without its yellow, which is lost on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9")
MAX_BARS, TINY, HUGE = 200, 1e-100, 1e100  # numbers beyond the last two break the arithmetic of axes
_LOOKS = [{"color": color, "linestyle": dash} for dash in ("-", "--", ":") for color in PALETTE]
_DIRECT = 4  # up to this many names are written at what they name; more go to a legend
_INK, _GRAY, _PALE = "#333333", "#666666", "#C8C8C8"
_STYLE: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.formatter.useoffset", "legend.frameon"), False),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size", "xtick.minor.size", "ytick.minor.size"), 0),
    **dict.fromkeys(("figure.constrained_layout.h_pad", "figure.constrained_layout.w_pad"), 0.1),
    **{"axes.grid": True, "axes.axisbelow": True, "axes.edgecolor": _PALE, "grid.color": "#E6E6E6"},
    **{"grid.linewidth": 0.6, "text.parse_math": False, "svg.hashsalt": "citeweave"},
    "svg.fonttype": "none",  # text stays text: it can be searched, and the viewer's fonts show every script
}
Target = str | Path
Axes = Any  # matplotlib's, which is imported when a chart is drawn
Numbers = NDArray[np.float64]
Tip = tuple[str, float | Numbers, float, str]  # name, x or several x, y, color


def draw_curves(
    path: Target,
    x: ArrayLike,
    series: Mapping[str, ArrayLike],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    marks: Mapping[str, float | tuple[float, float]] = {},
) -> None:
    """Draw lines over one x axis.

    x: shape (n,). series: name -> shape (n,), or (n, 3) with the columns value, low, high for a range of error.
    log_x: a logarithmic x axis. marks: name -> a number for a vertical line, or (low, high) for a shaded range of x.

        draw_curves("rank.svg", [1, 10, 100], {"cited": [0.9, 0.4, 0.1], "random": [[0.2, 0.1, 0.3]] * 3}, title="Positives",
              x_label="rank", y_label="share", log_x=True, marks={"k": 25, "hard negatives": (40, 60)})
    """
    lowest = TINY if log_x else -HUGE
    across, lines = _lines(x, series, (0, 3), lowest)
    places = {name: _numbers(np.ravel(place), f"mark {name!r}", lowest=lowest) for name, place in marks.items()}
    with _chart(path, title, "series", len(series)) as axes:
        axes.set(xscale="log" if log_x else "linear", xlabel=_one_line(x_label, 100), ylabel=_one_line(y_label, 60))
        drawn, ends = [], []
        for (name, line), look in zip(lines.items(), _LOOKS, strict=False):
            value, *errors = line.reshape(len(across), -1).T  # (n,), and two or none of the same
            drawn += axes.plot(across, value, marker="o" if len(across) <= 30 else "", ms=3.5, lw=1.8, **look)
            if errors:
                axes.fill_between(across, *errors, color=look["color"], alpha=0.15, linewidth=0)
            ends.append((name, across.max(), value[across.argmax()], look["color"]))
        for place in places.values():
            shade = {"alpha": 0.12, "linewidth": 0} if len(place) > 1 else {"linewidth": 1}
            axes.axvspan(place.min(), place.max(), color=_GRAY, zorder=1, **shade)
        _write_names(axes, [(name, place, 0, _GRAY) for name, place in places.items()], y=1.015)
        _write_names(axes, ends, drawn, x=1.012, ha="left", va="center")


def draw_growth(
    path: Target, x: ArrayLike, series: Mapping[str, ArrayLike], *, title: str, x_label: str, y_label: str
) -> None:
    """Draw costs against sizes on logarithmic axes, so that a power of the size is a straight line.

    x: shape (n,), above 0. series: name -> shape (n,), above 0. A thin gray line shows growth in proportion to x.

        draw_growth("graph.svg", [5e5, 5e6], {"fastrp": [0.5, 6.4]}, title="Cost", x_label="citations", y_label="CPU seconds")
    """
    across, lines = _lines(x, series, (0,), TINY, TINY)
    with _chart(path, title, "series", len(series), max_count=len(_LOOKS) - 1) as axes:
        axes.set(xscale="log", yscale="log", xlabel=_one_line(x_label, 100), ylabel=_one_line(y_label, 60))
        largest, drawn, ends = across.argmax(), [], []
        looks: list[dict[str, Any]] = [{"marker": "o", "ms": 3.5, "lw": 1.8, **look} for look in _LOOKS[: len(lines)]]
        looks.append({"color": _GRAY, "lw": 0.8, "zorder": 1})
        straight = max(line[largest] for line in lines.values()) * across / across.max()  # (n,)
        for name, line, look in zip([*lines, "in proportion"], [*lines.values(), straight], looks, strict=True):
            drawn += axes.plot(across, line, **look)
            ends.append((name, across.max(), line[largest], look["color"]))
        _write_names(axes, ends, drawn, x=1.012, ha="left", va="center")


def draw_histograms(
    path: Target, groups: Mapping[str, ArrayLike], *, title: str, x_label: str, bins: int = 40, share: bool = True
) -> None:
    """Draw a chart of how the values of several groups are distributed, as outlines over the same bins.

    groups: name -> shape (n of the group,). bins: how many, up to 10,000. share: each group sums to 1; else counts are shown.

        draw_histograms("years.png", {"cited": [2001, 2004], "citing": [2019, 2020]}, title="Years", x_label="year", bins=20)
    """
    samples = {name: _numbers(values, f"group {name!r}") for name, values in groups.items()}
    with _chart(path, title, "groups", len(groups)) as axes:
        try:
            edges = np.histogram_bin_edges(np.concatenate(list(samples.values())), min(bins, 10_000))  # (bins + 1,)
        except ValueError:
            raise UserError(f"bins is {bins}; it must be 1 or more and not finer than the values; change it") from None
        peaks, drawn = [], []
        for (name, sample), look in zip(samples.items(), _LOOKS, strict=False):
            heights = np.histogram(sample, edges)[0] / (len(sample) if share else 1)  # (bins,)
            drawn.append(axes.stairs(heights, edges, linewidth=1.6, **look))
            peaks.append((name, edges[heights.argmax() :][:2].mean(), 1.02 * heights.max(), look["color"]))
        axes.set(xlabel=_one_line(x_label, 100), ylabel="share of the group" if share else "count")
        _write_names(axes, peaks, drawn)


def draw_bars(
    path: Target, values: Mapping[str, float], *, title: str, x_label: str, errors: Mapping[str, float] | None = None
) -> None:
    """Draw horizontal bars, the first on top, each with its number.

    values: name -> length. errors: name -> what is added and taken away at a bar's end; names may be left out.

        draw_bars("ndcg.png", {"BM25": 0.61, "SPECTER": 0.74}, title="SciDocs", x_label="nDCG", errors={"SPECTER": 0.02})
    """
    lengths = {name: _numbers([value], f"bar {name!r}")[0] for name, value in values.items()}
    slack = dict.fromkeys(lengths, 0.0)
    for name, error in (errors or {}).items():
        slack[choose(name, lengths, "errors")] = _numbers([error], f"the error of {name!r}", lowest=0)[0]
    with _chart(path, title, "values", len(values), max_count=MAX_BARS, height=1.2 + 0.3 * len(values)) as axes:
        at = range(len(lengths))
        spread = {"xerr": list(slack.values()), "error_kw": {"ecolor": _INK, "elinewidth": 1.4}} if errors else {}
        drawn = axes.barh(at, list(lengths.values()), height=0.62, color=PALETTE[-1], **spread)
        numbers = [f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" for value in lengths.values()]
        axes.bar_label(drawn, [number.replace("-", "−") for number in numbers], padding=4, fontsize=9)
        axes.set(
            yticks=at, yticklabels=map(_one_line, lengths), ylim=(len(at) - 0.4, -0.6), xlabel=_one_line(x_label, 100)
        )
        axes.margins(x=0.14)
        axes.grid(visible=False, axis="y")
        axes.axvline(0, color=_GRAY, linewidth=0.8)


def draw_points(path: Target, xy: ArrayLike, groups: Sequence[object] | None = None, *, title: str) -> None:
    """Draw a chart with one dot per row, as for a map; the axes carry no numbers, since only nearness means something.

    xy: shape (n, 2). groups: n labels or None; the largest get a color each, all others are gray.

        draw_points("map.png", [[0, 0], [1, 1], [1, 0]], ["physics", "biology", "biology"], title="Papers")
    """
    positions = _numbers(xy, "xy", (2,))  # (n, 2)
    labels = [""] * len(positions) if groups is None else [str(label) for label in groups]
    if len(labels) != len(positions):
        raise UserError(f"groups holds {len(labels):,} labels for {len(positions):,} points; give one for each")
    names = [name for name, _ in Counter(sorted(labels)).most_common()]
    rank = {name: min(number, len(PALETTE)) for number, name in enumerate(names)}
    group_of = np.array([rank[label] for label in labels])  # (n,)
    if len(names) > len(PALETTE) + 1:  # a single one keeps its name
        names[len(PALETTE) :] = [f"others ({len(names) - len(PALETTE):,})"]
    # drawn in a random order, else the last group lies over all others
    order = stream(0, "plots", "points").permutation(len(positions))  # (n,)
    wide, high = np.maximum(np.ptp(positions, axis=0), TINY)
    with _chart(path, title, height=float(np.clip(0.8 + 7.6 * high / wide, 3.6, 6.4))) as axes:  # no empty bands
        colors = np.array([*PALETTE, _PALE])  # (8,)
        # an image inside an .svg, as a million circles would stop a browser
        dots = {"s": np.clip(20_000 / len(positions), 1.5, 24), "linewidths": 0, "alpha": 0.7, "rasterized": True}
        axes.scatter(*positions[order].T, c=colors[group_of[order]], **dots)
        axes.set_aspect("equal")
        axes.set_axis_off()
        if groups is not None:
            tips = [
                (name, *np.median(positions[group_of == number], axis=0), colors[number])
                for number, name in enumerate(names)
            ]
            _write_names(
                axes, tips, [axes.plot([], [], "o", color=tip[-1])[0] for tip in tips], va="center", weight="bold"
            )


@contextmanager
def _chart(
    path: Target, title: str, what: str = "", count: int = 1, *, max_count: int = len(_LOOKS), height: float = 4.8
) -> Iterator[Axes]:
    """Yield empty axes in our style; the chart is written at the end, or nothing if that fails."""
    path = Path(path)
    if (suffix := path.suffix.lower()) not in FORMATS:
        raise UserError(f"{path} is not the name of a chart; it must end in {' or '.join(FORMATS)}")
    if not 1 <= count <= max_count:
        raise UserError(f"{what} holds {count:,} names; a chart shows 1 to {max_count}")
    with errors.require("matplotlib.style", extra="plots").context(_STYLE, after_reset=True), io.BytesIO() as buffer:
        figures = errors.require("matplotlib.figure", extra="plots")
        figure = figures.Figure(figsize=(8, height), dpi=200, layout="constrained")
        heading = textwrap.wrap(_one_line(title, 1000), 70, max_lines=2, placeholder=" …")
        figure.suptitle("\n".join(heading), x=0.012, ha="left", fontsize=13, weight="bold")
        axes = figure.subplots()
        yield axes
        _number_ticks(axes)
        figure.savefig(buffer, format=suffix[1:], metadata=FORMATS[suffix])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(resolve_output(path), buffer.getvalue())
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); name another place") from None


def _number_ticks(axes: Axes) -> None:
    """Set tick labels: integers where the data end in such, separators from 10,000 on, since less may be a year."""
    ticker = errors.require("matplotlib.ticker", extra="plots")
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        start, end = axis.get_data_interval()
        if axis.get_scale() == "log":
            narrow = high / low < (1000 if high < 1_000_000 else 100)  # long numbers need room
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if narrow else (1,)))
            axis.set_minor_formatter(ticker.NullFormatter())
        elif isinstance(axis.get_major_locator(), ticker.AutoLocator) and end - start >= 2:
            axis.get_major_locator().set_params(integer=start % 1 == end % 1 == 0)
        if axis.get_scale() == "log" or max(abs(low), abs(high)) >= 10_000:
            axis.set_major_formatter("{x:,.13g}")


def _write_names(
    axes: Axes, tips: Sequence[Tip], drawn: Sequence[Any] = (), x: float = 0, y: float = 0, **style: str
) -> None:
    """Write names at their tips, or at this x or y of 0 to 1; overlapping ones move up, and many go to a legend."""
    if len(drawn) > _DIRECT:
        axes.legend(drawn, [_one_line(tip[0]) for tip in tips], loc="upper left", bbox_to_anchor=(1, 1), fontsize=9)
        return
    axes.autoscale_view()
    taken: list[tuple[float, float, float]] = []  # height, middle and half of the width of each name
    for name, xs, end, color in sorted(tips, key=lambda tip: tip[2]):
        at, up = (axes.transScale + axes.transLimits).transform([(one, end) for one in np.ravel(xs)]).mean(axis=0)
        at, up = x or at, y or up
        # a generous estimate: the true width is known only after layout
        half = 0.006 * len(_one_line(name)) + 0.01
        for height, middle, width in sorted(taken):
            if abs(at - middle) < half + width and abs(up - height) < 0.05:
                up = height + 0.05
        taken.append((up, at, half))
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
        axes.text(at, up, _one_line(name), color=color, bbox=box, transform=axes.transAxes, **{"ha": "center", **style})


def _one_line(text: object, max_length: int = 40) -> str:
    """Return one line of printable characters; control characters and lone surrogates would break an .svg file."""
    line = "".join(character for character in " ".join(str(text).split()) if character.isprintable())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def _lines(
    x: ArrayLike, series: Mapping[str, ArrayLike], columns: Sequence[int], lowest_x: float, lowest: float = -HUGE
) -> tuple[Numbers, dict[str, Numbers]]:
    """Return x and the values of every series of a chart, which must be one for each x."""
    across = _numbers(x, "x", lowest=lowest_x)  # (n,)
    lines = {name: _numbers(values, f"series {name!r}", columns, lowest=lowest) for name, values in series.items()}
    for name, line in lines.items():
        if len(line) != len(across):
            raise UserError(f"series {name!r} holds {len(line):,} values for {len(across):,} of x; give one for each")
    return across, lines


def _numbers(values: ArrayLike, what: str, columns: Sequence[int] = (0,), *, lowest: float = -HUGE) -> Numbers:
    """Return values as an array with one of these numbers of columns, 0 for none, or raise an error that names `what`."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{what} holds something that is not a number; give numbers only") from None
    if not array.size:
        raise UserError(f"{what} is empty; give at least one value")
    if array.ndim not in (1, 2) or (array.shape[1] if array.ndim == 2 else 0) not in columns:
        shapes = " or ".join(f"(n, {width})" if width else "(n,)" for width in columns)
        raise UserError(f"{what} has the shape {array.shape}; it must be {shapes}")
    bad = array[~((array >= lowest) & (array <= HUGE))]
    if bad.size:
        raise UserError(f"{what} holds {bad[0]:g}; it must be a number from {lowest:g} to {HUGE:g}: leave it out")
    return array
