"""Extras: the table agrees with pyproject.toml, and a missing package is one clear line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from citeweave.errors import MissingExtraError
from citeweave.extras import EXTRAS, missing, require

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
MODULE_OF = {"scikit-learn": "sklearn"}


def test_the_table_is_that_of_the_project() -> None:
    declared = {
        name: packages
        for name, packages in PROJECT["optional-dependencies"].items()
        if name not in ("dev", "bench", "fuzz")
    }
    assert EXTRAS.keys() == declared.keys()
    for extra, packages in declared.items():
        names = [re.split(r"[<>=\[]", package)[0] for package in packages]
        assert EXTRAS[extra] == tuple(MODULE_OF.get(name, name.replace("-", "_")) for name in names)


def test_every_dependency_has_its_reason() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    lines = [line for line in text.splitlines() if re.match(r'\s+"[A-Za-z0-9_.-]+[<>=]+', line)]
    assert len(lines) > 20
    assert all(re.search(r"#\s+\S+", line) for line in lines), [line for line in lines if "#" not in line]


def test_a_missing_package_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "scale", ("a_package_that_nobody_has",))
    assert missing("scale") == ("a_package_that_nobody_has",)
    with pytest.raises(MissingExtraError, match=r"pip install 'citeweave\[scale\]'"):
        require("a_package_that_nobody_has", extra="scale")
