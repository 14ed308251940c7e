"""search as it is typed for everything beyond a text and a paper: sentences, likes, filters, reasons, exports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.search.build import IndexOptions, build_index

from .conftest import run

PAPERS = [
    {
        "id": f"p:{at}",
        "title": f"=we find {word}\u202e",
        "abstract": f"The {word} grows \u001b[31m. We learn from {word}.",
        "year": 2010 + at,
        "venue": "Cell" if at % 2 else "Maps",
        "fields": ["graphs"],
    }
    for at, word in enumerate(["cell", "data", "graphs", "citations", "models"])
]


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory, save_bert: Callable[..., Path]) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("queries-cli")
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in PAPERS))
    (place / "citations.tsv").write_text("p:0\tp:1\np:0\tp:2\np:3\tp:1\np:3\tp:2\np:4\tp:0\np:4\tp:3\n")
    import_papers([place / name for name in ("papers.jsonl", "citations.tsv")], place / "corpus")
    corpus, model = Corpus.open(place / "corpus"), save_bert(place / "tiny")
    build_index(corpus, model, place / "index", IndexOptions(sentences=True, device="cpu"))
    build_index(corpus, model, place / "words", IndexOptions(vectors=False, device="cpu"))
    return place / "index", place / "words"


def found(capsys, index, *arguments):
    code, out, err = run(capsys, "search", index, *arguments, "--json", "--device", "cpu")
    assert code == 0, err
    return json.loads(out)


def ids(told):
    return [hit["id"] for hit in told["hits"]]


def test_ways_of_comparing(indexes, capsys):
    index, words = indexes
    told = found(capsys, index, "cell data")
    assert told["by"] == "hybrid" and told["query"] == {"text": "cell data"} and told["exact"] and len(ids(told)) == 5
    assert found(capsys, index, "cell data", "--by", "words")["by"] == "words"
    told = found(capsys, words, "cell data")
    assert told["by"] == "words" and told["model"] == "" and "no vectors yet" in told["note"]
    code, out, _ = run(capsys, "search", words, "cell")
    assert code == 0 and out.splitlines()[-1].startswith("by words alone")


def test_likes_filters_pages(indexes, capsys):
    index, _ = indexes
    told = found(capsys, index, "--like", "p:0", "--like", "p:1", "--unlike", "p:2")
    assert sorted(ids(told)) == ["p:3", "p:4"] and told["query"] == {"liked": ["p:0", "p:1"], "disliked": ["p:2"]}
    assert sorted(ids(found(capsys, index, "--paper", "p:0", "--year", "2011-2013", "--venue", "cell"))) == [
        "p:1",
        "p:3",
    ]
    assert ids(found(capsys, index, "cell", "--field", "none")) == []
    whole, page = found(capsys, index, "--paper", "p:0"), found(capsys, index, "--paper", "p:0", "--offset", 2)
    assert ids(page) == ids(whole)[2:]
    code, out, _ = run(capsys, "search", index, "--paper", "p:0", "--offset", 2, "--count", 1)
    assert code == 0 and out.startswith("  3. ")
    assert len(ids(found(capsys, index, "cell", "--diversity", "0.5", "--approximate"))) == 5


def test_sentences(indexes, capsys):
    index, _ = indexes
    code, out, _ = run(capsys, "search", index, "--sentences", "p:0:1", "--count", 2)
    lines = out.splitlines()
    assert code == 0 and len(lines) == 4 and all(sign.isprintable() for sign in out.replace("\n", ""))
    assert " 1 ~ 1  We learn from " in lines[1] or " 1 ~ 0  The " in lines[1]
    told = found(capsys, index, "--sentence", "we learn from data", "--sentence", "the cell grows")
    assert told["by"] == "sentences" and told["query"] == {
        "sentences": {"texts": ["we learn from data", "the cell grows"]}
    }
    assert [match["query"] for match in told["hits"][0]["matches"]] == [0, 1]


def test_reasons(indexes, capsys):
    index, _ = indexes
    told = found(capsys, index, "--paper", "p:0", "--explain")
    why = {hit["id"]: hit["why"] for hit in told["hits"]}
    assert why["p:1"]["cites"] == "left" and why["p:4"]["cites"] == "right"
    assert why["p:3"]["shared_references"] == 2 and why["p:3"]["co_cited_by"] == 1 and why["p:3"]["of"] == "p:0"
    code, out, _ = run(capsys, "search", index, "--paper", "p:0", "--explain")
    assert code == 0 and "p:0 cites it" in out and "2 shared references; cited together by 1" in out
    assert "  The cell grows [31m ." in out or "  The cell grows [31m." in out
    code, out, _ = run(capsys, "search", index, "--like", "p:0", "--like", "p:3", "--explain", "--count", 1)
    assert code == 0 and " cite" in out
    code, out, _ = run(capsys, "search", index, "cell", "--explain", "--count", 1, "--device", "cpu")
    assert code == 0 and len(out.splitlines()) == 2
    assert found(capsys, index, "cell", "--explain")["hits"][0]["why"] is None


def test_cite_each(indexes, capsys):
    index, _ = indexes
    text = "We find a cell [CIT]. Models grow. Data learn (?)."
    code, out, _ = run(capsys, "search", index, "--cite", text, "--each-sentence", "--count", 1, "--device", "cpu")
    lines = out.splitlines()
    assert code == 0 and lines[0] == "We find a cell [CIT]." and lines[2] == "Data learn (?)."
    assert lines[1].startswith("  1. ") and lines[3].startswith("  1. ")
    told = found(capsys, index, "--cite", text, "--each-sentence")
    assert {hit["passage"] for hit in told["hits"]} == {0, 2} and told["query"]["cite"] == text
    assert told["sentences"] == 0 and told["passage"][1] == "Models grow."


def test_exports(indexes, capsys, tmp_path):
    index, _ = indexes
    for name in ("out.bib", "out.csv", "out.json"):
        code, out, _ = run(capsys, "search", index, "--paper", "p:0", "--count", 2, "--export", tmp_path / name)
        assert code == 0 and len(out.splitlines()) == 2
    assert (tmp_path / "out.bib").read_text().count("@article{") == 2
    assert ",'=we find " in (tmp_path / "out.csv").read_text()
    assert len(json.loads((tmp_path / "out.json").read_text())) == 2
    import_papers([tmp_path / "out.bib"], tmp_path / "back")
    assert len(Corpus.open(tmp_path / "back")) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--unlike", "p:0"], "at least one that is liked"),
        (["words", "--like", "p:0"], "say what to search for"),
        (["--sentences", "p:0"], None),
        (["--sentences", "p"], "--sentences is 'p'; it must be a paper's id and numbers"),
        (["--sentences", "p:0:9"], "sentence 9 of paper 'p:0' has no vector"),
        (["words", "--year", "20-15-3"], "--year is '20-15-3'"),
        (["words", "--year", "2020-2015"], "the first must not be later"),
        (["words", "--by", "word"], "Did you mean 'words'?"),
        (["--like", "p:0", "--by", "words"], "liked needs vectors"),
        (["words", "--diversity", "2"], "--diversity is 2"),
        (["words", "--each-sentence"], "go with --cite"),
        (["words", "--export", "x.xlsx"], "must end in .bib, .csv, .json"),
        (["--paper", "p:0", "--count", "1001"], "--count is 1001"),
    ],
)
def test_mistakes(indexes, capsys, arguments, said):
    code, out, err = run(capsys, "search", indexes[0], *arguments)
    assert code == 2 and not out and len(err.splitlines()) == 1
    assert said is None or said in err


def test_an_export_that_is_there(indexes, capsys, tmp_path):
    (tmp_path / "out.bib").write_text("mine")
    code, _, err = run(capsys, "search", indexes[0], "--paper", "p:0", "--export", tmp_path / "out.bib")
    assert code == 2 and "already exists" in err and (tmp_path / "out.bib").read_text() == "mine"
