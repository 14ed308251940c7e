"""`citeweave convert`: both directions, its account, its mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from citeweave.cli.mine import convert
from citeweave.core.errors import CiteweaveError
from citeweave.corpus.ingest import import_papers
from citeweave.mining.samples import Samples

TRIPLES = "query_paper_id,positive_id,negative_id\na,b,c\na,c,d\nb,a,nobody\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus, and triples of SciNCL that name its papers."""
    papers = [{"id": id, "title": f"Paper {id}", "abstract": "An abstract."} for id in "abcd"]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, papers)))
    import_papers(tmp_path / "p.jsonl", tmp_path / "corpus")
    (tmp_path / "triples.csv").write_text(TRIPLES)
    return tmp_path


def run(folder: Path, *words: str) -> Any:
    app = typer.Typer()
    app.command()(convert)
    paths = [str(folder / word[1:]) if word.startswith("@") else word for word in words]
    return CliRunner().invoke(app, [*paths, "--corpus", str(folder / "corpus")])


def test_there_and_back(folder: Path) -> None:
    result = run(folder, "@triples.csv", "-o", "@samples")
    assert result.exit_code == 0, result.output
    assert "scincl: 1 file (guessed)" in result.output and "not kept: negative not in the corpus" in result.output
    assert Samples.open(folder / "samples").triplets().rows().tolist() == [[0, 1, 2], [0, 2, 3]]
    result = run(folder, "@samples", "--to", "specter", "-o", "@out", "--val", "0.5", "--json")
    found = json.loads(result.stdout)
    assert found["records"]["queries"]["kept"] == 1 and found["output"] == str(folder / "out")
    assert found["files"] == ["data.json", "metadata.json", "train.txt", "val.txt"]
    assert all((folder / "out" / name).is_file() for name in found["files"])
    result = run(folder, "@out", "--from", "specter", "-o", "@back", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert Samples.open(folder / "back").positives.rows.tolist() == [1, 2]


def test_every_option_reaches_its_format(folder: Path) -> None:
    run(folder, "@triples.csv", "-o", "@samples")
    words = ["--to", "sentence_transformers", "--columns", "group", "--negatives", "1", "--file-type", "jsonl"]
    result = run(folder, "@samples", *words, "--ids", "-o", "@st")
    assert result.exit_code == 0, result.output
    first = json.loads((folder / "st/train.jsonl").read_text().splitlines()[0])
    assert list(first) == ["anchor", "positive", "negative_1", "anchor_id", "positive_id", "negative_1_id"]
    result = run(folder, "@samples", "--to", "scincl", "--gzip", "-o", "@scincl")
    assert (folder / "scincl/train_triples.csv.gz").is_file() and "train_triples.csv.gz" in result.output
    assert run(folder, "@samples", "--to", "specter", "--leave-out", "given negative", "-o", "@sp").exit_code == 0
    assert json.loads((folder / "sp/data.json").read_text()) == {"a": {"b": {"count": 5}, "c": {"count": 5}}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["@samples", "-o", "@out"], "say with --to in which format"),
        (["@samples", "-o", "@out", "--to", "scincl", "--from", "specter"], "leave it out"),
        (["@triples.csv", "-o", "@out", "--to", "specter"], "is not one; leave it out"),
        (["@triples.csv", "-o", "@out", "--gzip"], "there are export options"),
        (["@corpus", "-o", "@out", "--to", "scincl"], "holds corpus, not samples"),
        (["@samples", "-o", "@out", "--to", "scincl", "--columns", "group"], "--columns is an option of"),
        (["@samples", "-o", "@out", "--to", "specter", "--val", "2"], "--val is 2.0"),
        (["@nowhere", "-o", "@out"], "does not exist"),
        (["@triples.csv", "-o", "@out", "--from", "cincl"], "Did you mean 'scincl'"),
    ],
)
def test_mistakes_are_one_line(folder: Path, words: list[str], message: str) -> None:
    run(folder, "@triples.csv", "-o", "@samples")
    result = run(folder, *words)
    assert isinstance(result.exception, CiteweaveError)
    assert message in str(result.exception) and "\n" not in str(result.exception)
    assert not (folder / "out").exists()
