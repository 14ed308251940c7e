"""SPECTER's training files, with what only looks like a citation, and the three kinds of SciRepEval's rows."""

import json

from citeweave.core.errors import InputError
from citeweave.corpus.paper import Citation, Paper
from citeweave.corpus.readers import specter as reader

from ..conftest import refused

A, B = "a" * 40, "B" * 40


def test_metadata_is_read(read_all):
    papers = {
        A: {"paper_id": A, "title": "T", "abstract": "A.", "year": 2019, "references": [B, ""], "cited_by": ["q1"]},
        "key": {"paper_id": "inner", "title": None, "abstract": "Only an abstract."},
        "bare": {"title": None, "abstract": None},
        "number": 5,
        "": {"title": "No id", "references": ["x"], "cited_by": ["y"]},
    }
    found = read_all("specter", [papers])
    first = Paper(A, "T", "A.", 2019, ids=(f"s2sha:{A}",))
    assert found.papers == [first, Paper("key", "", "Only an abstract.", ids=("inner",))]
    assert found.citations == [Citation(f"s2sha:{A}", f"s2sha:{'b' * 40}"), Citation("q1", f"s2sha:{A}")]
    assert found.rejected("papers") == {"no title and no abstract": 1, "not a JSON object": 1, "no id": 1}
    assert found.rejected("citations") == {"no cited paper": 1, "paper rejected that cites or is cited": 2}


def test_only_a_count_of_five_is_a_citation(read_all):
    data = {A: {"p1": {"count": 5}, "p2": {"count": 1}, "p3": {"count": 3}, "p4": None, "": {"count": 5}}, "p9": {}}
    found = read_all("specter", [data])
    assert found.citations == [Citation(f"s2sha:{A}", "p1")] and found.papers == []
    assert found.rejected("citations") == {reader.NOT_DIRECT: 1, reader.UNKNOWN_COUNT: 2, "no cited paper": 1}
    # a paper called title is no trap
    assert read_all("specter", [{"q": {"title": {"count": 5}}}]).citations == [Citation("q", "title")]
    refused(r"data\.json is not one JSON object", read_all, "specter", "[1]", "data.json", error=InputError)


def test_triplets_are_read(read_all):
    query = {"sha": "a" * 40, "corpus_id": 1, "title": "Query", "abstract": "Q."}
    positive, negative = {"corpus_id": 2, "title": "Cited"}, {"corpus_id": 3, "title": "Not cited"}
    rows = [
        {"query": query, "pos": positive, "neg": negative},
        {"query": query, "pos": {"title": "No id"}, "neg": None},
    ]
    found = read_all("scirepeval", json.dumps(rows))
    first = Paper("s2:1", "Query", "Q.", ids=(f"s2sha:{'a' * 40}",))
    assert found.papers == [first, Paper("s2:2", "Cited"), Paper("s2:3", "Not cited"), first]
    assert found.citations == [Citation("s2:1", "s2:2")]
    assert found.rejected("papers") == {"no id": 2} and found.rejected("citations") == {"no cited paper": 1}


def test_rankings_are_read(read_all):
    candidate = {"corpus_id": "7", "title": "Candidate", "abstract": None, "venue": "V", "year": 1964.0}
    candidate |= {"author_names": ["A. B."], "n_citations": 12, "n_key_citations": 3, "score": 1}
    rows = [
        {"query": "some words", "session_id": 5, "candidates": [candidate, {"corpus_id": 8, "title": ""}]},
        {"query": {"doc_id": "9", "title": "A paper as query"}, "candidates": []},
    ]
    found = read_all("scirepeval", json.dumps(rows))
    first = Paper("s2:7", "Candidate", "", 1964, "V", ("A. B.",), citation_count=12, extra={"n_key_citations": 3})
    assert found.papers == [first, Paper("s2:9", "A paper as query")]
    assert found.rejected("papers") == {"no title and no abstract": 1}
    assert set(found.notes.values()) == {1} and len(found.notes) == 2


def test_labels_become_extra(read_all):
    extra = {"labels": [16], "labels_text": ["Mathematics"], "descriptor": "Liver Neoplasms", "log_citations": 2.5}
    extra["is_open"] = True
    raw = {**extra, "labels": [16, None], "descriptor": "Liver  Neoplasms", "nested": {"a": 1}, "mag_id": 40}
    found = read_all("scirepeval", json.dumps([{"corpus_id": 4, "title": "T", "abstract": "A.", **raw}, 3]))
    assert found.papers == [Paper("s2:4", "T", "A.", fields=("Mathematics",), ids=("mag:40",), extra=extra)]
    assert found.rejected("papers") == {"not a JSON object": 1}
