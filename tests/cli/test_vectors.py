"""embed as it is typed; mistakes are one line with exit code 2."""

import pytest

from citeweave.cli import vectors
from citeweave.core.errors import UserError
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.options import ImportOptions
from citeweave.encoders import network
from citeweave.encoders.tokens import TokenStore
from citeweave.vectors.compressed import CompressedVectors
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.vectors import Vectors

from .conftest import write_jsonl


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("cli")
    papers = [
        {"id": "a", "title": "the cell", "abstract": "We find data. They learn."},
        {"id": "b", "title": "how models learn", "venue": "graphs", "references": ["c"]},
    ]
    import_papers([write_jsonl(place / "papers.jsonl", papers)], place / "corpus", ImportOptions(outside="keep"))
    return place / "corpus"


def test_a_corpus_becomes_vectors(corpus, bert, tmp_path, cli):
    command = f"embed {corpus} --model {bert} -o {tmp_path}/v --device cpu"
    out = cli.text(command, f"--tokens {tmp_path}/t --shard 2 --batch-tokens 16")
    assert "32 dimensions (float32) of " in out
    assert "papers" in out and "not kept: no text, or a vector of zeros" in out
    assert list(Vectors.open(tmp_path / "v").ids) == ["a", "b"] and len(TokenStore.open(tmp_path / "t")) == 3
    found = cli.json(command)
    assert (found["papers"], found["rows"], found["dimension"]) == (3, 2, 32)
    code, _, err = cli(command, "--dtype float16")
    assert code == 2 and "--overwrite" in err
    assert cli(command, "--dtype float16 --overwrite --quiet") == (0, "", "")
    assert Vectors.open(tmp_path / "v").matrix.dtype == "float16"


def test_every_kind_of_vectors(corpus, bert, tmp_path, cli):
    full = tmp_path / "full.jsonl"
    write_jsonl(full, [{"id": "b", "sections": [{"heading": "data", "text": "we find graphs"}]}])

    def make(name, options):
        assert cli.text(f"embed {corpus} --model {bert} -o {tmp_path}/{name} --device cpu,cpu {options}")
        return tmp_path / name

    assert CompressedVectors.open(make("int8", "--as int8")).codes.shape == (2, 32)
    assert CompressedVectors.open(make("bits", "--as binary")).codes.shape == (2, 4)
    assert Vectors.open(make("short", "--as truncate:8")).matrix.shape == (2, 8)
    assert SentenceVectors.open(make("sentences", "--sentences")).lengths().tolist() == [2, 1]
    assert len(Vectors.open(make("full", f"--full-text {full}"))) == 2
    chunks = make("chunks", f"--full-text {full} --keep-chunks")
    assert SentenceVectors.open(chunks).lengths().tolist() == [1, 2]
    cut = Vectors.open(make("cut", "--pooling mean --max-tokens 4 --text venue,title"))
    assert list(cut.ids) == ["a", "b"]


MISTAKES = [
    ("--as int4", "--as is 'int4'"),
    ("--as int8 --sentences", "exclude each other"),
    ("--keep-chunks", "--full-text"),
    ("--text title,body", "text recipe part is 'body'"),
    ("--shard 0", "--shard is 0"),
    ("--max-tokens 1000", "--max-tokens is 1000"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_are_one_line(corpus, bert, tmp_path, cli, options, message):
    cli.fails(message, f"embed {corpus} --model {bert} -o {tmp_path}/v {options}")
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(("more", "compiled"), [("", False), ("--compiled", True), ("--no-compiled", False)])
def test_layers_are_compiled_when_asked_or_where_a_run_is_long(corpus, tmp_path, cli, monkeypatch, more, compiled):
    seen: list[bool] = []

    def load(model, aspect, device, runtime, settings):
        seen.append(runtime.compiled)
        raise UserError("enough")

    monkeypatch.setattr(vectors, "_load_encoders", load)
    command = f"embed {corpus} -o {tmp_path}/v {more}"
    assert cli(command, "--precision bfloat16")[0] == 2
    monkeypatch.setitem(network.COMPILING_PAYS, "embedding", 400)
    assert cli(command)[0] == cli(command, "--precision bfloat16 --device cpu")[0] == 2
    _, _, err = cli(command, "--precision bfloat16")
    assert seen == [compiled] * 3 + [more != "--no-compiled"]
    assert ("embedding of about 690 tokens: layers are compiled first" in err) == (not more)
