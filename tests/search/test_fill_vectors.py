"""Vectors of papers and of sentences: in one pass of the network, precomputed, or later, they are those of one build."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave import Corpus, Index, IndexOptions
from citeweave.core.progress import Reporter
from citeweave.encoders.embed import embed_papers, embed_sentences
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.search import build, index_vectors
from citeweave.search.describe import describe_index
from citeweave.search.index_vectors import PAPERS_ALONE, PRECOMPUTED, TOGETHER, PrecomputedVectors
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.vectors import Vectors, new_vectors

from ..conftest import refused
from ..encoders.conftest import watched
from .conftest import corpus_of, papers, sentences_of, vectors_of

pytestmark = pytest.mark.usefixtures("one_text_per_batch")

ALONE = IndexOptions(device="cpu", dtype="float32")
BOTH = replace(ALONE, sentences=True)
SMALL, ALL = 6, 12
NO_ABSTRACT = 2
"""Of the 12 papers, none of the first 6: read twice, for the title is read as their only sentence too."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: Any, bert: Path, encoder: TorchEncoder, one_text_per_batch: None) -> Path:
    """Corpora of six and of twelve papers, vectors of the twelve and of their sentences, and indexes: of the six without
    sentences and of words only, of the twelve with both."""
    place = tmp_path_factory.mktemp("filling")
    few, all_of_them = (corpus_of(place / name, papers()[:count]) for name, count in (("few", SMALL), ("all", ALL)))
    embed_papers(all_of_them, encoder, place / "vectors")
    embed_sentences(all_of_them, encoder, place / "sentences")
    build.build_index(few, bert, place / "alone", ALONE)
    build.build_index(few, bert, place / "words", replace(BOTH, vectors=False))
    build.build_index(all_of_them, bert, place / "both", BOTH)
    return place


@pytest.fixture
def corpus(place: Path) -> Corpus:
    """All twelve papers."""
    return Corpus.open(place / "all" / "corpus")


@pytest.fixture
def both(place: Path) -> Index:
    """All twelve papers with their sentences, built at once."""
    return Index.open(place / "both")


@pytest.fixture
def copied(place: Path, tmp_path: Path) -> Any:
    return lambda name: Path(shutil.copytree(place / name, tmp_path / "index"))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens of every text that a network reads from now on, whoever loads the encoder."""
    texts: list[list[int]] = []
    for module in (build, index_vectors):
        monkeypatch.setattr(module, "load_encoder", lambda *at, **how: watched(load_encoder(*at, **how), texts=texts))
    return texts


class Labels(Reporter):
    """Writes down the tasks and how much of them was done."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.done: dict[str, int] = {}

    def task(self, label: str, total: int | None = None, unit: str = "") -> Any:
        assert label not in self.done, "a second bar of the same name"
        self.done[label] = 0
        return nullcontext(lambda amount: self.done.update({label: self.done[label] + amount}))


def written(folder: Path, known: Vectors, ids: list[str], matrix: np.ndarray) -> Vectors:
    """Vectors of the same model."""
    facts = {name: getattr(known.provenance, name) for name in ("model", "revision", "text_recipe", "source")}
    with new_vectors(folder, dtype="float32", **facts) as writer:
        writer.append(ids, matrix)
        return writer.finish()


def assert_near(found: Index, expected: Index) -> None:
    """The same papers and sentences with the same vectors."""
    for one, other in ((vectors_of(found), vectors_of(expected)), (sentences_of(found), sentences_of(expected))):
        assert one.keys() == other.keys() and one
        for name in one:
            np.testing.assert_allclose(one[name], other[name], atol=1e-5)


def passes_of(index: Index) -> list[str]:
    return index.facts["passes"]


