"""A small library as files, and a way to write more of them."""

import gzip
import json

import pytest

from ..cli.conftest import cli as cli
from ..conftest import refused as refused


@pytest.fixture
def write(tmp_path):
    """Write a file below the test's folder: text, or records as JSON, one per line."""

    def to_file(name, *content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in content)
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        return path

    return to_file


@pytest.fixture
def library(write):
    """A data folder: three papers, four citations (one to itself, one outside, one twice), two contexts."""
    write("library/citations.tsv", "a\tb\t3\na\tc\t1\na\tb\t2\nb\tb\na\tnowhere\n")
    write(
        "library/contexts.jsonl",
        {"citing": "a", "text": "Ice was seen [1].", "cited": ["b", "outside"], "section": "Intro"},
        {"citing": "a", "text": "Ice was seen [1].", "cited": ["doi:10.1000/c"]},
    )
    maps = {"title": "Maps of the lunar south pole", "abstract": "We map ice.", "year": 2020, "field": "moon"}
    return write(
        "library/papers.jsonl.gz",
        {"id": "a", **maps},
        {"id": "b", "title": "Ice on the Moon", "year": 2018.0, "authors": ["Ada One", "Ben Two"]},
        {"id": "c", "title": "Craters", "abstract": "Deep ones.", "year": "2019", "doi": "https://doi.org/10.1000/C"},
    ).parent
