"""Reasons and neighborhoods against the small list of citations that the library was made of."""

from __future__ import annotations

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.core.hash_keys import hash_texts
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import ImportOptions, import_papers
from citeweave.search.answer import allowed_rows
from citeweave.search.build import IndexOptions, build_index
from citeweave.search.explain import ABSTRACT_DISTANCE, explain, shared_words
from citeweave.search.filters import Filter
from citeweave.search.neighborhood import find_missing_papers, find_neighborhood
from citeweave.search.query import Passage, Query
from citeweave.vectors.explain import explain_pair
from citeweave.vectors.sentence_vectors import SentenceVectors


def test_why(library):
    index = library.index
    why = explain(index, index.row("a"), index.row("d"))
    # both cite b, c and x; x is not in the library; e and f cite both
    assert [paper.id for paper in why.shared] == ["b", "c"] and why.shared_unknown == 1
    assert [paper.id for paper in why.citing] == ["e", "f"] and why.cites == ""
    assert why.counts == {
        "left_references": 3,
        "right_references": 4,
        "shared_references": 3,
        "left_cited_by": 3,
        "right_cited_by": 2,
        "co_cited_by": 2,
    }
    assert explain(index, index.row("a"), index.row("c")).cites == "left"
    assert explain(index, index.row("c"), index.row("a")).cites == "right"
    assert explain(index, index.row("a"), index.row("b")).cites == "both"
    assert why.words == [one.word for one in shared_words(index, index.row("a"), index.row("d"))]


def test_why_matches_sentences(library):
    index = library.index
    rows = [index.row("a"), index.row("e")]
    why = explain(index, *rows)
    vectors = SentenceVectors.of(["a", "e"], [index.sentence_vectors(row) for row in rows])
    wanted = explain_pair(vectors, "a", "e", ABSTRACT_DISTANCE)
    assert why.distance == pytest.approx(wanted.total, abs=1e-5)
    for pair in why.pairs:
        assert pair.mass == pytest.approx(wanted.plan[pair.left, pair.right] / wanted.plan.sum(), abs=1e-4)
    assert sum(pair.mass for pair in why.pairs) == pytest.approx(1, abs=1e-2)
    assert why.left_sentences == ["A cell grows.", "We find models from data."]
    told = why.as_json()
    assert told["pairs"][0].keys() == {"left", "right", "mass", "distance"}
    assert told["shared_references"].keys() == {"known", "unknown"} and told["left"]["sentences"] == why.left_sentences
    assert why.brief()["pairs"][0].keys() == {"left", "right", "mass"}


def test_why_without_sentences(library):
    index = library.words
    why = explain(index, index.row("a"), index.row("d"))
    assert why.pairs == [] and why.distance is None and "no sentences are matched" in why.note
    assert [paper.id for paper in why.shared] == ["b", "c"]


def test_neighborhood(library):
    index = library.index
    found = find_neighborhood(index, index.row("a"))
    names = [paper.id for paper in found.nodes]
    assert names[0] == "a" and set(names) == {"a", "b", "c", "e", "f"} and found.outside == 1 and not found.left_out
    assert {(names[one], names[two]) for one, two in found.edges} == {
        edge for edge in library.edges if set(edge) <= set(names)
    }
    few = find_neighborhood(index, index.row("a"), max_papers=2)
    # b is linked twice to a, the others once
    assert [paper.id for paper in few.nodes] == ["a", "b", "c"] and few.left_out == 2
    assert few.as_json()["edges"] == [
        {"citing": "a", "cited": "b"},
        {"citing": "a", "cited": "c"},
        {"citing": "b", "cited": "a"},
    ]
    assert find_neighborhood(index, index.row("s")).edges == []
    with pytest.raises(UserError, match="0 papers are asked for"):
        find_neighborhood(index, index.row("a"), max_papers=0)


def test_lacking(library):
    found = find_missing_papers(library.index).papers
    keys = hash_texts(["x", "y"]).tolist()
    assert sorted((paper.key, paper.count) for paper in found) == sorted(zip(keys, [2, 2], strict=True))
    assert found[0].paper is None and found[0].as_json()["title"] == ""
    assert sorted(paper.as_json()["id"] for paper in found) == ["x", "y"], "what is known of them is shown, no hashes"
    assert not any(paper.as_json()["in_index"] for paper in found)
    assert len(find_missing_papers(library.index, max_papers=1).papers) == 1
    assert find_missing_papers(library.index, min_citing=3).papers == []
    assert all(np.uint64(paper.key) in np.array(keys, np.uint64) for paper in found)


def test_references_that_are_rows(library, tmp_path):
    """x and y are papers of the index now, but known only because others cite them."""
    import_papers([library.place / "source"], tmp_path / "corpus", ImportOptions(outside="keep"))
    corpus = Corpus.open(tmp_path / "corpus")
    index = build_index(corpus, library.place / "model", tmp_path / "index", IndexOptions(vectors=False))
    found = find_missing_papers(index).papers
    assert sorted((paper.paper.id, paper.count) for paper in found if paper.paper) == [("x", 2), ("y", 2)]
    stubs = index.rows(["x", "y"])
    for query, has_stubs in (
        (Query(text="cell"), False),
        (Query(text="cell", outside=True), True),
        (Query(text="cell", where=Filter(local=False)), True),
        (Query(cite=Passage("cell")), True),
    ):
        assert allowed_rows(index, query)[stubs].tolist() == [has_stubs] * 2
