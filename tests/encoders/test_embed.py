"""Papers become a folder of vectors, nothing is computed twice, and nothing is lost where a run stops."""

import gzip
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import EmptyResultError, InputError, ShardError, UserError
from citeweave.core.executor import LocalExecutor
from citeweave.core.publish import work_folder
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.options import ImportOptions
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.embed import (
    EmbeddingOptions,
    device_names,
    embed_compressed,
    embed_papers,
    embed_papers_and_sentences,
    embed_sentences,
    embed_texts,
    make_shard_worker,
)
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.paper_texts import FullText, PaperTexts, split_chunks
from citeweave.encoders.sentence_encoder import encode_sentences
from citeweave.encoders.shards import NO_TEXT, EncoderSpec, RemoteShards
from citeweave.encoders.tokens import TokenStore
from citeweave.vectors.compressed import CompressedVectors
from citeweave.vectors.vectors import Vectors

from ..conftest import Told, content
from .conftest import LetterCounts, Recorder, embed, refused, watched


def test_vectors_are_written_with_their_origin(tmp_path, monkeypatch):
    monkeypatch.setattr("citeweave.encoders.embed.READ", 2)
    monkeypatch.setattr("citeweave.encoders.embed._BLOCK", 2)
    recorder = Recorder()
    ids, texts = ["p1", "p2", "p3", "p4", "p5"], ["ab", "", "cc", "xyz", "abc"]
    embed_texts(LetterCounts(), ids, texts, tmp_path / "v", text_recipe="t", reporter=recorder)
    vectors = Vectors.open(tmp_path / "v")
    assert list(vectors.ids) == ["p1", "p3", "p5"]
    assert vectors.matrix.tolist() == [[1, 1, 0], [0, 0, 2], [1, 1, 1]]
    origin = vectors.provenance
    assert (origin.model, origin.revision, origin.text_recipe, origin.dtype) == ("letters", "1", "t", "float32")
    assert vectors.manifest.facts["records"]["vectors"] == {"read": 5, "kept": 3, "rejected": {NO_TEXT: 2}}
    assert recorder.totals == [5] and recorder.done == 5


def test_what_already_exists_is_not_made_again(tmp_path):
    encoder, ids, texts = LetterCounts(), ["p1", "p2"], ["ab", "c"]
    embed_texts(encoder, ids, texts, tmp_path / "v", text_recipe="t")
    again = embed_texts(encoder, ids, texts, tmp_path / "v", text_recipe="t")
    assert encoder.read == 2 and list(again.ids) == ids
    same = {"ids": ids, "texts": texts, "folder": tmp_path / "v", "text_recipe": "t"}
    for change in ({"texts": ["ab", "cc"]}, {"ids": ["p1", "p3"]}, {"text_recipe": "u"}, {"dtype": "float16"}):
        refused("made from other inputs", embed_texts, encoder, **same | change)
    replaced = embed_texts(encoder, ids, ["ab", "cc"], tmp_path / "v", text_recipe="t", overwrite=True)
    assert replaced.take(["p2"]).tolist() == [[0, 0, 2]]


def test_bad_input(tmp_path):
    refused("2 ids for 1 texts", embed_texts, LetterCounts(), ["a", "b"], ["a"], tmp_path / "v", text_recipe="")
    with pytest.raises(EmptyResultError, match="2: no text"):
        embed_texts(LetterCounts(), ["a", "b"], ["", "\ud800"], tmp_path / "v", text_recipe="")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="--dtype is 'float8'"):
        embed_texts(LetterCounts(), ["a"], ["a"], tmp_path / "v", text_recipe="", dtype="float8")


def same(one: Vectors, other: Vectors) -> bool:
    return one.manifest.hash == other.manifest.hash and one.manifest.facts == other.manifest.facts


def test_a_corpus_becomes_vectors_of_its_texts(encoder, corpus, tmp_path):
    recorder, texts = Recorder(), PaperTexts(corpus, TextRecipe())
    made = embed_papers(corpus, encoder, tmp_path / "v", EmbeddingOptions(shard=7), reporter=recorder)
    full = [row for row, text in enumerate(texts) if text]
    assert list(made.ids) == [corpus.ids[row] for row in full] and len(full) == 54
    np.testing.assert_allclose(made.matrix, encoder.encode([texts[row] for row in full]), atol=1e-5)
    assert made.manifest.facts["records"]["vectors"] == {"read": 60, "kept": 54, "rejected": {NO_TEXT: 6}}
    assert made.provenance.text_recipe == TextRecipe().hash and made.provenance.source == "corpus"
    assert recorder.totals == [60] and recorder.done == 60
    again = embed_papers(corpus, encoder, tmp_path / "v", EmbeddingOptions(shard=9))
    assert again.manifest.made == made.manifest.made
    with pytest.raises(UserError, match="made from other inputs"):
        embed_papers(corpus, encoder, tmp_path / "v", EmbeddingOptions(text=TextRecipe(("title",))))
    half = embed_papers(corpus, encoder, tmp_path / "half", EmbeddingOptions(dtype="float16", shard=7))
    np.testing.assert_array_equal(half.matrix, made.matrix.astype("float16"))


