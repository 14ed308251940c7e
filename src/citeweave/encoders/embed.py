"""The texts of a corpus as a sequence that is read slice by slice, so that a corpus of any size can be embedded.

texts = PaperTexts(corpus, TextRecipe())
len(texts) == len(corpus), texts[:2] == ["A title[SEP]An abstract.", ...]

Devices by name, several of them at once.

>>> device_names("cpu,cpu")
['cpu', 'cpu']

Whether a device is there is found out when an encoder is loaded onto it.

Embed papers into a Vectors folder, shard by shard.

    embed_papers(corpus, encoder, "vectors")               the titles and abstracts of a corpus
    embed_papers(corpus, [first, second], "vectors")       with two encoders, one a device
    embed_texts(encoder, ids, texts, "vectors", text_recipe=TextRecipe().hash)

    embed_papers(corpus, encoder, "vectors", EmbeddingOptions(elsewhere=Elsewhere(crew, Loading("minilm"))))

A shard of papers is tokenized, sorted by length and read in batches. Batches are saved by time, and an interrupted run
resumes after the last one that was saved and ends with the same bytes. Memory is that of two shards a device. Papers without
text, or with a vector of zeros, get none; they are counted in the manifest. A folder that was made of the same ids,
texts and encoder is opened and nothing is computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import early_work, matches
from citeweave.core.columns import release
from citeweave.core.errors import EmptyResultError, UserError, choose, require
from citeweave.core.progress import QUIET, SAVE_EVERY, Reporter
from citeweave.core.publish import remove_leftovers
from citeweave.core.randomness import hash_texts
from citeweave.corpus.corpus import Corpus, lines
from citeweave.corpus.text import TextRecipe, paper_text
from citeweave.encoders.batches import Results, SavedBatches, run_batches
from citeweave.encoders.encoder import Encoder
from citeweave.encoders.shards import Arrays, Hired, Maker, RemoteShards, ShardPlan, kept_rows, write_vectors
from citeweave.encoders.tokens import Tokens, TokenStore, make_token_store
from citeweave.vectors.compressed import CompressedVectors, compress, open_compressed, parse_kind
from citeweave.vectors.vectors import DTYPES, KIND, VERSION, Vectors


class PaperTexts(Sequence[str]):
    """One text a paper, in the order of the corpus; empty where a paper has none of the recipe's parts."""

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
        """The texts of these rows, in their order."""
        empty = [""] * len(rows)
        parts = [column.take(rows) if name in self.recipe.parts else empty for name, column in self._columns.items()]
        release(*self._columns.values())  # a corpus that is walked through would else stay in memory
        return [
            paper_text(title, abstract, self.recipe, venue=venue, authors=lines(authors))
            for title, abstract, venue, authors in zip(*parts, strict=True)
        ]


# Devices by name, several of them at once.


def device_names(text: str) -> list[str]:
    """`cpu`, `cuda:0,cuda:1`, or `cuda:all` for every graphics card."""
    if text == "cuda:all":
        torch = require("torch", extra="minilm")
        if not torch.cuda.device_count():
            raise UserError("--device is cuda:all, and torch sees no GPU; take --device cpu")
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UserError(f"--device is {text!r}; it must be one device, or several such as cuda:0,cuda:1")
    return names


# Embed papers into a Vectors folder, shard by shard.

SHARD = 16_384
"""Papers of a shard."""

READ = 2048
"""Texts tokenized at a time; beyond that the tokenizer's lists of Python numbers take more than the tokens."""

_BLOCK = 8192
_TEXTS = 256
"""Texts that an encoder without tokens reads at a time."""

