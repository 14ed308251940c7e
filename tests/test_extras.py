"""Extras: the table agrees with pyproject.toml, and a missing package is one clear line."""

import re
import tomllib
from pathlib import Path

import pytest

from citeweave.core.errors import EXTRAS, MissingExtraError, missing, require

ROOT = Path(__file__).parent.parent
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py"), ROOT / "Makefile", ROOT / "Dockerfile"]


def test_the_table_is_that_of_the_project() -> None:
    features = {
        name: packages for name, packages in DECLARED.items() if name not in ("explore", "all", "docs", "dev", "bench")
    }
    assert EXTRAS.keys() == features.keys()
    for extra, packages in features.items():
        names = [re.split(r"[<>=\[]", package)[0] for package in packages]
        assert EXTRAS[extra] == tuple(name.replace("-", "_") for name in names)


def test_all_has_every_feature() -> None:
    (everything,), explore = DECLARED["all"], DECLARED["explore"][0]
    assert set(names_in(everything)) - {"explore"} | set(names_in(explore)) == EXTRAS.keys()


def test_extras_that_are_named_exist() -> None:
    unknown = {str(page): names for page in PAGES if (names := set(names_in(page.read_text())) - DECLARED.keys())}
    assert not unknown


def names_in(text: str) -> list[str]:
    """The extras in citeweave[...], '.[...]' and require(..., extra=...)."""
    groups = re.findall(r"""(?:citeweave\[|'\.\[|require\([^)]*extra=")([a-z,]+)["\]]""", text)
    return [name for group in groups for name in group.split(",")]


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    lines = [line for line in text.splitlines() if re.match(r'\s+"[A-Za-z0-9_.-]+[<>=]+', line)]
    assert len(lines) > 20
    assert all(re.search(r"#\s+\S+", line) for line in lines), [line for line in lines if "#" not in line]


def test_a_missing_package_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "ray", ("a_package_that_nobody_has",))
    assert missing("ray") == ("a_package_that_nobody_has",)
    with pytest.raises(MissingExtraError, match=r"pip install 'citeweave\[ray\]'"):
        require("a_package_that_nobody_has", extra="ray")
