"""Fuzz one target by atheris: `python -m counted.fuzz_by_atheris GROUP TARGET [options of libFuzzer]`."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    import atheris

    group, name = sys.argv[1:3]
    with atheris.instrument_imports(include=["citeweave"]):
        found = importlib.import_module("counted.fuzz_targets")
        target = found.targets(group)[name]
        for data in target.seeds:
            target.run(data)  # what is loaded late is instrumented too
    atheris.Setup([sys.argv[0], *sys.argv[3:]], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