_RECIPE = TextRecipe()


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """What is read of a corpus, and how."""

    text: TextRecipe = _RECIPE
    dtype: str = "float32"
    """Type of the vectors' numbers, `float32` or `float16`."""

    shard: int = SHARD
    """Papers that are sorted by length together; two shards are in memory."""

    tokens: Path | None = None
    """Folder of a token store, made where it is not there; without it tokens are made on the way and forgotten."""

    precision: str = "float32"
    """What the network computes in; told by the caller, who loaded it, for the recipe."""

    elsewhere: RemoteShards | None = None
    """Who makes the shards where it is not this process; the result is the same."""

    save_every: float = SAVE_EVERY
    """Seconds of work that an interruption may cost, at most; not with `elsewhere`, where it is a shard of each worker."""

    def as_given(self) -> dict[str, Any]:
        """What a worker has to know of them."""
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
    """Vectors of a corpus's papers as a folder; several encoders, of one model on several devices, share the work."""
    encoders = encoders_of(encoder)
    plan = plan_of(corpus, encoders[0], options, overwrite=overwrite)
    if matches(Path(folder), KIND, VERSION, plan.recipe):
        reporter.say(f"{folder} is there already: same papers, texts and model")
        return Vectors.open(folder)
    texts, store = PaperTexts(corpus, options.text), None
    if options.tokens is not None:
        store = _store(corpus, encoders[0], texts, options.tokens, overwrite=overwrite, reporter=reporter)
    makers: Sequence[Maker] | Hired
    if options.elsewhere is not None:
        makers = options.elsewhere.hire(corpus, encoders[0], "papers", options.as_given())
    else:
        makers = [text_maker(one, texts, options.dtype, store) for one in encoders]
    return write_vectors(Path(folder), plan, makers, reporter=reporter)


