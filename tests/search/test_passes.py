"""An index with sentences: one pass of the network makes both kinds of vectors, and the segments say so."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.progress import Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.encoders.encoder import load_encoder
from citeweave.search import build, index_model
from citeweave.search.build import IndexOptions, build_index, describe_index, index_corpus
from citeweave.search.fill_vectors import fill_vectors
from citeweave.search.index import Index
from citeweave.search.precomputed import PrecomputedVectors
from citeweave.search.segment import PAPERS_ALONE, PRECOMPUTED, TOGETHER, Segment
from citeweave.search.update import ChangeOptions, update_index
from citeweave.vectors.vectors import new_vectors

from ..encoders.conftest import watched
from .conftest import papers
from .test_filling import sentences_of, vectors_of

TORCH = {"device": "cpu", "dtype": "float32"}
SMALL, ALL = 6, 12
NO_ABSTRACT = 2
"""Of the 12 papers, none of the first 6: read twice, for the title is read as their only sentence too."""


class Labels(Reporter):
    """Writes down the tasks and how much of them was done."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.done: dict[str, int] = {}

    def task(self, label: str, total: int | None = None, unit: str = "") -> Any:
        assert label not in self.done, "a second bar of the same name"
        self.done[label] = 0

        def advance(amount: int) -> None:
            self.done[label] += amount

        return nullcontext(advance)


