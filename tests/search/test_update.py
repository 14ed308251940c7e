"""After any series of changes an index answers as a new one; a writer that fails at any step leaves an index complete."""

import errno
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave import Index, IndexOptions, Intent
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.hash_keys import hash_text
from citeweave.encoders.embed import embed_papers, embed_sentences
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.search import state
from citeweave.search.answer import answer
from citeweave.search.build import (
    ChangeOptions,
    add_papers,
    build_index,
    delete_papers,
    fill_vectors,
    index_corpus,
    update_index,
)
from citeweave.search.cite import recommend
from citeweave.search.describe import describe_index
from citeweave.search.explain import explain, find_missing_papers, find_neighborhood
from citeweave.search.filters import count_facets
from citeweave.search.index_vectors import PrecomputedVectors
from citeweave.search.map import make_map
from citeweave.search.nearest import QueryEncoder, nearest_papers
from citeweave.search.query import Passage, Query, SentenceQuery
from citeweave.search.state import open_writer, read_state
from citeweave.search.words import search_words, suggest

from ..conftest import refused
from .conftest import CPU, SAID, Content, corpus_of, ids_of

pytestmark = pytest.mark.usefixtures("one_text_per_batch")

SENTENCES = IndexOptions(device="cpu", sentences=True)


def answers(index: Index) -> dict[str, Any]:
    """All that an index holds, by ids."""
    rows, found = np.flatnonzero(index.with_vector), dict[str, Any]()
    if len(rows):
        near = nearest_papers(index, index.take(rows), 7, itself=rows)
        for row, others, scores in zip(rows.tolist(), near.rows, near.scores, strict=True):
            pairs = zip(others.tolist(), scores.tolist(), strict=True)
            found[f"near {index.id(row)}"] = [(index.id(at), score) for at, score in pairs if at >= 0]
    for row in range(index.size):
        paper, own = index.paper(row), index.sentence_vectors(row)
        found[paper.id] = (
            (paper.title, paper.abstract, paper.year, paper.ids),
            index.references(row).tolist(),
            sorted(index.id(int(at)) for at in index.citing(index.key_of(row))),
            [index.row(name) == row for name in (paper.id, *paper.ids)],
            None if own is None else (own.tolist(), index.sentence_numbers(row).tolist()),
        )
    for query in ("cell grows", "models of graphs", "citations"):
        hits = search_words(index, query, 5)
        pairs = zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)
        found[query] = [(index.id(row), pytest.approx(score, rel=1e-6)) for row, score in pairs]
    for number in range(16, 24):
        found[f"outside {number}"] = sorted(index.id(int(row)) for row in index.citing(hash_text(f"p:{number}")))
    return found


def queried(index: Index, encoder: TorchEncoder) -> dict[str, Any]:
    """Answers to every kind of query, to the last bit; also what stands beside them."""
    reader, named = QueryEncoder(index, encoder), sorted(ids_of(index))
    known = sorted(index.id(row) for row in np.flatnonzero(index.with_sentences).tolist())
    queries = [
        Query(text="cell grows in data"),
        Query(text="cell grows in data", by="words"),
        Query(text="models", by="vectors", diversity=0.5),
        Query(text="the cell", diversity=0.3, count=4, offset=2),
        Query(paper=known[0]),
        Query(paper=known[0], diversity=0.5),
        Query(liked=tuple(known[:2]), disliked=(known[2],)),
        Query(sentences=SentenceQuery(known[1])),
        Query(sentences=SentenceQuery(texts=("We find models from data.", "the cell grows")), count=5, offset=1),
        Query(cite=Passage("we find how models learn [CIT]"), count=4),
    ]
    counts = ("papers", "with_vector", "with_sentences", "with_abstract", "not_embedded", "references")
    found: dict[str, Any] = {"counts": {name: describe_index(index)[name] for name in counts}}
    for number, query in enumerate(queries):
        hits = answer(index, reader, query).hits
        found[f"query {number}"] = [(hit.id, hit.score, hit.matches) for hit in hits]
    for prefix in ("c", "ce", "models g", "the "):
        found[prefix] = [(one.text, one.papers, one.row is None or index.id(one.row)) for one in suggest(index, prefix)]
    found["missing"] = [paper.as_json() for paper in find_missing_papers(index)]
    for name in named[:4]:
        near = find_neighborhood(index, index.row(name), max_papers=3)
        found[f"around {name}"] = ([paper.id for paper in near.nodes], near.edges, near.left_out, near.outside)
        why = explain(index, index.row(name), index.row(named[-1])).as_json()
        found[f"why {name}"] = [why[part] for part in ("shared_references", "cites", "co_cited_by", "words")]
    found["facets"] = count_facets(index, np.arange(index.size))
    found["map"] = sorted(index.id(row) for row in make_map(index).columns["row"].tolist())
    return found


