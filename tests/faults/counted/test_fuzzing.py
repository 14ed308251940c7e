"""Fuzzed parsers: whatever they are given, they answer, or raise an error that their page documents, within 5 seconds.

Coverage-guided (`fuzz_driver.py`), ten minutes a parser in `make trust`, ten seconds in CI.
"""

from __future__ import annotations

import pytest

from .counting import Trial

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
pytest.importorskip("fastapi", reason="pip install 'citeweave[serve]'")

from .fuzz_driver import fuzz
from .fuzz_targets import GROUPS, targets


@pytest.mark.parametrize("group", GROUPS)
def test_fuzzed_parsers(trial: Trial, group: str) -> None:
    seconds = trial.seconds(quick=10, whole=600)
    executions = lines = 0
    for number, target in enumerate(targets(group).values()):
        with trial.attempt(f"{target.name}, seed {number}"):
            found = fuzz(target, group, seconds=seconds, seed=number)
            executions += found.executions
            lines += found.lines
            trial.facts |= {"driver": found.driver, "executions": executions, "lines or edges reached": lines}
            assert not found.failure, found.failure
            assert found.executions, "nothing was run"
