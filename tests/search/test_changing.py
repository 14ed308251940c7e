"""After any series of changes an index answers as one built anew; writers that fail at any step leave it whole."""

from __future__ import annotations

import json
import os
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.importing import import_papers
from citeweave.encoders.embedding import embed_papers
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.streaming.embedding_sentences import embed_sentences
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import ArtefactError, UserError
from citeweave.hashing import hash_text
from citeweave.search.building import IndexOptions, build_index
from citeweave.search.changing import ChangeOptions, add_papers, delete_papers, update_index
from citeweave.search.citing import Draft, recommend
from citeweave.search.compacting import compact_index
from citeweave.search.exact import nearest_papers
from citeweave.search.filling import fill_vectors, pending
from citeweave.search.index import Index
from citeweave.search.state import read_state, writing
from citeweave.search.words import search_words
from citeweave.search.writing.given import Given

from .conftest import KNOWN

INT8 = IndexOptions(runtime="int8", device="cpu", sentences=True)
WORDS = KNOWN.split()


def paper(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """One version of a paper; two of three have an abstract, one of four a second id, some have the same text."""
    length = int(rng.integers(0, 4))
    abstract = " ".join(rng.choice(WORDS, 4 * length)) + "." if length else ""
    made: dict[str, Any] = {"id": f"p:{number}", "title": " ".join(rng.choice(WORDS, 2)), "abstract": abstract}
    if rng.random() < 0.2:
        made |= {"title": "cell grows", "abstract": ""}
    if number % 4 == 0:
        made["ids"] = [f"doi:10.1/{number}"]
    if rng.random() < 0.5:
        made["year"] = int(rng.integers(1990, 2020))
    return made


def references(rng: np.random.Generator) -> list[str]:
    """Ids that a paper cites: some of them never in any corpus, some by their second id."""
    numbers = rng.choice(24, 3, replace=False).tolist()
    return [f"doi:10.1/{number}" if number % 8 == 0 else f"p:{number}" for number in numbers]


@pytest.fixture(scope="module")
def encoder(bert: Path) -> TorchEncoder:
    """A runtime whose vectors do not depend on the batch, loaded once."""
    return load_encoder(bert, device="cpu", runtime="int8")


@dataclass
class Version:
    """A corpus, and what it was made of."""

    corpus: Corpus
    papers: dict[str, dict[str, Any]] = field(default_factory=dict)
    cites: dict[str, list[str]] = field(default_factory=dict)


def write_corpus(place: Path, papers: dict[str, dict[str, Any]], cites: dict[str, list[str]]) -> Corpus:
    place.mkdir(parents=True)
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers.values()))
    pairs = [(citing, cited) for citing in papers for cited in cites[citing]]
    (place / "citations.tsv").write_text("".join(f"{citing}\t{cited}\n" for citing, cited in pairs))
    import_papers([place / "papers.jsonl", place / "citations.tsv"], place / "corpus")
    return Corpus.open(place / "corpus")


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Version]:
    """Corpora of up to 16 papers; in the later ones most papers are as in the one before."""
    rng, place, found = np.random.default_rng(4), tmp_path_factory.mktemp("versions"), []
    papers: dict[str, dict[str, Any]] = {}
    cites: dict[str, list[str]] = {}
    for number in range(5):
        for at in rng.choice(16, 9, replace=False).tolist():
            name, what = f"p:{at}", rng.random()
            if name not in papers or what < 0.4:
                papers[name], cites[name] = paper(at, rng), references(rng)
            elif what < 0.6:
                papers.pop(name)
            elif what < 0.8:
                papers[name] = {**papers[name], "year": int(rng.integers(1990, 2020))}
        kept = dict(papers)
        found.append(Version(write_corpus(place / str(number), kept, cites), kept, dict(cites)))
    return found


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
    build_index(versions[0].corpus, bert, folder, IndexOptions(**{**_fields(INT8), "vectors": seed % 2 == 0}))
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
            fill_vectors(folder, shard=3, encoder=encoder)
        assert set(model.papers) == set(_ids(Index.open(folder)))
    # ended before its last step, which would make one segment of all
    fill_vectors(folder, shard=3, encoder=encoder, stop=lambda: not len(pending(Index.open(folder))))
    index = Index.open(folder)
    anew = build_index(write_corpus(tmp_path / "anew", model.papers, model.cites), bert, tmp_path / "n", INT8)
    assert len(index) == len(anew) == len(model.papers) and index.with_vector.sum() == anew.with_vector.sum()
    assert answers(index) == answers(anew)
    assert len(list((folder / "segments").iterdir())) == len(index.segments)


