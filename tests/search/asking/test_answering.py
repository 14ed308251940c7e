"""Answers equal what a slow reading of the definitions gives, page by page, with filters and without vectors."""

from __future__ import annotations

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.search.answer import answer, needs_query_encoder, title_and_abstract
from citeweave.search.filters import Filter
from citeweave.search.nearest import search_paper
from citeweave.search.query import Passage, Query, SentenceQuery
from citeweave.search.rankings import diverse_order, pool_size, rocchio_vector
from citeweave.search.words import search_words, searchable_text

EVERY = 100


def cosines(index, vector):
    rows = np.flatnonzero(index.with_vector)
    own = index.take(rows)
    return dict(zip(rows.tolist(), own @ vector / np.linalg.norm(own, axis=1) / np.linalg.norm(vector), strict=True))


def ids(found):
    return [hit.id for hit in found.hits]


def by_score(index, scores):
    return [index.id(row) for row in sorted(scores, key=lambda row: (-scores[row], index.id(row)))]


def test_text_by_vectors_words_and_both(library):
    index, reader = library.index, library.reader
    text = "models find data\nthe cell grows. citations."
    vector = reader.encode("models find data", abstract="the cell grows. citations.")
    near = answer(index, reader, Query(text=text, by="vectors", count=EVERY))
    assert ids(near) == by_score(index, {row: np.float32(s) for row, s in cosines(index, vector).items()})
    assert near.exact and not near.note and near.by == "vectors"
    lexical = answer(index, None, Query(text=text, by="words", count=EVERY))
    wanted = search_words(index, searchable_text(*title_and_abstract(text)), EVERY)
    assert [hit.row for hit in lexical.hits] == wanted.rows.tolist() and lexical.by == "words"
    both = answer(index, reader, Query(text=text, count=EVERY))
    places = [{id: at for at, id in enumerate(ids(each), 1)} for each in (near, lexical)]
    fused = {id: sum(1 / (60 + place[id]) for place in places if id in place) for id in ids(near)}
    assert both.by == "hybrid" and ids(both) == sorted(fused, key=lambda id: (-fused[id], id))
    assert [hit.score for hit in both.hits] == pytest.approx(sorted(fused.values(), reverse=True))


def test_pasted_text_is_title_and_abstract(library):
    one = library.reader.encode("we find data", abstract="the cell grows")
    assert not np.allclose(one, library.reader.encode("we find data the cell grows"))
    paper = library.index.paper(library.index.row("c"))
    found = answer(library.index, library.reader, Query(text=f"{paper.title}\n{paper.abstract}", by="vectors", count=1))
    assert found.hits[0].id == "c" and found.hits[0].score == pytest.approx(1, abs=1e-4)


def test_pages_fit_together(library):
    index, reader = library.index, library.reader
    for query in (
        {"text": "cell data"},
        {"paper": "a"},
        {"liked": ("a", "b"), "diversity": 0.7},
        {"sentences": SentenceQuery("e", (0, 2))},
    ):
        whole = ids(answer(index, reader, Query(**query, count=4, offset=0)))
        whole += ids(answer(index, reader, Query(**query, count=4, offset=4)))
        parts = [ids(answer(index, reader, Query(**query, count=1, offset=at)))[:1] for at in range(8)]
        if "diversity" not in query:
            assert [id for part in parts for id in part] == whole
        assert len(set(whole)) == len(whole) == 8
        assert ids(answer(index, reader, Query(**query, count=4, offset=4000))) == []


def test_paper(library):
    index = library.index
    found = answer(index, None, Query(paper="doi:10.1/a", count=EVERY))
    assert ids(found) == [hit.id for hit in search_paper(index, "a", count=EVERY)] and "a" not in ids(found)
    words = answer(index, None, Query(paper="a", by="words", count=EVERY))
    assert words.by == "words" and "a" not in ids(words)
    assert set(ids(answer(index, None, Query(paper="a", by="hybrid", count=EVERY)))) == set(ids(found))


def test_liked_and_disliked(library):
    index = library.index
    rows = {id: index.row(id) for id in "abcd"}
    liked = index.take(np.array([rows["a"], rows["b"]]))
    disliked = index.take(np.array([rows["c"]]))
    unit = [own / np.linalg.norm(own, axis=1, keepdims=True) for own in (liked, disliked)]
    vector = unit[0].mean(axis=0) - 0.5 * unit[1].mean(axis=0)
    np.testing.assert_allclose(rocchio_vector(liked, disliked), vector, rtol=1e-5)
    scores = {row: np.float32(s) for row, s in cosines(index, vector).items() if index.id(row) not in "abc"}
    found = answer(index, None, Query(liked=("doi:10.1/a", "b"), disliked=("c",), count=EVERY))
    assert ids(found) == by_score(index, scores)


def test_disliked_papers_turn_the_query_away():
    axes = np.eye(3, dtype=np.float32)
    found = rocchio_vector(axes[:1], 7 * (axes[:1] + axes[1:2]))
    assert found[0] > 0 > found[1] and found[2] == 0
    with pytest.raises(UserError, match="cancel each other out"):
        rocchio_vector(np.array([[1, 0], [-2, 0]], np.float32), np.empty((0, 2), np.float32))


