"""Building and opening an index: what it holds, resuming, and inputs that do not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.importing import import_papers
from citeweave.encoders.aspects import save_heads
from citeweave.errors import ArtefactError, UserError
from citeweave.files import partial_folder
from citeweave.progress import Advance, Reporter
from citeweave.search.building import IndexOptions, build_index
from citeweave.search.index import NO_VECTOR, Index
from citeweave.search.searching import open_reader, search_paper

CPU = IndexOptions(device="cpu")


def test_it_holds_what_it_shows(made):
    index, corpus = made.index, made.corpus
    assert len(index) == len(corpus) == 19 and index.manifest.facts["without_vector"] == 0
    for row in range(len(index)):
        hit = index.hit(row, 0.5)
        paper = corpus.paper(corpus.row(hit.id))
        assert (hit.id, hit.title, hit.year) == (paper.id, paper.title, paper.year)
    assert index.row("doi:10.1/seven") == index.row("p:7")
    assert index.vectors.provenance.dtype == "float16" and index.corpus == corpus.hash
    # citations by bit of the intent: p:7 as a method, p:8 as background, p:5 for its result
    for paper, bit in (("p:7", 1), ("p:8", 0), ("p:5", 2)):
        assert index.cited_as[index.row(paper)].tolist() == [int(at == bit) for at in range(8)]


def test_spaces_are_the_heads_projections(made):
    index = made.index
    whole = np.asarray(index.vectors.matrix, np.float32)
    for aspect in index.aspects:
        (space,) = index.space(aspect)
        wanted = index.heads.project(whole, aspect)
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
        np.testing.assert_allclose(space, wanted, atol=1e-3)
    np.testing.assert_allclose(index.take(np.arange(19), "all"), np.hstack(index.space("all")), atol=0)


def test_citing_sentences_lead_to_papers(made):
    table, index = made.index.sentences, made.index
    told = {
        (index.vectors.ids[paper], table.texts[sentence], index.vectors.ids[table.citing[sentence]], int(intents))
        for paper, sentence, intents in zip(table.paper, table.sentence, table.intents, strict=True)
    }
    said = "we find how models learn from data [CIT]"
    both = "the cell grows [CIT] and that shows a paper"
    # p:9 is not in the corpus
    assert told == {
        ("p:7", said, "p:0", 2),
        ("p:8", said, "p:1", 1),
        ("p:7", both, "p:2", 0),
        ("p:3", both, "p:2", 0),
        ("p:5", "models of citations grow (Chen et al., 2014).", "p:4", 4),
    }


def test_the_number_of_sentences_is_bounded(made, tmp_path):
    index = build_index(made.corpus, made.model, tmp_path / "i", IndexOptions(contexts=1, device="cpu"))
    table = index.sentences
    pairs = list(zip(table.paper.tolist(), table.intents.tolist(), strict=True))
    assert len(pairs) == len(set(pairs)) == 5


def test_ids_that_are_not_there(made, copy):
    with pytest.raises(UserError, match=r"paper 'p:77' is not in .*19 papers; did you mean .*'p:7'"):
        made.index.row("p:77")
    with pytest.raises(UserError, match="ids such as 'p:0'"):
        made.index.row("\ud800something else")
    path = copy / "ids" / "row.npy"
    np.save(path, np.full_like(np.load(path), NO_VECTOR))
    with pytest.raises(UserError, match="'p:7' has no vector"):
        Index.open(copy).row("p:7")


def test_a_second_build_computes_nothing(made, capsys):
    before = (made.index.folder / "manifest.json").stat().st_mtime_ns
    options = IndexOptions(contexts=10, device="cpu")
    build_index(made.corpus, made.model, made.index.folder, options, reporter=Reporter())
    assert "is there already" in capsys.readouterr().err
    assert (made.index.folder / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="other inputs or options"):
        build_index(made.corpus, made.model, made.index.folder, CPU)


class Stopping(Reporter):
    """Interrupts the work when a task of this name begins."""

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        if label == "projecting":
            raise KeyboardInterrupt
        yield lambda amount: None


def test_an_interrupted_build_goes_on(made, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        build_index(made.corpus, made.model, tmp_path / "i", CPU, reporter=Stopping())
    with pytest.raises(ArtefactError, match="does not exist"):
        Index.open(tmp_path / "i")
    (embedded,) = partial_folder(tmp_path / "i").glob(".work/*/papers/vectors/matrix.npy")
    same = embedded.stat().st_ino
    index = build_index(made.corpus, made.model, tmp_path / "i", CPU)
    assert (index.folder / "vectors" / "matrix.npy").stat().st_ino == same, "the papers were embedded again"
    assert index.manifest.hash == build_index(made.corpus, made.model, tmp_path / "whole", CPU).manifest.hash


def test_corpus_and_model_may_move(made, tmp_path):
    shutil.copytree(made.corpus.folder, tmp_path / "corpus")
    model = Path(shutil.copytree(made.model, tmp_path / "model"))
    build_index(Corpus.open(tmp_path / "corpus"), model, tmp_path / "i", CPU)
    shutil.rmtree(tmp_path / "corpus")
    model.rename(tmp_path / "moved")
    index = Index.open(tmp_path / "i")
    assert search_paper(index, "p:7", count=1, aspect="method")[0].id == "p:8"
    with pytest.raises(UserError, match="no longer at .*model; say with --model"):
        open_reader(index)
    assert open_reader(index, tmp_path / "moved", device="cpu").read("a paper").shape == (32,)


def test_another_model_is_refused(made, save_bert, tmp_path):
    other = save_bert(tmp_path / "other", seed=3)
    with pytest.raises(UserError, match="was made by model@.*and other is revision .* cannot be compared"):
        open_reader(made.index, other, device="cpu")
    save_heads(other, made.index.heads)
    with pytest.raises(UserError, match="holds corpus, which index must not replace"):
        build_index(made.corpus, other, made.corpus.folder, CPU)


def test_damaged_and_foreign_folders(made, copy):
    with pytest.raises(ArtefactError, match="holds corpus, not index"):
        Index.open(made.corpus.folder)
    with (copy / "spaces" / "0.npy").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ArtefactError, match="another size"):
        Index.open(copy)
    np.save(copy / "ids" / "row.npy", np.full(len(np.load(copy / "ids" / "row.npy")), 99, np.int32))
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest["facts"]["aspects"]
    manifest["files"] = {}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtefactError, match="does not describe an index"):
        Index.open(copy)
    manifest["facts"]["aspects"] = ["method"]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    index = Index.open(copy)
    with pytest.raises(ArtefactError, match="names rows that are not there"):
        index.row("p:7")
    with pytest.raises(ArtefactError, match="aspects does not fit"):
        index.space("method")
    np.save(copy / "sentences" / "paper.npy", np.full(5, 19, np.int32))
    with pytest.raises(ArtefactError, match="sentences is damaged"):
        _ = index.sentences


def test_a_corpus_of_one_paper_without_sentences(made, tmp_path):
    (tmp_path / "papers.jsonl").write_text('{"id": "a", "title": "A paper", "year": 2000}\n')
    import_papers([tmp_path / "papers.jsonl"], tmp_path / "corpus")
    corpus = Corpus.open(tmp_path / "corpus")
    index = build_index(corpus, made.model, tmp_path / "one", CPU)
    assert len(index) == 1 and index.sentences is None and not index.cited_as.any()
    assert search_paper(index, "a") == search_paper(index, "a", aspect="all") == []
    with pytest.raises(UserError, match="--contexts needs citing sentences, and .* has none"):
        build_index(corpus, made.model, tmp_path / "i", IndexOptions(contexts=3, device="cpu"))
    with pytest.raises(UserError, match="--dtype is 'int4'"):
        IndexOptions(dtype="int4")
    with pytest.raises(UserError, match="--most-contexts is -1"):
        IndexOptions(contexts=-1)
