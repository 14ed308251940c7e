"""search as it is typed for everything beyond a text and a paper: sentences, likes, filters, reasons, exports."""

import json

import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.search.build import build_index
from citeweave.search.options import IndexOptions

from .conftest import mistakes, write_jsonl

PAPERS = [
    {"id": f"p:{at}", "title": f"=we find {word}\u202e", "year": 2010 + at, "venue": "Cell" if at % 2 else "Maps"}
    | {"abstract": f"The {word} grows \u001b[31m. We learn from {word}.", "fields": ["graphs"]}
    | {"authors": ["Ada Berg", "Bo Chen", "Eva Ito"] if at else ["Jacob Devlin"], "tags": ["read"] if at > 2 else []}
    for at, word in enumerate(["cell", "data", "graphs", "citations", "models"])
]


@pytest.fixture(scope="module")
def place(tmp_path_factory, save_bert):
    """An index with vectors, and one of words only."""
    place = tmp_path_factory.mktemp("queries-cli")
    (place / "citations.tsv").write_text("p:0\tp:1\np:0\tp:2\np:3\tp:1\np:3\tp:2\np:4\tp:0\np:4\tp:3\n")
    import_papers([write_jsonl(place / "papers.jsonl", PAPERS), place / "citations.tsv"], place / "corpus")
    corpus, model = Corpus.open(place / "corpus"), save_bert(place / "tiny")
    build_index(corpus, model, place / "index", IndexOptions(sentences=True, device="cpu"))
    build_index(corpus, model, place / "words", IndexOptions(vectors=False, device="cpu"))
    return place


@pytest.fixture
def text(place, cli):
    return lambda words: cli.text("search", place / "index", words, "--device cpu")


@pytest.fixture
def found(place, cli):
    return lambda words: cli.json("search", place / "index", words, "--device cpu")


def ids(found):
    return [hit["id"] for hit in found["hits"]]


def test_ways_of_comparing(place, cli, found):
    result = found("'cell data'")
    assert result["by"] == "hybrid" and result["query"] == {"text": "cell data"} and result["exact"]
    assert len(ids(result)) == 5
    assert found("'cell data' --by words")["by"] == "words"
    result = cli.json("search", place / "words", "'cell data'")
    assert result["by"] == "words" and result["model"] == "" and "no vectors yet" in result["note"]
    assert cli.text("search", place / "words", "cell").splitlines()[-1].startswith("by words alone")


def test_likes_filters_pages(text, found):
    result = found("--like p:0 --like p:1 --unlike p:2")
    assert sorted(ids(result)) == ["p:3", "p:4"]
    assert result["query"] == {"liked": ["p:0", "p:1"], "disliked": ["p:2"]}
    assert sorted(ids(found("--paper p:0 --year 2011-2013 --venue cell"))) == ["p:1", "p:3"]
    assert ids(found("cell --field none")) == []
    assert ids(found("--paper p:0 --offset 2")) == ids(found("--paper p:0"))[2:]
    assert text("--paper p:0 --offset 2 --count 1").startswith("  3. ")
    assert len(ids(found("cell --diversity 0.5 --approximate"))) == 5


def test_names_and_details(text, found):
    (hit,) = found("devlin")["hits"]
    assert (hit["id"], hit["authors"], hit["venue"], hit["year"]) == ("p:0", ["Jacob Devlin"], "Maps", 2010)
    assert (hit["doi"], hit["keywords"], hit["cited_by_count"]) == ("", [], 1)
    assert "2013  Berg et al.  =we find" in text("words --author chen --year 2013")
    assert ids(found("words --keyword READ --order newest")) == ["p:4", "p:3"]
    assert ids(found("year:2011-2012")) == ["p:2", "p:1"] and found("10.1000/x")["total"] == 0
    assert "no paper here has the DOI 10.1000/x" in text("doi:10.1000/x")


def test_sentences(text, found):
    out = text("--sentences p:0:1 --count 2")
    lines = out.splitlines()
    assert len(lines) == 4 and all(character.isprintable() for character in out.replace("\n", ""))
    assert " 1 ~ 1  We learn from " in lines[1] or " 1 ~ 0  The " in lines[1]
    result = found("--sentence 'we learn from data' --sentence 'the cell grows'")
    assert result["by"] == "sentences"
    assert result["query"] == {"sentences": {"texts": ["we learn from data", "the cell grows"]}}
    assert [match["query"] for match in result["hits"][0]["matches"]] == [0, 1]


def test_reasons(text, found):
    why = {hit["id"]: hit["why"] for hit in found("--paper p:0 --explain")["hits"]}
    assert why["p:1"]["cites"] == "left" and why["p:4"]["cites"] == "right"
    assert why["p:3"]["shared_references"] == 2 and why["p:3"]["co_cited_by"] == 1 and why["p:3"]["of"] == "p:0"
    out = text("--paper p:0 --explain")
    assert "p:0 cites it" in out and "2 shared references; cited together by 1" in out
    assert "  The cell grows [31m ." in out or "  The cell grows [31m." in out
    assert " cite" in text("--like p:0 --like p:3 --explain --count 1")
    assert "cite" not in text("cell --explain --count 1")
    assert found("cell --explain")["hits"][0]["why"] is None


def test_cite_each(text, found):
    passage = "We find a cell [CIT]. Models grow. Data learn (?)."
    lines = text(f"--cite '{passage}' --each-sentence --count 1").splitlines()
    assert lines[0] == "We find a cell [CIT]." and lines[2] == "Data learn (?)."
    assert lines[1].startswith("  1. ") and lines[3].startswith("  1. ")
    result = found(f"--cite '{passage}' --each-sentence")
    assert {hit["passage"] for hit in result["hits"]} == {0, 2} and result["query"]["cite"] == passage
    assert result["sentences"] == 0 and result["passage"][1] == "Models grow."


def test_exports(place, cli, text, tmp_path):
    for name in ("out.bib", "out.csv", "out.json"):
        assert len(text(f"--paper p:0 --count 2 --export {tmp_path}/{name}").splitlines()) == 2
    assert (tmp_path / "out.bib").read_text().count("@article{") == 2
    assert ",'=we find " in (tmp_path / "out.csv").read_text()
    assert len(json.loads((tmp_path / "out.json").read_text())) == 2
    import_papers([tmp_path / "out.bib"], tmp_path / "back")
    assert len(Corpus.open(tmp_path / "back")) == 2
    before = (tmp_path / "out.bib").read_bytes()
    cli.fails("already exists", f"search {place}/index --paper p:1 --export {tmp_path}/out.bib")
    assert (tmp_path / "out.bib").read_bytes() == before


@mistakes(
    ("--unlike p:0", "at least one that is liked"),
    ("words --like p:0", "give exactly one thing to search for"),
    ("--sentences p:0", ""),
    ("--sentences p", "--sentences is 'p'; it must be a paper's id and numbers"),
    ("--sentences p:0:9", "sentence 9 of paper 'p:0' has no vector"),
    ("words --year 20-15-3", "--year is '20-15-3'"),
    ("words --year 2020-2015", "the first must not be later"),
    ("words --by word", "Did you mean 'words'?"),
    ("--like p:0 --by words", "liked needs vectors"),
    ("words --diversity 2", "--diversity is 2"),
    ("words --each-sentence", "go with --cite"),
    ("words --export x.xlsx", "must end in .bib, .ris, .csv, .json"),
    ("--paper p:0 --count 1001", "--count is 1001"),
)
def test_mistakes_are_one_line(place, cli, words, message):
    cli.fails(message, "search", place / "index", words)