def test_filters(library):
    index, reader = library.index, library.reader
    where = Filter(years=(2012, 2016), venues=("cell",))
    every = set(ids(answer(index, reader, Query(text="cell", where=where, count=EVERY))))
    assert every == {"c", "e", "g"}
    for query in (
        {"paper": "a"},
        {"liked": ("a",)},
        {"sentences": SentenceQuery("a")},
        {"cite": Passage("a cell [CIT]")},
    ):
        found = answer(index, reader, Query(**query, where=where, count=EVERY))
        assert set(ids(found)) == {"c", "e", "g"}, query
    assert ids(answer(index, reader, Query(text="cell", where=Filter(venues=("none",))))) == []


def test_diversity(library):
    index = library.index
    # s and t have the same text: one of them is enough at first
    plain = answer(index, library.reader, Query(text="cell cell grows", by="vectors", count=2))
    assert ids(plain) == ["s", "t"]
    mixed = answer(index, library.reader, Query(text="cell cell grows", by="vectors", count=EVERY, diversity=0.9))
    assert mixed.hits[0].id == "s" and ids(mixed).index("t") > 2 and len(mixed.hits) == len(index)
    assert pool_size(3) == 50 and pool_size(20) == 100


def test_diversity_as_the_slow_way():
    rng = np.random.default_rng(3)
    scores, vectors = np.sort(rng.random(12))[::-1], rng.normal(size=(12, 4)).astype(np.float32)
    relevance = (scores - scores.min()) / (scores.max() - scores.min())
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for diversity in (0.0, 0.3, 0.8, 1.0):
        order: list[int] = []
        while len(order) < 12:
            left = [at for at in range(12) if at not in order]
            value = [
                (1 - diversity) * relevance[at]
                - diversity * max((float(unit[at] @ unit[one]) for one in order), default=0)
                for at in left
            ]
            order.append(left[int(np.argmax(value))])
        assert diverse_order(scores, vectors, diversity).tolist() == order
        assert diverse_order(scores, vectors, diversity, 5).tolist() == order[:5]
    vectors[4] = 0  # a paper without vector is neither first nor last for that
    assert sorted(diverse_order(scores, vectors, 0.5).tolist()) == list(range(12))


def test_an_index_of_words(library):
    words = library.words
    found = answer(words, None, Query(text="cell"))
    assert found.by == "words" and "no vectors yet" in found.note and len(found.hits) > 2
    assert answer(words, library.reader, Query(text="cell")).by == "words"
    assert answer(words, None, Query(text="cell", by="hybrid")).by == "words"
    near = answer(words, None, Query(paper="a"))
    assert near.by == "words" and "no vector" in near.note and "a" not in ids(near)
    for query, said in (
        (Query(text="cell", by="vectors"), "needs vectors"),
        (Query(paper="a", by="vectors"), "no vectors yet"),
        (Query(liked=("a",)), "by several papers needs vectors"),
        (Query(sentences=SentenceQuery("a", (0,))), "sentences needs sentence vectors"),
        (Query(cite=Passage("cell [CIT]")), "what to cite needs vectors"),
        (Query(text="cell", diversity=0.5), "diversity needs vectors"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            answer(words, library.reader, query)
        assert "citeweave" in str(caught.value)


def test_without_a_model(library):
    index = library.index
    found = answer(index, None, Query(text="cell"))
    assert found.by == "words" and "model is not loaded" in found.note
    for query in (
        Query(text="cell", by="vectors"),
        Query(sentences=SentenceQuery(texts=("x",))),
        Query(cite=Passage("x")),
    ):
        assert needs_query_encoder(query)
        with pytest.raises(UserError, match="loaded"):
            answer(index, None, query)
    assert not needs_query_encoder(Query(paper="a")) and not needs_query_encoder(Query(text="a", by="words"))


def test_approximate_says_so(library):
    found = answer(library.index, library.reader, Query(text="cell", approximate=True))
    assert not found.exact and ids(found)


def test_json(library):
    told = answer(library.index, library.reader, Query(text="cell", count=2)).as_json()
    assert told.keys() == {"query", "by", "hits", "exact", "note", "took_ms"}
    assert told["hits"][0].keys() == {"id", "title", "year", "score", "row", "matches"}
    # a text is one sentence, and the best sentence of each hit answers it
    assert all(match["query"] == 0 for hit in told["hits"] for match in hit["matches"])


def test_cite_a_paragraph(library):
    index, reader = library.index, library.reader
    text = "We find a cell [CIT]. Models grow. Data learn (Chen, 2014)."
    whole = answer(index, reader, Query(cite=Passage(text), count=3))
    assert len(whole.hits) == 3 and not whole.passage and all(hit.passage is None for hit in whole.hits)
    each = answer(index, reader, Query(cite=Passage(text, each=True), count=3))
    assert [hit.passage for hit in each.hits] == [0, 0, 0, 2, 2, 2] and len(each.passage) == 3
    alone = answer(index, reader, Query(cite=Passage("We find a cell [CIT]."), count=3))
    assert ids(each)[:3] == ids(alone)
    told = each.as_json()
    assert (
        told["hits"][0]["evidence"] is None and told["hits"][0]["paper_score"] and told["passage"][1] == "Models grow."
    )
    with pytest.raises(UserError, match="nothing is left"):
        answer(index, reader, Query(cite=Passage("[CIT]", each=True)))
    with pytest.raises(UserError, match="40 sentences"):
        answer(index, reader, Query(cite=Passage("We find. " * 40, each=True)))