@pytest.mark.parametrize("seed", range(3))
def test_any_series_of_changes_equals_a_new_index(versions, bert, encoder, tmp_path, seed):
    rng, folder, how = np.random.default_rng(seed), tmp_path / "index", ChangeOptions(encoder=encoder)
    build_index(versions[0].corpus, bert, folder, replace(SENTENCES, vectors=seed % 2 == 0))
    model = Content().take(versions[0], versions[0].papers)
    for _ in range(8):
        version = versions[int(rng.integers(len(versions)))]
        what = rng.choice(["add", "add words", "update", "delete", "fill"])
        if what.startswith("add"):
            rows = rng.choice(len(version.corpus), 4, replace=False)
            add_papers(folder, version.corpus, rows, vectors=what == "add", options=how)
            model.take(version, version.corpus.ids.take(rows))
        elif what == "update":
            update_index(folder, version.corpus, options=how)
            model = Content().take(version, version.papers)
        elif what == "delete":
            names = [f"p:{number}" for number in rng.choice(20, 4, replace=False)]
            assert delete_papers(folder, names) == sum(name in model.papers for name in names)
            for name in names:
                model.papers.pop(name, None)
        else:
            fill_vectors(folder, shard=3, model=encoder)
        assert set(model.papers) == set(ids_of(Index.open(folder)))
    fill_vectors(folder, shard=3, model=encoder)
    index, anew = Index.open(folder), build_index(model.write(tmp_path / "anew"), bert, tmp_path / "n", SENTENCES)
    assert len(index) == len(anew) == len(model.papers) and index.with_vector.sum() == anew.with_vector.sum()
    assert answers(index) == answers(anew)
    assert queried(index, encoder) == queried(anew, encoder)
    assert len(list((folder / "generations").iterdir())) == 1


def test_a_deleted_paper_is_nowhere(made, copy):
    before = Index.open(copy)
    assert [before.id(int(row)) for row in before.citing(hash_text("doi:10.1/seven"))] == ["p:0", "p:2"]
    assert delete_papers(copy, ["p:0", "p:0", "nobody"]) == 1
    index = Index.open(copy)
    assert len(index) == len(before) - 1 and index.rows(["p:0"]).tolist() == [-1]
    assert [index.id(int(row)) for row in index.citing(index.key_of(index.row("p:7")))] == ["p:2"]
    near = nearest_papers(index, before.take(np.array([before.row("p:0")])), 19)
    assert near.rows.shape == (1, 18)
    # the sentence in which it cites p:7 stays, without its name
    found = recommend(index, made.reader, Passage(SAID), count=19)
    assert {one.evidence.citing for one in found if one.evidence} == {"", "p:1", "p:2", "p:4"}
    with pytest.raises(UserError, match="paper 'p:0!' is not in") as caught:
        index.row("p:0!")
    assert "'p:0'" not in str(caught.value)
    assert before.known_intents == Intent.METHOD | Intent.BACKGROUND | Intent.RESULT
    assert [describe_index(index)[name] for name in ("sentences", "mentions")] == [4, 5]
    # the only one that is cited as a method
    delete_papers(copy, ["p:7"])
    index = Index.open(copy)
    assert index.known_intents == Intent.BACKGROUND | Intent.RESULT
    assert [describe_index(index)[name] for name in ("sentences", "mentions")] == [3, 3]
    # and without any paper
    assert delete_papers(copy, ids_of(index)) == len(index)
    index = Index.open(copy)
    assert len(index) == 0 and answer(index, made.reader, Query(text="cell")).hits == []
    for query in (Query(cite=Passage("the cell")), Query(sentences=SentenceQuery(texts=("the cell",)))):
        refused("holds no paper; add some", answer, index, made.reader, query)
    assert fill_vectors(copy, model=made.model) == 0
    assert add_papers(copy, made.corpus, np.arange(2), options=ChangeOptions(model=str(made.model))).added == 2
    assert suggest(index, "c") == [] == find_missing_papers(index)
    assert count_facets(index, np.arange(index.size))["venues"] == []


def test_of_two_papers_with_one_further_id_the_later_has_it(bert, tmp_path):
    twins = {name: [{"id": name, "title": "the cell", "ids": ["doi:10.1/both"]}] for name in ("a", "b")}
    corpora = {name: corpus_of(tmp_path / name, twins[name], [(name, "x")]) for name in twins}
    for first, second in ("ab", "ba"):
        folder = tmp_path / f"index {first}"
        build_index(corpora[first], bert, folder, IndexOptions(vectors=False))
        add_papers(folder, corpora[second])
        index = Index.open(folder)
        assert index.id(index.row("doi:10.1/both")) == second


