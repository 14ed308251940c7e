"""After any series of changes an index answers as one built anew."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.core.hash_keys import hash_text
from citeweave.corpus.paper import Intent
from citeweave.encoders.embed import embed_papers, embed_sentences
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.search.answer import answer
from citeweave.search.build import IndexOptions, build_index, describe_index, index_corpus
from citeweave.search.cite import Draft, recommend
from citeweave.search.fill_vectors import fill_vectors, pending_rows
from citeweave.search.filters import count_facets
from citeweave.search.index import Index
from citeweave.search.index_model import QueryEncoder
from citeweave.search.nearest import nearest_papers
from citeweave.search.neighborhood import find_missing_papers, find_neighborhood
from citeweave.search.precomputed import PrecomputedVectors
from citeweave.search.query import Passage, Query, SentenceQuery
from citeweave.search.state import read_state
from citeweave.search.suggest import suggest
from citeweave.search.update import ChangeOptions, add_papers, compact_index, delete_papers, update_index
from citeweave.search.words import search_words

from .conftest import Version, write_corpus

pytestmark = pytest.mark.usefixtures("one_text_per_batch")

SENTENCES = IndexOptions(device="cpu", sentences=True)


def answers(index: Index) -> dict[str, Any]:
    """All that can be asked of an index, by ids."""
    rows = np.flatnonzero(index.with_vector)
    told: dict[str, Any] = {}
    if len(rows):
        near = nearest_papers(index, index.take(rows), 7, itself=rows)
        for row, found, scores in zip(rows.tolist(), near.rows, near.scores, strict=True):
            told[f"near {index.id(row)}"] = [
                (index.id(int(at)), float(s)) for at, s in zip(found, scores, strict=True) if at >= 0
            ]
    for row in np.flatnonzero(index.alive).tolist():
        shown = index.paper(row)
        own = index.sentence_vectors(row)
        told[shown.id] = (
            (shown.title, shown.abstract, shown.year, shown.ids),
            index.references(row).tolist(),
            sorted(index.id(int(at)) for at in index.citing(index.key_of(row))),
            [index.row(name) == row for name in (shown.id, *shown.ids)],
            None if own is None else (own.tolist(), index.sentence_numbers(row).tolist()),
        )
    for query in ("cell grows", "models of graphs", "citations"):
        hits = search_words(index, query, 5)
        pairs = zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)
        told[query] = [(index.id(row), pytest.approx(score, rel=1e-6)) for row, score in pairs]
    told["cited from outside"] = [
        sorted(index.id(int(row)) for row in index.citing(hash_text(f"p:{number}"))) for number in range(16, 24)
    ]
    return told


def asked(index: Index, encoder: TorchEncoder) -> dict[str, Any]:
    """Answers to every kind of query, to the last bit; also what stands beside them."""
    reader, named = QueryEncoder(index, encoder), sorted(ids_of(index))
    known = sorted(index.id(row) for row in np.flatnonzero(index.with_sentences).tolist())
    queries = [
        Query(text="cell grows in data"),
        Query(text="models", by="vectors", diversity=0.5),
        Query(text="the cell", diversity=0.3, count=4, offset=2),
        Query(liked=tuple(known[:2]), disliked=(known[2],)),
        Query(sentences=SentenceQuery(known[1])),
        Query(sentences=SentenceQuery(texts=("We find models from data.", "the cell grows")), count=5, offset=1),
        Query(cite=Passage("we find how models learn [CIT]"), count=4),
    ]
    told: dict[str, Any] = {
        "counts": {name: describe_index(index)[name] for name in ("papers", "with_abstract", "references")}
    }
    for number, query in enumerate(queries):
        hits = answer(index, reader, query).hits
        told[f"query {number}"] = [(hit.id, hit.score, [match.as_json() for match in hit.matches]) for hit in hits]
    for prefix in ("c", "ce", "models g", "the "):
        told[prefix] = [(one.text, one.papers, one.row is None or index.id(one.row)) for one in suggest(index, prefix)]
    told["lacking"] = find_missing_papers(index).as_json()
    for name in named[:4]:
        found = find_neighborhood(index, index.row(name), max_papers=3)
        told[f"around {name}"] = ([paper.id for paper in found.nodes], found.edges, found.left_out, found.outside)
    told["facets"] = count_facets(index, index.alive)
    return told


@dataclass
class Model:
    """What an index should hold."""

    papers: dict[str, dict[str, Any]] = field(default_factory=dict)
    cites: dict[str, list[str]] = field(default_factory=dict)

    def take(self, version: Version, names: list[str]) -> None:
        for name in names:
            self.papers[name], self.cites[name] = version.papers[name], version.cites[name]


@pytest.mark.parametrize("seed", range(3))
def test_any_series_of_changes_equals_a_new_index(versions, bert, encoder, tmp_path, seed):
    rng, folder, model = np.random.default_rng(seed), tmp_path / "index", Model()
    how = ChangeOptions(encoder=encoder)
    build_index(versions[0].corpus, bert, folder, IndexOptions(**{**_fields(SENTENCES), "vectors": seed % 2 == 0}))
    model.take(versions[0], list(versions[0].papers))
    for _ in range(8):
        version = versions[int(rng.integers(len(versions)))]
        what = rng.choice(["add", "add words", "update", "delete", "compact", "fill"])
        if what.startswith("add"):
            rows = rng.choice(len(version.corpus), 4, replace=False)
            add_papers(folder, version.corpus, rows, vectors=what == "add", options=how)
            model.take(version, version.corpus.ids.take(rows))
        elif what == "update":
            update_index(folder, version.corpus, options=how)
            model = Model()
            model.take(version, list(version.papers))
        elif what == "delete":
            names = [f"p:{number}" for number in rng.choice(20, 4, replace=False)]
            assert delete_papers(folder, names) == sum(name in model.papers for name in names)
            for name in names:
                model.papers.pop(name, None)
        elif what == "compact":
            assert len(compact_index(folder).segments) <= 1
        else:
            fill_vectors(folder, shard=3, model=encoder)
        assert set(model.papers) == set(ids_of(Index.open(folder)))
    # ended before its last step, which would make one segment of all
    fill_vectors(folder, shard=3, model=encoder, stop=lambda: not len(pending_rows(Index.open(folder))))
    index = Index.open(folder)
    anew = build_index(write_corpus(tmp_path / "anew", model.papers, model.cites), bert, tmp_path / "n", SENTENCES)
    assert len(index) == len(anew) == len(model.papers) and index.with_vector.sum() == anew.with_vector.sum()
    assert answers(index) == answers(anew)
    assert asked(index, encoder) == asked(anew, encoder)
    assert len(list((folder / "segments").iterdir())) == len(index.segments)


def test_a_deleted_paper_is_nowhere(made, tmp_path):
    """Also before its segment is written again."""
    folder = Path(shutil.copytree(made.index.folder, tmp_path / "index"))
    before = Index.open(folder)
    assert [before.id(int(row)) for row in before.citing(hash_text("doi:10.1/seven"))] == ["p:0", "p:2"]
    assert delete_papers(folder, ["p:0", "p:0", "nobody"]) == 1
    index = Index.open(folder)
    assert index.size == before.size and len(index) == len(before) - 1 and index.rows(["p:0"]).tolist() == [-1]
    assert [index.id(int(row)) for row in index.citing(index.key_of(index.row("p:7")))] == ["p:2"]
    near = nearest_papers(index, before.take(np.array([before.row("p:0")])), 19)
    assert near.rows.shape == (1, 18) and before.row("p:0") not in near.rows
    # the sentence in which it cites p:7 stays, without its name
    found = recommend(index, made.reader, Draft("we find how models learn from data (?)"), count=19)
    assert {one.evidence.citing for one in found if one.evidence} == {"", "p:1", "p:2", "p:4"}
    with pytest.raises(UserError, match="paper 'p:0' is not in"):
        index.row("p:0")
    assert before.known_intents == Intent.METHOD | Intent.BACKGROUND | Intent.RESULT
    assert [describe_index(index)[name] for name in ("sentences", "mentions")] == [4, 5]
    # the only one that is cited as a method
    delete_papers(folder, ["p:7"])
    index = Index.open(folder)
    assert index.known_intents == Intent.BACKGROUND | Intent.RESULT
    assert [describe_index(index)[name] for name in ("sentences", "mentions")] == [3, 3]


def test_of_two_papers_with_one_further_id_the_later_has_it(bert, tmp_path):
    """In segments of their own and in one."""
    twins = {name: {"id": name, "title": "the cell", "ids": ["doi:10.1/both"]} for name in ("a", "b")}
    corpora = {name: write_corpus(tmp_path / name, {name: twins[name]}, {name: ["x"]}) for name in twins}
    for first, second in ("ab", "ba"):
        folder = tmp_path / f"index {first}"
        build_index(corpora[first], bert, folder, IndexOptions(vectors=False))
        add_papers(folder, corpora[second])
        found = [Index.open(folder), compact_index(folder)]
        assert [index.id(index.row("doi:10.1/both")) for index in found] == [second] * 2


def test_an_index_without_papers(made, tmp_path):
    folder = Path(shutil.copytree(made.index.folder, tmp_path / "index"))
    assert delete_papers(folder, ids_of(made.index)) == len(made.index)
    index = Index.open(folder)
    assert len(index) == 0 and answer(index, made.reader, Query(text="cell")).hits == []
    for query in (Query(cite=Passage("the cell")), Query(sentences=SentenceQuery(texts=("the cell",)))):
        with pytest.raises(UserError, match="holds no paper; add some"):
            answer(index, made.reader, query)
    assert fill_vectors(folder, model=made.model) == 0 and len(compact_index(folder)) == 0
    assert add_papers(folder, made.corpus, np.arange(2), options=ChangeOptions(model=str(made.model))).added == 2
    assert (
        suggest(index, "c") == []
        and find_missing_papers(index).papers == []
        and count_facets(index, index.alive)["venues"] == []
    )


def test_equal_scores_stand_by_id_whatever_the_segments(made, versions, bert, encoder, tmp_path):
    """Papers with one text, more than asked for, written in segments against the order of their ids."""
    same = {f"s:{number}": {"id": f"s:{number}", "title": "the cell grows"} for number in range(9)}
    corpus = write_corpus(tmp_path / "same", same, {name: ["s:0"] for name in same})
    folder = tmp_path / "i"
    build_index(corpus, bert, folder, IndexOptions(device="cpu", vectors=False))
    delete_papers(folder, [f"s:{number}" for number in range(7)])
    for number in (5, 2, 6, 0, 1):
        add_papers(folder, corpus, corpus.rows([f"s:{number}"]))
    for shard in (4, 1):
        fill_vectors(folder, shard=shard, model=encoder, stop=iter([False, True]).__next__)
    index = Index.open(folder)
    assert sum(segment.matrix is not None for segment in index.segments) == 2
    query = encoder.encode(["the cell"])[0]
    found = nearest_papers(index, query, 3)
    names = sorted(index.id(int(row)) for row in np.flatnonzero(index.with_vector))
    assert len(names) == 5 and [index.id(int(row)) for row in found.rows[0]] == names[:3]
    none = nearest_papers(index, query, 3, allowed=np.zeros(index.size, bool))
    assert none.rows.shape == (1, 0)


def test_given_vectors_are_taken_and_checked(versions, bert, save_bert, tmp_path):
    corpus, cpu = versions[0].corpus, load_encoder(bert, device="cpu")
    options = IndexOptions(device="cpu", sentences=True, dtype="float32")
    whole = embed_papers(corpus, cpu, tmp_path / "v")
    sentences = embed_sentences(corpus, cpu, tmp_path / "s")
    index = build_index(corpus, bert, tmp_path / "given", options, precomputed=PrecomputedVectors(whole, sentences))
    plain = build_index(corpus, bert, tmp_path / "plain", options)
    np.testing.assert_allclose(index.take(np.arange(index.size)), plain.take(np.arange(plain.size)), atol=1e-5)
    for row in range(len(plain)):
        assert index.sentence_numbers(row).tolist() == plain.sentence_numbers(row).tolist()
        np.testing.assert_allclose(index.sentence_vectors(row), plain.sentence_vectors(row), atol=1e-5)
    some = embed_papers(versions[1].corpus, cpu, tmp_path / "some")
    with pytest.raises(UserError, match=r"some holds vectors of another corpus.*--trust-ids"):
        build_index(corpus, bert, tmp_path / "mixed", options, precomputed=PrecomputedVectors(some))
    assert not (tmp_path / "mixed").exists()
    with pytest.raises(UserError, match="--sentence-vectors holds vectors of another corpus"):
        index_corpus(
            versions[1].corpus, bert, tmp_path / "plain", options, precomputed=PrecomputedVectors(some, sentences)
        )
    assert Index.open(tmp_path / "plain").number == plain.number
    mixed = build_index(corpus, bert, tmp_path / "mixed", options, precomputed=PrecomputedVectors(some, trust_ids=True))
    assert ids_of(mixed) == ids_of(plain) and mixed.with_vector.all()
    with pytest.raises(UserError, match="cannot be compared"):
        build_index(
            corpus,
            save_bert(tmp_path / "other", seed=9),
            tmp_path / "x",
            options,
            precomputed=PrecomputedVectors(whole),
        )


def test_questions_are_read_by_the_runtime_of_given_vectors(versions, bert, tmp_path):
    pytest.importorskip("openvino", reason="pip install 'citeweave[runtimes]'")
    corpus = versions[0].corpus
    whole = embed_papers(corpus, load_encoder(bert, device="cpu", runtime="openvino-int8"), tmp_path / "v")
    index = build_index(corpus, bert, tmp_path / "i", IndexOptions(device="cpu"), precomputed=PrecomputedVectors(whole))
    assert index.runtime == "openvino-int8" and index.with_vector.any()


def test_a_model_that_changed_is_refused(versions, bert, save_bert, tmp_path):
    model = Path(shutil.copytree(bert, tmp_path / "model"))
    build_index(versions[0].corpus, model, tmp_path / "i", IndexOptions(device="cpu"))
    number = read_state(tmp_path / "i").number
    shutil.rmtree(model)
    save_bert(model, seed=5)
    with pytest.raises(UserError, match="cannot be compared"):
        update_index(tmp_path / "i", versions[1].corpus, options=ChangeOptions(device="cpu"))
    assert read_state(tmp_path / "i").number == number


def _fields(options: IndexOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in IndexOptions.__dataclass_fields__}


def ids_of(index: Index) -> list[str]:
    return [index.id(row) for row in np.flatnonzero(index.alive).tolist()]
