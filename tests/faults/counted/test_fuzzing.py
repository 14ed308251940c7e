"""Fuzzed parsers: whatever they are given, they answer, or raise an error that their page documents, within 5 seconds.

Coverage-guided (`fuzz_driver.py`), ten minutes a parser in `make trust`. In CI ten seconds at most, and the same inputs
every time: what fails there does so because of a change, not by luck.
"""

import pytest

from .fuzz_driver import fuzz
from .fuzz_targets import GROUPS, targets

IN_CI = 1000
"""Inputs of a parser."""


@pytest.mark.parametrize("group", GROUPS)
def test_fuzzed_parsers(trial, group):
    """A parser answers or raises a documented error within 5 seconds, whatever it is given."""
    seconds, most = trial.seconds(quick=10, whole=600), 0 if trial.is_whole else IN_CI
    executions = lines = 0
    for number, target in enumerate(targets(group).values()):
        with trial.attempt(f"{target.name}, seed {number}"):
            found = fuzz(target, group, seconds=seconds, seed=number, most=most)
            executions += found.executions
            lines += found.lines
            trial.facts |= {"driver": found.driver, "executions": executions, "lines or edges reached": lines}
            trial.facts |= {"seconds each, at most": seconds}
            assert not found.failure, found.failure
            assert found.executions, "nothing was run"
