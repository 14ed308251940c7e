"""The page of trust lists every module that removes or replaces something."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "citeweave"
REMOVERS = {"unlink", "rmtree", "rmdir", "rename", "renames", "truncate", "removedirs", "delete_file", "delete_dir"}
REMOVERS |= {"delete_dir_contents", "delete_objects", "rm", "rm_file", "move_object", "remove_object"}


def removers(path: Path) -> list[int]:
    """Lines of a module that remove, rename or truncate something; `replace` counts where it has one argument."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            is_rename = (
                name == "replace" and len(node.args) == 1 and isinstance(node.args[0], ast.Name) and not node.keywords
            )
            is_call = isinstance(node.func, ast.Attribute) or name in ("move_object", "remove_object", "rmtree")
            if (name in REMOVERS and is_call) or is_rename:
                found.append(node.lineno)
    return found


def test_every_module_that_removes_something_is_on_the_page() -> None:
    spec = importlib.util.spec_from_file_location("generate_trust", ROOT / "docs" / "generate_trust.py")
    assert spec is not None and spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    listed = {name for _, _, names in page.REMOVALS for name in names.split(", ")}
    found = {path.relative_to(SOURCE).as_posix(): lines for path in SOURCE.rglob("*.py") if (lines := removers(path))}
    assert found.keys() <= listed, {name: found[name] for name in found.keys() - listed}
    assert all((SOURCE / name).is_file() for name in listed)