def embed_smaller(
    corpus: Corpus,
    encoder: Encoder | Sequence[Encoder],
    folder: str | Path,
    kind: str,
    options: EmbeddingOptions = _OPTIONS,
    *,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Vectors | CompressedVectors:
    """The same as `int8`, `binary` or `truncate:N`; until it is there, the vectors themselves lie in its work folder."""
    encoders, folder = encoders_of(encoder), Path(folder)
    parse_kind(kind, encoders[0].dimension)
    recipe = {**plan_of(corpus, encoders[0], options).recipe, "as": kind}
    if (found := open_compressed(folder, kind, recipe)) is not None:
        reporter.say(f"{folder} is there already: same papers, texts and model")
        return found
    if folder.exists() and not overwrite:  # before the work, not after it
        raise UserError(f"{folder} exists and was made from other inputs or options; choose another -o or --overwrite")
    work = early_work(folder, recipe, "whole")
    try:
        embed_papers(corpus, encoders, work / "vectors", options, reporter=reporter)
    except EmptyResultError:
        remove_leftovers(folder)  # going on would end the same way
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
    """Vectors of the papers' texts as a folder; `ids` and `texts` are asked for slices only and may be read lazily."""
    plan = plan_of_texts(encoder, ids, texts, text_recipe=text_recipe, dtype=dtype, overwrite=overwrite)
    if matches(Path(folder), KIND, VERSION, plan.recipe):
        reporter.say(f"{folder} is there already: same papers, texts and model")
        return Vectors.open(folder)
    return write_vectors(Path(folder), plan, [text_maker(encoder, texts, dtype)], reporter=reporter)


def plan_of_texts(
    encoder: Encoder,
    ids: Sequence[str],
    texts: Sequence[str],
    *,
    text_recipe: str,
    dtype: str = "float32",
    overwrite: bool = False,
) -> ShardPlan:
    """The plan of some texts' vectors."""
    if len(ids) != len(texts):
        raise UserError(f"{len(ids)} ids for {len(texts)} texts; give one text a paper")
    options = EmbeddingOptions(dtype=dtype)
    facts = {"model": encoder.name, "revision": encoder.revision, "text_recipe": text_recipe}
    recipe: dict[str, Any] = {**facts, "dtype": dtype, "ids": _hash(ids), "texts": _hash(texts)}
    return ShardPlan(ids, {**facts, "source": ""}, recipe, dtype, options.shard, batch_plan(encoder), overwrite)


def plan_of(
    corpus: Corpus, encoder: Encoder, options: EmbeddingOptions, *, overwrite: bool = False, read: str = ""
) -> ShardPlan:
    """The plan of a corpus's vectors; `read` says what is read where it is not the text recipe alone."""
    facts = {"model": encoder.name, "revision": encoder.revision, "text_recipe": options.text.hash + read}
    recipe = {**facts, "corpus": corpus.hash, "dtype": options.dtype, "precision": options.precision}
    facts["source"] = corpus.folder.name
    batches = batch_plan(encoder)
    return ShardPlan(corpus.ids, facts, recipe, options.dtype, options.shard, batches, overwrite, options.save_every)


def encoders_of(encoder: Encoder | Sequence[Encoder]) -> list[Encoder]:
    """One or several encoders as a list; all must give the same vectors."""
    encoders = list(encoder) if isinstance(encoder, Sequence) else [encoder]
    if not encoders:
        raise ValueError("no encoder was given")
    if len({one.revision for one in encoders}) > 1:
        raise UserError(f"encoders of several models ({', '.join(one.name for one in encoders)}); give one model")
    return encoders


def batch_plan(encoder: Encoder) -> str:
    """What decides the batches beside the texts' lengths."""
    return f"-{getattr(encoder, 'batch_tokens', 0)}"


def _store(
    corpus: Corpus, encoder: Any, texts: PaperTexts, folder: Path, *, overwrite: bool, reporter: Reporter
) -> TokenStore:
    if not hasattr(encoder, "encode_tokens"):
        raise UserError(f"{encoder.name} reads texts, not tokens; leave out --tokens")
    recipe = {"corpus": corpus.hash, "text_recipe": texts.recipe.hash}
    return make_token_store(encoder.reader, texts, folder, recipe=recipe, overwrite=overwrite, reporter=reporter)


def text_maker(encoder: Any, texts: Sequence[str], dtype: str, store: TokenStore | None = None) -> Maker:
    """Tokens out of the store, or made now; an encoder that knows no tokens gets the texts."""
    by_tokens = hasattr(encoder, "encode_tokens")
    read: Callable[[int, int], list[Any]]
    if store is not None:
        read = lambda start, stop: _taken(store, start, stop)  # noqa: E731
    elif by_tokens:
        read = lambda start, stop: encoder.reader.read(texts[start:stop])  # noqa: E731
    else:
        read = lambda start, stop: list(texts[start:stop])  # noqa: E731

    def blocks(start: int, stop: int) -> Iterator[list[Any]]:
        for at in range(start, stop, READ):
            yield read(at, min(at + READ, stop))

    def encode(found: list[Any], reporter: Reporter, saved: SavedBatches) -> Arrays:
        made = encoder.encode_tokens if by_tokens else partial(_encode_by_blocks, encoder)
        return kept_rows(made(found, reporter=reporter, saved=saved), dtype)

    return Maker(blocks, encode)


def _encode_by_blocks(
    encoder: Encoder, texts: Sequence[str], *, reporter: Reporter, saved: SavedBatches
) -> NDArray[np.float32]:
    """Vectors by an encoder that knows no tokens, (texts, dimension)."""
    vectors = np.zeros((len(texts), encoder.dimension), np.float32)
    with reporter.task("embedding", len(texts), "papers") as advance:

        def encode(rows: NDArray[np.int64]) -> None:
            vectors[rows] = encoder.encode([texts[row] for row in rows.tolist()])

        results = Results([vectors], lambda rows: [rows], lambda rows: advance(len(rows)))
        alike = np.ones(len(texts), np.int64)
        run_batches(alike, _TEXTS, encode, results=results, saved=saved, reporter=reporter)
    return vectors


def _taken(store: TokenStore, start: int, stop: int) -> list[Tokens]:
    tokens = store.take(np.arange(start, stop))
    release(store.ids)  # a store that is walked through would else stay in memory
    return tokens


def _hash(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(texts), _BLOCK):
        # lone surrogates are replaced as they are when texts are read
        block = [text.encode("utf-8", "replace").decode() for text in texts[start : start + _BLOCK]]
        digest.update(hash_texts(block).tobytes())
    return digest.hexdigest()[:16]
