"""similar and explain as they are typed: titles, sentences, the page, and mistakes in one line with exit code 2."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.corpus.ingest import import_papers
from citeweave.vectors.sentence_vectors import new_sentence_vectors
from citeweave.vectors.vectors import new_vectors

from .conftest import write_jsonl

PAPERS = [
    {"id": "a", "title": "Deep graphs", "abstract": "We learn graphs. Results are good."},
    {"id": "b", "title": "Deep <b>sea</b>\u202e", "abstract": "We dive. Results are good."},
    {"id": "c", "title": "Moon", "abstract": "We fly."},
]
SENTENCES = [np.array([[1.0, 0], [0, 1]]), np.array([[4.0, 4], [0, 1]]), np.array([[1.25, 0]])]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus, its abstracts in sentences, sentence vectors (s) and vectors (v) of its papers."""
    place = tmp_path_factory.mktemp("similar")
    import_papers(write_jsonl(place / "papers.jsonl", PAPERS), place / "corpus")
    records = [{"paper_id": p["id"], "title": p["title"], "abstract": p["abstract"].split(". ")} for p in PAPERS]
    write_jsonl(place / "abstracts.jsonl", records)
    for new, name, rows in (
        (new_sentence_vectors, "s", SENTENCES),
        (new_vectors, "v", np.array([[1.0, 0], [0, 1], [1, 1]])),
    ):
        with new(place / name, model="mine") as writer:
            writer.append(["a", "b", "c"], rows)
            writer.finish()
    return place


def test_similar_by_sentences(place, cli):
    command = f"similar {place}/s --paper a --distance single --quiet --device cpu"
    assert cli.text(command, "--corpus", place / "corpus").splitlines() == [
        "a  Deep graphs",
        "  1. 0.0000  b  Deep <b>sea</b>",
        "       1  Results are good.",
        "       1  Results are good.",
        "  2. -0.2500  c  Moon",
        "       0  We learn graphs.",
        "       0  We fly.",
    ]
    found = cli.json(command, "--sentences 0 -k 1")
    (hit,) = found["hits"]
    assert found["sentences"] == [0] and found["is_exact"]
    assert hit["id"] == "c" and hit["nearest_sentences"]["paper"] == 0 and hit["title"] == ""
    found = cli.json(f"similar {place}/s --paper a --rescore 0 --metric cosine")
    assert found["temperature"] == 5000 and found["is_exact"]


def test_similar_by_vectors(place, cli):
    out = cli.text(f"similar {place}/v --paper a --corpus {place}/abstracts.jsonl --quiet")
    assert out.splitlines() == ["a  Deep graphs", "  1. 0.7071  c  Moon", "  2. 0.0000  b  Deep <b>sea</b>"]
    assert [hit["id"] for hit in cli.json(f"similar {place}/v --paper a --metric l2 -k 1")["hits"]] == ["c"]


def test_explain(place, tmp_path, cli):
    page = tmp_path / "page.html"
    command = f"explain {place}/corpus --vectors {place}/s --papers a b -o {page}"
    out = cli.text(command, "--distance mean_best")
    assert "mean_best distance 0.7071" in out and "A1  Results are good." in out
    text = page.read_text()
    assert "Deep &lt;b&gt;sea&lt;/b&gt;" in text and "<b>sea" not in text and "default-src 'none'" in text
    cli.fails("already exists", command)
    found = cli.json(command, "--overwrite --sentences 1")
    assert found["left"] == [1] and np.shape(found["plan"]) == (1, 2) and found["titles"][0] == "Deep graphs"
    assert "We dive" in cli.text(f"explain {place}/abstracts.jsonl --vectors {place}/s --papers c b")


def test_mistakes_are_one_line(place, cli):
    for words, message in [
        ("similar @corpus --paper a", "holds no vectors"),
        ("similar @s --paper x", "'x' is none of the 3 papers"),
        ("similar @v --paper x", "--paper is 'x'"),
        (
            "similar @v --paper a --sentences 1",
            "has one vector per paper; make vectors of sentences with `citeweave embed CORPUS --sentences",
        ),
        ("similar @v --paper a -k 0", "-k is 0"),
        ("similar @s --paper a --sentences one", "--sentences is 'one'"),
        ("similar @s --paper a --sentences 7", "none of the sentences 7 of paper 'a'"),
        ("similar @s --paper a --distance nearest", "distance is 'nearest'"),
        ("similar @s --paper a --corpus @gone", "is not there"),
        ("explain @corpus --vectors @v --papers a b", "holds no sentence vectors"),
        ("explain @corpus --vectors @s --papers a x", "'x' is none of"),
    ]:
        cli.fails(message, words.replace("@", f"{place}/"))
