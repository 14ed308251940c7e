"""Papers become a folder of vectors, nothing is computed twice, and nothing is lost where a run stops."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import EmptyResultError, InputError, UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import work_folder
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import ImportOptions, import_papers
from citeweave.corpus.text import TextRecipe
from citeweave.encoders import embed
from citeweave.encoders.embed import (
    EmbeddingOptions,
    PaperTexts,
    device_names,
    embed_compressed,
    embed_papers,
    embed_sentences,
    embed_texts,
)
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.full_text import FullText, embed_full_text, split_chunks
from citeweave.encoders.sentence_encoder import encode_sentences
from citeweave.encoders.shards import NO_TEXT
from citeweave.encoders.tokens import TokenStore
from citeweave.vectors.compressed import CompressedVectors
from citeweave.vectors.vectors import Vectors

WORDS = ["the", "cell", "grows", "and", "we", "find", "how", "models", "learn", "from", "data", "in", "citations"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """54 papers, some with a title alone, and 6 of which nothing but the id is known."""
    place, draw = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)

    def text(words: int) -> str:
        return " ".join(draw.choice(WORDS, words))

    papers = [
        {
            "id": f"p{n}",
            "title": text(3),
            "abstract": f"We {text(1 + n % 12)}. They {text(4)}." if n % 3 else "",
            "references": [f"outside{n}"] if n % 10 == 3 else [],
        }
        for n in range(54)
    ]
    (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
    import_papers([place / "papers.jsonl"], place / "corpus", ImportOptions(outside="keep"))
    return Corpus.open(place / "corpus")


class LetterCounts:
    """An encoder of three numbers: how often a, b and c occur."""

    name, revision, dimension = "letters", "1", 3

    def __init__(self) -> None:
        self.read = 0

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> np.ndarray:
        self.read += len(texts)
        return np.array([[text.count(letter) for letter in "abc"] for text in texts], np.float32).reshape(-1, 3)


class Recorder(Reporter):
    """Writes down the progress it is told."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.totals: list[int | None] = []
        self.done = 0

    def task(self, label, total=None, unit=""):
        from contextlib import nullcontext

        self.totals.append(total)
        return nullcontext(self._advance)

    def _advance(self, amount: int) -> None:
        self.done += amount


def test_vectors_are_written_with_their_origin(tmp_path, monkeypatch):
    monkeypatch.setattr(embed, "READ", 2)
    monkeypatch.setattr(embed, "_BLOCK", 2)
    encoder, recorder = LetterCounts(), Recorder()
    ids, texts = ["p1", "p2", "p3", "p4", "p5"], ["ab", "", "cc", "xyz", "abc"]
    embed_texts(encoder, ids, texts, tmp_path / "v", text_recipe="t", reporter=recorder)
    vectors = Vectors.open(tmp_path / "v")
    assert list(vectors.ids) == ["p1", "p3", "p5"]
    assert vectors.matrix.tolist() == [[1, 1, 0], [0, 0, 2], [1, 1, 1]]
    origin = vectors.provenance
    assert (origin.model, origin.revision, origin.text_recipe, origin.dtype) == ("letters", "1", "t", "float32")
    assert vectors.manifest.facts["records"]["vectors"] == {"read": 5, "kept": 3, "rejected": {NO_TEXT: 2}}
    assert recorder.totals == [5] and recorder.done == 5


def test_what_is_there_already_is_not_made_again(tmp_path):
    encoder, ids, texts = LetterCounts(), ["p1", "p2"], ["ab", "c"]
    embed_texts(encoder, ids, texts, tmp_path / "v", text_recipe="t")
    again = embed_texts(encoder, ids, texts, tmp_path / "v", text_recipe="t")
    assert encoder.read == 2 and list(again.ids) == ids
    for ids_, texts_, options in (
        (ids, ["ab", "cc"], {}),
        (["p1", "p3"], texts, {}),
        (ids, texts, {"text_recipe": "u"}),
        (ids, texts, {"dtype": "float16"}),
    ):
        with pytest.raises(UserError, match="made from other inputs"):
            embed_texts(encoder, ids_, texts_, tmp_path / "v", **{"text_recipe": "t", **options})
    replaced = embed_texts(encoder, ids, ["ab", "cc"], tmp_path / "v", text_recipe="t", overwrite=True)
    assert replaced.take(["p2"]).tolist() == [[0, 0, 2]]


