"""A light encoder gives torch's vectors without torch, for the networks it knows and only for files that have not changed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.encoders import light_encoder
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.light_encoder import keep_light_encoder, open_light_encoder
from citeweave.encoders.sentence_encoder import encode_sentences

TEXTS = [
    "we find how models learn",
    "",
    "A paper shows that THE cell grows[SEP]and we learn from data in graphs .",
    "na\u00efve \u2603 \u4e2d\u6587 zz\u0301z \ud800 [SEP] [CLS]",
    "the cell grows and we find citations . " * 50,
    "\x00 \n\t",
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, which keeps copies of small networks too."""
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(light_encoder, "MIN_WEIGHTS", 0)
    return tmp_path / "cache" / "queries"


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("kind", ["Bert", "Roberta", "MPNet"])
def test_vectors_are_those_of_torch(save_bert, tmp_path, kind, pooling):
    folder = save_bert(tmp_path / "model", kind=kind)
    encoder = load_encoder(folder, device="cpu", pooling=pooling, normalize=pooling == "mean")
    light = keep_light_encoder(encoder, folder)
    assert light is not None and light.revision == encoder.revision and light.dimension == encoder.dimension
    expected = encoder.encode(TEXTS)
    np.testing.assert_allclose(light.encode(TEXTS), expected, atol=1e-5)
    assert not expected[1].any() and expected[4].any()
    sentences = encode_sentences(encoder, [""] * len(TEXTS), [[text] for text in TEXTS])
    has_tokens = np.diff(sentences.offsets) > 0
    np.testing.assert_allclose(light.encode_sentences(TEXTS)[has_tokens], sentences.matrix, atol=1e-5)
    again = open_light_encoder(folder, encoder.revision)
    assert again is not None
    np.testing.assert_allclose(again.encode(TEXTS[0]), expected[:1], atol=1e-5)


def test_other_networks_and_poolings_have_none(save_bert, bert, tmp_path, cache, monkeypatch):
    folder = save_bert(tmp_path / "electra", kind="Electra")
    assert keep_light_encoder(load_encoder(folder, device="cpu"), folder) is None
    assert keep_light_encoder(load_encoder(bert, device="cpu", pooling="layers"), bert) is None
    monkeypatch.setattr(light_encoder, "MIN_WEIGHTS", 10**9)
    assert keep_light_encoder(load_encoder(bert, device="cpu"), bert) is None
    assert not cache.exists()


def test_a_copy_that_differs_from_torch_is_not_kept(bert, cache, monkeypatch):
    encoder = load_encoder(bert, device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(light_encoder, "_gelu", lambda states: -states)
        assert keep_light_encoder(encoder, bert) is None
    assert not list(cache.iterdir())
    assert keep_light_encoder(encoder, bert) is not None


def test_changed_files_are_noticed(save_bert, tmp_path, cache):
    folder = save_bert(tmp_path / "model")
    encoder = load_encoder(folder, device="cpu")
    assert open_light_encoder(folder, encoder.revision) is None
    assert keep_light_encoder(encoder, folder) is not None
    assert open_light_encoder(folder, "0" * 12) is None
    (copy,) = cache.iterdir()
    layers = copy / "layers.npy"
    content = layers.read_bytes()
    layers.write_bytes(content[:-4])
    assert open_light_encoder(folder, encoder.revision) is None
    layers.write_bytes(content)
    assert open_light_encoder(folder, encoder.revision) is not None
    save_bert(folder, seed=1)
    assert open_light_encoder(folder, encoder.revision) is None


def test_the_newest_copies_stay(save_bert, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(light_encoder, "KEPT", 2)
    folders = [save_bert(tmp_path / f"model-{seed}", seed=seed) for seed in range(3)]
    (cache / "notes").mkdir(parents=True)
    encoders = [load_encoder(folder, device="cpu") for folder in folders]
    for encoder, folder in zip(encoders, folders, strict=True):
        assert keep_light_encoder(encoder, folder) is not None
    kept = [open_light_encoder(folder, each.revision) for each, folder in zip(encoders, folders, strict=True)]
    assert [each is not None for each in kept] == [False, True, True]
    assert (cache / "notes").is_dir()


def test_without_a_writable_cache_there_is_no_copy(bert, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "file"))
    assert keep_light_encoder(load_encoder(bert, device="cpu"), bert) is None


QUESTION = """
import json, sys
from citeweave.encoders import light_encoder
from citeweave.cli import main
light_encoder.MIN_WEIGHTS = 0
try:
    main(["search", sys.argv[1], "how models learn from data", "--json"])
except SystemExit as end:
    assert not end.code, end.code
heavy = ("torch", "transformers", "openvino", "sentence_transformers", "numba", "scipy", "sklearn", "pyarrow")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""


def test_a_second_question_loads_nothing_heavy(save_bert, tmp_path):
    from citeweave.corpus.ingest import import_papers
    from citeweave.search.build import build_index
    from citeweave.search.options import IndexOptions

    texts = ["a paper shows how models learn", "the cell grows", "we find citations in graphs of data"]
    records = [{"id": f"p:{at}", "title": text, "abstract": f"We learn that {text}."} for at, text in enumerate(texts)]
    (tmp_path / "papers.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    corpus = import_papers([tmp_path / "papers.jsonl"], tmp_path / "corpus").corpus
    build_index(corpus, save_bert(tmp_path / "model"), tmp_path / "index", IndexOptions(device="cpu"))
    answers, loaded = zip(*(ask(tmp_path / "index") for _ in range(2)), strict=True)
    assert "torch" in loaded[0] and loaded[1] == []
    assert answers[0]["by"] == "hybrid" and answers[0]["hits"] == answers[1]["hits"]


def ask(index: Path):
    """The answer of a search in a new process, and the heavy modules that it loaded."""
    done = subprocess.run([sys.executable, "-c", QUESTION, str(index)], capture_output=True, text=True, check=True)
    *lines, loaded = done.stdout.splitlines()
    return json.loads("\n".join(lines)), json.loads(loaded)
