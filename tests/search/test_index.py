"""Building and opening an index: what it holds, resuming, and inputs that do not fit."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from citeweave import Corpus, IndexOptions, load_encoder
from citeweave.core.artifact import seal_payload, unseal_payload
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.progress import Advance, Reporter
from citeweave.search import build
from citeweave.search.build import build_index, delete_papers, index_corpus
from citeweave.search.describe import describe_folder
from citeweave.search.index import HAS_NONE, Index
from citeweave.search.nearest import open_query_encoder, search_paper

from ..conftest import refused
from ..encoders.conftest import watched
from .conftest import CPU, SAID, corpus_of

CONTEXTS = IndexOptions(contexts=10, device="cpu")


def test_it_holds_papers_spaces_and_citing_sentences(made, tmp_path):
    index, corpus = made.index, made.corpus
    assert len(index) == len(corpus) == index.size == 19 and index.with_vector.all()
    for row in range(len(index)):
        hit = index.hit(row, 0.5)
        paper = corpus.paper(corpus.row(hit.id))
        assert (hit.id, hit.title, hit.year) == (paper.id, paper.title, paper.year)
    assert index.row("doi:10.1/seven") == index.row("p:7")
    assert index.provenance.dtype == "float16" and index.corpus == corpus.hash
    # citations by bit of the intent: p:7 as a method, p:8 as background, p:5 for its result
    for name, bit in (("p:7", 1), ("p:8", 0), ("p:5", 2)):
        assert index.cited_as[index.row(name)].tolist() == [int(at == bit) for at in range(8)]
    refused(r"paper 'p:77' is not in .*19 papers; did you mean .*'p:7'", index.row, "p:77")
    refused("ids such as 'p:0'", index.row, "\ud800something else")
    # spaces are the projections of the heads
    rows, parts = np.arange(19), []
    for aspect in index.aspects:
        wanted = index.heads.project(index.take(rows), aspect)
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
        parts.append(index.take(rows, aspect))
        np.testing.assert_allclose(parts[-1], wanted, atol=1e-3)
    np.testing.assert_allclose(index.take(rows, "all"), np.hstack(parts), atol=0)

    # citing sentences lead to papers, and their number is bounded
    table = index.citing_sentences
    mentions = {
        (index.id(paper), table.texts[sentence], table.citing[sentence], int(intents))
        for paper, sentence, intents in zip(table.paper, table.sentence, table.intents, strict=True)
    }
    both, last = "the cell grows [CIT] and that shows a paper", "models of citations grow (Chen et al., 2014)."
    expected = {("p:7", SAID, "p:0", 2), ("p:8", SAID, "p:1", 1), ("p:7", both, "p:2", 0), ("p:3", both, "p:2", 0)}
    assert mentions == expected | {("p:5", last, "p:4", 4)}  # p:9 is not in the corpus
    index = build_index(made.corpus, made.model, tmp_path / "i", IndexOptions(contexts=1, device="cpu"))
    table = index.citing_sentences
    pairs = list(zip(table.paper.tolist(), table.intents.tolist(), strict=True))
    assert len(pairs) == len(set(pairs)) == 5


def test_papers_without_text_are_there_without_a_vector(as_large, made, tmp_path):
    corpus = corpus_of(tmp_path / "c", [{"id": "a", "title": "A paper"}, {"id": "b", "title": "!"}])
    index = build_index(corpus, made.model, tmp_path / "i", CPU)
    (path,) = index.folder.glob("generations/*/embedded.npy")
    array = np.load(path)
    array[1] = HAS_NONE
    np.save(path, array)
    index = Index.open(index.folder)
    assert len(index) == 2 and index.with_vector.tolist() == [True, False] and index.row("b") == 1
    refused("'b' has no vector in .* as it has no text", search_paper, index, "b")
    assert search_paper(index, "a") == []


def test_a_second_build_computes_nothing(made, capsys):
    before = (made.index.folder / "state.json").stat().st_mtime_ns
    build_index(made.corpus, made.model, made.index.folder, CONTEXTS, reporter=Reporter())
    assert "already exists" in capsys.readouterr().err
    assert (made.index.folder / "state.json").stat().st_mtime_ns == before and made.index.is_current()
    refused("other inputs or options", build_index, made.corpus, made.model, made.index.folder, CPU)


class Stopping(Reporter):
    """Interrupts the work when a task of this name begins."""

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        if label == "projecting":
            raise KeyboardInterrupt
        yield lambda amount: None


def test_an_interrupted_build_resumes(made, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        build_index(made.corpus, made.model, tmp_path / "i", CPU, reporter=Stopping())
    refused("was interrupted while it was made", Index.open, tmp_path / "i", error=ArtifactError)
    refused(
        "whose building was interrupted; run the same command again", Corpus.open, tmp_path / "i", error=ArtifactError
    )
    (embedded,) = (tmp_path / "i" / "generations").glob(".*.citeweave-*/kept/*/papers/vectors/matrix.npy")
    same = embedded.stat().st_ino
    index = build_index(made.corpus, made.model, tmp_path / "i", CPU)
    (matrix,) = index.folder.glob("generations/*/matrix.npy")
    assert matrix.stat().st_ino == same, "the papers were embedded again"
    complete = build_index(made.corpus, made.model, tmp_path / "complete", CPU)
    assert index.manifest.files == complete.manifest.files


@pytest.mark.parametrize("parts", [{}, {"sentences": True}, {"sentences": True, "shard": 4}])
def test_an_interruption_in_the_middle_of_a_shard_costs_no_batch_that_was_read(made, tmp_path, monkeypatch, parts):
    texts, encoder = [], load_encoder(made.model, device="cpu", batch_tokens=1)  # once, as loading may read a text too

    def built(name, dies_after=10**9):
        monkeypatch.setattr(build, "load_encoder", lambda *_, **__: watched(encoder, dies_after, texts))
        return build_index(made.corpus, made.model, tmp_path / name, IndexOptions(device="cpu", **parts))

    complete, needed = built("complete"), len(texts)
    texts.clear()
    with pytest.raises(KeyboardInterrupt):
        built("i", dies_after=7)
    index = built("i")
    assert len(texts) == needed >= 19, "batches were read twice"
    assert index.manifest.files == complete.manifest.files


def test_corpus_and_model_may_move(made, tmp_path):
    corpus, model = (Path(shutil.copytree(at, tmp_path / at.name)) for at in (made.corpus.folder, made.model))
    build_index(Corpus.open(corpus), model, tmp_path / "i", CPU)
    shutil.rmtree(corpus)
    model.rename(tmp_path / "moved")
    index = Index.open(tmp_path / "i")
    assert search_paper(index, "p:7", count=1, aspect="method")[0].id == "p:8"
    refused("no longer at .*model; say with --model", open_query_encoder, index)
    assert open_query_encoder(index, tmp_path / "moved", device="cpu").encode("a paper").shape == (32,)


def test_another_model_is_refused(made, copy, save_bert, tmp_path):
    other = save_bert(tmp_path / "other", seed=3)
    with pytest.raises(UserError, match="was made by model@.*and other is revision .* cannot be compared"):
        open_query_encoder(made.index, other, device="cpu")
    refused("holds corpus, which index must not replace", build_index, made.corpus, other, made.corpus.folder, CPU)
    # a generation of it is not one of this index
    place = build_index(made.corpus, other, tmp_path / "theirs", CPU).place
    shutil.copytree(place, copy / "generations" / place.name)
    change_state(copy, lambda state: state.update(generation=place.name))
    refused("is another generation than", Index.open, copy, error=ArtifactError)


def test_words_that_another_model_fills_are_searched_by_that_one(made, tmp_path, save_bert):
    other = save_bert(tmp_path / "other", seed=3)
    build_index(made.corpus, made.model, tmp_path / "i", IndexOptions(vectors=False, device="cpu"))
    index = index_corpus(made.corpus, other, tmp_path / "i", CPU).index
    assert index.model == str(other) and index.with_vector.all()
    assert open_query_encoder(index, device="cpu").encoder.name == other.name
    refused("cannot be compared", index_corpus, made.corpus, made.model, tmp_path / "i", CPU)
    refused("cannot be compared", open_query_encoder, index, made.model, device="cpu")


def change_state(folder: Path, change: Callable[[dict], object]) -> None:
    state = unseal_payload(json.loads((folder / "state.json").read_text()))
    change(state)
    (folder / "state.json").write_text(json.dumps(seal_payload(state)))


def set_state(**changes: object) -> Callable[[Path, Path], None]:
    return lambda folder, segment: change_state(folder, lambda state: state.update(changes))


def longer(name: str) -> Callable[[Path, Path], object]:
    return lambda folder, segment: (segment / name).write_bytes((segment / name).read_bytes() + b"x")


def numbers(name: str, value: int) -> Callable[[Path, Path], None]:
    """Another content of the same size."""
    return lambda folder, segment: np.save(segment / name, np.full_like(np.load(segment / name), value))


def version_1(folder: Path, segment: Path) -> None:
    (folder / "state.json").unlink()
    (folder / "manifest.json").write_text('{"kind": "index", "version": 1}')


DAMAGES = [
    (longer("spaces/0.npy"), "another size"),
    (longer("matrix.npy"), "another size"),
    (numbers("ids/row.npy", 99), "columns do not fit"),
    (numbers("sentences/paper.npy", 19), "sentences is damaged"),
    (numbers("references/row.npy", 77), "columns do not fit"),
    (lambda folder, segment: shutil.rmtree(segment), "does not exist"),
    (lambda folder, segment: (segment / "manifest.json").unlink(), "is not an artifact"),
    (lambda folder, segment: (folder / "state.json").write_text("{"), "is not JSON; build the index again"),
    (lambda folder, segment: (folder / "state.json").write_text("[1]"), "is not the state of an index"),
    (set_state(version=2), "format version 2; this citeweave reads version 3"),
    (set_state(number="2"), "does not describe an index"),
    (set_state(generation="../corpus"), "does not describe an index"),
    (set_state(generation="000001-00000000/.."), "does not describe an index"),
    (set_state(generation=7), "does not describe an index"),
    (set_state(hash="0" * 64), "is another generation than"),
    (version_1, "format version 1.*build it again"),
]


def test_damaged_and_foreign_folders_are_refused(as_large, made, copy):
    refused("holds corpus, not index", Index.open, made.corpus.folder, error=ArtifactError)
    for damage, said in DAMAGES:
        folder = Path(shutil.copytree(copy, copy.with_name("damaged")))
        (segment,) = folder.glob("generations/*")
        damage(folder, segment)
        with pytest.raises(ArtifactError, match=said):
            index = Index.open(folder)
            index.citing(index.key_of(index.row("p:7")))
        shutil.rmtree(folder)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("name", ["matrix.npy", "papers/title.utf8", "manifest.json"])
def test_a_damaged_generation_is_an_error_of_the_index_and_its_cure_works(made, copy, name, verify, request):
    (segment,) = (copy / "generations").iterdir()
    data = bytearray((segment / name).read_bytes())
    data[len(data) // 2] ^= 1
    (segment / name).write_bytes(data)
    if verify:  # as in a large index, where a changed byte is not seen at opening
        request.getfixturevalue("as_large")
    cure = f"; build the index again: `citeweave index CORPUS -o {copy} --overwrite`"
    with pytest.raises(ArtifactError) as error:
        describe_folder(copy, verify=True) if verify else Index.open(copy)
    assert str(error.value).endswith(cure) and name in str(error.value)
    index_corpus(made.corpus, made.model, copy, CONTEXTS, overwrite=True)
    assert describe_folder(copy, verify=True)["papers"] == len(made.index)


@pytest.mark.parametrize("state", ["{", "[1]", '{"format": "citeweave-index", "version": 3}'])
def test_a_state_that_cannot_be_read_is_overwritten_where_the_folder_is_surely_an_index(made, copy, state, tmp_path):
    (copy / "state.json").write_text(state)
    with pytest.raises(ArtifactError):
        build_index(made.corpus, made.model, copy, CONTEXTS)
    (segment,) = (copy / "generations").iterdir()
    (segment / "matrix.npy").write_bytes(b"damaged as well")
    index = build_index(made.corpus, made.model, copy, CONTEXTS, overwrite=True)
    assert len(index) == len(made.index) and index.with_vector.all()
    foreign = tmp_path / "my project"
    (foreign / "generations" / "1").mkdir(parents=True)
    texts = {"state.json": state, "generations/1/thesis.txt": "precious", "notes.txt": "precious"}
    for name, text in texts.items():
        (foreign / name).write_text(text)
    with pytest.raises(UserError, match="remove it yourself, or choose another -o"):
        build_index(made.corpus, made.model, foreign, CONTEXTS, overwrite=True)
    assert {name: (foreign / name).read_text() for name in texts} == texts


def test_a_corpus_of_one_paper_without_sentences(made, tmp_path):
    corpus = corpus_of(tmp_path / "c", [{"id": "a", "title": "A paper", "year": 2000}])
    index = build_index(corpus, made.model, tmp_path / "one", CPU)
    assert len(index) == 1 and not index.cited_as.any()
    assert search_paper(index, "a") == search_paper(index, "a", aspect="all") == []
    with pytest.raises(UserError, match="--contexts needs citing sentences, and .* has none"):
        build_index(corpus, made.model, tmp_path / "i", CONTEXTS)
    for options, said in (({"dtype": "int4"}, "dtype is 'int4'"), ({"contexts": -1}, "contexts is -1")):
        refused(said, IndexOptions, **options)


def test_an_index_is_verified(copy):
    delete_papers(copy, ["p:3"])
    facts = describe_folder(copy, verify=True)
    assert (facts["kind"], facts["papers"], facts["verified"]) == ("index", 18, "every file is as it was written")
    for name in ("generations/*/matrix.npy", "generations/*/heads/aspects/model.safetensors", "state.json"):
        (path,) = copy.glob(name)
        data = path.read_bytes()
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
        refused("damaged|does not fit", describe_folder, copy, verify=True, error=ArtifactError)
        path.write_bytes(data)
