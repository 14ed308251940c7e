"""Where the tests find real data: the folder `shared` beside the checkout, or $CITEWEAVE_SHARED."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora and samples; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("CITEWEAVE_SHARED", ROOT.parent / "shared"))
    if not (folder / "samples").is_dir():
        pytest.skip(f"no real samples at {folder}; set CITEWEAVE_SHARED to run this test")
    return folder
