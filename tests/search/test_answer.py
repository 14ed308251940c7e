"""Answers equal what a slow reading of the definitions gives, page by page, with filters and without vectors."""

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.encoders.sentence_encoder import encode_sentences
from citeweave.search.answer import answer, needs_query_encoder, title_and_abstract
from citeweave.search.nearest import QueryEncoder, nearest_papers, search_paper, search_text
from citeweave.search.query import Filter, Passage, Query, SentenceQuery
from citeweave.search.rankings import rocchio_vector
from citeweave.search.sentences import FACET, encode_sentences_alone
from citeweave.search.words import match_words, search_words, searchable_text
from citeweave.vectors.document_distance import explain_pair
from citeweave.vectors.sentence_vectors import SentenceVectors

from ..conftest import refused

EVERY = 100


def cosines(own, vector):
    own, vector = own.astype(np.float64), vector.astype(np.float64)
    return np.float32(own @ vector / np.linalg.norm(own, axis=1) / np.linalg.norm(vector))


def nearest_ids(index, vector, without=()):
    rows = np.flatnonzero(index.with_vector)
    pairs = zip(cosines(index.take(rows), vector), map(index.id, rows.tolist()), strict=True)
    return [id for _, id in sorted((-score, id) for score, id in pairs if id not in without)]


def ids(found):
    return [hit.id for hit in found.hits]


@pytest.fixture
def ask(library):
    """The answer to a query of these parts."""
    return lambda **parts: answer(library.index, library.reader, Query(**{"count": EVERY, **parts}))


def test_text_by_vectors_words_and_both(library, ask):
    index, reader, text = library.index, library.reader, "models find data\nthe cell grows. citations."
    near = ask(text=text, by="vectors")
    assert ids(near) == nearest_ids(index, reader.encode("models find data", abstract="the cell grows. citations."))
    assert near.exact and near.by == "vectors"
    lexical = answer(index, None, Query(text=text, by="words", count=EVERY))
    wanted = search_words(index, searchable_text(*title_and_abstract(text)), EVERY)
    assert [hit.row for hit in lexical.hits] == wanted.rows.tolist() and lexical.by == "words"
    both = ask(text=text)
    limit = match_words(index, text).limit  # every word of the query is known here
    fused = {hit.id: 0.7 * hit.score for hit in near.hits}
    for hit in lexical.hits:
        fused[hit.id] += 0.3 * hit.score / limit
    assert both.by == "hybrid" and ids(both) == sorted(fused, key=lambda id: (-fused[id], id))
    assert [hit.score for hit in both.hits] == pytest.approx(sorted(fused.values(), reverse=True))
    # pasted text is title and abstract
    one = reader.encode("we find data", abstract="the cell grows")
    assert not np.allclose(one, reader.encode("we find data the cell grows"))
    paper = index.paper(index.row("c"))
    (hit,) = ask(text=f"{paper.title}\n{paper.abstract}", by="vectors", count=1).hits
    assert hit.id == "c" and hit.score == pytest.approx(1, abs=1e-4)
    approximate = ask(text="cell", approximate=True)
    assert not approximate.exact and ids(approximate)
    said = ask(text="cell", count=2).as_json()
    keys = {"query", "by", "hits", "exact", "note", "total", "read", "confidence", "took_ms"}
    assert said.keys() == keys
    assert said["hits"][0].keys() == {"id", "title", "year", "score", "row", "matches"}
    # a text is one sentence, and the best sentence of each hit answers it
    assert all(match["query"] == 0 for hit in said["hits"] for match in hit["matches"])


PAGED = [{"text": "cell data"}, {"paper": "a"}, {"liked": ("a", "b"), "diversity": 0.7}]


@pytest.mark.parametrize("query", [*PAGED, {"sentences": SentenceQuery("e", (0, 2))}])
def test_pages_fit_together(ask, query):
    two = [id for offset in (0, 4) for id in ids(ask(**query, count=4, offset=offset))]
    parts = [ids(ask(**query, count=1, offset=at))[:1] for at in range(8)]
    if "diversity" not in query:
        assert [id for part in parts for id in part] == two
    assert len(set(two)) == len(two) == 8
    assert ids(ask(**query, count=4, offset=4000)) == []