def test_bad_input(tmp_path):
    with pytest.raises(UserError, match="2 ids for 1 texts"):
        embed_texts(LetterCounts(), ["a", "b"], ["a"], tmp_path / "v", text_recipe="")
    with pytest.raises(EmptyResultError, match="2: no text"):
        embed_texts(LetterCounts(), ["a", "b"], ["", "\ud800"], tmp_path / "v", text_recipe="")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="--dtype is 'float8'"):
        embed_texts(LetterCounts(), ["a"], ["a"], tmp_path / "v", text_recipe="", dtype="float8")


def test_a_real_encoder_reports_its_progress(bert, tmp_path):
    encoder, recorder = load_encoder(bert, batch_tokens=10), Recorder()
    texts = ["the cell grows", "", "data", "how models learn"]
    vectors = embed_texts(encoder, ["a", "b", "c", "d"], texts, tmp_path / "v", text_recipe="t", reporter=recorder)
    assert list(vectors.ids) == ["a", "c", "d"] and recorder.done == 4
    np.testing.assert_allclose(vectors.matrix, encoder.encode(texts)[[0, 2, 3]], atol=1e-5)
    assert vectors.provenance.revision == encoder.revision


# --- a corpus ----------------------------------------------------------------------------------------


def same(one: Vectors, other: Vectors) -> bool:
    return one.manifest.hash == other.manifest.hash and one.manifest.facts == other.manifest.facts


def test_a_corpus_becomes_vectors_of_its_texts(bert, corpus, tmp_path):
    encoder, recorder = load_encoder(bert, device="cpu"), Recorder()
    options = EmbeddingOptions(shard=7)
    made = embed_papers(corpus, encoder, tmp_path / "v", options, reporter=recorder)
    texts = PaperTexts(corpus, TextRecipe())
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


def test_tokens_are_made_once_and_give_the_same_bytes(bert, corpus, tmp_path):
    encoder = load_encoder(bert, device="cpu")
    plain = embed_papers(corpus, encoder, tmp_path / "plain", EmbeddingOptions(shard=16))
    options = EmbeddingOptions(shard=16, tokens=tmp_path / "t")
    assert same(embed_papers(corpus, encoder, tmp_path / "v", options), plain)
    store = TokenStore.open(tmp_path / "t")
    made = store.manifest.made
    assert len(store) == len(corpus) and store.manifest.facts["empty"] == 6
    embed_papers(corpus, load_encoder(bert, device="cpu", pooling="mean"), tmp_path / "mean", options)
    assert TokenStore.open(tmp_path / "t").manifest.made == made
    with pytest.raises(UserError, match="reads texts, not tokens"):
        embed_papers(corpus, LetterCounts(), tmp_path / "letters", options)


class Counting:
    """An encoder that counts the texts it reads and may break off."""

    def __init__(self, inner, breaks_after: float = float("inf")) -> None:
        self.inner, self.read, self.breaks_after = inner, 0, breaks_after

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def encode_tokens(self, tokens, **options):
        if self.read + len(tokens) > self.breaks_after:
            raise KeyboardInterrupt
        self.read += len(tokens)
        return self.inner.encode_tokens(tokens, **options)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_interrupted_run_goes_on_with_the_next_shard(bert, corpus, tmp_path, dtype):
    inner, options = load_encoder(bert, device="cpu"), EmbeddingOptions(shard=8, dtype=dtype)
    whole = embed_papers(corpus, inner, tmp_path / "whole", options)
    with pytest.raises(KeyboardInterrupt):
        embed_papers(corpus, Counting(inner, 30), tmp_path / "v", options)
    assert work_folder(tmp_path / "v").exists() and not (tmp_path / "v").exists()
    other = Counting(load_encoder(bert, device="cpu", pooling="mean"), 8)
    with pytest.raises(KeyboardInterrupt):  # another model begins anew and leaves alone what is there
        embed_papers(corpus, other, tmp_path / "v", options)
    rest, recorder = Counting(inner), Recorder()
    assert same(embed_papers(corpus, rest, tmp_path / "v", options, reporter=recorder), whole)
    assert rest.read == 60 - 24 and recorder.done == 60
    assert not work_folder(tmp_path / "v").exists()


