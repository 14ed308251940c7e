"""Fuzz one target by atheris: `python -m counted.fuzz_by_atheris GROUP TARGET [options of libFuzzer]`."""

import importlib
import sys
from pathlib import Path

import citeweave  # the front door alone: what it leads to is loaded when it is used


def main() -> None:
    import atheris

    group, name = sys.argv[1:3]
    with atheris.instrument_imports(include=["citeweave"], exclude=compiled_modules()):
        found = importlib.import_module("counted.fuzz_targets")
        target = found.targets(group)[name]
        for data in target.seeds:
            target.run(data)  # what is loaded late is instrumented too
    atheris.Setup([sys.argv[0], *sys.argv[3:]], target.run)
    atheris.Fuzz()


def compiled_modules() -> list[str]:
    """Modules with loops that numba compiles: it cannot compile what is instrumented."""
    root = Path(citeweave.__file__).parent
    texts = {path: path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    paths = [path for path, text in texts.items() if "numba" in text or "core.compiled" in text]
    return sorted(".".join(path.relative_to(root.parent).with_suffix("").parts) for path in paths)


if __name__ == "__main__":
    main()