def test_by_papers_that_are_liked_and_disliked(library, ask):
    index = library.index
    found = answer(index, None, Query(paper="doi:10.1/a", count=EVERY))
    assert ids(found) == [hit.id for hit in search_paper(index, "a", count=EVERY)] and "a" not in ids(found)
    words = answer(index, None, Query(paper="a", by="words", count=EVERY))
    assert words.by == "words" and "a" not in ids(words)
    assert set(ids(answer(index, None, Query(paper="a", by="hybrid", count=EVERY)))) == set(ids(found))
    liked, disliked = index.take(index.rows(["a", "b"])), index.take(index.rows(["c"]))
    unit = [own / np.linalg.norm(own, axis=1, keepdims=True) for own in (liked, disliked)]
    vector = unit[0].mean(axis=0) - 0.5 * unit[1].mean(axis=0)
    np.testing.assert_allclose(rocchio_vector(liked, disliked), vector, rtol=1e-5)
    found = answer(index, None, Query(liked=("doi:10.1/a", "b"), disliked=("c",), count=EVERY))
    assert ids(found) == nearest_ids(index, vector, "abc")


def test_every_kind_of_query_is_filtered(ask):
    where = Filter(years=(2012, 2016), venues=("cell",))
    of_texts = {"sentences": SentenceQuery("a"), "cite": Passage("a cell [CIT]")}
    for query in ({"text": "cell"}, {"paper": "a"}, {"liked": ("a",)}, *({kind: of_texts[kind]} for kind in of_texts)):
        assert set(ids(ask(**query, where=where))) == {"c", "e", "g"}, query
    assert ids(ask(text="cell", where=Filter(venues=("none",)))) == []


def test_of_papers_with_the_same_text_one_is_enough_at_first(library, ask):
    assert ids(ask(text="cell cell grows", by="vectors", count=2)) == ["s", "t"]
    mixed = ids(ask(text="cell cell grows", by="vectors", diversity=0.9))
    assert mixed[0] == "s" and mixed.index("t") > 2 and len(mixed) == len(library.index)


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
    found = answer(library.index, None, Query(text="cell"))
    assert found.by == "words" and "model is not loaded" in found.note
    of_texts, passage = SentenceQuery(texts=("x",)), Passage("x")
    for query in (Query(text="cell", by="vectors"), Query(sentences=of_texts), Query(cite=passage)):
        assert needs_query_encoder(query)
        refused("loaded", answer, library.index, None, query)
    assert not needs_query_encoder(Query(paper="a")) and not needs_query_encoder(Query(text="a", by="words"))


def test_what_to_cite_in_a_paragraph(ask):
    text = "We find a cell [CIT]. Models grow. Data learn (Chen, 2014)."
    one = ask(cite=Passage(text), count=3)
    assert len(one.hits) == 3 and not one.passage and all(hit.passage is None for hit in one.hits)
    each = ask(cite=Passage(text, each=True), count=3)
    assert [hit.passage for hit in each.hits] == [0, 0, 0, 2, 2, 2] and len(each.passage) == 3
    assert ids(each)[:3] == ids(ask(cite=Passage("We find a cell [CIT]."), count=3))
    said = each.as_json()
    first = said["hits"][0]
    assert first["evidence"] is None and first["paper_score"] and said["passage"][1] == "Models grow."
    for text, why in (("[CIT]", "nothing is left"), ("We find. " * 40, "40 sentences")):
        refused(why, ask, cite=Passage(text, each=True))


# --- by sentences ------------------------------------------------------------------------------------------