def test_texts_are_read_by_row_and_by_slice(corpus):
    texts = PaperTexts(corpus, TextRecipe(("abstract", "title")))
    assert texts[4] == f"{corpus.abstracts[4]}[SEP]{corpus.titles[4]}" and list(texts)[-1] == texts[-1] == texts[59]
    assert texts[3:6] == [texts[3], texts[4], texts[5]] == texts.take(np.array([5, 4, 3]))[::-1]
    with pytest.raises(IndexError):
        texts[60]


def test_tokens_are_made_once_and_give_the_same_bytes(bert, encoder, corpus, tmp_path):
    plain = embed_papers(corpus, encoder, tmp_path / "plain", EmbeddingOptions(shard=16))
    options = EmbeddingOptions(shard=16, tokens=tmp_path / "t")
    assert same(embed_papers(corpus, encoder, tmp_path / "v", options), plain)
    store = TokenStore.open(tmp_path / "t")
    assert len(store) == len(corpus) and store.manifest.facts["empty"] == 6
    embed_papers(corpus, load_encoder(bert, device="cpu", pooling="mean"), tmp_path / "mean", options)
    assert TokenStore.open(tmp_path / "t").manifest.made == store.manifest.made
    refused("reads texts, not tokens", embed_papers, corpus, LetterCounts(), tmp_path / "letters", options)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_interrupted_run_resumes_with_the_next_shard(bert, encoder, corpus, tmp_path, dtype):
    options = EmbeddingOptions(shard=8, dtype=dtype)
    complete = embed_papers(corpus, encoder, tmp_path / "complete", options)
    with pytest.raises(KeyboardInterrupt):
        embed_papers(corpus, watched(encoder, 30), tmp_path / "v", options)
    assert work_folder(tmp_path / "v").exists() and not (tmp_path / "v").exists()
    other = watched(load_encoder(bert, device="cpu", pooling="mean"), 8)
    with pytest.raises(KeyboardInterrupt):  # another model begins anew and leaves alone what is there
        embed_papers(corpus, other, tmp_path / "v", options)
    rest, recorder = watched(encoder), Recorder()
    assert same(embed_papers(corpus, rest, tmp_path / "v", options, reporter=recorder), complete)
    assert len(rest.network.texts) == 54 - 24 and recorder.done == 60
    assert not work_folder(tmp_path / "v").exists()


@pytest.mark.parametrize("kind", ["papers", "sentences", "both", "full"])
@pytest.mark.parametrize(("save_every", "error"), [(0.0, RuntimeError), (1e9, KeyboardInterrupt)])
def test_a_run_resumes_in_the_middle_of_a_shard(bert, corpus, full_texts, tmp_path, kind, save_every, error):
    """By the batches that were saved at once, or when Ctrl-C came; one shard holds all papers."""
    plain = load_encoder(bert, device="cpu", pooling="mean", batch_tokens=64)
    options, recorder = EmbeddingOptions(save_every=save_every), Recorder()
    complete, second = watched(plain), watched(plain)
    expected = embed(kind, corpus, complete, tmp_path / "complete", options)
    with pytest.raises(error):
        embed(kind, corpus, watched(plain, dies_at=9, error=error), tmp_path / "broken", options)
    if save_every == 0 and kind == "papers":  # saved batches are beside the shards
        kept = sorted(path.name for path in work_folder(tmp_path / "broken").rglob("*.npz"))
        assert kept == [f"00000000.part-0-{number}.npz" for number in range(8)]
    resumed = embed(kind, corpus, second, tmp_path / "broken", options, reporter=recorder)
    assert len(complete.network.batches) > 12
    assert len(second.network.batches) == len(complete.network.batches) - 8
    assert [made.manifest.hash for made in resumed] == [made.manifest.hash for made in expected]
    assert recorder.done == len(corpus) and not list((tmp_path / "broken").rglob("*.part-*"))