def test_an_index_is_built_in_one_pass_with_one_bar_and_equals_one_of_two_passes(corpus, tmp_path, bert, read):
    labels = Labels()
    index = build.build_index(corpus, bert, tmp_path / "index", BOTH, reporter=labels)
    assert len(read) == ALL + NO_ABSTRACT and labels.done == {"embedding": ALL}
    assert passes_of(index) == [TOGETHER] and describe_index(index)["passes"] == [TOGETHER]
    read.clear()
    alone = build.build_index(corpus, bert, tmp_path / "alone", ALONE)
    assert len(read) == ALL and passes_of(alone) == [PAPERS_ALONE]
    build.fill_vectors(tmp_path / "alone", sentences=True, device="cpu")
    apart = Index.open(tmp_path / "alone")
    assert passes_of(apart) == [PAPERS_ALONE] and vectors_of(apart) == vectors_of(alone)
    assert_near(index, apart)


def test_filling_reads_each_paper_once_and_resumes(copied, both, encoder):
    folder, encoder, labels = copied("words"), watched(encoder), Labels()
    assert build.fill_vectors(folder, shard=4, model=encoder, stop=lambda: len(encoder.network.texts) >= 4) == 0
    assert not sentences_of(Index.open(folder))
    assert build.fill_vectors(folder, shard=4, model=encoder, reporter=labels) == SMALL
    assert len(encoder.network.texts) == SMALL and labels.done == {"embedding": SMALL}
    index = Index.open(folder)
    found, expected = sentences_of(index), sentences_of(both)
    assert passes_of(index) == [TOGETHER] and len(found) == SMALL
    for name, vectors in found.items():
        np.testing.assert_allclose(vectors, expected[name], atol=1e-5)


def test_filling_that_is_interrupted_in_the_middle_of_a_shard_resumes_there(place, copied, tmp_path, encoder):
    """As `citeweave explore` is: the words are there, and the vectors are made."""
    folder, other, texts = copied("words"), shutil.copytree(place / "words", tmp_path / "other"), []
    with pytest.raises(KeyboardInterrupt):
        build.fill_vectors(folder, model=watched(encoder, 4, texts))
    assert Index.open(folder).provenance is None
    assert build.fill_vectors(folder, model=watched(encoder, texts=texts)) == 6
    resumed = len(texts)
    texts.clear()
    build.fill_vectors(other, model=watched(encoder, texts=texts))
    assert resumed == len(texts) >= 6, "batches were read twice"
    assert vectors_of(Index.open(folder)) == vectors_of(Index.open(other))


def test_an_index_of_papers_alone_is_updated_with_sentences(corpus, both, copied, bert, read):
    """New papers are read once for both, old ones once for their sentences; their own vectors stay as they are."""
    folder = copied("alone")
    before = vectors_of(Index.open(folder))
    index = build.index_corpus(corpus, "", folder, BOTH).index  # by its own model
    assert len(read) == ALL + NO_ABSTRACT
    assert {name: vectors_of(index)[name] for name in before} == before
    assert passes_of(index) == sorted([PAPERS_ALONE, TOGETHER])
    assert_near(index, both)
    assert sentences_of(index) == sentences_of(both)
    kept = build.index_corpus(corpus, bert, folder, ALONE).index  # an update keeps the sentences
    assert sentences_of(kept) == sentences_of(both)


def test_vectors_of_one_pass_are_carried_over_by_text(copied, both, tmp_path, read):
    """Something but the text changed: no paper is read again, whichever pass made its vectors."""
    folder, later = copied("both"), corpus_of(tmp_path / "later", [paper | {"year": 1999} for paper in papers()[:ALL]])
    changed = build.update_index(folder, later, options=build.ChangeOptions(device="cpu"))
    after = Index.open(folder)
    assert changed.updated == ALL and not read and passes_of(after) == [TOGETHER]
    assert vectors_of(after) == vectors_of(both) and sentences_of(after) == sentences_of(both)


def test_a_pooling_of_all_layers_takes_two_passes(copied, bert):
    folder, encoder = copied("words"), watched(load_encoder(bert, device="cpu", pooling="layers"))
    build.fill_vectors(folder, model=encoder)
    index = Index.open(folder)
    assert len(encoder.network.texts) == 2 * SMALL and passes_of(index) == [PAPERS_ALONE]
    assert len(sentences_of(index)) == SMALL


