"""Search by sentences: chosen and pasted ones, the transport score, and which sentence answers which."""

from __future__ import annotations

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.encoders.sentence_encoder import encode_sentences
from citeweave.search.answer import answer
from citeweave.search.index_model import QueryEncoder
from citeweave.search.query import Query, SentenceQuery
from citeweave.search.sentences import FACET, encode_sentences_alone
from citeweave.vectors.explain import explain_pair
from citeweave.vectors.sentence_vectors import SentenceVectors


def ask(library, chosen, **options):
    return answer(library.index, library.reader, Query(sentences=chosen, count=100, **options))


def all_vectors(index):
    rows = np.flatnonzero(index.with_sentences)
    return SentenceVectors.of([index.id(row) for row in rows], [index.sentence_vectors(row) for row in rows])


def test_scores_and_matches_are_those_of_transport(library):
    index = library.index
    found, vectors = ask(library, SentenceQuery("e", (0, 2))), all_vectors(index)
    assert found.by == "sentences" and found.exact and len(found.hits) == len(vectors) - 1
    assert [hit.score for hit in found.hits] == sorted((hit.score for hit in found.hits), reverse=True)
    for hit in found.hits:
        wanted = explain_pair(vectors, "e", hit.id, FACET, query_sentences=[0, 2])
        assert hit.score == pytest.approx(1 - wanted.total, abs=1e-5)
        assert [match.query for match in hit.matches] == [0, 1]
        for match, plan, apart in zip(hit.matches, wanted.plan, wanted.distances, strict=True):
            assert match.mass == pytest.approx(plan.max() / wanted.plan.sum(), abs=1e-4)
            assert 1 - match.score == pytest.approx(apart[match.sentence], abs=1e-4)


def test_the_same_sentence_is_found(library):
    index = library.index
    (text,) = [text for text in index.sentence_texts(index.row("g")) if "graphs" in text]
    found = ask(library, SentenceQuery(texts=(text, "We find models from data.")))
    assert len(found.hits) == int(index.with_sentences.sum())
    assert all(len(hit.matches) == 2 for hit in found.hits)
    alone = encode_sentences_alone(library.reader.encoder, [text, "we find"])
    read = encode_sentences(library.reader.encoder, ["", ""], [[text], ["we find"]])
    np.testing.assert_array_equal(alone, read.matrix)


def test_numbers_are_the_abstracts_own(library):
    """One sentence of one paper against itself in a paper with the very same abstract would be 1; here: its order."""
    one, other = (ask(library, SentenceQuery("e", numbers)) for numbers in ((2, 0), (0, 2)))
    assert {hit.id: round(hit.score, 5) for hit in one.hits} == {hit.id: round(hit.score, 5) for hit in other.hits}
    first = {hit.id: hit.matches for hit in one.hits}
    for hit in other.hits:
        assert [match.sentence for match in hit.matches] == [match.sentence for match in first[hit.id]][::-1]
    whole = ask(library, SentenceQuery("e"))
    assert len(whole.hits[0].matches) == 3


def test_the_first_step_keeps_the_best(library, monkeypatch):
    index, queries = library.index, np.asarray(library.index.sentence_vectors(library.index.row("e")), np.float32)
    sums = {}
    for row in np.flatnonzero(index.with_sentences).tolist():
        own = np.asarray(index.sentence_vectors(row), np.float32)
        cosines = own @ queries.T / np.linalg.norm(own, axis=1)[:, None] / np.linalg.norm(queries, axis=1)
        sums[row] = cosines.max(axis=0).sum()
    monkeypatch.setattr("citeweave.search.sentences.RERANKED", 3)
    few = answer(index, None, Query(sentences=SentenceQuery("e"), count=2))
    assert not few.exact
    others = [row for row in sorted(sums, key=lambda row: -sums[row]) if index.id(row) != "e"]
    assert {hit.row for hit in few.hits} <= set(others[:3])


class Proxy:
    """An encoder that is not ours."""

    def __init__(self, encoder):
        self.name, self.revision, self.dimension, self._encoder = (
            encoder.name,
            encoder.revision,
            encoder.dimension,
            encoder,
        )

    def encode(self, texts, *, reporter=None):
        return self._encoder.encode(texts)


class SentenceProxy(Proxy):
    def encode_sentences(self, texts):
        return encode_sentences_alone(self._encoder, texts)


def test_other_encoders(library):
    chosen = SentenceQuery(texts=("We find models from data.",))
    wanted = ask(library, chosen)
    for kind in (Proxy, SentenceProxy):
        reader = QueryEncoder(library.index, kind(library.reader.encoder))
        found = answer(library.index, reader, Query(sentences=chosen, count=100))
        assert len(found.hits) == len(wanted.hits)
    assert [hit.score for hit in found.hits] == [hit.score for hit in wanted.hits]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (SentenceQuery("zz", (0,)), "paper 'zz' is not in"),
        (
            SentenceQuery("e", (7,)),
            "sentence 7 of paper 'e' has no vector; it has those of the sentences 0, 1, 2, counted",
        ),
        (SentenceQuery(texts=("...",)), "holds no word"),
    ],
)
def test_mistakes(library, chosen, said):
    with pytest.raises(UserError, match=said):
        ask(library, chosen)