class Death(BaseException):
    """A process that ends at once."""


class Faults:
    """Counts what reaches the disk and dies at a given step; a dead process does nothing more, not even cleaning up."""

    STEPS = (
        (os, "fsync"),
        (os, "link"),
        (Path, "replace"),
        (Path, "rename"),
        (Path, "unlink"),
        (Path, "mkdir"),
        (shutil, "rmtree"),
    )

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.count, self.at = 0, at
        for owner, name in self.STEPS:
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count >= self.at:
                raise Death
            return real(*arguments, **options)

        return step


def steps_of(change: Any, folder: Path, patch: pytest.MonkeyPatch, at: int = 10**9) -> int:
    """Run a change that dies at a step; how many steps there were."""
    with patch.context() as inner:
        faults = Faults(inner, at)
        try:
            change(folder)
        except Death:
            assert at < 10**9
    return faults.count


@pytest.mark.parametrize("what", ["add", "update", "delete", "compact", "fill"])
def test_a_writer_that_dies_at_any_step_leaves_the_old_or_the_new(versions, bert, encoder, tmp_path, monkeypatch, what):
    how, first, second = ChangeOptions(encoder=encoder), versions[0].corpus, versions[1].corpus
    changes = {
        "add": lambda folder: add_papers(folder, second, np.arange(4), options=how),
        "update": lambda folder: update_index(folder, second, options=how),
        "delete": lambda folder: delete_papers(folder, first.ids.take(np.arange(3))),
        "compact": compact_index,
        "fill": lambda folder: fill_vectors(folder, shard=6, encoder=encoder),
    }
    change, start = changes[what], tmp_path / "start"
    build_index(first, bert, start, IndexOptions(runtime="int8", device="cpu", vectors=what != "fill"))
    if what == "compact":
        delete_papers(start, first.ids.take(np.arange(2)))
        add_papers(start, second, np.arange(2), vectors=False)
    old = answers(Index.open(start))
    whole = Path(shutil.copytree(start, tmp_path / "whole"))
    steps = steps_of(change, whole, monkeypatch)
    new = answers(Index.open(whole))
    assert steps > 3 and (old != new) == (what != "compact")
    for at in np.unique(np.linspace(1, steps, 8).astype(int)).tolist():
        folder = Path(shutil.copytree(start, tmp_path / "broken"))
        steps_of(change, folder, monkeypatch, at)
        left = answers(Index.open(folder))
        # filling has a state a shard
        assert left in (old, new) or what == "fill", f"a third state after step {at} of {steps}"
        assert _ids_told(left) in (_ids_told(old), _ids_told(new))
        change(folder)
        index = Index.open(folder)
        assert answers(index) == new, f"the same change after step {at} of {steps} ends elsewhere"
        assert sorted(path.name for path in (folder / "segments").iterdir()) == sorted(s.name for s in index.segments)
        lists = sum(1 for entry in index.state.segments if entry.deleted)
        assert not (folder / "deleted").is_dir() or len(list((folder / "deleted").iterdir())) == lists
        shutil.rmtree(folder)


