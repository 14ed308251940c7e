"""Embed the papers of a corpus, or their sentences, into a vectors folder, shard by shard and resumable.

    embed_papers(corpus, encoder, "vectors")               the titles and abstracts of a corpus
    embed_papers(corpus, [first, second], "vectors")       with two encoders, one per device
    embed_papers(corpus, encoder, "vectors", EmbeddingOptions(remote=RemoteShards(executor, EncoderSpec("minilm"))))
    embed_texts(encoder, ids, texts, "vectors", text_recipe=TextRecipe().hash)
    embed_sentences(corpus, encoder, "sentences")          one vector per sentence of the abstracts
    embed_papers_and_sentences(corpus, encoder, work)      both, from the same pass of the network

    texts = PaperTexts(corpus, TextRecipe())
    len(texts) == len(corpus), texts[:2] == ["A title[SEP]An abstract.", ...]

A shard of papers is tokenized, sorted by length and encoded in batches. Batches are saved by time; an interrupted run
resumes after the last one that was saved and ends with the same bytes. Memory is that of two shards per device. Papers
without text, or with a vector of zeros, get no vector; they are counted in the manifest. A folder built from the same ids,
texts and encoder is opened and nothing is computed. Each sentence is encoded in the context of its paper
(`sentence_encoder.py`); where there is no abstract, the title is the only sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import artifact_matches, early_scratch_folder
from citeweave.core.columns import release
from citeweave.core.errors import EmptyResultError, UserError, choose, require
from citeweave.core.files import hash_json
from citeweave.core.hash_keys import hash_texts
from citeweave.core.progress import QUIET, SAVE_EVERY, Reporter
from citeweave.core.publish import remove_leftovers
from citeweave.corpus.corpus import Corpus, lines
from citeweave.corpus.text import TextRecipe, paper_text, sentence_texts
from citeweave.encoders.batches import BatchResults, SavedBatches, run_batches
from citeweave.encoders.encoder import Encoder, TorchEncoder
from citeweave.encoders.sentence_encoder import (
    EncodedSentences,
    PaperAndSentenceTokens,
    encode_papers_and_sentences,
    encode_sentences,
    tokenize_papers,
)
from citeweave.encoders.shards import (
    Arrays,
    FinishedShards,
    RemoteMaker,
    RemoteShards,
    ShardMaker,
    ShardPlan,
    drop_empty_rows,
    fill_shards,
    write_ragged_vectors,
    write_vectors,
)
from citeweave.encoders.tokens import Tokens, TokenStore, make_token_store
from citeweave.vectors import sentence_vectors
from citeweave.vectors.compressed import CompressedVectors, compress, open_compressed, parse_kind
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.vectors import DTYPES, KIND, VERSION, Vectors

SHARD = 16_384
"""Papers per shard."""

READ = 2048
"""Texts tokenized at a time; with more, the tokenizer's Python lists need more memory than the tokens."""

SENTENCE_READ = 512
"""Papers whose sentences are tokenized at a time."""

_BLOCK = 8192
_TEXTS = 256
"""Texts at a time for an encoder that does not take tokens."""

_RECIPE = TextRecipe()

Split = tuple[str, list[str]]
"""A paper's title and the sentences of its abstract."""


