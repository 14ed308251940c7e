"""Pages in a real browser: nothing is refused or fails, nothing is cut off, and the map answers the reader."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.randomness import stream
from citeweave.evaluation.paper_map import MapData, map_as_page
from citeweave.evaluation.report_page import report_as_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

HOSTILE = "</script><img src=x onerror=alert(1)> \"quoted\" 'single' \u2028 \U0001f9ea " + "long " * 60


class Browser:
    """Chromium without a window, asked through its pipe of JSON messages that end with a zero byte."""

    def __init__(self, profile: Path) -> None:
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars"]
        flags += ["--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={profile}"]
        # the browser reads from 3 and writes to 4
        command = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", str(CHROMIUM), *flags]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, pass_fds=(to_read, to_write), **silent)  # type: ignore[call-overload]
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest, self._session = 0, b"", ""
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._from, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        one, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(one))

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"):
            self.complaints.append(json.dumps(event["params"]))

    def open(self, path: Path, *, width: int = 1200, height: int = 800, dark: bool = False) -> None:
        self.complaints.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=path.as_uri())
        self.run("new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))")
        self.settle()

    def settle(self) -> None:
        """Until two pictures have been drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


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
    path.write_text(report_as_page(value, curves={HOSTILE: [(0, 1), (1, 2)]}, map_data=made), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1200])
def test_a_report_fits_and_nothing_is_refused(browser, tmp_path, width, dark):
    browser.open(report_file(tmp_path), width=width, dark=dark)
    assert browser.complaints == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    ground, ink = browser.run("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    assert (ground == "rgb(255, 255, 255)") != dark and ground != ink  # the style took effect
    assert browser.run("document.images.length + document.scripts.length") == 0


@pytest.mark.parametrize("width", [360, 1200])
def test_a_map_answers_the_reader(browser, map_file, width):
    browser.open(map_file, width=width)
    assert browser.complaints == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.querySelectorAll('#legend input').length") == 4
    drawn = "document.getElementById('plot').toDataURL()"
    before = browser.run(drawn)
    browser.run("document.querySelector('#legend input').click()")
    browser.settle()
    hidden = browser.run(drawn)
    assert hidden != before
    browser.run("document.getElementById('all').click()")
    browser.settle()
    assert browser.run(drawn) == before
    browser.run("document.getElementById('in').click()")
    browser.settle()
    assert browser.run(drawn) != before
    assert browser.complaints == []


def test_the_title_of_a_point_is_shown_as_text(browser, map_file):
    browser.open(map_file)
    browser.run("document.getElementById('filter').value = 'ONERROR'")
    browser.run("document.getElementById('filter').dispatchEvent(new Event('input'))")
    browser.run("new Promise(done => setTimeout(done, 300))")
    assert browser.run("document.getElementById('count').textContent") == "1 paper"
    browser.run("document.querySelector('#found button').click()")
    browser.settle()
    assert browser.run("document.getElementById('tip').textContent").startswith("</script><img src=x onerror=alert(1)>")
    assert browser.run("document.images.length") == 0 and browser.complaints == []


def test_a_point_is_found_by_pointer_and_by_key(browser, map_file):
    browser.open(map_file)
    shown = "document.getElementById('tip').textContent"
    box = browser.run(
        "(b => [b.left + b.width / 2, b.top + b.height / 2])(document.getElementById('plot').getBoundingClientRect())"
    )
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    browser.settle()
    assert browser.run(shown)
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    browser.run("document.getElementById('plot').focus()")
    browser.ask("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft", code="ArrowLeft", windowsVirtualKeyCode=37)
    browser.settle()
    assert browser.run(shown)
    assert browser.complaints == []
