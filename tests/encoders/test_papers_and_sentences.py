"""One pass of the network gives the vectors of papers and of their sentences that two passes give."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import ImportOptions, import_papers
from citeweave.corpus.text import paper_text
from citeweave.encoders.embed import EmbeddingOptions, embed_papers, embed_papers_and_sentences, embed_sentences
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.int8_tiles import has_instruction
from citeweave.encoders.runtimes import Runtime
from citeweave.encoders.sentence_encoder import (
    encode_papers_and_sentences,
    encode_sentences,
    reads_together,
    tokenize_papers,
)

from .conftest import watched
from .test_embedding import Recorder

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
needs_instruction = pytest.mark.skipif(not has_instruction(), reason="no dot-product instruction (asimddp)")

PAPERS = {
    "whole": ("The cell grows", ["We find how models learn.", "A paper shows that the cell grows.", "Data."]),
    "no title": ("", ["data in graphs", "of citations ."]),
    "title cut": ("how models learn " * 20, ["cut away", "too"]),
    "no abstract": ("Graphs of data", []),
    "empty": ("", []),
    "sentences cut": ("data", ["models " * 30, "learn " * 30, "lost"]),
    "separator in a sentence": ("data", ["A paper [SEP] shows", "graphs."]),
    "no token in a title": (" ", ["the cell", "grows"]),
}
TITLES = [title for title, _ in PAPERS.values()]
TEXTS = [paper_text(title, " ".join(sentences)) for title, sentences in PAPERS.values()]
SENTENCES = [sentences or [text for text in [title] if text] for title, sentences in PAPERS.values()]
READ_TWICE = {"no abstract", "separator in a sentence"}


def together(encoder: TorchEncoder, texts=TEXTS, titles=TITLES, sentences=SENTENCES):
    return encode_papers_and_sentences(encoder, tokenize_papers(encoder.reader, texts, titles, sentences))


def assert_as_in_two_passes(encoder: TorchEncoder, texts=TEXTS, titles=TITLES, sentences=SENTENCES) -> None:
    both = together(encoder, texts, titles, sentences)
    papers, apart = encoder.encode(texts), encode_sentences(encoder, titles, sentences)
    np.testing.assert_allclose(both.vectors, papers, atol=1e-5)
    np.testing.assert_allclose(both.sentences.matrix, apart.matrix, atol=1e-5)
    assert both.sentences.offsets.tolist() == apart.offsets.tolist()
    assert both.sentences.numbers.tolist() == apart.numbers.tolist() and both.sentences.lost == apart.lost
    for found, expected in ((both.vectors, papers), (both.sentences.matrix, apart.matrix)):
        filled = expected.any(axis=1)
        assert filled.any() and not found[~filled].any()
        lengths = np.linalg.norm(found[filled], axis=1) * np.linalg.norm(expected[filled], axis=1)
        assert ((found * expected)[filled].sum(axis=1) / lengths).min() >= 0.99999


@pytest.mark.parametrize("runtime", ["torch", "packed", pytest.param("int8", marks=needs_instruction)])
@pytest.mark.parametrize("options", [{"pooling": "cls"}, {"pooling": "mean", "normalize": True}], ids=["cls", "mean"])
@pytest.mark.parametrize("budget", [1, 100, 10_000])
def test_vectors_are_those_of_two_passes(bert, runtime, options, budget):
    chosen = Runtime("torch", packed=True) if runtime == "packed" else runtime
    assert_as_in_two_passes(load_encoder(bert, device="cpu", runtime=chosen, batch_tokens=budget, **options))


@pytest.mark.parametrize("runtime", ["torch", pytest.param("int8", marks=needs_instruction)])
def test_vectors_of_a_real_model_are_those_of_two_passes(runtime):
    abstract = ["Poor countries have few rain gauges.", "We train a graph neural network.", "It is right within 10%."]
    titles = ["Rain seen by telephone masts", "Kriging of satellite images", ""]
    sentences = [abstract, titles[1:2], [*abstract * 40]]
    texts = [paper_text(titles[0], " ".join(abstract)), titles[1], " ".join(abstract * 40)]
    assert_as_in_two_passes(load_encoder("minilm", device="cpu", runtime=runtime), texts, titles, sentences)


@pytest.mark.parametrize("prompt", ["", "find a paper : "])
def test_readings_that_a_prompt_changes(bert, prompt):
    encoder = load_encoder(bert, device="cpu", pooling="mean")
    assert_as_in_two_passes(dataclasses.replace(encoder, reader=dataclasses.replace(encoder.reader, prompt=prompt)))


def test_a_tokenizer_without_a_separator(save_bert, tmp_path):
    assert_as_in_two_passes(load_encoder(save_bert(tmp_path / "model", sep=None), device="cpu"))


def test_the_network_reads_a_paper_once(bert):
    encoder = watched(load_encoder(bert, device="cpu", pooling="mean", batch_tokens=60))
    together(encoder)
    read = list(encoder.network.texts)
    once = [text for text in encoder.reader.read(TEXTS) if len(text)]
    assert len(once) == len(PAPERS) - 1 and len(read) == len(once) + len(READ_TWICE)
    assert all(text.tolist() in read for text in once)
    for passes in (lambda: encoder.encode(TEXTS), lambda: encode_sentences(encoder, TITLES, SENTENCES)):
        encoder.network.texts.clear()
        passes()
        assert len(encoder.network.texts) >= len(once) - 1  # the one with a long title has no sentence left


def test_progress_counts_every_paper_once(bert):
    recorder, encoder = Recorder(), load_encoder(bert, device="cpu")
    encode_papers_and_sentences(encoder, tokenize_papers(encoder.reader, TEXTS, TITLES, SENTENCES), reporter=recorder)
    assert recorder.totals == [len(PAPERS)] and recorder.done == len(PAPERS)


def test_nothing_to_read(bert):
    encoder = load_encoder(bert, device="cpu")
    for count in (0, 2):
        both = together(encoder, [""] * count, [""] * count, [[]] * count)
        assert both.vectors.shape == (count, 32) and not both.vectors.any()
        assert both.sentences.matrix.shape == (0, 32) and both.sentences.offsets.tolist() == [0] * (count + 1)


def test_poolings_that_need_a_pass_of_their_own(bert):
    poolings = {
        name: reads_together(load_encoder(bert, device="cpu", pooling=name)) for name in ("cls", "mean", "layers")
    }
    assert poolings == {"cls": True, "mean": True, "layers": False}


# --- a corpus, shard by shard -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """30 papers: every third one has a title alone, some are longer than the model reads, three have no text."""
    place = tmp_path_factory.mktemp("both")
    papers = [
        {
            "id": f"p{n}",
            "title": "how models learn",
            "abstract": f"We find {'data ' * n}. They learn {'graphs ' * (n % 5)}." if n % 3 else "",
            "references": [f"outside{n}"] if n % 10 == 3 else [],
        }
        for n in range(27)
    ]
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
    import_papers([place / "papers.jsonl"], place / "corpus", ImportOptions(outside="keep"))
    return Corpus.open(place / "corpus")


def files(work: Path) -> dict[str, bytes]:
    return {
        f"{kind}/{name}": (work / kind / f"{name}.npy").read_bytes()
        for kind, names in (("vectors", ["matrix"]), ("sentences", ["matrix", "offsets", "numbers"]))
        for name in names
    }


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_folders_are_those_of_two_passes(bert, corpus, tmp_path, dtype):
    encoder, options = load_encoder(bert, device="cpu"), EmbeddingOptions(shard=8, dtype=dtype)
    both = embed_papers_and_sentences(corpus, encoder, tmp_path / "work", options)
    papers = embed_papers(corpus, encoder, tmp_path / "vectors", options)
    apart = embed_sentences(corpus, encoder, tmp_path / "sentences", options)
    assert both.vectors is not None and both.sentences is not None
    assert list(both.vectors.ids) == list(papers.ids) and list(both.sentences.ids) == list(apart.ids)
    assert both.vectors.provenance == papers.provenance and both.sentences.provenance == apart.provenance
    assert both.vectors.manifest.facts["records"] == papers.manifest.facts["records"]
    least = 1e-5 if dtype == "float32" else 2e-3
    np.testing.assert_allclose(both.vectors.matrix, papers.matrix, atol=least)
    np.testing.assert_allclose(both.sentences.matrix, apart.matrix, atol=least)
    assert both.sentences.offsets.tolist() == apart.offsets.tolist()
    assert both.sentences.numbers.tolist() == apart.numbers.tolist()


def test_an_interrupted_run_resumes_with_both(bert, corpus, tmp_path, monkeypatch):
    options, plain = EmbeddingOptions(shard=8), load_encoder(bert, device="cpu", batch_tokens=100)
    complete, recorder = watched(plain), Recorder()
    embed_papers_and_sentences(corpus, complete, tmp_path / "complete", options)
    every = len(complete.network.texts)
    with pytest.raises(KeyboardInterrupt):
        embed_papers_and_sentences(corpus, watched(plain, dies_after=every // 2), tmp_path / "work", options)
    rest = watched(plain)
    with monkeypatch.context() as patch:  # dies again, between the folder of papers and that of sentences
        patch.setattr(
            "citeweave.encoders.embed.write_ragged_vectors",
            lambda *_: (_ for _ in ()).throw(KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            embed_papers_and_sentences(corpus, rest, tmp_path / "work", options)
    assert 0 < len(rest.network.texts) < every
    last = watched(plain, dies_after=0)
    embed_papers_and_sentences(corpus, last, tmp_path / "work", options, reporter=recorder)
    assert recorder.totals == [30] and recorder.done == 30
    assert files(tmp_path / "work") == files(tmp_path / "complete")


def test_shards_of_another_model_are_not_taken(bert, save_bert, corpus, tmp_path):
    for name, model in (("one", bert), ("other", save_bert(tmp_path / "other", seed=3))):
        encoder = load_encoder(model, device="cpu")
        embed_papers_and_sentences(corpus, encoder, tmp_path / "work")
        embed_papers_and_sentences(corpus, encoder, tmp_path / name)
        assert files(tmp_path / "work") == files(tmp_path / name)


def test_a_corpus_without_text_has_neither(bert, tmp_path):
    (tmp_path / "citations.tsv").write_text("a:1\ta:2\n")
    import_papers([tmp_path / "citations.tsv"], tmp_path / "corpus", ImportOptions(outside="keep"))
    encoder = load_encoder(bert, device="cpu")
    both = embed_papers_and_sentences(Corpus.open(tmp_path / "corpus"), encoder, tmp_path / "work")
    assert both.vectors is None and both.sentences is None