class PaperTexts(Sequence[str]):
    """The texts of papers to embed, read slice by slice; empty where a paper has none of the recipe's parts."""

    def __init__(self, corpus: Corpus, recipe: TextRecipe) -> None:
        self.corpus, self.recipe = corpus, recipe
        self._columns = {
            "title": corpus.titles,
            "abstract": corpus.abstracts,
            "venue": corpus.venues,
            "authors": corpus.authors,
        }

    def __len__(self) -> int:
        return len(self.corpus)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if not isinstance(row, slice):
            return self[row : row + 1 or None][0]
        return self.take(np.arange(len(self))[row])

    def take(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the texts to embed of the papers in these rows."""
        empty = [""] * len(rows)
        parts = [column.take(rows) if name in self.recipe.parts else empty for name, column in self._columns.items()]
        release(*self._columns.values())  # else a corpus that is read from end to end would stay in memory
        return [
            paper_text(title, abstract, self.recipe, venue=venue, authors=lines(authors))
            for title, abstract, venue, authors in zip(*parts, strict=True)
        ]


def device_names(text: str) -> list[str]:
    """Return the devices that papers are embedded on: `cpu`, `cuda:0,cuda:1`, or `cuda:all` for every GPU.

    >>> device_names("cpu,cpu")
    ['cpu', 'cpu']
    """
    if text == "cuda:all":
        torch = require("torch", extra="minilm")
        if not torch.cuda.device_count():
            raise UserError("--device is cuda:all, and torch sees no GPU; use --device cpu")
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UserError(f"--device is {text!r}; it must be one device, or several such as cuda:0,cuda:1")
    return names


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """Options of embedding a corpus: which text, shard size, dtype, token store, remote workers."""

    text: TextRecipe = _RECIPE
    dtype: str = "float32"
    """Dtype of the stored vectors, `float32` or `float16`."""

    shard: int = SHARD
    """Papers that are sorted by length together; two shards are in memory."""

    tokens: Path | None = None
    """Folder of a token store, created where it does not exist; without it tokens are not stored."""

    precision: str = "float32"
    """Precision of the loaded network, which the caller knows; part of the recipe."""

    remote: RemoteShards | None = None
    """Remote workers that embed the shards in place of this process; the result is the same."""

    save_every: float = SAVE_EVERY
    """Most seconds of work that an interruption may cost; with `remote` it is one shard per worker instead."""

    def as_payload(self) -> dict[str, Any]:
        """Return the options that a remote worker needs to embed a shard, as JSON values."""
        tokens = None if self.tokens is None else str(self.tokens.resolve())
        return {
            "text": asdict(self.text) | {"parts": list(self.text.parts)},
            "dtype": self.dtype,
            "shard": self.shard,
            "tokens": tokens,
        }

    def __post_init__(self) -> None:
        choose(self.dtype, DTYPES, "--dtype")
        if self.shard < 1:
            raise UserError(f"--shard is {self.shard}; it must be at least 1 paper")


_OPTIONS = EmbeddingOptions()


def embed_papers(
    corpus: Corpus,
    encoder: Encoder | Sequence[Encoder],
    folder: str | Path,
    options: EmbeddingOptions = _OPTIONS,
    *,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Vectors:
    """Embed the papers of a corpus into a vectors folder; encoders of one model on several devices share the work."""
    encoders = as_encoders(encoder)
    plan = plan_embedding(corpus, encoders[0], options, overwrite=overwrite)
    if artifact_matches(Path(folder), KIND, VERSION, plan.recipe):
        reporter.say(f"{folder} already exists: same papers, texts and model")
        return Vectors.open(folder)
    texts, store = PaperTexts(corpus, options.text), None
    if options.tokens is not None:
        store = _store(corpus, encoders[0], texts, options.tokens, overwrite=overwrite, reporter=reporter)
    makers: Sequence[ShardMaker] | RemoteMaker
    if options.remote is not None:
        makers = options.remote.make_task(corpus, encoders[0], "papers", options.as_payload())
    else:
        makers = [text_maker(one, texts, options.dtype, store) for one in encoders]
    return write_vectors(Path(folder), plan, makers, reporter=reporter)


def embed_compressed(
    corpus: Corpus,
    encoder: Encoder | Sequence[Encoder],
    folder: str | Path,
    kind: str,
    options: EmbeddingOptions = _OPTIONS,
    *,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Vectors | CompressedVectors:
    """Embed the papers of a corpus as `int8`, `binary` or `truncate:N`; full vectors stay in a work folder until then."""
    encoders, folder = as_encoders(encoder), Path(folder)
    parse_kind(kind, encoders[0].dimension)
    recipe = {**plan_embedding(corpus, encoders[0], options).recipe, "as": kind}
    if (existing := open_compressed(folder, kind, recipe)) is not None:
        reporter.say(f"{folder} already exists: same papers, texts and model")
        return existing
    if folder.exists() and not overwrite:  # before embedding, not after it
        raise UserError(f"{folder} exists and was made from other inputs or options; choose another -o or --overwrite")
    work = early_scratch_folder(folder, recipe, "whole")
    try:
        embed_papers(corpus, encoders, work / "vectors", options, reporter=reporter)
    except EmptyResultError:
        remove_leftovers(folder)  # resuming would end the same way
        raise
    return compress(work / "vectors", folder, kind, recipe=recipe, overwrite=overwrite)


def embed_texts(
    encoder: Encoder,
    ids: Sequence[str],
    texts: Sequence[str],
    folder: str | Path,
    *,
    text_recipe: str,
    dtype: str = "float32",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Vectors:
    """Embed texts into a vectors folder; only slices of `ids` and `texts` are read, so they may be lazy."""
    plan = plan_texts(encoder, ids, texts, text_recipe=text_recipe, dtype=dtype, overwrite=overwrite)
    if artifact_matches(Path(folder), KIND, VERSION, plan.recipe):
        reporter.say(f"{folder} already exists: same papers, texts and model")
        return Vectors.open(folder)
    return write_vectors(Path(folder), plan, [text_maker(encoder, texts, dtype)], reporter=reporter)


def plan_texts(
    encoder: Encoder,
    ids: Sequence[str],
    texts: Sequence[str],
    *,
    text_recipe: str,
    dtype: str = "float32",
    overwrite: bool = False,
) -> ShardPlan:
    """Plan the shards and the recipe of embedding texts."""
    if len(ids) != len(texts):
        raise UserError(f"{len(ids)} ids for {len(texts)} texts; give one text per paper")
    options = EmbeddingOptions(dtype=dtype)
    facts = {"model": encoder.name, "revision": encoder.revision, "text_recipe": text_recipe}
    recipe: dict[str, Any] = {**facts, "dtype": dtype, "ids": _hash(ids), "texts": _hash(texts)}
    return ShardPlan(ids, {**facts, "source": ""}, recipe, dtype, options.shard, _batch_setting(encoder), overwrite)


def plan_embedding(
    corpus: Corpus, encoder: Encoder, options: EmbeddingOptions, *, overwrite: bool = False, read: str = ""
) -> ShardPlan:
    """Plan the shards and the recipe of embedding a corpus; `read` is added to the hash of the text recipe."""
    facts = {"model": encoder.name, "revision": encoder.revision, "text_recipe": options.text.hash + read}
    recipe = {**facts, "corpus": corpus.hash, "dtype": options.dtype, "precision": options.precision}
    facts["source"] = corpus.folder.name
    batches = _batch_setting(encoder)
    return ShardPlan(corpus.ids, facts, recipe, options.dtype, options.shard, batches, overwrite, options.save_every)


def as_encoders(encoder: Encoder | Sequence[Encoder]) -> list[Encoder]:
    """Return one or several encoders to embed with as a list; all must be of one model."""
    encoders = list(encoder) if isinstance(encoder, Sequence) else [encoder]
    if not encoders:
        raise ValueError("there is no encoder")
    if len({one.revision for one in encoders}) > 1:
        raise UserError(f"encoders of several models ({', '.join(one.name for one in encoders)}); give one model")
    return encoders


def _batch_setting(encoder: Encoder) -> str:
    """Return the setting of an encoder that decides its batches, besides the lengths of the texts."""
    return f"-{getattr(encoder, 'batch_tokens', 0)}"


def _store(
    corpus: Corpus, encoder: Any, texts: PaperTexts, folder: Path, *, overwrite: bool, reporter: Reporter
) -> TokenStore:
    if not hasattr(encoder, "encode_tokens"):
        raise UserError(f"{encoder.name} reads texts, not tokens; leave out --tokens")
    recipe = {"corpus": corpus.hash, "text_recipe": texts.recipe.hash}
    return make_token_store(encoder.reader, texts, folder, recipe=recipe, overwrite=overwrite, reporter=reporter)


def text_maker(encoder: Any, texts: Sequence[str], dtype: str, store: TokenStore | None = None) -> ShardMaker:
    """Return the maker that embeds a shard of papers, from stored tokens, new tokens or, without tokens, the texts."""
    by_tokens = hasattr(encoder, "encode_tokens")
    read: Callable[[int, int], list[Any]]
    if store is not None:
        read = lambda start, stop: _take_tokens(store, start, stop)  # noqa: E731
    elif by_tokens:
        read = lambda start, stop: encoder.reader.read(texts[start:stop])  # noqa: E731
    else:
        read = lambda start, stop: list(texts[start:stop])  # noqa: E731

    def blocks(start: int, stop: int) -> Iterator[list[Any]]:
        for at in range(start, stop, READ):
            yield read(at, min(at + READ, stop))

    def encode(inputs: list[Any], reporter: Reporter, saved: SavedBatches) -> Arrays:
        encode_all = encoder.encode_tokens if by_tokens else partial(_encode_by_blocks, encoder)
        return drop_empty_rows(encode_all(inputs, reporter=reporter, saved=saved), dtype)

    return ShardMaker(blocks, encode)


def _encode_by_blocks(
    encoder: Encoder, texts: Sequence[str], *, reporter: Reporter, saved: SavedBatches
) -> NDArray[np.float32]:
    """Encode texts block by block with an encoder that does not take tokens, (texts, dimension)."""
    vectors = np.zeros((len(texts), encoder.dimension), np.float32)
    with reporter.task("embedding", len(texts), "papers") as advance:

        def encode(rows: NDArray[np.int64]) -> None:
            vectors[rows] = encoder.encode([texts[row] for row in rows.tolist()])

        results = BatchResults([vectors], lambda rows: [rows], lambda rows: advance(len(rows)))
        lengths = np.ones(len(texts), np.int64)
        run_batches(lengths, _TEXTS, encode, results=results, saved=saved, reporter=reporter)
    return vectors


def _take_tokens(store: TokenStore, start: int, stop: int) -> list[Tokens]:
    tokens = store.take(np.arange(start, stop))
    release(store.ids)  # else a store that is read from end to end would stay in memory
    return tokens


def _hash(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(texts), _BLOCK):
        # lone surrogates are replaced as they are when texts are read
        block = [text.encode("utf-8", "replace").decode() for text in texts[start : start + _BLOCK]]
        digest.update(hash_texts(block).tobytes())
    return digest.hexdigest()[:16]


# --- sentences -----------------------------------------------------------------------------------------


def embed_sentences(
    corpus: Corpus,
    encoder: TorchEncoder | Sequence[TorchEncoder],
    folder: str | Path,
    options: EmbeddingOptions = _OPTIONS,
    *,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> SentenceVectors:
    """Embed the sentences of a corpus's abstracts into a folder; the text and tokens of `options` are not used."""
    if options.text != TextRecipe() or options.tokens is not None:
        raise UserError("sentences come from the abstract and are read with the title; leave out --text and --tokens")
    encoders = as_encoders(encoder)
    if not all(isinstance(one, TorchEncoder) for one in encoders):
        raise UserError("sentence vectors need the states of single tokens; use --runtime torch")
    plan = plan_embedding(corpus, encoders[0], options, overwrite=overwrite)
    if artifact_matches(Path(folder), sentence_vectors.KIND, sentence_vectors.VERSION, plan.recipe):
        reporter.say(f"{folder} already exists: same papers, texts and model")
        return SentenceVectors.open(folder)
    makers: Sequence[ShardMaker] | RemoteMaker
    if options.remote is not None:
        makers = options.remote.make_task(corpus, encoders[0], "sentences", options.as_payload())
    else:
        makers = [sentence_maker(corpus, one, options.dtype) for one in encoders if isinstance(one, TorchEncoder)]
    return write_ragged_vectors(Path(folder), plan, makers, reporter=reporter)


@dataclass(frozen=True, slots=True)
class EmbeddedCorpus:
    """The vectors of papers and of sentences from one pass; None where no paper has a vector of that kind."""

    vectors: Vectors | None
    sentences: SentenceVectors | None


def embed_papers_and_sentences(
    corpus: Corpus,
    encoder: TorchEncoder,
    work: Path,
    options: EmbeddingOptions = _OPTIONS,
    *,
    reporter: Reporter = QUIET,
) -> EmbeddedCorpus:
    """Embed papers and their sentences into two folders, from one pass of an encoder that `reads_together`.

    `work` belongs to the caller: it holds the shards with both, so that an interrupted run resumes, and gets the folders
    `vectors` and `sentences`. Of `options` only the dtype and the shard are used.
    """
    plan = plan_embedding(corpus, encoder, options, overwrite=True)
    shards = work / f"shards-{hash_json(plan.recipe)[:16]}-{plan.shard}{plan.batches}"
    shards.mkdir(parents=True, exist_ok=True)
    maker = _paper_and_sentence_maker(corpus, encoder, options.dtype)
    fill_shards(shards, len(corpus), plan.shard, [maker], save_every=plan.save_every, reporter=reporter)
    vectors: Vectors | None = None
    sentences: SentenceVectors | None = None
    with suppress(EmptyResultError):
        vectors = write_vectors(work / "vectors", plan, FinishedShards(shards, "papers"))
    with suppress(EmptyResultError):
        sentences = write_ragged_vectors(work / "sentences", plan, FinishedShards(shards, "sentences"))
    return EmbeddedCorpus(vectors, sentences)


def sentence_maker(corpus: Corpus, encoder: TorchEncoder, dtype: str) -> ShardMaker:
    """Return the maker that embeds the sentences of a shard of papers."""

    def read(start: int, stop: int) -> Iterator[list[Split]]:
        for at in range(start, stop, SENTENCE_READ):
            yield _split(corpus, at, min(at + SENTENCE_READ, stop))

    def encode(papers: list[Split], reporter: Reporter, saved: SavedBatches) -> Arrays:
        titles, sentences = [title for title, _ in papers], [split for _, split in papers]
        encoded = encode_sentences(encoder, titles, sentences, reporter=reporter, saved=saved)
        return _ragged(encoded, dtype)

    return ShardMaker(read, encode)


def _paper_and_sentence_maker(corpus: Corpus, encoder: TorchEncoder, dtype: str) -> ShardMaker:
    """Return the maker of a shard with the vectors of papers (`papers.`) and of their sentences (`sentences.`)."""
    texts = PaperTexts(corpus, TextRecipe())

    def read(start: int, stop: int) -> Iterator[list[PaperAndSentenceTokens]]:
        for at in range(start, stop, SENTENCE_READ):
            end = min(at + SENTENCE_READ, stop)
            papers = _split(corpus, at, end)
            titles, sentences = [title for title, _ in papers], [split for _, split in papers]
            yield tokenize_papers(encoder.reader, texts[at:end], titles, sentences)

    def encode(papers: list[PaperAndSentenceTokens], reporter: Reporter, saved: SavedBatches) -> Arrays:
        encoded = encode_papers_and_sentences(encoder, papers, reporter=reporter, saved=saved)
        own, ragged = drop_empty_rows(encoded.vectors, dtype), _ragged(encoded.sentences, dtype)
        return {f"papers.{name}": array for name, array in own.items()} | {
            f"sentences.{name}": array for name, array in ragged.items()
        }

    return ShardMaker(read, encode)


def _split(corpus: Corpus, start: int, stop: int) -> list[Split]:
    pairs = zip(corpus.titles[start:stop], corpus.abstracts[start:stop], strict=True)
    return [(title, sentence_texts(abstract) or [text for text in [title] if text]) for title, abstract in pairs]


def _ragged(encoded: EncodedSentences, dtype: str) -> Arrays:
    with np.errstate(over="ignore"):  # numbers that are not finite are counted when they are written
        matrix = encoded.matrix.astype(dtype)  # (sentences, dimension)
    return {
        "matrix": matrix,
        "offsets": encoded.offsets,
        "numbers": encoded.numbers,
        "lost": np.array([encoded.lost]),
    }
