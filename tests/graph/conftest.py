"""A small synthetic literature for all tests of graphs."""

import json

import pytest

from citeweave import synthesize
from citeweave.corpus.options import SyntheticOptions


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("graph") / "corpus", SyntheticOptions(papers=300))


def hash_of(folder):
    return json.loads((folder / "manifest.json").read_text())["hash"]


def stop_after(monkeypatch, owner, name, calls, error=KeyboardInterrupt):
    """The call after so many of a function raises instead; returns the arguments of the calls."""
    whole, made = getattr(owner, name), []

    def counted(*arguments, **more):
        if len(made) == calls:
            raise error
        made.append(arguments)
        return whole(*arguments, **more)

    monkeypatch.setattr(owner, name, counted)
    return made
