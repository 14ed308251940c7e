"""The house rules that a machine can check: imports flow down, and the front door is light."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "citeweave"

FLOORS = [
    ["version"],
    ["core"],
    ["corpus", "vectors", "remote"],
    ["graph", "encoders"],
    ["mining", "evaluation"],
    ["training", "search"],
    ["baselines", "intents"],
    ["pipeline", "serve"],
    ["cli"],
    ["__main__"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
HEAVY = ["torch", "transformers", "faiss", "ray", "sentence_transformers", "numba", "pyarrow", "polars", "jinja2"]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports_of(path: Path) -> set[str]:
    """The rooms of citeweave that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = inside if node.module == "citeweave" else [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("citeweave.")}
    return found


def rooms() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.name != "__init__.py")


def module_of(path: Path) -> str:
    return ".".join(["citeweave", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")


def lines_of(path: Path) -> int:
    return path.read_text().count("\n")


@pytest.mark.parametrize("path", rooms(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_flow_down(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for other in imports_of(path) - {room}:
        below = FLOOR[other] < FLOOR[room]
        assert below, f"{path.name} (room {room}, floor {FLOOR[room]}) imports {other} (floor {FLOOR[other]})"


def test_no_files_import_each_other() -> None:
    """Counts imports inside functions and for types as well: they hide a circle, they do not open it."""
    modules = {module_of(path): path for path in SOURCE.rglob("*.py")}
    arrows = {}
    for name, path in modules.items():
        imports = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ImportFrom)]
        inside = [(node.module or "", alias.name) for node in imports for alias in node.names]
        named = {f"{module}.{each}" if f"{module}.{each}" in modules else module for module, each in inside}
        arrows[name] = {each for each in named if each in modules and each != name}
    while arrows:
        free = [name for name, needs in arrows.items() if not needs & arrows.keys()]
        assert free, f"circle among {sorted(arrows)}"
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


def test_rooms_load_pyarrow_and_torch_only_where_they_are_used() -> None:
    code = "import sys, citeweave.corpus.ingest, citeweave.mining.mine, citeweave.search.build; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pyarrow", "torch", "transformers", "sklearn", "pandas"} & {*result.stdout.split()}


def test_files_are_chapters() -> None:
    """At most 500 lines, and fewer than a tenth of all files under 60; named for things, not for activities."""
    files = {path: lines_of(path) for path in SOURCE.rglob("*.py")}
    assert not {path.name: lines for path, lines in files.items() if lines > 500}
    short = [path.name for path, lines in files.items() if lines < 60]
    assert len(short) < len(files) / 10, short
    assert [path.stem for path in files if path.stem.endswith("ing")] == ["pooling"]


def test_one_name_means_one_class() -> None:
    owners: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                owners.setdefault(node.name, []).append(path.name)
    assert not {name: files for name, files in owners.items() if len(files) > 1}


def test_nothing_unsafe_is_loaded() -> None:
    """No pickle, eval, exec or torch.load anywhere; arrays are read by `citeweave.core.columns`, never by numpy.load."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                assert not {"pickle", "marshal", "shelve", "dill"} & set(names), path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                unsafe = ("eval", "exec", "torch.load", "yaml.load", "np.load", "numpy.load")
                assert called not in unsafe, f"{path}: {called}"


WORK_FILES = {
    *("core/artifact.py", "remote/push.py", "remote/fetch.py", "core/executor.py"),
    *("evaluation/html.py", "pipeline/recipe.py", "search/databases.py"),
    *("serve/prepare_library.py", "serve/app.py", "training/distributed.py", "training/checkpoints.py"),
}
"""Modules that also read files which citeweave itself wrote or ships, and no user names."""


def opens_for_reading(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    if called.endswith((".read_bytes", ".read_text")):
        return True
    modes = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    reads = not any(set("wax+") & set(mode) for mode in modes)
    texts = any(keyword.arg == "encoding" for keyword in node.keywords)
    return reads and (called == "open" or (called.endswith(".open") and (texts or "rb" in modes)))


def test_nothing_else_opens_files_for_reading() -> None:
    """`files.open_input` is the one opener: it refuses pipes and devices; the other modules read files of our own."""
    others = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if path != SOURCE / "core/files.py" and any(map(opens_for_reading, ast.walk(tree(path))))
    }
    assert others <= WORK_FILES, sorted(others - WORK_FILES)