def test_two_devices_give_the_bytes_of_one(bert, corpus, tmp_path):
    first, second = (Counting(load_encoder(bert, device=name)) for name in device_names("cpu,cpu"))
    options, recorder = EmbeddingOptions(shard=5), Recorder()
    whole = embed_papers(corpus, first.inner, tmp_path / "whole", options)
    made = embed_papers(corpus, [first, second], tmp_path / "v", options, reporter=recorder)
    assert same(made, whole) and first.read + second.read == 60 and recorder.done == 60
    for names in (" ", "cpu,"):
        with pytest.raises(UserError, match="--device"):
            device_names(names)
    with pytest.raises(UserError, match="encoders of several models"):
        embed_papers(corpus, [first, load_encoder(bert, device="cpu", pooling="mean")], tmp_path / "x")


def test_the_failure_of_one_device_stops_the_other_and_keeps_the_shards(bert, corpus, tmp_path):
    inner = load_encoder(bert, device="cpu")
    broken, sound = Counting(inner, 0), Counting(load_encoder(bert, device="cpu"))
    options, before = EmbeddingOptions(shard=5), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        embed_papers(corpus, [broken, sound], tmp_path / "v", options)
    assert threading.active_count() == before
    rest = Counting(inner)
    made = embed_papers(corpus, rest, tmp_path / "v", options)
    assert rest.read + sound.read >= 60 and same(made, embed_papers(corpus, inner, tmp_path / "whole", options))


# --- smaller vectors, sentences, full texts ----------------------------------------------------------


def test_smaller_vectors_are_those_of_the_whole_ones(bert, corpus, tmp_path):
    encoder, options = load_encoder(bert, device="cpu"), EmbeddingOptions(shard=16)
    whole = embed_papers(corpus, encoder, tmp_path / "whole", options)
    small = embed_compressed(corpus, encoder, tmp_path / "s", "int8", options)
    assert isinstance(small, CompressedVectors) and list(small.ids) == list(whole.ids)
    np.testing.assert_allclose(small.decoded(slice(None)), whole.matrix, atol=float(np.abs(whole.matrix).max()) / 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "whole"]
    counting = Counting(encoder)
    embed_compressed(corpus, counting, tmp_path / "s", "int8", options)
    assert counting.read == 0
    with pytest.raises(UserError, match="made from other inputs"):
        embed_compressed(corpus, counting, tmp_path / "s", "truncate:8", options)
    with pytest.raises(UserError, match="from 1 to 31"):
        embed_compressed(corpus, counting, tmp_path / "t", "truncate:32", options)
    assert counting.read == 0


def test_sentences_are_those_of_the_abstracts(bert, corpus, tmp_path):
    encoder = load_encoder(bert, device="cpu")
    made = embed_sentences(corpus, encoder, tmp_path / "s", EmbeddingOptions(shard=7))
    assert len(made) == 54 and made.lengths().max() == 2
    (row,) = made.rows(["p5"])
    assert made.lengths()[row] == 2 and made.numbers[made.offsets[row] :][:2].tolist() == [0, 1]
    abstract = corpus.abstracts[5]
    split = [abstract[: abstract.index(".") + 1], abstract[abstract.index(".") + 2 :]]
    wanted = encode_sentences(encoder, [corpus.titles[5]], [split])
    np.testing.assert_allclose(made.sentences(int(row)), wanted.matrix, atol=1e-5)
    assert made.manifest.facts["records"]["papers"]["rejected"] == {NO_TEXT: 6}
    with pytest.raises(UserError, match="leave out --text"):
        embed_sentences(corpus, encoder, tmp_path / "x", EmbeddingOptions(text=TextRecipe(("title",))))


