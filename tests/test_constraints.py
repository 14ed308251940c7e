"""The constraints that CI installs with are those that pyproject.toml tells."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def pins(name: str) -> dict[str, Version]:
    lines = (ROOT / "constraints" / name).read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line]
    return {canonicalize_name(package): Version(version) for package, version in pairs}


def needed(*extras: str) -> list[Requirement]:
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    return [found for line in lines if (found := Requirement(line)).name != "citeweave"]


@pytest.mark.parametrize("requirement", needed("minilm", "lora", "serve"), ids=str)
def test_the_oldest_is_what_is_allowed(requirement: Requirement) -> None:
    (bound,) = requirement.specifier
    assert bound.operator == ">=" and pins("oldest.txt")[canonicalize_name(requirement.name)] == Version(bound.version)


@pytest.mark.parametrize("requirement", needed(*(extra for extra in EXTRAS if extra != "bench")), ids=str)
def test_the_newest_is_allowed(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pins("newest.txt")[canonicalize_name(requirement.name)])
