"""SciRepEval: three kinds of rows in two outer shapes."""

import json

from citeweave.corpus.paper import Citation, Paper
from citeweave.corpus.readers import scirepeval as reader


def test_triplets_are_read(read_all):
    query = {"sha": "a" * 40, "corpus_id": 1, "title": "Query", "abstract": "Q."}
    rows = [
        {"query": query, "pos": {"corpus_id": 2, "title": "Cited"}, "neg": {"corpus_id": 3, "title": "Not cited"}},
        {"query": query, "pos": {"title": "No id"}, "neg": None},
    ]
    found = read_all(reader, json.dumps(rows))
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
    found = read_all(reader, json.dumps(rows))
    assert found.papers == [
        Paper("s2:7", "Candidate", "", 1964, "V", ("A. B.",), citation_count=12, extra={"n_key_citations": 3}),
        Paper("s2:9", "A paper as query"),
    ]
    assert found.rejected("papers") == {"no title and no abstract": 1}
    assert set(found.notes.values()) == {1} and len(found.notes) == 2


def test_labels_become_extra(read_all):
    extra = {"labels": [16], "labels_text": ["Mathematics"], "descriptor": "Liver Neoplasms", "log_citations": 2.5}
    extra["is_open"] = True
    raw = {**extra, "labels": [16, None], "descriptor": "Liver  Neoplasms", "nested": {"a": 1}}
    found = read_all(reader, json.dumps([{"corpus_id": 4, "mag_id": 40, "title": "T", "abstract": "A.", **raw}, 3]))
    assert found.papers == [Paper("s2:4", "T", "A.", fields=("Mathematics",), ids=("mag:40",), extra=extra)]
    assert found.rejected("papers") == {"not a JSON object": 1}