def corpus_of(place: Path, count: int, **changed: Any) -> Corpus:
    place.mkdir()
    some = [{**paper, **changed} for paper in papers()[:count]]
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in some))
    import_papers([place / "papers.jsonl"], place / "corpus")
    return Corpus.open(place / "corpus")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, bert: Path) -> Path:
    """Corpora of six and of twelve papers; an index of each: papers alone, words only, papers and sentences together."""
    place = tmp_path_factory.mktemp("passes")
    few, all_of_them = corpus_of(place / "few", SMALL), corpus_of(place / "all", ALL)
    build_index(few, bert, place / "alone", IndexOptions(**TORCH))
    build_index(few, bert, place / "words", IndexOptions(**TORCH, vectors=False, sentences=True))
    build_index(all_of_them, bert, place / "together", IndexOptions(**TORCH, sentences=True))
    return place


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens of every text that a network reads from now on, whoever loads the encoder."""
    texts: list[list[int]] = []
    for module in (build, index_model):
        monkeypatch.setattr(
            module, "load_encoder", lambda *where, **how: watched(load_encoder(*where, **how), texts=texts)
        )
    return texts


def assert_near(found: Index, expected: Index) -> None:
    """The same papers and sentences with the same vectors."""
    for one, other in ((vectors_of(found), vectors_of(expected)), (sentences_of(found), sentences_of(expected))):
        assert one.keys() == other.keys() and one
        for name in one:
            np.testing.assert_allclose(one[name], other[name], atol=1e-5)


def passes_of(index: Index) -> list[list[str]]:
    return [segment.manifest.facts["passes"] for segment in index.segments]


def test_an_index_is_built_in_one_pass_with_one_bar(place, tmp_path, bert, read):
    corpus, labels = Corpus.open(place / "all" / "corpus"), Labels()
    index = build_index(corpus, bert, tmp_path / "index", IndexOptions(**TORCH, sentences=True), reporter=labels)
    assert len(read) == ALL + NO_ABSTRACT and labels.done == {"embedding": ALL}
    assert passes_of(index) == [[TOGETHER]] and describe_index(index)["passes"] == [TOGETHER]
    read.clear()
    alone = build_index(corpus, bert, tmp_path / "alone", IndexOptions(**TORCH))
    assert len(read) == ALL and passes_of(alone) == [[PAPERS_ALONE]]
    found, expected = vectors_of(index), vectors_of(alone)
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[name] for name in expected], list(expected.values()), atol=1e-5)


def test_vectors_are_those_of_two_passes(place, tmp_path, bert):
    """Papers alone, and their sentences later."""
    corpus = Corpus.open(place / "all" / "corpus")
    build_index(corpus, bert, tmp_path / "index", IndexOptions(**TORCH))
    fill_vectors(tmp_path / "index", sentences=True, device="cpu")
    apart = Index.open(tmp_path / "index")
    assert passes_of(apart) == [[PAPERS_ALONE]]
    assert_near(Index.open(place / "together"), apart)


def test_an_interrupted_build_resumes_with_both(place, tmp_path, bert, monkeypatch):
    corpus, options = Corpus.open(place / "all" / "corpus"), IndexOptions(**TORCH, sentences=True, shard=4)
    encoder = load_encoder(bert, device="cpu")
    dying, rest = watched(encoder, dies_after=ALL // 2 + NO_ABSTRACT), watched(encoder)
    monkeypatch.setattr(build, "load_encoder", lambda *_, **__: dying)
    with pytest.raises(KeyboardInterrupt):
        build_index(corpus, bert, tmp_path / "index", options)
    monkeypatch.setattr(build, "load_encoder", lambda *_, **__: rest)
    index = build_index(corpus, bert, tmp_path / "index", options)
    assert 4 <= len(rest.network.texts) < ALL
    assert passes_of(index) == [[TOGETHER]]
    assert_near(index, Index.open(place / "together"))


def test_filling_reads_each_paper_once_and_resumes(place, tmp_path, bert):
    folder = Path(shutil.copytree(place / "words", tmp_path / "index"))
    encoder = watched(load_encoder(bert, device="cpu"))
    assert fill_vectors(folder, shard=4, model=encoder, stop=iter([False, True]).__next__) == 4
    assert len(encoder.network.texts) == 4 and len(sentences_of(Index.open(folder))) == 4
    labels = Labels()
    assert fill_vectors(folder, shard=4, model=encoder, reporter=labels) == SMALL - 4
    assert len(encoder.network.texts) == SMALL and labels.done == {"embedding": SMALL - 4}
    index, expected = Index.open(folder), Index.open(place / "together")
    assert passes_of(index) == [[TOGETHER]]
    found = sentences_of(index)
    assert len(found) == SMALL
    for name, vectors in found.items():
        np.testing.assert_allclose(vectors, sentences_of(expected)[name], atol=1e-5)


def test_an_index_of_papers_alone_is_updated_with_sentences(place, tmp_path, read):
    """New papers are read once for both, old ones once for their sentences; their own vectors stay as they are."""
    folder = Path(shutil.copytree(place / "alone", tmp_path / "index"))
    before = vectors_of(Index.open(folder))
    made = index_corpus(Corpus.open(place / "all" / "corpus"), "", folder, IndexOptions(**TORCH, sentences=True))
    assert len(read) == ALL + NO_ABSTRACT
    assert {name: vectors_of(made.index)[name] for name in before} == before
    assert passes_of(made.index) == [sorted([PAPERS_ALONE, TOGETHER])]
    assert_near(made.index, Index.open(place / "together"))


def test_vectors_of_one_pass_are_carried_over_by_text(place, tmp_path, read):
    """Something but the text changed: no paper is read again, whichever pass made its vectors."""
    folder = Path(shutil.copytree(place / "together", tmp_path / "index"))
    before = Index.open(folder)
    changed = update_index(folder, corpus_of(tmp_path / "later", ALL, year=1999), options=ChangeOptions(device="cpu"))
    after = Index.open(folder)
    assert changed.updated == ALL and not read
    assert vectors_of(after) == vectors_of(before) and sentences_of(after) == sentences_of(before)
    assert passes_of(after) == [[TOGETHER]]


def test_a_pooling_of_all_layers_takes_two_passes(place, tmp_path, bert):
    folder = Path(shutil.copytree(place / "words", tmp_path / "index"))
    encoder = watched(load_encoder(bert, device="cpu", pooling="layers"))
    fill_vectors(folder, model=encoder)
    index = Index.open(folder)
    assert len(encoder.network.texts) == 2 * SMALL and passes_of(index) == [[PAPERS_ALONE]]
    assert len(sentences_of(index)) == SMALL


def test_segments_say_what_was_precomputed_and_old_ones_are_papers_alone(place, tmp_path, bert):
    together = Index.open(place / "together")
    facts = {name: getattr(together.provenance, name) for name in ("model", "revision", "text_recipe", "source")}
    with new_vectors(tmp_path / "vectors", dtype="float32", **facts) as writer:
        writer.append(list(vectors_of(together)), np.array(list(vectors_of(together).values())))
        given = PrecomputedVectors(writer.finish())
    corpus = Corpus.open(place / "all" / "corpus")
    index = build_index(corpus, bert, tmp_path / "index", IndexOptions(**TORCH), precomputed=given)
    assert passes_of(index) == [[PRECOMPUTED]]
    (segment,) = index.segments
    old = {name: value for name, value in segment.manifest.facts.items() if name != "passes"}
    assert Segment(segment.folder, replace(segment.manifest, facts=old)).passes == [PAPERS_ALONE]
    words = Index.open(place / "words").segments[0]
    assert words.passes == []
