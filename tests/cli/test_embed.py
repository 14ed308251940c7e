"""embed as it is typed; mistakes are one line with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citeweave.corpus.ingest import ImportOptions, import_papers
from citeweave.encoders.tokens import TokenStore
from citeweave.vectors.compressed import CompressedVectors
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.vectors import Vectors

from .conftest import run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cli")
    papers = [
        {"id": "a", "title": "the cell", "abstract": "We find data. They learn."},
        {"id": "b", "title": "how models learn", "venue": "graphs", "references": ["c"]},
    ]
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
    import_papers([place / "papers.jsonl"], place / "corpus", ImportOptions(outside="keep"))
    return place / "corpus"


def test_a_corpus_becomes_vectors(corpus, bert, tmp_path, capsys):
    command = ("embed", corpus, "--model", bert, "-o", tmp_path / "v", "--device", "cpu")
    code, out, _ = run(capsys, *command, "--tokens", tmp_path / "t", "--shard", 2, "--batch-tokens", 16)
    assert code == 0 and "32 dimensions (float32) of " in out
    assert "papers" in out and "not kept: no text, or a vector of zeros" in out
    assert list(Vectors.open(tmp_path / "v").ids) == ["a", "b"] and len(TokenStore.open(tmp_path / "t")) == 3
    code, out, _ = run(capsys, *command, "--json")
    found = json.loads(out)
    assert code == 0 and (found["papers"], found["rows"], found["dimension"]) == (3, 2, 32)
    code, out, err = run(capsys, *command, "--dtype", "float16")
    assert code == 2 and "--overwrite" in err
    code, out, err = run(capsys, *command, "--dtype", "float16", "--overwrite", "--quiet")
    assert (code, out, err) == (0, "", "") and Vectors.open(tmp_path / "v").matrix.dtype == "float16"


def test_every_kind_of_vectors(corpus, bert, tmp_path, capsys):
    (tmp_path / "full.jsonl").write_text('{"id": "b", "sections": [{"heading": "data", "text": "we find graphs"}]}\n')

    def make(name: str, *options: object) -> Path:
        words = ("embed", corpus, "--model", bert, "-o", tmp_path / name, "--device", "cpu,cpu", *options)
        code, out, err = run(capsys, *words)
        assert code == 0 and out, err
        return tmp_path / name

    assert CompressedVectors.open(make("int8", "--as", "int8")).codes.shape == (2, 32)
    assert CompressedVectors.open(make("bits", "--as", "binary")).codes.shape == (2, 4)
    assert Vectors.open(make("short", "--as", "truncate:8")).matrix.shape == (2, 8)
    assert SentenceVectors.open(make("sentences", "--sentences")).lengths().tolist() == [2, 1]
    assert len(Vectors.open(make("full", "--full-text", tmp_path / "full.jsonl"))) == 2
    chunks = make("chunks", "--full-text", tmp_path / "full.jsonl", "--keep-chunks")
    assert SentenceVectors.open(chunks).lengths().tolist() == [1, 2]
    cut = Vectors.open(make("cut", "--pooling", "mean", "--max-tokens", 4, "--text", "venue,title"))
    assert list(cut.ids) == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtype", "int8"], "--dtype is 'int8'"),
        (["--as", "int4"], "--as is 'int4'"),
        (["--as", "int8", "--sentences"], "exclude each other"),
        (["--keep-chunks"], "--full-text"),
        (["--text", "title,body"], "text recipe part is 'body'"),
        (["--shard", 0], "--shard is 0"),
        (["--device", "cpu,"], "--device is 'cpu,'"),
        (["--device", "cpu,tpu"], "--device is 'tpu'"),
        (["--max-tokens", 1000], "--max-tokens is 1000"),
        (["--full-text", "missing.jsonl"], "missing.jsonl cannot be opened"),
        (["--sentences", "--text", "title"], "leave out --text"),
    ],
)
def test_mistakes_are_one_line(corpus, bert, tmp_path, capsys, options, message):
    code, out, err = run(capsys, "embed", corpus, "--model", bert, "-o", tmp_path / "v", *options)
    assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert message in err and not (tmp_path / "v").exists()