def test_an_encoder_of_texts_resumes_too(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("citeweave.encoders.embed._TEXTS", 10)
    expected, second = embed_papers(corpus, LetterCounts(), tmp_path / "complete"), LetterCounts()
    options = EmbeddingOptions(save_every=0.0)
    with pytest.raises(KeyboardInterrupt):
        embed_papers(corpus, LetterCounts(dies_at=30), tmp_path / "v", options)
    made = embed_papers(corpus, second, tmp_path / "v", options)
    assert second.read == len(corpus) - 30 and made.manifest.hash == expected.manifest.hash


def test_two_devices_give_the_bytes_of_one(bert, encoder, corpus, tmp_path):
    first, second = (watched(load_encoder(bert, device=name)) for name in device_names("cpu,cpu"))
    options, recorder = EmbeddingOptions(shard=5), Recorder()
    complete = embed_papers(corpus, encoder, tmp_path / "complete", options)
    made = embed_papers(corpus, [first, second], tmp_path / "v", options, reporter=recorder)
    assert same(made, complete) and recorder.done == 60
    assert len(first.network.texts) + len(second.network.texts) == 54
    for names in (" ", "cpu,"):
        refused("--device", device_names, names)
    with pytest.raises(UserError, match="encoders of several models"):
        embed_papers(corpus, [first, load_encoder(bert, device="cpu", pooling="mean")], tmp_path / "x")


def test_the_failure_of_one_device_stops_the_other_and_keeps_the_shards(bert, corpus, tmp_path):
    encoder, other = (load_encoder(bert, device="cpu", batch_tokens=16) for _ in range(2))  # stops between two batches
    sound, rest = watched(other), watched(encoder)
    options, before = EmbeddingOptions(shard=5), set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        embed_papers(corpus, [watched(encoder, 0), sound], tmp_path / "v", options)
    assert set(threading.enumerate()) <= before  # those of other tests may have ended
    made = embed_papers(corpus, rest, tmp_path / "v", options)
    assert len(rest.network.texts) + len(sound.network.texts) >= 54
    assert same(made, embed_papers(corpus, encoder, tmp_path / "complete", options))


@pytest.mark.parametrize("kind", ["int8", "truncate:8"])
def test_compressed_vectors_are_those_of_the_complete_ones_after_an_interruption_too(encoder, corpus, tmp_path, kind):
    options = EmbeddingOptions(shard=16)
    full, complete = (embed(name, corpus, encoder, tmp_path / name, options)[0] for name in ("papers", kind))
    assert list(complete.ids) == list(full.ids)
    if kind == "int8":
        assert isinstance(complete, CompressedVectors)
        atol = float(np.abs(full.matrix).max()) / 250
        np.testing.assert_allclose(complete.decoded(slice(None)), full.matrix, atol=atol)
    with pytest.raises(KeyboardInterrupt):
        embed_compressed(corpus, watched(encoder, 40), tmp_path / "s", kind, options)
    rest, none = watched(encoder), watched(encoder, 0)
    made = embed_compressed(corpus, rest, tmp_path / "s", kind, options)
    assert len(rest.network.texts) == 54 - 32 and made.manifest.hash == complete.manifest.hash
    assert made.manifest.facts["records"]["vectors"] == {"read": 60, "kept": 54, "rejected": {NO_TEXT: 6}}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["s", "papers", kind])
    embed_compressed(corpus, none, tmp_path / "s", kind, options)
    refused("made from other inputs", embed_compressed, corpus, none, tmp_path / "s", "truncate:9", options)
    refused("from 1 to 31", embed_compressed, corpus, none, tmp_path / "t", "truncate:32", options)
    with pytest.raises(EmptyResultError):
        embed_compressed(corpus, encoder, tmp_path / "none", kind, EmbeddingOptions(text=TextRecipe(("venue",))))
    assert not work_folder(tmp_path / "none").exists()