@pytest.fixture
def full_texts(tmp_path: Path) -> Path:
    sections = [{"heading": "data", "text": " ".join(WORDS * 8)}, {"heading": "", "text": ""}, {"text": "we find"}, 3]
    lines = [
        json.dumps({"id": "p5", "sections": sections}),
        "",
        json.dumps({"id": "outside3", "sections": [{"heading": "how", "text": "models learn"}]}),
        json.dumps({"id": "p5", "sections": []}),
        json.dumps({"id": "nobody", "sections": []}),
        json.dumps({"id": "p6"}),
        "{broken",
    ]
    (tmp_path / "full.jsonl").write_text("\n".join(lines))
    return tmp_path / "full.jsonl"


def test_full_texts_are_read_in_chunks(bert, corpus, full_texts, tmp_path):
    encoder, options = load_encoder(bert, device="cpu", max_tokens=20), EmbeddingOptions(shard=4)
    full = FullText.index(full_texts, corpus)
    assert full.tally.counts["full texts"].kept == 2
    assert sorted(full.tally.counts["full texts"].rejected) == [
        "id given before",
        "id that is not in the corpus",
        "no id or no list of sections",
        "not valid JSON",
    ]
    several = embed_full_text(corpus, encoder, tmp_path / "c", full, options, several=True)
    recorder = Recorder()
    one = embed_full_text(corpus, encoder, tmp_path / "v", full, options, reporter=recorder)
    assert recorder.done == 60
    chunks = split_chunks(encoder.reader, [PaperTexts(corpus, TextRecipe())[5], *full.sections(5)])
    assert len(chunks) > 7 and max(map(len, chunks)) == 20
    own = [ids for chunk in chunks for ids in chunk[1:-1].tolist()]
    assert own == [
        n for text in encoder.reader.pieces([PaperTexts(corpus, TextRecipe())[5], *full.sections(5)]) for n in text
    ]
    vectors = encoder.encode_tokens(chunks)
    np.testing.assert_allclose(several.sentences(int(several.rows(["p5"])[0])), vectors, atol=1e-5)
    weights = np.array([len(chunk) - 2 for chunk in chunks])[:, None]
    np.testing.assert_allclose(one.take(["p5"])[0], (vectors * weights).sum(axis=0) / weights.sum(), atol=1e-5)
    assert (one.rows(["outside3", "outside13"]) >= 0).tolist() == [True, False]  # the one has nothing but a section
    assert one.provenance.text_recipe == TextRecipe().hash + "+sections"


def test_full_texts_that_cannot_be_read(corpus, tmp_path):
    import gzip

    (tmp_path / "full.jsonl.gz").write_bytes(gzip.compress(b'{"id": "p5", "sections": []}'))
    (tmp_path / "list.json").write_text("[]")
    for name in ("full.jsonl.gz", "list.json"):
        with pytest.raises(InputError, match="not a plain file of JSON lines"):
            FullText.index(tmp_path / name, corpus)
    with pytest.raises(InputError, match="cannot be opened"):
        FullText.index(tmp_path / "missing.jsonl", corpus)


@pytest.mark.parametrize("kind", ["int8", "truncate:8"])
def test_smaller_vectors_go_on_after_an_interruption(bert, corpus, tmp_path, kind):
    encoder, options = load_encoder(bert, device="cpu"), EmbeddingOptions(shard=16)
    whole = embed_compressed(corpus, encoder, tmp_path / "whole", kind, options)
    with pytest.raises(KeyboardInterrupt):
        embed_compressed(corpus, Counting(encoder, 40), tmp_path / "s", kind, options)
    rest = Counting(encoder)
    made = embed_compressed(corpus, rest, tmp_path / "s", kind, options)
    assert rest.read == 60 - 32 and made.manifest.hash == whole.manifest.hash
    assert made.manifest.facts["records"]["vectors"] == {"read": 60, "kept": 54, "rejected": {NO_TEXT: 6}}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "whole"]
    with pytest.raises(EmptyResultError):
        embed_compressed(corpus, encoder, tmp_path / "none", kind, EmbeddingOptions(text=TextRecipe(("venue",))))
    assert not work_folder(tmp_path / "none").exists()
