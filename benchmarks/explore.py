"""A scholar's first minute: `citeweave explore` on a .bib of 2,000 entries, and the page in a browser.

    python benchmarks/explore.py --entries 2000           seconds until words, and until vectors, can be searched
    python benchmarks/explore.py page --index index/      the first load, and the map, in the system's chromium

The entries are of a synthetic literature, with abstracts. Times run from the command's start, imports included; a second
start finds everything done. Seven entries are then added, and the time until they are found is taken. Prints Markdown
tables. The page wants playwright and chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import write_figures
from search import _free_port, _wait_for

from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.synthetic.synthesize import synthesize
from citeweave.search.export import to_bibtex

NEW = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["library", "page"], default="library")
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--index", type=Path)
    options = parser.parse_args()
    if options.what == "page":
        measure_page(options.index)
    else:
        with tempfile.TemporaryDirectory() as place:
            measure_library(Path(place), options.entries)


def measure_library(folder: Path, entries: int) -> None:
    made = synthesize(folder / "literature", SyntheticOptions(papers=entries + NEW))
    papers = [made.paper(row) for row in range(len(made))]
    library, place = folder / "library.bib", folder / "work"
    print(f"| {entries:,} entries | s |\n|---|---|", flush=True)
    library.write_text(to_bibtex(papers[:entries]))
    print_times("first start", explored(library, place))
    print_times("second start", explored(library, place))
    library.write_text(to_bibtex(papers))
    print_times(f"{NEW} new entries", explored(library, place))


def print_times(name: str, times: dict[str, float]) -> None:
    for what, seconds in times.items():
        print(f"| {name}: {what} | {seconds:.1f} |", flush=True)
    write_figures(name, [{"label": what, "wall": seconds} for what, seconds in times.items()])


def explored(library: Path, place: Path) -> dict[str, float]:
    """Seconds from the command until the page answers, words find something, and all vectors are there."""
    port = _free_port()
    command = [sys.executable, "-m", "citeweave", "explore", str(library), "--folder", str(place)]
    began = time.perf_counter()
    server = subprocess.Popen(
        [*command, "--port", str(port), "--no-browser"], env=os.environ, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port)
        times = {"the page answers": time.perf_counter() - began}
        until(lambda: bool(asked(port, "/search?q=graph%20networks&by=words").get("hits")))
        times["search by words works"] = time.perf_counter() - began
        until(lambda: is_filled(asked(port, "/health")))
        until(lambda: bool(asked(port, "/search?q=graph%20networks&by=vectors").get("hits")))
        times["all vectors computed, query answered"] = time.perf_counter() - began
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    return times


def is_filled(health: dict[str, Any]) -> bool:
    """Whether every paper has its vector; entries of one paper were merged."""
    return bool(health) and health["working"] is None and health["with_vectors"] >= health["papers"] > 0


def until(is_so: Callable[[], bool], limit: float = 600) -> None:
    ends = time.monotonic() + limit
    while not is_so():
        if time.monotonic() > ends:
            raise SystemExit(f"not done after {limit:g} s")
        time.sleep(0.1)


def asked(port: int, path: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as found:
            return dict(json.load(found))
    except OSError:
        return {}


# --- the page -------------------------------------------------------------------------------------------


def measure_page(index: Path) -> None:
    """First load, a search, and the map of a served index."""
    from playwright.sync_api import sync_playwright

    port = _free_port()
    server = subprocess.Popen([sys.executable, "-m", "citeweave", "serve", str(index), "--port", str(port), "--quiet"])
    try:
        _wait_for(port)
        until(lambda: "xy" in asked(port, "/map"))
        with sync_playwright() as play:
            chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
            browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            print("| page | s |\n|---|---|")
            print(f"| first load | {loaded(page, f'http://127.0.0.1:{port}/', 'input'):.2f} |")
            url = f"http://127.0.0.1:{port}/?view=map"
            print(f"| map drawn | {loaded(page, url, 'canvas[data-frame]'):.2f} |", flush=True)
            browser.close()
    finally:
        server.terminate()
        server.wait()


def loaded(page: Any, url: str, selector: str) -> float:
    """Seconds until an element of a page is there."""
    began = time.perf_counter()
    page.goto(url)
    page.wait_for_selector(selector)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