def test_sentences_are_those_of_the_abstracts(encoder, corpus, tmp_path):
    made = embed_sentences(corpus, encoder, tmp_path / "s", EmbeddingOptions(shard=7))
    assert len(made) == 54 and made.lengths().max() == 2
    (row,) = made.rows(["p5"])
    assert made.lengths()[row] == 2 and made.numbers[made.offsets[row] :][:2].tolist() == [0, 1]
    first, second, _ = corpus.abstracts[5].split(".")
    expected = encode_sentences(encoder, [corpus.titles[5]], [[f"{first}.", f"{second.strip()}."]])
    np.testing.assert_allclose(made.sentences(int(row)), expected.matrix, atol=1e-5)
    assert made.manifest.facts["records"]["papers"]["rejected"] == {NO_TEXT: 6}
    with pytest.raises(UserError, match="leave out --text"):
        embed_sentences(corpus, encoder, tmp_path / "x", EmbeddingOptions(text=TextRecipe(("title",))))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_papers_and_sentences_of_one_pass_are_those_of_two(encoder, corpus, tmp_path, dtype):
    options, atol = EmbeddingOptions(shard=8, dtype=dtype), 1e-5 if dtype == "float32" else 2e-3
    vectors, sentences = embed("both", corpus, encoder, tmp_path / "work", options)
    papers, apart = (embed(kind, corpus, encoder, tmp_path / kind, options)[0] for kind in ("papers", "sentences"))
    for found, expected in ((vectors, papers), (sentences, apart)):
        assert list(found.ids) == list(expected.ids) and found.provenance == expected.provenance
        np.testing.assert_allclose(found.matrix, expected.matrix, atol=atol)
    assert vectors.manifest.facts["records"] == papers.manifest.facts["records"]
    assert sentences.offsets.tolist() == apart.offsets.tolist() and sentences.numbers.tolist() == apart.numbers.tolist()


def arrays(work: Path) -> dict[str, bytes]:
    return {path.relative_to(work).as_posix(): path.read_bytes() for path in work.glob("*/*.npy")}


