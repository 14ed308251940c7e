"""Vectors that come later: made elsewhere, or of sentences that an index did not have; against an index built at once."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.encoders.embed import embed_papers, embed_sentences
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.network import Network
from citeweave.search.build import IndexOptions, build_index, index_corpus
from citeweave.search.fill_vectors import fill_vectors, pending_sentence_rows
from citeweave.search.index import Index
from citeweave.search.precomputed import PrecomputedVectors
from citeweave.search.update import ChangeOptions, add_papers
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.vectors import Vectors, new_vectors

from .conftest import papers

pytestmark = pytest.mark.usefixtures("one_text_per_batch")

FLOAT32 = {"device": "cpu", "dtype": "float32"}


def corpus_of(place: Path, count: int, first: int = 0) -> Corpus:
    place.mkdir()
    some = papers()[first : first + count]
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in some))
    import_papers([place / "papers.jsonl"], place / "corpus")
    return Corpus.open(place / "corpus")


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, bert: Path, encoder: TorchEncoder, one_text_per_batch: None
) -> Path:
    """Corpora of six and of twelve papers, vectors of the twelve and of their sentences, an index of the six."""
    place = tmp_path_factory.mktemp("filling")
    few, all_of_them = corpus_of(place / "few", 6), corpus_of(place / "all", 12)
    embed_papers(all_of_them, encoder, place / "vectors")
    embed_sentences(all_of_them, encoder, place / "sentences")
    build_index(few, bert, place / "index", IndexOptions(**FLOAT32))
    build_index(few, bert, place / "words", IndexOptions(**FLOAT32, vectors=False, sentences=True))
    build_index(all_of_them, bert, place / "whole", IndexOptions(**FLOAT32, sentences=True))
    return place


def backwards(place: Path, made: Path) -> Vectors:
    """The vectors turned round: nobody but who was given them has these."""
    known = Vectors.open(place / "vectors")
    facts = {name: getattr(known.provenance, name) for name in ("model", "revision", "text_recipe", "source")}
    with new_vectors(made, dtype="float32", **facts) as writer:
        writer.append(list(known.ids), -np.asarray(known.matrix))
        return writer.finish()


def vectors_of(index: Index) -> dict[str, list[float]]:
    rows = np.flatnonzero(index.with_vector)
    return {index.id(row): vector.tolist() for row, vector in zip(rows.tolist(), index.take(rows), strict=True)}


def sentences_of(index: Index) -> dict[str, list[list[float]]]:
    rows = np.flatnonzero(index.with_sentences).tolist()
    return {index.id(row): np.asarray(index.sentence_vectors(row)).tolist() for row in rows}


def test_papers_are_added_with_vectors_made_elsewhere(place, tmp_path, encoder):
    folder = Path(shutil.copytree(place / "index", tmp_path / "index"))
    before, turned = vectors_of(Index.open(folder)), backwards(place, tmp_path / "turned")
    how = ChangeOptions(encoder=encoder, precomputed=PrecomputedVectors(turned))
    assert add_papers(folder, Corpus.open(place / "all" / "corpus"), options=how).added == 6
    found = vectors_of(Index.open(folder))
    assert {name: found[name] for name in before} == before, "papers that were there were written again"
    new = [name for name in found if name not in before]
    assert len(new) == 6 and all(found[name] == turned.take([name])[0].tolist() for name in new)


def test_vectors_made_elsewhere_are_those_of_the_index(place, tmp_path, encoder, bert):
    """By `index` on an index of words, whose papers did not change, with sentences; some are missing and made here."""
    some = Vectors.open(place / "vectors")
    facts = {name: getattr(some.provenance, name) for name in ("model", "revision", "text_recipe", "source")}
    with new_vectors(tmp_path / "some", dtype="float32", **facts) as writer:
        writer.append(list(some.ids)[::2], np.asarray(some.matrix)[::2])
        given = PrecomputedVectors(writer.finish(), SentenceVectors.open(place / "sentences"))
    folder = Path(shutil.copytree(place / "words", tmp_path / "index"))
    options = IndexOptions(**FLOAT32, sentences=True)
    corpus = Corpus.open(place / "all" / "corpus")
    told = index_corpus(corpus, bert, folder, options, precomputed=given)
    whole = Index.open(place / "whole")
    assert told.changed is not None and told.changed.added == 6
    assert vectors_of(told.index) == vectors_of(whole) and sentences_of(told.index) == sentences_of(whole)


def test_filling_that_is_interrupted_in_the_middle_of_a_shard_resumes_there(place, tmp_path, encoder, monkeypatch):
    """As `citeweave explore` is: the words are there, and the vectors are made."""
    folder = Path(shutil.copytree(place / "words", tmp_path / "index"))
    batches, most, read = [], [4], Network.token_states

    def counted(network, batch):
        if len(batches) == most[0]:
            raise KeyboardInterrupt
        batches.append(len(batch))
        return read(network, batch)

    monkeypatch.setattr(Network, "token_states", counted)
    with pytest.raises(KeyboardInterrupt):
        fill_vectors(folder, model=encoder)
    assert Index.open(folder).provenance is None
    most[0] = math.inf
    assert fill_vectors(folder, model=encoder) == 6
    resumed = len(batches)
    batches.clear()
    fill_vectors(shutil.copytree(place / "words", tmp_path / "other"), model=encoder)
    assert resumed == len(batches) >= 6, "batches were read twice"
    assert vectors_of(Index.open(folder)) == vectors_of(Index.open(tmp_path / "other"))


def test_vectors_of_another_kind_are_refused(place, tmp_path, encoder, save_bert):
    folder, corpus = place / "words", Corpus.open(place / "all" / "corpus")
    given = PrecomputedVectors(Vectors.open(place / "vectors"))
    with pytest.raises(UserError, match="are added to .* with words only; give them when the vectors are made"):
        add_papers(folder, corpus, options=ChangeOptions(encoder=encoder, precomputed=given))
    other = load_encoder(save_bert(tmp_path / "other", seed=9), device="cpu")
    wrong = PrecomputedVectors(embed_papers(Corpus.open(place / "few" / "corpus"), other, tmp_path / "v"))
    for change in (
        lambda: add_papers(place / "index", corpus, options=ChangeOptions(encoder=encoder, precomputed=wrong)),
        lambda: fill_vectors(folder, model=encoder, precomputed=wrong),
    ):
        with pytest.raises(UserError, match="cannot be compared"):
            change()
    with pytest.raises(UserError, match="the index keeps none; add --sentences"):
        both = PrecomputedVectors(given.vectors, SentenceVectors.open(place / "sentences"))
        add_papers(place / "index", corpus, options=ChangeOptions(encoder=encoder, precomputed=both))
    assert len(Index.open(place / "index")) == len(Index.open(folder)) == 6


@pytest.mark.parametrize("given", [False, True])
def test_sentences_come_later(place, tmp_path, encoder, given):
    """To papers that have vectors, which stay as they are; stopped after a shard it goes on."""
    folder = Path(shutil.copytree(place / "index", tmp_path / "index"))
    elsewhere = (
        PrecomputedVectors(Vectors.open(place / "vectors"), SentenceVectors.open(place / "sentences"))
        if given
        else None
    )
    add_papers(folder, Corpus.open(place / "all" / "corpus"), options=ChangeOptions(encoder=encoder))
    before = vectors_of(Index.open(folder))
    assert not sentences_of(Index.open(folder))
    if not given:
        stop = iter([False, False, True]).__next__  # there is no paper without a vector
        assert fill_vectors(folder, shard=5, model=encoder, sentences=True, stop=stop) == 5
        assert len(sentences_of(Index.open(folder))) == 5 and len(pending_sentence_rows(Index.open(folder))) == 7
    # asked for once, it stays so
    done = fill_vectors(folder, shard=5, model=encoder, sentences=given, precomputed=elsewhere)
    index = Index.open(folder)
    assert done == (12 if given else 7) and len(index.segments) == 1
    assert vectors_of(index) == before
    assert sentences_of(index) == sentences_of(Index.open(place / "whole"))
    assert fill_vectors(folder, model=encoder) == 0


def test_index_asks_for_sentences_later(place, tmp_path, bert):
    folder = Path(shutil.copytree(place / "index", tmp_path / "index"))
    corpus = Corpus.open(place / "all" / "corpus")
    told = index_corpus(corpus, "", folder, IndexOptions(**FLOAT32, sentences=True))  # by its own model
    assert sentences_of(told.index) == sentences_of(Index.open(place / "whole"))
    with pytest.raises(UserError, match="sentences True"):
        index_corpus(corpus, bert, folder, IndexOptions(**FLOAT32))
