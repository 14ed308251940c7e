"""Write docs/pictures/tutorial-*.png, the output of the commands in docs/tutorial.md.

    python docs/generate_tutorial.py            runs the page as the tests do, in an empty folder (one minute)

Needs the extras `explore` and `plots` (Pillow), playwright and a chromium.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from generate_pictures import COLORS, MOST_BYTES, PICTURES, launch, serving
from PIL import Image

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "tests"))
from test_docs import run_page  # noqa: E402

DRAWN = ("loss", "before-after", "recipes", "map")
"""Charts that the examples of the page draw."""

WIDTH = 1200


def keep(path: Path, name: str) -> None:
    """Save a picture for the docs, at most WIDTH wide, with few colors and bytes."""
    target = PICTURES / f"tutorial-{name}.png"
    with Image.open(path) as picture:
        height = round(picture.height * WIDTH / picture.width)
        small = picture if picture.width <= WIDTH else picture.resize((WIDTH, height), Image.Resampling.LANCZOS)
        small.convert("RGB").quantize(COLORS).save(target, optimize=True)
    if target.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{target} has {target.stat().st_size:,} bytes; at most {MOST_BYTES:,}")
    sys.stdout.write(f"{target}\n")


def shoot(browser: Any, address: str, selector: str, name: str, height: int) -> None:
    """Save a screenshot of a page once an element is visible."""
    page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light", reduced_motion="reduce")
    page.goto(address)
    page.locator(selector).first.wait_for(timeout=120_000)
    page.wait_for_timeout(500)
    page.screenshot(path=f"{name}.png")
    page.close()
    keep(Path(f"{name}.png"), name)


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), sync_playwright() as started:
        os.environ["CITEWEAVE_CACHE"] = str(Path(folder) / "cache")
        run_page(DOCS / "tutorial.md")
        for name in DRAWN:
            keep(Path(f"{name}.png"), name)
        browser = launch(started)
        shoot(browser, (Path(folder) / "why.html").as_uri(), "svg", "why", 540)
        with serving(Path("index")) as address:
            shoot(browser, f"{address}?paper=scribes&s=1", ".matched mark", "explorer", 700)
        browser.close()


if __name__ == "__main__":
    main()
