"""similar and explain as they are typed: titles, sentences, the page, and mistakes in one line with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.corpus.ingest import import_papers
from citeweave.vectors.sentence_vectors import new_sentence_vectors
from citeweave.vectors.vectors import new_vectors

from .conftest import run

PAPERS = [
    {"id": "a", "title": "Deep graphs", "abstract": "We learn graphs. Results are good."},
    {"id": "b", "title": "Deep <b>sea</b>\u202e", "abstract": "We dive. Results are good."},
    {"id": "c", "title": "Moon", "abstract": "We fly."},
]
SENTENCES = [np.array([[1.0, 0], [0, 1]]), np.array([[4.0, 4], [0, 1]]), np.array([[1.25, 0]])]


class Made(NamedTuple):
    corpus: Path
    abstracts: Path
    sentences: Path
    vectors: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    place = tmp_path_factory.mktemp("similar")
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in PAPERS))
    import_papers([place / "papers.jsonl"], place / "corpus")
    records = [
        {"paper_id": paper["id"], "title": paper["title"], "abstract": paper["abstract"].split(". ")}
        for paper in PAPERS
    ]
    (place / "abstracts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    ids = [paper["id"] for paper in PAPERS]
    with new_sentence_vectors(place / "s", model="mine") as writer:
        writer.append(ids, SENTENCES)
        writer.finish()
    with new_vectors(place / "v", model="mine") as vectors:
        vectors.append(ids, np.array([[1.0, 0], [0, 1], [1, 1]]))
        vectors.finish()
    return Made(place / "corpus", place / "abstracts.jsonl", place / "s", place / "v")


def test_similar_by_sentences(made, capsys):
    command = ("similar", made.sentences, "--paper", "a", "--distance", "single", "--quiet", "--device", "cpu")
    code, out, _ = run(capsys, *command, "--corpus", made.corpus)
    assert code == 0 and out.splitlines() == [
        "a  Deep graphs",
        "  1. 0.0000  b  Deep <b>sea</b>",
        "       1  Results are good.",
        "       1  Results are good.",
        "  2. -0.2500  c  Moon",
        "       0  We learn graphs.",
        "       0  We fly.",
    ]
    code, out, _ = run(capsys, *command, "--sentences", "0", "-k", 1, "--json")
    found = json.loads(out)
    assert code == 0 and found["sentences"] == [0] and found["is_exact"]
    (hit,) = found["hits"]
    assert hit["id"] == "c" and hit["nearest_sentences"]["paper"] == 0 and hit["title"] == ""
    code, out, _ = run(
        capsys, "similar", made.sentences, "--paper", "a", "--rescore", 0, "--json", "--metric", "cosine"
    )
    assert json.loads(out)["temperature"] == 5000 and json.loads(out)["is_exact"]


def test_similar_by_vectors(made, capsys):
    code, out, _ = run(capsys, "similar", made.vectors, "--paper", "a", "--corpus", made.abstracts, "--quiet")
    assert code == 0 and out.splitlines() == [
        "a  Deep graphs",
        "  1. 0.7071  c  Moon",
        "  2. 0.0000  b  Deep <b>sea</b>",
    ]
    code, out, _ = run(capsys, "similar", made.vectors, "--paper", "a", "--metric", "l2", "-k", 1, "--json")
    assert [hit["id"] for hit in json.loads(out)["hits"]] == ["c"]


def test_explain(made, tmp_path, capsys):
    page = tmp_path / "page.html"
    command = ("explain", made.corpus, "--vectors", made.sentences, "--papers", "a", "b", "-o", page)
    code, out, _ = run(capsys, *command, "--distance", "mean_best")
    assert code == 0 and "mean_best distance 0.7071" in out and "A1  Results are good." in out
    text = page.read_text()
    assert "Deep &lt;b&gt;sea&lt;/b&gt;" in text and "<b>sea" not in text and "default-src 'none'" in text
    code, _, err = run(capsys, *command)
    assert code == 2 and "already exists" in err
    code, out, _ = run(capsys, *command, "--overwrite", "--json", "--sentences", "1")
    found = json.loads(out)
    assert (
        code == 0 and found["left"] == [1] and np.shape(found["plan"]) == (1, 2) and found["titles"][0] == "Deep graphs"
    )
    code, out, _ = run(capsys, "explain", made.abstracts, "--vectors", made.sentences, "--papers", "c", "b")
    assert code == 0 and "We dive" in out


def test_mistakes(made, tmp_path, capsys):
    for arguments, message in [
        (("similar", made.corpus, "--paper", "a"), "holds no vectors"),
        (("similar", made.sentences, "--paper", "x"), "'x' is none of the 3 papers"),
        (("similar", made.vectors, "--paper", "x"), "--paper is 'x'"),
        (("similar", made.vectors, "--paper", "a", "--sentences", "1"), "has one vector a paper"),
        (("similar", made.vectors, "--paper", "a", "-k", 0), "-k is 0"),
        (("similar", made.sentences, "--paper", "a", "--sentences", "one"), "--sentences is 'one'"),
        (("similar", made.sentences, "--paper", "a", "--sentences", "7"), "none of the sentences 7 of paper 'a'"),
        (("similar", made.sentences, "--paper", "a", "--distance", "nearest"), "distance is 'nearest'"),
        (("similar", made.sentences, "--paper", "a", "--corpus", tmp_path / "gone"), "is not there"),
        (("explain", made.corpus, "--vectors", made.vectors, "--papers", "a", "b"), "holds no sentence vectors"),
        (("explain", made.corpus, "--vectors", made.sentences, "--papers", "a", "x"), "'x' is none of"),
    ]:
        code, out, err = run(capsys, *arguments)
        assert code == 2 and not out and message in err and err.count("\n") == 1, err
