"""Embed the papers of a corpus, or their sentences, into a vectors folder, shard by shard and resumable.

    embed_papers(corpus, encoder, "vectors")               the titles and abstracts of a corpus
    embed_papers(corpus, [first, second], "vectors")       with two encoders, one per device
    embed_papers(corpus, encoder, "vectors", EmbeddingOptions(remote=RemoteShards(executor, EncoderSpec("minilm"))))
    embed_texts(encoder, ids, texts, "vectors", text_recipe=TextRecipe().hash)
    embed_sentences(corpus, encoder, "sentences")          one vector per sentence of the abstracts
    embed_papers_and_sentences(corpus, encoder, work)      both, from the same pass of the network
    embed_full_text(corpus, encoder, "vectors", full)      full texts (`paper_texts.py`), in chunks

A shard of papers is tokenized, sorted by length and encoded in batches. Batches are saved by time; an interrupted run
resumes after the last one that was saved and ends with the same bytes. Memory is that of two shards per device. Papers
without text, or with a vector of zeros, get no vector; they are counted in the manifest. A folder built from the same ids,
texts and encoder is opened and nothing is computed. Each sentence is encoded in the context of its paper
(`sentence_encoder.py`); where there is no abstract, the title is the only sentence.

A remote worker opens corpus and model and makes shards with the code of a local run:

    make = make_shard_worker(corpus={"folder": "/data/corpus", "hash": "..."}, encoder={"model": "minilm", ...},
                             revision="...", kind="papers", options={"shard": 16384, ...}, fingerprints={})
    make(0)                                the bytes of the first shard's file

A corpus, model, token store or file of full texts that differs between its machine and the driver's is refused: its shards
would be wrong.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import artifact_matches, early_scratch_folder
from citeweave.core.columns import release
from citeweave.core.errors import EmptyResultError, UserError, choose, require
from citeweave.core.files import hash_file, hash_json
from citeweave.core.hash_keys import hash_texts
from citeweave.core.progress import QUIET, SAVE_EVERY, Reporter
from citeweave.core.publish import remove_leftovers
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import TextRecipe
from citeweave.encoders import shards
from citeweave.encoders.aspects import load_aspect_encoder
from citeweave.encoders.batches import BatchResults, SavedBatches, run_batches
from citeweave.encoders.encoder import Encoder, TorchEncoder
from citeweave.encoders.paper_texts import FULL_TEXT_SHARD, FullText, PaperTexts, Split, chunk_maker, split_papers
from citeweave.encoders.runtimes import Runtime
from citeweave.encoders.sentence_encoder import (
    PaperAndSentenceTokens,
    encode_papers_and_sentences,
    encode_sentences,
    tokenize_papers,
)
from citeweave.encoders.shards import (
    Arrays,
    EncodingWorker,
    FinishedShards,
    RemoteShards,
    ShardMaker,
    ShardPlan,
    Shards,
    drop_empty_rows,
    fill_shards,
    ragged_rows,
    write_ragged_vectors,
    write_vectors,
)
from citeweave.encoders.tokens import TokenStore, make_token_store
from citeweave.vectors import sentence_vectors, vectors
from citeweave.vectors.compressed import CompressedVectors, compress, open_compressed, parse_kind
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.vectors import DTYPES, Vectors

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
        text = asdict(self.text) | {"parts": list(self.text.parts)}
        tokens = None if self.tokens is None else str(self.tokens.resolve())
        return {"text": text, "dtype": self.dtype, "shard": self.shard, "tokens": tokens}

    def __post_init__(self) -> None:
        choose(self.dtype, DTYPES, "--dtype")
        if self.shard < 1:
            raise UserError(f"--shard is {self.shard}; it must be at least 1 paper")


_OPTIONS = EmbeddingOptions()
_FULL_TEXT_OPTIONS = EmbeddingOptions(shard=FULL_TEXT_SHARD)


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
    if _is_done(folder, vectors, plan, reporter):
        return Vectors.open(folder)
    texts, store = PaperTexts(corpus, options.text), None
    if options.tokens is not None:
        store = _store(corpus, encoders[0], texts, options.tokens, overwrite=overwrite, reporter=reporter)
    makers: Shards = (
        options.remote.make_task(corpus, encoders[0], "papers", options.as_payload())
        if options.remote
        else [text_maker(one, texts, options.dtype, store) for one in encoders]
    )
    return write_vectors(Path(folder), plan, makers, reporter=reporter)


def _is_done(folder: str | Path, kind: ModuleType, plan: ShardPlan, reporter: Reporter) -> bool:
    """Return whether a folder already holds the vectors that would be embedded by this plan."""
    done = artifact_matches(Path(folder), kind.KIND, kind.VERSION, plan.recipe)
    if done:
        reporter.say(f"{folder} already exists: same papers, texts and model")
    return done


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
    if _is_done(folder, vectors, plan, reporter):
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
    choose(dtype, DTYPES, "--dtype")
    if len(ids) != len(texts):
        raise UserError(f"{len(ids)} ids for {len(texts)} texts; give one text per paper")
    facts = {"model": encoder.name, "revision": encoder.revision, "text_recipe": text_recipe}
    recipe: dict[str, Any] = {**facts, "dtype": dtype, "ids": _hash(ids), "texts": _hash(texts)}
    return ShardPlan(ids, {**facts, "source": ""}, recipe, dtype, SHARD, _batch_setting(encoder), overwrite)


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
    encode_all = encoder.encode_tokens if by_tokens else partial(_encode_by_blocks, encoder)

    def read(start: int, stop: int) -> list[Any]:
        if store is None:
            return encoder.reader.read(texts[start:stop]) if by_tokens else list(texts[start:stop])
        tokens = store.take(np.arange(start, stop))
        release(store.ids)  # else a store that is read from end to end would stay in memory
        return tokens

    def encode(inputs: list[Any], reporter: Reporter, saved: SavedBatches) -> Arrays:
        return drop_empty_rows(encode_all(inputs, reporter=reporter, saved=saved), dtype)

    return ShardMaker(read, encode, READ)


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
    if reading := getattr(encoders[0], "reading", None):
        plan = replace(plan, metadata={**plan.metadata, "reading": asdict(reading)})
    if _is_done(folder, sentence_vectors, plan, reporter):
        return SentenceVectors.open(folder)
    makers: Shards = (
        options.remote.make_task(corpus, encoders[0], "sentences", options.as_payload())
        if options.remote
        else [sentence_maker(corpus, one, options.dtype) for one in encoders]
    )
    return write_ragged_vectors(Path(folder), plan, makers, reporter=reporter)


@dataclass(slots=True)
class EmbeddedCorpus:
    """The vectors of papers and of sentences from one pass; None where no paper has a vector of that kind."""

    vectors: Vectors | None = None
    sentences: SentenceVectors | None = None


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
    place = work / f"shards-{hash_json(plan.recipe)[:16]}-{plan.shard}{plan.batches}"
    place.mkdir(parents=True, exist_ok=True)
    maker = _paper_and_sentence_maker(corpus, encoder, options.dtype)
    fill_shards(place, len(corpus), plan.shard, [maker], save_every=plan.save_every, reporter=reporter)
    embedded = EmbeddedCorpus()
    with suppress(EmptyResultError):
        embedded.vectors = write_vectors(work / "vectors", plan, FinishedShards(place, "papers"))
    with suppress(EmptyResultError):
        embedded.sentences = write_ragged_vectors(work / "sentences", plan, FinishedShards(place, "sentences"))
    return embedded


def embed_full_text(
    corpus: Corpus,
    encoder: Encoder | Sequence[Encoder],
    folder: str | Path,
    full_text: FullText,
    options: EmbeddingOptions = _FULL_TEXT_OPTIONS,
    *,
    several: bool = False,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Vectors | SentenceVectors:
    """Embed full texts into a folder: one vector per paper, or with `several` one per chunk."""
    encoders = as_encoders(encoder)
    if not all(hasattr(one, "encode_tokens") for one in encoders) or options.tokens is not None:
        raise UserError(
            "full texts are cut into chunks by the encoder's tokens; leave out --tokens, or use a model folder"
        )
    plan = plan_embedding(corpus, encoders[0], options, overwrite=overwrite, read="+sections")
    plan.recipe.update({"full_text": hash_file(full_text.path), "several": several})
    if _is_done(folder, sentence_vectors if several else vectors, plan, reporter):
        return SentenceVectors.open(folder) if several else Vectors.open(folder)
    texts = PaperTexts(corpus, options.text)
    payload = {**options.as_payload(), "full_text": str(full_text.path.resolve()), "several": several}
    makers: Shards = (
        options.remote.make_task(corpus, encoders[0], "chunks", payload)
        if options.remote
        else [chunk_maker(texts, full_text, one, options.dtype, several) for one in encoders]
    )
    return (write_ragged_vectors if several else write_vectors)(Path(folder), plan, makers, reporter=reporter)


def sentence_maker(corpus: Corpus, encoder: Any, dtype: str) -> ShardMaker:
    """Return the maker that embeds the sentences of a shard of papers."""

    def read(start: int, stop: int) -> list[Split]:
        return split_papers(corpus, start, stop)

    def encode(papers: list[Split], reporter: Reporter, saved: SavedBatches) -> Arrays:
        titles, sentences = map(list, zip(*papers, strict=True))
        encoded = encode_sentences(encoder, titles, sentences, reporter=reporter, saved=saved)
        return ragged_rows(encoded.matrix, encoded.offsets, encoded.numbers, encoded.lost, dtype)

    return ShardMaker(read, encode, SENTENCE_READ)


def _paper_and_sentence_maker(corpus: Corpus, encoder: TorchEncoder, dtype: str) -> ShardMaker:
    """Return the maker of a shard with the vectors of papers (`papers.`) and of their sentences (`sentences.`)."""
    texts = PaperTexts(corpus, TextRecipe())

    def read(start: int, stop: int) -> list[PaperAndSentenceTokens]:
        titles, sentences = map(list, zip(*split_papers(corpus, start, stop), strict=True))
        return tokenize_papers(encoder.reader, texts[start:stop], titles, sentences)

    def encode(papers: list[PaperAndSentenceTokens], reporter: Reporter, saved: SavedBatches) -> Arrays:
        encoded = encode_papers_and_sentences(encoder, papers, reporter=reporter, saved=saved)
        own, inner = drop_empty_rows(encoded.vectors, dtype), encoded.sentences
        ragged = ragged_rows(inner.matrix, inner.offsets, inner.numbers, inner.lost, dtype)
        parts = {"papers": own, "sentences": ragged}
        return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    return ShardMaker(read, encode, SENTENCE_READ)


# --- the remote side -----------------------------------------------------------------------------------


def make_shard_worker(
    corpus: Mapping[str, str],
    encoder: Mapping[str, Any],
    revision: str,
    kind: str,
    options: Mapping[str, Any],
    fingerprints: Mapping[str, str],
) -> EncodingWorker:
    """Open the corpus and the encoder of an embedding run in a worker, and return the function that makes its shards."""
    opened = Corpus.open(Path(corpus["folder"]))
    if opened.hash != corpus["hash"]:
        raise UserError(f"{corpus['folder']} is another corpus here than at the driver; share one folder between nodes")
    for path, found in shards.fingerprints(options).items():
        if found != fingerprints[path]:
            raise UserError(f"{path} differs here ({found}) from the driver's ({fingerprints[path]}); share one")
    # runtimes other than torch would take every core of the machine, of which this worker has only some
    threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    runtime = replace(Runtime.parse(encoder["runtime"]), compiled=encoder["compiled"], threads=threads)
    loaded = load_aspect_encoder(
        encoder["model"], encoder["aspect"], device=encoder["device"], runtime=runtime, **encoder["settings"]
    )
    if loaded.revision != revision:
        raise UserError(
            f"the model {encoder['model']} is another one here than at the driver; install or copy the same"
        )
    return EncodingWorker(_make_maker(opened, loaded, kind, options), len(opened), options["shard"])


def _make_maker(corpus: Corpus, encoder: Any, kind: str, options: Mapping[str, Any]) -> ShardMaker:
    """Return the maker of shards of papers, sentences or chunks, as a local run would use it."""
    if kind == "sentences":
        return sentence_maker(corpus, encoder, options["dtype"])
    texts = PaperTexts(corpus, TextRecipe(**options["text"]))
    if kind == "chunks":
        full = FullText.index(options["full_text"], corpus)
        return chunk_maker(texts, full, encoder, options["dtype"], options["several"])
    store = TokenStore.open(options["tokens"]) if options["tokens"] else None
    return text_maker(encoder, texts, options["dtype"], store)
