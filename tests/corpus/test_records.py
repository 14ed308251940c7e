"""Dictionaries and data frames are imported as the same records in a file are, and refused by name."""

import datetime

import numpy as np
import pytest

from citeweave import import_papers
from citeweave.core.errors import EmptyResultError

from .conftest import refused

PAPERS = [
    {"id": "a", "title": "Maps of the lunar south pole", "year": 2020, "references": ["b", "nowhere"]},
    {"id": "b", "title": "Ice on the Moon", "authors": ["Ada One"], "note": {"shelf": 7}},
    {"id": "c", "year": 2019},
]


def test_dictionaries_are_imported_as_the_same_lines_of_a_file(tmp_path, write):
    from_file = import_papers(write("records.jsonl", *PAPERS), tmp_path / "from file").corpus
    result = import_papers(PAPERS, tmp_path / "from python")
    corpus = result.corpus
    assert [*corpus] == [*from_file] and corpus.citing.tolist() == from_file.citing.tolist() == [0]
    records = corpus.manifest.facts["records"]
    assert records == from_file.manifest.facts["records"]
    assert records["papers"] == {"read": 3, "kept": 2, "rejected": {"no title and no abstract": 1}}
    assert result.inputs.formats() == {"plain": 1} and result.inputs.files[0].name == "records.jsonl"
    assert not result.inputs.files[0].path.exists(), "nothing is left behind"


def test_the_same_records_are_the_same_import(tmp_path):
    generated = ({key: paper[key] for key in reversed(paper)} for paper in PAPERS)
    assert [import_papers(each, tmp_path / "c").skipped for each in (PAPERS, generated, [PAPERS])] == [
        False,
        True,
        True,
    ]
    refused("made from other inputs", import_papers, PAPERS[:2], tmp_path / "c")
    other = [{"id": "d", "title": "Craters"}]
    one = import_papers([PAPERS, other], tmp_path / "one").corpus
    assert one.hash == import_papers([other, PAPERS], tmp_path / "other").corpus.hash and "d" in one


def test_records_beside_files(tmp_path, write):
    edges = write("citations.tsv", "b\ta\nb\tc\n")
    corpus = import_papers([edges, PAPERS, tuple(PAPERS[:1])], tmp_path / "c").corpus
    assert list(corpus.ids) == ["a", "b"] and len(corpus.citing) == 2
    assert corpus.manifest.facts["files"]["read"] == 3


def test_contexts_and_answers_of_services(tmp_path):
    contexts = [{"citing": "a", "text": "Ice was seen [1].", "cited": ["b"]}]
    assert len(import_papers([PAPERS, contexts], tmp_path / "c").corpus.contexts) == 1
    work = {"id": "https://openalex.org/W1", "title": "Craters", "display_name": "Craters", "referenced_works": []}
    found = import_papers([{**work, "publication_year": 2020, "ids": {}, "type": "article"}], tmp_path / "works")
    assert found.inputs.formats() == {"openalex": 1} and found.corpus.years.tolist() == [2020]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_data_frames(library, tmp_path):
    module = pytest.importorskip(library)
    table = {"id": ["a", "b"], "title": ["Maps", "Ice"], "year": [2020, None], "references": [["b"], []]}
    table["published"] = [datetime.datetime(2020, 5, 1), None]
    frame = module.table(table) if library == "pyarrow" else module.DataFrame(table)
    corpus = import_papers(frame, tmp_path / "c").corpus
    assert list(corpus.titles) == ["Maps", "Ice"] and corpus.years.tolist() == [2020, 0]
    assert len(corpus.citing) == 1 and corpus.paper(1).extra == {}
    assert import_papers([frame], tmp_path / "c").skipped


def test_the_frame_of_a_corpus_is_a_corpus(tmp_path):
    pytest.importorskip("pandas")
    corpus = import_papers(PAPERS, tmp_path / "c").corpus
    frame = corpus.to_pandas()
    again = import_papers(frame[frame.id != "c"], tmp_path / "again").corpus
    assert list(again.ids) == list(corpus.ids) and list(again.authors) == list(corpus.authors)


def test_values_of_numpy_and_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    record = {"id": np.int64(7), "title": "Maps", "year": pandas.NA, "authors": np.array(["Ada", "Bo"], object)}
    paper = import_papers(
        [{**record, "published": pandas.Timestamp(2020, 5, 1), "seen": pandas.NaT}], tmp_path / "c"
    ).corpus[0]
    assert (paper.id, paper.year, paper.authors) == ("7", 2020, ("Ada", "Bo")) and "seen" not in paper.extra


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (7, r"import_papers: sources hold 7 \(int\); they must be files, folders, dictionaries .*pandas"),
        (None, "sources hold None"),
        ([], "sources are empty"),
        (iter(()), "sources are empty"),
        ([[]], "a list or data frame of records is empty; leave it out"),
        ({"id": "a", "title": "Maps"}, r"sources hold {'id': .* \(dict\).*put dictionaries into a list of their own"),
        ((number for number in range(3)), r"sources hold 0 \(int\)"),
        ([(id for id in "ab")], r"record 1 is 'a' \(str\)"),
        ([*PAPERS, "library.bib"], r"record 4 is 'library.bib' \(str\)"),
        ([PAPERS, PAPERS[0]], "put dictionaries into a list of their own"),
        ([{"id": "a", "title": {1, 2}}], r"record 1 is .*, which JSON cannot hold \(a value is {1, 2} \(set\)\)"),
        ([{"id": "a", 7: "x"}], r"record 1 is .*, which JSON cannot hold .*; use texts as keys"),
    ],
)
def test_other_things_are_refused_by_name(sources, message, tmp_path):
    refused(message, import_papers, sources, tmp_path / "c")
    assert not list(tmp_path.iterdir())


def test_records_of_no_known_shape_are_counted(tmp_path):
    refused(
        "2 papers: no id", import_papers, [{"name": "Maps"}, {"name": "Ice"}], tmp_path / "c", error=EmptyResultError
    )