def test_an_index_says_what_was_precomputed(place, corpus, tmp_path, bert):
    given = PrecomputedVectors(Vectors.open(place / "vectors"))
    index = build.build_index(corpus, bert, tmp_path / "index", ALONE, precomputed=given)
    assert passes_of(index) == [PRECOMPUTED]
    assert passes_of(Index.open(place / "words")) == []


def test_papers_are_added_with_precomputed_vectors(place, corpus, copied, tmp_path, encoder):
    folder, known = copied("alone"), Vectors.open(place / "vectors")
    before = vectors_of(Index.open(folder))
    turned = written(tmp_path / "turned", known, list(known.ids), -np.asarray(known.matrix))  # nobody else has these
    how = build.ChangeOptions(encoder=encoder, precomputed=PrecomputedVectors(turned))
    assert build.add_papers(folder, corpus, options=how).added == 6
    found = vectors_of(Index.open(folder))
    assert {name: found[name] for name in before} == before, "papers that were there were written again"
    new = [name for name in found if name not in before]
    assert len(new) == 6 and all(found[name] == turned.take([name])[0].tolist() for name in new)


def test_precomputed_vectors_are_those_of_the_index(place, corpus, both, copied, tmp_path, bert):
    """By `index` on an index of words, whose papers did not change, with sentences; some are missing and made here."""
    known = Vectors.open(place / "vectors")
    some = written(tmp_path / "some", known, list(known.ids)[::2], np.asarray(known.matrix)[::2])
    given = PrecomputedVectors(some, SentenceVectors.open(place / "sentences"))
    result = build.index_corpus(corpus, bert, copied("words"), BOTH, precomputed=given)
    assert result.changed is not None and result.changed.added == 6
    assert vectors_of(result.index) == vectors_of(both) and sentences_of(result.index) == sentences_of(both)


def test_vectors_of_another_kind_are_refused(place, corpus, tmp_path, encoder, save_bert):
    alone, words, known = place / "alone", place / "words", Vectors.open(place / "vectors")
    other = load_encoder(save_bert(tmp_path / "other", seed=9), device="cpu")
    wrong = PrecomputedVectors(embed_papers(Corpus.open(place / "few" / "corpus"), other, tmp_path / "v"))
    unwanted = PrecomputedVectors(known, SentenceVectors.open(place / "sentences"))
    for folder, given, said in (
        (words, PrecomputedVectors(known), "are added to .* with words only; give them when the vectors are made"),
        (alone, wrong, "cannot be compared"),
        (alone, unwanted, "the index keeps none; add --sentences"),
    ):
        refused(said, build.add_papers, folder, corpus, options=build.ChangeOptions(encoder=encoder, precomputed=given))
    refused("cannot be compared", build.fill_vectors, words, model=encoder, precomputed=wrong)
    assert len(Index.open(alone)) == len(Index.open(words)) == 6


@pytest.mark.parametrize("given", [False, True])
def test_sentences_come_later(place, corpus, both, copied, encoder, given):
    """To papers that have vectors, which stay as they are; stopped after a shard it resumes."""
    folder, how = copied("alone"), build.ChangeOptions(encoder=encoder)
    build.add_papers(folder, corpus, options=how)
    before = vectors_of(Index.open(folder))
    assert not sentences_of(Index.open(folder))
    ready = PrecomputedVectors(Vectors.open(place / "vectors"), SentenceVectors.open(place / "sentences"))
    if not given:
        assert build.fill_vectors(folder, shard=5, model=encoder, sentences=True, stop=lambda: True) == 0
        assert not sentences_of(Index.open(folder))
    assert (
        build.fill_vectors(folder, shard=5, model=encoder, sentences=True, precomputed=ready if given else None) == 12
    )
    index = Index.open(folder)
    assert vectors_of(index) == before and sentences_of(index) == sentences_of(both)
    assert build.fill_vectors(folder, model=encoder) == 0
