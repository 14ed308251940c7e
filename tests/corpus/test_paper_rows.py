"""Papers of a corpus and an index by row, id and slice, as data frames, and as a table in a notebook."""

import json
from pathlib import Path

import numpy as np
import pytest

import citeweave
from citeweave.core.errors import ArtifactError, MissingExtraError, UserError
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.paper import Paper

PAPERS = [
    {
        "id": "a",
        "title": "Maps & <b>moons</b>",
        "year": 2001,
        "authors": ["Ada Å", "Bo", "Cy", "Di"],
        "doi": "10.1000/A",
    },
    {"id": "b", "title": "Eis auf dem Mond", "abstract": "Ein Text.", "venue": "Ice", "fields": ["Ice", "Moon"]},
    {"id": "c", "title": "‮Third\n", "abstract": "One. Two."},
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "papers.jsonl").write_text("\n".join(map(json.dumps, PAPERS)))
    return citeweave.import_papers(folder / "papers.jsonl", folder / "corpus").corpus


def test_papers_by_row_id_and_slice(corpus: Corpus) -> None:
    assert corpus[0] == corpus[np.int64(0)] == corpus[-3] == corpus["doi:10.1000/a"] == corpus["a"] == corpus.paper(0)
    assert [paper.id for paper in corpus[1:]] == ["b", "c"] and corpus[3:] == []
    assert [paper.id for paper in corpus] == ["a", "b", "c"] == [paper.id for paper in corpus[::-1][::-1]]
    assert len(corpus) == 3


def test_what_is_in_a_corpus(corpus: Corpus) -> None:
    assert "a" in corpus and "doi:10.1000/a" in corpus and corpus[2] in corpus
    assert "d" not in corpus and Paper("d") not in corpus and 0 not in corpus and None not in corpus


def test_a_row_or_id_that_is_not_there(corpus: Corpus) -> None:
    for row in (3, -4, 10**12):
        with pytest.raises(IndexError, match="there are 3 papers, in rows 0 to 2"):
            corpus[row]
    with pytest.raises(UserError, match="paper 'd' is not in"):
        corpus["d"]
    with pytest.raises(TypeError):
        corpus[0.5]  # type: ignore[call-overload]


def test_frames_have_one_row_per_paper(corpus: Corpus) -> None:
    pytest.importorskip("pandas", reason="pip install 'citeweave[frames]'")
    frame, other = corpus.to_pandas(), corpus.to_polars()
    assert list(frame.columns) == other.columns and "extra" not in other.columns
    assert other.to_dicts()[0] | {"year": 2001} == other.to_dicts()[0]
    assert frame.title.tolist() == other["title"].to_list() == list(corpus.titles)
    assert (
        [list(names) for names in frame.authors] == other["authors"].to_list() == [["Ada Å", "Bo", "Cy", "Di"], [], []]
    )
    assert other["year"].to_list() == [2001, None, None] and frame.year.isna().tolist() == [False, True, True]
    assert frame.citation_count.isna().all() and str(frame.year.dtype) == "Int16"
    assert list(corpus.to_pandas(["year", "id"]).columns) == ["year", "id"]
    assert corpus.to_polars("extra").columns == ["extra"]


def test_an_unknown_column_is_refused_with_the_nearest(corpus: Corpus) -> None:
    with pytest.raises(UserError, match=r"columns is 'titel'.*Did you mean 'title'"):
        corpus.to_pandas(["titel"])


def test_damaged_texts_never_reach_a_frame(corpus: Corpus, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(corpus.folder, tmp_path / "copy")
    path = tmp_path / "copy/papers/title.utf8"
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(ArtifactError, match="damaged"):
        Corpus.open(tmp_path / "copy").to_polars(["title"])


def test_a_missing_library_names_the_pip_line(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(MissingExtraError, match=r"citeweave\[frames\]"):
        corpus.to_polars()


def test_titles_are_escaped_in_notebooks(corpus: Corpus) -> None:
    page = corpus._repr_html_()
    assert "Maps &amp; &lt;b&gt;moons&lt;/b&gt;" in page and "<b>" not in page and "‮" not in page
    assert "3 papers" in page and "Ada Å, Bo, Cy et al." in page


def test_an_index_and_its_results(corpus: Corpus, tmp_path: Path) -> None:
    pytest.importorskip("polars", reason="pip install 'citeweave[frames]'")
    options = citeweave.IndexOptions(vectors=False)
    citeweave.build_index(corpus, "minilm", tmp_path / "index", options)
    index = citeweave.Index.open(tmp_path / "index")
    assert index["doi:10.1000/a"].title == index[0].title and "b" in index and len(list(index)) == 3
    assert index.to_polars(["id", "year"]).rows() == [("a", 2001), ("b", None), ("c", None)]
    result = citeweave.answer(index, citeweave.Query("moons", by="words"))
    assert result.to_pandas().id.tolist() == result.to_polars()["id"].to_list() == ["a"]
    assert "1 paper for moons, by words" in result._repr_html_() and "<b>" not in result._repr_html_()
    nothing = citeweave.answer(index, citeweave.Query("zebra", by="words"))
    assert len(nothing.to_pandas()) == len(nothing.to_polars()) == 0 and "0 papers" in nothing._repr_html_()
    assert "Maps &amp;" in citeweave.explain(index, "a", "b")._repr_html_()
