"""Pictures: what is given is in them, the same bytes each time, and no text can break out of its place."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from citeweave.core.plots import MAX_BARS, draw_bars, draw_curves, draw_growth, draw_histograms, draw_points
from citeweave.core.randomness import stream

from .conftest import refused

matplotlib = pytest.importorskip("matplotlib")

LABELS = {"title": "A title", "x_label": "rank", "y_label": "share"}
RANDOM = stream(0, "test of plots").normal(size=(200, 2))

SERIES = {"cited": [0.9, 0.4, 0.1], "random": [[0.2, 0.1, 0.3]] * 3}
MARKS = {"k = 25": 25, "hard": (100, 300)}
BARS = {"BM25": 0.61, "SPECTER": -0.74}
GROUPS = {"near": RANDOM[:, 0], "far": RANDOM[:, 1] + 3}

DRAW = {
    "curve": lambda path: draw_curves(path, [1, 10, 2000], SERIES, log_x=True, marks=MARKS, **LABELS),
    "growth": lambda path: draw_growth(path, [10, 1000], {"cited": [0.1, 9], "random": [3, 20]}, **LABELS),
    "histograms": lambda path: draw_histograms(path, GROUPS, title="A title", x_label="distance"),
    "bars": lambda path: draw_bars(path, BARS, title="A title", x_label="nDCG", errors={"SPECTER": 0.02}),
    "points": lambda path: draw_points(path, RANDOM, ["a", "b"] * 100, title="A title"),
}


def texts(path):
    """Every piece of text of an .svg; fails where it is not well-formed."""
    return ["".join(node.itertext()) for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def settings():
    # to ask for the backend is to choose one
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}


def heights(path, names):
    """Where names stand in an .svg, in points from its upper end."""
    nodes = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    return {node.text: float(node.get("y", "")) for node in nodes if node.text in names}


@pytest.mark.parametrize("suffix", ["png", "SVG"])
@pytest.mark.parametrize("kind", DRAW)
def test_right_files_of_the_same_bytes_under_any_settings_which_stay_as_they_were(tmp_path, kind, suffix):
    DRAW[kind](tmp_path / f"new folder/one.{suffix}")
    data = (tmp_path / f"new folder/one.{suffix}").read_bytes()
    if suffix == "png":
        assert b"Matplotlib" not in data
        assert data.startswith(b"\x89PNG\r\n\x1a\n") and struct.unpack(">I", data[16:20]) == (1600,)
    else:
        assert "A title" in texts(tmp_path / "new folder/one.SVG")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "s", "text.usetex": True}):
        before = settings()
        DRAW[kind](tmp_path / f"two.{suffix}")
        assert settings() == before
    assert data == (tmp_path / f"two.{suffix}").read_bytes()


def test_the_same_bytes_in_another_process_and_no_global_state(tmp_path):
    code = """if True:
        import sys
        from citeweave.core.plots import draw_points
        assert "matplotlib" not in sys.modules
        draw_points(sys.argv[1], [[0, 0], [1, 2], [2, 1]], ["a", "b", "b"], title="A title")
        assert "matplotlib.pyplot" not in sys.modules
    """
    environment = {**os.environ, "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1"}
    subprocess.run([sys.executable, "-c", code, tmp_path / "one.svg"], check=True, env=environment)
    draw_points(tmp_path / "two.svg", [[0, 0], [1, 2], [2, 1]], ["a", "b", "b"], title="A title")
    one, two = (hashlib.sha256((tmp_path / name).read_bytes()).digest() for name in ("one.svg", "two.svg"))
    assert one == two


@pytest.mark.parametrize(("count", "legend"), [(4, False), (5, True), (21, True)])
def test_few_series_are_named_at_their_ends_and_many_in_a_legend(tmp_path, count, legend):
    series = {f"_run {i}": [0, 1, i] for i in range(count)}
    draw_curves(tmp_path / "p.svg", [1, 2, 3], series, **LABELS)
    assert (b'id="legend_1"' in (tmp_path / "p.svg").read_bytes()) == legend
    assert series.keys() <= set(texts(tmp_path / "p.svg"))


def test_names_of_lines_and_marks_stand_apart_in_their_order(tmp_path):
    path, ends = tmp_path / "p.svg", {"a": 5.0, "b": 5.001, "c": 0.0, "d": 5.0}
    draw_curves(path, [1, 2], {name: [1, end] for name, end in ends.items()}, **LABELS)
    found = heights(path, {*ends})
    assert sorted(found, key=found.__getitem__) == ["b", "d", "a", "c"]  # from above; y counts downwards
    assert np.diff(sorted(found.values())).min() > 10
    # a line is named where its x is largest
    draw_curves(path, [3, 2, 1], {"falls": [0, 5, 9], "rises": [9, 5, 0]}, **LABELS)
    found = heights(path, {"falls", "rises"})
    assert found["rises"] < found["falls"]
    marks = {"here": 2.0, "almost here": (1.9, 2.2), "far": 9.0}
    draw_curves(path, [1, 10], {"a": [1, 2]}, marks=marks, **LABELS)
    found = heights(path, {*marks})
    assert found["here"] == found["far"] > found["almost here"] + 10
    DRAW["growth"](path)
    assert {"cited", "random", "in proportion", "10", "1,000"} <= set(texts(path))


AXES = [
    ([1, 100_000], True, {"1", "1,000", "100,000"}, "1000"),
    ([30, 700], True, {"50", "100", "200", "500"}, "1000"),
    ([1990, 2010], False, {"1990", "2010"}, "2002.5"),
    ([0, 100_000], False, {"20,000", "100,000"}, "20000"),
    ([-0.5, 1.5], False, {"−0.50", "0.00"}, "-0.50"),
]


@pytest.mark.parametrize(("x", "log_x", "shown", "hidden"), AXES)
def test_numbers_of_axes(tmp_path, x, log_x, shown, hidden):
    draw_curves(tmp_path / "p.svg", x, {"a": [7, 7]}, log_x=log_x, **LABELS)
    found = set(texts(tmp_path / "p.svg"))
    assert shown <= found and hidden not in found


def test_histograms_show_shares_or_counts(tmp_path):
    groups = {"a": [0, 0, 0, 1], "b": [1]}
    draw_histograms(tmp_path / "p.svg", groups, title="t", x_label="x", bins=2)
    assert {"1.0", "share of the group", "a", "b"} <= set(texts(tmp_path / "p.svg"))
    draw_histograms(tmp_path / "q.svg", groups, title="t", x_label="x", bins=2, share=False)
    assert {"3", "count"} <= set(texts(tmp_path / "q.svg"))


def test_bars_stand_in_their_order_with_their_numbers(tmp_path):
    values = {"first": -12345.6, "second": 0.12345, "third": 7}
    draw_bars(tmp_path / "p.svg", values, title="t", x_label="x")
    assert {"−12,346", "0.123", "7"} <= set(texts(tmp_path / "p.svg"))
    found = heights(tmp_path / "p.svg", {*values})
    assert found["first"] < found["second"] < found["third"]


def test_a_map_names_the_largest_groups_and_is_an_image(tmp_path):
    groups = np.repeat(np.arange(12), np.arange(12, 0, -1) * 10)
    spots = stream(1, "test of plots").normal(size=(len(groups), 2))
    draw_points(tmp_path / "p.svg", spots, list(groups), title="t")
    assert texts(tmp_path / "p.svg") == ["0", "1", "2", "3", "4", "5", "6", "others (5)", "t"]
    data = (tmp_path / "p.svg").read_bytes()
    assert data.count(b"<image") == 1
    draw_points(tmp_path / "q.svg", spots, None, title="t")
    assert texts(tmp_path / "q.svg") == ["t"]
    few = groups < 8
    draw_points(tmp_path / "r.svg", spots[few], list(groups[few]), title="t")
    assert "7" in texts(tmp_path / "r.svg")


EVIL = ["<script>alert(1)</script>", "]]><b>&lt;", '"><a href="x"/>', "--><!--"]
EVIL += ["$x^2$", "$\\frac{", "\\$", "{x}", "%s"]


@pytest.mark.parametrize("names", [EVIL[:4], EVIL[4:8], EVIL], ids=["markup", "maths", "legend"])
def test_text_is_text_everywhere(tmp_path, names):
    title, x_label, y_label = names[:3]
    labels, marks = {"title": title, "x_label": x_label, "y_label": y_label}, {name + "!": 1.5 for name in names}
    draw_curves(tmp_path / "curve.svg", [1, 2], {name: [1, 2] for name in names}, marks=marks, **labels)
    draw_points(tmp_path / "points.svg", RANDOM[: len(names)], names, title=title)
    draw_bars(tmp_path / "bars.svg", dict.fromkeys(names, 1), title=title, x_label=x_label)
    assert {*names, *(name + "!" for name in names)} <= set(texts(tmp_path / "curve.svg"))
    assert {*sorted(names)[:7], title} <= set(texts(tmp_path / "points.svg"))
    assert {*names, title} <= set(texts(tmp_path / "bars.svg"))
    for path in tmp_path.iterdir():
        assert not {node.tag.rpartition("}")[2] for node in ElementTree.parse(path).iter()} & {"script", "b", "a"}


@pytest.mark.filterwarnings("ignore:Glyph")
def test_any_unicode_makes_a_readable_file(tmp_path):
    characters = stream(2, "test of plots").integers(0, 0x110000, size=(33, 8))
    characters[:, 0] = np.arange(33)  # control characters
    characters[:5, 1] = [0xD800, 0xDFFF, 0xFFFE, 0xFFFF, 0x202E]
    names = ["".join(map(chr, row)) + f"name {i}" for i, row in enumerate(characters)]
    values = {name: i for i, name in enumerate(names)}
    draw_bars(tmp_path / "p.svg", values, title="".join(names[:5]), x_label="\x00\ud800")
    assert sum("name" in text for text in texts(tmp_path / "p.svg")) == 33 + 1
    draw_bars(tmp_path / "p.png", dict.fromkeys(names[:5], 1), title="a\nb\x1b[31m", x_label="\ud800")


def test_long_text_is_cut_and_long_titles_have_two_lines(tmp_path):
    draw_bars(tmp_path / "p.svg", {"n" * 10_000: 1}, title="word " * 1000, x_label="x")
    found = texts(tmp_path / "p.svg")
    assert "n" * 39 + "…" in found and max(map(len, found)) <= 70
    assert sum(text.startswith("word") for text in found) == 2


def curves(x, series, **options):
    return lambda path: draw_curves(path / "p.png", x, series, **{**LABELS, **options})


def growth(x, series):
    return lambda path: draw_growth(path / "p.png", x, series, **LABELS)


def bars(values, **options):
    return lambda path: draw_bars(path / "p.png", values, title="t", x_label="x", **options)


def histograms(groups, **options):
    return lambda path: draw_histograms(path / "p.png", groups, title="t", x_label="x", **options)


def points(xy, groups=None):
    return lambda path: draw_points(path / "p.png", xy, groups, title="t")


ENDS = "must end in .png or .svg"


BAD_INPUT = [
    (lambda path: draw_curves(path / "p.jpg", [1], {"a": [1]}, **LABELS), f"p.jpg is not .* {ENDS}"),
    (lambda path: draw_points(path / "p", [[0, 0]], title="t"), ENDS),
    (curves([], {"a": []}), "x is empty"),
    (curves([1], {}), "series holds 0 names; a chart shows 1 to 21"),
    (curves([1], {str(i): [1] for i in range(22)}), "series holds 22 names"),
    (curves([1, 2], {"a": [1]}), "series 'a' holds 1 values for 2 of x"),
    (curves([1, 2], {"a": [1, np.nan]}), r"series 'a' holds nan; it must be a number from -1e\+100 to 1e\+100"),
    (curves([1, 2], {"a": [[1, 2, 3], [1, 2, np.inf]]}), "series 'a' holds inf"),
    (curves([1, 2], {"a": [[1, 2]] * 2}), r"series 'a' has the shape \(2, 2\); it must be \(n,\) or \(n, 3\)"),
    (curves([1, 2], {"a": np.ones((2, 1, 3, 1))}), "series 'a' has the shape"),
    (curves([1, 2], {"a": ["x", "y"]}), "series 'a' holds something that is not a number"),
    (curves([1, 2], {"a": [1, 10**400]}), "series 'a' holds something"),
    (curves([-np.inf, 2], {"a": [1, 2]}), "x holds -inf"),
    (curves([0, 2], {"a": [1, 2]}, log_x=True), "x holds 0; it must be a number from 1e-100"),
    (curves([1, 2], {"a": [1, 2]}, marks={"m": np.nan}), "mark 'm' holds nan"),
    (curves([1, 2], {"a": [1, 2]}, marks={"m": (0, 1)}, log_x=True), "mark 'm' holds 0"),
    (growth([1, 2], {"a": [1, 0]}), "series 'a' holds 0; it must be a number from 1e-100"),
    (growth([0, 2], {"a": [1, 1]}), "x holds 0"),
    (growth([1, 2], {"a": [1]}), "series 'a' holds 1 values for 2 of x"),
    (growth([1, 2], {}), "series holds 0 names"),
    (histograms({}), "groups holds 0 names"),
    (histograms({"a": [1], "b": []}), "group 'b' is empty"),
    (histograms({"a": [1, np.inf]}), "group 'a' holds inf"),
    (histograms({"a": [1, 2]}, bins=0), "bins is 0"),
    (histograms({"a": [1e99]}), "bins is 40; .* not finer than the values"),
    (bars({}), "values holds 0 names"),
    (bars(dict.fromkeys(map(str, range(MAX_BARS + 1)), 1)), "values holds 201 names"),
    (bars({"a": np.nan}), "bar 'a' holds nan"),
    (bars({"alpha": 1}, errors={"alpah": 1}), "Did you mean 'alpha'"),
    (bars({"a": 1}, errors={"a": -1}), "the error of 'a' holds -1; it must be a number from 0 to"),
    (points([]), "xy is empty"),
    (points([[1, 2, 3]]), r"xy has the shape \(1, 3\); it must be \(n, 2\)"),
    (points(np.ones((2, 3, 2))), "xy has the shape"),
    (points([[0, np.nan]]), "xy holds nan"),
    (points([[0, 0]], ["a", "b"]), "groups holds 2 labels for 1 points"),
]


@pytest.mark.parametrize(("draw", "message"), BAD_INPUT)
def test_bad_input_is_one_clear_error_and_leaves_no_file(tmp_path, draw, message):
    refused(message, draw, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "file/p.svg", tmp_path / "folder.svg"):
        (tmp_path / "folder.svg").mkdir(exist_ok=True)
        refused("p.svg cannot be written|folder.svg cannot be written", DRAW["bars"], path)
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.filterwarnings("error")
def test_numbers_at_the_edge_are_drawn_without_complaint(tmp_path):
    draw_curves(tmp_path / "a.svg", [5], {"a": [3]}, **LABELS)
    draw_curves(tmp_path / "b.svg", [1e-100, 1e100], {"a": [-1e100, 1e100]}, log_x=True, **LABELS)
    draw_histograms(tmp_path / "c.svg", {"a": [1, 1], "b": [1]}, title="t", x_label="x")
    draw_bars(tmp_path / "d.svg", {"a": 0}, title="t", x_label="x")
    draw_points(tmp_path / "e.svg", [[1, 1], [1, 1]], ["a", "b"], title="")
    draw_points(tmp_path / "f.svg", [[0, 0], [1e100, -1e100]], title="t")
    assert len(list(tmp_path.iterdir())) == 6