def test_scores_and_matches_are_those_of_transport(library, ask):
    index, rows = library.index, np.flatnonzero(library.index.with_sentences)
    vectors = SentenceVectors.of([index.id(row) for row in rows], [index.sentence_vectors(row) for row in rows])
    found = ask(sentences=SentenceQuery("e", (0, 2)))
    assert found.by == "sentences" and found.exact and len(found.hits) == len(vectors) - 1
    assert [hit.score for hit in found.hits] == sorted((hit.score for hit in found.hits), reverse=True)
    for hit in found.hits:
        wanted = explain_pair(vectors, "e", hit.id, FACET, query_sentences=[0, 2])
        assert hit.score == pytest.approx(1 - wanted.total, abs=1e-5)
        assert [match.query for match in hit.matches] == [0, 1]
        for match, plan, apart in zip(hit.matches, wanted.plan, wanted.distances, strict=True):
            assert match.mass == pytest.approx(plan.max() / wanted.plan.sum(), abs=1e-4)
            assert 1 - match.score == pytest.approx(apart[match.sentence], abs=1e-4)


def test_sentences_are_named_by_their_number_in_the_abstract(ask):
    """One sentence of one paper against itself in a paper with the very same abstract would be 1; here: its order."""
    one, other = (ask(sentences=SentenceQuery("e", numbers)) for numbers in ((2, 0), (0, 2)))
    assert {hit.id: round(hit.score, 5) for hit in one.hits} == {hit.id: round(hit.score, 5) for hit in other.hits}
    first = {hit.id: hit.matches for hit in one.hits}
    for hit in other.hits:
        assert [match.sentence for match in hit.matches] == [match.sentence for match in first[hit.id]][::-1]
    assert len(ask(sentences=SentenceQuery("e")).hits[0].matches) == 3


def test_the_first_step_keeps_the_best(library, monkeypatch):
    index, sums = library.index, {}
    queries = np.asarray(index.sentence_vectors(index.row("e")), np.float32)
    for row in np.flatnonzero(index.with_sentences).tolist():
        own = np.asarray(index.sentence_vectors(row), np.float32)
        near = own @ queries.T / np.linalg.norm(own, axis=1)[:, None] / np.linalg.norm(queries, axis=1)
        sums[row] = near.max(axis=0).sum()
    monkeypatch.setattr("citeweave.search.sentences.RERANKED", 3)
    few = answer(index, None, Query(sentences=SentenceQuery("e"), count=2))
    others = [row for row in sorted(sums, key=lambda row: -sums[row]) if index.id(row) != "e"]
    assert not few.exact and {hit.row for hit in few.hits} <= set(others[:3])


class Proxy:
    """An encoder that is not ours."""

    def __init__(self, encoder):
        self.name, self.revision, self.dimension = encoder.name, encoder.revision, encoder.dimension
        self._encoder = encoder

    def encode(self, texts, *, reporter=None):
        return self._encoder.encode(texts)


class SentenceProxy(Proxy):
    def encode_sentences(self, texts):
        return encode_sentences_alone(self._encoder, texts)


def test_pasted_sentences_by_our_and_by_other_encoders(library, ask):
    index, encoder = library.index, library.reader.encoder
    (text,) = [text for text in index.sentence_texts(index.row("g")) if "graphs" in text]
    found = ask(sentences=SentenceQuery(texts=(text, "We find models from data.")))
    assert len(found.hits) == int(index.with_sentences.sum()) and all(len(hit.matches) == 2 for hit in found.hits)
    read = encode_sentences(encoder, ["", ""], [[text], ["we find"]])
    np.testing.assert_array_equal(encode_sentences_alone(encoder, [text, "we find"]), read.matrix)
    query = Query(sentences=SentenceQuery(texts=("We find models from data.",)), count=EVERY)
    readers = (QueryEncoder(index, one) for one in (encoder, Proxy(encoder), SentenceProxy(encoder)))
    own, other, alone = ([hit.score for hit in answer(index, reader, query).hits] for reader in readers)
    assert len(own) == len(other) and own == alone