def test_an_interrupted_pass_resumes_with_both(bert, corpus, tmp_path, monkeypatch):
    options, plain = EmbeddingOptions(shard=16), load_encoder(bert, device="cpu", batch_tokens=100)
    complete, rest, recorder = watched(plain), watched(plain), Recorder()
    embed_papers_and_sentences(corpus, complete, tmp_path / "complete", options)
    every = len(complete.network.texts)
    with pytest.raises(KeyboardInterrupt):
        embed_papers_and_sentences(corpus, watched(plain, every // 2), tmp_path / "work", options)
    with monkeypatch.context() as patch:  # dies again, between the folder of papers and that of sentences
        dying = (_ for _ in ())
        patch.setattr("citeweave.encoders.embed.write_ragged_vectors", lambda *_: dying.throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            embed_papers_and_sentences(corpus, rest, tmp_path / "work", options)
    assert 0 < len(rest.network.texts) < every
    embed_papers_and_sentences(corpus, watched(plain, 0), tmp_path / "work", options, reporter=recorder)
    assert recorder.totals == [60] and recorder.done == 60
    assert len(arrays(tmp_path / "work")) >= 4 and arrays(tmp_path / "work") == arrays(tmp_path / "complete")


def test_shards_of_another_model_are_not_taken(bert, save_bert, corpus, tmp_path):
    for name, model in (("one", bert), ("other", save_bert(tmp_path / "model", seed=3))):
        encoder = load_encoder(model, device="cpu")
        embed_papers_and_sentences(corpus, encoder, tmp_path / "work")
        embed_papers_and_sentences(corpus, encoder, tmp_path / name)
        assert arrays(tmp_path / "work") == arrays(tmp_path / name) != {}


def test_a_corpus_without_text_has_neither(encoder, tmp_path):
    (tmp_path / "citations.tsv").write_text("a:1\ta:2\n")
    import_papers([tmp_path / "citations.tsv"], tmp_path / "corpus", ImportOptions(outside="keep"))
    both = embed_papers_and_sentences(Corpus.open(tmp_path / "corpus"), encoder, tmp_path / "work")
    assert both.vectors is None and both.sentences is None


def test_full_texts_are_read_in_chunks(bert, corpus, full_texts, tmp_path):
    encoder, options = load_encoder(bert, device="cpu", max_tokens=20), EmbeddingOptions(shard=4)
    full, recorder = FullText.index(full_texts, corpus), Recorder()
    assert full.tally.counts["full texts"].kept == 2
    assert sorted(full.tally.counts["full texts"].rejected) == [
        "id given before", "id that is not in the corpus", "no id or no list of sections", "not valid JSON",
    ]  # fmt: skip
    (several,) = embed("chunks", corpus, encoder, tmp_path / "c", options)
    (one,) = embed("full", corpus, encoder, tmp_path / "v", options, reporter=recorder)
    assert recorder.done == 60
    texts = [PaperTexts(corpus, TextRecipe())[5], *full.sections(5)]
    chunks = split_chunks(encoder.reader, texts)
    assert len(chunks) > 7 and max(map(len, chunks)) == 20
    own = [number for chunk in chunks for number in chunk[1:-1].tolist()]
    assert own == [number for text in encoder.reader.pieces(texts) for number in text]
    vectors, weights = encoder.encode_tokens(chunks), np.array([len(chunk) - 2 for chunk in chunks])[:, None]
    np.testing.assert_allclose(several.sentences(int(several.rows(["p5"])[0])), vectors, atol=1e-5)
    np.testing.assert_allclose(one.take(["p5"])[0], (vectors * weights).sum(axis=0) / weights.sum(), atol=1e-5)
    assert (one.rows(["outside3", "outside13"]) >= 0).tolist() == [True, False]  # the one has nothing but a section
    assert one.provenance.text_recipe == TextRecipe().hash + "+sections"


def test_full_texts_that_cannot_be_read(corpus, tmp_path):
    (tmp_path / "full.jsonl.gz").write_bytes(gzip.compress(b'{"id": "p5", "sections": []}'))
    (tmp_path / "list.json").write_text("[]")
    for name in ("full.jsonl.gz", "list.json"):
        refused("not a plain file of JSON lines", FullText.index, tmp_path / name, corpus, error=InputError)
    refused("cannot be opened", FullText.index, tmp_path / "missing.jsonl", corpus, error=InputError)


# Shards made by an executor: the same bytes, whatever kind of vectors


def remote(bert: Path, executor: Any = None, **settings: Any) -> RemoteShards:
    return RemoteShards(executor or LocalExecutor(), EncoderSpec(str(bert), settings=settings))


@pytest.mark.parametrize("kind", ["papers", "int8", "sentences", "full", "chunks"])
def test_an_executor_gives_the_bytes_of_a_local_run(corpus, full_texts, bert, encoder, tmp_path, kind):
    embed(kind, corpus, encoder, tmp_path / "local", EmbeddingOptions(shard=14))
    options = EmbeddingOptions(shard=14, remote=remote(bert, Told()))
    embed(kind, corpus, encoder, tmp_path / "executor", options)
    assert content(tmp_path / "executor") == content(tmp_path / "local")


def test_options_reach_the_workers(corpus, bert, tmp_path):
    settings = {"pooling": "mean", "max_tokens": 8, "batch_tokens": 40}
    encoder = load_encoder(bert, device="cpu", **settings)
    how = {"text": TextRecipe(("title",)), "dtype": "float16", "shard": 8, "tokens": tmp_path / "tokens"}
    embed_papers(corpus, encoder, tmp_path / "local", EmbeddingOptions(**how))
    embed_papers(corpus, encoder, tmp_path / "executor", EmbeddingOptions(**how, remote=remote(bert, **settings)))
    assert content(tmp_path / "executor") == content(tmp_path / "local")


def test_what_is_made_is_kept_and_only_the_rest_is_requested(corpus, bert, encoder, tmp_path):
    with pytest.raises(ShardError, match=r"3 of 5 shards .*\(0, 1, 2;"):
        failing = EmbeddingOptions(shard=14, remote=remote(bert, Told(failing=(0, 1, 2))))
        embed_papers(corpus, encoder, tmp_path / "v", failing)
    again = Told()
    embed_papers(corpus, encoder, tmp_path / "v", EmbeddingOptions(shard=14, remote=remote(bert, again)))
    assert again.made == [2, 1, 0]
    embed_papers(corpus, encoder, tmp_path / "local", EmbeddingOptions(shard=14))
    assert content(tmp_path / "v") == content(tmp_path / "local")


def test_other_inputs_at_the_worker_are_refused(corpus, full_texts, bert, encoder, tmp_path):
    options = EmbeddingOptions(tokens=tmp_path / "tokens")
    embed_papers(corpus, encoder, tmp_path / "v", options)
    more = {"tokens": None, "full_text": str(full_texts), "several": False}
    for kind, payload in (("papers", options.as_payload()), ("chunks", options.as_payload() | more)):
        arguments = dict(remote(bert).make_task(corpus, encoder, kind, payload).task.arguments)
        make_shard_worker(**arguments)
        for changes, message in (
            ({"corpus": {"folder": str(corpus.folder), "hash": "0"}}, "is another corpus here than at the driver"),
            ({"revision": "0"}, "is another one here than at the driver"),
            (
                {"fingerprints": dict.fromkeys(arguments["fingerprints"], "0")},
                r"differs here .* from the driver's \(0\)",
            ),
        ):
            refused(message, make_shard_worker, **arguments | changes)