def test_a_build_that_dies_goes_on(versions, bert, tmp_path, monkeypatch):
    build = lambda folder: build_index(versions[0].corpus, bert, folder, IndexOptions(device="cpu"))  # noqa: E731
    steps = steps_of(build, tmp_path / "whole", monkeypatch)
    for at in (1, steps // 3, steps - 3):
        folder = tmp_path / f"broken{at}"
        steps_of(build, folder, monkeypatch, at)
        if not (folder / "state.json").exists():
            with pytest.raises(ArtefactError, match="interrupted|does not exist|is not an index"):
                Index.open(folder)
        assert _ids(build(folder)) == _ids(Index.open(tmp_path / "whole"))


def test_reading_while_a_writer_works(versions, bert, encoder, tmp_path):
    """What was opened stays as it was; what is opened meanwhile is some whole state."""
    folder, how = tmp_path / "index", ChangeOptions(encoder=encoder)
    opened = build_index(versions[0].corpus, bert, folder, IndexOptions(runtime="int8", device="cpu"))
    before, seen, stop = answers(opened), list[tuple[int, tuple[str, ...]]](), threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        index = Index.open(folder)
        try:
            while not stop.is_set():
                index = index.fresh() if len(seen) % 2 else Index.open(folder)
                seen.append((index.number, tuple(_ids(index))))
        except BaseException as error:
            problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    known = {tuple(_ids(opened))}
    try:
        for number in (1, 2, 3):
            corpus = versions[number].corpus
            for change in (
                lambda: update_index(folder, corpus, options=how),  # noqa: B023
                lambda: delete_papers(folder, corpus.ids.take(np.arange(2))),  # noqa: B023
                lambda: compact_index(folder),
            ):
                change()
                known.add(tuple(sorted(_ids(Index.open(folder)))))
    finally:
        stop.set()
        reader.join()
    assert not problems, problems
    assert {tuple(sorted(ids)) for _, ids in seen} <= {tuple(sorted(ids)) for ids in known}
    assert [number for number, _ in seen] == sorted(number for number, _ in seen)
    assert answers(opened) == before and not opened.is_current() and opened.fresh().number > opened.number
    fresh = opened.fresh()
    assert fresh.fresh() is fresh
    delete_papers(folder, [fresh.id(0)])
    assert fresh.fresh().segments[0].ids is fresh.segments[0].ids, "a segment that did not change was opened again"


def test_one_writer_at_a_time(made, tmp_path):
    folder = Path(shutil.copytree(made.index.folder, tmp_path / "index"))
    with (
        writing(folder),
        pytest.raises(UserError, match="is being written by another process"),
        writing(folder, patience=0.1),
    ):
        pass
    with pytest.raises(ArtefactError, match="does not exist"):
        delete_papers(tmp_path / "nowhere", ["a"])


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


def test_equal_scores_stand_by_id_whatever_the_segments(made, versions, bert, encoder, tmp_path):
    """Papers with one text, more than asked for, written in segments against the order of their ids."""
    same = {f"s:{number}": {"id": f"s:{number}", "title": "the cell grows"} for number in range(9)}
    corpus = write_corpus(tmp_path / "same", same, {name: ["s:0"] for name in same})
    folder = tmp_path / "i"
    build_index(corpus, bert, folder, IndexOptions(runtime="int8", device="cpu", vectors=False))
    delete_papers(folder, [f"s:{number}" for number in range(7)])
    for number in (5, 2, 6, 0, 1):
        add_papers(folder, corpus, corpus.rows([f"s:{number}"]))
    for shard in (4, 1):
        fill_vectors(folder, shard=shard, encoder=encoder, stop=iter([False, True]).__next__)
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
    index = build_index(corpus, bert, tmp_path / "given", options, given=Given(whole, sentences))
    plain = build_index(corpus, bert, tmp_path / "plain", options)
    np.testing.assert_allclose(index.take(np.arange(index.size)), plain.take(np.arange(plain.size)), atol=1e-5)
    for row in range(len(plain)):
        assert index.sentence_numbers(row).tolist() == plain.sentence_numbers(row).tolist()
        np.testing.assert_allclose(index.sentence_vectors(row), plain.sentence_vectors(row), atol=1e-5)
    some = embed_papers(versions[1].corpus, cpu, tmp_path / "some")
    mixed = build_index(corpus, bert, tmp_path / "mixed", options, given=Given(some))
    assert _ids(mixed) == _ids(plain) and mixed.with_vector.all()
    with pytest.raises(UserError, match="cannot be compared"):
        build_index(corpus, save_bert(tmp_path / "other", seed=9), tmp_path / "x", options, given=Given(whole))


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


def _ids(index: Index) -> list[str]:
    return [index.id(row) for row in np.flatnonzero(index.alive).tolist()]


def _ids_told(told: dict[str, Any]) -> set[str]:
    return {name for name in told if name.startswith("p:")}