def test_bad_sentences_are_refused(ask):
    known = "sentence 7 of paper 'e' has no vector; it has those of the sentences 0, 1, 2, counted"
    for chosen, said in (("zz", "paper 'zz' is not in"), ("e", known), ("", "holds no word")):
        refused(said, ask, sentences=SentenceQuery(chosen, (7,)) if chosen else SentenceQuery(texts=("...",)))


# --- the nearest papers in every space -----------------------------------------------------------------------


def brute_force(space: np.ndarray, query: np.ndarray, itself: int = -1) -> list[tuple[int, float]]:
    ranked = sorted((-score, row) for row, score in enumerate(cosines(space, query)) if row != itself)
    return [(row, -score) for score, row in ranked]


@pytest.mark.parametrize("aspect", ["", "background", "method", "result", "all"])
def test_search_equals_a_comparison_with_every_paper(made, aspect):
    index, row, text = made.index, made.index.row("p:12"), "how the cell grows in data"
    space = index.take(np.arange(index.size), aspect)
    found, wanted = search_paper(index, "p:12", count=100, aspect=aspect), brute_force(space, space[row], row)
    assert [hit.row for hit in found] == [at for at, _ in wanted] and len(found) == len(index) - 1
    np.testing.assert_allclose([hit.score for hit in found], [score for _, score in wanted], atol=1e-6)
    encoded = made.reader.encoder.encode([text])
    wanted = brute_force(space, index.heads.project(encoded, aspect)[0] if aspect else encoded[0])[:4]
    found = search_text(index, made.reader, f"  {text}\n", count=4, aspect=aspect)
    assert [hit.row for hit in found] == [at for at, _ in wanted]


@pytest.mark.parametrize("block", [1, 3, 7, 19, 100])
def test_blocks_change_nothing(made, block):
    """Papers 7 and 8 have one text: of equal vectors the lower row comes first, also from different blocks."""
    index, row = made.index, made.index.row("p:3")
    query = index.take(np.array([row]), "all")[0]
    one = nearest_papers(index, query, 19, "all", itself=row)
    parts = nearest_papers(index, query, 19, "all", itself=row, block=block)
    assert parts.rows.tolist() == one.rows.tolist() and parts.scores.tolist() == one.scores.tolist()
    twins, ranked = [index.row("p:7"), index.row("p:8")], parts.rows[0].tolist()
    first, second = map(ranked.index, twins)
    assert abs(first - second) == 1
    # a BLAS may round equal rows of a matrix in two ways
    assert first < second or not np.array_equal(*index.take(np.array(twins), "all"))


def test_a_paper_is_not_its_own_neighbor_and_bad_searches_are_refused(made):
    assert [hit.id for hit in search_paper(made.index, "doi:10.1/seven", count=1)] == ["p:8"]
    found = search_paper(made.index, "p:7", count=18, aspect="all")
    assert "p:7" not in {hit.id for hit in found} and found[0].id == "p:8" and found[0].score == pytest.approx(1)
    for options, said in (
        ({"aspect": "methods"}, "--aspect is 'methods'; it must be one of .*Did you mean 'method'"),
        *(({"count": count}, "--count is") for count in (0, -1, 10**9)),
    ):
        refused(said, search_paper, made.index, "p:7", **options)
    texts = dict.fromkeys((" \n ", "!!!", "..."), "holds no word")
    for text, said in {**texts, "ab" * 100_000: "200,000 characters; give at most 100,000"}.items():
        refused(said, search_text, made.index, made.reader, text)


def test_another_runtime_is_no_other_model(made):
    """Only where it is asked for, and only of the same weights."""
    rounded, other = Proxy(made.reader.encoder), Proxy(made.reader.encoder)
    rounded.revision, other.revision = f"{rounded.revision}-int8", "77aa-int8"
    assert QueryEncoder(made.index, rounded, any_runtime=True).encode("cells").shape == (rounded.dimension,)
    for encoder, any_runtime in ((rounded, False), (other, True)):
        refused("their vectors cannot be compared", QueryEncoder, made.index, encoder, any_runtime=any_runtime)