def test_equal_scores_stand_by_id(bert, encoder, tmp_path):
    """Papers with one text, more than asked for, added against the order of their ids."""
    same = [{"id": f"s:{number}", "title": "the cell grows"} for number in range(9)]
    corpus, folder = corpus_of(tmp_path / "same", same, [(paper["id"], "s:0") for paper in same]), tmp_path / "i"
    build_index(corpus, bert, folder, IndexOptions(device="cpu", vectors=False))
    delete_papers(folder, [f"s:{number}" for number in range(7)])
    for number in (5, 2, 6, 0, 1):
        add_papers(folder, corpus, corpus.rows([f"s:{number}"]))
    fill_vectors(folder, model=encoder)
    index = Index.open(folder)
    query = encoder.encode(["the cell"])[0]
    found = nearest_papers(index, query, 3)
    names = sorted(index.id(int(row)) for row in np.flatnonzero(index.with_vector))
    assert len(names) == 7 and [index.id(int(row)) for row in found.rows[0]] == names[:3]
    assert nearest_papers(index, query, 3, allowed=np.zeros(index.size, bool)).rows.shape == (1, 0)


def test_precomputed_vectors_are_taken_and_checked(versions, bert, save_bert, tmp_path):
    corpus, cpu = versions[0].corpus, load_encoder(bert, device="cpu")
    options = IndexOptions(device="cpu", sentences=True, dtype="float32")
    whole, sentences = embed_papers(corpus, cpu, tmp_path / "v"), embed_sentences(corpus, cpu, tmp_path / "s")
    some = embed_papers(versions[1].corpus, cpu, tmp_path / "some")

    def built(name, *given, model=bert, **trust):
        return build_index(corpus, model, tmp_path / name, options, precomputed=PrecomputedVectors(*given, **trust))

    plain = built("plain", whole, sentences)
    refused(r"some holds vectors of another corpus.*--trust-ids", built, "mixed", some)
    assert not (tmp_path / "mixed").exists()
    with pytest.raises(UserError, match="--sentence-vectors holds vectors of another corpus"):
        both = PrecomputedVectors(some, sentences)
        index_corpus(versions[1].corpus, bert, tmp_path / "plain", options, precomputed=both)
    assert Index.open(tmp_path / "plain").number == plain.number
    mixed = built("mixed", some, trust_ids=True)
    assert ids_of(mixed) == ids_of(plain) and mixed.with_vector.all()
    refused("cannot be compared", built, "x", whole, model=save_bert(tmp_path / "other", seed=9))


def test_queries_are_encoded_by_the_runtime_of_precomputed_vectors(versions, bert, tmp_path):
    pytest.importorskip("openvino", reason="pip install 'citeweave[runtimes]'")
    rounded = load_encoder(bert, device="cpu", runtime="openvino-int8")
    given = PrecomputedVectors(embed_papers(versions[0].corpus, rounded, tmp_path / "v"))
    index = build_index(versions[0].corpus, bert, tmp_path / "i", CPU, precomputed=given)
    assert index.runtime == "openvino-int8" and index.with_vector.any()


def test_a_model_that_changed_is_refused(versions, bert, save_bert, tmp_path):
    model = Path(shutil.copytree(bert, tmp_path / "model"))
    build_index(versions[0].corpus, model, tmp_path / "i", CPU)
    number = read_state(tmp_path / "i").number
    shutil.rmtree(model)
    save_bert(model, seed=5)
    refused("cannot be compared", update_index, tmp_path / "i", versions[1].corpus, options=ChangeOptions(device="cpu"))
    assert read_state(tmp_path / "i").number == number


# --- writers that fail, and readers meanwhile --------------------------------------------------------------


class Death(BaseException):
    """A process that ends at once."""


FILE_VERBS = ("replace", "rename", "unlink", "mkdir")
STEPS = ((os, "fsync"), (os, "link"), (shutil, "rmtree"), *((Path, name) for name in FILE_VERBS))


