"""Write docs/pictures/explorer-*.png: the explorer in a browser, over the eLife articles of examples/elife.

    python docs/generate_pictures.py                  imports and indexes the articles first (a minute or two)
    python docs/generate_pictures.py demo/index       over the index of `make demo`

Needs the extras `explore` and `plots` (Pillow), playwright and a chromium.
"""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from PIL import Image

from citeweave.corpus.ingest import import_papers
from citeweave.search.build import build_index
from citeweave.search.options import IndexOptions
from citeweave.serve.app import create_app, create_server
from citeweave.serve.options import ServeOptions

PICTURES = Path(__file__).with_name("pictures")
MOST_BYTES, COLORS = 150_000, 96
ELIFE = Path(__file__).parents[1] / "examples" / "elife"
QUESTION, PAPER = "How+do+grid+cells+get+their+hexagonal+pattern", "elife:24231"
SHOTS: dict[str, tuple[str, str, int, bool]] = {
    "search": (f"?q={QUESTION}", ".card", 1280, False),
    "sentences": (f"?paper={PAPER}&s=1,3", ".matched mark", 1280, False),
    "map": ("?view=map&color=cluster", "#plot[data-frame]", 1280, False),
    "phone": (f"?paper={PAPER}&s=1,3", ".matched mark", 390, True),
}
"""Name: address, what must be seen, width, dark or not."""


def make_index(folder: Path) -> Path:
    """Import and index the articles, with their sentences."""
    corpus = import_papers([ELIFE], folder / "corpus").corpus
    build_index(corpus, "weave", folder / "index", IndexOptions(sentences=True))
    return folder / "index"


@contextmanager
def serving(index: Path) -> Iterator[str]:
    """The address of a server of the index, whose model is loaded."""
    options = ServeOptions(device="cpu")
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    server = create_server(create_app({"main": index}, options), "127.0.0.1", 0, options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started or b'"reads_texts":true' not in urlopen(address + "health").read():
        time.sleep(0.2)
    yield address
    server.should_exit = True
    thread.join(20)


def shoot(browser: Any, address: str, name: str) -> Path:
    query, sign, width, dark = SHOTS[name]
    scheme = "dark" if dark else "light"
    page = browser.new_page(viewport={"width": width, "height": 780}, color_scheme=scheme, reduced_motion="reduce")
    page.goto(address + query)
    page.locator(sign).first.wait_for(timeout=120_000)
    page.wait_for_timeout(500)
    path = PICTURES / f"explorer-{name}.png"
    page.screenshot(path=path)
    page.close()
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLORS).save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes; at most {MOST_BYTES:,}")
    return path


def launch(started: Any) -> Any:
    """The system's browser, else the one that playwright brought."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])


def main(arguments: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as made, sync_playwright() as started:
        index = Path(arguments[0]) if arguments else make_index(Path(made))
        browser = launch(started)
        with serving(index) as address:
            for name in SHOTS:
                sys.stdout.write(f"{shoot(browser, address, name)}\n")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
