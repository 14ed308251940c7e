"""`citeweave explore` as people use it: once for scripts, and as a server that Ctrl-C ends."""

import re
import socket

import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.corpus.ingest import import_papers
from citeweave.search.build import build_index
from citeweave.search.options import IndexOptions

TITLES = ["how models learn from data", "the cell grows in graphs", "<script>alert(1)</script> & the cell"]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "my papers.bib"
    path.write_text(
        "".join(f"@article{{k{at}, title={{{title}}}, year={{2019}}}}\n" for at, title in enumerate(TITLES))
    )
    return path


def test_once(source, bert, tmp_path, cli):
    words = ("explore", source, f"--folder {tmp_path}/library --model {bert} --runtime torch --once")
    found = cli.json(*words)
    assert (found["papers"], found["with_vectors"], found["with_sentences"]) == (3, 3, 3)
    assert found["lacks"][0] == "3 of 3 papers have no abstract"
    code, out, err = cli(*words)
    assert code == 0 and "my papers: 3 papers, 3 with vectors" in out
    assert "3 of 3 papers have no abstract" in err and "reading" not in err


def test_mistakes_are_one_line(tmp_path, source, cli):
    (tmp_path / "empty.bib").write_text("")
    (tmp_path / "notes.txt").write_text("buy milk")
    corpus = import_papers(source, tmp_path / "corpus").corpus
    build_index(corpus, "minilm", tmp_path / "index", IndexOptions(vectors=False))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for arguments, reason in (
            ([tmp_path / "gone.bib"], "does not exist"),
            ([tmp_path / "empty.bib"], "empty|no format"),
            ([tmp_path / "notes.txt"], "no format.*; give an export as BibTeX"),
            ([tmp_path / "index", "--samples", tmp_path], "--samples .* refers to rows of a corpus"),
            ([source, "--enrich", "scopus"], "--enrich is 'scopus'"),
            ([source, "--port", "70000"], "--port is 70000"),
            ([source, "--port", taken.getsockname()[1], "--no-browser"], "cannot listen at"),
        ):
            code, out, err = cli("explore", *arguments, "--folder", tmp_path / f"library-{reason[:5]}")
            assert code == 2 and out == "" and re.search(f"error: .*({reason})", err), err
