"""The house rules that a machine can check: imports flow down, and the front door is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "citeweave"

FLOORS = [
    [
        "errors",
        "arguments",
        "hashing",
        "arrays",
        "columns",
        "links",
        "locks",
        "machine",
        "files",
        "artefacts",
        "finite",
        "randomness",
        "progress",
        "extras",
        "tally",
        "opening",
        "parquet",
        "plots",
        "version",
        "threads",
        "crew",
        "cloud",
    ],
    ["corpus", "similarity"],
    ["graph", "encoders"],
    ["mining", "evaluation"],
    ["training", "search"],
    ["baselines", "intents"],
    ["recipe_values"],
    ["recipe", "estimate"],
    ["pipeline", "serve", "scale"],
    ["cli"],
    ["__main__"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
HEAVY = ["torch", "transformers", "faiss", "ray", "sentence_transformers", "numba", "pyarrow", "polars"]


def imports_of(path: Path) -> set[str]:
    """The rooms of citeweave that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "citeweave" else [node.module]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("citeweave.")}
    return found


def rooms() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.name != "__init__.py")


def files_of(room: str) -> list[Path]:
    """The one file of a room, or all in its folder."""
    found = [path for path in rooms() if path.relative_to(SOURCE).parts[0].removesuffix(".py") == room]
    assert found, f"room {room} has no file"
    return found


@pytest.mark.parametrize("path", rooms(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_flow_down(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for other in imports_of(path) - {room}:
        below = FLOOR[other] < FLOOR[room] or FLOOR[room] == FLOOR[other] == 0
        assert below, f"{path.name} (room {room}, floor {FLOOR[room]}) imports {other} (floor {FLOOR[other]})"


def test_floor_0_has_no_cycles() -> None:
    arrows = {name: set[str]().union(*map(imports_of, files_of(name))) - {name} for name in FLOORS[0]}
    while arrows:
        free = [name for name, needs in arrows.items() if not needs & arrows.keys()]
        assert free, f"cycle among {sorted(arrows)}"
        for name in free:
            del arrows[name]


def test_every_room_has_a_floor() -> None:
    found = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in rooms()}
    assert found <= FLOOR.keys(), f"no floor for {sorted(found - FLOOR.keys())}"


@pytest.mark.parametrize("statement", ["import citeweave", "import citeweave.cli"])
def test_the_front_door_is_light(statement: str) -> None:
    code = f"import sys; {statement}; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_no_file_is_too_long() -> None:
    long = {path.name: n for path in rooms() if (n := path.read_text().count("\n")) > 400}
    assert not long, long


def test_nothing_unsafe_is_loaded() -> None:
    """No pickle, eval, exec or torch.load anywhere; arrays are read by `citeweave.core.columns`, never by numpy.load."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                assert not {"pickle", "marshal", "shelve", "dill"} & set(names), path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                unsafe = ("eval", "exec", "torch.load", "yaml.load", "np.load", "numpy.load")
                assert called not in unsafe, f"{path}: {called}"