def steps_of(change: Any, folder: Path, patch: pytest.MonkeyPatch, at: int = 10**9) -> int:
    """Run a change that dies at a step to the disk, and does nothing more, not even cleaning up; how many steps were."""
    count = 0

    def counted(real: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count >= at:
                raise Death
            return real(*arguments, **options)

        return step

    with patch.context() as inner:
        for owner, name in STEPS:
            inner.setattr(owner, name, counted(getattr(owner, name)))
        try:
            change(folder)
        except Death:
            assert at < 10**9
    return count


@pytest.mark.parametrize("what", ["add", "update", "delete", "fill"])
def test_a_writer_that_dies_at_any_step_leaves_the_old_or_the_new(versions, bert, encoder, tmp_path, monkeypatch, what):
    how, first, second = ChangeOptions(encoder=encoder), versions[0].corpus, versions[1].corpus
    change = {
        "add": lambda folder: add_papers(folder, second, np.arange(4), options=how),
        "update": lambda folder: update_index(folder, second, options=how),
        "delete": lambda folder: delete_papers(folder, first.ids.take(np.arange(3))),
        "fill": lambda folder: fill_vectors(folder, shard=6, model=encoder),
    }[what]
    start = tmp_path / "start"
    build_index(first, bert, start, IndexOptions(device="cpu", vectors=what != "fill"))
    old = answers(Index.open(start))
    complete = Path(shutil.copytree(start, tmp_path / "complete"))
    steps = steps_of(change, complete, monkeypatch)
    new = answers(Index.open(complete))
    assert steps > 3 and old != new
    for at in np.unique(np.linspace(1, steps, 6).astype(int)).tolist():
        folder = Path(shutil.copytree(start, tmp_path / "broken"))
        steps_of(change, folder, monkeypatch, at)
        left = answers(Index.open(folder))
        assert left in (old, new), f"a third state after step {at} of {steps}"
        change(folder)
        index = Index.open(folder)
        assert answers(index) == new, f"the same change after step {at} of {steps} ends in another state"
        assert [path.name for path in (folder / "generations").iterdir()] == [index.place.name]
        shutil.rmtree(folder)


def test_a_build_that_dies_resumes(versions, bert, tmp_path, monkeypatch):
    def build(folder):
        return build_index(versions[0].corpus, bert, folder, CPU)

    steps = steps_of(build, tmp_path / "complete", monkeypatch)
    for at in (1, steps // 3, steps - 3):
        folder = tmp_path / f"broken{at}"
        steps_of(build, folder, monkeypatch, at)
        if not (folder / "state.json").exists():
            refused("interrupted|does not exist|is not an index", Index.open, folder, error=ArtifactError)
        assert ids_of(build(folder)) == ids_of(Index.open(tmp_path / "complete"))


def test_reading_while_a_writer_works(versions, bert, encoder, tmp_path):
    """What was opened stays as it was; what is opened meanwhile is some complete state."""
    folder, how = tmp_path / "index", ChangeOptions(encoder=encoder)
    opened = build_index(versions[0].corpus, bert, folder, CPU)
    before, seen, stop = answers(opened), list[tuple[int, tuple[str, ...]]](), threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        index = Index.open(folder)
        try:
            while not stop.is_set():
                index = index.fresh() if len(seen) % 2 else Index.open(folder)
                seen.append((index.number, tuple(sorted(ids_of(index)))))
        except BaseException as error:
            problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    known = {tuple(sorted(ids_of(opened)))}
    try:
        for version in versions[1:4]:
            for change in (
                lambda corpus: update_index(folder, corpus, options=how),
                lambda corpus: delete_papers(folder, corpus.ids.take(np.arange(2))),
            ):
                change(version.corpus)
                known.add(tuple(sorted(ids_of(Index.open(folder)))))
    finally:
        stop.set()
        reader.join()
    assert not problems, problems
    assert {ids for _, ids in seen} <= known
    assert [number for number, _ in seen] == sorted(number for number, _ in seen)
    assert answers(opened) == before and not opened.is_current() and opened.fresh().number > opened.number
    fresh = opened.fresh()
    assert fresh.fresh() is fresh


def test_one_writer_at_a_time(copy, tmp_path):
    busy = pytest.raises(UserError, match="is being written by another process")
    with open_writer(copy), busy, open_writer(copy, patience=0.1):
        pass
    refused("does not exist", delete_papers, tmp_path / "nowhere", ["a"], error=ArtifactError)


def test_no_index_is_begun_in_what_came_before_the_lock(made, tmp_path, monkeypatch):
    real = state.take_lock

    def late(path, **options):
        shutil.copytree(made.corpus.folder, path.parent, dirs_exist_ok=True)
        return real(path, **options)

    monkeypatch.setattr(state, "take_lock", late)
    with pytest.raises(UserError, match="which index must not replace"), open_writer(tmp_path / "x", create=True):
        pass
    names = [sorted(path.name for path in folder.iterdir()) for folder in (tmp_path / "x", made.corpus.folder)]
    assert names[0] == names[1], "something was left in another's folder"


def test_a_full_disk_leaves_the_old_state(made, copy, tmp_path, monkeypatch):
    number = read_state(copy).number
    fewer = corpus_of(tmp_path / "fewer", [{"id": "n", "title": "a new cell"}], [("n", "x")])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for change in (lambda: delete_papers(copy, ["p:0"]), lambda: update_index(copy, fewer, vectors=False)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            refused("No space left", change, error=OSError)
        assert read_state(copy).number == number and ids_of(Index.open(copy)) == ids_of(made.index)
    assert delete_papers(copy, ["p:0"]) == 1 and len(list((copy / "generations").iterdir())) == 1
