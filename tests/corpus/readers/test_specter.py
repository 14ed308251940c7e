"""SPECTER's training files: what is a citation in data.json, and what only looks like one."""

import pytest

from citeweave.core.errors import InputError
from citeweave.corpus.paper import Citation, Paper
from citeweave.corpus.readers import specter as reader

A, B = "a" * 40, "B" * 40


def test_metadata_is_read(read_all):
    papers = {
        A: {"paper_id": A, "title": "T", "abstract": "A.", "year": 2019, "references": [B, ""], "cited_by": ["q1"]},
        "key": {"paper_id": "inner", "title": None, "abstract": "Only an abstract."},
        "bare": {"title": None, "abstract": None},
        "number": 5,
        "": {"title": "No id", "references": ["x"], "cited_by": ["y"]},
    }
    found = read_all(reader, [papers])
    assert found.papers == [
        Paper(A, "T", "A.", 2019, ids=(f"s2sha:{A}",)),
        Paper("key", "", "Only an abstract.", ids=("inner",)),
    ]
    assert found.citations == [Citation(f"s2sha:{A}", f"s2sha:{'b' * 40}"), Citation("q1", f"s2sha:{A}")]
    assert found.rejected("papers") == {"no title and no abstract": 1, "not a JSON object": 1, "no id": 1}
    assert found.rejected("citations") == {"no cited paper": 1, "paper rejected that cites or is cited": 2}


def test_only_a_count_of_five_is_a_citation(read_all):
    data = {A: {"p1": {"count": 5}, "p2": {"count": 1}, "p3": {"count": 3}, "p4": None, "": {"count": 5}}, "p9": {}}
    found = read_all(reader, [data])
    assert found.citations == [Citation(f"s2sha:{A}", "p1")] and found.papers == []
    assert found.rejected("citations") == {reader.NOT_DIRECT: 1, reader.UNKNOWN_COUNT: 2, "no cited paper": 1}
    # a paper called title is no trap
    assert read_all(reader, [{"q": {"title": {"count": 5}}}]).citations == [Citation("q", "title")]
    with pytest.raises(InputError, match=r"data\.json is not one JSON object"):
        read_all(reader, "[1]", "data.json")
