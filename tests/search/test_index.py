"""Building and opening an index: what it holds, resuming, and inputs that do not fit."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.artifact import seal_payload, unseal_payload
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.progress import Advance, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.encoders.aspects import save_heads
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.network import Network
from citeweave.search import build
from citeweave.search.build import IndexOptions, build_index, describe_folder, index_corpus
from citeweave.search.index import Index
from citeweave.search.index_model import open_query_encoder
from citeweave.search.nearest import search_paper
from citeweave.search.segment import HAS_NONE
from citeweave.search.update import delete_papers

CPU = IndexOptions(device="cpu")


def test_it_holds_what_it_shows(made):
    index, corpus = made.index, made.corpus
    assert len(index) == len(corpus) == index.size == 19 and index.with_vector.all()
    for row in range(len(index)):
        hit = index.hit(row, 0.5)
        paper = corpus.paper(corpus.row(hit.id))
        assert (hit.id, hit.title, hit.year) == (paper.id, paper.title, paper.year)
    assert index.row("doi:10.1/seven") == index.row("p:7")
    assert index.provenance.dtype == "float16" and index.corpus == corpus.hash
    # citations by bit of the intent: p:7 as a method, p:8 as background, p:5 for its result
    for paper, bit in (("p:7", 1), ("p:8", 0), ("p:5", 2)):
        assert index.segments[0].cited_as[index.row(paper)].tolist() == [int(at == bit) for at in range(8)]


def test_spaces_are_the_heads_projections(made):
    index, rows = made.index, np.arange(19)
    whole, parts = index.take(rows), []
    for aspect in index.aspects:
        wanted = index.heads.project(whole, aspect)
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
        parts.append(index.take(rows, aspect))
        np.testing.assert_allclose(parts[-1], wanted, atol=1e-3)
    np.testing.assert_allclose(index.take(rows, "all"), np.hstack(parts), atol=0)


def test_citing_sentences_lead_to_papers(made):
    table, index = made.index.segments[0].citing_sentences, made.index
    told = {
        (index.id(paper), table.texts[sentence], table.citing[sentence], int(intents))
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
    table = index.segments[0].citing_sentences
    pairs = list(zip(table.paper.tolist(), table.intents.tolist(), strict=True))
    assert len(pairs) == len(set(pairs)) == 5


def test_ids_that_are_not_there(made):
    with pytest.raises(UserError, match=r"paper 'p:77' is not in .*19 papers; did you mean .*'p:7'"):
        made.index.row("p:77")
    with pytest.raises(UserError, match="ids such as 'p:0'"):
        made.index.row("\ud800something else")


def test_papers_without_text_are_there_without_a_vector(as_large, made, tmp_path):
    (tmp_path / "papers.jsonl").write_text('{"id": "a", "title": "A paper"}\n{"id": "b", "title": "!"}\n')
    import_papers([tmp_path / "papers.jsonl"], tmp_path / "corpus")
    index = build_index(Corpus.open(tmp_path / "corpus"), made.model, tmp_path / "i", CPU)
    (path,) = index.folder.glob("segments/*/embedded.npy")
    array = np.load(path)
    array[1] = HAS_NONE
    np.save(path, array)
    index = Index.open(index.folder)
    assert len(index) == 2 and index.with_vector.tolist() == [True, False] and index.row("b") == 1
    with pytest.raises(UserError, match="'b' has no vector in .* as it has no text"):
        search_paper(index, "b")
    assert search_paper(index, "a") == []


def test_a_second_build_computes_nothing(made, capsys):
    before = (made.index.folder / "state.json").stat().st_mtime_ns
    options = IndexOptions(contexts=10, device="cpu")
    build_index(made.corpus, made.model, made.index.folder, options, reporter=Reporter())
    assert "already exists" in capsys.readouterr().err
    assert (made.index.folder / "state.json").stat().st_mtime_ns == before and made.index.is_current()
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
    with pytest.raises(ArtifactError, match="was interrupted while it was made"):
        Index.open(tmp_path / "i")
    (embedded,) = (tmp_path / "i" / "segments").glob(".*.citeweave-*/kept/*/papers/vectors/matrix.npy")
    same = embedded.stat().st_ino
    index = build_index(made.corpus, made.model, tmp_path / "i", CPU)
    (matrix,) = index.folder.glob("segments/*/matrix.npy")
    assert matrix.stat().st_ino == same, "the papers were embedded again"
    assert index.state.segments == build_index(made.corpus, made.model, tmp_path / "whole", CPU).state.segments


@pytest.mark.parametrize("sentences", [False, True])
def test_an_interruption_in_the_middle_of_a_shard_costs_no_batch_that_was_read(made, tmp_path, monkeypatch, sentences):
    encoder = load_encoder(made.model, device="cpu", batch_tokens=1)  # loaded once, as loading may read a text too
    monkeypatch.setattr(build, "load_encoder", lambda *names, **options: encoder)
    batches, most, read = [], [math.inf], Network.token_states

    def counted(network, batch):
        if len(batches) == most[0]:
            raise KeyboardInterrupt
        batches.append(len(batch))
        return read(network, batch)

    monkeypatch.setattr(Network, "token_states", counted)
    options = IndexOptions(device="cpu", sentences=sentences)
    complete = build_index(made.corpus, made.model, tmp_path / "complete", options)
    needed = len(batches)
    batches.clear()
    most[0] = 7
    with pytest.raises(KeyboardInterrupt):
        build_index(made.corpus, made.model, tmp_path / "i", options)
    most[0] = math.inf
    index = build_index(made.corpus, made.model, tmp_path / "i", options)
    assert len(batches) == needed >= 19, "batches were read twice"
    assert index.state.segments == complete.state.segments  # the same bytes


def test_corpus_and_model_may_move(made, tmp_path):
    shutil.copytree(made.corpus.folder, tmp_path / "corpus")
    model = Path(shutil.copytree(made.model, tmp_path / "model"))
    build_index(Corpus.open(tmp_path / "corpus"), model, tmp_path / "i", CPU)
    shutil.rmtree(tmp_path / "corpus")
    model.rename(tmp_path / "moved")
    index = Index.open(tmp_path / "i")
    assert search_paper(index, "p:7", count=1, aspect="method")[0].id == "p:8"
    with pytest.raises(UserError, match="no longer at .*model; say with --model"):
        open_query_encoder(index)
    assert open_query_encoder(index, tmp_path / "moved", device="cpu").encode("a paper").shape == (32,)


def test_another_model_is_refused(made, save_bert, tmp_path):
    other = save_bert(tmp_path / "other", seed=3)
    with pytest.raises(UserError, match="was made by model@.*and other is revision .* cannot be compared"):
        open_query_encoder(made.index, other, device="cpu")
    save_heads(other, made.index.heads)
    with pytest.raises(UserError, match="holds corpus, which index must not replace"):
        build_index(made.corpus, other, made.corpus.folder, CPU)


def test_damaged_and_foreign_folders(as_large, made, copy):
    with pytest.raises(ArtifactError, match="holds corpus, not index"):
        Index.open(made.corpus.folder)
    for damage, said in DAMAGES:
        folder = Path(shutil.copytree(copy, copy.with_name("damaged")))
        (segment,) = folder.glob("segments/*")
        damage(folder, segment)
        with pytest.raises(ArtifactError, match=said):
            index = Index.open(folder)
            index.citing(index.key_of(index.row("p:7")))
        shutil.rmtree(folder)


def _state(**changes: object) -> Callable[[Path, Path], None]:
    def damage(folder: Path, segment: Path) -> None:
        told = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps(seal_payload({**unseal_payload(told), **changes})))

    return damage


def _entry(**changes: object) -> Callable[[Path, Path], None]:
    def damage(folder: Path, segment: Path) -> None:
        told = json.loads((folder / "state.json").read_text())
        told["segments"][0] |= changes
        del told["seal"]
        (folder / "state.json").write_text(json.dumps(seal_payload(told)))

    return damage


def _longer(name: str) -> Callable[[Path, Path], None]:
    def damage(folder: Path, segment: Path) -> None:
        with (segment / name).open("ab") as file:
            file.write(b"x")

    return damage


def _numbers(name: str, value: int) -> Callable[[Path, Path], None]:
    """Another content of the same size."""

    def damage(folder: Path, segment: Path) -> None:
        array = np.load(segment / name)
        np.save(segment / name, np.full_like(array, value))

    return damage


def _version_1(folder: Path, segment: Path) -> None:
    (folder / "state.json").unlink()
    (folder / "manifest.json").write_text('{"kind": "index", "version": 1}')


DAMAGES = [
    (_longer("spaces/0.npy"), "another size"),
    (_longer("matrix.npy"), "another size"),
    (_numbers("ids/row.npy", 99), "columns do not fit"),
    (_numbers("sentences/paper.npy", 19), "sentences is damaged"),
    (_numbers("references/row.npy", 77), "columns do not fit"),
    (lambda folder, segment: shutil.rmtree(segment), "does not exist"),
    (lambda folder, segment: (segment / "manifest.json").unlink(), "is not an artifact"),
    (lambda folder, segment: (folder / "state.json").write_text("{"), "is not JSON; build the index again"),
    (lambda folder, segment: (folder / "state.json").write_text("[1]"), "is not the state of an index"),
    (_state(version=3), "format version 3; this citeweave reads version 2"),
    (_state(number="2"), "does not describe an index"),
    (_state(facts={}), "does not describe an index"),
    (_state(segments=[{"name": "../corpus", "hash": "", "papers": 1}]), "does not describe an index"),
    (_entry(name="000001-00000000/.."), "does not describe an index"),
    (_entry(hash="0" * 64), "is another segment than"),
    (_entry(deleted=1, deleted_in=7), "is missing"),
    (_version_1, "format version 1.*build it again"),
]


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("name", ["matrix.npy", "papers/title.utf8", "manifest.json"])
def test_a_damaged_segment_is_an_error_of_the_index_and_its_cure_works(made, copy, name, verify, request):
    (segment,) = (copy / "segments").iterdir()
    data = bytearray((segment / name).read_bytes())
    data[len(data) // 2] ^= 1
    (segment / name).write_bytes(data)
    if verify:  # as in a large index, where a changed byte is not seen at opening
        request.getfixturevalue("as_large")
    cure = f"; build the index again: `citeweave index CORPUS -o {copy} --overwrite`"
    with pytest.raises(ArtifactError) as error:
        describe_folder(copy, verify=True) if verify else Index.open(copy)
    assert str(error.value).endswith(cure) and name in str(error.value)
    options = IndexOptions(contexts=10, device="cpu")
    index_corpus(made.corpus, made.model, copy, options, overwrite=True)
    assert describe_folder(copy, verify=True)["papers"] == len(made.index)


@pytest.mark.parametrize("state", ["{", "[1]", '{"format": "citeweave-index", "version": 3}'])
def test_a_state_that_cannot_be_read_is_overwritten_where_the_folder_is_surely_an_index(made, copy, state, tmp_path):
    options = IndexOptions(contexts=10, device="cpu")
    (copy / "state.json").write_text(state)
    with pytest.raises(ArtifactError):
        build_index(made.corpus, made.model, copy, options)
    (segment,) = (copy / "segments").iterdir()
    (segment / "matrix.npy").write_bytes(b"damaged as well")
    index = build_index(made.corpus, made.model, copy, options, overwrite=True)
    assert len(index) == len(made.index) and index.with_vector.all()
    foreign = tmp_path / "my project"
    (foreign / "segments" / "1").mkdir(parents=True)
    (foreign / "state.json").write_text(state)
    (foreign / "segments" / "1" / "thesis.txt").write_text("precious")
    (foreign / "notes.txt").write_text("precious")
    with pytest.raises(UserError, match="remove it yourself, or choose another -o"):
        build_index(made.corpus, made.model, foreign, options, overwrite=True)
    assert (foreign / "segments" / "1" / "thesis.txt").read_text() == "precious"


def test_words_that_another_model_fills_are_searched_by_that_one(made, tmp_path, save_bert):
    other = save_bert(tmp_path / "other", seed=3)
    build_index(made.corpus, made.model, tmp_path / "i", IndexOptions(vectors=False, device="cpu"))
    index = index_corpus(made.corpus, other, tmp_path / "i", CPU).index
    assert index.model == str(other) and index.with_vector.all()
    assert open_query_encoder(index, device="cpu").encoder.name == other.name
    with pytest.raises(UserError, match="cannot be compared"):
        index_corpus(made.corpus, made.model, tmp_path / "i", CPU)
    with pytest.raises(UserError, match="cannot be compared"):
        open_query_encoder(index, made.model, device="cpu")


def test_a_segment_of_another_model_is_refused(made, copy, save_bert, tmp_path):
    other = build_index(made.corpus, save_bert(tmp_path / "other", seed=3), tmp_path / "i", CPU)
    (segment,) = (tmp_path / "i" / "segments").iterdir()
    shutil.copytree(segment, copy / "segments" / segment.name)
    told = json.loads((copy / "state.json").read_text())
    told["segments"].append(asdict(other.state.segments[0]))
    del told["seal"]
    (copy / "state.json").write_text(json.dumps(seal_payload(told)))
    with pytest.raises(ArtifactError, match="does not fit|cannot be compared"):
        Index.open(copy)


def test_a_corpus_of_one_paper_without_sentences(made, tmp_path):
    (tmp_path / "papers.jsonl").write_text('{"id": "a", "title": "A paper", "year": 2000}\n')
    import_papers([tmp_path / "papers.jsonl"], tmp_path / "corpus")
    corpus = Corpus.open(tmp_path / "corpus")
    index = build_index(corpus, made.model, tmp_path / "one", CPU)
    assert len(index) == 1 and not index.segments[0].cited_as.any()
    assert search_paper(index, "a") == search_paper(index, "a", aspect="all") == []
    with pytest.raises(UserError, match="--contexts needs citing sentences, and .* has none"):
        build_index(corpus, made.model, tmp_path / "i", IndexOptions(contexts=3, device="cpu"))
    with pytest.raises(UserError, match="--dtype is 'int4'"):
        IndexOptions(dtype="int4")
    with pytest.raises(UserError, match="--max-contexts is -1"):
        IndexOptions(contexts=-1)


def test_an_index_is_verified(copy):
    delete_papers(copy, ["p:3"])
    told = describe_folder(copy, verify=True)
    assert (told["kind"], told["papers"], told["verified"]) == ("index", 18, "every file is as it was written")
    for name in ("segments/*/matrix.npy", "deleted/*.npy", "heads/*/aspects/model.safetensors", "state.json"):
        (path,) = copy.glob(name)
        data = path.read_bytes()
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
        with pytest.raises(ArtifactError, match="damaged|does not fit"):
            describe_folder(copy, verify=True)
        path.write_bytes(data)
