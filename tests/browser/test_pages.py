"""Pages in a real browser: nothing is refused or fails, nothing is cut off, and the map answers the reader."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.randomness import stream
from citeweave.evaluation.paper_map import MapData, map_as_page
from citeweave.evaluation.report import report_as_page

from .conftest import Reader

HOSTILE = "</script><img src=x onerror=alert(1)> \"quoted\" 'single' \u2028 \U0001f9ea " + "long " * 60
SETTLED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
DRAWN = "() => document.getElementById('plot').toDataURL()"


class File:
    """A file as the site of a tab."""

    def __init__(self, path: Path) -> None:
        self.address = path.as_uri()


@pytest.fixture
def opened(browser) -> Iterator[Callable[..., Any]]:
    """Opens a file in a tab of its own, of a width and light or dark; at the end nothing was refused and nothing failed."""
    readers: list[Reader] = []

    def opened(path: Path, *, width: int = 1200, dark: bool = False) -> Any:
        reader = Reader(browser, width=width, dark=dark)
        readers.append(reader)
        reader.site = File(path)
        page = reader.open()
        page.evaluate(SETTLED)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        return page

    yield opened
    for reader in readers:
        reader.context.close()
        assert reader.complaints == []


@pytest.fixture(scope="module")
def map_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = stream(0, "map in a browser")
    labels = [("physics", "biology", "", HOSTILE)[at % 4] for at in range(2000)]
    titles = [HOSTILE if at == 7 else f"paper {at}" for at in range(2000)]
    path = tmp_path_factory.mktemp("map") / "map.html"
    xy = rng.normal(size=(2000, 2)).astype(np.float32)
    path.write_text(map_as_page(MapData(xy, labels, titles, 0.4, 0.7, HOSTILE), title=HOSTILE), encoding="utf-8")
    return path


def report_file(folder: Path) -> Path:
    """A report with long and hostile names, as `evaluate` would write it."""
    rng = stream(0, "report in a browser")
    rows = {
        f"{HOSTILE} {at}": {"map": float(rng.random()), "ndcg": float(rng.random()), "field": f"{'field' * 9} {at % 9}"}
        for at in range(200)
    }
    about = {"kind": "ranking", "how": {"map": "mean", "ndcg": "mean"}, "notes": [HOSTILE], "chosen": {"C": HOSTILE}}
    tasks = [f"task-{'x' * 20}-{number}" for number in range(4)]
    value = {
        "suite": "x" * 80,
        "model": {"name": HOSTILE},
        "metrics": {f"{task}.{name}": 50.0 for task in tasks for name in about["how"]},
        "intervals": {f"{task}.map": [40.0, 60.0] for task in tasks},
        **{"headline": [], "averages": {}, "notes": [HOSTILE], "options": {"seed": 0}, "versions": {"numpy": "2"}},
        "not_evaluated": {HOSTILE: HOSTILE},
        "coverage": {task: {"candidates without vector": 3} for task in tasks},
        "data": {"files": {"a" * 90: "b" * 64}},
        "tasks": dict.fromkeys(tasks, about),
        "per_query": dict.fromkeys(tasks, rows),
    }
    xy = rng.normal(size=(50, 2)).astype(np.float32)
    made = MapData(xy, ["a", HOSTILE] * 25, [HOSTILE] * 50, 0.4, 0.7)
    path = folder / "report.html"
    path.write_text(report_as_page(value, map_data=made), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1200])
def test_a_report_fits_and_nothing_is_refused(opened, tmp_path, width, dark):
    page = opened(report_file(tmp_path), width=width, dark=dark)
    ground, ink = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    assert (ground == "rgb(255, 255, 255)") != dark and ground != ink  # the style took effect
    assert page.evaluate("document.images.length + document.scripts.length") == 0


@pytest.mark.parametrize("width", [360, 1200])
def test_a_map_answers_the_reader(opened, map_file, width):
    page = opened(map_file, width=width)

    def after(selector: str) -> str:
        page.evaluate("selector => document.querySelector(selector).click()", selector)
        page.evaluate(SETTLED)
        return str(page.evaluate(DRAWN))

    assert page.locator("#legend input").count() == 4
    before = page.evaluate(DRAWN)
    hidden = after("#legend input")
    assert hidden != before and after("#all") == before and after("#none") != hidden
    assert after("#all") == before and after("#in") != before and after("#home") == before


def test_the_title_of_a_point_is_shown_as_text(opened, map_file):
    page = opened(map_file)
    page.fill("#filter", "ONERROR")
    page.click("#found button")
    assert page.text_content("#count") == "1 paper"
    assert page.text_content("#tip").startswith("</script><img src=x onerror=alert(1)>")
    assert page.evaluate("document.images.length") == 0


def test_a_point_is_found_by_pointer_and_by_key(opened, map_file):
    page = opened(map_file)
    box = page.locator("#plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#tip small")
    page.mouse.move(2, 2)
    page.wait_for_selector("#tip", state="hidden")
    page.focus("#plot")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#tip small")
    page.keyboard.press("Escape")
    page.wait_for_selector("#tip", state="hidden")


def test_a_topic_is_lit_by_the_keyboard_and_colors_follow_the_theme(opened, map_file):
    page = opened(map_file)
    before = page.evaluate(DRAWN)
    page.focus("#filter")
    for _ in range(3):  # past the two buttons, to the first topic
        page.keyboard.press("Tab")
    page.evaluate(SETTLED)
    assert page.evaluate(DRAWN) != before
    page.keyboard.press("Shift+Tab")
    page.evaluate(SETTLED)
    assert page.evaluate(DRAWN) == before
    page.emulate_media(color_scheme="dark")
    page.evaluate(SETTLED)
    assert page.evaluate(
        "() => [...document.getElementById('plot').getContext('2d').getImageData(0, 0, 1, 1).data]"
    ) == [20, 24, 29, 255]
