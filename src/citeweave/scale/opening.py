"""The crew that `--on` means, for the time of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from citeweave.progress import QUIET, Reporter
from citeweave.scale.options import parse_on
from citeweave.scale.ray_crew import RayCrew


@contextmanager
def open_crew(text: str, reporter: Reporter = QUIET) -> Iterator[RayCrew | None]:
    """The crew of `--on`, and None where it is not given: the work is done here. Its cluster ends with the block."""
    if not text:
        yield None
        return
    with RayCrew(parse_on(text), reporter) as crew:
        yield crew
